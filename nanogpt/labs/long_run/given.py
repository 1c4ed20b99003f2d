"""The model that a run begins with where one is given, and what is refused.

Exported from notebooks/17c_config.ipynb, grown by notebooks/17d_assembly.ipynb.
"""

from dataclasses import replace
from pathlib import Path

from nanogpt.checkpoint import chosen
from nanogpt.config import Config, Model
from nanogpt.model import GPT, GPTConfig
from nanogpt.pretrained import from_hf, read_json
from nanogpt.tokenizer import BPETokenizer
from nanogpt.weights import load_model


def refuse_other_shape(config: Config, shape: GPTConfig) -> None:
    """ValueError if the model of init_from has another shape than the one that the configuration asks for."""
    for name in ("n_layer", "n_head", "n_embd"):
        given, has = getattr(config.model, name), getattr(shape, name)
        if given not in (has, getattr(Model, name)):  # at its default nobody has asked for it
            raise ValueError(f"init_from={config.init_from} has {name}={has}; leave out model.{name}={given}")
    if shape.block_size < config.model.block_size:
        needs = f"the run needs model.block_size={config.model.block_size}"
        raise ValueError(f"init_from={config.init_from} has a context of {shape.block_size}; {needs}")


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
