"""Laws between the columns of the published figures in data/reference, which a mistyped label would break."""

import csv
import math
import statistics
from collections import defaultdict

import pytest
from conftest import ROOT

from nanogpt.model import GPTConfig, num_params

TABLES = ROOT / "data" / "reference"
LECTURE = ROOT / "nanogpt/resources/build_nanogpt.csv"


def rows(name, folder=TABLES):
    with open(folder / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def runs(name):
    by_run = defaultdict(list)
    for row in rows(name):
        by_run[row["run"]].append(row)
    return by_run


@pytest.mark.parametrize("path", [*sorted(TABLES.glob("*.csv")), LECTURE], ids=lambda path: path.stem)
def test_every_figure_says_where_it_was_published(path):
    for row in rows(path.stem, path.parent):
        assert ": line" in row["source"] or "video lecture" in row["source"]


def test_rate_times_time_is_the_tokens_of_a_step():
    """So the two H800 make 8,192 tokens a step: B=4 is each GPU's."""
    tokens = {"RTX 4070 SUPER 1 GPU": 4096, "H800 1 GPU": 4096, "H800 2 GPUs": 8192}
    for run, log in runs("llmc_gpu_losses").items():
        expected = next(n for name, n in tokens.items() if run.startswith(name))
        for row in log:
            assert float(row["ms"]) * float(row["tokens_per_s"]) / 1e3 == pytest.approx(expected, rel=1e-3)


def test_a_skipped_step_halves_the_scale_and_leaves_the_learning_rate():
    log = rows("megatron_124m")
    scale, first = 2.0**32, log[0]
    assert int(first["skipped"]) == 10 and float(first["learning_rate"]) == 0
    halvings = int(math.log2(scale / float(log[-1]["loss_scale"])))
    skipped = sum(int(row["skipped"]) for row in log)
    assert (skipped, halvings) == (21, 20)  # hysteresis 2: the first overflow only uses up patience
    done = [10 * (i + 1) - sum(int(r["skipped"]) for r in log[: i + 1]) for i in range(3)]
    rates = [float(row["learning_rate"]) for row in log[:3]]
    assert rates == [n * 1e-5 for n in done], "it warms up by successes"


def test_memory_is_that_of_the_model():
    held = {(row["run"], row["item"], row["unit"]): float(row["value"]) for row in rows("llmc_memory")}
    a800 = "A800 1 GPU bf16 B=56 T=1024"
    count = num_params(GPTConfig(vocab_size=50304))
    assert held[a800, "parameters", "count"] == count
    for item, nbytes in [("model parameters", 2), ("parameter gradients", 2), ("AdamW optimizer state m", 4)]:
        assert held[a800, item, "MiB"] == nbytes * count // 2**20


def test_a_data_set_of_one_token_a_byte_was_published():
    """Two bytes of ids for each byte of text; the index beside them is that of as many documents as the log's."""
    said = {row["item"]: float(row["value"]) for row in rows("megatron_preprocess")}
    text_mib = said["documents"] / said["documents a second"] * said["MiB a second"]
    assert text_mib == pytest.approx(129.6, abs=0.05)
    assert said["MiB of ids"] / text_mib == pytest.approx(2, abs=0.01)
    sizes_and_places = said["documents"] * (4 + 8) + (said["documents"] + 1) * 8
    index_bytes = 34 + sizes_and_places  # of Megatron-LM's .idx
    assert math.ceil(index_bytes / 1024) == said["KiB of index"]


def test_eight_ranks_after_ten_epochs_are_where_four_were_after_half_as_many():
    """With the same rows a rank, eight make half the updates: so their loss lies between four ranks' of epochs 3 and 6."""
    by = defaultdict(list)
    for row in rows("mingpt_ddp"):
        if row["set"] == "eval":
            by[row["run"].split(" (")[0], int(row["epoch"])].append(float(row["loss"]))
    mean = {key: statistics.mean(losses) for key, losses in by.items()}
    four, eight = "1 node, 4 processes", "2 nodes, 8 processes"
    assert mean[four, 10] == pytest.approx(1.13, abs=0.005)
    assert mean[eight, 10] == pytest.approx(1.96, abs=0.01)
    assert mean[four, 6] < mean[eight, 10] < mean[four, 3]
