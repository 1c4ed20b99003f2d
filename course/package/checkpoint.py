"""A notebook's finished code → `nanogpt/`: written aside, tested there, then replaced, all of it or nothing."""

import ast
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from course.files import diff, replace_all
from course.package import passed
from course.package.as_of import Chapter, current
from course.package.blank import refuse_empty
from course.package.cells import ExportedCell, defined_names, exported_cells
from course.package.export import cell_at
from course.package.growing import module_parts
from course.package.last_run import compare_with_run
from course.package.remedies import NO_NAME, remedy
from course.paths import ROOT, TESTS, CourseError, module_file, module_path, notebook_path, relative
from course.states.state import after_checkpoint

IMPORT_SECONDS = 180  # what takes seconds may take a minute on a machine with other work
TEST_SECONDS = 1200
KEPT_LINES = 14  # of pytest's own text
NOISE = re.compile(
    r"^E?\s+\+  |most recent call|importlib|package[/\\]trial\.py|^ *\^+$|^ImportError while|^Hint: "
)


class TestsFail(CourseError):
    """A chapter's own test fails: the exported cells run, and do something else than they should."""


def checkpoint_chapter(
    chapter: str, executed: list[str] | None = None, by_id: dict[str, str] | None = None
) -> list[str]:
    """Export a chapter into the package and say what it now holds.

    executed, by_id: the cells that were run, when called from the notebook itself (`compare_with_run`).
    Raises CourseError, and leaves every module as it was, if an exported cell is broken, a module does not
    import, a test of the chapter fails, or the saved notebook is not the one that was run.
    """
    exports = Chapter(notebook_path(chapter))
    refuse_empty(exports.cells)
    modules = exports.in_package()
    if executed is not None:
        compare_with_run(exports.cells, executed, by_id or {})
    with contextlib.suppress(CourseError):  # what the package has may be damaged
        for module, text in modules.items():
            if gone := top_level(current(module)) - top_level(text):
                print(f"note: {', '.join(sorted(gone))} is no longer exported")
    tests = sorted(TESTS.rglob(f"test_ch{exports.number}_*.py")) if modules else []
    if modules:
        try_aside(exports, tests)
        replace_all({module_path(module): text.encode() for module, text in modules.items()})
    after_checkpoint(exports.number)
    passed.note(exports.number)
    said = [f"exported {names_of(exports.cells, module)} to {module_file(module)}" for module in modules]
    said = said or [f"{exports.path.name} exports nothing"]
    return [*said, *(f"{relative(test)} passes" for test in tests)]


def top_level(text: str) -> set[str]:
    return {name for part in module_parts(text) for name in part.names if "." not in name}


def names_of(cells: list[ExportedCell], module: str) -> str:
    """The functions and classes that a chapter's cells define in a module; else the constants."""
    nodes = [node for cell in cells if cell.module == module for node in cell.tree.body]
    named = [node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return ", ".join(dict.fromkeys(named or [name for node in nodes for name in defined_names(node)]))


def try_aside(exports: Chapter, tests: list[Path]) -> None:
    """Import the new modules and run the chapter's tests in a fresh process, in the package as of this chapter."""
    with tempfile.TemporaryDirectory(prefix="checkpoint-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        modules = exports.lay_out(folder)
        report, said = run_trial(folder, list(modules), tests)
        problem = trial_problem(report, said, modules)
        if not problem and not all(is_whole(module_path(m, folder / "nanogpt"), modules[m]) for m in modules):
            problem = "importing or testing it changes files of nanogpt/", ""
    if not problem:
        return
    line, text = problem
    text = text.replace(f"{folder}{os.sep}", "").replace(f"{ROOT}{os.sep}", "")
    # pytest names a test by its way from the folder of the trial
    text = re.sub(
        r"(?m)(?:^\.\.[/\\].*?|\S*)(tests[/\\](?:\w+[/\\])?test_ch)", lambda m: m[1].replace("\\", "/"), text
    )
    where = likely_cell(text + said + report.get("failure", {}).get("source", ""), exports, modules)
    names = ", ".join(map(module_file, modules))
    error = TestsFail if "failure" in report else CourseError
    raise error(f"{line}\nlikely {where}; {names} unchanged{excerpt(text)}")


def is_whole(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()


def trial_problem(report: dict, said: str, modules: dict[str, str]) -> tuple[str, str] | None:
    """What went wrong, in one line, and the text that shows where; None if nothing did."""
    if "error" in report:
        module = next(m for m in modules if m not in report["imported"])
        return f"{module_file(module)} cannot be imported: {report['error']}", report["text"]
    if failure := report.get("failure"):
        return first_line(failure, modules), failure["text"]
    in_tests = len(report["imported"]) == len(modules)
    if "Timeout (" in said:
        doing, seconds = ("a test", TEST_SECONDS) if in_tests else ("the import", IMPORT_SECONDS)
        return f"{doing} does not end within {seconds} s", said[said.index("Timeout (") :]
    if not in_tests:
        return "importing it ends Python", said
    if not report["finished"] or report.get("exit", 5) != (0 if report["ran"] else 5):  # 5: all are slow
        return "its tests do not run to their end", said
    return None


def first_line(failure: dict, modules=()) -> str:
    """`test_name: the assertion's message`; a name that is missing is told with its remedy."""
    test, message = failure["test"], failure["message"]
    if gone := NO_NAME.search(message):
        name, module = gone.groups()
        if module in modules:
            return f"{test} needs {name}, which no cell exports to {module_file(module)}; keep that name"
        return f"{test}: {remedy(message)}"
    message = re.sub(r"^(AssertionError|Failed):? ?", "", message).strip().split("\n")[0]
    return f"{test}: {message or 'fails'}"


def excerpt(text: str) -> str:
    """The end of pytest's text or a traceback, without the values of every subexpression."""
    lines = [line for line in text.rstrip().split("\n") if not NOISE.search(line)]
    lines = lines[:KEPT_LINES] if text.startswith("Timeout") else lines[-KEPT_LINES:]
    return "\n" + "".join(f"\n    {line[:160]}".rstrip() for line in lines) if any(lines) else ""


def likely_cell(text: str, exports: Chapter, modules: dict[str, str]) -> str:
    """The cell to look at first: where the error arose, an earlier chapter's too; else the first that the test's lines name."""
    cells = [cell for name, nb in exports.upto for cell in exported_cells(nb, name)]
    for file, row in reversed(re.findall(r"nanogpt[/\\]([\w/\\]+)\.py(?:\", line |:)(\d+)", text)):
        module = re.sub(r"[/\\]", ".", file)
        own = [cell for cell in cells if cell.module == module]
        if module in modules and (where := cell_at(modules[module], int(row), own)) != own[0].notebook:
            return where
    named = [c.where for c in exports.cells if any(re.search(rf"\b{name}\b", text) for name in c.names())]
    return named[0] if named else exports.path.name


def run_trial(folder: Path, modules: list[str], tests: list[Path]) -> tuple[dict, str]:
    """The trial's report, and all that it wrote. `import nanogpt` means the copy in `folder`, where it also works."""
    report, log = folder / "report.json", folder / "log.txt"
    script = [sys.executable, str(Path(__file__).with_name("trial.py")), str(report)]
    limits = [str(IMPORT_SECONDS), str(TEST_SECONDS)]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1", "TERM": "dumb"}
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [*script, *limits, ",".join(modules), *map(str, tests)],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(IMPORT_SECONDS + TEST_SECONDS + 60)
        except BaseException as error:
            end_group(process)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    said = log.read_text(encoding="utf-8", errors="replace")
    try:
        return json.loads(report.read_text(encoding="utf-8")), said
    except (OSError, ValueError):  # it was ended while it wrote
        return {"imported": [], "finished": False}, said


def end_group(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (AttributeError, ProcessLookupError):  # Windows has no groups
        process.kill()
    process.wait()


def check_chapter(chapter: str) -> str:
    """The difference between what the notebooks export and what the package holds; empty where they agree."""
    exports = Chapter(notebook_path(chapter))
    source = f"exported from {exports.path.name}"
    diffs = [diff(current(m), text, module_file(m), source) for m, text in exports.in_package().items()]
    return "\n".join(filter(None, diffs))
