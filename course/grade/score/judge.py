"""Comparing what a stranger's code gave with what is due: by the check's own judge, and before it by form."""

import contextlib
import math
import signal

import numpy as np
import torch

from course.exercises.checks import Check, tensor_form
from course.grade.score import local


def judged(check: Check, got: list, expected: list, arguments: list) -> str:
    """local.judged, for values of a stranger: finite where ours are, and of a form that the judge can read."""
    for g, e in zip(got, expected):
        if said := form(g, e):
            return said
    try:
        with time_limit(check.seconds):
            return local.judged(check, got, expected, arguments)
    except Exception as error:
        local.judged(check, expected, expected, arguments)  # raises where the fault is ours
        return f"the result has a form that cannot be judged ({type(error).__name__}: {error})"


def form(got, expected) -> str:
    """What is wrong with a result before its numbers are looked at: a judge need not think of it."""
    if isinstance(expected, torch.Tensor):
        if isinstance(got, np.ndarray):
            return "the result is of type ndarray, where a tensor is due"
        if said := tensor_form(got, expected, "the result"):
            return said
    return "the result is not finite" if finite(expected) and not finite(got) else ""


@contextlib.contextmanager
def time_limit(seconds: float):
    """For our own code on a stranger's values: TimeoutError when it takes longer."""

    def stop(*_):
        raise TimeoutError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def finite(value) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    if isinstance(value, np.ndarray):
        return bool(np.isfinite(value).all())
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    return all(map(finite, value)) if isinstance(value, list | tuple) else True
