# %% [markdown]
r"""
# Exercises 05 · GPT-2

Work from top to bottom, or begin where you like: no task needs another one's solution. `course check 05` runs the
visible checks. Grading runs more of them, with inputs of your own.
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
from nanogpt.model import GPT, GPTConfig

# %% [markdown]
r"""
## 05-1 · Nearly LayerNorm

*Repair · difficulty 2/5 · importance 4/5 · 15 minutes*

Weights that were trained with one LayerNorm give other logits with another. This one differs from GPT-2's in two
places. At GPT-2's width, with activations of deviation one, the results differ by less than a thousandth of their
size, and no test with a tolerance of 1e-2 sees it. Repair it, without calling PyTorch's own.

<details><summary>Hint 1</summary>

Compare with `F.layer_norm` on inputs of deviation 1, then of deviation 0.001. Where do the two part?
</details>

<details><summary>Hint 2</summary>

ε keeps the root's argument from zero. So where must it stand? What is √(σ² + ε), and what σ + ε, for σ = 0?
</details>

<details><summary>Hint 3</summary>

`std` divides by n − 1 unless told otherwise: an estimate of a population's deviation from a sample. LayerNorm
estimates nothing; it makes the mean square of *these* C numbers one.
</details>
"""


# %%
small = 0.001 * torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
small_normed = F.layer_norm(small, (8,))  # what PyTorch makes of small activations
small_normed[0, 0]


# %%
#| solution 05-1
#| forbids aten::native_layer_norm
#| forbids aten::native_group_norm
#| forbids aten::native_batch_norm
def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Each position's C numbers with mean 0 and variance 1, then times gain plus bias. x: (..., C)."""
    ### BEGIN SOLUTION
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + eps).sqrt() * gain + bias
    ### INSTEAD
    # centred = x - x.mean(-1, keepdim=True)
    # return centred / (x.std(-1, keepdim=True) + eps) * gain + bias
    ### END SOLUTION


# %%
#| check 05-1
x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
one, zero = torch.ones(8), torch.zeros(8)
y = layer_norm(x, one, zero)
assert torch.allclose(y.mean(-1), torch.zeros(2, 3), atol=1e-5), (
    "a position's mean is not zero: the mean is over the last axis alone"
)
assert torch.allclose(y.square().mean(-1), torch.ones(2, 3), atol=1e-3), (
    f"a position's mean square is {y.square().mean(-1)[0, 0]:.4f}, not 1: is the variance divided by C − 1?"
)
y = layer_norm(small, one, zero)
assert torch.allclose(y, small_normed, atol=1e-5), (
    "for small activations the result is another: ε belongs to the variance, under the root"
)
assert torch.allclose(layer_norm(x, one, 3 + zero).mean(-1), torch.tensor(3.0), atol=1e-4), (
    "the bias is added last"
)

# %% [markdown]
r"""
## 05-2 · Count a model that nobody has built

*Derive · difficulty 3/5 · importance 4/5 · 30 minutes*

Later models let several query heads share one head of keys and values (*grouped-query attention*). Take the chapter's
GPT, with three changes:

- its `n_head` query heads are as before, but there are only `n_kv` heads of keys and values; a head is 64 wide, and C
  is 64 · `n_head`;
- there are no biases, neither in linear layers nor in LayerNorms, which keep their gain;
- `lm_head` has a matrix of its own, not tied to `wte`.

For the sizes in `mine`, where T is both the context and `block_size`, give the number of `parameters`, and the
`flops` per token of a training step, forward and backward, counted as the chapter counts: matrix products only,
attention's T×T in full.

<details><summary>Hint 1</summary>

First draw one block's matrices with their shapes. Which become narrower by sharing?
</details>

<details><summary>Hint 2</summary>

Each query head still has its own scores and its own sum of values, whomever it borrows the keys from.
</details>

<details><summary>Hint 3</summary>

Looking a row up in a table costs no product. The head does, tied or not. `num_params` and `flops_by_part` of the
plain model tell whether your formula is right where nothing is shared.
</details>
"""

# %%
mine = variant(
    "05-2",
    STUDENT,
    n_layer=[10, 16, 20, 28],
    n_head=[12, 16, 24],
    n_kv=[2, 4],
    vocab=[32_000, 50_304, 100_352],
    T=[512, 2048, 8192],
)
mine

# %%
#| solution 05-2
L, n_head, n_kv, V, T = mine["n_layer"], mine["n_head"], mine["n_kv"], mine["vocab"], mine["T"]
parameters = flops = 0
### BEGIN SOLUTION
C, shared = 64 * n_head, 64 * n_kv
matrices = 2 * C * C + 2 * C * shared + 8 * C * C  # in a block: queries and c_proj, keys and values, MLP
parameters = 2 * V * C + T * C + L * matrices + (2 * L + 1) * C
flops = 3 * (2 * V * C + L * (2 * matrices + 4 * T * C))
### END SOLUTION

# %%
#| check 05-2
width = 64 * mine["n_head"]
tables = 2 * mine["vocab"] * width + mine["T"] * width  # wte, lm_head, wpe
rest = parameters - tables - width  # without the last LayerNorm's gain
assert rest > 0, (
    f"{parameters:,} parameters are fewer than the tables hold: wte and lm_head are two, and positions have one"
)
assert rest % mine["n_layer"] == 0, (
    f"behind tables and last LayerNorm {rest:,} parameters are left, and {mine['n_layer']} equal blocks cannot share them"
)
assert rest // mine["n_layer"] < 12 * width**2 + 2 * width, (
    "a block has as many parameters as with keys and values for every head"
)
assert flops % 6 == 0, (
    f"{flops:,} is no multiple of 6: 2 for each multiply and add, 3 for forward and backward"
)
assert flops > 6 * (rest - mine["n_layer"] * 2 * width), (
    f"{flops:,} FLOPs are too few for the blocks' matrices alone: forward and backward?"
)

# %% [markdown]
r"""
## 05-3 · Counted twice

*Repair · difficulty 1/5 · importance 3/5 · 5 minutes*

Someone counts GPT-2 small and finds 163 million parameters, 39 million too many. Mend `count`. A parameter that is
used in several places is one; one that is frozen (`requires_grad=False`) is still one; a buffer, such as a mask or a
running mean, is none.

<details><summary>Hint 1</summary>

How large is `wte`? Which names in `state_dict()` are the same tensor?
</details>

<details><summary>Hint 2</summary>

Modules know their parameters by another way than `state_dict`, and that one leaves out repetitions.
</details>
"""


# %%
#| solution 05-3
def count(model: nn.Module) -> int:
    """Number of parameters, each counted once."""
    ### BEGIN SOLUTION
    return sum(p.numel() for p in model.parameters())
    ### INSTEAD
    # return sum(tensor.numel() for tensor in model.state_dict().values())
    ### END SOLUTION


# %%
#| check 05-3
small = GPT(GPTConfig(block_size=8, vocab_size=10, n_layer=1, n_head=1, n_embd=4))
assert count(small) != 364, "364: the token table was counted twice, as wte and as lm_head"
assert count(small) == 324, f"{count(small)}, not 324"
assert count(nn.BatchNorm1d(5)) == 10, (
    "BatchNorm1d(5) has 5 gains and 5 biases; its running means are buffers, not parameters"
)
assert count(nn.Linear(3, 2).requires_grad_(False)) == 8, "frozen parameters are parameters"

# %% [markdown]
r"""
## 05-4 · A block that adds three times

*Repair · difficulty 3/5 · importance 4/5 · 25 minutes*

A translator's `decoder` below looks at the sentence to be translated between attention and MLP: each block has a
self-attention, a cross-attention and an MLP, and adds each one's `c_proj` to the stream. Someone took GPT-2's
initialisation over and did not do what it says: *matrices from N(0, 0.02²); those that write to the stream smaller by
the root of the number of additions; biases zero; gains one*. Mend `init`. It must hold for any number of layers, and
for a decoder whose blocks add more or less often than three times.

<details><summary>Hint 1</summary>

Print name and deviation of every parameter after `init`. Which are not what the rule says?
</details>

<details><summary>Hint 2</summary>

A LayerNorm's gain is called `weight`, too. What tells it from a matrix?
</details>

<details><summary>Hint 3</summary>

How often is something added to the stream? Count the matrices that do it, in the model.
</details>
"""


# %%
def decoder(n_layer: int, C: int, V: int = 100, parts=("attn", "cross", "mlp")) -> nn.ModuleDict:
    """The modules of a decoder by name, tied; only their parameters matter here."""
    sizes = {
        "attn": {"c_attn": (C, 3 * C), "c_proj": (C, C)},
        "cross": {"c_q": (C, C), "c_kv": (C, 2 * C), "c_proj": (C, C)},
        "mlp": {"c_fc": (C, 4 * C), "c_proj": (4 * C, C)},
    }
    blocks = nn.ModuleList()
    for _ in range(n_layer):
        block = {f"ln_{part}": nn.LayerNorm(C) for part in parts}
        block |= {
            part: nn.ModuleDict({name: nn.Linear(*size) for name, size in sizes[part].items()})
            for part in parts
        }
        blocks.append(nn.ModuleDict(block))
    model = nn.ModuleDict(
        {
            "wte": nn.Embedding(V, C),
            "h": blocks,
            "ln_f": nn.LayerNorm(C),
            "lm_head": nn.Linear(C, V, bias=False),
        }
    )
    model["lm_head"].weight = model["wte"].weight
    return model


# %%
#| solution 05-4
@torch.no_grad()
def init(model: nn.Module) -> None:
    """GPT-2's initialisation, in place."""
    ### BEGIN SOLUTION
    additions = sum(name.endswith("c_proj.weight") for name, _ in model.named_parameters())
    for name, p in model.named_parameters():
        if p.dim() == 2:
            p.normal_(0.0, 0.02 / math.sqrt(additions) if name.endswith("c_proj.weight") else 0.02)
        elif name.endswith("weight"):
            p.fill_(1.0)
        else:
            p.zero_()
    ### INSTEAD
    # for name, p in model.named_parameters():
    #     if name.endswith("weight"):
    #         p.normal_(0.0, 0.02 / math.sqrt(2 * len(model["h"])) if "c_proj" in name else 0.02)
    #     else:
    #         p.zero_()
    ### END SOLUTION


# %%
#| check 05-4
torch.manual_seed(0)
model = decoder(3, 128)
init(model)
deviation = {name: p.std().item() for name, p in model.named_parameters()}
assert all(
    (p == 1).all() for name, p in model.named_parameters() if "ln_" in name and name.endswith("weight")
), "a LayerNorm's gain is not one: with a gain of 0.02 the layer behind it hears almost nothing"
assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith("bias")), (
    "a bias is not zero"
)
found = deviation["h.0.attn.c_proj.weight"]
assert abs(found / (0.02 / 3) - 1) < 0.05, (
    f"c_proj has the deviation {found:.5f}, not 0.02/√9: three blocks add three times each"
)
found = deviation["h.2.cross.c_kv.weight"]
assert abs(found / 0.02 - 1) < 0.05, (
    f"c_kv has the deviation {found:.5f}, not 0.02: it reads the stream and does not write to it"
)

# %% [markdown]
r"""
## 05-5 · A check for an untrained model

*Check · difficulty 4/5 · importance 5/5 · 45 minutes*

Most bugs of a model can be seen before its first step of training. You write the check. `check_untrained(model)` gets
a function from ids, int64 (B, T) with values 0 … 63 and T up to 32, to logits, (B, T, 64), and raises an
`AssertionError` if one of these laws is broken:

1. On random ids with random targets the mean loss is within 0.3 of ln 64.
2. The same ids give the same logits, whenever they are asked for.
3. A row's logits do not depend on the other rows of the batch.
4. The logits at t depend on ids 0 … t alone: not on those behind, nor on how many there are.
5. They do depend on what stood before: change id t − 1 to any other, or exchange different ids t − 1 and t − 2, and
   the logits at t change by more than 1e-5 somewhere.

Models compute in float32, so "the same" means: up to 1e-5 for numbers of this size. They are of several architectures
and run elsewhere, without gradients: keep to some hundreds of calls. You are graded by which wrong ones you refuse;
refusing a right one costs all.

<details><summary>Hint 1</summary>

One call on (16, 32) ids gives the logits with which all others are compared. For law 4, cut the ids off behind t: the
logits that are left must be the same.
</details>

<details><summary>Hint 2</summary>

How many targets does law 1 need? The mean of n losses scatters by their deviation over √n.
</details>

<details><summary>Hint 3</summary>

A law that holds at t = 3 may be broken at t = 20, and in row 0 another one than in row 5. Go through all t, and all
rows.
</details>

<details><summary>Hint 4</summary>

"Any other" are 63 ids. For one place, all of them fit into one batch.
</details>
"""


# %%
#| solution 05-5
def check_untrained(model) -> None:
    """AssertionError if a model, ids (B, T) -> logits (B, T, 64), breaks one of the five laws."""
    ### BEGIN SOLUTION
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(64, (8, 33), generator=g)
    x, y = ids[:, :-1], ids[:, 1:]
    logits = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
    assert abs(loss - math.log(64)) < 0.3, f"the first loss is {loss:.2f}"
    for b in range(8):
        assert torch.allclose(model(x[b : b + 1]), logits[b : b + 1], atol=1e-5), (
            f"row {b} alone gives other logits"
        )
    for t in range(2, 32):
        assert torch.allclose(model(x[:, :t]), logits[:, :t], atol=1e-5), (
            f"without the ids from {t} on other logits"
        )
    exchanged = x[:1].repeat(32, 1)  # row t: ids t - 1 and t - 2 have changed places
    for t in range(2, 32):
        exchanged[t, [t - 2, t - 1]] = x[0, [t - 1, t - 2]]
    moved = (model(exchanged) - logits[:1]).abs().amax(-1)
    for t in range(2, 32):
        assert moved[t, t] > 1e-5 or x[0, t - 1] == x[0, t - 2], (
            f"position {t} does not know the order before it"
        )
    for t in (1, 17, 31):
        every = x[:1, : t + 1].repeat(64, 1)
        every[:, t - 1] = torch.arange(64)
        at_t = model(every)[:, t]
        for i in range(64):
            apart = (at_t - at_t[i]).abs().amax(-1) > 1e-5
            assert apart.sum() == 63, f"position {t} does not tell id {i} from all others before it"
    assert torch.allclose(model(x), logits, atol=1e-5), "the same ids give other logits"
    ### END SOLUTION


# %%
#| check 05-5
def attends(causal: bool, std: float = 0.02):
    """One layer of attention between tied embeddings, without MLP."""
    g = torch.Generator().manual_seed(1)
    wte, wpe = std * torch.randn(64, 32, generator=g), 0.02 * torch.randn(32, 32, generator=g)
    c_attn, c_proj = 0.1 * torch.randn(32, 96, generator=g), 0.05 * torch.randn(32, 32, generator=g)

    def model(ids):
        x = wte[ids] + wpe[: ids.size(1)]
        q, k, v = (F.layer_norm(x, (32,)) @ c_attn).chunk(3, dim=-1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=causal) @ c_proj
        return F.layer_norm(x, (32,)) @ wte.T

    return model


def says(model) -> str:
    try:
        check_untrained(model)
    except AssertionError as error:
        return f"refused: {error}"
    return "accepted"


assert says(attends(causal=True)) == "accepted", f"a right model is {says(attends(causal=True))}"
assert says(attends(causal=False)) != "accepted", "your check accepts a model that sees the future (law 4)"
assert says(attends(causal=True, std=3.0)) != "accepted", (
    "your check accepts tied embeddings of deviation 3 (law 1)"
)

# %% [markdown]
r"""
#| manual 05-6
## 05-6 · A first loss that is too good

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

The first loss of an untrained GPT-2 small on random ids is 10.96 in the chapter's code. A fellow student, with the
same model, the same seed and ids drawn in the same way, has 9.95, and a loss that soon is almost zero. The model is
right. What is wrong, and why does just this mistake lower the loss of a model that has learned nothing? Three to six
sentences, with a way to make sure.
"""
