"""llm.c's files: model, tokenizer and debug state written and read.

Exported from notebooks/22b_formats.ipynb.
"""

import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.files import atomically
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.shards import HEADER_BYTES
from nanogpt.tokenizer import EOT, BPETokenizer

MODEL, STATE, TOKENIZER = 20240326, 20240327, 20240328
VERSIONS = {3: torch.float32, 5: torch.bfloat16}  # of a model; 1 and 2 had no padded vocabulary


def header(*numbers: int) -> bytes:
    """1,024 bytes: little-endian int32, the rest zero."""
    return np.array([*numbers, *[0] * (256 - len(numbers))], "<i4").tobytes()


def padded_shape(config: GPTConfig) -> GPTConfig:
    """The shape as llm.c has it: a vocabulary of a multiple of 128 rows, and biases."""
    return replace(config, padded_vocab_size=math.ceil(config.vocab_size / 128) * 128, bias=True)


WTE = "transformer.wte.weight"


def shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Each tensor's shape by our name for it, in llm.c's order; wte with the rows that pad it."""
    C = config.n_embd
    kinds = {"ln_1.weight": (C,), "ln_1.bias": (C,)}
    kinds |= {"attn.c_attn.weight": (3 * C, C), "attn.c_attn.bias": (3 * C,)}
    kinds |= {"attn.c_proj.weight": (C, C), "attn.c_proj.bias": (C,)}
    kinds |= {"ln_2.weight": (C,), "ln_2.bias": (C,)}
    kinds |= {"mlp.c_fc.weight": (4 * C, C), "mlp.c_fc.bias": (4 * C,)}
    kinds |= {"mlp.c_proj.weight": (C, 4 * C), "mlp.c_proj.bias": (C,)}
    found = {WTE: (config.vocab_rows, C), "transformer.wpe.weight": (config.block_size, C)}
    for kind, shape in kinds.items():
        for i in range(config.n_layer):
            found[f"transformer.h.{i}.{kind}"] = shape
    return found | {"transformer.ln_f.weight": (C,), "transformer.ln_f.bias": (C,)}


def write_tensors(file, tensors: dict[str, Tensor], config: GPTConfig, dtype: torch.dtype) -> None:
    """Tensors by name in llm.c's order; zeros for the rows that pad wte, and for biases that a model lacks."""
    for name, shape in shapes(config).items():
        t = tensors.get(name, torch.zeros(0)).detach().to("cpu", dtype)
        if name == WTE:
            t = t[: config.vocab_size]  # without padding of our own
        file.write(t.contiguous().view(torch.uint8).numpy().tobytes())
        file.write(bytes((math.prod(shape) - t.numel()) * dtype.itemsize))


def read_tensors(data: np.ndarray, config: GPTConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors that write_tensors has written, by name, wte without padding. data: uint8, perhaps a read-only map.

    The tensors have memory of their own.
    """
    tensors, at = {}, 0
    for name, shape in shapes(config).items():
        size = math.prod(shape) * dtype.itemsize
        tensors[name] = torch.from_numpy(data[at : at + size].copy()).view(dtype).view(shape)
        at += size
    return tensors | {WTE: tensors[WTE][: config.vocab_size].clone()}


def read_header(path: str | Path, magic: int, versions, what: str) -> list[int]:
    """The 256 numbers; ValueError if they are not those of such a file."""
    with open(path, "rb") as file:
        raw = file.read(HEADER_BYTES)
    numbers = np.frombuffer(raw.ljust(HEADER_BYTES, b"\0"), "<i4").tolist()
    if len(raw) < HEADER_BYTES or numbers[0] != magic:
        raise ValueError(f"{path} is not {what} of llm.c: it begins with {numbers[0]}, not with {magic}")
    if numbers[1] not in versions:
        raise ValueError(f"{path} is {what} of version {numbers[1]}, not {' or '.join(map(str, versions))}")
    return numbers


def body(path: str | Path, size: int) -> np.ndarray:
    """The bytes after the header, mapped; ValueError if they are not `size`."""
    if (found := Path(path).stat().st_size - HEADER_BYTES) != size:
        what = f"{found:,} bytes after its header, which asks for {size:,}"
        raise ValueError(f"{path} is damaged or of another shape: {what}; copy or write it again")
    return np.memmap(path, np.uint8, "r", HEADER_BYTES)


def version_of(model: GPT, dtype: torch.dtype | None) -> tuple[int, torch.dtype]:
    """The version of a model's file and its dtype, by default the model's own.

    ValueError for a wrapped model, and for a dtype that llm.c lacks.
    """
    if not isinstance(model, GPT):
        raise ValueError(f"to_llmc writes a GPT; unwrap this {type(model).__name__} first (.module)")
    dtype = dtype or model.lm_head.weight.dtype
    for version, kind in VERSIONS.items():
        if kind == dtype:
            return version, dtype
    raise ValueError(f"llm.c reads float32 and bfloat16, not {dtype}; give dtype=torch.float32")


def to_llmc(model: GPT, path: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write a model for llm.c, atomically, in its own dtype or another: float32 is version 3, bfloat16 version 5.

    llm.c's GPT-2 has biases: a model without gets zeros. Rounding to bfloat16 is to the nearest, ties to even.
    """
    version, dtype = version_of(model, dtype)
    c = padded_shape(model.config)
    with atomically(path) as file:
        sizes = c.block_size, c.vocab_size, c.n_layer, c.n_head, c.n_embd, c.vocab_rows
        file.write(header(MODEL, version, *sizes))
        write_tensors(file, dict(model.named_parameters()), c, dtype)


def read_config(path: str | Path) -> tuple[GPTConfig, torch.dtype]:
    """The shape of a model's file, with its padded vocabulary, and its dtype; ValueError if there is no such model."""
    _, version, T, V, L, H, C, rows, *_ = read_header(path, MODEL, VERSIONS, "a model")
    try:
        return GPTConfig(T, V, L, H, C, padded_vocab_size=rows), VERSIONS[version]
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def check_finite(path: str | Path, tensors: dict[str, Tensor]) -> None:
    """ValueError that names the first tensor with NaN or infinity."""
    for name, t in tensors.items():
        if not t.isfinite().all():
            raise ValueError(f"{path}: {name} holds NaN or infinity")


def from_llmc(path: str | Path) -> GPT:
    """The GPT of a model file of llm.c, in evaluation mode and the file's dtype. ValueError if it is none, or damaged."""
    config, dtype = read_config(path)
    tensors = read_tensors(body(path, num_params(config) * dtype.itemsize), config, dtype)
    check_finite(path, tensors)
    with torch.device("meta"):
        model = GPT(replace(config, padded_vocab_size=None))
    model.load_state_dict(tensors, strict=False, assign=True)
    model.lm_head.weight = model.transformer.wte.weight  # tied
    return model.eval()


def write_state(model: GPT, x: Tensor, y: Tensor, path: str | Path) -> None:
    """Write llm.c's debug state: ids x and targets y (B, T), logits (B, T, vocab_size), the loss and its gradients."""
    if not model.config.bias or y.min() < 0:
        raise ValueError("llm.c's debug state takes a model with biases, and no target below 0")
    names, params = zip(*model.eval().named_parameters())
    logits = model(x)[0].float()
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())  # without the rows that pad the vocabulary
    grads = dict(zip(names, torch.autograd.grad(loss, params)))
    with atomically(path) as file:
        file.write(header(STATE, 2, *x.shape))
        for t, dtype in (x, "<i4"), (y, "<i4"), (logits, "<f4"), (loss, "<f4"):
            file.write(t.detach().cpu().numpy().astype(dtype).tobytes())
        write_tensors(file, grads, padded_shape(model.config), torch.float32)


def read_state(path: str | Path, config: GPTConfig) -> dict:
    """x and y (B, T), logits (B, T, vocab_size), loss, and grads by name; of a model of this shape, as from_llmc has it."""
    _, _, B, T, *_ = read_header(path, STATE, [2], "a debug state")
    c, n = padded_shape(config), B * T
    data = body(path, 4 * (2 * n + n * c.vocab_size + 1 + num_params(c)))
    x, y, logits, loss, grads = np.split(data, 4 * np.cumsum([n, n, n * c.vocab_size, 1]))
    ids = [torch.from_numpy(t.view("<i4").astype(np.int64)).view(B, T) for t in (x, y)]
    found = dict(x=ids[0], y=ids[1], logits=torch.from_numpy(logits.view("<f4").copy()).view(B, T, -1))
    return found | dict(loss=float(loss.view("<f4")[0]), grads=read_tensors(grads, c, torch.float32))


def write_tokenizer(tokenizer: BPETokenizer, path: str | Path) -> None:
    """Write a tokenizer file of llm.c, version 2: all tokens by id, with their lengths in one byte each."""
    if list(tokenizer.special) != [EOT] or max(map(len, tokenizer.tokens)) > 255:
        raise ValueError(f"llm.c's file has one special token, {EOT}, and tokens of at most 255 bytes")
    tokens = b"".join(bytes([len(token)]) + token for token in tokenizer.tokens)
    with atomically(path) as file:
        file.write(header(TOKENIZER, 2, tokenizer.vocab_size, tokenizer.eot) + tokens)


def read_tokenizer(path: str | Path) -> BPETokenizer:
    """The tokenizer of such a file, with GPT-2's pattern, which the file does not hold. ValueError if it is damaged."""
    _, _, n, eot, *_ = read_header(path, TOKENIZER, [2], "a tokenizer")
    data, tokens, at = Path(path).read_bytes(), [], HEADER_BYTES
    while at < len(data):
        tokens.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    if at != len(data) or len(tokens) != n or eot != n - 1 or tokens[-1] != EOT.encode():
        raise ValueError(f"{path} is damaged: not {n:,} tokens, of which {EOT} is the last; copy it again")
    return BPETokenizer(tokens[:-1])


NAMES = {"trl": "loss", "tel": "val_loss", "eval": "hellaswag_norm"}


def read_log(path: str | Path) -> list[dict]:
    """The steps of llm.c's main.log as rows of metrics.jsonl. A line that is not whole is left out, and stderr says so."""
    rows = {}
    lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line.endswith("\n"):
            print(f"{path}: the last line is torn and left out", file=sys.stderr)
        elif not re.fullmatch(r"s:\d+( \w+:-?(\d+\.?\d*(e-?\d+)?|nan|inf))+\n", line):
            raise ValueError(f"{path}, line {number}: not a line of llm.c's main.log: {line[:40].strip()}")
        else:
            step, *said = (pair.split(":") for pair in line.split())
            row = rows.setdefault(s := int(step[1]) + ("trl:" in line), {"step": s})
            row |= {NAMES.get(key, key): float(value) for key, value in said}
    if not rows:
        raise ValueError(f"{path} holds no step yet")
    return [rows[step] for step in sorted(rows)]
