"""A model on disk: weights as safetensors, configuration as JSON.

Exported from notebooks/07_training.ipynb.
"""

import json
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT, GPTConfig


def save_model(model: GPT, folder: str | Path) -> None:
    """Write model.safetensors and config.json into a folder, each atomically."""
    weights = {
        name: p.detach().cpu().contiguous() for name, p in model.named_parameters()
    }  # tied ones come once
    with atomically(Path(folder) / "model.safetensors") as file:
        file.write(save(weights))
    save_json(Path(folder) / "config.json", asdict(model.config))


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> GPT:
    """The GPT that save_model wrote, in evaluation mode. OSError or ValueError, in one sentence, if it cannot be."""
    folder = Path(folder)
    for path in (folder / "config.json", folder / "model.safetensors"):
        if not path.exists():
            raise FileNotFoundError(
                f"{path} is not there; chapter 07 writes it, or save_model(model, folder)"
            )
    try:
        config = GPTConfig(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
        weights = load((folder / "model.safetensors").read_bytes())
    except (TypeError, ValueError, SafetensorError) as error:
        raise ValueError(f"{folder} holds no model that save_model wrote whole: {error}") from None
    model = GPT(config, generator=torch.Generator())  # a generator of its own: loading moves no random state
    expected = dict(model.named_parameters())
    shapes, found = ({name: p.shape for name, p in ps.items()} for ps in (expected, weights))
    if wrong := sorted({name for name, _ in shapes.items() ^ found.items()}):
        raise ValueError(f"{folder}: config.json and model.safetensors disagree about {', '.join(wrong[:3])}")
    with torch.no_grad():
        for name, p in expected.items():
            p.copy_(weights[name])
    return model.to(device).eval()
