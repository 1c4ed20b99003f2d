"""`python -m course.site.lock` (authors, needs uv): uv.lock holds the versions of constraints.txt, for every system and Python.

What only other systems need (CUDA, macOS, Windows) is pinned at the end of constraints.txt in turn.
"""

import json
import re
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

from course.files import write_atomically
from course.paths import ROOT, CourseError

PINS, LOCK = ROOT / "constraints.txt", ROOT / "uv.lock"
PUBLIC = "https://pypi.org/simple"  # a mirror's addresses would be of no use to others
OTHERS = "# Only on other systems (CUDA, macOS, Windows), from uv.lock:\n"


def pins(text: str) -> dict[str, str]:
    """Version by normalised name, from constraints.txt's text."""
    return {normal(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str) -> dict[str, list[str]]:
    """Versions by name, from uv.lock's text, the course itself left out."""
    found: dict[str, list[str]] = {}
    for package in tomllib.loads(text)["package"]:
        if "registry" in package["source"]:
            found.setdefault(package["name"], []).append(package["version"])
    return found


def main() -> int:
    tested = PINS.read_text(encoding="utf-8").partition(OTHERS)[0]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as aside:
        here = Path(aside)
        constraints = json.dumps([f"{name}=={version}" for name, version in pins(tested).items()])
        constrained = project.replace("[tool.uv]\n", f"[tool.uv]\nconstraint-dependencies = {constraints}\n")
        (here / "pyproject.toml").write_text(constrained, encoding="utf-8")
        uv_lock(here)
        shutil.copy(here / "uv.lock", LOCK)
    uv_lock(ROOT)  # keeps the versions that it finds there, without a second list of them in pyproject.toml
    others = {n: v for n, v in locked(LOCK.read_text(encoding="utf-8")).items() if n not in pins(tested)}
    lines = [f"{name}=={version}\n" for name, versions in sorted(others.items()) for version in versions]
    write_atomically(PINS, (tested + OTHERS + "".join(lines)).encode())
    return 0


def uv_lock(folder: Path) -> None:
    try:
        done = subprocess.run(["uv", "lock", "--no-config", "--default-index", PUBLIC], cwd=folder)
    except FileNotFoundError:
        raise CourseError("uv is not on the path; `pip install uv` brings it") from None
    if done.returncode:
        raise CourseError("uv found no versions that go together (see above); correct constraints.txt")


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except CourseError as error:
        raise SystemExit(f"course: {error}") from None
