"""For notebooks: `torchrun` on the package as it has been built so far, its output shown."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from course.figures import kills
from course.files import read_cells
from course.notebook import RUN
from course.package.as_of import Chapter
from course.package.blank import TURN
from course.package.cells import default_module
from course.package.directives import read_head
from course.package.last_run import exported
from course.paths import BUILT, CourseError, notebook_path

SECONDS = 300
LAID_OUT: dict[str, list[str]] = {}  # by chapter: the cells of which its folder was made
TURN_SAID = re.compile(rf"(?<!\"){TURN}.*")  # as an error says it, not as the line that raises it


def package_so_far(number: str, executed: list[str]) -> Path:
    """A folder with nanogpt as of this chapter, made of its cells as they were run last; of those not run yet as they are saved."""
    path = notebook_path(number)
    notebook = read_cells(path)
    heads = [read_head(cell.source, path.name) for cell in notebook.cells if cell.cell_type == "code"]
    default = default_module(heads, path.name)
    ran: dict[tuple[str, str], str] = {}
    for source in executed:
        if cell := exported(source, default):
            ran |= {(cell.module, name): source for name in cell.names()}
    for place in notebook.cells:
        cell = exported(place.source, default) if place.cell_type == "code" else None
        for name in cell.names() if cell else ():
            place.source = ran.get((cell.module, name), place.source)
    folder = BUILT / f"so-far-{number}"
    made_of = [cell.source for cell in notebook.cells]
    if LAID_OUT.get(number) != made_of or not folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        Chapter(path, notebook).lay_out(folder)
        LAID_OUT[number] = made_of
    return folder


def ranks_device(processes: int) -> str:
    """Where so many ranks of this machine run: on GPUs if each has one, else on the CPU. NANOGPT_DEVICE decides first."""
    each_has_one = torch.cuda.device_count() >= processes
    return os.environ.get("NANOGPT_DEVICE") or ("cuda" if each_has_one else "cpu")


def environment_of(folder: Path, processes: int) -> dict[str, str]:
    """For a rank: the package in this folder, one thread, loopback, and its device."""
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    if Path("/sys/class/net/lo").exists():  # the ranks are on this machine, whatever its name resolves to
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if os.name == "nt":
        environment.setdefault("USE_LIBUV", "0")
    return environment | {"NANOGPT_DEVICE": ranks_device(processes)}


def alone(number: str) -> dict[str, str]:
    """For one process: the package as the chapter has built it so far."""
    return os.environ | {"PYTHONPATH": str(package_so_far(number, RUN))}


def run(shown: str, words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess:
    """Run `python WORDS`, after a line that shows the command as one types it. A blank that it meets is raised here."""
    print(f"$ {shown}")
    pipes = {"capture_output": True, "text": True, "encoding": "utf-8"}
    try:
        done = subprocess.run([sys.executable, *words], env=environment, timeout=SECONDS, **pipes)
    except subprocess.TimeoutExpired:
        raise CourseError(f"{shown.split()[0]} has not ended within {SECONDS} s") from None
    if turn := TURN_SAID.search(done.stderr):
        raise NotImplementedError(turn[0])
    return done


def run_ranks(number: str, processes: int, words: list[str], shown: str) -> subprocess.CompletedProcess:
    """Run `torchrun --standalone --nproc-per-node N WORDS` on the chapter so far, on GPUs where there are enough."""
    options = ["--standalone", "--nproc-per-node", str(processes)]
    return run(
        f"torchrun {' '.join(options)} {shown}",
        ["-m", "torch.distributed.run", *options, *words],
        environment_of(package_so_far(number, RUN), processes),
    )


def printed(done: subprocess.CompletedProcess, command: str) -> str:
    """What a command printed, printed here too; CourseError with all that it said if it has failed."""
    if done.returncode:
        said = f"{done.stdout[-1000:]}{done.stderr[-2000:]}"
        raise CourseError(f"{command} ended with exit code {done.returncode}\n{said}")
    print(done.stdout, end="")
    return done.stdout


def told_by(command: str, stderr: str) -> list[str]:
    """The lines of the command and of its watch, sorted. Two ranks may have written at once, into one line."""
    said, names = [], f"(?:{re.escape(command)}|watch): "
    for line in stderr.splitlines():
        if re.match(names, line):
            said += [part.rstrip() for part in re.split(f"(?={names})", line) if part]
    return sorted(said)


def torchrun(number: str, processes: int, *words: str, fails: bool = False) -> str:
    """Run `torchrun ... -m nanogpt WORDS` on the chapter so far; print and return its output.

    fails: the command is meant to fail, and what the ranks say of it is printed, too.
    """
    done = run_ranks(number, processes, ["-m", "nanogpt", *words], f"-m nanogpt {' '.join(words)}")
    told = "".join(f"{line}\n" for line in told_by(words[0], done.stderr))
    if fails and not done.returncode:
        raise CourseError("torchrun was meant to fail here and has not: what is wrong on purpose is gone")
    if fails and told:
        print(done.stdout + told, end="")
        return done.stdout + told
    done.stderr = told or done.stderr  # no rank says why where it has crashed
    return printed(done, "torchrun")


def torchrun_script(number: str, processes: int, script: str, *words: str) -> str:
    """Run `torchrun ... SCRIPT WORDS` on the chapter so far; print and return its output."""
    done = run_ranks(number, processes, [script, *words], " ".join([Path(script).name, *words]))
    return printed(done, "torchrun")


def so_far(number: str, *words: str) -> str:
    """Run `python -m nanogpt WORDS`, one process, on the chapter so far; print and return its output."""
    done = run(f"python -m nanogpt {' '.join(words)}", ["-m", "nanogpt", *words], alone(number))
    return printed(done, words[0])


def so_far_killed(number: str, path: Path, lines: int, longer: float, *words: str) -> int:
    """Start the command of so_far, and end it by `kill -9` some seconds after a file has so many lines; how many it has then."""
    print(f"$ python -m nanogpt {' '.join(words)}")
    command, nowhere = [sys.executable, "-m", "nanogpt", *words], subprocess.DEVNULL
    process = subprocess.Popen(command, env=alone(number), stdout=nowhere, stderr=nowhere)
    began = time.monotonic()
    while process.poll() is None and kills.lines_in(path) < lines and time.monotonic() < began + SECONDS:
        time.sleep(0.001)
    time.sleep(longer)
    ended = process.poll()
    process.kill()
    process.wait()
    if ended is not None:
        raise CourseError(f"{words[0]} had ended, with exit code {ended}, before it was killed")
    return kills.lines_in(path)
