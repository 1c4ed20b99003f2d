"""The configuration's section `llama`, and which keys belong to which family of models.

Exported from notebooks/24b_llama_runs.ipynb.
"""

import math
from dataclasses import fields

from nanogpt.config import LlamaKeys


def new_shape(config, vocab_size: int):
    """The shape of a new model, as the sections `model` and `llama` ask for it: a GPTConfig or a LlamaConfig."""
    from nanogpt.labs.llama.model import (
        LlamaConfig,
    )  # here: it imports torch, and a command's --help needs none

    m, own = config.model, config.llama
    if config.family == "gpt":
        return m.shape(vocab_size)
    size = {name: getattr(m, name) for name in ("block_size", "n_layer", "n_head", "n_embd")}
    size["n_kv_head"] = own.n_kv_head or m.n_head
    size["n_hidden"] = own.n_hidden or 16 * math.ceil(8 * m.n_embd / 3 / 16)
    rest = {"rope_theta": own.rope_theta, "qk_norm": own.qk_norm, "tied": own.tied}
    return LlamaConfig(**size, **rest, head_size=m.n_embd // m.n_head, vocab_size=vocab_size)


def check(config) -> None:
    """ValueError, naming the key, for what the other family has, and for a layout or a shape that no Llama can have."""
    model, own, layout = config.model, config.llama, config.parallel
    if config.family == "gpt":
        for f in fields(LlamaKeys):
            if getattr(own, f.name) != f.default:
                raise ValueError(f"llama.{f.name}={getattr(own, f.name)} needs family=llama, not gpt")
        return
    for name, none in {"dropout": 0.0, "flash": True, "padded_vocab_size": None}.items():
        value = getattr(model, name)
        if value != none:
            raise ValueError(f"model.{name}={value} is GPT-2's, and a Llama has no such thing; leave it out")
    if model.bias:
        raise ValueError("model.bias=true is GPT-2's, and a Llama has no biases; leave it out")
    if layout.shard or layout.tp > 1:
        raise ValueError(
            "parallel.shard and parallel.tp know a GPT's layers only; a Llama runs as copies, parallel.dp"
        )
    new_shape(config, vocab_size=1)  # can there be such a shape?
