"""Ranks inside this process: each has its own value, and values that differ are not taken for one."""

import importlib.util

import pytest
import torch
import torch.distributed as dist

from course.figures.local_ranks import local_ranks

MODE = "torch.distributed._local_tensor"


@pytest.mark.skipif(importlib.util.find_spec(MODE) is None, reason=f"no {MODE} in this PyTorch")
def test_values_that_differ_are_not_taken_for_one_and_all_reduce_makes_them_one():
    with local_ranks(3) as ranked:
        x = ranked(lambda rank: torch.tensor([1.0, 10.0**rank]))
        with pytest.raises(AssertionError, match="different values"):
            ranked.same(x)
        dist.all_reduce(x)
        assert ranked.same(x).tolist() == [3.0, 111.0]
