"""How exercises 22 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def a_pipeline(draw, pp: int, micro: int) -> tuple:
    """pp, layers, micro, states, kept, table, loss."""
    sizes = [number(draw, 1, 10**6) for _ in range(4)]
    return (pp, pp * number(draw, 1, 9), micro, *sizes)


def every_stage(draw):
    found = []
    for pp, micro in ((2, 1), (4, 2), (4, 16), (8, 8)):
        layout = a_pipeline(draw, pp, micro)
        found += [(s, *layout) for s in (0, 1, pp - 1)]
    return found


def pipelines(draw):
    """Some whose first stage is the fullest, some whose last is, one in which a stage in the middle is not, and a tie."""
    drawn = [a_pipeline(draw, number(draw, 2, 9), number(draw, 1, 20)) for _ in range(4)]
    return [
        *drawn,
        (4, 8, 16, 1000, 10, 0, 0),
        (4, 8, 16, 1000, 10, 0, 1000),
        (3, 6, 1, 5, 5, 0, 0),
        (2, 2, 1, 5, 5, 7, 0),
    ]


def for_lines(s, lines, room):
    """lines: what each stage keeps, as constant and slope."""
    return s.largest([lambda B, a=a, b=b: a + b * B for a, b in lines], room)


def one_line(draw):
    return [
        ([(number(draw, 100, 900), number(draw, 3, 50))], number(draw, 1000, 9000)),
        ([(1000, 2)], 1001),
        ([(100, 7)], 107),
    ]


def several_lines(draw):
    """Lines that cross between one row and the answer, or never, or whose third stage decides."""
    slow, fast = (number(draw, 5000, 9000), number(draw, 2, 9)), (number(draw, 10, 90), number(draw, 40, 90))
    return [
        ([slow, fast], number(draw, 9100, 30000)),
        ([fast, slow], number(draw, 9100, 30000)),
        ([(10, 5), (5, 3)], number(draw, 50, 999)),
        ([(900, 1), (800, 2), (10, 400)], number(draw, 1000, 9000)),
        ([(10, 1), (5000, 1)], 400),
    ]


def equal_stages(draw):
    return [([1.0] * pp, [2.0] * pp, number(draw, 1, 12)) for pp in (1, 2, 5)]


def unequal_stages(draw):
    found = []
    for pp in (2, 3, 6):
        forward, backward = (0.1 * torch.randint(5, 40, (2, pp), generator=draw)).tolist()
        found.append((forward, backward, number(draw, 1, 9)))
    return [*found, ([4.0, 1.0, 1.0], [1.0, 1.0, 5.0], 3), ([1.0, 1.0, 4.0], [5.0, 1.0, 1.0], 6)]


def some_steps(draw):
    """Sending that hides, hides in part, and hardly; many micro-batches and one."""
    found = []
    for micro in (1, 4, 16):
        for sending in (0.0, 0.1, 3.0):
            tokens = 1000 * number(draw, 1, 500)
            found.append((tokens, 1e9, 3e14, 0.2 + 0.05 * number(draw, 0, 8), micro, sending))
    return found


def some_runs(draw):
    return [
        (
            0.1 * number(draw, 1, 90),
            1000 * number(draw, 1, 90),
            n,
            1e9 * number(draw, 1, 90),
            0.5 * number(draw, 1, 9),
        )
        for n in (1, 8, number(draw, 9, 99))
    ]


PLAN = """
def schedule(pp, m):
    plan = []
    for s in range(pp):
        ahead = min(m, pp - s)
        todo = [("F", i) for i in range(ahead)]
        for i in range(m):
            todo.append(("B", i))
            if ahead + i < m:
                todo.append(("F", ahead + i))
        plan.append(todo)
    return plan
"""


def changed(old: str, new: str) -> str:
    assert PLAN.count(old) == 1, old
    return PLAN.replace(old, new)


CHECKS = [
    Check("22-1", "the first stage, one in the middle and the last", 2, "stage_bytes", every_stage),
    Check("22-1", "which stage keeps most, also where several do", 1, "fullest", pipelines),
    Check("22-1", "your own pipeline", 2, "answers", hidden=False),
    Check("22-2", "one stage, to the last byte", 1, for_lines, one_line, hidden=False),
    Check("22-2", "stages whose lines cross", 2, for_lines, several_lines),
    Check("22-3", "equal stages", 1, "finish", equal_stages, hidden=False),
    Check("22-3", "unequal stages, of which the slowest may be anywhere", 2, "finish", unequal_stages),
    Check("22-3", "each stage's idle share", 1, "idle", unequal_stages),
    Check("22-4", "sending that hides behind the last backward pass, and the rest", 2, "step_seconds", some_steps),
    Check("22-4", "the price of a run", 1, "price", some_runs),
    Check("22-4", "your own run", 2, "answers"),
    CheckOfCheck(
        "22-5",
        "the check finds plans that are incomplete, keep too much, or deadlock",
        6,
        "check_schedule",
        "schedule",
        right=(
            PLAN,
            "def schedule(pp, m): return [[(what, i) for i in range(m) for what in 'FB'] for _ in range(pp)]",
            "def schedule(pp, m): return [[(what, i) for i in reversed(range(m)) for what in 'FB'] for _ in range(pp)]",
        ),
        wrong={
            "all forward passes first: every stage keeps all micro-batches": (
                "def schedule(pp, m): return [[(what, i) for what in 'FB' for i in range(m)] for _ in range(pp)]"
            ),
            "every stage keeps as many as the first one": changed("pp - s", "pp"),
            "one more than the limit": changed("pp - s", "pp - s + 1"),
            "the last micro-batch has no backward pass": changed("return plan", "return [[do for do in todo if do != ('B', m - 1)] for todo in plan]"),
            "a micro-batch comes twice in place of another": changed("return plan", "return [[(w, 0 if i == m - 1 else i) for w, i in todo] for todo in plan]"),
            "a stage is missing": changed("return plan", "return plan[:-1] or []"),
            "backward before forward on the last stage": changed("return plan", "return plan[:-1] + [[(w, i) for i in range(m) for w in 'BF']]"),
            "stages do their micro-batches in opposite orders and wait for each other": (
                "def schedule(pp, m):\n    return [[(what, i) for i in (range(m) if s % 2 == 0 else reversed(range(m))) for what in 'FB'] for s in range(pp)]"
            ),
            "the last stage counts micro-batches from 1": changed("return plan", "return plan[:-1] + [[(w, i + 1) for w, i in plan[-1]]]"),
            "the stages are in reverse order": changed("return plan", "return plan[::-1]"),
            "right for four micro-batches, and with fewer than stages one too many": changed("min(m, pp - s)", "(pp - s if m >= pp else m + 1)"),
        },
        hidden=False,
    ),
]  # fmt: skip

WRONG = [
    Wrong("22-1", "every stage has as many micro-batches under way as the first", "pp - s)", "pp)"),
    Wrong("22-1", "with fewer micro-batches than stages, more are kept than there are", "min(micro, pp - s)", "(pp - s)"),
    Wrong("22-1", "GPipe's memory: all micro-batches are under way at once", "min(micro, pp - s)", "micro"),
    Wrong("22-1", "the token table is taken for the first stage's alone: the head is tied to it, and on the last", "s in (0, pp - 1)", "s == 0"),
    Wrong("22-1", "every stage is given a token table", "if s in (0, pp - 1):", "if True:"),
    Wrong("22-1", "the layers of the model are put on every stage", "layers // pp *", "layers *"),
    Wrong("22-1", "the last of several fullest stages", "every.index(max(every))", "len(every) - 1 - every[::-1].index(max(every))"),
    Wrong("22-2", "a line through two different stages: the fullest for one row need not be the fullest for the answer", code="""
          def largest(stages, room):
              one, two = (max(stage(B) for stage in stages) for B in (1, 2))
              return max(0, (room - one) // max(1, two - one) + 1)
          """),
    Wrong("22-2", "the first stage decides for all", "min(most)", "most[0]"),
    Wrong("22-2", "the stage with most room decides", "min(most)", "max(most)"),
    Wrong("22-2", "one row too few: at B = 1 the line is already at its first point", "+ 1)", ")"),
    Wrong("22-2", "a number below zero, where not one row fits", "max(0, min(most))", "min(most)"),
    Wrong("22-3", "the pace is that of the mean stage, and not of the slowest", code="""
          def finish(forward, backward, m):
              return (m + len(forward) - 1) * (sum(forward) + sum(backward)) / len(forward)
          def idle(forward, backward, m):
              total = finish(forward, backward, m)
              return [1 - m * (f + b) / total for f, b in zip(forward, backward)]
          answers = [finish(**mine), idle(**mine)[0]]
          """),
    Wrong("22-3", "all stages are taken to be as slow as the slowest", code="""
          def finish(forward, backward, m):
              return (m + len(forward) - 1) * (max(forward) + max(backward))
          def idle(forward, backward, m):
              total = finish(forward, backward, m)
              return [1 - m * (f + b) / total for f, b in zip(forward, backward)]
          answers = [finish(**mine), idle(**mine)[0]]
          """),
    Wrong("22-3", "micro-batches do not overlap: one passes all stages before the next begins", code="""
          def finish(forward, backward, m):
              return m * (sum(forward) + sum(backward))
          def idle(forward, backward, m):
              total = finish(forward, backward, m)
              return [1 - m * (f + b) / total for f, b in zip(forward, backward)]
          answers = [finish(**mine), idle(**mine)[0]]
          """),
    Wrong("22-3", "filling the pipeline is forgotten: it takes pp - 1 further passes", code="""
          def finish(forward, backward, m):
              return m * (max(forward) + max(backward))
          def idle(forward, backward, m):
              total = finish(forward, backward, m)
              return [1 - m * (f + b) / total for f, b in zip(forward, backward)]
          answers = [finish(**mine), idle(**mine)[0]]
          """),
    Wrong("22-3", "idle over working, and not over all the time", "1 - m * (f + b) / total for", "total / (m * (f + b)) - 1 for"),
    Wrong("22-4", "the whole backward hides the sending, and not the last micro-batch's alone", "computing / micro * 2 / 3", "computing * 2 / 3"),
    Wrong("22-4", "forward hides it as well: no gradient is there before backward begins", "computing / micro * 2 / 3", "computing / micro"),
    Wrong("22-4", "nothing hides", "max(0.0, sending - cover)", "sending"),
    Wrong("22-4", "the data sheet's rate is taken, whatever share is reached", "(sheet * mfu)", "sheet"),
    Wrong("22-4", "time that is left over behind backward is taken off the step", "max(0.0, sending - cover)", "sending - cover"),
    Wrong("22-4", "one GPU is paid, and the others work for nothing", "/ 3600 * n * dollars", "/ 3600 * dollars"),
    Wrong("22-4", "a step is taken to read one GPU's tokens", "run_tokens / (tokens * n)", "run_tokens / tokens"),
    Wrong("22-5", "the check accepts everything", code="def check_schedule(schedule):\n    pass"),
    Wrong("22-5", "the check knows one plan, and refuses others", code="""
          def check_schedule(schedule):
              assert schedule(2, 2) == [[("F", 0), ("F", 1), ("B", 0), ("B", 1)], [("F", 0), ("B", 0), ("F", 1), ("B", 1)]]
          """),
    Wrong("22-5", "the check counts what is done, and not in which order", code="""
          def check_schedule(schedule):
              for pp, m in ((2, 4), (4, 2)):
                  plan = schedule(pp, m)
                  assert len(plan) == pp
                  for todo in plan:
                      assert sorted(todo) == sorted((what, i) for what in "BF" for i in range(m))
          """),
    Wrong("22-5", "each stage is looked at alone: nobody waits for anybody", code="""
          def check_schedule(schedule):
              for pp, m in ((1, 1), (2, 4), (3, 2), (4, 9)):
                  plan = schedule(pp, m)
                  assert len(plan) == pp
                  for s, todo in enumerate(plan):
                      assert sorted(todo) == sorted((what, i) for what in "BF" for i in range(m))
                      under_way = 0
                      for what, i in todo:
                          under_way += 1 if what == "F" else -1
                          assert 0 <= under_way <= pp - s
          """),
]  # fmt: skip

MANUAL = {"22-6": 2}
RUBRIC = {
    "22-6": "½ point each. The number: the share of the data sheet's FLOP/s that the program reaches (mfu); it depends on the program, shapes and card, and published runs of one model differ by a factor of thirteen (chapter 22a). "
    "Measure: the real configuration on one card for a minute or so, after warm-up (the line of `train`, or chapter 09's mfu), then plan with --mfu. Cause with its line: gradients that do not hide (data parallel), partial sums (tensor parallel), the bubble, "
    "sends from stage to stage; also right: what the planner leaves out, such as waiting for the slowest, if it is said that no line shows it."
}
