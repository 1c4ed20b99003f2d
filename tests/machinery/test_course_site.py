"""The site: every chapter is in it, no link is dead, nothing secret shows. Nothing is executed.

tests/machinery/test_course_site_browser.py opens its pages in a browser.
"""

import re
from itertools import chain
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import nbformat
import pytest
from built_site import HTML, built, needs_sphinx

from course.exercises.release import secret_lines
from course.exercises.sets import folders, read, stub
from course.files import read_notebook
from course.paths import PACKAGE, ROOT, SOURCES, CourseError, chapters, modules, notebook_path
from course.predictions import ASKS
from course.site import build as site
from course.site import pages, readme
from course.site.reading import code_to_read
from nanogpt.config import keys

FILES = list(map(notebook_path, chapters()))

PLACES = site.places()


def code(source: str, printed: str = ""):
    outputs = [nbformat.v4.new_output("stream", text=printed)] if printed else []
    return nbformat.v4.new_code_cell(source, outputs=outputs)


@pytest.mark.parametrize("name", ["predict", "guess"])
def test_a_prediction_reads_as_a_question_whose_outcome_opens(name):
    asked = code(f'{name}("05.1", "loss <1>", unit="nats")')
    (question,) = code_to_read(asked, "", {"05.1": "11 nats"}, name)
    assert question.cell_type == "markdown" and "<span>05.1</span> loss &lt;1&gt; (nats)" in question.source
    assert "<summary>What came out</summary><p>11 nats</p>" in question.source


def test_every_chapter_reads_without_directives_and_its_predictions_are_questions():
    for path in FILES:
        nb = pages.chapter_page(path, PLACES)
        source = "\n".join(cell.source for cell in read_notebook(path).cells)
        name = found[1] if (found := ASKS.search(source)) else "predict"
        codes = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "code")
        assert not re.search(rf"^#\||^{name}\(|alt=\"", codes, re.MULTILINE), path.name
        asked = len(re.findall(rf"^{name}\(", source, re.MULTILINE))
        shown = sum(cell.source.count("<p><span>") for cell in nb.cells if cell.cell_type == "markdown")
        assert shown == asked, path.name


def test_every_module_has_a_page_and_the_core_comes_first():
    made = site.module_pages()
    rows = re.findall(r"^\| \[([\w.]+)\]", made["nanogpt/index.md"], re.MULTILINE)
    assert sorted(rows) == sorted(modules())
    assert set(made) == {f"nanogpt/{name.replace('.', '/')}.md" for name in [*rows, "index"]}
    assert sorted(rows, key=lambda name: "." in name) == rows and rows[:2] == ["device", "tokenizer"]


def test_every_key_of_a_run_is_on_its_page_with_its_meaning():
    rows = re.findall(r"^\| `(\S+)` \| `(.*?)` \| (.+) \|$", readme.keys(), re.MULTILINE)
    assert [key for key, _, _ in rows] == list(keys())
    assert all(meaning.strip() for _, _, meaning in rows), "a key without a meaning"


def test_a_set_that_would_show_a_solution_is_refused():
    made = read(folders()[0])
    made.cells.append(type(made.cells[0])("text", "", secret_lines(made)[0]))
    with pytest.raises(CourseError, match=made.name):
        pages.exercise_page(made, "01_tokenizer", site.places())


@needs_sphinx
@pytest.mark.slow
class TestBuilt:
    def test_no_solution_and_no_hidden_check_is_anywhere_in_the_site(self):
        """Neither a line of a solution that stands in no chapter, nor a word that only solutions and checks.py have."""
        sets = list(map(read, folders()))
        shown = [stub(cell.source) for made in sets for cell in made.cells]
        folders_shown = [SOURCES.glob("*.py"), PACKAGE.rglob("*.py"), (ROOT / "site").rglob("*.md")]
        folders_shown += [ROOT.glob("*.md"), (ROOT / "exercises").glob("*.md"), (ROOT / "data").glob("*.txt")]
        known = "\n".join([*shown, *(path.read_text(encoding="utf-8") for path in chain(*folders_shown))])
        in_small = known.lower()  # the search's index has no others
        checks = [(made.folder / "checks.py").read_text(encoding="utf-8") for made in sets]
        solutions = [text for made in sets for text in made.solutions.values()]
        secret = {word for word in words("\n".join(checks + solutions)) if word.lower() not in in_small}
        lines = {line for made in sets for line in secret_lines(made)}
        lines -= set(map(str.strip, known.splitlines()))
        assert len(secret) > 200 and len(lines) > 200, "too little is secret for this test to mean something"
        texts = {path: "".join(page.text) for path, page in built().items()}
        for path in HTML.rglob("*"):
            if path.suffix in (".js", ".txt", ".ipynb", ".md", ".py") and "_static" not in path.parts:
                texts[path] = path.read_text(encoding="utf-8")
        for path, text in texts.items():
            leaks = (secret & words(text)) | (lines & {line.strip() for line in text.splitlines()})
            assert not leaks, path

    def test_what_is_downloaded_is_the_committed_file(self):
        built()
        for path in FILES:
            assert (HTML / "notebooks" / path.name).read_bytes() == path.read_bytes()

    def test_no_link_within_the_site_is_dead(self):
        dead = []
        for path, page in built().items():
            for link in page.links:
                url, anchor = urldefrag(link)
                if re.match(r"[a-z]+:", url) or "_modules" in path.parts:
                    continue
                target = Path(unquote(urljoin(path.as_uri(), url)).removeprefix("file://")) if url else path
                missing = anchor and target in built() and unquote(anchor) not in built()[target].anchors
                if not target.exists() or missing:
                    dead.append(f"{path.name}: {link}")
        assert not dead


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w{5,}", text))
