"""Laws of kernels that are compiled for absent GPUs: instructions as predicted, what fits, and the order of choices."""

import pytest

from nanogpt.labs.kernels.targets import LIMITS, Multiprocessor, Needs, ranked, resident
from nanogpt.labs.roofline.sheets import peak_of

HALF = {"q_ptr": "*fp16", "k_ptr": "*fp16", "v_ptr": "*fp16", "out_ptr": "*fp16", "lse_ptr": "*fp32"}
TYPES = HALF | {"T": "i32", "scale": "fp32"}


def pieces(block, D, m, n, k, warps):
    """Products of m × n × k in the two products of a tile, for each warp."""
    return 2 * block * block * D // (m * n * k) // warps


def test_tensor_cores_do_both_products_of_a_tile_and_nothing_twice():
    pytest.importorskip("triton", reason="Triton is not installed here: pip install triton (Linux)")
    from nanogpt.labs.kernels.flash_kernels import flash_kernel
    from nanogpt.labs.kernels.targets import compile_for, instructions, needs

    found = {}
    for capability in (80, 90):
        compiled = compile_for(capability, flash_kernel, TYPES, {"D": 16, "BLOCK": 64})
        found[capability] = instructions(compiled)
        need = needs(compiled)
        assert need.threads == 128 and 0 < need.registers <= 255 and not need.spilled
        assert need.shared and resident(need, LIMITS[capability])
    assert found[80]["mma.sync"] == pieces(64, 16, 16, 8, 16, warps=4) and not found[80]["wgmma.mma_async"]
    assert found[90]["wgmma.mma_async"] and not found[90]["mma.sync"]
    assert all(counts["ex2"] >= 64 * 64 // 128 for counts in found.values())
    compiled = compile_for(75, flash_kernel, TYPES, {"D": 16, "BLOCK": 16})
    counts = instructions(compiled)
    assert not counts["mma.sync"] and not counts["wgmma.mma_async"] and counts["fma"]


def test_only_aligned_tiles_are_copied_ahead():
    """A launch tells the compiler of addresses that are multiples of 16; without that no tile can be copied while one computes."""
    pytest.importorskip("triton", reason="Triton is not installed here: pip install triton (Linux)")
    from nanogpt.labs.kernels.flash_kernels import flash_kernel
    from nanogpt.labs.kernels.targets import compile_for, needs

    kernels = [compile_for(90, flash_kernel, TYPES, {"D": 64, "BLOCK": 64}, aligned=x) for x in (True, False)]
    assert ["cp.async" in kernel.asm["ptx"] for kernel in kernels] == [True, False]
    assert needs(kernels[0]).shared > needs(kernels[1]).shared


@pytest.mark.parametrize("number", ["fp32", "fp64"])
def test_every_kernel_compiles(number):
    """The interpreter takes some types that the compiler refuses, such as a sum that changes its type in a loop.

    A launch passes a Python number in float32, torch.compile in float64.
    """
    pytest.importorskip("triton", reason="Triton is not installed here: pip install triton (Linux)")
    from nanogpt.labs.kernels import flash_kernels, fused_loss, kernels
    from nanogpt.labs.kernels.targets import compile_for

    whole, sums = {"n", "N", "C", "V", "T"}, {"lse_ptr", "loss_ptr", "mean_ptr", "rstd_ptr"}
    constants = {"ROWS": 16, "COLS": 64, "D": 16, "BLOCK": 16}
    for module in (kernels, fused_loss, flash_kernels):
        for name, kernel in vars(module).items():
            if not name.endswith("_kernel"):
                continue
            types = {"eps": number, "scale": number, "targets_ptr": "*i64"}
            types |= dict.fromkeys(whole, "i32") | dict.fromkeys(sums, "*fp32")
            types = {argument: types.get(argument, "*fp16") for argument in kernel.arg_names}
            mine = {size: constants[size] for size in constants if size in kernel.arg_names}
            assert compile_for(80, kernel, types, mine).asm["cubin"], name


@pytest.mark.parametrize(
    ("needs", "programs"),
    [
        (Needs(128, 32, 0, 0), 4),  # threads
        (Needs(32, 32, 0, 0), 8),  # the highest number
        (Needs(128, 128, 0, 0), 2),  # registers
        (Needs(128, 32, 30 * 1024, 0), 3),  # shared memory, with what is reserved
        (Needs(128, 32, 97 * 1024, 0), 0),  # one program's share
    ],
)
def test_the_scarcest_limit_decides_how_many_programs_fit(needs, programs):
    assert resident(needs, Multiprocessor(512, 8, 32768, 100 * 1024, 96 * 1024, 1024)) == programs


def test_what_spills_or_does_not_fit_is_not_ranked():
    sheet = peak_of("A100-80GB")
    needed = {
        (32, 4): Needs(128, 128, 1024, 0),
        (64, 4): Needs(128, 255, 1024, 0),
        (64, 8): Needs(256, 128, 1024, 0),
        (64, 2): Needs(64, 255, 1024, 8),  # spills
        (128, 8): Needs(256, 128, 200 * 1024, 0),  # does not fit
    }
    assert ranked(needed, 80, sheet, 8, 1024, 64) == [(64, 8), (64, 4), (32, 4)]
    assert (128, 8) in ranked(needed, 90, sheet, 8, 1024, 64)
