"""`course start`, `course start --at 07`, `course start --blank`, `course package`: a package that grows from nothing, and back.

What the course did not make and git does not have is kept in yours/ before anything is replaced.
"""

from pathlib import Path

from course.files import keep, notebook_bytes, replace_all
from course.git import uncommitted
from course.package.as_of import current
from course.package.hand_out import is_own, released_notebook, with_blanks
from course.paths import NOTEBOOKS, CourseError, module_path, numbered, source_chapters
from course.states.released import owners, released
from course.states.state import FILE, built, file_text, grows, in_words, state


def start(at: str | None = None, blank: bool = False) -> None:
    """Empty the package, or fill it with what the chapters before `at` build; with `blank`, hand out notebooks with blanks."""
    if at is None and grows():
        ways = "`course start --at 00` begins anew, `course package` brings the complete package back"
        raise CourseError(f"this clone is started already ({in_words(built())}): {ways}")
    every = source_chapters()
    at = at or every[0]
    blank = blank or state() == "blank"  # whoever goes elsewhere still writes the blanks
    before = [chapter for chapter in every if chapter < at]
    notebooks = with_blanks([chapter for chapter in every if chapter >= at]) if blank else {}
    words = "course start" + (f" --at {at}" if before else "") + (" --blank" if blank else "")
    put_in_place(released(before), notebooks, file_text("blank" if blank else "started", before), words)
    print(f"nanogpt/ is started; {in_words(before)}")
    if blank:
        print("what is yours to write in the notebooks says `your turn`")
    run = "" if blank else f", or `course run {at}`"
    print(f"go on with chapter {at}: its notebook in `course lab`{run}")


def package() -> None:
    texts = released(source_chapters())
    if not grows() and all(current(module) == text for module, text in texts.items()):
        print("the package is complete, as released; `course start` empties it")
        return
    untouched = [path for path in numbered(NOTEBOOKS, ".ipynb") if state() == "blank" and not is_own(path)]
    notebooks = {path: notebook_bytes(released_notebook(path)) for path in untouched}
    put_in_place(texts, notebooks, None, "course package")
    print("nanogpt/ is complete. A notebook with work of yours stays: `course restore 04` brings ours back")


def put_in_place(texts: dict[str, str], notebooks: dict[Path, bytes], state: bytes | None, command: str):
    """A package of these modules, these notebooks and this state, in place of what stands."""
    new = {module_path(module): texts[module].encode() if module in texts else None for module in owners()}
    new |= notebooks
    changed = [path for path in uncommitted() if path in new and path.read_bytes() != new[path]]
    mine = [module for module in owners() if module_path(module) in changed]
    as_made = released(source_chapters(), mine), released(built(), mine)
    yours = [m for m in mine if current(m) not in [made.get(m) for made in as_made]]
    own = [path for path in notebooks if path in changed and is_own(path)]
    keep([*map(module_path, yours), *own], command)
    replace_all(new | {FILE: state})
