"""Learning from answers: the loss on an answer alone, rewards for right ones, and what keeps a model near where it began.

Exported from notebooks/19b_rewards.ipynb.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.evaluate import evaluating
from nanogpt.labs.corpora.stories import Story
from nanogpt.labs.evals.accuracy import first_choice
from nanogpt.model import GPT


class Question(NamedTuple):
    """A story up to a number that follows from it, that number, and the ids of both after <|endoftext|>."""

    prompt: str
    answer: str  # with the space before it
    ids: tuple[int, ...]  # the last one is the answer


def questions(told: Iterable[Story], tokenizer, block_size: int) -> Iterator[Question]:
    """Each computed number of some stories as a question, if it is one token and its prompt fits into block_size."""
    for story in told:
        for (start, end), kind in zip(story.answers, story.kinds):
            if kind == "computed":
                prompt, answer = story.text[: start - 1], story.text[start - 1 : end]
                before, after = tokenizer.encode(prompt), tokenizer.encode(answer)
                if len(after) == 1 and len(before) < block_size:
                    yield Question(prompt, answer, (tokenizer.eot, *before, *after))


def answers_only(asked: Sequence[Question], device="cpu") -> tuple[Tensor, Tensor]:
    """x and y, int64 (B, T), of some questions: y is the answer at the end of each prompt, and -100 everywhere else.

    x has zeros behind a prompt. T: the length of the longest prompt.
    """
    longest = max(len(question.ids) for question in asked) - 1
    x = torch.zeros(len(asked), longest, dtype=torch.int64)
    y = torch.full_like(x, -100)
    for row, question in enumerate(asked):
        n = len(question.ids) - 1
        x[row, :n] = torch.tensor(question.ids[:-1])
        y[row, n - 1] = question.ids[-1]
    return x.to(device), y.to(device)


def answer_logits(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The logits (B, V) at the place of each row's answer, and the answers (B,)."""
    at = y != -100
    return model(x)[0][at], y[at]


@torch.no_grad()
def share_right(model: nn.Module, asked: Sequence[Question], B: int = 32) -> dict[str, float]:
    """The share of right answers if the model says its first choice, "first", and on average if it draws one, "drawn"."""
    first = drawn = 0.0
    with evaluating(model) as device:
        for i in range(0, len(asked), B):
            logits, answers = answer_logits(model, *answers_only(asked[i : i + B], device))
            first += (first_choice(logits) == answers).sum().item()
            drawn += logits.float().softmax(-1).gather(1, answers[:, None]).sum().item()
    return {"first": first / len(asked), "drawn": drawn / len(asked)}


class QuestionStream:
    """Batches (x, y) of B questions of similar length, with y for the answers alone; shuffled anew each epoch."""

    def __init__(self, asked: Sequence[Question], B: int, seed: int = 0, device="cpu"):
        if not 1 <= B <= len(asked):
            raise ValueError(f"B={B} must be from 1 to the number of questions, {len(asked)}")
        ordered = sorted(asked, key=lambda question: len(question.ids))
        self.batches = [ordered[i : i + B] for i in range(0, len(ordered) - B + 1, B)]
        self.generator, self.device, self.order = torch.Generator().manual_seed(seed), device, []

    def next_batch(self) -> tuple[Tensor, Tensor]:
        if not self.order:
            self.order = torch.randperm(len(self.batches), generator=self.generator).tolist()
        return answers_only(self.batches[self.order.pop()], self.device)


def reward(samples: Tensor, answers: Tensor) -> Tensor:
    """1.0 where a sampled answer is the right one, else 0.0: (B, G), from samples (B, G) and answers (B,)."""
    return (samples == answers[:, None]).float()


def policy_loss(log_probs: Tensor, samples: Tensor, advantages: Tensor) -> Tensor:
    """Minus the mean advantage-weighted log-probability of samples (B, G), from log_probs (B, V) (Williams 1992).

    Its gradient is minus an estimate of the expected reward's. No gradient goes through the advantages.
    """
    return -(advantages.detach() * log_probs.gather(1, samples)).mean()


def from_zero(rewards: Tensor) -> Tensor:
    """The rewards (B, G) themselves: no baseline."""
    return rewards


def from_batch(rewards: Tensor) -> Tensor:
    """Rewards (B, G) above the mean of all of them."""
    return rewards - rewards.mean()


def from_group(rewards: Tensor) -> Tensor:
    """Rewards (B, G) above the mean of their own question's row."""
    return rewards - rewards.mean(1, keepdim=True)


def from_group_scaled(rewards: Tensor) -> Tensor:
    """The same in standard deviations of the row, as in GRPO (Shao et al. 2024, §4.1); 0 where all are equal."""
    return from_group(rewards) / (rewards.std(1, keepdim=True, correction=0) + 1e-4)


class Rewarded(nn.Module):
    """A model whose loss is policy_loss on answers that it samples itself; y only decides what is right.

    advantages: from_group, or another of these. received: the mean reward of each batch so far, a float.
    forward returns the model's logits at all places, (B, T, V), and the loss. The samples, with replacement, are drawn
    on the CPU with the generator, so that a seed means the same on every device.
    """

    def __init__(self, model: GPT, advantages: Callable = from_group, samples: int = 16, seed: int = 0):
        super().__init__()
        self.model, self.advantages, self.samples = model, advantages, samples
        self.generator, self.received = torch.Generator().manual_seed(seed), []

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits, answers = self.model(x)[0], y[y != -100]
        log_probs = logits[y != -100].float().log_softmax(-1)  # (B, V)
        probs = log_probs.detach().exp().cpu()  # on the CPU, a seed means the same on every device
        samples = torch.multinomial(probs, self.samples, replacement=True, generator=self.generator)
        rewards = reward(samples.to(answers.device), answers)  # (B, G)
        self.received.append(rewards.mean().item())
        return logits, policy_loss(log_probs, samples.to(answers.device), self.advantages(rewards))


class Near(nn.Module):
    """A wrapped model that also pays for moving: weight × KL(before, now), in nats, mean over all places of the prompts."""

    def __init__(self, inner: nn.Module, before: GPT, weight: float = 1.0):
        super().__init__()
        self.inner, self.before, self.weight = inner, before, weight

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits, loss = self.inner(x, y)  # (B, T, V)
        with torch.no_grad(), evaluating(self.before):
            old = self.before(x)[0].float().log_softmax(-1)
        now = logits.float().log_softmax(-1)
        divergence = F.kl_div(now, old, log_target=True, reduction="none").sum(-1)  # (B, T)
        real = (y != -100).flip(1).cumsum(1).flip(1) > 0  # up to the answer; behind it is padding
        return logits, loss + self.weight * divergence[real].mean()


class Remembering(nn.Module):
    """A wrapped model that also reads ordinary text: weight × the mean loss of the stream's next batch is added."""

    def __init__(self, inner: nn.Module, model: GPT, stream, weight: float = 1.0):
        super().__init__()
        self.inner, self.model, self.stream, self.weight = inner, model, stream, weight

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits, loss = self.inner(x, y)
        return logits, loss + self.weight * self.model(*self.stream.next_batch())[1]
