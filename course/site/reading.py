"""A chapter's cells as one reads them in the book: what serves the machinery is folded, or said in a few words.

Directives become a badge that names the module, imports and the checkpoint are folded, a prediction is a question whose
outcome opens, and so does the output of the cell that answers it, a long output shows its beginning, a phone lets columns
scroll and continues other lines, and a figure's alternative text is not shown as code.
"""

import ast
import html
import os
import re

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

from course.paths import module_file
from course.predictions import ASKS

DIRECTIVE = re.compile(r"^#\|.*\n?", re.MULTILINE)
EXPORT = re.compile(r"^#\| export(?: +([\w.]+))?$", re.MULTILINE)
DEFAULT = re.compile(r"^#\| default_exp +([\w.]+)", re.MULTILINE)
GROWS = re.compile(r"^#\| grows +(.+)$", re.MULTILINE)
ANSWERS = re.compile(r"\banswer\(")
ANSWERED = re.compile(r"^(\d\d[a-z]?\.\d+)(?:, .*?)?: (.+)$", re.MULTILINE)
COLUMNS = re.compile(r"\S {2,}\S|^ {2,}\S|\t|[│─┌└]", re.MULTILINE)
OUTCOME, IMPORTS = "What came out", "Imports"
FOLDED = {  # a call that is folded: what is hidden, and what the fold says
    "checkpoint": ("hide-cell", "Checkpoint: test the chapter's code and export it"),
    "predictions": ("hide-cell", "Your predictions, and what came out"),
    "show": ("hide-input", "Code of the figure"),
}
SHOWN = 20  # lines of a printed output; of a longer one only the first TOP
TOP = 10


def cells_to_read(cells: list[NotebookNode], page: str) -> list[NotebookNode]:
    """The cells of a chapter, whose address on the site is `page`, as the book shows them."""
    default = next((found[1] for cell in cells if (found := DEFAULT.search(cell.source))), "")
    asks = next((found[1] for cell in cells if (found := ASKS.search(cell.source))), "predict")
    came_out = outcomes(cells)
    made: list[NotebookNode] = []
    for cell in cells:
        if cell.cell_type != "code":
            made.append(cell)
            continue
        if COLUMNS.search(printed(cell)):
            tag(cell, "columns")
        for part in code_to_read(cell, default, came_out, page, asks):
            if made and is_fold_of_imports(made[-1]) and is_fold_of_imports(part):
                made[-1].source += f"\n{part.source}"
            else:
                made.append(part)
    for number, cell in enumerate(made):
        cell.id = f"cell-{number}"
    return made


def is_fold_of_imports(cell: NotebookNode) -> bool:
    return cell.metadata.get("mystnb", {}).get("code_prompt_show") == IMPORTS and not cell.get("outputs")


def code_to_read(cell, default: str, came_out: dict[str, str], page: str, asks: str = "predict") -> list:
    """One code cell: its questions, its imports in a fold, a badge and the rest, as far as it has them."""
    badge = exported(cell.source, default, page)
    cell.source = DIRECTIVE.sub("", cell.source).strip("\n")
    try:
        cell.source = without_alt(cell.source)
    except SyntaxError:  # a cell with a magic
        return [*badge, cell, *rest_of_output(cell)]
    before = []
    if asked := taken(cell, lambda node: called(node) == asks):
        before.append(question([node for node, _ in asked], came_out))
    body = ast.parse(cell.source).body
    imports = [node for node in body if is_import(node)]
    if body and len(imports) == len(body):
        return [*before, folded(cell, "hide-input", IMPORTS)]
    if len(imports) > 1:
        texts = [text for _, text in taken(cell, is_import)]
        before.append(folded(new_code_cell("\n".join(texts)), "hide-input", IMPORTS))
    if not cell.source.strip():
        if not cell.get("outputs"):
            return before
        tag(cell, "remove-input")
    kinds = {called(node) for node in ast.parse(cell.source).body}
    if len(kinds) == 1 and (kind := kinds.pop()) in FOLDED:
        folded(cell, *FOLDED[kind])
    if came_out and ANSWERS.search(cell.source) and cell.get("outputs"):  # it answers a prediction
        return [*before, *badge, folded(cell, "hide-output", OUTCOME)]
    return [*before, *badge, cell, *rest_of_output(cell)]


def tag(cell: NotebookNode, name: str) -> None:
    cell.metadata.setdefault("tags", []).append(name)


def folded(cell: NotebookNode, hides: str, says: str) -> NotebookNode:
    """The cell, of which a part is behind a line to click on."""
    tag(cell, hides)
    cell.metadata.setdefault("mystnb", {}).update(code_prompt_show=says, code_prompt_hide=says)
    return cell


def printed(cell: NotebookNode) -> str:
    """What a cell printed, and its last value."""
    outputs = cell.get("outputs", ())
    return "\n".join(each.get("text") or each.get("data", {}).get("text/plain", "") for each in outputs)


def outcomes(cells: list[NotebookNode]) -> dict[str, str]:
    """What `answer` printed, by the prediction's key: "05.1, question: 31.6%" gives 31.6%."""
    found: dict[str, str] = {}
    for cell in cells:
        for output in cell.get("outputs", ()):
            for key, text in ANSWERED.findall(output.get("text", "")):
                found.setdefault(key, text.rpartition(": ")[2])
    return found


# A cell's code, read and changed by statements


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def called(node: ast.AST) -> str:
    """The name of the function that a statement calls, and does nothing else; "" for any other statement."""
    call = node.value if isinstance(node, ast.Expr) else None
    return call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""


def taken(cell: NotebookNode, wanted) -> list[tuple[ast.stmt, str]]:
    """The statements of a cell that are wanted, with their text. They are taken out of the cell."""
    found = [node for node in ast.parse(cell.source).body if wanted(node)]
    lines = cell.source.split("\n")
    texts = ["\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in found]
    for node in reversed(found):
        del lines[node.lineno - 1 : node.end_lineno]
    if found:
        cell.source = re.sub(r"\n{3,}", "\n\n\n", "\n".join(lines)).strip("\n")
    return list(zip(found, texts))


def without_alt(source: str) -> str:
    """The code, without the alternative texts of its figures."""
    shown = [node for node in ast.walk(ast.parse(source)) if called(node) == "show"]
    lines = source.split("\n")
    for node in sorted(shown, key=lambda node: -node.lineno):
        call = node.value
        kept = [word for word in call.keywords if word.arg != "alt"]
        if len(kept) < len(call.keywords):
            call.keywords = kept
            lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + ast.unparse(call)]
    return "\n".join(lines)


# What the book says in a cell's place


def exported(source: str, default: str, page: str) -> list[NotebookNode]:
    """A badge that names the module into which a cell is exported; none for other cells."""
    found = EXPORT.search(source)
    module = (found[1] or default) if found else ""
    if not module:
        return []
    address = f"nanogpt/{module.replace('.', '/')}.html"
    address = os.path.relpath(address, os.path.dirname(page)).replace(os.sep, "/")
    grows = GROWS.search(source)
    more = f" · a new version of <code>{html.escape(grows[1])}</code>" if grows else ""
    badge = f'<p class="exported"><a href="{address}">→ {module_file(module)}</a>{more}</p>'
    return [new_markdown_cell(badge)]


def question(asked: list[ast.stmt], came_out: dict[str, str]) -> NotebookNode:
    """Predictions as questions, each with its outcome in a fold."""
    lines = ['<div class="predict">', "<p><strong>Predict</strong></p>"]
    for node in asked:
        words = [argument.value for argument in node.value.args if isinstance(argument, ast.Constant)]
        named = {
            word.arg: word.value.value for word in node.value.keywords if isinstance(word.value, ast.Constant)
        }
        key, text = (*map(str, words), *filter(None, [named.get("question")]), "", "")[:2]
        unit = f" ({named['unit']})" if named.get("unit") else ""
        lines.append(f"<p><span>{key}</span> {html.escape(text + unit)}</p>")
        if outcome := came_out.get(key):
            lines.append(f"<details><summary>{OUTCOME}</summary><p>{html.escape(outcome)}</p></details>")
    return new_markdown_cell("\n".join([*lines, "</div>"]))


def rest_of_output(cell: NotebookNode) -> list[NotebookNode]:
    """Of a printed output that is long only the beginning stays; the rest goes into a fold behind the cell."""
    last = cell.outputs[-1] if cell.get("outputs") else None
    lines = last.text.rstrip("\n").split("\n") if last and last.output_type == "stream" else []
    if len(lines) <= SHOWN:
        return []
    last.text = "\n".join(lines[:TOP]) + "\n"
    rest = html.escape("\n".join(lines[TOP:]))
    rest = rest.replace("\n\n", "\n&#8203;\n")  # an empty line would end the HTML
    says = f"<summary>{len(lines) - TOP} more lines</summary>"
    return [new_markdown_cell(f'<details class="more">{says}<pre>{rest}</pre></details>')]
