"""`course doctor --distributed`: two processes that really talk, and one line for whatever keeps them from it."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from course.cli import main
from course.machine import talk
from course.machine.doctor import GREEN, RED, YELLOW


def test_two_processes_talk_and_the_doctor_says_over_what_and_how_fast(capsys):
    assert main(["doctor", "--distributed"]) == 0, capsys.readouterr().out
    processes, rate, nccl = capsys.readouterr().out.splitlines()
    assert processes.split()[:2] == [GREEN, "processes"] and "2 talk by gloo over " in processes
    assert any(f"{name} (" in processes for name in psutil.net_if_addrs()), (
        f"no interface of here: {processes}"
    )
    assert rate.split()[0] in (GREEN, YELLOW) and "4 KiB in " in rate and "GB/s" in rate, rate
    assert nccl.split()[:2] == [GREEN, "NCCL"], nccl


def test_an_interface_that_is_not_there_is_red_and_names_those_that_are(monkeypatch, capsys):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    assert main(["doctor", "--distributed"]) == 1
    said = capsys.readouterr().out
    assert said.count("\n") == 1 and said.startswith(RED), said
    assert (
        f"GLOO_SOCKET_IFNAME=nosuch0 names no interface that is up; take one of {talk.interfaces()[0]}"
        in said
    )


def test_processes_that_do_not_end_are_ended(monkeypatch):
    monkeypatch.setattr(talk, "LIMIT", 0.5)
    began = time.monotonic()
    (finding,) = talk.two_processes()
    assert finding.colour == RED and "have not ended within 0.5 s" in finding.text, finding
    assert time.monotonic() - began < 5, "it takes longer than it says"
    left = [p for p in psutil.Process().children() if "course.machine.talk" in p.cmdline()]
    assert not left, f"still running: {left}"


def test_a_process_that_is_alone_says_so_in_time_and_does_not_wait_for_ever(tmp_path):
    env = os.environ | {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(talk.free_port())}
    hurry = "import sys; from course.machine import talk; talk.WAIT = 1.0; sys.exit(talk.main(['--json']))"
    done = subprocess.run([sys.executable, "-c", hurry], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "error" in json.loads(done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.parametrize(
    "facts, words",
    [
        ({"nccl": None, "gpus": 0, "times": []}, "none in this PyTorch"),
        ({"nccl": "2.27.5", "gpus": 0, "times": []}, "2.27.5, unused: no GPU here"),
        (
            {"nccl": "2.27.5", "gpus": 1, "times": []},
            "2.27.5, unused: 1 GPU here, and it takes one a process",
        ),
        ({"nccl": "2.27.5", "gpus": 2, "times": [(1 << 20, 0.0001)]}, "2.27.5, on GPUs: 1 MiB in 0.1 ms"),
    ],
)
def test_which_nccl(facts, words):
    (finding,) = talk.findings(facts)
    assert words in finding.text and finding.colour == GREEN


def test_nccl_that_fails_where_gloo_works_is_told_apart(monkeypatch):
    gloo = {"gloo": [[["lo", "127.0.0.1"]]] * 2, "times": [[1 << 20, 0.001]]}
    monkeypatch.setattr(talk, "ask_two", lambda: ([gloo], "unhandled system error"))
    *fine, failed = talk.two_processes()
    assert [f.colour for f in fine] == [GREEN, GREEN]
    assert (failed.colour, failed.topic) == (RED, "NCCL") and "NCCL_DEBUG=INFO" in failed.remedy


def test_a_slow_road_is_yellow():
    slow = {"gloo": [[["eth0", "10.0.0.1"]], [["eth0", "10.0.0.2"]]], "times": [(4096, 0.001)]}
    road, rate = talk.findings(slow)
    assert "2 talk by gloo over eth0 (10.0.0.1) and eth0 (10.0.0.2)" in road.text and not road.remedy
    assert rate.colour == YELLOW and "about 122 s a step" in rate.text, rate


def test_without_torchrun_the_worker_says_what_to_call(monkeypatch, capsys):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(talk.faulthandler, "dump_traceback_later", lambda *a, **k: None)
    assert talk.main([]) == 2 and "course doctor --distributed" in capsys.readouterr().err
