"""What a notebook says of its place in the course: below its heading the time it takes and what it writes, at its end what
comes next. Made by `course build`; no source has it."""

import re

import nbformat

from course.exercises.hours import in_hours, planned, rounded
from course.paths import module_file, source_chapters, source_path
from course.site.chapters import OPTIONAL
from course.states.released import EXPORTS

TAG = "next"


def head(nb: nbformat.NotebookNode, chapter: str) -> str:
    """The line below the heading."""
    before = [other for other in source_chapters() if other < chapter]
    road = [other for other in before if other not in OPTIONAL or other[:2] == chapter[:2]]
    modules = dict.fromkeys(EXPORTS.findall(source_path(chapter).read_text(encoding="utf-8")))
    parts = [f"about {in_hours(rounded(planned(nb.cells)))}"]
    parts += [f"after chapter {road[-1]}"] if road else []
    names = [f"`{module_file(module).removeprefix('nanogpt/')}`" for module in modules]
    parts += [f"writes {', '.join(names)} in `nanogpt/`"] if names else []
    return f"\n\n*{' · '.join(parts)}*"


def foot(chapter: str) -> nbformat.NotebookNode | None:
    """The last cell: the next sitting, and the next of the main road where that is another."""
    after = [other for other in source_chapters() if other > chapter]
    road = [other for other in after if other not in OPTIONAL]
    if not after:
        return None
    ways = [f"**Next:** {link(after[0])}"]
    if after[0] in OPTIONAL:
        ways.append(
            "that sitting is optional (◇)" + (f"; the main road goes on with {link(road[0])}" if road else "")
        )
    return nbformat.v4.new_markdown_cell("; ".join(ways), id="next", metadata={"tags": [TAG]})


def link(chapter: str) -> str:
    source = source_path(chapter)
    title = re.search(r"^# (.+)$", source.read_text(encoding="utf-8").partition('r"""')[2], re.MULTILINE)
    return f"[{title[1] if title else chapter}]({source.stem}.ipynb)"
