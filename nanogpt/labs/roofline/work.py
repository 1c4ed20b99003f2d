"""What each part of a training step must compute and move, the time that a roofline allows it, and what real kernels reach.

Exported from notebooks/09b_counting.ipynb.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from nanogpt.labs.roofline.clock import Roofline, measure
from nanogpt.model import GPTConfig, num_params


@dataclass(frozen=True)
class Work:
    """What one part of a step must do in one phase, over all layers."""

    part: str
    phase: str  # forward, backward or update
    flops: int
    nbytes: int

    @property
    def intensity(self) -> float:
        """FLOP/byte, the roofline's horizontal axis."""
        return self.flops / self.nbytes


def linear_work(part: str, N: int, shapes: list[tuple[int, int]], copies: int, bias: bool, width: int):
    """Forward and backward of linear layers, (inputs, outputs) each, on N tokens. width: bytes of a number."""
    products = forward = backward = 0
    for inputs, outputs in shapes:
        x, w, y = N * inputs, inputs * outputs, N * outputs  # numbers in the tokens, the matrix, the result
        products += 2 * N * w
        forward += x + w + y
        backward += 2 * (x + w + y)
        if bias:
            forward += outputs
            backward += y + outputs
    return [
        Work(part, "forward", copies * products, copies * width * forward),
        Work(part, "backward", copies * 2 * products, copies * width * backward),
    ]


def attention_work(config: GPTConfig, B: int, T: int, width: int = 4) -> list[Work]:
    """softmax(qkᵀ)v of all layers, without the linear layers. Counts T × T products in full, as chapter 05 does."""
    NC, L = B * T * config.n_embd, config.n_layer
    if config.flash:  # backward gathers dq, dk, dv into one gradient
        rows = B * T * config.n_head
        forward, backward = 4 * NC + rows, 14 * NC + rows
    else:
        scores = B * config.n_head * T * T
        forward, backward = 12 * NC + 8 * scores, 20 * NC + 11 * scores
    flops = 4 * NC * T
    return [
        Work("attention", "forward", L * flops, L * width * forward),
        Work("attention", "backward", L * 2 * flops, L * width * backward),
    ]


def elementwise_work(config: GPTConfig, B: int, T: int, width: int = 4, fused: bool = False) -> list[Work]:
    """All of a step that is no matrix product, by part and phase. An exp, tanh or root counts as one operation."""
    C, L, V, N, P = config.n_embd, config.n_layer, config.vocab_rows, B * T, num_params(config)
    NC, TC, NV, VC, norms = N * C, T * C, N * V, V * C, 2 * L + 1
    affine = (1 + config.bias) * C
    look_up = 4 * NC + 3 * TC  # read and write both embeddings' rows; read both, write their sum
    tables = 2 * NC + 2 * TC + VC + config.block_size * C + 3 * VC  # the last: wte's gradient plus the head's
    table = [  # part, phase, FLOPs, numbers read and written, bytes of each
        ("embedding", "forward", NC, look_up, 4),
        ("embedding", "backward", NC + VC, tables, 4),
        ("layer norm", "forward", norms * 7 * NC, norms * (2 * NC + 2 * N + affine), 4),
        ("layer norm", "backward", norms * 13 * NC, norms * (3 * NC + 2 * N + 2 * affine), 4),
        ("residual", "forward", 2 * L * NC, 2 * L * 3 * NC, 4),
        ("residual", "backward", 2 * L * NC, 2 * L * 3 * NC, 4),
        ("gelu", "forward", 9 * L * 4 * NC, L * 2 * 4 * NC, width),
        ("gelu", "backward", 17 * L * 4 * NC, L * 3 * 4 * NC, width),
        ("cross-entropy", "forward", 5 * NV, 2 * NV, 4),
        ("cross-entropy", "backward", 3 * NV, 4 * NV, 4),
        ("optimizer", "update", 14 * P, (7 if fused else 20) * P, 4),
    ]
    return [Work(part, phase, flops, size * numbers) for part, phase, flops, numbers, size in table]


PRODUCTS = ("qkv", "attention", "proj", "mlp", "head")  # the parts that consist of matrix products


def step_work(config: GPTConfig, B: int, T: int, width: int = 4, fused: bool = False) -> list[Work]:
    """All work of an eager training step with AdamW, in pieces or fused, by part and phase; dropout 0.

    Every operation reads its inputs and writes its outputs once. `width`: bytes of a number in the parts that autocast
    (chapter 10) runs in 16 bits, which are PRODUCTS and gelu; all else has 4. Casts, ids and masks are not counted.
    """
    C, L, N, bias = config.n_embd, config.n_layer, B * T, config.bias
    return [
        *linear_work("qkv", N, [(C, 3 * C)], L, bias, width),
        *attention_work(config, B, T, width),
        *linear_work("proj", N, [(C, C)], L, bias, width),
        *linear_work("mlp", N, [(C, 4 * C), (4 * C, C)], L, bias, width),
        *linear_work("head", N, [(C, config.vocab_rows)], 1, False, width),
        *elementwise_work(config, B, T, width, fused),
    ]


def predict_step(
    config: GPTConfig, B: int, T: int, roofline: Roofline, dtype: str = "float32", fused: bool = False
) -> dict[tuple[str, str], float]:
    """(part, phase) -> seconds that the roofline allows for `step_work`. Their sum predicts the step.

    dtype names the roofline's rate for PRODUCTS; with a 16-bit one their numbers have two bytes.
    """
    width = 2 if dtype in ("bfloat16", "float16") else 4
    return {
        (w.part, w.phase): roofline.seconds(w.flops, w.nbytes, dtype if w.part in PRODUCTS else "float32")
        for w in step_work(config, B, T, width, fused)
    }


def step_kernels(config: GPTConfig, N: int, device, dtype: torch.dtype) -> dict[str, tuple[Callable, int]]:
    """{part: (a call that does such work on N tokens, its FLOPs if it is a product, else its bytes)}."""
    C, V, kernels = config.n_embd, config.vocab_rows, {}
    g = torch.Generator(device).manual_seed(0)

    def draw(*size):
        return torch.randn(size, device=device, generator=g)

    for part, i, o in (("qkv", C, 3 * C), ("proj", C, C), ("mlp", C, 4 * C), ("head", C, V)):
        x, w, dy = draw(N, i).to(dtype), draw(o, i).to(dtype), draw(N, o).to(dtype)
        kernels[part] = (lambda x=x, w=w, dy=dy: (F.linear(x, w), dy @ w, dy.T @ x)), 6 * N * i * o
    x, other, wide, logits, table = draw(N, C), draw(N, C), draw(N, 4 * C), draw(N, V), draw(V, C)
    kernels["layer norm"] = (lambda: F.layer_norm(x, (C,))), 4 * 2 * N * C
    kernels["residual"] = (lambda: x + other), 4 * 3 * N * C
    kernels["gelu"] = (lambda: F.gelu(wide, approximate="tanh")), 4 * 2 * N * 4 * C
    kernels["cross-entropy"] = (lambda: logits.log_softmax(-1)), 4 * 2 * N * V
    kernels["optimizer"] = (lambda: table.mul_(0.999)), 4 * 2 * V * C
    return kernels


class Fractions(NamedTuple):
    """What the kernels of a step reach: a share of a roofline's FLOP/s, and a share of its bytes/s."""

    flops: float
    bandwidth: float

    def of(self, roofline: Roofline) -> Roofline:
        """The roofline with both of its limits times their fractions."""
        flops = {name: self.flops * rate for name, rate in roofline.flops.items()}
        return Roofline(roofline.device, flops, self.bandwidth * roofline.bandwidth)


def measure_fractions(
    config: GPTConfig, B: int, T: int, roofline: Roofline, device, dtype: str = "float32", repeats: int = 10
) -> Fractions:
    """The fractions that the kernels of this step reach on `device`. dtype: what products read, as in the roofline.

    A kernel's rate is its work over the median of its times. What a part has to do says `step_work`, in float32; parts
    without a kernel do not count. For "tf32" the kernels read float32, and the switch is "high". Otherwise it is
    "highest", and afterwards it is as before.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        kernels = step_kernels(config, B * T, device, getattr(torch, dtype.replace("tf32", "float32")))
        rates = {part: n / measure(call, device, repeats).median for part, (call, n) in kernels.items()}
    finally:
        torch.set_float32_matmul_precision(before)
    amounts, seconds = Counter(), Counter()
    for w in step_work(config, B, T):
        if w.part in rates:
            kind, amount = ("flops", w.flops) if w.part in PRODUCTS else ("bytes", w.nbytes)
            amounts[kind] += amount
            seconds[kind] += amount / rates[w.part]
    flops, nbytes = (amounts[kind] / seconds[kind] for kind in ("flops", "bytes"))
    return Fractions(flops / roofline.flops[dtype], nbytes / roofline.bandwidth)
