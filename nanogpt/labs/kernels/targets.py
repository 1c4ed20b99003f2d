"""Triton kernels compiled for GPUs that need not be here: instructions, registers, what fits, what to expect.

Exported from notebooks/23d_compiled_kernels.ipynb.
"""

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from torch._inductor.runtime.triton_compat import HAS_TRITON, triton

from nanogpt.labs.roofline.sheets import Peak


def multiples_of_16(signature: dict[str, str]) -> dict:
    """The attributes of an ASTSource which say that all addresses are multiples of 16 bytes, as those of new tensors are."""
    types = enumerate(signature.values())
    return {(i,): [["tt.divisibility", 16]] for i, kind in types if kind.startswith("*")}


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


KINDS = "mma.sync", "wgmma.mma_async", "fma", "ex2"


def instructions(compiled) -> dict[str, int]:
    """How many instructions of each of KINDS the kernel's PTX has, for one thread or its warp."""
    found = Counter(
        re.findall(r"^\s*(?:@%p\d+ )?(mma\.sync|wgmma\.mma_async|fma|ex2)\.", compiled.asm["ptx"], re.M)
    )
    return {kind: found[kind] for kind in KINDS}


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


def ranked(needed: dict[tuple[int, int], Needs], capability: int, sheet: Peak, heads: int, T: int, D: int):
    """The choices (block, warps) that fit and do not spill, best first by flash_seconds and the threads at a time."""
    limits, scores = LIMITS[capability], {}
    for (block, warps), need in needed.items():
        programs = resident(need, limits)
        if programs and not need.spilled:
            scores[block, warps] = flash_seconds(sheet, heads, T, D, block), -programs * need.threads
    return sorted(scores, key=scores.get)
