"""The line of a step: on the screen, in metrics.jsonl, TensorBoard and wandb; z-scores.

Exported from notebooks/17_trainer.ipynb.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from nanogpt.config import Config, config_dict
from nanogpt.files import atomically
from nanogpt.runs import step_line


def repair(path: Path, step: int) -> None:
    """Of the lines of metrics.jsonl keep those before `step`, with which the run goes on; kill -9 may have torn the last."""
    lines, good = path.read_bytes().splitlines(keepends=True) if path.exists() else [], []
    with suppress(ValueError):
        for line in lines:
            if not line.endswith(b"\n") or json.loads(line)["step"] >= step:
                break
            good.append(line)
    if len(good) < len(lines):
        with atomically(path) as file:
            file.writelines(good)


def writers(config: Config, metrics, step: int) -> Iterator[Callable[[dict], object]]:
    """What is called with each step's line, from `step` on: for the screen, metrics.jsonl, TensorBoard, wandb."""
    run, steps, live = config.run, config.train.max_steps, sys.stdout.isatty()

    def show(line: dict) -> None:  # on a terminal every step, each in the place of the one before
        stays = (
            line["step"] % run.log_every == 0
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
    if run.tensorboard:
        yield tensorboard(Path(run.dir), step)
    if run.wandb:
        yield wandb(config)


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
