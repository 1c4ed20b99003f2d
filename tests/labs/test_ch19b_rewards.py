"""Answers and rewards: one place counts, the estimate averages to the gradient, groups add up to zero, a seed repeats."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt.labs.corpora.stories import NUMBERS, stories
from nanogpt.labs.evals.floor import readings
from nanogpt.labs.tuning import rewards
from nanogpt.model import GPT, GPTConfig
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import train

CONFIG = GPTConfig(block_size=16, vocab_size=40, n_layer=2, n_head=2, n_embd=32)


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


def new_model(seed=0) -> GPT:
    return GPT(CONFIG, generator=gen(seed))


def made_up(n=12, seed=0) -> list[rewards.Question]:
    """Questions of 3 to 12 tokens; the answer is the second token, so that it can be learned."""
    found = []
    for i in range(n):
        ids = torch.randint(1, 40, (3 + i % 10,), generator=gen(100 * seed + i)).tolist()
        found.append(rewards.Question("", "", (*ids, ids[1])))
    return found


@functools.cache
def tokenizer() -> BPETokenizer:
    """Single bytes, and each number word with its space, built from its beginnings."""
    words = [f" {word}".encode() for word in NUMBERS]
    begun = {word[:n] for word in words for n in range(2, len(word) + 1)}
    return BPETokenizer([bytes([b]) for b in range(256)] + sorted(begun, key=lambda some: (len(some), some)))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_the_answer_is_the_only_number_with_which_the_grammar_tells_the_story(seed):
    (story,) = stories(1, seed)
    found = list(rewards.questions([story], tokenizer(), 1000))
    assert len(found) == story.kinds.count("computed")
    for question in found:
        rest = story.text[len(question.prompt) + len(question.answer) :]
        assert story.text == question.prompt + question.answer + rest
        told = [word for word in NUMBERS if readings(f"{question.prompt} {word}{rest}")]
        assert [f" {word}" for word in told] == [question.answer]
        eot, *prompt, last = question.ids
        assert eot == tokenizer().eot and tokenizer().decode(prompt) == question.prompt
        assert tokenizer().decode([last]) == question.answer


def test_a_prompt_that_does_not_fit_and_an_answer_of_two_tokens_are_left_out():
    told = list(stories(40))
    every = list(rewards.questions(told, tokenizer(), 1000))
    size = max(len(question.ids) for question in every) - 1
    assert list(rewards.questions(told, tokenizer(), size)) == every
    assert len(list(rewards.questions(told, tokenizer(), size - 1))) < len(every)
    letters = BPETokenizer([bytes([b]) for b in range(256)])
    assert list(rewards.questions(told, letters, 1000)) == []


def test_only_the_answers_count_and_padding_changes_nothing():
    asked, model = made_up(), new_model().eval()
    x, y = rewards.answers_only(asked)
    assert x.shape == y.shape and x.size(1) == max(len(question.ids) for question in asked) - 1
    for row, question in enumerate(asked):
        n = len(question.ids) - 1
        assert x[row, :n].tolist() == list(question.ids[:-1])
        assert y[row].tolist() == [-100] * (n - 1) + [question.ids[-1]] + [-100] * (x.size(1) - n)
    alone = [model(*rewards.answers_only([question]))[1] for question in asked]
    torch.testing.assert_close(model(x, y)[1], torch.stack(alone).mean())
    logits, answers = rewards.answer_logits(model, x, y)
    assert answers.tolist() == [question.ids[-1] for question in asked]
    torch.testing.assert_close(logits[3], model(x[3:4, : len(asked[3].ids) - 1])[0][0, -1])


def test_share_right_counts_first_choices_whatever_the_batch_and_restores_the_mode():
    asked, model = made_up(30), new_model().train()
    first = [model(torch.tensor([q.ids[:-1]]))[0][0, -1].argmax().item() for q in asked]
    told = [q._replace(ids=(*q.ids[:-1], said if i % 3 else said + 1)) for i, (q, said) in enumerate(zip(asked, first))]  # fmt: skip
    assert rewards.share_right(model, told, B=7) == pytest.approx(rewards.share_right(model, told, B=30))
    assert rewards.share_right(model, told)["first"] == pytest.approx(20 / 30)
    assert model.training


def test_a_stream_asks_every_question_once_an_epoch_in_batches_of_one_length():
    asked = made_up(20)
    stream = rewards.QuestionStream(asked, 4, seed=3)
    epochs = [[stream.next_batch() for _ in range(5)] for _ in range(2)]
    for epoch in epochs:
        lengths = sorted((y != -100).nonzero()[:, 1].tolist() for _, y in epoch)
        assert sorted(n for some in lengths for n in some) == sorted(len(q.ids) - 2 for q in asked)
        assert all(max(some) - min(some) <= 2 for some in lengths)
    assert [x.tolist() for x, _ in epochs[0]] != [x.tolist() for x, _ in epochs[1]]
    again = rewards.QuestionStream(asked, 4, seed=3)
    assert all(torch.equal(again.next_batch()[0], x) for x, _ in epochs[0])


@given(st.lists(st.lists(st.integers(0, 1), min_size=5, max_size=5), min_size=1, max_size=4))
def test_advantages_of_a_group_add_up_to_zero(rows):
    received = torch.tensor(rows).float()
    for baseline in (rewards.from_group, rewards.from_group_scaled):
        advantages = baseline(received)
        assert advantages.sum(1).abs().max() < 1e-4
        equal = received.std(1) == 0
        assert (advantages[equal] == 0).all(), "a group of equals teaches nothing"
    assert rewards.from_batch(received).sum().abs() < 1e-5
    mixed = rewards.from_group_scaled(received)[~equal]
    torch.testing.assert_close(mixed.square().mean(1), torch.ones(len(mixed)), rtol=1e-3, atol=0)
    assert rewards.from_zero(received) is received


@pytest.mark.parametrize(
    ("baseline", "factor"),
    [(rewards.from_zero, 1), (rewards.from_batch, 1 - 1 / 32), (rewards.from_group, 1 - 1 / 8)],
)
def test_the_estimates_average_to_the_exact_gradient(baseline, factor):
    """Four questions, eight samples each; a baseline that holds a sample itself shortens the gradient by its share."""
    logits = torch.randn(4, 6, generator=gen(1), dtype=torch.float64).requires_grad_()
    answers, draws, G = torch.tensor([0, 1, 2, 5]), 4000, 8
    right = logits.softmax(-1).gather(1, answers[:, None]).mean()
    exact = torch.autograd.grad(right, logits)[0]
    probs = logits.detach().softmax(-1)
    samples = torch.multinomial(probs, draws * G, replacement=True, generator=gen(2)).view(4, draws, G)
    log_probs = logits.log_softmax(-1)
    each = (samples[:, i] for i in range(draws))
    loss = sum(rewards.policy_loss(log_probs, s, baseline(rewards.reward(s, answers)).double()) for s in each)
    estimate = -torch.autograd.grad(loss / draws, logits)[0]
    noise = 5 * (probs * (1 - probs) / (16 * draws * G)).sqrt().max()  # five standard errors at most
    assert (estimate - factor * exact).abs().max() < noise
    assert (estimate - 2 * exact).abs().max() > noise, "the law could not fail"


def test_no_gradient_goes_through_the_advantages():
    log_probs = torch.randn(2, 5, generator=gen()).log_softmax(-1)
    advantages = torch.ones(2, 3, requires_grad=True)
    assert not rewards.policy_loss(log_probs, torch.zeros(2, 3, dtype=torch.int64), advantages).requires_grad


def test_samples_come_from_the_seed_and_from_nothing_else():
    x, y = rewards.answers_only(made_up())
    losses = []
    for seed, elsewhere in ((0, 1), (0, 2), (1, 1)):
        policy = rewards.Rewarded(new_model().eval(), rewards.from_zero, samples=64, seed=seed)
        torch.manual_seed(elsewhere)
        losses.append((policy(x, y)[1].item(), policy(x, y)[1].item()))
    assert losses[0] == losses[1] != losses[2] and losses[0][0] != losses[0][1]


def test_rewards_alone_teach_a_model():
    """One question is asked again and again; nothing but the reward says which answer is right."""
    asked = made_up(1) * 4
    policy = rewards.Rewarded(new_model(), rewards.from_group, samples=64)
    train(policy, rewards.QuestionStream(asked, 4), 60, 1e-2)
    assert sum(policy.received[-5:]) > 4.5 > 1 > sum(policy.received[:5])
    assert rewards.share_right(policy.model, asked)["first"] == 1


def test_near_costs_nothing_at_first_and_keeps_a_run_nearer():
    asked = made_up()
    x, y = rewards.answers_only(asked)
    model = new_model()
    logits, loss = rewards.Near(model, new_model(), 3.0)(x, y)
    torch.testing.assert_close(loss, model(x, y)[1])
    assert logits.shape == (*x.shape, 40)
    far = []
    for weight in (0.0, 10.0):
        near = rewards.Near(new_model(), before := new_model(), weight)
        train(near, rewards.QuestionStream(asked, 4), 15, 3e-3)
        assert all(torch.equal(p, q) for p, q in zip(before.parameters(), new_model().parameters()))
        far.append((near.inner(x)[0] - before(x)[0]).square().mean().item())
    assert far[1] < 0.5 * far[0]


def test_near_counts_real_places_alone():
    """What is written behind an answer changes nothing."""
    x, y = rewards.answers_only(made_up())
    near = rewards.Near(new_model(), new_model(1))
    other = torch.where((y != -100).flip(1).cumsum(1).flip(1) > 0, x, 7)
    assert not torch.equal(x, other)
    torch.testing.assert_close(near(x, y)[1], near(other, y)[1])


class Again:
    """One batch for ever."""

    def __init__(self, x, y):
        self.batch = x, y

    def next_batch(self):
        return self.batch


def test_remembering_adds_the_loss_of_the_old_text_whatever_is_inside():
    x, y = rewards.answers_only(made_up())
    old = torch.randint(0, 40, (3, 16), generator=gen(5))
    model, stream = new_model().eval(), Again(old[:, :-1], old[:, 1:])
    plain, old_loss = model(x, y)[1], model(*stream.batch)[1]
    torch.testing.assert_close(rewards.Remembering(model, model, stream, 2.0)(x, y)[1], plain + 2 * old_loss)
    inner = rewards.Rewarded(model, seed=4)
    expected = rewards.Rewarded(model, seed=4)(x, y)[1] + old_loss
    torch.testing.assert_close(rewards.Remembering(inner, model, stream)(x, y)[1], expected)
    assert len(list(rewards.Remembering(inner, model, stream).parameters())) == len(list(model.parameters()))
