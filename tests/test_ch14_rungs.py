"""Chapter 14: padded rows do no harm, every rung computes the same thing, predictions count bytes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nanogpt.limits import PAGE, fault_seconds, has_cpp_compiler, why_not_kept

from nanogpt import ladder, rungs
from nanogpt.bench import predict_step
from nanogpt.corpus import stories
from nanogpt.device import Roofline, seed_everything
from nanogpt.ladder import KEEP, in_process
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.rungs import (
    RUNGS,
    MasterAdamW,
    adamw_update,
    fresh_bytes,
    make_step,
    pad_vocabulary,
    predict,
    rungs_up_to,
    zipf_batches,
)

CPU = torch.device("cpu")
TINY = GPTConfig(block_size=16, vocab_size=100, n_layer=2, n_head=2, n_embd=32)
ROOF = Roofline("test", {"float32": 1e11, "tf32": 2e11, "bfloat16": 4e11}, 2e10)
OPTIONS = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}


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
    assert not model.lm_head.weight[vocab_size:].any() and model.lm_head.weight[:vocab_size].any()
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
    assert torch.equal(master.master[:192].view(8, 24), exact)  # taken before the model was rounded
    adamw = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(30):
        for p, q in zip(ours.parameters(), theirs.parameters()):
            p.grad = torch.randn(p.shape, generator=g).bfloat16()
            q.grad = p.grad.float()
        master.step()
        adamw.step()
    assert torch.allclose(master.master, torch.cat([q.flatten() for q in theirs.parameters()]), atol=1e-6)
    rounded = torch.cat([p.flatten() for p in ours.parameters()])
    assert rounded.dtype == torch.bfloat16 and torch.equal(rounded, master.master.bfloat16())
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
    if not has_cpp_compiler():
        pytest.skip("torch.compile needs a C++ compiler")
    pair = [torch.nn.Linear(24, 8) for _ in range(2)]
    pair[1].load_state_dict(pair[0].state_dict())
    optimizers = [MasterAdamW(model, compiled, **OPTIONS) for model, compiled in zip(pair, (False, True))]
    torch._dynamo.utils.counters.clear()
    for _ in range(6):
        for model, optimizer in zip(pair, optimizers):
            for p in model.parameters():
                p.grad = torch.full_like(p, 0.5)
            optimizer.step()
    assert torch.allclose(optimizers[0].master, optimizers[1].master, atol=1e-6)
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
    _, step = make_step(config, rungs_up_to(name, skip), B, T, device)
    return torch.tensor([step().item() for _ in range(steps)])


@pytest.mark.parametrize("name", list(RUNGS)[1:])
def test_every_rung_has_the_first_ones_loss(name):
    # 28 added rows of 128 start with a share of 22%, so the padded loss is compared at a vocabulary of 128
    config = replace(TINY, vocab_size=128)
    first, other = losses_of("float32", 8, config), losses_of(name, 8, config)
    assert first[0] - first[-1] > 0.02  # it learns, so agreement says something
    assert (first - other).abs().max() < 0.02


def test_the_first_rung_is_a_plain_training_loop():
    model = GPT(replace(TINY, flash=False), seed_everything(0))
    adamw = torch.optim.AdamW(model.parameters(), 3e-4, (0.9, 0.95), weight_decay=0.1)
    losses = []
    for (x, y), _ in zip(zipf_batches(TINY.vocab_size, 4, 16), range(8)):
        loss = model(x, y)[1]
        adamw.zero_grad()
        loss.backward()
        adamw.step()
        losses.append(loss.item())
    assert losses == losses_of("float32", 8).tolist()


def test_bf16_and_flash_are_on_from_their_rungs_on_and_not_before(monkeypatch):
    kernel, calls = torch.nn.functional.scaled_dot_product_attention, []

    def counted(q, *args, **options):
        calls.append(q.dtype)
        return kernel(q, *args, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    first = {name: losses_of(name, 1).item() for name in ("float32", "TF32", "bf16", "compile")}
    assert not calls
    assert first["float32"] == first["TF32"] != first["bf16"] == first["compile"]
    losses_of("flash", 1)
    assert calls == [torch.bfloat16] * TINY.n_layer


def test_bf16_weights_are_really_bf16_and_autocast_weights_are_not(monkeypatch):
    seen = []
    monkeypatch.setattr(rungs, "pad_vocabulary", lambda model: seen.append(model))
    for name in ("fused AdamW", "bf16 weights"):
        make_step(TINY, rungs_up_to(name, ["compile"]), 1, 8, CPU)
    assert [model.lm_head.weight.dtype for model in seen] == [torch.float32, torch.bfloat16]


def story_batches(vocab_size, B, T):
    """Text in which what comes next depends on what came before: each letter of the stories is a token."""
    data = torch.tensor([min(ord(c), vocab_size - 1) for story in stories(3000) for c in story.text])
    g = torch.Generator().manual_seed(0)
    while True:
        at = torch.randint(len(data) - T - 1, (B, 1), generator=g) + torch.arange(T + 1)
        yield data[at][:, :-1], data[at][:, 1:]


@pytest.mark.slow
def test_the_top_rung_follows_float32_for_200_steps_of_text(monkeypatch):
    monkeypatch.setattr(rungs, "zipf_batches", story_batches)
    config = GPTConfig(block_size=64, vocab_size=128, n_layer=4, n_head=4, n_embd=128)
    skip = () if has_cpp_compiler() else ("compile",)
    first = losses_of("float32", 200, config, 8, 64)
    top = losses_of("bf16 weights", 200, config, 8, 64, skip=skip)
    assert first[0] - first[-1] > 1.5
    assert (first - top).abs().max() < 0.05
    assert (first - top)[-50:].mean().abs() < 0.01


# Predictions


def seconds(name, part, fault=0.0):
    return predict(GPTConfig(), rungs_up_to(name), 4, 64, ROOF, fault).get(part, 0)


def test_predictions_are_bytes_over_bandwidth():
    P = num_params(GPTConfig())
    assert seconds("nice numbers", "optimizer") == 80 * P / 2e10
    assert seconds("fused AdamW", "optimizer") == 28 * P / 2e10
    assert seconds("bf16 weights", "optimizer") == 32 * P / 2e10
    assert seconds("fused AdamW", "weight casts") == 12 * P / 2e10
    assert seconds("kept memory", "weight casts") == seconds("bf16 weights", "weight casts") == 0
    assert seconds("kept memory", "page faults", fault=1e-6) == 0
    assert seconds("flash", "attention") == predict(GPTConfig(), {"bf16", "flash"}, 4, 64, ROOF)["attention"]
    assert fresh_bytes(GPTConfig(flash=False), 4, 64) == 4 * 4 * 50257 * (4 * 64 + 768)
    assert (
        seconds("float32", "page faults", fault=1e-6)
        == 1e-6 * fresh_bytes(GPTConfig(flash=False), 4, 64) / PAGE
    )


def test_products_are_flops_over_the_rate_of_their_dtype():
    float32 = seconds("float32", "mlp")
    assert float32 == 3 * 2 * 256 * 12 * 8 * 768**2 / 1e11
    assert seconds("TF32", "mlp") == pytest.approx(float32 / 2)
    assert seconds("bf16", "mlp") == pytest.approx(float32 / 4)
    head = [seconds(name, "head") for name in ("flash", "nice numbers")]
    assert head[1] == pytest.approx(head[0] * 50304 / 50257)


def test_without_a_rung_the_work_is_chapter_08s():
    slow = Roofline("test", {"float32": 1e18}, 1e9)  # memory decides everywhere
    config = GPTConfig(flash=False)
    whole = predict_step(config, 4, 64, slow)
    parts = rungs.work_seconds(config, {"float32"}, 4, 64, slow)
    for part, second in parts.items():
        assert second == pytest.approx(sum(s for (name, _), s in whole.items() if name == part)), part


def test_each_rung_changes_the_parts_that_it_claims_to():
    changes = {
        "kept memory": {"page faults"},
        "TF32": {"qkv", "attention", "proj", "mlp", "head"},
        "bf16": {*rungs.PRODUCTS, "gelu", "cross-entropy"},
        "compile": {"attention", "residual", "cross-entropy"},
        "flash": {"attention"},
        "nice numbers": {"head", "cross-entropy", "embedding"},
        "fused AdamW": {"optimizer"},
    }
    costs = {
        "nice numbers": changes["nice numbers"],
        "bf16": {"cross-entropy"},
    }  # a loss in float32, with casts
    slow = Roofline("test", {"float32": 1e14, "tf32": 2e14, "bfloat16": 4e14}, 1e9)  # memory decides
    names = list(RUNGS)
    for name, parts in changes.items():
        roof = ROOF if name == "TF32" else slow
        before, after = (
            predict(GPTConfig(), rungs_up_to(n), 4, 512, roof, 1e-6)
            for n in (names[names.index(name) - 1], name)
        )
        changed = {part for part in before if after.get(part, 0) != before[part]}
        assert changed - {"optimizer"} <= parts and (changed & parts), name
        worse = {part for part in changed if after.get(part, 0) > before[part]}
        assert worse <= costs.get(name, set()), name


FAULTS = """
import json, resource, sys, torch
from nanogpt.model import GPTConfig
from nanogpt.roofline import PAGE
from nanogpt.rungs import fresh_bytes, make_step
config = GPTConfig(block_size=96, n_layer=2, n_head=4, n_embd=192, flash=False)
(_, step), counts = make_step(config, set(), 2, 96, torch.device("cpu")), []
for _ in range(7):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(json.dumps({"faults": min(counts[4:]), "predicted": fresh_bytes(config, 2, 96) / PAGE}))
"""


@pytest.mark.slow
def test_faults_are_those_predicted_and_none_where_memory_is_kept(monkeypatch):
    if reason := why_not_kept(CPU):
        pytest.skip(reason)
    if (
        "always"
        in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().split("[")[1].split("]")[0]
    ):
        pytest.skip("this system's pages are not 4 KiB")
    for name in KEEP:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ladder, "CHILD", FAULTS)
    given_back, kept = in_process([]), in_process([], keep=True)
    assert 0.8 < given_back["faults"] / given_back["predicted"] < 1.25
    assert kept["faults"] < 0.02 * given_back["faults"]


def test_a_fault_takes_time_and_less_than_a_millisecond():
    assert 0 <= fault_seconds(16) < 1e-3
