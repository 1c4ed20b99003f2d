"""GPT-2's vocab.json and merges.txt, read and written.

Exported from notebooks/16a_any_file.ipynb.
"""

import json
import os
import re
from functools import cache
from pathlib import Path

from nanogpt.files import atomically
from nanogpt.tokenizer import EOT, BPETokenizer, merge_chunk


@cache
def byte_characters() -> str:
    """The character that stands for each of the 256 bytes in GPT-2's files (its encoder.py, bytes_to_unicode).

    Visible are the bytes 33 to 126, 161 to 172 and 174 to 255.
    """
    visible, others = {*range(33, 127), *range(161, 173), *range(174, 256)}, iter(range(256, 512))
    return "".join(chr(byte if byte in visible else next(others)) for byte in range(256))


def spelled(token: bytes) -> str:
    """A token as GPT-2's files spell it."""
    return "".join(byte_characters()[byte] for byte in token)


def merge_lines(vocab: list[bytes]) -> list[str]:
    """The lines of merges.txt: the two tokens that each longer one is made of, when only those before it exist.

    Both as `spelled`, with a space between; a single byte has no line.
    """
    ranks, lines = {}, []
    for token in vocab:
        if len(token) > 1:
            lines.append(" ".join(spelled(vocab[i]) for i in merge_chunk(token, ranks)))
        ranks[token] = len(ranks)
    return lines


def ids_of(vocab: list[bytes], special: list[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate([*map(spelled, vocab), *special])}


def write_vocab(tokenizer: BPETokenizer, folder: str | os.PathLike) -> None:
    """Write vocab.json and merges.txt, as transformers reads them (GPT-2's encoder.json and vocab.bpe)."""
    lines = ["#version: 0.2", *merge_lines(tokenizer.vocab), ""]
    ids = json.dumps(ids_of(tokenizer.vocab, [*tokenizer.special]), ensure_ascii=False)
    for name, text in ("vocab.json", ids), ("merges.txt", "\n".join(lines)):
        with atomically(Path(folder) / name) as file:
            file.write(text.encode())


def stored_vocab(folder: Path) -> tuple[dict[str, int], list[str]]:
    """The ids of all tokens, and the lines of the merges. Newer programs write both into one tokenizer.json, with more about it."""
    if (folder / "vocab.json").exists() or not (folder / "tokenizer.json").exists():
        ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8")
        return ids, [line for line in lines.split("\n")[lines.startswith("#version") :] if line]
    saved = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    cut, model = saved["pre_tokenizer"], saved["model"]
    if saved["normalizer"] or cut["type"] != "ByteLevel" or cut["add_prefix_space"]:
        raise ValueError("it changes or cuts a text in another way than GPT-2")
    added = {token["content"]: token["id"] for token in saved["added_tokens"]}
    return model["vocab"] | added, [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]


def read_vocab(folder: str | os.PathLike) -> BPETokenizer:
    """The tokenizer of a Hugging Face folder; OSError or ValueError in one sentence if it is not of GPT-2's kind."""
    known = {character: byte for byte, character in enumerate(byte_characters())}
    try:
        ids, lines = stored_vocab(Path(folder))
        special = [name for name in ids if re.fullmatch(r"<\|.*\|>", name)]
        vocab = [bytes(known[c] for c in name) for name in sorted(ids, key=ids.get) if name not in special]
        tokenizer = BPETokenizer(vocab, special=sorted(special, key=ids.get))
        whole = ids == ids_of(vocab, list(tokenizer.special))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise ValueError(
            f"{folder}: its vocabulary does not give bytes, merges and last {EOT} their ids, from 0 on"
        )
    if lines != (needed := merge_lines(vocab)):
        what = f"{len(lines):,} merges, but its vocabulary needs {len(needed):,} in its order"
        raise ValueError(f"{folder} has {what}; without them, bytes stay single: copy both again")
    return tokenizer
