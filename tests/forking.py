"""multiprocessing's server, which forks the processes of a test. In `course test` it is a fork itself, and has PyTorch at once."""

import multiprocessing
import sys

from course.package.checkpoint import python


def start_server() -> None:
    """Once in a process; what it loads first is said to a context before, by set_forkserver_preload."""
    from multiprocessing import forkserver  # here: Windows, which cannot fork, imports this file too

    multiprocessing.set_executable(python())
    try:
        forkserver.ensure_running()
    finally:
        multiprocessing.set_executable(sys.executable)  # processes that are spawned are new ones
