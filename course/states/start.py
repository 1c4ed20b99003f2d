"""`course start`, `course start --at 07`, `course start --blank`, `course package`: a package that grows from nothing, and back.

All that will stand there is made aside and put in place by renames, the state's file last. What stood there is kept beside it,
unless git has it.
"""

import shutil
import tempfile
from datetime import datetime
from pathlib import Path

from course.files import notebook_bytes, write_atomically
from course.notebooks.source import notebook_from_source
from course.paths import (
    NOTEBOOKS,
    PACKAGE,
    ROOT,
    CourseError,
    module_path,
    relative,
    source_chapters,
    source_path,
    two_digits,
)
from course.states.by_hand import refuse_edits_by_hand, uncommitted
from course.states.released import owners, released
from course.states.state import FILE, built, file_text, grows, in_words
from course.states.swap import Swap, swap_all


def start(at: str | None = None, blank: bool = False) -> int:
    """Empty the package, or fill it with what the chapters before `at` build; with `blank`, hand out notebooks with blanks."""
    if at is None and grows():
        raise CourseError(
            f"this clone is started already ({in_words(built(), source_chapters())}): `course start --at 00` begins anew, `--at 07` elsewhere, "
            "`course package` brings the complete package back; each keeps yours beside it"
        )
    every = source_chapters()
    at = two_digits(at) if at else every[0]
    source_path(at)
    before = [chapter for chapter in every if chapter < at]
    texts = released(before)
    notebooks = with_blanks([chapter for chapter in every if chapter >= at]) if blank else {}
    put_in_place(texts, notebooks, file_text("blank" if blank else "started", before, texts))
    print(f"nanogpt/ is started; {in_words(before, every)}")
    if blank:
        print("what is yours to write in the notebooks says `your turn`")
    print(f"go on with chapter {at}: its notebook in `course lab`, or `course run {at}`")
    return 0


def package() -> int:
    """Bring the complete package back."""
    texts = released(source_chapters())
    if not grows() and all(text_of(module) == text for module, text in texts.items()):
        print("the package is complete, as released; `course start` empties it")
        return 0
    put_in_place(texts, {}, None)
    print("nanogpt/ is complete. Notebooks stay as they are: `course restore 04` brings one back")
    return 0


def text_of(module: str) -> str | None:
    path = module_path(module)
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None


def put_in_place(texts: dict[str, str], notebooks: dict[Path, bytes], state: bytes | None):
    """A package of these modules, these notebooks and this state, in place of what stands."""
    if not PACKAGE.is_dir():
        raise CourseError(
            "there is no nanogpt/: `git checkout nanogpt` brings it, or rename the one that was kept"
        )
    changed = uncommitted()
    refuse_edits_by_hand(changed)
    aside = Path(tempfile.mkdtemp(prefix="yours-start-", dir=ROOT))
    new, old = aside / "new", aside / "old"

    def swap(path: Path, made: Path | None, is_yours: bool) -> Swap:
        return Swap(path, made, kept_name(path) if is_yours else old / path.name)

    try:
        made = new_package(new / "nanogpt", texts)
        swaps = [swap(PACKAGE, made, any(path.is_relative_to(PACKAGE) for path in changed))]
        for path, data in notebooks.items():
            if not path.exists() or path.read_bytes() != data:
                write_atomically(new / path.name, data)
                swaps.append(swap(path, new / path.name, path in changed))
        if state:
            write_atomically(new / FILE.name, state)
        swaps.append(swap(FILE, new / FILE.name if state else None, False))
        swap_all(swaps)
    finally:
        if PACKAGE.is_dir():  # else even putting back has failed, and what stood there is in `old`
            shutil.rmtree(aside, ignore_errors=True)
    for each in swaps:
        if each.old.exists():
            print(f"your version is kept as {relative(each.old)}")


def kept_name(path: Path) -> Path:
    """A name beside it that is free, also when two are kept within a second."""
    stamp = f"yours-{datetime.now():%Y%m%d-%H%M%S}"
    names = (path.with_name(f"{stamp}{more}-{path.name}") for more in ["", *(f"-{n}" for n in range(2, 100))])
    return next(name for name in names if not name.exists())


def new_package(folder: Path, texts: dict[str, str]) -> Path:
    """A package with these modules, and all else that stands in nanogpt/."""
    ours = {module_path(module) for module in owners()}

    def left_out(place: str, names: list[str]) -> list[str]:
        return [name for name in names if name == "__pycache__" or Path(place, name) in ours]

    shutil.copytree(PACKAGE, folder, ignore=left_out)
    for module, text in texts.items():
        write_atomically(module_path(module, folder), text.encode())
    return folder


def with_blanks(chapters: list[str]) -> dict[Path, bytes]:
    """The chapters' notebooks as they are handed out."""
    from course.package.blank import handed_out

    sources = map(source_path, chapters)
    return {
        NOTEBOOKS / f"{source.stem}.ipynb": notebook_bytes(handed_out(notebook_from_source(source)))
        for source in sources
    }
