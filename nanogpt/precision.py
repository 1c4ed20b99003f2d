"""One word for how a run uses number formats: float32, tf32, bf16, fp16 or bf16-masters.

Exported from notebooks/10_precision.ipynb, grown by notebooks/10b_loss_scaling.ipynb and
notebooks/21_sharding.ipynb.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from nanogpt.device import matmul_formats
from nanogpt.optim import local_part


@contextmanager
def tf32_switch(on: bool) -> Iterator[None]:
    """Whether products of float32 matrices may read TF32 in this block, forward and backward; afterwards as before it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if on else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


PRECISIONS = {
    "float32": None,
    "tf32": None,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16-masters": None,
}
READS = {"bf16": "bfloat16", "fp16": "float16", "bf16-masters": "bfloat16"}  # what products read


def why_not(precision: str, device: torch.device) -> str | None:
    """Why a device cannot train in this precision, in one sentence; None if it can, even slowly."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r} is not known; choose one of {', '.join(PRECISIONS)}")
    nvidia = device.type == "cuda" and torch.version.cuda is not None
    if precision == "tf32" and not nvidia:
        return "tf32 is a mode of NVIDIA's tensor cores, which this device does not have; use float32"
    if nvidia and READS.get(precision, precision) not in matmul_formats(device):
        return f"{precision} needs an NVIDIA GPU of compute capability 8.0 (Ampere) or later; use fp16"
    return None


@contextmanager
def autocast(precision: str, device: torch.device) -> Iterator[None]:
    """The context for a model's forward pass and loss. Backward belongs outside, for tf32 in a tf32_switch of its own.

    fp16 needs a LossScaler; bf16-masters casts nothing, since MasterAdamW has turned the weights to bfloat16. Raises
    ValueError where the device cannot.
    """
    reason = why_not(precision, device)
    if reason:
        raise ValueError(reason)
    dtype = PRECISIONS[precision]
    with (
        tf32_switch(precision == "tf32"),
        torch.autocast(device.type, dtype=dtype, enabled=dtype is not None),
    ):
        yield


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
        return bool(torch.stack([g.isfinite().all() for g in grads]).all())

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
