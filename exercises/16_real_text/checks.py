"""How exercises 16 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def text_of(draw, alphabet: str, length: int) -> str:
    return "".join(alphabet[i] for i in torch.randint(len(alphabet), (length,), generator=draw).tolist())


def plain_texts(draw):
    """Words with one blank between them."""
    texts = [" ".join(text_of(draw, "abcxyz", number(draw, 1, 6)) for _ in range(6)) for _ in range(3)]
    return [(text, at) for text in texts for at in range(1, len(text), 2)]


def wild_texts(draw):
    """Runs of blanks, newlines, tabs, other white space, characters of several bytes."""
    return [(text_of(draw, "ab'é9 \n\t\u3000  ", 30), number(draw, 1, 12)) for _ in range(60)] + [
        ("abc", 1),
        ("", 1),
        ("a", 1),
        ("a ", 1),
        (" a", 1),
        (" a b", 0),
        ("a   b", 2),
        ("a\u3000 b", 1),
        ("a b", 2),
    ]


def vocabularies(draw):
    """Merges as training makes them, with some lines gone, and in another order."""
    cases = []
    for _ in range(6):
        made, lines = list("abcd"), []
        while len(lines) < 8:
            a, b = (made[number(draw, 0, len(made))] for _ in range(2))
            if a + b not in made:
                made.append(a + b)
                lines.append(f"{a} {b}")
        kept = [line for line in lines if number(draw, 0, 4)]
        cases += [([*made, "<|endoftext|>"], kept), ([*made, "<|endoftext|>"], kept[::-1])]
    return cases


def small_vocabularies(draw):
    letters = list("abcde")
    return [
        (
            [*letters, "ab", "cd", "abcd", "<|endoftext|>"],
            [["a b", "c d"], ["a b", "c d", "ab cd"], ["c d", "ab cd"]][i],
        )
        for i in range(3)
    ]


def contested(draw):
    """A line makes the token, but an earlier one takes its parts away; or a line needs what a later one makes."""
    return [
        (["a", "b", "c", "bc", "ab", "abc"], ["b c", "a b", "ab c"]),
        (["a", "b", "c", "ab", "abc"], ["ab c", "a b"]),
        (["a", "aa", "aaa", "aaaa"], ["a a", "aa a", "aa aa"]),
        (["a", "b", "<|x|>", "ab", "<|", "|>"], ["a b", "< |", "| >"]),
    ]


def jobs(draw):
    return [
        (float(chunk * number(draw, 1, 9)), float(number(draw, 2, 20)), chunk, number(draw, 0, 40) / 100)
        for chunk in (0.25, 1.0, 3.0)
    ]


def one_long_job(draw):
    return [(float(job), float(number(draw, 2, 9)), float(job), 0.0) for job in (3, 12)]


CHECKS = [
    Check("16-1", "words with one blank between them are cut before it", 2, "first_cut", plain_texts, hidden=False),
    Check("16-1", "runs of blanks, other white space and the text's ends", 2, "first_cut", wild_texts),
    Check("16-2", "tokens without a line, and those that need them", 2, "lost", small_vocabularies, hidden=False),
    Check("16-2", "any vocabulary, with lines gone or moved", 2, "lost", vocabularies),
    Check("16-2", "tokens whose parts go into others first", 1, "lost", contested),
    Check("16-3", "a job in one chunk", 1, "expected_hours", one_long_job, hidden=False),
    Check("16-3", "any job, chunk and cost to begin one", 2, "expected_hours", jobs),
    Check("16-3", "your own job, without chunks and with", 2, "answers"),
    CheckOfCheck(
        "16-4",
        "the check finds what loses a chunk, makes one twice, or deals unevenly",
        5,
        "check_deal",
        "deal",
        right=(
            "def deal(count, p, n): return list(range(p - 1, count, n))",
            "def deal(count, p, n): return list(range((p - 1) * count // n, p * count // n))",
            "def deal(count, p, n):\n    small, more = divmod(count, n)\n    sizes = [small + (q < more) for q in range(n)]\n"
            "    return [sum(sizes[: p - 1]) + i for i in range(sizes[p - 1])][::-1]",
        ),
        wrong={
            "p counts from 0, and chunk 0 is lost": "def deal(count, p, n): return list(range(p, count, n))",
            "the rest of count / n is dropped": "def deal(count, p, n): return list(range((p - 1) * (count // n), p * (count // n)))",
            "the last part takes all that is left over": (
                "def deal(count, p, n):\n    m = count // n\n    return list(range((p - 1) * m, count if p == n else p * m))"
            ),
            "parts are rounded up, and name chunks that do not exist": (
                "def deal(count, p, n):\n    m = -(-count // n)\n    return list(range((p - 1) * m, p * m))"
            ),
            "the ends overlap by one": (
                "def deal(count, p, n): return list(range((p - 1) * count // n, min(count, p * count // n + 1)))"
            ),
            "all parts make the same": "def deal(count, p, n): return list(range(0, count, n))",
            "with fewer chunks than parts nobody makes any": (
                "def deal(count, p, n): return list(range(p - 1, count, n)) if count >= n else []"
            ),
            "one part alone makes nothing": "def deal(count, p, n): return list(range(p - 1, count, n)) if n > 1 else []",
        },
        hidden=False,
    ),
]  # fmt: skip

WRONG = [
    Wrong("16-1", "the blank stays at the end of the first piece, and the word behind it gets another token",
          'text[i] in " \\n" and not text[i - 1].isspace()', 'text[i - 1] in " \\n"'),
    Wrong("16-1", "a run of blanks is cut in its middle: only the last of them goes with the word",
          ' and not text[i - 1].isspace()', ''),
    Wrong("16-1", "the text is cut at `at`, whatever stands there",
          'if text[i] in " \\n" and not text[i - 1].isspace():', 'if True:'),
    Wrong("16-1", "the place at `at` itself is passed over", "range(max(at, 1), len(text))", "range(at + 1, len(text))"),
    Wrong("16-1", "of what is before the blank only ASCII white space is told: others have no visible character either",
          "not text[i - 1].isspace()", 'text[i - 1] not in " \\n\\t"'),
    Wrong("16-2", "special tokens are counted as lost, which no merge is meant to make",
          "token not in special and len(pieces(token)) > 1", "len(pieces(token)) > 1"),
    Wrong("16-2", "a token counts as made where a line makes it, though nothing may make its parts, or take them away",
          "len(pieces(token)) > 1",
          'len(token) > 1 and token not in {line.replace(" ", "") for line in merges}'),
    Wrong("16-2", "lines are taken one after another, once: what a later line makes never meets an earlier one",
          code="""
          def lost(vocab, merges):
              def pieces(word):
                  parts = list(word)
                  for line in merges:
                      first, i = tuple(line.split(" ")), 0
                      while i < len(parts) - 1:
                          if (parts[i], parts[i + 1]) == first:
                              parts[i : i + 2] = [parts[i] + parts[i + 1]]
                          i += 1
                  return parts

              special = [token for token in vocab if token.startswith("<|") and token.endswith("|>")]
              return [token for token in vocab if token not in special and len(pieces(token)) > 1]
          """),
    Wrong("16-2", "only the numbers are compared: as many tokens as lines, the rest is lost",
          code="""
          def lost(vocab, merges):
              longer = [token for token in vocab if len(token) > 1 and not token.startswith("<|")]
              return longer[len(merges):]
          """),
    Wrong("16-2", "the pair that stands first in the token is merged first, not the one whose line comes first",
          "key=lambda pair: rank.get(pair, math.inf)", "key=lambda pair: pair not in rank"),
    Wrong("16-3", "attempts are counted at full length: one that fails costs less, it ends early",
          "away * (math.exp((chunk + begin) / away) - 1)", "(chunk + begin) * math.exp((chunk + begin) / away)"),
    Wrong("16-3", "half a chunk is lost each time, which holds for short chunks alone",
          "away * (math.exp((chunk + begin) / away) - 1)",
          "((chunk + begin) + (chunk + begin) ** 2 / (2 * away))"),
    Wrong("16-3", "a chunk costs its beginning once, and not at each attempt",
          "job / chunk * away * (math.exp((chunk + begin) / away) - 1)",
          "job / chunk * (away * (math.exp(chunk / away) - 1) + begin)"),
    Wrong("16-3", "the whole job begins again: chunks that are whole are kept",
          "job / chunk * away * (math.exp((chunk + begin) / away) - 1)",
          "away * (math.exp((job + job / chunk * begin) / away) - 1)"),
    Wrong("16-3", "the cost of a beginning is left out", "(chunk + begin) / away", "chunk / away"),
    Wrong("16-4", "the check accepts everything", code="def check_deal(deal):\n    pass"),
    Wrong("16-4", "the check knows one right deal, and refuses others", code="""
          def check_deal(deal):
              assert deal(7, 2, 3) == [1, 4]
          """),
    Wrong("16-4", "the check tries one count, a multiple of the parts", code="""
          def check_deal(deal):
              parts = [deal(12, p, 3) for p in (1, 2, 3)]
              assert sorted(sum(parts, [])) == list(range(12))
          """),
    Wrong("16-4", "a set forgets that a chunk was made twice", code="""
          def check_deal(deal):
              for count, n in ((7, 3), (2, 5), (6, 1)):
                  made = set()
                  for p in range(1, n + 1):
                      made |= set(deal(count, p, n))
                  assert made == set(range(count))
          """),
]  # fmt: skip

MANUAL = {"16-5": 2}
RUBRIC = {
    "16-5": "1 point for two sound differences with a direction, ½ each. Such as: the end of a crawl is not like its beginning (other "
    "sites, later pages), so the tail's loss is that of another distribution, mostly higher; neighbours of a page in the crawl stand in train "
    "either way, but a hash sends equal copies to one side, where the tail leaves copies of its pages in train (its loss is too low); four tails are four stretches of few sites, so "
    "the loss has a larger error than its number of tokens says. 1 point for next month: by hash every old page stays where it was and 1% of the "
    "new ones join; the tail moves: pages that were validation become training text, and the old losses cannot be compared with the new. "
    "No point for a direction without a reason."
}
