"""The other ways to the course (uv, conda, Binder) install what constraints.txt pins."""

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename

from course.machine.setup_env import CPU_INDEX
from course.paths import ROOT

CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")
PINS = re.findall(r"^([\w.-]+)==(\S+)", CONSTRAINTS, re.MULTILINE)
LOCK = (ROOT / "uv.lock").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT = PYPROJECT["project"]
PYTHONS = SpecifierSet(PROJECT["requires-python"])
REMEDY = "`uv export` makes constraints.txt from uv.lock, as CONTRIBUTING.md says"


def test_the_lock_and_the_constraints_name_the_same_versions():
    """Each way round, and on every system: no version in one alone, and no package with two."""
    packages = [package for package in tomllib.loads(LOCK)["package"] if "registry" in package["source"]]
    assert sorted((package["name"], package["version"]) for package in packages) == sorted(PINS), REMEDY


def test_the_lock_knows_what_pyproject_asks_for():
    """As `uv lock --check` does: a requirement that was added or changed since is not in the lock."""
    course = next(p for p in tomllib.loads(LOCK)["package"] if p["name"] == PROJECT["name"])
    groups = {"": PROJECT["dependencies"]} | PROJECT["optional-dependencies"]
    asked = {(name(text), extra) for extra, texts in groups.items() for text in texts}
    found = set()
    for entry in course["metadata"]["requires-dist"]:
        extra = re.search(r"extra == '(\w+)'", entry.get("marker", ""))
        found.add((entry["name"] + entry.get("specifier", ""), extra[1] if extra else ""))
    assert asked == found, f"{asked ^ found}; {REMEDY}"
    assert SpecifierSet(tomllib.loads(LOCK)["requires-python"]) == PYTHONS


def name(text: str) -> str:
    """`huggingface-hub>=1`, without the marker, as the lock writes it."""
    wanted = Requirement(text)
    return wanted.name.lower().replace("_", "-") + str(wanted.specifier)


def test_the_lock_names_the_public_index_alone():
    """An address of a mirror, of a file or of a company's proxy is of no use on a student's laptop."""
    hosts = set(re.findall(r"\w+://[^/\"]+", LOCK))
    assert hosts == {"https://pypi.org", "https://files.pythonhosted.org"}
    for package in tomllib.loads(LOCK)["package"]:
        if "editable" not in package["source"]:
            assert package["source"] == {"registry": "https://pypi.org/simple"}, package["name"]
        for file in [*package.get("wheels", []), *filter(None, [package.get("sdist")])]:
            assert re.fullmatch(r"sha256:[0-9a-f]{64}", file["hash"]), file["url"]


@pytest.mark.parametrize("python", ["cp311", "cp312", "cp313"])
@pytest.mark.parametrize("system", ["manylinux.*x86_64", "manylinux.*aarch64", "macosx.*arm64", "win_amd64"])
def test_the_lock_has_a_torch_for_every_laptop(python, system):
    torch = next(p for p in tomllib.loads(LOCK)["package"] if p["name"] == "torch")
    tags = [tag for w in torch["wheels"] for tag in parse_wheel_filename(w["url"].rpartition("/")[2])[3]]
    assert any(tag.interpreter == python and re.fullmatch(system, tag.platform) for tag in tags)


def test_conda_installs_by_the_constraints():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    python, _, pip = conda["dependencies"]
    assert conda["channels"] == ["conda-forge"]
    assert python.removeprefix("python=") + ".0" in PYTHONS
    first, *named, last = pip["pip"]
    assert (first, last) == ("--constraint constraints.txt", "--editable .[course,dev]")
    assert {"jupyterlab", "torch", "numpy"} <= {each.partition("==")[0] for each in named}
    assert set(named) <= set(CONSTRAINTS.splitlines())


def dockerfile() -> list[tuple[str, str]]:
    """Instructions and their arguments, with continued lines joined and comments left out."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    joined = "\n".join(line for line in lines if not line.lstrip().startswith("#")).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def test_docker_installs_before_it_copies_the_chapters():
    """Else every edit of a chapter installs 2 GB again; and the set-up finds all that it reads."""
    lines = dockerfile()
    setup = next(i for i, (what, words) in enumerate(lines) if what == "RUN" and "setup_env.py" in words)
    copies = [(i, words.split()) for i, (what, words) in enumerate(lines) if what == "COPY"]
    before = {word for i, words in copies if i < setup for word in words[:-1] if not word.startswith("--")}
    read = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE", "course/machine/setup_env.py"}
    assert before == read and any(i > setup and words[-2:] == [".", "."] for i, words in copies)
    folders = next(re.findall(r"mkdir --parents ([\w/ ]+)", words)[0] for _, words in lines[setup:])
    packages = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    assert {p.removesuffix("*") for p in packages} == {*folders.split(), "course"}


def test_docker_ignores_what_git_ignores():
    git = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    docker = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    kept = {"*.pyc", "yours"}  # one lies in __pycache__, the other is the student's own
    assert {line.removeprefix("**/") for line in docker} >= {line.strip("/") for line in git} - kept


def test_binder_installs_the_pinned_versions_with_the_cpu_build_of_torch():
    lines = (ROOT / "binder/requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    assert wanted == [
        f"--extra-index-url {CPU_INDEX}",
        "--constraint ../constraints.txt",
        f"torch=={dict(PINS)['torch']}+cpu",
        "--editable .[course]",
    ]
    python = (ROOT / "binder/runtime.txt").read_text(encoding="utf-8").strip()
    assert python.removeprefix("python-") + ".0" in PYTHONS
