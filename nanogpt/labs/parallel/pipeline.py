"""Pipeline parallelism: a GPT cut into stages, their schedules simulated, and a step by send and receive.

Exported from notebooks/21e_pipeline.ipynb.
"""

import time
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogpt.device import synchronize
from nanogpt.distributed import Ranks
from nanogpt.model import GPT
from nanogpt.training import target_shares


def stage_of(model: GPT, stage: int, stages: int) -> GPT:
    """The GPT with only what this stage needs, in place, by the old names. ValueError if there are too many stages."""
    n, parts = model.config.n_layer, model.transformer
    if stages > n:
        raise ValueError(f"n_layer={n} blocks cannot be cut into {stages} stages; take at most {n}")
    mine = torch.arange(n).tensor_split(stages)[stage].tolist()
    parts.h = nn.ModuleDict({str(i): parts.h[i] for i in mine})
    if stage > 0:
        del parts["wpe"]
    if stage < stages - 1:
        del parts["ln_f"], model.lm_head
    if 0 < stage < stages - 1:
        del parts["wte"]
    return model


def forward_stage(part: GPT, x: Tensor, targets: Tensor) -> Tensor:
    """From ids (B, T) in the first stage, else the activations (B, T, C) before: those after, or in the last the loss."""
    parts = part.transformer
    if "wpe" in parts:
        x = parts.drop(parts.wte(x) + parts.wpe(torch.arange(x.size(1), device=x.device)))
    for block in parts.h.values():
        x = block(x)
    return part.head(x, targets)[1] if "ln_f" in parts else x


def gpipe(stage: int, stages: int, m: int) -> list[tuple]:
    """A stage's order of operations for m micro-batches, (what, micro-batch, chunk): all forwards, then all backwards."""
    forwards = [("F", i, 0) for i in range(m)]
    return forwards + [("B", i, 0) for i in reversed(range(m))]


def needed(what: str, i: int, depth: int, deepest: int) -> tuple | None:
    """The operation whose result this one takes in, (what, micro-batch, part of the model); None if there is none."""
    if what == "F":
        return ("F", i, depth - 1) if depth > 0 else None
    return ("B", i, depth + 1) if depth < deepest else ("F", i, depth)


def free_from(spans: list) -> float:
    """When a stage is free: at the end of its last operation."""
    return spans[-1][-1] if spans else 0


def usual(stage: int, what: str) -> float:
    """Seconds on paper: backward takes twice as long as forward."""
    return 1 if what == "F" else 2


def simulate(orders: list[list], seconds=usual) -> list[list]:
    """By stage, when each operation of its order runs at the earliest: [(what, micro-batch, chunk, start, end), ...].

    Chunk c of stage s is the model's part c · stages + s. ValueError where the orders wait for each other for ever.
    """
    stages, chunks = len(orders), 1 + max(op[2] for order in orders for op in order)
    ended, spans, moved = {None: 0}, [[] for _ in orders], True
    while moved:
        moved = False
        for s, order in enumerate(orders):
            if len(spans[s]) == len(order):
                continue
            what, i, chunk = order[len(spans[s])]
            depth = chunk * stages + s
            before = needed(what, i, depth, stages * chunks - 1)
            if before in ended:
                start = max(ended[before], free_from(spans[s]))
                ended[what, i, depth] = start + seconds(s, what)
                spans[s].append((what, i, chunk, start, ended[what, i, depth]))
                moved = True
    waiting = [order[len(done)] for order, done in zip(orders, spans) if len(done) < len(order)]
    if waiting:
        raise ValueError(f"the stages wait for each other for ever, before {waiting}")
    return spans


def idle(spans: list[list]) -> list[float]:
    """Of the time from the first start to the last end, the share in which each stage does nothing."""
    begin = min(stage[0][-2] for stage in spans)
    end = max(stage[-1][-1] for stage in spans)
    return [1 - sum(b - a for *_, a, b in stage) / (end - begin) for stage in spans]


def alternate(ahead: int, forwards: list, backwards: list) -> list[tuple]:
    """Some forwards ahead, then one forward and one backward in turn, then the backwards that are left."""
    order = forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards):
        order += [forward, backward]
    return order + backwards[len(forwards) - ahead :]


def one_f_one_b(stage: int, stages: int, m: int) -> list[tuple]:
    """1F1B with a flush (Narayanan et al. 2021, §2.2.1): a stage is as many forwards ahead as stages follow it."""
    forwards = [("F", i, 0) for i in range(m)]
    backwards = [("B", i, 0) for i in range(m)]
    return alternate(min(stages - 1 - stage, m), forwards, backwards)


def most_kept(order: list) -> int:
    """How many micro-batches' activations a stage holds at most."""
    return max(accumulate(1 if what == "F" else -1 for what, *_ in order))


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Idle share of a pipeline's time (Huang et al. 2019, §2.3); with interleaved chunks Narayanan et al. 2021, §2.2.2.

    chunks (used in the next section): a stage is cut into so many pieces, and a micro-batch goes around for each.
    """
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def interleaved(stage: int, stages: int, m: int, chunks: int) -> list[tuple]:
    """1F1B with several chunks of the model on a stage, in groups of as many micro-batches as stages (ibid., §2.2.2)."""
    if m % stages:
        raise ValueError(f"{m} micro-batches do not interleave on {stages} stages; take a multiple")
    forwards, backwards = [], []
    for k in range(m * chunks):
        group, chunk = divmod(k // stages, chunks)
        i = group * stages + k % stages
        forwards.append(("F", i, chunk))
        backwards.append(("B", i, chunks - 1 - chunk))
    ahead = 2 * (stages - 1 - stage) + (chunks - 1) * stages
    return alternate(min(ahead, m * chunks), forwards, backwards)


TO, FROM = {"F": 1, "B": -1}, {"F": -1, "B": 1}


def neighbour(op: tuple | None, ranks: Ranks, by: dict[str, int]) -> int | None:
    """The rank to which an operation's message goes, or from which it comes; None at the pipeline's ends."""
    if op is None:
        return None
    other = ranks.rank + by[op[0]]
    return other if 0 <= other < ranks.size else None


def swap(message: Tensor | None, before: tuple | None, op: tuple | None, shape: tuple, ranks: Ranks):
    """Send what the operation before has made and receive what this one needs, at once (nccl#479): that, or None."""
    to, source = neighbour(before, ranks, TO), neighbour(op, ranks, FROM)
    ends, came = [], None
    if to is not None:
        ends.append(dist.P2POp(dist.isend, message, to))
    if source is not None:
        came = torch.empty(shape, device=ranks.device)
        ends.append(dist.P2POp(dist.irecv, came, source))
    for work in dist.batch_isend_irecv(ends) if ends else []:
        work.wait()
    return came


def forward_of(part: GPT, micro_batch: tuple, came: Tensor | None) -> tuple[Tensor, Tensor]:
    """This stage's input, ids or what came, and its output."""
    ids, targets = micro_batch
    x = ids if came is None else came.requires_grad_()
    return x, forward_stage(part, x, targets)


def backward_of(x: Tensor, out: Tensor, came: Tensor) -> Tensor | None:
    """Backward from the gradient of the output that came: the gradient of the input, which goes back."""
    out.backward(came)
    return x.grad


def loss_of_all(loss: Tensor, ranks: Ranks) -> Tensor:
    """The last stage's loss, on all ranks."""
    if ranks.size > 1:
        dist.broadcast(loss, ranks.size - 1)
    return loss


def pipeline_step(part: GPT, micro_batches: list, ranks: Ranks, schedule) -> tuple[Tensor, list]:
    """Forward and backward of micro-batches [(x, y), ...]: their mean loss, and spans as simulate's; next is add_tied."""
    shares, held, spans = target_shares(micro_batches), {}, []
    loss, message, before = torch.zeros((), device=ranks.device), None, None
    shape = *micro_batches[0][0].shape, part.config.n_embd  # (B, T, C)
    for op in schedule(ranks.rank, ranks.size, len(micro_batches)):
        came = swap(message, before, op, shape, ranks)
        began, before = time.perf_counter(), op
        what, i, chunk = op
        if what == "F":
            held[i] = forward_of(part, micro_batches[i], came)
            message = held[i][1].detach()
        else:
            if came is None:  # the last stage, whose output is the loss
                loss += torch.where(shares[i] > 0, shares[i] * held[i][1].detach(), 0.0)
                came = shares[i]  # d mean loss / d this loss
            message = backward_of(*held.pop(i), came)
        synchronize(ranks.device)
        spans.append((what, i, chunk, began, time.perf_counter()))
    swap(message, before, None, (), ranks)
    return loss_of_all(loss, ranks), spans


def add_tied(part: GPT, ranks: Ranks) -> None:
    """wte's gradient: what the first stage found as embedding and the last as head, added up at both ends."""
    last = ranks.size - 1
    if last and ranks.rank in (0, last):
        grad, other = part.transformer.wte.weight.grad, last - ranks.rank
        came = torch.empty_like(grad)
        ends = [dist.P2POp(dist.isend, grad, other), dist.P2POp(dist.irecv, came, other)]
        for work in dist.batch_isend_irecv(ends):
            work.wait()
        grad += came
