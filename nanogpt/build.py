"""What a run is made of, from a configuration: data, tokenizer, batches, model, optimizer.

Exported from notebooks/17c_config.ipynb, grown by notebooks/17d_assembly.ipynb and
notebooks/20a_many_processes.ipynb.
"""

from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from nanogpt.checkpoint import pick_checkpoint
from nanogpt.config import Config, Data, Model
from nanogpt.data import BatchStream, DocumentStream
from nanogpt.distributed import Ranks
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.pretrained import from_hf, is_ours
from nanogpt.shards import load_manifest, open_shards, read_shard
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init
from nanogpt.weights import load_model


def refuse_other_shape(config: Config, shape: GPTConfig) -> None:
    """ValueError if the model of init_from is no GPT, or has another shape than the one that the configuration asks for."""
    if not isinstance(shape, GPTConfig):
        raise ValueError(f"init_from={config.init_from} is a llama, not a gpt; set family=llama")
    for name in ("n_layer", "n_head", "n_embd", "bias"):
        given, has = getattr(config.model, name), getattr(shape, name)
        if given not in (has, getattr(Model, name)):  # at its default nobody has asked for it
            raise ValueError(f"init_from={config.init_from} has {name}={has}; leave out model.{name}={given}")
    if shape.block_size < config.model.block_size:
        needs = f"the run needs model.block_size={config.model.block_size}"
        raise ValueError(f"init_from={config.init_from} has a context of {shape.block_size}; {needs}")


def ensure_data(data: Data) -> dict:
    """The manifest of data.dir. A source that is named is made into shards first, or must be what they were made of."""
    if data.source is not None:
        import_module("nanogpt.labs.corpora.make").make_data(data)
    return load_manifest(data.dir)


def find_tokenizer(data: Data, manifest: dict) -> BPETokenizer | None:
    """The tokenizer that made the shards, or None if it is neither beside them nor named."""
    for name in (Path(data.dir) / "tokenizer.json", data.tokenizer):
        with suppress(OSError, ValueError, TypeError):
            found = BPETokenizer.gpt2() if name == "gpt2" else BPETokenizer.load(name)
            if found.fingerprint == manifest["fingerprint"]:
                return found


def open_stream(config: Config, ranks: Ranks) -> BatchStream:
    """The run's batches; several ranks take the micro-batches in turn, so that all together read what one would."""
    kind = DocumentStream if config.data.documents else BatchStream
    shards, B, T = open_shards(config.data.dir, "train"), config.train.micro_batch, config.model.block_size
    dealt = {"rank": ranks.rank, "world_size": ranks.size}
    return kind(shards, B, T, seed=config.run.seed, device=ranks.device, **dealt)


def hold_out(folder: str, tokens: int) -> list[np.ndarray]:
    """The first so many tokens of the validation shards."""
    parts = []
    for path in open_shards(folder, "val"):
        parts.append(read_shard(path)[:tokens])
        tokens -= len(parts[-1])
    return parts


def new_shape(config: Config, vocab_size: int) -> GPTConfig:
    """The shape of a new model."""
    return config.model.shape(vocab_size)


def refuse_other_words(config: Config, folder: Path, manifest: dict) -> None:
    """ValueError if init_from has another tokenizer than the one that made the shards: ids would mean other words."""
    vocab = import_module("nanogpt.labs.corpora.vocab")
    if (words := vocab.words_beside(folder)) is None:
        return
    if (theirs := vocab.read_tokenizer(words).fingerprint) != manifest["fingerprint"]:
        made = f"{config.data.dir} was made with tokenizer {manifest['fingerprint'][:8]}"
        learned = f"init_from={config.init_from} learned {theirs[:8]}"
        raise ValueError(f"{made}, {learned}; set data.tokenizer={words} and a new data.dir")


def refuse_other_size(config: Config, tokens: int, needed: int) -> None:
    """ValueError if init_from's model has another number of tokens than the shards, up to 127 rows of padding."""
    if not needed <= tokens < needed + 128:
        two = f"init_from={config.init_from} has {tokens:,} tokens, {config.data.dir} {needed:,}"
        raise ValueError(f"{two}; set data.tokenizer to the model's, and a new data.dir")


def load_given(config: Config, manifest: dict) -> GPT:
    """The model of init_from with this run's dropout, in float32. ValueError if the run cannot begin with it."""
    folder = pick_checkpoint(config.init_from)
    refuse_other_words(config, folder, manifest)
    trained = load_model(folder) if is_ours(folder) else from_hf(config.init_from)
    refuse_other_shape(config, trained.config)
    refuse_other_size(config, trained.config.vocab_size, manifest["vocab_size"])
    model = GPT(replace(trained.config, dropout=config.model.dropout, flash=config.model.flash))
    model.load_state_dict(trained.float().state_dict())
    return model


def build_model(config: Config, manifest: dict) -> GPT:
    """The model before its first step: new, or init_from's with this run's dropout, in float32, on the CPU."""
    if config.init_from is not None:
        return load_given(config, manifest)
    shape = new_shape(config, manifest["vocab_size"])
    return scale_init(GPT(shape, torch.Generator().manual_seed(config.run.seed)))


def build_optimizer(config: Config, model: GPT) -> torch.optim.Optimizer:
    """Chapter 15's optimizer, as the configuration has it."""
    o, train = config.optim, config.train
    options = {"betas": o.betas, "weight_decay": o.weight_decay, "compiled": train.compile}
    return make_optimizer(model, o.lr, train.dtype, **options)
