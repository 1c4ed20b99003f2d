"""Laws that hold for every exercise set: the reference passes, what is handed out fails, each wrong solution is caught and named."""

import re
from dataclasses import replace
from functools import cache

import pytest

from course.exercises.checks import Check, CheckOfCheck, drawn_for
from course.exercises.sets import ExerciseSet, folders, load
from course.grade.sandbox.warm import LIBRARIES, preload
from course.grade.score.local import misconception, names_of, results, said_of
from course.grade.without import Forbidden, found, sentence, without

NUMBERS = [folder.name for folder in folders()]
STUDENTS = ["ann", "0815", "zoë"]


the = cache(load)


def wrong_ones():
    return [
        pytest.param(name, i, id=f"{wrong.task}: {wrong.says[:50]}")
        for name in NUMBERS
        for i, wrong in enumerate(the(name).wrong)
    ]


def visible(made: ExerciseSet, solutions: dict[str, str]) -> dict[str, str]:
    """What each task's visible check cell says of solutions: "" or its message."""
    names, said = {"__name__": "exercise", "STUDENT": "ann"}, {}
    for cell in made.cells:
        try:
            if cell.kind in ("given", "check"):
                exec(compile(cell.source, f"<{cell.kind} {cell.task}>", "exec"), names)
            elif cell.kind == "solution":
                exec(compile(solutions[cell.task], f"<{cell.task}>", "exec"), names)
        except Exception as error:
            said[cell.task] = f"{type(error).__name__}: {error}"
    return said


@pytest.mark.parametrize("name", NUMBERS)
def test_a_set_is_whole(name):
    made = the(name)
    ids = list(made.tasks)
    assert 3 <= len(ids) <= 6 and ids == sorted(ids) and all(id.startswith(made.number) for id in ids)
    graded = {check.task for check in made.checks} | set(made.manual)
    assert graded == set(ids), "a task without a check, or a check without a task"
    assert [cell.task for cell in made.cells if cell.kind == "manual"] == list(made.manual), (
        "manual questions"
    )
    assert all(made.points(id) > 0 for id in ids)
    for id in ids:
        kinds = [cell.kind for cell in made.cells if cell.task == id]
        assert kinds in (["manual"], ["solution", "check"]), f"{id} has the cells {kinds}"
        if id not in made.manual:
            assert len([w for w in made.wrong if w.task == id]) >= 3
    assert any(isinstance(check, CheckOfCheck) for check in made.checks), (
        "in one task the student writes the check"
    )
    assert len({check.name for check in made.checks}) == len(made.checks), "two checks have one name"


@pytest.mark.parametrize("name", NUMBERS)
def test_what_a_check_imports_is_in_the_sandbox_before_it(name):
    """Each check runs in a fork of its own: a teller of 02 that imported torch took 3 s of the set's 4."""
    made, texts = the(name), []
    for check in made.checks:
        texts += [*check.right, *check.wrong.values()] if isinstance(check, CheckOfCheck) else [check.harness]
    lines = "\n".join(line.strip() for text in texts for line in text.splitlines())
    late = set(LIBRARIES.findall(lines)) - set(preload(made.folder)) - {"numpy"}  # which comes with torch
    assert not late, f"name them in exercise.py, or do without: {late}"


@pytest.mark.parametrize("name", NUMBERS)
def test_the_reference_passes_every_check(name):
    made = the(name)
    assert not any(visible(made, made.solutions).values()), visible(made, made.solutions)
    for check in made.checks:
        for student in STUDENTS:
            assert said_of(made, check, made.solutions, student) == "", check.name


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_handed_out_fails(name):
    made = the(name)
    for id in set(made.tasks) - set(made.manual):
        assert "###" not in made.stubs[id] and made.stubs[id] != made.solutions[id]
        compile(made.stubs[id], f"<{id}, as handed out>", "exec")  # a student begins with Python
        solutions = made.solutions | {id: made.stubs[id]}
        assert visible(made, solutions).get(id), f"{id}: the visible check passes what is handed out"
        failed = [
            check.name for check in made.checks if check.task == id and said_of(made, check, solutions, "ann")
        ]
        assert failed, f"{id}: every check passes what is handed out"


@pytest.mark.parametrize(("name", "i"), wrong_ones())
def test_a_wrong_solution_is_caught_and_named(name, i):
    """By the check that fails on it, in its own words and no other's; or it fails with an error, which names itself."""
    made = the(name)
    wrong = made.wrong[i]
    solutions = made.solutions | {wrong.task: wrong.solution(made.solutions[wrong.task])}
    mine = [check for check in made.checks if check.task == wrong.task]
    assert any(said_of(made, check, solutions, "0815") for check in mine), "every check passes it"
    caught = [check for check in mine if said_of(made, check, solutions, "ann")]
    assert caught, "every check passes it"
    named = [check for check in mine if isinstance(check, Check)]
    drawn = [check.inputs(drawn_for("ann", check)) for check in named]
    try:
        given = [results(check, names_of(made, solutions, "ann"), args) for check, args in zip(named, drawn)]
    except Exception:
        return
    says = (misconception(made, *each, "ann") for each in zip(named, given, drawn) if each[0] in caught)
    assert not named or wrong.says in says, "it is called by other words"


ASKS = re.compile(
    r"\bwithout (?:a loop|call|`)|\b[Nn]o loop|\bwrite your own|\b[Dd]o (?:without|not use|not call)\b"
)


@pytest.mark.parametrize("name", NUMBERS)
def test_what_a_task_is_to_do_without_is_forbidden(name):
    for cell in the(name).cells:
        if task := re.search(r"^## (\d\d[a-z]?-\d) ", cell.source, re.MULTILINE):
            text = " ".join(re.sub(r"<details>.*?</details>", "", cell.source, flags=re.DOTALL).split())
            assert not ASKS.search(text) or the(name).forbids.get(task[1]), f"{task[1]}: no `#| forbids`"


FORBIDDEN = [
    pytest.param(name, task, entry, id=f"{task}-{entry}")
    for name in NUMBERS
    for task, entries in the(name).forbids.items()
    for entry in entries
]


@pytest.mark.parametrize(("name", "task", "entry"), FORBIDDEN)
def test_whoever_uses_what_is_forbidden_gets_no_point(name, task, entry):
    """FORBIDDEN has one that uses it: every check of the task refuses it, and passes it without the prohibition."""
    made = the(name)
    checks = [check for check in made.checks if check.task == task]
    free = replace(made, cells=[replace(cell, forbids=()) for cell in made.cells])
    users = []
    for one in made.forbidden:
        solutions = made.solutions | {task: one.solution(made.solutions[task])} if one.task == task else {}
        said = [said_of(made, check, solutions, "ann") for check in checks if solutions]
        if any(sentence(task, entry) in words for words in said):
            assert all(said), f"{one.says}: a check gives points: {said}"
            assert not any(said_of(free, check, solutions, "ann") for check in checks), (
                f"{one.says}: it is wrong in another way too, so nothing shows that it is forbidden"
            )
            users.append(one)
    assert users, f"FORBIDDEN in checks.py has none that uses {entry}"


@pytest.mark.parametrize(
    ("code", "forbids", "says"),
    [
        ("def f(n): return sum([i for i in range(n)])", "loop", "line 1"),
        ("def f(n):\n    return n and f(n - 1)", "loop in f", "line 1"),
        ("def g(n):\n    while n: n -= 1\ndef f(n): return g(n)", "loop in f", "line 2"),
        ("def g(n):\n    while n: n -= 1\ndef f(n): return n", "loop in f", ""),
        ("def g(n):\n    while n: n -= 1\nh = g\ng = 0\ndef f(n): return h(n)", "loop in f", "line 2"),
        ("f = lambda n: n and g(n)\ng = lambda n: f(n - 1)", "loop", "line 1"),
        ("import torch\ndef f(n): return getattr(__import__('torch'), 'ones')(n)", "torch in f", "line 2"),
        ("from a.b import c as d", "a.b.c", "line 1"),
        ("def c(): return b.c()", "a.b.c", ""),  # a function of one's own may have the name: running it tells
        ("def f(x): return x.split('::')", "aten::c", ""),
        ("def f(:", "loop", ""),
    ],
)
def test_what_is_forbidden_is_seen_in_the_source(code, forbids, says):
    said = found("01-1", code, [forbids])
    assert (
        (says in said and said.startswith(("task 01-1 is to be", "`f` in task 01-1"))) if says else not said
    )


def test_a_forbidden_function_raises_where_the_solution_calls_it_and_nowhere_else():
    import torch

    names = {}
    solution = "import torch\ndef f(x): return torch.nn.LayerNorm(4)(x), torch.optim.SGD([x], lr=1).step()"
    exec(compile(solution, "<01-1>", "exec"), names)
    x = torch.ones(2, 4)
    for forbids in ("aten::native_layer_norm", "torch.optim.sgd.sgd"):
        with (
            without("01-1", [forbids], {}),
            pytest.raises(Forbidden, match="task 01-1 is to be solved without"),
        ):
            x.grad = x.clone()
            names["f"](x)
    with without("01-1", ["torch.optim.sgd.sgd"], {}):
        torch.optim.SGD([x], lr=1).step()  # ours
    names["f"](x)
