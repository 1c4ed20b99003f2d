"""`course doctor`: is this machine ready? One line each, with the remedy; exit 1 only on red."""

import json
import os
import platform
import re
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from course.machine.finding import GREEN, RED, YELLOW, Finding, green_if
from course.machine.resources import arithmetic, device, other_work, resources, speed_features
from course.package.remedies import not_there, remedy_for
from course.paths import BUILT, ROOT
from course.states.state import package

RELEASED_SIZE = 1024  # chapter 01's VOCAB as it was released
GOES = "download what you want to keep"
# Places and what is worth knowing there, by a variable that each sets; the first counts, as Codespaces is a dev container.
VARIABLES = {
    "COLAB_RELEASE_TAG": ("Google Colab", f"files go with the runtime: {GOES}"),
    "KAGGLE_KERNEL_RUN_TYPE": ("Kaggle", "clone the course into /kaggle/working: Save Version keeps that alone"),
    "BINDER_REPO_URL": ("Binder", f"it ends when you leave it idle: {GOES}"),
    "CODESPACES": ("GitHub Codespaces", "`course lab --no-browser`; its address is in the Ports tab"),
    "REMOTE_CONTAINERS": ("a dev container", "`course lab --no-browser`; its address is in the Ports tab"),
    "KUBERNETES_SERVICE_HOST": ("a Kubernetes pod", "`course lab --no-browser --ip=0.0.0.0`, then kubectl port-forward"),
}  # fmt: skip
# By a file that the container's engine leaves there.
FILES = {
    "run/.containerenv": ("a Podman container", "`course lab --no-browser --ip=0.0.0.0` behind podman run -p 8888:8888"),
    ".dockerenv": ("a Docker container", "`course lab --no-browser --ip=0.0.0.0` behind docker run -p 8888:8888"),
}  # fmt: skip


def doctor(checks=None) -> int:
    """Make the checks, or all of CHECKS and a verdict if none are given, and print what they find; 1 if one is red."""
    terminal = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    found = []
    for check in checks or CHECKS:
        for finding in guarded(check):
            print(finding.line(terminal), flush=True)
            found.append(finding)
    if checks is None:
        print("\n" + verdict(found))
    return 1 if RED in {finding.colour for finding in found} else 0


def verdict(found: list[Finding]) -> str:
    """What all findings come to, and what to do next."""
    red = [finding.topic for finding in found if finding.colour == RED]
    yellow = [finding.topic for finding in found if finding.colour == YELLOW]
    if red:
        return f"not ready: first repair what is red ({', '.join(red)}); the line says how"
    if yellow:
        return f"ready. What is yellow can be better ({', '.join(yellow)}). Begin with `course lab`"
    return "ready: begin with `course lab`"


def guarded(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that itself breaks is a finding, not a traceback."""
    try:
        yield from check()
    except Exception as error:
        topic = check.__name__.replace("_", " ")
        if waits := not_there(str(error)):
            yield Finding(GREEN, topic, waits)
            return
        text = f"could not be checked ({type(error).__name__}: {error})"
        yield Finding(RED, topic, text, remedy_for(error) or "run `make course` again to repair .venv")


def python() -> Iterator[Finding]:
    fine = (3, 11) <= sys.version_info < (3, 14)
    yield green_if(fine, "python", platform.python_version(), "install Python 3.11, 3.12 or 3.13", RED)


def place() -> Iterator[Finding]:
    where, hint = where_is_this(os.environ, Path("/"))
    if slow := where == "WSL" and re.match(r"/mnt/[a-z]/", ROOT.as_posix()) is not None:
        where, hint = "WSL, on Windows' disk", "clone the course into your home, where files are read faster"
    yield Finding(YELLOW if slow else GREEN, "place", f"{where}, Python in {sys.prefix}", hint)


def where_is_this(env: Mapping[str, str], root: Path) -> tuple[str, str]:
    """The place, and what is worth knowing there. root: /, or a folder of the same shape."""
    found = [place for variable, place in VARIABLES.items() if env.get(variable)]
    found += [place for file, place in FILES.items() if (root / file).exists()]
    if found:
        return found[0]
    kernel = root / "proc/sys/kernel/osrelease"
    if kernel.exists() and "microsoft" in kernel.read_text(encoding="utf-8").lower():
        return "WSL", ""
    return f"{platform.system()} on {platform.machine()}", ""


def packages() -> Iterator[Finding]:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", constraints, re.MULTILINE))
    install = "pip install -c constraints.txt -e '.[course]'"
    missing, other = [], []
    for name, required in wanted_packages():
        try:
            found = version(name).split("+")[0]
        except PackageNotFoundError:
            if required:  # the others are for tests and instructors
                missing.append(f"{name} is missing")
            continue
        if found != pins.get(name, found):
            other.append(f"{name} {found} (pinned {pins[name]})")
    if missing:
        yield Finding(RED, "packages", ", ".join(missing), f"run `make course`, or {install}")
    if other:
        yield Finding(YELLOW, "packages", ", ".join(other), f"usually fine; {install} brings the pins")
    if not missing and not other:
        yield Finding(GREEN, "packages", "all as pinned")


def wanted_packages() -> list[tuple[str, bool]]:
    """Names in pyproject.toml, and whether the course cannot do without ([dev] it can)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["commands"], *extras["course"]]
    wanted = [(re.match(r"[\w.-]+", d)[0], d in needed) for d in [*needed, *extras["dev"]]]
    return [(name, required) for name, required in wanted if name != project["name"]]


def kernel() -> Iterator[Finding]:
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    remedy = "python -m ipykernel install --sys-prefix"
    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        yield Finding(RED, "kernel", "Jupyter knows no python3 kernel", remedy)
        return
    # A bare "python" is this Python: jupyter_client puts its own executable there.
    ours = command in ("python", "python3") or os.path.realpath(command) == os.path.realpath(sys.executable)
    yield green_if(ours, "kernel", f"python3, {'this' if ours else 'another'} Python", remedy)


def vocabulary() -> Iterator[Finding]:
    from nanogpt.tokenizer import BPETokenizer

    try:
        BPETokenizer.gpt2()
        yield Finding(GREEN, "GPT-2 vocab", "readable")
    except Exception:
        text = "neither cached nor to be downloaded: the course runs on its own tokenizer"
        remedy = "for GPT-2's ids go online once, or set TIKTOKEN_CACHE_DIR"
        yield Finding(GREEN, "GPT-2 vocab", text, remedy)


def data() -> Iterator[Finding]:
    there = sorted(p.name for p in (ROOT / "data" / "downloads").glob("*"))
    built = "built" if (BUILT / "stories").is_dir() else "made by chapter 03"
    downloaded = f"; downloaded: {', '.join(there)}" if there else ""
    yield Finding(GREEN, "corpus", f"embedded, {built}{downloaded}")
    yield data_sets()


def data_sets() -> Finding:
    """Whether the host of the data sets answers: Hugging Face's, or the mirror that HF_ENDPOINT names."""
    from huggingface_hub.constants import ENDPOINT

    address = urlsplit(ENDPOINT)
    host, port = address.hostname or ENDPOINT, address.port or {"http": 80}.get(address.scheme, 443)
    try:
        socket.create_connection((host, port), 3).close()
        return Finding(GREEN, "data sets", f"{host} can be reached")
    except OSError:
        return Finding(GREEN, "data sets", f"{host} cannot be reached: the embedded corpus needs no network")


def built() -> Iterator[Finding]:
    """Whether tokenizer, shards and model below data/built are of one vocabulary: the same ids must mean the same text."""
    files = ("tokenizer.json", "stories/manifest.json", "model/tokenizer.json")
    vocabularies = {
        file.partition("/")[0]: vocabulary_of(BUILT / file) for file in files if (BUILT / file).exists()
    }
    if not vocabularies:
        return
    sizes = {size for _, size in vocabularies.values()}
    if len(set(vocabularies.values())) == 1 and sizes == {RELEASED_SIZE}:
        yield Finding(GREEN, "vocabulary", f"data/built has one vocabulary, of {RELEASED_SIZE:,} tokens")
        return
    each = [f"{name} has {size:,} tokens ({mark[:8]})" for name, (mark, size) in vocabularies.items()]
    text = f"in data/built, {', '.join(each)}: chapters need one vocabulary, of {RELEASED_SIZE:,}"
    remedy = "delete tokenizer.json, stories and model there, and `course run 01 07` makes them again"
    yield Finding(RED, "vocabulary", text, remedy)


def vocabulary_of(path: Path) -> tuple[str, int]:
    """The fingerprint and the number of tokens in a saved tokenizer or a manifest."""
    try:
        saved = json.loads(path.read_bytes())
        size = saved["vocab_size"] if "vocab_size" in saved else len(saved["vocab"]) + len(saved["special"])
        return saved["fingerprint"], size
    except (ValueError, LookupError, TypeError):
        return "damaged", 0


CHECKS = (
    python,
    place,
    packages,
    package,
    kernel,
    resources,
    other_work,
    device,
    speed_features,
    vocabulary,
    data,
    built,
    arithmetic,
)
