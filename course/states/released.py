"""The modules of the package as the released chapters make them: composed from notebooks/src, which students never edit."""

import re
from collections.abc import Iterable
from functools import cache

from course.paths import source_chapters, source_path

EXPORTS = re.compile(r"^#\| (?:default_exp|export) +([a-z][\w.]*)", re.MULTILINE)
CELLS = re.compile(r"^(?=# %%)", re.MULTILINE)


@cache
def writers() -> dict[str, list[str]]:
    """Module -> the chapters that export to it, in their order."""
    found: dict[str, list[str]] = {}
    for chapter in source_chapters():
        for module in dict.fromkeys(EXPORTS.findall(source_path(chapter).read_text(encoding="utf-8"))):
            found.setdefault(module, []).append(chapter)
    return found


@cache
def owners() -> dict[str, str]:
    """Module -> the first chapter that exports to it."""
    return {module: chapters[0] for module, chapters in writers().items()}


@cache
def exporting_cells(chapter: str):
    """A chapter's notebook without the cells that say nothing to the exporter: to read them all takes three times as long."""
    from course.notebooks.source import notebook_from_text

    text = source_path(chapter).read_text(encoding="utf-8")
    return notebook_from_text("".join(part for part in CELLS.split(text) if "\n#|" in part))


def forget() -> None:
    """Read the sources anew: git has brought others."""
    TEXTS.clear()
    for kept in (writers, owners, exporting_cells):
        kept.cache_clear()


TEXTS: dict[tuple[str, tuple[str, ...]], str] = {}  # by module and the chapters that make it


def released(chapters: Iterable[str], only: Iterable[str] | None = None) -> dict[str, str]:
    """Module -> text, as these chapters together make it. only: the modules that are wanted, where not all are."""
    from course.package.export import export_all

    chapters, wanted = set(chapters), writers() if only is None else set(only)
    made = {m: tuple(c for c in writers()[m] if c in chapters) for m in writers() if m in wanted}
    made = {module: by for module, by in made.items() if by}
    new = [module for module in made if (module, made[module]) not in TEXTS]
    takes_part = sorted({chapter for module in new for chapter in made[module]})
    notebooks = [(f"{source_path(c).stem}.ipynb", exporting_cells(c)) for c in takes_part]
    for module, text in export_all(notebooks, new).items():
        TEXTS[module, made[module]] = text
    return {module: TEXTS[module, by] for module, by in made.items()}


def whole(modules: Iterable[str]) -> dict[str, str]:
    """Module -> text, as all chapters make it."""
    return released(source_chapters(), modules)
