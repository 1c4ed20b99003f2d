"""For notebooks: work in a child process that ends by `kill -9`. Windows cannot fork, and has no such children."""

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

POSSIBLE = hasattr(os, "fork")
PATIENCE = 60  # seconds that a child may take to write its lines


def start(work: Callable[[], object]) -> int:
    """Call `work` in a child process whose prints are not shown; the child's process id."""
    with warnings.catch_warnings(action="ignore"):  # to fork is unwise beside threads; this child dies anyway
        child = os.fork()
    if not child:
        try:
            with open(os.devnull, "w", encoding="utf-8") as sys.stdout:
                work()
        finally:
            os._exit(0)
    return child


def kill(child: int) -> None:
    """End a child by `kill -9`, at once: it cannot tidy up."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def at_line(work: Callable[[], object], path: Path, lines: int, longer: float = 0.0) -> int:
    """Call `work` in a child, which is killed some seconds after the file has so many lines; how many it has then."""
    child, began = start(work), time.monotonic()
    while time.monotonic() < began + PATIENCE and lines_in(path) < lines:
        if os.waitpid(child, os.WNOHANG)[0]:  # its work has ended, or failed
            return lines_in(path)
        time.sleep(0.001)
    time.sleep(longer)
    kill(child)
    return lines_in(path)


def lines_in(path: Path) -> int:
    """The complete lines of a file; 0 if it does not exist."""
    return path.read_bytes().count(b"\n") if path.exists() else 0


def before_change(number: int, work: Callable[[], object], folder: Path) -> bool:
    """Call `work` in a child that kills itself before its change of that number below the folder; False if it makes fewer.

    A change is a file that is opened to be written, or a rename. Python announces both before they happen.
    """
    return os.waitpid(start(lambda: [die_before(number, folder), work()]), 0)[1] != 0


def die_before(number: int, folder: Path) -> None:
    """From here on, count the changes below the folder, and kill this process before the one of that number."""
    changes = []

    def hook(event: str, args: tuple) -> None:
        written = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
        if (written or event == "os.rename") and folder.name in str(args[0]):
            changes.append(event)
            if len(changes) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
