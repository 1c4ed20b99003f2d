"""Laws of `python -m nanogpt prepare`: the ids are those of the text, whatever happens on the way."""

import contextlib
import hashlib
import multiprocessing
import os
import queue
import random
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiktoken
from texts import files_in, tokens_so_far, write_csv, write_jsonl, write_source

from nanogpt.files import alone_in
from nanogpt.labs.corpora.chunks import CHUNKS, make_chunk, merge_split, shards_in
from nanogpt.labs.corpora.prepare import encode_spans, prepare, start_worker
from nanogpt.labs.corpora.sources import cut_files, find_files
from nanogpt.labs.corpora.splits import split_of
from nanogpt.labs.corpora.stories import stories
from nanogpt.shards import document_starts, load_manifest, open_shards, read_shard, write_shard
from nanogpt.tokenizer import BPETokenizer


class Stop(BaseException):
    pass


@pytest.fixture(scope="module")
def tokenizer_path(tokenizer, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(path)
    return path


@pytest.fixture
def source(tmp_path) -> Path:
    """About 40 stories."""
    return write_source(tmp_path, "jsonl")


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def prepared(tokenizer_path):
    """prepared(source, out, chunk=2000): the manifest, made in one process."""
    return partial(prepare, tokenizer=tokenizer_path, workers=1)


@pytest.fixture
def made(prepared):
    """made(source, out, chunk=2000): the files that are in the folder then."""

    def make(source, out, **options) -> dict[str, bytes]:
        prepared(source, out, **options)
        return files_in(out)

    return make


@pytest.fixture
def stopped(prepared, monkeypatch):
    """stopped(3, source, out, chunk=2000): the same, and it ends before the fourth chunk is encoded."""

    def stop(chunks: int, source, out, **options) -> None:
        begun = []

        def encode_some(*arguments, **common):
            if len(begun) == chunks:
                raise Stop
            begun.append(1)
            yield from encode_spans(*arguments, **common)

        with contextlib.suppress(Stop), monkeypatch.context() as patch:
            patch.setattr("nanogpt.labs.corpora.prepare.encode_spans", encode_some)
            prepared(source, out, **options)

    return stop


def main(*words) -> int:
    """The command's exit code, as from a shell. Before chapter 17d, which makes the runner, the test is skipped."""
    cli = pytest.importorskip("nanogpt.cli")
    return cli.run_command("prepare", [str(word) for word in words])


@pytest.fixture
def command(out, tokenizer_path):
    """command(source, "--val", 0.5): the same into `out`, with the tokenizer of the stories."""

    def call(source, *words) -> int:
        return main(source, "--out", out, "--tokenizer", tokenizer_path, *words)

    return call


def texts_in(folder: Path, tokenizer) -> dict[str, list[str]]:
    """The documents of each split, decoded from its shards."""
    found = {}
    for split, held in load_manifest(folder)["splits"].items():
        ids = [np.asarray(read_shard(folder / shard["file"])) for shard in held["shards"]]
        ids = np.concatenate(ids) if ids else np.array([], int)
        cuts = document_starts(ids, tokenizer.eot)[1:] if len(ids) else []
        found[split] = [tokenizer.decode(d[1:]) for d in np.split(ids, cuts)] if len(ids) else []
        assert len(found[split]) == held["documents"]
        assert sum(len(text.encode()) for text in found[split]) == held["bytes"]
    return found


def contents_of(folder: Path) -> dict[str, bytes]:
    """All files, those of chunks among them."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def whole_files(folder: Path) -> dict[str, bytes]:
    """Without what a kill has left aside."""
    return {name: data for name, data in files_in(folder).items() if not name.endswith(".tmp")}


def test_shakespeare_is_the_338_025_tokens_of_tiktoken(gpt2_vocab, tmp_path, tinyshakespeare, capsys):
    assert main(tinyshakespeare, "--tokenizer", "gpt2", "--out", tmp_path) == 0
    assert "train 338,025 tokens + 1 <|endoftext|> in 1 shards" in capsys.readouterr().out
    [path] = open_shards(tmp_path, "train")
    assert np.fromfile(path, "<i4", 3).tolist() == [20240520, 1, 338026]
    text = tinyshakespeare.read_text(encoding="utf-8")
    assert read_shard(path)[1:].tolist() == tiktoken.get_encoding("gpt2").encode_ordinary(text)


def test_sources_of_every_kind_hold_the_same_documents(tmp_path, tokenizer, made):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [story.text for story in stories(60)] + ["naïve 写\n\n🙂\r\n", " ", "<|endoftext|> is text here"]
    write_jsonl(tmp_path / "a.jsonl", texts)
    pq.write_table(pa.table({"text": texts}), tmp_path / "b.parquet", row_group_size=25)
    write_csv(tmp_path / "d.csv", texts)
    (tmp_path / "c").mkdir()
    for i, text in enumerate(texts):
        (tmp_path / "c" / f"{i:04}.txt").write_bytes(text.encode())
    results = []
    for source in ("a.jsonl", "b.parquet", "c", "d.csv"):
        made(tmp_path / source, tmp_path / "out" / source, val=0.1, test=0.1, chunk=9000, block=4000)
        results.append(texts_in(tmp_path / "out" / source, tokenizer))
    assert all(result == results[0] for result in results)
    assert sorted(t for split in results[0].values() for t in split) == sorted(texts)
    for split, members in results[0].items():
        said = {split_of(hashlib.sha256(t.encode()).digest(), 0.1, 0.1) for t in members}
        assert said == {split}


def test_a_folder_takes_all_kinds_and_more_text_leaves_validation_as_it_was(tmp_path, tokenizer, made):
    texts = [story.text for story in stories(300)]
    (few := tmp_path / "few").mkdir()
    write_jsonl(few / "1.jsonl", texts[:150])
    (few / "notes.md").write_text("no text")
    made(few, tmp_path / "a", val=0.2, test=0)
    write_jsonl(few / "2.jsonl", texts[150:])
    (few / "3.txt").write_text("one more", newline="\n")
    made(few, tmp_path / "b", val=0.2, test=0)
    a, b = (texts_in(tmp_path / name, tokenizer) for name in "ab")
    assert a["val"] and b["val"][: len(a["val"])] == a["val"] and len(b["val"]) > len(a["val"])
    assert "one more" in b["train"] + b["val"]


def test_paragraphs_are_documents_and_lose_nothing(tmp_path, tokenizer, made, out):
    parts = ["one\ntwo\n\n", "three\r\n\r\n", "four\n\n\n\n", "five  \n \n", " six\n\n"]
    (tmp_path / "text.txt").write_bytes("".join(parts).encode())
    made(tmp_path / "text.txt", out, val=0, test=0, paragraphs=True, block=7)
    assert texts_in(out, tokenizer)["train"] == parts


def test_small_shards_are_the_large_one_in_parts(tmp_path, made):
    source = write_jsonl(tmp_path / "a.jsonl", [story.text for story in stories(120)])
    for name, size in (("one", 10**9), ("many", 2000)):
        made(source, tmp_path / name, shard_tokens=size, chunk=3000, block=2000)
    one = read_shard(*open_shards(tmp_path / "one", "train"))
    many = [read_shard(path) for path in open_shards(tmp_path / "many", "train")]
    assert len(many) > 5 and all(len(shard) == 2000 for shard in many[:-1])
    assert np.array_equal(np.concatenate(many), one)


def test_a_worker_leaves_ctrl_c_to_its_parent_and_does_not_outlive_it(monkeypatch):
    sentinel, end = multiprocessing.Pipe()
    parent = SimpleNamespace(sentinel=sentinel)
    monkeypatch.setattr("nanogpt.labs.corpora.prepare.parent_process", lambda: parent)
    ended, before = queue.Queue(), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(os, "_exit", ended.put)
    try:
        start_worker(len)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN and ended.empty()
        end.close()
        assert ended.get(timeout=60) == 1
    finally:
        signal.signal(signal.SIGINT, before)


def change(path: Path, at: int) -> None:
    """Two letters of a file exchanged for others; its length stays."""
    raw = bytearray(path.read_bytes())
    at = next(i for i in range(at, len(raw)) if raw[i : i + 2].isalpha())
    raw[at : at + 2] = b"qq" if raw[at : at + 2] != b"qq" else b"zz"
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("kind", "when"),
    [("jsonl", "stopped"), ("folder", "stopped"), ("parquet", "done"), ("folder", "done")],
)
def test_a_changed_source_is_noticed(tmp_path, made, stopped, out, kind, when):
    source = write_source(tmp_path, kind)
    files = find_files(source)
    stopped(5 if when == "stopped" else 10**6, source, out, chunk=2000)
    held = contents_of(out)
    places = [(files[0], 100), (files[0], files[0].stat().st_size // 4)]
    if when == "done":  # what is not read yet may change
        places.append((files[-1], -100))
    for path, at in places:
        before = path.read_bytes()
        change(path, at % len(before))
        with pytest.raises(ValueError, match=r"changed since .*choose another --out|needs pyarrow"):
            made(source, out, chunk=2000)
        path.write_bytes(before)
        os.utime(path)
    assert contents_of(out) == held
    assert made(source, out, chunk=2000) == made(source, tmp_path / "straight", chunk=2000)


def test_a_text_among_others_that_grew_goes_to_no_two_splits(tmp_path, made, stopped, out):
    """Its hash, by which it is sent to a split, is that of all its bytes; so its first chunk is not what it was."""
    (source := tmp_path / "in").mkdir()
    (source / "a.txt").write_text("once upon " * 900)
    (source / "b.txt").write_text("b")
    how = dict(val=0.5, test=0, chunk=2000)
    stopped(2, source, out, **how)
    raw = bytearray((source / "a.txt").read_bytes())
    was = split_of(hashlib.sha256(raw).digest(), 0.5, 0)
    while split_of(hashlib.sha256(raw).digest(), 0.5, 0) == was:
        raw[-4] += 1
    (source / "a.txt").write_bytes(raw)
    with pytest.raises(ValueError, match=r"a.txt has changed since"):
        made(source, out, **how)


def test_a_source_that_changes_while_it_is_read_is_refused(made, source, out, monkeypatch):
    def touched(*arguments, **common):
        os.utime(source, ns=(1, 1))
        return encode_spans(*arguments, **common)

    monkeypatch.setattr("nanogpt.labs.corpora.prepare.encode_spans", touched)
    with pytest.raises(ValueError, match="changed while it was read"):
        made(source, out, chunk=2000)
    assert not shards_in(out)


@pytest.mark.parametrize("harm", ["bit", "gone", "header", "all gone"])
def test_a_shard_that_was_harmed_is_made_again(made, source, out, capsys, harm):
    how = dict(shard_tokens=1000, chunk=2000)
    whole, shard = made(source, out, **how), out / "train_000001.bin"
    raw = shard.read_bytes()
    harmed = {"bit": raw[:-1] + bytes([raw[-1] ^ 1]), "header": b"\0" * 4 + raw[4:]}
    if harm in harmed:
        shard.write_bytes(harmed[harm])
    for path in {"gone": [shard], "all gone": shards_in(out)}.get(harm, []):
        path.unlink()
    assert made(source, out, **how) == whole and "train_00000" in capsys.readouterr().err
    made(source, out, **how)
    assert capsys.readouterr().err == "", "what is whole is made again"


def test_what_lies_in_the_folder_already_is_never_mixed_up(tmp_path, prepared, made, out):
    source = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    before = made(source, out)
    assert made(source, out) == before  # done already: nothing happens
    BPETokenizer.train((story.text for story in stories(300)), 300).save(tmp_path / "other.json")
    (foreign := tmp_path / "foreign").mkdir()
    (foreign / "train_000000.bin").write_bytes(b"precious")
    asked = dict(source=source, out=out)
    for named, other in {
        "source is a.jsonl": dict(source=write_jsonl(tmp_path / "b.jsonl", ["three"])),
        "tokenizer is tokenizer.json, not other.json": dict(tokenizer=tmp_path / "other.json"),
        "val is 0.01, not 0.5": dict(val=0.5),
        "column is text, not body": dict(column="body"),
        f"{foreign} holds shards that": dict(out=foreign),
    }.items():
        with pytest.raises(ValueError, match=re.escape(named)):
            prepared(**asked | other)
    prepared(source, tmp_path / "parts", part="1/2")
    with pytest.raises(ValueError, match=r"val is 0.01, not 0.5"):
        prepared(source, tmp_path / "parts", val=0.5)
    assert files_in(out) == before
    assert files_in(foreign) == {"train_000000.bin": b"precious", ".lock": b""}


def test_a_run_stopped_before_its_manifest_is_finished_by_the_next(tmp_path, made, out, monkeypatch):
    source = write_jsonl(tmp_path / "a.jsonl", [story.text for story in stories(200)])
    how = dict(val=0.1, test=0.1, shard_tokens=3000, chunk=2000)
    replace, shards = os.replace, []

    def stop_after_two_shards(old, new):
        if str(new).endswith(".bin"):
            if len(shards) == 2:
                raise Stop
            shards.append(new)
        replace(old, new)

    with pytest.raises(Stop), monkeypatch.context() as patch:
        patch.setattr(os, "replace", stop_after_two_shards)
        made(source, out, **how)
    assert len(shards_in(out)) == 2
    assert made(source, out, **how) == made(source, tmp_path / "straight", **how)


def test_other_files_in_the_folder_are_left_alone(made, source, out):
    out.mkdir()
    for name in ("notes.bin", "notes.part", "train_1.bin", "mine.json"):
        (out / name).write_bytes(b"precious")
    made(source, out)
    (out / "train_000000.bin").unlink()
    assert sum(raw == b"precious" for raw in made(source, out).values()) == 4


@pytest.mark.parametrize("kind", ["jsonl", "folder"])
def test_a_resumed_run_encodes_only_what_is_left(tmp_path, made, stopped, out, kind):
    source = write_source(tmp_path, kind)
    straight = made(source, tmp_path / "straight", chunk=1500)
    chunks = len(load_manifest(tmp_path / "straight")["source_sha256"])
    stopped(3, source, out, chunk=1500)
    assert len(list((out / CHUNKS).glob("[0-9]*"))) == 3 < chunks
    stopped(chunks - 3, source, out, chunk=1500)  # one more would end it
    assert files_in(out) == straight


@pytest.mark.parametrize("harm", ["bit", "manifest", "gone"])
def test_a_chunk_that_is_not_whole_is_made_again(tmp_path, made, stopped, source, out, harm):
    """After a loss of power a file may have its name and not its bytes."""
    stopped(4, source, out, chunk=2000)
    path = out / CHUNKS / "000002" / ("manifest.json" if harm == "manifest" else "train.bin")
    raw = path.read_bytes()
    path.unlink() if harm == "gone" else path.write_bytes(raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:])
    (out / CHUNKS / ".abandoned").mkdir()  # by kill -9, aside
    assert made(source, out, chunk=2000) == made(source, tmp_path / "straight", chunk=2000)


def test_a_chunk_is_renamed_when_all_of_it_is_written(tmp_path, monkeypatch):
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    [spans] = cut_files([path], 10**6)
    made_of = {"source": "a", "fingerprint": "f", "eot": 9, "vocab_size": 10}

    def encode(spans):
        yield "train", np.full(5, 7, "<u2"), 1, 20
        raise Stop

    with pytest.raises(Stop):
        make_chunk(tmp_path / CHUNKS / "000000", spans, made_of, encode)
    assert list((tmp_path / CHUNKS).iterdir()) == []
    seen, rename = [], os.rename

    def look(old, new):
        assert not Path(new).exists()
        seen.append(sorted(file.name for file in Path(old).iterdir()))
        rename(old, new)

    monkeypatch.setattr(os, "rename", look)
    make_chunk(tmp_path / CHUNKS / "000000", spans, made_of, lambda _: [("val", np.full(5, 7, "<u2"), 1, 20)])
    assert seen == [["manifest.json", "val.bin"]]
    assert [path.name for path in (tmp_path / CHUNKS).iterdir()] == ["000000"]


def test_a_merge_deletes_a_chunks_file_after_the_shard_is_on_the_disk(tmp_path, monkeypatch):
    parts, order = [], []
    for i, n in enumerate((60, 10, 60, 60)):
        write_shard(tmp_path / f"{i}.bin", np.full(n, i))
        parts.append((tmp_path / f"{i}.bin", n))
    fsync, replace, unlink = os.fsync, os.replace, Path.unlink
    monkeypatch.setattr(os, "fsync", lambda number: (order.append("fsync"), fsync(number)))
    monkeypatch.setattr(os, "replace", lambda old, new: (order.append(Path(new).name), replace(old, new)))
    monkeypatch.setattr(Path, "unlink", lambda p, **how: (order.append(p.name), unlink(p, **how)))
    shards = merge_split(tmp_path, "val", parts, 100)
    order = [name for name in order if not name.endswith(".tmp")]
    assert order == ["fsync", "val_000000.bin", "0.bin", "1.bin", "fsync", "val_000001.bin", "2.bin", "3.bin"]
    assert [shard["tokens"] for shard in shards] == [100, 90]
    joined = np.concatenate([read_shard(tmp_path / shard["file"]) for shard in shards])
    assert joined.tolist() == [0] * 60 + [1] * 10 + [2] * 60 + [3] * 60


def test_shards_in_the_making_are_not_taken_for_others(made, stopped, source, out):
    """A shard is found damaged, the run that makes it again is stopped: the manifest that lists it is gone."""
    whole = made(source, out, chunk=2000)
    (out / "train_000000.bin").unlink()
    stopped(4, source, out, chunk=2000)
    assert not (out / "manifest.json").exists() and not shards_in(out)
    assert made(source, out, chunk=2000) == whole


@pytest.mark.parametrize(
    ("kind", "n"),
    [("jsonl", 1), ("jsonl", 3)]
    + [pytest.param(kind, 3, marks=pytest.mark.weekly) for kind in ("paragraphs", "parquet", "folder")],
)
def test_parts_in_any_order_give_the_bytes_of_one_run(tmp_path, prepared, made, stopped, out, kind, n):
    """One of them is stopped and run again, one is run twice, one never."""
    source = write_source(tmp_path, kind.replace("paragraphs", "txt"))
    how = dict(val=0.2, test=0.1, paragraphs=kind == "paragraphs", shard_tokens=3000, chunk=900)
    parts = random.Random(n).sample(range(1, n + 1), n)
    stopped(1, source, out, part=f"{parts[0]}/{n}", **how)
    for p in [*parts, parts[-1]]:
        if n == 1 or p != parts[1]:
            assert prepared(source, out, part=f"{p}/{n}", **how) is None
            assert not shards_in(out)
    assert made(source, out, **how) == made(source, tmp_path / "straight", **how)
    assert prepared(source, out, part=f"1/{n}", **how)["splits"], "all is done already"


def test_a_part_makes_every_nth_chunk_and_no_other(prepared, source, out):
    prepared(source, out, part="2/3", chunk=900)
    chunks = len(list(cut_files([source], 900)))
    assert sorted(int(path.name) for path in (out / CHUNKS).iterdir()) == list(range(1, chunks, 3))


@pytest.mark.slow
def test_the_number_of_processes_changes_nothing(tmp_path, made, source, out):
    assert made(source, out, workers=2, chunk=5000) == made(source, tmp_path / "straight", chunk=5000)


def test_parts_share_a_folder_and_a_merge_does_not(prepared, source, out):
    with alone_in(out, shared=True):
        with contextlib.nullcontext() if os.name != "nt" else pytest.raises(ValueError):
            prepared(source, out, part="1/2")
        with pytest.raises(ValueError, match="another prepare writes into"):
            prepared(source, out)
    with alone_in(out), pytest.raises(ValueError, match="another prepare writes into"):
        prepared(source, out)
    prepared(source, out)


TRACED = {f"nanogpt.labs.corpora.{name}" for name in ("prepare", "chunks", "sources", "cuts", "vocab")}
TRACED |= {"nanogpt.shards", "nanogpt.files"}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.weekly) for seed in (1, 2))])
def test_a_run_stopped_anywhere_goes_on_with_the_same_bytes(tmp_path, made, out, seed):
    """Stopped at a random line of prepare, again and again, until it gets through."""
    source = write_jsonl(tmp_path / "a.jsonl", [story.text for story in stories(100)])
    how = dict(val=0.1, test=0.1, shard_tokens=2000, chunk=3000, block=1000)
    rng, stops = random.Random(seed), 0
    for allowed in (300, 500, 900, 1500, 10**9):
        left = rng.randrange(allowed // 2, allowed)

        def trace(frame, event, argument):
            nonlocal left
            if frame.f_globals.get("__name__") in TRACED:
                left -= 1
                if left == 0:
                    raise Stop
                return trace
            return None

        try:
            sys.settrace(trace)
            made(source, out, **how)
        except Stop:
            stops += 1
        finally:
            sys.settrace(None)
    assert stops and whole_files(out) == made(source, tmp_path / "straight", **how)


SCRIPT = """
import sys
from nanogpt.labs.corpora.prepare import prepare
if __name__ == "__main__":
    source, out, tokenizer, workers, part = sys.argv[1:]
    how = dict(workers=int(workers), part=part or None, shard_tokens=300_000, chunk=500_000, block=60_000)
    prepare(source, out, tokenizer, 0.1, 0.1, **how)
"""


@pytest.fixture
def start(tmp_path, tokenizer_path):
    """start(source, out, workers, part): prepare, in a process of its own."""
    (script := tmp_path / "script.py").write_text(SCRIPT)
    how = {"env": os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, "stderr": subprocess.PIPE}

    def begin(source, out, workers=2, part="") -> subprocess.Popen:
        words = map(str, (script, source, out, tokenizer_path, workers, part))
        return subprocess.Popen([sys.executable, *words], **how)

    return begin


@pytest.mark.slow
def test_kill_9_at_a_random_point_changes_nothing(tmp_path, start):
    psutil = pytest.importorskip("psutil")
    texts = [story.text for story in stories(5000)] * 5  # 10 MB: long enough to be killed in
    source, out = write_jsonl(tmp_path / "source.jsonl", texts), tmp_path / "out"
    assert start(source, tmp_path / "straight").wait() == 0
    total, killed, seed = tokens_so_far(tmp_path / "straight"), [], random.randrange(10**6)
    rng = random.Random(seed)
    for goal in sorted(rng.random() * 0.9 for _ in range(3)):
        process = start(source, out)
        while process.poll() is None and tokens_so_far(out) < goal * total:
            time.sleep(0.001)
        workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.wait()
        killed.append(process.returncode)
        _, alive = psutil.wait_procs(workers, timeout=20)
        assert not alive, "workers outlive their parent"
        assert not (out / "manifest.json").exists() or process.returncode == 0
    assert -signal.SIGKILL in killed or os.name == "nt", seed
    assert start(source, out).wait() == 0
    assert whole_files(out) == files_in(tmp_path / "straight"), seed


@pytest.mark.weekly
@pytest.mark.skipif(os.name == "nt", reason="Windows has no shared lock: there, parts take turns")
def test_parts_at_the_same_time_one_killed_give_the_bytes_of_one_run(tmp_path, start):
    source = write_csv(tmp_path / "source.csv", [story.text for story in stories(5000)] * 4)
    assert start(source, tmp_path / "straight", workers=2).wait() == 0
    out = tmp_path / "out"
    parts = [start(source, out, p, f"{p}/3") for p in (2, 1, 3)]
    while parts[1].poll() is None and not list((out / CHUNKS).glob("000003")):
        time.sleep(0.001)
    parts[1].kill()
    assert [part.wait() for part in parts] == [0, -signal.SIGKILL, 0]
    assert start(source, out, 2, "1/3").wait() == 0
    made = list((out / CHUNKS).glob("[0-9]*"))
    assert len(made) == len(list(cut_files([source], 500_000)))
    assert start(source, out, workers=1).wait() == 0
    assert files_in(out) == files_in(tmp_path / "straight")


@pytest.mark.weekly
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_memory_does_not_grow_with_the_source(tmp_path, start, kind):
    psutil = pytest.importorskip("psutil")
    texts, peaks = [story.text for story in stories(5000)], []
    for times in (4, 44):
        source, peak = tmp_path / f"{times}.{kind}", 0
        if kind == "jsonl":
            write_jsonl(source, texts * times)
        else:
            pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
            table = pa.table({"text": texts * times})
            pq.write_table(table, source, row_group_size=5000)  # what is read at once
        process = start(source, tmp_path / f"out{times}")
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
                peak = max(peak, sum(p.memory_info().rss for p in family))
            time.sleep(0.02)
        assert process.returncode == 0
        peaks.append(peak / 1e6)
    # 5000 stories are 1.9 MB: eleven times as much text, 76 MB more, must not show. (pyarrow wanders by 30 MB.)
    assert peaks[1] < peaks[0] + 45, peaks


def test_shards_of_others_are_adopted_where_they_are(tmp_path, tokenizer, tokenizer_path, capsys):
    """llm.c writes our format, build-nanogpt NumPy files; neither has a manifest."""
    texts = {"train_000001": "Tom had a ball.", "train_000002": "Ann had two.", "val_000000": "Ida won."}
    for name, text in texts.items():
        ids = np.array([tokenizer.eot, *tokenizer.encode(text)], np.uint16)
        if "val" in name:
            np.save(tmp_path / f"edufineweb_{name}.npy", ids)
        else:
            write_shard(tmp_path / f"edufineweb_{name}.bin", ids)
    assert main("--adopt", tmp_path, "--tokenizer", tokenizer_path) == 0
    one, two, held = texts.values()
    assert texts_in(tmp_path, tokenizer) == {"train": [one, two], "val": [held], "test": []}
    assert len(open_shards(tmp_path, "train", tokenizer.fingerprint)) == 2
    BPETokenizer.train("", 257).save(tmp_path / "bytes.json")
    assert main("--adopt", tmp_path, "--tokenizer", tmp_path / "bytes.json") == 2
    assert "has ids from 257 on" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main("--adopt", tmp_path / "empty", "--tokenizer", tokenizer_path) == 2


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--val", "nan"], "--val nan"),
        (["--workers", "0"], "--workers 0"),
        (["--part", "4/3"], "--part 4/3"),
        (["--out", "a.jsonl"], "--out a.jsonl"),
        (["--tokenizer", "README.md"], "README.md"),
        (["--paragraphs"], "--paragraphs: a.jsonl has no text file"),
    ],
)
def test_an_option_that_cannot_work_is_named_and_nothing_is_written(
    tmp_path, command, capsys, monkeypatch, options, names
):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", ["one"])
    (tmp_path / "README.md").write_text("# precious")
    before = files_in(tmp_path)
    assert command("a.jsonl", *options) == 2
    error = capsys.readouterr().err
    assert names in error and error.count("\n") == 1 and files_in(tmp_path) == before


def test_the_command_takes_a_column_and_refuses_it_where_there_is_none(tmp_path, tokenizer, command, out):
    (tmp_path / "a.csv").write_text("id,content\n1,Tom had a ball.\n")
    (tmp_path / "a.txt").write_text("a text")
    words = ["--column", "content", "--val", 0, "--test", 0]
    assert command(tmp_path / "a.txt", *words) == 2 and not out.exists()
    assert command(tmp_path / "a.csv", *words) == 0
    assert texts_in(out, tokenizer)["train"] == ["Tom had a ball."]


def test_a_damaged_manifest_is_named_and_stays(made, source, out):
    made(source, out)
    whole = (out / "manifest.json").read_text()
    for damaged in ("", "[1]", whole.replace("2", "3")):
        (out / "manifest.json").write_text(damaged)
        with pytest.raises(ValueError, match=r"manifest.json is damaged.*choose another --out"):
            made(source, out)
        assert (out / "manifest.json").read_text() == damaged


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [("a.txt", b"abc \xff\xfe", "byte 4"), ("a.jsonl", b'{"text": ""}\n', "all documents are empty")],
)
def test_a_bad_source_is_one_line_and_leaves_no_shard(tmp_path, command, capsys, name, content, says):
    (tmp_path / name).write_bytes(content)
    assert command(tmp_path / name) == 2
    error = capsys.readouterr().err
    assert says in error and name in error and error.count("\n") == 1
    assert not list(tmp_path.rglob("*.bin"))
    (tmp_path / name).write_text('{"text": "one"}\n')
    assert command(tmp_path / name) == 0, "for ever"
