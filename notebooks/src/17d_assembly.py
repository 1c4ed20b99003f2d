# %% [markdown]
r"""
# 17d · Assembly: from a file to a run (may be skipped)

Chapter 17 built its run by hand: a model, an optimizer, a stream. Chapter 17c turned the sizes into a file. This sitting connects the two: a function that makes a run from
a configuration, one that goes on with it, and the program `python -m nanogpt` that calls them. Most of it is plumbing, which the long run of chapter 17e needs and
which you may skip when you read. Two ideas are worth your time: how far out a loss can be (the next section), and which keys may change while a run is on its way.
"""

# %%
#| default_exp run.assemble
#| doc run.assemble: What a run is made of: data, model, optimizer, and all that its steps change.
#| doc run.plot: Several runs in one figure: loss, norm, rate, throughput; the command `plot`.
#| doc cli: `python -m nanogpt COMMAND`: one runner, and the same exit codes for all commands.
import contextlib
import signal
from dataclasses import MISSING, fields
from functools import partial

from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.gpt.train import train_step
from nanogpt.run.checkpoint import save
from nanogpt.run.config import load_config


# %% [markdown]
r"""
## How far out is a loss?

A run has one more part that steps change: a memory of its last losses. Chapter 17e leaves out a step whose loss is unusual, so the run must know
what is usual. A fixed limit does not work for long: a loss of 4 nats is good at step 100 and an alarm at step 10,000. So `Window` keeps the last 128 values, as llm.c does. Its method `z` takes a new value in and
says how far the value is from the mean of all that are kept, in standard deviations.

The new value is part of its own window, so it moves the mean and the deviation that it is compared with.

*Predict.* Then one value cannot be arbitrarily far out. How far at most, among 128?
"""


# %%
#| export run.metrics
import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import fmean

WINDOW = 128


# %%
#| export run.metrics
#| blank Window.z: take the value in, then compare it with the mean and deviation of all that is kept
class Window(deque):
    """The last 128 finite values of a run. The list of them is its state."""

    def __init__(self, values: Iterable[float] = ()):
        super().__init__(values, maxlen=WINDOW)

    def z(self, value: float) -> float | None:
        """Take a value in: its distance from the window's mean in standard deviations (llm.c, outlier_detector.h).

        None while the window is not full, and for a value that is not finite, which is not taken in.
        """
        if not math.isfinite(value):
            return None
        self.append(value)
        mean = fmean(self)
        deviation = math.sqrt(fmean((v - mean) ** 2 for v in self))
        return None if len(self) < WINDOW else (value - mean) / deviation if deviation else 0.0


# %%
predict("17d.1", "the largest z-score that one of 128 values can have", guess=None)
largest = Window([0.0] * (WINDOW - 1)).z(1e6)
print(f"{largest:.2f}, which is √{WINDOW - 1}")
answer("17d.1", largest)

# %% [markdown]
r"""
So the usual limit of 6 is about half of what is possible. A value that is not finite stays out of the window: otherwise every later mean would be NaN.
"""


# %% [markdown]
r"""
## What a run is made of

From the configuration to shards, a model, an optimizer. All that steps change is in one place, `Training`, and what of it a checkpoint holds is
a list of names. Two orders matter. The seed is set *last*, so that nothing before it (a benchmark, a sample, a model of another size) shifts dropout; and the model has a
generator of its own.
"""


# %%
#| export run.assemble
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.device import pick_device, seed_everything
from nanogpt.parallel.distributed import Ranks
from nanogpt.text.data import BatchStream

# %%
#| export run.assemble
from nanogpt.corpora.prepare import prepare
from nanogpt.corpora.sources import blocks_in, cut_files, find_files
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.precision import LossScaler, why_not
from nanogpt.gpt.pretrained import from_hf, read_json
from nanogpt.gpt.train import scale_init
from nanogpt.gpt.weights import load_model
from nanogpt.parallel.laid_out import fill, lay_out, optimizer_for  # chapter 21d
from nanogpt.run.checkpoint import latest, load, random_states, repair, set_random_states
from nanogpt.run.config import Config, Data, Model, config_dict, keys
from nanogpt.run.together import first_alone, held_out, refuse_other_runs, stream_of  # chapter 20b
from nanogpt.text.shards import load_manifest
from nanogpt.text.tokenizer import BPETokenizer


# %%
#| export run.assemble
def ensure_data(data: Data) -> dict:
    """The manifest of data.dir, whose shards are made from data.source where there are none."""
    folder = Path(data.dir)
    if not (folder / "manifest.json").exists():
        if data.source is None:
            raise FileNotFoundError(
                f"data.dir={data.dir} has no shards; `python -m nanogpt prepare` makes some"
            )
        if data.source == "stories":
            return ensure_corpus(folder)
        tokenizer, source = data.tokenizer, Path(data.source)
        if isinstance(tokenizer, int):  # one of so many tokens, learned from the text's first 16 MB
            spans = next(cut_files(find_files(source), 1 << 24, data.paragraphs))
            texts = (text for span in spans for _, told in blocks_in(span, 1 << 20) for text in told)
            BPETokenizer.train(texts, tokenizer).save(tokenizer := folder / "tokenizer.json")
        prepare(source, folder, tokenizer, data.val, 0.0, data.paragraphs)
    return load_manifest(folder)


# %%
RUNS = Path("../data/built/assembly")
shutil.rmtree(RUNS, ignore_errors=True)
torch.set_num_threads(1)  # sums in another order have other bits
ensure_corpus(RUNS / "stories", n=1000)
mine = [f"data.dir={RUNS}/stories", f"run.dir={RUNS}/run", "run.device=cpu", "model.dropout=0.1"]
config = load_config("tiny", mine)
manifest = ensure_data(config.data)
print(f"{manifest['splits']['train']['tokens']:,} tokens of a vocabulary of {manifest['vocab_size']:,}")


# %%
#| export run.assemble
#| blank tokenizer_of: try the one beside the shards, then the configured one; its fingerprint must be the manifest's
def tokenizer_of(data: Data, manifest: dict) -> BPETokenizer | None:
    """The tokenizer that made the shards; None where it is not to be had."""
    for name in (Path(data.dir) / "tokenizer.json", data.tokenizer):
        with suppress(OSError, ValueError, TypeError):
            found = BPETokenizer.gpt2() if name == "gpt2" else BPETokenizer.load(name)
            if found.fingerprint == manifest["fingerprint"]:
                return found


# %%
#| export run.assemble
def refuse_other_words(config: Config, manifest: dict) -> None:
    """ValueError if init_from keeps a tokenizer, and it is not the one that made the shards: every id meant another word."""
    file = Path(config.init_from, "tokenizer.json")
    if file.exists() and (theirs := BPETokenizer.load(file).fingerprint) != manifest["fingerprint"]:
        made = f"{config.data.dir} was made with tokenizer {manifest['fingerprint'][:8]}"
        raise ValueError(
            f"{made}, init_from={config.init_from} learned {theirs[:8]}; set data.tokenizer={file} and a new data.dir"
        )


# %%
#| export run.assemble
def first_model(config: Config, manifest: dict) -> GPT:
    """The model before its first step: new, or init_from's with this run's dropout, in float32, on the CPU."""
    vocab_size = manifest["vocab_size"]
    if config.init_from is None:
        shape = GPTConfig(**vars(config.model), vocab_size=vocab_size)
        return scale_init(GPT(shape, torch.Generator().manual_seed(config.run.seed)))
    file = Path(config.init_from, "config.json")
    if ours := file.exists() and "model_type" not in read_json(file):
        refuse_other_words(config, manifest)
    there = load_model(config.init_from) if ours else from_hf(config.init_from)
    for name in ("n_layer", "n_head", "n_embd"):
        given, has = getattr(config.model, name), getattr(there.config, name)
        if given not in (has, getattr(Model, name)):  # at its default nobody has asked for it
            raise ValueError(f"init_from={config.init_from} has {name}={has}; leave out model.{name}={given}")
    if there.config.vocab_size < vocab_size or there.config.block_size < config.model.block_size:
        has = f"{there.config.vocab_size} tokens and a context of {there.config.block_size}"
        needs = f"{vocab_size} and model.block_size={config.model.block_size}"
        raise ValueError(f"init_from={config.init_from} has {has}; the run needs {needs}")
    model = GPT(replace(there.config, dropout=config.model.dropout, flash=config.model.flash))
    model.load_state_dict(there.float().state_dict())
    return model


# %%
model = first_model(config, manifest)
print(
    f"{model.config.n_layer} layers of width {model.config.n_embd}; {tokenizer_of(config.data, manifest).vocab_size} tokens"
)

# %% [markdown]
r"""
The data are made where they are not there, and a tokenizer counts as theirs only if its fingerprint is the one in their manifest. The same holds for
a model that a run begins with (`init_from`): on ids of another vocabulary it would train without an error, and all it had learned would be wrong. Now the run
itself: what is made once, then what changes.
"""


# %%
#| export run.assemble
@dataclass
class Training:
    """A run in memory. What `state_dict` names is what steps change: with it and the weights, a run goes on bit for bit."""

    config: Config
    ranks: Ranks  # the run's processes: chapter 20
    readers: Ranks  # those of them that read different rows: all, but for chapter 21d's tp
    tokenizer: BPETokenizer | None
    held: tuple  # the first eval.tokens of the validation shards, and the id between their documents
    model: GPT
    stepper: torch.nn.Module  # the model, or the same replicated or compiled
    optimizer: torch.optim.Optimizer
    stream: BatchStream
    scaler: LossScaler | None
    step: int = 0  # batches taken
    updates: int = 0  # made of them: the learning rate follows these
    bad: int = 0  # steps in a row that were not finite
    record: dict | None = None  # the step's line, until it is written
    best: dict = field(default_factory=dict)  # step and val_loss
    skipped: Counter = field(default_factory=Counter)  # steps by why there was no update
    seconds: Counter = field(default_factory=Counter)  # by what they were spent on
    windows: dict = field(default_factory=lambda: {"loss": Window(), "norm": Window()})
    kept: Path | None = None  # the newest checkpoint
    longest: dict = field(default_factory=dict)  # seconds, of what `seconds` sums


# %%
#| export run.assemble
class Training(Training):
    @property
    def device(self) -> torch.device:
        return self.ranks.device

    @property
    def folder(self) -> Path:
        return Path(self.config.run.dir)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the block's seconds."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self.seconds[what] += seconds
        self.longest[what] = max(seconds, self.longest.get(what, 0))


# %%
changing = [
    part.name
    for part in fields(Training)
    if part.default is not MISSING or part.default_factory is not MISSING
]
print("begins empty, and changes on the way:", *changing)


# %%
#| export run.assemble
KEPT = "step", "updates", "bad", "record", "best", "skipped", "seconds", "windows"


class Training(Training):
    def state_dict(self) -> dict:
        """For a checkpoint, beside the weights."""
        parts = {"optimizer": self.optimizer, "data": self.stream, "scaler": self.scaler}
        state = {name: part and part.state_dict() for name, part in parts.items()}
        state |= {name: getattr(self, name) for name in KEPT} | {"config": config_dict(self.config)}
        state["windows"] = {name: list(window) for name, window in self.windows.items()}
        return state | {"random": random_states(self.device)}

    def load_state_dict(self, state: dict) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.stream.load_state_dict(state["data"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        for name in KEPT:
            setattr(self, name, state[name])
        self.windows = {name: Window(values) for name, values in state["windows"].items()}
        self.skipped, self.seconds = Counter(state["skipped"]), Counter(state["seconds"])
        set_random_states(state["random"], self.device)


# %%
#| export run.assemble
def assemble(config: Config, ranks: Ranks | None = None) -> Training:
    """All that a run needs, before its first step. ranks: those that share each batch, chapter 20; else there is one."""
    c, o, ranks = config, config.optim, ranks or Ranks(device=pick_device(config.run.device))
    if reason := why_not(c.train.dtype, ranks.device):
        raise ValueError(f"train.dtype: {reason}")
    manifest = first_alone(ranks, ensure_data, c.data)
    tokenizer = tokenizer_of(c.data, manifest)
    if tokenizer is None and c.eval.sample_every + c.eval.hellaswag_every:
        raise ValueError(f"samples need the tokenizer that made {c.data.dir}; or set eval.sample_every=0")
    model = first_model(c, manifest).to(ranks.device).train()
    stepper, readers = lay_out(model, c, ranks)
    optim = {"betas": o.betas, "weight_decay": o.weight_decay, "compiled": c.train.compile}
    parts = {
        "tokenizer": tokenizer,
        "held": (held_out(c.data.dir, c.eval.tokens) if c.eval.every else [], manifest["eot"]),
        "model": model,
        "stepper": torch.compile(stepper) if c.train.compile else stepper,
        "optimizer": optimizer_for(model, o.lr, c.train.dtype, **optim),
        "stream": stream_of(c, readers),
        "scaler": LossScaler() if c.train.dtype == "fp16" else None,
    }
    seed_everything(c.run.seed)  # last, whatever has drawn numbers before: from now on only dropout does
    return Training(c, ranks, readers, **parts)


# %%
run = assemble(config)
print(f"step {run.step} on {run.device}; a checkpoint holds the weights and:", *run.state_dict())

# %% [markdown]
r"""
## Going on

The same command starts and resumes, so it may come with another configuration. What belongs to the run's identity cannot change on its way: a loss
curve of two learning rates belongs to neither. Where it is saved and how often it is looked at may change, and that is said. How long it runs
may change too, but a schedule that falls towards the last step then has another rate from here on. Chapter 17e's trainer prints both rates if it rises.
"""


# %%
#| export run.assemble
FREE = "run.", "eval.", "train.", "parallel.", "data.dir", "data.source"  # may change on a run's way
FIXED = "run.seed", "train.batch_tokens", "train.dtype"  # though not these


def compare(config: Config, saved: dict) -> None:
    """ValueError for a key that cannot change within a run; one printed line for those that can, and did."""

    def value(of: dict, key: str):
        section, _, name = key.rpartition(".")
        return (of.get(section, {}) if section else of).get(name)

    pairs = {key: (value(config_dict(config), key), value(saved, key)) for key in keys()}
    changed = {key: f"{key}={now} (was {then})" for key, (now, then) in pairs.items() if now != then}
    if fixed := [text for key, text in changed.items() if key in FIXED or not key.startswith(FREE)]:
        raise ValueError(f"the run in {config.run.dir} cannot go on with {fixed[0]}; choose another run.dir")
    if changed:
        print("changed since the checkpoint:", ", ".join(changed.values()))


# %%
#| export run.assemble
def resume(config: Config, ranks: Ranks | None = None) -> Training:
    """The run as its newest whole checkpoint has it, or at its beginning."""
    folder, ranks = Path(config.run.dir), ranks or Ranks(device=pick_device(config.run.device))
    for aside in folder.glob(".step_*.tmp") if ranks.rank == 0 else ():  # what kill -9 left
        shutil.rmtree(aside)
    if found := latest(folder):
        state = load(found)
        compare(config, state["config"])
    run = assemble(config, ranks)
    refuse_other_runs(ranks, config, run.stream, str(found))
    if found:
        fill(run.model, load_model(found))
        run.load_state_dict(state)
        run.kept = found
        print(f"going on after step {run.step}, from {found}")
    if ranks.rank == 0:
        repair(folder / "metrics.jsonl", run.step)
    return run


# %% [markdown]
r"""
*Check.* The law of chapter 17b holds for a run from a file: some steps, a checkpoint, some steps more; and the same steps from the checkpoint. Dropout is on, or nothing would be random.
"""


# %%
def steps(run: Training, n: int) -> list[float]:
    """The losses of so many steps as the trainer makes them: a batch, an update by it."""
    run.step += n
    return [train_step(run.model, run.optimizer, [run.stream.next_batch()]).item() for _ in range(n)]


run = resume(config)
steps(run, 6)
save(run.folder, run.step, run.model, run.state_dict(), run.tokenizer)
went_on = steps(run, 4)
assert steps(resume(config), 4) == went_on, "the resumed run is not the one that went on"
print([round(loss, 3) for loss in went_on])


# %% [markdown]
r"""
A key that belongs to the run's identity is refused, and the message names it. One that may change is reported:
"""

# %%
for change in ("optim.lr=1e-3", "train.max_steps=99"):
    try:
        resume(load_config("tiny", [*mine, change]))
    except ValueError as error:
        print("refused:", str(error).replace(str(RUNS), "…"))


# %% [markdown]
r"""
## Which checkpoint?

A run's folder holds several. `sample` and `eval` should take the folder itself, for its newest checkpoint, and `runs/x/best` for the one with the lowest validation
loss. Both commands read a model with chapter 08's `load`, so it is enough that this function grows.
"""


# %%
#| export run.checkpoint
from nanogpt.run.metrics import read_metrics


def chosen(place: str | Path) -> Path:
    """The checkpoint of a run's folder: runs/x is its newest whole one, runs/x/best that of its lowest validation loss.

    What is no run's folder is given back as it is.
    """
    folder = Path(place)
    home = folder.parent if folder.name == "best" else folder
    newest = latest(home)
    if newest is None or folder == home:
        return newest or folder
    seen = [line for line in read_metrics(home) if line.get("val_loss") is not None]
    if not seen:
        raise ValueError(
            f"{home} has no best checkpoint, since it was never validated; name {home} for its newest"
        )
    best = min(seen, key=lambda line: line["val_loss"])
    return home / f"step_{best['step']:06d}"


# %%
#| export gpt.sample
from nanogpt.gpt.model import GPT
from nanogpt.gpt.pretrained import from_hf, read_json
from nanogpt.gpt.weights import load_model
from nanogpt.text.tokenizer import BPETokenizer


# %%
#| export gpt.sample
#| grows load
def load(checkpoint: str, tokenizer: str | None = None) -> tuple[GPT, BPETokenizer]:
    """Model and tokenizer of a checkpoint, a run's folder, a Hugging Face GPT-2 folder or a name on the hub."""
    from nanogpt.run.checkpoint import chosen  # here: a model alone needs no run

    folder = chosen(checkpoint)
    if not folder.exists() and len(folder.parts) > 2:  # a name on the hub has two parts at most
        raise FileNotFoundError(f"{folder} is not there; chapter 07 writes data/built/model (course run 07)")
    config, beside = folder / "config.json", folder / "tokenizer.json"
    ours = config.is_file() and "model_type" not in read_json(config)
    model = load_model(folder) if ours else from_hf(checkpoint)
    if tokenizer is None and ours and beside.exists():
        return model, BPETokenizer.load(beside)
    if tokenizer is None and not 50257 <= model.config.vocab_size <= 50304:  # GPT-2's, or padded (chapter 13)
        raise ValueError(f"{checkpoint} has no tokenizer.json beside it; name one with --tokenizer")
    return model, BPETokenizer.gpt2() if tokenizer in (None, "gpt2") else BPETokenizer.load(tokenizer)


# %%
print(chosen(RUNS / "run").name)
grown("load", "17d")

# %% [markdown]
r"""
## Several runs in one figure

A curve alone says little, so `python -m nanogpt plot RUN RUN` draws what several runs have in common. Each step is drawn faintly, and the means of short stretches are
bold. A mean alone would hide a single step that took ten times as long.
"""


# %%
#| export run.metrics
def column(lines: Sequence[dict], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of those lines that have a finite number there."""
    known = {x["step"]: x[name] for x in lines if x.get(name) is not None and math.isfinite(x[name])}
    return list(known), list(known.values())


# %%
#| export run.plot
import argparse
import math
from collections.abc import Sequence
from statistics import fmean

from nanogpt.run.metrics import read_metrics

PANELS = dict(loss="loss [nats]", norm="norm of the gradient", lr="learning rate", tokens_per_s="tokens/s")


def draw_run(ax, name: str, lines: Sequence[dict], color: str, label: str) -> None:
    """One run in one panel: faint step by step, bold as the means of about 100 stretches."""
    steps, values = column(lines, name)
    ax.plot(steps, values, color=color, alpha=0.3, lw=0.7)
    n = 1 if name == "lr" else max(1, len(steps) // 100)
    stretches = [slice(at, at + n) for at in range(0, len(steps), n)]
    ax.plot([fmean(steps[s]) for s in stretches], [fmean(values[s]) for s in stretches], color, label=label)
    if name == "loss":
        ax.plot(*column(lines, "val_loss"), "o", color=color, ms=4)
        ax.plot(*column([line for line in lines if "skipped" in line], name), "x", color=color)
        for floor in column(lines, "floor")[1][-1:]:
            ax.axhline(floor, color=color, ls=":")


# %%
#| export run.plot
def draw_runs(runs: dict[str, Sequence[dict]]):
    """A figure of several runs by name: loss, norm, learning rate and throughput against the step, as far as known.

    Dots are validation losses, crosses updates that were left out, a dotted line the floor where a run knows one.
    """
    from matplotlib.figure import Figure

    values = {name: [v for lines in runs.values() for v in column(lines, name)[1]] for name in PANELS}
    shown = [name for name in PANELS if values[name]] or ["loss"]
    fig = Figure(figsize=(10, 3.25 * math.ceil(len(shown) / 2)), layout="constrained")
    for number, name in enumerate(shown, 1):
        ax = fig.add_subplot(math.ceil(len(shown) / 2), 2, number, xlabel="step", ylabel=PANELS[name])
        for color, (label, lines) in enumerate(runs.items()):
            draw_run(ax, name, lines, f"C{color}", label)
        low, high = min(values[name], default=0), max(values[name], default=0)
        if low > 0 and (name == "norm" or (name == "loss" and high > 20 * low)):
            ax.set_yscale("log")
        ax.set_ylim(bottom=0 if name == "tokens_per_s" else None)
        ax.grid(alpha=0.3)
    fig.axes[0].legend()
    return fig


# %%
runs = {}
for lr in (2e-3, 2e-4):
    run = resume(load_config("tiny", [*mine[:1], f"run.dir={RUNS}/{lr}", "run.device=cpu", f"optim.lr={lr}"]))
    runs[f"rate {lr:g}"] = [{"step": n, "loss": loss} for n, loss in enumerate(steps(run, 20), 1)]
show(draw_runs(runs), alt="The loss of two runs: at the lower rate it falls more slowly.")


# %%
#| export run.plot
def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt plot`."""
    parser = argparse.ArgumentParser(description="Draw loss, norm, rate and throughput of runs together.")
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a folder, its metrics.jsonl, or a main.log of llm.c"
    )
    parser.add_argument("--out", default="runs.png", metavar="FILE", help="a .png, .svg or .pdf (runs.png)")
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt plot`, its options parsed."""
    fig = draw_runs({name: read_metrics(name) for name in args.runs})
    fig.savefig(args.out, dpi=120)
    print(f"{', '.join(args.runs)}: drawn to {args.out}")


# %% [markdown]
r"""
## The command line, which may be skipped

A command is a module with a `parser()` and a `run(args)`; `python -m nanogpt NAME` finds it here. All commands end
alike, so that a script can go by the exit code: 0 when all went well, 2 after one line that says what is wrong. A command's module is
imported only when that command is given: help needs no PyTorch.

*Predict.* Which exit code does a shell expect of a program that Ctrl-C has ended? (The signal is SIGINT, number 2.)
"""

# %%
#| export cli
import difflib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

COMMANDS = {
    "prepare": ("nanogpt.corpora.prepare", "text, JSONL, CSV or parquet -> shards of tokens (chapter 16b)"),
    "plot": ("nanogpt.run.plot", "draw loss, norm, rate and throughput of runs together (chapter 17e)"),
    "compare": ("nanogpt.run.compare", "where two runs part, and by how much (chapter 17e)"),
    "train": ("nanogpt.run.trainer", "a run from a YAML file, started or gone on with (chapter 17e)"),
    "sample": ("nanogpt.gpt.sample", "continue a prompt with a trained model (chapter 08)"),
    "ladder": ("nanogpt.speed.ladder", "every speed-up on this machine, one on the other (chapter 14)"),
    "plan": ("nanogpt.plan.plan", "memory, communication, time and cost of a run, by formula (chapter 22)"),
    "eval": ("nanogpt.evals.command", "how good a checkpoint is, by several measures (chapter 18b)"),
    "drill": ("nanogpt.drills.ddp", "what several processes do together, under torchrun (chapter 20)"),
    "flight": ("nanogpt.drills.flight", "what each rank of a deadlock waits for (chapter 20b)"),
}
USAGE = """usage: python -m nanogpt COMMAND [options]
{commands}

  python -m nanogpt COMMAND --help    options and examples of a command
Exit codes: 0 all went well, 2 something is wrong (one line says what), 130 or 143 stopped by Ctrl-C or SIGTERM."""


# %%
#| export cli
def in_one_line(error: BaseException) -> str:
    """What went wrong, without line breaks. What is missing is named with what brings it."""
    text = str(error) or {MemoryError: "out of memory"}.get(type(error), type(error).__name__)
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        package, _, module = error.name.partition(".")
        text = f"needs {package}: pip install {'pyyaml' if package == 'yaml' else package}"
        if package == "nanogpt":
            made, chapters = f"#| doc {module}:", Path(__file__).parent.parent.glob("notebooks/*.ipynb")
            owner = [c.stem.partition("_")[0] for c in chapters if made in c.read_text(encoding="utf-8")]
            remedy = f"`course restore {owner[0]}` brings it back" if owner else "copy it here again"
            text = f"nanogpt/{module.replace('.', '/')}.py is missing; {remedy}"
    return " ".join(text.split())


# %%
print(in_one_line(FileNotFoundError(2, "No such file or directory", "my.yaml")))
print(in_one_line(ModuleNotFoundError(name="yaml")))


# %%
#| export cli
def reader_has_gone(text: str = "") -> bool:
    """Write out `text` and all before it; true if nobody reads stdout any more, as `head` when it has enough."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # What follows goes nowhere: Python's own flush at exit must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


# %%
#| export cli
def outcome(name: str, call: Callable[[], object]) -> int:
    """Call it; 0, or 2 or 130 after one line on stderr.

    A command that leaves something behind when it is stopped raises KeyboardInterrupt with a sentence that says what.
    """
    try:
        call()
    except (ValueError, OSError, RuntimeError, MemoryError, FloatingPointError, ImportError) as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone("\n"):
            return 0
        print(f"{name}: {in_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"\n{name}: stopped; {stop if stop.args else 'no file was written'}", file=sys.stderr)
        return 130
    except SystemExit as end:  # --help
        return end.code or 0
    return 0


# %%
with contextlib.redirect_stderr(sys.stdout):
    print("exit code", outcome("demo", partial(int, "seven")))


# %%
#| export cli
def run_command(name: str, argv: list[str]) -> int:
    """`python -m nanogpt name *argv`, called from Python; the exit code."""

    def refuse(message: str):
        raise ValueError(f"{message} (python -m nanogpt {name} --help)")

    def call():
        module = importlib.import_module(COMMANDS[name][0])
        parser = module.parser()
        parser.prog, parser.error = f"python -m nanogpt {name}", refuse
        module.run(parser.parse_args(argv))

    return outcome(name, call)


# %%
#| export cli
def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt`: pick the command, run it, give its exit code."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # not every terminal can show every character
    if name in COMMANDS:
        code = run_command(name, rest)
    elif name in ("-h", "--help"):
        lines = [f"  {name:10} {what}" for name, (_, what) in COMMANDS.items()]
        code = outcome("nanogpt", lambda: print(USAGE.format(commands="\n".join(lines))))
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1) or ["--help"]
        print(f"nanogpt: no command {name!r}; try python -m nanogpt {near[0]}", file=sys.stderr)
        code = 2
    reader_has_gone()
    return code


# %% [markdown]
r"""
*Check.* Four commands that end badly, the last by Ctrl-C. Of each there is one line, on stderr, which is shown on the screen here.
"""

# %%
predict("17d.2", "exit code after Ctrl-C", guess=None)
with contextlib.redirect_stderr(sys.stdout):
    codes = [
        main(["pilot"]),
        main(["sample", "--tokens"]),
        main(["sample", "--checkpoint", "runs/is/nowhere"]),
    ]
    codes += [outcome("sample", partial(signal.raise_signal, signal.SIGINT))]
answer("17d.2", codes[-1])
assert codes == [2, 2, 2, 128 + signal.SIGINT], f"exit codes {codes}"

# %% [markdown]
r"""
128 and the number of the signal: a shell says the same of a program that a signal has ended, and a loop in a script stops
at it.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("17d")

# %%
checkpoint("17d")

# %% [markdown]
r"""
The parts are connected. Chapter 17e lets such a run go on alone.

## Exercises

`course exercises release 17` writes this one, and those of the other sittings, as a notebook to `released/`; `course check 17` runs their visible checks.

- **17-6** What may change on the way, 10 minutes: a run goes on with half the memory.

To explore:

1. `FREE` lets `data.dir` change. What stops a run from going on with other shards? Check: move the shards, then change one.
2. Give `init_from` a model of another tokenizer. Check: one line, before anything is trained. Which file did it compare?

## Further reading

- llm.c, `outlier_detector.h`: the window of losses, with the same 128.
- POSIX.1-2017, Shell Command Language, §2.8.2: exit status, and what is above 128.
"""
