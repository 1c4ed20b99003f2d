"""Scores in the formats of other systems, each beside a golden file in tests/grading_export/.

GOLDEN=write makes the golden files anew; read them before you commit them.
"""

import csv
import io
import json
import os
import time
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from class_results import SECRET, the_class, write_class
from small_set import small_set

from course.grade import desk
from course.grade.results.results import read_results
from course.grade.systems import export
from course.grade.systems.merge import CANVAS, MOODLE, cells, merge, records
from course.paths import CourseError

GOLDEN = Path(__file__).parents[1] / "grading_export"
ROSTER = '''\
student_id,last_name,first_name,email
ann,"O'Neil, Jr.",Ann,ann@uni.de
"=bob,jr",=cmd|' /C calc'!A0,Bob,bob@uni.de
müller@uni.de,Müller,"Jörg ""der Große""",müller@uni.de
zed,Zed,Zoë,zed@uni.de
'''  # fmt: skip


def golden(name: str, data: bytes) -> None:
    path = GOLDEN / name
    if os.environ.get("GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    assert data.decode() == path.read_bytes().decode(), f"{name} is no longer what it was"


@pytest.fixture
def results(tmp_path):
    return read_results(write_class(tmp_path / "results"), "04_small")


@pytest.fixture
def told(tmp_path, capsys):
    """`course grade export ...` on the class: exit code, and what it prints."""
    made = small_set(tmp_path / "sets")
    write_class(tmp_path / "results")

    def call(*words: str) -> str:
        from argparse import ArgumentParser

        parser = ArgumentParser()
        desk.add_commands(parser.add_subparsers())
        args = parser.parse_args(
            [*words[:1], str(made.folder), *words[1:], "--results", str(tmp_path / "results")]
        )
        assert args.call(args) == 0
        return capsys.readouterr().out

    return call


def test_nbgrader(told, tmp_path):
    (tmp_path / "roster.csv").write_text(ROSTER, encoding="utf-8")
    out = told(
        "export", "--to", "nbgrader", "--out", str(tmp_path / "grades.csv"), "--roster", str(tmp_path / "roster.csv"),
        "--due", "2026-11-20T23:59", "--late", "1.5",
    )  # fmt: skip
    assert "left out: ida has no score (infrastructure_error)" in out
    data = (tmp_path / "grades.csv").read_bytes()
    golden("nbgrader.csv", data)
    rows = {
        row["email"] or row["student_id"]: row
        for row in csv.DictReader(io.StringIO(data.decode(), newline=""))
    }
    assert list(next(iter(rows.values()))) == export.NBGRADER.split()
    assert rows["ann@uni.de"]["last_name"] == "O'Neil, Jr." and rows["ann@uni.de"]["score"] == "10.0"
    late = rows["bob@uni.de"]  # two days begun, of 5 points
    assert [late[k] for k in ("raw_score", "late_submission_penalty", "score", "max_score")] == [
        "5.0",
        "3.0",
        "2.0",
        "12.0",
    ]
    assert late["last_name"] == "'=cmd|' /C calc'!A0" and late["student_id"] == "'=bob,jr", (
        "a spreadsheet would run it"
    )
    assert rows["zed@uni.de"]["score"] == "0.0" and rows["zed@uni.de"]["timestamp"] == "", "handed in nothing"
    assert rows["eve"]["score"] == "0.0" and "ida" not in data.decode()


def test_nbgrader_has_the_columns_of_nbgraders_own_export():
    pytest.importorskip("nbgrader")
    import inspect

    from nbgrader.plugins.export import CsvExportPlugin

    source = inspect.getsource(CsvExportPlugin.export)
    listed = source[source.index("keys = [") :].partition("]")[0]
    assert [word.strip(' ",') for word in listed.splitlines()[1:] if word.strip()] == export.NBGRADER.split()


def test_a_penalty_takes_no_more_than_there_is(monkeypatch):
    late = export.Late(datetime(2026, 11, 20, 23, 59), 100.0)
    one = {"score": 5.0, "submitted": "2026-11-21T00:00:00"}
    assert late.penalty(one) == 5.0 and late.final(one) == 0.0
    assert late.penalty(one | {"submitted": "2026-11-20T23:59:00"}) == 0.0
    assert late.penalty(one | {"submitted": None}) == 0.0 == export.Late().penalty(one)
    assert late.penalty(one | {"submitted": "2026-11-23T00:00:00+00:00"}) == 5.0, (
        "one with a time zone, one without"
    )
    for odd in ("last week", "0001-01-01T00:00:00", "9999-12-31T23:59:59"):
        of_zone = export.Late(datetime.fromisoformat("2026-11-20T23:59:00+00:00"), 100.0)
        for at in ("Asia/Tokyo", "America/New_York"):
            monkeypatch.setenv("TZ", at)
            time.tzset()
            of_zone.penalty(one | {"submitted": odd})
    assert late.penalty(one | {"submitted": "last week"}) == 0.0, "a name that the pattern took for a time"


CANVAS_CSV = (
    "\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Essay (11),04_small (12),Current Score\r\n"
    ",,,,,Manual Posting,,\r\n"
    "    Points Possible,,,,,10,12.00,(read only)\r\n"
    '"O\'Neil, Ann",1,s1,ann,"Tue, 10h",7,,"70,5"\r\n'
    '"Ünal, ""Bob""",2,s2,"=bob,jr",Wed,8,3,80\r\n'
    "Müller,3,s3,müller@uni.de,Wed,,,\r\n"
    "=HYPERLINK(1),4,s4,nobody,Wed,1,EX,  spaces kept \r\n"
    "Idalia,5,s5,ida,Wed,1,2,3\r\n"
)


def test_canvas(told, tmp_path):
    (tmp_path / "canvas.csv").write_bytes(CANVAS_CSV.encode())
    out = told(
        "export", "--to", "canvas", "--into", str(tmp_path / "canvas.csv"), "--out", str(tmp_path / "out.csv")
    )
    assert "3 scores are in the column '04_small (12)', students found by 'SIS Login ID'" in out
    assert "no row for 1 of the results: eve" in out and "left out: ida" in out
    data = (tmp_path / "out.csv").read_bytes()
    golden("canvas.csv", data)
    before, after = CANVAS_CSV.split("\r\n"), data.decode().split("\r\n")
    same = [i for i, (a, b) in enumerate(zip(before, after)) if a == b]
    assert same == [0, 1, 2, 6, 7, 8] and len(before) == len(after), "unknown rows, and ida's, byte for byte"
    rows = [cells(row) for row in records(data.decode())]
    assert [rows[i][6] for i in (3, 4, 5)] == ["10", "5", "0"]
    for i in (3, 4, 5):
        theirs = cells(records(CANVAS_CSV)[i])
        assert rows[i][:6] + rows[i][7:] == theirs[:6] + theirs[7:], "every other column"


MOODLE_CSV = (
    "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,Last modified (grade),"
    "Feedback comments\n"
    'Participant 101,"Ann ""A"" O\'Neil",ann@other.de,"Submitted, graded",,12.00,Yes,"Friday, 20 November 2026, 10:00 AM",'
    '"<p>two\nlines, kept</p>"\n'
    "Participant 102,Jörg Müller,müller@uni.de,Submitted,1.00,12.00,Yes,-,\n"
    "Participant 103,Nobody,nobody@uni.de,No submission,,12.00,Yes,-,"
)


def test_moodle(told, tmp_path):
    (tmp_path / "moodle.csv").write_bytes(MOODLE_CSV.encode())
    out = told(
        "export", "--to", "moodle", "--into", str(tmp_path / "moodle.csv"), "--out", str(tmp_path / "out.csv")
    )
    assert (
        "2 scores are in the column 'Grade', students found by 'Email address'" in out
        and "1 rows are left" in out
    )
    data = (tmp_path / "out.csv").read_bytes()
    golden("moodle.csv", data)
    assert b'"<p>two\nlines, kept</p>"\n' in data and data.endswith(MOODLE_CSV.splitlines()[-1].encode())


def test_moodles_participants_and_other_languages():
    german = "Teilnehmer/in;Name;Bewertung;Beste Bewertung\r\nTeilnehmer/in 101;Ann;;12,00\r\n"
    with pytest.raises(
        CourseError, match="no column of the CSV for 'Grade'; name one with --column: Teilnehmer/in, Name"
    ):
        merge(german.encode(), MOODLE, "04_small", {"101": 7.5}, 12.0)
    with pytest.raises(CourseError, match="no row of the CSV names a student"):
        merge(german.encode(), MOODLE, "04_small", {"101": 7.5}, 12.0, column="Bewertung")
    data, _ = merge(german.encode(), MOODLE, "04_small", {"101": 7.5}, 12.0, "Bewertung", "Teilnehmer/in")
    assert data.decode() == german.replace("Ann;;", "Ann;7.5;")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("12.00,(read", "10,(read", "canvas has 10 points possible, the exercises 12: set 12 there"),
        ("04_small (12)", "04_smaller (12)", "no column of the CSV for '04_small'"),
        ("Essay (11)", "04_small (11)", "2 columns of the CSV for '04_small'"),
        ('s2,"=bob,jr"', "s2,ann", "two rows of the CSV belong to 'ann' by 'SIS Login ID'"),
        ('"Tue, 10h"', '"Tue" 10h', "row 4 of the CSV goes on behind a closing quote"),
        (",ann,", ",x,", None),
    ],
)
def test_what_does_not_fit_is_refused(old, new, message):
    text = CANVAS_CSV.replace(old, new)
    assert text != CANVAS_CSV
    scores = {"ann": 10.0, "=bob,jr": 5.0}
    if message is None:
        assert (
            merge(text.encode(), CANVAS, "04_small", scores, 12.0)[1][-1]
            == "no row for 1 of the results: ann"
        )
        return
    with pytest.raises(CourseError) as error:
        merge(text.encode(), CANVAS, "04_small", scores, 12.0)
    assert message in str(error.value)


def test_a_csv_in_another_encoding_is_one_sentence():
    with pytest.raises(CourseError, match="not in UTF-8: export it again from canvas"):
        merge(CANVAS_CSV.encode("utf-16"), CANVAS, "04_small", {"ann": 1.0}, 12.0)
    with pytest.raises(CourseError, match="empty"):
        merge(b"", CANVAS, "04_small", {"ann": 1.0}, 12.0)


def test_merging_nothing_changes_no_byte():
    for text in (CANVAS_CSV, MOODLE_CSV, "a,b\n1,2\n\n,\n", "a\tb\r1\t2\r", 'a,5" tape\n', "x,", "x"):
        body = text.removeprefix("\ufeff")
        assert "".join(part for row in records(body) for part in row) == body


def test_gradescope(told, tmp_path):
    out = tmp_path / "results.json"
    told("export", "--to", "gradescope", "--student", "=bob,jr", "--out", str(out))
    golden("gradescope.json", out.read_bytes())
    made = json.loads(out.read_text())
    assert made["score"] == 5.0 == sum(test["score"] for test in made["tests"])
    assert {test["visibility"] for test in made["tests"]} == {"visible", "after_published"}
    assert SECRET not in out.read_text()
    folder = tmp_path / "all"
    assert "4 files" in told("export", "--to", "gradescope", "--out", str(folder))
    assert json.loads((folder / "eve.json").read_text())["output"].startswith(
        "the solution cell 04-1 is there 2 times"
    )


def test_prairielearn(told, tmp_path):
    out = tmp_path / "results.json"
    told("export", "--to", "prairielearn", "--student", "=bob,jr", "--out", str(out))
    golden("prairielearn.json", out.read_bytes())
    made = json.loads(out.read_text())
    assert made["gradable"] is True and made["score"] == 0.5 and SECRET not in out.read_text()
    for student in ("eve", "ida"):  # what cannot be graded costs no attempt
        told("export", "--to", "prairielearn", "--student", student, "--out", str(out))
        made = json.loads(out.read_text())
        assert made["gradable"] is False and "score" not in made and made["format_errors"]


def test_classroom50(told, tmp_path, monkeypatch):
    out = tmp_path / "result.json"
    with pytest.raises(CourseError, match="classroom50's runner sets CLASSROOM, ASSIGNMENT"):
        told("export", "--to", "classroom50", "--student", "ann", "--out", str(out))
    for name in ("COMMIT", "RELEASE"):
        monkeypatch.setenv(f"{name}_URL", f"https://github.com/c/{name.lower()}")
    for name, value in (
        ("CLASSROOM", "gpt2"),
        ("ASSIGNMENT", "attention"),
        ("SUBMISSION_TAG", "submit/2026-11-20T10-00-00Z-a1b2c3d"),
    ):
        monkeypatch.setenv(name, value)
    told("export", "--to", "classroom50", "--student", "=bob,jr", "--out", str(out))
    golden("classroom50.json", out.read_bytes())
    made = json.loads(out.read_text())
    assert made["schema"] == "classroom50/result/v1" and made["score"] == 500 and made["max-score"] == 1000
    assert all(type(test[key]) is int for test in made["tests"] for key in ("score", "max-score"))
    assert sum(test["score"] for test in made["tests"]) == made["score"] and SECRET not in out.read_text()


def test_our_own_failure_is_never_a_zero(told, tmp_path):
    for system in ("gradescope", "classroom50"):
        with pytest.raises(CourseError, match="ida: the disk is full; there is no score to give"):
            told("export", "--to", system, "--student", "ida", "--out", str(tmp_path / "x.json"))
    assert not (tmp_path / "x.json").exists()


def test_junit(told, tmp_path):
    out = tmp_path / "junit.xml"
    told("export", "--to", "junit", "--out", str(out))
    golden("junit.xml", out.read_bytes())
    suites = {suite.get("name"): suite for suite in ElementTree.parse(out).getroot()}
    assert len(suites) == 5 and suites["ann"].get("failures") == "0"
    assert suites["ida"].get("errors") == "1" and suites["eve"].get("errors") == "1"
    assert SECRET not in out.read_text(encoding="utf-8")


def test_text_that_no_file_can_hold_is_replaced(tmp_path):
    odd = the_class()[:3]
    odd[2]["tasks"]["04-1"]["checks"][0]["message"] = "half a character \ud800, a null \x00, \uffff"
    odd[2]["manual"]["04-4"]["text"] = "\ud83d"
    results = read_results(write_class(tmp_path, odd), "04_small")
    ElementTree.fromstring(export.junit(results).encode())
    for record in (export.gradescope, export.prairielearn):
        json.dumps(record(results[-1])).encode()
    export.nbgrader(results, export.Late(), {}).encode()


def test_a_roster_that_is_none_is_one_sentence(tmp_path):
    (tmp_path / "r.csv").write_text("name,mail\na,b\n")
    with pytest.raises(
        CourseError, match="a roster has the columns student_id, last_name, first_name, email"
    ):
        export.read_roster(tmp_path / "r.csv")


def test_marks_count_in_every_export(tmp_path):
    folder = write_class(tmp_path)
    (folder / "04_small" / "marks.csv").write_text("student_id,task,points,comment\nann,04-4,1.5,good\n")
    ann = next(r for r in read_results(folder, "04_small") if r["student"] == "ann")
    assert ann["score"] == 11.5 and ann["manual"]["04-4"]["comment"] == "good"
    assert export.gradescope(ann)["score"] == 10.0, "Gradescope adds a person's points itself"
    rows = csv.DictReader(io.StringIO(export.nbgrader([ann], export.Late(), {})))
    assert next(rows)["score"] == "11.5"
