"""Run by a checkpoint as a script of its own, aside: imports new modules, runs a chapter's tests, writes a report.

    python trial.py REPORT IMPORT_SECONDS TEST_SECONDS MODULE,MODULE TEST.py ...

Code under trial may end the process at any point, with any exit code: what the JSON report says counts. Knows nothing of the
course, since `nanogpt` means the trial's copy here.
"""

import faulthandler
import importlib
import inspect
import json
import os
import sys
import traceback
from pathlib import Path

OPTIONS = "-x", "-q", "--tb=short", "--no-header", "--color=no", "-m", "not slow and not weekly"
WITHOUT = [f"-pno:{plugin}" for plugin in ("cacheprovider", "faulthandler", "nbval", "anyio")]


def main(path: str, import_limit: str, test_limit: str, modules: str, *tests: str) -> None:
    report: dict = {"imported": [], "ran": 0, "finished": False}

    def write() -> None:
        Path(path).write_text(json.dumps(report), encoding="utf-8")

    write()
    # An editable installation would answer for a module that the trial has not.
    sys.meta_path[:] = [f for f in sys.meta_path if "Editable" not in getattr(f, "__name__", "")]
    # A hanging import or test ends the process after the limit, having said where it hangs.
    log = os.dup(2)  # pytest will capture 2 itself
    faulthandler.dump_traceback_later(float(import_limit), exit=True, file=log)
    for module in modules.split(","):
        try:
            importlib.import_module(f"nanogpt.{module}")
        except BaseException as error:  # sys.exit() too
            report["error"] = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
            report["text"] = traceback.format_exc()
            return write()
        report["imported"].append(module)
        write()
    faulthandler.dump_traceback_later(float(test_limit), exit=True, file=log)
    if tests:
        import pytest

        report["exit"] = int(pytest.main([*OPTIONS, *WITHOUT, *tests], plugins=[Watch(report)]))
    report["finished"] = True
    write()


class Watch:
    """Counts the tests, and keeps the first failure."""

    def __init__(self, report: dict):
        self.report, self.source = report, ""

    def pytest_runtest_protocol(self, item) -> None:
        self.report["ran"] += 1
        self.source = inspect.getsource(item.obj)

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed and "failure" not in self.report:
            crash = getattr(report.longrepr, "reprcrash", None)
            # of a test file that cannot be collected, the last line says why
            said = crash.message if crash else report.longreprtext.strip().split("\n")[-1].removeprefix("E")
            file, _, name = report.nodeid.rpartition("::")
            name = name if file else Path(name).name
            failure = {"test": name, "message": said.strip(), "text": report.longreprtext}
            self.report["failure"] = failure | {"source": self.source}

    pytest_collectreport = pytest_runtest_logreport


if __name__ == "__main__":
    main(*sys.argv[1:])
