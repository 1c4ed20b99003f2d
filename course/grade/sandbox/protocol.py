"""What passes between the grader and a sandbox, both ways: a bounded JSON header and raw bytes.

A frame is a magic word, two lengths, the header, the body. Values (None, bool, int, float, str, bytes, lists, tuples,
dictionaries, tensors, arrays, generators) are described in the header; the bytes of tensors stand in the body. Nothing
is executed when a frame is read, and no field says whether something passed.
"""

import json
import math
import struct
import sys

MAGIC = b"GRD1"
PREFIX = struct.Struct("<4sIQ")  # magic, bytes of the header, bytes of the body
MAX_HEADER, MAX_BODY = 4_000_000, 64_000_000
MAX_DEPTH, MAX_VALUES, MAX_DIMENSIONS, MAX_TEXT = 16, 200_000, 8, 2000
MAX_PAIRS = 2000  # of all dictionaries together: keys whose hashes are equal take time by the square

PLAIN = {type(None), bool, int, float, str}  # what JSON holds as it is
SIZES = {"bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}
SIZES |= {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "uint16": 2, "uint32": 4, "uint64": 8}


class BadFrame(Exception):
    """What came is no frame; the text says why."""


class TooLarge(BadFrame):
    """A frame announces more than may be sent."""


def pack(kind: str, number: int, values=None, **fields) -> bytes:
    """One frame. TypeError where a value is of a kind that cannot be sent."""
    blobs: list[bytes] = []
    header = {"kind": kind, "id": number, "values": encoded(values, blobs)} | fields
    text = json.dumps(header).encode()
    body = b"".join(blobs)
    if len(text) > MAX_HEADER or len(body) > MAX_BODY:
        raise TypeError(f"{len(text) + len(body):,} bytes are too many to be sent")
    return PREFIX.pack(MAGIC, len(text), len(body)) + text + body


def encoded(value, blobs: list[bytes], depth: int = 0):
    if depth > MAX_DEPTH:
        raise TypeError(f"values are nested deeper than {MAX_DEPTH}")
    if type(value) in PLAIN:  # most are
        return value
    for plain in (int, float, str):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, bytes | bytearray):
        blobs.append(bytes(value))
        return {"b": len(value)}
    if isinstance(value, list | tuple):
        return {"t" if isinstance(value, tuple) else "l": [encoded(v, blobs, depth + 1) for v in value]}
    if isinstance(value, dict):
        pairs = [[encoded(k, blobs, depth + 1), encoded(v, blobs, depth + 1)] for k, v in value.items()]
        return {"d": pairs}
    # A value of these kinds exists only where its package has been imported.
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch and isinstance(value, torch.Tensor):
        plain = value.detach().as_subclass(torch.Tensor).cpu().resolve_neg().contiguous()
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes()
        return sent_array("x", str(value.dtype).removeprefix("torch."), tuple(value.shape), raw, blobs)
    if numpy and isinstance(value, numpy.generic):
        return encoded(value.item(), blobs, depth + 1)
    if numpy and isinstance(value, numpy.ndarray):
        return sent_array("n", value.dtype.name, value.shape, value.tobytes(), blobs)
    if torch and isinstance(value, torch.Generator):
        blobs.append(value.get_state().numpy().tobytes())
        return {"g": len(blobs[-1])}
    raise TypeError(f"a {type(value).__name__} is neither number, text, list, tuple, dictionary nor tensor")


def sent_array(kind: str, dtype: str, shape: tuple, raw: bytes, blobs: list[bytes]) -> dict:
    if dtype not in SIZES:
        raise TypeError(f"a tensor in {dtype} cannot be sent")
    blobs.append(raw)
    return {kind: dtype, "s": list(shape)}


def lengths(prefix: bytes) -> tuple[int, int]:
    """How many bytes of header and of body follow the prefix."""
    magic, header, body = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise BadFrame("the reply does not begin as one")
    if header > MAX_HEADER or body > MAX_BODY:
        raise TooLarge(f"the reply has {header + body:,} bytes")
    return header, body


def unpack(text: bytes, body: bytes) -> dict:
    """The header with its values. BadFrame, and nothing else, for whatever is not one."""
    return with_values(header_of(text), body)


def header_of(text: bytes) -> dict:
    """The header; its values are still a description."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise BadFrame("the header is not JSON") from None
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str):
        raise BadFrame("the header has no kind")
    if type(header.get("id")) is not int:
        raise BadFrame("the header has no number")
    return header


def with_values(header: dict, body: bytes) -> dict:
    reader = Reader(body)
    header["values"] = reader.value(header.get("values"), 0)
    if reader.at != len(body):
        raise BadFrame(f"{len(body) - reader.at} bytes are left over")
    return header


class Reader:
    """Turns descriptions into values, taking the bytes of each from the body in order."""

    def __init__(self, body: bytes):
        self.body, self.at, self.count, self.pairs = body, 0, 0, 0

    def value(self, spec, depth: int):
        self.count += 1
        if depth > MAX_DEPTH or self.count > MAX_VALUES:
            raise BadFrame("too many values, or nested too deeply")
        if type(spec) in PLAIN:
            return spec
        if not isinstance(spec, dict):
            raise BadFrame("a value without a kind")
        if len(spec) == 1:
            [(kind, what)] = spec.items()
            if kind in ("l", "t") and isinstance(what, list):
                parts = [self.value(part, depth + 1) for part in what]
                return parts if kind == "l" else tuple(parts)
            if kind == "d" and isinstance(what, list):
                return self.dictionary(what, depth)
            if kind == "b":
                return self.take(what)
            if kind == "g":
                return self.generator(what)
        if set(spec) in ({"x", "s"}, {"n", "s"}):
            return self.array(spec)
        raise BadFrame("a value of unknown kind")

    def dictionary(self, pairs: list, depth: int) -> dict:
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise BadFrame("a dictionary is not of pairs")
        self.pairs += len(pairs)
        if self.pairs > MAX_PAIRS:
            raise BadFrame(f"more than {MAX_PAIRS:,} entries of dictionaries")
        made = {}
        for key, value in pairs:
            try:
                made[self.value(key, depth + 1)] = self.value(value, depth + 1)
            except TypeError:
                raise BadFrame("a dictionary's key is a list") from None
        return made

    def take(self, length) -> bytes:
        if type(length) is not int or not 0 <= length <= len(self.body) - self.at:
            raise BadFrame("a length does not fit the bytes that came")
        self.at += length
        return self.body[self.at - length : self.at]

    def array(self, spec: dict):
        dtype, shape = spec.get("x") or spec.get("n"), spec["s"]
        if not isinstance(dtype, str) or dtype not in SIZES or ("n" in spec and dtype == "bfloat16"):
            raise BadFrame("an unknown dtype")
        if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
            raise BadFrame("a shape is a short list")
        if any(type(n) is not int or not 0 <= n <= MAX_BODY for n in shape):
            raise BadFrame("a dimension is negative, huge or no whole number")
        if math.prod(max(n, 1) for n in shape) > MAX_BODY:  # also of an empty one: its strides would overflow
            raise BadFrame("a shape is too large")
        raw = bytearray(self.take(math.prod(shape) * SIZES[dtype]))
        if "n" in spec:
            import numpy

            flat = numpy.frombuffer(raw, dtype="uint8" if dtype == "bool" else dtype)
            return (flat != 0 if dtype == "bool" else flat).reshape(shape)
        import torch

        kind = torch.uint8 if dtype == "bool" else getattr(torch, dtype)
        flat = torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)
        # A byte other than 0 and 1 is no bool, and what comparisons make of it is not defined.
        return (flat != 0 if dtype == "bool" else flat).reshape(shape)

    def generator(self, length):
        import torch

        state = self.take(length)
        try:
            made = torch.Generator()
            made.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        except (RuntimeError, ValueError):
            raise BadFrame("no state of a generator") from None
        return made
