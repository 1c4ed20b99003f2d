"""Many processes are one: the same losses, gradients and tokens; and an end, with a name, when one is lost.

The ranks are real processes, which talk by gloo over this machine's loopback.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import GLOO, in_ranks, torchruns_environment
from small_run import text_shards

import nanogpt
from course.figures import data_parallel as instruments
from course.paths import ROOT
from nanogpt.distributed import Ranks, first_reason, replicate, torchrun_ranks
from nanogpt.labs.drills import ddp as drill
from nanogpt.labs.parallel.agreement import code_hash, refuse_differences
from nanogpt.labs.parallel.buckets import ring_all_reduce
from nanogpt.labs.parallel.lost import same_life, who_is_missing
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import global_norm, gradients_of, make_optimizer, scale_to
from nanogpt.shards import open_shards
from nanogpt.training import accumulate_gradients
from nanogpt.weights import load_model, save_model

pytestmark = GLOO
V, T, ROWS = 96, 16, 8
BOUND = 2e-6  # float32: gradients by their length, losses in nats over STEPS steps; measured 2e-7 and 5e-7
STEPS = 6


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> list:
    return open_shards(text_shards(tmp_path_factory.mktemp("shards")), "train")


def fresh() -> GPT:
    shape = GPTConfig(block_size=T, vocab_size=V, n_layer=2, n_head=2, n_embd=16)
    return GPT(shape, torch.Generator().manual_seed(0))


def batches(seed: int = 0, uneven: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """A global batch of ROWS rows. uneven: later rows have fewer targets, and the last none."""
    ids = torch.randint(V, (ROWS, T + 1), generator=torch.Generator().manual_seed(seed))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].clone()
    if uneven:
        for row in range(ROWS):
            y[row, T - 2 * row - 2 if row < ROWS - 1 else 0 :] = -100
    return x, y


def curve(ranks: Ranks, micro: int = 1, uneven: bool = False) -> dict:
    """Losses of a few steps, the first gradient, and the last weights; each rank takes `micro` micro-batches."""
    model, losses = fresh(), []
    replica, optimizer = replicate(model, ranks), make_optimizer(model, 1e-2)
    for step in range(STEPS):
        x, y = (part.chunk(ranks.size)[ranks.rank] for part in batches(step, uneven))
        parts = list(zip(x.chunk(micro), y.chunk(micro)))
        optimizer.zero_grad()
        losses.append(accumulate_gradients(replica, parts, mean=ranks.mean).item())
        gradients = gradients_of(model.parameters())
        scale_to(gradients, 1.0, global_norm(gradients))
        optimizer.step()
        if step == 0:
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"losses": losses, "gradient": gradient.numpy(), "weights": weights.numpy()}


@pytest.fixture(scope="module")
def alone(one_thread) -> dict:
    """Of one process, by whether the rows are uneven."""
    return {uneven: curve(Ranks(), uneven=uneven) for uneven in (False, True)}


# The law: the same step


def first_facts(ranks: Ranks, folder) -> dict:
    """What the tests of two ranks ask, from one start of the processes."""
    return {
        "uneven": curve(ranks, 2, uneven=True),
        "split": curve(ranks, ROWS // 2),
        "wrapped": wrapped(ranks, folder),
        "reasons": (first_reason(ranks, None), first_reason(ranks, "SIGTERM" if ranks.rank == 1 else None)),
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[dict]:
    """first_facts of both ranks; rank 0 writes its weights into the folder `saved`."""
    folder = tmp_path_factory.mktemp("two") / "saved"
    return [found | {"saved": folder} for found in in_ranks(first_facts, 2, folder)]


def wrapped(ranks: Ranks, folder) -> tuple:
    torch.manual_seed(ranks.rank)  # the ranks' own weights differ, until the wrapper is made
    model = GPT(replace(fresh().config, dropout=0.1))
    before = drill.weights_apart(model, ranks)
    replica = replicate(model, ranks)
    if ranks.rank == 0:
        save_model(replica.module, folder)
    return before > 0, drill.weights_apart(model, ranks), replica.device_ids, replica.module is model


def assert_same_step(found: list[dict], one: dict) -> None:
    whole = torch.from_numpy(one["gradient"])
    for rank in found:
        apart = ((torch.from_numpy(rank["gradient"]) - whole).norm() / whole.norm()).item()
        assert apart < BOUND, f"the gradients are {apart:.1e} of their length apart"
        assert rank["losses"] == pytest.approx(one["losses"], rel=0, abs=BOUND)
        assert rank["losses"] == found[0]["losses"], "the ranks report different losses"
        assert (rank["weights"] == found[0]["weights"]).all(), "the ranks' weights are not equal bit for bit"


def test_the_same_global_batch_gives_the_same_losses_and_gradients(two, alone):
    """uneven: the ranks count different numbers of targets, one micro-batch none; a mean of means is far beyond the bound."""
    assert_same_step([found["uneven"] for found in two], alone[True])
    assert_same_step([found["split"] for found in two], alone[False])
    parts = zip(*(part.chunk(2) for part in batches(0, True)))
    means = [accumulate_gradients(fresh(), [part]).item() for part in parts]
    assert abs(sum(means) / 2 - alone[True]["losses"][0]) > 100 * BOUND, "a mean of means would do"


@pytest.mark.slow
@pytest.mark.parametrize(("size", "micro", "uneven"), [(4, 2, False), (4, 2, True), (8, 1, False)])
def test_more_ranks_give_the_same_losses_and_gradients(size, micro, uneven, alone):
    assert_same_step(in_ranks(curve, size, micro, uneven), alone[uneven])


def test_the_module_is_inside_begins_alike_and_is_saved_without_a_prefix(two):
    for differed, apart, device_ids, inside in (found["wrapped"] for found in two):
        assert differed and apart == 0, "the ranks do not begin with rank 0's weights"
        assert device_ids is None and inside
    assert load_model(two[0]["saved"]).config.n_layer == 2, "save_model does not write the module itself"


def test_all_ranks_agree_to_stop(two):
    assert [found["reasons"] for found in two] == [(None, "SIGTERM")] * 2


# Accumulation


@pytest.mark.slow
def test_gradients_travel_once_a_step_and_a_late_flag_lets_the_ranks_part(shards):
    found = in_ranks(partial(instruments.flag, steps=3), 2, shards[0].parent)[0]
    once, forgotten, late = (found[when] for when in ("in time", "forgotten", "late"))
    assert forgotten["messages"] == instruments.MICRO * once["messages"]
    assert late["messages"] == once["messages"]
    assert once["apart"] == forgotten["apart"] == 0 < 1e-4 < late["apart"], found
    assert late["losses"][-1] < late["losses"][0], "the late flag's loss falls, as if nothing were wrong"
    assert late["losses"] == pytest.approx(once["losses"], abs=0.05)


# The ring


def rings(ranks: Ranks, sizes) -> list:
    """Per size: the largest difference from all_reduce, and what share of the bytes was sent."""
    found = []
    for numel in sizes:
        x = torch.randn(numel, generator=torch.Generator().manual_seed(ranks.rank))
        theirs = x.clone()
        dist.all_reduce(theirs)
        found.append((ring_all_reduce(x) - theirs).abs().max().item())
    return [found, instruments.ring(ranks, 1200)]


@pytest.mark.parametrize(
    "size", [3, pytest.param(2, marks=pytest.mark.weekly), pytest.param(4, marks=pytest.mark.weekly)]
)
def test_the_ring_is_all_reduce_and_sends_what_it_should(size):
    for apart, counted in in_ranks(rings, size, (1, 2, 7, 1001)):
        assert max(apart) < 1e-5, f"ring and all_reduce differ by {apart}"
        assert counted["share"] == pytest.approx(2 * (size - 1) / size)
        assert counted["messages"] == 2 * (size - 1)


# Who am I?


def test_without_torchrun_there_is_one(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert torchrun_ranks("cpu") == Ranks(0, 0, 1, torch.device("cpu"))


def test_half_an_environment_and_too_few_gpus_are_one_sentence(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        torchrun_ranks("cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    chosen, gpus = [], [1, 2]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus[0])
    with pytest.raises(ValueError, match="local rank 1"):
        torchrun_ranks("cuda")
    gpus.pop(0)
    assert torchrun_ranks("cuda").device == chosen[0] == torch.device("cuda", 1)


def lost(ranks: Ranks, how: str):
    if ranks.rank != 1:
        ranks.mean(torch.ones(1))
        ranks.mean(torch.ones(1))
    elif how == "hangs":
        time.sleep(600)
    elif how == "raises":
        raise ValueError("broken on purpose")
    elif how == "dies":
        os._exit(1)
    elif how == "disagrees":
        ranks.mean(torch.ones(1))  # one collective less than the others, and then it waits for nobody


@pytest.mark.parametrize(
    ("how", "said"),
    [
        pytest.param("hangs", "rank 1 does not answer", marks=pytest.mark.slow),
        ("raises", "rank 1 failed with ValueError: broken on purpose"),
        pytest.param("dies", "rank 1 does not answer", marks=pytest.mark.slow),
        pytest.param("disagrees", "rank 1 has ended", marks=pytest.mark.slow),
        pytest.param("leaves", "rank 1 has ended", marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_lost_is_named_by_all_others_within_the_time_limit(how, said):
    began = time.monotonic()
    results = in_ranks(lost, 3, how, seconds=2.0, never=(1,) if how == "hangs" else ())
    for rank in (0, 2):
        assert isinstance(results[rank], TimeoutError), f"rank {rank}: {results[rank]}"
        assert str(results[rank]).endswith(f"has lost others: {said}"), str(results[rank])
    if how == "raises":
        assert str(results[1]) == "broken on purpose", "the rank's own error is lost"
    assert time.monotonic() - began < 60


def differs(ranks: Ranks) -> None:
    refuse_differences(ranks, code="abc", config="xyz" if ranks.rank == 2 else "abc", data="abc")


def test_a_rank_with_another_configuration_is_refused_by_all():
    for result in in_ranks(differs, 3):
        assert str(result) == "rank 2 has another config than rank 0: xyz, and not abc", result


def test_the_hash_is_of_the_code_that_runs(tmp_path, monkeypatch):
    before = code_hash()
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text("1")
    monkeypatch.setattr("nanogpt.__file__", str(tmp_path / "a.py"))
    first = code_hash()
    (tmp_path / "b.py").write_text("2")
    assert len({before, first, code_hash()}) == 3


@pytest.mark.slow
def test_torchrun_starts_the_command_and_its_failure_is_one_line(tmp_path):
    def torchrun(*words):
        head = "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "nanogpt"
        changes = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-m", *head, *words], env=os.environ | changes, **pipes)

    good = torchrun("drill", "hello")
    bad = torchrun("drill", "hang", "--seconds", "1")
    out, err = good.communicate(timeout=120)
    assert good.returncode == 0 and "rank 1 of 2, local rank 1, on cpu" in out, err
    out, err = bad.communicate(timeout=120)
    line = "drill: rank 0, which waits 1 s at most, has lost others: rank 1 does not answer"
    assert bad.returncode == 1 and line in err, err


ENDS = """
import atexit
from pathlib import Path
def threads(): return sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))
atexit.register(lambda: print("at the end", threads()))  # what is registered first runs last
from nanogpt.distributed import gathered, process_group, torchrun_ranks
with process_group(ranks := torchrun_ranks("cpu")):
    gathered(ranks, "here")
    print("within", threads())
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="Linux alone names threads in /proc")
def test_gloos_threads_have_ended_before_python_does():
    """One that frees a tensor while Python shuts down aborts the process: now and then, on a busy machine."""
    package = Path(nanogpt.__file__).parents[1]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = []
    for rank in (0, 1):
        environment = os.environ | torchruns_environment(rank, 2, store.port) | {"PYTHONPATH": str(package)}
        words = [sys.executable, "-c", ENDS]
        ranks.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    for process in ranks:
        within, at_the_end = process.communicate(timeout=120)[0].splitlines()
        assert "gloo" in within, "the test does not see gloo's threads"
        assert "gloo" not in at_the_end, at_the_end


def test_who_is_started_again_meets_the_living_in_a_store_that_remembers_the_dead():
    store, before = dist.HashStore(), set()
    with ThreadPoolExecutor(3) as ranks:
        for lives in (1, 2, 3):  # the last rank comes late: what it has said in its last life is there
            told = [ranks.submit(same_life, Ranks(r, r, 3), store) for r in (0, 1)]
            time.sleep(0.2)
            assert not told[0].done(), f"life {lives} began without its last rank"
            told.append(ranks.submit(same_life, Ranks(2, 2, 3), store))
            names = {each.result(30) for each in told}
            assert len(names) == 1, "the ranks are in different lives"
            assert names != before, "a life has the name of the last one"
            before = names


def test_a_store_behind_a_cut_cable_does_not_keep_a_rank_waiting():
    class Silent:
        def check(self, keys):
            time.sleep(60)

    began, other = time.monotonic(), Ranks(rank=1, size=2)
    assert "the host of rank 0 is gone or cut off" in who_is_missing(other, Silent(), 0.3)
    assert time.monotonic() - began < 5, "it waits for an answer"
