# %% [markdown]
r"""
# Exercises 19 · Fine-tuning

Chapter 19: adapters that change nothing at first, what a low rank can say, and a loss on the answer alone. No task needs another one's
solution. `course check 19` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import math

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from course.variants import variant
from nanogpt.model import GPTConfig, num_params

# %% [markdown]
r"""
## 19-1 · Three bugs in an adapter

*Repair · difficulty 2/5 · importance 4/5 · 15 minutes*

`Adapter(linear, rank, alpha)` is meant to be x → Wx + b + α/rank · B(Ax), with `A` (rank, in) and `B` (out, rank) as trained parameters and
the linear layer frozen. This one trains, its loss falls, and three things are wrong with it: the model is another one before the first
step, the base's weights move with the adapter, and twice the rank makes twice the change, so that each rank needs a rate of its own. Mend
all three. At the first step B is zero and A is random.

<details><summary>Hint 1</summary>

Compare `Adapter(linear, 2, 8.0)(x)` with `linear(x)`. Which of A and B may be zero? What happens to the gradients if both are?
</details>

<details><summary>Hint 2</summary>

Which of `adapter.named_parameters()` ask for a gradient?
</details>
"""


# %%
#| solution 19-1
class Adapter(nn.Module):
    """x -> W x + b + alpha / rank · B (A x), of which only A and B are trained."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        super().__init__()
        ### BEGIN SOLUTION
        self.linear, self.scale = linear.requires_grad_(False), alpha / rank
        self.A = nn.Parameter(torch.randn(rank, linear.in_features) / math.sqrt(linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))
        ### INSTEAD
        # self.linear, self.scale = linear, alpha
        # self.A = nn.Parameter(torch.randn(rank, linear.in_features) / math.sqrt(linear.in_features))
        # self.B = nn.Parameter(torch.randn(linear.out_features, rank) / math.sqrt(rank))
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:  # (..., in) -> (..., out)
        return self.linear(x) + self.scale * (x @ self.A.T @ self.B.T)


# %%
#| check 19-1
linear, x = nn.Linear(6, 4), torch.randn(3, 6)
adapter = Adapter(linear, rank=2, alpha=8.0)
assert torch.equal(adapter(x), linear(x)), (
    "before the first step the adapter adds something: the pretrained model is lost at once"
)
trained = sorted(name for name, p in adapter.named_parameters() if p.requires_grad)
assert trained == ["A", "B"], f"trained are {trained}, and only A and B should be"
adapter(x).sum().backward()
assert adapter.B.grad.any(), "no gradient reaches B: A x is zero, so A must not begin at zero"
with torch.no_grad():
    adapter.A.fill_(1.0)
    adapter.B.fill_(1.0)
change = (adapter(torch.ones(6)) - linear(torch.ones(6)))[0].item()
assert abs(change - 48) < 1e-3, (
    f"A and B all ones add 8/2 · 2 · 6 = 48, and not {change:g}: is it divided by the rank?"
)

# %% [markdown]
r"""
## 19-2 · The best adapter of rank r

*Build · difficulty 4/5 · importance 3/5 · 25 minutes*

A full fine-tuning has moved W by `delta`, (out, in). How much of that could an adapter of rank r have said? Write `best_adapter(delta,
rank, alpha)`, which returns A (rank, in) and B (out, rank) so that α/rank · BA is the nearest matrix to `delta` of that rank, in the sum of
squares. What is left over says whether a low rank is enough, before anything is trained.

<details><summary>Hint 1</summary>

`torch.linalg.svd(delta, full_matrices=False)` gives U, S, Vh with delta = U · diag(S) · Vh, the largest S first.
</details>

<details><summary>Hint 2</summary>

The nearest matrix of rank r keeps the r largest (Eckart and Young 1936). S must stand in the product once: in A, in B, or as a root in both.
</details>

<details><summary>Hint 3</summary>

Your B·A is multiplied by α/rank when it is used. What must it be divided by now?
</details>
"""


# %%
#| solution 19-2
def best_adapter(delta: Tensor, rank: int, alpha: float) -> tuple[Tensor, Tensor]:
    """A (rank, in) and B (out, rank) for which alpha / rank · B A is nearest to delta, (out, in)."""
    ### BEGIN SOLUTION
    U, S, Vh = torch.linalg.svd(delta, full_matrices=False)
    return Vh[:rank], U[:, :rank] * S[:rank] * (rank / alpha)
    ### END SOLUTION


# %%
#| check 19-2
delta = torch.diag(torch.tensor([3.0, 2.0, 1.0]))[:, [2, 1, 0]]
A, B = best_adapter(delta, 2, 8.0)
assert A.shape == (2, 3) and B.shape == (3, 2), (
    f"A is {tuple(A.shape)} and B {tuple(B.shape)}, not (2, 3) and (3, 2)"
)
left = (delta - 8.0 / 2 * B @ A).square().sum().item()
assert left < 1.001, (
    f"of 14 = 9 + 4 + 1 the two largest directions leave 1, and yours {left:.3f}: which are kept, and is α/rank taken out?"
)
A, B = best_adapter(torch.randn(5, 3), 3, 1.0)
assert A.shape == (3, 3) and B.shape == (5, 3), "delta is (out, in), A (rank, in), B (out, rank)"

# %% [markdown]
r"""
## 19-3 · The answer, and its end

*Repair · difficulty 3/5 · importance 5/5 · 20 minutes*

A model learns to answer from pairs of a prompt and an answer. The loss counts the answer's tokens and the `<|endoftext|>` behind it, and
nothing else: not the prompt, which the user writes, and not the padding. Rows are `prompt + answer + [eot]`, padded with `eot` to the
longest. `batch_of(pairs, eot)` returns `x` and `y`, both int64 (rows, longest − 1), where y[b, t] is the token after x[b, t], or −100 where it does
not count.

The code below is what one finds in many scripts, and it has two bugs. A model trained with it talks on and on. And it never
learns how an answer begins.

    pairs = [([5, 6], [7])], eot = 0   ->   x = [[5, 6, 7]], y = [[-100, 7, 0]]

<details><summary>Hint 1</summary>

Print x and y for the example. Which target is the first to count? At which place of y does it stand?
</details>

<details><summary>Hint 2</summary>

The last token of a row and the padding behind it are the same number. Only the lengths tell one from the other.
</details>

<details><summary>Hint 3</summary>

A prompt may hold `eot` as well: GPT-2's texts begin with one.
</details>
"""


# %%
#| solution 19-3
def batch_of(pairs: list[tuple[list[int], list[int]]], eot: int) -> tuple[Tensor, Tensor]:
    """x and y of (prompt, answer) pairs: y is -100 but for the answer's tokens and the eot behind them."""
    rows = [torch.tensor([*prompt, *answer, eot]) for prompt, answer in pairs]
    ids = pad_sequence(rows, batch_first=True, padding_value=eot)
    x, y = ids[:, :-1], ids[:, 1:].clone()
    ### BEGIN SOLUTION
    for i, (prompt, answer) in enumerate(pairs):
        y[i, : len(prompt) - 1] = -100
        y[i, len(prompt) + len(answer) :] = -100
    ### INSTEAD
    # y[y == eot] = -100
    # for i, (prompt, _) in enumerate(pairs):
    #     y[i, : len(prompt)] = -100
    ### END SOLUTION
    return x, y


# %%
#| check 19-3
x, y = batch_of([([5, 6], [7, 8]), ([5, 6, 9], [7])], eot=0)
assert x.tolist() == [[5, 6, 7, 8], [5, 6, 9, 7]], "x is each row without its last token"
assert y[0, 1] == 7, (
    f"behind the prompt's last token comes 7, the answer's first; y has {y[0, 1].item()} there, so it is never learned"
)
assert y[0, 0] == -100, "6 belongs to the prompt: nobody asks the model to write it"
assert y[0, 3] == 0, "the answer's eot does not count: a model that never learns to stop"
x, y = batch_of([([5, 6], [7]), ([5], [7, 8, 9, 7])], eot=0)
assert y[0].tolist() == [-100, 7, 0, -100, -100], (
    f"row 0 ends with padding, which does not count; y is {y[0].tolist()}"
)

# %% [markdown]
r"""
## 19-4 · A check for adapters

*Check · difficulty 3/5 · importance 4/5 · 20 minutes*

`adapted(x, W, A, B, alpha)` is a layer with its adapter: x (..., in), W (out, in), A (rank, in), B (out, rank), and it returns (..., out), that is
Wx + α/rank · B(Ax) for each x. A mistake in it is quiet: training goes on around it, and the day on which the adapter is merged into W brings
another model.

Write `check_adapted(adapted)`, which raises an `AssertionError` for a wrong one and accepts the right ones, in float32 and to rounding. One computes
B(Ax), another adds BA to W first.

<details><summary>Hint 1</summary>

A wrong axis is not seen where two sizes are equal. Which sizes are there? Which values of alpha hide a wrong scale?
</details>

<details><summary>Hint 2</summary>

Layers in a model see x as (B, T, in), and sometimes as (in,).
</details>
"""


# %%
#| solution 19-4
def check_adapted(adapted) -> None:
    """Raises AssertionError unless adapted(x, W, A, B, alpha) is W x + alpha / rank · B (A x)."""
    ### BEGIN SOLUTION
    g = torch.Generator().manual_seed(0)
    for shape in ((5,), (2, 5), (4, 3, 5)):
        for rank, out in ((2, 7), (1, 5), (5, 3)):
            for alpha in (3.0, 8.0):
                x, W = torch.randn(shape, generator=g), torch.randn(out, 5, generator=g)
                A, B = torch.randn(rank, 5, generator=g), torch.randn(out, rank, generator=g)
                due = x @ (W + alpha / rank * B @ A).T
                got = adapted(x, W, A, B, alpha)
                assert got.shape == due.shape, f"{tuple(got.shape)}, not {tuple(due.shape)}"
                assert torch.allclose(got, due, atol=1e-3), (
                    f"rank {rank}, alpha {alpha}: not the merged layer"
                )
    ### END SOLUTION


# %%
#| check 19-4
def refused(adapted) -> bool:
    try:
        check_adapted(adapted)
    except AssertionError:
        return True
    return False


assert not refused(lambda x, W, A, B, alpha: x @ W.T + alpha / A.size(0) * (x @ A.T @ B.T)), (
    "this one is right, and your check refuses it"
)
assert not refused(lambda x, W, A, B, alpha: x @ (W + alpha / A.size(0) * B @ A).T), (
    "this one merges first, and is right to rounding; your check refuses it"
)
assert refused(lambda x, W, A, B, alpha: x @ W.T), "a layer without its adapter is accepted"
assert refused(lambda x, W, A, B, alpha: x @ W.T + alpha * (x @ A.T @ B.T)), (
    "a scale that is not divided by the rank is accepted"
)

# %% [markdown]
r"""
## 19-5 · What an adapter saves

*Derive · difficulty 3/5 · importance 3/5 · 20 minutes*

Adapters of one rank stand beside all four matrices of each block of GPT-2: `c_attn` (C → 3C), attention's `c_proj` (C → C), `c_fc` (C → 4C) and the MLP's `c_proj`
(4C → C). Write `adapter_parameters(n_layer, n_embd, rank)`, how many numbers they have in all, and `training_bytes(trained, frozen)`: the bytes
of weights, gradients and AdamW's two means in float32, for so many trained and so many frozen numbers. Activations are left out.

`answers`, for the shape in `mine`, which is yours alone: the adapters' parameters, and how many times as many bytes full fine-tuning takes as the
adapters do (with the base frozen). `num_params(GPTConfig(n_layer=..., n_head=..., n_embd=...))` counts the base.

<details><summary>Hint 1</summary>

A matrix from `in` to `out` gets A (rank, in) and B (out, rank). How many numbers are that, and what does it not depend on?
</details>

<details><summary>Hint 2</summary>

A frozen weight has no gradient and no means. It still has to be there.
</details>
"""

# %%
mine = variant("19-5", STUDENT, n_layer=[12, 24, 36], n_embd=[768, 1024, 1280], rank=[4, 8, 16, 32])


# %%
#| solution 19-5
def adapter_parameters(n_layer: int, n_embd: int, rank: int) -> int:
    """The numbers in adapters beside all four matrices of each block."""
    ### BEGIN SOLUTION
    C = n_embd
    sizes = [(C, 3 * C), (C, C), (C, 4 * C), (4 * C, C)]
    return n_layer * sum(rank * (into + out) for into, out in sizes)
    ### END SOLUTION


def training_bytes(trained: int, frozen: int) -> int:
    """Bytes of weights, gradients and AdamW's means, all in float32."""
    ### BEGIN SOLUTION
    return 16 * trained + 4 * frozen
    ### END SOLUTION


base = num_params(GPTConfig(n_layer=mine["n_layer"], n_head=16, n_embd=mine["n_embd"]))
answers = [
    ### BEGIN SOLUTION
    adapter_parameters(**mine),
    training_bytes(base, 0) / training_bytes(adapter_parameters(**mine), base),
    ### INSTEAD
    # 0,  # the adapters' parameters
    # 0.0,  # bytes of full fine-tuning over bytes with adapters
    ### END SOLUTION
]

# %%
#| check 19-5
assert adapter_parameters(1, 10, 1) % 10 == 0 and adapter_parameters(2, 10, 3) == 6 * adapter_parameters(
    1, 10, 1
), "the number grows with layers, rank and width, each in proportion"
assert adapter_parameters(1, 10, 1) < 1000, (
    "a matrix C by C alone has 100 numbers: adapters have no product of in and out"
)
assert training_bytes(10, 0) == 160, "weight, gradient and two means: four numbers of four bytes"
assert 0 < training_bytes(0, 10) < 160, "a frozen weight takes something, and less than a trained one"
assert len(answers) == 2 and 1 < answers[1] < 4.0, (
    "the second answer lies between 1 and 4: the base stays, whatever is frozen"
)

# %% [markdown]
r"""
#| manual 19-6
## 19-6 · The same loss on new text

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

Two runs fine-tune one model on medical letters and reach the same validation loss on letters: one moved all weights at a high rate, the other adapters of rank 8. The hospital
also uses the model for plain conversation. In five sentences: what would you measure before you choose, on which text; what do you expect and why; and name
one way to lose less that costs no new parameter.
"""
