"""`course site`: the course as a book, made by Sphinx and myst-nb from the committed notebooks, fully offline.

Pages are staged below build/site/source and built into build/site/html. Nothing is executed.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

from course.exercises.hours import in_hours, minutes_of
from course.exercises.progress import title_of
from course.exercises.sets import folders, read
from course.files import notebook_bytes, write_atomically
from course.paths import ROOT, CourseError, module_path, modules, notebook_path, relative, source_chapters
from course.site.chapters import OPTIONAL, PARTS, part
from course.site.pages import chapter_page, exercise_page, linked, page
from course.site.results import table
from course.states.released import writers

SITE = ROOT / "build" / "site"
ELSEWHERE = {  # files of the repository that are pages of another name
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "exercises/README.md": "exercises/instructors.md",
    "exercises/TASKS.md": "exercises/tasks.md",
}
TREE = "\n```{{toctree}}\n:hidden:\n{}\n```\n"
CONTENTS = [  # of the navigation, which folds the parts' chapters, the sets and the modules below these pages
    ":caption: Chapters\n:glob:\n\nparts/*",
    ":caption: Exercises\n\nexercises/tasks\nexercises/instructors",
    ":caption: Beside the chapters\n\napi\ncheatsheet\nfaq\nresults\nkeys\nnanogpt/index\nchangelog\ncontributing",
]


def site(folder: Path = SITE) -> None:
    """Stage the pages and let Sphinx make those that have changed; each warning is an error."""
    if missing := [name for name in ("sphinx", "myst_nb", "sphinx_book_theme") if find_spec(name) is None]:
        raise CourseError(f"the site needs {', '.join(missing)}: pip install -c constraints.txt -e '.[site]'")
    files = staged()
    changed = settle(files, folder)
    print(f"{changed} of {len(files)} pages and pictures to be made; all take some minutes", flush=True)
    source, html, doctrees = (str(folder / name) for name in ("source", "html", "doctrees"))
    options = ["-q", "-W", "--keep-going", "-c", str(ROOT / "site"), "-d", doctrees]
    if subprocess.run([sys.executable, "-m", "sphinx", *options, source, html]).returncode:
        shutil.rmtree(doctrees, ignore_errors=True)  # a page that is kept would not say its warning again
        raise CourseError("Sphinx has found something wrong, as it says above; a warning counts")
    for path in notebooks().values():  # which the buttons of the pages download
        shutil.copyfile(path, folder / "html" / relative(path))
    print(f"{relative(folder)}/html/index.html: open it in a browser")


def settle(files: dict[str, bytes], folder: Path) -> int:
    """The folder's source holds these files and no others; one that stays the same is not touched, nor made again. How
    many differ."""
    source = folder / "source"
    there = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*.*")}
    if set(there) - set(files):  # the page of a file that is gone would stay
        shutil.rmtree(folder)
        there = {}
    differ = [name for name, data in files.items() if there.get(name) != data]
    for name in differ:
        write_atomically(source / name, files[name])
    return len(differ)


def notebooks() -> dict[str, Path]:
    return {chapter: notebook_path(chapter) for chapter in source_chapters()}


def documented() -> list[str]:
    """The modules that chapters export, without a student's own and copies."""
    return [name for name in modules() if name in writers()]


def places() -> dict[str, str]:
    """Which file or folder of the repository is which page."""
    chapters = {relative(path): relative(path) for path in notebooks().values()}
    sets = {relative(folder): f"{relative(folder)}.ipynb" for folder in folders()}
    written = [path for path in (ROOT / "site").rglob("*") if path.suffix in (".md", ".png")]
    pages = {relative(path): path.relative_to(ROOT / "site").as_posix() for path in written}
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
    chapters = notebooks()
    for path in chapters.values():
        files[relative(path)] = notebook_bytes(chapter_page(path, where))
    for made in map(read, folders()):
        name = where[f"exercises/{made.name}"]
        files[name] = notebook_bytes(exercise_page(made, chapters[made.number].stem, where))
    for name, text in (part_pages(chapters) | module_pages()).items():
        files[name] = linked(text, name, name, where).encode()
    files["exercises/tasks.md"] += TREE.format(":glob:\n\n*_*").encode()
    files["index.md"] += "".join(map(TREE.format, CONTENTS)).encode()
    return files


def part_pages(chapters: dict[str, Path]) -> dict[str, str]:
    """A page for each part: what one can do after it, and its chapters, with short names for the navigation."""
    pages = {}
    for name, (_, can) in PARTS.items():
        rows, short = [], []
        for number in part(name, list(chapters)):
            path, mark = chapters[number], " ◇" if number in OPTIONAL else ""
            title, takes = title_of(path), in_hours(minutes_of(path) or 0)
            rows.append((f"{number}{mark}", f"[{title}](../notebooks/{path.name})", takes))
            short.append(f"{number} {title.partition(':')[0]} </notebooks/{path.stem}>")
        text = f"# {name}\n\nAfter this part you can {can}. A chapter marked ◇ is optional.\n\n"
        text += f"{table(' | chapter | takes', rows, '---')}\n" + TREE.format("\n" + "\n".join(short))
        pages[f"parts/{name.split()[0].lower()}.md"] = text
    return pages


def module_pages() -> dict[str, str]:
    """A page for each module of the package, of its docstrings, and an index of the core, then of each room of the labs."""
    names = sorted(documented(), key=lambda name: (name.rpartition(".")[0], writers()[name], name))
    pages, text = {}, "# The package\n\nGPT-2 and its training, in the order of the chapters.\n"
    for room, inside in groupby(names, key=lambda name: name.rpartition(".")[0]):
        rows = []
        for name in inside:
            file, written = name.replace(".", "/"), f"chapter {', chapter '.join(writers()[name])}"
            rows.append((f"[{name}]({file}.md)", writers()[name][0], says(name)))
            pages[f"nanogpt/{file}.md"] = (
                f"# nanogpt.{name}\n\nWritten in {written}.\n\n```{{eval-rst}}\n.. automodule:: nanogpt.{name}\n```\n"
            )
        text += "\n" + (f"## {room}\n\n{says(room + '.__init__')}\n\n" if room else "")
        text += table("module | chapter | what it holds", rows, "---") + "\n"
    entries = [f"{name} <{name.replace('.', '/')}>" for name in names]
    return pages | {"nanogpt/index.md": text + TREE.format("\n" + "\n".join(entries))}


def says(name: str) -> str:
    """The first line of a module's docstring."""
    return module_path(name).read_text(encoding="utf-8").split("\n")[0].strip('"')
