"""GPT-2: its shape, its initialisation, its laws, and the two formulas checked against PyTorch's own counts."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from nanogpt.model import (
    GPT,
    MLP,
    SIZES,
    Block,
    GPTConfig,
    flops_by_part,
    flops_per_token,
    num_params,
    params_by_part,
)

TINY = GPTConfig(block_size=32, vocab_size=97, n_layer=3, n_head=4, n_embd=32)
FLASH = pytest.mark.parametrize("flash", [False, True], ids=["manual", "flash"])


@st.composite
def shapes(draw):
    block_size, vocab_size, n_layer, n_head, head = (draw(st.integers(1, n)) for n in (40, 300, 5, 5, 12))
    padded = draw(st.none() | st.integers(vocab_size, vocab_size + 40))
    options = {"bias": draw(st.booleans()), "flash": False, "padded_vocab_size": padded}
    return GPTConfig(block_size, vocab_size, n_layer, n_head, n_embd=n_head * head, **options)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(*shape):
    return torch.randn(shape, generator=generator())


def make(config=TINY, seed=0):
    return GPT(config, generator(seed))


def batch(config=TINY, B=2, T=16, seed=1):
    ids = torch.randint(config.vocab_size, (B, T + 1), generator=generator(seed))
    return ids[:, :-1], ids[:, 1:]


def shell(config):
    """The modules without their memory."""
    with torch.device("meta"):
        return GPT(config)


# Shape and counts


def test_the_four_sizes():
    counts = {name: num_params(config) for name, config in SIZES.items()}
    assert list(counts.values()) == [124_439_808, 354_823_168, 774_030_080, 1_557_611_200]
    for name, config in SIZES.items():
        assert sum(p.numel() for p in shell(config).parameters()) == counts[name]


@given(shapes())
@settings(max_examples=15, deadline=None)
def test_the_parameter_formula_holds_for_every_shape_and_part(config):
    counted = dict.fromkeys(params_by_part(config), 0)
    for name, p in shell(config).named_parameters():
        part = {"wte": "wte", "wpe": "wpe", "attn": "attention", "mlp": "mlp"}
        counted[next((part[piece] for piece in name.split(".") if piece in part), "layer norm")] += p.numel()
    assert counted == params_by_part(config)


def count_flops(config, B, T):
    """Of the course's own model: a product of one row may be counted otherwise where it is written otherwise."""
    from tutor import released_model

    with torch.device("meta"):
        model = released_model("05")(config)
    ids = torch.zeros(B, T, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        loss = model(ids, ids)[1]
        forward = counter.get_total_flops()
        loss.backward()
    return forward, counter.get_total_flops()


@given(shapes(), st.integers(1, 3), st.data())
@settings(max_examples=8, deadline=None)
def test_the_flop_formula_equals_pytorchs_count_exactly(config, B, data):
    T = data.draw(st.integers(1, config.block_size))
    forward, both = count_flops(config, B, T)
    assert forward == B * T * sum(flops_by_part(config, T).values())
    assert both == B * T * flops_per_token(config, T)
    assert flops_per_token(config) == flops_per_token(config, config.block_size)


def test_names_are_gpt2s():
    names = set(dict(make(replace(TINY, n_layer=1)).named_parameters()))
    layers = ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    block = {f"transformer.h.0.{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    ends = {f"transformer.{name}" for name in ("wte.weight", "wpe.weight", "ln_f.weight", "ln_f.bias")}
    assert names == block | ends


def test_head_and_token_table_are_one_tensor():
    model = make()
    assert model.lm_head.weight is model.transformer.wte.weight
    model(*batch())[1].backward()
    grad = model.transformer.wte.weight.grad
    assert grad.abs().sum(1).gt(0).all(), "the head gives every row a gradient, also those not looked up"


# Initialisation


def test_every_matrix_has_its_standard_deviation():
    config = GPTConfig(block_size=256, vocab_size=500, n_layer=8, n_head=4, n_embd=256)
    for name, p in make(config).named_parameters():
        if p.dim() == 2:
            expected = 0.02 / math.sqrt(16) if name.endswith("c_proj.weight") else 0.02
            assert abs(p.std().item() / expected - 1) < 0.03, name
            assert abs(p.mean().item()) < 0.05 * expected, name
        else:
            assert p.eq(0.0 if name.endswith("bias") else 1.0).all(), name


def test_the_generator_alone_decides_and_the_global_one_is_left_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = make()
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(100)
    second = make()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))
    assert not torch.equal(first.lm_head.weight, make(seed=1).lm_head.weight)


def test_without_a_generator_the_global_seed_decides():
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        models.append(GPT(TINY))
    assert torch.equal(models[0].lm_head.weight, models[1].lm_head.weight)


@pytest.mark.parametrize("n_embd, vocab_size", [(64, 1024), (128, 5000), (384, 2000)])
def test_first_loss_is_ln_v_plus_half_the_logits_variance(n_embd, vocab_size):
    config = GPTConfig(block_size=64, vocab_size=vocab_size, n_layer=2, n_head=4, n_embd=n_embd)
    with torch.no_grad():
        logits, loss = make(config)(*batch(config, B=32, T=64))
    variance = 0.02**2 * n_embd
    assert abs(loss.item() - math.log(vocab_size) - variance / 2) < 0.05
    assert abs(logits.std().item() / math.sqrt(variance) - 1) < 0.1


# Laws


def test_loss_is_the_mean_negative_log_probability_if_there_are_targets():
    x, y = batch()
    logits, loss = make()(x, y)
    assert logits.shape == (2, 16, 97)
    nats = -logits.log_softmax(-1).gather(2, y[..., None])
    torch.testing.assert_close(loss, nats.mean())
    masked = y.masked_fill(torch.arange(16) < 10, -100)
    torch.testing.assert_close(make()(x, masked)[1], nats[:, 10:].mean())
    without, loss = make()(x)
    assert torch.equal(without, logits) and loss is None


@FLASH
@given(st.integers(0, 15), st.integers(0, 100))
@settings(max_examples=10, deadline=None)
def test_the_future_does_not_reach_the_past(flash, t, seed):
    model, (x, _) = make(replace(TINY, flash=flash)), batch(seed=seed)
    before = model(x)[0]
    x = x.clone()
    x[:, t] = (x[:, t] + 1) % 97
    after = model(x)[0]
    torch.testing.assert_close(after[:, :t], before[:, :t], rtol=0, atol=1e-6)
    assert (after[:, t:] - before[:, t:]).abs().amax(-1).gt(1e-5).all(), "and it reaches all that follows"


def test_a_longer_context_only_appends():
    model, (x, _) = make(), batch(T=32)
    torch.testing.assert_close(model(x[:, :9])[0], model(x)[0][:, :9], rtol=0, atol=1e-6)


def test_order_matters():
    """One layer, since a stack of causal layers tells some order even without positions."""
    model, (x, _) = make(replace(TINY, n_layer=1)), batch()
    order = [3, 1, 0, 2, *range(4, 16)]
    assert (model(x[:, order])[0] - model(x)[0])[:, -1].abs().max() > 1e-4


def test_rows_of_a_batch_do_not_see_each_other():
    model, (x, _) = make(), batch(B=5)
    torch.testing.assert_close(model(x)[0][2:3], model(x[2:3])[0], rtol=0, atol=1e-6)


def test_mlp_is_tanh_gelu_between_two_linear_layers():
    mlp, x = MLP(TINY), noise(1, 6, 32)
    z = mlp.c_fc(x)
    gelu = 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))
    torch.testing.assert_close(mlp(x), mlp.c_proj(gelu), rtol=1e-5, atol=1e-6)


def test_pre_norm_a_block_that_writes_nothing_passes_the_stream_unchanged():
    block, x = Block(TINY), 100 * noise(1, 5, 32)
    for proj in (block.attn.c_proj, block.mlp.c_proj):
        torch.nn.init.zeros_(proj.weight)
        torch.nn.init.zeros_(proj.bias)
    assert torch.equal(block(x), x)


def test_every_layer_norm_has_gpt2s_epsilon():
    assert {m.eps for m in make().modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-5}


def test_attention_and_mlp_read_a_normalised_copy():
    block, seen = Block(TINY), []
    for layer in (block.attn, block.mlp):
        layer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    block(5 + 100 * noise(1, 5, 32))
    assert len(seen) == 2
    for x in seen:
        torch.testing.assert_close(x.mean(-1), torch.zeros(1, 5), rtol=0, atol=1e-5)
        torch.testing.assert_close(x.std(-1, unbiased=False), torch.ones(1, 5), rtol=0, atol=1e-3)


def test_dropout_hits_the_embedding_and_the_mlps_output_in_training_only():
    model, (x, _), seen = make(replace(TINY, dropout=0.5)), batch(), []
    model.transformer.h[0].register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    model(x)
    out = model.transformer.h[0].mlp(torch.ones(4, 16, 32))
    for dropped in (seen[0], out):
        assert 0.4 < dropped.eq(0).float().mean() < 0.6
    assert torch.equal(model.eval()(x)[0], make()(x)[0])


def test_it_compiles_as_one_graph():
    model, (x, y) = make(), batch()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y)[1], model(x, y)[1])


def test_the_forward_pass_never_asks_a_device_for_a_value():
    """The meta device has no values: a check of ids, or any branch on data, would raise there, as it would wait on a GPU."""
    ids = torch.zeros(2, 8, dtype=torch.long, device="meta")
    logits, loss = shell(TINY)(ids, ids)
    assert logits.shape == (2, 8, 97) and loss.shape == ()


# A padded vocabulary: chapter 13

PADDED = replace(TINY, padded_vocab_size=128)


def test_padding_changes_no_real_row_and_adds_zeros():
    plain, padded = make(), make(PADDED)
    assert padded.lm_head.weight is padded.transformer.wte.weight
    assert padded.lm_head.weight.shape == (128, 32)
    assert not padded.lm_head.weight[97:].any()
    for (name, a), b in zip(plain.named_parameters(), padded.parameters()):
        assert torch.equal(a, b[:97] if "wte" in name else b), name


def test_the_loss_counts_the_padding_and_the_logits_do_not_show_it():
    """The added rows are zero, and so are their logits."""
    (x, y), model = batch(), make(PADDED)
    logits, loss = model(x, y)
    assert torch.equal(logits, model(x)[0])
    torch.testing.assert_close(logits, make()(x)[0])
    torch.testing.assert_close(loss, F.cross_entropy(F.pad(logits, (0, 31)).flatten(0, 1), y.flatten()))
    loss.backward()
    assert model.lm_head.weight.grad[97:].any(), "so training pushes the added rows down"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_loss_is_computed_in_float32_at_least(dtype):
    (x, y), model = batch(), make().to(dtype)
    logits, loss = model(x, y)
    assert logits.dtype == dtype
    exact = F.cross_entropy(logits.double().flatten(0, 1), y.flatten())
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=1e-6)


# Errors, one sentence each


@pytest.mark.parametrize(
    "name, value",
    [
        ("n_head", 5),  # does not divide n_embd
        ("n_layer", 0),
        ("n_embd", 32.0),
        ("padded_vocab_size", 96),
        ("dropout", 1.0),
    ],
)
def test_a_shape_that_cannot_be_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name}={value!r}"):
        replace(TINY, **{name: value})


@pytest.mark.parametrize(
    "config, ids, named",
    [
        (TINY, [[0] * 33], "33 .*block_size=32"),
        (TINY, [[5, -1, 3]], "-1"),
        (PADDED, [[97]], "97"),  # an added row is no token
        (TINY, [[]], "no token"),
    ],
)
def test_ids_that_a_model_cannot_read_are_refused(config, ids, named):
    with pytest.raises(ValueError, match=named):
        make(config)(torch.tensor(ids, dtype=torch.long))
    make(config)(torch.tensor([[0, 96] * 16]))
