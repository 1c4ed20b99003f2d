"""torchrun over two hosts, really run: they are network namespaces of this machine, joined by a cable that can be cut."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hosts import Hosts, said, torchrun, why_no_hosts
from small_run import steps_done, write_config, write_text

from course.paths import ROOT
from nanogpt.cli import main

SECONDS = 120.0  # for what takes ten on an idle machine
PATIENCE = 4  # seconds that ranks wait for each other in these tests
BOUND = 2e-5  # nats: float32 sums in another order; measured 5e-7 over 600 steps
STEPS = 300
# Four micro-batches a step, no dropout, which would fall otherwise on two ranks than on one.
RUN = {"model_dropout": 0.0, "train_batch_tokens": 256, "train_max_steps": STEPS}
RUN |= {"run_checkpoint_every": 50, "eval_every": 100}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts():
    if reason := why_no_hosts():
        pytest.skip(reason)
    with Hosts() as both:
        yield both
    left = [name for name in both.names if name in subprocess.check_output(["ip", "netns"], text=True)]
    assert not left, f"namespaces are left behind: {left}"


@pytest.fixture(scope="module")
def alone(tmp_path_factory, one_thread) -> Path:
    """A folder with a text, its shards and the run of one process, in `alone`."""
    folder = tmp_path_factory.mktemp("runs")
    write_text(folder / "text.txt")
    assert main(["train", str(write_config(folder, "alone", **RUN))]) == 0
    return folder


def train(hosts: Hosts, kind: str, folder: Path, config: Path, restarts: int = 0) -> list[subprocess.Popen]:
    env = {"NANOGPT_PATIENCE": f"{PATIENCE}", "PYTHONPATH": str(ROOT)}
    return torchrun(hosts, kind, folder, "-m", "nanogpt", "train", str(config), restarts=restarts, **env)


def reached(run: Path, steps: int, folder: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while steps_done(run) < steps:
        assert time.monotonic() < deadline, said(folder, 0) + said(folder, 1)
        time.sleep(0.02)


@pytest.mark.weekly
def test_both_hosts_start_again_when_the_worker_of_one_is_killed(hosts, alone, tmp_path):
    """c10d rendezvous with --max-restarts: the hosts meet anew, the run goes on from its last checkpoint, and before and
    after it they train as one process does."""
    run = alone / "c10d"
    both = train(hosts, "c10d", tmp_path, write_config(alone, "c10d", **RUN), restarts=1)
    reached(run, 120, tmp_path)
    os.kill(hosts.worker(1), signal.SIGKILL)
    for process in both:
        assert process.wait(SECONDS) == 0, said(tmp_path, 0) + said(tmp_path, 1)
    both_said = said(tmp_path, 0) + said(tmp_path, 1)  # hosts may change their numbers when they meet anew
    assert re.search(r"going on after step (100|150|200|250)\b", both_said), both_said
    assert steps_done(run) == STEPS
    assert main(["compare", str(alone / "alone"), str(run), "--bound", f"{BOUND}"]) == 0


def test_a_cable_that_is_cut_ends_both_sides_with_a_message_and_the_run_goes_on(hosts, alone, tmp_path):
    config, run = write_config(alone, "cut", **RUN), alone / "cut"
    both = train(hosts, "static", tmp_path, config)
    reached(run, 60, tmp_path)
    hosts.cut()
    began = time.monotonic()
    try:
        for process in both:
            assert process.wait(SECONDS) != 0, "training went on without a cable"
    finally:
        hosts.plug_in()
    assert steps_done(run) < STEPS, "it was done before the cable was cut"
    # To notice takes the ranks' patience; to ask who is there as much again, and once more where nobody answers.
    assert time.monotonic() - began < 3 * PATIENCE + 30, "they wait longer than they were told to"
    for host, lost in ((0, "rank 1 does not answer"), (1, "the host of rank 0 is gone or cut off")):
        line = next((line for line in said(tmp_path, host).splitlines() if line.startswith("train: ")), "")
        assert f"rank {host}, which waits {PATIENCE} s at most, has lost" in line, said(tmp_path, host)
        assert lost in line, line
    assert not hosts.running(), "something still runs on the hosts"
    for process in train(hosts, "static", tmp_path, config):
        assert process.wait(SECONDS) == 0, said(tmp_path, 0) + said(tmp_path, 1)
    assert re.search(r"going on after step (50|100|150|200|250)\b", said(tmp_path, 0)), said(tmp_path, 0)
    assert steps_done(run) == STEPS
    assert main(["compare", str(alone / "alone"), str(run), "--bound", f"{BOUND}"]) == 0
