"""Any walk through the states of a clone: what is complete is complete, what is blank stays blank, what is the student's is kept."""

from pathlib import Path

import nbformat
import pytest
from house import NEXT, House
from hypothesis import given, settings
from hypothesis import strategies as st

BODIES = {"twice": "return 2 * area(r)", "ring": "return area(r) - area(s)"}


@pytest.fixture(scope="module")
def blanks(built_house, tmp_path_factory):
    """A small course whose chapter 05 has two blanks, one of which grows chapter 04's module."""
    return built_house.with_next(tmp_path_factory.mktemp("walks") / "house", NEXT)


def five_of(house) -> Path:
    return house.path / "notebooks/05_next.ipynb"


class Walk:
    """A student, who types commands and writes bodies of her own, each with a mark that no other text has."""

    def __init__(self, house):
        self.house, self.wrote, self.asked = house, 0, False
        self.five = five_of(house)

    def command(self, *words: str) -> None:
        """A command; it may refuse, in a sentence, and nothing else."""
        with self.house.own_course():
            from course.cli import main

            assert main(list(words)) in (0, 2)
        self.asked |= words[0] == "restore"
        self.look()

    def write(self, name: str) -> None:
        """A body in place of the blank, if there is one."""
        nb = nbformat.read(self.five, as_version=4)
        for cell in nb.cells:
            lines = cell.source.split("\n")
            for i, line in enumerate(lines):
                if f"your turn: {name}" in line:
                    self.wrote += 1
                    lines[i] = f"    {BODIES[name]} + 0  # mine {self.wrote}"
            cell.source = "\n".join(lines)
        nbformat.write(nb, self.five)

    def look(self) -> None:
        state = self.house.path / ".course-state.json"
        package = {path.name: path.read_text() for path in (self.house.path / "nanogpt").glob("*.py")}
        assert not any("your turn" in text for text in package.values()), "no module is left to write"
        if not state.exists() and not self.wrote:
            assert not self.house.git("status", "--porcelain"), "complete means as it was committed"
            assert not list(self.house.path.glob("yours/*/*")), "nothing was the student's"
        if not state.exists() and "+ 0" not in "".join(package.values()):
            changed = self.house.git("diff", "--name-only", "--", "nanogpt")
            assert not changed, "complete means as it was committed"
        if state.exists() and '"blank"' in state.read_text() and not self.asked:
            ours = [body for body in BODIES.values() if f"{body}\n" in self.text(self.five)]
            assert not ours, "our body, unasked"
        files = [self.five, *self.house.path.glob("yours/*/notebooks/*.ipynb")]
        texts = [self.text(path) for path in files]
        for number in range(1, self.wrote + 1):
            assert any(f"# mine {number}\n" in text for text in texts), "the student's own is lost"

    def text(self, path) -> str:
        return "\n".join(f"{cell.source}\n" for cell in nbformat.read(path, as_version=4).cells)


STEPS = [
    ("start", "--blank"), ("start", "--at", "05"), ("start", "--at", "05", "--blank"), ("start", "--at", "04"), ("package",),
    ("restore", "04", "--yes"), ("restore", "05", "--yes"), ("checkpoint", "04"), ("checkpoint", "05"), ("progress",),
    ("write", "twice"), ("write", "ring"),
]  # fmt: skip


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(STEPS), min_size=2, max_size=7))
def test_no_walk_breaks_the_package_spoils_a_blank_or_loses_what_is_hers(blanks, tmp_path_factory, steps):
    walk = Walk(blanks.copied(tmp_path_factory.mktemp("walk") / "house"))
    walk.command("start", "--blank")
    for step in steps:
        walk.write(step[1]) if step[0] == "write" else walk.command(*step)


@pytest.fixture
def house(blanks, tmp_path):
    return blanks.copied(tmp_path / "house")


@pytest.fixture
def student(house, tmp_path):
    """A student's clone, handed out with blanks."""
    house.git("clone", "-q", ".", str(tmp_path / "student"))
    student = House(tmp_path / "student")
    student.course("start", "--blank")
    return student


def test_a_complete_package_does_not_read_notebooks_that_still_have_blanks(house):
    walk = Walk(house)
    walk.command("start", "--blank")
    walk.write("twice")
    walk.command("package")
    text = walk.text(walk.five)
    assert "your turn: ring" in text and "# mine 1" in text, "something of hers is in it"
    walk.command("restore", "04", "--yes")
    walk.command("checkpoint", "04")
    assert "return area(r) - area(s)" in house.module.read_text()


def test_what_a_notebook_printed_here_is_kept(house):
    nb = nbformat.read(house.notebook, as_version=4)
    printing = next(cell for cell in nb.cells if "print" in cell.source)
    printing.outputs = [nbformat.v4.new_output("stream", text="on my GPU")]
    nbformat.write(nb, house.notebook)
    house.course("start", "--blank")
    (kept,) = house.path.glob("yours/*/notebooks/04_tiny.ipynb")
    assert "on my GPU" in kept.read_text(encoding="utf-8")


def change_a_word(house) -> None:
    """A commit to which students update."""
    for path in (house.path / "notebooks/05_next.ipynb", house.path / "notebooks/src/05_next.py"):
        text = path.read_text(encoding="utf-8").replace("# 05 · Next", "# 05 · Next one")
        path.write_text(text, encoding="utf-8")
    house.git("commit", "-qam", "a word")


def write_ring(house) -> str:
    """A student writes a body; the notebook's text."""
    blank = 'raise NotImplementedError(\\"your turn: ring\\")'
    text = five_of(house).read_text(encoding="utf-8").replace(blank, "return 3 * r")
    five_of(house).write_text(text, encoding="utf-8")
    return text


def is_newer_with_its_blank(house) -> bool:
    text = Walk(house).text(five_of(house))
    return "Next one" in text and "your turn: ring" in text and BODIES["ring"] not in text


def test_an_update_hands_out_blanks(house, student):
    change_a_word(house)
    said = student.course("update")
    assert "2 files are new or newer" in said and "handed out with blanks: 05" in said
    assert is_newer_with_its_blank(student)
    assert not list(student.path.glob("yours/*/*")), "nothing was written into it"


def test_with_blanks_restore_brings_the_blank_back_and_shows_no_body(student):
    handed_out, hers = five_of(student).read_bytes(), write_ring(student)
    said = student.course("restore", "05", "--yes")
    assert five_of(student).read_bytes() == handed_out and not any(body in said for body in BODIES.values())
    (kept,) = student.path.glob("yours/*/notebooks/05_next.ipynb")
    assert kept.read_text(encoding="utf-8") == hers


def test_an_update_leaves_what_she_has_written_and_the_package_that_has_grown(house, student):
    student.course("start", "--blank", "--at", "05")
    tiny, hers = student.module.read_bytes(), write_ring(student)
    for module in ("tiny.py", "next.py"):
        (house.path / "nanogpt" / module).write_text("NEWER = 1\n")
    (house.path / "05_tasks.ipynb").write_text("{}")  # handed out to the class since, of the same chapter
    house.git("add", "05_tasks.ipynb")
    change_a_word(house)
    said = student.course("update")
    assert "as you wrote them: 05; `course restore 05`" in said
    assert five_of(student).read_text(encoding="utf-8") == hers and student.module.read_bytes() == tiny
    assert not (student.path / "nanogpt/next.py").exists(), "it is still to be built"
    student.course("restore", "05", "--yes")
    assert is_newer_with_its_blank(student)


def test_an_update_that_git_refuses_loses_nothing_and_brings_no_body(house, student):
    hers = write_ring(student)
    for place, text in ((house, "ours"), (student, "hers")):
        (place.path / "notes.txt").write_text(text)
    house.git("add", "notes.txt")
    house.module.write_text("NEWER = 1\n")
    change_a_word(house)
    assert "git cannot go forward" in student.course("update", code=2)
    assert five_of(student).read_text(encoding="utf-8") == hers
    assert not student.module.exists() and (student.path / "notes.txt").read_text() == "hers"


def test_in_a_complete_package_restore_takes_no_body_from_another_notebook(house):
    house.edit("math.pi*r**2", "3.0*r**2")  # in chapter 04, never checkpointed
    module = house.module.read_bytes()
    five_of(house).write_text("{")
    house.course("restore", "05", "--yes")
    assert house.module.read_bytes() == module and house.git("status", "--porcelain", "nanogpt") == ""
