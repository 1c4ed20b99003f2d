"""How exercises 04 are graded."""

import torch

from course.grade.checks import Check, Wrong


def queries_and_keys(draw):
    return [tuple(torch.randn(2, 2, 3, T, d, generator=draw)) for T, d in ((1, 4), (5, 8))]


CHECKS = [
    Check(
        "04-1", "weights of the past that sum to one", 3, "attention_weights", queries_and_keys, hidden=False
    ),
]

WRONG = [
    Wrong("04-1", "the softmax comes before the mask: rows no longer sum to one",
          'scores.masked_fill(future, float("-inf")).softmax(dim=-1)', "scores.softmax(dim=-1).masked_fill(future, 0.0)"),
    Wrong("04-1", "the mask hides a position from itself", "triu(1)", "triu(0)"),
    Wrong("04-1", "nothing is hidden", 'masked_fill(future, float("-inf"))', "clone()"),
    Wrong("04-1", "the mask hides the past in place of the future", "triu(1)", "tril(-1)"),
    Wrong("04-1", "the softmax runs over queries in place of keys", "softmax(dim=-1)", "softmax(dim=-2)"),
]  # fmt: skip
