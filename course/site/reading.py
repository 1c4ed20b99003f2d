"""A chapter's cells as one reads them in the book: what serves the machinery is folded, or said in a few words.

Directives become a badge that names the module, imports and the checkpoint are folded, a prediction is a question whose
outcome opens, and so does the output of the cell that answers it, a long output shows its beginning, a phone lets columns
scroll and continues other lines, and a figure's alternative text is not shown as code.
"""

import ast
import html
import os
import re

import nbformat

from course.paths import module_file
from course.predictions import ASKS

DIRECTIVE = re.compile(r"^#\|.*\n?", re.MULTILINE)
EXPORT = re.compile(r"^#\| export(?: +([\w.]+))?$", re.MULTILINE)
DEFAULT = re.compile(r"^#\| default_exp +([\w.]+)", re.MULTILINE)
ANSWERS = re.compile(r"\banswer\(")
COLUMNS = re.compile(r"\S {2,}\S|^ {2,}\S|\t|[│─┌└]", re.MULTILINE)
GROWS = re.compile(r"^#\| grows +(.+)$", re.MULTILINE)
OUTCOME = "What came out"
FOLDED = {  # a call that is folded, and what the fold says
    "checkpoint": "Checkpoint: test the chapter's code and export it",
    "predictions": "Your predictions, and what came out",
    "show": "Code of the figure",
}
IMPORTS = "Imports"
SHOWN = 20  # lines of a printed output; of a longer one only the first TOP
TOP = 10


def cells_to_read(cells: list, page: str) -> list:
    """The cells of a chapter, whose address on the site is `page`, as the book shows them."""
    default = next((found[1] for cell in cells if (found := DEFAULT.search(cell.source))), "")
    asks = next((found[1] for cell in cells if (found := ASKS.search(cell.source))), "predict")
    came_out = outcomes(cells)
    made = []
    for cell in cells:
        if cell.cell_type == "code" and COLUMNS.search(printed(cell)):
            cell.metadata.setdefault("tags", []).append("columns")
        made += code_to_read(cell, default, came_out, page, asks) if cell.cell_type == "code" else [cell]
    made = together(made)
    for number, cell in enumerate(made):
        cell.setdefault("id", f"read-{number}")
    return made


def together(cells: list) -> list:
    """Imports that follow each other are one fold."""
    made = []
    for cell in cells:
        if made and all(map(is_fold_of_imports, (made[-1], cell))):
            made[-1].source += f"\n{cell.source}"
        else:
            made.append(cell)
    return made


def is_fold_of_imports(cell) -> bool:
    folds = cell.metadata.get("mystnb", {}).get("code_prompt_show") == IMPORTS
    return folds and not cell.get("outputs")


def code_to_read(cell, default: str, came_out: dict[str, str], page: str, asks: str = "predict") -> list:
    """One code cell: its questions, its imports in a fold, a badge and the rest, as far as it has them."""
    badge = exported(cell.source, default, page)
    cell.source = DIRECTIVE.sub("", cell.source).strip("\n")
    try:
        cell.source = without_alt(cell.source, ast.parse(cell.source).body)
    except SyntaxError:  # a cell with a magic
        return [*badge, cell, *rest_of_output(cell)]
    before = []
    if asked := taken(cell, lambda node: called(node) == asks):
        before.append(question(asked, came_out))
    body = ast.parse(cell.source).body
    imports = list(filter(is_import, body))
    if body and len(imports) == len(body):
        return [*before, folded(cell, IMPORTS)]
    if len(imports) > 1:
        text = source_of(cell.source, imports)
        taken(cell, is_import)
        before.append(folded(code(text), IMPORTS))
    if not cell.source.strip():
        if not cell.get("outputs"):
            return before
        cell.metadata.setdefault("tags", []).append("remove-input")
    fold(cell)
    if came_out and ANSWERS.search(cell.source) and cell.get("outputs"):  # it answers a prediction
        cell.metadata.setdefault("tags", []).append("hide-output")
        cell.metadata["mystnb"] = cell.metadata.get("mystnb", {}) | prompts(OUTCOME)
        return [*before, *badge, cell]
    return [*before, *badge, cell, *rest_of_output(cell)]


def printed(cell) -> str:
    """What a cell printed, and its last value."""
    outputs = cell.get("outputs", ())
    return "\n".join(each.get("text") or each.get("data", {}).get("text/plain", "") for each in outputs)


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def taken(cell, wanted) -> list[ast.stmt]:
    """The statements of a cell that are wanted, which are taken out of it."""
    found = list(filter(wanted, ast.parse(cell.source).body))
    cell.source = without(cell.source, found)
    return found


def fold(cell) -> None:
    """Fold a cell that does nothing but show a figure, the predictions, or the checkpoint."""
    kinds = {called(node) for node in ast.parse(cell.source).body}
    if len(kinds) == 1 and (kind := kinds.pop()) in FOLDED:
        folded(cell, FOLDED[kind], whole=kind != "show")


def called(node: ast.stmt) -> str:
    """The name of the function that a statement calls, and does nothing else; "" for any other statement."""
    call = node.value if isinstance(node, ast.Expr) else None
    return call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""


def code(source: str):
    made = nbformat.v4.new_code_cell(source)
    del made["id"]
    return made


def prose(source: str):
    made = nbformat.v4.new_markdown_cell(source)
    del made["id"]
    return made


def folded(cell, says: str, whole: bool = False):
    """The cell behind a line to click on; whole: with its outputs."""
    cell.metadata.setdefault("tags", []).append("hide-cell" if whole else "hide-input")
    cell.metadata["mystnb"] = cell.metadata.get("mystnb", {}) | prompts(says)
    return cell


def prompts(says: str) -> dict[str, str]:
    return {"code_prompt_show": says, "code_prompt_hide": says}


def exported(source: str, default: str, page: str) -> list:
    """A badge that names the module into which a cell is exported; none for other cells."""
    found = EXPORT.search(source)
    module = (found[1] or default) if found else ""
    if not module:
        return []
    at = os.path.relpath(f"nanogpt/{module.replace('.', '/')}.html", os.path.dirname(page)).replace(
        os.sep, "/"
    )
    grows = GROWS.search(source)
    more = f" · a new version of <code>{html.escape(grows[1])}</code>" if grows else ""
    return [prose(f'<p class="exported"><a href="{at}">→ {module_file(module)}</a>{more}</p>')]


def without_alt(source: str, body: list[ast.stmt]) -> str:
    """The code, without the alternative texts of its figures."""
    shown = [
        node
        for each in body
        for node in ast.walk(each)
        if isinstance(node, ast.stmt) and called(node) == "show"
    ]
    for node in sorted(shown, key=lambda node: -node.lineno):
        call = node.value
        kept = [word for word in call.keywords if word.arg != "alt"]
        if len(kept) < len(call.keywords):
            words = [ast.unparse(argument) for argument in call.args]
            words += [f"{word.arg}={ast.unparse(word.value)}" for word in kept]
            source = replaced(source, node, f"{' ' * node.col_offset}show({', '.join(words)})")
    return source


def replaced(source: str, node: ast.stmt, text: str) -> str:
    """The source with another text in place of a statement and of what follows on its last line."""
    lines = source.split("\n")
    return "\n".join([*lines[: node.lineno - 1], *filter(None, [text]), *lines[node.end_lineno :]])


def without(source: str, nodes: list[ast.stmt]) -> str:
    for node in reversed(nodes):
        source = replaced(source, node, "")
    return re.sub(r"\n{3,}", "\n\n\n", source).strip("\n")


def source_of(source: str, nodes: list[ast.stmt]) -> str:
    lines = source.split("\n")
    return "\n".join("\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in nodes)


def outcomes(cells: list) -> dict[str, str]:
    """What `answer` printed, by the prediction's key: "05.1, question: 31.6%" gives 31.6%."""
    found = {}
    for cell in cells:
        for output in cell.get("outputs", ()):
            for key, text in re.findall(
                r"^(\d\d[a-z]?\.\d+)(?:, .*?)?: (.+)$", output.get("text", ""), re.MULTILINE
            ):
                found.setdefault(key, text.rpartition(": ")[2] if ": " in text else text)
    return found


def question(asked: list[ast.stmt], came_out: dict[str, str]):
    """Predictions as questions, each with its outcome in a fold."""
    lines = ['<div class="predict">', "<p><strong>Predict</strong></p>"]
    for node in asked:
        words = [argument.value for argument in node.value.args if isinstance(argument, ast.Constant)]
        words += [word.value.value for word in node.value.keywords if word.arg == "question"]
        key, text = (*map(str, words), "", "")[:2]
        unit = next(
            (
                str(w.value.value)
                for w in node.value.keywords
                if w.arg == "unit" and isinstance(w.value, ast.Constant)
            ),
            "",
        )
        asks = f"{text}{f' ({unit})' if unit else ''}"
        outcome = came_out.get(key)
        lines.append(f"<p><span>{key}</span> {html.escape(asks)}</p>")
        if outcome:
            lines.append(f"<details><summary>{OUTCOME}</summary><p>{html.escape(outcome)}</p></details>")
    return prose("\n".join([*lines, "</div>"]))


def rest_of_output(cell) -> list:
    """Of a printed output that is long only the beginning stays; the rest goes into a fold behind the cell."""
    streams = [output for output in cell.get("outputs", ()) if output.output_type == "stream"]
    if not streams or streams[-1] is not cell.outputs[-1]:
        return []
    lines = streams[-1].text.rstrip("\n").split("\n")
    if len(lines) <= SHOWN:
        return []
    streams[-1].text = "\n".join(lines[:TOP]) + "\n"
    rest = html.escape("\n".join(lines[TOP:])).replace(
        "\n\n", "\n&#8203;\n"
    )  # an empty line would end the HTML
    return [
        prose(
            f'<details class="more"><summary>{len(lines) - TOP} more lines</summary><pre>{rest}</pre></details>'
        )
    ]
