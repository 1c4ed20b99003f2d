# %% [markdown]
r"""
# 13 · Nice numbers

GPT-2 has 50,257 tokens, an odd number. Give its table 50,304 rows and there is more work on paper: 47 rows that stand
for nothing. On a GPU a step can nevertheless get faster. Two reasons are usually given, tiles and alignment. Here both
are put into a formula, then this machine is asked, and at the end the rows that stand for no token are shown to do no
harm.
"""

# %%
import torch
import torch.nn.functional as F

from course.figures import nice_numbers as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.roofline import measure
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.precision import best_precision

device = pick_device()
scale = pick_scale(device)
g = seed_everything(0)

# %%
show(
    figures.tiles((257, 256), tile=128),
    alt="A 257 by 257 matrix needs nine tiles of 128 by 128, five of them nearly empty; 256 by 256 needs four full ones.",
)

# %% [markdown]
r"""
A matrix product is computed in tiles of fixed size. One row too many costs a row of tiles, and a tile costs the same
full or empty.

## Predict
"""

# %%
predict("13.1", "share of the tiles' work that 50,257 columns waste", guess=None, unit="%")
predict("13.2", "time of 50,257 columns over that of 50,304, here", guess=None, unit="×")
predict("13.3", "what the added rows add to the first loss", guess=None, unit="nats")

# %% [markdown]
r"""
## What a formula says

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
answer("13.1", 100 * (1 - useful_share(16384, 50257)))

# %% [markdown]
r"""
By this formula 50,257 wastes a thousandth. Where it is slower by more, tiles are not the reason. *Alignment* may be:
loads of 16 bytes need every row of the logits to start at a multiple of 16 bytes, which is 8 numbers of two bytes and 4
of four. 50,257 is odd.
"""

# %%
for n in (50257, 50264, 50304):
    power = (n & -n).bit_length() - 1
    print(f"{n} = {n >> power} · 2^{power}: in bfloat16 rows start at multiples of {2 << power} bytes")
show(
    figures.waves(range(1, 700), [useful_share(128 * n, 128, sms=132) for n in range(1, 700)], 132),
    alt="A sawtooth: the used share climbs to one at each multiple of 132 tiles, drops by half after the first, and the drops shrink.",
)

# %% [markdown]
r"""
## What this machine says

The head's product, 50,257 columns beside its neighbours, in the precision in which this machine would train. The widths
take turns, so that a slow minute hits all of them; each time is the best of several medians.
"""

# %%
rows, width, inner = {"ci": (64, 128, 512), "laptop": (256, 192, 512), "gpu": (16384, 768, 4096)}[scale]
dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(best_precision(device), torch.float32)


def seconds_by_width(widths, rows, inner, product=torch.matmul, rounds=3):
    """{width: seconds of (rows, inner) @ (inner, width)}, the best of `rounds` medians taken in turn."""
    a = torch.randn(rows, inner, device=device, dtype=dtype)
    weights = {n: torch.randn(n, inner, device=device, dtype=dtype) for n in widths}
    best = dict.fromkeys(widths, float("inf"))
    for _ in range(rounds):
        for n, w in weights.items():
            timing = measure(
                lambda w=w: product(a, w.T), device, repeats=3 if scale != "gpu" else 20, warmup=1
            )
            best[n] = min(best[n], timing.median)
    return best


# %% tags=["nbval-ignore-output"]
head = seconds_by_width([50256, 50257, 50258, 50264, 50272, 50304], rows, width)
print(f"{str(dtype)[6:]} on {device.type}")
for n, seconds in head.items():
    print(f"{n} columns: {1e3 * seconds:.3f} ms, {seconds / head[50304]:.2f}× the time of 50304")
answer("13.2", head[50257] / head[50304])

# %% [markdown]
r"""
Where 50,257 and 50,258 are both slow and 50,264 = 8 · 6283 is fast, alignment decides. Where all six agree, this
library does not care, and padding gains nothing here.

On a GPU the compiler of chapter 11 knows this trick: Inductor pads a product whose sides are not aligned, if a short
trial says that it pays (`shape_padding`, on by default; GPUs only). So on the ladder of chapter 14, where compiling
comes first, part of what nice numbers can gain is already taken. The next cell measures what is left.
"""

# %% tags=["nbval-ignore-output"]
if device.type == "cuda":
    compiled = seconds_by_width([50257, 50304], rows, width, torch.compile(torch.matmul, dynamic=False))
    print(f"compiled: 50257 takes {compiled[50257] / compiled[50304]:.2f}× the time of 50304")
    print(f"eager:    50257 takes {head[50257] / head[50304]:.2f}× the time of 50304")
else:
    print(f"Inductor pads no product on {device.type}: compiled or not, the table above holds")

# %% [markdown]
r"""
A sweep in small widths, where one tile more is a visible share of the whole.
"""

# %% tags=["nbval-ignore-output"]
widths = range(960, 1345, 8) if scale == "gpu" else range(96, 200, 2)
sweep = seconds_by_width(widths, rows, inner)
rates = {n: 2 * rows * inner * n / seconds / 1e9 for n, seconds in sweep.items()}
show(
    figures.sweep(rates, str(dtype)[6:], step=64 if scale == "gpu" else 16),
    alt="Measured GFLOP/s of a matrix product against its width, with multiples of a power of two marked.",
)
fastest, slowest = max(rates, key=rates.get), min(rates, key=rates.get)
print(f"fastest width: {fastest}; {slowest} reaches {rates[slowest] / rates[fastest]:.2f} of its rate")

# %% [markdown]
r"""
Where the curve has teeth, their width is the tile of this machine's library.

Now waves: 1, 2, 3, … tiles of 128 rows, dealt to a GPU's SMs. The formula knows how many SMs there are, and nothing
else. A CPU of a few cores has no waves worth a plot: its threads share the rows of one product.
"""

# %% tags=["nbval-ignore-output"]
if device.type == "cuda":
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    counts = range(1, 4 * sms + 1, max(1, sms // 16))
    rows_of = torch.randn(128 * counts[-1], inner, device=device, dtype=dtype)  # one buffer, sliced
    w = torch.randn(128, inner, device=device, dtype=dtype)
    times = [measure(lambda n=n: rows_of[: 128 * n] @ w.T, device).median for n in counts]
    formula = [useful_share(128 * n, 128, sms=sms) for n in counts]
    show(
        figures.waves(counts, formula, sms, measured=[n / t for n, t in zip(counts, times)]),
        alt="Tiles a second as a share of the best against the number of tiles, beside wave quantisation's sawtooth.",
    )
    del rows_of
else:
    print(f"no multiprocessors on {device.type}: the sawtooth above is what a GPU of 132 would show")

# %% [markdown]
r"""
Where a measured curve has no sawtooth, the library cuts the work otherwise than we did, or lets workers share a tile.

The same question for the other numbers that one may choose. Heads share C, so their number changes no FLOP of the
products, only width and shape of the tiles. And the batch: one token reads a whole matrix for one row of output; from
some size on, a token costs what its arithmetic costs.
"""

# %% tags=["nbval-ignore-output"]
T, C = {"ci": (64, 192), "laptop": (256, 192), "gpu": (1024, 768)}[scale]
for d in (n for n in (16, 24, 32, 48, 64, 96) if C % n == 0):
    q = torch.randn(1, C // d, T, d, device=device, dtype=dtype)
    heads = measure(lambda q=q: F.scaled_dot_product_attention(q, q, q, is_causal=True), device, repeats=20)
    print(f"{C // d:2} heads of {d:2}: {1e6 * heads.median:.0f} µs")
w = torch.randn(4 * C, C, device=device, dtype=dtype)
for tokens in (1, 8, 63, 64, 65, 256, 1024):
    x = torch.randn(tokens, C, device=device, dtype=dtype)
    seconds = measure(lambda x=x: x @ w.T, device, repeats=20).median
    print(f"{tokens:4} tokens: {1e9 * seconds / tokens:.0f} ns a token")

# %% [markdown]
r"""
## Rows that stand for no token

`GPTConfig.padded_vocab_size` is the number of rows that `wte`, and so the head, really has. Chapter 05 built it in: the
first 50,257 rows get the numbers that they would get anyway, the added ones start at zero, and `logits` come back without
them. Only the training loss sees all rows.
"""

# %%
vocab_size, multiple = 500, 128
tiny = GPTConfig(block_size=32, vocab_size=vocab_size, n_layer=2, n_head=2, n_embd=64)
full = -(-vocab_size // multiple) * multiple
added = full - vocab_size
assert added, f"{vocab_size} is a multiple of {multiple} already; choose a vocab_size with something to pad"
padded_config = GPTConfig(**(vars(tiny) | {"padded_vocab_size": full}))
plain, padded = GPT(tiny, seed_everything(1)), GPT(padded_config, seed_everything(1))
print("rows of wte:", len(plain.transformer.wte.weight), "and", len(padded.transformer.wte.weight))
print("GPT-2:", num_params(GPTConfig()), "and", num_params(GPTConfig(padded_vocab_size=50304)), "parameters")

# %%
ids = torch.randint(vocab_size, (4, 33), generator=seed_everything(2))
x, y = ids[:, :-1], ids[:, 1:]
every_row = []  # the head's own output, added rows included
hook = padded.lm_head.register_forward_hook(lambda module, inputs, output: every_row.append(output))
with torch.no_grad():
    (a, loss_plain), (b, loss_padded) = plain(x, y), padded(x, y)
hook.remove()
assert torch.allclose(a, b, atol=1e-6), "padding must not change the logits of real ids"
P = every_row[0].softmax(-1)[..., vocab_size:].sum(-1)  # (B, T)
print(f"loss {loss_plain:.4f} unpadded, {loss_padded:.4f} padded")
print(f"P = {P.mean():.4f}, the share of added rows {added}/{full} = {added / full:.4f}")
answer("13.3", loss_padded - loss_plain)

# %% [markdown]
r"""
Real logits are untouched, yet the loss rises a little: softmax now divides by a sum with more terms. If P is the
probability that the model gives to all added rows together, then at every position

loss over all rows = loss over real ids − ln(1 − P).

This is exact, and the extra term is never negative. So a padded model cannot look better than it is.
"""

# %%
apart = abs(loss_padded - (loss_plain - torch.log1p(-P).mean()))
assert apart < 1e-5, f"the law is exact, but its two sides differ by {apart:.1e}"
print(f"the two sides differ by less than 1e-5: {apart < 1e-5}")

# %% [markdown]
r"""
What does training do to P? The gradient of the loss by an added row is the mean of p·x over positions, with x the
final hidden state: softmax's "p − 1" never occurs, because no target is ever that row. So on the hidden states it has
just seen, a small gradient step can only lower that row's mean logit, weighted by p. No input looks the row up, so this is all of
its gradient. A later step with other hidden states can raise P for a while; it has no reason to.
"""

# %%
steps, lr = 60, 2e-3
g = seed_everything(2)
data = [  # id r with probability about 1/r
    (vocab_size ** torch.rand(8, 33, generator=g)).long() - 1 for _ in range(steps)
]
real, extra = {"unpadded": [], "padded": []}, {"unpadded": [], "padded": []}
for name, model in (("unpadded", plain), ("padded", padded)):
    adamw = torch.optim.AdamW(model.parameters(), lr=lr)
    for ids in data:
        logits, loss = model(ids[:, :-1], ids[:, 1:])
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        real[name].append(F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item())
        extra[name].append(loss.item() - real[name][-1])  # the mean of −ln(1 − P)

# %%
show(
    figures.padding(real, extra["padded"]),
    alt="Left: two loss curves on top of each other, padded and unpadded. Right: what the added rows add to the loss falls steeply.",
)
gap = max(abs(a - b) for a, b in zip(real["unpadded"], real["padded"]))
print(f"the added rows' part of the loss falls from {extra['padded'][0]:.3f} to {extra['padded'][-1]:.3f}")
print(f"the losses over real ids differ by less than 0.02 at each step: {gap < 0.02}")
fell = extra["padded"][-1] < extra["padded"][0]
assert fell or steps < 20, (
    f"no target is an added row, so {steps} steps should empty them; is lr={lr} too large?"
)

# %% [markdown]
r"""
So padding costs 47 rows of arithmetic and a term in the loss that training removes. What it gains stands on this
machine's page above, and in a whole step on the ladder of chapter 14.
"""

# %% tags=["nbval-ignore-output"]
predictions("13")

# %% [markdown]
r"""
## Checkpoint

Nothing is exported: `padded_vocab_size` is in the package since chapter 05.
"""

# %%
checkpoint("13")

# %% [markdown]
r"""
## Exercises

1. Pad with rows drawn from N(0, 0.02²) in place of zeros. *Check*: the exact law of P still holds; say what differs in
   the first ten steps.
2. Save a padded model with `save_model` and export it with `to_hf`. *Check*: both load, the export has 50,257 rows, and
   logits of the real ids are equal.
3. On a GPU, find the smallest number of columns above 50,257 that is as fast as 50,304. *Check*: its lowest set bit
   says how many bytes the rows are aligned to.

## Further reading

- NVIDIA, *Deep Learning Performance: Matrix Multiplication Background User's Guide*: tile and wave quantisation, alignment.
- A. Karpathy, *Let's reproduce GPT-2 (124M)*, video lecture, 2024: "nice numbers", from 96 ms to 93 ms a step on an A100.
- PyTorch, `torch/_inductor/fx_passes/pad_mm.py`: when the compiler pads.
"""
