"""The package as chapters fill it: in any order the same, and each chapter tested as of that chapter."""

import contextlib
import re
import tempfile
from pathlib import Path
from unittest.mock import patch

import nbformat
import pytest
from house import of_code
from hypothesis import given, settings
from hypothesis import strategies as st

from course.files import replace_all
from course.package import as_of
from course.package.as_of import Chapter, compose, notebooks_upto
from course.paths import module_path, modules

KINDS = {  # what a step does: which names it may grow, its cell, and what that defines
    "new function": ("", "def f{fresh}(): pass", "f{fresh}"),
    "new class": ("", "class C{fresh}:\n    def one(self): pass", "C{fresh} C{fresh}.one"),
    "more methods": (r"C\w+", "class {name}({name}):\n    def m{fresh}(self): pass", "{name}.m{fresh}"),
    "grow function": (r"f\w+", "#| grows {name}\ndef {name}(): return '{fresh}'", "{name}"),
    "grow method": (r"C.+\..+", "#| grows {name}\nclass {outer}({outer}):\n    def {inner}(self): return '{fresh}'", "{name}"),
    "grow class": (r"C\w+", "#| grows {name}\nclass {name}:\n    def k{fresh}(self): pass", "{name} {name}.k{fresh}"),
}  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from(["a", "gpt.b", "gpt.c"]), st.sampled_from([*KINDS]), st.integers(0, 9)),
    max_size=4,
)


def course_of(plan) -> list[list[str]]:
    """The cells of each chapter, as `plan` says: what is to grow and is not there yet is defined."""
    chapters: list[list[str]] = []
    known: dict[str, dict[str, int]] = {}  # module → name → the chapter that had it last
    for number, steps in enumerate(plan):
        cells = []
        for module, kind, pick in steps:
            if module not in known:
                known[module] = {}
                cells.append(f"#| doc {module}: What it is.")
            names, fresh = known[module], f"{number}_{len(cells)}"
            growable, cell, defines = KINDS[kind]
            ready = [name for name, last in names.items() if last < number and re.fullmatch(growable, name)]
            if growable and not ready:
                _, cell, defines = KINDS["new function" if kind == "grow function" else "new class"]
            name = ready[pick % len(ready)] if ready else ""
            if kind == "grow class":
                for gone in [each for each in names if each.startswith(f"{name}.")]:
                    del names[gone]
            outer, _, inner = name.partition(".")
            words = {"name": name, "outer": outer, "inner": inner, "fresh": fresh}
            cells.append(f"#| export {module}\n{cell.format(**words)}")
            names |= dict.fromkeys(defines.format(**words).split(), number)
        chapters.append(cells)
    return chapters


@contextlib.contextmanager
def written(chapters: list[list[str]]):
    """Notebooks 00_x.ipynb, 01_x.ipynb, ... of these cells in a folder of their own, beside an empty package."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "notebooks").mkdir()
        (root / "nanogpt").mkdir()
        for number, cells in enumerate(chapters):
            nbformat.write(of_code(*cells), root / f"notebooks/{number:02}_x.ipynb")
        with patch.multiple(as_of, NOTEBOOKS=root / "notebooks", PACKAGE=root / "nanogpt"):
            yield root


def package(folder: Path) -> dict[str, str]:
    return {name: module_path(name, folder).read_text(encoding="utf-8") for name in modules(folder)}


def export(root: Path, number: int) -> None:
    """What a checkpoint writes, without its trial."""
    made = Chapter(root / f"notebooks/{number:02}_x.ipynb").in_package()
    replace_all({module_path(module, root / "nanogpt"): text.encode() for module, text in made.items()})


@settings(max_examples=25)
@given(st.lists(STEPS, min_size=2, max_size=5), st.data())
def test_in_any_order_the_chapters_give_the_same_package(plan, data):
    """Those up to some chapter; that there are later ones, not done yet, changes nothing."""
    chapters = course_of(plan)
    with written(chapters) as root:
        last = data.draw(st.integers(0, len(chapters) - 1))
        order = data.draw(st.permutations(range(last + 1)))
        again = data.draw(st.lists(st.sampled_from(order), max_size=2))
        for number in [*order, *again]:
            export(root, number)
        assert package(root / "nanogpt") == compose(notebooks_upto(f"{last:02}"))


@settings(max_examples=15)
@given(st.lists(STEPS, min_size=2, max_size=4))
def test_a_chapter_is_tested_in_the_package_as_of_that_chapter(plan):
    chapters = course_of(plan)
    with written(chapters) as root:
        for number in range(len(chapters)):
            export(root, number)
        for number in range(len(chapters)):
            Chapter(root / f"notebooks/{number:02}_x.ipynb").lay_out(root / f"trial{number}")
            assert package(root / f"trial{number}/nanogpt") == compose(notebooks_upto(f"{number:02}"))


def test_an_earlier_module_that_nobody_has_grown_is_the_packages():
    """A student's edit or restored file counts; a damaged notebook of another chapter is not asked."""
    chapters = [["#| doc b: B.\n#| export b\nB = 1"], ["#| doc c: C.\n#| export c\nC = 1"]]
    with written(chapters) as root:
        export(root, 0)
        (root / "nanogpt/b.py").write_text("B = 2\n")
        (root / "notebooks/00_x.ipynb").write_text("{")
        Chapter(root / "notebooks/01_x.ipynb").lay_out(root / "trial")
        assert package(root / "trial/nanogpt")["b"] == "B = 2\n"


@pytest.fixture
def two_chapters(house):
    """The small course with a second chapter that grows the first one's area; both have been checkpointed."""
    cells = [
        "#| default_exp tiny\nfrom course.notebook import checkpoint\nfrom nanogpt.tiny import area",
        "#| export\n#| grows area\ndef area(r, unit=1):\n    return 3 * r**2 * unit",
        'checkpoint("05")',
    ]
    nbformat.write(of_code(*cells), house.path / "notebooks/05_more.ipynb")
    test = "from nanogpt.tiny import area\n\n\ndef test_unit():\n    assert area(1, 4) == 12, 'four units'\n"
    (house.path / "tests/test_ch05_more.py").write_text(test)
    assert "exported area to nanogpt/tiny.py" in house.course("checkpoint", "05")
    return house


def test_a_checkpoint_tests_its_own_version_and_keeps_the_later_one(two_chapters):
    house, text = two_chapters, two_chapters.module.read_text()
    (house.path / "tests/test_ch04_tiny.py").write_text(
        "from nanogpt.tiny import area\n\n\ndef test_pi():\n    assert area(1) > 3.1, 'more than three'\n"
    )
    house.course("checkpoint", "04")
    assert house.module.read_text() == text and "unit" in text
    assert "agree" in house.course("checkpoint", "--all", "--check")
    house.edit("LIMIT = 3", "LIMIT = 4")
    house.course("checkpoint", "04")
    assert house.module.read_text() == text.replace("LIMIT = 3", "LIMIT = 4")
    house.edit("return math.pi*r**2", "return 3*r**2")
    said = house.course("checkpoint", "04", code=2)
    assert "test_pi: more than three\nlikely 04_tiny.ipynb, area" in said


def test_a_failure_in_what_an_earlier_chapter_wrote_is_its_cells(two_chapters):
    house = two_chapters
    test = "from nanogpt.tiny import count\n\n\ndef test_count():\n    assert count(3)\n"
    (house.path / "tests/test_ch05_more.py").write_text(test)
    said = house.course("checkpoint", "05", code=2)
    assert 'likely 04_tiny.ipynb, count under "04 · Tiny"; nanogpt/tiny.py unchanged' in said


def test_a_damaged_notebook_that_wrote_the_module_is_told(two_chapters):
    """Else the module would lose what it had from there, without a word."""
    house, text = two_chapters, two_chapters.module.read_text()
    later, kept = house.path / "notebooks/05_more.ipynb", house.notebook.read_text()
    house.notebook.write_text("{")
    assert "04_tiny.ipynb is not a readable notebook" in house.course("checkpoint", "05", code=2)
    house.notebook.write_text(kept)
    later.write_text("{")
    assert "05_more.ipynb is not a readable notebook" in house.course("checkpoint", "04", code=2)
    assert house.module.read_text() == text


def test_restoring_keeps_what_a_later_chapter_has_grown(two_chapters):
    house, text = two_chapters, two_chapters.module.read_text()
    house.edit("LIMIT = 3", "LIMIT = 4")
    house.course("checkpoint", "04")
    house.course("restore", "04", "--yes")
    assert house.module.read_text() == text
