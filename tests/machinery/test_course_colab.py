"""A notebook on Colab: the first cell finds the notebook's own commit and installs what is missing, the checkpoint reads the page."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from importlib.metadata import distribution, version
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import pytest
import torch
from house import commit, copied_repository, git

from course import colab
from course.files import read_notebook
from course.notebooks.address import first_cell, is_published, repository
from course.paths import NOTEBOOKS, ROOT, CourseError, numbered

CHAPTERS = numbered(NOTEBOOKS, ".ipynb")
MODULE = "nanogpt/tiny.py"


# Badge and first cell


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_chapter_has_a_first_cell_that_does_nothing_elsewhere(path):
    nb = read_notebook(path)
    first = next(cell for cell in nb.cells if cell.cell_type == "code")
    assert f'"{path.stem}", "{nb.metadata["course"]["source"]}"' in first.source
    names: dict = {}
    exec(first.source, names)
    assert set(names) - {"__builtins__"} <= {"os", "sys"}
    assert (path.parent / "open-in-colab.svg").exists()
    if not is_published(repository()):
        assert "colab.research.google.com" not in nb.cells[0].source, "the badge would lead nowhere"


# Which commit


class Clone:
    """A repository with three states of one notebook, as Colab's runtime has it after `git clone`."""

    def __init__(self, path: Path):
        origin, self.path = path / "origin", path / "gpt2-course"
        for folder in ("course", "notebooks", "nanogpt"):
            (origin / folder).mkdir(parents=True)
        shutil.copy(ROOT / "course/colab.py", origin / "course")
        self.commits = {}
        for name, digest, module in [
            ("first", "aaaa", "x = 1"),
            ("same notebook, newer module", "aaaa", "x = 2"),
            ("second", "bbbb", "x = 2"),
            ("third", "cccc", "x = 3"),
        ]:
            (origin / "notebooks/04_tiny.ipynb").write_text(json.dumps({"source": digest}))
            (origin / MODULE).write_text(module)
            commit(origin, name)
            self.commits[name] = git(origin, "rev-parse", "HEAD")
        git(path, "clone", "-q", str(origin), str(self.path))
        self.module = self.path / MODULE
        self.find = runpy.run_path(str(self.path / "course/colab.py"))["find_commit"]

    def head(self, *how: str) -> str:
        return git(self.path, "rev-parse", *how, "HEAD")


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


@pytest.mark.parametrize(
    "digest, wanted",
    [("cccc", "third"), ("bbbb", "second"), ("aaaa", "same notebook, newer module"), ("dddd", "third")],
)
def test_the_notebooks_own_commit_is_checked_out(clone, digest, wanted):
    for _ in range(2):  # the second run finds it there
        said = clone.find("notebooks/04_tiny.ipynb", digest)
        assert clone.head() == clone.commits[wanted] and "\n" not in said
        assert clone.head("--short") in said
        assert ("no commit of the course has this notebook" in said) == (digest == "dddd")


def test_what_the_student_exported_is_never_overwritten(clone):
    clone.module.write_text("x = 'mine'")
    said = clone.find("notebooks/04_tiny.ipynb", "cccc")
    assert "commit of this notebook" in said and clone.module.read_text() == "x = 'mine'"
    said = clone.find("notebooks/04_tiny.ipynb", "aaaa")  # another commit, with another module
    assert "Disconnect and delete runtime" in said and "\n" not in said
    assert clone.module.read_text() == "x = 'mine'" and clone.head() == clone.commits["third"]


def fake_google(monkeypatch, reply=None) -> None:
    """Modules google and google.colab as far as the course asks them; `reply`: what the page answers, or an error."""

    def blocking_request(kind, request="", timeout_sec=5):
        assert kind == "get_ipynb"
        if isinstance(reply, Exception):
            raise reply
        return reply

    google, there = ModuleType("google"), ModuleType("google.colab")
    google.colab, there._message = there, SimpleNamespace(blocking_request=blocking_request)
    monkeypatch.setitem(sys.modules, "google", google)
    monkeypatch.setitem(sys.modules, "google.colab", there)


@pytest.mark.parametrize(
    "url, said",
    [
        ("https://github.com/OWNER/gpt2-course", "Ask whoever gave you this notebook for the address"),
        ("file:///nowhere/gpt2-course", "git cannot fetch file:///nowhere/gpt2-course"),
    ],
)
def test_what_cannot_be_fetched_is_one_sentence(monkeypatch, tmp_path, url, said):
    fake_google(monkeypatch)
    text = first_cell(url, "04_tiny", "0" * 16).source.replace("/content", str(tmp_path))
    with pytest.raises(Exception, match=said) as stopped:
        exec(text, {})
    shown = stopped.value._render_traceback_()
    assert shown == [str(stopped.value)], "one sentence is all that IPython prints"


# Which packages


def test_only_what_is_missing_is_installed(monkeypatch):
    """A command's need and two of the course; the course itself is no package, and Colab is the page."""
    absent = {"pydantic", "psutil", "ruff", "nanogpt-course", "jupyterlab"}
    done, asked = SimpleNamespace(returncode=0, stderr=""), []
    monkeypatch.setattr(colab, "there", lambda name: name not in absent)
    monkeypatch.setattr(colab.subprocess, "run", lambda command, **_: asked.extend(command) or done)
    assert colab.install_missing() == "installed pydantic, psutil, ruff"
    assert [word.split(">")[0] for word in asked if ">=" in word] == ["pydantic", "psutil", "ruff"]
    assert f"torch=={colab.version('torch')}" in asked, "pip might bring another PyTorch"


def test_the_gpu_is_named_and_its_lack_is_said_where_it_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "Runtime → Change runtime type → T4 GPU" in colab.about_gpu("09_measuring")
    assert "Runtime" not in colab.about_gpu("04_attention")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    card = SimpleNamespace(name="Tesla T4", total_memory=15_828_320_256)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    assert colab.about_gpu("09_measuring") == "GPU: Tesla T4, 14.7 GiB"


# The checkpoint


def test_the_checkpoint_takes_the_notebook_from_the_page(monkeypatch, house):
    shown = json.loads(house.notebook.read_text(encoding="utf-8"))
    fake_google(monkeypatch, {"ipynb": shown})
    house.notebook.write_text("{}")
    colab.save_shown(house.notebook)
    assert json.loads(house.notebook.read_text(encoding="utf-8")) == shown
    for reply in (None, {"ipynb": {"cells": []}}, TimeoutError("late")):
        fake_google(monkeypatch, reply)
        with pytest.raises(CourseError, match=r"Colab has (not )?handed over"):
            colab.save_shown(house.notebook)
        assert json.loads(house.notebook.read_text(encoding="utf-8")) == shown, "what was saved stays"


def test_an_edit_that_was_not_run_is_noticed_on_colab_too(house):
    """The page shows LIMIT = 4, the kernel ran LIMIT = 3."""
    nb = nbformat.read(house.notebook, as_version=4)
    ran = [cell.source for cell in nb.cells if cell.source.startswith("#| export")]
    (house.path / "google").mkdir()
    (house.path / "google/__init__.py").touch()
    shown = house.notebook.read_text(encoding="utf-8").replace("LIMIT = 3", "LIMIT = 4")
    (house.path / "google/colab.py").write_text(
        f"import json\n\n\nclass _message:\n    def blocking_request(*_, **__):\n        return {{'ipynb': json.loads({shown!r})}}\n"
    )
    said = house.run_cells(["import google.colab", *ran], code=1)
    assert 'count under "04 · Tiny"' in said and "what was run last" in said
    assert "LIMIT = 3" in house.module.read_text() and "LIMIT = 4" in house.notebook.read_text()


# The whole of it, in a bare environment

# googlecolab/backend-info, pip-freeze.gpu.txt of 19 August 2026: what is much older there than here.
COLAB = """
ipykernel==6.17.1 ipython==7.34.0 jupyter_client==7.4.9 jupyter_core==5.9.1 tornado==6.5.7 traitlets==5.7.1
debugpy==1.8.15 nest-asyncio==1.6.0 psutil==5.9.5 entrypoints==0.4 backcall==0.2.0 decorator==4.4.2
pickleshare==0.7.5 ipywidgets==7.7.1 ipython-genutils==0.2.0 widgetsnbextension==3.6.10
"""
BORROWED = """
torch filelock sympy mpmath networkx jinja2 markupsafe fsspec typing_extensions numpy matplotlib contourpy cycler
fonttools kiwisolver pillow pyparsing regex pydantic pydantic_core annotated-types typing-inspection PyYAML tqdm tiktoken
safetensors huggingface_hub pytest iniconfig pluggy requests nbformat fastjsonschema jsonschema attrs referencing rpds-py
jsonschema-specifications nbclient jupytext pyzmq packaging platformdirs python-dateutil six parso prompt_toolkit wcwidth
Pygments pexpect ptyprocess matplotlib-inline jupyterlab_widgets
"""
MESSAGE = """\
import json, os


def blocking_request(kind, request="", timeout_sec=5):
    with open(os.environ["SHOWN"], encoding="utf-8") as page:
        return {"ipynb": json.load(page)}
"""
RUN = """\
import sys, nbclient, nbformat

nb = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(nb, timeout=600, kernel_name="python3", resources={"metadata": {"path": sys.argv[2]}}).execute()
nbformat.write(nb, sys.argv[1])
"""
VERSIONS = "from importlib.metadata import distributions as d; print(*sorted({f'{x.name}=={x.version}' for x in d()}))"


class Runtime:
    """An environment with Colab's packages, a page that hands over its notebook, and the repository to clone."""

    def __init__(self, path: Path):
        self.path, self.python = path, path / "python/bin/python"
        self.shown, self.clone = path / "shown.ipynb", path / "content/gpt2-course"
        subprocess.run([sys.executable, "-m", "venv", str(path / "python")], check=True)
        packages = next((path / "python/lib").glob("python3*/site-packages"))
        for name in BORROWED.split():  # linked: `pip` sees their versions
            top = {file.parts[0] for file in distribution(name).files} - {"..", "__pycache__"}
            for part in top:
                if not (packages / part).exists():
                    (packages / part).symlink_to(distribution(name).locate_file(part))
        newer = f"setuptools=={version('setuptools')}"  # than venv's: PyTorch asks for it
        command = ["-m", "pip", "install", "-q", "--no-deps", "--no-compile", *COLAB.split(), newer]
        done = self.run(*command)
        if done.returncode and re.search("onnection|No matching distribution|Temporary failure", done.stderr):
            pytest.skip(f"Colab's versions cannot be had here: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        (packages / "google/colab").mkdir(parents=True)
        (packages / "google/colab/__init__.py").write_text("from google.colab import _message\n")
        (packages / "google/colab/_message.py").write_text(MESSAGE)
        startup = path / "ipython/profile_default/startup"
        startup.mkdir(parents=True)
        (startup / "00-colab.py").write_text("import google.colab\n")  # as Colab's kernel does
        (path / "content").mkdir()
        self.origin = copied_repository(path / "origin")
        commit(self.origin, "published")

    def environment(self) -> dict[str, str]:
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST_", "NANOGPT_"))}
        return plain | {"IPYTHONDIR": str(self.path / "ipython"), "SHOWN": str(self.shown)}

    def run(self, *args: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [str(self.python), *args],
            env=self.environment(),
            cwd=self.path,  # not where an installed course leaves its traces
            capture_output=True,
            encoding="utf-8",
        )

    def versions(self) -> set[str]:
        return set(self.run("-c", VERSIONS).stdout.split())

    def page(self, chapter: str, *more: str) -> nbformat.NotebookNode:
        """The chapter as the page shows it, executed: with the real first cell, and further cells after the last."""
        path = next(NOTEBOOKS.glob(f"{chapter}_*.ipynb"))
        nb = read_notebook(path)
        first = first_cell(f"file://{self.origin}", path.stem, nb.metadata["course"]["source"])
        nb.cells[1].source = first.source.replace("/content", str(self.path / "content"))
        nb.cells += [nbformat.v4.new_code_cell(source) for source in (*more, nb.cells[1].source)]
        for cell in nb.cells:
            cell.pop("outputs", None)
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        self.shown.write_text(nbformat.writes(nb), encoding="utf-8")
        executed = self.path / "executed.ipynb"
        shutil.copy(self.shown, executed)
        done = self.run("-c", RUN, str(executed), str(self.path / "content"))
        assert done.returncode == 0, done.stderr[-3000:]
        return read_notebook(executed)


def printed(cell) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Colab is Linux")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git clone: nothing to publish")
def test_a_chapter_runs_and_checkpoints_with_colabs_packages(tmp_path):
    runtime = Runtime(tmp_path)
    before = runtime.versions()
    assert f"torch=={torch.__version__}" in before
    assert not {name for name in before if name.lower().startswith(("ruff==", "hypothesis==", "nanogpt"))}
    edit = "open('../nanogpt/labs/corpora/stories.py', 'a').write('# mine')"
    nb = runtime.page("02", edit, "!course progress | tail -1")
    first, again = printed(nb.cells[1]).splitlines(), printed(nb.cells[-1]).splitlines()
    assert first[0].endswith("the commit of this notebook") and first[0].startswith("the course at ")
    assert first[1].startswith("installed hypothesis, ") and " ruff" in first[1], first
    assert first[2:] == ["no GPU: this chapter is sized for a CPU", colab.LOST]
    assert again == [first[0], *first[2:]], "the second run installs nothing"
    assert before <= runtime.versions(), "every version that Colab has is the one that it had"
    checkpoint = next(printed(cell) for cell in nb.cells if cell.source.startswith("checkpoint("))
    assert "to nanogpt/labs/corpora/stories.py" in checkpoint
    assert "tests/core/test_ch02_corpus.py passes" in checkpoint
    assert (runtime.clone / "nanogpt/labs/corpora/stories.py").read_text(encoding="utf-8").endswith("# mine")
    saved = read_notebook(runtime.clone / "notebooks/02_corpus.ipynb")
    assert saved.cells[-1].source == nb.cells[-1].source, "the checkpoint has saved the page"
