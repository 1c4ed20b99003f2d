"""A Python that has loaded PyTorch, and forks: what it runs starts in a tenth of a second where a new one takes four.

    python fork_server.py serve SOCKET       says "ready" and forks, until its standard input ends; then whom it has refused
    python fork_server.py run SOCKET WORDS   runs WORDS as `python WORDS` would, in a fork

Run as a script: nothing of the course is loaded in it, so a fork finds the course that its own environment names. Linux only.
"""

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import selectors
import signal
import socket
import struct
import sys
import threading
import types
from collections import Counter

# PyTorch and its libraries read these as they are loaded: with others than the server's, a fork would be another program.
READ_AT_IMPORT = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "ATEN_",
    "ONEDNN_",
    "DNNL_",
    "TORCH",
    "PYTORCH_",
    "CUDA",
    "LD_",
)
# The first optimizer of a process loads PyTorch's compiler, in 2 s; checkpoints' tests need the others. No IPython: libraries
# look whether it is loaded.
LOADED = "torch._dynamo", "pytest", "hypothesis.strategies"
FORWARDED = (signal.SIGINT, signal.SIGTERM)
LONGEST = 1 << 20  # bytes of a request
OWN_STREAMS = (0, 1, 2)
MOST_FILES = 253  # that Linux sends at once
UNDERSTOOD = "-c", "-m", "-u"  # of Python's options; with another one it is a new Python
# torchrun's for a rank, read when it joins the others; the size of a flight record, read when it begins; and where compiled
# code is kept, which PyTorch sets for all children as soon as it has compiled something
READ_LATER = (
    "TORCHELASTIC_",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_FR_BUFFER_SIZE",
    "TORCHINDUCTOR_CACHE_DIR",
)


def read_at_import(environment: dict[str, str]) -> dict[str, str]:
    found = {name: value for name, value in environment.items() if name.startswith(READ_AT_IMPORT)}
    return {name: value for name, value in found.items() if not name.startswith(READ_LATER)}


# The server


def serve(path: str) -> list[str] | None:
    """Fork for each that asks. In the server None, at its end; in a fork the words that it is to run."""
    base = [
        place for place in sys.path[1:] if place not in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(16)
    print("ready", flush=True)  # who asks from now on waits for PyTorch
    given = read_at_import(dict(os.environ))  # before PyTorch adds to it
    for module in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # forks look for no garbage among the million objects of PyTorch, whose pages they would have to copy

    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(0, selectors.EVENT_READ)
    children: dict[int, tuple[socket.socket, int]] = {}  # process id -> who asked for it, its pidfd
    refused: Counter[str] = Counter()  # for another value of which variable, how often
    while True:
        for key, _ in waiting.select():
            if key.fileobj == 0:
                for pid in children:
                    end_group(pid)
                with contextlib.suppress(OSError):  # who reads it may have been killed
                    print(json.dumps(refused), flush=True)
                return None
            if key.fileobj is listener:
                asker, _ = listener.accept()
                request, files = received(asker)
                theirs = request["read at import"].items() if request else given.items()
                if request is None or theirs != given.items():
                    refused.update({name for name, _ in theirs ^ given.items()})
                    for one in files:
                        os.close(one)
                    asker.close()  # it starts a Python of its own
                    continue
                namespaces = other_namespaces(asker)
                pid = os.fork()
                if pid == 0:
                    waiting.close()
                    enter(namespaces)
                    for other, pidfd in children.values():
                        other.close()
                        os.close(pidfd)
                    asker.close()
                    listener.close()
                    become(request, files, base)
                    return request["words"]
                for file in files + namespaces:
                    os.close(file)
                tell(asker, "began")
                pidfd = os.pidfd_open(pid)
                children[pid] = asker, pidfd
                waiting.register(asker, selectors.EVENT_READ, pid)
                waiting.register(pidfd, selectors.EVENT_READ, pid)
            elif key.data not in children:  # it has ended in this round
                continue
            elif isinstance(key.fileobj, socket.socket):
                heard(key.fileobj, key.data, waiting)
            else:
                _, status = os.waitpid(key.data, 0)
                asker, pidfd = children.pop(key.data)
                waiting.unregister(pidfd)
                os.close(pidfd)
                if asker in waiting.get_map():
                    waiting.unregister(asker)
                    tell(asker, str(os.waitstatus_to_exitcode(status)))
                asker.close()


def received(asker: socket.socket) -> tuple[dict | None, list[int]]:
    """A request and the files that come with it, the three streams first."""
    size = array.array("i").itemsize
    data, ancillary, _, _ = asker.recvmsg(LONGEST, socket.CMSG_SPACE(MOST_FILES * size))
    files = array.array("i")
    for _, _, sent in ancillary:
        files.frombytes(sent[: len(sent) - len(sent) % size])
    while not data.endswith(b"\n"):
        more = asker.recv(LONGEST)
        if not more:
            return None, list(files)
        data += more
    return json.loads(data), list(files)


def tell(asker: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # it may be gone
        asker.sendall(f"{line}\n".encode())


def heard(asker: socket.socket, pid: int, waiting) -> None:
    """A signal for a fork, or the end of the process that stands for it, which ends the fork and what it has started."""
    try:
        numbers = asker.recv(64)
    except OSError:
        numbers = b""
    for number in numbers:
        os.kill(pid, number)
    if not numbers:
        waiting.unregister(asker)
        end_group(pid)


def end_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def other_namespaces(asker: socket.socket) -> list[int]:
    """The asker's network, and its mounts, where they are not the server's: it may be a host of its own."""
    pid = struct.unpack("3i", asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    try:
        if os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            return []
        return [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY) for kind in ("net", "mnt")]
    except OSError:  # it is gone, and its fork will soon be
        return []


# A fork


def enter(namespaces: list[int]) -> None:
    for namespace in namespaces:  # os.setns is Python 3.12's
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)


def become(request: dict, files: list[int], base: list[str]) -> None:
    """Be as a Python that has just been started with these words and files, in this folder and environment."""
    import fcntl  # here: Windows has none, and imports this module in a test

    os.setsid()
    behind = max(request["files"]) + 1
    aside = [fcntl.fcntl(file, fcntl.F_DUPFD, behind) for file in files]  # one may have another's number
    for file in files:
        os.close(file)
    for number, file in zip(request["files"], aside):
        os.dup2(file, number)
        os.close(file)
    for number in FORWARDED:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.environ.pop("JPY_PARENT_PID", None)  # a kernel's parent is the server
    open_streams()
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    named = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [*(named.split(os.pathsep) if named else []), *base]
    for place in sys.path:  # Python runs the first, and the server's PYTHONPATH may have had another
        if os.path.isfile(os.path.join(place, "sitecustomize.py")):
            sys.modules.pop("sitecustomize", None)
            __import__("sitecustomize")
            break


def open_streams() -> None:
    """New objects for the three streams: the server's were made for its own, which may be files where these are pipes."""
    at_once = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in zip(OWN_STREAMS, ("stdin", "stdout", "stderr")):
        buffering = 0 if number and at_once else io.DEFAULT_BUFFER_SIZE
        stream = io.TextIOWrapper(
            os.fdopen(number, "wb" if number else "rb", buffering, closefd=False),
            encoding=getattr(sys, name).encoding,
            errors="backslashreplace" if name == "stderr" else "strict",
            line_buffering=name == "stderr" or os.isatty(number),
            write_through=at_once,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def run(words: list[str]) -> None:
    """As `python WORDS`: a module after -m, a text after -c, or a script."""
    import runpy

    safe = os.environ.get("PYTHONSAFEPATH")
    if words[0] == "-m":
        sys.argv = words[1:]
        if not safe:
            sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        if not safe:
            sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), vars(main))
    else:
        sys.argv = words
        if not safe:
            sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")


def leave(code: int) -> None:
    """End as Python ends, but give nothing back piece by piece: to take PyTorch apart, a fork would copy it first."""
    threading._shutdown()  # waits for its threads, as multiprocessing's own forks do
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be closed, or nobody reads it any more
            stream.flush()
    os._exit(code)


# Who asks


def inherited() -> list[int]:
    """The files beyond the three streams with which this process was started: what Python opens itself is not inheritable."""
    found = []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(OSError):  # the folder's own, which is closed again
            if number not in OWN_STREAMS and os.get_inheritable(number):
                found.append(number)
    return found


def ask(path: str, words: list[str]) -> int:
    """Have the words run in a fork, and end as it ends. Without a server, or for another environment, be a new Python."""
    files = [*OWN_STREAMS, *inherited()]
    asker = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    unbuffered = words[0] == "-u"  # so does torchrun start its ranks
    request = {
        "words": words[unbuffered:],
        "folder": os.getcwd(),
        "files": files,
        "environment": os.environ | {"PYTHONUNBUFFERED": "1"} if unbuffered else dict(os.environ),
        "read at import": read_at_import(dict(os.environ)),
    }
    data = json.dumps(request).encode() + b"\n"
    began = b""
    if words[0] in UNDERSTOOD or not words[0].startswith("-"):
        with contextlib.suppress(OSError):
            asker.connect(path)
            sent = socket.send_fds(asker, [data], files)
            asker.sendall(data[sent:])
            began = asker.recv(6)
    if began != b"began\n":
        os.execv(sys.executable, [sys.executable, *words])
    for number in FORWARDED:
        signal.signal(number, lambda number, _: asker.send(bytes([number])))
    said = b""
    while not said.endswith(b"\n"):
        more = asker.recv(64)
        if not more:
            return 1  # the server is gone, and all forks with it
        said += more
    code = int(said)
    if code < 0:  # a signal has ended it
        if -code in FORWARDED:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "run":
        sys.exit(ask(sys.argv[2], sys.argv[3:]))
    if (own := serve(sys.argv[2])) is not None:
        try:
            run(own)
        except SystemExit as end:
            if not isinstance(end.code, int | None):  # a text, which Python prints
                raise
            leave(end.code or 0)
        leave(0)
