"""Which files here differ from git's, and which modules nothing would bring back: neither git, nor a chapter, nor a notebook."""

import subprocess
from pathlib import Path

from course.notebooks.update import is_clone
from course.package.compose import all_notebooks, compose
from course.paths import NOTEBOOKS, PACKAGE, ROOT, CourseError, module_path, relative
from course.states.released import owners, whole
from course.states.state import was_written


def uncommitted() -> set[Path]:
    """The files of nanogpt/ and notebooks/ that are not as git has them, deleted ones aside; without git, all of them."""
    folders = [PACKAGE, NOTEBOOKS]
    if not is_clone():
        return {path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts}
    command = ["git", "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--"]
    done = subprocess.run(
        [*command, *map(str, folders)], cwd=ROOT, capture_output=True, encoding="utf-8", check=True
    )
    paths = {ROOT / entry[3:] for entry in done.stdout.split("\0") if entry}
    return {path for path in paths if path.exists()}


def refuse_edits_by_hand(changed: set[Path]) -> None:
    """CourseError for a changed module that is not what a chapter, a notebook here or a checkpoint makes."""
    for module, chapter in owners().items():
        path = module_path(module)
        if path not in changed or was_written(module):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if text not in (whole([module])[module], exported(module)):
            raise CourseError(
                f"{relative(path)} was changed by hand, and nothing would bring it back: write the change into chapter {chapter}'s "
                f"notebook and `course checkpoint {chapter}`, or `course restore {chapter}`, or move the file away"
            )


def exported(module: str) -> str | None:
    """The module as the present notebooks make it; None where they cannot."""
    try:
        return compose(all_notebooks(), {module}).get(module)
    except CourseError:
        return None
