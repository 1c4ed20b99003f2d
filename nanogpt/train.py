"""06 · Training: from ln V to the floor (exported from notebooks/06_training.ipynb)."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from tqdm import tqdm

from nanogpt.corpus import Story
from nanogpt.data import document_starts
from nanogpt.files import atomically, save_json
from nanogpt.model import GPT, GPTConfig

__all__ = [
    "scale_init",
    "train_step",
    "decayed",
    "train",
    "windows",
    "evaluating",
    "total_loss",
    "evaluate",
    "answer_accuracy",
    "save_model",
    "load_model",
]


@torch.no_grad()
def scale_init(model: GPT) -> GPT:
    """Scale all matrices of a new model by √(768 / n_embd), so that 0.02 means what it means in GPT-2 small.

    A matrix with standard deviation σ gives signals of size σ√n_embd (Glorot and Bengio 2010, §4.2). Returns the model.
    """
    for p in model.parameters():
        if p.dim() == 2:
            p *= math.sqrt(768 / model.config.n_embd)
    return model


def train_step(model: GPT, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, dtype=None) -> float:
    """One step on a batch x, y, both (B, T); the loss before it, in nats per token. dtype: autocast's, or none."""
    with torch.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
        _, loss = model(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def decayed(step: int, steps: int, decay: float) -> float:
    """The factor of the learning rate: 1, and over the last `decay` of the steps linearly to zero."""
    return min(1.0, (steps - step) / max(1.0, decay * steps))


def train(
    model: GPT,
    stream,
    steps: int,
    lr: float,
    *,
    decay: float = 0.3,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
    on_step: Callable[[int, float], object] | None = None,
) -> list[float]:
    """Train in place with AdamW (Loshchilov and Hutter 2019) on `steps` batches; the loss of each, in nats per token.

    stream: has next_batch() -> (x, y), both (B, T), on the model's device. decay: see `decayed`. generator seeds
    dropout; nothing else is random. dtype: autocast's, or none. on_step(step, loss) is called after each step.
    FloatingPointError once a loss is not finite.
    """
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    seed = int(torch.randint(2**31, (), generator=generator or torch.Generator()))
    losses: list[float] = []
    model.train()
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for step in tqdm(range(steps), unit="step", disable=None):
            torch.manual_seed(seed + step)  # dropout depends on the step, not on what ran before
            optimizer.param_groups[0]["lr"] = lr * decayed(step, steps, decay)
            losses.append(train_step(model, optimizer, *stream.next_batch(), dtype))
            if not math.isfinite(losses[-1]):
                raise FloatingPointError(f"the loss is {losses[-1]} at step {step}; lower lr={lr}")
            if on_step:
                on_step(step, losses[-1])
    return losses


def windows(tokens: np.ndarray, T: int, eot: int) -> Iterator[tuple[int, int, int]]:
    """(start, new, stop): tokens start..stop-1 go in, and those after new, up to stop, are to be predicted.

    Documents, which begin at eot, are kept apart. One longer than T is covered by windows that overlap by half.
    Every token but the first of the shard is predicted exactly once.
    """
    starts = document_starts(tokens, eot)
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(tokens) - 1]):
        new = start
        while new < end:
            stop = min(start + T, end)
            yield start, new, stop
            start, new = min(start + T // 2, end - T) if stop < end else start, stop


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[torch.device]:
    """Dropout off within the block, and the model's mode restored after it; gives the model's device."""
    mode = model.training
    model.eval()
    try:
        yield next(model.parameters()).device
    finally:
        model.train(mode)


@torch.no_grad()
def total_loss(
    model: GPT, tokens: np.ndarray, eot: int, B: int = 32, dtype: torch.dtype | None = None
) -> tuple[float, int]:
    """Sum of the losses of a shard's tokens, in nats, and how many they are: all but the first, each once.

    Sums over several shards, on however many processes, add up to the whole.
    """
    rows = sorted(windows(tokens, model.config.block_size, eot), key=lambda row: row[2] - row[0])
    nats, count = 0.0, 0
    with evaluating(model) as device:
        for i in range(0, len(rows), B):
            longest = max(stop - start for start, _, stop in rows[i : i + B])
            x = torch.zeros(len(rows[i : i + B]), longest, dtype=torch.int64)
            y = torch.full_like(x, -100)  # what cross_entropy leaves out
            for row, (start, new, stop) in enumerate(rows[i : i + B]):
                piece = torch.from_numpy(tokens[start : stop + 1].astype(np.int64))
                x[row, : stop - start] = piece[:-1]
                y[row, new - start : stop - start] = piece[1 + new - start :]
            with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
                logits, _ = model(x.to(device))
            loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten().to(device), reduction="sum")
            nats, count = nats + loss.item(), count + int((y != -100).sum())
    return nats, count


def evaluate(
    model: GPT, shards: Iterable[np.ndarray], eot: int, B: int = 32, dtype: torch.dtype | None = None
) -> float:
    """Mean loss in nats per token over all tokens of the shards; the batch size B changes nothing but the time."""
    totals = [total_loss(model, tokens, eot, B, dtype) for tokens in shards]
    if not sum(count for _, count in totals):
        raise ValueError("there is nothing to evaluate on: a loss needs at least two tokens")
    return sum(nats for nats, _ in totals) / sum(count for _, count in totals)


@torch.no_grad()
def answer_accuracy(model: torch.nn.Module, stories: Iterable[Story], tokenizer) -> float:
    """The share of who-has-how-many answers whose every token is the model's first choice, given all before it.

    model: ids (1, T) -> (logits (1, T, V), anything). ValueError if no story has an answer.
    """
    right, asked = 0, 0
    with evaluating(model) as device:
        for story in stories:
            ids = [tokenizer.eot, *tokenizer.encode(story.text)]
            best = model(torch.tensor([ids[:-1]], device=device))[0][0].argmax(-1).tolist()
            ends = np.cumsum(
                [len(tokenizer.decode([i])) for i in ids[1:]]
            )  # where in the text each token ends
            for start, end in story.answers:
                first, last = np.searchsorted(ends, [start + 1, end])
                right += (
                    best[first : last + 1] == ids[first + 1 : last + 2]
                )  # best[j] is a guess at ids[j + 1]
                asked += 1
    if not asked:
        raise ValueError("an accuracy needs at least one story with an answer in it")
    return right / asked


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
                f"{path} is not there; chapter 06 writes it, or save_model(model, folder)"
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
