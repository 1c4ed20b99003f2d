"""What an instructor reads and what a student gets back: feedback, marks, show, summary, solutions that read alike."""

import json
import re
from html.parser import HTMLParser

import pytest
from class_results import SCRIPT, SECRET, check, result, the_class, write_class
from small_set import small_set

from course.grade import desk
from course.grade.results.alike import alike, normalised
from course.grade.results.feedback import feedback, write_feedback
from course.grade.results.results import read_results, write_marks
from course.grade.results.show import show
from course.grade.results.summary import histogram, summary
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


class Tags(HTMLParser):
    """The elements of a page, the text outside of its style, and whether every element is closed."""

    def __init__(self, page: str):
        super().__init__()
        self.seen, self.open, self.said, self.links = [], [], "", []
        self.feed(page)
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [
            value for name, value in attrs if name in ("src", "href", "onload", "onerror", "onclick")
        ]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.said += data


def by(results, student):
    return next(r for r in results if r["student"] == student)


def test_feedback_is_escaped_and_loads_nothing(results):
    """From code, an exception, an answer, a comment, a file's name and a title."""
    hostile = by(results, "müller@uni.de")
    hostile["manual"]["04-4"] |= {"comment": SCRIPT, "points": 1.0}
    hostile |= {"student": f'"><img src=x onerror=alert(1)>{SCRIPT}', "exercise": f"04_{SCRIPT}"}
    hostile["tasks"]["04-1"]["title"] = SCRIPT
    tags = Tags(feedback(hostile))
    assert not {"script", "img", "link", "iframe"} & set(tags.seen) and not tags.links
    assert tags.said.count(SCRIPT) >= 7, "shown as text"
    page = feedback(hostile)
    assert "\x1b" not in page and "\u202e" not in page
    assert "default-src 'none'; style-src 'unsafe-inline'" in page


def test_feedback_shows_of_a_hidden_check_its_name_and_points(results):
    for one in results[:3]:
        page = feedback(one)
        assert SECRET not in page and "SIGSEGV" not in page.partition("wrong ones are refused")[2]
    page = feedback(by(results, "=bob,jr"))
    row = re.search(r"<tr><td>wrong ones are refused</td><td>(.*?)</td><td class=n>(.*?)</td></tr>", page)
    assert (row[1], row[2]) == ("", "2 / 4")
    assert "the radius is not squared" in page and "5 of 12 points" in page
    assert "Without the points for 04-4" in page


def test_feedback_of_what_was_not_graded(results):
    unread, lost = feedback(by(results, "eve")), feedback(by(results, "ida"))
    assert (
        "could not be graded. the solution cell 04-1 is there 2 times" in unread
        and "0 of 12 points" in unread
    )
    assert "that is not your fault" in lost and "of 12 points" not in lost
    assert "04-1 ·" not in unread


def test_a_task_that_is_as_it_was_handed_out_is_not_begun(results):
    one = by(results, "=bob,jr")
    one["tasks"]["04-1"]["checks"] = [
        check("the area", 0, 2, "student_error", "NotImplementedError (04-1, line 3)")
    ]
    page = feedback(one)
    assert "not begun" in page and "NotImplementedError" not in page


def test_feedback_is_written_and_old_pages_go(results, tmp_path):
    assert "5 pages" in write_feedback(results, tmp_path)
    assert (tmp_path / "feedback" / "=bob,jr.html").exists()
    write_feedback(results[:1], tmp_path)
    assert len(list((tmp_path / "feedback").glob("*.html"))) == 1


def test_show_has_everything_and_no_escape_codes(results):
    text = show(results, "=bob,jr")
    assert SECRET in text and "(hidden)" in text and "| def area(r):" in text and "unmarked of 2" in text
    assert not {"\x1b", "\x9b", "\u061c"} & set(show(results, "müller@uni.de"))
    with pytest.raises(CourseError, match="no result of a student 'Ann'; there is ann"):
        show(results, "Ann")
    ours = next(result for result in results if result["manual"]) | {
        "verdict": "infrastructure_error",
        "score": None,
    }
    assert "unmarked of 2" in show([ours], ours["student"]), (
        "a submission that we failed to grade is shown, too"
    )


MARKS = "student_id,task,points,comment\n"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("ann,04-4,2.5,", "line 2: 2.5 points for 04-4, which gives 0 to 2"),
        ("ann,04-4,-1,", "line 2: -1 points"),
        ("ann,04-4,nan,", "line 2: nan points"),
        ("ann,04-4,two,", "line 2: points 'two' are no number"),
        ("ann,04-1,1,", "line 2: '04-1' is no question for a person; there are 04-4"),
        ("anne,04-4,1,", "line 2: no result of a student 'anne'"),
        ("ann,04-4,1,\nann,04-4,2,", "line 3: ann has points for 04-4 on an earlier line"),
        ("ann,04-4", "line 2: the columns student_id,task,points,comment are due"),
        ("ann,04-4,1,a,b", "line 2: the columns student_id,task,points,comment are due"),
    ],
)
def test_marks_that_cannot_be_are_told_with_their_line(folder, row, message):
    (folder / "04_small" / "marks.csv").write_text(f"{MARKS}{row}\n")
    with pytest.raises(CourseError) as error:
        read_results(folder, "04_small")
    assert message in str(error.value)


def test_marks_wrong_columns_and_encodings(folder):
    path = folder / "04_small" / "marks.csv"
    path.write_text("student,task,points\n")
    with pytest.raises(
        CourseError, match="its first line is student_id,task,points,comment, not 'student,task,points'"
    ):
        read_results(folder, "04_small")
    path.write_bytes(f"{MARKS}ann,04-4,1,schön\n".encode("latin-1"))
    with pytest.raises(CourseError, match="not in UTF-8"):
        read_results(folder, "04_small")
    path.write_bytes(b"\xef\xbb\xbf" + f"{MARKS.replace(',', ';')}ann;04-4;1.5;schön, sehr\r\n".encode())
    assert by(read_results(folder, "04_small"), "ann")["score"] == 11.5, "as a German Excel saves it"


def test_marks_grow_and_survive_grading_again(folder, made, tmp_path):
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


def many(shares: dict[str, float], students: int = 30) -> list[dict]:
    """A class in which the first of them are strong: who gets the check "fair", and who gets "odd", is the other way round."""
    found = []
    for i in range(students):
        fair, odd = float(i < students * shares["fair"]), float(i >= students * (1 - shares["odd"]))
        rows = [
            check("fair", 6 * fair, 6.0),
            check("odd", odd, 1.0),
            check("rare", float(i == 0), 1.0, hidden=True),
        ]
        found.append(result(f"s{i:02}", rows, [check("what remains", 3.0, 3.0)]))
    return found


def test_the_summary_points_at_a_bad_question(made):
    page = summary(many({"fair": 0.5, "odd": 0.4}), made)
    tags = Tags(page)
    assert not {"script", "img", "link"} & set(tags.seen) and not tags.links and tags.seen.count("svg") == 3
    rows = {name: page[page.index(f"<td>{name}") :].split("</tr>")[0] for name in ("fair", "odd", "rare")}
    assert "50%" in rows["fair"] and "100%" in rows["fair"] and "unclear" not in rows["fair"]
    assert "40%" in rows["odd"] and "the best third does not do better" in rows["odd"]
    assert "few got it" in rows["rare"] and "hidden" in rows["rare"]


def test_the_summary_of_the_class(results, made):
    page = summary(results, made)
    Tags(page)
    assert "5 submissions, 3 graded, 1 infrastructure_error, 1 invalid_submission, 3 answers wait" in page
    assert "Mean 5.0, median 5.0 of 12 points" in page and "An infrastructure_error is ours" in page
    assert SCRIPT not in page
    Tags(summary([by(results, "ida")], made))  # nobody graded


def test_a_histogram_counts_everybody():
    svg = histogram([0.0, 0.5, 9.99, 10.0, 10.0], 10.0, "x")
    assert [int(n) for n in re.findall(r'middle">(\d+)<', svg)] == [2, 3]
    assert "<rect" in histogram([0.0], 0.0, "a set of no points")


LONG = '''\
def ring(outer, inner):
    """Mine."""
    total = 0.0
    for radius, sign in ((outer, 1), (inner, -1)):
        square = radius ** 2
        total = total + sign * 3.141592653589793 * square
    if total < 0:
        raise ValueError("the hole is wider than the ring")
    return total
'''
RENAMED = (
    LONG.replace("total", "summe")
    .replace("radius", "r")
    .replace("square", "q")
    .replace('"""Mine."""', "# all my own work")
)
OTHER = """\
def ring(outer, inner):
    parts = [area(r) for r in (outer, inner)]
    difference = parts[0] - parts[1]
    assert difference >= 0, "the hole is wider than the ring"
    return float(difference)
"""


def with_code(student: str, code: str) -> dict:
    return result(student, [], [], solutions={"student": "", "04-1": "def area(r): return 3", "04-2": code})


def test_alike_after_renaming_and_not_otherwise(made):
    assert normalised(LONG) == normalised(RENAMED)
    stub, reference = made.stubs["04-2"], made.solutions["04-2"]
    codes = {
        "a": LONG,
        "b": RENAMED,
        "c": OTHER,
        "d": stub,
        "e": stub,
        "f": reference,
        "g": reference,
        "h": "def ring(",
        "i": "",
    }
    found = alike([with_code(student, code) for student, code in codes.items()], made)
    assert [(p.task, p.one, p.other) for p in found if p.task == "04-2"] == [("04-2", "a", "b")]
    assert found[0].similarity == 1.0


def test_what_many_write_is_a_usual_way(made):
    few = [with_code(f"s{i}", LONG) for i in range(3)]
    assert len([p for p in alike(few, made) if p.task == "04-2"]) == 3
    assert not [p for p in alike([with_code(f"s{i}", LONG) for i in range(8)], made) if p.task == "04-2"]


def test_code_that_no_parser_survives_is_no_pair(made):
    deep = "def ring(a, b):\n    return " + "(" * 5000 + "a" + ")" * 5000
    assert (
        alike([with_code(s, deep) for s in "ab"] + [with_code(s, "x = '\x00'") for s in "cd"], made)
        is not None
    )


def test_the_commands_print_where_things_are(folder, made, capsys):
    from argparse import ArgumentParser

    def call(*words: str) -> str:
        parser = ArgumentParser()
        desk.add_commands(parser.add_subparsers())
        args = parser.parse_args([*words, "--results", str(folder)])
        assert args.call(args) == 0
        return capsys.readouterr().out

    assert "feedback/: 5 pages" in call("feedback", str(made.folder))
    assert "marks.csv: 3 answers wait" in call("marks", str(made.folder))
    said = call("summary", str(made.folder))
    assert "summary.html" in said and "04-1" in said and (folder / "04_small" / "summary.html").exists()
    assert "5 of 12 (graded)" in call("show", "=bob,jr", str(made.folder))
    assert "5 of 12 (graded)" in call("show", "=bob,jr"), "in every set that has results"
    with pytest.raises(CourseError, match="no result of a student 'nobody'"):
        call("show", "nobody")
    assert json.loads((folder / "04_small" / "ann.json").read_text())["score"] == 10.0, (
        "reading writes no result"
    )
