"""Chapter 17: the runner of all commands. The law: however a command ends, one line says so, and the exit code agrees."""

import importlib
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from nanogpt import cli

FAKE = '''
"""A command that ends as it is told."""
import argparse, time

def parser():
    parser = argparse.ArgumentParser(description="Ends as it is told.")
    parser.add_argument("how", choices=["well", "slow", "lines"])
    parser.add_argument("--n", type=int, default=1)
    return parser

def run(args):
    if args.how == "well":
        print("n =", args.n)
    if args.how == "slow":
        print("here", flush=True)
        time.sleep(60)
    while args.how == "lines":
        print("line", flush=args.n == 1)
'''


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A folder whose module `fake_command` is the command `fake`."""
    (tmp_path / "fake_command.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.COMMANDS, "fake", ("fake_command", "a command for tests"))
    yield tmp_path
    sys.modules.pop("fake_command", None)


@pytest.mark.parametrize(
    "error, code, named",
    [
        (ValueError("n=0 must be positive\nin two lines"), 2, "n=0 must be positive in two lines"),
        (FileNotFoundError(2, "gone", "/no/such/file"), 2, "/no/such/file: gone"),
        (MemoryError(), 2, "out of memory"),
        (BrokenPipeError("the worker has gone"), 2, "the worker has gone"),  # and not the reader
        (KeyboardInterrupt("step 400 is whole"), 130, "step 400 is whole"),
    ],
)
def test_a_failure_is_one_line_and_its_exit_code(fake, capsys, error, code, named):
    importlib.import_module("fake_command").run = Mock(side_effect=error)
    assert cli.main(["fake", "well"]) == code
    said = capsys.readouterr().err.strip()
    assert said.startswith("fake: ") and named in said and "\n" not in said


def test_a_wrong_option_is_one_line(fake, capsys):
    assert cli.main(["fake", "well", "--n=x"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("fake: ") and "--n: invalid int value: 'x'" in said and "\n" not in said


def test_a_programming_error_keeps_its_traceback(fake):
    importlib.import_module("fake_command").run = Mock(side_effect=KeyError)
    with pytest.raises(KeyError):
        cli.main(["fake", "well"])


@pytest.mark.parametrize(
    "source, named",
    [
        ("import no_such_library.part", "pip install no_such_library"),
        # a student who deletes a module is told which chapter makes it
        ("raise ModuleNotFoundError(name='nanogpt.model')", "course restore 04"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(fake, capsys, monkeypatch, source, named):
    monkeypatch.setattr(cli, "__file__", str(Path(__file__).parents[2] / "nanogpt" / "cli.py"))
    (fake / "fake_command.py").write_text(source)
    assert cli.main(["fake", "well"]) == 2
    said = capsys.readouterr().err
    assert named in said and said.count("\n") == 1


# --- as processes of their own: nothing here may be faked by pytest's streams ---------------------------------


def command(*argv, folder=None, **options):
    """`python -m nanogpt *argv` as a process, with the command `fake` where a folder holds it."""
    start = ["-m", "nanogpt"]
    if folder:
        lines = ["import sys", f"sys.path.insert(0, {str(folder)!r})", "from nanogpt import cli"]
        lines += ["cli.COMMANDS['fake'] = ('fake_command', '')", "sys.exit(cli.main())"]
        start = ["-c", "\n".join(lines)]
    return subprocess.Popen([sys.executable, *start, *argv], stdout=-1, stderr=-1, text=True, **options)


@pytest.mark.skipif(os.name == "nt", reason="signals of this kind are POSIX")
def test_ctrl_c_is_one_line_and_130(fake):
    # A shell's background jobs ignore Ctrl-C, and their children would inherit that.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with command("fake", "slow", folder=fake, preexec_fn=heed) as process:
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.strip() == "fake: stopped; no file was written"


@pytest.mark.skipif(os.name == "nt", reason="a closed pipe is another error there")
@pytest.mark.parametrize("flush", ["0", "1"])
def test_a_reader_that_has_enough_is_no_error(fake, flush):
    with command("fake", "lines", "--n", flush, folder=fake) as process:
        process.stdout.readline()
        process.stdout.close()
        err = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 0 and err == ""
