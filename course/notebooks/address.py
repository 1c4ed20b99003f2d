"""What `course build` puts around a source's cells: a first cell for Colab, a line below the heading and one at the end
(way.py), and, once the repository has an address, a badge that opens the notebook on Colab. No source has them, and
`undressed` takes them off again.
"""

import re
import tomllib
from pathlib import Path

import nbformat

from course.exercises.hours import HEAD
from course.notebooks import way
from course.notebooks.way import foot, head
from course.paths import ROOT, number_of

PLACEHOLDER = "OWNER"  # stands for the owner until the repository has an address (CONTRIBUTING.md)
IMAGE, TAG = "open-in-colab.svg", "colab"
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
    """The address, as pyproject.toml gives it."""
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
    nb, address, at = undressed(nb), repository(), 0
    chapter = number_of(Path(stem))
    last = foot(chapter)
    if nb.cells and nb.cells[0].cell_type == "markdown":
        at = 1
        heading, line_end, rest = nb.cells[0].source.partition("\n")
        below = head(nb, chapter) + (f"\n\n{badge(address, stem)}" if is_published(address) else "")
        nb.cells[0].source = f"{heading}{below}{line_end}{rest}"
    cell = first_cell(address, stem, nb.metadata.get("course", {}).get("source", ""))
    cell.execution_count = 1 if shift_counts(nb, +1) else None
    nb.cells = [*nb.cells[:at], cell, *nb.cells[at:], *filter(None, [last])]
    return nb


def undressed(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook as its source describes it."""
    made = [cell for cell in nb.cells if {TAG, way.TAG} & set(cell.metadata.get("tags", []))]
    nb.cells = [cell for cell in nb.cells if cell not in made]
    if any(cell.get("execution_count") for cell in made):
        shift_counts(nb, -1)
    if nb.cells and nb.cells[0].cell_type == "markdown":
        nb.cells[0].source = HEAD.sub("", BADGE.sub("", nb.cells[0].source, count=1), count=1)
    return nb


def shift_counts(nb: nbformat.NotebookNode, by: int) -> bool:
    """Add to every execution count; False if there is none."""
    counted = [cell for cell in nb.cells if cell.get("execution_count")]
    for cell in counted:
        cell.execution_count += by
    return bool(counted)
