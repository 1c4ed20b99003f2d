"""The site: every chapter and exercise set is in it, no link is dead, nothing secret shows. Nothing is executed.

tests/machinery/test_course_site_browser.py opens its pages in a browser.
"""

import re
from itertools import chain
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import nbformat
import pytest
from built_site import FOLDER, HTML, REPOSITORY, built, needs_sphinx, published

from course.exercises.release import secret_lines
from course.exercises.sets import folders, read, stub
from course.files import read_notebook
from course.paths import PACKAGE, ROOT, SOURCES, CourseError, chapters, modules, notebook_path, relative
from course.predictions import ASKS
from course.site import build as site
from course.site import pages, readme
from course.site.reading import cells_to_read, code_to_read
from nanogpt.config import keys

FILES = {chapter: notebook_path(chapter) for chapter in chapters()}
PLACES = site.places()


@pytest.fixture(params=[None, REPOSITORY], ids=["without an address", "published"])
def address(request, monkeypatch):
    monkeypatch.setattr(pages, "address", lambda: request.param)
    return request.param


@pytest.mark.parametrize(
    ("line", "linked"),
    [
        ("see chapter 05.", "see [chapter 05](05_gpt.ipynb)."),
        ("a `chapter 05` in code", "a `chapter 05` in code"),
        ("```\nchapter 05\n```", "```\nchapter 05\n```"),
        ("# After chapter 05", "# After chapter 05"),
        ("[chapter 05](https://elsewhere)", "[chapter 05](https://elsewhere)"),
        ('<a href="05_gpt.html">Read chapter 05</a>', '<a href="05_gpt.html">Read chapter 05</a>'),
        (f"chapter {99}", f"chapter {99}"),  # none of ours
        ("[tasks](../exercises/TASKS.md#all-tasks)", "[tasks](../exercises/tasks.md#all-tasks)"),
        ("[gone](../exercises/gone.md)", "[gone](../exercises/gone.md)"),  # Sphinx finds that it is dead
    ],
)
def test_what_a_chapter_mentions_is_a_link_to_its_page(line, linked):
    chapter = relative(FILES["04"])
    assert pages.linked(line, chapter, chapter, PLACES) == linked


def test_a_link_into_the_repository_leads_there_or_is_plain_text(address):
    text = "[data](../data/README.md), [source](../course/), ![alt](pictures/staircase-light.png)"
    main, data, source = f"{REPOSITORY}/blob/main", "data", "source"
    if address:
        data, source = f"[data]({main}/data/README.md)", f"[source]({main}/course)"
    linked = pages.linked(text, "site/faq.md", "faq.md", PLACES)
    assert linked == f"{data}, {source}, ![alt](pictures/staircase-light.png)"


def test_a_chapter_has_buttons(address):
    first = pages.chapter_page(FILES["04"], PLACES).cells[0].source
    colab = f"{REPOSITORY.replace('github.com', 'colab.research.google.com/github')}/blob/main/notebooks/04_attention.ipynb"
    assert re.findall(r'<a href="([^"]+)"', first) == [*[colab] * bool(address), "04_attention.ipynb"]


def code(source: str, printed: str = ""):
    outputs = [nbformat.v4.new_output("stream", text=printed)] if printed else []
    return nbformat.v4.new_code_cell(source, outputs=outputs)


@pytest.mark.parametrize("name", ["predict", "guess"])
def test_a_prediction_reads_as_a_question_whose_outcome_opens(name):
    asked = code(f'{name}("05.1", "loss <1>", unit="nats")')
    (question,) = code_to_read(asked, "", {"05.1": "11 nats"}, name)
    assert question.cell_type == "markdown" and "<span>05.1</span> loss &lt;1&gt; (nats)" in question.source
    assert "<summary>What came out</summary><p>11 nats</p>" in question.source


def test_imports_are_folded_and_no_alternative_text_is_code():
    source = "import math\nimport torch\n\nif x:\n    show(\n        plan(1),\n        alt='long',\n    )\ny = 1  # kept"
    imports, rest = code_to_read(code(source), "", {})
    assert imports.source == "import math\nimport torch" and imports.metadata.tags == ["hide-input"]
    assert rest.source == "if x:\n    show(plan(1))\ny = 1  # kept" and "tags" not in rest.metadata


@pytest.mark.parametrize(
    ("source", "tags", "badge"),
    [
        ("import torch\nfrom torch import nn", ["hide-input"], ""),
        ('checkpoint("05")', ["hide-cell"], ""),
        ('show(figures.plan(1), alt="words")', ["hide-input"], ""),
        ("#| export\ndef f():\n    return 1", None, "→ nanogpt/model.py</a></p>"),
        ("#| export data\n#| grows g\ng = 1", None, "data.py</a> · a new version of <code>g</code></p>"),
        ("%timeit x", None, ""),
    ],
)
def test_plumbing_is_folded_and_an_exported_cell_has_a_badge(source, tags, badge):
    *before, cell = code_to_read(code(source), "model", {})
    assert cell.metadata.get("tags") == tags and "#|" not in cell.source
    assert [each.source.endswith(badge) for each in before] == [True] * bool(badge)
    assert all('href="../nanogpt/' in each.source for each in before)


@pytest.mark.parametrize(
    ("source", "text", "tags"),
    [
        ("print(x)", "One sunny day, Julia went to the harbor.\nNow they had ten.\n", None),
        ("print(x)", "step   loss\n1      6.95\n", ["columns"]),
        ("print(x)", "tensor([[1, 2],\n        [3, 4]])\n", ["columns"]),
        ("print(x)", "a line\n" * 30, ["scroll-output"]),
        ('answer("05.1", x)', "05.1: 10.98 nats\n", ["hide-output"]),
    ],
)
def test_an_output_is_marked_by_what_it_is(source, text, tags):
    """On a phone columns keep their shape; what is long scrolls; what answers a prediction opens."""
    (made,) = cells_to_read([code(source, text)])
    assert made.metadata.get("tags") == tags and made.outputs[0].text == text


def test_every_chapter_reads_without_directives_and_its_predictions_are_questions():
    for path in FILES.values():
        nb = pages.chapter_page(path, PLACES)
        source = "\n".join(cell.source for cell in read_notebook(path).cells)
        name = found[1] if (found := ASKS.search(source)) else "predict"
        codes = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "code")
        assert not re.search(rf"^#\||^{name}\(|alt=\"", codes, re.MULTILINE), path.name
        asked = len(re.findall(rf"^{name}\(", source, re.MULTILINE))
        shown = sum(cell.source.count("<p><span>") for cell in nb.cells if cell.cell_type == "markdown")
        assert shown == asked, path.name


def test_a_students_own_modules_are_no_pages(monkeypatch):
    places, pages_of_modules = site.places(), site.module_pages()
    monkeypatch.setattr(site, "modules", lambda: [*modules(), "yours-model", "model (copy)", "labs.mine"])
    assert (site.places(), site.module_pages()) == (places, pages_of_modules)


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
        pages.exercise_page(made, "01_tokenizer", PLACES)


def test_pages_are_settled_once(tmp_path):
    files = {"index.md": b"one", "notebooks/a.md": b"two"}
    assert [site.settle(files, tmp_path), site.settle(files, tmp_path)] == [2, 0]
    (tmp_path / "html").mkdir()
    assert site.settle(files | {"index.md": b"three"}, tmp_path) == 1 and (tmp_path / "html").exists()
    assert site.settle({"index.md": b"three"}, tmp_path) == 1, "a page that is gone stays in the book"
    assert not (tmp_path / "html").exists()


@needs_sphinx
@pytest.mark.slow
class TestBuilt:
    def test_each_picture_of_a_chapter_is_there_and_says_what_it_shows(self):
        for path in FILES.values():
            pictures = built()[HTML / "notebooks" / f"{path.stem}.html"].alts
            alts = [alt for src, alt in pictures if "/_images/" in src]
            assert all(alt and not alt.endswith(".png") for alt in alts), path.name
            outputs = [o for cell in read_notebook(path).cells for o in cell.get("outputs", ())]
            assert len(alts) == sum("image/png" in o.get("data", ()) for o in outputs), path.name

    def test_what_is_downloaded_is_the_committed_file(self):
        built()
        for path in FILES.values():
            assert (HTML / "notebooks" / path.name).read_bytes() == path.read_bytes()

    def test_each_task_is_on_its_sets_page_with_its_hints_and_the_chapter_leads_there(self):
        for made in map(read, folders()):
            page = built()[HTML / "exercises" / f"{made.name}.html"]
            text = "".join(page.text)
            for task in made.tasks.values():
                assert f"task-{task.id}" in page.anchors
                facts = (task.title, f"difficulty {task.difficulty}/5", f"{task.minutes} minutes")
                assert all(letters(fact) in letters(text) for fact in facts), task
            hints = sum(cell.source.count("<summary>Hint") for cell in made.cells)
            raw = (HTML / "exercises" / f"{made.name}.html").read_text(encoding="utf-8")
            assert raw.count("<summary>Hint") == hints, made.name
            names = [path.stem for path in FILES.values() if path.name.startswith(made.number)]
            links = {link for name in names for link in built()[HTML / "notebooks" / f"{name}.html"].links}
            assert {f"../exercises/{made.name}.html#task-{id}" for id in made.tasks} <= links

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

    def test_a_page_that_is_kept_is_not_made_again(self):
        built()
        with published():
            assert site.settle(site.staged(), FOLDER) == 0


def letters(text: str) -> str:
    """Without what Markdown and typography make of punctuation."""
    return "".join(filter(str.isalnum, text))


def words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w{5,}", text))
