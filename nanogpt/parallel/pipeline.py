"""Pipeline parallelism: a GPT cut into stages, their schedules simulated, and a step by send and receive.

Exported from notebooks/21c_context_parallel.ipynb.
"""

import time
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogpt.gpt.model import GPT
from nanogpt.gpt.train import target_shares
from nanogpt.parallel.distributed import Ranks
from nanogpt.speed.roofline import synchronize


def gpipe(stage: int, stages: int, m: int) -> list[tuple]:
    """A stage's order of operations for m micro-batches, (what, micro-batch, chunk): all forwards, then all backwards."""
    return [("F", i, 0) for i in range(m)] + [("B", i, 0) for i in reversed(range(m))]


def alternate(ahead: int, forwards: list, backwards: list) -> list[tuple]:
    """Some forwards ahead, then one forward and one backward in turn, then the backwards that are left."""
    pairs = [op for pair in zip(forwards[ahead:], backwards) for op in pair]
    return forwards[:ahead] + pairs + backwards[len(forwards) - ahead :]


def one_f_one_b(stage: int, stages: int, m: int) -> list[tuple]:
    """1F1B with a flush (Narayanan et al. 2021, §2.2.1): a stage is as many forwards ahead as stages follow it."""
    forwards, backwards = ([(what, i, 0) for i in range(m)] for what in "FB")
    return alternate(min(stages - 1 - stage, m), forwards, backwards)


def simulate(orders: list[list], seconds=lambda stage, what: 1 if what == "F" else 2) -> list[list]:
    """By stage, when each operation of its order runs at the earliest: [(what, micro-batch, chunk, start, end), ...].

    Chunk c of stage s is the model's part c · stages + s. ValueError where the orders wait for each other for ever.
    """
    stages, ended, spans = len(orders), {None: 0}, [[] for _ in orders]
    deepest = stages * (1 + max(op[2] for order in orders for op in order)) - 1

    def needs(what: str, i: int, depth: int):
        before = depth - 1 if what == "F" else depth + 1
        return None if before < 0 else (what, i, before) if before <= deepest else ("F", i, depth)

    for _ in range(sum(map(len, orders))):
        coming = {s: order[len(spans[s])] for s, order in enumerate(orders) if len(spans[s]) < len(order)}
        places = {s: (what, i, chunk * stages + s) for s, (what, i, chunk) in coming.items()}
        s = next((s for s, op in places.items() if needs(*op) in ended), None)
        if s is None:
            raise ValueError(f"the stages wait for each other for ever, before {list(places.values())}")
        start = max(ended[needs(*places[s])], spans[s][-1][-1] if spans[s] else 0)
        ended[places[s]] = start + seconds(s, places[s][0])
        spans[s].append((*coming[s], start, ended[places[s]]))
    return spans


def idle(spans: list[list]) -> list[float]:
    """Of the time from the first start to the last end, the share in which each stage does nothing."""
    begin, end = min(s[0][-2] for s in spans), max(s[-1][-1] for s in spans)
    return [1 - sum(b - a for *_, a, b in stage) / (end - begin) for stage in spans]


def most_kept(order: list) -> int:
    """How many micro-batches' activations a stage holds at most."""
    return max(accumulate(1 if what == "F" else -1 for what, *_ in order))


def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Idle share of a pipeline's time (Huang et al. 2019, §2.3); with interleaved chunks Narayanan et al. 2021, §2.2.2."""
    return (stages - 1) / (chunks * micro_batches + stages - 1)


def interleaved(stage: int, stages: int, m: int, chunks: int) -> list[tuple]:
    """1F1B with several chunks of the model on a stage, in groups of as many micro-batches as stages (ibid., §2.2.2)."""
    if m % stages:
        raise ValueError(f"{m} micro-batches do not interleave on {stages} stages; take a multiple")

    def op(what: str, k: int) -> tuple:
        group, chunk = divmod(k // stages, chunks)
        return what, group * stages + k % stages, chunk if what == "F" else chunks - 1 - chunk

    forwards, backwards = ([op(what, k) for k in range(m * chunks)] for what in "FB")
    return alternate(min(2 * (stages - 1 - stage) + (chunks - 1) * stages, m * chunks), forwards, backwards)


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


# A forward's output goes to the next stage and its input comes from the one before; with backward it is the other way.
TO, FROM = {"F": 1, "B": -1}, {"F": -1, "B": 1}


def neighbour(op: tuple | None, ranks: Ranks, by: dict[str, int]) -> int | None:
    """The rank to which an operation's message goes, or from which it comes; None at the pipeline's ends."""
    other = ranks.rank + by[op[0]] if op else -1
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


def pipeline_step(part: GPT, micro_batches: list, ranks: Ranks, schedule) -> tuple[Tensor, list]:
    """Forward and backward of micro-batches [(x, y), ...]: their mean loss, and spans as simulate's; next is add_tied."""
    shares, held, spans = target_shares(micro_batches), {}, []
    loss, message, before = torch.zeros((), device=ranks.device), None, None
    shape = *micro_batches[0][0].shape, part.config.n_embd  # (B, T, C)
    for op in schedule(ranks.rank, ranks.size, len(micro_batches)):
        came, (what, i, chunk) = swap(message, before, op, shape, ranks), op
        began, before, (x, y) = time.perf_counter(), op, micro_batches[i]
        if what == "F":
            x = x if came is None else came.requires_grad_()
            held[i] = x, forward_stage(part, x, y)
            message = held[i][1].detach()
        else:
            x, out = held.pop(i)
            out.backward(shares[i] if came is None else came)  # d loss / d out
            message = x.grad
            if came is None:  # the last stage: out is the loss
                loss += torch.where(shares[i] > 0, shares[i] * out.detach(), 0.0)
        synchronize(ranks.device)
        spans.append((what, i, chunk, began, time.perf_counter()))
    swap(message, before, None, (), ranks)
    if ranks.size > 1:
        dist.broadcast(loss, ranks.size - 1)
    return loss, spans


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
