"""The list of forward imports in course/states/forward.toml is what the chapters import, and lending it lets them run."""

import ast

from course.package.imports import imported
from course.paths import SOURCES, TESTS, module_path, numbered, source_chapters
from course.states.forward import borrowed, lend
from course.states.released import owners, released
from course.testing.needs import all_needed, needed


def forward_imports() -> dict[str, list[str]]:
    found = {}
    for source in numbered(SOURCES, ".py"):
        chapter = source.name.partition("_")[0]
        before = all_needed(source)
        tests = set()
        for test in sorted(TESTS.rglob(f"test_ch{chapter}_*.py")):
            tests |= all_needed(test)
        later = {m for m in before | tests if owners()[m] > chapter} | {
            m for m in before if owners()[m] == chapter
        }
        if later:
            found[chapter] = sorted(later)
    return found


def test_the_list_of_forward_imports_is_what_chapters_import():
    found, listed = forward_imports(), borrowed()
    for chapter in sorted({*found, *listed}):
        now, said = set(found.get(chapter, [])), set(listed.get(chapter, []))
        assert not now - said, f"chapter {chapter} imports {sorted(now - said)}, which later chapters make"
        assert not said - now, (
            f"chapter {chapter} no longer needs {sorted(said - now)}: strike it off course/states/forward.toml"
        )


def test_an_import_that_is_added_or_no_longer_needed_is_seen():
    text = "def f():\n    from nanogpt.parallel.zero import state_bytes\n"
    assert needed(ast.parse(text)) == {"parallel.zero"}
    assert needed(ast.parse("from nanogpt.parallel import zero; from nanogpt.text import files as f")) == {
        "parallel.zero",
        "text.files",
    }
    assert needed(ast.parse("run([python, '-m', 'nanogpt', 'sample'])")) == {"cli", "gpt.sample"}
    assert needed(ast.parse("TABLE = {'plan': 'nanogpt.plan.plan'}")) == {"plan.plan"}
    assert needed(ast.parse("child('import nanogpt.gpt.clip')")) == {"gpt.clip"}


def test_what_is_lent_is_all_that_the_package_then_imports(tmp_path):
    package = tmp_path / "nanogpt"
    package.mkdir()
    (package / "device.py").write_text("mine = 1\n", encoding="utf-8")
    lent = lend("17d", package)
    assert set(borrowed()["17d"]) <= set(lent) and "gpt.model" in lent, "and what those need in turn"
    assert (package / "device.py").read_text(encoding="utf-8") == "mine = 1\n", "what is there stays"
    for name in lent:
        text = module_path(name, package).read_bytes()
        assert text == module_path(name).read_bytes(), f"{name} is the released one"
        assert all(module_path(needs, package).is_file() for needs in imported(ast.parse(text), owners()))
    assert lend("17d", package) == [], "nothing is missing the second time"


def test_a_module_that_cannot_be_read_is_left_to_its_chapter(tmp_path):
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt/model.py").write_text("def (:\n", encoding="utf-8")
    assert lend("05", tmp_path) == []


def test_the_owner_of_a_module_is_the_chapter_that_makes_it():
    for chapter in ("03", "13", "16b"):
        before = [other for other in source_chapters() if other < chapter]
        made = set(released([*before, chapter])) - set(released(before))
        assert made == {m for m, owner in owners().items() if owner == chapter}
