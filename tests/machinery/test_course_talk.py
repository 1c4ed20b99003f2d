"""`course doctor --distributed`: two processes that really talk, and one line for whatever keeps them from it."""

import os
import socket
import subprocess
import sys
import time

import psutil

from course.cli import main
from course.machine import talk
from course.machine.doctor import GREEN, RED, YELLOW


def test_two_processes_talk_and_the_doctor_says_how_fast(capsys):
    assert main(["doctor", "--distributed"]) == 0, capsys.readouterr().out
    processes, rate = capsys.readouterr().out.splitlines()
    assert processes.split()[:3] == [GREEN, "processes", "2"]
    assert rate.split()[0] in (GREEN, YELLOW) and "GB/s" in rate, rate


def test_an_interface_that_is_not_there_is_red_and_names_those_that_are(monkeypatch, capsys):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    assert main(["doctor", "--distributed"]) == 1
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and said.startswith(RED), said
    assert "nosuch0" in said and talk.interfaces()[0] in said


def test_processes_that_do_not_end_are_ended(monkeypatch, capsys):
    monkeypatch.setattr(talk, "LIMIT", 0.5)
    assert talk.doctor_distributed() == 1
    assert "have not ended within 0.5 s" in capsys.readouterr().out
    deadline, ours = time.monotonic() + 60, psutil.Process()
    while left := [p for p in ours.children(recursive=True) if "course.machine.talk" in p.cmdline()]:
        assert time.monotonic() < deadline, f"still running: {left}"
        time.sleep(0.1)


def test_a_process_that_is_alone_says_so_in_time_and_does_not_wait_for_ever():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    env = os.environ | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{port}"}
    hurry = "import sys; from course.machine import talk; talk.WAIT = 1.0; sys.exit(talk.main())"
    done = subprocess.run([sys.executable, "-c", hurry], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stdout.startswith(RED), done.stdout


def test_nccl_that_fails_where_gloo_works_is_told_apart(monkeypatch, capsys):
    def found_here():
        yield from talk.gloo_findings(2, 0.001)
        raise RuntimeError("unhandled system error")

    monkeypatch.setattr(talk, "found_here", found_here)
    monkeypatch.setenv("RANK", "0")
    assert talk.main() == 1
    processes, rate, failed = capsys.readouterr().out.splitlines()
    assert processes.startswith(GREEN) and rate.startswith(GREEN)
    assert failed.split()[:2] == [RED, "NCCL"] and "NCCL_DEBUG=INFO" in failed


def test_a_slow_network_is_yellow():
    _, rate = talk.gloo_findings(2, 1.0)
    assert rate.colour == YELLOW and "about 119 s a step" in rate.text, rate
