# %% [markdown]
r"""
# Exercises 20 · DDP

Chapters 20 and 20b: many processes that do what one would, and what more of them bring. All of it runs in one process here. No task needs
another one's solution. `course check 20` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from course.variants import variant

# %% [markdown]
r"""
## 20-1 · One mean over all ranks

*Repair · difficulty 3/5 · importance 5/5 · 15 minutes*

DDP averages gradients over ranks: it adds them and divides by their number. The model's loss is the mean over the targets of its micro-batch. Where all
micro-batches have the same number of targets, that gives the gradient of one process. With answers of unequal length, or documents, they
have different numbers, and a rank with three targets weighs like one with three thousand.

`counts[r][i]` is the number of targets in micro-batch i of rank r. `shares(counts)` returns, in the same form, what each
micro-batch's loss is multiplied by before `backward`, so that after DDP's average all targets of all ranks weigh the same. Fix it. A
micro-batch without any target gets 0.

    shares([[4, 4], [4, 4]]) == [[0.5, 0.5], [0.5, 0.5]]

<details><summary>Hint 1</summary>

Write down the gradient that you want: a sum over all micro-batches of all ranks, of count times mean, divided by what?
</details>

<details><summary>Hint 2</summary>

What does DDP divide by, after you? Your share has to undo that.
</details>
"""


# %%
#| solution 20-1
def shares(counts: list[list[int]]) -> list[list[float]]:
    """What each micro-batch's mean loss is multiplied by, so that the mean over ranks is the mean over all targets."""
    ### BEGIN SOLUTION
    total = sum(sum(rank) for rank in counts)
    return [[len(counts) * count / total for count in rank] for rank in counts]
    ### INSTEAD
    # return [[1 / len(rank) for _ in rank] for rank in counts]
    ### END SOLUTION


# %%
#| check 20-1
got = shares([[3, 1], [4, 8]])
each = [[share / count / 2 for share, count in zip(*rank)] for rank in zip(got, [[3, 1], [4, 8]])]
assert all(abs(weight - 1 / 16) < 1e-9 for rank in each for weight in rank), (
    f"after DDP's average a target weighs, by micro-batch, {each}; each of 16 should weigh 1/16 = {1 / 16}"
)
assert shares([[4, 0], [2, 2]])[0][1] == 0, "a micro-batch without targets gets 0"

# %% [markdown]
r"""
## 20-2 · A ring that turns left

*Build · difficulty 4/5 · importance 3/5 · 30 minutes*

In chapter 20's ring each rank sends to its right neighbour. Here rank r sends to rank r − 1 (rank 0 to rank n − 1). A tensor is cut into n parts. There are
2(n − 1) steps: in each, every rank sends one part, all at once. In the first n − 1 steps what arrives is **added** to the receiver's own
part of that number, in the others it **replaces** it. Afterwards every rank has the sum of all ranks in every part.

Write `ring(n)`: a list of 2(n − 1) lists, in each of which entry r is the number of the part that rank r sends. There are several right answers.

<details><summary>Hint 1</summary>

Follow one part. It must visit all ranks, one after another, and be added to at each. Who sends it in the next step?
</details>

<details><summary>Hint 2</summary>

Who has part p complete after n − 1 steps? That rank sends it first in the second half.
</details>

<details><summary>Hint 3</summary>

Let rank r begin with part r. What has it received after the first step, and what does it therefore send in the second?
</details>
"""


# %%
#| solution 20-2
def ring(n: int) -> list[list[int]]:
    """Which part each of n ranks sends to its left neighbour in each of the 2 (n - 1) steps of an all-reduce."""
    ### BEGIN SOLUTION
    return [[(rank + step) % n for rank in range(n)] for step in range(2 * (n - 1))]
    ### END SOLUTION


# %%
#| check 20-2
for n in (2, 3):
    held = [[10.0**rank] * n for rank in range(n)]  # each rank's parts
    steps = ring(n)
    assert len(steps) == 2 * (n - 1), f"{n} ranks take {2 * (n - 1)} steps, not {len(steps)}"
    for step, parts in enumerate(steps):
        sent = [held[rank][part] for rank, part in enumerate(parts)]
        for rank, part in enumerate(parts):
            left = (rank - 1) % n
            held[left][part] = sent[rank] + (held[left][part] if step < n - 1 else 0)
        if step == n - 2:
            whole = [
                sum(held[rank][part] == sum(10.0**r for r in range(n)) for rank in range(n))
                for part in range(n)
            ]
            assert whole == [1] * n, (
                f"n = {n}: after {n - 1} steps each part should be complete on one rank, and the counts are {whole}: "
                "does a rank pass on what it has just received?"
            )
    assert all(value == sum(10.0**r for r in range(n)) for parts in held for value in parts), (
        f"n = {n}: at the end the ranks hold {held}; in the second half complete parts travel on"
    )

# %% [markdown]
r"""
## 20-3 · A step that drifts

*Repair · difficulty 3/5 · importance 5/5 · 20 minutes*

Accumulation over micro-batches needs one average a step, at the last of them. DDP has a flag for that, and reads it **in forward**. A well-known repository set it between
forward and backward, and reached a loss of 4.88 where 4.15 was due (build-nanogpt, pull request 30). No error is raised, and the weights of the ranks drift apart.

`Replicas` is DDP on several ranks in one process. `step(replicas, micro_batches, lr, clip)` makes one update: `micro_batches[i]` is a list with an (x, y) for each rank. It
has that bug and a second one, in what it clips. Fix both: after each step all ranks hold the same
weights, those that one process would have with all rows, whose gradient is clipped once, at norm `clip`.

<details><summary>Hint 1</summary>

In which micro-batch is `armed` true when the flag is set after `forward`? Print it for three micro-batches and two steps.
</details>

<details><summary>Hint 2</summary>

Which gradient does one process clip? On a rank it exists only after the average.
</details>
"""


# %%
class Replicas:
    """A model on each rank; in backward gradients are averaged over ranks, if `sync` was true in forward."""

    def __init__(self, models: list[nn.Module]):
        self.models, self.sync, self.averages = models, True, 0

    def forward(self, batches: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        """The loss of each rank on its batch."""
        self.armed = self.sync  # DDP reads its flag here, and nowhere else
        return [(model(x) - y).square().mean() for model, (x, y) in zip(self.models, batches)]

    def backward(self, losses: list[Tensor]) -> None:
        """Adds to all gradients, and then averages what has been added up so far, if it was armed."""
        for loss in losses:
            loss.backward()
        if self.armed:
            self.averages += 1
            for same in zip(*(model.parameters() for model in self.models)):
                mean = torch.stack([p.grad for p in same]).mean(0)
                for p in same:
                    p.grad = mean.clone()


# %%
#| solution 20-3
def step(
    replicas: Replicas, micro_batches: list[list[tuple[Tensor, Tensor]]], lr: float, clip: float
) -> None:
    """One update by plain gradient descent, the same on all ranks, from all rows of all ranks."""
    for model in replicas.models:
        model.zero_grad()
    ### BEGIN SOLUTION
    for i, batches in enumerate(micro_batches):
        replicas.sync = i == len(micro_batches) - 1
        losses = replicas.forward(batches)
        replicas.backward([loss / len(micro_batches) for loss in losses])
    for model in replicas.models:
        clip_grad_norm_(model.parameters(), clip)
    ### INSTEAD
    # for i, batches in enumerate(micro_batches):
    #     losses = replicas.forward(batches)
    #     replicas.sync = i == len(micro_batches) - 1
    #     replicas.backward([loss / len(micro_batches) for loss in losses])
    #     for model in replicas.models:
    #         clip_grad_norm_(model.parameters(), clip)
    ### END SOLUTION
    with torch.no_grad():
        for model in replicas.models:
            for p in model.parameters():
                p -= lr * p.grad


# %%
#| check 20-3
def rows_of_two_steps() -> list:
    """Two steps of three micro-batches, each with four rows for each of two ranks."""
    g = torch.Generator().manual_seed(0)
    return [
        [[(torch.randn(4, 3, generator=g), torch.randn(4, 1, generator=g)) for _ in "ab"] for _ in "123"]
        for _ in "12"
    ]


def ranks_after(clip: float) -> tuple[list[Tensor], int]:
    """The weights of both ranks, and how often gradients were averaged."""
    replicas = Replicas([nn.Linear(3, 1, bias=False) for _ in "ab"])
    for model in replicas.models:
        nn.init.ones_(model.weight)
    for micro_batches in rows_of_two_steps():
        step(replicas, micro_batches, 0.1, clip)
    return [model.weight.detach() for model in replicas.models], replicas.averages


def one_process_after(clip: float) -> Tensor:
    """The weights of one process that has all rows at once."""
    nn.init.ones_((model := nn.Linear(3, 1, bias=False)).weight)
    for micro_batches in rows_of_two_steps():
        x, y = (torch.cat(side) for side in zip(*(batch for batches in micro_batches for batch in batches)))
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        clip_grad_norm_(model.parameters(), clip)
        with torch.no_grad():
            model.weight -= 0.1 * model.weight.grad
    return model.weight.detach()


(first, second), averages = ranks_after(1e9)
assert torch.allclose(first, second, atol=1e-5), (
    f"the ranks have parted: {first.tolist()} and {second.tolist()}; was the flag true when forward read it?"
)
assert averages == 2, (
    f"gradients were averaged {averages} times in two steps: once a step is enough, the others only cost"
)
assert torch.allclose(first, one_process_after(1e9), atol=1e-5), (
    "the ranks agree, and one process does something else: losses of micro-batches are a mean, and DDP divides by the ranks itself"
)
assert torch.allclose(ranks_after(0.5)[0][0], one_process_after(0.5), atol=1e-5), (
    "without clipping all is right, and with it one process does something else: which gradient does it clip, and how often?"
)

# %% [markdown]
r"""
## 20-4 · An epoch for several ranks

*Check · difficulty 4/5 · importance 5/5 · 25 minutes*

A shard has n tokens. `size` ranks read it in pieces of k inputs: a piece that starts at s has the inputs s … s + k − 1 and the targets s + 1 … s + k. `epoch(n, rank, size, k)`
returns where the pieces of one rank start, as a list. A loader is right if

- all ranks have the **same number** of pieces, the largest that is possible. Otherwise one waits in an all-reduce for ever;
- all pieces together are the first tokens of the shard as inputs, each token **exactly once**;
- every target lies in the shard.

A widely copied loader lets each rank go to the next shard when *its own* position is near the end, so that one rank changes a step before the other.
Write `check_epoch(epoch)`, which raises an `AssertionError` if a rule is broken and accepts all that keep them, in whatever order ranks and pieces are dealt.

<details><summary>Hint 1</summary>

With n tokens there are n − 1 inputs that have a target. How many steps of size · k of them are whole?
</details>

<details><summary>Hint 2</summary>

Which n are special? Just enough for a step, one less, one more, and a rest that one rank could still use.
</details>
"""


# %%
#| solution 20-4
def check_epoch(epoch) -> None:
    """Raises AssertionError unless epoch(n, rank, size, k) deals the first tokens once, equally many to all ranks."""
    ### BEGIN SOLUTION
    for size in (1, 2, 3):
        for k in (1, 4):
            whole = size * k  # of a step
            for n in (1, whole, whole + 1, whole + 2, 2 * whole + k + 1, 3 * whole, 5 * whole + 1):
                parts = [epoch(n, rank, size, k) for rank in range(size)]
                steps = (n - 1) // (size * k)
                assert [len(part) for part in parts] == [steps] * size, (
                    f"n={n}, size={size}, k={k}: unequal or too few"
                )
                starts = sorted(start for part in parts for start in part)
                assert starts == list(range(0, steps * size * k, k)), (
                    f"n={n}, size={size}, k={k}: pieces at {starts}"
                )
    ### END SOLUTION


# %%
#| check 20-4
def refused(epoch) -> bool:
    try:
        check_epoch(epoch)
    except AssertionError:
        return True
    return False


def in_turn(n, rank, size, k):
    return [(step * size + rank) * k for step in range((n - 1) // (size * k))]


def in_blocks(n, rank, size, k):
    steps = (n - 1) // (size * k)
    return [(rank * steps + step) * k for step in range(steps)]


assert not refused(in_turn) and not refused(in_blocks), (
    "ranks may take turns or have a block each, and your check refuses one of these"
)
assert refused(lambda n, rank, size, k: in_turn(n, 0, size, k)), (
    "here all ranks read what rank 0 reads, and your check accepts it"
)
assert refused(lambda n, rank, size, k: list(range(rank * k, n - k, size * k))), (
    "here each rank reads on while its own piece fits, so rank 0 may have one more; your check accepts it"
)

# %% [markdown]
r"""
## 20-5 · What more GPUs bring

*Derive · difficulty 3/5 · importance 4/5 · 25 minutes*

A step on n GPUs computes and then averages gradients; nothing is hidden behind anything, and there is no latency. A model of P parameters takes 6 P FLOPs a token, a GPU really
does `flops` a second. The ring sends 2(n − 1)/n of the gradients' bytes, float32, over a link of `link` bytes a second. Efficiency is the part of n times one GPU's throughput that
is left (one GPU averages nothing).

Write `weak(flops, link, tokens, n)`, where **each GPU** has `tokens` tokens a step however many there are, and `strong(flops, link, tokens, n)`, where `tokens` are those
of the **whole batch**, divided among n. Neither takes P: derive why. `answers` is a list of both at the values in `mine`, which are yours alone.

<details><summary>Hint 1</summary>

Write both times with P in them. What does the ratio of averaging and computing depend on?
</details>

<details><summary>Hint 2</summary>

If averaging takes a times as long as a step's computing on one of the n GPUs, the efficiency is 1/(1 + a), in both cases. What is a in each?
</details>
"""

# %%
mine = variant(
    "20-5",
    STUDENT,
    flops=[1e14, 2e14, 4e14],
    link=[1e10, 2.5e10, 5e10],
    tokens=[65_536, 131_072, 524_288],
    n=[16, 64, 256],
)


# %%
#| solution 20-5
def weak(flops: float, link: float, tokens: int, n: int) -> float:
    """Efficiency of n GPUs with so many tokens each."""
    ### BEGIN SOLUTION
    computing = 6 * tokens / flops  # seconds for each parameter
    return computing / (computing + 2 * (n - 1) / n * 4 / link)
    ### END SOLUTION


def strong(flops: float, link: float, tokens: int, n: int) -> float:
    """Efficiency of n GPUs that share a batch of so many tokens."""
    ### BEGIN SOLUTION
    return weak(flops, link, tokens / n, n)
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    weak(**mine),
    strong(**mine),
    ### INSTEAD
    # 0.0,  # weak
    # 0.0,  # strong
    ### END SOLUTION
]

# %%
#| check 20-5
assert weak(1e14, 1e10, 1000, 1) == 1 and strong(1e14, 1e10, 1000, 1) == 1, "one GPU averages nothing"
assert abs(weak(6.0, 4.0, 1, 2) - 0.5) < 1e-9, (
    "6 FLOPs at 6 FLOP/s take 1 s a parameter; two GPUs send 4 bytes of a gradient of 4, at 4 bytes/s: 1 s too, so ½"
)
assert abs(weak(1e14, 1e10, 10**5, 10**6) - weak(1e14, 1e10, 10**5, 10**3)) < 1e-2, (
    "weak: from some n on, more GPUs cost nothing more"
)
assert strong(1e14, 1e10, 10**5, 1000) < strong(1e14, 1e10, 10**5, 10), (
    "strong: with more GPUs there is less to compute for each"
)

# %% [markdown]
r"""
#| manual 20-6
## 20-6 · From one GPU to eight

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

A run on one GPU with 32 rows a step is started anew on eight with 32 rows **each**, with the same rate and the same `max_steps`. It ends in about the same time, and a colleague
writes "DDP brings nothing". In five sentences: what was really changed; with which two settings would the eight do what the one did, and in which time; and what would you have to
choose again if you keep the larger batch, with one reason?
"""
