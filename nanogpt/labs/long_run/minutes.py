"""End a run while there is time to save it: the key run.minutes.

Exported from notebooks/17e_long_run.ipynb.
"""

import time


def attach(run) -> None:
    """End the run when run.minutes leave no time for another step, a checkpoint and an evaluation."""
    began, minutes = time.monotonic(), run.config.run.minutes

    def reason() -> str | None:
        reserve = 1.5 * sum(run.longest.values())
        if time.monotonic() - began + reserve > 60 * minutes:
            return f"run.minutes={minutes:g}"

    run.reasons.append(reason)
