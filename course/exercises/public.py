"""`course exercises release --public FOLDER`: the repository that a class gets, without solutions and hidden checks.

It is this one's tracked files, as they are here, without git's history: every commit has the solutions.
"""

import shutil
from pathlib import Path

from course.exercises.release import release
from course.exercises.sets import ExerciseSet
from course.files import write_atomically
from course.git import git, is_clone
from course.paths import ROOT, CourseError

KEPT_BACK = (  # how the names of the sets begin, and of the tests and programs that read them
    "exercises/",
    "tests/grading/",
    "bench/grading",
    "tests/machinery/test_course_public.py",
    "tests/machinery/test_course_release.py",
    "tests/repository/test_exercises.py",
    "tests/repository/test_first_minutes.py",
)
GIVEN = "exercises/TASKS.md"
README = """\
# Exercises

Your notebooks are in `released/`, a folder a set; [all tasks](TASKS.md) with their minutes and points. Write your id into
`STUDENT`, work from top to bottom, save, and run `course check 04`: the visible checks of set 04, on your own machine. Your
score also counts checks that are not here.
"""


def release_public(sets: list[ExerciseSet], folder: Path) -> list[str]:
    """Write the students' repository; what was written, in a line each."""
    folder = folder.resolve()
    if folder in ROOT.parents or folder.is_relative_to(ROOT):
        raise CourseError(f"--public {folder} is this repository, in it or above it; name one beside it")
    if folder.exists() and any(folder.iterdir()) and not (folder / "course" / "__main__.py").is_file():
        raise CourseError(f"--public {folder} holds other files; name a new one, or one that this has made")
    if not is_clone():
        raise CourseError("--public copies the files that git knows, and this folder is no clone")
    tracked = [name for name in git("ls-files", "-z").split("\0") if (ROOT / name).is_file()]
    names = [name for name in tracked if name == GIVEN or not name.startswith(KEPT_BACK)]
    for name in names:
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to, follow_symlinks=False)
    write_atomically(folder / "exercises" / "README.md", README.encode())
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8")
    write_atomically(folder / ".gitignore", ignored.replace("/released/\n", "").encode())
    for made in sets:
        release(made, folder / "released")
    return [
        f"{folder}: {len(names)} files of the course, {len(sets)} sets in released/, no solutions, no hidden checks",
        "make it a repository of its own (git init) and publish that; a fork or a clone of this one has the solutions in its history",
    ]
