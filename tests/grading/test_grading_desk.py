"""What an instructor reads and what a student gets back: feedback, marks, show, summary, solutions that read alike."""

import re
from html.parser import HTMLParser

import pytest
from class_results import SCRIPT, SECRET, check, result, the_class, write_class
from small_set import small_set

from course.cli import main
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
    """The elements of a page, its links, and the text outside of its style. Every element is closed."""

    def __init__(self, page: str):
        super().__init__()
        self.seen, self.open, self.said, self.links = [], [], "", []
        self.feed(page)
        assert not self.open, f"not closed: {self.open}"
        assert not {"script", "img", "link", "iframe"} & set(self.seen) and not self.links

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href") or name.startswith("on")]
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
    page = feedback(hostile)
    assert Tags(page).said.count(SCRIPT) >= 7, "shown as text"
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
    assert "the solution cell 04-1 is there 2 times" in unread and "0 of 12 points" in unread
    assert "that is not your fault" in lost and "of 12 points" not in lost
    one = by(results, "=bob,jr")
    stub = "NotImplementedError (04-1, line 3)"
    one["tasks"]["04-1"]["checks"] = [check("the area", 0, 2, "student_error", stub)]
    assert "not begun" in feedback(one) and stub not in feedback(one)


def test_feedback_is_written_and_old_pages_go(results, tmp_path):
    for some in (results, results[:1]):
        write_feedback(some, tmp_path)
        there = {path.stem for path in (tmp_path / "feedback").glob("*.html")}
        assert there == {one["student"] for one in some}


def test_show_has_everything_and_no_escape_codes(results):
    text = show(results, "=bob,jr")
    assert SECRET in text and "(hidden)" in text and "| def area(r):" in text and "unmarked of 2" in text
    assert not {"\x1b", "\x9b", "\u061c"} & set(show(results, "müller@uni.de"))
    with pytest.raises(CourseError, match="no result of a student 'Ann'; there is ann"):
        show(results, "Ann")
    lost = by(results, "ann") | {"verdict": "infrastructure_error", "score": None}
    assert "unmarked of 2" in show([lost], "ann"), "a submission that we failed to grade is shown, too"


HEAD = "student_id,task,points,comment\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{HEAD}ann,04-4,2.5,\n", "line 2: 2.5 points for 04-4, which gives 0 to 2"),
        (f"{HEAD}ann,04-4,-1,\n", "line 2: -1 points"),
        (f"{HEAD}ann,04-4,nan,\n", "line 2: nan points"),
        (f"{HEAD}ann,04-4,two,\n", "line 2: points 'two' are no number"),
        (f"{HEAD}ann,04-1,1,\n", "line 2: '04-1' is no question for a person"),
        (f"{HEAD}anne,04-4,1,\n", "line 2: no result of a student 'anne'"),
        (f"{HEAD}ann,04-4,1,\nann,04-4,2,\n", "line 3: ann has points for 04-4 on an earlier line"),
        (f"{HEAD}ann,04-4\n", "line 2: the columns student_id,task,points,comment are due"),
        (f"{HEAD}ann,04-4,1,a,b\n", "line 2: the columns"),
        ("student,task,points\n", "its first line is student_id,task,points,comment"),
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
    assert Tags(page).seen.count("svg") == 3
    rows = {name: page[page.index(f"<td>{name}") :].split("</tr>")[0] for name in ("fair", "odd", "rare")}
    assert "50%" in rows["fair"] and "100%" in rows["fair"] and "unclear" not in rows["fair"]
    assert "40%" in rows["odd"] and "the best third does not do better" in rows["odd"]
    assert "few got it" in rows["rare"] and "hidden" in rows["rare"]


def test_the_summary_of_the_class(results, made):
    page = summary(results, made)
    Tags(page)
    assert "5 submissions, 3 graded, 1 infrastructure_error, 1 invalid_submission, 3 answers wait" in page
    assert "Mean 5.0, median 5.0 of 12 points" in page and SCRIPT not in page
    Tags(summary([by(results, "ida")], made))  # nobody graded


@pytest.mark.parametrize(
    ("scores", "most", "bars"), [([0.0, 0.5, 9.99, 10.0, 10.0], 10.0, [2, 3]), ([0.0], 0.0, [1])]
)
def test_a_histogram_counts_everybody(scores, most, bars):
    assert [int(n) for n in re.findall(r'middle">(\d+)<', histogram(scores, most, "x"))] == bars


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


def pairs(codes: dict[str, str], made) -> list[tuple]:
    results = [
        result(student, [], [], solutions={"student": "", "04-1": "def area(r): return 3", "04-2": code})
        for student, code in codes.items()
    ]
    return [(p.one, p.other, p.similarity) for p in alike(results, made) if p.task == "04-2"]


def test_alike_after_renaming_and_not_otherwise(made):
    assert normalised(LONG) == normalised(RENAMED)
    stub, reference = made.stubs["04-2"], made.solutions["04-2"]
    codes = [LONG, RENAMED, OTHER, stub, stub, reference, reference, "def ring(", ""]
    assert pairs(dict(zip("abcdefghi", codes)), made) == [("a", "b", 1.0)]
    deep = "def ring(a, b):\n    return " + "(" * 5000 + "a" + ")" * 5000  # no parser survives it
    assert not pairs({"a": deep, "b": deep, "c": "x = '\x00'", "d": "x = '\x00'"}, made)


def test_what_many_write_is_a_usual_way(made):
    assert len(pairs(dict.fromkeys("abc", LONG), made)) == 3
    assert not pairs(dict.fromkeys("abcdefgh", LONG), made)


def test_the_commands_print_where_things_are(folder, made, capsys):
    def call(*words: str, code=0) -> str:
        assert main(["grade", *words, "--results", str(folder)]) == code
        said = capsys.readouterr()
        return said.out + said.err

    before = (folder / "04_small" / "ann.json").read_bytes()
    assert "feedback/: 5 pages" in call("feedback", str(made.folder))
    assert "marks.csv: 3 answers wait" in call("marks", str(made.folder))
    said = call("summary", str(made.folder))
    assert "summary.html" in said and "04-1" in said
    assert "5 of 12 (graded)" in call("show", "=bob,jr"), "in every set that has results"
    assert "nobody" in call("show", "nobody", code=2)
    assert (folder / "04_small" / "ann.json").read_bytes() == before, "reading writes no result"
