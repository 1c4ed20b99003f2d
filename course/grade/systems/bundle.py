"""`course grade bundle`: the zip that Gradescope takes as an autograder, or a PrairieLearn question."""

import importlib.metadata
import io
import json
import uuid
import zipfile
from pathlib import Path

from course.exercises.sets import ExerciseSet
from course.files import write_atomically
from course.paths import ROOT, relative

FOLDERS = ("course", "nanogpt")
# What grading imports, and nothing else; the versions are those of this machine.
PACKAGES = (
    "numpy",
    "regex",
    "tiktoken",
    "safetensors",
    "pyyaml",
    "pydantic",
    "tqdm",
    "nbformat",
    "jupytext",
    "nbclient",
)
PYTHON = "/opt/course/bin/python"
SETUP = """\
#!/usr/bin/env bash
# Python and PyTorch for the CPU, where another uid than root's can read them: the grader runs submissions under one.
set -euo pipefail
apt-get update
apt-get install -y --no-install-recommends python3-pip util-linux
python3 -m pip install --no-cache-dir uv || python3 -m pip install --no-cache-dir --break-system-packages uv
export UV_PYTHON_INSTALL_DIR=/opt/python
uv venv --python 3.12 /opt/course
uv pip install --python {python} --no-cache --index-url https://download.pytorch.org/whl/cpu torch=={torch}
uv pip install --python {python} --no-cache {packages}
chmod -R a+rX /opt/python /opt/course
"""
RUN = """\
#!/usr/bin/env bash
# What the grader prints is for the instructor. Without a results.json the system reports a failed autograder, not a zero.
cd {source}
exec {python} -m course.grade.systems.station {system} exercises/{name}
"""
DOCKERFILE = """\
# docker build -t YOUR/gpt2-grader . && docker push YOUR/gpt2-grader, then name it in info.json
FROM ubuntu:24.04
COPY setup.sh /setup.sh
RUN bash /setup.sh
"""


def bundle(system: str, made: ExerciseSet, out: Path) -> str:
    """Write the zip; one line that says how large it is and what to do with it."""
    files = gradescope(made) if system == "gradescope" else prairielearn(made)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))  # the same bytes today and tomorrow
            entry.external_attr = (0o755 if content.startswith(b"#!") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    write_atomically(out, data.getvalue())
    return f"{relative(out)}: {len(files)} files, {len(data.getvalue()) / 1000:.0f} kB"


def grading(made: ExerciseSet, below: str) -> dict[str, bytes]:
    """The grader, the package and the set with its checks."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    files = {f"{below}{path.relative_to(ROOT).as_posix()}": path.read_bytes() for path in paths}
    for path in made.folder.glob("*.py"):
        files[f"{below}exercises/{made.name}/{path.name}"] = path.read_bytes()
    return files


def setup() -> bytes:
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES]
    torch = importlib.metadata.version("torch").partition("+")[0]
    return SETUP.format(python=PYTHON, torch=torch, packages=" ".join(versions)).encode()


def gradescope(made: ExerciseSet) -> dict[str, bytes]:
    run = RUN.format(source="/autograder/source", python=PYTHON, system="gradescope", name=made.name)
    return grading(made, "") | {"setup.sh": setup(), "run_autograder": run.encode()}


def prairielearn(made: ExerciseSet) -> dict[str, bytes]:
    """questions/NN_name with its tests folder, and the image's Dockerfile."""
    question = f"questions/{made.name}"
    run = RUN.format(source="/grade/tests", python=PYTHON, system="prairielearn", name=made.name)
    info = {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, f"nanogpt-course/{made.name}")),
        "title": made.name,
        "topic": "GPT-2",
        "type": "v3",
        "gradingMethod": "External",
        "externalGradingOptions": {
            "enabled": True,
            "image": "YOUR/gpt2-grader",
            "entrypoint": "/grade/tests/run.sh",
            "timeout": 600,
        },
    }
    page = (
        f"<pl-question-panel><p>Hand in <code>{made.name}.ipynb</code>.</p></pl-question-panel>\n"
        f"<pl-submission-panel><pl-external-grader-results></pl-external-grader-results></pl-submission-panel>\n"
        f'<pl-file-upload file-names="{made.name}.ipynb"></pl-file-upload>\n'
    )
    return grading(made, f"{question}/tests/") | {
        f"{question}/info.json": (json.dumps(info, indent=2) + "\n").encode(),
        f"{question}/question.html": page.encode(),
        f"{question}/tests/run.sh": run.encode(),
        "image/Dockerfile": DOCKERFILE.encode(),
        "image/setup.sh": setup(),
    }
