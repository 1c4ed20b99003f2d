"""One HTML page, self-contained: no script, nothing loaded, whatever it shows escaped."""

import html
import re

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --good: #1a7f37; --bad: #b3261e; --wait: #9a6700; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .4rem 0; } .quiet { opacity: .7; font-size: .9rem; } .score { font-size: 1.6rem; font-weight: 600; }
table { border-collapse: collapse; width: 100%; } td, th { padding: .3rem .6rem; border-bottom: 1px solid var(--line);
text-align: left; vertical-align: top; } td:first-child { width: 40%; } th { font-weight: 600; font-size: .85rem; } .n { text-align: right; white-space: nowrap; }
pre { background: var(--soft); padding: .7rem; overflow-x: auto; font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.good { color: var(--good); } .bad { color: var(--bad); } .wait { color: var(--wait); }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff8a80; --wait: #d4a72c; } }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; } svg rect { fill: #4a7fc1; }
details summary { cursor: pointer; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def clean(value) -> str:
    """Text without what no reader sees: control characters, those that turn the reading direction, halves of a character."""
    return INVISIBLE.sub("�", str(value))


def text(value) -> str:
    """Clean text for a page, markup escaped."""
    return html.escape(clean(value))


def page(title: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{text(title)}</title>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def table(heads: list[str], rows: list[list[str]], numbers: tuple[int, ...] = ()) -> str:
    """Cells are HTML. numbers: the columns that are set to the right."""

    def line(cells: list[str], tag: str) -> str:
        parts = (f"<{tag}{' class=n' if i in numbers else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(parts)}</tr>"

    return "\n".join(["<table>", line(heads, "th"), *(line(row, "td") for row in rows), "</table>"])
