"""Chapter 24d: both sides of a word, hidden tokens, and a BERT that is that of transformers in logits and gradients."""

import json
import shutil

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from nanogpt.labs.bert import Bert, bert_from_hf, bert_names, both_sides, hide
from nanogpt.model import GPT, GPTConfig

TINY = GPTConfig(block_size=32, vocab_size=60, n_layer=2, n_head=4, n_embd=32)


def drawn(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ids(T=20, B=2, seed=1) -> torch.Tensor:
    return torch.randint(60, (B, T), generator=drawn(seed))


def large(model):
    """Weights so large that a mistake shows, also in norms and biases."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(8) if p.dim() == 2 else p.add_(torch.rand(p.shape, generator=drawn(2)) - 0.3)
    return model.eval()


# Both sides


def test_every_position_sees_every_other_one():
    model, x = large(both_sides(GPT(TINY, drawn()))), ids()
    for place in (0, 7, 19):
        other = x.clone()
        other[:, place] = (x[:, place] + 1) % 60
        with torch.no_grad():
            moved = (model(x)[0] - model(other)[0]).abs().amax(-1) > 1e-6
        assert moved.all(), "some output does not see a token"


# Hidden tokens


@given(seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.15, 0.5, 1.0]), T=st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_what_is_hidden_is_a_target_and_nothing_else(seed, share, T):
    idx = ids(T, 3, seed)
    before = idx.clone()
    x, y = hide(idx, 60, drawn(seed), share)
    assert torch.equal(idx, before), "the given tokens have changed"
    hidden = x == 60
    assert torch.equal(hidden, y != -100)
    assert torch.equal(x[~hidden], idx[~hidden]) and torch.equal(y[hidden], idx[hidden])
    assert hidden.all() if share == 1 else share or not hidden.any()


def test_the_loss_is_that_of_hidden_places_alone():
    model, (x, y) = large(Bert(TINY, drawn())), hide(ids(), 59, drawn(), 0.4)
    logits, loss = model(x, y)
    chosen = y != -100
    assert torch.allclose(loss, F.cross_entropy(logits[chosen], y[chosen]))
    assert model(x)[1] is None


# The published model


def test_bert_base_has_its_parameters():
    base = GPTConfig(block_size=512, vocab_size=30_522, n_layer=12, n_head=12, n_embd=768)
    with torch.device("meta"):
        assert sum(p.numel() for p in Bert(base).parameters()) == 109_514_298


def test_the_seed_decides_alone():
    one, same = Bert(TINY, drawn()), Bert(TINY, drawn())
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert 0.018 < one.wte.weight.std() < 0.022 and not one.h[0].mlp.c_fc.bias.any()


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A BERT of transformers, and its folder."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=32, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = large(transformers.BertForMaskedLM(config))
    theirs.save_pretrained(folder := tmp_path_factory.mktemp("bert"))
    return theirs, folder


def test_logits_and_gradients_are_those_of_transformers(published):
    theirs, folder = published
    ours = bert_from_hf(folder)
    x, y = hide(ids().clamp(min=1), 59, drawn(), 0.4)  # theirs leaves id 0, padding, without a gradient
    keep = torch.ones(2, 20, dtype=torch.bool)
    keep[1, 15:] = False
    y[1, 15:] = -100
    second = (torch.arange(20) > 8).long().expand(2, 20)
    logits, loss = ours(x, y, keep=keep, sentence=second)
    expected = theirs(x, attention_mask=keep.long(), token_type_ids=second, labels=y)
    assert torch.allclose(logits[keep], expected.logits[keep], atol=1e-4 * expected.logits.abs().max().item())
    assert torch.allclose(loss, expected.loss, atol=1e-5)
    loss.backward()
    expected.loss.backward()
    gradients, seen = dict(theirs.named_parameters()), set()
    for name, p in ours.named_parameters():
        wanted = torch.cat([gradients[theirs_name].grad for theirs_name in bert_names(name)])
        seen |= set(bert_names(name))
        assert torch.allclose(p.grad, wanted, atol=1e-3 * wanted.abs().max().item()), name
    assert seen == {name for name, p in gradients.items() if p.grad is not None}


def test_the_names_of_the_oldest_files_are_read(published, tmp_path):
    _, folder = published
    new, older = load_file(folder / "model.safetensors"), {}
    for name, x in new.items():
        older[name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta")] = x
    assert older.keys() != new.keys()
    save_file(older, tmp_path / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(folder / "config.json", tmp_path)
    read = [bert_from_hf(each).parameters() for each in (folder, tmp_path)]
    assert all(torch.equal(a, b) for a, b in zip(*read, strict=True))


@pytest.mark.parametrize(
    "change, says",
    [
        ({"model_type": "roberta"}, "'roberta'"),
        ({"hidden_act": "relu", "is_decoder": True}, "hidden_act is 'relu'.*is_decoder is True"),
        ({"intermediate_size": 96}, "intermediate_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": 61}, "config"),
        ({"num_hidden_layers": 3}, r"bert\.encoder\.layer\.2"),
    ],
)
def test_another_model_is_refused_with_what_is_wrong(change, says, published, tmp_path):
    _, folder = published
    shutil.copy(folder / "model.safetensors", tmp_path)
    said = json.loads((folder / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in said.items() if v is not None}))
    with pytest.raises(ValueError, match=says):
        bert_from_hf(tmp_path)
