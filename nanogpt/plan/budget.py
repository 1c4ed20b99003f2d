"""What a step takes on n GPUs: collectives, seconds, the largest batch; GPUs by their data sheets.

Exported from notebooks/20b_many_machines.ipynb, grown by notebooks/22_planner.ipynb.
"""

import math
from dataclasses import dataclass, replace

from nanogpt.gpt.model import GPTConfig, flops_by_part, num_params
from nanogpt.plan.footprint import PROGRAMS, Step, split_params
from nanogpt.speed.roofline import PEAKS, Peak
from nanogpt.speed.work import step_flops


@dataclass(frozen=True)
class Cluster:
    """GPUs of `flops` FLOP/s, of which the model gets `mfu`; links in bytes/s and seconds; all are assumptions."""

    flops: float
    mfu: float = 0.4
    per_machine: int = 8  # GPUs, each with a network card (NIC) of its own
    inside: float = 450e9  # of a GPU to its neighbour in the same machine, each direction
    between: float = 50e9  # of one NIC, each direction: 400 Gb/s
    latency: float = 10e-6  # of a message
    overlap: float = 0.8  # the part of backward that averaging can hide behind


def ring_bandwidth(n: int, cluster: Cluster) -> float:
    """Bytes/s at which a ring over n GPUs passes a message on.

    Between machines NCCL runs as many rings at once as there are NICs, each through another one (nccl#412), so a
    collective has all NICs of a machine together, but no more than a GPU can pass on to its neighbour.
    """
    if n <= cluster.per_machine:
        return cluster.inside
    return min(cluster.inside, cluster.per_machine * cluster.between)


def average_seconds(nbytes: float, n: int, cluster: Cluster) -> float:
    """Of an all-reduce over n GPUs: a ring's bytes, and a tree's latency."""
    sent = 2 * (n - 1) / n * nbytes
    return sent / ring_bandwidth(n, cluster) + 2 * math.ceil(math.log2(n)) * cluster.latency


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


SHARE = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}  # of (n - 1) / n of the bytes, on a ring


@dataclass(frozen=True)
class Sent:
    """`calls` collectives of one kind in a step, among `n` ranks, each `apart` from the next."""

    what: str
    kind: str
    n: int
    calls: int
    nbytes: int  # of the whole tensors, in all calls together
    apart: int = 1

    @property
    def sent(self) -> float:
        """Bytes that each rank sends; from stage to stage all of them."""
        return self.nbytes * SHARE[self.kind] * (self.n - 1) / self.n if self.kind in SHARE else self.nbytes

    def seconds(self, cluster: Cluster) -> float:
        """By chapter 20b's model; over the network if the group does not fit into one machine."""
        inside = self.n * self.apart <= cluster.per_machine
        link = replace(cluster, inside=cluster.inside if inside else cluster.between)
        each = average_seconds(self.nbytes / self.calls, self.n, link)  # an all-reduce's
        return self.calls * each * SHARE.get(self.kind, 1) / 2


def data_traffic(step: Step) -> list[Sent]:
    """What the dp ranks send each other."""
    parts, n, at, k, c = split_params(step), step.dp, step.tp, step.accumulate, step.config
    p, P, groups = PROGRAMS[step.program], sum(parts.values()), c.n_layer // step.pp + 1
    root = parts["wte"] + parts["wpe"] + (step.pp == 1) * (1 + c.bias) * c.n_embd  # outside of the blocks
    sums, weights = ("gradients", "reduce-scatter", n), ("weights", "all-gather", n)
    if step.shard == 3:  # forward and backward gather; the root's weights stay from one to the other
        gathered = Sent(*weights, k * (2 * groups - 1), k * p.weights * (2 * P - root), at)
        return [gathered, Sent(*sums, k * groups, k * p.gradients * P, at)] * (n > 1)
    if step.shard:
        return [Sent(*sums, 1, p.gradients * P, at), Sent(*weights, 1, p.weights * P, at)] * (n > 1)
    return [Sent("gradients", "all-reduce", n, 1, p.gradients * P, at)] * (n > 1)


def tensor_traffic(step: Step) -> list[Sent]:
    """What the tp ranks send: two sums of the stream a block and pass (Shoeybi et al. 2019, §3), and at both ends."""
    N, k, ends = step.B * step.T, step.accumulate, step.pp == 1
    calls = k * (4 * step.config.n_layer // step.pp + 2 * ends)
    nbytes = calls * N * step.config.n_embd * PROGRAMS[step.program].inside
    loss = [Sent("loss", "all-reduce", step.tp, 3 * k, 12 * k * N)] * ends
    return [Sent("partial sums", "all-reduce", step.tp, calls, nbytes), *loss] * (step.tp > 1)


def traffic(step: Step) -> list[Sent]:
    """All that one GPU sends in a step."""
    each = step.B * step.T * step.config.n_embd * PROGRAMS[step.program].stream
    calls, apart = 2 * step.accumulate, step.tp * step.dp  # forward, and the gradient back
    stages = Sent("stage to stage", "send", 2, calls, calls * each, apart)
    return data_traffic(step) + tensor_traffic(step) + [stages] * (step.pp > 1)


OVERHEAD = 851  # MiB that an A800's log leaves unexplained: CUDA's context and libraries


@dataclass(frozen=True)
class Card:
    """A GPU: data sheet, MiB as sold (a driver shows a little less), GB/s each way to a neighbour: NVLink, else PCIe."""

    sheet: Peak
    mib: int
    link: float

    def rate(self, program: str) -> float:
        """FLOP/s in the program's format."""
        sheet, half = self.sheet, PROGRAMS[program].inside == 2
        return 1e12 * (sheet.half if half else sheet.tf32 or sheet.float32)


NVLINK = {"B200": (180, 900), "H200": (141, 450), "H100": (80, 450), "A100-80GB": (80, 300)}  # GiB, GB/s
PCIE = {"L4": (24, 32), "T4": (16, 16), "RTX 5090": (32, 64), "RTX 4090": (24, 32), "RTX 3090": (24, 32)}
CARDS = {
    **{name: Card(PEAKS[name], 1024 * gib, link) for name, (gib, link) in (NVLINK | PCIE).items()},
    "A800": Card(PEAKS["A100-80GB"], 81100, 200),  # MiB: as an llm.c log prints
    "H800": Card(PEAKS["H100"], 80 * 1024, 200),
    "RTX 4070 SUPER": Card(Peak(35.5, 35.5, 71, 504, "NVIDIA's product page, 2024"), 12 * 1024, 32),
}


def seconds(step: Step, card: Card, mfu: float = 0.4, **links) -> dict[str, float]:
    """Of a step, by cause. Assumed: mfu, the share of the data sheet's FLOP/s while it computes; links, Cluster's."""
    cluster = Cluster(card.rate(step.program), mfu, inside=1e9 * card.link, **links)
    rows, power = step.B * step.accumulate, step.tp * step.pp * cluster.flops * mfu
    parts = flops_by_part(step.config, step.T)
    told = {"compute": step_flops(step.config, rows, step.T) / power}
    blocks = rows * step.T * (sum(parts.values()) - parts["lm_head"]) / power  # forward once more
    told["recompute"] = blocks * (step.recompute == "block")
    told["tensor parallel"] = sum(sent.seconds(cluster) for sent in tensor_traffic(step))
    told["bubble"] = sum(told.values()) * (step.pp - 1) / step.accumulate  # Narayanan et al. 2021, §2.2
    sent = sum(each.seconds(cluster) for each in data_traffic(step))
    cover = told["compute"] * (
        1 if step.shard == 3 else 2 / 3 / step.accumulate
    )  # stage 3 sends all the time
    return told | {"data parallel": sent - min(sent, cluster.overlap * cover)}
