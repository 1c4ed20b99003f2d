"""`course publish URL` writes the address wherever it belongs, and nothing else changes."""

import os
import subprocess

import nbformat
import pytest

from course.files import notebook_bytes
from course.notebooks.address import PLACEHOLDER, is_published, repository, undressed
from course.paths import ROOT
from course.site.publish import texts_with

NEW = "https://github.com/a-teacher/gpt2-course.2027"
README = "git clone https://github.com/OWNER/gpt2-course\n[Colab](https://colab.research.google.com/github/OWNER/gpt2-course/blob/main/x.ipynb)\nOWNER/gpt2-course-of-another\n"


@pytest.fixture
def texts(house):
    (house.path / "README.md").write_text(README, encoding="utf-8")
    (house.path / "site").mkdir()
    (house.path / "site/faq.md").write_text(
        "<https://github.com/OWNER/gpt2-course/issues>\n", encoding="utf-8"
    )
    (house.path / "site/other.md").write_text("no address\n", encoding="utf-8")
    return house


def test_the_address_is_written_everywhere_and_outputs_stay(texts):
    before = undressed(nbformat.read(texts.notebook, as_version=4))
    said = texts.course("publish", f" {NEW}.git/")
    assert said.startswith(f"{NEW} is the address in 4 files"), said
    assert (texts.path / "README.md").read_text(encoding="utf-8").split("\n")[:3] == [
        f"git clone {NEW}",
        "[Colab](https://colab.research.google.com/github/a-teacher/gpt2-course.2027/blob/main/x.ipynb)",
        "OWNER/gpt2-course-of-another",
    ]
    assert f'Repository = "{NEW}"' in (texts.path / "pyproject.toml").read_text(encoding="utf-8")
    assert f"<{NEW}/issues>" in (texts.path / "site/faq.md").read_text(encoding="utf-8")
    nb = nbformat.read(texts.notebook, as_version=4)
    assert "github/a-teacher/gpt2-course.2027/blob/main/notebooks/04_tiny.ipynb" in nb.cells[0].source
    assert f'"{NEW}"' in nb.cells[1].source and "git clone" in nb.cells[1].source
    assert PLACEHOLDER not in texts.notebook.read_text(encoding="utf-8")
    assert notebook_bytes(undressed(nb)) == notebook_bytes(before), (
        "cells, ids, counts and outputs are the same"
    )
    assert "1 chapters agree" in texts.course("build", "--check")
    assert "1 chapters agree" in texts.course("checkpoint", "--all", "--check")


def test_an_address_is_moved_and_said_again(texts):
    texts.course("publish", NEW)
    first = contents(texts)
    texts.course("publish", NEW)
    assert contents(texts) == first
    texts.course("publish", "https://github.com/b/c")
    assert "git clone https://github.com/b/c\n" in (texts.path / "README.md").read_text(encoding="utf-8")
    assert "a-teacher" not in texts.notebook.read_text(encoding="utf-8")


def contents(house) -> dict:
    return {path: path.read_bytes() for path in house.path.rglob("*.[mit]*") if path.is_file()}


@pytest.mark.parametrize(
    "url",
    ["", "gpt2-course", "http://github.com/a/b", "https://gitlab.com/a/b", "https://github.com/a", "https://github.com/a/b/c",
     "https://github.com/a/b\"\nx = 1", "https://github.com/../b", "git@github.com:a/b.git", "https://github.com/OWNER/gpt2-course"],
)  # fmt: skip
def test_what_is_no_address_changes_nothing(texts, url):
    before = contents(texts)
    said = texts.course("publish", url, code=2)
    assert "https://github.com/NAME/gpt2-course" in said and said.count("\n") == 1
    assert contents(texts) == before


def test_restore_brings_back_a_chapter_of_before_the_address(house):
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "released"]):
        house.git(*command)
    house.course("publish", NEW)
    house.edit("LIMIT = 3", "LIMIT = 4")
    house.course("restore", "04", "--yes")
    nb = nbformat.read(house.notebook, as_version=4)
    assert NEW in nb.cells[1].source and nb.cells[4].outputs[0].text == "12.566\n", "with outputs"


def test_without_an_address_the_notebooks_are_dressed_again(texts):
    nb = nbformat.read(texts.notebook, as_version=4)
    nb.cells[1].source += "\n# an older first cell"
    texts.notebook.write_bytes(notebook_bytes(nb))
    assert texts.course("publish") == "1 notebooks have a new first cell\n"
    assert "an older first cell" not in texts.notebook.read_text(encoding="utf-8")
    assert texts.course("publish") == "0 notebooks have a new first cell\n"


def test_this_commit_if_tagged_has_an_address():
    """In CI for a tag, and in a clone whose commit has one: the first command of README must work."""
    tag = os.environ.get("GITHUB_REF_NAME", "") if os.environ.get("GITHUB_REF_TYPE") == "tag" else ""
    command = ["git", "tag", "--points-at", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    if tag := tag or done.stdout.partition("\n")[0]:
        assert is_published(repository()), f"the release {tag} has no address: `course publish URL`, then tag"
        named = [path for path in texts_with(repository()) if PLACEHOLDER in path.read_text(encoding="utf-8")]
        assert not named, f"the release {tag} names {PLACEHOLDER}"
