"""`course restore 04`: a chapter as it was released, with the student's version kept in yours/."""

from pathlib import Path

import nbformat

from course.files import diff, keep, notebook_bytes, read_notebook, replace_all
from course.notebooks.source import cell_lines
from course.package.as_of import Chapter, current
from course.package.hand_out import as_handed_out, is_own, released_notebook
from course.paths import NOTEBOOKS, CourseError, module_path, relative, source_chapters, source_path
from course.states.released import released
from course.states.state import is_there, state


def restore(chapter: str, ask: bool = True) -> int:
    """Bring notebook and modules back; say what would be lost, and ask, before anything is written."""
    path = NOTEBOOKS / f"{source_path(chapter).stem}.ipynb"
    blank = state() == "blank"  # then the notebook comes back with its blanks, and the package stays
    nb = as_handed_out(path) if blank else released_notebook(path)
    modules: dict[str, str] = {}
    if not blank and is_there(chapter):
        modules = Chapter(path, nb).in_package()
        # what is as released stays so, whatever stands in other notebooks
        whole = released(source_chapters(), modules)
        modules |= {module: text for module, text in whole.items() if current(module) == text}
    new = {path: notebook_bytes(nb)} | {module_path(m): text.encode() for m, text in modules.items()}
    changed = [file for file, data in new.items() if not file.exists() or file.read_bytes() != data]
    if not changed:
        print(f"chapter {chapter} is as it was released")
        return 0
    for file in changed:
        print(difference(file, new[file]))
    names = ", ".join(map(relative, changed))
    if ask and not agreed(f"Replace your {names} by the released version? Yours is kept in yours/. [y/N] "):
        print("nothing changed")
        return 1
    keep([file for file in changed if file != path or is_own(path)], f"course restore {chapter}")
    replace_all(new)
    print(f"{names} restored")
    return 0


def agreed(question: str) -> bool:
    """Whether the answer is y or yes; no where nobody can answer."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print("\nnobody answers; `--yes` does not ask")
        return False


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
