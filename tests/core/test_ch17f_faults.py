"""What may end a run at any moment, and what the next one makes of it."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from small_run import (
    COMPUTING,
    WRITING,
    before_steps,
    lines,
    run_in_child,
    small,
    steps_done,
    stopped_after,
    weights,
    write_config,
    write_text,
)

from nanogpt import trainer
from nanogpt.build import ensure_data
from nanogpt.cli import outcome
from nanogpt.files import alone_in

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="no SIGKILL on Windows"),
    pytest.mark.usefixtures("one_thread"),
]


def killed_until_done(config, kills: list, dice: random.Random, events: list[str]) -> None:
    """Kill the run, each time before a random one of the events left of the next kind in `kills`; then let it end."""
    while kills:
        among, often = kills[0], sum(name in kills[0] for name in events)
        code, said = run_in_child(config, dice.randint(1, max(2, 2 * often // (len(kills) + 1))), among)
        if code != -signal.SIGKILL:
            assert said.get("ended") == config.train.max_steps, f"it failed and was not killed: {said}"
            return
        assert said["died"] in among, f"killed before {said['died']}, which is another kind of moment"
        kills.pop(0)
    code, said = run_in_child(config)
    assert said.get("ended") == config.train.max_steps, f"the run cannot go on after its kills: {said}"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bf16", "bf16-masters", "fp16"])
def test_however_often_a_run_is_killed_it_ends_with_the_same_losses_weights_and_samples(folder, dtype):
    """Five kills of each run, twenty in all: ten within a step or a look, ten at a change of the disk."""
    whole = small(folder, train_dtype=dtype, run_dir=str(folder / f"whole-{dtype}"))
    code, said = run_in_child(whole)
    assert code == 0 and said["ended"] == 30, f"the uninterrupted run failed: {said}"
    assert {"train_step", "update", "evaluate", "complete", "fsync", "rename"} <= set(said["events"])
    dice, kinds = random.Random(dtype), (COMPUTING, WRITING)
    first = ["float32", "bf16", "bf16-masters", "fp16"].index(dtype)
    kills = [kinds[(first + i) % 2] for i in range(5)]
    for attempt in range(2):
        config = small(folder, train_dtype=dtype, run_dir=str(folder / f"killed-{dtype}-{attempt}"))
        killed_until_done(config, kills, dice, said["events"])
        assert lines(config.run.dir) == lines(whole.run.dir), "the lines of metrics.jsonl differ"
        assert weights(config.run.dir) == weights(whole.run.dir), "the last weights differ"
        for sample in Path(whole.run.dir, "samples").iterdir():
            other = Path(config.run.dir, "samples", sample.name)
            assert other.read_bytes() == sample.read_bytes(), f"{sample.name} differs"
        if not kills:
            return
    pytest.fail(f"{len(kills)} kills of 5 were left over: the moments lie behind the runs' ends")


ALIKE = [("float32", False, False), ("bf16", False, False), ("bf16", True, False)]
ALIKE += [("bf16-masters", True, False), ("fp16", True, False)]
# Seen to differ: with attention's kernel for 32 bits, and when compiled.
NEARLY = [("tf32", True, False), ("float32", True, False), ("bf16", True, True)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("dtype", "flash", "compiled"), ALIKE + NEARLY)
def test_on_a_gpu_the_same_run_twice_and_a_killed_one_end_alike(tmp_path, dtype, flash, compiled):
    """Rows long enough that a kernel splits the work of one among several blocks."""
    write_text(tmp_path / "text.txt", paragraphs=600)
    sizes = dict(train_batch_tokens=8192, train_dtype=dtype, train_compile=compiled, data_documents=False)
    sizes |= dict(model_n_layer=2, model_n_head=4, model_n_embd=256, model_block_size=1024, model_flash=flash)
    whole, again, killed = (
        small(tmp_path, run_dir=str(tmp_path / name), run_device="cuda", **sizes)
        for name in ("whole", "again", "killed")
    )
    code, said = run_in_child(killed, 45, COMPUTING)
    assert code == -signal.SIGKILL, f"the run ended before its kill: {said}"
    for config in (whole, again, killed):
        code, said = run_in_child(config)
        assert code == 0 and said["ended"] == 30, f"a run failed: {said}"
    for config in (again, killed):
        if (dtype, flash, compiled) in ALIKE:
            assert lines(config.run.dir) == lines(whole.run.dir), "the losses or norms differ"
            assert weights(config.run.dir) == weights(whole.run.dir), "the last weights differ"
        for one, other in zip(lines(config.run.dir), lines(whole.run.dir)):
            assert abs(one["loss"] - other["loss"]) < 0.05, f"another run from step {one['step']} on"


# A checkpoint that is not what was written


def test_a_run_goes_on_from_the_checkpoint_before_the_damaged_one_to_the_same_end(
    config, tmp_path, monkeypatch, capsys
):
    trainer.train_config(whole := config(run_dir=str(tmp_path / "whole")))
    stopped_after(config(), 8, monkeypatch)
    run = Path(config().run.dir)
    os.truncate(run / "step_000008" / "state.safetensors", 100)
    (run / ".step_000012.tmp").mkdir()  # what a kill within a write leaves
    trainer.train_config(config())
    told = capsys.readouterr().out
    assert "step_000008 is damaged" in told and "going on after step 4" in told, f"it does not say so: {told}"
    assert lines(run) == lines(whole.run.dir) and weights(run) == weights(whole.run.dir), "another end"
    assert not list(run.glob(".step*")), "what was half written is left behind"


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_again_over_them(config, monkeypatch):
    stopped_after(config(), 8, monkeypatch)
    run = Path(config().run.dir)
    for path in run.glob("step_*/model.safetensors"):
        os.truncate(path, 100)
    before = {path: path.is_file() and path.read_bytes() for path in run.rglob("*")}
    with pytest.raises(ValueError, match=str(run)):
        trainer.train_config(config())
    assert {path: path.is_file() and path.read_bytes() for path in run.rglob("*")} == before


# No room


@pytest.mark.parametrize("step, kept", [(0, []), (6, ["step_000004"])])
def test_where_there_is_no_room_the_last_good_checkpoint_stays_and_the_run_goes_on_when_there_is(
    config, tmp_path, monkeypatch, capsys, step, kept
):
    """A limit on the size of a file is for a program what a full disk is; here from a step on."""
    run, before = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    full = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with monkeypatch.context() as patch:
            before_steps(patch, lambda run: run.step == step and full())
            code = outcome("train", lambda: trainer.train_config(config()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    said = capsys.readouterr().err
    assert code == 2 and said.count("\n") == 1, f"exit code {code}, {said!r}"
    good = f"the last good checkpoint is {run / kept[0]}" if kept else "there is no checkpoint yet"
    assert "no room left" in said and good in said, said
    assert [path.name for path in run.glob("*step*")] == kept, "a half one is left, or a good one is not"
    trainer.train_config(config())
    trainer.train_config(whole := config(run_dir=str(tmp_path / "whole")))
    assert lines(run) == lines(whole.run.dir), "the run that ran out of room ends otherwise"
    assert weights(run) == weights(whole.run.dir), "with other weights"


# Asked to end


def test_two_trainers_in_one_folder_are_refused(folder, tmp_path):
    with alone_in(tmp_path / "run", "trainer"), pytest.raises(ValueError, match="another trainer writes"):
        trainer.train_config(small(folder, run_dir=str(tmp_path / "run")))


@pytest.mark.slow
def test_the_command_is_killed_and_asked_to_stop_and_ends_as_if_nothing_had_been(folder):
    ensure_data(small(folder).data)  # before two commands make them at once

    def start(name: str) -> subprocess.Popen:
        path = write_config(folder, name, train_max_steps=150)
        command = [sys.executable, "-m", "nanogpt", "train", str(path)]
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=one_thread)

    def start_and_wait(steps: int) -> subprocess.Popen:
        process = start("broken")
        while process.poll() is None and steps_done(folder / "broken") < steps:
            time.sleep(0.01)
        return process

    whole = start("unbroken")
    killed = start_and_wait(30)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL, "it was done before it was killed"
    stopped = start_and_wait(80)
    stopped.terminate()
    said, _ = stopped.communicate()
    assert stopped.returncode == 128 + signal.SIGTERM and "to go on: python -m nanogpt train" in said, said
    last = start("broken")
    said, _ = last.communicate()
    assert last.returncode == 0 and "150 steps" in said, said
    assert whole.wait() == 0
    assert lines(folder / "broken") == lines(folder / "unbroken"), "the losses differ"
