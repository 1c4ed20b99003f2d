"""What notebooks start by torchrun: the chapter's cells as they were run, not as an earlier checkpoint left them."""

import pytest

from course.paths import BUILT, CourseError, notebook_path
from course.torchrun import package_so_far, so_far_killed, torchrun

EDITED = """#| export labs.parallel.buckets
def my_rows(B: int, ranks: Ranks) -> dict:
    return {"B": 17}
"""


def test_a_cell_that_was_edited_and_run_is_what_the_ranks_get():
    first, broken = EDITED.replace("17", "16"), "#| export\n%time my_rows(1)\n"
    package_so_far("20", [first])
    folder = package_so_far("20", [first, broken, EDITED, "print('no cell of a module')"])
    assert folder.is_relative_to(BUILT)
    text = (folder / "nanogpt/labs/parallel/buckets.py").read_text(encoding="utf-8")
    assert 'return {"B": 17}' in text and "16}" not in text, "not the cell that was run last"
    assert "def average_gradients" in text, "a cell that was not run yet is missing"
    assert (folder / "nanogpt/model.py").exists(), "the rest of the package is missing"
    assert '"B": 17' not in notebook_path("20").read_text(encoding="utf-8"), "the notebook itself was changed"


@pytest.mark.slow
def test_a_failure_that_was_meant_and_does_not_come_is_one_sentence():
    """A student who mends what is wrong on purpose."""
    with pytest.raises(CourseError, match="torchrun was meant to fail here and has not"):
        torchrun("20", 2, "drill", "hello", fails=True)


def test_a_command_that_ends_before_its_kill_is_no_kill(tmp_path):
    with pytest.raises(CourseError, match="sample had ended, with exit code 2, before it was killed"):
        so_far_killed("19", tmp_path / "log", 1, 0.0, "sample", "--checkpoint", "runs/is/nowhere")
