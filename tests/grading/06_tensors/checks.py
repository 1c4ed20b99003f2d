import torch

from course.exercises.checks import Check


def some(draw):
    return [(torch.randn(2, 3, generator=draw),)]


def near(got, expected, x):
    """The kind of judge that not-a-number would fool."""
    return "too far" if (got - expected).abs().max() > 1e-3 else ""


CHECKS = [
    Check("06-1", "doubled", 2, "double", some),
    Check("06-1", "nearly doubled", 3, "double", some, judge=near),
]
WRONG = []
