"""The committed pictures show the recorded data."""

import json

import pictures
import pytest
from PIL import Image

from course.site import pictures as stored
from course.site.pictures import FIRST


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
