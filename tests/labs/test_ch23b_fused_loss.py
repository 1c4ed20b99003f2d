"""Laws of the fused losses: PyTorch's loss and gradients, -100 does not count, little memory, no number from outside."""

import math
from functools import partial
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from course.figures.triton_here import watch
from nanogpt.labs.kernels.fused_loss import (
    CrossEntropy,
    chunked_loss,
    fused_head,
    one_pass_loss,
)
from nanogpt.labs.ladder.forecast import chunked_bytes, predict, predict_ladder, step_memory, work_seconds
from nanogpt.labs.ladder.rungs import make_step, obstacles, rungs_up_to
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.labs.roofline.memory import PAGE, peak_memory, saved_bytes
from nanogpt.labs.roofline.sheets import peak_of
from nanogpt.model import GPT, GPTConfig, next_token_loss, num_params

CPU = torch.device("cpu")
NEEDS_TRITON = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed here: pip install triton (Linux)"
)


def draw(N, V, dtype=torch.float64, device="cpu", scale=3.0):
    """Logits (N, V) and targets (N,); of three or more targets, the second does not count."""
    g = torch.Generator().manual_seed(N + V)
    logits, targets = scale * torch.randn(N, V, generator=g, dtype=dtype), torch.randint(V, (N,), generator=g)
    if N > 2:
        targets[1] = -100
    return logits.to(device).requires_grad_(), targets.to(device)


def head_inputs(N, V, C=4, dtype=torch.float64, device="cpu", scale=1.0):
    """The stream x (1, N, C) and lm_head's weight (V, C)."""
    g = torch.Generator().manual_seed(N)
    return [
        (scale * torch.randn(*shape, C, generator=g, dtype=dtype)).to(device).requires_grad_()
        for shape in ((1, N), (V,))
    ]


def models_loss(targets):
    """The loss of x and lm_head's weight with all logits at once."""
    return lambda x, weight: next_token_loss(x @ weight.T, targets[None])


def same(ours, theirs, tensors, tolerance):
    """Both give the same loss, and the same gradients of a multiple of it."""
    losses = ours(*tensors), theirs(*tensors)
    grads = [torch.autograd.grad(2.5 * loss, tensors) for loss in losses]
    torch.testing.assert_close(*losses, rtol=tolerance, atol=tolerance)
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 12), st.sampled_from([0.1, 300.0]))
def test_chunks_of_any_size_give_the_models_loss_and_gradients(T, V, rows, scale):
    targets = draw(T, V)[1]
    ours = partial(chunked_loss, targets=targets[None], rows=rows)
    same(ours, models_loss(targets), head_inputs(T, V, scale=scale), 1e-9 * max(1, scale**2))


def test_the_peak_of_chunks_does_not_grow_with_the_rows():
    def peak(N, rows):
        inputs, targets = head_inputs(N, 4096, C=8, dtype=torch.float32), torch.randint(4096, (1, N))
        return peak_memory(lambda: chunked_loss(*inputs, targets, rows).backward(), CPU)

    few, many, whole = peak(64, 32), peak(256, 32), peak(256, 256)
    assert many < 1.1 * few
    assert whole > 5 * many


def test_under_autocast_the_chunks_stay_in_float32():
    inputs, targets = head_inputs(6, 20, dtype=torch.float32), torch.randint(20, (6,))
    with torch.autocast("cpu", torch.bfloat16):
        loss = chunked_loss(*inputs, targets[None], 4)
    torch.testing.assert_close(loss, models_loss(targets)(*inputs))


def test_16_bit_gradients_of_the_weight_are_added_up_in_float32():
    """The exact sum, rounded once. Added in bfloat16, a chunk a row, the last of many terms are lost."""
    g = torch.Generator().manual_seed(0)
    x, weight = torch.rand(1, 200, 4, generator=g), torch.randn(6, 4, generator=g)
    targets = torch.randint(6, (1, 200), generator=g)
    half = [z.to(torch.bfloat16).requires_grad_() for z in (x, weight)]
    full = [z.detach().float().requires_grad_() for z in half]
    (ours,) = torch.autograd.grad(chunked_loss(*half, targets, 1), half[1])
    (theirs,) = torch.autograd.grad(models_loss(targets[0])(*full), full[1])
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), theirs, rtol=0.02, atol=1e-3)


# The head, and the rung

SMALL = GPTConfig(block_size=16, vocab_size=128, n_layer=1, n_head=2, n_embd=16)
WITHOUT_16_BITS = ["TF32", "bf16", "fp16", "compile", "bf16 weights", "fused loss"]


def learned(model, idx, targets):
    """The logits, and the loss with all gradients."""
    logits, loss = model(idx, targets)
    return logits, [loss, *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("way", ["chunked", pytest.param("in one pass, compiled", marks=NEEDS_TRITON)])
def test_a_model_with_the_fused_head_learns_the_same_and_answers_as_before(way):
    model, g = GPT(SMALL, torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
    idx, targets = torch.randint(128, (2, 3, 16), generator=g)
    logits, theirs = learned(model, idx, targets)
    model.head = partial(fused_head, model, loss=chunked_loss if way == "chunked" else one_pass_loss)
    if way != "chunked":
        model.compile(backend="aot_eager", fullgraph=True)
    none, ours = learned(model, idx, targets)
    assert none is None, "the logits are never there"
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert torch.equal(model(idx)[0], logits), "without targets the logits are what is asked for"


def test_the_rung_takes_the_steps_of_the_one_below():
    losses = {}
    for name in ("fused AdamW", "chunked loss"):
        model, step = make_step(SMALL, rungs_up_to(name, WITHOUT_16_BITS), 8, 16, CPU)
        losses[name] = torch.stack([step() for _ in range(6)])
        assert (model.head.__name__ == "head") if name != "chunked loss" else model.head.func is fused_head
    torch.testing.assert_close(*losses.values(), rtol=1e-4, atol=1e-4)
    assert losses["chunked loss"][0] - losses["chunked loss"][-1] > 0.005


@pytest.mark.parametrize(
    ("flops", "skip", "out"),
    [
        ({"float32": 1e11}, [], False),  # bfloat16 is emulated: skipped, and the rung stays
        ({"float32": 1e11, "bfloat16": 4e11}, [], True),
        ({"float32": 1e11, "bfloat16": 4e11}, ["bf16"], False),
        ({"float32": 1e11}, ["chunked loss"], True),
    ],
)
def test_the_rung_is_left_out_where_a_step_has_16_bits(flops, skip, out):
    reasons = obstacles(CPU, Roofline("cpu", flops, 2e10), skip)
    assert ("chunked loss" in reasons) == out, reasons


def test_the_forecast_of_the_rung_is_of_its_bytes():
    below, above = (rungs_up_to(name, WITHOUT_16_BITS) for name in ("fused AdamW", "chunked loss"))
    config, roof = GPTConfig(), Roofline("cpu", {"float32": 1e15}, 1e9)  # bytes decide
    change = [work_seconds(config, on, 4, 1024, roof)["cross-entropy"] for on in (below, above)]
    assert change[0] == pytest.approx(24 * 4096 * 50304 / 1e9), "six passes over the logits"
    assert change[1] == pytest.approx(16 * 63 * 50304 * 768 / 1e9), (
        "four over the weight, but for the first chunk"
    )
    assert chunked_bytes(config, 64) == 0 and chunked_bytes(config, 65) == 16 * 50257 * 768
    memory = [step_memory(config, on, 4, 1024) for on in (below, above)]
    assert memory[0] - memory[1] == 12 * 4096 * 50304 - 8 * (50304 + 4096) * 768, (
        "backward copies both gradients"
    )

    def pages(on, B, T) -> float:
        return predict(config, on - {"kept memory"}, B, T, roof, fault=1.0)["page faults"]

    saved = pages(below, 4, 1024) - pages(above, 4, 1024)
    assert saved == pytest.approx(4 * 4 * 4096 * 50304 / PAGE), "four tensors like the logits"
    assert pages(below, 1, 32) == pages(above, 1, 32), "logits below 32 MiB were no fresh pages"
    for gpu in ("T4", "A100-80GB"):
        assert "chunked loss" not in predict_ladder(peak_of(gpu), config, 16, 1024)


def test_the_loss_in_one_pass_moves_the_logits_twice_and_is_a_rung_on_gpus_with_bfloat16():
    ladder = predict_ladder(peak_of("H200"), GPTConfig(), 16, 1024)
    below, above = list(ladder.values())[-2:]
    assert list(ladder)[-1] == "fused loss" and "fused loss" not in predict_ladder(
        peak_of("T4"), GPTConfig(), 16, 1024
    )
    assert above["cross-entropy"] == pytest.approx(2 * 2 * 16384 * 50304 / (1e9 * peak_of("H200").bandwidth))
    assert {part for part in below if below[part] != above[part]} == {"cross-entropy"}
    memory = [
        step_memory(GPTConfig(), rungs_up_to(name, WITHOUT_16_BITS[2:3]), 16, 1024)
        for name in list(ladder)[-2:]
    ]
    assert memory[0] - memory[1] == 10 * 16384 * 50304


def test_the_memory_that_is_forecast_is_what_a_step_takes():
    config = GPTConfig(block_size=128, vocab_size=8192, n_layer=1, n_head=2, n_embd=64)
    saved = []
    for name in ("fused AdamW", "chunked loss"):
        on = rungs_up_to(name, [*WITHOUT_16_BITS, "kept memory"])
        model, step = make_step(config, on, 8, 128, CPU)
        step()
        model.zero_grad()
        saved.append((peak_memory(step, CPU), step_memory(config, on, 8, 128) - 12 * num_params(config)))
    (measured, forecast), (chunked, told) = saved
    assert forecast < 1.4 * measured and measured < 1.4 * forecast
    assert chunked < 0.4 * measured and told < 0.4 * forecast
    assert measured - chunked == pytest.approx(forecast - told, rel=0.3)


def kernels_are_pytorchs(logits, targets, tolerance):
    def ours(z):
        return CrossEntropy.apply(z, targets)

    same(ours, partial(F.cross_entropy, target=targets), [logits], tolerance)


@NEEDS_TRITON
class TestKernel:
    @pytest.mark.parametrize(("N", "V"), [(1, 1), (4, 8), (3, 13), (2, 1030)])
    def test_results_and_gradients_are_pytorchs(self, N, V):
        logits, targets = draw(N, V)
        with watch() as seen:
            kernels_are_pytorchs(logits, targets, 1e-9)
        assert seen.loaded and not seen.shared
        assert saved_bytes(lambda: CrossEntropy.apply(logits, targets), exclude=[logits, targets]) == 8 * N

    def test_float16_is_computed_in_float32(self):
        logits, targets = (z.detach() for z in draw(4, 9, torch.float32))
        half = logits.half().requires_grad_()
        loss = CrossEntropy.apply(half, targets)
        torch.testing.assert_close(loss, F.cross_entropy(half.float(), targets))
        assert loss.dtype == torch.float32 and torch.autograd.grad(loss, half)[0].dtype == torch.float16

    @pytest.mark.parametrize(("N", "V"), [(1, 1), (5, 13), (2, 1030)])
    def test_in_one_pass_loss_and_gradients_are_the_models(self, N, V):
        targets = draw(N, V)[1]
        with watch() as seen:
            ours = partial(one_pass_loss, targets=targets[None])
            same(ours, models_loss(targets), head_inputs(N, V), 1e-9)
        logits, counted = 8 * N * V, int((targets >= 0).sum())
        assert seen.loaded == 2 * logits + 8 * (N + counted)
        assert seen.stored == logits + 8 * N and not seen.shared


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("N", "V"), [(1, 1), (3, 13), (64, 50257)])
def test_on_a_gpu_both_are_pytorchs(N, V):
    logits, targets = draw(N, V, torch.float32, "cuda")
    kernels_are_pytorchs(logits, targets, 1e-4)
    inputs = head_inputs(N, V, C=64, dtype=torch.float32, device="cuda")
    for ours in (partial(chunked_loss, rows=16), one_pass_loss):
        same(partial(ours, targets=targets[None]), models_loss(targets), inputs, 1e-3 / math.sqrt(N))
