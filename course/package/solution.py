"""What is made of a chapter's blanks (blank.py): `course solution 04 NAME`, `course exercises release --chapter 04 --blank`."""

from pathlib import Path

from course.notebooks.source import notebook_from_source
from course.package.cells import exported_cells, functions
from course.package.growing import first_line
from course.package.hand_out import handed_out
from course.paths import ROOT, CourseError, source_path, two_digits

BLANK = ROOT / "released" / "blank"


def solution(chapter: str, name: str | None) -> str:
    """A function or method of the chapter as it is released, below the number of its cell; without a name, the blanks' names."""
    source = source_path(chapter)
    cells = exported_cells(notebook_from_source(source), f"{source.stem}.ipynb")
    blanks = ", ".join(blank for cell in cells for blank in cell.blanks) or "none"
    if name is None:
        return f"chapter {two_digits(chapter)} leaves to you: {blanks}"
    found = [
        f"# {cell.where}\n" + "\n".join(cell.source.split("\n")[first_line(node) - 1 : node.end_lineno])
        for cell in cells
        for full, node in functions(cell.tree)
        if name in (full, node.name)
    ]
    if not found:
        raise CourseError(
            f"chapter {two_digits(chapter)} exports no function {name!r}; its blanks are {blanks}"
        )
    return "\n\n".join(found)


def release_blank(chapter: str, to: Path | None = None) -> str:
    """Write the chapter's notebook with its blanks empty; say what was written."""
    from course.exercises.release import put

    source = source_path(chapter)
    name = f"{source.stem}.ipynb"
    nb = notebook_from_source(source)
    if not any(cell.blanks for cell in exported_cells(nb, name)):
        raise CourseError(f"{name} has no blanks: no exported cell says `#| blank`")
    return put((to or BLANK) / name, handed_out(nb, name))
