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
from course.package.compose import compose, notebooks_upto
from course.paths import NOTEBOOKS, PACKAGE, ROOT, notebook_path
from course.testing import law
from course.testing.law import CLONE, contents, differences, student_clone


@pytest.fixture
def clone(tmp_path):
    return student_clone(tmp_path / "clone")


def test_the_clone_has_everything_but_the_modules(clone):
    assert set(contents(clone / "nanogpt")) == {name for name in contents(PACKAGE) if "__" in name}
    assert (clone / "nanogpt/__main__.py").exists()
    for path in (
        notebook_path("05"),
        ROOT / "course/cli.py",
        ROOT / "nanogpt/configs/tiny.yaml",
        ROOT / "tests/conftest.py",
    ):
        assert (clone / path.relative_to(ROOT)).read_bytes() == path.read_bytes()
    assert not {".git", ".venv", "build", "runs"} & set(os.listdir(clone))
    assert not (clone / "data/built").exists()


def test_an_editable_installation_lends_the_clone_no_module(clone):
    """Its finder answers for a module that stands directly in the package: nanogpt.cli, which the clone has not."""
    run = lambda *words: subprocess.run(  # noqa: E731
        [sys.executable, *words],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": str(clone)},
        capture_output=True,
        text=True,
    )
    assert run("-c", "import nanogpt.labs, course.paths").returncode == 0
    assert "No module named 'nanogpt.cli'" in run("-c", "import nanogpt.cli").stderr


def test_a_clone_that_stood_there_is_replaced(clone):
    (clone / "nanogpt/left.py").touch()
    student_clone(clone)
    assert not (clone / "nanogpt/left.py").exists()


def test_without_git_the_same_files_are_copied(clone, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    other = student_clone(tmp_path / "other")
    with_git = {path.relative_to(clone) for path in clone.rglob("*.py")}
    assert with_git <= {path.relative_to(other) for path in other.rglob("*.py")}
    assert not (other / ".venv").exists() and set(contents(other / "nanogpt")) == set(
        contents(clone / "nanogpt")
    )


@pytest.fixture
def filled(tmp_path):
    return shutil.copytree(PACKAGE, tmp_path / "nanogpt")


def test_the_committed_package_has_no_differences(filled):
    assert differences(filled, contents(PACKAGE)) == []


def test_the_second_half_begins_with_what_the_first_has_to_end_with(tmp_path):
    clone = student_clone(tmp_path / "second", law.before_the_seam())
    assert differences(clone / "nanogpt", law.made_by(law.before_the_seam())) == []
    there = set(contents(clone / "nanogpt"))
    assert {law.file_name(name) for name in claimed_modules(notebook_path("17d"))} <= there
    assert there < set(contents(PACKAGE)), "the second half has nothing to fill"


def test_what_chapter_07_has_made_is_handed_over_once_when_it_ends(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    monkeypatch.setenv(CLONE, str(first))
    monkeypatch.setenv(law.SECOND, str(second))
    (first / "data/built/model").mkdir(parents=True)
    (first / "data/built/model/config.json").write_text("{}")
    (second / "data").mkdir(parents=True)
    cells = [
        SimpleNamespace(path=Path(f"{name}.ipynb"))
        for name in ("06_weights", "07_training", "07_training", "07b_x")
    ]
    handed_over = []
    for item, nextitem in itertools.pairwise(cells):
        law.pytest_runtest_teardown(item, nextitem)
        handed_over.append((second / "data/built/model/config.json").exists())
    assert handed_over == [False, False, True] and os.listdir(second / "data") == ["built"]


def test_each_kind_of_difference_names_the_file_and_a_chapter_that_failed_is_one_line(filled):
    (first, second), path = claimed_modules(notebook_path("16c")), notebook_path("02")
    module = next(iter(claimed_modules(path)))
    for name in (first, second):
        law.module_path(name, filled).unlink()
    changed = law.module_path(module, filled)
    changed.write_bytes(changed.read_bytes().replace(b"\n", b"\r\n"))
    (filled / "stray.py").touch()
    names = ", ".join(f"nanogpt/{law.file_name(name)}" for name in sorted((first, second)))
    assert differences(filled, contents(PACKAGE)) == [
        f"{notebook_path('16c').name} has not exported {names}",
        "nanogpt/stray.py is exported, but not committed",
        f"nanogpt/{law.file_name(module)} is not the committed one ({path.name})",
    ]


@pytest.mark.slow
def test_a_chapters_checkpoint_fills_the_clone_and_the_law_says_in_one_line_each_what_the_others_have_not(
    clone,
):
    """Chapter 00 as `course test` runs it, alone."""
    words = [
        "-p",
        "course.testing.law",
        "--nbval",
        "--nbval-current-env",
        "--nbval-sanitize-with=tests/nbval.cfg",
        "-q",
    ]
    words += [
        "-p",
        "no:cacheprovider",
        str(clone / "notebooks" / notebook_path("00").name),
        "tests/student_way.py",
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | {
        CLONE: str(clone)
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=env, capture_output=True, encoding="utf-8"
    )
    assert "1 failed" in done.stdout.splitlines()[-1], done.stdout[-3000:]
    as_of_00 = compose(notebooks_upto("00"), {"device"})["device"]
    assert (clone / "nanogpt/device.py").read_text(encoding="utf-8") == as_of_00
    assert f"\n{notebook_path('01').name} has not exported nanogpt/" in done.stdout
    assert "00_setup.ipynb has not" not in done.stdout and "Traceback" not in done.stdout
    missing = [path for path in NOTEBOOKS.glob("*.ipynb") if claimed_modules(path)]
    assert done.stdout.count("has not exported") <= 2 * len(missing)


@pytest.mark.skipif(os.name != "posix", reason="kernels talk through files on POSIX only")
def test_a_kernel_listens_on_no_port_and_leaves_no_file(tmp_path, monkeypatch):
    """Between the choice of a port and the kernel's bind another program can take it: a flake, by chance alone."""
    from nbval import kernel

    monkeypatch.setenv(CLONE, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    monkeypatch.setattr(kernel, "KernelManager", kernel.KernelManager)
    law.pytest_configure(None)
    running = kernel.RunningKernel("python3", cwd=str(tmp_path))
    place = Path(running.km.ip)
    used = [path.is_socket() for path in place.parent.glob(f"{place.name}*")]
    running.stop()
    assert used and all(used)
    assert not list(place.parent.glob(f"{place.name}*"))
