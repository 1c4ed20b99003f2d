"""A module's cells as one program. `class GPT(GPT):` adds methods, in the notebook by inheritance, in the module by joining
the bodies; a dataclass goes on below its own decorator, and may add fields. `#| grows NAME` in a cell's head puts the cell's
definition in the place of an earlier chapter's. A module is in the order in which one reads it.
"""

import ast
import re
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from course.package.cells import ExportedCell, Function, continues_itself, defined_names, first_line, parse
from course.paths import CourseError, module_file


@dataclass(eq=False)
class Part:
    """A statement of a module or a class as a cell has it, with the comments above it. A class is its head and its members."""

    names: list[str]  # `area`, `GPT.forward`; none of a docstring
    text: str
    node: ast.stmt
    cell: ExportedCell
    outer: ast.ClassDef | None = None  # the class that it is a member of

    def is_of(self, name: str) -> bool:
        """Whether this is the definition of a name, or a member of the class of that name."""
        return name in self.names or bool(self.outer and self.outer.name == name)

    def goes_on(self) -> bool:
        """Whether it stands in a `class GPT(GPT):`."""
        return self.outer is not None and continues_itself(self.outer)

    def is_field(self) -> bool:
        return self.outer is not None and isinstance(self.node, ast.AnnAssign)

    def is_short(self) -> bool:
        return self.outer is None and not isinstance(self.node, Function | ast.ClassDef)


def parts_of(cell: ExportedCell, outer: ast.ClassDef | None = None, begin: int = 0) -> Iterator[Part]:
    """The parts of a cell, or of a class in it from line `begin` on (from 0), without imports."""
    lines = cell.source.split("\n")
    body, last = (outer.body, end_of(outer, lines)) if outer else (cell.tree.body, len(lines))
    imports = lines_of_imports(cell) if outer is None else set()
    over = begin
    for node in body:
        if first_line(node) - 1 < over:
            line = lines[first_line(node) - 1].strip()
            raise CourseError(f"{cell.where}: `{line}` holds two statements; give each a line of its own")
        over = last if node is body[-1] else end_of(node, lines)
        if isinstance(node, ast.Import | ast.ImportFrom) and outer is None:
            continue
        is_class = outer is None and isinstance(node, ast.ClassDef)
        has_members = is_class and node.body[0].lineno > node.lineno
        # a class's head ends above the comments of its first member
        end = above(first_line(node.body[0]) - 1, lines) if has_members else over
        if continues_itself(node) and not (has_members and len(node.bases) == 1 and not node.keywords):
            goes_on = f"{node.name} goes on as `class {node.name}({node.name}):`"
            raise CourseError(f"{cell.where}: {goes_on}, which names itself alone and has its members below")
        names = [f"{outer.name}.{name}" for name in defined_names(node)] if outer else defined_names(node)
        if isinstance(node, ast.ClassDef):
            names = names[:1]
        text = "\n".join(lines[n] for n in range(begin, end) if n not in imports)
        if not continues_itself(node):
            yield Part(names, text, node, cell, outer)
        if has_members:
            yield from parts_of(cell, node, end)
        begin = over


def lines_of_imports(cell: ExportedCell) -> set[int]:
    """The lines of a cell's imports, from 0: they move to the top of the module."""
    imports = (node for node in cell.tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    return {number for node in imports for number in range(node.lineno - 1, node.end_lineno)}


def end_of(node: ast.stmt, lines: list[str]) -> int:
    """The last line of a statement, from 1, with the comments that end a function's body."""
    end = node.end_lineno
    while end < len(lines) and re.match(rf" {{{node.col_offset + 1},}}#", lines[end]):
        end += 1
    return end


def above(line: int, lines: list[str]) -> int:
    """The first of the blank lines and comments right above a line, from 0."""
    while re.match(r"\s*(#|$)", lines[line - 1]):
        line -= 1
    return line


def grow(cells: list[ExportedCell]) -> list[Part]:
    """The parts of a module: each continued class in one piece, each grown definition in its old place."""
    parts: list[Part] = []
    for cell in cells:
        new = list(parts_of(cell))
        for name in cell.grows:
            replace(name, parts, new, cell)
        for part in new:
            refuse_second(part, parts)
            if part.goes_on():
                refuse_continuation(part, parts)
                if part.node is part.outer.body[0] and not part.is_field():
                    part.text = f"\n{part.text}"
            parts.insert(place_of(part, parts), part)
    return parts


def replace(name: str, parts: list[Part], new: list[Part], cell: ExportedCell) -> None:
    """Put a cell's definition of a name where an earlier chapter's is."""
    old, mine = ([part for part in each if part.is_of(name)] for each in (parts, new))
    for part in filter(Part.goes_on, mine):
        refuse_continuation(part, parts)
    problem = ""
    if not mine or name not in mine[0].names:
        problem = f"the cell does not define {name}"
    elif not old:
        problem = f"no earlier chapter defines {name} in {module_file(cell.module)}"
    elif old[0].cell.notebook == cell.notebook:
        problem = f"{old[0].cell.where} of the same chapter defines it; change it there"
    elif several := next((names for part in [*old, *mine] if len(names := part.names) > 1), []):
        problem = f"one statement defines {' and '.join(several)}; give each its own"
    if problem:
        raise CourseError(f"{cell.where}: `#| grows {name}`, but {problem}")
    place = parts.index(old[0])
    mine[0].text = f"\n{mine[0].text}"
    parts[:] = [part for part in parts if part not in old]
    parts[place:place] = mine
    new[:] = [part for part in new if part not in mine]


def refuse_second(part: Part, parts: list[Part]) -> None:
    """A name is defined once (a property and its setter share theirs)."""
    for other in parts:
        if set(part.names) & set(other.names) and not (part.outer and part.cell is other.cell):
            remedy = f"write `#| grows {part.names[0]}` to replace it, or rename it"
            if other.cell.notebook == part.cell.notebook:
                remedy = "rename or remove one"
            where = f"is defined already in {other.cell.where}"
            raise CourseError(f"{part.cell.where}: {part.names[0]} {where}; {remedy}")


def refuse_continuation(part: Part, parts: list[Part]) -> None:
    """Joined bodies must mean what inheritance meant in the notebook."""
    where, name = part.cell.where, part.outer.name
    heads = [other.node for other in parts if other.names == [name] and isinstance(other.node, ast.ClassDef)]
    if not heads:
        raise CourseError(f"{where}: {name} continues a class that no earlier exported cell defines")
    decorators, firsts = (list(map(ast.unparse, node.decorator_list)) for node in (part.outer, heads[0]))
    if (decorators or part.is_field()) and decorators != firsts:
        raise CourseError(f"{where}: {name} goes on with other decorators than it began with; write the same")
    if any(isinstance(leaf, ast.Name) and leaf.id == "super" for leaf in ast.walk(part.node)):
        means = "which means another class once the two are one; call the base by its name"
        raise CourseError(f"{where}: {name} goes on and uses super(), {means}")


def place_of(part: Part, parts: list[Part]) -> int:
    """Where a part goes: the member of a continued class to the end of it, a field behind its other fields."""
    if not part.goes_on():
        return len(parts)
    members = [place for place, other in enumerate(parts) if other.is_of(part.outer.name)]
    if part.is_field():
        members = [place for place in members if parts[place].is_field()] or members[:1]
    return members[-1] + 1


@dataclass
class Block:
    """What stays together when definitions are put in order: a class, or short statements without a line between."""

    parts: list[Part]

    def text(self) -> str:
        return "\n".join(part.text for part in self.parts).strip("\n")

    def names(self) -> set[str]:
        return {name for part in self.parts for name in part.names}


def blocks_of(parts: list[Part]) -> list[Block]:
    blocks: list[Block] = []
    before = None
    for part in parts:
        goes_on = before and part.is_short() and before.is_short() and part.cell is before.cell
        if part.outer or (goes_on and not re.match(r"\s*(#|\n)", part.text)):
            blocks[-1].parts.append(part)
        else:
            blocks.append(Block([part]))
        before = part
    return blocks


def in_reading_order(parts: list[Part]) -> str:
    """A module's definitions, each below what it uses: a helper stands right above the first that needs it, whatever chapter
    it came from. What stands so already stays where it is. Definitions may use each other.
    """
    blocks = blocks_of(parts)
    trees = [parse(block.text(), block.parts[0].cell.where) for block in blocks]
    home = {name: n for n, block in enumerate(blocks) for name in block.names()}
    uses = [sorted({home[name] for name in names_used(block.text()) if name in home}) for block in blocks]
    at_once = [{home[name] for name in needed_at_once(tree) if name in home} for tree in trees]
    order: list[int] = []
    place(range(len(blocks)), uses, at_once, order, set())
    return "\n\n\n".join(blocks[n].text() for n in order)


def place(wanted: Iterable[int], uses: list, at_once: list[set], order: list[int], above: set[int]) -> None:
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
    left = at_once[n] - seen
    return bool(at_once[n] & others - {n}) or any(needs_one(k, others, at_once, seen) for k in left)


def names_used(block: str) -> set[str]:
    """The names of the module that a piece uses, also within functions: not a function's own, such as a parameter."""
    found, tables = set(), [symtable.symtable(block, "", "exec")]
    while tables:
        table = tables.pop()
        used = [symbol for symbol in table.get_symbols() if symbol.is_referenced()]
        found |= {symbol.get_name() for symbol in used if table.get_type() == "module" or symbol.is_global()}
        tables += table.get_children()
    return found


def needed_at_once(node: ast.AST) -> set[str]:
    """The names that must have a value when a statement is run: not those within a function's body."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return {node.id}
    body = node.body if isinstance(node, Function) else [node.body] if isinstance(node, ast.Lambda) else []
    parts = [part for part in ast.iter_child_nodes(node) if part not in body]
    return set().union(*map(needed_at_once, parts))


def module_parts(text: str) -> list[Part]:
    return list(parts_of(ExportedCell("the module", "", text, parse(text, "the module"))))
