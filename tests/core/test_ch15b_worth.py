"""Chapter 15b's record: the ingredients of the chapter, enough seeds for an interval, rates on both sides of each best one."""

import ast
import json
from collections import defaultdict
from statistics import fmean

from course.paths import ROOT, SOURCES

RECORD = json.loads((ROOT / "data" / "measurements" / "ablation.json").read_text(encoding="utf-8"))


def assigned(name: str) -> ast.expr:
    tree = ast.parse(next(SOURCES.glob("15b_*.py")).read_text(encoding="utf-8"))
    return next(n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == name)


def above(rows: list[dict], key: str) -> dict:
    """For each variant its rates, each with the nats above the floor by seed."""
    found = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        assert row["seed"] not in found[row[key]][row["lr"]], "a run is recorded twice"
        found[row[key]][row["lr"]][row["seed"]] = row["above"]
    return found


def test_the_record_is_of_the_chapters_ingredients_with_the_same_seeds_and_rates_for_all():
    runs = above(RECORD["runs"], "off")
    assert list(runs) == [key.value for key in assigned("SWITCHED_OFF").keys]
    rates = list(runs["nothing"])
    seeds = list(runs["nothing"][rates[0]])
    assert len(seeds) >= 4 and len(rates) >= 3 and RECORD["steps"] >= 100
    for by_rate in runs.values():
        assert all(list(by_seed) == seeds for by_seed in by_rate.values()), (
            "pairs are taken in the order of seeds"
        )
        assert set(rates) <= set(by_rate)


def test_the_recipes_best_rate_lies_within_the_sweep():
    means = {lr: fmean(by_seed.values()) for lr, by_seed in above(RECORD["runs"], "off")["nothing"].items()}
    assert min(means) < min(means, key=means.get) < max(means), (
        f"the best rate is at an end of the sweep: {means}"
    )
