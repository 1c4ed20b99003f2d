"""Chapter 24: GPT-2 with one of Llama's changes, to be compared with GPT-2.

The changes are made of the chapter's classes. `parts` is the module that has them: the notebook, before its checkpoint, or
nanogpt.labs.llama.model after it.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from nanogpt.model import GPT, GPTConfig, init_weights
from nanogpt.training import scale_init


class Unrotated(nn.Module):
    """Chapter 24's attention in a block of chapter 05, which passes no angles; theta None: nothing is rotated."""

    def __init__(self, attention, rope_angles, theta: float | None):
        super().__init__()
        self.attention, self.rope_angles, self.theta = attention, rope_angles, theta

    def forward(self, x: Tensor, cache=None) -> Tensor:
        places = torch.arange(x.size(1), device=x.device)
        angles = self.rope_angles(places, self.attention.head_size, self.theta or 1.0)
        return self.attention(x, angles if self.theta else torch.zeros_like(angles))


def llama_config(parts, shape: GPTConfig, **changes):
    """A LlamaConfig of about the same number of parameters, with as many heads of keys and values as of queries."""
    C, fields = shape.n_embd, {"n_kv_head": shape.n_head, "tied": True, "rope_theta": 10_000.0} | changes
    saved = C * shape.block_size // shape.n_layer  # no table of positions
    saved += (shape.n_head - fields["n_kv_head"]) * 2 * C * C // shape.n_head  # fewer keys and values
    hidden = (8 * C * C + saved) // (3 * C) // 8 * 8
    return parts.LlamaConfig(
        shape.block_size, shape.vocab_size, shape.n_layer, shape.n_head, n_embd=C, n_hidden=hidden,
        head_size=C // shape.n_head, **fields,
    )  # fmt: skip


def rms_norms(model: GPT, parts) -> None:
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.LayerNorm):
            model.set_submodule(name, parts.RMSNorm(module.normalized_shape[0]))


def gated_mlps(model: GPT, parts) -> None:
    C = model.config.n_embd
    for block in model.transformer.h:
        block.mlp = parts.SwiGLU(C, 8 * C // 3 // 8 * 8)


def attentions(theta=None, **changes):
    def change(model: GPT, parts) -> None:
        if theta:  # nothing is added to the stream any more
            model.transformer.wpe.weight.requires_grad_(False)
        for block in model.transformer.h:
            attention = parts.GroupedAttention(llama_config(parts, model.config, **changes))
            block.attn = Unrotated(attention, parts.rope_angles, theta)

    return change


def nothing(model: GPT, parts) -> None:
    """GPT-2 as it is, or without biases."""


CHANGES = {
    "GPT-2": nothing,
    "no biases": nothing,
    "RMSNorm": rms_norms,
    "rotary positions": attentions(theta=10_000.0),
    "grouped queries": attentions(n_kv_head=2),
    "QK-norm": attentions(qk_norm=True),
    "SwiGLU": gated_mlps,
    "all together": None,
}


def changed(name: str, shape: GPTConfig, parts, seed: int = 0):
    """A new model of chapter 05 with this change, or chapter 24's with all; the matrices scaled as in chapter 07."""
    g = torch.Generator().manual_seed(seed)
    if name == "all together":
        config = llama_config(parts, shape, n_kv_head=shape.n_head // 2, qk_norm=True)
        return scale_init(parts.Llama(config, g))
    model = GPT(replace(shape, bias=name == "GPT-2"))
    CHANGES[name](model, parts)
    init_weights(model, shape.n_layer, g, shape.vocab_size)
    scale_init(model)
    if not model.transformer.wpe.weight.requires_grad:
        nn.init.zeros_(model.transformer.wpe.weight)
    return model
