import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt.corpus import stories
from nanogpt.data import BatchStream
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import write_shard
from nanogpt.evals import answer_accuracy, evaluate, evaluating, total_loss, windows
from nanogpt.precision import LossScaler
from nanogpt.train import scale_init, train, train_step
from nanogpt.weights import load_model, save_model

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)
EOT = 39


def new_model(seed=0, **changes) -> GPT:
    config = GPTConfig(**{**vars(CONFIG), **changes})
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(seed)))


def documents(lengths, seed=0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([[EOT, *rng.integers(0, EOT, n)] for n in lengths]).astype(np.uint16)


TOKENS = documents([3, 10, 15, 16, 17, 40, 1, 0, 70, 9])


@pytest.fixture
def stream(tmp_path):
    write_shard(tmp_path / "train_000000.bin", documents([10] * 60))
    return lambda **kw: BatchStream([tmp_path / "train_000000.bin"], B=4, T=16, **kw)


# Training


def test_one_batch_is_learned_by_heart():
    x = torch.randint(0, 40, (2, 17), generator=torch.Generator().manual_seed(0))
    losses = train(new_model(), SimpleNamespace(next_batch=lambda: (x[:, :-1], x[:, 1:])), 150, 1e-2)
    assert losses[0] > 3 and losses[-1] < 0.01


def test_the_same_seed_gives_the_same_losses_bit_for_bit_whatever_ran_before(stream):
    def run(seed=3):
        g = torch.Generator().manual_seed(seed)
        return train(new_model(dropout=0.2), stream(), 4, 1e-3, generator=g)

    torch.manual_seed(1)
    first = run()
    torch.rand(100)
    assert run() == first
    assert run(seed=4) != first  # dropout does depend on the generator


def test_training_leaves_the_global_random_state_alone_and_is_not_disturbed_by_callbacks(stream):
    def run(on_step=None):
        return train(new_model(dropout=0.2), stream(), 4, 1e-3, on_step=on_step)

    before = torch.get_rng_state()
    quiet = run()
    assert torch.equal(torch.get_rng_state(), before)
    assert run(on_step=lambda step, loss: torch.rand(step + 1)) == quiet


def test_callback_sees_every_step(stream):
    seen = []
    losses = train(
        new_model(), stream(), 5, 1e-3, on_step=lambda step, loss: seen.append((step, loss.item()))
    )
    assert seen == list(enumerate(losses))


def test_the_learning_rate_is_constant_and_then_falls_to_zero(stream, monkeypatch):
    rates = []
    step = torch.optim.AdamW.step
    monkeypatch.setattr(
        torch.optim.AdamW, "step", lambda self: (rates.append(self.param_groups[0]["lr"]), step(self))[1]
    )
    train(new_model(), stream(), 10, 1e-3, decay=0.5)
    assert rates[:6] == [1e-3] * 6 and rates[-1] == pytest.approx(0.2e-3)
    assert np.allclose(np.diff(rates[5:]), -0.2e-3)
    rates.clear()
    train(new_model(), stream(), 10, 1e-3, decay=0.0)
    assert rates == [1e-3] * 10


class OnANumberedDevice(GPT):
    """Says once that it is on cpu:0: the CPU's own parameters never carry a number, as a GPU's do."""

    said = True

    def parameters(self, recurse=True):
        if self.said:
            return super().parameters(recurse)
        self.said = True
        return iter([SimpleNamespace(device=torch.device("cpu:0"))])


def test_autocast_gets_the_device_type_and_not_the_device(stream, monkeypatch):
    types, autocast = [], torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda kind, **kw: (types.append(kind), autocast(kind, **kw))[1])
    model = OnANumberedDevice(CONFIG, torch.Generator())
    model.said = False
    train(model, stream(), 2, 1e-3, precision="bf16")
    model.said = False
    evaluate(model, [TOKENS], EOT, precision="bf16")
    assert len(types) > 2 and set(types) == {"cpu"}
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_a_loss_that_is_not_finite_stops_the_run(stream):
    model = new_model()
    with torch.no_grad():
        model.transformer.wte.weight.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="step 0.*lower lr=0.001"):
        train(model, stream(), 3, 1e-3)


def test_a_text_shorter_than_the_context_is_one_clear_error(tmp_path):
    write_shard(tmp_path / "train_000000.bin", documents([20]))
    with pytest.raises(ValueError, match="lower B or T, or add text"):
        BatchStream([tmp_path / "train_000000.bin"], B=4, T=16)
    assert evaluate(new_model(), [documents([5])], EOT) > 0  # to measure on, two tokens are enough
    with pytest.raises(ValueError, match="at least two tokens"):
        evaluate(new_model(), [documents([0])], EOT)


def test_scale_init_changes_nothing_at_width_768_and_keeps_the_signal_elsewhere():
    for C in (64, 768):
        config = GPTConfig(block_size=8, vocab_size=50, n_layer=1, n_head=4, n_embd=C)
        plain, scaled = (GPT(config, torch.Generator().manual_seed(0)) for _ in range(2))
        scale_init(scaled)
        w = scaled.transformer.h[0].mlp.c_fc.weight
        assert w.std().item() * math.sqrt(C) == pytest.approx(0.02 * math.sqrt(768), rel=0.05)
        assert torch.equal(w, plain.transformer.h[0].mlp.c_fc.weight) == (C == 768)
        assert scaled.lm_head.weight is scaled.transformer.wte.weight  # tied, and scaled once
        assert torch.equal(scaled.transformer.ln_f.weight, torch.ones(C))


# Evaluation


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(2, 20), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_token_but_the_first_is_predicted_exactly_once(lengths, T, begins_within):
    tokens = documents(lengths)[2 * begins_within :]
    targets = []
    for start, new, stop in windows(tokens, T, EOT):
        assert 0 <= start <= new < stop <= len(tokens) - 1 and stop - start <= T
        assert EOT not in tokens[start + 1 : stop]  # one document, whose end is the last target
        begins = start == 0 or tokens[start] == EOT
        assert begins or new - start >= T // 2 - 1  # else at least half a context
        targets += range(new + 1, stop + 1)
    assert targets == list(range(1, len(tokens)))


def test_the_loss_is_the_sum_over_tokens_by_hand():
    model = new_model(dropout=0.5)
    nats = []
    for start, new, stop in windows(TOKENS, 16, EOT):
        x = torch.from_numpy(TOKENS[start:stop].astype(np.int64))
        with evaluating(model), torch.no_grad():
            logits = model(x[None])[0][0]
        y = torch.from_numpy(TOKENS[start + 1 : stop + 1].astype(np.int64))
        nats += F.cross_entropy(logits, y, reduction="none")[new - start :].tolist()
    assert len(nats) == len(TOKENS) - 1
    assert evaluate(model, [TOKENS], EOT) == pytest.approx(sum(nats) / len(nats), rel=1e-6)


@pytest.mark.parametrize("B", [1, 3, 7, 100])
def test_the_loss_depends_on_neither_batch_size_nor_number_of_processes(B):
    model = new_model(dropout=0.5)
    shards = [TOKENS, documents([5, 30], seed=1), documents([2], seed=2)]
    together = evaluate(model, shards, EOT, B=4)
    assert evaluate(model, shards, EOT, B=B) == pytest.approx(together, rel=1e-6)
    alone = [total_loss(model, tokens, EOT, B) for tokens in shards]  # a process each
    assert sum(n for n, _ in alone) / sum(c for _, c in alone) == pytest.approx(together, rel=1e-6)
    assert sum(c for _, c in alone) == sum(len(tokens) - 1 for tokens in shards)


def test_dropout_is_off_while_evaluating_and_back_afterwards():
    model = new_model(dropout=0.5)
    assert evaluate(model, [TOKENS], EOT) == evaluate(model, [TOKENS], EOT)
    assert model.training and all(module.training for module in model.modules())
    model.eval()
    evaluate(model, [TOKENS], EOT)
    assert not model.training
    with pytest.raises(ValueError), evaluating(model.train()):
        raise ValueError
    assert model.training


def test_evaluation_moves_no_random_state():
    before = torch.get_rng_state()
    evaluate(new_model(dropout=0.5), [TOKENS], EOT)
    assert torch.equal(torch.get_rng_state(), before)


class Letters:
    """One token a character."""

    eot, vocab_size = 0, 128
    encode = staticmethod(lambda text: list(text.encode("ascii")))
    decode = staticmethod(lambda ids: bytes(ids).decode("ascii"))


class Knows(torch.nn.Module):
    """Predicts the ids it was given, all of them or all but some positions."""

    def __init__(self, ids, wrong=()):
        super().__init__()
        self.ids, self.wrong, self.unused = ids, wrong, torch.nn.Parameter(torch.zeros(()))

    def forward(self, idx):
        assert idx.shape == (1, len(self.ids) - 1)
        best = torch.tensor([i + (j in self.wrong) for j, i in enumerate(self.ids[1:])])
        return F.one_hot(best, 200)[None].float(), None


def test_an_answer_counts_if_all_of_its_tokens_are_first_choice():
    story = next(story for story in stories() if len(set(story.kinds)) == 2 and len(story.answers) > 2)
    k = len(story.answers)
    ids = [0, *Letters.encode(story.text)]
    (start, end), (other, _) = story.answers[:2]

    def accuracy(wrong=()):
        return answer_accuracy(Knows(ids, wrong), [story], Letters)

    assert accuracy() == {"all": 1, "copied": 1, "computed": 1}
    assert accuracy([start - 1, end])["all"] == 1  # beside the answer
    assert accuracy([start])["all"] == pytest.approx(1 - 1 / k)
    assert accuracy([end - 1])["all"] == pytest.approx(1 - 1 / k)
    assert accuracy([end - 1, other])["all"] == pytest.approx(1 - 2 / k)
    wrong = [at for (at, _), kind in zip(story.answers, story.kinds) if kind == "computed"]
    assert accuracy(wrong) == {"all": 1 - len(wrong) / k, "copied": 1, "computed": 0}
    with pytest.raises(ValueError, match="at least one story"):
        answer_accuracy(Knows(ids), [], Letters)


def test_answers_of_a_story_longer_than_the_context_are_read_through_windows():
    asked = list(stories(3))
    longest = max(len(story.text) for story in asked)
    model = new_model(vocab_size=128, block_size=longest + 1)
    short = new_model(vocab_size=128, block_size=longest // 3)
    assert set(answer_accuracy(short, asked, Letters)) == set(answer_accuracy(model, asked, Letters))


# Saving


def test_a_model_survives_the_disk(tmp_path):
    model = new_model().eval()
    save_model(model, tmp_path / "model")
    state = torch.get_rng_state()
    again = load_model(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), state)
    assert again.config == model.config and not again.training
    assert again.lm_head.weight is again.transformer.wte.weight
    for (name, p), (other, q) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert name == other and torch.equal(p, q)
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_weights_and_config_hold_nothing_but_weights_and_config(tmp_path):
    from safetensors import safe_open

    model = new_model()
    save_model(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert len(config.pop("sha256")) == 64 and config == vars(model.config)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == {name for name, _ in model.named_parameters()}
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118


def test_a_missing_or_damaged_checkpoint_is_one_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="chapter 07 writes it"):
        load_model(tmp_path)
    save_model(new_model(), tmp_path)
    config, weights = (tmp_path / name for name in ("config.json", "model.safetensors"))
    whole = config.read_text(), weights.read_bytes()
    for path, damaged, says in [
        (config, whole[0][:-5].encode(), "holds no model"),
        (config, b'{"n_layers": 3}', "n_layers"),
        (
            config,
            whole[0].replace('"n_layer": 2', '"n_layer": 3').encode(),
            "n_layer=3, model.safetensors has 2",
        ),
        (
            config,
            whole[0].replace('"n_layer": 2', '"n_layer": 1').encode(),
            "n_layer=1, model.safetensors has 2",
        ),
        (config, whole[0].replace('"vocab_size": 40', '"vocab_size": 41').encode(), "disagree about .*wte"),
        (weights, whole[1][:-9], "holds no model"),
        (weights, b"", "holds no model"),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=says):
            load_model(tmp_path)
        config.write_text(whole[0])
        weights.write_bytes(whole[1])
    load_model(tmp_path)
