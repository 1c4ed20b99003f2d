"""The site as its tests see it: built once into build/site-test, as if published; its pages read, and served."""

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import pytest

from course.site import build as site
from course.site import pages

REPOSITORY = "https://github.com/someone/gpt2-course"
FOLDER = site.SITE.with_name("site-test")
HTML = FOLDER / "html"
needs_sphinx = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("sphinx", "myst_nb", "sphinx_book_theme")),
    reason="pip install -e '.[site]' brings Sphinx",
)


class Page(HTMLParser):
    """What a page links to, its anchors, its pictures' alternative texts, and its text."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.anchors, self.alts, self.text = [], set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found.get("id"), found.get("name")}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag == "img":
            self.alts.append((found["src"], found.get("alt") or ""))

    def handle_data(self, data):
        self.text.append(data)


def published():
    """The pages as they are once the repository has this address."""
    return mock.patch.object(pages, "repository", lambda: REPOSITORY)


@functools.cache
def built() -> dict[Path, Page]:
    """Every page of the site by its file. Made in the first test that asks; what has not changed since is kept."""
    with published():
        site.site(FOLDER)
    made = [path for path in HTML.rglob("*.html") if "_static" not in path.parts]  # the theme's templates
    return {path: Page(path.read_text(encoding="utf-8")) for path in made}


class Quiet(http.server.SimpleHTTPRequestHandler):
    """One connection serves many requests, and nobody asks twice for the theme's files."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def end_headers(self):
        self.send_header("Cache-Control", "max-age=3600")
        super().end_headers()


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The folder on a port of this machine."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
