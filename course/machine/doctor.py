"""`course doctor`: is this machine ready? One line each, with the remedy; exit 1 only on red."""

import json
import os
import platform
import re
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.parse import urlsplit

from course.machine.finding import GREEN, RED, YELLOW, Finding
from course.machine.places import place
from course.machine.resources import arithmetic, device, other_work, resources, speed_features
from course.package.remedies import remedy_for
from course.paths import BUILT, ROOT
from course.states.started import not_built_yet, package

RELEASED_SIZE = 1024  # chapter 01's VOCAB as it was released


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
        if waits := not_built_yet(error):
            yield Finding(GREEN, check.__name__.replace("_", " "), waits)
            return
        yield Finding(
            RED,
            check.__name__.replace("_", " "),
            f"could not be checked ({type(error).__name__}: {error})",
            remedy_for(error) or "run `make course` again to repair .venv",
        )


def python() -> Iterator[Finding]:
    fine = (3, 11) <= sys.version_info < (3, 14)
    yield Finding(
        GREEN if fine else RED,
        "python",
        platform.python_version(),
        "" if fine else "install Python 3.11, 3.12 or 3.13",
    )


def packages() -> Iterator[Finding]:
    pins = dict(
        re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    )
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
        yield Finding(
            RED,
            "packages",
            ", ".join(missing),
            "run `make course`, or pip install -c constraints.txt -e '.[course]'",
        )
    if other:
        yield Finding(
            YELLOW,
            "packages",
            ", ".join(other),
            "usually fine; pip install -c constraints.txt -e '.[course]' brings the pins",
        )
    if not missing and not other:
        yield Finding(GREEN, "packages", "all as pinned")


def wanted_packages() -> list[tuple[str, bool]]:
    """Names in pyproject.toml, and whether the course cannot do without ([dev] it can)."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    name = re.compile(r"^[\w.-]+")
    needed = [*project["dependencies"], *extras["commands"], *extras["course"]]
    wanted = [(name.match(d).group(), d not in extras["dev"]) for d in [*needed, *extras["dev"]]]
    return [(package, required) for package, required in wanted if package != project["name"]]


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
    if ours:
        yield Finding(GREEN, "kernel", "python3, this Python")
    else:
        yield Finding(YELLOW, "kernel", "python3 is another Python than this one", remedy)


def vocabulary() -> Iterator[Finding]:
    from nanogpt.tokenizer import BPETokenizer

    try:
        BPETokenizer.gpt2()
        yield Finding(GREEN, "GPT-2 vocab", "readable")
    except Exception:
        yield Finding(
            GREEN,
            "GPT-2 vocab",
            "neither cached nor to be downloaded: the course runs on its own tokenizer",
            "for GPT-2's ids go online once, or set TIKTOKEN_CACHE_DIR",
        )


def data() -> Iterator[Finding]:
    there = sorted(p.name for p in (ROOT / "data" / "downloads").glob("*"))
    built = "built" if (BUILT / "stories").is_dir() else "made by chapter 02"
    yield Finding(
        GREEN, "corpus", f"embedded, {built}" + (f"; downloaded: {', '.join(there)}" if there else "")
    )
    yield data_sets()


def built() -> Iterator[Finding]:
    """Whether tokenizer, shards and model below data/built are of one vocabulary: the same ids must mean the same text."""
    files = {
        "tokenizer.json": "tokenizer.json",
        "stories": "stories/manifest.json",
        "model": "model/tokenizer.json",
    }
    vocabularies = {}
    for name, file in files.items():
        if (BUILT / file).exists():
            vocabularies[name] = vocabulary_of(BUILT / file)
    if not vocabularies:
        return
    sizes = {size for _, size in vocabularies.values()}
    if len(set(vocabularies.values())) == 1 and sizes == {RELEASED_SIZE}:
        yield Finding(
            GREEN, "vocabulary", f"{', '.join(vocabularies)} in data/built: the same {RELEASED_SIZE:,} tokens"
        )
        return
    each = [f"{name} has {size:,} tokens ({mark[:8]})" for name, (mark, size) in vocabularies.items()]
    yield Finding(
        RED,
        "vocabulary",
        f"in data/built, {', '.join(each)}: chapters need one vocabulary, of {RELEASED_SIZE:,}",
        "delete tokenizer.json, stories and model there, and `course run 01 07` makes them again",
    )


def vocabulary_of(path: Path) -> tuple[str, int]:
    """The fingerprint and the number of tokens in a saved tokenizer or a manifest."""
    try:
        saved = json.loads(path.read_bytes())
        size = saved["vocab_size"] if "vocab_size" in saved else len(saved["vocab"]) + len(saved["special"])
        return saved["fingerprint"], size
    except (ValueError, LookupError, TypeError):
        return "damaged", 0


def data_sets() -> Finding:
    """Whether the host of the data sets answers: Hugging Face's, or the mirror that HF_ENDPOINT names."""
    from huggingface_hub.constants import ENDPOINT

    address = urlsplit(ENDPOINT)
    host = address.hostname or ENDPOINT
    try:
        socket.create_connection((host, address.port or (80 if address.scheme == "http" else 443)), 3).close()
        return Finding(GREEN, "data sets", f"{host} can be reached")
    except OSError:
        return Finding(GREEN, "data sets", f"{host} cannot be reached: the embedded corpus needs no network")


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
