# %% [markdown]
r"""
# 17b · Checkpoints: whole or not there

A run of days will be interrupted: the machine is wanted by somebody else, reboots, loses power. What is left of it is what was on the disk, so
two questions decide what the days were worth. *What belongs into a checkpoint?* One that forgets something is a checkpoint all the same: the run
goes on, and the loss looks right. And *how is it written?* One that was cut off half-way has a name, a date and a plausible size.

| what a step changes | where it is | what a run does that forgets it |
|---|---|---|
| the weights | 4 bytes a parameter | begins again |
| AdamW's two means, and its count of steps | 8 bytes a parameter | stumbles: chapter 17c measures it |
| the place in the data | a few numbers | reads the first part twice, the last part never |
| the generator that dropout draws from | 5 kB | repeats its random numbers |
| float16's scale | a few numbers | skips steps until it has found it again |
| counts, the windows of z-scores, the best loss | some 270 numbers | another learning rate; no z for 128 steps |

None of the last five raises an error, and none shows in a single loss. So the law of this sitting is not "it loads" but: a run that was
saved and loaded is the run that was not, to the last bit.
"""

# %%
#| default_exp run.checkpoint
#| doc run.checkpoint: A checkpoint: a directory a step, whole or not there, proved by hashes.
#| doc run.metrics: What a run has written: read, drawn, and how far out its newest step is; and the command `plot`.
#| doc run.assemble: What a run is made of: data, model, optimizer, and all that its steps change.
import signal
import sys
import warnings

from course.figures import checkpoints as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.gpt.model import GPTConfig, num_params
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.train import train_step
from nanogpt.run.config import load_config
from nanogpt.text.data import DocumentStream
from nanogpt.text.shards import open_shards


# %%
BEFORE, AFTER, WEIGHTS = 12, 4, 6  # steps before and after a resume; weights of which each bit is flipped
assert min(BEFORE, AFTER, WEIGHTS) > 0, f"{BEFORE}, {AFTER}, {WEIGHTS}: each must be above 0"
predict("17b.1", "bytes of a checkpoint for each parameter, float32", guess=None)
predict("17b.2", "moments, of those drawn, at which kill -9 leaves half of it", guess=None)
predict("17b.3", "of a weight's 32 bits: their flip shows in the loss", guess=None)
predict("17b.4", "first loss that shows that AdamW's means were lost", guess=None)


# %% [markdown]
r"""
## A nest of tensors, without pickle

A checkpoint is a folder: the weights as chapter 07 writes them, so that `sample` and `eval` read it, and all the rest as JSON, its tensors in
a safetensors file. No pickle: nothing in it can run when it is read. PyTorch's `state_dict` of an optimizer is a nest of dictionaries and lists with tensors
here and there, which is taken apart and put together:
"""


# %%
#| export run.checkpoint
import json
import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor

from nanogpt.gpt.model import GPT
from nanogpt.gpt.weights import save_model
from nanogpt.text.files import atomically, save_json
from nanogpt.text.shards import file_sha256, manifest_sha256

MANIFEST = "manifest.json"


# %%
#| export run.checkpoint
#| blank pack: a tensor goes into tensors, dicts and lists are packed part by part, the rest stays
#| blank unpack: the way back: look up each tensor, unpack dicts and lists part by part
def pack(value, name: str, tensors: dict[str, Tensor]):
    """The same nest of dicts and lists for JSON: a tensor moves to `tensors`, and its name stands in its place."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {str(key): pack(part, f"{name}.{key}", tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [pack(part, f"{name}.{i}", tensors) for i, part in enumerate(value)]
    return value


def unpack(value, tensors: dict[str, Tensor]):
    """What `pack` was given, with lists for tuples; keys of digits are numbers again."""
    if isinstance(value, list):
        return [unpack(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tensor"}:
        return tensors[value["tensor"]]
    return {int(key) if key.isdigit() else key: unpack(part, tensors) for key, part in value.items()}


# %%
print(packed := pack({"means": [torch.ones(2), torch.zeros(2)], "steps": 3}, "state", tensors := {}))
assert unpack(packed, tensors)["means"][0].tolist() == [1, 1], "what comes back is not what went in"

# %% [markdown]
r"""
## Whole or not there

`kill -9` may come while it is written, and then half of it stands under the right name. So it is written under another one, and renamed
when it is whole: a rename is done or not done. A power cut is worse, since what was written may still be in memory only, and a name can reach
the disk before what it names (Pillai et al. 2014 found this in databases and version control systems alike). Hence the order: write, flush each file, flush the folder's list of names, rename,
flush the folder above.
"""


# %%
#| export run.checkpoint
def to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk itself and not only in memory."""
    if os.name == "nt":  # has no handle for a folder, and flushes on its own
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# %%
#| export run.checkpoint
def save(folder: str | Path, step: int, model: GPT, state: dict, tokenizer=None) -> Path:
    """Write folder/step_000123, whole or not at all: weights as save_model writes them, state, a manifest of hashes."""
    target = Path(folder) / f"step_{step:06d}"
    aside, tensors = target.with_name(f".{target.name}.tmp"), {}
    shutil.rmtree(aside, ignore_errors=True)
    try:
        save_model(model, aside)
        save_json(aside / "state.json", pack(state, "state", tensors))
        with atomically(aside / "state.safetensors") as file:
            file.write(serialize(tensors))
        if tokenizer is not None:
            tokenizer.save(aside / "tokenizer.json")
        manifest = {"step": step, "files": {p.name: file_sha256(p) for p in sorted(aside.iterdir())}}
        save_json(aside / MANIFEST, manifest | {"sha256": manifest_sha256(manifest)})
        for path in (*aside.iterdir(), aside):
            to_disk(path)
        shutil.rmtree(target, ignore_errors=True)  # only a damaged one is written again
        os.rename(aside, target)
        to_disk(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


# %% [markdown]
r"""
*See.* What does a kill leave, at each moment? Two ways of writing are killed before each change that they make to the disk: files straight into their place, and
`save`. Python announces the changes (`sys.addaudithook`), and a child process that has heard enough of them kills itself; what it leaves is looked at.

*Predict* (17b.2). Straight into its place there are four files, each opened under another name and renamed: nine moments, with the one after the last. How many of them leave a
checkpoint with a part missing?
"""


# %%
def straight(folder: Path, step: int, model: GPT, state: dict) -> None:
    """The same files, each atomic, without a name aside."""
    target, tensors = folder / f"step_{step:06d}", {}
    save_model(model, target)
    save_json(target / "state.json", pack(state, "state", tensors))
    with atomically(target / "state.safetensors") as file:
        file.write(serialize(tensors))


# %%
def killed(moment: int, write, folder: Path, *what) -> bool:
    """Write in a child process that is killed before its change of that number; false if it makes fewer."""
    with warnings.catch_warnings(action="ignore"):  # to fork is unwise beside threads; this child dies anyway
        if child := os.fork():
            return os.waitpid(child, 0)[1] != 0
    changes = []

    def hook(event: str, args: tuple) -> None:
        written = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
        if (written or event == "os.rename") and folder.name in str(args[0]):
            changes.append(event)
            if len(changes) == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        write(folder, *what)
    finally:
        os._exit(0)


# %%
def left_by(write) -> list[str]:
    """What stands under the newest name after a kill before the first change, the second, and so on."""
    found, folder = [], RUNS / "kills"
    model = GPT(GPTConfig(block_size=8, vocab_size=16, n_layer=1, n_head=1, n_embd=8))
    for moment in range(1, 99):
        shutil.rmtree(folder, ignore_errors=True)
        save(folder, 1, model, {})
        dead = killed(moment, write, folder, 2, model, {"means": torch.ones(8)})
        newest = max(folder.glob("step_*"))
        new = "the new one" if len(list(newest.glob("[!.]*"))) >= 4 else "half of the new one"
        found.append("the old one" if newest.name == "step_000001" else new)
        if not dead:
            return found


# %%
shutil.rmtree(RUNS := Path("../data/built/checkpoints"), ignore_errors=True)
torch.set_num_threads(1)  # a forked child can have no more, and the same bits take the same number
ways = {"straight": left_by(straight), "aside, renamed": left_by(save)} if hasattr(os, "fork") else {}
for name, found in ways.items():
    print(name, {what: found.count(what) for what in dict.fromkeys(found)})
    assert name == "straight" or "half of the new one" not in found, "a half one has a name"
answer("17b.2", ways["straight"].count("half of the new one") if ways else "Windows has no fork")
show(figures.moments(ways), alt="Kills in order: straight, most leave half a checkpoint; renamed, none does.")

# %% [markdown]
r"""
Half a checkpoint that is noticed is a nuisance, since the run goes on from the one before. Half a checkpoint that is not noticed loads where a part
may be absent, and that is the danger of writing files one by one: each is whole. (A flush cannot be tested by a kill: what a process has written survives it. The
tests look at the order of the calls instead.)

## A flipped bit

A rename does not help against a disk that gives back other bits, or against a copy that stopped half-way. How bad is one bit?

*See.* A model of `tiny`'s shape is trained for some steps and saved. Then each bit of some of its weights is turned over, one at a time, and the loss is
taken again.

*Predict* (17b.3). A float32 has a sign, 8 bits of exponent and 23 of fraction. How many of the 32 change the loss by more than 0.01 nats?
"""


# %% tags=["nbval-ignore-output"]
manifest = ensure_corpus(RUNS / "stories", n=1000)
stream = DocumentStream(open_shards(RUNS / "stories", "train"), 4, 128, seed=0)
shape = GPTConfig(**vars(load_config("tiny").model), vocab_size=manifest["vocab_size"])
model = GPT(shape, torch.Generator().manual_seed(0))
adamw = make_optimizer(model, 2e-3)
for _ in range(BEFORE):
    train_step(model, adamw, [stream.next_batch()])
path = save(RUNS / "one", BEFORE, model, {"optimizer": adamw.state_dict()})
sizes, P = {file.name: file.stat().st_size for file in sorted(path.iterdir())}, num_params(model.config)
print(*(f"{name:20}{size:10,} bytes" for name, size in sizes.items()), sep="\n")
answer("17b.1", sum(sizes.values()) / P)
print(f"{sum(sizes.values()) / P:.2f} for each of {P:,} parameters: 3 × 4 are the weight and two means")
assert 12 <= sum(sizes.values()) / P < 13, "more is saved than weights and means, or less"


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def changes(bit: int, x: Tensor, y: Tensor) -> list[float]:
    """How far the loss moves when this bit of a weight is turned over; of some weights."""
    found, g, before = [], torch.Generator().manual_seed(0), model(x, y)[1]
    mask = torch.tensor(1 << bit).to(torch.int32)
    matrices = [p.view(torch.int32).flatten() for p in model.parameters() if p.dim() == 2]
    for _ in range(WEIGHTS):
        bits = matrices[int(torch.randint(len(matrices), (), generator=g))]
        at = int(torch.randint(len(bits), (), generator=g))
        bits[at] ^= mask
        found.append((model(x, y)[1] - before).abs().item())
        bits[at] ^= mask
    return found


x, y = stream.next_batch()
moved = [changes(bit, x[:1], y[:1]) for bit in range(32)]
shown = [bit for bit in range(32) if not max(moved[bit]) < 0.01]  # a loss that is NaN counts
answer("17b.3", len(shown))
show(figures.bits(moved), alt="Change of the loss over the flipped bit: the exponent's highest stands out.")


# %% [markdown]
r"""
The exponent's highest bit multiplies a small weight by $2^{128}$, and nobody overlooks that; one or two beside it may multiply by 256 or more. All others hide from whoever looks at
the loss, and yet the run is another one from there on. Only a comparison of every byte finds them. So a manifest holds the SHA-256 of each file, and one of itself; loading compares, and what is damaged is
passed over, aloud.
"""


# %%
#| export run.checkpoint
#| blank fault: first the manifest's own hash, then each file's; say which one is missing
def fault(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in a few words, after comparing every byte with its manifest; None if nothing."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_bytes())
        if manifest["sha256"] != manifest_sha256(manifest):
            return f"{MANIFEST} has changed"
        changed = [name for name, sha in manifest["files"].items() if file_sha256(checkpoint / name) != sha]
        return f"{changed[0]} has changed" if changed else None
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"


def checkpoints(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, in the order of their steps."""
    found = [path for path in Path(folder).glob("step_*") if re.fullmatch(r"step_\d{6,}", path.name)]
    return sorted(found, key=lambda path: int(path.name[5:]))


# %%
data = bytearray((file := path / "state.safetensors").read_bytes())
data[len(data) // 2] ^= 1  # one bit of some 35 million
file.write_bytes(data)
print(fault(path))


# %% [markdown]
r"""
The newest whole one is taken. If all are damaged the run ends, with a sentence: to begin again would write over what might be saved by hand. Old ones are
deleted, the best one is kept; and deleting begins with a rename, since a half deleted folder is a half written one.
"""


# %%
#| export run.checkpoint
#| blank latest: begin with the newest and say why one is passed over; all damaged is an error
def latest(folder: str | Path, say=print) -> Path | None:
    """The newest whole checkpoint; `say` hears of each damaged one that is passed over. None if there is none at all.

    ValueError if all are damaged: to begin again would write over what could be saved by hand.
    """
    found = checkpoints(folder)
    for path in reversed(found):
        if (wrong := fault(path)) is None:
            return path
        say(f"{path} is damaged ({wrong}); the one before it is used")
    if found:
        raise ValueError(f"no checkpoint in {folder} is whole; move them away to begin again")
    return None


def load(checkpoint: Path) -> dict:
    """The state that was given to `save`. The weights beside it are read by load_model."""
    packed = json.loads((checkpoint / "state.json").read_bytes())
    return unpack(packed, load_file(checkpoint / "state.safetensors"))


# %%
#| export run.checkpoint
def prune(folder: str | Path, keep: int, step: int, also: Collection[int] = ()) -> None:
    """Delete all checkpoints before `step` but the keep - 1 last ones and those of the steps in `also`."""
    before = [path for path in checkpoints(folder) if int(path.name[5:]) < step]
    for path in before[: max(0, len(before) - (keep - 1))]:
        if int(path.name[5:]) not in also:
            aside = path.rename(path.with_name(f".{path.name}.tmp"))  # a half deleted one has no name
            shutil.rmtree(aside)


# %% [markdown]
r"""
Beside the checkpoints stands `metrics.jsonl`, a line for each step (chapter 17c). After `kill -9` its last line may be torn, and it may be ahead of the newest checkpoint. What
comes after the checkpoint is cut off, and made again.
"""


# %%
#| export run.checkpoint
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


# %% [markdown]
r"""
## How far out is a loss?

A run has one more part that steps change: a memory of its last losses. Chapter 17c leaves out a step whose loss is unusual, so the run must know
what is usual. A fixed limit does not work for long: a loss of 4 nats is good at step 100 and an alarm at step 10,000. So `Window` keeps the last 128 values, as llm.c does. Its method `z` takes a new value in and
says how far the value is from the mean of all that are kept, in standard deviations.

The new value is part of its own window, so it moves the mean and the deviation that it is compared with.

*Predict.* Then one value cannot be arbitrarily far out. How far at most, among 128?
"""


# %%
#| export run.metrics
import math
from collections import deque
from collections.abc import Iterable
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
predict("17b.5", "the largest z-score that one of 128 values can have", guess=None)
largest = Window([0.0] * (WINDOW - 1)).z(1e6)
print(f"{largest:.2f}, which is √{WINDOW - 1}")
answer("17b.5", largest)

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
from nanogpt.text.data import BatchStream, DocumentStream

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
from nanogpt.run.config import Config, Data, Model, config_dict, keys
from nanogpt.run.together import first_alone, held_out, refuse_other_runs, stream_of  # chapter 20b
from nanogpt.text.shards import load_manifest, open_shards
from nanogpt.text.tokenizer import BPETokenizer


# %%
#| export run.assemble
def random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """Where PyTorch's global generators are: the CPU's and the device's. Dropout draws from them, and nothing else does."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state()
    return states


def set_random_states(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Let the generators go on from there."""
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu" and "device" in states:  # not there if the run began on a CPU
        torch.get_device_module(device).set_rng_state(states["device"])


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
#| export run.assemble
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


# %% [markdown]
r"""
## Going on

The same command starts and resumes, so it may come with another configuration. What belongs to the run's identity cannot change on its way: a loss
curve of two learning rates belongs to neither. Where it is saved and how often it is looked at may change, and that is said. How long it runs
may change too, but a schedule that falls towards the last step then has another rate from here on. Chapter 17c's trainer prints both rates if it rises.
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
*Check.* The law: some steps, a checkpoint, some steps more; and the same from the checkpoint, as in a process that knows nothing else. Dropout is on, or nothing would be random.

*Predict* (17b.4). Then the run is resumed with one part as it was at the start. With the place in the data forgotten, the very first loss is another one. Which is the first that shows
AdamW's means to be gone?
"""


# %%
def steps(run: Training, n: int) -> list[float]:
    """The losses of so many steps as the trainer makes them: a batch, an update by it."""
    run.step += n
    return [train_step(run.model, run.optimizer, [run.stream.next_batch()]).item() for _ in range(n)]


mine = [f"data.dir={RUNS}/stories", f"run.dir={RUNS}/run", "run.device=cpu", "model.dropout=0.1"]
run = resume(config := load_config("tiny", mine))
steps(run, BEFORE)
save(run.folder, run.step, run.model, run.state_dict(), run.tokenizer)
went_on = steps(run, AFTER)
assert steps(resume(config), AFTER) == went_on, "the resumed run is not the one that went on"


# %%
forget = {
    "the place in the data": lambda run: setattr(run.stream, "position", 0),
    "dropout's generator": lambda run: torch.manual_seed(0),
    "AdamW's means": lambda run: run.optimizer.state.clear(),
}
for what, of in forget.items():
    of(half := resume(config))
    parted = next((n for n, (a, b) in enumerate(zip(steps(half, AFTER), went_on), 1) if a != b), None)
    print(f"{what} forgotten: {f'loss {parted} is the first that differs' if parted else 'no loss differs'}")
answer("17b.4", parted)


# %% [markdown]
r"""
A loss is taken before its update, so a fault in the optimizer shows a step later than one in the data: a test that makes one step after loading would
call it whole.

## Checkpoint
"""


# %% tags=["nbval-ignore-output"]
predictions("17b")


# %%
checkpoint("17b")


# %% [markdown]
r"""
The package can now stop and go on. When to stop, whether a step counts, and what may be done on the way without being noticed, is chapter 17c.

## Exercises

`course exercises release 17` writes these, and those of 17 and 17c, as a notebook to `released/`; `course check 17` runs their visible checks.

- **17-2** Old or new, and nothing between, 25 minutes: order four calls so that no crash tears a file.
- **17-3** What a run must remember, 30 minutes: mend a resume whose losses differ.
- **17-4** A log that ends in mid-line, 20 minutes: write the check that finds a repair which loses a step or keeps one twice.
- **17-6** What may change on the way, 10 minutes: a run goes on with half the memory.

To explore:

1. Put `save`'s `os.rename` before its flushes. Check: which test in `tests/run/test_ch17b_checkpoint.py` fails, and why does the figure of kills not change?
2. Leave the manifest out of `save`, and let `fault` look only for missing files. Which damages of that test file are still found? Check by running it.
3. A 1.5B model's checkpoint: predict its bytes, and the seconds of writing and of hashing on this machine from the rates that you measure here. Check with
   `time` around `save` and `fault` for two sizes: is it linear?
4. Store AdamW's means as bfloat16. Check with `steps`: after how many losses do the runs part, and how far are they apart after 100?
5. Let the stream shuffle with Python's `random` instead of a key. Which test fails first? Mend it with `random.getstate` in `random_states`, and check with the same test.
6. `FREE` lets `data.dir` change. What stops a run from going on with other shards? Check: move the shards, then change one.

## Further reading

- Pillai et al. 2014, *All File Systems Are Not Created Equal*, OSDI: which orders of writes, flushes and renames survive a power cut.
- Rebello et al. 2020, *Can Applications Recover from fsync Failures?*, USENIX ATC.
- Bairavasundaram et al. 2008, *An Analysis of Data Corruption in the Storage Stack*, FAST: how often a disk gives back other bits.
- Hochschild et al. 2021, *Cores that don't count*, HotOS: the bits that the processor turns.
- llm.c, `train_gpt2.cu`: a resume that is checked to be deterministic.
"""
