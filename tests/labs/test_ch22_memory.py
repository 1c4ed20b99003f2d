"""Memory by formula: what published logs printed, what autograd keeps, laws between plans, and formulas that compute."""

import math
import re
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.figures import planner as figures
from course.figures.local_ranks import fake_ranks
from nanogpt.config import load_config
from nanogpt.labs.parallel.fsdp import recompute_blocks, shard
from nanogpt.labs.plan.dryrun import say_memory
from nanogpt.labs.plan.footprint import (
    OVERHEAD,
    PROGRAMS,
    RECOMPUTE,
    Step,
    block_tensors,
    footprint,
    fullest_stages,
    largest_batch,
    split_params,
    states,
    tensors,
)
from nanogpt.labs.plan.table import MEMORY, formulas, fullest, memory_lines
from nanogpt.labs.roofline.memory import memory_by_category, peak_memory, saved_bytes
from nanogpt.labs.roofline.sheets import PEAKS
from nanogpt.model import GPT, GPTConfig, num_params

MIB = 2**20
GPT2, PADDED = GPTConfig(), GPTConfig(padded_vocab_size=50304)
LOGS = {
    "A800": Step(PADDED, 56, 1024, "llm.c", recompute="gelu"),
    "RTX 4070 SUPER": Step(PADDED, 4, 1024, "llm.c-2024", flash=False),
    "H800 1 GPU": Step(GPT2, 4, 1024, "llm.c-2024", flash=False),
    "H800 2 GPUs": Step(GPT2, 4, 1024, "llm.c-2024-bf16", flash=False),
    "CPU": Step(GPT2, 4, 64, "llm.c-cpu", flash=False),
    "Megatron-LM 1 GPU": Step(GPTConfig(512, padded_vocab_size=50304), 1, 512, "megatron"),
    "Megatron-LM TP 2": Step(GPTConfig(512, padded_vocab_size=50304), 2, 512, "megatron", tp=2),
}
PUBLISHED = [
    row
    for row in figures.published("llmc_memory") + figures.published("megatron_memory")
    if row["item"] not in figures.NO_MEMORY
]


def held(step: Step) -> int:
    return sum(math.prod(t) for t in tensors(step).values())


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row['run'].split(' ')[0]}-{row['item'][:24]}")
def test_a_published_figure_is_derived_exactly_or_listed_as_not_derived(row):
    step = next(step for run, step in LOGS.items() if run in row["run"])
    ours = figures.worded(step, row["item"], row["unit"], footprint, largest_batch)
    theirs = float(row["value"])
    cut = round(ours, 2) if theirs % 1 else int(ours)  # a log in whole MiB cuts off the rest
    assert (cut == theirs) == (row["item"] not in figures.NOT_DERIVED), f"{ours} against {theirs}"


@pytest.mark.parametrize("recompute, r", [("none", 0), ("gelu", 1), ("gelu+norms", 2)])
def test_activations_are_llmcs_list_with_each_of_its_options_r(recompute, r):
    """train_gpt2.cu at f1e2ace, fill_in_activation_sizes: floatX has two bytes, the statistics float32's four."""
    B, T, C, L, NH, Vp = 56, 1024, 768, 12, 12, 50304
    N = B * T
    floatX = N * C + (0 if r >= 2 else 2 * L * N * C)  # encoded, ln1 and ln2
    floatX += L * N * (3 * C + C + C + 4 * C + C) + N * C  # qkvr, atty, residual2, fch, residual3; lnf
    floatX += (L if r == 0 else 1) * N * 4 * C  # fch_gelu
    floatX += N * max(3 * C, NH * T, Vp) + N * 4 * C + N * C  # output; scratch_bt4c and scratch_btc
    floats = 4 * L * N + L * N * NH + 2 * N + N  # means and deviations, att of cuDNN, lnf's, losses
    assert held(replace(LOGS["A800"], recompute=recompute)) == 2 * floatX + 4 * floats


@st.composite
def shapes(draw) -> GPTConfig:
    H = draw(st.integers(1, 4))
    width = {"n_layer": draw(st.integers(1, 3)), "n_head": H, "n_embd": H * draw(st.sampled_from([4, 8, 16]))}
    T, V = draw(st.sampled_from([8, 16, 32])), draw(st.integers(5, 300))
    return GPTConfig(T, V, **width, bias=draw(st.booleans()), flash=draw(st.booleans()))


@settings(max_examples=25)
@given(shapes(), st.integers(1, 3))
def test_parameters_are_the_models_and_activations_what_autograd_saves(config, B):
    """float32, exactly, but for the ids that attention's mask and the positions bring, which are in the sum as well."""
    T = config.block_size
    model, idx = GPT(config), torch.zeros(2, B, T, dtype=torch.long)
    step = Step(config, B, T, "pytorch", config.flash)
    assert sum(split_params(step).values()) == sum(p.numel() for p in model.parameters())
    assert footprint(step)["parameters"] == sum(p.nbytes for p in model.parameters())
    found = saved_bytes(lambda: model(*idx), exclude=model.parameters())
    assert found == held(step) == memory_by_category(config, B, T)["activations"]


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("program, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_activations_under_autocast_are_what_autograd_saves(flash, program, dtype):
    config = GPTConfig(64, 512, n_layer=3, n_head=4, n_embd=64, flash=flash)
    model, idx = GPT(config), torch.zeros(2, 4, 64, dtype=torch.long)
    step = Step(config, 4, 64, f"pytorch-{program}", flash)
    with torch.autocast("cpu", dtype):
        found = saved_bytes(lambda: model(*idx), exclude=model.parameters())
    with cpus_softmax():
        assert found == held(step) + footprint(step)["casts"]


def cpus_softmax():
    """Autocast on a CPU leaves the softmax in 16 bits, where a GPU computes and keeps it in float32."""
    names = ("pytorch-bf16", "pytorch-fp16")
    return patch.dict(PROGRAMS, {name: replace(PROGRAMS[name], tables=1) for name in names})


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("program", ["pytorch", "pytorch-bf16", "pytorch-bf16-masters"])
def test_the_peak_of_forward_and_backward_is_activations_casts_and_the_losses_gradients(program, flash):
    """Weights and gradients are there already. What is above: buffers of a block's own backward, less than one block."""
    config = GPTConfig(64, 1024, n_layer=4, n_head=4, n_embd=64, flash=flash)
    model, idx = GPT(config), torch.zeros(2, 8, 64, dtype=torch.long)
    model = model.bfloat16() if "masters" in program else model
    step = Step(config, 8, 64, program, flash)

    def call():
        with torch.autocast("cpu", torch.bfloat16, enabled=program == "pytorch-bf16"):
            loss = model(*idx)[1]
        loss.backward()

    call()
    with cpus_softmax():
        by = footprint(step)
    formula = by["activations"] + by["loss"] + by.get("casts", 0) - idx.nbytes
    assert peak_memory(call, torch.device("cpu")) == pytest.approx(formula, rel=0.03)


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_peak_of_a_sharded_step_has_no_casts_and_what_is_gathered(precision, flash):
    """FSDP2 for real, as rank 0 of 8: above the sharded state come activations, loss, root and about two blocks."""
    config = GPTConfig(64, 4096, n_layer=3, n_head=4, n_embd=128, flash=flash)
    idx = torch.zeros(2, 4, 64, dtype=torch.long)
    with fake_ranks(8):
        model = shard(GPT(config), precision=precision)

        def call():
            model(*idx)[1].backward()

        call()
        found = peak_memory(call, torch.device("cpu"))
    program = f"pytorch-{precision}".removesuffix("-float32")
    by = footprint(Step(config, 4, 64, program, flash, dp=8, shard=3))
    assert "casts" not in by
    formula = by["activations"] + by["loss"] + by["gathered"]
    assert found <= formula + idx.nbytes and found == pytest.approx(formula, rel=0.08)


def test_recomputing_a_block_keeps_its_input_alone():
    config = GPTConfig(64, 512, n_layer=3, n_head=4, n_embd=64)
    model, idx = GPT(config), torch.zeros(2, 4, 64, dtype=torch.long)
    recompute_blocks(model)
    found = saved_bytes(lambda: model(*idx), exclude=model.parameters())
    step = Step(config, 4, 64, "pytorch", recompute="block")
    residual3 = 4 * 4 * 64 * 64
    one_block = sum(n * width for n, width in block_tensors(step).values()) - residual3
    assert found == held(step) - one_block, "which is there only in backward, one at a time"


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
    assert largest_batch(step, 1) == 0, "not even the states fit"


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("n", [2, 1024])
def test_sharding_divides_exactly_what_its_stage_says(stage, n):
    divided = {"moments", "masters", *["gradients", "parameters"][: stage - 1]}
    whole, parts = (states(Step(PADDED, program="megatron", dp=n, shard=s)) for s in (0, stage))
    for name, (numbers, width, _) in whole.items():
        assert parts[name] == (numbers, width, n if name in divided else 1)
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


def test_a_pipelines_stages_have_fewer_layers_and_as_many_micro_batches_under_way_as_follow():
    whole = Step(PADDED, 1, program="megatron")
    first, last = (replace(whole, pp=4, accumulate=8, stage=stage) for stage in (0, 3))
    assert tensors(first)["fch"] == tensors(whole)["fch"], "a quarter of the layers, four micro-batches"
    assert tensors(last)["fch"][2] == 3, "the last stage has one micro-batch under way"
    assert tensors(replace(first, accumulate=2))["fch"][2] == 6, "no more than there are"
    assert footprint(first)["moments"] < footprint(whole)["moments"]
    every = [sum(split_params(replace(first, stage=stage)).values()) for stage in range(4)]
    assert sum(every) == num_params(PADDED) + PADDED.vocab_rows * PADDED.n_embd, "a second token table"


def test_the_last_stage_has_the_logits_and_counts_where_it_is_the_fuller_one():
    """Once the first stage alone was printed, which has neither: 42 rows on a T4, where the last one takes 15."""
    step = Step(PADDED, 8, program="pytorch-fp16", pp=2, accumulate=4)
    first, last = fullest_stages(step).values()
    assert tensors(first).keys() & {"logits", "lnf", "encoded"} == {"encoded"}
    assert "loss" not in footprint(first)
    assert {"logits", "lnf", "encoded"} < tensors(last).keys() and footprint(last)["loss"]
    assert fullest(step)[0] == "last stage"
    room = (MEMORY["T4"] - OVERHEAD) * MIB
    most = largest_batch(step, room)
    assert all(sum(footprint(replace(each, B=most)).values()) <= room for each in (first, last))
    assert sum(footprint(replace(last, B=most + 1)).values()) > room
    assert any("last stage" in line[0] for line in memory_lines(step, 15360))


PLANS = [
    Step(PADDED, 8, dp=8, shard=3),
    Step(PADDED, 8, 1024, "llm.c-2024-bf16", flash=False, dp=4, shard=2),
    Step(PADDED, 2, 1024, "megatron", recompute="block", tp=4, pp=3, accumulate=8, dp=8, shard=1),
    Step(PADDED, 8, 512, "pytorch-bf16-masters"),
]


@pytest.mark.parametrize("step", PLANS, ids=lambda step: step.program)
def test_a_formula_that_is_printed_computes_to_the_number_beside_it(step):
    """By a reader with a pocket calculator: words go, × and / stay."""
    full = fullest(step)[1]
    for what, text in formulas(full).items():
        if what in footprint(full) and what != "activations":
            sums = "".join(re.findall(r"[0-9×/]", text.replace(",", ""))).replace("×", "*")
            assert math.ceil(eval(sums)) == footprint(full)[what], f"{what}: {text}"
    lines = [line for line in memory_lines(step, 81920, 0.0, True) if len(line) == 3]
    listed = [float(line[1].split()[0].replace(",", "")) for line in lines if line[0] in tensors(full)]
    assert sum(listed) == pytest.approx(footprint(full)["activations"] / MIB, abs=0.05 * len(listed))


def test_every_data_sheet_has_its_memory():
    assert MEMORY.keys() == PEAKS.keys()
    assert all(12000 < mib < 200000 for mib in MEMORY.values())


@pytest.mark.parametrize(
    "dtype, recompute", [("float32", "none"), ("bf16", "block"), ("fp16", "none"), ("bf16-masters", "block")]
)
def test_the_dry_run_tells_the_planners_memory_in_the_runs_precision(dtype, recompute, capsys):
    again = str(recompute == "block").lower()
    said = [f"train.dtype={dtype}", "train.micro_batch=16", f"parallel.recompute={again}"]
    say_memory(GPT2, load_config("gpt2-124M", said))
    program = f"pytorch-{dtype}".removesuffix("-float32")
    total = sum(footprint(Step(GPT2, 16, 1024, program, recompute=recompute)).values())
    assert f"{total / 1e9:.3f} GB in {dtype}" in capsys.readouterr().out
