"""The last of the student's way, after the notebooks of a half (course/testing/law.py); `course test` calls it by its name."""

import pytest

from course.paths import PACKAGE
from course.testing.law import HALVES, before_the_seam, contents, differences, made_by


@pytest.mark.parametrize("half", HALVES, ids=lambda half: half.name)
def test_the_notebooks_have_made_the_package(half):
    """The first half that with which the second has begun, and the second the committed one."""
    wanted = made_by(before_the_seam()) if half == HALVES[0] else contents(PACKAGE)
    if said := differences(half / "nanogpt", wanted):
        pytest.fail("\n".join(said), pytrace=False)
