"""What chapter 20 makes several processes do, to be measured; the command `drill`, under torchrun.

Exported from notebooks/20_ddp.ipynb.
"""

import argparse
import importlib
import statistics
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.profiler import ProfilerActivity, profile

from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.gpt.optim import make_optimizer
from nanogpt.gpt.train import scale_init, target_shares, train_step
from nanogpt.parallel.distributed import (
    Ranks,
    average_gradients,
    gathered,
    my_rows,
    process_group,
    replicate,
    ring_all_reduce,
    torchrun_ranks,
)
from nanogpt.text.data import DocumentStream
from nanogpt.text.files import save_json
from nanogpt.text.shards import described, open_shards


def meet(ranks: Ranks, data: str) -> dict:
    """Each rank says who it is; rank 0 prints what all have said."""
    said = f"rank {ranks.rank} of {ranks.size}, local rank {ranks.local_rank}, on {ranks.device}"
    ranks.print(*gathered(ranks, said), sep="\n")
    return {}


def ring(ranks: Ranks, data: str, numel: int = 1_000_003) -> dict:
    """Our all-reduce beside PyTorch's: the largest difference, and what share of its bytes this rank has sent."""
    ours = torch.randn(numel, generator=torch.Generator().manual_seed(ranks.rank))
    theirs, sent, isend = ours.clone(), [], dist.isend
    dist.all_reduce(theirs)
    dist.isend = lambda x, to: (sent.append(x.nbytes), isend(x, to))[1]
    ring_all_reduce(ours)
    dist.isend = isend
    apart = (ours - theirs).abs().max().item()
    return {"apart": apart, "share": sum(sent) / ours.nbytes, "messages": len(sent)}


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt drill`."""
    parser = argparse.ArgumentParser(description="Drills, under torchrun: torchrun ... -m nanogpt drill ring")
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"{', '.join(DRILLS)}; or MODULE:NAME")
    parser.add_argument("--data", default="data/built/stories", help="a folder of shards")
    parser.add_argument("--out", help="a JSON file for what rank 0 has found")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a rank waits for the others")
    return parser


def find_drill(name: str):
    """Chapter 20's drill of this name, or MODULE:NAME, that of another module's table DRILLS. ValueError if there is none."""
    module, _, drill = name.rpartition(":")
    table = importlib.import_module(f"nanogpt.{module}").DRILLS if module else DRILLS
    if drill in table:
        return table[drill]
    raise ValueError(f"there is no drill {name}; {module or 'chapter 20'} has {', '.join(table)}")


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt drill`, its options parsed."""
    drills, ranks = {name: find_drill(name) for name in args.names}, torchrun_ranks()
    if ranks.size == 1:
        raise ValueError("a drill takes several processes: torchrun --nproc-per-node 2 -m nanogpt drill ...")
    torch.set_num_threads(1)
    with process_group(ranks, args.seconds):
        found = {name: drill(ranks, args.data) for name, drill in drills.items()}
    if ranks.rank == 0 and args.out:
        save_json(args.out, found)


SHAPE = {"n_layer": 2, "n_head": 8, "n_embd": 128, "block_size": 64}
ROWS, MICRO, SEED, LR = 8, 4, 0, 2e-3


def fresh(ranks: Ranks, data: str, rows: int = ROWS):
    """A model, its optimizer and a stream of this rank's part of `rows` rows: on all ranks the same weights."""
    shards = open_shards(data, "train")
    shape = GPTConfig(**SHAPE, vocab_size=described(shards)[0])
    model = scale_init(GPT(shape, torch.Generator().manual_seed(SEED))).to(ranks.device)
    stream = DocumentStream(shards, T=shape.block_size, device=ranks.device, **my_rows(rows, ranks))
    return model, make_optimizer(model, LR), stream


def masked(stream, row: int = ROWS // 2) -> list:
    """A batch as micro-batches of one row; of the global rows from `row` on, only the first tenth of the targets counts."""
    x, y = stream.next_batch()
    y[max(0, row - stream.rank * stream.B) :, stream.T // 10 :] = -100
    return list(zip(x.split(1), y.split(1)))


def weights_apart(model, ranks: Ranks) -> float:
    """The largest difference of a weight between two ranks."""
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    return max((weights - other).abs().max().item() for other in gathered(ranks, weights))


def by_hand(model, optimizer, micro_batches, ranks: Ranks) -> Tensor:
    """A step without DDP and without train_step; the batch's mean loss."""
    optimizer.zero_grad()
    shares, loss = target_shares(micro_batches, ranks.mean), 0.0
    for (x, y), share in zip(micro_batches, shares):
        (part := share * model(x, y)[1]).backward()
        loss += part.detach()
    average_gradients(model, ranks)
    optimizer.step()
    return ranks.mean(loss)


WAYS = "one process", "by hand", "DDP", "mean of means"


def same(ranks: Ranks, data: str, steps: int = 6) -> dict:
    """The same steps in four ways: their losses, and how far the first gradient is from that of one process."""
    found, gradients = {}, {}
    for way in WAYS:
        who = Ranks(device=ranks.device) if way == "one process" else ranks
        (model, optimizer, stream), losses = fresh(who, data), []
        replica = model if way == "by hand" else replicate(model, who)
        for _ in range(steps):
            if way == "by hand":
                loss = by_hand(model, optimizer, masked(stream), ranks)
            else:
                mean = None if way == "mean of means" else who.mean
                loss = train_step(replica, optimizer, masked(stream), mean=mean)
            losses.append(ranks.mean(loss).item())
            gradients.setdefault(way, torch.cat([p.grad.flatten() for p in model.parameters()]))
        one = gradients["one process"]
        found[way] = {"losses": losses, "gradient": ((gradients[way] - one).norm() / one.norm()).item()}
    return found


def counting(replica, sent: list) -> None:
    """From now on, `sent` collects the bytes of each bucket that DDP averages."""

    def hook(state, bucket):
        sent.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)  # what DDP does without a hook

    replica.register_comm_hook(None, hook)


def buckets(ranks: Ranks, data: str) -> dict:
    """The buckets of three steps; and when, in a fourth, each piece of backward and each all-reduce ran, in ms."""
    model, optimizer, stream = fresh(ranks, data)
    replica, steps, sent = replicate(model, ranks, bucket_cap_mb=1), [], []
    counting(replica, sent)
    for _ in range(3):
        train_step(replica, optimizer, [stream.next_batch()], mean=ranks.mean)
        steps.append(list(sent))
        sent.clear()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        train_step(replica, optimizer, [stream.next_batch()], mean=ranks.mean)
    spans = {"backward": "autograd::engine::evaluate_function", "all-reduce": "gloo:all_reduce"}
    times = [(e.name, e.time_range.start / 1e3, e.time_range.end / 1e3) for e in profiled.events()]
    ran = {what: [(a, b) for name, a, b in times if name.startswith(key)] for what, key in spans.items()}
    return {"buckets": steps, "ran": ran}


def flag_after_forward(replica, optimizer, micro_batches) -> None:
    """A step that is wrong on purpose: when it says whether backward is to average, forward has been."""
    optimizer.zero_grad()
    for i, (x, y) in enumerate(micro_batches):
        loss = replica(x, y)[1] / len(micro_batches)
        replica.require_backward_grad_sync = i == len(micro_batches) - 1
        loss.backward()
    optimizer.step()


def flag(ranks: Ranks, data: str, steps: int = 16) -> dict:
    """Accumulation with the flag in time, forgotten and too late: MB and ms a step, and how far the ranks are apart."""
    runs = {}
    for when in ("in time", "forgotten", "late"):
        (model, optimizer, stream), sent = fresh(ranks, data), []
        counting(replica := replicate(model, ranks), sent)
        runs[when] = model, replica, optimizer, stream, sent, []
    runs["forgotten"][1].no_sync = nullcontext  # so that train_step averages after each
    for when, (_, replica, optimizer, stream, _, ms) in [*runs.items()] * steps:  # in turn
        step = replica, optimizer, [stream.next_batch() for _ in range(MICRO)]
        dist.barrier()
        began = time.perf_counter()
        flag_after_forward(*step) if when == "late" else train_step(*step, mean=ranks.mean)
        ms.append(1e3 * (time.perf_counter() - began))
    found = {}
    for when, (model, *_, sent, ms) in runs.items():
        found[when] = {"mb": sum(sent) / steps / 1e6, "ms": statistics.median(ms[1:])}
        found[when]["apart"] = weights_apart(model, ranks)
    return found


def hang(ranks: Ranks, data: str) -> dict:
    """The last rank does not come to the collective, as if its disk or its GPU hung."""
    if ranks.rank == ranks.size - 1:
        time.sleep(3600)
    return {"mean": ranks.mean(torch.ones(1)).item()}


DRILLS = {"meet": meet, "ring": ring, "same": same, "buckets": buckets, "flag": flag, "hang": hang}
