"""Workers that are killed in mid-run: torchrun starts the group again, and the run ends as if nothing had been."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_run import lines, steps_done, weights, write_config, write_text

from course.paths import ROOT

STEPS, EVERY, SECONDS = 300, 50, 120.0
KILLS = {1: 90, 0: 190}  # which rank, after how many steps

no_proc = not Path("/proc/self/environ").exists()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(no_proc, reason="no /proc")]


def start(folder: Path, name: str, restarts: int, out) -> subprocess.Popen:
    """Two ranks train with dropout, whose random numbers must go on where they were, too."""
    changes = {"train_max_steps": STEPS, "run_checkpoint_every": EVERY, "model_dropout": 0.1}
    config = write_config(folder, name, train_batch_tokens=128, **changes)
    words = ["--standalone", "--nproc-per-node=2", f"--max-restarts={restarts}", "--monitor-interval=0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *words, "-m", "nanogpt", "train"]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, config], cwd=ROOT, env=env, stdout=out, stderr=out)


def worker(torchrun: subprocess.Popen, rank: int) -> int:
    """The process id of a rank, whose parent is torchrun."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == torchrun.pid and b"\0RANK=%d\0" % rank in b"\0" + (path / "environ").read_bytes():
                return int(path.name)
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
    raise AssertionError(f"no worker of rank {rank}")


def test_killed_workers_cost_some_steps_and_no_bit(tmp_path):
    """First rank 1, and in the next life rank 0, which writes log and checkpoints."""
    write_text(tmp_path / "text.txt")
    with open(tmp_path / "out", "w+") as out:
        assert start(tmp_path, "whole", 0, out).wait(SECONDS) == 0, Path(out.name).read_text()
        torchrun, deadline = start(tmp_path, "killed", len(KILLS), out), time.monotonic() + SECONDS
        try:
            for rank, step in KILLS.items():
                while steps_done(tmp_path / "killed") < step:
                    assert torchrun.poll() is None and time.monotonic() < deadline, Path(out.name).read_text()
                    time.sleep(0.01)
                os.kill(worker(torchrun, rank), signal.SIGKILL)
            assert torchrun.wait(SECONDS) == 0, Path(out.name).read_text()
        finally:
            torchrun.kill()
    said = Path(out.name).read_text()
    assert said.count("going on after step") == len(KILLS), said
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole"), "another loss than without the kills"
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole"), "other weights"
