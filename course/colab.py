"""On Google Colab: what a notebook's first cell calls, and how the checkpoint gets the notebook that is on the screen.

The first cell runs this file by its path, before anything is installed and perhaps from another commit than the
notebook's own: nothing of the course is imported above.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEED = ("09", "14")  # the chapters that measure a GPU
STARTS_FROM = {  # all others make what they miss
    "19_fine_tuning": ("07", "data/built/model"),
    "19b_rewards": ("07", "data/built/model"),
    "19c_fine_tuning_runs": ("07", "data/built/model"),
}
NOT_HERE = {"jupyterlab"}  # Colab is the page
ANSWER_SECONDS = 60
LOST = (
    "/content is deleted when this runtime ends, with nanogpt/ and all that chapters make. File → Save a copy in Drive keeps "
    "this notebook; the course's FAQ (My work on Colab) says how to keep the rest"
)


def set_up(stem: str, digest: str) -> None:
    """Make the runtime what a laptop is after `make course`: this notebook's commit, its packages, its folder.

    stem: the notebook's name, "09_measuring"; digest: the hash of its source that the notebook carries.
    """
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "passive"
    )  # as course/__init__.py says; PyTorch is not loaded yet
    print(find_commit(f"notebooks/{stem}.ipynb", digest))
    for line in install_missing():
        print(line)
    os.chdir(ROOT / "notebooks")
    sys.path[:] = [str(ROOT), *(entry for entry in sys.path if entry != str(ROOT))]
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != str(ROOT)]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, others)]
    )  # for processes of a chapter
    write_command()
    print(about_gpu(stem))
    print(LOST)
    chapter, model = STARTS_FROM.get(stem, ("", "."))
    if not (ROOT / model).exists():
        print(
            f"this chapter starts from chapter {chapter}'s model: `!course run {chapter}` in a cell of its own makes it here"
        )


# Which commit


def find_commit(notebook: str, digest: str) -> str:
    """Check out the newest commit whose notebook has this digest, and say which. Edited files are never overwritten."""
    if digest in git("show", f"HEAD:{notebook}"):
        return f"the course at {short('HEAD')}, the commit of this notebook"
    found = newest_with(notebook, digest)
    if not found:
        return f"no commit of the course has this notebook; going on with {short('HEAD')}, whose modules may be others"
    try:
        git("checkout", "--quiet", found, check=True)
    except RuntimeError:
        return (
            f"this notebook is of commit {short(found)}, and the files here, with your changes, are of {short('HEAD')}: "
            "for the notebook's own, Runtime → Disconnect and delete runtime, then run this cell again"
        )
    return f"the course at {short('HEAD')}, the commit of this notebook; there are newer ones"


def newest_with(notebook: str, digest: str) -> str:
    """The last commit before this notebook was replaced by another; "" if it never had the digest."""
    newer = ""
    for commit in git("log", "--all", "--format=%H", "--", notebook).split():
        if digest in git("show", f"{commit}:{notebook}"):
            before = f"{newer}^" if newer else commit
            return before if digest in git("show", f"{before}:{notebook}") else commit
        newer = commit
    return ""


def short(commit: str) -> str:
    return git("log", "-1", "--format=%h of %cs", commit).strip() or "an unknown commit"


def git(*args: str, check: bool = False) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, encoding="utf-8", errors="replace")
    if check and done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout if done.returncode == 0 else ""


# Which packages


def install_missing() -> list[str]:
    """Install the packages that are not there. Of those that are, none is replaced, PyTorch least of all.

    Says what was installed, and which of the package's own needs are older here than the course asks for.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *extras["commands"]]
    more = [text for text in extras["course"] if name_of(text) != project["name"]]
    missing = [text for text in (*needs, *more) if not there(text) and name_of(text) not in NOT_HERE]
    said = []
    if missing:
        start = time.perf_counter()
        problem = install(missing)
        said += [
            problem or f"installed {', '.join(map(name_of, missing))} in {time.perf_counter() - start:.0f} s"
        ]
    old = [
        f"{name_of(text)} {there(text)}, not {text}" for text in needs if there(text) and not new_enough(text)
    ]
    if old:
        said += [f"Colab has {'; '.join(old)}: what needs the newer one fails (course doctor)"]
    return [*said, f"PyTorch {version('torch')}, as Colab has it"] if there("torch") else said


def name_of(requirement: str) -> str:
    return re.match(r"[\w.-]+", requirement)[0]


def there(requirement: str) -> str:
    """The installed version, "" if there is none."""
    try:
        return version(name_of(requirement))
    except PackageNotFoundError:
        return ""


def new_enough(requirement: str) -> bool:
    from packaging.requirements import Requirement

    return Requirement(requirement).specifier.contains(there(requirement).split("+")[0], prereleases=True)


def install(requirements: list[str]) -> str:
    """pip's last complaint, "" if there was none. Every version that is here is a constraint."""
    here = {d.metadata["Name"]: d.version for d in reversed(list(distributions())) if d.metadata["Name"]}
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder, "constraints.txt")
        known = "".join(f"{name}=={number}\n" for name, number in here.items() if pinnable(number))
        pins.write_text(known, encoding="utf-8")
        quiet = ["--quiet", "--disable-pip-version-check", "--no-warn-conflicts"]
        command = [sys.executable, "-m", "pip", "install", *quiet, "--constraint", str(pins), *requirements]
        done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if not done.returncode:
        return ""
    said = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return f"pip cannot install {', '.join(map(name_of, requirements))} ({said}); run this cell again"


def pinnable(number: str) -> bool:
    """Whether pip reads it as a version: a few system packages have others."""
    from packaging.version import InvalidVersion, Version

    try:
        return bool(Version(number))
    except InvalidVersion:
        return False


def write_command() -> None:
    """`!course progress` works in a cell as in a terminal."""
    path = Path(sysconfig.get_path("scripts"), "course")
    path.write_text(
        f"#!{sys.executable}\nimport sys\n\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from course.cli import main\n\nraise SystemExit(main())\n",
        encoding="utf-8",
    )
    path.chmod(0o755)


def about_gpu(stem: str) -> str:
    """Which GPU there is; where there is none, whether this chapter wants one and how to get it."""
    import torch

    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        return f"GPU: {card.name}, {card.total_memory / 2**30:.1f} GiB"
    if SPEED[0] <= stem[:2] <= SPEED[1]:
        return (
            "no GPU: this chapter measures what there is, and a GPU is what it is about; Runtime → Change runtime type → "
            "T4 GPU, then run this cell again"
        )
    return "no GPU: this chapter is sized for a CPU"


# The notebook on the screen


def is_colab() -> bool:
    """Whether a page of Colab shows this notebook. `course run` starts a kernel of Colab's, too, but shows nothing."""
    return "google.colab" in sys.modules and "COURSE_EXECUTED" not in os.environ


def save_shown(path: Path) -> None:
    """Write the notebook that the page shows to `path`, where the checkpoint reads it. CourseError if Colab has none."""
    from google.colab import _message

    from course.files import write_atomically
    from course.paths import CourseError

    try:
        reply = _message.blocking_request("get_ipynb", request="", timeout_sec=ANSWER_SECONDS)
        shown = reply["ipynb"]
        cells = shown["cells"]
    except Exception as error:  # no reply is None; the page may answer with an error of its own
        raise CourseError(
            f"Colab has not handed over the notebook ({type(error).__name__}): keep its page open, and run this cell again"
        ) from None
    if not cells:
        raise CourseError("Colab has handed over an empty notebook: reload the page, and run this cell again")
    write_atomically(path, (json.dumps(shown, indent=1, ensure_ascii=False) + "\n").encode())
