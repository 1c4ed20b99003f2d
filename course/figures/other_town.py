"""For chapters 07b and 19: the grammar with other lines, for the length of a block."""

from collections.abc import Iterator
from contextlib import contextmanager

from nanogpt.labs.corpora.stories import alternatives, entries, rules
from nanogpt.labs.evals.floor import check_lines


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
