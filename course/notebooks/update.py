"""`course update`: the newest chapters, though notebooks were run and changed in place."""

import contextlib
import subprocess
from pathlib import Path

from course.files import keep, read_cells, write_atomically
from course.paths import NOTEBOOKS, ROOT, CourseError, module_path, modules, number_of, relative
from course.states.released import forget, released
from course.states.started import take_out_others
from course.states.state import built, grows, note, state


def update() -> int:
    """Fetch, keep the files that both sides changed, and go forward. Nothing of the reader's is lost."""
    from course.states.start import is_own, with_blanks  # here: they ask git, by this module

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
    both = [ROOT / name for name in sorted(theirs & mine) if (ROOT / name).exists()]
    stay, ours = what_stays(both, theirs), as_released(theirs)
    blank = [number_of(path) for path in both if path not in stay and is_handed_out(path)]
    keep(
        [path for path in both if path not in stay and (path.parent != NOTEBOOKS or is_own(path))],
        "course update",
    )
    for name in theirs & mine:
        git("checkout", "--quiet", "HEAD", "--", name)
    new = [
        number_of(ROOT / name) for name in theirs if name.endswith(".ipynb") and not (ROOT / name).exists()
    ]
    git("merge", "--ff-only", "--quiet", "@{upstream}", why="git cannot go forward")
    take_out_others(there)
    for path, data in stay.items():
        write_atomically(path, data)
    renew(ours)
    are = "1 file is" if len(theirs) == 1 else f"{len(theirs)} files are"
    print(f"{are} new or newer; `course doctor` checks the packages")
    if state() == "blank" and (
        blank := sorted({*blank, *new} - {""})
    ):  # git has brought them with our bodies
        for path, data in with_blanks(blank).items():
            write_atomically(path, data)
        print(f"handed out with blanks: {', '.join(blank)}")
    if yours := [number_of(path) for path in stay if path.parent == NOTEBOOKS]:
        print(
            f"as you wrote them: {', '.join(yours)}; `course restore {yours[0]}` brings a newer one, with its blanks"
        )
    return 0


def as_released(theirs: set[str]) -> list[str]:
    """The modules of a growing package, of those that are to change, which are what released chapters have made of them."""
    there = [module for module in modules() if relative(module_path(module)) in theirs] if grows() else []
    made = released(built(), there)
    return [m for m in there if made.get(m, "").encode() == module_path(m).read_bytes()]


def renew(ours: list[str]) -> None:
    """Make modules of a growing package anew, from the chapters as they are released now."""
    forget()
    if texts := released(built(), ours):
        for module, text in texts.items():
            write_atomically(module_path(module), text.encode())
        note(built()[-1], texts)


def what_stays(both: list[Path], theirs: set[str]) -> dict[Path, bytes]:
    """Of a growing package: its modules, and notebooks whose blanks somebody has begun to write."""
    from course.states.start import is_own

    paths = [path for path in both if path.parent == NOTEBOOKS and is_own(path)] if state() == "blank" else []
    if grows():
        paths += [path for path in map(module_path, modules()) if relative(path) in theirs]
    return {path: path.read_bytes() for path in paths}


def is_handed_out(path: Path) -> bool:
    """Whether a notebook still has blanks to be written."""
    from course.package.blank import is_blank

    with contextlib.suppress(CourseError):
        return path.parent == NOTEBOOKS and path.suffix == ".ipynb" and is_blank(read_cells(path))
    return False


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
