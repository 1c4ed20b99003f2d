"""What a step sends, its time and its cost: collectives of real steps, published times, and one line for each wrong input."""

import csv
import re
from dataclasses import replace

import pytest
import torch
from conftest import ROOT
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.flop_counter import FlopCounterMode

from course.figures import planner as figures
from course.figures.local_ranks import fake_ranks, traced
from nanogpt import cli
from nanogpt.config import load_config
from nanogpt.labs.parallel.fsdp import recompute_blocks, shard
from nanogpt.labs.plan import dryrun, plan
from nanogpt.labs.plan.budget import (
    CARDS,
    Card,
    Cluster,
    average_seconds,
    compute_flops,
    data_traffic,
    recompute_flops,
    seconds,
    traffic,
)
from nanogpt.labs.plan.footprint import Step, tensors
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.labs.roofline.sheets import Peak
from nanogpt.model import GPT, Block, GPTConfig, num_params, step_flops

GPT2, PADDED = GPTConfig(), GPTConfig(padded_vocab_size=50304)
A800 = Step(PADDED, 56, 1024, "llm.c", recompute="gelu")
GPT3 = replace(plan.MODELS["gpt3-175B"], padded_vocab_size=50304)
BIG = Step(GPT3, 1, 2048, "megatron", recompute="block", accumulate=192, dp=8, tp=8, pp=16)


def said(capsys, *words, code: int = 0) -> str:
    assert cli.main(["plan", *words]) == code
    return capsys.readouterr().out


def test_a_rank_sends_what_a_ring_sends():
    for n in (2, 8, 1024):
        (sent,) = data_traffic(Step(GPT2, program="pytorch", dp=n))
        P, cluster = num_params(GPT2), Cluster(1e15)
        assert sent.sent == pytest.approx(2 * (n - 1) / n * 4 * P)
        assert sent.seconds(cluster) == pytest.approx(average_seconds(4 * P, n, cluster))
    assert traffic(Step(GPT2)) == []


# All of its tensors have a multiple of 64 rows: FSDP2 pads none of them on up to 64 ranks.
WIDE = GPTConfig(128, 512, n_layer=2, n_head=4, n_embd=64)


def laid_out(way: str, n: int):
    """A model as n ranks run it."""
    model = GPT(WIDE)
    if way == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if way.startswith("fsdp"):
        return shard(model, precision="bf16" if "bf16" in way else "float32")
    tensor = pytest.importorskip("nanogpt.labs.parallel.tensor")  # chapter 21b, optional
    model = tensor.split(model, init_device_mesh("cpu", (n,)))
    return recompute_blocks(model) if "recomputed" in way else model


WAYS = [("ddp", 2), ("ddp", 1024), ("fsdp", 2), ("fsdp", 64), ("fsdp bf16", 64)]
WAYS += [("tensor", 2), ("tensor", 4), ("tensor recomputed", 2)]


@pytest.mark.parametrize("way, n", WAYS)
def test_collectives_of_a_real_step_are_the_formulas(way, n):
    layout = {"ddp": {"dp": n}, "fsdp": {"dp": n, "shard": 3}, "tensor": {"tp": n}}[way.split()[0]]
    program = "pytorch-bf16" if "bf16" in way else "pytorch"
    with fake_ranks(n):
        calls = traced(laid_out(way, n), *torch.zeros(2, 3, 64, dtype=torch.long))
    recompute = "block" if "recomputed" in way else "none"
    formula = traffic(Step(WIDE, 3, 64, program, recompute=recompute, **layout))
    for kind in {sent.kind for sent in formula} | {kind for kind, _ in calls}:
        found = [nbytes for made, nbytes in calls if made == kind]
        assert len(found) == sum(sent.calls for sent in formula if sent.kind == kind), kind
        assert sum(found) == sum(sent.nbytes for sent in formula if sent.kind == kind), kind


def test_time_follows_from_flops_and_the_share_that_is_reached():
    step, card = Step(GPT2, 8), CARDS["A100-80GB"]
    told = seconds(step, card, mfu=0.5)
    assert sum(told.values()) == told["compute"] == pytest.approx(step_flops(GPT2, 8, 1024) / 156e12)


@pytest.mark.parametrize("stage, share", [(1, 2 / 3 / 4), (3, 1)])
def test_sums_hide_behind_the_last_backward_and_weights_in_parts_behind_the_whole_step(stage, share):
    step, card = Step(GPT2, 8, program="pytorch", dp=16, shard=stage, accumulate=4), CARDS["A100-80GB"]
    shown, rest = (seconds(step, card, 0.5, between=1e6, overlap=overlap) for overlap in (0.0, 0.8))
    hidden = shown["data parallel"] - rest["data parallel"]
    assert hidden == pytest.approx(0.8 * share * shown["compute"])


def test_gpt3_on_1024_gpus_computes_what_megatrons_formula_says():
    """Narayanan et al. 2021, appendix: 96 B T L C² (1 + T / 6C + V / 16LC), with each block computed twice."""
    B, T, L, C, V = 1536, 2048, 96, 12288, 50304
    told = seconds(BIG, CARDS["A100-80GB"], mfu=1.0)
    flops = (told["compute"] + told["recompute"]) * 312e12 * 1024
    assert flops == pytest.approx(96 * B * T * L * C**2 * (1 + T / (6 * C) + V / (16 * L * C)), rel=1e-9)
    assert round(flops / 32 / 1024 / 1e12) == 138, "Megatron-LM's README: 32 seconds, 138 teraFLOP/s a GPU"
    above = ("compute", "recompute", "tensor parallel", "stage to stage")
    assert told["bubble"] == pytest.approx(15 / 192 * sum(told[name] for name in above))
    assert told["stage to stage"] > 0


def test_the_command_prints_the_published_figures(capsys):
    words = "--device A800 --batch 56 --program llm.c --recompute gelu --tensors"
    text = said(capsys, *words.split())
    for figure in ("124,475,904", "237.4 MiB", "18,564.7 MiB", "of 81,100 MiB: fits"):
        assert figure in text
    assert "largest batch                236" in text
    assert all(name in text for name in tensors(A800))


@pytest.mark.parametrize("words", [[], ["--pp", "2", "--accumulate", "4"], ["--overhead", "3000.7"]])
def test_the_exit_code_is_what_the_line_says_at_the_largest_batch_and_beyond(words, capsys):
    words = ["--device", "T4", "--mfu", "0.4", *words]
    most = int(re.search(r"largest batch +(\d+)", said(capsys, *words, "--batch", "1"))[1])
    assert ": fits" in said(capsys, *words, "--batch", str(most))
    assert "does NOT fit" in said(capsys, *words, "--batch", str(most + 1), code=1)


@pytest.mark.parametrize(
    "words, says",
    [
        ("--device 4070S", "RTX 4070 SUPER"),
        ("--device MI300X", "--memory (MiB) and --tflops"),
        ("--device T4 --program bf16", "fp16"),
        ("--shard 4", "shard=4"),
        ("--tp 5", "tp=5"),
        ("--pp 7", "pp=7"),
        ("--mfu 40", "0.4"),
        ("--tokens nan", "--tokens nan"),
    ],
)
def test_wrong_input_is_one_line(words, says, capsys):
    assert cli.main(["plan", *words.split()]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


@pytest.mark.parametrize("row", figures.problems(), ids=lambda row: row["question"][:40])
def test_every_problem_has_an_answer(row):
    args = plan.parser().parse_args(row["command"].split())
    lines = {line[0]: line for line in plan.plan_lines(args) if len(line) == 3}
    assert float(lines[row["line"]][1].split()[0].replace(",", "")) > 0


@pytest.mark.parametrize("recompute", ["none", "block"])
def test_the_flops_of_recomputing_are_those_that_pytorch_makes(recompute):
    shape, B = GPTConfig(block_size=64, vocab_size=256, n_layer=2, n_head=4, n_embd=64, flash=False), 3
    model, ids = GPT(shape), torch.zeros(B, 64, dtype=torch.long)
    if recompute == "block":
        recompute_blocks(model)
    with FlopCounterMode(display=False) as counter:
        model(ids, ids)[1].backward()
    step = Step(shape, B, 64, "pytorch", flash=False, recompute=recompute)
    assert counter.get_total_flops() == compute_flops(step) + recompute_flops(step)
    whole = replace(step, program="megatron")
    assert recompute_flops(whole) == 1.4 * recompute_flops(step), "Megatron's second forward is complete"


@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_the_dry_runs_time_grows_with_recomputing_as_the_planners_does(dtype):
    """On a machine whose traffic takes no time, by the same FLOPs; and a step that is measured recomputes."""
    roof = Roofline("none", {"float32": 1e12, "bfloat16": 4e12}, 1e18)
    c = load_config("gpt2-124M", [f"train.dtype={dtype}"])
    recomputed = load_config("gpt2-124M", [f"train.dtype={dtype}", "parallel.recompute=true"])
    plain, again = (dryrun.least_seconds(GPT2, each, roof) for each in (c, recomputed))
    program = f"pytorch-{dtype}".removesuffix("-float32")
    step = Step(GPT2, c.train.micro_batch, 1024, program, recompute="block", accumulate=c.micro_batches)
    planned = seconds(step, Card(Peak(float32=1, tf32=None, half=4, bandwidth=1, source="none")), mfu=1.0)
    assert again - plain == pytest.approx(planned["recompute"]), "the dry run and the plan disagree"
    assert plain == pytest.approx(planned["compute"], rel=0.05), "all but products takes a small part of it"


def test_a_measured_step_recomputes_where_the_run_will(monkeypatch):
    forward, calls = Block.forward, []
    monkeypatch.setattr(Block, "forward", lambda self, *args: calls.append(1) or forward(self, *args))
    counts = []
    for recompute in ("false", "true"):
        words = ["model.n_layer=1", "train.batch_tokens=256", f"parallel.recompute={recompute}"]
        config = load_config("tiny", words)
        dryrun.measured_seconds(config.model.shape(64), config, torch.device("cpu"))
        counts.append(len(calls) - sum(counts))
    assert counts[1] == 2 * counts[0] > 0, "blocks are computed twice, or not, other than in the run"


def test_float32_computes_at_float32s_rate_and_tf32_beside_it(capsys):
    card = CARDS["A100-80GB"]
    names = "", "-tf32", "-bf16", "-fp16", "-bf16-masters"
    assert [card.rate(f"pytorch{name}") / 1e12 for name in names] == [19.5, 156, 312, 312, 312]
    assert "19.5 TFLOP/s" in said(capsys, "--program", "float32")
    assert "pytorch-fp16" in said(capsys, "--device", "T4"), "a card without bfloat16"


def test_a_model_and_a_card_of_ones_own(capsys):
    words = "--layers 32 --heads 32 --width 4096 --vocab 32000 --device H100 --dp 8 --shard 3"
    text, config = said(capsys, *words.split()), GPTConfig(1024, 32000, 32, 32, 4096)
    assert f"32 layers of width 4096: {num_params(config):,} parameters" in text
    text = said(capsys, *["--device", "MI300X", "--memory", "196592", "--tflops", "1307"])
    assert "1 × MI300X" in text and "of 196,592 MiB" in text and "1307 TFLOP/s" in text
    assert "RTX 4090" in said(capsys, "--device", "RTX", "4090"), "without quotes"


def test_without_a_share_a_range_is_printed_and_each_end_is_that_shares_plan(capsys):
    words = ["--device", "A800", "--batch", "32", "--tokens", "1e10"]
    plans = (said(capsys, *words, "--mfu", share) for share in ("0.5", "0.2"))
    least, most = (re.search(r"run +([\d.]+) days", text)[1] for text in plans)
    assert f"{least} to {most} days" in said(capsys, *words)


def test_the_time_of_computing_follows_from_the_formula_that_is_printed(capsys):
    text = said(capsys, "--batch", "16", "--mfu", "0.4")
    found = re.search(r"compute +([\d.,]+) ms +([\d,]+) FLOPs / \(1 × 312 TFLOP/s × 40%\)", text)
    ms, flops = (float(number.replace(",", "")) for number in found.groups())
    assert flops / (312e12 * 0.4) == pytest.approx(ms / 1e3, abs=1e-4)


def test_published_times_are_within_the_shares_that_the_chapter_tells():
    """From 4% (V100S, tensor parallel over PCIe) to 52% (A800); and GPT-3's 32 seconds with 53% while computing."""
    with open(ROOT / "data/reference/throughput.csv", encoding="utf-8", newline="") as file:
        rows = {(row["device"], row["devices"]): row for row in csv.DictReader(file)}
    told = {("A800", "1"): ("llm.c", 0.52), ("H800", "1"): ("llm.c-2024", 0.19)}
    told["H800", "2"] = ("llm.c-2024-bf16", 0.11)
    for key, (program, share) in told.items():
        flops = step_flops(GPT2, 1, 1024) / 1024 * float(rows[key]["tokens_per_step"]) / int(key[1])
        reached = flops / (float(rows[key]["median_ms"]) / 1e3) / CARDS[key[0]].rate(program)
        assert reached == pytest.approx(share, abs=0.006), key
    assert recompute_flops(A800) == 0 < recompute_flops(replace(A800, recompute="block")), "GELU: no product"
    total = sum(seconds(BIG, CARDS["A100-80GB"], 0.53).values())
    assert total == pytest.approx(32, rel=0.01)
    assert pytest.approx(34, abs=0.2) == 8 * 300e9 * 175e9 / (1024 * 140e12) / 86400, "Narayanan et al. 2021"


def test_the_slowest_link_of_a_group_is_that_between_machines_with_all_its_network_cards():
    cluster = Cluster(1e15, latency=0.0)
    (sums,) = data_traffic(Step(GPT2, program="pytorch", dp=16))
    assert sums.seconds(cluster) == pytest.approx(sums.sent / min(450e9, 8 * 50e9))
    (sums,) = data_traffic(Step(GPT2, program="pytorch", dp=16, tp=4))
    assert sums.seconds(cluster) == pytest.approx(sums.sent / (2 * 50e9)), "two of a group in a machine"


def test_cost_is_hours_of_all_gpus_times_price(capsys):
    words = "--tokens 1e11 --price 2 --dp 2 --tp 2 --pp 3 --accumulate 8 --mfu 0.4"
    text = said(capsys, *words.split())
    line = next(line for line in text.splitlines() if "GPU-hours " in line)
    hours, price, cost = (float(number) for number in re.findall(r"\d+", line.replace(",", "")))
    days = float(next(line for line in text.splitlines() if line.startswith("  run")).split()[1])
    assert price == 2 and cost == pytest.approx(2 * hours, abs=1.01)
    assert hours == pytest.approx(12 * 24 * days, rel=0.02), "twelve GPUs"
