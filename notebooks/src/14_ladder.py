# %% [markdown]
r"""
# 14 · The ladder: every speed-up, predicted, then measured

(to be written)
"""

# %%
#| default_exp ladder
#| doc rungs: The speed-ups as rungs of a ladder: what each changes in a step, and its predicted time.
#| doc ladder: The ladder measured: each rung in a process of its own, and the command `ladder`.
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
from nanogpt.roofline import measure
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.model import num_params

device = pick_device()
scale = pick_scale(device)
g = seed_everything(0)

# %% [markdown]
r"""
## The ladder

Nine rungs, each on top of the last. A step is described by the set of names up to its rung, less those that the
machine cannot do.
"""

# %%
#| export rungs
RUNGS = {
    "float32": "attention step by step, every sum and product in float32",
    "kept memory": "the C library keeps what a step frees (Linux, on a CPU)",
    "TF32": "float32 products on tensor cores, 10 bits of mantissa (chapter 10)",
    "bf16": "autocast: products in bfloat16 (chapter 10)",
    "compile": "torch.compile fuses what lies between the products (chapter 11)",
    "flash": "attention in one kernel, no T×T matrix (chapter 12)",
    "nice numbers": "vocabulary padded to a multiple of 128",
    "fused AdamW": "the optimizer in one pass over memory",
    "bf16 weights": "weights and stream kept in bfloat16, float32 masters in the optimizer",
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
Two of the rungs are new. They come first.

### Memory that is given back

A training step allocates gradients and activations, frees them, and does so again. PyTorch's allocator for GPUs keeps
what is freed. On a CPU the C library decides. Linux's glibc keeps small blocks, but returns every block above 32 MiB to
the system at once (it starts at 128 KiB and learns from what is freed). The next step gets fresh pages, which the system
must clear when each is first touched: a *page fault*. What does one cost?
"""

# %% tags=["nbval-ignore-output"]
fault = fault_seconds()
print(
    f"a fresh page of {PAGE} bytes: {1e6 * fault:.2f} µs; a GiB of them: {1e3 * fault * 2**30 / PAGE:.0f} ms"
)

# %% [markdown]
r"""
How many does a step pay? Count its tensors above 32 MiB. Four are like the logits: logits, log-probabilities, the
gradients of both. Four are like `wte`: its gradient, a second one since it is first layer and last, and two temporaries
of AdamW. Attention step by step makes eight T×T tensors in each layer.
"""


# %%
#| export rungs
import torch

from torch import nn

from nanogpt.model import GPT, GPTConfig
from nanogpt.roofline import PAGE

LARGE = 32 * 2**20  # bytes; malloc's DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems


def fresh_bytes(config: GPTConfig, B: int, T: int) -> int:
    """Bytes that a float32 step allocates in blocks above LARGE: tensors like the logits, like wte, and T×T."""
    V, C, L = config.vocab_size, config.n_embd, config.n_layer
    tensors = [(4, B * T * V), (4, V * C), (0 if config.flash else 8 * L, B * config.n_head * T * T)]
    return sum(count * 4 * numbers for count, numbers in tensors if 4 * numbers > LARGE)


# %%
print(f"GPT-2 124M, B=4, T=64: {fresh_bytes(GPTConfig(flash=False), 4, 64) / 2**20:.0f} MiB a step")

# %% [markdown]
r"""
Two environment variables tell glibc to keep it (*GNU C Library manual*, "Malloc Tunable Parameters"): no block is too
large for its own heap, and the heap never shrinks. It reads them when a process starts, so a rung needs a process.

### Weights in bfloat16

Autocast reads 124 million float32 weights, writes them in bfloat16 and reads them again, in every step. The top rung
keeps them in bfloat16. But an update of a ten-thousandth is lost there, since above 1 the next bfloat16 is 1.0078:
"""

# %%
w16, w32 = torch.ones((), dtype=torch.bfloat16), torch.ones(())
for _ in range(1000):
    w16, w32 = w16 + 1e-4, w32 + 1e-4
print(f"1 + 1000 · 0.0001 = {w32:.4f} in float32, {w16:.4f} in bfloat16")

# %% [markdown]
r"""
So the optimizer keeps a float32 *master* of each weight and hands the model a rounded copy (Micikevicius et al. 2018,
§3.1). Written as one elementwise function, chapter 11's compiler makes it one pass of 28 bytes a weight: read gradient 2,
master 4, two moments 8, write master 4, moments 8, weight 2. As many as with float32 weights, which read four numbers
and write three: question 3. And as nothing is cast any more, the residual stream is bfloat16 too.
"""


# %%
#| export rungs
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
#| export rungs
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


# %%
w = torch.ones(4, dtype=torch.bfloat16)
master, m, v = torch.ones(4), torch.zeros(4), torch.zeros(4)
for t in range(1, 101):
    rate, correction = torch.tensor(1e-4 / (1 - 0.9**t)), torch.tensor(1 / (1 - 0.95**t))
    adamw_update(w, torch.ones(4).bfloat16(), master, m, v, rate, correction, 1e-4, 0.9, 0.95, 1e-8, 0.0)
print(f"100 steps of 0.0001: master {master[0]:.4f}, weight {w[0]:.4f}")


# %%
#| export rungs
class MasterAdamW:
    """AdamW for a model whose weights it turns to bfloat16; masters and moments stay in float32.

    All weights lie end to end in one tensor, of which the model's are views, so that an update is one call.
    """

    def __init__(self, model: nn.Module, compiled: bool, **options):
        self.params = list(model.parameters())
        self.master = torch.cat([p.detach().float().flatten() for p in self.params])  # before rounding
        self.m, self.v = torch.zeros_like(self.master), torch.zeros_like(self.master)
        self.weight = self.master.bfloat16()
        for p, part in zip(self.params, self.weight.split([p.numel() for p in self.params])):
            p.data = part.view_as(p)
        self.update = torch.compile(adamw_update) if compiled else adamw_update
        self.steps, self.options = 0, options

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        grad = torch.cat([p.grad.flatten() for p in self.params])
        lr, beta1, beta2 = (self.options[name] for name in ("lr", "beta1", "beta2"))
        rate = torch.full((), lr / (1 - beta1**self.steps), device=grad.device)
        scale = torch.full((), 1 / (1 - beta2**self.steps), device=grad.device)
        self.update(self.weight, grad, self.master, self.m, self.v, rate, scale, **self.options)

    def zero_grad(self) -> None:
        for p in self.params:
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
assert torch.allclose(master.master, torch.cat([q.flatten() for q in theirs.parameters()]), atol=1e-6)
assert torch.equal(ours.weight.flatten(), master.master[:64].bfloat16())
print("masters equal torch.optim.AdamW's float32 weights after 50 steps, to 1e-6")

# %% [markdown]
r"""
### One step, any rung

The same data and the same seed on every rung. Token ids follow Zipf's law, so there is something to learn in the first
steps, and ids stay below 50,257 on padded rungs too.
"""

# %%
#| export rungs
from collections.abc import Callable, Iterator

import torch.nn.functional as F


def zipf_batches(vocab_size: int, B: int, T: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (x, y), each (B, T): token r occurs with a probability of about 1 / r. A seed gives one sequence."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        ids = (vocab_size ** torch.rand(B, T + 1, generator=generator)).long() - 1
        yield ids[:, :-1], ids[:, 1:]


def to_device(ids: Tensor, device: torch.device) -> Tensor:
    """ids on the device; a CUDA device copies them while it still works on the step before."""
    return ids.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else ids.to(device)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean loss in nats, summed in float32 whatever the logits are in."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


# %%
x, y = next(zipf_batches(50257, 1, 8))
print("x:", x[0].tolist())
print("y:", y[0].tolist())


# %%
#| export rungs
def make_optimizer(model: GPT, on: set[str]):
    """AdamW with GPT-3's betas and decay, as the rungs in `on` ask for it."""
    if "bf16 weights" in on:
        options = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
        return MasterAdamW(model, "compile" in on, **options)
    fused = True if "fused AdamW" in on else None  # None: PyTorch's own choice for the device
    return torch.optim.AdamW(model.parameters(), 3e-4, (0.9, 0.95), weight_decay=0.1, fused=fused)


def compile_parts(model: GPT, device: torch.device) -> tuple[Callable, Callable]:
    """Compiled (forward, loss). On a GPU the whole forward; elsewhere block by block, since all blocks share one
    graph: a twelfth of the compile time, and only what spans two blocks stays unfused."""
    if device.type == "cuda":
        return torch.compile(model), torch.compile(token_loss)
    for block in model.transformer.h:
        block.compile()
    return model, torch.compile(token_loss)


# %%
#| export rungs
from dataclasses import replace

from nanogpt.device import seed_everything


def make_step(config: GPTConfig, on: set[str], B: int, T: int, device: torch.device) -> tuple[GPT, Callable]:
    """A model, and a function that does one training step with the rungs in `on`.

    The function returns the loss, still on the device, and leaves the gradients until it is called again.
    """
    torch.set_float32_matmul_precision("high" if "TF32" in on else "highest")
    model = GPT(replace(config, flash="flash" in on), seed_everything(0))
    if "nice numbers" in on:
        pad_vocabulary(model)
    optimizer = make_optimizer(model.to(device), on)
    forward, loss_of = compile_parts(model, device) if "compile" in on else (model, token_loss)
    cast = torch.autocast(device.type, torch.bfloat16, enabled="bf16" in on and "bf16 weights" not in on)
    batches = zipf_batches(config.vocab_size, B, T)

    def step() -> Tensor:
        x, y = (to_device(ids, device) for ids in next(batches))
        with cast:
            loss = loss_of(forward(x)[0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step


# %%
losses = {}
for name in ("float32", "flash", "nice numbers", "bf16 weights"):
    _, step = make_step(tiny, rungs_up_to(name, skipped=["compile"]), B=4, T=32, device=torch.device("cpu"))
    losses[name] = [step().item() for _ in range(8)]
    print(f"{name:13} loss after 8 steps {losses[name][-1]:.2f}")
assert max(abs(a[-1] - losses["float32"][-1]) for a in losses.values()) < 0.05

# %% [markdown]
r"""
*Check* `fresh_bytes`: the system counts page faults. On Linux, where memory is not kept, a step pays one for each fresh
page; elsewhere the count differs.
"""

# %% tags=["nbval-ignore-output"]
try:
    from resource import RUSAGE_SELF, getrusage

    config, faults = GPTConfig(block_size=128, n_layer=2, n_head=4, n_embd=256, flash=False), []
    _, step = make_step(config, set(), B=4, T=128, device=torch.device("cpu"))
    for _ in range(6):
        before = getrusage(RUSAGE_SELF).ru_minflt
        step()
        faults.append(getrusage(RUSAGE_SELF).ru_minflt - before)
    print(f"page faults of each step: {faults}; predicted {fresh_bytes(config, 4, 128) // PAGE}")
except ImportError:
    print("Windows does not tell a process how many page faults it had")

# %% [markdown]
r"""
## The prediction

Chapter 09 listed the FLOPs and bytes of a step by part. Each rung changes a column of that list. TF32 and bfloat16
change the rate of the products, bfloat16 the size of a number too. What autocast and compiling change can be counted by
hand, in bytes for each score of a T×T matrix and for each logit, forward and backward:

| | float32 | compiled | autocast | both |
|---|---|---|---|---|
| score | 19 passes of 4: 76 | 11 passes: 44 | softmax in float32, with casts: 72 | 11 passes of 2: 22 |
| logit | 6 passes of 4: 24 | 4 passes: 16 | loss in float32, with casts: 36 | 4 passes of 2: 8 |

Compiled, scale, mask and softmax are one kernel, and log-probabilities are never written. A residual sum is still in a
register when LayerNorm reads it, which halves its bytes. Where blocks are compiled one by one that holds for every other
sum: a quarter is saved.

The default AdamW is twenty passes of 4 bytes over the parameters, since each of its operations reads and writes whole
tensors. Fused, it reads four numbers and writes three: 28 bytes. The one with masters also has 28, and 4 for laying the
gradients end to end.
"""

# %%
#| export rungs
from nanogpt.bench import PRODUCTS, step_work
from nanogpt.roofline import Roofline
from nanogpt.model import num_params

SCORE_BYTES = (76, 44, 72, 22)  # float32, compiled, autocast, both; forward and backward
LOGIT_BYTES = (24, 16, 36, 8)


def work_seconds(config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline) -> dict[str, float]:
    """Seconds by part of forward and backward on the roofline: chapter 09's step_work, as the rungs change it."""
    half, compiled = "bf16" in on, "compile" in on
    width, column = 2 if half else 4, 2 * half + compiled
    flops, nbytes = {}, {}
    for work in step_work(config, B, T, width):
        flops[work.part] = flops.get(work.part, 0) + work.flops
        nbytes[work.part] = nbytes.get(work.part, 0) + work.nbytes
    scores = 0 if config.flash else config.n_layer * B * config.n_head * T * T
    nbytes["attention"] += (SCORE_BYTES[column] - 19 * width) * scores
    nbytes["cross-entropy"] = LOGIT_BYTES[column] * B * T * config.vocab_size
    if compiled:
        nbytes["residual"] *= 1 / 2 if roof.device == "cuda" else 3 / 4
    for part in ("embedding", "layer norm", "residual"):
        nbytes[part] /= 2 if "bf16 weights" in on else 1  # elsewhere 4 bytes a number
    dtype = "bfloat16" if half else "tf32" if "TF32" in on else "float32"
    rates = {part: dtype if part in PRODUCTS else "float32" for part in flops if part != "optimizer"}
    return {part: roof.seconds(flops[part], nbytes[part], rate) for part, rate in rates.items()}


# %%
example = Roofline("example", {"float32": 1e11, "bfloat16": 4e11}, 20e9)  # round numbers, not this machine's
eager, compiled = (
    work_seconds(GPTConfig(flash=False), on, 4, 64, example) for on in ({"bf16"}, {"bf16", "compile"})
)
for part, seconds in eager.items():
    print(f"{part:13} {1e3 * seconds:.1f} ms, compiled {1e3 * compiled[part]:.1f} ms")


# %%
#| export rungs
def predict(
    config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline, fault: float = 0.0
) -> dict[str, float]:
    """Seconds of one step by part, before anything is run. fault: what `fault_seconds` measured, 0 where it is not paid."""
    P, masters = num_params(config), "bf16 weights" in on
    rows = -(-config.vocab_size // 128) * 128 if "nice numbers" in on else config.vocab_size
    config = replace(config, vocab_size=rows, flash="flash" in on)
    seconds = work_seconds(config, on, B, T, roof)
    if "kept memory" not in on:
        seconds["page faults"] = fault * fresh_bytes(config, B, T) / PAGE
    if "bf16" in on and not masters:  # read 4, write 2 forward; the gradient back: read 2, write 4
        seconds["weight casts"] = 12 * P / roof.bandwidth
    per_weight = 32 if masters else 28 if "fused AdamW" in on else 80  # bytes
    seconds["optimizer"] = per_weight * P / roof.bandwidth
    return seconds


# %%
between = ["embedding", "layer norm", "residual", "gelu", "cross-entropy"]
groups = {"products": ["qkv", "proj", "mlp", "head"], "between products": between}
groups |= {part: [part] for part in ("attention", "page faults", "weight casts", "optimizer")}
fig, ax = plt.subplots(figsize=(6.5, 3.2))
bottom = [0.0] * len(RUNGS)
for i, (group, parts) in enumerate(groups.items()):
    steps = [predict(GPTConfig(), rungs_up_to(name, ["TF32"]), 4, 64, example, fault=1e-6) for name in RUNGS]
    values = [sum(step.get(part, 0) for part in parts) for step in steps]
    ax.bar(list(RUNGS), values, bottom=bottom, label=group, color=f"C{i}")
    bottom = [a + b for a, b in zip(bottom, values)]
ax.set(
    ylabel="predicted seconds a step",
    title="GPT-2 124M, B=4, T=64; 100 and 400 GFLOP/s, 20 GB/s, 1 µs a fault",
)
ax.set_xticks(range(len(RUNGS)), list(RUNGS), rotation=25, ha="right")
ax.legend(fontsize=8)
show(
    fig,
    alt="Stacked bars of predicted seconds by part and rung for an example machine: page faults vanish on the second rung, products shrink with bfloat16, the optimizer with fusion.",
)
assert bottom[-1] < bottom[0] / 2

# %% [markdown]
r"""
On this example machine a batch of 256 tokens is so small that the optimizer is a visible part of a step. Nice numbers
are predicted to cost a thousandth: the roofline knows nothing of alignment. Whatever they gain when measured is its
error.

## One rung, one process

Compiled graphs, the allocator's state and the TF32 flag outlive a rung that sets them. So each rung gets a process of
its own. What a machine cannot do is skipped, with the reason.
"""

# %%
#| export rungs
import os
import platform
import shutil
import sys

from nanogpt.roofline import Roofline


def has_cpp_compiler() -> bool:
    """Whether torch.compile can find a C++ compiler: the one that CXX names, or the platform's usual one."""
    usual = "cl" if os.name == "nt" else "clang++" if sys.platform == "darwin" else "g++"
    return bool(shutil.which((os.environ.get("CXX") or usual).split()[0]))


def why_not_kept(device: torch.device) -> str | None:
    """Why the allocator of this device cannot be told to keep freed memory; None where it can."""
    if device.type != "cpu":
        return f"PyTorch's allocator for {device.type} keeps freed memory anyway"
    glibc = platform.libc_ver()[0] == "glibc"
    return None if glibc else "only glibc, most Linux systems' C library, can be told so"


# %% tags=["nbval-ignore-output"]
print("kept memory:", why_not_kept(device) or "possible here")
print("C++ compiler:", has_cpp_compiler())


# %%
#| export rungs
import importlib.util


def obstacles(device: torch.device, roof: Roofline, skip=()) -> dict[str, str]:
    """Rungs that this device cannot do, or that shall be skipped, each with the reason."""
    kind, reasons = device.type, dict.fromkeys(skip, "left out by --skip")
    capability = torch.cuda.get_device_capability(device) if kind == "cuda" else (0, 0)
    if reason := why_not_kept(device):
        reasons["kept memory"] = reason
    if capability < (8, 0) or torch.version.hip:
        reasons["TF32"] = "TF32 exists on NVIDIA GPUs of compute capability 8.0 and later"
    if kind == "cuda" and capability < (8, 0):
        reasons["bf16"] = "this GPU computes no bfloat16; float16 needs loss scaling (chapter 10)"
    elif roof.flops["bfloat16"] < 0.8 * roof.flops["float32"]:
        reasons["bf16"] = "bfloat16 products are slower than float32 ones here: no hardware for them"
    if kind == "mps":
        reasons["compile"] = "torch.compile is a prototype on mps"
    elif kind == "cuda" and (capability < (7, 0) or not importlib.util.find_spec("triton")):
        reasons["compile"] = (
            "it needs Triton, which PyTorch does not bring on Windows, and compute capability 7.0"
        )
    elif kind == "cpu" and not has_cpp_compiler():
        reasons["compile"] = "it needs a C++ compiler, and none is on the path; install one or set CXX"
    if missing := {"bf16", "compile"} & set(reasons):
        reasons.setdefault("bf16 weights", f"it stands on {' and '.join(sorted(missing))}")
    return reasons


# %%
no_bf16 = Roofline("old", {"float32": 2.0, "bfloat16": 1.0}, 1.0)
for name, reason in obstacles(torch.device("mps"), no_bf16).items():
    print(f"{name}: {reason}")

# %% tags=["nbval-ignore-output"]
roof = measure_roofline(device)
rates = ", ".join(f"{name} {rate / 1e9:,.0f} GFLOP/s" for name, rate in roof.flops.items())
print(f"{rates}, copy {roof.bandwidth / 1e9:.0f} GB/s")


# %%
#| export ladder
import platform
import time
from pathlib import Path


def peak_mib(device: torch.device) -> float | None:
    """Peak memory in MiB: allocated on the GPU; elsewhere resident in the process, PyTorch included."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    if not importlib.util.find_spec("resource"):
        return None  # Windows
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


# %% tags=["nbval-ignore-output"]
print(
    f"this notebook has needed {peak_mib(device):,.0f} MiB so far" if peak_mib(device) else "not known here"
)


# %%
#| export ladder
import time
from collections.abc import Callable

import torch
from torch import Tensor

from nanogpt.roofline import measure
from nanogpt.roofline import fault_seconds, measure_roofline
from nanogpt.rungs import obstacles
from nanogpt.model import GPT, GPTConfig
from nanogpt.rungs import make_step, rungs_up_to

LOSS_STEPS = 6  # they warm up as well: the loss that is compared is that of the sixth step


def first_steps(model: GPT, step: Callable[[], Tensor]) -> tuple[dict, float]:
    """Take LOSS_STEPS steps: what they tell of a rung, and the seconds of the last one."""
    seconds, grads = [], []
    for _ in range(LOSS_STEPS):
        start = time.perf_counter()
        loss = step().item()  # waits for the device
        seconds.append(time.perf_counter() - start)
        grads.append(model.transformer.h[0].attn.c_attn.weight.grad.float().norm().item())
    return {"first_step_s": seconds[0], "loss": loss, "grad_norm": grads[0]}, seconds[-1]


# %% tags=["nbval-ignore-output"]
for on in ({"float32"}, {"float32", "flash", "bf16"}):
    print(sorted(on), first_steps(*make_step(tiny, on, 4, 32, torch.device("cpu")))[0])


# %%
#| export ladder
def run_rung(
    name: str, config: GPTConfig, B: int, T: int, device: torch.device, skipped, seconds: float
) -> dict:
    """Measure one rung in this process: 20 steps after first_steps; fewer, on a CPU, where `seconds` are short."""
    model, step = make_step(config, rungs_up_to(name, skipped), B, T, device)
    told, last = first_steps(model, step)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)  # compiling needs memory too
    affordable = 20 if device.type == "cuda" else int(seconds / last)
    timing = measure(step, device, repeats=max(5, min(20, affordable)), warmup=0)
    return told | {
        "name": name,
        "ms": 1e3 * timing.median,
        "q1_ms": 1e3 * timing.q1,
        "q3_ms": 1e3 * timing.q3,
        "steps": len(timing.times),
        "tokens_per_s": B * T / timing.median,
        "peak_mib": peak_mib(device),
    }


# %% tags=["nbval-ignore-output"]
rung = run_rung("flash", tiny, 4, 32, torch.device("cpu"), ["compile", "TF32", "bf16"], seconds=1)
print(json.dumps(rung, indent=1))

# %% [markdown]
r"""
The parent starts one process after another. A process that fails says why; one that ran out of memory may say so, or may
have been killed.
"""

# %%
#| export ladder
import json
import os
import shlex
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}  # glibc: keep what is freed
NO_MEMORY = "out of memory", "can't allocate", "not enough memory", "alloc_failed", "bad_alloc", "memoryerror"
CHILD = "import sys; from nanogpt.ladder import main; sys.exit(main(sys.argv[1:]))"


def in_process(arguments: list[str], keep: bool = False) -> dict:
    """What `ladder --rung ...` prints, from a process of its own that keeps its memory if asked to.

    Raises MemoryError where it had too little, RuntimeError with what it said for any other failure.
    """
    package = str(Path(__file__).parents[1])
    env = os.environ | {"PYTHONPATH": os.pathsep.join([package, os.environ.get("PYTHONPATH", "")])}
    env |= KEEP if keep else {}
    call = [sys.executable, "-c", CHILD, *arguments]
    done = subprocess.run(call, capture_output=True, text=True, env=env)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    reason = next((line for line in lines if line.startswith("ladder: ")), lines[-1]).removeprefix("ladder: ")
    if done.returncode in (-9, 137) or any(sign in done.stderr.lower() for sign in NO_MEMORY):
        raise MemoryError(reason)
    raise RuntimeError(reason)


# %% [markdown]
r"""
A measurement that does not say where and how it was taken is worth nothing a month later.
"""


# %%
#| export ladder
import subprocess
from pathlib import Path


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


# %%
#| export ladder
import time


def describe(device: torch.device) -> dict:
    """Where and when something was measured. load: processes that wanted a core in the last minute."""
    return {
        "device": device_name(device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


# %% tags=["nbval-ignore-output"]
print(json.dumps(describe(device), indent=1))


# %% [markdown]
r"""
MFU divides by one peak on all rungs, the highest that the machine has, so that it rises exactly as time falls.

A rung must agree with the first one. The loss alone is a blunt judge: after six steps a model that sees the future has
nearly the same. The gradient of the first layer's `c_attn` passes through everything, and is off by half without the
causal mask.
"""


# %%
#| export ladder
from nanogpt.bench import mfu, step_flops
from nanogpt.roofline import Roofline, peak_of
from nanogpt.rungs import RUNGS, predict

SIZES = {"124M": GPTConfig(), "small": GPTConfig(block_size=256, n_layer=4, n_head=6, n_embd=192)}
TOLERANCE = {"loss": 0.05, "grad_norm": 0.05}  # nats; share of the first rung's


def measure_machine(device: torch.device) -> dict:
    """`describe`, with the measured limits on which predictions stand and the peak that MFU divides by."""
    about = describe(device)  # first: the load should not count our own work
    sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    limits = in_process(["--rung", "roofline", "--device", str(device)])
    return {
        **about,
        "peak_flops": 1e12 * sheet.half if sheet else max(limits["roofline"]["flops"].values()),
        "peak_source": sheet.source if sheet else "measured matrix product",
        **limits,
    }


# %%
#| export ladder
def judge(rung: dict, result: dict, skipped) -> dict:
    """The rung with its MFU, its predicted time, and whether it agrees with the first rung."""
    config, B, T = SIZES[result["size"]], result["batch"], result["seq"]
    parts = predict(
        config, rungs_up_to(rung["name"], skipped), B, T, Roofline(**result["roofline"]), result["fault_s"]
    )
    first = (result["rungs"] or [rung])[0]
    return rung | {
        "mfu": mfu(step_flops(config, B, T), rung["ms"] / 1e3, result["peak_flops"]),
        "predicted_ms": 1e3 * sum(parts.values()),
        "agrees": abs(rung["loss"] - first["loss"]) <= TOLERANCE["loss"]
        and abs(rung["grad_norm"] / first["grad_norm"] - 1) <= TOLERANCE["grad_norm"],
    }


def row(result: dict) -> str:
    """The last rung as one line: time, spread, rate, MFU, memory, loss, and what it gained over the one before."""
    *before, rung = result["rungs"]
    text = f"{rung['name']:13} {rung['ms']:8.1f} ms ({rung['q1_ms']:.1f} to {rung['q3_ms']:.1f})"
    text += f" {rung['tokens_per_s']:9.0f} tok/s  MFU {rung['mfu']:5.1%}"
    text += f"  {rung['peak_mib']:6.0f} MiB" if rung["peak_mib"] else ""
    text += f"  loss {rung['loss']:.3f}"
    if not rung["agrees"]:
        text += f" DISAGREES with {before[0]['loss']:.3f}, gradient {rung['grad_norm'] / before[0]['grad_norm']:.2f}×"
    if before:
        last = before[-1]
        text += (
            f"  {last['ms'] / rung['ms']:.2f}×, predicted {last['predicted_ms'] / rung['predicted_ms']:.2f}×"
        )
    return text


# %% [markdown]
r"""
The climb itself. A rung that fails is skipped like one that the machine cannot do.
"""


# %%
#| export ladder
def measure_rungs(
    machine: dict, size: str, B: int, T: int, device: torch.device, skip, seconds: float, say
) -> dict:
    """Measure all rungs at one batch size; what `climb` returns. Raises MemoryError where it does not fit."""
    common = ["--size", size, "--batch", str(B), "--seq", str(T), "--device", str(device)]
    result = machine | {"size": size, "batch": B, "seq": T, "rungs": [], "skipped": []}
    result["command"] = shlex.join(
        ["python", "-m", "nanogpt", "ladder", *common, *(["--skip", *skip] if skip else [])]
    )
    skipped = obstacles(device, Roofline(**machine["roofline"]), skip)
    for name in RUNGS:
        if name not in skipped:
            options = ["--rung", name, "--seconds", str(seconds / len(RUNGS)), "--skip", *skipped]
            try:
                rung = in_process(common + options, keep="kept memory" in rungs_up_to(name, skipped))
            except RuntimeError as error:
                skipped[name] = f"it failed: {error}"
        if name in skipped:
            result["skipped"].append({"name": name, "reason": skipped[name]})
            say(f"{name:13} skipped: {skipped[name]}")
        else:
            result["rungs"].append(judge(rung, result, skipped))
            say(row(result))
    return result


# %% [markdown]
r"""
Rungs with different batches cannot be compared. So where memory runs out, the batch is halved and all starts over.
"""


# %%
#| export ladder
def climb(size: str, B: int, T: int, device: torch.device, skip=(), seconds: float = 240, say=print) -> dict:
    """Measure the whole ladder, each rung in a process of its own; the result is ready for json.dump.

    seconds: about how long the timed steps may take in all. A batch that does not fit is halved.
    """
    machine, asked = measure_machine(device), B
    say(f"{machine['device']}: GPT-2 {size}, T={T}; a line for each rung, some minutes in all")
    while True:
        say(f"batch {B}")
        try:
            return measure_rungs(machine, size, B, T, device, skip, seconds, say) | {"asked_batch": asked}
        except MemoryError as error:
            if B == 1:
                raise RuntimeError(f"batch 1 runs out of memory ({error}); give a shorter --seq") from error
            say(f"out of memory at batch {B}: starting over with half of it")
            B //= 2


# %%
#| export ladder
def draw(result: dict):
    """The ladder as a staircase, measured and predicted: a matplotlib Figure."""
    from matplotlib.figure import Figure

    rungs = result["rungs"]
    names, ms, predicted, q1, q3 = (
        [r[key] for r in rungs] for key in ("name", "ms", "predicted_ms", "q1_ms", "q3_ms")
    )
    edges = [i - 0.5 for i in range(len(rungs) + 1)]
    fig = Figure(figsize=(7, 3.6))
    ax = fig.subplots()
    ax.stairs(ms, edges, fill=True, color="C0", alpha=0.3)
    ax.stairs(ms, edges, baseline=None, color="C0", lw=2, label="measured, median and middle half")
    spread = [m - a for m, a in zip(ms, q1)], [b - m for m, b in zip(ms, q3)]
    ax.errorbar(range(len(rungs)), ms, spread, fmt="none", color="C0", capsize=3)
    ax.stairs(predicted, edges, baseline=None, color="C1", ls="--", label="predicted")
    for i, rung in enumerate(rungs):
        mark = "" if rung["agrees"] else "\nloss disagrees"
        ax.text(i, q3[i], f"{ms[0] / ms[i]:.2f}×{mark}", ha="center", va="bottom", fontsize=9)
    ax.set_xticks(range(len(rungs)), names, rotation=25, ha="right")
    ax.set(ylabel="ms a step", ylim=(0, 1.15 * max(q3 + predicted)))
    ax.set_title(f"{result['device']}: {result['size']}, B={result['batch']}, T={result['seq']}")
    ax.legend(fontsize=8)
    fig.tight_layout()
    return fig


# %% [markdown]
r"""
And the command line around it. Files are written at the end, whole.
"""

# %%
#| export ladder
import argparse

DEFAULTS = {"cuda": ("124M", 16, 1024), "mps": ("124M", 4, 256), "cpu": ("small", 1, 256)}
EXAMPLE = "python -m nanogpt ladder --size 124M --batch 4 --seq 64 --out ladder.json --plot ladder.png"


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m nanogpt ladder",
        description="Train the same GPT-2 a few steps in nine ways, each on top of the last, and time it.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(
            ["rungs:", *(f"  {n:13} {what}" for n, what in RUNGS.items()), "", f"example: {EXAMPLE}"]
        ),
    )
    add = parser.add_argument
    add("--size", choices=SIZES, help="default: 124M on a GPU, small on a CPU")
    add("--batch", type=int, help="sequences a step; halved when memory runs out")
    add("--seq", type=int, help="tokens a sequence")
    add("--device", help="cuda, mps or cpu; default: the best that is there")
    add("--skip", nargs="*", default=[], choices=RUNGS, metavar="NAME", help="rungs to leave out")
    add("--seconds", type=float, default=240, help="for the timed steps of all rungs together")
    add("--out", type=Path, help="write the measurements there, as JSON")
    add("--plot", type=Path, help="write the staircase there, as PNG")
    add("--rung", choices=["roofline", *RUNGS], metavar="NAME", help="measure it alone, print JSON")
    return parser.parse_args(argv)


# %%
#| export ladder
import importlib.util


def checked(args: argparse.Namespace, device: torch.device) -> tuple[str, int, int]:
    """Size, B and T, with this device's defaults where nothing is given. Raises ValueError or OSError."""
    given = args.size, args.batch, args.seq
    size, B, T = (b if a is None else a for a, b in zip(given, DEFAULTS[device.type]))
    longest = SIZES[size].block_size
    if B < 1 or not 1 <= T <= longest:
        raise ValueError(
            f"--batch {B} --seq {T}: a batch is at least 1, and {size} takes 1 to {longest} tokens"
        )
    if not args.seconds >= 0:
        raise ValueError(f"--seconds {args.seconds} must be at least 0")
    for path in filter(None, (args.out, args.plot)):
        if not path.resolve().parent.is_dir():
            raise OSError(f"{path.parent} is no folder; make it first")
    if args.plot and not importlib.util.find_spec("matplotlib"):
        raise ValueError("--plot needs matplotlib: pip install matplotlib, or give --out alone")
    return size, B, T


# %%
#| export ladder
from nanogpt.device import pick_device
from nanogpt.files import atomically, save_json


def run(args: argparse.Namespace) -> None:
    """What main does once the arguments are parsed."""
    device = pick_device(args.device)
    size, B, T = checked(args, device)
    if args.rung == "roofline":
        fault = fault_seconds() if device.type == "cpu" else 0.0
        print(json.dumps({"roofline": asdict(measure_roofline(device)), "fault_s": fault}))
    elif args.rung:
        print(json.dumps(run_rung(args.rung, SIZES[size], B, T, device, args.skip, args.seconds)))
    else:
        result = climb(size, B, T, device, args.skip, args.seconds, lambda text: print(text, flush=True))
        if args.out:
            save_json(args.out, result)
        if args.plot:
            with atomically(args.plot) as file:
                draw(result).savefig(file, format="png", dpi=120)


# %%
#| export ladder
def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt ladder`: measure every rung on this machine; 0, 2 for bad input, 130 on Ctrl-C."""
    args = arguments(argv)
    try:
        run(args)
    except KeyboardInterrupt:
        print("ladder: stopped; nothing was written", file=sys.stderr)
        return 130
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        print(f"ladder: {error}", file=sys.stderr)
        return 2
    return 0


# %% [markdown]
r"""
## See: the ladder on this machine

The cell runs the command as you would in a terminal, at a size that fits a chapter. It measures what the package holds:
whoever has changed a cell above runs the checkpoint first.
"""

# %% tags=["nbval-ignore-output"]
if device.type == "cuda":
    torch.cuda.empty_cache()  # the rungs have processes of their own, and need the memory
out = Path(tempfile.mkdtemp()) / "ladder.json"
options = {"ci": ["--seq", "64", "--seconds", "1"], "laptop": ["--seq", "128", "--seconds", "6"], "gpu": []}
call = [sys.executable, "-m", "nanogpt", "ladder", *options[scale], "--out", str(out)]
done = subprocess.run(call, capture_output=True, text=True)
print(done.stdout + done.stderr)
assert done.returncode == 0, "the ladder did not end well; its last line says why"
live = json.loads(out.read_text())

# %%
show(
    draw(live),
    alt="A staircase of milliseconds a step, one stair a rung, measured and predicted, with the speed-up over the first rung on each.",
)


# %% tags=["nbval-ignore-output"]
def gains(result):
    """(name, gain, predicted gain) of each rung over the one before."""
    for before, rung in zip(result["rungs"], result["rungs"][1:]):
        yield rung["name"], before["ms"] / rung["ms"], before["predicted_ms"] / rung["predicted_ms"]


print("rung           gain  predicted  error")
for name, gain, predicted in gains(live):
    print(f"{name:13} {gain:5.2f}×   {predicted:5.2f}×   {gain / predicted:5.2f}×")
best = min(live["rungs"], key=lambda rung: rung["ms"])
print(f"all together: {live['rungs'][0]['ms'] / best['ms']:.2f}×, fastest rung: {best['name']}")

# %% [markdown]
r"""
Read the last column. Where it is far from one, the model of bytes and FLOPs left something out: products too small to
reach the peak that a large square one reached, tensors that stay in a cache and never travel, calls that cost time and
move nothing, alignment, or a machine that was busy with something else. Each of these can be tested by changing
`--batch` or `--seq`.

*Check.* A rung may be slow, but it may not be wrong:
"""

# %%
assert all(rung["agrees"] for rung in live["rungs"])
assert {r["name"] for r in live["rungs"]} | {r["name"] for r in live["skipped"]} == set(RUNGS)
print("every rung that ran agrees with the first one, and every other one has a reason")

# %% [markdown]
r"""
## Beside other machines

Recorded runs of the same command, drawn as they were measured:
"""

# %%
files = sorted(Path("../data/measurements").glob("*.json"))
recorded = [run for run in (json.loads(path.read_text()) for path in files) if "rungs" in run]
for result in recorded:
    print(f"{result['device']}, torch {result['versions']['torch']}, {result['date']}: {result['command']}")
    for rung in result["skipped"]:
        print(f"  without {rung['name']}: {rung['reason']}")
    show(draw(result), alt=f"The staircase recorded on {result['device']}, measured and predicted.")

# %% [markdown]
r"""
Published logs of other programs, on other devices, as tokens a second, which is the one thing that they have in common;
the label says the rest. The run above is there too, though its model is smaller.
"""


# %%
def published(name):
    """Rows of a reference table as (label, tokens/s); a row whose tokens a step are not known has none."""
    with open(f"../data/reference/{name}.csv", encoding="utf-8") as file:
        for line in DictReader(file):
            if line["tokens_per_step"]:
                label = f"{line['gpus']}× {line['device']}, {line['precision']}, {line['program']}"
                yield label, 1e3 * int(line["tokens_per_step"]) / float(line["ms_per_step"])


bars = [(*row, "C2") for name in ("cpu", "single_gpu", "megatron", "large_batch") for row in published(name)]
for result, colour in [(result, "C0") for result in recorded] + [(live, "C1")]:
    for rung in (result["rungs"][0], min(result["rungs"], key=lambda rung: rung["ms"])):
        label = (
            f"{result['device']}, {result['size']}, B={result['batch']}, T={result['seq']}: {rung['name']}"
        )
        bars.append((label, rung["tokens_per_s"], colour))

# %%
fig, ax = plt.subplots(figsize=(6.5, 0.3 * len(bars) + 0.9))
labels, rates, colours = zip(*bars)
ax.barh(range(len(bars)), rates, color=colours)
ax.set_yticks(range(len(bars)), labels, fontsize=8)
ax.set(xscale="log", xlabel="tokens/s (green: published; blue: recorded; orange: this run)")
ax.invert_yaxis()
show(
    fig,
    alt="Tokens per second on a logarithmic axis: published figures for CPUs and GPUs, and the first and best rungs of recorded ladders and of this run.",
)

# %% [markdown]
r"""
## Checkpoint
"""

# %%
checkpoint("14")

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
