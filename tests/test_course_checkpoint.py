"""The machinery, in a small house of its own: a copy of course/ with one tiny chapter."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from course.build import cell_lines, notebook_from_source, source_from_notebook
from course.export import cell_at, export, exported_cells
from course.paths import ROOT, CourseError, chapters, source_chapters

SOURCE = '''\
# %% [markdown]
r"""
# 04 · Tiny
Half of $\\\\alpha$.
"""

# %%
#| default_exp tiny
from course.notebook import checkpoint

# %%
#| export
import math
import os
import math


def area(r: float) -> float:
    """The area of a circle."""
    return math.pi*r**2


# %%
print(round(area(2), 3))

# %%
#| export
from collections import Counter
def count(xs): return Counter(xs)   # a comment stays
LIMIT = 3
_hidden = 1

# %%
checkpoint("04")
'''

TEST = """\
from nanogpt.tiny import area


def test_area_grows_with_the_square():
    assert area(2) == 4 * area(1)
"""


@pytest.fixture(scope="session")
def built_house(tmp_path_factory) -> Path:
    """Built once, in a folder of its own, before any test changes anything."""
    house = tmp_path_factory.mktemp("house")
    shutil.copytree(ROOT / "course", house / "course", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, house)
    for folder in ("nanogpt", "notebooks/src", "tests"):
        (house / folder).mkdir(parents=True)
    (house / "nanogpt/__init__.py").write_text('"""Empty."""\n')
    shutil.copy(ROOT / "nanogpt/device.py", house / "nanogpt")
    (house / "notebooks/src/04_tiny.py").write_text(SOURCE.replace("\\\\", "\\"), encoding="utf-8")
    (house / "tests/test_ch04_tiny.py").write_text(TEST)
    course(house, "build", "04")
    return house


@pytest.fixture
def house(built_house, tmp_path) -> Path:
    return Path(shutil.copytree(built_house, tmp_path / "house"))


def course(house: Path, *args: str, code: int = 0) -> str:
    env = os.environ | {"PYTHONPATH": str(house), "PYTHONSAFEPATH": "1", "NANOGPT_DEVICE": "cpu"}
    command = [sys.executable, "-c", "from course.cli import main; raise SystemExit(main())", *args]
    done = subprocess.run(command, cwd=house, env=env, capture_output=True, encoding="utf-8", input="n\n")
    assert done.returncode == code, done.stdout + done.stderr
    assert '\n  File "' not in done.stderr, "a traceback at a student: " + done.stderr
    return done.stdout + done.stderr


def edit(house: Path, old: str, new: str) -> None:
    """An edit that a student makes in the notebook."""
    path = house / "notebooks/04_tiny.ipynb"
    nb = nbformat.read(path, as_version=4)
    assert any(old in cell.source for cell in nb.cells)
    for cell in nb.cells:
        cell.source = cell.source.replace(old, new)
    nbformat.write(nb, path)


def module(house: Path) -> bytes:
    return (house / "nanogpt/tiny.py").read_bytes()


def test_build_executes_exports_and_is_deterministic(house):
    nb = nbformat.read(house / "notebooks/04_tiny.ipynb", as_version=4)
    assert nb.cells[3].outputs[0].text == "12.566\n"
    assert [c.execution_count for c in nb.cells if c.cell_type == "code"] == [1, 2, 3, 4, 5]
    assert nb.metadata.language_info == {"name": "python"}, "no language version"
    assert (
        "nanogpt/tiny.py" in nb.cells[-1].outputs[0].text
        and "tests/test_ch04_tiny.py passes" in nb.cells[-1].outputs[0].text
    )
    first = (house / "notebooks/04_tiny.ipynb").read_bytes(), module(house)
    course(house, "build", "04")
    assert ((house / "notebooks/04_tiny.ipynb").read_bytes(), module(house)) == first


def test_modules_of_one_chapter_import_from_each_other():
    """In the notebook the name is there already; an import in the cell would put the package's old one in its place."""
    from nbformat.v4 import new_code_cell, new_notebook

    from course.export import export

    cells = [
        "#| doc one: One.\n#| doc two: Two.\n#| export one\ndef double(x):\n    return 2 * x",
        "#| export two\ndef fourfold(x):\n    return double(double(x))",
    ]
    modules = export(new_notebook(cells=[new_code_cell(cell) for cell in cells]), "04_tiny.ipynb")
    assert "from nanogpt.one import double" in modules["two"]
    assert "import" not in modules["one"]


def test_the_module_reads_as_if_written_by_hand(house):
    assert (
        module(house).decode()
        == '''\
"""04 · Tiny (exported from notebooks/04_tiny.ipynb)."""

import math
from collections import Counter

__all__ = ["area", "count", "LIMIT"]


def area(r: float) -> float:
    """The area of a circle."""
    return math.pi * r**2


def count(xs):
    return Counter(xs)  # a comment stays


LIMIT = 3
_hidden = 1
'''
    )


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("return math.pi*r**2", "return math.pi*r**", "04_tiny.ipynb, cell 2: invalid syntax in line 8"),
        (
            "LIMIT = 3",
            "%time LIMIT = 3",
            "04_tiny.ipynb, cell 4: a magic (%time LIMIT = 3) cannot be exported",
        ),
        ("LIMIT = 3", "area = 3", "cell 4: area is defined already in 04_tiny.ipynb, cell 2"),
        ("LIMIT = 3", "LIMIT = unknown", "cell 4: undefined name `unknown`"),
        ("LIMIT = 3", "LIMIT = 1 / 0", "cell 4: ZeroDivisionError"),
        ("return math.pi*r**2", "return math.pi*r", "cell 2: a test fails"),
        ("#| default_exp tiny", "", "cell 2 is exported but no module is named"),
        ("import math", "import maths as math", "cell 2: ModuleNotFoundError: No module named 'maths'"),
    ],
)
def test_a_broken_cell_is_named_and_the_old_module_stays(house, old, new, message):
    before = module(house)
    if message.endswith("a test fails"):
        new += " if r > 1 else 1 / 0"  # the failing frame lies in the module, so the cell can be named
    edit(house, old, new)
    said = course(house, "checkpoint", "04", code=1)
    assert message in said
    assert module(house) == before
    assert sorted(p.name for p in (house / "nanogpt").glob("*.py")) == [
        "__init__.py",
        "device.py",
        "tiny.py",
    ], "nothing is left aside"


def test_a_module_belongs_to_one_notebook(house):
    (house / "notebooks/src/05_other.py").write_text(SOURCE.replace("04", "05"), encoding="utf-8")
    course(house, "build", "05", "--draft")
    assert "nanogpt/tiny.py is exported by both" in course(house, "checkpoint", "04", code=1)


def test_check_sees_a_difference_in_every_direction(house):
    assert "agree" in course(house, "build", "--check") and "agree" in course(
        house, "checkpoint", "--all", "--check"
    )
    edit(house, "LIMIT = 3", "LIMIT = 4")  # the notebook differs from its source and from its module
    assert "-LIMIT = 4\n+LIMIT = 3" in course(house, "build", "--check", code=1)
    assert "-LIMIT = 3\n+LIMIT = 4" in course(house, "checkpoint", "--all", "--check", code=1)
    edit(house, "LIMIT = 4", "LIMIT = 3")
    (house / "nanogpt/tiny.py").write_bytes(module(house) + b"\nEXTRA = 1\n")
    assert "-EXTRA = 1" in course(house, "checkpoint", "--check", "04", code=1)


def test_pull_brings_an_edit_back_into_the_source(house):
    edit(house, "LIMIT = 3", "LIMIT = 4")
    course(house, "pull", "04")
    source = (house / "notebooks/src/04_tiny.py").read_text(encoding="utf-8")
    assert source == SOURCE.replace("\\\\", "\\").replace("LIMIT = 3", "LIMIT = 4")


def test_a_failing_build_puts_the_old_notebook_back(house):
    before = (house / "notebooks/04_tiny.ipynb").read_bytes()
    source = house / "notebooks/src/04_tiny.py"
    source.write_text(source.read_text(encoding="utf-8").replace("area(2)", "area('two')"), encoding="utf-8")
    said = course(house, "build", "04", code=1)
    assert "04_tiny.ipynb, cell 3 fails:" in said and "TypeError" in said
    assert (house / "notebooks/04_tiny.ipynb").read_bytes() == before


def run_cells(house: Path, sources: list[str], code: int) -> str:
    """Run cells in a fresh IPython, as a student who has not saved would have run them, then checkpoint."""
    script = (
        "from IPython.core.interactiveshell import InteractiveShell\nshell = InteractiveShell.instance()\n"
    )
    for source in ["from course.notebook import checkpoint", *sources, 'checkpoint("04")']:
        script += f"result = shell.run_cell({source!r}, store_history=True)\n"
    script += "raise SystemExit(0 if result.success else 1)"
    env = os.environ | {"PYTHONPATH": str(house), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=house, env=env, capture_output=True, encoding="utf-8"
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_notebook_that_differs_from_the_cells_just_run_is_noticed(house):
    nb = nbformat.read(house / "notebooks/04_tiny.ipynb", as_version=4)
    area, count = (cell.source for cell in nb.cells if cell.source.startswith("#| export"))
    assert "nanogpt/tiny.py" in run_cells(house, [area, count], code=0)
    unsaved = area.replace("r**2", "r*r")
    assert "save 04_tiny.ipynb first" in run_cells(house, [area, count, unsaved], code=1), (
        "edited, run, not saved"
    )
    assert "has not been run" in run_cells(house, [area], code=1), "saved, but a cell was never run"
    assert "nanogpt/tiny.py" in run_cells(house, [unsaved, area, count], code=0), (
        "an earlier try does not matter"
    )


def test_restore_shows_what_would_be_lost_and_keeps_it(house):
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "released"],
    ):
        subprocess.run(["git", *command], cwd=house, check=True)
    notebook = house / "notebooks/04_tiny.ipynb"
    released = notebook.read_bytes(), module(house)
    assert "as it was released" in course(house, "restore", "04")
    edit(house, "LIMIT = 3", "LIMIT = 4")
    course(house, "checkpoint", "04")
    student = notebook.read_bytes(), module(house)
    # Even a student who commits gets the released state back.
    subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qam", "mine"], cwd=house, check=True
    )
    assert "-LIMIT = 4\n+LIMIT = 3" in course(house, "restore", "04", code=1), "shown, asked, answered no"
    assert (notebook.read_bytes(), module(house)) == student
    course(house, "restore", "04", "--yes")
    assert (notebook.read_bytes(), module(house)) == released
    kept = [*house.glob("notebooks/yours-*.ipynb"), *house.glob("nanogpt/yours-*.py")]
    assert [path.read_bytes() for path in kept] == [*student]
    course(house, "build", "--check"), course(house, "checkpoint", "--all", "--check")


def test_run_names_the_failing_cell_and_leaves_the_rest_whole(house):
    (house / "notebooks/src/05_bad.py").write_text("# %%\nx = 1\n\n# %%\nprint(x / 0)\n", encoding="utf-8")
    (house / "notebooks/src/06_after.py").write_text("# %%\nx = 1\n", encoding="utf-8")
    course(house, "build", "05", "06", "--draft")
    before = {p.name: p.read_bytes() for p in house.glob("notebooks/*.ipynb")}
    said = course(house, "run", code=1)
    assert "05_bad.ipynb, cell 1 fails:" in said and "print(x / 0)" in said and "ZeroDivisionError" in said
    assert "course run --from 05" in said
    assert (house / "runs/04_tiny.ipynb").exists() and not (house / "runs/05_bad.ipynb").exists()
    assert before == {p.name: p.read_bytes() for p in house.glob("notebooks/*.ipynb")}
    assert b"def area" in module(house), "chapter 04 was checkpointed"
    assert "1 chapter in" in course(house, "run", "--from", "06", "--to", "06")
    assert json.loads((house / "runs/times.json").read_text())["seconds"]["06"] > 0


def test_bad_arguments_are_one_sentence(house):
    assert "no chapter '4'" in course(house, "checkpoint", "4", code=1)
    assert "two-digit" in course(house, "run", "--from", "07", code=1)
    (house / "notebooks/04_tiny.ipynb").write_text("{")
    assert "not a readable notebook" in course(house, "checkpoint", "04", code=1)


@pytest.mark.parametrize("chapter", source_chapters())
def test_source_and_notebook_are_inverse_to_each_other(chapter, tmp_path):
    source = next((ROOT / "notebooks/src").glob(f"{chapter}_*.py"))
    nb = notebook_from_source(source)
    again = tmp_path / source.name
    again.write_text(source_from_notebook(nb), encoding="utf-8")
    assert cell_lines(notebook_from_source(again)) == cell_lines(nb)


def notebook(sources: list[str]) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def test_two_default_modules_are_refused():
    with pytest.raises(CourseError, match="keep one"):
        export(notebook(["#| default_exp a", "#| default_exp b"]), "x.ipynb")


def test_a_class_built_over_several_cells_is_one_class_in_the_module():
    sources = [
        '#| default_exp a\n#| export\nclass Box:\n    """One."""\n\n    def put(self):\n        return 1',
        "#| export\nimport math\nclass Box(Box):\n    # Two comes next.\n    @property\n    def two(self):\n        return math.e",
        "#| export\nclass Lid(Box):\n    pass\nclass Box(Box):\n    def three(self):\n        return 3\nLAST = 1",
    ]
    text = export(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources]), "x.ipynb")[
        "a"
    ]
    assert text.count("class Box") == 1 and text.index("Two comes next") < text.index("three") < text.index(
        "class Lid(Box)"
    )
    space: dict = {}
    exec(text, space)
    assert space["Box"]().put() == 1 and space["Box"]().three() == 3 and space["Lid"]().two > 2.7
    assert space["__all__"] == ["Box", "Lid", "LAST"]
    where = cell_at(
        text, text.splitlines().index("        return 3") + 1, exported_cells(notebook(sources), "x.ipynb")
    )
    assert where == "x.ipynb, cell 2", "a failing method is blamed on its own cell"
    with pytest.raises(CourseError, match=r"cell 3: Box\.two is defined already in x\.ipynb, cell 1"):
        export(notebook([*sources, sources[1]]), "x.ipynb")
    with pytest.raises(CourseError, match="cell 0: Box continues a class that no earlier"):
        export(
            nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("#| default_exp a\n" + sources[1])]),
            "x.ipynb",
        )


def test_every_chapter_has_its_source():
    assert chapters() == source_chapters()
