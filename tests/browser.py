"""A real browser for tests: Debian's Chromium through Playwright. What a page shows is kept in build/screenshots/."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest

SCREENSHOTS = Path(__file__).parent.parent / "build" / "screenshots"
# The shell is the same browser without its window: a page takes three quarters of the time.
NAMES = "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
FLAGS += ["--disable-gpu-compositing", "--disable-software-rasterizer"]  # no GPU is imitated
SECONDS = 120  # for what takes one second on an idle machine

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or find_spec("playwright") is None,
    reason="no Chromium on PATH (apt-get install chromium)"
    if CHROMIUM is None
    else "no playwright (pip install -e '.[site]')",
)


@contextmanager
def chromium(**options) -> Iterator:
    """A new browser's window, which keeps what it has loaded: the next page need not load and compile it again.

    options: those of Playwright's `new_context`.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser.new_context(**options)
        finally:
            browser.close()


@contextmanager
def opened(base: str, width: int = 1280, height: int = 900, within=None) -> Iterator:
    """A Playwright page, in a new browser or within one that is given, for what the server at `base` shows.

    Once it is left, nothing may have gone wrong: no error in the console, no exception in a script, no answer of 400 or
    more, no request to another host than `base`'s.
    """
    with nullcontext(within) if within else chromium() as window:
        page = window.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.set_default_timeout(SECONDS * 1000)
        wrong = watched(page, base)
        try:
            yield page
        except BaseException:
            print("the browser said:", *wrong, sep="\n")
            test = os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[-1].partition(" ")[0]
            with suppress(Exception):  # a page that is gone; what counts is the error itself
                shot(page, f"failed-{test}")
            raise
        finally:
            page.close()
    assert not wrong, "\n".join(["the browser said:", *wrong])


def watched(page, base: str) -> list[str]:
    """What goes wrong in the page from now on; the list grows."""
    wrong: list[str] = []

    def asked(url: str) -> None:
        if urlsplit(url).scheme not in ("data", "blob") and urlsplit(url).netloc != urlsplit(base).netloc:
            wrong.append(f"asked of another host: {url}")

    page.on("request", lambda request: asked(request.url))
    page.on("websocket", lambda socket: asked(socket.url))
    page.on("response", lambda r: wrong.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    page.on("console", lambda said: wrong.append(f"console: {said.text}") if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(f"exception: {error}"))
    return wrong


def until(page, holds: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait for something that no selector can ask for."""
    for _ in range(round(10 * seconds)):
        if holds():
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"waited for {seconds:g} s, and not: {what}")


def shot(page, name: str) -> Path:
    """Keep what the page shows now as build/screenshots/NAME.png."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / (re.sub(r"[^\w.-]+", "-", name) + ".png")
    page.screenshot(path=path)
    return path
