"""What is measured in the student's own process can be patched there: such a measurement alone gives no point."""

from types import SimpleNamespace

import pytest
import torch

from course.exercises.sets import load
from course.grade.score.local import said_of

RIGHT = {
    "where": "length = h.norm()\n    return torch.where(length > limit, h * (limit / length.clamp(min=limit)), h), length",
    "a number as a tensor": "length = h.norm()\n    return h * (limit / torch.maximum(length, torch.tensor(limit))), length",
}


def one_graph(body: str) -> str:
    """What 11-1's check of the graph says of a function with this body."""
    made = load("11")
    check = next(check for check in made.checks if check.name == "one graph")
    return said_of(made, check, made.solutions | {"11-1": f"def shortened(h, limit):\n    {body}"}, "ann")


@pytest.mark.parametrize("name", RIGHT)
def test_one_graph_is_accepted_however_it_is_written(name):
    assert one_graph(RIGHT[name]) == ""


def test_a_dynamo_that_says_one_graph_does_not_make_one(monkeypatch):
    broken = "length = h.norm()\n    return (h * (limit / length) if length > limit else h), length"
    assert "graphs: " in one_graph(broken)
    lying = SimpleNamespace(graph_count=1, break_reasons=[])
    monkeypatch.setattr(torch._dynamo, "explain", lambda f: lambda *args: lying)
    assert "DataDependent" in one_graph(broken)
    right_for_short_vectors = "return h * 1.0, h.norm()"
    assert "on other numbers" in one_graph(right_for_short_vectors)


def test_a_step_that_averages_too_often_shows_in_the_weights():
    """It set a counter back, and got all points."""
    made = load("20")
    step = made.solutions["20-3"].replace("i == len(micro_batches) - 1", "True")
    step += "\n    replicas.averages = getattr(replicas, 'averages', 0) // len(micro_batches)"
    for check in (check for check in made.checks if check.task == "20-3"):
        assert said_of(made, check, made.solutions | {"20-3": step}, "ann")
