"""For chapter 19: the grammar's other lines, for the length of a block."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from nanogpt.labs.corpora.stories import alternatives, entries, rules
from nanogpt.labs.evals.floor import check_lines

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
    """Within the block the grammar has these lines, with bars between them, for these symbols."""
    book = rules()
    if unknown := [name for name in change if name not in book]:
        raise ValueError(f"the grammar has no symbol {unknown[0]!r} that could change")
    before = {name: book[name] for name in change}

    def put(lines: dict) -> None:
        book.update(lines)
        alternatives.cache_clear(), entries.cache_clear()

    put({name: text.split(" | ") for name, text in change.items()})
    try:
        for name in change:
            check_lines(book[name], name)
        yield
    finally:
        put(before)
