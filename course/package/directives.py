"""`#| export` and its like: read from the head of a cell, exactly as they are meant or not at all.

    #| default_exp model              names the notebook's module, once
    #| export                         this cell goes into it; `#| export labs.bert`: into another module of the chapter
    #| doc model: One sentence.       becomes the first line of that module, once, in any code cell
    #| grows train_step               the cell's train_step takes the place of the one that an earlier chapter exported
    #| blank attend: A hint.          a student writes this function (blank.py)

A module's name has dots where its file has folders: labs.bert is nanogpt/labs/bert.py. The directives are nbdev's, but
for `doc`, `grows` and `blank`. What looks like one and is not is refused, since leaving a cell out without a word would
make another module than the one that was seen to work.
"""

import re
from dataclasses import dataclass, field
from functools import cache

from course.paths import CourseError

MODULE = r"(?!nanogpt\b|\S+\.py\b)[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*"
DIRECTIVE = re.compile(
    rf"""\#\|\s*(?:
    export(?:\s+(?P<module>{MODULE}))?
    | default_exp\s+(?P<default>{MODULE})
    | doc\s+(?P<documented>{MODULE}):\s*(?P<sentence>\S.*?)
    | grows\s+(?P<grows>[\w.]+(?:[\s,]+[\w.]+)*)
    | blank\s+(?P<blank>[\w.]+)(?::\s*(?P<hint>\S.*?))?
    )\s*""",
    re.VERBOSE,
)
LOOKS_MEANT = re.compile(r"\s*#+\s*\|\s*(?:exports?|default_exp|docs?|grows?|blanks?)\b", re.IGNORECASE)
FORMS = "`#| export`, `#| export MODULE`, `#| grows NAME`, `#| default_exp MODULE`, `#| doc MODULE: One sentence.` or `#| blank NAME: A hint.`, where a MODULE is `data` or `labs.bert`"


@dataclass
class Head:
    exported: bool = False
    module: str = ""  # of `#| export MODULE`
    default: str = ""  # of `#| default_exp MODULE`
    docs: dict[str, str] = field(default_factory=dict)  # module → sentence
    grows: list[str] = field(default_factory=list)  # the names of all `#| grows NAME`
    blanks: dict[str, str] = field(default_factory=dict)  # name → hint
    source: str = ""  # the cell, each directive an empty line, so that line numbers stay


@cache  # a checkpoint reads the cells of all notebooks several times
def read_head(source: str, where: str) -> Head:
    """The directives in the comment lines that begin a cell; a CourseError that names the cell if one is not exact."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    head, at_head = Head(), True
    for number, line in enumerate(lines):
        at_head = at_head and (not line.strip() or line.lstrip().startswith("#"))
        if at_head and re.match(r"#\|\s*\w", line):
            read_directive(line, head, where)
            lines[number] = ""
        elif LOOKS_MEANT.match(line):
            place = "is no directive" if at_head else "stands inside the cell and not at its head"
            raise CourseError(f"{where}: `{line.strip()}` {place}; write {FORMS}")
    if (head.grows or head.blanks) and not head.exported:
        raise CourseError(f"{where}: `#| grows` and `#| blank` belong below `#| export`; write it above them")
    head.source = "\n".join(lines)
    return head


def read_directive(line: str, head: Head, where: str) -> None:
    found = DIRECTIVE.fullmatch(line)
    if not found:
        raise CourseError(f"{where}: `{line.strip()}` is no directive; write {FORMS}")
    word = re.findall(r"\w+", line)[0]
    if word == "export":
        head.exported, head.module = True, found["module"] or ""
    elif word == "default_exp":
        head.default = found["default"]
    elif word == "doc":
        head.docs[found["documented"]] = found["sentence"]
    elif word == "grows":
        head.grows += re.findall(r"[\w.]+", found["grows"])
    else:
        head.blanks[found["blank"]] = found["hint"] or ""
