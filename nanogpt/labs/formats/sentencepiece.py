"""SentencePiece's model files, read and written; encoding by scored merges or by the best path.

Exported from notebooks/24c_sentencepiece.ipynb.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from nanogpt.files import atomically

MARK = "▁"  # a space


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # the kinds, as the format numbers them


@dataclass(frozen=True)
class Piece:
    text: str
    score: float = 0.0
    kind: int = NORMAL


def merge_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """Cut a text into pieces by joining neighbours, those with the highest score first, of equals the leftmost."""
    parts, heap = list(text), []
    before, after = [i - 1 for i in range(len(parts))], [i + 1 for i in range(len(parts))]

    def offer(i: int, j: int) -> None:
        if i >= 0 and j < len(parts) and parts[i] + parts[j] in scores:
            joined = parts[i] + parts[j]
            heapq.heappush(heap, (-scores[joined], i, j, joined))

    for i in range(len(parts) - 1):
        offer(i, i + 1)
    while heap:
        _, i, j, joined = heapq.heappop(heap)
        if not parts[i] or not parts[j] or parts[i] + parts[j] != joined:
            continue  # outdated
        parts[i], parts[j] = joined, ""
        after[i] = after[j]
        if after[j] < len(parts):
            before[after[j]] = i
        offer(before[i], i)
        offer(i, after[i])
    return [part for part in parts if part]


def best_path(text: str, scores: dict[str, np.float32]) -> list[str]:
    """Cut a text into the pieces with the largest sum of scores (Kudo 2018, §3.2); an unknown letter stands alone.

    Sums are in float32, as in the library, so that close ones are decided alike. Of ways with equal sums it takes the
    one whose last piece is longest.
    """
    longest, worst = max(map(len, scores), default=1), np.float32(min(scores.values(), default=0.0))
    best = [(np.float32(0), 0)] * (len(text) + 1)  # for each place: the sum, and where its last piece began
    for end in range(1, len(text) + 1):
        ways = []
        for start in range(max(0, end - longest), end):
            piece = text[start:end]
            if piece in scores:
                ways.append((best[start][0] + scores[piece], start))
            elif len(piece) == 1:
                ways.append((best[start][0] + (worst - np.float32(10)), start))
        best[end] = max(ways, key=lambda way: way[0])  # of equals the first, which is the longest piece
    cuts, end = [], len(text)
    while end > 0:
        start = best[end][1]
        cuts.append(text[start:end])
        end = start
    return cuts[::-1]


def to_varint(value: int) -> bytes:
    """A number as protobuf writes it: seven bits a byte, the lowest first. Negative ones as 64 bits."""
    value, out = value % 2**64, b""
    while value >= 128:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def from_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at this place, and the place after it.

    ValueError if it does not end: where the bytes are at their end, or after ten of them (64 bits need no more).
    """
    value = 0
    for k, byte in enumerate(data[at : at + 10]):
        value += (byte & 127) << (7 * k)
        if byte < 128:
            return value, at + k + 1
    raise ValueError("a number is cut off, or has more than ten bytes")


def fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """The fields of a message, one by one: the number, and an int, a float or bytes.

    ValueError if the bytes are not a message: one of the other ways, or a value that is cut off.
    """
    at = 0
    while at < len(data):
        key, at = from_varint(data, at)
        way = key & 7
        if way == 0:
            value, at = from_varint(data, at)
        elif way == 5:
            value, at = np.frombuffer(data[at : at + 4], "<f4")[0].item(), at + 4
        elif way == 2:
            size, at = from_varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"no field of these files is written in way {way}")
        if at > len(data):
            raise ValueError("the last field is cut off")
        yield key >> 3, value


def field(number: int, value: int | float | str | bytes) -> bytes:
    """One field of a message."""
    if isinstance(value, int):
        return to_varint(number << 3) + to_varint(value)
    if isinstance(value, float):
        return to_varint(number << 3 | 5) + np.float32(value).tobytes()
    data = value.encode() if isinstance(value, str) else value
    return to_varint(number << 3 | 2) + to_varint(len(data)) + data


def escaped(text: str, prefix: bool = True, tidy: bool = False) -> str:
    """The text as pieces see it: ▁ for each space, one more in front. tidy: first drop spaces at the ends and doubled ones."""
    if tidy:
        text = " ".join(part for part in text.split(" ") if part)
    text = (MARK if prefix and text else "") + text.replace(" ", MARK)
    return text.rstrip(MARK) if tidy else text


BROKEN = dict.fromkeys(
    range(0xDC80, 0xDD00), 0xFFFD
)  # what a byte that is not UTF-8 is read as → what is shown


@dataclass(frozen=True)
class SentencePiece:
    """A vocabulary in the order of its ids. Its encode and decode are the library's, for files without a table of letters."""

    pieces: list[Piece]
    cut: Callable = merge_by_score  # or best_path
    byte_fallback: bool = True
    unk: int = 0  # the id of <unk>
    prefix: bool = True  # ▁ in front of the text
    tidy: bool = False  # drop spaces at the ends and doubled ones

    @cached_property
    def ids(self) -> dict[str, int]:
        return {piece.text: i for i, piece in enumerate(self.pieces)}

    @cached_property
    def scores(self) -> dict[str, np.float32]:
        return {piece.text: np.float32(piece.score) for piece in self.pieces if piece.kind == NORMAL}

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without <s> and </s>. ValueError for one that has no UTF-8 (a lone surrogate)."""
        text.encode()  # raises here, where the error can say the place in the text
        ids = []
        for piece in self.cut(escaped(text, self.prefix, self.tidy), self.scores):
            if piece in self.scores:
                ids.append(self.ids[piece])
            elif self.byte_fallback:
                ids += [self.ids[f"<0x{value:02X}>"] for value in piece.encode()]
            elif ids[-1:] != [self.unk]:
                ids.append(self.unk)
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text. Bytes that are not UTF-8 become U+FFFD each; <unk> becomes ⁇ between spaces. ValueError for a foreign id."""
        data, drop = b"", self.prefix or self.tidy  # drop: whether a ▁ at the very beginning is left out
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"id {i} is outside this tokenizer's {self.vocab_size} ids")
            piece = self.pieces[i]
            if piece.kind == BYTE:
                data += bytes([int(piece.text[3:5], 16)])
            elif piece.kind == UNKNOWN:
                data += " ⁇ ".encode()
            elif piece.kind == NORMAL:
                part = piece.text
                if drop and not data and part.startswith(MARK):
                    part, drop = part[1:], self.tidy
                data += part.replace(MARK, " ").encode()
        return data.decode("utf-8", errors="surrogateescape").translate(BROKEN)


def write_model(model: SentencePiece, path: str | Path) -> None:
    """Write a .model file, which SentencePiece reads as well; all of it, or nothing."""
    data = b""
    for piece in model.pieces:
        data += field(1, field(1, piece.text) + field(2, float(piece.score)) + field(3, piece.kind))
    trainer = field(3, 2 if model.cut is merge_by_score else 1) + field(4, model.vocab_size)
    trainer += field(35, int(model.byte_fallback)) + field(40, model.unk)
    normal = field(1, "identity") + field(3, int(model.prefix)) + field(4, int(model.tidy))
    with atomically(path) as file:
        file.write(data + field(2, trainer) + field(3, normal))


def unknown_to_us(trainer: dict, normal: dict, denormal: dict, pieces: list[Piece]) -> str:
    """What a file has that changes ids or texts in a way that is not written here; "" where there is nothing."""
    said = {
        "is of type word or char": trainer.get(3, 1) > 2,
        "changes letters by a table": bool(normal.get(2)),
        "changes letters by a table when it decodes": bool(denormal.get(2)),
        "decodes <unk> to something of its own": trainer.get(44, " ⁇ ".encode()) != " ⁇ ".encode(),
        "keeps spaces as they are": not normal.get(5, 1),
        "marks the ends of words": bool(trainer.get(24, 0)),
        "has pieces of the user's own, or unused ones": any(p.kind in (USER_DEFINED, UNUSED) for p in pieces),
        "has no pieces": not pieces,
    }
    return next((what for what, has in said.items() if has), "")


def read_model(path: str | Path) -> SentencePiece:
    """The vocabulary of a .model file. OSError if it is not there, ValueError for what it has and we do not."""
    pieces, sections = [], {2: {}, 3: {}, 5: {}}
    for number, value in fields(Path(path).read_bytes()):
        if number == 1:
            said = {1: b"", 2: 0.0, 3: NORMAL} | dict(fields(value))
            pieces.append(Piece(said[1].decode(), said[2], said[3]))
        elif number in sections:
            sections[number] |= dict(fields(value))
    trainer, normal = sections[2], sections[3]
    if lacks := unknown_to_us(trainer, normal, sections[5], pieces):
        raise ValueError(f"{path} {lacks}, which this reader does not know; use the library")
    cut = merge_by_score if trainer.get(3, 1) == 2 else best_path
    fallback, unk = bool(trainer.get(35, 0)), trainer.get(40, 0)
    return SentencePiece(pieces, cut, fallback, unk, bool(normal.get(3, 1)), bool(normal.get(4, 1)))
