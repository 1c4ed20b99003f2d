"""Chapters are called by their number and their title, and ask what they answer."""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest

from course.notebooks.source import notebook_from_text
from course.package.directives import read_head
from course.paths import (
    NOTEBOOKS,
    PACKAGE,
    ROOT,
    SOURCES,
    TESTS,
    chapters,
    notebook_path,
    number_of,
    numbered,
    source_chapters,
    source_path,
)
from course.site.chapters import OPTIONAL
from course.site.reading import called

# What a reader meets, and what explains itself by chapters. This file's own examples are wrong on purpose.
TEXTS = sorted(
    [*SOURCES.glob("*.py"), *PACKAGE.rglob("*.py"), *(ROOT / "course").rglob("*.py")]
    + [path for path in TESTS.rglob("*.py") if path != Path(__file__)]
    + [*ROOT.glob("*.md"), *(ROOT / "data").glob("*.md")]
)
NUMBERS = re.compile(r"\b[Cc]hapters?\s+((?:\d+[a-z]?\b(?:\s*(?:,|–|-|to|and|or|/|through)\s*)?)+)")
CHAPTERS = {  # by number, what its file is called
    number_of(path): path.stem.partition("_")[2].replace("fine_tuning", "fine-tuning").replace("_", " ")
    for path in numbered(SOURCES, ".py")
}
TITLES = "|".join(sorted(map(re.escape, CHAPTERS.values()), key=len, reverse=True))
CALLED = [
    re.compile(rf"\b[Cc]hapter\s+(\d\d[a-z]?)\s*[,:(·]\s*(?:the\s+|on\s+)?(?P<title>{TITLES})\b(?!['’\w-])"),
    re.compile(rf"\b(?P<title>{TITLES})\s+chapter\s+\(?(\d\d[a-z]?)\b"),
    re.compile(rf"\b(\d\d[a-z]?)\s+·\s+(?P<title>{TITLES})\b", re.IGNORECASE),
    re.compile(rf"\b(\d\d[a-z]?)_(?P<title>{TITLES.replace(chr(92) + ' ', '_')})\b"),
]  # fmt: skip


def wrong_references(text: str) -> list[str]:
    """References to a chapter that the map lacks, or by another chapter's title."""
    wrong = []
    for found in NUMBERS.finditer(text):
        numbers = re.findall(r"\d+[a-z]?", found.group(1))
        wrong += [found.group().strip() for number in numbers if number not in CHAPTERS][:1]
    for pattern in CALLED:
        for found in pattern.finditer(text):
            number = next(group for group in found.groups() if re.fullmatch(r"\d\d[a-z]?", group or ""))
            if CHAPTERS.get(number) != found["title"].lower().replace("_", " "):
                wrong.append(" ".join(found.group().split()))
    return wrong


@pytest.mark.parametrize(
    "text",
    ["see chapter 26", "chapters 04 and 31", "chapters 17–26", "chapter 7 shows", "chapter 05, training", "chapter 05 (attention)",
     "the sampling chapter (07)", "03_attention.ipynb", "# 06 · Training: from ln V", "Chapter 11: flash attention", "chapter 04b",
     "chapters 16 and 17z", "17b_trainer.py", "chapter 17b: trainer"],
)  # fmt: skip
def test_a_wrong_reference_is_found(text):
    assert wrong_references(text)


def test_every_reference_is_to_a_chapter_by_its_own_title():
    wrong = {path: wrong_references(path.read_text(encoding="utf-8")) for path in TEXTS}
    assert not {path: found for path, found in wrong.items() if found}


def test_notebooks_sources_and_tests_are_on_the_map():
    assert chapters() == source_chapters()
    stems = [[path.stem for path in numbered(*each)] for each in ((NOTEBOOKS, ".ipynb"), (SOURCES, ".py"))]
    assert stems[0] == stems[1]
    tested = {path.name[7:].partition("_")[0] for path in TESTS.rglob("test_ch*.py")}
    assert tested <= set(chapters()), "a test file belongs to no chapter"


@cache
def cells(chapter: str) -> list:
    return notebook_from_text(source_path(chapter).read_text(encoding="utf-8")).cells


def code(chapter: str) -> list[str]:
    return [cell.source for cell in cells(chapter) if cell.cell_type == "code"]


@pytest.mark.parametrize("chapter", source_chapters())
class TestChapter:
    def test_its_saved_checkpoint_met_no_older_package(self, chapter):
        """A notebook executed over an older package says so, and CI's fresh package does not: `course build` again."""
        assert "is no longer exported" not in notebook_path(chapter).read_text(encoding="utf-8")

    def test_every_assertion_says_what_is_wrong(self, chapter):
        """A student's edit that breaks a law ends in a sentence, not in a bare AssertionError."""
        silent = [ast.unparse(node) for source in code(chapter) for node in silent_assertions(source)]
        assert not silent, f"without a message: {silent}"

    def test_no_cell_hides_a_name_that_another_cell_imports(self, chapter):
        """Run out of order, a function that uses the imported name would call the other one."""
        assert hidden_imports(code(chapter)) == []

    def test_its_heading_has_its_number(self, chapter):
        mark = " ◇" * (chapter in OPTIONAL)
        assert cells(chapter)[0].source.startswith(f"# {chapter}{mark} · ")

    def test_every_prediction_is_answered_and_tabled(self, chapter):
        calls = [call for source in code(chapter) for call in prediction_calls(source)]
        keys = {name: [key for which, key, _ in calls if which == name] for name in ("predict", "answer")}
        assert all(guess in (None, "None") for _, _, guess in calls), "the guess is the student's"
        assert all(key.startswith(f"{chapter}.") for key in keys["predict"])
        assert len(set(keys["predict"])) == len(keys["predict"]), "one key, two questions"
        assert set(keys["predict"]) == set(keys["answer"])
        tables = [key for name, key, _ in calls if name == "predictions"]
        assert tables == ([chapter] if keys["predict"] else []), "predictions(NN) stands once, near the end"

    def test_a_prediction_is_alone_in_its_cell(self, chapter):
        """Who runs the cell must not see the answer before they have written a guess."""
        assert beside_predictions(code(chapter)) == []


def parsed(source: str) -> ast.Module:
    """A cell, its magics passed over."""
    return ast.parse(re.sub(r"^(\s*)[%!].*", r"\1pass", source, flags=re.MULTILINE))


def silent_assertions(source: str) -> list[ast.Assert]:
    """The assert statements of a cell that have no message, however deep."""
    return [node for node in ast.walk(parsed(source)) if isinstance(node, ast.Assert) and node.msg is None]


def beside_predictions(code: list[str]) -> list[str]:
    """Of the cells that call `predict` and do something else, the first line that does."""
    found = []
    for source in code:
        body = [] if source.startswith("%%") else parsed(source).body  # a file that it writes
        others = [node for node in body if called(node) != "predict"]
        if others and len(others) < len(body):
            found.append(source.splitlines()[others[0].lineno - 1])
    return found


def hidden_imports(code: list[str]) -> list[str]:
    """Names that one cell imports, and another cell defines for a module that is not the one of the import."""
    defined, imported, default = [], {}, ""
    for source in code:
        head = read_head(source, "a cell")
        default = head.default or default
        for node in parsed(source).body:
            if isinstance(node, ast.ImportFrom):
                for name in node.names:
                    imported.setdefault(name.asname or name.name, set()).add(node.module)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.append((node.name, f"nanogpt.{head.module or default}"))
    return [name for name, module in defined if imported.get(name, set()) - {module}]


def prediction_calls(source: str) -> list[tuple[str, str, str | None]]:
    """Calls of predict, answer and predictions in a cell: name, key, and the guess as it is written."""
    names = {"predict": "predict", "guess": "predict", "answer": "answer", "predictions": "predictions"}
    found = []
    if re.search(rf"\b({'|'.join(names)})\(", source):
        for node in ast.walk(parsed(source)):
            name = names.get(getattr(getattr(node, "func", None), "id", ""))
            key = getattr(node.args[0], "value", None) if name and node.args else None
            if isinstance(key, str) and re.match(r"\d\d[a-z]?(\.|$)", key):
                guess = [ast.unparse(word.value) for word in node.keywords if word.arg == "guess"]
                found.append((name, key, guess[0] if guess else None))
    return found


# An output of a machine that was disturbed

DISTURBED = 0.15  # an interval that reaches further from its gain is no result
GAIN = re.compile(r"(\d+\.\d+)× \((\d+\.\d+) to (\d+\.\d+)\)")
RESTS = {  # chapter: how the lines begin whose gain the text below them states
    "09": ("the same step again", "with a fused AdamW"),
    "09b": ("the fused update",),
    "10": ("the step under autocast",),
    "11": ("compiled is", "written out"),
    "12b": ("T=2048", "T=  64", "T= 512"),
}


def disturbed_lines(text: str, rests: tuple[str, ...]) -> list[str]:
    """Printed lines that show a disturbed measurement: the ladder's marks, or an interval that is too wide where text rests on it."""
    found = []
    for line in text.splitlines():
        gain = GAIN.search(line)
        wide = False
        if gain and line.startswith(rests):
            ratio, low, high = map(float, gain.groups())
            rounding = 0.5 / (100 * ratio)
            wide = max(high / ratio - 1, 1 - low / ratio) > DISTURBED + rounding
        if wide or re.match(r" +! ", line) or re.match(r"[^:]+ ms, forecast .*\bdisturbed, ", line):
            found.append(line.strip())
    return found


def printed(path) -> str:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "".join("".join(out.get("text", "")) for cell in cells for out in cell.get("outputs", ()))


SHARED = pytest.mark.xfail(strict=True, reason="14b was climbed on a machine that others used as well")


@pytest.mark.parametrize("chapter", [*RESTS, "13", pytest.param("14b", marks=SHARED)])
def test_no_committed_output_is_of_a_disturbed_machine(chapter):
    """Execute the chapter again where nothing else runs: `course build NN --again`."""
    text = printed(notebook_path(chapter))
    assert disturbed_lines(text, RESTS.get(chapter, ())) == []
    gains = [line for line in text.splitlines() if GAIN.search(line)]
    missing = [start for start in RESTS.get(chapter, ()) if not any(line.startswith(start) for line in gains)]
    assert not missing, f"no line with a gain begins like this any more: {missing}"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("F.gelu is 3.47× (3.22 to 4.67) as fast", True),
        ("F.gelu is 3.47× (3.00 to 3.90) as fast", False),
        ("F.relu is 3.47× (3.22 to 4.67) as fast", False),  # nothing rests on it
        ("flash   10.0 ms, forecast 9.0  disturbed, (1.03 to 1.39) forecast 1.1×", True),
        ("              ! copy: 1.19× the rate before the climb", True),
        ("disturbed, so that nothing is known of the gain: no rung", False),
    ],
)
def test_a_disturbed_output_is_found(line, found):
    assert disturbed_lines(line, ("F.gelu",)) == ([line.strip()] if found else [])
