"""From a notebook to the package: tried aside, installed whole or not at all, told so that a student can mend it."""

import re

import nbformat
import pytest

from course.package.cells import exported_cells
from course.package.last_run import compare_with_run
from course.paths import CourseError


def modules_of(house) -> list[str]:
    return sorted(path.name for path in house.path.glob("nanogpt/*.py"))


def test_a_checkpoint_says_what_stays_true(house, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")  # the student's own, which the trial does not see
    said = "exported area, count to nanogpt/tiny.py\ntests/test_ch04_tiny.py passes\n"
    assert house.course("checkpoint", "4") == said
    house.edit("LIMIT = 3", "LIMIT = 4")
    assert house.course("checkpoint", "04") == said
    assert "LIMIT = 4" in house.module.read_text()


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("return math.pi*r**2", "return math.pi*r**", 'area under "04 · Tiny" cannot be read as Python: invalid syntax (the cell, line 9)'),
        ("LIMIT = 3", "LIMIT = 1 / 0", "cannot be imported: ZeroDivisionError: division by zero\nlikely 04_tiny.ipynb, count"),
        ("LIMIT = 3", "LIMIT = exit(0)", "cannot be imported: SystemExit: 0\nlikely 04_tiny.ipynb, count"),
        ("LIMIT = 3", "LIMIT = __import__('os')._exit(0)", "importing it ends Python\nlikely 04_tiny.ipynb; "),
        ("LIMIT = 3", "LIMIT = __import__('shutil').rmtree('nanogpt')", "changes files of nanogpt/\nlikely 04_tiny.ipynb; "),
        ("LIMIT = 3", "LIMIT = __import__('os').environ.update(PYTEST_ADDOPTS='--co')", "do not run to their end"),
        ("return math.pi*r**2", "return __import__('os')._exit(0)", "do not run to their end\nlikely 04_tiny.ipynb; "),
    ],
)  # fmt: skip
def test_a_broken_cell_is_named_and_the_old_module_stays(house, old, new, message):
    before = house.module.read_bytes(), modules_of(house)
    house.edit(old, new)
    said = house.course("checkpoint", "04", code=2)
    assert message in said and "Traceback" not in said.split("\n")[0]
    assert (house.module.read_bytes(), modules_of(house)) == before, "nothing is left aside"


def test_a_failing_test_is_told_student_first(house):
    """Also in a folder with a space."""
    spaced = house.copied(house.path.parent / "my co urse")
    spaced.edit("return math.pi*r**2", "return math.pi*r")
    said = spaced.course("checkpoint", "04", code=2)
    lines = said.split("\n")
    assert lines[0] == "course: test_area_grows_with_the_square: twice the radius, four times the area"
    assert lines[1] == 'likely 04_tiny.ipynb, area under "04 · Tiny"; nanogpt/tiny.py unchanged'
    assert "    tests/test_ch04_tiny.py:5: in test_area_grows_with_the_square" in lines, said
    assert len(lines) < 20 and "urse" not in said.replace("course", ""), said


@pytest.mark.parametrize(
    "old, new, cell",
    [
        ("LIMIT = 3", "LIMIT = max(iter(int, 1))", "count"),
        ("return math.pi*r**2", "return max(iter(int, 1))", "area"),
    ],
)
def test_what_never_ends_is_ended(house, old, new, cell):
    settings = house.path / "course/package/checkpoint.py"
    text = re.sub(r"(?m)^((?:IMPORT|TEST)_SECONDS) = .*", r"\1 = 10", settings.read_text())
    settings.write_text(text)
    house.edit(old, new)
    said = house.course("checkpoint", "04", code=2)
    assert "does not end within 10 s" in said and f"likely 04_tiny.ipynb, {cell} under" in said
    assert "LIMIT = 3" in house.module.read_text()


def test_a_second_notebook_cannot_make_a_module_anew(house):
    text = house.source.read_text(encoding="utf-8").replace("04", "05")
    (house.path / "notebooks/src/05_other.py").write_text(text, encoding="utf-8")
    house.course("build", "05", "--draft")
    said = house.course("checkpoint", "05", code=2)
    assert "area is defined already in 04_tiny.ipynb, area" in said
    house.course("checkpoint", "04")  # a later chapter's mistake is not this one's
    (house.path / "notebooks/05_other.ipynb").write_text("{")
    house.course("checkpoint", "04")  # another chapter's damage is not this one's


def saved_cells(house):
    """The house's exported cells, and the text of its two."""
    nb = nbformat.read(house.notebook, as_version=4)
    cells = exported_cells(nb, "04_tiny.ipynb")
    return cells, *(cell.source for cell in nb.cells if cell.source.startswith("#| export"))


RUN_IT = r"what was run last is not what is saved: run it, save with Ctrl\+S, then run this cell again$"


def test_a_notebook_that_differs_from_the_cells_just_run_is_noticed(house, capsys):
    cells, area, count = saved_cells(house)
    changed = area.replace("r**2", "r*r")
    for ran in (
        [area, count],
        [changed, area, count],  # an earlier version counts for nothing
        [count, area.replace("\n", "\r\n")],
        [area, count, "def area(r):\n    return 3", "LIMIT = 7"],  # tried out in a cell that is gone again
        [area, count, area + "\nprint(area(1))  # a comment"],
    ):
        compare_with_run(cells, ran, {})
    for ran in ([area, count, changed], [area, count, changed + "\nprint(area(1))"], [changed, count]):
        with pytest.raises(CourseError, match='area under "04 · Tiny": ' + RUN_IT):
            compare_with_run(cells, ran, {})
    with pytest.raises(CourseError, match=r'count under "04 · Tiny": has not been run'):
        compare_with_run(cells, [area], {})
    compare_with_run(cells, [area, count, "#| export\nOTHER = 1"], {})
    assert "OTHER was run and is not saved" in capsys.readouterr().out
    nb = nbformat.read(house.notebook, as_version=4)
    one, two = (f"#| export {module}\ndef run():\n    return '{module}'" for module in ("one", "two"))
    nb.cells += [nbformat.v4.new_code_cell(source) for source in (one, two)]
    both = exported_cells(nb, "04_tiny.ipynb")
    compare_with_run(both, [area, count, one, two], {})  # two modules, one name
    with pytest.raises(CourseError, match='run under "04 · Tiny": what was run last'):
        compare_with_run(both, [area, count, one, two, two.replace("'two'", "'2'")], {})


def test_where_the_cells_id_is_known_every_edit_of_it_is(house):
    """JupyterLab tells the kernel which cell it runs: a name that is gone from the cell cannot hide the edit."""
    cells, area, count = saved_cells(house)
    ran, place = [area, count], cells[0].id
    compare_with_run(cells, ran, {place: area, "a scratch cell": "def area(r):\n    return 3"})
    for edit in (
        area.replace("area", "surface"),  # renamed
        area.replace("#| export\n", "").replace("r**2", "r*r"),  # to be kept out of the module
        area.replace("import os", "import re"),
        area + "\n!ls",
        "%%bash\ntrue",
    ):
        with pytest.raises(CourseError, match='area under "04 · Tiny": ' + RUN_IT):
            compare_with_run(cells, [*ran, edit], {place: edit})


def test_a_cell_that_was_run_and_not_saved_is_not_left_out_without_a_word(house):
    cells, area, count = saved_cells(house)
    before, edit = house.module.read_bytes(), area.replace("area", "surface")
    said = house.run_cells([area, count, edit], code=1, ids={edit: cells[0].id})
    assert 'area under "04 · Tiny": what was run last is not what is saved' in said
    assert "Traceback" not in said and house.module.read_bytes() == before
    assert "exported area, count to" in house.run_cells([edit, area, count], code=0)


def test_check_sees_a_difference_in_every_direction(house):
    assert "agree" in house.course("build", "--check")
    assert "agree" in house.course("checkpoint", "--all", "--check")
    house.edit("LIMIT = 3", "LIMIT = 4")  # the notebook differs from its source and from its module
    assert "-LIMIT = 4\n+LIMIT = 3" in house.course("build", "--check", code=1)
    assert "-LIMIT = 3\n+LIMIT = 4" in house.course("checkpoint", "--all", "--check", code=1)
    house.edit("LIMIT = 4", "LIMIT = 3")
    house.module.write_bytes(house.module.read_bytes() + b"\nEXTRA = 1\n")
    assert "-EXTRA = 1" in house.course("checkpoint", "--check", "04", code=1)


def test_what_is_no_longer_exported_is_told(house):
    """No test asks for LIMIT: a cell split in two, whose lower half has no directive, once took it out without a word."""
    nb = nbformat.read(house.notebook, as_version=4)
    upper = next(cell for cell in nb.cells if "LIMIT" in cell.source)
    upper.source, below = upper.source.split("LIMIT")
    nb.cells.insert(nb.cells.index(upper) + 1, nbformat.v4.new_code_cell(f"LIMIT{below}"))
    nbformat.write(nb, house.notebook)
    assert house.course("checkpoint", "04").startswith("note: LIMIT, _hidden is no longer exported\n")
    house.module.write_text("what is this\n")
    assert "no longer" not in house.course("checkpoint", "04"), "a damaged module is replaced"
