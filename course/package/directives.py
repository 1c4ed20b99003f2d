"""`#| export` and its like: read from the head of a cell, exactly as they are meant or not at all.

    #| default_exp model              names the notebook's module, once
    #| export                         this cell goes into it; `#| export labs.bert`: into another module of the chapter
    #| doc model: One sentence.       becomes the first line of that module, once, in any code cell
    #| grows train_step               the cell's train_step takes the place of the one that an earlier chapter exported
    #| blank attend: A hint.          a student writes this function; `#| blank`: all that the cell defines (blank.py)

A module's name has dots where its file has folders: labs.bert is nanogpt/labs/bert.py. The directives are nbdev's, but
for `doc`, `grows` and `blank`. What looks like one and is not is refused, since leaving a cell out without a word would make
another module than the one that was seen to work.
"""

import io
import keyword
import re
import tokenize
from dataclasses import dataclass, field
from functools import cache

from course.paths import CourseError

WORDS = ("export", "default_exp", "doc", "grow", "blank")  # an s at the end left out
LIKE = re.compile(r"\s*#+\s*\|\s*(\S*)")  # a comment that begins with a bar
OLD_STYLE = re.compile(
    r"\s*#+\s*(exports?|default_exp\s+\S+)\s*$", re.IGNORECASE
)  # nbdev's first: `# export`
BLANK = re.compile(r"(?P<names>[\w.]+(?:\s+[\w.]+)*)?\s*(?::\s*(?P<hint>\S.*))?")
FORMS = "`#| export`, `#| export MODULE`, `#| grows NAME`, `#| default_exp MODULE`, `#| doc MODULE: One sentence.` or `#| blank NAME: A hint.`"
RESERVED = {"con", "nul", "aux", "prn", "com1", "lpt1"}  # no file of Windows can have these names


@dataclass
class Head:
    """What the directives of one cell say."""

    exported: bool = False
    module: str = ""  # of `#| export MODULE`
    default: str = ""  # of `#| default_exp MODULE`
    docs: list[tuple[str, str]] = field(default_factory=list)
    grows: list[str] = field(default_factory=list)  # the names of all `#| grows NAME`
    blanks: dict[str, str] = field(default_factory=dict)  # name, "" for all of the cell → hint
    source: str = ""  # the cell, each directive an empty line, so that line numbers stay


@cache  # a checkpoint reads the cells of all notebooks several times
def read_head(source: str, where: str) -> Head:
    """The directives in the comment lines that begin a cell; a CourseError that names the cell if one is not exact."""
    lines = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    head = Head()
    size = next(
        (i for i, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), len(lines)
    )
    for number, line in enumerate(lines[:size]):
        if re.match(r"#\|\s*\w", line):
            read_directive(line, head, where)
            lines[number] = ""
        elif looks_meant(line):
            raise CourseError(f"{where}: `{line.strip()}` is no directive; write {FORMS}")
    if head.grows and not head.exported:
        raise CourseError(
            f"{where}: `#| grows {head.grows[0]}` stands in a cell without `#| export`; write both"
        )
    head.source = "\n".join(lines)
    if late := next(filter(looks_meant, comments("\n".join(lines[size:]))), None):
        raise CourseError(
            f"{where}: `{late.strip()}` stands inside the cell; move it to the cell's first line"
        )
    return head


def looks_meant(line: str) -> bool:
    """True of a comment that somebody may have meant as a directive."""
    found = LIKE.match(line)
    word = re.sub(r"\W.*", "", found.group(1)).lower().rstrip("s") if found else ""
    return word in WORDS or bool(OLD_STYLE.match(line))


def comments(text: str) -> list[str]:
    """The lines that hold a comment and nothing else; a string's lines are none."""
    if "#" not in text:
        return []
    try:
        tokens = [
            t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT
        ]
        return [t.string for t in tokens if t.line.strip() == t.string.strip()]
    except (tokenize.TokenError, SyntaxError):  # a magic, say
        return [line for line in text.split("\n") if line.lstrip().startswith("#")]


def read_directive(line: str, head: Head, where: str) -> None:
    word, _, rest = line[2:].strip().partition(" ")
    rest = rest.strip()
    if word == "export" and not head.exported:
        head.exported, head.module = True, module_name(rest, line, where) if rest else ""
    elif word == "default_exp" and not head.default:
        head.default = module_name(rest, line, where)
    elif word == "doc" and ":" in rest and rest.partition(":")[2].strip():
        name, _, sentence = rest.partition(":")
        head.docs.append((module_name(name.strip(), line, where), sentence.strip()))
    elif word == "grows" and rest:
        head.grows += definition_names(rest, line, where)
    elif word == "blank" and (found := BLANK.fullmatch(rest)):
        for name in (found["names"] or "").split() or [""]:
            if name in head.blanks:
                raise CourseError(f"{where}: two `#| {f'blank {name}'.strip()}` lines; keep one")
            head.blanks[name] = found["hint"] or ""
    elif word in ("export", "default_exp"):
        raise CourseError(f"{where}: two `#| {word}` lines; keep one")
    else:
        raise CourseError(f"{where}: `{line.strip()}` is no directive; write {FORMS}")


def definition_names(text: str, line: str, where: str) -> list[str]:
    """The names in `train_step, GPT.forward`, with commas or blanks between."""
    names = list(dict.fromkeys(re.split(r"[\s,]+", text.strip(","))))
    for name in names:
        if not all(map(str.isidentifier, name.split("."))) or name.count(".") > 1:
            raise CourseError(
                f"{where}: `{line.strip()}`: {name} is no name of a definition, as train_step and GPT.forward are"
            )
    return names


def module_name(name: str, line: str, where: str) -> str:
    """The name, if a module on any system can have it."""
    if usable(name):
        return name
    bare = name.replace("/", ".").removeprefix("nanogpt.").removesuffix(".py").lower()
    hint = f", such as {bare}" if usable(bare) else ""
    raise CourseError(
        f"{where}: `{line.strip()}`: a module's name is a word of small letters, digits and _ that begins with a letter, or "
        f"several such words with dots between{hint}"
    )


def usable(name: str) -> bool:
    """True of `data` and `labs.bert`; not of `data.py`, nor of a name that begins with the package's own."""
    words = name.split(".")
    return words[0] != "nanogpt" and words[-1] != "py" and all(map(usable_word, words))


def usable_word(word: str) -> bool:
    fits = re.fullmatch(r"[a-z][a-z0-9_]*", word)
    return bool(fits) and not keyword.iskeyword(word) and word not in RESERVED
