"""A package that grows from nothing: `course start`, `course package`, and what the other commands make of it."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from house import NEXT

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


def test_a_damaged_state_is_a_complete_clone(pair):
    for text in ("{", "[]", '{"state": "odd", "chapters": []}', '{"state": "started"}'):
        (pair.path / ".course-state.json").write_text(text)
        assert "package: complete\n" in pair.course("progress")
