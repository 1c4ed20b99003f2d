"""From exported cells to a module's text: what the module says is what the cells say, or one clear sentence."""

import pytest
from house import of_code

from course.package.cells import exported_cells
from course.package.export import cell_at, export_all
from course.paths import CourseError

DEFAULT = "#| default_exp a\n#| doc a: What a is."
BOX = '#| export\nclass Box:\n    """One."""\n\n    def put(self):\n        return 1'


def export(*sources: str) -> dict[str, str]:
    return export_all([("x.ipynb", of_code(*sources))])


def text_of(*sources: str) -> str:
    """The text of module a; the first of `sources` is cell 2."""
    return export(DEFAULT, *sources)["a"]


def refused(*sources: str, default: str = DEFAULT) -> str:
    with pytest.raises(CourseError) as error:
        export(default, *sources)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_class_built_over_several_cells_is_one_class_in_the_module():
    sources = [
        BOX,
        "#| export\nimport math\nclass Box(Box):\n    # Two comes next.\n    @property\n    def two(self):\n        return math.e",
        "#| export\nclass Lid(Box):\n    pass\nclass Box(Box):\n    def three(self):\n        return 3\nLAST = 1",
    ]
    text = text_of(*sources)
    kept = [text.index(line) for line in ("Two comes next", "three", "class Lid(Box)")]
    assert text.count("class Box") == 1 and kept == sorted(kept)
    space: dict = {}
    exec(text, space)
    assert space["Box"]().put() == 1 and space["Box"]().three() == 3 and space["Lid"]().two > 2.7
    row = text.splitlines().index("        return 3") + 1
    where = cell_at(text, row, exported_cells(of_code(DEFAULT, *sources), "x.ipynb"))
    assert where == "x.ipynb, Lid", "a failing method is blamed on its own cell"
    assert "Box.two is defined already in x.ipynb, Box" in refused(*sources, sources[1])
    assert "x.ipynb, Box.two: Box continues a class that no earlier" in refused(sources[1])


@pytest.mark.parametrize("line", ["(Box): y = 2", "(Box, Mixin):\n    y = 2"])
def test_nothing_of_a_continuation_is_left_out_without_a_word(line):
    assert "x.ipynb, Box: Box goes on as `class Box(Box):`" in refused(BOX, f"#| export\nclass Box{line}")


@pytest.mark.parametrize(
    "directive",
    ["#| exports", "#| Export", "# | export", "#|  export # note", "#| eval: false", "#| doc a", "#| doc: x", "## | export"]
    + ["#| export data.py", "#| export nanogpt.data", "#| export text.", "#| export text..data", "#| export text.Data"]
    + ["#| export text/data", "#| export __init__", "#| export 2d", "#| export a b", "#| default_exp"]
    + ["#| grows", "#| grow step", "#| blank", "#| blanks area", "#| blank area,", "#| blank area:"],
)  # fmt: skip
def test_what_looks_like_a_directive_and_is_none_is_refused(directive):
    assert "x.ipynb, `X = 1`: `#" in refused(f"{directive}\nX = 1")


@pytest.mark.parametrize(
    "cell",
    ["X = 1\n#| export\nY = 2", "%%time\n#| export\nY = 2", "def f():\n    #| export\n    pass"]
    + ["#| export\nX = 1\n#| grows X", "#| export\ndef area(r):\n    return 1\n#| blank area"],
)  # fmt: skip
def test_a_directive_stands_at_the_head_of_its_cell(cell):
    assert "stands inside the cell" in refused(cell)


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_every_newline_is_a_newline(newline):
    plain = '#| export\ndef f():\n    return """1\n2"""\n'
    other = plain.replace("\n", newline)
    assert text_of(other) == text_of(plain)
    assert "\r" not in exported_cells(of_code(DEFAULT, other), "x.ipynb")[0].source


def test_a_name_is_imported_from_one_place_and_a_line_holds_one_statement():
    two = "#| export\nfrom math import sqrt\nX = sqrt(4)", "#| export\nfrom cmath import sqrt\nY = sqrt(4)"
    assert "sqrt is cmath.sqrt here and math.sqrt in x.ipynb, " in refused(*two)
    same = text_of("#| export\nimport os, os.path\nX = os", "#| export\nimport os\nY = os.path")
    assert same.count("import os\n") == 1
    assert "`import os; X = os` holds two statements" in refused("#| export\nimport os; X = os")


@pytest.mark.parametrize(
    "statement",
    ["GPT.forward = f", 'TABLE["x"] = 1', "for i in range(3):\n    print(i)", "print(1)", "X += [1]", "'a text'"]
    + ["try:\n    import os\nexcept ImportError:\n    os = None", "from math import *"],
)  # fmt: skip
def test_only_definitions_imports_and_assignments_are_exported(statement):
    said = refused(f"#| export\nX = 1\n{statement}")
    assert f"line 3: `{statement.splitlines()[0]}".replace('"', "'") in said and "cannot be exported" in said


def test_a_module_says_what_it_is_once():
    assert export("#| default_exp a") == {}
    assert "nothing says what nanogpt/a.py is" in refused("#| export\nX = 1", default="#| default_exp a")
    odd = '#| doc b: Paths \\x, \\N, a ""\ud800"" and """three""" quotes".'
    said = export(odd, "#| export b\nX = 1")["b"]
    assert compile(said, "b", "exec") and "\\\\x" in said
    assert "keep one" in refused("#| default_exp b")
    assert "to no module" in refused("#| export\nX = 1", default="")


def test_modules_of_one_chapter_import_from_each_other():
    """In the notebook the name is there already; an import in the cell would put the package's old one in its place."""
    docs = "#| doc one: One.\n#| doc gpt.two: Two.\n#| doc three: Three."
    double = "#| export one\ndef double(x):\n    return 2 * x\ndef half(x): return x / 2"
    use = "#| export gpt.two\ndef fourfold(x):\n    half = 1\n    return double(double(x)) + half"
    own = "#| export three\ndef double(x):\n    return x + x\ndef eightfold(x): return double(x) * 4"
    modules = export(docs, double, use, "#| export three\nX = 1")
    assert modules["gpt.two"].count("from nanogpt.one import double\n") == 1
    assert "half\n" not in modules["gpt.two"].split("def")[0]
    assert "import" not in modules["one"] + modules["three"]
    said = refused(double, use, own, default=docs)
    assert "double is in nanogpt/one.py too, and nanogpt/gpt/two.py uses it" in said
    assert "import" not in export(docs, double, own, "#| export gpt.two\nX = 1")["three"]


def test_imports_sort_the_same_whether_or_not_the_module_exists():
    text = text_of("#| export\nimport torch\nfrom nanogpt.not_there_yet import x\nY = torch, x")
    assert "import torch\n\nfrom nanogpt.not_there_yet import x\n" in text
