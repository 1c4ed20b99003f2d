"""System calls that a sandbox does without, closed by a seccomp filter before any code of a student's runs.

No namespace holds AF_VSOCK, which reaches the machine that a virtual machine runs on; io_uring does its work where no filter
sees it. Neither is needed: sockets are those of a network that is not there, and of pipes between processes.
"""

import ctypes
import os
import struct
import sys

MACHINES = {  # AUDIT_ARCH of linux/audit.h, and the number of `socket`
    "x86_64": (0xC000003E, 41),
    "aarch64": (0xC00000B7, 198),
}
FAMILIES = 1, 2, 10  # AF_UNIX, AF_INET, AF_INET6
IO_URING = 425, 426, 427  # setup, enter, register: the same on both machines
OTHER_ABI = 0x4000_0000  # from here on numbers of x32
NUMBER, MACHINE, FIRST_ARGUMENT = 0, 4, 16  # where they are in struct seccomp_data
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, REFUSE = 0x7FFF_0000, 0x0005_0000  # | errno
NOT_THERE, NO_FAMILY = 38, 97  # ENOSYS, EAFNOSUPPORT
NO_NEW_PRIVS, SECCOMP, FILTER = 38, 22, 2  # prctl's


def program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter as (code, steps if true, steps if false, value); steps count from the next line."""
    audit, socket = MACHINES[machine]
    refused = [(EQUAL, 0, 1, number) for number in IO_URING]
    lines = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, audit), (RETURN, 0, 0, REFUSE | NOT_THERE)]
    lines += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, OTHER_ABI), (RETURN, 0, 0, REFUSE | NOT_THERE)]
    for test in refused:
        lines += [test, (RETURN, 0, 0, REFUSE | NOT_THERE)]
    lines += [(EQUAL, 1, 0, socket), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, FIRST_ARGUMENT)]
    for family in FAMILIES:
        lines += [(EQUAL, 0, 1, family), (RETURN, 0, 0, ALLOW)]
    return [*lines, (RETURN, 0, 0, REFUSE | NO_FAMILY)]


def close_calls() -> bool:
    """Close them for this process and all that come from it; whether the kernel has done it. False elsewhere than in Linux."""
    machine = os.uname().machine if sys.platform == "linux" else ""
    if machine not in MACHINES:
        return False
    lines = b"".join(struct.pack("HBBI", *line) for line in program(machine))
    text = ctypes.create_string_buffer(lines, len(lines))
    head = struct.pack("HxxxxxxP", len(lines) // 8, ctypes.addressof(text))
    libc = ctypes.CDLL(None)
    return not (libc.prctl(NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(SECCOMP, FILTER, head, 0, 0))
