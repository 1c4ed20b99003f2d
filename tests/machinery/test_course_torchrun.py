"""What notebooks start by torchrun: the chapter's cells as they were run, not as an earlier checkpoint left them."""

import pytest
import torch

from course.paths import BUILT, CourseError, notebook_path
from course.torchrun import package_so_far, ranks_device, so_far, so_far_killed, told_by, torchrun

EDITED = """#| export labs.parallel.buckets
def my_rows(B: int, ranks: Ranks) -> dict:
    return {"B": 17}
"""


def test_a_cell_that_was_edited_and_run_is_what_the_ranks_get():
    first, broken = EDITED.replace("17", "16"), "#| export\n%time my_rows(1)\n"
    folder = package_so_far("20", [first, broken, EDITED, "print('no cell of a module')"])
    assert folder.is_relative_to(BUILT)
    text = (folder / "nanogpt/labs/parallel/buckets.py").read_text(encoding="utf-8")
    assert 'return {"B": 17}' in text and "16}" not in text, "not the cell that was run last"
    assert "def average_gradients" in text, "a cell that was not run yet is missing"
    assert (folder / "nanogpt/model.py").exists(), "the rest of the package is missing"
    assert '"B": 17' not in notebook_path("20").read_text(encoding="utf-8"), "the notebook itself was changed"


def test_the_package_is_made_again_only_if_a_cell_has_changed():
    mark = package_so_far("20", []) / "mark"
    mark.touch()
    package_so_far("20", [])
    assert mark.exists(), "nothing has changed, and yet it was made again"
    package_so_far("20", [EDITED])
    assert not mark.exists(), "a cell has changed, and the package is the old one"


def test_ranks_are_on_gpus_where_each_has_one_unless_somebody_says_otherwise(monkeypatch):
    monkeypatch.delenv("NANOGPT_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [ranks_device(n) for n in (2, 3)] == ["cuda", "cpu"]
    monkeypatch.setenv("NANOGPT_DEVICE", "cpu")
    assert ranks_device(2) == "cpu"


def test_lines_of_two_ranks_that_were_written_into_one_are_two():
    said = "W1125 torchrun's own\nflight: rank 1 waitsflight: rank 0 waits\n\nwatch: rank 0 is in mean\nTraceback\n"
    lines = ["flight: rank 0 waits", "flight: rank 1 waits", "watch: rank 0 is in mean"]
    assert told_by("flight", said) == lines


@pytest.mark.slow
def test_a_failure_that_was_not_meant_says_what_the_ranks_said(capsys):
    with pytest.raises(CourseError, match=r"torchrun ended with exit code 1(.|\n)*there is no drill dance"):
        torchrun("20", 2, "drill", "dance")


@pytest.mark.slow
def test_a_failure_that_was_meant_and_does_not_come_is_one_sentence():
    """A student who mends what is wrong on purpose."""
    with pytest.raises(CourseError, match="torchrun was meant to fail here and has not"):
        torchrun("20", 2, "drill", "hello", fails=True)


def test_a_command_of_the_chapter_so_far_says_why_it_failed():
    says = r"sample ended with exit code 2(.|\n)*runs/is/nowhere is not there"
    with pytest.raises(CourseError, match=says):
        so_far("19", "sample", "--checkpoint", "runs/is/nowhere")


def test_a_command_that_ends_before_its_kill_is_no_kill(tmp_path):
    with pytest.raises(CourseError, match="sample had ended, with exit code 2, before it was killed"):
        so_far_killed("19", tmp_path / "log", 1, 0.0, "sample", "--checkpoint", "runs/is/nowhere")
