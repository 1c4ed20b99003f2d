"""A module that several chapters write: what grows takes the place of what was, or one clear sentence."""

import pytest
from house import of_code

from course.package.export import export_all, writers
from course.package.growing import blocks_of, module_parts, names_used
from course.paths import CourseError, module_path, modules

DOC = "#| default_exp a\n#| doc a: What a is."
STEP = """\
#| export
import math
import os

FIRST = os.sep

# What one step does.
def step(x):
    return math.sqrt(x)

def last(x):
    return step(x)"""
BOX = '''\
#| export
class Box:
    """One."""

    # It was three.
    def put(self):
        return 1

    @property
    def size(self):
        return 2

    @size.setter
    def size(self, value):
        pass

    def take(self):
        return 3'''


def compose(*chapters: str | list[str]) -> dict[str, str]:
    """The modules of chapters 01, 02, ...; one cell each, or several, after the cell with `default_exp`."""
    read = []
    for number, cells in enumerate(chapters, 1):
        head = DOC if number == 1 else "#| default_exp a"
        nb = of_code(head, *([cells] if isinstance(cells, str) else cells))
        read.append((f"{number:02}_x.ipynb", nb))
    return export_all(read)


def text_of(*chapters: str | list[str]) -> str:
    return compose(*chapters)["a"]


def refused(*chapters: str | list[str]) -> str:
    with pytest.raises(CourseError) as error:
        compose(*chapters)
    assert "\n" not in str(error.value)
    return str(error.value)


def in_order(text: str, *lines: str) -> bool:
    places = [text.index(line) for line in lines]
    return places == sorted(places)


def test_what_grows_takes_the_place_of_what_was():
    """Its comment and decorator come with it, the old ones go; what is new stands at the end; imports follow use."""
    grown = """\
# Now the cube root.
@cache
def step(x):
    return x ** (1 / 3)  # as said
    # and no more
"""
    head = "#| export\n#| grows step\nfrom functools import cache\n\n"
    text = text_of(STEP, f"{head}{grown}\ndef new(x):\n    return last(x)")
    imports = "import os\nfrom functools import cache\n"
    assert in_order(text, imports, "FIRST = os.sep", grown, "def last(x)", "def new(x)")
    assert "math" not in text and "What one step does" not in text


MORE = "#| export\nclass Box(Box):\n    def more(self):\n        return 4"


def test_a_class_grows_by_methods():
    grows = '''\
#| export
#| grows Box.put, Box.size
class Box(Box):
    # It is ten.
    def put(self):
        return 10

    @property
    def size(self):
        """Read only."""
        return 20

    def other(self):
        return 30'''
    text = text_of(BOX, MORE, grows)
    assert in_order(text, "return 10", "return 20", "return 3\n", "return 4", "return 30")
    assert "setter" not in text and "It was three" not in text and text.count("class Box") == 1


def test_a_class_grows_as_a_whole_and_goes_on():
    whole = "#| export\n#| grows Box\nclass Box:\n    def only(self):\n        return 5"
    text = text_of(BOX, MORE, [whole, MORE.replace("4", "6")], STEP)
    assert in_order(text, "class Box", "return 5", "return 6", "def step")
    assert text.count("class Box") == 1 and "return 4" not in text and "put" not in text


RUN = """\
#| export
from dataclasses import dataclass

@dataclass
class Run:
    name: str  # whose
    step: int = 0  # how far

    def __post_init__(self):
        self.said = self.name"""
GROWN_RUN = """\
#| export
#| grows Run.__post_init__
@dataclass
class Run(Run):
    size: int = 1  # processes

    def __post_init__(self):
        self.said = f"{self.name} of {self.size}"

    def other(self):
        return 2"""


def test_a_dataclass_goes_on_with_fields_behind_the_old_ones():
    """In the notebook by inheritance, in the module by joining: the same fields, in the same order."""
    methods = "#| export\nclass Run(Run):\n    def more(self):\n        return 3"  # and no decorator
    text = text_of(RUN, GROWN_RUN, methods)
    fields = "name: str  # whose", "step: int = 0  # how far", "size: int = 1  # processes"
    assert in_order(text, *fields, "of {self.size}", "return 2", "return 3")
    assert text.count("@dataclass") == text.count("class Run") == text.count("__post_init__") == 1
    notebook, module = {}, {}
    exec(f"{RUN}\n{GROWN_RUN}", notebook)
    exec(text, module)
    made = [space["Run"]("a", 3, size=2) for space in (notebook, module)]
    assert vars(made[0]) == vars(made[1]) and made[1].said == "a of 2"


def test_a_helper_that_came_with_it_stands_above_the_first_that_uses_it():
    """A default, a decorator, a base or an annotation has its value when the module is imported; a body is read so."""
    cell = "#| export\n#| grows step\nLIMIT = 3\nclass Clip:\n    norm = LIMIT\ndef helper(x): return x\ndef step(x: Clip): return helper(x)"
    text = text_of(STEP, cell)
    exec(text, {})
    assert in_order(text, "LIMIT = 3", "class Clip", "def helper", "def step", "def last")


def test_definitions_may_use_each_other_and_what_runs_at_once_comes_first():
    cell = "#| export\ndef even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n > 0 and even(n - 1)\nFIVE = odd(5)"
    text = text_of(cell)
    assert max(text.index("def even"), text.index("def odd")) < text.index("FIVE")
    exec(text, {})
    cell = "#| export\ndef mark(f): return X and f\n@mark\ndef g(): return mark\n\nX = 1\n\nY = g()"
    text = text_of(cell)
    exec(text, {})
    assert in_order(text, "X = 1", "def mark")


@pytest.mark.parametrize("module", modules())
def test_in_the_package_a_helper_stands_above_its_callers(module):
    """Read from the top, nothing is used before it is defined, but for functions that use each other."""
    blocks = blocks_of(module_parts(module_path(module).read_text(encoding="utf-8")))
    named = [names_used(block.text()) for block in blocks]
    uses = [{n for n, block in enumerate(blocks) if names & block.names()} for names in named]
    for n, block in enumerate(blocks):
        for late in {m for m in uses[n] if m > n}:
            below = f"{sorted(block.names())} uses {sorted(blocks[late].names())}, which stands below"
            assert n in reached(late, uses), below


def reached(start: int, uses: list[set[int]]) -> set[int]:
    """The blocks that one uses, directly or through others."""
    seen, left = set(), {start}
    while left:
        seen |= left
        left = set().union(*(uses[n] for n in left)) - seen
    return seen


@pytest.mark.parametrize(
    "chapters, message",
    [
        ([STEP, "#| export\ndef step(x): pass"], "defined already in 01_x.ipynb, step; write `#| grows step`"),
        ([BOX, "#| export\nclass Box(Box):\n    def put(self): pass"], "write `#| grows Box.put`"),
        ([BOX, "#| export\n#| grows Box.put\nclass Box:\n    def put(self): pass"], "write `#| grows Box`"),
        ([STEP, "#| export\n#| grows walk\ndef walk(x): pass"], "no earlier chapter defines walk in nanogpt/a.py"),
        ([[STEP, "#| export\n#| grows step\ndef step(x): pass"]], "01_x.ipynb, step of the same chapter"),
        ([STEP, "#| export\n#| grows step\ndef other(x): pass"], "the cell does not define step"),
        ([STEP, "#| grows step\ndef step(x): pass"], "belong below `#| export`"),
        (["#| export\nA, B = 1, 2", "#| export\n#| grows A\nA = 3"], "one statement defines A and B"),
        (["#| export\ndef B(): pass", "#| export\nclass B(B):\n    y = 1"], "B continues a class"),
        ([BOX, "#| export\n#| grows Box.put\nclass Box(Box):\n    def put(self): return super().put()"], "uses super()"),
        ([RUN, "#| export\nclass Run(Run):\n    size: int = 1"], "other decorators"),
        ([STEP, "#| export\nfrom os import step\nX = step"], "step is os.step here and a definition in 01_x.ipynb, step"),
        ([STEP, ["#| doc b: B.", "#| export b\ndef step(x): pass", "#| export\nX = step"]], "nanogpt.b.step in nanogpt/b.py"),
    ],
)  # fmt: skip
def test_what_cannot_grow_is_refused(chapters, message):
    assert message in refused(*chapters)


def test_modules_head_names_every_notebook_that_wrote_it():
    text = text_of(STEP, "#| export\nA = 1", "#| export\nB = 1")
    assert "from notebooks/01_x.ipynb, grown by notebooks/02_x.ipynb and notebooks/03_x.ipynb.\n" in text
    chapters = [f"#| export\nA{number} = 1" for number in range(12)]
    text = text_of(*chapters)
    assert max(map(len, text.splitlines())) <= 110 and len(text.split('"""')[1].splitlines()) == 5
    assert writers(text) == [f"{number + 1:02}_x.ipynb" for number in range(12)]
    assert writers('"""A module of somebody\'s own."""\n') == []


def test_a_later_chapters_modules_import_what_it_grows():
    """And an earlier chapter's cell is not read as if the later one's modules had been there."""
    later = ["#| doc b: B.", "#| export b\nclass Clip: pass\ndef two(): return step(Clip())"]
    modules = compose(STEP, [*later, "#| export\n#| grows step\ndef step(x: Clip): return two"])
    assert "from nanogpt.b import Clip, two\n" in modules["a"]
    assert "from nanogpt.a import step\n" in modules["b"]
    with pytest.raises(CourseError, match=r"01_x\.ipynb, one: undefined name `two`"):
        compose("#| export\ndef one(): return two()", later)
