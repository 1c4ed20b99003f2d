"""`course data NAME`: the real text that some chapters can use, downloaded once and verified.

A download goes to NAME.part, is continued there after an interruption, and gets its name only when its size and
SHA-256 are right.
"""

import contextlib
import errno
import hashlib
import http.client
import os
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from course.paths import ROOT, CourseError, relative
from course.runner import Parser, outcome

FOLDER = ROOT / "data" / "downloads"
RAW = "https://raw.githubusercontent.com"
FILES = {  # name: file, address, SHA-256
    "tinyshakespeare": (
        "tinyshakespeare.txt",
        f"{RAW}/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
    ),
    "hellaswag": (
        "hellaswag_val.jsonl",
        f"{RAW}/rowanz/hellaswag/master/data/hellaswag_val.jsonl",
        "0aa3b88843990f3f10a97b9575c94d7b71fb2205240ba04ae4884d9e9c992588",
    ),
}
FINEWEB, SAMPLE, SAMPLE_TOKENS = "HuggingFaceFW/fineweb-edu", "sample/10BT", 10_000_000_000
OFFLINE = (
    "The course does not need it: without a network every chapter runs on the embedded stories, "
    "which chapter 03 makes (data/built/stories)."
)
HELP = f"""Downloads real text into data/downloads.

  course data tinyshakespeare             1.1 MB, one text (Karpathy's char-rnn)
  course data hellaswag                   12 MB, 10,042 questions (Zellers et al. 2019)
  course data fineweb-edu --tokens 500M   web pages (Penedo et al. 2024): of the 10-billion-token sample's parquet
                                          files, each of about 2 GB, as many as hold these tokens

An interrupted download goes on where it stopped. `python -m nanogpt prepare` then makes shards of it.
{OFFLINE}"""


def download(url: str, path: Path, sha256: str, tries: int = 5, pause: float = 1.0) -> str:
    """Bring `url` to `path` and return a line that says so.

    A connection that breaks is made again after 1, 2, 4 ... pauses (seconds) and goes on where it broke, up to `tries`
    times. CourseError, in a sentence or two, if it cannot be done.
    """
    if path.exists() and file_sha256(path) == sha256:
        return f"{relative(path)} is here already, {path.stat().st_size:,} bytes, SHA-256 verified"
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    for i in range(tries):
        if i:
            time.sleep(pause * 2 ** (i - 1))
        try:
            receive(url, part)
            break
        except (OSError, http.client.HTTPException, ValueError) as error:
            if getattr(error, "errno", None) == errno.ENOSPC:
                raise  # which is said as it is; .part stays
            problem = str(getattr(error, "reason", error)) or type(error).__name__
            code = getattr(error, "code", 500)
            if code < 500 and code not in (408, 429):  # it is not there, however often one asks
                raise unavailable(url, f"{code} {problem}", part) from None
            if isinstance(getattr(error, "reason", None), socket.gaierror):
                raise unavailable(url, f"{problem} (is there a network?)", part) from None
    else:
        raise unavailable(url, problem, part)
    if (found := file_sha256(part)) != sha256:
        part.unlink()
        raise CourseError(
            f"{url} gave something else: SHA-256 {found[:16]}..., not {sha256[:16]}...; it was deleted. Try once more; if it "
            f"stays so, a proxy answers in its place, or the file has changed there. {OFFLINE}"
        )
    os.replace(part, path)
    return f"{relative(path)}: {path.stat().st_size:,} bytes, SHA-256 verified"


def unavailable(url: str, problem: str, part: Path) -> CourseError:
    kept = ""
    if size_of(part):
        kept = f"{size_of(part):,} bytes are kept, and the same command goes on from there. "
    return CourseError(f"{url} cannot be downloaded: {problem}. {kept}{OFFLINE}")


def receive(url: str, part: Path) -> None:
    """Append to `part` what it lacks of `url`, over one connection; ConnectionError if that breaks before the end."""
    start = size_of(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing lies beyond: the hash says whether .part is the file
            return
        raise
    with answer:
        if answer.status != 206:  # the server gives the whole file only
            start = 0
        total = start + int(answer.headers.get("Content-Length", "0"))
        bar = tqdm(total=total, initial=start, unit="B", unit_scale=True, desc=part.stem, disable=None)
        with open(part, "ab" if start else "wb") as file, bar:
            while data := answer.read(1 << 16):
                file.write(data)
                bar.update(len(data))
    if size_of(part) < total:
        raise ConnectionError(f"the connection broke after {size_of(part):,} of {total:,} bytes")


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fineweb_edu(tokens: float, folder: Path) -> str:
    """As many files of FineWeb-Edu's 10-billion-token sample as hold `tokens`, through huggingface_hub.

    It resumes and retries by itself. Hashes come from the repository's own listing: one for each file.
    """
    if not 0 < tokens <= SAMPLE_TOKENS:
        raise CourseError(f"--tokens {tokens:,.0f}: FineWeb-Edu's sample has 1 to {SAMPLE_TOKENS:,}")
    from huggingface_hub import HfApi, constants, hf_hub_download

    try:
        with contextlib.suppress(urllib.error.HTTPError):  # any answer will do; the hub would try for long
            urllib.request.urlopen(constants.ENDPOINT, timeout=10).close()
        listing = HfApi().list_repo_tree(FINEWEB, SAMPLE, repo_type="dataset")
        listing = sorted((f for f in listing if f.path.endswith(".parquet")), key=lambda file: file.path)
        total, held, files = sum(file.size for file in listing), 0.0, []
        for file in listing:
            if held < tokens:
                files.append(file)
                held += file.size / total * SAMPLE_TOKENS
        folder.mkdir(parents=True, exist_ok=True)
        size, free = sum(f.size - size_of(folder / f.path) for f in files), shutil.disk_usage(folder).free
        if size > free:
            room = f"{free / 1e9:.1f} GB free and {size / 1e9:.1f} GB are to come; make room"
            raise CourseError(f"{relative(folder)} has {room}")
        for i, file in enumerate(files, 1):
            print(f"file {i} of {len(files)}: {file.path}, {file.size / 1e9:.2f} GB", flush=True)
            path = Path(hf_hub_download(FINEWEB, file.path, repo_type="dataset", local_dir=folder))
            if file_sha256(path) != file.lfs.sha256:
                path.unlink()
                raise CourseError(
                    f"{relative(path)} was damaged on the way and deleted; give the command again"
                )
    except CourseError:
        raise
    except Exception as error:  # huggingface_hub's own, httpx's and the system's have no class in common
        problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CourseError(
            f"{FINEWEB} cannot be downloaded: {problem}. What has come is kept; the same command goes on from there. {OFFLINE}"
        ) from None
    return (
        f"{relative(folder)}: {len(files)} files with about {held / 1e6:,.0f}M tokens, hashes verified; next:\n"
        f"python -m nanogpt prepare {relative(folder)} --out data/built/fineweb-edu"
    )


def count(text: str) -> float:
    """500M, 2B, 1e9 or 1000000."""
    unit = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}.get(text[-1:].upper())
    return float(text[:-1]) * unit if unit else float(text)


def parser() -> Parser:
    made = Parser("course data", description=HELP, epilog="Example: course data tinyshakespeare")
    made.add_argument("name", metavar="NAME", choices=[*FILES, "fineweb-edu"], help="one of the above")
    made.add_argument("--tokens", type=count, default=500e6, metavar="N", help="fineweb-edu: how many (500M)")
    made.add_argument("--folder", type=Path, default=FOLDER, help="where to (default: data/downloads)")
    return made


def run(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    try:
        if args.name == "fineweb-edu":
            print(fineweb_edu(args.tokens, args.folder / args.name))
        else:
            file, url, sha256 = FILES[args.name]
            print(download(url, args.folder / file, sha256))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("the same command goes on from here") from None
    return 0


def main(argv: list[str] | None = None) -> int:
    """`course data NAME`. Exit code 0, 2 where something is wrong, 130 after Ctrl-C."""
    return outcome("course data", lambda: run(sys.argv[1:] if argv is None else argv))
