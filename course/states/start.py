"""`course start`, `course start --at 07`, `course start --blank`, `course package`: a package that grows from nothing, and back.

All that will stand there is made aside and put in place by renames, the state's file last. What the course did not make and
git does not have is kept in yours/.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from course.files import folder_for_yours, notebook_bytes, say_kept, write_atomically
from course.git import uncommitted
from course.package.as_of import current
from course.paths import (
    NOTEBOOKS,
    PACKAGE,
    ROOT,
    CourseError,
    module_path,
    numbered,
    source_chapters,
    source_path,
    two_digits,
)
from course.states.handed_out import is_own, released_notebook, with_blanks
from course.states.released import owners, released
from course.states.state import FILE, built, file_text, grows, in_words, state


def start(at: str | None = None, blank: bool = False) -> int:
    """Empty the package, or fill it with what the chapters before `at` build; with `blank`, hand out notebooks with blanks."""
    if at is None and grows():
        raise CourseError(
            f"this clone is started already ({in_words(built())}): `course start --at 00` begins anew, `--at 07` elsewhere, "
            "`course package` brings the complete package back; each keeps yours in yours/"
        )
    every = source_chapters()
    at = two_digits(at) if at else every[0]
    source_path(at)
    blank = blank or state() == "blank"  # whoever goes elsewhere still writes the blanks
    before = [chapter for chapter in every if chapter < at]
    notebooks = with_blanks([chapter for chapter in every if chapter >= at]) if blank else {}
    words = "course start" + (f" --at {at}" if before else "") + (" --blank" if blank else "")
    put_in_place(released(before), notebooks, file_text("blank" if blank else "started", before), words)
    print(f"nanogpt/ is started; {in_words(before)}")
    if blank:
        print("what is yours to write in the notebooks says `your turn`")
    run = "" if blank else f", or `course run {at}`"
    print(f"go on with chapter {at}: its notebook in `course lab`{run}")
    return 0


def package() -> int:
    """Bring the complete package back."""
    texts = released(source_chapters())
    if not grows() and all(current(module) == text for module, text in texts.items()):
        print("the package is complete, as released; `course start` empties it")
        return 0
    untouched = [path for path in numbered(NOTEBOOKS, ".ipynb") if state() == "blank" and not is_own(path)]
    notebooks = {path: notebook_bytes(released_notebook(path)) for path in untouched}
    put_in_place(texts, notebooks, None, "course package")
    print(
        "nanogpt/ is complete. A notebook with something of yours stays as it is: `course restore 04` brings it back"
    )
    return 0


def put_in_place(texts: dict[str, str], notebooks: dict[Path, bytes], state: bytes | None, command: str):
    """A package of these modules, these notebooks and this state, in place of what stands."""
    if not PACKAGE.is_dir():
        raise CourseError(
            "there is no nanogpt/: `git checkout nanogpt` brings it, or rename the one that was kept"
        )
    changed = uncommitted()
    kept = folder_for_yours()
    kept.parent.mkdir(exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="start-", dir=kept.parent))
    new, old = aside / "new", aside / "old"

    def swap(path: Path, made: Path | None, is_yours: bool) -> Swap:
        return Swap(path, made, (kept if is_yours else old) / path.relative_to(ROOT))

    try:
        made = new_package(new / "nanogpt", texts)
        swaps = [swap(PACKAGE, made, is_own_package(changed))]
        for path, data in notebooks.items():
            if not path.exists() or path.read_bytes() != data:
                write_atomically(new / path.name, data)
                swaps.append(swap(path, new / path.name, path in changed and is_own(path)))
        if state:
            write_atomically(new / FILE.name, state)
        swaps.append(swap(FILE, new / FILE.name if state else None, False))
        swap_all(swaps)
    finally:
        if PACKAGE.is_dir():  # else even putting back has failed, and what stood there is in `old`
            shutil.rmtree(aside, ignore_errors=True)
        for folder in (kept / NOTEBOOKS.name, kept, kept.parent):
            with suppress(OSError):  # it is not empty, or not there
                folder.rmdir()
    if yours := [each.path for each in swaps if each.old.is_relative_to(kept) and each.old.exists()]:
        say_kept(kept, yours, command)


def is_own_package(changed: set[Path]) -> bool:
    """Whether a changed module is one that the chapters as released do not make, all of them or those that are built."""
    mine = [module for module in owners() if module_path(module) in changed]
    as_made = released(source_chapters(), mine), released(built(), mine)
    return any(current(module) not in [made.get(module) for made in as_made] for module in mine)


def new_package(folder: Path, texts: dict[str, str]) -> Path:
    """A package with these modules, and all else that stands in nanogpt/."""
    ours = {module_path(module) for module in owners()}

    def left_out(place: str, names: list[str]) -> list[str]:
        return [name for name in names if name == "__pycache__" or Path(place, name) in ours]

    shutil.copytree(PACKAGE, folder, ignore=left_out)
    for module, text in texts.items():
        write_atomically(module_path(module, folder), text.encode())
    return folder


@dataclass
class Swap:
    """What stands at `path` goes to `old`, and `new`, if there is one, takes its place. All are on one disk."""

    path: Path
    new: Path | None
    old: Path

    def make(self) -> None:
        self.old.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            os.replace(self.path, self.old)
        if self.new:
            os.replace(self.new, self.path)

    def undo(self) -> None:
        """Put back as much as was done: what is where says how far it came."""
        if self.new and not self.new.exists() and self.path.exists():
            os.replace(self.path, self.new)
        if self.old.exists() and not self.path.exists():
            os.replace(self.old, self.path)


def swap_all(swaps: list[Swap]) -> None:
    """Make all of them. Whatever stops it, Ctrl-C too, everything is put back where it was."""
    begun: list[Swap] = []
    try:
        for each in swaps:
            begun.append(each)
            each.make()
    except BaseException:
        for each in reversed(begun):
            each.undo()
        raise
