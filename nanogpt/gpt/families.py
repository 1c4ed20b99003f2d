"""GPT or Llama: the class that belongs to a shape, its counts, and its weights in a folder of others.

Exported from notebooks/24b_llama_runs.ipynb.
"""

from pathlib import Path

import torch

from nanogpt.gpt.llama import Llama, LlamaConfig
from nanogpt.gpt.llama_hf import KINDS, llama_from_hf
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.pretrained import find_checkpoint, from_hf, read_json


def shape_from(fields: dict) -> GPTConfig | LlamaConfig:
    """The shape with these fields, as config.json has them; only a Llama's have n_kv_head."""
    return LlamaConfig(**fields) if "n_kv_head" in fields else GPTConfig(**fields)


def model_of(shape: GPTConfig | LlamaConfig, generator: torch.Generator | None = None) -> GPT | Llama:
    """A new model of this shape."""
    kind = Llama if isinstance(shape, LlamaConfig) else GPT
    return kind(shape, generator)


def llama_params(c: LlamaConfig) -> dict[str, int]:
    """Number of parameters by part, from the shape alone."""
    C, L, d = c.n_embd, c.n_layer, c.head_size
    heads = 2 * c.n_head + 2 * c.n_kv_head  # of queries and the projection, and of keys and values
    return {
        "wte": c.vocab_size * C,
        "attention": L * (heads * d * C + c.qk_norm * 2 * d),
        "mlp": L * 3 * C * c.n_hidden,
        "norms": (2 * L + 1) * C,
        "lm_head": 0 if c.tied else c.vocab_size * C,
    }


def llama_flops(c: LlamaConfig, T: int | None = None) -> dict[str, int]:
    """Forward FLOPs per token by part, in a context of T tokens, counted as chapter 05's flops_by_part does."""
    C, L, d, T = c.n_embd, c.n_layer, c.head_size, T or c.block_size
    return {
        "attention, linear": L * 2 * (2 * c.n_head + 2 * c.n_kv_head) * d * C,
        "attention, T×T": L * 2 * 2 * T * c.n_head * d,
        "mlp": L * 2 * 3 * C * c.n_hidden,
        "lm_head": 2 * C * c.vocab_size,
    }


def from_hub(name_or_dir: str | Path) -> GPT | Llama:
    """The model of a Hugging Face folder or repository, in eval mode: a GPT-2, a Llama or a Qwen3."""
    folder = Path(name_or_dir)
    path = folder / "config.json" if folder.is_dir() else find_checkpoint(name_or_dir)[0]
    if path.is_file() and read_json(path).get("model_type") in KINDS:
        return llama_from_hf(name_or_dir)
    return from_hf(name_or_dir)
