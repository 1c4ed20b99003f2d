"""Number formats bit by bit: what rounding to them does, as a definition for study.

Exported from notebooks/10_precision.ipynb.
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Format:
    """A binary floating-point format with IEEE 754's rules for zero, subnormals, infinity and NaN."""

    def __init__(self, name: str, exponent: int, mantissa: int):
        self.name, self.exponent, self.mantissa = name, exponent, mantissa  # the leading 1 is not stored
        self.bias = 2 ** (exponent - 1) - 1
        self.eps = 2.0**-mantissa  # the distance from 1 to the next larger number
        self.max = (2 - self.eps) * 2.0**self.bias
        self.tiny = 2.0 ** (1 - self.bias)  # the smallest normal number; below it the distance stays the same
        self.smallest = self.tiny * self.eps  # above zero


FORMATS = {
    "float32": Format("float32", 8, 23),
    "tf32": Format("tf32", 8, 10),  # NVIDIA A100 white paper, 2020: float32's range with float16's steps
    "bfloat16": Format("bfloat16", 8, 7),
    "float16": Format("float16", 5, 10),
}


def spacing(x: Tensor, form: Format) -> Tensor:
    """The distance between neighbours of `form` around each x, as float64 on the CPU.

    At a power of two it is the distance to the larger neighbour. Below the smallest normal number, down to 0, it stays
    the same.
    """
    size = (
        x.detach().cpu().double().abs().clamp(min=form.tiny)
    )  # below it, and at 0, the distance stays the same
    exponent = torch.frexp(size).exponent - 1  # size = 1.… × 2^exponent
    return torch.ldexp(torch.ones_like(size), exponent - form.mantissa)


def round_to(x: Tensor, form: Format) -> Tensor:
    """Each x as the nearest number of `form` (IEEE 754-2019, §4.3.1), ties to even, as float32 on the CPU; slow.

    x may be float64 and is rounded once. Infinity and NaN stay what they are.
    """
    gap = spacing(x, form)
    y = torch.round(x.detach().cpu().double() / gap) * gap
    return torch.where(y.abs() > form.max, y * math.inf, y).float()


def to_tf32(x: Tensor) -> Tensor:
    """float32 x with its mantissa rounded to 10 bits, nearest, ties to even: a model of a TF32 product's input.

    Hardware may truncate, or break ties otherwise. Infinity and NaN pass through. TypeError for other dtypes.
    """
    if x.dtype != torch.float32:
        raise TypeError(f"to_tf32 reads float32, as a tensor core does; this is {x.dtype}: write x.float()")
    bits = x.view(torch.int32)
    tie = (bits >> 13) & 1  # 1 where the last bit that stays is odd
    rounded = (bits + 0x0FFF + tie) & ~0x1FFF
    return torch.where(x.isfinite(), rounded.view(torch.float32), x)


PRODUCTS = [getattr(torch.ops.aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm")]


class Emulated(TorchDispatchMode):
    """Every matrix product inside reads inputs changed by `read`, and its result is changed by `write`."""

    def __init__(self, read, write=lambda x: x):
        super().__init__()
        self.read, self.write = read, write

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in PRODUCTS:
            return func(*args, **(kwargs or {}))
        *first, a, b = args
        a, b = self.read(a), self.read(b)
        first = [x.to(a.dtype) for x in first]  # what is added to the product, such as a bias
        return self.write(func(*first, a, b, **(kwargs or {})))


def emulation(precision: str):
    """A context in which products behave as in this precision, on any device, forward and backward."""
    if precision == "float32":
        return nullcontext()
    if precision == "tf32":
        return Emulated(to_tf32)
    if precision == "bf16-masters":  # all tensors are bfloat16 already
        return Emulated(lambda x: x.float(), lambda x: x.bfloat16())
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]

    def cast(x):
        return x.to(dtype).float()

    return Emulated(cast, cast)
