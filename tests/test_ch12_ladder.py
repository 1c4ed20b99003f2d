"""Chapter 12: the ladder's rungs compute the same thing, its predictions count bytes, its command tells the truth."""

import csv
import json
import math
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt import ladder
from nanogpt.device import Roofline, seed_everything
from nanogpt.ladder import (
    RUNGS,
    MasterAdamW,
    adamw_update,
    climb,
    draw,
    main,
    make_step,
    obstacles,
    pad_vocabulary,
    predict,
    rungs_up_to,
    zipf_batches,
)
from nanogpt.model import GPT, GPTConfig, num_params

DATA = Path(__file__).parents[1] / "data"
CPU = torch.device("cpu")
TINY = GPTConfig(block_size=16, vocab_size=100, n_layer=2, n_head=2, n_embd=32)
ROOF = Roofline("test", {"float32": 1e11, "tf32": 2e11, "bfloat16": 4e11}, 2e10)
OPTIONS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
KEYS = {"name", "ms", "tokens_per_s", "mfu", "peak_mib", "loss", "predicted_ms"}


def padded_pair(rows="zero"):
    plain, padded = (GPT(TINY, seed_everything(0)) for _ in range(2))
    pad_vocabulary(padded)
    if rows == "random":
        with torch.no_grad():
            padded.lm_head.weight[100:].normal_(0, 0.2, generator=torch.Generator().manual_seed(1))
    x, y = next(zipf_batches(100, 4, 16))
    return plain, padded, x, y


# Padded rows


@given(st.integers(1, 400), st.sampled_from([1, 8, 64, 128]))
@settings(max_examples=20, deadline=None)
def test_padding_reaches_the_next_multiple_and_stays_tied(vocab_size, multiple):
    model = GPT(replace(TINY, vocab_size=vocab_size))
    pad_vocabulary(model, multiple)
    rows = len(model.transformer.wte.weight)
    assert rows % multiple == 0 and 0 <= rows - vocab_size < multiple
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.transformer.wte.num_embeddings == model.lm_head.out_features == rows


@pytest.mark.parametrize("rows", ["zero", "random"])
def test_padding_adds_exactly_minus_log_of_what_it_leaves(rows):
    plain, padded, x, y = padded_pair(rows)
    with torch.no_grad():
        (a, loss), (b, loss_padded) = plain(x, y), padded(x, y)
    assert torch.allclose(a, b[..., :100], atol=1e-6)
    P = b.softmax(-1)[..., 100:].sum(-1)
    assert loss_padded - loss > 0.1
    assert torch.allclose(loss_padded, loss - torch.log1p(-P).mean(), atol=1e-5)


def test_an_added_row_has_only_the_gradient_that_pushes_it_down():
    _, padded, x, y = padded_pair("random")
    hidden = []
    padded.transformer.ln_f.register_forward_hook(lambda *args: hidden.append(args[-1].detach()))
    logits, loss = padded(x, y)
    loss.backward()
    h = hidden[0].flatten(0, 1)  # (N, C)
    p = logits.detach().softmax(-1).flatten(0, 1)[:, 100:]  # (N, added)
    grad = padded.lm_head.weight.grad[100:]
    assert torch.allclose(grad, p.T @ h / len(h), atol=1e-7)
    # a step against it lowers the p-weighted mean logit of each row, on these hidden states
    assert ((p * (h @ grad.T)).sum(0) > 0).all()


def test_training_empties_the_added_rows():
    _, padded, *_ = padded_pair()
    adamw = torch.optim.AdamW(padded.parameters(), lr=3e-3)
    shares = []
    for (x, y), _ in zip(zipf_batches(100, 8, 16), range(60)):
        logits, loss = padded(x, y)
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        shares.append(logits.softmax(-1)[..., 100:].sum(-1).mean().item())
    assert shares[-1] < 0.1 * shares[0]


# The optimizer with masters


def test_master_adamw_is_adamw_on_masters():
    g = seed_everything(0)
    ours, theirs = torch.nn.Linear(24, 8), torch.nn.Linear(24, 8)
    theirs.load_state_dict(ours.state_dict())
    exact = theirs.weight.detach().clone()
    master = MasterAdamW(ours, compiled=False, **OPTIONS)
    assert torch.equal(master.state[0][1].view(8, 24), exact)  # taken before the model was rounded
    adamw = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(30):
        for p, q in zip(ours.parameters(), theirs.parameters()):
            p.grad = torch.randn(p.shape, generator=g).bfloat16()
            q.grad = p.grad.float()
        master.step()
        adamw.step()
    for (p, w, *_), q in zip(master.state, theirs.parameters()):
        assert torch.allclose(w, q.detach().flatten(), atol=1e-6)
        assert p.dtype == torch.bfloat16 and torch.equal(p.detach().flatten(), w.bfloat16())
    master.zero_grad()
    assert all(p.grad is None for p in ours.parameters())


def test_updates_too_small_for_bfloat16_are_kept_by_the_master():
    weight, grad = torch.ones(4, dtype=torch.bfloat16), torch.ones(4, dtype=torch.bfloat16)
    master, m, v = torch.ones(4), torch.zeros(4), torch.zeros(4)
    for t in range(1, 101):
        rate, scale = torch.tensor(1e-4 / (1 - 0.9**t)), torch.tensor(1 / (1 - 0.95**t))
        adamw_update(weight, grad, master, m, v, rate, scale, 1e-4, 0.9, 0.95, 1e-8, 0.0)
    assert torch.allclose(master, torch.full((4,), 0.99), atol=1e-5)
    assert weight[0] < 1


@pytest.mark.slow
def test_compiled_update_equals_the_plain_one_and_is_not_compiled_again():
    if obstacles(CPU, ROOF).get("compile"):
        pytest.skip(obstacles(CPU, ROOF)["compile"])
    pair = [torch.nn.Linear(24, 8) for _ in range(2)]
    pair[1].load_state_dict(pair[0].state_dict())
    optimizers = [MasterAdamW(model, compiled, **OPTIONS) for model, compiled in zip(pair, (False, True))]
    torch._dynamo.utils.counters.clear()
    for _ in range(6):
        for model, optimizer in zip(pair, optimizers):
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.5)
            optimizer.step()
    for (_, a, *_), (_, b, *_) in zip(*(o.state for o in optimizers)):
        assert torch.allclose(a, b, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


# Rungs


def test_rungs_stand_on_each_other():
    names = list(RUNGS)
    for i, name in enumerate(names):
        assert rungs_up_to(name) == set(names[: i + 1])
        assert rungs_up_to(name, ["bf16"]) == set(names[: i + 1]) - {"bf16"}


def test_batches_are_the_same_for_a_seed_and_in_range():
    (x, y), (a, b) = next(zipf_batches(50257, 8, 512, seed=3)), next(zipf_batches(50257, 8, 512, seed=3))
    assert torch.equal(x, a) and torch.equal(y, b) and torch.equal(x[:, 1:], y[:, :-1])
    assert x.min() >= 0 and x.max() < 50257
    counts = torch.bincount(x.flatten(), minlength=4)
    assert counts[0] > counts[1] > counts[3] > 0  # Zipf
    assert not torch.equal(x, next(zipf_batches(50257, 8, 512, seed=4))[0])


def losses_of(name, steps, config=TINY, B=4, T=16, device=CPU, skip=("compile",)):
    step = make_step(config, rungs_up_to(name, skip), B, T, device)
    return torch.tensor([step().item() for _ in range(steps)])


@pytest.mark.parametrize("name", list(RUNGS)[1:])
def test_every_rung_has_the_first_ones_loss(name):
    # 28 added rows of 128 start with a share of 22%, so the padded loss is compared at a vocabulary of 128
    config = replace(TINY, vocab_size=128)
    first, other = losses_of("float32", 8, config), losses_of(name, 8, config)
    assert first[0] - first[-1] > 0.02  # it learns, so agreement says something
    assert (first - other).abs().max() < 0.02


def test_bf16_weights_are_really_bf16_and_autocast_weights_are_not(monkeypatch):
    seen = []
    monkeypatch.setattr(ladder, "pad_vocabulary", lambda model: seen.append(model))
    for name in ("fused AdamW", "bf16 weights"):
        make_step(TINY, rungs_up_to(name, ["compile"]), 1, 8, CPU)
    assert [model.lm_head.weight.dtype for model in seen] == [torch.float32, torch.bfloat16]


@pytest.mark.slow
def test_the_top_rung_follows_float32_for_200_steps():
    config = GPTConfig(block_size=64, vocab_size=1024, n_layer=4, n_head=4, n_embd=128)
    first, top = (losses_of(name, 200, config, 8, 64) for name in ("float32", "bf16 weights"))
    assert first[0] - first[-1] > 1
    assert (first - top).abs().max() < 0.02
    assert (first - top)[-50:].mean().abs() < 0.005


# Predictions


def seconds(name, part):
    return predict(GPTConfig(), rungs_up_to(name), 4, 64, ROOF).get(part, 0)


def test_predictions_are_bytes_over_bandwidth():
    P = num_params(GPTConfig())
    assert (
        seconds("nice numbers", "AdamW") == 80 * P / 2e10 and seconds("fused AdamW", "AdamW") == 28 * P / 2e10
    )
    assert (
        seconds("fused AdamW", "weight casts") == 12 * P / 2e10
        and seconds("bf16 weights", "weight casts") == 0
    )
    assert seconds("compile", "T×T") > 0 == seconds("flash", "T×T")
    assert seconds("bf16", "products") == pytest.approx(seconds("float32", "products") / 4)
    assert seconds("TF32", "products") == pytest.approx(seconds("float32", "products") / 2)
    assert seconds("compile", "pointwise") < seconds("bf16", "pointwise")
    assert seconds("nice numbers", "logits") == pytest.approx(seconds("flash", "logits") * 50304 / 50257)


def test_products_of_a_tiny_batch_cost_the_reading_of_the_weights():
    slow_memory = Roofline("test", ROOF.flops, 1e6)
    parts = predict(GPTConfig(), {"float32"}, 1, 1, slow_memory)
    assert parts["products"] == 12 * num_params(GPTConfig()) / 1e6


# What a device cannot do


def test_obstacles_name_their_reason(monkeypatch):
    assert set(obstacles(CPU, ROOF)) <= {"TF32", "compile"}
    slow = replace(ROOF, flops={"float32": 2e11, "bfloat16": 1e11})
    assert "slower than float32" in obstacles(CPU, slow)["bf16"]
    assert {"TF32", "compile"} <= set(obstacles(torch.device("mps"), ROOF))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "C++ compiler" in obstacles(CPU, ROOF)["compile"]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert {"TF32", "bf16"} <= set(obstacles(torch.device("cuda"), ROOF))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(ladder.importlib.util, "find_spec", lambda name: None)
    assert set(obstacles(torch.device("cuda"), ROOF)) == {"compile"}
    assert "Windows" in obstacles(torch.device("cuda"), ROOF)["compile"]


# The command, with rungs that answer at once


def answers(monkeypatch, answer=None):
    """Replace the rungs' processes by a function; the roofline is ROOF."""
    calls = []

    def in_process(arguments):
        name = arguments[arguments.index("--rung") + 1]
        calls.append(arguments)
        if name == "roofline":
            return {"device": "cpu", "flops": ROOF.flops, "bandwidth": ROOF.bandwidth}
        rung = {
            "name": name,
            "ms": 10.0,
            "q1_ms": 9.0,
            "q3_ms": 11.0,
            "steps": 20,
            "peak_mib": 1.0,
            "loss": 9.0,
        }
        return rung | {"tokens_per_s": 1.0} | (answer(name, arguments) if answer else {})

    monkeypatch.setattr(ladder, "in_process", in_process)
    return calls


def test_result_has_the_promised_fields_and_every_rung_has_its_process(monkeypatch):
    calls = answers(monkeypatch)
    result = climb("124M", 4, 64, CPU, say=lambda text: None)
    assert {"device", "versions", "rungs", "date", "command", "load"} <= set(result)
    assert all(set(rung) >= KEYS for rung in result["rungs"])
    assert {r["name"] for r in result["rungs"]} | {r["name"] for r in result["skipped"]} == set(RUNGS)
    assert len(calls) == 1 + len(result["rungs"])
    assert result["rungs"][0]["mfu"] == pytest.approx(4 * 64 * 6 * 124.4e6 / 0.01 / 4e11, rel=0.02)
    json.dumps(result)


def test_memory_that_runs_out_halves_the_batch_and_says_so(monkeypatch):
    def too_big(name, arguments):
        if int(arguments[arguments.index("--batch") + 1]) > 2:
            raise MemoryError("no")
        return {}

    answers(monkeypatch, too_big)
    said = []
    result = climb("small", 8, 64, CPU, say=said.append)
    assert result["batch"] == 2 and "--batch 2" in result["command"]
    assert sum("starting over with batch" in line for line in said) == 2
    with pytest.raises(RuntimeError, match="shorter --seq"):  # nothing is left to halve
        answers(monkeypatch, lambda name, arguments: too_big(name, ["--batch", "9"]))
        climb("small", 2, 64, CPU, say=lambda text: None)


def test_a_wrong_loss_is_marked_and_a_failed_rung_is_skipped_with_its_error(monkeypatch):
    def answer(name, arguments):
        if name == "nice numbers":
            raise RuntimeError("a kernel is missing")
        return {"loss": 9.2} if name == "flash" else {}

    calls = answers(monkeypatch, answer)
    said = []
    result = climb("small", 1, 64, CPU, say=said.append)
    assert [r["name"] for r in result["rungs"] if not r["agrees"]] == ["flash"]
    assert any("DISAGREES" in line for line in said)
    reasons = {r["name"]: r["reason"] for r in result["skipped"]}
    assert "a kernel is missing" in reasons["nice numbers"]
    assert "nice numbers" in calls[-1][calls[-1].index("--skip") :]  # later rungs go on without it
    assert "loss disagrees" in {t.get_text().split("\n")[-1] for t in draw(result).axes[0].texts}


def test_a_nan_loss_disagrees(monkeypatch):
    answers(monkeypatch, lambda name, arguments: {"loss": math.nan} if name == "flash" else {})
    result = climb("small", 1, 64, CPU, say=lambda text: None)
    assert [r["name"] for r in result["rungs"] if not r["agrees"]] == ["flash"]


def test_the_top_rung_is_left_out_with_what_it_stands_on(monkeypatch):
    answers(monkeypatch)
    result = climb("small", 1, 64, CPU, skip=["compile"], say=lambda text: None)
    reasons = {r["name"]: r["reason"] for r in result["skipped"]}
    assert reasons["compile"] == "left out by --skip" and "compile" in reasons["bf16 weights"]


def test_files_are_written_whole_or_not_at_all(monkeypatch, tmp_path, capsys):
    answers(monkeypatch)
    out, plot = tmp_path / "a.json", tmp_path / "a.png"
    call = ["--device", "cpu", "--out", str(out), "--plot", str(plot)]
    assert main(call) == 0
    before = out.read_bytes()
    assert json.loads(before)["rungs"] and plot.read_bytes()[:4] == b"\x89PNG"

    def stop(name, arguments):
        if name == "flash":
            raise KeyboardInterrupt
        return {"ms": 5.0}

    answers(monkeypatch, stop)
    assert main(call) == 130
    assert "nothing was written" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "a.png"]


@pytest.mark.parametrize(
    "bad",
    [
        ["--batch", "0"],
        ["--seq", "9999"],
        ["--out", "no/such/folder/a.json"],
        ["--device", "tpu"],
        ["--seconds", "-1"],
    ],
)
def test_bad_input_is_one_sentence_and_two(bad, capsys):
    assert main(["--device", "cpu", *bad]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ladder: ") and error.count("\n") == 1


def test_help_teaches_with_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0 and "example: python -m nanogpt ladder --size 124M" in capsys.readouterr().out


# Processes for real


@pytest.mark.parametrize(
    "child, error",
    [
        (
            "import sys; sys.exit('torch.OutOfMemoryError: CUDA out of memory. Tried to allocate')",
            MemoryError,
        ),
        ('import sys; sys.exit("DefaultCPUAllocator: can\'t allocate memory")', MemoryError),
        ("import sys; sys.exit('a kernel is missing')", RuntimeError),
    ],
)
def test_a_child_that_dies_is_understood(monkeypatch, child, error):
    monkeypatch.setattr(ladder, "CHILD", child)
    with pytest.raises(error):
        ladder.in_process([])


def test_a_bare_checkout_is_enough():
    code = (
        "import sys\n"
        "for name in ('matplotlib', 'regex', 'tiktoken', 'safetensors', 'yaml', 'tqdm', 'IPython', 'course'):\n"
        "    sys.modules[name] = None\n"
        "import nanogpt.ladder"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(ladder.__file__).parents[1])


@pytest.mark.slow
def test_a_real_climb(tmp_path):
    out = tmp_path / "ladder.json"
    call = [
        "--device",
        "cpu",
        "--size",
        "small",
        "--seq",
        "16",
        "--seconds",
        "0",
        "--skip",
        "compile",
        "--out",
        str(out),
    ]
    assert main(call) == 0
    result = json.loads(out.read_text())
    assert all(rung["agrees"] and rung["ms"] > 0 and rung["steps"] >= 5 for rung in result["rungs"])
    assert {"float32", "flash", "nice numbers", "fused AdamW"} <= {rung["name"] for rung in result["rungs"]}


# What is recorded


def test_recorded_ladders_are_what_the_command_writes(monkeypatch):
    answers(monkeypatch)
    fresh = climb("small", 1, 64, CPU, say=lambda text: None)
    recorded = sorted((DATA / "measurements").glob("ladder-*.json"))
    if not recorded:
        pytest.skip(
            "no ladder is recorded yet; python -m nanogpt ladder --out data/measurements/ladder-NAME.json"
        )
    for path in recorded:
        result = json.loads(path.read_text())
        assert set(result) == set(fresh)
        assert all(set(rung) == set(fresh["rungs"][0]) for rung in result["rungs"])
        assert {r["name"] for r in result["rungs"]} | {r["name"] for r in result["skipped"]} == set(RUNGS)
        assert platform.node() not in path.read_text() or not platform.node()


def test_reference_tables_hold_the_published_figures():
    tables = {
        path.stem: list(csv.DictReader(path.open(encoding="utf-8")))
        for path in (DATA / "reference").glob("*.csv")
    }
    ms = {
        (row["device"], row.get("gpus")): float(row["ms_per_step"])
        for t in ("cpu", "single_gpu")
        for row in tables[t]
    }
    assert ms == {
        ("RTX 4070 SUPER", "1"): 198.34,
        ("H800", "1"): 36.90,
        ("H800", "2"): 30.94,
        ("Intel", None): 2635.72,
        ("Arm", None): 12103.80,
        ("Apple M1", None): 8128.85,
    }
    assert {row["loss_step_40"] for row in tables["cpu"]} == {"4.02"}
    (a800,) = tables["large_batch"]
    assert int(a800["batch"]) * int(a800["seq"]) * 8 == int(a800["tokens_per_step"]) == 458752
    assert (a800["ms_per_step"], a800["peak_mib"]) == ("2397", "21315")
    assert [(r["ms_low"], r["ms_high"]) for r in tables["megatron"]] == [("822", "900"), ("600.8", "600.8")]
    assert all(row["source"] for table in tables.values() for row in table)


# On a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(RUNGS))
def test_every_rung_runs_on_a_gpu_with_the_first_ones_loss(name):
    device = torch.device("cuda")
    roof = ladder.measure_roofline(device)
    skip = obstacles(device, roof)
    if name in skip:
        pytest.skip(skip[name])
    rung = ladder.run_rung(name, ladder.SIZES["small"], 2, 128, device, skip, seconds=1)
    first = losses_of("float32", ladder.LOSS_STEPS, ladder.SIZES["small"], 2, 128, device)
    assert abs(rung["loss"] - first[-1].item()) < ladder.TOLERANCE
    assert rung["peak_mib"] > 0 and rung["steps"] >= 5
