"""pytest's plugin of `course test`: kernels work in a student's clone, workers share the files, the last lines say what was skipped."""

import gc
import os
import re
import secrets
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from xdist.scheduler import LoadScopeScheduling

from course.paths import relative
from course.testing.law import COMPARISON, HANDS_OVER, PARTS, built_in, clone_of, hand_over

# What one worker runs, in this order: files that share what takes long to make, and the longest single ones. The others
# come after these, so that the workers end at about the same time.
TOGETHER = {
    "grading": "tests/grading/",  # first: its limits are seconds of the clock
    "site": ("tests/machinery/test_course_site", "tests/repository/test_sheet"),
    "lab": "tests/machinery/test_browser_lab",
    "distributed": "tests/labs/test_distributed_",
    "exercises": "tests/repository/test_exercises",
    "ranks": ("tests/machinery/test_course_processes", "tests/machinery/test_course_torchrun"),  # one folder
    "tutor": "tests/machinery/test_course_tutor",
    "machines": "tests/repository/test_repository_machines",
}
WANTS = {  # a word of the reason for which a test was skipped → what a machine needs to run it
    "CUDA|GPU": "a CUDA GPU",
    "Chromium|playwright": "Chromium and playwright",
    "bubblewrap|setpriv|sandbox|engine|COURSE_TESTS_IMAGE": "the grader's sandboxes (bubblewrap, a container's engine)",
    "namespaces|iproute2": "two hosts (root, iproute2)",
    "riton": "Triton",
    "compiler|CxxCompiler": "a C++ compiler",
    "Sphinx|axe-core": "the site's packages (pip install -e '.[site]')",
    "GPT-2's vocabulary": "GPT-2's vocabulary (TIKTOKEN_CACHE_DIR, or a network)",
    "TinyShakespeare": "TinyShakespeare (course data tinyshakespeare)",
}


class InAClone(KernelManager):
    """A kernel that works in a student's clone finds the clone's nanogpt and course first, as does what it starts.

    It talks through files where it can: between the choice of a port and the kernel's bind another program can take it.
    """

    def __init__(self, **options):
        if os.name == "posix":
            place = os.path.join(tempfile.gettempdir(), f"kernel-{secrets.token_hex(6)}")  # 107 bytes at most
            options |= {"transport": "ipc", "ip": place}
        super().__init__(**options)

    def start_kernel(self, *, cwd: str, **options):
        clone = clone_of(Path(cwd))
        env = os.environ | ({"PYTHONPATH": str(clone)} if clone else {})
        return super().start_kernel(cwd=cwd, env=env, **options)


class Schedule(LoadScopeScheduling):
    """xdist's: a worker gets the next file when it has nearly done its last one. A part of the notebooks is one file here."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _assign_work_unit(self, node) -> None:
        """The later parts come next as soon as they can begin, and are the last ones before."""
        for part in PARTS[1:]:
            if str(part) in self.workqueue:
                self.workqueue.move_to_end(str(part), last=not built_in(part).exists())
        super()._assign_work_unit(node)


def unit(nodeid: str) -> str:
    """What one worker runs: a part of the notebooks with the comparison at its end, files that belong together, or a file."""
    file = nodeid.partition("::")[0]
    for part in PARTS:
        compares = file == f"tests/{COMPARISON}" and nodeid.endswith(f"[{part.name}]")
        if compares or nodeid.startswith(relative(part)):
            return str(part)
    return next((name for name, starts in TOGETHER.items() if file.startswith(starts)), file)


def pytest_configure(config) -> None:
    from nbval import kernel

    kernel.KernelManager = InAClone
    gc.disable()  # thousands of tests are a million objects and no garbage: looking for some takes half of the time


def pytest_collection_modifyitems(items: list) -> None:
    order = [str(PARTS[0]), *TOGETHER]
    items.sort(key=lambda item: order.index(unit(item.nodeid)) if unit(item.nodeid) in order else len(order))


def pytest_collection_finish(session) -> None:
    gc.enable()
    gc.freeze()  # nor is it looked for among them while they run


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log) -> Schedule:
    return Schedule(config, log)


def pytest_runtest_teardown(item, nextitem) -> None:
    """The later parts need what the first has made up to the chapter that trains the model."""
    ends = nextitem is None or nextitem.path != item.path
    if ends and item.path.is_relative_to(PARTS[0]) and item.path.name.startswith(f"{HANDS_OVER}_"):
        for later in PARTS[1:]:
            hand_over(PARTS[0], later)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report) -> None:
    """Name what fails as soon as it does: what it said comes at the end, half an hour later."""
    if report.failed and getattr(report, "node", None):  # of a worker, here where all of them are told
        print(f"\nfailed: {report.nodeid}", flush=True)


def pytest_terminal_summary(terminalreporter) -> None:
    for want, count in Counter(map(want_of, terminalreporter.stats.get("skipped", []))).most_common():
        terminalreporter.write_line(f"skipped {count:4}: {want}")


def want_of(report) -> str:
    """What would have to be here for a skipped test to run."""
    reason = str(report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr)
    if package := re.search(r"could not import '([\w.]+)'", reason):
        return package[1]
    known = (want for words, want in WANTS.items() if re.search(words, reason))
    return next(known, reason.removeprefix("Skipped: "))
