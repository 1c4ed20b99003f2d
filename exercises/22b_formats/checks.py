"""How exercises 22b are graded."""

import struct

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def asked(s, head, length):
    """The number, or that the file is refused."""
    try:
        return s.parameters(head, length)
    except ValueError:
        return "ValueError"


def packed(order: str, *numbers: int) -> bytes:
    return struct.pack(f"{order}256i", *numbers, *[0] * (256 - len(numbers)))


def a_file(draw, version=3, magic=20240326, padding=47, more=0, order="<", size=4) -> tuple:
    """A header and the length that it asks for, or `more` bytes than that."""
    T, V, L, C = number(draw, 8, 99), number(draw, 100, 900), number(draw, 1, 9), 4 * number(draw, 1, 20)
    n = (V + padding) * C + T * C + L * (12 * C * C + 13 * C) + 2 * C
    head = packed(order, magic, version, T, V, L, 4, C, V + padding)
    return head, 1024 + n * (2 if version == 5 else size) + more


def sound_files(draw):
    return [
        a_file(draw),
        a_file(draw, version=5),
        a_file(draw, padding=0),
        a_file(draw, padding=number(draw, 1, 127)),
    ]


def some_shapes(draw):
    found = [[number(draw, 2, 99) for _ in range(4)] for _ in range(2)]
    return [(T, V, L, C, V + more) for (T, V, L, C), more in zip(found, (0, 47))]


def other_files(draw):
    """Torn, too long, of other versions and kinds, with too few rows, big-endian, and no complete header; one that is sound."""
    return [
        a_file(draw, more=-4),
        a_file(draw, version=5, more=2),
        a_file(draw, version=4),
        a_file(draw, version=4, size=2),
        a_file(draw, version=2),
        a_file(draw, magic=20240327),
        a_file(draw, padding=-3),
        a_file(draw, order=">"),
        a_file(draw, more=-1024),
        (a_file(draw)[0][:1000], 1000),
        (b"", 0),
        a_file(draw),
    ]  # fmt: skip


def pair_of(draw, documents: int, several: bool, end: float) -> tuple:
    """ids, lengths, marks, eot: some documents are empty, some have several sequences, some end with eot."""
    ids, lengths, marks = [], [], [0]
    for _ in range(documents):
        sequences = number(draw, 0, 4) if several else 1
        for i in range(sequences):
            n = number(draw, 1, 5)
            ids += torch.randint(1, 50, (n,), generator=draw).tolist()
            last = i == sequences - 1 and torch.rand((), generator=draw).item() < end
            ids += [0] * last
            lengths.append(n + last)
        marks.append(len(lengths))
    return ids, lengths, marks, 0


def plain_pairs(draw):
    return [pair_of(draw, 4, False, 1.0), ([], [], [0, 0], 0)]


def odd_pairs(draw):
    """Several sequences, empty documents, some that end with no mark or all; the first and the last one empty."""
    return [
        pair_of(draw, 9, True, 1.0),
        pair_of(draw, 9, True, 0.5),
        pair_of(draw, 5, False, 0.0),
        ([3, 4, 0], [2, 1], [0, 0, 2, 2], 0),
        ([3, 4, 5], [1, 2], [0, 1, 2], 0),
    ]


def some_runs(draw):
    return [(every * number(draw, 1, 30), every, number(draw, 1, 9), number(draw, 1, 64)) for every in (1, 20, number(draw, 2, 99))]  # fmt: skip


def some_splits(draw):
    """Also the border: one token more or less than a whole number of samples."""
    T, n = number(draw, 5, 500), number(draw, 2, 60)
    return [(T * n + 1, T, n + 3), (T * n, T, n + 3), (T * n + 1, T, n), (T * n, T, n), (T * n * 3, T, n)]


def some_documents(draw):
    T, n = number(draw, 5, 500), number(draw, 2, 60)
    return [(n, T, T * n + 1), (n, T, T * n), (n, T, number(draw, 10, 99)), (n, T, 10 * T * n)]


READER = """
import struct

def read_lengths(raw):
    if len(raw) < 34:
        return None
    magic, version, code, n, m = struct.unpack("<9sQBQQ", raw[:34])
    if magic != b"MMIDIDX\\0\\0":
        return None
    if version != 1:
        return None
    if code not in (4, 8):
        return None
    if len(raw) != 34 + 12 * n + 8 * m:
        return None
    numbers = struct.unpack(f"<{n}i{n}q{m}q", raw[34:34 + 12 * n + 8 * m])
    lengths, places, marks = list(numbers[:n]), numbers[n:2 * n], numbers[2 * n:]
    size = 4 if code == 4 else 2
    if any(place != size * sum(lengths[:i]) for i, place in enumerate(places)):
        return None
    if not marks or marks[0] != 0:
        return None
    if marks[-1] != n:
        return None
    if any(a > b for a, b in zip(marks, marks[1:])):
        return None
    return lengths
"""
ARRAYS = """
import numpy as np

def read_lengths(raw):
    if raw[:9] != b"MMIDIDX" + bytes(2) or raw[9:17] != bytes([1] + [0] * 7) or raw[17] not in (4, 8):
        return None
    n, m = np.frombuffer(raw, "<u8", 2, 18).tolist()
    if len(raw) - 34 != 12 * n + 8 * m:
        return None
    lengths = np.frombuffer(raw, "<i4", n, 34)
    places, marks = np.split(np.frombuffer(raw, "<i8", n + m, 34 + 4 * n), [n])
    right = (np.cumsum(lengths, dtype=np.int64) - lengths) * (4 if raw[17] == 4 else 2)
    sound = np.array_equal(places, right) and m and marks[0] == 0 and marks[-1] == n and (np.diff(marks) >= 0).all()
    return lengths.tolist() if sound else None
"""


def changed(old: str, new: str) -> str:
    assert READER.count(old) == 1, old
    return READER.replace(old, new)


CHECKS = [
    Check("22b-1", "the numbers of a model", 1, "count", some_shapes),
    Check("22b-1", "sound files, in float32 and bfloat16, padded and not", 1, asked, sound_files),
    Check("22b-1", "files of other kinds and versions, torn or too long", 3, asked, other_files),
    Check("22b-2", "documents of one sequence that end with a mark", 1, "to_stream", plain_pairs, hidden=False),
    Check("22b-2", "several sequences, empty documents, and some that end with no mark", 3, "to_stream", odd_pairs),
    CheckOfCheck(
        "22b-3",
        "the check finds readers that trust what they should compare",
        5,
        "check_reader",
        "read_lengths",
        right=(READER, ARRAYS),
        wrong={
            "the magic number is not looked at": changed('magic != b"MMIDIDX\\0\\0"', "False"),
            "any version is read": changed("version != 1", "False"),
            "any type is read": changed("code not in (4, 8)", "False"),
            "a torn file is read as far as it goes": changed("if len(raw) != 34 + 12 * n + 8 * m:\n        return None", "m = min(m, (len(raw) - 34 - 12 * n) // 8)").replace("marks[-1] != n", "False"),
            "bytes behind the end are not noticed": changed("len(raw) != 34", "len(raw) < 34"),
            "the places are not compared": changed("size * sum(lengths[:i])", "place"),
            "the first place is not compared": changed("enumerate(places))", "enumerate(places) if i)"),
            "every id is taken to have two bytes": changed("4 if code == 4 else 2", "2"),
            "places are counted in tokens": changed("4 if code == 4 else 2", "1"),
            "the first mark is not compared": changed("marks[0] != 0", "False"),
            "the last mark is not compared": changed("marks[-1] != n", "False"),
            "marks may fall": changed("a > b", "False"),
            "two equal marks, an empty document, are refused": changed("a > b", "a >= b"),
            "everything is refused": "def read_lengths(raw): return None",
            "the places are returned, and not the lengths": changed("return lengths\n", "return list(places)\n"),
            "the last length is left out": changed("return lengths\n", "return lengths[:-1]\n"),
        },
        hidden=False,
    ),
    Check("22b-4", "what a run asks of its three splits", 1, "wanted", some_runs),
    Check("22b-4", "samples of text that was read before, to the token", 1, "seen_before", some_splits),
    Check("22b-4", "documents for one pass, to the token", 1, "documents", some_documents),
    Check("22b-4", "your own run", 2, "answers"),
]  # fmt: skip

WRONG = [
    Wrong("22b-1", "the token table is counted with its real rows, and in the file it has the padded ones", "return rows * C", "return V * C"),
    Wrong("22b-1", "the head is counted as well: it is tied, and in the file once", "return rows * C", "return 2 * rows * C"),
    Wrong("22b-1", "biases are left out", "12 * C * C + 13 * C", "12 * C * C + 4 * C"),
    Wrong("22b-1", "the last LayerNorm is left out", " + 2 * C", ""),
    Wrong("22b-1", "bfloat16 is read with four bytes a number", "(4 if version == 3 else 2)", "4"),
    Wrong("22b-1", "the header's own bytes are forgotten", "1024 + n *", "n *"),
    Wrong("22b-1", "the magic number is not looked at: a file of another kind is read as a model", "magic != 20240326", "False"),
    Wrong("22b-1", "any version is read: the next one may mean something else by the same numbers", "version not in (3, 5)", "False"),
    Wrong("22b-1", "a torn file is accepted if it has at least a header", "if length != 1024 + n", "if length < 1024 and length != 1024 + n"),
    Wrong("22b-1", "a file that is too long is accepted", "length != 1024", "length < 1024"),
    Wrong("22b-1", "fewer rows than tokens are accepted", "rows < V", "False"),
    Wrong("22b-2", "a mark before each sequence, and not before each document", "for first, end in pairwise(marks)", "for first, end in pairwise(range(len(lengths) + 1))"),
    Wrong("22b-2", "an empty document becomes a lone mark", code="""
          def to_stream(ids, lengths, marks, eot):
              starts, stream = [0, *accumulate(lengths)], []
              for first, end in pairwise(marks):
                  stream += [eot, *(id for id in ids[starts[first] : starts[end]] if id != eot)]
              return stream
          """),
    Wrong("22b-2", "the mark after a document stays, so there are two between documents", "document[:-1] if document[-1] == eot else document", "document"),
    Wrong("22b-2", "the last id of each document is taken for a mark, whatever it is", "document[:-1] if document[-1] == eot else document", "document[:-1]"),
    Wrong("22b-2", "all ids are moved by one place, which is right only if every document ends with a mark", code="""
          def to_stream(ids, lengths, marks, eot):
              return ids[-1:] + ids[:-1]
          """),
    Wrong("22b-2", "marks are taken for places of tokens: they count sequences", "ids[starts[first] : starts[end]]", "ids[first:end]"),
    Wrong("22b-3", "the check accepts everything", code="def check_reader(read_lengths):\n    pass"),
    Wrong("22b-3", "the check reads one sound index, and breaks none", code="""
          def check_reader(read_lengths):
              assert read_lengths(index([3, 1], [0, 1, 2])) == [3, 1]
          """),
    Wrong("22b-3", "the check tries broken files alone, so a reader that refuses everything passes", code="""
          def check_reader(read_lengths):
              raw = index([3, 1], [0, 1, 2])
              for bad in (b"X" + raw[1:], raw[:-8], raw + bytes(8)):
                  assert read_lengths(bad) is None
          """),
    Wrong("22b-3", "the check never tries ids of four bytes, nor marks that are wrong", code="""
          def check_reader(read_lengths):
              raw = index([3, 1, 2], [0, 1, 1, 3])
              assert read_lengths(raw) == [3, 1, 2]
              for bad in (b"X" + raw[1:], raw[:9] + b"\\2" + raw[10:], raw[:-8], raw + bytes(8), raw[:54] + bytes(8) + raw[62:]):
                  assert read_lengths(bad) is None
          """),
    Wrong("22b-4", "the validation at the end is forgotten", "iterations // every + 1", "iterations // every"),
    Wrong("22b-4", "a validation before the first update is counted as well", "iterations // every + 1", "iterations // every + 2"),
    Wrong("22b-4", "batches are counted, and not rows", "validations * batches * rows, batches * rows]", "validations * batches, batches]"),
    Wrong("22b-4", "the last target is forgotten: n samples of T targets need n·T + 1 tokens", "(tokens - 1) // T", "tokens // T"),
    Wrong("22b-4", "a negative number, where one pass is enough", "max(0, samples - (tokens - 1) // T)", "samples - (tokens - 1) // T"),
    Wrong("22b-4", "the samples that come again are taken for those of whole passes", "max(0, samples - (tokens - 1) // T)",
          "max(0, math.ceil(samples * T / tokens) - 1) * ((tokens - 1) // T)"),
    Wrong("22b-4", "the documents are rounded down, so that they are too few", "math.ceil((samples * T + 1) / mean)", "(samples * T + 1) // mean"),
    Wrong("22b-4", "documents for n·T tokens: the last target is one more", "(samples * T + 1) / mean", "samples * T / mean"),
]  # fmt: skip

MANUAL = {"22b-5": 2}
RUBRIC = {
    "22b-5": "½ point each. Passes: the test compares with a tolerance (0.01 for logits and losses), and the two GELUs differ by about 2·10⁻³ in the logits. Small gradients: two gradients count as equal if they differ by at most 0.02, "
    "and many gradients of a small model are below 0.02 altogether, so anything would pass. Number: the largest difference that it prints, 250 times as large as for the right model (2·10⁻³ against 8·10⁻⁶); not the verdict. "
    "Remedy: weights that are larger (ten times, as in chapter 22b), so that differences grow beyond the tolerance, or a tolerance near what float32 rounding makes, known from a right model."
}
