"""Exercise sets: exercises/NN_name/exercise.py, a notebook in the percent format with its solutions, and checks.py beside it.

A code cell's first line says what it is; one without such a line is given to the student and runs before what is graded.

    #| solution 04-1       the student's part, between ### BEGIN SOLUTION and ### END SOLUTION
    #| check 04-1          visible checks: assertions whose messages teach
    #| manual 04-5         a question that a person marks (a Markdown cell, as its last lines)
    #| show                a picture, a demonstration: not run when grading

Below `#| solution` what the task's text forbids, one thing a line: `#| forbids loop`. The forms: course/grade/without.py.

A task begins with a Markdown cell "## 04-1 · Title" and the line "*Repair · difficulty 2/5 · importance 4/5 · 15 minutes*".
"""

import re
import runpy
from dataclasses import dataclass
from pathlib import Path

from course.paths import ROOT, CourseError, number_of, relative, two_digits

EXERCISES = ROOT / "exercises"
RELEASED = ROOT / "released"  # as students get them
PAPERS = "project", "final"  # pages of Markdown, exercises/final.md
FORBIDS = re.compile(r"(#\| forbids .+\n)*")
DIRECTIVE = re.compile(r"#\| (solution|check|manual|show)(?: (\d\d[a-z]?-\d|student))?$")
HEADING = re.compile(
    r"^## (\d\d[a-z]?-\d) · (.+)\n\n\*(\w+) · difficulty ([1-5])/5 · importance ([1-5])/5 · (\d+) minutes\*$",
    re.MULTILINE,
)
BEGIN, INSTEAD, END = "### BEGIN SOLUTION", "### INSTEAD", "### END SOLUTION"
SOLUTION = re.compile(
    rf"^(?P<indent>[ \t]*){BEGIN}\n(?P<solution>.*?)"
    rf"(?:^(?P=indent){INSTEAD}\n(?P<instead>.*?))?^(?P=indent){END}(?:\n|\Z)",
    re.MULTILINE | re.DOTALL,
)
WITHOUT = "this copy of the course is a class's, whose sets are in released/, ready to be worked on"


@dataclass(frozen=True)
class Cell:
    """kind: text, given, solution, check, manual or show; task: 04-1, or "student" for the cell that names the student."""

    kind: str
    task: str
    source: str  # without the directive
    forbids: tuple[str, ...] = ()  # of a solution; see course/grade/without.py


@dataclass(frozen=True)
class Task:
    id: str
    title: str
    kind: str  # Repair, Build, Derive, Check, Explain ...
    difficulty: int
    importance: int
    minutes: int


@dataclass
class ExerciseSet:
    """One folder below exercises/: what is handed out, and how it is graded."""

    number: str
    name: str  # 04_attention
    folder: Path
    cells: list[Cell]
    tasks: dict[str, Task]
    checks: list  # course.exercises.checks.Check and CheckOfCheck
    wrong: list  # course.exercises.checks.Wrong
    forbidden: list  # Wrong: right, but for what the task forbids
    manual: dict[str, float]  # points of what a person marks
    rubric: dict[str, str]  # and what they are given for

    @property
    def solutions(self) -> dict[str, str]:
        """The reference: the solution cells' code, by task, without the markers."""
        return {cell.task: reference(cell.source) for cell in self.cells if cell.kind == "solution"}

    @property
    def stubs(self) -> dict[str, str]:
        """What is handed out in their place."""
        return {cell.task: stub(cell.source) for cell in self.cells if cell.kind == "solution"}

    @property
    def forbids(self) -> dict[str, tuple[str, ...]]:
        """What a solution is not to use, by task."""
        return {cell.task: cell.forbids for cell in self.cells if cell.forbids}

    def points(self, task: str) -> float:
        return sum(check.points for check in self.checks if check.task == task) + self.manual.get(task, 0)


def folders() -> list[Path]:
    return sorted(path.parent for path in EXERCISES.glob("*/exercise.py") if number_of(path.parent))


def load(name: str) -> ExerciseSet:
    return read(folder_of(name))


def folder_of(name: str) -> Path:
    """Of the exercise set of a chapter ("4", "04" or "04_attention"), or a path of one."""
    if (Path(name) / "exercise.py").is_file():
        return Path(name).resolve()
    there = {number_of(folder): folder for folder in folders()}
    number = two_digits(name.partition("_")[0])
    if number not in there:
        here = f"there are {' '.join(there)}" if there else WITHOUT
        raise CourseError(f"no exercises for chapter {name!r}; {here}")
    return there[number]


def paper(name: str) -> str:
    """The text of the project or the final, with its answers."""
    path = EXERCISES / f"{name}.md"
    if not path.is_file():
        raise CourseError(f"there is no {relative(path)}; {WITHOUT}")
    return path.read_text(encoding="utf-8")


def read(folder: Path) -> ExerciseSet:
    import jupytext  # takes a second, which `course check` does not need

    source = jupytext.read(folder / "exercise.py", fmt="py:percent")
    cells = [read_cell(cell.cell_type, cell.source, folder) for cell in source.cells]
    texts = "\n\n".join(cell.source for cell in cells if cell.kind in ("text", "manual"))
    tasks = {id: Task(id, title, kind, *map(int, rest)) for id, title, kind, *rest in HEADING.findall(texts)}
    made = {"FORBIDDEN": [], "MANUAL": {}, "RUBRIC": {}} | runpy.run_path(str(folder / "checks.py"))
    grading = [made[name] for name in ("CHECKS", "WRONG", "FORBIDDEN", "MANUAL", "RUBRIC")]
    return ExerciseSet(number_of(folder), folder.name, folder, cells, tasks, *grading)


def read_cell(cell_type: str, source: str, folder: Path) -> Cell:
    first, _, rest = source.partition("\n")
    if found := DIRECTIVE.match(first):
        forbids = FORBIDS.match(rest)[0]
        what = forbids.replace("#| forbids ", "").splitlines()
        return Cell(found[1], found[2] or "", rest.removeprefix(forbids), tuple(what))
    if first.startswith("#|"):
        raise CourseError(f"{relative(folder)}/exercise.py: `{first}` is no directive of an exercise")
    return Cell("text" if cell_type == "markdown" else "given", "", source)


def reference(code: str) -> str:
    """The cell with the solution in it and nothing else."""
    return SOLUTION.sub(lambda found: found["solution"], code).rstrip("\n")


def stub(code: str) -> str:
    """The cell as it is handed out: for the solution the commented lines behind ### INSTEAD, broken code to repair, or a refusal."""

    def handed_out(found: re.Match) -> str:
        instead = found["instead"] or "# # YOUR CODE HERE\n# raise NotImplementedError()"
        lines = [line.removeprefix(found["indent"]) for line in instead.splitlines()]
        return "".join(f"{found['indent']}{re.sub('^# ?', '', line)}".rstrip() + "\n" for line in lines)

    return SOLUTION.sub(handed_out, code).rstrip("\n")
