"""Laws about the repository itself: sources, notebooks, modules and pins cannot disagree."""

import base64
import json
import re
import subprocess
import sys
import tomllib
from functools import cache

import nbformat
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from course.notebooks.build import check
from course.package.as_of import compose
from course.package.checkpoint import check_chapter
from course.paths import NOTEBOOKS, ROOT, TIMES, chapters, module_path, modules, number_of, numbered

NOTEBOOK_FILES = numbered(NOTEBOOKS, ".ipynb")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp|usr/lib|opt)/[\w./-]+")


@pytest.mark.parametrize("chapter", chapters())
def test_drift(chapter):
    """`course build --check` and `course checkpoint --check`: source, notebook and module agree."""
    assert check(chapter) == ""
    assert check_chapter(chapter) == ""


def test_all_chapters_together_make_the_package_and_nothing_else_is_in_it():
    assert compose(NOTEBOOK_FILES) == {
        name: module_path(name).read_text(encoding="utf-8") for name in modules()
    }


@cache
def cells(path):
    return nbformat.read(path, as_version=4).cells


def code_cells(path):
    return [cell for cell in cells(path) if cell.cell_type == "code"]


def outputs(path):
    for number, cell in enumerate(cells(path), 1):
        for output in cell.get("outputs", []):
            yield number, cell, output


@pytest.mark.parametrize("path", NOTEBOOK_FILES, ids=lambda path: path.stem)
class TestNotebook:
    def test_was_executed_in_order(self, path):
        counts = [cell.execution_count for cell in code_cells(path)]
        assert counts == list(range(1, len(counts) + 1))

    def test_has_no_noise(self, path):
        for number, cell, output in outputs(path):
            assert output.get("name") != "stderr", f"cell {number} writes to stderr: {output.text[:80]}"
            if "raises-exception" not in cell.metadata.get("tags", []):
                assert output.output_type != "error", f"cell {number} fails"
            text = output.get("text", "") + str(output.get("data", {}).get("text/plain", ""))
            assert not MACHINE_PATH.findall(text), f"cell {number} prints a path"
            assert len(text) < 4000, f"cell {number} prints {len(text)} characters"

    def test_figures_are_small_and_described(self, path):
        for number, _, output in outputs(path):
            png = output.get("data", {}).get("image/png")
            if png:
                assert len(base64.b64decode(png)) < 60_000, f"the figure of cell {number} is too large"
                assert output.metadata["image/png"]["alt"], f"the figure of cell {number} has no alt text"

    def test_ends_with_its_checkpoint(self, path):
        assert code_cells(path)[-1].source.strip() == f'checkpoint("{number_of(path)}")'


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(r.name): Version(str(r.specifier).removeprefix("==")) for r in pinned}


@pytest.mark.parametrize("text", [*PROJECT["dependencies"], *(d for extra in EXTRAS.values() for d in extra)])
def test_constraints_pin_what_pyproject_asks_for(text):
    wanted = Requirement(text)
    if wanted.name != PROJECT["name"]:  # an extra that takes another one along
        assert pins()[canonicalize_name(wanted.name)] in wanted.specifier


def test_every_chapter_has_a_measured_time():
    seconds = json.loads(TIMES.read_text(encoding="utf-8"))["seconds"]
    assert not set(chapters()) - set(seconds), "`course run --record NN` measures them for README's table"


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_ruff_has_no_complaint(command):
    done = subprocess.run([sys.executable, "-m", "ruff", *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_nothing_downloaded_or_built_is_committed():
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git clone")
    files = done.stdout.splitlines()
    assert not [f for f in files if f.startswith(("data/built/", "data/downloads/", "runs/", ".venv/"))]
    large = {f for f in files if (ROOT / f).exists() and (ROOT / f).stat().st_size > 1_000_000}
    assert large <= {"data/stories.txt", "uv.lock", "site/_static/first_model.js"}, (
        "chapter 01's text, 2 MB, of which git keeps 0.4 MB, uv's hashes, and the site's model; nothing else is that large"
    )


def test_the_names_of_a_small_script_come_from_the_package_itself_and_only_when_asked_for():
    code = (
        "import sys, nanogpt; assert 'torch' not in sys.modules\n"
        "from nanogpt import GPT, GPTConfig, BPETokenizer, BatchStream, train, generate\n"
        "assert GPT(GPTConfig(block_size=4, vocab_size=8, n_layer=1, n_head=1, n_embd=4))\n"
        "assert callable(train) and callable(generate) and BPETokenizer.train and BatchStream.next_batch\n"
        "assert not hasattr(nanogpt, 'nothing') and {'GPT', 'generate', 'labs'} <= set(dir(nanogpt))\n"
        "from nanogpt import *\n"
        "assert not {'yaml', 'pydantic', 'matplotlib', 'huggingface_hub'} & set(sys.modules), 'commands alone need these'"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
