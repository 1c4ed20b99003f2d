"""A checkpoint: whole or not there, whatever it is interrupted by, and no damage to it goes unnoticed."""

import json
import os
import shutil
import signal
import time
import warnings
from pathlib import Path

import pytest
import simple_run
import torch

from nanogpt import checkpoint
from nanogpt.trainer import fit, one_step
from nanogpt.weights import load_model

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def half(data, tmp_path_factory) -> Path:
    """A run's checkpoints of its steps 4 and 8."""
    run = simple_run.new_run(*data, tmp_path_factory.mktemp("half"), dropout=0.1)
    while run.step < 8:
        one_step(run)
        if run.step in (4, 8):
            random = checkpoint.random_states(torch.device("cpu"))
            state = {"optimizer": run.optimizer.state_dict(), "random": random}
            checkpoint.save(run.folder, run.step, run.model, state, run.tokenizer)
    return run.folder


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": flip,
    "a truncated file": lambda path: os.truncate(path, path.stat().st_size // 2),
    "an empty file": lambda path: os.truncate(path, 0),
    "a missing file": Path.unlink,
}


FILES = ["manifest.json", "state.json", "config.json", "tokenizer.json", "state.safetensors"]
FILES += ["model.safetensors"]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", FILES)
def test_any_damage_is_found_and_the_checkpoint_before_is_used(half, tmp_path, damage, name):
    run = Path(shutil.copytree(half, tmp_path / "run"))
    DAMAGE[damage](run / "step_000008" / name)
    said = []
    assert checkpoint.latest(run, said.append) == run / "step_000004", f"{damage} in {name} is not noticed"
    assert "step_000008 is damaged" in said[0] and name in said[0], f"it does not say what is damaged: {said}"


@pytest.mark.skipif(os.name == "nt", reason="no folder can be flushed there")
def test_a_checkpoint_is_on_the_disk_before_it_has_its_name(tmp_path, half, monkeypatch):
    """A power cut is no SIGKILL: what was written but not flushed is lost, and names may reach the disk first."""
    told, real = [], {name: getattr(os, name) for name in ("fsync", "rename")}

    def fsync(handle):
        told.append(("flushed", os.path.realpath(f"/proc/self/fd/{handle}")))
        real["fsync"](handle)

    def rename(a, b):
        told.append(("named", str(b)))
        real["rename"](a, b)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    whole = half / "step_000008"
    path = checkpoint.save(tmp_path, 3, load_model(whole), checkpoint.load_state(whole))
    at = told.index(("named", str(path)))
    aside, flushed = tmp_path / f".{path.name}.tmp", {where for what, where in told[:at] if what == "flushed"}
    for file in path.iterdir():
        assert {str(aside / file.name)} & flushed, f"{file.name} is not flushed before the rename"
    assert str(aside) in flushed, "the folder's list of names is not flushed before the rename"
    assert ("flushed", str(tmp_path)) in told[at:], "the rename itself is not flushed"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on Windows")
def test_killed_at_any_moment_of_its_writing_it_is_whole_or_not_there(half, tmp_path):
    """SIGKILL before each call by which the writing of a checkpoint becomes visible to another process."""
    model, state = load_model(half / "step_000008"), checkpoint.load_state(half / "step_000008")
    calls = [(os, name) for name in ("fsync", "replace", "rename")] + [(shutil, "rmtree")]
    calls += [(checkpoint, name) for name in ("serialize", "file_sha256", "save_json", "save_model")]

    def write(folder: Path, die_at: int) -> int:
        """In a child that is killed before its call of that number; 0 where there are fewer."""
        with warnings.catch_warnings(action="ignore"):  # a fork beside threads: this child dies anyway
            if child := os.fork():
                return os.waitpid(child, 0)[1]
        made = []

        def counted(call):
            def event(*args, **options):
                made.append(call)
                if len(made) == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*args, **options)

            return event

        for module, name in calls:
            setattr(module, name, counted(getattr(module, name)))
        checkpoint.save(folder, 8, model, state)
        os._exit(0)

    outcomes = []
    for moment in range(1, 100):
        run = tmp_path / str(moment)
        shutil.copytree(half / "step_000004", run / "step_000004")
        ended = write(run, moment) == 0
        outcomes.append(checkpoint.latest(run, pytest.fail).name)  # it would complain of a half one
        if ended:
            break
    assert ended and len(outcomes) > 15, f"{len(outcomes)} moments: the calls are not met"
    first = outcomes.index("step_000008")
    assert first > 10, f"not first the old: {outcomes}"
    assert set(outcomes[first:]) == {"step_000008"}, f"then not the new: {outcomes}"


def test_the_last_ones_and_those_named_are_kept(half, tmp_path):
    for step in range(1, 8):
        shutil.copytree(half / "step_000004", tmp_path / f"step_{step:06d}")
    checkpoint.prune(tmp_path, keep=2, step=7, also={3, None})
    assert [int(path.name[5:]) for path in checkpoint.checkpoints(tmp_path)] == [3, 6, 7]
    assert not list(tmp_path.glob(".*")), "what was deleted is left under another name"


def test_a_nest_of_tensors_comes_back_as_it_was():
    ones = torch.ones(2, dtype=torch.bfloat16)
    nest = {"a": [torch.arange(3), {"0": ones, "b": None}], "c": 1.5, "d": True}
    tensors = {}
    packed = json.loads(json.dumps(checkpoint.pack(nest, "n", tensors)))
    back = checkpoint.unpack(packed, tensors)
    assert torch.equal(back["a"][0], nest["a"][0]) and back["c"] == 1.5 and back["d"] is True
    inner = back["a"][1]
    assert torch.equal(inner[0], ones) and inner["b"] is None, "keys of digits are numbers"


def test_a_torn_last_line_and_lines_after_the_checkpoint_are_cut_off(tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = b"".join(json.dumps({"step": step}).encode() + b"\n" for step in range(1, 8))
    for written, step, kept, own in (
        (whole, 99, 7, None),
        (whole[:-4], 99, 6, None),
        (whole[:-1], 7, 6, None),
        (whole, 7, 6, {"step": 7}),
        (whole, 4, 3, {"step": 4}),
        (whole[:12] + b"no JSON\n", 9, 1, None),
    ):
        path.write_bytes(written)
        assert checkpoint.repair(path, step) == own, "its own line is lost, or a torn one is taken for it"
        assert path.read_bytes().count(b"\n") == kept == len(path.read_bytes().splitlines())
    assert checkpoint.repair(tmp_path / "none.jsonl", 3) is None
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.parametrize("lines", [5, 11])
def test_a_run_with_dropout_that_is_killed_goes_on_bit_for_bit(data, tmp_path, lines):
    """kill -9 in a child after so many lines: within the step, the look or the checkpoint that follows."""
    whole = fit(simple_run.new_run(*data, tmp_path / "whole", dropout=0.1))
    path = tmp_path / "killed/metrics.jsonl"
    with warnings.catch_warnings(action="ignore"):
        if not (child := os.fork()):
            fit(simple_run.new_run(*data, tmp_path / "killed", dropout=0.1))
            os._exit(0)
    for _ in range(60_000):
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            break
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    again = fit(simple_run.new_run(*data, tmp_path / "killed", dropout=0.1))
    assert simple_run.lines(path.parent) == simple_run.lines(whole.folder), "the killed run has other lines"
    assert all(map(torch.equal, again.model.parameters(), whole.model.parameters())), "the weights differ"
