# %% [markdown]
r"""
# 17b · Checkpoints: whole or not there
TODO
"""

# %%
#| default_exp checkpoint
#| doc checkpoint: A checkpoint: a directory a step, whole or not there, proved by hashes.
#| doc assemble: What a run is made of: data, model, optimizer, and all that its steps change.
from pathlib import Path

from course.notebook import answer, checkpoint, predict, predictions
from nanogpt import optim
from nanogpt.model import GPTConfig, num_params
from nanogpt.train import train_step

# %%
RUNS = Path("../data/built/checkpoints")
predict("17b.1", "bytes of a checkpoint for each parameter, float32", guess=None)

# %% [markdown]
r"""
What does a step change? The weights; AdamW's two means for each of them, and how many steps it has made; the place in the data;
the generator from which dropout draws; in float16 the scale. And what the trainer itself keeps: counts, and the windows of its
z-scores. A checkpoint that forgets one of these is a checkpoint all the same: the run goes on, and the loss looks right.

The last cells of this section train a small model in four ways, so their sizes stand here.
"""


# %% [markdown]
r"""
### Whole or not there

A checkpoint is a folder: the weights as chapter 07 writes them, so that `sample` and `eval` read it, and all the rest as JSON, its tensors in
a safetensors file. No pickle: nothing in it can run. A nest of dictionaries with tensors in it is taken apart and put together:
"""


# %%
#| export checkpoint
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

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT
from nanogpt.shards import file_sha256, manifest_sha256
from nanogpt.weights import save_model

MANIFEST = "manifest.json"


# %%
#| export checkpoint
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


# %% [markdown]
r"""
`kill -9` may come while it is written, and then half a file stands under the right name. So it is written under another one, and renamed
when it is whole: a rename is done or not done. A power cut is worse, since what was written may still be in memory only, and a name can reach
the disk before what it names. Hence the order: write, flush each file, flush the folder, rename, flush the folder above.
"""


# %%
#| export checkpoint
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
#| export checkpoint
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
A rename does not help against a disk that gives back other bits, or a copy that stopped half-way. So a manifest holds the SHA-256 of each file, and
loading compares every byte. What is damaged is passed over, aloud.
"""


# %%
#| export checkpoint
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
#| export checkpoint
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
#| export checkpoint
def prune(folder: str | Path, keep: int, step: int, also: Collection[int] = ()) -> None:
    """Delete all checkpoints before `step` but the keep - 1 last ones and those of the steps in `also`."""
    before = [path for path in checkpoints(folder) if int(path.name[5:]) < step]
    for path in before[: max(0, len(before) - (keep - 1))]:
        if int(path.name[5:]) not in also:
            aside = path.rename(path.with_name(f".{path.name}.tmp"))  # a half deleted one has no name
            shutil.rmtree(aside)


# %% [markdown]
r"""
*Check.* A model of `tiny`'s shape after one step, saved; then one bit of it is turned over.
"""

# %% tags=["nbval-ignore-output"]
shutil.rmtree(RUNS, ignore_errors=True)
model = GPT(GPTConfig(block_size=128, vocab_size=1024, n_layer=2, n_head=8, n_embd=128))
adamw = optim.make_optimizer(model, 1e-3)
ids = torch.zeros(1, 9, dtype=torch.int64)
train_step(model, adamw, [(ids[:, :-1], ids[:, 1:])])
path = save(RUNS / "one", 1, model, {"optimizer": adamw.state_dict()})
sizes = {file.name: file.stat().st_size for file in sorted(path.iterdir())}
for name, size in sizes.items():
    print(f"{name:20}{size:10,} bytes")
P = num_params(model.config)
print(
    f"{sum(sizes.values()) / P:.2f} bytes for each of {P:,} parameters; 3 × 4 are for the weight and AdamW's two means"
)
answer("17b.1", round(sum(sizes.values()) / P, 2))
assert 12 <= sum(sizes.values()) / P < 13, "more is saved than weights and means, or less"

# %%
data = bytearray((path / "state.safetensors").read_bytes())
data[len(data) // 2] ^= 1  # one bit of some 4 million
(path / "state.safetensors").write_bytes(data)
print(fault(path))


# %%
#| export checkpoint
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


# %%
#| export assemble
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from nanogpt import optim
from nanogpt.corpus import ensure_corpus
from nanogpt.data import BatchStream, DocumentStream
from nanogpt.device import pick_device, seed_everything

# %%
#| export assemble
from nanogpt.config import Config, Data, config_dict, keys
from nanogpt.hub import read_json
from nanogpt.model import GPT, GPTConfig
from nanogpt.precision import LossScaler, why_not
from nanogpt.prepare import prepare
from nanogpt.pretrained import from_hf
from nanogpt.runs import Window
from nanogpt.shards import load_manifest, open_shards, read_shard
from nanogpt.sources import blocks_in, cut_files, find_files
from nanogpt.tokenizer import BPETokenizer
from nanogpt.train import scale_init
from nanogpt.weights import load_model


# %% [markdown]
r"""
### What a run is made of

From the configuration to shards, a model, an optimizer. All that steps change is in one place, `Training`, and what of it a checkpoint holds is
a list of names. Two orders matter: the seed is set *last*, so that nothing before it (a benchmark, a sample) shifts dropout; and the model has a
generator of its own.
"""


# %%
#| export assemble
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
#| export assemble
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
#| export assemble
def tokenizer_of(data: Data, manifest: dict) -> BPETokenizer | None:
    """The tokenizer that made the shards; None where it is not to be had."""
    for name in (Path(data.dir) / "tokenizer.json", data.tokenizer):
        with suppress(OSError, ValueError, TypeError):
            found = BPETokenizer.gpt2() if name == "gpt2" else BPETokenizer.load(name)
            if found.fingerprint == manifest["fingerprint"]:
                return found


# %%
#| export assemble
def first_model(config: Config, vocab_size: int) -> GPT:
    """The model before its first step: new, or init_from's with this run's dropout, in float32, on the CPU."""
    if config.init_from is None:
        shape = GPTConfig(**vars(config.model), vocab_size=vocab_size)
        return scale_init(GPT(shape, torch.Generator().manual_seed(config.run.seed)))
    file = Path(config.init_from, "config.json")
    ours = file.exists() and "model_type" not in read_json(file)
    there = load_model(config.init_from) if ours else from_hf(config.init_from)
    if there.config.vocab_size < vocab_size or there.config.block_size < config.model.block_size:
        has = f"{there.config.vocab_size} tokens and a context of {there.config.block_size}"
        needs = f"{vocab_size} and model.block_size={config.model.block_size}"
        raise ValueError(f"init_from={config.init_from} has {has}; the run needs {needs}")
    model = GPT(replace(there.config, dropout=config.model.dropout, flash=config.model.flash))
    model.load_state_dict(there.float().state_dict())
    return model


# %%
#| export assemble
@dataclass
class Training:
    """A run in memory. What `state_dict` names is what steps change: with it and the weights, a run goes on bit for bit."""

    config: Config
    device: torch.device
    tokenizer: BPETokenizer | None
    eot: int
    held: list  # the first eval.tokens of the validation shards
    model: GPT
    stepper: torch.nn.Module  # the model, or the same compiled
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
#| export assemble
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
#| export assemble
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
#| export assemble
def held_out(folder: str, tokens: int) -> list[np.ndarray]:
    """The first so many tokens of the validation shards."""
    held = []
    for path in open_shards(folder, "val"):
        held.append(read_shard(path)[:tokens])
        tokens -= len(held[-1])
    return held


# %%
#| export assemble
def assemble(config: Config) -> Training:
    """All that a run needs, before its first step."""
    c, o, device = config, config.optim, pick_device(config.run.device)
    if reason := why_not(c.train.dtype, device):
        raise ValueError(f"train.dtype: {reason}")
    manifest = ensure_data(c.data)
    tokenizer = tokenizer_of(c.data, manifest)
    if tokenizer is None and c.eval.sample_every + c.eval.hellaswag_every:
        raise ValueError(f"samples need the tokenizer that made {c.data.dir}; or set eval.sample_every=0")
    model = first_model(c, manifest["vocab_size"]).to(device).train()
    kind, shards = DocumentStream if c.data.documents else BatchStream, open_shards(c.data.dir, "train")
    optimizer = optim.make_optimizer(model, o.lr, c.train.dtype, betas=o.betas, weight_decay=o.weight_decay)
    parts = {
        "tokenizer": tokenizer,
        "eot": manifest["eot"],
        "held": held_out(c.data.dir, c.eval.tokens) if c.eval.every else [],
        "model": model,
        "stepper": torch.compile(model) if c.train.compile else model,
        "optimizer": optimizer,
        "stream": kind(shards, c.train.micro_batch, c.model.block_size, seed=c.run.seed, device=device),
        "scaler": LossScaler() if c.train.dtype == "fp16" else None,
    }
    seed_everything(c.run.seed)  # last, whatever has drawn numbers before: from now on only dropout does
    return Training(c, device, **parts)


# %% [markdown]
r"""
The same command starts and resumes, so it may come with another configuration. What belongs to the run's identity cannot change on its way;
how long it runs, where it is saved and how often it is looked at can, and is said.
"""


# %%
#| export assemble
FREE = "run.", "eval.", "train.", "data.dir", "data.source"  # may change on a run's way
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
#| export assemble
def resume(config: Config) -> Training:
    """The run as its newest whole checkpoint has it, or at its beginning."""
    folder = Path(config.run.dir)
    for aside in folder.glob(".step_*.tmp"):  # what kill -9 left
        shutil.rmtree(aside)
    if found := latest(folder):
        state = load(found)
        compare(config, state["config"])
    run = assemble(config)
    if found:
        run.model.load_state_dict(load_model(found).state_dict())
        run.load_state_dict(state)
        run.kept = found
        print(f"going on after step {run.step}, from {found}")
    repair(folder / "metrics.jsonl", run.step)
    return run


# %% [markdown]
r"""
## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("17b")

# %%
checkpoint("17b")
