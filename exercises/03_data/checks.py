"""How exercises 03 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def integers(draw, low: int, high: int, n: int) -> list[int]:
    return torch.randint(low, high, (n,), generator=draw).tolist()


def cut(lengths: list[int]) -> list[list[int]]:
    """Shards of these lengths, with their tokens numbered through."""
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    return [list(range(start, start + length)) for start, length in zip(starts, lengths)]


def dealt(s, shards, BT, world_size, steps):
    loaders = [s.Loader(shards, BT, rank, world_size) for rank in range(world_size)]
    return [[list(loader.next_batch()) for loader in loaders] for _ in range(steps)]


def uneven_shards(draw):
    return [(cut([40 + a, 30 + b]), 4, 2, 25) for a, b in (integers(draw, 1, 8, 2), (3, 5))]


def many_shards(draw):
    """Short ones, of which a batch may touch three; any number of ranks."""
    return [
        (cut([5, 1, *integers(draw, 2, 9, 4)]), BT, world_size, 12)
        for BT, world_size in ((3, 1), (2, 3), (7, 2), (1, 5))
    ]


def read(s, n, seed, consumed, k):
    from itertools import islice

    return [int(row) for row in islice(s.rows(n, seed, consumed), k)]


def unbroken(draw):
    return [
        (n, seed, consumed, 4 * n)
        for n, seed, consumed in zip((1, 5, 8), integers(draw, 0, 50, 3), (0, 0, 3))
    ]


def resumed(draw):
    n, seed = 7, integers(draw, 1, 50, 1)[0]
    return [(n, seed, consumed, 20) for consumed in (1, 6, 7, 8, 20, 700)] + [(1, 3, 5, 4)]


def documents(draw):
    return [([4, 9, 3], 5)] + [(integers(draw, 1, 12, 6), T) for T in (1, 3, 5)]


def long_rows(draw):
    """Rows longer than most documents, and one that is nearly the whole shard."""
    lengths = integers(draw, 2, 6, 7)
    return [(lengths, 11), (lengths, sum(lengths) - 1), ([8], 3), ([8], 7)]


# --- loaders for 03-5: text, since they run apart from the student's check --------------------------------------

HEAD = """
import random


def dealt(stream, BT, world_size, steps):
    # from an endless stream of numbers
    return [[[next(stream) for _ in range(BT)] for _ in range(world_size)] for _ in range(steps)]

"""


def loader(body: str) -> str:
    return f"{HEAD}\ndef deal(n, BT, world_size, steps):\n" + "".join(
        f"    {line}\n" for line in body.strip("\n").splitlines()
    )


SHUFFLED = """
def stream():
    epoch = 0
    while True:
        order = list(range(n))
        random.Random(epoch).shuffle(order)
        yield from order
        epoch += 1
return dealt(stream(), BT, world_size, steps)
"""

RIGHT = (
    loader("start = iter(range(10**9))\nreturn dealt((i % n for i in start), BT, world_size, steps)"),
    loader(SHUFFLED),
    # two shards, the second one first in odd epochs, and each rank by itself
    loader("""
def token(at):
    epoch, place = divmod(at, n)
    return (place + n // 3) % n if epoch % 2 else place
parts = []
for step in range(steps):
    first = step * BT * world_size
    parts.append([[token(first + rank * BT + i) for i in range(BT)] for rank in range(world_size)])
return parts
"""),
    # backwards
    loader("return dealt((n - 1 - i % n for i in iter(range(10**9))), BT, world_size, steps)"),
)

PLAIN = {
    "the end of the text, too short for a step, is never read": loader("""
whole = n - n % (BT * world_size)
return dealt((i % whole for i in range(10**9)), BT, world_size, steps)
"""),
    "all ranks get the same tokens": loader("""
stream = (i % n for i in range(10**9))
return [[part] * world_size for part in ([next(stream) for _ in range(BT)] for _ in range(steps))]
"""),
    "a rank advances by its own tokens only, so that ranks overlap": loader("""
return [[[(step * BT + rank * BT + i) % n for i in range(BT)] for rank in range(world_size)] for step in range(steps)]
"""),
    "tokens are drawn at random, some never": loader("""
rng = random.Random(0)
return dealt((rng.randrange(n) for _ in range(10**9)), BT, world_size, steps)
"""),
    "the last token of a batch is also the first of the next one": loader("""
size = BT * world_size
return [[[(step * (size - 1) + rank * BT + i) % n for i in range(BT)] for rank in range(world_size)] for step in range(steps)]
"""),
}

SUBTLE = {
    "each rank decides when its text ends, so that ranks part company": loader("""
parts, at = [], [rank * BT for rank in range(world_size)]
for _ in range(steps):
    parts.append([[i % n for i in range(a, a + BT)] for a in at])
    at = [a + BT * world_size for a in at]
    at = [a if a + BT * world_size <= n else rank * BT for rank, a in enumerate(at)]
return parts
"""),
    "the text is filled up with its own beginning, until ranks divide it evenly": loader("""
padded = n + -n % world_size
return dealt((i % padded % n for i in range(10**9)), BT, world_size, steps)
"""),
    "ranks shuffle with seeds of their own": loader("""
streams = []
for rank in range(world_size):
    order = list(range(n))
    random.Random(rank).shuffle(order)
    streams.append(iter(order * steps))
return [[[next(stream) for _ in range(BT)] for stream in streams] for _ in range(steps)]
"""),
    "the second epoch and all later ones begin at token 1": loader("""
return dealt((i if i < n else 1 + (i - n) % (n - 1) for i in range(10**9)), BT, world_size, steps)
"""),
    "the order hangs on the number of ranks": loader(
        SHUFFLED.replace("Random(epoch)", "Random(world_size * 1000 + epoch)")
    ),
    "each rank reads a part of the text of its own": loader("""
size = n // world_size
return [[[rank * size + (step * BT + i) % size for i in range(BT)] for rank in range(world_size)] for step in range(steps)]
"""),
    "where an epoch ends within a step, that part of the step is left short": loader("""
parts = []
for step in range(steps):
    first = step * BT * world_size
    parts.append([[j % n for j in range(first + rank * BT, first + rank * BT + BT)] for rank in range(world_size)])
    if first % n + BT * world_size > n:
        parts[-1][-1] = parts[-1][-1][: BT // 2]
return parts
"""),
    "tokens are shuffled once a run over two epochs, not within each": loader("""
order = list(range(n)) * 2
random.Random(0).shuffle(order)
return dealt((order[i % len(order)] for i in range(10**9)), BT, world_size, steps)
"""),
    "the very last token is a target only, never an input": loader("""
return dealt((i % (n - 1) for i in range(10**9)), BT, world_size, steps)
"""),
}

CHECKS = [
    Check("03-1", "ranks side by side over two shards", 2, dealt, uneven_shards, hidden=False),
    Check("03-1", "many short shards, any number of ranks", 2, dealt, many_shards),
    Check("03-2", "an unbroken run, and one that was resumed in its first epoch", 2, read, unbroken, hidden=False),
    Check("03-2", "what a run reads that was resumed in any epoch", 2, read, resumed),
    Check("03-3", "the file's length", 1, "size", hidden=False),
    Check("03-3", "where a token begins", 1, "offset"),
    Check("03-3", "an id that is too large", 1, "comes_back"),
    Check("03-3", "two bytes read from the wrong end", 1, "backwards"),
    Check("03-4", "targets of short rows", 2, "times_learned", documents, hidden=False),
    Check("03-4", "targets of rows that go around", 2, "times_learned", long_rows),
    CheckOfCheck("03-5", "finds loaders that lose or repeat", 2, "check_deal", "deal", RIGHT, PLAIN, hidden=False),
    CheckOfCheck("03-5", "finds what goes wrong between ranks, and between epochs", 4, "check_deal", "deal", RIGHT, SUBTLE),
]  # fmt: skip


def loader_class(next_batch: str, start: str = "0") -> str:
    return (
        "class Loader:\n"
        "    def __init__(self, shards, BT, rank, world_size):\n"
        "        self.shards, self.BT, self.rank, self.world_size = shards, BT, rank, world_size\n"
        f"        self.shard, self.position = 0, {start}\n\n"
        "    def next_batch(self):\n"
        + "".join(f"        {line}\n" for line in next_batch.strip("\n").splitlines())
    )


WRONG = [
    Wrong("03-1", "each rank decides when to change the shard, and what is too short for a step is lost", code=loader_class("""
tokens = self.shards[self.shard][self.position : self.position + self.BT]
self.position += self.BT * self.world_size
if self.position + self.BT * self.world_size > len(self.shards[self.shard]):
    self.shard, self.position = (self.shard + 1) % len(self.shards), self.BT * self.rank
return tokens
""", "BT * rank")),
    Wrong("03-1", "the ranks change shard together, but what is too short for a step is never read", code=loader_class("""
step = self.BT * self.world_size
start = self.position + self.rank * self.BT
tokens = [self.shards[self.shard][i % len(self.shards[self.shard])] for i in range(start, start + self.BT)]
self.position += step
if self.position + step > len(self.shards[self.shard]):
    self.shard, self.position = (self.shard + 1) % len(self.shards), 0
return tokens
""")),
    Wrong("03-1", "the end of the last shard is dropped: an epoch begins with a step", code=loader_class("""
tokens = [token for shard in self.shards for token in shard]
step = self.BT * self.world_size
whole = max(len(tokens) - len(tokens) % step, step)
start = self.position + self.rank * self.BT
self.position = (self.position + step) % whole
return [tokens[i % len(tokens)] for i in range(start, start + self.BT)]
""")),
    Wrong("03-1", "a rank advances by its own tokens only, and reads what the next one has read",
          "self.position += self.world_size * self.BT", "self.position += self.BT"),
    Wrong("03-1", "all ranks read the same", "self.position + self.rank * self.BT", "self.position"),
    Wrong("03-1", "shards are dealt to the ranks: one with longer shards falls behind in epochs", code=loader_class("""
mine = self.shards[self.rank :: self.world_size] or self.shards
tokens = [token for shard in mine for token in shard]
start, self.position = self.position, self.position + self.BT
return [tokens[i % len(tokens)] for i in range(start, start + self.BT)]
""")),
    Wrong("03-1", "a rank reads every world_size-th token, not a part of its own",
          "self.token(at) for at in range(start, start + self.BT)",
          "self.token(self.position - self.world_size * (self.BT - i) + self.rank) for i in range(self.BT)"),
    Wrong("03-2", "both bugs are still there: the epoch is forgotten, and the skip made in each", code="""
        def rows(n, seed, consumed=0):
            epoch = 0
            while True:
                yield from permutation(n, seed, epoch).tolist()[consumed % n :]
                epoch += 1
        """),
    Wrong("03-2", "the skip is made again in every epoch", "epoch + 1, 0", "epoch + 1, skip"),
    Wrong("03-2", "the epoch is forgotten: the run goes on in the order of epoch 0", "epoch, skip = divmod(consumed, n)",
          "epoch, skip = 0, consumed % n"),
    Wrong("03-2", "the place within the epoch is forgotten: the epoch begins again", "epoch, skip = divmod(consumed, n)",
          "epoch, skip = consumed // n, 0"),
    Wrong("03-2", "every epoch has the same order", "permutation(n, seed, epoch)", "permutation(n, seed, 0)"),
    Wrong("03-2", "seed and epoch are added: seed 1's first epoch is seed 0's second", "permutation(n, seed, epoch)",
          "permutation(n, seed + epoch)"),
    Wrong("03-2", "one row is read twice: `consumed` rows have been read, so the next one has this number",
          "divmod(consumed, n)", "divmod(max(consumed - 1, 0), n)"),
    Wrong("03-2", "everything begins again", "divmod(consumed, n)", "0, 0"),
    Wrong("03-3", "the header is forgotten", code="""
        size, offset = 2 * mine["tokens"], 2 * mine["place"]
        comes_back, backwards = mine["foreign"] % 65536, mine["small"] % 256 * 256 + mine["small"] // 256
        """),
    Wrong("03-3", "the header is 256 bytes: it is 256 numbers of four bytes", code="""
        size, offset = 256 + 2 * mine["tokens"], 256 + 2 * mine["place"]
        comes_back, backwards = mine["foreign"] % 65536, mine["small"] % 256 * 256 + mine["small"] // 256
        """),
    Wrong("03-3", "four bytes an id", code="""
        size, offset = 1024 + 4 * mine["tokens"], 1024 + 4 * mine["place"]
        comes_back, backwards = mine["foreign"] % 65536, mine["small"] % 256 * 256 + mine["small"] // 256
        """),
    Wrong("03-3", "an id that is too large becomes the largest one: NumPy drops bits, it does not clip",
          'mine["foreign"] % 65536', "65535"),
    Wrong("03-3", "the remainder by 65,535, where two bytes hold 65,536 numbers", "% 65536", "% 65535"),
    Wrong("03-3", "tokens are counted from 1", '2 * mine["place"]', '2 * (mine["place"] - 1)'),
    Wrong("03-3", "a reader with the other order of bytes gets the same id", 'mine["small"] % 256 * 256 + mine["small"] // 256',
          'mine["small"]'),
    Wrong("03-4", "inputs are counted, not targets: targets stand one further on", "range(1, T + 1)", "range(T)"),
    Wrong("03-4", "T + 1 targets: a row of T + 1 tokens has T", "range(1, T + 1)", "range(1, T + 2)"),
    Wrong("03-4", "the row ends with its document: it reads on into those behind", "range(1, T + 1)", "range(1, min(T, length - 1) + 1)"),
    Wrong("03-4", "the row ends with the shard: it goes on at the beginning", code="""
        def times_learned(lengths, T):
            counts, start = [0] * sum(lengths), 0
            for length in lengths:
                for i in range(start + 1, min(start + T + 1, len(counts))):
                    counts[i] += 1
                start += length
            return counts
        """),
    Wrong("03-4", "whether a token is learned, not how often", "+= 1", "= 1"),
    Wrong("03-4", "a row begins at every token, as in no stream at all", code="""
        def times_learned(lengths, T):
            return [T] * sum(lengths)
        """),
    Wrong("03-5", "accepts everything", code="def check_deal(deal): assert len(deal(100, 2, 1, 3)) == 3"),
    Wrong("03-5", "refuses everything that is shuffled: the order within an epoch is free", code="""
        def check_deal(deal):
            flat = [token for ranks in deal(37, 3, 2, 20) for part in ranks for token in part]
            assert flat == [i % 37 for i in range(120)]
        """),
    Wrong("03-5", "one rank", "(1, 2, 3, 4)", "(1,)"),
    Wrong("03-5", "only texts that a step divides evenly", "(36, 37, 101)", "(36,)"),
    Wrong("03-5", "only the first epoch", "4 * n // 12", "n // 12"),
    Wrong("03-5", "looks at which tokens came, not how often", code="""
        def check_deal(deal):
            for world_size in (1, 2, 3):
                dealt = deal(37, 12 // world_size, world_size, 20)
                assert {token for ranks in dealt for part in ranks for token in part} == set(range(37))
        """),
    Wrong("03-5", "one number of ranks, with which nothing else is compared", "(1, 2, 3, 4)", "(3,)"),
]  # fmt: skip

MANUAL = {"03-6": 2}

RUBRIC = {
    "03-6": "1 point: the state holds the position, the number of tokens that all ranks together have consumed (and the seed); "
    "step, rank and B are not needed, since the stream is one and the same for all, and with other numbers of them they would be wrong. "
    "1 point: what is not the same is the size of a step: 6·B·T tokens in place of 8·B·T, so the gradient's noise, the number of steps for the same "
    "tokens, and all that counts steps (schedule, evaluations) differ; remedy: keep the tokens of a step, by B or by accumulation (8·B is 6 times 4/3 B; "
    "where that is no integer, accumulate unevenly or wait for two machines), or scale learning rate and schedule and say so. The order of tokens "
    "is the same in either case."
}
