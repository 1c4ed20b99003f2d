"""`make` sets up .venv: an interrupted creation is mended, and a failure says what to do."""

import subprocess

import pytest

from course import setup_env


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Set-up in an empty folder, where nothing is installed; what it would run."""
    made: list = []

    def run(command, **_):
        what = command[2:4]  # after python -m
        made.append(what)
        python = setup_env.PYTHON
        if what == ["ensurepip"]:
            python.write_text("pip")
        works = python.exists() and python.read_text() == "pip"
        return subprocess.CompletedProcess(command, 0 if works else 1)

    def create(folder, **options):
        made.append(["create", options])
        setup_env.PYTHON.parent.mkdir(parents=True, exist_ok=True)
        setup_env.PYTHON.write_text("pip")

    (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
    monkeypatch.setattr(setup_env, "ROOT", tmp_path)
    monkeypatch.setattr(setup_env, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(setup_env, "PYTHON", tmp_path / ".venv/bin/python")
    monkeypatch.setattr(setup_env.subprocess, "run", run)
    monkeypatch.setattr(setup_env.venv, "create", create)
    return made


def test_a_new_environment_is_made_once(calls):
    assert setup_env.main() == 0 and (setup_env.VENV / "ready").exists()
    new = ["create", {"with_pip": True, "clear": True}]
    assert calls == [["pip", "--version"], new, ["pip", "install"], ["pip", "install"]]
    assert setup_env.main() == 0
    assert calls.count(new) == 1


def test_an_environment_without_pip_gets_it_and_one_without_python_is_made_again(calls):
    setup_env.PYTHON.parent.mkdir(parents=True)
    setup_env.PYTHON.write_text("no pip")
    assert setup_env.main() == 0
    assert ["ensurepip"] in calls
    assert not any(call[0] == "create" for call in calls), "whoever made it keeps it"
    setup_env.PYTHON.unlink()
    assert setup_env.main() == 0
    assert any(call[0] == "create" for call in calls)


def test_what_cannot_be_installed_says_so(calls, monkeypatch, capsys):
    def fails(folder, **_):
        raise subprocess.CalledProcessError(1, "ensurepip")

    monkeypatch.setattr(setup_env.venv, "create", fails)
    assert setup_env.main() == 1 and "apt install python3-venv" in capsys.readouterr().err
    monkeypatch.setattr(setup_env, "has_pip", lambda: True)
    assert setup_env.main() == 1 and "is the network there?" in capsys.readouterr().err
    assert not (setup_env.VENV / "ready").exists()
    monkeypatch.setattr(setup_env.sys, "version_info", (3, 9, 0))
    assert setup_env.main() == 1 and "PYTHON=python3.12" in capsys.readouterr().err
