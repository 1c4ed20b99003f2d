"""Stories from a grammar whose every choice can be read back, so that the floor of a loss is known.

Exported from notebooks/02_corpus.ipynb.
"""

import hashlib
import math
import os
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nanogpt.shards import (
    SPLITS,
    check_shards,
    file_sha256,
    identity,
    load_manifest,
    save_manifest,
    split_of,
    write_shard,
)

NUMBERS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
]
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


PLOTS = """
story
  {open} {both} {proud} {aside} {tell_both} {give} {thanks} {gave} {close}
  {open} {one} {proud} {aside} {tell} {more} {now_more} {close}
  {open} {one} {proud} {tell} {aside} {bad} {feel} {now_less} {close}
  {open} {both} {proud} {vow} {tell_both} {kept} {gave} {close}
  {open} {one} {proud} {wish} {aside} {tell} {deal} {traded} {close}
  {open} {both} {proud} {aside} {tell_both} {feel} {together} {close}
  {open} {hid} {aside} {seek} {found} {feel} {close}
open
  One {weather} {day}, {A:girl} went to the {P:place} with {B:boy}.
  On a {weather} {day}, {A:girl} met {B:boy} at the {P:place}.
  {A:girl} and {B:boy} walked to the {P:place} on a {weather} {day}.
  It was a {weather} {day} at the {P:place}. {A:girl} was there with {B:boy}.
close
  "What a {good} {day}," said {A}.
  Then they left the {P} and went home.
  {A} and {B} stayed there until {late}.
  They played {where} until {late}.
  {A} ate some {food} and {B} had {food}.
"""


COUNTS = """
both
  {A} had {n:many} {color} {T:things}, and {B} had {m:few}.
  {A} brought {n:many} {color} {T:things}, but {B} brought only {m:few}.
  {B} had {m:few} {color} {T:things}. {A} had {n:many}.
one
  {A} had {n:many} {color} {T:things} in her {bag}.
  {A} carried {n:many} {color} {T:things} in a {bag}.
  In her {bag}, {A} had {n:many} {color} {T:things}.
proud
  {A} was proud of her {?n} {T}.
  {A} loved her {?n} {T}.
  "Look at my {?n} {T}," said {A}.
tell
  "How many {T} do you have?" asked {B}. "I have {?n} {T}," said {A}.
  {A} showed {B} her {?n} {T}.
  "I have {?n} {T}," said {A}.
tell_both
  "I have {?n} {T}," said {A}. "I have {?m} {T}," said {B}.
  "How many {T} do you have?" asked {A}. "I have {?m} {T}," said {B}.
  {A} counted her {?n} {T} and {B} counted his {?m} {T}.
"""


CHANGES = """
give
  {A} {handed} {k:some} of them to {B}.
  {B} asked for some, so {A} {handed} {B} {k:some}.
gave
  Now {A} had {?n-k} {T} and {B} had {?m+k} {T}.
  So {B} had {?m+k} {T} and {A} had {?n-k} {T}.
  "Now I have {?n-k} {T}," said {A}. "Now I have {?m+k} {T}," said {B}.
more
  {Where}, {A} found {k:some} more.
  Then {A} found {k:some} more {where}.
now_more
  "How many {T} do you have now?" asked {B}. "Now I have {?n+k} {T}," said {A}.
  So {A} had {?n+k} {T} in the end.
bad
  But {k:some} of them fell into the {hole}.
  A {look} {animal} ran off with {k:some} of them.
now_less
  "How many {T} are left?" asked {B}. "Now I have {?n-k} {T}," said {A}.
  So {A} had only {?n-k} {T} left.
together
  Together they had {?n+m} {T}.
  They put the {T} together and counted {?n+m} {T}.
"""


DEEDS = """
vow
  "I will {V:promise}," said {B}. "I promise."
  {B} promised to {V:promise}.
kept
  {B} kept his promise and {V.did}, so {A} {handed} {B} {k:some} of the {T}.
  Later {B} {V.did}. To thank him, {A} {handed} {B} {k:some} of the {T}.
wish
  {B} had a {color} {O:toy}. {A} wanted the {O}.
  "I have a {color} {O:toy}," said {B}. {A} wanted the {O}.
deal
  {A} {handed} {B} {k:some} of the {T} for the {O}.
  So {B} sold the {O} to {A} for {k:some} of the {T}.
traded
  Now {A} had the {O} and {?n-k} {T}.
  The {O} was hers now, and {A} still had {?n-k} {T}.
hid
  {A} hid {n:many} {color} {T:things} in a {box}.
  {A} put {n:many} {color} {T:things} into a {box} and closed it.
seek
  {B} looked {where}, and then {where}.
  "Are the {T} {where}?" asked {B}. "No, look {where}," said {A}.
found
  There {B} found {?n} {T}.
  "How many {T} are there?" asked {A}. "There are {?n} {T}," said {B}.
"""


DETAILS = """
aside
  A {look} {animal} {acted} {where}.
  {Where}, a {look} {animal} {acted}.
  "Look, a {look} {animal}," said {B}. It {acted} {where}.
  {A} was {mood}, and {B} was {mood}.
  {B} talked about a {look} {animal}. That made {A} {mood}.
feel
  {A} was {mood}.
  She felt {mood}.
  "I am {mood}," said {A}.
  "You look {mood}," said {B}.
thanks
  "Thank you, {A}," said {B}.
  "How {good} of you," said {B}.
  He was {mood}.
  That made him {mood}.
"""


WORDS = """
where
  {near} the {spot}
Where
  {Near} the {spot}
near: behind beside by near under
Near: Behind Beside By Near Under
spot: bench bridge bush door fence house path rock tree tower wall window
look: big brave clever fat funny huge little lazy lovely old pretty silly small strange thin tiny wild young
animal: bear bird cat cow deer dog dragon duck fox frog goat horse mouse owl pig rabbit sheep wolf
acted: danced ate hid jumped played rested sat sang slept waited
mood: angry bored calm cheerful curious glad happy hungry lonely merry proud sad shy sleepy tired worried
color: black blue brown gold green grey pink purple red silver white yellow
weather: bright calm cloudy cold dark foggy hot quiet rainy snowy stormy sunny warm windy
day: afternoon day evening morning night Sunday
good: good kind nice sweet
handed: gave handed passed
bag: bag basket box bucket hat jar pocket sack
box: bottle bowl box bucket chest cup drawer jar
hole: fire grass mud pond sea snow water well
late: dark dinner five midnight noon six
food: bread cake cheese corn fish honey jam milk pie porridge rice soup
"""


@cache
def grammar() -> dict[str, list[str]]:
    """Symbol → its alternatives: the indented lines below it, or the words that stand behind its colon."""
    rules, symbol = {}, ""
    for line in (PLOTS + COUNTS + CHANGES + DEEDS + DETAILS + WORDS).split("\n"):
        if line.startswith("  "):
            rules[symbol].append(line.strip())
        elif line:
            symbol, _, words = line.partition(":")
            rules[symbol] = words.split()
    return rules


@cache
def alternatives(symbol: str) -> list[list[tuple]]:
    """A symbol's templates, each cut into parts.

    A part is ("text", words), ("pick", symbol), ("draw", key, pool), ("recall", key, form) or
    ("count", terms, asked): a sum of signed facts, and whether it answers who has how many.
    """
    cut = []
    for template in grammar()[symbol]:
        pieces = re.split(r"[{}]", template)
        cut.append([_part(piece) if i % 2 else ("text", piece) for i, piece in enumerate(pieces) if piece])
    return cut


def _part(inside: str) -> tuple:
    key, colon, pool = inside.partition(":")
    if colon:
        return "draw", key, pool
    if inside in grammar():
        return "pick", inside
    if inside[0].isupper():
        return "recall", inside[0], 1 if inside.endswith(".did") else 0
    terms = [(-1 if sign == "-" else 1, key) for sign, key in re.findall(r"([+-]?)(\w)", inside)]
    return "count", terms, inside[0] == "?"


@cache
def entries(pool: str) -> list[tuple[str, ...]]:
    """What a fact of this pool can be, in all its forms; the first is the one that is drawn."""
    return [tuple(entry.split("/")) for entry in POOLS[pool].split(", ")]


def count(terms: list[tuple[int, str]], facts: dict) -> str:
    """The number word for a sum of signed facts."""
    return NUMBERS[sum(sign * NUMBERS.index(facts[key][0]) for sign, key in terms)]


def tell(
    symbol: str, rng: random.Random, facts: dict, out: list[str], answers: list[tuple[int, str]]
) -> float:
    """Appends one random expansion of symbol to out, and to answers where in out they stand and their kind.

    Returns its log-probability.
    """
    choices = alternatives(symbol)
    logprob = -math.log(len(choices))
    for kind, what, *more in choices[int(rng.random() * len(choices))]:
        if kind == "pick":
            logprob += tell(what, rng, facts, out, answers)
        elif kind == "draw":
            taken = facts.setdefault(more[0], [])
            free = [entry for entry in entries(more[0]) if entry not in taken]
            facts[what] = free[int(rng.random() * len(free))]
            taken.append(facts[what])
            logprob -= math.log(len(free))
            out.append(facts[what][0])
        elif kind == "recall":
            out.append(facts[what][more[0]])
        elif kind == "count":
            answers += [(len(out), "copied" if len(what) == 1 else "computed")] if more[0] else []
            out.append(count(what, facts))
        else:
            out.append(what)
    return logprob


@dataclass(frozen=True)
class Story:
    """A text, the natural logarithm of its probability, and where its who-has-how-many answers stand.

    For each (start, end) in answers, text[start:end] is a number word that follows from what was said before; kinds
    says of each whether it was "copied" or "computed", that is, whether it had been said or is a sum of what was.
    """

    text: str
    logprob: float
    answers: tuple[tuple[int, int], ...]
    kinds: tuple[str, ...] = ()


def stories(n: int | None = None, seed: int = 0) -> Iterator[Story]:
    """Yields n stories, or stories for ever. The same seed always gives the same stories in the same order."""
    rng, told = random.Random(seed), 0
    while n is None or told < n:
        out, answers = [], []
        logprob = tell("story", rng, {}, out, answers)
        starts = [sum(map(len, out[:i])) for i, _ in answers]
        spans = tuple((start, start + len(out[i])) for start, (i, _) in zip(starts, answers))
        yield Story("".join(out), logprob, spans, tuple(kind for _, kind in answers))
        told += 1


def entropy(symbol: str = "story") -> float:
    """Mean of -logprob over all expansions of symbol, in nats, exact (Cover & Thomas 2006, theorem 2.5.1)."""
    return _entropy(symbol, Counter())[0]


def _entropy(symbol: str, drawn: Counter) -> tuple[float, Counter]:
    """The entropy, after so many draws from each pool, and the draws after it: the same for every alternative."""
    choices = alternatives(symbol)
    total = math.log(len(choices))
    for parts in choices:
        now = drawn.copy()
        for kind, what, *more in parts:
            if kind == "pick":
                inner, now = _entropy(what, now)
                total += inner / len(choices)
            elif kind == "draw":
                total += math.log(len(entries(more[0])) - now[more[0]]) / len(choices)
                now[more[0]] += 1
    return total, now


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


def _write_corpus(folder: Path, tokenizer, source: dict) -> dict:
    """The stories that `source` describes, one shard for each split; returns the manifest, which is written last."""
    encode = tokenizer.to_tiktoken().encode_ordinary
    ids = {split: [] for split in SPLITS}
    held = {split: {"documents": 0, "bytes": 0, "tokens": 0, "shards": []} for split in SPLITS}
    nats = 0.0  # of val
    for story in stories(source["stories"], source["seed"]):
        text = story.text.encode()
        split = split_of(hashlib.sha256(text).digest(), val=0.05, test=0.05)
        ids[split] += [tokenizer.eot, *encode(story.text)]
        held[split]["documents"] += 1
        held[split]["bytes"] += len(text)
        nats -= story.logprob if split == "val" else 0
    for split, tokens in ids.items():
        if not tokens:
            raise ValueError(f"{source['stories']} stories leave none for {split}; take 200 or more")
        path = folder / f"{split}_000000.bin"
        write_shard(path, tokens)
        shard = {"file": path.name, "tokens": len(tokens), "sha256": file_sha256(path)}
        held[split] |= {"tokens": len(tokens), "shards": [shard]}
    tokenizer.save(folder / "tokenizer.json")
    manifest = {"source": source, "tokenizer": "tokenizer.json", **identity(tokenizer), "splits": held}
    return save_manifest(folder, manifest | {"floor": nats / len(ids["val"])})


def ensure_corpus(folder: str | os.PathLike, tokenizer=None, n: int = 50_000, seed: int = 0) -> dict:
    """The embedded corpus as shards in `folder`, with tokenizer.json and manifest.json; made where absent or damaged.

    tokenizer: a BPETokenizer; by default the one that chapter 01 left in the folder above, or else the same,
    trained here. n: stories. Returns the manifest; its "floor" is val's entropy in nats per token.
    """
    from nanogpt.tokenizer import BPETokenizer  # here, because the grammar does without its packages

    folder = Path(folder)
    if tokenizer is None and (folder.parent / "tokenizer.json").exists():
        tokenizer = BPETokenizer.load(folder.parent / "tokenizer.json")
    source = {"stories": n, "seed": seed, "entropy": round(entropy(), 6)}  # another grammar, another corpus
    try:
        manifest = load_manifest(folder)
        same = tokenizer is None or tokenizer.fingerprint == manifest["fingerprint"]
        if same and manifest["source"] == source:
            check_shards(folder, manifest)
            return manifest
    except (OSError, ValueError):
        pass  # absent or damaged
    (folder / "manifest.json").unlink(
        missing_ok=True
    )  # first: it must never describe files that are being replaced
    tokenizer = tokenizer or BPETokenizer.train((story.text for story in stories(5000)), 1024)
    return _write_corpus(folder, tokenizer, source)
