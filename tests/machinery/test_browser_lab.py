"""JupyterLab in a real browser, as a student uses it: a chapter is run, a cell is broken and mended."""

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from browser import needs_chromium, opened, until
from house import copied_repository
from running_lab import running

from course.package.as_of import compose, notebooks_upto
from course.paths import ROOT

pytestmark = [
    pytest.mark.slow,
    needs_chromium,
    pytest.mark.skipif(find_spec("jupyterlab") is None, reason="no JupyterLab (pip install -e '.[course]')"),
    pytest.mark.skipif(not shutil.which("git") or not (ROOT / ".git").exists(), reason="no git to copy from"),
]
START, RUN = 300_000, 600_000  # milliseconds: for what takes seconds on an idle machine


@pytest.fixture
def lab(tmp_path):
    """The real command on a copy, for a student who has never used Jupyter."""
    copy = copied_repository(tmp_path / "gpt2-course")
    # The browser needs a core of its own: two threads of a kernel that share the other wait for each other all the time.
    env = {"PYTHONPATH": str(copy), "NANOGPT_SCALE": "ci", "OMP_NUM_THREADS": "1"}
    with running(tmp_path, copy, **env) as (_, server):
        yield copy, server


# What a student does


def choose(page, menu: str, item: str) -> None:
    page.locator(".lm-MenuBar-itemLabel", has_text=re.compile(f"^{menu}$")).click()
    page.get_by_role("menuitem", name=item, exact=True).click()


def run_all(page) -> None:
    """Run the notebook from its first to its last cell, which ends without an error."""
    choose(page, "Edit", "Clear Outputs of All Cells")
    choose(page, "Run", "Run All Cells")
    page.wait_for_function(
        """() => document.querySelector('.jp-RenderedText[data-mime-type$=".error"]') ||
            [...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')].every(p => !/\\[[ *]\\]/.test(p.textContent))""",
        timeout=RUN,
        polling=300,  # not at each frame: that keeps a core busy
    )
    assert not errors(page)


def errors(page) -> list[str]:
    return page.locator('.jp-RenderedText[data-mime-type$=".error"]').all_text_contents()


def cell_with(page, text: str):
    return page.locator(".jp-Notebook .jp-CodeCell", has=page.locator(".cm-content", has_text=text)).last


def run_cell(page, cell) -> str:
    """Run a cell by its keys, and give what it says."""
    prompt = cell.locator(".jp-InputPrompt")
    cell.locator(".cm-content").click()
    before = prompt.text_content()
    page.keyboard.press("Control+Enter")
    until(page, lambda: prompt.text_content() not in (before, "[*]:"), "the cell ends", RUN // 1000)
    cell.scroll_into_view_if_needed()
    return "\n".join(cell.locator(".jp-OutputArea-output").all_text_contents())


def retype(page, cell, old: str, new: str) -> None:
    """Go to the line that holds `old`, and type `new` in its place."""
    line = cell.locator(".cm-line", has_text=old)
    line.click()
    page.keyboard.press("Home")
    page.keyboard.press("Shift+End")
    page.keyboard.insert_text(new)


def wait_for_saved(page, notebook: Path, text: str) -> None:
    """Wait until the file holds the text: the tab's own sign comes later than the keys, both ways.

    By itself JupyterLab saves every ten seconds, and seldomer where the disk was slow.
    """
    written = json.dumps(text)[1:-1]
    until(
        page,
        lambda: written in notebook.read_text(encoding="utf-8"),
        f"{notebook.name} is saved",
        RUN // 1000,
    )


# The story of a chapter

RIGHT = 'return scores.masked_fill(future, float("-inf")).softmax(dim=-1)'
WRONG = "return scores.softmax(dim=-1)"

NOT_ONE = 'attention_weights under "Why divide by √d?": what was run last is not what is saved'


def shortened(path: Path) -> None:
    """Of a chapter what its checkpoint needs: its imports, the exported cells, and the checkpoint. nbval runs the rest."""
    nb = nbformat.read(path, as_version=4)
    needed = re.compile(r"^(#\| |import |from |checkpoint\()", re.MULTILINE)
    nb.cells = [cell for cell in nb.cells if cell.cell_type == "markdown" or needed.match(cell.source)]
    nbformat.write(nb, path)


def test_a_chapter_is_run_checkpointed_broken_and_mended(lab):
    copy, server = lab
    module, notebook = copy / "nanogpt/model.py", copy / "notebooks/04_attention.ipynb"
    module.unlink()
    shortened(notebook)
    with opened(server["url"]) as page:
        page.goto(f"{server['url']}lab/tree/notebooks/{notebook.name}?reset&token={server['token']}")
        page.locator(".jp-Notebook").wait_for(timeout=START)
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=START)
        run_all(page)
        check = cell_with(page, 'checkpoint("04")')
        said = check.locator(".jp-OutputArea-output").inner_text()
        assert "to nanogpt/model.py" in said and "tests/core/test_ch04_attention.py passes" in said
        written = module.read_text(encoding="utf-8")
        assert written == compose(notebooks_upto("04"), {"model"})["model"]

        cell = cell_with(page, "def attention_weights(q: Tensor")
        retype(page, cell, "masked_fill", WRONG)
        wait_for_saved(page, notebook, WRONG)  # by itself
        said = run_cell(page, check)
        assert NOT_ONE in said

        retype(page, cell, WRONG, RIGHT)
        run_cell(page, cell)  # and at once, before it is saved by itself
        said = run_cell(page, check)
        assert NOT_ONE in said and "exported" not in said

        retype(page, cell, RIGHT, WRONG)
        run_cell(page, cell)
        page.keyboard.press("Control+s")
        wait_for_saved(page, notebook, WRONG)
        said = run_cell(page, check)
        assert "test_rows_are_weights_over_the_past: a query looks at a later key" in said
        assert "likely 04_attention.ipynb, attention_weights under" in said
        assert "nanogpt/model.py unchanged" in said and module.read_text(encoding="utf-8") == written

        retype(page, cell, WRONG, RIGHT)
        run_cell(page, cell)
        page.keyboard.press("Control+s")
        wait_for_saved(page, notebook, RIGHT)
        said = run_cell(page, check)
        assert "to nanogpt/model.py" in said and "passes" in said
        choose(page, "Kernel", "Shut Down Kernel")
