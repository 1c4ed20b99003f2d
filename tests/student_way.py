"""The last of the student's way, after all notebooks (course/testing/law.py); `course test` calls it by its name."""

import os
from pathlib import Path

import pytest

from course.testing.law import CLONE, differences


def test_the_notebooks_have_filled_an_empty_package_with_the_committed_one():
    if said := differences(Path(os.environ[CLONE]) / "nanogpt"):
        pytest.fail("\n".join(said), pytrace=False)
