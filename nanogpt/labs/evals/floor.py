"""What the best possible model loses on stories, and from a text back to the choices behind it.

Exported from notebooks/02_corpus.ipynb.
"""

import re
from collections.abc import Iterable, Iterator

from nanogpt.labs.corpora.stories import Draw, Part, Pick, Story, alternatives, entries, words_of


def check_lines(lines: list[str], where: str) -> None:
    """ValueError if a line is there twice, or if a brace has no partner."""
    for line in lines:
        if lines.count(line) > 1:
            raise ValueError(f"two readings of one text: {line!r} is twice in {where}; remove one")
        if re.search("[{}]", re.sub(r"\{[^{}]*\}", "", line)):
            raise ValueError(f"a brace is missing its partner in {where}: {line}")


def floor_per_token(stories: Iterable[Story], tokenizer) -> float:
    """The mean loss, in nats per token, of a model that knows the grammar, on these stories.

    stories: read once, so it may be a generator.
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


def read_parts(parts: list[Part], text: str, at: int, facts: dict, choices: tuple) -> Iterator[tuple]:
    """The same for parts that are to be all of text[at:], after some choices."""
    if not parts:
        yield from [choices] if at == len(text) else []
        return
    part, *rest = parts
    if isinstance(part, Pick):
        made = (*choices, (at, len(alternatives(part.symbol))))
        for line in alternatives(part.symbol):
            yield from read_parts([*line, *rest], text, at, facts, made)
    elif isinstance(part, Draw):
        made = (*choices, (at, len(entries(part.pool))))
        for entry in entries(part.pool):
            if text.startswith(entry[0], at):
                yield from read_parts(rest, text, at + len(entry[0]), facts | {part.key: entry}, made)
    elif text.startswith(words := words_of(part, facts), at):
        yield from read_parts(rest, text, at + len(words), facts, choices)


def readings(text: str) -> list[tuple[tuple[int, int], ...]]:
    """All ways to tell a text, each as its choices (where, out of how many); none if the grammar does not tell it."""
    return list(read_parts([Pick("story")], text, 0, {}, ()))
