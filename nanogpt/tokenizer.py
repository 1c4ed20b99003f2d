"""Byte-level BPE as in GPT-2: merges learned from text, text to ids and back, special tokens, files.

Exported from notebooks/01_tokenizer.ipynb.
"""

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from itertools import pairwise
from pathlib import Path

import regex


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


GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def count_chunks(texts: Iterable[str], pattern: str = GPT2_PATTERN) -> Counter[bytes]:
    """How often each chunk of the texts occurs. ValueError for a text that has no UTF-8 (a lone surrogate)."""
    compiled, counts = regex.compile(pattern), Counter()
    for text in texts:
        text.encode()  # raises here, where the error can say the place in the text
        counts.update(compiled.findall(text))
    return Counter({chunk.encode(): times for chunk, times in counts.items()})


def learn_merges(chunks: dict[bytes, int], n: int) -> list[tuple[int, int]]:
    """At most `n` merges of byte-level BPE; merge k makes id 256 + k (Sennrich et al. 2016, §3.2).

    chunks: how often each byte string occurs, not changed. Fewer than `n` come back if nothing is left to merge.
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


def encode_ordinary(text: str, pattern: regex.Pattern, ranks: dict[bytes, int], cache: dict) -> list[int]:
    """The ids of a text, all of it taken as ordinary text. `cache` remembers the ids of at most 100,000 chunks."""
    ids = []
    for chunk in pattern.findall(text):
        if chunk not in cache:
            if len(cache) == 100_000:
                cache.clear()
            cache[chunk] = merge_chunk(chunk.encode(), ranks)
        ids += cache[chunk]
    return ids


EOT = "<|endoftext|>"


def split_special(text: str, special: Collection[str]) -> list[str]:
    """`text` cut so that each name in `special` is a part of its own; of overlapping names the longest counts."""
    if not special:
        return [text]
    names = sorted(map(regex.escape, special), key=len, reverse=True)
    return [part for part in regex.split(f"({'|'.join(names)})", text) if part]


def as_json(vocab: list[bytes], pattern: str, special: list[str]) -> dict:
    """A tokenizer as JSON values: all that decides an id, and its fingerprint (hex SHA-256)."""
    contents = {"pattern": pattern, "special": special, "vocab": [token.decode("latin-1") for token in vocab]}
    return {"fingerprint": hashlib.sha256(json.dumps(contents).encode()).hexdigest(), **contents}


class BPETokenizer:
    """Byte-level BPE as in GPT-2 (Radford et al. 2019, §2.2).

    vocab: the bytes of each ordinary id in the order learned, the 256 single bytes first. Special tokens come after.
    """

    def __init__(self, vocab: list[bytes], pattern: str = GPT2_PATTERN, special: Collection[str] = (EOT,)):
        single = {bytes([b]) for b in range(256)}
        if not single <= set(vocab) or len(set(vocab)) < len(vocab):
            raise ValueError("a vocabulary holds each of the 256 bytes, and nothing twice; this one does not")
        if EOT not in special:
            raise ValueError(f"special={special} lacks {EOT}, which ends a document; add it")
        self.vocab, self.pattern = vocab, pattern
        self.ranks = {token: i for i, token in enumerate(vocab)}
        self.special = {name: len(vocab) + i for i, name in enumerate(special)}
        self.tokens = vocab + [name.encode() for name in special]  # the bytes of every id
        self.vocab_size, self.eot = len(self.tokens), self.special[EOT]
        self.fingerprint = as_json(vocab, pattern, list(special))["fingerprint"]
        self._compiled, self._cache = regex.compile(pattern), {}

    def encode(self, text: str, allowed_special: Collection[str] = ()) -> list[int]:
        """Token ids. A special token's name is plain text, unless allowed. ValueError for a lone surrogate."""
        if not isinstance(text, str):
            raise TypeError(f"encode takes a str, not {type(text).__name__}")
        if not set(allowed_special) <= set(self.special):
            raise ValueError(f"allowed_special takes a set of {list(self.special)}, not {allowed_special!r}")
        text.encode()  # raises here, where the error can say the place in the text
        ids = []
        for part in split_special(text, allowed_special):
            if part in allowed_special:
                ids.append(self.special[part])
            else:
                ids += encode_ordinary(part, self._compiled, self.ranks, self._cache)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text. Bytes that are not UTF-8, as in half a character, become U+FFFD. ValueError for a foreign id."""
        ids = list(ids)
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"id {i} is outside this tokenizer's {self.vocab_size} ids")
        return b"".join([self.tokens[i] for i in ids]).decode("utf-8", errors="replace")

    @classmethod
    def train(cls, text: str | Iterable[str], vocab_size: int, pattern: str = GPT2_PATTERN) -> "BPETokenizer":
        """Learn 256 bytes and `vocab_size` - 257 merges from one text or from many. ValueError if that cannot be."""
        if vocab_size < 257:
            raise ValueError(f"vocab_size {vocab_size} is too small; 256 bytes and {EOT} need 257")
        texts = [text] if isinstance(text, str) else text
        chunks = count_chunks((part for text in texts for part in text.split(EOT)), pattern)
        merges = learn_merges(chunks, vocab_size - 257)
        if len(merges) < vocab_size - 257:
            raise ValueError(f"vocab_size {vocab_size} is too large: at most {257 + len(merges)} here")
        return cls(spell(merges), pattern)

    @classmethod
    def gpt2(cls) -> "BPETokenizer":
        """GPT-2's own 50,257 ids, through tiktoken's cache. OSError in one sentence if they cannot be loaded."""
        import tiktoken

        try:
            published = tiktoken.get_encoding("gpt2")
        except (OSError, ValueError) as e:  # ValueError: tiktoken compared the hash
            why = "has a wrong SHA-256" if isinstance(e, ValueError) else f"failed: {type(e).__name__}"
            what = f"GPT-2's vocabulary is not in tiktoken's cache and its download {why}; connect once"
            raise OSError(f"{what}, or set TIKTOKEN_CACHE_DIR to a folder that has it") from None
        return cls([published.decode_single_token_bytes(i) for i in range(published.eot_token)])

    def to_tiktoken(self):
        """A `tiktoken.Encoding` with the same ids. It replaces lone surrogates where `encode` refuses them."""
        from tiktoken import Encoding

        names = {"mergeable_ranks": self.ranks, "special_tokens": self.special}
        return Encoding("nanogpt", pat_str=self.pattern, **names)

    def save(self, path: str | os.PathLike) -> None:
        """Write a JSON file: all of it, or nothing."""
        aside = Path(f"{path}.{os.getpid()}.part")  # each process writes its own
        aside.parent.mkdir(parents=True, exist_ok=True)
        packed = as_json(self.vocab, self.pattern, list(self.special))
        aside.write_bytes((json.dumps(packed, indent=1) + "\n").encode())
        os.replace(aside, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "BPETokenizer":
        """What `save` wrote; ValueError in one sentence if the file is damaged."""
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"))
            vocab = [token.encode("latin-1") for token in saved["vocab"]]
            tokenizer = cls(vocab, saved["pattern"], saved["special"])
            if tokenizer.fingerprint == saved["fingerprint"]:
                return tokenizer
        except FileNotFoundError:
            raise FileNotFoundError(f"no tokenizer at {path}; chapter 01 trains one and saves it") from None
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            pass  # a file of another kind: the same error as for a damaged one
        raise ValueError(f"{path} is no tokenizer that `save` wrote, or is damaged; chapter 01 trains one")
