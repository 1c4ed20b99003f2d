"""Duplicates, rules for bad pages, and evaluation texts in a training set, found and measured.

Exported from notebooks/16c_cleaning.ipynb.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np


def shingles(text: str, n: int = 5) -> set[str]:
    """All runs of n words of a text."""
    words = text.split()
    return {" ".join(words[i : i + n]) for i in range(len(words) - n + 1)}


def similarity(a: set, b: set) -> float:
    """Jaccard similarity of two sets, from 0 to 1: what both have over what at least one has; 0 for two empty sets."""
    return len(a & b) / max(1, len(a | b))


def signature(shingles: Iterable[str], hashes: int = 112, seed: int = 0) -> np.ndarray:
    """The smallest value of each of `hashes` hash functions over a set of shingles: (hashes,), uint64.

    Function i is a[i] * x + b[i], modulo 2^64. x is a 64-bit hash of a shingle from hashlib, since Python's own hash()
    is another one in each process. The seed alone decides the random a (odd) and b. An empty set always gives the same.
    """
    x = [int.from_bytes(hashlib.blake2b(s.encode(), digest_size=8).digest()) for s in shingles]
    rng = np.random.Generator(np.random.PCG64(seed))
    a, b = rng.integers(0, 2**64, (2, hashes), dtype=np.uint64)
    a |= np.uint64(1)  # odd, so that no two of x get the same hash
    if not x:
        return b  # a text of fewer than five words
    return (a[:, None] * np.array(x, np.uint64) + b[:, None]).min(1)  # uint64 drops what is above 2^64


def candidates(signatures: np.ndarray, bands: int) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of the rows of signatures that agree in all numbers of at least one band."""
    pairs = set()
    for band in np.split(signatures, bands, axis=1):
        buckets = defaultdict(list)
        for page, numbers in enumerate(band):
            buckets[numbers.tobytes()].append(page)
        for pages in buckets.values():
            pairs.update(combinations(pages, 2))
    return pairs


def without_duplicates(texts: Sequence[str], threshold=0.7, bands=14, rows=8) -> list[int]:
    """Which texts to keep: of each group that is connected by similar pairs, the first. Exact copies are similar."""
    sets = [shingles(text) for text in texts]
    signatures = np.stack([signature(found, bands * rows) for found in sets])
    first = list(range(len(texts)))  # the smallest page of each page's group, as far as it is known

    def group(page: int) -> int:
        while first[page] != page:
            page = first[page]
        return page

    for a, b in candidates(signatures, bands):
        if texts[a] == texts[b] or similarity(sets[a], sets[b]) >= threshold:
            a, b = sorted((group(a), group(b)))
            first[b] = a
    return [page for page in range(len(texts)) if first[page] == page]


COMMON = {"the", "be", "to", "of", "and", "that", "have", "with"}


def faults(text: str) -> list[str]:
    """Which of Gopher's rules for good English pages a text breaks (Rae et al. 2021, appendix A)."""
    words, lines = text.split(), [line.strip() for line in text.splitlines() if line.strip()]
    n = max(1, len(words))
    length = sum(map(len, words)) / n
    symbols = len(re.findall(r"#|\.\.\.|…", text)) / n
    letters = sum(any(c.isalpha() for c in word) for word in words) / n
    bullets = sum(line[0] in "-*•" for line in lines) / max(1, len(lines))
    common = len(COMMON & {word.strip('.,!?"').lower() for word in words})
    broken = {
        "number of words": not 50 <= len(words) <= 100_000,
        "length of words": not 3 <= length <= 10,
        "symbols": symbols > 0.1,
        "words without letters": letters < 0.8,
        "bullets": bullets > 0.9,
        "common words": common < 2,
    }
    return [rule for rule in broken if broken[rule]]


def overlap(text: str, known: set[str], n: int = 13) -> float:
    """The share of a text's different runs of n words (its shingles) that are known; 0 for a text that is shorter."""
    runs = shingles(text, n)
    return len(runs & known) / max(1, len(runs))
