# %% [markdown]
r"""
# 11 · Compile: one kernel instead of nine

Eager PyTorch runs one operation after the other. Each reads its input from memory and writes its result back, and
the next one fetches it again. Chapter 09 showed that between the matrix products a step does little else. A
compiler that sees several operations at once can keep the numbers in registers. `torch.compile` is that compiler.
It costs time before it saves any, and it gives up silently when it cannot follow. This chapter shows both.
"""

# %%
import logging
import math
import re
import time
import warnings
from dataclasses import replace
from statistics import quantiles

import torch
import torch._dynamo
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter
from torch._inductor import metrics
from torch._inductor.utils import run_and_get_code
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.figures import compile as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.gpt.model import GPT, MLP, GPTConfig, check_ids
from nanogpt.gpt.sample import generate
from nanogpt.speed.roofline import measure, synchronize, timings

warnings.filterwarnings("ignore", message="TensorFloat32")  # off on purpose: this chapter is about float32

# %%
device = pick_device()
# What the compiler warns of is this chapter's subject, and comes in order below.
torch._logging.set_logs(dynamo=logging.ERROR)
scale = pick_scale(device)
g = seed_everything(0)

# %%
names = ["add", "mul", "pow", "mul", "add", "mul", "tanh", "add", "mul"]
show(
    figures.nine_or_one(names),
    alt="Left: nine boxes, each with an arrow from memory and one back. Right: one box with one arrow each way.",
)

# %% [markdown]
r"""
## Predict

1. GELU, written out, has nine operations on a tensor of n numbers. How many times n numbers go to or from memory
   in eager mode? And in one kernel?
2. Compiling takes seconds, a training step milliseconds. After how many steps has compiling a small GPT paid for
   itself?
3. A compiled model reads texts of 8, 9, 10, … 19 tokens. How often is it compiled?
"""

# %%
predict("11.1", "times n numbers moved by GELU, eager", guess=None)
predict("11.2", "the same, in one kernel", guess=None)
predict("11.3", "steps until compiling has paid", guess=None)
predict("11.4", "compilations for lengths 8 to 19", guess=None)

# %% [markdown]
r"""
## Can kernels be made here?

On a CPU, PyTorch writes C++ and needs a compiler for it; on a GPU it writes Triton. Where one is missing or
broken, the first call of a compiled function fails, with a long trace. Better to find out with a kernel that
nobody needs:
"""


# %%
def why_no_kernels(device: torch.device) -> str | None:
    """One sentence that says why torch.compile cannot make kernels for this device; None where it can."""
    if device.type == "mps":
        return "kernels for Apple's GPU are a prototype; NANOGPT_DEVICE=cpu runs this chapter"
    needed = {
        "cpu": "a C++ compiler: g++ and Python's headers (Linux), Xcode's command line tools (macOS), "
        "Visual Studio's build tools (Windows, in their own command prompt)",
        "cuda": "Triton, which comes with PyTorch on Linux and needs a C compiler there (gcc or clang); on Windows "
        "`pip install triton-windows` brings both",
    }[device.type]
    try:
        x = torch.zeros(8, device=device, requires_grad=True)
        torch.compile(lambda x: (x + 1).sum())(x).backward()
    except Exception as error:  # its class differs by platform, version, and what is missing
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = next((line for line in lines if "error:" in line), lines[0])
        return f"no kernels for {device.type} here ({reason.strip()}); they need {needed}"
    return None


# %% tags=["nbval-ignore-output"]
start = time.perf_counter()
missing = why_no_kernels(device)
backend = "aot_eager" if missing else "inductor"
print(f"backend {backend!r}:", missing or f"kernels for {device.type} can be made here")
print(f"the first one, with all that loads and starts once: {time.perf_counter() - start:.1f} s")

# %% [markdown]
r"""
Without them, the chapter goes on with `backend="aot_eager"`: graphs are captured, differentiated, guarded and run,
operation by operation. Only what needs generated kernels is left out, and says so.

## Build: capture

Here is GELU (chapter 05) as a paper writes it, after a bias. A *backend* is any function that takes the captured
graph and returns something to call. Ours keeps the graph and changes nothing:
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
    print(f"{node.op:14} {node.target.__name__ if callable(node.target) else ''}".strip())

# %% [markdown]
r"""
The front half, *Dynamo*, reads Python's bytecode and writes down which tensor operations happen (Ansel et al.
2024, §3). For that no number was computed: shapes and dtypes suffice.

## Build: fusion, counted

First eager. A dispatch mode sees every operation, so kernels and bytes can be counted. Each reads its inputs and
writes its output; a view does neither.
"""


# %%
def nbytes(tree):
    return sum(t.numel() * t.element_size() for t in tree_leaves(tree) if isinstance(t, torch.Tensor))


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
    expected = gelu(x, bias)
print(f"eager: {eager.kernels} kernels, {eager.nbytes / x.nbytes:.2f} times the size of x")
answer("11.1", eager.nbytes / x.nbytes)

# %% [markdown]
r"""
Answer 1, first half: more than two per operation, since some read two tensors. Now with the back half,
*Inductor*. A function in one kernel touches its inputs and its output, once: the answer's second half.
"""

# %% tags=["nbval-ignore-output"]
torch._dynamo.reset()
metrics.reset()
compiled_gelu = torch.compile(gelu, backend=backend)
start = time.perf_counter()
y, codes = run_and_get_code(compiled_gelu, x, bias)
synchronize(device)
gelu_seconds = time.perf_counter() - start
assert torch.allclose(y, expected, atol=1e-5), "compiled GELU differs from eager GELU by more than 1e-5"
if missing:
    print(missing)
else:
    kernels, moved = metrics.generated_kernel_count, nbytes((x, bias, y))
    print(f"compiled in {gelu_seconds:.1f} s: {kernels} kernel, {moved / x.nbytes:.2f} times the size of x")
    print(f"{eager.kernels / kernels:.0f} times fewer kernels, {eager.nbytes / moved:.1f} times fewer bytes")
    assert kernels == 1, f"Inductor made {kernels} kernels where one would do"
    answer("11.2", moved / x.nbytes)

# %% [markdown]
r"""
The code can be read. The temporaries are registers, and between the first load and the last store no memory is
touched:
"""

# %% tags=["nbval-ignore-output"]
for code in codes:
    lines = [line.strip() for line in code.splitlines() if re.search(r"\btmp\d+\b|tl\.(load|store)", line)]
    print("\n".join(line[:110] for line in lines[:24]))

# %% [markdown]
r"""
If memory is the limit, the time falls as the bytes do. `F.gelu` is PyTorch's own kernel, fused by hand (the bias
is still an operation of its own). Calls are timed in turns, so that other programs disturb all alike:
"""


# %%
def in_turns(calls, rounds=4):
    """Quartiles of each call's seconds, by name."""
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name] += measure(call, device, repeats=5, warmup=1).times
    return {name: quantiles(ts, n=4) for name, ts in times.items()}


# %% tags=["nbval-ignore-output"]
gelu_times = in_turns(
    {
        "eager": lambda: gelu(x, bias),
        "compiled": lambda: compiled_gelu(x, bias),
        "F.gelu": lambda: F.gelu(x + bias, approximate="tanh"),
    }
)
for name, (q1, median, q3) in gelu_times.items():
    factor = gelu_times["eager"][1] / median
    print(
        f"{name:9} {1e3 * median:.3f} ms ({1e3 * q1:.3f} to {1e3 * q3:.3f} ms), {factor:.1f} × as fast as eager"
    )
if not missing:
    print(f"predicted from the bytes alone: {eager.nbytes / moved:.1f} ×")

# %% [markdown]
r"""
Where the measured factor falls short of the prediction, arithmetic has become the limit (tanh is not free), or
the caches had spared eager mode some of its traffic. Where it exceeds it, eager mode also paid for nine starts
and fresh memory.

## See: when does it pay?

Compiling is a debt, each call pays some of it back. A saving counts where the middle halves of the two timings do
not overlap:
"""


# %%
def break_even(compile_seconds, eager, compiled):
    """Calls until compiling has paid, from quartiles (seconds); None where compiled is not measurably faster."""
    return compile_seconds / (eager[1] - compiled[1]) if compiled[2] < eager[0] else None


def verdict(compile_seconds, eager, compiled):
    """One line on what compiling costs and saves."""
    calls = break_even(compile_seconds, eager, compiled)
    paid = f"paid by call {math.ceil(calls):,}" if calls else "no saving that can be measured: never paid"
    return f"compile {compile_seconds:.1f} s, a call {1e3 * eager[1]:.2f} ms, then {1e3 * compiled[1]:.2f} ms: {paid}"


# %% tags=["nbval-ignore-output"]
print("GELU:", missing or verdict(gelu_seconds, gelu_times["eager"], gelu_times["compiled"]))

# %% [markdown]
r"""
And a training step? Chapter 05 calls `F.gelu`, `LayerNorm` and `scaled_dot_product_attention`: somebody has fused
these by hand. Whoever tries a new activation or a new norm has no such kernel. So take two models with the same
weights: GPT as it is, and the same one with its formulas written out.
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
Compiling happens in the first step. A second run of this notebook finds kernels in a cache on disk, so only a
first run tells the true cost.

Besides bytes, a kernel costs its start: Python and the dispatcher need microseconds for each, however little it does. A
GPU works meanwhile, and the price is hidden as long as its queue is full; with small layers it runs empty and waits.
"""

# %% tags=["nbval-ignore-output"]
one = torch.ones(1, device=device)
launch = min(timings(lambda: [one.add(1) for _ in range(1000)], device, 5)) / 1000
print(f"{1e6 * launch:.1f} µs to start a kernel")


# %%
def allocated(lines, numbers):
    """The shapes of the tensors with so many numbers that generated code allocates."""
    shapes = [m[1] for line in lines if (m := re.search(r"= empty_strided\w*\(\(([\d, ]*)\)", line))]
    return [shape for shape in shapes if math.prod(map(int, filter(str.strip, shape.split(",")))) == numbers]


square = len(ids) * config.n_head * config.block_size**2

# %% tags=["nbval-ignore-output"]
compiled, compile_seconds = {}, {}
for name, model in models.items():
    with Traffic() as eager:
        step(model)
    compiled[name] = torch.compile(model, backend=backend)
    start = time.perf_counter()
    loss, codes = run_and_get_code(step, compiled[name])
    assert abs(loss.item() - losses[name]) < 1e-4, f"{name}: compiled, the loss is {loss.item():.4f}"
    compile_seconds[name] = time.perf_counter() - start
    print(
        f"{name}: {eager.kernels} kernels in an eager step, {1e3 * launch * eager.kernels:.2f} ms to start them"
    )
    if missing:
        print(missing)
        continue
    calls = {"generated": r"^ +(cpp_fused|triton_)\w+[.(]", "library": r"(extern_kernels|ops\.aten)\.\w+[.(]"}
    lines = [line for code in codes for line in code.splitlines() if not line.lstrip().startswith("#")]
    counts = {kind: sum(bool(re.search(p, line)) for line in lines) for kind, p in calls.items()}
    print(f"   compiled: {counts['generated']} generated, {counts['library']} from libraries")
    print(f"   tensors of B · n_head · T · T numbers that it allocates: {len(allocated(lines, square))}")

# %% tags=["nbval-ignore-output"]
step_times = {
    name: in_turns({"eager": lambda: step(models[name]), "compiled": lambda: step(compiled[name])})  # noqa: B023
    for name in models
}
for name, times in step_times.items():
    print(f"{name}:", missing or verdict(compile_seconds[name], times["eager"], times["compiled"]))
paid = break_even(compile_seconds["written out"], *step_times["written out"].values())
answer("11.3", paid or "never")

# %% tags=["nbval-ignore-output"]
if not missing:
    runs = [
        (name, compile_seconds[name], times["eager"], times["compiled"]) for name, times in step_times.items()
    ]
    last = 2 * max([break_even(*run) or 500 for _, *run in runs])
    savings = {
        name: (debt, debt / paid if (paid := break_even(debt, *quartiles)) else None)
        for name, debt, *quartiles in runs
    }
    show(
        figures.debts(savings, last),
        alt="Seconds won by compiling against steps, a line for each model: it starts at minus the compile time.",
    )

# %% [markdown]
r"""
Answer 2 is your machine's, and it may be "never". What decides: the share of the step that is not matrix products
(fusion leaves those alone), how much of that share is fused already, the number of kernels that a GPU has to be
told to start one by one, and how slow memory is compared with arithmetic. Two modes go further on CUDA:
`mode="reduce-overhead"` records the forward pass as one CUDA graph and the backward pass as another, and replays each with a single
start; `mode="max-autotune"` also times several kernels for each matrix product and keeps the fastest, at the price of a longer
compilation. The optimizer's step is in none of these graphs: it is compiled apart, or fused (chapter 15). Chapter 14 measures compile as a rung of the ladder, at a size that matters.

Compare the two compiled steps as well. A compiler fuses what stands side by side. It does not look for another
algorithm: what it still allocates with T×T numbers is attention's matrix. Chapter 12 gets rid of it.

## Graph breaks

What if Python must know a number before it can go on? Dynamo has no numbers. It ends the graph there, lets Python
run the line, and starts a new graph after it. Nothing fails, and fusion ends at the break. Provoked, and found
with `explain`:
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
`fullgraph=True` turns a silent break into an error, as it should be in a training script:
"""

# %% tags=["nbval-ignore-output"]
try:
    torch.compile(clipped, backend="eager", fullgraph=True)(small)
    raise AssertionError("a break went unnoticed")
except torch._dynamo.exc.Unsupported as error:
    print(str(error).splitlines()[0])

# %% [markdown]
r"""
The remedy is to choose between *values* instead of lines:
"""


# %%
def mended(x):
    h = torch.tanh(x)
    return torch.where(h.abs().max() > 0.9, 0.5 * h, h) + 1


whole = torch.compile(mended, backend="eager", fullgraph=True)(small)
assert torch.equal(whole, clipped(small)), (
    "choosing between values gives another result than choosing between lines"
)
print("one graph, same result")

# %% [markdown]
r"""
Such a line hides in our own model. `check_ids` compares token ids with the vocabulary, to give a clear error in
place of a crash. That takes numbers, so chapter 05 leaves it out while compiling. What would happen if it did
not? `explain` names the line; in a shell, `TORCH_LOGS=graph_breaks` does.
"""

# %%
model, cpu_ids = gpt.cpu(), ids[:, :8].cpu()


def forward(idx):
    return model(idx)[0]


def checked_forward(idx):
    check_ids(idx, config.vocab_size)
    return model(idx)[0]


for name, function in {"the model as it is": forward, "checked inside": checked_forward}.items():
    torch._dynamo.reset()
    report = torch._dynamo.explain(function)(cpu_ids)
    print(f"{name}: graphs {report.graph_count}, breaks {report.graph_break_count}")
    print(*{f"    {reason.user_stack[-1].line}" for reason in report.break_reasons}, sep="\n", end="")

# %% [markdown]
r"""
Other lines of that kind: `loss.item()` for a log, `.tolist()`, `.cpu().numpy()`. They belong outside the compiled
function.

## Recompiles

A compiled graph is valid for what it was captured with: shapes, dtypes, Python numbers, the training flag,
whether gradients are wanted. Dynamo turns these into *guards*, checks them at every call, and compiles again when
one fails. Count it with a backend that counts:
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
counts = compilations(model, growing)
print("default:      ", counts)
print("dynamic=True: ", compilations(model, growing, dynamic=True))
print("dynamic=False:", compilations(model, growing, dynamic=False))
answer("11.4", counts[-1])

# %% [markdown]
r"""
Answer 3: by default twice. When a size has changed once, Dynamo makes it a symbol. Told so in advance, it needs one
graph. Forbidden to do so, it compiles for each length until the count stops: at its limit
(`torch._dynamo.config.recompile_limit`) it gives up, and further lengths run eagerly, with one line of warning. A job that got
slow after a while may have met this; `TORCH_LOGS=recompiles` in a shell prints every reason. Sizes are not the only guard. A
number in a module that counts, a learning rate as a float, a length of one:
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
The remedy is a tensor where a number changes: its value is data, its shape is what is guarded. Length 1 is always
a graph of its own, because broadcasting makes 1 special. To find the call that recompiles, forbid it:
"""

# %% tags=["nbval-ignore-output"]
torch._dynamo.reset()
wrapper = torch.compile(model, backend="eager")
wrapper(cpu_ids)
with torch._dynamo.config.patch(error_on_recompile=True):
    try:
        wrapper(cpu_ids[:, :5])
        raise AssertionError("a recompilation went unnoticed")
    except torch._dynamo.exc.RecompileError as error:
        print(str(error).splitlines()[-1].split(": ")[-1])

# %% [markdown]
r"""
## Evaluating and writing beside a compiled step

Many training scripts switch evaluation and sampling off under compile: build-nanogpt carries the line
`use_compile = False # torch.compile interferes with HellaSwag eval and Generation. TODO fix` (A. Karpathy,
train_gpt2.py, 2024). What interferes? Let one compiled model do everything:
"""

# %%
model.requires_grad_(True)
torch._dynamo.reset()
counter = CompileCounter()
wrapper = torch.compile(model, backend=counter)
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
        wrapper(idx)
    print(f"{what:18} compilations so far: {counter.frame_count}")

# %% [markdown]
r"""
Each mode costs a compilation, and so does a size that changes for the first time: in the middle of training, and
each about as long as the first one. The way out is in what `torch.compile` returns: a *wrapper*. The model inside
is the model that you had, with the same parameters.
"""

# %%
assert wrapper._orig_mod is model, "the wrapper holds another model"
assert all(a is b for a, b in zip(wrapper.parameters(), model.parameters())), "the wrapper copied a parameter"
print(next(iter(model.state_dict())), "in the model,", next(iter(wrapper.state_dict())), "in the wrapper")

# %% [markdown]
r"""
The second name is a trap: save `model.state_dict()`, not the wrapper's, or no uncompiled model will load it.

So: the compiled step trains, the model itself evaluates and writes, eagerly, with chapter 08's cache. For many
evaluations on many lengths, compile a *second* time, with `dynamic=True`. The parameters are shared, so whatever
one learns the others know.
"""


# %%
def train_and_write(train_call, evaluate, counters=()):
    """Four rounds of train, evaluate, write; returns losses, texts, and the counters after each round."""
    model.load_state_dict(start_weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, texts, counts = [], [], []
    for n in range(4):
        model.train()
        loss = train_call(cpu_ids[:, :-1], cpu_ids[:, 1:])[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.eval()
            losses += [loss.item(), evaluate(cpu_ids[: n + 2, : n + 3]).item()]  # another size each time
        texts.append(generate(model, [1, 2, 3], 8, temperature=0))
        counts.append(tuple(counter.frame_count for counter in counters))
    return torch.tensor(losses), texts, counts


# %% [markdown]
r"""
*Check.* The law: nothing is compiled after the first round, and losses and texts are those of an eager run.
"""


# %%
def evaluate(idx):
    return model(idx[:, :-1], idx[:, 1:])[1]


start_weights = {name: p.clone() for name, p in model.state_dict().items()}
losses, texts, _ = train_and_write(model, evaluate)

torch._dynamo.reset()
training, evaluation = CompileCounter(), CompileCounter()
train_call = torch.compile(model, backend=training, fullgraph=True)
eval_call = torch.compile(evaluate, backend=evaluation, fullgraph=True, dynamic=True)
compiled_losses, compiled_texts, counts = train_and_write(train_call, eval_call, [training, evaluation])
print("compilations (step, evaluation) after each round:", counts)
apart = (losses - compiled_losses).abs().max().item()
assert apart < 1e-4, f"compiled, the losses differ by up to {apart:.1e}"
assert texts == compiled_texts, "compiled, the model writes other texts"
print("losses and texts: those of the eager run")

# %% [markdown]
r"""
`generate` was given the model, not the wrapper. Where a script has nothing but the wrapper in its hands, a *stance* does
it, and another guards the training loop:
"""

# %%
torch._dynamo.reset()
counter = CompileCounter()
wrapper = torch.compile(model, backend=counter)
wrapper(cpu_ids)
with torch.compiler.set_stance("force_eager"):  # for an evaluation
    wrapper(cpu_ids[:2, :3])
print("compilations:", counter.frame_count)
with torch.compiler.set_stance("fail_on_recompile"):  # once training is under way
    try:
        wrapper(cpu_ids[:2, :3])
    except RuntimeError:
        print("another size: refused")

# %% tags=["nbval-ignore-output"]
predictions("11")

# %% [markdown]
r"""
## Checkpoint

This chapter adds no module. Compile is one line; what counts is where it stands.
"""

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

1. Write LayerNorm followed by GELU with plain operations and count kernels and bytes as for `gelu`. *Check:* how
   many kernels does Inductor make, and why is the number of bytes not that of one read and one write? (A mean
   needs the whole row first.)
2. Read lengths 2 to 64 by 11-2's `few_shapes` with `dynamic=False`, and as they are with `dynamic=True`. *Check:* the
   logits agree. When is which better?
3. Sweep `n_embd` from 32 to 512 and plot the break-even step of the model written out. *Check:* explain its
   course with the share of matrix products (chapter 09).

## Further reading

- J. Ansel et al., *PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph
  Compilation*, ASPLOS 2024: §3 Dynamo, §4 Inductor, §5 dynamic shapes.
- PyTorch documentation, *torch.compile programming model*: graph breaks, recompilation, `fullgraph`, stances.
- A. Karpathy, *build-nanogpt*, 2024: `train_gpt2.py`, and the line above.
"""
