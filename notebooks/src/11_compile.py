# %% [markdown]
r"""
# 11 · Compile: one kernel instead of nine

PyTorch usually works *eagerly*: it runs one operation after the other. Each operation reads its input from memory and writes
its result back, and the next one fetches it again. Chapter 09b showed that between the matrix products a training step does
little else. A compiler that sees several operations at once can keep the numbers in registers, right where the arithmetic is
done.

`torch.compile` is such a compiler. It is one line of code. But it takes seconds before it saves anything, it silently gives
up on code that it cannot follow, and it starts again when shapes change. In this chapter you see what it does, when it pays,
and how to find the silent failures.
"""

# %%
import logging
import math
import re
import time
import warnings
from dataclasses import replace
from functools import partial

import torch
import torch._dynamo
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter
from torch._inductor.utils import run_and_get_code
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.figures import compile as figures
from course.figures.compiler import why_no_kernels
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.labs.roofline.memory import saved_bytes
from nanogpt.model import GPT, MLP, GPTConfig, check_ids
from nanogpt.labs.roofline.clock import faster, measure, timings
from nanogpt.device import synchronize
from nanogpt.sampling import generate

# %% tags=["nbval-ignore-output"]
warnings.filterwarnings("ignore", message="TensorFloat32")  # off on purpose: this chapter is about float32
torch._logging.set_logs(dynamo=logging.ERROR)  # what the compiler warns of comes in order below
device, g = pick_device(), seed_everything(0)
scale, start = pick_scale(device), time.perf_counter()
missing = why_no_kernels(device)
backend = "aot_eager" if missing else "inductor"
print(f"backend {backend!r}:", missing or f"kernels for {device.type} can be made here")
print(f"finding that out took {time.perf_counter() - start:.1f} s")

# %% [markdown]
r"""
A function that runs on the device is called a *kernel*. `torch.compile` writes the source of new kernels: C++ for a CPU,
Triton for a GPU. So it needs a compiler for this source, and without one the first call fails with a long error. The cell
above has tried it with a kernel that nobody needs. If your machine has no compiler, the chapter goes on with another
backend. It does everything but write kernels, and cells that need them say so.

## Nine operations

Here is GELU after a bias, as one would write it from the paper's formula. (Chapter 05 calls PyTorch's own function.) Count
the operations: there are nine, and each reads and writes tensors of n numbers.

*Predict.* How many times n numbers are read or written when GELU runs eagerly? And how many if one kernel did it all?
Replace `None` by your guesses.
"""

# %%
names = ["add", "mul", "pow", "mul", "add", "mul", "tanh", "add", "mul"]
show(
    figures.nine_or_one(names),
    alt="Left: nine boxes, each with one or two arrows from memory and one back. Right: one box with one arrow each way.",
)

# %%
predict("11.1", "times n numbers moved by GELU, eager", guess=None)
predict("11.2", "the same, in one kernel", guess=None)


# %%
def gelu(x, bias):
    """GELU of x + bias, operation by operation."""
    x = x + bias
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


n = {"ci": 2**16, "laptop": 2**22, "gpu": 2**26}[scale]
x, bias = torch.randn(n // 1024, 1024, generator=g).to(device), torch.randn(1024, generator=g).to(device)
expected = gelu(x, bias)
apart = (expected - F.gelu(x + bias, approximate="tanh")).abs().max().item()
print(f"{n:,} numbers; as PyTorch's own GELU to 1e-5: {apart < 1e-5}")

# %% [markdown]
r"""
To count, we use a *dispatch mode*: PyTorch shows it every operation before it runs. The operation reads its input tensors
and writes its output. A view does neither, since it only looks at the same numbers in another way.
"""


# %%
def nbytes(tree):
    """The bytes of all tensors in nested lists, tuples and dictionaries."""
    return sum(t.nbytes for t in tree_leaves(tree) if isinstance(t, torch.Tensor))


class Traffic(TorchDispatchMode):
    """Counts operations that compute something, and the bytes of the tensors that they read and write."""

    def __init__(self):
        super().__init__()
        self.kernels = self.nbytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **kwargs or {})
        if not function.is_view and function is not torch.ops.aten.detach.default:
            self.kernels += 1
            self.nbytes += nbytes((args, kwargs, out))
        return out


with Traffic() as eager:
    gelu(x, bias)
print(f"eager: {eager.kernels} kernels, {eager.nbytes / x.nbytes:.2f} times the size of x")
answer("11.1", eager.nbytes / x.nbytes)

# %% [markdown]
r"""
Seven of the operations read one tensor of n numbers and write one. Two of them, an addition and the last product, read two.
(The bias is small.) This makes 7 · 2 + 2 · 3 = 20. The formula itself needs far less: it could read x once and write the
result once.

## One line

Now we compile it. `torch.compile` returns a function that we call as before. The first call does the work of compiling.
(`run_and_get_code` makes this call, and also hands us the source that the compiler has written.)
"""

# %% tags=["nbval-ignore-output"]
torch._dynamo.reset()  # forget what was compiled, so that this cell can be run again
compiled_gelu = torch.compile(gelu, backend=backend)
start = time.perf_counter()
y, codes = run_and_get_code(compiled_gelu, x, bias)
synchronize(device)
print(
    f"first call {time.perf_counter() - start:.2f} s, then {measure(partial(compiled_gelu, x, bias), device)}"
)
assert torch.allclose(y, expected, atol=1e-5), "compiled GELU differs from eager GELU by more than 1e-5"

# %% [markdown]
r"""
The result is the same, and the first call took much longer than the others. (When you run this notebook a second time, the
compiler finds its kernels in a cache on disk. Only the first run shows the full price.)

What happened in that call? There are two halves. The front half is called *Dynamo*. It reads the Python bytecode of the
function, and writes down which tensor operations it would do. This list is a *graph*. No number is computed for it, only
shapes and dtypes are needed (Ansel et al. 2024, §3). The back half turns the graph into something that can be called; it is
called a *backend*. We can write our own. It keeps the graph for us, and changes nothing:
"""


# %%
def capture(function, *inputs):
    """The graphs that torch.compile makes of a function, in order."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    torch.compile(function, backend=keep)(*inputs)
    return graphs


(graph,) = capture(gelu, x, bias)
print(*[node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"])

# %% [markdown]
r"""
These are the nine operations of the picture. PyTorch's own backend, *Inductor*, makes kernels of them. Here is the core of
what it wrote for GELU:
"""


# %% tags=["nbval-ignore-output"]
GENERATED = r"^(cpp_fused|triton_)\w+[.(]"
LIBRARY = r"(extern_kernels|ops\.aten)\.\w+[.(]"


def called(codes, pattern):
    """The lines that call what the pattern names. (Comments and assertions may name a kernel, but call none.)"""
    lines = [line.strip() for code in codes for line in code.splitlines()]
    return [line for line in lines if re.search(pattern, line) and not line.startswith(("#", "assert_"))]


for code in codes:
    lines = [line.strip() for line in code.splitlines() if re.search(r"\btmp\d+\b|tl\.(load|store)", line)]
    print("\n".join(line[:110] for line in lines[:24]))
if missing:
    print(missing)
else:
    moved = nbytes((x, bias, y)) / x.nbytes
    print(f"{len(called(codes, GENERATED))} kernel, {moved:.2f} times the size of x")
    answer("11.2", moved)

# %% [markdown]
r"""
Look at the names `tmp0`, `tmp1` and so on. They are registers. Between the first load and the last store no memory is
touched. Putting several operations into one kernel is called *fusion*.

## Is it faster?

If memory is the limit, time should fall as the bytes do. We compare with chapter 09's `faster`. `F.gelu` is PyTorch's own
kernel, which somebody has fused by hand. (The bias is still an operation of its own.)
"""


# %% tags=["nbval-ignore-output"]
def library_gelu(x, bias):
    return F.gelu(x + bias, approximate="tanh")


for name, function in {"compiled": compiled_gelu, "F.gelu": library_gelu}.items():
    gain = faster(partial(gelu, x, bias), partial(function, x, bias), device, pairs=12)
    print(f"{name:8} is {gain} as fast as eager")
print(missing or f"expected from the bytes alone: {eager.nbytes / nbytes((x, bias, y)):.1f}×")

# %% [markdown]
r"""
If your gain is smaller than the bytes promise, arithmetic has become the limit (a tanh is not free), or a cache has spared
the eager version some of its traffic. If it is larger, the eager version also paid for starting nine kernels and for fresh
memory.

## What the backward pass needs

Training needs gradients, so each operation also *keeps* what its derivative needs. Chapter 09b's `saved_bytes` counts that.
*Predict:* does a compiled GELU keep more than an eager one, less, or the same?
"""

# %% tags=["nbval-ignore-output"]
leaf = x.detach().requires_grad_()
for name, function in {"eager": gelu, "compiled": compiled_gelu, "F.gelu": library_gelu}.items():
    kept = saved_bytes(partial(function, leaf, bias))
    print(f"{name:8} keeps {kept / x.nbytes:.2f} times the size of x")

# %% [markdown]
r"""
Eagerly, each operation decides for itself. The cube keeps its input, tanh keeps its result, and the last product keeps both
of its factors. That makes four tensors.

The compiler sees the forward and the backward pass together. (This part of it is called AOTAutograd.) It can keep the input
alone and compute everything else again, in the kernel of the backward pass, where the arithmetic costs little. So fusion can
save memory as well as time. Without a kernel to write (the backend `aot_eager`) there is less to gain. Chapter 12 builds its
attention on the same idea: compute again instead of keeping.

## When does it pay?

Now a whole training step. GPT-2 as we wrote it calls `F.gelu`, `LayerNorm` and `scaled_dot_product_attention`, all of which
somebody has fused by hand. If you invent a new activation or a new norm, you have no such kernel. So we take two models with
the same weights: GPT as it is, and the same GPT with these formulas *written out*.
"""


# %%
class NormWrittenOut(torch.nn.LayerNorm):
    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + self.eps).sqrt()
        return x * self.weight + self.bias


class MLPWrittenOut(MLP):
    def forward(self, x):
        return self.c_proj(gelu(F.linear(x, self.c_fc.weight), self.c_fc.bias))


def write_out(model):
    """A model with the same weights: LayerNorm, GELU and attention in plain operations."""
    config = replace(model.config, flash=False)  # attention in steps, chapter 04
    other = GPT(config)
    for block in other.transformer.h:
        block.ln_1, block.ln_2 = NormWrittenOut(config.n_embd), NormWrittenOut(config.n_embd)
        block.mlp = MLPWrittenOut(config)
    other.transformer.ln_f = NormWrittenOut(config.n_embd)
    other.load_state_dict(model.state_dict())
    return other


# %%
sizes = {
    "ci": dict(n_layer=1, n_head=2, n_embd=64, block_size=64),
    "laptop": dict(n_layer=1, n_head=4, n_embd=64, block_size=256),
    "gpu": dict(n_layer=4, n_head=12, n_embd=768, block_size=1024),
}
config = GPTConfig(vocab_size=256, **sizes[scale])
gpt = GPT(config, generator=seed_everything(0))
models = {"as it is": gpt.to(device), "written out": write_out(gpt).to(device)}
ids = torch.randint(0, 256, (8, config.block_size + 1), generator=g).to(device)


def step(model):
    """Forward and backward; returns the loss."""
    model.zero_grad(set_to_none=True)
    loss = model(ids[:, :-1], ids[:, 1:])[1]
    loss.backward()
    return loss


losses = {name: step(model).item() for name, model in models.items()}
print("loss", {name: round(loss, 3) for name, loss in losses.items()})
assert abs(losses["as it is"] - losses["written out"]) < 1e-4, f"two models, not one written out: {losses}"

# %% [markdown]
r"""
The two are the same function. We compile both, and count. How many kernels of libraries should be left? Fusion leaves matrix
products to libraries. A layer has four linear layers, and the head is one more. Each does one product forward and two
backward. Attention adds one call forward and one backward if it is fused, and two products forward and four backward if it
is written out.
"""

# %% tags=["nbval-ignore-output"]
compiled, compile_seconds = {}, {}
for name, model in models.items():
    with Traffic() as eager:
        step(model)
    compiled[name] = torch.compile(model, backend=backend)
    start = time.perf_counter()
    loss, codes = run_and_get_code(step, compiled[name])
    compile_seconds[name] = time.perf_counter() - start
    assert abs(loss.item() - losses[name]) < 1e-4, f"{name}: compiled, the loss is {loss.item():.4f}"
    generated, library = len(called(codes, GENERATED)), len(called(codes, LIBRARY))
    linear = 3 * (4 * config.n_layer + 1)
    wanted = linear + config.n_layer * (2 if name == "as it is" else 6)
    print(f"{name}: {eager.kernels} kernels eagerly; compiled in {compile_seconds[name]:.1f} s:", end=" ")
    print(missing or f"{generated} generated and {library} from libraries (expected {wanted})")

# %% [markdown]
r"""
So the compiled step consists of the products that it cannot avoid, and a few generated kernels between them. What else does
it save? First the memory that is kept for the backward pass:
"""

# %% tags=["nbval-ignore-output"]
for name in models:
    kept = []
    for model in (models[name], compiled[name]):
        forward = partial(model, ids[:, :-1], ids[:, 1:])
        kept.append(saved_bytes(forward, exclude=models[name].parameters()) / 2**20)
    print(f"{name}: keeps {kept[0]:.1f} MiB eagerly, {kept[1]:.1f} MiB compiled")
square = len(ids) * config.n_head * config.block_size**2  # scores of a layer
print(f"the weights of attention, T×T, take {config.n_layer * square * 4 / 2**20:.1f} MiB")

# %% [markdown]
r"""
For the model as it is, there is nothing to save: its kernels were fused by hand, and keep as little. Written out, it keeps
less once it is compiled, but still more than the model as it is. The difference is the last line, attention's T × T weights.
We come back to them below.

Second, the starts. Each kernel must be started, and Python and PyTorch's dispatcher need some microseconds for that, however
little the kernel does. We measure it with an addition of one number. (A GPU works while Python prepares the next kernel.
There the starts cost nothing as long as enough work is queued; with small layers the queue runs empty.)
"""

# %% tags=["nbval-ignore-output"]
one = torch.ones(1, device=device)
launch = min(timings(lambda: [one.add(1) for _ in range(1000)], device, 5)) / 1000
print(
    f"{1e6 * launch:.1f} µs to start a kernel, {1e3 * launch * eager.kernels:.2f} ms for {eager.kernels} of them"
)

# %% [markdown]
r"""
Third, time. Compiling is a debt, and each step pays some of it back. *Predict:* after how many steps has compiling the model
that is written out paid for itself?
"""


# %%
def break_even(compile_seconds, step_seconds, gain):
    """Steps until compiling has paid, by the Gain of a compiled step; None where no gain was measured."""
    return compile_seconds / (step_seconds * (1 - 1 / gain.ratio)) if gain.low > 1 else None


# %%
predict("11.3", "steps until compiling has paid", guess=None)

# %% tags=["nbval-ignore-output"]
debts = {}
for name, model in models.items():
    seconds = measure(partial(step, model), device, repeats=5, warmup=1).median
    gain = faster(partial(step, model), partial(step, compiled[name]), device, pairs=12)
    paid = break_even(compile_seconds[name], seconds, gain)
    debts[name] = (compile_seconds[name], compile_seconds[name] / paid if paid else None)
    after = f"paid after {math.ceil(paid):,} steps" if paid else "no saving was measured, so it never pays"
    print(f"{name}: {1e3 * seconds:.1f} ms a step, compiled {gain} as fast: {missing or after}")
answer("11.3", paid or "never")
show(
    figures.debts(debts, 2 * (paid or 500)),
    alt="Seconds won by compiling against steps, a line for each model: it starts at minus the compile time.",
)

# %% [markdown]
r"""
The answer is your machine's, and it may be "never". It depends on the share of the step that is not matrix products, on how
much of this share is fused already, on the number of kernels, and on how slow memory is compared with arithmetic. A real run
has many thousands of steps, so there the debt matters little, and the gain of each step is what counts.

On a GPU the debt is soon paid. An H100 needed 33.7 s for the first compiled step of GPT-2 124M (attention in steps, 16 × 1024 tokens, bf16) and 0.9 s for the first
eager one. From then on, each step took 62 ms instead of 173. So compiling had paid after 297 steps, and a run of 10 billion
tokens has 610,000 of them. No other change of this part has a larger factor there: 2.8 (`data/measurements/h100.json`).

Two modes go further on CUDA. `mode="reduce-overhead"` records the kernels of a pass as a *CUDA graph*, which is then started
as a whole. `mode="max-autotune"` also tries several kernels for each matrix product and keeps the fastest, so it compiles
longer. Not every GPU has use for it: PyTorch tries no products of its own on a GPU with fewer than 68 multiprocessors, and
Triton's products use no tensor cores before compute capability 8.0 (Triton pull request 5066), which a T4 lacks. Fused
kernels between the products work there all the same.

## Attention by its spelling

A compiler fuses neighbours. Can it also replace an algorithm? Attention step by step makes matrices of T × T scores.
PyTorch's fused attention never stores them (chapter 12 shows how it can do that). Here are two spellings of the same
attention. The first fills the future with −∞, as chapter 04 does. The second adds a matrix that is −∞ in the future.
"""


# %%
def mask_filled(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return scores.masked_fill(mask, -math.inf).softmax(-1) @ v


def mask_added(q, k, v, mask):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    return (scores + mask).softmax(-1) @ v


def allocated(codes, numbers):
    """The shapes of the tensors with so many numbers that generated code allocates."""
    shapes = []
    for shape in re.findall(r"= empty_strided\w*\(\(([\d, ]*)\)", "\n".join(codes)):
        size = [int(part) for part in shape.split(",") if part.strip()]
        if math.prod(size) == numbers:
            shapes.append(shape)
    return shapes


# %% tags=["nbval-ignore-output"]
T = 256
q, k, v = (torch.randn(2, 4, T, 64, generator=g).to(device).requires_grad_() for _ in range(3))
future = torch.ones(T, T, dtype=torch.bool, device=device).triu(1)
added = torch.zeros(T, T, device=device).masked_fill(future, -math.inf)
outs = []
for function, mask in ((mask_filled, future), (mask_added, added)):
    out, codes = run_and_get_code(torch.compile(function, backend=backend), q, k, v, mask)
    fused = len(called(codes, "scaled_dot_product"))
    told = f"{fused} calls of fused attention, {len(allocated(codes, 2 * 4 * T * T))} tensors of T×T scores"
    print(f"{function.__name__:11} {missing or told}")
    outs.append(out)
assert torch.allclose(*outs, atol=1e-5), "the two spellings are not the same function"

# %% [markdown]
r"""
The first spelling still has a matrix of scores. In the second, the compiler has replaced the whole formula by a call of
fused attention. Inductor has a list of about thirty spellings of attention (`torch/_inductor/fx_passes/fuse_attention.py`),
and it looks for them in the graph. Our spelling is not on the list, although a similar one is: DistilBERT's
masked fill, whose mask has another shape. This is why our written-out model still keeps its T × T weights.

So a compiler can replace an algorithm, if someone has taught it this very pattern. Such a rule can miss your spelling, or a
new release can change the list, and nothing tells you. When you rely on a kernel, call it by its name (here
`F.scaled_dot_product_attention`), or look at the code that was written.

## Graph breaks

What if Python must know a number before it can go on? Dynamo has no numbers. So it ends the graph at this line, lets Python
run it, and starts a new graph after it. This is called a *graph break*. Nothing fails, but nothing is fused across it
either. Here is one, and how to find it:
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
print("at:", report.break_reasons[0].user_stack[-1].line)

# %% [markdown]
r"""
`fullgraph=True` turns a silent break into an error. Use it while you develop a training step, and leave it in a test of the
step, so that nobody adds a break later. (The tests of this chapter do that for our GPT.)
"""

# %% tags=["nbval-ignore-output"]
try:
    torch.compile(clipped, backend="eager", fullgraph=True)(small)
    raise AssertionError("a break went unnoticed")
except torch._dynamo.exc.Unsupported as error:
    print(str(error).splitlines()[0])

# %% [markdown]
r"""
How can we repair the function? `if` chooses between lines of Python. `torch.where` computes both results and chooses between
*values*, on the device. Then Python need not know the number.
"""


# %%
def repaired(x):
    h = torch.tanh(x)
    return torch.where(h.abs().max() > 0.9, 0.5 * h, h) + 1


one_graph = torch.compile(repaired, backend="eager", fullgraph=True)(small)
assert torch.equal(one_graph, clipped(small)), "choosing between values gives another result"
print("one graph, same result")

# %% [markdown]
r"""
Our own model has such a line. `check_ids` compares the token ids with the size of the vocabulary, to give a clear error
instead of a crash. Chapter 05 leaves it out while it is being compiled. What would happen if it did not? `explain` names the
line. (In a shell, `TORCH_LOGS=graph_breaks` does.)
"""

# %%
model = GPT(config, generator=seed_everything(0))  # on the CPU from here on: nothing below needs kernels
cpu_ids = torch.randint(0, 256, (8, 8), generator=g)


def forward(idx):
    return model(idx)[0]


def checked_forward(idx):
    check_ids(idx, config.vocab_size)
    return model(idx)[0]


for name, function in {"the model as it is": forward, "checked inside": checked_forward}.items():
    torch._dynamo.reset()
    report = torch._dynamo.explain(function)(cpu_ids)
    lines = {reason.user_stack[-1].line for reason in report.break_reasons}
    print(f"{name}: {report.graph_count} graphs, {report.graph_break_count} breaks {lines or ''}")

# %% [markdown]
r"""
Other lines of this kind are `loss.item()` for a log, `.tolist()`, and `.cpu().numpy()`. They belong outside of the compiled
function.

## Recompiling

A graph is valid only for what it was captured with: shapes, dtypes, Python numbers, `model.training`, whether gradients are
wanted. Dynamo turns these into *guards*. It checks them at every call, and compiles again when one fails. We count
compilations with a backend that counts.

*Predict.* A compiled model reads texts of 8, 9, 10, … 19 tokens. How often is it compiled?
"""

# %%
predict("11.4", "compilations for lengths 8 to 19", guess=None)


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


growing = [(cpu_ids[:1, :1].repeat(1, T),) for T in range(8, 20)]
with torch.no_grad():
    counts = compilations(model, growing)
    print("default:      ", counts)
    print("dynamic=True: ", compilations(model, growing, dynamic=True))
    print("dynamic=False:", compilations(model, growing, dynamic=False))
answer("11.4", counts[-1])

# %% [markdown]
r"""
By default it is compiled twice. After a size has changed once, Dynamo makes it a symbol, and the second graph is for all
lengths. With `dynamic=True` the first graph is already like that. With `dynamic=False` each length gets its own graph, until
the number reaches a limit (`torch._dynamo.config.recompile_limit`). Then Dynamo gives up: further lengths run eagerly, after
a single line of warning. If a job becomes slow after a while, look for this line. `TORCH_LOGS=recompiles` prints the reason
of each compilation.

Sizes are not the only guards. A number that counts, or a learning rate, does the same:
"""


# %%
class Counting(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        self.calls = start

    def forward(self, x):
        self.calls += 1
        return x * self.calls


rates = [0.3, 0.2, 0.1, 0.05]
print("a Python counter: ", compilations(Counting(0), [(small,)] * 4))
print("a tensor counter: ", compilations(Counting(torch.zeros(())), [(small,)] * 4))
print("rate as a float:  ", compilations(lambda x, r: x * r, [(small, r) for r in rates]))
print("rate as a tensor: ", compilations(lambda x, r: x * r, [(small, torch.tensor(r)) for r in rates]))
print("lengths 2, 3, 1:  ", compilations(lambda x: x + 1, [(small[:n],) for n in (2, 3, 1)], dynamic=True))

# %% [markdown]
r"""
The remedy is a tensor where a number changes. A guard looks at a tensor's shape, not at its value. Length 1 always has a
graph of its own, because broadcasting treats 1 differently from all other sizes.

## Evaluating and writing beside a compiled step

Many training scripts switch evaluation and sampling off when they compile. In build-nanogpt, for example, we read
`use_compile = False # torch.compile interferes with HellaSwag eval and Generation. TODO fix` (A. Karpathy, train_gpt2.py,
2024). You know enough now to see what interferes. Let one compiled model do everything:
"""

# %%
torch._dynamo.reset()
counter = CompileCounter()
wrapper = torch.compile(model, backend=counter)
for what, training, idx in [
    ("train", True, cpu_ids),
    ("evaluate", False, cpu_ids),
    ("train", True, cpu_ids),
    ("write, 3 tokens", False, cpu_ids[:1, :3]),
    ("write, 4 tokens", False, cpu_ids[:1, :4]),
    ("last batch, short", True, cpu_ids[:5]),
    ("train", True, cpu_ids),
]:
    model.train(training)
    with torch.set_grad_enabled(training):
        wrapper(idx)
    print(f"{what:18} compilations so far: {counter.frame_count}")

# %% [markdown]
r"""
Each mode is compiled once, and again when a size changes for the first time. On a GPU with a large model, each of these
means that training stands still for as long as in its first step.

The way out is in what `torch.compile` returns. It is a *wrapper*. Inside it is the model that we had, with the same
parameters. So the wrapper trains, and the model itself evaluates and writes, eagerly, with chapter 08's cache.

*Check.* The law: after the first step nothing is compiled any more, whatever the model evaluates and writes in between.
"""

# %%
torch._dynamo.reset()
counter = CompileCounter()
wrapper = torch.compile(model, backend=counter, fullgraph=True)
assert wrapper._orig_mod is model, "the wrapper holds another model"
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for n in range(4):
    wrapper(cpu_ids[:, :-1], cpu_ids[:, 1:])[1].backward()
    optimizer.step()
    optimizer.zero_grad()
    some = cpu_ids[: n + 2, : n + 4]  # another size each time
    with torch.no_grad():
        held = model(some[:, :-1], some[:, 1:])[1].item()
    text = generate(model, [1, 2, 3], 5, temperature=0)
    print(f"round {n}: compilations {counter.frame_count}, evaluates {held:.2f}, writes {text}")
assert counter.frame_count == 1, "evaluating or writing has compiled something"
print(next(iter(model.state_dict())), "in the model,", next(iter(wrapper.state_dict())), "in the wrapper")

# %% [markdown]
r"""
The last line shows a trap: the wrapper's names begin with `_orig_mod.`. Save `model.state_dict()`, not the wrapper's, or a
model that is not compiled cannot load it.

If you evaluate a lot, on many lengths, compile a second time with `dynamic=True`. The parameters are shared. If your script
has nothing but the wrapper, `torch.compiler.set_stance("force_eager")` runs it without compiling, and
`set_stance("fail_on_recompile")` guards a training loop: a recompilation becomes an error that names its reason.

## Checkpoint

This chapter adds no module. Compiling is one line; you now know where to put it.
"""

# %% tags=["nbval-ignore-output"]
predictions("11")

# %%
checkpoint("11")

# %% [markdown]
r"""
## Exercises

`course exercises release 11` writes these as a notebook to `released/`; `course check 11` runs their visible checks.

- **11-1** Three lines that end a graph, 20 minutes: an `.item()` and an `if` become one graph, with a finite gradient.
- **11-2** Few shapes, 15 minutes: texts of every length, read at powers of two.
- **11-3** The rule of recompiles, 25 minutes: Dynamo's rule for sizes, as a function.
- **11-4** When compiling pays, 10 minutes: traffic and break-even of a function of your own numbers.
- **11-5** The names in a saved model, 15 minutes: a check for what `_orig_mod.` leaves in a checkpoint.
- **11-6** What interferes, 10 minutes: compile beside evaluation and writing, in words.

To explore:

1. Write LayerNorm followed by GELU with plain operations and count kernels and bytes as for `gelu`. *Check:* how many
   kernels does Inductor make, and why is the number of bytes not that of one read and one write? (A mean needs the whole row
   first.)
2. Find a third spelling of attention: scale q before the product, or multiply the weights by a mask after the softmax.
   *Check:* the same output; does the compiler still recognise it?
3. Sweep `n_embd` from 32 to 512 and plot the break-even step of the model written out. *Check:* explain its course with the
   share of matrix products (chapter 09b).

## Further reading

- J. Ansel et al., [*PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph
  Compilation*](https://doi.org/10.1145/3620665.3640366), ASPLOS 2024: §3 Dynamo, §4 Inductor, §5 dynamic shapes.
- E. Yang, [*torch.compile, the missing manual*](https://docs.google.com/document/d/1y5CRfMLdwEoF1nTk9q8qEu1mgMUuUtvhklPKJ2emLU8), 2024: what to do when it fails.
- PyTorch documentation, [*torch.compile programming model*](https://docs.pytorch.org/docs/stable/user_guide/torch_compiler/compile/programming_model.html): graph breaks, recompilation, `fullgraph`, stances.
- A. Karpathy, [*build-nanogpt*](https://github.com/karpathy/build-nanogpt), 2024: `train_gpt2.py`, and the line above.
"""
