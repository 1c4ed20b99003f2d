"""A text that is large, a folder, or files of another kind, as the data of a run.

Exported from notebooks/17d_assembly.ipynb.
"""

from importlib import import_module
from pathlib import Path

from nanogpt.config import Data
from nanogpt.labs.corpora.sources import blocks_in, cut_files, find_files
from nanogpt.prepare import LEARN
from nanogpt.tokenizer import BPETokenizer


def make_large(data: Data) -> None:
    """Make the shards of data.dir from data.source: a file of any kind and size, or a folder of them."""
    source, folder, tokenizer = Path(data.source), Path(data.dir), data.tokenizer
    if isinstance(tokenizer, int):
        spans = next(cut_files(find_files(source), LEARN, data.paragraphs))
        texts = (text for span in spans for _, block in blocks_in(span, 1 << 20) for text in block)
        BPETokenizer.train(texts, tokenizer).save(tokenizer := folder / "tokenizer.json")
    lab = import_module("nanogpt.labs.corpora.prepare")  # of chapter 16b
    lab.prepare(source, folder, tokenizer, data.val, 0.0, data.paragraphs)
