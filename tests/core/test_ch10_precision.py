"""Precision: formats bit by bit against PyTorch, products on emulated hardware, autocast's contexts."""

import math

import pytest
import torch

from course.figures.precision import in_memory
from nanogpt.labs.drills.formats import FORMATS, Format, emulation, round_to, spacing, to_tf32
from nanogpt.labs.roofline import clock
from nanogpt.labs.roofline.clock import best_precision, speedup
from nanogpt.model import GPT, GPTConfig
from nanogpt.precision import PRECISIONS, autocast, why_not

CPU = torch.device("cpu")
SIXTEEN = {"float16": torch.float16, "bfloat16": torch.bfloat16}
EVERY_FORMAT = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS.keys())
TINY = GPTConfig(block_size=16, vocab_size=61, n_layer=1, n_head=2, n_embd=16)


def every_pattern(step):
    """float32 numbers of every sign and exponent, infinity among them, and the neighbourhoods of powers of two."""
    patterns = torch.arange(-(2**31), 2**31, step)
    powers = torch.arange(0, 255).repeat_interleave(9) * 2**23 + torch.arange(-4, 5).repeat(255)
    ties = torch.arange(0, 2**31, 2**19) + 0x1000  # halfway between two numbers of TF32
    bits = torch.cat([patterns, powers.clamp(min=0), powers.clamp(min=0) - 2**31, ties, ties - 2**31])
    x = bits.to(torch.int32).view(torch.float32)
    return x[~x.isnan()]


# Formats


@pytest.mark.parametrize("name", SIXTEEN)
def test_a_format_has_pytorchs_constants(name):
    form, info = FORMATS[name], torch.finfo(SIXTEEN[name])
    assert (form.max, form.tiny, form.eps) == (info.max, info.tiny, info.eps)
    assert form.smallest == torch.tensor([1], dtype=torch.int16).view(SIXTEEN[name]).item()


@pytest.mark.parametrize("name", SIXTEEN)
def test_rounding_is_pytorchs_for_every_kind_of_number(name):
    x = every_pattern(65_521)
    assert torch.equal(round_to(x, FORMATS[name]), x.to(SIXTEEN[name]).float())


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


@EVERY_FORMAT
def test_nan_stays_nan_infinity_stays_infinite_and_zero_keeps_its_sign(form):
    y = round_to(torch.tensor([math.nan, math.inf, -math.inf, -0.0]), form)
    assert y[0].isnan() and y[1:3].tolist() == [math.inf, -math.inf] and y[3].signbit() and y[3] == 0


def test_tf32_trick_is_the_definition():
    x = every_pattern(65_521)
    assert torch.equal(to_tf32(x), round_to(x, FORMATS["tf32"]))
    nans = torch.tensor([0x7F800001, 0x7FC00000, 0x7FFFFFFF, -1, -0x7FFFFF], dtype=torch.int32).view(
        torch.float32
    )
    assert nans.isnan().all() and to_tf32(nans).isnan().all()
    with pytest.raises(TypeError):  # whose bits lie otherwise
        to_tf32(x.double())


@pytest.mark.parametrize("name", ["tf32", "bfloat16"])
def test_rounding_errs_by_the_constant_of_the_chapter(name):
    """√(1 / (8 ln 2)) of eps / 2, as a root mean square of relative errors; 0.39 would be 8% off."""
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error = ((round_to(x, FORMATS[name]).double() - x) / x).square().mean().sqrt().item()
    assert error / (FORMATS[name].eps / 2) == pytest.approx(math.sqrt(1 / (8 * math.log(2))), rel=0.01)


@pytest.mark.parametrize("value", [0.1, -1.0, 65504.0, 65520.0, 3e-8, -0.0, math.inf])
def test_the_picture_shows_the_bits_of_the_number_that_is_stored(value):
    for name, (bits, stored) in in_memory(value).items():
        form = FORMATS[name]
        assert stored == round_to(torch.tensor(value), form).item()
        exponent, mantissa = int(bits[1 : 1 + form.exponent], 2), int(bits[1 + form.exponent :], 2)
        size = (mantissa * form.eps + (exponent > 0)) * 2.0 ** (max(exponent, 1) - form.bias)
        assert len(bits) == 1 + form.exponent + form.mantissa
        assert math.isinf(stored) or (-1) ** int(bits[0]) * size == stored


def test_a_format_of_ones_own():
    fp8 = Format("e5m2", 5, 2)  # Micikevicius et al. 2022, table 1
    assert (fp8.max, fp8.tiny, fp8.smallest) == (57344, 2**-14, 2**-16)
    x = every_pattern(1_000_003)
    expected = x.to(torch.float8_e5m2).float()
    assert torch.equal(round_to(x, fp8), expected)


# Emulated hardware


@pytest.mark.parametrize("precision, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_an_emulated_product_is_pytorchs_in_this_format_forward_and_backward(precision, dtype):
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 24, 24, generator=g)
    real = [t.to(dtype).requires_grad_() for t in (a, b)]
    (real[0] @ real[1]).float().sum().backward()
    ours = [t.to(dtype).float().requires_grad_() for t in (a, b)]
    with emulation(precision):
        y = ours[0] @ ours[1]
        y.sum().backward()
    eps = FORMATS["bfloat16" if dtype == torch.bfloat16 else "float16"].eps
    assert torch.equal(y, y.to(dtype).float()), "the result is a number of the format"
    assert torch.allclose(y, (real[0] @ real[1]).float(), rtol=eps, atol=eps)
    for p, q in zip(ours, real):
        assert torch.allclose(p.grad, q.grad.float(), rtol=eps, atol=eps)


def test_a_tf32_product_rounds_what_it_reads_and_not_its_result():
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 24, 24, generator=g)
    with emulation("tf32"):
        y = a @ b
    assert torch.equal(y, to_tf32(a) @ to_tf32(b)) and not torch.equal(y, to_tf32(y))


def test_bfloat16_weights_are_multiplied_exactly_and_the_result_is_rounded_once():
    g = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(24, 8)
    x = torch.randn(5, 24, generator=g).bfloat16()
    exact = torch.nn.functional.linear(
        x.float(), *(p.detach().bfloat16().float() for p in layer.parameters())
    )
    with emulation("bf16-masters"):
        y = layer.bfloat16()(x)
        y.sum().backward()
    assert torch.equal(y, exact.bfloat16())
    assert {t.dtype for t in (y, layer.weight.grad, layer.bias.grad)} == {torch.bfloat16}


def test_float32_is_not_emulated_and_other_words_are_refused():
    a = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    with emulation("float32"):
        assert torch.equal(a @ a, torch.mm(a, a))
    with pytest.raises(KeyError):
        emulation("bfloat16")


# Precisions


def model_and_batch():
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(TINY.vocab_size, (2, 9), generator=g)
    return GPT(TINY, g), ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_autocast_is_given_the_devices_type_never_its_index(precision, name, monkeypatch):
    given, real = [], torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda kind, **how: given.append(kind) or real(kind, **how))
    model, x, y = model_and_batch()
    with autocast(precision, torch.device(name)):
        logits, loss = model(x, y)
    assert given == ["cpu"]
    assert logits.dtype == (PRECISIONS[precision] or torch.float32) and loss.dtype == torch.float32
    loss.backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("found", ["highest", "high", "medium"])
def test_every_precision_sets_the_global_switch_and_leaves_it_as_found(found, monkeypatch):
    monkeypatch.setattr("nanogpt.precision.why_not", lambda precision, device: None)
    before, settings = torch.get_float32_matmul_precision(), []
    try:
        torch.set_float32_matmul_precision(found)
        for precision in ("tf32", "float32", "tf32", "bf16"):
            with autocast(precision, CPU):
                settings.append(torch.get_float32_matmul_precision())
            assert torch.get_float32_matmul_precision() == found
        with pytest.raises(ZeroDivisionError), autocast("tf32", CPU):
            1 / 0  # noqa: B018
        assert torch.get_float32_matmul_precision() == found
    finally:
        torch.set_float32_matmul_precision(before)
    assert settings == ["high", "highest", "high", "highest"]


def test_what_a_cpu_cannot_do_is_said_in_one_sentence():
    assert [name for name in PRECISIONS if why_not(name, CPU)] == ["tf32"]
    with pytest.raises(ValueError, match="NVIDIA"):
        autocast("tf32", CPU).__enter__()
    with pytest.raises(ValueError, match="bf16-masters"):
        autocast("bfloat16", CPU).__enter__()


@pytest.mark.parametrize(
    "capability, refused",
    [
        ((7, 0), {"tf32", "bf16", "bf16-masters"}),
        ((7, 5), {"tf32", "bf16", "bf16-masters"}),
        ((8, 0), set()),
        ((9, 0), set()),
    ],
)
def test_compute_capability_decides_on_nvidia(monkeypatch, capability, refused):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert {name for name in PRECISIONS if why_not(name, torch.device("cuda:0"))} == refused


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_on_a_gpu_errs_as_its_format_says(precision):
    device = torch.device("cuda")
    if reason := why_not(precision, device):
        pytest.skip(reason)
    if precision == "bf16-masters":
        pytest.skip("its products are of bfloat16 weights, which autocast does not make")
    name = {"bf16": "bfloat16", "fp16": "float16"}.get(precision, precision)
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 256, 256, generator=g)
    exact = a.double() @ b.double()
    with autocast(precision, torch.device("cuda:0")):
        product = (a.to(device) @ b.to(device)).double().cpu()
    error = ((product - exact).norm() / exact.norm()).item()
    assert 0.1 < error / (FORMATS[name].eps / 2) < (10 if name == "float32" else 3)  # its sums round, too


# Which precision is the best here


@pytest.mark.parametrize("factor, best", [(4.0, "bf16"), (0.25, "float32")])
def test_a_cpu_that_emulates_bfloat16_trains_in_float32(monkeypatch, factor, best):
    rates = {"float32": 100.0, "bfloat16": 100.0 * factor}
    monkeypatch.setattr(clock, "matmul_flops", lambda device, name, n, repeats: rates[name])
    speedup.cache_clear()
    try:
        assert speedup("bf16", CPU) == factor and best_precision(CPU) == best
    finally:
        speedup.cache_clear()


@pytest.mark.parametrize("capability, best", [((7, 5), "fp16"), ((8, 0), "bf16"), ((10, 0), "bf16")])
def test_a_gpu_trains_in_bfloat16_or_else_in_float16(monkeypatch, capability, best):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert best_precision(torch.device("cuda:0")) == best
