"""The law: no chapter, its tests or their helpers import what is not built yet."""

import ast

from course.paths import SOURCES, TESTS, numbered, source_chapters
from course.states.released import owners, released
from course.testing.needs import all_needed, makers, needed

ASKED_FOR = {  # labs named as a text, and a method of GPT: imported when a call asks for them, and no cell does
    "06": {"pretrained", "pretrained.from_hf"},
    "17b": {"labs.llama.model"},
    "08": {"labs.llama.pretrained"},
    "13": {"labs.kernels.columns"},
    "17c": {  # what only some keys of a configuration need
        "labs.corpora.mixture",
        "labs.evals.hellaswag",
        "labs.llama.runs",
        "labs.long_run.minutes",
        "labs.long_run.spikes",
        "labs.long_run.tensorboard",
        "labs.long_run.wandb",
        "labs.plan.idle",  # its own
        "labs.parallel.laid_out",
        "labs.tuning.adapters",
        "labs.tuning.answers",
    },
    # the chapter's own, within a function, or as_module's
    "17f": {"labs.long_run.tensorboard", "labs.long_run.tensorboard.numbers"},
    "19": {"labs.tuning.lora"},
    "20": {"labs.parallel.lost"},
    "20a": {"labs.plan.too_large"},
    "20b": {"labs.parallel.watch"},
    "21": {"labs.parallel.fsdp"},
    "14": {"labs.ladder.masters"},
    "17d": {"labs.corpora.make", "labs.corpora.prepare", "labs.formats.llmc"},
}


def forward_imports() -> dict[str, list[str]]:
    found = {}
    for source in numbered(SOURCES, ".py"):
        chapter = source.name.partition("_")[0]
        borrows = "borrow_finished_package()" in source.read_text(encoding="utf-8")  # chapter 00 looks ahead
        before = set() if borrows else all_needed(source)
        tests = set()
        for test in sorted(TESTS.rglob(f"test_ch{chapter}_*.py")):
            tests |= all_needed(test)
        later = {m for m in before | tests if makers()[m] > chapter}
        later |= {m for m in before if makers()[m] == chapter}
        later -= ASKED_FOR.get(chapter, set())
        if later:
            found[chapter] = sorted(later)
    return found


def test_no_chapter_imports_what_is_not_built_yet():
    said = [
        f"chapter {chapter} imports {', '.join(modules)}" for chapter, modules in forward_imports().items()
    ]
    assert not said, "; ".join(said)


def test_an_import_is_seen_wherever_it_stands():
    text = "def f():\n    from nanogpt.labs.parallel.zero import state_bytes\n"
    assert needed(ast.parse(text)) == {"labs.parallel.zero", "labs.parallel.zero.state_bytes"}
    assert needed(ast.parse("from nanogpt.labs.parallel import zero; from nanogpt import files as f")) == {
        "labs.parallel.zero",
        "files",
    }
    assert needed(ast.parse("run([python, '-m', 'nanogpt', 'sample'])")) == {"cli", "sampling"}
    assert needed(ast.parse("TABLE = {'plan': 'nanogpt.labs.plan.plan'}")) == {"labs.plan.plan"}
    assert needed(ast.parse("child('import nanogpt.optim')")) == {"optim"}


def test_a_name_that_a_later_chapter_adds_to_an_earlier_module_is_seen():
    assert needed(ast.parse("from nanogpt.optim import cosine, wsd")) == {
        "optim",
        "optim.cosine",
        "optim.wsd",
    }
    assert [makers()[name] for name in ("optim.wsd", "optim.cosine")] == ["07", "15"]


def test_the_owner_of_a_module_is_the_chapter_that_makes_it():
    for chapter in ("03", "13", "16b"):
        before = [other for other in source_chapters() if other < chapter]
        made = set(released([*before, chapter])) - set(released(before))
        assert made == {m for m, owner in owners().items() if owner == chapter}
