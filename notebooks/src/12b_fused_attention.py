# %% [markdown]
r"""
# 12b · Fused attention: which kernel you get, and what it saves

In chapter 12 we built flash attention in Python, to understand it. A training run uses PyTorch's own kernels, which do the
same in one piece: they are *fused*. One line calls them, and GPT-2 in this course has used it since chapter 05
(`flash=True`).

This line does not say which kernel it runs, and with some options it silently goes back to the T × T matrix. So we first
find out what we get. Then we measure what it saves: memory, time, and the peak of a whole training step.
"""

# %%
#| default_exp labs.kernels.flash
import math
import warnings
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from course.figures import flash_attention as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.labs.kernels.flash import flash_attention
from nanogpt.labs.roofline.memory import memory_by_category, saved_bytes
from nanogpt.model import GPT, GPTConfig, attention_weights
from nanogpt.precision import why_not
from nanogpt.labs.roofline.clock import faster, measure

# %% tags=["nbval-ignore-output"]
device, g = pick_device(), seed_everything(0)
scale = pick_scale(device)
half = torch.float16 if why_not("bf16", device) else torch.bfloat16  # a GPU before Ampere has no bfloat16
dtype = half if device.type == "cuda" else torch.float32
print(f"device {device}, scale {scale}; times are measured in {str(dtype)[6:]}")

# %% [markdown]
r"""
*Predict.* Replace `None` by your guesses. On a CPU, dropout makes PyTorch's attention fall back to the manual way: how many
T × T matrices does it then keep for each head? How long does a forward and backward pass of fused attention take on your
device at a long context, compared with chapter 04's? And how much memory does a whole training step of GPT-2 small need at
its peak?
"""

# %%
predict("12b.1", "T×T matrices a head that attention with dropout keeps on a CPU", guess=None)
predict("12b.2", "time of fused attention at a long context, manual = 1", guess=None)
predict("12b.3", "peak of a step of GPT-2 small, 4 × 1024 tokens, float32", guess=None, unit="GiB")

# %% [markdown]
r"""
## Which kernel did I get?

The one line is `F.scaled_dot_product_attention`, SDPA for short. It has several *backends*: flash, memory-efficient, cuDNN,
and *math*. The first three are fused. *math* is the manual version, step by step. SDPA chooses by device, dtype, shape and
options, and does not say what it chose.

But we can find out. Autograd notes for each result which operation made it, and the name of this operation contains the
kernel. On a GPU, SDPA pads heads whose width is no multiple of 8 and cuts the result back, so we look behind such a cut.
"""

# %%
#| export
#| blank sdpa_backend: grad_fn.name() of the result; behind a cut, look at next_functions[0][0]
import torch.nn.functional as F
from torch import Tensor


def sdpa_backend(q: Tensor, k: Tensor, v: Tensor, **options) -> str:
    """The kernel that F.scaled_dot_product_attention chooses when it trains on these tensors, such as "Flash".

    It stands in the name of the result's operation, between ScaledDotProduct and Attention ("fused" if nothing stands
    there). Every other name means "math": step by step, with T×T in memory. The name of a cut begins with Slice. The
    tensors (B, n_head, T, d) need not ask for gradients, and are left as they are. options: as for that function.
    """
    q, k, v = (z.detach().requires_grad_() for z in (q, k, v))
    node = F.scaled_dot_product_attention(q, k, v, **options).grad_fn
    while node.name().startswith("Slice"):  # a head that was padded for the kernel is cut back
        node = node.next_functions[0][0]
    if not node.name().startswith("ScaledDotProduct"):
        return "math"  # several operations in a row, each with a name of its own
    return node.name().removeprefix("ScaledDotProduct").split("Attention")[0] or "fused"


# %% tags=["nbval-ignore-output"]
def random_qkv(T, heads=2, d=64, **options):
    """q, k, v, each (1, heads, T, d), that ask for gradients."""
    qkv = torch.randn(3, 1, heads, T, d, generator=g).to(**options)
    return [z.requires_grad_() for z in qkv.unbind(0)]


for each in (torch.float32, half):
    qkv = random_qkv(64, device=device, dtype=each)
    print(f"{device.type}, {str(each)[6:]}: {sdpa_backend(*qkv, is_causal=True)}")

# %% [markdown]
r"""
What you see depends on your device. On a GPU, float32 gets "Efficient", because the flash kernel takes only 16 bits. An H100
says "Cudnn" in 16 bits (recorded in `data/measurements/h100-day.json`). There, and on a B200, PyTorch prefers cuDNN's kernel if cuDNN is newer
than 9.15.0. PyTorch's wheels have brought such a cuDNN since release 2.11 (`check_prefer_cudnn_attention` in PyTorch's `sdp_utils.cpp`; print
`torch.backends.cudnn.version()`). So "flash attention" on an A100 and on an H100 can be two different programs. A T4 gets "Efficient" always, since the flash kernel
wants compute capability 8.0. All of these need memory that is linear in T.

## Options that bring the matrix back

Now we stay on the CPU, where everybody sees the same. Which of these options keep the flash kernel?
"""

# %%
T = 1024
q, k, v = random_qkv(T)
past = torch.ones(T, T, dtype=torch.bool).tril()
cases = {
    "is_causal=True": dict(is_causal=True),
    "a boolean mask": dict(attn_mask=past),
    "a learned bias": dict(attn_mask=torch.zeros(T, T, requires_grad=True)),
    "dropout_p=0.1": dict(is_causal=True, dropout_p=0.1),
}
for name, options in cases.items():
    kept = saved_bytes(partial(F.scaled_dot_product_attention, q, k, v, **options)) / (2 * T * T * 4)
    print(f"{name:16} {sdpa_backend(q, k, v, **options):6} keeps {kept:.2f} T×T matrices a head")
answer("12b.1", math.floor(kept))

# %% [markdown]
r"""
Only the first two keep the flash kernel. (On CUDA only the first does: the flash kernel there takes no mask at all, and the same line gets another kernel.) Its
0.25 are q, k, v and the output, which have T rows of 64. A mask adds 0.5: one
T × T matrix that both heads share. A bias that learns needs a gradient, and this kernel has none for it. With dropout, the
CPU falls back to *math*, and more than three T × T matrices a head are kept again, without a warning. On CUDA the flash
kernel can do dropout. It keeps the seed of its random numbers, and draws the same numbers again in the backward pass.

If your training script counts on the memory, forbid *math*. Then a silent fallback becomes an error, and PyTorch says why
each fused kernel refused.
"""

# %% tags=["nbval-ignore-output"]
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]
with sdpa_kernel(FUSED), warnings.catch_warnings(record=True) as reasons:
    warnings.simplefilter("always")
    F.scaled_dot_product_attention(q, k, v, is_causal=True)
    try:
        F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1)
    except RuntimeError as error:
        print("dropout:", str(error).split(".")[0])
for reason in reasons:
    print("  ", str(reason.message).split(" (Triggered")[0])

# %% [markdown]
r"""
**Masks.** `is_causal=True` and a boolean triangle give the same output. But the mask is a T × T matrix itself, and the
kernel must read it to know what it says, so it cannot skip the future. We compare both on your device, with the intervals of
chapter 09.
"""

# %% tags=["nbval-ignore-output"]
T = {"ci": 256, "laptop": 2048, "gpu": 8192}[scale]
q, k, v = (z.detach() for z in random_qkv(T, device=device, dtype=dtype))
past = torch.ones(T, T, dtype=torch.bool, device=device).tril()
masked = partial(F.scaled_dot_product_attention, q, k, v, attn_mask=past)
causal = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True)
assert torch.allclose(causal(), masked(), atol=1e-5 if dtype == torch.float32 else 0.03), "other outputs"
print(f"T={T}: without the mask it is {faster(masked, causal, device, pairs=10)} as fast")

# %% [markdown]
r"""
If several documents share a row, none should see the others, and such a mask is different for each row. For this PyTorch has
`flex_attention`. It takes the mask as a function of positions and compiles a kernel that skips the tiles where the function
is false everywhere.

**A trap.** When a model writes with a cache (chapter 08), one new query meets many keys. Here are five keys with equal
scores, so the result is the plain mean of the values that the query saw. The values are 0, 1, 2, 3 and 4.
"""

# %%
query, keys = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 5, 4)
values = torch.arange(5.0).view(1, 1, 5, 1).expand(1, 1, 5, 4)
for name, options in {
    "is_causal=True": dict(is_causal=True),
    "causal_lower_right": dict(attn_mask=causal_lower_right(1, 5)),
}.items():
    y = F.scaled_dot_product_attention(query, keys, values, **options)
    print(f"{name:18} mean of the values it saw: {y[0, 0, 0, 0].item():.1f}")

# %% [markdown]
r"""
The mean of all five is 2. `is_causal=True` puts the triangle at the *top left*, as if the query were at position 0, so the
newest token sees only the oldest one. `causal_lower_right` puts it at the other end. Chapter 08's cache makes its own mask,
and chapter 12's `flash_attention` refuses unequal shapes.

## Slopes 2 and 1

How much memory does all this save? We measure what is kept for the backward pass, and also the *peak*, the most that both
passes need at any moment. On a GPU, the allocator remembers its peak. On a CPU, PyTorch's profiler notes every allocation
and every release, and we add them up.
"""

# %%
#| export labs.roofline.memory
#| blank memory_levels: profile the call with memory; sort the "[memory]" events by time and add up their bytes
import os
from collections.abc import Callable
from itertools import accumulate

import torch
from torch.profiler import ProfilerActivity, profile


def memory_levels(call: Callable[[], object]) -> list[tuple[int, int]]:
    """(ns, bytes above the level at the start) after each allocation and release on the CPU while `call` runs.

    The "[memory]" events are in `prof.profiler.kineto_results.events()`, which PyTorch does not document: each has
    name(), start_ns() and nbytes(), and releases are negative. (`prof.events()` lacks those that belong to an
    operation.) KINETO_LOG_LEVEL=99 in os.environ keeps the profiler quiet.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself on stderr otherwise
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as prof:
        call()
    changes = [event for event in prof.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes.sort(key=lambda event: event.start_ns())
    levels = accumulate(event.nbytes() for event in changes)
    return [(event.start_ns(), level) for event, level in zip(changes, levels)]


# %%
#| export labs.roofline.memory
def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Bytes that `call` needs at most, above what is allocated when it starts. On cuda and cpu; ValueError elsewhere."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        raise ValueError(f"PyTorch keeps no peak of memory on {device.type}; measure on cuda or cpu")
    return max((level for _, level in memory_levels(call)), default=0)


# %%
print([level for _, level in memory_levels(lambda: torch.zeros(1024) + torch.ones(1024))], "bytes")

# %% [markdown]
r"""
Three arrays of 4,096 bytes appear, the zeros, the ones and their sum, and all three are released again. The peak is 12,288.

*Predict.* We double T, up to the last length. By which factor do the kept bytes grow, and by which factor does the peak? We
print the *slope* on logarithmic scales between the two largest T: 1 means twice as much, 2 means four times as much.
"""


# %%
def manual(q, k, v):
    return attention_weights(q, k) @ v


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def both_passes(way, tensors):
    way(*tensors).sum().backward()


def slope(ys):
    return math.log(ys[-1] / ys[-2]) / math.log(Ts[-1] / Ts[-2])


ways = {"manual": manual, "our tiles": flash_attention, "SDPA": sdpa}
Ts = {"ci": [128, 256, 512], "laptop": [256, 512, 1024, 2048], "gpu": [1024, 2048, 4096, 8192]}[scale]
assert len(Ts) > 1 and Ts[-1] >= 256, f"{Ts}: a slope needs two lengths, the last at least 256"

# %% tags=["nbval-ignore-output"]
counted = device if device.type == "cuda" else torch.device("cpu")
kept, peak = {}, {}
for name, way in ways.items():
    kept[name], peak[name] = [], []
    for T in Ts:
        tensors = random_qkv(T, device=counted, dtype=dtype)
        both_passes(way, tensors)  # libraries take their workspace once
        for z in tensors:
            z.grad = None
        kept[name].append(saved_bytes(partial(way, *tensors)))
        peak[name].append(peak_memory(partial(both_passes, way, tensors), counted))
    print(
        f"{name:10} keeps {kept[name][-1] / 2**20:6.1f} MiB at T={Ts[-1]}, slope {slope(kept[name]):.2f};",
        end=" ",
    )
    print(f"peak {peak[name][-1] / 2**20:6.1f} MiB, slope {slope(peak[name]):.2f}")
for name in ("our tiles", "SDPA"):
    assert abs(slope(kept[name]) - 1) < 0.01, f"{name}: what it keeps is not linear in T"
assert slope(kept["manual"]) > 1.3, "the manual version keeps T×T matrices, so its slope tends to 2"

# %% [markdown]
r"""
The manual version keeps T × T matrices and also q, k and v, so its slope is a little below 2. The other two keep only rows.
A peak with a slope below 1 contains scratch memory of a fixed size, a few tiles for each thread; in longer texts the rows
outgrow it.

Now the time of both passes. *Predict* the slopes. Flash attention skips the future, but T²/2 pairs of tokens remain.
"""

# %% tags=["nbval-ignore-output"]
seconds = {name: [] for name in ways}
for T in Ts:
    tensors = random_qkv(T, device=device, dtype=dtype)
    for name, way in ways.items():
        if name == "our tiles" and device.type == "cuda" and T > 2048:
            continue  # about 50 small kernels for each tile: a hundred thousand starts at T = 8192
        timing = measure(partial(both_passes, way, tensors), device, repeats=5, warmup=1)
        seconds[name].append(min(timing.times))  # what the machine can do, whoever else is on it
for name in ways:
    times = ", ".join(f"{1e3 * s:.1f}" for s in seconds[name])
    print(f"{name:10} {times} ms for T = {Ts[: len(seconds[name])]}")
print(f"slopes at the end: manual {slope(seconds['manual']):.2f}, SDPA {slope(seconds['SDPA']):.2f}")
answer("12b.2", seconds["SDPA"][-1] / seconds["manual"][-1])

# %% tags=["nbval-ignore-output"]
scaled = {
    "kept (MiB)": {name: [y / 2**20 for y in ys] for name, ys in kept.items()},
    "peak (MiB)": {name: [y / 2**20 for y in ys] for name, ys in peak.items()},
    "time (ms)": {name: [1e3 * y for y in ys] for name, ys in seconds.items()},
}
show(
    figures.slopes(Ts, scaled),
    alt="Log plots against T of memory kept, peak memory and time, with dotted lines of slope 1 and 2: memory of the manual version rises with slope 2, that of tiles and SDPA with slope 1 or less.",
)

# %% [markdown]
r"""
In the two left panels the lines have different slopes: flash attention changes how memory *grows*. (In the first panel our
tiles lie under SDPA, since both keep the same.) Time is different. Both ways do work for each pair of tokens, so for long
texts both must come to slope 2, and flash attention changes time only by a *factor*. At short lengths, constant costs
flatten the lines. A slope above 2 can come from matrices that no cache can hold any more, and whose memory the system must
provide anew each time (chapter 09b).

Our tiles and SDPA are the same algorithm. Ours is slower because it pays for a Python call and several small kernels in each
tile.

How is it with short texts? There is little to save, and recomputing costs the same share as before. We time the forward pass
alone and both passes, at a short length and at a longer one.
"""

# %% tags=["nbval-ignore-output"]
for T in (64, Ts[-1] // 4):
    tensors = random_qkv(T, device=device, dtype=dtype)
    forward = faster(partial(manual, *tensors), partial(sdpa, *tensors), device, pairs=10)
    both = [partial(both_passes, way, tensors) for way in (manual, sdpa)]
    print(
        f"T={T:4}: SDPA is {forward} as fast forward, {faster(*both, device, pairs=10)} with the backward pass"
    )

# %% [markdown]
r"""
On our two CPU cores the fused kernel won at both lengths. A factor below 1 means that it costs this machine more than it saves at this length. If it is higher for the
forward pass alone, recomputing is a likely reason. Such a result belongs to one device, one dtype and one size: measure
yours before you believe a rule.

## The peak of a whole step

Chapter 09b listed parameters, gradients, moments and activations. They are not all in use at the same moment, because
gradients appear while activations go. So when does a step need the most memory: at the end of the forward pass, in the loss,
later in the backward pass, or during the update? With `memory_levels` we can watch a step of a small model. Its logits and
log-probabilities are *tables* of N × V numbers, for N tokens and V words.
"""

# %%
B, T = 2, 128
config = GPTConfig(block_size=T, vocab_size=4096, n_layer=4, n_head=4, n_embd=128)
model, idx = GPT(config, generator=g), torch.randint(config.vocab_size, (2, B, T), generator=g)
optimizer = torch.optim.AdamW(model.parameters())


def step():
    model(*idx)[1].backward()
    optimizer.step()
    optimizer.zero_grad()


def levels_of(config, B, T):
    """Bytes in use before a float32 step with AdamW, at the end of its forward pass, and in the loss's backward pass."""
    memory, table = memory_by_category(config, B, T), 4 * B * T * config.vocab_rows
    before = memory["parameters"] + memory["optimizer"]
    return before, before + memory["activations"], before + memory["activations"] + 2 * table


# %% tags=["nbval-ignore-output"]
step()  # makes the moments
before, forward, loss = levels_of(config, B, T)
levels = memory_levels(step)
show(
    figures.memory_levels(levels, before, {"end of forward": forward, "in the loss": loss}),
    alt="Memory during one step: it climbs through the forward pass, jumps at the start of the backward pass, then falls. Two predicted levels are dotted.",
)
share = (before + max(level for _, level in levels)) / loss
print(f"the peak is {share:.4f} of the level expected in the loss, {loss / 2**20:.2f} MiB")
assert 0.98 < share < 1.05, "the peak is elsewhere: is the vocabulary much larger than n_embd?"

# %% [markdown]
r"""
The axis begins at what is always in use, parameters and moments. The forward pass climbs layer by layer; the high step at
its end is the logits, and the first needle appears when the log-probabilities are computed from them. Then the logits go,
and the log-probabilities stay, as part of the activations: one table.

The second needle is the peak. It is in the loss, at the beginning of the backward pass, which adds two more tables: the
gradient of the log-probabilities, and from it the gradient of the logits. Then the memory falls, since each layer releases
its activations as soon as it has used them.

So we get the peak of GPT-2 from chapter 09b's activations and two tables:
"""

# %%
for B in (1, 4, 16):
    table = 4 * B * 1024 * 50257
    layers = memory_by_category(GPTConfig(), B, 1024)["activations"] - table
    peaks = [levels_of(GPTConfig(flash=flash), B, 1024)[2] / 2**30 for flash in (False, True)]
    print(f"B={B:2}: peak {peaks[0]:4.1f} GiB manual, {peaks[1]:4.1f} GiB with flash;", end=" ")
    print(f"three tables {3 * table / 2**30:.1f}, activations of the layers {layers / 2**30:.1f}")
answer("12b.3", levels_of(GPTConfig(), 4, 1024)[2] / 2**30)

# %% [markdown]
r"""
One of these predictions was tried on an H100. For B=16 and manual attention we predict 28.7 GiB, and the measured peak was 28.70 GiB (`h100.json`).

With flash attention, the three tables of the loss take about as much as the activations of all twelve layers. (A large model
with a very small batch has its peak elsewhere, in the update, where all gradients exist.) Gradient checkpointing, which
drops activations and computes them again, does not touch the tables. A loss that is computed in pieces does; you can try it
at the end.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("12b")

# %%
checkpoint("12b")

# %% [markdown]
r"""
## Exercises

The exercises of chapter 12 belong to this chapter as well: 12-3 is about `is_causal`, 12-4 about what attention keeps.

To explore:

1. Compute the loss in four pieces of the batch, with `lm_head` and `cross_entropy` inside
   `torch.utils.checkpoint.checkpoint`. *Check:* the same loss and gradients to 1e-6; `peak_memory` falls by about three
   quarters of the three tables.
2. Repeat the short texts with 1, 4 and 16 sequences. *Check:* on a GPU, does the gain follow the number of blocks that
   chapter 12 counted?
3. Write a mask for two documents in one row for `flex_attention`. *Check:* it gives the same output as SDPA with a boolean
   mask; which is faster, and from which length on?

## Further reading

- PyTorch documentation, [`torch.nn.attention.sdpa_kernel`](https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html) and [`torch.nn.functional.scaled_dot_product_attention`](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html): backends
  and their conditions.
- Hugging Face transformers, pull request 48163, [*Prefer the cuDNN SDPA backend on Hopper*](https://github.com/huggingface/transformers/pull/48163), 2026, closed by
  its author: PyTorch does it already, and which cuDNN it depends on.
- J. Dong et al., [*Flex Attention: A Programming Model for Generating Optimized Attention Kernels*](https://arxiv.org/abs/2412.05496), 2024: masks as functions.
- PyTorch documentation, [*Understanding CUDA Memory Usage*](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html): who holds the memory at the peak.
"""
