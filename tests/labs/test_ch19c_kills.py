"""Fine-tuning runs that are killed: with adapters, a mixture, answers, and all three, they end with the same bits."""

import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from small_run import COMPUTING, WRITING, fine_tuning_folder, lines, run_in_child, small

from nanogpt import checkpoint
from nanogpt.config import Config, Lora

no_windows = pytest.mark.skipif(os.name == "nt", reason="no SIGKILL on Windows")
pytestmark = [no_windows, pytest.mark.usefixtures("one_thread")]
KEYS = {  # what each case changes in a run of two blocks that begins with a model of its own
    "adapters": {"lora_rank": 2},
    "mixture": {"data_mix": {"data": 3, "other": 1}},
    "answers": {"data_answers_after": " saw"},
}
KEYS["all three"] = KEYS["adapters"] | KEYS["mixture"] | KEYS["answers"] | {"model_dropout": 0.1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return fine_tuning_folder(tmp_path_factory.mktemp("fine-tuning"))


def run_of(folder: Path, case: str, name: str) -> Config:
    changes = dict(KEYS[case])
    if "data_mix" in changes:
        changes["data_mix"] = {str(folder / key): weight for key, weight in changes["data_mix"].items()}
    lora = Lora(rank=changes.pop("lora_rank", 0))
    config = small(folder, run_dir=str(folder / name), eval_sample_every=0, **changes)
    return replace(config, init_from=str(folder / "base"), lora=lora)


def bits(config: Config) -> tuple:
    """All that a run ends with: its lines, and every file of its last checkpoint but what names the folder and times."""
    last = checkpoint.latest(config.run.dir)
    state = json.loads((last / "state.json").read_text())
    kept = {key: state[key] for key in ("step", "updates", "data", "best", "notes")}
    return lines(config.run.dir), kept, {path.name: path.read_bytes() for path in last.glob("*.safetensors")}


def killed_until_done(config: Config, kinds: list, dice: random.Random, events: list[str]) -> list[str]:
    """Kill the run, each time before a random one of the events that are left of the next kind; then let it end.

    What it was killed before.
    """
    died = []
    for number, among in enumerate(kinds):
        often = sum(name in among for name in events) // (len(kinds) - number + 1)
        code, said = run_in_child(config, dice.randint(1, max(1, often)), among)
        assert code == -signal.SIGKILL and said["died"] in among, f"not killed: exit code {code}, {said}"
        died.append(said["died"])
    code, said = run_in_child(config)
    assert code == 0 and said.get("ended") == config.train.max_steps, f"it cannot go on: {said}"
    return died


@pytest.mark.parametrize(
    ("case", "often"),
    [("all three", 2), *(pytest.param(case, 4, marks=pytest.mark.weekly) for case in KEYS)],
)
def test_a_run_that_is_killed_ends_with_the_same_bits(case, often, folder):
    """Half of the kills come within a step or an evaluation, half at a change of the disk."""
    whole = run_of(folder, case, f"whole {case} {often}")
    code, said = run_in_child(whole)
    assert code == 0 and said["ended"] == 30, f"the uninterrupted run failed: {said}"
    killed = run_of(folder, case, f"killed {case} {often}")
    died = killed_until_done(killed, [COMPUTING, WRITING] * (often // 2), random.Random(case), said["events"])
    assert sum(name in COMPUTING for name in died) == often // 2 == sum(name in WRITING for name in died)
    told, state, files = bits(killed)
    assert told == lines(whole.run.dir), "the lines of metrics.jsonl differ"
    assert (told, state, files) == bits(whole), "the last checkpoint differs"
    assert ("adapter.safetensors" in files) == ("lora_rank" in KEYS[case])
