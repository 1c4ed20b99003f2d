"""Laws of `python -m nanogpt prepare`: the ids are those of the text, whatever happens on the way."""

import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import regex
import tiktoken
from hypothesis import example, given, settings
from hypothesis import strategies as st

import nanogpt.prepare
from nanogpt.corpus import stories
from nanogpt.prepare import main, prepare
from nanogpt.shards import document_starts, open_shards, read_shard, split_of
from nanogpt.sources import last_cut, read_blocks
from nanogpt.tokenizer import GPT2_PATTERN, BPETokenizer

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    BPETokenizer.train((story.text for story in stories(300)), 400).save(path)
    return path


@pytest.fixture(scope="session")
def tokenizer(tokenizer_path) -> BPETokenizer:
    return BPETokenizer.load(tokenizer_path)


def texts_in(folder: Path, tokenizer) -> dict[str, list[str]]:
    """The documents of each split, decoded from its shards."""
    found = {}
    for split, held in json.loads((folder / "manifest.json").read_text())["splits"].items():
        ids = [np.asarray(read_shard(folder / shard["file"])) for shard in held["shards"]]
        ids = np.concatenate(ids) if ids else np.array([], int)
        cuts = document_starts(ids, tokenizer.eot)[1:] if len(ids) else []
        found[split] = [tokenizer.decode(d[1:]) for d in np.split(ids, cuts)] if len(ids) else []
        assert len(found[split]) == held["documents"]
        assert sum(len(text.encode()) for text in found[split]) == held["bytes"]
    return found


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts), encoding="utf-8", newline="\n")
    return path


# Cutting a long text

SPACES = " \n\t\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u202f\u3000"
TEXT = st.text(
    st.one_of(st.sampled_from(SPACES + "'sltvr d12.,!é写🙂"), st.characters(codec="utf-8")), max_size=60
)


@given(TEXT)
@example("a  b")
@example("it's\n\n  end")
@example("x\u3000\n y")
@settings(max_examples=400, deadline=None)
def test_the_pattern_cuts_the_parts_as_it_cuts_the_whole(text):
    whole, rest, pieces = regex.findall(GPT2_PATTERN, text), text.encode(), []
    while cut := last_cut(rest):
        rest, right = rest[:cut], rest[cut:]
        pieces = regex.findall(GPT2_PATTERN, right.decode()) + pieces
    assert regex.findall(GPT2_PATTERN, rest.decode()) + pieces == whole


@given(TEXT, st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_a_text_read_in_blocks_has_the_ids_of_the_whole(tmp_path_factory, tokenizer, text, block):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_bytes(text.encode())
    pieces = [piece for found, _, _ in read_blocks([path], [0, 0], block, False, 0, 0) for piece in found]
    assert b"".join(piece.content for piece in pieces) == text.encode()
    assert [i for p in pieces for i in tokenizer.encode(p.content.decode())] == tokenizer.encode(text)


def test_what_python_calls_visible_is_visible_to_the_pattern():
    """`last_cut` asks str.isspace; a character that only \\s takes for white space would break its proof."""
    everything = "".join(map(chr, range(0x110000)))
    assert [c for c in regex.findall(r"\s", everything) if not c.isspace()] == []


@given(TEXT)
@settings(max_examples=200, deadline=None)
def test_the_same_holds_for_tiktoken(gpt2_vocab, text):
    encoding, (left, right) = tiktoken.get_encoding("gpt2"), (text.encode(), b"")
    while cut := last_cut(left):
        left, right = left[:cut], left[cut:] + right
        ids = encoding.encode_ordinary(left.decode()) + encoding.encode_ordinary(right.decode())
        assert ids == encoding.encode_ordinary(text)


@given(TEXT, st.text(SPACES, max_size=9))
@example("we'll it's 'so 'LL don't''re", "\n \n")
@settings(max_examples=300, deadline=None)
def test_the_pattern_written_for_speed_gives_the_same_ids(tokenizer_path, tokenizer, text, end):
    encoding, _ = nanogpt.prepare._load_tokenizer(tokenizer_path)
    assert encoding.encode_ordinary(text + end) == tokenizer.encode(text + end)
    assert regex.findall(encoding._pat_str, text + end) == regex.findall(GPT2_PATTERN, text + end)


def test_a_megabyte_of_white_space_at_the_end_of_a_document(tokenizer_path):
    encoding, _ = nanogpt.prepare._load_tokenizer(tokenizer_path)
    text = "x" + " \n" * 500_000
    assert encoding.decode(encoding.encode_ordinary(text)) == text


def test_shakespeare_in_small_blocks_has_gpt2s_ids(gpt2_vocab, tmp_path, tinyshakespeare):
    prepare(tinyshakespeare, tmp_path, block=1000, workers=1)
    [path] = open_shards(tmp_path, "train")
    text = tinyshakespeare.read_text(encoding="utf-8")
    assert read_shard(path)[1:].tolist() == tiktoken.get_encoding("gpt2").encode_ordinary(text)


def test_shakespeare_is_338_025_tokens(gpt2_vocab, tmp_path, tinyshakespeare, capsys):
    assert main([str(tinyshakespeare), "--tokenizer", "gpt2", "--out", str(tmp_path)]) == 0
    assert "train 338,025 tokens + 1 <|endoftext|> in 1 shards" in capsys.readouterr().out
    raw = np.fromfile(tmp_path / "train_000000.bin", "<i4", 3)
    assert raw.tolist() == [20240520, 1, 338026]


# Sources


def test_sources_of_every_kind_hold_the_same_documents(tmp_path, tokenizer, tokenizer_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = [story.text for story in stories(700)] + ["naïve 写\n\n🙂\r\n", " ", "<|endoftext|> is text here"]
    write_jsonl(tmp_path / "a.jsonl", texts)
    pq.write_table(
        pa.table({"id": range(len(texts)), "text": texts}), tmp_path / "b.parquet", row_group_size=300
    )
    (tmp_path / "c").mkdir()
    for i, text in enumerate(texts):
        (tmp_path / "c" / f"{i:04}.txt").write_bytes(text.encode())
    results = []
    for source in ("a.jsonl", "b.parquet", "c"):
        prepare(tmp_path / source, tmp_path / "out" / source, tokenizer_path, 0.1, 0.1, workers=1, block=4000)
        results.append(texts_in(tmp_path / "out" / source, tokenizer))
    assert results[0] == results[1] == results[2]
    assert sorted(t for split in results[0].values() for t in split) == sorted(texts)
    for split, members in results[0].items():
        assert members and {split_of(hashlib.sha256(t.encode()).digest(), 0.1, 0.1) for t in members} == {
            split
        }


def test_a_folder_takes_all_kinds_and_more_text_leaves_validation_as_it_was(
    tmp_path, tokenizer, tokenizer_path
):
    texts = [story.text for story in stories(300)]
    few = write_jsonl(tmp_path / "few" / "1.jsonl", texts[:150]) if not (tmp_path / "few").mkdir() else None
    (tmp_path / "few" / "notes.md").write_text("no text")
    prepare(few.parent, tmp_path / "a", tokenizer_path, 0.2, 0, workers=1)
    write_jsonl(tmp_path / "few" / "2.jsonl", texts[150:])
    (tmp_path / "few" / "3.txt").write_text("one more", newline="\n")
    prepare(few.parent, tmp_path / "b", tokenizer_path, 0.2, 0, workers=1)
    a, b = texts_in(tmp_path / "a", tokenizer), texts_in(tmp_path / "b", tokenizer)
    assert a["val"] and b["val"][: len(a["val"])] == a["val"] and len(b["val"]) > len(a["val"])
    assert "one more" in b["train"] + b["val"]


@pytest.mark.parametrize("block", [7, 100, 1 << 20])
def test_paragraphs_are_documents_and_lose_nothing(tmp_path, tokenizer, tokenizer_path, block):
    text = "one\ntwo\n\nthree\r\n\r\nfour\n\n\n\nfive  \n \n six\n\n"
    (tmp_path / "text.txt").write_bytes(text.encode())
    prepare(tmp_path / "text.txt", tmp_path / "out", tokenizer_path, 0, 0, True, workers=1, block=block)
    expected = ["one\ntwo\n\n", "three\r\n\r\n", "four\n\n\n\n", "five  \n \n six\n\n"]
    assert texts_in(tmp_path / "out", tokenizer)["train"] == expected


def test_a_long_document_in_a_folder_goes_to_one_split_by_its_hash(tmp_path, tokenizer, tokenizer_path):
    (tmp_path / "in").mkdir()
    texts = {f"{i}.txt": f"{i} " * 500 + "end" for i in range(12)}
    for name, text in texts.items():
        (tmp_path / "in" / name).write_text(text)
    prepare(tmp_path / "in", tmp_path / "out", tokenizer_path, 0.3, 0.3, workers=1, block=300)
    found = texts_in(tmp_path / "out", tokenizer)
    assert sorted(t for split in found.values() for t in split) == sorted(texts.values())
    for split, members in found.items():
        assert {split_of(hashlib.sha256(t.encode()).digest(), 0.3, 0.3) for t in members} == {split}


def test_small_shards_are_the_large_one_in_parts(tmp_path, tokenizer_path):
    source = write_jsonl(tmp_path / "a.jsonl", [story.text for story in stories(400)])
    for name, size in (("one", 10**9), ("many", 3000)):
        prepare(source, tmp_path / name, tokenizer_path, shard_tokens=size, workers=1, block=3000)
    one = read_shard(*open_shards(tmp_path / "one", "train"))
    many = [read_shard(path) for path in open_shards(tmp_path / "many", "train")]
    assert len(many) > 5 and all(3000 <= len(shard) < 5000 for shard in many[:-1])
    assert np.array_equal(np.concatenate(many), one)


# Failures, each one sentence


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", None, "does not exist"),
        ("a.txt", b"", "is empty"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "y"\n', "a.jsonl, line 2: not a JSON object with a string"),
        ("a.jsonl", b'{"text": "x"}\n' * 400 + b'["y"]\n' + b'{"text": "x"}\n' * 9, "a.jsonl, line 401: not"),
        ("a.jsonl", b'{"text": 1}\n', "line 1: not"),
        ("a.jsonl", b'\n\n{"title": "x"}\n', "line 3: not"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "line 1: not"),
        ("a.jsonl", b'{"text": "\xff"}\n', "line 1: not"),
        ("a.txt", b"abc \xff\xfe", "byte 4 is not UTF-8"),
        ("a.parquet", b"abc", "reading needs pyarrow and a column"),
    ],
)
def test_bad_sources_are_one_clear_sentence(
    tmp_path, tokenizer_path, capsys, monkeypatch, name, content, message
):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    arguments = [str(tmp_path / name), "--out", str(tmp_path / "out"), "--tokenizer", str(tokenizer_path)]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and name in error and error.count("\n") == 1
    assert not list((tmp_path / "out").glob("*.bin")) if (tmp_path / "out").exists() else True


def test_a_parquet_file_without_text_is_one_clear_sentence(tmp_path, tokenizer_path, capsys):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for column in ({"body": ["x"]}, {"text": [1, 2]}):
        pq.write_table(pa.table(column), tmp_path / "a.parquet")
        arguments = [
            str(tmp_path / "a.parquet"),
            "--out",
            str(tmp_path / "out"),
            "--tokenizer",
            str(tokenizer_path),
        ]
        assert main(arguments) == 2
        assert "a column of strings named text" in capsys.readouterr().err


def test_what_lies_in_the_folder_already_is_never_mixed_up(tmp_path, tokenizer_path, capsys):
    source = write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    arguments = ["--out", str(tmp_path / "out"), "--tokenizer", str(tokenizer_path)]
    assert main([str(source), *arguments]) == 0
    before = files_in(tmp_path / "out")
    assert main([str(source), *arguments]) == 0  # done already: nothing happens
    other = tmp_path / "other.json"
    BPETokenizer.train((story.text for story in stories(300)), 300).save(other)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "train_000000.bin").write_bytes(b"precious")
    capsys.readouterr()
    for wrong, message in [
        (
            [str(write_jsonl(tmp_path / "b.jsonl", ["three"])), *arguments],
            "holds shards whose source is a.jsonl",
        ),
        ([str(source), "--out", str(tmp_path / "out"), "--tokenizer", str(other)], "holds shards whose"),
        ([str(source), *arguments, "--val", "0.5"], "holds shards whose val is 0.01, not 0.5"),
        ([str(source), *arguments, "--val", "0.9", "--test", "0.2"], "fractions of all documents"),
        (
            [str(source), "--out", str(foreign), "--tokenizer", str(tokenizer_path)],
            "that prepare has not written",
        ),
    ]:
        assert main(wrong) == 2
        assert message in capsys.readouterr().err
    assert files_in(tmp_path / "out") == before
    assert files_in(foreign) == {"train_000000.bin": b"precious"}


def test_what_a_run_left_before_its_first_journal_is_cleared(tmp_path, tokenizer_path):
    source, out = write_jsonl(tmp_path / "a.jsonl", ["one", "two"]), tmp_path / "out"
    prepare(source, out, tokenizer_path, workers=1)
    finished = files_in(out)
    journal = {"made_of": {"source": "another"}, "place": [0, 0], "read": 0, "splits": {}}
    (out / "manifest.json").unlink()
    (out / "journal.json").write_text(json.dumps(journal))
    (out / "val_000007.bin.part").write_bytes(b"left over")
    prepare(source, out, tokenizer_path, workers=1)
    assert files_in(out) == finished


def test_help_teaches(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0 and "--paragraphs --val 0.1" in capsys.readouterr().out


# Interruptions


class Stop(BaseException):
    pass


def test_a_resumed_run_encodes_only_what_is_left(tmp_path, tokenizer_path, monkeypatch):
    source = write_jsonl(tmp_path / "a.jsonl", [story.text for story in stories(200)])
    options = dict(workers=1, block=2000, journal_seconds=-1)
    prepare(source, tmp_path / "straight", tokenizer_path, **options)
    encode, calls = nanogpt.prepare.encode_pieces, []

    def stop_after_ten(*arguments):
        if len(calls) == 10:
            raise Stop
        calls.append(1)
        return encode(*arguments)

    monkeypatch.setattr(nanogpt.prepare, "encode_pieces", stop_after_ten)
    with pytest.raises(Stop):
        prepare(source, tmp_path / "out", tokenizer_path, **options)
    journal = json.loads((tmp_path / "out/journal.json").read_text())
    assert journal["place"][1] == journal["read"] > 10_000
    left = [1 for _ in read_blocks([source], journal["place"], 2000, False, 0.01, 0.01)]
    calls.clear()
    monkeypatch.setattr(nanogpt.prepare, "encode_pieces", lambda *a: calls.append(1) or encode(*a))
    prepare(source, tmp_path / "out", tokenizer_path, **options)
    assert len(calls) == len(left) > 10
    assert files_in(tmp_path / "out") == files_in(tmp_path / "straight")


def test_a_run_stopped_before_its_manifest_is_finished_by_the_next(tmp_path, tokenizer_path, monkeypatch):
    source = write_jsonl(tmp_path / "a.jsonl", [story.text for story in stories(200)])
    options = dict(val=0.1, test=0.1, workers=1, shard_tokens=3000)
    prepare(source, tmp_path / "straight", tokenizer_path, **options)
    replace, shards = os.replace, []

    def stop_after_two_shards(old, new):
        if str(new).endswith(".bin"):
            if len(shards) == 2:
                raise Stop
            shards.append(new)
        replace(old, new)

    monkeypatch.setattr(os, "replace", stop_after_two_shards)
    with pytest.raises(Stop):
        prepare(source, tmp_path / "out", tokenizer_path, **options)
    assert len(list((tmp_path / "out").glob("*.bin"))) == 2
    monkeypatch.setattr(os, "replace", replace)
    prepare(source, tmp_path / "out", tokenizer_path, **options)
    assert files_in(tmp_path / "out") == files_in(tmp_path / "straight")


@pytest.mark.parametrize("seed", range(6))
def test_a_run_stopped_anywhere_goes_on_with_the_same_bytes(tmp_path, tokenizer_path, monkeypatch, seed):
    """Stopped at a random line of prepare, again and again, until it gets through."""
    source = write_jsonl(tmp_path / "a.jsonl", [story.text for story in stories(300)])
    options = dict(val=0.1, test=0.1, shard_tokens=4000, workers=1, block=5000, journal_seconds=-1)
    prepare(source, tmp_path / "straight", tokenizer_path, **options)
    rng, stops = random.Random(seed), 0
    for allowed in (300, 500, 900, 1500, 10**9):
        left = rng.randrange(allowed // 2, allowed)

        def trace(frame, event, argument):
            nonlocal left
            if frame.f_globals.get("__name__") in (
                "nanogpt.prepare",
                "nanogpt.sources",
                "nanogpt.data",
                "nanogpt.files",
            ):
                left -= 1
                if left == 0:
                    raise Stop
                return trace
            return None

        try:
            sys.settrace(trace)
            prepare(source, tmp_path / "stopped", tokenizer_path, **options)
        except Stop:
            stops += 1
        finally:
            sys.settrace(None)
    assert stops
    assert {n: b for n, b in files_in(tmp_path / "stopped").items() if not n.endswith(".tmp")} == files_in(
        tmp_path / "straight"
    )


SCRIPT = """
import sys
from nanogpt.prepare import prepare
if __name__ == "__main__":
    source, out, tokenizer = sys.argv[1:]
    prepare(source, out, tokenizer, 0.1, 0.1, workers=2, shard_tokens=300_000, block=60_000, journal_seconds=0.05)
"""


def start(tmp_path, source, out, tokenizer_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(source), str(out), str(tokenizer_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
    )


def heed_ctrl_c() -> None:
    """A shell's background jobs ignore Ctrl-C, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def tokens_so_far(out: Path) -> int:
    size = 0
    for path in out.glob("*.bin*"):
        with contextlib.suppress(FileNotFoundError):  # a finished .part was given its name meanwhile
            size += path.stat().st_size
    return size // 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_kill_9_at_a_random_point_changes_nothing(tmp_path, tokenizer_path, kind):
    psutil = pytest.importorskip("psutil")
    texts = [story.text for story in stories(20_000)] * 4  # 30 MB: long enough to be killed in
    source = tmp_path / f"source.{kind}"
    if kind == "jsonl":
        write_jsonl(source, texts)
    else:
        source.write_text("\n".join(texts), newline="\n")
    process = start(tmp_path, source, tmp_path / "straight", tokenizer_path)
    assert process.wait() == 0
    total, killed = tokens_so_far(tmp_path / "straight"), []
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    for goal in sorted(rng.random() * 0.9 for _ in range(3)):
        process = start(tmp_path, source, tmp_path / "out", tokenizer_path)
        while process.poll() is None and tokens_so_far(tmp_path / "out") < goal * total:
            time.sleep(0.001)
        workers = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.kill()
        process.wait()
        killed.append(process.returncode)
        _, alive = psutil.wait_procs(workers, timeout=20)
        assert not alive, "workers outlive their parent"
        assert not (tmp_path / "out/manifest.json").exists() or process.returncode == 0
    assert -signal.SIGKILL in killed or os.name == "nt", seed
    assert start(tmp_path, source, tmp_path / "out", tokenizer_path).wait() == 0
    assert {n: b for n, b in files_in(tmp_path / "out").items() if not n.endswith(".tmp")} == files_in(
        tmp_path / "straight"
    ), seed


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit on a file's size")
def test_a_full_disk_leaves_nothing_half_written(tmp_path, tokenizer_path):
    import resource

    source = tmp_path / "source.txt"
    source.write_text("\n".join(story.text for story in stories(8000)))
    command = [
        sys.executable,
        "-m",
        "nanogpt",
        "prepare",
        str(source),
        "--tokenizer",
        str(tokenizer_path),
        "--out",
    ]

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    full = subprocess.run(
        [*command, str(tmp_path / "full")], cwd=ROOT, preexec_fn=limit, capture_output=True, text=True
    )
    assert full.returncode == 1 and full.stderr.count("\n") == 1 and "no room left" in full.stderr, (
        full.stderr
    )
    assert not list((tmp_path / "full").glob("*.bin"))
    for name in ("full", "straight"):
        subprocess.run([*command, str(tmp_path / name)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    assert {n: b for n, b in files_in(tmp_path / "full").items() if not n.endswith(".tmp")} == files_in(
        tmp_path / "straight"
    )


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for another process")
def test_ctrl_c_says_how_to_go_on(tmp_path, tokenizer_path):
    source = tmp_path / "source.txt"
    text = "\n".join(story.text for story in stories(20_000))
    source.write_text(text * 12)  # 90 MB: seconds of work, so that Ctrl-C surely falls into it
    command = [sys.executable, "-m", "nanogpt", "prepare", str(source), "--tokenizer", str(tokenizer_path)]
    command += ["--out", str(tmp_path / "out"), "--workers", "2"]
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed_ctrl_c
    )
    while process.poll() is None and tokens_so_far(tmp_path / "out") < 10_000:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    assert process.wait() == 130
    assert process.stderr.read() == (
        f"prepare: stopped; the same command goes on from here, or delete {tmp_path / 'out'} to begin again\n"
    )
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "txt", "parquet"])
def test_memory_does_not_grow_with_the_source(tmp_path, tokenizer_path, kind):
    psutil = pytest.importorskip("psutil")
    texts = [story.text for story in stories(5000)]
    peaks = []
    for times in (4, 64):
        source = tmp_path / f"{times}.{kind}"
        if kind == "jsonl":
            write_jsonl(source, texts * times)
        elif kind == "txt":
            source.write_text("\n".join(texts * times), newline="\n")
        else:
            pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
            pq.write_table(
                pa.table({"text": texts * times}), source, row_group_size=5000
            )  # what is read at once
        process = start(tmp_path, source, tmp_path / f"out{times}", tokenizer_path)
        peak = 0
        while process.poll() is None:
            try:
                family = [process_ := psutil.Process(process.pid), *process_.children(recursive=True)]
                peak = max(peak, sum(p.memory_info().rss for p in family))
            except psutil.Error:
                pass
            time.sleep(0.02)
        assert process.returncode == 0
        peaks.append(peak / 1e6)
    # 5000 stories are 1.9 MB: sixteen times as much text, 110 MB more, must not show.
    assert peaks[1] < peaks[0] + 50, peaks
