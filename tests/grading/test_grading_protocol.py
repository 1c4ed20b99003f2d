"""What strangers send, bytes and notebooks: ten thousand of each, and nothing but the two errors that are meant comes of them."""

import contextlib
import functools
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import RIGHT, notebook
from hypothesis import given, settings
from hypothesis import strategies as st

from course.exercises import sets as exercises
from course.exercises.checks import difference
from course.grade.sandbox import protocol
from course.grade.score.judge import finite
from course.grade.submission import Invalid, cells_of, texts_of

MANY, EACH = settings(max_examples=100), 100  # an example of hypothesis's costs ten times what it tries here
SEEDS = st.integers(0, 2**64)


@functools.cache
def small():
    return exercises.read(Path(__file__).parent / "05_small")


def sent(values):
    """What arrives of values."""
    data = protocol.pack("value", 7, values)
    header, body = protocol.lengths(data[: protocol.PREFIX.size])
    rest = data[protocol.PREFIX.size :]
    assert len(rest) == header + body
    return protocol.unpack(rest[:header], rest[header:])["values"]


def test_values_arrive_as_they_were_sent():
    generator = torch.Generator().manual_seed(3)
    values = [None, True, 3, -(10**30), 0.1, math.inf, "ä\ud800\0", b"\x00\xff", (1, [2, ()]), {"a": {(1, 2): b"x"}, 3: []}]  # fmt: skip
    arrived = sent([*values, generator])
    assert arrived[:-1] == values and isinstance(arrived[8], tuple)
    assert torch.equal(torch.rand(4, generator=arrived[-1]), torch.rand(4, generator=generator))
    assert math.isnan(sent(math.nan))


@pytest.mark.parametrize("name", sorted(protocol.SIZES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 5), (2, 3, 4)])
def test_tensors_and_arrays_arrive(name, shape):
    dtype = getattr(torch, name)
    tensor = torch.arange(math.prod(shape)).reshape(shape).to(dtype)
    for one in (tensor, tensor.mT if len(shape) > 1 else tensor, torch.nn.Parameter(tensor, False)):
        arrived = sent({"x": one})["x"]
        assert type(arrived) is torch.Tensor and arrived.dtype == dtype and torch.equal(arrived, one.data)
    if name != "bfloat16":
        array = tensor.numpy()
        arrived = sent([array])[0]
        assert arrived.dtype == array.dtype and arrived.shape == array.shape and (arrived == array).all()


def test_a_bool_is_zero_or_one():
    header = json.dumps({"kind": "value", "id": 1, "values": {"x": "bool", "s": [3]}}).encode()
    arrived = protocol.unpack(header, b"\x00\x02\xff")["values"]
    assert arrived.view(torch.uint8).tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, torch.zeros(2, dtype=torch.complex64), np.array([None]), 1j, torch.zeros(20_000_000)],
)
def test_what_cannot_be_sent_is_a_TypeError(value):
    with pytest.raises(TypeError):
        protocol.pack("value", 1, [value])


def test_what_is_left_over_nested_too_deeply_or_too_large_is_not_read():
    with pytest.raises(protocol.BadFrame, match="1 bytes are left over"):
        protocol.unpack(b'{"kind": "value", "id": 1, "values": {"b": 2}}', b"abc")
    for depth in (protocol.MAX_DEPTH, protocol.MAX_DEPTH + 1):
        values = '{"l": [' * depth + "0" + "]}" * depth
        with pytest.raises(protocol.BadFrame) if depth > protocol.MAX_DEPTH else contextlib.nullcontext():
            protocol.unpack(f'{{"kind": "value", "id": 1, "values": {values}}}'.encode(), b"")
    with pytest.raises(protocol.TooLarge):
        protocol.lengths(protocol.PREFIX.pack(protocol.MAGIC, 10, 1 << 62))


NUMBERS = [-2, -1, 0, 1, 2, 3, 8, 2**31, 2**63, 10**9, 0.5, math.nan, True, None, "3"]
PLAIN = [None, True, False, 0, 1, 2.0, 3, -1, 10**400, math.nan, math.inf, "", "a", "\ud800"]
DTYPES = [*protocol.SIZES, "object", "complex64", "O", "", 3]


def spec(draw: random.Random, depth: int = 0):
    """A description of a value, rarely a right one. (hypothesis's own recursive strategies take a minute for this.)"""
    kind = draw.choice(["plain", "plain", "l", "t", "d", "b", "g", "x", "x", "n", "odd"])
    if kind == "plain" or depth > 3:
        return draw.choice(PLAIN)
    inner = [spec(draw, depth + 1) for _ in range(draw.randrange(3))]
    if kind in "lt":
        return {kind: draw.choice([inner, inner, inner, spec(draw, depth + 1)])}
    if kind == "d":
        return {"d": draw.choice([[[spec(draw, depth + 1), one] for one in inner], inner])}
    if kind in "bg":
        return {kind: draw.choice(NUMBERS)}
    if kind in "xn":
        shape = [draw.choice(NUMBERS[: draw.choice([6, 15])]) for _ in range(draw.randrange(4))]
        return {kind: draw.choice(DTYPES), "s": draw.choice([shape, shape, shape, spec(draw, depth + 1)])}
    return draw.choice([inner, {draw.choice("ltdbgxsn?"): one for one in inner}])


def frame(draw: random.Random) -> tuple[bytes, bytes]:
    right = {"kind": draw.choice(["value", "error", "call"]), "id": 1, "values": spec(draw)}
    odd = {"kind": spec(draw), "id": spec(draw), "values": spec(draw)}
    text = json.dumps(draw.choice([right, right, right, right, odd, spec(draw)])).encode()
    if draw.randrange(10) == 0:
        at = draw.randrange(len(text))
        text = text[:at] + draw.randbytes(draw.randrange(4)) + text[at + draw.randrange(4) :]
    return text, draw.randbytes(draw.choice([0, 0, 1, 2, 4, 8, draw.randrange(40)]))


EXPECTED = [2.0, 3, "a", None, True, [1.0, 2], (1,), {"a": 1.0}, torch.ones(2), torch.tensor(True)]


@MANY
@given(SEEDS)
def test_malformed_replies(seed):
    """A frame is read or refused; what is read is compared without an error, and is right only if it is."""
    draw = random.Random(seed)
    for _ in range(EACH):
        (text, body), expected = frame(draw), draw.choice(EXPECTED)
        try:
            got = protocol.unpack(text, body)["values"]
        except protocol.BadFrame:
            continue
        said = difference(got, expected)
        finite(got)
        assert said or equal(got, expected), f"{got} passes for {expected}"


def test_a_count_is_exact_and_a_rounded_number_is_not():
    assert difference(98_174_774, 98_174_773) and difference([7, 10**9 + 1], [7, 10**9])
    assert not difference(98_174_773.0, 98_174_773) and not difference(1.0 + 1e-9, 1)
    assert not difference(1.000001, 1.0)


def equal(got, expected) -> bool:
    """By another way than the grader's."""
    if isinstance(expected, torch.Tensor):
        return got.dtype == expected.dtype and got.tolist() == pytest.approx(expected.tolist())
    if isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(map(equal, got, expected))
    if isinstance(expected, dict):
        return list(got) == list(expected) and all(equal(got[key], expected[key]) for key in expected)
    if isinstance(expected, bool) or not isinstance(expected, int | float):
        return got is expected or (type(got) is type(expected) and got == expected)
    return float(got) == pytest.approx(expected, rel=1e-4)


def damaged(draw: random.Random, made: dict) -> bytes:
    """A notebook in which up to three places, wherever they lie, hold something else, are gone or are there twice."""
    for _ in range(draw.randrange(4)):
        at, key = made, draw.choice(list(made))
        while isinstance(at[key], dict | list) and at[key] and draw.randrange(6):
            at = at[key]
            key = draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
        what = draw.choice(["change", "change", "remove", "double"])
        if what == "change":
            at[key] = draw.choice([None, True, 3, "", "a", "\ud800", [], [3], ["a"], {}, {"cells": []}])
        elif what == "remove" or isinstance(at, dict):
            del at[key]
        else:
            at.append(at[key])
        if not made:
            break
    data = json.dumps(made).encode()
    if draw.randrange(10) == 0:
        cut = draw.randrange(len(data))
        data = data[:cut] + draw.randbytes(draw.randrange(5)) + data[cut + draw.randrange(20) :]
    return data


@MANY
@given(SEEDS)
def test_malformed_notebooks(seed):
    """Read or refused; every task has a text, or a sentence that says why not."""
    draw = random.Random(seed)
    solutions = small().solutions | {"05-1": RIGHT}
    kinds = {cell.task: cell.kind for cell in small().cells if cell.kind in ("solution", "manual")}
    for _ in range(EACH):
        data = damaged(draw, notebook(solutions, {"05-4": "because"}))
        try:
            texts, problems = texts_of(cells_of(data), kinds)
        except Invalid as problem:
            assert "\n" not in str(problem) and len(str(problem)) < 200
            continue
        assert sorted([*texts, *problems]) == ["05-1", "05-2", "05-3", "05-4", "student"]
        assert all(isinstance(text, str) and text.encode() is not None for text in texts.values())
        assert all("\n" not in problem and len(problem) < 200 for problem in problems.values())
