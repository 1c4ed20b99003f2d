"""How fast `prepare` tokenizes, beside tiktoken's own rate in one thread, and how much memory it takes.

python bench/prepare.py [MEGABYTES]             speed (default: 128 MB)
python bench/prepare.py memory [MEGABYTES]      peak memory, for one text of that size (default: 1,000 MB)

The ratio that counts is prepare / (cores × tiktoken's single thread), both on the same documents and in turns, so that
a change in the machine's load meets both. With the same Rust code on each core, 1 would be the limit. It is exceeded,
since prepare writes GPT-2's pattern so that Rust matches it sooner, and makes no Python list of the ids. On a busy
machine wall time says little; the ratio of CPU seconds, printed beside it, is what an idle one would show.
"""

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import tiktoken

from nanogpt.labs.corpora.prepare import cores, prepare

ROOT = Path(__file__).parents[1]
ROUNDS = 3
if (ROOT.parent / "shared/tiktoken_cache").is_dir():
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(ROOT.parent / "shared/tiktoken_cache"))


def find_text() -> str:
    for path in (
        ROOT / "data/downloads/tinyshakespeare.txt",
        ROOT.parent / "shared/data/tinyshakespeare.txt",
    ):
        if path.exists():
            return path.read_text(encoding="utf-8")
    from nanogpt.labs.corpora.stories import stories

    return "".join(story.text + "\n\n" for story in stories(5000))


def write_jsonl(path: Path, megabytes: float) -> list[str]:
    """Documents of about 3 kB, as long as web pages are in FineWeb-Edu; no two are equal."""
    text, documents, size = find_text(), [], 0
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        while size < megabytes * 1e6:
            at = len(documents) * 2971 % (len(text) - 3000)
            documents.append(f"{len(documents)} {text[at : at + 3000]}")
            size += len(documents[-1])
            file.write(json.dumps({"text": documents[-1]}) + "\n")
    return documents


def cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def timed(work) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), cpu_seconds()
    work()
    return time.perf_counter() - wall, cpu_seconds() - cpu


def memory(megabytes: float) -> None:
    """Peak of the resident memory of `python -m nanogpt prepare` and its workers together, 20 times a second."""
    import psutil

    text = find_text()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "text.txt"
        with open(source, "w", encoding="utf-8", newline="\n") as file:
            while file.tell() < megabytes * 1e6:
                file.write(text)
        command = [
            sys.executable,
            "-m",
            "nanogpt",
            "prepare",
            str(source),
            "--out",
            str(Path(folder) / "out"),
        ]
        start, peak = time.perf_counter(), 0
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                parent = psutil.Process(process.pid)
                peak = max(peak, sum(p.memory_info().rss for p in [parent, *parent.children(recursive=True)]))
            time.sleep(0.05)
        size, seconds = source.stat().st_size / 1e6, time.perf_counter() - start
    print(f"{size:,.0f} MB in one document, {cores()} workers: {seconds:.0f} s, {size / seconds:.1f} MB/s")
    print(f"peak memory of all processes {peak / 1e6:,.0f} MB   (asked: at most 1,000 MB for 1,000 MB)")


def main() -> None:
    if sys.argv[1:2] == ["memory"]:
        return memory(float((sys.argv[2:] or ["1000"])[0]))
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 128
    encoding, n = tiktoken.get_encoding("gpt2"), cores()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "text.jsonl"
        documents = write_jsonl(source, megabytes)
        size = sum(len(d.encode()) for d in documents) / 1e6

        def alone():
            for document in documents:
                encoding.encode_ordinary(document)

        rows = []
        for i in range(ROUNDS):
            rows.append((timed(alone), timed(lambda i=i: prepare(source, Path(folder) / str(i), workers=n))))
    print(f"{size:.0f} MB in {len(documents):,} documents, {n} cores, load before {os.getloadavg()[0]:.1f}")
    print("round  tiktoken, 1 thread   prepare    ratio to cores × tiktoken   by CPU seconds")
    ratios = []
    for i, ((wall, cpu), (wall_all, cpu_all)) in enumerate(rows):
        ratios.append((wall / wall_all / n, cpu / cpu_all))
        print(
            f"{i + 1:5}  {size / wall:9.1f} MB/s {size / wall_all:14.1f} MB/s {ratios[-1][0]:14.2f} {ratios[-1][1]:22.2f}"
        )
    print(f"median {median(r for r, _ in ratios):41.2f} {median(r for _, r in ratios):22.2f}   (asked: 0.90)")


if __name__ == "__main__":
    main()
