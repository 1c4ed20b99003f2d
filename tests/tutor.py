"""Whether the tutor's side of a chapter's blanks (course/package/tutor.py) is true: `python tests/tutor.py 04 05`.

Each probe accepts our body and another right one, and tells each wrong body from all others. `python tests/tutor.py
--package FOLDER` writes a package in which all blanks have the other bodies, and errors that say nothing but the values
that they name: all tests of the chapters pass on it.
"""

import ast
import contextlib
import copy
import sys
import textwrap
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

from course.package.as_of import copy_with
from course.package.blank import TURN
from course.package.cells import exported_cells, functions
from course.package.export import export_all
from course.package.tutor import blanks_of, cell_of, difference, filled, probed, run, same, with_body
from course.paths import number_of, source_chapters, source_path
from course.states.released import exporting_cells, released


@cache
def released_model(chapter: str) -> type:
    """GPT as this chapter leaves it: what is counted in it is the course's own, however a student has written it."""
    return module_of(chapter, "model")["GPT"]


def module_of(chapter: str, module: str) -> dict:
    """The names of a module as this chapter leaves it."""
    text = released([other for other in source_chapters() if other <= chapter], [module])[module]
    namespace = {"__name__": f"nanogpt.{module}", "__package__": f"nanogpt.{module}".rpartition(".")[0]}
    # PyTorch knows an operator by its name: made again under the package's, it would take the package's away
    run(text.replace("nanogpt::", "tutor::"), namespace)
    return namespace


def problems(chapter: str) -> list[str]:
    """What is not as it should be, a line each."""
    cells = exported_cells(exporting_cells(chapter), source_path(chapter).name)
    there = {name: cell for cell in cells for name in cell.blanks}
    known = blanks_of(chapter)
    said = [f"{name}: no such blank" for name in known if name not in there]
    said += [f"{name}: nothing is known of this blank" for name in there if name not in known]
    for name in filter(known.get, there):
        try:
            said += [f"{name}: {each}" for each in problems_of(chapter, name)]
        except Exception as error:
            said.append(f"{name}: {type(error).__name__}: {error}")
    return said


def problems_of(chapter: str, name: str) -> list[str]:
    blank, cell = blanks_of(chapter)[name], cell_of(chapter, name)
    namespace = module_of(chapter, cell.module)
    begun = time.process_time()  # other work on the machine does not count
    should = probed(blank, namespace)
    seconds = time.process_time() - begun
    if "" in should:
        return [f"the probe fails on our own body: {should[''].error}"]
    said = [f"a probe takes {seconds:.1f} s"] if seconds > 10 else []
    if not same(should, with_body(cell, name, None, blank, namespace)):
        said.append("the probe finds something else each time")
    with contextlib.suppress(NotImplementedError):
        empty = with_body(cell, name, f'raise NotImplementedError("{TURN}{name}")', blank, namespace)
        if same(should, empty):
            said.append("an empty body is not noticed")
    right = with_body(cell, name, blank.right, blank, namespace)
    if not same(should, right):
        said.append(f"`right` is not: {difference(should, right)}")
    if not blank.hint.strip() or not 1 <= blank.minutes <= 60:
        said.append("a second hint, and 1 to 60 minutes")
    if not 2 <= len(blank.wrong) <= 6:
        said.append(f"{len(blank.wrong)} wrong bodies; two to six")
    found = []
    for each, (say, body) in zip(blank.wrong, blank.wrong_bodies(), strict=True):
        if blank.right.count(each["of"]) != 1:
            said.append(f"`{each['of']}` stands {blank.right.count(each['of'])} times in `right`, not once")
            continue
        got = with_body(cell, name, body, blank, namespace)
        if same(should, got):
            said.append(f"the probe does not see: {say}")
        if other := next((other for other, made in found if same(made, got)), ""):
            said.append(f"the probe does not tell apart: {say} | {other}")
        found.append((say, got))
        if "-v" in sys.argv:
            print(f"   {name}: {difference(should, got) if not same(should, got) else '='}\n      {say}")
    return said


def package_of_others(folder: Path) -> None:
    """A copy of nanogpt/ in which each blank has its other right body."""
    paths = map(source_path, source_chapters())
    notebooks = [(f"{path.stem}.ipynb", with_others(number_of(path))) for path in paths]
    copy_with(export_all(notebooks), folder)


def with_others(chapter: str):
    """A chapter's exporting cells with these bodies."""
    nb = copy.deepcopy(exporting_cells(chapter))
    by_id = {cell.id: cell for cell in exported_cells(nb, source_path(chapter).name) if cell.blanks}
    for cell in nb.cells:
        exported = by_id.get(cell.id)
        for name, _ in reversed(functions(exported.tree)) if exported else ():
            if name in exported.blanks and name in blanks_of(chapter):
                body = in_other_words(blanks_of(chapter)[name].right)
                cell.source = filled(replace(exported, source=cell.source), name, body)
    return nb


def in_other_words(body: str) -> str:
    """A body whose errors say nothing but the values that they name."""
    tree = ast.parse(f"def body():\n{textwrap.indent(body, '    ')}")
    for node in ast.walk(tree):
        said = node.exc.args[0] if isinstance(node, ast.Raise) and getattr(node.exc, "args", ()) else None
        if isinstance(said, ast.Constant | ast.JoinedStr):
            values = [part for part in getattr(said, "values", []) if isinstance(part, ast.FormattedValue)]
            parts = [each for value in values for each in (value, ast.Constant(" "))]
            node.exc.args = [ast.JoinedStr(parts)]
    return "\n".join(map(ast.unparse, tree.body[0].body))


def main(chapters: list[str]) -> int:
    wrong = 0
    for chapter in chapters or source_chapters():
        begun = time.monotonic()
        said = problems(chapter)
        print(f"{chapter} {time.monotonic() - begun:5.1f} s", *said, sep="\n   ", flush=True)
        wrong += len(said)
    return 1 if wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--package"]:
        raise SystemExit(package_of_others(Path(sys.argv[2])))
    raise SystemExit(main([word for word in sys.argv[1:] if word != "-v"]))
