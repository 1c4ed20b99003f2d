import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_model import EOT, documents, new_model

from nanogpt.evaluate import evaluate, evaluating, token_losses, windows
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.evals.accuracy import answer_accuracy
from nanogpt.model import GPTConfig
from nanogpt.precision import autocast

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


@pytest.mark.parametrize("B", [1, 3, 7, 100])
def test_the_loss_depends_on_neither_batch_size_nor_number_of_processes(B):
    model = new_model(dropout=0.5)
    shards = [TOKENS, documents([5, 30], seed=1), documents([2], seed=2)]
    together = evaluate(model, shards, EOT, B=4)
    assert evaluate(model, shards, EOT, B=B) == pytest.approx(together, rel=1e-6)
    alone = [token_losses(model, tokens, EOT, B) for tokens in shards]  # a process each
    count = sum(len(tokens) - 1 for tokens in shards)
    assert sum(nats.sum() for nats in alone) / count == pytest.approx(together, rel=1e-6)


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


def test_each_tokens_loss_stands_at_its_place_and_they_sum_to_the_total():
    model = new_model(dropout=0.5)
    nats = token_losses(model, TOKENS, EOT, B=3)
    assert nats.shape == (len(TOKENS) - 1,)
    assert nats.mean() == pytest.approx(evaluate(model, [TOKENS], EOT), rel=1e-6)
    for start, new, stop in windows(TOKENS, 16, EOT):
        x = torch.from_numpy(TOKENS[start : stop + 1].astype(np.int64))
        with evaluating(model), torch.no_grad():
            expected = F.cross_entropy(model(x[None, :-1])[0][0], x[1:], reduction="none")[new - start :]
        assert nats[new:stop] == pytest.approx(expected.numpy(), rel=1e-5)


def test_losses_are_computed_in_float32_whatever_the_logits_are():
    model, tokens = new_model().eval(), documents([9])
    ids = torch.from_numpy(tokens.astype(np.int64))
    with autocast("bf16", ids.device), torch.no_grad():
        logits = model(ids[None, :-1])[0][0].float()
    expected = F.cross_entropy(logits, ids[1:], reduction="none").numpy()
    assert token_losses(model, tokens, EOT, precision="bf16") == pytest.approx(expected, rel=1e-6)
