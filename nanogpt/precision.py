"""Number formats, and one word for how a run uses them: float32, tf32, bf16, fp16, bf16-masters.

Exported from notebooks/10_precision.ipynb.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from nanogpt.roofline import matmul_flops, matmul_formats


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


# precision -> what autocast casts to, and the format that the products read
PRECISIONS = {
    "float32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16-masters": None,
}
READS = {
    "float32": "float32",
    "tf32": "tf32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "bf16-masters": "bfloat16",
}


def why_not(precision: str, device: torch.device) -> str | None:
    """Why a device cannot train in this precision, in one sentence; None if it can. ValueError: no such precision.

    That it can does not make it fast: see `speedup`.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}")
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    if precision == "tf32" and not nvidia:
        here = "an AMD GPU" if device.type == "cuda" else device.type
        return f"tf32 is a mode of NVIDIA's tensor cores, and this device is {here}; use float32"
    if nvidia and READS[precision] not in matmul_formats(device):
        return f"{precision} needs an NVIDIA GPU of compute capability 8.0 (Ampere) or later; use fp16"
    return None


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context for a model's forward pass and loss. Backward belongs outside: it follows what forward did.

    Also turns the global TF32 switch on or off. fp16 needs a LossScaler; bf16-masters casts nothing, since
    MasterAdamW has turned the weights to bfloat16. Raises ValueError where the device cannot.
    """
    if reason := why_not(precision, device):
        raise ValueError(reason)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


@cache
def speedup(precision: str, device: torch.device) -> float:
    """How many times float32's rate matrix products reach in a precision: measured, once a process.

    Well below 1 the format is emulated. Processor flags do not say it: libraries decide which instructions they use.
    """
    if reason := why_not(precision, device):
        raise ValueError(reason)
    n = 4096 if device.type == "cuda" else 256
    best = {"float32": 0.0, READS[precision]: 0.0}
    for _ in range(3):  # in turn, so that a disturbance meets both
        for name in best:
            best[name] = max(best[name], matmul_flops(device, name, n, repeats=3))
    return best[READS[precision]] / best["float32"]


def best_precision(device: torch.device) -> str:
    """bf16 where the device multiplies it faster than float32, else fp16 on a CUDA GPU, else float32."""
    if device.type == "cuda":
        return "fp16" if why_not("bf16", device) else "bf16"
    return "bf16" if device.type == "cpu" and speedup("bf16", device) > 1 else "float32"


@dataclass
class LossScaler:
    """Dynamic loss scaling for fp16 (Micikevicius et al. 2018, §3.2), with torch.amp.GradScaler's constants.

    A step is: (loss * scaler.scale).backward(); finite = scaler.unscale(model.parameters()); if finite, clip and
    optimizer.step(); scaler.update(finite).
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

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        if set(state) != set(vars(self)):
            raise ValueError(f"a scaler's state has {', '.join(vars(self))}; given: {', '.join(state)}")
        vars(self).update(state)


def adamw_update(weight, grad, master, m, v, rates, beta1: float, beta2: float, eps: float) -> None:
    """AdamW on the float32 master, rounded into the weight; in place (Loshchilov & Hutter 2019, algorithm 2).

    rates: lr / (1 - beta1^t), 1 / (1 - beta2^t) and 1 - lr * weight_decay, each a tensor of one number, so that a
    compiled update is not compiled again in every step.
    """
    step_size, correction, keep = rates
    grad = grad.float()
    m.lerp_(grad, 1 - beta1)
    v.lerp_(grad * grad, 1 - beta2)
    master.mul_(keep)
    master.sub_(step_size * m / ((v * correction).sqrt() + eps))
    weight.copy_(master)


class MasterAdamW(torch.optim.Optimizer):
    """AdamW that turns its parameters to bfloat16 and keeps float32 masters and moments of them.

    The weights of a group lie end to end in one tensor, of which the parameters are views: an update is one call, which
    `compiled=True` fuses. So make it after the model is on its device. Every parameter needs a gradient in every step.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, compiled=False):
        self.flat = []  # for each group: weight, master, m, v
        self.update = torch.compile(adamw_update) if compiled else adamw_update
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, steps=0))

    def add_param_group(self, group: dict) -> None:
        super().add_param_group(group)
        params = self.param_groups[-1]["params"]
        master = torch.cat([p.detach().float().flatten() for p in params])  # before rounding
        flat = master.bfloat16(), master, torch.zeros_like(master), torch.zeros_like(master)
        self.flat.append(flat)
        parts = zip(*(tensor.split([p.numel() for p in params]) for tensor in flat))
        for p, (weight, *kept) in zip(params, parts):
            p.data = weight.view_as(p)
            self.state[p] = {name: t.view_as(p) for name, t in zip(("master", "exp_avg", "exp_avg_sq"), kept)}

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every group. Returns the closure's loss, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, (weight, *kept) in zip(self.param_groups, self.flat):
            if any(p.grad is None for p in group["params"]):
                raise ValueError("MasterAdamW: a parameter has no gradient; call loss.backward() first")
            group["steps"] += 1
            grad = torch.cat([p.grad.flatten() for p in group["params"]])
            lr, (beta1, beta2), t = group["lr"], group["betas"], group["steps"]
            rates = lr / (1 - beta1**t), 1 / (1 - beta2**t), 1 - lr * group["weight_decay"]
            rates = [torch.full((), rate, device=grad.device) for rate in rates]
            self.update(weight, grad, *kept, rates, beta1, beta2, group["eps"])
        return loss

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """Masters, moments and options from `state_dict()`; the weights become the masters, rounded."""
        groups, saved = self.param_groups, state_dict["param_groups"]
        if [len(group["params"]) for group in groups] != [len(group["params"]) for group in saved]:
            raise ValueError(
                "MasterAdamW: the saved state belongs to other parameter groups than this optimizer's"
            )
        for group, other, (weight, master, *_) in zip(groups, saved, self.flat):
            for p, number in zip(group["params"], other["params"]):
                for name, tensor in self.state[p].items():
                    tensor.copy_(state_dict["state"][number][name])
            group.update({name: value for name, value in other.items() if name != "params"})
            weight.copy_(master)
