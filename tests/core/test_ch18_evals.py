import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt.evaluate import (
    answer_accuracy,
    bits_per_byte,
    evaluate,
    evaluating,
    mean_and_error,
    token_bytes,
    token_losses,
    total_loss,
    windows,
)
from nanogpt.model import GPT, GPTConfig
from nanogpt.stories import stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)
EOT = 39


def new_model(seed=0, **changes) -> GPT:
    config = GPTConfig(**{**vars(CONFIG), **changes})
    return scale_init(GPT(config, generator=torch.Generator().manual_seed(seed)))


def documents(lengths, seed=0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.concatenate([[EOT, *rng.integers(0, EOT, n)] for n in lengths]).astype(np.uint16)


TOKENS = documents([3, 10, 15, 16, 17, 40, 1, 0, 70, 9])


@given(st.lists(st.integers(0, 60), min_size=1, max_size=12), st.integers(1, 20), st.booleans())
@settings(max_examples=100, deadline=None)
def test_every_token_but_the_first_is_predicted_exactly_once(lengths, T, begins_within):
    tokens = documents(lengths)[2 * begins_within :]
    targets = []
    for start, new, stop in windows(tokens, T, EOT):
        assert 0 <= start <= new < stop <= len(tokens) - 1 and stop - start <= T
        assert EOT not in tokens[start + 1 : stop]  # one document, whose end is the last target
        begins = start == 0 or tokens[start] == EOT
        assert begins or new - start >= T // 2  # else at least half a context
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


def test_a_story_longer_than_the_context_is_read_through_windows():
    class Short(Knows):
        config = GPTConfig(block_size=20, n_head=2, n_embd=8, n_layer=1)

        def forward(self, idx):
            found = next(i for i in range(len(self.ids)) if self.ids[i : i + idx.size(1)] == idx[0].tolist())
            best = torch.tensor(self.ids[found + 1 : found + 1 + idx.size(1)])
            return F.one_hot(best, 200)[None].float(), None

    story = next(stories(1))
    ids = [0, *Letters.encode(story.text)]
    assert len(ids) > 100 and answer_accuracy(Short(ids), [story], Letters)["all"] == 1


def test_a_text_of_one_token_is_one_clear_error():
    assert evaluate(new_model(), [documents([5])], EOT) > 0  # two tokens are enough
    with pytest.raises(ValueError, match="at least two tokens"):
        evaluate(new_model(), [documents([0])], EOT)


def test_a_frozen_module_stays_frozen():
    model = new_model()
    model.transformer.h[0].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert model.training and not model.transformer.h[0].training and model.transformer.h[1].training


def test_each_tokens_loss_stands_at_its_place_and_they_sum_to_the_total():
    model = new_model(dropout=0.5)
    nats = token_losses(model, TOKENS, EOT, B=3)
    assert nats.shape == (len(TOKENS) - 1,)
    total, count = total_loss(model, TOKENS, EOT)
    assert nats.sum() == pytest.approx(total, rel=1e-6) and count == len(nats)
    for start, new, stop in windows(TOKENS, 16, EOT):
        x = torch.from_numpy(TOKENS[start : stop + 1].astype(np.int64))
        with evaluating(model), torch.no_grad():
            expected = F.cross_entropy(model(x[None, :-1])[0][0], x[1:], reduction="none")[new - start :]
        assert nats[new:stop] == pytest.approx(expected.numpy(), rel=1e-5)


def test_the_standard_error_is_the_scatter_over_sets_of_documents():
    dice = np.random.default_rng(0)

    def a_set(n=80):
        lengths = dice.integers(1, 40, n)
        level = dice.normal(2, 0.5, n).repeat(lengths + 1)  # documents differ, their tokens are alike
        tokens = np.concatenate([[EOT, *[1] * size] for size in lengths] + [[EOT]])
        return level + dice.normal(0, 0.1, len(level)), tokens

    results = [mean_and_error(*a_set(), EOT) for _ in range(400)]
    scatter = np.std([mean for mean, _ in results])
    assert np.mean([error for _, error in results]) == pytest.approx(scatter, rel=0.15)
    nats, tokens = a_set()
    assert mean_and_error(nats, tokens, EOT)[0] == pytest.approx(nats.mean())
    assert nats.std() / len(nats) ** 0.5 < 0.6 * scatter  # as if tokens were independent
    assert np.isnan(mean_and_error(nats[:1], tokens[:2], EOT)[1])


def test_the_standard_error_of_two_documents_by_hand():
    """With so few, the factor n / (n - 1) doubles the variance."""
    tokens, nats = np.array([EOT, 1, EOT, 1, EOT]), np.array([1.0, 1.0, 3.0, 3.0])
    mean, error = mean_and_error(
        nats, tokens, EOT
    )  # sums 2 and 6, each of two tokens; the mean expects 4 twice
    assert mean == 2.0 and error == pytest.approx((((2 - 4) ** 2 + (6 - 4) ** 2) * 2 / 1) ** 0.5 / 4)


class Halves(torch.nn.Module):
    """Gives logits in bfloat16, as a model under autocast does."""

    def __init__(self):
        super().__init__()
        self.config, self.unused = CONFIG, torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return torch.randn(*x.shape, 40, generator=torch.Generator().manual_seed(0)).bfloat16(), None


def test_losses_are_computed_in_float32_whatever_the_logits_are():
    tokens = documents([9])
    logits = Halves()(torch.zeros(1, 9))[0][0].float()
    expected = F.cross_entropy(logits, torch.from_numpy(tokens[1:].astype(np.int64)), reduction="none")
    assert token_losses(Halves(), tokens, EOT) == pytest.approx(expected.numpy(), rel=1e-6)


def megabyte() -> str:
    """A megabyte of UTF-8 from characters of one, two, three and four bytes, spaces and line breaks."""
    dice = random.Random(0)
    ranges = [
        (97, 26),
        (0xE0, 30),
        (0x3B1, 24),
        (0x430, 32),
        (0x4E00, 20000),
        (0xAC00, 11172),
        (0x1F300, 700),
    ]
    letters = [chr(begin + dice.randrange(n)) for begin, n in ranges for _ in range(600)] + [
        " ",
        "\n",
        "  ",
    ] * 200
    text = "".join(dice.choices(letters, k=450_000))
    assert len(text.encode()) > 1_000_000
    return text


def adds_up(tokenizer, text: str) -> None:
    ids, sizes = tokenizer.encode(text), token_bytes(tokenizer)
    assert sizes.shape == (tokenizer.vocab_size,) and sizes[tokenizer.eot] == 0
    assert sizes[ids].sum() == len(text.encode())
    decoded = sum(len(tokenizer.decode([i]).encode()) for i in ids)
    assert decoded > 1.1 * len(text.encode())  # the bug: half a character counts three bytes


def test_the_tokens_bytes_add_up_to_a_megabyte_of_unicode():
    text = megabyte()
    adds_up(BPETokenizer.train(text[:20_000], 600), text)


def test_gpt2s_tokens_bytes_add_up_to_a_megabyte_of_unicode(gpt2_vocab):
    adds_up(BPETokenizer.gpt2(), megabyte())


def test_bits_per_byte_are_the_same_for_two_tokenizers_that_code_alike():
    text = "the moon — 月 🌙 " * 50
    for tokenizer in (BPETokenizer([bytes([b]) for b in range(256)]), BPETokenizer.train(text, 270)):
        ids = np.array([tokenizer.eot, *tokenizer.encode(text)])
        nats = np.full(len(ids) - 1, len(text.encode()) * 2 * np.log(2) / (len(ids) - 1))  # two bits a byte
        assert bits_per_byte(nats, ids, token_bytes(tokenizer)) == pytest.approx(2)
    with pytest.raises(ValueError, match="at least one token"):
        bits_per_byte(np.ones(1), np.array([1, tokenizer.eot]), token_bytes(tokenizer))
