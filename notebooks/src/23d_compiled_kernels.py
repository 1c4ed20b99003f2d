# %% [markdown]
r"""
# 23d ◇ · Compiled kernels: look at them without a GPU

The interpreter checks what a kernel computes. But a GPU does not run Python. It runs instructions that Triton's compiler
makes from our text. Does it use the tensor cores? Does it fit into the memory of the GPU? How many of its programs
can run at the same time?

These questions do not need a GPU. The compiler is a program like any other, and it runs on your laptop. We tell it which
GPU it should compile for, and then read what it wrote. In this chapter we take the flash attention of chapter
23c, and compile it for three GPUs that are not here: T4, A100 and H100. We predict the number of tensor-core instructions and count them, find out which
blocks fit, and predict which of them is the best.

Only a GPU can say whether the last prediction is right. We asked an H100, and compare. There PyTorch's kernel is three times as fast as ours. At the end we look
for what our instructions lack.
"""

# %%
#| default_exp labs.kernels.targets
#| doc labs.kernels.targets: Triton kernels compiled for GPUs that need not be here: instructions, registers, what fits, what to expect.
import json

import torch

from course.figures.triton_here import altered, skip_cells_without_triton
from course.notebook import answer, checkpoint, predict, predictions
from nanogpt.labs.kernels.flash_kernels import (
    flash_kernel,
    keys_backward_kernel,
    load_tile,
    store_tile,
    tile_scores,
)
from nanogpt.labs.kernels.fused_loss import loss_kernel
from nanogpt.labs.kernels.kernels import launch, wide
from nanogpt.labs.roofline.sheets import peak_of

# %%
#| export
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from torch._inductor.runtime.triton_compat import HAS_TRITON, tl, triton

from nanogpt.labs.roofline.sheets import Peak

# %% tags=["nbval-ignore-output"]
skip_cells_without_triton()

# %% [markdown]
r"""
*Predict.* A tensor core of an A100 takes one instruction, `mma.sync`, to multiply a 16 × 16 matrix by a 16 × 8 matrix. One
program of the flash kernel works with tiles of 64 × 64, and its heads have 64 channels. It has 4 warps (groups of 32
threads), which share the work. For each tile it computes two products. How many `mma.sync` does each warp need for a tile?
And how many programs of this kernel have room on one multiprocessor of an A100 at the same time?
"""

# %%
predict("23d.1", "mma.sync of a warp for one tile", guess=None)
predict("23d.2", "programs on a multiprocessor of an A100", guess=None)

# %% [markdown]
r"""
## From Python to instructions

We begin with a small kernel, which doubles a vector. To compile it without running it, the compiler must know the type of
each argument, since there are no tensors to look at. `*fp32` is the address of float32 numbers, `i32` is a whole number, and
constants such as BLOCK get their values.

The GPU is given by its *compute capability*, a number that NVIDIA gives to each generation: 75 for the T4, 80 for the
A100, 90 for the H100.

`ASTSource` of `triton.compiler` takes the kernel, its *signature*, the values of the constants by name, and *attributes*.
The signature is a dict with an entry for each name in `kernel.arg_names`: the type, or `"constexpr"` for a constant.
`GPUTarget` of `triton.backends.compiler` takes the backend, the capability and the threads of a warp.
`triton.compile` takes both, and `options={"num_warps": …}`. The imports are inside the function, so that the module
loads where Triton is missing.

The attributes are what a launch finds out about its arguments. PyTorch's tensors begin at multiples of 16 bytes, and Triton
tells the compiler so. `multiples_of_16` says the same without a tensor. You will see below what this is worth.
"""


# %%
#| export
def multiples_of_16(signature: dict[str, str]) -> dict:
    """The attributes of an ASTSource which say that all addresses are multiples of 16 bytes, as those of new tensors are."""
    types = enumerate(signature.values())
    return {(i,): [["tt.divisibility", 16]] for i, kind in types if kind.startswith("*")}


# %%
#| export
#| blank compile_for: types by name, constexpr for the constants; triton.compile of an ASTSource, attrs too, for GPUTarget("cuda", capability, 32)
def compile_for(
    capability: int, kernel, types: dict[str, str], constants: dict[str, int], warps: int = 4, aligned=True
):
    """The kernel compiled for GPUs of a compute capability such as 80. types: by argument, "*fp16", "i32", "fp32".

    aligned: whether the compiler may rely on multiples_of_16, which an ASTSource takes as attrs; else attrs={}.
    types may have names that this kernel lacks. ModuleNotFoundError where there is no Triton (HAS_TRITON says so).
    """
    if not HAS_TRITON:
        raise ModuleNotFoundError("Triton is not installed here: `pip install triton` brings it on Linux")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    attrs = multiples_of_16(signature) if aligned else {}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attrs)
    target = GPUTarget("cuda", capability, 32)  # 32 threads a warp
    return triton.compile(source, target=target, options={"num_warps": warps})


# %% tags=["nbval-ignore-output"]
# needs Triton
@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


doubled = compile_for(80, double_kernel, {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}, {"BLOCK": 128})
print("stages:", ", ".join(doubled.asm))
for line in doubled.asm["ptx"].splitlines():
    if re.search(r"ctaid|tid\.x|ld\.global|add\.f32|mul\.f32|st\.global", line):
        print(line.strip())


# %% [markdown]
r"""
The compiler goes through several stages. Two of them are its own languages (`ttir`, `ttgir`), then comes LLVM's (`llir`), then
`ptx`, NVIDIA's readable assembler, and at the end `cubin`, the bytes that the GPU executes.

We printed the lines of PTX that do the work. `%ctaid.x` is the number of the program, and `%tid.x` that of the thread.
128 threads share a block of 128 numbers, so each thread loads one number, doubles it, and stores it. The `@%p1` in front of a line
is our mask: the line is executed only by threads for which p1 is true.

The compiler is also stricter than the interpreter. Python lets a sum begin as the whole number 0 and become a fraction later.
A compiled loop cannot do that, because a register has one type. Here is chapter 23b's kernel for the loss with `0` in place
of `0.0`. The interpreter computes the right loss with it.
"""

# %% tags=["nbval-ignore-output"]
# needs Triton
whole_sum = altered(loss_kernel, 'total = -float("inf"), 0.0', 'total = -float("inf"), 0')
logits, targets, (loss, lse) = torch.eye(3), torch.arange(3), torch.empty(2, 3)
launch(whole_sum, (3,), logits, targets, loss, lse, 3, BLOCK=4)
print("in the interpreter:", loss.tolist())
types = {"logits_ptr": "*fp32", "targets_ptr": "*i64", "loss_ptr": "*fp32", "lse_ptr": "*fp32", "V": "i32"}
try:
    compile_for(80, whole_sum, types, {"BLOCK": 4})
except Exception as error:
    print("the compiler:", str(error).splitlines()[-1])

# %% [markdown]
r"""
A check in the interpreter would have passed this kernel, and the error would have come on the GPU. So a kernel should be
compiled once before it is called done, for at least one GPU.

## Count the instructions of flash attention

Now the kernel of chapter 23c, for 16-bit inputs. We count four kinds of instructions in its PTX:

- `mma.sync`: one warp multiplies two small matrices on a tensor core;
- `wgmma`: four warps together multiply larger matrices (from the H100 on);
- `fma`: one thread multiplies two numbers and adds a third, without a tensor core;
- `ex2`: one power of two. There is no instruction for $e^x$, so the compiler computes $2^{x \log_2 e}$.
"""

# %%
#| export
KINDS = "mma.sync", "wgmma.mma_async", "fma", "ex2"


def instructions(compiled) -> dict[str, int]:
    """How many instructions of each of KINDS the kernel's PTX has, for one thread or its warp."""
    found = Counter(
        re.findall(r"^\s*(?:@%p\d+ )?(mma\.sync|wgmma\.mma_async|fma|ex2)\.", compiled.asm["ptx"], re.M)
    )
    return {kind: found[kind] for kind in KINDS}


# %% tags=["nbval-ignore-output"]
# needs Triton
GPUS = {"T4": 75, "A100": 80, "H100": 90}


def flash_types(half="*fp16"):
    """The types of the arguments of the flash kernels; inputs and outputs in `half`, sums in float32."""
    pointers = dict.fromkeys(("q_ptr", "k_ptr", "v_ptr", "g_ptr", "out_ptr", "dk_ptr", "dv_ptr"), half)
    return pointers | {"lse_ptr": "*fp32", "d_ptr": "*fp32", "T": "i32", "scale": "fp32"}


sizes = {"D": 64, "BLOCK": 64}
counted = {}
for gpu, capability in GPUS.items():
    counted[gpu] = instructions(compile_for(capability, flash_kernel, flash_types(), sizes))
    print(f"{gpu:5}", counted[gpu])
answer("23d.1", counted["A100"]["mma.sync"])

# %% [markdown]
r"""
The same text became three programs. Let us check the three numbers, for the two products of a tile:

| | instruction | what one of them multiplies | expected | counted |
|---|---|---|---|---|
| T4 | `fma`, one thread | one number by one | 2 · 64³ / 128 threads = 4,096 | 4,224 |
| A100 | `mma.sync`, one warp | 16 × 16 by 16 × 8 | 2 · 64³ / (16 · 16 · 8) / 4 warps = 64 | 64 |
| H100 | `wgmma`, four warps | 64 × 16 by 16 × 64 | 2 · 64³ / (64 · 16 · 64) = 8 | 8 |

On the A100 and the H100 the tensor cores compute both products, and nothing is computed twice. For the T4 the compiler used no tensor core at all:
4,096 `fma` do the products one by one, and 128 more belong to the softmax. The T4 has tensor cores,
but Triton 3.7.1 does not use them for this kernel. You could not have seen this from the result, only from the
instructions.

The weights of a tile are 64 · 64 exponentials, 32 for each of 128 threads. The rest of the `ex2` are those of `shrink`: 4 a thread on the A100, and 32 on
the T4 and the H100. There are only 64 numbers in `shrink`, so there most threads compute the same ones again. We come back to this at the end.

And in float32? The kernel asks for full precision, `input_precision="ieee"`. Tensor cores cannot give that.
"""

# %% tags=["nbval-ignore-output"]
# needs Triton
small = {"D": 64, "BLOCK": 32}
for name in ("*fp16", "*bf16", "*fp32"):
    print(f"A100, {name[1:]}:", instructions(compile_for(80, flash_kernel, flash_types(name), small)))

# %% [markdown]
r"""
bf16 is as good as fp16, and in float32 the tensor cores are not used. These tiles are 32 × 32, a quarter of the 64 × 64 from
above, and so there are a quarter of the `mma.sync`.

## What fits

A GPU consists of many *multiprocessors*, each with a fast memory of its own. The program's threads keep their numbers in
*registers*, and exchange tiles through *shared memory*. Both are small. If the registers of a thread are not enough, the
compiler *spills*: it moves numbers to the slow memory and back.

The compiled kernel says how much it needs. NVIDIA's tool `cuobjdump`, which comes with Triton, reads it from the `cubin`.
"""


# %%
#| export
@dataclass(frozen=True)
class Needs:
    """What one program of a compiled kernel needs: threads, registers a thread, bytes of shared memory and of spills."""

    threads: int
    registers: int
    shared: int
    spilled: int  # bytes of stack a thread, which these kernels need for spills only


def needs(compiled, warps: int = 4) -> Needs:
    """Read from the cubin by NVIDIA's cuobjdump, which Triton brings along."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(compiled.asm["cubin"])
        call = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(file)]
        said = subprocess.run(call, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"{name}:(\d+)", said)[1]) for name in ("REG", "STACK"))
    return Needs(32 * warps, registers, compiled.metadata.shared, stack)


# %% tags=["nbval-ignore-output"]
# needs Triton
CHOICES = [(32, 4), (64, 4), (128, 4), (128, 8)]  # block, warps
needed = {}
for block, warps in CHOICES:
    compiled = compile_for(80, flash_kernel, flash_types(), {"D": 64, "BLOCK": block}, warps)
    needed[block, warps] = needs(compiled, warps)
    print(f"block {block:3}, {warps} warps:", needed[block, warps])

# %% [markdown]
r"""
A thread can have 255 registers at most. With a block of 128 and 4 warps, its part of the tiles does not fit into them, and
184 bytes for each thread are spilled. With 8 warps twice as many threads share the same tile, and nothing is spilled.

## What a launch knows

`compile_for` said that all addresses are multiples of 16. What if it says nothing? We compile the same kernel both ways, and count
its loads. `ld.global` brings numbers into registers, and the thread waits for them when it needs them. `cp.async` copies up to 16 bytes into shared memory, and nobody waits.
"""


# %% tags=["nbval-ignore-output"]
# needs Triton
def loads(kernel) -> str:
    """How many loads of each kind the kernel's PTX has."""
    found = Counter(re.findall(r"ld\.global\S*|cp\.async\.cg\S*", kernel.asm["ptx"]))
    return ", ".join(f"{count} {name}" for name, count in found.items())


for aligned in (False, True):
    compiled = compile_for(90, flash_kernel, flash_types(), sizes, aligned=aligned)
    print(f"H100, aligned={aligned}: {loads(compiled)}\n    {needs(compiled)}")

# %% [markdown]
r"""
Without the promise each of the 96 loads brings two bytes, a single number. Wider loads are only allowed at addresses that are multiples of their width. With it, the
loop loads nothing into registers at all: the tiles of k and v come by copies of 16 bytes, and they are started two rounds before they are needed. This is called *pipelining*. Shared memory has room for three tiles of each
then, so it grows from 16 to 56 KiB, and the registers fall from 221 to 152.

So the counts of a kernel depend on what the compiler is told. When a kernel is launched, Triton looks at each address and tells the compiler if it is a multiple of 16. New tensors of PyTorch
always are. But if x is a vector in half precision, `x[1:]` begins two bytes later. For it Triton compiles the kernel a second time, without the promise, and nothing says so.

## How many programs at a time

How many programs have room on a multiprocessor at the same time? This number matters, because while one program waits for
memory, another can compute. Four limits decide it: threads, registers, shared memory, and a highest number of programs. NVIDIA
publishes them for each compute capability, in tables 30 and 31 of the CUDA Programming Guide (section 5.1). From compute
capability 8.0 on, CUDA keeps 1 KiB of shared memory for each program. So one program can have 163 of the 164 KiB of an A100.
"""


# %%
#| export
@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor has: threads, programs, registers, bytes of shared memory, and how much one program may have."""

    threads: int
    programs: int
    registers: int
    shared: int
    shared_each: int
    reserved: int  # shared memory that CUDA keeps for each program


LIMITS = {  # CUDA Programming Guide, tables 30 and 31; as code in CCCL, cuda/experimental/__device/arch_traits.cuh
    75: Multiprocessor(1024, 16, 65536, 64 * 1024, 64 * 1024, 0),
    80: Multiprocessor(2048, 32, 65536, 164 * 1024, 163 * 1024, 1024),
    90: Multiprocessor(2048, 32, 65536, 228 * 1024, 227 * 1024, 1024),
}


# %%
#| export
def resident(needs: Needs, limits: Multiprocessor) -> int:
    """Programs that have room on a multiprocessor at a time; 0 if not even one fits. Ignores how registers are rounded."""
    if needs.shared > limits.shared_each:
        return 0
    room = [
        limits.programs,
        limits.threads // needs.threads,
        limits.registers // (needs.registers * needs.threads),
    ]
    if needs.shared:
        room.append(limits.shared // (needs.shared + limits.reserved))
    return min(room)


# %% tags=["nbval-ignore-output"]
# needs Triton
for choice, need in needed.items():
    if not need.spilled:
        programs = resident(need, LIMITS[80])
        share = programs * need.threads / LIMITS[80].threads
        print(
            f"block {choice[0]:3}, {choice[1]} warps: programs at a time: {programs}; {share:.0%} of the threads"
        )
answer("23d.2", resident(needed[64, 4], LIMITS[80]))

# %% [markdown]
r"""
Registers are the limit here, not shared memory: with a block of 64, 2 programs of 128 threads with 194 registers each use 49,664 of the
65,536 that there are, and a third one would not fit. The share in the last column is called *occupancy*. A low occupancy is usual for flash attention: it keeps its tiles in
registers on purpose.

The kernel for dk and dv needs more, since it holds two sums. Does it fit everywhere?
"""

# %% tags=["nbval-ignore-output"]
# needs Triton
for gpu, capability in GPUS.items():
    compiled = compile_for(capability, keys_backward_kernel, flash_types(), small)
    print(f"{gpu:5}", needs(compiled), "programs:", resident(needs(compiled), LIMITS[capability]))

# %% [markdown]
r"""
## Predict the best block

Triton has a decorator for this, `triton.autotune`. It runs a kernel with each choice of a list on the GPU that is there,
takes the times, and keeps the fastest. We have no GPU, so let us predict what it would find. It is a model in three steps:

1. A choice that does not fit, or spills, is out.
2. The roofline of chapter 09 gives a lower limit for the time of each choice: the products need FLOPs, and the loads need
   bytes. Larger blocks load less (chapter 23c).
3. Where two choices have the same limit, the one with more threads at a time is preferred.

For the bytes we assume the worst, that each load comes from the main memory. In truth a cache may answer a part of them.
"""


# %%
#| export
#| blank flash_seconds: n(n+1)/2 tiles a head; each 4·block²·D FLOPs and a block of k and v; q, out once; the slower
def flash_seconds(sheet: Peak, heads: int, T: int, D: int, block: int) -> float:
    """A lower limit for the forward pass in 16 bits, if each load comes from main memory. heads: of all texts together.

    n = T / block is rounded up; of q and the output only the T rows count. sheet (chapter 09): half in 10¹² FLOP/s,
    bandwidth in 10⁹ bytes/s.
    """
    n = -(-T // block)
    tiles = heads * n * (n + 1) // 2
    flops = tiles * 4 * block * block * D  # two products, masked halves on the diagonal included
    nbytes = 2 * (tiles * 2 * block * D + 2 * heads * T * D)  # k and v for each tile; q and the output once
    return max(flops / (1e12 * sheet.half), nbytes / (1e9 * sheet.bandwidth))


# %%
for block in (16, 32, 64, 128):
    seconds = flash_seconds(peak_of("A100-80GB"), 8 * 12, 1024, 64, block)
    print(f"block {block:3}: at least {1e6 * seconds:.0f} µs")

# %% [markdown]
r"""
These are limits by the data sheet for 8 texts of 1,024 tokens with 12 heads, and not times. The bytes are the limit for each
of these blocks, so doubling the block almost halves it. At 128 the products alone would need 46 µs, and the bytes are no
longer far above that.

Now all three steps together.
"""


# %%
#| export
def ranked(needed: dict[tuple[int, int], Needs], capability: int, sheet: Peak, heads: int, T: int, D: int):
    """The choices (block, warps) that fit and do not spill, best first by flash_seconds and the threads at a time."""
    limits, scores = LIMITS[capability], {}
    for (block, warps), need in needed.items():
        programs = resident(need, limits)
        if programs and not need.spilled:
            scores[block, warps] = flash_seconds(sheet, heads, T, D, block), -programs * need.threads
    return sorted(scores, key=scores.get)


# %% tags=["nbval-ignore-output"]
# needs Triton
order = ranked(needed, 80, peak_of("A100-80GB"), 8 * 12, 1024, 64)
print(
    "predicted for an A100, best first:",
    ", ".join(f"block {block} with {warps} warps" for block, warps in order),
)
assert (128, 4) not in order, "a choice that spills is in the list"

# %% [markdown]
r"""
So we would expect a block of 128 with 8 warps to win, although only one of its programs has room at a time.

## Measure it on an H100

The prediction above is for an A100. The GPU that we could use was an H100. There, in November 2026, `python bench/gpu_day.py
--out gpu-day --only kernels` took the time of each choice and of PyTorch's attention, for these 8 texts of 1,024 tokens in
float16. So we make the prediction again for an H100, with one choice more: a block of 64 with 8 warps.

*Predict.* What is the time of the predicted choice, divided by that of the fastest one?
"""

# %%
predict("23d.3", "time of the predicted choice / time of the fastest", guess=None)

# %% tags=["nbval-ignore-output"]
# needs Triton
day = json.loads(Path("../data/measurements/h100-day.json").read_text())["kernels"]
measured = {(block, warps): ms for block, warps, ms in day["choices"]}
for_h100, h100_needs = {}, {}
for block, warps in measured:
    sizes = {"D": 64, "BLOCK": block}
    for_h100[block, warps] = compile_for(90, flash_kernel, flash_types(), sizes, warps)
    h100_needs[block, warps] = needs(for_h100[block, warps], warps)
h100_order = ranked(h100_needs, 90, peak_of("H100"), 8 * 12, 1024, 64)
print(f"measured with Triton {day['triton']}, compiled here with {triton.__version__}")
for (block, warps), ms in measured.items():
    limit = flash_seconds(peak_of("H100"), 8 * 12, 1024, 64, block)
    listed = (block, warps) in h100_order
    place = (
        f"place {h100_order.index((block, warps)) + 1}"
        if listed
        else f"out, it spills {h100_needs[block, warps].spilled} bytes"
    )
    programs = resident(h100_needs[block, warps], LIMITS[90])
    print(
        f"block {block:3}, {warps} warps: limit {1e6 * limit:4.0f} µs, measured {1e3 * ms:4.0f}; predicted: {place};"
        f" programs at a time: {programs}"
    )
answer("23d.3", measured[h100_order[0]] / min(measured.values()))
h200 = json.loads(Path("../data/measurements/h200-day.json").read_text())["flash kernels"]["float16"]
for block in (32, 64, 128):
    print(
        f"block {block:3}, 4 warps: H100 {1e3 * measured[block, 4]:.0f} µs, H200 {1e3 * h200[str(block)][0]:.0f} µs"
    )

# %% [markdown]
r"""
By this record the prediction is wrong. The choice in its first place took 92 µs, and the fastest one 72 µs.

But look at the last three lines before you believe it. An H200 has the same multiprocessors as an H100. On both, the same kernel takes the same time with
blocks of 32 and of 128, within 3%. With blocks of 64 it took 72 µs on one and 160 on the other. One of these two numbers is wrong, or something differed that was not recorded. With
160 µs for that choice, the predicted one, 92 µs, would be the fastest of all. So the verdict depends on a single number, which has to be measured again. (The
instructions that we count below speak for the 72.)

One thing is certain: 92 µs are more than twice the limit of 41. The last column says what may slow the large block down. It has room for one program
on a multiprocessor only, and while its warps wait for a product, no other program computes there. (The limit itself assumes that every load comes from the
main memory. All keys and values together have 25 MB here, and an H100's second-level cache holds 50 MiB, see chapter 12.)

Step 1 is too strict: a block of 128 with 4 warps spills 40 bytes, and is still faster than two choices that do not spill.

And step 3 is wrong where it matters. It prefers a block of 64 with 8 warps, because 2 · 256 threads are more than 3 · 128. But with 8 warps it took 1.65
times as long as with 4. Let us count instructions: the two products of a tile are the same work, whether 4 warps do it or 8.
"""

# %% tags=["nbval-ignore-output"]
# needs Triton
for warps in (4, 8):
    kernel = for_h100[64, warps]
    found = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m(\d+)n(\d+)k(\d+)", kernel.asm["ptx"])
    assert len(set(found)) == 1, "the instructions have several shapes"
    m, n, k = map(int, found[0])
    done = len(found) * m * n * k * warps // 4  # four warps share one
    powers = instructions(kernel)["ex2"]
    print(
        f"{warps} warps: {len(found)} × m{m}n{n}k{k}, {done / (2 * 64**3):.1f} times the two products;"
        f" {powers} ex2 a thread, {powers * 32 * warps:,} in all"
    )

# %% [markdown]
r"""
With 8 warps, 1.5 times as many products are computed. A `wgmma` takes 64 rows and four warps. So a block of 64 rows is enough for
one group of four warps only, and two groups must share the columns. Each group can compute half of the columns of the second product. For that it needs all
weights of its 64 rows, so each group computes the whole first product. The first product is done twice and the second once: three
products instead of two.

The exponentials agree. With 4 warps each thread computes 32 for the weights and 32 for `shrink`. With 8 warps there are twice as many
threads: if they shared everything, each would have 16 and 16. It has 48, which is 32 and 16. The weights are computed twice.

## What our kernel lacks

PyTorch's kernel, which is cuDNN's on this GPU (chapter 12b), took 48 µs. Our operator of chapter 23c took 157 µs. We cannot look into cuDNN, but into our own code, and it shows three differences from what an
H100 could do.

First, the operator uses blocks of 32, and the H100's `wgmma` needs 64 rows:
"""

# %% tags=["nbval-ignore-output"]
# needs Triton
print("H100, block 32:", instructions(for_h100[32, 4]))
assert not instructions(for_h100[32, 4])["wgmma.mma_async"], "a block of 32 has wgmma"

# %% [markdown]
r"""
So with blocks of 32 the H100 runs the A100's instruction, and its own is never used. This block also loads each key 16.5 times instead of 8.5 (chapter 23c's (n + 1)/2), which
is why its limit above is twice that of 64.

The second difference is in `exp`. The tensor cores of an H100 do 989 · 10¹² multiplications and additions a second, but only 3.9 · 10¹² exponentials can be computed in this time (Shah et al. 2024, §3.1). That is
so few that it matters whether they are computed twice. The copies come from one choice in chapter 23c: `m` and `total` are columns, (BLOCK, 1), as in chapter 12. Triton's own tutorial keeps
them as vectors, (BLOCK,). Here is our kernel with vectors. It should compute the same.
"""


# %% tags=["nbval-ignore-output"]
# needs Triton
@triton.jit
def vector_kernel(q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, T, scale, D: tl.constexpr, BLOCK: tl.constexpr):
    """flash_kernel, with m and total as vectors."""
    i, head = tl.program_id(0), tl.program_id(1).to(tl.int64) * T
    rows = i * BLOCK + tl.arange(0, BLOCK)
    q = load_tile(q_ptr + head * D, rows, T, D)
    m = tl.full((BLOCK,), -float("inf"), wide(q).dtype)
    total, o = tl.zeros_like(m), tl.zeros((BLOCK, D), m.dtype)
    for j in range(0, i + 1):
        keys = j * BLOCK + tl.arange(0, BLOCK)
        scores = tile_scores(q, load_tile(k_ptr + head * D, keys, T, D), rows, keys, scale)
        values = load_tile(v_ptr + head * D, keys, T, D)
        larger = tl.maximum(m, tl.max(scores, axis=1))
        p = tl.exp(scores - larger[:, None])
        shrink = tl.exp(m - larger)
        total = shrink * total + tl.sum(p, axis=1)
        o = shrink[:, None] * o + tl.dot(p.to(values.dtype), values, input_precision="ieee")
        m = larger
    store_tile(out_ptr + head * D, rows, T, o / total[:, None], D)
    tl.store(lse_ptr + head + rows, m + tl.log(total), mask=rows < T)


q, k, v = torch.randn(3, 2, 40, 16, generator=torch.Generator().manual_seed(0))
outs = []
for kernel in (flash_kernel, vector_kernel):
    out, lse = torch.empty_like(q), torch.empty(2, 40)
    launch(kernel, (3, 2), q, k, v, out, lse, 40, 0.25, D=16, BLOCK=16)
    outs.append((out, lse))
assert all(torch.equal(a, b) for a, b in zip(*outs)), "the vectors compute something else"

tiles = {block: (1024 // block) * (1024 // block + 1) // 2 * 8 * 12 for block in (32, 64, 128)}
for block, warps in measured:
    vector = compile_for(90, vector_kernel, flash_types(), {"D": 64, "BLOCK": block}, warps)
    texts = []
    for kernel in (for_h100[block, warps], vector):
        powers = instructions(kernel)["ex2"]
        seconds = tiles[block] * powers * 32 * warps / 3.9e12
        texts.append(f"{powers:3} ex2 a thread, at least {1e6 * seconds:2.0f} µs")
    print(f"block {block:3}, {warps} warps: {texts[0]}; with vectors {texts[1]}")

# %% [markdown]
r"""
The output is the same to the bit. With a block of 64 and 4 warps nearly half of the exponentials are gone: 34 instead of 64, which is 32 for the weights and 2 for `shrink`. The times in the
lines are a lower limit for the exponentials alone, as the roofline is one for the products. The products of all 13,056 tiles of 64 × 64 need 14 µs (4 · 64³ FLOPs each). The exponentials need
27 µs with columns, and 15 with vectors.

The third difference is the order of the work. In our loop a product must end before the softmax of its tile begins, and the softmax must end before the second product. FlashAttention-3
computes the softmax of one tile *during* the products of another (Shah et al. 2024, §3.2). Our kernel has no such overlap inside a program. Only another program on the
same multiprocessor can fill the gap.

How much each of the three costs, only a GPU can say, and the vectors have not run on one.

With the backward pass the order of the blocks is another one: on an H200, forward and backward together took 0.62 ms with blocks of 32,
0.76 ms with 64 and 0.71 ms with 128. This is why the operator has 32.

## Checkpoint

The package can compile a kernel for a GPU that is not here, count its instructions, say what it needs, and how many programs
fit. The counts are the same on every machine with this version of Triton. Another version may make other instructions.
"""

# %% tags=["nbval-ignore-output"]
predictions("23d")

# %%
checkpoint("23d")

# %% [markdown]
r"""
## Exercises

To explore:

1. You have a GPU? Take the time of `vector_kernel` beside `flash_kernel`, for each choice of the table. *Predict* first, from the counts, where it helps most.
2. `tl.exp` costs a multiplication before each `ex2`. Put $\log_2 e$ into the scale and use `tl.exp2`. *Predict* how the
   counts change. *Check:* chapter 23c's `error_of`, and the counts.
3. Compile `norm_kernel` of chapter 23 for rows of 768 and of 8,192 numbers. From which size on does it spill with 4 warps?
4. For capability 120 (the RTX 5090), which instructions do you expect? Compile it, and read NVIDIA's PTX documentation about what
   you find.

## Further reading

- NVIDIA, [*Parallel Thread Execution ISA*](https://docs.nvidia.com/cuda/parallel-thread-execution/index.html): `mma.sync`, `wgmma.mma_async`, `ex2`.
- NVIDIA, [*CUDA Programming Guide*](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html), §5.1, tables 30 and 31: the limits of a multiprocessor by compute capability. NVIDIA's
  library [CCCL](https://github.com/NVIDIA/cccl) has the same numbers as code, in `arch_traits.cuh`.
- J. Shah et al., [*FlashAttention-3*](https://arxiv.org/abs/2407.08608), 2024, §3: products, exponentials and copies at the same time on an H100.
- S. Williams, A. Waterman, D. Patterson, [*Roofline*](https://doi.org/10.1145/1498765.1498785), CACM 52(4), 2009.
- Triton's documentation: [`triton.autotune`](https://triton-lang.org/main/python-api/generated/triton.autotune.html), [`triton.Config`](https://triton-lang.org/main/python-api/generated/triton.Config.html).
"""
