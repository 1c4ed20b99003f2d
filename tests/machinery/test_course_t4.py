"""The GPU that a student can have for nothing, Colab's T4: the chapters' sizes fit its memory and a free session, by formula.

Nobody has measured these on a T4: memory is the planner's (chapter 22) or counted on a CPU and scaled, time the roofline's
of its data sheet (chapter 09), which a real step does not reach.
"""

import ast
import contextlib
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from course.figures import nice_numbers
from course.files import read_cells
from course.paths import notebook_path
from nanogpt.labs.ladder.forecast import predict
from nanogpt.labs.ladder.ladder import DEFAULTS
from nanogpt.labs.ladder.ladder import MODELS as LADDERS
from nanogpt.labs.ladder.rungs import RUNGS, rungs_up_to
from nanogpt.labs.plan.footprint import OVERHEAD, Step, footprint
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.labs.roofline.memory import peak_memory
from nanogpt.labs.roofline.sheets import PEAKS
from nanogpt.model import GPT, MLP, SIZES, GPTConfig, attention_weights
from nanogpt.precision import why_not

# Bytes that tensors may take: PyTorch is told 14.7 GiB of the 16 GB on the box.
ROOM = (14.7 * 1024 - OVERHEAD) * 2**20
SHEET = PEAKS["T4"]
FLOPS = {"float32": 1e12 * SHEET.float32, "float16": 1e12 * SHEET.half}
ROOF = Roofline("cuda", FLOPS, 1e9 * SHEET.bandwidth)
SESSION = 600  # seconds a chapter: a free session ends within hours, and 34 chapters want their share
CPU = torch.device("cpu")


def source(chapter: str) -> list[str]:
    return [cell.source for cell in read_cells(notebook_path(chapter)).cells if cell.cell_type == "code"]


def gpu_sizes(chapter: str) -> list:
    """What stands under "gpu" in the chapter's tables of sizes, in order."""
    names = {"GPTConfig": GPTConfig, "SIZES": SIZES, "small": None, "short": []}
    found = []

    def value_of(node: ast.expr):
        return eval(compile(ast.Expression(node), chapter, "eval"), names)

    for tree in (ast.parse(cell) for cell in source(chapter) if '"gpu":' in cell):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("GPTConfig("):
                with contextlib.suppress(NameError):  # one that needs what other cells have
                    names[node.targets[0].id] = value_of(node.value)
        for table in (node for node in ast.walk(tree) if isinstance(node, ast.Dict)):
            sizes = {getattr(key, "value", None): size for key, size in zip(table.keys, table.values)}
            found += [value_of(sizes["gpu"])] if "gpu" in sizes else []
    return found


def nbytes(step: Step) -> int:
    return sum(footprint(step).values())


def seconds(config: GPTConfig, B: int, T: int, on: set[str]) -> float:
    return sum(predict(config, on, B, T, ROOF).values())


@pytest.mark.parametrize("precision", ["tf32", "bf16", "bf16-masters"])
def test_what_a_t4_refuses_names_the_half_precision_that_it_has(monkeypatch, precision):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "use fp16" in why_not(precision, torch.device("cuda"))


@pytest.mark.parametrize("chapter", ["07", *(f"{n:02}" for n in range(9, 15))])
def test_no_cell_asks_for_bfloat16_where_only_cuda_is_known(chapter):
    """`torch.bfloat16 if cuda` is emulated on a T4; which 16 bits it has is chapter 10's to say."""
    for cell in source(chapter):
        for node in ast.walk(ast.parse(cell.replace("%", "#") if cell.startswith("%") else cell)):
            if isinstance(node, ast.IfExp) and "cuda" in ast.unparse(node.test):
                assert "bfloat16" not in ast.unparse(node.body), ast.unparse(node)


def test_chapter_07_trains_in_a_session():
    config, B, steps, _ = gpu_sizes("07")[0]
    config = replace(config, vocab_size=1024)  # the stories' tokenizer
    assert nbytes(Step(config, B, config.block_size, "pytorch", flash=False)) < ROOM
    assert steps * seconds(config, B, config.block_size, {"float32"}) < SESSION


def test_chapter_09_measures_gpt2_in_float32():
    config, (B, T, repeats), (product, copied) = gpu_sizes("09")
    assert nbytes(Step(config, B, T, "pytorch")) < ROOM
    assert 3 * 4 * product**2 < ROOM and 2 * copied * 2**20 < ROOM
    assert 6 * repeats * seconds(config, B, T, {"float32", "flash"}) < SESSION
    assert 40 * ROOF.seconds(2 * product**3, 0, "float32") < SESSION


def test_chapter_10_times_gpt2_with_and_without_autocast():
    """Its sizes on a GPU stand in `make_step`: GPT-2 small, 4 × 1024 tokens, two steps that take turns."""
    (cell,) = (cell for cell in source("10") if "def make_step" in cell)
    assert 'SIZES["gpt2"]' in cell and "(4, 1024)" in cell
    assert 2 * nbytes(Step(GPTConfig(), 4, 1024, "pytorch")) < ROOM
    assert 60 * seconds(GPTConfig(), 4, 1024, {"float32", "flash"}) < SESSION


def test_chapter_10bs_model_is_small():
    (steps,) = gpu_sizes("10b")
    step = 0.1  # seconds, for hundreds of small kernels
    assert 8 * steps * step < SESSION, "eight runs"


def test_chapter_11s_model_written_out_fits():
    n, sizes = gpu_sizes("11")
    names = {"torch": torch, "F": F, "replace": replace, "GPT": GPT, "MLP": MLP}
    for begins in ("def gelu", "class NormWrittenOut"):
        cell = next(cell for cell in source("11") if cell.startswith(begins))
        exec(cell.split("\n\n\nn = ")[0], names)
    config = GPTConfig(vocab_size=256, **sizes | {"n_layer": 1})
    model = names["write_out"](GPT(config))
    ids = torch.zeros(2, 1, config.block_size, dtype=torch.long)
    one = peak_memory(lambda: model(*ids)[1].backward(), CPU)  # one row, one layer; chapter 11 takes 8 rows
    assert 8 * sizes["n_layer"] * one < ROOM / 2
    x = torch.randn(2**16, requires_grad=True)
    kept = peak_memory(lambda: names["gelu"](x, 0.0).sum().backward(), CPU) / 2**16
    assert n * kept < ROOM / 2


def test_chapter_12bs_longest_context_fits_step_by_step():
    T, Ts = gpu_sizes("12b")
    q, k, v = (z.requires_grad_() for z in torch.randn(3, 1, 2, 512, 64).unbind(0))
    square = peak_memory(lambda: (attention_weights(q, k) @ v).sum().backward(), CPU) / 512**2
    assert max(T, *Ts) ** 2 * square < ROOM
    flops = 12 * 2 * 64 * max(Ts) ** 2  # two products forward, four backward, two heads
    assert 4 * 6 * len(Ts) * (ROOF.seconds(flops, 8 * 2 * 4 * max(Ts) ** 2, "float32")) < SESSION


def test_chapter_13s_products_fit():
    (rows, width, inner), (B, T) = gpu_sizes("13")
    logits = 2 * rows * 50304
    assert 2 * logits + 6 * 2 * 50304 * width + 2 * rows * inner < ROOM
    assert 2 * nbytes(Step(GPTConfig(), B, T, "pytorch")) < ROOM, "two steps take turns"
    # Widths that are no multiple of 8 may miss the tensor cores: 3 of 6 at float32's rate.
    calls = 3 * 21 * 3 * (ROOF.seconds(2 * rows * width * 50304, logits, "float16") + logits * width / 8.1e12)
    assert calls < SESSION


def test_chapter_14s_ladder_finds_a_batch_and_ends():
    size, B, T = DEFAULTS["cuda"]
    assert gpu_sizes("14b") == [(size, B, T)], "the chapter takes the command's defaults"
    while nbytes(Step(LADDERS[size], B, T, "pytorch", flash=False)) >= ROOM:
        B //= 2
    assert B == 4, "the batch at which the README's and the chapter's T4 figures stand"
    skipped = ("kept memory", "TF32", "bf16", "bf16 weights", "fused loss", "chunked loss")
    each = [seconds(LADDERS[size], B, T, rungs_up_to(name, skipped)) for name in RUNGS if name not in skipped]
    assert len(each) == 6 and 2 * 26 * math.fsum(each) < SESSION / 4, "up and down; the rest is compiling"


def test_a_size_that_is_too_large_would_be_found():
    config, B, _, _ = gpu_sizes("07")[0]
    assert nbytes(Step(replace(config, vocab_size=1024), 4 * B, 1024, "pytorch", flash=False)) > ROOM
    assert nbytes(Step(SIZES["gpt2"], 16, 1024, "pytorch", flash=False)) > ROOM


def test_chapter_13_prints_the_kernels_of_a_gpu_and_the_operators_of_a_cpu(monkeypatch):
    a, b = torch.randn(4, 8), torch.randn(5, 8)
    assert nice_numbers.kernel_names(lambda: a @ b.T, CPU) == ["aten::mm"]
    gpu, cpu = nice_numbers.DeviceType.CUDA, nice_numbers.DeviceType.CPU
    names = {"aten::mm": cpu, "cudaLaunchKernel": cpu, "Memset (Device)": gpu, "cutlass_75_align1": gpu}
    events = [SimpleNamespace(name=name, device_type=kind) for name, kind in names.items()]

    def profile(activities):
        assert activities == [nice_numbers.ProfilerActivity.CUDA]
        return contextlib.nullcontext(SimpleNamespace(events=lambda: events))

    monkeypatch.setattr(nice_numbers, "profile", profile)
    monkeypatch.setattr(nice_numbers, "synchronize", lambda device: None)
    assert nice_numbers.kernel_names(lambda: None, torch.device("cuda")) == ["cutlass_75_align1"]
