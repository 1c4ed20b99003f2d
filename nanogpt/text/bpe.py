"""Byte pair encoding: merges learned from chunks of bytes, and a chunk's ids by them.

Exported from notebooks/01_tokenizer.ipynb.
"""

import heapq
from collections import Counter, defaultdict
from itertools import pairwise


def replace(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """`ids` with every occurrence of `pair`, taken from left to right, replaced by the id `new`."""
    out, i = [], 0
    while i < len(ids):
        if ids[i] == pair[0] and i + 1 < len(ids) and ids[i + 1] == pair[1]:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def spell(merges: list[tuple[int, int]]) -> list[bytes]:
    """The bytes behind every id: 256 single ones, then one string for each merge."""
    vocab = [bytes([i]) for i in range(256)]
    for left, right in merges:
        vocab.append(vocab[left] + vocab[right])
    return vocab


class _PairCounts:
    """How often each pair of neighbours occurs in some words, kept up to date while pairs are replaced."""

    def __init__(self, chunks: dict[bytes, int]):
        self.words, self.times = [list(chunk) for chunk in chunks], list(chunks.values())
        self.counts, self.places = Counter(), defaultdict(set)
        for w in range(len(self.words)):
            self.tally(w, +1)
        self.heap = [(-count, pair) for pair, count in self.counts.items()]
        heapq.heapify(self.heap)

    def tally(self, w: int, sign: int) -> None:
        """Add the pairs of word w to the counts, or take them out."""
        for pair in pairwise(self.words[w]):
            self.counts[pair] += sign * self.times[w]
            self.places[pair].add(w)

    def best(self) -> tuple[int, int] | None:
        """The most frequent pair, among equals the one with the smallest ids; None if nothing is left."""
        while self.heap:
            count, pair = heapq.heappop(self.heap)
            if count < 0 and self.counts[pair] == -count:  # else it is out of date
                return pair

    def replace(self, pair: tuple[int, int], new: int) -> None:
        changed = set()
        for w in self.places.pop(pair):
            changed.update(pairwise(self.words[w]))
            self.tally(w, -1)
            self.words[w] = replace(self.words[w], pair, new)
            self.tally(w, +1)
            changed.update(pairwise(self.words[w]))
        for p in changed:
            heapq.heappush(self.heap, (-self.counts[p], p))


def learn_merges(chunks: dict[bytes, int], n: int) -> list[tuple[int, int]]:
    """At most `n` merges of byte-level BPE; merge k makes id 256 + k (Sennrich et al. 2016, §3.2).

    chunks: how often each byte string occurs. The most frequent pair is merged; among equals, the pair with the
    smallest ids, left first. Fewer than `n` come back if nothing is left to merge.
    """
    pairs, merges = _PairCounts(chunks), []
    while len(merges) < n and (pair := pairs.best()):
        pairs.replace(pair, 256 + len(merges))
        merges.append(pair)
    return merges


def merge_chunk(chunk: bytes, ranks: dict[bytes, int]) -> list[int]:
    """The ids of one chunk: the neighbours whose joined bytes have the lowest rank merge first, equal ones from the left."""
    n = len(chunk)
    stop = [*range(1, n + 1), 0]  # the token at i is chunk[i:stop[i]]
    start = list(range(-1, n))  # the token that ends at j begins at start[j]
    heap = [(ranks[chunk[i : i + 2]], i, i + 2) for i in range(n - 1) if chunk[i : i + 2] in ranks]
    heapq.heapify(heap)
    while heap:
        _, i, j = heapq.heappop(heap)
        if stop[middle := stop[i]] != j:
            continue  # one of the two has merged with somebody else
        stop[i], start[j], stop[middle] = j, i, n  # n: a place where no token begins
        for a, b in (start[i], j), (i, stop[j]):
            if a >= 0 and b > 0 and chunk[a:b] in ranks:
                heapq.heappush(heap, (ranks[chunk[a:b]], a, b))
    ids, i = [], 0
    while i < n:
        ids.append(ranks[chunk[i : stop[i]]])
        i = stop[i]
    return ids
