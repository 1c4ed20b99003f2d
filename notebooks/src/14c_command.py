# %% [markdown]
r"""
# 14c · The ladder as a command

This sitting is optional and short. It makes chapter 14b usable in a terminal: one command that measures the machine,
prints the forecast, climbs the ladder, and writes a JSON file and a picture. It teaches nothing new about speed. It
shows how the course's commands are made, and what a program must care about when it runs for minutes while nobody is
watching:

- A wrong option is refused at once, in one sentence, and not after the first three minutes.
- If memory runs out, the measurement starts over with half the batch. It does not end in a traceback.
- A file is written completely or not at all. If you stop the command with Ctrl-C, the file of the run before is still there.

Every command of the course has the same two functions: `parser()` returns the options, and `run(args)` does the work. So a
notebook or a test can call both without a terminal, and this notebook does so.
"""

# %%
#| default_exp labs.ladder.ladder
import tempfile

from course.notebook import checkpoint
from nanogpt.labs.ladder.ladder import MODELS, measure_machine, staircase

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
from nanogpt.files import atomically, save_json
from nanogpt.labs.ladder.climb import forecast, measure_rungs, reached_roofline
from nanogpt.labs.ladder.forecast import fitting_batch, say_predicted
from nanogpt.labs.ladder.rungs import RUNGS, obstacles
from nanogpt.roofline import Roofline

# %% [markdown]
r"""
The options name the ladder's rungs, so here they are once more, from the lowest to the highest:
"""

# %%
print(*RUNGS)

# %% [markdown]
r"""
## The options

Most people will type the command without any option. So it needs defaults, and good ones depend on the device. A GPU
should get GPT-2 itself, with rows of full length. On a CPU that would take an hour, so a CPU gets a small model and short
rows. `DEFAULTS` lists them: the model, the number of rows B and their length T. `EXAMPLES` is the end of the help text. An
example that can be copied often says more than the list of options above it.
"""


# %%
#| export
DEFAULTS = {"cuda": ("124M", 16, 1024), "mps": ("124M", 4, 256), "cpu": ("small", 1, 256)}
EXAMPLES = """
examples: python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out ladder.json --plot ladder.png
          python -m nanogpt ladder --predict A100-80GB --batch 16 --seq 1024"""


# %%
for kind, (size, B, T) in DEFAULTS.items():
    print(f"on {kind}: the model {size}, {B} rows of {T} tokens")

# %% [markdown]
r"""
Now the options themselves. Python's `argparse` reads them, and writes the help text from the same lines. Two settings are
worth knowing. `choices` makes argparse refuse a value that is not in the list, and the error names the list. And
`RawDescriptionHelpFormatter` leaves our own line breaks as they are; without it, the table of rungs would become one
paragraph. `--size`, `--batch` and `--seq` have no default here, because the parser does not know the device yet: whatever is
not given stays `None`.
"""


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

# %% [markdown]
r"""
What argparse cannot know has to be checked by us. Is the row longer than the model's context? Can the file be written, or
does the folder not exist? Is matplotlib there, if a picture is wanted? All of this is asked before anything is measured.
Each message says three things: what is wrong, what would be right, and for which option.
"""


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
B is the default of a CPU, and T is ours.

## The climb

Chapter 14b has all the parts: `measure_machine`, `forecast`, `measure_rungs`. Two functions put them into an order. `climb_once`
makes the forecast for one size of batch, prints it, and measures the rungs after it. The order matters, because a forecast that is
printed after the measurement convinces nobody.

`climb` is the loop around it. On a GPU that other programs use as well, nobody can say beforehand whether a batch fits. So `climb` tries, and if
there is a `MemoryError` it tries again with half the batch. It starts from the first rung again, because rungs with different
batches cannot be compared. The result keeps the batch that was asked for, beside the one that was measured. It also keeps the reason why a rung was left out,
and a command line that repeats the measurement with the batch that fitted. Somebody who reads the file a year later needs these three.
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
`run` is what the terminal calls. It has two ways. With `--predict` nothing is measured, and the forecast comes from a data sheet, for a GPU that need not be there
(chapter 14). Without it the command climbs, prints each line at once (`flush=True`, since a pipe would keep the lines until the end), and writes the files that were
asked for. `save_json` and `atomically` write beside the file first, and rename at the end.
"""


# %%
#| export
def run(args: argparse.Namespace) -> None:
    """Predict, or climb and write what was asked for, each file whole or not at all."""
    if args.predict:
        size, B, T = checked_sizes(args, "cuda")
        if args.batch is None:
            B = fitting_batch(args.predict, MODELS[size], B, T)
        return say_predicted(args.predict, MODELS[size], B, T)
    device = pick_device(args.device)
    size, B, T = checked_sizes(args, device.type)
    result = climb(size, B, T, str(device), args.skip, args.seconds, lambda text: print(text, flush=True))
    if args.out:
        save_json(args.out, result)
    if args.plot:
        with atomically(args.plot) as file:
            staircase(result).savefig(file, format="png", dpi=120)


# %%
run(parser().parse_args(["--predict", "L4"]))


# %% [markdown]
r"""
These are forecasts, so the numbers are the same on every machine. `fitting_batch` has chosen a batch that fits this card's memory, since none was given.

Now the whole path once, with the smallest sizes and one rung above the first. We leave out the rungs that compile, because on a CPU compiling takes
longer than everything else here. With `--seconds 1` each rung still gets at least ten pairs of steps, as chapter 14b demands of a gain.
"""

# %% tags=["nbval-ignore-output"]
keep = {"float32", "flash"}
with tempfile.TemporaryDirectory() as folder:
    words = [
        "--size",
        "small",
        "--batch",
        "1",
        "--seq",
        "32",
        "--seconds",
        "1",
        "--out",
        f"{folder}/ladder.json",
    ]
    run(parser().parse_args([*words, "--skip", *(name for name in RUNGS if name not in keep)]))
    print("written:", *(path.name for path in Path(folder).iterdir()))

# %% [markdown]
r"""
You have seen the same lines as in chapter 14b, in the same order: the machine, the forecast, and then each rung beside the one below it. The picture is not drawn here; `--plot` would write it.

And a wrong size? It is refused at once, in one sentence:
"""

# %%
try:
    run(parser().parse_args(["--device", "cpu", "--seq", "100000"]))
except ValueError as error:
    print(error)

# %% [markdown]
r"""
From chapter 17d on, `python -m nanogpt ladder` calls this function. Until then, `python -c` does, after the checkpoint:
`python -c "from nanogpt.labs.ladder.ladder import parser, run; run(parser().parse_args())"`. In the notebook the error was caught by us; in a terminal the command line
prints it without a traceback and ends with exit code 2. The options `--size 124M --batch
4 --seq 64` climb with GPT-2 itself, and take some minutes on a CPU. The README's picture was made in this way.
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
