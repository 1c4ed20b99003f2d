"""Ranks inside this process: what they all-reduce and count; and one sentence where PyTorch has no such mode."""

import importlib.util
import sys

import pytest
import torch
import torch.distributed as dist

from course.figures.local_ranks import local_ranks
from course.paths import CourseError

MODE = "torch.distributed._local_tensor"
has_mode = pytest.mark.skipif(importlib.util.find_spec(MODE) is None, reason=f"no {MODE} in this PyTorch")


@has_mode
def test_each_rank_has_its_own_value_and_all_reduce_adds_them():
    with local_ranks(3) as ranked, ranked.counted() as calls:
        x = ranked(lambda rank: torch.tensor([1.0, 10.0**rank]))
        dist.all_reduce(x)
        assert ranked.same(x).tolist() == [3.0, 111.0]
    assert calls == [("allreduce", 8)] and not dist.is_initialized()


@has_mode
def test_of_a_gather_the_part_counts_that_a_rank_puts_in():
    with local_ranks(2) as ranked:
        part, whole = ranked(lambda rank: torch.zeros(3)), ranked(lambda rank: torch.zeros(6))
        with ranked.counted() as calls:
            dist.all_gather_into_tensor(whole, part)
            dist.reduce_scatter_tensor(part, whole)
    assert calls == [("allgather_base", 12), ("reduce_scatter_base", 24)]


@has_mode
def test_a_cut_gives_each_rank_its_piece_and_no_gradient():
    x = torch.arange(6.0, requires_grad=True).view(2, 3)
    with local_ranks(2) as ranked:
        part = ranked.cut(x, 1)
        assert not part.requires_grad
    assert [part._local_tensors[rank].tolist() for rank in range(2)] == [[[0, 1], [3, 4]], [[2], [5]]]


@has_mode
def test_values_that_differ_are_not_taken_for_one():
    with local_ranks(2) as ranked, pytest.raises(AssertionError, match="different values"):
        ranked.same(ranked(lambda rank: torch.tensor(float(rank))))


@has_mode
def test_a_block_that_was_left_half_way_does_not_stop_the_next():
    with pytest.raises(ZeroDivisionError), local_ranks(2):
        1 / 0  # noqa: B018
    with local_ranks(2):
        pass


def test_a_pytorch_without_the_mode_is_one_sentence_that_says_what_shows_the_same(monkeypatch):
    """PyTorch 2.9 has none."""
    monkeypatch.setitem(sys.modules, MODE, None)
    said = r"has no local-tensor mode \(2.11 has\); skip this cell: the drills"
    with pytest.raises(CourseError, match=said), local_ranks(2):
        pass
    assert not dist.is_initialized()
