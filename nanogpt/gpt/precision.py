"""One word for how a run uses number formats: float32, tf32, bf16, fp16 or bf16-masters.

Exported from notebooks/10_precision.ipynb, grown by notebooks/10b_loss_scaling.ipynb and
notebooks/21_sharding.ipynb.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch

from nanogpt.gpt.clip import local_part
from nanogpt.speed.roofline import matmul_flops, matmul_formats

PRECISIONS = {
    "float32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16-masters": None,
}
READS = {"bf16": "bfloat16", "fp16": "float16", "bf16-masters": "bfloat16"}  # what products read


def why_not(precision: str, device: torch.device) -> str | None:
    """Why a device cannot train in this precision, in one sentence; None if it can, even slowly (see `speedup`)."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}")
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    if precision == "tf32" and not nvidia:
        return "tf32 is a mode of NVIDIA's tensor cores, which this device does not have; use float32"
    if nvidia and READS.get(precision, precision) not in matmul_formats(device):
        return f"{precision} needs an NVIDIA GPU of compute capability 8.0 (Ampere) or later; use fp16"
    return None


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context for a model's forward pass and loss. Backward belongs outside: it follows what forward did.

    Also turns the global TF32 switch on or off. fp16 needs a LossScaler; bf16-masters casts nothing, since
    MasterAdamW has turned the weights to bfloat16. Raises ValueError where the device cannot.
    """
    reason = why_not(precision, device)
    if reason:
        raise ValueError(reason)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    dtype = PRECISIONS[precision]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


@cache
def speedup(precision: str, device: torch.device) -> float:
    """The rate of matrix products in a precision, divided by float32's; measured once in a process.

    Well below 1, the format is emulated. The processor's flags do not say so: libraries decide which instructions they use.
    """
    reason = why_not(precision, device)
    if reason:
        raise ValueError(reason)
    n = 4096 if device.type == "cuda" else 256
    name = READS.get(precision, precision)
    best = {"float32": 0.0, name: 0.0}
    for _ in range(3):  # in turn, so that a disturbance meets both
        best = {dtype: max(rate, matmul_flops(device, dtype, n, repeats=3)) for dtype, rate in best.items()}
    return best[name] / best["float32"]


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

    def unscale(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Divide the gradients by the scale, in place. False if any of this rank is not finite: then skip this update."""
        grads = [local_part(p.grad)[0] for p in parameters if p.grad is not None]
        if not grads:
            raise ValueError("no parameter has a gradient; call (loss * scaler.scale).backward() first")
        torch._foreach_mul_(grads, 1 / self.scale)
        return bool(torch.stack([g.isfinite().all() for g in grads]).all())  # the one wait for the device

    def update(self, finite: bool) -> None:
        """Halve the scale after a bad step, double it after growth_interval good ones; FloatingPointError below 1."""
        if finite:
            self.good_steps += 1
        else:
            self.good_steps = 0
            if self.scale < 2:
                what = "gradients are not finite even without loss scaling"
                raise FloatingPointError(
                    f"{what}; look for NaN in data or weights, or lower the learning rate"
                )
            self.scale /= 2
        if self.good_steps == self.growth_interval:
            self.good_steps = 0
            self.scale = min(2 * self.scale, 2.0**127)  # float32 ends at 2^128

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
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

    A group's weights become one tensor and its parameters views of that, so that an update is one call, which
    `compiled=True` fuses. Make it when the model is on its device; every step needs all gradients.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, compiled=False):
        self.flat = []  # for each group: weight, master, m, v
        self.update = torch.compile(adamw_update) if compiled else adamw_update
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, steps=0))

    def add_param_group(self, group: dict) -> None:
        super().add_param_group(group)
        params = self.param_groups[-1]["params"]
        master = torch.cat([p.detach().float().flatten() for p in params])  # before rounding
        self.flat.append((master.bfloat16(), master, torch.zeros_like(master), torch.zeros_like(master)))
        parts = zip(*(tensor.split([p.numel() for p in params]) for tensor in self.flat[-1]))
        for p, (weight, *kept) in zip(params, parts):
            p.data = weight.view_as(p)
            self.state[p] = {name: t.view_as(p) for name, t in zip(("master", "exp_avg", "exp_avg_sq"), kept)}

    @torch.no_grad()
    def step(self) -> None:
        """One update of every group."""
        for group, (weight, *kept) in zip(self.param_groups, self.flat):
            if any(p.grad is None for p in group["params"]):
                raise ValueError("MasterAdamW: a parameter has no gradient; call loss.backward() first")
            group["steps"] += 1
            grad = torch.cat([p.grad.flatten() for p in group["params"]])
            lr, (beta1, beta2), t = group["lr"], group["betas"], group["steps"]
            rates = lr / (1 - beta1**t), 1 / (1 - beta2**t), 1 - lr * group["weight_decay"]
            rates = [torch.full((), rate, device=grad.device) for rate in rates]
            self.update(weight, grad, *kept, rates, beta1, beta2, group["eps"])

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """Masters, moments and options from `state_dict()`; the weights become the masters, rounded."""
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in self.param_groups] != [len(group["params"]) for group in saved]:
            raise ValueError("MasterAdamW: the saved state belongs to other parameter groups than these")
        for group, other, (weight, master, *_) in zip(self.param_groups, saved, self.flat):
            for p, number in zip(group["params"], other["params"]):
                for name, tensor in self.state[p].items():
                    tensor.copy_(state_dict["state"][number][name])
            group.update({name: value for name, value in other.items() if name != "params"})
            weight.copy_(master)
