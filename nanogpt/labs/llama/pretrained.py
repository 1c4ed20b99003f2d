"""Llama's and Qwen3's weights from Hugging Face's files, and back.

Exported from notebooks/24_llama.ipynb.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

from nanogpt.files import atomically, save_json
from nanogpt.labs.llama.model import Llama, LlamaConfig
from nanogpt.pretrained import SINGLE, find_checkpoint, read_headers, read_json, read_tensor

NAMES = {
    "transformer.wte.": "model.embed_tokens.",
    "transformer.h.": "model.layers.",
    "transformer.ln_f.": "model.norm.",
    ".ln_1.": ".input_layernorm.",
    ".ln_2.": ".post_attention_layernorm.",
    ".attn.c_proj.": ".self_attn.o_proj.",
    ".attn.c_": ".self_attn.",
    ".attn.": ".self_attn.",
    ".mlp.c_gate.": ".mlp.gate_proj.",
    ".mlp.c_fc.": ".mlp.up_proj.",
    ".mlp.c_proj.": ".mlp.down_proj.",
}


def hf_name(name: str) -> str:
    """A parameter's name in Hugging Face's Llama and Qwen3: transformer.h.0.attn.c_q.weight -> model.layers.0.self_attn.q_proj.weight."""
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    for letter in "qkv":
        name = name.replace(f".self_attn.{letter}.", f".self_attn.{letter}_proj.")
    return name


SIZES = {
    "block_size": "max_position_embeddings",
    "vocab_size": "vocab_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_kv_head": "num_key_value_heads",
    "n_embd": "hidden_size",
    "n_hidden": "intermediate_size",
    "head_size": "head_dim",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
KINDS = {"llama": False, "qwen3": True}  # model_type: whether it has QK-norm


def config_from_llama(hf: dict) -> LlamaConfig:
    """LlamaConfig from Hugging Face's config.json; ValueError where it asks for what this model does not have."""
    rope = hf.get("rope_parameters") or {"rope_theta": hf.get("rope_theta", 10_000.0)} | (
        hf.get("rope_scaling") or {}
    )
    asks = {
        "model_type": (hf.get("model_type"), tuple(KINDS)),
        "rope_type": (rope.get("rope_type", "default"), ("default",)),
        "hidden_act": (hf.get("hidden_act"), ("silu",)),
        "attention_bias": (hf.get("attention_bias", False), (False,)),
        "mlp_bias": (hf.get("mlp_bias", False), (False,)),
    }
    wrong = [f"{key} is {value!r}, not {' or '.join(map(repr, known))}" for key, (value, known) in asks.items() if value not in known]  # fmt: skip
    if wrong:
        raise ValueError(f"config.json: this is not a Llama that nanogpt can run: {'; '.join(wrong)}")
    given = {"tie_word_embeddings": False, "head_dim": hf["hidden_size"] // hf["num_attention_heads"]} | hf
    sizes = {ours: given[theirs] for ours, theirs in SIZES.items()}
    return LlamaConfig(**sizes, rope_theta=rope["rope_theta"], qk_norm=KINDS[hf["model_type"]])


def llama_from_hf(name_or_dir: str | Path) -> Llama:
    """A Llama or Qwen3 with the weights of a Hugging Face folder or repository, in float32 and eval mode.

    Raises OSError where a file cannot be had, ValueError naming what in it is not this model.
    """
    config_path, paths = find_checkpoint(name_or_dir)
    model, found = Llama(config_from_llama(read_json(config_path))), read_headers(paths)
    wanted = {hf_name(name): p for name, p in model.named_parameters()}
    shapes = {name: tuple(p.shape) for name, p in wanted.items()}
    if wrong := sorted({*shapes.items()} ^ {(name, shape) for name, (_, _, shape, _) in found.items()}):
        raise ValueError(
            f"{name_or_dir} does not hold the weights that its config.json describes: {wrong[0][0]}"
        )
    with torch.no_grad():
        for name, p in wanted.items():
            p.copy_(read_tensor(*found[name][:2]))
    return model.eval()


def llama_to_hf(model: Llama, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which `transformers` and llama_from_hf load; each file atomically."""
    kind = "qwen3" if model.config.qk_norm else "llama"
    fields = {theirs: getattr(model.config, ours) for ours, theirs in SIZES.items()}
    rope = {"rope_theta": model.config.rope_theta, "rope_type": "default"}
    name = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[kind]
    tensors = {hf_name(n): p.detach().cpu().contiguous() for n, p in model.named_parameters()}
    with atomically(Path(folder) / SINGLE) as file:
        save_file(tensors, file.name, metadata={"format": "pt"})
    fields |= {"model_type": kind, "architectures": [name], "hidden_act": "silu", "rope_parameters": rope}
    save_json(Path(folder) / "config.json", fields)
