"""A package that grows from nothing: `course start`, `course package`, and what the other commands make of it."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from house import House

from course.paths import modules, source_chapters
from course.testing.law import student_clone

FIVE = '''\
# %% [markdown]
r"""
# 05 · Next
"""

# %%
#| default_exp next
#| doc next: What follows.
from course.notebook import checkpoint

# %%
#| export
from nanogpt.tiny import area


def twice(r: float) -> float:
    """Two circles."""
    return 2 * area(r)


# %%
checkpoint("05")
'''


@pytest.fixture(scope="module")
def built_pair(built_house, tmp_path_factory):
    """A small course of two chapters, committed: 05 builds upon 04."""
    return built_house.with_next(tmp_path_factory.mktemp("pair") / "house", FIVE)


@pytest.fixture
def pair(built_pair, tmp_path):
    return built_pair.copied(tmp_path / "pair")


def there(house) -> list[str]:
    """The modules in the package, device.py aside, which no chapter of the small course makes."""
    return sorted(set(modules(house.path / "nanogpt")) - {"device"})


def kept(house) -> list[Path]:
    return list(house.path.glob("yours/*/*"))


def status(house) -> str:
    return house.git("status", "--porcelain")


def everything(house) -> dict[str, bytes]:
    """All files of package, notebooks and the top folder."""
    found = [path for pattern in ("*", "nanogpt/*", "notebooks/*") for path in house.path.glob(pattern)]
    return {str(path): path.read_bytes() for path in found if path.is_file()}


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def hand_out_headings(house) -> None:
    """In this copy of the course, all below a notebook's heading is blank."""
    with open(house.path / "course/package/hand_out.py", "a") as file:
        file.write("\n\ndef handed_out(nb, name):\n    del nb.cells[1:]\n    return nb\n")


def test_an_empty_package_is_filled_by_checkpoints_and_is_the_committed_one(pair):
    said = pair.course("start")
    assert there(pair) == [] and "no chapter is in it yet" in said and "go on with chapter 04" in said
    assert kept(pair) == [], "git has what stood there"
    pair.course("checkpoint", "04")
    assert there(pair) == ["tiny"]
    assert "package: started; chapter 04 is in it" in pair.course("progress")
    pair.course("checkpoint", "05")
    assert there(pair) == ["next", "tiny"] and status(pair) == ""


def test_it_begins_anywhere_with_the_chapters_before_and_again_only_if_told_where(pair):
    said = pair.course("start", "--at", "5")
    assert there(pair) == ["tiny"] and "chapter 04 is in it" in said and "course run 05" in said
    assert "no chapter '06'" in pair.course("start", "--at", "06", code=2)
    said = pair.course("start", code=2)
    assert "started already (chapter 04 is in it)" in said and "course package" in said
    pair.course("start", "--at", "04")
    assert there(pair) == []


def test_a_package_of_the_students_own_is_kept_beside(pair):
    pair.edit("math.pi*r**2", "3.0*r**2")
    pair.course("checkpoint", "04")
    said = pair.course("start")
    assert there(pair) == []
    (own,) = kept(pair)
    assert "keeps your nanogpt" in said and "3.0 * r**2" in (own / "tiny.py").read_text()
    assert "nanogpt" not in status(pair).replace(" D nanogpt", ""), "git ignores it"
    pair.course("checkpoint", "04")
    pair.course("package")
    assert "math.pi" in pair.module.read_text() and len(kept(pair)) == 2, "and so is a growing one"


@pytest.mark.parametrize("words", [["start"], ["start", "--at", "05"], ["start", "--blank"]])
def test_an_edit_by_hand_is_kept_and_a_file_of_the_students_own_stays(pair, words):
    pair.module.write_text(pair.module.read_text() + "MINE = 1\n", encoding="utf-8")
    (pair.path / "nanogpt/mine.py").write_text("x = 1\n")
    assert "keeps your nanogpt" in pair.course(*words)
    (own,) = kept(pair)
    assert (own / "tiny.py").read_text(encoding="utf-8").endswith("MINE = 1\n")
    assert "mine" in there(pair)


def test_without_git_what_the_chapters_do_not_make_is_kept(pair):
    shutil.rmtree(pair.path / ".git")
    pair.course("start")
    assert kept(pair) == [] and there(pair) == [], "the chapters make all of it"
    pair.edit("math.pi*r**2", "3.0*r**2")
    pair.course("checkpoint", "04")
    pair.course("package")
    (own,) = kept(pair)
    assert "3.0 * r**2" in (own / "tiny.py").read_text()


@pytest.mark.parametrize(
    "words, problem, after",
    [
        (["start", "--blank"], KeyboardInterrupt, False),
        (["start", "--blank"], full, True),
        (["start", "--at", "05"], full, False),
        (["package"], KeyboardInterrupt, True),
    ],
)
def test_stopped_at_any_point_all_is_as_it_was(pair, monkeypatch, words, problem, after):
    """Ctrl-C and a full disk, before or after each rename, until one would come too late."""
    if words == ["package"]:
        pair.course("start")
    pair.edit("math.pi*r**2", "3.0*r**2")
    pair.course("checkpoint", "04")
    hand_out_headings(pair)
    before = everything(pair)
    with pair.own_course():
        from course.cli import main

        for number in range(100):
            with monkeypatch.context() as patch:
                patch.setattr(os, "replace", Stopping(number, after, problem))
                code = main(words)
            if code == 0:
                break
            assert code in (2, 130) and everything(pair) == before, f"stopped at rename {number}"
    assert 1 < number < 99 and everything(pair) != before


class Stopping:
    """os.replace, which fails once, before or after a rename is done."""

    def __init__(self, number: int, after: bool, problem):
        self.left, self.after, self.problem, self.replace = number, after, problem, os.replace

    def __call__(self, old, new) -> None:
        self.left -= 1
        if self.after or self.left != -1:
            self.replace(old, new)
        if self.left == -1:
            raise self.problem()


def test_an_import_of_what_is_not_built_yet_names_the_chapter(pair):
    pair.course("start")
    said = pair.course("run", "05", code=2)
    assert "No module named 'nanogpt.tiny'" in said
    assert "chapter 04 makes it: run its notebook, or `course start --at 05`" in said
    shown = pair.run_cells(["import nanogpt.tiny"], code=1)
    assert "nanogpt/tiny.py is not there yet; chapter 04 makes it" in shown
    pair.course("package")
    pair.module.unlink()
    assert "`course restore 04` brings it back" in pair.course("run", "05", code=2), "in a complete clone"


def test_restore_brings_back_only_what_is_built(pair):
    pair.course("start")
    pair.edit("math.pi*r**2", "3.0*r**2")
    pair.course("restore", "04", "--yes")
    assert there(pair) == []
    pair.course("checkpoint", "04")
    pair.module.unlink()
    pair.course("restore", "04", "--yes")
    assert there(pair) == ["tiny"]


def test_an_update_brings_no_module_that_is_still_to_be_built(pair, tmp_path):
    pair.git("clone", "-q", ".", str(tmp_path / "student"))
    student = House(tmp_path / "student")
    student.course("start", "--at", "05")
    (pair.path / "nanogpt/next.py").write_text("NEWER = 1\n")
    for path in (pair.source, pair.module):
        path.write_text(path.read_text(encoding="utf-8").replace("LIMIT = 3", "LIMIT = 4"), encoding="utf-8")
    pair.git("commit", "-qam", "newer")
    was = student.module.read_text()
    assert "3 files are new or newer" in student.course("update")
    assert there(student) == ["tiny"] and student.module.read_text() == was, "what has grown stays"
    assert "started; chapter 04 is in it" in student.course("progress")
    student.course("package")
    assert student.module.read_text() == was.replace("LIMIT = 3", "LIMIT = 4")


def test_a_damaged_state_is_a_complete_clone(pair):
    for text in ("{", "[]", '{"state": "odd", "chapters": []}', '{"state": "started"}'):
        (pair.path / ".course-state.json").write_text(text)
        assert "package: complete\n" in pair.course("progress")


def test_the_machinery_does_without_the_package(tmp_path):
    """The course itself: with not a module there, notebooks can import it, and nothing of the doctor's is red for it."""
    bare = House(student_clone(tmp_path / "course", source_chapters()))
    bare.course("start")
    assert there(bare) == []
    code = "import course.notebook, course.figures.widgets, course.torchrun, course.notebooks.run, course.machine.lab\n"
    code += "from course.notebooks.trust import trusted_environment\ntrusted_environment()"
    there_alone = {"cwd": bare.path, "env": bare.environment()}
    subprocess.run([sys.executable, "-c", code], check=True, **there_alone)
    doctor = subprocess.run(bare.command("doctor"), capture_output=True, text=True, **there_alone)
    assert doctor.returncode == 0, doctor.stdout
    assert "started; no chapter is in it yet" in doctor.stdout
    assert "nanogpt/device.py is not there yet; chapter 00 makes it: run its notebook" in doctor.stdout
