"""What `course build` puts around a source's cells: below the heading the time that the chapter takes and what it writes, a
first cell for Colab, at the end what comes next, and, once the repository has an address, a badge that opens the notebook on
Colab. No source has them, and `undressed` takes them off again.
"""

import re
import tomllib
from pathlib import Path

import nbformat

from course.exercises.hours import HEAD, in_hours, planned, rounded
from course.paths import ROOT, module_file, number_of, source_chapters, source_path
from course.site.chapters import OPTIONAL
from course.states.released import EXPORTS

PLACEHOLDER = "OWNER"  # stands for the owner until the repository has an address (CONTRIBUTING.md)
IMAGE, TAG, NEXT = "open-in-colab.svg", "colab", "next"
BADGE = re.compile(rf"\n\n\[!\[Open in Colab\]\({re.escape(IMAGE)}\)\]\([^)]*\)")
FETCH = """\
    if not os.path.isdir(folder) and os.system(f"git clone --quiet {address} {folder}"):
        raise Stopped(f"git cannot fetch {address}. Is the repository private, or its name misspelt? Ask whoever gave you this notebook; if the address is right, run this cell again.")"""
UNPUBLISHED = """\
    if not os.path.isdir(folder):
        raise Stopped("This copy of the course has no public address yet, so Colab cannot fetch it. Ask whoever gave you this notebook for the address, or run the notebook on the computer where the course is. (For its owner: CONTRIBUTING.md says how it gets one.)")"""
FIRST_CELL = """\
#@title On Colab this cell fetches the course; elsewhere it sets one variable, before PyTorch is loaded
import os, sys

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait sleep instead of spinning
if "google.colab" in sys.modules:
    import runpy

    class Stopped(Exception):
        def _render_traceback_(self):
            return [str(self)]

    address, folder = "{address}", "/content/gpt2-course"
{fetch}
    runpy.run_path(f"{{folder}}/course/colab.py")["set_up"]("{stem}", "{digest}")"""


def repository() -> str:
    with open(ROOT / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"]["urls"]["Repository"]


def is_published(address: str) -> bool:
    return PLACEHOLDER not in address.split("/")


def badge(address: str, stem: str) -> str:
    """A link that opens the chapter on Colab, where everything begins with github.com's path."""
    path = address.removeprefix("https://github.com/")
    return f"[![Open in Colab]({IMAGE})](https://colab.research.google.com/github/{path}/blob/main/notebooks/{stem}.ipynb)"


def first_cell(address: str, stem: str, digest: str) -> nbformat.NotebookNode:
    """The cell, whose text JupyterLab and Colab hide."""
    fetch = FETCH if is_published(address) else UNPUBLISHED
    text = FIRST_CELL.format(address=address, fetch=fetch, stem=stem, digest=digest)
    metadata = {"cellView": "form", "jupyter": {"source_hidden": True}, "tags": [TAG]}
    return nbformat.v4.new_code_cell(text, id="on-colab", metadata=metadata)


def dressed(nb: nbformat.NotebookNode, stem: str) -> nbformat.NotebookNode:
    """The notebook with all of it, new where it has some. Execution counts move on by one."""
    nb, address, at, chapter = undressed(nb), repository(), 0, number_of(Path(stem))
    if nb.cells and nb.cells[0].cell_type == "markdown":
        at = 1
        heading, line_end, rest = nb.cells[0].source.partition("\n")
        below = head(nb, chapter) + (f"\n\n{badge(address, stem)}" if is_published(address) else "")
        nb.cells[0].source = f"{heading}{below}{line_end}{rest}"
    cell = first_cell(address, stem, nb.metadata.get("course", {}).get("source", ""))
    cell.execution_count = 1 if shift_counts(nb, +1) else None
    nb.cells = [*nb.cells[:at], cell, *nb.cells[at:], *foot(chapter)]
    return nb


def undressed(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook as its source describes it."""
    made = [cell for cell in nb.cells if {TAG, NEXT} & set(cell.metadata.get("tags", []))]
    nb.cells = [cell for cell in nb.cells if cell not in made]
    if any(cell.get("execution_count") for cell in made):
        shift_counts(nb, -1)
    if nb.cells and nb.cells[0].cell_type == "markdown":
        nb.cells[0].source = HEAD.sub("", BADGE.sub("", nb.cells[0].source, count=1), count=1)
    return nb


def head(nb: nbformat.NotebookNode, chapter: str) -> str:
    """The line below the heading."""
    before = [other for other in source_chapters() if other < chapter]
    road = [other for other in before if other not in OPTIONAL or other[:2] == chapter[:2]]
    modules = dict.fromkeys(EXPORTS.findall(source_path(chapter).read_text(encoding="utf-8")))
    parts = [f"about {in_hours(rounded(planned(nb.cells)))}"]
    parts += [f"after chapter {road[-1]}"] if road else []
    names = [f"`{module_file(module).removeprefix('nanogpt/')}`" for module in modules]
    parts += [f"writes {', '.join(names)} in `nanogpt/`"] if names else []
    return f"\n\n*{' · '.join(parts)}*"


def foot(chapter: str) -> list[nbformat.NotebookNode]:
    """The last cell: the next sitting, and the next of the main road where that is another."""
    after = [other for other in source_chapters() if other > chapter]
    road = [other for other in after if other not in OPTIONAL]
    if not after:
        return []
    text = f"**Next:** {link(after[0])}"
    if after[0] in OPTIONAL:
        text += "; that sitting is optional (◇)"
        text += f"; the main road goes on with {link(road[0])}" if road else ""
    return [nbformat.v4.new_markdown_cell(text, id=NEXT, metadata={"tags": [NEXT]})]


def link(chapter: str) -> str:
    source = source_path(chapter)
    title = re.search(r"^# (\S.*)", source.read_text(encoding="utf-8").partition('r"""')[2], re.MULTILINE)
    return f"[{title[1] if title else chapter}]({source.stem}.ipynb)"


def shift_counts(nb: nbformat.NotebookNode, by: int) -> bool:
    """Add to every execution count; False if there is none."""
    counted = [cell for cell in nb.cells if cell.get("execution_count")]
    for cell in counted:
        cell.execution_count += by
    return bool(counted)
