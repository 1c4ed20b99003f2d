"""Sittings alone and beside programs that never wait: how many times as long does `make course` take on a busy machine?

    python bench/busy.py [--competitors 2] [05 07 …]       default: every sitting

Each sitting runs alone and beside the competitors, one directly after the other and in turns first, so that both see the same
machine. A line for each as it ends, then the totals: the bar is 2.5 times. Run it in a clone that is not being worked in.
"""

import argparse
import subprocess
import sys
import time

from wait_policy import ROOT, busy

from course.paths import chapters

BAR = 2.5  # times as long as alone, beside two


def seconds(chapter: str, competitors: int) -> float:
    with busy(competitors):
        start = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "course", "run", chapter], cwd=ROOT, stdout=subprocess.DEVNULL, check=True
        )
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("chapters", nargs="*", default=chapters())
    parser.add_argument("--competitors", type=int, default=2)
    args = parser.parse_args()
    print("sitting     alone    beside     times")
    ways = (0, args.competitors)
    totals = dict.fromkeys(ways, 0.0)
    for i, chapter in enumerate(args.chapters):
        took = {way: seconds(chapter, way) for way in (ways if i % 2 else ways[::-1])}
        for way in ways:
            totals[way] += took[way]
        print(row(chapter, *(took[way] for way in ways)), flush=True)
    print(row("all", *totals.values()), f"  (bar {BAR})")


def row(name: str, alone: float, beside: float) -> str:
    return f"{name:7} {alone:9.1f} {beside:9.1f} {beside / alone:9.2f}"


if __name__ == "__main__":
    main()
