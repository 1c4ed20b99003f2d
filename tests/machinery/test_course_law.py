"""The student's way: a clone with an empty package, and the comparison at the end."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from course.package.cells import claimed_modules
from course.paths import PACKAGE, ROOT, notebook_path, relative
from course.testing import law, plugin
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


def test_the_second_half_begins_with_what_the_first_has_to_end_with(tmp_path):
    clone = student_clone(tmp_path / "second", law.before_the_seam())
    assert differences(clone / "nanogpt", law.made_by(law.before_the_seam())) == []
    there = set(contents(clone / "nanogpt"))
    assert {law.file_name(name) for name in claimed_modules(notebook_path("17d"))} <= there
    assert there < set(contents(PACKAGE)), "the second half has nothing to fill"


def test_what_chapter_07_has_made_is_handed_over_once_when_it_ends(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setattr(plugin, "HALVES", (first, second))
    (first / "data/built/model").mkdir(parents=True)
    (first / "data/built/model/config.json").write_text("{}")
    (second / "data").mkdir(parents=True)
    names = ("06_weights", "07_training", "07_training", "07b_x")
    cells = [SimpleNamespace(path=first / f"{name}.ipynb") for name in names]
    handed_over = []
    for item, nextitem in itertools.pairwise(cells):
        plugin.pytest_runtest_teardown(item, nextitem)
        handed_over.append((second / "data/built/model/config.json").exists())
    assert handed_over == [False, False, True] and os.listdir(second / "data") == ["built"]


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


@pytest.mark.skipif(os.name != "posix", reason="kernels talk through files on POSIX only")
def test_a_kernel_finds_its_clones_course_first_and_listens_on_no_port(tmp_path, monkeypatch):
    monkeypatch.setattr(law, "HALVES", (tmp_path,))
    (tmp_path / "notebooks").mkdir()
    kernel = plugin.InAClone()
    kernel.start_kernel(cwd=str(tmp_path / "notebooks"))
    environment = Path(f"/proc/{kernel.provisioner.pid}/environ")
    if environment.exists():
        assert f"PYTHONPATH={tmp_path}\0" in environment.read_text()
    client = kernel.blocking_client()
    client.start_channels()
    client.wait_for_ready(60)
    place = Path(kernel.ip)
    used = [path.is_socket() for path in place.parent.glob(f"{place.name}*")]
    client.stop_channels()
    kernel.shutdown_kernel()
    assert used and all(used)
    assert not list(place.parent.glob(f"{place.name}*"))
