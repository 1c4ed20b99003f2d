"""The grammar of the stories: its text, and the parts that its lines are made of.

Exported from notebooks/02_corpus.ipynb.
"""

import re
from collections import namedtuple
from functools import cache
from pathlib import Path

import nanogpt

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


FILE = Path(nanogpt.__file__).resolve().parents[1] / "data" / "grammar.txt"
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


def check(lines: list[str], where: str) -> None:
    """ValueError if a line is there twice, or if a brace has no partner."""
    for line in lines:
        if lines.count(line) > 1:
            raise ValueError(f"two readings of one text: {line!r} is twice in {where}; remove one")
        if re.search("[{}]", re.sub(r"\{[^{}]*\}", "", line)):
            raise ValueError(f"a brace is missing its partner in {where}: {line}")
