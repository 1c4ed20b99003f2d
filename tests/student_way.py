"""The last of the student's way, after the notebooks of a part (course/testing/law.py); `course test` calls it by its name."""

import pytest

from course.paths import PACKAGE
from course.testing.law import PARTS, before, contents, differences, made_by


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_the_notebooks_have_made_the_package(part):
    """Each part that with which the next one has begun, and the last the committed one."""
    wanted = contents(PACKAGE) if part == PARTS[-1] else made_by(before(PARTS.index(part) + 1))
    if said := differences(part / "nanogpt", wanted):
        pytest.fail("\n".join(said), pytrace=False)
