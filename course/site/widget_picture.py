"""A widget as JupyterLab shows it, for README: the real command, a real browser, a picture of what is on the screen."""

import re
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

from course.files import write_atomically
from course.machine.lab import WAIT, running
from course.paths import BUILT, NOTEBOOKS, CourseError

# The shell is the same browser without its window: a page takes three quarters of the time.
CHROMIUM = "chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"
BEFORE = """
from pathlib import Path

import torch

from course import notebook
from course.figures import sampling as figures
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.device import pick_device
from nanogpt.sampling import token_probs
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
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
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

    with running(folder) as (_, server), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1000, "height": 1000}, device_scale_factor=1.5)
        page.set_default_timeout(1000 * WAIT)
        page.goto(f"{server['url']}lab/tree/notebooks/{path.name}?reset&token={server['token']}")
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
        page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        page.locator(".explorer img").wait_for()
        page.add_style_tag(content=".explorer { padding: 8px; }")
        return page.locator(".explorer").screenshot()
