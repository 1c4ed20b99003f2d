"""Four laws of the package: the core stands alone, the main road stands on itself, the core is small, a wheel works."""

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from wording import bare

from course.package.cells import exported_cells
from course.paths import PACKAGE, ROOT, SOURCES, TESTS, module_path, modules, source_chapters, source_path
from course.site.chapters import OPTIONAL
from course.states.released import exporting_cells, owners

CORE = [name for name in modules() if "." not in name]
LINES = 3800
TINY = ["train.max_steps=2", "eval.tokens=300", "run.device=cpu"]


def imported(tree: ast.AST, known: Iterable[str]) -> set[str]:
    """The modules of `known` that a text imports, at its top and within functions, as the package names them: `model`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return set(known) & {name.removeprefix("nanogpt.") for name in found if name.startswith("nanogpt.")}


def imports(module: str, known: list[str]) -> set[str]:
    return imported(ast.parse(module_path(module).read_text(encoding="utf-8")), known)


@pytest.mark.parametrize("module", modules())
def test_the_package_needs_neither_the_course_nor_jupyter_and_the_core_no_labs(module):
    """A command or a section of a configuration may name a lab as a text, which is loaded when it is asked for."""
    others = ("course", "IPython", "ipywidgets", "jupyter") + (("nanogpt.labs",) if module in CORE else ())
    for node in ast.walk(ast.parse(module_path(module).read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{name}" for name in names] + [node.module or ""]
        assert not [name for name in names if name.startswith(others)]


def test_no_modules_of_the_core_import_each_other_in_a_circle():
    needs = {module: imports(module, CORE) - {module} for module in CORE}
    needs["model"] -= {"pretrained", "sampling"}  # GPT.from_pretrained and model.generate, two lines each
    while free := [module for module, others in needs.items() if not others]:
        for module in free:
            del needs[module]
        for others in needs.values():
            others -= set(free)
    assert not needs, f"these modules import each other: {needs}"


def exported(chapter: str) -> set[str]:
    return {cell.module for cell in exported_cells(exporting_cells(chapter), chapter)}


@cache
def made_by(chapters: tuple[str, ...]) -> set[str]:
    """The modules that these chapters make, and the names in them, as `optim.wsd`."""
    cells = [cell for chapter in chapters for cell in exported_cells(exporting_cells(chapter), chapter)]
    return {cell.module for cell in cells} | {
        f"{cell.module}.{name}" for cell in cells for name in cell.names()
    }


EVERY = tuple(source_chapters())
ROAD = tuple(chapter for chapter in EVERY if chapter not in OPTIONAL)


def needed(path: Path, nodes=ast.walk) -> set[str]:
    """What a file imports of the package, modules and names, and what its helpers in tests/ import at their top."""
    found = set()
    for node in nodes(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= imported(node, made_by(EVERY))
            helper = TESTS / f"{getattr(node, 'module', '')}.py"
            found |= needed(helper, ast.iter_child_nodes) if helper.is_file() else set()
    return found


@pytest.mark.parametrize("chapter", ROAD)
def test_a_sitting_of_the_main_road_needs_nothing_that_an_optional_one_wrote_first(chapter):
    own = {module for module, first in owners().items() if first in OPTIONAL}
    assert not exported(chapter) & own
    for file in (source_path(chapter), *TESTS.rglob(f"test_ch{chapter}_*.py")):  # its checkpoint runs these
        late = needed(file) & (own | made_by(EVERY) - made_by(ROAD))
        assert not late, f"{file.name} needs {sorted(late)}; a test can use pytest.importorskip"


@pytest.mark.parametrize("chapter", sorted(OPTIONAL))
def test_an_optional_sitting_grows_nothing_of_the_core(chapter):
    assert not exported(chapter) & set(CORE)


def test_the_core_is_small_enough_to_be_read():
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.glob("*.py"))
    assert lines <= LINES, f"nanogpt/*.py has {lines} lines"


def run(words: list[str], folder: Path, python=sys.executable) -> str:
    """What a Python process in another folder prints, which knows nothing of the clone."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    command = [str(python), *words]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_trains_and_samples_outside_the_clone(tmp_path):
    """Built, installed into an empty environment, imported, two steps of `tiny`, a story."""
    copy, home = tmp_path / "source", tmp_path / "home"
    shutil.copytree(PACKAGE, copy / "nanogpt", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for folder in (copy / "course", home):
        folder.mkdir()
    build = "-m pip --quiet wheel --no-deps --no-build-isolation --wheel-dir .. ."
    run(build.split(), copy)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=False, symlinks=os.name != "nt")
    python = next((tmp_path / "env").glob("[bS]*/python*"))
    purelib = ["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(run(purelib, tmp_path, python).strip())
    run(["-m", "zipfile", "-e", str(wheel), str(site)], tmp_path)
    (site / "what_pip_would_download.pth").write_text(sysconfig.get_path("purelib"))
    code = "import nanogpt as n; from nanogpt import GPT; print(n.__file__, n.__version__, GPT.__name__)"
    where, version, name = run(["-c", code], home, python).split()
    assert Path(where).is_relative_to(site) and version in wheel.name and name == "GPT"
    run(["-m", "nanogpt", "train", "tiny", *TINY], home, python)
    words = ["sample", "--checkpoint", "runs/tiny", "--max-new-tokens", "5", "--prompt", "One sunny day,"]
    assert run(["-m", "nanogpt", *words], home, python).startswith("One sunny day,")
    assert (site / "nanogpt/py.typed").exists()


def test_a_test_that_asks_for_our_words_finds_each_function_of_the_package_in_a_source():
    """tests/wording.py compares without comments and docstring, as it is done here."""
    known = {(node.name, bare(node)) for path in SOURCES.glob("*.py") for node in functions(path)}
    for path in PACKAGE.rglob("[!_]*.py"):
        for node in functions(path):
            assert (node.name, bare(node)) in known, f"{path.name}: {node.name}"


def functions(path: Path) -> list[ast.FunctionDef]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.FunctionDef)]
