"""`course pull 05`: an edit made in JupyterLab → its source, whose other lines stay as they are."""

import re

import jupytext
import nbformat

from course.files import diff, read_notebook, write_atomically
from course.notebooks.address import undressed
from course.notebooks.source import PERCENT, fingerprint, notebook_from_text
from course.paths import NOTEBOOKS, CourseError, relative, source_path

MARKER = re.compile(r"^# %%(?!\w)", re.MULTILINE)  # but not a magic, such as `# %%writefile`


def pull(chapter: str) -> str:
    """Bring an edit made in the notebook back into its source, or say why that cannot be done."""
    source = source_path(chapter)
    path = NOTEBOOKS / f"{source.stem}.ipynb"
    text = source.read_text(encoding="utf-8")
    nb, built = undressed(read_notebook(path)), notebook_from_text(text)
    if nb.metadata.get("course", {}).get("source") != fingerprint(built):
        raise CourseError(
            f"{relative(source)} is not the source that {path.name} was built from, and pulling would undo what was "
            f"changed there since; take that change back (git stash), pull, and bring it again. `course build {chapter} "
            "--check` shows the difference"
        )
    pulled = merged(text, built, nb)
    if pulled == text:
        return f"{relative(source)} says what {path.name} says already"
    write_atomically(source, pulled.encode())
    return (
        f"{diff(text, pulled, relative(source), f'from {path.name}')}\n"
        f"{relative(source)} now says what {path.name} says; `course build {chapter}` makes it official"
    )


def merged(text: str, built: nbformat.NotebookNode, nb: nbformat.NotebookNode) -> str:
    """The source with the notebook's cells: those that were not edited letter by letter as they stand in `text`."""
    starts = [found.start() for found in MARKER.finditer(text)]
    blocks = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)])]
    if len(blocks) != len(built.cells):
        raise CourseError(
            "a line of the source begins with `# %%` within a cell; nothing can be pulled until it is gone"
        )
    known = {cell.id: (content(cell), block) for cell, block in zip(built.cells, blocks)}
    parts = [text[: starts[0]] if starts else ""]
    for cell in nb.cells:
        said, block = known.get(cell.id, (None, "\n\n"))
        space = block[len(block.rstrip("\n")) :] if block is not blocks[-1] else "\n\n"
        parts += [(block if said == content(cell) else block_of(cell)).rstrip("\n"), space]
    result = "".join(parts).rstrip("\n") + "\n"
    if list(map(content, notebook_from_text(result).cells)) != list(map(content, nb.cells)):
        raise CourseError("the notebook has a cell that a source cannot say; edit the source by hand")
    return text if result.rstrip("\n") == text.rstrip("\n") else result


def content(cell: nbformat.NotebookNode) -> tuple:
    return cell.cell_type, tuple(cell.metadata.get("tags", [])), cell.source.rstrip("\n")


def block_of(cell: nbformat.NotebookNode) -> str:
    """One cell in percent format."""
    cell = nbformat.from_dict(cell)
    cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
    if cell.cell_type == "markdown":
        cell.metadata["cell_marker"] = 'r"""'
    only = nbformat.v4.new_notebook(cells=[cell])
    only.metadata = {"jupytext": {"notebook_metadata_filter": "-all", "cell_metadata_filter": "tags,-all"}}
    return jupytext.writes(only, fmt=PERCENT)
