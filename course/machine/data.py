"""`course data NAME`: the real text that some chapters can use, downloaded once and verified by its SHA-256."""

import hashlib
import sys
from pathlib import Path

from course.paths import ROOT, CourseError, relative

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


def data(name: str) -> str:
    """Bring a file to data/downloads, unless it is there, and return a line that says so."""
    if name not in FILES:
        raise CourseError(f"there is {' and '.join(FILES)}, and no {name}")
    file, url, sha256 = FILES[name]
    path = FOLDER / file
    if not path.exists() or file_sha256(path) != sha256:
        from torch.hub import download_url_to_file

        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            download_url_to_file(url, str(path), hash_prefix=sha256, progress=sys.stderr.isatty())
        except Exception as error:  # no network, another answer, other bytes: a proxy's, say
            raise CourseError(
                f"{url} cannot be downloaded: {error}. The course does not need it: without a network every chapter runs "
                "on the embedded stories, which chapter 03 makes (data/built/stories)."
            ) from None
    return f"{relative(path)}: {path.stat().st_size:,} bytes, SHA-256 verified"


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
