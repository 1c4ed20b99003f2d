"""`course data` against servers that misbehave: what arrives is right to the bit, or there is no file."""

import contextlib
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from course.cli import main
from course.machine import data as fetch
from course.paths import ROOT, CourseError

CONTENT = random.Random(0).randbytes(1_024_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT, or once in its place `fault`: "cut" after 100,000 bytes, an error code, or other bytes."""

    fault = None
    requests = 0

    def do_GET(self):
        Server.requests += 1
        fault, Server.fault = self.fault, None
        if isinstance(fault, int):
            self.send_error(fault)
            return
        content = fault if isinstance(fault, bytes) else CONTENT
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: 100_000 if fault == "cut" else None])
        self.close_connection = True

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def serving(handler):
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def url():
    Server.fault, Server.requests = None, 0
    with serving(Server) as address:
        yield f"{address}/file"


def test_a_download_is_verified_and_made_once(url, tmp_path):
    path = tmp_path / "deep" / "file.txt"
    for _ in range(2):
        assert "SHA-256 verified" in fetch.download(url, path, SHA256)
        assert path.read_bytes() == CONTENT and list(path.parent.iterdir()) == [path]
    assert Server.requests == 1
    path.write_bytes(CONTENT[:-1] + b"x")  # damaged later: it is fetched again
    fetch.download(url, path, SHA256)
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("fault", ["cut", 404, 503, b"<html>log in to the hotel</html>", CONTENT[:-1] + b"x"])
def test_whatever_else_comes_is_refused_in_one_line_and_the_embedded_default_is_named(url, tmp_path, fault):
    Server.fault = fault
    with pytest.raises(CourseError, match="embedded stories") as error:
        fetch.download(url, tmp_path / "f", SHA256)
    assert "\n" not in str(error.value) and list(tmp_path.iterdir()) == []
    fetch.download(url, tmp_path / "f", SHA256)
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_offline_names_the_embedded_default(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr("torch.hub.download_url_to_file", refuse)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_tree", refuse)
    for name in ("tinyshakespeare", "fineweb-edu"):
        assert main(["data", name, "--folder", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert "no network" in error and "data/built/stories" in error and error.count("\n") == 1


def test_tokens():
    assert [fetch.number(t) for t in ("500M", "2b", "1e9", "1_000", "3k")] == [5e8, 2e9, 1e9, 1000, 3000]
    for wrong in ("0", "11B", "many"):
        assert main(["data", "fineweb-edu", "--tokens", wrong]) == 2


def test_tinyshakespeare_is_the_known_one(tinyshakespeare):
    assert fetch.file_sha256(tinyshakespeare) == fetch.FILES["tinyshakespeare"][2]


class Hub(BaseHTTPRequestHandler):
    """As much of the Hugging Face Hub as one download needs."""

    files: ClassVar = {f"sample/10BT/{i:03}_00000.parquet": os.urandom(1000 * (i + 1)) for i in range(4)}
    lie = False

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0].replace("%2F", "/")
        name = path.split("/main/")[-1]
        headers = {}
        if path == "/":
            content = b"ok"
        elif path.startswith("/api/datasets/HuggingFaceFW/fineweb-edu/tree/main"):
            content = json.dumps([listed(name, content) for name, content in self.files.items()]).encode()
            headers = {"Content-Type": "application/json"}
        elif name in self.files:
            content = self.files[name]
            headers = {"X-Repo-Commit": "1" * 40, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}
            content = content[:-1] + b"x" if self.lie and self.command == "GET" else content
        else:
            self.send_error(404)
            return
        self.send_response(200)
        for key, value in {**headers, "Content-Length": len(content)}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *args):
        pass


def listed(name: str, content: bytes) -> dict:
    """A file in the hub's listing of a repository."""
    size = {"size": len(content)}
    lfs = {"oid": hashlib.sha256(content).hexdigest(), "pointerSize": 130}
    return {"type": "file", "path": name, "oid": "1" * 40, "lfs": lfs | size} | size


@pytest.mark.parametrize("lie", [False, True])
def test_fineweb_edu_takes_as_many_files_as_the_tokens_need(tmp_path, lie):
    pytest.importorskip("huggingface_hub")
    Hub.lie = lie
    words = ["data", "fineweb-edu", "--tokens", "2.5B", "--folder", str(tmp_path / "data")]
    with serving(Hub) as address:
        env = os.environ | {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        env |= {"HF_HOME": str(tmp_path / "home")}
        env |= {"HF_HUB_DOWNLOAD_TIMEOUT": "120", "HF_HUB_ETAG_TIMEOUT": "120"}  # of a busy machine
        command = [sys.executable, "-m", "course", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT)
    folder = tmp_path / "data/fineweb-edu"
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.parquet")}
    if lie:
        assert done.returncode == 2 and "damaged on the way" in done.stderr and not found, done.stderr
    else:  # files of 1, 2, 3, 4 kB hold 1, 2, 3, 4 of the sample's ten billion tokens
        assert done.returncode == 0, done.stderr
        assert found == {name: Hub.files[name] for name in list(Hub.files)[:2]}
        assert "2 files with about 3,000M tokens" in done.stdout and "nanogpt prepare" in done.stdout
