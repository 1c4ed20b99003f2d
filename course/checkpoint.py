"""A notebook's finished code → `nanogpt/`: written aside, tested there, then replaced in one step."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from course.export import cell_at, export, exported_cell, exported_cells, is_exported, refuse_double_claims
from course.files import diff, read_notebook, write_atomically
from course.paths import PACKAGE, ROOT, TESTS, CourseError, notebook_path, relative


def export_chapter(chapter: str) -> dict[str, str]:
    """Module name → text, as the chapter's saved notebook says."""
    path = notebook_path(chapter)
    nb = read_notebook(path)
    modules = export(nb, path.name)
    refuse_double_claims(set(modules), path)
    return modules


def checkpoint_chapter(chapter: str, executed: list[str] | None = None) -> list[str]:
    """Export a chapter into the package and say what it now holds.

    executed: the cells that were run, in order, when called from the notebook itself.
    Raises CourseError, and leaves every module as it was, if an exported cell is broken, the module does
    not import, a test of the chapter fails, or the saved notebook is not the one that was run.
    """
    modules = export_chapter(chapter)
    path = notebook_path(chapter)
    cells = exported_cells(read_notebook(path), path.name)
    if executed is not None:
        compare_with_run(cells, executed, path.name)
    if not modules:
        return [f"{path.name} exports nothing"]
    tests = sorted(TESTS.glob(f"test_ch{chapter}_*.py"))
    try_aside(modules, cells, tests)
    for module, text in modules.items():
        if current(module) != text:
            write_atomically(PACKAGE / f"{module}.py", text.encode())
    return [*map(describe, modules, modules.values()), *(f"{relative(test)} passes" for test in tests)]


def current(module: str) -> str:
    path = PACKAGE / f"{module}.py"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def describe(module: str, text: str) -> str:
    names = re.findall(r"^(?:class|def) ([A-Za-z]\w*)", text, re.MULTILINE)
    return f"nanogpt/{module}.py: {len(text.splitlines())} lines with {', '.join(names)}"


def compare_with_run(cells, executed: list[str], notebook: str) -> None:
    """The saved notebook must say what the student just ran: else the module would not be what they saw work."""
    last_run: dict[str, str] = {}
    for source in executed:
        if is_exported(source):
            cell = exported_cell(source, "the cell that was run", "_")
            last_run.update(dict.fromkeys(cell.names(), cell.source))
    for cell in cells:
        for name in cell.names():
            if name not in last_run:
                raise CourseError(f"{cell.where} ({name}) has not been run; run all cells, then checkpoint")
            if last_run[name] != cell.source:
                raise CourseError(
                    f"{cell.where} ({name}) is not the cell that was run: save {notebook} first, then checkpoint"
                )
    unsaved = set(last_run) - {name for cell in cells for name in cell.names()}
    if unsaved:
        print(
            f"note: {', '.join(sorted(unsaved))} was run in an exported cell that the saved notebook does not have"
        )


def try_aside(modules: dict[str, str], cells, tests: list[Path]) -> None:
    """Import the new modules and run the chapter's tests in fresh processes, in a copy of the package."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as folder:
        trial = Path(folder) / "nanogpt"
        shutil.copytree(PACKAGE, trial, ignore=shutil.ignore_patterns("__pycache__"))
        for module, text in modules.items():
            (trial / f"{module}.py").write_text(text, encoding="utf-8", newline="\n")
        for module in modules:
            done = run_in(folder, "-c", f"import nanogpt.{module}")
            if done.returncode:
                raise CourseError(
                    f"{blame(done, modules, cells)}: {last_line(done.stderr)}\nnanogpt/{module}.py is unchanged"
                )
        if tests:
            options = [
                "-m",
                "pytest",
                "-x",
                "-q",
                "-m",
                "not slow",
                "--tb=short",
                "--no-header",
                "-p",
                "no:cacheprovider",
            ]
            done = run_in(folder, *options, *map(str, tests))
            if done.returncode not in (0, 5):  # 5: every test skipped or deselected
                names = ", ".join(f"nanogpt/{module}.py" for module in modules)
                report = "\n".join(done.stdout.strip().splitlines()[-25:]) or done.stderr.strip()
                raise CourseError(f"{blame(done, modules, cells)}: a test fails\n{report}\n{names} unchanged")


def run_in(folder: str, *args: str) -> subprocess.CompletedProcess:
    """A fresh Python in which `import nanogpt` means the copy in `folder`."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env |= {"PYTHONPATH": folder, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, *args], cwd=ROOT, env=env, capture_output=True, encoding="utf-8", errors="replace"
    )


def blame(done: subprocess.CompletedProcess, modules: dict[str, str], cells) -> str:
    """The cell of the deepest frame that lies in one of the new modules; the notebook where there is none."""
    frames = re.findall(r"nanogpt[/\\](\w+)\.py(?:\", line |:)(\d+)", done.stdout + done.stderr)
    for module, row in reversed(frames):
        if module in modules:
            return cell_at(modules[module], int(row), [c for c in cells if c.module == module])
    return cells[0].where.split(",")[0]


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def check_chapter(chapter: str) -> str:
    """The difference between what the notebook exports and what the package holds; empty where they agree."""
    modules = export_chapter(chapter)
    name = notebook_path(chapter).name
    diffs = [
        diff(current(m), text, f"nanogpt/{m}.py", f"exported from {name}") for m, text in modules.items()
    ]
    return "\n".join(filter(None, diffs))


def orphans(chapters: list[str]) -> list[str]:
    """Modules in the package that no notebook exports."""
    claimed = {module for chapter in chapters for module in export_chapter(chapter)}
    return sorted(
        p.name for p in PACKAGE.glob("*.py") if p.stem not in claimed and not p.stem.startswith("__")
    )
