"""What the notebooks themselves import: `checkpoint("05")`, `show(fig, alt=...)`, and what else `__all__` names."""

import contextlib
import importlib
import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import matplotlib.pyplot as plt
from IPython import get_ipython
from IPython.display import display
from PIL import Image

from course.colab import is_colab, save_shown
from course.package.as_of import chapters_of, compose, notebooks_upto
from course.package.blank import say_turn
from course.package.cells import exported_cells
from course.package.checkpoint import TestsFail, checkpoint_chapter
from course.package.grown import as_html, difference
from course.package.remedies import not_there
from course.package.tutor import NotRight, blanks_of
from course.package.tutor import check as check_blank
from course.parts import run_parts_again
from course.paths import NOTEBOOKS, ROOT, CourseError, notebook_path, plainly
from course.predictions import answer, predict, predictions

__all__ = ["as_left_by", "as_module", "check", "checkpoint", "grown", "show"]
__all__ += ["answer", "predict", "predictions"]  # of course/predictions.py

plt.style.use(Path(__file__).with_suffix(".mplstyle"))
RUN: list[str] = []  # the cells that ran to their end since this module was imported, in order
# The last run of each, where the front end tells the cell's id, as JupyterLab does.
BY_ID: dict[str, str] = {}


def remember(result) -> None:
    if result.success:
        RUN.append(result.info.raw_cell)
        if cell := getattr(result.info, "cell_id", None):  # Colab's older IPython knows none
            BY_ID[cell] = result.info.raw_cell
        if again := run_parts_again(result.info.raw_cell, cell, get_ipython().user_ns):
            print("also run again, because it builds on this cell:", ", ".join(dict.fromkeys(again)))
    elif said := not_there(str(result.error_in_exec)):
        print(said)


def elsewhere() -> str:
    """What to say where this kernel does not work in notebooks/ (or a folder beside it); nothing where it does."""
    if not NOTEBOOKS.is_dir() or Path("../data").resolve() == ROOT / "data":
        return ""
    return f"note: this kernel works in {Path.cwd()}, and chapters in {NOTEBOOKS}: open the notebook there; its data is ../data, and the checkpoint exports the notebook saved there"


if get_ipython():  # an event, not the kernel's history: some runners keep none
    get_ipython().events.register("post_run_cell", remember)
    get_ipython().set_custom_exc((NotImplementedError,), say_turn)
    if said := elsewhere():
        print(said)


def checkpoint(chapter: str) -> None:
    """Export this notebook's finished code into `nanogpt/`, if it imports and its tests pass."""
    try:
        if is_colab():
            save_shown(notebook_path(chapter))
        print("\n".join(checkpoint_chapter(chapter, RUN if get_ipython() else None, BY_ID)))
    except OSError as error:  # a full disk, a folder that cannot be written
        raise CourseError(plainly(error)) from None
    except TestsFail as error:
        raise CourseError(f"{not_right(chapter)}{error}") from None


def check(chapter: str, name: str) -> None:
    """Say whether a blank's body, as it was run last, is right; if it is not, what was expected and what came."""
    check_blank(chapter, name, get_ipython().user_ns)


def not_right(chapter: str) -> str:
    """What the tutor says of the first of a chapter's blanks that is not right, if one is not."""
    for name in blanks_of(chapter) if get_ipython() else ():
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                check(chapter, name)
        except NotRight as error:
            return f"{error}\n\n"
        except Exception:  # the tests' own words must do
            continue
    return ""


def show(fig, alt: str | None = None, handle=None) -> None:
    """Display a figure as a small PNG with alternative text, by default its label, in place of what `handle` showed; close it."""
    alt = alt or fig.get_label()
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png")
    plt.close(fig)
    bundle = {"image/png": shrink(buffer.getvalue()), "text/plain": alt}
    place = handle.update if handle else display
    place(bundle, raw=True, metadata={"image/png": {"alt": alt}})


def grown(name: str, chapter: str | None = None) -> None:
    """Show how a chapter's saved notebook changes an earlier definition: "+ " is new, "- " is gone. chapter: where several do."""
    lines = difference(name, chapter)
    display({"text/plain": "\n".join(lines), "text/html": as_html(lines)}, raw=True)


def as_module(name: str) -> None:
    """Let `nanogpt.NAME` be what this notebook has defined for it so far, for code that imports it by name.

    The checkpoint writes the module; before that, a trainer that is asked for this lab finds the notebook's own functions.
    """
    ran = SimpleNamespace(cells=[SimpleNamespace(cell_type="code", source=text) for text in RUN])
    cells = exported_cells(ran, "this notebook")
    names = {each.split(".")[0] for cell in cells if cell.module == name for each in cell.names()}
    try:
        module = importlib.import_module(f"nanogpt.{name}")
    except ModuleNotFoundError:
        module = sys.modules[f"nanogpt.{name}"] = ModuleType(f"nanogpt.{name}")
    vars(module).update({each: get_ipython().user_ns[each] for each in names})


def as_left_by(chapter: str, name: str) -> ModuleType:
    """`nanogpt.NAME` as this chapter left it: what the next sitting goes on with, whatever later ones have made of it."""
    if not any(number > chapter for number in chapters_of(name)):
        return importlib.import_module(f"nanogpt.{name}")
    module = ModuleType(f"nanogpt.{name}")
    text = compose(notebooks_upto(chapter), {name})[name]
    exec(compile(text, f"{name}.py as of {chapter}", "exec"), vars(module))
    return module


def shrink(png: bytes) -> bytes:
    """The same picture with at most 128 colours: a third of the size, and no visible difference in a plot."""
    picture = Image.open(io.BytesIO(png)).convert("RGB").quantize(128)
    out = io.BytesIO()
    picture.save(out, format="png", optimize=True)
    return out.getvalue()
