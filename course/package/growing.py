"""A module's cells as one program: a class that goes on in later cells is joined, and what a later chapter grows takes
the place of what was there.

`class GPT(GPT):` adds methods, in the notebook by inheritance, in the module by joining the bodies. A dataclass goes on
below its own decorator, and may add fields with defaults at its head. `#| grows NAME` in a cell's head replaces a definition of an earlier chapter where it stands. Where the module would be another program
than the cells, the cell is refused.
"""

import ast
import itertools
import re
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import replace

from course.package.cells import (
    ExportedCell,
    Function,
    continues_itself,
    defined_names,
    imported_names,
    parse,
)
from course.paths import CourseError, module_file


def grow(cells: list[ExportedCell]) -> list[ExportedCell]:
    """The cells, with each continued class in one piece and each grown definition in its old place."""
    joined: list[ExportedCell] = []
    for cell in cells:
        for node in filter(continues_itself, cell.tree.body):
            refuse_continuation(cell, node, begun(joined, cell, node)[1])
        for name in cell.grows:
            cell = move_grown(joined, cell, name)
        joined.append(join_classes(joined, cell))
    return joined


def refuse_collisions(cells: list[ExportedCell], added: dict[str, str]) -> None:
    """A name is defined once, but where a later chapter grows it, or imported from one place, whichever cell comes first.

    added: name → module, of the imports that the exporter adds.
    """
    owner = owners(cells)
    for name in [name for name in added if name in owner]:
        raise CourseError(
            f"{owner[name].where}: {name} is defined in {module_file(added[name])} too, and "
            f"{module_file(cells[0].module)} uses both; rename one"
        )
    origin: dict[str, tuple[str, str]] = {
        name: (f"nanogpt.{module}.{name}", f"{module_file(module)}, which the notebook exports to")
        for name, module in added.items()
    }
    for cell in cells:
        for name, what in imported_names(cell.tree):
            first, elsewhere = origin.setdefault(name, (what, cell.where))
            if what == f"nanogpt.{cell.module}.{name}":
                raise CourseError(
                    f"{cell.where} imports {name} from the module that it goes to; import it in a cell without `#| export`"
                )
            if name in owner:
                raise CourseError(
                    f"{cell.where} imports {name}, which {owner[name].where} defines; rename one"
                )
            if first != what:
                raise CourseError(
                    f"{cell.where}: {name} is {what} here and {first} in {elsewhere}; import one under another name"
                )


def owners(cells: list[ExportedCell]) -> dict[str, ExportedCell]:
    """Name → the cell that defines it, or grew it last; a CourseError where a second one does without saying so."""
    owner: dict[str, ExportedCell] = {}
    for cell in cells:
        for name in cell.grows:
            refuse_growth(name, cell, owner, cells)
        for name in [n for n in owner if {n, n.split(".")[0]} & set(cell.grows)]:
            del owner[name]
        for name in cell.names():
            if name in owner and (
                "." not in name or owner[name] is not cell
            ):  # a property's setter shares its name
                same = owner[name].notebook == cell.notebook
                remedy = (
                    "rename or remove one" if same else f"write `#| grows {name}` to replace it, or rename it"
                )
                raise CourseError(f"{cell.where}: {name} is defined already in {owner[name].where}; {remedy}")
            owner[name] = cell
    return owner


def refuse_growth(
    name: str, cell: ExportedCell, owner: dict[str, ExportedCell], cells: list[ExportedCell]
) -> None:
    """owner: name → the cell that defines it so far."""
    later = next((c for c in cells[cells.index(cell) + 1 :] if name in c.names()), None)
    problem = ""
    if name not in cell.names():
        problem = f"the cell does not define {name}"
    elif name.split(".")[0] in set(cell.grows) - {name}:
        problem = f"{name.split('.')[0]} grows as a whole; name it alone"
    elif name not in owner and later:
        problem = f"{name} is first defined later, in {later.where}; a definition comes before what grows it"
    elif name not in owner:
        problem = f"no earlier chapter defines {name} in {module_file(cell.module)}"
    elif owner[name].notebook == cell.notebook:
        problem = f"{owner[name].where} of the same chapter defines it; change it there"
    if problem:
        raise CourseError(f"{cell.where}: `#| grows {name}`, but {problem}")


def begun(
    joined: list[ExportedCell], cell: ExportedCell, node: ast.ClassDef
) -> tuple[ExportedCell, ast.ClassDef]:
    """The earlier cell with the class that `node` goes on with, and the class there."""
    for home in joined:
        for first in home.tree.body:
            if isinstance(first, ast.ClassDef) and first.name == node.name:
                return home, first
    raise CourseError(f"{cell.where}: {node.name} continues a class that no earlier exported cell defines")


def join_classes(joined: list[ExportedCell], cell: ExportedCell) -> ExportedCell:
    """Move the body of each `class X(X):` of the cell to the end of the first `class X`; the cell without them."""
    # Last first, so that cutting one leaves the others' lines in place.
    for node in filter(continues_itself, reversed(cell.tree.body)):
        home, first = begun(joined, cell, node)
        lines, text = cell.source.split("\n"), home.source.split("\n")
        new = leading_fields(node) if first.decorator_list else []
        after = new[-1].end_lineno if new else node.lineno
        if after < node.end_lineno:
            text[first.end_lineno : first.end_lineno] = ["", *lines[after : node.end_lineno]]
        if new:  # behind the old ones, where whoever reads the class looks for them
            fields = (part.end_lineno for part in first.body if isinstance(part, ast.AnnAssign))
            place = max(fields, default=first.body[0].end_lineno)
            text[place:place] = lines[node.lineno : after]
        joined[joined.index(home)] = with_source(home, "\n".join(text))
        cell = with_source(cell, "\n".join(lines[: first_line(node) - 1] + lines[node.end_lineno :]))
    return cell


def leading_fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    """The fields of a dataclass that stand at the head of its body."""
    return list(itertools.takewhile(lambda part: isinstance(part, ast.AnnAssign), node.body))


def refuse_continuation(cell: ExportedCell, node: ast.ClassDef, first: ast.ClassDef) -> None:
    """Joined bodies must mean what inheritance meant in the notebook."""
    header = cell.source.split("\n")[node.lineno - 1]
    problem = ""
    fields = leading_fields(node) if first.decorator_list else []
    again = [ast.unparse(d) for d in node.decorator_list] == [ast.unparse(d) for d in first.decorator_list]
    if node.decorator_list and not (fields and again):
        problem = "has a decorator; decorate the first"
    elif fields and not node.decorator_list:
        problem = "adds fields without the decorator of the first; write it above"
    elif any(part.value is None for part in fields):
        problem = "adds a field without a default, which cannot follow those that have one; give it one"
    elif not re.fullmatch(rf"class {node.name}\({node.name}\):\s*(#.*)?", header):
        problem = "goes on with a class: it names itself alone, and its body begins on the next line"
    elif first.body[0].lineno == first.lineno:
        problem = "goes on with a class written on one line; begin that body on a line of its own"
    elif any(isinstance(leaf, ast.Name) and leaf.id == "super" for leaf in ast.walk(node)):
        problem = "uses super(), which means another class once the two are one; call the base by its name"
    elif first.decorator_list and not all(
        isinstance(n, Function) and (n.name[:2] != "__" or f"{node.name}.{n.name}" in cell.grows)
        for n in node.body[len(fields) :]
    ):
        problem = "adds more than plain methods to a decorated class; write them where it begins"
    if problem:
        raise CourseError(f"{cell.where}: `{header.strip()}` {problem}")


def move_grown(joined: list[ExportedCell], cell: ExportedCell, name: str) -> ExportedCell:
    """Put the cell's definition of a name where an earlier cell has it; the cell without it."""
    home = next(c for c in joined if definitions(c, name))
    old, new = definitions(home, name), definitions(cell, name)
    for place, node in [*((home, node) for node in old), *((cell, node) for node in new)]:
        if len(names := defined_names(node)) > 1 and not isinstance(node, ast.ClassDef):
            raise CourseError(
                f"{place.where}: one statement defines {' and '.join(names)}, and {name} grows; give each its own"
            )
    text = [line for node in new for line in ["", *taken(cell, extent(cell, node))]]
    joined[joined.index(home)] = without(home, [extent(home, node) for node in old], text)
    emptied = [n for n in cell.tree.body if continues_itself(n) and all(part in new for part in n.body)]
    return without(cell, [extent(cell, node) for node in [*new, *emptied]], [])


def taken(cell: ExportedCell, part: range) -> list[str]:
    return cell.source.split("\n")[part.start : part.stop]


def without(cell: ExportedCell, parts: list[range], text: list[str]) -> ExportedCell:
    """The cell without these lines; `text` stands where the first of them stood."""
    gone = {number for part in parts for number in part}
    lines = ["" if number in gone else line for number, line in enumerate(cell.source.split("\n"))]
    lines[parts[0].start : parts[0].start] = text
    return with_source(cell, "\n".join(lines))


def definitions(cell: ExportedCell, name: str) -> list[ast.stmt]:
    """The statements that define a name, `GPT.forward` within the class: several for a property or with overloads."""
    outer, _, inner = name.partition(".")
    if not inner:
        return [node for node in cell.tree.body if binds(node, name)]
    classes = [node for node in cell.tree.body if isinstance(node, ast.ClassDef) and node.name == outer]
    return [part for node in classes for part in node.body if binds(part, inner)]


def binds(node: ast.stmt, name: str) -> bool:
    if isinstance(node, Function | ast.ClassDef):
        return node.name == name and not continues_itself(node)
    return name in defined_names(node)


def extent(cell: ExportedCell, node: ast.stmt) -> range:
    """The lines of a statement, from 0, with its decorators and the comments right above it."""
    lines = cell.source.split("\n")
    start, stop = first_line(node) - 1, node.end_lineno
    before, after = lines[node.lineno - 1].encode(), lines[stop - 1].encode()[node.end_col_offset :].strip()
    if before[: node.col_offset].strip() or (after and not after.startswith(b"#")):
        raise CourseError(
            f"{cell.where}: `{lines[start].strip()}` shares its line, and growing moves it; give it a line of its own"
        )
    ends = (n.end_lineno for n in ast.walk(cell.tree) if hasattr(n, "end_lineno") and n.end_lineno <= start)
    above, comment = max(ends, default=0), " " * node.col_offset + "#"
    while start > above and lines[start - 1].startswith(comment):
        start -= 1
    while stop < len(lines) and re.match(rf" {{{node.col_offset + 1},}}#", lines[stop]):
        stop += 1
    return range(start, stop)


def first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])


def in_reading_order(text: str) -> str:
    """A module's definitions, each below what it uses: a helper stands right above the first that needs it, whatever chapter
    it came from. What stands so already stays where it is. Definitions may use each other.
    """
    blocks = split_blocks(text)
    trees = [ast.parse(block) for block in blocks]
    home = {name: n for n, tree in enumerate(trees) for node in tree.body for name in defined_names(node)}
    uses = [sorted({home[name] for name in names_used(block) if name in home}) for block in blocks]
    at_once = [{home[name] for name in needed_at_once(tree) if name in home} for tree in trees]
    order: list[int] = []
    place(range(len(blocks)), uses, at_once, order, set())
    return "\n\n\n".join(blocks[n] for n in order)


def place(
    wanted: Iterable[int], uses: list, at_once: list[set[int]], order: list[int], above: set[int]
) -> None:
    """Append blocks to `order`, what each uses before it. above: those that wait for these."""
    for n in wanted:
        if n in order or n in above:
            continue
        waits = above | {n}
        place([k for k in uses[n] if not needs_one(k, waits, at_once, set())], uses, at_once, order, waits)
        order.append(n)


def needs_one(n: int, others: set[int], at_once: list[set[int]], seen: set[int]) -> bool:
    """Whether a block, when it is run, needs one of the others to be there."""
    seen.add(n)
    return bool(at_once[n] & others - {n}) or any(
        needs_one(k, others, at_once, seen) for k in at_once[n] - seen
    )


def split_blocks(text: str) -> list[str]:
    """A module's text without imports in pieces: a definition with the comments above it, or a group of short statements."""
    lines, blocks, begin = text.split("\n"), [], 0
    nodes = ast.parse(text).body
    for node, after in zip(nodes, [*nodes[1:], None]):
        short = not isinstance(node, Function | ast.ClassDef)
        end = node.end_lineno if after else len(lines)
        while end < len(lines) and re.match(r" +#", lines[end]):
            end += 1  # a comment that ends a function's body
        if after and short and not isinstance(after, Function | ast.ClassDef) and after.lineno == end + 1:
            continue  # lines of one group
        blocks.append("\n".join(lines[begin:end]).strip("\n"))
        begin = end
    return blocks


def names_used(block: str) -> set[str]:
    """The names of the module that a piece uses, also within functions and methods."""
    return set(global_names(symtable.symtable(block, "", "exec")))


def global_names(table: symtable.SymbolTable) -> Iterator[str]:
    """The names of a module that a text uses: not a function's own, such as a parameter that is called alike."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from global_names(inner)


def needed_at_once(node: ast.AST) -> set[str]:
    """The names that must have a value when a statement is run: not those within a function's body."""
    if isinstance(node, Function | ast.Lambda):
        parts = [
            *getattr(node, "decorator_list", []),
            node.args,
            *filter(None, [getattr(node, "returns", None)]),
        ]
    else:
        parts = list(ast.iter_child_nodes(node))
    own = {node.id} if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) else set()
    return own.union(*map(needed_at_once, parts))


def with_source(cell: ExportedCell, source: str) -> ExportedCell:
    return replace(cell, source=source, tree=parse(source, cell.where))
