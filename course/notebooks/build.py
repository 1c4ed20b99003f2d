"""`notebooks/src/05_gpt.py` → `notebooks/05_gpt.ipynb`: stable ids, executed in order, clean outputs."""

import ast
import asyncio
import contextlib
import os
import re
import signal
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from course.files import diff, notebook_bytes, read_notebook, write_atomically
from course.notebooks.address import dressed, undressed
from course.notebooks.source import METADATA, cell_lines, notebook_from_source, with_ids_of
from course.package.cells import places
from course.package.checkpoint import check_chapter, checkpoint_chapter
from course.package.remedies import remedy
from course.paths import ASIDE, EXECUTED, NOTEBOOKS, CourseError, relative, source_path

WIDGET = "application/vnd.jupyter.widget-view+json"
CELL_SECONDS = 3600  # for a cell that never ends; a slow machine with other work stays far below
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def build(chapter: str, draft: bool = False, again: bool = False) -> str:
    """Make a chapter's notebook from its source, executed unless `draft`.

    Where no code has changed it keeps its outputs, unless `again`. Else a copy is executed, aside, and replaces the notebook
    when all is done; its last cell exports from that copy.
    """
    source = source_path(chapter)
    path = NOTEBOOKS / f"{source.stem}.ipynb"
    nb, old = undressed(notebook_from_source(source)), None
    with contextlib.suppress(CourseError):  # there is none yet, or a damaged one
        old = undressed(read_notebook(path))
        nb = with_ids_of(old, nb)
    keeps = not draft and not again and old is not None and keep_outputs(old, nb)
    nb = dressed(nb, source.stem)
    if draft or keeps:
        write_atomically(path, notebook_bytes(nb))
    if draft:
        return f"{relative(path)} written, not executed"
    if keeps:
        said = checkpoint_chapter(chapter) if check_chapter(chapter) else []  # a docstring, say
        return "\n".join([f"{relative(path)}: no code has changed, so its outputs stay", *said])
    with tempfile.TemporaryDirectory(prefix="build-") as aside:
        write_atomically(Path(aside) / path.name, notebook_bytes(nb))
        env = {"NANOGPT_SCALE": "laptop", "NANOGPT_DEVICE": "cpu", ASIDE: aside}
        execute(nb, path.name, os.environ | env)
    clean(nb)
    write_atomically(path, notebook_bytes(nb))
    return f"{relative(path)} executed, {len(notebook_bytes(nb)) // 1000} kB"


def keep_outputs(old: nbformat.NotebookNode, nb: nbformat.NotebookNode) -> bool:
    """Take the outputs over from an older notebook; False where its code is another, or none of it ran."""
    new, had = ([cell for cell in each.cells if cell.cell_type == "code"] for each in (nb, old))
    if list(map(code, new)) != list(map(code, had)) or not any(cell.outputs for cell in had):
        return False
    for cell, before in zip(new, had):
        cell.outputs, cell.execution_count = before.outputs, before.execution_count
    return True


def code(cell) -> tuple[str, list[str]]:
    """What a cell does, and its tags: without comments, directives and docstrings."""
    try:
        tree = ast.parse(cell.source)
    except SyntaxError:  # a magic
        return cell.source, cell.metadata.get("tags", [])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree), cell.metadata.get("tags", [])


class Client(NotebookClient):
    """nbclient, but for signals: its own handler ends the kernel and goes on, to fail wherever it stands."""

    stopped_by = None

    async def async_start_new_kernel(self, **kwargs) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()

        def stop(number: int) -> None:
            if self.stopped_by is None:
                self.stopped_by, self.shutdown_kernel = number, "immediate"
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(RuntimeError):  # not the main thread, or Windows
                loop.add_signal_handler(number, stop, number)
        await super().async_start_new_kernel(**kwargs)


def execute(nb: nbformat.NotebookNode, name: str, env: dict, on_cell=None) -> None:
    """Run all cells in order in a fresh kernel whose working folder is `notebooks/`.

    CourseError if a cell fails or the kernel dies; Ctrl-C and SIGTERM end the kernel, then raise KeyboardInterrupt
    and SystemExit.
    """
    at = [0]
    client = Client(
        nb,
        timeout=CELL_SECONDS,
        startup_timeout=600,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(NOTEBOOKS)}},
        record_timing=False,
        store_widget_state=True,  # without it nbclient fails on `interact`; clean() drops the state
        on_cell_executed=on_cell,
        on_cell_start=lambda cell, cell_index, **_: at.__setitem__(0, cell_index),
    )
    try:
        client.execute(env={EXECUTED: "1"} | env)
    except (Exception, asyncio.CancelledError) as error:
        if client.stopped_by:  # nbclient may have taken the stop for a dead kernel
            raise (SystemExit(143) if client.stopped_by == signal.SIGTERM else KeyboardInterrupt) from None
        whys = {
            CellExecutionError: "fails",
            CellTimeoutError: "does not end",
            DeadKernelError: "ends Python (out of memory?)",
        }
        if type(error) not in whys:
            raise
        text = nb.cells[at[0]].source.splitlines()[:12]
        if isinstance(error, CellExecutionError):
            text += ["", *ANSI.sub("", error.traceback).splitlines()[-20:]]
        lines = [f"{places(nb.cells, name)[at[0]]} {whys[type(error)]}:", *(f"    {line}" for line in text)]
        said = remedy(f"{getattr(error, 'ename', '')}: {getattr(error, 'evalue', '')}")
        raise CourseError("\n".join([*lines, "", said] if said else lines)) from None


def clean(nb: nbformat.NotebookNode) -> None:
    """Drop what differs from run to run or cannot be shown without a kernel."""
    marks = "tags", "jupyter", "cellView"  # the last two hide the first cell's text
    kept = {"course": nb.metadata["course"]} if "course" in nb.metadata else {}
    nb.metadata = nbformat.from_dict(METADATA | kept)
    for cell in nb.cells:
        cell.metadata = {name: cell.metadata[name] for name in marks if cell.metadata.get(name)}
        if cell.cell_type == "code":
            for output in cell.outputs:  # a widget's own view needs a kernel; what stands in for it is kept
                output.get("data", {}).pop(WIDGET, None)
            cell.outputs = merge_streams([o for o in cell.outputs if o.get("data") != {}])


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
    return diff("\n".join(found), "\n".join(wanted), relative(path), relative(source))
