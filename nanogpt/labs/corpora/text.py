"""One text file into shards, in one process.

Exported from notebooks/16_real_text.ipynb.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from nanogpt.files import alone_in
from nanogpt.labs.corpora.splits import split_of
from nanogpt.labs.corpora.vocab import read_tokenizer
from nanogpt.shards import SPLITS, file_sha256, identity, save_manifest, write_shard
from nanogpt.tokenizer import BPETokenizer

SEPARATOR = re.compile(r"(?m)^<\|endoftext\|>[ \t\r]*(?:\n|\Z)")


# a document's end with the blank lines behind it, in which there may be spaces
BLANK_LINES = re.compile(r"\S[^\S\n]*\n(?:[^\S\n]*\n)+(?=[^\S\n]*\S)", re.ASCII)


def read_documents(source: str | Path, paragraphs: bool = True) -> list[str]:
    """The documents of a UTF-8 text file: one ends at each blank line, or the text is one. ValueError if it is empty or no text.

    A text with lines <|endoftext|>, as TinyStories has them, is cut there instead.
    """
    path = Path(source)
    try:
        text = path.read_bytes().decode("utf-8-sig")  # without the mark at its beginning that Windows writes
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start:,} is not UTF-8; convert it, say with iconv") from None
    if SEPARATOR.search(text):
        return list(filter(None, map(str.strip, SEPARATOR.split(text))))
    # a document keeps the blank lines at its end, so that all of them together are the text
    cuts = [found.end() for found in BLANK_LINES.finditer(text)] if paragraphs else []
    documents = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    if not text:
        raise ValueError(f"{path} is empty")
    return documents


LEARN = 1 << 24  # characters of a text that a new tokenizer learns from


def to_learn_from(texts: Iterable[str]) -> Iterator[str]:
    """The first of the texts, with LEARN characters together, or a text more."""
    read = 0
    for text in texts:
        if read >= LEARN:
            return
        yield text
        read += len(text)


def tokenizer_for(documents: list[str], tokenizer: int | str | Path, folder: Path) -> BPETokenizer:
    """The one that is named, or a new one of so many tokens, learned from the first documents and saved."""
    if not isinstance(tokenizer, int):
        return read_tokenizer(tokenizer)
    coder = BPETokenizer.train(to_learn_from(documents), tokenizer)
    coder.save(folder / "tokenizer.json")
    return coder


def prepare_text(
    source: str | Path, folder: str | Path, tokenizer: int | str | Path = "gpt2", val=0.1, paragraphs=True
) -> dict:
    """Write a text file as shards into a folder, and last the manifest, which is returned.

    tokenizer: "gpt2", a tokenizer.json, or how many tokens a new one is to have, which is saved beside the shards. Each
    document's hash sends it to train or, with the probability `val`, to val. If none comes to val, as where a text is one
    document, val is the last part of the text.
    """
    source, folder = Path(source), Path(folder)
    documents = read_documents(source, paragraphs)
    with alone_in(folder, "prepare", "choose another folder"):
        coder = tokenizer_for(documents, tokenizer, folder)
        # the ids of each document, in its split, behind <|endoftext|>
        ids = {split: [] for split in SPLITS}
        for document in documents:
            digest = hashlib.sha256(document.encode()).digest()
            split = split_of(digest, val, 0.0) if len(documents) > 1 else "train"
            ids[split] += [coder.eot, *coder.encode(document)]
        if val and not ids["val"]:
            last = max(1, round(val * len(ids["train"])))
            ids["val"] = [coder.eot, *ids["train"][-last:]]
            del ids["train"][-last:]
        # shards, and what is in them
        splits = {}
        for split, tokens in ids.items():
            if tokens:
                path = folder / f"{split}_000000.bin"
                write_shard(path, np.array(tokens))
                shard = {"file": path.name, "tokens": len(tokens), "sha256": file_sha256(path)}
                counts = {"tokens": len(tokens), "documents": tokens.count(coder.eot)}
                splits[split] = counts | {"shards": [shard]}
        made_of = {"source": source.name, "source_sha256": [file_sha256(source)], "val": val}
        made_of |= {"paragraphs": paragraphs, **identity(coder)}
        return save_manifest(folder, made_of | {"splits": splits})
