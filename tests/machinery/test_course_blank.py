"""Blanks: what a student writes is marked exactly, handed out without its body, and missed in one sentence.

That each is asked for by its probe, which the cell below it runs, is in test_course_tutor.py.
"""

import ast
import re

import nbformat
import pytest
from house import of_code
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from course.cli import main
from course.package.blank import TURN, emptied, refuse_empty
from course.package.cells import exported_cells, functions
from course.package.hand_out import HINT, handed_out, solution
from course.paths import CourseError, source_chapters, source_path
from course.states.released import exporting_cells

HEAD = "#| default_exp tiny\n#| doc tiny: Tiny.\n#| export\n"
CELL = (
    HEAD
    + '''\
#| blank area: π appears, "once"
#| blank Disk.edge: twice that
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


def emptied_cell(source: str) -> str:
    return next(cell.source for cell in handed_out(of_code(source), "x").cells if cell.cell_type == "code")


def test_a_body_goes_and_all_around_it_stays():
    area = "    # square it first\n    return math.pi * r**2\n    # so it is\n"
    edge = "\n        # twice\n        return (\n            2 * math.pi\n        )\n"
    text = HINT.sub(r"\1", CELL)
    text = text.replace(area, '    raise NotImplementedError("your turn: area")\n')
    text = text.replace(edge, '        raise NotImplementedError("your turn: Disk.edge")\n')
    assert emptied_cell(CELL) == text


def test_a_blank_is_named_before_anything_is_tested():
    nb = of_code(CELL)
    refuse_empty(exported_cells(nb, "x"))
    (cell,) = exported_cells(nb, "x")
    for blank in cell.blanks:
        left = of_code(emptied(nb.cells[0].source, cell, [blank]))
        with pytest.raises(CourseError, match=rf": {re.escape(blank)} is still blank \({TURN}"):
            refuse_empty(exported_cells(left, "x"))


def test_handing_out_drops_outputs_and_keeps_the_rest():
    nb = of_code(CELL)
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
        (HEAD + "#| blank aera\ndef area(r):\n    return 1", "`#| blank` names aera, but it defines area"),
        (HEAD + "#| blank area\ndef area(r): return 1", "area has its body in one line with the `def`"),
        (HEAD + '#| blank area\ndef area(r):\n    """doc"""', "area has no body that could be left out"),
    ],
)
def test_what_is_not_exact_is_refused(source, message):
    with pytest.raises(CourseError) as refused:
        emptied_cell(source)
    assert message in str(refused.value)


@pytest.mark.parametrize("chapter", source_chapters())
def test_the_bodies_of_its_blanks_are_gone_and_nothing_else(chapter):
    nb = of_code(*(cell.source for cell in exporting_cells(chapter).cells))
    name = f"{source_path(chapter).stem}.ipynb"
    by_id = {cell.id: cell.source for cell in handed_out(nb, name).cells}
    for cell in exported_cells(nb, name):
        tree = ast.parse(cell.source)
        for blank, node in functions(tree):
            if blank in cell.blanks:
                turn = ast.parse(f'raise NotImplementedError("{TURN}{blank}")').body
                node.body = node.body[: ast.get_docstring(node) is not None] + turn
        assert ast.unparse(ast.parse(by_id[cell.id])) == ast.unparse(tree)


@pytest.fixture
def blank_house(house):
    text = house.source.read_text(encoding="utf-8")
    text = text.replace("#| export\nimport math", "#| export\n#| blank area: π and the radius\nimport math")
    house.source.write_text(text, encoding="utf-8")
    house.course("build", "04", "--draft")
    return house


def test_a_run_stops_with_one_sentence(blank_house):
    blank_house.course("start", "--blank")
    said = blank_house.course("run", "04", code=2)
    assert "your turn: area (write its body, run its cell, then this one again)" in said
    assert "Traceback" not in said


def test_the_checkpoint_says_which_one_is_empty_and_takes_what_is_written(blank_house):
    blank_house.course("start", "--blank")
    said = blank_house.course("checkpoint", "04", code=2)
    assert '04_tiny.ipynb, area under "04 · Tiny": area is still blank (your turn: area): write' in said
    assert not blank_house.module.exists()
    blank_house.edit('raise NotImplementedError("your turn: area")', "return 3 * r**2")
    assert "to nanogpt/tiny.py" in blank_house.course("checkpoint", "04")
    assert "return 3 * r**2" in blank_house.module.read_text(encoding="utf-8")


def test_solution_shows_the_released_body(capsys):
    assert main(["solution", "4", "attention_weights"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("def attention_weights(")
    assert "masked_fill(future" in said
    assert solution("04", "forward") == solution("04", "CausalSelfAttention.forward")
    assert "def head_size" in solution("04", "head_size"), "one that is not blank"
    assert solution("05", "init_weights").splitlines()[0] == "@torch.no_grad()"
