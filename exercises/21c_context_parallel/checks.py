"""How exercises 21c are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def dealt(draw, n: int, each: int) -> tuple:
    """Tokens in random order on n ranks, so that no formula for one split is enough."""
    return (torch.randperm(n * each, generator=draw).view(n, each).sort(1).values.tolist(),)


def one_and_two(draw):
    return [dealt(draw, 1, 4), dealt(draw, 2, number(draw, 2, 6)), ([[0, 1], [2, 3]],)]


def many(draw):
    return [dealt(draw, 3, 5), dealt(draw, 5, 4), ([[0, 3], [1, 2]],), ([[4, 5], [2, 3], [0, 1]],)]


def pieces(draw, R: int, sizes: list[int], scale: float, unseen: float) -> tuple:
    """Of each piece of the keys what a kernel gives; some queries see no key of a piece."""
    parts = []
    for size in sizes:
        scores = scale * torch.randn(R, size, generator=draw)
        scores[torch.rand(R, generator=draw) < unseen] = -torch.inf
        parts.append((scores.softmax(-1) @ torch.randn(size, 3, generator=draw), scores.logsumexp(-1)))
    return (parts,)


def all_see(draw):
    return [pieces(draw, 6, [4, 3], 1.0, 0.0), pieces(draw, 4, [2, 5, 1], 3.0, 0.0)]


def some_do_not(draw):
    return [
        pieces(draw, 12, [4, 3], 1.0, 0.5),
        pieces(draw, 12, [2, 2, 5], 500.0, 0.5),
        pieces(draw, 9, [3], 1.0, 0.5),
    ]


ZIGZAG = """
def deal(n, T):
    size = T // (2 * n)
    chunk = lambda i: list(range(i * size, (i + 1) * size))
    return [chunk(rank) + chunk(2 * n - 1 - rank) for rank in range(n)]
"""


def changed(old: str, new: str) -> str:
    assert ZIGZAG.count(old) == 1, old
    return ZIGZAG.replace(old, new)


CHECKS = [
    Check("21c-1", "pairs by step and rank, one rank and two", 1, "work", one_and_two, hidden=False),
    Check("21c-1", "pairs by step and rank, however the tokens are dealt", 1, "work", many),
    Check("21c-1", "all wait for the slowest in each step", 1, "clock", many),
    Check("21c-1", "your own ring", 2, "answers"),
    Check("21c-2", "queries that see keys of every piece", 1, "merge", all_see, hidden=False),
    Check("21c-2", "queries that see none of a piece, or none at all; scores of a thousand", 3, "merge", some_do_not),
    CheckOfCheck(
        "21c-3",
        "the check finds tokens that are missing or twice, and work that is not equal",
        5,
        "check_deal",
        "deal",
        right=(
            ZIGZAG,
            "def deal(n, T): return [sorted(p for t in range(r, T // 2, n) for p in (t, T - 1 - t)) for r in range(n)]",
            changed("for rank in range(n)]", "for rank in reversed(range(n))]"),
        ),
        wrong={
            "contiguous parts": "def deal(n, T): return [list(range(r * T // n, (r + 1) * T // n)) for r in range(n)]",
            "stripes: nearly equal work": "def deal(n, T): return [list(range(r, T, n)) for r in range(n)]",
            "the mirror is one chunk off": changed("2 * n - 1 - rank)", "(2 * n - rank) % (2 * n) if rank else 2 * n - 1)"),
            "two early chunks for some, two late ones for others": changed("chunk(rank) + chunk(2 * n - 1 - rank)", "chunk(2 * rank) + chunk(2 * rank + 1)"),
            "an early chunk and the late one of the same number": changed("chunk(2 * n - 1 - rank)", "chunk(n + rank)"),
            "right for even numbers of ranks alone": changed("chunk(2 * n - 1 - rank)", "(chunk(2 * n - 1 - rank) if n % 2 == 0 else chunk(n + rank))"),
            "right for two ranks alone": changed("chunk(2 * n - 1 - rank)", "(chunk(2 * n - 1 - rank) if n == 2 else chunk(n + rank))"),
            "each chunk has one token, whatever T is": changed("size = T // (2 * n)", "size = 1"),
            "the last token of the row is left out": changed("for rank in range(n)]", "for rank in range(1, n)] + [chunk(0) + chunk(2 * n - 1)[:-1]]"),
            "two tokens are there twice, and their neighbours are missing; the work is equal": changed("return [", "dealt = [")
            + "    return [[0 if p == 1 else T - 1 if p == T - 2 else p for p in places] for places in dealt]\n",
            "the last rank has nothing, and the others more": changed("for rank in range(n)]", "for rank in range(n)] if n != 4 else deal(3, T * 3 // 4) + [[]]"),
            "one rank too few": changed("for rank in range(n)]", "for rank in range(max(1, n - 1))]"),
            "every rank has the whole row: equal work, n times": "def deal(n, T): return [list(range(T)) for _ in range(n)]",
        },
        hidden=False,
    ),
]  # fmt: skip

WRONG = [
    Wrong("21c-1", "the ring turns the other way: in step s a rank has the keys of rank r + s", "places[(rank - step) % n]", "places[(rank + step) % n]"),
    Wrong("21c-1", "a query does not see its own key", "key <= query", "key < query"),
    Wrong("21c-1", "keys of the future are counted, and those of the past are not", "key <= query", "key >= query"),
    Wrong("21c-1", "the mask is left out: every query sees every key", "key <= query", "True"),
    Wrong("21c-1", "the slowest rank over the whole ring, as if nobody waited before the end", "sum(max(pairs) for pairs in work(places))",
          "max(sum(each) for each in zip(*work(places)))"),
    Wrong("21c-1", "the mean of the ranks: it is what a ring would take that nobody has to wait in", "sum(max(pairs) for pairs in work(places))",
          "sum(sum(pairs) / len(pairs) for pairs in work(places))"),
    Wrong("21c-1", "all pairs are added, as if one rank worked after the other", "sum(max(pairs) for pairs in work(places))", "sum(sum(pairs) for pairs in work(places))"),
    Wrong("21c-2", "a weight of zero is multiplied with NaN, which stays NaN", "torch.where(seen, outs, 0.0)", "outs"),
    Wrong("21c-2", "exponentials of the logsumexps themselves overflow", "(logs - torch.where(top.isinf(), 0.0, top)).exp()", "logs.exp()"),
    Wrong("21c-2", "minus infinity minus minus infinity: a query that sees no key gets NaN", "(logs - torch.where(top.isinf(), 0.0, top)).exp()", "(logs - top).exp()"),
    Wrong("21c-2", "NaN is replaced at the end, so a query that misses one piece loses all others", code="""
          def merge(parts):
              outs, logs = (torch.stack(each) for each in zip(*parts))
              return (logs.softmax(0)[..., None] * outs).sum(0).nan_to_num(0.0), logs.logsumexp(0)
          """),
    Wrong("21c-2", "the plain mean of the pieces that a query sees: a piece with larger scores weighs more", code="""
          def merge(parts):
              outs, logs = (torch.stack(each) for each in zip(*parts))
              return outs.nanmean(0).nan_to_num(0.0), logs.logsumexp(0)
          """),
    Wrong("21c-2", "the logsumexp is taken for the largest of the pieces'", "logs.logsumexp(0)", "logs.amax(0)"),
    Wrong("21c-3", "the check accepts everything", code="def check_deal(deal):\n    pass"),
    Wrong("21c-3", "the check knows the zigzag, and refuses other right ways", code="""
          def check_deal(deal):
              for n, T in ((2, 8), (3, 12)):
                  assert deal(n, T) == zigzag(n, T)
          """),
    Wrong("21c-3", "the check looks at the work alone: tokens may be missing or twice", code="""
          def check_deal(deal):
              for n, T in ((2, 8), (3, 12), (4, 8)):
                  assert len({sum(place + 1 for place in mine) for mine in deal(n, T)}) == 1
          """),
    Wrong("21c-3", "the check looks at the tokens alone, and not at the work", code="""
          def check_deal(deal):
              for n, T in ((2, 8), (3, 12), (4, 8)):
                  places = deal(n, T)
                  assert len(places) == n and sorted(sum(places, [])) == list(range(T))
          """),
]  # fmt: skip

MANUAL = {"21c-4": 2}
RUBRIC = {
    "21c-4": "½ point each. Other layout: data parallelism, eight rows on each GPU (or fewer at a time, with accumulated gradients), keeps as many tokens on a GPU and sends no keys. Not hidden: a rank has 128 tokens; "
    "computing grows with the square of a rank's tokens and the bytes grow with the tokens, so from some thousands on (c = 2F/B, chapter 21c) the ring is hidden, and below it is not. Needed: where the activations of a single row do not fit on a GPU "
    "(rows of tens of thousands of tokens), or where there are fewer rows than GPUs. Mistake: each rank counts positions from 0, or the mean of the ranks' means where they have unequal numbers of targets; the loss falls in both. "
    "Find it: compare gradients (or the first loss to many digits) with one process on the same row."
}
