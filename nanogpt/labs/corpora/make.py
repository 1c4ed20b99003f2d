"""The data of a run, made where there are none: stories, a text, a folder, files of other kinds.

Exported from notebooks/17d_assembly.ipynb.
"""

from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from nanogpt.config import Data
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.labs.corpora.text import LEARN, prepare_text, to_learn_from
from nanogpt.labs.corpora.vocab import read_tokenizer
from nanogpt.shards import file_sha256, load_manifest
from nanogpt.tokenizer import BPETokenizer

LARGE = 1 << 28  # bytes of a text that are not read as a whole
NO_TEXT = {".jsonl", ".ndjson", ".csv", ".parquet", ".gz", ".zst"}  # the ends of such files' names


def is_small(source: Path) -> bool:
    """Whether a source is one text that can be read as a whole."""
    plain = source.is_file() and source.suffix.lower() not in NO_TEXT
    return plain and source.stat().st_size < LARGE


def origin(manifest: dict) -> str | None:
    """The name of what shards were made of: "stories", a file's or a folder's; None if another program made them."""
    source = manifest["source"]
    if isinstance(source, dict):
        return "stories"
    if source.endswith(", adopted"):
        return None
    return source.rsplit(", ", 2)[0] if "chunk" in manifest else source  # prepare adds files and bytes


def refuse_other_data(data: Data, manifest: dict) -> None:
    """ValueError if shards were made of something else than the configuration names. What a manifest does not say is not compared."""
    source, made = Path(data.source), manifest | {"source": origin(manifest)}
    asked = {"source": source.resolve().name if "chunk" in manifest else source.name}
    if data.source != "stories":
        asked |= {"val": data.val, "paragraphs": data.paragraphs}
        if is_small(source) and "chunk" not in manifest:
            asked["source_sha256"] = [file_sha256(source)]
        if isinstance(data.tokenizer, int):
            asked["vocab_size"] = data.tokenizer
        elif data.tokenizer != "gpt2":
            asked["fingerprint"] = read_tokenizer(data.tokenizer).fingerprint
        else:
            asked["vocab_size"] = 50257
            with suppress(OSError):  # its file may be out of reach, and training needs it for samples alone
                asked["fingerprint"] = BPETokenizer.gpt2().fingerprint
    for key, now in asked.items():
        if made.get(key) not in (None, now):
            remedy = "choose another data.dir, or set data.source=null to train on what is there"
            raise ValueError(f"{data.dir} holds shards whose {key} is {made[key]}, not {now}; {remedy}")


def make_large(data: Data) -> None:
    """Make the shards of data.dir from data.source: a file of any kind and size, or a folder of them."""
    source, folder, tokenizer = Path(data.source), Path(data.dir), data.tokenizer
    if isinstance(tokenizer, int):
        files = import_module("nanogpt.labs.corpora.sources")  # of chapter 16a
        spans = next(files.cut_files(files.find_files(source), LEARN, data.paragraphs))
        texts = (text for span in spans for _, block in files.blocks_in(span, 1 << 20) for text in block)
        BPETokenizer.train(to_learn_from(texts), tokenizer).save(tokenizer := folder / "tokenizer.json")
    lab = import_module("nanogpt.labs.corpora.prepare")  # of chapter 16b
    lab.prepare(source, folder, tokenizer, data.val, 0.0, data.paragraphs)


def make_data(data: Data) -> None:
    """Make the shards of data.dir from data.source: the course's stories, or a text with a tokenizer of its own.

    Where there are some, they must be of this source (ValueError).
    """
    source, folder = Path(data.source), Path(data.dir)
    if (folder / "manifest.json").exists():
        refuse_other_data(data, load_manifest(folder))
    elif data.source == "stories":
        ensure_corpus(folder)
    else:
        if find_spec("nanogpt.labs.corpora.sources"):  # chapter 16a, which says what is odd about a text
            import_module("nanogpt.labs.corpora.sources").print_remarks(source)
        if is_small(source):
            prepare_text(source, folder, data.tokenizer, data.val, data.paragraphs)
        else:
            make_large(data)
