"""The student's way: a clone with an empty package, and the comparison at the end."""

import os
import shutil
import subprocess
import sys

import pytest

from course.package.cells import claimed_modules
from course.paths import PACKAGE, ROOT, notebook_path, relative
from course.testing import law
from course.testing.law import contents, differences, student_clone


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """In the place of one that stood there."""
    folder = tmp_path_factory.mktemp("law") / "clone"
    (folder / "nanogpt").mkdir(parents=True)
    (folder / "nanogpt/left.py").touch()
    return student_clone(folder)


def test_the_clone_has_everything_but_the_modules(clone):
    assert set(contents(clone / "nanogpt")) == {name for name in contents(PACKAGE) if "__" in name}
    assert (clone / "nanogpt/__main__.py").exists()
    chapter = relative(notebook_path("05"))
    for name in (chapter, "course/cli.py", "nanogpt/configs/tiny.yaml", "tests/conftest.py"):
        assert (clone / name).read_bytes() == (ROOT / name).read_bytes()
    assert not {".git", ".venv", "build", "runs"} & set(os.listdir(clone))
    assert not (clone / "data/built").exists()


def test_an_editable_installation_lends_the_clone_no_module(clone):
    """Its finder answers for a module that stands directly in the package: nanogpt.cli, which the clone has not."""
    command = [sys.executable, "-c", "import nanogpt.labs, course.paths; print('there'); import nanogpt.cli"]
    env = os.environ | {"PYTHONPATH": str(clone)}
    done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True)
    assert done.stdout == "there\n" and "No module named 'nanogpt.cli'" in done.stderr


def test_a_later_part_begins_with_what_the_one_before_has_to_end_with(tmp_path):
    clone = student_clone(tmp_path / "third", law.before(2))
    assert differences(clone / "nanogpt", law.made_by(law.before(2))) == []
    there = set(contents(clone / "nanogpt"))
    assert {law.file_name(name) for name in claimed_modules(notebook_path("17d"))} <= there
    assert there < set(contents(PACKAGE)), "the third part has nothing to fill"


def test_each_kind_of_difference_names_the_file_and_its_notebook(tmp_path):
    """One that is not there, one in other bytes, and one that nobody exports."""
    filled = shutil.copytree(PACKAGE, tmp_path / "nanogpt")
    gone, changed = (next(iter(claimed_modules(notebook_path(chapter)))) for chapter in ("16c", "02"))
    law.module_path(gone, filled).unlink()
    path = law.module_path(changed, filled)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (filled / "stray.py").touch()
    said = {
        f"nanogpt/{law.file_name(gone)} is not the committed one ({notebook_path('16c').name})",
        f"nanogpt/{law.file_name(changed)} is not the committed one ({notebook_path('02').name})",
        "nanogpt/stray.py is not the committed one (no notebook)",
    }
    assert set(differences(filled, contents(PACKAGE))) == said
