"""Byte pair encoding: merges learned from chunks of bytes, and a chunk's ids by them.

Exported from notebooks/01_tokenizer.ipynb.
"""

from collections import Counter, defaultdict
from itertools import pairwise


def replace(ids: list, pair: tuple, new) -> list:
    """`ids` with every occurrence of `pair`, taken from left to right, replaced by `new`."""
    out, i = [], 0
    while i < len(ids):
        if i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


def most_frequent(counts: Counter) -> tuple[int, int] | None:
    """The pair that occurs most often; among equals the one with the smallest ids; None if no pair occurs."""
    top = max(counts.values(), default=0)
    if top == 0:
        return None
    return min(pair for pair, count in counts.items() if count == top)


def spell(merges: list[tuple[int, int]]) -> list[bytes]:
    """The bytes behind every id: 256 single ones, then one string for each merge."""
    vocab = [bytes([i]) for i in range(256)]
    for left, right in merges:
        vocab.append(vocab[left] + vocab[right])
    return vocab


def learn_merges(chunks: dict[bytes, int], n: int) -> list[tuple[int, int]]:
    """At most `n` merges of byte-level BPE; merge k makes id 256 + k (Sennrich et al. 2016, §3.2).

    chunks: how often each byte string occurs. Fewer than `n` come back if nothing is left to merge.
    """
    words = [list(chunk) for chunk in chunks]  # the ids of each chunk
    times = list(chunks.values())
    counts, places, merges = Counter(), defaultdict(set), []

    def tally(w, sign):
        for pair in pairwise(words[w]):
            counts[pair] += sign * times[w]
            places[pair].add(w)

    for w in range(len(words)):
        tally(w, +1)
    while len(merges) < n and (pair := most_frequent(counts)):
        for w in places.pop(pair):
            tally(w, -1)
            words[w] = replace(words[w], pair, 256 + len(merges))
            tally(w, +1)
        merges.append(pair)
    return merges


def merge_chunk(chunk: bytes, ranks: dict[bytes, int]) -> list[int]:
    """The ids of one chunk: merge the neighbours whose joined bytes have the lowest rank, until none have one."""
    pieces = [bytes([b]) for b in chunk]
    while len(pieces) > 1:
        left, right = min(pairwise(pieces), key=lambda pair: ranks.get(pair[0] + pair[1], len(ranks)))
        if left + right not in ranks:
            break
        pieces = replace(pieces, (left, right), left + right)
    return [ranks[piece] for piece in pieces]
