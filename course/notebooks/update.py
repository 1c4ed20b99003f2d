"""`course update`: the newest chapters, though notebooks were run and changed in place."""

from pathlib import Path

from course.files import keep, write_atomically
from course.git import git, is_clone
from course.package.hand_out import is_own, with_blanks
from course.paths import NOTEBOOKS, ROOT, CourseError, module_path, modules, number_of, relative
from course.states.released import owners
from course.states.state import built, grows, state


def update() -> None:
    """Fetch, keep the files that both sides changed, and go forward. Nothing of the reader's is lost.

    A growing package stays as it is, and so does a notebook whose blanks somebody has begun to write.
    """
    if not is_clone():
        raise CourseError("this folder is no git clone: clone the course beside it, and copy what is yours")
    none = "this branch follows none; use git pull by hand"
    upstream = git("rev-parse", "--abbrev-ref", "@{upstream}", why=none).strip()
    git("fetch", "--quiet", why="the newest state cannot be fetched")
    if git("rev-list", "@{upstream}..HEAD").strip():
        raise CourseError(f"you have commits of your own; `git pull --rebase` joins them with {upstream}")
    theirs, here = names_of_files("HEAD", "@{upstream}"), names_of_files("HEAD")
    if not theirs:
        print("this is the newest state")
        return
    both = [ROOT / name for name in sorted(theirs & here) if (ROOT / name).exists()]
    there = set(map(module_path, modules())) if grows() else set()
    stay = {path for path in there if relative(path) in theirs}
    if state() == "blank":
        stay |= {path for path in both if path.parent == NOTEBOOKS and is_own(path)}
    kept = {path: path.read_bytes() for path in stay}
    keep([p for p in both if p not in stay and (p.parent != NOTEBOOKS or is_own(p))], "course update")
    try:
        for name in theirs & here:
            git("checkout", "--quiet", "HEAD", "--", name)
        git("merge", "--ff-only", "--quiet", "@{upstream}", why="git cannot go forward")
    finally:  # also where git refuses, or Ctrl-C comes
        for path, data in kept.items():
            write_atomically(path, data)
        for path in set(map(module_path, owners())) - there if grows() else ():
            path.unlink(missing_ok=True)  # it is still to be built
        blank = newer_with_blanks(theirs, both) - stay if state() == "blank" else set()
        for path, data in with_blanks(sorted(map(number_of, blank))).items():
            write_atomically(path, data)
    are = "1 file is" if len(theirs) == 1 else f"{len(theirs)} files are"
    print(f"{are} new or newer; `course doctor` checks the packages")
    if blank:
        print(f"handed out with blanks: {', '.join(sorted(map(number_of, blank)))}")
    if written := sorted(number_of(path) for path in stay if path.parent == NOTEBOOKS):
        newer = f"`course restore {written[0]}` brings a newer one, with its blanks"
        print(f"as you wrote them: {', '.join(written)}; {newer}")


def newer_with_blanks(theirs: set[str], both: list[Path]) -> set[Path]:
    """The notebooks that git has brought with our bodies, of chapters that have been handed out with blanks."""
    found = [path for name in theirs if number_of(path := ROOT / name) and path.parent == NOTEBOOKS]
    return {path for path in found if path.exists() and (path in both or number_of(path) not in built())}


def names_of_files(*commits: str) -> set[str]:
    """The files that differ between two commits, or between one and what is here."""
    return set(git("diff", "--name-only", *commits).split("\n")) - {""}
