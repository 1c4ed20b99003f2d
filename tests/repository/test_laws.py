"""Four laws of the package: the core stands alone, the main road stands on itself, the core is small, a wheel works."""

import ast
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from wording import bare, released

from course.package.cells import exported_cells
from course.package.imports import imported
from course.paths import PACKAGE, ROOT, TESTS, module_path, modules, source_chapters, source_path
from course.site.chapters import OPTIONAL
from course.states.released import exporting_cells, owners
from course.testing.needs import all_needed, makers

CORE = [name for name in modules() if "." not in name]
LINES = 3800
TINY = ["train.max_steps=2", "eval.tokens=300", "run.device=cpu"]


def imports(module: str, known: list[str]) -> set[str]:
    """The modules of `known` that a module imports, at its top or within a function."""
    return imported(ast.parse(module_path(module).read_text(encoding="utf-8")), known)


@pytest.mark.parametrize("module", CORE)
def test_the_core_imports_neither_labs_nor_the_course(module):
    """A command or a section of a configuration may name a lab as a text, which is loaded when it is asked for."""
    tree = ast.parse(module_path(module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{name}" for name in names] + [node.module or ""]
        assert not [name for name in names if name.startswith(("nanogpt.labs", "course"))]


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


@pytest.mark.parametrize("chapter", [c for c in source_chapters() if c not in OPTIONAL])
def test_a_sitting_of_the_main_road_needs_nothing_that_an_optional_one_wrote_first(chapter):
    own = {module: first for module, first in owners().items() if first in OPTIONAL}
    cells = exporting_cells(chapter).cells
    used = exported(chapter)
    for cell in cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.split("\n") if not line.startswith(("%", "!"))]
            used |= imported(ast.parse("\n".join(lines)), owners())
    assert not used & own.keys(), f"{chapter} needs {sorted(used & own.keys())}"
    # its tests as well, which its checkpoint runs, and single names, since an optional sitting may add to another's module
    for file in (source_path(chapter), *TESTS.rglob(f"test_ch{chapter}_*.py")):
        used = imported(ast.parse(file.read_text(encoding="utf-8")), owners())
        used |= {name for name in all_needed(file) if name not in owners() and makers()[name] in OPTIONAL}
        late = {name for name in used if name not in owners() or name in own}
        assert not late, f"{file.name} needs {sorted(late)}; a test can use pytest.importorskip"


@pytest.mark.parametrize("chapter", sorted(OPTIONAL))
def test_an_optional_sitting_grows_nothing_of_the_core(chapter):
    assert not exported(chapter) & set(CORE)


def test_the_core_is_small_enough_to_be_read():
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.glob("*.py"))
    assert lines <= LINES, f"nanogpt/*.py has {lines} lines"


def run(words: list[str], folder: Path, python=sys.executable, **more: str) -> str:
    """What a Python process in another folder prints, which knows nothing of the clone."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run(
        [str(python), *words], cwd=folder, env=env | more, capture_output=True, text=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_wheel_trains_and_samples_outside_the_clone(tmp_path):
    """Built, installed into an empty environment, imported, two steps of `tiny`, a story."""
    pip = [
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
    ]
    copy = tmp_path / "source"
    run(
        ["-c", f"import shutil; shutil.copytree({str(ROOT / 'nanogpt')!r}, {str(copy / 'nanogpt')!r})"],
        tmp_path,
    )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    (copy / "course").mkdir()
    run([*pip, "--wheel-dir", str(tmp_path), "."], copy)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=False, symlinks=os.name != "nt")
    python = next((tmp_path / "env").glob("[bS]*/python*"))
    site = Path(
        run(["-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path, python).strip()
    )
    run(["-m", "zipfile", "-e", str(wheel), str(site)], tmp_path)
    (site / "torch_and_others.pth").write_text(
        sysconfig.get_path("purelib")
    )  # what pip would have downloaded
    home = tmp_path / "home"
    home.mkdir()
    code = (
        "import nanogpt; from nanogpt import GPT; print(nanogpt.__file__, nanogpt.__version__, GPT.__name__)"
    )
    where, version, name = run(["-c", code], home, python).split()
    assert Path(where).is_relative_to(site) and version in wheel.name and name == "GPT"
    run(["-m", "nanogpt", "train", "tiny", *TINY], home, python)
    words = ["sample", "--checkpoint", "runs/tiny", "--max-new-tokens", "5", "--prompt", "One sunny day,"]
    assert run(["-m", "nanogpt", *words], home, python).startswith("One sunny day,")
    assert (site / "nanogpt/py.typed").exists()


@pytest.mark.slow
def test_the_folder_alone_is_enough_to_train(tmp_path):
    """Copied to a server that has nothing else of the course."""
    code = f"import shutil; shutil.copytree({str(PACKAGE)!r}, 'nanogpt', ignore=shutil.ignore_patterns('__pycache__'))"
    run(["-c", code], tmp_path)
    said = run(["-c", "import nanogpt; print(nanogpt.__file__)"], tmp_path, PYTHONPATH=str(tmp_path))
    assert Path(said.strip()).is_relative_to(tmp_path)
    assert "2 steps" in run(["-m", "nanogpt", "train", "tiny", *TINY], tmp_path, PYTHONPATH=str(tmp_path))


def test_a_test_that_asks_for_our_words_finds_each_function_of_the_package_in_a_source():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and path.name != "__init__.py":
                assert bare(node) in released(node.name), f"{path.name}: {node.name}"
