"""Grading a folder of submissions: who is to be graded, by several processes, and what is written."""

import multiprocessing
import multiprocessing.util
import os
import signal
import threading
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, parent_process
from pathlib import Path

import torch
from tqdm import tqdm

from course.exercises.sets import ExerciseSet
from course.grade.sandbox.warm import Options, Template
from course.grade.score.grader import Grader
from course.grade.score.record import (
    empty_result,
    fingerprint,
    is_done,
    read_result,
    result_path,
    write_result,
)
from course.grade.submission import Found

_grader: Grader | None = None  # of a process of the pool


def run(
    made: ExerciseSet,
    submissions: list[Found],
    results: Path,
    options: Options,
    jobs: int = 1,
    force: bool = False,
    template: Template | None = None,
) -> list[dict]:
    """Grade what is not done yet, `jobs` at a time, and write each result as soon as it is there."""
    exercise = fingerprint(made)
    before = {one.student: read_result(result_path(results, made.name, one.student)) for one in submissions}
    todo = [one for one in submissions if force or not is_done(one, before[one.student], exercise)]
    fresh = []
    with tqdm(total=len(submissions), initial=len(submissions) - len(todo), unit="", disable=None) as bar:
        for result in (
            in_turn(made, todo, options, template) if jobs == 1 else in_pool(made, todo, options, jobs)
        ):
            write_result(results, result)
            fresh.append(result)
            bar.update()
    return fresh


def in_turn(made: ExerciseSet, todo: list[Found], options: Options, template: Template | None):
    if not todo:
        return
    grader = Grader(made, options, template)
    try:
        yield from map(grader.grade, todo)
    finally:
        grader.close()


def in_pool(made: ExerciseSet, todo: list[Found], options: Options, jobs: int):
    """By several processes. Should one of them die, what it and its neighbours had at hand is tried once more."""
    for last in (False, True):
        left = {one.student: one for one in todo}
        try:
            yield from pooled(made, todo, options, jobs, left)
            return
        except BrokenProcessPool:
            todo = list(left.values())
        if last:
            for one in todo:
                result = empty_result(made, one, options.backend)
                text = "a process of the grader died"
                yield result | {"verdict": "infrastructure_error", "score": None, "message": text}


def pooled(made: ExerciseSet, todo: list[Found], options: Options, jobs: int, left: dict):
    pool = ProcessPoolExecutor(
        max(1, min(jobs, len(todo))), multiprocessing.get_context("fork"), start_grader, (made, options)
    )
    try:
        for done in as_completed([pool.submit(grade, one) for one in todo]):
            result = done.result()
            del left[result["student"]]
            yield result
    except BaseException:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def start_grader(made: ExerciseSet, options: Options) -> None:
    """In a process of the pool. Ctrl-C is the parent's; it ends us with SIGTERM, and our boxes with us."""
    global _grader

    def stop(*_) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # from the parent and from our own thread
        _grader.close()
        os._exit(143)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A fork has none of its parent's threads, and OpenMP would wait for them forever.
    torch.set_num_threads(1)
    _grader = Grader(made, options)
    signal.signal(signal.SIGTERM, stop)
    threading.Thread(target=end_with, args=[parent_process().sentinel], daemon=True).start()
    multiprocessing.util.Finalize(None, _grader.close, exitpriority=1)


def end_with(parent: int) -> None:
    """Should the parent be killed, we stop as if it had asked."""
    connection.wait([parent])
    os.kill(os.getpid(), signal.SIGTERM)


def grade(found: Found) -> dict:
    return _grader.grade(found)
