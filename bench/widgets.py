"""Milliseconds from a moved knob to the new picture, of every widget: `python bench/widgets.py`.

Each knob is moved over its range, each field gets texts of several lengths. The browser's own time is not in it.
"""

import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from chapter_widgets import WIDGETS  # noqa: E402

from course.figures import widgets  # noqa: E402

TEXTS = [
    "",
    "a",
    "the cat sat. the cat sat",
    "0.1",
    "1e-7",
    "One sunny day, " * 5,
    "naïve ¾ 東京 🙂",
    "a " * 2000,
]


def knobs_of(box) -> list:
    *knobs, _, _ = box.children
    return knobs


def values_of(knob) -> list:
    """Values over a knob's whole range, its ends among them."""
    if hasattr(knob, "options"):
        return list(knob.options)
    if hasattr(knob, "max"):
        n = round((knob.max - knob.min) / knob.step)
        return [type(knob.value)(knob.min + knob.step * round(n * k / 4)) for k in range(5)]
    return TEXTS


def moved(box):
    """Move each knob over its range and back; yields what was set, what is shown, and the seconds that this took.

    Seconds of this thread, so that other programs do not count.
    """
    for knob in knobs_of(box):
        first = knob.value
        for value in [*values_of(knob), first]:
            if value != knob.value:
                start = time.thread_time()
                knob.value = value
                yield knob.description, value, shown(box), time.thread_time() - start


def shown(box) -> str:
    return box.children[-2].value


def empty_picture() -> float:
    """Seconds for axes with nothing in them, as wide as all: what no picture can go below."""
    start = time.thread_time()
    widgets.bundle((widgets.axes(), ""))
    return time.thread_time() - start


def main() -> None:
    import course.notebook  # noqa: F401  the chapters' own settings of matplotlib

    least = median(empty_picture() for _ in range(20))
    print(f"{'chapter':8}{'median ms':>10}{'slowest':>9}  at{'':22}× empty axes ({1e3 * least:.0f} ms)")
    for chapter, made in WIDGETS.items():
        pictures = [each for each in moved(made()) if "<img" in each[2] or chapter in ("01", "16")]
        middle = median(seconds for *_, seconds in pictures)
        name, value, _, slowest = max(pictures, key=lambda each: each[3])
        at = f"{name}={str(value)[:12]!s}"
        print(f"{chapter:8}{1e3 * middle:10.0f}{1e3 * slowest:9.0f}  {at:24}{middle / least:5.1f}")


if __name__ == "__main__":
    main()
