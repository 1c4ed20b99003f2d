# %% [markdown]
r"""
# Exercises 07 · Training

A training loop that is wrong still prints a loss. These tasks are about reading it: a loop with faults, a mean that counts
wrongly, a loss that is not one, and the lines of the map, computed for a language of your own. `course check 07` runs the
visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course.variants import variant
from nanogpt.evaluate import evaluating
from nanogpt.model import GPT, GPTConfig


# %%
def tiny(seed: int, dropout: float = 0.0) -> GPT:
    """A model of 32 tokens and one block."""
    shape = GPTConfig(block_size=12, vocab_size=32, n_layer=1, n_head=2, n_embd=16, dropout=dropout)
    return GPT(shape, generator=torch.Generator().manual_seed(seed))


class Descent:
    """Plain gradient descent with the two methods of a torch optimizer."""

    def __init__(self, parameters, lr: float):
        self.parameters, self.lr = list(parameters), lr

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        for p in self.parameters:
            if p.grad is not None:
                p.data -= self.lr * p.grad


# %% [markdown]
r"""
## 07-1 · A loop that learns nothing

*Repair · difficulty 2/5 · importance 5/5 · 15 minutes*

`fit` trains on one batch of ids (B, T + 1), again and again, and returns the loss of each step before its update, as floats. It
must leave the model in training mode, whatever mode it came in. The loop below has four faults. One of
them makes the loss look too good once the others are fixed.

With a right loop, `fit(tiny(0), Descent(model.parameters(), 1.0), ids, 30)` begins near ln 32 = 3.47 and falls.

<details><summary>Hint 1</summary>

Train on one batch, and print the loss: is it the same to the last digit? Then no weight moves.
</details>
<details><summary>Hint 2</summary>

Between `backward()` and `step()` the gradients have to survive; between one step and the next they must not.
</details>
<details><summary>Hint 3</summary>

What does the model see at position t, and what is it asked for there? A model that may copy its input needs no training data.
</details>
"""


# %%
#| solution 07-1
def fit(model: GPT, optimizer, ids: Tensor, steps: int) -> list[float]:
    """Train in place on ids (B, T + 1); the loss of each step before its update."""
    ### BEGIN SOLUTION
    model.train()
    x, y = ids[:, :-1], ids[:, 1:]
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x, y)[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
    ### INSTEAD
    # x, y = ids[:, :-1], ids[:, :-1]
    # losses = []
    # for _ in range(steps):
    #     loss = model(x, y)[1]
    #     loss.backward()
    #     optimizer.zero_grad()
    #     optimizer.step()
    #     losses.append(loss)  # with its graph: memory grows with every step
    # return losses
    ### END SOLUTION


# %%
#| check 07-1
model = tiny(0).eval()
ids = torch.randint(32, (4, 13), generator=torch.Generator().manual_seed(0))
losses = fit(model, Descent(model.parameters(), 1.0), ids, 30)
assert all(isinstance(loss, float) for loss in losses), (
    "a loss is still a tensor with its graph: keep the number, or the memory of every step is kept"
)
assert losses[-1] != losses[0], "the loss did not change at all: no gradient reached the weights"
assert losses[-1] < losses[0] - 0.02, "the loss did not fall: do gradients of earlier steps add up?"
assert abs(losses[0] - tiny(0)(ids[:, :-1], ids[:, 1:])[1].item()) < 1e-4, (
    "the first loss is not that of predicting the next token before any update: are the targets shifted by one?"
)

# %% [markdown]
r"""
## 07-2 · A validation loss that depends on the batch size

*Repair · difficulty 3/5 · importance 5/5 · 20 minutes*

`evaluate(model, batches)` is to give the mean loss in nats over *all targets that count* (those that are not −100) of a list of
batches (x, y), as a float: the same, however the rows are cut into batches. It must not disturb the training run that it
interrupts: dropout off meanwhile, no graph, and afterwards each module in the mode that it had, also one that was
frozen in eval mode on purpose.

`model(x, y)[1]` is the mean over the targets of one batch that count; where there are none, it is NaN.

For batches with 90 and 10 targets that cost 1 and 2 nats each, the answer is 1.1.

<details><summary>Hint 1</summary>

A mean of means weighs the small batch like the large one. By what must each be weighted?
</details>
<details><summary>Hint 2</summary>

`model.train()` switches *every* module to training mode. The chapter has a context that puts back what was.
</details>
<details><summary>Hint 3</summary>

0 × NaN is NaN: a batch without targets has to be left out, not weighted by zero.
</details>
"""


# %%
#| solution 07-2
def evaluate(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    """Mean loss in nats over all targets but -100 of the batches (x, y); the model's modes are as before."""
    ### BEGIN SOLUTION
    total, count = 0.0, 0
    with evaluating(model), torch.no_grad():
        for x, y in batches:
            n = int((y != -100).sum())
            if n:
                total += n * model(x, y)[1].item()
            count += n
    return total / count
    ### INSTEAD
    # model.eval()
    # losses = [model(x, y)[1].item() for x, y in batches]
    # model.train()
    # return sum(losses) / len(losses)
    ### END SOLUTION


# %%
#| check 07-2
draw = torch.Generator().manual_seed(1)
model = tiny(1, dropout=0.3).train()
model.transformer.wte.weight.data *= 30
model.transformer.h[0].mlp.eval()  # frozen
x, y = torch.randint(32, (2, 8, 12), generator=draw)
y[4:, 2:] = -100
whole = evaluate(model, [(x, y)])
assert evaluate(model, [(x, y)]) == whole, "two evaluations differ: dropout is on"
parts = evaluate(model, list(zip(x.split(2), y.split(2))))
assert abs(whole - parts) < 1e-4, (
    f"{whole:.4f} in one batch, {parts:.4f} in four: a mean of means weighs batches, not targets"
)
assert model.training, "the model is in eval mode afterwards: the run goes on without dropout"
assert not model.transformer.h[0].mlp.training, "the frozen module was woken: model.train() wakes all"

# %% [markdown]
r"""
## 07-3 · A check for a loss

*Check · difficulty 3/5 · importance 4/5 · 20 minutes*

Somebody hands you a function `loss(logits, targets)`: logits (N, V), targets (N,), the mean cross-entropy in nats over the
targets that are not −100. Write `check_loss(loss)`, which raises an `AssertionError` if it is wrong and returns quietly if it is
right, however it is written. It is tried on functions that you do not see. Do not compare with `F.cross_entropy` alone
before you have thought about which inputs would show a fault.

Right functions differ by rounding: allow 1e-3 where logits are large. When grading, only values pass between your check and the
function, and no gradients.

Laws need no second implementation: what do equal logits cost? What happens if all logits grow by the same amount? How do the
losses of two halves and of the whole belong together?

<details><summary>Hint 1</summary>

Equal logits cost ln V, at any V. Which units would give another number?
</details>
<details><summary>Hint 2</summary>

Try targets of −100: some, at different places; they must not change the mean over the rest, whatever their logits are.
</details>
<details><summary>Hint 3</summary>

Try logits of 1,000. exp(1000) is infinite in float32; the loss is not.
</details>
"""


# %%
#| solution 07-3
def check_loss(loss) -> None:
    """AssertionError where loss(logits, targets) is no mean cross-entropy in nats over targets but -100."""
    ### BEGIN SOLUTION
    draw = torch.Generator().manual_seed(0)
    for N, V in ((1, 2), (6, 5), (7, 40)):
        logits, targets = 3 * torch.randn(N, V, generator=draw), torch.randint(V, (N,), generator=draw)
        for ignored in {0, N // 3}:
            targets[:ignored] = -100
            for more in (0.0, 1000.0):
                due = F.cross_entropy(logits + more, targets)
                got = loss((logits + more).clone(), targets.clone())
                assert torch.allclose(got, due, atol=1e-4), f"{got} for {ignored} of {N} ignored, not {due}"
        assert torch.allclose(loss(torch.zeros(N, V), targets), torch.tensor(math.log(V))), "not ln V"
    ### END SOLUTION


# %%
#| check 07-3
def refused(loss) -> bool:
    try:
        check_loss(loss)
    except AssertionError:
        return True
    return False


assert not refused(lambda logits, targets: F.cross_entropy(logits, targets)), "it refuses F.cross_entropy"
assert refused(lambda logits, targets: F.cross_entropy(logits, targets) / math.log(2)), (
    "it accepts a loss in bits: what do equal logits cost?"
)
assert refused(lambda logits, targets: F.cross_entropy(logits, targets, reduction="sum")), (
    "it accepts a sum in place of a mean: try another number of targets"
)

# %% [markdown]
r"""
## 07-4 · The map of a small language

*Derive · difficulty 4/5 · importance 4/5 · 30 minutes*

Every document of a language has four tokens: `<|endoftext|>`, a name, a verb, a name. The first name is one of k, all equally
likely, and the verb one of m. The second name is the first one again with probability p, and else one of the k − 1
others, all equally likely. Documents follow one another in a long stream, and each of the four tokens is predicted from what
stands before it.

Give the loss in nats per token of five readers, each as good as it can be with what it sees, as numbers or as expressions with
`math.log`:

- `"ln V"`: knows that there are 1 + k + m tokens
- `"unigram"`: knows how frequent each token is
- `"bigram"`: sees the token before
- `"position"`: sees the token before, and which of the four places is to be predicted
- `"floor"`: sees everything before, and knows the rules

What lies between the last two is attention's work.

<details><summary>Hint 1</summary>

The loss per token is the mean of four costs: one for each place.
</details>
<details><summary>Hint 2</summary>

After a name, a bigram does not know whether a verb or `<|endoftext|>` follows. How often is it each?
</details>
<details><summary>Hint 3</summary>

At the second name the floor pays −p ln p for what is repeated. What does each of the k − 1 others have as its probability?
</details>
<details><summary>Hint 4</summary>

A simulation decides: draw 100,000 documents, count, and compare.
</details>
"""

# %%
language = variant("07-4", STUDENT, k=[4, 5, 8, 10, 16, 25], m=[2, 3, 6, 12, 20], p=[0.6, 0.7, 0.8, 0.9])
language

# %%
#| solution 07-4
### BEGIN SOLUTION
k, m, p = language["k"], language["m"], language["p"]
ln = math.log
second = -p * ln(p) - (1 - p) * ln((1 - p) / (k - 1))  # nats of the second name for one who knows the first
nats = {
    "ln V": ln(1 + k + m),
    "unigram": (ln(4) + ln(4 * m) + 2 * ln(2 * k)) / 4,  # a name is every second token
    "bigram": (ln(2) + ln(2 * m) + 2 * ln(k)) / 4,
    "position": (ln(m) + 2 * ln(k)) / 4,
    "floor": (ln(k) + ln(m) + second) / 4,
}
### INSTEAD
# nats = {"ln V": None, "unigram": None, "bigram": None, "position": None, "floor": None}
### END SOLUTION

# %%
#| check 07-4
assert None not in nats.values(), f"still to do: {[name for name, value in nats.items() if value is None]}"
values = list(nats.values())
assert values == sorted(values, reverse=True), (
    "who knows more cannot have a higher loss: from ln V down to the floor"
)
assert nats["bigram"] - nats["position"] < 0.3467, (
    "knowing the place saves a bigram one yes or no at two places of four: ln 2 / 2 in all"
)
assert nats["floor"] > (math.log(language["k"]) + math.log(language["m"])) / 4, (
    "the floor pays for the first name, the verb and for the second name's surprise"
)

# %% [markdown]
r"""
#| manual 07-5
## 07-5 · Three curves

*Explain · difficulty 2/5 · importance 5/5 · 5 minutes*

A model with 1,024 tokens is trained on one batch to see whether it can learn it by heart. One run's loss is 6.93 in every step, to
the last digit. Another's begins at 6.93 and is 0.00 after a few steps, though the batch is large and the rate small. A third's
begins at 31. Name one likely cause for each, and how you would confirm it.
"""
