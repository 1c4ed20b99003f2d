"""`course slides FOLDER`: a deck for each part, which nbconvert makes from the executed notebooks (reveal.js, in a browser).

To the right are the chapters. Downwards are a chapter's predictions, whose outcome opens, and its figures.
"""

import html
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

from course.files import read_notebook, write_atomically
from course.notebooks.address import undressed
from course.paths import CourseError, chapters, notebook_path, relative
from course.site.chapters import PARTS, part
from course.site.reading import cells_to_read

NUMBERS = "Numbers are those of the executed notebooks. Times and rates differ on another machine: run the cell before you show it."


def write_slides(folder: Path, wanted: str | None = None) -> list[str]:
    """Write the decks of all parts, or of the one with this numeral; a line for each."""
    from nbconvert import SlidesExporter  # takes a second

    there = {name.split()[0]: name for name in PARTS if part(name, chapters())}
    if wanted and wanted.upper() not in there:
        raise CourseError(f"--part {wanted!r} is none of {', '.join(there)}")
    exporter = SlidesExporter(reveal_scroll=True)
    written = []
    for numeral in [wanted.upper()] if wanted else there:
        slides = deck(there[numeral])
        page, _ = exporter.from_notebook_node(slides, {"metadata": {"name": there[numeral]}})
        path = folder / f"{numeral}.html"
        write_atomically(path, page.encode())
        written.append(f"{path}: {len(slides.cells)} slides")
    return written


def deck(name: str) -> nbformat.NotebookNode:
    """A part's slides as one notebook: its contents, then its chapters."""
    inside = [chapter_slides(number) for number in part(name, chapters())]
    titles = [first.source.split("\n")[0].removeprefix("# ") for first, *_ in inside]
    listed = "\n".join(f"- {title}" for title in titles)
    about = slide(f"# {name}\n\nAfterwards you can {PARTS[name][1]}.\n\n{listed}\n\n{NUMBERS}")
    return nbformat.v4.new_notebook(cells=[about, *itertools.chain(*inside)])


def chapter_slides(number: str) -> list[nbformat.NotebookNode]:
    """A chapter's beginning, then each prediction and each figure below its section's heading."""
    path = notebook_path(number)
    first, *cells = cells_to_read(undressed(read_notebook(path)).cells, relative(path))
    slides, section = [slide(first.source)], f"#{first.source.splitlines()[0]}"
    for cell in cells:
        if cell.cell_type == "markdown":
            section = next(reversed(re.findall(r"^## .+$", cell.source, re.MULTILINE)), section)
        asked = [cell.source] if 'class="predict"' in cell.source else []
        slides += [slide(f"{section}\n\n{shown}", "subslide") for shown in [*asked, *figures(cell)]]
    return slides


def figures(cell: nbformat.NotebookNode) -> Iterator[str]:
    """The figures that a cell shows, as HTML; nbconvert has no place for an alternative text."""
    for output in cell.get("outputs", ()):
        if png := output.get("data", {}).get("image/png"):
            alt = html.escape(output.metadata["image/png"]["alt"])
            yield f'<img alt="{alt}" src="data:image/png;base64,{png.strip()}">'


def slide(text: str, kind: str = "slide") -> nbformat.NotebookNode:
    return nbformat.v4.new_markdown_cell(text, metadata={"slideshow": {"slide_type": kind}})
