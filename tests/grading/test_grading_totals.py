"""A term: all sets in one table, deadlines with extensions and zones, days that are free, and what waits for a person."""

import csv
import io
import json
import time
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from class_results import check, result
from hypothesis import given
from hypothesis import strategies as st

from course.cli import main
from course.grade.results.late import Late, moment, read_deadlines, unknown, zone
from course.grade.results.totals import row, totals
from course.grade.systems.export import read_roster

DUE = datetime(2026, 11, 20, 23, 59)


def of(student: str, points: float, submitted="2026-11-20T10:00:00", **more) -> dict:
    """A result of 12 points at most, with an answer that is marked."""
    made = result(student, [check("the square", points, 3.0)], [], submitted=submitted, **more)
    made["manual"]["04-4"]["points"] = 0.0
    return made


@pytest.mark.parametrize(
    ("submitted", "days"),
    [
        ("2026-11-20T23:59:00", 0),
        ("2026-11-21T00:00:00", 1),
        ("2026-11-22T00:00:00", 2),
        (None, 0),
        ("last week", 0),  # a name that the pattern took for a time
    ],
)
def test_days_begun_after_the_due_time(submitted, days):
    assert Late(DUE).days(of("ann", 9, submitted)) == days
    assert Late(moment("2026-11-20")).days(of("ann", 9, submitted)) == days, "a day without a time is its end"


def test_a_time_without_a_zone_is_in_the_one_that_is_named():
    late = Late(DUE, zone=ZoneInfo("Europe/Berlin"))  # 22:59 in UTC
    times = ("2026-11-20T22:59:00+00:00", "2026-11-20T23:01:00+00:00", "2026-11-20T23:30:00")
    assert [late.days(of("ann", 9, at)) for at in times] == [0, 1, 0], "the last one is in Berlin too"


def test_an_extension_is_one_students_and_a_penalty_takes_no_more_than_there_is():
    late = Late(DUE, 2.0, extended={"kim": DUE + timedelta(days=7)})
    assert late.penalty(of("kim", 9, "2026-11-25T10:00:00")) == 0
    assert late.penalty(of("ann", 9, "2026-11-22T10:00:00")) == 4
    assert late.penalty(of("ann", 3, "2026-11-25T10:00:00")) == 3
    assert late.penalty(of("ann", 3, "9999-12-31T00:00:00Z")) == 3
    assert late.penalty(of("ann", 3, "0001-01-01T00:00:00")) == 0
    assert Late().penalty(of("ann", 3)) == 0


SETS = {
    "03_data": [of("ann", 12), of("kim", 6, "2026-11-22T10:00:00")],
    "04_attention": [of("ann", 3), of("kim", 12, "2026-11-22T10:00:00")],
    "05_gpt": [of("ann", 6)],
}


@pytest.mark.parametrize(
    "due, submitted, days",
    [
        ("2026-10-24T23:59", "2026-10-25T23:30:00", 1),  # the night in which a day has 25 hours
        ("2026-03-28T23:59", "2026-03-30T00:30:00", 2),  # and the one in which it has 23
    ],
)
@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the machine's zone cannot be set here")
def test_one_rule_counts_days_however_the_zone_is_spelled(monkeypatch, due, submitted, days):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    berlin, offset = zone("Europe/Berlin"), "+02:00" if "10-24" in due else "+01:00"
    result = of("kim", 20, submitted)
    rules = Late(moment(due), zone=berlin), Late(moment(due)), Late(moment(due + offset), zone=berlin)
    assert [rule.days(result) for rule in rules] == [days] * 3
    monkeypatch.undo()
    time.tzset()


JOSE, AS_MACOS_WRITES = "Jos\u00e9", "Jose\u0301"


def test_a_name_is_the_same_in_every_file(tmp_path):
    roster, due = tmp_path / "roster.csv", tmp_path / "due.csv"
    head = "student_id,last_name,first_name,email\n"
    roster.write_text(f"{head}{AS_MACOS_WRITES},Garcia,J,j@example.org\n", encoding="utf-8")
    due.write_text(f"set,student_id,due\n04,{AS_MACOS_WRITES},2026-11-27\n,,\n", encoding="utf-8")
    late = read_deadlines(due, 1.0, None)
    assert [*read_roster(roster)] == [JOSE] == [*late["04_attention"].extended]
    assert not unknown(late, {JOSE}) and "of whom there is no result" in unknown(late, {"kim"})[0]


LATE = {name: Late(DUE, 3.0) for name in SETS}


def test_a_total_is_the_mean_share_of_the_sets_that_count():
    due = {("ann", 0): 58.33, ("ann", 1): 75, ("kim", 0): 50, ("kim", 9): 100, ("eve", 0): 0}
    found = {(student, drop): row(student, SETS, {}, 0, drop) for student, drop in due}
    assert {key: one["total"] for key, one in found.items()} == due, "not handed in is 0; one set counts"
    assert found["ann", 1]["dropped"] == "04_attention"


def test_free_days_are_spent_in_the_order_of_the_sets():
    paid, free = row("kim", SETS, LATE, 0, 0), row("kim", SETS, LATE, 3, 0)
    assert (paid["03_data"], paid["04_attention"], paid["late_days"]) == (0, 6, 0)
    assert (free["03_data"], free["04_attention"], free["late_days"]) == (6, 9, 3)


@given(st.integers(0, 6), st.integers(0, 4), st.lists(st.integers(0, 12), min_size=3, max_size=3))
def test_neither_free_days_nor_dropping_ever_lowers_a_total(free, drop, scores):
    sets = {name: [of("ann", score, "2026-11-22T10:00:00")] for name, score in zip(SETS, scores)}
    total = row("ann", sets, LATE, free, drop)["total"]
    assert total <= row("ann", sets, LATE, free + 1, drop)["total"] + 0.01
    assert total <= row("ann", sets, LATE, free, drop + 1)["total"] + 0.01


def test_our_own_failure_is_no_zero_and_what_waits_is_told():
    lost = of("bo", 0, verdict="infrastructure_error", score=None)
    waits = of("ann", 6)
    waits["manual"]["04-4"]["points"] = None
    text, told = totals({"03_data": [of("bo", 12)], "04_attention": [lost, waits]}, {}, 0, 0, ["zoë"])
    rows = {one["student_id"]: one for one in csv.DictReader(io.StringIO(text))}
    assert rows["bo"]["total"] == "100.0" and rows["bo"]["04_attention"] == ""
    assert rows["zoë"]["total"] == "0.0", "on the roster, and handed in nothing"
    assert told[0].startswith("warning: 1 answer waits for a person's points and count 0 now (04-4)")
    assert "04_attention: left out of the totals of bo" in told[1] and "3 students, 2 sets" in told[2]


@pytest.fixture
def graded(tmp_path):
    for name, results in SETS.items():
        (tmp_path / "results" / name).mkdir(parents=True)
        for one in results:
            path = tmp_path / "results" / name / f"{one['student']}.json"
            path.write_text(json.dumps(one | {"exercise": name}))
    return tmp_path


def test_the_command_reads_deadlines_and_extensions(graded):
    (graded / "due.csv").write_text(
        "set,student_id,due\n03,,2026-11-20T23:59\n04,,2026-11-20T23:59\n04,kim,2026-11-30T23:59\n"
    )
    words = ["--results", str(graded / "results"), "--deadlines", str(graded / "due.csv"), "--zone", "UTC"]
    assert main(["grade", "totals", *words, "--late", "3", "--drop-lowest", "1"]) == 0
    kept = csv.DictReader((graded / "results" / "totals.csv").open())
    points = {one["student_id"]: (float(one["03_data"]), float(one["04_attention"])) for one in kept}
    # No marks.csv is here: a result's own marks do not count, so what the checks gave is what there is.
    assert points == {"ann": (12, 3), "kim": (0, 12)}


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("set,due\n", [], "its first line is set,student_id,due"),
        ("set,student_id,due\n04,,soon\n", [], "line 2: 'soon' is no time"),
        ("set,student_id,due\n", ["--zone", "Berlin/Europe"], "is no time zone"),
        ("set,student_id,due\n", ["--drop-lowest", "-1"], "no numbers below zero"),
        ("set,student_id,due\n04,kim,2026-11-20\n04,kim,2026-11-21\n", [], "line 3: a second time for 04_"),
    ],
)
def test_a_wrong_table_is_one_sentence(graded, capsys, text, more, says):
    (graded / "due.csv").write_text(text)
    words = ["--results", str(graded / "results"), "--deadlines", str(graded / "due.csv"), *more]
    assert main(["grade", "totals", *words]) == 2
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
