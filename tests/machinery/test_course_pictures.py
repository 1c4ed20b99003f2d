"""The committed pictures show the recorded data."""

import json

import pictures
import pytest
from PIL import Image

from course.site import pictures as stored
from course.site.pictures import FIRST, in_all, staircase_steps


@pytest.mark.parametrize("name", [*pictures.drawings(), "widget"])
def test_the_committed_picture_is_of_the_recorded_data_and_small(name):
    path = pictures.PICTURES / f"{name}.png"
    shows = pictures.widget_digest() if name == "widget" else pictures.digest(name)
    assert Image.open(path).text["shows"] == shows, f"{path.name} is old: python bench/pictures.py"
    assert path.stat().st_size <= 60_000


def test_other_data_make_another_picture_and_only_theirs(tmp_path, monkeypatch):
    loss, staircase = pictures.digest("loss-dark"), pictures.digest("staircase-dark")
    first, ladder = stored.recorded(FIRST), stored.recorded(stored.LADDER)
    (tmp_path / "first.json").write_text(json.dumps(first | {"val_loss": 1.0}), encoding="utf-8")
    monkeypatch.setattr(pictures, "FIRST", tmp_path / "first.json")
    assert pictures.digest("loss-dark") != loss and pictures.digest("staircase-dark") == staircase
    ladder["rungs"][0]["ms"] = 2000.0
    (tmp_path / "ladder.json").write_text(json.dumps(ladder), encoding="utf-8")
    monkeypatch.setattr(stored, "LADDER", tmp_path / "ladder.json")
    assert pictures.digest("staircase-dark") != staircase


def test_a_step_is_told_as_slower_or_not_measurable_where_it_is():
    rung = {"name": "bf16", "ms": 100.0, "predicted_ms": 100.0}
    same = rung | {"gain": {"ratio": 1.01, "low": 0.95, "high": 1.05, "sure": False}}
    worse = rung | {"predicted_ms": 50.0, "gain": {"ratio": 0.49, "low": 0.48, "high": 0.5, "sure": True}}
    wide = worse | {"gain": {"ratio": 2.0, "low": 1.2, "high": 2.1, "sure": True}}
    _, second, third, fourth = steps = staircase_steps({"rungs": [rung, same, worse, wide]})
    assert (second["says"], second["slower"]) == ("not measurable · predicted 1.00 ×", False)
    assert (third["says"], third["slower"]) == ("0.49 ×, slower · predicted 2.00 ×", True)
    assert (fourth["says"], fourth["disturbed"]) == ("1.20 to 2.10 × · predicted 1.00 ×", True)
    assert fourth["ms"] == round(100 / (1.01 * 0.49 * 2)), "a step is the first one over the gains of pairs"
    assert in_all(steps[:3]) == "0.5 ×" and in_all(steps) == "about 1 ×"
