"""Is this device's arithmetic right? A training step on it beside the CPU's."""

import math
import os
import sys

from course.package.remedies import not_there, remedy_for
from course.paths import CourseError

TOLERANCE = 1e-3  # one float32 step differs by about 1e-6 between devices, a wrong kernel by far more


def trusted_environment() -> dict[str, str]:
    """The environment for kernels: on a device whose arithmetic is wrong it says NANOGPT_DEVICE=cpu."""
    try:
        from nanogpt.device import pick_device

        chosen = pick_device()
        if chosen.type == "cpu" or disagreement(chosen) < TOLERANCE:
            return dict(os.environ)
    except ValueError as error:
        raise CourseError(f"{error}; unset NANOGPT_DEVICE") from None
    except Exception as error:  # a module of ours that is missing or does not import
        if not_there(str(error)):
            return dict(os.environ)
        if said := remedy_for(error):
            raise CourseError(said) from None
        raise
    said = f"course: a training step on {chosen} disagrees with the CPU's; staying on the CPU"
    print(said, file=sys.stderr)
    return os.environ | {"NANOGPT_DEVICE": "cpu"}


def disagreement(device) -> float:
    """Largest relative difference between a training step on `device` and on the CPU, not a number included.

    Some MPS releases computed wrong losses without any error, which no loss curve reveals by itself.
    """
    import torch

    pairs = zip(training_step(torch.device("cpu")), training_step(device))
    return max(abs(a - b) / abs(a) if math.isfinite(b) else math.inf for a, b in pairs)


def training_step(device) -> list[float]:
    """Loss, gradient norm and the loss after one step of a small GPT, from the same seed everywhere."""
    import torch

    from nanogpt.model import GPT, GPTConfig

    generator = torch.Generator().manual_seed(0)
    model = GPT(GPTConfig(block_size=32, vocab_size=97, n_layer=2, n_head=2, n_embd=32), generator).to(device)
    x, y = torch.randint(97, (2, 4, 32), generator=generator).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    _, before = model(x, y)
    before.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    optimizer.step()
    _, after = model(x, y)
    return [before.item(), norm.item(), after.item()]
