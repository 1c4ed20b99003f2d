"""Grading in this process, of code that is ours: the tests of the exercises, and the reference for every submission."""

from functools import cache
from types import SimpleNamespace

from course.exercises.checks import Check, CheckOfCheck, difference, drawn_for
from course.exercises.sets import ExerciseSet
from course.exercises.without import found, without


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
    if not check.harness:
        what = names[check.call]
        return [what(*copied(args)) if callable(what) else what for args in arguments]
    scope = {}
    exec(compiled(check.harness, f"<harness of {check.name}>"), scope)
    harness = scope[check.call.__name__]
    return [harness(SimpleNamespace(**names), *copied(args)) for args in arguments]


def copied(args: tuple) -> tuple:
    """Of their own for each call: a solution may write into its arguments."""
    return tuple(arg.clone() if hasattr(arg, "clone") else arg for arg in args)


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
            got = results(check, names, arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    expected = results(check, names_of(made, made.solutions, student), arguments)
    return judged(check, got, expected, arguments)


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
