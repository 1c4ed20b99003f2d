"""Writing files so that a reader never meets half of one; reading notebooks.

nbformat is imported where it is needed alone: it takes a second to import, in every notebook's first cell.
"""

import difflib
import json
import os
import sys
import tempfile
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

from course.paths import ROOT, CourseError, number_of, relative


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside `path`, then replace it in one step: the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, path.stat().st_mode if path.exists() else 0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def replace_all(new: dict[Path, bytes | None]) -> None:
    """Give all these files their new contents, None where there is to be none. Whatever stops it, Ctrl-C too, all are put back."""
    old = {path: path.read_bytes() if path.is_file() else None for path in new}
    try:
        for path, data in new.items():
            write_or_remove(path, data)
    except BaseException:
        for path, data in old.items():
            write_or_remove(path, data)
        raise


def write_or_remove(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    elif not path.is_file() or path.read_bytes() != data:
        write_atomically(path, data)


def read_notebook(path: Path):
    """A notebook, as nbformat reads and checks it."""
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:
        raise unreadable(path, error) from None


def read_cells(path: Path) -> SimpleNamespace:
    """A notebook's `cells`, each with `cell_type`, `source` and `id`: as much as an export needs."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        if saved["nbformat"] != 4:
            raise ValueError(f"its format is {saved['nbformat']}, not 4")
        cells = []
        for cell in saved["cells"]:
            kind, source = str(cell["cell_type"]), "".join(cell["source"])
            cells.append(SimpleNamespace(cell_type=kind, source=source, id=str(cell.get("id", ""))))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise unreadable(path, error) from None
    return SimpleNamespace(cells=cells)


def unreadable(path: Path, error: Exception) -> CourseError:
    remedy = f"; `course restore {number}` brings it back" if (number := number_of(path)) else ""
    problem = (str(error).strip() or type(error).__name__).split("\n")[0][:100]
    return CourseError(f"{relative(path)} is not a readable notebook ({problem}){remedy}")


def notebook_bytes(nb) -> bytes:
    import nbformat

    return (nbformat.writes(nb, ensure_ascii=False).rstrip("\n") + "\n").encode()


def read_records(path: Path) -> dict[str, dict]:
    """What the course keeps in a file of JSON, by key; without what is damaged."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return {key: made for key, made in kept.items() if isinstance(made, dict)}
    except (OSError, ValueError, AttributeError):
        return {}


def json_bytes(data) -> bytes:
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def diff(old: str, new: str, old_name: str, new_name: str) -> str:
    """A unified diff, empty where the two texts agree."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="", n=2)
    return "\n".join(lines)


def keep(files: Iterable[Path], command: str) -> None:
    """Copies of the reader's versions in a folder of their own, as they were before this command; yours/contents.txt lists it."""
    files = [file for file in files if file.exists()]
    if not files:
        return
    top = ROOT if files[0].is_relative_to(ROOT) else files[0].parent
    folder = folder_for_yours(top)
    for file in files:
        write_atomically(folder / file.relative_to(top), file.read_bytes())
    line = f"{relative(folder)}/ keeps your {', '.join(map(relative, files))}, from before `{command}`"
    print(line, file=sys.stderr)
    with open(folder.parent / "contents.txt", "a", encoding="utf-8") as contents:
        contents.write(f"{line}\n")


def folder_for_yours(top: Path) -> Path:
    """yours/20261126-174330, which git ignores: a name that is free, also for two within a second."""
    stamp = top / "yours" / f"{datetime.now():%Y%m%d-%H%M%S}"
    names = (stamp.with_name(f"{stamp.name}{more}") for more in ["", *(f"-{n}" for n in range(2, 100))])
    return next(name for name in names if not name.exists())
