"""The filter of system calls: which it refuses, on both machines, and that the kernel does what it says."""

import os
import socket
import sys

import pytest

from course.grade.sandbox import calls
from course.grade.sandbox.calls import ALLOW, MACHINES, NO_FAMILY, NOT_THERE, REFUSE


def verdict(lines, number: int, audit: int, argument: int) -> int:
    """What the kernel's interpreter answers."""
    data, at, held = {calls.NUMBER: number, calls.MACHINE: audit, calls.FIRST_ARGUMENT: argument}, 0, 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        if code == calls.RETURN:
            return value
        if code == calls.LOAD:
            held = data[value]
        else:
            true = {calls.EQUAL: held == value, calls.AT_LEAST: held >= value}[code]
            at += yes if true else no


@pytest.mark.parametrize("machine", MACHINES)
def test_the_filter_refuses_io_uring_other_families_and_other_machines(machine):
    lines, (audit, socket_call) = calls.program(machine), MACHINES[machine]
    for number in (0, 1, 59, 221, 424, 428, 462):
        assert verdict(lines, number, audit, 40) == ALLOW
    for number in calls.IO_URING:
        assert verdict(lines, number, audit, 0) == REFUSE | NOT_THERE
    for family in range(64):
        due = ALLOW if family in calls.FAMILIES else REFUSE | NO_FAMILY
        assert verdict(lines, socket_call, audit, family) == due
    assert verdict(lines, calls.OTHER_ABI + socket_call, audit, 1) == REFUSE | NOT_THERE
    assert verdict(lines, 1, 0x40000003, 0) == REFUSE | NOT_THERE, "calls of 32 bits have other numbers"


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine not in MACHINES, reason="a filter of Linux")
def test_the_kernel_refuses_what_the_filter_says():
    socket.socket(16, socket.SOCK_RAW).close()  # netlink, which every Linux has: open before
    child = os.fork()
    if child == 0:
        wrong = 1
        try:
            if calls.close_calls():
                socket.socketpair()
                socket.socket().close()
                socket.socket(16, socket.SOCK_RAW)
                wrong = 2
        except OSError as error:
            wrong = 0 if error.errno == NO_FAMILY else 3
        finally:
            os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
