"""Llama's and Qwen3's weights from Hugging Face's files, and back.

Exported from notebooks/24_llama.ipynb.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

from nanogpt.files import atomically, save_json
from nanogpt.labs.llama.model import Llama, LlamaConfig
from nanogpt.pretrained import NO_EFFECT, SINGLE, find_checkpoint, read_headers, read_json, read_tensor

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
MISSING = {  # what transformers takes where an old file says nothing, or null
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
ROPE = {"rope_parameters", "rope_scaling", "rope_theta"}
ONE_VALUE = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "rope_interleaved": False,
    "pruned_heads": {},
}


def config_from_llama(hf: dict) -> LlamaConfig:
    """LlamaConfig from Hugging Face's config.json; ValueError where it asks for what this model does not have, or does not know."""
    said = MISSING | {key: value for key, value in hf.items() if value is not None}
    # positions: newer files describe them in one dictionary, older ones in two keys
    rope = said.get("rope_parameters") or {"rope_theta": said.get("rope_theta", 10_000.0)} | said.get(
        "rope_scaling", {}
    )
    # what must be as it is here
    wrong = [
        f"{key} is {said[key]!r}, not {right!r}"
        for key, right in ONE_VALUE.items()
        if said.get(key, right) != right
    ]
    if said.get("model_type") not in KINDS:
        wrong.append(f"model_type is {said.get('model_type')!r}, not {' or '.join(map(repr, KINDS))}")
    wrong += [
        f"{key} is {value!r}" for key, value in rope.items() if key != "rope_theta" and value != "default"
    ]
    if {*said.get("layer_types", [])} - {"full_attention"}:
        wrong.append(f"layer_types has more than full_attention: {sorted({*said['layer_types']})}")
    # what is not there, and what nobody here knows
    sizes = {"num_key_value_heads": said.get("num_attention_heads")} | said
    if "head_dim" not in sizes and sizes.keys() >= {"hidden_size", "num_attention_heads"}:
        sizes["head_dim"] = sizes["hidden_size"] // sizes["num_attention_heads"]
    wrong += [f"{key} is missing" for key in SIZES.values() if sizes.get(key) is None]
    known = {"model_type", "layer_types", *SIZES.values(), *ONE_VALUE, *ROPE, *NO_EFFECT}
    wrong += [
        f"{key} is unknown (remove it if no logit depends on it)" for key in sorted(said.keys() - known)
    ]
    if wrong:
        raise ValueError(f"config.json: this is not a Llama that nanogpt can run: {'; '.join(wrong)}")
    shape = {ours: sizes[theirs] for ours, theirs in SIZES.items()}
    return LlamaConfig(**shape, rope_theta=rope["rope_theta"], qk_norm=KINDS[said["model_type"]])


def llama_from_hf(name_or_dir: str | Path) -> Llama:
    """A Llama or Qwen3 with the weights of a Hugging Face folder or repository, in float32 and eval mode.

    Raises OSError where a file cannot be had, ValueError naming what in it is not this model.
    """
    config_path, paths = find_checkpoint(name_or_dir)
    model, found = Llama(config_from_llama(read_json(config_path))), read_headers(paths)
    wanted = {hf_name(name): p for name, p in model.named_parameters()}
    # Llama 2's files hold the angles' speeds as well, and some hold a tied matrix twice
    found = {name: entry for name, entry in found.items() if not name.endswith(".rotary_emb.inv_freq")}
    if model.config.tied and "lm_head.weight" in found:
        head, wte = (
            read_tensor(*found[name][:2]) for name in ("lm_head.weight", "model.embed_tokens.weight")
        )
        if not torch.equal(head, wte):
            raise ValueError(
                f"{name_or_dir}: config.json ties lm_head to the token table, but the file has two tables"
            )
        del found["lm_head.weight"]
    shapes = {name: tuple(p.shape) for name, p in wanted.items()}
    if wrong := sorted({*shapes.items()} ^ {(name, shape) for name, (_, _, shape, _) in found.items()}):
        raise ValueError(
            f"{name_or_dir} does not hold the weights that its config.json describes: {wrong[0][0]}"
        )
    with torch.no_grad():
        for name, p in wanted.items():
            p.copy_(read_tensor(*found[name][:2]))
            if not p.isfinite().all():
                raise ValueError(f"{name_or_dir}: {name} holds NaN or infinity")
    return model.eval()


def llama_to_hf(model: Llama, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which `transformers` and llama_from_hf load; each file atomically."""
    model = getattr(model, "_orig_mod", model)  # torch.compile puts another module around it
    kind = "qwen3" if model.config.qk_norm else "llama"
    fields = {theirs: getattr(model.config, ours) for ours, theirs in SIZES.items()}
    rope = {"rope_theta": model.config.rope_theta, "rope_type": "default"}
    name = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[kind]
    tensors = {hf_name(n): p.detach().cpu().contiguous() for n, p in model.named_parameters()}
    with atomically(Path(folder) / SINGLE) as file:
        save_file(tensors, file.name, metadata={"format": "pt"})
    fields |= {"model_type": kind, "architectures": [name], "hidden_act": "silu", "rope_parameters": rope}
    save_json(Path(folder) / "config.json", fields)
