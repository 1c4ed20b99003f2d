"""Chapter 20's processes, which wait for work, so that each cell need not start its own.

Processes("20", 2, "drills.ddp") starts two, for nanogpt.labs.drills.ddp. They have the package as the chapter has built it so far. Called with
a name of a function there or in `course.figures.data_parallel`, both call it as function(ranks, ...), in a process group.
"""

import multiprocessing
import os
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from course.figures.rank import serve
from course.files import read_cells
from course.notebook import RUN
from course.paths import CourseError, notebook_path
from course.torchrun import TURN_SAID, environment_of, exported, package_so_far

PATIENCE = 300  # seconds for one call


class Processes:
    """`size` processes, the ranks of chapter `number`, which call functions of `module` and of `course.figures.data_parallel`."""

    def __init__(self, number: str, size: int, module: str):
        self.number, self.size, self.module = number, size, module
        self.ranks: list[BaseProcess] = []
        self.ends: list[Connection] = []  # of each rank: where orders go, and answers come from
        self.edited: set[str] = set()
        self.start()

    def start(self) -> None:
        """Start them with the chapter's cells as they were run last; those not run yet as the notebook has them."""
        from torch import distributed as dist

        self.close()
        self.edited = self.edits()
        folder = package_so_far(self.number, RUN)
        self.log = folder.with_suffix(".log")
        self.log.write_bytes(b"")
        self.store = dist.TCPStore(
            "127.0.0.1", 0, is_master=True, wait_for_workers=False, use_libuv=os.name != "nt"
        )
        # As torchrun would set them for its ranks.
        group = {"WORLD_SIZE": f"{self.size}", "TORCHELASTIC_USE_AGENT_STORE": "True"}
        group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{self.store.port}"}
        context = multiprocessing.get_context("spawn")
        for rank in range(self.size):
            environment = environment_of(folder, self.size) | group
            environment |= {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"}
            ours, theirs = context.Pipe()
            words = (theirs, str(folder), self.module, environment, str(self.log))
            process = context.Process(target=serve, args=words, daemon=True)
            process.start()
            theirs.close()
            self.ranks.append(process)
            self.ends.append(ours)

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
        alive = self.ranks and all(rank.is_alive() for rank in self.ranks)
        if not alive or self.edits() != self.edited:
            self.start()
        for end in self.ends:
            end.send((function, args, seconds))
        answers = self.answers(PATIENCE if not fails else 5 * seconds + 30, fails)
        errors = {rank: answer["error"] for rank, answer in answers.items() if "error" in answer}
        if errors or fails:
            self.close()
        for said in errors.values():
            if turn := TURN_SAID.search(said):  # a rank has called a function that is still blank
                raise NotImplementedError(turn[0])
        said = "".join(f"rank {rank}: {error}\n" for rank, error in errors.items())
        if fails and not errors:
            raise CourseError("this was meant to fail and has not: what is wrong on purpose is not there")
        if errors and not fails:
            raise CourseError(said.rstrip())
        if fails:
            print(said, end="")
            return said
        return answers[0]["found"]

    def answers(self, patience: float, fails: bool) -> dict[int, dict]:
        """What each rank answers, in their order; what they printed is printed. With fails, one that hangs is not waited for."""
        answers, deadline = {}, time.monotonic() + patience
        waiting = {end: rank for rank, end in enumerate(self.ends)}
        while waiting and not (fails and answers):
            ready = wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise CourseError(f"the processes have not answered within {patience:g} s")
            for end in ready:
                rank = waiting.pop(end)
                try:
                    answers[rank] = end.recv()
                except (EOFError, ConnectionError):
                    if not fails:
                        self.close()
                        said = self.log.read_text(encoding="utf-8", errors="replace")[-2000:]
                        raise CourseError(f"rank {rank} has ended without an answer:\n{said}") from None
        answers = dict(sorted(answers.items()))
        for answer in answers.values():
            print(answer["printed"], end="")
        return answers

    def close(self) -> None:
        """End them."""
        for rank, end in zip(self.ranks, self.ends):
            rank.kill()
            rank.join()
            end.close()
        self.ranks, self.ends = [], []
