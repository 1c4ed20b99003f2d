# %% [markdown]
r"""
# Exercises 03 · Data

Work from top to bottom, or begin where you like: no task needs another one's solution. `course check 03` runs the
visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
from collections.abc import Iterator
from itertools import islice

from course.variants import variant
from nanogpt.shards import permutation

# %% [markdown]
r"""
## 03-1 · Ranks that part company

*Repair · difficulty 3/5 · importance 5/5 · 25 minutes*

When several processes train together, each is called a *rank*, and each must get its own part of every batch. Chapter
20 deals this chapter's stream to ranks. Many loaders are written like the `Loader` below: the shards are read one after
another, every rank begins at its own offset, and all of them advance by what the ranks read together. It has two bugs.
Each rank decides for itself when to change the shard, and the end of a shard is never read. Repair it. `shards` are
lists of tokens. The stream is all shards one after another, and then again from the first one, for ever; nothing is
shuffled. In each step the ranks together take its next `world_size * BT` tokens, and rank r takes the r-th part.
`next_batch()` gives this rank's inputs, a list of BT tokens; it may begin in one shard and end in another, or in the
next epoch.

<details><summary>Hint 1</summary>

No rank decides anything if all of them count the same thing. What can be counted that is the same for all?
</details>

<details><summary>Hint 2</summary>

From that number and its rank, each loader computes where its part begins in the endless stream. `%` with the number
of all tokens takes it to a place in the shards.
</details>

<details><summary>Hint 3</summary>

Walk through the shards: if the place is behind this one, take off its length and look at the next.
</details>
"""


# %%
#| solution 03-1
class Loader:
    """One rank's batches from an endless stream over all shards."""

    def __init__(self, shards: list[list[int]], BT: int, rank: int, world_size: int):
        self.shards, self.BT, self.rank, self.world_size = shards, BT, rank, world_size
        ### BEGIN SOLUTION
        self.position = 0  # what all ranks together have consumed
        ### INSTEAD
        # self.shard, self.position = 0, BT * rank
        ### END SOLUTION

    def next_batch(self) -> list[int]:
        ### BEGIN SOLUTION
        start = self.position + self.rank * self.BT
        self.position += self.world_size * self.BT
        return [self.token(at) for at in range(start, start + self.BT)]

    def token(self, at: int) -> int:
        at %= sum(map(len, self.shards))
        for shard in self.shards:
            if at < len(shard):
                return shard[at]
            at -= len(shard)
        ### INSTEAD
        # tokens = self.shards[self.shard][self.position : self.position + self.BT]
        # self.position += self.BT * self.world_size
        # if self.position + self.BT * self.world_size > len(self.shards[self.shard]):  # no room for a step
        #     self.shard = (self.shard + 1) % len(self.shards)
        #     self.position = self.BT * self.rank
        # return tokens
        ### END SOLUTION


# %%
#| check 03-1
loaders = [Loader([list(range(11)), list(range(11, 18))], 2, rank, 2) for rank in range(2)]
steps = [[loader.next_batch() for loader in loaders] for _ in range(9)]
assert steps[0] == [[0, 1], [2, 3]], f"the first step reads {steps[0]}, not 0 and 1, then 2 and 3"
for number, ranks in enumerate(steps):
    first = 4 * number % 18
    assert ranks[0][0] == first, (
        f"step {number} begins at token {ranks[0][0]}, not {first}: were tokens left out at a shard's end?"
    )
    assert ranks[1][0] == (first + 2) % 18, f"step {number}: rank 1 does not stand behind rank 0: {ranks}"
seen = sorted(token for ranks in steps for tokens in ranks for token in tokens)
assert seen == sorted(2 * list(range(18))), "two epochs, and not every token was read twice"

# %% [markdown]
r"""
## 03-2 · A resume that reads the wrong rows

*Repair · difficulty 3/5 · importance 5/5 · 20 minutes*

A run reads rows for ever, each epoch in another order. After a crash it goes on with `rows(n, seed, consumed)`, where
`consumed` is the number of rows read before, in all epochs together. What comes now must be what would have come
without the crash. It is not, in two ways, and one of them was shipped twice (accelerate, issue 1451, 2023;
open-instruct, pull request 681, 2025): the epochs became shorter, the training loss fell faster, the validation loss
did not. Repair both.

<details><summary>Hint 1</summary>

Take n = 5. Write down which rows an unbroken run reads in three epochs, and which this function yields after consumed
= 7.
</details>

<details><summary>Hint 2</summary>

Where the run stands is an epoch and a place in it. `divmod` gives both.
</details>

<details><summary>Hint 3</summary>

How often is something to be skipped after a resume? Once.
</details>
"""


# %%
#| solution 03-2
def rows(n: int, seed: int, consumed: int = 0) -> Iterator[int]:
    """Rows without end, after `consumed` of them. Epoch e has the order permutation(n, seed, e)."""
    ### BEGIN SOLUTION
    epoch, skip = divmod(consumed, n)
    while True:
        yield from permutation(n, seed, epoch).tolist()[skip:]
        epoch, skip = epoch + 1, 0
    ### INSTEAD
    # epoch = 0
    # while True:
    #     yield from permutation(n, seed, epoch).tolist()[consumed % n :]
    #     epoch += 1
    ### END SOLUTION


# %%
#| check 03-2
whole = list(islice(rows(6, 1), 24))
for epoch in range(4):
    assert whole[6 * epoch : 6 * epoch + 6] == permutation(6, 1, epoch).tolist(), (
        f"epoch {epoch} of an unbroken run has another order"
    )
again = list(islice(rows(6, 1, 4), 20))
assert again[:2] == whole[4:6], f"after 4 of 6 rows {whole[4:6]} are due, and {again[:2]} came"
assert set(again[2:8]) == set(range(6)), (
    f"the epoch after the resumed one reads only rows {sorted(set(again[2:8]))}: something is skipped again"
)
assert list(islice(rows(6, 1, 13), 8)) == whole[13:21], (
    "a run that had read 13 rows is in its third epoch, with that epoch's order"
)

# %% [markdown]
r"""
## 03-3 · A shard, byte by byte

*Derive · difficulty 2/5 · importance 4/5 · 15 minutes*

`mine` describes a shard of `tokens` ids in llm.c's format. Give four numbers:

- `size`: the file's length in bytes;
- `offset`: the byte at which token number `place` begins, counted from 0, as are tokens;
- `comes_back`: the id that is read where someone wrote `foreign`, an id of a larger vocabulary, with `astype("<u2")`
  and without a check;
- `backwards`: the id that a reader gets for `small` who takes the two bytes for big-endian.

<details><summary>Hint 1</summary>

What stands before the first id, and how many bytes is that?
</details>

<details><summary>Hint 2</summary>

Two bytes hold 65,536 numbers. NumPy keeps the lower 16 bits and drops the rest.
</details>

<details><summary>Hint 3</summary>

258 is 1 · 256 + 2. Little-endian writes the 2 first. Who reads it the other way gets 2 · 256 + 1.
</details>
"""

# %%
mine = variant(
    "03-3",
    STUDENT,
    tokens=[100_000_000, 99_999_001, 53_248_111],
    place=[0, 777, 51_234, 1_048_576],
    foreign=[65_536, 70_001, 100_276, 128_255, 151_643],
    small=[50_256, 1_000, 314, 4_097, 13],
)
mine

# %%
#| solution 03-3
size = offset = comes_back = backwards = 0
### BEGIN SOLUTION
size = 1024 + 2 * mine["tokens"]
offset = 1024 + 2 * mine["place"]
comes_back = mine["foreign"] % 65536
backwards = mine["small"] % 256 * 256 + mine["small"] // 256
### END SOLUTION

# %%
#| check 03-3
assert size > 2 * mine["tokens"], (
    f"size is {size:,}: two bytes an id, and the header of 256 int32 before them"
)
assert (offset - 1024) % 2 == 0, f"offset is {offset:,}: ids begin behind 1,024 bytes, every two bytes"
assert 0 <= comes_back < 65536, f"{comes_back} does not fit into two bytes, so it cannot be read from them"
assert 0 <= backwards < 65536, f"{backwards} does not fit into two bytes"
assert backwards // 256 == mine["small"] % 256, (
    "the first of the two bytes is the low one; read big-endian it counts 256 times"
)

# %% [markdown]
r"""
## 03-4 · How often is a token learned?

*Build · difficulty 3/5 · importance 3/5 · 30 minutes*

`DocumentStream` begins one row with each document and reads on for T targets, across the documents behind it and from
the end of the shard to its beginning. So some tokens are a target several times an epoch, and others never. Write
`times_learned(lengths, T)`: for a shard whose documents have these lengths (the `<|endoftext|>` before each one
included), how often each of its tokens is a *target* in one epoch, as a list, one number a token. A row that begins
at s has the inputs s … s + T − 1 and the targets s + 1 … s + T. T is smaller than the shard.

For lengths [2, 4] and T = 3 it is [0, 1, 1, 2, 1, 1]: the rows begin at 0 and at 2, and have the targets 1, 2, 3 and
3, 4, 5.

<details><summary>Hint 1</summary>

Where does document i begin? Its first target stands one behind.
</details>

<details><summary>Hint 2</summary>

The counts sum to the number of documents times T, whatever the lengths. Does yours?
</details>

<details><summary>Hint 3</summary>

Two loops, over documents and over targets, and `% sum(lengths)`.
</details>
"""


# %%
#| solution 03-4
def times_learned(lengths: list[int], T: int) -> list[int]:
    """How often each token of the shard is a target, when every document begins one row."""
    ### BEGIN SOLUTION
    counts, start = [0] * sum(lengths), 0
    for length in lengths:
        for i in range(1, T + 1):
            counts[(start + i) % len(counts)] += 1
        start += length
    return counts
    ### END SOLUTION


# %%
#| check 03-4
counts = times_learned([2, 4], 3)
assert len(counts) == 6, f"{len(counts)} counts for a shard of 6 tokens"
assert sum(counts) == 6, f"two rows of three targets each are 6 targets, not {sum(counts)}"
assert counts[0] == 0, (
    "token 0 begins the first row, so it is an input there, and no row reaches around to it"
)
assert times_learned([5, 3], 6)[:2] == [1, 2], (
    "the row that begins at 5 has the targets 6, 7 and then 0 to 3: it goes on at the shard's beginning"
)

# %% [markdown]
r"""
## 03-5 · A check for loaders

*Check · difficulty 4/5 · importance 5/5 · 40 minutes*

You write the check that would have found the bugs of 03-1. `check_deal(deal)` gets a function: `deal(n, BT,
world_size, steps)` runs a loader over a text of n tokens, numbered 0 to n − 1, and returns for each step, for each
rank, the list of the BT numbers that this rank got as inputs. A right loader deals, read step by step and within a
step rank by rank,

- every token exactly once in each run of n tokens, epoch after epoch, also where an epoch ends within a step;
- in every step the same tokens in the same order to 1 rank with BT = 12, to 2 with 6 and to 3 with 4.

The order within an epoch is free. Raise an `AssertionError` for a loader that breaks a promise. n is at least three
times BT · world_size. Loaders run elsewhere: keep to some hundreds of calls, and to texts of some hundred tokens.

<details><summary>Hint 1</summary>

Flatten what is dealt into one list. What do its first n numbers look like, and the next n?
</details>

<details><summary>Hint 2</summary>

Where a step divides the text evenly, many bugs hide. Choose n with a remainder, and more than two epochs.
</details>

<details><summary>Hint 3</summary>

One rank alone makes no mistake between ranks. Try 1, 2, 3 and more, and compare.
</details>
"""


# %%
#| solution 03-5
def check_deal(deal) -> None:
    """AssertionError if a token is lost, comes twice in an epoch, or depends on the number of ranks."""
    ### BEGIN SOLUTION
    for n in (36, 37, 101):
        alone = None
        for world_size in (1, 2, 3, 4):
            BT, steps = 12 // world_size, 4 * n // 12
            dealt = deal(n, BT, world_size, steps)
            assert [[len(part) for part in ranks] for ranks in dealt] == [[BT] * world_size] * steps, (
                "a part is too short"
            )
            flat = [token for ranks in dealt for part in ranks for token in part]
            for start in range(0, len(flat) - n + 1, n):
                assert sorted(flat[start : start + n]) == list(range(n)), (
                    f"n={n}, {world_size} ranks: an epoch is not whole"
                )
            alone = alone or flat
            assert flat == alone, f"{world_size} ranks get other tokens than one"
    ### END SOLUTION


# %%
#| check 03-5
def straight(n, BT, world_size, steps):
    stream = [token % n for token in range(BT * world_size * steps)]
    return [[[stream.pop(0) for _ in range(BT)] for _ in range(world_size)] for _ in range(steps)]


def without_the_end(n, BT, world_size, steps):
    return straight(n - n % (BT * world_size), BT, world_size, steps)


def all_the_same(n, BT, world_size, steps):
    return [world_size * ranks for ranks in straight(n, BT, 1, steps)]


def says(deal) -> str:
    try:
        check_deal(deal)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


assert says(straight) == "accepted", f"a loader that reads straight on is {says(straight)}"
assert says(without_the_end) != "accepted", (
    "your check accepts a loader that never reads what is too short for a step"
)
assert says(all_the_same) != "accepted", "your check accepts a loader that gives all ranks the same tokens"

# %% [markdown]
r"""
#| manual 03-6
## 03-6 · Six in place of eight

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

A run on 8 GPUs ends at step 7,000 because a machine is lost. It goes on with 6, each with the same B and T as before.
All of them read one stream, this chapter's. A step takes its next `world_size * B * T` tokens, rank r reads the r-th
part, and `position` counts what all have read together. What in `state_dict()` makes the run go on at the right token,
and why does it not hold the step, the rank or B? What is *not* as it would have been with 8, and what would you change
so that it is? Three to six sentences.
"""
