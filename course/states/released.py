"""The modules of the package as the released chapters make them: composed from notebooks/src, which students never edit."""

import re
from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace

from course.paths import source_chapters, source_path

EXPORTS = re.compile(r"^#\| (?:default_exp|export) +([a-z][\w.]*)", re.MULTILINE)
EXPORTING = re.compile(r"^# %%[^\n\[]*\n(#\|.*?)\s*(?=^# %%|\Z)", re.MULTILINE | re.DOTALL)


@cache
def writers() -> dict[str, list[str]]:
    """Module -> the chapters that export to it, in their order."""
    found: dict[str, list[str]] = {}
    for chapter in source_chapters():
        for module in dict.fromkeys(EXPORTS.findall(source_path(chapter).read_text(encoding="utf-8"))):
            found.setdefault(module, []).append(chapter)
    return found


def owners() -> dict[str, str]:
    """Module -> the first chapter that exports to it."""
    return {module: chapters[0] for module, chapters in writers().items()}


@cache
def exporting_cells(chapter: str) -> SimpleNamespace:
    """The code cells of a chapter's source that begin with a directive, without the seconds that jupytext takes to read all."""
    found = EXPORTING.findall(source_path(chapter).read_text(encoding="utf-8"))
    cells = [SimpleNamespace(cell_type="code", source=text, id=str(at)) for at, text in enumerate(found)]
    return SimpleNamespace(cells=cells)


def released(chapters: Iterable[str], only: Iterable[str] | None = None) -> dict[str, str]:
    """Module -> text, as these chapters together make it. only: the modules that are wanted, where not all are."""
    from course.package.export import export_all

    wanted = set(writers()) if only is None else set(only)
    writing = {chapter for module in wanted for chapter in writers().get(module, ())}
    part = sorted(writing.intersection(chapters))
    return export_all([(f"{source_path(c).stem}.ipynb", exporting_cells(c)) for c in part], wanted)
