"""Where a text may be cut so that no id changes, in memory and in a file of any size.

Exported from notebooks/16a_any_file.ipynb.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

EDGE = re.compile(rb"(?<![\s\x1c-\x1f])(?=[ \n])")  # white space comes, and none was before it


def safe_cut(text: bytes, at: int = 1) -> int | None:
    """The first place from byte `at` on where a cut changes no id in any vocabulary with GPT-2's pattern, or None."""
    for edge in EDGE.finditer(text, max(at, 1)):
        before = text[max(0, edge.start() - 4) : edge.start()].decode("utf-8", "ignore")
        if not before[-1:].isspace():
            return edge.start()
    return None


LIMIT = 1 << 26  # bytes without a place to cut


def bytes_between(path: Path, start: int, stop: int) -> Iterator[bytes]:
    """A stretch of a file, a megabyte at a time."""
    with open(path, "rb") as file:
        file.seek(start)
        while raw := file.read(min(1 << 20, stop - start)):
            yield raw
            start += len(raw)


def line_of(path: Path, place: int) -> int:
    """Which line of a file holds byte `place`, counted from 1."""
    return 1 + sum(raw.count(b"\n") for raw in bytes_between(path, 0, place))


def seek_cut(path: Path, start: int, at: int, first: Callable = safe_cut) -> int:
    """The first place from byte `at` on where a file may be cut, by first(bytes, at); or its end. start: the last cut.

    Nothing before `start` is read. `first` gets what was read, and where `at` is in it. If LIMIT bytes, the most that
    are read, have no place, ValueError, which names the file and the line of `at`.
    """
    base = max(start, at - 4)  # the character before `at` is in these 4 bytes
    length = min(1 << 16, LIMIT)
    while True:
        text = b"".join(bytes_between(path, base, base + length))
        cut = first(text, at - base)
        if cut:
            return base + cut
        if len(text) < length:
            return path.stat().st_size
        if length >= LIMIT:
            raise ValueError(f"{path}, line {line_of(path, at)}: no place to cut in {length:,} bytes")
        length = min(4 * length, LIMIT)
