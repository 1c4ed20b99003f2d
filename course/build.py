"""`notebooks/src/05_gpt.py` → `notebooks/05_gpt.ipynb`: stable ids, executed in order, clean outputs."""

import difflib
import hashlib
import os
import re
from collections import Counter
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from course.files import notebook_bytes, read_notebook, write_atomically
from course.paths import NOTEBOOKS, CourseError, relative, source_path

PERCENT = {"extension": ".py", "format_name": "percent"}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
WIDGET = "application/vnd.jupyter.widget-view+json"
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def notebook_from_source(path: Path) -> nbformat.NotebookNode:
    """The notebook that a source describes, not yet executed. A cell's id is a hash of its text."""
    nb = jupytext.read(path, fmt=PERCENT)
    seen: Counter = Counter()
    for cell in nb.cells:
        seen[cell.source] += 1
        cell.id = hashlib.sha256(f"{cell.source}\n{seen[cell.source]}".encode()).hexdigest()[:8]
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
    nb.metadata = nbformat.from_dict(METADATA)
    nb.nbformat, nb.nbformat_minor = 4, 5
    return nb


def source_from_notebook(nb: nbformat.NotebookNode) -> str:
    """The percent-format source of a notebook: `notebook_from_source` backwards."""
    plain = nbformat.from_dict(nb)
    plain.metadata = {"jupytext": {"notebook_metadata_filter": "-all", "cell_metadata_filter": "tags,-all"}}
    for cell in plain.cells:
        if cell.cell_type == "markdown":
            cell.metadata = {"cell_marker": 'r"""'}
    return jupytext.writes(plain, fmt=PERCENT)


def pull(chapter: str) -> str:
    """Bring an edit made in the notebook back into its source."""
    path = NOTEBOOKS / f"{source_path(chapter).stem}.ipynb"
    write_atomically(source_path(chapter), source_from_notebook(read_notebook(path)).encode())
    return f"{relative(source_path(chapter))} now says what {path.name} says; `course build {chapter}` makes it official"


def build(chapter: str, draft: bool = False) -> str:
    """Make a chapter's notebook from its source, executed unless `draft`.

    While it executes, the unexecuted notebook stands in place, since its last cell exports from the saved
    file; if a cell fails, the old notebook is put back.
    """
    source = source_path(chapter)
    path = NOTEBOOKS / f"{source.stem}.ipynb"
    nb = notebook_from_source(source)
    old = path.read_bytes() if path.exists() else None
    write_atomically(path, notebook_bytes(nb))
    if draft:
        return f"{relative(path)} written, not executed"
    try:
        execute(nb, path.name, os.environ | {"NANOGPT_SCALE": "laptop", "NANOGPT_DEVICE": "cpu"})
    except BaseException:
        if old is None:
            path.unlink()
        else:
            write_atomically(path, old)
        raise
    clean(nb)
    write_atomically(path, notebook_bytes(nb))
    return f"{relative(path)} executed, {len(notebook_bytes(nb)) // 1000} kB"


def execute(nb: nbformat.NotebookNode, name: str, env: dict, on_cell=None) -> None:
    """Run all cells in order in a fresh kernel whose working folder is `notebooks/`."""
    client = NotebookClient(
        nb,
        timeout=900,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(NOTEBOOKS)}},
        record_timing=False,
        store_widget_state=True,  # without it nbclient fails on `interact`; clean() drops the state
        on_cell_executed=on_cell,
    )
    try:
        client.execute(env=env)
    except CellExecutionError as error:
        raise CourseError(describe_failure(nb, name, error)) from None


def describe_failure(nb: nbformat.NotebookNode, name: str, error: CellExecutionError) -> str:
    """Which cell failed, its text, and its error."""
    number, cell, output = next(
        (i, cell, out)
        for i, cell in enumerate(nb.cells)
        for out in cell.get("outputs", [])
        if out.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", [])
    )
    trace = ANSI.sub("", "\n".join(output.traceback)).splitlines()[-20:]
    return "\n".join(
        [f"{name}, cell {number} fails:", *indent(cell.source.splitlines()[:12]), "", *indent(trace)]
    )


def indent(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def clean(nb: nbformat.NotebookNode) -> None:
    """Drop what differs from run to run or cannot be shown without a kernel."""
    nb.metadata = nbformat.from_dict(METADATA)
    for cell in nb.cells:
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        if cell.cell_type == "code":
            cell.outputs = merge_streams([o for o in cell.outputs if WIDGET not in o.get("data", {})])


def merge_streams(outputs: list) -> list:
    """One stream output instead of as many as the kernel happened to send."""
    merged: list = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last and output.output_type == last.output_type == "stream" and output.name == last.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def check(chapter: str) -> str:
    """The difference between a source and its notebook; empty where they agree."""
    source = source_path(chapter)
    path = NOTEBOOKS / f"{source.stem}.ipynb"
    if not path.exists():
        return f"{relative(path)} is missing; run `course build {chapter}`"
    wanted, found = cell_lines(notebook_from_source(source)), cell_lines(read_notebook(path))
    return "\n".join(difflib.unified_diff(found, wanted, relative(path), relative(source), lineterm="", n=2))


def cell_lines(nb: nbformat.NotebookNode) -> list[str]:
    """A notebook's cells as text lines: kind, id, tags and source, without outputs."""
    lines = []
    for cell in nb.cells:
        tags = " ".join(cell.metadata.get("tags", []))
        lines += [f"%% {cell.cell_type} {cell.get('id')} {tags}".rstrip(), *cell.source.splitlines()]
    return lines
