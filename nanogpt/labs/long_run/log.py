"""The line of a step: on the screen, in metrics.jsonl, TensorBoard and wandb; and the run's results.

Exported from notebooks/17e_long_run.ipynb, grown by notebooks/17f_killed_run.ipynb,
notebooks/19c_fine_tuning_runs.ipynb and notebooks/20a_many_processes.ipynb.
"""

import json
import platform
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch
import yaml

import nanogpt
from nanogpt.config import Config, config_dict
from nanogpt.files import atomically
from nanogpt.labs.long_run.training import Training
from nanogpt.lora import lora_parameters
from nanogpt.metrics import span, step_line
from nanogpt.model import num_params
from nanogpt.roofline import mfu, peak_of, step_flops


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s by the GPU's data sheet, where there is one."""
    sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    rate = sheet and {"float32": sheet.float32, "tf32": sheet.tf32}.get(precision, sheet.half)
    return rate and 1e12 * rate


def pace(run: Training, seconds: float) -> dict:
    """Of a step that took so long: milliseconds, tokens a second, and MFU where the device's peak is known."""
    tokens, T = run.config.train.batch_tokens, run.config.model.block_size
    said = {"ms": 1000 * seconds, "tokens_per_s": tokens / seconds}
    if peak := peak_flops(run.device, run.config.train.dtype):
        said["mfu"] = mfu(step_flops(run.model.config, tokens // T, T) / run.ranks.size, seconds, peak)
    return said


def say(text: str, end: str = "\n") -> None:
    """Print a line; on a terminal in the place of a step's line that does not stay."""
    print(("\r\033[K" if sys.stdout.isatty() else "") + text, end=end, flush=True)


def keep_config(training: Training) -> None:
    """Write config.yaml into the run's folder: `train FOLDER` goes on with it."""
    with atomically(training.folder / "config.yaml") as file:
        file.write(yaml.safe_dump(config_dict(training.config), sort_keys=False).encode())


def introduce(training: Training) -> None:
    """One line: what is about to run, on what, and where it is kept."""
    c, train = training.config, training.config.train
    tokens = f"{train.max_steps:,} steps of {train.batch_tokens:,} tokens, {train.max_steps * train.batch_tokens:,} in all"
    what = f"{num_params(training.model.config):,} parameters in {train.dtype} on {training.device}"
    if adapters := lora_parameters(training.model):
        what = f"{sum(p.numel() for p in adapters.values()):,} in adapters beside {what}"
    began = f"goes on after step {training.step}" if training.step else "a new run"
    say(f"{c.run.dir}: {began}; {what}; {tokens}, from {c.data.mix or c.data.dir}")


def note_start(training: Training, command: str) -> None:
    """One more line in started.jsonl: with which software, and by which command, the run was begun or resumed."""
    git = ["git", "-C", str(Path(nanogpt.__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    git += ["--exclude=*"]  # the commit, no tag; with -dirty where files have been edited since
    commit = None  # where there is no git
    with suppress(OSError):
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    line = {"step": training.step, "time": time.strftime("%Y-%m-%d %H:%M:%S"), "torch": torch.__version__}
    line |= {"python": platform.python_version(), "commit": commit, "command": command}
    with open(training.folder / "started.jsonl", "a", encoding="utf-8") as file:
        print(json.dumps(line), file=file)


def report(training: Training) -> None:
    """Print the run's results, and how its time was spent."""
    total = sum(training.seconds.values())
    spent = ", ".join(f"{what} {s:.1f} s ({s / total:.1%})" for what, s in training.seconds.items())
    skipped = ", ".join(f"{n} {why}" for why, n in training.skipped.items()) or "none"
    print(f"{training.step} steps, {spent}; skipped: {skipped}")
    if training.best:
        print(f"best val loss {training.best['val_loss']:.6f} at step {training.best['step']}")
    place = training.folder / "best" if training.best else training.folder
    print(f"python -m nanogpt sample --checkpoint {shlex.quote(str(place))}")


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
    """Sends lines to wandb, which goes on with the run that was begun in this folder."""
    import wandb

    folder = Path(config.run.dir)
    file = folder / "wandb-id"  # not the folder's name: two runs may have the same
    if not file.exists():
        file.write_text(secrets.token_hex(4))
    options = {"id": file.read_text(), "name": folder.resolve().name, "resume": "allow"}
    wandb.init(project="nanogpt", dir=config.run.dir, config=config_dict(config), **options)
    return lambda line: wandb.log(numbers(line), step=line["step"])


def writers(config: Config, metrics, step: int) -> Iterator[Callable[[dict], object]]:
    """What is called with each step's line, from `step` on: for the screen, metrics.jsonl, TensorBoard, wandb."""
    options, steps, began = config.run, config.train.max_steps, time.monotonic()

    def show(line: dict) -> None:  # on a terminal every step, each in the place of the one before
        done, left = line["step"] - step, steps - line["step"]
        stays = not left or line["step"] % options.log_every == 0 or "val_loss" in line or "skipped" in line
        text = step_line(line, steps)
        if done and left:
            text += f" | {span(left * (time.monotonic() - began) / done)} left"
        if stays or sys.stdout.isatty():
            say(text, end="\n" if stays else "")

    def append(line: dict) -> None:
        metrics.write(json.dumps(line).encode() + b"\n")  # unbuffered: what is written survives the process

    yield from (show, append)
    if options.tensorboard:
        yield tensorboard(Path(options.dir), step)
    if options.wandb:
        yield wandb(config)
