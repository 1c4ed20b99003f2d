"""Low-rank adaptation: small matrices beside frozen ones, merged or saved alone.

Exported from notebooks/19_fine_tuning.ipynb.
"""

import json
import math
import os
from collections.abc import Collection
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save as serialize
from torch import Tensor, nn

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT
from nanogpt.pretrained import parameters_by_hf_name
from nanogpt.weights import UNREADABLE, digest, read_unchanged


def freeze(model: nn.Module, *trainable: str) -> nn.Module:
    """Only parameters whose names contain one of these words get gradients from now on; returns the model.

    freeze(model, "") thaws everything. What is frozen loses its .grad, or an optimizer would go on using it.
    ValueError, with the word in quotes, where a word is in no name; the model is untouched then.
    """
    named = dict(model.named_parameters())
    for word in trainable:
        if not any(word in name for name in named):
            raise ValueError(f"no parameter's name contains {word!r}; one is {[*named][-1]}")
    for name, p in named.items():
        p.requires_grad_(any(word in name for word in trainable))
        p.grad = p.grad if p.requires_grad else None  # or an optimizer would go on using it
    return model


class LoRALinear(nn.Linear):
    """x -> W x + b + alpha / rank · B (A x), of which A and B are trained (Hu et al. 2021, §4.1).

    Takes over the W and b of a linear layer. A (rank, in) is N(0, 1 / in), so that A x is as large as the entries of x;
    B (out, rank) is zero, so that nothing changes at first. ValueError where the layer can have no such rank.
    A and B may have another type than W and x (chapter 10's bf16-masters): the narrow path gets x in the type of A.
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, generator: torch.Generator | None = None):
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        limit = min(self.in_features, self.out_features)
        if type(rank) is not int or not 1 <= rank <= limit or not 0 < alpha < math.inf:
            raise ValueError(f"rank={rank!r} must be an integer from 1 to {limit}, alpha={alpha} positive")
        self.weight, self.bias = linear.weight, linear.bias
        self.rank, self.alpha = rank, alpha
        A = torch.randn(rank, self.in_features, generator=generator) / math.sqrt(self.in_features)
        self.lora_A = nn.Parameter(A.to(self.weight))
        self.lora_B = nn.Parameter(self.weight.new_zeros(self.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:  # (..., in) -> (..., out)
        narrow = F.linear(x.to(self.lora_A.dtype), self.lora_A)  # (..., rank)
        return super().forward(x) + self.alpha / self.rank * F.linear(narrow, self.lora_B)


TARGETS = ("c_attn", "c_proj", "c_fc")  # all products of a block


def linear_layers(model: GPT) -> dict[str, nn.Linear]:
    """The linear layers of the blocks, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and ".h." in name}


def lora_parameters(model: GPT) -> dict[str, nn.Parameter]:
    """The adapters' matrices by name; empty where there are none."""
    return {name: p for name, p in model.named_parameters() if ".lora_" in name}


def add_lora(model: GPT, rank: int, alpha=8.0, targets: Collection[str] = TARGETS, generator=None) -> GPT:
    """Freeze the model and put a LoRALinear in place of each linear layer with one of these names; returns the model.

    Its outputs stay what they were. generator: for A, on the CPU. ValueError, the model untouched, where it has
    adapters already, or no layer has such a name or rank.
    """
    if lora_parameters(model):
        raise ValueError("the model has adapters already; merge(model) them, or load the base again")
    targets = [targets] if isinstance(targets, str) else targets
    # a model of another family may say which of its layers a word means
    means = getattr(model, "lora_names", {})
    wanted = {name for word in targets for name in means.get(word, [word])}
    # all layers are made before the first is put in, so that an error changes nothing
    layers = {name: layer for name, layer in linear_layers(model).items() if name.split(".")[-1] in wanted}
    unknown = wanted - {name.split(".")[-1] for name in layers}
    if unknown or not wanted:
        what = ", ".join(sorted(unknown)) or "nothing"
        raise ValueError(f"{what} is no linear layer of a block; choose among {', '.join(TARGETS)}")
    adapted = {name: LoRALinear(layer, rank, alpha, generator) for name, layer in layers.items()}
    for name, layer in adapted.items():
        model.set_submodule(name, layer.train(model.training))
    return freeze(model, ".lora_")


def weight_update(layer: LoRALinear) -> Tensor:
    """What an adapter adds to W, (out, in), in float32."""
    return layer.alpha / layer.rank * layer.lora_B.float() @ layer.lora_A.float()


@torch.no_grad()
def merge(model: GPT) -> GPT:
    """Add each adapter to its W and remove it; returns the model, plain again and all of it trainable."""
    for layer in linear_layers(model).values():
        if isinstance(layer, LoRALinear):
            layer.weight += weight_update(layer).to(layer.weight.dtype)
            del layer.lora_A, layer.lora_B
            layer.__class__ = nn.Linear
    return freeze(model, "")


ADAPTER = "adapter.safetensors"


FREE = {"block_size", "dropout", "flash", "padded_vocab_size"}  # what a shape may have otherwise


def base_digest(model: GPT) -> str:
    """SHA-256 of what the adapters stand on: the model's shape and all other weights, without padding."""
    named = parameters_by_hf_name(model).items()
    base = {name: p.detach().float().cpu().contiguous() for name, p in named if ".lora_" not in name}
    shape = {key: value for key, value in vars(model.config).items() if key not in FREE}
    return digest(shape, serialize(base))


def save_adapter(model: GPT, folder: str | Path, base_model: str | Path | None = None) -> None:
    """Write the adapters alone, adapter.safetensors and adapter.json, with a hash of both and one of their base.

    base_model: the folder of the base, or its name on the hub; with it, `load` needs the adapter's folder alone.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile puts another module around it
    layers = {name: m for name, m in linear_layers(model).items() if isinstance(m, LoRALinear)}
    if not layers:
        raise ValueError("the model has no adapter to save; add_lora(model, rank) makes them")
    one = next(iter(layers.values()))
    targets = sorted({name.split(".")[-1] for name in layers})
    fields = {"rank": one.rank, "alpha": one.alpha, "targets": targets, "base": base_digest(model)}
    # a folder by the way to it from here, so that both can be moved together
    if base_model is not None:
        place = os.path.relpath(base_model, folder) if Path(base_model).is_dir() else base_model
        fields["base_model"] = Path(place).as_posix()
    data = serialize({name: p.detach().cpu().contiguous() for name, p in lora_parameters(model).items()})
    with atomically(Path(folder) / ADAPTER) as file:
        file.write(data)
    save_json(Path(folder) / "adapter.json", fields | {"sha256": digest(fields, data)})


def load_adapter(model: GPT, folder: str | Path) -> GPT:
    """Put the adapters that save_adapter wrote beside the weights that they were trained with; returns the model.

    A model that has such adapters gets their numbers. OSError or ValueError if a bit has changed or the base is another.
    """
    folder = Path(folder)
    try:
        fields, tensors = read_unchanged(folder / "adapter.json", folder / ADAPTER)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename} is not there; save_adapter writes it") from None
    except UNREADABLE as error:
        raise ValueError(f"{folder} holds no adapter that save_adapter wrote whole: {error}") from None
    fields.pop("base_model", None)
    if fields.pop("base") != base_digest(model):
        raise ValueError(f"the adapter in {folder} was trained beside other weights than this model's")
    if not lora_parameters(model):
        add_lora(model, **fields)
    model.load_state_dict(tensors, strict=False)
    return model


def base_of(folder: Path) -> str:
    """The folder or the hub name of an adapter's base. ValueError or OSError if it is not given, or not there."""
    base = json.loads((folder / "adapter.json").read_bytes()).get("base_model")
    if base is None:
        raise ValueError(f"{folder}/adapter.json names no base_model; save_adapter(model, folder, base) does")
    beside = folder / base
    if base.startswith(".") and not beside.is_dir():  # no name on the hub begins so
        raise FileNotFoundError(f"{beside} is not there, and the adapter in {folder} needs it as its base")
    return str(beside) if beside.is_dir() else base
