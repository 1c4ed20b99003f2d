"""Sphinx's configuration of the course as a book; `course site` stages the pages and calls it (see course/site/build.py)."""

import html
import re
import sys
from pathlib import Path

from docutils import nodes

sys.path.insert(0, str(Path(__file__).parent.parent))  # nanogpt is imported for its docstrings
from course.site.pages import address

project = "Build GPT-2, and make it fast"
author = ""  # else each page ends with one
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",
]

nb_execution_mode = "off"  # the committed outputs are shown
nb_render_markdown_format = "myst"
highlight_language = "none"  # a block that names no language is a command or a drawing
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # what a program printed is no code

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_context = {"default_mode": "auto"}
html_extra_path = ["404.html"]  # GitHub shows it for an address that is none
html_css_files = ["course.css"]
html_js_files = ["course.js"]
html_show_sphinx = False
html_show_search_summary = False  # of a page it shows the buttons; from a folder a browser would not fetch it
html_copy_source = False  # what is staged is nobody's source; a chapter's buttons lead to the real one
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "navbar_persistent": [],
    "collapse_navbar": True,  # else each page resolves and carries the contents of all parts
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "repository_branch": "main",
}
if url := address():
    html_theme_options |= {"repository_url": url, "use_repository_button": True}

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False  # torch documents its own in a markup of its own
autodoc_default_options = {"members": True}
CHAPTER = re.compile(r"notebooks/(\w+)\.ipynb")
SPECIAL = re.compile(r"([*_|\\<])")


def special(text: str) -> str:
    """Text without a mark that means something, but for the names of chapters, which become links."""
    kept = re.split(f"({CHAPTER.pattern.replace('(', '(?:')})", text)
    return "".join(part if i % 2 else SPECIAL.sub(r"\\\1", part) for i, part in enumerate(kept))


def plain(app, what, name, obj, options, lines: list[str]) -> None:
    """The course's docstrings are sentences, not reStructuredText: only `names` mean something."""
    text = []
    for line in lines:
        parts = re.split(r"(`[^`]+`)", line.rstrip())
        parts = [f"`{part}`" if i % 2 else special(part) for i, part in enumerate(parts)]
        indent = len(line) - len(line.lstrip())
        said = CHAPTER.sub(r":doc:`\g<0> </notebooks/\1>`", "".join(parts).strip())
        text.append(f"| {' ' * indent}{said}" if line.strip() else "")
    lines[:] = [*text, ""]


def described(app, pagename: str, templatename: str, context: dict, doctree) -> None:
    """What search engines and messengers show of a page: its title and its first paragraph."""
    first = next(doctree.findall(nodes.paragraph), None) if doctree else None
    says = " ".join(first.astext().split())[:200] if first else project
    title = re.sub("<[^>]+>", "", context.get("title", project))
    context["metatags"] = context.get("metatags", "") + "\n".join(
        f'<meta {kind}="{name}" content="{html.escape(html.unescape(text))}" />'
        for kind, name, text in [
            ("name", "description", says),
            ("property", "og:title", title),
            ("property", "og:description", says),
            ("property", "og:site_name", project),
            ("property", "og:type", "article"),
        ]
    )


def setup(app) -> None:
    # It names a folder, which any process may do, and does not say so.
    app.extensions["sphinx-mathjax-offline"].parallel_read_safe = True
    app.connect("autodoc-process-docstring", plain)
    app.connect("html-page-context", described)
