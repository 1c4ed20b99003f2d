"""How exercises 02 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def integers(draw, low: int, high: int, n: int) -> list[int]:
    return torch.randint(low, high, (n,), generator=draw).tolist()


def flat_grammars(draw):
    """One symbol, words only."""
    return [
        ({"S": [[w, [f"word{i}"]] for i, w in enumerate(integers(draw, 1, 20, n))]}, "S") for n in (1, 2, 5)
    ]


def deep_grammars(draw):
    """Three levels; symbols stand twice in a line, and lines differ in how much they leave open."""
    grammars = []
    for _ in range(4):
        w = integers(draw, 1, 12, 12)
        grammar = {
            "S": [[w[0], ["A", "and", "B"]], [w[1] + 12, ["nothing"]], [w[2], ["B", "B", "then", "A"]]],
            "A": [[w[3], ["one", "C"]], [w[4] + 3, ["two", "C", "C"]], [w[5], ["three"]]],
            "B": [[w[6], ["x"]], [w[7], ["y"]], [w[8], ["z", "C"]]],
            "C": [[w[9], ["red"]], [w[10] + 2, ["blue"]], [w[11], ["green"]]],
        }
        grammars += [(grammar, "S"), (grammar, "A")]
    return grammars


def names(draw):
    given = ["ann", "nan", "zoë", "Ann", "ann/1", "孔", ""]
    return [(name, number) for name, number in zip(given, integers(draw, 0, 1000, len(given)))]


def neighbours(draw):
    n = integers(draw, 1, 9, 1)[0]
    return [(f"tom{n}", n), ("tom", 10 * n + n), ("tom", 0), ("tom", 2**40 + n)]


def is_the_seed(got, expected, name, number) -> str:
    if type(got) is int and got == expected:
        return ""
    return f"seed_of({name!r}, {number}) is {got!r:.40}, not {expected}: is it made of the text name/number alone, by SHA-256?"


# --- tellers for 02-4: text, since they run apart from the student's check --------------------------------------

HEAD = "import math\nimport random\n\n"


def teller(
    body: str,
    table: str = '{"sun": 0.4, "rain": 0.3, "snow": 0.2, "fog": 0.1}',
    stated: str = "math.log(p[text])",
) -> str:
    """tell(n, seed), where `body` makes n texts from rng and the table p."""
    return (
        HEAD
        + f"""
def tell(n, seed):
    p = {table}
    rng = random.Random(seed)
    def one():
        return rng.choices(list(p), list(p.values()))[0]
    texts = {body}
    return [(text, {stated}) for text in texts]
"""
    )


HONEST = "[one() for _ in range(n)]"

RIGHT = (
    teller(HONEST),
    # a grammar with equally likely lines, walked through by hand
    HEAD
    + """
def tell(n, seed):
    rng, told = random.Random(seed), []
    for _ in range(n):
        girl, ending = rng.choice(["Ann", "Eve", "Mia"]), rng.choice(["ran", "sat", "ran off", "slept"])
        told.append((f"{girl} {ending}", -math.log(3) - math.log(4)))
    return told
""",
    # two ways to one text, both counted
    HEAD
    + """
def tell(n, seed):
    rng, told = random.Random(seed), []
    for _ in range(n):
        first, second = rng.random() < 0.5, rng.random() < 0.25
        text = "wet" if first or second else "dry"
        told.append((text, math.log(0.625 if text == "wet" else 0.375)))
    return told
""",
    # dice that hang on the seed and the story's number alone
    HEAD
    + """
import hashlib

def tell(n, seed):
    told = []
    for i in range(n):
        digest = hashlib.sha256(f"{seed}/{i}".encode()).digest()
        die = int.from_bytes(digest[:8], "big") % 6
        told.append((str(min(die, 4)), math.log(1 / 6 if die < 4 else 1 / 3)))
    return told
""",
    teller(HONEST, '{"a": 0.98, "b": 0.02}'),
)

PLAIN = {
    "logarithms to base 2": teller(HONEST, stated="math.log2(p[text])"),
    "probabilities, no logarithms": teller(HONEST, stated="p[text]"),
    "the sign is wrong: a cost, not a log-probability": teller(HONEST, stated="-math.log(p[text])"),
    "the seed is ignored": teller(HONEST).replace("Random(seed)", "Random(0)"),
    "not seeded: other stories in every call": teller(HONEST).replace("Random(seed)", "Random()"),
    "one choice of the story is not counted": HEAD
    + """
def tell(n, seed):
    rng = random.Random(seed)
    return [(rng.choice(["Ann", "Eve"]) + rng.choice([" ran", " sat"]), -math.log(2)) for _ in range(n)]
""",
}

SUBTLE = {
    "two ways lead to one text, and one of them is counted": HEAD
    + """
def tell(n, seed):
    rng = random.Random(seed)
    names = [rng.choice(["Ann", "Eve", "Eve", "Mia"]) for _ in range(n)]
    return [(name, -math.log(4)) for name in names]
""",
    "all texts are said to be equally likely, and are not": teller(HONEST, stated="-math.log(4)"),
    "two probabilities have changed places": teller(
        HONEST, stated='math.log(p[{"sun": "rain", "rain": "sun"}.get(text, text)])'
    ),
    "the first stories depend on how many are asked for": teller(HONEST).replace(
        "Random(seed)", "Random(seed * 1_000_003 + n)"
    ),
    "dealt like cards: no text comes again before all have come": HEAD
    + """
def tell(n, seed):
    rng, cards = random.Random(seed), []
    while len(cards) < n:
        pack = ["sun", "rain", "snow", "fog"]
        rng.shuffle(pack)
        cards += pack
    return [(card, -math.log(4)) for card in cards[:n]]
""",
    "each story begins like the one before: the weather of yesterday is more likely": HEAD
    + """
def tell(n, seed):
    rng, told = random.Random(seed), []
    for i in range(n):
        text = told[-1][0] if told and rng.random() < 0.2 else rng.choice(["sun", "rain", "snow"])
        told.append((text, -math.log(3)))
    return told
""",
    "the first story is the same whatever the seed": teller("(['sun'] + [one() for _ in range(n)])[:n]"),
    "the story's number is mixed into its log-probability": HEAD
    + """
def tell(n, seed):
    rng = random.Random(seed)
    return [(rng.choice(["a", "b"]), -math.log(2) if i % 100 else -math.log(2) - 1e-3) for i in range(n)]
""",
}

CHECKS = [
    Check("02-1", "the entropy of a story", 2, "entropy", hidden=False),
    Check("02-1", "the floor per token", 2, "floor"),
    Check("02-1", "what a model loses that does not look back", 2, "excess"),
    Check("02-2", "lines of unequal weight", 2, "nats", flat_grammars, hidden=False),
    Check("02-2", "symbols within symbols", 2, "nats", deep_grammars),
    Check("02-3", "a seed that every process gives, for any name", 2, "seed_of", names, hidden=False, judge=is_the_seed),
    Check("02-3", "neighbours that do not collide", 1, "seed_of", neighbours, judge=is_the_seed),
    CheckOfCheck("02-4", "finds wrong logarithms, uncounted choices and careless seeds", 3, "check_teller", "tell", RIGHT, PLAIN,
                 hidden=False),
    CheckOfCheck("02-4", "finds tellers that are wrong in the frequencies or from story to story", 4, "check_teller", "tell", RIGHT,
                 SUBTLE),
]  # fmt: skip

WRONG = [
    Wrong("02-1", "the recalled toy is counted like a new choice: then the floor holds what only a forgetful model loses",
          'math.log(mine["toys"])) / 2\n', '2 * math.log(mine["toys"])) / 2\n'),
    Wrong("02-1", "what only the long story holds is counted in full", '+ (math.log(mine["colors"]) + math.log(mine["toys"])) / 2',
          '+ math.log(mine["colors"]) + math.log(mine["toys"])'),
    Wrong("02-1", "the choice between the two kinds of story is not counted", "math.log(2)\n    + ", ""),
    Wrong("02-1", "the logarithm of the number of stories, as if all were equally likely", code="""
        short = mine["names"] * mine["animals"]
        entropy = math.log(short + short * mine["colors"] * mine["toys"])
        floor, excess = entropy * 2 / (mine["short"] + mine["long"]), math.log(mine["toys"]) / (mine["short"] + mine["long"])
        """),
    Wrong("02-1", "bits, not nats", code="""
        entropy = math.log2(2 * mine["names"] * mine["animals"]) + math.log2(mine["colors"] * mine["toys"]) / 2
        tokens = (mine["short"] + mine["long"]) / 2
        floor, excess = entropy / tokens, math.log2(mine["toys"]) / 2 / tokens
        """),
    Wrong("02-1", "the mean of the two kinds' losses per token: a long story holds more of the tokens", code="""
        common = math.log(2 * mine["names"] * mine["animals"])
        more = math.log(mine["colors"] * mine["toys"])
        entropy = common + more / 2
        floor = (common / mine["short"] + (common + more) / mine["long"]) / 2
        excess = math.log(mine["toys"]) / mine["long"] / 2
        """),
    Wrong("02-1", "the excess of a long story, where a corpus has both kinds", 'math.log(mine["toys"]) / 2 / tokens',
          'math.log(mine["toys"]) / mine["long"]'),
    Wrong("02-2", "weights are ignored: every line is taken for equally likely", "p = weight / total", "p = 1 / len(grammar[symbol])"),
    Wrong("02-2", "a rare line's parts count as much as a frequent one's: they need its probability", code="""
        def nats(grammar, symbol):
            total = sum(weight for weight, _ in grammar[symbol])
            lines = grammar[symbol]
            choice = sum(weight / total * math.log(total / weight) for weight, _ in lines)
            inside = sum(nats(grammar, part) for _, parts in lines for part in parts if part in grammar)
            return choice + inside / len(lines)
        """),
    Wrong("02-2", "each line's surprise without its probability: a sum, not a mean", "mean += p * (", "mean += ("),
    Wrong("02-2", "the logarithm to base 2", "math.log(1 / p)", "math.log2(1 / p)"),
    Wrong("02-2", "a symbol that stands twice in a line is counted once", "for part in parts if", "for part in set(parts) if"),
    Wrong("02-2", "the choice among the lines is left out below the first level", "nats(grammar, part) for",
          "math.log(len(grammar[part])) for"),
    Wrong("02-2", "only the choice of the line, not what its parts leave open", " + inside", ""),
    Wrong("02-3", "hash() of a text is another in every process", code="def seed_of(name, number): return hash(name) + number"),
    Wrong("02-3", "hash() of a text within a tuple is another in every process, too",
          code="def seed_of(name, number): return hash((name, number))"),
    Wrong("02-3", "nothing stands between name and number: ann1 and 2, ann and 12 are one", "{name}/{number}", "{name}{number}"),
    Wrong("02-3", "the number is added to the hash, not hashed: seeds of neighbouring parts are neighbours, and not as written down",
          code="def seed_of(name, number): return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], 'big') + number"),
    Wrong("02-3", "the letters are summed: ann and nan are one", code="def seed_of(name, number): return sum(name.encode()) + number"),
    Wrong("02-3", "the bytes are read from the wrong end", '"big"', '"little"'),
    Wrong("02-3", "the last eight bytes, not the first", "[:8]", "[-8:]"),
    Wrong("02-3", "all 32 bytes, not the first eight", "[:8]", ""),
    Wrong("02-4", "accepts everything", code="def check_teller(tell): assert len(tell(3, 0)) == 3"),
    Wrong("02-4", "refuses everything: it compares frequencies with the probabilities to the last digit", code="""
        def check_teller(tell):
            many = tell(1000, 0)
            for text, logprob in many:
                assert [t for t, _ in many].count(text) / 1000 == math.exp(logprob)
        """),
    Wrong("02-4", "looks at the sum of the probabilities only", code="""
        def check_teller(tell):
            assert abs(sum(math.exp(p) for p in dict(tell(5000, 0)).values()) - 1) < 1e-6
        """),
    Wrong("02-4", "calls twice with one seed and compares nothing else", code="""
        def check_teller(tell):
            assert tell(100, 3) == tell(100, 3) and tell(100, 4) != tell(100, 3)
        """),
    Wrong("02-4", "a limit of a fifth of a deviation, which chance passes more often than not", "limit = 5 *", "limit = 0.2 *"),
    Wrong("02-4", "wants all stories of a grammar of its own", code="""
        def check_teller(tell):
            assert {text for text, _ in tell(5000, 0)} == {"sun", "rain", "snow"}
        """),
    Wrong("02-4", "frequencies of one long telling; seeds and neighbours are not looked at", code="""
        def check_teller(tell):
            many = tell(5000, 0)
            counts = Counter(text for text, _ in many)
            for text, logprob in dict(many).items():
                assert abs(counts[text] / 5000 - math.exp(logprob)) < 0.03
        """),
]  # fmt: skip

MANUAL = {"02-5": 2}

RUBRIC = {
    "02-5": "Half a point for each cause that comes with a test which could come out either way, up to 1.5; half a point if one of them is "
    "no mistake. No mistake: the validation stories are less surprising than the mean (compare with their own floor, the manifest's "
    "`floor`, not with the entropy). Mistakes: the model sees the future (disturb later tokens); validation stories were trained on and "
    "are remembered (hash both sets); the mean is taken over other tokens than the floor's, such as padding or more end marks (count the "
    "targets); another tokenizer (nats per story must agree, not per token); a mean of means over batches of unequal size; bits for nats; "
    "stories from a changed grammar."
}
