"""`course update`: the newest chapters, though notebooks were run and changed in place."""

import contextlib
import subprocess
from pathlib import Path

from course.files import keep_beside
from course.paths import ROOT, CourseError, modules, relative
from course.states.started import take_out_others


def update() -> int:
    """Fetch, set aside the files that both sides changed, and go forward. Nothing of the reader's is lost."""
    if not is_clone():
        raise CourseError(
            "this folder is no git clone, so nothing can be fetched into it: git clone the course beside it, and take along "
            "what is yours from notebooks/ and data/built/"
        )
    upstream = git(
        "rev-parse", "--abbrev-ref", "@{upstream}", why="this branch follows none; use git pull by hand"
    )
    git("fetch", "--quiet", why="the newest state cannot be fetched")
    if git("rev-list", "@{upstream}..HEAD"):
        raise CourseError(f"you have commits of your own; `git pull --rebase` joins them with {upstream}")
    theirs = set(git("diff", "--name-only", "HEAD", "@{upstream}").split("\n")) - {""}
    if not theirs:
        print("this is the newest state")
        return 0
    mine, there = set(git("diff", "--name-only", "HEAD").split("\n")), set(modules())
    for name in sorted(theirs & mine):
        keep_beside(ROOT / name)
        git("checkout", "--quiet", "HEAD", "--", name)
    git("merge", "--ff-only", "--quiet", "@{upstream}", why="git cannot go forward")
    take_out_others(there)
    print(
        f"{len(theirs)} files are new or newer, {relative(ROOT / 'notebooks')}/ among them; `course doctor` checks the packages"
    )
    return 0


def is_clone() -> bool:
    """Whether git keeps this folder itself; an unpacked archive may lie within somebody's other repository."""
    with contextlib.suppress(CourseError):
        return Path(git("rev-parse", "--show-toplevel")).resolve() == ROOT
    return False


def git(*args: str, why: str = "git fails") -> str:
    """What a git command says; CourseError with git's own last line."""
    try:
        done = subprocess.run(
            ["git", *args], cwd=ROOT, capture_output=True, encoding="utf-8", errors="replace"
        )
    except FileNotFoundError:
        raise CourseError("git is not installed") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CourseError(f"{why}: {said}")
    return done.stdout.strip()
