"""The data of a run, made where there are none: stories, a text, a folder, files of other kinds.

Exported from notebooks/17d_assembly.ipynb.
"""

from importlib import import_module
from pathlib import Path

from nanogpt.config import Data
from nanogpt.labs.corpora.sources import KINDS, blocks_in, cut_files, find_files
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.labs.corpora.text import LEARN, prepare_text
from nanogpt.tokenizer import BPETokenizer

LARGE = 1 << 28  # bytes of a text that are not read as a whole


def make_large(data: Data) -> None:
    """Make the shards of data.dir from data.source: a file of any kind and size, or a folder of them."""
    source, folder, tokenizer = Path(data.source), Path(data.dir), data.tokenizer
    if isinstance(tokenizer, int):
        spans = next(cut_files(find_files(source), LEARN, data.paragraphs))
        texts = (text for span in spans for _, block in blocks_in(span, 1 << 20) for text in block)
        BPETokenizer.train(texts, tokenizer).save(tokenizer := folder / "tokenizer.json")
    lab = import_module("nanogpt.labs.corpora.prepare")  # of chapter 16b
    lab.prepare(source, folder, tokenizer, data.val, 0.0, data.paragraphs)


def make_data(data: Data) -> None:
    """Make the shards of data.dir from data.source: the course's stories, or a text with a tokenizer of its own."""
    source, folder = Path(data.source), Path(data.dir)
    if data.source == "stories":
        ensure_corpus(folder)
    elif source.is_file() and KINDS.get(source.suffix, "text") == "text" and source.stat().st_size < LARGE:
        prepare_text(source, folder, data.tokenizer, data.val, data.paragraphs)
    else:
        make_large(data)
