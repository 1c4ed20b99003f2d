"""What a run is made of: data, model, optimizer, and all that its steps change.

Exported from notebooks/17d_assembly.ipynb.
"""

import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.corpora.prepare import prepare
from nanogpt.corpora.sources import blocks_in, cut_files, find_files
from nanogpt.device import pick_device, seed_everything
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.precision import LossScaler, why_not
from nanogpt.gpt.pretrained import from_hf, read_json
from nanogpt.gpt.train import scale_init
from nanogpt.gpt.weights import load_model
from nanogpt.parallel.distributed import Ranks
from nanogpt.parallel.laid_out import fill, lay_out, optimizer_for  # chapter 21d
from nanogpt.run.checkpoint import latest, load, random_states, repair, set_random_states
from nanogpt.run.config import Config, Data, Model, config_dict, keys
from nanogpt.run.metrics import Window
from nanogpt.run.together import first_alone, held_out, refuse_other_runs, stream_of  # chapter 20b
from nanogpt.text.data import BatchStream
from nanogpt.text.shards import load_manifest
from nanogpt.text.tokenizer import BPETokenizer


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


def tokenizer_of(data: Data, manifest: dict) -> BPETokenizer | None:
    """The tokenizer that made the shards; None where it is not to be had."""
    for name in (Path(data.dir) / "tokenizer.json", data.tokenizer):
        with suppress(OSError, ValueError, TypeError):
            found = BPETokenizer.gpt2() if name == "gpt2" else BPETokenizer.load(name)
            if found.fingerprint == manifest["fingerprint"]:
                return found


def refuse_other_words(config: Config, manifest: dict) -> None:
    """ValueError if init_from keeps a tokenizer, and it is not the one that made the shards: every id meant another word."""
    file = Path(config.init_from, "tokenizer.json")
    if file.exists() and (theirs := BPETokenizer.load(file).fingerprint) != manifest["fingerprint"]:
        made = f"{config.data.dir} was made with tokenizer {manifest['fingerprint'][:8]}"
        raise ValueError(
            f"{made}, init_from={config.init_from} learned {theirs[:8]}; set data.tokenizer={file} and a new data.dir"
        )


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


KEPT = "step", "updates", "bad", "record", "best", "skipped", "seconds", "windows"


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
