"""How exercises 18 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def losses_of(draw, rows: list[int], T: int, part: float) -> list[tuple]:
    """Batches of so many rows, of which about a part counts."""
    return [(4 * torch.rand(n, T, generator=draw), torch.rand(n, T, generator=draw) < part) for n in rows]


def full_batches(draw):
    """All tokens count, the last batch is short."""
    return [(losses_of(draw, [4, 4, number(draw, 1, 4)], 6, 2.0),) for _ in range(2)]


def padded_batches(draw):
    first, last = losses_of(draw, [4, 4], 6, 0.9)
    last[1][:, 1:] = False  # of the last one, at most the first column
    last[1][0, 0] = True
    empty = (torch.rand(2, 6, generator=draw), torch.zeros(2, 6, dtype=torch.bool))
    return [([first, last],), ([first, empty, last],), (losses_of(draw, [1, 5, 2], 3, 0.5) + [first],)]


def both(s, batches):
    return [s.mean_loss(batches), s.perplexity(batches)]


def bits(s, nats, ids, vocab):
    return s.bits_per_byte(nats, ids, [bytes.fromhex(token) for token in vocab])


def read_as(draw, text: str, special: bool) -> tuple:
    """A text in tokens of one to three bytes, wherever these end."""
    raw, tokens = text.encode(), []
    while raw:
        n = number(draw, 1, 4)
        tokens, raw = [*tokens, raw[:n]], raw[n:]
    vocab = sorted(set(tokens))
    ids = [vocab.index(token) for token in tokens]
    if special:
        ids = [len(vocab), *ids, len(vocab)]
    return 5 * torch.rand(len(ids) - 1, generator=draw), ids, [token.hex() for token in vocab]


def english(draw):
    return [
        read_as(draw, "the cat sat on the mat and looked at the moon", special) for special in (True, False)
    ]


def other_scripts(draw):
    return [
        read_as(draw, text, special)
        for text in ("Ελληνικά, русский, 中文字符 🦊", "naïve café ⅔ €5")
        for special in (True, False)
    ]


def answers_of(draw, n: int, agree: float) -> tuple:
    a = torch.rand(n, generator=draw) < 0.3
    other = torch.rand(n, generator=draw) < 0.4
    return a, torch.where(torch.rand(n, generator=draw) < agree, a, other)


def many_questions(draw):
    return [answers_of(draw, 1000, 0.9)]


def any_questions(draw):
    return [answers_of(draw, n, agree) for n, agree in ((8, 0.0), (20, 0.5), (300, 0.99))] + [
        (torch.tensor([True, False, True]), torch.tensor([False, True, False]))
    ]


def guesses(draw):
    return [(number(draw, 1, 200), 1, r) for r in (0, 1, 20)]


def many_guessers(draw):
    return [
        (n, number(draw, 2, 60), round(0.25 * n) + more)
        for n, more in ((4, 1), (60, 4), (250, 18), (400, 30))
    ]


ONE = "def windows(n, T): return [[max(0, i + 1 - T), i, i + 1] for i in range(n - 1)]"
HALF = """def windows(n, T):
    rows, new = [], 0
    while new < n - 1:
        stop = min(n - 1, new + (T if new == 0 else T // 2))
        rows.append([max(0, stop - T), new, stop])
        new = stop
    return rows"""
CHAPTER = """def windows(n, T):
    rows, start, new = [], 0, 0
    while new < n - 1:
        stop = min(start + T, n - 1)
        rows.append((start, new, stop))
        start, new = max(start, min(stop - T // 2, n - 1 - T)), stop
    return rows"""

CHECKS = [
    Check("18-1", "batches of unequal size", 2, both, full_batches, hidden=False),
    Check("18-1", "batches with padding, and one that is nothing else", 2, both, padded_batches),
    CheckOfCheck(
        "18-2",
        "the check finds windows that count twice, leave ids out, or read too much or too little",
        5,
        "check_windows",
        "windows",
        right=(ONE, HALF, CHAPTER),
        wrong={
            "the overlap is counted twice": HALF.replace("max(0, stop - T), new, stop", "max(0, stop - T), max(0, stop - T), stop"),
            "there is no overlap": "def windows(n, T): return [[i, i, min(i + T, n - 1)] for i in range(0, n - 1, T)]",
            "a last window that is not full is forgotten": (
                "def windows(n, T):\n    if n - 1 <= T: return [[0, 0, n - 1]]\n"
                "    return [[0, 0, T]] + [[i, i + T // 2, i + T] for i in range(T // 2, n - T, T // 2)]"
            ),
            "windows of T + 1 ids": HALF.replace("max(0, stop - T)", "max(0, stop - T - 1)"),
            "an id behind the text is to be predicted": HALF.replace("n - 1", "n"),
            "the first id of each window is never predicted": (
                "def windows(n, T):\n" + HALF.split("\n", 1)[1].replace("T), new, stop", "T), new + (new > 0), stop")
            ),
            "the overlap is a quarter": HALF.replace("T // 2", "T - T // 4"),
            "a text that fits into one window has none": HALF.replace("    return rows", "    return rows if n - 1 > T else []"),
            "a text of exactly T + 1 ids loses its last": HALF.replace("    return rows", "    return rows if n != T + 1 else [[0, 0, T - 1]]"),
        },
        hidden=False,
    ),
    Check("18-3", "a text in ASCII", 1, bits, english, hidden=False),
    Check("18-3", "characters that are cut into several tokens", 3, bits, other_scripts),
    Check("18-4", "a thousand questions", 1, "difference", many_questions, hidden=False),
    Check("18-4", "any number of questions, agreement and disagreement", 2, "difference", any_questions),
    Check("18-5", "one guesser", 1, "luckiest", guesses, hidden=False),
    Check("18-5", "the chance of the luckiest guesser", 1, "luckiest", many_guessers),
    Check("18-5", "your own questions and guessers", 1, "answers"),
]  # fmt: skip

WRONG = [
    Wrong("18-1", "a mean of means: a batch with few counted tokens weighs like a full one", code="""
          def mean_loss(batches):
              return sum(loss[counted].mean().item() for loss, counted in batches) / len(batches)
          def perplexity(batches):
              return math.exp(mean_loss(batches))
          """),
    Wrong("18-1", "padding is counted in what is divided by", "counted.sum().item() for _, counted", "counted.numel() for _, counted"),
    Wrong("18-1", "padding is counted as if it were text", code="""
          def mean_loss(batches):
              return sum(loss.sum().item() for loss, _ in batches) / sum(loss.numel() for loss, _ in batches)
          def perplexity(batches):
              return math.exp(mean_loss(batches))
          """),
    Wrong("18-1", "batches are weighed by their rows, whatever is counted in them", code="""
          def mean_loss(batches):
              held = [(loss[counted].mean().item(), len(loss)) for loss, counted in batches if counted.any()]
              return sum(mean * rows for mean, rows in held) / sum(rows for _, rows in held)
          def perplexity(batches):
              return math.exp(mean_loss(batches))
          """),
    Wrong("18-1", "perplexity is a mean of exponentials: a single bad token decides it", "return math.exp(mean_loss(batches))",
          "return torch.cat([loss[counted] for loss, counted in batches]).exp().mean().item()"),
    Wrong("18-1", "the last batch is dropped because it is not full", "    nats = sum",
          "    batches = [b for b in batches if len(b[0]) == len(batches[0][0])]\n    nats = sum"),
    Wrong("18-2", "the check accepts everything", code="def check_windows(windows):\n    pass"),
    Wrong("18-2", "the check knows one right answer, and refuses others", code="""
          def check_windows(windows):
              assert [list(row) for row in windows(7, 4)] == [[0, 0, 4], [2, 4, 6]]
          """),
    Wrong("18-2", "the check counts how many are predicted, and not which", code="""
          def check_windows(windows):
              for n, T in ((20, 8), (5, 8)):
                  assert sum(stop - new for _, new, stop in windows(n, T)) == n - 1
          """),
    Wrong("18-2", "the check asks that each id is predicted, and forgets what it is predicted from", code="""
          def check_windows(windows):
              for n in (2, 8, 9, 10, 30):
                  rows = windows(n, 8)
                  assert sorted(i for _, new, stop in rows for i in range(new + 1, stop + 1)) == list(range(1, n))
                  assert all(stop - start <= 8 for start, _, stop in rows)
          """),
    Wrong("18-3", "each token is decoded: half a character becomes three bytes", "len(vocab[i])",
          'len(vocab[i].decode("utf-8", "replace").encode())'),
    Wrong("18-3", "characters are counted, not bytes", "sum(len(vocab[i]) for i in ids[1:] if i < len(vocab))",
          'len(b"".join(vocab[i] for i in ids[1:] if i < len(vocab)).decode("utf-8", "replace"))'),
    Wrong("18-3", "the first id's bytes count, though nobody predicted it", "in ids[1:] if", "in ids if"),
    Wrong("18-3", "nats per byte: a bit is ln 2 nats", " / math.log(2)", ""),
    Wrong("18-3", "the logarithm's factor is upside down", "/ math.log(2)", "* math.log(2)"),
    Wrong("18-3", "<|endoftext|> is counted as 13 bytes of text", "len(vocab[i]) for i in ids[1:] if i < len(vocab)",
          "len(vocab[i]) if i < len(vocab) else 13 for i in ids[1:]"),
    Wrong("18-3", "the mean of each token's own ratio, in which a short token weighs as much as a long one",
          code="""
          def bits_per_byte(nats, ids, vocab):
              each = [n / len(vocab[i]) for n, i in zip(nats.tolist(), ids[1:]) if i < len(vocab)]
              return sum(each) / len(each) / math.log(2)
          """),
    Wrong("18-4", "the errors of two independent sets are combined; these are the same questions", code="""
          def difference(a, b):
              p, q, n = a.double().mean().item(), b.double().mean().item(), len(a)
              return q - p, math.sqrt((p * (1 - p) + q * (1 - q)) / (n - 1))
          """),
    Wrong("18-4", "the deviation of one question, not of their mean", " / math.sqrt(len(d))", " / 1"),
    Wrong("18-4", "n in place of n - 1", "correction=1", "correction=0"),
    Wrong("18-4", "the error that would hold if both were equally good: the difference itself is left in the spread",
          "(d.std(correction=1) / math.sqrt(len(d))).item()", "d.abs().sum().sqrt().item() / len(d)"),
    Wrong("18-4", "a less b: the sign is turned", "b.double() - a.double()", "a.double() - b.double()"),
    Wrong("18-4", "only questions with different answers are counted in n",
          "math.sqrt(len(d))", "math.sqrt(max(1, int((d != 0).sum())))"),
    Wrong("18-5", "the probability that all are so lucky, not the best", "1 - less**guessers", "(1 - less) ** guessers"),
    Wrong("18-5", "chances are added, though two may be lucky at once", "1 - less**guessers", "guessers * (1 - less)"),
    Wrong("18-5", "more than `right`, where at least is asked", "range(right)", "range(right + 1)"),
    Wrong("18-5", "exactly `right`, where at least is asked", "less = sum(math.comb(n, k) * 0.25**k * 0.75 ** (n - k) for k in range(right))",
          "less = 1 - math.comb(n, right) * 0.25**right * 0.75 ** (n - right)"),
    Wrong("18-5", "a guess among two endings, where there are four", "0.25**k * 0.75 ** (n - k)", "0.5**n"),
]  # fmt: skip

MANUAL = {"18-6": 2}
RUBRIC = {
    "18-6": "½ point each. Why: an ending's nats grow with its length, so without a division short endings win whatever they say. Favours: by tokens, an "
    "ending of many short tokens (rare words, names, spelled-out numbers) gains beside characters; by characters, one of few long tokens (common long words) "
    "gains. Tokenizer: other cuts change the number of tokens by which the same probability of the same ending is divided, differently for each ending, so choices "
    "flip though the model gives each text the same probability. Ask for: by what was divided (or acc as well), the harness and version, the prompt, number of questions and "
    "standard error; any three of these."
}
