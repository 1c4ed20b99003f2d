"""Every version of data parallelism is one process; buckets send each gradient once; DDP's gradients are ours.

The ranks are real processes, which talk by gloo over this machine's loopback.
"""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from ranks import GLOO, in_ranks
from small_run import text_shards
from torch import nn

from course.figures import data_parallel as instruments
from nanogpt.distributed import Ranks, is_lost, process_group, replicate
from nanogpt.labs.drills.ddp import fresh
from nanogpt.labs.parallel.buckets import Buckets, in_buckets
from nanogpt.training import train_step

BOUND = 2e-6  # float32: a gradient by its length, a loss in nats over a few steps


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    return text_shards(tmp_path_factory.mktemp("shards"))


# On several ranks


def laws(ranks: Ranks, data: str) -> dict:
    """All that is asked of a few ranks, in one start of them."""
    model, _, _ = fresh(ranks, data)
    return {
        "versions": {name: instruments.same_as_one(ranks, data, name, 3) for name in instruments.VERSIONS},
        "parameters": len(list(model.parameters())),
        "buckets": len(Buckets(model, ranks, instruments.CAP).buckets),
        "beside DDP": instruments.beside_ddp(ranks, data),
        "bytes": [instruments.gradient_bytes(ranks, data, as_view) for as_view in (False, True)],
        "gradients": sum(p.nbytes for p in model.parameters()),
        "train_step": accumulated_messages(ranks, data),
        "timeline": instruments.timeline(ranks, data, math.inf, 0.0, 3, 2),
    }


def accumulated_messages(ranks: Ranks, data: str) -> int:
    """The all-reduces of a train_step of two micro-batches, by DDP with at most two buckets."""
    model, optimizer, stream = fresh(ranks, data)
    replica = replicate(model, ranks)
    parts = [stream.next_batch(), stream.next_batch()]
    train_step(replica, optimizer, parts)  # after the first step buckets are cut anew
    return instruments.messages_in(lambda: train_step(replica, optimizer, parts))


@GLOO
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.weekly)])
def test_every_version_is_one_process_and_sends_as_many_messages_as_it_says(size, data):
    for found in in_ranks(laws, size, data):
        for name, told in found["versions"].items():
            assert told["losses"] < BOUND and told["gradient"] < BOUND, f"{name}: {told}"
        messages = {name: told["messages"] for name, told in found["versions"].items()}
        assert messages["loop"] == messages["a hook each"] == found["parameters"]
        assert messages["flat"] == messages["one bucket"] == 1
        assert messages["buckets"] == found["buckets"] > 2
        assert 1 < messages["DDP"] < found["parameters"]
        assert len(found["timeline"]["communicating"]) == 1
        assert found["train_step"] <= 2, "train_step averages after each micro-batch"
        assert found["beside DDP"]["equal"] or size > 2, "two ranks can round a mean in one way only"
        assert found["beside DDP"]["apart"] < BOUND
        assert found["bytes"] == [2 * found["gradients"], found["gradients"]]


# Buckets in one process, where what is sent comes back as it is


class Wire:
    """Stands for the network: keeps what was sent, and in `events` when."""

    def __init__(self):
        self.sent, self.events = [], []

    def send(self, x):
        self.sent.append(x.clone())
        self.events.append("sent")
        return SimpleNamespace(wait=lambda: self.events.append("waited"))


def layers(n: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(3, 3) for _ in range(n)))


def test_each_gradient_is_sent_once_and_before_backward_has_come_to_the_first_layer():
    model, wire = layers(), Wire()
    averages = Buckets(model, Ranks(), 48.0, wire.send)  # 48 bytes: a layer
    model[0].weight.register_post_accumulate_grad_hook(lambda p: wire.events.append("first layer"))
    for _ in range(2):  # buckets can be used again
        model.zero_grad()
        model(torch.ones(2, 3)).square().sum().backward()
        before = [p.grad.clone() for p in model.parameters()]
        averages.wait()
        assert wire.events.index("sent") < wire.events.index("first layer"), "nothing left before the end"
        assert wire.events.index("waited") > wire.events.index("first layer"), "backward waits for a message"
        assert len(wire.sent) == len(averages.buckets) == 4
        numbers = torch.cat(wire.sent).sort().values
        assert torch.equal(numbers, torch.cat([g.flatten() for g in before]).sort().values)
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before)), "in a wrong place"
        wire.sent.clear()
        wire.events.clear()


@pytest.mark.parametrize("cap", [1.0, 12.0, 48.0, 100.0, math.inf])
def test_buckets_keep_the_order_and_the_cap(cap):
    parameters = list(layers().parameters())
    buckets = in_buckets(parameters, cap)
    dealt = [id(p) for bucket in buckets for p in bucket]
    assert dealt == [id(p) for p in parameters]
    for bucket in buckets:
        assert len(bucket) == 1 or sum(p.nbytes for p in bucket) <= cap
    for one, following in itertools.pairwise(buckets):
        assert sum(p.nbytes for p in one) + following[0].nbytes > cap, "there was room for the next one"


# Leaving the group


def fails_as_on_nccl(ranks: Ranks) -> bool:
    """Whether the group is still open after an error, where the backend says that it is NCCL."""
    dist.get_backend = lambda: "nccl"
    try:
        with process_group(ranks, 20.0):
            raise ValueError("broken on purpose")
    except ValueError:
        still_open = dist.is_initialized()
    dist.destroy_process_group()
    return still_open


@GLOO
def test_after_an_error_an_nccl_group_is_not_left_which_would_wait_for_the_others():
    assert in_ranks(fails_as_on_nccl, 2, seconds=None) == [True, True]


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1"), True),
        (RuntimeError("[../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms"), True),
        (RuntimeError("CUDA error: peer access is not supported between these two devices"), False),
        (ValueError("gloo: timeout"), False),
    ],
)
def test_a_rank_waits_only_if_gloo_says_so(error, lost):
    assert is_lost(error) == lost
