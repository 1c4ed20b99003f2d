"""`course data NAME`: the real text that some chapters can use, downloaded once and verified by its SHA-256."""

import hashlib
import sys
from pathlib import Path

from course.paths import ROOT, CourseError, relative
from course.runner import Parser

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

The same command goes on where FineWeb-Edu's was interrupted. `python -m nanogpt prepare` then makes shards of it.
{OFFLINE}"""


def download(url: str, path: Path, sha256: str) -> str:
    """Bring `url` to `path`, unless it is there, and return a line that says so."""
    if not path.exists() or file_sha256(path) != sha256:
        from torch.hub import download_url_to_file

        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            download_url_to_file(url, str(path), hash_prefix=sha256, progress=sys.stderr.isatty())
        except Exception as error:  # no network, another answer, other bytes: a proxy's, say
            raise unavailable(url, error) from None
    return f"{relative(path)}: {path.stat().st_size:,} bytes, SHA-256 verified"


def unavailable(what: str, error: Exception) -> CourseError:
    problem = (str(error).strip() or type(error).__name__).splitlines()[0]
    return CourseError(f"{what} cannot be downloaded: {problem}. {OFFLINE}")


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fineweb_edu(tokens: float, folder: Path) -> str:
    """As many files of FineWeb-Edu's 10-billion-token sample as hold `tokens`, through huggingface_hub.

    It resumes and retries by itself. Hashes come from the repository's own listing: one for each file.
    """
    if not 0 < tokens <= SAMPLE_TOKENS:
        raise CourseError(f"--tokens {tokens:,.0f}: FineWeb-Edu's sample has 1 to {SAMPLE_TOKENS:,}")
    from huggingface_hub import HfApi, hf_hub_download

    try:
        listing = HfApi().list_repo_tree(FINEWEB, SAMPLE, repo_type="dataset")
        listing = sorted((f for f in listing if f.path.endswith(".parquet")), key=lambda file: file.path)
        files, total, held = 0, sum(file.size for file in listing), 0.0
        for file in listing:
            print(f"{file.path}, {file.size / 1e9:.2f} GB", flush=True)
            path = Path(hf_hub_download(FINEWEB, file.path, repo_type="dataset", local_dir=folder))
            if file_sha256(path) != file.lfs.sha256:
                path.unlink()
                raise ValueError(f"{relative(path)} was damaged on the way and deleted")
            files, held = files + 1, held + file.size / total * SAMPLE_TOKENS
            if held >= tokens:
                break
    except Exception as error:  # huggingface_hub's own, httpx's and the system's have no class in common
        raise unavailable(FINEWEB, error) from None
    return (
        f"{relative(folder)}: {files} files with about {held / 1e6:,.0f}M tokens, hashes verified; next:\n"
        f"python -m nanogpt prepare {relative(folder)} --out data/built/fineweb-edu"
    )


def number(text: str) -> float:
    """500M, 2B, 1e9 or 1000000."""
    unit = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}.get(text[-1:].upper())
    return float(text[:-1]) * unit if unit else float(text)


def run(argv: list[str]) -> int:
    parser = Parser("course data", description=HELP, epilog="Example: course data tinyshakespeare")
    parser.add_argument("name", metavar="NAME", choices=[*FILES, "fineweb-edu"], help="one of the above")
    parser.add_argument(
        "--tokens", type=number, default=500e6, metavar="N", help="fineweb-edu: how many (500M)"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to (default: data/downloads)")
    args = parser.parse_args(argv)
    if args.name == "fineweb-edu":
        print(fineweb_edu(args.tokens, args.folder / args.name))
    else:
        file, url, sha256 = FILES[args.name]
        print(download(url, args.folder / file, sha256))
    return 0
