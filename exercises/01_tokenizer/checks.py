"""How exercises 01 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong
from nanogpt.tokenizer import merge_chunk


def integers(draw, low: int, high: int, n: int) -> list[int]:
    return torch.randint(low, high, (n,), generator=draw).tolist()


def words(draw):
    """Words over few ids, so that pairs repeat and counts tie."""
    fixed = [
        ([[98, 97], [97, 98], [99]], [3, 3, 8], 256),
        ([[97, 97, 97, 97, 97], [98, 97, 97]], [1, 1], 256),
        ([[99, 98], [97, 99]], [1, 4], 300),
        (
            [[98, 99], [97, 100], [101, 102]],
            [1, 1, 1],
            256,
        ),  # equal scores: the first met is neither smallest nor largest
    ]
    drawn = []
    for _ in range(6):
        lengths = integers(draw, 1, 9, 5)
        drawn.append(([integers(draw, 97, 100, n) for n in lengths], integers(draw, 1, 6, 5), 256))
    return fixed + drawn


def later_words(draw):
    """Words in which earlier merges stand, and words of one id."""
    lengths = integers(draw, 2, 12, 4)
    return [
        ([integers(draw, 255, 258, n) for n in lengths], integers(draw, 1, 3, 4), 258),
        ([[5], [6], []], [2, 2, 2], 256),
    ]


def twice(s, words, times, new):
    """Two merges, one after the other; the pair as a list."""
    first, words = s.merge_step(words, times, new)
    second, words = s.merge_step(words, times, new + 1)
    return [list(first), list(second), words]


def long_words(draw):
    return [([integers(draw, 97, 99, n) for n in (9, 12)], integers(draw, 1, 6, 2), 256) for _ in range(3)]


def merged(s, words, times, new):
    pair, words = s.merge_step(words, times, new)
    return [None if pair is None else list(pair), words]


def over_banana(s, text):
    return s.longest_match(text.encode(), s.banana)


def over_other_tokens(s, text, tokens):
    """A vocabulary of another order: the place of a token says nothing about its length."""
    return s.longest_match(
        text.encode(), [token.encode() for token in tokens] + [bytes([i]) for i in range(256)]
    )


def fruit(draw):
    return [("".join("abdn"[i] for i in integers(draw, 0, 4, 12)),) for _ in range(8)] + [
        ("",),
        ("ananabandana",),
    ]


def other_tokens(draw):
    tokens = ["the", "th", "er", "other", "there", "he"]
    parts = ["the", "re", "oth", "er", "o", "t", "h", "é"]
    return [("".join(parts[i] for i in integers(draw, 0, 8, 9)), tokens) for _ in range(6)]


BANANA = [bytes([i]) for i in range(256)] + [b"an", b"ban", b"nd", b"and", b"ab", b"ana"]


def numbers_of_tokens(text) -> tuple[int, int]:
    """By longest match and by BPE."""
    data, greedy, at = text.encode(), 0, 0
    while at < len(data):
        at, greedy = next(i for i in range(len(data), at, -1) if data[at:i] in BANANA), greedy + 1
    return greedy, len(merge_chunk(data, {token: i for i, token in enumerate(BANANA)}))


def example(text) -> str:
    fits = isinstance(text, str) and 0 < len(text) <= 8 and set(text) <= set("abdn")
    return "" if fits else "1 to 8 letters from a, b, d and n are due"


def is_fewer(got, expected) -> str:
    wrong = example(got)
    return wrong or (
        ""
        if numbers_of_tokens(got)[0] < numbers_of_tokens(got)[1]
        else "longest match makes no fewer tokens of it"
    )


def is_more(got, expected) -> str:
    wrong = example(got)
    return wrong or (
        ""
        if numbers_of_tokens(got)[0] > numbers_of_tokens(got)[1]
        else "longest match makes no more tokens of it"
    )


def cut(s, text):
    import regex

    return regex.findall(s.pattern, text)


def numbers(draw):
    drawn = ["".join(map(str, integers(draw, 0, 10, n))) for n in range(1, 11)]
    return [(number,) for number in drawn] + [(f"{drawn[8]} and {drawn[6]}, or {drawn[3]}.",)]


def other_texts(draw):
    return [
        ("She'll pay 1,024 coins,   WON'T she?\n\n  Yes.",),
        ("x=1234567;y = 89\n",),
        ("½ of 12345² is ७८९० and Ⅷ",),
        ("1234567 ",),
        ("v2024a  20240520\t123456789\n\n",),
        ("naïve café: 100000€ – don't",),
    ]


# --- cutters for 01-5: text, since they run apart from the student's check --------------------------------------

HEAD = "import random\nimport re\nimport regex\nimport unicodedata\n\n"
GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def by_pattern(pattern: str, text: str = "text") -> str:
    return f"{HEAD}def split(text):\n    return regex.findall(r'''{pattern}''', {text})\n"


RIGHT = (
    by_pattern(GPT2),
    HEAD + "def split(text):\n    return list(text)\n",
    HEAD + "def split(text):\n    return [text] if text else []\n",
    HEAD + "def split(text):\n    return [part for part in re.split(r'(\\s)', text) if part]\n",
    HEAD + "def split(text):\n    return [text[i : i + 5] for i in range(0, len(text), 5)]\n",
)

PLAIN = {
    "white space at both ends is lost": by_pattern(GPT2, "text.strip()"),
    "only words are kept": by_pattern(r"\w+"),
    "runs of spaces become one": by_pattern(GPT2, "regex.sub(' +', ' ', text)"),
    "letters are made small": by_pattern(GPT2, "text.lower()"),
    "punctuation is lost": by_pattern(r" ?\p{L}+| ?\p{N}+|\s+"),
}

SUBTLE = {
    "the pattern's last alternative is missing: a line end between words is lost": by_pattern(
        GPT2.removesuffix(r"|\s+")
    ),
    "digits by \\d, the rest by \\p{N}: ½ and ² are lost": by_pattern(GPT2.replace(r"?\p{N}+", r"?\d+")),
    "letters by [A-Za-z], the rest by \\p{L}: é is lost": by_pattern(GPT2.replace(r"?\p{L}+", "?[A-Za-z]+")),
    "accents are composed with their letter (NFC)": by_pattern(GPT2, "unicodedata.normalize('NFC', text)"),
    "Windows' line ends become Unix's": by_pattern(GPT2, "text.replace('\\r\\n', '\\n')"),
    "tabs become spaces": by_pattern(GPT2, "text.expandtabs(4)"),
    "characters above U+FFFF are lost": by_pattern(GPT2, "''.join(c for c in text if ord(c) < 65536)"),
    "characters that do not print are lost": by_pattern(
        GPT2, "''.join(c for c in text if c.isprintable() or c.isspace())"
    ),
    "an empty chunk stands between two separators": HEAD
    + "def split(text):\n    return re.split(r'( )', text)\n",
    "the empty text has an empty chunk": HEAD + "def split(text):\n    return [text]\n",
    "a no-break space becomes a space": by_pattern(GPT2, "text.replace('\\u00a0', ' ')"),
    "apostrophes are made straight": by_pattern(GPT2, "text.replace('\\u2019', \"'\")"),
}

CHECKS = [
    Check("01-1", "the pair with the highest score, replaced everywhere", 2, merged, words, hidden=False),
    Check("01-1", "a merge after other merges, and nothing left to merge", 1, merged, later_words),
    Check("01-1", "two merges, one after the other", 1, twice, long_words),
    Check("01-2", "the longest token that fits, from left to right", 2, over_banana, fruit, hidden=False),
    Check("01-2", "the same with a vocabulary in any order, and with bytes that no token has", 1, over_other_tokens, other_tokens),
    Check("01-2", "a text of which longest match makes fewer tokens", 1, "fewer", judge=is_fewer),
    Check("01-2", "a text of which longest match makes more tokens", 1, "more", judge=is_more),
    Check("01-3", "digits in threes from the right", 2, cut, numbers, hidden=False),
    Check("01-3", "everything else as GPT-2 cuts it, nothing lost", 2, cut, other_texts),
    Check("01-4", "the number of tokens", 2, "tokens", hidden=False),
    Check("01-4", "the ids at the end, in order", 1, "ending"),
    CheckOfCheck("01-5", "finds cutters that lose spaces, capitals or punctuation", 2, "check_split", "split", RIGHT, PLAIN,
                 hidden=False),
    CheckOfCheck("01-5", "finds cutters that lose what is rare", 3, "check_split", "split", RIGHT, SUBTLE),
]  # fmt: skip

WRONG = [
    Wrong("01-1", "every word counts once, however often it occurs", "counts[pair] += n", "counts[pair] += 1"),
    Wrong("01-1", "single ids are counted once a word, however often it occurs", "single[i] += n", "single[i] += 1"),
    Wrong("01-1", "BPE's choice: the most frequent pair", "counts[a, b] / (single[a] * single[b])", "counts[a, b]"),
    Wrong("01-1", "divided by the left id alone", "(single[a] * single[b])", "single[a]"),
    Wrong("01-1", "of equal scores the first one met is taken, so the result depends on the order of the words",
          "min(score, key=lambda pair: (-score[pair], pair))", "max(score, key=score.get)"),
    Wrong("01-1", "of equal scores the one with the largest ids is taken",
          "min(score, key=lambda pair: (-score[pair], pair))", "max(score, key=lambda pair: (score[pair], pair))"),
    Wrong("01-1", "an id is used for two merges: three equal ids become two new ones",
          "done[-1] = new", "done[-1:] = [new, i][: 2 if best[0] == best[1] else 1]"),
    Wrong("01-1", "pairs are replaced from the right", code="""
        def merge_step(words, times, new):
            counts, single = Counter(), Counter()
            for ids, n in zip(words, times):
                for i in ids:
                    single[i] += n
                for pair in pairwise(ids):
                    counts[pair] += n
            if not counts:
                return None, words
            score = {(a, b): counts[a, b] / (single[a] * single[b]) for a, b in counts}
            best, merged = min(score, key=lambda pair: (-score[pair], pair)), []
            for ids in words:
                done = []
                for i in reversed(ids):
                    if done and (i, done[0]) == best:
                        done[0] = new
                    else:
                        done = [i, *done]
                merged.append(done)
            return best, merged
        """),
    Wrong("01-1", "only the first occurrence in a word is replaced", "if done and (done[-1], i) == best:",
          "if new not in done and done and (done[-1], i) == best:"),
    Wrong("01-1", "pairs are counted over the edge between two words", code="""
        def merge_step(words, times, new):
            text = [i for ids, n in zip(words, times) for _ in range(n) for i in ids]
            counts, single = Counter(pairwise(text)), Counter(text)
            if not counts:
                return None, words
            score = {(a, b): counts[a, b] / (single[a] * single[b]) for a, b in counts}
            best, merged = min(score, key=lambda pair: (-score[pair], pair)), []
            for ids in words:
                done = []
                for i in ids:
                    if done and (done[-1], i) == best:
                        done[-1] = new
                    else:
                        done.append(i)
                merged.append(done)
            return best, merged
        """),
    Wrong("01-1", "nothing left to merge is an error", "return None, words", "raise ValueError('nothing is left')"),
    Wrong("01-2", "the shortest token that fits: single bytes always do",
          "range(min(len(chunk), at + longest), at, -1)", "range(at + 1, min(len(chunk), at + longest) + 1)"),
    Wrong("01-2", "the first token of the vocabulary that fits: BPE's order, not length", code="""
        fewer, more = "abana", "anana"

        def longest_match(chunk, vocab):
            ids, at = [], 0
            while at < len(chunk):
                fits = [i for i, token in enumerate(vocab) if len(token) > 1 and chunk.startswith(token, at)]
                ids.append(fits[0] if fits else vocab.index(chunk[at : at + 1]))
                at += len(vocab[ids[-1]])
            return ids
        """),
    Wrong("01-2", "the longest token anywhere in the chunk goes first, not the one at the left", code="""
        fewer, more = "abana", "anana"

        def longest_match(chunk, vocab):
            if not chunk:
                return []
            token = max((token for token in vocab if token in chunk), key=len)
            left, _, right = chunk.partition(token)
            return longest_match(left, vocab) + [vocab.index(token)] + longest_match(right, vocab)
        """),
    Wrong("01-2", "matches from right to left", code="""
        fewer, more = "abana", "anana"

        def longest_match(chunk, vocab):
            ids, at = [], len(chunk)
            while at > 0:
                start = next(i for i in range(at) if chunk[i:at] in vocab)
                ids = [vocab.index(chunk[start:at]), *ids]
                at = start
            return ids
        """),
    Wrong("01-2", "the bytes of a token in place of its id", "ids.append(place[chunk[at:stop]])", "ids.extend(chunk[at:stop])"),
    Wrong("01-2", "the two examples have changed places", '"abana", "anana"', '"anana", "abana"'),
    Wrong("01-2", "an example on which both make the same number of tokens", '"abana", "anana"', '"banana", "banana"'),
    Wrong("01-3", "threes are counted from the left, as in GPT-4's pattern", r"(?=(?:\p{N}{3})*(?!\p{N}))", ""),
    Wrong("01-3", "every digit is a chunk of its own", r"{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", ""),
    Wrong("01-3", "a group that captures: findall returns the group in place of the match", "(?:", "("),
    Wrong("01-3", "only numbers at the end of the text are cut from the right", r"(?!\p{N}))", "$)"),
    Wrong("01-3", "the space before a number is no longer part of it", r"| ?\p{N}{1", r"|\p{N}{1"),
    Wrong("01-3", "a digit is what \\d matches: ½ and ² fall through the pattern and are lost",
          r" ?\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", r" ?\d{1,3}(?=(?:\d{3})*(?!\d))"),
    Wrong("01-3", "exactly three digits: the first one or two of a number are lost", "{1,3}", "{3}"),
    Wrong("01-4", "what is left over is one token, however long", code="""
        whole, left = divmod(mine["n"], 2 ** mine["k"])
        tokens, ending = whole + bool(left), [255 + mine["k"]]
        """),
    Wrong("01-4", "what is left over is lost", code="tokens, ending = mine['n'] // 2 ** mine['k'], []"),
    Wrong("01-4", "what is left over falls back to single a's", code="""
        whole, left = divmod(mine["n"], 2 ** mine["k"])
        tokens, ending = whole + left, [97] * left
        """),
    Wrong("01-4", "the ids at the end stand in the order of the merges; the leftmost pairs merge first, so the odd one out stands at the right",
          "reversed(range(k))", "range(k)"),
    Wrong("01-4", "each id is one too large: merge 1 makes id 256", "255 + bit if", "256 + bit if"),
    Wrong("01-4", "a merge more than there are", "2**k", "2**(k + 1)"),
    Wrong("01-5", "accepts everything", code="def check_split(split): assert isinstance(split('a b'), list)"),
    Wrong("01-5", "refuses everything: it compares with a list of words", code="""
        def check_split(split):
            assert split("one two") == ["one", "two"]
        """),
    Wrong("01-5", "compares with GPT-2's cut, so another one that loses nothing is refused", code="""
        def check_split(split):
            for text in ("a\\nb", "½ é", " x ", ""):
                assert split(text) == regex.findall(GPT2_PATTERN, text)
        """),
    Wrong("01-5", "tries one English sentence", code="""
        def check_split(split):
            text = "She'll pay 1,024 coins, won't she?  Yes."
            assert "".join(split(text)) == text
        """),
    Wrong("01-5", "compares what is left after strip()", code="""
        def check_split(split):
            for text in (" a ", "a\\nb", "½ é", "🙂"):
                assert "".join(split(text)).strip() == text.strip()
        """),
    Wrong("01-5", "compares lengths, and a character that became another one has the same", code="""
        def check_split(split):
            for text in (" A ", "a\\r\\nb", "½ é e\\u0301", "🙂\\t\\u200d’\\u00a0!", "a\\nb"):
                assert sum(map(len, split(text))) == len(text) and all(split(text))
        """),
]  # fmt: skip

MANUAL = {"01-6": 2}

RUBRIC = {
    "01-6": "1 point: the last id is a space by itself, while in training the pattern gave the space to the chunk behind it: the "
    "usual continuations are ids that begin with it (` marbles`). 1 point: what cannot have followed a lone space is a letter, a digit or "
    "punctuation, since the pattern puts the last space of a run into their chunk; followed have white space, a chunk with its own space "
    "(after two spaces), or the end. So the model is asked for what it never saw. Half a point off without a remedy: strip the prompt's "
    "end (or let the sampler choose only among ids that begin with a space, and drop it). Not asked for: a lone space within a chunk, "
    "before bytes with which it has no merge; in GPT-2's list no printing ASCII character is among them."
}
