"""The modules of the package as the released chapters make them: composed from notebooks/src, which students never edit."""

import re
from collections.abc import Iterable
from functools import cache

from course.paths import source_chapters, source_path

EXPORTS = re.compile(r"^#\| (?:default_exp|export) +([a-z][\w.]*)", re.MULTILINE)


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
def notebook(chapter: str):
    from course.notebooks.source import notebook_from_source

    return notebook_from_source(source_path(chapter))


@cache
def text(module: str, chapters: tuple[str, ...]) -> str:
    """A module as these chapters make it."""
    from course.package.export import export_all

    notebooks = [(f"{source_path(chapter).stem}.ipynb", notebook(chapter)) for chapter in chapters]
    return export_all(notebooks, [module])[module]


def released(chapters: Iterable[str], only: Iterable[str] | None = None) -> dict[str, str]:
    """Module -> text, as these chapters together make it. only: the modules that are wanted, where not all are.

    One after the other: Python 3.11 cannot parse in two threads at once (python/cpython#106905).
    """
    chapters, wanted = set(chapters), writers() if only is None else set(only)
    made = {m: tuple(c for c in writers()[m] if c in chapters) for m in writers() if m in wanted}
    return {module: text(module, by) for module, by in made.items() if by}


def whole(modules: Iterable[str]) -> dict[str, str]:
    """Module -> text, as all chapters make it."""
    return released(source_chapters(), modules)
