"""The generated stories: a grammar that writes them, and their exact log-probability.

Exported from notebooks/02_corpus.ipynb, grown by notebooks/03_data.ipynb.
"""

import hashlib
import math
import os
import random
import re
from collections import Counter, namedtuple
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path

from nanogpt.labs.corpora.splits import split_of
from nanogpt.shards import (
    SPLITS,
    file_sha256,
    identity,
    load_manifest,
    open_shards,
    save_manifest,
    write_shard,
)


@cache
def read_rules(grammar: str) -> dict[str, list[str]]:
    lines = {}
    for symbol, mark, rest in re.findall(r"(?m)^(\w+)( =|:)((?:.|\n  )*)", grammar):
        if symbol in lines:
            raise ValueError(f"the grammar defines {symbol} twice; give one of them another name")
        lines[symbol] = rest.split() if mark == ":" else re.split(r" \| |\n  ", rest.strip())
    return lines


@cache
def grammar() -> str:
    """The grammar of the course's stories. It is read when it is needed, so a server can do without the file."""
    return (files("nanogpt") / "resources/grammar.txt").read_text(encoding="utf-8")


def rules() -> dict[str, list[str]]:
    """Symbol → its lines."""
    return read_rules(grammar())


Text = namedtuple("Text", "words")  # said as it is
Pick = namedtuple("Pick", "symbol")  # one of the symbol's lines
Draw = namedtuple("Draw", "key pool")  # a new fact
Recall = namedtuple("Recall", "key form")  # a fact again, in its first form (0) or its last (-1)
Count = namedtuple("Count", "terms asked")  # a sum of facts: terms are (sign, key) pairs
Part = Text | Pick | Draw | Recall | Count


def parse(inside: str) -> Part:
    """The part for a text between two braces."""
    if ":" in inside:
        return Draw(*inside.split(":"))
    if re.fullmatch(r"[A-Z](\.did)?", inside):
        return Recall(inside[0], -1 if inside.endswith(".did") else 0)
    if re.fullmatch(r"\??[a-z]([+-][a-z])*", inside):
        signed = re.findall("([+-]?)([a-z])", inside)  # "n-k" gives ("", "n") and ("-", "k")
        terms = [(-1 if sign == "-" else 1, key) for sign, key in signed]
        return Count(tuple(terms), asked=inside.startswith("?"))
    return Pick(inside)


@cache
def alternatives(symbol: str) -> list[list[Part]]:
    """A symbol's lines, each cut into parts."""
    if symbol not in rules():
        raise ValueError(f"the grammar has no symbol {{{symbol}}}; is it spelled right?")
    lines = []
    for line in rules()[symbol]:
        pieces = re.findall(r"([^{}]+)|\{([^{}]*)\}", line)  # (words, "") or ("", text between braces)
        lines.append([Text(words) if words else parse(inside) for words, inside in pieces])
    return lines


NUMBERS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
    "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
]  # fmt: skip


def add(terms: list[tuple[int, str]]) -> str:
    """The number word for a sum: (1, "six") and (-1, "two") are "four"."""
    for _, word in terms:
        if word not in NUMBERS:
            raise ValueError(f"{word} is not a number word; NUMBERS holds zero to sixteen")
    total = sum(sign * NUMBERS.index(word) for sign, word in terms)
    if not 0 <= total < len(NUMBERS):
        words = " and ".join(word for _, word in terms)
        raise ValueError(f"a sum or difference of {words} is {total}; NUMBERS holds zero to sixteen")
    return NUMBERS[total]


@cache
def entries(pool: str) -> list[tuple[str, ...]]:
    """What a fact of this pool can be, in all its forms; the first form is the one that is drawn."""
    lines = rules().get(pool)
    if lines is None or "{" in "".join(lines):
        raise ValueError(f"the grammar has no pool {pool!r}, a symbol without braces; is it spelled right?")
    if len(set(lines)) < len(lines):
        raise ValueError(f"{pool} has an entry twice, so two choices give the same text; remove one")
    return [tuple(line.split("/")) for line in lines]


def words_of(part: Text | Recall | Count, facts: dict[str, tuple[str, ...]]) -> str:
    """The words of a part that leaves no choice."""
    try:
        if isinstance(part, Text):
            return part.words
        if isinstance(part, Recall):
            return facts[part.key][part.form]
        return add([(sign, facts[key][0]) for sign, key in part.terms])
    except KeyError as key:
        raise ValueError(f"{{{key.args[0]}}} recalls a fact that no sentence before it has drawn") from None


@dataclass
class Story:
    """A text, and what is known about it because it was made by rolling dice."""

    text: str = ""
    facts: dict[str, tuple[str, ...]] = field(default_factory=dict)  # key -> the forms of what was drawn
    choices: list[tuple[int, int]] = field(default_factory=list)  # where in the text, out of how many
    answers: list[tuple[int, int]] = field(default_factory=list)  # text[start:end] says who has how many
    kinds: list[str] = field(default_factory=list)  # of each answer: "copied", or "computed" from two facts

    @property
    def logprob(self) -> float:
        """The natural logarithm of the story's probability."""
        return -sum(math.log(options) for _, options in self.choices)


def choose(options: list, rng: random.Random, story: Story):
    """One of the options, by the dice; the story notes where it was, and out of how many."""
    story.choices.append((len(story.text), len(options)))
    return options[int(rng.random() * len(options))]


def tell(symbol: str, rng: random.Random, story: Story) -> None:
    """Adds one random expansion of symbol to the story: its text, facts, choices, answers and kinds.

    All dice are rolled by `choose`, also among a single option. A fact is kept in all its forms, under its key.
    """
    for part in choose(alternatives(symbol), rng, story):
        if isinstance(part, Pick):
            tell(part.symbol, rng, story)
            continue
        if isinstance(part, Draw):
            story.facts[part.key] = choose(entries(part.pool), rng, story)
            words = story.facts[part.key][0]
        else:
            words = words_of(part, story.facts)
        if isinstance(part, Count) and part.asked:
            story.answers.append((len(story.text), len(story.text) + len(words)))
            story.kinds.append("copied" if len(part.terms) == 1 else "computed")
        story.text += words


def stories(n: int | None = None, seed: int = 0) -> Iterator[Story]:
    """Yields n stories, or stories for ever. The same seed always gives the same stories in the same order."""
    rng = random.Random(seed)
    for _ in range(n) if n is not None else count():
        story = Story()
        tell("story", rng, story)
        yield story


def entropy(symbol: str = "story") -> float:
    """Mean of -log p over all expansions of symbol, in nats, exact (Cover & Thomas 2006, theorem 2.5.1)."""
    lines, total = alternatives(symbol), 0.0
    for line in lines:
        for part in line:
            if isinstance(part, Pick):
                total += entropy(part.symbol)
            elif isinstance(part, Draw):
                total += math.log(len(entries(part.pool)))
    return math.log(len(lines)) + total / len(lines)


def write_corpus(folder: Path, tokenizer, source: dict) -> dict:
    """Write the stories that `source` describes, a shard for each split, and last the manifest, which is returned."""
    # the hash of a story's text says which split it belongs to
    texts = {split: [] for split in SPLITS}
    nats = Counter()
    for story in stories(source["stories"], source["seed"]):
        split = split_of(hashlib.sha256(story.text.encode()).digest(), 0.05, 0.05)
        texts[split].append(story.text)
        nats[split] -= story.logprob
    if not all(texts.values()):
        raise ValueError(f"{source['stories']} stories leave none for val or test; take 200 or more")
    # a shard for each split
    encoding = tokenizer.to_tiktoken()
    splits = {}
    for split, told in texts.items():
        path = folder / f"{split}_000000.bin"
        ids = encoding.encode_to_numpy(
            "".join(f"<|endoftext|>{text}" for text in told), allowed_special="all"
        )
        write_shard(path, ids)
        size = sum(len(text.encode()) for text in told)
        shard = {"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}
        splits[split] = {"documents": len(told), "bytes": size, "tokens": len(ids), "shards": [shard]}
    # its tokenizer, and last what all this is
    tokenizer.save(folder / "tokenizer.json")
    about = {"source": source, "tokenizer": "tokenizer.json"} | identity(tokenizer)
    floor = nats["val"] / splits["val"]["tokens"]
    return save_manifest(folder, about | {"splits": splits, "floor": floor})


def ensure_corpus(folder: str | os.PathLike, tokenizer=None, n: int = 50_000, seed: int = 0) -> dict:
    """The manifest of n stories as shards in `folder`. They are made if they are absent, damaged or of other stories.

    tokenizer: by default the one that chapter 01 left in the folder above, or the same one, trained here.
    """
    from nanogpt.tokenizer import BPETokenizer  # here: telling stories needs no packages

    folder = Path(folder)
    if tokenizer is None and (folder.parent / "tokenizer.json").exists():
        tokenizer = BPETokenizer.load(folder.parent / "tokenizer.json")
    source = {"stories": n, "seed": seed, "entropy": round(entropy(), 6)}  # changes with the grammar
    with suppress(OSError, ValueError, LookupError):  # absent or damaged: made again
        manifest = load_manifest(folder)
        same = tokenizer is None or tokenizer.fingerprint == manifest["fingerprint"]
        if same and manifest["source"] == source and all(open_shards(folder, split) for split in SPLITS):
            return manifest
    (folder / "manifest.json").unlink(missing_ok=True)  # first: it must not describe what is replaced
    tokenizer = tokenizer or BPETokenizer.train((story.text for story in stories(5000)), 1024)
    return write_corpus(folder, tokenizer, source)
