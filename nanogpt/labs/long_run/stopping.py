"""What asks a run to end, and what it says when it ends for good.

Exported from notebooks/17e_long_run.ipynb, grown by notebooks/20a_many_processes.ipynb.
"""

import errno
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from nanogpt.labs.long_run.training import Training


def last_good(training: Training) -> str:
    return f"the last good checkpoint is {training.kept}" if training.kept else "there is no checkpoint yet"


def limit_reached(training: Training, seconds: float) -> str | None:
    """A reason to end without a signal: a file `stop`, which is removed, or no time for another step in run.minutes."""
    minutes, file = training.config.run.minutes, training.folder / "stop"
    if file.exists():
        file.unlink(missing_ok=True)
        return f"the file {file}"
    reserve = 1.5 * sum(training.longest.values())  # a step, a checkpoint, an evaluation
    if minutes and seconds + reserve > 60 * minutes:
        return f"run.minutes={minutes:g}"


@contextmanager
def asked_to_stop(training: Training) -> Iterator[Callable[[], str | None]]:
    """A function that says why the run should end after this step, if it should: a signal, a file, the time limit."""
    began, noted = time.monotonic(), []
    training.stopped = None  # what ends it before its last step

    def note(number, frame):
        if noted:
            raise KeyboardInterrupt(f"{last_good(training)}, and the same command goes on from it")
        noted.append(signal.Signals(number).name)

    def reason() -> str | None:
        limit = limit_reached(training, time.monotonic() - began)
        return noted[0] if noted else limit

    with ExitStack() as at_the_end:
        for number in (signal.SIGINT, signal.SIGTERM):
            at_the_end.callback(signal.signal, number, signal.signal(number, note))
        yield reason


def exit_code(training: Training) -> int:
    """For the shell: 0 for a finished run, 128 plus a signal's number, 1 for another stop; that is 0 under torchrun."""
    if training.step >= training.config.train.max_steps:
        return 0
    if training.stopped in ("SIGINT", "SIGTERM"):
        return 128 + signal.Signals[training.stopped]
    return 0 if "TORCHELASTIC_RUN_ID" in os.environ else 1


DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


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
