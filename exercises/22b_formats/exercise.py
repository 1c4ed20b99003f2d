# %% [markdown]
r"""
# Exercises 22b · Formats

Chapter 22b: files of llm.c and Megatron, to the byte. Nothing is downloaded; the files of these tasks are a few bytes in memory. No task needs another one's
solution. `course check 22b` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math
import struct
from itertools import accumulate, pairwise

from course.variants import variant

# %% [markdown]
r"""
## 22b-1 · A header, read with suspicion

*Build · difficulty 3/5 · importance 5/5 · 30 minutes*

A model file of llm.c begins with 256 integers of four bytes, little-endian: the magic number 20240326, the version, then block_size T, vocab_size V, n_layer L, n_head, n_embd C, and the padded vocabulary, the number of rows that the token table has in the file. The rest are zero. Version 3 has weights in float32, version 5 in bfloat16. Versions 1 and 2
had no padded vocabulary. After the header come the weights of a GPT-2 with biases and a tied head, each number once.

Write `count(T, V, L, C, rows)`: how many numbers the weights are, with the padding's. And write `parameters(head, length)`, which gets the first 1,024 bytes of a file (or all, if it has fewer) and the length of the file, and returns this count. It raises a `ValueError` if the file has fewer than 1,024 bytes, or another magic number, or another version than 3 or 5, or fewer padded than real rows, or if its length is not what the header asks for.

<details><summary>Hint 1</summary>

`struct.unpack("<256i", head)` gives the integers.
</details>

<details><summary>Hint 2</summary>

A block has 12 C² weights in its four matrices. Count its biases and its two LayerNorms by hand: how many times C are they?
</details>

<details><summary>Hint 3</summary>

GPT-2 small, padded to 50,304 rows, has 124,475,904 numbers.
</details>
"""


# %%
#| solution 22b-1
def count(T: int, V: int, L: int, C: int, rows: int) -> int:
    """How many numbers the weights are: positions T, tokens V, layers L, width C, rows of the token table in the file."""
    ### BEGIN SOLUTION
    return rows * C + T * C + L * (12 * C * C + 13 * C) + 2 * C
    ### END SOLUTION


def parameters(head: bytes, length: int) -> int:
    """How many numbers are in a model file of llm.c; ValueError if it is none, of another version, or torn."""
    ### BEGIN SOLUTION
    if len(head) < 1024:
        raise ValueError("no complete header")
    magic, version, T, V, L, _, C, rows = struct.unpack("<256i", head)[:8]
    if magic != 20240326:
        raise ValueError(f"begins with {magic}: no model of llm.c")
    if version not in (3, 5):
        raise ValueError(f"version {version}, not 3 or 5")
    if rows < V:
        raise ValueError(f"{rows} rows for {V} tokens")
    n = count(T, V, L, C, rows)
    if length != 1024 + n * (4 if version == 3 else 2):
        raise ValueError(f"{length} bytes, not what the header asks for")
    return n
    ### END SOLUTION


# %%
#| check 22b-1
def head_of(*numbers: int) -> bytes:
    return struct.pack("<256i", *numbers, *[0] * (256 - len(numbers)))


def refuses(head: bytes, length: int) -> bool:
    try:
        parameters(head, length)
    except ValueError:
        return True
    return False


got = count(1024, 50257, 12, 768, 50304)
assert got == 124_475_904, f"GPT-2 small with 50,304 rows has 124,475,904 numbers, not {got:,}"
small = head_of(20240326, 3, 1024, 50257, 12, 12, 768, 50304)
got = parameters(small, 1024 + 4 * 124_475_904)
assert got == 124_475_904, f"in a file of the right length there are 124,475,904 numbers, not {got:,}"
assert refuses(small, 1024 + 4 * 124_475_904 - 4), "the last number is missing, and nobody has noticed"
assert refuses(head_of(20240328, 2, 50257, 50256), 500_000), (
    "this is a tokenizer: its magic number is another one"
)
assert refuses(head_of(20240326, 1, 1024, 50257, 12, 12, 768), 1024 + 4 * 124_439_808), (
    "version 1 has no padded vocabulary; where you look for it there is a zero"
)

# %% [markdown]
r"""
## 22b-2 · From Megatron's documents to a stream

*Build · difficulty 3/5 · importance 4/5 · 25 minutes*

Chapter 22b makes Megatron's pair from the course's shards. Build the way back. `ids` are the ids of a `.bin`, `lengths` the tokens of each sequence, and `marks` say with which sequence each document begins; the last mark is the number of sequences. A document may have several sequences, or none. Megatron's end mark `eot` comes *after* a document,
if the data set was made with `--append-eod`, and is not there otherwise. The course's stream has `eot` *before* each document.

Write `to_stream(ids, lengths, marks, eot)`, a list of ids: all documents in order, each with exactly one `eot` before its text and none after it. A document that has no token at all is left out. The text of a document never holds `eot`.

<details><summary>Hint 1</summary>

Two documents of the same mark: how many sequences has the first of them?
</details>

<details><summary>Hint 2</summary>

If every document ends with `eot`, moving the last id of all to the front would be enough. What if one of them does not?
</details>
"""


# %%
#| solution 22b-2
def to_stream(ids: list[int], lengths: list[int], marks: list[int], eot: int) -> list[int]:
    """All documents one after the other, each with eot before it."""
    ### BEGIN SOLUTION
    starts = [0, *accumulate(lengths)]
    stream = []
    for first, end in pairwise(marks):
        document = ids[starts[first] : starts[end]]
        if document:
            text = document[:-1] if document[-1] == eot else document
            stream += [eot, *text]
    return stream
    ### END SOLUTION


# %%
#| check 22b-2
got = to_stream([7, 8, 0, 9, 0], [3, 2], [0, 1, 2], 0)
assert got == [0, 7, 8, 0, 9], f"two documents, 7 8 and 9, with 0 as the end mark: 0 7 8 0 9, not {got}"
got = to_stream([7, 8, 9, 0], [2, 2], [0, 2], 0)
assert got == [0, 7, 8, 9], f"one document of two sequences has one mark, not {got}"
got = to_stream([7, 0, 9, 0], [2, 2], [0, 1, 1, 2], 0)
assert got == [0, 7, 0, 9], f"the document in the middle is empty and is left out: {got}"
got = to_stream([7, 8, 9], [2, 1], [0, 1, 2], 0)
assert got == [0, 7, 8, 0, 9], f"made without --append-eod: nothing may be lost, and you have {got}"

# %% [markdown]
r"""
## 22b-3 · A check for a reader of indexes

*Check · difficulty 4/5 · importance 4/5 · 30 minutes*

`read_lengths(raw)` reads the bytes of a Megatron `.idx` and returns the list of the lengths of its sequences, or None if the bytes are not a sound index. They are sound if

- they begin with the nine bytes `MMIDIDX\0\0`, and the version is 1;
- the code of the type is 4 (int32) or 8 (uint16), the only two that this reader takes;
- there are exactly 34 + 12 n + 8 m of them, for n sequences and m marks;
- the place of each sequence is where the ones before it end, in bytes;
- the marks begin with 0, never fall, and end with n.

`index` builds sound bytes. Write `check_reader(read_lengths)`, which raises an `AssertionError` if a reader does not do this, and accepts every reader that does.

<details><summary>Hint 1</summary>

One change at a time: build sound bytes, break one thing, and ask. Where in the bytes is the version, and where the first place?
</details>

<details><summary>Hint 2</summary>

A reader that refuses everything refuses all that is broken, too. And a file can be too long.
</details>
"""


# %%
SIZES = {4: 4, 8: 2}  # bytes of an id by the code of its type


def index(lengths: list[int], marks: list[int], code: int = 8) -> bytes:
    """The bytes of a sound index."""
    places = [SIZES[code] * start for start in [0, *accumulate(lengths)][:-1]]
    head = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, len(lengths), len(marks))
    numbers = struct.pack(f"<{len(lengths)}i", *lengths), struct.pack(f"<{len(places)}q", *places)
    return head + numbers[0] + numbers[1] + struct.pack(f"<{len(marks)}q", *marks)


# %%
#| solution 22b-3
def check_reader(read_lengths) -> None:
    """Raises AssertionError unless read_lengths reads sound indexes and refuses others with None."""
    ### BEGIN SOLUTION
    for lengths, marks in (([3], [0, 1]), ([3, 1, 2], [0, 1, 1, 3]), ([5, 2, 70_000, 1], [0, 2, 4])):
        for code in SIZES:
            raw = index(lengths, marks, code)
            got = read_lengths(raw)
            assert got is not None and list(got) == lengths, f"{lengths} come back as {got}"
    raw = index([3, 1, 2], [0, 1, 1, 3])
    marks_at = 34 + 12 * 3
    broken = {
        "magic": b"MMIDIDY" + raw[7:],
        "version": raw[:9] + struct.pack("<Q", 2) + raw[17:],
        "code": raw[:17] + b"\6" + raw[18:],
        "places for another type": raw[:17] + b"\4" + raw[18:],
        "torn": raw[:-8],
        "too long": raw + bytes(8),
        "a place": raw[:54] + struct.pack("<q", 8) + raw[62:],
        "the first place": raw[:46] + struct.pack("<q", 2) + raw[54:],
        "first mark": raw[:marks_at] + struct.pack("<4q", 1, 1, 1, 3),
        "last mark": raw[:marks_at] + struct.pack("<4q", 0, 1, 1, 2),
        "marks that fall": raw[:marks_at] + struct.pack("<4q", 0, 2, 1, 3),
    }
    for what, bad in broken.items():
        assert read_lengths(bad) is None, f"accepted: {what}"
    ### END SOLUTION


# %%
#| check 22b-3
def refused(read_lengths) -> bool:
    try:
        check_reader(read_lengths)
    except AssertionError:
        return True
    return False


def careful(raw: bytes):
    if len(raw) < 34:
        return None
    magic, version, code, n, m = struct.unpack("<9sQBQQ", raw[:34])
    if magic != b"MMIDIDX\0\0" or version != 1 or code not in SIZES or len(raw) != 34 + 12 * n + 8 * m:
        return None
    lengths = list(struct.unpack(f"<{n}i", raw[34 : 34 + 4 * n]))
    marks = struct.unpack(f"<{m}q", raw[34 + 12 * n :])
    rising = m > 0 and marks[0] == 0 and marks[-1] == n and all(a <= b for a, b in pairwise(marks))
    return lengths if rising and raw == index(lengths, list(marks), code) else None


def trusting(raw: bytes):
    n = struct.unpack("<Q", raw[18:26])[0]
    return list(struct.unpack(f"<{n}i", raw[34 : 34 + 4 * n]))


assert not refused(careful), "your check refuses a reader that does all that is asked"
assert refused(trusting), "this reader looks at nothing but the lengths, and your check accepts it"
assert refused(lambda raw: None), "this reader refuses everything, and your check accepts it"

# %% [markdown]
r"""
## 22b-4 · What a run asks of its splits

*Derive · difficulty 3/5 · importance 4/5 · 20 minutes*

A Megatron run makes `iterations` updates with `rows` rows each. Every `every` iterations it validates with `batches` batches of as many rows, and once more at the end; `every` divides the iterations. At last it tests with `batches` batches. Each split is asked for that many samples of T targets.

Write `wanted(iterations, every, batches, rows)`, the list of the samples for training, validation and testing. Write `seen_before(tokens, T, samples)`: of so many samples that are drawn from a split of so many tokens, how many at least are of text that another pass has read already. And `documents(samples, T, mean)`: with how many documents of `mean` tokens each one pass is enough.

A published run's numbers were 1,000 iterations of 16 rows, a validation every 50 with five batches, and T = 512. Yours are in `mine`, and `answers` is the list of the three numbers of `wanted`, then `seen_before` and `documents` for its test split.

<details><summary>Hint 1</summary>

The published log asks for 16,000, 1,680 and 80 samples. Where do the 1,680 come from?
</details>

<details><summary>Hint 2</summary>

A pass over `tokens` tokens gives (tokens − 1) // T samples. Why is one token taken off?
</details>
"""

# %%
mine = variant(
    "22b-4",
    STUDENT,
    iterations=[2000, 6000, 10_000],
    every=[100, 250, 500],
    batches=[5, 10],
    rows=[16, 32],
    tokens=[31_000, 52_000, 77_000],
    T=[512, 1024],
    mean=[970, 3220],
)


# %%
#| solution 22b-4
def wanted(iterations: int, every: int, batches: int, rows: int) -> list[int]:
    """Samples that training, validation and testing ask for."""
    ### BEGIN SOLUTION
    validations = iterations // every + 1
    return [iterations * rows, validations * batches * rows, batches * rows]
    ### END SOLUTION


def seen_before(tokens: int, T: int, samples: int) -> int:
    """How many samples at least are of text that was read before."""
    ### BEGIN SOLUTION
    return max(0, samples - (tokens - 1) // T)
    ### END SOLUTION


def documents(samples: int, T: int, mean: int) -> int:
    """How many documents of so many tokens each are enough for one pass."""
    ### BEGIN SOLUTION
    return math.ceil((samples * T + 1) / mean)
    ### END SOLUTION


asked = wanted(*(mine[name] for name in ("iterations", "every", "batches", "rows")))
answers = [
    ### BEGIN SOLUTION
    *asked,
    seen_before(mine["tokens"], mine["T"], asked[2]),
    documents(asked[2], mine["T"], mine["mean"]),
    ### INSTEAD
    # 0,  # training
    # 0,  # validation
    # 0,  # testing
    # 0,  # seen_before
    # 0,  # documents
    ### END SOLUTION
]

# %%
#| check 22b-4
got = wanted(1000, 50, 5, 16)
assert got == [16_000, 1680, 80], f"the published run asks for 16,000, 1,680 and 80 samples, not {got}"
got = seen_before(32_513, 512, 80)
assert got == 17, f"the published test split gives 63 samples in a pass, so 17 of 80 come again, not {got}"
assert seen_before(100_000, 512, 80) == 0, "a split that is large enough is read once"
assert documents(10, 10, 101) == 1 and documents(10, 10, 100) == 2, (
    "ten samples of ten targets need 101 tokens: the last target is one more"
)

# %% [markdown]
r"""
#| manual 22b-5
## 22b-5 · The judge says OK

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

A student writes GPT-2 with the exact GELU in place of its tanh approximation. They write the model and a debug state in llm.c's format, and llm.c's own test says `overall okay: 1`. In four sentences: why can the test pass although the function is another one; why would a small model with small gradients pass with almost any gradients; which number of the test's output would have shown it; and
how would you choose the weights or the tolerance so that the verdict itself says no?
"""
