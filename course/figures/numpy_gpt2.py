"""GPT-2 in NumPy and float64, and a small checkpoint with random weights: what chapter 06 compares its model with.

It shares no line with `nanogpt`. Names and layouts are those of openai-community/gpt2 on Hugging Face's hub, and every
matrix is used as the file stores it: x @ W, with W of shape (in, out).
"""

import json
import math
from pathlib import Path

import numpy as np

LINEARS = {
    "attn.c_attn": (1, 3),
    "attn.c_proj": (1, 1),
    "mlp.c_fc": (1, 4),
    "mlp.c_proj": (4, 1),
}  # in units of C


def random_arrays(sizes: dict) -> dict[str, np.ndarray]:
    """The tensors of a GPT-2 with random weights, every one of which matters to the logits. sizes: as in config.json."""
    rng = np.random.default_rng(5)
    V, C, T, L = (sizes[size] for size in ("vocab_size", "n_embd", "n_positions", "n_layer"))
    arrays = {"wte.weight": rng.normal(0, 0.5, (V, C)), "wpe.weight": rng.normal(0, 0.2, (T, C))}
    for ln in ["ln_f", *(f"h.{i}.ln_{j}" for i in range(L) for j in (1, 2))]:
        arrays[f"{ln}.weight"], arrays[f"{ln}.bias"] = rng.normal(1, 0.1, C), rng.normal(0, 0.1, C)
    for i in range(L):
        for name, (a, b) in LINEARS.items():
            arrays[f"h.{i}.{name}.weight"] = rng.normal(0, 1 / math.sqrt(a * C), (a * C, b * C))
            arrays[f"h.{i}.{name}.bias"] = rng.normal(0, 0.1, b * C)
        arrays[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, T, T)))  # the causal mask, as old files have it
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def write_checkpoint(folder: Path, sizes: dict, change=None, **settings) -> Path:
    """Write config.json and model.safetensors. change: a function that may spoil the arrays; settings: of config.json."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    arrays = random_arrays(sizes)
    if change:
        change(arrays)
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt", "n_head": str(sizes["n_head"])})
    config = {"model_type": "gpt2", "activation_function": "gelu_new"} | sizes | settings
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Hendrycks & Gimpel 2016, §2; Hugging Face calls it gelu_new."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Causal attention, (n_head, T, d) each."""
    T, d = q.shape[1:]
    scores = q @ k.swapaxes(1, 2) / math.sqrt(d) + np.triu(np.full((T, T), -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def oracle(W: dict, ids: list[int], n_head: int, gelu=gelu_tanh, eps: float = 1e-5) -> np.ndarray:
    """The logits (T, V) of a checkpoint's arrays for one row of ids."""

    def linear(x, name):
        return x @ W[f"{name}.weight"] + W[f"{name}.bias"]  # the file's (in, out)

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        return x * W[f"{name}.weight"] + W[f"{name}.bias"]

    T = len(ids)
    W = {name: array.astype(np.float64) for name, array in W.items()}
    x = W["wte.weight"][ids] + W["wpe.weight"][:T]  # (T, C)
    i = 0
    while f"h.{i}.ln_1.weight" in W:
        h = f"h.{i}"
        qkv = np.split(linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn"), 3, axis=-1)
        heads = attend(*(part.reshape(T, n_head, -1).swapaxes(0, 1) for part in qkv))  # (n_head, T, d)
        x = x + linear(heads.swapaxes(0, 1).reshape(T, -1), f"{h}.attn.c_proj")
        x = x + linear(gelu(linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")), f"{h}.mlp.c_proj")
        i += 1
    return norm(x, "ln_f") @ W["wte.weight"].T


def apart(a, b) -> float:
    """‖a − b‖ / ‖b‖, a relative distance: 0 for equal arrays."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def six_mistakes(W: dict, ids: list[int], n_head: int) -> dict[str, np.ndarray]:
    """The oracle's logits with one mistake in each: in a layout, in the weights' precision, or in a formula."""
    import torch

    def changed(end: str | tuple[str, ...], change) -> dict:
        return {name: change(array) if name.endswith(end) else array for name, array in W.items()}

    def swap_q_and_k(array: np.ndarray) -> np.ndarray:
        q, k, v = np.split(array, 3, axis=-1)
        return np.concatenate((k, q, v), axis=-1)

    def to_bfloat16(array: np.ndarray) -> np.ndarray:
        return torch.tensor(array).bfloat16().float().numpy()

    def gelu_erf(x: np.ndarray) -> np.ndarray:
        return torch.nn.functional.gelu(torch.from_numpy(x)).numpy()

    return {
        "attn.c_proj not transposed": oracle(changed("attn.c_proj.weight", np.transpose), ids, n_head),
        "q and k swapped": oracle(changed(("c_attn.weight", "c_attn.bias"), swap_q_and_k), ids, n_head),
        "positions off by one": oracle(changed("wpe.weight", lambda a: np.roll(a, 1, axis=0)), ids, n_head),
        "weights rounded to bfloat16": oracle(changed("", to_bfloat16), ids, n_head),
        "GELU with erf, not tanh": oracle(W, ids, n_head, gelu=gelu_erf),
        "LayerNorm's ε 1e-6, not 1e-5": oracle(W, ids, n_head, eps=1e-6),
    }
