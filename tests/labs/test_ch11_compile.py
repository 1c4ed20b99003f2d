"""What chapter 11 claims about torch.compile holds for the package: one graph, few compilations, a clear fallback."""

import ast
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter
from torch._inductor import metrics
from torch._inductor.utils import run_and_get_code
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.figures.compiler import why_no_kernels
from nanogpt.labs.roofline.clock import Gain
from nanogpt.model import GPT, MLP, GPTConfig

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


def test_dynamic_lengths_need_one_graph():
    model, counter = make().requires_grad_(False), CompileCounter()
    compiled = torch.compile(model, backend=counter, dynamic=True, fullgraph=True)
    for T in (2, 3, 9, 31):
        torch.testing.assert_close(compiled(ids(1, T))[0], model(ids(1, T))[0])
    assert counter.frame_count == 1


def test_modes_are_guarded():
    """What the chapter warns of: if this stops being so, the chapter must say so."""
    model, counter = make(), CompileCounter()
    compiled = torch.compile(model, backend=counter)
    for training in (True, False, True, False):
        compiled.train(training)
        compiled(ids(2, 8))
    assert counter.frame_count == 2


def test_the_graph_of_gelu_is_nine_operations_that_move_twenty_tensors():
    gelu, capture = defined("gelu", "capture")
    x, bias = torch.randn(64, 32), torch.randn(32)
    (graph,) = capture(gelu, x, bias)
    names = [node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"]
    assert names == ["add", "mul", "pow", "mul", "add", "mul", "tanh", "add", "mul"]
    space = dict(TorchDispatchMode=TorchDispatchMode, tree_leaves=tree_leaves)
    _, Traffic = defined("nbytes", "Traffic", **space)
    with Traffic() as eager:
        y = gelu(x, bias)
    assert eager.kernels == 9 and eager.nbytes == 20 * x.nbytes + bias.nbytes
    torch.testing.assert_close(y, F.gelu(x + bias, approximate="tanh"))
    with Traffic() as views:
        x.view(-1).t().detach()
    assert views.kernels == views.nbytes == 0


def test_the_model_written_out_is_the_same_function():
    space = dict(F=F, GPT=GPT, MLP=MLP, replace=replace)
    *_, write_out = defined("gelu", "NormWrittenOut", "MLPWrittenOut", "write_out", **space)
    model = make()
    with torch.no_grad():
        for p in model.parameters():  # GPT-2 begins with biases of zero, which would hide their loss
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())))
    other = write_out(model)
    assert not any(
        type(m) in (torch.nn.LayerNorm, MLP) or getattr(m, "flash", False) for m in other.modules()
    )
    losses = [m(ids(2, 8), ids(2, 8, seed=1))[1] for m in (model, other)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for p, q in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)


def test_break_even_is_where_the_savings_reach_the_debt_or_nowhere():
    (break_even,) = defined("break_even")
    steps = break_even(2.0, 0.010, Gain(2.0, 1.8, 2.2))  # 10 ms become 5 ms
    assert steps * (0.010 - 0.005) == pytest.approx(2.0)
    assert break_even(2.0, 0.010, Gain(1.1, 0.9, 1.3)) is None, "the interval holds 1"
    assert break_even(2.0, 0.010, Gain(0.5, 0.4, 0.6)) is None, "slower"


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
