"""The other side of a student's check: implementations of ours, called with the student's arguments."""

import time

from course.exercises.checks import CheckOfCheck
from course.grade.sandbox import protocol
from course.grade.sandbox.boxes import Ended
from course.grade.sandbox.warm import Boxes


class Implementation:
    """What a student's check is tried on. It runs in a box of ours and takes the student's arguments as data.

    One process serves all implementations of a check, since it holds nothing of the student's.
    """

    def __init__(self, boxes: Boxes, check: CheckOfCheck):
        self.boxes, self.check, self.box = boxes, check, None

    def become(self, code: str) -> None:
        self.box = self.box or self.boxes.ready()
        request = protocol.pack("serve", 0, code=code, subject=self.check.subject)
        self.box.send(request, time.monotonic() + self.check.seconds)

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
