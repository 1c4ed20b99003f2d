# %% [markdown]
r"""
# 22b ◇ · Formats: llm.c and Megatron

*This sitting is optional.* Two other programs can judge our work. *llm.c* (Karpathy 2024) trains GPT-2 in plain C and CUDA. *Megatron-LM* (Shoeybi et al. 2019) trains it on thousands of GPUs. Both keep weights and tokens in binary files of their own, with little documentation except the code that
reads them. (Megatron-LM is a repository of training scripts. The layers, the parallelism and the data sets are a library in it, *Megatron Core*, which pip knows as `megatron-core`.) If we can write those files to the byte, we can start a run there and finish it here. And we gain something better: a program that others wrote and that computes the same model. Its opinion of our model is worth more than any test that we write ourselves. In the first half of this sitting we write our model and its gradients into such files, and then ask llm.c's own test program about them, and about two wrong models. It will find one of the two.

A format is an agreement about order. Hugging Face's safetensors (chapter 06) need little of it, since each tensor has its name beside it. The files of llm.c and Megatron have no names at all. So this chapter is about the order of things, and about how a reader notices that it looks at the wrong file.
"""

# %%
#| default_exp labs.formats.megatron
#| doc labs.formats.megatron: Megatron's indexed datasets: written, read, made of shards, split by documents and cut into samples.
#| doc labs.formats.llmc: llm.c's files: model, tokenizer and debug state written and read.
import copy
import csv
import io
import tempfile

from course.figures import formats as figures
from course.figures.llmc_judge import WANTED, judge, verdicts, why_no_judge
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.pretrained import from_hf
from nanogpt.labs.formats.hf import to_hf
from nanogpt.labs.corpora.stories import stories

# %%
#| export labs.formats.llmc
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nanogpt.files import atomically
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.shards import HEADER_BYTES
from nanogpt.tokenizer import EOT, BPETokenizer

# %% [markdown]
r"""
We need something to write into the files: a small GPT with random weights, a tokenizer, and ten thousand stories. You can change the sizes here, and everything below follows.
"""

# %%
DOCUMENTS, SHAPE = 10_000, dict(block_size=64, vocab_size=400, n_layer=4, n_head=4, n_embd=64)
scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
folder = Path(scratch.name)
documents = [story.text for story in stories(DOCUMENTS)]
tokenizer = BPETokenizer.train(documents[:300], SHAPE["vocab_size"])
tokenizer.save(folder / "tokenizer.json")
model = GPT(GPTConfig(**SHAPE), torch.Generator().manual_seed(0)).eval()
print(f"{len(documents):,} stories, {tokenizer.vocab_size} tokens, {num_params(model.config):,} parameters")

# %% [markdown]
r"""
## llm.c: a header

All files of llm.c begin in the same way, as chapter 03's shards do: with 256 integers of four bytes, the *header*. The first one is a *magic number* that says what kind of file it is. The second is a version, and the next few are sizes. The rest are zero. A reader looks at the magic number before anything else, so that it refuses a wrong file instead
of computing with it.

| file | magic | after the magic number and the version |
|---|---|---|
| tokens, `train_000000.bin` | 20240520 | how many; then ids in uint16 (chapter 03) |
| model, `gpt2_124M.bin` | 20240326 | block_size, vocab_size, n_layer, n_head, n_embd, padded vocab_size; then the weights |
| debug state, `gpt2_124M_debug_state.bin` | 20240327 | B, T; then inputs, targets, logits, loss, gradients |
| tokenizer, `gpt2_tokenizer.bin` | 20240328 | how many, the id of `<\|endoftext\|>`; then each token's length in one byte, and its bytes |

The last size of a model is its *padded* vocabulary. llm.c rounds the number of rows of the token table up to a multiple of 128, for the reason of chapter 13: GPT-2's 50,257 rows become 50,304.
"""


# %%
#| export labs.formats.llmc
MODEL, STATE, TOKENIZER = 20240326, 20240327, 20240328
VERSIONS = {3: torch.float32, 5: torch.bfloat16}  # of a model; 1 and 2 had no padded vocabulary


def header(*numbers: int) -> bytes:
    """1,024 bytes: little-endian int32, the rest zero."""
    return np.array([*numbers, *[0] * (256 - len(numbers))], "<i4").tobytes()


def padded_shape(config: GPTConfig) -> GPTConfig:
    """The shape as llm.c has it: a vocabulary of a multiple of 128 rows, and biases."""
    return replace(config, padded_vocab_size=math.ceil(config.vocab_size / 128) * 128, bias=True)


# %% [markdown]
r"""
Here is the header of our model as a hex dump would show it: the place in the file, the four bytes, and the number that they make.
"""

# %%
config = padded_shape(model.config)
fields = {"magic": MODEL, "version": 3, **SHAPE, "padded": config.vocab_rows}
for i, name in enumerate(fields):
    four = header(*fields.values())[4 * i : 4 * i + 4]
    print(f"{4 * i:04x}  {four.hex(' ')}  {int.from_bytes(four, 'little'):>8}  {name}")

# %% [markdown]
r"""
The bytes of a number come in reverse order, the smallest part first ("little-endian"), as in the memory of nearly every processor of today. Our 400 tokens become 512 rows.

*Predict.* A model's file is this header and one number for each parameter. How many bytes does the file of GPT-2 small have in float32?
"""

# %%
predict("22b.1", "bytes of GPT-2 small in llm.c's file, float32", guess=None)

# %%
P = num_params(padded_shape(GPTConfig()))
nbytes = HEADER_BYTES + 4 * P
print(f"gpt2_124M.bin has {nbytes:,} bytes: {HEADER_BYTES:,}, and {P:,} numbers of four bytes")
answer("22b.1", nbytes)

# %% [markdown]
r"""
These are 36,096 numbers more than GPT-2's 124,439,808 parameters: 47 rows of padding with 768 zeros each.

## The order of the weights

The weights follow the header without names, so the order is the agreement. Our model lists its tensors block by block, as it is built. llm.c has sixteen *kinds* of tensors and keeps each kind of all blocks together. Then one pointer and one multiplication find the tensor of any block.

The function below lists the names and shapes in llm.c's order. This is all that reading and writing need. llm.c keeps the weights of linear layers as (out, in), as PyTorch does, so nothing is transposed (unlike in Hugging Face's GPT-2).
"""


# %%
#| export labs.formats.llmc
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


# %% [markdown]
r"""
We print the beginning of both orders. Then we draw all tensors to scale, with one colour for each block.
"""

# %%
theirs = shapes(config)
ours = [name for name, _ in model.named_parameters()]
for our_name, name in zip(ours[:8], theirs):
    print(f"{our_name:36} {name:36} {theirs[name]}")
alt = "Two bars of a file's tensors, coloured by block: ours block by block, llm.c's by kind across blocks"
show(figures.orders(theirs, ours), alt=alt)

# %% [markdown]
r"""
Our order (the first column, the upper bar) has one stretch of each colour. In llm.c's order each colour comes back with every kind. A reader with the wrong one of the two orders would get a model of the right size, without any error, whose numbers are in wrong places.

Now we can write the tensors: in this order, one after the other, without anything between them.
"""


# %%
#| export labs.formats.llmc
def write_tensors(file, tensors: dict[str, Tensor], config: GPTConfig, dtype: torch.dtype) -> None:
    """Tensors by name in llm.c's order; zeros for the rows that pad wte, and for biases that a model lacks."""
    for name, shape in shapes(config).items():
        t = tensors.get(name, torch.zeros(0)).detach().to("cpu", dtype)
        if name == WTE:
            t = t[: config.vocab_size]  # without padding of our own
        file.write(t.contiguous().view(torch.uint8).numpy().tobytes())
        file.write(bytes((math.prod(shape) - t.numel()) * dtype.itemsize))


# %%
file = io.BytesIO()  # a file in memory
write_tensors(file, dict(model.named_parameters()), config, torch.float32)
print(f"{file.tell():,} bytes, {file.tell() / num_params(config):.0f} for each parameter")

# %% [markdown]
r"""
Reading goes through the same list. Each tensor begins where the last one ended. The rows that pad the vocabulary are dropped: llm.c's softmax stops at the last real token, so the padding is never predicted and gets no gradient. Our own model would count such rows in its loss (chapter 13).
"""


# %%
#| export labs.formats.llmc
#| blank read_tensors: go through shapes in order; each tensor begins where the last one ended
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


# %%
found = read_tensors(np.frombuffer(file.getvalue(), np.uint8), config, torch.float32)
for name, p in model.named_parameters():
    assert torch.equal(found[name], p), f"{name} came back with other numbers"
print(f"all {len(found)} tensors came back, {WTE} with {len(found[WTE])} rows")

# %% [markdown]
r"""
And if writer and reader do not agree? We write the same weights block by block, in our order, and read them in llm.c's:
"""

# %%
file = io.BytesIO()
for name, p in model.named_parameters():
    file.write(p.detach().numpy().tobytes())
    if name == WTE:
        file.write(bytes(4 * (config.vocab_rows - config.vocab_size) * config.n_embd))
misread = read_tensors(np.frombuffer(file.getvalue(), np.uint8), config, torch.float32)
right = [name for name, p in model.named_parameters() if torch.equal(misread[name], p)]
print(f"{file.tell():,} bytes, as expected; of {len(misread)} tensors {len(right)} are right")

# %% [markdown]
r"""
Nothing has complained. The size is right, every tensor has its shape, and 45 of 52 have the numbers of others. (Five of the seven are at the ends of the file, where both orders agree. Two are biases of zeros that have met other zeros.) No size and no magic number can find this. A judge can who computes with what was read, and we come to one.

## Refusing a wrong file

A file can be torn, of another kind or of another version. Then its reader must say so in one sentence. `read_header` compares the magic number and the version, and `body` the number of bytes:
"""


# %%
#| export labs.formats.llmc
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


# %%
(folder / "torn.bin").write_bytes(header(MODEL, 3, *SHAPE.values(), config.vocab_rows))
for what, magic in ("a tokenizer", TOKENIZER), ("a model", MODEL):
    try:
        read_header(folder / "torn.bin", magic, VERSIONS, what)
        body(folder / "torn.bin", 4 * num_params(config))
    except ValueError as error:
        print("torn.bin" + str(error).partition("torn.bin")[2])


# %% [markdown]
r"""
The first message is what the magic number is for. Four bytes are enough to know that this is a model and no tokenizer.

## A model's file

A model's file is the header and the tensors. `version_of` finds the number of the version, and refuses a type that llm.c has none for. `to_llmc` writes the file with chapter 03's `atomically`, so that no half of a file is ever found under its name. A model in float32 becomes version 3, a model in bfloat16 version 5.
"""


# %%
#| export labs.formats.llmc
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


# %%
#| export labs.formats.llmc
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


# %%
for dtype in (torch.float32, torch.bfloat16):
    to_llmc(model, folder / "model.bin", dtype)
    print(f"{dtype}: {(folder / 'model.bin').stat().st_size:,} bytes")

# %% [markdown]
r"""
## The model comes back

`from_llmc` goes the same way back. `read_config` makes a configuration from the header, `body` gives the bytes behind it, and `check_finite` refuses a tensor with NaN or infinity. The model is made without memory (`meta`, chapter 06) and gets the tensors of the file.
"""


# %%
#| export labs.formats.llmc
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


# %%
#| export labs.formats.llmc
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


# %% [markdown]
r"""
*Check.* The model that comes back must compute the same logits, to the bit. And if it goes through Hugging Face's format and back, the file must have the same bytes.
"""

# %%
to_llmc(model, folder / "model.bin")
back = from_llmc(folder / "model.bin")
idx = torch.randint(tokenizer.vocab_size, (4, 33), generator=torch.Generator().manual_seed(2))
assert torch.equal(back(idx)[0], model(idx)[0]), "the logits are not those of the model that was written"
to_hf(back, folder / "hf")
to_llmc(from_hf(folder / "hf"), folder / "again.bin")
first, again = ((folder / f"{name}.bin").read_bytes() for name in ("model", "again"))
assert first == again, "by Hugging Face's file and back, bits have changed"
print("equal logits, and equal bytes by way of Hugging Face's file")

# %% [markdown]
r"""
## What llm.c says about our model

We have only compared our writer with our own reader, and both could be wrong in the same way. llm.c has a better test, `test_gpt2.c`. This program loads a model and a *debug state*: a batch, with the logits, the loss and all gradients that PyTorch computed for it. It computes the same with its own code, compares, then makes ten
steps of AdamW and compares the losses. It was written to check llm.c against PyTorch. We use it the other way round, to check this course's GPT: attention, GELU, layer norm and the backward pass, by loops in C that share nothing with PyTorch.

For that we have to write a debug state, and to read one:
"""


# %%
#| export labs.formats.llmc
import torch.nn.functional as F


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


# %%
#| export labs.formats.llmc
def read_state(path: str | Path, config: GPTConfig) -> dict:
    """x and y (B, T), logits (B, T, vocab_size), loss, and grads by name; of a model of this shape, as from_llmc has it."""
    _, _, B, T, *_ = read_header(path, STATE, [2], "a debug state")
    c, n = padded_shape(config), B * T
    data = body(path, 4 * (2 * n + n * c.vocab_size + 1 + num_params(c)))
    x, y, logits, loss, grads = np.split(data, 4 * np.cumsum([n, n, n * c.vocab_size, 1]))
    ids = [torch.from_numpy(t.view("<i4").astype(np.int64)).view(B, T) for t in (x, y)]
    found = dict(x=ids[0], y=ids[1], logits=torch.from_numpy(logits.view("<f4").copy()).view(B, T, -1))
    return found | dict(loss=float(loss.view("<f4")[0]), grads=read_tensors(grads, c, torch.float32))


# %% [markdown]
r"""
One property of the program matters: it calls two gradients equal if they differ by at most 0.02. Many gradients of a small model *are* below 0.02. We count how many of them are, and then do the same with weights that are ten times as large.
"""

# %%
loud = copy.deepcopy(model)
with torch.no_grad():
    for p in loud.parameters():
        p.mul_(10 if p.dim() == 2 else 1)  # or its gradients would be within the tolerance
x, y = idx[:, :-1].contiguous(), idx[:, 1:].contiguous()
for name, each in {"as it is": model, "ten times": loud}.items():
    write_state(each, x, y, folder / "state.bin")
    largest = [g.abs().max() for g in read_state(folder / "state.bin", each.config)["grads"].values()]
    print(f"{name}: {sum(g < 0.02 for g in largest)} of {len(largest)} gradients are nowhere above 0.02")

# %% [markdown]
r"""
In the model as it is, 34 of 52 gradients could be anything and would pass; in the louder one 18. So we ask about the loud model. Would the judge notice a mistake at all? We also make two wrong models of the same weights. One forgets the √d of attention. The other computes the exact GELU, where GPT-2 has tanh's approximation.
"""

# %% tags=["nbval-ignore-output"]
from functools import partial

from nanogpt.model import split_heads


def without_root(attention, x: Tensor, cache=None) -> Tensor:
    q, k, v = split_heads(attention.c_attn(x), attention.n_head)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)  # and not 1 / √d
    return attention.c_proj(y.transpose(1, 2).flatten(2))


def exact_gelu(mlp, x: Tensor) -> Tensor:
    return mlp.c_proj(F.gelu(mlp.c_fc(x)))


no_root, other_gelu = copy.deepcopy(loud), copy.deepcopy(loud)
for block in no_root.transformer.h:
    block.attn.forward = partial(without_root, block.attn)
for block in other_gelu.transformer.h:
    block.mlp.forward = partial(exact_gelu, block.mlp)
tried = {"as it is": loud, "attention without √d": no_root, "exact GELU": other_gelu}
for name, each in tried.items():
    print(f"{name:20} logits at most {(each(x)[0] - loud(x)[0]).abs().max():.0e} from ours")

# %% [markdown]
r"""
*Predict.* Which of the two will llm.c find?

The ten losses that the program expects are written into its source, for the published weights. `judge` replaces them by those of the model that is asked about, and compiles the program; everything else stays as it is. The judge gets each model's debug state. It computes logits and sixteen gradients with its own code, and prints how far apart they are.
"""

# %% tags=["nbval-ignore-output"]
if why := why_no_judge():
    print(f"llm.c's program was not asked: {why}")
    tried = {}
for name, each in tried.items():
    to_llmc(each, folder / WANTED[0], torch.float32)
    write_state(each, x, y, folder / WANTED[1])
    said = judge(each, x, y, folder)
    verdict = [line for line in said.splitlines() if line.startswith("overall")]
    passed = verdicts(said)  # the largest difference of each tensor that is OK
    logits = f"{passed.pop('LOGITS'):.0e} apart" if "LOGITS" in passed else "not OK"
    print(
        f"{name:20} {verdict}: logits {logits}, {len(passed)} of 16 gradients OK, at most {max(passed.values()):.0e} apart"
    )
    assert each is not loud or max(passed.values()) < 1e-4, "llm.c computes another model"

# %% [markdown]
r"""
Here a clone of llm.c was asked, at commit f1e2ace. (Without one the cell only says so. To ask it yourself: `git clone https://github.com/karpathy/llm.c`, set `LLMC_DIR` to the folder, and run the cell again.)

The first line is the verdict that we wanted. Loops in C that share nothing with PyTorch compute the same model, with logits 8·10⁻⁶ apart and gradients 2·10⁻⁷: that is the order in which float32 adds. The forgotten √d is found, in the logits and in fifteen of sixteen gradients.

The third line is a warning. For logits and losses the program allows 0.01, and so it lets another function pass: `overall okay: 1`. The number behind it shows the mistake, since its logits are 250 times as far apart as ours. Read the difference, and not the OK.
"""

# %% [markdown]
r"""
## Megatron: tokens and an index

Megatron keeps a data set in a pair of files. The `.bin` holds token ids and nothing else. The `.idx` says where each text begins. Let us first make both by hand, for four documents, of which the second is empty.
"""

# %%
few = [[7, 8, 9], [], [1], [65_000]]
all_ids, lengths, marks = [], [], [0]
for document in few:
    if document:  # an empty document has no sequence
        all_ids += document
        lengths.append(len(document))
    marks.append(len(lengths))
print(f"ids in the .bin {all_ids}\nlengths {lengths}, marks {marks}")

# %% [markdown]
r"""
The lengths belong to *sequences*, and the marks to *documents*: mark i is the sequence with which document i begins. A document may have several sequences (BERT's sentences); for GPT it has one. The empty document has none, so its mark is the same as that of the next one: 1 and 1.

The `.idx` has a header of 34 bytes and then these lists:

| bytes | content |
|---|---|
| 9 | `MMIDIDX` and two zeros: the magic number |
| 8 | version, 1 |
| 1 | code of the ids' type: 8 is uint16, 4 is int32 |
| 8, 8 | number of sequences n, number of document marks m |
| 4 n | tokens of each sequence |
| 8 n | byte of the `.bin` at which each begins |
| 8 m | the marks; the last one is n |

*Predict.* How many bytes has the index of 10,000 documents, with one sequence each?
"""

# %%
predict("22b.2", "bytes of Megatron's index of 10,000 documents", guess=None)

# %%
n = 10_000
print(f"34 + 4 n + 8 n + 8 (n + 1) = {34 + 12 * n + 8 * (n + 1):,} bytes, {(34 + 20 * n + 8) / 1024:.2f} KiB")
answer("22b.2", 34 + 12 * n + 8 * (n + 1))

# %% [markdown]
r"""
A published run of 10,000 documents lists its index with `ls -h` as 196K: the same 200,042 bytes, rounded up.

Now the loop from above as a function. It writes the ids to a file and returns the two lists.
"""


# %%
#| export
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanogpt.files import atomically


def write_ids(file, docs: Iterable, vocab_size: int, dtype: str) -> tuple[list[int], list[int]]:
    """Write the ids of all documents; tokens of each sequence, and the sequence with which each document begins."""
    lengths, marks = [], [0]
    for i, doc in enumerate(docs):
        if len(ids := np.asarray(doc)):
            row = ids.ndim == 1 and ids.dtype.kind in "iu" and len(ids) < 2**31
            if not row or ids.min() < 0 or ids.max() >= vocab_size:
                raise ValueError(f"document {i} is no row of fewer than 2³¹ ids from 0 to {vocab_size - 1}")
            file.write(ids.astype(dtype).tobytes())
            lengths.append(len(ids))
        marks.append(len(lengths))
    return lengths, marks


# %%
file = io.BytesIO()
print("lengths and marks", *write_ids(file, few, 65_499, "<u2"))
print("the .bin:", file.getvalue().hex(" ", 2))

# %% [markdown]
r"""
Five ids of two bytes each. Two bytes are enough as long as all ids are below 65,536. Megatron uses them for a vocabulary below 65,500, and four bytes from there on. (This is its own limit; `optimal_dtype` in its source has it.)

Neither file makes sense alone, or beside the other's older version. What if the program is interrupted between the two? Then a new `.bin` could stay beside an old `.idx`, and every document would begin in a wrong place. So we write in four steps: the new ids into a file aside, delete the old index, give the ids their name, write
the index. If we are interrupted, there is the old pair, or a `.bin` without an index. Reading can name the second case.
"""


# %%
#| export
MAGIC, HEAD = b"MMIDIDX\0\0", struct.Struct("<9sQBQQ")  # 34 bytes
TYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # 6 and 7 are floats: no tokens


def pair(prefix: str | os.PathLike) -> tuple[Path, Path]:
    """prefix.bin and prefix.idx."""
    return Path(f"{os.fspath(prefix)}.bin"), Path(f"{os.fspath(prefix)}.idx")


# %%
#| export
def write_indexed_dataset(prefix: str | os.PathLike, docs: Iterable, vocab_size: int = 50257) -> int:
    """Write prefix.bin and prefix.idx, a document for each row of ids in `docs`; the number of tokens.

    ValueError for ids that are not 0..vocab_size-1, and if there is no token at all.
    """
    ids_path, index_path = pair(prefix)
    code = 8 if vocab_size < 65500 else 4  # Megatron-LM, DType.optimal_dtype
    with atomically(ids_path) as file:
        lengths, marks = write_ids(file, docs, vocab_size, TYPES[code])
        if not lengths:
            raise ValueError("no document has a token, and Megatron cannot read such a data set")
        index_path.unlink(missing_ok=True)  # before the .bin gets its name: no index beside other ids
    n = np.array(lengths, "<i4")
    places = (np.cumsum(n, dtype="<i8") - n) * np.dtype(TYPES[code]).itemsize
    with atomically(index_path) as file:
        file.write(HEAD.pack(MAGIC, 1, code, len(n), len(marks)))
        file.write(n.tobytes() + places.tobytes() + np.array(marks, "<i8").tobytes())
    return int(n.sum(dtype=np.int64))


# %%
tokens = write_indexed_dataset(folder / "few", few, 65_499)
for path in pair(folder / "few"):
    print(f"{path.name}: {path.stat().st_size} bytes for {tokens} tokens")

# %% [markdown]
r"""
The index has 34 + 12 · 3 + 8 · 5 = 110 bytes: three sequences and five marks.

To read a pair, we map the ids into memory (chapter 03) and keep two arrays beside them. `dataset[i]` is then a view of a sequence, and nothing is copied.
"""


# %%
#| export
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
dataset = IndexedDataset(np.array(all_ids), np.array([0, 3, 4, 5]), np.array(marks))
print("sequence 1:", dataset[1], "· documents:", [dataset.document(i).tolist() for i in range(len(few))])

# %% [markdown]
r"""
## Reading a pair

`read_indexed_dataset` makes such an object from two files. Most of it is checking, as with llm.c's files.
"""


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
    """The data set of such a pair. OSError or ValueError, in one sentence, if a file is missing, foreign or damaged."""
    ids, index = pair(prefix)
    for path, other in (index, ids), (ids, index):
        if not path.exists():
            alone = f", and {other.name} alone says nothing: was writing it interrupted? write both again"
            raise FileNotFoundError(f"{path} is not there{alone if other.exists() else ''}")
    dtype, starts, marks = read_index(index)
    if (found := ids.stat().st_size) != (asked := starts[-1] * dtype.itemsize):
        what = f"{found:,} bytes, where its index asks for {asked:,}"
        raise ValueError(f"{ids} has {what}: they are no pair; write both again")
    return IndexedDataset(np.memmap(ids, dtype, "r"), starts, marks)


# %%
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
The same documents come back, in two bytes or in four, and a `.bin` without its index is named as what it is.

## From shards to a pair

Chapter 16b's command `prepare` turns text of any size into shards, in parallel and resumable. We make a pair from these shards by copying. One thing changes: our `<|endoftext|>` comes *before* each document, since it is the first token that a model sees, and Megatron's `--append-eod` puts it *after* the document. If we roll each document by one place, we get one from
the other. The text of a document never holds that id (chapter 16), so shards can be cut into documents without any index, even if a document goes over from one shard to the next.
"""


# %%
#| export
from collections.abc import Iterator

from nanogpt.files import alone_in
from nanogpt.shards import open_shards, read_shard


def whole_documents(shards: list[Path], eot: int) -> Iterator[np.ndarray]:
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
            docs = whole_documents(open_shards(folder, split), manifest["eot"])
            prefix = f"{folder / split}_text_document"  # as preprocess_data names it
            made[prefix] = write_indexed_dataset(prefix, docs, manifest["vocab_size"])
    return made


# %% [markdown]
r"""
The command has a table of formats with one row. It grows by another:
"""


# %%
#| export labs.corpora.prepare
#| grows FORMATS
def as_megatron(folder: Path, manifest: dict) -> None:
    """Write Megatron's files beside the shards, and say which."""
    for prefix, tokens in shards_to_megatron(folder, manifest).items():
        print(f"{prefix}.bin and .idx: {tokens:,} tokens")


FORMATS = {"shards": None, "megatron": as_megatron}  # what is made of the shards besides


# %%
import contextlib
import json

from nanogpt import cli
from nanogpt.labs.corpora import prepare

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
print(f"{len(dataset):,} documents, {len(dataset.ids):,} tokens; index {size:,} bytes")

# %% [markdown]
r"""
The index has the size that we predicted. The published run's pair was made by Megatron's `tools/preprocess_data.py`; for each option that it was given, `data/reference/megatron_preprocess_options.csv` has the one that means the same here.

The other direction is not built. `prepare --adopt` takes llm.c's shards, and says of Megatron's file that it "is not a shard in llm.c's format". Prepare the JSONL again instead.

An empty document gets no `<|endoftext|>` there, only a mark; ours leaves it out. And all documents go into *one* pair, which training splits later: `--val 0 --test 0` here. With our defaults there are three pairs, split by hash (chapter 03), for `--train-data-path` and its sisters.
"""

# %% [markdown]
r"""
## Splitting: 949, 50, 1

The command has turned our ten thousand stories into such a pair, which is now in `dataset`. Megatron's training splits it by the option `--split 949,50,1`: the first 94.9% of the documents are for training, the next 5% for validation, and the last 0.1% for testing.
"""


# %%
#| export
#| blank split_ranges: round the running sums of the shares, times n
from itertools import pairwise


def split_ranges(n: int, split: str = "949,50,1") -> list[range]:
    """Which of n sequences are train, validation and test, by their order (Megatron-LM, --split).

    The weights need not add up to anything. ValueError for another number of weights,
    a negative one, or a sum of 0.
    """
    weights = [float(weight) for weight in split.split(",")]
    if len(weights) != 3 or min(weights) < 0 or not sum(weights) > 0:
        raise ValueError(f"split {split!r}: three weights of at least 0, as in 949,50,1")
    shares = np.array(weights) / sum(weights)
    edges = [round(float(edge) * n) for edge in np.cumsum([0, *shares])]
    return [range(a, b) for a, b in pairwise(edges)]


# %%
print(split_ranges(len(dataset), "949,50,1"))

# %% [markdown]
r"""
The documents are split by their order in the file. If the file is sorted by source, or by length, the validation set has texts of one kind only. And when the file grows, the borders move, so that documents of the validation set become training documents. Chapter 03's hash has neither problem.

How many samples does a split give? Its documents, one after the other, are one row of tokens. Sample i begins at token i·T. It has T inputs and T targets, and its last target is the first input of the next sample. So one pass over the split gives (tokens − 1) // T samples. If training asks for more, the split is read again, as often as it takes. Each reading
is an *epoch*.
"""


# %%
#| export
#| blank epochs_and_samples: a sample needs T tokens, and the last one needs one token more
import math


def epochs_and_samples(tokens: int, T: int, wanted: int) -> tuple[int, int]:
    """How often a split is read so that `wanted` samples of T targets come out, and how many samples that are in all.

    At least once. ValueError for a split without tokens.
    """
    if tokens < 1:
        raise ValueError("a split without tokens has no samples; give it a larger weight")
    needed = wanted * T + 1  # one more: the last target
    epochs = max(1, math.ceil(needed / tokens))
    return epochs, (epochs * tokens - 1) // T


# %%
for wanted in (9, 10, 20):
    epochs, samples = epochs_and_samples(tokens=100, T=10, wanted=wanted)
    print(f"100 tokens, {wanted} samples of 10 wanted: epochs {epochs}, which give {samples} samples")

# %% [markdown]
r"""
A hundred tokens give nine samples, because the tenth would need one token more. For ten samples the split is read twice.

No warning says so. The log has one line, `total number of epochs: 2`. A published run (T = 512) asked for 80 test samples, five batches of 16, of ten documents. One pass over
their tokens gives 63 samples: the log does not print this number, and a cell below computes it.

Where do the wanted numbers in its log come from? Training: 1,000 iterations of 16 rows are 16,000. Testing: 5 batches of 16 are 80. Validation: 1,680,
which are 21 validations of 80 rows, every 50 iterations and once more at the end.

*Predict.* How many test samples did Megatron make?
"""

# %%
predict("22b.3", "samples that Megatron sees in a test split of 63, if 80 are asked for", guess=None)

# %% [markdown]
r"""
The log has the numbers of samples and epochs, and not the number of tokens. But these two numbers bound the tokens, from below and from above. For both bounds, our function must give the numbers of the log.
"""

# %%
with open("../data/reference/megatron_split.csv", encoding="utf-8") as file:
    log = {row["item"]: row["value"] for row in csv.DictReader(file)}
T, published = int(log["seq_length"]), split_ranges(int(log["documents in the index"]), log["split"])
for docs, (name, long) in zip(published, dict(train="train", valid="validation", test="test").items()):
    wanted, samples = int(log[f"target samples, {long}"]), int(log[f"samples, {name}"])
    epochs = int(log[f"epochs, {name}"])
    low, high = math.ceil((samples * T + 1) / epochs), (samples + 1) * T // epochs  # tokens of the split
    for tokens in low, high:
        assert epochs_and_samples(tokens, T, wanted) == (epochs, samples), "not the numbers of the log"
    print(f"{name:5} {len(docs):5,} documents: {low:,} to {high:,} tokens, {(low - 1) // T:,} samples a pass")
    print(f"      {wanted:,} wanted: epochs {epochs}, samples {samples:,}, as in the log")
answer("22b.3", samples)

# %% [markdown]
r"""
The test split was read twice and gave 127 samples, of which the run drew 80. At least seventeen of them are of text that had been read before. The test loss is not a wrong number, but it is the mean over less text than it seems. Look at `epochs` in a log before you look at a loss.

## Drawing samples

In which order does training see the samples? Here is the simplest version, for a pair with three short documents: lay the documents out in random order, cut the row into samples, and draw the samples in random order.
"""

# %%
dice, tiny = np.random.RandomState(0), [[10, 11, 12], [20, 21], [30, 31, 32, 33]]
order = dice.permutation(3)
stream = np.concatenate([tiny[d] for d in order])
samples = [stream[i : i + 3].tolist() for i in range(0, len(stream) - 2, 2)]
print(f"documents in the order {order}: {stream}\nsamples of T = 2: {samples}")
print("drawn:", [samples[i] for i in dice.permutation(len(samples))])

# %% [markdown]
r"""
Each sample has T + 1 tokens, and neighbours share one. (If the last tokens of the row are too few for a sample, they are left out.)

Real data does not fit into memory, and a resumed run must draw the same samples again. So Megatron stores three arrays instead of the row: the *document index* (the documents in the order in which they are laid out), the *sample index* (document and offset at which each sample begins), and the *shuffle index* (the order in which samples are drawn). It caches them as
`.npy` files beside the data.

With several epochs, the documents are laid out several times and shuffled together. There is one exception: if less than 80% of the last epoch is needed, this epoch is laid out and shuffled by itself, so that no text comes a second time before all has come once.
"""


# %%
#| export
def shuffled(parts: list[np.ndarray], dice: np.random.RandomState) -> np.ndarray:
    """The parts one after the other, each of them shuffled."""
    for part in parts:
        dice.shuffle(part)
    return np.concatenate(parts)


def sample_indices(dataset: IndexedDataset, docs: range, T: int, wanted: int, seed: int = 1234) -> tuple:
    """Megatron-LM's document index (n), sample index (samples + 1, 2) and shuffle index (samples) of a split."""
    lengths, dice = np.diff(dataset.starts), np.random.RandomState(seed)
    tokens = int(lengths[docs.start : docs.stop].sum())
    epochs, samples = epochs_and_samples(tokens, T, wanted)
    before = ((epochs - 1) * tokens - 1) // T  # samples of all epochs but the last
    rounds, cuts = [epochs], [0, samples]
    if epochs > 1 and wanted - before < int(0.8 * ((tokens - 1) // T)):
        rounds, cuts = [epochs - 1, 1], [0, before, samples]  # the last epoch by itself
    laid = shuffled([np.tile(np.array(docs, np.int32), n) for n in rounds], dice)
    starts, places = np.append(0, np.cumsum(lengths[laid])), np.arange(samples + 1) * T
    row = np.searchsorted(starts, places, "right") - 1  # the document that holds a sample's first token
    drawn = shuffled([np.arange(a, b, dtype=np.uint32) for a, b in pairwise(cuts)], dice)
    return laid, np.stack([row, places - starts[row]], axis=1), drawn


# %% [markdown]
r"""
Let us look at the three arrays for the test split of our stories, which has ten documents. We ask for more samples than one pass gives.
"""

# %%
test = split_ranges(len(dataset), "949,50,1")[2]
T, WANTED_SAMPLES = 64, 40  # tokens of a sample; samples that are drawn
laid, begins, drawn = indices = sample_indices(dataset, test, T, WANTED_SAMPLES)
tokens = sum(len(dataset[d]) for d in test)
print(f"test: {len(test)} documents, {tokens:,} tokens, {(tokens - 1) // T} samples a pass")
print(f"{WANTED_SAMPLES} wanted: epochs {len(laid) // len(test)}, samples {len(drawn)}")
print("documents", laid[:4], "· begins", begins[:4].tolist(), "· drawn", drawn[:4])

# %% [markdown]
r"""
Sample 1 begins 64 tokens into the first document of the layout, or in a later one. To get a sample, we join the documents from its begin to the begin of the next sample, and cut.
"""


# %%
#| export
#| blank read_sample: join the sequences from the sample's begin to the next one's, then cut T + 1 ids
def read_sample(dataset: IndexedDataset, indices: tuple, T: int, k: int) -> np.ndarray:
    """The T + 1 ids of the k-th sample that training draws. indices: the three of sample_indices."""
    laid, begins, drawn = indices
    (first, offset), (last, _) = begins[drawn[k]], begins[drawn[k] + 1]
    return np.concatenate([dataset[d] for d in laid[first : last + 1]])[offset : offset + T + 1]


# %% [markdown]
r"""
*Check.* Every sample must be the one that the simplest version cuts out of the complete row.
"""

# %%
stream = np.concatenate([dataset[d] for d in laid])
for k, i in enumerate(drawn[:WANTED_SAMPLES]):
    plain = stream[i * T : i * T + T + 1]
    assert np.array_equal(read_sample(dataset, indices, T, k), plain), f"draw {k} is not sample {i}"
print(f"{WANTED_SAMPLES} samples drawn, all as the simplest version cuts them")
alt = "The test split's documents laid out once per epoch, and below them the samples, those that are drawn filled"
lengths = [len(dataset[d]) for d in laid]
show(figures.epochs(lengths, laid, drawn[:WANTED_SAMPLES], T, len(drawn), tokens), alt=alt)

# %% [markdown]
r"""
Each document has its colour. The boxes below are the samples, and a box is filled if it is among the samples that were drawn. Filled boxes to the right of the line are text that has been read before.

The three arrays are Megatron's, to the last number. `tests/labs/test_ch22b_interop.py` checks this with `megatron-core` itself.
"""

# %% [markdown]
r"""
## Appendix: llm.c's tokenizer and its log

Two more files of llm.c are useful. The tokenizer's file only decodes: it has the bytes of each id. But BPE needs no more than the order of its tokens (chapter 01), so we get the complete tokenizer back.
"""


# %%
#| export labs.formats.llmc
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
llm.c also writes a log, `main.log`, with a short line for each event: `trl` is the training loss, `tel` the loss on held-out text. `read_log` reads it as the lines of our own `metrics.jsonl`, and the commands `plot` and `compare` call it for a file with the ending `.log`. So `python -m nanogpt plot log124M/main.log runs/mine` draws both.

llm.c numbers updates from 0, and our `step` counts them. So lines of training move by one. Lines of validation stay, since llm.c validates before update s, which is after s updates.
"""

# %%
#| export labs.formats.llmc
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
log = "s:0 tel:11.0060\ns:0 trl:11.0079 lr:0.000003 norm:16.32\ns:1 trl:10.8297 lr:0.000006 norm:15.00\n"
(folder / "main.log").write_text(log)
print(*read_log(folder / "main.log"), sep="\n")

# %%
predictions("22b")

# %%
checkpoint("22b")

# %% [markdown]
r"""
## Exercises

`course exercises release 22b` writes these as a notebook to `released/`; `course check 22b` runs their visible checks.

- **22b-1** A header, read with suspicion, 30 minutes: count a model's numbers from its header, and refuse other files.
- **22b-2** From Megatron's documents to a stream, 25 minutes: the way back, which this chapter does not build.
- **22b-3** A check for a reader of indexes, 30 minutes: write the check that finds readers who trust too much.
- **22b-4** What a run asks of its splits, 20 minutes: derive the samples of a run, and how many come again.
- **22b-5** The judge says OK, 10 minutes: why a wrong GELU passes.

To explore:

1. **Who is wrong?** Let the state be of a model in which one LayerNorm's gain is 1% larger than in the model's file, and ask llm.c, with weights as they are
   and ten times as large. *Check:* it says `overall okay: 1` once and 0 once; the largest difference tells both from the right model.
2. **An older vocabulary.** A run's file says padded_vocab_size = 50257: it was not padded. *Check:* `from_llmc` reads one (change the header and cut the rows), and
   writing it again gives 50,304.
3. **Another order.** Shuffle the lines of `stories.jsonl`, prepare it again and split it by 949,50,1. *Check:* count the documents that change sides. How many by chapter 03's hash?
4. **Fair enough.** Find the smallest w in `950 − w, 50, w` for which the published run reads its test split once, if all documents have the mean length of
   its training documents. *Check* with `split_ranges` and `epochs_and_samples`: fourteen documents.
5. **A kill between the two.** Let `write_indexed_dataset` end after the `.bin` got its name. *Check:* what does reading say, and what if the old index had not been deleted?

## Further reading

- Karpathy 2024, [*llm.c*](https://github.com/karpathy/llm.c), `train_gpt2.py` (`write_model`, `write_state`) and `train_gpt2.c`: the formats, and the 1,182 lines of C that read them.
- Shoeybi et al. 2019, [*Megatron-LM*](https://arxiv.org/abs/1909.08053), and [`megatron/core/datasets/readme.md`](https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/readme.md) in its repository: the three indices, with an example of each.
- Zhang et al. 2022, [*OPT*](https://arxiv.org/abs/2205.01068), §2.3: which sources a training set is made of, and how they are deduplicated.
"""
