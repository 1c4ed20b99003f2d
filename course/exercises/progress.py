"""`course progress`: chapters, tasks passed, minutes, and how far the predictions were off."""

import json
import subprocess

from course.exercises.check import progress
from course.package.cells import claimed_modules
from course.paths import ROOT, CourseError, chapters, module_path, notebook_path
from course.predictions import KEPT, error, shown
from course.states.started import described, is_there


def call_progress() -> int:
    print(
        "\n".join(
            [f"package: {described()}", "", *chapter_lines(), "", *task_lines(), "", *prediction_lines()]
        )
    )
    return 0


def changed_modules() -> set[str] | None:
    """Modules of the package that differ from the released ones; None where git cannot tell."""
    for base in ("@{upstream}", "HEAD"):
        command = ["git", "diff", "--name-only", "--relative", "--merge-base", base, "--", "nanogpt"]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
        except OSError:
            return None
        if done.returncode == 0:
            return {
                line.removeprefix("nanogpt/").removesuffix(".py").replace("/", ".")
                for line in done.stdout.splitlines()
            }
    return None


def chapter_lines() -> list[str]:
    changed, lines = changed_modules(), ["chapter  modules"]
    for chapter in chapters():
        try:
            modules = sorted(claimed_modules(notebook_path(chapter)))
        except CourseError as problem:
            lines.append(f"{chapter:7}  {problem}")
            continue
        if modules:
            lines.append(f"{chapter:7}  {', '.join(f'{m} {state(m, chapter, changed)}' for m in modules)}")
    return lines


def state(module: str, chapter: str, changed: set[str] | None) -> str:
    if not module_path(module).is_file():
        return "(not there: checkpoint the chapter)"
    if not is_there(chapter):
        return "(as earlier chapters have it)"
    if changed is None:
        return ""
    return "(your own)" if module in changed else "(as released)"


def task_lines() -> list[str]:
    passed = progress()
    lines = [f"{task}  {made['title']}" for task, made in passed.items()]
    minutes = sum(made["minutes"] for made in passed.values())
    head = f"{len(passed)} tasks pass their visible checks, planned for {minutes} minutes"
    return [head, *lines] if passed else ["no task passes yet: `course check 04`, when you have solved one"]


def prediction_lines() -> list[str]:
    try:
        kept = json.loads(KEPT.read_text(encoding="utf-8"))
        kept = {key: made for key, made in kept.items() if made["guess"] is not None}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        kept = {}
    if not kept:
        return ["no prediction yet: chapters ask for them"]
    wide = max(len(made["question"]) for made in kept.values())
    lines = [f"{'':6}{'your predictions':{wide}}{'guess':>13}{'outcome':>15}{'error':>9}"]
    for key, made in sorted(kept.items()):
        values = [shown(made.get(what), made.get("unit", "")) for what in ("guess", "outcome")]
        lines.append(f"{key:6}{made['question']:{wide}}{values[0]:>13}{values[1]:>15}{error(made):>9}")
    return lines
