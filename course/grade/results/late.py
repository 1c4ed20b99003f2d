"""When a set was due, for whom later, and what being late costs."""

from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from math import ceil
from pathlib import Path
from zoneinfo import ZoneInfo

from course.exercises.sets import folder_of
from course.grade.results.results import csv_rows
from course.paths import CourseError, relative

DEADLINES = ["set", "student_id", "due"]


@dataclass(frozen=True)
class Late:
    """When a set was due, and the points that each day begun after it costs. A time without a zone is in `zone`, or in this
    machine's."""

    due: datetime | None = None
    per_day: float = 0.0
    zone: tzinfo | None = None
    extended: dict[str, datetime] = field(default_factory=dict)  # for these students another time

    def days(self, result: dict) -> int:
        """Days begun after the time that holds for this student; 0 where one of both times is not known."""
        due = self.extended.get(result.get("student"), self.due)
        if not due or not result.get("submitted"):
            return 0
        try:
            after = self.by_the_wall(datetime.fromisoformat(result["submitted"])) - self.by_the_wall(due)
        except (ValueError, OverflowError):  # the pattern of the files' names took something else for a time
            return 0
        return max(ceil(after.total_seconds() / 86400), 0)

    def by_the_wall(self, time: datetime) -> datetime:
        """What a clock on the course's wall shows then: when clocks change, a day ends at the same time of day as before."""
        return time.astimezone(self.zone).replace(tzinfo=None) if time.tzinfo else time

    def penalty(self, result: dict, free: int = 0) -> float:
        """What it loses; `free` days cost nothing. Never more than it has."""
        cost = max(self.days(result) - free, 0) * self.per_day
        return min(cost, result["score"]) if result["score"] else 0.0

    def final(self, result: dict) -> float:
        return result["score"] - self.penalty(result)


def moment(text: str | None, where: str = "--due") -> datetime | None:
    """The time in a text, of a day alone its last second; None for none."""
    try:
        time = datetime.fromisoformat(text) if text else None
        return time.replace(hour=23, minute=59, second=59) if time and len(text) == 10 else time
    except ValueError:
        raise CourseError(
            f"{where} {text!r} is no time; write 2026-11-20T23:59, or with a zone 2026-11-20T23:59+01:00"
        ) from None


def zone(name: str | None) -> tzinfo | None:
    try:
        return ZoneInfo(name) if name else None
    except (OSError, ValueError, KeyError):
        raise CourseError(f"--zone {name!r} is no time zone; write Europe/Berlin, or UTC") from None


def read_deadlines(path: Path | None, per_day: float, zone: tzinfo | None) -> dict[str, Late]:
    """The Late of each set in a CSV of set, student_id, due. A row without a student is for all, one with is an extension."""
    found: dict[str, Late] = {}
    if path and not path.is_file():
        raise CourseError(f"there is no {relative(path)}; it has the columns {','.join(DEADLINES)}")
    for line, row in csv_rows(path, DEADLINES) if path else []:
        where = f"{relative(path)}, line {line}:"
        name, student = folder_of(row["set"].strip()).name, row["student_id"]
        due = moment(row["due"].strip(), where)
        if due is None:
            raise CourseError(f"{where} no time is given in the column due")
        late = found.get(name, Late(None, per_day, zone))
        if student in late.extended or (not student and late.due):
            raise CourseError(
                f"{where} a second time for {name}{' and ' + student if student else ''}; keep one row"
            )
        if student:
            late = Late(late.due, per_day, zone, late.extended | {student: due})
        else:
            late = Late(due, per_day, zone, late.extended)
        found[name] = late
    return found


def unknown(late: dict[str, Late], students) -> list[str]:
    """A line for each extension of a student whom nobody knows: the row applies to nobody."""
    rows = [
        (name, student) for name, rule in late.items() for student in rule.extended if student not in students
    ]
    return [
        f"warning: {name}: an extension for {student!r}, of whom there is no result" for name, student in rows
    ]
