"""What the rest of the course does otherwise while the package grows: what is not built yet, and how far it is."""

import re

from course.paths import source_chapters
from course.states.released import owners
from course.states.state import built, grows, in_words, state

MISSING = re.compile(r"No module named 'nanogpt\.([\w.]+)'")


def not_built_yet(error: BaseException | None) -> str:
    """Which module's import failed in a growing package, and which chapter makes it; "" for any other error."""
    return not_there(str(error)) if isinstance(error, ModuleNotFoundError) else ""


def not_there(says: str) -> str:
    """The same, from an error's text: "No module named 'nanogpt.model'"."""
    found = MISSING.search(says)
    made = made_by(found[1]) if found else ""
    return f"nanogpt/{found[1].replace('.', '/')}.py is not there yet; {made}" if made else ""


def made_by(module: str) -> str:
    """How a growing package gets a module that is not in it yet; "" where a chapter that is in it makes it."""
    chapter = owners().get(module)
    if not grows() or not chapter or chapter in built():
        return ""
    later = [other for other in source_chapters() if other > chapter]
    skip = f", or `course start --at {later[0]}`" if later else ""
    return f"chapter {chapter} makes it: run its notebook{skip}"


def is_there(chapter: str) -> bool:
    """Whether a chapter's modules belong into the package as it stands: all in a complete one, else those that are built."""
    return not grows() or chapter in built()


def described() -> str:
    """The state in a few words: `started; chapter 04 is in it`."""
    if not grows():
        return "complete"
    return f"started{', notebooks with blanks' if state() == 'blank' else ''}; {in_words(built())}"
