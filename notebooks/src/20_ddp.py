# %% [markdown]
r"""
# 20 · DDP: many processes, one step

Training GPT-2 on one GPU takes weeks. With thirty GPUs it could take a day, if they could share the work. Data parallelism is the
simplest way to share it. Every process keeps a full copy of the model and works on its own part of the batch. Before
the optimizer makes its update, all processes agree on one gradient. Nothing else is shared.

In this chapter you build data parallelism yourself. You start with a loop of four lines that works. Then you make it
faster, one step at a time: one message in place of many, messages that leave while backward still computes, and finally
buckets. At the end you have what PyTorch calls `DistributedDataParallel`, and you can prove that it is the same.

There is one law that every version must obey: more processes change the *time* of a step and nothing else. The losses must be those of one
process, except for rounding. We check it after each change.

All of it runs on a laptop. PyTorch's *gloo* library carries tensors between processes on CPUs, as NCCL does between GPUs. Whatever
was measured here was measured on gloo; what the chapter says about NCCL and GPUs names its source.
"""

# %%
#| default_exp distributed
#| doc distributed: Many processes as one: who this one is, its group, DDP, and a clear end when one is lost.
#| doc labs.parallel.lost: What a group of ranks needs where some die: a name for each life, and who is missing.
#| doc labs.parallel.agreement: Whether several ranks do the same run: their code, data, configuration and checkpoint.
#| doc labs.parallel.buckets: Gradients averaged by hand: one by one, all in one message, in buckets while backward still computes; and a ring.
#| doc labs.drills.ddp: A model, its rows and checks for several processes; and the command `drill`, under torchrun.
import tempfile
from pathlib import Path

import numpy as np

from course.figures import ddp as figures
from course.figures.local_ranks import local_ranks
from course.figures.processes import Processes
from course.notebook import answer, as_module, checkpoint, grown, predict, predictions, show
from course.torchrun import torchrun_script
from nanogpt.precision import LossScaler, autocast, tf32_switch
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.shards import describe_shards, open_shards, permutation, read_shard, write_shard

DATA = "../data/built/stories"
N, LOCAL = 2, 4  # processes, for which a laptop has two cores; ranks inside this kernel
_ = ensure_corpus(DATA)

# %%
#| export
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

# %% [markdown]
r"""
## Four ranks in one kernel

Processes that work together form a *group*. Each process has a number in it, from 0 on, its *rank*. Ranks talk by *collectives*: calls
that every rank makes at the same place in its program, each with its own tensor. Let us look at collectives before we start any process.
PyTorch can imitate a group inside this kernel: a tensor then holds one value for each rank, and `print` shows all of them. In the cell below,
`local_ranks(4)` begins such an imitation. It gives us `ranked`, a helper: `ranked(f)` makes a tensor that has the value `f(rank)` on each rank.

Two collectives carry this chapter. `broadcast` sends one rank's tensor to all others; this is how all copies of a model get the same first
weights. `all_reduce` adds up the tensors of all ranks, and every rank gets the sum.
"""

# %%
with local_ranks(LOCAL) as ranked:
    x = ranked(lambda rank: torch.arange(3) + 10.0 * rank)
    y = x.clone()
    print("before:", x, sep="\n")
    dist.broadcast(x, src=0)
    print("after broadcast from rank 0:", x, sep="\n")
    dist.all_reduce(y)
    print("after all_reduce:", y, sep="\n")

# %% [markdown]
r"""
Check one number by hand. The first entries were 0, 10, 20 and 30, and their sum is 60.

Now data parallelism in small. The model is one layer with 16 inputs and 4 outputs, and its loss is the mean of the squared outputs. The batch has 8 rows, and each of the 4 ranks gets
two of them. Each rank computes the gradient of the mean loss of its own rows. The mean of the four gradients must be the
gradient of the whole batch, because all ranks have the same number of rows.

We need two more helpers. `ranked.counted()` notes each collective and the bytes of the tensor that a rank passes to it. `ranked.same(x)` checks that x
is equal on all ranks, and returns it as a plain tensor.

*Predict.* The layer has 16 × 4 weights and 4 biases in float32. After backward, each gradient is all-reduced. How many bytes does each
rank put into the two collectives together?
"""

# %%
predict("20.1", "bytes that a rank puts in", guess=None)

# %%
layer = nn.Linear(16, 4)
batch = torch.randn(2 * LOCAL, layer.in_features, generator=torch.Generator().manual_seed(0))
loss = layer(batch).square().mean()
whole = torch.autograd.grad(loss, list(layer.parameters()))  # the gradient of the whole batch
with local_ranks(LOCAL) as ranked:
    mine = ranked(lambda rank: batch.chunk(LOCAL)[rank].clone())
    layer(mine).square().mean().backward()
    with ranked.counted() as calls:
        for p in layer.parameters():
            dist.all_reduce(p.grad)
            p.grad /= LOCAL
    for p, gradient in zip(layer.parameters(), whole):
        apart = (ranked.same(p.grad) - gradient).abs().max().item()
        assert apart < 1e-6, f"the averaged gradient differs from the batch's by {apart:.1e}"
total = sum(nbytes for _, nbytes in calls)
print(f"{len(calls)} all-reduces of {total} bytes give the gradient of the whole batch")
answer("20.1", total)

# %% [markdown]
r"""
Four bytes for each parameter, in every step, however large the batch. For GPT-2 that is half a gigabyte. On a slow network it takes longer than
the computing. Most of this chapter is about making it cheap.

The imitation has limits. One thread makes all calls for all ranks, so it shows *what each rank holds*. It cannot show order: no rank is ever
early or late. It cannot show time. And it cannot get stuck, as real ranks do when one waits for a message that
nobody sends. For these we need real processes.

## Two processes, one model

`torchrun` starts the processes. It tells each one who it is by environment variables: `RANK` is its number among all, `LOCAL_RANK` its number on
this machine, which is also the number of its GPU, and `WORLD_SIZE` is how many there are. `Ranks` holds these, and one
helper: the mean of a tensor over all ranks.
"""


# %%
#| export
@dataclass(frozen=True)
class Ranks:
    """Who this process is among `size` that work together; one alone unless torchrun has started it."""

    rank: int = 0
    local_rank: int = 0  # on its own machine
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def mean(self, x: Tensor) -> Tensor:
        """The mean over all ranks in float32; x itself if there is one. Older gloo has no average: a sum, divided."""
        if self.size == 1:
            return x
        total = x.detach().to(torch.float32, copy=True)
        dist.all_reduce(total)
        return total / self.size


# %% [markdown]
r"""
`torchrun_ranks()` reads the environment and returns these `Ranks`; its code is at the end of the chapter. The heart of data parallelism is four lines. After backward, each gradient is replaced by its mean over all processes.
"""


# %%
#| export labs.parallel.buckets
#| blank average_gradients: sum each gradient over the ranks, then divide by their number
def average_gradients(model: nn.Module, ranks: Ranks) -> None:
    """Data parallelism by hand: after backward, each gradient becomes its mean over all ranks, in place.

    A parameter without a gradient is left out.
    """
    for p in model.parameters():
        if p.grad is not None:
            dist.all_reduce(p.grad)
            p.grad /= ranks.size


# %% [markdown]
r"""
Why the mean? The loss of a batch is an average over its rows. If both processes have the same number of rows, the average of their two
gradients is the gradient of the whole batch, as if one process had seen all the rows. (`all_reduce` can also be asked for the mean itself, `ReduceOp.AVG`. NCCL knows it, and gloo in PyTorch 2.13. A sum that is divided works with every version.)
"""

# %% [markdown]
r"""
Here is a complete training script. Compare it with chapter 07's loop. Three things are new: the process asks who it is, it keeps its own half of each
batch, and it averages the gradients before the optimizer uses them. (Every process reads the same batch, so the halves fit together.) `init_process_group` lets the processes meet: by NCCL if they have GPUs, else by gloo. To have something to compare with, each process first trains once
by itself on all rows, as one of one.
"""

# %% tags=["nbval-ignore-output"]
# %%writefile ../data/built/average.py
import sys

import torch
import torch.distributed as dist

from nanogpt.data import DocumentStream
from nanogpt.distributed import Ranks, torchrun_ranks
from nanogpt.labs.parallel.buckets import average_gradients
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import describe_shards, open_shards

shards = open_shards(sys.argv[1], "train")
config = GPTConfig(block_size=64, vocab_size=describe_shards(shards)[0], n_layer=2, n_head=4, n_embd=128)


def train(ranks: Ranks, rows: int = 8, steps: int = 10) -> list[float]:
    model = GPT(config, torch.Generator().manual_seed(0)).to(ranks.device)  # the same weights everywhere
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stream = DocumentStream(shards, rows, config.block_size, device=ranks.device)  # the same rows everywhere
    losses = []
    for _ in range(steps):
        x, y = stream.next_batch()
        x, y = x.chunk(ranks.size)[ranks.rank], y.chunk(ranks.size)[ranks.rank]  # this rank's part
        loss = model(x, y)[1]
        optimizer.zero_grad()
        loss.backward()
        if ranks.size > 1:
            average_gradients(model, ranks)
        optimizer.step()
        losses.append(ranks.mean(loss).item())
    return losses


ranks = torchrun_ranks()
dist.init_process_group("nccl" if ranks.device.type == "cuda" else "gloo")
pairs = list(zip(train(Ranks(device=ranks.device)), train(ranks)))
if ranks.rank == 0:  # once, not once a rank
    for step, (one, many) in enumerate(pairs, 1):
        print(f"step {step:2}: one process {one:.4f}, {ranks.size} processes {many:.4f}")
    print(f"largest difference: {max(abs(one - many) for one, many in pairs):.1e} nats")
dist.destroy_process_group()

# %% [markdown]
r"""
*Predict.* How far apart are the two losses at most: 0.1, 0.001, or less than a hundred-thousandth?
"""

# %%
predict("20.2", "largest difference of a loss", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
said = torchrun_script("20", N, "../data/built/average.py", DATA)
apart = float(said.split("difference:")[1].split()[0])
assert apart < 1e-4, f"with {N} processes the losses are {apart} nats away from one process's"
answer("20.2", apart)

# %% [markdown]
r"""
The two runs are the same run. The last digits differ because floating-point sums depend on the order of the terms: two ranks
add their own rows first, and one process adds all of them in a row. Keep this experiment in mind. Every version below must pass it.

## Rows for each rank

One thing in the script is wasteful. Every process reads the complete batch and throws the rows of the others away; of 64 processes, each would read 64 times what it needs. So each rank should read its own rows only. It is a common mistake that each rank then decides for itself when to open the next shard. If two ranks decide differently,
some tokens are read twice and others never. Our ranks decide nothing. All of them have the same stream, chapter 03's, and `position` counts what they have taken
together. A step takes the next `world_size * B * T` tokens, and rank r takes the r-th part of them, counted from 0. (A `DocumentStream` counts rows in the same way.) Two methods of `BatchStream` grow, and one of `DocumentStream`,
which we write in full, because it is made from the new `BatchStream`.
"""

# %%
from nanogpt.data import BatchStream


# %%
#| export data
#| grows BatchStream.__init__ BatchStream.rows
class BatchStream(BatchStream):
    def __init__(self, shards, B: int, T: int, rank=0, world_size=1, seed=0, device="cpu"):
        if min(B, T) < 1 or rank not in range(world_size):
            raise ValueError(f"a stream needs B, T >= 1, 0 <= rank < world_size: {B, T, rank, world_size}")
        self.B, self.T, self.rank, self.world_size = B, T, rank, world_size
        self.seed, self.device = seed, device
        self.position = 0  # what all ranks together have consumed
        self.paths = sorted(map(Path, shards))
        self.vocab_size, self.eot = describe_shards(self.paths)[:2]
        self.tokens = [np.asarray(read_shard(path)) for path in self.paths]
        self.epoch_length = sum(map(len, self.tokens))
        self._shuffled = {}

    def rows(self) -> np.ndarray:  # (B, T + 1): the last token of each is the first of the next
        n = self.B * self.T  # a rank's tokens
        step = n * self.world_size
        if self.epoch_length <= step:
            length = f"{self.epoch_length:,} tokens"
            raise ValueError(f"{length}, but a step takes {step:,} + 1; lower B or T, or add text")
        tokens = self.read(self.position + self.rank * n, n + 1)
        self.position += step
        return np.stack([tokens[at : at + self.T + 1] for at in range(0, n, self.T)])


# %%
#| export data
#| grows DocumentStream
class DocumentStream(BatchStream):
    """Batches whose rows each begin with a document and run on into the next. Each begins one row an epoch."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        starts = [np.flatnonzero(tokens == self.eot) for tokens in self.tokens]
        self.starts = np.concatenate(starts)
        self.ends = np.cumsum([len(places) for places in starts])
        self.epoch_length = len(self.starts)

    def rows(self) -> np.ndarray:
        rows = []
        first = self.position + self.rank * self.B
        for n in range(first, first + self.B):
            # the document that begins row n of the stream
            epoch, number = divmod(n, self.epoch_length)
            if (self.seed, epoch) not in self._shuffled:
                self._shuffled = {(self.seed, epoch): permutation(self.epoch_length, self.seed, epoch)}
            document = self._shuffled[self.seed, epoch][number]
            # its tokens and what follows
            tokens = self.tokens[np.searchsorted(self.ends, document, side="right")]
            if len(tokens) <= self.T:
                length = f"{len(tokens)} tokens"
                raise ValueError(f"{length}, but a row takes {self.T} + 1; lower T, or add text")
            rows.append(tokens.take(self.starts[document] + np.arange(self.T + 1), mode="wrap"))
        self.position += self.world_size * self.B
        return np.stack(rows)

    def state_dict(self) -> dict:
        return BatchStream.state_dict(self) | {"counts": "rows"}  # its position is a number of rows


# %%
as_module("data")
grown("DocumentStream")

# %% [markdown]
r"""
*Check.* Chapter 03's law holds on several ranks: in every epoch each token is an input exactly once. The text has 6,500 tokens in two shards, all different, and the
size of a batch does not divide their number. One rank reads 15 rows a step, three ranks read 5 each.
"""

# %%
SIZE, READERS = 6_500, 3
with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    law = [Path(folder) / f"train_{i:06d}.bin" for i in range(2)]
    for path, numbers in zip(law, np.split(np.arange(SIZE), [3 * SIZE // 5])):
        write_shard(path, numbers)
    alone = BatchStream(law, 15, 77)
    streams, seen = [BatchStream(law, 5, 77, rank, READERS) for rank in range(READERS)], []
    while alone.epoch < 2:
        step = torch.cat([stream.next_batch()[0] for stream in streams])
        assert torch.equal(step, alone.next_batch()[0]), "several ranks read other tokens than one"
        seen += step.flatten().tolist()
for epoch in (seen[:SIZE], seen[SIZE : 2 * SIZE]):
    assert sorted(epoch) == list(range(SIZE)), "a token was read twice, or never"
print(f"two epochs of {SIZE:,} tokens on {READERS} ranks: each token was an input once an epoch")

stories = open_shards(DATA, "train")  # a DocumentStream counts rows in place of tokens
alone = DocumentStream(stories, 15, 77)
streams = [DocumentStream(stories, 5, 77, rank, READERS) for rank in range(READERS)]
for _ in range(20):
    step = torch.cat([stream.next_batch()[0] for stream in streams])
    assert torch.equal(step, alone.next_batch()[0]), "several ranks read other rows than one"
print(f"20 steps of rows that begin with a story: {READERS} ranks read what one reads")

# %% [markdown]
r"""
So the same batch has the same tokens on 1, 2 or 4 ranks, and a run saved by 4 can go on with 1. `my_rows` gives a stream the arguments for that.
"""


# %%
#| export labs.parallel.buckets
def my_rows(B: int, ranks: Ranks) -> dict:
    """For a stream whose batches have B rows over all ranks: the arguments B, rank and world_size of this one."""
    if B % ranks.size:
        raise ValueError(f"{B} rows cannot be dealt to {ranks.size} ranks; take a multiple of {ranks.size}")
    return {"B": B // ranks.size, "rank": ranks.rank, "world_size": ranks.size}


# %%
for rank in range(N):
    print(f"rank {rank} of {N}:", my_rows(8, Ranks(rank, rank, N)))

# %% [markdown]
r"""
## Two processes that wait

So far an experiment starts processes of its own, which takes some seconds. From here on we need two processes often. `Processes` starts them once, and they wait for orders. `two("hello")` lets both call the function `hello(ranks)` at the same time, and returns what
rank 0 returned. They use this notebook's cells as you have run them last. We call such functions *drills*, and they go into a module of their own, `nanogpt/labs/drills/ddp.py`.
"""

# %%
#| export labs.drills.ddp
import torch

from nanogpt.data import DocumentStream
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.shards import describe_shards, open_shards
from nanogpt.training import scale_init

SHAPE = {"n_layer": 2, "n_head": 8, "n_embd": 128, "block_size": 64}
ROWS, SEED, LR = 8, 0, 2e-3


def hello(ranks: Ranks, data: str | None = None) -> None:
    """Each rank says who it is."""
    print(f"rank {ranks.rank} of {ranks.size}, local rank {ranks.local_rank}, on {ranks.device}", flush=True)


# %% tags=["nbval-ignore-output"]
two = Processes("20", N, "drills.ddp")
two("hello")

# %% [markdown]
r"""
All drills train the same small model. `fresh` makes it, with its optimizer and a stream of this rank's rows:
"""


# %%
#| export labs.drills.ddp
def fresh(ranks: Ranks, data: str, rows: int = ROWS, **shape):
    """A model, its optimizer and a stream of this rank's part of `rows` rows: on all ranks the same weights.

    shape: what differs from SHAPE.
    """
    shards = open_shards(data, "train")
    shape = GPTConfig(**SHAPE | shape, vocab_size=describe_shards(shards)[0])
    model = scale_init(GPT(shape, torch.Generator().manual_seed(SEED))).to(ranks.device)
    stream = DocumentStream(shards, T=shape.block_size, device=ranks.device, **my_rows(rows, ranks))
    return model, make_optimizer(model, LR), stream


# %%
model, _, stream = fresh(Ranks(), DATA)
sizes = sorted(p.numel() for p in model.parameters())
print(f"{len(sizes)} parameters with {sizes[0]} to {sizes[-1]:,} numbers, {sum(sizes):,} in all")

# %% [markdown]
r"""
## One message in place of many

The loop works. Where does its time go? It sends a message for each parameter, one after the other, and each message has a fixed cost: two
processes must meet. Our model has 28 parameters, most of them small. The next version copies all gradients into one flat buffer, averages
the buffer, and copies the means back.
"""

# %%
#| export labs.parallel.buckets
import torch
import torch.distributed as dist
from torch import Tensor, nn


def average_flat(model: nn.Module, ranks: Ranks) -> None:
    """The same mean as average_gradients, in one message: by a buffer that holds all gradients one after the other."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    flat /= ranks.size
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(part.view_as(gradient))


# %% [markdown]
r"""
How do we judge a version? The drill `same_as_one` trains it and one process side by side, on the same rows. It returns how far the losses and the first gradients are apart. It
also counts the messages of a step with PyTorch's profiler, which lists every collective by name (here `gloo:all_reduce`). On NVIDIA's GPUs, `nsys profile` from Nsight Systems records a timeline of kernels and collectives; no run of this course has used it. This and the other instruments of this chapter are in
`course/figures/data_parallel.py`. There each version has a name: "loop" is `average_gradients`, and "flat" is `average_flat`.
"""


# %%
def check(version: str) -> None:
    found = two("same_as_one", DATA, version)
    assert found["losses"] < 1e-4, f"{version}: a loss is {found['losses']} nats away from one process's"
    assert found["gradient"] < 1e-5, f"{version}: the gradient is {found['gradient']:.1e} of its length away"
    print(f"{version}: {found['messages']} messages a step; losses and gradient of one process")


check("loop")
check("flat")

# %% [markdown]
r"""
Now the clock. `timed` lets the versions take turns, step by step, so that whatever else the machine does slows all of them alike.

*Predict.* How many per cent of the loop's step does `flat` save?
"""


# %%
predict("20.3", "flat saves of the loop's step", guess=None, unit="%")

# %% tags=["nbval-ignore-output"]
ms = two("timed", DATA, "nobody averages", "loop", "flat")
for version, took in ms.items():
    print(f"{version:16} {took:5.1f} ms a step")
answer("20.3", 100 * (1 - ms["flat"] / ms["loop"]))

# %% [markdown]
r"""
The first line is the time of computing alone, on half the rows; there no rank waits for the other. What the others take beyond it is the price of averaging:
the messages, the copies, and the time in which a rank waits for the slower one. The loop pays several times as much as one message, although the bytes are the same. So the bytes cannot be the reason: what `flat` saves is the fixed cost of 27 messages. Divide the difference of the lines *loop* and *flat* by 27: each message costs of the order of a millisecond, nearly all of it for meeting.

## A hook for each parameter

Both versions wait until backward is done, and only then start to send. But backward computes gradients one layer after another. The gradient of the last layer is
ready long before that of the first. It could travel while backward goes on.

PyTorch tells us when a gradient is ready: `register_post_accumulate_grad_hook` takes a function that is called with the parameter as soon as its gradient is complete. Let us
first look at the order, in this kernel:
"""

# %%
names = {p: name for name, p in model.named_parameters()}
ready = []
for p in model.parameters():
    p.register_post_accumulate_grad_hook(lambda p: ready.append(names[p]))
model(*stream.next_batch())[1].backward()
print(f"{len(ready)} gradients; first {', '.join(ready[:3])}")
print("last", ", ".join(ready[-3:]))

# %% [markdown]
r"""
Backward begins at the end of the model, so `ln_f` is ready first. Look at the last one: `transformer.wte.weight` is used twice, at the model's end as the head and at its beginning as
the table of tokens (chapter 05). Its gradient is complete only when the beginning has been reached. It is also the largest single gradient.

`async_op=True` is the second thing that we need. The all-reduce then returns at once, with an object whose `wait()` waits for the result. So each hook starts its own message, and
after backward we wait for all of them.
"""


# %%
#| export labs.parallel.buckets
#| blank EagerAverage.send: start an asynchronous all-reduce of p.grad, and remember the parameter and the work
class EagerAverage:
    """Averages each gradient by a message of its own, which starts the moment the gradient is ready."""

    def __init__(self, model: nn.Module, ranks: Ranks):
        self.size, self.sent = ranks.size, []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.send)

    def send(self, p: Tensor) -> None:
        work = dist.all_reduce(p.grad, async_op=True)
        self.sent.append((p, work))

    def wait(self) -> None:
        """After backward: from here on gradients are means."""
        for p, work in self.sent:
            work.wait()
            p.grad /= self.size
        self.sent.clear()


# %%
check("a hook each")

# %% [markdown]
r"""
The result is right. One thing must hold for that: all ranks must start their all-reduces in the same order, since the first message of one rank meets the first message
of the other. All ranks run the same program on rows of the same shape, so their backward passes go through the same layers in the same order.

## Buckets

Now messages leave early, but there are many again. The remedy combines both ideas. Gradients that become ready one after the other share a *bucket*, a flat buffer. When the last
gradient of a bucket is ready, the bucket is sent. (A published log of Megatron-LM lists one single bucket of 124,082,688 numbers, which is its complete GPT-2. `overlap_grad_reduce` is False in that run, so its message leaves after backward in any case.)

`in_buckets` decides which parameters share one. It takes them in the reverse of the model's order, which is about the order of backward, and fills one bucket after the other up to a
size.
"""


# %%
#| export labs.parallel.buckets
def in_buckets(parameters: list[Tensor], cap: float) -> list[list[Tensor]]:
    """Neighbours together, as long as they have at most `cap` bytes; a larger parameter has a bucket of its own."""
    buckets, room = [], 0.0
    for p in parameters:
        if not buckets or p.nbytes > room:
            buckets.append([])
            room = cap
        buckets[-1].append(p)
        room -= p.nbytes
    return buckets


# %%
for number, bucket in enumerate(in_buckets([*model.parameters()][::-1], cap=0.5e6), 1):
    size = sum(p.nbytes for p in bucket) / 1e6
    first, last = names[bucket[0]], names[bucket[-1]]
    print(f"bucket {number}: {len(bucket):2} gradients, {size:.2f} MB, {first} to {last}")

# %% [markdown]
r"""
A bucket counts how many of its gradients are missing. Each hook takes one off. At zero, the bucket copies its gradients into the buffer and sends it. `finish` waits for the message and
copies the means back.

Two mistakes would go unnoticed, so both raise a RuntimeError. If a second backward pass begins before `wait`, the gradients of the first are already on their way: `ready` refuses that. And if a
parameter gets no gradient, its bucket is never full.
"""


# %%
#| export labs.parallel.buckets
#| blank Bucket.ready: one gradient less is missing; with none missing, fill the buffer and send it
class Bucket:
    """Parameters whose gradients travel in one message. send(buffer) starts a sum over all ranks; it returns the work."""

    def __init__(self, parameters: list[Tensor], send):
        self.parameters, self.send = parameters, send
        self.sizes = [p.numel() for p in parameters]
        self.buffer = parameters[0].new_zeros(sum(self.sizes))
        self.missing, self.work = len(parameters), None

    def ready(self, p: Tensor) -> None:
        """p's gradient is complete; the last one of the bucket sends it, and `work` is what send returns.

        RuntimeError if the bucket is on its way already: wait() must be called after each backward pass.
        """
        if self.work is not None:
            raise RuntimeError("a bucket is on its way already: call wait() after each backward pass")
        self.missing -= 1
        if self.missing == 0:
            torch.cat([each.grad.flatten() for each in self.parameters], out=self.buffer)
            self.work = self.send(self.buffer)


# %%
#| export labs.parallel.buckets
class Bucket(Bucket):
    def finish(self, size: int) -> None:
        """Wait for the sum; the parameters' gradients become means over `size` ranks."""
        if self.work is None:
            raise RuntimeError(f"{self.missing} parameters of a bucket got no gradient, so it was not sent")
        self.work.wait()
        self.buffer /= size
        for p, part in zip(self.parameters, self.buffer.split(self.sizes)):
            p.grad.copy_(part.view_as(p))
        self.missing, self.work = len(self.parameters), None


# %%
#| export labs.parallel.buckets
class Buckets:
    """Averages a model's gradients over all ranks while backward computes: in buckets of at most `cap` bytes.

    Call wait() after each backward pass. send: as for Bucket; an asynchronous all-reduce if not given.
    """

    def __init__(self, model: nn.Module, ranks: Ranks, cap: float = 25e6, send=None):
        self.size, last_first = ranks.size, list(model.parameters())[::-1]
        self.buckets = [Bucket(part, send or start_sum) for part in in_buckets(last_first, cap)]
        for bucket in self.buckets:
            for p in bucket.parameters:
                p.register_post_accumulate_grad_hook(bucket.ready)

    def wait(self) -> None:
        """After backward: from here on gradients are means."""
        for bucket in self.buckets:
            bucket.finish(self.size)


def start_sum(x: Tensor) -> dist.Work:
    """Begin to sum x over all ranks, in place."""
    return dist.all_reduce(x, async_op=True)


# %%
check("one bucket")
check("buckets")

# %% [markdown]
r"""
## DistributedDataParallel

You have just built the core of PyTorch's `DistributedDataParallel`, DDP for short (Li et al. 2020, §3 and §4). It wraps a model. At the start it broadcasts rank 0's weights, so that all copies begin alike. Then it does
what `Buckets` does: a hook for each parameter, buckets in the reverse of the model's order, an asynchronous all-reduce for each full bucket. It needs no `wait()`, because it
adds one more function at the very end of backward that does it.

The model itself is inside, as `.module`. Whoever saves the wrapper's `state_dict` has `module.` before every name.
"""


# %%
#| export
def replicate(model: nn.Module, ranks: Ranks, **options) -> nn.Module:
    """The model in DistributedDataParallel, which holds it as `.module`; the model itself for one process.

    All ranks begin with rank 0's weights. options: DistributedDataParallel's, such as bucket_cap_mb.
    """
    if ranks.size == 1:
        return model
    gpu = [ranks.device.index] if ranks.device.type == "cuda" else None
    return DistributedDataParallel(model, device_ids=gpu, **options)


# %%
check("DDP")
found = two("beside_ddp", DATA)
assert found["apart"] < 1e-6, f"DDP's gradient is {found['apart']:.1e} away from ours"
print(f"on {N} ranks, DDP's gradient equals ours bit for bit: {found['equal']}")

# %% [markdown]
r"""
With two ranks each entry of the mean is (a + b)/2, and there is only one way to round that. On more ranks the order of the sum matters, and the two agree to rounding.

Our cap and DDP's are the same number of bytes, and still the numbers of messages differ: DDP closes a bucket once it has reached the cap, and ours just before. If you give no cap, DDP's is 25 MB, and its first bucket has 1 MB only, so that
something is on its way soon. DDP also learns: during the first step it watches in which order gradients really become ready, and then cuts its buckets anew in this order. Its log
says so once (`TORCH_LOGS=ddp`, `Reducer buckets have been rebuilt in this iteration`).

DDP keeps every gradient twice, once in `.grad` and once in a bucket, exactly as ours does. With `gradient_as_bucket_view=True`, each `.grad` becomes a view of its place in the bucket. No
copy is needed, in either direction, and the memory of one set of gradients is saved. `gradient_bytes` counts the storage behind all gradients and all buckets, each piece of memory once.
"""


# %%
weights = sum(p.nbytes for p in model.parameters())
print(f"weights {weights / 1e6:.2f} MB")
for as_view in (False, True):
    held = two("gradient_bytes", DATA, as_view)
    print(f"gradient_as_bucket_view={as_view}: gradients and buckets {held / 1e6:.2f} MB")

# %% [markdown]
r"""
For GPT-2's 124 million parameters the option saves half a gigabyte on each GPU. There is a small price: `detach_()` cannot be called on a gradient that is a view (PyTorch's documentation of DDP).

## All versions on one clock

*Predict.* Order the versions by time before you run the cell. Which is fastest on your machine?
"""


# %% tags=["nbval-ignore-output"]
print(two("table_text", DATA))

# %% [markdown]
r"""
Read the column *averaging*. The versions with few messages pay a fraction of what the two with 28 pay, and to send 28 messages early does not make up for their number. Among the four with one to six messages the differences are small. Here "one bucket" is the fastest of them and `flat`, the simplest, is close to it; run the cell again, and their order may change.

So does overlap help? "one bucket" sends everything at the end of backward, and "buckets" differs from it in one number, the cap. The second is no faster here. To understand this, we
look at one step on a time axis. `timeline` trains a deeper model, of six layers, so that backward has more stages. It shows the fastest of ten steps. It gives the buckets a network of our own making: a thread that carries one message at a time, by `all_reduce`, and notes when.

First with gloo as it is. The upper picture has one bucket, which leaves with the last gradient, so nothing is left to overlap with; the lower has buckets of
1 MB, named by their numbers. (If the one message seems to be inside backward, its thread was given the processor before backward could return.)
"""

# %% tags=["nbval-ignore-output"]
CAPS = {"one bucket": float("inf"), "buckets of 1 MB": 1e6}  # in bytes
seen = {name: two("timeline", DATA, cap, 0.0) for name, cap in CAPS.items()}
show(figures.timelines(seen), alt=figures.timelines_in_words(seen))
cost = two("cost_of_averaging", weights / 1e6)
print(f"all gradients at once: {cost['wall']:.1f} ms, and {cost['processor']:.1f} ms of processor time")

# %% [markdown]
r"""
In the pictures, the upper row is what this process computes and the lower row is what travels; the numbers are the buckets in the order in which they left. With buckets of 1 MB most of the traffic lies below *backward*, as it should. And still the step is no shorter, because backward takes longer than in the upper picture. Why?
Compare the two numbers below the pictures. The closer the processor's time is to the clock's, the more of an all-reduce is work for the processor itself: gloo copies the bytes and adds them. While a bucket
travels, backward has one core less to compute with or waits for its turn. So on a machine whose processor is also its network, overlap may bring little or nothing: what it hides comes back as slower computing.
Besides, there is little to hide here. All gradients travel in the first of these times, a small part of a step. The rest of the column
*averaging* in the table is copies, fixed costs, and waiting for the other rank.

Between machines this is different, because network cards carry bytes without the processor. We can imitate that. With `SLOW`, each MB takes 4 ms more, in which the thread only sleeps.
"""

# %% tags=["nbval-ignore-output"]
SLOW = 0.004  # seconds for a MB: a network of about 2 Gb/s
seen = {name: two("timeline", DATA, cap, SLOW) for name, cap in CAPS.items()}
show(figures.timelines(seen), alt=figures.timelines_in_words(seen))

# %% [markdown]
r"""
Now overlap does its work. With one bucket, the message starts when backward is over, and its full time is added to the step. With several, the first ones travel while backward still computes, and the
step is shorter. It gains less than the traffic that lies below *backward*, because all messages together take longer than the single one: the message of each
bucket also waits until the other rank has filled the same bucket. And some traffic always remains: the last bucket holds `wte`, which is ready at the very end, so nothing is left to hide it behind.

This is the reason for buckets of a middle size. One large bucket leaves no overlap. Very small ones leave early, but each pays the fixed cost of a message. DDP's 25 MB is such a compromise; Li et al. (2020) measured
several sizes.

## Several backward passes, one average

With gradient accumulation a step has several backward passes. DDP averages after each of them, though only the last sum is needed.
Inside `no_sync()` it does not. There is a trap: DDP reads this flag in **forward**, which prepares the hooks. A script that runs forward,
then says "this is the last micro-batch", then runs backward, changes the next forward pass. So the first micro-batch of each step is
averaged and the last is not.

```python
# in time: the flag is set before forward
with replica.no_sync() if i < last else nullcontext():
    loss = replica(x, y)[1]
loss.backward()

# too late: forward has been
loss = replica(x, y)[1]
replica.require_backward_grad_sync = i == last
loss.backward()
```

The drill `flag` trains in three ways: with the flag in time, without it, and with the flag too late.

*Predict.* Four micro-batches. What does averaging after each of them cost, in per cent of the step? And what becomes of the model whose flag
comes late?
"""

# %%
predict("20.4", "averaging after each of 4 micro-batches costs", guess=None, unit="%")

# %% tags=["nbval-ignore-output"]
found = two("flag", DATA)
for when, told in found.items():
    print(f"{when:10} {told['ms']:.0f} ms a step; weights {told['apart']:.1e} apart")
answer("20.4", 100 * (found["forgotten"]["ms"] / found["in time"]["ms"] - 1))

# %%
assert found["in time"]["apart"] == 0, "the ranks' weights differ though each step averaged"
assert found["late"]["apart"] > 1e-4, "the late flag did no harm, which it should"
for when, told in found.items():
    first, *_, last = told["losses"]
    print(f"{when:9} {told['messages']} messages a step, loss {first:.3f} to {last:.3f}")

# %% [markdown]
r"""
Averaging after each micro-batch sends 8 messages in place of 2, and the answer says what the other six cost here. The late flag sends as little as the right one, and raises no error. Look at its loss: after ten steps it is 4.495, with the flag in time 4.505. The wrong run looks even a little better. But every rank trains a model of its own, and only rank
0's is saved. Only a comparison of the weights across ranks finds it. The trainer makes none, so when you write a loop of your own, call `weights_apart` after the first steps.

The price of forgetting depends on the network. Here the bytes move through memory. Between machines with 10 Gb/s, GPT-2's half gigabyte takes
0.4 s between two and nearly 0.8 s among many, each time (the section *The ring* shows why).

## The mean of what?

One assumption has been silent so far: all ranks have the same number of targets. If rank 0 counts 500 targets and rank 1, whose rows are half padding, 100, then the mean of the two mean
losses gives a token of rank 1 five times the weight. Chapter 15 met the same trap with micro-batches, and the remedy is the same: a micro-batch counts by its share of
the targets of *all ranks*.

Two ranks with four rows are enough to follow it by hand. Rank 0 has two rows of 10 targets each, rank 1 has two rows with one target each, 22 in all. Every target should weigh 1/22. So far `target_shares` divided
a row's targets by the sum of its *own rank*: 10/20 on rank 0, and 1/2 on rank 1. Now it is given `ranks.mean`, and divides by the mean of the ranks' sums, which is 22/2 = 11. A row of rank 0 gets 10/11 and a row of rank 1 gets 1/11. All shares together
are 2. DDP then divides by the two ranks, and each target weighs 1/22.
"""


# %%
#| export training
#| grows target_shares
from collections.abc import Sequence
from contextlib import nullcontext


def target_shares(batches: Sequence[tuple[Tensor, Tensor]], mean=None) -> Tensor:
    """Of all targets that count, those that are not -100, the share in each batch. mean: of accumulate_gradients."""
    if not batches:
        raise ValueError("a step needs at least one micro-batch (x, y)")
    counts = torch.stack([(y != -100).sum() for _, y in batches])
    return counts / (mean(counts.sum()) if mean else counts.sum())


# %%
y = torch.ones(4, 10, dtype=torch.long)
y[2:, 1:] = -100  # the last two rows have one target each
for rank in range(N):
    rows = [(None, row) for row in y.chunk(N)[rank]]
    shares = target_shares(rows, mean=lambda count: torch.tensor(22 / N))
    print(f"rank {rank}: each row's share is {shares[0]:.3f}")

# %% [markdown]
r"""
`accumulate_gradients` grows by two things. It hands `mean` on, and with it returns the loss of the whole batch on every rank. And between micro-batches it uses `no_sync`, before forward.
"""


# %%
#| export training
#| grows accumulate_gradients
def accumulate_gradients(
    model: GPT, batches, precision="float32", scaler: LossScaler | None = None, mean=None
) -> Tensor:
    """Add the gradient of the mean loss to each .grad; batches [(x, y), …], each (B, T): the loss, in nats, on the device.

    The mean is over all targets but -100, however they are cut into batches. precision: chapter 10's word. scaler: its
    scale multiplies the gradient, which fp16 needs. mean(tensor): over the processes that share the batch, whose
    replicas average gradients (chapter 20).
    """
    if precision == "fp16" and scaler is None:
        raise ValueError("fp16 needs a scaler that lives as long as the run: pass scaler=LossScaler()")
    shares = target_shares(batches, mean)
    loss = torch.zeros((), device=shares.device)
    last = len(batches) - 1
    with tf32_switch(precision == "tf32"):
        for i, ((x, y), share) in enumerate(zip(batches, shares)):
            waits = i < last and hasattr(model, "no_sync")  # a replica's gradients are averaged once a step
            with autocast(precision, x.device), model.no_sync() if waits else nullcontext():
                part = share * model(x, y)[1]
            scaled = part if scaler is None else part * scaler.scale
            scaled.backward()
            loss += torch.where(share > 0, part.detach(), 0.0)  # without a target, its mean is 0/0
    return mean(loss) if mean else loss


# %%
grown("accumulate_gradients", "20")

# %% [markdown]
r"""
`train_step` remains the step of one process. A program of several ranks writes its own, from the same parts:

```python
optimizer.zero_grad()
loss = accumulate_gradients(replica, micro_batches, mean=ranks.mean)
optimizer.step()
```

After `accumulate_gradients` all ranks have the same loss and the same gradient. So they also make the same decision if the program clips the gradient, or skips the update.

*Check.* The batch has 8 rows again, and half of them lose most of their targets. We train with one process, with DDP and `ranks.mean`, and with DDP and the mean of means.
"""


# %%
for way, told in two("same", DATA).items():
    near = "ANOTHER one" if told["gradient"] > 1e-5 else "that of one process"
    print(f"{way:14} first loss {told['losses'][0]:.3f}, last {told['losses'][-1]:.3f}; gradient: {near}")

# %% [markdown]
r"""
The gradient of the mean of means is another one. Do not compare its losses with the other two lines: they are means of means themselves, in which the few targets of rank 1 count half. With the same weights, in the first step, they already differ.

## The ring

How does an all-reduce work inside? If all ranks send to one, that one receives n − 1 times the bytes while the others wait. In a *ring*
every rank talks to its two neighbours only. Cut the tensor into n parts. In each step a rank sends one part to the right and adds the part that
comes in from the left. After n − 1 steps each rank holds one part of the complete sum. This half is called a *reduce-scatter*. In n − 1 further steps
the finished parts are passed on and copied, which is an *all-gather*. Chapter 21 uses the two halves apart.

Each square of the picture is one step, each row a rank, each column a part; the number says how many ranks' values have been added. Every step moves one part along the ring.

*Predict.* n ranks all-reduce a tensor of b bytes. How many bytes does each rank send for n = 4, in units of b? And for n = 1,024?
"""

# %%
predict("20.5", "bytes sent by each of 4 ranks", guess=None, unit="b")

# %%
show(figures.ring(LOCAL), alt="A ring of ranks: sums of 2, 3, 4 numbers grow, then fill all parts.")


# %%
#| export labs.parallel.buckets
#| blank ring_all_reduce: 2(n - 1) times: a dist.isend of a part to the right, a dist.irecv from the left, in one batch
def ring_all_reduce(x: Tensor) -> Tensor:
    """Sum a contiguous x over all ranks, in place; each sends 2(n - 1)/n of its bytes (Patarasuk and Yuan 2009).

    Returns x. How many numbers it has need not divide by n. Each step is one dist.batch_isend_irecv of two dist.P2POp.
    """
    n, rank = dist.get_world_size(), dist.get_rank()
    right, left = (rank + 1) % n, (rank - 1) % n
    parts = x.view(-1).tensor_split(n)
    for step in range(2 * (n - 1)):
        mine, theirs = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        came = torch.empty_like(theirs)
        calls = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, came, left)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()
        if step < n - 1:
            theirs += came
        else:
            theirs.copy_(came)
    return x


# %% [markdown]
r"""
Send and receive are given to PyTorch together, by `batch_isend_irecv`. If each rank first sent and then received, every rank could wait for the other's `recv`
before its own. Gloo buffers the message and forgives that. NCCL does not: two ranks that both send first are stuck (nccl#479).
"""


# %%
found = two("ring")  # ring_all_reduce beside dist.all_reduce, on both processes
assert found["apart"] < 1e-5, f"ring and all_reduce differ by {found['apart']}"
print(f"{N} ranks: the sum is PyTorch's; each sent {found['share']:.3f} b in {found['messages']} messages")
for n in (4, 1024):
    print(f"{n} ranks: each sends {2 * (n - 1) / n:.3f} b")
answer("20.5", 2 * (4 - 1) / 4)

# %% [markdown]
r"""
## Losing a rank

Everything works. What happens when one rank does not? The others wait in their next collective for a partner that never comes. A time limit ends this wait. On gloo the
error then says `Timed out waiting 3000ms for recv operation to complete`. That sentence comes from every rank except the one that is guilty.

So `process_group`, which our drills have used all along, adds a roll call to PyTorch's `init_process_group`. A rank that has waited in vain writes so into the *store*, a small dictionary over TCP that `torchrun` keeps for all ranks, and
looks who else has written. The rank that does not answer is the lost one. The code is in the appendix; here we look at what it says. In the drill `hang`, the last rank sleeps as if its disk or its GPU hung.

*Predict.* The time limit is two seconds. Which message does the other rank end with?
"""

# %%
said = two("hang", seconds=2, fails=True)
assert f"rank {N - 1} does not answer" in said, "the rank that hangs is not named"

# %% [markdown]
r"""
The same roll call names a rank that *failed*, with its error, and one that *has ended*: if one rank has a batch more than the others, it waits for a collective that they never make.
Set the limit above the longest thing that one rank does alone, such as a checkpoint or an evaluation.

All of this is gloo's behaviour. With NCCL, a collective returns at once and the GPU waits. NCCL's watchdog thread notices when the time limit has passed and ends the whole process, without a Python exception
(`TORCH_NCCL_ASYNC_ERROR_HANDLING=3`, the default; PyTorch's *ProcessGroupNCCL environment variables*). So nobody makes a roll call there. Chapter 20b adds a watch of our own for that case, and loses ranks in every other way.
"""

# %% [markdown]
r"""
## Appendix: the rest of the module

What follows is work that later chapters import. Skip it on a first reading. It needs more of Python's library than the chapter itself:
"""

# %%
#| export
import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path

from nanogpt.device import pick_device

# %% [markdown]
r"""
*Who is there?* `gathered` collects something from each rank, on all of them. The drill `flag` has compared weights with it.
"""


# %%
#| export
def gathered(ranks: Ranks, thing) -> list:
    """What each rank has given, in their order, on all of them; anything that can be pickled."""
    if ranks.size == 1:
        return [thing]
    things = [None] * ranks.size
    dist.all_gather_object(things, thing)
    return things


# %% [markdown]
r"""
*The roll call* is in a lab. A thread asks, because behind a cut cable the store itself never answers.
"""


# %%
#| export
def is_lost(error: BaseException) -> bool:
    """Does gloo say that another rank has gone, or does not answer?"""
    said, words = str(error).lower(), ("timed out", "timeout", "connection", "socket")
    return isinstance(error, RuntimeError) and "gloo" in said and any(word in said for word in words)


# %%
#| export labs.parallel.lost
import time
from threading import Thread


def roll_call(ranks: Ranks, store, seconds: float) -> str:
    """Wait until all others have written how they ended, or for `seconds`; those that do not wait, by name."""
    others = sorted(set(range(ranks.size)) - {ranks.rank})
    deadline = time.monotonic() + seconds
    while not store.check([f"{rank}" for rank in others]) and time.monotonic() < deadline:
        time.sleep(0.05)
    lost = []
    for rank in others:
        said = store.get(f"{rank}").decode() if store.check([f"{rank}"]) else "does not answer"
        if said != "waits":
            lost.append(f"rank {rank} {said}")
    return "; ".join(lost) or "all wait as well: for something else (chapter 20b), or for the network"


def who_is_missing(ranks: Ranks, store, seconds: float) -> str:
    """The roll call after a collective has failed: what became of the other ranks, but for those that wait as well."""
    told = []
    # A thread asks: behind a cut cable the store itself never answers, and its calls know no time limit.
    thread = Thread(target=lambda: told.append(roll_call(ranks, store, seconds)), daemon=True)
    thread.start()
    thread.join(2 * seconds)
    return told[0] if told else "the store does not answer, so the host of rank 0 is gone or cut off"


# %%
store = dist.HashStore()
store.set("1", "waits")
store.set("2", "failed with ValueError: broken on purpose")
print(who_is_missing(Ranks(rank=0, size=4), store, seconds=0.2))

# %% [markdown]
r"""
*Leaving the group.* A rank leaves it *after success only*. It is tempting to write `destroy_process_group` into a `finally`, so that it always runs. On NCCL this can hang: leaving is itself a collective, so the rank that failed
waits for ranks that wait for it elsewhere, and its error is never printed. Three projects had this `finally` and removed it (torchtitan#1342, fairseq2#1024, fairchem#884). Gloo does not wait there. So after an error
`process_group` leaves a gloo group, and lets the process end without leaving an NCCL group; then `torchrun` sees the failure and ends the others. Leaving has a trap of its own, described in the comment at `LEFT`.
"""


# %%
#| export
# Groups that were left. DDP's reducer also holds the group. If it frees it last, the process can hang; if Python ends
# while the group's threads still hold tensors, it aborts (PyTorch 2.13; pytorch#190489).
LEFT = []


def leave_group() -> None:
    """Leave the default group, whose threads end when let_go is called."""
    LEFT.append(dist.group.WORLD)
    dist.destroy_process_group()


@atexit.register
def let_go() -> None:
    """Free the groups that were left, and with them their threads, while Python still runs."""
    gc.collect()  # a DDP in a reference cycle goes first
    LEFT.clear()


# %%
#| export
@contextmanager
def process_group(ranks: Ranks, seconds: float = 600.0) -> Iterator[None]:
    """Collectives work within the block; for one process it does nothing.

    On gloo, a rank that waits longer than `seconds`, or whose peer has gone, raises a TimeoutError that names the lost
    rank. On NCCL no exception comes: its watchdog ends the process (TORCH_NCCL_ASYNC_ERROR_HANDLING).
    """
    if ranks.size == 1:
        yield
        return
    store, me = open_group(ranks, seconds), f"{ranks.rank}"
    try:
        dist.barrier()  # all are here; else one that has nothing to say could be gone before another is connected
        yield
        store.set(me, "has ended")
    except BaseException as error:
        store.set(me, "waits" if is_lost(error) else f"failed with {type(error).__name__}: {error}")
        if dist.get_backend() == "gloo":
            leave_group()  # NCCL would wait here for ranks that wait for this one
        if not is_lost(error):
            raise
        lab = import_module("nanogpt.labs.parallel.lost")
        who = lab.who_is_missing(ranks, store, min(seconds, 10))
        raise TimeoutError(f"rank {me}, which waits {seconds:g} s at most, has lost others: {who}") from error
    leave_group()


# %% [markdown]
r"""
*Meeting.* `open_group` meets the other ranks at torchrun's store. The store lives longer than the ranks. A rank that was restarted would find the address of a dead process there. So in `same_life` rank 0 invents a name for
this life of the group and gives it to those that answer now; all further keys begin with this name. On a GPU `open_group` also names the card, as `device_id`. NCCL then connects at once and on this card. Else it would connect at the first collective, and where
nobody has named a card PyTorch would guess one from the rank's number.
"""


# %%
#| export
def torchrun_ranks(prefer: str | None = None) -> Ranks:
    """Who torchrun's environment says this is, on its GPU or the CPU; one process without it. prefer: see pick_device."""
    names = "RANK", "LOCAL_RANK", "WORLD_SIZE"
    missing = [name for name in names if name not in os.environ]
    if 0 < len(missing) < len(names):
        raise ValueError(f"torchrun sets {', '.join(names)}; here {' and '.join(missing)} is missing")
    rank, local, size = (0, 0, 1) if missing else (int(os.environ[name]) for name in names)
    device = pick_device(prefer)
    if size > 1 and device.type == "cuda":
        gpus = torch.cuda.device_count()
        if local >= gpus:
            raise ValueError(f"local rank {local} has no GPU, since there are {gpus}: lower --nproc-per-node")
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    elif size > 1:
        device = torch.device("cpu")  # gloo carries nothing from an Apple GPU
    return Ranks(rank, local, size, device)


# %%
me = torchrun_ranks()
print(f"this kernel: rank {me.rank} of {me.size}, since no torchrun has started it")


# %%
#| export labs.parallel.lost
import uuid


def same_life(ranks: Ranks, store) -> str:
    """A name that only the ranks of this life know: after a restart the store still says what the dead have set."""
    me, others = uuid.uuid4().hex, range(1, ranks.size)
    if ranks.rank:
        store.set(f"here {ranks.rank}", me)
        life = store.get(me).decode()  # rank 0 answers under the name that was given
        store.set(f"{life} {ranks.rank}", "")
        return life
    for _ in range(30_000):  # 300 s and more
        if store.check([f"{me} {r}" for r in others]):
            return me
        for rank in others:
            if store.check([f"here {rank}"]):
                store.set(store.get(f"here {rank}").decode(), me)
        time.sleep(0.01)
    raise TimeoutError(f"of {ranks.size} ranks not all have come")


# %%
#| export
def open_group(ranks: Ranks, seconds: float):
    """Meet the others at torchrun's store and open the default group, NCCL on GPUs and gloo on CPUs; the store."""
    store, *_ = next(dist.rendezvous("env://", ranks.rank, ranks.size, timeout=timedelta(seconds=300)))
    lab = import_module("nanogpt.labs.parallel.lost")
    store = dist.PrefixStore(lab.same_life(ranks, store), store)
    options = {"store": store, "rank": ranks.rank, "world_size": ranks.size}
    gpu = {"device_id": ranks.device} if ranks.device.type == "cuda" else {}
    dist.init_process_group("nccl" if gpu else "gloo", timeout=timedelta(seconds=seconds), **options, **gpu)
    return dist.PrefixStore("ends", store)


# %% [markdown]
r"""
A rank that starts with another configuration, other data or yesterday's code on its disk computes happily, and the average of two different programs is a loss like any other. So the trainer of
chapter 20a compares hashes at the start. Nor may a rank stop alone because a signal reached it: after each step, all ranks ask each other for a reason to stop.
"""


# %%
#| export labs.parallel.agreement
import hashlib
from pathlib import Path

import torch

import nanogpt


def refuse_differences(ranks: Ranks, **facts: str) -> None:
    """ValueError, on all ranks alike, if one of the facts, such as a hash, is not the same on all of them."""
    told = gathered(ranks, facts)
    for name, ours in told[0].items():
        for rank, theirs in enumerate(each[name] for each in told):
            if theirs != ours:
                raise ValueError(f"rank {rank} has another {name} than rank 0: {theirs}, and not {ours}")


def code_hash() -> str:
    """Of all modules of nanogpt on this rank's disk, and of PyTorch's version."""
    files = sorted(Path(nanogpt.__file__).parent.rglob("*.py"))
    text = b"".join(f.name.encode() + f.read_bytes() for f in files)
    return hashlib.sha256(torch.__version__.encode() + text).hexdigest()[:12]


# %%
#| export
def first_reason(ranks: Ranks, reason: str | None) -> str | None:
    """The first rank's reason that has one, to stop for example; on all ranks, which all ask at the same place."""
    if not ranks.mean(torch.tensor(float(reason is not None), device=ranks.device)):
        return None  # one number, in most steps
    return next(filter(None, gathered(ranks, reason)))


# %%
print(two("differ"))

# %% [markdown]
r"""
The last piece makes drills a command. Two more functions are for the drills of later chapters: rows of which half lose most of their targets, and the largest difference of a weight between ranks.

`torchrun --standalone --nproc-per-node 2 -m nanogpt drill hello` runs the drill `hello` on two processes, on this machine or, with torchrun's
options, on several. Chapters 20b to 21d add drills of their own, `MODULE:NAME`.
"""


# %%
#| export labs.drills.ddp
def masked(stream, row: int = ROWS // 2) -> list:
    """A batch as micro-batches of one row; of the global rows from `row` on, only the first tenth of the targets counts."""
    x, y = stream.next_batch()
    y[max(0, row - stream.rank * stream.B) :, stream.T // 10 :] = -100
    return list(zip(x.split(1), y.split(1)))


def weights_apart(model, ranks: Ranks) -> float:
    """The largest difference of a weight between two ranks."""
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    return max((weights - other).abs().max().item() for other in gathered(ranks, weights))


# %%
#| export labs.drills.ddp
import argparse
import importlib
import time

from nanogpt.files import save_json


def hang(ranks: Ranks, data: str | None = None) -> None:
    """The last rank does not come to the collective, as if its disk or its GPU hung."""
    if ranks.rank == ranks.size - 1:
        time.sleep(3600)
    ranks.mean(torch.ones(1, device=ranks.device))


# %%
#| export labs.drills.ddp
DRILLS = {"hello": hello, "hang": hang}


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt drill`."""
    parser = argparse.ArgumentParser(
        description="Drills, under torchrun: torchrun ... -m nanogpt drill hello"
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"{', '.join(DRILLS)}; or MODULE:NAME")
    parser.add_argument("--data", default="data/built/stories", help="a folder of shards")
    parser.add_argument("--out", help="a JSON file for what rank 0 has found")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a rank waits for the others")
    return parser


# %%
#| export labs.drills.ddp
def find_drill(name: str):
    """Chapter 20's drill of this name, or MODULE:NAME, of the table DRILLS in nanogpt.labs.MODULE. ValueError if there is none."""
    module, _, drill = name.rpartition(":")
    table = importlib.import_module(f"nanogpt.labs.{module}").DRILLS if module else DRILLS
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


# %% tags=["nbval-ignore-output"]
predictions("20")

# %%
checkpoint("20")

# %% [markdown]
r"""
## Exercises

`course exercises release 20` writes these as a notebook to `released/`; `course check 20` runs their visible checks.

- **20-1** One mean over all ranks, 15 minutes: repair a loss that is a mean of means.
- **20-2** A ring that turns left, 30 minutes: plan who sends which part when.
- **20-3** A step that drifts, 20 minutes: repair a flag that is set too late, and the gradient that is clipped.
- **20-4** An epoch for several ranks, 25 minutes: write the check that finds tokens read twice and ranks of unequal length.

20b has the others. To explore:

1. Change `CAP` in `course/figures/data_parallel.py` to 50,000 bytes and to 2,000,000, and start the two processes anew. How many messages does a step make, and what does it cost? Check: the bytes stay the same.
2. Our buckets copy gradients in and out. Write a version whose `.grad` are views of the buffer, as `gradient_as_bucket_view` does. Check it with `check`, and count its bytes.
3. Let `Bucket.ready` send a bucket when its *first* gradient is ready. What does `check` say?
4. Write an all-reduce as `reduce_scatter_tensor` and `all_gather_into_tensor`. Check it against `dist.all_reduce` on four local ranks, and count
   the bytes.
5. Let rank 1 have another `SEED` in `fresh`. Which versions notice, and why does DDP not? Check: what does DDP do when it is made?
6. Let the drill `hang` end rank 1 with an error instead of a sleep, and then with a plain `return` (change the assertion below it as well). What does rank 0 say of each?
7. The trainer skips an update whose gradient is not finite. Why can no rank skip alone? Check by poisoning the loss of one.

## Further reading

- Li et al. 2020, [*PyTorch Distributed: Experiences on Accelerating Data Parallel Training*](https://arxiv.org/abs/2006.15704), §3–4: buckets, overlap, and what they bring.
- [Stanford CS336, assignment 2](https://github.com/stanford-cs336/assignment2-systems): the same path from a loop to buckets, as an exercise for GPUs.
- Patarasuk and Yuan 2009, [*Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations*](https://doi.org/10.1016/j.jpdc.2008.09.002): the ring, and why nothing sends less.
- Goyal et al. 2017, [*Accurate, Large Minibatch SGD*](https://arxiv.org/abs/1706.02677), §3: the mean over ranks, and its subtleties with momentum and weight decay.
- PyTorch's documentation of [*torchrun (Elastic Launch)*](https://docs.pytorch.org/docs/stable/elastic/run.html), and of [`DistributedDataParallel.no_sync`](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync).
"""
