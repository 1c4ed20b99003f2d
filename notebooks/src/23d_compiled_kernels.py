# %% [markdown]
r"""
# 23d · Compiled kernels: look at them without a GPU

The interpreter checks what a kernel computes. But a GPU does not run Python. It runs instructions that Triton's compiler
makes from our text. Does it use the tensor cores? Does it fit into the memory of the GPU? How many of its programs
can run at the same time?

These questions do not need a GPU. The compiler is a program like any other, and it runs on your laptop. We tell it which
GPU it should compile for, and then read what it wrote. In this chapter we take the flash attention of chapter
23c, and compile it for three GPUs that are not here: T4, A100 and H100. We predict the number of tensor-core instructions and count them, find out which
blocks fit, and predict which of them is the best.

Only a GPU can say whether the last prediction is right. We asked an H100, and the last section compares.
"""

# %%
#| default_exp labs.kernels.targets
#| doc labs.kernels.targets: Triton kernels compiled for GPUs that need not be here: instructions, registers, what fits, what to expect.
import json

import torch

from course.figures.triton_here import altered, skip_cells_without_triton
from course.notebook import answer, checkpoint, predict, predictions
from nanogpt.labs.kernels.flash_kernels import flash_kernel, keys_backward_kernel
from nanogpt.labs.kernels.fused_loss import loss_kernel
from nanogpt.labs.kernels.kernels import launch
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

`ASTSource` of `triton.compiler` takes the kernel, its *signature* and the values of the constants, by name. The
signature is a dict with an entry for each name in `kernel.arg_names`: the type, or `"constexpr"` for a constant.
`GPUTarget` of `triton.backends.compiler` takes the backend, the capability and the threads of a warp.
`triton.compile` takes both, and `options={"num_warps": …}`. The imports are inside the function, so that the module
loads where Triton is missing.
"""


# %%
#| export
#| blank compile_for: types by name, constexpr for the constants; triton.compile of an ASTSource for GPUTarget("cuda", capability, 32)
def compile_for(capability: int, kernel, types: dict[str, str], constants: dict[str, int], warps: int = 4):
    """The kernel compiled for GPUs of a compute capability such as 80. types: by argument, "*fp16", "i32", "fp32".

    types may have names that this kernel lacks. ModuleNotFoundError where there is no Triton (HAS_TRITON says so).
    """
    if not HAS_TRITON:
        raise ModuleNotFoundError("Triton is not installed here: `pip install triton` brings it on Linux")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: "constexpr" if name in constants else types[name] for name in kernel.arg_names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
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
Let us check the A100's number. The product of two 64 × 64 matrices has 64/16 · 64/8 · 64/16 = 128 pieces of the size that
one `mma.sync` takes. Four warps share them, so each has 32, and the tile has two products: 64. The count says the same, so
both products are computed by tensor cores, and nothing is computed twice.

For the H100 the compiler chose `wgmma`. One of them multiplies 64 × 16 by 16 × 64 here, with all four warps. A product of the
tile has 4 of these, both products 8.

For the T4 it used no tensor core at all: thousands of `fma` do the products one by one. The T4 has tensor cores,
but Triton 3.7.1 does not use them for this kernel. You could not have seen this from the result, only from the
instructions.

The weights of a tile are 64 · 64 exponentials, 32 for each of 128 threads. The rest of the `ex2` are those of `shrink`: 4 a thread on the A100, and 32 on
the T4 and the H100. There are only 64 numbers in `shrink`, so there most threads compute the same ones again.

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
    spilled: int  # bytes a thread


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
A thread can have 255 registers at most. With a block of 128 and 4 warps, its part of the tiles does not fit into them. NVIDIA's
assembler then gives up the registers: it uses 32 of them and puts 6,816 bytes for each thread into the slow memory. With 8 warps
twice as many threads share the same tile, and nothing is spilled.

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
Registers are the limit here, not shared memory: 2 programs of 128 threads with 255 registers each use up almost all of the
65,536 that there are. The share in the last column is called *occupancy*. A low occupancy is usual for flash attention: it keeps its tiles in
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
print(f"on the day of the measurement, with Triton {day['triton']}, predicted: {day['predicted']}")
for (block, warps), ms in measured.items():
    limit = flash_seconds(peak_of("H100"), 8 * 12, 1024, 64, block)
    listed = (block, warps) in h100_order
    place = f"place {h100_order.index((block, warps)) + 1}" if listed else "out, it spills"
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
on a multiprocessor only, and while this program waits for memory, nothing else computes there. (The limit itself assumes that every load comes from the
main memory. All keys and values together have 25 MB here, and an H100's second-level cache holds 50 MiB, see chapter 12.)

Step 1 is too strict: a block of 128 with 4 warps spills, and is still faster than two choices that do not.

And there is a third gap. By our three steps, a block of 64 is about as good with 8 warps as with 4. With 8 warps it took 1.65
times as long. Let us count instructions: the two products of a tile are the same work, whether 4 warps do it or 8.
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

PyTorch's kernel, which is cuDNN's on this GPU (chapter 12b), took 48 µs. The operator of chapter 23c uses blocks of 32, which is the slowest
choice here: it took 157 µs. With the backward pass the order is another one: on an H200, forward and backward together took 0.62 ms with blocks of 32,
0.76 ms with 64 and 0.71 ms with 128.

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

1. `tl.exp` costs a multiplication before each `ex2`. Put $\log_2 e$ into the scale and use `tl.exp2`. *Predict* how the
   counts change. *Check:* chapter 23c's `error_of`, and the counts.
2. Compile `norm_kernel` of chapter 23 for rows of 768 and of 8,192 numbers. From which size on does it spill with 4 warps?
3. For capability 120 (the RTX 5090), which instructions do you expect? Compile it, and read NVIDIA's PTX documentation about what
   you find.

## Further reading

- NVIDIA, [*Parallel Thread Execution ISA*](https://docs.nvidia.com/cuda/parallel-thread-execution/index.html): `mma.sync`, `wgmma.mma_async`, `ex2`.
- NVIDIA, [*CUDA Programming Guide*](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html), §5.1, tables 30 and 31: the limits of a multiprocessor by compute capability. NVIDIA's
  library [CCCL](https://github.com/NVIDIA/cccl) has the same numbers as code, in `arch_traits.cuh`.
- S. Williams, A. Waterman, D. Patterson, [*Roofline*](https://doi.org/10.1145/1498765.1498785), CACM 52(4), 2009.
- Triton's documentation: [`triton.autotune`](https://triton-lang.org/main/python-api/generated/triton.autotune.html), [`triton.Config`](https://triton-lang.org/main/python-api/generated/triton.Config.html).
"""
