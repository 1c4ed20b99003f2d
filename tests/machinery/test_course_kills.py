"""Children that notebooks kill: after some lines, or before a certain change to the disk."""

import os
import time

import pytest

from course.figures import kills

pytestmark = pytest.mark.skipif(not kills.POSSIBLE, reason="Windows cannot fork")


def test_a_child_is_killed_soon_after_it_has_written_its_lines(tmp_path):
    path = tmp_path / "lines"

    def write() -> None:
        for _ in range(10_000):
            with open(path, "a", encoding="utf-8") as file:
                print("a line", file=file)
            time.sleep(0.01)

    assert 3 <= kills.at_line(write, path, 3) < 1000
    after = kills.lines_in(path)
    time.sleep(0.05)
    assert kills.lines_in(path) == after, "the child still writes"


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


def test_a_child_whose_work_fails_ends_and_is_not_taken_for_a_killed_one(tmp_path):
    assert not kills.before_change(1, lambda: 1 / 0, tmp_path)
    began = time.monotonic()
    assert kills.at_line(lambda: 1 / 0, tmp_path / "lines", 3) == 0
    assert time.monotonic() < began + kills.PATIENCE / 2, "it waits for a child that has ended"
