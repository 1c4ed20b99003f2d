"""How files of the repository become pages of the site: chapters with buttons, exercise sets, Markdown with links that work."""

import os
import re
from html import escape
from pathlib import Path

import nbformat

from course.exercises.release import code, leaked, markdown, without_answer
from course.exercises.sets import Cell, ExerciseSet, stub
from course.files import read_notebook
from course.notebooks.address import is_published, repository, undressed
from course.notebooks.source import METADATA
from course.paths import ROOT, SOURCES, CourseError, number_of, relative
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
<section class="writer" aria-label="The widget" data-beginning="{beginning}" hidden>
<p>On this page the widget works without a notebook. It can also go on: press Write, and follow the bars from token to token.</p>
</section>
<script src="../_static/writer.js" defer></script>"""
START = """
These are the tasks as they are handed out, to be read; the chapter is [chapter {number}](../notebooks/{chapter}.ipynb).
To work on them, in the course's folder:

```
course exercises release {number}    # writes released/{name}/{name}.ipynb
course lab                     # open it there
course check {number}                # the visible checks, offline; they say why one fails
```

Hints open one at a time. A cell that says `YOUR CODE HERE` is yours. Grading runs more checks than are shown here."""


def address() -> str | None:
    """The repository's; None while nobody has published it."""
    return url if is_published(url := repository()) else None


def linked(text: str, file: str, name: str, places: dict[str, str]) -> str:
    """The prose of the repository's `file` as the page `name`; places says which file is which page.

    A link to a page leads there, one to another file to its address (without one only its text stays), and each
    "chapter 07" and each task becomes a link.
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
        kind = "tree" if (ROOT / there).is_dir() else "blob"
        return f"{found['text']}({url}/{kind}/main/{there})" if (url := address()) else found["text"][1:-1]

    return PROSE.sub(instead, text)


def with_tasks(text: str) -> str:
    """The task that a line of a list or table begins with is a link to it."""
    return TASK.sub(lambda found: f"[{found[0]}](#task-{found[0]})", text)


def page(file: str, name: str, places: dict[str, str]) -> str:
    """A Markdown file as a page. <picture>, which follows the system's colours, becomes a picture for each of the page's."""
    text = (ROOT / file).read_text(encoding="utf-8")
    if name == "index.md" and (url := address()):
        text = text.replace(
            "</p>", f' <a href="{url}">GitHub</a> <a href="{colab(url, "00_setup.ipynb")}">Colab</a></p>', 1
        )
    each = r"\n```{image} \3\n:class: only-light\n:alt: \2\n```\n```{image} \1\n:class: only-dark\n:alt: \2\n```\n"
    return with_tasks(linked(PICTURE.sub(each, text), file, name, places))


def chapter_page(path: Path, places: dict[str, str]) -> nbformat.NotebookNode:
    """A chapter with buttons below its heading, links, and each picture's alternative text where myst-nb looks."""
    nb = undressed(read_notebook(path))  # the page has buttons of its own
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            text = linked(cell.source, relative(path), relative(path), places)
            cell.source = with_tasks(text)
        shown = [
            o.metadata["image/png"] for o in cell.get("outputs", ()) if "image/png" in o.get("metadata", ())
        ]
        if shown:
            cell.metadata["mystnb"] = {"image": {"alt": "; ".join(each["alt"] for each in shown)}}
    nb.cells = cells_to_read(with_writer(nb.cells), relative(path))
    first = next(cell for cell in nb.cells if cell.source.startswith("# "))
    first.source = re.sub(
        r"\A#[^\n]*\n", lambda found: f"{found[0]}\n{buttons(path)}\n\n", first.source + "\n"
    )
    return nb


def with_writer(cells: list) -> list:
    """The cells of a chapter; behind chapter 08's widget, of which a page shows a picture, a place where the model writes."""
    made = []
    for cell in cells:
        made.append(cell)
        if cell.source.startswith("figures.playground_widget("):
            made.append(markdown(WRITER.format(beginning=escape(question())), "writer"))
    return made


def question() -> str:
    """What chapter 08's widget asks first: a story up to a number that must be computed."""
    from nanogpt.labs.corpora.stories import stories  # here: a course without the package has a site, too

    told = next(stories(200, seed=1))
    return told.text[: told.answers[-1][0]].rstrip()


def buttons(path: Path) -> str:
    """Where a chapter can be run, had and looked into."""
    url, source = address(), f"src/{path.stem}.py"
    links = [(f"{url}/blob/main/notebooks/{source}" if url else f"{source}.txt", "", "View source")]
    links.insert(0, (path.name, " download", "Download notebook"))
    if url:
        links.insert(0, (colab(url, path.name), "", "Open in Colab"))
    return f'<p class="buttons">{" ".join(f"""<a href="{to}"{more}>{says}</a>""" for to, more, says in links)}</p>'


def colab(url: str, name: str) -> str:
    """Where a notebook opens on Colab."""
    return f"{url.replace('https://github.com', 'https://colab.research.google.com/github')}/blob/main/notebooks/{name}"


def raw_files(chapter: Path) -> dict[str, bytes]:
    """What a chapter's buttons lead to on the site itself."""
    source = SOURCES / f"{chapter.stem}.py"
    return {relative(chapter): chapter.read_bytes(), f"{relative(source)}.txt": source.read_bytes()}


def exercise_page(made: ExerciseSet, chapter: str, places: dict[str, str]) -> nbformat.NotebookNode:
    """An exercise set as it is handed out: no solution, no model answer, no hidden check."""
    nb = nbformat.v4.new_notebook(
        metadata=METADATA, cells=[released(cell, f"cell-{n}") for n, cell in enumerate(made.cells)]
    )
    if leaks := leaked(made, nb):
        raise CourseError(f"{made.name} is not on the site, since it would show {leaks[0]!r}")
    file, name = f"exercises/{made.name}/exercise.py", f"exercises/{made.name}.ipynb"
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            text = linked(cell.source, file, name, places)
            cell.source = re.sub(r"^(?=## (\d\d[a-z]?-\d) )", r"(task-\1)=\n", text, flags=re.MULTILINE)
    nb.cells[0].source += START.format(number=made.number, name=made.name, chapter=chapter)
    return nb


def released(cell: Cell, name: str) -> nbformat.NotebookNode:
    if cell.kind in ("text", "manual"):
        return markdown(without_answer(cell.source), name)
    made = code(stub(cell.source), name)
    return folded(made, "hide-input", "The visible check") if cell.kind == "check" else made
