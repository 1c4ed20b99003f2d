"""A chapter's notebook as a student got it: with its outputs, as git has it, or with its blanks."""

from contextlib import suppress
from pathlib import Path

from course.files import notebook_bytes, read_notebook
from course.git import git
from course.notebooks.address import dressed
from course.notebooks.source import cell_lines, notebook_from_source
from course.package.blank import is_blank
from course.package.hand_out import handed_out
from course.paths import NOTEBOOKS, CourseError, number_of, relative, source_path


def as_handed_out(path: Path):
    """The notebook with its blanks."""
    return handed_out(notebook_from_source(source_path(number_of(path))), path.name)


def with_blanks(chapters: list[str]) -> dict[Path, bytes]:
    """The chapters' notebooks with their blanks."""
    paths = [NOTEBOOKS / f"{source_path(chapter).stem}.ipynb" for chapter in chapters]
    return {path: notebook_bytes(as_handed_out(path)) for path in paths}


def released_notebook(path: Path):
    """The newest committed notebook that says what its source says; without git, one without outputs.

    Students never edit the source, so it tells a released notebook from one they committed themselves.
    """
    import nbformat

    wanted, commits = notebook_from_source(source_path(number_of(path))), ""
    with suppress(CourseError):
        commits = git("log", "--format=%H", "--", relative(path))
    for commit in commits.split():
        with suppress(Exception):  # a damaged notebook may have been committed, or none
            text = git("show", f"{commit}:{relative(path)}")
            nb = dressed(nbformat.reads(text, as_version=4), path.stem)  # the address may be a newer one
            if cell_lines(nb) == cell_lines(wanted):
                return nb
    return wanted


def is_own(path: Path) -> bool:
    """Whether a notebook holds more than was handed out: other cells, or what cells printed where none is blank."""
    try:
        nb = read_notebook(path)
        ran = any(cell.get("outputs") for cell in nb.cells) and not is_blank(nb)
        return ran or cell_lines(nb) != cell_lines(as_handed_out(path))
    except CourseError:  # damaged, or a chapter that the course does not have
        return True
