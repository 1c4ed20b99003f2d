"""Grading one submission after another: what decides a score happens here, on our side."""

import contextlib
import hashlib
import math
import re
import secrets
import signal
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import torch

from course.exercises import ExerciseSet
from course.grade import local, protocol
from course.grade.checks import Check, CheckOfCheck, drawn_for
from course.grade.sandbox import Box, Ended, SandboxError
from course.grade.submission import Found, Invalid, Submission, read

MAX_FRAMES = 5000  # of one check: calls of an implementation, cells that begin
LIBRARIES = re.compile(r"^(?:from|import) (torch|numpy|nanogpt\.\w+|nanogpt|course\.\w+)\b", re.MULTILINE)


@dataclass
class Options:
    backend: str
    seconds: float | None = None  # in place of every check's own limit
    image: str = ""
    ahead: bool = True  # start the next submission's sandbox early; one alone needs none


def preload(source: str) -> list[str]:
    """What an exercise's cells import and takes time: the sandbox has it before the submission comes."""
    names = set(LIBRARIES.findall(source))
    if "nanogpt.model" in source:  # the first GPT that is built imports it, in 1.3 s: once, not in every fork
        names.add("torch._dynamo")
    return sorted(names)


class StudentError(Exception):
    """The student's code raised; the text is theirs."""


class Boxes:
    """The box at hand; and, for submissions, the next one, which starts while this one works."""

    def __init__(self, options: Options, names: list[str], ahead: bool = True):
        self.start = lambda: Box(options.backend, names, options.image)
        self.ahead = ahead
        self.current: Box | None = None
        self.spare: Box | None = self.start()

    def ready(self) -> Box:
        if self.current is None:
            self.current, self.spare = self.spare or self.start(), None
            self.current.wait()
            self.spare = self.start() if self.ahead else None
        return self.current

    def end(self) -> None:
        """The box at hand and all in it; the next request gets a fresh one."""
        box, self.current = self.current, None
        if box:
            box.close()

    def close(self) -> None:
        self.end()
        self.current, self.spare = self.spare, None
        self.end()


class Grader:
    """One exercise; grades submissions one after another."""

    def __init__(self, made: ExerciseSet, options: Options):
        self.made, self.options = made, options
        self.names = preload((made.folder / "exercise.py").read_text(encoding="utf-8"))
        self.boxes = Boxes(options, self.names, options.ahead)
        self.ours: Boxes | None = None  # for the implementations that students' checks are tried on
        self.number, self.at = 0, ""  # of the request, and the task whose cell the sandbox has begun

    def close(self) -> None:
        for boxes in filter(None, (self.boxes, self.ours)):
            with contextlib.suppress(SandboxError):
                boxes.close()

    def grade(self, found: Found) -> dict:
        """The result of a submission, whatever it is. Its own exceptions are verdicts, ours are infrastructure_error."""
        began, result = time.monotonic(), empty_result(self.made, found, self.options.backend)
        try:
            submission = read(found, self.made)
            result |= {"sha256": submission.sha256, "solutions": submission.solutions}
            for task, text in submission.manual.items():
                result["manual"][task]["text"] = text
            self.checks(found.student, submission, result)
            result["verdict"] = "graded"
        except Invalid as problem:
            result |= {"verdict": "invalid_submission", "message": str(problem)}
        except Exception as error:
            result |= {
                "verdict": "infrastructure_error",
                "score": None,
                "message": f"{type(error).__name__}: {error}",
            }
        finally:
            with contextlib.suppress(SandboxError):
                self.boxes.end()
        result["seconds"] = round(time.monotonic() - began, 3)
        return result

    def checks(self, student: str, submission: Submission, result: dict) -> None:
        broken: dict[str, Ended] = {}  # tasks whose cell alone does not end
        for check in self.made.checks:
            task = result["tasks"][check.task]
            points, verdict, said = self.verdict(check, student, submission.solutions, broken)
            row = {"name": check.name, "points": round(points, 4), "max_points": float(check.points)}
            task["checks"].append(row | {"hidden": check.hidden, "verdict": verdict, "message": said})
            task["points"] = round(task["points"] + points, 4)
        result["score"] = round(sum(task["points"] for task in result["tasks"].values()), 4)

    def verdict(self, check, student: str, solutions: dict, broken: dict) -> tuple[float, str, str]:
        """Points, verdict and message of one check."""
        if check.task in broken:
            return 0.0, broken[check.task].verdict, str(broken[check.task])
        decide = self.check_of_check if isinstance(check, CheckOfCheck) else self.compared
        cells = self.cells(solutions, broken)
        try:
            return decide(check, student, cells)
        except StudentError as error:
            return 0.0, "student_error", clean(str(error))
        except Ended as ended:
            self.boxes.end()
            at = self.at
            if at in solutions and at != "student":
                # The cell of one task does not end: the others are graded without it.
                broken[at] = ended
                if at != check.task:
                    return self.verdict(check, student, solutions, broken)
            return 0.0, ended.verdict, clean(str(ended))

    def cells(self, solutions: dict[str, str], broken: dict) -> list[tuple[str, str]]:
        """The cells that run before a check, in the notebook's order: given ones are ours, not the submission's."""
        cells = []
        for cell in self.made.cells:
            if cell.kind == "given":
                cells.append(("", cell.source))
            elif cell.kind == "solution" and cell.task not in broken:
                cells.append((cell.task, solutions[cell.task]))
        return cells

    def compared(self, check: Check, student: str, cells: list) -> tuple[float, str, str]:
        arguments = check.inputs(drawn_for(student, check))
        names = local.names_of(self.made, self.made.solutions, student)
        expected = local.results(check, names, arguments)
        call = check.call if isinstance(check.call, str) else check.call.__name__
        header = {"cells": cells, "task": check.task, "student": student, "call": call}
        box, deadline = self.ask("run", arguments, check, **header, harness=check.harness)
        got = self.answer(box, deadline)
        if not isinstance(got, list) or len(got) != len(arguments):
            raise Ended("bad_reply", "the reply has not the results that were asked for")
        said = judged(check, got, expected, arguments)
        if not said:
            return float(check.points), "passed", ""
        misconception = local.misconception(self.made, check, got, arguments, student)
        return 0.0, "failed", clean(f"{misconception} ({said})" if misconception else said)

    def check_of_check(self, check: CheckOfCheck, student: str, cells: list) -> tuple[float, str, str]:
        """Nothing where a right implementation is refused, else points by the share of wrong ones refused."""
        tried = [(code, "") for code in check.right] + [(code, name) for name, code in check.wrong.items()]
        secrets.SystemRandom().shuffle(tried)  # the order tells nothing of which is which
        refused, accepted = "", []
        for code, name in tried:
            said = self.refusal(check, student, cells, code)
            if not name and said is not None:
                refused = said
            elif name and said is None:
                accepted.append(name)
        if refused:
            return 0.0, "failed", clean(f"it refuses a right implementation: {refused}")
        points = check.points * (len(check.wrong) - len(accepted)) / len(check.wrong)
        said = "; ".join(f"it accepts: {name}" for name in check.wrong if name in accepted)
        return points, "failed" if accepted else "passed", said

    def refusal(self, check: CheckOfCheck, student: str, cells: list, code: str) -> str | None:
        """What the student's check says against an implementation, None if nothing."""
        self.ours = self.ours or Boxes(self.options, self.names, ahead=False)
        implementation = Implementation(self.ours, check, code)
        try:
            header = {"cells": cells, "task": check.task, "student": student, "call": check.check}
            box, deadline = self.ask("check", None, check, **header, subject=check.subject)
            said = self.answer(box, deadline, implementation)
        finally:
            implementation.close()
        if not isinstance(said, str | None):
            raise Ended("bad_reply", "the reply is not what a check gives")
        return said

    def ask(self, kind: str, values, check, **header) -> tuple[Box, float]:
        box = self.boxes.ready()
        self.number, self.at = self.number + 1, ""
        deadline = time.monotonic() + (self.options.seconds or check.seconds)
        box.send(protocol.pack(kind, self.number, values, **header), deadline)
        return box, deadline

    def answer(self, box: Box, deadline: float, implementation=None):
        """The value that a request is answered with. Every field of a frame is a stranger's."""
        values, error = [], None
        for _ in range(MAX_FRAMES):
            frame = box.receive(deadline)
            kind, about = frame["kind"], frame.get("task" if frame["kind"] == "at" else "message", "")
            if frame["id"] != self.number or not isinstance(about, str):
                raise Ended("bad_reply", "a reply to nothing that was asked")
            if kind == "at":
                self.at = about
            elif kind == "call" and implementation:
                box.send(implementation.reply(frame, deadline), deadline)
            elif kind == "value":
                values.append(frame["values"])
            elif kind == "error":
                error = error or StudentError(about)
            elif kind == "ended":
                if error:
                    raise error
                if len(values) != 1:
                    raise Ended("crashed" if not values else "bad_reply", how_it_ended(frame["values"]))
                return values[0]
            else:
                raise Ended("bad_reply", "a reply of unknown kind")
        raise Ended("output_limit", f"more than {MAX_FRAMES} messages")


class Implementation:
    """One that a student's check is tried on. It runs in a box of ours and takes the student's arguments as data."""

    def __init__(self, boxes: Boxes, check: CheckOfCheck, code: str):
        self.boxes, self.box = boxes, boxes.ready()
        request = protocol.pack("serve", 0, code=code, subject=check.subject)
        self.box.send(request, time.monotonic() + check.seconds)

    def reply(self, call: dict, deadline: float) -> bytes:
        """What it gives, or the error that it raises; one that gives nothing in time or memory is an error too."""
        try:
            if self.box is None:
                raise Ended("crashed", "it ended earlier")
            self.box.send(call["raw"], deadline)
            given = self.box.receive(deadline)
            if given["kind"] not in ("answer", "error") or given["id"] != call["id"]:
                raise Ended("crashed", "it ended")
            if given["kind"] == "answer":
                return given["raw"]
            return protocol.pack("error", call["id"], type=given["type"], message=given["message"])
        except Ended:
            self.close(whole=False)
            text = "RuntimeError: the implementation gave no answer to these arguments"
            return protocol.pack("error", call["id"], type="RuntimeError", message=text)

    def close(self, whole: bool = True) -> None:
        box, self.box = self.box, None
        if box is None:
            return
        try:
            deadline = time.monotonic() + 5
            box.send(protocol.pack("done", 0), deadline)
            whole = whole and box.receive(deadline)["kind"] == "ended"
        except Ended:
            whole = False
        if not whole:
            self.boxes.end()


def judged(check: Check, got: list, expected: list, arguments: list) -> str:
    """local.judged, for values of a stranger: finite where ours are, and of a form that the judge can read."""
    for g, e in zip(got, expected):
        if said := form(g, e):
            return said
    try:
        with time_limit(check.seconds):
            return local.judged(check, got, expected, arguments)
    except Exception as error:
        local.judged(check, expected, expected, arguments)  # raises where the fault is ours
        return f"the result has a form that cannot be judged ({type(error).__name__}: {error})"


def form(got, expected) -> str:
    """What is wrong with a result before its numbers are looked at: a judge need not think of it."""
    if isinstance(expected, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            return f"the result is of type {type(got).__name__}, where a tensor is due"
        if got.dtype != expected.dtype:
            return f"the result is in {got.dtype}, not {expected.dtype}"
        if got.shape != expected.shape:
            return f"the result has the shape {tuple(got.shape)}, not {tuple(expected.shape)}"
    return "the result is not finite" if finite(expected) and not finite(got) else ""


@contextlib.contextmanager
def time_limit(seconds: float):
    """For our own code on a stranger's values: TimeoutError when it takes longer."""

    def stop(*_):
        raise TimeoutError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def finite(value) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, torch.Tensor):
        return bool(value.isfinite().all())
    if isinstance(value, np.ndarray):
        return bool(np.isfinite(value).all())
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    return all(map(finite, value)) if isinstance(value, list | tuple) else True


def how_it_ended(status) -> str:
    """The text for a process that ended without a reply; `status` is what waitpid gives."""
    if type(status) is int and 0 < (number := status & 0x7F) < 0x7F:
        with contextlib.suppress(ValueError):
            return f"the process was ended by {signal.Signals(number).name}"
    return "the process ended without a result"


def clean(text: str) -> str:
    """A message that any file can hold, and not a long one."""
    return text.encode("utf-8", "replace").decode()[: protocol.MAX_TEXT]


def empty_result(made: ExerciseSet, found: Found, backend: str) -> dict:
    tasks = {check.task: made.tasks[check.task].title for check in made.checks}
    return {
        "format": 1,
        "exercise": made.name,
        "student": found.student,
        "submitted": found.submitted,
        "file": found.path.name,
        "sha256": "",
        "exercise_sha256": fingerprint(made),
        "graded": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "verdict": "",
        "message": "",
        "backend": backend,
        "seconds": 0.0,
        "score": 0.0,
        "max_score": float(sum(check.points for check in made.checks) + sum(made.manual.values())),
        "tasks": {
            task: {"title": title, "points": 0.0, "max_points": float(points_of(made, task)), "checks": []}
            for task, title in tasks.items()
        },
        "manual": {
            task: {
                "title": made.tasks[task].title,
                "text": "",
                "points": None,
                "max_points": float(points),
                "comment": "",
            }
            for task, points in made.manual.items()
        },
        "solutions": {},
    }


def points_of(made: ExerciseSet, task: str) -> float:
    return sum(check.points for check in made.checks if check.task == task)


def fingerprint(made: ExerciseSet) -> str:
    """Changes when the exercise or its checks do."""
    texts = [(made.folder / name).read_bytes() for name in ("exercise.py", "checks.py")]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
