"""GPT or Llama: the class that belongs to a shape, and the weights in a folder of others.

Exported from notebooks/24b_llama_runs.ipynb.
"""

from pathlib import Path

import torch

from nanogpt.labs.llama.model import Llama, LlamaConfig
from nanogpt.labs.llama.pretrained import KINDS, llama_from_hf
from nanogpt.model import GPT, GPTConfig
from nanogpt.pretrained import find_checkpoint, from_hf, read_json


def shape_from(fields: dict) -> GPTConfig | LlamaConfig:
    """The shape with these fields, as config.json has them; only a Llama's have n_kv_head."""
    return LlamaConfig(**fields) if "n_kv_head" in fields else GPTConfig(**fields)


def model_of(shape: GPTConfig | LlamaConfig, generator: torch.Generator | None = None) -> GPT | Llama:
    """A new model of this shape."""
    kind = Llama if isinstance(shape, LlamaConfig) else GPT
    return kind(shape, generator)


def from_hub(name_or_dir: str | Path) -> GPT | Llama:
    """The model of a Hugging Face folder or repository, in eval mode: a GPT-2, a Llama or a Qwen3."""
    folder = Path(name_or_dir)
    path = folder / "config.json" if folder.is_dir() else find_checkpoint(name_or_dir)[0]
    if path.is_file() and read_json(path).get("model_type") in KINDS:
        return llama_from_hf(name_or_dir)
    return from_hf(name_or_dir)
