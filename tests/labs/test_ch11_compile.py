"""What chapter 11 claims about torch.compile holds for the package: one graph, few compilations, a clear fallback."""

import ast
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter
from torch._inductor import metrics
from torch._inductor.utils import run_and_get_code

from course.figures.compiler import why_no_kernels
from nanogpt.model import GPT, GPTConfig

SOURCE = Path(__file__).parents[2] / "notebooks/src/11_compile.py"
HIDDEN = os.environ | {"CXX": "no-such-compiler", "MPLBACKEND": "Agg", "NANOGPT_DEVICE": "cpu"}


def from_chapter(name):
    """A function or class of the chapter, which exports nothing, by its name."""
    nodes = [n for n in ast.parse(SOURCE.read_text(encoding="utf-8")).body if getattr(n, "name", "") == name]
    return ast.unparse(nodes[0])


def defined(*names, **space):
    """The chapter's functions of these names, ready to call."""
    space = {"torch": torch, "math": math} | space
    for name in names:
        exec(from_chapter(name), space)
    return [space[name] for name in names]


@pytest.fixture(scope="module")
def kernels() -> None:
    """Skips where Inductor cannot make kernels for the CPU."""
    if reason := why_no_kernels(torch.device("cpu")):
        pytest.skip(reason)


def make(**shape):
    shape = dict(block_size=32, vocab_size=64, n_layer=2, n_head=2, n_embd=16) | shape
    return GPT(GPTConfig(**shape), generator=torch.Generator().manual_seed(0))


def ids(B, T, seed=0):
    return torch.randint(0, 64, (B, T), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def calls():
    """The chapter's function that finds calls in generated code, and its two patterns."""
    (called,) = defined("called", re=re)
    text = SOURCE.read_text(encoding="utf-8")
    return called, *(
        re.search(rf'^{name} = r"(.*)"$', text, re.MULTILINE)[1] for name in ("GENERATED", "LIBRARY")
    )


@pytest.mark.parametrize("flash", [True, False])
def test_a_training_step_is_one_graph(flash):
    model, counter = make(flash=flash), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x, y = ids(2, 8), ids(2, 8, seed=1)
    loss = compiled(x, y)[1]
    assert counter.frame_count == 1
    torch.testing.assert_close(loss, model(x, y)[1])


def python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=HIDDEN | env,
        capture_output=True,
        text=True,
        cwd=SOURCE.parent.parent,
    )


@pytest.mark.slow
def test_the_chapter_goes_on_without_a_compiler(tmp_path):
    text = SOURCE.read_text(encoding="utf-8").replace('checkpoint("11")', 'print("the end")')
    assert 'print("the end")' in text
    path = tmp_path / "chapter.py"
    path.write_text(text, encoding="utf-8")
    code = f"import runpy, sys; sys.path.insert(0, '..'); runpy.run_path({str(path)!r})"
    result = python(code, TORCHINDUCTOR_CACHE_DIR=str(tmp_path), NANOGPT_SCALE="ci")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "backend 'aot_eager': no kernels for cpu here (" in result.stdout
    assert result.stdout.count("no-such-compiler") == 9, "said once, and wherever something is left out"
    assert "round 3: compilations 1" in result.stdout
    assert result.stdout.rstrip().endswith("the end")


@pytest.mark.slow
def test_gelu_becomes_one_kernel(kernels):
    (gelu,) = defined("gelu")
    metrics.reset()
    x, bias = torch.randn(64, 32), torch.randn(32)
    torch.testing.assert_close(torch.compile(gelu)(x, bias), gelu(x, bias))
    assert metrics.generated_kernel_count == 1


@pytest.mark.slow
@pytest.mark.parametrize("n_layer", [1, 2])
def test_a_compiled_step_has_the_same_gradients_and_calls_libraries_for_products_and_attention_only(
    kernels, n_layer
):
    """Chapter 14 forecasts with the calls of one layer, as chapter 11 counts them."""
    called, *patterns = calls()
    shape = dict(block_size=256, vocab_size=256, n_layer=n_layer, n_head=4, n_embd=64)
    model, compiled_model = make(**shape), make(**shape)
    compiled, idx = torch.compile(compiled_model), torch.randint(0, 256, (8, 257))
    losses = []

    def step():
        losses.append(compiled(idx[:, :-1], idx[:, 1:])[1])
        losses[0].backward()

    codes = run_and_get_code(step)[1]
    generated, library = (len(called(codes, pattern)) for pattern in patterns)
    assert library == 3 * (4 * n_layer + 1) + 2 * n_layer, "three products a linear layer, attention in two"
    assert n_layer > 1 or generated + library == 29, "nanogpt.labs.ladder.forecast.kernels says 29 a layer"
    loss = model(idx[:, :-1], idx[:, 1:])[1]
    torch.testing.assert_close(loss, losses[0])
    loss.backward()
    for a, b in zip(model.parameters(), compiled_model.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_compiler_knows_attention_by_one_spelling_and_not_by_the_other(kernels):
    """What the chapter shows: if this stops being so, the chapter must say so."""
    mask_filled, mask_added, allocated = defined("mask_filled", "mask_added", "allocated", re=re)
    q, k, v = (torch.randn(1, 2, 64, 16, requires_grad=True) for _ in range(3))
    future = torch.ones(64, 64, dtype=torch.bool).triu(1)
    added = torch.zeros(64, 64).masked_fill(future, -math.inf)
    scores = {}
    for function, mask in ((mask_filled, future), (mask_added, added)):
        out, codes = run_and_get_code(torch.compile(function), q, k, v, mask)
        torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, is_causal=True))
        scores[function.__name__] = len(allocated(codes, 2 * 64 * 64))
    assert scores["mask_filled"] > 0 and scores["mask_added"] == 0


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_compiled_step_on_a_gpu():
    assert why_no_kernels(torch.device("cuda")) is None
    model, compiled_model = make(n_layer=1).cuda(), make(n_layer=1).cuda()
    compiled = torch.compile(compiled_model)
    x, y = ids(4, 16).cuda(), ids(4, 16, seed=1).cuda()
    torch.testing.assert_close(compiled(x, y)[1], model(x, y)[1], rtol=1e-4, atol=1e-4)
