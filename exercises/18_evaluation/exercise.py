# %% [markdown]
r"""
# Exercises 18 · Evaluation

Chapters 18 and 18b: a mean over what, bits of which bytes, and how much of a difference is luck. No task needs another one's solution.
`course check 18` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

import torch
from torch import Tensor

from course.variants import variant

# %% [markdown]
r"""
## 18-1 · The mean of means

*Repair · difficulty 2/5 · importance 5/5 · 10 minutes*

A validation loss is made batch by batch. `batches` is a list of pairs: `loss`, (rows, T), each token's nats, and `counted`, (rows, T), true where
a token counts; the others are padding. Batches differ in rows and in counted tokens. The code below weighs a batch with three tokens like one with
three thousand, so its result hangs on the batch size. In the accumulation of gradients the same mistake was shipped for years (transformers until 4.46).

Mend `mean_loss(batches)`, the mean in nats per counted token, and `perplexity(batches)`, e to the power of that mean. Cut into other batches, the
same tokens must give the same two numbers.

<details><summary>Hint 1</summary>

Which two sums does a mean over all tokens need? Which of them does the code below divide by too early?
</details>

<details><summary>Hint 2</summary>

What does a batch without any counted token give? It should change nothing.
</details>
"""


# %%
#| solution 18-1
def mean_loss(batches: list[tuple[Tensor, Tensor]]) -> float:
    """Mean loss in nats over all counted tokens of all batches, each (loss, counted), both (rows, T)."""
    ### BEGIN SOLUTION
    nats = sum(loss[counted].sum().item() for loss, counted in batches)
    return nats / sum(counted.sum().item() for _, counted in batches)
    ### INSTEAD
    # return sum(loss[counted].mean().item() for loss, counted in batches) / len(batches)
    ### END SOLUTION


def perplexity(batches: list[tuple[Tensor, Tensor]]) -> float:
    """Of how many equally likely tokens one would be as unsure."""
    ### BEGIN SOLUTION
    return math.exp(mean_loss(batches))
    ### INSTEAD
    # return sum(loss[counted].exp().mean().item() for loss, counted in batches) / len(batches)
    ### END SOLUTION


# %%
#| check 18-1
loss = torch.tensor([[1.0, 1.0], [1.0, 1.0], [7.0, 100.0]])
counted = torch.tensor([[True, True], [True, True], [True, False]])
for cuts in ([3], [2, 1], [1, 1, 1]):
    parts = list(zip(loss.split(cuts), counted.split(cuts)))
    got = mean_loss(parts)
    assert abs(got - 2.2) < 1e-6, (
        f"four tokens of 1 nat and one of 7 are 11/5 = 2.2 nats a token; in batches of {cuts} rows you say {got:.3f}"
    )
assert abs(perplexity([(loss, counted)]) - math.exp(2.2)) < 1e-4, (
    "perplexity is e to the mean, and not a mean of e to the losses"
)

# %% [markdown]
r"""
## 18-2 · Windows over a long text

*Check · difficulty 4/5 · importance 4/5 · 25 minutes*

A text of n ids is longer than the context T (even). `windows(n, T)` returns a list of `[start, new, stop]`: ids start … stop − 1 go in, and ids new + 1 … stop are
predicted. A loss over these windows is right if

- each id but the first is predicted **exactly once**,
- no window reads more than T ids,
- each is predicted from at least T/2 ids before it, or from all there are.

A window that repeats its overlap counts tokens twice, one without overlap asks about words whose beginning it has not seen. Either moves the loss by less
than one would notice.

Write `check_windows(windows)`, which raises an `AssertionError` if a rule is broken, and accepts all that keep them. There are several right ones: a
window may move by T/2, or by a single id.

<details><summary>Hint 1</summary>

Collect all predicted ids of all windows in one list, sort it, and compare.
</details>

<details><summary>Hint 2</summary>

Which lengths are special? n = 2, T, T + 1, T + 2, and a last window that is much shorter than the others.
</details>

<details><summary>Hint 3</summary>

The first id that a window predicts, new + 1, is predicted from ids start … new. How many are these?
</details>
"""


# %%
#| solution 18-2
def check_windows(windows) -> None:
    """Raises AssertionError unless windows(n, T) predicts each id but the first once, with T/2 ids before it."""
    ### BEGIN SOLUTION
    for T in (2, 8, 10):
        for n in (2, 3, T - 1, T, T + 1, T + 2, 2 * T, 3 * T + 1, 45):
            rows = windows(n, T)
            predicted = sorted(i for _, new, stop in rows for i in range(new + 1, stop + 1))
            assert predicted == list(range(1, n)), f"n={n}, T={T}: predicted are {predicted}"
            for start, new, stop in rows:
                assert 0 <= start <= new and stop - start <= T, f"n={n}, T={T}: [{start}, {new}, {stop}]"
                assert new + 1 - start >= min(new + 1, T // 2), (
                    f"n={n}, T={T}: {new + 1} has too little before it"
                )
    ### END SOLUTION


# %%
#| check 18-2
def refused(windows) -> bool:
    try:
        check_windows(windows)
    except AssertionError:
        return True
    return False


assert not refused(lambda n, T: [[max(0, i + 1 - T), i, i + 1] for i in range(n - 1)]), (
    "a window that moves by one id is right, and your check refuses it"
)
assert refused(lambda n, T: [[i, i, min(i + T, n - 1)] for i in range(0, n - 1, T)]), (
    "windows without overlap are accepted: the first id of each is predicted from one id"
)
assert refused(lambda n, T: [[i, i, min(i + T, n - 1)] for i in range(0, n - 1, T // 2)]), (
    "windows that overlap and count their overlap again are accepted"
)

# %% [markdown]
r"""
## 18-3 · Bits of which bytes

*Repair · difficulty 3/5 · importance 4/5 · 15 minutes*

Two models with different tokenizers cannot be compared by nats per token: tokens differ. Bits per byte of text can. The bytes come from the vocabulary, and the code below
asks the decoder instead. A token that is half a character decodes to `�`, which has three bytes. So a text with many such tokens seems longer, and the
model better. Two well-known repositories had it so until 2026.

`bits_per_byte(nats, ids, vocab)` has the losses of `ids[1:]` in nats, (n − 1,), the n ids, and the bytes of each ordinary id. An id from `len(vocab)` on is a
special token: it stands for no text, but its nats count, since the end of a text has to be told too. Mend it.

<details><summary>Hint 1</summary>

How many bytes has `"é".encode()[:1].decode("utf-8", "replace").encode()`?
</details>

<details><summary>Hint 2</summary>

`nats` has one number less than `ids`: which id was never predicted? Its bytes are no bytes of the text whose loss this is.
</details>

<details><summary>Hint 3</summary>

The ratio of two sums is not the mean of ratios. And a nat is 1/ln 2 bits.
</details>
"""


# %%
#| solution 18-3
def bits_per_byte(nats: Tensor, ids: list[int], vocab: list[bytes]) -> float:
    """Bits for each byte of the text of ids[1:], whose losses are nats, (n - 1,)."""
    ### BEGIN SOLUTION
    size = sum(len(vocab[i]) for i in ids[1:] if i < len(vocab))
    return nats.sum().item() / math.log(2) / size
    ### INSTEAD
    # decoded = [vocab[i].decode("utf-8", "replace") for i in ids if i < len(vocab)]
    # return nats.sum().item() / math.log(2) / sum(len(part.encode()) for part in decoded)
    ### END SOLUTION


# %%
#| check 18-3
bytes_alone = [bytes([b]) for b in range(256)]
ids = [256, *"naïve café".encode(), 256]  # a special token, 12 bytes, a special token
got = bits_per_byte(torch.full((13,), math.log(2)), ids, bytes_alone)
assert got < 13 or got > 13.1, "13 bits were not divided by any bytes"
assert abs(got - 13 / 12) < 1e-6, (
    f"13 tokens of one bit each tell 12 bytes, that is {13 / 12:.4f} bits per byte, and not {got:.4f}: "
    f"decoded one by one they seem to be {sum(len(bytes_alone[i].decode('utf-8', 'replace').encode()) for i in ids[1:-1])} bytes"
)
got = bits_per_byte(torch.tensor([math.log(2), math.log(2)]), [0, 1, 2], [b"first", b"a", b"bc"])
assert abs(got - 2 / 3) < 1e-6, (
    f"2 bits for `a` and `bc` are 2/3, not {got:.4f}: the first id is not predicted, only read"
)

# %% [markdown]
r"""
## 18-4 · Two models, one set of questions

*Build · difficulty 3/5 · importance 4/5 · 20 minutes*

Checkpoint A has 30.1% of 1,000 questions right, B 31.6%. Each accuracy has a standard error of 1.5%, so the difference could be chance. Could it? Both answered the same
questions, and mostly agree. What is easy for one is easy for the other, and what both have right tells nothing of which is better.

`difference(a, b)` takes two bool tensors (n,), which questions each has right, and returns `(b's accuracy − a's, its standard error)` as floats. The n questions are a
sample: the error is that of a mean of n differences, and as in chapter 18b it has n − 1 under the root where a variance would have n.

<details><summary>Hint 1</summary>

Each question gives one number: 1, 0 or −1. You want the standard error of their mean.
</details>

<details><summary>Hint 2</summary>

An accuracy's own error is √(p(1 − p)/(n − 1)). Show that this is the deviation of n zeros and ones, with n − 1, over √n.
</details>
"""


# %%
#| solution 18-4
def difference(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Accuracy of b less that of a on the same n questions, and its standard error. a, b: (n,), bool."""
    ### BEGIN SOLUTION
    d = b.double() - a.double()
    return d.mean().item(), (d.std(correction=1) / math.sqrt(len(d))).item()
    ### END SOLUTION


# %%
#| check 18-4
a = torch.arange(1000) < 301
b = a | (torch.arange(1000) >= 985)  # all that a has, and 15 more
got = difference(a, b)
assert abs(got[0] - 0.015) < 1e-6, f"31.6% less 30.1% are 0.015, and not {got[0]:.4f}"
assert got[1] < 0.01, (
    f"the error is {got[1]:.4f}, as for two sets of questions; here only 15 of 1,000 questions are answered differently"
)
assert abs(difference(a, a)[1]) < 1e-9, "a model differs from itself by nothing, and that is certain"

# %% [markdown]
r"""
## 18-5 · The best of those who guess

*Derive · difficulty 3/5 · importance 4/5 · 20 minutes*

A run of 50 checkpoints is asked n questions with four endings each, and the best checkpoint is reported. What would the best one show if all of them only guessed, each on
its own? Write `luckiest(n, guessers, right)`: the probability that the best of them has **at least** `right` of n right. Then `answers`, a list of two, for the
values in `mine`, which are yours alone: the probability for a single guesser, and for the best of `mine["guessers"]`.

<details><summary>Hint 1</summary>

How likely has one guesser exactly k right? `math.comb(n, k)` ways, each with probability ¼ᵏ·¾ⁿ⁻ᵏ.
</details>

<details><summary>Hint 2</summary>

"The best has at least r" is the opposite of "all have less than r".
</details>
"""

# %%
mine = variant("18-5", STUDENT, n=[100, 200, 300], guessers=[10, 20, 50, 100], share=[0.3, 0.31, 0.32])
mine["right"] = round(mine.pop("share") * mine["n"])


# %%
#| solution 18-5
def luckiest(n: int, guessers: int, right: int) -> float:
    """The probability that the best of so many guessers has at least `right` of n questions with four endings right."""
    ### BEGIN SOLUTION
    less = sum(math.comb(n, k) * 0.25**k * 0.75 ** (n - k) for k in range(right))
    return 1 - less**guessers
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    luckiest(mine["n"], 1, mine["right"]),
    luckiest(**mine),
    ### INSTEAD
    # 0.0,  # for a single guesser
    # 0.0,  # for the best of yours
    ### END SOLUTION
]

# %%
#| check 18-5
assert abs(luckiest(1, 1, 1) - 0.25) < 1e-9, "one question, one guesser: ¼"
assert abs(luckiest(1, 2, 1) - 7 / 16) < 1e-9, (
    "of two guessers none is right in 9 cases of 16; both right is not what is asked"
)
assert abs(luckiest(10, 3, 0) - 1) < 1e-9, "at least none right is certain"
assert luckiest(100, 20, 30) <= 1, (
    "a probability above 1: 20 chances were added, though two may be lucky at once"
)
assert len(answers) == 2 and answers[1] > answers[0], "the best of many has a better chance than one"

# %% [markdown]
r"""
#| manual 18-6
## 18-6 · Which `acc_norm`

*Explain · difficulty 3/5 · importance 3/5 · 10 minutes*

Two papers report HellaSwag's `acc_norm`: one divides an ending's nats by its characters, one by its tokens. In five sentences: why divide at all, which kind of ending does each
of them favour beside the other, how can a new tokenizer change the second one without a better model, and what would you ask for before you compare the papers?
"""
