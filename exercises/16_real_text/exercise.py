# %% [markdown]
r"""
# Exercises 16 · Real text

Chapters 16, 16a and 16b: where a text may be cut and what a vocabulary makes of it (16a), a preparation that is taken away and goes on
(16b), and what validation measures (16). The tasks do not need each other. `course check 16` runs the visible checks, `course progress` says what is left.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math
from itertools import pairwise

import regex

from course.variants import variant
from nanogpt.tokenizer import GPT2_PATTERN

# %% [markdown]
r"""
## 16-1 · A cut that changes no id

*Repair · difficulty 2/5 · importance 5/5 · 10 minutes*

A text that does not fit into memory is read in pieces, and each piece is encoded by itself. GPT-2 first cuts a text into chunks
(`chunks` below), and no token crosses from one chunk into the next. So a piece may end where a chunk ends in the *whole* text, and
nowhere else. The function below cuts behind a blank, as many scripts do. All ids at the seam change, no error is raised, and the model
learns a text that nobody wrote.

Mend `first_cut(text, at)`. It returns the first place from `at` on where a blank or a newline begins behind a visible character, or
`len(text)` if there is none. A place `i` cuts into `text[:i]` and `text[i:]`. Place 0 has no character before it.

Why these places, of all where a chunk ends? They can be told from two characters, whatever the text.

    first_cut("one two", 1) == 3        first_cut("one two", 4) == 7

<details><summary>Hint 1</summary>

Print `chunks("one two   three")`. To which chunk does the blank before "two" belong? And the three before "three"?
</details>

<details><summary>Hint 2</summary>

Of several blanks in a row, the last one goes to the word behind them. What becomes of the others if the text is cut between them?
</details>
"""


# %%
def chunks(text: str) -> list[str]:
    """What GPT-2 cuts a text into before any merge."""
    return regex.findall(GPT2_PATTERN, text)


# %%
#| solution 16-1
def first_cut(text: str, at: int) -> int:
    """The first place from `at` on where `text` may be cut: before a blank or newline, behind a visible character."""
    ### BEGIN SOLUTION
    for i in range(max(at, 1), len(text)):
        if text[i] in " \n" and not text[i - 1].isspace():
            return i
    return len(text)
    ### INSTEAD
    # for i in range(max(at, 1), len(text)):
    #     if text[i - 1] in " \n":
    #         return i
    # return len(text)
    ### END SOLUTION


# %%
#| check 16-1
for text in ("one two", "one   two", "a line\n\nand another", "it's 12 cats", "no-blank"):
    for at in range(1, len(text)):
        cut = first_cut(text, at)
        assert at <= cut <= len(text), (
            f"first_cut({text!r}, {at}) is {cut}, which does not lie between {at} and the end"
        )
        assert chunks(text[:cut]) + chunks(text[cut:]) == chunks(text), (
            f"{text!r} cut at {cut} gives {chunks(text[:cut])} and {chunks(text[cut:])}, and the whole has {chunks(text)}: "
            "which half does a blank belong to?"
        )
assert first_cut("one two", 3) == 3, "a place at `at` itself counts"

# %% [markdown]
r"""
## 16-2 · A vocabulary without its merges

*Find · difficulty 4/5 · importance 4/5 · 30 minutes*

GPT-2's tokenizer is two files. `vocab.json` gives each token its id. `merges.txt` says which two tokens become one, the most urgent
first; a line is `a b`. Somebody trains a tokenizer and copies one file without the other, or one of an older run. Nothing complains.
Tokens that the merges never make keep their ids and their rows of the embedding, and no text ever uses them. A published run lost all
merges in this way, and trained on bytes.

Write `lost(vocab, merges)`: the tokens in `vocab`, in its order, that are never made. A token is made if the merges, applied to its own
characters, leave it as one piece. They are applied as GPT-2 does: as long as there are two neighbours with a line of their own, take
the pair whose line comes first, and merge it wherever it stands, from left to right. Special tokens, such as `<|endoftext|>`, are not
made by merges and not lost. Here each character stands for a byte.

    lost(["a", "b", "c", "ab", "abc", "<|endoftext|>"], ["a b"]) == ["abc"]

<details><summary>Hint 1</summary>

Write `pieces(word, merges)` first: the list of characters, and a loop that ends where no pair of neighbours has a line.
</details>

<details><summary>Hint 2</summary>

Is it enough that a line makes the token? Take the lines `b c`, `a b`, `ab c`. What do they make of `abc`?
</details>

<details><summary>Hint 3</summary>

A dictionary from pair to the line's number gives the pair with the smallest one by `min(..., key=...)`. A pair without a line has infinity.
</details>
"""


# %%
#| solution 16-2
def lost(vocab: list[str], merges: list[str]) -> list[str]:
    """The tokens of `vocab` that the merges do not make out of their own characters; special ones are never lost."""
    ### BEGIN SOLUTION
    rank = {tuple(line.split(" ")): i for i, line in enumerate(merges)}

    def pieces(word: str) -> list[str]:
        parts = list(word)
        while True:
            first = min(pairwise(parts), key=lambda pair: rank.get(pair, math.inf), default=None)
            if first not in rank:
                return parts
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == first:
                    parts[i : i + 2] = [parts[i] + parts[i + 1]]
                i += 1

    special = [token for token in vocab if token.startswith("<|") and token.endswith("|>")]
    return [token for token in vocab if token not in special and len(pieces(token)) > 1]
    ### END SOLUTION


# %%
#| check 16-2
small = ["a", "b", "c", "ab", "abc", "<|endoftext|>"]
assert lost(small, ["a b"]) == ["abc"], (
    f"no line makes abc, and all else is there; you found {lost(small, ['a b'])}"
)
assert lost(small, ["a b", "ab c"]) == [], (
    "with both lines nothing is lost; single characters and special tokens never are"
)
assert lost(small, []) == ["ab", "abc"], "without any line all tokens of two and more characters are lost"
assert lost(small, ["ab c"]) == ["ab", "abc"], "a line for ab and c is of no use where nothing makes ab"

# %% [markdown]
r"""
## 16-3 · A job that is taken away

*Derive · difficulty 4/5 · importance 3/5 · 30 minutes*

A preparation of `job` hours runs on a machine that is taken away at random, on average every `away` hours: the time to the next time is
exponential, whatever happened before. The work is cut into chunks of `chunk` hours. A chunk that is interrupted begins again from its
start, one that is whole is kept. To begin a chunk costs `begin` hours, each time. A new machine is there at once. `job` is a multiple
of `chunk`.

Derive how many hours it takes on average, and write `expected_hours`. Then `answers`, a list of two: the hours for the values in
`mine`, which are yours alone, with all the work in one chunk, and with chunks of `mine["chunk"]`.

The result is why `prepare` works in chunks at all, and it says what their size may be.

<details><summary>Hint 1</summary>

One chunk first. Let it need c hours without interruption. With which probability is it whole at the first attempt?
</details>

<details><summary>Hint 2</summary>

Let E be its average. An attempt that fails at time t costs t, and then E again: E = ∫₀ᶜ (t + E) e^(−t/a)/a dt + c e^(−c/a).
</details>

<details><summary>Hint 3</summary>

For small c/a your formula must give about c + c²/2a: half a chunk lost each time. What does it give for 12 hours and 4?
</details>
"""

# %%
mine = variant(
    "16-3", STUDENT, job=[12, 24, 36], away=[4, 5, 6, 8], chunk=[0.25, 0.5, 1.0], begin=[0.01, 0.02, 0.05]
)


# %%
#| solution 16-3
def expected_hours(job: float, away: float, chunk: float, begin: float) -> float:
    """Hours until `job` hours of work are done in chunks, on a machine that is taken away every `away` hours on average."""
    ### BEGIN SOLUTION
    return job / chunk * away * (math.exp((chunk + begin) / away) - 1)
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    expected_hours(mine["job"], mine["away"], mine["job"], mine["begin"]),
    expected_hours(**mine),
    ### INSTEAD
    # 0.0,  # hours in one chunk
    # 0.0,  # hours in your chunks
    ### END SOLUTION
]

# %%
#| check 16-3
assert abs(expected_hours(1, 1e9, 0.5, 0) - 1) < 1e-5, (
    "on a machine that is never taken away a job takes its own time"
)
assert abs(expected_hours(1, 1e9, 0.5, 0.25) - 1.5) < 1e-5, "two chunks begin twice: 0.25 hours each time"
assert expected_hours(12, 4, 12, 0) > 40, (
    "12 hours without a break have a chance of e^-3: one attempt in 20 succeeds, and the others cost time too"
)
assert len(answers) == 2 and answers[1] < answers[0], "the first answer is without chunks, and the larger one"

# %% [markdown]
r"""
## 16-4 · Who makes which chunk

*Check · difficulty 3/5 · importance 4/5 · 20 minutes*

`prepare --part 2/3` makes one part of three on a machine of its own. `deal(count, p, n)` says which: the numbers of the chunks, of
`count` from 0 on, that part `p` of `n` makes, as a list. `p` counts from 1. A chunk that nobody makes is missing from the corpus, one
that two make costs twice, and neither is seen before the merge.

Write `check_deal(deal)`. It calls `deal` and raises an `AssertionError`, with a message, if deal breaks the rule: **each chunk is
made by exactly one part, and no part makes over one chunk more than another**. It accepts every deal that keeps the rule, in whatever
order it deals. Your score is which of our wrong ones it refuses; a right one that is refused costs all.

<details><summary>Hint 1</summary>

There are many right ones: every n-th chunk, or one stretch after another. So compare with the rule, not with lists.
</details>

<details><summary>Hint 2</summary>

Which mistakes are seen only if count is no multiple of n? Which if there are fewer chunks than parts? Which with one part?
</details>
"""


# %%
#| solution 16-4
def check_deal(deal) -> None:
    """Raises AssertionError unless deal(count, p, n) gives each chunk to exactly one part, evenly."""
    ### BEGIN SOLUTION
    for count in (0, 1, 5, 6, 7, 12):
        for n in (1, 2, 3, 8):
            parts = [deal(count, p, n) for p in range(1, n + 1)]
            made = sorted(chunk for part in parts for chunk in part)
            assert made == list(range(count)), f"{n} parts of {count} chunks make {made}"
            sizes = [len(part) for part in parts]
            assert max(sizes) - min(sizes) <= 1, f"{n} parts of {count} chunks have {sizes}"
    ### END SOLUTION


# %%
#| check 16-4
def refused(deal) -> bool:
    try:
        check_deal(deal)
    except AssertionError:
        return True
    return False


assert not refused(lambda count, p, n: list(range(p - 1, count, n))), (
    "every n-th chunk is right, and your check refuses it"
)
assert not refused(lambda count, p, n: list(range((p - 1) * count // n, p * count // n))), (
    "one stretch after another is right, and your check refuses it"
)
assert refused(lambda count, p, n: list(range(count))), (
    "here every part makes all chunks, and your check accepts it"
)
assert refused(lambda count, p, n: list(range(p, count, n))), (
    "here p counts from 0, chunk 0 is lost, and your check accepts it"
)

# %% [markdown]
r"""
#| manual 16-5
## 16-5 · What validation measures

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

A crawl of a million pages, in the order in which a robot found them, is tokenized on four machines. A colleague takes the last 1% of
each machine's pages for validation. You propose that a hash of each page's text decides. In five sentences: name two things by which the two
validation losses may differ, say in which direction, and say what becomes of each split when another 100,000 pages arrive next month.
"""
