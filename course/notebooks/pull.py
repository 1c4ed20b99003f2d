"""`course pull 05`: an edit made in JupyterLab → its source, whose other lines stay as they are."""

import jupytext
import nbformat

from course.files import diff, read_notebook, write_atomically
from course.notebooks.address import undressed
from course.notebooks.source import PERCENT, cell_lines, fingerprint, notebook_from_text, with_ids_of
from course.paths import NOTEBOOKS, CourseError, relative, source_path


def pull(chapter: str) -> str:
    """Bring an edit made in the notebook back into its source, or say why that cannot be done."""
    source = source_path(chapter)
    path = NOTEBOOKS / f"{source.stem}.ipynb"
    text = source.read_text(encoding="utf-8")
    nb, built = undressed(read_notebook(path)), notebook_from_text(text)
    if nb.metadata.get("course", {}).get("source") != fingerprint(built):
        why = f"{relative(source)} is not the source that {path.name} was built from"
        raise CourseError(f"{why}: take your change there back (git stash), pull, and bring it again")
    pulled = merged(text, with_ids_of(nb, built), nb)
    if pulled == text:
        return f"{relative(source)} says what {path.name} says already"
    write_atomically(source, pulled.encode())
    return (
        f"{diff(text, pulled, relative(source), f'from {path.name}')}\n"
        f"{relative(source)} now says what {path.name} says; `course build {chapter}` makes it official"
    )


def merged(text: str, built: nbformat.NotebookNode, nb: nbformat.NotebookNode) -> str:
    """The source with the notebook's cells. built: the notebook as the source has it."""
    # jupytext writes down how many lines stand between two cells, where they are not the usual ones.
    spacing = {
        cell.id: {key: lines for key, lines in read.metadata.items() if key.startswith("lines_to_")}
        for cell, read in zip(built.cells, jupytext.reads(text, fmt=PERCENT).cells)
    }
    made = nbformat.v4.new_notebook()
    for cell in nb.cells:
        is_text = cell.cell_type == "markdown"
        new = nbformat.v4.new_markdown_cell if is_text else nbformat.v4.new_code_cell
        kept = {"cell_marker": 'r"""'} if is_text else {}
        kept |= {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        made.cells.append(new(cell.source, metadata=spacing.get(cell.id, {}) | kept))
    made.metadata = {"jupytext": {"notebook_metadata_filter": "-all", "cell_metadata_filter": "tags,-all"}}
    result = jupytext.writes(made, fmt=PERCENT)
    if cell_lines(notebook_from_text(result)) != cell_lines(nb):
        raise CourseError("the notebook has a cell that a source cannot say; edit the source by hand")
    return result
