"""The command `prepare` as a program: what ends it from outside leaves a folder that it goes on with."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from texts import files_in

from nanogpt.labs.corpora.stories import stories
from nanogpt.tokenizer import BPETokenizer

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    BPETokenizer.train((story.text for story in stories(300)), 400).save(path)
    return path


def heed_ctrl_c() -> None:
    """A shell's background jobs ignore Ctrl-C, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def tokens_so_far(out: Path) -> int:
    size = 0
    for folder, _, names in os.walk(out):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a finished chunk was given its name meanwhile
                size += (Path(folder) / name).stat().st_size * (".bin" in name)
    return size // 2


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
    assert full.returncode == 2 and full.stderr.count("\n") == 1 and "no room left" in full.stderr, (
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
    text = "\n".join(story.text for story in stories(5000))
    source.write_text(text * 8)  # 15 MB: seconds of work, so that Ctrl-C surely falls into it
    command = [sys.executable, "-m", "nanogpt", "prepare", str(source), "--tokenizer", str(tokenizer_path)]
    command += ["--out", str(tmp_path / "out"), "--workers", "2"]
    process = subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heed_ctrl_c
    )
    while process.poll() is None and tokens_so_far(tmp_path / "out") < 10_000:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    assert process.wait() == 130
    said = process.stderr.read().strip()
    assert (
        said
        == f"prepare: stopped; the same command goes on from here, and what is in {tmp_path / 'out'} is kept"
    )
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
