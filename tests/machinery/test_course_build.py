"""Source → notebook and back, and the released state: nothing that anybody wrote is lost on the way."""

import os
import shutil
import signal
import subprocess
import time

import nbformat
import pytest
from house import commit, git

from course.notebooks.address import undressed
from course.notebooks.source import cell_lines, notebook_from_text, with_ids_of


def test_build_executes_exports_and_is_deterministic(house):
    nb = nbformat.read(house.notebook, as_version=4)
    assert nb.cells[4].outputs[0].text == "12.566\n"
    said = nb.cells[-1].outputs[0].text
    assert "exported area, count to nanogpt/tiny.py" in said and "tests/test_ch04_tiny.py passes" in said
    first = house.notebook.read_bytes(), house.module.read_bytes()
    house.course("build", "4", "--again")
    assert (house.notebook.read_bytes(), house.module.read_bytes()) == first


def test_a_changed_sentence_keeps_the_outputs_and_changed_code_does_not(house):
    text = house.source.read_text(encoding="utf-8")
    before = nbformat.read(house.notebook, as_version=4)
    reworded = text.replace("Half of", "A third of").replace("area of a", "area of every")
    house.source.write_text(reworded, encoding="utf-8")
    said = house.course("build", "4")
    nb = nbformat.read(house.notebook, as_version=4)
    assert "no code has changed" in said and "exported area" in said, "the docstring goes into the module"
    assert "The area of every circle." in house.module.read_text(encoding="utf-8")
    assert "A third" in nb.cells[0].source
    for old, new in zip(before.cells, nb.cells, strict=True):
        assert new == old | {"source": new.source}, "a word leaves ids, outputs and counts alone"
    house.source.write_text(text.replace("area(2)", "area(1)"), encoding="utf-8")
    assert "executed" in house.course("build", "4") and "3.142" in house.notebook.read_text(encoding="utf-8")


def test_a_failing_build_leaves_the_old_notebook(house):
    before = house.notebook.read_bytes()
    text = house.source.read_text(encoding="utf-8")
    house.source.write_text(text.replace("area(2)", "area('two')"), encoding="utf-8")
    said = house.course("build", "04", code=2)
    assert 'under "04 · Tiny" fails:' in said and "TypeError" in said
    assert house.notebook.read_bytes() == before


def started(house, tmp_path, *args: str) -> subprocess.Popen:
    """`course ...` in a process of its own, on a chapter whose first cell says that it runs and then waits."""
    sign = tmp_path / "running"
    text = f"# %%\nimport pathlib, time\npathlib.Path({str(sign)!r}).touch()\ntime.sleep(600)\n"
    (house.path / "notebooks/src/05_slow.py").write_text(text, encoding="utf-8")
    house.course("build", "05", "--draft")
    process = subprocess.Popen(
        house.command(*args),
        cwd=house.path,
        env=house.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
    )
    deadline = time.monotonic() + 300
    while not sign.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sign.exists(), process.communicate()[0]
    return process


@pytest.mark.skipif(os.name == "nt", reason="Windows sends no such signals")
@pytest.mark.parametrize(
    "command, number, code, last",
    [
        ("build", signal.SIGKILL, -9, ""),
        ("run", signal.SIGINT, 130, "course: stopped; `course run --from 05` goes on"),
    ],
)
def test_whatever_ends_it_the_notebook_is_the_old_one(house, tmp_path, command, number, code, last):
    process = started(house, tmp_path, command, "05")
    before = (house.path / "notebooks/05_slow.ipynb").read_bytes()
    process.send_signal(number)
    said = process.communicate(timeout=300)[0]
    assert process.returncode == code and "Traceback" not in said and "Error" not in said, said
    assert said.strip().endswith(last), said
    assert (house.path / "notebooks/05_slow.ipynb").read_bytes() == before


def test_restore_shows_what_would_be_lost_and_keeps_it(house):
    commit(house.path, "released")
    released = house.notebook.read_bytes(), house.module.read_bytes()
    house.edit("LIMIT = 3", "LIMIT = 4")
    house.course("checkpoint", "04")
    student = house.notebook.read_bytes(), house.module.read_bytes()
    house.git("commit", "-qam", "mine")  # even a student who commits gets the released state back
    assert "-LIMIT = 4\n+LIMIT = 3" in house.course("restore", "04", code=1), "shown, asked, answered no"
    assert "nobody answers; `--yes` does not ask" in house.course("restore", "04", code=1, answer=None)
    assert (house.notebook.read_bytes(), house.module.read_bytes()) == student
    house.course("restore", "04", answer="Yes\n")
    assert (house.notebook.read_bytes(), house.module.read_bytes()) == released
    kept = [*house.path.glob("yours/*/notebooks/*.ipynb"), *house.path.glob("yours/*/nanogpt/*.py")]
    assert [path.read_bytes() for path in kept] == [*student]
    house.module.unlink()
    assert "nanogpt/tiny.py is missing" in house.course("restore", "4", "--yes")
    assert house.module.read_bytes() == released[1]


def test_restore_without_git_makes_the_notebook_from_its_source(house, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(house.path.parent))
    house.notebook.write_text("{")
    assert "not a readable notebook" in house.course("restore", "04", "--yes")
    restored = undressed(nbformat.read(house.notebook, as_version=4))
    assert cell_lines(restored) == cell_lines(notebook_from_text(house.source.read_text(encoding="utf-8")))


def test_ids_stay_in_place_and_no_two_are_the_same():
    def ids(text: str, old=None) -> list[str]:
        nb = notebook_from_text(text)
        return [cell.id for cell in (with_ids_of(old, nb) if old else nb).cells]

    old = notebook_from_text("# %%\na = 1\n\n# %%\nb = 2\n\n# %%\nc = 3\n")
    a, b, c = (cell.id for cell in old.cells)
    assert ids("# %%\na = 1\n\n# %%\nb = 3\n\n# %%\nc = 3\n", old) == [a, b, c], "an edit"
    more = ids("# %%\nnew = 0\n\n# %%\na = 1\n\n# %%\nb = 2\n\n# %%\nc = 3\n", old)
    assert more[1:] == [a, b, c] and more[0] not in (a, b, c)
    old.cells[0].id = more[0]  # an id from a time when the cell said `new = 0`
    assert len(set(ids("# %%\na = 1\n\n# %%\nnew = 0\n\n# %%\nb = 2\n\n# %%\nc = 3\n", old))) == 4


def test_update_goes_forward_and_keeps_what_both_changed(house, tmp_path):
    git(house.path.parent, "init", "-q")  # an archive, unpacked in another repository
    assert "is no git clone" in house.course("update", code=2)
    shutil.rmtree(house.path.parent / ".git")
    (house.path / ".gitignore").write_text("/yours/\n__pycache__/\n")
    commit(house.path, "first")
    git(tmp_path, "clone", "-q", str(house.path), "student")
    student = type(house)(tmp_path / "student")

    house.edit("LIMIT = 3", "LIMIT = 5")
    (house.path / "notebooks/05_new.ipynb").write_text("{}")
    commit(house.path, "a new chapter")
    student.edit("LIMIT = 3", "LIMIT = 4")
    student.module.write_text(student.module.read_text().replace("LIMIT = 3", "LIMIT = 4"))
    mine = student.notebook.read_bytes()
    said = student.course("update")
    assert "2 files are new or newer" in said and "keeps your notebooks/04_tiny.ipynb" in said
    assert student.notebook.read_bytes() == house.notebook.read_bytes()
    assert (student.path / "notebooks/05_new.ipynb").exists()
    assert [path.read_bytes() for path in student.path.glob("yours/*/notebooks/*")] == [mine]
    assert "LIMIT = 4" in student.module.read_text(), "what upstream did not touch stays as it is"
    student.git("commit", "-qam", "mine")
    assert "commits of your own" in student.course("update", code=2)
