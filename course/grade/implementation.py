"""The other side of a student's check: an implementation of ours, called with the student's arguments."""

import time

from course.grade import protocol
from course.grade.boxes import Ended
from course.grade.checks import CheckOfCheck
from course.grade.warm import Boxes


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
