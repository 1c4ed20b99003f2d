"""On Google Colab: what a notebook's first cell calls, and how the checkpoint gets the notebook that is on the screen.

The first cell runs this file by its path, before anything is installed and perhaps from another commit than the
notebook's own: nothing of the course is imported above.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SPEED = ("09", "14")  # the chapters that measure a GPU
TUNES = "19"  # its chapters start from chapter 07's model; all others make what they miss
ANSWER_SECONDS = 60
LOST = (
    "/content is deleted when this runtime ends, with nanogpt/ and all that chapters make. File → Save a copy in Drive keeps "
    "this notebook; the course's FAQ (My work on Colab) says how to keep the rest"
)


def set_up(stem: str, digest: str) -> None:
    """Make the runtime what a laptop is after `make course`: this notebook's commit, its packages, its folder.

    stem: the notebook's name, "09_measuring"; digest: the hash of its source that the notebook carries.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as course/__init__.py says
    print(find_commit(f"notebooks/{stem}.ipynb", digest))
    if said := install_missing():
        print(said)
    os.chdir(ROOT / "notebooks")
    sys.path.insert(0, str(ROOT))
    others = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *others])  # for processes of a chapter
    write_command()
    print(about_gpu(stem))
    print(LOST)
    if stem.startswith(TUNES) and not (ROOT / "data/built/model").exists():
        print("this chapter starts from chapter 07's model: `!course run 07` in a new cell makes it here")


def find_commit(notebook: str, digest: str) -> str:
    """Check out a commit whose notebook has this digest, and say which. Edited files are never overwritten."""
    if digest in git("show", f"HEAD:{notebook}"):
        return f"the course at {short('HEAD')}, the commit of this notebook"
    # The newest commit that brought the digest or, more often, replaced it: then it is the one before.
    found = git("log", "--all", "-1", "--format=%H", f"-S{digest}", "--", notebook).strip()
    if not found:
        return f"no commit of the course has this notebook; going on with {short('HEAD')}, whose modules may be others"
    if digest not in git("show", f"{found}:{notebook}"):
        found += "^"
    git("checkout", "--quiet", found)
    if digest in git("show", f"HEAD:{notebook}"):
        return f"the course at {short('HEAD')}, the commit of this notebook; there are newer ones"
    return (
        f"this notebook is of commit {short(found)}, and the files here, with your changes, are of {short('HEAD')}: "
        "for the notebook's own, Runtime → Disconnect and delete runtime, then run this cell again"
    )


def short(commit: str) -> str:
    return git("log", "-1", "--format=%h of %cs", commit).strip()


def git(*args: str) -> str:
    """What git says, "" if it fails."""
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, encoding="utf-8", errors="replace")
    return done.stdout if done.returncode == 0 else ""


def install_missing() -> str:
    """Install the packages that are not there, and say which. PyTorch stays the one that Colab has, or pip refuses."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *extras["commands"], *extras["course"]]
    wanted = {re.match(r"[\w.-]+", text)[0]: text for text in needs}
    not_here = (project["name"], "jupyterlab")  # Colab is the page
    missing = {name: text for name, text in wanted.items() if not there(name) and name not in not_here}
    if not missing:
        return ""
    kept = [f"torch=={version('torch')}"] if there("torch") else []
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-warn-conflicts", *kept]
    command += missing.values()
    done = subprocess.run(command, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"pip cannot install {', '.join(missing)} ({said}); run this cell again"
    return f"installed {', '.join(missing)}"


def there(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def write_command() -> None:
    """`!course progress` works in a cell as in a terminal."""
    path = Path(sysconfig.get_path("scripts"), "course")
    path.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m course \"$@\"\n", encoding="utf-8")
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


def is_colab() -> bool:
    """Whether a page of Colab shows this notebook. `course run` starts a kernel of Colab's, too, but shows nothing."""
    return "google.colab" in sys.modules and "COURSE_EXECUTED" not in os.environ


def save_shown(path: Path) -> None:
    """Write the notebook that the page shows to `path`, where the checkpoint reads it. CourseError if Colab has none."""
    from google.colab import _message

    from course.files import json_bytes, write_atomically
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
    write_atomically(path, json_bytes(shown))
