"""A short limit where the tests meet it often. Elsewhere one that a busy machine does not meet."""

from course.exercises.checks import Check, CheckOfCheck, Wrong


def small(draw):
    return [([1, 2],), ([],)]


def negative(draw):
    return [([-3, 0],)]


CHECKS = [
    Check("05-1", "numbers are doubled", 3, "double", small, hidden=False, seconds=1.5),
    Check("05-1", "negative ones too", 2, "double", negative, seconds=1.5),
    Check("05-2", "a third", 5, "third", seconds=6),
    CheckOfCheck(
        "05-3",
        "a check that kills",
        4,
        "check_sort",
        "sort",
        right=(
            "def sort(xs): return sorted(xs)",
            "def sort(xs):\n    out = list(xs)\n    out.sort()\n    return out",
        ),
        wrong={
            "it drops what is there twice": "def sort(xs): return sorted(set(xs))",
            "it does nothing": "def sort(xs): return list(xs)",
            "it changes its argument": "def sort(xs):\n    xs.sort()\n    return xs",
            "None is a list": "def sort(xs): return sorted(xs or [])",
        },
        seconds=6,
    ),
]

WRONG = [Wrong("05-1", "one is added in place of a factor of two", "2 * x", "1 + x")]

MANUAL = {"05-4": 2}
