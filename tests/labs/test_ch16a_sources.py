"""Laws of reading: wherever a text is cut, its documents and their ids are the same."""

import gzip
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import regex
import tiktoken
from hypothesis import example, given, settings
from hypothesis import strategies as st
from texts import KINDS, TEXT, documents_of, spans_of, write_csv, write_jsonl, write_source
from wording import in_our_words

from nanogpt.labs.corpora import sources
from nanogpt.labs.corpora.cuts import seek_cut
from nanogpt.labs.corpora.splits import split_of
from nanogpt.tokenizer import GPT2_PATTERN

# Cutting a long text


@given(TEXT)
@example("a  b")
@example("it's\n\n  end")
@example("x\u3000\n y")
@settings(max_examples=120, deadline=None)
def test_the_pattern_cuts_the_parts_as_it_cuts_the_whole(text):
    rest, pieces = text.encode(), []
    while cut := sources.first_cut("text", rest):
        pieces += regex.findall(GPT2_PATTERN, rest[:cut].decode())
        rest = rest[cut:]
    assert pieces + regex.findall(GPT2_PATTERN, rest.decode()) == regex.findall(GPT2_PATTERN, text)


@given(TEXT, st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_a_text_read_in_chunks_and_blocks_has_the_ids_of_the_whole(
    tmp_path_factory, tokenizer, text, chunk, block
):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(text.encode())
    blocks = [found for span in spans_of([path], chunk) for found in sources.blocks_in(span, block)]
    assert [begins for begins, _ in blocks] == [n == 0 for n in range(len(blocks))]
    parts = [part for _, texts in blocks for part in texts]
    assert "".join(parts) == text
    assert [i for part in parts for i in tokenizer.encode(part)] == tokenizer.encode(text)


@given(TEXT)
@settings(max_examples=100, deadline=None)
def test_the_same_holds_for_tiktoken(gpt2_vocab, text):
    encoding, raw, at = tiktoken.get_encoding("gpt2"), text.encode(), 0
    while at := sources.first_cut("text", raw, at + 1):
        ids = encoding.encode_ordinary(raw[:at].decode()) + encoding.encode_ordinary(raw[at:].decode())
        assert ids == encoding.encode_ordinary(text)


def test_what_python_calls_visible_is_visible_to_the_pattern():
    """`first_cut` asks str.isspace; a character that only \\s takes for white space would break its proof."""
    everything = "".join(map(chr, range(0x110000)))
    assert [c for c in regex.findall(r"\s", everything) if not c.isspace()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_blocks_of_any_size_hold_the_same_documents(tmp_path, kind):
    path = write_source(tmp_path, kind.replace("paragraphs", "txt"))
    files, paragraphs = sources.find_files(path), kind == "paragraphs"
    whole = documents_of(files, 10**9, 10**9, paragraphs)
    assert len(whole) == {"txt": 1, "parquet": 600}.get(kind, 40)
    for chunk, block in ((1, 10**6), (700, 100), (3000, 1000), (10**6, 500)):
        found = documents_of(files, chunk, block, paragraphs)
        assert found == whole or (kind == "txt" and "".join(found) == whole[0]), (chunk, block)
        spans = spans_of(files, chunk, paragraphs)
        assert sum(span.stop - span.start for span in spans) == sum(path.stat().st_size for path in files)
        if kind != "parquet":  # cut between groups of rows
            assert max(span.stop - span.start for span in spans) < chunk + 900


@given(
    st.lists(
        st.text(st.one_of(st.sampled_from('",\r\n a1é🙂\ufeff'), st.characters(codec="utf-8")), max_size=20)
    ),
    st.integers(1, 60),
    st.integers(1, 60),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
@example(['a "quoted"\nline\r\n', "", '"', '""\n"'], 1, 1, "\n", True)
@settings(max_examples=60)
def test_a_csv_file_is_read_as_it_was_written_wherever_it_is_cut(
    tmp_path_factory, texts, chunk, block, end, bom
):
    path = write_csv(tmp_path_factory.mktemp("csv") / "a.csv", texts, end, bom)
    assert documents_of([path], chunk, block) == [text for text in texts if text]


@pytest.mark.parametrize("block", [1, 5, 1 << 20])
@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ("first\n\nsecond\n", ["first\n\n", "second\n"]),  # the last line break is no document
        ("first\n\nsecond\r\n", ["first\n\n", "second\r\n"]),
        ("one", ["one"]),
        ("\n\none\n\n\n", ["\n\none\n\n\n"]),
        ("a\r\n\r\nb\n \nc", ["a\r\n\r\n", "b\n \n", "c"]),  # a line of spaces is blank
        ("a\n\t\n  b", ["a\n\t\n", "  b"]),
        ("a\n\nb\n<|endoftext|>\n\nc\n<|endoftext|>\n", ["a\n\nb", "c"]),  # as in TinyStories
        ("\ufeffa\n\nb", ["a\n\n", "b"]),
    ],
)
def test_where_paragraphs_end(tmp_path, text, documents, block):
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert documents_of([tmp_path / "a.txt"], 10**6, block, paragraphs=True) == documents


def test_many_small_files_share_a_chunk(tmp_path):
    files = [tmp_path / f"{i:03}.txt" for i in range(100)]
    for path in files:
        path.write_text("ten bytes!")
    sizes = [len(spans) for spans in sources.cut_files(files, 95)]
    assert sizes == [10] * 10


def test_the_quotes_of_a_csv_file_are_counted_across_megabytes(tmp_path):
    texts = ['"' * (i % 5) + "line\n" * 60_000 for i in range(9)]
    path = write_csv(tmp_path / "a.csv", texts)
    assert documents_of([path], 700_000, 400_000) == texts


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    """Left out without a word, its documents would be missing from the training, and nobody would know."""
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refusing(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(PermissionError, match="closed"):
        sources.find_files(tmp_path)


def test_a_folder_is_read_as_a_reader_expects(tmp_path, monkeypatch):
    names = ["a.TXT", "b.Jsonl", "x.parquet/part-0.txt", "c.md", ".hidden.txt", "._c.txt"]
    names += [".ipynb_checkpoints/a.txt", "data/built/b.txt", "data/c.txt", "built/d.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text")
    found = ["a.TXT", "b.Jsonl", "built/d.txt", "data/c.txt", "x.parquet/part-0.txt"]
    assert [path.relative_to(tmp_path).as_posix() for path in sources.find_files(tmp_path)] == found
    monkeypatch.chdir(tmp_path / "data")
    assert [path.as_posix() for path in sources.find_files(Path("."))] == ["c.txt"]
    above = sources.find_files(Path(".."))
    assert Path("../data/c.txt") in above and Path("../data/built/b.txt") not in above
    assert [path.name for path in sources.find_files(Path("built"))] == ["b.txt"], "asked for by name"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", None, "does not exist"),
        ("a.txt", b"", "is empty"),
        ("a.txt", b"abc \xff\xfe", "byte 4 is not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n' * 400 + b'["y"]\n' + b'{"text": "x"}\n' * 9, "line 401"),
        ("a.jsonl", b'\n\n{"title": "x"}\n', "line 3"),
        ("a.jsonl", b'{"text": "\xff"}\n', "line 1"),
        ("a.parquet", b"abc", "pyarrow"),
        ("a.csv", b"id,body\n1,x\n", "line 1: no column 'text' among 'id', 'body'"),
        ("a.csv", b"text\nx\nNaN\n", "line 3: 'NaN'"),
        ("a.csv", b"text\n" + b"x\n" * 400 + b'"a\nb"\nx,y\nx\n', "line 404"),
        ("a.csv", b'id,text\n1,"open\n', "line 2"),
    ],
)
def test_a_bad_source_is_one_sentence_with_its_place(tmp_path, name, content, says):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert says in (said := refusal(tmp_path / name)) and name in said


@pytest.mark.parametrize("column", [[b"x"], [["x"]], [1], None])
def test_a_parquet_file_without_strings_named_text_is_refused(tmp_path, column):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"text": column} if column else {"body": ["x"]}), tmp_path / "a.parquet")
    assert "a column of strings named text" in refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize("block", [7, 1 << 20])
@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.json.gz", "a.ndjson", "a.ndjson.zst", "a.csv.gz", "a.txt.gz"]
)
def test_packed_files_hold_the_same_documents(tmp_path, name, block):
    texts = [f"Story {i}, of words.\n\n" for i in range(50)]
    plain, packed = tmp_path / name.removesuffix(".gz").removesuffix(".zst"), tmp_path / name
    if plain.suffix == ".csv":
        write_csv(plain, texts)
    elif plain.suffix == ".txt":
        plain.write_text("".join(texts))
    else:
        write_jsonl(plain, texts)
    raw = plain.read_bytes()
    if name.endswith(".gz"):
        packed.write_bytes(gzip.compress(raw))
    elif name.endswith(".zst"):
        with pytest.importorskip("pyarrow").output_stream(str(packed), compression="zstd") as file:
            file.write(raw)
    assert documents_of([packed], 100, block, paragraphs=True) == texts
    if name.endswith(".gz"):
        packed.write_bytes(gzip.compress(raw)[:-9])
        assert f"{name} cannot be read" in refusal(packed)


def test_what_json_may_hold_besides_text(tmp_path):
    lines = ['{"text": null}', '{"text": "half \\ud83d end"}', '{"text": "\\ud83d\\ude00"}', ""]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert documents_of([tmp_path / "a.jsonl"], 1 << 20, 1 << 20) == ["half \ufffd end", "😀"]


def test_what_is_left_out_of_a_folder_is_named(tmp_path, capsys):
    corpus, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    corpus.mkdir(), elsewhere.mkdir()
    (corpus / "README.txt").write_text("a\r\nb")
    (corpus / "part.json").write_text("{}")
    (corpus / ".hidden").write_text("x")
    (corpus / "linked").symlink_to(elsewhere)
    (corpus / "b.txt").symlink_to(tmp_path / "gone")
    sources.print_remarks(corpus)
    lines = capsys.readouterr().err.splitlines()
    said = {line.partition(": ")[0].rpartition("/")[2] for line in lines}
    assert said == {"README.txt", "part.json", "linked", "b.txt"}
    assert [*sources.find_files(corpus)] == [corpus / "README.txt"]


def refusal(source: Path) -> str:
    """What is said of a source that cannot be read: one line."""
    with pytest.raises((ValueError, OSError)) as error:
        documents_of(sources.find_files(source), 1 << 20, 1 << 20)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_line_that_is_too_long_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("nanogpt.labs.corpora.cuts.LIMIT", 5000)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "x"}\n' * 3 + json.dumps({"text": "x" * 9000}) + '\n{"text": "x"}\n')
    says = in_our_words(seek_cut, "a.jsonl, line 4: no place to cut in", "a.jsonl.*4")
    with pytest.raises(ValueError, match=says):
        documents_of([path], 100, 100)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_the_column_that_was_named_holds_the_documents(tmp_path, kind):
    texts, path = ["one", "two, and three"], tmp_path / f"a.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps({"text": "no", "content": t}) + "\n" for t in texts))
    elif kind == "csv":
        path.write_text("text,content\n" + "".join(f'no,"{t}"\n' for t in texts))
    else:
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        pq.write_table(pa.table({"text": ["no", "no"], "content": texts}), path)
    for column, expected in (("content", texts), ("text", ["no", "no"])):
        spans = [span for chunk in sources.cut_files([path], 1, column=column) for span in chunk]
        blocks = [block for span in spans for _, block in sources.blocks_in(span, 99)]
        assert [text for block in blocks for text in block] == expected
    with pytest.raises(ValueError, match="body"):
        for span in spans:
            list(sources.blocks_in(replace(span, column="body"), 99))


# Chunks


def test_a_text_goes_to_the_split_that_the_hash_of_the_whole_file_says(tmp_path):
    for i in range(12):
        (tmp_path / f"{i}.txt").write_text(f"{i} " * 500 + "end")
    files = sorted(tmp_path.iterdir())
    said = {path: split_of(hashlib.sha256(path.read_bytes()).digest(), 0.3, 0.3) for path in files}
    spans = [span for chunk in sources.cut_files(files, 700, val=0.3, test=0.3) for span in chunk]
    assert len(spans) > len(files) and all(span.split == said[span.path] for span in spans)
    alone = sources.cut_files(files[:1], 700, val=0.9, test=0.05)
    assert {spans[0].split for spans in alone} == {"train"}


@pytest.mark.parametrize(("i", "end"), [(0, "first"), (1, "last"), (7, "first")])
def test_the_hash_of_a_chunk_is_that_of_its_bytes_and_no_others(tmp_path, i, end):
    path = write_source(tmp_path, "jsonl")
    chunks = list(sources.cut_files([path], 700))
    before, [span] = [sources.hash_of(spans) for spans in chunks], chunks[i]
    raw = bytearray(path.read_bytes())
    raw[span.start if end == "first" else span.stop - 2] ^= 1  # a brace; the last byte is a line break
    path.write_bytes(raw)
    after = [sources.hash_of(spans) for spans in sources.cut_files([path], 700)]
    assert [n for n, (was, now) in enumerate(zip(before, after, strict=True)) if was != now] == [i]


def test_the_hash_of_a_chunk_tells_kind_and_split(tmp_path):
    span = sources.Span(write_source(tmp_path, "txt"), "text", 0, 100, "train")
    others = span, replace(span, split="val"), replace(span, kind="paragraphs")
    assert len({sources.hash_of([other]) for other in others}) == 3
