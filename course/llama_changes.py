"""Chapter 24: GPT-2 with one of Llama's changes, to be compared with GPT-2. The parts are the chapter's own."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from nanogpt.gpt.model import GPT, GPTConfig, init_weights


class Unrotated(nn.Module):
    """Chapter 24's attention in a block of chapter 05, which passes no angles; theta None: nothing is rotated."""

    def __init__(self, attention, theta: float | None):
        super().__init__()
        self.attention, self.theta = attention, theta

    def forward(self, x: Tensor, cache=None) -> Tensor:
        from nanogpt.gpt.llama import rope_angles

        places = torch.arange(x.size(1), device=x.device)
        angles = rope_angles(places, self.attention.head_size, self.theta or 1.0)
        return self.attention(x, angles if self.theta else torch.zeros_like(angles))


def llama_config(shape: GPTConfig, **changes):
    """A LlamaConfig of about the same number of parameters, with as many heads of keys and values as of queries."""
    from nanogpt.gpt.llama import LlamaConfig

    C, fields = shape.n_embd, {"n_kv_head": shape.n_head, "tied": True, "rope_theta": 10_000.0} | changes
    saved = C * shape.block_size // shape.n_layer  # no table of positions
    saved += (shape.n_head - fields["n_kv_head"]) * 2 * C * C // shape.n_head  # fewer keys and values
    hidden = (8 * C * C + saved) // (3 * C) // 8 * 8
    return LlamaConfig(
        shape.block_size, shape.vocab_size, shape.n_layer, shape.n_head, n_embd=C, n_hidden=hidden,
        head_size=C // shape.n_head, **fields,
    )  # fmt: skip


def rms_norms(model: GPT) -> None:
    from nanogpt.gpt.llama import RMSNorm

    for name, module in list(model.named_modules()):
        if isinstance(module, nn.LayerNorm):
            model.set_submodule(name, RMSNorm(module.normalized_shape[0]))


def gated_mlps(model: GPT) -> None:
    from nanogpt.gpt.llama import SwiGLU

    C = model.config.n_embd
    for block in model.transformer.h:
        block.mlp = SwiGLU(C, 8 * C // 3 // 8 * 8)


def attentions(theta=None, **changes):
    def change(model: GPT) -> None:
        from nanogpt.gpt.llama import GroupedAttention

        if theta:  # nothing is added to the stream any more
            model.transformer.wpe.weight.requires_grad_(False)
        for block in model.transformer.h:
            block.attn = Unrotated(GroupedAttention(llama_config(model.config, **changes)), theta)

    return change


def nothing(model: GPT) -> None:
    """GPT-2 as it is, or without biases."""


CHANGES = {
    "GPT-2": nothing,
    "no biases": nothing,
    "RMSNorm": rms_norms,
    "rotary positions": attentions(theta=10_000.0),
    "grouped queries": attentions(n_kv_head=4),
    "QK-norm": attentions(qk_norm=True),
    "SwiGLU": gated_mlps,
    "all together": None,
}


def changed(name: str, shape: GPTConfig, seed: int = 0):
    """A new model of chapter 05 with this change, or chapter 24's with all; the matrices scaled as in chapter 07."""
    from nanogpt.gpt.llama import Llama
    from nanogpt.gpt.train import scale_init

    g = torch.Generator().manual_seed(seed)
    if name == "all together":
        return scale_init(Llama(llama_config(shape, n_kv_head=shape.n_head // 2, qk_norm=True), g))
    model = GPT(replace(shape, bias=name == "GPT-2"))
    CHANGES[name](model)
    init_weights(model, shape.n_layer, g, shape.vocab_size)
    if not model.transformer.wpe.weight.requires_grad:
        nn.init.zeros_(model.transformer.wpe.weight)
    return scale_init(model)
