"""What asks a run to end, and what it says when it ends for good.

Exported from notebooks/17e_long_run.ipynb.
"""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from nanogpt.corpora.prepare import DISK_FULL
from nanogpt.run.training import Training


def last_good(training: Training) -> str:
    return f"the last good checkpoint is {training.kept}" if training.kept else "there is no checkpoint yet"


@contextmanager
def asked_to_stop(training: Training) -> Iterator[Callable[[], str | None]]:
    """A function that says why the run should end after this step, if it should: a signal, a file, the time limit."""
    began, minutes, noted, file = time.monotonic(), training.config.run.minutes, [], training.folder / "stop"
    training.stopped = None  # what ends it before its last step

    def note(number, frame):
        if noted:
            raise KeyboardInterrupt(f"{last_good(training)}, and the same command goes on from it")
        noted.append(signal.Signals(number).name)

    def reason() -> str | None:
        if file.exists():
            file.unlink(missing_ok=True)
            noted.append(f"the file {file}")
        reserve = 1.5 * sum(training.longest.values())  # a step, a checkpoint, an evaluation
        if time.monotonic() - began + reserve > 60 * (minutes or math.inf):
            noted.append(f"run.minutes={minutes:g}")
        return noted[0] if noted else None

    with ExitStack() as at_the_end:
        for number in (signal.SIGINT, signal.SIGTERM):
            at_the_end.callback(signal.signal, number, signal.signal(number, note))
        yield reason


@contextmanager
def naming_last_good(training: Training) -> Iterator[None]:
    """Add the last good checkpoint to the message of an error that ends the run: no finite loss, or a full disk."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(
            f"step {training.step}: {error}; {last_good(training)}; lower optim.lr"
        ) from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(
            f"no room left in {training.folder}; {last_good(training)}; make room and go on"
        ) from None
