"""`course data` against servers that misbehave: what arrives is right to the bit, or there is no file."""

import hashlib
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from course.cli import main
from course.machine import data

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


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Where `course data x` puts the server's file."""
    Server.fault, Server.requests = None, 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(data, "FOLDER", tmp_path / "downloads")
        monkeypatch.setattr(data, "FILES", {"x": ("f", f"http://127.0.0.1:{server.server_port}/f", SHA256)})
        yield tmp_path / "downloads/f"
        server.shutdown()


def test_a_download_is_verified_and_made_once(served, capsys):
    for _ in range(2):
        assert main(["data", "x"]) == 0 and "SHA-256 verified" in capsys.readouterr().out
        assert served.read_bytes() == CONTENT and list(served.parent.iterdir()) == [served]
    assert Server.requests == 1
    served.write_bytes(CONTENT[:-1] + b"x")  # damaged later: it is fetched again
    assert main(["data", "x"]) == 0 and served.read_bytes() == CONTENT


@pytest.mark.parametrize("fault", ["cut", 404, 503, b"<html>log in to the hotel</html>", CONTENT[:-1] + b"x"])
def test_whatever_else_comes_is_refused_in_one_line_and_the_embedded_default_is_named(served, capsys, fault):
    Server.fault = fault
    assert main(["data", "x"]) == 2 and list(served.parent.iterdir()) == []
    error = capsys.readouterr().err
    assert "data/built/stories" in error and error.count("\n") == 1
    assert main(["data", "x"]) == 0 and served.read_bytes() == CONTENT


def test_offline_the_embedded_default_is_named(served, monkeypatch, capsys):
    monkeypatch.setattr(data, "FILES", {"x": ("f", "http://127.0.0.1:9/f", SHA256)})
    assert main(["data", "x"]) == 2 and "data/built/stories" in capsys.readouterr().err


def test_tinyshakespeare_is_the_known_one(tinyshakespeare):
    assert data.file_sha256(tinyshakespeare) == data.FILES["tinyshakespeare"][2]
