"""`course restore 04`: a chapter as it was released, with the student's version kept in yours/."""

import subprocess
from pathlib import Path

import nbformat

from course.files import diff, keep, notebook_bytes, read_notebook, write_atomically
from course.notebooks.address import dressed
from course.notebooks.source import cell_lines, notebook_from_source
from course.package.as_of import Chapter, current
from course.package.rooms import make_rooms
from course.paths import NOTEBOOKS, PACKAGE, ROOT, CourseError, module_path, number_of, relative, source_path
from course.states.released import whole
from course.states.started import is_there
from course.states.state import state


def restore(chapter: str, ask: bool = True) -> int:
    """Bring notebook and modules back; say what would be lost, and ask, before anything is written."""
    from course.states.start import as_handed_out, is_own  # here: it asks this module for released notebooks

    source = source_path(chapter)
    path = NOTEBOOKS / f"{source.stem}.ipynb"
    blank = state() == "blank"  # then the notebook comes back with its blanks, and the package stays
    nb, outputs = (as_handed_out(path), False) if blank else released_notebook(source, path)
    released = {path: notebook_bytes(nb)}
    modules: dict[str, str] = {}
    if not blank and is_there(number_of(source)):
        modules = Chapter(path, nb).in_package()
        # what is as released stays so, whatever stands in other notebooks
        modules |= {m: text for m, text in whole(modules).items() if current(m) == text}
    released |= {module_path(m): text.encode() for m, text in modules.items()}
    changed = [file for file, data in released.items() if not file.exists() or file.read_bytes() != data]
    if not outputs and changed == [path] and same_cells(path, nb):
        changed = []  # only outputs differ, and there are none to bring back
    if not changed:
        print(f"chapter {number_of(source)} is as it was released")
        return 0
    for file in changed:
        print(difference(file, released[file]))
    if not outputs and not blank and path in changed:
        print(
            f"Without git's history the cells come back without their outputs; `course run {number_of(source)}` makes them."
        )
    if ask and not agreed(
        f"Replace your {', '.join(map(relative, changed))} by the released version? Yours is kept in yours/. [y/N] "
    ):
        print("nothing changed")
        return 1
    make_rooms(modules, PACKAGE)
    keep([file for file in changed if file != path or is_own(path)], f"course restore {number_of(source)}")
    for file in changed:
        write_atomically(file, released[file])
        print(f"{relative(file)} restored")
    return 0


def agreed(question: str) -> bool:
    """Whether the answer is y or yes; no where nobody can answer."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print("\nnobody answers; `--yes` does not ask")
        return False


def same_cells(path: Path, nb: nbformat.NotebookNode) -> bool:
    try:
        return cell_lines(read_notebook(path)) == cell_lines(nb)
    except CourseError:
        return False


def released_notebook(source: Path, path: Path) -> tuple[nbformat.NotebookNode, bool]:
    """The newest committed notebook that says what its source says, and whether it has its outputs.

    Students never edit the source, so it tells a released notebook from one they committed themselves.
    Without git, or without such a commit, the notebook is made from the source, without outputs.
    """
    wanted = notebook_from_source(source)
    for commit in git("log", "--format=%H", "--", relative(path)).split():
        text = git("show", f"{commit}:{relative(path)}")
        try:
            nb = dressed(nbformat.reads(text, as_version=4), path.stem)  # the address may be a newer one
        except Exception:  # a damaged notebook may have been committed as well
            continue
        if cell_lines(nb) == cell_lines(wanted):
            return nb, True
    return wanted, False


def git(*args: str) -> str:
    try:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, encoding="utf-8")
    except FileNotFoundError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def difference(file: Path, data: bytes) -> str:
    """What restoring would change in a file: the cells of a notebook, the lines of a module."""
    if not file.exists():
        return f"{relative(file)} is missing"
    old, new = file.read_text(encoding="utf-8", errors="replace"), data.decode()
    if file.suffix == ".ipynb":
        try:
            old = "\n".join(cell_lines(read_notebook(file)))
        except CourseError as error:
            return str(error)
        new = "\n".join(cell_lines(nbformat.reads(new, as_version=4)))
    return diff(old, new, f"{relative(file)} (yours)", "released") or f"{relative(file)}: only outputs differ"
