# %% [markdown]
r"""
# 12 · Nice numbers, and the whole ladder

GPT-2 has 50,257 tokens, an odd number. Training it with 50,304 rows is more work on paper. Whether it is faster is a
question to a machine, and so is every step of the chapters before: TF32, bfloat16, compilation, flash attention. Here
they stand on top of each other, each predicted from bytes and FLOPs first, then measured, with the loss beside the
time so that no speed hides a wrong result.
"""

# %%
#| default_exp ladder
import json
import subprocess
import sys
import tempfile
from csv import DictReader
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from course.notebook import checkpoint, show
from nanogpt.bench import measure
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.model import num_params

device = pick_device()
scale = pick_scale(device)
g = seed_everything(0)

# %%
fig, axes = plt.subplots(1, 2, figsize=(7, 2.4))
for ax, n in zip(axes, (257, 256)):
    tiles = -(-n // 128)
    for i in range(tiles):
        for j in range(tiles):
            full = (i + 1) * 128 <= n and (j + 1) * 128 <= n
            ax.add_patch(plt.Rectangle((j * 128, i * 128), 128, 128, fc="C0" if full else "C1", ec="white"))
    ax.add_patch(plt.Rectangle((0, 0), n, n, fill=False, ec="black", lw=2))
    ax.set(xlim=(-5, 400), ylim=(400, -5), aspect="equal", title=f"{n} × {n}: {tiles * tiles} tiles")
    ax.axis("off")
show(
    fig,
    alt="A 257 by 257 matrix needs nine tiles of 128 by 128, five of them nearly empty; 256 by 256 needs four full ones.",
)

# %% [markdown]
r"""
A product is computed in tiles of fixed size. One row too many costs a row of tiles, and a tile costs the same
full or empty.

## Predict

1. Padding 50,257 to 50,304 adds 47 rows that stand for no token. Does the loss change, and in which direction?
2. Which of the rungs, TF32, bfloat16, compile, flash attention, nice numbers, fused AdamW, bfloat16 weights, gains
   most on your machine? Which gains nothing?
3. A model of 124 million float32 parameters: how many bytes must AdamW move in each step, at least?

## Nice numbers: what a formula says

Two roundings. *Tile quantisation*: the output is cut into tiles, rounded up in both directions. *Wave
quantisation*: tiles run on the GPU's multiprocessors (SMs) all at once, so their number is rounded up to whole
waves. (NVIDIA, *Matrix Multiplication Background User's Guide*.)
"""


# %%
def useful_share(rows, columns, tile=128, sms=1):
    """Share of the computed tiles × SM slots that belong to the (rows, columns) output."""
    tiles = -(-rows // tile) * -(-columns // tile)
    slots = -(-tiles // sms) * sms
    return rows * columns / (slots * tile * tile)


for rows, columns in [(256, 256), (257, 257), (16384, 50257), (16384, 50304), (16384, 50305)]:
    tiled, waved = useful_share(rows, columns), useful_share(rows, columns, sms=132)
    print(f"{rows:6} × {columns:5}   tiles {tiled:7.2%}   and waves of 132 SMs {waved:7.2%}")
assert useful_share(16384, 50304) == 1 and useful_share(257, 257) < 0.5

# %% [markdown]
r"""
By this formula 50,257 wastes a thousandth. Where it is slower than that, tiles are not the reason; *alignment* may be.
Loads of 16 bytes need every row of a matrix to start at a multiple of 16 bytes, which is 8 numbers in bfloat16 and 4
in float32. 50,257 is odd.
"""

# %%
for n in (50257, 50264, 50304):
    powers = max(p for p in range(20) if n % 2**p == 0)
    print(f"{n} = {n // 2**powers} · 2^{powers}: in bfloat16 rows are aligned to {2 * 2**powers} bytes")
waves = [useful_share(128 * n, 128, sms=132) for n in range(1, 700)]
fig, ax = plt.subplots(figsize=(6.5, 2.6))
ax.plot(range(1, 700), waves)
ax.set(
    xlabel="tiles of 128 × 128",
    ylabel="share of SM slots used",
    title="wave quantisation, 132 SMs, by formula",
)
show(
    fig,
    alt="A sawtooth: the used share climbs to one at each multiple of 132 tiles, drops by half after the first, and the drops shrink.",
)

# %% [markdown]
r"""
## Nice numbers: what this machine says

The head's product, 50,257 columns against its neighbours, then a sweep in small widths where a step of one tile is
a visible share of the whole. Each time is a median; the widths take turns, so that a slow minute hits all of them.
"""

# %%
dtype = torch.bfloat16
rows, width = {"ci": (64, 128), "laptop": (256, 192), "gpu": (16384, 768)}[scale]


def seconds_by_width(widths, rows, inner, rounds=5):
    """{width: seconds of (rows, inner) @ (inner, width)}, the best of `rounds` medians taken in turn."""
    a = torch.randn(rows, inner, generator=g).to(device, dtype)
    weights = {n: torch.randn(n, inner, generator=g).to(device, dtype) for n in widths}
    best = dict.fromkeys(widths, float("inf"))
    for _ in range(rounds):
        for n, w in weights.items():
            best[n] = min(best[n], measure(lambda w=w: a @ w.T, device, repeats=5, warmup=1).median)
    return best


# %% tags=["nbval-ignore-output"]
head = seconds_by_width([50256, 50257, 50258, 50264, 50272, 50304], rows, width)
for n, seconds in head.items():
    print(f"{n} columns: {1e3 * seconds:.3f} ms, {seconds / head[50304]:.2f}× the time of 50304")

# %% tags=["nbval-ignore-output"]
sweep = seconds_by_width(range(96, 200, 2), rows, 512)
rates = {n: 2 * rows * 512 * n / seconds / 1e9 for n, seconds in sweep.items()}
fig, ax = plt.subplots(figsize=(6.5, 2.8))
ax.plot(rates.keys(), rates.values(), ".-")
for n in range(96, 200, 16):
    ax.axvline(n, c="gray", lw=0.5, ls=":" if n % 32 else "-")
ax.set(
    xlabel="columns",
    ylabel=f"GFLOP/s, {str(dtype)[6:]}",
    ylim=(0, None),
    title="a width sweep, measured here",
)
show(fig, alt="Measured GFLOP/s of a matrix product against its width, with multiples of 16 and 32 marked.")
near = max(rates, key=rates.get)
print(f"fastest width: {near}; slowest reaches {min(rates.values()) / max(rates.values()):.2f} of its rate")

# %% [markdown]
r"""
The same question for the other two numbers one may choose: the size of a head, and the batch.
"""

# %% tags=["nbval-ignore-output"]
T, C = {"ci": (64, 192), "laptop": (256, 192), "gpu": (1024, 768)}[scale]
for d in (16, 24, 32, 48, 64, 96):
    q = torch.randn(1, C // d, T, d, generator=g).to(device, dtype)
    heads = measure(lambda q=q: F.scaled_dot_product_attention(q, q, q, is_causal=True), device, repeats=20)
    print(f"{C // d:2} heads of {d:2}: {1e6 * heads.median:.0f} µs")
w = torch.randn(4 * C, C, generator=g).to(device, dtype)
for tokens in (1, 8, 63, 64, 65, 256, 1024):
    x = torch.randn(tokens, C, generator=g).to(device, dtype)
    seconds = measure(lambda x=x: x @ w.T, device, repeats=20).median
    print(f"{tokens:4} tokens: {1e9 * seconds / tokens:.0f} ns a token")

# %% [markdown]
r"""
Heads share C, so their number changes no FLOP of the products; width and shape of the tiles do change. A batch of
one token reads the whole matrix for one row of output; from some size on, a token costs what its arithmetic costs.

## Rows that stand for no token

To pad, append rows to `wte`. They start at zero here, and the first 50,257 rows stay as they were.
"""

# %%
#| export
import torch
from torch import nn

from nanogpt.model import GPT, GPTConfig


def pad_vocabulary(model: GPT, multiple: int = 128) -> None:
    """Append zero rows to wte, which is also lm_head, up to a multiple; in place. 50257 becomes 50304.

    No id and no target names an added row, so its logit is pushed down wherever it has a probability.
    Sampling must not draw from `logits[..., vocab_size:]`, and an export leaves the added rows out.
    """
    old = model.transformer.wte.weight.data  # (V, C)
    rows = -(-len(old) // multiple) * multiple
    new = nn.Parameter(torch.cat([old, old.new_zeros(rows - len(old), old.shape[1])]))
    model.transformer.wte.weight = model.lm_head.weight = new
    model.transformer.wte.num_embeddings = model.lm_head.out_features = rows


# %%
tiny = GPTConfig(block_size=32, vocab_size=500, n_layer=2, n_head=2, n_embd=64)
plain = GPT(tiny, seed_everything(1))
padded = GPT(tiny, seed_everything(1))
pad_vocabulary(padded)
print("rows of wte:", len(plain.transformer.wte.weight), "and", len(padded.transformer.wte.weight))
print("GPT-2:", num_params(GPTConfig()), "and", num_params(GPTConfig(vocab_size=50304)), "parameters")
ids = torch.randint(500, (4, 33), generator=g)
x, y = ids[:, :-1], ids[:, 1:]
with torch.no_grad():
    (a, loss_plain), (b, loss_padded) = plain(x, y), padded(x, y)
assert torch.allclose(a, b[..., :500], atol=1e-6)  # real logits are untouched
print(f"loss {loss_plain:.4f} unpadded, {loss_padded:.4f} padded")

# %% [markdown]
r"""
Question 1. Real logits are untouched, yet the loss rises a little: softmax now divides by a sum with 12 more terms.
If P is the probability that the model gives to all added rows together, then at every position

loss padded = loss over real ids − ln(1 − P).

This is exact, and the extra term is never negative. So a padded model cannot look better than it is.
"""

# %%
P = b.softmax(-1)[..., 500:].sum(-1)  # (B, T)
print(f"P = {P.mean():.4f}, the share of added rows 12/512 = {12 / 512:.4f}")
assert abs(loss_padded - (loss_plain - torch.log1p(-P).mean())) < 1e-5

# %% [markdown]
r"""
What does training do to P? The gradient of the loss by an added row is the mean of p·x over positions, with x the
final hidden state: softmax's "p − 1" never occurs, because no target is ever that row. So on the hidden states it has
just seen, a small gradient step can only lower that row's mean logit. No input looks the row up, so this is all of
its gradient. A later step with other hidden states can raise P for a while; it has no reason to.
"""

# %%
names, curve = ("unpadded", "padded"), {"unpadded": [], "padded": [], "P": []}
g = seed_everything(2)
data = [
    (500 ** torch.rand(8, 33, generator=g)).long() - 1 for _ in range(60)
]  # id r with probability about 1/r
for name, model in zip(names, (plain, padded)):
    adamw = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for ids in data:
        logits, loss = model(ids[:, :-1], ids[:, 1:])
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        real = F.cross_entropy(logits[..., :500].flatten(0, 1), ids[:, 1:].flatten())
        curve[name].append(real.item())
        if name == "padded":
            curve["P"].append(logits.softmax(-1)[..., 500:].sum(-1).mean().item())
gap = max(abs(a - b) for a, b in zip(curve["unpadded"], curve["padded"]))
print(
    f"P falls from {curve['P'][0]:.4f} to {curve['P'][-1]:.4f}; losses over real ids differ by at most {gap:.2f}"
)
assert curve["P"][-1] < 0.1 * curve["P"][0]

# %%
fig, axes = plt.subplots(1, 2, figsize=(7, 2.6))
for name, style in zip(names, ("-", "--")):
    axes[0].plot(curve[name], style, label=name)
axes[0].set(xlabel="step", ylabel="loss over real ids (nats)")
axes[0].legend()
axes[1].semilogy(curve["P"])
axes[1].set(xlabel="step", ylabel="P on the added rows")
fig.tight_layout()
show(
    fig,
    alt="Left: two loss curves on top of each other, padded and unpadded. Right: the probability of the added rows falls steeply.",
)

# %% [markdown]
r"""
## The ladder

Eight rungs, each on top of the last. A step on a rung is described by the set of names up to it, less those that
the machine cannot do.
"""

# %%
#| export
RUNGS = {
    "float32": "attention step by step, every sum and product in float32",
    "TF32": "float32 products on tensor cores, 10 bits of mantissa (chapter 09)",
    "bf16": "autocast: products in bfloat16 (chapter 09)",
    "compile": "torch.compile fuses what lies between the products (chapter 10)",
    "flash": "attention in one kernel, no T×T matrix (chapter 11)",
    "nice numbers": "vocabulary padded to a multiple of 128 (chapter 12)",
    "fused AdamW": "the optimizer in one pass over memory",
    "bf16 weights": "weights kept in bfloat16, float32 masters in the optimizer",
}


def rungs_up_to(name: str, skipped=()) -> set[str]:
    """The rungs that are on at rung `name`: all up to it, less the skipped ones."""
    names = list(RUNGS)
    return set(names[: names.index(name) + 1]) - set(skipped)


# %%
for name, what in RUNGS.items():
    print(f"{name:13} {what}")
print(sorted(rungs_up_to("flash", skipped=["TF32"])))

# %% [markdown]
r"""
Autocast reads 124 million float32 weights, writes them in bfloat16 and reads them again, in every step. The top rung
keeps them in bfloat16. But an update of a ten-thousandth is lost there, since bfloat16 has 8 bits of mantissa:
"""

# %%
w16, w32 = torch.ones((), dtype=torch.bfloat16), torch.ones(())
for _ in range(1000):
    w16, w32 = w16 + 1e-4, w32 + 1e-4
print(f"1 + 1000 · 0.0001 = {w32:.4f} in float32, {w16:.4f} in bfloat16")

# %% [markdown]
r"""
So the optimizer keeps a float32 *master* of each weight and hands the model a rounded copy (Micikevicius et al. 2018,
§3.1). Written as one elementwise function, chapter 10's compiler makes it one pass: read gradient 2, master 4, two moments 8
bytes, write master 4, moments 8, weight 2.
"""

# %%
#| export
from torch import Tensor


def adamw_update(weight, grad, master, m, v, rate, scale, lr, beta1, beta2, eps, weight_decay) -> None:
    """AdamW on the float32 master, rounded into the weight; in place (Loshchilov & Hutter 2019, algorithm 2).

    rate = lr / (1 - beta1**t) and scale = 1 / (1 - beta2**t) are tensors, so that what is compiled holds for any t.
    """
    grad = grad.float()
    m.lerp_(grad, 1 - beta1)
    v.lerp_(grad * grad, 1 - beta2)
    master.mul_(1 - lr * weight_decay)
    master.sub_(rate * m / ((v * scale).sqrt() + eps))
    weight.copy_(master)


class MasterAdamW:
    """AdamW for a model whose weights it turns to bfloat16; masters and moments stay in float32."""

    def __init__(self, model: nn.Module, compiled: bool, **options):
        masters = [p.detach().float().flatten().clone() for p in model.parameters()]  # before rounding
        model.bfloat16()
        self.state = [
            (p, w, torch.zeros_like(w), torch.zeros_like(w)) for p, w in zip(model.parameters(), masters)
        ]
        self.update = torch.compile(adamw_update, dynamic=True) if compiled else adamw_update
        self.steps = 0
        self.options = options

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        o, device = self.options, self.state[0][1].device
        rate = torch.tensor(o["lr"] / (1 - o["beta1"] ** self.steps), device=device)
        scale = torch.tensor(1 / (1 - o["beta2"] ** self.steps), device=device)
        for p, master, m, v in self.state:
            self.update(p.view(-1), p.grad.reshape(-1), master, m, v, rate, scale, **self.options)

    def zero_grad(self) -> None:
        for p, *_ in self.state:
            p.grad = None


# %%
options = dict(lr=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
ours, theirs = nn.Linear(8, 8), nn.Linear(8, 8)
theirs.load_state_dict(ours.state_dict())
master = MasterAdamW(ours, compiled=False, **options)
adamw = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
for _ in range(50):
    for p, q in zip(ours.parameters(), theirs.parameters()):
        p.grad = torch.randn(p.shape, generator=g).bfloat16()
        q.grad = p.grad.float()
    master.step()
    adamw.step()
apart = max(
    (m - q.detach().flatten()).abs().max() for (_, m, *_), q in zip(master.state, theirs.parameters())
)
assert apart < 1e-6
print("masters equal torch.optim.AdamW's float32 weights after 50 steps, to 1e-6")

# %% [markdown]
r"""
The same data and the same seed on every rung. Token ids follow Zipf's law, so there is something to learn in the first
steps, and ids stay below 50,257 on padded rungs too.
"""

# %%
#| export
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch.nn.functional as F

from nanogpt.device import pick_device, seed_everything


def zipf_batches(vocab_size: int, B: int, T: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (x, y), each (B, T): token r occurs with a probability of about 1 / r. A seed gives one sequence."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        ids = (vocab_size ** torch.rand(B, T + 1, generator=generator)).long() - 1
        yield ids[:, :-1], ids[:, 1:]


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean loss in nats, summed in float32 whatever the logits are in."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def make_step(config: GPTConfig, on: set[str], B: int, T: int, device: torch.device) -> Callable[[], Tensor]:
    """A function that does one training step with the rungs in `on` and returns its loss, still on the device."""
    torch.set_float32_matmul_precision("high" if "TF32" in on else "highest")
    model = GPT(replace(config, flash="flash" in on), seed_everything(0))
    if "nice numbers" in on:
        pad_vocabulary(model)
    model.to(device)
    lr, betas, decay = 3e-4, (0.9, 0.95), 0.1
    if "bf16 weights" in on:
        named = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": 1e-8, "weight_decay": decay}
        optimizer = MasterAdamW(model, compiled="compile" in on, **named)
    else:
        optimizer = torch.optim.AdamW(
            model.parameters(), lr, betas, weight_decay=decay, fused="fused AdamW" in on
        )
    forward, loss_of = compile_parts(model, device) if "compile" in on else (model, token_loss)
    cast = torch.autocast(device.type, torch.bfloat16, enabled="bf16" in on and "bf16 weights" not in on)
    batches = zipf_batches(config.vocab_size, B, T)

    def step() -> Tensor:
        x, y = (ids.to(device) for ids in next(batches))
        with cast:
            loss = loss_of(forward(x)[0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def compile_parts(model: GPT, device: torch.device) -> tuple[Callable, Callable]:
    """Compiled (forward, loss). On a GPU the whole forward; elsewhere block by block, since all blocks share one
    graph: a twelfth of the compile time for nearly all of the fusion."""
    if device.type == "cuda":
        return torch.compile(model), torch.compile(token_loss)
    for block in model.transformer.h:
        block.compile()
    return model, torch.compile(token_loss)


# %%
losses = {}
for name in ("float32", "flash", "nice numbers", "bf16 weights"):
    step = make_step(tiny, rungs_up_to(name, skipped=["compile"]), B=4, T=32, device=torch.device("cpu"))
    losses[name] = [step().item() for _ in range(8)]
    print(f"{name:13} loss after 8 steps {losses[name][-1]:.2f}")
assert max(abs(a[-1] - losses["float32"][-1]) for a in losses.values()) < 0.05

# %% [markdown]
r"""
## The prediction

Products cost their FLOPs at the machine's measured rate, in the dtype of the rung. Everything else costs its bytes at
the measured bandwidth: count how often each tensor is read or written. The counts below are for one step, forward and
backward, and can be checked by hand. Eager AdamW is twenty passes of 4 bytes over the parameters, since each of its
operations reads and writes whole tensors; fused, it reads four numbers and writes three.
"""

# %%
#| export
from nanogpt.bench import step_flops
from nanogpt.device import Roofline
from nanogpt.model import num_params


def predict(config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline) -> dict[str, float]:
    """Seconds of one step by part, before anything is run: FLOPs of products, bytes of everything else."""
    N, C, L, P = B * T, config.n_embd, config.n_layer, num_params(config)
    compiled, half = "compile" in on, "bf16" in on
    size = (
        2 if "bf16 weights" in on else 3 if half else 4
    )  # bytes a number; autocast leaves about half in float32
    dtype = "bfloat16" if half else "tf32" if "TF32" in on else "float32"
    vocabulary = config.vocab_size + (-config.vocab_size % 128 if "nice numbers" in on else 0)
    passes = {  # (reads and writes, numbers in the tensor)
        "pointwise": (48 if compiled else 65, N * C * L),
        "T×T": (0 if "flash" in on else 11 if compiled else 19, N * T * config.n_head * L),
        "logits": (6 if compiled else 9, N * vocabulary),
    }
    seconds = {part: count * size * numbers / roof.bandwidth for part, (count, numbers) in passes.items()}
    if half and "bf16 weights" not in on:  # read 4, write 2 forward; the gradient back: read 2, write 4
        seconds["weight casts"] = 12 * P / roof.bandwidth
    seconds["AdamW"] = (28 if on & {"fused AdamW", "bf16 weights"} else 80) * P / roof.bandwidth
    flops = step_flops(replace(config, vocab_size=vocabulary), B, T)
    weights = 3 * P * (2 if half else 4)  # read forward, read backward, gradient written
    return {"products": roof.seconds(flops, weights, dtype), **seconds}


# %%
example = Roofline("example", {"float32": 1e11, "bfloat16": 4e11}, 20e9)  # round numbers, not this machine's
parts = {name: predict(GPTConfig(), rungs_up_to(name, ["TF32"]), 4, 64, example) for name in RUNGS}
fig, ax = plt.subplots(figsize=(6.5, 3))
bottom = [0.0] * len(RUNGS)
for i, part in enumerate(["products", "pointwise", "T×T", "logits", "weight casts", "AdamW"]):
    values = [parts[name].get(part, 0) for name in RUNGS]
    ax.bar(list(RUNGS), values, bottom=bottom, label=part, color=f"C{i}")
    bottom = [a + b for a, b in zip(bottom, values)]
ax.set(ylabel="predicted seconds a step", title="GPT-2 124M, B=4, T=64; 100 and 400 GFLOP/s, 20 GB/s")
ax.tick_params(axis="x", rotation=30)
ax.legend(fontsize=8)
show(
    fig,
    alt="Stacked bars of predicted seconds by part and rung for an example machine: products shrink with bfloat16, AdamW with fusion, casts vanish on the last rung.",
)
assert bottom[-1] < bottom[0] / 2

# %% [markdown]
r"""
On this example machine a batch of 256 tokens is so small that the optimizer is a visible part of a step. Nice
numbers are predicted to cost a thousandth: the roofline knows nothing of alignment. Whatever they gain when measured is
its error.

## One rung, one process

Compile caches, the allocator's state and the TF32 flag outlive a rung that sets them. So each rung gets a process of
its own. What a machine cannot do is skipped, with the reason.
"""

# %%
#| export
import importlib.util
import os
import shutil
import sys
import time


def obstacles(device: torch.device, roof: Roofline) -> dict[str, str]:
    """Rungs that this device cannot do, each with the reason."""
    reasons = {}
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
    if capability < (8, 0):
        reasons["TF32"] = "TF32 exists on NVIDIA GPUs of compute capability 8.0 and later"
    if device.type == "cuda" and capability < (8, 0):
        reasons["bf16"] = "this GPU computes no bfloat16; float16 needs loss scaling (chapter 09)"
    elif roof.flops["bfloat16"] < 0.8 * roof.flops["float32"]:
        reasons["bf16"] = "bfloat16 products are slower than float32 ones here: no hardware for them"
    if device.type == "mps":
        reasons["compile"] = "torch.compile is a prototype on mps"
    elif device.type == "cuda" and (capability < (7, 0) or not importlib.util.find_spec("triton")):
        reasons["compile"] = (
            "torch.compile needs Triton and compute capability 7.0; PyTorch brings no Triton on Windows"
        )
    elif device.type == "cpu" and not shutil.which(
        os.environ.get("CXX") or ("cl" if os.name == "nt" else "c++")
    ):
        reasons["compile"] = (
            "torch.compile needs a C++ compiler, and none is on the path; set CXX or install g++"
        )
    return reasons


# %%
nothing = Roofline("old", {"float32": 2.0, "bfloat16": 1.0}, 1.0)
for name, reason in obstacles(torch.device("mps"), nothing).items():
    print(f"{name}: {reason}")

# %%
#| export
from nanogpt.bench import measure, mfu
from nanogpt.device import copy_bandwidth, matmul_flops

LOSS_STEPS = 6  # they warm up as well: the loss that is compared is that of the sixth step


def measure_roofline(device: torch.device) -> Roofline:
    """This machine's measured peaks, FLOP/s by dtype (float32, bfloat16, and tf32 on CUDA) and bytes/s."""
    n, mebibytes = (8192, 2048) if device.type == "cuda" else (1024, 256)
    torch.set_float32_matmul_precision("highest")
    flops = {str(t)[6:]: matmul_flops(device, t, n) for t in (torch.float32, torch.bfloat16)}
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        flops["tf32"] = matmul_flops(device, torch.float32, n)
    return Roofline(device.type, flops, copy_bandwidth(device, mebibytes))


def peak_mib(device: torch.device) -> float | None:
    """Peak memory in MiB: allocated on the GPU; elsewhere resident in the process, PyTorch included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if not importlib.util.find_spec("resource"):
        return None  # Windows
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def run_rung(
    name: str, config: GPTConfig, B: int, T: int, device: torch.device, skipped, seconds: float
) -> dict:
    """Measure one rung in this process: 20 steps after LOSS_STEPS, fewer (at least 5) where `seconds` are short."""
    step = make_step(config, rungs_up_to(name, skipped), B, T, device)
    for _ in range(LOSS_STEPS):
        start = time.perf_counter()
        loss = step().item()  # waits for the device
    repeats = int(seconds / (time.perf_counter() - start))
    timing = measure(step, device, repeats=max(5, min(20, repeats)), warmup=0)
    return {
        "name": name,
        "ms": 1e3 * timing.median,
        "q1_ms": 1e3 * timing.q1,
        "q3_ms": 1e3 * timing.q3,
        "steps": len(timing.times),
        "tokens_per_s": B * T / timing.median,
        "peak_mib": peak_mib(device),
        "loss": loss,
    }


# %% tags=["nbval-ignore-output"]
rung = run_rung("flash", tiny, 4, 32, torch.device("cpu"), ["compile", "TF32", "bf16"], seconds=1)
print(json.dumps(rung, indent=1))

# %% [markdown]
r"""
The parent starts one process after another, compares each loss with the first rung's, halves the batch and starts over
when memory runs out, and writes the file only when all of it is there. MFU divides by one peak on all rungs, the
highest that the machine has, so that it rises exactly as time falls.
"""

# %%
#| export
import json
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from nanogpt.device import peak_of

SIZES = {"124M": GPTConfig(), "small": GPTConfig(block_size=256, n_layer=4, n_head=6, n_embd=192)}
TOLERANCE = 0.05  # nats between a rung's loss and the first rung's
CHILD = "import sys; from nanogpt.ladder import main; sys.exit(main(sys.argv[1:]))"


def in_process(arguments: list[str]) -> dict:
    """What `ladder --rung ...` prints, from a process of its own. Raises MemoryError where it had too little.

    RuntimeError with its last line for any other failure.
    """
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    }
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, env=env)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if (
        done.returncode in (-9, 137)
        or "out of memory" in done.stderr.lower()
        or "can't allocate" in done.stderr
    ):
        raise MemoryError(last)
    raise RuntimeError(last)


def device_name(device: torch.device) -> str:
    """The device as its maker calls it, without the machine's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if sys.platform == "darwin":
        sysctl = ["sysctl", "-n", "machdep.cpu.brand_string"]
        cpu = subprocess.run(sysctl, capture_output=True, text=True).stdout.strip()
    else:
        info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
        names = [line.split(": ")[1] for line in info.splitlines() if line.startswith("model name")]
        cpu = names[0] if names else platform.processor() or platform.machine()
    return f"{cpu}, mps" if device.type == "mps" else f"{cpu}, threads: {torch.get_num_threads()}"


def climb(size: str, B: int, T: int, device: torch.device, skip=(), seconds: float = 360, say=print) -> dict:
    """Measure the whole ladder, each rung in a process of its own; the result is ready for json.dump.

    seconds: about how long the timed steps may take in all. A batch that does not fit is halved.
    """
    common = ["--size", size, "--batch", str(B), "--seq", str(T), "--device", str(device)]
    roof = Roofline(**in_process([*common, "--rung", "roofline"]))
    sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    peak = 1e12 * sheet.half if sheet else max(roof.flops.values())
    skipped = dict.fromkeys(skip, "left out by --skip") | obstacles(device, roof)
    if missing := {"bf16", "compile"} & set(skipped):
        skipped["bf16 weights"] = f"it stands on {' and '.join(sorted(missing))}"
    result = describe(device, size, B, T) | {
        "peak_flops": peak,
        "peak_source": sheet.source if sheet else "measured matrix product",
        "roofline": asdict(roof),
        "rungs": [],
        "skipped": [],
    }
    say(f"{result['device']}: GPT-2 {size}, B={B}, T={T}")
    for name in RUNGS:
        if name in skipped:
            result["skipped"].append({"name": name, "reason": skipped[name]})
            say(f"{name:13} skipped: {skipped[name]}")
            continue
        options = ["--seconds", str(seconds / len(RUNGS)), "--skip", *skipped]
        try:
            rung = in_process([*common, "--rung", name, *options])
        except MemoryError:
            if B == 1:
                raise RuntimeError(
                    f"rung {name!r} runs out of memory at batch 1; give a shorter --seq"
                ) from None
            say(f"{name:13} ran out of memory at batch {B}: starting over with batch {B // 2}")
            return climb(size, B // 2, T, device, skip, seconds, say)
        except RuntimeError as error:
            skipped[name] = f"it failed: {error}"
            result["skipped"].append({"name": name, "reason": skipped[name]})
            say(f"{name:13} skipped: {skipped[name]}")
            continue
        config, first = SIZES[size], (result["rungs"] or [rung])[0]
        rung["mfu"] = mfu(step_flops(config, B, T), rung["ms"] / 1e3, peak)
        rung["predicted_ms"] = 1e3 * sum(predict(config, rungs_up_to(name, skipped), B, T, roof).values())
        rung["agrees"] = abs(rung["loss"] - first["loss"]) <= TOLERANCE
        result["rungs"].append(rung)
        say(row(result))
    return result


def describe(device: torch.device, size: str, B: int, T: int) -> dict:
    """Where, when and how a ladder was measured. load: processes that wanted a core in the last minute."""
    return {
        "device": device_name(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "command": f"python -m nanogpt ladder --size {size} --batch {B} --seq {T}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "size": size,
        "batch": B,
        "seq": T,
    }


def row(result: dict) -> str:
    """The last rung as one line: time, spread, rate, MFU, memory, loss, and what it gained over the one before."""
    *before, rung = result["rungs"]
    text = f"{rung['name']:13} {rung['ms']:8.1f} ms ({rung['q1_ms']:.1f} to {rung['q3_ms']:.1f})"
    text += f" {rung['tokens_per_s']:9.0f} tok/s  MFU {rung['mfu']:5.1%}"
    text += f"  {rung['peak_mib']:6.0f} MiB" if rung["peak_mib"] else ""
    text += f"  loss {rung['loss']:.3f}" + (
        "" if rung["agrees"] else f" DISAGREES with {before[0]['loss']:.3f}"
    )
    if before:
        text += f"  {before[-1]['ms'] / rung['ms']:.2f}×, predicted {before[-1]['predicted_ms'] / rung['predicted_ms']:.2f}×"
    return text


# %%
#| export
def draw(result: dict):
    """The ladder as a staircase, measured and predicted: a matplotlib Figure."""
    from matplotlib.figure import Figure

    rungs = result["rungs"]
    names, ms = [r["name"] for r in rungs], [r["ms"] for r in rungs]
    edges = [i - 0.5 for i in range(len(rungs) + 1)]
    fig = Figure(figsize=(7, 3.6))
    ax = fig.subplots()
    ax.stairs(ms, edges, fill=True, color="C0", alpha=0.3)
    ax.stairs(ms, edges, baseline=None, color="C0", lw=2, label="measured, median and middle half")
    below, above = [r["ms"] - r["q1_ms"] for r in rungs], [r["q3_ms"] - r["ms"] for r in rungs]
    ax.errorbar(range(len(rungs)), ms, [below, above], fmt="none", color="C0", capsize=3)
    ax.stairs(
        [r["predicted_ms"] for r in rungs], edges, baseline=None, color="C1", ls="--", label="predicted"
    )
    for i, rung in enumerate(rungs):
        mark = "" if rung["agrees"] else "\nloss disagrees"
        ax.text(i, rung["q3_ms"], f"{ms[0] / rung['ms']:.2f}×{mark}", ha="center", va="bottom", fontsize=9)
    ax.set_xticks(range(len(rungs)), names, rotation=25, ha="right")
    ax.set(
        ylabel="ms a step",
        title=f"{result['device']}: {result['size']}, B={result['batch']}, T={result['seq']}",
    )
    ax.set_ylim(0, 1.15 * max(r["q3_ms"] for r in rungs))
    ax.legend(fontsize=8)
    fig.tight_layout()
    return fig


# %%
#| export
import argparse
import io

DEFAULTS = {"cuda": ("124M", 16, 1024), "mps": ("124M", 4, 256), "cpu": ("small", 1, 256)}


def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt ladder`: measure every rung on this machine; 0, 2 for bad input, 130 on Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m nanogpt ladder",
        description="Train the same GPT-2 a few steps in eight ways, each on top of the last, and time it.",
        epilog="example: python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out ladder.json --plot ladder.png",
    )
    parser.add_argument("--size", choices=SIZES, help="default: 124M on a GPU, small on a CPU")
    parser.add_argument("--batch", type=int, help="sequences a step; halved when memory runs out")
    parser.add_argument("--seq", type=int, help="tokens a sequence")
    parser.add_argument("--device", help="cuda, mps or cpu; default: the best that is there")
    parser.add_argument(
        "--skip", nargs="*", default=[], choices=RUNGS, metavar="NAME", help="rungs to leave out"
    )
    parser.add_argument(
        "--seconds", type=float, default=240, help="for the timed steps of all rungs together"
    )
    parser.add_argument("--out", type=Path, help="write the measurements there, as JSON")
    parser.add_argument("--plot", type=Path, help="write the staircase there, as PNG")
    parser.add_argument(
        "--rung", choices=["roofline", *RUNGS], help="measure this rung alone, print it as JSON"
    )
    args = parser.parse_args(argv)
    try:
        return run(args)
    except KeyboardInterrupt:
        print("ladder: stopped; nothing was written", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        print(f"ladder: {error}", file=sys.stderr)
        return 2


def run(args: argparse.Namespace) -> int:
    """What main does once the arguments are parsed."""
    device = pick_device(args.device)
    size, B, T = (
        default if given is None else given
        for given, default in zip((args.size, args.batch, args.seq), DEFAULTS[device.type])
    )
    if B < 1 or not 1 <= T <= SIZES[size].block_size:
        raise ValueError(
            f"--batch {B} --seq {T}: a batch is at least 1 and {size} takes 1 to {SIZES[size].block_size} tokens"
        )
    if not args.seconds >= 0:
        raise ValueError(f"--seconds {args.seconds} must be at least 0")
    for path in filter(None, (args.out, args.plot)):
        if not path.resolve().parent.is_dir():
            raise OSError(f"{path.parent} is no folder; make it first")
    if args.rung:
        one = measure_roofline(device) if args.rung == "roofline" else None
        rung = asdict(one) if one else run_rung(args.rung, SIZES[size], B, T, device, args.skip, args.seconds)
        print(json.dumps(rung))
        return 0
    result = climb(size, B, T, device, args.skip, args.seconds, say=lambda text: print(text, flush=True))
    if args.out:
        write_whole(args.out, json.dumps(result, indent=1).encode() + b"\n")
    if args.plot:
        png = io.BytesIO()
        draw(result).savefig(png, format="png", dpi=120)
        write_whole(args.plot, png.getvalue())
    return 0


def write_whole(path: Path, content: bytes) -> None:
    """Write beside `path`, then rename: the file is either the old one or the whole new one."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


# %% [markdown]
r"""
## See: the ladder on this machine

The cell runs the command as you would in a terminal, at a size that fits a chapter. Write your order of question 2 down
first.
"""

# %% tags=["nbval-ignore-output"]
out = Path(tempfile.mkdtemp()) / "ladder.json"
call = "import sys; from nanogpt.ladder import main; sys.exit(main(sys.argv[1:]))"
options = {"ci": ["--seq", "64", "--seconds", "1"], "laptop": ["--seq", "128", "--seconds", "6"], "gpu": []}[
    scale
]
done = subprocess.run(
    [sys.executable, "-c", call, *options, "--out", str(out)], capture_output=True, text=True
)
print(done.stdout + done.stderr)
live = json.loads(out.read_text())

# %%
show(
    draw(live),
    alt="A staircase of milliseconds a step, one stair a rung, measured and predicted, with the speed-up over the first rung on each.",
)

# %% tags=["nbval-ignore-output"]
print("rung            gain  predicted  error")
for before, rung in zip(live["rungs"], live["rungs"][1:]):
    gain, predicted = before["ms"] / rung["ms"], before["predicted_ms"] / rung["predicted_ms"]
    print(f"{rung['name']:13} {gain:5.2f}×   {predicted:5.2f}×   {gain / predicted:5.2f}×")
best = min(live["rungs"], key=lambda rung: rung["ms"])
print(f"all together: {live['rungs'][0]['ms'] / best['ms']:.2f}×, fastest rung: {best['name']}")

# %% [markdown]
r"""
Read the last column. Where it is far from one, the model of bytes and FLOPs left something out: products too small to
reach the peak that a large square one reached, tensors that stay in a cache and never travel, calls that cost time and
move nothing, alignment, or a machine that was busy with something else. Each of these can be tested by changing `--batch`
or `--seq`.

*Check.* A rung may be slow, but it may not be wrong:
"""

# %%
losses = [rung["loss"] for rung in live["rungs"]]
assert all(rung["agrees"] for rung in live["rungs"])
assert max(losses) - min(losses) < 2 * 0.05
assert {r["name"] for r in live["rungs"]} | {r["name"] for r in live["skipped"]} == set(RUNGS)
print("every rung that ran has the first one's loss to 0.05 nats, and every other one has a reason")

# %% [markdown]
r"""
## Beside other machines

Recorded runs of the same command, and figures from published logs with other programs. The conditions differ, and the
table says which.
"""

# %% tags=["nbval-ignore-output"]
for path in sorted(Path("../data/measurements").glob("ladder-*.json")):
    run_ = json.loads(path.read_text())
    first, best = run_["rungs"][0], min(run_["rungs"], key=lambda rung: rung["ms"])
    print(
        f"{run_['device']}, {run_['date']}, {run_['size']}, B={run_['batch']}, T={run_['seq']}, load {run_['load']:.0f}:"
    )
    print(f"  {first['ms']:.0f} ms -> {best['ms']:.0f} ms ({best['name']}), MFU {best['mfu']:.0%}")

# %%
bars = []
for name in ("cpu", "single_gpu"):
    with open(f"../data/reference/{name}.csv", encoding="utf-8") as file:
        for row_ in DictReader(file):
            tokens = int(row_["batch"]) * int(row_["seq"])
            label = f"{row_.get('gpus', '1')}× {row_['device']}, {row_['precision']}, T={row_['seq']}"
            bars.append((label.removeprefix("1× "), tokens / float(row_["ms_per_step"]) * 1e3, "C2"))
for path in sorted(Path("../data/measurements").glob("ladder-*.json")):
    run_ = json.loads(path.read_text())
    if run_["size"] == "124M":
        ends = run_["rungs"][0], min(run_["rungs"], key=lambda rung: rung["ms"])
        bars += [(f"{run_['device']}, {r['name']}, T={run_['seq']}", r["tokens_per_s"], "C0") for r in ends]
fig, ax = plt.subplots(figsize=(6.5, 0.35 * len(bars) + 0.9))
labels, rates, colours = zip(*bars)
ax.barh(labels, rates, color=colours)
ax.set(xscale="log", xlabel="tokens/s, GPT-2 124M, B=4 (green: llm.c's published logs; blue: recorded here)")
ax.invert_yaxis()
show(
    fig,
    alt="Tokens per second on a logarithmic axis: llm.c's published figures for CPUs and GPUs, and the first and best rungs of recorded ladders.",
)

# %%
for name in ("large_batch", "megatron"):
    with open(f"../data/reference/{name}.csv", encoding="utf-8") as file:
        for row_ in DictReader(file):
            print(", ".join(f"{key}: {value}" for key, value in row_.items()))

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("12")

# %% [markdown]
r"""
## Exercises

1. `python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out mine.json --plot mine.png`. Which rung's prediction is
   furthest off? Find the term by running it again with twice the batch. *Check*: your explanation predicts the third
   batch size to 20%.
2. Put the rungs in another order, fused AdamW second. Does its factor change? *Check*: the product of all factors does
   not.
3. Pad with rows drawn from N(0, 0.02²) in place of zeros. *Check*: the exact law of P still holds; say what differs in
   the first ten steps.
4. Write the padded rows out again: a function that undoes `pad_vocabulary`. *Check*: logits of the real ids are equal
   before and after.

## Further reading

- NVIDIA, *Deep Learning Performance: Matrix Multiplication Background User's Guide*: tile and wave quantisation, alignment.
- Micikevicius et al. 2018, *Mixed Precision Training*, §3.1: master weights.
- Loshchilov and Hutter 2019, *Decoupled Weight Decay Regularization*, algorithm 2: AdamW.
- Williams, Waterman and Patterson 2009, *Roofline*, CACM 52(4).
- PyTorch recipes, *Reducing torch.compile cold start compilation time with regional compilation*: one block in place of
  the whole model.
"""
