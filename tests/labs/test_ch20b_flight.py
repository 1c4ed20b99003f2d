"""The flight recorder names what each rank waits in, and where the ranks' lists of collectives part."""

import contextlib
import pickle

import pytest
import torch
import torch.distributed as dist
from ranks import GLOO, in_ranks, skip_without_two_gpus, torchrun_on_gpus
from torch._C import _distributed_c10d

from nanogpt.distributed import Ranks, gathered
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.labs.drills.flight import flight_record, where_they_part

pytestmark = GLOO


def entry(number: int, kind="all_reduce", sizes=((3,),)) -> dict:
    return {"number": number, "kind": kind, "sizes": sizes, "calls": []}


def test_the_first_difference_is_found_of_kind_size_and_number():
    same = [entry(1), entry(2)]
    assert where_they_part([same, list(same)]) is None
    assert where_they_part([[*same, entry(3)], [*same, entry(3, "all_gather")]])[1]["kind"] == "all_gather"
    sizes = where_they_part([[*same, entry(3)], [*same, entry(3, sizes=((4,),)), entry(4)]])
    assert [each["number"] for each in sizes] == [3, 3]
    assert where_they_part([same, [*same, entry(3)]]) == [None, entry(3)], "one that only one rank makes"


def after_the_collectives(ranks: Ranks) -> list[dict]:
    """Two all-reduces; then rank 0 gathers alone."""
    with contextlib.suppress(RuntimeError):  # the time limit
        for _ in range(2):
            ranks.mean(torch.ones(5))
        ranks.mean(torch.ones(5)) if ranks.rank else gathered(ranks, 1)
    return flight_record()


def test_the_record_names_the_rank_the_collective_and_our_call():
    records = in_ranks(after_the_collectives, 2, seconds=1.0)
    gather, reduce = where_they_part(records)
    assert (gather["kind"], reduce["kind"]) == ("all_gather", "all_reduce")
    assert gather["calls"][-1].startswith("gathered (distributed.py:")
    assert reduce["calls"][-1].startswith("mean (distributed.py:") and reduce["sizes"] == [[5]]
    assert [gather, reduce] == [record[-1] for record in records], "neither has gone on after it"


def test_nccls_record_is_read_by_its_own_name(monkeypatch):
    """On a CPU PyTorch has no NCCL: its function is put in its place, with an entry as PyTorch's FlightRecorder writes it."""
    reduce = {"collective_seq_id": 7, "profiling_name": "nccl:all_reduce", "input_sizes": [[3]], "frames": []}
    trace = pickle.dumps({"entries": [reduce]})
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(_distributed_c10d, "_dump_nccl_trace", lambda **asked: trace, raising=False)
    assert flight_record() == [{"number": 7, "kind": "all_reduce", "sizes": [[3]], "calls": []}]


@pytest.mark.gpu
@pytest.mark.parametrize("check", ["hangs", "alone"])
def test_on_gpus_the_watch_speaks_before_nccls_watchdog_ends_the_process(check, tmp_path):
    skip_without_two_gpus()
    ensure_corpus(tmp_path / "stories")
    words = ["--data", str(tmp_path / "stories"), "--out", str(tmp_path), "--seconds", "20"]
    done = torchrun_on_gpus("flight", check, *words)
    assert done.returncode != 0 and "watch: rank 0 is in" in done.stderr and "watch: rank 1" in done.stderr
