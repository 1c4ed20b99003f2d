"""`course slides --part III FOLDER`: a deck for each part, in Markdown for Marp, from the executed notebooks alone.

A chapter's slides are its title with the question that it opens with, its predictions (the outcome on the next slide), its
figures with their alternative texts, and a summary. Nothing is drawn or written for slides: all of it is in the notebook.
"""

import base64
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from course.files import read_notebook, write_atomically
from course.package.cells import claimed_modules
from course.paths import CourseError, chapters, module_file, notebook_path
from course.site.chapters import OPTIONAL, PARTS, part

WIDE, LINES = 76, 11  # letters in a line and lines of text on a slide below its heading, in STYLE's sizes
PICTURE_LINES = 3  # of an alternative text, which is smaller
STYLE = """\
section { width: 1280px; height: 720px; padding: 50px 70px; font-size: 28px; line-height: 1.4; place-content: flex-start; }
section h1, section h2 { margin: 0 0 16px; line-height: 1.2; } section h1 { font-size: 44px; } section h2 { font-size: 36px; }
section img { display: block; margin: 0 auto; width: 1140px; height: 420px; object-fit: contain; }
section small { display: block; font-size: 20px; line-height: 1.3; } section p, section ul { margin: 0 0 12px; }
"""
NUMBERS = "Numbers are those of the executed notebooks. Times and rates differ on another machine: run the cell before you show it."
HEAD = f"---\nmarp: true\npaginate: true\nsize: 16:9\nstyle: |\n{textwrap.indent(STYLE, '  ')}---\n\n"
OUTSIDE = re.compile(r"^(?:Appendix|Checkpoint|Exercises|Further reading|Your predictions|Predict$)")
PREDICT = re.compile(r"^\s*(?:predict|guess)\(\s*f?\"([\w.]+)\"", re.MULTILINE)
ANSWER = re.compile(r"^(\d\d[a-z]?\.\d+)(?:, (.*))?: (.+)$", re.MULTILINE)
TASK = re.compile(r"^- \*\*(\d\d[a-z]?-\d)\*\* (.+?), \d+ minutes", re.MULTILINE)
FILTERS = re.compile(  # words that Marp takes for commands in the text of a picture
    r"\b(bg|blur|brightness|contrast|drop-shadow|grayscale|hue-rotate|invert|opacity|saturate|sepia|w|h|width|height)\b"
)


@dataclass(frozen=True)
class Chapter:
    """What slides are made of."""

    number: str
    title: str
    cells: list
    answers: dict[str, tuple[str, str]]  # a prediction's question and outcome, by its key


def write_slides(folder: Path, wanted: str | None = None) -> list[str]:
    """Write the decks of all parts, or of one ("III", "3" or its name), and their figures; a line for each."""
    said = []
    for name in chosen_parts(wanted):
        text, figures = deck(name)
        path = folder / f"{name.split()[0]}.md"
        for file, data in figures.items():
            write_atomically(folder / file, data)
        write_atomically(path, text.encode())
        said.append(f"{path}: {len(slides_of(text))} slides, {len(figures)} figures")
    return said


def chosen_parts(wanted: str | None) -> list[str]:
    there = [name for name in PARTS if part(name, chapters())]
    if not wanted:
        return there
    numerals = dict(zip("123456", (name.split()[0] for name in PARTS)))
    first = numerals.get(wanted, wanted.split()[0] if wanted.split() else "").upper()
    found = [name for name in there if name.split()[0] == first]
    if not found:
        raise CourseError(f"--part {wanted!r} is none of {', '.join(name.split()[0] for name in there)}")
    return found


def deck(name: str) -> tuple[str, dict[str, bytes]]:
    """A part's deck as one text, and its figures by file."""
    inside, figures = [read_chapter(number) for number in part(name, chapters())], {}
    numeral, _, title = name.partition(" ")
    about = f"# {numeral} · {title}\n\nAfterwards you can {PARTS[name][2]}.\n\n<small>{NUMBERS}</small>"
    slides = [about]
    listed = [f"- {c.title}{' ◇' if c.number in OPTIONAL else ''}" for c in inside]
    slides += in_pieces("Sittings", listed)
    for chapter in inside:
        slides += chapter_slides(chapter, figures)
    return HEAD + "\n\n---\n\n".join(slides) + "\n", figures


def slides_of(text: str) -> list[str]:
    """The slides of a deck's text."""
    return text.removeprefix(HEAD).strip("\n").split("\n\n---\n\n")


def read_chapter(number: str) -> Chapter:
    cells = read_notebook(notebook_path(number)).cells
    title = next(cell.source for cell in cells if cell.source.startswith("# ")).splitlines()[0][2:]
    answers = {}
    for cell in cells:
        for output in cell.get("outputs", ()):
            for key, question, outcome in ANSWER.findall(output.get("text", "")):
                answers.setdefault(key, (question, outcome))
    return Chapter(number, title, cells, answers)


def chapter_slides(chapter: Chapter, figures: dict[str, bytes]) -> list[str]:
    """All slides of a chapter; its figures are added to those that there are."""
    slides, section, words, left = [opening(chapter)], chapter.title, "", dict(chapter.answers)
    for cell in chapter.cells:
        if cell.cell_type == "markdown":
            section = next(reversed(headings(cell.source)), section)
            words = words_of_prediction(cell.source)
            continue
        slides += asked(PREDICT.findall(cell.source), words, left)
        for output in cell.outputs:
            computed = [key for key, _, _ in ANSWER.findall(output.get("text", ""))]  # keys made in a loop
            slides += asked(computed, "", left)
            if png := output.get("data", {}).get("image/png"):
                file = f"figures/{chapter.number}-{1 + count(figures, chapter.number)}.png"
                figures[file] = base64.b64decode(png)
                slides.append(picture(section, file, output.metadata.get("image/png", {}).get("alt", "")))
    return slides + summary(chapter)


def count(figures: dict, number: str) -> int:
    return sum(file.startswith(f"figures/{number}-") for file in figures)


def headings(text: str) -> list[str]:
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


def opening(chapter: Chapter) -> str:
    """The title, how the chapter begins, and the first question of its first prose, with the sentence before it."""
    first = next(cell.source for cell in chapter.cells if cell.cell_type == "markdown" and plain(cell.source))
    sentences = in_sentences(plain(first))
    at = next((i for i, sentence in enumerate(sentences) if sentence.endswith("?")), None)
    question = "" if at is None else f"**{sentences[at]}**"
    told, rest = [], sentences[:at]
    while rest and lines(" ".join([*told, rest[0]])) + lines(question) < LINES - 2:
        told.append(rest.pop(0))
    if rest and question:
        question = f"… {rest[-1]} {question}"
    return "\n\n".join(filter(None, [f"# {chapter.title}", " ".join(told), question]))


def plain(text: str) -> str:
    """The paragraphs of a Markdown text: no heading, list, table, code, hint or formula of its own."""
    text = re.sub(r"```.*?```|<details>.*?</details>|\$\$.*?\$\$", "", text, flags=re.DOTALL)
    kept = [p for p in text.split("\n\n") if p[:1].isalpha() or p[:1] in "`*"]
    return "\n\n".join(
        re.sub(r"^\*(?:Predict|Check)\.?\*:?\s*", "", p) for p in kept if not p.startswith("* ")
    )


def in_sentences(text: str) -> list[str]:
    found = re.split(r"(?<=[.?!])\s+(?=[A-Z`*])", " ".join(text.split()))
    return [sentence for sentence in found if sentence]


def asked(keys: list[str], text: str, left: dict[str, tuple[str, str]]) -> list[str]:
    """Predictions that are asked together, below the chapter's words, and on the next slide their outcomes."""
    chosen = {key: left.pop(key) for key in keys if key in left}
    if not chosen:
        return []
    questions = [f"- {question}" for question, _ in chosen.values()]
    outcomes = [f"- {question}: **{outcome}**" for question, outcome in chosen.values()]
    words = [sentence for sentence in in_sentences(text) if "`None`" not in sentence]  # how to fill in a cell
    while words and lines(" ".join(words)) + lines("\n".join(questions)) > LINES:
        words.pop(0)
    title = f"## Predict {' '.join(chosen)}"
    question = "\n\n".join(filter(None, [title, " ".join(words), "\n".join(questions)]))
    return [question, *in_pieces(f"{title.removeprefix('## ')}: what came out", outcomes)]


def words_of_prediction(text: str) -> str:
    """The last paragraph that begins with *Predict.*, without that word; "" if there is none."""
    found = re.findall(r"^\*Predict\.?\*:?\s+(.+?)(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found[-1].split()) if found else ""


def picture(section: str, file: str, alt: str) -> str:
    """A figure below its section's heading, and its alternative text below it."""
    words = " ".join(FILTERS.sub("\\1\u2060", alt).replace("[", "(").replace("]", ")").split())
    said = textwrap.shorten(alt, WIDE * PICTURE_LINES, placeholder=" …")
    return f"## {section}\n\n![{words}]({file})\n\n<small>{said.replace('<', '&lt;')}</small>"


def summary(chapter: Chapter) -> list[str]:
    """What the chapter did, what came out, what it wrote, and the graded tasks."""
    prose = [cell.source for cell in chapter.cells if cell.cell_type == "markdown"]
    sections = [h for text in prose for h in headings(text) if not OUTSIDE.match(h)]
    slides = in_pieces(f"{chapter.number} · Summary", [f"- {section}" for section in sections])
    told = [f"- {question}: **{outcome}**" for question, outcome in chapter.answers.values()]
    slides += in_pieces(f"{chapter.number} · What came out", told)
    ends = [f"- `{module_file(name)}`" for name in sorted(claimed_modules(notebook_path(chapter.number)))]
    ends += [f"- task {task}: {title}" for text in prose for task, title in TASK.findall(text)]
    return slides + in_pieces(f"{chapter.number} · Written, and to do", ends)


def in_pieces(heading: str, items: list[str]) -> list[str]:
    """A list as one slide, or as several where one would be too long."""
    pieces, now = [], []
    for item in items:
        if now and lines("\n".join([*now, item])) > LINES:
            pieces.append(now)
            now = []
        now.append(item)
    pieces += [now] if now else []
    more = [heading, *[f"{heading}, continued"] * len(pieces)]
    return [f"## {title}\n\n" + "\n".join(piece) for title, piece in zip(more, pieces)]


def lines(text: str) -> int:
    """How many lines a text takes on a slide."""
    return sum(max(1, len(textwrap.wrap(line, WIDE))) for line in text.splitlines() if line.strip())


def height(slide: str) -> float:
    """Lines that a slide takes below its heading; a figure counts as LINES less its alternative text's."""
    taken = 0.0
    for block in slide.split("\n\n")[1:]:
        if block.startswith("<small>"):
            taken += 0.7 * len(textwrap.wrap(block, 1.3 * WIDE))
        elif not block.startswith("!["):
            taken += lines(block)
    return taken
