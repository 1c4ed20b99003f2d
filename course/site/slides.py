"""`course slides FOLDER`: a deck for each part, which nbconvert makes from the executed notebooks (reveal.js, in a browser).

To the right are the chapters. Downwards are a chapter's predictions, whose outcome opens, and its figures.
"""

import html
import re
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter

from course.files import read_notebook, write_atomically
from course.notebooks.address import undressed
from course.paths import chapters, notebook_path
from course.site.chapters import PARTS, part
from course.site.reading import cells_to_read

NUMBERS = "Numbers are those of the executed notebooks. Times and rates differ on another machine: run the cell before you show it."


def write_slides(folder: Path) -> list[str]:
    exporter, written = SlidesExporter(reveal_scroll=True), []
    for name in PARTS:
        slides, path = deck(name), folder / f"{name.split()[0]}.html"
        page, _ = exporter.from_notebook_node(slides, {"metadata": {"name": name}})
        write_atomically(path, page.encode())
        written.append(f"{path}: {len(slides.cells)} slides")
    return written


def deck(name: str) -> nbformat.NotebookNode:
    """A part's slides as one notebook: its contents, then its chapters."""
    slides = [each for number in part(name, chapters()) for each in chapter_slides(number)]
    titles = [s.source.split("\n")[0] for s in slides if s.metadata.slideshow.slide_type == "slide"]
    listed = "\n".join(title.replace("# ", "- ", 1) for title in titles)
    about = f"# {name}\n\nAfterwards you can {PARTS[name][1]}.\n\n{listed}\n\n{NUMBERS}"
    return nbformat.v4.new_notebook(cells=[slide(about, "slide"), *slides])


def chapter_slides(number: str) -> list[nbformat.NotebookNode]:
    """A chapter's beginning, then each prediction and each figure below its section's heading."""
    first, *cells = cells_to_read(undressed(read_notebook(notebook_path(number))).cells)
    slides, section = [slide(first.source, "slide")], f"#{first.source.splitlines()[0]}"
    for cell in cells:
        if cell.cell_type == "markdown":
            section = next(reversed(re.findall(r"^## .+$", cell.source, re.MULTILINE)), section)
        asked = [cell.source] if 'class="predict"' in cell.source else []
        slides += [slide(f"{section}\n\n{shown}", "subslide") for shown in [*asked, *figures(cell)]]
    return slides


def figures(cell: nbformat.NotebookNode) -> list[str]:
    """The figures that a cell shows, as HTML; nbconvert has no place for an alternative text."""
    shown = [output for output in cell.get("outputs", ()) if "image/png" in output.get("data", ())]
    return [
        f'<img alt="{html.escape(output.metadata["image/png"]["alt"])}"'
        f' src="data:image/png;base64,{output.data["image/png"].strip()}">'
        for output in shown
    ]


def slide(text: str, kind: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_markdown_cell(text, metadata={"slideshow": {"slide_type": kind}})
