"""A module that several chapters write: what grows takes the place of what was, or one clear sentence."""

import nbformat
import pytest

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
        sources = [
            DOC if number == 1 else "#| default_exp a",
            *([cells] if isinstance(cells, str) else cells),
        ]
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        read.append((f"{number:02}_x.ipynb", nb))
    return export_all(read)


def text_of(*chapters: str | list[str]) -> str:
    return compose(*chapters)["a"]


def refused(*chapters: str | list[str]) -> str:
    with pytest.raises(CourseError) as error:
        compose(*chapters)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_grows_takes_the_place_of_what_was():
    """Its comment and decorator come with it, the old ones go; what is new stands at the end; imports follow use."""
    grows = """\
#| export
#| grows step
from functools import cache

# Now the cube root.
@cache
def step(x):
    return x ** (1 / 3)  # as said
    # and no more

def new(x):
    return last(x)"""
    assert (
        text_of(STEP, grows)
        == '''\
"""What a is.

Exported from notebooks/01_x.ipynb, grown by notebooks/02_x.ipynb.
"""

import os
from functools import cache

FIRST = os.sep


# Now the cube root.
@cache
def step(x):
    return x ** (1 / 3)  # as said
    # and no more


def last(x):
    return step(x)


def new(x):
    return last(x)
'''
    )


def test_several_names_and_constants_grow_in_one_cell():
    cell = (
        "#| export\n#| grows FIRST, step last\nFIRST: int = 7\ndef last(x): return 8\ndef step(x): return 9"
    )
    text = text_of(STEP, cell)
    assert (
        text.index("FIRST: int = 7") < text.index("return 9") < text.index("return 8")
        and "import" not in text
    )
    assert text == text_of(STEP, "#| export\n#| grows FIRST step\n#| grows last\n" + cell.split("\n", 2)[2])


def test_a_class_grows_by_methods():
    more = "#| export\nclass Box(Box):\n    def more(self):\n        return 4"
    text = text_of(BOX, more)
    assert text.count("class Box") == 1 and text.rstrip().endswith("return 4")
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
    text = text_of(BOX, more, grows)
    kept = ["return 10", "return 20", "return 3\n", "return 4", "return 30"]
    assert [text.index(line) for line in kept] == sorted(text.index(line) for line in kept)
    assert "setter" not in text and "It was three" not in text and text.count("class Box") == 1
    alone = text_of(
        BOX, "#| export\n#| grows Box.take\nclass Box(Box):\n    def take(self):\n        return 5"
    )
    assert alone.rstrip().endswith("return 5") and alone.count("class") == 1


def test_a_class_grows_as_a_whole_and_goes_on():
    whole = "#| export\n#| grows Box\nclass Box:\n    def only(self):\n        return 5"
    more = "#| export\nclass Box(Box):\n    def more(self):\n        return 4"
    text = text_of(BOX, more, [whole, more.replace("4", "6")], STEP)
    assert (
        text.count("class Box") == 1 and "return 4" not in text and "return 6" in text and "put" not in text
    )
    assert text.index("class Box") < text.index("def step")


RUN = '''\
#| export
from dataclasses import dataclass


@dataclass
class Run:
    """One."""

    name: str  # whose
    step: int = 0  # how far

    def __post_init__(self):
        self.said = self.name

    def more(self):
        return 1'''
GROWN_RUN = """\
#| export
#| grows Run.__post_init__
@dataclass
class Run(Run):
    size: int = 1  # processes
    rank: int = 0

    def __post_init__(self):
        self.said = f"{self.name} of {self.size}"

    def other(self):
        return 2"""


def test_a_dataclass_goes_on_with_fields_behind_the_old_ones():
    """In the notebook by inheritance, in the module by joining: the same fields, in the same order."""
    text = text_of(RUN, GROWN_RUN)
    kept = ["name: str  # whose", "step: int = 0  # how far", "size: int = 1  # processes", "rank: int = 0"]
    kept += ["of {self.size}", "return 1", "return 2"]
    assert [text.index(line) for line in kept] == sorted(text.index(line) for line in kept)
    assert text.count("@dataclass") == text.count("class Run") == text.count("__post_init__") == 1
    notebook, module = {}, {}
    exec(f"{RUN}\n{GROWN_RUN}", notebook)
    exec(text, module)
    made = [space["Run"]("a", 3, size=2) for space in (notebook, module)]
    assert vars(made[0]) == vars(made[1]) and made[1].said == "a of 2"
    alone = text_of(RUN, "#| export\n@dataclass\nclass Run(Run):\n    size: int = 1")
    assert "size: int = 1" in alone and alone.count("@dataclass") == 1


def test_a_helper_that_came_with_it_stands_above_the_first_that_uses_it():
    """A default, a decorator, a base or an annotation has its value when the module is imported; a body is read so."""
    cell = "#| export\n#| grows step\nLIMIT = 3\nclass Clip:\n    norm = LIMIT\ndef helper(x): return x\ndef step(x: Clip): return helper(x)"
    text = text_of(STEP, cell)
    space: dict = {}
    exec(text, space)
    assert (
        text.index("LIMIT = 3") < text.index("class Clip") < text.index("def step") < text.index("def last")
    )
    assert text.index("class Clip") < text.index("def helper") < text.index("def step")


def test_definitions_may_use_each_other_and_what_runs_at_once_comes_first():
    cell = "#| export\ndef even(n): return n == 0 or odd(n - 1)\ndef odd(n): return n > 0 and even(n - 1)\nFIVE = odd(5)"
    text = text_of(cell)
    assert max(text.index("def even"), text.index("def odd")) < text.index("FIVE")
    exec(text, {})
    cell = "#| export\ndef mark(f): return X and f\n@mark\ndef g(): return mark\n\nX = 1\n\nY = g()"
    text = text_of(cell)
    exec(text, {})
    assert text.index("X = 1") < text.index("def mark")


@pytest.mark.parametrize("module", modules())
def test_in_the_package_a_helper_stands_above_its_callers(module):
    """Read from the top, nothing is used before it is defined, but for functions that use each other."""
    blocks = blocks_of(module_parts(module_path(module).read_text(encoding="utf-8")))
    names = [block.names() for block in blocks]
    uses = [names_used(block.text()) for block in blocks]
    for i in range(len(blocks)):
        for late in range(i + 1, len(blocks)):
            if uses[i] & names[late]:
                assert reaches(late, i, uses, names), (
                    f"{sorted(names[i])} uses {sorted(names[late])}, which stands below"
                )


def reaches(start: int, end: int, uses: list[set[str]], names: list[set[str]]) -> bool:
    """Whether one block uses another, directly or through others."""
    seen, left = set(), [start]
    while left:
        n = left.pop()
        if n == end:
            return True
        if n not in seen:
            seen.add(n)
            left += [k for k in range(len(names)) if uses[n] & names[k]]
    return False


@pytest.mark.parametrize(
    "chapters, message",
    [
        ([STEP, "#| export\ndef step(x): pass"], "step is defined already in 01_x.ipynb, step; write `#| grows step` to replace it"),
        ([BOX, "#| export\nclass Box(Box):\n    def put(self): pass"], "Box.put is defined already in 01_x.ipynb, Box; write `#| grows Box.put` to"),
        ([BOX, "#| export\n#| grows Box.put\nclass Box:\n    def put(self): pass"], "Box is defined already in 01_x.ipynb, Box; write `#| grows Box`"),
        ([STEP, "#| export\n#| grows walk\ndef walk(x): pass"], "`#| grows walk`, but no earlier chapter defines walk in nanogpt/a.py"),
        ([[STEP, "#| export\n#| grows step\ndef step(x): pass"]], "`#| grows step`, but 01_x.ipynb, step of the same chapter defines it"),
        (["#| export\n#| grows step\ndef step(x): pass", STEP], "`#| grows step`, but no earlier chapter defines step"),
        ([STEP, "#| export\n#| grows step\ndef other(x): pass"], "`#| grows step`, but the cell does not define step"),
        ([BOX, "#| export\n#| grows Box\nclass Box(Box):\n    def put(self): pass"], "but the cell does not define Box"),
        ([STEP, "#| grows step\ndef step(x): pass"], "`#| grows` and `#| blank` belong below `#| export`"),
        ([STEP, "#| export\n#| grows\ndef step(x): pass"], "`#| grows` is no directive"),
        ([STEP, "#| export\n#| grow step\ndef step(x): pass"], "`#| grow step` is no directive"),
        ([STEP, "#| export\nX = 1\n#| grows X"], "`#| grows X` stands inside the cell"),
        (["#| export\nA, B = 1, 2", "#| export\n#| grows A\nA = 3"], "one statement defines A and B"),
        (["#| export\nA = 1; B = 2"], "`A = 1; B = 2` holds two statements"),
        ([BOX, "#| export\n#| grows Box.put\nclass Box(Box):\n    def put(self): return super().put()"], "uses super()"),
        ([RUN, "#| export\nclass Run(Run):\n    size: int = 1"], "goes on with other decorators than it began with"),
        ([RUN, "#| export\n@dataclass(frozen=True)\nclass Run(Run):\n    size: int = 1"], "other decorators"),
        ([STEP, "#| export\nfrom os import step\nX = step"], "step is os.step here and a definition in 01_x.ipynb, step; rename one"),
        ([STEP, "#| export\nimport cmath as math\nX = math"], "math is cmath here and math in 01_x.ipynb"),
        ([STEP, "#| export\nfrom nanogpt.a import last\nX = last"], "last is nanogpt.a.last here and a definition in"),
        ([STEP, ["#| doc b: B.", "#| export b\ndef step(x): pass", "#| export\nX = step"]], "step is a definition here and nanogpt.b.step in nanogpt/b.py"),
    ],
)  # fmt: skip
def test_what_cannot_grow_is_refused(chapters, message):
    assert message in refused(*chapters)


def test_modules_head_names_every_notebook_that_wrote_it():
    text = text_of(STEP, "#| export\nA = 1", "#| export\nB = 1")
    assert (
        "Exported from notebooks/01_x.ipynb, grown by notebooks/02_x.ipynb and notebooks/03_x.ipynb.\n"
        in text
    )
    chapters = [f"#| export\nA{number} = 1" for number in range(12)]
    text = text_of(*chapters)
    assert max(map(len, text.splitlines())) <= 110 and len(text.split('"""')[1].splitlines()) == 5
    assert writers(text) == [f"{number + 1:02}_x.ipynb" for number in range(12)]
    assert writers('"""A module of somebody\'s own."""\n') == []


def test_a_parameter_that_is_called_as_another_modules_function_is_no_use_of_it():
    """Two commands of a chapter have a function `run` each, and a third module a parameter of that name."""
    two = ["#| doc b: B.\n#| doc c: C.", "#| export b\ndef run(): pass", "#| export c\ndef run(): pass"]
    modules = compose([*two, "#| export\ndef step(run): return run.step\nlast = lambda run: run"])
    assert "import" not in modules["a"]
    assert "a uses it" in refused([*two, "#| export\ndef step(): return run()"]).replace("nanogpt/a.py", "a")
    assert (
        "from nanogpt.b import run\n"
        in compose(["#| doc b: B.", two[1], "#| export\ndef f(x=run): pass"])["a"]
    )


def test_a_later_chapters_modules_import_what_it_grows():
    """And an earlier chapter's cell is not read as if the later one's modules had been there."""
    later = ["#| doc b: B.", "#| export b\nclass Clip: pass\ndef two(): return step(Clip())"]
    modules = compose(STEP, [*later, "#| export\n#| grows step\ndef step(x: Clip): return two"])
    assert (
        "from nanogpt.b import Clip, two\n" in modules["a"] and "from nanogpt.a import step\n" in modules["b"]
    )
    with pytest.raises(CourseError, match=r"01_x\.ipynb, one: undefined name `two`"):
        compose("#| export\ndef one(): return two()", later)
