"""Laws of the fused losses: PyTorch's loss and gradients, -100 does not count, little memory, no number from outside."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt.labs.kernels.fused_loss import (
    CrossEntropy,
    chunked_loss,
    fused_head,
    loss_and_slope,
    loss_kernel,
    one_pass_loss,
    slope_kernel,
)
from nanogpt.labs.kernels.kernels import GUARD, guarded, interpret
from nanogpt.labs.ladder.forecast import chunked_bytes, predict, predict_ladder, step_memory, work_seconds
from nanogpt.labs.ladder.rungs import make_step, obstacles, rungs_up_to
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.labs.roofline.memory import PAGE, peak_memory, saved_bytes
from nanogpt.labs.roofline.sheets import peak_of
from nanogpt.model import GPT, GPTConfig, next_token_loss, num_params

CPU = torch.device("cpu")


def draw(N, V, dtype=torch.float64, device="cpu", scale=3.0):
    """Logits (N, V) and targets (N,); of three or more targets, the second does not count."""
    g = torch.Generator().manual_seed(N + V)
    logits, targets = scale * torch.randn(N, V, generator=g, dtype=dtype), torch.randint(V, (N,), generator=g)
    if N > 2:
        targets[1] = -100
    return logits.to(device).requires_grad_(), targets.to(device)


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
    g = torch.Generator().manual_seed(T)
    x, weight = (scale * torch.randn(*s, 4, generator=g, dtype=torch.float64) for s in ((1, T), (V,)))
    tensors = x.requires_grad_(), weight.requires_grad_()
    tolerance = 1e-9 * max(1, scale**2)
    same(
        lambda x, w: chunked_loss(x, w, targets[None], rows),
        lambda x, w: next_token_loss(x @ w.T, targets[None]),
        tensors,
        tolerance,
    )


def test_the_slope_is_written_over_the_logits_and_no_target_means_no_slope():
    logits, targets = draw(5, 7)
    memory = logits.detach().clone()
    loss, slope = loss_and_slope(memory, targets)
    assert slope.data_ptr() == memory.data_ptr()
    expected = F.cross_entropy(logits, targets, reduction="sum")
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(slope, torch.autograd.grad(expected, logits)[0])
    assert not slope[1].any()


def test_the_peak_of_chunks_does_not_grow_with_the_rows():
    def peak(N, rows):
        x, weight = (torch.randn(*s, 8).requires_grad_() for s in ((1, N), (4096,)))
        targets = torch.randint(4096, (1, N))
        return peak_memory(lambda: chunked_loss(x, weight, targets, rows).backward(), CPU)

    few, many, whole = peak(64, 32), peak(256, 32), peak(256, 256)
    assert many < 1.1 * few
    assert whole > 5 * many


def test_under_autocast_the_chunks_stay_in_float32():
    x, weight = torch.randn(1, 6, 8), torch.randn(20, 8)
    targets = torch.randint(20, (1, 6))
    with torch.autocast("cpu", torch.bfloat16):
        loss = chunked_loss(x, weight, targets, 4)
    torch.testing.assert_close(loss, next_token_loss(x @ weight.T, targets))


def test_16_bit_gradients_of_the_weight_are_added_up_in_float32():
    """The exact sum, rounded once. Added in bfloat16, a chunk a row, the last of many terms are lost."""
    g = torch.Generator().manual_seed(0)
    x, weight = torch.rand(1, 200, 4, generator=g), torch.randn(6, 4, generator=g)
    targets = torch.randint(6, (1, 200), generator=g)
    half = [z.to(torch.bfloat16).requires_grad_() for z in (x, weight)]
    ours = torch.autograd.grad(chunked_loss(*half, targets, 1), half[1])[0]
    full = half[1].detach().float().requires_grad_()
    theirs = torch.autograd.grad(next_token_loss(half[0].detach().float() @ full.T, targets), full)[0]
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), theirs, rtol=0.02, atol=1e-3)


# The head, and the rung

SMALL = GPTConfig(block_size=16, vocab_size=128, n_layer=1, n_head=2, n_embd=16)
WITHOUT_16_BITS = ["TF32", "bf16", "fp16", "compile", "bf16 weights", "fused loss"]


def test_a_model_with_the_fused_head_learns_the_same_and_answers_as_before():
    model, g = GPT(SMALL, torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
    idx, targets = torch.randint(128, (2, 3, 16), generator=g)
    logits, loss = model(idx, targets)
    theirs = torch.autograd.grad(loss, list(model.parameters()))
    model.head = partial(fused_head, model)
    none, chunked = model(idx, targets)
    ours = torch.autograd.grad(chunked, list(model.parameters()))
    assert none is None, "the logits are never there"
    for a, b in zip([chunked, *ours], [loss, *theirs], strict=True):
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
    if out:
        assert reasons["chunked loss"].startswith("left out" if skip else "it is for steps in float32")


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


class TestKernel:
    @pytest.fixture(autouse=True)
    def triton_here(self):
        pytest.importorskip("triton", reason="Triton is not installed here: pip install triton (Linux)")
        from course.figures import triton_here

        return triton_here

    @pytest.mark.parametrize(("N", "V"), [(1, 1), (4, 8), (3, 13), (2, 1030)])
    def test_results_and_gradients_are_pytorchs(self, triton_here, N, V):
        logits, targets = draw(N, V)
        with triton_here.watch() as seen:
            theirs = partial(F.cross_entropy, target=targets)
            same(lambda z: CrossEntropy.apply(z, targets), theirs, [logits], 1e-9)
        assert seen.loaded and not seen.shared
        assert saved_bytes(lambda: CrossEntropy.apply(logits, targets), exclude=[logits, targets]) == 8 * N

    def test_logits_of_hundreds_do_not_overflow(self):
        logits, targets = draw(3, 40, torch.float32, scale=300.0)
        same(lambda z: CrossEntropy.apply(z, targets), lambda z: F.cross_entropy(z, targets), [logits], 1e-5)

    def test_float16_is_computed_in_float32(self):
        logits, targets = (z.detach() for z in draw(4, 9, torch.float32))
        half = logits.half().requires_grad_()
        loss = CrossEntropy.apply(half, targets)
        torch.testing.assert_close(loss, F.cross_entropy(half.float(), targets))
        assert loss.dtype == torch.float32 and torch.autograd.grad(loss, half)[0].dtype == torch.float16

    @pytest.mark.parametrize(("N", "V"), [(1, 1), (5, 13), (2, 1030)])
    def test_in_one_pass_loss_and_gradients_are_the_models(self, triton_here, N, V):
        targets, g = draw(N, V)[1], torch.Generator().manual_seed(0)
        x, weight = (
            torch.randn(*s, 4, generator=g, dtype=torch.float64).requires_grad_() for s in ((1, N), (V,))
        )
        with triton_here.watch() as seen:
            ours = partial(one_pass_loss, targets=targets[None])
            same(ours, lambda x, w: next_token_loss(x @ w.T, targets[None]), [x, weight], 1e-9)
        logits, counted = 8 * N * V, int((targets >= 0).sum())
        assert (seen.loaded, seen.stored) == (
            2 * logits + 8 * (N + counted),
            logits + 8 * N,
        ) and not seen.shared

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            ("other=0.0)) - lse", "other=0.0)) - m"),
            ("cols == target, 1.0", "cols == target, 0.0"),
            ("tl.where(target >= 0, slope, 0.0)", "slope"),
            ("0.0), mask=cols < V)", "0.0))"),
        ],
    )
    def test_a_wrong_slope_is_found(self, triton_here, right, wrong):
        def error(kernel):
            logits, targets = (z.detach() for z in draw(5, 17, torch.float32))
            expected = torch.func.grad(lambda z: F.cross_entropy(z, targets, reduction="sum"))(logits)
            memory, inside = guarded(logits, fill=-7.0)
            interpret(kernel, (5,), inside, targets, torch.empty(5), 17, BLOCK=8)
            return (inside - expected).abs().max() > 1e-5 or (memory != -7.0).sum() != logits.numel()

        assert not error(slope_kernel) and error(triton_here.altered(slope_kernel, right, wrong))

    def test_a_compiled_model_with_the_loss_in_one_pass_learns_the_same(self):
        model, g = GPT(SMALL, torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
        idx, targets = torch.randint(128, (2, 3, 16), generator=g)
        theirs = torch.autograd.grad(model(idx, targets)[1], list(model.parameters()))
        model.head = partial(fused_head, model, loss=one_pass_loss)
        model.compile(backend="aot_eager", fullgraph=True)
        none, loss = model(idx, targets)
        assert none is None
        for a, b in zip(torch.autograd.grad(loss, list(model.parameters())), theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            ('V, other=-float("inf")', "V, other=0.0"),
            ("total * tl.exp(m - larger) +", "total +"),
            (", mask=target >= 0, other=0.0", ""),
            ("cols < V", "cols <= V"),
            ("range(0, V, BLOCK)", "range(0, V - 1, BLOCK)"),
            ("lse - right", "lse + right"),
        ],
    )
    def test_a_wrong_kernel_is_found(self, triton_here, right, wrong):
        assert self.error(triton_here, loss_kernel) is None
        assert self.error(triton_here, triton_here.altered(loss_kernel, right, wrong))

    @staticmethod
    def error(triton_here, kernel):
        """The chapter's check: PyTorch's losses for logits between guards of nan, and no byte too many."""
        N, V = 5, 17
        logits, targets = (z.detach() for z in draw(N, V, torch.float32))
        places = torch.full((N + 2 * GUARD,), -1)
        places[GUARD:-GUARD] = targets
        memory, loss = guarded(torch.zeros(N), fill=-7.0)
        with triton_here.watch() as seen:
            arguments = guarded(logits)[1], places[GUARD:-GUARD], loss, torch.empty(N), V
            interpret(kernel, (N,), *arguments, BLOCK=8)
        expected = F.cross_entropy(logits, targets, reduction="none")
        if not torch.allclose(loss, expected, rtol=1e-4, atol=1e-4):
            return "wrong losses"
        needed = 4 * N * V + 8 * N + 4 * int((targets >= 0).sum())
        outside = (memory != -7.0).sum() != N
        return None if seen.loaded == needed and not outside else "the wrong numbers"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("N", "V"), [(1, 1), (3, 13), (64, 50257)])
def test_on_a_gpu_both_are_pytorchs(N, V):
    logits, targets = draw(N, V, torch.float32, "cuda")
    same(lambda z: CrossEntropy.apply(z, targets), lambda z: F.cross_entropy(z, targets), [logits], 1e-4)
    x, weight = (torch.randn(*s, 64, device="cuda").requires_grad_() for s in ((1, N), (V,)))
    for ours in (partial(chunked_loss, rows=16), one_pass_loss):
        same(
            lambda x, w, ours=ours: ours(x, w, targets[None]),
            lambda x, w: next_token_loss(x @ w.T, targets[None]),
            [x, weight],
            1e-3 / math.sqrt(N),
        )
