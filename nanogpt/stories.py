"""The generated stories: a grammar that writes them, their exact log-probability, and the floor that no model beats.

Exported from notebooks/02_corpus.ipynb, grown by notebooks/03_data.ipynb.
"""

import hashlib
import math
import os
import random
import re
from collections import namedtuple
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path

from nanogpt.shards import (
    SPLITS,
    file_sha256,
    identity,
    load_manifest,
    open_shards,
    save_manifest,
    split_of,
    write_shard,
)

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
def read_rules(grammar: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for symbol, mark, rest in re.findall(r"(?m)^(\w+)( =|:)((?:.|\n  )*)", grammar):
        if symbol in found:
            raise ValueError(f"the grammar defines {symbol} twice; give one of them another name")
        found[symbol] = rest.split() if mark == ":" else re.split(r" \| |\n  ", rest.strip())
    return found


FILE = files("nanogpt") / "resources/grammar.txt"
POOLS = {  # entries are separated by commas, an entry's forms by slashes
    "girl": "Anna, Clara, Ella, Emma, Ida, Julia, Lucy, Mia, Nora, Rosa, Sara, Zoe",
    "boy": "Ben, Carl, Dan, Finn, Hugo, Jack, Leo, Max, Noah, Otto, Sam, Tom",
    "things": "apples, beads, buttons, candles, cards, coins, cookies, feathers, flowers, lemons, marbles, nuts, "
    "pears, plums, shells, stones",
    "place": "bakery, barn, beach, castle, farm, forest, garden, harbor, hill, lake, library, market, meadow, "
    "mill, park, river, school, station",
    "toy": "ball, clock, drum, flute, kite, whistle",
    "promise": "bake a cake/baked a cake, clean the boat/cleaned the boat, close the gate/closed the gate, feed "
    "the hens/fed the hens, light the lamp/lit the lamp, mend the fence/mended the fence, paint the "
    "door/painted the door, sing a song/sang a song, sweep the floor/swept the floor, tell a joke/told a joke",
    "many": "six, seven, eight, nine, ten, eleven",
    "few": "two, three, four, five",
    "some": "one, two",
}


@cache
def grammar() -> str:
    """The sentences of the stories. They are read when they are needed, so a server can do without the file."""
    return FILE.read_text(encoding="utf-8")


def rules() -> dict[str, list[str]]:
    """Symbol → its lines."""
    return read_rules(grammar())


@cache
def alternatives(symbol: str) -> list[list[Part]]:
    """A symbol's lines, each cut into parts."""
    if symbol not in rules():
        raise ValueError(f"the grammar has no symbol {{{symbol}}}; is it spelled right?")
    found = []
    for line in rules()[symbol]:
        pieces = re.findall(r"([^{}]+)|\{([^{}]*)\}", line)  # (words, "") or ("", text between braces)
        found.append([Text(words) if words else parse(inside) for words, inside in pieces])
    return found


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
    if pool not in POOLS:
        raise ValueError(f"there is no pool {pool!r}; the pools are {', '.join(POOLS)}")
    found = POOLS[pool].split(", ")
    if len(set(found)) < len(found):
        raise ValueError(f"{pool} has an entry twice, so two choices give the same text; remove one")
    return [tuple(entry.split("/")) for entry in found]


def said(part: Text | Recall | Count, facts: dict[str, tuple[str, ...]]) -> str:
    """The words of a part that leaves no choice."""
    if isinstance(part, Text):
        return part.words
    keys = [part.key] if isinstance(part, Recall) else [key for _, key in part.terms]
    for key in keys:
        if key not in facts:
            raise ValueError(f"{{{key}}} recalls a fact that no sentence before it has drawn")
    if isinstance(part, Recall):
        return facts[part.key][part.form]
    return add([(sign, facts[key][0]) for sign, key in part.terms])


@dataclass
class Telling:
    """A story as it is told: its text, its facts, and each choice as (where in the text, out of how many)."""

    text: str = ""
    facts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    choices: list[tuple[int, int]] = field(default_factory=list)
    answers: list[tuple[int, int]] = field(default_factory=list)  # text[start:end] is a number that answers
    kinds: list[str] = field(default_factory=list)  # each answer: "copied", or "computed" from two


def choose(options: list, rng: random.Random, told: Telling):
    told.choices.append((len(told.text), len(options)))
    return options[int(rng.random() * len(options))]


def tell(symbol: str, rng: random.Random, told: Telling) -> None:
    """Adds one random expansion of symbol to the story."""
    for part in choose(alternatives(symbol), rng, told):
        if isinstance(part, Pick):
            tell(part.symbol, rng, told)
            continue
        if isinstance(part, Draw):
            told.facts[part.key] = choose(entries(part.pool), rng, told)
            words = told.facts[part.key][0]
        else:
            words = said(part, told.facts)
        if isinstance(part, Count) and part.asked:
            told.answers.append((len(told.text), len(told.text) + len(words)))
            told.kinds.append("copied" if len(part.terms) == 1 else "computed")
        told.text += words


@dataclass(frozen=True)
class Story:
    """A text, the natural logarithm of its probability, and the places of its answers to "who has how many?".

    answers: text[start:end] is a number word that follows from the text before. kinds: "copied", or "computed" from two.
    """

    text: str
    logprob: float
    answers: tuple[tuple[int, int], ...]
    kinds: tuple[str, ...] = ()


def stories(n: int | None = None, seed: int = 0) -> Iterator[Story]:
    """Yields n stories, or stories for ever. The same seed always gives the same stories in the same order."""
    rng, number = random.Random(seed), 0
    while n is None or number < n:
        told = Telling()
        tell("story", rng, told)
        logprob = -sum(math.log(options) for _, options in told.choices)
        yield Story(told.text, logprob, tuple(told.answers), tuple(told.kinds))
        number += 1


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


def check(lines: list[str], where: str) -> None:
    """ValueError if a line is there twice, or if a brace has no partner."""
    for line in lines:
        if lines.count(line) > 1:
            raise ValueError(f"two readings of one text: {line!r} is twice in {where}; remove one")
        if re.search("[{}]", re.sub(r"\{[^{}]*\}", "", line)):
            raise ValueError(f"a brace is missing its partner in {where}: {line}")


def floor_per_token(stories: Iterable[Story], tokenizer) -> float:
    """The mean loss, in nats per token, of a model that knows the grammar, on these stories.

    Each story counts its tokens and one `<|endoftext|>`, which costs nothing, since a story shows where it ends.
    tokenizer: anything with .encode(text). ValueError without stories.
    """
    nats = tokens = 0
    for story in stories:
        nats -= story.logprob
        tokens += len(tokenizer.encode(story.text)) + 1
    if not tokens:
        raise ValueError("a floor per token needs at least one story")
    return nats / tokens


def read(parts: list[Part], text: str, at: int, facts: dict, choices: tuple) -> Iterator[tuple]:
    """The same for parts that are to be all of text[at:], after some choices."""
    if not parts:
        yield from [choices] if at == len(text) else []
        return
    part, *rest = parts
    if isinstance(part, Pick):
        made = (*choices, (at, len(alternatives(part.symbol))))
        for line in alternatives(part.symbol):
            yield from read([*line, *rest], text, at, facts, made)
    elif isinstance(part, Draw):
        made = (*choices, (at, len(entries(part.pool))))
        for entry in entries(part.pool):
            if text.startswith(entry[0], at):
                yield from read(rest, text, at + len(entry[0]), facts | {part.key: entry}, made)
    elif text.startswith(words := said(part, facts), at):
        yield from read(rest, text, at + len(words), facts, choices)


def readings(text: str) -> list[tuple[tuple[int, int], ...]]:
    """All ways to tell a text, each as its choices (where, out of how many); none if the grammar does not tell it."""
    return list(read([Pick("story")], text, 0, {}, ()))


def _write_corpus(folder: Path, tokenizer, source: dict) -> dict:
    """The stories that `source` describes, one shard for each split; returns the manifest, which is written last."""
    members: dict[str, list[Story]] = {split: [] for split in SPLITS}
    for story in stories(source["stories"], source["seed"]):
        members[split_of(hashlib.sha256(story.text.encode()).digest(), 0.05, 0.05)].append(story)
    if not all(members.values()):
        raise ValueError(f"{source['stories']} stories leave none for val or test; take 200 or more")
    encoding, held = tokenizer.to_tiktoken(), {}
    for split, chosen in members.items():
        path = folder / f"{split}_000000.bin"
        text = "".join(f"<|endoftext|>{story.text}" for story in chosen)
        ids = encoding.encode_to_numpy(text, allowed_special="all")
        write_shard(path, ids)
        size = sum(len(story.text.encode()) for story in chosen)
        shard = {"file": path.name, "tokens": len(ids), "sha256": file_sha256(path)}
        held[split] = {"documents": len(chosen), "bytes": size, "tokens": len(ids), "shards": [shard]}
    tokenizer.save(folder / "tokenizer.json")
    floor = -sum(story.logprob for story in members["val"]) / held["val"]["tokens"]
    manifest = {"source": source, "tokenizer": "tokenizer.json", **identity(tokenizer), "splits": held}
    return save_manifest(folder, manifest | {"floor": floor})


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
    return _write_corpus(folder, tokenizer, source)
