"""What a source in notebooks/src describes: a notebook's cells with stable ids, not yet executed."""

import hashlib
from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path

import jupytext
import nbformat

from course.notebooks.address import dressed

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def notebook_from_source(path: Path) -> nbformat.NotebookNode:
    """The notebook that a source describes, with badge and first cell for Colab, not yet executed."""
    return dressed(notebook_from_text(path.read_text(encoding="utf-8")), path.stem)


def notebook_from_text(text: str) -> nbformat.NotebookNode:
    """The notebook that a source's text describes. A new cell's id is a hash of what it says."""
    nb = jupytext.reads(text, fmt="py:percent")
    seen: Counter = Counter()
    for cell in nb.cells:
        seen[cell.source] += 1
        cell.id = id_of(f"{cell.source}\n{seen[cell.source]}")
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
    # A hash of all cells, by which Colab knows the notebook's commit.
    digest = hashlib.sha256("\n".join(cell_lines(nb, with_ids=True)).encode()).hexdigest()[:16]
    nb.metadata = nbformat.from_dict(METADATA | {"course": {"source": digest}})
    nb.nbformat, nb.nbformat_minor = 4, 5
    return nb


def id_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def with_ids_of(old: nbformat.NotebookNode, nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook, its cells under the ids that they have in an older one: those that say the same, and between two of them
    as many as there were."""
    texts = [[(cell.cell_type, cell.source) for cell in each.cells] for each in (old, nb)]
    taken: set[str] = set()
    for _, a, b, c, d in SequenceMatcher(None, *texts, autojunk=False).get_opcodes():
        olds = old.cells[a:b] if b - a == d - c else [None] * (d - c)
        for before, cell in zip(olds, nb.cells[c:d]):
            if before and before.cell_type == cell.cell_type:
                cell.id = before.id
            while cell.id in taken:
                cell.id = id_of(cell.id)
            taken.add(cell.id)
    return nb


def cell_lines(nb: nbformat.NotebookNode, with_ids: bool = False) -> list[str]:
    """A notebook's cells as text lines: kind, tags and source, without outputs."""
    lines = []
    for cell in nb.cells:
        words = ["%%", cell.cell_type, cell.get("id") if with_ids else "", *cell.metadata.get("tags", [])]
        lines += [" ".join(filter(None, words)), *cell.source.splitlines()]
    return lines
