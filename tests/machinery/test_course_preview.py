"""Chapter 00's first model: whose package it trains with, and what is said of its words."""

import os
import subprocess
import sys

from course.figures import preview
from course.paths import ROOT, modules, source_chapters
from course.testing.law import student_clone

ASK = """
import course.figures.preview
course.figures.preview.borrow_finished_package()
import nanogpt.sampling
print(nanogpt.sampling.__file__)
"""


def sampling_of(clone) -> str:
    """The file of nanogpt.sampling as a process finds it that works in this clone and borrows."""
    env, pipes = os.environ | {"PYTHONPATH": str(clone)}, {"capture_output": True, "encoding": "utf-8"}
    done = subprocess.run([sys.executable, "-c", ASK], cwd=clone / "notebooks", env=env, **pipes)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_an_empty_package_is_helped_out_and_stays_empty(tmp_path):
    clone = student_clone(tmp_path / "clone")
    assert sampling_of(clone) == str(clone / "data/built/finished/nanogpt/sampling.py")
    assert modules(clone / "data/built/finished/nanogpt") == modules(ROOT / "nanogpt")
    assert (clone / "data/built/finished/nanogpt/resources/grammar.txt").exists()
    assert modules(clone / "nanogpt") == []


def test_a_package_is_used_once_its_last_chapter_is_in_it(monkeypatch, tmp_path):
    finished, before = tmp_path / "finished", list(sys.path)
    (finished / "nanogpt").mkdir(parents=True)  # an earlier kernel has made it
    monkeypatch.setattr(preview, "FINISHED", finished)
    monkeypatch.setattr(preview, "released", lambda chapters: {"device": "ALL = True\n"})
    monkeypatch.setattr(sys, "path", list(before))
    preview.borrow_finished_package()
    assert sys.path == before
    monkeypatch.setattr(preview, "is_there", lambda chapter: chapter != source_chapters()[-1])
    for _ in range(2):  # the cell may run again
        preview.borrow_finished_package()
        assert sys.path == [str(finished), *before]
    assert (finished / "nanogpt/device.py").read_text(encoding="utf-8") == "ALL = True\n"


def test_a_word_is_one_of_the_stories_or_not():
    shares = preview.shares_of_words({0: "xq zzyw", 50: "Rosa bnm the castle!", 150: "", 400: "���"})
    assert shares == {0: 0.0, 50: 0.75, 150: 0.0, 400: 0.0}, "Rosa, the and castle are three of four"


def test_what_an_untrained_model_draws_does_no_harm_on_a_page():
    assert preview.wrapped("a\x1b[2Jb\x08c\nd") == "a�[2Jb�c d"
    assert all(len(line) <= 100 for line in preview.wrapped("word " * 100).split("\n"))
