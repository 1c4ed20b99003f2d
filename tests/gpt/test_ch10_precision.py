"""Precision: formats bit by bit against NumPy and PyTorch, autocast's contexts, loss scaling against GradScaler."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course.figures.precision import in_memory
from nanogpt.drills.formats import FORMATS, Format, round_to, spacing, to_tf32
from nanogpt.gpt import precision as precision_module
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.precision import (
    PRECISIONS,
    LossScaler,
    MasterAdamW,
    autocast,
    best_precision,
    speedup,
    why_not,
)

CPU = torch.device("cpu")
SIXTEEN = {"float16": torch.float16, "bfloat16": torch.bfloat16}
EVERY_FORMAT = pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS.keys())
FLOATS = st.floats(width=32, allow_nan=False)
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


def test_tf32_of_another_dtype_is_refused_in_one_sentence():
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        with pytest.raises(TypeError, match=r"write x\.float\(\)"):
            to_tf32(torch.ones(3, dtype=dtype))


@pytest.mark.parametrize("name", ["tf32", "bfloat16"])
def test_rounding_errs_by_the_constant_of_the_chapter(name):
    """√(1 / (8 ln 2)) of eps / 2, as a root mean square of relative errors; 0.39 would be 8% off."""
    x = torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    error = ((round_to(x, FORMATS[name]).double() - x) / x).square().mean().sqrt().item()
    assert error / (FORMATS[name].eps / 2) == pytest.approx(math.sqrt(1 / (8 * math.log(2))), rel=0.01)


@given(FLOATS)
def test_tf32_keeps_ten_bits_and_the_nearest_of_both_neighbours(value):
    x = torch.tensor(value)
    y = to_tf32(x)
    if y.isfinite():
        assert y.view(torch.int32) & 0x1FFF == 0
        down = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
        up = ((x.view(torch.int32) & ~0x1FFF) + 0x2000).view(torch.float32)
        error = (y.double() - x.double()).abs()
        assert all(error <= (z.double() - x.double()).abs() for z in (down, up) if z.isfinite())


@pytest.mark.parametrize("value", [0.1, -1.0, 65504.0, 65520.0, 3e-8, -0.0, math.inf])
def test_the_picture_shows_the_bits_of_the_number_that_is_stored(value):
    for name, (bits, stored) in in_memory(value).items():
        form = FORMATS[name]
        assert stored == round_to(torch.tensor(value), form).item()
        sign, exponent = int(bits[0]), int(bits[1 : 1 + form.exponent], 2)
        mantissa = int(bits[1 + form.exponent :], 2)
        assert len(bits) == 1 + form.exponent + form.mantissa
        if math.isfinite(stored):
            size = (mantissa * form.eps + (exponent > 0)) * 2.0 ** (max(exponent, 1) - form.bias)
            assert math.copysign(size, -sign) == stored or size == stored == 0


def test_a_format_of_ones_own():
    fp8 = Format("e5m2", 5, 2)  # Micikevicius et al. 2022, table 1
    assert (fp8.max, fp8.tiny, fp8.smallest) == (57344, 2**-14, 2**-16)
    x = every_pattern(1_000_003)
    expected = x.to(torch.float8_e5m2).float()
    assert torch.equal(round_to(x, fp8), expected)


# Precisions


def model_and_batch():
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(TINY.vocab_size, (2, 9), generator=g)
    return GPT(TINY, g), ids[:, :-1], ids[:, 1:]


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["cpu", "cpu:0"])
def test_autocast_is_given_the_devices_type_never_its_index(precision, name):
    context = autocast(precision, torch.device(name))
    assert context.device == "cpu"
    model, x, y = model_and_batch()
    with context:
        logits, loss = model(x, y)
    assert logits.dtype == (PRECISIONS[precision] or torch.float32) and loss.dtype == torch.float32
    loss.backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())


def test_a_torch_device_itself_is_refused_by_autocast():
    with pytest.raises(ValueError, match="device_type"):
        torch.autocast(CPU)


def test_every_precision_sets_the_global_switch_and_none_leaves_it_on(monkeypatch):
    monkeypatch.setattr("nanogpt.gpt.precision.why_not", lambda precision, device: None)
    settings = []
    try:
        for precision in ("tf32", "float32", "tf32", "bf16"):
            autocast(precision, CPU)
            settings.append(torch.get_float32_matmul_precision())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert settings == ["high", "highest", "high", "highest"]


def test_what_a_cpu_cannot_do_is_said_in_one_sentence():
    assert [name for name in PRECISIONS if why_not(name, CPU)] == ["tf32"]
    with pytest.raises(ValueError, match="NVIDIA"):
        autocast("tf32", CPU)
    with pytest.raises(ValueError, match="choose one of float32, tf32, bf16, fp16, bf16-masters"):
        autocast("bfloat16", CPU)


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


# Loss scaling


def steps_with_grad_scaler(goods, scale, interval):
    """(scale, weight) after each step of torch.amp.GradScaler with gradients of 1, or of infinity or NaN."""
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for good in goods:
        weight.grad = scaler.scale(torch.tensor([1.0, good, 1.0]))
        scaler.step(optimizer)
        scaler.update()
        yield scaler.get_scale(), weight.tolist()


def steps_with_ours(goods, scale, interval):
    scaler = LossScaler(scale, interval)
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for good in goods:
        weight.grad = torch.tensor([1.0, good, 1.0]) * scaler.scale
        if finite := scaler.unscale([weight]):
            optimizer.step()
        scaler.update(finite)
        yield scaler.scale, weight.tolist()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([1.0, 1.0, 1.0, math.inf, -math.inf, math.nan]), max_size=40),
    st.integers(40, 100),
    st.integers(1, 5),
)
def test_the_scaler_decides_as_pytorchs_does(goods, exponent, interval):
    case = goods, 2.0**exponent, interval
    assert list(steps_with_ours(*case)) == list(steps_with_grad_scaler(*case))


def test_growth_stops_before_float32_overflows():
    case = [1.0] * 6, 2.0**125, 1
    assert list(steps_with_ours(*case)) == list(steps_with_grad_scaler(*case))


def test_bad_steps_without_end_are_an_error_not_silence():
    scaler = LossScaler(4.0)
    scaler.update(False)
    scaler.update(False)
    assert scaler.scale == 1
    with pytest.raises(FloatingPointError, match="even without loss scaling"):
        scaler.update(False)


def test_no_gradient_at_all_is_an_error():
    with pytest.raises(ValueError, match="backward"):
        LossScaler().unscale([torch.nn.Parameter(torch.ones(1))])


def test_parameters_without_gradient_do_not_matter():
    used, unused = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
    used.grad = torch.tensor([2.0**16])
    assert LossScaler().unscale(p for p in (used, unused)) and used.grad.item() == 1 and unused.grad is None


@pytest.mark.parametrize("bad", [0, 1])
def test_one_bad_number_in_any_parameter_spoils_the_step(bad):
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    for i, p in enumerate(parameters):
        p.grad = torch.tensor([1.0, math.nan if i == bad else 1.0])
    assert not LossScaler().unscale(parameters)


def test_scaling_by_a_power_of_two_changes_no_float32_gradient():
    plain, scaled = (model_and_batch()[0] for _ in range(2))
    _, x, y = model_and_batch()
    plain(x, y)[1].backward()
    scaler = LossScaler(2.0**12)
    (scaled(x, y)[1] * scaler.scale).backward()
    assert scaler.unscale(scaled.parameters())
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(plain.parameters(), scaled.parameters()))


def test_fp16_autocast_underflows_unscaled_and_not_scaled():
    """Gradients of a loss divided by 2^20, in real float16, against float32's."""
    model, x, y = model_and_batch()
    model(x, y)[1].backward()
    exact = [p.grad.clone() for p in model.parameters()]

    def error(scale):
        model.zero_grad()
        scaler = LossScaler(scale)
        with autocast("fp16", CPU):
            loss = model(x, y)[1]
        (loss * scaler.scale).backward()
        assert scaler.unscale(model.parameters())
        difference = sum((p.grad - e).square().sum() for p, e in zip(model.parameters(), exact))
        return (difference / sum(e.square().sum() for e in exact)).sqrt().item()

    assert error(2.0**10) < 0.01 < 0.3 < error(2.0**-20)


def test_a_scaler_goes_on_from_its_saved_state():
    scaler = LossScaler(2.0**10, 5)
    for finite in (True, True, False, True):
        scaler.update(finite)
    again = LossScaler()
    again.load_state_dict(scaler.state_dict())
    for finite in (True,) * 5:
        scaler.update(finite)
        again.update(finite)
        assert again == scaler


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
    try:
        with autocast(precision, torch.device("cuda:0")):
            product = (a.to(device) @ b.to(device)).double().cpu()
    finally:
        torch.set_float32_matmul_precision("highest")
    error = ((product - exact).norm() / exact.norm()).item()
    assert 0.1 < error / (FORMATS[name].eps / 2) < (10 if name == "float32" else 3)  # its sums round, too


# Which precision is the best here


@pytest.mark.parametrize("factor, best", [(4.0, "bf16"), (0.25, "float32")])
def test_a_cpu_that_emulates_bfloat16_trains_in_float32(monkeypatch, factor, best):
    rates = {"float32": 100.0, "bfloat16": 100.0 * factor}
    monkeypatch.setattr(precision_module, "matmul_flops", lambda device, name, n, repeats: rates[name])
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


# Float32 masters

OPTIONS = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def twins(seed=0):
    """Two equal networks of a few layers."""
    pair = []
    for _ in range(2):
        torch.manual_seed(seed)
        pair.append(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)))
    return pair


def give_gradients(models, step):
    """The same gradients for all, exact in bfloat16."""
    for model in models:
        g = torch.Generator().manual_seed(step)
        for p in model.parameters():
            p.grad = torch.randn(p.shape, generator=g).bfloat16().to(p.dtype)


def decayed(model):
    """Two groups, as for GPT-2: matrices decay, vectors do not."""
    return [
        {"params": [p for p in model.parameters() if p.dim() >= 2]},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0, "lr": 3e-3},
    ]


def test_masters_are_what_adamw_makes_of_float32_weights_also_under_a_schedule():
    ours, theirs = twins()
    optimizers = [MasterAdamW(decayed(ours), **OPTIONS), torch.optim.AdamW(decayed(theirs), **OPTIONS)]
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(o, 30) for o in optimizers]
    for step in range(30):
        give_gradients((ours, theirs), step)
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    assert all(p.grad is None for p in ours.parameters())
    for p, q in zip(ours.parameters(), theirs.parameters()):
        master = optimizers[0].state[p]["master"]
        assert master.dtype == torch.float32 and torch.allclose(master, q, atol=1e-6)
        assert p.dtype == torch.bfloat16 and torch.equal(p, master.bfloat16())


def test_small_updates_add_up_in_the_master_though_the_weight_cannot_show_them():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = MasterAdamW([weight], lr=1e-4, weight_decay=0.0)
    for _ in range(100):
        weight.grad = torch.ones(4, dtype=torch.bfloat16)
        optimizer.step()
    assert torch.allclose(optimizer.state[weight]["master"], torch.full((4,), 0.99), atol=1e-5)
    assert weight[0] == torch.tensor(0.99).bfloat16() < 1


def test_masters_resume_bit_for_bit(tmp_path):
    first, second = twins()
    optimizer = MasterAdamW(decayed(first), **OPTIONS)
    for step in range(5):
        give_gradients([first], step)
        optimizer.step()
    optimizer.param_groups[0]["lr"] = 5e-3
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    resumed = MasterAdamW(decayed(second), **OPTIONS)
    resumed.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
    for step in range(5, 10):
        assert all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters()))
        give_gradients((first, second), step)
        optimizer.step()
        resumed.step()
    for p, q in zip(first.parameters(), second.parameters()):
        for name, tensor in optimizer.state[p].items():
            assert tensor.dtype == torch.float32 and torch.equal(tensor, resumed.state[q][name]), name


def test_a_state_of_other_groups_is_refused():
    first, second = twins()
    state = MasterAdamW(decayed(first)).state_dict()
    with pytest.raises(ValueError, match="other parameter groups"):
        MasterAdamW(second.parameters()).load_state_dict(state)


def test_a_step_without_gradients_is_one_sentence():
    with pytest.raises(ValueError, match="no gradient"):
        MasterAdamW(twins()[0].parameters()).step()


def test_a_model_with_masters_trains():
    model, x, y = model_and_batch()
    optimizer = MasterAdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        with autocast("bf16-masters", CPU):
            loss = model(x, y)[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1
