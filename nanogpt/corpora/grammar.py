"""The grammar of the stories: its text, and the parts that its lines are made of.

Exported from notebooks/02_corpus.ipynb.
"""

import difflib
import re
from functools import cache
from typing import NamedTuple

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
story =
  {open} {both} {proud} {aside} {tell_both} {give} {thanks} {gave} {close}
  {open} {one} {proud} {aside} {tell} {more} {now_more} {close}
  {open} {one} {proud} {tell} {aside} {bad} {feel} {now_less} {close}
  {open} {both} {proud} {vow} {tell_both} {kept} {gave} {close}
  {open} {one} {proud} {wish} {aside} {tell} {deal} {traded} {close}
  {open} {both} {proud} {aside} {tell_both} {feel} {together} {close}
  {open} {hid} {aside} {seek} {found} {feel} {close}
open = One {weather} {day}, {A:girl} went to the {P:place} with {B:boy}.
  On a {weather} {day}, {A:girl} met {B:boy} at the {P:place}.
  {A:girl} and {B:boy} walked to the {P:place} on a {weather} {day}.
  It was a {weather} {day} at the {P:place}. {A:girl} was there with {B:boy}.
close = "What a {good} {day}," said {A}. | Then they left the {P} and went home.
  {A} and {B} stayed there until {late}. | They played {where} until {late}.
  {A} ate some {food} and {B} had {food}.
"""


COUNTS = """
both = {A} had {n:many} {color} {T:things}, and {B} had {m:few}.
  {A} brought {n:many} {color} {T:things}, but {B} brought only {m:few}.
  {B} had {m:few} {color} {T:things}. {A} had {n:many}.
one = {A} had {n:many} {color} {T:things} in her {bag}.
  {A} carried {n:many} {color} {T:things} in a {bag}. | In her {bag}, {A} had {n:many} {color} {T:things}.
proud = {A} was proud of her {?n} {T}. | {A} loved her {?n} {T}. | "Look at my {?n} {T}," said {A}.
tell = "How many {T} do you have?" asked {B}. "I have {?n} {T}," said {A}. | {A} showed {B} her {?n} {T}.
  "I have {?n} {T}," said {A}.
tell_both = "I have {?n} {T}," said {A}. "I have {?m} {T}," said {B}.
  "How many {T} do you have?" asked {A}. "I have {?m} {T}," said {B}.
  {A} counted her {?n} {T} and {B} counted his {?m} {T}.
"""


CHANGES = """
give = {A} {handed} {k:some} of them to {B}. | {B} asked for some, so {A} {handed} {B} {k:some}.
gave = Now {A} had {?n-k} {T} and {B} had {?m+k} {T}. | So {B} had {?m+k} {T} and {A} had {?n-k} {T}.
  "Now I have {?n-k} {T}," said {A}. "Now I have {?m+k} {T}," said {B}.
more = {Where}, {A} found {k:some} more. | Then {A} found {k:some} more {where}.
now_more = "How many {T} do you have now?" asked {B}. "Now I have {?n+k} {T}," said {A}.
  So {A} had {?n+k} {T} in the end.
bad = But {k:some} of them fell into the {hole}. | A {look} {animal} ran off with {k:some} of them.
now_less = "How many {T} are left?" asked {B}. "Now I have {?n-k} {T}," said {A}.
  So {A} had only {?n-k} {T} left.
together = Together they had {?n+m} {T}. | They put the {T} together and counted {?n+m} {T}.
"""


DEEDS = """
vow = "I will {V:promise}," said {B}. "I promise." | {B} promised to {V:promise}.
kept = {B} kept his promise and {V.did}, so {A} {handed} {B} {k:some} of the {T}.
  Later {B} {V.did}. To thank him, {A} {handed} {B} {k:some} of the {T}.
wish = {B} had a {color} {O:toy}. {A} wanted the {O}.
  "I have a {color} {O:toy}," said {B}. {A} wanted the {O}.
deal = {A} {handed} {B} {k:some} of the {T} for the {O}.
  So {B} sold the {O} to {A} for {k:some} of the {T}.
traded = Now {A} had the {O} and {?n-k} {T}. | The {O} was hers now, and {A} still had {?n-k} {T}.
seek = {B} looked {where}, and then {where}.
  "Are the {T} {where}?" asked {B}. "No, look {where}," said {A}.
found = There {B} found {?n} {T}. | "How many {T} are there?" asked {A}. "There are {?n} {T}," said {B}.
"""


DETAILS = """
hid = {A} hid {n:many} {color} {T:things} in a {box}.
  {A} put {n:many} {color} {T:things} into a {box} and closed it.
aside = A {look} {animal} {acted} {where}. | {Where}, a {look} {animal} {acted}.
  "Look, a {look} {animal}," said {B}. It {acted} {where}. | {A} was {mood}, and {B} was {mood}.
  {B} talked about a {look} {animal}. That made {A} {mood}.
feel = {A} was {mood}. | She felt {mood}. | "I am {mood}," said {A}. | "You look {mood}," said {B}.
thanks = "Thank you, {A}," said {B}. | "How {good} of you," said {B}. | He was {mood}.
  That made him {mood}.
"""


WORDS = """
where = {near} the {spot}
Where = {Near} the {spot}
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


def check(lines: list[str], where: str) -> None:
    """ValueError if a line stands twice, or a brace alone."""
    for line in lines:
        if lines.count(line) > 1:
            raise ValueError(f"two readings of one text: {line!r} stands twice under {where}; remove one")
        if re.search("[{}]", re.sub(r"\{[^{}]*\}", "", line)):
            raise ValueError(f"a brace is missing its partner under {where}: {line}")


@cache
def rules() -> dict[str, list[str]]:
    """Symbol → its alternatives: those between bars and on lines of their own, or the words behind a colon."""
    text, rule = PLOTS + COUNTS + CHANGES + DEEDS + DETAILS + WORDS, r"(?m)^(\w+)( =|:)((?:.|\n  )*)"
    if stray := re.sub(rule, "", text).strip():
        raise ValueError(f"no symbol is defined by: {stray.splitlines()[0]}")
    found: dict[str, list[str]] = {}
    for symbol, mark, rest in re.findall(rule, text):
        if symbol in found:
            raise ValueError(f"the grammar says twice what {symbol} is; give one another name")
        found[symbol] = rest.split() if mark == ":" else re.split(r" \| |\n  ", rest.strip())
        check(found[symbol], symbol)
    return found


class Text(NamedTuple):
    words: str


class Pick(NamedTuple):
    symbol: str


class Draw(NamedTuple):
    key: str
    pool: str


class Recall(NamedTuple):
    key: str
    form: int  # 0: as it was drawn, -1: its last form


class Count(NamedTuple):
    terms: tuple[tuple[int, str], ...]  # (sign, key)
    asked: bool  # does it answer who has how many?


Part = Text | Pick | Draw | Recall | Count


@cache
def alternatives(symbol: str) -> list[list[Part]]:
    """A symbol's lines, each cut into parts."""
    cut = [re.findall(r"([^{}]+)|\{([^{}]*)\}", line) for line in rules()[symbol]]
    return [[Text(words) if words else parse(inside, symbol) for words, inside in line] for line in cut]


def parse(inside: str, symbol: str) -> Part:
    """What stands in braces, in a line of symbol. ValueError if it is no part."""
    if inside in rules():
        return Pick(inside)
    if re.fullmatch(r"\w:\w+", inside) and inside[2:] in POOLS:
        return Draw(inside[0], inside[2:])
    if re.fullmatch(r"[A-Z](\.did)?", inside):
        return Recall(inside[0], -1 if inside.endswith(".did") else 0)
    if re.fullmatch(r"\??[a-z]([+-][a-z])*", inside):
        signed = re.findall("([+-]?)([a-z])", inside)
        return Count(tuple((-1 if sign == "-" else 1, key) for sign, key in signed), inside[0] == "?")
    near = difflib.get_close_matches(inside, [*rules(), *(f"{inside[:1]}:{pool}" for pool in POOLS)], 1)
    hint = f"; did you mean {{{near[0]}}}?" if near else ""
    raise ValueError(f"{{{inside}}} under {symbol} is no symbol, draw, fact or sum{hint}")
