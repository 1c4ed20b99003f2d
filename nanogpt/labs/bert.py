"""BERT: attention to both sides, hidden tokens as the task, the published model and its weights.

Exported from notebooks/24d_bert.ipynb.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.model import GPT, Block, CausalSelfAttention, GPTConfig, next_token_loss, split_heads
from nanogpt.pretrained import find_checkpoint, read_headers, read_json, read_tensor


class SelfAttention(CausalSelfAttention):
    """Attention to both sides, with chapter 04's weights. cache is ignored: a new token changes all outputs."""

    def forward(self, x: Tensor, cache=None) -> Tensor:
        q, k, v = split_heads(self.c_attn(x), self.n_head)  # (B, n_head, T, d)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)


def both_sides(model: GPT) -> GPT:
    """Let a GPT's blocks attend to both sides, in place; the weights stay. Returns the model."""
    for block in model.transformer.h:
        block.attn.__class__ = SelfAttention
    return model


def hide(idx: Tensor, mask_id: int, generator: torch.Generator, share: float = 0.15) -> tuple[Tensor, Tensor]:
    """x and targets (B, T) of BERT's task: a share of the tokens, drawn on the CPU, becomes mask_id; targets -100 elsewhere."""
    hidden = (torch.rand(idx.shape, generator=generator) < share).to(idx.device)
    return idx.masked_fill(hidden, mask_id), idx.masked_fill(~hidden, -100)


class PaddedAttention(SelfAttention):
    """Attention to both sides that leaves padding out. keep (B, T): True where a token is real; None: all are."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        q, k, v = split_heads(self.c_attn(x), self.n_head)  # (B, n_head, T, d)
        p = self.dropout if self.training else 0.0
        mask = None if keep is None else keep[:, None, None, :]  # (B, 1, 1, T): for all heads and queries
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)


class BertBlock(Block):
    """Attention, then MLP, with the norm after each sum (Vaswani et al. 2017, §3.1). (B, T, C) -> (B, T, C).

    The layers are chapter 05's. Its MLP has the GELU with tanh, so forward takes that apart: c_fc, c_proj, dropout.
    """

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        self.attn = PaddedAttention(config)
        self.ln_1.eps = self.ln_2.eps = 1e-12

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.ln_1(x + self.attn(x, keep))
        wide = F.gelu(self.mlp.c_fc(x))  # with the error function
        return self.ln_2(x + self.mlp.dropout(self.mlp.c_proj(wide)))


class Bert(nn.Module):
    """BERT with its masked-token head (Devlin et al. 2018, §3), as BertForMaskedLM of transformers."""

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config, C = config, config.n_embd
        self.wte = nn.Embedding(config.vocab_size, C)
        self.wpe, self.wtt = nn.Embedding(config.block_size, C), nn.Embedding(2, C)
        self.ln, self.ln_head = nn.LayerNorm(C, eps=1e-12), nn.LayerNorm(C, eps=1e-12)
        self.h = nn.ModuleList(BertBlock(config) for _ in range(config.n_layer))
        self.dense, self.bias = nn.Linear(C, C), nn.Parameter(torch.zeros(config.vocab_size))
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, idx: Tensor, targets: Tensor | None = None, keep=None, sentence=None):
        """Logits (B, T, vocab_size), and the mean loss of targets that are not -100, or None without targets.

        sentence (B, T): 0 or 1, None: all 0.
        """
        places = torch.arange(idx.size(1), device=idx.device)
        sentence = torch.zeros_like(idx) if sentence is None else sentence
        x = self.ln(self.wte(idx) + self.wpe(places) + self.wtt(sentence))  # (B, T, C)
        for block in self.h:
            x = block(x, keep)
        x = self.ln_head(F.gelu(self.dense(x)))
        logits = x @ self.wte.weight.T + self.bias
        return logits, None if targets is None else next_token_loss(logits, targets)


OUTER = {
    "wte.weight": "bert.embeddings.word_embeddings.weight",
    "wpe.weight": "bert.embeddings.position_embeddings.weight",
    "wtt.weight": "bert.embeddings.token_type_embeddings.weight",
    "ln.": "bert.embeddings.LayerNorm.",
    "dense.": "cls.predictions.transform.dense.",
    "ln_head.": "cls.predictions.transform.LayerNorm.",
    "bias": "cls.predictions.bias",
}
INNER = {
    "attn.c_proj.": "attention.output.dense.",
    "ln_1.": "attention.output.LayerNorm.",
    "mlp.c_fc.": "intermediate.dense.",
    "mlp.c_proj.": "output.dense.",
    "ln_2.": "output.LayerNorm.",
}


def bert_names(name: str) -> list[str]:
    """Hugging Face's names for a parameter of ours: one, or those of query, key and value."""
    if not name.startswith("h."):
        ours = next(prefix for prefix in OUTER if name.startswith(prefix))
        return [OUTER[ours] + name.removeprefix(ours)]
    _, layer, rest = name.split(".", 2)
    start = f"bert.encoder.layer.{layer}."
    if rest.startswith("attn.c_attn."):
        return [
            f"{start}attention.self.{part}.{rest.removeprefix('attn.c_attn.')}"
            for part in ("query", "key", "value")
        ]
    ours = next(prefix for prefix in INNER if rest.startswith(prefix))
    return [start + INNER[ours] + rest.removeprefix(ours)]


SIZES = "max_position_embeddings", "vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size"


@torch.no_grad()
def read_bert(name_or_dir: str | Path) -> Bert:
    """A Bert with the weights of a BertForMaskedLM in a Hugging Face folder or repository, in eval mode."""
    path, files = find_checkpoint(name_or_dir)
    said = read_json(path)
    model = Bert(GPTConfig(*[said[key] for key in SIZES]))
    found = {}
    for name, entry in read_headers(files).items():  # the oldest files say gamma and beta
        found[name.replace(".gamma", ".weight").replace(".beta", ".bias")] = entry
    for name, p in model.named_parameters():
        parts = []
        for theirs in bert_names(name):
            if theirs not in found:
                raise ValueError(f"{name_or_dir} lacks {theirs}")
            file, stored, _, _ = found[theirs]
            parts.append(read_tensor(file, stored))
        weight = torch.cat(parts)
        if weight.shape != p.shape:
            raise ValueError(f"{name_or_dir}: {theirs} has another shape than config.json says")
        p.copy_(weight)
    return model.eval()


def refuse_other_bert(said: dict, where: str | Path) -> None:
    """ValueError naming all settings of a config.json that this Bert does not have."""
    wants = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    wants |= {"layer_norm_eps": 1e-12, "type_vocab_size": 2, "is_decoder": False, "tie_word_embeddings": True}
    wants |= {"intermediate_size": 4 * said.get("hidden_size", 0)}
    defaults = wants | {"model_type": None, "intermediate_size": None}
    wrong = []
    for key, wanted in wants.items():
        found = said.get(key, defaults[key])
        if found != wanted:
            wrong.append(f"{key} is {found!r}, not {wanted!r}")
    for key in SIZES:
        if key not in said:
            wrong.append(f"{key} is missing")
    if wrong:
        raise ValueError(f"{where}: this is not a BERT that nanogpt can run: {'; '.join(wrong)}")


def bert_from_hf(name_or_dir: str | Path) -> Bert:
    """read_bert, if config.json describes a model that Bert is. OSError or ValueError."""
    path, _ = find_checkpoint(name_or_dir)
    refuse_other_bert(read_json(path), name_or_dir)
    return read_bert(name_or_dir)
