"""`course publish URL`: the repository's address, wherever it is written. Nothing is executed, and outputs stay."""

import re
from pathlib import Path

from course.files import notebook_bytes, read_notebook, write_atomically
from course.notebooks.address import dressed, is_published, repository
from course.paths import NOTEBOOKS, ROOT, CourseError, numbered

ADDRESS = re.compile(r"https://github\.com/[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
TEXTS = ("README.md", "CITATION.cff", "CONTRIBUTING.md", "site/*.md", ".devcontainer/*", "binder/*")


def publish(url: str | None) -> int:
    """Write this address in place of the present one; CourseError for one that Colab could not open.

    Without an address the notebooks' first cells and badges are written again for the present one.
    """
    if url is None:
        print(f"{len(dress_notebooks())} notebooks have a new first cell")
        return 0
    old, new = repository(), url.strip().removesuffix("/").removesuffix(".git")
    if not ADDRESS.fullmatch(new) or not is_published(new):
        raise CourseError(
            f"{url!r} is no address of a GitHub repository, and Colab and Pages want one: "
            "https://github.com/NAME/gpt2-course"
        )
    # pyproject.toml after all that it tells the old address of: so an interrupted call can be repeated
    changed = [*texts_with(old), ROOT / "pyproject.toml"]
    for path in changed:
        write_atomically(path, replaced(path.read_text(encoding="utf-8"), old, new).encode())
    changed += dress_notebooks()
    print(
        f"{new} is the address in {len(changed)} files; `course readme --write` adds the badges; commit all, then push"
    )
    return 0


def dress_notebooks() -> list[Path]:
    """Write first cell and badge of every notebook for the present address; the notebooks that changed."""
    changed = []
    for path in numbered(NOTEBOOKS, ".ipynb"):
        made = notebook_bytes(dressed(read_notebook(path), path.stem))
        if made != path.read_bytes():
            write_atomically(path, made)
            changed.append(path)
    return changed


def texts_with(address: str) -> list[Path]:
    found = [path for pattern in TEXTS for path in sorted(ROOT.glob(pattern)) if path.is_file()]
    return [path for path in found if replaced(text := path.read_text(encoding="utf-8"), address, "") != text]


def replaced(text: str, old: str, new: str) -> str:
    """With another `NAME/REPOSITORY` behind a slash: in the address itself, and in those of other services."""
    old_path, new_path = (each.removeprefix("https://github.com/") for each in (old, new))
    return re.sub(rf"(?<=/){re.escape(old_path)}(?![\w-])", new_path, text)
