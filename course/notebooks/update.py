"""`course update`: the newest chapters, though notebooks were run and changed in place."""

import contextlib
from pathlib import Path

from course.files import keep, read_cells, write_atomically
from course.git import git, is_clone
from course.package.blank import is_blank
from course.paths import NOTEBOOKS, ROOT, CourseError, module_path, modules, number_of, relative
from course.states.handed_out import is_own, with_blanks
from course.states.released import forget, owners, released
from course.states.state import built, grows, state


def update() -> int:
    """Fetch, keep the files that both sides changed, and go forward. Nothing of the reader's is lost."""
    if not is_clone():
        raise CourseError(
            "this folder is no git clone, so nothing can be fetched into it: git clone the course beside it, and take along "
            "what is yours from notebooks/ and data/built/"
        )
    upstream = git(
        "rev-parse", "--abbrev-ref", "@{upstream}", why="this branch follows none; use git pull by hand"
    ).strip()
    git("fetch", "--quiet", why="the newest state cannot be fetched")
    if git("rev-list", "@{upstream}..HEAD").strip():
        raise CourseError(f"you have commits of your own; `git pull --rebase` joins them with {upstream}")
    theirs = names_of_files("HEAD", "@{upstream}")
    if not theirs:
        print("this is the newest state")
        return 0
    both = [ROOT / name for name in sorted(theirs & names_of_files("HEAD")) if (ROOT / name).exists()]
    there = set(modules())
    new = {path for name in theirs if (path := ROOT / name).parent == NOTEBOOKS and not path.exists()}
    stay, ours = what_stays(both, theirs), as_released(theirs)
    # git brings notebooks with our bodies
    blank = [path for path in {*both, *new} - stay.keys() if path in new or has_blanks(path)]
    yours = [path for path in both if path not in stay and (path.parent != NOTEBOOKS or is_own(path))]
    keep(yours, "course update")
    try:
        for name in theirs & names_of_files("HEAD"):
            git("checkout", "--quiet", "HEAD", "--", name)
        git("merge", "--ff-only", "--quiet", "@{upstream}", why="git cannot go forward")
    finally:  # also where git refuses, or Ctrl-C comes
        if grows():  # modules that were not there are still to be built
            for module in set(modules()) & set(owners()) - there:
                module_path(module).unlink()
        for path, data in stay.items():
            write_atomically(path, data)
    forget()
    for module, text in released(built(), ours).items():
        write_atomically(module_path(module), text.encode())
    are = "1 file is" if len(theirs) == 1 else f"{len(theirs)} files are"
    print(f"{are} new or newer; `course doctor` checks the packages")
    numbers = sorted({number_of(path) for path in blank if path.suffix == ".ipynb"} - {""})
    if state() == "blank" and numbers:
        for path, data in with_blanks(numbers).items():
            write_atomically(path, data)
        print(f"handed out with blanks: {', '.join(numbers)}")
    if written := [number_of(path) for path in stay if path.parent == NOTEBOOKS]:
        print(
            f"as you wrote them: {', '.join(written)}; `course restore {written[0]}` brings a newer one, with its blanks"
        )
    return 0


def names_of_files(*commits: str) -> set[str]:
    """The files that differ between two commits, or between one and what is here."""
    return set(git("diff", "--name-only", *commits).split("\n")) - {""}


def what_stays(both: list[Path], theirs: set[str]) -> dict[Path, bytes]:
    """Of a growing package: its modules, and notebooks whose blanks somebody has begun to write."""
    paths = [path for path in both if path.parent == NOTEBOOKS and is_own(path)] if state() == "blank" else []
    if grows():
        paths += [path for path in map(module_path, modules()) if relative(path) in theirs]
    return {path: path.read_bytes() for path in paths}


def as_released(theirs: set[str]) -> list[str]:
    """The modules of a growing package, of those that are to change, which are what released chapters have made of them."""
    there = [module for module in modules() if relative(module_path(module)) in theirs] if grows() else []
    made = released(built(), there)
    return [m for m in there if made.get(m, "").encode() == module_path(m).read_bytes()]


def has_blanks(path: Path) -> bool:
    """Whether a notebook still has blanks to be written."""
    with contextlib.suppress(CourseError):
        return path.parent == NOTEBOOKS and path.suffix == ".ipynb" and is_blank(read_cells(path))
    return False
