"""Grading in this process, of code that is ours: the tests of the exercises, and the reference for every submission."""

import copy
import inspect
from functools import cache
from types import SimpleNamespace

import numpy as np
import torch

from course.exercises.checks import Check, CheckOfCheck, difference, drawn_for
from course.exercises.sets import ExerciseSet
from course.grade.without import found, without


@cache  # the given cells and the reference run once for each check and each student
def compiled(source: str, name: str):
    return compile(source, name, "exec")


def names_of(made: ExerciseSet, solutions: dict[str, str], student: str) -> dict:
    """All names after the given cells and the solutions ran, in the notebook's order. Errors of a solution are raised."""
    names = {"__name__": "exercise", "STUDENT": student}
    for cell in made.cells:
        if cell.kind == "given":
            exec(compiled(cell.source, f"<{made.name}, given>"), names)
        elif cell.kind == "solution":
            exec(compiled(solutions[cell.task], f"<{cell.task}>"), names)
            names["STUDENT"] = student
    return names


def results(check: Check, names: dict, arguments: list[tuple]) -> list:
    """What the solution gives for each tuple of inputs."""
    return [given for given, _ in calls(check, names, arguments)]


def calls(check: Check, names: dict, arguments: list[tuple]) -> list[tuple]:
    """The same, each with the arguments as the solution leaves them."""
    own = [copied(args) for args in arguments]
    if check.harness:
        scope = {}
        exec(compiled(check.harness, f"<harness of {check.name}>"), scope)
        harness = scope[check.call.__name__]
        return [(harness(SimpleNamespace(**names), *args), args) for args in own]
    what = names[check.call]
    return [(what(*args) if callable(what) else what, args) for args in own]


def copied(args: tuple) -> tuple:
    """Of their own for each call: a solution may write into its arguments."""
    return tuple(
        arg.clone() if hasattr(arg, "clone") else copy.deepcopy(arg) if isinstance(arg, list | dict) else arg
        for arg in args
    )


def damaged(made: ExerciseSet, check: Check, arguments: list, after: list, student: str) -> str:
    """ "" if the arguments are what they were, or the task changes them; else which of them is another."""
    if check.in_place:
        return ""
    pairs = [pair for before, now in zip(arguments, after) for pair in enumerate(zip(before, now))]
    number = next((number for number, (was, is_now) in pairs if changed(was, is_now)), None)
    if number is None:
        return ""
    function = check.call if check.harness else names_of(made, made.solutions, student)[check.call]
    names = list(inspect.signature(function).parameters)[bool(check.harness) :] if callable(function) else []
    name = f"`{names[number]}`" if number < len(names) else f"number {number + 1}"
    return f"it changes its argument {name} in place, but the caller still needs it as it was"


def changed(was, now) -> bool:
    """Whether a number, a text, a tensor, an array, or a list or dictionary of them is another. Other objects are not compared."""
    if isinstance(was, list | tuple):
        other = not isinstance(now, list | tuple) or len(was) != len(now)
        return other or any(map(changed, was, now))
    if isinstance(was, dict):
        other = not isinstance(now, dict) or was.keys() != now.keys()
        return other or any(changed(was[key], now[key]) for key in was)
    if isinstance(was, torch.Tensor | np.ndarray):
        if type(now) is not type(was) or now.shape != was.shape or now.dtype != was.dtype:
            return True
        both = (torch.as_tensor(value).double() for value in (was, now))
        return not torch.allclose(*both, rtol=0, atol=0, equal_nan=True)
    if isinstance(was, int | float | str | bytes | None):
        plain = isinstance(now, int | float | str | bytes | None)
        return not plain or (was != now and was == was)  # NaN is no change of NaN
    return False


def judged(check: Check, got: list, expected: list, arguments: list[tuple]) -> str:
    """ "" if all results are right, else what is wrong with the first that is not."""
    for g, e, args in zip(got, expected, arguments):
        said = check.judge(g, e, *args) if check.judge else difference(g, e, check.tolerance)
        if said:
            return said
    return ""


def said_of(made: ExerciseSet, check, solutions: dict[str, str], student: str = "reference") -> str:
    """ "" if our own `solutions` pass a check, else what is wrong."""
    forbids = made.forbids.get(check.task, ())
    if said := found(check.task, solutions[check.task], forbids):
        return said
    try:
        names = names_of(made, solutions, student)
        if isinstance(check, CheckOfCheck):
            return killing(check, names)
        arguments = check.inputs(drawn_for(student, check))
        with without(check.task, forbids, names):
            pairs = calls(check, names, arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    expected = results(check, names_of(made, made.solutions, student), arguments)
    said = judged(check, [given for given, _ in pairs], expected, arguments)
    return said or damaged(made, check, arguments, [args for _, args in pairs], student)


def killing(check: CheckOfCheck, names: dict) -> str:
    """ "" if a check refuses all that is wrong and nothing that is right."""
    refused = {name: refuses(names[check.check], subject(check, code)) for name, code in check.wrong.items()}
    if any(refuses(names[check.check], subject(check, code)) for code in check.right):
        return "it refuses a right implementation"
    return "; ".join(f"it accepts: {name}" for name, killed in refused.items() if not killed)


def subject(check: CheckOfCheck, code: str):
    scope = {}
    exec(compiled(code, f"<{check.subject}>"), scope)
    return scope[check.subject]


def refuses(check, implementation) -> bool:
    try:
        check(implementation)
    except Exception:
        return True
    return False


def misconception(made: ExerciseSet, check: Check, got: list, arguments: list[tuple], student: str) -> str:
    """The wrong solution that gives exactly these results, in its words; "" if none does."""
    for wrong in made.wrong:
        if wrong.task != check.task:
            continue
        solutions = made.solutions | {wrong.task: wrong.solution(made.solutions[wrong.task])}
        try:
            theirs = results(check, names_of(made, solutions, student), arguments)
        except Exception:  # it fails where the student's did not
            continue
        if not any(difference(g, t, check.tolerance) for g, t in zip(got, theirs)):
            return wrong.says
    return ""
