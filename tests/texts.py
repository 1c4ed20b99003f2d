"""Texts and files for the tests of chapters 03, 16 and 17d: strings that make trouble, 40 documents in each kind of file."""

import contextlib
import csv
import json
import os
from pathlib import Path

import pytest
from hypothesis import strategies as st

from nanogpt.labs.corpora.stories import stories
from nanogpt.tokenizer import BPETokenizer

SPACES = " \n\t\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u202f\u3000"


TEXT = st.text(
    st.one_of(st.sampled_from(SPACES + "'sltvr d12.,!é写🙂"), st.characters(codec="utf-8")), max_size=60
)


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8", newline="\n")
    return path


def spans_of(files: list[Path], chunk: int, paragraphs=False) -> list:
    # imported here: 17d's tests need the rest of this file, and no 16a
    from nanogpt.labs.corpora.sources import cut_files

    return [span for spans in cut_files(files, chunk, paragraphs) for span in spans]


def documents_of(files: list[Path], chunk: int, block: int, paragraphs=False) -> list[str]:
    from nanogpt.labs.corpora.sources import blocks_in

    spans = spans_of(files, chunk, paragraphs)
    return [text for span in spans for _, texts in blocks_in(span, block) for text in texts]


def write_source(tmp_path, kind: str) -> Path:
    """About 40 documents, in one file or a folder."""
    texts = [story.text for story in stories(40)]
    path = tmp_path / f"source.{kind}"
    if kind == "jsonl":
        return write_jsonl(path, texts)
    if kind == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"text": texts * 15}), path, row_group_size=130)
    elif kind == "csv":
        return write_csv(path, texts)
    elif kind == "txt":
        path.write_text("\n\n".join(texts), newline="\n")
    else:
        path.mkdir()
        for i in range(4):
            write_jsonl(path / f"{i}.jsonl", texts[i::4])
    return path


def write_csv(path: Path, texts: list[str], end: str = "\r\n", bom: bool = False) -> Path:
    with open(path, "w", encoding="utf-8-sig" if bom else "utf-8", newline="") as file:
        # Before Python 3.13, csv writes a lone \r without quotes where rows end with \n, and does not read it back.
        rows = csv.writer(
            file, lineterminator=end, quoting=csv.QUOTE_ALL if end == "\n" else csv.QUOTE_MINIMAL
        )
        rows.writerow(["id", 'a "name", quoted', "text"])
        rows.writerows([i, f'x"{i}\n', text] for i, text in enumerate(texts))
    return path


KINDS = ["txt", "paragraphs", "jsonl", "csv", "parquet", "folder"]


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def story_tokenizer(path: Path) -> Path:
    """A vocabulary of 400 tokens, trained on stories."""
    BPETokenizer.train((story.text for story in stories(300)), 400).save(path)
    return path


def tokens_so_far(out: Path) -> int:
    """How many a run of `prepare` has written below a folder."""
    size = 0
    for folder, _, names in os.walk(out):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a finished chunk was given its name meanwhile
                size += (Path(folder) / name).stat().st_size * (".bin" in name)
    return size // 2
