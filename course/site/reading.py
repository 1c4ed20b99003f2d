"""A chapter's cells as one reads them in the book: what serves the machinery is folded, or said in a few words.

Directives become a badge that names the module, imports and the checkpoint are folded, a prediction is a question whose
outcome opens, and so does the output of the cell that answers it, a long output scrolls, a phone lets columns scroll and
continues other lines, and a figure's alternative text is not shown as code.
"""

import ast
import html
import re
from itertools import takewhile

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from course.package.cells import default_module
from course.package.directives import Head, read_head
from course.paths import module_file
from course.predictions import ASKS

ANSWERS = re.compile(r"\banswer\(")
ANSWERED = re.compile(r"^(\d\d[a-z]?\.\d+)(?:, .*?)?: (.+)$", re.MULTILINE)
COLUMNS = re.compile(r"\S {2,}\S|^ {2,}\S|\t|[│─┌└]", re.MULTILINE)
OUTCOME, IMPORTS = "What came out", "Imports"
FOLDED = {  # a call that is folded: what is hidden, and what the fold says
    "checkpoint": ("hide-cell", "Checkpoint: test the chapter's code and export it"),
    "predictions": ("hide-cell", "Your predictions, and what came out"),
    "show": ("hide-input", "Code of the figure"),
}
SHOWN = 20  # lines of a printed output; a longer one scrolls


def cells_to_read(cells: list[NotebookNode]) -> list[NotebookNode]:
    heads = [read_head(cell.source, "a cell") for cell in cells if cell.cell_type == "code"]
    default = default_module(heads, "the chapter")
    asks = next((found[1] for cell in cells if (found := ASKS.search(cell.source))), "predict")
    came_out = outcomes(cells)
    made: list[NotebookNode] = []
    for cell in cells:
        made += code_to_read(cell, default, came_out, asks) if cell.cell_type == "code" else [cell]
    for number, cell in enumerate(made):
        cell.id = f"cell-{number}"
    return made


def code_to_read(cell, default: str, came_out: dict[str, str], asks: str = "predict") -> list[NotebookNode]:
    """One code cell: its questions, or its imports in a fold, a badge and the rest, as far as it has them."""
    outputs = cell.get("outputs", ())
    text = "\n".join(each.get("text") or each.get("data", {}).get("text/plain", "") for each in outputs)
    if COLUMNS.search(text):
        tag(cell, "columns")
    if text.count("\n") > SHOWN and len(outputs) == 1:
        tag(cell, "scroll-output")
    head = read_head(cell.source, "a cell")
    before, cell.source = badge(head, default), head.source.strip("\n")
    try:
        body = ast.parse(cell.source).body
    except SyntaxError:  # a cell with a magic
        return [*before, cell]
    imports = list(takewhile(lambda node: isinstance(node, ast.Import | ast.ImportFrom), body))
    calls = {called(node) for node in body[len(imports) :]}
    if calls == {asks}:
        return [question(body, came_out)]
    if imports and not calls:
        return [*before, folded(cell, "hide-input", IMPORTS)]
    if len(imports) > 1:
        lines, end = cell.source.split("\n"), imports[-1].end_lineno
        cell.source = "\n".join(lines[end:]).strip("\n")
        before.insert(0, folded(new_code_cell("\n".join(lines[:end])), "hide-input", IMPORTS))
    cell.source = without_alt(cell.source)
    if len(calls) == 1 and (call := calls.pop()) in FOLDED:
        folded(cell, *FOLDED[call])
    elif came_out and outputs and ANSWERS.search(cell.source):
        folded(cell, "hide-output", OUTCOME)
    return [*before, cell]


def tag(cell: NotebookNode, name: str) -> None:
    cell.metadata.setdefault("tags", []).append(name)


def folded(cell: NotebookNode, hides: str, says: str) -> NotebookNode:
    """The cell, of which a part is behind a line to click on."""
    tag(cell, hides)
    cell.metadata.setdefault("mystnb", {}).update(code_prompt_show=says, code_prompt_hide=says)
    return cell


def outcomes(cells: list[NotebookNode]) -> dict[str, str]:
    """What `answer` printed, by the prediction's key: "05.1, question: 31.6%" gives 31.6%."""
    found: dict[str, str] = {}
    for cell in cells:
        for output in cell.get("outputs", ()):
            for key, text in ANSWERED.findall(output.get("text", "")):
                found.setdefault(key, text.rpartition(": ")[2])
    return found


def called(node: ast.AST) -> str:
    """The name of the function that a statement calls, and does nothing else; "" for any other statement."""
    call = node.value if isinstance(node, ast.Expr) else None
    return call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""


def without_alt(source: str) -> str:
    """The code, without the alternative texts of its figures."""
    lines = source.split("\n")
    shown = [node for node in ast.walk(ast.parse(source)) if called(node) == "show"]
    for node in sorted(shown, key=lambda node: node.lineno, reverse=True):
        node.value.keywords = [word for word in node.value.keywords if word.arg != "alt"]
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + ast.unparse(node)]
    return "\n".join(lines)


def badge(head: Head, default: str) -> list[NotebookNode]:
    """What names the module into which a cell is exported; nothing for other cells."""
    if not head.exported:
        return []
    module = head.module or default
    more = f" · a new version of <code>{', '.join(head.grows)}</code>" if head.grows else ""
    page = f"../nanogpt/{module.replace('.', '/')}.html"
    return [new_markdown_cell(f'<p class="exported"><a href="{page}">→ {module_file(module)}</a>{more}</p>')]


def question(asked: list[ast.stmt], came_out: dict[str, str]) -> NotebookNode:
    """Predictions as questions, each with its outcome in a fold."""
    lines = ['<div class="predict">', "<p><strong>Predict</strong></p>"]
    for node in asked:
        given = dict(zip(("key", "question"), node.value.args))
        given |= {word.arg: word.value for word in node.value.keywords}
        key, text, unit = (getattr(given.get(name), "value", "") for name in ("key", "question", "unit"))
        lines.append(f"<p><span>{key}</span> {html.escape(f'{text} ({unit})' if unit else text)}</p>")
        if outcome := came_out.get(key):
            lines.append(f"<details><summary>{OUTCOME}</summary><p>{html.escape(outcome)}</p></details>")
    return new_markdown_cell("\n".join([*lines, "</div>"]))
