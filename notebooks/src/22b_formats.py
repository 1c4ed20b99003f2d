# %% [markdown]
r"""
# 22b · Formats: llm.c and Megatron

*This sitting is optional.* Two other programs can judge our work. *llm.c* (Karpathy 2024) trains GPT-2 in plain C and CUDA; *Megatron-LM* (Shoeybi et al.
2019) trains it on thousands of GPUs. Both keep weights and tokens in binary files of their own, with little documentation except the code that
reads them. If we can write those files to the byte, we can start a run there and finish it here. And we gain something better: a program that others wrote and that computes the same model. Its opinion of our model is worth more than any test that we write ourselves.

A format is an agreement about order. Hugging Face's safetensors needs little of it, since each tensor has its name beside it. The files of llm.c and Megatron have no names at all. So this chapter is about the order of things, and about how a reader notices that it looks at the wrong file.
"""

# %%
#| default_exp corpora.megatron
#| doc corpora.megatron: Megatron's indexed datasets: written, read, made of shards, split by documents and cut into samples.
#| doc plan.llmc: llm.c's files: model, tokenizer and debug state written and read.
import contextlib
import copy
import csv
import json
import tempfile

from course.figures import formats as figures
from course.llmc_judge import WANTED, judge, verdicts, why_no_judge
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt import cli
from nanogpt.corpora.corpus import stories
from nanogpt.gpt.pretrained import from_hf, to_hf

# %%
#| export
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from nanogpt.corpora.chunks import alone_in
from nanogpt.text.files import atomically
from nanogpt.text.shards import open_shards, read_shard

# %%
#| export plan.llmc
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.gpt.model import GPT, GPTConfig, num_params
from nanogpt.text.files import atomically
from nanogpt.text.shards import HEADER_BYTES
from nanogpt.text.tokenizer import EOT, BPETokenizer

# %%
SHAPE = dict(n_layer=4, n_head=4, n_embd=64, block_size=64)  # of this chapter's model
DOCUMENTS, T, WANTED = 10_000, 64, 40  # of its data set; tokens a sample; samples drawn from test
SPLIT, SEED = "949,50,1", 1234  # as in the published run
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
folder = Path(scratch.name)
documents = [story.text for story in stories(DOCUMENTS)]
tokenizer = BPETokenizer.train(documents[:300], 400)
tokenizer.save(folder / "tokenizer.json")
model = GPT(GPTConfig(**SHAPE, vocab_size=tokenizer.vocab_size), torch.Generator().manual_seed(0)).eval()

# %%
predict("22b.1", "bytes of GPT-2 small in llm.c's file, float32", guess=None)
predict("22b.2", "bytes of Megatron's index of 10,000 documents", guess=None)
predict("22b.3", "samples that Megatron sees in a test split of 63, if 80 are asked for", guess=None)

# %% [markdown]
r"""
## llm.c: a header and sixteen tensors

All files of llm.c begin alike, as chapter 03's shards do: 256 int32, of which the first is a *magic number*, the second a version, and a few more are
sizes. A reader looks at the magic number before anything else, so that a wrong file is refused and not computed with.

| file | magic | then |
|---|---|---|
| tokens, `train_000000.bin` | 20240520 | how many; ids in uint16 (chapter 03) |
| model, `gpt2_124M.bin` | 20240326 | block_size, vocab_size, n_layer, n_head, n_embd, padded vocab_size; the weights |
| debug state, `gpt2_124M_debug_state.bin` | 20240327 | B, T; inputs, targets, logits, loss, gradients |
| tokenizer, `gpt2_tokenizer.bin` | 20240328 | how many, `<\|endoftext\|>`; each token's length in one byte, and its bytes |
"""


# %%
#| export plan.llmc
MODEL, STATE, TOKENIZER = 20240326, 20240327, 20240328
VERSIONS = {3: torch.float32, 5: torch.bfloat16}  # of a model; 1 and 2 had no padded vocabulary


def header(*numbers: int) -> bytes:
    """1,024 bytes: little-endian int32, the rest zero."""
    return np.array([*numbers, *[0] * (256 - len(numbers))], "<i4").tobytes()


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


# %%
#| export plan.llmc
def body(path: str | Path, size: int) -> np.ndarray:
    """The bytes after the header, mapped; ValueError if they are not `size`."""
    if (there := Path(path).stat().st_size - HEADER_BYTES) != size:
        what = f"{there:,} bytes after its header, which asks for {size:,}"
        raise ValueError(f"{path} is damaged or of another shape: {what}; copy or write it again")
    return np.memmap(path, np.uint8, "r", HEADER_BYTES)


# %% [markdown]
r"""
The weights follow without names: their order is the agreement. Our model lists them block by block, as it is built. llm.c has sixteen *kinds* of
tensors and keeps each kind of all blocks together, so that one pointer and a multiplication find any of them. Names and shapes in its order
are all that reading and writing need. Linear weights are (out, in) there as in PyTorch: nothing is transposed, unlike in Hugging Face's GPT-2.
"""


# %%
#| export plan.llmc
WTE = "transformer.wte.weight"


def shapes(config: GPTConfig) -> dict[str, tuple[int, ...]]:
    """Each tensor's shape by our name for it, in llm.c's order; wte with the rows that pad it."""
    C, L = config.n_embd, config.n_layer
    parts = {"ln_1": (C,), "attn.c_attn": (3 * C, C), "attn.c_proj": (C, C)}
    parts |= {"ln_2": (C,), "mlp.c_fc": (4 * C, C), "mlp.c_proj": (C, 4 * C)}
    sizes = [
        (f"{part}.{w}", s[: 1 + (w == "weight")]) for part, s in parts.items() for w in ("weight", "bias")
    ]
    first = {WTE: (config.vocab_rows, C), "transformer.wpe.weight": (config.block_size, C)}
    blocks = {f"transformer.h.{i}.{kind}": shape for kind, shape in sizes for i in range(L)}
    return first | blocks | {"transformer.ln_f.weight": (C,), "transformer.ln_f.bias": (C,)}


def padded(config: GPTConfig) -> GPTConfig:
    """The shape as llm.c has it: a vocabulary of a multiple of 128 rows, and biases."""
    return replace(config, padded_vocab_size=math.ceil(config.vocab_size / 128) * 128, bias=True)


# %%
config = padded(model.config)
theirs = shapes(config)
ours = [name for name, _ in model.named_parameters()]
assert sorted(ours) == sorted(theirs), "the two orders are not of the same tensors"
alt = "Two bars of a file's tensors, coloured by block: ours block by block, llm.c's by kind across blocks"
show(figures.orders(theirs, ours), alt=alt)

# %% [markdown]
r"""
GPT-2's 50,257 tokens become 50,304 rows, a multiple of 128, for the reason of chapter 13. The 47 rows more are zeros; llm.c's softmax
stops at 50,257, so they are never predicted and get no gradient. Ours counts padded rows in its loss (chapter 13), so
reading drops them: the loss is then llm.c's. *Answer* to the first prediction, from sizes alone:
"""

# %%
whole = HEADER_BYTES + 4 * (n := num_params(padded(GPTConfig())))
print(f"gpt2_124M.bin has {whole:,} bytes: 1,024 and {n:,} numbers of four")
answer("22b.1", whole)


# %%
#| export plan.llmc
#| blank read_tensors: go through shapes in order; each tensor begins where the last one ended
def write_tensors(file, tensors: dict[str, Tensor], config: GPTConfig, dtype: torch.dtype) -> None:
    """Tensors by name in llm.c's order; zeros for the rows that pad wte, and for biases that a model lacks."""
    for name, shape in shapes(config).items():
        t = tensors.get(name, torch.zeros(0)).detach()
        t = (t[: config.vocab_size] if name == WTE else t).to("cpu", dtype).contiguous()
        file.write(t.view(torch.uint8).numpy().tobytes())
        file.write(bytes((math.prod(shape) - t.numel()) * dtype.itemsize))


def read_tensors(data: np.ndarray, config: GPTConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """What write_tensors wrote, wte without padding. data: uint8."""
    tensors, at = {}, 0
    for name, shape in shapes(config).items():
        size = math.prod(shape) * dtype.itemsize
        tensors[name] = torch.from_numpy(data[at : at + size].copy()).view(dtype).view(shape)
        at += size
    return tensors | {WTE: tensors[WTE][: config.vocab_size].clone()}


# %%
#| export plan.llmc
def to_llmc(model: GPT, path: str | Path, dtype: torch.dtype | None = None) -> None:
    """Write a model for llm.c, atomically, in its own dtype or another: float32 is version 3, bfloat16 version 5.

    llm.c's GPT-2 has biases: a model without gets zeros. Rounding to bfloat16 is to the nearest, ties to even.
    """
    if not isinstance(model, GPT):
        raise ValueError(f"to_llmc writes a GPT; unwrap this {type(model).__name__} first (.module)")
    dtype, c = dtype or model.lm_head.weight.dtype, padded(model.config)
    version = {kind: version for version, kind in VERSIONS.items()}.get(dtype)
    if version is None:
        raise ValueError(f"llm.c reads float32 and bfloat16, not {dtype}; give dtype=torch.float32")
    with atomically(path) as file:
        sizes = c.block_size, c.vocab_size, c.n_layer, c.n_head, c.n_embd, c.vocab_rows
        file.write(header(MODEL, version, *sizes))
        write_tensors(file, dict(model.named_parameters()), c, dtype)


# %%
#| export plan.llmc
def from_llmc(path: str | Path) -> GPT:
    """The GPT of a model file of llm.c, in evaluation mode and the file's dtype. ValueError if it is none, or damaged."""
    _, version, T, V, L, H, C, rows, *_ = read_header(path, MODEL, VERSIONS, "a model")
    try:
        config = GPTConfig(T, V, L, H, C, padded_vocab_size=rows)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    dtype = VERSIONS[version]
    tensors = read_tensors(body(path, num_params(config) * dtype.itemsize), config, dtype)
    if bad := [name for name, t in tensors.items() if not t.isfinite().all()]:
        raise ValueError(f"{path}: {bad[0]} holds NaN or infinity")
    with torch.device("meta"):
        model = GPT(replace(config, padded_vocab_size=None))
    model.load_state_dict(tensors, strict=False, assign=True)
    model.lm_head.weight = model.transformer.wte.weight  # tied
    return model.eval()


# %% [markdown]
r"""
*Check.* The header as a hex dump shows it, the round trip, and the way round by Hugging Face: the same bits.
"""

# %%
to_llmc(model, folder / "model.bin")
raw = (folder / "model.bin").read_bytes()
names = "magic", "version", "block_size", "vocab_size", "n_layer", "n_head", "n_embd", "padded"
for i, name in enumerate(names):
    four = raw[4 * i : 4 * i + 4]
    print(f"{4 * i:04x}  {four.hex(' ')}  {int.from_bytes(four, 'little'):>8}  {name}")
back = from_llmc(folder / "model.bin")
idx = torch.randint(tokenizer.vocab_size, (2, 32), generator=torch.Generator().manual_seed(1))
assert torch.equal(back(idx)[0], model(idx)[0]), "the logits are not those of the model that was written"
to_hf(back, folder / "hf")
to_llmc(from_hf(folder / "hf"), folder / "again.bin")
assert (folder / "again.bin").read_bytes() == raw, "by Hugging Face's file and back, bits have changed"
print(f"{len(raw):,} bytes: equal logits, and equal bytes by way of Hugging Face's file")

# %% [markdown]
r"""
## What llm.c thinks of us

`test_gpt2.c` loads a model and a *debug state*, computes logits, loss and all gradients with its own code, compares them, then makes ten
steps of AdamW and compares the losses. It was written to check llm.c against PyTorch. Turned round, it checks this course's GPT: attention,
GELU, layer norm and the backward pass, by loops in C that share nothing with PyTorch.
"""


# %%
#| export plan.llmc
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
        write_tensors(file, grads, padded(model.config), torch.float32)


def read_state(path: str | Path, config: GPTConfig) -> dict:
    """x and y (B, T), logits (B, T, vocab_size), loss, and grads by name; of a model of this shape, as from_llmc has it."""
    _, _, B, T, *_ = read_header(path, STATE, [2], "a debug state")
    c, n = padded(config), B * T
    data = body(path, 4 * (2 * n + n * c.vocab_size + 1 + num_params(c)))
    x, y, logits, loss, grads = np.split(data, 4 * np.cumsum([n, n, n * c.vocab_size, 1]))
    ids = [torch.from_numpy(t.view("<i4").astype(np.int64)).view(B, T) for t in (x, y)]
    found = dict(x=ids[0], y=ids[1], logits=torch.from_numpy(logits.view("<f4").copy()).view(B, T, -1))
    return found | dict(loss=float(loss.view("<f4")[0]), grads=read_tensors(grads, c, torch.float32))


# %% [markdown]
r"""
The ten losses it expects are written into the program, for the published weights. So they are replaced by ours before it is compiled; all the rest is
as it is. The program calls differences below 0.01 equal, and most gradients of a small model *are* below 0.01. So what counts here is not its OK but the largest
difference that it prints, and the weights are ten times as large as they would be.
"""


# %% tags=["nbval-ignore-output"]
loud = copy.deepcopy(model)
with torch.no_grad():
    for p in loud.parameters():
        p.mul_(10 if p.dim() == 2 else 1)  # or its gradients would be within the tolerance
ids = torch.randint(tokenizer.vocab_size, (4, 33), generator=torch.Generator().manual_seed(2))
x, y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
write_state(loud, x, y, folder / "state.bin")
gradients = read_state(folder / "state.bin", loud.config)["grads"]
if why := why_no_judge():
    print(f"llm.c's program was not asked: {why}")
else:
    to_llmc(loud, folder / WANTED[0], torch.float32)
    write_state(loud, x, y, folder / WANTED[1])
    said = judge(loud, x, y, folder)
    print("\n".join(line for line in said.splitlines() if re.match("OK .L|LOSS|step|overall", line)))
    diffs = verdicts(said)
    assert len(diffs) == 17 and max(diffs.values()) < 1e-4, "llm.c computes another model"
    print(f"logits are {diffs.pop('LOGITS'):.0e} apart, gradients {max(diffs.values()):.0e}, ", end="")
    print(f"and those are up to {max(t.abs().max() for t in gradients.values()):.1f} large")

# %% [markdown]
r"""
`overall okay: 1`, and differences as of float32 sums in another order: that is llm.c's word on this course's model. (To hear it yourself: `git clone
https://github.com/karpathy/llm.c`, set `LLMC_DIR` to the folder, run the cell again. It was asked at commit f1e2ace, in November 2026.)

Would it notice a mistake? Tried on this model: without attention's √d it says `overall okay: 0`, and fifteen of sixteen gradients are not OK. With exact
GELU instead of tanh's it still says 1, but logits are 2·10⁻³ apart instead of 8·10⁻⁶. A tolerance that was made for GPU arithmetic passes another
function; the difference itself does not.

The tokenizer's file only decodes: id → bytes. But BPE needs no more than the order of its tokens (chapter 01), so the whole
tokenizer comes back. And a run's `main.log`, one short line an event, becomes rows as our `metrics.jsonl` has them, so that
`python -m nanogpt plot log124M/main.log runs/mine` draws both. llm.c numbers updates from 0, our `step` counts them: lines of training move by one, and those of validation, which is
before update s and so after s updates, stay.
"""


# %%
#| export plan.llmc
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


# %%
write_tokenizer(tokenizer, folder / "tokenizer.bin")
back = read_tokenizer(folder / "tokenizer.bin")
assert back.fingerprint == tokenizer.fingerprint, "another tokenizer came back"
print(f"{back.vocab_size} tokens, the same ones")

# %% [markdown]
r"""
llm.c writes a log, too: a line for each step, with the step's number from zero, and the names `trl` for the training loss and `tel` for the one on held-out text. `read_log` reads it as the lines of our own `metrics.jsonl`, and `read_metrics` grows by the ending `.log`. So `plot` and `compare` take
runs of both programs.
"""

# %%
from nanogpt.run.metrics import steps_in


# %%
#| export run.metrics
import re
import sys
from pathlib import Path

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


# %%
#| export run.metrics
#| grows read_metrics
def read_metrics(path: str | Path) -> list[dict]:
    """The steps of a run's metrics.jsonl, in order; path is that file or the folder that holds it, or llm.c's main.log.

    A step that was made again after a crash counts as it was made last. A torn last line is left out, and stderr says so.
    """
    path = Path(path)
    if path.suffix == ".log":
        return read_log(path)
    return steps_in(path / "metrics.jsonl" if path.is_dir() else path)


# %%
log = "s:0 tel:11.0092\ns:0 trl:11.0079 lr:0.000003 norm:16.32\ns:1 trl:10.8297 lr:0.000006 norm:15.00\n"
(folder / "main.log").write_text(log)
print(*read_metrics(folder / "main.log"), sep="\n")

# %% [markdown]
r"""
## Megatron: tokens and an index

Megatron's data set is a pair. `.bin` holds ids, and nothing else. `.idx` says what they are:

| bytes | what |
|---|---|
| 9 | `MMIDIDX` and two zeros |
| 8 | version, 1 |
| 1 | code of the ids' type: 8 is uint16, 4 is int32 |
| 8, 8 | number of sequences n, number of document marks m |
| 4 n | tokens of each sequence |
| 8 n | byte of the `.bin` at which each begins |
| 8 m | the sequence with which each document begins, and at last n |

A document may have several sequences (BERT's sentences); for GPT it has one. An *empty* one has none: its mark is that of the next. A vocabulary below
65,500 gets uint16, from there on int32: Megatron's own limit, not 65,536. For 10,000 documents of one sequence that makes 34 + 12 n + 8 (n + 1).

Neither file makes sense alone, or beside the other's older version. So the pair is written in an order in which an `.idx` always belongs to the
`.bin` beside it: ids aside, old index deleted, ids renamed, index written. Who is interrupted leaves the old pair, or a `.bin` without an
index, which reading names.
"""


# %%
#| export
MAGIC, HEAD = b"MMIDIDX\0\0", struct.Struct("<9sQBQQ")  # 34 bytes
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are floats: no tokens


@dataclass(frozen=True)
class IndexedDataset:
    """Token ids in sequences, and sequences in documents, as Megatron has them on disk. ids: a memory map."""

    ids: np.ndarray  # of all sequences, one after the other
    starts: np.ndarray  # where in ids each sequence begins, and the end
    documents: np.ndarray  # the sequence with which each document begins, and the end

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        """Sequence i, a view."""
        i = range(len(self))[i]
        return self.ids[self.starts[i] : self.starts[i + 1]]

    def document(self, i: int) -> np.ndarray:
        """All sequences of document i >= 0, a view."""
        return self.ids[self.starts[self.documents[i]] : self.starts[self.documents[i + 1]]]


# %%
#| export
def pair(prefix: str | os.PathLike) -> tuple[Path, Path]:
    """prefix.bin and prefix.idx."""
    return Path(f"{os.fspath(prefix)}.bin"), Path(f"{os.fspath(prefix)}.idx")


def write_ids(file, docs: Iterable, vocab_size: int, dtype: str) -> tuple[list[int], list[int]]:
    """The ids of all documents; tokens of each sequence, and the sequence with which each document begins."""
    lengths, marks = [], [0]
    for i, doc in enumerate(docs):
        if len(ids := np.asarray(doc)):
            row = ids.ndim == 1 and ids.dtype.kind in "iu" and len(ids) < 2**31
            if not row or ids.min() < 0 or ids.max() >= vocab_size:
                raise ValueError(f"document {i} is no row of fewer than 2³¹ ids from 0 to {vocab_size - 1}")
            file.write(ids.astype(dtype).tobytes())
            lengths.append(len(ids))
        marks.append(len(lengths))
    if not lengths:
        raise ValueError("no document has a token, and Megatron cannot read such a data set")
    return lengths, marks


# %%
#| export
def write_indexed_dataset(prefix: str | os.PathLike, docs: Iterable, vocab_size: int = 50257) -> int:
    """Write prefix.bin and prefix.idx, a document for each row of ids in `docs`; how many tokens that were.

    ValueError for ids that are not 0..vocab_size-1, and where there is no token at all.
    """
    ids_path, index_path = pair(prefix)
    code = 8 if vocab_size < 65500 else 4  # Megatron-LM, DType.optimal_dtype
    with atomically(ids_path) as file:
        lengths, marks = write_ids(file, docs, vocab_size, TYPES[code])
        index_path.unlink(missing_ok=True)  # before the .bin gets its name: no index stands beside other ids
    n = np.array(lengths, "<i4")
    places = (np.cumsum(n, dtype="<i8") - n) * np.dtype(TYPES[code]).itemsize
    with atomically(index_path) as file:
        file.write(HEAD.pack(MAGIC, 1, code, len(n), len(marks)))
        file.write(n.tobytes() + places.tobytes() + np.array(marks, "<i8").tobytes())
    return int(n.sum(dtype=np.int64))


# %%
#| export
def read_index(path: Path) -> tuple[np.dtype, np.ndarray, np.ndarray]:
    """The type of the ids, where each sequence begins, and with which each document; ValueError if they disagree."""
    raw = path.read_bytes()
    magic, version, code, n, m = HEAD.unpack(raw[:34].ljust(34, b"\0"))
    if magic != MAGIC or version != 1 or code not in TYPES:
        raise ValueError(f"{path} is no index of token ids, version 1, as Megatron-LM writes it")
    if len(raw) != (asked := 34 + 12 * n + 8 * m):
        what = f"{len(raw):,} bytes, where its head asks for {asked:,}"
        raise ValueError(f"{path} is damaged or multimodal: {what}; write both files again")
    lengths, dtype = np.frombuffer(raw, "<i4", n, 34), np.dtype(TYPES[code])
    places, marks = np.split(np.frombuffer(raw, "<i8", n + m, 34 + 4 * n), [n])
    starts = np.append(0, np.cumsum(lengths, dtype=np.int64))
    right = starts[-1] > 0 <= lengths.min() and np.array_equal(places, starts[:-1] * dtype.itemsize)
    if not right or m < 2 or marks[0] != 0 or marks[-1] != n or np.diff(marks).min() < 0:
        raise ValueError(f"{path} is damaged: lengths, places and marks disagree; write both files again")
    return dtype, starts, marks


# %%
#| export
def read_indexed_dataset(prefix: str | os.PathLike) -> IndexedDataset:
    """What such a pair holds. OSError or ValueError, in one sentence, if a file is missing, foreign or damaged."""
    ids, index = pair(prefix)
    for path, other in (index, ids), (ids, index):
        if not path.exists():
            alone = f", and {other.name} alone says nothing: was writing it interrupted? write both again"
            raise FileNotFoundError(f"{path} is not there{alone if other.exists() else ''}")
    dtype, starts, marks = read_index(index)
    if (there := ids.stat().st_size) != (asked := starts[-1] * dtype.itemsize):
        what = f"{there:,} bytes, where its index asks for {asked:,}"
        raise ValueError(f"{ids} has {what}: they are no pair; write both again")
    return IndexedDataset(np.memmap(ids, dtype, "r"), starts, marks)


# %%
few = [[7, 8, 9], [], [1], [65_000]]
for vocab_size in 65_499, 65_500:
    tokens = write_indexed_dataset(folder / "few", few, vocab_size)
    dataset = read_indexed_dataset(folder / "few")
    assert [list(dataset.document(i)) for i in range(len(few))] == few, "other documents came back"
    print(f"vocab_size {vocab_size:,}: {tokens} tokens in {dataset.ids.dtype}; marks {dataset.documents}")
(folder / "few.idx").unlink()
try:
    read_indexed_dataset(folder / "few")
except FileNotFoundError as error:
    print(str(error).removeprefix(f"{folder}{os.sep}"))

# %% [markdown]
r"""
## Appendix: `prepare --format megatron`

Chapter 16b's command turns text of any size into shards, in parallel and resumable; a pair is made of these by copying. One thing changes:
our `<|endoftext|>` stands *before* each document, since it is what a model sees first; Megatron's `--append-eod` puts it
*after*. Rolling each document by one place makes one of the other. Since the text of a document never holds that id (chapter 16), shards can be cut into
documents without any index, also where one goes over from shard to shard.
"""


# %%
#| export
def documents_in(shards: list[Path], eot: int) -> Iterator[np.ndarray]:
    """The documents of shards in order, each with `<|endoftext|>` after it instead of before."""
    held = []  # parts of one document; it may go on in the next shard

    def whole() -> np.ndarray:
        ids = np.concatenate(held)
        return np.roll(ids, -1) if ids[0] == eot else np.append(ids, ids.dtype.type(eot))

    for tokens in map(read_shard, shards):
        rest, *others = np.split(tokens, np.flatnonzero(tokens == eot))
        held += [rest] * bool(len(rest))
        for part in others:
            if held:
                yield whole()
            held = [part]
    if held:
        yield whole()


# %%
#| export
def shards_to_megatron(folder: str | os.PathLike, manifest: dict) -> dict[str, int]:
    """Write a pair beside the shards for each split that has tokens; prefix -> tokens."""
    made, folder = {}, Path(folder)
    with alone_in(folder):
        for split in (split for split, said in manifest["splits"].items() if said["tokens"]):
            docs = documents_in(open_shards(folder, split), manifest["eot"])
            prefix = f"{folder / split}_text_document"  # as preprocess_data names it
            made[prefix] = write_indexed_dataset(prefix, docs, manifest["vocab_size"])
    return made


# %% [markdown]
r"""
The command has a table of formats with one row. It grows by another:
"""


# %%
#| export corpora.prepare
#| grows FORMATS
def as_megatron(folder: Path, manifest: dict) -> None:
    """Write Megatron's files beside the shards, and say which."""
    for prefix, tokens in shards_to_megatron(folder, manifest).items():
        print(f"{prefix}.bin and .idx: {tokens:,} tokens")


FORMATS = {"shards": None, "megatron": as_megatron}  # what is made of the shards besides


# %%
from nanogpt.corpora import prepare

prepare.FORMATS = FORMATS  # in this kernel, until the checkpoint below writes it
source = folder / "stories.jsonl"
source.write_text("".join(json.dumps({"text": t}) + "\n" for t in documents), encoding="utf-8", newline="\n")
with contextlib.chdir(folder):
    how = "--tokenizer tokenizer.json --out meg --workers 1 --val 0 --test 0 --format megatron"
    code = cli.run_command("prepare", ["stories.jsonl", *how.split()])
assert code == 0, "the command failed; the line above says why"
dataset = read_indexed_dataset(folder / "meg/train_text_document")
size = (folder / "meg/train_text_document.idx").stat().st_size
assert tokenizer.decode(dataset[DOCUMENTS - 1][:-1].tolist()) == documents[-1], "the last document is another"
print(f"{len(dataset):,} documents, {len(dataset.ids):,} tokens; index {size:,} bytes, {size / 1024:.2f} KiB")
answer("22b.2", 34 + 12 * 10_000 + 8 * 10_001)

# %% [markdown]
r"""
A published run of 10,000 documents lists its index with `ls -h` as 196K: the same 200,042 bytes, rounded up. It was made by Megatron's `tools/preprocess_data.py`; for each option that it was given, `data/reference/megatron_preprocess_options.csv` has what says the same here.

An empty document gets no `<|endoftext|>` there, only a mark; ours leaves it out. And all documents go into *one* pair, which training splits later:
`--val 0 --test 0` here. With our defaults there are three pairs, split by hash (chapter 03), for `--train-data-path` and its sisters.
"""

# %% [markdown]
r"""
## 949, 50, 1

Megatron's `--split` cuts the documents by their order in the file: the first 94.9% are train. A file sorted by source, or by length,
gives a validation set of one kind. And when it grows, the borders move: what was validation text yesterday is trained on today.
"""


# %%
#| export
#| blank split_ranges: round the running sums of the shares, times n
#| blank epochs_and_samples: a sample needs T tokens, and the last one needs one token more
def split_ranges(n: int, split: str = "949,50,1") -> list[range]:
    """Which of n sequences are train, validation and test, by their order (Megatron-LM, --split)."""
    weights = [float(weight) for weight in split.split(",")]
    if len(weights) != 3 or min(weights) < 0 or not sum(weights) > 0:
        raise ValueError(f"split {split!r}: three weights of at least 0, as in 949,50,1")
    shares = np.array(weights) / sum(weights)
    edges = [round(float(edge) * n) for edge in np.cumsum([0, *shares])]
    return [range(a, b) for a, b in pairwise(edges)]


def epochs_and_samples(tokens: int, T: int, wanted: int) -> tuple[int, int]:
    """How often a split is read so that `wanted` samples of T targets come out, and how many samples that are in all."""
    if tokens < 1:
        raise ValueError("a split without tokens has no samples; give it a larger weight")
    epochs = max(
        1, -(-(wanted * T + 1) // tokens)
    )  # one token more: a sample is T inputs and the target of the last
    return epochs, (epochs * tokens - 1) // T


# %% [markdown]
r"""
The split is one row of tokens; sample i begins at token i·T and shares its last token with the next, so one pass gives (tokens − 1) // T. If more
are asked for, the documents are appended again, in another order, as often as it takes. No warning says so: the log has one line, `total number of
epochs: 2`. The published run (T = 512) asked for 80 test samples, five batches of 16, of ten documents.

Its log names samples and epochs, not tokens. But these two numbers bound the tokens, and our three lines must give the log's
numbers at both ends of them.
"""

# %%
with open("../data/reference/megatron_split.csv", encoding="utf-8") as file:
    log = {row["item"]: row["value"] for row in csv.DictReader(file)}
n, published = int(log["seq_length"]), split_ranges(int(log["documents in the index"]), log["split"])
for docs, (name, long) in zip(published, dict(train="train", valid="validation", test="test").items()):
    wanted, samples = int(log[f"target samples, {long}"]), int(log[f"samples in one pass, {name}"])
    epochs = int(log[f"epochs, {name}"])
    low, high = -(-(samples * n + 1) // epochs), (samples + 1) * n // epochs  # tokens, by these two
    for tokens in low, high:
        assert epochs_and_samples(tokens, n, wanted) == (epochs, samples), "not the numbers of the log"
    print(f"{name:5} {len(docs):5,} documents: {low:,} to {high:,} tokens, {(low - 1) // n:,} samples a pass")
    print(f"      {wanted:,} wanted: epochs {epochs}, samples {samples:,}, as in the log")
answer("22b.3", samples)

# %% [markdown]
r"""
So ten documents have 63 samples, 80 were wanted, and the log says 127. The test loss of such a run is a mean in which seventeen samples of eighty are of
documents that had been read before: no wrong number, but one of less text than it seems. Look at `epochs` in a log before you look at a loss.

What training then reads is given by three arrays, which Megatron caches as `.npy` beside the data: the *document index* (documents in the order in which
they are laid out), the *sample index* (document and offset at which each sample begins) and the *shuffle index* (the order in which samples are drawn). If
the last epoch would be used by less than 80%, it is laid out and shuffled apart, so that no text comes a second time before all has come once.
"""


# %%
#| export
def sample_indices(dataset: IndexedDataset, docs: range, T: int, wanted: int, seed: int = 1234) -> tuple:
    """Megatron-LM's document index (n), sample index (samples + 1, 2) and shuffle index (samples) of a split."""
    lengths, dice = np.diff(dataset.starts), np.random.RandomState(seed)
    tokens = int(lengths[docs.start : docs.stop].sum())
    epochs, samples = epochs_and_samples(tokens, T, wanted)
    before = ((epochs - 1) * tokens - 1) // T  # samples of all epochs but the last
    apart = epochs > 1 and wanted - before < int(0.8 * ((tokens - 1) // T))

    def shuffled(parts: list[np.ndarray]) -> np.ndarray:
        for part in parts:
            dice.shuffle(part)
        return np.concatenate(parts)

    once = np.array(docs, np.int32)
    laid = shuffled([np.tile(once, n) for n in ([epochs - 1, 1] if apart else [epochs])])
    starts, places = np.append(0, np.cumsum(lengths[laid])), np.arange(samples + 1) * T
    row = np.searchsorted(starts, places, "right") - 1  # the document that holds a sample's first token
    cuts = [0, before, samples] if apart else [0, samples]
    drawn = shuffled([np.arange(a, b, dtype=np.uint32) for a, b in pairwise(cuts)])
    return laid, np.stack([row, places - starts[row]], axis=1), drawn


# %%
#| export
#| blank read_sample: join the sequences from the sample's begin to the next one's, then cut T + 1 ids
def read_sample(dataset: IndexedDataset, indices: tuple, T: int, k: int) -> np.ndarray:
    """The T + 1 ids of the k-th sample that training draws."""
    laid, begins, drawn = indices
    (first, offset), (last, _) = begins[drawn[k]], begins[drawn[k] + 1]
    return np.concatenate([dataset[d] for d in laid[first : last + 1]])[offset : offset + T + 1]


# %%
*_, test = split_ranges(len(dataset), SPLIT)
assert len(test), "no document is left for test: more DOCUMENTS, or another SPLIT"
laid, begins, drawn = indices = sample_indices(dataset, test, T, WANTED, SEED)
tokens = sum(len(dataset[d]) for d in test)
epochs, samples = epochs_and_samples(tokens, T, WANTED)
print(f"test: {len(test)} documents, {tokens:,} tokens, {(tokens - 1) // T} samples a pass")
print(f"{WANTED} wanted: epochs {epochs}, samples {samples}")
stream = np.concatenate([dataset[d] for d in laid])
for k, i in enumerate(drawn[:WANTED]):
    same = np.array_equal(read_sample(dataset, indices, T, k), stream[i * T : i * T + T + 1])
    assert same, f"draw {k} is not sample {i}"
alt = "The test split's documents laid out once per epoch, and below them the samples, those that are drawn filled"
show(figures.epochs([len(dataset[d]) for d in laid], laid, drawn[:WANTED], T, samples, tokens), alt=alt)

# %% [markdown]
r"""
Each document has its colour; below are the samples, filled where they are among the first that are drawn. What is filled to the right of the line is text
that has been drawn before. The three arrays are Megatron's to the last number, which `tests/corpora/test_ch22b_interop.py` checks with `megatron-core` itself.
"""

# %%
predictions("22b")

# %%
checkpoint("22b")

# %% [markdown]
r"""
## Exercises

1. **Who is wrong?** Let the state be of a model in which one LayerNorm's gain is 1% larger than in the model's file, and ask llm.c, with weights as they are
   and ten times as large. *Check:* it says `overall okay: 1` once and 0 once; the largest difference tells both from the right model.
2. **An older vocabulary.** A run's file says padded_vocab_size = 50257: it was not padded. *Check:* `from_llmc` reads one (change the header and cut the rows), and
   writing it again gives 50,304.
3. **Another order.** Shuffle the lines of `stories.jsonl`, prepare it again and split it by 949,50,1. *Check:* count the documents that change sides. How many by chapter 03's hash?
4. **Fair enough.** Find the smallest w in `950 − w, 50, w` for which the published run reads its test split once, if all documents have the mean length of
   its training documents. *Check* with `split_ranges` and `epochs_and_samples`: fourteen documents.
5. **A kill between the two.** Let `write_indexed_dataset` end after the `.bin` got its name. *Check:* what does reading say, and what if the old index had not been deleted?

## Further reading

- Karpathy 2024, *llm.c*, `train_gpt2.py` (`write_model`, `write_state`) and `train_gpt2.c`: the formats, and the 1,182 lines of C that read them.
- Shoeybi et al. 2019, *Megatron-LM*, and `megatron/core/datasets/readme.md` in its repository: the three indices, with an example of each.
- Zhang et al. 2022, *OPT*, §2.3: which sources a training set is made of, and how they are deduplicated.
"""
