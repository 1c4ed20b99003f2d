"""Chapter 17e: how far out a value is. The law: a window goes on from its list as if it had never been saved."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanogpt.labs.long_run.spikes import WINDOW, Window


def test_z_is_llmc_s_with_the_new_value_within_its_window():
    values, window = np.random.default_rng(0).normal(3, 0.5, 400).tolist(), Window()
    found = [window.z(v) for v in values]
    assert found[: WINDOW - 1] == [None] * (WINDOW - 1)
    for at in (WINDOW - 1, WINDOW, 399):
        last = np.array(values[at - WINDOW + 1 : at + 1])
        assert found[at] == pytest.approx((last[-1] - last.mean()) / last.std(), rel=1e-9)


def test_a_spike_stands_out_and_values_that_are_not_finite_stay_out():
    window = Window(np.random.default_rng(1).normal(size=WINDOW))
    before = list(window)
    assert [window.z(v) for v in (math.nan, math.inf, -math.inf)] == [None] * 3 and list(window) == before
    assert window.z(10.0) > 6 and abs(window.z(0.0)) < 1
    assert Window([2.0] * WINDOW).z(2.0) == 0.0


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_a_window_goes_on_from_its_list(before, after):
    whole = Window()
    for value in before:
        whole.z(value)
    again = Window(json.loads(json.dumps(list(whole))))
    assert [whole.z(v) for v in after] == [again.z(v) for v in after]
