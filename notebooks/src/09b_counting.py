# %% [markdown]
r"""
# 09b · Counting: what a step must compute, move and keep

In chapter 09 a training step reached only a part of the machine's peak. Where is the rest lost? To find out, we count. A
step must *compute* something: that takes FLOPs. It must *move* numbers between memory and processor: that takes bandwidth.
And it must *keep* numbers from the forward pass for the backward pass: that takes memory. All three follow from the
model's shape, so we can count them before anything runs.

Then we predict the time of a step from the counts, measure it, and look for the reasons where the two differ. The later
chapters on speed use these counts: each of them makes one of the numbers smaller.
"""

# %%
#| default_exp labs.roofline.work
#| doc labs.roofline.work: What each part of a training step must compute and move, the time that a roofline allows it, and what real kernels reach.
#| doc labs.roofline.memory: What a training step must keep, as predicted and as measured, and what fresh memory costs.
import os
import re
from collections import Counter
from dataclasses import replace

import torch
from torch.profiler import ProfilerActivity, profile

from course.figures import measuring as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.model import GPT, SIZES, GPTConfig, num_params
from nanogpt.labs.roofline.clock import faster, measure_roofline
from nanogpt.model import mfu
from nanogpt.model import step_flops
from nanogpt.device import synchronize

# %% tags=["nbval-ignore-output"]
device = pick_device()
if device.type == "mps":
    print("PyTorch's profiler does not see an Apple GPU; this chapter measures the CPU")
    device = torch.device("cpu")
scale = pick_scale(device)
config = {
    "ci": GPTConfig(block_size=64, vocab_size=1024, n_layer=2, n_head=2, n_embd=64),
    "laptop": GPTConfig(block_size=128, vocab_size=4096, n_layer=4, n_head=4, n_embd=256),
    "gpu": SIZES["gpt2"],
}[scale]
B, T, repeats = {"ci": (2, 64, 10), "laptop": (2, 128, 10), "gpu": (4, 1024, 20)}[scale]
product, copied = {"ci": (256, 32), "laptop": (1024, 256), "gpu": (8192, 1024)}[scale]  # n × n, MiB
gpt2 = SIZES["gpt2"]
print(f"device {device}, scale {scale}, {torch.get_num_threads()} threads")

# %% [markdown]
r"""
## Two operations by hand

We begin with two operations of GPT-2 small, on a batch of 4 × 1024 tokens: N = 4096 tokens of C = 768 numbers each. The
first is the MLP's first layer, `c_fc`. It multiplies the tokens (N × C) by a matrix (C × 4C). The second is the GELU after
it, which reads N × 4C numbers and writes as many. A GELU takes nine operations a number: two multiplications for the
cube, a tanh that we count as one, and six for the rest.

We assume that every operation reads its inputs once from memory, and writes its outputs once. A number in float32 has 4
bytes.
"""

# %%
N, C = 4 * 1024, gpt2.n_embd
c_fc_flops = 2 * N * C * 4 * C  # N × 4C sums of C products
c_fc_bytes = 4 * (N * C + C * 4 * C + 4 * C + N * 4 * C)  # tokens, matrix, bias, result
gelu_flops = 9 * N * 4 * C
gelu_bytes = 4 * 2 * N * 4 * C
for name, flops, nbytes in (("c_fc", c_fc_flops, c_fc_bytes), ("GELU", gelu_flops, gelu_bytes)):
    print(f"{name}: {flops / 1e9:5.2f} GFLOP, {nbytes / 1e6:5.1f} MB, {flops / nbytes:5.1f} FLOP/byte")

# %% [markdown]
r"""
The GELU computes almost nothing, and moves more bytes than the matrix product. On the roofline it lies far to the left.

*Predict.* Now think of the whole step of GPT-2 small on these 4 × 1024 tokens, with the update by AdamW. Which of these moves
the most bytes: the matrix products of the MLPs, their GELUs, the loss, or the optimizer? And how much memory do the
activations take, the numbers that the forward pass keeps for the backward pass?
"""

# %%
predict("09b.1", "what moves most bytes: mlp, gelu, loss or optimizer", guess=None)
predict("09b.2", "activations of GPT-2 small, 4 × 1024 tokens", guess=None, unit="GiB")

# %% [markdown]
r"""
## What a step must move

The rest of the count works the same way. Each part of the step has a name and up to three phases: forward, backward, and
the optimizer's update. For each we note the FLOPs and the bytes.

A linear layer is y = xW + b. Its backward pass gets the gradient of y. From this it computes the gradient of x (it reads
the gradient of y and W, and writes) and the gradient of W (it reads the gradient of y and x, and writes). Each of these is a
product as large as the forward one. So backward takes twice the FLOPs and moves twice the numbers. The gradient of the bias
is a sum over the tokens.
"""


# %%
#| export
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """What one part of a step must do in one phase, over all layers."""

    part: str
    phase: str  # forward, backward or update
    flops: int
    nbytes: int

    @property
    def intensity(self) -> float:
        """FLOP/byte, the roofline's horizontal axis."""
        return self.flops / self.nbytes


# %%
#| export
def linear_work(part: str, N: int, shapes: list[tuple[int, int]], copies: int, bias: bool, width: int):
    """Forward and backward of linear layers, (inputs, outputs) each, on N tokens. width: bytes of a number."""
    products = forward = backward = 0
    for inputs, outputs in shapes:
        x, w, y = N * inputs, inputs * outputs, N * outputs  # numbers in the tokens, the matrix, the result
        products += 2 * N * w
        forward += x + w + y
        backward += 2 * (x + w + y)
        if bias:
            forward += outputs
            backward += y + outputs
    return [
        Work(part, "forward", copies * products, copies * width * forward),
        Work(part, "backward", copies * 2 * products, copies * width * backward),
    ]


# %%
for work in linear_work("c_fc", N, [(C, 4 * C)], copies=1, bias=True, width=4):
    print(f"{work.part} {work.phase:8} {work.flops / 1e9:5.1f} GFLOP, {work.nbytes / 1e6:5.1f} MB")
assert linear_work("c_fc", N, [(C, 4 * C)], 1, True, 4)[0].nbytes == c_fc_bytes, "not as counted by hand"

# %% [markdown]
r"""
Attention depends on how it is computed. Chapter 04's version writes or reads matrices of T × T numbers for each head, eight
times forward (scores written, scaled, masked, normalised, and so on) and eleven times backward. PyTorch's *fused* kernel
(`config.flash`; chapter 12 opens it) never writes them. It reads q, k, v, and writes the result and one number for each row
and head.
"""


# %%
#| export
def attention_work(config: GPTConfig, B: int, T: int, width: int = 4) -> list[Work]:
    """softmax(qkᵀ)v of all layers, without the linear layers. Counts T × T products in full, as chapter 05 does."""
    NC, L = B * T * config.n_embd, config.n_layer
    if config.flash:  # backward gathers dq, dk, dv into one gradient
        rows = B * T * config.n_head
        forward, backward = 4 * NC + rows, 14 * NC + rows
    else:
        scores = B * config.n_head * T * T
        forward, backward = 12 * NC + 8 * scores, 20 * NC + 11 * scores
    flops = 4 * NC * T
    return [
        Work("attention", "forward", L * flops, L * width * forward),
        Work("attention", "backward", L * 2 * flops, L * width * backward),
    ]


# %% [markdown]
r"""
All other operations compute little and move much. The largest of them is the optimizer's update. PyTorch's default AdamW
works through its formula operation by operation, each on whole arrays. How many arrays does each operation read and write?

| operation | arrays |
|---|---|
| decay the weight | 2 |
| move the mean towards the gradient | 3 |
| shrink the mean of squares | 2 |
| add the gradient's square to it | 3 |
| take the root | 2 |
| divide the root by the correction | 2 |
| add ε | 2 |
| subtract mean / root from the weight | 4 |

That makes 20 arrays of 4 bytes: 80 bytes a weight. A *fused* update does all of it in one pass: it reads a weight, its
gradient and two moments, and writes three of them. That makes 28 bytes.

The cell below has one row for each of the other parts. Read two or three rows and check them: a residual sum reads two
arrays and writes one; there are two sums in a block. (The tests of this chapter check all rows. They add up the sizes of
what a real step's operations read and write, and want the same bytes to the last one.)
"""


# %%
#| export
def elementwise_work(config: GPTConfig, B: int, T: int, width: int = 4, fused: bool = False) -> list[Work]:
    """All of a step that is no matrix product, by part and phase. An exp, tanh or root counts as one operation."""
    C, L, V, N, P = config.n_embd, config.n_layer, config.vocab_rows, B * T, num_params(config)
    NC, TC, NV, VC, norms = N * C, T * C, N * V, V * C, 2 * L + 1
    affine = (1 + config.bias) * C
    look_up = 4 * NC + 3 * TC  # read and write both embeddings' rows; read both, write their sum
    tables = 2 * NC + 2 * TC + VC + config.block_size * C + 3 * VC  # the last: wte's gradient plus the head's
    table = [  # part, phase, FLOPs, numbers read and written, bytes of each
        ("embedding", "forward", NC, look_up, 4),
        ("embedding", "backward", NC + VC, tables, 4),
        ("layer norm", "forward", norms * 7 * NC, norms * (2 * NC + 2 * N + affine), 4),
        ("layer norm", "backward", norms * 13 * NC, norms * (3 * NC + 2 * N + 2 * affine), 4),
        ("residual", "forward", 2 * L * NC, 2 * L * 3 * NC, 4),
        ("residual", "backward", 2 * L * NC, 2 * L * 3 * NC, 4),
        ("gelu", "forward", 9 * L * 4 * NC, L * 2 * 4 * NC, width),
        ("gelu", "backward", 17 * L * 4 * NC, L * 3 * 4 * NC, width),
        ("cross-entropy", "forward", 5 * NV, 2 * NV, 4),
        ("cross-entropy", "backward", 3 * NV, 4 * NV, 4),
        ("optimizer", "update", 14 * P, (7 if fused else 20) * P, 4),
    ]
    return [Work(part, phase, flops, size * numbers) for part, phase, flops, numbers, size in table]


# %%
#| export
from nanogpt.model import GPTConfig, num_params

PRODUCTS = ("qkv", "attention", "proj", "mlp", "head")  # the parts that consist of matrix products


def step_work(config: GPTConfig, B: int, T: int, width: int = 4, fused: bool = False) -> list[Work]:
    """All work of an eager training step with AdamW, in pieces or fused, by part and phase; dropout 0.

    Every operation reads its inputs and writes its outputs once. `width`: bytes of a number in the parts that autocast
    (chapter 10) runs in 16 bits, which are PRODUCTS and gelu; all else has 4. Casts, ids and masks are not counted.
    """
    C, L, N, bias = config.n_embd, config.n_layer, B * T, config.bias
    return [
        *linear_work("qkv", N, [(C, 3 * C)], L, bias, width),
        *attention_work(config, B, T, width),
        *linear_work("proj", N, [(C, C)], L, bias, width),
        *linear_work("mlp", N, [(C, 4 * C), (4 * C, C)], L, bias, width),
        *linear_work("head", N, [(C, config.vocab_rows)], 1, False, width),
        *elementwise_work(config, B, T, width, fused),
    ]


# %%
flops, nbytes = Counter(), Counter()  # by part, all phases together
for w in step_work(gpt2, 4, 1024):
    flops[w.part] += w.flops
    nbytes[w.part] += w.nbytes
print(f"GPT-2 small, 4 × 1024 tokens: {flops.total() / 1e12:.2f} TFLOP, {nbytes.total() / 1e9:.1f} GB moved")
print(f"{'':14}{'FLOPs':>8}{'bytes':>8}{'GB':>7}   FLOP/byte")
for part, size in nbytes.most_common():
    shares = f"{flops[part] / flops.total():8.2%}{size / nbytes.total():8.1%}"
    print(f"{part:14}{shares}{size / 1e9:7.2f}{flops[part] / size:10.1f}")
answer("09b.1", nbytes.most_common(1)[0][0])

# %% [markdown]
r"""
The optimizer moves the most, with the default AdamW. If it is fused, it moves 28/80 of that, and comes third, behind the
MLPs and the loss. The five parts made of matrix products do nearly all of the arithmetic, and move less than half of the
bytes. The other bytes are moved by operations that compute next to nothing.

Does the count help us to predict a speed? The fused update moves 20/7 = 2.9 times fewer bytes. We time both updates in turn,
on arrays of the model's size.
"""

# %% tags=["nbval-ignore-output"]
updates = {}
for fused in (False, True):
    model = GPT(config, seed_everything(0)).to(device)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    updates[fused] = torch.optim.AdamW(model.parameters(), fused=fused).step
print("the fused update:", faster(updates[False], updates[True], device), "predicted 2.86×")

# %% [markdown]
r"""
On a GPU the count was right in milliseconds, too. The fused update of GPT-2 124M moves 52 bytes a weight less, which is 6.5 GB. Operations
of this kind moved 2,160 GB/s on an H100 and 2,896 on an H200, so a step should save 3.00 and 2.23 ms. When we timed whole
steps with both updates (chapter 14), the fused one saved 2.90 and 2.18 ms.

If the ratio that you measured above is far from the prediction, one of the assumptions does not hold on your machine. Perhaps the arrays fit in a
cache, so the default update does not pay for all its passes. Or starting so many small operations takes as long as their
work.

Now the forward operations of *this chapter's* model on *this machine's* roofline. A larger batch shares the weights among
more tokens, so the linear layers move to the right. The other operations stay where they are.
"""

# %% tags=["nbval-ignore-output"]
roofline = measure_roofline(device, product, copied)
mine = {w.part: w.intensity for w in step_work(config, B, T) if w.phase != "backward"}
alt = "This machine's roofline with the forward operations of a GPT step and the update: elementwise ones on the slope, linear layers further right."
show(figures.roofline(roofline, mine), alt=alt)
print("memory-bound:", ", ".join(name for name, i in mine.items() if i < roofline.ridge()))

# %% [markdown]
r"""
## What a step must keep

Parameters, gradients and AdamW's two moments take 16 bytes a parameter in float32. *Activations* are the numbers that the
forward pass keeps for the backward pass. They grow with the batch. What does the derivative of each operation in a block need?

| operation | keeps | numbers |
|---|---|---|
| `ln_1`, `ln_2` | their inputs; mean and deviation of each token | 2NC + 4N |
| `c_attn` | its input | NC |
| attention, fused | q, k, v; one number for each row and head | 3NC + N·n_head |
| `c_proj` | its input, which is attention's result | NC |
| `c_fc`, GELU, `c_proj` | the input of each | NC + 4NC + 4NC |

That makes sixteen numbers for each token and channel. Sums keep nothing, since the derivative of a sum needs no input. At
the end of the model come `ln_f`, the head's input, and N × V log-probabilities.
"""


# %%
#| export labs.roofline.memory
from nanogpt.model import GPTConfig, num_params


def activation_bytes(config: GPTConfig, B: int, T: int) -> int:
    """Bytes that autograd saves in the forward pass of a float32 GPT, ids and targets included; exact on the CPU."""
    if config.dropout:
        raise ValueError(f"dropout={config.dropout} saves masks that are not predicted here; set it to 0")
    C, N = config.n_embd, B * T
    rows = 4 * N * config.n_head
    attention = rows if config.flash else rows * T + T * T  # in steps: a row of weights; the mask, in bytes
    layer = 4 * (16 * N * C + 4 * N) + attention
    head = 4 * (2 * N * C + 2 * N + N * config.vocab_rows + 1)
    ids = 8 * (2 * N + T)  # int64: tokens, targets, positions
    return config.n_layer * layer + head + ids


# %%
#| export labs.roofline.memory
def memory_by_category(config: GPTConfig, B: int, T: int) -> dict[str, int]:
    """Bytes of a float32 training step with AdamW, by category."""
    tensors = 12 * config.n_layer + 4 if config.bias else 6 * config.n_layer + 3
    P = 4 * num_params(config)
    optimizer = 2 * P + 4 * tensors  # two moments, and for each tensor a count of its steps
    activations = activation_bytes(config, B, T)
    return {"parameters": P, "gradients": P, "optimizer": optimizer, "activations": activations}


# %%
print("GPT-2 small, T=1024: parameters, gradients, moments and activations in GiB")
for flash in (False, True):
    for size in (1, 4, 16):
        gib = [n / 2**30 for n in memory_by_category(replace(gpt2, flash=flash), size, 1024).values()]
        row = "".join(f"{number:7.2f}" for number in gib)
        print(f"attention {'fused' if flash else 'in steps':8} B={size:2} {row}  together {sum(gib):6.2f}")
answer("09b.2", memory_by_category(gpt2, 4, 1024)["activations"] / 2**30)

# %% [markdown]
r"""
The activations are soon larger than everything else together. What fused attention does not keep are the T × T weights;
chapter 12 shows how it can do without them. (Not all of this memory is in use at the same moment. Chapter 12b finds the
largest amount, the *peak* of a step.)

*Check.* We count what autograd really keeps, by looking at each tensor as it is saved. There are three traps. The same
memory is often saved twice under different shapes, so we count storages, not tensors. Weights are saved as well, but
they are not activations. And when a storage is freed meanwhile, the next one can get its address, so we hold each
until all are counted.
"""

# %%
#| export labs.roofline.memory
#| blank saved_bytes: a saved_tensors_hooks function sees each saved tensor; count each storage once
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def saved_bytes(call: Callable[[], object], exclude: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd saves for the backward pass while `call` runs, each storage once, without those of `exclude`.

    A storage counts in full, even if only a part of it is saved. The saved tensors stay as they are.
    """
    known = {t.untyped_storage().data_ptr() for t in exclude}
    saved = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage  # holds it, so that no address comes twice
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        call()
    return sum(storage.nbytes() for storage in saved.values())


# %%
g = seed_everything(0)
model = GPT(config, generator=g).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
x, y = torch.randint(config.vocab_size, (2, B, T), generator=g).to(device)


def step():
    model(x, y)[1].backward()
    optimizer.step()
    optimizer.zero_grad()


step()

# %%
model(x, y)[1].backward()
states = [t for state in optimizer.state.values() for t in state.values()]
groups = [model.parameters(), (p.grad for p in model.parameters()), states]
measured = [sum(t.nbytes for t in group) for group in groups]
measured.append(saved_bytes(lambda: model(x, y), exclude=model.parameters()))
predicted = memory_by_category(config, B, T)
for (name, expected), found in zip(predicted.items(), measured):
    print(f"{name:12} predicted {expected:12,}   measured {found:12,} bytes")
assert device.type != "cpu" or list(predicted.values()) == measured, "on a CPU the prediction is exact"

# %% [markdown]
r"""
On a CPU the prediction is exact to the byte. (On a GPU, fused attention may keep a little more, and the allocator rounds
sizes up.)

On a GPU, `nvidia-smi` shows more than this sum: it adds the CUDA context, and the memory that PyTorch's allocator holds in
reserve. A snapshot shows every block and the line that made it (pytorch.org/memory_viz):

```python
torch.cuda.memory._record_memory_history()
step()
torch.cuda.memory._dump_snapshot("memory.pickle")
print(torch.cuda.memory_allocated() / 2**30, torch.cuda.memory_reserved() / 2**30, "GiB")
```

## Predict the step, then measure it

The roofline gives each part of the step a time. Their sum is the prediction. It will be too low, since a roofline is a
limit. *Predict* by which factor.
"""

# %%
predict("09b.3", "measured time of a step over the roofline's", guess=None, unit="×")


# %%
#| export
from nanogpt.labs.roofline.clock import Roofline, measure


def predict_step(
    config: GPTConfig, B: int, T: int, roofline: Roofline, dtype: str = "float32", fused: bool = False
) -> dict[tuple[str, str], float]:
    """(part, phase) -> seconds that the roofline allows for `step_work`. Their sum predicts the step.

    dtype names the roofline's rate for PRODUCTS; with a 16-bit one their numbers have two bytes.
    """
    width = 2 if dtype in ("bfloat16", "float16") else 4
    return {
        (w.part, w.phase): roofline.seconds(w.flops, w.nbytes, dtype if w.part in PRODUCTS else "float32")
        for w in step_work(config, B, T, width, fused)
    }


# %% tags=["nbval-ignore-output"]
limit, timing = predict_step(config, B, T, roofline), measure(step, device, repeats)
least = sum(limit.values())
print(f"the roofline allows {1e3 * least:.1f} ms, measured {timing}")
if timing.median < least or timing.q3 > 1.3 * timing.q1:
    print("another program disturbed a measurement: run the roofline's cell and this one again")
answer("09b.3", timing.median / least)

# %% [markdown]
r"""
## Where the time goes

A factor for the whole step is no diagnosis. PyTorch's profiler records every operation. Its *self* time is its time without
the operations that it calls. We add up the self times of the matrix products, and those of all other operations, and
compare each sum with the roofline's.
"""

# %% tags=["nbval-ignore-output"]
os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler announces itself on stderr otherwise
activities, clock = [ProfilerActivity.CPU], "self_cpu_time_total"
if device.type == "cuda":
    activities, clock = [ProfilerActivity.CPU, ProfilerActivity.CUDA], "self_device_time_total"
with profile(activities=activities, acc_events=True) as prof:
    for _ in range(5):
        step()
        synchronize(device)
found, allowed = Counter(), Counter()
for row in prof.key_averages():
    if row.key.startswith("aten::"):
        kind = "products" if re.search("mm$|attention", row.key) else "all else"
        found[kind] += getattr(row, clock) / 5e6  # 5 steps, in microseconds
for (part, _), seconds in limit.items():
    allowed["products" if part in PRODUCTS else "all else"] += seconds
for kind, seconds in found.items():
    print(f"{kind:9} {1e3 * seconds:6.1f} ms, {seconds / allowed[kind]:.1f} × the roofline's time")

# %% [markdown]
r"""
(To see each call with its shapes on a line in time, add `record_shapes=True`, call `prof.export_chrome_trace("trace.json")`,
and open the file in ui.perfetto.dev.)

Usually both kinds take longer than the roofline allows. There are five reasons, and one exception in the second.

1. **The peak belongs to a large square product.** Thin or small products reach less.
2. **The bandwidth belongs to a plain copy.** An operation that also computes an exponential or a sum reaches less. But if
   its arrays are still in a cache, it can be faster than memory.
3. **Some operations are not in the count**, such as casts, masks and copies of ids.
4. **Starting an operation takes time.** Python and PyTorch need microseconds for each, however little it does. If the
   operations are small, a GPU's queue runs empty meanwhile. Chapter 11 counts them.
5. **Fresh memory is not free on a CPU.** The last section measures it.

## What real kernels reach

We can measure the first two reasons by themselves. We time the kernels of the step one by one, at their own sizes: the linear
layers with their backward products, and one operation for each of the other parts. The result is two fractions. The first is
the share of the peak that the matrix products reach. The second is the share of the copy's bandwidth that the others reach.
With these, a limit becomes a *forecast*.
"""


# %%
#| export
from collections.abc import Callable

import torch
import torch.nn.functional as F


def step_kernels(config: GPTConfig, N: int, device, dtype: torch.dtype) -> dict[str, tuple[Callable, int]]:
    """{part: (a call that does such work on N tokens, its FLOPs if it is a product, else its bytes)}."""
    C, V, kernels = config.n_embd, config.vocab_rows, {}
    g = torch.Generator(device).manual_seed(0)

    def draw(*size):
        return torch.randn(size, device=device, generator=g)

    for part, i, o in (("qkv", C, 3 * C), ("proj", C, C), ("mlp", C, 4 * C), ("head", C, V)):
        x, w, dy = draw(N, i).to(dtype), draw(o, i).to(dtype), draw(N, o).to(dtype)
        kernels[part] = (lambda x=x, w=w, dy=dy: (F.linear(x, w), dy @ w, dy.T @ x)), 6 * N * i * o
    x, other, wide, logits, table = draw(N, C), draw(N, C), draw(N, 4 * C), draw(N, V), draw(V, C)
    kernels["layer norm"] = (lambda: F.layer_norm(x, (C,))), 4 * 2 * N * C
    kernels["residual"] = (lambda: x + other), 4 * 3 * N * C
    kernels["gelu"] = (lambda: F.gelu(wide, approximate="tanh")), 4 * 2 * N * 4 * C
    kernels["cross-entropy"] = (lambda: logits.log_softmax(-1)), 4 * 2 * N * V
    kernels["optimizer"] = (lambda: table.mul_(0.999)), 4 * 2 * V * C
    return kernels


# %% [markdown]
r"""
Each part counts as much as it counts in the step. If a part has F FLOPs in the step, and its kernel reaches r FLOP/s, then
it takes F / r seconds. All FLOPs divided by all these seconds is the rate that the products reach together. The same holds
for the bytes.
"""


# %%
#| export
from typing import NamedTuple


class Fractions(NamedTuple):
    """What the kernels of a step reach: a share of a roofline's FLOP/s, and a share of its bytes/s."""

    flops: float
    bandwidth: float

    def of(self, roofline: Roofline) -> Roofline:
        """The roofline with both of its limits times their fractions."""
        flops = {name: self.flops * rate for name, rate in roofline.flops.items()}
        return Roofline(roofline.device, flops, self.bandwidth * roofline.bandwidth)


# %%
#| export
#| blank measure_fractions: the rate of each kernel; each part's share of the step in seconds; then totals over the roofline's
from collections import Counter


def measure_fractions(
    config: GPTConfig, B: int, T: int, roofline: Roofline, device, dtype: str = "float32", repeats: int = 10
) -> Fractions:
    """The fractions that the kernels of this step reach on `device`. dtype: what products read, as in the roofline.

    A kernel's rate is its work over the median of its times. What a part has to do says `step_work`, in float32; parts
    without a kernel do not count. For "tf32" the kernels read float32, and the switch is "high". Otherwise it is
    "highest", and afterwards it is as before.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        kernels = step_kernels(config, B * T, device, getattr(torch, dtype.replace("tf32", "float32")))
        rates = {part: n / measure(call, device, repeats).median for part, (call, n) in kernels.items()}
    finally:
        torch.set_float32_matmul_precision(before)
    amounts, seconds = Counter(), Counter()
    for w in step_work(config, B, T):
        if w.part in rates:
            kind, amount = ("flops", w.flops) if w.part in PRODUCTS else ("bytes", w.nbytes)
            amounts[kind] += amount
            seconds[kind] += amount / rates[w.part]
    flops, nbytes = (amounts[kind] / seconds[kind] for kind in ("flops", "bytes"))
    return Fractions(flops / roofline.flops[dtype], nbytes / roofline.bandwidth)


# %% tags=["nbval-ignore-output"]
fractions = measure_fractions(config, B, T, roofline, device)
print(f"products: {fractions.flops:.0%} of the peak; other kernels: {fractions.bandwidth:.0%} of the copy")
forecast = sum(predict_step(config, B, T, fractions.of(roofline)).values())
print(f"forecast {1e3 * forecast:.1f} ms, measured {timing}: {timing.median / forecast:.2f} ×")
share = mfu(step_flops(config, B, T), forecast, roofline.flops["float32"])
print(f"with these kernels and nothing else, the MFU would be {share:.0%}")

# %% [markdown]
r"""
A fraction of more than 100% for the other kernels means that their arrays stay in a cache, which is faster than the memory
that the copy measured. This happens with models as small as ours, and not with GPT-2's sizes. So measure the fractions with
the sizes that you want to forecast.

What the forecast still lacks are the reasons three to five. Chapter 14 adds a term for starting kernels, and holds the
forecast against published runs of GPT-2.

## Fresh memory

When a program asks for a large block of memory, the operating system promises it in *pages*. It finds and clears a page only
when the program first touches it. This is called a *page fault*. PyTorch's allocator for GPUs keeps freed blocks and hands
them out again, so it rarely pays. On a CPU large blocks go back to the system at once, so each step pays again. We measure
the price: filling a new tensor, minus filling an old one.
"""


# %%
#| export labs.roofline.memory
import mmap

import torch

from nanogpt.labs.roofline.clock import measure

PAGE = mmap.PAGESIZE  # bytes: 4096 on most systems, 16384 on Apple silicon


def fault_seconds(mebibytes: int = 64) -> float:
    """Seconds that a page of fresh memory costs on the CPU: filling a new tensor, less filling an old one."""
    cpu, old = torch.device("cpu"), torch.empty(mebibytes * 2**20, dtype=torch.uint8)
    fresh = min(measure(lambda: torch.empty_like(old).fill_(1), cpu, 8).times)
    again = min(measure(lambda: old.fill_(1), cpu, 8).times)
    return max(0.0, fresh - again) * PAGE / old.numel()


# %% tags=["nbval-ignore-output"]
fault = fault_seconds()
print(f"a page of {PAGE} bytes: {1e6 * fault:.2f} µs; a GiB of them: {1e3 * fault * 2**30 / PAGE:.0f} ms")

# %% [markdown]
r"""
Now you know where to look. If the products take the time, fewer bits help (chapter 10), and better shapes (chapter 13). If
the other operations take it, they can be fused, so that a number is read once for several operations (chapter 11). Chapter
12 is about attention. Chapter 14 puts everything together.

## Checkpoint

The checkpoint writes two modules into `nanogpt/labs/roofline`: `work.py` for what a step computes and moves, and
`memory.py` for what it keeps. They are for measuring; no training run needs them.
"""

# %% tags=["nbval-ignore-output"]
predictions("09b")

# %%
checkpoint("09b")

# %% [markdown]
r"""
## Exercises

The exercises of chapter 09 belong to this chapter, too: `course exercises release 09`. 09-2, 09-3 and 09-4 count.

To explore:

1. Predict how the MFU changes if B doubles, then if T doubles at the same B·T, and measure both. *Check:* say first
   which parts' intensity changes; `step_work` says whether you were right.
2. Give the model dropout 0.1 and extend `activation_bytes` by what it makes autograd save. *Check:* `saved_bytes`
   agrees to the byte on the CPU, with `flash=False`. One addition is no mask: which? And how many bytes does the CPU
   keep for each yes or no?
3. Measure the fractions with twice the width, then with half of it. *Check:* say first which of the two changes more.

## Further reading

- V. Korthikanti et al., [*Reducing Activation Recomputation in Large Transformer Models*](https://arxiv.org/abs/2205.05198), 2022, §4: activations counted
  operation by operation, in 16 bits and with dropout.
- J. Austin et al., [*How to Scale Your Model*](https://jax-ml.github.io/scaling-book/), 2025, part 4: all the FLOPs and bytes of a transformer.
- PyTorch documentation: [*torch.profiler*](https://docs.pytorch.org/docs/stable/profiler.html); [*Understanding CUDA Memory Usage*](https://docs.pytorch.org/docs/stable/torch_cuda_memory.html); [*torch.autograd.graph.saved_tensors_hooks*](https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.graph.saved_tensors_hooks).
"""
