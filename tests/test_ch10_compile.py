"""What chapter 10 claims about torch.compile holds for the package: one graph, few compilations, a clear fallback."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from nanogpt.model import GPT, GPTConfig
from nanogpt.sample import generate

SOURCE = Path(__file__).parent.parent / "notebooks/src/10_compile.py"
HIDDEN = os.environ | {"CXX": "no-such-compiler", "MPLBACKEND": "Agg", "NANOGPT_DEVICE": "cpu"}


def from_chapter(name):
    """A function or class of the chapter, which exports nothing, by its name."""
    nodes = [n for n in ast.parse(SOURCE.read_text(encoding="utf-8")).body if getattr(n, "name", "") == name]
    return ast.unparse(nodes[0])


def has_compiler() -> bool:
    space = {"torch": torch}
    exec(from_chapter("why_no_compiler"), space)
    return space["why_no_compiler"](torch.device("cpu")) is None


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


def test_dynamic_lengths_need_one_graph():
    model, counter = make().requires_grad_(False), CompileCounter()
    compiled = torch.compile(model, backend=counter, dynamic=True, fullgraph=True)
    for T in (2, 3, 9, 31):
        torch.testing.assert_close(compiled(ids(1, T))[0], model(ids(1, T))[0])
    assert counter.frame_count == 1


def test_writing_and_evaluating_beside_a_compiled_step_compile_nothing():
    model, counter = make(), CompileCounter()
    compiled = torch.compile(model, backend=counter)
    for n in range(3):
        compiled(ids(2, 8, n), ids(2, 8, n + 1))[1].backward()
        texts = [generate(m, [1, 2, 3], 6, temperature=0) for m in (model, compiled)]
        assert texts[0] == texts[1]
        with torch.no_grad():
            model.eval()(ids(1, 3 + n))
            model.train()
        assert counter.frame_count == 1


def test_modes_are_guarded():
    """What the chapter warns of: if this stops being so, the chapter must say so."""
    model, counter = make(), CompileCounter()
    compiled = torch.compile(model, backend=counter)
    for training in (True, False, True, False):
        compiled.train(training)
        compiled(ids(2, 8))
    assert counter.frame_count == 2


def python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        env=HIDDEN | env,
        capture_output=True,
        text=True,
        cwd=SOURCE.parent.parent,
    )


def test_a_hidden_compiler_is_missed_in_one_sentence():
    code = (
        "import torch\n" + from_chapter("why_no_compiler") + "\nprint(why_no_compiler(torch.device('cpu')))"
    )
    result = python(code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("no C++ compiler found; install ") and result.stdout.count("\n") == 1


@pytest.mark.slow
def test_the_chapter_goes_on_without_a_compiler(tmp_path):
    text = SOURCE.read_text(encoding="utf-8").replace('checkpoint("10")', 'print("the end")')
    text = text.replace("from course.notebook import checkpoint, show", "show = lambda fig, alt: None")
    path = tmp_path / "chapter.py"
    path.write_text(text, encoding="utf-8")
    code = f"import sys; sys.path.insert(0, '..'); exec(compile(open({str(path)!r}, encoding='utf-8').read(), {str(path)!r}, 'exec'))"
    result = python(code, TORCHINDUCTOR_CACHE_DIR=str(tmp_path), NANOGPT_SCALE="ci")
    assert result.returncode == 0, result.stderr[-2000:]
    assert "backend 'aot_eager': no C++ compiler found" in result.stdout
    assert "losses and texts: those of the eager run" in result.stdout
    assert result.stdout.rstrip().endswith("the end")


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="no C++ compiler")
def test_a_compiled_step_has_the_same_loss_and_gradients():
    model, compiled_model = make(n_layer=1), make(n_layer=1)
    compiled = torch.compile(compiled_model)
    x, y = ids(4, 16), ids(4, 16, seed=1)
    losses = [call(x, y)[1] for call in (model, compiled)]
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    for a, b in zip(model.parameters(), compiled_model.parameters()):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_compiled_step_on_a_gpu():
    model, compiled_model = make(n_layer=1).cuda(), make(n_layer=1).cuda()
    compiled = torch.compile(compiled_model)
    x, y = ids(4, 16).cuda(), ids(4, 16, seed=1).cuda()
    torch.testing.assert_close(compiled(x, y)[1], model(x, y)[1], rtol=1e-4, atol=1e-4)
