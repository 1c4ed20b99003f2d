"""Text to ids and back as GPT-2 does it: chunks, special tokens, files.

Exported from notebooks/01_tokenizer.ipynb.
"""

import hashlib
import json
import operator
import os
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

import regex

from nanogpt.text.bpe import learn_merges, merge_chunk, spell
from nanogpt.text.files import save_json  # chapter 03 builds it: a file is whole, or not there


def utf8(text: str) -> bytes:
    """`text` in UTF-8; ValueError with the place of a lone surrogate, which UTF-8 cannot express."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        where = f"character {error.start} of the text is the lone surrogate U+{ord(text[error.start]):04X}"
        raise ValueError(f"{where}; replace it: text.encode('utf-8', 'replace').decode()") from None


EOT = "<|endoftext|>"
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def count_chunks(texts: Iterable[str], pattern: str = GPT2_PATTERN) -> Counter[bytes]:
    """How often each chunk occurs. A text is cut at `<|endoftext|>`, which separates and is never learned."""
    split, counts = regex.compile(pattern).findall, Counter()
    for text in texts:
        utf8(text)  # names a lone surrogate by its place in the text, not in the chunk
        for document in text.split(EOT):
            counts.update(split(document))
    return Counter({utf8(chunk): times for chunk, times in counts.items()})


def split_special(text: str, special: Collection[str]) -> list[str]:
    """`text` cut so that each name in `special` stands alone; of overlapping names the longest counts."""
    if not special:
        return [text]
    names = sorted(special, key=len, reverse=True)
    return [part for part in regex.split("(" + "|".join(map(regex.escape, names)) + ")", text) if part]


def learn_vocab(texts: Iterable[str], vocab_size: int, pattern: str = GPT2_PATTERN) -> list[bytes]:
    """256 bytes and `vocab_size` - 257 merges learned from `texts`; the last id is left for `<|endoftext|>`.

    ValueError if `vocab_size` is below 257, or more than the texts have merges for.
    """
    if vocab_size < 257:
        raise ValueError(f"vocab_size {vocab_size} is too small; 256 bytes and {EOT} need 257")
    merges = learn_merges(count_chunks(texts, pattern), vocab_size - 257)
    if 257 + len(merges) < vocab_size:
        what = f"vocab_size {vocab_size} is too large: after {len(merges)} merges nothing is left to merge"
        raise ValueError(f"{what}; ask for at most {257 + len(merges)}, or train on more text")
    return spell(merges)


def gpt2_vocab() -> list[bytes]:
    """GPT-2's 50,256 byte strings in order of rank, through tiktoken's cache; OSError where it is not to be had."""
    import tiktoken

    try:
        published = tiktoken.get_encoding("gpt2")
    except (OSError, ValueError) as error:  # ValueError: tiktoken compared the hash
        why = "has a wrong SHA-256" if isinstance(error, ValueError) else f"failed: {type(error).__name__}"
        what = f"GPT-2's vocabulary is not in tiktoken's cache and its download {why}"
        raise OSError(f"{what}; connect once, or set TIKTOKEN_CACHE_DIR to a folder that has it") from None
    return [published.decode_single_token_bytes(i) for i in range(published.eot_token)]


def pack(vocab: list[bytes], pattern: str, special: list[str]) -> dict:
    """A tokenizer as JSON values: all that decides an id, and its fingerprint (hex SHA-256)."""
    contents = {"pattern": pattern, "special": special, "vocab": [token.decode("latin-1") for token in vocab]}
    return {"fingerprint": hashlib.sha256(json.dumps(contents).encode()).hexdigest(), **contents}


def unpack(path: Path) -> tuple[list[bytes], str, list[str]]:
    """(vocab, pattern, special) from a file that holds what `pack` made; ValueError if anything in it changed."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        parts = [token.encode("latin-1") for token in saved["vocab"]], saved["pattern"], saved["special"]
        whole = pack(*parts) == saved and all(isinstance(name, str) for name in saved["special"])
    except FileNotFoundError:
        raise FileNotFoundError(f"no tokenizer at {path}; chapter 01 trains one and saves it") from None
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(f"{path} is no tokenizer that `save` wrote, or is damaged; chapter 01 trains one")
    return parts


def encode_ordinary(text: str, pattern: regex.Pattern, ranks: dict[bytes, int], cache: dict) -> list[int]:
    """The ids of a text without special tokens. `cache` remembers the ids of chunks, within bounds."""
    ids: list[int] = []
    for chunk in pattern.findall(text):
        known = cache.get(chunk)
        if known is None:
            known = merge_chunk(utf8(chunk), ranks)
            if len(cache) == 100_000:
                cache.clear()
            if len(chunk) <= 100:
                cache[chunk] = known
        ids += known
    return ids


class BPETokenizer:
    """Byte-level BPE as in GPT-2 (Radford et al. 2019, §2.2).

    vocab: the bytes of each ordinary id in the order learned, the 256 single bytes first. Special tokens come after.
    """

    def __init__(self, vocab: list[bytes], pattern: str = GPT2_PATTERN, special: Iterable[str] = (EOT,)):
        special = list(special)
        if len(set(vocab) | {bytes([b]) for b in range(256)}) != len(vocab):
            raise ValueError("a vocabulary holds each of the 256 bytes, and nothing twice; this one does not")
        if EOT not in special:
            raise ValueError(f"special={special} lacks {EOT}, which ends a document; add it")
        self.vocab, self.pattern = vocab, pattern
        self.ranks = {token: i for i, token in enumerate(vocab)}
        self.special = {name: len(vocab) + i for i, name in enumerate(special)}
        self.tokens = vocab + [utf8(name) for name in self.special]  # the bytes of every id
        self.vocab_size, self.eot = len(self.tokens), self.special[EOT]
        self.fingerprint = pack(vocab, pattern, special)["fingerprint"]
        self._compiled, self._cache = regex.compile(pattern), {}

    def encode(self, text: str, allowed_special: Collection[str] = ()) -> list[int]:
        """Token ids. A special token's name is plain text, unless allowed. ValueError for a lone surrogate."""
        if not set(allowed_special) <= set(self.special):
            raise ValueError(f"allowed_special takes a set of {list(self.special)}, not {allowed_special!r}")
        utf8(text)  # names a lone surrogate by its place in the text
        ids: list[int] = []
        for part in split_special(text, allowed_special):
            if part in allowed_special:
                ids.append(self.special[part])
            else:
                ids += encode_ordinary(part, self._compiled, self.ranks, self._cache)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text. Bytes that are not UTF-8, as in half a character, become U+FFFD. ValueError for a foreign id."""
        ids = [operator.index(i) for i in ids]
        if foreign := [i for i in ids if not 0 <= i < self.vocab_size]:
            raise ValueError(f"id {foreign[0]} is outside this tokenizer's {self.vocab_size} ids")
        return b"".join([self.tokens[i] for i in ids]).decode("utf-8", errors="replace")

    @classmethod
    def train(cls, text: str | Iterable[str], vocab_size: int, pattern: str = GPT2_PATTERN) -> "BPETokenizer":
        """Learn from one text or from many; see `learn_vocab`. `<|endoftext|>` gets the last id."""
        return cls(learn_vocab([text] if isinstance(text, str) else text, vocab_size, pattern), pattern)

    @classmethod
    def gpt2(cls) -> "BPETokenizer":
        """GPT-2's own 50,257 ids; OSError in one sentence where its vocabulary is not to be had."""
        return cls(gpt2_vocab())

    @classmethod
    def load(cls, path: str | os.PathLike) -> "BPETokenizer":
        """What `save` wrote; ValueError in one sentence if the file is damaged."""
        return cls(*unpack(Path(path)))

    def save(self, path: str | os.PathLike) -> None:
        """Write a JSON file, atomically (see `save_json`)."""
        save_json(path, pack(self.vocab, self.pattern, list(self.special)))

    def to_tiktoken(self):
        """A `tiktoken.Encoding` with the same ids. It replaces lone surrogates where `encode` refuses them."""
        from tiktoken import Encoding

        names = {"mergeable_ranks": self.ranks, "special_tokens": self.special}
        return Encoding("nanogpt", pat_str=self.pattern, **names)
