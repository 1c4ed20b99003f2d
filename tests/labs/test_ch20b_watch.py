"""The watch says once where every rank is when nothing happens, and nothing while something does."""

import io
import re
import sys
import time

import pytest
import torch
from ranks import GLOO, drilled_on_gpus, in_ranks

from nanogpt.distributed import Ranks
from nanogpt.labs.parallel.watch import watched


def busy_then_late(ranks: Ranks, patience: float) -> tuple[str, str]:
    """What the watch has said after a while of collectives, and after rank 1 has come late to one."""
    sys.stderr = io.StringIO()
    with watched(ranks, patience):
        for _ in range(5):
            ranks.mean(torch.ones(1))
            time.sleep(patience / 3)
        before = sys.stderr.getvalue()
        time.sleep(2 * patience if ranks.rank == 1 else patience / 2)  # so their last collectives begin apart
        ranks.mean(torch.ones(1))
    return before, sys.stderr.getvalue()


@GLOO
def test_the_watch_says_once_where_all_are_and_nothing_while_collectives_begin():
    (busy, said), (also_busy, by_the_other) = in_ranks(busy_then_late, 2, 2.0)
    assert busy == also_busy == "", "the watch has called a run lost that goes on"
    assert by_the_other == "", "both ranks have printed"
    waits, late = said.splitlines()
    assert re.fullmatch(r"watch: rank 0 is in mean \(distributed\.py:\d+\)", waits), waits
    assert late == "watch: rank 1 is in a place outside of nanogpt", late


@pytest.mark.gpu
def test_the_drills_of_20b_run_on_gpus(tmp_path):
    found = drilled_on_gpus(tmp_path, "drills.network:all_reduces", "drills.network:steps")
    assert all(seconds > 0 for seconds in found["drills.network:all_reduces"].values())
