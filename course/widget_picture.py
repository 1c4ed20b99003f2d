"""A widget as JupyterLab shows it, for README: the real command, a real browser, a picture of what is on the screen."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from course.files import write_atomically
from course.paths import BUILT, NOTEBOOKS, CourseError

WAIT = 150  # seconds, on a busy machine
BEFORE = """
from pathlib import Path

import torch

from course import notebook
from course.figures import sampling as figures
from nanogpt.corpus import ensure_corpus, stories
from nanogpt.device import pick_device
from nanogpt.sample import token_probs
from nanogpt.tokenizer import BPETokenizer
from nanogpt.weights import load_model

BUILT = Path("../data/built")
tokenizer = BPETokenizer.load(BUILT / "stories" / ensure_corpus(BUILT / "stories")["tokenizer"])
device = pick_device()
model = load_model(BUILT / "model", device).eval()
told = list(stories(200, seed=1))
"""


def photograph(drawing: str, widget: str) -> bytes:
    """A PNG of chapter 08's widget; CourseError where the browser or chapter 07's model is missing."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None or find_spec("playwright") is None:
        raise CourseError("widget.png needs Chromium, and playwright: pip install -e '.[site]'")
    if not (BUILT / "model" / "config.json").exists():
        raise CourseError("widget.png shows chapter 07's model, which is not there: course run 07")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = NOTEBOOKS / "widget-picture.ipynb"
        try:
            write_atomically(path, notebook(BEFORE, drawing, widget))
            return seen(chromium, path, Path(folder))
        finally:
            path.unlink(missing_ok=True)


def notebook(*cells: str) -> bytes:
    import nbformat

    made = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
    return nbformat.writes(made).encode()


def seen(chromium: str, path: Path, folder: Path) -> bytes:
    """Start `course lab`, run the notebook in a browser, and take the picture."""
    from playwright.sync_api import sync_playwright

    homes = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    env = os.environ | {name: str(folder / name) for name in homes}
    command = [
        sys.executable,
        "-m",
        "course.cli",
        "lab",
        "--no-browser",
        "--port=0",
        "--IdentityProvider.token=t",
    ]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=env, **quiet)
    try:
        base = address(folder / "JUPYTER_RUNTIME_DIR")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": 1000, "height": 1000}, device_scale_factor=1.5)
            page.set_default_timeout(1000 * WAIT)
            page.goto(f"{base}lab/tree/notebooks/{path.name}?reset&token=t")
            page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
            page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
            page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
            page.locator(".explorer img").wait_for()
            page.add_style_tag(content=".explorer { padding: 8px; }")
            return page.locator(".explorer").screenshot()
    finally:
        server.terminate()
        server.wait(timeout=WAIT)


def address(runtime: Path) -> str:
    until = time.monotonic() + WAIT
    while not (found := list(runtime.glob("jpserver-*.json"))):
        if time.monotonic() > until:
            raise CourseError(f"JupyterLab has not started within {WAIT} s: try `course lab`")
        time.sleep(0.2)
    return json.loads(found[0].read_text(encoding="utf-8"))["url"]
