"""The site in a real browser: no page fails, asks another host or is wider than a phone; search, keyboard, contrast."""

from importlib.util import find_spec

import pytest
from browser import chromium, needs_chromium, opened, shot
from built_site import HTML, built, needs_sphinx, served

pytestmark = [needs_sphinx, needs_chromium, pytest.mark.slow]
LOOKED_AT = ["index", "search", "notebooks/04_attention", "notebooks/00_setup"]
LOOKED_AT += ["exercises/04_attention", "exercises/tasks", "nanogpt/model"]
PICTURE = "div.cell:has(+ .writer) .cell_output img"  # of chapter 08's widget
AXE = find_spec("axe_playwright_python")
needs_axe = pytest.mark.skipif(AXE is None, reason="pip install -e '.[site]' brings axe-core")


@pytest.fixture(scope="module")
def base():
    built()
    with served(HTML) as address:
        yield address


@pytest.fixture(scope="module")
def window():
    """One browser for all tests but one: it keeps the theme's styles and scripts."""
    with chromium() as window:
        yield window


def go(page, address: str, theme: str = "light") -> None:
    """To a page, in a theme that the reader has chosen, without waiting for what moves."""
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.goto(address)
    page.wait_for_load_state("load")


def test_no_page_fails_asks_another_host_or_is_wider_than_the_screen(base, window):
    """All pages but those of the package, which are of one make: of them each eighth."""
    wide, width = [], 1280
    names = sorted(path.relative_to(HTML).as_posix() for path in built())
    package = [name for name in names if name.startswith("nanogpt/labs")]
    with opened(base, within=window) as page:
        for name in [name for name in names if name not in package] + package[::8]:
            go(page, base + name)
            if page.locator(".math").count():
                page.wait_for_selector("mjx-container", state="attached")
            for turned in (False, True):  # the next page begins at the width at which this one ends
                width = {1280: 390, 390: 1280}[width] if turned else width
                page.set_viewport_size({"width": width, "height": 900})
                if (reached := page.evaluate("document.documentElement.scrollWidth")) > width:
                    wide.append(f"{name}: {reached} pixels on {width}")
    assert not wide


CUT_OFF = """[...document.querySelectorAll('div.cell pre')].filter(box => box.scrollWidth > box.clientWidth)
             .map(box => Math.max(...box.textContent.split('\\n').map(line => line.length)))"""


def test_a_line_of_code_is_whole_on_a_laptop_and_on_paper(base, window):
    with opened(base, 1366, within=window) as page:
        go(page, base + "notebooks/04_attention.html")
        cut_off = [length for length in page.evaluate(CUT_OFF) if length <= 108]
        assert not cut_off, "the formatter's lines have 110"
        page.emulate_media(media="print")
        page.set_viewport_size({"width": 720, "height": 900})
        assert page.evaluate(CUT_OFF) == []


TABLES = """[...document.querySelectorAll('.tag_columns .cell_output pre')].filter(box => box.offsetHeight).map(box =>
            [box.textContent.trimEnd().split('\\n').length, box.clientHeight, parseFloat(getComputedStyle(box).lineHeight)])"""


def test_on_a_phone_columns_stay_and_a_figure_opens(base, window):
    with opened(base, 390, within=window) as page:
        go(page, f"{base}notebooks/04_attention.html")
        tables = page.evaluate(TABLES)
        assert tables and all(height < (lines + 2) * line for lines, height, line in tables)
        figure = page.locator("button.figure").first
        figure.focus()
        page.keyboard.press("Enter")
        sizes = "image => [image.naturalWidth, image.clientWidth]"
        drawn, shown = page.locator(".enlarged img").evaluate(sizes)
        assert shown >= drawn > 390, "as large as it was drawn"
        shot(page, "site-figure")
        page.keyboard.press("Escape")
        assert page.locator(".enlarged").is_hidden()
        assert page.evaluate("document.activeElement.className").startswith("figure")


@needs_axe
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_a_reader_with_a_keyboard_or_a_screen_reader(base, window, theme):
    """axe-core: contrast 4.5:1, alternative texts, headings in order, names of buttons, tables' heads, scrolling by key."""
    found = []
    with opened(base, within=window) as page:
        for name in LOOKED_AT[: None if theme == "light" else 3]:
            go(page, f"{base}{name}.html{'?q=attention' if name == 'search' else ''}", theme)
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            shot(page, f"site-{name}-{theme}")
            found += [f"{name}: {wrong}" for wrong in wrong_for_a_reader(page)]
    assert not found, "\n".join(found)


def wrong_for_a_reader(page, part: str | None = None) -> list[str]:
    """What axe-core finds on a page, or in a part of it."""
    from axe_playwright_python.sync_playwright import Axe

    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"], "preload": False}
    # Preloading asks for the theme's own @import where it is not.
    violations = Axe().run(page, context=part, options=rules).response["violations"]
    return [f"{wrong['help']}: {node['html'][:150]}" for wrong in violations for node in wrong["nodes"][:5]]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("name", ["index", "notebooks/08_sampling"])
def test_the_first_model_writes_in_the_page_also_on_a_phone(base, window, name, theme):
    with opened(base, 390, within=window) as page:
        go(page, f"{base}{name}.html", theme)
        writer, picture = page.locator(".writer"), page.locator(PICTURE)
        assert writer.is_visible() and not picture.filter(visible=True).count()
        writer.scroll_into_view_if_needed()
        writer.get_by_role("button").click()
        page.wait_for_function("document.querySelector('.written span')?.textContent.length > 30")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        shot(page, f"site-writer-{name}-{theme}")
        if AXE:
            writer.get_by_role("button").click()  # Stop
            assert not wrong_for_a_reader(page, ".writer")


def test_without_javascript_a_picture_stands_in_the_widget_s_place(base, window):
    without = window.browser.new_context(java_script_enabled=False)
    with opened(base, within=without) as page:
        page.goto(f"{base}notebooks/08_sampling.html")
        assert page.locator(PICTURE).is_visible() and not page.locator(".writer").is_visible()


def test_search_by_keyboard_finds_a_chapter(base, window):
    """Sphinx's own: it needs no server and no network. From a folder a browser lets it fetch no summaries."""
    with opened(base, within=window) as page:
        go(page, f"{base}index.html")
        page.keyboard.press("Control+k")
        page.keyboard.type("causal attention")
        page.keyboard.press("Enter")
        page.wait_for_selector("#search-results li a")
        shot(page, "site-search")
    with opened("file://", within=window) as page:
        page.goto(f"{(HTML / 'search.html').as_uri()}?q=causal+attention")
        found = page.locator("#search-results li a", has_text="04 · Attention").first
        found.wait_for()
        found.click()
        assert page.locator("h1:visible").inner_text().startswith("04 · Attention")


def test_what_a_mouse_does_a_keyboard_does(base, window):
    """The skip link comes first; buttons of a chapter, hints and the visible check are reached and opened by keys."""
    with opened(base, within=window) as page:
        go(page, f"{base}exercises/04_attention.html")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.getAttribute('href')") == "#main-content"
        hint = page.locator("summary", has_text="Hint 1").first
        hint.focus()
        page.keyboard.press("Enter")
        assert page.locator(".bd-article details[open]").count() == 1, "one hint opens, and no other"
        outline = hint.evaluate("node => getComputedStyle(node).outlineStyle")
        assert outline != "none", "nobody sees which hint has the keyboard"
        shot(page, "site-hint")
