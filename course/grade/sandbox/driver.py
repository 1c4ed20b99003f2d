"""Runs in the sandbox: calls the student's functions on what the grader sends and replies with values.

It holds no secret and decides nothing. Each request is answered by a fork of the process that has imported torch and
nothing of the student's, so that no check sees what another one did. Requests come on the standard input, replies go
to the standard output; a student's own prints go nowhere.
"""

import builtins
import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
from functools import partial
from types import SimpleNamespace

if __name__ == "__main__":
    OPTIONS = json.loads(sys.argv[1])
    sys.path[:0] = OPTIONS["path"]

from course.exercises.cells import new_names, run_cell
from course.grade.sandbox import protocol
from course.grade.sandbox.calls import close_calls
from course.grade.without import without


def run(options: dict) -> None:
    """Requests come on descriptor 0, replies go to 1."""
    requests, replies = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(nowhere, fd)
    limits(options["limits"])
    close_calls()
    adopt_orphans()
    preload(options["preload"])
    os.dup2(nowhere, 2)  # until here it is ours: an image without PyTorch says so
    channel = Channel(requests, replies)
    channel.send("ready", 0)
    while request := channel.receive():
        if (child := os.fork()) == 0:
            answer(channel, request)
        if options["alone"]:
            see_that_the_grader_lives(child, requests)
        _, status = os.waitpid(child, 0)
        if options["alone"]:  # what the check left running; in this sandbox nothing else is
            end_others()
        channel.send("ended", request["id"], status)


def preload(names: list[str]) -> None:
    gc.disable()  # an import makes much and frees little
    for name in names:
        __import__(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.freeze()  # or the first collection in every fork would copy what it looks at
    gc.enable()


def limits(values: dict[str, int]) -> None:
    """Before anything of the student's runs; soft and hard, for this process and all that come from it."""
    for name, value in values.items():
        number = getattr(resource, f"RLIMIT_{name}", None)
        if number is not None:
            resource.setrlimit(number, (value, value))


def join_an_empty_keyring() -> None:
    """The kernel's session keyring is in no namespace: it may hold the instructor's keys, or what another box left."""
    if sys.platform == "linux" and (keyctl := {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)):
        ctypes.CDLL(None).syscall(keyctl, 1, None)  # KEYCTL_JOIN_SESSION_KEYRING


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind, so that it can wait for their end."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, in Linux


def see_that_the_grader_lives(child: int, requests: int) -> None:
    """Until a check's process ends. When the grader is killed meanwhile, all that is in this sandbox ends too."""
    if not hasattr(os, "pidfd_open"):
        return
    there, watch = os.pidfd_open(child), select.poll()
    watch.register(there, select.POLLIN)
    watch.register(requests, 0)  # its end is told unasked
    if requests in dict(watch.poll()):
        end_others()
        os._exit(1)
    os.close(there)


def end_others() -> None:
    """End every other process of this sandbox, and wait until they are gone: they count against the limit."""
    with contextlib.suppress(OSError):  # ChildProcessError: none is left
        while True:
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)
            os.waitpid(-1, 0)


class Channel:
    def __init__(self, requests: int, replies: int):
        self.requests, self.replies = requests, replies

    def send(self, kind: str, number: int, values=None, **fields) -> None:
        data = memoryview(protocol.pack(kind, number, values, **fields))
        while data:
            data = data[os.write(self.replies, data) :]

    def receive(self) -> dict | None:
        """The next frame; None when the grader has gone."""
        prefix = self.exactly(protocol.PREFIX.size)
        if not prefix:
            return None
        header, body = protocol.lengths(prefix)
        return protocol.unpack(self.exactly(header), self.exactly(body))

    def exactly(self, length: int) -> bytes:
        parts = []
        while length and (part := os.read(self.requests, min(length, 1 << 20))):
            parts.append(part)
            length -= len(part)
        return b"".join(parts)


def answer(channel: Channel, request: dict) -> None:
    """In a fork: one request, one reply, and the end."""
    number = request["id"]
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if request["kind"] == "serve":
            serve(channel, request)
        else:
            names = names_after(channel, request)
            channel.send("at", number, task="call")
            with without(request["task"], request.get("forbids", ()), names):
                given = {"run": results, "check": refused}[request["kind"]](channel, request, names)
            channel.send("value", number, given)
    except BaseException as error:
        channel.send("error", number, **described(error))
    finally:
        os._exit(0)


def names_after(channel: Channel, request: dict) -> dict:
    """All names after the cells ran in the notebook's order. An error in another task's cell is that task's alone."""
    names = new_names(STUDENT=request["student"])
    for task, code in request["cells"]:
        if task:
            channel.send("at", request["id"], task=task)
        try:
            with without(task, request.get("forbids", ()) if task == request["task"] else (), names):
                run_cell(task or "given", code, names)
        except BaseException:  # SystemExit too
            if task == request["task"]:
                raise
        names["STUDENT"] = request["student"]
    return names


def results(channel: Channel, request: dict, names: dict) -> list:
    """What the solution gives for each tuple of arguments; if asked `after`, each with the arguments as it leaves them."""
    if request["harness"]:
        scope = {}
        exec(compile(request["harness"], "<harness>", "exec"), scope)
        function = partial(scope[request["call"]], SimpleNamespace(**names))
    else:
        function = names[request["call"]]
    given = [function(*args) if callable(function) else function for args in request["values"]]
    return list(zip(given, request["values"])) if request.get("after") else given


def refused(channel: Channel, request: dict, names: dict) -> str | None:
    """What the student's check raised for an implementation that only the grader can see; None if it accepts it."""

    def implementation(*args, **kwargs):
        channel.send("call", request["id"], [args, kwargs])
        reply = channel.receive()
        if reply["kind"] == "error":
            raise exception(reply)
        result, after, named = reply["values"]
        for mine, theirs in [*zip(args, after), *((kwargs[name], named[name]) for name in kwargs)]:
            write_back(mine, theirs)
        return result

    implementation.__name__ = request["subject"]
    try:
        names[request["call"]](implementation)
    except Exception as error:
        return described(error)["message"]
    return None


def serve(channel: Channel, request: dict) -> None:
    """Implementations of ours, one after another, each for as many calls as come."""
    while request and request["kind"] in ("serve", "call"):
        if request["kind"] == "serve":
            scope, subject = {}, request["subject"]
            exec(compile(request["code"], f"<{subject}>", "exec"), scope)
        else:
            args, kwargs = request["values"]
            try:
                result = scope[subject](*args, **kwargs)
                channel.send("answer", request["id"], [result, args, kwargs])
            except Exception as error:
                channel.send("error", request["id"], **described(error))
        request = channel.receive()


def write_back(mine, theirs) -> None:
    """An argument that the implementation changed is changed for its caller too."""
    if isinstance(mine, list):
        mine[:] = theirs
    elif isinstance(mine, dict):
        mine.clear()
        mine.update(theirs)
    elif hasattr(mine, "set_state"):
        mine.set_state(theirs.get_state())
    elif hasattr(mine, "shape") and mine.shape:
        mine = mine.detach() if hasattr(mine, "detach") else mine
        mine[...] = theirs


def exception(reply: dict) -> Exception:
    kind = getattr(builtins, reply["type"], RuntimeError)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    try:
        return kind(reply["message"].partition(": ")[2])
    except TypeError:  # UnicodeDecodeError and its like take more than a text
        return RuntimeError(reply["message"])


def described(error: BaseException) -> dict:
    """An error's type, and its text with the line of the cell that it came from. Never raises."""
    kind = type(error).__name__
    try:
        text, place = str(error), ""
        trace = error.__traceback__
        while trace:
            name = trace.tb_frame.f_code.co_filename
            if name.startswith("<") and name[1:3].isdigit():
                place = f" ({name[1:-1]}, line {trace.tb_lineno})"
            trace = trace.tb_next
        says = f"{kind}: {text}" if text else kind
        return {"type": kind[:100], "message": says[: protocol.MAX_TEXT] + place}
    except BaseException:
        return {"type": "Exception", "message": "an error whose text cannot be read"}


if __name__ == "__main__":
    join_an_empty_keyring()
    run(OPTIONS)
