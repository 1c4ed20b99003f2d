# %% [markdown]
r"""
# Exercises 01 · Tokenizer

Work from top to bottom, or begin where you like: no task needs another one's solution. `course check 01` runs the
visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import random
from collections import Counter
from itertools import pairwise

import regex

from course.variants import variant
from nanogpt.tokenizer import merge_chunk
from nanogpt.tokenizer import GPT2_PATTERN

# %% [markdown]
r"""
## 01-1 · What WordPiece merges

*Build · difficulty 2/5 · importance 4/5 · 20 minutes*

BERT's tokenizer, WordPiece, also learns by merging pairs, but it asks another question. BPE takes the pair that occurs most
often. WordPiece takes the pair whose parts belong together: it divides the number of times that the pair occurs by the number of
times that its left id occurs, times the number of times that its right id occurs (Hugging Face's course, chapter 6, describes
it so).

Write one step: `merge_step(words, times, new)` gets words as lists of ids, how often each word occurs, and the id that is
free. It returns the pair with the highest score and the words after this pair became `new`. All pairs of neighbours count,
overlapping ones too. Among equal scores the pair with the smallest ids wins, the left id compared first. Where no word has
two ids the pair is `None`.

`merge_step([[97, 98], [97, 99], [100, 101]], [5, 5, 1], 256)` is `((100, 101), [[97, 98], [97, 99], [256]])`: the pair (97, 98)
occurs five times, and 97 ten times, so its score is 5 / (10 · 5). The pair (100, 101) occurs once, and so do 100 and 101.

<details><summary>Hint 1</summary>

Three steps: count pairs and single ids, find the pair, replace it. Each has its own trap; test them apart.
</details>

<details><summary>Hint 2</summary>

`max` over scores keeps the first of equals, in the order in which they were met. Which key makes the smallest pair
win? `min` with a negative score is one way. Divide only once, `n / (left * right)`: then equal scores are equal floats.
</details>

<details><summary>Hint 3</summary>

Replace while you walk: keep a list of what is finished, and look at its last id and the next one. What happens to
three equal ids?
</details>
"""


# %%
#| solution 01-1
def merge_step(words: list[list[int]], times: list[int], new: int) -> tuple:
    """(the pair that WordPiece merges, or None; the words after it became `new`)."""
    ### BEGIN SOLUTION
    counts, single = Counter(), Counter()
    for ids, n in zip(words, times):
        for i in ids:
            single[i] += n
        for pair in pairwise(ids):
            counts[pair] += n
    if not counts:
        return None, words
    score = {(a, b): counts[a, b] / (single[a] * single[b]) for a, b in counts}
    best = min(score, key=lambda pair: (-score[pair], pair))
    merged = []
    for ids in words:
        done = []
        for i in ids:
            if done and (done[-1], i) == best:
                done[-1] = new
            else:
                done.append(i)
        merged.append(done)
    return best, merged
    ### END SOLUTION


# %%
#| check 01-1
pair, words = merge_step([[97, 98], [97, 99], [100, 101]], [5, 5, 1], 256)
assert pair == (100, 101), f"100 and 101 occur together only, so (100, 101) is merged, not {pair}"
pair, words = merge_step([[98, 97], [97, 98]], [2, 2], 256)
assert pair == (97, 98), f"of two pairs with the same score the smaller one, (97, 98), is merged, not {pair}"
pair, words = merge_step([[97, 97, 97]], [1], 256)
assert words == [[256, 97]], (
    f"aaa becomes [256, 97], not {words[0]}: an id belongs to one merge, the left one"
)
pair, words = merge_step([[97], [98]], [7, 7], 256)
assert pair is None, (
    f"no word has two ids, so nothing is merged; no token reaches from one word into the next, not even {pair}"
)

# %% [markdown]
r"""
## 01-2 · Longest match first

*Build · difficulty 3/5 · importance 3/5 · 30 minutes*

Why not forget the order of the merges and take, from left to right, the longest token that fits? WordPiece, BERT's
tokenizer, encodes so. Write `longest_match(chunk, vocab)`: the ids of a byte string, where the id of a token is its
place in `vocab`.

Then compare with BPE over the small vocabulary `banana` below. Give a text `fewer`, of which longest match makes
*fewer* tokens than BPE, and a text `more`, of which it makes *more*. Each has at most 8 letters, all of them from a,
b, d and n.

<details><summary>Hint 1</summary>

A dictionary from bytes to id, and a loop over lengths from long to short. One byte always fits.
</details>

<details><summary>Hint 2</summary>

There are 4⁸ texts of 8 letters: find the two by thought, or let the machine try all. `compare` shows one.
</details>

<details><summary>Hint 3</summary>

BPE merges `an` before anything else, wherever it stands. When does that take an n away from a longer token, and when
does taking `ana` first leave letters behind that fit nothing?
</details>
"""

# %%
learned = [
    b"an",
    b"ban",
    b"nd",
    b"and",
    b"ab",
    b"ana",
]  # in the order of the merges: a+n, b+an, n+d, an+d, a+b, an+a
banana = [bytes([i]) for i in range(256)] + learned

# %%
#| solution 01-2
fewer = more = "banana"


def longest_match(chunk: bytes, vocab: list[bytes]) -> list[int]:
    """Ids of `chunk`: at each place the longest token of `vocab` that fits there."""
    ### BEGIN SOLUTION
    place = {token: i for i, token in enumerate(vocab)}
    longest = max(map(len, vocab))
    ids, at = [], 0
    while at < len(chunk):
        stop = next(stop for stop in range(min(len(chunk), at + longest), at, -1) if chunk[at:stop] in place)
        ids.append(place[chunk[at:stop]])
        at = stop
    return ids
    ### END SOLUTION


### BEGIN SOLUTION
fewer, more = "abana", "anana"
### END SOLUTION


# %%
#| check 01-2
def compare(text: str) -> tuple[int, int]:
    """How many tokens longest match makes of a text, and how many BPE."""
    ranks = {token: i for i, token in enumerate(banana)}
    return len(longest_match(text.encode(), banana)), len(merge_chunk(text.encode(), ranks))


ids = longest_match(b"bandana", banana)
assert b"".join(banana[i] for i in ids) == b"bandana", f"{ids} do not spell bandana"
assert ids == [257, 100, 261], f"bandana is ban, d, ana, not {[banana[i] for i in ids]}"
assert longest_match(b"", banana) == [], "an empty chunk has no ids"
for text in (fewer, more):
    assert 0 < len(text) <= 8 and set(text) <= set("abdn"), (
        f"{text!r} is not 1 to 8 letters from a, b, d and n"
    )
assert compare(fewer)[0] < compare(fewer)[1], (
    f"{fewer}: longest match makes {compare(fewer)[0]} tokens, BPE {compare(fewer)[1]}"
)
assert compare(more)[0] > compare(more)[1], (
    f"{more}: longest match makes {compare(more)[0]} tokens, BPE {compare(more)[1]}"
)

# %% [markdown]
r"""
## 01-3 · Digits from the right

*Build · difficulty 4/5 · importance 3/5 · 30 minutes*

GPT-4's pattern cuts digits into threes from the left: 1234567 is 123, 456, 7, so that the same digit is a hundred in
one number and a unit in the next. Write a `pattern` that cuts them from the right, 1, 234, 567, as one writes
thousands. A digit is what `\p{N}` matches, and one space before a number stays with its first piece, as in GPT-2's
pattern. All else is cut as GPT-2's pattern cuts it, and no character is lost.

<details><summary>Hint 1</summary>

Only one alternative of GPT-2's pattern takes digits. Replace that one and leave the rest.
</details>

<details><summary>Hint 2</summary>

One to three digits may end here if the number of digits still to come is a multiple of three. A lookahead, `(?=…)`,
asks about what comes and takes nothing.
</details>

<details><summary>Hint 3</summary>

"A multiple of three, and then no digit" is `(?:\p{N}{3})*` followed by `(?!\p{N})`. With plain parentheses `findall`
returns what stands in them in place of the match.
</details>
"""

# %%
#| solution 01-3
pattern = GPT2_PATTERN
### BEGIN SOLUTION
pattern = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
### END SOLUTION

# %%
#| check 01-3
pieces = regex.findall(pattern, "1234567")
assert pieces == ["1", "234", "567"], f"1234567 is cut into {pieces}; threes are counted from the last digit"
pieces = regex.findall(pattern, "pay 1234 coins")
assert "".join(pieces) == "pay 1234 coins", f"something is lost: {pieces}"
assert pieces == ["pay", " 1", "234", " coins"], (
    f"{pieces}: a number may stand in the middle of a text, with its space"
)
assert regex.findall(pattern, "She'll") == ["She", "'ll"], "what is no digit is cut as before"

# %% [markdown]
r"""
## 01-4 · A row of a's

*Derive · difficulty 3/5 · importance 3/5 · 20 minutes*

A tokenizer has learned `k` merges from rows of a's: a + a is id 256, aa + aa is 257, and so on, each joining two of
the token before. It encodes a chunk of `n` a's, and a is id 97. How many `tokens` does that make? And which ids, in
order, are its `ending`: all that follow the last token of the longest kind? (With n = 7 and k = 2: aaaa, aa, a, so 3
tokens, and the ending is `[256, 97]`.)

Your n is too large to try, so find the law on small ones.

<details><summary>Hint 1</summary>

Write down n = 5, 6, 7, 8 for k = 1, then for k = 2. Which merge happens first, and on which a's?
</details>

<details><summary>Hint 2</summary>

After the first merge you have n // 2 times aa and perhaps one a. At which end does it stand? Then the same happens to
the aa's.
</details>

<details><summary>Hint 3</summary>

What is left over at each merge is one binary digit of n.
</details>
"""

# %%
mine = variant(
    "01-4",
    STUDENT,
    n=[1_000_000_007, 3_141_592_653, 2_718_281_829, 1_618_033_979, 9_876_543_210],
    k=[5, 6, 7, 8, 9],
)
mine

# %%
#| solution 01-4
n, k = mine["n"], mine["k"]
tokens, ending = 0, []
### BEGIN SOLUTION
whole, left = divmod(n, 2**k)
tokens = whole + left.bit_count()
ending = [255 + bit if bit else 97 for bit in reversed(range(k)) if left >> bit & 1]
### END SOLUTION

# %%
#| check 01-4
size = {97: 1} | {256 + i: 2 ** (i + 1) for i in range(mine["k"])}
assert set(ending) <= set(size), f"{set(ending) - set(size)} is no id of this tokenizer"
covered = sum(size[i] for i in ending)
assert covered < 2 ** mine["k"], (
    f"the ending covers {covered} a's: room for one more token of the longest kind"
)
assert covered == mine["n"] % 2 ** mine["k"], (
    f"the ending covers {covered} a's; then the rest is no multiple of the longest token"
)
assert len(ending) == len(set(ending)), "an id stands twice in the ending, and would have been merged"
assert tokens == mine["n"] // 2 ** mine["k"] + len(ending), (
    f"{tokens} tokens are not the long ones and the ending"
)

# %% [markdown]
r"""
## 01-5 · A check that nothing is lost

*Check · difficulty 3/5 · importance 5/5 · 30 minutes*

A tokenizer first cuts text into chunks. If the cut loses a character, no later step brings it back, and no loss says
so. Write `check_split(split)`: it gets a function from a text to its list of chunks, and raises an `AssertionError`
if the chunks, put together, are not the text, or if one is empty. Where texts are cut is free.

The law is one line. The work is in the texts: your check is graded by how many of our lossy cutters it refuses, each
of which loses something else, and it must accept every one that keeps everything. They run elsewhere, so keep to some
hundreds of calls, and texts to a few hundred characters that have UTF-8 (no lone surrogates).

<details><summary>Hint 1</summary>

What is not a word? Spaces at both ends, line ends, tabs, punctuation, digits, signs that are neither.
</details>

<details><summary>Hint 2</summary>

`\d` and `\p{N}` differ on ½, `[A-Za-z]` and `\p{L}` on é, "\n" and "\r\n" on Windows. Does é have to be one code
point? Unicode has two ways to write it.
</details>

<details><summary>Hint 3</summary>

Draw texts at random from a list of characters that holds a few of every kind, the rare ones as often as the letters,
and mix them: some cutters lose a character only beside another one. Do not forget the text without characters.
</details>
"""


# %%
#| solution 01-5
def check_split(split) -> None:
    """AssertionError if split(text), a list of chunks, loses or changes something, or has an empty chunk."""
    ### BEGIN SOLUTION
    kinds = [
        "aZéßи写ह",
        "e\u0301\u0323",
        "0७½²Ⅷ",
        ".,'’!_-<|>€",
        " \t\n\r\v\f\u00a0\u2028\u3000",
        "🙂👩\u200d🚀\ufeff",
        "\0\x1b",
    ]
    rng = random.Random(0)
    texts = ["", " ", "a\nb", "a\r\nb", "it's IT'S", "a  b", " a "]
    texts += ["".join(rng.choice(rng.choice(kinds)) for _ in range(30)) for _ in range(100)]
    for text in texts:
        chunks = split(text)
        assert "".join(chunks) == text, f"{text!r} became {chunks}"
        assert all(chunks), f"{text!r} has an empty chunk"
    ### END SOLUTION


# %%
#| check 01-5
def says(split) -> str:
    try:
        check_split(split)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


gpt2 = regex.compile(GPT2_PATTERN).findall
assert says(gpt2) == "accepted", f"GPT-2's own cut, which loses nothing, is {says(gpt2)}"
assert says(list) == "accepted", "every character as a chunk of its own is a cut too"
assert says(str.split) != "accepted", "your check accepts text.split(), which throws all spaces away"
assert says(lambda text: gpt2(text.lower())) != "accepted", (
    "your check accepts a cut that makes all letters small"
)

# %% [markdown]
r"""
#| manual 01-6
## 01-6 · A space too many

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

Someone prompts GPT-2 with `Ann has seven ` and is surprised that it goes on worse than without the space at the end.
Explain with GPT-2's pattern what the last id of this prompt is, which ids can have followed it in training and which
cannot. Three to six sentences. What would you do to a prompt before it is encoded?
"""
