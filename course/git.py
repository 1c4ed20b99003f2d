"""git, as the course asks it."""

import contextlib
import subprocess
from pathlib import Path

from course.paths import NOTEBOOKS, PACKAGE, ROOT, CourseError


def git(*args: str, why: str = "git fails") -> str:
    """What a git command says; CourseError with git's own last line."""
    try:
        command = ["git", *args]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise CourseError("git is not installed") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CourseError(f"{why}: {said}")
    return done.stdout


def is_clone() -> bool:
    """Whether git keeps this folder itself; an unpacked archive may lie within somebody's other repository."""
    with contextlib.suppress(CourseError):
        return Path(git("rev-parse", "--show-toplevel").strip()).resolve() == ROOT
    return False


def uncommitted() -> set[Path]:
    """The files of nanogpt/ and notebooks/ that are not as git has them, deleted ones aside; without git, all of them."""
    folders = [PACKAGE, NOTEBOOKS]
    if not is_clone():
        return {path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts}
    status = ["status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--"]
    entries = git(*status, *map(str, folders)).split("\0")
    return {path for entry in entries if entry and (path := ROOT / entry[3:]).exists()}
