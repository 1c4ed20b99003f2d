"""A package that grows from nothing: `course start`, `course package`, and what the other commands make of it."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from house import NEXT, House

from course.paths import modules


@pytest.fixture(scope="module")
def built_pair(built_house, tmp_path_factory):
    """A small course of two chapters, committed: 05 builds upon 04."""
    return built_house.with_next(tmp_path_factory.mktemp("pair") / "house", NEXT)


@pytest.fixture
def pair(built_pair, tmp_path):
    return built_pair.copied(tmp_path / "pair")


def there(house) -> list[str]:
    """The modules in the package, device.py aside, which no chapter of the small course makes."""
    return sorted(set(modules(house.path / "nanogpt")) - {"device"})


def kept(house) -> list[Path]:
    return list(house.path.glob("yours/*/*"))


def everything(house) -> dict[str, bytes]:
    """All files of package, notebooks and the top folder."""
    found = [path for pattern in ("*", "nanogpt/*", "notebooks/*") for path in house.path.glob(pattern)]
    return {str(path): path.read_bytes() for path in found if path.is_file()}


def full() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def test_an_empty_package_is_filled_by_checkpoints_and_is_the_committed_one(pair):
    pair.course("start")
    assert there(pair) == []
    pair.course("checkpoint", "04")
    assert there(pair) == ["tiny"]
    assert "package: started; chapter 04 is in it" in pair.course("progress")
    pair.course("checkpoint", "05")
    assert there(pair) == ["next", "tiny"] and pair.git("status", "--porcelain") == ""


def test_it_begins_anywhere_with_the_chapters_before_and_again_only_if_told_where(pair):
    said = pair.course("start", "--at", "5")
    assert there(pair) == ["tiny"] and "chapter 04 is in it" in said and "course run 05" in said
    assert "no chapter '06'" in pair.course("start", "--at", "06", code=2)
    said = pair.course("start", code=2)
    assert "started already (chapter 04 is in it)" in said and "course package" in said
    pair.course("start", "--at", "04")
    assert there(pair) == []


@pytest.mark.parametrize("words", [["start"], ["start", "--at", "05"], ["start", "--blank"]])
def test_an_edit_by_hand_is_kept_and_a_file_of_the_students_own_stays(pair, words):
    pair.module.write_text(pair.module.read_text() + "MINE = 1\n", encoding="utf-8")
    (pair.path / "nanogpt/mine.py").write_text("x = 1\n")
    assert "keeps your nanogpt" in pair.course(*words)
    (own,) = kept(pair)
    assert (own / "tiny.py").read_text(encoding="utf-8").endswith("MINE = 1\n")
    assert "mine" in there(pair)


@pytest.mark.parametrize("git", [True, False])
def test_what_the_chapters_do_not_make_is_kept_with_git_and_without(pair, git):
    if not git:
        shutil.rmtree(pair.path / ".git")
    pair.course("start")
    assert kept(pair) == [] and there(pair) == [], "the chapters make all of it"
    pair.edit("math.pi*r**2", "3.0*r**2")
    pair.course("checkpoint", "04")
    pair.course("package")
    (own,) = kept(pair)
    assert "3.0 * r**2" in (own / "tiny.py").read_text() and "math.pi" in pair.module.read_text()


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
    assert "LIMIT = 4" in student.module.read_text()


def test_a_damaged_state_is_a_complete_clone(pair):
    for text in ("{", "[]", '{"state": "odd", "chapters": []}', '{"state": "started"}'):
        (pair.path / ".course-state.json").write_text(text)
        assert "package: complete\n" in pair.course("progress")
