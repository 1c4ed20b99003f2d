"""The GPU that a student can have for nothing, Colab's T4: the sizes of the largest chapters fit its memory and a free session, by formula.

Nobody has measured these on a T4: memory is the planner's (chapter 22), time the roofline's
of its data sheet (chapter 09), which a real step does not reach.
"""

import ast
import math
from dataclasses import replace

import pytest
import torch

from course.files import read_cells
from course.paths import notebook_path
from nanogpt.labs.ladder.forecast import predict
from nanogpt.labs.ladder.ladder import DEFAULTS
from nanogpt.labs.ladder.ladder import MODELS as LADDERS
from nanogpt.labs.ladder.rungs import RUNGS, rungs_up_to
from nanogpt.labs.plan.footprint import OVERHEAD, Step, footprint
from nanogpt.labs.roofline.clock import Roofline
from nanogpt.labs.roofline.sheets import PEAKS
from nanogpt.model import GPTConfig
from nanogpt.precision import why_not

# Bytes that tensors may take: PyTorch is told 14.7 GiB of the 16 GB on the box.
ROOM = (14.7 * 1024 - OVERHEAD) * 2**20
SHEET = PEAKS["T4"]
FLOPS = {"float32": 1e12 * SHEET.float32, "float16": 1e12 * SHEET.half}
ROOF = Roofline("cuda", FLOPS, 1e9 * SHEET.bandwidth)
SESSION = 600  # seconds a chapter: a free session ends within hours, and 34 chapters want their share


def source(chapter: str) -> list[str]:
    return [cell.source for cell in read_cells(notebook_path(chapter)).cells if cell.cell_type == "code"]


def gpu_sizes(chapter: str) -> list:
    """What stands under "gpu" in the chapter's tables of sizes, in order."""
    names = {"GPTConfig": GPTConfig}
    found = []

    def value_of(node: ast.expr):
        return eval(compile(ast.Expression(node), chapter, "eval"), names)

    for tree in (ast.parse(cell) for cell in source(chapter) if '"gpu":' in cell):
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("GPTConfig("):
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


def test_chapter_14s_ladder_finds_a_batch_and_ends():
    size, B, T = DEFAULTS["cuda"]
    assert gpu_sizes("14b") == [(size, B, T)], "the chapter takes the command's defaults"
    while nbytes(Step(LADDERS[size], B, T, "pytorch", flash=False)) >= ROOM:
        B //= 2
    assert B == 4, "the batch at which the README's and the chapter's T4 figures stand"
    skipped = ("kept memory", "TF32", "bf16", "bf16 weights", "fused loss", "chunked loss")
    each = [seconds(LADDERS[size], B, T, rungs_up_to(name, skipped)) for name in RUNGS if name not in skipped]
    assert len(each) == 6 and 2 * 26 * math.fsum(each) < SESSION / 4, "up and down; the rest is compiling"
