# %% [markdown]
r"""
# 24d · BERT: both sides of a word

Llama came four years after GPT-2. *BERT* (Devlin et al. 2018) came four months before it, and it is made of the same blocks.
Two things differ. A GPT sees only what is to the left of a position, because its task is to predict the next token.
BERT sees the complete text, to the left and to the right. So it needs another task: some tokens are hidden,
and the model has to say which ones they were.

Such a model cannot write a text from left to right. But a vector that has seen both sides knows more about a word, and so BERT and its successors
became the standard for sorting, searching and labelling texts. In this sitting we take chapter 05's GPT, remove its mask,
give it the other task, and measure what the right side is worth, on a text where we know the answer and on our stories. Then we build the published model, whose blocks put their norms elsewhere, and compare it
with `transformers`.
"""

# %%
#| default_exp gpt.bert
#| doc gpt.bert: BERT: attention to both sides, hidden tokens as the task, the published model and its weights.
import json
import math
from pathlib import Path

import torch

from course.figures import bert as figures
from course.notebook import answer, checkpoint, predict, predictions
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.gpt.train import scale_init, train
from nanogpt.text.tokenizer import BPETokenizer

STEPS, RATE = 250, 3e-3  # of both runs below
N, LETTERS, ROWS = 8, 20, 32  # a row repeats N letters; how many kinds there are; rows of a batch
folder = Path("../data/built/stories")
ensure_corpus(folder)
tokenizer = BPETokenizer.load(folder / "tokenizer.json")

# %% [markdown]
r"""
## Attention without the mask

Chapter 04's attention has one place where it looks at the order: `is_causal=True` hides what comes later. Without these
words every position attends to every other. The class below inherits everything from `CausalSelfAttention`, its weights too, and
changes only `forward`. A batch of texts with different lengths is filled up with padding, and nobody may attend to that.
`keep` says which positions are real. `both_sides` gives the attention of each block in a GPT the new class. No weight changes, and no new one comes.
"""

# %%
#| export
#| blank SelfAttention.forward: as in chapter 04, without is_causal; keep (B, T) becomes a mask that all heads and queries share
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.gpt.attention import CausalSelfAttention, split_heads
from nanogpt.gpt.model import GPT, Block, GPTConfig, next_token_loss, table


class SelfAttention(CausalSelfAttention):
    """Attention to both sides, with the weights of chapter 04's. keep (B, T): True where a token is no padding; None: all."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        q, k, v = split_heads(self.c_attn(x), self.n_head)  # (B, n_head, T, d)
        p = self.dropout if self.training else 0.0
        mask = None if keep is None else keep[:, None, None, :]  # (B, 1, 1, T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)


def both_sides(model: GPT) -> GPT:
    """Let a GPT's blocks attend to both sides, in place; the weights stay. Returns the model."""
    for block in model.transformer.h:
        block.attn.__class__ = SelfAttention
    return model


# %% [markdown]
r"""
*Check.* The law of chapter 04 must be broken now. We change the last token and look at which outputs change.
"""

# %%
V = tokenizer.vocab_size
config = GPTConfig(
    block_size=128, vocab_size=V + 1, n_layer=2, n_head=8, n_embd=128
)  # one id more: see below
ids = torch.tensor([[tokenizer.eot, *tokenizer.encode("One sunny day, Leo found a coin.")]])
other = ids.clone()
other[0, -1] = 5
for name, prepare in {"causal": lambda model: model, "both sides": both_sides}.items():
    model = prepare(scale_init(GPT(config, torch.Generator().manual_seed(0))))
    with torch.no_grad():
        changed = (model(ids)[0] - model(other)[0]).abs().amax(-1)[0] > 1e-6
    print(f"{name:10} outputs that change: {int(changed.sum())} of {ids.size(1)}")

# %% [markdown]
r"""
With the mask only the last output changes, the one at the changed place. Without it all outputs change.

## Hidden tokens as the task

Next-token prediction makes no sense for such a model. The token to be predicted is in its input, one place to the right, and it
learns to copy it: chapter 07 shows how its loss falls to almost zero while it learns nothing about language. So the
answer has to be taken out of the input. BERT replaces 15% of the tokens by one new id, here `V`, the first that our tokenizer does
not use. The targets are the original tokens at these places and −100 everywhere else, which the loss leaves out.
"""


# %%
#| export
#| blank hide: draw a number for each token; where it is below share, the input becomes mask_id, elsewhere the target -100
def hide(idx: Tensor, mask_id: int, generator: torch.Generator, share: float = 0.15) -> tuple[Tensor, Tensor]:
    """x and targets (B, T) of BERT's task: a share of the tokens, drawn on the CPU, becomes mask_id; targets -100 elsewhere."""
    hidden = (torch.rand(idx.shape, generator=generator) < share).to(idx.device)
    return idx.masked_fill(hidden, mask_id), idx.masked_fill(~hidden, -100)


# %%
x, y = hide(ids, V, torch.Generator().manual_seed(7), share=0.3)
print("".join("[?]" if i == V else tokenizer.decode([i]) for i in x[0, 1:].tolist()))
print("to be found:", [tokenizer.decode([i]) for i in y[0].tolist() if i != -100])

# %% [markdown]
r"""
(In this example 30% are hidden, so that you see some.) The original BERT replaces only 80% of the chosen tokens by the new id. 10% become
a random token and 10% stay, so that the model cannot rely on the new id, which later texts do not have. We keep the simple
rule.

## What is the right side worth?

We begin with a text so simple that we know the answer in advance. A row is eight random letters, and then the same eight letters again. Each hidden
letter can be looked up in the other half, unless it is hidden there as well.

```
in the text:   k c a q f a d r k c a q f a d r
the input:     k c ? q f a d r k c a q ? a d r
```

Here the first gap can be filled from the right side only, and the second from the left. `Twice` makes such batches. It has the method `next_batch`, and that is all that chapter 07's
`train` asks for. The model, the loss and the step are as they were.
"""


# %%
class Twice:
    """Rows of N random letters, twice, with tokens hidden."""

    def __init__(self, seed: int):
        self.generator = torch.Generator().manual_seed(seed)

    def next_batch(self):
        half = torch.randint(LETTERS, (ROWS, N), generator=self.generator)
        return hide(torch.cat([half, half], dim=1), LETTERS, self.generator)


# %%
x, y = Twice(seed=0).next_batch()
print(x[0].tolist())
print(f"{int((y != -100).sum())} of {y.numel()} letters are hidden; the new id is {LETTERS}")

# %% [markdown]
r"""
Two models are trained. **both sides** has no mask. **left side** is the control: it has the same weights at the beginning, the same batches
and the same task, and it keeps the causal mask. The runs differ in one thing only.

How low can each loss be? A letter that cannot be known costs ln 20 = 3.00 nats, since all 20 are equally likely. For *both sides* these are the 15%
whose twin is hidden as well. *Predict* both losses, before you read on or run the next cells. For *left side* think about the first half and the second half one after the other.
"""

# %%
predict("24d.1", "loss of both sides", guess=None, unit="nats")
predict("24d.2", "loss of left side", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
shape = GPTConfig(block_size=2 * N, vocab_size=LETTERS + 1, n_layer=2, n_head=4, n_embd=64)
losses = {}
for task in ("both sides", "left side"):
    model = scale_init(GPT(shape, torch.Generator().manual_seed(0)))
    model = both_sides(model) if task == "both sides" else model
    train(model, Twice(seed=0), STEPS, RATE, generator=torch.Generator().manual_seed(0))
    test = Twice(seed=1)
    with torch.no_grad():
        tested = [model.eval()(*test.next_batch())[1].item() for _ in range(20)]
    losses[task] = sum(tested) / len(tested)

# %% tags=["nbval-ignore-output"]
share, unknown = 0.15, math.log(LETTERS)
floors = {"both sides": share * unknown, "left side": 0.5 * unknown + 0.5 * share * unknown}
for task, floor in floors.items():
    print(f"{task:10} {losses[task]:.2f} nats a hidden letter; the best possible is {floor:.2f}")
answer("24d.1", losses["both sides"])
answer("24d.2", losses["left side"])

# %%
for task, floor in floors.items():
    assert abs(losses[task] - floor) < 0.25, f"{task} is not near its floor {floor:.2f}: {losses[task]:.2f}"
print("both models are near the best possible loss")

# %% [markdown]
r"""
The right side is worth almost three quarters of the loss here. In the first half of a row the control cannot know anything: whatever it
learns, each letter costs ln 20. In the second half it knows as much as the other model. So its floor is the mean of 3.00 and 0.45, and
it reaches it. This is a law of the task and not a question of training.

## On the stories

Is BERT's task better for a real text, too? In the long run the same law holds, because whoever sees more cannot have a higher floor.
But a short run says nothing about floors. `python tests/bench/bench_bert.py` has trained both kinds for 300 steps on our stories, with chapter 24's blocks, from the same weights and with the same hidden
tokens. Here are the means of 50 steps each.
"""

# %%
record = json.loads(Path("../data/measurements/bert.json").read_text(encoding="utf-8"))
print(f"{record['command']}, {record['date']}: {record['steps']} steps, one seed")
for row in record["rows"]:
    means = "  ".join(f"{mean:.2f}" for mean in row["means of 50 steps"])
    print(f"{row['task']:10} {means}   validation {row['validation']:.2f}")
print(f"a guess by frequency: {record['frequency']:.2f}")

# %% [markdown]
r"""
After so few steps the *control* is ahead. The model without a mask starts more slowly. The distance is largest in the third column, and then it becomes smaller.
We did not train until the lines cross, so this table shows no advantage of the right side on our stories. It shows something else: hidden tokens are a slow teacher. Only 15% of the tokens have a
target. The run of chapter 24b predicts every next token, and it reached 1.6 nats in 120 steps with half as many tokens each. BERT was trained for 40 passes over 3.3 billion words (Devlin et al. 2018, appendix A.2).

## The published BERT

BERT of 2018 differs from our GPT without a mask in five details. The first one matters most: Xiong et al. (2020) found that models with the norm in
front train without a warm-up, and that models with the norm after the sum need one.

1. The norm comes *after* the sum: x = norm(x + attention(x)). GPT-2 moved it to the front, inside the branch. With the norm on the stream
   itself, no number can pass unchanged from the embeddings to the top.
2. The embeddings are normalized as well. There is a third table beside tokens and positions, for the first and the second of two sentences.
3. GELU is the exact one, with the error function. GPT-2 approximates it with a tanh.
4. Before the token table is used as the head, there is one more layer with GELU and norm, and the head has a bias.
5. The norms add 10⁻¹² instead of 10⁻⁵.

The block inherits its layers from chapter 05. After it, a line shows the first point: whatever comes in, the stream has the size 1 behind a block.
"""


# %%
#| export
#| blank BertBlock.forward: add what attention gives, normalize by ln_1; add what the MLP gives, normalize by ln_2
class BertBlock(Block):
    """Attention, then MLP, with the norm after each sum (Vaswani et al. 2017, §3.1). (B, T, C) -> (B, T, C)."""

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        self.attn = SelfAttention(config)
        self.ln_1.eps = self.ln_2.eps = 1e-12

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.ln_1(x + self.attn(x, keep))
        wide = F.gelu(self.mlp.c_fc(x))  # with the error function
        return self.ln_2(x + self.mlp.dropout(self.mlp.c_proj(wide)))


# %%
little = GPTConfig(block_size=16, vocab_size=50, n_layer=2, n_head=2, n_embd=8)
y = BertBlock(little)(100 * torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0)))
print("however large the input, the stream has the size", y.detach().pow(2).mean().sqrt().numpy().round(3))


# %%
#| export
class Bert(nn.Module):
    """BERT with its masked-token head (Devlin et al. 2018, §3), as BertForMaskedLM of transformers."""

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config, C = config, config.n_embd
        self.wte, self.wpe, self.wtt = table(config.vocab_size, C), table(config.block_size, C), table(2, C)
        self.ln, self.ln_head = nn.LayerNorm(C, eps=1e-12), nn.LayerNorm(C, eps=1e-12)
        self.h = nn.ModuleList(BertBlock(config) for _ in range(config.n_layer))
        self.dense, self.bias = nn.Linear(C, C), nn.Parameter(torch.zeros(config.vocab_size))
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02, generator=generator)
            elif name.endswith("bias"):
                nn.init.zeros_(p)


# %%
#| export
#| blank Bert.forward: sum the three tables, normalize; run the blocks; dense, GELU, norm; the token table and a bias
class Bert(Bert):
    def forward(self, idx: Tensor, targets: Tensor | None = None, keep=None, sentence=None):
        """Logits (B, T, vocab_size), and the loss of targets that are not -100. sentence (B, T): 0 or 1, None: all 0."""
        places = torch.arange(idx.size(1), device=idx.device)
        sentence = torch.zeros_like(idx) if sentence is None else sentence
        x = self.ln(self.wte(idx) + self.wpe(places) + self.wtt(sentence))  # (B, T, C)
        for block in self.h:
            x = block(x, keep)
        x = self.ln_head(F.gelu(self.dense(x)))
        logits = x @ self.wte.weight.T + self.bias
        return logits, None if targets is None else next_token_loss(logits, targets)


# %% [markdown]
r"""
*Predict.* BERT-base has 12 layers of width 768, like GPT-2 small, 512 positions and a vocabulary of 30,522. GPT-2 small has 124 million
parameters. How many has BERT-base, in millions?
"""

# %%
predict("24d.3", "parameters of BERT-base", guess=None, unit="million")

# %%
BASE = GPTConfig(block_size=512, vocab_size=30_522, n_layer=12, n_head=12, n_embd=768)
with torch.device("meta"):
    count = sum(p.numel() for p in Bert(BASE).parameters())
print(f"{count:,} parameters")
answer("24d.3", count / 1e6)

# %% [markdown]
r"""
The blocks are equally large. The difference is the vocabulary: 30,522 tokens instead of 50,257.

## Loading published weights

As in chapters 06 and 24, loading is a translation of names. Hugging Face keeps queries, keys and values of BERT in three matrices. Ours are the rows of one,
so three tensors are put below one another.
"""


# %%
#| export
from pathlib import Path

from nanogpt.gpt.pretrained import find_checkpoint, read_headers, read_json, read_tensor

OUTER = {
    "wte.weight": "bert.embeddings.word_embeddings.weight",
    "wpe.weight": "bert.embeddings.position_embeddings.weight",
    "wtt.weight": "bert.embeddings.token_type_embeddings.weight",
    "ln.": "bert.embeddings.LayerNorm.",
    "dense.": "cls.predictions.transform.dense.",
    "ln_head.": "cls.predictions.transform.LayerNorm.",
    "bias": "cls.predictions.bias",
}
INNER = {
    "attn.c_proj.": "attention.output.dense.",
    "ln_1.": "attention.output.LayerNorm.",
    "mlp.c_fc.": "intermediate.dense.",
    "mlp.c_proj.": "output.dense.",
    "ln_2.": "output.LayerNorm.",
}


# %%
#| export
#| blank bert_names: the layer's number goes behind bert.encoder.layer; c_attn becomes query, key and value
def bert_names(name: str) -> list[str]:
    """Hugging Face's names for a parameter of ours: one, or those of query, key and value."""
    if not name.startswith("h."):
        ours = next(prefix for prefix in OUTER if name.startswith(prefix))
        return [OUTER[ours] + name.removeprefix(ours)]
    _, layer, rest = name.split(".", 2)
    start = f"bert.encoder.layer.{layer}."
    if rest.startswith("attn.c_attn."):
        return [f"{start}attention.self.{part}.{rest[12:]}" for part in ("query", "key", "value")]
    ours = next(prefix for prefix in INNER if rest.startswith(prefix))
    return [start + INNER[ours] + rest.removeprefix(ours)]


# %%
for name in ("wte.weight", "h.1.attn.c_attn.weight", "h.1.ln_2.bias"):
    print(f"{name:24}", *bert_names(name), sep="\n    ")

# %% [markdown]
r"""
`bert_from_hf` reads the configuration, refuses what this model does not have, and fills the parameters. A file may have more, such as
the layer for "is the second sentence the next one?", BERT's other task, which did not turn out to be useful (Liu et al. 2019).
"""


# %%
#| export
def bert_shape(said: dict, where: str) -> GPTConfig:
    """The shape in a BERT's config.json; ValueError naming what this model does not have."""
    wants = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    wants |= {
        "layer_norm_eps": 1e-12,
        "type_vocab_size": 2,
        "intermediate_size": 4 * said.get("hidden_size", 0),
    }
    said = {"position_embedding_type": "absolute"} | said
    if wrong := [
        f"{key} is {said.get(key)!r}, not {value!r}" for key, value in wants.items() if said.get(key) != value
    ]:
        raise ValueError(f"{where}: this is not a BERT that nanogpt can run: {'; '.join(wrong)}")
    sizes = (
        "max_position_embeddings",
        "vocab_size",
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
    )
    return GPTConfig(*(said[key] for key in sizes))


# %%
#| export
@torch.no_grad()
def bert_from_hf(name_or_dir: str | Path) -> Bert:
    """A Bert with the weights of a BertForMaskedLM in a Hugging Face folder or repository, in eval mode. OSError or ValueError."""
    path, files = find_checkpoint(name_or_dir)
    model, found = Bert(bert_shape(read_json(path), str(name_or_dir))), {}
    for name, entry in read_headers(files).items():  # the oldest files say gamma and beta
        found[name.replace(".gamma", ".weight").replace(".beta", ".bias")] = entry
    for name, p in model.named_parameters():
        names = bert_names(name)
        if lost := [theirs for theirs in names if theirs not in found]:
            raise ValueError(f"{name_or_dir} lacks {lost[0]}")
        weight = torch.cat([read_tensor(*found[theirs][:2]) for theirs in names])
        if weight.shape != p.shape:
            raise ValueError(f"{name_or_dir}: {names[0]} has another shape than config.json says")
        p.copy_(weight)
    return model.eval()


# %% [markdown]
r"""
*Check.* Again the judge is `transformers`, where it is installed: a `BertForMaskedLM` with random weights, a batch with padding and with two
sentences. The tests of this sitting compare the gradients as well.
"""

# %% tags=["nbval-ignore-output"]
print(figures.compared_with_transformers(bert_from_hf))

# %% tags=["nbval-ignore-output"]
predictions("24d")

# %%
checkpoint("24d")

# %% [markdown]
r"""
## Exercises

To explore:

1. Hide 5%, 40% and 80% of the letters in place of 15%. *Predict* the floors of both models first, then train. *Check*: `floors` with another share.
2. Train `both_sides` on the next token of `Twice` for 100 steps. How low does its loss get, and what has it learned?
3. Write BERT's complete rule: of the chosen tokens 80% become the new id, 10% a random token, 10% stay. *Check* the shares on a large batch.
4. Run `python tests/bench/bench_bert.py --steps 2000`. Do the lines cross, and where?
5. Train a small `Bert` (norm after the sum) on `Twice` with 2 and with 8 layers. Which one needs a warm-up?

## Further reading

- Devlin et al. 2018, *BERT: Pre-training of Deep Bidirectional Transformers*, §3.1 and appendix C.2: the task, and what the 80/10/10 rule is worth.
- Liu et al. 2019, *RoBERTa*, §4: the same model, trained longer and without the second task.
- Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*: why the norm's place decides about warm-up.
- Warner et al. 2024, *ModernBERT*: BERT with chapter 24's changes.
"""
