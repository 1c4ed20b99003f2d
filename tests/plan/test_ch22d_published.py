"""Chapter 22d: Megatron-LM's loss scaler, its scripts as our configurations, and what its logs must say."""

import csv
import math
import random

import pytest
from conftest import ROOT

from nanogpt.drills.megatron_logs import (
    PatientScaler,
    agrees,
    as_config,
    expected_lines,
    half_unit,
    printed_rate,
)
from nanogpt.gpt.model import GPTConfig, num_params
from nanogpt.gpt.precision import LossScaler
from nanogpt.run.config import keys


def rows(name):
    with open(ROOT / "data" / "reference" / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def script(name):
    active = [row for row in rows("megatron_scripts") if name in row["script"] and row["active"] == "yes"]
    return {row["argument"]: row["value"] for row in active}


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
    ours, theirs = (
        PatientScaler(2.0**64, window, hysteresis=hysteresis),
        Megatron(2.0**64, window, hysteresis),
    )
    for _ in range(60):
        finite = draw.random() < 0.8
        ours.update(finite)
        theirs.update(not finite)
        assert ours.scale == theirs.scale


def test_without_patience_it_is_chapter_10s():
    draw = random.Random(0)
    one, other = PatientScaler(2.0**64, 4, hysteresis=1), LossScaler(2.0**64, 4)
    for _ in range(60):
        finite = draw.random() < 0.8
        one.update(finite)
        other.update(finite)
        assert (one.scale, one.good_steps) == (other.scale, other.good_steps)


def test_its_state_brings_it_back():
    scaler, again = PatientScaler(2.0**32, 5), PatientScaler()
    for finite in (False, True, False, True):
        scaler.update(finite)
    again.load_state_dict(scaler.state_dict())
    assert again == scaler and again.overflows == 2


def test_all_lines_of_the_published_log_follow_from_its_arguments():
    log, config = rows("megatron_124m"), as_config(script("the 1 GPU log"))
    lines = expected_lines(config, [int(row["skipped"]) for row in log], PatientScaler(2.0**32))
    for row, line in zip(log, lines, strict=True):
        for name, value in line.items():
            assert agrees(row[name], value), (
                f"iteration {row['iteration']}: {name} {row[name]} is not {value}"
            )
    assert len(log) == 26 and sum(int(row["skipped"]) for row in log) == 21


def test_the_rate_went_through_float32():
    """As the log's writer has it; without, six rows differ in the last digit."""
    log, config, updates, exact = rows("megatron_124m"), as_config(script("the 1 GPU log")), 0, 0
    for row in log:
        updates += 10 - int(row["skipped"])
        done = max(0, updates - 10) / 990
        rate = 1e-5 * updates if updates < 10 else 1e-5 + 9e-5 * (1 + math.cos(math.pi * done)) / 2
        exact += agrees(row["learning_rate"], rate)
        assert printed_rate(config, updates) == pytest.approx(rate, rel=1e-7)
    assert exact == 20


def test_the_second_runs_rate_tells_its_21_skipped_iterations_and_they_its_scale():
    (row,) = rows("megatron_tp2")
    config = as_config(script("the TP 2 log") | {"train-iters": row["of_iterations"], "log-interval": "1"})
    fits = [n for n in range(2501) if agrees(row["lr"], printed_rate(config, n))]
    assert fits == [2479]
    *_, line = expected_lines(config, [1] * 21 + [0] * 2479, PatientScaler(2.0**32))
    assert agrees(row["loss_scale"], line["loss_scale"]) and line["consumed_samples"] == 40000


@pytest.mark.parametrize(
    "text, half",
    [("1.072453E+01", 5e-6), ("16", 0.5), ("3.874", 5e-4), ("9.998165E-05", 5e-12), ("4096.0", 0.05)],
)
def test_half_a_unit_of_the_last_digit(text, half):
    assert half_unit(text) == pytest.approx(half)
    assert agrees(text, float(text) + 0.9 * half) and not agrees(text, float(text) + 1.1 * half)


SCRIPTS = sorted({row["script"] for row in rows("megatron_scripts")})


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_becomes_a_configuration(name):
    a = script(name)
    c = as_config(a)
    assert c.train.batch_tokens == int(a["global-batch-size"]) * int(a["seq-length"])
    assert c.micro_batches * c.train.micro_batch == int(a["global-batch-size"])
    assert c.optim.lr * c.optim.minimum == pytest.approx(float(a["min-lr"]))
    assert (c.train.dtype, c.train.compile, c.train.skip_spikes) == ("fp16", False, 0)
    assert c.parallel.tp == int(a["tensor-model-parallel-size"])
    assert c.model.padded_vocab_size % (128 * c.parallel.tp) == 0 and c.model.padded_vocab_size >= 50257


def test_the_models_are_the_published_ones():
    size = {name: num_params(GPTConfig(**vars(as_config(script(name)).model))) for name in SCRIPTS}
    assert 174e9 < size["example, 175B parameters"] < 176e9
    said = {row["item"]: row["value"] for row in rows("megatron_figures")}
    assert str(size["one GPU, oscar (the 1 GPU log)"]) == said["parameters on rank (0, 0)"]


def test_a_position_table_of_another_length_is_refused():
    with pytest.raises(ValueError, match="make them equal"):
        as_config(script("the 1 GPU log") | {"max-position-embeddings": "1024"})


def test_every_published_argument_has_a_key_or_a_reason():
    table = {row["argument"]: row for row in rows("megatron_arguments")}
    assert set(table) == {row["argument"] for row in rows("megatron_scripts")} and len(table) == 45
    from torch.distributed.run import get_args_parser

    options = {
        option.replace("_", "-") for action in get_args_parser()._actions for option in action.option_strings
    }
    for name, row in table.items():
        if not row["ours"]:
            assert len(row["note"]) > 20, f"{name} has neither a key nor a reason"
        elif row["ours"].startswith("torchrun "):
            assert row["ours"].removeprefix("torchrun ") in options, name
        else:
            assert row["ours"] in keys(), f"{name}: there is no key {row['ours']}"


def test_every_column_of_the_logs_has_a_formula():
    table = {row["column"] for row in rows("megatron_columns")}
    assert table == {*rows("megatron_124m")[0], "ppl"} - {"source"}
    other = {"lr": "learning_rate"}
    assert {other.get(name, name) for name in rows("megatron_tp2")[0]} == table - {"ppl"} | {"source"}
