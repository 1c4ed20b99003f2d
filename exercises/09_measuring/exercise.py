# %% [markdown]
r"""
# Exercises 09 · Measuring

A clock that waits, a count that can be checked, and the roof above a measurement. Nothing here is timed for real: the device
below moves its own clock, so the right answer is the same on every machine. `course check 09` runs the visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode

from course.variants import variant
from nanogpt.model import GPT, GPTConfig, flops_by_part, flops_per_token
from nanogpt.labs.roofline.sheets import PEAKS

# %% [markdown]
r"""
## 09-1 · A clock that waits

*Repair · difficulty 2/5 · importance 5/5 · 15 minutes*

`Device`, in the given cell, is a computer with a queue: `launch` returns after 10 µs, `synchronize` waits until the queue is empty,
`clock` reads the host's time. `measure(call, device, repeats, warmup)` is to make `warmup` calls that do not count, then `repeats`
calls that do, and to return the median of their times: each from an empty queue to an empty queue. `call()` launches one kernel.

The version below says 10 µs for everything. Mend it; there is more than one fault, and the machine's owner may have left
work in the queue.

For kernels of 2 ms each, the answer is 2.01 ms: the launch and the kernel.

<details><summary>Hint 1</summary>

What has happened on the device when `call()` returns?
</details>
<details><summary>Hint 2</summary>

Two waits belong to each time: what would the first one keep out?
</details>
<details><summary>Hint 3</summary>

One call in twenty is disturbed and takes 100 times as long. What does the mean say, and what does the median?
</details>
"""


# %%
class Device:
    """A device with a queue; both clocks are moved by hand, so nothing here takes real time. Times in seconds."""

    def __init__(self, busy: float = 0.0):
        self.now, self.free = 0.0, busy  # the host's clock; when the queue will be empty
        self.launched = 0

    def clock(self) -> float:
        return self.now

    def launch(self, seconds: float) -> None:
        self.launched += 1
        self.now += 1e-5
        self.free = max(self.free, self.now) + seconds

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)


# %%
#| solution 09-1
def measure(call, device: Device, repeats: int = 20, warmup: int = 3) -> float:
    """Median seconds of a call, each from an empty queue to an empty queue, after `warmup` calls that do not count."""
    ### BEGIN SOLUTION
    for _ in range(warmup):
        call()
    times = []
    for _ in range(repeats):
        device.synchronize()
        start = device.clock()
        call()
        device.synchronize()
        times.append(device.clock() - start)
    return median(times)
    ### INSTEAD
    # times = []
    # for _ in range(warmup + repeats):
    #     start = device.clock()
    #     call()
    #     times.append(device.clock() - start)
    # return sum(times) / len(times)
    ### END SOLUTION


# %%
#| check 09-1
device = Device()
seconds = measure(lambda: device.launch(0.002), device)
assert seconds > 1.1e-5, "10 µs is the time to ask for a kernel: wait for the queue before the clock is read"
assert math.isclose(seconds, 0.00201, rel_tol=1e-6), f"{1e3 * seconds:.3f} ms for kernels of 2 ms, not 2.01"
assert device.launched == 23, f"{device.launched} calls, not 3 to warm up and 20 that count"
device, slow_at_first = Device(), iter([5.0, 5.0, 5.0, 0.002, 0.002])
assert measure(lambda: device.launch(next(slow_at_first)), device, repeats=2) < 0.0021, (
    "the first calls are slow, and count: or are they still in the queue when the clock is started?"
)
device, disturbed = Device(), iter([0.002] * 20 + [0.2] * 3)
assert measure(lambda: device.launch(next(disturbed)), device) < 0.0021, (
    "three disturbed calls of twenty move the result: a mean does that, a median does not"
)

# %% [markdown]
r"""
## 09-2 · Under which roof?

*Derive · difficulty 3/5 · importance 5/5 · 25 minutes*

The forward pass of `mlp.c_fc` in one block: N tokens, x (N, C) times a matrix (C, 4·C), no bias, all numbers in 16 bits. Inputs
are read once from memory and the output is written once. The GPU is one of the chapter's data sheets: `peak` in FLOP/s,
`bandwidth` in bytes/s. And on the same GPU a whole GPT of shape `shape` trains at `rate` tokens/s in contexts of 1,024.

Give, for your own numbers,

- `"flops"`: of the product, with a multiplication and an addition counted as two
- `"bytes"`: that it moves
- `"limit"`: `"memory"` or `"arithmetic"`
- `"seconds"`: what the roofline allows at least
- `"mfu"`: the model FLOPs utilization of the run, from 0 to 1, forward and backward; `flops_per_token` may help

<details><summary>Hint 1</summary>

A product of (N, C) and (C, M) makes N · M sums of C terms.
</details>
<details><summary>Hint 2</summary>

Three arrays move: the tokens, the matrix, the result. At N = 1, which of them is the largest?
</details>
<details><summary>Hint 3</summary>

Each limit has a time of its own. The kernel needs the longer of the two, and that says which limit it is.
</details>
"""

# %%
kernel = variant(
    "09-2",
    STUDENT,
    gpu=["T4", "L4", "A100-80GB", "H100", "RTX 4090"],
    N=[1, 8, 32, 1024, 4096, 16384],
    C=[768, 1024, 1280, 1600],
    n_layer=[6, 12, 18, 24],
    share=[0.21, 0.27, 0.34, 0.38, 0.43],
)
peak = PEAKS[kernel["gpu"]].half * 1e12
bandwidth = PEAKS[kernel["gpu"]].bandwidth * 1e9
shape = GPTConfig(n_layer=kernel["n_layer"], n_head=8, n_embd=kernel["C"])
rate = round(kernel["share"] * peak / (144 * shape.n_layer * shape.n_embd**2))
kernel | {"peak": peak, "bandwidth": bandwidth, "rate": rate}

# %%
#| solution 09-2
### BEGIN SOLUTION
N, C = kernel["N"], kernel["C"]
flops = 2 * N * C * 4 * C
moved = 2 * (N * C + 4 * C * C + N * 4 * C)
roof = {
    "flops": flops,
    "bytes": moved,
    "limit": "memory" if moved / bandwidth > flops / peak else "arithmetic",
    "seconds": max(moved / bandwidth, flops / peak),
    "mfu": rate * flops_per_token(shape, 1024) / peak,
}
### INSTEAD
# roof = {"flops": None, "bytes": None, "limit": None, "seconds": None, "mfu": None}
### END SOLUTION

# %%
#| check 09-2
assert None not in roof.values(), f"still to do: {[name for name, value in roof.items() if value is None]}"
assert roof["limit"] in ("memory", "arithmetic"), 'the limit is "memory" or "arithmetic"'
assert roof["bytes"] > 8 * kernel["C"] ** 2, (
    "the matrix alone has 4·C² numbers of two bytes: the tokens move too"
)
assert (roof["limit"] == "memory") == (roof["flops"] / roof["bytes"] < peak / bandwidth), (
    "left of the ridge memory is the limit: compare FLOP/byte with peak / bandwidth"
)
assert 0 < roof["mfu"] < 1, "an MFU of more than one is a miscount, or another machine's peak"

# %% [markdown]
r"""
## 09-3 · How many tokens reach the ridge?

*Build · difficulty 4/5 · importance 4/5 · 20 minutes*

A model that writes for one user multiplies a matrix by a vector, and memory is the limit by far. Serving N users at once reads the
matrix once for all. From how many tokens on is arithmetic the limit?

`tokens_to_ridge(inputs, outputs, ridge, width)`: for x (N, inputs) times (inputs, outputs), with `width` bytes a number and a ridge of
`ridge` FLOP/byte, the smallest N whose intensity is at least the ridge, as an int; 0 where no N is enough, because even a very
large N reads and writes too much for what it computes. All three arrays move once. No loop over N: N can be large.

For inputs 768, outputs 3072, ridge 200, width 2: 297. For width 4: 1147. For inputs 64, outputs 64, ridge 200, width 2: 0.

<details><summary>Hint 1</summary>

Write the intensity as a fraction with N in it. What becomes of it as N grows without end?
</details>
<details><summary>Hint 2</summary>

"At least the ridge" is an inequality that is linear in N once the denominator is multiplied out.
</details>
<details><summary>Hint 3</summary>

If N's factor is not positive, no N helps. Otherwise divide, and round up; whole numbers do that without error: −(−a // b).
</details>
"""


# %%
#| solution 09-3
#| forbids loop
def tokens_to_ridge(inputs: int, outputs: int, ridge: int, width: int) -> int:
    """The smallest N for which a product (N, inputs) × (inputs, outputs) is limited by arithmetic; 0: none is."""
    ### BEGIN SOLUTION
    # 2·N·I·O >= ridge · width · (N·I + I·O + N·O)
    gain = 2 * inputs * outputs - ridge * width * (inputs + outputs)  # per token
    if gain <= 0:
        return 0
    return -(-ridge * width * inputs * outputs // gain)
    ### END SOLUTION


# %%
#| check 09-3
N = tokens_to_ridge(768, 3072, 200, 2)


def intensity(N):
    return 2 * N * 768 * 3072 / (2 * (N * 768 + 768 * 3072 + N * 3072))


assert N > 0, "with enough tokens this product is limited by arithmetic"
assert intensity(N) >= 200 or intensity(N + 1) < 200, f"{N} tokens are one too few: round up"
assert intensity(N) >= 200, (
    f"{N} tokens have {intensity(N):.1f} FLOP/byte, less than the ridge: what moves besides the matrix?"
)
assert intensity(N - 1) < 200, f"{N - 1} tokens are enough: the smallest N is asked for"
assert tokens_to_ridge(64, 64, 200, 2) == 0, "64 × 64 can reach 32 FLOP/byte at most: 0, since no N is enough"

# %% [markdown]
r"""
## 09-4 · A check for a FLOP count

*Check · difficulty 3/5 · importance 4/5 · 25 minutes*

An MFU is as right as the count in it. Somebody hands you `count(n_layer, n_embd, vocab_size, T)`: the FLOPs of one *forward* pass of a
GPT over T tokens, as `flops_by_part` counts them: matrix products only, two FLOPs for a multiply and add, T × T in full. Write
`check_count(count)`, which raises an `AssertionError` where it is wrong by more than one part in a thousand and passes it where it is
right. It is tried on functions that you do not see.

PyTorch can count: a model with `flash=False`, run inside `FlopCounterMode`, gives the FLOPs of its products. So you need no
formula; but a formula of your own is allowed as well. Small shapes are enough, and quick.

<details><summary>Hint 1</summary>

`with FlopCounterMode(display=False) as counter: model(idx)`, then `counter.get_total_flops()`.
</details>
<details><summary>Hint 2</summary>

At GPT-2 small's shape and 1,024 tokens attention's T × T is 13% of the count, and a narrow model with a long text has more. At which
shapes does each part of the count dominate?
</details>
<details><summary>Hint 3</summary>

Change one argument at a time: a large vocabulary, a large T, more layers.
</details>
"""


# %%
#| solution 09-4
def check_count(count) -> None:
    """AssertionError where count(n_layer, n_embd, vocab_size, T) is not the FLOPs of a forward pass."""
    ### BEGIN SOLUTION
    for n_layer, n_embd, vocab_size, T in ((1, 16, 10, 8), (3, 16, 10, 8), (1, 32, 500, 8), (2, 16, 10, 128)):
        config = GPTConfig(T, vocab_size, n_layer, 2, n_embd, flash=False)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            GPT(config)(torch.zeros(1, T, dtype=torch.int64))
        due = counter.get_total_flops()
        got = count(n_layer, n_embd, vocab_size, T)
        assert math.isclose(got, due, rel_tol=1e-3), f"{got} FLOPs, where PyTorch counts {due}"
    ### END SOLUTION


# %%
#| check 09-4
def refused(count) -> bool:
    try:
        check_count(count)
    except AssertionError:
        return True
    return False


def right(n_layer, n_embd, vocab_size, T):
    return T * sum(flops_by_part(GPTConfig(T, vocab_size, n_layer, 1, n_embd)).values())


assert not refused(right), "it refuses a right count"
assert refused(lambda *shape: 3 * right(*shape)), (
    "it accepts a count three times too large, which has the backward pass"
)
assert refused(lambda n_layer, n_embd, vocab_size, T: T * right(n_layer, n_embd, vocab_size, 1)), (
    "it accepts a count in which no token sees another one: which shape makes T × T large?"
)

# %% [markdown]
r"""
#| manual 09-5
## 09-5 · 71% of what?

*Explain · difficulty 3/5 · importance 5/5 · 5 minutes*

"Our training reaches 71% MFU on a T4 in bf16. We read `time.time()` before and after each step and took the best, and
`nvidia-smi` shows 100% utilization." Name three things that can be wrong with this number, and for each how you would find
out.
"""
