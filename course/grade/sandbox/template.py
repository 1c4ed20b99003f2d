"""A process that has imported torch and holds nothing else; each sandbox begins as a fork of it, not with an import of its own.

It starts with an environment of its own and is told nothing but which modules to import. When the grader asks for a
sandbox it has bubblewrap make the namespaces, around a `cat` that ends when the grader does, and forks. The fork gives
up its rights, enters the namespaces, sees that it is in them, and becomes the driver. No two submissions share a
process, a file or a namespace.

`course grade run` begins anew as ../__main__.py: after the import, and before anything else is read, the template forks
off, so that one import serves both.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys

INFO = 19  # the descriptor on which bwrap says the number of its child
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
ALL = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts")  # a kernel without cgroup's is told to us by bwrap
DROP_BOUND, SUBREAPER, DUMPABLE, NO_NEW_PRIVS = 24, 36, 4, 38  # of prctl
libc = ctypes.CDLL(None, use_errno=True)


def main(options: dict) -> int:
    """The template as a program of its own, whose standard input is the grader's socket."""
    from course.grade.sandbox import driver

    driver.preload(options["preload"])
    return serve(socket.socket(fileno=os.dup(0)), options)


def forked(options: dict) -> tuple[socket.socket, int]:
    """The template as a fork of this process, after the import: its socket and its number. The fork does not return."""
    from course.grade.sandbox import driver

    driver.preload(options["preload"])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if pid := os.fork():
        theirs.close()
        return ours, pid
    ours.close()
    os.close(options["job"])
    os.setsid()  # Ctrl-C is the grader's to answer
    os.chdir("/")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os._exit(serve(theirs, options))


def serve(grader: socket.socket, options: dict) -> int:
    """Sandboxes for the grader, until it closes the socket or ends."""
    signal.signal(signal.SIGCHLD, reap)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)  # what has entered a sandbox is ours to wait for
    here = namespaces()
    while True:
        try:
            message, fds, _, _ = socket.recv_fds(grader, 1 << 16, 3)
        except ConnectionResetError:  # it has ended, and has not read our last reply
            message = b""
        if not message:
            os._exit(0)
        request = json.loads(message)
        try:
            child = start(request, fds, here, options)
            reply = {"child": child}
        except (OSError, ValueError) as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        for fd in fds:
            os.close(fd)
        with contextlib.suppress(BrokenPipeError):  # it has ended: the next message is none
            grader.send(json.dumps(reply).encode())


def reap(*_) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def start(request: dict, fds: list[int], here: dict, options: dict) -> int:
    """The number of a new sandbox's first process. fds: requests, replies, and what `cat` reads."""
    from course.grade.sandbox import driver

    requests, replies, life = fds
    told, info = os.pipe()
    os.dup2(info, INFO, inheritable=False)
    os.close(info)
    driver.join_an_empty_keyring()
    # Whoever is in the sandbox can take its first process' descriptors: none is the grader's, not even its terminal.
    pipe = subprocess.PIPE
    made = subprocess.Popen(
        request["command"], stdin=life, stdout=pipe, stderr=pipe, pass_fds=[INFO], start_new_session=True
    )
    os.close(INFO)
    try:
        about = b""
        while not about.rstrip().endswith(b"}") and (part := os.read(told, 1000)):
            about += part
        child = json.loads(about)["child-pid"]
        # bwrap says the number before it is done; `cat` runs, and copies what the grader wrote, when all is set up.
        if made.stdout.read(1) != b"x":
            raise OSError(f"bubblewrap did not start: {made.stderr.read().decode(errors='replace')[-200:]}")
        entry = os.pidfd_open(child)
        if os.fork() == 0:
            try:
                become_driver(entry, request["uid"], requests, replies, here, options)
            except BaseException as error:
                print(f"course grade: a sandbox did not start: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(1)
        os.close(entry)
        return child
    finally:
        os.close(told)
        made.stdout.close()
        made.stderr.close()


def become_driver(entry: int, uid: int, requests: int, replies: int, here: dict, options: dict) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    done(libc.setns(entry, ALL))
    os.dup2(requests, 0)
    os.dup2(replies, 1)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if os.fork():  # only a child is in the new namespace of processes
        os._exit(0)
    os.setsid()
    give_up_rights()
    os.chdir("/tmp")
    if said := not_inside(here):
        raise OSError(said)
    from course.grade.sandbox import driver

    driver.run(options)


def give_up_rights() -> None:
    """What entering a namespace gave: every capability in it, and the way to new ones by a program that has them."""
    done(libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0))
    capability = 0
    while libc.prctl(DROP_BOUND, capability, 0, 0, 0) == 0:
        capability += 1
    version, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    done(libc.capset(version, nothing))
    done(libc.prctl(DUMPABLE, 1, 0, 0, 0))  # as after an exec; the grader looks at it


def not_inside(here: dict) -> str:
    """ "" if this process is in a sandbox and has no rights in it; looked at from inside, before a student's code comes."""
    with open("/proc/self/status") as file:
        about = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if int(about[name], 16):
            return f"rights are left: {name} {about[name]}"
    if about["NoNewPrivs"] != "1" or "0" in about["Uid"].split():
        return "rights are left"
    shared = [name for name, link in namespaces().items() if link == here[name]]
    return f"not entered: {shared}" if shared else ""


def namespaces() -> dict[str, str]:
    return {name: os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES}


def done(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    OPTIONS = json.loads(sys.argv[1])
    sys.path[:0] = OPTIONS["path"]
    try:
        raise SystemExit(main(OPTIONS))
    except KeyboardInterrupt:  # while it imports
        raise SystemExit(130) from None
