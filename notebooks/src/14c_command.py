# %% [markdown]
r"""
# 14c · The ladder as a command

This sitting is optional and short. It makes chapter 14b usable in a terminal: one command that measures the machine,
prints the forecast, climbs the ladder, and writes a JSON file and a picture. It teaches nothing new about speed. It
shows how the course's commands are made, and what a program must care about when it runs for minutes on a machine that
nobody is watching: wrong options are refused before anything is measured, and if memory runs out, the measurement
starts over with half the batch instead of ending in a traceback.
"""

# %%
#| default_exp speed.ladder
import tempfile

from course.notebook import checkpoint
from nanogpt.gpt.model import num_params
from nanogpt.speed.ladder import MODELS, measure_machine, staircase

# %%
#| export
import argparse
import importlib.util
import os
import shlex
from dataclasses import asdict
from pathlib import Path

import torch

from nanogpt.device import pick_device
from nanogpt.speed.climb import forecast, measure_rungs, reached_roofline
from nanogpt.speed.forecast import fitting_batch, say_predicted
from nanogpt.speed.roofline import Roofline
from nanogpt.speed.rungs import RUNGS, obstacles
from nanogpt.text.files import atomically, save_json

# %% [markdown]
r"""
## A command is two functions

Each command of this course is a module with two functions. `parser()` returns the options that the command has, as an
`ArgumentParser` of Python's standard library. `run(args)` gets the options that somebody typed, and does the work.
Chapter 17d writes the program that looks for the module by the command's name, calls the two functions, and turns an
error into one line and an exit code. So a command never prints a traceback for a mistake of its user: it raises an
error with one clear sentence, and the program prints this sentence.

The command of this sitting is called `ladder`. It knows two models:
"""

# %%
for name, config in MODELS.items():
    print(f"{name}: {num_params(config):,} parameters, sequences of at most {config.block_size} tokens")

# %% [markdown]
r"""
## Appendix: the options

The cells of this section list the options and check them. Run them, and go on at "One climb".

The check comes before anything is measured: sizes that the model can take, and files that can be written. Without
options, the command takes sizes that suit the device.
"""


# %%
#| export
DEFAULTS = {"cuda": ("124M", 16, 1024), "mps": ("124M", 4, 256), "cpu": ("small", 1, 256)}
EXAMPLES = """
examples: python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out ladder.json --plot ladder.png
          python -m nanogpt ladder --predict A100-80GB --batch 16 --seq 1024"""


# %%
#| export
def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt ladder`."""
    parser = argparse.ArgumentParser(
        description="Predict, then measure: the same GPT-2 trained a few steps in many ways, each on top of the last.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["rungs:", *(f"  {name:13} {what}" for name, what in RUNGS.items()), EXAMPLES]),
    )
    add = parser.add_argument
    add("--size", choices=MODELS, help="default: 124M on a GPU, small on a CPU")
    add("--batch", type=int, help="sequences a step; halved when memory runs out")
    add("--seq", type=int, help="tokens a sequence")
    add("--device", help="cuda, mps or cpu; default: the best that is there")
    add("--skip", nargs="*", default=[], choices=RUNGS, metavar="NAME", help="rungs to leave out")
    add(
        "--seconds", type=float, default=240, help="for the timed steps of all rungs; at least ten pairs each"
    )
    add("--out", type=Path, help="write the measurements there, as JSON")
    add("--plot", type=Path, help="write the staircase there, as PNG")
    add("--predict", metavar="GPU", help="measure nothing: the forecast for that GPU from its data sheet")
    return parser


# %%
print(parser().parse_args(["--size", "124M", "--batch", "4", "--seq", "64"]))


# %%
#| export
#| blank checked_sizes: take the default where nothing was given; refuse sizes that the model lacks and files that cannot be written
def checked_sizes(args: argparse.Namespace, kind: str) -> tuple[str, int, int]:
    """Size, B and T, with the defaults of this kind of device where nothing is given. Raises ValueError or OSError."""
    given = args.size, args.batch, args.seq
    size, B, T = (b if a is None else a for a, b in zip(given, DEFAULTS[kind]))
    longest = MODELS[size].block_size
    if B < 1 or not 1 <= T <= longest:
        raise ValueError(f"--batch {B} --seq {T}: {size} takes 1 or more sequences of 1 to {longest} tokens")
    if not args.seconds >= 0:
        raise ValueError(f"--seconds {args.seconds} must be at least 0")
    for path in filter(None, (args.out, args.plot)):
        if path.is_dir() or not os.access(path.resolve().parent, os.W_OK):
            raise OSError(f"{path} cannot be written; give a file in a folder that exists and is yours")
    if args.plot and not importlib.util.find_spec("matplotlib"):
        raise ValueError("--plot needs matplotlib: pip install matplotlib, or give --out alone")
    return size, B, T


# %%
print(checked_sizes(parser().parse_args(["--seq", "64"]), "cpu"))

# %% [markdown]
r"""
## One climb

All the parts of a climb are in chapter 14b: the limits of the machine, the forecast, the turns, the judgement. We only
have to call them in their order. `climb_once` does this for one batch size. It measures which share of the limits the
kernels of this step reach, prints the forecast of each rung, and then measures the rungs. What it returns can be written
to a JSON file: the machine, the sizes, and for each rung all that is known about it. The marks of all rungs are
collected in `flags`, so that whoever reads the file sees at once whether the machine was disturbed.

`say` is the function that prints a line. A program that wants the lines elsewhere, such as a test, passes another one.
"""


# %%
#| export
def climb_once(machine: dict, size: str, B: int, T: int, device: torch.device, skipped, seconds, say) -> dict:
    """The forecast and the climb with one batch. MemoryError where it does not fit."""
    config, roof = MODELS[size], Roofline(**machine["roofline"])
    if set(RUNGS) <= set(skipped):
        raise ValueError("no rung is left; take some out of --skip")
    machine = machine | {"reached": asdict(reached_roofline(config, B, T, roof, device, skipped))}
    say(f"{machine['device']}: GPT-2 {size}, B={B}, T={T}. The forecast:")
    for name, told in forecast(machine, config, B, T, skipped).items():
        say(f"{name:13} {told['predicted_ms']:8.1f} ms  {told['predicted_mib']:7.0f} MiB")
    say("Measured, each rung in turns with the one below:")
    rungs = measure_rungs(machine, config, B, T, device, skipped, seconds, say)
    if not rungs:
        raise RuntimeError(f"no rung is left: {skipped}")
    flags = sorted({flag for rung in rungs for flag in rung["flags"]})
    return machine | {"size": size, "batch": B, "seq": T, "rungs": rungs, "flags": flags}


# %% [markdown]
r"""
`climb` adds two things. It measures the machine first. And it survives a lack of memory. Whether a batch fits is known
only when it has been tried, and the rung that needs most may come late. If memory runs out, the rungs that were measured
so far are thrown away, and the climb starts over with half the batch, because rungs with different batches cannot be
compared. At a batch of 1 nothing is left to halve, and an error says what to do.

At the end the result gets the rungs that were left out, with the reasons, and the command line that makes the same
measurement again. A number in a file is worth more if the file says how it was made.
"""


# %%
#| export
#| blank climb: measure the machine, then call climb_once until it fits, with half the batch after each MemoryError
def climb(size: str, B: int, T: int, device: str, skip=(), seconds: float = 240, say=print) -> dict:
    """Forecast, then measure the whole ladder; with half the batch where memory runs out."""
    asked, machine, place = B, measure_machine(device), torch.device(device)
    skipped = obstacles(place, Roofline(**machine["roofline"]), skip)
    result = None
    while result is None:
        try:
            result = climb_once(machine, size, B, T, place, skipped, seconds, say)
        except MemoryError as error:
            if B == 1:
                raise RuntimeError(f"batch 1 runs out of memory ({error}); give a shorter --seq") from error
            say(f"out of memory at batch {B}: starting over with half of it")
            B //= 2
    missing = [{"name": name, "reason": skipped[name]} for name in RUNGS if name in skipped]
    for rung in missing:
        say(f"without {rung['name']}: {rung['reason']}")
    call = ["--size", size, "--batch", str(B), "--seq", str(T), "--device", device]
    call += ["--skip", *skip] if skip else []
    command = "python -m nanogpt ladder " + shlex.join(call)
    return result | {"asked_batch": asked, "skipped": missing, "command": command}


# %% [markdown]
r"""
`run` reads the options and decides what to do. With `--predict` it measures nothing. Otherwise it climbs, and writes the
files that were asked for. Both files are written with chapter 03's care: a reader never finds half a file.
"""


# %%
#| export
def run(args: argparse.Namespace) -> None:
    """Predict, or climb and write what was asked for, each file whole or not at all."""
    if args.predict:
        size, B, T = checked_sizes(args, "cuda")
        if args.batch is None:
            B = fitting_batch(args.predict, MODELS[size], B, T)
        say_predicted(args.predict, MODELS[size], B, T)
        return
    device = pick_device(args.device)
    size, B, T = checked_sizes(args, device.type)
    result = climb(size, B, T, str(device), args.skip, args.seconds, lambda text: print(text, flush=True))
    if args.out:
        save_json(args.out, result)
    if args.plot:
        with atomically(args.plot) as file:
            staircase(result).savefig(file, format="png", dpi=120)


# %% [markdown]
r"""
First the forecast for a GPU that you may not have. No batch is given, so the command takes the largest one, up to 16,
that fits into the memory of the card.
"""

# %%
run(parser().parse_args(["--predict", "L4"]))


# %% [markdown]
r"""
Now the whole path once, with the smallest sizes and one rung above the first. On a CPU we keep compile out, which takes
longer than everything else.
"""

# %% tags=["nbval-ignore-output"]
keep = {"float32", "flash"}
with tempfile.TemporaryDirectory() as folder:
    words = shlex.split("--size small --batch 1 --seq 32 --seconds 1")
    words += ["--out", f"{folder}/ladder.json", "--skip", *(name for name in RUNGS if name not in keep)]
    run(parser().parse_args(words))
    print("written:", *(path.name for path in Path(folder).iterdir()))

# %% [markdown]
r"""
A wrong size is refused at once, in one sentence:
"""

# %%
try:
    run(parser().parse_args(["--device", "cpu", "--seq", "100000"]))
except ValueError as error:
    print(error)

# %% [markdown]
r"""
From chapter 17d on, `python -m nanogpt ladder` calls this function. Until then, `python -c` does, after the checkpoint:
`python -c "from nanogpt.speed.ladder import parser, run; run(parser().parse_args())"`. The option `--size 124M --batch
4 --seq 64` climbs with GPT-2 itself, and takes some minutes on a CPU.
"""

# %%
checkpoint("14c")

# %% [markdown]
r"""
## Exercises

To explore:

1. Add an option `--rungs` that climbs only the rungs named. *Check*: `--rungs float32 flash` prints the same two lines
   as the cell above.
2. Let the command repeat the climb with another `--seq` and print both gains of flash attention side by side. *Check*:
   the forecast says which one is larger before anything is measured.

## Further reading

- Python, *argparse*: options, defaults, help.
- T. Kalibera and R. Jones, *Rigorous Benchmarking in Reasonable Time*, 2013: why a benchmark is repeated, and what is
  repeated.
"""
