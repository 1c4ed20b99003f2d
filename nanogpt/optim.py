"""The learning rate as a function of the step.

Exported from notebooks/07_training.ipynb.
"""


def decayed(step: int, steps: int, decay: float) -> float:
    """The factor of the learning rate: 1, and over the last `decay` of the steps linearly to zero."""
    return min(1.0, (steps - step) / max(1.0, decay * steps))
