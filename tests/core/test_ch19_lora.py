"""Low-rank adapters: they change nothing at first, train alone, merge exactly, and fit one base."""

import copy

import pytest
import torch
from small_model import new_model, one_batch

from nanogpt.labs.kernels.columns import by_columns
from nanogpt.labs.tuning.lora import (
    ADAPTER,
    TARGETS,
    LoRALinear,
    add_lora,
    base_digest,
    base_of,
    freeze,
    linear_layers,
    load_adapter,
    lora_parameters,
    merge,
    save_adapter,
    weight_update,
)
from nanogpt.sampling import generate, load
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import make_optimizer, train_step
from nanogpt.weights import save_model


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def trained(model, steps=5, lr=0.01, precision="float32"):
    """The model after some steps: adapters are no longer zero."""
    optimizer = make_optimizer(model, lr, precision)
    for _ in range(steps):
        train_step(model, optimizer, [one_batch()], precision)
    return model


def adapted(rank=4, **changes):
    return trained(add_lora(new_model(**changes), rank, generator=gen(7)))


def values(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("shape", [{}, {"padded_vocab_size": 64}, {"bias": False}, {"flash": False}])
def test_at_first_nothing_changes(shape):
    model, (x, y) = new_model(**shape), one_batch()
    logits, loss = model(x, y)
    names = set(values(model))
    assert add_lora(model, 4, alpha=8, generator=gen()) is model
    again, loss_again = model(x, y)
    assert torch.equal(again, logits) and torch.equal(loss_again, loss)
    assert names < set(values(model)), "the base's own parameters keep their names"


def test_only_adapters_get_gradients_and_the_rest_stays_to_the_bit():
    model = add_lora(new_model(), 2, generator=gen())
    before = values(model)
    trained(model, 3)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(lora_parameters(model)) != set()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == moved
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("rank", [1, 3])
def test_an_update_has_the_rank_that_was_asked_for(rank):
    for name, layer in linear_layers(adapted(rank)).items():
        values = torch.linalg.svdvals(weight_update(layer).double())
        assert values[rank - 1] > 1e-6, f"{name}: the update has a smaller rank"
        assert values[rank:].max() < 1e-6 * values[0], f"{name}: the update has a larger rank"


def test_the_update_is_alpha_over_rank_times_b_a():
    model, x = new_model(), torch.randn(5, 32, generator=gen())
    plain = copy.deepcopy(model.transformer.h[0].attn.c_attn)
    add_lora(model, 4, alpha=12, generator=gen())
    layer = model.transformer.h[0].attn.c_attn
    with torch.no_grad():
        layer.lora_B.normal_(generator=gen(1))
    expected = plain(x) + 12 / 4 * x @ layer.lora_A.T @ layer.lora_B.T
    torch.testing.assert_close(layer(x), expected)


def test_merged_equals_unmerged():
    """To rounding: both sum up to 128 products an output, in another order."""
    model, (x, _) = adapted().eval(), one_batch()
    unmerged = model(x)[0].detach()
    start = new_model()(x)[0]
    assert (unmerged - start).abs().max() > 1e-2, "the adapters do nothing, so this would test nothing"
    merge(model)
    assert not lora_parameters(model) and all(p.requires_grad for p in model.parameters())
    assert {type(layer) for layer in linear_layers(model).values()} == {torch.nn.Linear}
    assert (model(x)[0] - unmerged).abs().max() < 1e-5 * unmerged.abs().max()
    once = values(model)
    assert all(torch.equal(p, once[name]) for name, p in merge(model).named_parameters()), "merged twice"


def test_adapters_travel_alone(tmp_path):
    model, (x, _) = add_lora(new_model(), 3, alpha=5, targets=["c_fc"], generator=gen()), one_batch()
    trained(model).eval()
    save_adapter(model, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter.json", ADAPTER]
    numbers = sum(p.numel() for p in lora_parameters(model).values())
    assert (tmp_path / ADAPTER).stat().st_size < 4 * numbers + 4096
    again = load_adapter(new_model().eval(), tmp_path)
    assert torch.equal(again(x)[0], model(x)[0])
    assert {name for name, p in again.named_parameters() if p.requires_grad} == set(lora_parameters(model))


def test_dropout_and_padding_make_no_other_base():
    assert base_digest(new_model()) == base_digest(new_model(dropout=0.1, flash=False))
    assert base_digest(new_model()) == base_digest(new_model(padded_vocab_size=64))
    model = new_model()
    assert base_digest(model) == base_digest(add_lora(model, 2))


@pytest.mark.parametrize("other", [{"seed": 1}, {"n_head": 4}, {"n_layer": 1}])
def test_another_base_is_refused(tmp_path, other):
    save_adapter(add_lora(new_model(), 2), tmp_path)
    model = new_model(**other)
    with pytest.raises(ValueError, match="was trained beside other weights than this model's"):
        load_adapter(model, tmp_path)
    assert not lora_parameters(model) and all(p.requires_grad for p in model.parameters())


def flip(path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "name, damage",
    [
        (ADAPTER, flip),
        ("adapter.json", lambda path: path.write_text(path.read_text().replace("8.0", "9.0"))),
        ("adapter.json", lambda path: path.write_text("adapter")),
    ],
)
def test_a_damaged_adapter_is_refused_in_one_sentence(tmp_path, name, damage):
    save_adapter(add_lora(new_model(), 2), tmp_path)
    damage(tmp_path / name)
    model = new_model()
    with pytest.raises(ValueError, match=r"^.*holds no adapter that save_adapter wrote whole.*$"):
        load_adapter(model, tmp_path)
    assert not lora_parameters(model)


@pytest.fixture
def beside(tmp_path):
    """A base with its tokenizer, and the folder of an adapter that names it, as they lie in data/built."""
    tokenizer = BPETokenizer.train("the cat sat on the mat. " * 9, 260)
    base = new_model(vocab_size=tokenizer.vocab_size)
    save_model(base, tmp_path / "model")
    tokenizer.save(tmp_path / "model/tokenizer.json")
    model = trained(add_lora(base, 3, generator=gen(7))).eval()
    save_adapter(model, tmp_path / "adapter", base_model=tmp_path / "model")
    return tmp_path, model


def test_an_adapters_folder_is_a_checkpoint(beside, monkeypatch):
    """Its logits are those of the merged model, from any working folder, and after both have moved."""
    folder, model = beside
    x, expected = one_batch()[0], merge(model)(one_batch()[0])[0]
    (folder / "moved").mkdir()
    for name in ("model", "adapter"):
        (folder / name).rename(folder / "moved" / name)
    monkeypatch.chdir(folder / "moved")
    loaded, tokenizer = load("adapter")
    assert torch.equal(loaded(x)[0], expected) and not lora_parameters(loaded) and not loaded.training
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    by_columns(loaded)  # as `sample` does
    torch.testing.assert_close(loaded(x[:1, :1])[0], expected[:1, :1], atol=1e-5, rtol=1e-5)


def test_an_adapter_whose_base_is_gone_unnamed_or_another_is_one_clear_sentence(beside):
    folder, model = beside
    save_model(new_model(seed=1, vocab_size=260), folder / "model")
    with pytest.raises(ValueError, match="trained beside other weights"):
        load(str(folder / "adapter"))
    (folder / "model").rename(folder / "gone")
    with pytest.raises(FileNotFoundError, match=r"is not there, and the adapter in .* needs it as its base"):
        load(str(folder / "adapter"))
    save_adapter(model, folder / "adapter")
    with pytest.raises(ValueError, match="names no base_model; save_adapter"):
        load(str(folder / "adapter"))
    save_adapter(model, folder / "adapter", base_model="openai-community/gpt2")
    assert base_of(folder / "adapter") == "openai-community/gpt2"


@pytest.mark.parametrize(
    "options, word",
    [
        ({"rank": 0}, "rank=0"),
        ({"rank": 2, "alpha": float("nan")}, "alpha=nan"),
        ({"rank": 2, "targets": ["lm_head"]}, "lm_head"),
    ],
)
def test_what_cannot_be_is_said_and_leaves_the_model_alone(options, word):
    model = new_model()
    with pytest.raises(ValueError, match=word):
        add_lora(model, **options)
    assert not lora_parameters(model) and all(p.requires_grad for p in model.parameters())


def test_sampling_with_a_cache_equals_without():
    model, text = adapted().eval(), one_batch(B=1, T=8)[0]
    tokens = text[0].tolist()
    cached = list(generate(model, tokens, max_new_tokens=8, temperature=0.0))
    plain = tokens[:]
    with torch.no_grad():
        for _ in range(8):
            plain.append(model(torch.tensor([plain]))[0][0, -1].argmax().item())
    assert cached == plain[8:]


def test_it_compiles_as_one_graph_and_follows_autocast():
    torch._dynamo.reset()
    model, (x, y) = adapted(), one_batch()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, y)[1], model(x, y)[1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(x, y)[1]
    torch.testing.assert_close(loss, model(x, y)[1], atol=0.02, rtol=0)


@pytest.mark.parametrize("precision", ["bf16", "bf16-masters"])
def test_other_precisions_train_it(precision):
    model = add_lora(new_model(), 4, generator=gen())
    before = model(*one_batch())[1].item()
    trained(model, 10, precision=precision)
    assert model(*one_batch())[1].item() < before


def test_freezing_leaves_the_named_ones():
    model = new_model()
    model(*one_batch())[1].backward()  # gradients that freezing must drop
    freeze(model, "h.1.", "ln_f")
    before = values(model)
    trained(model, 2)
    for name, p in model.named_parameters():
        named = "h.1." in name or "ln_f" in name
        assert p.requires_grad == named == (p.grad is not None) == (not torch.equal(p, before[name])), name
    with pytest.raises(ValueError, match=r"h\.7\."):
        freeze(model, "ln_f", "h.7.")  # no parameter's name
    freeze(model, "")
    assert all(p.requires_grad for p in model.parameters())


def test_a_is_as_large_as_its_inputs_ask():
    layer = LoRALinear(torch.nn.Linear(400, 300), 100, 1.0, gen())
    x = torch.randn(100, 400, generator=gen(1))
    assert (x @ layer.lora_A.T).std().item() == pytest.approx(1, abs=0.05)
    assert set(TARGETS) == {name.split(".")[-1] for name in linear_layers(new_model())}
