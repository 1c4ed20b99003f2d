"""`course grade totals`: all sets of a term, a row a student. `course grade summary` without a set: a line a set."""

import csv
import io
from pathlib import Path
from statistics import mean, median

from course.grade.results.late import Late, unknown
from course.grade.results.results import read_results, unmarked
from course.grade.systems.export import plain
from course.paths import CourseError, relative


def all_results(folder: Path) -> dict[str, list[dict]]:
    """The results of every set that was graded, in the order of the chapters."""
    names = sorted({path.parent.name for path in folder.glob("*/*.json") if not path.name.startswith(".")})
    if not names:
        raise CourseError(f"no results in {relative(folder)}/; `course grade run 04 --submissions DIR`")
    return {name: read_results(folder, name) for name in names}


def row(student: str, sets: dict, late: dict[str, Late], free: int, drop: int) -> dict:
    """Shares of points, 0 to 100, with what lateness costs; the lowest are dropped; the total is the mean of the others.

    A set that was not handed in is a zero, one that we failed to grade is left out.
    """
    points, shares, used = {}, {}, 0
    for name, results in sets.items():
        mine = next((result for result in results if result["student"] == student), None)
        if mine and mine["score"] is None:
            points[name] = ""
            continue
        score = 0.0
        if mine:
            rule = late.get(name, Late())
            spent = min(rule.days(mine), free - used)
            used += spent
            score = mine["score"] - rule.penalty(mine, spent)
        points[name] = round(score, 4)
        shares[name] = 100 * score / results[0]["max_score"]
    dropped = sorted(shares, key=shares.get)[: min(drop, max(len(shares) - 1, 0))]
    counted = [share for name, share in shares.items() if name not in dropped]
    total = round(mean(counted), 2) if counted else ""
    return (
        {"student_id": student} | points | {"dropped": " ".join(dropped), "late_days": used, "total": total}
    )


def totals(sets: dict, late: dict[str, Late], free: int, drop: int, roster=()) -> tuple[str, list[str]]:
    """The CSV, and what has to be known about it: answers that wait, submissions that we failed to grade."""
    students = sorted({*roster, *(result["student"] for results in sets.values() for result in results)})
    rows = [row(student, sets, late, free, drop) for student in students]
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(one | {"student_id": plain(one["student_id"])} for one in rows)
    told = unknown(late, students)
    for name, results in sets.items():
        lost = [result["student"] for result in results if result["score"] is None]
        told += [waiting(name, results)] if waiting(name, results) else []
        told += [f"{name}: left out of the totals of {', '.join(lost)}: they have no score"] if lost else []
    counted = [one["total"] for one in rows if one["total"] != ""]
    if counted:
        middle = f"mean {mean(counted):.1f}, median {median(counted):.1f} of 100"
        many = "1 set" if len(sets) == 1 else f"{len(sets)} sets"
        told.append(f"{len(rows)} students, {many}: {middle}")
    return out.getvalue(), told


def waiting(name: str, results: list[dict]) -> str:
    """A warning for whoever exports before marking is done."""
    tasks = [(task, result["student"]) for result in results for task in unmarked(result)]
    if not tasks:
        return ""
    which = ", ".join(sorted({task for task, _ in tasks}))
    many = f"{len(tasks)} answers wait" if len(tasks) > 1 else "1 answer waits"
    return f"warning: {many} for a person's points and count 0 now ({which}); `course grade marks {name.partition('_')[0]}`"


def by_weeks(sets: dict) -> str:
    """A line a set: who handed in, what they got, who was there last time and is not now."""
    lines, before = (
        [f"{'set':22}{'handed in':>10}{'mean':>7}{'median':>8}{'to mark':>9}  gone since the set before"],
        set(),
    )
    for name, results in sets.items():
        there = {result["student"] for result in results}
        scored = [100 * r["score"] / r["max_score"] for r in results if r["score"] is not None]
        middle = f"{mean(scored):6.1f}%{median(scored):7.1f}%" if scored else f"{'–':>7}{'–':>8}"
        gone = sorted(before - there)
        names = ", ".join(gone[:5]) + (f" and {len(gone) - 5} more" if len(gone) > 5 else "")
        lines.append(
            f"{name:22}{len(there):10}{middle}{sum(len(unmarked(r)) for r in results):9}  {names}".rstrip()
        )
        before = there
    return "\n".join(lines)
