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

from course.machine import data as fetch
from course.paths import ROOT, CourseError

CONTENT = random.Random(0).randbytes(1_024_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT. `faults` are used up one a request: "cut" after 100,000 bytes, an error code, other bytes, or headers."""

    faults: ClassVar = []
    ranges = True
    requests: ClassVar = []

    def do_GET(self):
        asked = self.headers.get("Range")
        self.requests.append(asked)
        fault = self.faults.pop(0) if self.faults else None
        content = fault if isinstance(fault, bytes) else CONTENT
        start = int(asked[6:-1]) if asked and self.ranges else 0
        if isinstance(fault, int) or start >= len(content):
            self.send_error(fault or 416)
            return
        headers = {"Content-Length": len(content) - start} | (fault if isinstance(fault, dict) else {})
        self.send_response(206 if start else 200)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(content[start : start + 100_000 if fault == "cut" else len(content)])
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
    Server.faults, Server.ranges, Server.requests = [], True, []
    with serving(Server) as address:
        yield f"{address}/file"


def fetch_it(url, path, **more):
    return fetch.download(url, path, SHA256, pause=0.001, **more)


def test_a_download_is_verified_and_made_once(url, tmp_path):
    path = tmp_path / "deep" / "file.txt"
    assert "SHA-256 verified" in fetch_it(url, path)
    assert path.read_bytes() == CONTENT and list(path.parent.iterdir()) == [path]
    assert "is here already" in fetch_it(url, path)
    assert Server.requests == [None]
    path.write_bytes(CONTENT[:-1] + b"x")  # damaged later: it is fetched again
    fetch_it(url, path)
    assert path.read_bytes() == CONTENT


def test_a_cut_connection_is_resumed_where_it_broke(url, tmp_path):
    Server.faults = ["cut", "cut", 503]
    fetch_it(url, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert Server.requests == [None, "bytes=100000-", "bytes=200000-", "bytes=200000-"]


def test_giving_up_keeps_what_came_and_the_next_command_goes_on(url, tmp_path):
    Server.faults = ["cut", 503, 429]
    with pytest.raises(CourseError, match="100,000 bytes are kept"):
        fetch_it(url, tmp_path / "f", tries=3)
    fetch_it(url, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT and Server.requests[-1] == "bytes=100000-"


def test_a_server_without_ranges_starts_over(url, tmp_path):
    Server.ranges, Server.faults = False, ["cut"]
    fetch_it(url, tmp_path / "f")
    assert Server.requests == [None, "bytes=100000-"]
    assert (tmp_path / "f").read_bytes() == CONTENT


@pytest.mark.parametrize("old", [b"something else", CONTENT + b"more", b"x" * len(CONTENT)])
def test_a_bad_part_of_an_earlier_run_is_thrown_away(url, tmp_path, old):
    (tmp_path / "f.part").write_bytes(old)
    with pytest.raises(CourseError, match="it was deleted"):
        fetch_it(url, tmp_path / "f")
    fetch_it(url, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


@pytest.mark.parametrize("other", [b"<html>please log in to the hotel</html>", CONTENT[:-1] + b"x"])
def test_other_bytes_are_refused(url, tmp_path, other):
    Server.faults = [other]
    with pytest.raises(CourseError, match="gave something else: SHA-256"):
        fetch_it(url, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_is_asked_for_once_and_the_embedded_default_is_named(url, tmp_path):
    Server.faults = [404]
    with pytest.raises(CourseError, match=r"404.*embedded stories"):
        fetch_it(url, tmp_path / "g")
    assert len(Server.requests) == 1


def test_a_length_that_makes_no_sense_is_a_broken_connection(url, tmp_path):
    Server.faults = [{"Content-Length": "abc"}, {"Content-Length": "5, 5"}]
    fetch_it(url, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_offline_names_the_embedded_default(tmp_path, monkeypatch, capsys):
    dead = {"tinyshakespeare": ("f.txt", "http://127.0.0.1:9/f", SHA256)}
    monkeypatch.setattr(fetch, "FILES", dead)
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    assert fetch.main(["tinyshakespeare", "--folder", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "embedded stories" in error and "data/built/stories" in error and "Traceback" not in error
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert fetch.main(["fineweb-edu", "--tokens", "1M", "--folder", str(tmp_path)]) == 2
    assert "embedded stories" in capsys.readouterr().err


def test_tokens():
    assert [fetch.count(t) for t in ("500M", "2b", "1e9", "1_000", "3k")] == [5e8, 2e9, 1e9, 1000, 3000]
    for wrong in ("0", "11B", "many"):
        assert fetch.main(["fineweb-edu", "--tokens", wrong]) == 2


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
    words = ["fineweb-edu", "--tokens", "2.5B", "--folder", str(tmp_path / "data")]
    code = "import sys; from course.machine.data import main; sys.exit(main(sys.argv[1:]))"
    with serving(Hub) as address:
        env = os.environ | {"HF_ENDPOINT": address, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        env |= {"HF_HOME": str(tmp_path / "home")}
        env |= {"HF_HUB_DOWNLOAD_TIMEOUT": "120", "HF_HUB_ETAG_TIMEOUT": "120"}  # of a busy machine
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT)
    folder = tmp_path / "data/fineweb-edu"
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.parquet")}
    if lie:
        assert done.returncode == 2 and "damaged on the way" in done.stderr and not found, done.stderr
    else:  # files of 1, 2, 3, 4 kB hold 1, 2, 3, 4 of the sample's ten billion tokens
        assert done.returncode == 0, done.stderr
        assert found == {name: Hub.files[name] for name in list(Hub.files)[:2]}
        assert "2 files with about 3,000M tokens" in done.stdout and "nanogpt prepare" in done.stdout
