"""A prediction is alone in its cell: who runs the cell must not see the answer before they have written a guess."""

import ast

import pytest

from course.notebooks.source import notebook_from_text
from course.paths import SOURCES, number_of, numbered
from course.site.reading import called


def mixed(text: str) -> list[str]:
    """The cells of a source that call `predict` and do something else, each by its first line that does."""
    found = []
    for cell in notebook_from_text(text).cells:
        if cell.cell_type != "code" or cell.source.startswith("%%"):  # a file that it writes
            continue
        body = ast.parse(cell.source).body
        others = [node for node in body if called(node) != "predict"]
        if others and len(others) < len(body):
            found.append(cell.source.splitlines()[others[0].lineno - 1].strip())
    return found


def test_a_cell_that_asks_and_goes_on_is_found():
    assert mixed('# %%\npredict("07.1", "loss")\nanswer("07.1", loss)\n') == ['answer("07.1", loss)']


@pytest.mark.parametrize("path", numbered(SOURCES, ".py"), ids=number_of)
def test_a_prediction_is_alone_in_its_cell(path):
    found = mixed(path.read_text(encoding="utf-8"))
    assert not found, "put `predict` into a cell of its own; beside it are:\n" + "\n".join(found)
