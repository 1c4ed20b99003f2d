"""The model of the step: its limits are laws."""

from dataclasses import replace

import pytest

from nanogpt.labs.plan.budget import Cluster, average_seconds, efficiency, ring_bandwidth, step_seconds
from nanogpt.model import GPTConfig

GPT2 = GPTConfig()
CLUSTER = Cluster(flops=1e15)


def test_a_ring_moves_at_most_twice_the_bytes_over_the_slowest_link():
    quiet = replace(CLUSTER, latency=0.0)
    assert [average_seconds(450e9, n, quiet) for n in (2, 8)] == pytest.approx([1.0, 1.75])
    levels = average_seconds(0, 1024, CLUSTER) / CLUSTER.latency
    assert levels == pytest.approx(20), "a tree has ten levels, up and down"


def test_between_machines_a_collective_has_all_network_cards_together():
    """NVIDIA in nccl-tests#309: "With 8 400 Gbps NICs your peak would be at 400 GB/s"."""
    assert ring_bandwidth(16, CLUSTER) == 400e9
    quiet = replace(CLUSTER, latency=0.0)
    assert average_seconds(400e9, 1024, quiet) == pytest.approx(2 * 1023 / 1024)
    two_cards, one_card = replace(quiet, per_machine=2), replace(quiet, per_machine=1)
    assert average_seconds(50e9, 64, one_card) == pytest.approx(2 * average_seconds(50e9, 64, two_cards))


def test_many_network_cards_are_no_faster_than_a_gpu_and_its_neighbour():
    assert ring_bandwidth(16, replace(CLUSTER, between=1e12)) == CLUSTER.inside == ring_bandwidth(8, CLUSTER)


def test_what_is_hidden_is_no_more_than_backward_and_no_more_than_there_is():
    slow = replace(CLUSTER, between=1e8)
    shown, all_shown = (step_seconds(GPT2, 16, 64, c) for c in (slow, replace(slow, overlap=0.0)))
    assert all_shown["averaging"] - shown["averaging"] == pytest.approx(0.8 * 2 / 3 * shown["compute"])
    assert step_seconds(GPT2, 16, 8, replace(CLUSTER, inside=1e15, latency=0))["averaging"] == 0


def test_accumulation_divides_what_averaging_costs():
    slow = replace(CLUSTER, between=1e9, overlap=0.0)
    one, four = (efficiency(GPT2, 4, 64, slow, accumulate=n) for n in (1, 4))
    assert 1 / four - 1 == pytest.approx((1 / one - 1) / 4)
