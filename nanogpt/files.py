"""Files that are complete or not there.

Exported from notebooks/03_data.ipynb, grown by notebooks/16_real_text.ipynb.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomically(path: str | os.PathLike) -> Iterator:
    """Open a file for writing bytes. It gets its name when it is complete; until then the old file stays as it was."""
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # another process writes another one
    try:
        with open(aside, "wb") as file:
            if path.exists():
                shutil.copymode(path, aside)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def save_json(path: str | os.PathLike, contents: dict) -> None:
    """Write `contents` as JSON, atomically."""
    with atomically(path) as file:
        file.write((json.dumps(contents, indent=1) + "\n").encode())


@contextmanager
def alone_in(out: Path, who="prepare", other="choose another --out", shared=False) -> Iterator[None]:
    """The folder, made if absent, is this process's alone while the block lasts, or shared by those who say so."""
    if out.is_file():
        raise ValueError(f"{out} is a file, and {who} writes a folder; {other}")
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "ab") as file:
        try:
            if os.name == "nt":
                import msvcrt

                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(f"another {who} writes into {out}; wait, or {other}") from None
        except OSError:
            pass  # a file system without locks
        yield
