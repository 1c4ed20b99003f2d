# %% [markdown]
r"""
# 21e ◇ · Pipeline: the layers over several ranks

There is one more way to share a model, and it is the most obvious one: give the first layers to one rank and the last layers to another. Each rank then has a *stage* of the model. What moves between the
ranks is small: the activations (B, T, C) go forward from stage to stage, and their gradients come back. One tensor more has to be sent, and
we will find it.

The price is waiting. A stage cannot begin before the one in front of it is done. In this chapter we first cut a model into two stages in one process and find the one place where the cut changes the result. Then we
draw timetables, see who waits for whom, and shorten the waiting. At the end two processes run the schedule.
"""

# %%
#| default_exp labs.parallel.pipeline
#| doc labs.parallel.pipeline: Pipeline parallelism: a GPT cut into stages, their schedules simulated, and a step by send and receive.
#| doc labs.drills.pipeline: What chapter 21e makes the stages of a pipeline do, and when.
import copy
import json
from pathlib import Path
from statistics import median

from course.figures import pipeline as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from course.torchrun import torchrun
from nanogpt.model import GPTConfig
from nanogpt.labs.corpora.stories import ensure_corpus

DATA, OUT = "../data/built/stories", "../data/built/drill-21e.json"
N = 2  # processes, for which a laptop has two cores
STAGES, MICRO, CHUNKS = 4, 8, 2  # of a pipeline on paper: stages, micro-batches, chunks of a stage
_ = ensure_corpus(DATA)
print(f"on paper {STAGES} stages and {MICRO} micro-batches; for real {N} processes")

# %%
#| export
import time
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogpt.distributed import Ranks
from nanogpt.model import GPT
from nanogpt.device import synchronize
from nanogpt.training import target_shares

# %% [markdown]
r"""
## Two stages in one process

A stage is the GPT without everything that it does not need. The parameters keep their names, so a stage can read the weights of a complete model.
"""


# %%
#| export
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


# %%
shape = GPTConfig(block_size=16, vocab_size=97, n_layer=4, n_head=4, n_embd=32)
whole = GPT(shape, torch.Generator().manual_seed(0))
first, last = (stage_of(copy.deepcopy(whole), stage, 2) for stage in (0, 1))
for name, part in {"first": first, "last": last}.items():
    print(f"{name:5} stage: {', '.join(part.transformer)}; blocks {', '.join(part.transformer.h)}")

# %% [markdown]
r"""
Look at `wte`, the token table. Both stages have it. The first stage needs it as the embedding and the last one as the head, because GPT-2 ties the two. We come back to this in a moment.

The first stage begins with token ids, the others with the activations of the stage before. The last stage ends with the loss.
"""


# %%
#| export
def forward_stage(part: GPT, x: Tensor, targets: Tensor) -> Tensor:
    """From ids (B, T) in the first stage, else the activations (B, T, C) before: those after, or in the last the loss."""
    parts = part.transformer
    if "wpe" in parts:
        x = parts.drop(parts.wte(x) + parts.wpe(torch.arange(x.size(1), device=x.device)))
    for block in parts.h.values():
        x = block(x)
    return part.head(x, targets)[1] if "ln_f" in parts else x


# %% [markdown]
r"""
Now one training step by hand. If the stages are on two ranks, the second one receives only numbers. Autograd's graph ends at the border. So `received` is a new leaf, and its gradient is the message that goes back.

*Predict.* We compare the gradients of both stages with those of the complete model. In how many of the model's tensors are they wrong?
"""

# %%
predict("21e.1", "tensors with a wrong gradient", guess=None)

# %%
ids, targets = torch.randint(97, (2, 2, 16), generator=torch.Generator().manual_seed(1))
whole(ids, targets)[1].backward()
sent = forward_stage(first, ids, targets)  # (B, T, C)
received = sent.detach().requires_grad_()
loss = forward_stage(last, received, targets)
loss.backward()
sent.backward(received.grad)  # what came back

wrong = set()
for part in (first, last):
    for name, p in part.named_parameters():
        if not torch.allclose(p.grad, whole.get_parameter(name).grad, atol=1e-6):
            wrong.add(name)
print("wrong:", *wrong)
answer("21e.1", len(wrong))

# %% [markdown]
r"""
One tensor is wrong, and it is the token table. Each stage has found the part of its gradient that it can see. *Both* copies need the sum of the two parts. Otherwise they are updated differently, and soon the table that reads tokens is not the one that writes them. So this gradient has to be sent between
the first and the last stage, once in a step. In GPT-2 small it has 38.6 million numbers, as many as the activations of 49 rows.
"""

# %%
name = "transformer.wte.weight"
both = first.get_parameter(name).grad + last.get_parameter(name).grad
assert torch.allclose(both, whole.get_parameter(name).grad, atol=1e-6), "the two parts are not the gradient"
print("the sum of the two parts is the gradient of the complete model")

# %% [markdown]
r"""
## Who waits

That was one batch, forward through the first stage and the last one, and back. While one stage works, the other waits. Let us draw it. A *schedule* is the order in which a stage does its operations. We write an operation as ("F", 3, 0): the forward of micro-batch 3. (The last number will be needed for chunks of a stage. Until then it is 0.)

The simplest schedule with several *micro-batches*, whose gradients add up as in chapter 15, is called *GPipe* (Huang et al. 2019): all forwards, then all backwards.
"""


# %%
#| export
def gpipe(stage: int, stages: int, m: int) -> list[tuple]:
    """A stage's order of operations for m micro-batches, (what, micro-batch, chunk): all forwards, then all backwards."""
    forwards = [("F", i, 0) for i in range(m)]
    return forwards + [("B", i, 0) for i in reversed(range(m))]


# %%
print(gpipe(stage=0, stages=2, m=2))

# %% [markdown]
r"""
A simulator needs a single rule: an operation starts when its stage is free and its input is there. `needed` says which operation makes the input. A forward needs the forward of the part before. A backward needs the backward of the part behind, and in the last part its own forward.
"""


# %%
#| export
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


# %%
#| export
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


# %%
#| export
def idle(spans: list[list]) -> list[float]:
    """Of the time from the first start to the last end, the share in which each stage does nothing."""
    begin = min(stage[0][-2] for stage in spans)
    end = max(stage[-1][-1] for stage in spans)
    return [1 - sum(b - a for *_, a, b in stage) / (end - begin) for stage in spans]


# %%
pictures = {f"micro-batches: {m}": simulate([gpipe(s, STAGES, m) for s in range(STAGES)]) for m in (1, 4)}
alt = (
    "Two timetables of four stages: one micro-batch walks down and up alone; four follow each other closely."
)
show(figures.schedules(pictures), alt=alt)
for name, spans in pictures.items():
    print(f"{name}, and each stage is idle for {idle(spans)[0]:.1%} of the time")

# %% [markdown]
r"""
Forwards are blue and backwards orange, with the number of the micro-batch. With one batch, three of four stages wait at any moment. With micro-batches that follow each other, several stages work at once, and the waiting is left at both ends. It is called the *bubble*.

## Less memory: 1F1B

More micro-batches make the bubble smaller. But with GPipe a stage holds the activations of all its micro-batches before the first backward begins. *1F1B* (Narayanan et al. 2021, §2.2.1) starts backward as early as possible, and then does one forward and one backward in turn.
"""


# %%
#| export
#| blank one_f_one_b: as many forwards ahead as stages come after this one, at most m
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


# %% [markdown]
r"""
*Predict.* Four stages, eight micro-batches, and backward takes twice as long as forward. For what share of the time is a stage idle in GPipe, and for what share in 1F1B? How many micro-batches' activations does the first stage hold in each?
"""

# %%
predict("21e.2", "idle in 1F1B, 4 stages, 8 micro-batches", guess=None, unit="%")

# %%
SCHEDULES = {"GPipe": gpipe, "1F1B": one_f_one_b}
pictures = {}
for name, schedule in SCHEDULES.items():
    orders = [schedule(s, STAGES, MICRO) for s in range(STAGES)]
    pictures[name] = simulate(orders)
    shares, held = idle(pictures[name]), [most_kept(order) for order in orders]
    print(f"{name:5} idle {', '.join(f'{share:.1%}' for share in shares)}; micro-batches held at most {held}")
answer("21e.2", 100 * shares[0])
show(figures.schedules(pictures), alt="Timetables of GPipe and 1F1B: the same waiting at both ends.")

# %% [markdown]
r"""
The bubble is the same in both, 27.3%. Each of the p stages waits for p − 1 others to begin and to end. With f seconds for a forward and b for a backward that is (p − 1)(f + b) of (m + p − 1)(f + b) seconds, so f and b cancel.

1F1B saves memory. Its first stage holds 4 micro-batches at most, and GPipe's 8: p instead of m. And so it can afford the many micro-batches that make the bubble small.
"""


# %%
#| export
#| blank bubble: stages - 1 steps are lost, and each chunk of each micro-batch is work
def bubble(stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Idle share of a pipeline's time (Huang et al. 2019, §2.3); with interleaved chunks Narayanan et al. 2021, §2.2.2.

    chunks (used in the next section): a stage is cut into so many pieces, and a micro-batch goes around for each.
    """
    return (stages - 1) / (chunks * micro_batches + stages - 1)


# %%
for p in range(1, 9):
    for m in (1, 2, 7, 8, 21):
        for name, schedule in SCHEDULES.items():
            shares = idle(simulate([schedule(s, p, m) for s in range(p)]))
            assert max(abs(x - bubble(p, m)) for x in shares) < 1e-9, f"{name}, {p} stages, {m}: {shares}"
        held = most_kept(gpipe(0, p, m)), most_kept(one_f_one_b(0, p, m))
        assert held == (m, min(p, m)), f"{p} stages hold {held} of {m} micro-batches"
print("1 to 8 stages, 1 to 21 micro-batches: the formula holds for both")

# %% [markdown]
r"""
(This chapter's test lets backward take other times as well.)

## A smaller bubble: interleaving

The bubble is the time that it takes to pass p − 1 stages. Shorter stages make it smaller. *Interleaving* (Narayanan et al. 2021, §2.2.2) gives each rank v short pieces of the model in place of a long one. With two *chunks*, rank 0 has the first layers and some from the middle.
A micro-batch then goes around twice. The bubble is (p − 1)/(vm + p − 1).
"""


# %%
#| export
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


# %%
orders = [interleaved(s, STAGES, MICRO, CHUNKS) for s in range(STAGES)]
spans = simulate(orders, lambda stage, what: usual(stage, what) / CHUNKS)
held = [most_kept(order) / CHUNKS for order in orders]
print(f"{CHUNKS} chunks: idle {idle(spans)[0]:.1%}, formula {bubble(STAGES, MICRO, CHUNKS):.1%}")
print(f"held at most {held}; 1F1B: {[most_kept(one_f_one_b(s, STAGES, MICRO)) for s in range(STAGES)]}")

# %% [markdown]
r"""
Two chunks lower the waiting from 27.3 to 15.8%. It costs messages: a micro-batch crosses pv − 1 borders instead of p − 1, here 7 instead of 3. And it costs memory. More forwards run ahead, and the first stage holds 1 + (p − 1)/(pv) times as much as in 1F1B (Korthikanti et al. 2022): 5.5 micro-batches here instead of 4.

*Predict.* Four stages and four micro-batches are idle for 42.9% of the time. Which brings more, eight micro-batches or two chunks? (The number of
micro-batches must be a multiple of the stages.)
"""

# %% tags=["nbval-ignore-output"]
figures.schedule_widget(interleaved, simulate)

# %% [markdown]
r"""
Both bring the same, 27.3%: the formula has only the product v·m. More micro-batches need a larger batch or shorter rows of it; chunks need memory and
messages.

## Stages that send

Now real ranks. A forward's output goes to the next stage, and its input comes from the stage before. With backward it is the other way round.

In 1F1B two neighbours often send to each other at the same moment, one of them an activation and the other a gradient. If each sent first, and waited until the other receives, both would wait for ever (chapter 21c). So `swap` sends the result of one operation and receives the input of the next one in one batch.
"""

# %%
#| export
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


# %%
everybody = [Ranks(s, s, 3) for s in range(3)]
for op in (("F", 0, 0), ("B", 0, 0)):
    pairs = [f"{neighbour(op, who, FROM)} → {who.rank} → {neighbour(op, who, TO)}" for who in everybody]
    print(op[0], "comes from, runs on, goes to:", ", ".join(pairs))

# %% [markdown]
r"""
The step follows its stage's schedule. It is the step that we did by hand above, once for each micro-batch. `held` keeps the input and the output of each forward until its backward. At the end of the last backward of a micro-batch its entry is gone, so the number of entries is what `most_kept` counts. The micro-batches may have different numbers of targets, so each loss is weighted by its share of them (`target_shares`, chapter 07). Only the last stage knows the loss, and it tells the others.
"""


# %%
#| export
def forward_of(part: GPT, micro_batch: tuple, came: Tensor | None) -> tuple[Tensor, Tensor]:
    """This stage's input, ids or what came, and its output."""
    ids, targets = micro_batch
    x = ids if came is None else came.requires_grad_()
    return x, forward_stage(part, x, targets)


def backward_of(x: Tensor, out: Tensor, came: Tensor) -> Tensor | None:
    """Backward from the gradient of the output that came: the gradient of the input, which goes back."""
    out.backward(came)
    return x.grad


# %%
#| export
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


# %%
#| export
def loss_of_all(loss: Tensor, ranks: Ranks) -> Tensor:
    """The last stage's loss, on all ranks."""
    if ranks.size > 1:
        dist.broadcast(loss, ranks.size - 1)
    return loss


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


# %% [markdown]
r"""
In this kernel there is one stage, which is then the complete model. Its loss over two micro-batches must be that of the whole batch, also where they have unequal numbers of targets:
"""

# %%
targets[1, 3:] = -100  # the second row keeps three targets
alone = stage_of(copy.deepcopy(whole), 0, 1)
loss, _ = pipeline_step(alone, list(zip(ids.split(1), targets.split(1))), Ranks(), one_f_one_b)
expected = whole(ids, targets)[1]
assert abs(loss - expected) < 1e-5, f"the step's loss is {loss:.5f}, that of the batch {expected:.5f}"
print(f"loss of two micro-batches {loss:.3f}, of the whole batch {expected:.3f}")

# %% [markdown]
r"""
## Two processes

The drill trains one small model for a few steps: in one process, in two stages with both schedules, and once wrong on purpose. *Tied not added* leaves each copy of `wte` with its own part of the gradient.
"""


# %%
def report(told):
    """A line a way; the one that is wrong on purpose must be, the others not."""
    for way, found in told.items():
        apart, losses = found["apart"].values(), found["losses"]
        wrong = f"{sum(x > 1e-4 for x in apart)} of {len(apart)} gradients are not those of one process"
        assert (max(apart) > 1e-4) == (way == "tied not added"), f"{way}: {wrong}"
        print(f"{way:14} losses {losses[0]:.3f} to {losses[-1]:.3f}: {wrong}")


names = "drills.pipeline:same", "drills.pipeline:timeline"
torchrun("21e", N, "drill", *names, "--data", DATA, "--out", OUT)
told = json.loads(Path(OUT).read_text())
report(told["drills.pipeline:same"])

# %% [markdown]
r"""
The right ones differ from one process by rounding, because the tied gradient comes in two parts. The wrong one is quiet. Its first loss is right, all other gradients are right, and its loss falls. At the end it is even the lowest, 6.065 against 6.066: a lower loss proves nothing. To find the mistake, compare `wte` at both ends.

Now the time, as measured. The formula assumes that all stages are equally slow and that sending is free. Neither is so here: the last stage has the head and the loss, and these are small operations. Which of the two matters? The simulator can tell. We give it the seconds that the operations really took, and it lets the messages be free:
"""

# %% tags=["nbval-ignore-output"]
spans = told["drills.pipeline:timeline"]["spans"]
m = len(spans[0]) // 2


def typical(stage: int, what: str) -> float:
    """The median of the measured seconds of a stage's forwards or backwards."""
    return median(end - start for kind, _, _, start, end in spans[stage] if kind == what)


free = simulate([one_f_one_b(s, N, m) for s in range(N)], typical)
for s in range(N):
    print(
        f"stage {s}: a forward takes {1e3 * typical(s, 'F'):.1f} ms, a backward {1e3 * typical(s, 'B'):.1f} ms"
    )
for name, found in {"measured": spans, "the same, messages free": free}.items():
    end, begin = max(stage[-1][-1] for stage in found), min(stage[0][-2] for stage in found)
    waiting = ", ".join(f"{share:.0%}" for share in idle(found))
    print(f"{name:24} {1e3 * (end - begin):.0f} ms, idle {waiting}")
print(f"the formula, for equal stages: idle {bubble(N, m):.0%}")
pictures = {"measured": spans, "the same operations, messages free": free}
show(
    figures.schedules(pictures, "seconds"),
    alt="Two stages in turn: with gaps between all operations as measured, and without when messages are free.",
)

# %% [markdown]
r"""
With free messages the same operations would be done in much less time. The slower stage would then wait for about as long as the formula says, and the faster one for longer, because it waits for the slower one as well. All the rest is handing over: an operation takes a millisecond or two, and to wake
the other process takes about as long.

If that is so, the formula must come out where operations are long against a message. The drill `long` makes them long: a model twice as wide, and micro-batches of 8 rows of 128 tokens in place of one row of 64.
"""

# %% tags=["nbval-ignore-output"]
torchrun("21e", N, "drill", "drills.pipeline:long", "--data", DATA, "--out", OUT)
spans = json.loads(Path(OUT).read_text())["drills.pipeline:long"]["spans"]
free = simulate([one_f_one_b(s, N, m) for s in range(N)], typical)
for s in range(N):
    print(
        f"stage {s}: a forward takes {1e3 * typical(s, 'F'):.0f} ms, a backward {1e3 * typical(s, 'B'):.0f} ms"
    )
for name, found in {"measured": spans, "the same, messages free": free}.items():
    print(f"{name:24} idle {', '.join(f'{share:.0%}' for share in idle(found))}")

# %% [markdown]
r"""
Now both lines say nearly the same: handing over no longer counts. What is left of the waiting is the bubble, and the difference between the stages.

## Where a pipeline belongs

At each border a micro-batch sends one activation (B, T, C) forward and one gradient back. Tensor parallelism (chapter 21b) adds up such a tensor four times in *each layer*: for the 96 layers of GPT-3 these are 384 sums, against two messages. That is why large runs keep tensor
parallelism inside a machine and let pipelines cross from one machine to the next (Narayanan et al. 2021, §3).

Newer schedules fill the bubble. In *zero bubble* (Qi et al. 2023) a backward is cut into two operations. The gradient of the input comes first, since the stage before waits for it. The gradients of the weights, for which nobody waits, are computed when there would be nothing to do. *DualPipe* (DeepSeek-AI 2024) feeds
micro-batches into the pipeline from both ends.

Here pipelines are for study only: the configuration of chapter 21d has no word for them.
"""

# %% [markdown]
r"""
## Appendix: the drills
"""

# %%
#| export labs.drills.pipeline
from functools import partial

from nanogpt.distributed import Ranks, gathered
from nanogpt.labs.drills.ddp import fresh, masked
from nanogpt.labs.drills.ring import compared

# %%
#| export labs.drills.pipeline
WAYS = {"1F1B": one_f_one_b, "GPipe": gpipe, "tied not added": one_f_one_b}


def trained_in_stages(way: str, ranks: Ranks, data: str, steps: int) -> tuple[list[float], dict]:
    """Losses of some steps and the first gradients of all stages, by name."""
    model, optimizer, stream = fresh(Ranks(device=ranks.device), data)
    part, losses, first = stage_of(model, ranks.rank, ranks.size), [], {}
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(pipeline_step(part, masked(stream), ranks, WAYS[way])[0].item())
        if way != "tied not added":
            add_tied(part, ranks)
        first = first or {name: p.grad.to("cpu", copy=True) for name, p in part.named_parameters()}
        optimizer.step()
    return losses, {name: grad for stage in gathered(ranks, first) for name, grad in stage.items()}


# %%
#| export labs.drills.pipeline
def timeline(ranks: Ranks, data: str, steps: int = 8, **shape) -> dict:
    """When which operation ran in each stage, in the fastest of some steps of 8 micro-batches: seconds on this machine's clock.

    shape: rows of a batch and sizes of the model, as `fresh` takes them.
    """
    model, _, stream = fresh(Ranks(device=ranks.device), data, **shape)
    part, runs = stage_of(model, ranks.rank, ranks.size), []
    for _ in range(steps):
        x, y = stream.next_batch()
        micro_batches = list(zip(x.chunk(8), y.chunk(8)))
        runs.append(gathered(ranks, pipeline_step(part, micro_batches, ranks, one_f_one_b)[1]))

    def length(spans):
        return max(stage[-1][-1] for stage in spans) - min(stage[0][-2] for stage in spans)

    return {"spans": min(runs, key=length)}


LONG = partial(timeline, steps=4, rows=64, block_size=128, n_embd=256)
SAME = partial(compared, ways=WAYS, trained=trained_in_stages)
DRILLS = {"same": SAME, "timeline": timeline, "long": LONG}

# %% tags=["nbval-ignore-output"]
predictions("21e")

# %%
checkpoint("21e")

# %% [markdown]
r"""
## Exercises

1. *A slow stage.* Give `simulate` a last stage that takes twice as long. *Check:* for many micro-batches the idle share of the others tends to one half; what would you move?
2. *Blocking.* Let `swap` call `dist.send` first and `dist.recv` afterwards, and run `drill drills.pipeline:same --seconds 5` under torchrun. *Check:* does it end with gloo, for small rows and for large ones? NCCL's send is allowed to wait for the other's receive (nccl#784).
3. *Recomputing.* Let each stage keep only its input and compute its forward again in backward (chapter 21's `recompute_blocks`). How long is a backward then, and what is the bubble? *Check:* `simulate` with these seconds; the formula does not change.

## Further reading

- Qi et al. 2023, [*Zero Bubble Pipeline Parallelism*](https://arxiv.org/abs/2401.10241): the bubble filled with the gradients of weights. DeepSeek-AI 2024, [*DeepSeek-V3 Technical Report*](https://arxiv.org/abs/2412.19437), §3.2.1.
- Huang et al. 2019, [*GPipe*](https://arxiv.org/abs/1811.06965), §2. Narayanan et al. 2019, [*PipeDream*](https://doi.org/10.1145/3341301.3359646): 1F1B without a flush, and the stale weights that it costs.
- Narayanan et al. 2021, [*Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*](https://arxiv.org/abs/2104.04473), §2.2: 1F1B and interleaving.
- Korthikanti et al. 2022, [*Reducing Activation Recomputation in Large Transformer Models*](https://arxiv.org/abs/2205.05198): what interleaving keeps.
"""
