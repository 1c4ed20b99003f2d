"""The committed pictures show the recorded data."""

import pictures
import pytest
from PIL import Image


@pytest.mark.parametrize("name", [*pictures.drawings(), "widget"])
def test_the_committed_picture_is_of_the_recorded_data_and_small(name):
    path = pictures.PICTURES / f"{name}.png"
    shows = pictures.widget_digest() if name == "widget" else pictures.digest(name)
    assert Image.open(path).text["shows"] == shows, f"{path.name} is old: python bench/pictures.py"
    assert path.stat().st_size <= 60_000
