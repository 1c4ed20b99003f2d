"""For chapter 19: the grammar's other lines, for the length of a block."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from nanogpt.stories import POOLS, alternatives, check, entries, rules

SWAPPED = {"her": "his", "his": "her", "She": "He", "He": "She", "him": "her", "hers": "his"}


def swap(line: str) -> str:
    """A line with each pronoun for the other one."""
    return re.sub(rf"\b({'|'.join(SWAPPED)})\b", lambda found: SWAPPED[found[1]], line)


def swapped_rules() -> dict[str, str]:
    """The lines of all rules in which a pronoun occurs, each pronoun exchanged for the other one."""
    lines = {symbol: " | ".join(map(swap, said)) for symbol, said in rules().items()}
    return {symbol: said for symbol, said in lines.items() if said != " | ".join(rules()[symbol])}


@contextmanager
def retold(change: dict[str, str]) -> Iterator[None]:
    """Within the block the grammar has these lines for these symbols, and these entries for these pools."""
    if unknown := [name for name in change if name not in {**POOLS, **rules()}]:
        raise ValueError(f"the grammar has no symbol or pool {unknown[0]!r} that could change")
    books = {name: POOLS if name in POOLS else rules() for name in change}
    before = {name: book[name] for name, book in books.items()}
    after = {name: text if name in POOLS else text.split(" | ") for name, text in change.items()}

    def put(lines: dict) -> None:
        for name, book in books.items():
            book[name] = lines[name]
        alternatives.cache_clear(), entries.cache_clear()

    put(after)
    try:
        for name in change:
            check(after[name] if name in rules() else [], name)
        yield
    finally:
        put(before)
