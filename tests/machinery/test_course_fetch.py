"""`course data`: what arrives is right to the bit, or there is no file."""

import hashlib
import random

import pytest

from course.cli import main
from course.machine import data

CONTENT = random.Random(0).randbytes(1_024_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def offered(tmp_path, monkeypatch):
    """What stands at the address from which `course data x` fetches."""
    path = tmp_path / "offered"
    path.write_bytes(CONTENT)
    monkeypatch.setattr(data, "FOLDER", tmp_path / "downloads")
    monkeypatch.setattr(data, "FILES", {"x": ("f", path.as_uri(), SHA256)})
    return path


def test_a_download_is_verified_and_made_once(offered, capsys):
    made = data.FOLDER / "f"
    assert main(["data", "x"]) == 0 and "SHA-256 verified" in capsys.readouterr().out
    assert made.read_bytes() == CONTENT and list(data.FOLDER.iterdir()) == [made]
    made.write_bytes(CONTENT[:-1] + b"x")  # damaged later: it is fetched again
    assert main(["data", "x"]) == 0 and made.read_bytes() == CONTENT
    offered.unlink()
    assert main(["data", "x"]) == 0, "it is there"


@pytest.mark.parametrize("other", [CONTENT[:100_000], b"<html>log in to the hotel</html>", None])
def test_whatever_else_comes_is_refused_in_one_line_and_the_embedded_default_is_named(offered, capsys, other):
    if other is None:
        offered.unlink()
    else:
        offered.write_bytes(other)
    assert main(["data", "x"]) == 2 and list(data.FOLDER.iterdir()) == []
    error = capsys.readouterr().err
    assert "data/built/stories" in error and error.count("\n") == 1
    offered.write_bytes(CONTENT)
    assert main(["data", "x"]) == 0 and (data.FOLDER / "f").read_bytes() == CONTENT


def test_tinyshakespeare_is_the_known_one(tinyshakespeare):
    assert data.file_sha256(tinyshakespeare) == data.FILES["tinyshakespeare"][2]
