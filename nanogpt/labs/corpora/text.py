"""One text file into shards, in one process.

Exported from notebooks/16_real_text.ipynb.
"""

import hashlib
import re
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from nanogpt.files import alone_in
from nanogpt.labs.corpora.splits import split_of
from nanogpt.shards import SPLITS, file_sha256, identity, save_manifest, write_shard
from nanogpt.tokenizer import BPETokenizer

LEARN = 1 << 24  # characters of a text that a new tokenizer learns from
BLANK_LINES = re.compile(r"[^\r\n][\r\n]*?\n\r?\n[\r\n]*(?=[^\r\n])")  # a document's end, and what follows


def read_documents(source: str | Path, paragraphs: bool = True) -> list[str]:
    """The documents of a UTF-8 text file: one ends at each blank line, or the text is one. ValueError if it is empty or no text."""
    path = Path(source)
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start:,} is not UTF-8; convert it, say with iconv") from None
    # a document keeps the blank lines at its end, so that all of them together are the text
    cuts = [found.end() for found in BLANK_LINES.finditer(text)] if paragraphs else []
    documents = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    if not text:
        raise ValueError(f"{path} is empty")
    return documents


def tokenizer_for(documents: list[str], tokenizer: int | str | Path, folder: Path) -> BPETokenizer:
    """GPT-2's, that of a tokenizer.json, or a new one of so many tokens, learned from the first documents and saved."""
    if not isinstance(tokenizer, int):
        return BPETokenizer.gpt2() if tokenizer == "gpt2" else BPETokenizer.load(tokenizer)
    ends = accumulate(map(len, documents))
    coder = BPETokenizer.train((d for d, end in zip(documents, ends) if end - len(d) < LEARN), tokenizer)
    coder.save(folder / "tokenizer.json")
    return coder


def prepare_text(
    source: str | Path, folder: str | Path, tokenizer: int | str | Path = "gpt2", val=0.1, paragraphs=True
) -> dict:
    """Write a text file as shards into a folder, and last the manifest, which is returned.

    tokenizer: "gpt2", a tokenizer.json, or how many tokens a new one is to have, which is saved beside the shards. Each
    document's hash sends it to train or, with the probability `val`, to val; a text that is one document goes to train.
    """
    source, folder = Path(source), Path(folder)
    documents = read_documents(source, paragraphs)
    with alone_in(folder, "prepare", "choose another folder"):
        coder = tokenizer_for(documents, tokenizer, folder)
        # the ids of each document, in its split, behind <|endoftext|>
        ids = {split: [] for split in SPLITS}
        for document in documents:
            digest = hashlib.sha256(document.encode()).digest()
            split = split_of(digest, val, 0.0) if paragraphs else "train"
            ids[split] += [coder.eot, *coder.encode(document)]
        # shards, and what is in them
        splits = {}
        for split, tokens in ids.items():
            if tokens:
                path = folder / f"{split}_000000.bin"
                write_shard(path, np.array(tokens))
                shard = {"file": path.name, "tokens": len(tokens), "sha256": file_sha256(path)}
                counts = {"tokens": len(tokens), "documents": tokens.count(coder.eot)}
                splits[split] = counts | {"shards": [shard]}
        return save_manifest(folder, {"source": source.name, "splits": splits} | identity(coder))
