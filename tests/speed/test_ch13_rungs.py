"""Chapter 13: every rung computes the same thing and does what it is named for; a failure is understood."""

import operator
import os
import signal
import sys
import time
from dataclasses import replace

import pytest
import torch

from nanogpt.corpora.corpus import stories
from nanogpt.device import seed_everything
from nanogpt.gpt.model import GPT, GPTConfig, num_params
from nanogpt.speed import rungs
from nanogpt.speed.roofline import Roofline
from nanogpt.speed.rungs import (
    RUNGS,
    in_process,
    make_step,
    obstacles,
    run_rung,
    rungs_up_to,
    take_along,
    why_not_compiled,
    zipf_batches,
)

CPU = torch.device("cpu")
TINY = GPTConfig(block_size=16, vocab_size=100, n_layer=2, n_head=2, n_embd=32)
FLOPS = {"float32": 1e11, "tf32": 2e11, "bfloat16": 4e11, "float16": 4e11}
ROOF = Roofline("cpu", FLOPS, 2e10)
NOT_HERE = ("compile", "TF32", "fp16")  # what a fast test on a CPU leaves out


def losses_of(name, steps, config=TINY, B=4, T=16, skip=NOT_HERE):
    _, step = make_step(config, rungs_up_to(name, skip), B, T, CPU)
    return torch.tensor([step().item() for _ in range(steps)])


@pytest.fixture
def steps_taken(monkeypatch):
    """What each step hands to chapter 07's train_step; no step is taken."""
    seen = []

    def train_step(model, optimizer, batches, precision, scaler=None):
        seen.append((model, optimizer, precision, scaler))
        return torch.zeros(())

    monkeypatch.setattr(rungs, "train_step", train_step)
    return seen


def taken(steps_taken, on):
    make_step(TINY, on, 1, 8, CPU)[1]()
    return steps_taken[-1]


# A rung is what it is named for


def test_rungs_stand_on_each_other():
    names = list(RUNGS)
    for i, name in enumerate(names):
        assert rungs_up_to(name) == set(names[: i + 1])
        assert rungs_up_to(name, ["bf16"]) == set(names[: i + 1]) - {"bf16"}
    assert take_along({"flash": "x"}) == {"flash": "x"}
    for lost in ("bf16", "compile"):
        assert take_along({lost: "x"})["bf16 weights"] == f"it stands on {lost}"
    assert take_along({"bf16": "x", "bf16 weights": "asked"})["bf16 weights"] == "asked"


def test_each_rung_trains_in_the_precision_of_its_name(steps_taken):
    words = {
        "float32": "float32",
        "TF32": "tf32",
        "bf16": "bf16",
        "flash": "bf16",
        "bf16 weights": "bf16-masters",
    }
    for name, word in words.items():
        assert taken(steps_taken, rungs_up_to(name, ["compile", "fp16"]))[2:] == (word, None)
    _, _, word, scaler = taken(steps_taken, rungs_up_to("fused AdamW", ["compile", "TF32", "bf16"]))
    assert word == "fp16" and scaler.scale > 1


def test_the_scaler_lives_as_long_as_the_run(steps_taken):
    _, step = make_step(TINY, {"float32", "fp16"}, 1, 8, CPU)
    step(), step()
    assert steps_taken[0][3] is steps_taken[1][3]


def test_optimizers_differ_in_how_and_not_in_what(steps_taken):
    found = {name: taken(steps_taken, rungs_up_to(name, NOT_HERE))[1] for name in RUNGS}
    for name, optimizer in found.items():
        (group,) = optimizer.param_groups
        given = (group["lr"], group["betas"], group["eps"], group["weight_decay"])
        assert given == (3e-4, (0.9, 0.95), 1e-8, 0.1), name
    assert [name for name, o in found.items() if o.param_groups[0].get("fused")] == ["fused AdamW"]
    assert type(found["bf16 weights"]).__name__ == "MasterAdamW"


def test_bf16_weights_have_float32_masters_and_autocast_ones_need_none(steps_taken):
    model, optimizer, *_ = taken(steps_taken, rungs_up_to("bf16 weights", NOT_HERE))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    masters = [state["master"] for state in optimizer.state.values()]
    assert {m.dtype for m in masters} == {torch.float32}
    assert sum(m.numel() for m in masters) == num_params(model.config)
    model, *_ = taken(steps_taken, rungs_up_to("fused AdamW", NOT_HERE))
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_nice_numbers_are_rows_to_a_multiple_of_128(steps_taken):
    for name, rows in (("flash", 100), ("nice numbers", 128)):
        model, *_ = taken(steps_taken, rungs_up_to(name, NOT_HERE))
        assert len(model.transformer.wte.weight) == len(model.lm_head.weight) == rows
    assert rungs.for_rungs(GPTConfig(), {"nice numbers"}).vocab_rows == 50304


@pytest.mark.parametrize("half, dtype", [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_flash_and_16_bits_are_on_from_their_rungs_on_and_not_before(monkeypatch, half, dtype):
    kernel, calls = torch.nn.functional.scaled_dot_product_attention, []

    def counted(q, *args, **options):
        calls.append((q.dtype, options["is_causal"]))
        return kernel(q, *args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    skip = {"TF32", "compile", "bf16", "fp16"} - {half}
    first = {name: losses_of(name, 1, skip=skip).item() for name in ("float32", half)}
    assert not calls and first["float32"] != first[half]
    losses_of("flash", 1, skip=skip)
    assert calls == [(dtype, True)] * TINY.n_layer


def test_the_compile_rung_compiles_blocks_and_head(monkeypatch):
    import functools

    import torch._dynamo

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    counters = torch._dynamo.utils.counters
    for name, graphs in (("bf16", 0), ("compile", 2)):  # one graph for all blocks, one for the head
        torch._dynamo.reset()
        counters.clear()
        loss = losses_of(name, 1, skip=("TF32", "fp16"))
        assert counters["stats"]["unique_graphs"] == graphs, name
        assert not counters["graph_break"], name
        assert abs(loss - losses_of("float32", 1)) < 0.02
    torch._dynamo.reset()


def test_on_a_gpu_the_whole_model_is_compiled(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda call, *args, **options: compiled.append(call) or call)
    model = GPT(TINY)
    rungs.compile_in_place(model, torch.device("cuda"))
    assert compiled == [model._call_impl]


def test_kept_memory_is_asked_for_on_its_rung_only(monkeypatch):
    asked = []
    monkeypatch.setattr(rungs, "keep_memory", lambda: asked.append(True))
    run_rung("float32", TINY, 1, 8, "cpu", NOT_HERE, 0)
    assert not asked
    run_rung("kept memory", TINY, 1, 8, "cpu", NOT_HERE, 0)
    assert asked


@pytest.mark.parametrize("name", [n for n in list(RUNGS)[1:] if n not in NOT_HERE])
def test_every_rung_has_the_first_ones_loss(name):
    # 28 added rows of 128 start with a share of 22%, so the padded loss is compared at a vocabulary of 128
    config = replace(TINY, vocab_size=128)
    first, other = losses_of("float32", 8, config), losses_of(name, 8, config)
    assert first[0] - first[-1] > 0.02  # it learns, so agreement says something
    assert (first - other).abs().max() < 0.02


def test_fp16_with_its_scaler_has_the_first_ones_loss():
    config = replace(TINY, vocab_size=128)
    first, other = (
        losses_of("float32", 8, config),
        losses_of("fused AdamW", 8, config, skip=("TF32", "bf16", "compile")),
    )
    assert (first - other).abs().max() < 0.02


def test_a_rung_tells_the_loss_of_its_sixth_step_and_the_gradient_of_its_first():
    model = GPT(replace(TINY, flash=False), seed_everything(0))
    adamw = torch.optim.AdamW(model.parameters(), 3e-4, (0.9, 0.95), weight_decay=0.1)
    losses, norms = [], []
    for (x, y), _ in zip(zipf_batches(TINY.vocab_size, 4, 16), range(6)):
        loss = model(x, y)[1]
        adamw.zero_grad()
        loss.backward()
        norms.append(model.transformer.h[0].attn.c_attn.weight.grad.norm().item())
        adamw.step()
        losses.append(loss.item())
    assert len(set(losses)) == 6 and len(set(norms)) == 6
    told = run_rung("float32", TINY, 4, 16, "cpu", NOT_HERE, 0)
    assert told["loss"] == pytest.approx(losses[5], abs=1e-6)
    assert told["grad_norm"] == pytest.approx(norms[0], rel=1e-5)
    assert len(told["times_ms"]) == 3 and min(told["times_ms"]) > 0 and told["first_step_s"] > 0


GROWN = """
import torch
from nanogpt.speed.rungs import peak_mib
before = peak_mib(torch.device("cpu"))
ones = torch.ones(100, 2**18)
raise ValueError(peak_mib(torch.device("cpu")) - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell")
def test_peak_memory_is_in_mebibytes():
    with pytest.raises(RuntimeError) as told:
        in_process(exec, GROWN)
    assert float(str(told.value)) == pytest.approx(100, rel=0.1)


def test_batches_are_the_same_for_a_seed_and_in_range():
    (x, y), (a, b) = next(zipf_batches(50257, 8, 512, seed=3)), next(zipf_batches(50257, 8, 512, seed=3))
    assert torch.equal(x, a) and torch.equal(y, b) and torch.equal(x[:, 1:], y[:, :-1])
    assert x.min() >= 0 and x.max() < 50257
    counts = torch.bincount(x.flatten(), minlength=4)
    assert counts[0] > counts[1] > counts[3] > 0  # Zipf
    assert not torch.equal(x, next(zipf_batches(50257, 8, 512, seed=4))[0])


def story_batches(vocab_size, B, T):
    """Text in which what comes next depends on what came before: each letter of the stories is a token."""
    data = torch.tensor([min(ord(c), vocab_size - 1) for story in stories(3000) for c in story.text])
    g = torch.Generator().manual_seed(0)
    while True:
        at = torch.randint(len(data) - T - 1, (B, 1), generator=g) + torch.arange(T + 1)
        yield data[at][:, :-1], data[at][:, 1:]


@pytest.mark.slow
def test_the_top_rung_follows_float32_for_100_steps_of_text(monkeypatch):
    """Closely enough that weights kept in bfloat16 without masters, which do not follow, are seen."""
    monkeypatch.setattr(rungs, "zipf_batches", story_batches)
    config = GPTConfig(block_size=64, vocab_size=128, n_layer=2, n_head=4, n_embd=64)
    first = losses_of("float32", 100, config, 8, 64)
    top = losses_of(
        "bf16 weights",
        100,
        config,
        8,
        64,
        skip=("TF32", "fp16", *(("compile",) if why_not_compiled(CPU) else ())),
    )
    assert first[0] - first[-1] > 1.5
    assert (first - top).abs().max() < 0.02
    assert (first - top)[-50:].mean().abs() < 0.005


# What a device cannot do


def cuda(monkeypatch, capability, triton=True, compiler=True):
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(rungs.importlib.util, "find_spec", lambda name: triton or None)
    monkeypatch.setattr(rungs.shutil, "which", lambda name: name if compiler else None)
    monkeypatch.delenv("CC", raising=False)
    return torch.device("cuda")


def test_a_cpu_says_what_it_lacks(monkeypatch):
    assert (
        {"TF32", "fp16"}
        <= set(obstacles(CPU, ROOF))
        <= {"kept memory", "TF32", "fp16", "compile", "bf16 weights"}
    )
    emulated = replace(ROOF, flops={"float32": 2e11, "bfloat16": 0.5e11})
    reasons = obstacles(CPU, emulated)
    assert "emulated" in reasons["bf16"] and "0.25×" in reasons["bf16"] and "bf16" in reasons["bf16 weights"]
    monkeypatch.setattr(rungs.platform, "libc_ver", lambda: ("", ""))
    assert "glibc" in obstacles(CPU, ROOF)["kept memory"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    reasons = obstacles(CPU, ROOF)
    assert "C++ compiler" in reasons["compile"] and reasons["bf16 weights"] == "it stands on compile"
    assert {"kept memory", "TF32", "fp16", "compile"} <= set(obstacles(torch.device("mps"), ROOF))


def test_a_t4_climbs_with_fp16(monkeypatch):
    t4 = cuda(monkeypatch, (7, 5))
    assert set(obstacles(t4, replace(ROOF, flops={"float32": 8e12, "float16": 65e12}))) == {
        "kept memory", "TF32", "bf16", "bf16 weights",
    }  # fmt: skip


def test_an_h100_needs_no_scaler(monkeypatch):
    h100 = cuda(monkeypatch, (9, 0))
    assert set(obstacles(h100, ROOF)) == {"kept memory", "fp16"}
    assert set(obstacles(h100, ROOF, skip=["bf16"])) == {"kept memory", "bf16", "bf16 weights"}


@pytest.mark.parametrize("lacks, word", [({"triton": False}, "Windows"), ({"compiler": False}, "C compiler")])
def test_compile_on_a_gpu_needs_triton_and_a_c_compiler(monkeypatch, lacks, word):
    reasons = obstacles(cuda(monkeypatch, (9, 0), **lacks), ROOF)
    assert word in reasons["compile"] and "compile" in reasons["bf16 weights"]


# A process of its own


def test_a_process_gives_back_what_its_call_returned():
    assert in_process(operator.add, 2, 3) == 5
    assert in_process(os.getpid) != os.getpid()


@pytest.mark.parametrize(
    "call, args, error, match",
    [
        (
            exec,
            ("raise RuntimeError('CUDA out of memory. Tried to allocate')",),
            MemoryError,
            "out of memory",
        ),
        (
            exec,
            ('raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory")',),
            MemoryError,
            "allocate",
        ),
        (exec, ("raise MemoryError",), MemoryError, "MemoryError"),
        (signal.raise_signal, (9,), MemoryError, "-9"),
        (
            exec,
            ("raise ValueError('C++ compile error\\n\\nCommand: g++')",),
            RuntimeError,
            r"C\+\+ compile error$",
        ),
        (os._exit, (3,), RuntimeError, "3"),
    ],
)
def test_a_process_that_fails_is_understood(call, args, error, match):
    with pytest.raises(error, match=match):
        in_process(call, *args)


def test_a_process_that_hangs_is_ended():
    start = time.perf_counter()
    with pytest.raises(RuntimeError, match=r"no answer in 0\.5 s"):
        in_process(time.sleep, 60, timeout=0.5)
    assert time.perf_counter() - start < 30
