"""Chapter 19b's recorded runs are what its table says they are."""

import json

import pytest

from course.figures import rewards as figures
from course.paths import ROOT


@pytest.mark.parametrize("which", ["runs", "longer"])
def test_the_recorded_runs_are_compared_at_equal_compute(which):
    recorded = json.loads((ROOT / "data/measurements/rewards.json").read_text(encoding="utf-8"))
    flops = [run["flops"] for run in recorded[which]]
    assert max(flops) < 1.02 * min(flops)
    once = min(run["flops"] for run in recorded["runs"])
    assert which == "runs" or 1.96 < min(flops) / once < 2.04, "longer is twice the compute"
    best = figures.main_rates(recorded[which])
    assert {"answer alone", "rewards"} | ({"more stories"} if which == "runs" else set()) <= set(best)
    for some in best.values():
        assert len({run["lr"] for run in some}) == 1 and len({run["seed"] for run in some}) == len(some)
