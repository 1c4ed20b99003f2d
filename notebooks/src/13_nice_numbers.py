# %% [markdown]
r"""
# 13 · Nice numbers

GPT-2 has 50,257 tokens, an odd number. Training it with 50,304 rows is more work on paper. Whether it is faster is a
question to a machine, and so is every step of the chapters before: TF32, bfloat16, compilation, flash attention. Here
they stand on top of each other, each predicted from bytes and FLOPs first, then measured, with the loss beside the
time so that no speed hides a wrong result.
"""

# %%

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F

from course.notebook import checkpoint, show
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.roofline import matmul_flops, measure
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
2. Which of TF32, bfloat16, compile, flash attention, nice numbers, a fused AdamW, bfloat16 weights gains most on your
   machine? Which gains nothing? Write your order down.
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
Loads of 16 bytes need every row of the logits to start at a multiple of 16 bytes, which is 8 numbers in bfloat16 and 4
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
a visible share of the whole, in the faster of float32 and bfloat16. The widths take turns, so that a slow minute hits
all of them; each time is the best of five medians.
"""

# %%
dtype = max((torch.float32, torch.bfloat16), key=lambda t: matmul_flops(device, t, 512))
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
inner, widths = (4096, range(960, 1345, 8)) if scale == "gpu" else (512, range(96, 200, 2))
sweep = seconds_by_width(widths, rows, inner)
rates = {n: 2 * rows * inner * n / seconds / 1e9 for n, seconds in sweep.items()}
fig, ax = plt.subplots(figsize=(6.5, 2.8))
ax.plot(rates.keys(), rates.values(), ".-")
step = 64 if scale == "gpu" else 16
for n in range(widths[0], widths[-1] + 1, step):
    ax.axvline(n, c="gray", lw=0.5, ls=":" if n % (2 * step) else "-")
ax.set(
    xlabel="columns",
    ylabel=f"GFLOP/s, {str(dtype)[6:]}",
    ylim=(0, None),
    title="a width sweep, measured here",
)
show(
    fig,
    alt="Measured GFLOP/s of a matrix product against its width, with powers of two and their multiples marked.",
)
near = max(rates, key=rates.get)
print(f"fastest width: {near}; slowest reaches {min(rates.values()) / max(rates.values()):.2f} of its rate")

# %% [markdown]
r"""
Where the curve has teeth, their width is the tile of this machine's library. Now waves: 1, 2, 3, … tiles of 128 rows,
dealt to a GPU's SMs or a CPU's threads. The formula knows how many there are, and nothing else.
"""

# %% tags=["nbval-ignore-output"]
if device.type == "cuda":
    workers = torch.cuda.get_device_properties(device).multi_processor_count
else:
    workers = torch.get_num_threads()
tiles = range(1, 4 * workers + 1, max(1, workers // 16))
w = torch.randn(128, inner, generator=g).to(device, dtype)
inputs = [torch.randn(128 * n, inner, generator=g).to(device, dtype) for n in tiles]
times = [measure(lambda a=a: a @ w.T, device).median for a in inputs]
speed = [n / seconds for n, seconds in zip(tiles, times)]
fig, ax = plt.subplots(figsize=(6.5, 2.6))
ax.plot(tiles, [v / max(speed) for v in speed], ".-", label="measured, share of the best")
ax.plot(tiles, [useful_share(128 * n, 128, sms=workers) for n in tiles], "--", label="formula")
ax.set(xlabel=f"tiles, dealt to {workers} workers", ylabel="share", ylim=(0, 1.1))
ax.legend()
show(
    fig,
    alt="Tiles a second as a share of the best against the number of tiles, beside wave quantisation's sawtooth.",
)

# %% [markdown]
r"""
Where the measured curve has no sawtooth, the library cuts the work otherwise than we did, or lets workers share a tile.

The same question for the other two numbers one may choose. First the size of a head: heads share C, so their number
changes no FLOP of the products, only width and shape of the tiles.
"""

# %% tags=["nbval-ignore-output"]
T, C = {"ci": (64, 192), "laptop": (256, 192), "gpu": (1024, 768)}[scale]
for d in (16, 24, 32, 48, 64, 96):
    q = torch.randn(1, C // d, T, d, generator=g).to(device, dtype)
    heads = measure(lambda q=q: F.scaled_dot_product_attention(q, q, q, is_causal=True), device, repeats=20)
    print(f"{C // d:2} heads of {d:2}: {1e6 * heads.median:.0f} µs")

# %% [markdown]
r"""
Then the batch. One token reads the whole matrix for one row of output; from some size on, a token costs what its
arithmetic costs.
"""

# %% tags=["nbval-ignore-output"]
w = torch.randn(4 * C, C, generator=g).to(device, dtype)
for tokens in (1, 8, 63, 64, 65, 256, 1024):
    x = torch.randn(tokens, C, generator=g).to(device, dtype)
    seconds = measure(lambda x=x: x @ w.T, device, repeats=20).median
    print(f"{tokens:4} tokens: {1e9 * seconds / tokens:.0f} ns a token")

# %% [markdown]
r"""
## Rows that stand for no token

To pad, append rows to `wte`. They start at zero here, and the first 50,257 rows stay as they were.
"""

# %%
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
ids = torch.randint(500, (4, 33), generator=seed_everything(2))
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
just seen, a small gradient step can only lower that row's mean logit, weighted by p. No input looks the row up, so this is all of
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
print(f"P falls from {curve['P'][0]:.4f} to {curve['P'][-1]:.4f}")
print(f"losses over real ids differ by less than 0.02 at each step: {gap < 0.02}")
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
## Checkpoint
"""

# %%
checkpoint("13")

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
- *The GNU C Library* manual, §3.2.3.9, Malloc Tunable Parameters.
- PyTorch recipes, *Reducing torch.compile cold start compilation time with regional compilation*: one block in place of
  the whole model.
"""
