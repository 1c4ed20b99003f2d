"""The line of a step: on the screen, in metrics.jsonl, TensorBoard and wandb; and what a run came to.

Exported from notebooks/17c_long_run.ipynb.
"""

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from nanogpt.run.assemble import Training
from nanogpt.run.config import Config, config_dict
from nanogpt.run.metrics import step_line
from nanogpt.speed.roofline import peak_of


def writers(config: Config, metrics, step: int) -> Iterator[Callable[[dict], object]]:
    """What is called with each step's line, from `step` on: for the screen, metrics.jsonl, TensorBoard, wandb."""
    options, steps, live = config.run, config.train.max_steps, sys.stdout.isatty()

    def show(line: dict) -> None:  # on a terminal every step, each in the place of the one before
        stays = (
            line["step"] % options.log_every == 0
            or line["step"] == steps
            or "val_loss" in line
            or "skipped" in line
        )
        if stays or live:
            print(
                ("\r\033[K" if live else "") + step_line(line, steps), end="\n" if stays else "", flush=True
            )

    def append(line: dict) -> None:
        metrics.write(json.dumps(line).encode() + b"\n")  # unbuffered: what is written survives the process

    yield from (show, append)
    if options.tensorboard:
        yield tensorboard(Path(options.dir), step)
    if options.wandb:
        yield wandb(config)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s by the GPU's data sheet, where there is one."""
    sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    rate = sheet and {"float32": sheet.float32, "tf32": sheet.tf32}.get(precision, sheet.half)
    return rate and 1e12 * rate


def numbers(line: dict) -> dict:
    """What can be drawn."""
    return {key: value for key, value in line.items() if isinstance(value, int | float)}


def tensorboard(folder: Path, step: int) -> Callable[[dict], object]:
    """Writes lines for TensorBoard, which forgets what it had from `step` on."""
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(folder / "tensorboard", purge_step=step)

    def write(line: dict) -> None:
        for name, value in numbers(line).items():
            board.add_scalar(name, value, line["step"])
        board.flush()

    return write


def wandb(config: Config) -> Callable[[dict], object]:
    """Sends lines to wandb, which goes on with the run of this name."""
    import wandb

    name = Path(config.run.dir).resolve().name
    wandb.init(project="nanogpt", id=name, resume="allow", dir=config.run.dir, config=config_dict(config))
    return lambda line: wandb.log(numbers(line), step=line["step"])


def report(training: Training) -> None:
    """What the run came to, and what it spent its time on."""
    total = sum(training.seconds.values())
    spent = ", ".join(f"{what} {s:.1f} s ({s / total:.1%})" for what, s in training.seconds.items())
    skipped = ", ".join(f"{n} {why}" for why, n in training.skipped.items()) or "none"
    print(f"{training.step} steps, {spent}; skipped: {skipped}")
    if training.best:
        print(f"best val loss {training.best['val_loss']:.6f} at step {training.best['step']}")
    print(f"python -m nanogpt sample --checkpoint {shlex.quote(str(training.kept))}")
