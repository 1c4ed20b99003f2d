"""A model on disk: weights as safetensors, configuration as JSON, and a hash of both.

Exported from notebooks/07_training.ipynb, grown by notebooks/07b_learned.ipynb and
notebooks/17b_checkpoints.ipynb.
"""

import hashlib
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT, GPTConfig

WEIGHTS = "model.safetensors"


def digest(config: dict, weights: bytes) -> str:
    """SHA-256 of both files: the configuration as canonical JSON, then the weights."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode() + weights).hexdigest()


def save_model(model: GPT, folder: str | Path) -> None:
    """Write model.safetensors and config.json, with the SHA-256 of both, into a folder, each atomically."""
    model = getattr(model, "_orig_mod", model)  # chapter 11's torch.compile puts another module around it
    config = asdict(model.config)
    tensors = {n: p.detach().cpu().contiguous() for n, p in model.named_parameters()}  # tied ones come once
    weights = save(tensors)
    with atomically(Path(folder) / WEIGHTS) as file:
        file.write(weights)
    save_json(Path(folder) / "config.json", config | {"sha256": digest(config, weights)})


def read_unchanged(config: Path, weights: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """The fields and tensors of two files that were saved together. ValueError if they have changed since, or are no numbers."""
    fields = json.loads(config.read_bytes())
    data = weights.read_bytes()
    if fields.pop("sha256", None) != digest(fields, data):
        raise ValueError(f"{config.name} or {weights.name} has changed since")
    tensors = load(data)
    for name, p in tensors.items():
        if not p.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity")
    return fields, tensors


def empty_model(config: GPTConfig, weights: dict[str, torch.Tensor], kind: type = GPT) -> GPT:
    """A model without memory, on the meta device, whose names and shapes are those of weights; else ValueError."""
    layers = len({name.split(".")[2] for name in weights if name.startswith("transformer.h.")})
    if layers != config.n_layer:  # first: even without memory, a hundred thousand layers take minutes
        raise ValueError(f"config.json says n_layer={config.n_layer}, {WEIGHTS} has {layers}")
    with torch.device("meta"):
        model = kind(config)
    expected = {name: p.shape for name, p in model.named_parameters()}
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    wrong = sorted(expected.keys() ^ weights.keys())  # names that only one of the two has
    for name, p in weights.items():
        if name in expected and (p.shape != expected[name] or p.dtype not in dtypes):
            wrong.append(name)
    if wrong:
        raise ValueError(f"config.json and {WEIGHTS} disagree about {', '.join(wrong[:3])}")
    return model


FAMILIES = {"n_kv_head": ("nanogpt.labs.llama.model", "LlamaConfig", "Llama")}  # by a field that no GPT has


def classes_of(fields: dict) -> tuple[type, type]:
    """The classes of the shape and the model that a config.json describes: GPT-2's, or those of a lab, loaded now."""
    for field, (lab, *names) in FAMILIES.items():
        if field in fields:
            return tuple(getattr(import_module(lab), name) for name in names)
    return GPTConfig, GPT


UNREADABLE = AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError, SafetensorError


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> GPT:
    """The model that save_model wrote, in evaluation mode and its dtype. OSError or ValueError, in one sentence, if it is not whole."""
    folder = Path(folder)
    try:
        fields, weights = read_unchanged(folder / "config.json", folder / WEIGHTS)
        shape, kind = classes_of(fields)
        model = empty_model(shape(**fields), weights, kind)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename} is not there; chapter 07 writes it (save_model)") from None
    except UNREADABLE as error:
        raise ValueError(f"{folder} holds no model that save_model wrote whole: {error}") from None
    model.load_state_dict(weights, strict=False, assign=True)
    if "lm_head.weight" not in weights:
        model.lm_head.weight = model.transformer.wte.weight  # tied
    return model.to(device).eval()
