"""`course slides`: decks that are made from the notebooks alone, in which no figure and no prediction is missing."""

import re

import pytest

from course.files import read_notebook
from course.paths import chapters, notebook_path
from course.predictions import ASKS
from course.site.chapters import PARTS, part
from course.site.slides import deck


@pytest.mark.parametrize("name", PARTS)
def test_every_figure_and_prediction_of_a_part_is_in_its_deck_below_a_heading(name):
    cells = [cell for number in part(name, chapters()) for cell in read_notebook(notebook_path(number)).cells]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    texts = [cell.source for cell in deck(name).cells]
    alts = [text for text in texts if '<img alt="' in text]
    assert len(alts) == sum("image/png" in output.get("data", ()) for output in outputs)
    assert not [text for text in alts if '<img alt=""' in text]
    words = {"predict", *(found[1] for cell in cells if (found := ASKS.search(cell.source)))}
    asks = re.compile(rf"^(?:{'|'.join(words)})\(", re.MULTILINE)
    asked = sum(len(asks.findall(cell.source)) for cell in cells if cell.cell_type == "code")
    assert asked == sum(text.count("<p><span>") for text in texts)
    assert all(text.startswith("#") for text in texts)
