"""What a step takes on n GPUs: collectives, seconds, the largest batch; GPUs by their data sheets.

Exported from notebooks/20b_many_machines.ipynb, grown by notebooks/22a_time_and_cost.ipynb.
"""

import math
from dataclasses import dataclass, replace

from nanogpt.labs.plan.footprint import Step, split_params
from nanogpt.labs.roofline.sheets import PEAKS, Peak
from nanogpt.model import GPTConfig, flops_by_part, num_params, step_flops


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
    """Seconds of a step on n GPUs, each of which computes `accumulate` micro-batches of `rows` rows.

    "compute"; "averaging", as far as it is not hidden, which is cluster.overlap of the last backward at most; "total".
    Gradients are float32 and averaged once. Left out: the update, the data, and waiting for the slowest.
    """
    compute = step_flops(config, 1, config.block_size) * rows * accumulate / (cluster.flops * cluster.mfu)
    average = average_seconds(4 * num_params(config), n, cluster)
    hidden = min(
        average, cluster.overlap * 2 / 3 * compute / accumulate
    )  # behind the last micro-batch's backward
    return {"compute": compute, "averaging": average - hidden, "total": compute + average - hidden}


def efficiency(config: GPTConfig, rows: float, n: int, cluster: Cluster, accumulate: int = 1) -> float:
    """Of what n times one GPU would do, the part that is done, by the totals of step_seconds. Each has `rows` rows."""
    one = step_seconds(config, rows, 1, cluster, accumulate)
    return one["total"] / step_seconds(config, rows, n, cluster, accumulate)["total"]


SHARE = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1}  # of (n - 1) / n of the bytes, on a ring


@dataclass(frozen=True)
class Sent:
    """`calls` collectives of one kind in a step, among `n` ranks; a rank's neighbour is `apart` ranks away."""

    what: str
    kind: str
    n: int
    calls: int
    nbytes: int  # of the complete tensors, in all calls together
    apart: int = 1

    @property
    def sent(self) -> float:
        """Bytes that each rank sends; from stage to stage all of them."""
        return self.nbytes * SHARE[self.kind] * (self.n - 1) / self.n if self.kind in SHARE else self.nbytes

    def seconds(self, cluster: Cluster) -> float:
        """By chapter 20b's model of a ring; a group whose ranks are apart has fewer of them in a machine."""
        group = replace(cluster, per_machine=max(1, cluster.per_machine // self.apart))
        if self.kind == "send":
            return self.nbytes / ring_bandwidth(2, group) + self.calls * cluster.latency
        each = average_seconds(self.nbytes / self.calls, self.n, group)  # an all-reduce's
        return self.calls * each * SHARE[self.kind] / 2


def data_traffic(step: Step) -> list[Sent]:
    """What the dp ranks send each other: at most one entry "gradients", then one "weights"; [] for dp = 1.

    Of this GPU's parameters, which are split_params(step): gradients in step.row.gradients bytes each, updated weights
    in step.row.weights. Stages 0 to 2 count as one call, stage 2's gradients as one for each micro-batch. Stage 3 has
    "weights" first, in step.row.inside bytes, and a call for each block and one for the root: wte, wpe and, on the
    last stage of a pipeline, ln_f. Two ranks of a group are step.tp ranks apart.
    """
    parts, n, apart, k, p = split_params(step), step.dp, step.tp, step.accumulate, step.row
    P, groups = sum(parts.values()), step.config.n_layer // step.pp + 1
    sums, weights = ("gradients", "reduce-scatter", n), ("weights", "all-gather", n)
    if n == 1:
        return []
    if step.shard == 0:
        return [Sent("gradients", "all-reduce", n, 1, p.gradients * P, apart)]
    if step.shard < 3:
        times = k if step.shard == 2 else 1
        return [Sent(*sums, times, times * p.gradients * P, apart), Sent(*weights, 1, p.weights * P, apart)]
    root = parts["wte"] + parts["wpe"] + step.last * (1 + step.config.bias) * step.config.n_embd
    gathers = Sent(*weights, k * (2 * groups - 1), k * p.inside * (2 * P - root), apart)
    return [gathers, Sent(*sums, k * groups, k * p.gradients * P, apart)]


def tensor_traffic(step: Step) -> list[Sent]:
    """What the tp ranks send: two sums of the stream for each block and pass (Shoeybi et al. 2019, §3), and at the ends.

    One entry "partial sums" for all of them, B · T · C numbers of step.row.inside bytes in each call (what products
    give under autocast). On the last stage a second one, "loss": three sums of a float32 number for each token. [] for
    tp = 1. PyTorch's programs are those whose name begins with "pytorch".
    """
    if step.tp == 1:
        return []
    N, k, layers = step.B * step.T, step.accumulate, step.config.n_layer // step.pp
    again = 1 if step.program.startswith("pytorch") else 2  # of a block's two forward sums
    each = 4 + again * (step.recompute == "block")
    calls = k * (each * layers + step.first + step.last)
    sums = Sent(
        "partial sums", "all-reduce", step.tp, calls, calls * N * step.config.n_embd * step.row.inside
    )
    loss = Sent("loss", "all-reduce", step.tp, 3 * k, 12 * k * N)
    return [sums, loss] if step.last else [sums]


def stage_traffic(step: Step) -> list[Sent]:
    """What a stage of a pipeline sends to its neighbours: the stream forward, its gradient back."""
    if step.pp == 1:
        return []
    calls = 2 * step.accumulate
    nbytes = calls * step.B * step.T * step.config.n_embd * step.row.stream
    return [Sent("stage to stage", "send", 2, calls, nbytes, step.tp * step.dp)]


def traffic(step: Step) -> list[Sent]:
    """All that one GPU sends in a step."""
    return data_traffic(step) + tensor_traffic(step) + stage_traffic(step)


LINKS = {  # GB/s each way to a neighbour; NVLink, by the data sheets
    "B200": 900, "H200": 450, "H100": 450, "A100-80GB": 300, "A100-40GB": 300, "H800": 200, "A800": 200, "V100": 150,
    "H100-PCIe": 64, "RTX 5090": 64, "V100-PCIe": 16, "V100S": 16, "T4": 16,  # PCIe 5.0, 3.0
}  # fmt: skip
RATES = {"pytorch": "float32", "pytorch-tf32": "tf32", "llm.c-2024": "tf32", "llm.c-cpu": "float32"}


@dataclass(frozen=True)
class Card:
    """A GPU: its data sheet, and GB/s each way to a neighbour."""

    sheet: Peak
    link: float = 32  # PCIe 4.0, 16 lanes

    def rate(self, program: str) -> float:
        """FLOP/s of the data sheet in the program's format; where there is no TF32, float32's."""
        name = RATES.get(program, "half")
        return 1e12 * (getattr(self.sheet, name) or self.sheet.float32)


CARDS = {name: Card(sheet, LINKS.get(name, 32)) for name, sheet in PEAKS.items()}


def compute_flops(step: Step) -> int:
    """FLOPs of all rows of one of the dp ranks, forward and backward."""
    return step_flops(step.config, step.B * step.accumulate, step.T)


def recompute_flops(step: Step) -> int:
    """FLOPs of the blocks' second forward, which in PyTorch ends before the MLP's c_proj; 0 if they are not recomputed."""
    if step.recompute != "block":
        return 0
    parts = flops_by_part(step.config, step.T)
    again = sum(parts.values()) - parts["lm_head"]
    if step.program.startswith("pytorch"):
        again -= parts["mlp"] // 2  # one of the MLP's two products, which are equally large
    return step.B * step.accumulate * step.T * again


def seconds(step: Step, card: Card, mfu: float, **links) -> dict[str, float]:
    """Of a step, by cause. Assumed: mfu, the share of the data sheet's FLOP/s while it computes; links, Cluster's."""
    cluster = Cluster(card.rate(step.program), mfu, inside=1e9 * card.link, **links)
    power = step.tp * step.pp * cluster.flops * mfu
    found = {"compute": compute_flops(step) / power, "recompute": recompute_flops(step) / power}
    found["tensor parallel"] = sum(sent.seconds(cluster) for sent in tensor_traffic(step))
    found["stage to stage"] = sum(sent.seconds(cluster) for sent in stage_traffic(step))
    found["bubble"] = sum(found.values()) * (step.pp - 1) / step.accumulate
    sending = sum(sent.seconds(cluster) for sent in data_traffic(step))
    cover = found["compute"] if step.shard == 3 else found["compute"] * 2 / 3 / step.accumulate
    found["data parallel"] = sending - min(sending, cluster.overlap * cover)
    return found
