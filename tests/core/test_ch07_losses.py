"""The held-out loss and the answers, as chapter 07 has them; chapter 18's, which take their place, pass the same."""

from itertools import chain

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_model import EOT, new_model

from nanogpt.evaluate import evaluate, evaluating
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.evals.accuracy import answer_accuracy


def test_the_loss_is_the_mean_over_tokens_by_hand_each_in_its_own_document():
    """In two shards of different lengths, each of which ends with an EOT to be predicted."""
    model = new_model()
    shards = [[[EOT, 1, 2, 3], [EOT, 7]], [[EOT, *range(14)]]]
    losses = []
    for ids in (torch.tensor([*ids, EOT]) for documents in shards for ids in documents):
        losses += F.cross_entropy(model(ids[None, :-1])[0][0], ids[1:], reduction="none").tolist()
    tokens = [np.array([*chain(*documents), EOT], dtype=np.uint16) for documents in shards]
    assert evaluate(model, tokens, EOT) == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_a_document_longer_than_the_context_is_read_too():
    tokens = np.array([EOT, *np.arange(100) % 39], dtype=np.uint16)
    assert 3 < evaluate(new_model(), [tokens], EOT) < 6


def test_nothing_to_evaluate_on_is_one_clear_error():
    with pytest.raises(ValueError, match="at least two tokens"):
        evaluate(new_model(), [np.array([EOT])], EOT)


def test_dropout_is_off_meanwhile_and_what_was_frozen_stays_so():
    model = new_model(dropout=0.5).train()
    model.transformer.h[0].mlp.eval()
    tokens = np.array([EOT, *range(14)], dtype=np.uint16)
    assert evaluate(model, [tokens], EOT) == evaluate(model, [tokens], EOT)
    assert model.training and not model.transformer.h[0].mlp.training
    with pytest.raises(KeyError), evaluating(model) as device:
        assert device.type == "cpu" and not model.training
        raise KeyError
    assert model.training


class Oracle(torch.nn.Module):
    """Knows the story by heart, but for the tokens at some places."""

    def __init__(self, ids, wrong=()):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.ids, self.wrong = ids, wrong

    def forward(self, x):
        nexts = torch.tensor([0 if i in self.wrong else token for i, token in enumerate(self.ids[1:])])
        return F.one_hot(nexts, max(self.ids) + 1)[None].float(), None


def test_an_answer_counts_if_all_of_its_tokens_are_first_choice(tokenizer):
    story = next(story for story in stories(seed=5) if "computed" in story.kinds and "copied" in story.kinds)
    ids = [tokenizer.eot, *tokenizer.encode(story.text)]
    assert answer_accuracy(Oracle(ids), [story], tokenizer) == {"all": 1.0, "computed": 1.0, "copied": 1.0}
    start = story.answers[story.kinds.index("copied")][0]
    at = next(i for i in range(1, len(ids)) if len(tokenizer.decode(ids[1 : i + 1])) > start)
    shares = answer_accuracy(Oracle(ids, wrong={at - 1}), [story], tokenizer)
    assert shares["computed"] == 1.0
    assert shares["copied"] == 1 - 1 / story.kinds.count("copied")


def test_no_answer_is_one_clear_error(tokenizer):
    with pytest.raises(ValueError, match="at least one story with an answer"):
        answer_accuracy(new_model(), [], tokenizer)
