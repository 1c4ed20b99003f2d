"""The command `prepare` as a program: what ends it from outside leaves a folder that it goes on with."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from texts import files_in, story_tokenizer, tokens_so_far

from nanogpt.labs.corpora.stories import stories

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory) -> Path:
    return story_tokenizer(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


def heed_ctrl_c() -> None:
    """A shell's background jobs ignore Ctrl-C, and their children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def command(tmp_path, tokenizer_path) -> list[str]:
    """`prepare` of source.txt with two workers, which still wants its --out."""
    words = ["-m", "nanogpt", "prepare", tmp_path / "source.txt", "--tokenizer", tokenizer_path]
    return [sys.executable, *map(str, words), "--workers", "2", "--out"]


def made(command: list[str], out: Path) -> dict[str, bytes]:
    """What a run that nobody disturbs ends with."""
    subprocess.run([*command, out], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return {name: data for name, data in files_in(out).items() if not name.endswith(".tmp")}


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit on a file's size")
def test_a_full_disk_leaves_nothing_half_written(tmp_path, command):
    import resource

    (tmp_path / "source.txt").write_text("\n".join(story.text for story in stories(8000)))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    out = tmp_path / "full"
    full = subprocess.run([*command, out], cwd=ROOT, preexec_fn=limit, capture_output=True, text=True)
    assert full.returncode == 2 and "no room left" in full.stderr, full.stderr
    assert full.stderr.count("\n") == 1 and not list(out.glob("*.bin"))
    assert made(command, out) == made(command, tmp_path / "straight")


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for another process")
def test_ctrl_c_says_how_to_go_on(tmp_path, command):
    text = "\n".join(story.text for story in stories(5000))
    (tmp_path / "source.txt").write_text(
        text * 8
    )  # 15 MB: seconds of work, so that Ctrl-C surely falls into it
    out, how = tmp_path / "out", dict(stderr=subprocess.PIPE, text=True, start_new_session=True)
    process = subprocess.Popen([*command, out], cwd=ROOT, preexec_fn=heed_ctrl_c, **how)
    while process.poll() is None and tokens_so_far(out) < 10_000:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    assert process.wait() == 130
    says = f"prepare: stopped; the same command goes on from here, and what is in {out} is kept"
    assert process.stderr.read().strip() == says
    made(command, out)
