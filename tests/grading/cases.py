"""Submissions that try it: what stands in the cell 05-1 (or 06-1), what its checks must say, and the score that is due.

The other tasks are right in every one of them: a partial score survives whatever the first task does.
"""

import functools
import json
import os
import subprocess
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

RIGHT = "def double(xs):\n    return [2 * x for x in xs]"
# The driver's own channel, as a student finds it: an open descriptor, and the number of the request on the stack.
CHANNEL = """
import json, os, struct, sys
def frame_local(name):
    frame = sys._getframe()
    while name not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals[name]
def write(data):
    fd = frame_local("channel").replies
    while data:
        data = data[os.write(fd, data):]
def frame(header, body=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    write(struct.pack("<4sIQ", b"GRD1", len(text), len(body) if length is None else length) + text + body)
def reply(values, body=b"", **more):
    frame({"kind": "value", "id": frame_local("request")["id"], "values": values} | more, body)
    os._exit(0)
"""


FILLS_DISK = """
def double(xs):
    try:
        for i in range(1000):
            with open(f"/tmp/filled-{i}", "wb") as file:
                file.write(bytes(1 << 23))
        return "it never ends"
    except OSError:
        return [2 * x for x in xs]"""

DUE = """
def due():
    asked = frame_local("request")["values"]
    return {"l": [{"t": [{"l": [2 * x for x in xs]}, {"t": [{"l": list(xs)}]}]} for xs, in asked]}
"""


@dataclass
class Case:
    """verdicts: of the first task's two checks; score: of 14 (05) or 5 (06), without the manual question."""

    name: str
    code: str | None = None
    verdicts: tuple[str, ...] = ("passed", "passed")
    score: float = 14.0
    verdict: str = "graded"
    says: str = ""  # stands in a message
    solutions: dict = field(default_factory=dict)  # of other cells
    change: object = None  # notebook -> notebook, bytes, or a function of the path
    exercise: str = "05_small"
    backends: tuple[str, ...] = ("bubblewrap", "container", "docker", "podman")  # of which this is true


def both(verdict: str, lost: float = 5.0) -> dict:
    return {"verdicts": (verdict, verdict), "score": 14.0 - lost}


def cell(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


@functools.cache
def git_folder(root: Path) -> str:
    """Where the course's history is, with every solution that there ever was: for a work tree of git's not below it."""
    words = ["git", "-C", str(root), "rev-parse", "--path-format=absolute", "--git-common-dir"]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.stdout.strip() or str(root / ".git")


def only_if(attempt: str) -> str:
    """Right if the attempt succeeds: a pass is a leak."""
    attempt = textwrap.indent(cell(attempt), "        ")
    return f"def double(xs):\n    try:\n{attempt}\n        return [2 * x for x in xs]\n    except OSError:\n        return 'denied'"


def forged(line: str) -> str:
    return f"{CHANNEL}\ndef double(xs):\n    {line}\n    os._exit(0)"


def notebook(solutions: dict[str, str], answers: dict[str, str]) -> dict:
    cells = [{"cell_type": "markdown", "metadata": {}, "source": "# Exercises"}]
    for task, text in solutions.items():
        marks = {"grade_id": task, "solution": True, "locked": False, "grade": False, "schema_version": 3}
        about = {"metadata": {"nbgrader": marks}, "outputs": [], "execution_count": None}
        cells.append({"cell_type": "code", "source": text.splitlines(keepends=True)} | about)
        check = {"nbgrader": {"grade_id": f"{task}-check", "grade": True, "points": 5, "locked": True}}
        if task != "student":
            cells.append({"cell_type": "code", "source": "assert True", "metadata": check})
    for task, text in answers.items():
        marks = {"nbgrader": {"grade_id": task, "solution": True, "grade": True, "points": 2}}
        cells.append({"cell_type": "markdown", "metadata": marks, "source": text})
    return {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def attacks(host) -> list[Case]:
    """`host` says where the secrets lie and on which port somebody listens."""
    return [
        Case("correct", RIGHT),
        Case("partial", "def double(xs):\n    return [2 * abs(x) for x in xs]", ("passed", "failed"), 12.0),
        Case("misconception", "def double(xs):\n    return [1 + x for x in xs]", **both("failed"),
             says="one is added in place of a factor of two"),
        Case("syntax", "def double(xs)\n    return 1", **both("student_error"), says="SyntaxError"),
        Case("notebook", "%matplotlib inline\n!pip list\nimport inspect\ndef double(xs):\n    display(xs)\n    return [2 * x for x in xs]\ndouble?\ninspect.getsource(double)"),
        Case("in_place", "def double(xs):\n    xs[:] = [2 * x for x in xs]\n    return list(xs)", **both("failed"), says="changes its argument `xs`"),
        Case("exit", "raise SystemExit(0)", **both("student_error")),
        Case("forged_str", "class E(Exception):\n    def __str__(self): raise E\ndef double(xs):\n    raise E", **both("student_error")),
        Case("prints", "TEXT = 'x' * 10_000_000\ndef double(xs):\n    for _ in range(25):\n        print(TEXT)\n    return [2 * x for x in xs]"),
        Case("loop", "def double(xs):\n    while True:\n        pass", **both("timeout")),
        # An engine's container has only the driver and its child: there kill(-1) finds nobody, an error of the student's.
        Case("stops_all", "import os, signal\ndef double(xs):\n    os.kill(-1, signal.SIGSTOP)\n    os.kill(os.getppid(), signal.SIGSTOP)\n    os._exit(0)", **both("timeout|student_error")),
        Case("exit_above", "import os\nos._exit(0)", **both("crashed")),
        Case("segfault", "import ctypes\ndef double(xs):\n    ctypes.string_at(0)", **both("crashed"), says="SIGSEGV"),
        Case("forks", cell("""
            import os, time
            def double(xs):
                for _ in range(200):
                    if os.fork() == 0:
                        time.sleep(60)
                        os._exit(0)
                return [2 * x for x in xs]"""), **both("student_error"), says="BlockingIOError"),
        # Nothing of it is touched, so the kernel alone would give it.
        Case("memory_lazy", "def double(xs):\n    bytearray(6 << 30)\n    return [2 * x for x in xs]", **both("student_error"), says="MemoryError"),
        Case("memory_shared_out", cell("""
            import os, time
            def double(xs):
                for _ in range(30):
                    if os.fork() == 0:
                        kept = b"x" * (3 << 30)
                        time.sleep(60)
                        os._exit(0)
                time.sleep(60)"""), ("crashed|timeout", "crashed|timeout"), 9.0),
        Case("full_disk", FILLS_DISK, backends=("bubblewrap", "docker", "podman")),
        # In a container /tmp is the disk: the grader looks at it, and clears it afterwards.
        Case("full_disk_watched", FILLS_DISK, ("crashed|timeout", "crashed|timeout"), 9.0, backends=("container",)),
        Case("patched_checks", cell("""
            import sys, types
            fake = types.ModuleType("course.exercises.checks")
            fake.difference = lambda *_, **__: ""
            sys.modules["course.exercises.checks"] = sys.modules["course.grade.score.local"] = fake
            def double(xs):
                return xs or [0]"""), **both("failed")),
        Case("forged_lt", cell("""
            class Right(int):
                def __lt__(self, other): return True
                __le__ = __gt__ = __ge__ = __eq__ = __lt__
                def __abs__(self): return 0
                def __sub__(self, other): return 0
                def __hash__(self): return 0
            def double(xs):
                return [Right(99) for x in xs]"""), ("failed", "failed"), 9.0),
        Case("forged_eq", "class Right:\n    def __eq__(self, other): return True\ndef double(xs):\n    return Right()", **both("student_error"), says="Right"),
        Case("hook", "get_ipython().register_magic_function(print)\n" + RIGHT, **both("student_error")),
        Case("reads_canary", only_if(f"open({str(host.canary)!r}).read()"), **both("failed")),
        Case("reads_reference", only_if(f"assert 'BEGIN SOLUTION' in open({str(host.exercises / '05_small/exercise.py')!r}).read()"), **both("failed")),
        Case("reads_sources", only_if(f"import os; os.listdir({str(host.sources)!r})"), **both("failed")),
        Case("reads_course", only_if(f"""
            import os
            def files(top):
                for path, folders, names in os.walk(top):
                    folders[:] = [name for name in folders if name not in ("course", "nanogpt", ".venv", "site-packages")]
                    yield from (os.path.join(path, name) for name in names if path != {str(host.sources.parent)!r})
            for path in [*files({str(host.sources.parent)!r}), *files({git_folder(host.sources.parent)!r})]:
                with open(path, "rb"):
                    break
            else:
                raise OSError"""), **both("failed")),
        Case("reads_neighbour", only_if(f"open({str(host.submissions / 'correct.ipynb')!r}).read()"), **both("failed")),
        Case("reads_results", only_if(f"import os; os.listdir({str(host.results)!r})"), **both("failed")),
        Case("reads_the_grader", only_if("import os, glob\n[open(f'/proc/{p}/mem', 'rb') for p in os.listdir('/proc') if p.isdigit() and 'run' in open(f'/proc/{p}/cmdline').read()][0]").replace("except OSError", "except (OSError, IndexError)"), **both("failed")),
        Case("writes_beside", only_if(f"open({str(host.folder / 'planted')!r}, 'w').write('x')"), **both("failed")),
        Case("writes_package", only_if("import course.grade.sandbox.protocol as p\nopen(p.__file__, 'a').write('x')"), **both("failed")),
        Case("writes_dev", only_if("open('/dev/planted', 'w').write('x')"), **both("failed")),
        Case("writes_kernel", only_if("open('/proc/sys/kernel/core_pattern', 'w').write('x')"), **both("failed")),
        # pidfd_getfd: the first process of its sandbox had the grader's terminal.
        Case("terminal", only_if("import ctypes, os\nfd = ctypes.CDLL(None).syscall(438, os.pidfd_open(1), 2, 0)\nif fd < 0 or os.write(fd, b'owned') != 5: raise OSError('no')"), **both("failed"), backends=("bubblewrap", "container")),
        Case("socket", only_if(f"import socket\nsocket.create_connection(('127.0.0.1', {host.port}), 1)"), **both("failed")),
        Case("becomes_root", only_if("import os\nos.setuid(0)"), **both("failed")),
        Case("raises_limits", only_if("import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nexcept ValueError:\n    raise OSError"), **both("failed")),
        Case("flood_frames", forged("while True: frame({'kind': 'at', 'id': request_id(), 'values': None, 'task': ''})").replace("def double", "def request_id(): return frame_local('request')['id']\ndef double"), **both("output_limit")),
        Case("huge_body", forged("frame({'kind': 'value', 'id': 1, 'values': None}, b'', 1 << 60)"), **both("output_limit")),
        Case("half_a_frame", forged("write(b'GRD1')"), **both("output_limit|bad_reply")),
        Case("forged_score", forged("reply({'l': [{'t': [{'l': []}, {'t': [0]}]}] * 2}, score=100, points=1000, passed=True, verdict='passed')"), ("failed", "bad_reply"), 9.0),
        Case("forged_verdict", forged("reply('passed')"), **both("bad_reply")),
        # What they say is right; that it is said twice, or to another question, is not.
        Case("two_replies", DUE + forged("frame({'kind': 'value', 'id': frame_local('request')['id'], 'values': due()}); reply(due())"), **both("bad_reply")),
        # Whole numbers with one hash: a dictionary of them takes time by the square, and it would be the grader's.
        Case("equal_hashes", forged("frame({'kind': 'value', 'id': frame_local('request')['id'], 'values': {'d': [[i * (2**61 - 1), 0] for i in range(20_000)]}})"), **both("bad_reply")),
        Case("other_number", DUE + forged("frame({'kind': 'value', 'id': 10**6, 'values': due()})"), **both("bad_reply")),
        Case("no_arguments", DUE + forged("made = due()\n    for pair in made['l']:\n        pair['t'][1] = 5\n    reply(made)"), **both("bad_reply")),
        # As a list that holds tensors afterwards would be sent, without torch's import in the second that a check has here.
        Case("tensors_for_numbers", DUE + forged("made = due()\n    made['l'][0]['t'][1]['t'][0]['l'] = [{'x': 'float32', 's': [2]}] * 2\n    reply(made, bytes(16))"), **both("failed"), says="changes its argument `xs`"),
        Case("too_few", forged("reply({'l': []})"), **both("bad_reply")),
        Case("negative_shape", forged("reply({'l': [{'x': 'float32', 's': [-1, -4]}] * 2}, bytes(16))"), **both("bad_reply")),
        Case("pickle", cell(CHANNEL) + f"\nimport pickle\nclass P:\n    def __reduce__(self): return os.system, ('touch {host.folder}/planted',)\ndef double(xs):\n    write(pickle.dumps(P()))\n    os._exit(0)", **both("bad_reply")),
        Case("nested", forged("frame(b'[' * 3_000_000)"), **both("bad_reply")),
        Case("unhashable", forged("frame({'kind': 'at', 'id': frame_local('request')['id'], 'task': []})"), **both("bad_reply")),
        Case("odd_status", forged("frame({'kind': 'ended', 'id': frame_local('request')['id'], 'values': {'l': []}})"), **both("crashed")),
        Case("surrogates", "def double(xs):\n    raise ValueError(chr(0xD800) + '<script>alert(1)</script>')", **both("student_error"), says="<script>"),
        Case("kills_all", "import os\ndef double(xs):\n    os.kill(-1, 9)\n    os._exit(0)", **both("crashed|student_error")),
        # The student's check.
        Case("refuses_all", RIGHT, score=10.0, solutions={"05-3": "def check_sort(sort): assert False"}),
        Case("kills_half", RIGHT, score=12.0, solutions={"05-3": "def check_sort(sort): assert sort([1, 1, 0]) == [0, 1, 1]"}),
        Case("looks_inside", RIGHT, score=10.0, solutions={"05-3": cell("""
            import inspect
            def check_sort(sort):
                text = inspect.getsource(sort) + repr(sort.__closure__)
                assert "set" not in text""")},),
        # It knows nothing of sorting: who does what one before did is right, and from then on all others are wrong.
        Case("takes_notes", RIGHT, score=10.0, solutions={"05-3": cell("""
            import json, os
            def check_sort(sort):
                given = []
                for xs in ([], [2, 1], [1, 1, 0], None):
                    try:
                        given.append(repr((sort(xs), xs)))
                    except Exception:
                        given.append("error")
                before = json.load(open("/tmp/notes")) if os.path.exists("/tmp/notes") else []
                json.dump([*before, given], open("/tmp/notes", "w"))
                twice = [one for one in before if before.count(one) > 1]
                assert not twice or given in twice""")}, backends=("bubblewrap", "docker", "podman")),
        Case("calls_forever", RIGHT, score=10.0, solutions={"05-3": "def check_sort(sort):\n    while True: sort([])"}),
        Case("huge_argument", RIGHT, score=10.0, solutions={"05-3": "def check_sort(sort):\n    sort(list(range(10**7)))"}),
        # The notebook.
        Case("points_1000", "def double(xs): return xs", ("failed", "failed"), 9.0, change=lambda nb: json.loads(json.dumps(nb).replace('"points": 5', '"points": 1000, "score": 1000'))),
        Case("stripped", RIGHT, verdict="invalid_submission", score=0.0, change=lambda nb: nb | {"cells": [c | {"metadata": {}} for c in nb["cells"]]}, says="no cell of this set"),
        Case("altered", RIGHT, **both("invalid_cell"), change=lambda nb: json.loads(json.dumps(nb).replace('"05-1"', '"05-9"')), says="05-1"),
        Case("twice", RIGHT, **both("invalid_cell"), change=lambda nb: nb | {"cells": nb["cells"] + [c for c in nb["cells"] if "05-1" in str(c)][:1]}, says="2 times"),
        Case("endless_cell", RIGHT + "\n#" + "x" * 200_000, **both("invalid_cell"), says="100,000"),
        Case("large", RIGHT, verdict="invalid_submission", score=0.0, change=lambda nb: b" " * 6_000_000, says="5 MB"),
        Case("nested_notebook", RIGHT, verdict="invalid_submission", score=0.0, change=lambda nb: b"[" * 4_000_000, says="JSON"),
        Case("symlink", RIGHT, verdict="invalid_submission", score=0.0, change=lambda path: path.symlink_to("correct.ipynb"), says="opened"),
        Case("fifo", RIGHT, verdict="invalid_submission", score=0.0, change=lambda path: os.mkfifo(path), says="regular"),
        *tensors(),
    ]  # fmt: skip


def tensors() -> list[Case]:
    def case(name, body, score, verdicts=("failed", "failed"), before="", **more):
        code = f"import torch\n{before}\ndef double(x):\n    {body}"
        return Case(name, code, verdicts, score, exercise="06_tensors", **more)

    override = "class Fake(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, func, types, args=(), kwargs=None): return torch.tensor(True)"
    return [
        case("torch_right", "return 2 * x", 5.0, ("passed", "passed")),
        case("torch_function", "return x.as_subclass(Fake)", 0.0, ("student_error", "student_error"), before=override),
        case("torch_negative_view", "return torch._neg_view(-2 * x)", 5.0, ("passed", "passed")),
        case("torch_nan", "return x * float('nan')", 0.0),
        case("torch_broadcast", "return (2 * x)[None]", 0.0, says="shape"),
        case("torch_dtype", "return (2 * x).double()", 0.0, says="float64"),
        case("torch_list", "return (2 * x).tolist()", 0.0, says="type list"),
        case("torch_sparse", "return (2 * x).to_sparse()", 0.0, ("student_error", "student_error")),
        # What the task forbids: an operation by any of its names, a function that its source names or does not name, a name.
        case("forbidden_operation", "torch.ops.aten.native_layer_norm(x, (3,), None, None, 1e-5)\n    return 2 * x", 0.0, ("student_error", "student_error"), says="without PyTorch's native_layer_norm"),
        case("forbidden_by_name", "return 2 * copy.deepcopy(x)", 0.0, ("forbidden", "forbidden"), before="import copy", says="without copy.deepcopy (line 4"),
        case("forbidden_unnamed", "return 2 * vars(copy)['deep' + 'copy'](x)", 0.0, ("student_error", "student_error"), before="import copy", says="without copy.deepcopy"),
        case("forbidden_word", "return torch.compile(lambda x: 2 * x)(x)", 0.0, ("forbidden", "forbidden"), says="without compile (line 4"),
    ]  # fmt: skip
