"""Number formats, and one word for how a run uses them: float32, tf32, bf16, fp16, bf16-masters.

Exported from notebooks/10_precision.ipynb.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Format:
    """A binary floating-point format with IEEE 754's rules for zero, subnormals, infinity and NaN."""

    name: str
    exponent: int  # bits
    mantissa: int  # bits that are stored; the leading 1 is not

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0**-self.mantissa

    @property
    def max(self) -> float:
        return (2 - self.eps) * 2.0**self.bias

    @property
    def tiny(self) -> float:
        """The smallest normal number. Below it the distance between neighbours stays what it is here."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest number above zero."""
        return self.tiny * self.eps


FORMATS = {
    form.name: form
    for form in (
        Format("float32", 8, 23),
        Format("tf32", 8, 10),  # NVIDIA A100 white paper, 2020: float32's range with float16's steps
        Format("bfloat16", 8, 7),
        Format("float16", 5, 10),
    )
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

    Hardware may truncate, or break ties otherwise. Infinity and NaN pass through.
    """
    bits = x.view(torch.int32)
    tie = (bits >> 13) & 1  # 1 where the last bit that stays is odd
    rounded = (bits + 0x0FFF + tie) & ~0x1FFF
    return torch.where(x.isfinite(), rounded.view(torch.float32), x)


def encode(x: float, form: Format) -> str:
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


def decode(bits: str, form: Format) -> float:
    """The number that bits as `encode` writes them stand for. Raises ValueError where the lengths do not fit."""
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


PRECISIONS = {"float32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def why_not(precision: str, device: torch.device) -> str | None:
    """Why a device cannot train in this precision, in one sentence; None if it can. ValueError: no such precision."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}")
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    if precision == "tf32" and not nvidia:
        here = "an AMD GPU" if device.type == "cuda" else device.type
        return f"tf32 is a mode of NVIDIA's tensor cores, and this device is {here}; use float32"
    if precision in ("tf32", "bf16") and nvidia and torch.cuda.get_device_capability(device) < (8, 0):
        return f"{precision} needs an NVIDIA GPU of compute capability 8.0 (Ampere) or later; use fp16"
    return None


def forward_context(precision: str, device: torch.device) -> torch.autocast:
    """The context for a model's forward pass and loss. Backward belongs outside: it follows what forward did.

    Also turns the global TF32 switch on or off. fp16 needs a LossScaler. ValueError where the device cannot.
    """
    if reason := why_not(precision, device):
        raise ValueError(reason)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


@dataclass
class LossScaler:
    """Dynamic loss scaling for fp16 (Micikevicius et al. 2018, §3.2), with torch.amp.GradScaler's constants.

    A step is: (loss * scaler.scale).backward(); finite = scaler.unscale(model.parameters()); if finite, clip and
    optimizer.step(); scaler.update(finite). dataclasses.asdict() is its state.
    """

    scale: float = 2.0**16
    growth_interval: int = 2000
    good_steps: int = 0

    def unscale(self, parameters: Iterable[Tensor]) -> bool:
        """Divide the gradients by the scale, in place. False if any is infinite or NaN: then skip this update."""
        grads = [p.grad for p in parameters if p.grad is not None]
        if not grads:
            raise ValueError("no parameter has a gradient; call (loss * scaler.scale).backward() first")
        torch._foreach_mul_(grads, 1 / self.scale)
        return bool(torch.stack([g.isfinite().all() for g in grads]).all())  # the one wait for the device

    def update(self, finite: bool) -> None:
        """Halve the scale after a bad step; double it after growth_interval good ones in a row.

        Raises FloatingPointError where it would fall below 1: then it is not float16's range that is too short.
        """
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            if self.scale < 2:
                raise FloatingPointError(
                    "gradients are not finite even without loss scaling; look for NaN in the data or the weights, "
                    "or lower the learning rate"
                )
            self.scale /= 2
        elif self.good_steps == self.growth_interval:
            self.good_steps = 0
            if 2 * self.scale <= torch.finfo(torch.float32).max:
                self.scale *= 2
