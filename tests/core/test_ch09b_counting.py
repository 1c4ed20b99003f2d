"""What a training step must compute, move and keep: predictions that the real step meets to the byte."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from nanogpt.labs.roofline import memory, work
from nanogpt.labs.roofline.clock import Roofline, Timing
from nanogpt.labs.roofline.memory import (
    PAGE,
    activation_bytes,
    fault_seconds,
    memory_by_category,
    saved_bytes,
)
from nanogpt.labs.roofline.work import PRODUCTS, Fractions, measure_fractions, predict_step, step_work
from nanogpt.model import GPT, GPTConfig, num_params, step_flops

CPU = torch.device("cpu")
TOY = GPTConfig(12, 101, n_layer=2, n_head=2, n_embd=24)
configs = st.builds(
    lambda heads, width, **rest: GPTConfig(block_size=12, n_head=heads, n_embd=heads * width, **rest),
    heads=st.integers(2, 3),
    width=st.integers(2, 8),
    vocab_size=st.integers(2, 70),
    n_layer=st.integers(1, 3),
    bias=st.booleans(),
    flash=st.booleans(),
)


def released(config):
    from tutor import released_model

    return released_model("09b")(config)


def batch(config, B, T):
    return torch.randint(config.vocab_size, (2, B, T), generator=torch.Generator().manual_seed(0))


@given(configs, st.integers(1, 3), st.integers(1, 12))
@settings(max_examples=8, deadline=None)
def test_flops_are_those_of_the_products_that_run(config, B, T):
    config = replace(config, flash=False)
    with FlopCounterMode(display=False) as counter:
        released(config)(*batch(config, B, T))[1].backward()
    assert counter.get_total_flops() == step_flops(config, B, T)
    work = step_work(config, B, T)
    assert sum(w.flops for w in work if w.part in PRODUCTS) == step_flops(config, B, T)
    assert len({(w.part, w.phase) for w in work}) == len(work)


class CountBytes(TorchDispatchMode):
    """Bytes of the float tensors that operations read and write; views and single numbers do not count."""

    def __init__(self, once=False):
        super().__init__()
        self.total, self.operations, self.once = 0, 0, once

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function.__name__.split(".")[0]
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        storages = {t.untyped_storage().data_ptr() for t in inputs}
        if self.once:  # a tensor read twice by one operation is read once; in-place results are written
            inputs = list({id(t): t for t in inputs}.values())
        elif not name.endswith("_") and any(t.untyped_storage().data_ptr() in storages for t in outputs):
            return result  # a view
        if name == "embedding":  # reads the rows that it returns, not the table
            inputs = outputs
        if name == "nll_loss_forward":  # picks one number a row
            return result
        if name == "nll_loss_backward":  # writes a table, and of its inputs reads ids only
            inputs = []
        counted = [t for t in (*inputs, *outputs) if t.is_floating_point() and t.numel() > 1]
        self.total += sum(t.numel() * t.element_size() for t in counted)
        self.operations += bool(counted)
        return result


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "manual"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize(("B", "T", "n_layer"), [(2, 5, 1), (3, 12, 3)])
def test_bytes_are_those_of_the_operations_that_run(flash, bias, B, T, n_layer):
    config = GPTConfig(12, 101, n_layer=n_layer, n_head=2, n_embd=24, bias=bias, flash=flash)
    model, ids = released(config), batch(config, B, T)
    with CountBytes() as forward:
        loss = model(*ids)[1]
    with CountBytes() as backward:
        loss.backward()
    for phase, counted in [("forward", forward.total), ("backward", backward.total)]:
        assert sum(w.nbytes for w in step_work(config, B, T) if w.phase == phase) == counted, phase


def update_of(fused):
    (work,) = [w for w in step_work(TOY, 2, 4, fused=fused) if w.phase == "update"]
    return work


def test_the_default_update_moves_what_its_eight_operations_read_and_write():
    """Each array counts once an operation; the tensors are separate, so that nothing is shared between operations."""
    model = GPT(TOY)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):  # the first step makes the moments
        model(*batch(TOY, 2, 4))[1].backward()
        with CountBytes(once=True) as counted:
            optimizer.step()
        optimizer.zero_grad()
    assert counted.total == update_of(fused=False).nbytes == 80 * num_params(TOY)
    assert counted.operations == 8 * len(list(model.parameters()))


def test_a_fused_update_reads_every_number_and_rewrites_all_but_gradients():
    model = GPT(TOY)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(*batch(TOY, 2, 4))[1].backward()
    optimizer.step()
    moments = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
    rewritten = sum(t.nbytes for t in (*model.parameters(), *moments))
    assert update_of(fused=True).nbytes == 2 * rewritten + sum(p.grad.nbytes for p in model.parameters())


class Counted:
    """A number that counts the operations it takes part in."""

    operations = 0

    def _count(self, *_):
        Counted.operations += 1
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _count
    exp = tanh = sqrt = larger = _count


def layer_norm_forward(x, mean, rstd, gain, bias, total):
    total + x  # the mean's sum
    centred = x - mean
    total + centred * centred
    return centred * rstd * gain + bias


def layer_norm_backward(x, mean, rstd, gain, dy, total):
    normal = (x - mean) * rstd
    total + dy * normal, total + dy  # the gradients of gain and bias
    g = dy * gain
    total + g, total + g * normal  # two sums along the row, `total` here
    return (g - (normal * total + total)) * rstd


def gelu_forward(x, c, k):
    return 0.5 * x * (1 + (c * (x + k * (x * x * x))).tanh())


def gelu_backward(x, c, k, dy):
    square = x * x
    t = (c * (x + k * (square * x))).tanh()
    inner = c + k * square  # with 3ck in place of k
    half = x * 0.5
    return dy * ((t + 1) * 0.5 + half * ((1 - t * t) * inner))


def cross_entropy_forward(x, total):
    total.larger(x)
    shifted = x - total
    total + shifted.exp()
    return shifted - total


def cross_entropy_backward(logp, dy, total):
    return dy - logp.exp() * total


def adamw(p, g, m, v, decay, b1, b2, correction, eps, rate):
    p = p * decay
    m = m + b1 * (g - m)
    v = v * b2 + b1 * g * g
    return p - rate * m / (v.sqrt() / correction + eps)


@pytest.mark.parametrize(
    "part, phase, formula, per",
    [
        ("layer norm", "forward", layer_norm_forward, 5 * 48),  # 2 blocks: 5 of them; C = 24, N = 2
        ("layer norm", "backward", layer_norm_backward, 5 * 48),
        ("gelu", "forward", gelu_forward, 2 * 4 * 48),
        ("gelu", "backward", gelu_backward, 2 * 4 * 48),
        ("cross-entropy", "forward", cross_entropy_forward, 2 * 101),
        ("cross-entropy", "backward", cross_entropy_backward, 2 * 101),
        ("optimizer", "update", adamw, num_params(TOY)),
    ],
)
def test_flops_of_elementwise_parts_are_the_operations_of_their_formulas(part, phase, formula, per):
    Counted.operations = 0
    formula(*(Counted() for _ in range(formula.__code__.co_argcount)))
    (work,) = [w for w in step_work(TOY, 1, 2) if (w.part, w.phase) == (part, phase)]
    assert work.flops == Counted.operations * per


def test_autocast_halves_the_bytes_of_products_only():
    wide, narrow = (step_work(GPTConfig(), 4, 64, width) for width in (4, 2))
    for w, n in zip(wide, narrow):
        halved = w.part in PRODUCTS or w.part == "gelu"
        assert (w.part, w.phase, w.flops) == (n.part, n.phase, n.flops)
        assert w.nbytes == n.nbytes * (2 if halved else 1)


@given(configs, st.integers(1, 3), st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_activations_are_predicted_to_the_byte(config, B, T):
    model, ids = GPT(config), batch(config, B, T)
    assert saved_bytes(lambda: model(*ids), model.parameters()) == activation_bytes(config, B, T)


@given(configs)
@settings(max_examples=10, deadline=None)
def test_parameters_gradients_and_optimizer_are_predicted_to_the_byte(config):
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters())
    model(*batch(config, 2, 4))[1].backward()
    optimizer.step()
    predicted = memory_by_category(config, 2, 4)
    assert sum(p.nbytes for p in model.parameters()) == predicted["parameters"]
    assert sum(p.grad.nbytes for p in model.parameters()) == predicted["gradients"]
    states = [t for state in optimizer.state.values() for t in state.values()]
    assert sum(t.nbytes for t in states) == predicted["optimizer"]


def test_a_storage_saved_twice_counts_once():
    with pytest.raises(ValueError, match="dropout"):  # whose masks are not counted
        activation_bytes(GPTConfig(dropout=0.1), 1, 8)
    x = torch.randn(100, requires_grad=True)
    y = x.exp()  # saves its result
    assert saved_bytes(lambda: y * y.view(10, 10).view(100)) == 400  # twice the same memory
    assert saved_bytes(lambda: y * x) == 800
    assert saved_bytes(lambda: y * x, exclude=[x]) == 400
    assert saved_bytes(lambda: y + x) == 0, "a sum saves nothing"

    def forgetful():
        for _ in range(5):
            (x * torch.randn(100)).sum()  # freed: the next one may lie at its address

    assert saved_bytes(forgetful, exclude=[x]) == 5 * 400


def test_the_roofline_s_two_limits():
    config = GPTConfig()
    compute = Roofline("no memory wall", {"float32": 1e12, "bfloat16": 4e12}, float("inf"))
    memory = Roofline("no arithmetic wall", {"float32": float("inf"), "bfloat16": float("inf")}, 1e9)
    work = {(w.part, w.phase): w for w in step_work(config, 4, 64)}
    for key, seconds in predict_step(config, 4, 64, compute).items():
        assert seconds == work[key].flops / 1e12
    for key, seconds in predict_step(config, 4, 64, memory).items():
        assert seconds == work[key].nbytes / 1e9
    narrow = {(w.part, w.phase): w.nbytes for w in step_work(config, 4, 64, width=2)}
    for key, seconds in predict_step(config, 4, 64, memory, "bfloat16").items():
        assert seconds == narrow[key] / 1e9
    half = predict_step(config, 4, 64, compute, "bfloat16")
    for key, w in work.items():
        assert half[key] == w.flops / (4e12 if w.part in PRODUCTS else 1e12)


# What real kernels reach


def lasting(seconds: float) -> Timing:
    return Timing(seconds, seconds, seconds, (seconds,))


def test_kernels_that_reach_a_share_of_both_limits_have_these_fractions(monkeypatch):
    """Each kernel takes as long as a machine allows of which products reach 3/4 and the others 1/2."""
    machine = Roofline("cpu", {"float32": 64.0}, 8.0)
    kernels = work.step_kernels(TOY, 10, CPU, torch.float32)
    seconds = {call: n / (48.0 if part in PRODUCTS else 4.0) for part, (call, n) in kernels.items()}
    monkeypatch.setattr(work, "step_kernels", lambda *_: kernels)
    monkeypatch.setattr(work, "measure", lambda call, device, repeats: lasting(seconds[call]))
    assert measure_fractions(TOY, 2, 5, machine, CPU) == pytest.approx((0.75, 0.5))
    assert Fractions(0.75, 0.5).of(machine) == Roofline("cpu", {"float32": 48.0}, 4.0)


def test_a_part_weighs_as_much_as_it_has_to_do(monkeypatch):
    """Only the head's products are slow, by ten: the fraction falls by the head's share of the FLOPs."""
    config, machine = GPTConfig(), Roofline("cpu", {"float32": 1.0}, 1.0)
    names = ("qkv", "proj", "mlp", "head", "gelu")
    seconds = dict.fromkeys(names, 1.0) | {"head": 10.0}
    monkeypatch.setattr(work, "step_kernels", lambda *_: {part: (part, 1) for part in names})
    monkeypatch.setattr(work, "measure", lambda part, device, repeats: lasting(seconds[part]))
    flops = {part: sum(w.flops for w in step_work(config, 4, 64) if w.part == part) for part in names[:4]}
    share = flops["head"] / sum(flops.values())
    assert measure_fractions(config, 4, 64, machine, CPU) == pytest.approx((1 / (1 + 9 * share), 1.0))


def test_the_kernels_do_what_they_say_and_draw_no_global_random_number():
    torch.manual_seed(0)
    expected = torch.randn(3, generator=torch.Generator().manual_seed(0))
    kernels = work.step_kernels(TOY, 6, CPU, torch.float32)
    assert torch.equal(torch.randn(3), expected)
    for part, (call, amount) in kernels.items():
        with CountBytes() as moved, FlopCounterMode(display=False) as counter:
            call()
        if part in PRODUCTS:
            assert counter.get_total_flops() == amount, part
        # a layer norm also writes two numbers a row, and an update in place is a view here
        elif part not in ("layer norm", "optimizer"):
            assert moved.total == amount, part


def test_the_kernels_of_a_step_in_tf32_read_it_and_the_switch_is_left_alone(monkeypatch):
    seen = set()

    def fake(call, device, repeats):
        seen.add(torch.get_float32_matmul_precision())
        return lasting(1.0)

    monkeypatch.setattr(work, "measure", fake)
    measure_fractions(TOY, 1, 4, Roofline("cpu", {"tf32": 1.0}, 1.0), CPU, "tf32")
    assert seen == {"high"} and torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("fresh, old, cost", [(5.0, 1.0, 4.0), (1.0, 1.5, 0.0)])
def test_a_fresh_page_costs_what_filling_old_memory_does_not(monkeypatch, fresh, old, cost):
    """16 MiB are 2^24 bytes, and each page costs its share; a difference of noise is no negative cost."""
    times = iter([fresh, old])
    monkeypatch.setattr(memory, "measure", lambda *_: Timing(9.0, 9.0, 9.0, (9.0, next(times))))
    assert fault_seconds(16) == cost * PAGE / 2**24


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_activations_on_a_gpu_are_predicted_within_a_percent():
    config = GPTConfig(128, 512, n_layer=2, n_head=4, n_embd=256, flash=False)
    model, ids = GPT(config).cuda(), batch(config, 4, 128).cuda()
    saved = saved_bytes(lambda: model(*ids), model.parameters())
    assert saved == pytest.approx(activation_bytes(config, 4, 128), rel=0.01)
