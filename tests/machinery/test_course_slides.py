"""`course slides`: decks that are made from the notebooks alone, in which nothing is missing and everything fits."""

import re
from html import escape
from itertools import pairwise

import pytest
from browser import chromium, needs_chromium, opened, shot
from built_site import served

from course.cli import main
from course.files import read_notebook
from course.paths import CourseError, chapters, notebook_path
from course.site.chapters import PARTS, part
from course.site.slides import HEAD, LINES, STYLE, deck, height, slides_of, write_slides

THERE = [name for name in PARTS if part(name, chapters())]
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)]*)\)")


@pytest.fixture(scope="module")
def decks() -> dict[str, tuple[str, dict[str, bytes]]]:
    return {name: deck(name) for name in THERE}


def outputs(name: str) -> list:
    cells = [cell for number in part(name, chapters()) for cell in read_notebook(notebook_path(number)).cells]
    return [output for cell in cells for output in cell.get("outputs", ())]


@pytest.mark.parametrize("name", THERE)
def test_every_figure_of_a_part_is_in_its_deck_with_its_alternative_text(decks, name):
    text, figures = decks[name]
    named = PICTURE.findall(text)
    assert [file for _, file in named] == list(figures), (
        "a figure is named that is not there, or the other way round"
    )
    assert all(alt.strip() for alt, _ in named), "a figure without an alternative text"
    assert all(data.startswith(b"\x89PNG") for data in figures.values())
    assert len(figures) == sum("image/png" in output.get("data", ()) for output in outputs(name))


@pytest.mark.parametrize("name", THERE)
def test_a_prediction_is_a_question_and_its_outcome_is_on_the_next_slide(decks, name):
    slides = slides_of(decks[name][0])
    printed = "".join(output.get("text", "") for output in outputs(name))
    keys = set(re.findall(r"^(\d\d[a-z]?\.\d+)(?:, .*)?: .", printed, re.MULTILINE))
    asked = []
    for slide, after in pairwise(slides):
        if (found := re.match(r"## Predict ([\d.a-z ]+)\n", slide)) and "**" not in slide.split("\n- ")[-1]:
            asked += found[1].split()
            assert after.startswith(f"## Predict {found[1]}: what came out\n\n- ")
            questions = re.findall(r"^- (.+)$", slide, re.MULTILINE)
            outcomes = re.findall(r"^- (.+): \*\*(?:.+)\*\*$", after, re.MULTILINE)
            assert questions[: len(outcomes)] == outcomes and len(questions) == len(found[1].split())
    assert sorted(asked) == sorted(keys)


@pytest.mark.parametrize("name", THERE)
def test_each_chapter_opens_and_ends_and_no_slide_is_too_long(decks, name):
    text, _ = decks[name]
    slides = slides_of(text)
    for number in part(name, chapters()):
        assert sum(slide.startswith(f"# {number} · ") for slide in slides) == 1
        assert any(slide.startswith(f"## {number} · Summary") for slide in slides)
    assert not [slide for slide in slides if height(slide) > LINES]


def test_the_command_writes_one_part_or_says_which_there_are(tmp_path, capsys):
    assert main(["slides", str(tmp_path), "--part", "ii"]) == 0
    assert re.search(r"II\.md: \d+ slides, \d+ figures\n$", capsys.readouterr().out)
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {file for _, file in PICTURE.findall((tmp_path / "II.md").read_text("utf-8"))} | {"II.md"} == files
    assert write_slides(tmp_path / "more", "2")[0].endswith("figures")
    with pytest.raises(CourseError, match="is none of I, II"):
        write_slides(tmp_path, "VII")


SIZES = """[...document.querySelectorAll('section')].filter(s => s.scrollHeight > s.clientHeight || s.scrollWidth > s.clientWidth)
.map(s => s.innerText.slice(0, 80) + ' ' + s.scrollHeight)"""
EMPTY = "[...document.images].filter(i => !i.complete || !i.naturalWidth).map(i => i.src)"


def as_html(text: str) -> str:
    """A deck as a page on which each slide is a box of Marp's size, in the deck's own style."""
    markdown = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": True})
    boxes = "\n".join(f"<section>{markdown.render(slide)}</section>" for slide in slides_of(text))
    box = "section { box-sizing: border-box; overflow: hidden; border: 1px solid #888; font-family: sans-serif; }"
    return f"<!doctype html><meta charset='utf-8'><title>slides</title><link rel='icon' href='data:,'><style>{box}{escape(STYLE, quote=False)}</style>{boxes}"


@needs_chromium
@pytest.mark.slow
def test_every_slide_fits_in_a_browser(tmp_path, decks):
    write_slides(tmp_path)
    with served(tmp_path) as base, chromium() as window:
        for name in THERE:
            page_name = f"{name.split()[0]}.html"
            (tmp_path / page_name).write_text(as_html(decks[name][0]), "utf-8")
            with opened(base, within=window) as page:
                page.goto(base + page_name)
                page.wait_for_load_state("load")
                assert not page.evaluate(EMPTY)
                assert not page.evaluate(SIZES), "slides that do not fit"
                shot(page, f"slides-{name.split()[0]}")


def test_a_slide_that_is_too_long_is_noticed():
    assert height("## A\n\n" + "\n".join(["- one"] * (LINES + 1))) > LINES
    assert HEAD.startswith("---\nmarp: true\n")
