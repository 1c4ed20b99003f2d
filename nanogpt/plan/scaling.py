"""How long a step takes on n GPUs: computing, averaging gradients, and how much of that is hidden.

Exported from notebooks/20b_many_machines.ipynb.
"""

import math
from dataclasses import dataclass

from nanogpt.gpt.model import GPTConfig, num_params
from nanogpt.speed.work import step_flops


@dataclass(frozen=True)
class Cluster:
    """GPUs of `flops` FLOP/s, of which the model gets `mfu`; links in bytes/s and seconds; all are assumptions."""

    flops: float
    mfu: float = 0.4
    per_machine: int = 8
    inside: float = 450e9  # between GPUs of one machine, each direction
    between: float = 50e9  # between machines, for each GPU: 400 Gb/s
    latency: float = 10e-6  # of a message
    overlap: float = 0.8  # the part of backward that averaging can hide behind


def average_seconds(nbytes: float, n: int, cluster: Cluster) -> float:
    """Of an all-reduce over n GPUs: a ring's bytes over the slowest link, a tree's latency."""
    link = cluster.inside if n <= cluster.per_machine else cluster.between
    return 2 * (n - 1) / n * nbytes / link + 2 * math.ceil(math.log2(n)) * cluster.latency


def step_seconds(
    config: GPTConfig, rows: float, n: int, cluster: Cluster, accumulate: int = 1
) -> dict[str, float]:
    """Seconds of a step on n GPUs of `rows` rows each and as many micro-batches: computing, and averaging not hidden.

    Gradients are float32 and averaged once. Left out: the update, the data, and waiting for the slowest.
    """
    compute = step_flops(config, 1, config.block_size) * rows * accumulate / (cluster.flops * cluster.mfu)
    average = average_seconds(4 * num_params(config), n, cluster)
    hidden = min(
        average, cluster.overlap * 2 / 3 * compute / accumulate
    )  # behind the last micro-batch's backward
    return {"compute": compute, "averaging": average - hidden, "total": compute + average - hidden}


def efficiency(config: GPTConfig, rows: float, n: int, cluster: Cluster, accumulate: int = 1) -> float:
    """Of what n times one GPU would do, the part that is done."""
    one = step_seconds(config, rows, 1, cluster, accumulate)
    return one["total"] / step_seconds(config, rows, n, cluster, accumulate)["total"]
