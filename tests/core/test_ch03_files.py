"""Files are there whole or not at all."""

import json
import os
import stat

import pytest

from nanogpt.files import atomically, save_json


class Stop(BaseException):
    """As KeyboardInterrupt: no error that a program would catch."""


@pytest.fixture
def old(tmp_path):
    """A file from before, alone in its folder."""
    path = tmp_path / "x.json"
    save_json(path, {"old": 1})
    return path


def assert_untouched(old):
    assert json.loads(old.read_bytes()) == {"old": 1}
    assert list(old.parent.iterdir()) == [old]


@pytest.mark.parametrize("error", [OSError, Stop])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(old, error):
    with pytest.raises(error), atomically(old) as file:
        file.write(b"half")
        raise error
    assert_untouched(old)


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_failing_system_call_leaves_the_old_file_and_no_other(old, monkeypatch, call):
    def fail(*arguments):
        raise OSError("power cut")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="power cut"):
        save_json(old, {"new": 2})
    assert_untouched(old)


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole_and_on_the_disk(old, monkeypatch):
    synced, replace, fsync = [], os.replace, os.fsync

    def watch_fsync(number):
        synced.append(os.fstat(number).st_size)
        fsync(number)

    def watch_replace(aside, path):
        assert os.path.dirname(aside) == os.path.dirname(path)  # a rename across disks is a copy
        assert synced == [2_000] == [os.path.getsize(aside)]
        replace(aside, path)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(os, "replace", watch_replace)
    with atomically(old) as file:
        for _ in range(2):
            file.write(bytes(1_000))
            assert json.loads(old.read_bytes()) == {"old": 1}
    assert old.read_bytes() == bytes(2_000) and list(old.parent.iterdir()) == [old]


def test_two_processes_that_write_one_file_do_not_mix_their_bytes(old, monkeypatch):
    with atomically(old) as file:
        file.write(b"first " * 1000)
        monkeypatch.setattr(os, "getpid", lambda: 1)  # the other process begins, and ends, meanwhile
        with atomically(old) as other:
            other.write(b"second")
        assert old.read_bytes() == b"second"
    assert old.read_bytes() == b"first " * 1000 and list(old.parent.iterdir()) == [old]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes, and links need a privilege")
def test_a_replaced_file_keeps_its_mode_and_its_links(old):
    old.chmod(0o600)  # what the user made private stays private
    link = old.parent / "link.json"
    link.symlink_to(old.name)
    save_json(link, {"new": 2})
    assert link.is_symlink() and json.loads(old.read_bytes()) == {"new": 2}
    assert stat.S_IMODE(old.stat().st_mode) == 0o600
    with atomically(old) as file:  # nobody else can read it while it is written, either
        aside = next(path for path in old.parent.iterdir() if path.name.endswith(".tmp"))
        file.write(b"secret")
        assert stat.S_IMODE(aside.stat().st_mode) == 0o600


def test_folders_are_made_and_strings_are_paths_too(tmp_path):
    save_json(str(tmp_path / "a" / "b" / "x.json"), {"ë": [1, None]})
    raw = (tmp_path / "a" / "b" / "x.json").read_bytes()
    assert json.loads(raw) == {"ë": [1, None]} and raw.endswith(b"}\n") and b"\r" not in raw
