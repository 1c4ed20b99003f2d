"""The planner: what published logs printed, laws between plans, and one line for each wrong input."""

import math
import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from course.figures import planner as figures
from course.local_ranks import fake_ranks, traced
from nanogpt import cli
from nanogpt.gpt.model import GPT, GPTConfig, num_params
from nanogpt.parallel.fsdp import shard
from nanogpt.parallel.tensor import split
from nanogpt.plan import plan
from nanogpt.plan.budget import CARDS, OVERHEAD, Cluster, average_seconds, data_traffic, seconds, traffic
from nanogpt.plan.footprint import (
    PROGRAMS,
    RECOMPUTE,
    Step,
    block_tensors,
    footprint,
    largest_batch,
    split_params,
    states,
    tensors,
)
from nanogpt.speed.work import memory_by_category, peak_memory, saved_bytes, step_flops

MIB = 2**20
GPT2, PADDED = GPTConfig(), GPTConfig(padded_vocab_size=50304)
CPU = Step(GPT2, 4, 64, "llm.c-cpu", flash=False)
LOGS = {
    "A800": Step(PADDED, 56, 1024, "llm.c", recompute="gelu"),
    "RTX 4070 SUPER": Step(PADDED, 4, 1024, "llm.c-2024", flash=False),
    "H800 1 GPU": Step(GPT2, 4, 1024, "llm.c-2024", flash=False),
    "H800 2 GPUs": Step(GPT2, 4, 1024, "llm.c-2024-bf16", flash=False),
    "CPU": CPU,
    "Megatron-LM 1 GPU": Step(GPTConfig(512, padded_vocab_size=50304), 1, 512, "megatron"),
    "Megatron-LM TP 2": Step(GPTConfig(512, padded_vocab_size=50304), 2, 512, "megatron", tp=2),
}
PUBLISHED = [
    row
    for row in figures.published("llmc_memory") + figures.published("megatron_memory")
    if row["item"] not in figures.NO_MEMORY
]


def said(capsys, *words) -> str:
    assert cli.main(["plan", *words]) == 0
    return capsys.readouterr().out


def held(step: Step) -> int:
    return sum(math.prod(t) for t in tensors(step).values())


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row['run'].split(' ')[0]}-{row['item'][:24]}")
def test_a_published_figure_is_derived_exactly_or_listed_as_not_derived(row):
    step = next(step for run, step in LOGS.items() if run in row["run"])
    ours = figures.worded(step, row["item"], row["unit"], footprint, largest_batch)
    theirs = float(row["value"])
    cut = round(ours, 2) if theirs % 1 else int(ours)  # a log in whole MiB cuts off the rest
    assert (cut == theirs) == (row["item"] not in figures.NOT_DERIVED), f"{ours} against {theirs}"


def test_what_is_not_derived_is_what_the_logs_leave_over():
    assert sum(footprint(LOGS["A800"]).values()) / MIB == pytest.approx(20464.4, abs=0.1)
    assert round(21315 - sum(footprint(LOGS["A800"]).values()) / MIB) == OVERHEAD
    P = num_params(LOGS["Megatron-LM 1 GPU"].config)
    assert pytest.approx(2130.02, abs=0.005) == 18 * P / MIB
    without = (
        P - 12 * 9 * 768 - 512 * 768
    )  # Megatron-LM's own formula: no biases of linear layers, no positions
    assert without == 123606528 and round(18 * without / MIB, 2) == 2121.85
    assert pytest.approx(1420.0, abs=0.05) == 12 * P / MIB


def test_the_a800_log_proves_fused_attention_and_gelu_recomputation():
    others = {
        "att": replace(LOGS["A800"], flash=False),
        "none": replace(LOGS["A800"], recompute="none"),
    }
    assert {name: held(step) // MIB for name, step in others.items()} == {
        "att": 34661,
        "none": 22260,
    }


SHAPES = st.builds(
    lambda L, H, d, V, T, bias, flash: GPTConfig(
        T, V, n_layer=L, n_head=H, n_embd=H * d, bias=bias, flash=flash
    ),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([4, 8, 16]),
    st.integers(5, 300),
    st.sampled_from([8, 16, 32]),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=25)
@given(SHAPES)
def test_parameters_are_those_of_the_model(config):
    with torch.device("meta"):
        model = GPT(config)
    step = Step(config, T=8, program="pytorch")
    assert sum(split_params(step).values()) == sum(p.numel() for p in model.parameters())
    assert states(step)["parameters"] == sum(p.nbytes for p in model.parameters())


@settings(max_examples=25)
@given(SHAPES, st.integers(1, 3))
def test_activations_are_what_autograd_saves(config, B):
    """float32, exactly, but for the ids that attention's mask and the positions bring, which are in the sum as well."""
    T = config.block_size
    model, idx = GPT(config), torch.zeros(2, B, T, dtype=torch.long)
    step = Step(config, B, T, "pytorch", config.flash)
    found = saved_bytes(lambda: model(*idx), exclude=model.parameters())
    assert found == held(step) == memory_by_category(config, B, T)["activations"]


@pytest.mark.parametrize("flash", [True, False])
def test_activations_under_bf16_autocast_are_what_autograd_saves(flash):
    config = GPTConfig(64, 512, n_layer=3, n_head=4, n_embd=64, flash=flash)
    model, idx = GPT(config), torch.zeros(2, 4, 64, dtype=torch.long)
    step = Step(config, 4, 64, "pytorch-bf16", flash)
    with torch.autocast("cpu", torch.bfloat16):
        found = saved_bytes(lambda: model(*idx), exclude=model.parameters())
    assert found == held(step) + states(step)["casts"]


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("program", ["pytorch", "pytorch-bf16"])
def test_the_peak_of_forward_and_backward_is_activations_casts_and_the_losses_gradients(program, flash):
    """Weights and gradients are there already. What is above: buffers of a block's own backward, less than one block."""
    config = GPTConfig(64, 1024, n_layer=4, n_head=4, n_embd=64, flash=flash)
    model, idx = GPT(config), torch.zeros(2, 8, 64, dtype=torch.long)
    step = Step(config, 8, 64, program, flash)

    def call():
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in program):
            loss = model(*idx)[1]
        loss.backward()

    call()
    by = footprint(step)
    formula = by["activations"] + by["loss"] + by.get("casts", 0) - idx.nbytes
    assert peak_memory(call, torch.device("cpu")) == pytest.approx(formula, rel=0.03)


def test_recomputing_a_block_keeps_its_input_alone():
    config = GPTConfig(64, 512, n_layer=3, n_head=4, n_embd=64)
    model, idx = GPT(config), torch.zeros(2, 4, 64, dtype=torch.long)
    for block in model.transformer.h:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    found = saved_bytes(lambda: model(*idx), exclude=model.parameters())
    step = Step(config, 4, 64, "pytorch", recompute="block")
    one_block = (
        sum(n * width for n, width in block_tensors(step).values()) - 4 * 4 * 64 * 64
    )  # less residual3
    assert found == held(step) - one_block  # which is there only in backward, one at a time


def test_a_megatron_block_keeps_34_bytes_but_for_dropout():
    """Korthikanti et al. 2022, §4.1: 34 sbh + 5 as²b; of these 2 sbh and 3 as²b are dropout's masks and outputs."""
    step = Step(GPT2, 2, 1024, "megatron", flash=False)
    sizes = {name: n * width for name, (n, width) in block_tensors(step).items() if "stats" not in name}
    assert sum(sizes.values()) == (34 - 2) * 2 * 1024 * 768 + (5 - 3) * 12 * 1024**2 * 2


STEPS = st.builds(
    lambda program, flash, recompute, T: Step(PADDED, 1, T, program, flash, recompute),
    st.sampled_from(list(PROGRAMS)),
    st.booleans(),
    st.sampled_from(list(RECOMPUTE)),
    st.sampled_from([64, 256, 1024]),
)


@given(STEPS, st.integers(1, 500))
def test_bytes_are_a_line_in_the_batch(step, B):
    one, two, some = (sum(footprint(replace(step, B=n)).values()) for n in (1, 2, B))
    assert some == one + (B - 1) * (two - one)


@given(STEPS, st.integers(2, 80))
def test_the_largest_batch_fits_and_one_more_does_not(step, gib):
    B, room = largest_batch(step, gib * 2**30), gib * 2**30
    assert sum(footprint(replace(step, B=B + 1)).values()) > room
    assert B == 0 or sum(footprint(replace(step, B=B)).values()) <= room


def test_no_row_fits_where_the_states_do_not():
    assert largest_batch(Step(GPT2), 2**30) == 0


@pytest.mark.parametrize(
    "stage, divided",
    [
        (1, {"moments", "masters"}),
        (2, {"moments", "masters", "gradients"}),
        (3, {"moments", "masters", "gradients", "parameters"}),
    ],
)
@pytest.mark.parametrize("n", [2, 8, 1024])
def test_sharding_divides_exactly_what_its_stage_says(stage, divided, n):
    whole, parts = (states(Step(PADDED, program="megatron", dp=n, shard=s)) for s in (0, stage))
    for name, nbytes in whole.items():
        assert parts[name] == (-(-nbytes // n) if name in divided else nbytes)
    assert ("gathered" in parts) == (stage == 3)
    alone = Step(PADDED, program="megatron", shard=stage)
    assert states(alone) == states(Step(PADDED, program="megatron"))


def test_tensor_parallel_splits_matrices_and_what_is_inside():
    """Two ranks of the published run hold 62,266,368 parameters each."""
    config = GPTConfig(512, padded_vocab_size=50304)
    assert sum(split_params(Step(config, program="megatron", tp=2)).values()) == 62266368
    one, four = (tensors(Step(PADDED, 8, tp=n, program="megatron")) for n in (1, 4))
    split = {name for name in one if four[name][0] == one[name][0] // 4}
    assert split == {"qkv", "att", "atty", "fch", "gelu", "logits"}
    assert all(four[name] == one[name] for name in one.keys() - split)


def test_a_pipeline_has_fewer_layers_and_more_micro_batches_under_way():
    whole = Step(PADDED, 1, program="megatron")
    first = tensors(replace(whole, pp=4, accumulate=8))
    assert first["fch"] == tensors(whole)["fch"], "a quarter of the layers, four micro-batches"
    assert tensors(replace(whole, pp=4, accumulate=2))["fch"][2] == 6, "no more than there are"
    assert states(replace(whole, pp=4))["moments"] < states(whole)["moments"]


def test_a_rank_sends_what_a_ring_sends():
    for n in (2, 8, 1024):
        (sent,) = data_traffic(Step(GPT2, program="pytorch", dp=n))
        assert sent.sent == pytest.approx(2 * (n - 1) / n * 4 * num_params(GPT2))
        assert sent.seconds(Cluster(1e15)) == pytest.approx(
            average_seconds(4 * num_params(GPT2), n, Cluster(1e15))
        )
    assert traffic(Step(GPT2)) == []


def test_sharding_weights_sends_half_as_much_again():
    """ZeRO (Rajbhandari et al. 2020, §7): stages 1 and 2 as much as DDP, stage 3 up to one and a half times."""
    sent = [sum(s.sent for s in data_traffic(Step(GPT2, program="pytorch", dp=8, shard=z))) for z in range(4)]
    assert sent[0] == sent[1] == sent[2] and 1.3 < sent[3] / sent[0] < 1.5
    deep = replace(GPT2, n_layer=480)
    sent = [sum(s.sent for s in data_traffic(Step(deep, program="pytorch", dp=8, shard=z))) for z in (0, 3)]
    assert sent[1] / sent[0] == pytest.approx(1.5, abs=0.01)


@pytest.fixture(scope="module")
def wide():
    """All of its tensors have a multiple of 64 rows: FSDP2 pads none of them on up to 64 ranks."""
    return GPTConfig(128, 512, n_layer=2, n_head=4, n_embd=64)


@pytest.mark.parametrize(
    "way, n", [("ddp", 2), ("ddp", 1024), ("fsdp", 2), ("fsdp", 64), ("tensor", 2), ("tensor", 4)]
)
def test_collectives_of_a_real_step_are_the_formulas(way, n, wide):
    layout = {"ddp": {"dp": n}, "fsdp": {"dp": n, "shard": 3}, "tensor": {"tp": n}}[way]
    with fake_ranks(n):
        model = GPT(wide)
        if way == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
        else:
            model = shard(model) if way == "fsdp" else split(model, init_device_mesh("cpu", (n,)))
        calls = traced(model, *torch.zeros(2, 3, 64, dtype=torch.long))
    formula = traffic(Step(wide, 3, 64, "pytorch", **layout))
    for kind in {sent.kind for sent in formula} | {kind for kind, _ in calls}:
        found = [nbytes for made, nbytes in calls if made == kind]
        assert len(found) == sum(sent.calls for sent in formula if sent.kind == kind), kind
        assert sum(found) == sum(sent.nbytes for sent in formula if sent.kind == kind), kind


def test_time_follows_from_flops_and_the_share_that_is_reached():
    step, card = Step(GPT2, 8), CARDS["A100-80GB"]
    told = seconds(step, card, mfu=0.5)
    assert sum(told.values()) == told["compute"] == pytest.approx(step_flops(GPT2, 8, 1024) / 156e12)
    P = num_params(GPT2)
    assert step_flops(GPT2, 8, 1024) / (8 * 1024) == pytest.approx(6 * P, rel=0.2), "the 6 P law"


def test_gpt3_on_1024_gpus_computes_what_megatrons_formula_says():
    """Narayanan et al. 2021, appendix: 96 B T L C² (1 + T / 6C + V / 16LC), with each block computed twice."""
    B, T, L, C, V = 1536, 2048, 96, 12288, 50304
    config = replace(plan.MODELS["gpt3-175B"], padded_vocab_size=V)
    step = Step(config, 1, T, "megatron", recompute="block", accumulate=192, dp=8, tp=8, pp=16)
    told = seconds(step, CARDS["A100-80GB"], mfu=1.0)
    flops = (told["compute"] + told["recompute"]) * 312e12 * 1024
    assert flops == pytest.approx(96 * B * T * L * C**2 * (1 + T / (6 * C) + V / (16 * L * C)), rel=1e-9)
    assert round(flops / 32 / 1024 / 1e12) == 138, "Megatron-LM's README: 32 seconds, 138 teraFLOP/s a GPU"
    assert told["bubble"] == pytest.approx(
        15 / 192 * (told["compute"] + told["recompute"] + told["tensor parallel"])
    )


def test_the_command_prints_the_published_figures(capsys):
    text = said(
        capsys,
        *["--device", "A800", "--batch", "56", "--program", "llm.c", "--recompute", "gelu", "--tensors"],
    )
    for figure in ("124,475,904", "237.4 MiB", "18,564.7 MiB", "of 81,100 MiB: fits"):
        assert figure in text
    assert "largest batch                236" in text
    assert all(name in text for name in tensors(LOGS["A800"]))


def test_cost_is_hours_times_price(capsys):
    text = said(capsys, "--tokens", "1e11", "--price", "2", "--dp", "4")
    line = next(line for line in text.splitlines() if "GPU-hours " in line)
    hours, price, cost = map(float, re.findall(r"\d+", line))
    days = float(next(line for line in text.splitlines() if line.startswith("  run")).split()[1])
    assert price == 2 and cost == pytest.approx(2 * hours, abs=1.01)
    assert hours == pytest.approx(4 * 24 * days, rel=0.02), "four GPUs"
    assert "all-reduce over 4" in text


def test_what_does_not_fit_says_so(capsys):
    text = said(capsys, "--model", "gpt2-1558M", "--device", "RTX 4090", "--seq", "2048", "--batch", "1")
    assert "does NOT fit" in text and "largest batch                  0" in text


@pytest.mark.parametrize(
    "words, says",
    [
        ("--model gpt2-124", "did you mean 'gpt2-124M'"),
        ("--device a800", "did you mean 'A800'"),
        ("--device 4070S", "did you mean 'RTX 4070 SUPER'"),
        ("--program llmc", "did you mean 'llm.c'"),
        ("--recompute blocks", "did you mean 'block'"),
        ("--batch 0", "--batch 0 must be at least 1"),
        ("--batch x", "invalid int value"),
        ("--seq -1", "--seq -1 must be at least 1"),
        ("--tp 5", "tp=5 must divide n_head=12"),
        ("--pp 7", "pp=7 n_layer=12"),
        ("--shard 4", "shard=4 be 0 to 3"),
        ("--dp 0", "--dp 0 must be at least 1"),
        ("--mfu 0", "--mfu 0 must be at least 0.001"),
        ("--tokens nan", "--tokens nan must be at least 0"),
        ("--price -1", "--price -1 must be at least 0"),
        ("--nonsense", "unrecognized arguments"),
    ],
)
def test_wrong_input_is_one_line(words, says, capsys):
    assert cli.main(["plan", *words.split()]) == 2
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_a_batch_beyond_all_cards_is_told_and_not_drawn_sign_by_sign(capsys):
    """Its picture once took a gigabyte of signs, and beyond 64 bits of them an OverflowError."""
    assert cli.main(["plan", "--batch", "99999999999999999999"]) == 0
    out = capsys.readouterr().out
    assert "does NOT fit" in out and max(map(len, out.splitlines())) < 200


def test_every_card_has_a_source_memory_and_a_link():
    for name, card in CARDS.items():
        assert card.sheet.source and 12 * 1024 <= card.mib <= 180 * 1024 and 16 <= card.link <= 900, name


def test_an_answer_for_a_slider_takes_less_than_100_ms():
    import time

    start = time.process_time()
    for B in range(1, 11):
        footprint(replace(LOGS["A800"], B=B, dp=8, shard=3))
    assert (time.process_time() - start) / 10 < 0.1


@pytest.mark.parametrize("row", figures.problems(), ids=lambda row: row["question"][:40])
def test_every_problem_has_an_answer(row):
    args = plan.parser().parse_args(row["command"].split())
    step, card = plan.asked(args)
    lines = {line[0]: line for line in (*plan.space(step, card, args), *plan.spending(step, card, args))}
    assert float(lines[row["line"]][1].split()[0].replace(",", "")) > 0


def test_the_last_stage_has_the_logits():
    step = Step(PADDED, 1, program="megatron", pp=2, accumulate=4)
    assert tensors(step).keys() & {"logits", "lnf", "encoded"} == {"encoded"} and "loss" not in footprint(
        step
    )
