"""The last of the student's way, after the notebooks of a half (course/testing/law.py); `course test` calls it by its name."""

import os
from pathlib import Path

import pytest

from course.paths import PACKAGE
from course.testing.law import CLONE, SECOND, before_the_seam, contents, differences, made_by


def test_the_notebooks_have_filled_an_empty_package_with_the_committed_one():
    """In the first half, with the package that the second has begun with."""
    committed = made_by(before_the_seam()) if SECOND in os.environ else contents(PACKAGE)
    if said := differences(Path(os.environ[CLONE]) / "nanogpt", committed):
        pytest.fail("\n".join(said), pytrace=False)
