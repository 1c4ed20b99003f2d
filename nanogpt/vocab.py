"""GPT-2's vocabulary as its authors wrote it: vocab.json and merges.txt.

Exported from notebooks/16_real_text.ipynb.
"""

import json
import os
import re
from functools import cache
from pathlib import Path

from nanogpt.bpe import merge_chunk
from nanogpt.files import atomically
from nanogpt.tokenizer import EOT, BPETokenizer


@cache
def byte_characters() -> str:
    """The character that stands for each of the 256 bytes in GPT-2's files (its encoder.py, bytes_to_unicode)."""
    visible, others = {*range(33, 127), *range(161, 173), *range(174, 256)}, iter(range(256, 512))
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(256))


def spelled(token: bytes) -> str:
    """A token as GPT-2's files spell it."""
    return "".join(byte_characters()[byte] for byte in token)


def merge_lines(vocab: list[bytes]) -> list[str]:
    """The lines of merges.txt: the two tokens that each longer one is made of, when only those before it exist."""
    ranks, lines = {}, []
    for token in vocab:
        if len(token) > 1:
            lines.append(" ".join(spelled(vocab[i]) for i in merge_chunk(token, ranks)))
        ranks[token] = len(ranks)
    return lines


def ids_of(vocab: list[bytes], special: list[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate([*map(spelled, vocab), *special])}


def write_vocab(tokenizer: BPETokenizer, folder: str | os.PathLike) -> None:
    """Write vocab.json and merges.txt, as GPT-2's authors did and transformers reads them."""
    lines = ["#version: 0.2", *merge_lines(tokenizer.vocab), ""]
    ids = json.dumps(ids_of(tokenizer.vocab, [*tokenizer.special]), ensure_ascii=False)
    for name, text in ("vocab.json", ids), ("merges.txt", "\n".join(lines)):
        with atomically(Path(folder) / name) as file:
            file.write(text.encode())


def read_vocab(folder: str | os.PathLike) -> BPETokenizer:
    """What vocab.json and merges.txt hold; OSError or ValueError in one sentence if they are not of GPT-2's kind."""
    known = {character: byte for byte, character in enumerate(byte_characters())}
    paths = [Path(folder) / name for name in ("vocab.json", "merges.txt")]
    saved, lines = [path.read_text(encoding="utf-8") for path in paths]
    try:
        ids = json.loads(saved)
        special = [name for name in ids if re.fullmatch(r"<\|.*\|>", name)]
        vocab = [bytes(known[c] for c in name) for name in sorted(ids, key=ids.get) if name not in special]
        tokenizer = BPETokenizer(vocab, special=sorted(special, key=ids.get))
        whole = ids == ids_of(vocab, list(tokenizer.special))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(f"{paths[0]} does not give bytes, merges and last {EOT} their ids, from 0 on")
    lines = [line for line in lines.split("\n")[lines.startswith("#version") :] if line]
    if lines != (needed := merge_lines(vocab)):
        what = f"{len(lines):,} merges, but vocab.json needs {len(needed):,} in its order"
        raise ValueError(f"{paths[1]} has {what}; without them, bytes stay single: copy both again")
    return tokenizer
