"""What a source in notebooks/src describes: a notebook's cells with stable ids, not yet executed."""

import hashlib
from collections import Counter
from pathlib import Path

import jupytext
import nbformat

from course.notebooks.address import dressed

PERCENT = {"extension": ".py", "format_name": "percent"}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebook_from_source(path: Path) -> nbformat.NotebookNode:
    """The notebook that a source describes, with badge and first cell for Colab, not yet executed."""
    return dressed(notebook_from_text(path.read_text(encoding="utf-8")), path.stem)


def notebook_from_text(text: str) -> nbformat.NotebookNode:
    """The notebook that a source's text describes. A cell's id is a hash of what it says."""
    nb = jupytext.reads(text, fmt=PERCENT)
    seen: Counter = Counter()
    for cell in nb.cells:
        seen[cell.source] += 1
        cell.id = hashlib.sha256(f"{cell.source}\n{seen[cell.source]}".encode()).hexdigest()[:8]
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
    nb.metadata = nbformat.from_dict(METADATA | {"course": {"source": fingerprint(nb)}})
    nb.nbformat, nb.nbformat_minor = 4, 5
    return nb


def fingerprint(nb: nbformat.NotebookNode) -> str:
    """A hash of all cells of a source. Its notebook keeps it: so `course pull` knows what it was built from, and Colab which
    commit it is of."""
    return hashlib.sha256("\n".join(cell_lines(nb)).encode()).hexdigest()[:16]


def cell_lines(nb: nbformat.NotebookNode) -> list[str]:
    """A notebook's cells as text lines: kind, id, tags and source, without outputs."""
    lines = []
    for cell in nb.cells:
        tags = " ".join(cell.metadata.get("tags", []))
        lines += [f"%% {cell.cell_type} {cell.get('id')} {tags}".rstrip(), *cell.source.splitlines()]
    return lines
