# %% [markdown]
r"""
# 19 · Fine-tuning: what is learned, and what is forgotten
"""

# %%
#| default_exp lora
#| doc lora: Low-rank adaptation: small matrices beside frozen ones, merged or saved alone.
from course.notebook import checkpoint

# %%
#| export
import json
import math
from collections.abc import Collection
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor, nn

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT
from nanogpt.pretrained import parameters_by_hf_name
from nanogpt.weights import UNREADABLE, digest


# %%
#| export
def freeze(model: nn.Module, *trainable: str) -> nn.Module:
    """Only parameters whose names contain one of these words get gradients from now on; returns the model.

    ValueError where a word is in no name, the model untouched. freeze(model, "") thaws everything.
    """
    named = dict(model.named_parameters())
    if lost := [word for word in trainable if not any(word in name for name in named)]:
        raise ValueError(
            f"no parameter's name contains {lost[0]!r}; names are like {', '.join([*named][-2:])}"
        )
    for name, p in named.items():
        p.requires_grad_(any(word in name for word in trainable))
        p.grad = p.grad if p.requires_grad else None  # or the optimizer would go on using it
    return model


# %%
#| export
class LoRALinear(nn.Linear):
    """x -> W x + b + (alpha / rank) · B (A x), of which A and B are trained (Hu et al. 2021, §4.1).

    Takes over a linear layer's W and b. A (rank, in) is N(0, 1 / in), so that A x is as large as the entries of x;
    B (out, rank) is zero, so that at first nothing changes. ValueError where the layer can have no such rank.
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, generator: torch.Generator | None = None):
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        limit = min(self.in_features, self.out_features)
        if type(rank) is not int or not 1 <= rank <= limit or not 0 < alpha < math.inf:
            raise ValueError(
                f"rank={rank!r} must be an integer from 1 to {limit}, and alpha={alpha} positive"
            )
        self.weight, self.bias, self.rank, self.alpha = linear.weight, linear.bias, rank, alpha
        drawn = torch.randn(rank, self.in_features, generator=generator) / math.sqrt(self.in_features)
        self.lora_A = nn.Parameter(drawn.to(self.weight))
        self.lora_B = nn.Parameter(self.weight.new_zeros(self.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out), by way of (..., rank)."""
        narrow = F.linear(x, self.lora_A)
        return super().forward(x) + self.alpha / self.rank * F.linear(narrow, self.lora_B)

    def update(self) -> Tensor:
        """What the adapter adds to W, (out, in), in float32."""
        return self.alpha / self.rank * self.lora_B.float() @ self.lora_A.float()


# %%
#| export
def linear_layers(model: GPT) -> list[tuple[nn.Module, str, nn.Linear]]:
    """The linear layers of the blocks, each with the module that holds it and its name there."""
    parents = list(model.transformer.h.modules())
    return [(p, name, m) for p in parents for name, m in p.named_children() if isinstance(m, nn.Linear)]


def lora_parameters(model: GPT) -> dict[str, nn.Parameter]:
    """The adapters' matrices by name; empty where there are none."""
    return {name: p for name, p in model.named_parameters() if "lora_" in name}


# %%
#| export
TARGETS = ("c_attn", "c_proj", "c_fc")  # all products of a block; Hu et al. §4.2 take attention's alone


def add_lora(
    model: GPT, rank: int, alpha: float | None = None, targets: Collection[str] = TARGETS, generator=None
) -> GPT:
    """Freeze the model, and put a LoRALinear in place of each linear layer with one of these names; returns the model.

    alpha: by default the rank. generator: for A, on the CPU. Outputs stay what they were. ValueError, the model
    untouched, where it has adapters already, or no layer has such a name or rank.
    """
    if lora_parameters(model):
        raise ValueError("the model has adapters already; merge(model) them, or load the base again")
    layers, targets = linear_layers(model), [targets] if isinstance(targets, str) else targets
    names = sorted({name for _, name, _ in layers})
    if wrong := [name for name in targets if name not in names] or not targets and ["nothing"]:
        raise ValueError(f"{wrong[0]} is no linear layer of a block; choose among {', '.join(names)}")
    alpha = rank if alpha is None else alpha
    adapted = [
        (p, n, LoRALinear(m, rank, alpha, generator).train(m.training)) for p, n, m in layers if n in targets
    ]
    for parent, name, layer in adapted:
        setattr(parent, name, layer)
    return freeze(model, "lora_")


# %%
#| export
@torch.no_grad()
def merge(model: GPT) -> GPT:
    """Add each adapter to its W and remove it; returns the model, which is plain again, and all of it trainable."""
    for parent, name, layer in linear_layers(model):
        if isinstance(layer, LoRALinear):
            layer.weight += layer.update().to(layer.weight.dtype)
            plain = nn.Linear(1, 1, device="meta").train(layer.training)
            plain.in_features, plain.out_features = layer.in_features, layer.out_features
            plain.weight, plain.bias = layer.weight, layer.bias
            setattr(parent, name, plain)
    return freeze(model, "")


# %%
#| export
ADAPTER = "adapter.safetensors"


def base_digest(model: GPT) -> str:
    """SHA-256 of what adapters stand on: all other weights, without padding, and the number of heads."""
    base = {
        n: p.detach().cpu().contiguous() for n, p in parameters_by_hf_name(model).items() if "lora_" not in n
    }
    return digest({"n_head": model.config.n_head}, save(base))


def save_adapter(model: GPT, folder: str | Path) -> None:
    """Write the adapters alone, adapter.safetensors and adapter.json, with hashes of both and of their base."""
    layers = [(name, layer) for _, name, layer in linear_layers(model) if isinstance(layer, LoRALinear)]
    if not layers:
        raise ValueError("the model has no adapter to save; add_lora(model, rank) makes them")
    _, one = layers[0]
    fields = {"rank": one.rank, "alpha": one.alpha, "targets": sorted({name for name, _ in layers})}
    fields |= {"base": base_digest(model)}
    data = save({name: p.detach().cpu().contiguous() for name, p in lora_parameters(model).items()})
    with atomically(Path(folder) / ADAPTER) as file:
        file.write(data)
    save_json(Path(folder) / "adapter.json", fields | {"sha256": digest(fields, data)})


# %%
#| export
def load_adapter(model: GPT, folder: str | Path) -> GPT:
    """Put adapters that save_adapter wrote beside the weights they were trained with; returns the model.

    OSError or ValueError, in one sentence and the model untouched, if a bit has changed or the base is another one.
    """
    folder = Path(folder)
    try:
        fields, data = json.loads((folder / "adapter.json").read_bytes()), (folder / ADAPTER).read_bytes()
        sha256, tensors = fields.pop("sha256", None), load(data)
        if sha256 != digest(fields, data):
            raise ValueError(f"adapter.json or {ADAPTER} has changed since")
        base = fields.pop("base")
    except FileNotFoundError as error:
        how = "save_adapter(model, folder) writes it"
        raise FileNotFoundError(f"{error.filename} is not there; {how}") from None
    except UNREADABLE as error:
        raise ValueError(f"{folder} holds no adapter that save_adapter wrote whole: {error}") from None
    if base != base_digest(model):
        raise ValueError(
            f"the adapter in {folder} was trained on other weights than this model's; load its base"
        )
    add_lora(model, **fields)
    with torch.no_grad():
        for name, p in lora_parameters(model).items():
            p.copy_(tensors[name])
    return model


# %%
checkpoint("19")
