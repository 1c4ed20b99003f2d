"""How files of the repository become pages of the site: chapters with buttons, exercise sets, Markdown with links that work."""

import os
import re
from pathlib import Path

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course.exercises.release import leaked, without_answer
from course.exercises.sets import ExerciseSet, stub
from course.files import read_notebook
from course.notebooks.address import is_published, repository, undressed
from course.notebooks.source import METADATA
from course.paths import ROOT, CourseError, number_of, relative
from course.site.reading import cells_to_read, folded

PROSE = re.compile(
    r"(?P<kept>^ *```[\s\S]*?^ *```|`[^`\n]*`|\$[^$\n]*\$|^#[^\n]*|<a [^<]*</a>)"  # code, mathematics, headings, HTML
    r"|(?P<text>!?\[[^\[\]]*\])\((?P<target>[^)\s]+)\)"
    r"|(?<![\[\w])[Cc]hapter (?P<chapter>\d\d[a-z]?)(?![\w\]])",
    re.MULTILINE,
)
PICTURE = re.compile(
    r'<picture>.*?srcset="([^"]+)".*?<img(?=[^>]*alt="([^"]+)")(?=[^>]*src="([^"]+)").*?</picture>', re.DOTALL
)
TASK = re.compile(r"(?<=\*\*)(\d\d[a-z]?-\d)(?=\*\*)|(?<=^\| )(\d\d[a-z]?-\d)(?= )", re.MULTILINE)
WRITER = """\
<section class="writer" aria-label="The widget" data-beginning="It was a stormy day at the hill. Jack was there with Lucy. Jack came with his two black shells, and Lucy came with her five. Jack liked his two shells, and Lucy loved her five. A lovely owl hid under the bench. Lucy showed Jack her five shells. &quot;You look tired,&quot; said Jack. Lucy counted her five shells, and Jack polished his two. Lucy handed Jack one of her five shells. &quot;Thank you, Lucy,&quot; said Jack. Now she had four, and he had" hidden>
<p>On this page the widget works without a notebook. It can also go on: press Write, and follow the bars from token to token.</p>
</section>
<script src="../_static/writer.js" defer></script>"""
START = """
These are the tasks as they are handed out, to be read; the chapter is [chapter {number}](../notebooks/{chapter}.ipynb). To work on them, in
the course's folder: `course exercises release {number}` writes `released/{name}/{name}.ipynb`, `course lab` opens it, and `course check {number}`
runs the visible checks, offline, and says why one fails.

Hints open one at a time. A cell that says `YOUR CODE HERE` is yours. Grading runs more checks than are shown here."""


def address() -> str | None:
    """The repository's; None while nobody has published it."""
    return url if is_published(url := repository()) else None


def linked(text: str, file: str, name: str, places: dict[str, str]) -> str:
    """The prose of the repository's `file` as the page `name`; places says which file is which page.

    A link to a page leads there, one to another file to its address (without one only its text stays), each "chapter 07"
    becomes a link, and so does the task that a line of a list or table begins with.
    """
    chapters = {number_of(Path(page)): page for page in places.values() if page.startswith("notebooks/")}

    def near(page: str) -> str:
        return os.path.relpath(page, Path(name).parent).replace(os.sep, "/")

    def instead(found: re.Match) -> str:
        if number := found["chapter"]:
            page = chapters.get(number)
            return f"[{found[0]}]({near(page)})" if page and page != name else found[0]
        path, mark, anchor = (found["target"] or "").partition("#")
        if found["kept"] or not path or re.match(r"[a-z]+:", path):
            return found[0]
        there = relative((ROOT / file).parent.joinpath(path).resolve())
        if there in places:
            return f"{found['text']}({near(places[there])}{mark}{anchor})"
        if not (ROOT / there).exists():
            return found[0]  # Sphinx says that it is dead
        return f"{found['text']}({url}/blob/main/{there})" if (url := address()) else found["text"][1:-1]

    return TASK.sub(lambda found: f"[{found[0]}](#task-{found[0]})", PROSE.sub(instead, text))


def page(file: str, name: str, places: dict[str, str]) -> str:
    """A Markdown file as a page. <picture>, which follows the system's colours, becomes a picture for each of the page's."""
    text = (ROOT / file).read_text(encoding="utf-8")
    each = r"\n```{image} \3\n:class: only-light\n:alt: \2\n```\n```{image} \1\n:class: only-dark\n:alt: \2\n```\n"
    return linked(PICTURE.sub(each, text), file, name, places)


def chapter_page(path: Path, places: dict[str, str]) -> NotebookNode:
    """A chapter with buttons below its heading, links, and each picture's alternative text where myst-nb looks.

    Behind chapter 08's widget, of which a page shows a picture, comes a place where the model writes.
    """
    nb = undressed(read_notebook(path))  # the page has buttons of its own
    cells, nb.cells = nb.cells, []
    for cell in cells:
        nb.cells.append(cell)
        if cell.cell_type == "markdown":
            cell.source = linked(cell.source, relative(path), relative(path), places)
        elif cell.source.startswith("figures.playground_widget("):
            nb.cells.append(new_markdown_cell(WRITER, id="writer"))
        pictures = [output.get("metadata", {}).get("image/png") for output in cell.get("outputs", ())]
        if alts := [each["alt"] for each in pictures if each]:
            cell.metadata["mystnb"] = {"image": {"alt": "; ".join(alts)}}
    nb.cells = cells_to_read(nb.cells)
    heading, _, text = nb.cells[0].source.partition("\n")
    nb.cells[0].source = f"{heading}\n\n{buttons(path.name)}\n\n{text}"
    return nb


def buttons(name: str) -> str:
    """Where a chapter can be run and had."""
    links = f'<a href="{name}" download>Download notebook</a>'
    if url := address():
        colab = url.replace("https://github.com", "https://colab.research.google.com/github")
        links = f'<a href="{colab}/blob/main/notebooks/{name}">Open in Colab</a> {links}'
    return f'<p class="buttons">{links}</p>'


def exercise_page(made: ExerciseSet, chapter: str, places: dict[str, str]) -> NotebookNode:
    """An exercise set as it is handed out: no solution, no model answer, no hidden check."""
    file, name = f"exercises/{made.name}/exercise.py", f"exercises/{made.name}.ipynb"
    nb = new_notebook(metadata=METADATA)
    for number, cell in enumerate(made.cells):
        if cell.kind in ("text", "manual"):
            shown = new_markdown_cell(without_answer(cell.source), id=f"cell-{number}")
        else:
            shown = new_code_cell(stub(cell.source), id=f"cell-{number}")
        nb.cells.append(folded(shown, "hide-input", "The visible check") if cell.kind == "check" else shown)
    if leaks := leaked(made, nb):
        raise CourseError(f"{made.name} is not on the site, since it would show {leaks[0]!r}")
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            text = linked(cell.source, file, name, places)
            cell.source = re.sub(r"^(?=## (\d\d[a-z]?-\d) )", r"(task-\1)=\n", text, flags=re.MULTILINE)
    nb.cells[0].source += START.format(number=made.number, name=made.name, chapter=chapter)
    return nb
