"""Scores in the formats of other systems, each beside a golden file in tests/grading_export/.

GOLDEN=write makes the golden files anew; read them before you commit them.
"""

import csv
import inspect
import io
import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from class_results import SECRET, the_class, write_class
from small_set import small_set

from course.cli import main
from course.grade.results.results import read_results
from course.grade.systems import export
from course.grade.systems.merge import CANVAS, MOODLE, merge, records
from course.paths import CourseError

GOLDEN = Path(__file__).parents[1] / "grading_export"
ROSTER = '''\
student_id,last_name,first_name,email
ann,"O'Neil, Jr.",Ann,ann@uni.de
"=bob,jr",=cmd|' /C calc'!A0,Bob,bob@uni.de
müller@uni.de,Müller,"Jörg ""der Große""",müller@uni.de
zed,Zed,Zoë,zed@uni.de
'''  # fmt: skip
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
MOODLE_CSV = (
    "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,Last modified (grade),"
    "Feedback comments\n"
    'Participant 101,"Ann ""A"" O\'Neil",ann@other.de,"Submitted, graded",,12.00,Yes,"Friday, 20 November 2026, 10:00 AM",'
    '"<p>two\nlines, kept</p>"\n'
    "Participant 102,Jörg Müller,müller@uni.de,Submitted,1.00,12.00,Yes,-,\n"
    "Participant 103,Nobody,nobody@uni.de,No submission,,12.00,Yes,-,"
)
BOB = ["--student", "=bob,jr"]
EXPORTS = {  # the golden file, the words of `course grade export`, what it says
    "nbgrader.csv": (["--roster", "roster.csv", "--due", "2026-11-20T23:59", "--late", "1.5"], "left out: ida has no score"),
    "canvas.csv": (["--into", "canvas.in"], "no row for 1 of the results: eve"),
    "moodle.csv": (["--into", "moodle.in"], "1 rows are left"),
    "gradescope.json": (BOB, ""),
    "prairielearn.json": (BOB, ""),
    "classroom50.json": (BOB, ""),
    "junit.xml": ([], ""),
}  # fmt: skip


@pytest.fixture
def exported(tmp_path, monkeypatch, capsys):
    """`course grade export` of the class; what it prints."""
    made = small_set(tmp_path / "sets")
    write_class(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    files = {"roster.csv": ROSTER, "canvas.in": CANVAS_CSV, "moodle.in": MOODLE_CSV}
    for name, text in files.items():
        Path(name).write_bytes(text.encode())

    def call(system: str, out: str, *words: str, code: int = 0) -> str:
        assert main(["grade", "export", str(made.folder), "--to", system, "--out", out, *words]) == code
        said = capsys.readouterr()
        return said.out + said.err

    return call


@pytest.fixture
def classroom(monkeypatch):
    """What classroom50's runner sets."""
    for name in ("COMMIT", "RELEASE"):
        monkeypatch.setenv(f"{name}_URL", f"https://github.com/c/{name.lower()}")
    monkeypatch.setenv("CLASSROOM", "gpt2")
    monkeypatch.setenv("ASSIGNMENT", "attention")
    monkeypatch.setenv("SUBMISSION_TAG", "submit/2026-11-20T10-00-00Z-a1b2c3d")


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_is_its_golden_file(exported, classroom, name):
    words, said = EXPORTS[name]
    assert said in exported(name.partition(".")[0], name, *words)
    data = Path(name).read_bytes()
    if os.environ.get("GOLDEN") == "write":
        (GOLDEN / name).write_bytes(data)
    assert data.decode() == (GOLDEN / name).read_bytes().decode(), f"{name} is no longer what it was"
    assert SECRET.encode() not in data


def test_nbgrader_has_the_columns_of_nbgraders_own_export():
    CsvExportPlugin = pytest.importorskip("nbgrader.plugins.export").CsvExportPlugin
    source = inspect.getsource(CsvExportPlugin.export)
    listed = source[source.index("keys = [") :].partition("]")[0]
    assert [word.strip(' ",') for word in listed.splitlines()[1:] if word.strip()] == export.NBGRADER.split()


@pytest.mark.parametrize("system", ["gradescope", "classroom50"])
def test_our_own_failure_is_never_a_zero(exported, classroom, system):
    said = exported(system, "x.json", "--student", "ida", code=2)
    assert "ida: the disk is full; there is no score to give" in said and not Path("x.json").exists()


@pytest.mark.parametrize("student", ["eve", "ida"])
def test_what_cannot_be_graded_costs_no_attempt_in_prairielearn(exported, student):
    exported("prairielearn", "x.json", "--student", student)
    made = json.loads(Path("x.json").read_text())
    assert made["gradable"] is False and "score" not in made and made["format_errors"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CANVAS_CSV.replace("12.00,(read", "10,(read"), "10 points possible, the exercises 12"),
        (CANVAS_CSV.replace("Essay (11)", "04_small (11)"), "2 columns of the CSV for '04_small'"),
        (CANVAS_CSV.replace('s2,"=bob,jr"', "s2,ann"), "two rows of the CSV belong to 'ann'"),
        (CANVAS_CSV.encode("utf-16"), "not in UTF-8"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(text, says):
    data = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(CourseError) as error:
        merge(data, CANVAS, "04_small", {"ann": 10.0, "=bob,jr": 5.0}, 12.0)
    assert says in str(error.value)


GERMAN = "Teilnehmer/in;Name;Bewertung;Beste Bewertung\r\nTeilnehmer/in 101;Ann;;12,00\r\n"


def test_moodle_in_another_language():
    with pytest.raises(CourseError, match="no row of the CSV names a student"):
        merge(GERMAN.encode(), MOODLE, "04_small", {"101": 7.5}, 12.0, column="Bewertung")
    data, _ = merge(GERMAN.encode(), MOODLE, "04_small", {"101": 7.5}, 12.0, "Bewertung", "Teilnehmer/in")
    assert data.decode() == GERMAN.replace("Ann;;", "Ann;7.5;")


@pytest.mark.parametrize(
    "text", [CANVAS_CSV, MOODLE_CSV, "a,b\n1,2\n\n,\n", "a\tb\r1\t2\r", 'a,5" tape\n', "x,", "x"]
)
def test_merging_nothing_changes_no_byte(text):
    body = text.removeprefix("\ufeff")
    assert "".join(part for row in records(body) for part in row) == body


def test_text_that_no_file_can_hold_is_replaced(tmp_path):
    odd = the_class()[:3]
    odd[2]["tasks"]["04-1"]["checks"][0]["message"] = "half a character \ud800, a null \x00, \uffff"
    odd[2]["manual"]["04-4"]["text"] = "\ud83d"
    results = read_results(write_class(tmp_path, odd), "04_small")
    ElementTree.fromstring(export.junit(results).encode())
    for record in (export.gradescope, export.prairielearn):
        json.dumps(record(results[-1])).encode()
    export.nbgrader(results, export.Late(), {}).encode()


def test_marks_count_in_every_export(tmp_path):
    folder = write_class(tmp_path)
    (folder / "04_small" / "marks.csv").write_text("student_id,task,points,comment\nann,04-4,1.5,good\n")
    ann = next(r for r in read_results(folder, "04_small") if r["student"] == "ann")
    assert ann["score"] == 11.5 and ann["manual"]["04-4"]["comment"] == "good"
    assert export.gradescope(ann)["score"] == 10.0, "Gradescope adds a person's points itself"
    rows = csv.DictReader(io.StringIO(export.nbgrader([ann], export.Late(), {})))
    assert next(rows)["score"] == "11.5"
