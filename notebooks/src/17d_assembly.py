# %% [markdown]
r"""
# 17d · Assembly: from a file to a run

Chapter 17 built its run by hand: a model, an optimizer, a stream. Chapter 17c turned the sizes into a file. This sitting connects the two. At its end, one call makes a run
from a configuration, and the same call goes on with a run that was interrupted.

Much of this is plumbing. The long run of chapters 17e and 17f needs it, but you may skip it when you read. Two ideas are worth your time. First, how can a program know that a loss is
unusual, if good losses change during the run? Second, which numbers of a configuration may change while a run is on its way, and which may not?

Everything here is one process. How several processes share a run is the subject of part V, and chapter 20a lets these functions grow for it.
"""

# %%
#| default_exp labs.long_run.assemble
#| doc labs.long_run.assemble: From a configuration to a run: data, model and optimizer made, and a checkpoint gone on with.
#| doc labs.long_run.training: A run in memory: its parts, all that its steps change, and both as a checkpoint has them.
#| doc labs.long_run.plot: Several runs in one figure: loss, norm, rate, throughput; the command `plot`.
#| doc cli: `python -m nanogpt COMMAND`: one runner, and the same exit codes for all commands.
import contextlib
import signal
from dataclasses import MISSING, fields
from functools import partial
from statistics import fmean, pstdev

from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.checkpoint import save
from nanogpt.config import load_config
from nanogpt.labs.long_run.given import refuse_other_shape
from nanogpt.training import train_step

# %% [markdown]
r"""
## How far out is a loss?

A long run meets bad batches: a page of digits, a file in another encoding. The gradient of such a batch can undo hours of work, so chapter 17e will leave out a step whose loss is
unusual. For this the run must know what is usual. A fixed limit does not work for long: a loss of 4 nats is good at step 100 and an alarm at step 10,000.

So the run remembers its last 128 losses, as llm.c does. When a new loss comes, it is compared with their mean. The distance is measured in standard deviations; statisticians call this number the
z-score. A z-score of 1 is ordinary, and one of 6 is not. Here it is by hand, for 127 losses of 2.0 to 2.2 and for two new losses:
"""

# %%
usual = [2.0, 2.2] * 63 + [2.1]
mean, deviation = fmean(usual), pstdev(usual)
print(*(f"{loss}: {(loss - mean) / deviation:.1f} deviations" for loss in (2.3, 4.0)), sep=", ")

# %% [markdown]
r"""
`Window` is this memory. It is a list that drops its oldest value when it is full (Python's `deque`), with one method `z` that takes a new value in and returns its z-score. While the list has fewer than 128 values,
there is no score yet. A value that is not finite stays out of the list. Otherwise every later mean would be NaN.
"""


# %%
#| export labs.long_run.training
import math
from collections import deque
from collections.abc import Iterable
from statistics import fmean

WINDOW = 128


# %%
#| export labs.long_run.training
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
        if len(self) < WINDOW:
            return None
        mean = fmean(self)
        deviation = math.sqrt(fmean((v - mean) ** 2 for v in self))
        return (value - mean) / deviation if deviation else 0.0


# %%
window = Window(usual)
print(*(f"{loss}: {window.z(loss):.1f} deviations" for loss in (2.3, 4.0)), sep=", ")

# %% [markdown]
r"""
The loss of 2.3 has the same score as by hand. But the loss of 4 had a score of 19.1 by hand, and here it has about half of that. The reason is that a new value is part
of its own window, so it moves the mean and the deviation that it is compared with.

*Predict.* So one value cannot be arbitrarily far out. What is the largest z-score among 128 values, for example of a million among 127 zeros?
"""

# %%
predict("17d.1", "the largest z-score that one of 128 values can have", guess=None)

# %%
largest = Window([0.0] * (WINDOW - 1)).z(1e6)
print(f"{largest:.2f}, which is √{WINDOW - 1}")
answer("17d.1", largest)

# %% [markdown]
r"""
The million is 11.27 deviations from the mean, and a billion would be just as far. So 6, the usual limit of a trainer, is about half of the largest possible score. Chapter 17e shows what follows from that.

## From the file to the data

Now we turn to the run. Its configuration names a folder of shards. If there are no shards yet, it also says from what they can be made: from the course's stories, or from a text, which chapter 16's `prepare_text` cuts into shards. A text that is very large, a folder, and files of other kinds are left to chapter 16b's `prepare`, which is loaded only for them.

`make_data` makes them. If the file gives the tokenizer as a number, this is the size of a vocabulary, and a tokenizer of this size is trained first, on the first 16 MB of the text.
`ensure_data` calls `make_data` only if the folder has no manifest, and returns the manifest. (The next two cells are the imports of the module.)
"""


# %%
#| export
import shutil
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from nanogpt.device import pick_device, seed_everything
from nanogpt.labs.corpora.sources import KINDS, blocks_in, cut_files, find_files
from nanogpt.model import GPT
from nanogpt.stories import ensure_corpus

# %%
#| export
from nanogpt.checkpoint import latest, load as load_state, repair
from nanogpt.config import Config, Data, config_dict, keys
from nanogpt.data import BatchStream, DocumentStream
from nanogpt.optim import make_optimizer
from nanogpt.precision import LossScaler, why_not
from nanogpt.prepare import LEARN, prepare_text
from nanogpt.pretrained import from_hf, read_json
from nanogpt.shards import load_manifest, open_shards, read_shard
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init
from nanogpt.weights import load_model


# %%
#| export
LARGE = 1 << 28  # bytes of a text that are not read as a whole


def make_data(data: Data) -> None:
    """Make the shards of data.dir from data.source: the course's stories, or a text with a tokenizer of its own."""
    source, folder, tokenizer = Path(data.source), Path(data.dir), data.tokenizer
    if data.source == "stories":
        ensure_corpus(folder)
    elif source.is_file() and KINDS.get(source.suffix, "text") == "text" and source.stat().st_size < LARGE:
        prepare_text(source, folder, tokenizer, data.val, data.paragraphs)
    else:
        if isinstance(tokenizer, int):
            spans = next(cut_files(find_files(source), LEARN, data.paragraphs))
            texts = (text for span in spans for _, block in blocks_in(span, 1 << 20) for text in block)
            BPETokenizer.train(texts, tokenizer).save(tokenizer := folder / "tokenizer.json")
        lab = import_module("nanogpt.labs.corpora.prepare")
        lab.prepare(source, folder, tokenizer, data.val, 0.0, data.paragraphs)


def ensure_data(data: Data) -> dict:
    """The manifest of data.dir, whose shards are made first where there are none."""
    if not Path(data.dir, "manifest.json").exists():
        if data.source is None:
            raise FileNotFoundError(
                f"data.dir={data.dir} has no shards; `python -m nanogpt prepare` makes some"
            )
        make_data(data)
    return load_manifest(data.dir)


# %% [markdown]
r"""
We try it with the ready configuration `tiny` of chapter 17c, with a few changes: a folder of its own for the data and for the run, the CPU, and dropout.
"""

# %%
RUNS = Path("../data/built/assembly")
shutil.rmtree(RUNS, ignore_errors=True)
torch.set_num_threads(1)  # sums in another order have other bits
ensure_corpus(RUNS / "stories", n=1000)
mine = [f"data.dir={RUNS}/stories", f"run.dir={RUNS}/run", "run.device=cpu", "model.dropout=0.1"]
config = load_config("tiny", mine)
manifest = ensure_data(config.data)
print(f"{manifest['splits']['train']['tokens']:,} tokens of a vocabulary of {manifest['vocab_size']:,}")

# %% [markdown]
r"""
To write samples, the run needs the tokenizer that made the shards. It may be in the same folder, or the configuration may name it. Chapter 16 has shown the danger: with a wrong tokenizer all ids are valid, no error is raised, and every id
means another word. So `tokenizer_of` tries both places, and accepts a tokenizer only if its fingerprint is the one in the shards' manifest. If neither fits, it returns None.
"""


# %%
#| export
#| blank tokenizer_of: try the one beside the shards, then the configured one; its fingerprint must be the manifest's
def tokenizer_of(data: Data, manifest: dict) -> BPETokenizer | None:
    """The tokenizer that made the shards, or None if it is neither beside them nor named."""
    for name in (Path(data.dir) / "tokenizer.json", data.tokenizer):
        with suppress(OSError, ValueError, TypeError):
            found = BPETokenizer.gpt2() if name == "gpt2" else BPETokenizer.load(name)
            if found.fingerprint == manifest["fingerprint"]:
                return found


# %%
print(tokenizer_of(config.data, manifest).vocab_size, "tokens, with the right fingerprint")
print("another manifest:", tokenizer_of(config.data, manifest | {"fingerprint": "of another text"}))

# %% [markdown]
r"""
Two more short functions open the data. `stream_of` reads the training shards as batches: whole documents if `data.documents` is set, else a continuous text (chapter 03). `held_out` takes the first tokens of the validation shards, as many as `eval.tokens` says.
We make a batch of each to see that the shapes are right.
"""


# %%
#| export
def stream_of(config: Config, device: torch.device) -> BatchStream:
    """The run's batches, of data.dir's training shards."""
    kind = DocumentStream if config.data.documents else BatchStream
    shards, B, T = open_shards(config.data.dir, "train"), config.train.micro_batch, config.model.block_size
    return kind(shards, B, T, seed=config.run.seed, device=device)


def held_out(folder: str, tokens: int) -> list[np.ndarray]:
    """The first so many tokens of the validation shards."""
    held = []
    for path in open_shards(folder, "val"):
        held.append(read_shard(path)[:tokens])
        tokens -= len(held[-1])
    return held


# %%
x, y = stream_of(config, "cpu").next_batch()
held = held_out(config.data.dir, 3000)
print(f"a micro-batch of {tuple(x.shape)}; {sum(map(len, held)):,} tokens to validate on")

# %% [markdown]
r"""
## The model

A new model has the configuration's shape and the data's vocabulary. It has a generator of its own, so that its first weights depend on the seed and on nothing that ran before. A run can also begin with a
model that is already trained (`init_from`, chapter 19). The function `given_model` for that case is in the appendix. `optimizer_of` reads the numbers of chapter 15's optimizer from the configuration. The output shows its two groups of parameters: with weight decay and without.
"""


# %%
#| export
def first_model(config: Config, manifest: dict) -> GPT:
    """The model before its first step: new, or init_from's with this run's dropout, in float32, on the CPU."""
    if config.init_from is not None:
        return given_model(config, manifest)
    shape = config.model.shape(manifest["vocab_size"])
    return scale_init(GPT(shape, torch.Generator().manual_seed(config.run.seed)))


def optimizer_of(config: Config, model: GPT) -> torch.optim.Optimizer:
    """Chapter 15's optimizer, as the configuration has it."""
    o, train = config.optim, config.train
    options = {"betas": o.betas, "weight_decay": o.weight_decay, "compiled": train.compile}
    return make_optimizer(model, o.lr, train.dtype, **options)


# %%
model = first_model(config, manifest)
groups = optimizer_of(config, model).param_groups
print(f"{model.config.n_layer} layers of width {model.config.n_embd}; weight decay", end=" ")
print(*(f"{group['weight_decay']:g} for {len(group['params'])} tensors" for group in groups), sep=", ")

# %% [markdown]
r"""
Weight decay acts on matrices and not on biases and gains, as in chapter 15.

## The run in memory

Chapter 17's dataclass `Training` held the four things that a step changes. In a long run more things change: the number of updates, the steps that were left out and why, the windows of losses and norms, the best
validation loss so far, and the seconds spent. Again we keep all of them in one dataclass. Fields without a default are made once, when the run is put together. Fields with a default begin empty and change on the way; after the definition we print their names.
"""


# %%
#| export labs.long_run.training
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nanogpt.checkpoint import random_states, set_random_states
from nanogpt.config import Config, config_dict
from nanogpt.data import BatchStream
from nanogpt.model import GPT
from nanogpt.precision import LossScaler
from nanogpt.tokenizer import BPETokenizer


# %%
#| export labs.long_run.training
@dataclass
class Training:
    """A run in memory. `state_dict` holds all that steps change beside the weights: with both, a run goes on bit for bit."""

    config: Config
    device: torch.device
    tokenizer: BPETokenizer | None
    held: tuple  # the first eval.tokens of the validation shards, and the id between their documents
    model: GPT
    stepper: torch.nn.Module  # what a step calls: the model, or the same compiled
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
changing = [f.name for f in fields(Training) if (f.default, f.default_factory) != (MISSING, MISSING)]
print("begins empty, and changes on the way:", *changing)

# %% [markdown]
r"""
You will meet each of these fields in chapters 17e and 17f. For now it is enough to see that all of them have to be in a checkpoint, except for the last two, which are only used while the process runs.

`assemble` makes the parts, and `begun` puts them together. Two mistakes are refused here in one sentence: a precision that the device does not have, and samples without a tokenizer.

The order matters in one place. The seed of PyTorch's global generator is set *last*. If it were set first, everything in between that draws random numbers would shift the numbers that dropout gets, for example a benchmark or a model of another size.
From this point on, only dropout draws from this generator.
"""


# %%
#| export
def begun(config: Config, manifest: dict, model: GPT, stepper, optimizer, stream: BatchStream) -> Training:
    """A run of these parts, before its first step."""
    c, tokenizer = config, tokenizer_of(config.data, manifest)
    if tokenizer is None and c.eval.sample_every + c.eval.hellaswag_every:
        remedy = "name it in data.tokenizer, or set eval.sample_every=0"
        raise ValueError(f"samples need the tokenizer that made {c.data.dir}; {remedy}")
    held = held_out(c.data.dir, c.eval.tokens) if c.eval.every else []
    stepper = torch.compile(stepper) if c.train.compile else stepper
    scaler = LossScaler() if c.train.dtype == "fp16" else None
    seed_everything(c.run.seed)  # last, whatever has drawn numbers before: from now on only dropout does
    device = next(model.parameters()).device
    return Training(c, device, tokenizer, (held, manifest["eot"]), model, stepper, optimizer, stream, scaler)


# %%
#| export
def assemble(config: Config) -> Training:
    """All that a run needs, before its first step."""
    device = pick_device(config.run.device)
    if reason := why_not(config.train.dtype, device):
        raise ValueError(f"train.dtype: {reason}")
    manifest = ensure_data(config.data)
    model = first_model(config, manifest).to(device).train()
    return begun(config, manifest, model, model, optimizer_of(config, model), stream_of(config, device))


# %%
run = assemble(config)
losses = [train_step(run.model, run.optimizer, [run.stream.next_batch()]).item() for _ in range(4)]
print(f"a run on {run.device}, and its first losses:", [round(loss, 3) for loss in losses])

# %% [markdown]
r"""
A configuration has become a run that trains. Next we want to save the run. `state_dict` collects everything that steps change, beside the weights, and `load_state_dict` puts it back. For the model's optimizer, stream and loss scaler they call the methods of the same
name. The plain fields are listed in `KEPT`. The configuration is saved as well, so that it can be compared when the run goes on, and so are the states of the random generators (chapter 17b).
"""


# %%
#| export labs.long_run.training
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
run = assemble(config)
print("a checkpoint holds the weights and:", *run.state_dict())

# %% [markdown]
r"""
## What may change on the way

The same command starts a run and goes on with it. So the second call may have another configuration than the first one: somebody has edited the file, or added a word to the command line. What should happen then?

Some keys belong to the run's identity: the model's shape, the learning rate, the seed. A loss curve whose first half has one learning rate and whose second half has another is the curve of no run that anybody can
repeat. Such a change is refused. Other keys do not touch the training: where the run is stored, how often it is validated. They may change, and the run prints that they did.

One key is in between. The number of steps may change, because a run that goes well is often extended. But a schedule that falls towards the last step then has another rate from here on. Chapter 17f's trainer prints both
rates if the rate rises.

`compare` follows two lists. A key may change if it begins with one of the words in `FREE` and is not in `FIXED`. The two configurations are compared key by key; `value_of` looks a key such as `optim.lr` up in the nested dictionaries. We try one change that is
allowed and two that are not.
"""


# %%
#| export
FREE = "run.", "eval.", "train.", "data.dir", "data.source"  # may change on a run's way
FIXED = "run.seed", "train.batch_tokens", "train.dtype"  # though not these


def value_of(config: dict, key: str):
    """What a configuration, as a dictionary, has under a key with dots; None where it has no such key."""
    section, _, name = key.rpartition(".")
    inner = config.get(section, {}) if section else config
    return inner.get(name)


def compare(config: Config, saved: dict) -> None:
    """ValueError for a key that cannot change within a run; one printed line for those that can, and did."""
    changed = {}
    for key in keys():
        now, then = value_of(config_dict(config), key), value_of(saved, key)
        if now != then:
            changed[key] = f"{key}={now} (was {then})"
    for key, text in changed.items():
        if key in FIXED or not key.startswith(FREE):
            raise ValueError(f"the run in {config.run.dir} cannot go on with {text}; choose another run.dir")
    if changed:
        print("changed since the checkpoint:", ", ".join(changed.values()))


# %%
saved = config_dict(config)
compare(load_config("tiny", [*mine, "eval.every=10"]), saved)
for change in ("optim.lr=1e-3", "run.seed=7"):
    try:
        compare(load_config("tiny", [*mine, change]), saved)
    except ValueError as error:
        print("refused:", str(error).replace(str(RUNS), "…"))

# %% [markdown]
r"""
The first change is only announced. The other two are refused in one sentence that names the key, the new value and the old one. The remedy is always the same: a run with another learning rate is another run, and it gets a folder of its own.

## Going on

`resume` does all of this in order. It finds the newest complete checkpoint (`latest`, chapter 17b), compares the configurations, assembles the run, and puts the state back. If there is no checkpoint, the run is at its beginning. At the end `clean` removes what a kill may have left in the folder: a
checkpoint that is only half written, and lines of steps that will be made again. A checkpoint is written before its step's line (chapter 17f). So the line of that step may be in the file already, with a validation that the checkpoint does not have. `clean` returns this line, and the run
goes on with it.
"""


# %%
#| export
def take_weights(run: Training, folder: Path) -> None:
    """Give the run's model the weights of a checkpoint."""
    run.model.load_state_dict(load_model(folder).state_dict())


def clean(folder: Path, step: int) -> dict | None:
    """Remove what a kill has left: half a checkpoint, and lines from the step on; the step's own line, if it was there."""
    for aside in folder.glob(".step_*.tmp"):
        shutil.rmtree(aside)
    return repair(folder / "metrics.jsonl", step)


# %%
#| export
#| blank resume: the newest checkpoint, if there is one: compare the configurations, assemble, take weights and state
def resume(config: Config) -> Training:
    """The run as its newest whole checkpoint has it, or at its beginning."""
    folder = Path(config.run.dir)
    found = latest(folder)
    if found:
        state = load_state(found)
        compare(config, state["config"])
    run = assemble(config)
    if found:
        take_weights(run, found)
        run.load_state_dict(state)
        run.kept = found
        print(f"going on after step {run.step}, from {found}")
    run.record = clean(folder, run.step) or run.record
    return run


# %% [markdown]
r"""
*Check.* The law of chapter 17b must hold for a run from a file, too. We make some steps, write a checkpoint, and make four steps more. Then we resume from the checkpoint and make the same four steps. Dropout is on, so the generator's state matters.
"""


# %%
def steps(run: Training, n: int) -> list[float]:
    """The losses of so many steps as the trainer makes them: a batch, an update by it."""
    run.step += n
    return [train_step(run.model, run.optimizer, [run.stream.next_batch()]).item() for _ in range(n)]


run = resume(config)
steps(run, 6)
save(config.run.dir, run.step, run.model, run.state_dict(), run.tokenizer)
went_on = steps(run, 4)
assert steps(resume(config), 4) == went_on, "the resumed run is not the one that went on"
print([round(loss, 3) for loss in went_on])

# %% [markdown]
r"""
The four losses are equal to the last bit: the weights, the optimizer, the place in the data and dropout's generator all came back.

## Which checkpoint?

A run's folder holds several checkpoints. It would be tiresome to type the number of a step. So the commands `sample` and `eval` should accept the folder itself, for its newest checkpoint, and `runs/x/best` for the checkpoint with the lowest validation
loss. `chosen` turns such a name into the folder of one checkpoint.

Both commands read a model with chapter 08's `load`, so only this function has to grow. The rest of it is as before. `grown` shows the new lines.
"""


# %%
#| export checkpoint
from nanogpt.metrics import read_metrics


def chosen(place: str | Path) -> Path:
    """The checkpoint of a run's folder: runs/x is its newest complete one, runs/x/best that of its lowest validation loss.

    A path that is no run's folder is returned unchanged.
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
#| export sampling
from nanogpt.pretrained import load_pretrained, read_json


# %%
#| export sampling
#| grows load
def load(checkpoint: str, tokenizer: str | None = None) -> tuple[GPT, BPETokenizer]:
    """Model and tokenizer of a model's or a run's folder, a Hugging Face folder or a name on the hub.

    tokenizer: gpt2 or a tokenizer.json; by default the one beside the weights, or GPT-2's if the model has its vocabulary.
    """
    folder = chosen(checkpoint)
    if not folder.exists() and len(folder.parts) > 2:  # a name on the hub has two parts at most
        raise FileNotFoundError(f"{folder} is not there; chapter 07 writes data/built/model (course run 07)")
    config, beside = folder / "config.json", folder / "tokenizer.json"
    is_ours = config.is_file() and "model_type" not in read_json(config)
    if tokenizer is None and is_ours and beside.exists():
        tokenizer = beside
    model = load_model(folder) if is_ours else load_pretrained(checkpoint)
    if tokenizer is None and model.config.vocab_size in (50257, 50304):  # GPT-2's, plain or padded
        tokenizer = "gpt2"
    if tokenizer is None:
        raise ValueError(f"{checkpoint} has no tokenizer.json beside it; name one with --tokenizer")
    return model, BPETokenizer.gpt2() if tokenizer == "gpt2" else BPETokenizer.load(tokenizer)


# %%
grown("load", "17d")


# %%
print(chosen(RUNS / "run").name)

# %% [markdown]
r"""
## Appendix: the run's folder, and where its time goes

The rest of this sitting is plumbing. Two small helpers for chapter 17e belong to the same class: the run's folder as a path, and `timed`, which adds up the seconds that a block of code takes.
"""


# %%
#| export labs.long_run.training
class Training(Training):
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
run = assemble(config)
with run.timed("nothing"):
    pass
print(run.folder.name, *run.seconds)

# %% [markdown]
r"""
## Appendix: beginning with a trained model

A run may begin with a model that is already trained: one of ours, or one of Hugging Face's. Two mistakes would train without an error and give a useless model, so they are refused. If the model
learned another vocabulary, every id means another word. And if the configuration asks for four layers and the model has two, the run would have two. (Chapter 17c's `refuse_other_shape` refuses the second mistake, in a dry run as well.)

How can a run know what the model has learned? One of our folders has a tokenizer beside the weights, and its fingerprint must be that of the shards. In a folder of Hugging Face's only the number of tokens can be compared. It may be larger than that of the shards by some rows of
padding (chapter 13).

`init_from` goes through `chosen` as well, so it may be a checkpoint, or the folder of a run. The dry run finds its model in the same way.
"""


# %%
#| export labs.long_run.given
from dataclasses import replace
from pathlib import Path

from nanogpt.config import Config
from nanogpt.model import GPT
from nanogpt.pretrained import from_hf, read_json
from nanogpt.tokenizer import BPETokenizer
from nanogpt.weights import load_model


# %%
#| export labs.long_run.given
def refuse_other_words(config: Config, folder: Path, manifest: dict) -> None:
    """ValueError if init_from's folder keeps another tokenizer than the one that made the shards: ids would mean other words."""
    file = folder / "tokenizer.json"
    if file.exists() and (theirs := BPETokenizer.load(file).fingerprint) != manifest["fingerprint"]:
        made = f"{config.data.dir} was made with tokenizer {manifest['fingerprint'][:8]}"
        learned = f"init_from={config.init_from} learned {theirs[:8]}"
        raise ValueError(f"{made}, {learned}; set data.tokenizer={file} and a new data.dir")


def refuse_other_size(config: Config, tokens: int, needed: int) -> None:
    """ValueError if init_from's model has another number of tokens than the shards, up to 127 rows of padding."""
    if not needed <= tokens < needed + 128:
        two = f"init_from={config.init_from} has {tokens:,} tokens, {config.data.dir} {needed:,}"
        raise ValueError(f"{two}; set data.tokenizer to the model's, and a new data.dir")


# %%
#| export labs.long_run.given
def given_model(config: Config, manifest: dict) -> GPT:
    """The model of init_from with this run's dropout, in float32. ValueError if the run cannot begin with it."""
    folder = chosen(config.init_from)
    file = folder / "config.json"
    ours = file.exists() and "model_type" not in read_json(file)
    if ours:
        refuse_other_words(config, folder, manifest)
    there = load_model(folder) if ours else from_hf(config.init_from)
    refuse_other_shape(config, there.config)
    refuse_other_size(config, there.config.vocab_size, manifest["vocab_size"])
    model = GPT(replace(there.config, dropout=config.model.dropout, flash=config.model.flash))
    model.load_state_dict(there.float().state_dict())
    return model


# %%
#| export labs.plan.dryrun
#| grows folder_of
def folder_of(init_from: str) -> Path:
    """The folder of the model that a run begins with; of a run, its newest checkpoint, or its best as runs/x/best."""
    return chosen(init_from)


# %%
begins = replace(config, init_from=str(run.folder))
print(first_model(begins, manifest).config.n_layer, "layers, as the checkpoint has")
try:
    first_model(replace(begins, model=replace(config.model, n_layer=7)), manifest)
except ValueError as error:
    print(str(error).replace(str(RUNS), "…"))


# %% [markdown]
r"""
## Appendix: several runs in one figure

A curve alone says little, so `python -m nanogpt plot RUN RUN` draws what several runs have in common. Each step is drawn faintly, and the means of short stretches are
bold. A mean alone would hide a single step that took ten times as long.
"""


# %%
#| export metrics
import math
from collections.abc import Sequence


def column(lines: Sequence[dict], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of those lines that have a finite number there."""
    known = {x["step"]: x[name] for x in lines if x.get(name) is not None and math.isfinite(x[name])}
    return list(known), list(known.values())


# %%
#| export labs.long_run.plot
import argparse
import math
from collections.abc import Sequence
from importlib import import_module
from statistics import fmean

from nanogpt.metrics import read_metrics

PANELS = dict(loss="loss (nats)", norm="norm of the gradient", lr="learning rate", tokens_per_s="tokens/s")


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
#| export labs.long_run.plot
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
#| export labs.long_run.plot
def read_lines(path: str) -> list[dict]:
    """The steps of a run's folder or its metrics.jsonl; of llm.c's main.log by a lab, which is loaded for that (chapter 22b)."""
    if path.endswith(".log"):
        return import_module("nanogpt.labs.formats.llmc").read_log(path)
    return read_metrics(path)


# %%
#| export labs.long_run.plot
def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt plot`."""
    parser = argparse.ArgumentParser(description="Draw loss, norm, rate and throughput of runs together.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder, a metrics.jsonl or llm.c's log")
    parser.add_argument("--out", default="runs.png", metavar="FILE", help="a .png, .svg or .pdf (runs.png)")
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt plot`, its options parsed."""
    fig = draw_runs({name: read_lines(name) for name in args.runs})
    fig.savefig(args.out, dpi=120)
    print(f"{', '.join(args.runs)}: drawn to {args.out}")


# %% [markdown]
r"""
## Appendix: the command line

Each command is a module with two functions: `parser()` says which options it has, and `run(args)` does the work. `python -m nanogpt NAME` finds the module in a table. A module is imported only when its command is
given, so that help needs no PyTorch. The table names all commands of the course, and the help lists those whose module is already there: after this sitting, `train` is still missing.

All commands end alike, so that a script can rely on the exit code: 0 when all went well, 2 after one line that says what is wrong.

*Predict.* Which exit code does a shell expect of a program that Ctrl-C has ended? (The signal is SIGINT, number 2.)
"""

# %%
predict("17d.2", "exit code after Ctrl-C", guess=None)

# %%
#| export cli
import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

# %%
#| export cli
COMMANDS = {
    "prepare": (
        "nanogpt.labs.corpora.prepare",
        "text, JSONL, CSV or parquet -> shards of tokens (chapter 16b)",
    ),
    "plot": (
        "nanogpt.labs.long_run.plot",
        "draw loss, norm, rate and throughput of runs together (chapter 17d)",
    ),
    "compare": ("nanogpt.labs.long_run.compare", "where two runs part, and by how much (chapter 17f)"),
    "train": (
        "nanogpt.labs.long_run.trainer",
        "a run from a YAML file, started or gone on with (chapter 17e)",
    ),
    "sample": ("nanogpt.sampling", "continue a prompt with a trained model (chapter 08)"),
    "ladder": ("nanogpt.labs.ladder.ladder", "every speed-up on this machine, one on the other (chapter 14)"),
    "plan": (
        "nanogpt.labs.plan.plan",
        "memory, communication, time and cost of a run, by formula (chapter 22)",
    ),
    "eval": ("nanogpt.labs.evals.command", "how good a checkpoint is, by several measures (chapter 18b)"),
    "drill": ("nanogpt.labs.drills.ddp", "what several processes do together, under torchrun (chapter 20)"),
    "flight": ("nanogpt.labs.drills.flight", "what each rank of a deadlock waits for (chapter 20b)"),
}
USAGE = """usage: python -m nanogpt COMMAND [options]
{commands}

  python -m nanogpt COMMAND --help    options and examples of a command
Exit codes: 0 all went well, 1 the answer is no, 2 something is wrong (one line says what), 130 or 143 stopped (Ctrl-C)."""


# %%
#| export cli
def is_there(module: str) -> bool:
    """Whether a command's module has been written. It is not imported here: help must need no PyTorch."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor is its folder there
        return False


# %%
print("there are:", *(name for name in ("prepare", "sample", "ladder") if is_there(COMMANDS[name][0])))


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
        lines = [f"  {name:10} {what}" for name, (module, what) in COMMANDS.items() if is_there(module)]
        code = outcome("nanogpt", lambda: print(USAGE.format(commands="\n".join(lines))))
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1) or ["--help"]
        print(f"nanogpt: no command {name!r}; try python -m nanogpt {near[0]}", file=sys.stderr)
        code = 2
    reader_has_gone()
    return code


# %% [markdown]
r"""
*Check.* We run four commands that end badly, the last by Ctrl-C. Each of them prints one line on stderr, which we show here.
"""

# %%
with contextlib.redirect_stderr(sys.stdout):
    codes = [main(["pilot"]), main(["sample", "--tokens"]), main(["sample", "--checkpoint", "no/such/run"])]
    codes += [outcome("sample", partial(signal.raise_signal, signal.SIGINT))]
answer("17d.2", codes[-1])
assert codes == [2, 2, 2, 128 + signal.SIGINT], f"exit codes {codes}"

# %% [markdown]
r"""
The code is 128 plus the number of the signal. A shell gives the same code to a program that a signal has ended, and a loop in a script stops at it.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("17d")

# %%
checkpoint("17d")

# %% [markdown]
r"""
The parts are connected. Chapter 17e lets such a run work alone through the night.

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
