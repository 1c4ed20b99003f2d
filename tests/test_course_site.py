"""The site: every chapter is in it, no link is dead, no page asks another host, and it fits a phone. Nothing is executed."""

import functools
import http.server
import re
import threading
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin

import pytest
from browser import needs_chromium, opened, shot

from course import site
from course.files import read_notebook
from course.paths import NOTEBOOKS, PACKAGE, number_of, numbered

FILES = {number_of(path): path for path in numbered(NOTEBOOKS, ".ipynb")}
SPHINX = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("sphinx", "myst_nb", "sphinx_book_theme")),
    reason="pip install -e '.[site]' brings Sphinx",
)
REPOSITORY = "https://github.com/someone/gpt2-course"


@pytest.mark.parametrize(
    ("line", "linked"),
    [
        ("see chapter 05.", "see [chapter 05](05_gpt.ipynb)."),
        ("Chapter 17b, again", "[Chapter 17b](17b_checkpoints.ipynb), again"),
        ("a `chapter 05` in code", "a `chapter 05` in code"),
        ("in $x chapter 05 y$", "in $x chapter 05 y$"),
        ("[chapter 05](elsewhere)", "[chapter 05](elsewhere)"),
        (f"chapter {99}", f"chapter {99}"),  # none of ours
    ],
)
def test_a_mention_of_a_chapter_is_a_link_but_not_in_code_mathematics_or_links(line, linked):
    assert site.with_links(line, FILES) == linked


def test_every_chapter_stands_once_in_the_contents():
    listed = re.findall(r"^notebooks/(\S+)$", site.contents(FILES), re.MULTILINE)
    assert listed == [path.stem for path in FILES.values()]


def test_every_module_has_a_page():
    pages = site.module_pages()
    modules = {path.stem for path in PACKAGE.glob("[a-z]*.py")}
    assert set(pages) == modules | {"index"}
    assert all(f"({name}.md)" in pages["index"] for name in modules)


def test_without_sphinx_one_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setattr(site, "find_spec", lambda name: None)
    with pytest.raises(site.CourseError, match=r"the site needs sphinx, .*pip install"):
        site.site()


class Page(HTMLParser):
    """What a page links to, what it loads, its anchors, and its pictures' alternative texts."""

    def __init__(self, text: str):
        super().__init__()
        self.links, self.loads, self.anchors, self.alts = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found.get("id"), found.get("name")}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe") and found.get("src"):
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") not in ("canonical", "next", "prev", "index", "search"):
            self.loads.append(found["href"])
        if tag == "img" and "/_images/" in found["src"]:  # not the theme's logos
            self.alts.append(found.get("alt", ""))


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_URL", REPOSITORY)
        site.site()
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.HTML.rglob("*.html")}


@SPHINX
@pytest.mark.slow
class TestBuilt:
    def test_each_chapter_is_a_page_with_its_pictures_and_what_they_show(self, pages):
        for path in FILES.values():
            page = pages[site.HTML / "notebooks" / f"{path.stem}.html"]
            assert page.alts == [alt for alt in page.alts if alt and not alt.endswith(".png")], path.name
            outputs = [o for cell in read_notebook(path).cells for o in cell.get("outputs", ())]
            assert len(page.alts) == sum("image/png" in o.get("data", ()) for o in outputs), path.name

    def test_each_chapter_opens_in_colab_from_its_own_file(self, pages):
        for path in FILES.values():
            colab = f"https://colab.research.google.com/github/someone/gpt2-course/blob/main/notebooks/{path.name}"
            assert colab in pages[site.HTML / "notebooks" / f"{path.stem}.html"].links

    def test_no_page_loads_anything_from_elsewhere(self, pages):
        elsewhere = {url for page in pages.values() for url in page.loads if re.match(r"(https?:)?//", url)}
        assert not elsewhere

    def test_no_link_within_the_site_is_dead(self, pages):
        dead = []
        for path, page in pages.items():
            for link in page.links:
                url, anchor = urldefrag(link)
                if re.match(r"[a-z]+:", url) or "_modules" in path.parts:
                    continue
                target = Path(unquote(urljoin(path.as_uri(), url)).removeprefix("file://")) if url else path
                if not target.exists() or (
                    anchor and target in pages and unquote(anchor) not in pages[target].anchors
                ):
                    dead.append(f"{path.name}: {link}")
        assert not dead

    @needs_chromium
    @pytest.mark.parametrize("width", [1280, 390])
    def test_in_a_browser_nothing_fails_nothing_is_asked_elsewhere_and_it_fits(self, pages, width):
        with served(site.HTML) as base, opened(base, width) as page:
            for name in ("index", "notebooks/04_attention", "notebooks/12_flash_attention", "nanogpt/model"):
                page.goto(f"{base}{name}.html", wait_until="networkidle")
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} wide, on {width}"
                shot(page, f"site-{width}-{name}")
            assert page.evaluate("document.documentElement.dataset.theme"), "no light or dark theme"
            page.goto(f"{base}search.html?q=causal")
            page.wait_for_selector("ul.search li a", timeout=60_000)
            shot(page, f"site-{width}-search")
            page.goto(f"{base}notebooks/12_flash_attention.html", wait_until="networkidle")
            assert page.locator("mjx-container").count(), "no formula was set"


class served:
    """The folder on a port of this machine."""

    def __init__(self, folder: Path):
        quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
        handler = functools.partial(quiet, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}/"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
