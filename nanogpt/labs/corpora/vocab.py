"""The tokenizer that a name, a file or a folder stands for.

Exported from notebooks/16_real_text.ipynb, grown by notebooks/17d_assembly.ipynb.
"""

import os
from importlib import import_module
from pathlib import Path

from nanogpt.pretrained import find_checkpoint, is_ours
from nanogpt.tokenizer import BPETokenizer


def read_tokenizer(name: str | os.PathLike) -> BPETokenizer:
    """GPT-2's tokenizer for "gpt2", that of chapter 01's tokenizer.json, or that of a Hugging Face folder or its vocab.json."""
    if str(name) == "gpt2":
        return BPETokenizer.gpt2()
    folder = Path(name).parent if Path(name).name == "vocab.json" else Path(name)
    if folder.is_dir():
        return import_module("nanogpt.labs.formats.merges").read_vocab(folder)  # of chapter 16a
    return BPETokenizer.load(name)


def words_beside(place: Path) -> Path | None:
    """The tokenizer beside a model's weights: our tokenizer.json, or the folder of a Hugging Face vocabulary. None if there is none."""
    if is_ours(place):
        own = place / "tokenizer.json"
        return own if own.exists() else None
    folder = find_checkpoint(place.as_posix())[0].parent
    return folder if any((folder / name).exists() for name in ("vocab.json", "tokenizer.json")) else None


def words_for(place: Path, named: str | None, rows: int) -> BPETokenizer:
    """The tokenizer of a model whose token table has so many rows: the one that is named, or the one beside its weights, or GPT-2's.

    ValueError if there is none, or if both are there and differ: an id would mean another word.
    """
    beside = words_beside(place)
    if named is None and beside is None and rows in (50257, 50304):  # GPT-2's, plain or padded
        named = "gpt2"
    if named is None and beside is None:
        raise ValueError(f"{place} has no tokenizer.json beside it; name one with --tokenizer")
    coder = read_tokenizer(named or beside)
    if named and beside and (own := read_tokenizer(beside).fingerprint) != coder.fingerprint:
        two = f"{place} has its own tokenizer, {own[:8]}, and {named} is another, {coder.fingerprint[:8]}"
        raise ValueError(f"{two}; leave out --tokenizer")
    return coder
