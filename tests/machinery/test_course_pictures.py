"""The committed pictures show the recorded data."""

import json

import pytest

from course.site import pictures

RECORDED = json.loads(pictures.LADDER.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", pictures.drawings())
def test_the_committed_picture_is_of_the_recorded_data_and_small(name):
    from PIL import Image

    path = pictures.PICTURES / f"{name}.png"
    assert Image.open(path).text["shows"] == pictures.digest(name), (
        f"{path.name} shows older data: course pictures"
    )
    assert path.stat().st_size <= 60_000


@pytest.mark.parametrize("change", [{"ms": 2000.0}, {"predicted_ms": 1.0}, {"name": "compile"}])
def test_other_data_are_another_picture(change, tmp_path, monkeypatch):
    other = RECORDED | {"rungs": [RECORDED["rungs"][0] | change, *RECORDED["rungs"][1:]]}
    (tmp_path / "ladder.json").write_text(json.dumps(other), encoding="utf-8")
    before = pictures.digest("staircase-light")
    monkeypatch.setattr(pictures, "LADDER", tmp_path / "ladder.json")
    assert pictures.digest("staircase-light") != before


def test_another_loss_is_another_picture(tmp_path, monkeypatch):
    first = json.loads(pictures.FIRST.read_text(encoding="utf-8"))
    (tmp_path / "first.json").write_text(json.dumps(first | {"val_loss": 1.0}), encoding="utf-8")
    before = pictures.digest("loss-dark"), pictures.digest("staircase-dark")
    monkeypatch.setattr(pictures, "FIRST", tmp_path / "first.json")
    assert pictures.digest("loss-dark") != before[0] and pictures.digest("staircase-dark") == before[1]


def test_a_step_is_told_as_slower_or_not_measurable_where_it_is():
    rung = {"name": "bf16", "predicted_ms": 100.0}
    first = rung | {"ms": 100.0}
    same = rung | {"ms": 99.0, "gain": {"sure": False}}
    worse = rung | {"ms": 200.0, "predicted_ms": 50.0, "gain": {"sure": True}}
    _, second, third = pictures.staircase_steps({"rungs": [first, same, worse]})
    assert (second["says"], second["slower"]) == ("not measurable · predicted 1.00 ×", False)
    assert third["says"] == "0.49 ×, slower · predicted 2.00 ×", (
        "a factor is that of the milliseconds that are shown"
    )
    assert third["slower"]


def test_the_widget_s_picture_is_of_chapter_08_as_it_is():
    path = pictures.PICTURES / "widget.png"
    assert pictures.shown(path) == pictures.widget_digest(), (
        "chapter 08's widget has changed: course pictures"
    )
    assert path.stat().st_size <= 60_000
