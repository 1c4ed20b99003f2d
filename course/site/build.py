"""`course site`: the course as a book, made by Sphinx and myst-nb from the committed notebooks, fully offline.

Pages are staged below build/site/source and built into build/site/html. Nothing is executed.
"""

import re
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from course.exercises.hours import in_hours, minutes_of
from course.exercises.progress import title_of
from course.exercises.sets import folders, read
from course.files import notebook_bytes, write_atomically
from course.paths import (
    NOTEBOOKS,
    PACKAGE,
    ROOT,
    SOURCES,
    CourseError,
    module_path,
    modules,
    notebook_path,
    number_of,
    numbered,
    relative,
)
from course.site.chapters import CHAPTERS, OPTIONAL, PARTS, SHORT, part
from course.site.pages import address, chapter_page, exercise_page, linked, page, raw_files
from course.states.released import writers

SITE = ROOT / "build" / "site"
ELSEWHERE = {  # files of the repository that are pages of another name
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "exercises/README.md": "exercises/instructors.md",
    "exercises/TASKS.md": "exercises/tasks.md",
}


def site(folder: Path = SITE) -> int:
    """Stage the pages and let Sphinx make those that have changed, each warning an error; 0, or CourseError."""
    source, html, doctrees = folder / "source", folder / "html", folder / "doctrees"
    if missing := [name for name in ("sphinx", "myst_nb", "sphinx_book_theme") if find_spec(name) is None]:
        raise CourseError(f"the site needs {', '.join(missing)}: pip install -c constraints.txt -e '.[site]'")
    start, files = time.monotonic(), staged()
    changed = settle(files, folder)
    print(
        f"{changed} of {len(files)} pages and pictures to be made; all of them take some minutes", flush=True
    )
    options = ["-W", "--keep-going", "-b", "html", "-c", str(ROOT / "site"), "-d", str(doctrees)]
    if url := address():
        theme = "-Dhtml_theme_options"
        options += [f"{theme}.repository_url={url}", f"{theme}.use_repository_button=true"]
    if not sys.stdout.isatty():  # a line for each page is for a screen alone
        options.append("-q")
    if subprocess.run([sys.executable, "-m", "sphinx", *options, str(source), str(html)]).returncode:
        shutil.rmtree(doctrees, ignore_errors=True)  # a page that is kept would not say its warning again
        raise CourseError("Sphinx has found something wrong, as it says above; a warning counts")
    for path in notebooks():
        for name, data in raw_files(path).items():
            write_atomically(html / name, data)
    print(f"{relative(html / 'index.html')}: open it in a browser ({time.monotonic() - start:.0f} s)")
    return 0


def settle(files: dict[str, bytes], folder: Path) -> int:
    """The folder's source holds these files and no others; one that stays the same is not touched, nor made again. How
    many differ."""
    source = folder / "source"
    there = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    if there - set(files):  # the page of a file that is gone would stay
        shutil.rmtree(folder)
        there = set()
    differ = [
        name for name, data in files.items() if name not in there or (source / name).read_bytes() != data
    ]
    for name in differ:
        write_atomically(source / name, files[name])
    return len(differ)


def notebooks() -> list[Path]:
    """The notebooks of the chapters, without a student's copies of them."""
    return [path for path in numbered(NOTEBOOKS, ".ipynb") if (SOURCES / f"{path.stem}.py").exists()]


def documented() -> list[str]:
    """The modules that chapters export, without a student's own and copies."""
    return [name for name in modules() if name in writers()]


def places() -> dict[str, str]:
    """Which file or folder of the repository is which page."""
    chapters = {relative(path): relative(path) for path in notebooks()}
    sets = {relative(folder): f"{relative(folder)}.ipynb" for folder in folders()}
    written = [path for path in (ROOT / "site").rglob("*") if path.suffix in (".md", ".png")]
    pages = {relative(p): p.relative_to(ROOT / "site").as_posix() for p in written}
    code = {relative(module_path(name)): f"nanogpt/{name.replace('.', '/')}.md" for name in documented()}
    return chapters | sets | pages | code | {"nanogpt/__init__.py": "nanogpt/index.md"} | ELSEWHERE


def staged() -> dict[str, bytes]:
    """All pages and pictures, as Sphinx reads them."""
    where, files = places(), {}
    for file, name in where.items():
        if name.endswith(".png"):
            files[name] = (ROOT / file).read_bytes()
        elif file.endswith(".md") and file != "README.md":
            files[name] = page(file, name, where).encode()
    chapters = {number_of(path): path for path in notebooks()}
    for path in chapters.values():
        files[relative(path)] = notebook_bytes(chapter_page(path, where))
    for made in map(read, folders()):
        name = where[f"exercises/{made.name}"]
        files[name] = notebook_bytes(exercise_page(made, chapters[made.number].stem, where))
    files |= {f"nanogpt/{name}.md": text.encode() for name, text in module_pages().items()}
    files |= {f"{name}.md": text.encode() for name, text in part_pages(chapters).items()}
    files["keys.md"] = linked(keys_page(), "site/keys.md", "keys.md", where).encode()
    files["exercises/tasks.md"] += toctree("", [folder.name for folder in folders()]).encode()
    files["index.md"] += contents(chapters).encode()
    return files


def contents(chapters: dict[str, Path]) -> str:
    """Sphinx's tables of contents: a page for each part, which the navigation folds, then exercises and package."""
    written = sorted(path.stem for path in (ROOT / "site").glob("*.md") if path.stem != "index")
    beside = [*written, "keys", "nanogpt/index", "changelog", "contributing"]
    return (
        toctree("Chapters", list(part_pages(chapters)))
        + toctree("Exercises", ["exercises/tasks", "exercises/instructors"])
        + toctree("Beside the chapters", beside)
    )


def part_pages(chapters: dict[str, Path]) -> dict[str, str]:
    """A page for each part: what one can do after it, and its chapters, with short names for the navigation."""
    pages = {}
    for name, (_, can) in PARTS.items():
        inside = part(name, list(chapters))
        text = f"# {name}\n\nAfter this part you can {can}.\n\n| | chapter | takes |\n|---|---|---|\n"
        for number in inside:
            mark, path = " ◇" if number in OPTIONAL else "", chapters[number]
            link = f"[{title_of(path)}](../notebooks/{path.name})"
            text += f"| {number}{mark} | {link} | {in_hours(minutes_of(path))} |\n"
        if OPTIONAL & set(inside):
            text += "\nChapters marked ◇ are optional.\n"
        short = [f"{number} {short_title(number)} </notebooks/{chapters[number].stem}>" for number in inside]
        pages[f"parts/{name.split()[0].lower()}"] = text + toctree("", short)
    return pages


def short_title(number: str) -> str:
    """A chapter in the navigation: a few words."""
    name = SHORT.get(number, CHAPTERS[number])
    return name[:1].upper() + name[1:]


def toctree(caption: str, pages: list[str]) -> str:
    head = f":caption: {caption}\n" if caption else ""
    return "\n```{toctree}\n:hidden:\n" + head + "\n" + "\n".join(pages) + "\n```\n"


def keys_page() -> str:
    """Every key of a run's configuration, with its default and its meaning, as `python -m nanogpt train --help` has them."""
    # here: a course without the package has a site, too
    from nanogpt.config import Config, key_lines

    text = "# The keys of a run\n\nA run is a file of keys (chapter 17c). "
    text += "On the command line a key is changed by `key=value`, as in `python -m nanogpt train tiny train.max_steps=100`. "
    text += "The files in `nanogpt/configs/` are examples. A key that is not given has its default.\n"
    section = None
    for line in key_lines(Config):
        key, _, rest = line.strip().partition("=")
        default, _, meaning = rest.partition("  ")
        if key.rpartition(".")[0] != section:
            section = key.rpartition(".")[0]
            heading = section or "Outside of the sections"
            text += f"\n## {heading}\n\n| key | default | meaning |\n|---|---|---|\n"
        text += f"| `{key}` | `{default}` | {meaning.replace('|', '&#124;')} |\n"
    return text


def module_pages() -> dict[str, str]:
    """A page for each module of the package, of its docstrings, and an index: the core as one reads it, then the labs."""
    auto = "# nanogpt.{0}\n\n{1}```{{eval-rst}}\n.. automodule:: nanogpt.{0}\n```\n"
    pages = {name.replace(".", "/"): auto.format(name, written_in(name)) for name in documented()}
    core = sorted((name for name in documented() if "." not in name), key=reading_order)
    labs: dict[str, list[str]] = {"labs": []}
    for name in sorted(set(documented()) - set(core), key=lambda name: (owner(name), name)):
        labs.setdefault(name.rpartition(".")[0], []).append(name)
    text = f"# The package\n\nGPT-2 and its training, in the order in which one reads it.\n{table_of(core)}"
    text += f"\n## nanogpt.labs\n\n{says('labs.__init__')}\n"
    for topic, inside in labs.items():
        if topic != "labs":
            text += f"\n### {topic}\n\n{says(f'{topic}.__init__')}\n"
        text += table_of(inside) if inside else ""
    inside = [*core, *chain.from_iterable(labs.values())]
    return pages | {"index": text + toctree("", [f"{name} <{name.replace('.', '/')}>" for name in inside])}


def reading_order(module: str) -> tuple[int, str]:
    """The place of a core module in the sentence of `nanogpt/__init__.py`; the others follow by chapter."""
    text = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    named = re.findall(r"\w+", re.search(r"Read it in this order: ([^.]+)\.", text)[1])
    return named.index(module) if module in named else len(named), owner(module)


def table_of(names: list[str]) -> str:
    """A row for each module: its page, the chapter that begins it, and the first line of its docstring."""
    text = "\n| module | chapter | what it holds |\n|---|---|---|\n"
    for name in names:
        text += f"| [{name}]({name.replace('.', '/')}.md) | {owner(name)} | {says(name)} |\n"
    return text


def says(name: str) -> str:
    """The first line of a module's docstring."""
    return module_path(name).read_text(encoding="utf-8").split("\n")[0].strip('"')


def written_in(name: str) -> str:
    """A line with links to the chapters that wrote a module."""
    up = "../" * (1 + name.count("."))
    links = [f"[{chapter}]({up}{relative(notebook_path(chapter))})" for chapter in writers()[name]]
    return f"Written in chapter {', '.join(links)}.\n\n"


def owner(module: str) -> str:
    """The number of the chapter that begins a module."""
    return writers()[module][0]
