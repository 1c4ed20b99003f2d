"""A model as the files that transformers loads.

Exported from notebooks/06_pretrained.ipynb.
"""

from pathlib import Path

from safetensors.torch import save_file

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT, GPTConfig
from nanogpt.pretrained import ONE_VALUE, SINGLE, SIZE_NAMES, hf_layout, parameters_by_hf_name


def config_to_hf(config: GPTConfig) -> dict:
    """The config.json that makes `transformers` build this model."""
    eot = min(50256, config.vocab_size - 1)  # <|endoftext|>: GPT-2's, or the last of chapter 01's vocabulary
    sizes = {theirs: getattr(config, ours) for ours, theirs in SIZE_NAMES.items()}
    dropouts = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), config.dropout)
    rest = {"architectures": ["GPT2LMHeadModel"], "bos_token_id": eot, "eos_token_id": eot}
    return ONE_VALUE | sizes | dropouts | rest


def to_hf(model: GPT, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which `transformers` and `from_hf` load; each file atomically.

    Weights keep their dtype. A model with bias=False gets biases of zero, which compute the same.
    """
    if not isinstance(model, GPT):
        raise ValueError(f"to_hf writes a GPT, not a {type(model).__name__}; unwrap it (.module, ._orig_mod)")
    tensors = {}
    for name, p in parameters_by_hf_name(model).items():
        t = hf_layout(name, p.detach()).cpu().contiguous()
        tensors[f"transformer.{name}"] = t
        if not model.config.bias and name not in ("wte.weight", "wpe.weight"):
            tensors[f"transformer.{name.removesuffix('weight')}bias"] = t.new_zeros(t.shape[-1])  # (out,)
    note = {"format": "pt", "n_head": str(model.config.n_head)}
    with atomically(Path(folder) / SINGLE) as file:
        save_file(tensors, file.name, metadata=note)  # by name: it then needs no copy of all weights
    save_json(Path(folder) / "config.json", config_to_hf(model.config))
