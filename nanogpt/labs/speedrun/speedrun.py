"""A small GPT that learns fast: squared ReLU, rotary positions, tables of recent tokens, Muon.

Exported from notebooks/25_speedrun.ipynb.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.evaluate import evaluating
from nanogpt.labs.llama.model import rope_angles, rotate
from nanogpt.labs.speedrun.muon import MuonAndAdamW
from nanogpt.model import GPT, GPTConfig, init_weights, split_heads
from nanogpt.optim import cosine, decay_groups, wsd
from nanogpt.precision import autocast
from nanogpt.training import scale_init, train_step


@torch.no_grad()
def validation_loss(model: GPT, ids: Tensor, context: int, rows: int = 128) -> tuple[float, int]:
    """The mean loss in nats of ids[1:], and how many they are. Each is a target once, after at most `context` ids."""
    x, y = ids[:-1], ids[1:]
    missing = -len(x) % context
    x = F.pad(x, (0, missing)).view(-1, context)
    y = F.pad(y, (0, missing), value=-100).view(-1, context)
    total, count = 0.0, 0
    with evaluating(model) as device:
        for xs, ys in zip(x.split(rows), y.split(rows)):
            n = int((ys != -100).sum())
            total, count = total + n * model(xs.to(device), ys.to(device))[1].item(), count + n
    return total / count, count


class SquaredReLU(nn.Module):
    """c_proj(relu(c_fc(x))²): GPT-2's MLP with another curve (So et al. 2021). (B, T, C) -> (B, T, C)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.relu(self.c_fc(x)).square())


class FastAttention(nn.Module):
    """Chapter 04's attention whose queries and keys may be normalized and rotated. (B, T, C) -> (B, T, C), causal.

    The norm is F.rms_norm over a head's d numbers, without a gain. rotary: angles with theta = 1000. cache is not used.
    """

    def __init__(self, config: GPTConfig, rotary: bool, normalized: bool):
        super().__init__()
        self.n_head, self.rotary, self.normalized = config.n_head, rotary, normalized
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Tensor, cache=None) -> Tensor:
        q, k, v = split_heads(self.c_attn(x), self.n_head)  # (B, n_head, T, d)
        d = q.size(-1)
        if self.normalized:
            q, k = F.rms_norm(q, (d,)), F.rms_norm(k, (d,))
        if self.rotary:
            angles = rope_angles(torch.arange(x.size(1), device=x.device), d, 1000.0)  # (T, d/2)
            q, k = rotate(q, angles), rotate(k, angles)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class RecentTokens(nn.Module):
    """The vector of each token, plus vectors of the last 2, 3, … `longest` tokens together. ids (B, T) -> (B, T, C).

    A table has fewer rows than there are such sequences: a hash says which row one uses, and some share it.
    """

    def __init__(self, tokens: nn.Embedding, longest: int, rows: int):
        super().__init__()
        self.tokens, self.rows = tokens, rows
        self.tables = nn.ModuleList(nn.Embedding(rows, tokens.embedding_dim) for _ in range(longest - 1))
        for table in self.tables:
            nn.init.zeros_(table.weight)

    def forward(self, idx: Tensor) -> Tensor:
        x, code = self.tokens(idx), idx
        for n, table in enumerate(self.tables, start=1):
            before = F.pad(idx, (n, 0))[:, : idx.size(1)]  # the token n places before; 0 where there is none
            code = (code * 40_503 + before) % 2**31  # a hash of the last n + 1 tokens
            x = x + table(code % self.rows)
        return x


@dataclass(frozen=True)
class Recipe:
    """How a race is run. The defaults: nanoGPT's for Shakespeare on a CPU."""

    n_layer: int = 4
    n_head: int = 4
    n_embd: int = 128
    relu_squared: bool = False
    rotary: bool = False
    normalized: bool = False  # queries and keys
    recent: int = 1  # tables for the last 2, 3, … so many tokens
    table_rows: int = 16_384
    scaled: bool = False  # chapter 07's scale_init
    muon: bool = False
    rate: float = 1e-3
    weight_decay: float = 0.1
    clip: float | None = 1.0
    decay: float | None = None  # in what share of the steps the rate falls to 0; None: a cosine
    warmup: int = 100
    steps: int = 2000
    rows: int = 12  # of a batch
    last_rows: int | None = None  # in the second half of the steps, if more
    precision: str = "float32"
    compiled: bool = False


def new_model(recipe: Recipe, vocab_size: int, block_size: int, seed: int) -> GPT:
    """Chapter 05's GPT with the parts that the recipe asks for, new from this seed."""
    config = GPTConfig(block_size, vocab_size, recipe.n_layer, recipe.n_head, recipe.n_embd, bias=False)
    model = GPT(config)
    for block in model.transformer.h:
        if recipe.relu_squared:
            block.mlp = SquaredReLU(config)
        if recipe.rotary or recipe.normalized:
            block.attn = FastAttention(config, recipe.rotary, recipe.normalized)
    init_weights(model, config.n_layer, torch.Generator().manual_seed(seed))
    if recipe.scaled:
        scale_init(model)
    if recipe.rotary:  # nothing is added for the position any more
        nn.init.zeros_(model.transformer.wpe.weight).requires_grad_(False)
    if recipe.recent > 1:
        model.transformer.wte = RecentTokens(model.transformer.wte, recipe.recent, recipe.table_rows)
    return model


def new_optimizer(model: GPT, recipe: Recipe):
    """Muon and AdamW, or AdamW alone with nanoGPT's groups and betas."""
    if recipe.muon:
        return MuonAndAdamW(model, recipe.rate, recipe.weight_decay)
    groups = decay_groups(model, recipe.weight_decay)
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.99), fused=True)


def rows_at(recipe: Recipe, step: int) -> int:
    """The rows of this step's batch. The second half begins with the first step that is at least recipe.steps / 2."""
    if recipe.last_rows is None or 2 * step < recipe.steps:
        return recipe.rows
    return recipe.last_rows


def rate_at(recipe: Recipe, step: int) -> float:
    """The learning rate in this step."""
    if recipe.decay is None:
        return recipe.rate * cosine(step, recipe.steps, warmup=recipe.warmup)
    return recipe.rate * wsd(step, recipe.steps, warmup=recipe.warmup, decay=recipe.decay)


def compiled(model: GPT, sizes: set[int], precision: str) -> nn.Module:
    """The model, compiled for batches of these numbers of rows."""
    fast, device = torch.compile(model, dynamic=False), model.lm_head.weight.device
    for rows in sorted(sizes):
        x = torch.zeros(rows, model.config.block_size, dtype=torch.int64, device=device)
        with autocast(precision, device):
            loss = fast(x, x)[1]
        loss.backward()
    model.zero_grad()
    return fast


def race(recipe: Recipe, vocab_size: int, block_size: int, deal, seed: int, device="cpu") -> Iterator:
    """Trains a new model on deal(rows) -> (x, y). After each step: the model, and the seconds all steps have taken.

    What the caller does between two steps does not count, and compiling does not either.
    """
    model = new_model(recipe, vocab_size, block_size, seed).to(device)
    optimizer, trained, seconds = new_optimizer(model, recipe), model, 0.0
    if recipe.compiled:
        trained = compiled(model, {rows_at(recipe, 0), rows_at(recipe, recipe.steps)}, recipe.precision)
    for step in range(recipe.steps):
        start = perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate_at(recipe, step)
        x, y = deal(rows_at(recipe, step))
        train_step(trained, optimizer, [(x.to(device), y.to(device))], recipe.precision, recipe.clip)
        seconds += perf_counter() - start
        yield model, seconds


OURS = Recipe(
    n_layer=1, n_embd=96, relu_squared=True, rotary=True, normalized=True, recent=4, scaled=True,
    muon=True, rate=1e-2, clip=None, decay=1.0, warmup=0, steps=100, rows=24,
)  # fmt: skip


def windows_at_random(ids: Tensor, block_size: int, seed: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    """A function that takes a number of rows and gives x and y, (rows, block_size), from random places, as nanoGPT's does."""
    generator = torch.Generator().manual_seed(seed)

    def deal(rows: int) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(ids) - block_size, (rows, 1), generator=generator)
        window = ids[starts + torch.arange(block_size + 1)]  # (rows, block_size + 1)
        return window[:, :-1], window[:, 1:]

    return deal
