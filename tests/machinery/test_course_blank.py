"""Blanks: what a student writes is marked exactly, handed out without its body, missed in one sentence, and put back.

That each is asked for by its probe, which the cell below it runs, is in test_course_tutor.py.
"""

import ast
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course.cli import main
from course.notebooks.source import notebook_from_source
from course.package.blank import TURN, body_lines, emptied, refuse_empty
from course.package.cells import exported_cells, functions
from course.package.checkpoint import current
from course.package.directives import read_head
from course.package.export import export, export_all
from course.package.hand_out import HINT, handed_out
from course.package.solution import solution
from course.paths import NOTEBOOKS, CourseError, source_chapters, source_path
from course.states.released import writers

NO_EXPORT = {"11", "15b"}  # one shows what the compiler does, one compares runs: neither exports anything
HEAD = "#| default_exp tiny\n#| doc tiny: Tiny.\n#| export\n"
CELL = (
    HEAD
    + '''\
#| blank area Disk.edge: π appears, "once"
import math

# what a disk has
@some.decorator(1)
def area(r: float) -> float:
    """The area of a circle."""
    # square it first
    return math.pi * r**2
    # so it is


class Disk:
    @property
    def edge(
        self, unit: float = 1.0
    ) -> float:

        # twice
        return (
            2 * math.pi
        )

    def other(self):
        return 1  # stays
'''
)


def one_cell(source: str):
    return new_notebook(cells=[new_code_cell(source)])


def emptied_cell(source: str) -> str:
    return next(cell.source for cell in handed_out(one_cell(source), "x").cells if cell.cell_type == "code")


def test_a_body_goes_and_all_around_it_stays():
    text = '''\
# what a disk has
@some.decorator(1)
def area(r: float) -> float:
    """The area of a circle."""
    raise NotImplementedError("your turn: area")


class Disk:
    @property
    def edge(
        self, unit: float = 1.0
    ) -> float:
        raise NotImplementedError("your turn: Disk.edge")

    def other(self):
        return 1  # stays
'''
    head = CELL[: CELL.index("# what a disk has")].replace(': π appears, "once"', "")
    assert emptied_cell(CELL) == head + text


def test_blank_alone_is_all_that_the_cell_defines():
    source = HEAD + "#| blank\ndef f(x):\n    return x\n\n\nclass A(A):\n    def g(self):\n        return 1"
    assert emptied_cell(source).count("raise NotImplementedError") == 2
    assert 'raise NotImplementedError("your turn: A.g")' in emptied_cell(source)


def test_handing_out_drops_outputs_and_keeps_the_rest():
    nb = one_cell(CELL)
    nb.cells[0].outputs, nb.cells[0].execution_count = [new_output("stream", text="3.14\n")], 7
    nb.cells += [new_markdown_cell("Prose."), new_code_cell("area(1)", metadata={"tags": ["x"]})]
    before = nbformat.writes(nb)
    made = handed_out(nb, "x")
    assert nbformat.writes(nb) == before, "the notebook that was given was changed"
    assert [c.id for c in made.cells[1:]] == [c.id for c in nb.cells]
    assert 'π appears, "once"' in made.cells[0].source and made.cells[0].cell_type == "markdown"
    assert made.cells[1].outputs == [] and made.cells[1].execution_count is None
    assert made.cells[2:] == nb.cells[1:]


@pytest.mark.parametrize(
    "source, message",
    [
        (
            HEAD + "#| blank aera\ndef area(r):\n    return 1",
            "x, area: `#| blank` names aera, but it defines area",
        ),
        (HEAD + "#| blank\nLIMIT = 3", "but it defines no function"),
        (HEAD + "#| blanks area\ndef area(r):\n    return 1", "`#| blanks area` is no directive"),
        (HEAD + "#| blank area,\ndef area(r):\n    return 1", "`#| blank area,` is no directive"),
        (HEAD + "#| blank area:\ndef area(r):\n    return 1", "`#| blank area:` is no directive"),
        (HEAD + "def area(r):\n    return 1\n#| blank area", "`#| blank area` stands inside the cell"),
        ("#| blank area\ndef area(r):\n    return 1", "x, area: `#| grows` and `#| blank` belong below"),
        (HEAD + "#| blank area\ndef area(r): return 1", "area has its body in one line with the `def`"),
        (HEAD + '#| blank area\ndef area(r): "doc"; return 1', "area has its body in one line"),
        (HEAD + '#| blank area\ndef area(r):\n    """doc"""', "area has no body that could be left out"),
    ],
)
def test_what_is_not_exact_is_refused(source, message):
    with pytest.raises(CourseError) as refused:
        emptied_cell(source)
    assert message in str(refused.value)


def test_an_exported_module_does_not_show_the_directive():
    plain = one_cell(re.sub(r"#\| blank.*\n", "", CELL.replace("@some.decorator(1)\n", "")))
    marked = one_cell(CELL.replace("@some.decorator(1)\n", ""))
    assert export(marked, "x") == export(plain, "x")


# Every chapter


@pytest.fixture(scope="module")
def chapters():
    return {chapter: notebook_from_source(source_path(chapter)) for chapter in source_chapters()}


def bodies(nb, name: str) -> list[tuple[str, list[str], ast.FunctionDef, str]]:
    """Of each blank: its name, its body's lines, its function, and its cell's id."""
    found = []
    for cell in exported_cells(nb, name):
        lines = cell.source.split("\n")
        for blank, node in functions(cell.tree):
            if blank in cell.blanks:
                begin, end = body_lines(node, lines, blank)
                found.append((blank, lines[begin:end], node, cell.id))
    return found


@pytest.mark.parametrize("chapter", source_chapters())
class TestChapter:
    def test_it_has_two_to_five_blanks_with_hints(self, chapter, chapters):
        cells = exported_cells(chapters[chapter], chapter)
        if chapter in NO_EXPORT:
            assert not cells
            return
        hints = {name: hint for cell in cells for name, hint in cell.blanks.items()}
        assert 2 <= len(hints) <= 5, f"{len(hints)} blanks: {', '.join(hints)}"
        assert all(hints.values()), "a hint is missing"

    def test_filling_every_blank_gives_the_committed_package(self, chapter, chapters):
        nb, name = chapters[chapter], f"{source_path(chapter).stem}.ipynb"
        made = handed_out(nb, name)
        by_id = {cell.id: cell for cell in made.cells}
        for blank, body, _, cell in bodies(nb, name):
            turn = f'raise NotImplementedError("{TURN}{blank}")'
            lines = by_id[cell].source.split("\n")
            at = next(i for i, line in enumerate(lines) if line.strip() == turn)
            lines[at : at + 1] = body
            by_id[cell].source = "\n".join(lines)
        ids = [cell.id for cell in nb.cells]
        made.cells = [cell for cell in made.cells if cell.id in ids]
        assert [cell.source for cell in made.cells] == [HINT.sub(r"\1", cell.source) for cell in nb.cells]
        for module in {cell.module for cell in exported_cells(made, name)}:
            parts = [
                (f"{source_path(other).stem}.ipynb", made if other == chapter else chapters[other])
                for other in writers()[module]
            ]
            assert export_all(parts, [module])[module] == current(module)

    def test_no_body_is_handed_out_and_what_explains_it_is(self, chapter, chapters):
        nb, name = chapters[chapter], f"{source_path(chapter).stem}.ipynb"
        by_id = {cell.id: cell.source for cell in handed_out(nb, name).cells}
        for blank, body, node, cell in bodies(nb, name):
            text = by_id[cell]
            function = dict(functions(ast.parse(read_head(text, name).source)))[blank]
            assert ast.unparse(function.args) == ast.unparse(node.args)
            assert ast.get_docstring(function) == ast.get_docstring(node)
            assert f'"{TURN}{blank}"' in text
            kept = ast.unparse(function)
            secret = [line.strip() for line in body if len(line.strip()) > 8]
            assert secret and not [line for line in secret if line in kept], f"{blank} shows its body"

    def test_a_blank_is_named_by_the_checkpoint_before_anything_is_tested(self, chapter, chapters):
        nb, name = chapters[chapter], f"{source_path(chapter).stem}.ipynb"
        refuse_empty(exported_cells(nb, name))
        for cell in exported_cells(nb, name):
            for blank in cell.blanks:
                one = one_cell("")
                one.cells[0].source = emptied(
                    next(c.source for c in nb.cells if c.id == cell.id), cell, [blank]
                )
                one.cells[0].source = f"#| default_exp x\n{one.cells[0].source}"
                with pytest.raises(CourseError, match=rf": {re.escape(blank)} is still blank \({TURN}"):
                    refuse_empty(exported_cells(one, name))


# What a student and an instructor see, in a small course


@pytest.fixture
def blank_house(house):
    text = house.source.read_text(encoding="utf-8")
    text = text.replace("#| export\nimport math", "#| export\n#| blank area: π and the radius\nimport math")
    house.source.write_text(text, encoding="utf-8")
    house.course("build", "04", "--draft")
    return house


def blank_notebook(house):
    house.course("exercises", "release", "--chapter", "04", "--blank", "--to", str(house.path / "out"))
    return house.path / "out/04_tiny.ipynb"


def test_a_run_stops_with_one_sentence(blank_house):
    blank_house.notebook.write_bytes(blank_notebook(blank_house).read_bytes())
    said = blank_house.course("run", "04", code=2)
    assert "your turn: area (write its body, run its cell, then this one again)" in said
    assert "Traceback" not in said


def test_another_error_has_its_traceback(blank_house):
    assert "Traceback" in blank_house.run_cells(['raise NotImplementedError("not yet")'], code=1)


def test_the_checkpoint_says_which_one_is_empty_and_takes_what_is_written(blank_house):
    module = blank_house.module.read_text(encoding="utf-8")
    blank = blank_notebook(blank_house).read_text(encoding="utf-8")
    blank_house.notebook.write_text(blank, encoding="utf-8")
    said = blank_house.course("checkpoint", "04", code=2)
    assert '04_tiny.ipynb, area under "04 · Tiny": area is still blank (your turn: area): write' in said
    assert len(said.strip().splitlines()) == 1
    assert blank_house.module.read_text(encoding="utf-8") == module
    blank_house.edit('raise NotImplementedError("your turn: area")', "return 3 * r**2")
    assert "to nanogpt/tiny.py" in blank_house.course("checkpoint", "04")
    assert "return 3 * r**2" in blank_house.module.read_text(encoding="utf-8")


def test_what_is_handed_out_again_keeps_a_student_s_own(blank_house):
    path = blank_notebook(blank_house)
    text = path.read_text(encoding="utf-8").replace("raise Not", "return 3 * r**2  # Not")
    path.write_text(text, encoding="utf-8")
    blank_notebook(blank_house)
    kept = list(blank_house.path.rglob("yours/*/**/04_tiny.ipynb"))
    assert [one.read_text(encoding="utf-8") for one in kept] == [text]


@pytest.mark.parametrize("words", [["--blank"], ["--chapter", "04"], ["04", "--blank", "--chapter", "04"]])
def test_blank_and_chapter_go_together(words, capsys):
    assert main(["exercises", "release", *words]) == 2
    assert "course exercises release --chapter 04 --blank" in capsys.readouterr().err


def test_solution_shows_the_released_body(capsys):
    assert main(["solution", "4", "attention_weights"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        '# 04_attention.ipynb, attention_weights under "Why divide by √d?"\ndef attention_weights('
    )
    assert "masked_fill(future" in said
    assert solution("04", "forward") == solution("04", "CausalSelfAttention.forward")
    assert "def head_size" in solution("04", "head_size"), "one that is not blank"
    assert solution("05", "init_weights").splitlines()[1] == "@torch.no_grad()"


def test_an_unknown_name_is_told_with_the_chapter_s_blanks(capsys):
    assert main(["solution", "04", "atention_weights"]) == 2
    assert capsys.readouterr().err == (
        "course: chapter 04 exports no function 'atention_weights'; its blanks are attention_weights, split_heads, "
        "CausalSelfAttention.forward\n"
    )


@pytest.mark.slow
def test_a_blank_that_the_ranks_meet_is_one_sentence(monkeypatch, tmp_path):
    from course import torchrun
    from nanogpt.labs.corpora.stories import ensure_corpus

    ensure_corpus(tmp_path)
    nb = notebook_from_source(source_path("21c"))
    cell = next(c for c in exported_cells(nb, "x") if "take_in" in c.blanks)
    text = next(c.source for c in nb.cells if c.id == cell.id)
    monkeypatch.chdir(NOTEBOOKS)  # as a notebook's kernel: `python -m` looks into the working folder first
    monkeypatch.setattr(torchrun, "RUN", [emptied(text, cell, ["take_in"])])
    with pytest.raises(NotImplementedError) as told:
        torchrun.torchrun("21c", 2, "drill", "drills.ring:sent", "--data", str(tmp_path))
    assert str(told.value) == f"{TURN}take_in"
