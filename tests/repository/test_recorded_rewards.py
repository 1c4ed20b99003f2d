"""Chapter 19b's recorded runs are what its table says they are."""

import json

from course.figures import rewards as figures
from course.paths import ROOT


def test_the_recorded_runs_are_compared_at_equal_compute():
    recorded = json.loads((ROOT / "data/measurements/rewards.json").read_text(encoding="utf-8"))
    flops = [run["flops"] for run in recorded["runs"]]
    assert max(flops) < 1.02 * min(flops)
    best = figures.main_rates(recorded["runs"])
    assert {"answer alone", "rewards", "more stories"} <= set(best)
    for some in best.values():
        assert len({run["lr"] for run in some}) == 1 and len({run["seed"] for run in some}) == len(some)
