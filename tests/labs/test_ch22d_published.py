"""Chapter 22d: Megatron-LM's loss scaler, its scripts as our configurations, and what its logs must say."""

import csv
import random

import pytest
from conftest import ROOT

from nanogpt.config import keys, load_config
from nanogpt.labs.formats.megatron_logs import PatientScaler, agrees, expected_lines


def rows(name):
    with open(ROOT / "data" / "reference" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def megatron(iterations):
    """What of the published scripts the rate depends on; a test below compares it with the scripts."""
    schedule = ["optim.lr=1e-4", "optim.schedule=cosine", "optim.minimum=0.1"]
    length = [f"train.max_steps={iterations}", f"optim.warmup={iterations // 100}"]
    return load_config("gpt2-124M", [*schedule, *length])


@pytest.mark.parametrize("name", ["the 1 GPU log", "the TP 2 log"])
def test_the_schedule_is_that_of_the_published_script(name):
    active = [row for row in rows("megatron_scripts") if name in row["script"] and row["active"] == "yes"]
    a = {row["argument"]: row["value"] for row in active}
    o = megatron(int(a["train-iters"])).optim
    assert o.lr == float(a["lr"]) and o.lr * o.minimum == pytest.approx(float(a["min-lr"]))
    assert o.schedule == a["lr-decay-style"] and a["global-batch-size"] == "16"
    assert o.warmup == float(a["lr-warmup-fraction"]) * int(a["train-iters"])


class Megatron:
    """Megatron-LM's DynamicGradScaler (megatron/core/optimizer/grad_scaler.py), written down from its definition."""

    def __init__(self, scale, window, hysteresis):
        self.scale, self.window, self.hysteresis = scale, window, hysteresis
        self.growth, self.left = 0, hysteresis

    def update(self, found_inf):
        if found_inf:
            self.growth = 0
            self.left -= 1
            if self.left <= 0:
                self.scale = max(self.scale * 0.5, 1.0)
        else:
            self.growth += 1
            if self.growth == self.window:
                self.growth, self.left = 0, self.hysteresis
                self.scale *= 2.0


@pytest.mark.parametrize("hysteresis", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_the_patient_scaler_decides_as_megatron_does(seed, hysteresis):
    draw, window = random.Random(seed), 3 + seed
    ours = PatientScaler(2.0**64, window, hysteresis=hysteresis)
    theirs = Megatron(2.0**64, window, hysteresis)
    for _ in range(60):
        finite = draw.random() < 0.8
        ours.update(finite)
        theirs.update(not finite)
        assert ours.scale == theirs.scale


def test_its_state_brings_it_back():
    scaler, again = PatientScaler(2.0**32, 5), PatientScaler()
    for finite in (False, True, False, True):
        scaler.update(finite)
    again.load_state_dict(scaler.state_dict())
    assert again == scaler and again.overflows == 2


def test_all_lines_of_the_published_log_follow_from_its_arguments():
    log, config = rows("megatron_124m"), megatron(1000)
    lines = expected_lines(config, [int(row["skipped"]) for row in log], PatientScaler(2.0**32))
    for row, line in zip(log, lines, strict=True):
        for name, value in line.items():
            assert agrees(row[name], value), f"iteration {row['iteration']}: {name} is not {value}"
    assert len(log) == 26 and sum(int(row["skipped"]) for row in log) == 21


def test_every_published_argument_has_a_key_or_a_reason():
    table = {row["argument"]: row for row in rows("megatron_arguments")}
    assert set(table) == {row["argument"] for row in rows("megatron_scripts")} and len(table) == 45
    from torch.distributed.run import get_args_parser

    actions = get_args_parser()._actions
    options = {option.replace("_", "-") for action in actions for option in action.option_strings}
    for name, row in table.items():
        if not row["ours"]:
            assert len(row["note"]) > 20, f"{name} has neither a key nor a reason"
        elif row["ours"].startswith("torchrun "):
            assert row["ours"].removeprefix("torchrun ") in options, name
        else:
            assert row["ours"] in keys(), f"{name}: there is no key {row['ours']}"


def test_every_option_of_llm_c_has_a_key_or_a_reason_and_the_logs_value():
    setup = {row["parameter"]: row["value"] for row in rows("llmc_a800_setup")}
    table = rows("llmc_options")
    assert len({row["option"] for row in table}) == len(table) >= 16
    for row in table:
        assert row["ours"] in keys() if row["ours"] else len(row["note"]) > 20, row
        if row["parameter"] in setup:
            assert row["value"] == setup[row["parameter"]]
    load_config(
        "gpt2-124M-llmc",
        ["train.batch_tokens=458752", "train.micro_batch=56", "optim.lr=0.002", "train.max_steps=21479"],
    )
