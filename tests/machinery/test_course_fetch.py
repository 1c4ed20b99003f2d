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
    """Serves CONTENT. `faults` are used up one a request: cut after n bytes, an error code, or other bytes."""

    faults: ClassVar = []
    ranges = True
    requests: ClassVar = []
    sent = 0

    def do_GET(self):
        cls = type(self)
        asked = self.headers.get("Range")
        cls.requests.append(asked)
        fault = cls.faults.pop(0) if cls.faults else None
        if isinstance(fault, int) and fault >= 400:
            self.send_error(fault)
            return
        content = fault if isinstance(fault, bytes) else CONTENT
        start = int(asked[6:-1]) if asked and cls.ranges else 0
        if isinstance(fault, dict):  # an answer's headers, and a body without end where there is no length
            self.send_response(fault.pop("status", 200))
            for key, value in fault.items():
                self.send_header(key, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                while "Content-Length" not in fault and "Location" not in fault:
                    self.wfile.write(bytes(1 << 16))
                    cls.sent += 1 << 16
            self.close_connection = True
            return
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        stop = start + 100_000 if fault == "cut" else len(content)
        self.wfile.write(content[start:stop])
        self.close_connection = True

    def log_message(self, *args):
        pass


@pytest.fixture
def url():
    Server.faults, Server.ranges, Server.requests = [], True, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/file"
        server.shutdown()


def fetch_it(url, path, **more):
    return fetch.download(url, path, SHA256, limit=len(CONTENT), pause=0.001, **more)


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
    Server.faults = ["cut", "cut", "cut"]
    fetch_it(url, tmp_path / "f", tries=2)  # progress in between, so two tries are enough for three cuts
    assert (tmp_path / "f").read_bytes() == CONTENT
    assert Server.requests == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]


def test_a_part_of_an_earlier_run_is_continued(url, tmp_path):
    (tmp_path / "f.part").write_bytes(CONTENT[:777])
    fetch_it(url, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT and Server.requests == ["bytes=777-"]


@pytest.mark.parametrize("old", [b"something else", CONTENT + b"more", b"x" * len(CONTENT)])
def test_a_bad_part_of_an_earlier_run_is_thrown_away(url, tmp_path, old):
    (tmp_path / "f.part").write_bytes(old)
    fetch_it(url, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT and Server.requests[-1] is None


def test_a_server_without_ranges_starts_over(url, tmp_path):
    Server.ranges, Server.faults = False, ["cut"]
    fetch_it(url, tmp_path / "f")
    assert Server.requests == [None, "bytes=100000-"]
    assert (tmp_path / "f").read_bytes() == CONTENT


def test_other_bytes_are_refused(url, tmp_path):
    Server.faults = [b"<html>please log in to the hotel</html>"]
    with pytest.raises(CourseError, match="gave something else: SHA-256"):
        fetch_it(url, tmp_path / "f")
    assert list(tmp_path.iterdir()) == []
    flipped = bytearray(CONTENT)
    flipped[500_000] ^= 1
    Server.faults = [bytes(flipped)]
    with pytest.raises(CourseError, match="gave something else"):
        fetch_it(url, tmp_path / "f")


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(url, tmp_path):
    Server.faults = [503, 429, 500]
    fetch_it(url, tmp_path / "f")
    Server.requests.clear()
    Server.faults = [404]
    with pytest.raises(CourseError, match=r"404.*embedded stories"):
        fetch_it(url, tmp_path / "g")
    assert len(Server.requests) == 1


def test_giving_up_keeps_what_came(url, tmp_path):
    Server.faults = ["cut", 503, 503]
    with pytest.raises(CourseError, match="100,000 bytes are kept"):
        fetch_it(url, tmp_path / "f", tries=3)
    fetch_it(url, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT and Server.requests[-1] == "bytes=100000-"


@pytest.mark.parametrize(
    "headers",
    [{"Content-Length": "abc"}, {"Content-Length": "5, 5"}, {"Content-Length": "-5"}, {"status": 302, "Location": "http://[bad"}],
)  # fmt: skip
def test_headers_that_make_no_sense_are_a_broken_connection(url, tmp_path, headers):
    Server.faults = [dict(headers), dict(headers)]
    fetch_it(url, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == CONTENT
    Server.faults = [dict(headers) for _ in range(9)]
    with pytest.raises(CourseError, match="cannot be downloaded"):
        fetch_it(url, tmp_path / "g", tries=3)


def test_an_endless_body_is_cut_off(url, tmp_path):
    for headers in ({}, {"Content-Length": str(10**12)}):
        Server.faults, Server.sent = [dict(headers)], 0
        with pytest.raises(CourseError, match="more than the 1,024,000 bytes"):
            fetch_it(url, tmp_path / "f")
        assert list(tmp_path.iterdir()) == [] and Server.sent < 50e6


class LyingServer(Server):
    """Answers a Range with other bytes than were asked for, and cuts everything at half."""

    honest_range = True

    def do_GET(self):
        cls = type(self)
        cls.requests.append(asked := self.headers.get("Range"))
        start = int(asked[6:-1]) if asked else 0
        said = start if cls.honest_range else 0
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(len(CONTENT) - said))
        if asked:
            self.send_header("Content-Range", f"bytes {said}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.end_headers()
        self.wfile.write(CONTENT[: len(CONTENT) // 2])  # always the first half, whatever was asked for
        self.close_connection = True


@pytest.mark.parametrize("honest", [True, False])
def test_a_server_that_answers_ranges_wrongly_is_given_up(tmp_path, honest):
    LyingServer.requests, LyingServer.honest_range = [], honest
    with ThreadingHTTPServer(("127.0.0.1", 0), LyingServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(CourseError):
            fetch_it(f"http://127.0.0.1:{server.server_port}/f", tmp_path / "f")
        server.shutdown()
    assert len(LyingServer.requests) < 20


def test_a_full_disk_is_said_before_the_download(url, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda folder: type("", (), {"free": 1000})())
    with pytest.raises(CourseError, match="GB free"):
        fetch_it(url, tmp_path / "f")


def test_offline_names_the_embedded_default(tmp_path, monkeypatch, capsys):
    dead = {"tinyshakespeare": ("f.txt", "http://127.0.0.1:9/f", SHA256, 100)}
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
    for wrong in ("0", "11B"):
        assert fetch.main(["fineweb-edu", "--tokens", wrong]) == 2
    assert fetch.main(["fineweb-edu", "--tokens", "many"]) == 2


def test_tinyshakespeare_is_the_known_one(tinyshakespeare):
    assert fetch.file_sha256(tinyshakespeare) == fetch.FILES["tinyshakespeare"][2]


class Hub(BaseHTTPRequestHandler):
    """As much of the Hugging Face Hub as one download needs."""

    files: ClassVar = {f"sample/10BT/{i:03}_00000.parquet": os.urandom(1000 * (i + 1)) for i in range(4)}
    lie, lfs = False, True

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = self.path.split("?")[0].replace("%2F", "/")
        name = path.split("/main/")[-1]
        if path == "/":
            content, headers = b"ok", {}
        elif path.startswith("/api/datasets/HuggingFaceFW/fineweb-edu/tree/main"):
            listing = [
                {
                    "type": "file",
                    "path": name,
                    "size": len(content),
                    "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
                }
                | (
                    {
                        "lfs": {
                            "oid": hashlib.sha256(content).hexdigest(),
                            "size": len(content),
                            "pointerSize": 130,
                        }
                    }
                    if self.lfs
                    else {}
                )
                for name, content in self.files.items()
            ]
            content, headers = json.dumps(listing).encode(), {"Content-Type": "application/json"}
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


@pytest.mark.parametrize("lie, lfs", [(False, True), (True, True), (True, False)])
def test_fineweb_edu_takes_as_many_files_as_the_tokens_need(tmp_path, lie, lfs):
    pytest.importorskip("huggingface_hub")
    Hub.lie, Hub.lfs = lie, lfs
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = os.environ | {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}", "HF_HUB_OFFLINE": "0"}
        env |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        env |= {"HF_HUB_DOWNLOAD_TIMEOUT": "120", "HF_HUB_ETAG_TIMEOUT": "120"}  # of a busy machine
        code = "import sys; from course.machine.data import main; sys.exit(main(sys.argv[1:]))"
        command = [
            sys.executable,
            "-c",
            code,
            "fineweb-edu",
            "--tokens",
            "2.5B",
            "--folder",
            str(tmp_path / "data"),
        ]
        done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=ROOT)
        server.shutdown()
    found = {
        p.relative_to(tmp_path / "data/fineweb-edu").as_posix(): p.read_bytes()
        for p in tmp_path.glob("data/**/*.parquet")
    }
    if lie:
        assert done.returncode == 2 and "damaged on the way" in done.stderr and not found, done.stderr
    else:  # files of 1, 2, 3, 4 kB hold 1, 2, 3, 4 of the sample's ten billion tokens
        assert done.returncode == 0, done.stderr
        assert found == {name: Hub.files[name] for name in list(Hub.files)[:2]}
        assert "2 files with about 3,000M tokens" in done.stdout and "nanogpt prepare" in done.stdout
