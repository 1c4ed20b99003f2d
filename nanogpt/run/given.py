"""The model that a run begins with where one is given, and what is refused.

Exported from notebooks/17d_assembly.ipynb.
"""

from dataclasses import replace
from pathlib import Path

from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.pretrained import from_hf, read_json
from nanogpt.gpt.weights import load_model
from nanogpt.run.checkpoint import chosen
from nanogpt.run.config import Config, Model
from nanogpt.text.tokenizer import BPETokenizer


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
