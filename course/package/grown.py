"""`grown("train_step")`: how a chapter's definition differs from the one that earlier chapters left."""

import difflib
import html
import textwrap

from course.files import read_cells
from course.package.as_of import all_notebooks, compose, notebooks_upto
from course.package.cells import claimed_modules, exported_cells
from course.package.growing import module_parts
from course.paths import CourseError, number_of, two_digits

STYLES = {  # to be read on a light page and on a dark one
    " ": "color:#767676",
    "-": "color:#767676;text-decoration:line-through",
    "+": "font-weight:bold;background:#7fbf7f33",
}


def difference(name: str, chapter: str | None = None) -> list[str]:
    """The lines of a grown definition: with "  " in front where they stay, "- " where they went, "+ " where new.

    name: `train_step` or `GPT.forward`. chapter: the one that grows it, where several do.
    """
    number, module = growing_chapter(name, chapter)
    upto = notebooks_upto(number)
    after = compose(upto, {module})[module]
    before = compose([path for path in upto if number_of(path) != number], {module})[module]
    lines = difflib.ndiff(definition(before, name), definition(after, name))
    return [line.rstrip() for line in lines if line[0] != "?"]


def growing_chapter(name: str, chapter: str | None) -> tuple[str, str]:
    """The chapter that says `#| grows NAME` in its saved notebook, and the module that it grows it in."""
    found = {
        number_of(path): cell.module
        for path in all_notebooks()
        if (chapter is None or number_of(path) == two_digits(chapter)) and claimed_modules(path)
        for cell in exported_cells(read_cells(path), path.name)
        if name in cell.grows
    }
    if not found:
        raise CourseError(f"no saved cell says `#| grows {name}`; if yours does, save, and run this again")
    if len(found) > 1:
        raise CourseError(f"`#| grows {name}` stands in chapters {', '.join(found)}: say which")
    return found.popitem()


def definition(text: str, name: str) -> list[str]:
    """The lines of a definition in a module's text, a method's as if it stood alone."""
    found = "\n".join(part.text for part in module_parts(text) if part.is_of(name))
    return textwrap.dedent(found).strip("\n").split("\n")


def as_html(lines: list[str]) -> str:
    """The difference for a page: what stays is pale, what went is struck out, what is new is marked."""
    styles = [STYLES[line[:1] or " "] for line in lines]  # a blank line that stays has lost its marks
    rows = [f'<span style="{style}">{html.escape(line)}</span>' for style, line in zip(styles, lines)]
    return f'<pre style="line-height:1.4">{"<br>".join(rows)}</pre>'
