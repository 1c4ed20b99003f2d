"""Children that notebooks kill before a certain change to the disk."""

import os

import pytest

from course.figures import kills

pytestmark = pytest.mark.skipif(not kills.POSSIBLE, reason="Windows cannot fork")


def test_a_child_dies_before_the_change_of_that_number(tmp_path):
    def write() -> None:
        for name in "ab":
            (tmp_path / name).write_text("", encoding="utf-8")
        os.rename(tmp_path / "b", tmp_path / "c")

    left = []
    for number in (1, 2, 3, 4):
        died = kills.before_change(number, write, tmp_path)
        left.append((died, sorted(path.name for path in tmp_path.iterdir())))
        for path in tmp_path.iterdir():
            path.unlink()
    assert left == [(True, []), (True, ["a"]), (True, ["a", "b"]), (False, ["a", "c"])]
