"""Where a chapter's notebook stops when one of its blanks is empty, found in one pass: `python tests/blanks.py 04 05`.

One kernel runs the notebook in order. Before each cell with blanks, it runs that cell with one of them empty and then the
cells below, until one fails; then the cell as it is, and goes on to the chapter's last blank. So all of its blanks cost
less than one run of it.
"""

import os
import re
import sys
import time

from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from course.notebooks.build import CELL_SECONDS, describe_failure
from course.notebooks.source import notebook_from_source
from course.package.blank import TURN, emptied
from course.package.cells import exported_cells
from course.paths import EXECUTED, NOTEBOOKS, source_chapters, source_path

ENVIRONMENT = {EXECUTED: "1", "NANOGPT_DEVICE": "cpu", "NANOGPT_SCALE": "ci"}


def stops(nb, name: str, folder=NOTEBOOKS, env: dict | None = None) -> dict[str, tuple[int, list[str]]]:
    """Blank → the cell that fails when it is empty, counted from 1, and what that cell says; (0, []) if none fails."""
    ids = [cell.id for cell in nb.cells]
    exported = {ids.index(cell.id): cell for cell in exported_cells(nb, name)}
    cells = [i for i, cell in enumerate(nb.cells) if cell.cell_type == "code" and not ends(cell.source)]
    client = NotebookClient(
        nb,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
        store_widget_state=False,
    )
    found: dict[str, tuple[int, list[str]]] = {}
    last = max((i for i, cell in exported.items() if cell.blanks), default=-1)
    with client.setup_kernel(env=os.environ | ENVIRONMENT | (env or {})):
        for i in (j for j in cells if j <= last):
            whole = nb.cells[i].source
            for blank in exported[i].blanks if i in exported else ():
                nb.cells[i].source = emptied(whole, exported[i], [blank])
                found[blank] = first_failure(client, nb, [j for j in cells if j >= i])
            nb.cells[i].source = whole
            if i < last and first_failure(client, nb, [i])[0]:
                raise AssertionError(describe_failure(nb, name))
    return found


def ends(source: str) -> bool:
    """Whether a cell is the notebook's checkpoint, which tests and writes."""
    return bool(re.search(r"^checkpoint\(", source, re.MULTILINE))


def first_failure(client: NotebookClient, nb, cells: list[int]) -> tuple[int, list[str]]:
    for i in cells:
        try:
            client.execute_cell(nb.cells[i], i)
        except CellExecutionError:
            return i + 1, next(o.traceback for o in nb.cells[i].outputs if o.output_type == "error")
    return 0, []


def problems(found: dict[str, tuple[int, list[str]]]) -> list[str]:
    """What is not as it should be: each blank's notebook stops, with that blank's sentence and nothing else."""
    return [
        f"{blank}: cell {cell or '(none)'} fails with {said}"
        for blank, (cell, said) in found.items()
        if len(said) != 1 or not re.fullmatch(rf"{TURN}{re.escape(blank)}\b[^\n]*", said[0])
    ]


def main(chapters: list[str]) -> int:
    wrong = 0
    for chapter in chapters or source_chapters():
        source, begun = source_path(chapter), time.monotonic()
        try:
            found = stops(notebook_from_source(source), f"{source.stem}.ipynb")
        except AssertionError as error:
            print(f"{chapter} {error}", flush=True)
            wrong += 1
            continue
        where = ", ".join(f"{blank} in cell {cell}" for blank, (cell, _) in found.items())
        print(
            f"{chapter} {time.monotonic() - begun:5.0f} s  {where}", *problems(found), sep="\n   ", flush=True
        )
        wrong += len(problems(found))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
