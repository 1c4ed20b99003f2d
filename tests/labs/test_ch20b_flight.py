"""The flight recorder names what each rank waits in, and where the ranks' lists of collectives part."""

import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from conftest import ROOT
from ranks import in_ranks, skip_without_two_gpus, torchrun_on_gpus
from small_run import write_text
from torch._C import _distributed_c10d

from nanogpt.distributed import Ranks, gathered
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.labs.corpora.text import prepare_text
from nanogpt.labs.drills.flight import flight_record, where_they_part
from nanogpt.tokenizer import BPETokenizer

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch without gloo"
)
PY_SPY = shutil.which("py-spy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def entry(number: int, kind="all_reduce", sizes=((3,),)) -> dict:
    return {"number": number, "kind": kind, "sizes": sizes, "calls": []}


def test_the_first_difference_is_found_of_kind_size_and_number():
    same = [entry(1), entry(2)]
    assert where_they_part([same, list(same)]) is None
    assert where_they_part([[*same, entry(3)], [*same, entry(3, "all_gather")]])[1]["kind"] == "all_gather"
    sizes = where_they_part([[*same, entry(3)], [*same, entry(3, sizes=((4,),)), entry(4)]])
    assert [each["number"] for each in sizes] == [3, 3]
    assert where_they_part([same, [*same, entry(3)]]) == [None, entry(3)], "one that only one rank makes"


def after_the_collectives(ranks: Ranks, alone: bool) -> list[dict]:
    """Two all-reduces; then rank 0 gathers alone, or all do."""
    with contextlib.suppress(RuntimeError):  # the time limit
        for _ in range(2):
            ranks.mean(torch.ones(5))
        ranks.mean(torch.ones(5)) if ranks.rank and alone else gathered(ranks, 1)
    return flight_record()


def test_the_record_names_the_rank_the_collective_and_our_call():
    records = in_ranks(after_the_collectives, 2, True, seconds=1.0)
    gather, reduce = where_they_part(records)
    assert (gather["kind"], reduce["kind"]) == ("all_gather", "all_reduce")
    assert gather["calls"][-1].startswith("gathered (distributed.py:")
    assert reduce["calls"][-1].startswith("mean (distributed.py:") and reduce["sizes"] == [[5]]
    assert [gather, reduce] == [record[-1] for record in records], "neither has gone on after it"


def test_ranks_that_do_the_same_do_not_part():
    assert where_they_part(in_ranks(after_the_collectives, 2, False)) is None


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


def stack(pid: int) -> str:
    """The Python stack of a process as py-spy sees it from outside; why not, where it may not look."""
    done = subprocess.run([PY_SPY, "dump", "--pid", str(pid)], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(PY_SPY is None, reason="no py-spy here")
def test_the_chapters_deadlock_is_seen_from_outside_by_py_spy_and_from_inside_by_the_record(tmp_path):
    write_text(tmp_path / "text.txt")
    BPETokenizer.train((tmp_path / "text.txt").read_text(), 280).save(tmp_path / "tokenizer.json")
    prepare_text(tmp_path / "text.txt", tmp_path / "data", tmp_path / "tokenizer.json")
    words = ["--standalone", "--nproc-per-node=2", "-m", "nanogpt", "flight", "alone", "--seconds=4"]
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    env = os.environ | {"NANOGPT_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    env["TORCH_LOGS"] = "ddp"
    with open(tmp_path / "err", "w") as err:
        command += [f"--data={tmp_path / 'data'}", f"--out={tmp_path}"]
        run = subprocess.Popen(command, cwd=ROOT, env=env, stderr=err)
    seen, deadline = {}, time.monotonic() + 60
    while run.poll() is None and time.monotonic() < deadline:
        for rank in psutil.Process(run.pid).children():
            with contextlib.suppress(psutil.Error):
                text, who = stack(rank.pid), rank.environ()["RANK"]
                seen[who] = "may not look" if "Permission" in text else text or seen.get(who)
                if "all_gather_object" in text or "all_reduce" in text:
                    seen[f"{who} waits"] = text
        time.sleep(0.2)
    assert run.wait(60) == 1, "nobody has run into the time limit"
    rebuilt = (tmp_path / "err").read_text().count("Reducer buckets have been rebuilt in this iteration")
    assert rebuilt == 2, "chapter 20 says that TORCH_LOGS=ddp shows this line, once a rank"
    alone, trains = where_they_part(
        [json.loads((tmp_path / f"alone-rank{r}.json").read_text()) for r in (0, 1)]
    )
    assert "check_alone" in str(alone["calls"]) and "accumulate_gradients" in str(trains["calls"])
    if "may not look" in seen.values():
        pytest.skip("py-spy may not look into another process here (Yama, or not root)")
    assert "check_alone" in seen["0 waits"] and "accumulate_gradients" in seen["1 waits"], seen
