"""What strangers write, on the pages and in the terminal of those who read it; and the points that a person gives."""

import html
import re

import pytest
from class_results import SCRIPT, SECRET, check, result, the_class, write_class
from small_set import small_set

from course.grade.results.alike import alike
from course.grade.results.feedback import feedback
from course.grade.results.results import read_results, write_marks
from course.grade.results.show import show
from course.grade.results.summary import summary
from course.paths import CourseError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return small_set(tmp_path_factory.mktemp("sets"))


@pytest.fixture
def folder(tmp_path):
    return write_class(tmp_path / "results")


@pytest.fixture
def results(folder):
    return read_results(folder, "04_small")


def by(results, student):
    return next(r for r in results if r["student"] == student)


def test_feedback_and_summary_are_escaped_and_load_nothing(results, made):
    """From code, an exception, an answer, a comment, a file's name and a title."""
    assert SCRIPT not in summary(results, made)
    hostile = by(results, "müller@uni.de")
    hostile["manual"]["04-4"] |= {"comment": SCRIPT, "points": 1.0}
    hostile |= {"student": f'"><img src=x onerror=alert(1)>{SCRIPT}', "exercise": f"04_{SCRIPT}"}
    hostile["tasks"]["04-1"]["title"] = SCRIPT
    page = feedback(hostile)
    assert page.count(html.escape(SCRIPT)) >= 7, "shown as text"
    assert SCRIPT not in page and "<img" not in page and "\x1b" not in page and "\u202e" not in page
    assert "default-src 'none'; style-src 'unsafe-inline'" in page


def test_feedback_shows_of_a_hidden_check_its_name_and_points(results):
    for one in results[:3]:
        page = feedback(one)
        assert SECRET not in page and "SIGSEGV" not in page.partition("wrong ones are refused")[2]
    page = feedback(by(results, "=bob,jr"))
    row = re.search(r"<tr><td>wrong ones are refused</td><td>(.*?)</td><td class=n>(.*?)</td></tr>", page)
    assert (row[1], row[2]) == ("", "2 / 4")
    assert "the radius is not squared" in page and "5 of 12 points" in page


def test_feedback_of_what_was_not_graded(results):
    unread, lost = feedback(by(results, "eve")), feedback(by(results, "ida"))
    assert "the solution cell 04-1 is there 2 times" in unread and "0 of 12 points" in unread
    assert "that is not your fault" in lost and "of 12 points" not in lost


def test_what_is_shown_in_a_terminal_has_no_escape_codes(results):
    assert not {"\x1b", "\x9b", "\u061c"} & set(show(results, "müller@uni.de"))


HEAD = "student_id,task,points,comment\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{HEAD}ann,04-4,2.5,\n", "line 2: 2.5 points for 04-4, which gives 0 to 2"),
        (f"{HEAD}ann,04-4,nan,\n", "line 2: nan points"),
        (f"{HEAD}anne,04-4,1,\n", "line 2: no result of a student 'anne'"),
        (f"{HEAD}ann,04-4,1,\nann,04-4,2,\n", "line 3: ann has points for 04-4 on an earlier line"),
        (f"{HEAD}ann,04-4,1,schön\n".encode("latin-1"), "not in UTF-8"),
    ],
)
def test_marks_that_cannot_be_are_told_with_their_line(folder, text, says):
    path = folder / "04_small" / "marks.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CourseError, match=re.escape(says)):
        read_results(folder, "04_small")


def test_marks_are_read_as_a_german_excel_saves_them(folder):
    text = HEAD.replace(",", ";") + "ann;04-4;1.5;schön, sehr\r\n"
    (folder / "04_small" / "marks.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert by(read_results(folder, "04_small"), "ann")["score"] == 11.5


def test_marks_grow_and_survive_grading_again(folder):
    assert "3 answers wait" in write_marks(folder, "04_small")
    path = folder / "04_small" / "marks.csv"
    assert path.read_text().splitlines()[1:] == ['"=bob,jr",04-4,,', "ann,04-4,,", "müller@uni.de,04-4,,"]
    path.write_text(path.read_text().replace("ann,04-4,,", 'ann,04-4,2,"clear, and short"'))
    write_class(folder, [the_class()[0], result("new", [check("c", 1.0, 2.0)], [])])  # graded again; one more
    assert "3 answers wait" in write_marks(folder, "04_small")
    ann = by(read_results(folder, "04_small"), "ann")
    assert ann["score"] == 12.0 and ann["manual"]["04-4"]["comment"] == "clear, and short"
    before = path.read_bytes()
    write_marks(folder, "04_small")
    assert path.read_bytes() == before


def test_marks_that_the_grader_kept_count_too(folder):
    kept = the_class()[0]
    kept["manual"]["04-4"] |= {"points": 1.0, "comment": "kept"}
    write_class(folder, [kept])
    assert by(read_results(folder, "04_small"), "ann")["score"] == 11.0


def test_damaged_results_are_one_sentence(folder, tmp_path):
    with pytest.raises(CourseError, match="no results in"):
        read_results(tmp_path / "nowhere", "04_small")
    (folder / "04_small" / "x.json").write_text('{"format": 1')
    with pytest.raises(CourseError, match=r"x\.json is no result of grading"):
        read_results(folder, "04_small")


def test_code_that_no_parser_survives_is_like_no_other(made):
    deep = "def ring(a, b):\n    return " + "(" * 5000 + "a" + ")" * 5000
    codes = {"a": deep, "b": deep, "c": "x = '\x00'", "d": "x = '\x00'"}
    solutions = {who: made.stubs | {"04-2": code} for who, code in codes.items()}
    assert not alike([result(who, [], [], solutions=theirs) for who, theirs in solutions.items()], made)
