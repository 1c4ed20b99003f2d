"""The law: after chapter N the package is what notebooks 00…N have exported, and at the end it is the committed one.

`course test` runs the notebooks in a clone whose package is empty, in three parts side by side: each later one is a clone of its
own, whose package is what `course start --at 17` makes, or `--at 20a`. tests/student_way.py, which runs last in each, compares the
packages: a part has to end with the package that the next one has begun with, and the last with the committed one.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from course.files import write_atomically
from course.git import git
from course.paths import PACKAGE, ROOT, module_path, notebook_path, source_chapters
from course.states.released import owners, released

PARTS = [ROOT / "build" / "student" / name for name in ("first", "second", "third")]  # clones
COMPARISON = "student_way.py"  # in tests/
SEAMS = "17", "20a"  # the later parts' first chapters: all parts end at about the same time
HANDS_OVER = "07"  # what the chapters up to this one have made in data/built, the later parts need as well
BY_HAND = ("__init__.py", "__main__.py")  # the files of the package that no notebook exports
# Python runs it in the clone. An editable installation's finder would give nanogpt.cli and nanogpt.device of the complete package.
ONLY_THE_CLONE = """import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in getattr(finder, "__name__", "")]
"""


def part_of(chapter: str) -> int:
    return sum(chapter >= seam for seam in SEAMS)


def before(part: int) -> list[str]:
    """The chapters of the parts before this one."""
    return [chapter for chapter in source_chapters() if part_of(chapter) < part]


def student_clone(folder: Path, chapters: Iterable[str] = ()) -> Path:
    """A copy of the course as its working tree has it, with the package that these chapters make. What stood there is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in files():
        if path.is_relative_to(PACKAGE) and path.suffix == ".py" and path.name not in BY_HAND:
            continue
        to = folder / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to)
    for module, text in released(chapters).items():
        write_atomically(module_path(module, folder / PACKAGE.name), text.encode())
    (folder / "sitecustomize.py").write_text(ONLY_THE_CLONE, encoding="utf-8")
    return folder


def files() -> list[Path]:
    """The files that git tracks or would track."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def made_by(chapters: Iterable[str]) -> dict[str, bytes]:
    """The files of a package that these chapters make."""
    hand = {name: data for name, data in contents(PACKAGE).items() if Path(name).name in BY_HAND}
    return hand | {file_name(module): text.encode() for module, text in released(chapters).items()}


def differences(package: Path, committed: dict[str, bytes]) -> list[str]:
    """What is not byte for byte the committed package."""
    ours = contents(package)
    names = sorted(name for name in {*ours, *committed} if ours.get(name) != committed.get(name))
    return [f"nanogpt/{name} is not the committed one ({exporter(name)})" for name in names]


def exporter(name: str) -> str:
    """The notebook that exports a file of the package first."""
    first = next((chapter for module, chapter in owners().items() if file_name(module) == name), None)
    return notebook_path(first).name if first else "no notebook"


def file_name(module: str) -> str:
    return module_path(module).relative_to(PACKAGE).as_posix()


def contents(package: Path) -> dict[str, bytes]:
    return {path.relative_to(package).as_posix(): path.read_bytes() for path in package.rglob("*.py")}


def clone_of(path: Path) -> Path | None:
    """The part of the notebooks to which a file belongs."""
    return next((part for part in PARTS if path.is_relative_to(part)), None)


def hand_over(first: Path, later: Path) -> None:
    """Copy what the first part has made into a later one; when it is there, it is complete."""
    aside = built_in(later).with_name("handed-over")
    shutil.copytree(built_in(first), aside)
    aside.rename(built_in(later))


def built_in(clone: Path) -> Path:
    return clone / "data" / "built"
