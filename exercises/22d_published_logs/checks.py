"""How exercises 22d are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def uniform(draw, low: float, high: float) -> float:
    return low + (high - low) * torch.rand((), generator=draw).item()


def line(draw, digits: tuple[int, int, int], rate: float = 1.0, mfu: float = 1.0) -> tuple:
    """A printed line and its setup; the two columns by so many times too large."""
    batch, flops, peak = 1024 * number(draw, 8, 600), uniform(draw, 1e8, 9e8), 3e14
    ms = uniform(draw, 50, 900)
    real = batch / ms * 1e3
    columns = {"ms": ms, "tok/s": real * rate, "mfu": 100 * real * flops / peak * mfu}
    return {name: f"{x:.{d}f}" for (name, x), d in zip(columns.items(), digits)}, batch, flops, peak


def sound_lines(draw):
    """Printed with few digits and many: the printed time alone gives another rate than the printed one."""
    return [line(draw, digits) for digits in ((2, 0, 2), (0, 0, 3), (0, 1, 4), (1, 3, 1)) for _ in range(2)]


def torn_lines(draw):
    """Errors of a few thousandths and of more, in one column or both, in each direction."""
    fine = (3, 0, 4)
    return [
        line(draw, fine, rate=1.002),
        line(draw, fine, mfu=0.998),
        line(draw, fine, rate=0.9),
        line(draw, fine, rate=1.01, mfu=0.99),
        line(draw, fine, rate=1.02, mfu=1.02),
        line(draw, fine, rate=1e-3, mfu=100.0),
        line(draw, (0, 0, 1), rate=1.2),
        ({"ms": "500.0", "tok/s": "2001", "mfu": "40.0"}, 1000, 1.0, 5000.0),
        line(draw, fine),
    ]  # fmt: skip


def means(milliseconds: list[float], batch: int) -> list[float]:
    m, found = 0.0, []
    for s, ms in enumerate(milliseconds, 1):
        m = 0.95 * m + 0.05 * batch / ms * 1e3
        found.append(m / (1 - 0.95**s))
    return found


def some_columns(draw):
    return [(means([uniform(draw, 100, 200) for _ in range(n)], 4096),) for n in (1, 3, 40)]


def some_pauses(draw):
    """The slowest step first, last and between; one column of rounded numbers."""
    found = []
    for n, at in ((5, 0), (30, 29), (30, number(draw, 3, 25))):
        times = [uniform(draw, 100, 120) for _ in range(n)]
        times[at] += uniform(draw, 200, 900)
        found.append((means(times, 4096), 4096))
    return [*found, ([float(round(x)) for x in found[-1][0]], 4096)]


def rate_after(updates: int, lr: float, warmup: int, steps: int) -> float:
    return lr * updates / warmup if updates < warmup else lr * (steps - updates) / (steps - warmup)


def some_lines(draw):
    """In the warm-up, at its end, on the way down and at the very end; with many digits and few; one that no number gives."""
    found = []
    for iteration, digits in ((30, 6), (45, 3), (60, 2), (300, 4), (300, 1), (900, 3), (1000, 5)):
        lr, warmup, steps = uniform(draw, 1e-4, 9e-4), 40, 1000
        bad = number(draw, 0, min(iteration, 26))
        found.append(
            (f"{rate_after(iteration - bad, lr, warmup, steps):.{digits}E}", iteration, lr, warmup, steps)
        )
    return [*found, ("9.9999E-01", 50, 1e-4, 10, 1000)]


AGREES = """
def agrees(printed, value):
    digits, _, exponent = printed.lower().partition("e")
    places = len(digits.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - places)
    return abs(float(printed) - value) <= 0.5 * unit
"""
DECIMAL = """
from decimal import Decimal

def agrees(printed, value):
    number = Decimal(printed)
    unit = Decimal(1).scaleb(number.as_tuple().exponent)
    return abs(number - Decimal(value)) <= unit / 2
"""


def changed(old: str, new: str) -> str:
    assert AGREES.count(old) == 1, old
    return AGREES.replace(old, new)


CHECKS = [
    Check("22d-1", "sound lines, printed with many digits and with few", 2, "contradictions", sound_lines),
    Check("22d-1", "small errors and large ones, in one column or both", 2, "contradictions", torn_lines),
    Check("22d-1", "your own log", 2, "answers"),
    Check("22d-2", "each step's own rate", 2, "own_rates", some_columns),
    Check("22d-2", "the slowest step, wherever it is", 1, "slowest", some_pauses),
    Check("22d-2", "your own log with a pause", 2, "answers"),
    Check("22d-3", "in the warm-up, on the way down, and with any number of digits", 2, "skipped", some_lines),
    Check("22d-3", "the line of your own", 2, "answers"),
    CheckOfCheck(
        "22d-4",
        "the check finds numbers that are rounded too much, or too little",
        4,
        "check_agrees",
        "agrees",
        right=(AGREES, DECIMAL),
        wrong={
            "a thousandth of the value": "def agrees(printed, value): return abs(float(printed) - value) <= 1e-3 * abs(value)",
            "the number itself": "def agrees(printed, value): return float(printed) == value",
            "a whole unit": changed("0.5 * unit", "unit"),
            "a quarter of a unit": changed("0.5 * unit", "0.25 * unit"),
            "the exponent is left out of the unit": changed("int(exponent or 0) - places", "-places"),
            "the exponent counts the wrong way": changed("int(exponent or 0) - places", "-int(exponent or 0) - places"),
            "a capital E is no exponent": changed("printed.lower()", "printed").replace("len(digits.partition", "len(digits.partition('E')[0].partition"),
            "a small e is no exponent": changed('printed.lower().partition("e")', 'printed.partition("E")').replace("len(digits.partition", "len(digits.partition('e')[0].partition"),
            "zeros at the end are no digits": changed('len(digits.partition(".")[2])', 'len(digits.partition(".")[2].rstrip("0"))'),
            "the point is counted as a digit": changed('len(digits.partition(".")[2])', 'len(digits) - digits.find(".") if "." in digits else 0'),
            "cut off, and not rounded: larger values alone": changed("abs(float(printed) - value) <= 0.5 * unit", "0 <= value - float(printed) < unit"),
            "larger values alone": changed("abs(float(printed) - value)", "value - float(printed)").replace("<= 0.5 * unit", "<= 0.5 * unit and value >= float(printed)"),
            "any smaller value": changed("abs(float(printed) - value)", "value - float(printed)"),
            "the sign does not count": changed("abs(float(printed) - value)", "abs(abs(float(printed)) - abs(value))"),
            "always two digits": changed("int(exponent or 0) - places", "int(exponent or 0) - 2"),
            "whole numbers have to be exact": changed("0.5 * unit", "(0.5 * unit if places else 0)"),
        },
        hidden=False,
    ),
]  # fmt: skip

WRONG = [
    Wrong("22d-1", "the printed time is taken as exact, so lines that are only rounded are called wrong",
          'for ms in reversed(span["ms"])]', 'for ms in (float(line["ms"]), float(line["ms"]))]'),
    Wrong("22d-1", "the printed rates are taken as exact, and only the time as rounded", "span[name] = float(text) - half, float(text) + half",
          'half *= name == "ms"\n        span[name] = float(text) - half, float(text) + half'),
    Wrong("22d-1", "one per cent of tolerance: errors of a few thousandths are not found", code="""
          def contradictions(line, batch, flops, peak):
              rate = 1e3 * batch / float(line["ms"])
              due = {"tok/s": rate, "mfu": 100 * rate * flops / peak}
              return [name for name, x in due.items() if abs(float(line[name]) / x - 1) > 0.01]
          answers = [contradictions(line, **SETUP) for line in LOG]
          """),
    Wrong("22d-1", "MFU is judged by the printed tokens a second, so one wrong column accuses the other", code="""
          def contradictions(line, batch, flops, peak):
              span = {}
              for name, text in line.items():
                  half = 0.5 * 10.0 ** -len(text.partition(".")[2])
                  span[name] = float(text) - half, float(text) + half
              low, high = (1e3 * batch / ms for ms in reversed(span["ms"]))
              found = ["tok/s"] if high < span["tok/s"][0] or span["tok/s"][1] < low else []
              low, high = (100 * rate * flops / peak for rate in span["tok/s"])
              return found + (["mfu"] if high < span["mfu"][0] or span["mfu"][1] < low else [])
          answers = [contradictions(line, **SETUP) for line in LOG]
          """),
    Wrong("22d-1", "numbers that are too large are found, and those that are too small are not", " or span[name][1] < low", ""),
    Wrong("22d-1", "a whole unit of the last digit, and not half of one", "half = 0.5 * 10.0", "half = 1.0 * 10.0"),
    Wrong("22d-1", "a share is compared with per cent", "100 * rate * flops / peak", "rate * flops / peak"),
    Wrong("22d-2", "the correction of the first steps is left out", "m = p * (1 - 0.95**s)", "m = p"),
    Wrong("22d-2", "steps are counted from 0 in the correction, so the first is divided away", "m = p * (1 - 0.95**s)", "m = p * (1 - 0.95 ** (s + 1))"),
    Wrong("22d-2", "the weights are exchanged: the newest step is given 0.95", "(m - 0.95 * before) / 0.05", "(m - 0.05 * before) / 0.95"),
    Wrong("22d-2", "the printed mean is taken for the one that is kept from step to step", "before = m", "before = p"),
    Wrong("22d-2", "differences of the column: they show where it falls, and not how long the step was", "rates.append((m - 0.95 * before) / 0.05)",
          "rates.append(p - (printed[s - 2] if s > 1 else 0.0))"),
    Wrong("22d-2", "steps are counted from 0, and the log counts from 1", "rates.index(lowest) + 1", "rates.index(lowest)"),
    Wrong("22d-2", "seconds in place of milliseconds", "batch / lowest * 1e3", "batch / lowest"),
    Wrong("22d-3", "the rate is taken to follow the iterations, whether they were skipped or not", "updates = iteration - bad", "updates = iteration"),
    Wrong("22d-3", "updates are returned, and not how many were skipped", "found.append(bad)", "found.insert(0, updates)"),
    Wrong("22d-3", "the first number that fits is taken for the only one", "    return found", "    return found[:1]"),
    Wrong("22d-3", "the warm-up is left out", "lr * updates / warmup if updates < warmup else lr * (steps - updates)", "lr * (steps - updates)"),
    Wrong("22d-3", "always four digits, however many are printed", "{rate:.{digits}E}", "{rate:.4E}"),
    Wrong("22d-3", "a rate within one per cent is called the same", 'f"{rate:.{digits}E}" == printed', "abs(rate - float(printed)) <= 0.01 * rate"),
    Wrong("22d-3", "the decay is taken over all steps, and begins after the warm-up", "/ (steps - warmup)", "/ steps"),
    Wrong("22d-4", "the check accepts everything", code="def check_agrees(agrees):\n    pass"),
    Wrong("22d-4", "the check tries values that agree, and none that does not", code="""
          def check_agrees(agrees):
              for printed in ("0.42", "4096", "6.29E-05"):
                  assert agrees(printed, float(printed))
          """),
    Wrong("22d-4", "the check tries values far away: a rule that is ten times too generous passes", code="""
          def check_agrees(agrees):
              for printed in ("0.42", "4096", "6.29E-05"):
                  assert agrees(printed, float(printed)) and not agrees(printed, 2 * float(printed))
          """),
    Wrong("22d-4", "the check tries one form of number, and no exponent", code="""
          def check_agrees(agrees):
              for value in (0.418, 0.424):
                  assert agrees("0.42", value)
              for value in (0.414, 0.426):
                  assert not agrees("0.42", value)
          """),
]  # fmt: skip

MANUAL = {"22d-5": 2}
RUBRIC = {
    "22d-5": "½ point each. Factors: 36.90 / 30.94 = 1.19 by the times; two cards read twice the tokens a step, so 2.39 times as many in a second (or 2.38 by the printed times). Larger than two: the two also compute in bf16 and the one in TF32, so the factor is of the card and "
    "of the format together. Run: one H800 in bf16, four rows (or two in TF32), everything else equal. First step: it is slow (warm-up, compiling, first allocation) and moves a mean of few steps; print the median, or a mean that leaves it out, and say which, for all rows alike."
}
