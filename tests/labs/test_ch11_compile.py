"""What chapter 11 claims about torch.compile holds for the package: one graph, few compilations, a clear fallback."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._inductor.utils import run_and_get_code

from course.figures.compiler import why_no_kernels
from nanogpt.model import GPT, GPTConfig

SOURCE = Path(__file__).parents[2] / "notebooks/src/11_compile.py"
HIDDEN = os.environ | {"CXX": "no-such-compiler", "MPLBACKEND": "Agg", "NANOGPT_DEVICE": "cpu"}
GENERATED = re.compile(r"(cpp_fused|triton_)\w+[.(]")
LIBRARY = re.compile(r"(?!#|assert_).*(extern_kernels|ops\.aten)\.\w+[.(]")


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


@pytest.mark.parametrize("flash", [True, False])
def test_a_training_step_is_one_graph(flash):
    model, counter = make(flash=flash), CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    x, y = ids(2, 8), ids(2, 8, seed=1)
    loss = compiled(x, y)[1]
    assert counter.frame_count == 1
    torch.testing.assert_close(loss, model(x, y)[1])


@pytest.mark.slow
def test_the_chapter_goes_on_without_a_compiler(tmp_path):
    text = SOURCE.read_text(encoding="utf-8").replace('checkpoint("11")', 'print("the end")')
    assert 'print("the end")' in text
    path = tmp_path / "chapter.py"
    path.write_text(text, encoding="utf-8")
    code = f"import runpy, sys; sys.path.insert(0, '..'); runpy.run_path({str(path)!r})"
    env = HIDDEN | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "NANOGPT_SCALE": "ci"}
    how = dict(env=env, capture_output=True, text=True, cwd=SOURCE.parent.parent)
    result = subprocess.run([sys.executable, "-c", code], **how)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "backend 'aot_eager': no kernels for cpu here (" in result.stdout
    assert result.stdout.count("no-such-compiler") == 9, "said once, and wherever something is left out"
    assert "round 3: compilations 1" in result.stdout
    assert result.stdout.rstrip().endswith("the end")


@pytest.mark.slow
@pytest.mark.parametrize("n_layer", [1, 2])
def test_a_compiled_step_has_the_same_gradients_and_calls_libraries_for_products_and_attention_only(n_layer):
    """Chapter 14 forecasts with the calls of one layer, as chapter 11 counts them."""
    if reason := why_no_kernels(torch.device("cpu")):
        pytest.skip(reason)
    shape = dict(block_size=256, vocab_size=256, n_layer=n_layer, n_head=4, n_embd=64)
    model, compiled_model = make(**shape), make(**shape)
    compiled, idx = torch.compile(compiled_model), torch.randint(0, 256, (8, 257))
    losses = []

    def step():
        losses.append(compiled(idx[:, :-1], idx[:, 1:])[1])
        losses[0].backward()

    lines = [line.strip() for code in run_and_get_code(step)[1] for line in code.splitlines()]
    generated, library = (sum(map(bool, map(kind.match, lines))) for kind in (GENERATED, LIBRARY))
    assert library == 3 * (4 * n_layer + 1) + 2 * n_layer, "three products a linear layer, attention in two"
    assert n_layer > 1 or generated + library == 29, "nanogpt.labs.ladder.forecast.kernels says 29 a layer"
    loss = model(idx[:, :-1], idx[:, 1:])[1]
    torch.testing.assert_close(loss, losses[0])
    loss.backward()
    for a, b in zip(model.parameters(), compiled_model.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)
