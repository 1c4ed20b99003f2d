"""Precision: formats bit by bit against PyTorch, products on emulated hardware, autocast's contexts."""

import math

import pytest
import torch
from small_model import new_model, one_batch

from nanogpt.labs.drills.formats import FORMATS, Format, emulation, round_to, spacing, to_tf32
from nanogpt.labs.roofline import clock
from nanogpt.labs.roofline.clock import best_precision, speedup
from nanogpt.precision import PRECISIONS, autocast, why_not

CPU = torch.device("cpu")
SMALL = {  # each format, and PyTorch's type; e5m2: Micikevicius et al. 2022, table 1
    "float16": (FORMATS["float16"], torch.float16),
    "bfloat16": (FORMATS["bfloat16"], torch.bfloat16),
    "e5m2": (Format("e5m2", 5, 2), torch.float8_e5m2),
}

EVERY_FORMAT = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS.keys())


def every_pattern(step):
    """float32 numbers of every sign and exponent, infinity among them, and the neighbourhoods of powers of two."""
    patterns = torch.arange(-(2**31), 2**31, step)
    powers = torch.arange(0, 255).repeat_interleave(9) * 2**23 + torch.arange(-4, 5).repeat(255)
    bits = torch.cat([patterns, powers.clamp(min=0), powers.clamp(min=0) - 2**31])
    x = bits.to(torch.int32).view(torch.float32)
    return x[~x.isnan()]


# Formats


@pytest.mark.parametrize("name", SMALL)
def test_a_format_has_pytorchs_constants_and_rounds_every_kind_of_number_as_pytorch(name):
    form, dtype = SMALL[name]
    info, x = torch.finfo(dtype), every_pattern(65_521)
    assert (form.max, form.tiny, form.eps) == (info.max, info.tiny, info.eps)
    assert form.smallest == torch.tensor([1, 0], dtype=torch.uint8).view(dtype)[0].item()
    assert torch.equal(round_to(x, form), x.to(dtype).float())


def test_rounding_to_float32_changes_no_float32_and_rounds_a_float64_once():
    x = every_pattern(65_521)
    assert torch.equal(round_to(x, FORMATS["float32"]), x)
    y = torch.tensor([1 + 2.0**-24 + 2.0**-50, 1 + 2.0**-11 + 2.0**-40], dtype=torch.float64)
    assert round_to(y, FORMATS["float32"])[0] == 1 + 2.0**-23
    assert round_to(y, FORMATS["float16"])[1] == 1 + 2.0**-10  # by way of float32 it would be a tie, and 1


@EVERY_FORMAT
def test_rounding_is_idempotent_odd_monotone_and_errs_by_half_a_step(form):
    x = every_pattern(1_000_003).sort().values
    y = round_to(x, form)
    assert torch.equal(round_to(y, form), y) and torch.equal(round_to(-x, form), -y)
    assert (y.diff()[y.diff().isfinite()] >= 0).all()
    inside = x.abs() <= form.max
    assert ((y - x).double().abs() <= spacing(x, form) / 2)[inside].all()


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS.keys())
def test_nan_stays_nan_infinity_stays_infinite_and_zero_keeps_its_sign(form):
    y = round_to(torch.tensor([math.nan, math.inf, -math.inf, -0.0]), form)
    assert y[0].isnan() and y[1:3].tolist() == [math.inf, -math.inf] and y[3].signbit() and y[3] == 0


def test_tf32_trick_is_the_definition():
    x = every_pattern(65_521)
    assert torch.equal(to_tf32(x), round_to(x, FORMATS["tf32"]))
    nans = torch.tensor([0x7F800001, 0x7FC00000, 0x7FFFFFFF, -1, -0x7FFFFF], dtype=torch.int32)
    assert to_tf32(nans.view(torch.float32)).isnan().all()
    with pytest.raises(TypeError):  # whose bits lie otherwise
        to_tf32(x.double())


# Emulated hardware


@pytest.mark.parametrize("precision, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_an_emulated_product_is_pytorchs_in_this_format_forward_and_backward(precision, dtype):
    a, b = torch.randn(2, 24, 24, generator=torch.Generator().manual_seed(0))
    real = [t.to(dtype).requires_grad_() for t in (a, b)]
    (real[0] @ real[1]).float().sum().backward()
    ours = [t.to(dtype).float().requires_grad_() for t in (a, b)]
    with emulation(precision):
        y = ours[0] @ ours[1]
        y.sum().backward()
    eps = torch.finfo(dtype).eps
    assert torch.equal(y, y.to(dtype).float()), "the result is a number of the format"
    assert torch.allclose(y, (real[0] @ real[1]).float(), rtol=eps, atol=eps)
    for p, q in zip(ours, real):
        assert torch.allclose(p.grad, q.grad.float(), rtol=eps, atol=eps)


def test_a_tf32_product_rounds_what_it_reads_and_not_its_result():
    a, b = torch.randn(2, 24, 24, generator=torch.Generator().manual_seed(0))
    with emulation("tf32"):
        y = a @ b
    assert torch.equal(y, to_tf32(a) @ to_tf32(b)) and not torch.equal(y, to_tf32(y))


def test_bfloat16_weights_are_multiplied_exactly_and_the_result_is_rounded_once():
    layer, x = (
        torch.nn.Linear(24, 8),
        torch.randn(5, 24, generator=torch.Generator().manual_seed(0)).bfloat16(),
    )
    weight, bias = (p.detach().bfloat16().float() for p in layer.parameters())
    exact = torch.nn.functional.linear(x.float(), weight, bias)
    with emulation("bf16-masters"):
        y = layer.bfloat16()(x)
        y.sum().backward()
    assert torch.equal(y, exact.bfloat16())
    assert {t.dtype for t in (y, layer.weight.grad, layer.bias.grad)} == {torch.bfloat16}


# Precisions


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_autocast_is_given_the_devices_type_never_its_index(precision, name, monkeypatch):
    given, real = [], torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda kind, **how: given.append(kind) or real(kind, **how))
    with autocast(precision, torch.device(name)):
        logits, loss = new_model()(*one_batch())
    assert given == ["cpu"]
    assert logits.dtype == (PRECISIONS[precision] or torch.float32) and loss.dtype == torch.float32


def test_what_a_cpu_cannot_do_is_said_in_one_sentence():
    assert [name for name in PRECISIONS if why_not(name, CPU)] == ["tf32"]
    with pytest.raises(ValueError, match="bf16-masters"):
        autocast("bfloat16", CPU).__enter__()


@pytest.mark.parametrize(
    "capability, refused, best",
    [
        ((7, 5), {"tf32", "bf16", "bf16-masters"}, "fp16"),
        ((8, 0), set(), "bf16"),
    ],
)
def test_compute_capability_decides_on_nvidia(monkeypatch, capability, refused, best):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert {name for name in PRECISIONS if why_not(name, torch.device("cuda:0"))} == refused
    assert best_precision(torch.device("cuda:0")) == best


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_on_a_gpu_errs_as_its_format_says(precision):
    device = torch.device("cuda:0")
    if reason := why_not(precision, device):
        pytest.skip(reason)
    if precision == "bf16-masters":
        pytest.skip("its products are of bfloat16 weights, which autocast does not make")
    name = {"bf16": "bfloat16", "fp16": "float16"}.get(precision, precision)
    a, b = torch.randn(2, 256, 256, generator=torch.Generator().manual_seed(0))
    exact = a.double() @ b.double()
    with autocast(precision, device):
        product = (a.to(device) @ b.to(device)).double().cpu()
    error = ((product - exact).norm() / exact.norm()).item()
    assert 0.1 < error / (FORMATS[name].eps / 2) < (10 if name == "float32" else 3)  # its sums round, too


@pytest.mark.parametrize("factor, best", [(4.0, "bf16"), (0.25, "float32")])
def test_a_cpu_that_emulates_bfloat16_trains_in_float32(monkeypatch, factor, best):
    rates = {"float32": 100.0, "bfloat16": 100.0 * factor}
    monkeypatch.setattr(clock, "matmul_flops", lambda device, name, n, repeats: rates[name])
    speedup.cache_clear()
    try:
        assert speedup("bf16", CPU) == factor and best_precision(CPU) == best
    finally:
        speedup.cache_clear()
