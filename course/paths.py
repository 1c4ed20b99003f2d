"""Where things are, and the one error that the command line prints without a traceback."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
SOURCES = NOTEBOOKS / "src"
PACKAGE = ROOT / "nanogpt"
TESTS = ROOT / "tests"
BUILT = ROOT / "data" / "built"
RUNS = ROOT / "runs"
TIMES = ROOT / "data" / "measurements" / "chapter-times.json"


class CourseError(Exception):
    """Something the reader can mend: what, where, and the remedy, in one or a few plain lines."""

    def _render_traceback_(self):  # IPython prints this in place of a traceback
        return [str(self)]


def relative(path: Path) -> str:
    """The path as a reader of the repository knows it, with forward slashes."""
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()


def chapters() -> list[str]:
    """The numbers of all chapters, in order."""
    return sorted(path.name[:2] for path in NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def source_chapters() -> list[str]:
    """The numbers of all chapters that have a source, in order."""
    return sorted(path.name[:2] for path in SOURCES.glob("[0-9][0-9]_*.py"))


def find(folder: Path, chapter: str, suffix: str) -> Path:
    """The chapter's one file in `folder`."""
    found = sorted(folder.glob(f"{chapter}_*{suffix}")) if chapter.isdigit() and len(chapter) == 2 else []
    if len(found) == 1:
        return found[0]
    if found:
        raise CourseError(f"chapter {chapter} has several files: {', '.join(map(relative, found))}; keep one")
    known = sorted(path.name[:2] for path in folder.glob(f"[0-9][0-9]_*{suffix}"))
    raise CourseError(
        f"no chapter {chapter!r} in {relative(folder)}/; there are {' '.join(known) or 'none yet'}"
    )


def notebook_path(chapter: str) -> Path:
    return find(NOTEBOOKS, chapter, ".ipynb")


def source_path(chapter: str) -> Path:
    return find(SOURCES, chapter, ".py")
