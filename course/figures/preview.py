"""A look ahead: chapter 00 trains a model before anything is built, with the finished package."""

import re
import shutil
import sys
import textwrap

from course.package.as_of import copy_with
from course.paths import BUILT, module_path, source_chapters
from course.states.released import owners, released
from course.states.state import is_there

FINISHED = BUILT / "finished"
WORD = re.compile(r"[^\W\d_]+")


def borrow_finished_package() -> None:
    """Let this process import the finished `nanogpt`, made from the released chapters, where the clone's own is not complete."""
    complete = all(map(is_there, source_chapters()))
    if complete and all(module_path(module).is_file() for module in owners()):
        return
    if str(FINISHED) in sys.path:
        return
    shutil.rmtree(FINISHED, ignore_errors=True)
    copy_with(released(source_chapters()), FINISHED)
    sys.path.insert(0, str(FINISHED))


def wrapped(text: str) -> str:
    """The text in lines of 100 characters, with � for what cannot be printed: an untrained model draws such characters, too."""
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in textwrap.fill(text, 100))


def shares_of_words(texts: dict[int, str]) -> dict[int, float]:
    """Of each text, by its key, the share of its words that occur in the stories; 0.0 where it has no word."""
    from nanogpt.labs.corpora.stories import stories

    known = {word for story in stories(2000) for word in WORD.findall(story.text)}
    shares = {}
    for key, text in texts.items():
        words = WORD.findall(text)
        shares[key] = sum(word in known for word in words) / max(1, len(words))
    return shares
