"""Grading one submission after another: what decides a score happens here, on our side."""

import contextlib
import secrets
import signal
import time
from dataclasses import replace

from course.exercises.checks import Check, CheckOfCheck, drawn_for
from course.exercises.sets import ExerciseSet
from course.grade.sandbox import protocol
from course.grade.sandbox.boxes import Box, Ended, SandboxError
from course.grade.sandbox.warm import Boxes, Options, Template, preload
from course.grade.score import local
from course.grade.score.implementation import Implementation
from course.grade.score.judge import judged
from course.grade.score.record import empty_result
from course.grade.submission import Found, Invalid, Submission, read
from course.grade.without import found

MAX_FRAMES = 5000  # of one check: calls of an implementation, cells that begin


class StudentError(Exception):
    """The student's code raised; the text is theirs."""


class Grader:
    """One exercise; grades submissions one after another."""

    def __init__(self, made: ExerciseSet, options: Options, template: Template | None = None):
        self.made, self.options, self.names = made, options, preload(made.folder)
        if options.backend == "bubblewrap":
            template = template or Template.started(self.names)
        self.template, self.boxes = template, Boxes(options, self.names, template)
        self.ours: Boxes | None = None  # for the implementations that students' checks are tried on
        self.number, self.at = 0, ""  # of the request, and the task whose cell the sandbox has begun

    def close(self) -> None:
        for these in filter(None, (self.boxes, self.ours, self.template)):
            with contextlib.suppress(SandboxError):
                these.close()

    def grade(self, found: Found) -> dict:
        """The result of a submission, whatever it is. Its own exceptions are verdicts, ours are infrastructure_error."""
        began, result = time.monotonic(), empty_result(self.made, found, self.options.backend)
        try:
            submission = read(found, self.made)
            result |= {"sha256": submission.sha256, "solutions": submission.solutions}
            for task, text in submission.manual.items():
                result["manual"][task]["text"] = text
            for task in submission.problems.keys() & result["manual"].keys():
                result["manual"][task] |= {"points": 0.0, "comment": submission.problems[task]}
            result["message"] = clean("; ".join(submission.problems.values()))
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
        # tasks whose cell cannot be taken, or alone does not end
        broken = {task: Ended("invalid_cell", said) for task, said in submission.problems.items()}
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
        if said := found(check.task, solutions[check.task], self.made.forbids.get(check.task, ())):
            return 0.0, "forbidden", clean(said)
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
        call = check.call if isinstance(check.call, str) else check.call.__name__
        header = {"cells": cells, "student": student, "call": call, "after": True}
        box, deadline = self.ask("run", arguments, check, **header, harness=check.harness)
        began = time.monotonic()  # what is due is computed while the sandbox works, and not in its time
        expected = local.results(check, local.names_of(self.made, self.made.solutions, student), arguments)
        got = self.answer(box, deadline + time.monotonic() - began)
        if not is_asked_for(got, arguments):
            raise Ended("bad_reply", "the reply has not the results that were asked for")
        got, after = [given for given, _ in got], [args for _, args in got]
        if not (said := judged(check, got, expected, arguments)):
            if damage := local.damaged(self.made, check, arguments, after, student):
                return 0.0, "failed", clean(damage)
            return float(check.points), "passed", ""
        misconception = local.misconception(self.made, check, got, arguments, student)
        return 0.0, "failed", clean(f"{misconception} ({said})" if misconception else said)

    def check_of_check(self, check: CheckOfCheck, student: str, cells: list) -> tuple[float, str, str]:
        """Nothing where a right implementation is refused, else points by the share of wrong ones refused."""
        self.ours = self.ours or Boxes(replace(self.options, ahead=False), self.names, self.template)
        implementation, refused, accepted = Implementation(self.ours, check), "", []
        try:
            for code, name, begins in tried(check):
                if begins:
                    self.boxes.end()  # with what the check noted there
                implementation.become(code)
                said = self.refusal(check, student, cells, implementation)
                if not name and said is not None:
                    refused = said
                elif name and said is None:
                    accepted.append(name)
        finally:
            implementation.close()
        if refused:
            return 0.0, "failed", clean(f"it refuses a right implementation: {refused}")
        points = check.points * (len(check.wrong) - len(accepted)) / len(check.wrong)
        said = "; ".join(f"it accepts: {name}" for name in check.wrong if name in accepted)
        return points, "failed" if accepted else "passed", said

    def refusal(
        self, check: CheckOfCheck, student: str, cells: list, implementation: Implementation
    ) -> str | None:
        """What the student's check says against an implementation, None if nothing."""
        header = {"cells": cells, "student": student, "call": check.check}
        box, deadline = self.ask("check", None, check, **header, subject=check.subject)
        said = self.answer(box, deadline, implementation)
        if not isinstance(said, str | None):
            raise Ended("bad_reply", "the reply is not what a check gives")
        return said

    def ask(self, kind: str, values, check, **header) -> tuple[Box, float]:
        box = self.boxes.ready()
        self.number, self.at = self.number + 1, ""
        deadline = time.monotonic() + (self.options.seconds or check.seconds)
        header |= {"task": check.task, "forbids": self.made.forbids.get(check.task, ())}
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
            elif kind == "value" and not values:
                values = [frame["values"]]
            elif kind == "value":  # a third and a thousandth would fill our memory
                raise Ended("bad_reply", "more than one reply")
            elif kind == "error":
                error = error or StudentError(about)
            elif kind == "ended":
                if error:
                    raise error
                if not values:
                    raise Ended("crashed", how_it_ended(frame["values"]))
                return values[0]
            else:
                raise Ended("bad_reply", "a reply of unknown kind")
        raise Ended(
            "output_limit", f"more than {MAX_FRAMES:,} messages: a check calls what it is given less often"
        )


def is_asked_for(reply, arguments: list[tuple]) -> bool:
    """Whether a reply has the form of what was asked: for each tuple of arguments a result, and the arguments as they are then."""
    are_pairs = isinstance(reply, list) and all(isinstance(one, tuple) and len(one) == 2 for one in reply)
    return are_pairs and [len(args) for _, args in reply if isinstance(args, tuple)] == [*map(len, arguments)]


def tried(check: CheckOfCheck):
    """Implementations, each with what is wrong with it, and whether a new box begins with it. Each box sees one right one: of
    two a check that takes notes would see that they do the same, and refuse all others without knowing what is right."""
    shuffle = secrets.SystemRandom().shuffle  # the order tells nothing of which is which
    wrong = [(code, name) for name, code in check.wrong.items()]
    shuffle(wrong)
    for i, code in enumerate(check.right):
        part = [(code, ""), *wrong[i :: len(check.right)]]
        shuffle(part)
        for n, one in enumerate(part):
            yield *one, n == 0


def how_it_ended(status) -> str:
    """The text for a process that ended without a reply; `status` is what waitpid gives."""
    if type(status) is int and 0 < (number := status & 0x7F) < 0x7F:
        with contextlib.suppress(ValueError):
            return f"the process was ended by {signal.Signals(number).name}"
    return "the process ended without a result"


def clean(text: str) -> str:
    """A message that any file can hold, and not a long one."""
    return text.encode("utf-8", "replace").decode()[: protocol.MAX_TEXT]
