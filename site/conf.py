"""Sphinx's configuration of the course as a book; `course site` stages the pages and calls it (see course/site.py)."""

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(
    0, str(HERE.parents[2])
)  # staged below build/site/source: nanogpt is imported for its docstrings

project = "GPT-2, and make it fast"
author = "the course's authors"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",
]
exclude_patterns = ["conf.py"]

nb_execution_mode = "off"  # the committed outputs are shown
nb_render_markdown_format = "myst"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # what a program printed is no code

html_theme = "sphinx_book_theme"
html_title = "GPT-2, and make it fast"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_context = {"default_mode": "auto"}
html_css_files = ["course.css"]
html_show_sphinx = False
url = os.environ.get("COURSE_URL", "").rstrip(
    "/"
)  # of the repository, such as https://github.com/someone/gpt2-course
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "navbar_persistent": [],
    "use_download_button": True,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
}
if url:
    html_theme_options |= {
        "repository_url": url,
        "repository_branch": "main",
        "use_repository_button": True,
        "use_source_button": False,
    }
    html_theme_options |= {
        "launch_buttons": {
            "colab_url": "https://colab.research.google.com",
            "notebook_interface": "jupyterlab",
        }
    }

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False  # torch documents its own in a markup of its own
autodoc_default_options = {"members": True, "show-inheritance": False}
SPECIAL = re.compile(r"([*_|\\<])")


def plain(app, what, name, obj, options, lines: list[str]) -> None:
    """The course's docstrings are sentences, not reStructuredText: only `names` mean something."""
    text = []
    for line in lines:
        parts = re.split(r"(`[^`]+`)", line.rstrip())
        parts = [f"`{part}`" if i % 2 else SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts)]
        indent = len(line) - len(line.lstrip())
        text.append(f"| {' ' * indent}{''.join(parts).strip()}" if line.strip() else "")
    lines[:] = [*text, ""]


def setup(app) -> None:
    app.connect("autodoc-process-docstring", plain)
