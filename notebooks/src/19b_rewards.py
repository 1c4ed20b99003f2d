# %% [markdown]
r"""
# 19b ◇ · Answers and rewards

Chapter 19 fine-tuned a model on new text. Often there is no text to imitate. Somebody can only *check* an answer: a sum is right or wrong,
a program passes its tests or fails. Can a model learn from such a check alone? That is reinforcement learning with verifiable rewards, and
since 2024 many language models have been trained with it (Lambert et al. 2024, §6).

Our stories are a good place to study it. The grammar knows every answer, so our check makes no mistakes. It also knows the floor of the
loss, so we can measure something that nobody can measure on real text: the exact price of the training in nats, on everything that was
not rewarded. We ask one question in this chapter: **what do rewards bring that plain fine-tuning does not, for the same compute?**
"""

# %%
#| default_exp labs.tuning.rewards
#| doc labs.tuning.rewards: Learning from answers: the loss on an answer alone, rewards for right ones, and what keeps a model near where it began.
import json
import math
from collections import Counter
from pathlib import Path

from course.figures import rewards as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.data import DocumentStream
from nanogpt.device import pick_device, pick_scale
from nanogpt.evaluate import token_losses
from nanogpt.labs.evals.excess import Floor
from nanogpt.labs.evals.floor import readings
from nanogpt.shards import open_shards
from nanogpt.labs.corpora.stories import NUMBERS, ensure_corpus, stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import train
from nanogpt.weights import load_model

# %%
#| export
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.evaluate import evaluating
from nanogpt.labs.evals.accuracy import first_choice
from nanogpt.model import GPT
from nanogpt.labs.corpora.stories import Story

# %% [markdown]
r"""
All sizes are set here. The model is chapter 07's, and so is its tokenizer. `TRAIN` is the number of stories that questions for the training are
taken from, `HELD` the number of questions that we measure with, and `G` the number of answers that we sample for one question.
"""

# %%
SEED, TRAIN, HELD, FLOOR_STORIES, G = 0, 1200, 180, 60, 16
device = pick_device()
B, STEPS, LR = {"ci": (8, 10, 1e-4), "laptop": (24, 30, 5e-5), "gpu": (32, 300, 3e-4)}[pick_scale(device)]
BUILT, MODEL = Path("../data/built"), Path("../data/built/model")
base = load_model(MODEL, device)  # chapter 07 wrote it
ensure_corpus(BUILT / "stories")
tokenizer = BPETokenizer.load(BUILT / "stories/tokenizer.json")
T = base.config.block_size
assert base.config.vocab_size == tokenizer.vocab_size, f"{MODEL} has another vocabulary: run chapter 07"
print(f"{STEPS} steps of {B} questions, at a rate of {LR:g}")

# %% [markdown]
r"""
## A question is a prompt

To ask a language model something, we write a text that has the answer as its next word. Every story contains such texts. Here is one. The
numbers that a reader can *compute* from what was told before are marked by chapter 02's grammar.
"""

# %%
held_stories = list(stories(300, seed=1))  # chapter 07's model was trained on those of seed 0
story = next(story for story in held_stories if "computed" in story.kinds)
start, end = story.answers[story.kinds.index("computed")]
print(story.text[:start], "...", f"\n\nthe answer: {story.text[start:end]}")

# %% [markdown]
r"""
How do we know that this is *the* answer? Chapter 02's `readings` lists all ways in which the grammar could tell a text. Put each number
word in the answer's place and ask whether the grammar could tell the resulting story.
"""

# %%
for word in NUMBERS:
    changed = story.text[:start] + word + story.text[end:]
    if readings(changed):
        print(f"the grammar tells the story with {word!r}")

# %% [markdown]
r"""
Only one word of seventeen is left. This is an exact *verifier*: it accepts the right answer and nothing else. Most people who train with rewards do not have one. Their
checks are programs, other models or people, and all of those can be fooled.

`questions` cuts stories in this way, just before each computed number. Our tokenizer has one token for each number word up to *eleven*, with its space.
Sums above it are left out, so an answer is one token here.
"""


# %%
#| export
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


# %% tags=["nbval-ignore-output"]
held = list(questions(held_stories, tokenizer, T))[:HELD]
asked = list(questions(stories(TRAIN, seed=2), tokenizer, T))
print(f"{len(asked):,} questions to train on, {len(held)} to measure with")
for question in held[:5]:
    ids = torch.tensor([question.ids[:-1]], device=device)
    with torch.no_grad(), evaluating(base):
        said = tokenizer.decode([base(ids)[0][0, -1].argmax().item()])
    print(f"… {question.prompt[-60:]}  model:{said}, right:{question.answer}")

# %% [markdown]
r"""
Look at what it says where it is wrong: still a number. Perhaps the model has learned what *kind* of word comes here, and misses the value. Five questions cannot show it, so we count below.

## How many are right?

Five questions say little. For many of them we need batches, and here a small problem appears: prompts have different lengths, so their answers are at different
places. We pad at the right end and mark the place of the answer in `y`. All other entries of `y` are −100. In every loss of this course
−100 means: this place does not count.
"""


# %%
#| export
#| blank answers_only: x gets the ids without the last one; y gets the last id, at the place where x ends
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


# %%
x, y = answers_only(sorted(held, key=lambda question: len(question.ids))[:3])
print("the last ten columns of x:", x[:, -10:], "and of y:", y[:, -10:], sep="\n")
assert ((y != -100).sum(1) == 1).all(), "a row of y must hold one answer"

# %% [markdown]
r"""
Each row of `y` has one entry that counts. Zeros after the end of a prompt cannot disturb it, since a token sees only what is before it.
With `y != -100` we select the model's prediction at exactly this place, for all questions at once.
"""


# %%
#| export
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


# %% [markdown]
r"""
*Predict.* Chapter 07's model has read thousands of stories. What per cent of these sums does it get right?
"""

# %%
predict("19b.1", "computed answers right before any of this chapter's training", guess=None, unit="%")

# %% tags=["nbval-ignore-output"]
before = share_right(base, held)
p = before["first"]
error = math.sqrt(p * (1 - p) / len(held))
print(f"{p:.0%} of {len(held)} first choices are right, ± {error:.0%} (one standard error)")
print(f"if the answers are drawn from the model's probabilities: {before['drawn']:.0%}")
word, times = Counter(question.answer for question in asked).most_common(1)[0]
print(f"always saying {word.strip()!r} would be right in about {times / len(asked):.0%}")
with torch.no_grad(), evaluating(base):
    logits, right = answer_logits(base, *answers_only(held, device))
choices = first_choice(logits)
wrong = [tokenizer.decode([i]).strip() for i in choices[choices != right].tolist()]
print(f"of {len(wrong)} wrong first choices {sum(word in NUMBERS for word in wrong)} are number words")
answer("19b.1", round(100 * p))

# %% [markdown]
r"""
Nearly every wrong answer is a number: the model knows the kind of word, and not the value. Keep the standard error in mind: two models whose results differ by a few per cent may be equally good. And keep both shares in mind. The first
choice is what a careful user would ask for; drawing is what `sample` does at temperature 1.

## The price

Chapter 19 showed that a model forgets while it learns. We will train on one word of a story, so we must watch all others. Chapter 18's
`Floor` gives the excess: the nats that a model pays above the best possible reader, for each kind of decision. We leave out the computed
numbers, which are the goal. The sum of all other kinds is called *all else* in the tables, and the *price* of a training is how much it raises this sum.
"""

# %% tags=["nbval-ignore-output"]
floor = Floor.of((story.text for story in held_stories[:FLOOR_STORIES]), tokenizer)


def measure(model: nn.Module) -> dict[str, float]:
    """What a model has learned, and what it pays: the shares of right answers, and nats a story above the floor."""
    excess = floor.excess(token_losses(model, floor.ids, tokenizer.eot))
    computed = excess.pop("counts, computed")
    return share_right(model, held) | {"computed": computed, "all else": sum(excess.values())}


runs = {"before": measure(base)}
found = runs["before"]
print(
    f"above the floor: {found['computed']:.2f} nats a story for computed numbers, {found['all else']:.2f} for all else"
)

# %% [markdown]
r"""
## Fine-tuning on the answer alone

We know the right answers, so the simplest method is to show them. The mask is already there: with `y` from `answers_only` the cross-entropy
counts the answer and nothing else. This is how chat models are fine-tuned: on the assistant's words, and not on the user's. Nothing in the model or in the
training loop changes. We only need a stream of such batches. Questions of one length go together, so that little is padded.
"""


# %%
#| export
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


# %%
stream = QuestionStream(asked, B, SEED, device)
x, y = stream.next_batch()
counted = (y != -100).sum().item()
print(f"a batch of {len(x)} questions has {x.numel():,} tokens, and {counted} of them count")

# %% [markdown]
r"""
*Predict.* After some dozen steps of this, what will all other words of a story cost above the floor?
"""

# %%
predict("19b.2", "fine-tuned on answers alone: all else above the floor", guess=None, unit="nats a story")

# %% tags=["nbval-ignore-output"]
tuned = load_model(MODEL, device)
train(tuned, QuestionStream(asked, B, SEED, device), STEPS, LR)
runs["fine-tuned"] = measure(tuned)
figures.table(runs)
answer("19b.2", round(runs["fine-tuned"]["all else"], 2))

# %% [markdown]
r"""
These are few steps at a low rate. Nothing has moved by more than the standard error of 4 points; longer runs are recorded below. The price is a few hundredths of a nat. It grows fast with the rate: at twice this rate the same steps cost 0.2 nats and leave only 43% right, and the record has a run of 80 steps at four times the rate that costs 1.7. No loss asked the model to keep its knowledge of names and things,
and every weight is used for everything.

## What a reward is

Now we put the answer away. The model may try, and afterwards it learns only whether it was right. We draw 16 answers to one question from the model's own
probabilities, and the reward is 1 for a right answer and 0 for a wrong one.
"""


# %%
#| export
def reward(samples: Tensor, answers: Tensor) -> Tensor:
    """1.0 where a sampled answer is the right one, else 0.0: (B, G), from samples (B, G) and answers (B,)."""
    return (samples == answers[:, None]).float()


# %% tags=["nbval-ignore-output"]
generator = torch.Generator().manual_seed(SEED)
x, y = answers_only(held[:1], device)
with torch.no_grad(), evaluating(base):
    logits, right = answer_logits(base, x, y)
probs = logits.softmax(-1).cpu()  # (1, V)
samples = torch.multinomial(probs, G, replacement=True, generator=generator)  # (1, G)
rewards = reward(samples, right.cpu())
print("sampled:", tokenizer.decode(samples[0].tolist()))
print(f"rewards: {rewards[0].int().tolist()}, mean {rewards.mean():.2f}")
print(f"the probability of the right answer{held[0].answer}: {probs[0, right.item()]:.2f}")

# %% [markdown]
r"""
The mean of the rewards estimates the probability of the right answer. We want this probability to rise. But a reward is a number that comes from outside, and
drawing a sample is not a differentiable step. So how do we get a gradient?

Write the expected reward as a sum over all answers a: $J = \sum_a \pi(a)\, r(a)$. Only π depends on the weights, so
$\nabla J = \sum_a r(a)\, \nabla \pi(a)$. Since $\nabla \pi = \pi\, \nabla \ln \pi$, this equals $\sum_a \pi(a)\, r(a)\, \nabla \ln \pi(a)$, and a sum that is weighted
by π(a) is a mean over samples. So the recipe is: **draw an answer, and multiply the gradient of its log-probability by its reward.** This is REINFORCE
(Williams 1992). Answers that were rewarded become likelier.

We do not have to believe this. A toy model that gives five answers the logits `z` is small enough to compute the sum exactly. For a softmax, the
gradient of ln π(a) with respect to `z` is (1 for a, 0 for the others) − π.
"""


# %%
z = torch.tensor([0.0, 1.0, 0.5, -1.0, 0.2], requires_grad=True)
worth = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0])  # the third answer is right
exact = torch.autograd.grad((z.softmax(-1) * worth).sum(), z)[0]
pi = z.detach().softmax(-1)
for n in (16, 1000, 100_000):
    drawn = torch.multinomial(pi, n, replacement=True, generator=generator)
    grad_log_pi = F.one_hot(drawn, 5).float() - pi  # (n, 5)
    estimate = (worth[drawn][:, None] * grad_log_pi).mean(0)
    print(f"{n:7,} samples:", [f"{entry:+.3f}" for entry in estimate.tolist()])
print("          exact:", [f"{entry:+.3f}" for entry in exact.tolist()])
assert (estimate - exact).abs().max() < 0.01, "the estimate does not average to the exact gradient"

# %% [markdown]
r"""
The estimate comes closer to the exact gradient as samples are added. The third entry rises and all others fall. Note that a
*wrong* sample has reward 0 and contributes nothing at all.

As code, the recipe is a loss whose gradient is the estimate. It has a minus sign because optimizers go downhill. We write `advantages` in place of
rewards, for a reason that comes next.
"""


# %%
#| export
#| blank policy_loss: minus the mean, over all samples, of an advantage times the sample's log-probability
def policy_loss(log_probs: Tensor, samples: Tensor, advantages: Tensor) -> Tensor:
    """Minus the mean advantage-weighted log-probability of samples (B, G), from log_probs (B, V) (Williams 1992).

    Its gradient is minus an estimate of the expected reward's. No gradient goes through the advantages.
    """
    return -(advantages.detach() * log_probs.gather(1, samples)).mean()


# %% tags=["nbval-ignore-output"]
drawn = drawn[None, :5000]
loss = policy_loss(z.log_softmax(-1)[None], drawn, worth[drawn])
by_loss = -torch.autograd.grad(loss, z)[0]
by_hand = (worth[drawn[0]][:, None] * (F.one_hot(drawn[0], 5).float() - pi)).mean(0)
print(f"loss {loss:.3f}; largest difference from the estimate by hand: {(by_loss - by_hand).abs().max():.0e}")

# %% [markdown]
r"""
The value of this loss means nothing. It is not a distance from anything, and it need not fall while the model improves. Only its gradient counts.

## Less noise: a baseline

With 16 samples the estimate above was rough. There is a trick that costs nothing. Subtract the same number b from all rewards, the *baseline*. The
mean of the estimate stays the same, because the subtracted part is b times the mean of ∇ ln π, which is $\sum_a \nabla \pi(a) = \nabla 1 = 0$. But wrong
answers now have a negative advantage, so every sample says something, and the noise changes. What is left after the subtraction is called the *advantage*: how much better
than usual was this answer?

Which b is good? Three ideas. First, the mean reward of the batch. Second, the mean over the samples of the *same question*: a question that the
model finds easy should not be praised for being easy. Such a set of samples is called a *group*. Third, divide by the group's standard deviation as
well. This is GRPO (Shao et al. 2024, §4.1), which needs no second network to estimate the baseline, as PPO does.
"""


# %%
#| export
#| blank from_group: compare each reward with the mean of its own row
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


# %%
two_groups = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])  # an easy question and a hard one
for baseline in (from_zero, from_batch, from_group, from_group_scaled):
    print(f"{baseline.__name__:18} {[[round(a, 2) for a in row] for row in baseline(two_groups).tolist()]}")
assert from_group(two_groups).sum(1).abs().max() < 1e-6, "the advantages of a group must add up to zero"

# %% [markdown]
r"""
Compare the single wrong answer to the easy question with the single right answer to the hard one. In a group they get the strongest
advantages of their rows: the rare outcome teaches most.

Now the noise, on real questions with chapter 07's model. We draw the 16 samples 500 times with the weights unchanged. Each draw gives an estimate of
the gradient at the logits; from there on, backpropagation is the same for all. The noise is the mean squared distance between such an estimate and the mean of all.

*Predict.* The group's mean as a baseline leaves which share of the noise that there is without any baseline?
"""

# %%
predict("19b.3", "noise with the group's mean as baseline, of that without", guess=None, unit="%")


# %%
def noise(logits: Tensor, answers: Tensor, baseline: Callable, samples: int = G) -> tuple[float, Tensor]:
    """Mean squared distance of the gradient estimates from their mean, and that mean (B, V)."""
    generator, estimates = torch.Generator().manual_seed(SEED), []
    logits = logits.detach().cpu().requires_grad_()
    for _ in range(500):
        log_probs = logits.log_softmax(-1)
        drawn = torch.multinomial(log_probs.exp().detach(), samples, replacement=True, generator=generator)
        loss = policy_loss(log_probs, drawn, baseline(reward(drawn, answers.cpu())))
        estimates.append(-torch.autograd.grad(loss, logits)[0])
    estimates = torch.stack(estimates)  # (draws, B, V)
    mean = estimates.mean(0)
    return (estimates - mean).square().sum((1, 2)).mean().item(), mean


# %% tags=["nbval-ignore-output"]
with torch.no_grad(), evaluating(base):
    logits, answers = answer_logits(base, *answers_only(asked[:24], device))
measured, means = {}, {}
for baseline in (from_zero, from_batch, from_group, from_group_scaled):
    variance, mean = noise(logits, answers, baseline)
    means[baseline], measured[baseline.__name__] = mean, variance / mean.square().sum().item()
show(
    figures.noise(measured),
    alt="Variance of the gradient over its squared length: four bars, the longest without a baseline.",
)
for name, value in measured.items():
    print(f"{name:18} {value / measured['from_zero']:.0%} of the noise without a baseline")
answer("19b.3", round(100 * measured["from_group"] / measured["from_zero"]))

# %% [markdown]
r"""
The bars are divided by the squared length of each mean gradient, so that they can be compared: GRPO's division by the deviation makes all
gradients longer. The baselines cost a subtraction, and they remove little: the group's mean 7% of the noise, the batch's mean about a fifth. Should not the group's be the better one, since it knows how hard its own question is? But
it is a mean of 16 rewards only, and the batch's mean rests on 24 times as many. If this is the reason, the number of samples must decide. We try fewer and more.
"""

# %% tags=["nbval-ignore-output"]
for many in (4, 256):
    relative = []
    for way in (from_zero, from_batch, from_group):
        variance, mean = noise(logits, answers, way, many)
        relative.append(variance / mean.square().sum().item())
    without, of_batch, of_group = relative
    print(
        f"{many:3} samples: the batch's mean leaves {of_batch / without:.0%}, the group's {of_group / without:.0%}"
    )

# %% [markdown]
r"""
It does decide. With 4 samples the group's mean is worse than no baseline at all, and with 256 it is as good as the batch's, but not better. So on these questions nothing is gained by a baseline for each question, and a small group makes noise of its own.

One of them is not quite honest. The group's mean contains the sample that is compared with it, so a sample also lowers its own advantage. The
mean estimate therefore is 15/16 of the exact gradient with 16 samples: shorter, but in the same direction. Let us check it against the exact
gradient, which for one question is π(right) times the gradient of ln π(right).
"""

# %% tags=["nbval-ignore-output"]
probs = logits.softmax(-1).cpu()
p_right = probs.gather(1, answers.cpu()[:, None])  # (B, 1)
exact = p_right * (F.one_hot(answers.cpu(), probs.size(1)) - probs) / len(probs)
for baseline, mean in means.items():
    along = (mean * exact).sum() / exact.square().sum()
    cosine = F.cosine_similarity(mean.flatten(), exact.flatten(), dim=0)
    print(f"{baseline.__name__:18} {along:.2f} × the exact gradient, cosine {cosine:.3f}")
weights = (p_right * (1 - p_right)).rsqrt()
print(f"one over the deviation: {weights.min():.1f} to {weights.max():.1f}")

# %% [markdown]
r"""
The first three have the direction of the exact gradient. The last one is twice as long, and its direction is a little different: a cosine of 0.995. Each question's gradient is divided by that question's
own deviation, so questions which are nearly always or nearly never answered correctly count more than the others, as the last line shows. Liu et al. 2025 (*Dr. GRPO*) call this a bias and leave the division out. On these questions it is small.

## The run

We need a training step that samples, asks for rewards and goes downhill on `policy_loss`. The loop of chapter 07 calls `model(x, y)` and expects
logits and a loss. So we wrap the model: to the loop, `Rewarded` is a model with another loss. Because an answer is one token, all 16 samples come
from one forward pass. With long answers, as in real runs, most of the time goes into writing them.
"""


# %%
#| export
#| blank Rewarded.forward: sample from the answers' probabilities, reward, and return all logits and the policy's loss
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


# %% tags=["nbval-ignore-output"]
policy = Rewarded(load_model(MODEL, device), from_group, G, SEED)
train(policy, QuestionStream(asked, B, SEED, device), STEPS, LR)
runs["rewarded"] = measure(policy.model)
figures.table(runs)
show(
    figures.received(policy.received, before),
    alt="Mean reward of each batch against steps, with a running mean: a noisy curve.",
)

# %% [markdown]
r"""
The curve shows the share of sampled answers that were right. It is lower than the share of right first choices, since a sample is not always the first choice. It swings widely from batch to batch, and these 30 steps show no clear rise.
Look at the third column as well: what do the computed numbers cost now, in nats? They cost more than before, although a drawn answer is right more often. How can both be true? A reward asks only that the right answer be sampled often. It
does not ask for honest probabilities. Perhaps the model has become surer of whatever it said before. This can be tested. We divide the questions into those that chapter 07's model answered rightly and the others.
"""


# %% tags=["nbval-ignore-output"]
def right_and_sure(model: nn.Module, sharpen: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each held-out question: is the first choice right, the probability of the right answer, that of the first choice.

    sharpen: a factor for the logits, one over the temperature.
    """
    with torch.no_grad(), evaluating(model):
        logits, right = answer_logits(model, *answers_only(held, device))
    probs = (sharpen * logits.float()).softmax(-1).cpu()
    of_right = probs.gather(1, right.cpu()[:, None])[:, 0]
    return (first_choice(logits) == right).cpu(), of_right, probs.max(1).values


knew, chance, _ = right_and_sure(base)


def say_sure(name: str, of_right: torch.Tensor, of_first: torch.Tensor) -> None:
    known, unknown = (-of_right[at].log().mean().item() for at in (knew, ~knew))
    print(f"{name:18} first choice {of_first.mean():.2f}, drawn and right {of_right.mean():.0%}", end="; ")
    print(f"nats of the right answer: {known:.2f} where it was known, {unknown:.2f} else")


for name, model in {"before": base, "fine-tuned": tuned, "rewarded": policy.model}.items():
    say_sure(name, *right_and_sure(model)[1:])
rewarded = right_and_sure(policy.model)
times = rewarded[1][~knew] / chance[~knew]
print(
    f"rewarded, not known: {(times > 1).float().mean():.0%} of the right answers have become likelier,",
    end=" ",
)
print(f"{(times < 0.5).float().mean():.0%} less than half as likely")
apart = (rewarded[0] != right_and_sure(tuned)[0]).float().mean()
print(f"fine-tuned or rewarded: only one of the two is right in {apart:.0%} of the questions")

# %% [markdown]
r"""
The rewarded model is surer of itself: its first choice has a probability of 0.53 on average, where it was 0.43. Where chapter 07's model was right, the right answer has become cheaper; where it was wrong, dearer, and by more: a third of these answers have become likelier, and one in six less than half as likely. Fine-tuning has done neither.

Has the rewarded model learned anything besides being sure? There is a control without any training: we multiply the logits of chapter 07's model by a number above 1 (`sample` calls one over it the temperature) until its first choice is as sure as that of the rewarded model.

*Predict.* Will a drawn answer be right more often, or less often, than with the rewarded model?
"""

# %% tags=["nbval-ignore-output"]
factors = [n / 10 for n in range(10, 60)]
as_sure = [f for f in factors if right_and_sure(base, f)[2].mean() >= rewarded[2].mean()]
say_sure(f"before, × {as_sure[0]:.1f}", *right_and_sure(base, as_sure[0])[1:])

# %% [markdown]
r"""
More often: 43%, where the rewarded model has 39%, and the right answers cost less in both groups. So in these few steps the rewards have brought nothing that a lower temperature would not have given for nothing. A reward begins by strengthening what the model says already. (A temperature never changes a first choice. So judge longer runs by their first choices.)

## At equal compute

Do rewards bring more than fine-tuning? One short run of each with one seed cannot say. The table below was recorded by `python bench/rewards.py`,
with longer runs and several seeds. All ways get the same compute: 2 FLOPs a parameter for a token that is read, and 4 more where gradients
go back (chapter 05). Each way runs at the rate that was tried with most seeds;
other rates follow below the table. There is one more control, *more stories*: chapter 07's training simply goes on, with ordinary text.

*Predict.* Which way gets the most answers right: more stories, the answer alone, or rewards?
"""

# %%
predict("19b.4", "most right answers at equal compute", guess=None)

# %%
recorded = json.loads(Path("../data/measurements/rewards.json").read_text())
print(
    f"{len(recorded['runs'])} runs, {recorded['date']}, on {recorded['device']}; {recorded['questions']} questions"
)
best = figures.main_rates(recorded["runs"])  # of each way, at one rate
figures.compare(best, recorded["base"], ["more stories", "answer alone", "rewards", "rewards, GRPO"])
print("other rates:")
figures.listed(figures.other_rates(recorded["runs"], best))
share = {way: figures.mean(best[way], "first") for way in ("more stories", "answer alone", "rewards")}
answer("19b.4", max(share, key=share.get))

# %% [markdown]
r"""
Compare each line with the record's own first line, 50%, and not with the 48% that we measured above: the record is of another training of that model. Three of the four ways are within one standard error of each other, and *more stories* is among them: 54% to 56% are right, where it was 50% before. And GRPO's 48%? Look at its rate, which is twice that of the two above it. At that rate the others fall as well: the answer alone gets 53% and rewards get 51%, means of the three seeds listed below the table. And at their rate GRPO has 56%, with one seed. So the rate decides here, and not the way. In short runs none of them is better than ordinary text, and ordinary text is the only way with which *all else* falls, from 2.34 to 1.87: its price is negative. But compare the columns
*drawn* and *computed*. With rewards a drawn answer is right more often than before, and yet the right answers cost *more* nats, 1.16 instead of 1.09. Both follow from one
change, the one that we saw above: the model has become surer of whatever it preferred. Where it had been wrong, some right answers are then very unlikely, and those are expensive. With fine-tuning the right answers have become cheaper. (This depends on the rate as well: in the file, GRPO at 5e-05 has 1.03 and not 1.21.)

Here are two of these methods with twice the compute:
"""

# %%
longer = figures.main_rates(recorded["longer"])
figures.compare(longer, recorded["base"], ["answer alone", "rewards"])

# %% [markdown]
r"""
Now fine-tuning is ahead: 63% of its answers are right, and 56% of those that learned from rewards. Both models are asked the same questions, so what counts are the questions that only one of them answers rightly (chapter 18). The record does not have their share. If it is a fifth of the 180, where the short runs above had 14%, the standard error of the difference is √(0.2 / 180) = 3.3 points, and seven points are two of them. Whether a lower rate would help the rewards, this record cannot say: all its rewards of this length have the rate 1e-4. A drawn answer is right equally often, but the right answers cost 1.37 nats a story with rewards and 0.98 with fine-tuning. All else has become more expensive by about half a nat, on both sides.

## Why rewards learn more slowly here

The reason is in a formula that we have checked already. For one question, fine-tuning follows the gradient of ln π(right). The expected
gradient of the reward is π(right) *times the same gradient*. So both move in the same direction for each question, and they differ in how much each question counts. Let us look at the size of the
push on the right answer's logit. It is 1 − π for fine-tuning, π (1 − π) for rewards, and √(π (1 − π)) for GRPO.
"""

# %% tags=["nbval-ignore-output"]
with torch.no_grad(), evaluating(base):
    logits, answers = answer_logits(base, *answers_only(held, device))
p_right = logits.softmax(-1).gather(1, answers[:, None])[:, 0].cpu()
show(
    figures.pushes(p_right.tolist()),
    alt="Push on the right answer against its probability: fine-tuning falls from 1 to 0, rewards rise to a quarter and fall.",
)
probs = logits.softmax(-1).cpu()
toward = F.one_hot(answers.cpu(), probs.size(1)) - probs  # the gradient of ln π(right) at the logits
cosine = F.cosine_similarity(toward.flatten(), (p_right[:, None] * toward).flatten(), dim=0)
print(f"cosine of fine-tuning's gradient and the rewards', over all questions: {cosine:.2f}")
silent = ((1 - p_right) ** G).mean().item()
print(f"of the groups of {G} samples, {silent:.0%} are expected to hold no right answer at all")
print(f"{(p_right < 0.1).float().mean():.0%} of the questions have a right answer below probability 0.1")

# %% [markdown]
r"""
For a single question the two gradients are parallel; over all questions their cosine is 0.84, and this angle is the work of π alone. Fine-tuning pushes hardest where the model is most wrong. Rewards hardly push there, because a right answer that is never sampled is never rewarded.
A group without any right answer, or with right answers only, has advantages of zero and teaches nothing. Here few groups are without one, because
the model already knows which words are numbers. A model that never succeeds could not learn from rewards at all.

There is a second possible reason: noise. Rewards have to estimate their gradient from samples. But this explanation can be tested. With one token per answer we can compute the
expected reward exactly. It is π(right), so the loss is −π(right), and no samples are needed. In the recorded runs, *exact* did this:
"""

# %%
ways = ["answer alone", "rewards", "rewards, exact", "rewards, GRPO"]
figures.compare(best, recorded["base"], ways)
print("with twice the compute:")
figures.compare(longer, recorded["base"], ways)

# %% [markdown]
r"""
With infinitely many samples the result is nearly the same. So at this size noise explains little of the distance to fine-tuning. What is left is the factor π: a reward
strengthens what the model already does, and a label tells it an answer that it would not have tried. GRPO's division gives the rare successes more weight, but within these few seeds
it cannot be told from plain groups.

## Paying the price down

Both ways forget. Two remedies are common. The first one stays near the model from before. It adds a penalty to the loss, the Kullback–Leibler
divergence from the old predictions to the new ones, at every place of the prompt. It needs no old text, but it needs the old model: one more forward
pass. (Reinforcement learning from human feedback has a similar penalty, but there it is on the sampled tokens. Ours have one token, the answer,
which *should* move.)
"""


# %%
#| export
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


# %% tags=["nbval-ignore-output"]
x, y = answers_only(held[:4], device)
start = Near(base, load_model(MODEL, device), 1.0)(x, y)[1] - base(x, y)[1]
moved = Near(tuned, load_model(MODEL, device), 1.0)(x, y)[1] - tuned(x, y)[1]
print(
    f"the penalty: {abs(start.item()):.4f} nats for the model from before, {moved.item():.4f} for the fine-tuned one"
)

# %% [markdown]
r"""
The second remedy is chapter 19's replay: go on reading ordinary stories. Here it is a wrapper again, which adds the loss of a batch of
stories to whatever the inner model's loss is. So it works for fine-tuning and for rewards alike.
"""


# %%
#| export
class Remembering(nn.Module):
    """A wrapped model that also reads ordinary text: weight × the mean loss of the stream's next batch is added."""

    def __init__(self, inner: nn.Module, model: GPT, stream, weight: float = 1.0):
        super().__init__()
        self.inner, self.model, self.stream, self.weight = inner, model, stream, weight

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits, loss = self.inner(x, y)
        return logits, loss + self.weight * self.model(*self.stream.next_batch())[1]


# %% tags=["nbval-ignore-output"]
model = load_model(MODEL, device)
rows = max(1, B // 6)  # a sixth as many stories as questions
prompts = B * sum(len(question.ids) for question in asked) / len(asked)  # tokens in a batch of questions
old = DocumentStream(open_shards(BUILT / "stories", "train"), rows, T, seed=SEED, device=device)
steps = round(STEPS * prompts / (prompts + rows * T))  # fewer, for as much compute
train(Remembering(model, model, old), QuestionStream(asked, B, SEED, device), steps, LR)
runs["fine-tuned, replay"] = measure(model)
figures.table(runs)

# %% [markdown]
r"""
And in the recorded runs with twice the compute. With a penalty or with replay the steps are fewer, because each of them costs more. The lines below the
table are a control, plain fine-tuning at a lower rate:
"""

# %%
figures.compare(
    longer, recorded["base"], ["answer alone", "answer, near", "answer, replay", "rewards", "rewards, replay"]
)
figures.listed(figures.other_rates(recorded["longer"], longer))
show(
    figures.trade_off(recorded["longer"], recorded["base"]),
    alt="Price against right answers with twice the compute: plain ways far up, those with replay and penalty low.",
)

# %% [markdown]
r"""
Replay takes away about half of the price: 60% of it for fine-tuning, 47% for rewards. The right answers that it costs are within the error. But look at the control: plain fine-tuning at half the rate pays as little and gets as many answers right. So at this size replay is no better than a smaller step; in chapter 19, where the new text contradicted the old one, it was. Each of these ways was run with one or two seeds, so differences of a few per cent mean nothing.

## What we found

- Where the right answer is known and is the only one, showing it taught more than rewarding it, for the same compute, in the longer runs. It is seven points, about two standard errors of the difference. In short runs neither is better than more stories.
- The difference is not the noise of the samples: without it the result is the same. The factor π(right) in the gradient remains. Rewards begin by making the model surer of what it does already; in a few steps a lower temperature does as much.
- A mask or a reward that looks at one word leaves all others unprotected. The price of that can be measured here in nats; on real text it is paid unseen. It grows with the rate: replay, or simply a smaller rate, keeps it low.
- With 16 samples a baseline removes 7% (the group's mean) to about a fifth (the batch's) of the noise; with 4, the group's mean adds noise. The division by the deviation changes the direction a little, and at the same rate not the result.

And what did we *not* find? Nothing here says that rewards are useless. Our answers are one token long, and we had a label for each. Where a solution is a page of
reasoning that nobody has written down, there is nothing to imitate, and a check is all there is. There the model must already succeed sometimes, as the factor π says. This is why in practice
rewards come *after* fine-tuning (Lambert et al. 2024, §6). Yue et al. 2025 report for large models as well that rewards mostly make answers likelier which the model could already
give.
"""

# %% [markdown]
r"""
## Checkpoint

Exports `labs/tuning/rewards.py`, imports it in a fresh process and runs the chapter's tests. In chapter 19c the trainer learns to count answers alone.
"""

# %% tags=["nbval-ignore-output"]
predictions("19b")

# %%
checkpoint("19b")

# %% [markdown]
r"""
## Exercises

To explore:

1. *Direct preference optimization* (Rafailov et al. 2023, §4) needs neither samples nor rewards, but pairs: a right answer and a wrong one. Its loss is
   −ln σ(β (Δ ln π − Δ ln π_before)), where Δ is right minus wrong. Take the model's likeliest wrong number as the wrong answer, and write a
   wrapper like `Near`. Check: before the first step the loss is ln 2 for every pair. Then compare it with the table at equal compute: three
   forward passes or more instead of one.
2. *A reward that is hacked.* Reward any number word, right or wrong, and add 0.2 for the right one. Check: the mean reward rises to nearly 1 while `share_right`
   stays at or below its start. Then find the smallest bonus with which `share_right` still rises.
3. *Leave one out.* Let each sample be compared with the mean of the *other* samples of its group. Check with `noise`: the mean estimate is 1.00 × the
   exact gradient, and every advantage is G / (G − 1) times that of `from_group`.
4. *How many samples?* Run `Rewarded` with 2, 4, 16 and 64 samples, with three seeds each. Our samples cost next to nothing. Check: the `noise` falls as 1/G. Do the right
   answers rise as much?
5. *The exact gradient.* With one token per answer the expected reward can be differentiated directly: the loss is −π(right). Write this wrapper; it is `Rewarded` with infinitely many samples.
   Check: its gradient at the logits equals the mean of 5,000 draws. Does it catch up with fine-tuning? What is left is the effect of the weight π alone.
6. *A check in place of a label.* Let the model continue a story to its end, and give reward 1 if `readings` finds the grammar could tell it. Here no single text is
   right. Check on ten stories that the reward of the held-out original is 1, and that a changed name gives 0.

## Further reading

- Williams 1992, [*Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement Learning*](https://doi.org/10.1007/BF00992696), §2 to §4: REINFORCE and its baseline.
- Schulman et al. 2017, [*Proximal Policy Optimization Algorithms*](https://arxiv.org/abs/1707.06347), §3: several steps on the same samples, and how to keep them small.
- Shao et al. 2024, [*DeepSeekMath*](https://arxiv.org/abs/2402.03300), §4.1: groups in place of a value network (GRPO).
- Rafailov et al. 2023, [*Direct Preference Optimization*](https://arxiv.org/abs/2305.18290), §4: pairs in place of rewards.
- Lambert et al. 2024, [*Tulu 3*](https://arxiv.org/abs/2411.15124), §6: reinforcement learning with verifiable rewards, at full scale.
- Yue et al. 2025, [*Does Reinforcement Learning Really Incentivize Reasoning Capacity in LLMs Beyond the Base Model?*](https://arxiv.org/abs/2504.13837): what is sampled more often, and what is new.
- Liu et al. 2025, [*Understanding R1-Zero-Like Training: A Critical Perspective*](https://arxiv.org/abs/2503.20783), §3: the biases of GRPO, and Dr. GRPO without them.
"""
