# %% [markdown]
r"""
# Exercises 06 · Pretrained weights

A wrong loader raises nothing. These tasks are about what a shape does not show: a matrix that is used twice, a layout that
fits both ways round, a setting that lives in no array. Work from top to bottom. `course check 06` runs the visible checks.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
from dataclasses import replace

import torch
from torch import Tensor

from course.variants import variant
from nanogpt.model import GPT, GPTConfig, num_params

# %% [markdown]
r"""
## 06-1 · New tokens for an old model

*Repair · difficulty 3/5 · importance 4/5 · 25 minutes*

To fine-tune GPT-2 as an assistant you want more tokens, say `<|user|>`. So the token table gets n more rows. Which rows? The
mean of the old ones is a good choice (Hewitt 2021, *Initializing New Word Embeddings*): a new token's logit is then the
mean of the old logits, and its probability at most 1 / (V + n), so the model goes on as before.

`with_tokens(model, n)` returns a *new* GPT with `vocab_size + n` tokens, and leaves `model` alone, also when the new one is
trained later. The version below runs, and has three faults. A loss would show none of them at once.

For V = 40 and n = 3: `with_tokens(model, 3).config.vocab_size` is 43, and the first 40 logits are those of `model`.

<details><summary>Hint 1</summary>

How many parameters has the new model, and how many more should it have than the old one?
</details>
<details><summary>Hint 2</summary>

`lm_head.weight is transformer.wte.weight` says whether the two are one tensor. Who still holds the old tensor after an
attribute was given a new `nn.Parameter`?
</details>
<details><summary>Hint 3</summary>

`bigger.p.data = p.data` copies no number. `load_state_dict` writes into the memory that a parameter has, so what was tied
stays tied; `named_parameters()` names a tied matrix once.
</details>
"""


# %%
def tiny(seed: int) -> GPT:
    """A small model of 40 tokens whose logits differ as much as a trained one's."""
    shape = GPTConfig(block_size=8, vocab_size=40, n_layer=1, n_head=2, n_embd=16)
    model = GPT(shape, generator=torch.Generator().manual_seed(seed))
    model.transformer.wte.weight.data.mul_(20)
    return model


# %%
#| solution 06-1
def with_tokens(model: GPT, n: int) -> GPT:
    """A GPT like `model` with n more tokens, whose rows are the mean of the old ones; `model` stays as it is."""
    bigger = GPT(replace(model.config, vocab_size=model.config.vocab_size + n))
    ### BEGIN SOLUTION
    weights = {name: p.detach() for name, p in model.named_parameters()}
    old = weights["transformer.wte.weight"]  # (V, C), the head's too
    new = old.mean(0, keepdim=True).expand(n, -1)
    weights["transformer.wte.weight"] = torch.cat([old, new])
    bigger.load_state_dict(weights, strict=False)  # without lm_head.weight, which is wte.weight
    ### INSTEAD
    # for name, p in model.named_parameters():
    #     if "wte" not in name:
    #         bigger.get_parameter(name).data = p.data
    # old = model.transformer.wte.weight.detach()
    # new = 0.02 * torch.randn(n, old.size(1))
    # bigger.transformer.wte.weight = torch.nn.Parameter(torch.cat([old, new]))
    ### END SOLUTION
    return bigger


# %%
#| check 06-1
small = tiny(0)
bigger = with_tokens(small, 3)
ids = torch.arange(8)[None]
before, after = small(ids)[0], bigger(ids)[0]
more = sum(p.numel() for p in bigger.parameters()) - sum(p.numel() for p in small.parameters())
assert after.shape == (1, 8, 43), f"the logits have the shape {tuple(after.shape)}, not (1, 8, 43)"
assert more == 3 * 16, (
    f"three tokens of 16 numbers cost {more} parameters: is the head a matrix of its own now?"
)
assert torch.allclose(after[..., :40], before, atol=1e-5), (
    "the old tokens' logits have changed: did the head get the rows that the table got?"
)
assert torch.allclose(after[..., 40:], before.mean(-1, keepdim=True).expand(1, 8, 3), atol=1e-5), (
    "a new token's logit is not the mean of the old ones: is its row the mean of the old rows?"
)

# %% [markdown]
r"""
## 06-2 · What a file holds

*Derive · difficulty 2/5 · importance 3/5 · 10 minutes*

Before a download of many gigabytes one looks at the header. Here is a GPT-2 of a shape of your own, with biases, stored as
the hub's `gpt2` is. Give five numbers, as integers or as an expression; you may call `num_params`.

- `"tensors"`: how many tensors a file needs, without the masks and with the tied matrix once
- `"numbers"`: how many numbers an old file holds, which also has one causal mask a block
- `"own head"`: by how many numbers a model grows if its loader forgets to tie the head
- `"bytes"`: the bytes of all weights in bfloat16, without masks
- `"share left wrong"`: a loader transposes only what does not fit. Of all numbers in matrices that have to be turned, which
  share does it leave unturned?

<details><summary>Hint 1</summary>

List one block's tensors: two LayerNorms, and four linear layers with a weight and a bias each.
</details>
<details><summary>Hint 2</summary>

A mask has n_positions² numbers. A matrix that fits both ways round is square; which of a block's four is?
</details>
"""

# %%
shape = variant(
    "06-2",
    STUDENT,
    n_layer=[4, 6, 8, 10, 16, 18, 20, 28],
    n_embd=[320, 384, 512, 640, 896, 1152],
    n_positions=[128, 256, 768, 2048],
    vocab_size=[8000, 16384, 32000, 50257],
)
shape

# %%
#| solution 06-2
### BEGIN SOLUTION
L, C, T, V = (shape[name] for name in ("n_layer", "n_embd", "n_positions", "vocab_size"))
params = num_params(GPTConfig(block_size=T, vocab_size=V, n_layer=L, n_head=1, n_embd=C))
file = {
    "tensors": 12 * L + 4,  # a block: two norms and four layers, weight and bias each; wte, wpe, ln_f
    "numbers": params + L * T**2,
    "own head": V * C,
    "bytes": 2 * params,
    "share left wrong": 1 / 12,  # attn.c_proj, C² of the 3 + 1 + 4 + 4 C² of a block
}
### INSTEAD
# file = {"tensors": None, "numbers": None, "own head": None, "bytes": None, "share left wrong": None}
### END SOLUTION

# %%
#| check 06-2
assert None not in file.values(), f"still to do: {[name for name, value in file.items() if value is None]}"
assert file["tensors"] % shape["n_layer"] == 4 % shape["n_layer"], (
    "every block has equally many tensors; beside the blocks stand wte, wpe and ln_f's two"
)
assert file["numbers"] > file["bytes"] / 2, "with the masks there are more numbers than weights"
assert 0 < file["share left wrong"] < 1, "the share left wrong is a part of the numbers to be turned"

# %% [markdown]
r"""
## 06-3 · A check that a loader cannot fool

*Check · difficulty 3/5 · importance 5/5 · 20 minutes*

A round trip did not find the chapter's mistake, and shapes did not either. Write the check that would have. Somebody hands
you a function `layout(name, p)`: for a parameter's name on the hub (such as `h.3.attn.c_proj.weight`) and a tensor in
`nn.Linear`'s or `nn.Embedding`'s layout it returns the tensor as the file stores it. The matrices of `attn.c_attn`,
`attn.c_proj`, `mlp.c_fc` and `mlp.c_proj` are stored transposed, in every block; all else as it is.

`check_layout(layout)` raises an `AssertionError` for a wrong function and returns quietly for a right one, however that is
written. Your check is tried on right functions and on wrong ones that you do not see.

<details><summary>Hint 1</summary>

Which mistakes could one make? Write three wrong functions first, and try your check on them.
</details>
<details><summary>Hint 2</summary>

A square matrix tells more than one that is not, and a tensor whose numbers are all different more than zeros.
</details>
<details><summary>Hint 3</summary>

Ask for all four names, in more than one block, and for names that must *not* be turned. Compare values with `torch.equal`.
</details>
"""


# %%
#| solution 06-3
def check_layout(layout) -> None:
    """AssertionError where layout(name, p) is not Hugging Face's."""
    ### BEGIN SOLUTION
    square, wide = torch.randn(6, 6), torch.randn(4, 10)
    for i in (0, 1, 11):
        for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            for p in (square, wide):
                got = layout(f"h.{i}.{name}.weight", p.clone())
                assert torch.equal(got, p.T), f"h.{i}.{name}.weight {tuple(p.shape)} is not transposed"
    for name in ("wte.weight", "wpe.weight"):
        for p in (square, wide):
            assert torch.equal(layout(name, p.clone()), p), f"{name} is a table, not a Conv1D"
    for name in ("h.0.attn.c_proj.bias", "h.2.ln_1.weight", "ln_f.bias"):
        assert torch.equal(layout(name, square[0].clone()), square[0]), f"{name} has changed"
    ### END SOLUTION


# %%
#| check 06-3
def refused(layout) -> bool:
    try:
        check_layout(layout)
    except AssertionError:
        return True
    return False


CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
assert not refused(lambda name, p: p.T if name.endswith(CONV1D) else p), "it refuses a right function"
assert refused(lambda name, p: p), "it accepts a function that turns nothing"
assert refused(lambda name, p: p.reshape(p.shape[::-1]) if name.endswith(CONV1D) else p), (
    "it accepts `reshape`, which changes the shape and keeps the order of the numbers: compare values, not shapes"
)

# %% [markdown]
r"""
## 06-4 · A setting that hides in the weights

*Build · difficulty 4/5 · importance 3/5 · 20 minutes*

Some GPT-2s (Mistral's, by Stanford) were trained with `scale_attn_by_inverse_layer_idx`: block i, counted from 0, also
divides its attention scores by i + 1. Our `config_from_hf` refuses them, since our attention does not divide. It need not: the
division can be done once, in the weights.

Write `fold(weight, bias, i)`. `weight` (C, 3·C) and `bias` (3·C,) are block i's `attn.c_attn` *as the file has them*: qkv =
x @ weight + bias, and its thirds are q, k and v. Return a new pair with which every score q·k is 1 / (i + 1) of what it was, and
v is the same. The arguments are the file's: do not write into them. There is more than one right answer.

<details><summary>Hint 1</summary>

A score is a product of two. How many of them have to shrink?
</details>
<details><summary>Hint 2</summary>

q = x @ Wq + bq. What becomes of q if only Wq is divided?
</details>
<details><summary>Hint 3</summary>

The file's matrix is (in, out). Along which dimension do the thirds lie?
</details>
"""


# %%
#| solution 06-4
def fold(weight: Tensor, bias: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """c_attn's weight (C, 3·C) and bias (3·C,), with which block i's scores are divided by i + 1."""
    ### BEGIN SOLUTION
    C = len(weight)
    weight, bias = weight.clone(), bias.clone()
    weight[:, :C] /= i + 1
    bias[:C] /= i + 1
    return weight, bias
    ### END SOLUTION


# %%
#| check 06-4
def scores_and_values(weight, bias):
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    q, k, v = (x @ weight + bias).split(4, dim=1)
    return q @ k.T, v


draw = torch.Generator().manual_seed(0)
weight, bias = torch.randn(4, 12, generator=draw), torch.randn(12, generator=draw)
before, v_before = scores_and_values(weight, bias)
after, v_after = scores_and_values(*fold(weight.clone(), bias.clone(), 2))
assert not torch.allclose(after, before), "block 2's scores have not changed"
assert not torch.allclose(after, before / 9), "divided by 9: is it q or k that is divided, or both?"
assert not torch.allclose(after, before / 2), "blocks are counted from 0: block 2 divides by 3"
assert torch.allclose(after, before / 3, atol=1e-5), (
    "block 2's scores are not a third: is the bias divided as well, and are the columns divided that make q?"
)
assert torch.allclose(v_after, v_before), "v has changed: only scores are to shrink"

# %% [markdown]
r"""
#| manual 06-5
## 06-5 · Rounding or a mistake?

*Explain · difficulty 2/5 · importance 5/5 · 5 minutes*

A colleague has written a loader of their own. All shapes fit. Written out again, the file is the same bit for bit. On the same
text their model has a loss of 3.142 nats a token, another program's has 3.139. "Rounding," they say. Name a measurement
that decides whether it is, say what you would see in each case, and name one mistake that would look like this.
"""
