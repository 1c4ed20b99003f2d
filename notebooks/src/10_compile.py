# %% [markdown]
r"""
# 10 · Compile: one kernel instead of nine

Eager PyTorch runs one operation after the other. Each reads its input from memory and writes its result back, and the
next one fetches it again. Chapter 08 showed that between the matrix products a step does little else. A compiler that
sees several operations at once can keep the numbers in registers. `torch.compile` is that compiler. It costs time
before it saves any, and it gives up silently when it cannot follow. This chapter shows both.
"""

# %%
import logging
import re
import time
from contextlib import contextmanager

import matplotlib.pyplot as plt
import torch
import torch._dynamo
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter
from torch._inductor import metrics
from torch._inductor.utils import run_and_get_code
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.notebook import checkpoint, show
from nanogpt.bench import measure
from nanogpt.device import pick_device, pick_scale, seed_everything, synchronize
from nanogpt.model import GPT, GPTConfig, check_ids
from nanogpt.sample import generate

device = pick_device()
scale = pick_scale(device)
g = seed_everything(0)

# %%
names = ["add", "mul", "pow", "mul", "add", "mul", "tanh", "add", "mul"]
fig, ax = plt.subplots(figsize=(7, 2.2))
box = dict(boxstyle="round", fc="C0", ec="none", alpha=0.3)
for i, name in enumerate(names):
    ax.text(i, 1, name, ha="center", va="center", bbox=box)
    for x, ends in [(i - 0.15, (0.8, 0.35)), (i + 0.15, (0.35, 0.8))]:
        ax.annotate("", (x, ends[1]), (x, ends[0]), arrowprops=dict(arrowstyle="->", color="C3"))
ax.plot([-0.5, 13.5], [0.25, 0.25], "k", lw=6, solid_capstyle="butt")
ax.text(6.5, -0.1, "memory", ha="center", va="center")
ax.text(11.5, 1, "tanh(x + …) …\nin registers", ha="center", va="center", bbox=box | {"fc": "C2"})
for x, ends in [(11.3, (0.7, 0.35)), (11.7, (0.35, 0.7))]:
    ax.annotate("", (x, ends[0]), (x, ends[1]), arrowprops=dict(arrowstyle="->", color="C3"))
ax.text(4, 1.55, "eager: one kernel each", ha="center")
ax.text(11.5, 1.55, "compiled", ha="center")
ax.set(xlim=(-0.7, 13.7), ylim=(-0.3, 1.8))
ax.axis("off")
show(
    fig,
    alt="Left: nine boxes, each with an arrow from memory and one back. Right: one box with one arrow each way.",
)

# %% [markdown]
r"""
## Predict

Write three answers down.

1. GELU, written out, has nine operations on a tensor of n numbers. How many times n numbers go to or from memory in eager
   mode? And in one kernel?
2. Compiling takes seconds, a step milliseconds. After how many steps has compiling a small GPT paid for itself?
3. A compiled model reads texts of 8, 9, 10, … 19 tokens. How often is it compiled?

## Is there a compiler?

On a CPU, PyTorch writes C++ and needs a compiler for it; on a GPU it writes Triton. Where one is missing, the first call of a
compiled function fails, with a long trace. Better to ask before:
"""


# %%
def why_no_compiler(device: torch.device) -> str | None:
    """One sentence that says why torch.compile cannot make kernels for this device; None where it can."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        return (
            None if has_triton() else "Triton is missing; on Windows, `pip install triton-windows` brings it"
        )
    if device.type == "mps":
        return "kernels for Apple's GPU are a prototype; NANOGPT_DEVICE=cpu runs this chapter"
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        get_cpp_compiler()
    except Exception:  # the class differs by platform
        return "no C++ compiler found; install g++ (Linux), Xcode's command line tools or Visual Studio's"
    return None


missing = why_no_compiler(device)
backend = "aot_eager" if missing else "inductor"

# %% tags=["nbval-ignore-output"]
print(f"backend {backend!r}:", missing or f"kernels for {device.type} can be made here")

# %% [markdown]
r"""
Without one, the chapter goes on with `backend="aot_eager"`: graphs are captured, differentiated, guarded and run, operation by
operation. Only what needs generated kernels is left out, and says so.

## Build: capture

Here is GELU (chapter 04) as a paper writes it, after a bias. A *backend* is any function that takes the captured graph and
returns something to call. Ours keeps the graph and changes nothing:
"""


# %%
def gelu(x, bias):
    x = x + bias
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def capture(function, *inputs):
    """The graphs that torch.compile makes of a function, in order."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    torch.compile(function, backend=keep)(*inputs)
    return graphs


n = {"ci": 2**16, "laptop": 2**22, "gpu": 2**26}[scale]
x, bias = torch.randn(n // 1024, 1024, generator=g).to(device), torch.randn(1024, generator=g).to(device)
(graph,) = capture(gelu, x, bias)
for node in graph.graph.nodes:
    print(
        f"{node.op:14} {node.name:7} {getattr(node.target, '__name__', '') if callable(node.target) else ''}"
    )

# %% [markdown]
r"""
The front half, *Dynamo*, reads Python's bytecode and writes down which tensor operations happen (Ansel et al. 2024, §3). No number
was computed for that: shapes and dtypes suffice.

## Build: fusion, counted

First eager. A dispatch mode sees every operation, so kernels and bytes can be counted. Each reads its inputs and writes its
output; a view does neither.
"""


# %%
class Traffic(TorchDispatchMode):
    """Counts operations that compute something, and the bytes of the tensors that they read and write."""

    def __init__(self):
        super().__init__()
        self.kernels = self.nbytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        tensors = lambda tree: [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]  # noqa: E731
        if not function.is_view and function is not torch.ops.aten.detach.default:
            self.kernels += 1
            self.nbytes += sum(t.numel() * t.element_size() for t in tensors((args, kwargs)) + tensors(out))
        return out


with Traffic() as eager:
    expected = gelu(x, bias)
print(f"eager: {eager.kernels} kernels, {eager.nbytes / x.nbytes:.2f} times the size of x")

# %% [markdown]
r"""
Answer 1, first half: it is more than two per operation, since some read two tensors. Now with the back half, *Inductor*. A function in
one kernel touches its inputs and its output, once.
"""

# %%
if missing:
    print(missing)
    compiled_gelu = torch.compile(gelu, backend=backend)
else:
    torch._dynamo.reset()
    metrics.reset()
    compiled_gelu = torch.compile(gelu)
    y, (code, *_) = run_and_get_code(compiled_gelu, x, bias)
    kernels, nbytes = metrics.generated_kernel_count, x.nbytes + bias.nbytes + y.nbytes
    print(f"compiled: {kernels} kernel, {nbytes / x.nbytes:.2f} times the size of x")
    print(f"{eager.kernels / kernels:.0f} times fewer kernels, {eager.nbytes / nbytes:.1f} times fewer bytes")
    assert kernels == 1
assert torch.allclose(compiled_gelu(x, bias), expected, atol=1e-5)

# %% [markdown]
r"""
The code can be read. Every line is one node of the graph, and the temporaries are registers:
"""

# %% tags=["nbval-ignore-output"]
if not missing:
    lines = [line.strip() for line in code.splitlines() if re.search(r"\btmp\d+\b|tl\.(load|store)", line)]
    print("\n".join(line[:110] for line in lines[:24]))

# %% [markdown]
r"""
If memory is the limit, the time falls as the bytes do. The third row is PyTorch's own `F.gelu`, a kernel that somebody fused by hand
(the bias is still an operation of its own):
"""

# %% tags=["nbval-ignore-output"]
calls = {
    "eager": lambda: gelu(x, bias),
    "compiled": lambda: compiled_gelu(x, bias),
    "F.gelu": lambda: F.gelu(x + bias, approximate="tanh"),
}
timings = {name: measure(call, device, repeats=9, warmup=2) for name, call in calls.items()}
for name, timing in timings.items():
    print(f"{name:9} {timing}: {timings['eager'].median / timing.median:.1f} × as fast as eager")
if not missing:
    print(f"predicted from the bytes alone: {eager.nbytes / nbytes:.1f} ×")

# %% [markdown]
r"""
Where the measured factor falls short of the prediction, arithmetic has become the limit (tanh is not free), or the caches had spared
eager mode some of its traffic.

## See: when does it pay?

A training step, forward and backward. Compiling happens in the first call. A second run of this notebook finds kernels in a cache on
disk, so the first run tells the true cost.
"""

# %%
sizes = {
    "ci": dict(n_layer=1, n_head=2, n_embd=64, block_size=64),
    "laptop": dict(n_layer=1, n_head=4, n_embd=128, block_size=128),
    "gpu": dict(n_layer=12, n_head=12, n_embd=768, block_size=1024),
}
config = GPTConfig(vocab_size=256, **sizes[scale])
model = GPT(config, generator=seed_everything(0)).to(device)
ids = torch.randint(0, 256, (8, config.block_size + 1), generator=g).to(device)


def step(call):
    """Forward and backward; returns the loss."""
    model.zero_grad(set_to_none=True)
    loss = call(ids[:, :-1], ids[:, 1:])[1]
    loss.backward()
    return loss


expected = step(model).item()
with Traffic() as eager:
    step(model)
print(f"eager: {eager.kernels} kernels in a step, loss {expected:.3f}")

# %% tags=["nbval-ignore-output"]
compiled = torch.compile(model, backend=backend)
start = time.perf_counter()
loss, codes = run_and_get_code(step, compiled)
loss = loss.item()
synchronize(device)
compile_seconds = time.perf_counter() - start
called = lambda pattern: sum(len(re.findall(pattern, code, re.M)) for code in codes)  # noqa: E731
print(f"first step {compile_seconds:.1f} s, loss {loss:.3f}")
if missing:
    print(missing)
else:
    generated, library = (
        called(r"^ +(cpp_fused|triton_)\w+[.(]"),
        called(r"(extern_kernels|ops\.aten)\.\w+[.(]"),
    )
    print(
        f"a step calls {generated} generated kernels and {library} of the library, for {eager.kernels} in eager mode"
    )
assert abs(loss - expected) < 1e-4

# %% tags=["nbval-ignore-output"]
times = {"eager": [], "compiled": []}
for _ in range(3):  # eager, compiled, eager, ... so that other programs disturb both alike
    for name, call in {"eager": model, "compiled": compiled}.items():
        times[name] += measure(lambda: step(call), device, repeats=5, warmup=1).times  # noqa: B023
seconds = {name: sorted(ts)[len(ts) // 2] for name, ts in times.items()}
saved = seconds["eager"] - seconds["compiled"]
noise = max(sorted(ts)[len(ts) // 4 * 3] - sorted(ts)[len(ts) // 4] for ts in times.values())  # quartiles
for name, s in seconds.items():
    print(f"{name:9} {1e3 * s:.1f} ms a step")
if missing:
    print(missing)
elif saved > noise:
    print(f"break-even after {compile_seconds / saved:,.0f} steps")
else:
    print("no break-even: on this machine, at this size, a compiled step is not measurably faster")

# %% tags=["nbval-ignore-output"]
if not missing:
    last = 2 * compile_seconds / saved if saved > noise else 1000
    fig, ax = plt.subplots(figsize=(6, 2.6))
    ax.plot([0, last], [-compile_seconds, last * saved - compile_seconds])
    ax.axhline(0, ls=":", c="gray")
    ax.set(
        xlabel="training steps done",
        ylabel="seconds won by compiling",
        title="The debt, and how fast it is paid",
    )
    show(
        fig, alt="Seconds won by compiling against steps: a line that starts below zero by the compile time."
    )

# %% [markdown]
r"""
Answer 2 is your machine's. What decides: the share of the step that is not matrix products (fusion leaves those alone), the number of
kernels that a GPU has to be told to start one by one, and how slow memory is compared with arithmetic. A small model on a CPU gains
little, since `F.gelu` and `LayerNorm` are fused by hand already. A GPU gains most, and there `mode="reduce-overhead"` also replays the
whole step as one CUDA graph. Chapter 12 measures compile as a rung.

## Graph breaks

What if Python must know a number before it can go on? Dynamo cannot: it has no numbers. It ends the graph there, lets Python run the line,
and starts a new graph after it. Nothing fails, and fusion ends at the break. Provoked, and found with `explain`:
"""


# %%
def clipped(x):
    h = torch.tanh(x)
    if h.abs().max() > 0.9:
        h = 0.5 * h
    return h + 1


small = torch.randn(8, 8, generator=g)
torch._dynamo.reset()
report = torch._dynamo.explain(clipped)(small)
print(f"{report.graph_count} graphs, {report.graph_break_count} break")
print("reason:", report.break_reasons[0].reason.split()[0])
try:
    torch.compile(clipped, backend="eager", fullgraph=True)(small)
except torch._dynamo.exc.Unsupported as error:
    print("fullgraph=True:", str(error).splitlines()[0])

# %% [markdown]
r"""
`fullgraph=True` turns a silent break into an error, as it should be in a training script. The remedy is to choose between
*values* instead of lines:
"""


# %%
def mended(x):
    h = torch.tanh(x)
    return torch.where(h.abs().max() > 0.9, 0.5 * h, h) + 1


assert torch.equal(torch.compile(mended, backend="eager", fullgraph=True)(small), clipped(small))
print("one graph, same result")

# %% [markdown]
r"""
Such a line hides in our own model. `check_ids` compares token ids with the vocabulary, to give a clear error in place of a crash. That
takes numbers. Chapter 04 therefore leaves it out while compiling. What would happen if it did not? The log names the line;
`TORCH_LOGS=graph_breaks` in a shell prints it all.
"""


# %%
def checked_forward(idx):
    check_ids(idx, config.vocab_size)
    return model(idx)[0]


@contextmanager
def compiler_log(**logs):
    """The lines that TORCH_LOGS would print meanwhile, such as recompiles=True, in a list."""
    lines, logger = [], logging.getLogger("torch._dynamo")
    keep, handlers = logging.Handler(), logger.handlers
    keep.emit = lambda record: lines.extend(record.getMessage().splitlines())
    torch._logging.set_logs(**logs)
    logger.handlers = [keep]
    try:
        yield lines
    finally:
        logger.handlers = handlers
        torch._logging.set_logs()


cpu_ids = ids[:, :8].cpu()
model.cpu()
for name, function in {
    "the model as it is": lambda idx: model(idx)[0],
    "checked inside": checked_forward,
}.items():
    torch._dynamo.reset()
    with compiler_log(graph_breaks=True) as lines:
        report = torch._dynamo.explain(function)(cpu_ids)
    print(f"{name}: graphs {report.graph_count}, breaks {report.graph_break_count}")
    print("\n".join(line.strip() for line in lines if "int(idx" in line))

# %% [markdown]
r"""
Other lines of that kind: `loss.item()` for a log, `.tolist()`, `.cpu().numpy()`. They belong outside the compiled function.

## Recompiles

A compiled graph is valid for what it was captured with: shapes, dtypes, Python numbers, the training flag, whether gradients are
wanted. Dynamo turns these into *guards*, checks them at every call, and compiles again when one fails. Count it with a backend that
counts:
"""


# %%
def compilations(function, calls, **options):
    """How often torch.compile has compiled after each call; calls: a list of argument tuples."""
    torch._dynamo.reset()
    counter = CompileCounter()
    compiled = torch.compile(function, backend=counter, **options)
    counts = []
    for arguments in calls:
        compiled(*arguments)
        counts.append(counter.frame_count)
    return counts


model.requires_grad_(False)
growing = [(cpu_ids[:1, :1].repeat(1, T),) for T in range(8, 20)]
with compiler_log(recompiles=True) as lines:
    print("default:      ", compilations(model, growing))
    print("dynamic=True: ", compilations(model, growing, dynamic=True))
    print("dynamic=False:", compilations(model, growing, dynamic=False))

# %% [markdown]
r"""
Answer 3: by default twice. When a size has changed once, Dynamo makes it a symbol. Told so in advance, it needs one graph. Forbidden to do
so, it compiles for each length, until the count stops. The log has the reasons, and the end
(`TORCH_LOGS=recompiles` in a shell):
"""

# %%
reasons = [line.strip(" -") for line in lines if "mismatch" in line or "recompile_limit" in line]
for line in (reasons[0], reasons[-2], reasons[-1]):
    print(re.sub(r"^\d+/\d+: ", "", line.split("last reason: ")[-1]))

# %% [markdown]
r"""
At the limit it gave up compiling: further lengths run eagerly, with one line of warning. A job that got slow after a while may
have met this. Sizes are not the only guard. A number in a module that counts, a learning rate as a float, a length of one:
"""


# %%
class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


class CountingTensor(Counting):
    def __init__(self):
        super().__init__()
        self.calls = torch.zeros(())


rates = [0.3, 0.2, 0.1, 0.05]
print("a Python counter: ", compilations(Counting(), [(small,)] * 4))
print("a tensor counter: ", compilations(CountingTensor(), [(small,)] * 4))
print("rate as a float:  ", compilations(lambda x, r: x * r, [(small, r) for r in rates]))
print("rate as a tensor: ", compilations(lambda x, r: x * r, [(small, torch.tensor(r)) for r in rates]))
print("lengths 2, 3, 1:  ", compilations(lambda x: x + 1, [(small[:n],) for n in (2, 3, 1)], dynamic=True))

# %% [markdown]
r"""
The remedy is a tensor where a number changes: its value is data, its shape is what is guarded. Length 1 is always a graph of its own, because
broadcasting makes 1 special.

To find the call that recompiles, forbid it:
"""

# %%
torch._dynamo.reset()
compiled = torch.compile(model, backend="eager")
compiled(cpu_ids)
with torch._dynamo.config.patch(error_on_recompile=True):
    try:
        compiled(cpu_ids[:, :5])
    except torch._dynamo.exc.RecompileError as error:
        print(str(error).splitlines()[-1].split(": ")[-1])

# %% [markdown]
r"""
## Evaluating and writing beside a compiled step

Many training scripts switch evaluation and sampling off under compile: build-nanogpt carries the line
`use_compile = False # torch.compile interferes with HellaSwag eval and Generation` (A. Karpathy, train_gpt2.py, 2024). What interferes?
Let one compiled model do everything:
"""

# %%
model = GPT(config, generator=seed_everything(0))
counter = CompileCounter()
torch._dynamo.reset()
compiled = torch.compile(model, backend=counter)
for what, training, gradients, idx in [
    ("train", True, True, cpu_ids),
    ("evaluate", False, False, cpu_ids),
    ("train", True, True, cpu_ids),
    ("write, 3 tokens", False, False, cpu_ids[:1, :3]),
    ("write, 4 tokens", False, False, cpu_ids[:1, :4]),
    ("write, 5 tokens", False, False, cpu_ids[:1, :5]),
    ("last batch, short", True, True, cpu_ids[:5]),
    ("train", True, True, cpu_ids),
]:
    model.train(training)
    with torch.set_grad_enabled(gradients):
        compiled(idx)
    print(f"{what:18} compilations so far: {counter.frame_count}")

# %% [markdown]
r"""
Each mode costs a compilation, and so does a size that changes for the first time: in the middle of training, and as long as the first
one. Every later call has more guards to try. The way out is in what `torch.compile` returns: a *wrapper*. The model inside is the model that you had, with the same parameters.
"""

# %%
assert compiled._orig_mod is model
assert all(a is b for a, b in zip(compiled.parameters(), model.parameters()))
print(next(iter(model.state_dict())), "in the model,", next(iter(compiled.state_dict())), "in the wrapper")

# %% [markdown]
r"""
The second name is a trap: save `model.state_dict()`, not the wrapper's, or no uncompiled model will load it.

So: the compiled step trains, the model itself evaluates and writes, eagerly, with chapter 07's cache. For many evaluations on many lengths, compile
a *second* time, with `dynamic=True`. The parameters are shared, so whatever one learns the others know. *Check:* the law is that nothing is compiled
after the first round, and that the losses and the texts are those of an eager run.
"""


# %%
def run(train_call, evaluate, steps=4):
    """Train, evaluate and write in turns; returns the losses and the texts."""
    model.load_state_dict(start_weights)
    optimizer, losses, texts = torch.optim.AdamW(model.parameters(), lr=1e-3), [], []
    for n in range(steps):
        model.train()
        loss = train_call(cpu_ids[:, :-1], cpu_ids[:, 1:])[1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.eval()
            losses.append((loss.item(), evaluate(cpu_ids[: n + 2, : n + 3]).mean().item()))
        texts.append(generate(model, [1, 2, 3], 8, temperature=0))
        counts.append((training.frame_count, evaluation.frame_count))
    return losses, texts


def logits(idx):
    return model(idx)[0].log_softmax(-1)[..., 0]


start_weights = {name: p.clone() for name, p in model.state_dict().items()}
torch._dynamo.reset()
counts, training, evaluation = [], CompileCounter(), CompileCounter()
eager_run = run(model, logits)
counts.clear()
train_call = torch.compile(model, backend=training, fullgraph=True)
compiled_run = run(train_call, torch.compile(logits, backend=evaluation, dynamic=True, fullgraph=True))
print("compilations (step, evaluation) after each round:", counts)
for (a, b), (c, d) in zip(*[r[0] for r in (eager_run, compiled_run)]):
    assert abs(a - c) < 1e-4 and abs(b - d) < 1e-4
assert eager_run[1] == compiled_run[1]
print("losses and texts: those of the eager run")

# %% [markdown]
r"""
`generate` calls the model's layers, not its forward, so it never meets the wrapper. Where a script has nothing but the wrapper in its hands, a *stance*
does it, and another guards the training loop:
"""

# %%
torch._dynamo.reset()
counter = CompileCounter()
compiled = torch.compile(model, backend=counter)
compiled(cpu_ids)
with torch.compiler.set_stance("force_eager"):  # for an evaluation
    compiled(cpu_ids[:2, :3])
print("compilations:", counter.frame_count)
with torch.compiler.set_stance("fail_on_recompile"):  # once training is under way
    try:
        compiled(cpu_ids[:2, :3])
    except RuntimeError as error:
        print(str(error).split(" filename")[0])

# %% [markdown]
r"""
## Checkpoint

This chapter adds no module. Compile is one line; what counts is where it stands.
"""

# %%
checkpoint("10")

# %% [markdown]
r"""
## Exercises

1. Write LayerNorm followed by GELU with plain operations and count kernels and bytes as for `gelu`. *Check:* how many kernels does Inductor make, and why
   is it not nine times fewer? (A mean needs the whole row first.)
2. Put `print(loss.item())` into a compiled training step and find the break with `explain` and with `TORCH_LOGS=graph_breaks`. *Check:* `fullgraph=True`
   passes after your repair, and every loss is still printed.
3. Pad every text to the next power of two and count compilations over lengths 2 to 64 with `dynamic=False`. *Check:* logits of the real tokens are unchanged.
   When is this better than `dynamic=True`?
4. Sweep `n_embd` from 32 to 512 and plot the break-even step. *Check:* explain its course with the share of matrix products (chapter 08).

## Further reading

- J. Ansel et al., *PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph Compilation*, ASPLOS 2024: §3 Dynamo, §4
  Inductor, §5 dynamic shapes.
- PyTorch documentation, *torch.compile programming model*: graph breaks, recompilation, `fullgraph`, stances.
- A. Karpathy, *build-nanogpt*, 2024: `train_gpt2.py`, and the line above.
"""
