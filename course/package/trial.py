"""Run by a checkpoint as a script of its own, aside: imports new modules, runs a chapter's tests, writes a report.

    python trial.py REPORT IMPORT_SECONDS TEST_SECONDS MODULE,MODULE TEST.py ...

Code under trial may end the process at any point, with any exit code: what the JSON report says counts. Knows nothing of the
course, since `nanogpt` means the trial's copy here.
"""

import faulthandler
import gc
import importlib
import json
import os
import sys
import traceback

OPTIONS = (
    "-x -q --tb=short --no-header --color=no -p no:cacheprovider -p no:faulthandler -p no:nbval -p no:anyio"
)


def main(path: str, import_limit: str, test_limit: str, modules: str, *tests: str) -> None:
    report: dict = {"imported": [], "ran": 0, "finished": False}

    def write() -> None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(report, file)

    write()
    # An editable installation would answer for a module that the trial has not.
    sys.meta_path[:] = [f for f in sys.meta_path if "Editable" not in getattr(f, "__name__", "")]
    gc.disable()  # what is loaded is no garbage, and to look for some takes a fifth of the time
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
        run_tests(list(tests), report)
    report["finished"] = True
    write()
    gc.freeze()  # Python looks once more when it ends


def run_tests(tests: list[str], report: dict) -> None:
    import pytest

    class Watch:
        """Counts the tests, and keeps the first failure."""

        def pytest_runtest_logstart(self) -> None:
            report["ran"] += 1

        def pytest_collection_finish(self) -> None:
            gc.freeze()
            gc.enable()

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            note(report, report.nodeid.split("::")[-1])

        def pytest_collectreport(self, report: pytest.CollectReport) -> None:
            note(report, report.nodeid.split("/")[-1])

    def note(result, name: str) -> None:
        if result.failed and "failure" not in report:
            crash = getattr(result.longrepr, "reprcrash", None)
            message = (crash.message if crash else result.longreprtext).strip() or "fails"
            if crash is None:  # a test file that cannot be collected: its last line says why
                message = message.splitlines()[-1].removeprefix("E").strip()
            report["failure"] = {"test": name, "message": message, "text": result.longreprtext}

    report["exit"] = int(pytest.main([*OPTIONS.split(), "-m", "not slow", *tests], plugins=[Watch()]))


if __name__ == "__main__":
    main(*sys.argv[1:])
