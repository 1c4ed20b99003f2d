"""slurm/train.sbatch, really run: on a Slurm of two nodes that this machine is for the length of the test."""

import re
import subprocess
import sys

import pytest
from one_machine_slurm import Slurm, why_no_slurm
from small_run import steps_done, write_config, write_text

from course.paths import ROOT
from nanogpt.cli import main

SCRIPT = ROOT / "slurm" / "train.sbatch"
BOUND = 2e-5  # nats: two nodes add float32 numbers in another order; measured 5e-7 over 600 steps
STEPS = 600
# A run whose result does not hang on how many share it: no dropout, four micro-batches.
RUN = {"model_dropout": 0.0, "train_batch_tokens": 256, "train_max_steps": STEPS, "run_checkpoint_every": 50}
# Without the dial there are two heads, and a width of 25 would be refused. The dial has a length of its own.
DIAL = "--depth=1", "model.n_embd=25", f"train.max_steps={STEPS}"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if reason := why_no_slurm():
        pytest.skip(reason)
    with Slurm(tmp_path_factory.mktemp("slurm") / "slurm") as both_nodes:
        yield both_nodes
    assert not both_nodes.left(), "processes of it still run"


def test_a_job_that_is_preempted_twice_ends_as_if_nothing_had_been(slurm, tmp_path):
    write_text(tmp_path / "text.txt")
    job_config, whole = (write_config(tmp_path, name, **RUN) for name in ("job", "whole"))
    env = slurm.env | {"PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    words = ["sbatch", "--parsable", "--time=5", f"--output={tmp_path}/job.out", SCRIPT]
    how = {"env": env, "cwd": ROOT, "check": True, "capture_output": True, "text": True}
    job = subprocess.run([*words, job_config, *DIAL], **how)
    job, run, out = job.stdout.strip(), tmp_path / "job", tmp_path / "job.out"

    def said() -> str:
        return out.read_text(errors="replace") if out.exists() else ""

    def reached(what: str, true, seconds: float = 60.0) -> None:
        slurm.wait_for(f"{what} (the job says: {said()[-3000:]})", true, seconds)

    reached("100 steps", lambda: steps_done(run) >= 100)
    slurm.ask(
        "scancel", "--batch", "--signal=USR1", job
    )  # what --signal=B:USR1@60 sends before the time is over
    reached("the queue, after USR1", lambda: "back into the queue" in said())
    command = [sys.executable, "-m", "nanogpt", "train", whole, *DIAL]
    undisturbed = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    kept = int(re.search(r"stopped by the file .* after step (\d+)", said())[1])
    assert (run / f"step_{kept:06d}").is_dir(), "the step at which it stopped is not saved"
    reached("the second start", lambda: "start 1:" in said())
    reached("more steps", lambda: steps_done(run) >= kept + 100)
    assert f"going on after step {kept}" in said(), said()
    slurm.ask("scontrol", "requeue", job)  # what a job of higher priority does: no warning
    reached("the third start", lambda: "start 2:" in said())
    reached("the end", lambda: slurm.state(job) == "COMPLETED")
    assert steps_done(run) == STEPS, said()
    assert undisturbed.wait(60) == 0
    # The other is one process, and nobody disturbs it.
    assert main(["compare", str(run), str(tmp_path / "whole"), "--bound", f"{BOUND}"]) == 0


def test_a_job_that_fails_is_not_put_back_into_the_queue(slurm, tmp_path):
    env = slurm.env | {"PYTHON": sys.executable}
    words = ["sbatch", "--parsable", "--nodes=1", f"--output={tmp_path}/job.out", SCRIPT, "no-such-config"]
    job = subprocess.check_output(words, env=env, cwd=ROOT, text=True).strip()
    slurm.wait_for("the end", lambda: slurm.state(job) in ("FAILED", "COMPLETED"), 60.0)
    said = (tmp_path / "job.out").read_text()
    assert slurm.state(job) == "FAILED" and "train: nanogpt/configs/no-such-config.yaml is not" in said, said
