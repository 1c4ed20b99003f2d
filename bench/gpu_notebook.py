"""A notebook executed with its outputs kept: through nbclient, or cell by cell where Jupyter is absent."""

import base64
import contextlib
import importlib.util
import io
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

ROOT = Path(__file__).resolve().parent.parent


def found(package: str) -> bool:
    return bool(importlib.util.find_spec(package))


def run_notebook(path: Path, copy: Path, limit: float) -> dict:
    """Execute a notebook but for its checkpoint; `copy` has the outputs so far after every cell."""
    nb, start = json.loads(path.read_text(encoding="utf-8")), time.perf_counter()

    def keep(nb: dict) -> None:
        copy.write_text(json.dumps(nb, indent=1, ensure_ascii=False), encoding="utf-8")

    if jupyter := found("nbclient") and found("ipykernel"):
        failed = with_nbclient(nb, keep, limit)
    else:
        failed = cell_by_cell(nb, keep)
    seconds = time.perf_counter() - start
    summary = f"{path.name}: {seconds:.0f} s, " + (
        f"{len(failed)} cells failed" if failed else "every cell ran"
    )
    if not jupyter and not found("matplotlib"):
        summary += "; without pictures, which need matplotlib"
    return {"seconds": seconds, "failed": failed, "jupyter": bool(jupyter), "summary": summary}


def without_checkpoint(nb: dict) -> list[dict]:
    """The code cells but the last, which would export into the package."""
    return [cell for cell in nb["cells"] if cell["cell_type"] == "code"][:-1]


def expected(cell: dict) -> bool:
    return "raises-exception" in cell["metadata"].get("tags", [])


def with_nbclient(nb: dict, keep: Callable[[dict], None], limit: float) -> list[str]:
    """Executed in a kernel; errors are kept as outputs, and the next cell runs. Returns the errors."""
    import nbformat
    from nbclient import NotebookClient

    last = [cell for cell in nb["cells"] if cell["cell_type"] == "code"][-1]
    nb["cells"].remove(last)
    node = nbformat.reads(json.dumps(nb), as_version=4)

    def kept(**_) -> None:
        keep(json.loads(nbformat.writes(node)))

    options = {"timeout": int(limit), "allow_errors": True, "store_widget_state": True}
    resources = {"metadata": {"path": str(ROOT / "notebooks")}}
    NotebookClient(node, resources=resources, on_cell_executed=kept, **options).execute()
    kept()
    return [
        f"{output['ename']}: {output['evalue']}"
        for cell in node.cells
        for output in cell.get("outputs", [])
        if output["output_type"] == "error" and not expected(cell)
    ]


def cell_by_cell(nb: dict, keep: Callable[[dict], None]) -> list[str]:
    """Executed in this process, with stand-ins for what needs Jupyter or matplotlib. Returns the errors."""
    shown: list[dict] = []
    sys.modules["course.notebook"] = stand_in(shown)
    if not found("matplotlib"):
        # Draws nothing; `show` keeps what the picture would say. A chapter's instruments, files there too, are as they are.
        importlib.import_module("course.figures").__getattr__ = lambda name: MagicMock()
    os.chdir(ROOT / "notebooks")
    sys.modules["chapter"] = chapter = ModuleType("chapter")  # where torch.compile looks its names up
    space, failed, cells = vars(chapter), [], without_checkpoint(nb)
    for number, cell in enumerate(cells, 1):
        if re.search(r"_widget\(|IPython", source(cell)) and not found("ipywidgets"):
            cell["outputs"] = [text_output("(left out: this cell needs Jupyter's widgets)\n")]
            continue
        shown.clear()
        printed, start = io.StringIO(), time.perf_counter()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(source(cell), f"cell {number}", "exec"), space)
        except Exception as error:
            printed.write(traceback.format_exc())
            if not expected(cell):
                failed.append(f"cell {number}: {type(error).__name__}: {error}")
                print(failed[-1], flush=True)
        if (seconds := time.perf_counter() - start) > 1:
            print(f"cell {number} of {len(cells)} took {seconds:.1f} s", flush=True)
        cell["execution_count"] = number
        cell["outputs"] = [text_output(printed.getvalue())] * bool(printed.getvalue()) + shown[:]
        keep(nb)
    return failed


def source(cell: dict) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def text_output(text: str) -> dict:
    return {"output_type": "stream", "name": "stdout", "text": text}


def stand_in(shown: list[dict]):
    """A module with the names that a chapter imports from course.notebook; figures go to `shown`."""

    def show(fig, alt, handle=None):
        if not found("matplotlib"):
            shown.append(text_output(f"(a picture, left out without matplotlib: {alt})\n"))
            return
        buffer = io.BytesIO()
        fig.savefig(buffer, format="png", dpi=80, bbox_inches="tight")
        data = {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": alt}
        metadata = {"image/png": {"alt": alt}}
        shown.append({"output_type": "display_data", "data": data, "metadata": metadata})

    module = ModuleType("course.notebook")
    module.show = show
    for name in ("checkpoint", "predict", "answer", "predictions", "grown"):
        setattr(module, name, lambda *args, **kwargs: None)
    return module
