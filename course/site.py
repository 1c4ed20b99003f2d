"""`course site`: the course as a book, made by Sphinx and myst-nb from the committed notebooks, fully offline.

Pages are staged below build/site/source and built into build/site/html. Nothing is executed.
"""

import io
import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from course.address import undressed
from course.files import notebook_bytes, read_notebook, write_atomically
from course.paths import NOTEBOOKS, PACKAGE, ROOT, CourseError, number_of, numbered, relative

SITE = ROOT / "build" / "site"
SOURCE, HTML = SITE / "source", SITE / "html"
PARTS = {
    "Text": ("00", "03"),
    "GPT-2": ("04", "08"),
    "Speed": ("09", "14"),
    "A real run": ("15", "19"),
    "Many processes": ("20", "22z"),
}
MENTIONED = re.compile(r"(?<![\[`\w])[Cc]hapter (\d\d[a-z]?)(?![\w\]])")
LADDER = ROOT / "data" / "measurements" / "amd-epyc-2-threads.json"


def site() -> int:
    """Stage the pages and let Sphinx make them, each warning an error; 0, or CourseError with what Sphinx said."""
    if missing := [name for name in ("sphinx", "myst_nb", "sphinx_book_theme") if find_spec(name) is None]:
        raise CourseError(f"the site needs {', '.join(missing)}: pip install -c constraints.txt -e '.[site]'")
    stage()
    shutil.rmtree(HTML, ignore_errors=True)
    options = ["-W", "--keep-going", "-q", "-b", "html", "-d", str(SITE / "doctrees")]
    done = subprocess.run([sys.executable, "-m", "sphinx", *options, str(SOURCE), str(HTML)])
    if done.returncode:
        raise CourseError("Sphinx has found something wrong, as it says above; a warning counts")
    print(f"{relative(HTML / 'index.html')}: open it in a browser")
    return 0


def stage() -> None:
    """All pages and pictures into SOURCE."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    (SOURCE / "notebooks").mkdir(parents=True)
    shutil.copytree(ROOT / "site", SOURCE, dirs_exist_ok=True)
    files = {number_of(path): path for path in numbered(NOTEBOOKS, ".ipynb")}
    for path in files.values():
        (SOURCE / "notebooks" / path.name).write_bytes(notebook_bytes(linked(path, files)))
    for path in (ROOT / "CONTRIBUTING.md", ROOT / "exercises" / "README.md", ROOT / "exercises" / "TASKS.md"):
        name = f"{path.parent.name}-{path.name}".lower() if path.parent != ROOT else path.name.lower()
        (SOURCE / name).write_text(page(path), encoding="utf-8")
    (SOURCE / "ladder.png").write_bytes(ladder_picture())
    for name, text in module_pages().items():
        write_atomically(SOURCE / "nanogpt" / f"{name}.md", text.encode())
    index = SOURCE / "index.md"
    index.write_text(index.read_text(encoding="utf-8") + contents(files), encoding="utf-8")


def linked(path: Path, files: dict[str, Path]):
    """The notebook, with each "chapter 07" of its prose a link, and each picture's alternative text where myst-nb looks."""
    nb = undressed(read_notebook(path))
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            lines = cell.source.split("\n")
            cell.source = "\n".join(
                line if line.startswith("#") else with_links(line, files) for line in lines
            )
        pictures = [
            o.metadata["image/png"] for o in cell.get("outputs", ()) if "image/png" in o.get("metadata", ())
        ]
        if pictures:
            cell.metadata["mystnb"] = {"image": {"alt": "; ".join(each["alt"] for each in pictures)}}
    return nb


def with_links(line: str, files: dict[str, Path]) -> str:
    """A line of prose; what stands between backticks or dollars stays what it is."""

    def link(found: re.Match) -> str:
        file = files.get(found[1])
        return f"[{found[0]}]({file.name})" if file else found[0]

    parts = re.split(r"(`[^`]*`|\$[^$]*\$|\[[^\]]*\]\([^)]*\))", line)
    return "".join(part if i % 2 else MENTIONED.sub(link, part) for i, part in enumerate(parts))


def page(path: Path) -> str:
    """A Markdown file of the repository as a page: its links into the repository lose their targets."""
    return re.sub(r"\[([^\]]+)\]\((?!https?://|#)[^)]+\)", r"\1", path.read_text(encoding="utf-8"))


def contents(files: dict[str, Path]) -> str:
    """Sphinx's tables of contents: the parts of the course, then exercises and package."""
    text = ""
    for part, (first, last) in PARTS.items():
        pages = [f"notebooks/{path.stem}" for number, path in files.items() if first <= number <= last]
        text += toctree(part, pages)
    return text + toctree(
        "Beside the chapters", ["exercises-tasks", "exercises-readme", "nanogpt/index", "contributing"]
    )


def toctree(caption: str, pages: list[str]) -> str:
    return "\n".join(["", "```{toctree}", f":caption: {caption}", ":maxdepth: 1", "", *pages, "```", ""])


def module_pages() -> dict[str, str]:
    """A page for each module of the package, of its docstrings, and an index in the order of the chapters."""
    modules = sorted(PACKAGE.glob("[a-z]*.py"), key=lambda path: (owner(path), path.name))
    auto = "# nanogpt.{0}\n\n```{{eval-rst}}\n.. automodule:: nanogpt.{0}\n```\n"
    pages = {path.stem: auto.format(path.stem) for path in modules}
    text = "# The package\n\nWhat the chapters export, in their order.\n\n| chapter | module | |\n|---|---|---|\n"
    for path in modules:
        says = path.read_text(encoding="utf-8").split("\n")[0].strip('"')
        text += f"| {owner(path)} | [{path.stem}]({path.stem}.md) | {says} |\n"
    hidden = "\n".join(["", "```{toctree}", ":hidden:", "", *pages, "```", ""])
    return pages | {"index": text + hidden}


def owner(module: Path) -> str:
    """The number of the chapter that exports a module, as its first lines say."""
    found = re.search(r"notebooks/(\d\d[a-z]?)_", module.read_text(encoding="utf-8")[:600])
    return found[1] if found else "99"


def ladder_picture() -> bytes:
    """The recorded ladder: milliseconds a step by rung, predicted and measured."""
    import matplotlib.pyplot as plt

    rungs = json.loads(LADDER.read_text(encoding="utf-8"))["rungs"]
    fig, ax = plt.subplots(figsize=(7.5, 3.4))
    places = range(len(rungs))
    ax.bar([x - 0.2 for x in places], [r["ms"] for r in rungs], 0.4, label="measured")
    ax.bar(
        [x + 0.2 for x in places], [r["predicted_ms"] for r in rungs], 0.4, label="predicted", color="0.75"
    )
    ax.set_xticks(places, [r["name"].replace(" ", "\n") for r in rungs], fontsize=8)
    ax.set_ylabel("ms a step")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False)
    fig.tight_layout()
    fig.savefig(buffer := io.BytesIO(), dpi=130)
    plt.close(fig)
    return buffer.getvalue()
