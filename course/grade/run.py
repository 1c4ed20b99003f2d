"""Grading a folder of submissions: who is to be graded, by several processes, and what is written."""

import hashlib
import json
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

from course.exercises import ExerciseSet
from course.files import write_atomically
from course.grade.grader import Grader, Options, empty_result, fingerprint
from course.grade.submission import Found, Invalid, regular_file

_grader: Grader | None = None  # of a process of the pool


def result_path(results: Path, exercise: str, student: str) -> Path:
    return results / exercise / f"{student}.json"


def read_result(path: Path) -> dict | None:
    """An earlier result; None if there is none that can be read."""
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
        return made if isinstance(made, dict) and made.get("format") == 1 else None
    except (OSError, ValueError):
        return None


def is_done(found: Found, before: dict | None, exercise: str) -> bool:
    """Was this very file graded by this very exercise? Then the night was interrupted after it."""
    if not before or before["verdict"] not in ("graded", "invalid_submission"):
        return False
    if before.get("exercise_sha256") != exercise or before["file"] != found.path.name:
        return False
    try:
        return before["sha256"] == hashlib.sha256(regular_file(found.path)).hexdigest()
    except Invalid:
        return False


def write_result(results: Path, result: dict) -> None:
    """In place of an earlier one, of which only a person's marks stay, and only for the same answer."""
    path = result_path(results, result["exercise"], result["student"])
    before = read_result(path) or {}
    for task, answer in result["manual"].items():
        old = before.get("manual", {}).get(task, {})
        if old.get("points") is not None and old.get("text") == answer["text"]:
            answer |= {"points": old["points"], "comment": old.get("comment", "")}
    if result["score"] is not None and result["verdict"] == "graded":
        marks = sum(answer["points"] or 0.0 for answer in result["manual"].values())
        result["score"] = round(result["score"] + marks, 4)
    write_atomically(path, (json.dumps(result, indent=1) + "\n").encode())


def run(
    made: ExerciseSet,
    submissions: list[Found],
    results: Path,
    options: Options,
    jobs: int = 1,
    force: bool = False,
) -> list[dict]:
    """Grade what is not done yet, `jobs` at a time, and write each result as soon as it is there."""
    exercise = fingerprint(made)
    before = {one.student: read_result(result_path(results, made.name, one.student)) for one in submissions}
    todo = [one for one in submissions if force or not is_done(one, before[one.student], exercise)]
    fresh = []
    with tqdm(total=len(submissions), initial=len(submissions) - len(todo), unit="", disable=None) as bar:
        for result in in_turn(made, todo, options) if jobs == 1 else in_pool(made, todo, options, jobs):
            write_result(results, result)
            fresh.append(result)
            bar.update()
    return fresh


def in_turn(made: ExerciseSet, todo: list[Found], options: Options):
    if not todo:
        return
    grader = Grader(made, options)
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
