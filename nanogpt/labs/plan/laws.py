"""Scaling laws: losses of small models trained for several lengths, the law fitted to them, and what it says.

Exported from notebooks/22c_scaling_laws.ipynb.
"""

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from nanogpt.data import DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.evals.floor import floor_per_token
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer, wsd
from nanogpt.shards import open_shards
from nanogpt.training import scale_init, train_step

ROWS, T, LAYERS, HEADS = 4, 128, 3, 4  # T: every story is shorter
RATE, WARMUP, DECAY = 0.4, 10, 0.2  # the rate is RATE / width, and falls to zero in the last fifth of a run


def shape(width: int, vocab_size: int) -> GPTConfig:
    """The models of this chapter: they differ in their width alone."""
    return GPTConfig(T, vocab_size, LAYERS, HEADS, width)


def held_out(tokenizer, n: int = 256, seed: int = 1_000_003) -> tuple[np.ndarray, float]:
    """New stories as ids, and the loss on them of one who knows the grammar, in nats per token: exact (chapter 02)."""
    told = list(stories(n, seed))
    text = "".join(f"<|endoftext|>{story.text}" for story in told) + "<|endoftext|>"
    ids = tokenizer.to_tiktoken().encode_to_numpy(text, allowed_special="all")
    return ids, floor_per_token(told, tokenizer)


def advance(model, optimizer, stream, start: int, stop: int, steps: int, rate: float, decay: float) -> None:
    """Updates start to stop - 1 of a run of so many steps, whose rate falls to zero in its last part `decay`."""
    for step in range(start, stop):
        for group in optimizer.param_groups:
            group["lr"] = rate * wsd(step, steps, warmup=WARMUP, decay=decay)
        train_step(model, optimizer, [stream.next_batch()], clip=1.0)


def losses_after(
    width: int, tokens: Sequence[int], folder, held: np.ndarray, seed: int = 0, decay: float = DECAY
) -> dict[int, float]:
    """Held-out losses of this width after so many tokens, ascending: each that of a run of its own, bit for bit.

    One trunk keeps the rate; for each length a copy leaves it, and lets the rate fall (Hägele et al. 2024, §3).
    """
    stream = DocumentStream(open_shards(folder, "train"), ROWS, T, seed=seed)
    model = scale_init(GPT(shape(width, stream.vocab_size), torch.Generator().manual_seed(seed)))
    optimizer, at, losses = make_optimizer(model, RATE / width), 0, {}
    for n in tokens:
        steps = n // (ROWS * T)
        branch = int((1 - decay) * steps)
        advance(model, optimizer, stream, at, branch, steps, RATE / width, decay)  # before the rate falls
        end, update = copy.deepcopy((model, optimizer))
        advance(end, update, copy.copy(stream), branch, steps, steps, RATE / width, decay)
        at, losses[n] = branch, evaluate(end, [held], stream.eot)
    return losses


@dataclass(frozen=True)
class Law:
    """L(N, D) = E + A / N^alpha + B / D^beta, in nats a token (Hoffmann et al. 2022, eq. 2)."""

    E: float
    A: float
    alpha: float
    B: float
    beta: float

    def loss(self, N, D):
        """Of N parameters after D tokens."""
        return self.E + self.A / N**self.alpha + self.B / D**self.beta

    def best(self, flops: float) -> tuple[float, float]:
        """The N and D with the lowest loss for which 6 N D are so many FLOPs (eq. 4)."""
        G = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        N = G * (flops / 6) ** (self.beta / (self.alpha + self.beta))
        return N, flops / 6 / N


DELTA = 1e-3  # Huber's: beyond a thousandth of the loss an error counts linearly (§D.2)


def huber(r: np.ndarray) -> np.ndarray:
    """Of each error: half of its square up to DELTA; beyond, a line that goes on with the same value and slope."""
    size = abs(r)
    return np.where(size < DELTA, r * r / 2, DELTA * (size - DELTA / 2))


STARTS = np.array(
    list(itertools.product((0, 10, 20), (0, 1, 2), (0, 10, 20), (0, 1, 2), (-1, 0, 1))), dtype=float
)


def errors(p: np.ndarray, x: np.ndarray, y: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Error in log loss of each fit at each run, (S, n), and its derivative by the fit's parameters, (S, n, 5)."""
    e = np.broadcast_to(p[:, 4:], (len(p), len(x)))
    terms = np.stack([p[:, :1] - p[:, 1:2] * x, p[:, 2:3] - p[:, 3:4] * y, e], -1)
    top = terms.max(-1, keepdims=True)
    parts = np.exp(terms - top)
    total = parts.sum(-1, keepdims=True)
    a, b, e = np.moveaxis(parts / total, -1, 0)
    slope = np.stack([a, -a * x, b, -b * y, e], -1)
    return (top + np.log(total))[..., 0] - target, slope


def fit_law(N, D, losses, starts=STARTS, weights=1.0, E=None, steps=200) -> tuple[np.ndarray, np.ndarray]:
    """Fit log A, alpha, log B, beta, log E from each start: (S, 5), and what is left of the Huber loss of the logs, (S,).

    Levenberg and Marquardt's steps, all starts at once. weights: of the runs, (n,) or (S, n). E: if it is known.
    """
    x, y, target, p = np.log(N), np.log(D), np.log(losses), np.array(starts, dtype=float)
    fixed = np.array([0, 0, 0, 0, E is not None], dtype=float)
    p[:, 4] = p[:, 4] if E is None else math.log(E)
    (r, slope), damping = errors(p, x, y, target), np.full(len(p), 1e-2)
    left = (weights * huber(r)).sum(-1)
    for _ in range(steps):
        J = slope * (1 - fixed)
        Jw = (J * (weights * DELTA / np.maximum(abs(r), DELTA))[..., None]).swapaxes(1, 2)
        H = Jw @ J
        H += np.eye(5) * (damping[:, None] * (H.diagonal(0, 1, 2) + 1e-9) + fixed)[:, None]
        q = p - np.linalg.solve(H, Jw @ r[..., None])[..., 0]
        r_q, slope_q = errors(q, x, y, target)
        left_q = (weights * huber(r_q)).sum(-1)
        ok = left_q < left
        p[ok], r[ok], slope[ok], left[ok] = q[ok], r_q[ok], slope_q[ok], left_q[ok]
        damping = np.clip(np.where(ok, damping / 3, damping * 4), 1e-9, 1e9)
    return p, left


def law_of(p: np.ndarray) -> Law:
    """The law with these log A, alpha, log B, beta, log E."""
    a, alpha, b, beta, e = p.tolist()
    return Law(math.exp(e), math.exp(a), alpha, math.exp(b), beta)


def best_law(N, D, losses, E=None) -> Law:
    """The best of the fits from all starts. ValueError with fewer runs than the law has numbers."""
    if len(losses) < (free := 5 - (E is not None)):
        raise ValueError(f"{len(losses)} runs cannot tell {free} numbers; fit to {free + 1} or more")
    if not all(0 < x < math.inf for x in (*N, *D, *losses)):
        raise ValueError("a law is fitted to sizes, tokens and losses above zero; one here is none, or NaN")
    p, left = fit_law(N, D, losses, E=E)
    return law_of(p[left.argmin()])
