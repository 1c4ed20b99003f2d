"""From a configuration to a run: data, model and optimizer made, and a checkpoint gone on with.

Exported from notebooks/17d_assembly.ipynb, grown by notebooks/20a_many_processes.ipynb and
notebooks/21d_layouts.ipynb.
"""

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
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
from nanogpt.parallel.laid_out import (
    compile_blocks,
    fill,
    first_weights,
    is_laid_out,
    lay_out,
    made_in_parts,
    optimizer_for,
    saved_weights,
)
from nanogpt.run.checkpoint import chosen, is_in_parts, latest, repair
from nanogpt.run.checkpoint import load as load_state
from nanogpt.run.config import Config, Data, Model, config_dict, keys
from nanogpt.run.together import first_alone, refuse_other_runs
from nanogpt.run.training import Training
from nanogpt.text.data import BatchStream, DocumentStream
from nanogpt.text.shards import load_manifest, open_shards, read_shard
from nanogpt.text.tokenizer import BPETokenizer


def make_data(data: Data) -> None:
    """Make the shards of data.dir from data.source: the course's stories, or a text with a tokenizer of its own."""
    folder, tokenizer = Path(data.dir), data.tokenizer
    if data.source == "stories":
        ensure_corpus(folder)
        return
    source = Path(data.source)
    if isinstance(tokenizer, int):  # one of so many tokens, learned from the text's first 16 MB
        spans = next(cut_files(find_files(source), 1 << 24, data.paragraphs))
        texts = (text for span in spans for _, block in blocks_in(span, 1 << 20) for text in block)
        BPETokenizer.train(texts, tokenizer).save(tokenizer := folder / "tokenizer.json")
    prepare(source, folder, tokenizer, data.val, 0.0, data.paragraphs)


def ensure_data(data: Data) -> dict:
    """The manifest of data.dir, whose shards are made first where there are none."""
    if not Path(data.dir, "manifest.json").exists():
        if data.source is None:
            raise FileNotFoundError(
                f"data.dir={data.dir} has no shards; `python -m nanogpt prepare` makes some"
            )
        make_data(data)
    return load_manifest(data.dir)


def tokenizer_of(data: Data, manifest: dict) -> BPETokenizer | None:
    """The tokenizer that made the shards, or None if it is neither beside them nor named."""
    for name in (Path(data.dir) / "tokenizer.json", data.tokenizer):
        with suppress(OSError, ValueError, TypeError):
            found = BPETokenizer.gpt2() if name == "gpt2" else BPETokenizer.load(name)
            if found.fingerprint == manifest["fingerprint"]:
                return found


def stream_of(config: Config, ranks: Ranks) -> BatchStream:
    """The run's batches; several ranks take the micro-batches in turn, so that all together read what one would."""
    kind = DocumentStream if config.data.documents else BatchStream
    shards, B, T = open_shards(config.data.dir, "train"), config.train.micro_batch, config.model.block_size
    dealt = {"rank": ranks.rank, "world_size": ranks.size}
    return kind(shards, B, T, seed=config.run.seed, device=ranks.device, **dealt)


def held_out(folder: str, tokens: int) -> list[np.ndarray]:
    """The first so many tokens of the validation shards."""
    held = []
    for path in open_shards(folder, "val"):
        held.append(read_shard(path)[:tokens])
        tokens -= len(held[-1])
    return held


def first_model(config: Config, manifest: dict) -> GPT:
    """The model before its first step: new, or init_from's with this run's dropout, in float32, on the CPU."""
    if config.init_from is not None:
        return given_model(config, manifest)
    shape = GPTConfig(**vars(config.model), vocab_size=manifest["vocab_size"])
    return scale_init(GPT(shape, torch.Generator().manual_seed(config.run.seed)))


def optimizer_of(config: Config, model: GPT) -> torch.optim.Optimizer:
    """Chapter 15's optimizer, as the configuration has it, for a model in any layout."""
    o, train = config.optim, config.train
    options = {"betas": o.betas, "weight_decay": o.weight_decay, "compiled": train.compile}
    return optimizer_for(model, o.lr, train.dtype, **options)


def begun(config: Config, manifest: dict, model: GPT, stepper, optimizer, stream: BatchStream) -> Training:
    """A run of these parts, before its first step."""
    c, tokenizer = config, tokenizer_of(config.data, manifest)
    if tokenizer is None and c.eval.sample_every + c.eval.hellaswag_every:
        raise ValueError(f"samples need the tokenizer that made {c.data.dir}; or set eval.sample_every=0")
    held = held_out(c.data.dir, c.eval.tokens) if c.eval.every else []
    stepper = torch.compile(stepper) if c.train.compile else stepper
    scaler = LossScaler() if c.train.dtype == "fp16" else None
    seed_everything(c.run.seed)  # last, whatever has drawn numbers before: from now on only dropout does
    device = next(model.parameters()).device
    return Training(c, device, tokenizer, (held, manifest["eot"]), model, stepper, optimizer, stream, scaler)


def assemble(config: Config, ranks: Ranks | None = None) -> Training:
    """All that a run needs, before its first step. ranks: those that share each batch; else there is one."""
    ranks = ranks or Ranks(device=pick_device(config.run.device))
    if reason := why_not(config.train.dtype, ranks.device):
        raise ValueError(f"train.dtype: {reason}")
    manifest = first_alone(ranks, ensure_data, config.data)
    if ranks.size > 1 and (config.parallel.shard or config.parallel.tp > 1):
        model, readers = first_parts(config, manifest, ranks)
        stepper = model
    else:
        model = first_model(config, manifest).to(ranks.device)
        stepper, readers = lay_out(model, config, ranks)
    optimizer, stream = optimizer_of(config, model), stream_of(config, readers)
    run = begun(config, manifest, model.train(), stepper, optimizer, stream)
    run.ranks = ranks
    if config.train.compile and is_laid_out(model):
        run.stepper = compile_blocks(model)  # begun's, the complete model compiled, has not been called
    return run


FREE = "run.", "eval.", "train.", "parallel.", "data.dir", "data.source"  # may change on a run's way

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


def take_weights(run: Training, folder: Path) -> None:
    """Give the run's model, in any layout, the weights of a checkpoint; of one in parts also the moments."""
    if not is_in_parts(folder):
        return fill(run.model, saved_weights(folder))
    if (tp := run.config.parallel.tp) > 1:
        raise ValueError(f"{folder} is in parts, which parallel.tp={tp} cannot read; set 1")
    from nanogpt.parallel.fsdp import load_parts  # here: its imports take a second

    load_parts(folder, run.model, run.optimizer)


def clean(folder: Path, step: int) -> None:
    """Remove what a kill has left: half a checkpoint, and lines after the step."""
    for aside in folder.glob(".step_*.tmp"):
        shutil.rmtree(aside)
    repair(folder / "metrics.jsonl", step)


def resume(config: Config, ranks: Ranks | None = None) -> Training:
    """The run as its newest whole checkpoint has it, or at its beginning; on all ranks alike."""
    folder, ranks = Path(config.run.dir), ranks or Ranks(device=pick_device(config.run.device))
    found = latest(folder)
    if found:
        state = load_state(found)
        compare(config, state["config"])
    run = assemble(config, ranks)
    refuse_other_runs(ranks, config, run.stream, str(found))
    if found:
        take_weights(run, found)
        run.load_state_dict(state)
        run.kept = found
        print(f"going on after step {run.step}, from {found}")
    if ranks.rank == 0:
        clean(folder, run.step)
    return run


def refuse_other_words(config: Config, folder: Path, manifest: dict) -> None:
    """ValueError if init_from's folder keeps another tokenizer than the one that made the shards: ids would mean other words."""
    file = folder / "tokenizer.json"
    if file.exists() and (theirs := BPETokenizer.load(file).fingerprint) != manifest["fingerprint"]:
        made = f"{config.data.dir} was made with tokenizer {manifest['fingerprint'][:8]}"
        learned = f"init_from={config.init_from} learned {theirs[:8]}"
        raise ValueError(f"{made}, {learned}; set data.tokenizer={file} and a new data.dir")


def refuse_other_shape(config: Config, shape: GPTConfig, vocab_size: int) -> None:
    """ValueError if init_from's model is not what the configuration asks for, or too small for the data."""
    for name in ("n_layer", "n_head", "n_embd"):
        given, has = getattr(config.model, name), getattr(shape, name)
        if given not in (has, getattr(Model, name)):  # at its default nobody has asked for it
            raise ValueError(f"init_from={config.init_from} has {name}={has}; leave out model.{name}={given}")
    if shape.vocab_size < vocab_size or shape.block_size < config.model.block_size:
        has = f"{shape.vocab_size} tokens and a context of {shape.block_size}"
        needs = f"{vocab_size} and model.block_size={config.model.block_size}"
        raise ValueError(f"init_from={config.init_from} has {has}; the run needs {needs}")


def given_model(config: Config, manifest: dict) -> GPT:
    """The model of init_from with this run's dropout, in float32. ValueError if the run cannot begin with it."""
    folder = chosen(config.init_from)
    file = folder / "config.json"
    ours = file.exists() and "model_type" not in read_json(file)
    if ours:
        refuse_other_words(config, folder, manifest)
    there = load_model(folder) if ours else from_hf(config.init_from)
    refuse_other_shape(config, there.config, manifest["vocab_size"])
    model = GPT(replace(there.config, dropout=config.model.dropout, flash=config.model.flash))
    model.load_state_dict(there.float().state_dict())
    return model


def first_parts(config: Config, manifest: dict, ranks: Ranks) -> tuple[GPT, Ranks]:
    """As first_model, but a rank has only its parts; and who reads different rows."""
    if config.init_from is not None:
        given = given_model(config, manifest)
        return made_in_parts(given.config, given.named_parameters(), config, ranks)
    shape = GPTConfig(**vars(config.model), vocab_size=manifest["vocab_size"])
    weights = first_weights(shape, torch.Generator().manual_seed(config.run.seed))
    model, readers = made_in_parts(shape, weights, config, ranks)
    return scale_init(model), readers
