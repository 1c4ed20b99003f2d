"""The tutor's side of the blanks is true (tests/tutor.py), and a student sees it: right, wrong, and still blank."""

import os
import subprocess
import sys

import pytest
import torch
from tutor import module_of, package_of_others, problems

from course.package.tutor import NotRight, Raised, blanks_of, check, leaves, same
from course.paths import ROOT, TESTS, source_chapters
from course.testing.run import LIGHT

NO_EXPORT = "11", "15b"
WITH_BLANKS = [chapter for chapter in source_chapters() if chapter not in NO_EXPORT]


@pytest.mark.parametrize("chapter", WITH_BLANKS)
def test_each_blank_has_hints_a_probe_another_right_body_and_wrong_ones_that_are_told_apart(chapter):
    if chapter.startswith("23"):  # its blanks are kernels
        pytest.importorskip("triton", reason="Triton is not installed here: pip install triton (Linux)")
    assert problems(chapter) == []


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """A package of the other right bodies, with errors in other words."""
    folder = tmp_path_factory.mktemp("others")
    package_of_others(folder)
    return folder


@pytest.mark.weekly
@pytest.mark.parametrize("part", ["core", "labs"])
def test_who_writes_each_blank_from_its_text_passes_every_chapter(others, part):
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(others), str(ROOT)])}
    seen = "import nanogpt, sys; sys.exit(not nanogpt.__file__.startswith(sys.argv[1]))"
    assert subprocess.run([sys.executable, "-c", seen, str(others)], cwd=others, env=env).returncode == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", LIGHT]
    pipes = {"capture_output": True, "encoding": "utf-8", "errors": "replace"}
    done = subprocess.run([*command, str(TESTS / part)], cwd=others, env=env, **pipes)
    assert done.returncode == 0, done.stdout[-6000:]


MASK = "torch.ones(q.size(-2), q.size(-2), dtype=torch.bool, device=q.device).triu(1)"
UNSCALED = f"return (q @ k.mT).masked_fill({MASK}, -math.inf).softmax(-1)"
RIGHT = UNSCALED.replace("k.mT", "k.mT / k.size(-1) ** 0.5")


def with_weights(body: str) -> dict:
    """Chapter 04's names, with a body for attention_weights."""
    namespace = module_of("04", "model")
    exec(f"def attention_weights(q, k):\n    {body}", namespace)
    return namespace


def test_a_check_says_right_or_what_was_expected_and_what_came_with_the_tutor_s_sentence(capsys):
    check("04", "attention_weights", with_weights(RIGHT))
    assert capsys.readouterr().out == "attention_weights: right\n"
    known = with_weights(UNSCALED)
    before = dict(known)
    with pytest.raises(NotRight) as told:
        check("04", "attention_weights", known)
    message, say = str(told.value).split("\n")
    assert message.startswith("attention_weights: ") and "should be [" in message and ", and is [" in message
    assert say == blanks_of("04")["attention_weights"].wrong[0]["say"]
    assert known == before, "the namespace is the student's"


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (f"{UNSCALED}.float()", NotRight, "divide by √d"),  # with another mistake beside it
        ("return q @ k", NotRight, r"^attention_weights: it raises RuntimeError: .*$"),
        ("raise NotImplementedError('your turn: x')", NotImplementedError, "your turn: x"),
    ],
)
def test_a_check_of_another_mistake_of_an_error_and_of_a_blank(body, error, says):
    with pytest.raises(error, match=says):
        check("04", "attention_weights", with_weights(body))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (torch.ones(2), [1.0, 1.0], False),
        (torch.ones(2), torch.ones(2, dtype=torch.bfloat16), True),
        (torch.ones(2), torch.ones(2, 1), False),
        ({"a": 1}, {"a": 1.0000001}, True),
        ({"a": (1, "x")}, {"a": [1, "x"]}, True),
        (float("nan"), float("nan"), True),
        (None, 0, False),
        ("1", 1, False),
        (Raised("A: b"), Raised("A: b"), True),
        ({1, 2}, {2, 1}, True),
    ],
)
def test_values_agree_up_to_the_rounding_of_float32(one, other, equal):
    one, other = leaves(one, "x"), leaves(other, "x")
    assert same(one, other) is equal and same(other, one) is equal
