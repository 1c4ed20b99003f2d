"""Where things are, and the one error that the command line prints without a traceback."""

import errno
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
SOURCES = NOTEBOOKS / "src"
PACKAGE = ROOT / "nanogpt"
TESTS = ROOT / "tests"
BUILT = ROOT / "data" / "built"
RUNS = ROOT / "runs"
TIMES = ROOT / "data" / "measurements" / "chapter-times.json"
ASIDE = "COURSE_NOTEBOOK_ASIDE"  # the folder in which `course build` makes a notebook
# Set in a kernel that `course run` or `course build` has started: no page is open.
EXECUTED = "COURSE_EXECUTED"


class CourseError(Exception):
    """Something the reader can correct: what, where, and the remedy, in one or a few plain lines."""

    def _render_traceback_(self):  # IPython prints this in place of a traceback
        return [str(self)]


def relative(path: Path) -> str:
    """The path as a reader of the repository knows it, with forward slashes."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def plainly(error: OSError) -> str:
    """A system error as one line: what, and where."""
    what = error.strerror or str(error) or type(error).__name__
    if error.errno == errno.ENOSPC:
        what = f"the disk is full ({what}); free some of it and do the same again"
    return f"{what}: {relative(Path(error.filename))}" if isinstance(error.filename, str) else what


def number_of(path: Path) -> str:
    """The chapter that a file belongs to: 04_attention.ipynb to 04, 17b_checkpoints.py to 17b; "" if to none."""
    found = re.match(r"(\d\d[a-z]?)_", path.name)
    return found[1] if found else ""


def numbered(folder: Path, suffix: str) -> list[Path]:
    """The files of all chapters in a folder, in the order of the chapters."""
    return sorted(filter(number_of, folder.glob(f"*{suffix}")), key=number_of)


def chapters() -> list[str]:
    """The numbers of all chapters, in order. A letter, as in 17b, is a chapter's next sitting."""
    return [number_of(path) for path in numbered(NOTEBOOKS, ".ipynb")]


def source_chapters() -> list[str]:
    """The numbers of all chapters that have a source, in order."""
    return [number_of(path) for path in numbered(SOURCES, ".py")]


def two_digits(chapter: str | int) -> str:
    """`"4"` and `4` are chapter `"04"`, `"7b"` is `"07b"`."""
    text = str(chapter).strip()
    return f"0{text}" if re.fullmatch(r"[0-9][a-z]?", text) else text


def find(folder: Path, chapter: str, suffix: str) -> Path:
    """The chapter's one file in `folder`."""
    number, there = two_digits(chapter), numbered(folder, suffix)
    found = [path for path in there if number_of(path) == number]
    if len(found) == 1:
        return found[0]
    if found:
        raise CourseError(f"chapter {number} has several files: {', '.join(map(relative, found))}; keep one")
    known = " ".join(sorted({number_of(path) for path in there})) or "none yet"
    raise CourseError(f"no chapter {chapter!r} in {relative(folder)}/; there are {known}")


def notebook_path(chapter: str) -> Path:
    """The chapter's notebook; while `course build` makes a new one, that one, which stands aside."""
    aside = os.environ.get(ASIDE)
    if aside and (made := list(Path(aside).glob(f"{two_digits(chapter)}_*.ipynb"))):
        return made[0]
    return find(NOTEBOOKS, chapter, ".ipynb")


def source_path(chapter: str) -> Path:
    return find(SOURCES, chapter, ".py")


def module_path(name: str, package: Path = PACKAGE) -> Path:
    """The file of a module of the package: `model` is nanogpt/model.py."""
    return package.joinpath(*name.split(".")).with_suffix(".py")


def modules(package: Path = PACKAGE) -> list[str]:
    """The names of all modules of a package's folder, `__init__` and its like aside."""
    files = [path for path in package.rglob("*.py") if not path.stem.startswith("__")]
    return sorted(".".join(path.relative_to(package).with_suffix("").parts) for path in files)


def module_file(name: str) -> str:
    """A module's file as messages name it: `model` is `nanogpt/model.py`."""
    return relative(module_path(name))
