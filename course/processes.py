"""For notebooks: processes that wait for work, so that each cell need not start its own; and torchrun for a script.

Processes("20", 2, "drills.ddp") starts two, for nanogpt.labs.drills.ddp. They have the package as the chapter has built it so far. Called with
a name of a function in this module or in `course.data_parallel`, both call it as function(ranks, ...), in a process group.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, Queue

from course.files import read_cells
from course.notebook import RUN
from course.paths import CourseError, notebook_path
from course.torchrun import TURN_SAID, environment_of, exported, package_so_far

ANSWER = "answer of a rank: "  # how a line begins that is not for the reader
PATIENCE = 300  # seconds for one call


class Processes:
    """`size` processes, the ranks of chapter `number`, which call functions of this module and of `course.data_parallel`."""

    def __init__(self, number: str, size: int, module: str):
        self.number, self.size, self.module = number, size, module
        self.ranks: list[subprocess.Popen] = []
        self.edited: set[str] = set()
        atexit.register(self.close)
        self.start()

    def start(self) -> None:
        """Start them with the chapter's cells as they were run last; those not run yet as the notebook has them."""
        from torch import distributed as dist

        self.close()
        self.edited = self.edits()
        folder = package_so_far(self.number, RUN)
        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=os.name != "nt"
        )
        self.lines: Queue[tuple[int, str]] = Queue()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115, what the ranks say on stderr
        for rank in range(self.size):
            names = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": self.size,
                "MASTER_PORT": self.store.port,
            }
            names |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": True}
            environment = environment_of(folder, self.size) | {
                name: str(value) for name, value in names.items()
            }
            words = [sys.executable, "-m", "course.rank", self.module, ANSWER]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log}
            self.ranks.append(subprocess.Popen(words, env=environment, text=True, encoding="utf-8", **pipes))
            threading.Thread(target=self.listen, args=(rank, self.ranks[-1], self.lines), daemon=True).start()

    @staticmethod
    def listen(rank: int, process: subprocess.Popen, lines: Queue) -> None:
        for line in process.stdout:
            lines.put((rank, line))
        lines.put((rank, ""))  # it has ended

    def edits(self) -> set[str]:
        """The exported cells that were run last in another form than the saved notebook's."""
        last = {}
        for source in RUN:
            if cell := exported(source, "default"):
                last |= {(cell.module, name): source for name in cell.names()}
        saved = {cell.source for cell in read_cells(notebook_path(self.number)).cells}
        return set(last.values()) - saved

    def __call__(self, function: str, *args, seconds: float = 60.0, fails: bool = False):
        """The function of this name, as function(ranks, *args), on all ranks; what rank 0 returned.

        fails: it is meant to fail, and the ranks' errors are printed and returned.
        """
        if (
            not self.ranks
            or self.edits() != self.edited
            or any(rank.poll() is not None for rank in self.ranks)
        ):
            self.start()
        order = {"call": function, "args": args, "seconds": seconds}
        for rank in self.ranks:
            rank.stdin.write(json.dumps(order) + "\n")
            rank.stdin.flush()
        answers = self.answers(PATIENCE if not fails else 5 * seconds + 30, fails)
        errors = {rank: told["error"] for rank, told in sorted(answers.items()) if "error" in told}
        if errors or fails or len(answers) < self.size:
            self.close()
        for said in errors.values():
            if turn := TURN_SAID.search(said):  # a rank has called a function that is still blank
                raise NotImplementedError(turn[0])
        if bool(errors) != fails:
            what = "\n".join(f"rank {rank}: {said}" for rank, said in errors.items())
            raise CourseError(
                what or "this was meant to fail and has not: what is wrong on purpose is not there"
            )
        if fails:
            said = "".join(f"rank {rank}: {said}\n" for rank, said in errors.items())
            print(said, end="")
            return said
        return answers[0]["found"]

    def answers(self, patience: float, fails: bool) -> dict[int, dict]:
        """What each rank answers; their other lines are printed. With fails, a rank that hangs is not waited for."""
        answers, ended, deadline = {}, set(), time.monotonic() + patience
        while len(answers) + len(ended) < self.size and not (fails and answers):
            try:
                rank, line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                self.close()
                raise CourseError(f"the processes have not answered within {patience:g} s") from None
            if line.startswith(ANSWER):
                answers[rank] = json.loads(line.removeprefix(ANSWER))
            elif not line:
                ended.add(rank)
            else:
                print(line, end="")
        lost = ended - set(answers)
        if lost and not fails:
            self.close()
            self.log.seek(0)
            said = self.log.read().decode(errors="replace")
            raise CourseError(f"rank {min(lost)} has ended without an answer:\n{said[-2000:]}")
        return answers

    def close(self) -> None:
        """End them."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            for pipe in (rank.stdin, rank.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()
        self.ranks = []


def torchrun_script(number: str, processes: int, script: str, *words: str) -> str:
    """Run `torchrun --standalone --nproc-per-node N SCRIPT WORDS` on the package so far; print and return its output."""
    folder = package_so_far(number, RUN)
    print(f"$ torchrun --standalone --nproc-per-node {processes} {Path(script).name} {' '.join(words)}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    command += [str(processes), script, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8"}
    try:
        done = subprocess.run(command, env=environment_of(folder, processes), timeout=PATIENCE, **pipes)
    except subprocess.TimeoutExpired:
        raise CourseError(f"torchrun has not ended within {PATIENCE} s") from None
    if turn := TURN_SAID.search(done.stderr):
        raise NotImplementedError(turn[0])
    if done.returncode:
        raise CourseError(
            f"torchrun ended with exit code {done.returncode}\n{done.stdout}{done.stderr[-3000:]}"
        )
    print(done.stdout, end="")
    return done.stdout
