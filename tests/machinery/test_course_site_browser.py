"""The site in a real browser: no page fails, asks another host or is wider than a phone; keyboard, screen reader, contrast."""

from importlib.util import find_spec

import pytest
from browser import chromium, needs_chromium, opened, shot
from built_site import HTML, built, needs_sphinx, served

pytestmark = [needs_sphinx, needs_chromium, pytest.mark.slow]
LOOKED_AT = ["index", "search", "notebooks/04_attention", "notebooks/00_setup"]
LOOKED_AT += ["exercises/04_attention", "exercises/tasks", "nanogpt/model"]
needs_axe = pytest.mark.skipif(
    find_spec("axe_playwright_python") is None, reason="pip install -e '.[site]' brings axe-core"
)


@pytest.fixture(scope="module")
def base():
    built()
    with served(HTML) as address:
        yield address


@pytest.fixture(scope="module")
def window():
    """One browser for all tests: it keeps the theme's styles and scripts."""
    with chromium() as window:
        yield window


def go(page, address: str, theme: str = "light") -> None:
    """To a page, in a theme that the reader has chosen, without waiting for what moves."""
    page.emulate_media(color_scheme=theme, reduced_motion="reduce")
    page.goto(address)
    page.wait_for_load_state("load")


@pytest.mark.parametrize("each", [8, pytest.param(1, marks=pytest.mark.weekly)])
def test_no_page_fails_asks_another_host_or_is_wider_than_the_screen(base, window, each):
    wide, width = [], 1280
    names = sorted(path.relative_to(HTML).as_posix() for path in built())
    with opened(base, within=window) as page:
        for name in names[::each]:
            go(page, base + name)
            if page.locator(".math").count():
                page.wait_for_selector("mjx-container", state="attached")
            for turned in (False, True):  # the next page begins at the width at which this one ends
                width = {1280: 390, 390: 1280}[width] if turned else width
                page.set_viewport_size({"width": width, "height": 900})
                if (reached := page.evaluate("document.documentElement.scrollWidth")) > width:
                    wide.append(f"{name}: {reached} pixels on {width}")
    assert not wide


@needs_axe
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.weekly)])
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


def wrong_for_a_reader(page) -> list[str]:
    """What axe-core finds on a page."""
    from axe_playwright_python.sync_playwright import Axe

    rules = {"runOnly": ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"], "preload": False}
    # Preloading asks for the theme's own @import where it is not.
    violations = Axe().run(page, options=rules).response["violations"]
    return [f"{wrong['help']}: {node['html'][:150]}" for wrong in violations for node in wrong["nodes"][:5]]
