"""What an exercise's checks.py is written with: checks, wrong solutions, and how two values are compared.

def heads(draw):                                     # draw: a torch.Generator of the student's own
    return [(torch.randn(2, 3, 5, 4, generator=draw),) for _ in range(2)]

CHECKS = [Check("04-1", "each row sums to one", 2, "attention_weights", heads)]
WRONG = [Wrong("04-1", "the mask comes after the softmax", old="...", new="...")]
FORBIDDEN = [Wrong("04-2", "a loop over heads", code="...")]  # right, but for what `#| forbids` in exercise.py forbids
MANUAL = {"04-5": 2}
"""

import hashlib
import inspect
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch


@dataclass(frozen=True)
class Check:
    """Calls the student's code on inputs that we draw and compares with what the reference gives on the same.

    call: the name of a function (or of a number, a text, a list) in the solution; or a function `harness(s, *args)` of ours
    that uses the solution's names as attributes of s. A harness runs in the sandbox, as text: it imports what it needs,
    knows nothing of its module, and returns what was computed, never a verdict.
    judge: judge(got, expected, *args) -> "" or what is wrong, where equality up to `tolerance` is not the question. It runs
    on our side, for each tuple of inputs.
    """

    task: str
    name: str  # what a right solution does; the student reads it
    points: float
    call: str | Callable
    inputs: Callable[[torch.Generator], list[tuple]] = lambda draw: [()]
    hidden: bool = True  # feedback shows a hidden check's name and points only
    tolerance: float = 1e-5
    judge: Callable | None = None
    seconds: float = 10.0
    in_place: bool = False  # the task says that arguments are changed; else they are to stay as they are

    @cached_property
    def harness(self) -> str:
        """The text that the sandbox runs; "" where it calls a name."""
        return "" if isinstance(self.call, str) else textwrap.dedent(inspect.getsource(self.call))


@dataclass(frozen=True)
class CheckOfCheck:
    """The student writes the check: a function that raises AssertionError for a wrong implementation and accepts a right one.

    right, wrong: texts that define `subject`. One right one refused: no points. Else points by the share of the wrong
    ones refused. The student's function never sees their code: calls go through us.
    """

    task: str
    name: str
    points: float
    check: str  # the student's function, of one argument
    subject: str  # the function that the texts define
    right: tuple[str, ...]
    wrong: dict[str, str]  # by what is wrong with it
    hidden: bool = True
    seconds: float = 10.0


@dataclass(frozen=True)
class Wrong:
    """A solution that students really write, and the misconception behind it, as it is told to them.

    `old` stands exactly once in the reference solution of the task and becomes `new`; or `code` is the whole cell.
    """

    task: str
    says: str
    old: str = ""
    new: str = ""
    code: str = ""

    def solution(self, reference: str) -> str:
        if self.code:
            return textwrap.dedent(self.code).strip("\n")
        if (times := reference.count(self.old)) != 1:
            raise ValueError(f"{self.task}: {self.old!r} stands {times} times in the solution, not once")
        return reference.replace(self.old, self.new)


def drawn_for(student: str, check) -> torch.Generator:
    """The same inputs for a student every time, others for their neighbour."""
    words = hashlib.sha256(f"{check.task}/{check.name}/{student}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(words[:7], "little"))


def difference(got, expected, tolerance: float = 1e-5, where: str = "the result") -> str:
    """ "" if two values are equal up to the tolerance, else the first difference in words. Never raises."""
    if isinstance(expected, torch.Tensor | np.ndarray):
        return tensor_difference(got, torch.as_tensor(expected), tolerance, where)
    if isinstance(expected, bool | int | float | str | None):
        due = f"{where} is {short(got)}, not {short(expected)}"
        return "" if is_same(got, expected, tolerance) else due
    if isinstance(expected, dict):
        if not isinstance(got, dict) or set(got) != set(expected):
            return f"{where} is {short(got)}; a dictionary with {', '.join(map(str, expected))} is due"
        keys = list(expected)
    else:
        if not isinstance(got, list | tuple):
            return f"{where} is of type {type(got).__name__}, where a list or tuple is due"
        if len(got) != len(expected):
            return f"{where} has {len(got)} parts, not {len(expected)}"
        keys = range(len(expected))
    parts = (difference(got[key], expected[key], tolerance, f"{where}[{key!r}]") for key in keys)
    return next(filter(None, parts), "")


def is_same(got, expected, tolerance: float) -> bool:
    if isinstance(expected, bool | str | None):
        return type(got) is type(expected) and got == expected
    if isinstance(got, torch.Tensor) and got.numel() == 1 and not got.is_complex():
        got = got.item()
    if isinstance(got, bool) or not isinstance(got, int | float):
        return False
    if isinstance(expected, int) and isinstance(got, int):
        return got == expected  # a tolerance is for what was rounded; of 98,174,773 it is 981
    return abs(got) < 1e300 and math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)


def tensor_difference(got, expected: torch.Tensor, tolerance: float, where: str) -> str:
    if said := tensor_form(got, expected, where):
        return said
    got = torch.as_tensor(got)
    far = ~torch.isclose(got.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
    if not far.any():
        return ""
    at = tuple(far.nonzero()[0].tolist())
    it_is = f"it is {short(got[at].item())}, not {short(expected[at].item())}"
    return f"{where} differs in {int(far.sum())} of {far.numel()} places; at {at} {it_is}"


def tensor_form(got, expected: torch.Tensor, where: str) -> str:
    """What is wrong with a result before its numbers are looked at."""
    if not isinstance(got, torch.Tensor | np.ndarray):
        return f"{where} is of type {type(got).__name__}, where a tensor is due"
    got = torch.as_tensor(got)
    if got.dtype != expected.dtype:
        return f"{where} is in {got.dtype}, not {expected.dtype}"
    if got.shape != expected.shape:
        return f"{where} has the shape {tuple(got.shape)}, not {tuple(expected.shape)}"
    return ""


def short(value) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
