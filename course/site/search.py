"""What the book's search knows: every heading, every definition of the package, and the text below each.

It is read from the finished pages and written as a script, so that a browser can load it from a folder, too
(site/_static/search.js searches it).
"""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

VOID = {"area", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}  # tags without an end
UNREAD = {"script", "style", "button", "details", "dt"}  # hints and outcomes stay where they are folded
UNREAD_CLASSES = {"headerlink", "buttons", "exported", "cell_output", "highlight"}
HEADINGS = {"h1", "h2", "h3", "h4"}
DEFINED = {"nc", "nf"}  # Pygments' classes for the name behind `class` and `def`
SIGNS = {"sqrt": "√", "times": "×", "cdot": "·", "approx": "≈", "le": "≤", "ge": "≥", "sum": "Σ", "to": "→"}


class Sections(HTMLParser):
    """The sections of a page: [anchor, heading, text, names that its code defines]."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[list[str]] = []
        self.open: list[tuple[str, str, set[str]]] = []  # tag, id and classes of what is not closed yet
        self.feed(text.partition("<article")[2].partition("</article>")[0])

    def handle_starttag(self, tag, attributes):
        if tag in VOID:
            return
        has = dict(attributes)
        self.open.append((tag, has.get("id") or "", set((has.get("class") or "").split())))
        if tag in HEADINGS and self.is_read():
            anchors = [id for tag, id, _ in self.open if tag == "section" and id]
            if anchors:
                self.found.append([anchors[-1], "", "", ""])
        if tag == "dt" and has.get("id"):  # a definition on a page of the package
            name = self.without_module(has["id"])
            self.found.append([has["id"], name, "", with_words(name)])

    def handle_endtag(self, tag):
        if tag in [open for open, _, _ in self.open]:  # an end without a beginning closes nothing
            while self.open.pop()[0] != tag:
                pass
        if self.found and tag not in ("span", "a", "em", "strong", "code"):
            self.found[-1][2] += " "

    def handle_data(self, data):
        if not self.found:
            return
        innermost = self.open[-1][2] if self.open else set()
        if innermost & DEFINED and not self.is_inside("cell_output"):
            self.found[-1][3] += f" {with_words(data)}"
        elif self.is_read():
            in_heading = any(tag in HEADINGS for tag, _, _ in self.open)
            self.found[-1][1 if in_heading else 2] += plain(data) if self.is_inside("math") else data

    def is_read(self) -> bool:
        """True but in code, outputs, and what is folded."""
        return not any(tag in UNREAD or classes & UNREAD_CLASSES for tag, _, classes in self.open)

    def is_inside(self, name: str) -> bool:
        return any(name in classes for _, _, classes in self.open)

    def without_module(self, name: str) -> str:
        """`nanogpt.model.GPT.forward` on the page `nanogpt.model` is GPT.forward."""
        return name.removeprefix(f"{self.found[0][1].strip()}.") if self.found else name


def with_words(name: str) -> str:
    """A name and its words: CausalSelfAttention is found by "causal attention", too."""
    return " ".join([name, *re.findall("[A-Z][a-z]+", name)])


def plain(formula: str) -> str:
    """A formula of TeX as far as one can read it in a line: \\frac{QK^T}{\\sqrt{d}} is QK^T √d."""
    text = re.sub(r"\\([a-zA-Z]+)", lambda found: SIGNS.get(found[1], " "), formula)
    return re.sub(r"√\s+", "√", re.sub(r"[\\{}()\[\]&]+", " ", text)).strip()


def in_order(page: str) -> tuple[bool, bool, str]:
    """Chapters come first, then exercises: among equals the first is shown first."""
    return not page.startswith("notebooks/"), not page.startswith("exercises/"), page


def index(html: Path) -> bytes:
    """The script that site/_static/search.js reads: each page's address and title, and each section with its page's place."""
    pages, sections = [], []
    names = [path.relative_to(html).as_posix() for path in html.rglob("*.html")]
    for name in sorted(names, key=in_order):
        made = Sections((html / name).read_text(encoding="utf-8")).found
        if not made:
            continue
        made[0][0] = ""  # the page's heading is at its top
        made = [[" ".join(text.split()) for text in section] for section in made]
        sections += [[len(pages), *section] for section in made]
        pages.append([name, made[0][1]])
    data = json.dumps({"pages": pages, "sections": sections}, ensure_ascii=False, separators=(",", ":"))
    return f"const courseIndex = {data};\n".encode()
