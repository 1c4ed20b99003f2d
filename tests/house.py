"""A small house of its own for the machinery's tests: a copy of course/ with one tiny chapter."""

import contextlib
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import nbformat

ROOT = Path(__file__).parent.parent
IDENTITY = ["-c", "user.name=a", "-c", "user.email=a@b"]
SOURCE = '''\
# %% [markdown]
r"""
# 04 · Tiny
Half of $\\alpha$.
"""

# %%
#| default_exp tiny
#| doc tiny: Circles, and how many there are.
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
    assert area(2) == 4 * area(1), "twice the radius, four times the area"
"""


def git(folder: Path, *args: str) -> str:
    done = subprocess.run(
        ["git", *IDENTITY, *args], cwd=folder, check=True, capture_output=True, encoding="utf-8"
    )
    return done.stdout.rstrip()


def commit(folder: Path, message: str) -> None:
    """Commit all that the folder holds, in a repository of its own."""
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", message)


def copied_repository(folder: Path) -> Path:
    """A copy of what git tracks, or would track."""
    from course.testing.law import files

    for path in files():
        to = folder / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to)
    return folder


def of_code(*sources: str) -> nbformat.NotebookNode:
    """A notebook of these cells."""
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


class House:
    """A folder laid out as the repository is; its own copy of course/ works on it."""

    def __init__(self, path: Path):
        self.path = path
        self.notebook = path / "notebooks/04_tiny.ipynb"
        self.source = path / "notebooks/src/04_tiny.py"
        self.module = path / "nanogpt/tiny.py"

    @classmethod
    def made(cls, path: Path) -> "House":
        shutil.copytree(ROOT / "course", path / "course", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, path)
        for folder in ("nanogpt", "notebooks/src", "tests"):
            (path / folder).mkdir(parents=True)
        (path / "nanogpt/__init__.py").write_text('"""Empty."""\n')
        shutil.copy(ROOT / "nanogpt/device.py", path / "nanogpt")
        house = cls(path)
        house.source.write_text(SOURCE, encoding="utf-8")
        shutil.copy(ROOT / "tests/conftest.py", path / "tests")
        (path / "tests/test_ch04_tiny.py").write_text(TEST)
        house.course("build", "04")
        return house

    def copied(self, path: Path) -> "House":
        return House(Path(shutil.copytree(self.path, path)))

    @contextlib.contextmanager
    def own_course(self):
        """`import course` means the house's own copy within the block."""
        ours = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "course"}
        had = set(sys.modules)
        path = patch.object(sys, "path", [str(self.path), *sys.path])
        try:
            with path, patch.dict(os.environ, self.environment()):
                yield
        finally:
            for name in set(sys.modules) - had:
                if name.split(".")[0] in ("course", "nanogpt"):
                    del sys.modules[name]
            sys.modules |= ours

    def course(self, *args: str, code: int = 0, answer: str | None = "n\n") -> str:
        """`course ...` in the house, in this process, and all that it prints."""
        said = io.StringIO()
        stdin = patch.object(sys, "stdin", io.StringIO(answer or ""))
        with self.own_course(), stdin, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            from course.cli import main

            found = main(list(args))
        assert found == code, said.getvalue()
        return said.getvalue()

    def with_next(self, path: Path, source: str) -> "House":
        """A copy with this chapter 05, built and committed."""
        house = self.copied(path)
        (house.path / "notebooks/src/05_next.py").write_text(source, encoding="utf-8")
        shutil.copy(ROOT / ".gitignore", house.path)
        house.course("build", "05", "--draft")
        house.course("build", "04")  # its last line names chapter 05
        house.course("checkpoint", "--all")
        commit(house.path, "released")
        return house

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-c", "from course.cli import main; raise SystemExit(main())", *args]

    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(self.path), "PYTHONSAFEPATH": "1", "NANOGPT_DEVICE": "cpu"}

    def edit(self, old: str, new: str) -> None:
        """An edit that a student makes in the notebook."""
        nb = nbformat.read(self.notebook, as_version=4)
        assert any(old in cell.source for cell in nb.cells)
        for cell in nb.cells:
            cell.source = cell.source.replace(old, new)
        nbformat.write(nb, self.notebook)

    def run_cells(self, sources: list[str], code: int, ids: dict[str, str] | None = None) -> str:
        """Run cells in a fresh IPython, as a student who has not saved would have run them, then checkpoint.

        ids: which cells of the notebook these are, where the front end tells it.
        """
        script = "from IPython.core.interactiveshell import InteractiveShell\n"
        script += "shell = InteractiveShell.instance()\n"
        for source in ["from course.notebook import checkpoint", *sources, 'checkpoint("04")']:
            told = f", cell_id={ids[source]!r}" if ids and source in ids else ""
            script += f"result = shell.run_cell({source!r}, store_history=True{told})\n"
        script += "raise SystemExit(0 if result.success else 1)"
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=self.path,
            env=self.environment(),
            capture_output=True,
            encoding="utf-8",
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def git(self, *args: str) -> str:
        return git(self.path, *args)


# A chapter 05 for House.with_next: two blanks, of which one grows chapter 04's module.
NEXT = '''\
# %% [markdown]
r"""
# 05 · Next
"""

# %%
#| default_exp next
#| doc next: What follows.
from course.notebook import checkpoint

# %%
#| export
#| blank twice: two areas
from nanogpt.tiny import area


def twice(r: float) -> float:
    """Two circles."""
    return 2 * area(r)


# %%
#| export tiny
#| blank ring: the larger less the smaller
def ring(r: float, s: float) -> float:
    """The area between two circles."""
    return area(r) - area(s)


# %%
checkpoint("05")
'''
