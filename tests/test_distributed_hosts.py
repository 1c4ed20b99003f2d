"""torchrun over two hosts, really run: they are network namespaces of this machine, joined by a cable that can be cut."""

import subprocess

import pytest
from hosts import Hosts, said, torchrun, why_no_hosts

SECONDS = 120.0  # for what takes ten on an idle machine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosts():
    if reason := why_no_hosts():
        pytest.skip(reason)
    with Hosts() as both:
        yield both
    left = [name for name in both.names if name in subprocess.check_output(["ip", "netns"], text=True)]
    assert not left, f"namespaces are left behind: {left}"


def test_the_doctor_says_when_this_machine_cannot_even_talk_to_itself(hosts, tmp_path):
    """A host whose loopback interface is down."""
    subprocess.run(["ip", "-n", hosts.names[0], "link", "set", "lo", "down"], check=True)
    try:
        doctor = hosts.start(0, "-m", "course.cli", "doctor", "--distributed", out=tmp_path / "host0.out")
        assert doctor.wait(SECONDS) == 1
    finally:
        subprocess.run(["ip", "-n", hosts.names[0], "link", "set", "lo", "up"], check=True)
    line = said(tmp_path, 0)
    assert line.count("\n") == 1 and line.startswith("red "), line
    assert "the loopback interface is down: ip link set lo up" in line, line


@pytest.mark.parametrize("kind", ["static", "c10d"])
def test_two_hosts_meet_and_talk_over_the_cable(hosts, tmp_path, kind):
    for process in torchrun(hosts, kind, tmp_path, "-m", "course.talk"):
        assert process.wait(SECONDS) == 0, said(tmp_path, 0) + said(tmp_path, 1)
    assert "2 talk by gloo over cable0 (10.77.0.1) and cable1 (10.77.0.2)" in said(tmp_path, 0)


def test_what_is_left_on_hosts_ends_with_them(tmp_path):
    if reason := why_no_hosts():
        pytest.skip(reason)
    with pytest.raises(ZeroDivisionError), Hosts(names=("course-x-0", "course-x-1")) as hosts:
        sleeping = hosts.start(0, "-c", "import time; time.sleep(60)", out=tmp_path / "host0.out")
        assert sleeping.poll() is None
        1 / 0  # noqa: B018
    assert sleeping.wait(5) != 0, "it goes on without its host"
    assert "course-x" not in subprocess.check_output(["ip", "netns"], text=True)
