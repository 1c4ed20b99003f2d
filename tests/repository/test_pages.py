"""The API page's examples run and print what it says; results have no number without a record; the changelog's version."""

import io
import re
import socket
import tomllib
from contextlib import redirect_stdout

import nanogpt
from course.paths import PACKAGE, ROOT
from nanogpt.cli import COMMANDS

API = (ROOT / "site" / "api.md").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```)?", API, re.MULTILINE | re.DOTALL)


def test_the_examples_run_in_order_offline_and_print_what_the_page_shows(tmp_path, monkeypatch):
    def offline(*_):
        raise OSError("an example of the API page asks the network")

    monkeypatch.setattr(socket.socket, "connect", offline)
    monkeypatch.setenv("NANOGPT_DEVICE", "cpu")
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, (code, shown) in enumerate(EXAMPLES, 1):
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, f"api.md, example {number}", "exec"), names)
        assert printed.getvalue().endswith(shown), f"example {number} prints something else"


def test_the_page_is_whole_and_its_examples_are_short():
    code = "\n".join(code for code, _ in EXAMPLES)
    assert all(re.search(rf"import .*\b{name}\b", code) for name in nanogpt.__all__), "a name without example"
    linked = set(re.findall(r"\(\.\./nanogpt/(\w+)\.py\)", API)) - {"__init__"}
    assert {path.stem for path in PACKAGE.glob("[a-z]*.py")} - linked == {"build", "files"}, "plumbing alone"
    commands = re.findall(r"`(\w+)`", API[API.index("| command |") :].replace("`python -m nanogpt`", ""))
    assert set(commands) == set(COMMANDS)
    assert all(2 <= len(re.findall(".+", code)) <= 6 for code, _ in EXAMPLES), "lines of an example"


def test_the_changelog_begins_with_the_version_and_is_short():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "nanogpt.__version__"}
    assert re.search(r"^## \[([\d.]+)\]", CHANGELOG, re.MULTILINE)[1] == nanogpt.__version__
    assert len(CHANGELOG.splitlines()) <= 60
