"""Number formats bit by bit: what rounding to them does, as a definition for study.

Exported from notebooks/10_precision.ipynb.
"""

import math

import torch
from torch import Tensor


class Format:
    """A binary floating-point format with IEEE 754's rules for zero, subnormals, infinity and NaN."""

    def __init__(self, name: str, exponent: int, mantissa: int):
        self.name, self.exponent, self.mantissa = (
            name,
            exponent,
            mantissa,
        )  # bits; the leading 1 is not stored
        self.bias = 2 ** (exponent - 1) - 1
        self.eps = 2.0**-mantissa  # the distance from 1 to the next larger number
        self.max = (2 - self.eps) * 2.0**self.bias
        self.tiny = 2.0 ** (
            1 - self.bias
        )  # the smallest normal number: below it neighbours lie as close as here
        self.smallest = self.tiny * self.eps  # above zero


FORMATS = {
    "float32": Format("float32", 8, 23),
    "tf32": Format("tf32", 8, 10),  # NVIDIA A100 white paper, 2020: float32's range with float16's steps
    "bfloat16": Format("bfloat16", 8, 7),
    "float16": Format("float16", 5, 10),
}


def spacing(x: Tensor, form: Format) -> Tensor:
    """The distance between neighbours of `form` around each x, as float64 on the CPU."""
    exponent = torch.frexp(x.detach().cpu().double()).exponent - 1  # |x| = 1.… × 2^exponent
    exponent = exponent.clamp(min=1 - form.bias)
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float64), exponent - form.mantissa)


def round_to(x: Tensor, form: Format) -> Tensor:
    """Each x as the nearest number of `form`, ties to even, beyond the largest infinity; float32 on the CPU.

    The definition (IEEE 754-2019, §4.3.1), for study: `x.bfloat16()` and `x.half()` are the fast way.
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


def to_bits(x: float, form: Format) -> str:
    """The bits of x, rounded to `form`: sign, exponent and mantissa, as in "0 01111 0000000000"."""
    value = round_to(torch.tensor(x, dtype=torch.float64), form).item()
    if math.isfinite(value):
        steps = int(abs(value) / form.smallest)
        shift = max(steps.bit_length() - form.mantissa - 1, 0)
        pattern = (shift << form.mantissa) + (steps >> shift)  # the leading 1 carries into the exponent
    else:
        pattern = ((2**form.exponent - 1) << form.mantissa) + (math.isnan(value) << (form.mantissa - 1))
    bits = f"{pattern:0{form.exponent + form.mantissa}b}"
    sign = int(math.copysign(1, value) < 0)
    return f"{sign} {bits[: form.exponent]} {bits[form.exponent :]}"


def from_bits(bits: str, form: Format) -> float:
    """The number that bits as `to_bits` writes them stand for. Raises ValueError where the lengths do not fit."""
    parts = bits.split()
    if [len(part) for part in parts] != [1, form.exponent, form.mantissa] or set(bits) - set("01 "):
        raise ValueError(
            f"{bits!r} is not {form.name}: give 1, {form.exponent} and {form.mantissa} bits with spaces between"
        )
    sign, exponent, mantissa = (int(part, 2) for part in parts)
    if exponent == 2**form.exponent - 1:
        size = math.nan if mantissa else math.inf
    elif exponent == 0:
        size = mantissa * form.smallest
    else:
        size = (1 + mantissa * form.eps) * 2.0 ** (exponent - form.bias)
    return -size if sign else size
