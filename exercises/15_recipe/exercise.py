# %% [markdown]
r"""
# Exercises 15 · Recipe

No task needs another one's solution. `course check 15` runs the visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

import torch
from torch import Tensor, nn

from course.variants import variant
from nanogpt.model import GPT, GPTConfig

# %% [markdown]
r"""
## 15-1 · The batch that was cut

*Repair · difficulty 3/5 · importance 5/5 · 25 minutes*

Gradients of micro-batches are added up before one update. The law: however a batch is cut, gradient and loss are those of the batch as a whole, the mean over
all targets that count (a target of −100 does not). `add_up` breaks it for rows of unequal length, as large libraries did until October 2024, and
has two smaller faults: it keeps the gradient of the step before, and one micro-batch without any target that counts makes the loss `nan`. Repair all three.

`model(x, y)` returns (logits, mean loss of this micro-batch). `add_up(model, micro_batches)` leaves the gradient in the model, and returns the mean loss of all, a tensor
without gradient. `nanogpt.training.accumulate_gradients` does this; write your own. Let each micro-batch pass through the model once.

<details><summary>Hint 1</summary>

Two micro-batches, 30 targets and 10. What weight does each target get in a mean of two means? What should it get?
</details>

<details><summary>Hint 2</summary>

All micro-batches are there from the start, so all targets can be counted before the first one is computed.
</details>

<details><summary>Hint 3</summary>

The mean of no numbers is 0/0, and 0 · nan is nan. A micro-batch without a target need not be computed at all.
</details>
"""


# %%
#| solution 15-1
#| forbids nanogpt.training.accumulate_gradients
#| forbids nanogpt.training.train_step
def add_up(model: nn.Module, micro_batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Leaves the gradient of the mean loss over all targets of [(x, y), …] in the model; returns that mean."""
    ### BEGIN SOLUTION
    counts = [int((y != -100).sum()) for _, y in micro_batches]
    loss = torch.zeros(())
    model.zero_grad()
    for (x, y), count in zip(micro_batches, counts):
        if count:
            part = model(x, y)[1] * count / sum(counts)
            part.backward()
            loss += part.detach()
    return loss
    ### INSTEAD
    # loss = torch.zeros(())
    # for x, y in micro_batches:
    #     part = model(x, y)[1] / len(micro_batches)
    #     part.backward()
    #     loss += part.detach()
    # return loss
    ### END SOLUTION


# %%
#| check 15-1
config = GPTConfig(block_size=8, vocab_size=16, n_layer=1, n_head=2, n_embd=16)
model = GPT(config, torch.Generator().manual_seed(0))
x, y = torch.randint(16, (2, 4, 8), generator=torch.Generator().manual_seed(1))
y[1:, 2:] = -100  # row 0 has eight targets, the others two each


def gradient() -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


model(x, y)[1].backward()
whole, mean_loss = gradient(), model(x, y)[1].detach()
loss = add_up(model, [(x, y)])
assert torch.allclose(gradient(), whole, atol=1e-5), (
    "one micro-batch, the whole batch: does the old gradient stay in?"
)
for rows in (2, 1):
    loss = add_up(model, list(zip(x.split(rows), y.split(rows))))
    ratio = (gradient().norm() / whole.norm()).item()
    assert torch.allclose(gradient(), whole, atol=1e-5), (
        f"cut into pieces of {rows}, the gradient is another one, {ratio:.2f} times as long: a mean of means?"
    )
    assert torch.allclose(loss, mean_loss, atol=1e-5), (
        f"the loss is {loss:.4f}, that of the batch {mean_loss:.4f}"
    )
nothing = (x[:1], torch.full_like(y[:1], -100))
assert add_up(model, [nothing, (x, y)]).isfinite(), "a micro-batch without a target makes the loss nan"

# %% [markdown]
r"""
## 15-2 · One vector, not many

*Repair · difficulty 2/5 · importance 4/5 · 15 minutes*

`clipped` bounds a gradient's length, and turns the gradient: it treats each tensor by itself. All parameters together are one
vector. Repair it: `clipped(grads, c)` returns the shortened gradients, in a list, and the length of the whole *before*, which is
what a log should show. A gradient that is no longer than c comes back as it is; one of zeros, too. The tensors may have any shapes.

<details><summary>Hint 1</summary>

The length of a vector that consists of parts is the root of the sum of their squared lengths.
</details>

<details><summary>Hint 2</summary>

One factor for all, never above 1. What is it for a gradient of length 0?
</details>
"""


# %%
#| solution 15-2
def clipped(grads: list[Tensor], c: float) -> tuple[list[Tensor], Tensor]:
    """The gradients, together no longer than c > 0; and their length before, a tensor of no dimension."""
    ### BEGIN SOLUTION
    norm = torch.stack([g.norm() for g in grads]).norm()
    factor = (c / norm).clamp(max=1.0)
    return [g * factor for g in grads], norm
    ### INSTEAD
    # short = [g * min(1.0, c / g.norm()) for g in grads]
    # return short, sum(g.norm() for g in short)
    ### END SOLUTION


# %%
#| check 15-2
grads = [torch.tensor([[3.0, 0.0]]), torch.tensor([4.0])]  # together a vector of length 5
short, norm = clipped(grads, 1.0)
assert torch.allclose(norm, torch.tensor(5.0)), f"the length before is 5, not {norm:.3g}: √(3² + 4²)"
assert torch.allclose(short[0] / short[1], grads[0] / grads[1]), (
    "the gradient was turned: one factor for all tensors"
)
assert torch.allclose(short[1], torch.tensor([0.8])), "together they must have a length of 1: 0.6 and 0.8"
short, norm = clipped(grads, 10.0)
assert torch.equal(short[1], grads[1]), "a gradient of length 5 is no longer than 10 and stays as it is"
assert torch.equal(clipped([torch.zeros(3)], 1.0)[0][0], torch.zeros(3)), (
    "a gradient of zeros: 0/0 somewhere?"
)

# %% [markdown]
r"""
## 15-3 · What is pulled to zero

*Repair · difficulty 3/5 · importance 4/5 · 20 minutes*

A recipe that leaves embeddings out: decayed is what has two dimensions or more *and* is no embedding (a parameter of an `nn.Embedding`). All the rest that is
trained is not decayed. `groups` decides by names, and gets three things wrong with GPT-2. Repair it, for any model: each trained parameter in exactly one group, a frozen one
in none, and a matrix that is tied to an embedding *is* the embedding. Of GPT-2 48 tensors and 84,934,656 parameters are then decayed.

Then without building it: `pulled`, how many parameters this recipe decays in the GPT of your numbers in `mine`, whose head is tied and
whose other layers are those of GPT-2.

<details><summary>Hint 1</summary>

Print which names end in "weight". What shape has `ln_1.weight`? And whose memory is `lm_head.weight`?
</details>

<details><summary>Hint 2</summary>

`model.parameters()` gives each tensor once, however many names it has. `model.modules()` gives the layers, whose class can be asked.
</details>

<details><summary>Hint 3</summary>

Collect `id(p)` of all embeddings' parameters. `p in a_list` compares tensors number by number; `id` does not.
</details>

<details><summary>Hint 4</summary>

A block has four matrices. Try your formula on GPT-2, whose number stands above: 12 layers, width 768.
</details>
"""

# %%
mine = variant(
    "15-3", STUDENT, n_layer=[5, 7, 9, 11], n_embd=[192, 320, 448, 640], vocab_size=[8192, 16384, 50304]
)
mine


# %%
#| solution 15-3
#| forbids GPT
def groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two parameter groups for an optimizer, {"params": [...], "weight_decay": ...}: decayed, and not."""
    ### BEGIN SOLUTION
    tables = [layer for layer in model.modules() if isinstance(layer, nn.Embedding)]
    embeddings = {id(p) for table in tables for p in table.parameters()}
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p.dim() >= 2 and id(p) not in embeddings for p in trained]
    return [
        {"params": [p for p, yes in zip(trained, decayed) if yes], "weight_decay": weight_decay},
        {"params": [p for p, yes in zip(trained, decayed) if not yes], "weight_decay": 0.0},
    ]
    ### INSTEAD
    # named = list(model.named_parameters(remove_duplicate=False))
    # decayed = [p for name, p in named if name.endswith("weight") and "wte" not in name and "wpe" not in name]
    # rest = [p for name, p in named if name.endswith("bias") or "wte" in name or "wpe" in name]
    # return [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    ### END SOLUTION


### BEGIN SOLUTION
pulled = mine["n_layer"] * 12 * mine["n_embd"] ** 2
### INSTEAD
# pulled = 0
### END SOLUTION


# %%
#| check 15-3
with torch.device("meta"):  # shapes are enough
    gpt2 = GPT(GPTConfig())
decayed, rest = groups(gpt2, 0.1)
ids = [id(p) for group in (decayed, rest) for p in group["params"]]
assert len(ids) == len(set(ids)), "a tensor is in two groups, or twice in one: a tied weight has two names"
assert set(ids) == {id(p) for p in gpt2.parameters()}, "some trained parameter is in no group"
assert all(p.dim() >= 2 for p in decayed["params"]), (
    "a LayerNorm's gain is decayed: its name, too, ends in weight"
)
assert sum(p.numel() for p in decayed["params"]) == 84_934_656, "is the head decayed? It is the embedding"
assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0), (
    "the first group decays, the second does not"
)
gpt2.transformer.wpe.weight.requires_grad_(False)
frozen = [p for group in groups(gpt2, 0.1) for p in group["params"] if not p.requires_grad]
assert not frozen, "a frozen parameter is in a group, where decay would move it"
assert pulled > mine["n_layer"] * mine["n_embd"] ** 2, (
    f"{pulled:,} parameters would not fill one matrix a block"
)

# %% [markdown]
r"""
## 15-4 · AdamW by hand

*Build · difficulty 3/5 · importance 5/5 · 30 minutes*

Write one step of AdamW (Loshchilov and Hutter 2019, algorithm 2; a weight decays by lr · decay a step, as in PyTorch): running means of
the gradient and of its square, both corrected for their start at zero, and weight decay that does not pass through them.

`adamw(p, g, m, v, t, lr, beta1, beta2, eps, decay)` returns the new p, m and v; t counts steps from 1, m and v are zero before the first one. `eps` is added to the root, not under it. It
equals `torch.optim.AdamW`; do without it.

Why it matters: Adam with an L2 term in the gradient is another optimizer. There the pull of the weights is divided by √v like everything else, and weights
with large gradients hardly decay.

<details><summary>Hint 1</summary>

The first step by hand: m = (1 − β₁) g is a tenth of g. Divided by 1 − β₁ᵗ it is g.
</details>

<details><summary>Hint 2</summary>

m and v are returned uncorrected: the correction is made anew in each step, from t.
</details>

<details><summary>Hint 3</summary>

Decay multiplies p by 1 − lr · decay. The update is then subtracted, and does not decay.
</details>
"""


# %%
#| solution 15-4
#| forbids torch.optim.adam.adam
def adamw(
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    t: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Step t = 1, 2, … of AdamW for a weight p with the gradient g; m, v: the running means. Returns p, m, v."""
    ### BEGIN SOLUTION
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
    p = p * (1 - lr * decay)
    return p - lr * m_hat / (v_hat.sqrt() + eps), m, v
    ### END SOLUTION


# %%
#| check 15-4
p, g, m, v = torch.tensor([1.0]), torch.tensor([0.5]), torch.zeros(1), torch.zeros(1)
first = adamw(p, g, m, v, 1, 0.1, 0.9, 0.99, 0.0, 0.0)
assert torch.allclose(first[1], 0.1 * g) and torch.allclose(first[2], 0.01 * g * g), (
    "m and v come back uncorrected"
)
assert torch.allclose(first[0], p - 0.1), (
    f"the first step is lr long, whatever g is; here {(p - first[0]).item():.3g}"
)
still = adamw(p, torch.zeros(1), m, v, 1, 0.1, 0.9, 0.99, 1e-8, 0.5)[0]
assert torch.allclose(still, torch.tensor([0.95])), "without a gradient, a weight shrinks by lr · decay = 5%"
theirs = nn.Parameter(torch.tensor([1.0, -2.0]))
optimizer = torch.optim.AdamW([theirs], lr=0.1, betas=(0.8, 0.95), eps=0.01, weight_decay=0.3)
p, m, v = theirs.detach().clone(), torch.zeros(2), torch.zeros(2)
for t in (1, 2, 3):
    theirs.grad = torch.tensor([1.0, 10.0]) * (2 - t)
    p, m, v = adamw(p, theirs.grad, m, v, t, 0.1, 0.8, 0.95, 0.01, 0.3)
    optimizer.step()
    assert torch.allclose(p, theirs, atol=1e-6), (
        f"step {t}: {p.tolist()}, and torch.optim.AdamW has {theirs.tolist()}"
    )

# %% [markdown]
r"""
## 15-5 · A check for a schedule

*Check · difficulty 3/5 · importance 4/5 · 25 minutes*

Schedules are wrong at their ends. `schedule(step, steps, warmup, minimum)` is the factor of the learning rate in step 0, 1, 2, …, for 0 ≤ warmup < steps:

- warm-up: 1/warmup in step 0, rising linearly to 1 in step warmup − 1;
- then half a cosine: 1 in step warmup, falling to the minimum in step `steps`, the first after the run;
- from there on the minimum, for a run that goes on after its end.

You write the check: `check_schedule(schedule)` raises an `AssertionError` if a schedule is another one. Refusing a right implementation costs all points; else the share of
wrong ones that are refused counts. Right ones agree to 1e-9.

<details><summary>Hint 1</summary>

Where do two schedules differ that are off by one step? Look at the first step, the last of the warm-up, the one after, the last of the run, the one after, and far beyond.
</details>

<details><summary>Hint 2</summary>

warmup = 0, warmup = 1, minimum = 0. And the middle of the fall: what is a cosine there, what a straight line? A quarter of the way tells more than the half.
</details>
"""


# %%
#| solution 15-5
def check_schedule(schedule) -> None:
    """AssertionError if schedule(step, steps, warmup, minimum) is not warm-up, half a cosine, and then its minimum."""
    ### BEGIN SOLUTION
    for steps, warmup, minimum in ((10, 3, 0.1), (100, 0, 0.0), (100, 1, 0.2), (7, 6, 0.5), (50, 10, 0.0)):
        for step in [*range(steps + 3), 2 * steps, 2 * steps - warmup, 10 * steps]:
            done = min(1.0, (step - warmup) / (steps - warmup))
            wanted = minimum + (1 - minimum) * (1 + math.cos(math.pi * done)) / 2
            wanted = (step + 1) / warmup if step < warmup else wanted
            found = schedule(step, steps, warmup, minimum)
            assert abs(found - wanted) < 1e-6, (
                f"step {step} of {steps}, warm-up {warmup}: {found}, not {wanted}"
            )
    ### END SOLUTION


# %%
#| check 15-5
from nanogpt.optim import cosine, wsd


def says(schedule) -> str:
    try:
        check_schedule(schedule)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


right = says(lambda step, steps, warmup, minimum: cosine(step, steps, warmup=warmup, minimum=minimum))
assert right == "accepted", f"the chapter's own schedule is {right}"
other = says(lambda step, steps, warmup, minimum: wsd(step, steps, warmup=warmup, minimum=minimum))
assert other != "accepted", "your check accepts warm-up, stable, decay"
late = says(lambda step, steps, warmup, minimum: cosine(step - 1, steps, warmup=warmup, minimum=minimum))
assert late != "accepted", "your check accepts a schedule that is one step late"

# %% [markdown]
r"""
#| manual 15-6
## 15-6 · Two recipes, one run each

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

A report: "With clipping the validation loss after 108 steps is 2.31, without it 2.35. So clipping is worth 0.04 nats, and we will use it." Two runs, seeds 0 and 1. What is
wrong with the conclusion? Which runs are needed before one may say it, and how must their numbers be compared (chapter 15b)? And which reason for clipping could no such comparison show? Four to six sentences.
"""
