"""What a report of a loss needs besides: its standard error, and bits per byte.

Exported from notebooks/18_evaluation.ipynb.
"""

import math

import numpy as np

from nanogpt.shards import document_starts


def by_document(nats: np.ndarray, tokens: np.ndarray, eot: int) -> tuple[np.ndarray, np.ndarray]:
    """Nats and number of predicted tokens of each document. nats: those of tokens[1:]."""
    starts = document_starts(tokens[: len(nats)], eot)
    return np.add.reduceat(nats, starts), np.diff(starts, append=len(nats))


def mean_and_error(nats: np.ndarray, tokens: np.ndarray, eot: int) -> tuple[float, float]:
    """Mean loss per token, and its standard error over documents, nan for one."""
    sums, counts = by_document(nats, tokens, eot)
    mean, n = sums.sum() / counts.sum(), len(sums)
    spread = np.sqrt(((sums - mean * counts) ** 2).sum() * n / (n - 1)) if n > 1 else np.nan
    return mean.item(), (spread / counts.sum()).item()


def token_bytes(tokenizer) -> np.ndarray:
    """The bytes of text that each id stands for, from the vocabulary; 0 for <|endoftext|> and its like."""
    return np.array([len(token) for token in tokenizer.vocab] + [0] * len(tokenizer.special))


def bits_per_byte(nats: np.ndarray, tokens: np.ndarray, sizes: np.ndarray) -> float:
    """Bits for each byte of the text of tokens[1:], whose losses are nats; sizes: those of `token_bytes`.

    ValueError where these tokens have no byte.
    """
    size = sizes[np.asarray(tokens[1:], dtype=np.int64)].sum()
    if not size:
        raise ValueError("bits per byte need at least one token that stands for text")
    return (nats.sum() / math.log(2) / size).item()
