"""The recorded races of chapters 25 and 25b are the committed recipes', they keep the rules, and a table is read as it says."""

import json
from copy import deepcopy
from dataclasses import asdict

import pytest
import speedrun

from course.paths import ROOT
from nanogpt.labs.speedrun.record import TRACKS, objections, share
from nanogpt.labs.speedrun.speedrun import OURS, Recipe
from nanogpt.labs.speedrun.stories_race import NEAR

RECORDED = json.loads((ROOT / "data/measurements/speedrun.json").read_text(encoding="utf-8"))
STORIES = json.loads((ROOT / "data/measurements/speedrun-stories.json").read_text(encoding="utf-8"))
BOARD = json.loads((ROOT / "data/leaderboard.json").read_text(encoding="utf-8"))


def test_the_record_is_that_of_the_committed_recipes():
    record = RECORDED["record"]
    assert record["recipe"] == asdict(OURS), "OURS has changed: run bench/speedrun.py again"
    assert record["reference"] == asdict(Recipe())
    assert STORIES["record"]["recipe"] == asdict(NEAR), "NEAR has changed: run it with --track stories again"


LIMITS = {"shakespeare": 0.25, "stories": 1.0}  # of the reference's time


@pytest.mark.parametrize(
    "record",
    [RECORDED["record"], STORIES["record"], *BOARD],
    ids=lambda record: f"{record['track']} {record['date']}",
)
def test_every_record_keeps_the_rules_in_its_part_of_the_references_time(record):
    assert objections(record) == []
    assert share(record) < LIMITS[record["track"]]
    assert {"command", "date", "device", "torch"} <= record.keys()


def test_the_stories_record_says_what_both_sides_pay_and_what_they_answer():
    record = STORIES["record"]
    assert record["reference"] == {"recipe": "chapter 07", "steps": 3000}
    losses = {"more": record["losses"][0], "reference_more": record["reference_loss"]}
    for name, loss in losses.items():
        assert {"copied", "computed"} <= record[name]["answers"].keys()
        a_story = (loss - TRACKS["stories"]["floor"]) * 258_851 / 2539
        excess = sum(record[name]["excess"].values())
        assert excess == pytest.approx(a_story, rel=0.25), "other stories, about the same excess"


def test_the_tables_and_controls_are_those_of_the_bench():
    tracks = (RECORDED, speedrun.Shakespeare), (STORIES, speedrun.Stories)
    for recorded, track in tracks:
        assert recorded["table"]["losses"].keys() == track.changed.keys() <= recorded["step_seconds"].keys()
        controls = recorded["controls"]
        tried = [(run["steps"], run["rate"], run["rows"]) for run in controls["reference"]]
        assert tried == track.reference_tried
        tried = [(run["changes"], len(run["losses"])) for run in controls["ours"]]
        assert tried == track.tried


def test_the_record_of_a_run_that_breaks_a_rule_is_kept_and_stays_off_the_board(tmp_path, capsys):
    out, board = tmp_path / "mine.json", tmp_path / "board.json"
    slow = deepcopy(STORIES)
    slow["record"]["losses"] = [0.6] * 5
    with pytest.raises(SystemExit) as stopped:
        speedrun.keep(slow, out, board)
    assert "p < 0.01" in str(stopped.value) and str(out) in str(stopped.value)
    assert json.loads(out.read_text(encoding="utf-8")) == slow
    assert not board.exists()
    speedrun.keep(STORIES, out, board)
    assert json.loads(board.read_text(encoding="utf-8")) == [STORIES["record"]]
    assert json.loads(out.read_text(encoding="utf-8")) == STORIES
    assert capsys.readouterr().out == "place 1 on board.json\n"
