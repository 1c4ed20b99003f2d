"""Where things are, and the one error that the command line prints without a traceback."""

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


class CourseError(Exception):
    """Something the reader can mend: what, where, and the remedy, in one or a few plain lines."""

    def _render_traceback_(self):  # IPython prints this in place of a traceback
        return [str(self)]


def relative(path: Path) -> str:
    """The path as a reader of the repository knows it, with forward slashes."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def plainly(error: OSError) -> str:
    """A system error as one line: what, and where."""
    what = error.strerror or str(error) or type(error).__name__
    return f"{what}: {relative(Path(error.filename))}" if isinstance(error.filename, str) else what


def chapters() -> list[str]:
    """The numbers of all chapters, in order."""
    return sorted(path.name[:2] for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def source_chapters() -> list[str]:
    """The numbers of all chapters that have a source, in order."""
    return sorted(path.name[:2] for path in SOURCES.glob("[0-9][0-9]_*.py"))


def two_digits(chapter: str | int) -> str:
    """`"4"` and `4` are chapter `"04"`."""
    text = str(chapter).strip()
    return text.zfill(2) if text.isascii() and text.isdigit() else text


def find(folder: Path, chapter: str, suffix: str) -> Path:
    """The chapter's one file in `folder`."""
    number = two_digits(chapter)
    found = sorted(folder.glob(f"{number}_*{suffix}")) if re.fullmatch(r"\d\d", number) else []
    if len(found) == 1:
        return found[0]
    if found:
        raise CourseError(f"chapter {number} has several files: {', '.join(map(relative, found))}; keep one")
    known = sorted(path.name[:2] for path in folder.glob(f"[0-9][0-9]_*{suffix}"))
    strays = [p.name for p in sorted(folder.glob(f"*{suffix}")) if not re.match(r"\d\d_|yours-", p.name)]
    hint = (
        f"; a name begins with the number, as {number}_{strays[0]} does"
        if strays and number not in known
        else ""
    )
    raise CourseError(
        f"no chapter {chapter!r} in {relative(folder)}/; there are {' '.join(known) or 'none yet'}{hint}"
    )


def notebook_path(chapter: str) -> Path:
    """The chapter's notebook; while `course build` makes a new one, that one, which stands aside."""
    if aside := os.environ.get(ASIDE):
        found = sorted(Path(aside).glob(f"{two_digits(chapter)}_*.ipynb"))
        if found:
            return found[0]
    return find(NOTEBOOKS, chapter, ".ipynb")


def source_path(chapter: str) -> Path:
    return find(SOURCES, chapter, ".py")
