# %% [markdown]
r"""
# 24d ◇ · BERT: both sides of a word

Llama came four years after GPT-2. *BERT* (Devlin et al. 2018) came four months before GPT-2, and its blocks have the same parts.
Two things differ. A GPT sees only what is to the left of a position, because its task is to predict the next token.
BERT sees the complete text, to the left and to the right: it is *bidirectional*. So it needs another task: some tokens are hidden,
and the model has to say which ones they were.

Such a model cannot write a text from left to right. But a vector that has seen both sides knows more about a word, and so BERT and its successors
became the standard for sorting, searching and labelling texts. In this sitting we take chapter 05's GPT, remove its mask,
give it the other task, and find out what the right side is worth: 74% of the loss on a text where we know the answer in advance, and
at least 32% on our stories, which we find by counting. Then we build
the published model, whose blocks put their norms elsewhere, and compare it with `transformers`.
"""

# %%
#| default_exp labs.bert
#| doc labs.bert: BERT: attention to both sides, hidden tokens as the task, the published model and its weights.
import importlib.util
import json
import math
import tempfile
from pathlib import Path

import torch

from course.figures import bert as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.data import DocumentStream
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.shards import open_shards
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train

STEPS, RATE = 250, 3e-3  # of both runs below
N, LETTERS, ROWS = 8, 20, 32  # a row repeats N letters; how many kinds there are; rows of a batch
SHARE = 0.15  # of the letters are hidden
folder = Path("../data/built/stories")
ensure_corpus(folder)
tokenizer = BPETokenizer.load(folder / "tokenizer.json")

# %% [markdown]
r"""
## Attention without the mask

On its fused path, chapter 04's attention looks at the order in one place: `is_causal=True` hides what comes later. Without this
argument every position attends to every other one. The class below always takes the fused path, whatever `flash` says. It inherits
everything from `CausalSelfAttention`, its weights too, and changes only `forward`. `both_sides` gives the attention of each block in a
GPT the new class. No weight changes, and none is added.
"""

# %%
#| export
#| blank SelfAttention.forward: chapter 04's fused path with its two dropouts, without is_causal; cache is ignored
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.model import CausalSelfAttention, split_heads
from nanogpt.model import GPT, Block, GPTConfig, next_token_loss


class SelfAttention(CausalSelfAttention):
    """Attention to both sides, with chapter 04's weights. cache is ignored: a new token changes all outputs."""

    def forward(self, x: Tensor, cache=None) -> Tensor:
        q, k, v = split_heads(self.c_attn(x), self.n_head)  # (B, n_head, T, d)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)


def both_sides(model: GPT) -> GPT:
    """Let a GPT's blocks attend to both sides, in place; the weights stay. Returns the model."""
    for block in model.transformer.h:
        block.attn.__class__ = SelfAttention
    return model


# %% [markdown]
r"""
*Check.* The law of chapter 04 must be broken now. We change the last token of a text and look at which outputs change.
"""

# %%
V = tokenizer.vocab_size
config = GPTConfig(
    block_size=128, vocab_size=V + 1, n_layer=2, n_head=4, n_embd=128
)  # one id more than the tokenizer has: the next section needs it
ids = torch.tensor([[tokenizer.eot, *tokenizer.encode("One sunny day, Leo found a coin.")]])
other = ids.clone()
other[0, -1] = 5
print(f"{ids.size(1)} tokens; the last one becomes another: {ids[0, -1]} and {other[0, -1]}")

# %% [markdown]
r"""
*Predict.* How many of the 11 outputs change with the mask, and how many without it?
"""

# %%
predict("24d.1", "outputs that change without the mask", guess=None)

# %%
for name in ("causal", "both sides"):
    model = scale_init(GPT(config, torch.Generator().manual_seed(0)))
    if name == "both sides":
        both_sides(model)
    with torch.no_grad():
        apart = (model(ids)[0] - model(other)[0]).abs()  # (1, T, V + 1)
    changed = int((apart.amax(-1) > 1e-6).sum())
    print(f"{name:10} outputs that change: {changed} of {ids.size(1)}")
answer("24d.1", changed)

# %% [markdown]
r"""
With the mask only the last output changes, the one at the changed place. Without it all outputs change.

## Hidden tokens as the task

Next-token prediction makes no sense for such a model. The token to be predicted is in its input, one place to the right, and it
learns to copy it. Chapter 07 had a model without a mask among its four faults: its loss fell to almost zero, and learning one batch by heart
could not expose it. So the answer has to be taken out of the input.

BERT chooses 15% of the tokens. In the simplest version, each of them is replaced with one new id, here `V`, the first that our
tokenizer does not use. The targets are the original tokens at these places and −100 everywhere else, which the loss leaves out. This
task is called *masked language modelling*, and the new id is BERT's `[MASK]`. It has nothing to do with attention's mask. In this
sitting "the mask" is always attention's, and of tokens we say that they are *hidden*.
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
In this example 30% are hidden, so that you see some. The original BERT replaces only 80% of the chosen tokens with the new id. 10%
become a random token and 10% stay, because texts that it reads later do not contain the new id, so the model must not rely on it. We
keep the simple rule.

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
        return hide(torch.cat([half, half], dim=1), LETTERS, self.generator, SHARE)


# %%
x, y = Twice(seed=0).next_batch()
print(x[0].tolist())
print(f"{int((y != -100).sum())} of {y.numel()} letters are hidden; the new id is {LETTERS}")

# %% [markdown]
r"""
Two models are trained. **both sides** has no mask. **left side** is the control: it has the same weights at the beginning, the same batches
and the same task, and it keeps the causal mask. The runs differ in one thing only.

How low can each loss be? A letter that cannot be known costs ln 20 = 3.00 nats, since all 20 are equally likely. *Predict* both
losses: which letters cannot be known? For *left side* think about the first half and the second half one after the other.
"""

# %%
predict("24d.2", "loss of both sides", guess=None, unit="nats")
predict("24d.3", "loss of left side", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
shape = GPTConfig(block_size=2 * N, vocab_size=LETTERS + 1, n_layer=2, n_head=4, n_embd=64)
losses = {}
for task in ("both sides", "left side"):
    model = scale_init(GPT(shape, torch.Generator().manual_seed(0)))
    if task == "both sides":
        both_sides(model)
    train(model, Twice(seed=0), STEPS, RATE, generator=torch.Generator().manual_seed(0))
    model.eval()
    test, total = Twice(seed=1), 0.0
    for _ in range(20):
        x, y = test.next_batch()
        with torch.no_grad():
            total += model(x, y)[1].item()
    losses[task] = total / 20
    print(f"{task:10} {losses[task]:.2f} nats a hidden letter")
answer("24d.2", losses["both sides"])
answer("24d.3", losses["left side"])

# %% [markdown]
r"""
Now the arithmetic. *Both sides* looks a hidden letter up in the other half, unless its twin is hidden as well. This happens with a
probability of 15%, so on average the best possible loss is 0.15 · 3.00 = 0.45. *Left side* cannot know anything in the first half of a
row: whatever it learns, each letter costs 3.00. In the second half it knows as much as the other model. So its floor is the mean of
3.00 and 0.45, which is 1.72.
"""

# %% tags=["nbval-ignore-output"]
unknown = math.log(LETTERS)
floors = {"both sides": SHARE * unknown, "left side": 0.5 * unknown + 0.5 * SHARE * unknown}
for task, floor in floors.items():
    print(f"{task:10} {losses[task]:.2f} nats a hidden letter; on average the best possible is {floor:.2f}")
    assert abs(losses[task] - floor) < 0.25, f"{task} is not near its floor {floor:.2f}: {losses[task]:.2f}"
print(f"by the floors, the right side is worth {1 - floors['both sides'] / floors['left side']:.0%}")

# %% [markdown]
r"""
The loss of *both sides* can come out a little below "the best possible". Why? The best possible loss is a mean over all batches that
`Twice` can draw, and we have tested on 20. Let us count in these 20 how often the twin of a hidden letter was hidden, too.
"""

# %%
test, hidden, lost = Twice(seed=1), 0, 0
for _ in range(20):
    gone = test.next_batch()[1] != -100  # (ROWS, 2N)
    hidden += int(gone.sum())
    lost += int((gone & gone.roll(N, dims=1)).sum())  # the twin is N places further, round the row
print(f"{hidden:,} letters were hidden; of {lost / hidden:.1%} the twin was hidden, too")

# %% [markdown]
r"""
It was a little less than 15%, so these batches were a little easier than the average. No model can get below the floor on average,
but a good one can on a few batches. *Left side* ends close to its floor of 1.72. By the floors, the right side is worth 74% of the loss here. This is a law of the
task and not a question of training.

## On the stories

Does the right side help on our stories, too? Again the floor can answer, before any model is trained. A story is a row of choices, and
a choice among n costs ln n (chapter 02). Some of the choices are facts: a name, a place, a number. Who reads from the left must guess a
fact when it comes for the first time. Who sees both sides can look it up, if the story tells it again further right. How much of the
floor are such facts?
"""

# %%
everything = again = 0.0
for story in stories(1000, seed=1):
    facts = [forms[0] for forms in story.facts.values()]
    for at, options in story.choices:
        everything += math.log(options)
        before, here = story.text[:at], story.text[at:]
        for fact in facts:
            if here.startswith(fact) and fact not in before and fact in here[len(fact) :]:
                again += math.log(options)
                break
print(
    f"{everything / 1000:.1f} nats a story; {again / 1000:.1f} of them are facts that come again: {again / everything:.0%}"
)

# %% [markdown]
r"""
So by the floor the right side is worth at least 32% on the stories: of the 49.9 nats that a reader from the left must pay, 15.9 are for facts
that are told again. (A little less, as long as some of the later places are hidden too.)

This is what could be learned. Is it learned? `python bench/bert.py` trained both kinds on our stories, from the same weights and with the same hidden tokens. One pair of
runs has 300 steps, the other 2,000.

*Predict.* Which row ends lower after 300 steps, and which after 2,000?
"""

# %%
predict("24d.4", "the row that ends lower after 300 steps", guess=None)
predict("24d.5", "the row that ends lower after 2,000 steps", guess=None)

# %%
lower = {}
for name in ("bert", "bert-2000"):
    record = json.loads(Path(f"../data/measurements/{name}.json").read_text(encoding="utf-8"))
    print(f"{record['command']}, {record['date']}: {record['steps']} steps, one seed")
    for row in record["rows"]:
        print(f"    {row['task']:10} validation {row['validation']:.2f}")
    lower[record["steps"]] = min(record["rows"], key=lambda row: row["validation"])["task"]
answer("24d.4", lower[300])
answer("24d.5", lower[2000])
print(f"always guessing by how often a token occurs: {record['frequency']:.2f}")

# %%
show(
    figures.learning(record["rows"], of=50),
    alt="Training loss over 2,000 steps: left side falls faster at first, then both sides comes nearer, until they almost meet.",
)
both, left = (row["means of 50 steps"] for row in record["rows"])
for step in (50, 300, 500, 1000, 1500, 2000):
    at = step // 50 - 1
    print(f"steps {step - 49:4} to {step:4}: left side is {both[at] - left[at]:.2f} nats lower")

# %% [markdown]
r"""
The *control* is ahead both times, 2.81 against 3.47 and 1.16 against 1.23. But look at the curves. Its lead grows to 0.98 nats at step 500, and from there it shrinks all the way, to 0.07 at the
end. So the model that sees both sides begins more slowly, and has almost caught up after 2,000 steps. Whether it would win, these runs do not say: nothing of the 32% is
to be seen yet.

Why do both begin so slowly? The last line of the records is a model that knows nothing but how often each token occurs, and after 300 steps *both
sides* is only 1.2 nats below it. Is it because only 15% of the tokens have a target? Then hiding more should help. We train both once more with
40% of the tokens hidden, for 300 steps, everything else as before, and compare on the same rows with 15% hidden. (It takes about half a minute.)
"""


# %% tags=["nbval-ignore-output"]
class Hidden:
    """Rows of 128 tokens of the stories, with a share of them hidden."""

    def __init__(self, split: str, rows: int, share: float):
        self.stream = DocumentStream(open_shards(folder, split), rows, 128, seed=0)
        self.share, self.generator = share, torch.Generator().manual_seed(0)

    def next_batch(self):
        return hide(self.stream.next_batch()[0], V, self.generator, self.share)


x, y = Hidden("val", rows=64, share=0.15).next_batch()
for task in ("both sides", "left side"):
    model = scale_init(GPT(config, torch.Generator().manual_seed(0)))
    if task == "both sides":
        both_sides(model)
    batches = Hidden("train", rows=8, share=0.4)
    train(model, batches, 300, 2e-3, clip=1.0, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        loss = model.eval()(x, y)[1].item()
    print(f"{task:10} trained with 40% hidden: validation {loss:.2f}")

# %% [markdown]
r"""
Yes. With 2.7 times as many targets in a step, *both sides* ends at 2.71 instead of 3.47, and *left side* at 1.87 instead of 2.81. (Wettig
et al. 2022 found the same for BERT itself: 40% is better than 15%.) The order has not changed: the control is still ahead. How fast a
model learns and how far it can get are two questions, and on the stories only the second one has been answered, by counting. BERT was trained for 40 passes over 3.3 billion
words (Devlin et al. 2018, appendix A.2).

## The published BERT

BERT of 2018 differs from our GPT without a mask in several details.

1. The norm comes *after* the sum: x = norm(x + attention(x)). GPT-2 moved it to the front, inside the branch. With the norm on the stream
   itself, no number can pass unchanged from the embeddings to the top. This detail matters most: Xiong et al. (2020) found that models
   with the norm in front train without a warm-up, and that models with the norm after the sum need one.
2. No norm follows the last block, which ends with one already. The embeddings have a norm of their own instead.
3. There is a third table beside tokens and positions, for the first and the second of two sentences. BERT's second task shows it two
   sentences and asks whether the second one follows the first.
4. In Hugging Face's model, GELU is the exact one, with the error function. GPT-2 approximates it with a tanh.
5. Before the token table is used as the head, there is one more layer with GELU and norm.
6. The head has a bias.
7. The norms add 10⁻¹² instead of 10⁻⁵.
8. All matrices begin with the same standard deviation. In GPT-2, those that write to the stream begin smaller, by a factor of √(2 · layers).

The block inherits its layers from chapter 05. Its attention needs one more thing. Texts of different lengths become one batch if the
short ones are filled up with padding, and no position may attend to the padding. `keep` says which positions are real.
"""


# %%
#| export
class PaddedAttention(SelfAttention):
    """Attention to both sides that leaves padding out. keep (B, T): True where a token is real; None: all are."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        q, k, v = split_heads(self.c_attn(x), self.n_head)  # (B, n_head, T, d)
        p = self.dropout if self.training else 0.0
        mask = None if keep is None else keep[:, None, None, :]  # (B, 1, 1, T): for all heads and queries
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)


# %%
little = GPTConfig(block_size=16, vocab_size=50, n_layer=2, n_head=2, n_embd=8)
attention = PaddedAttention(little)
text = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(0))
padded = torch.cat([text, torch.ones(1, 2, 8)], dim=1)  # four tokens, and two places of padding
keep = torch.tensor([[True, True, True, True, False, False]])
with torch.no_grad():
    alone, left_out, read = attention(text), attention(padded, keep)[:, :4], attention(padded)[:, :4]
print("with keep, the outputs are those of the text alone:   ", torch.allclose(left_out, alone, atol=1e-6))
print("without keep, the outputs are those of the text alone:", torch.allclose(read, alone, atol=1e-6))

# %% [markdown]
r"""
Now the block. After it, a loop shows the first point of the list: behind a new block, whose norms have gains of 1 and biases of 0, the
stream has the size 1, whatever comes in.
"""


# %%
#| export
#| blank BertBlock.forward: add attention's output, ln_1; add the MLP's, from its parts with the exact GELU, ln_2
class BertBlock(Block):
    """Attention, then MLP, with the norm after each sum (Vaswani et al. 2017, §3.1). (B, T, C) -> (B, T, C).

    The layers are chapter 05's. Its MLP has the GELU with tanh, so forward takes that apart: c_fc, c_proj, dropout.
    """

    def __init__(self, config: GPTConfig):
        super().__init__(config)
        self.attn = PaddedAttention(config)
        self.ln_1.eps = self.ln_2.eps = 1e-12

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        x = self.ln_1(x + self.attn(x, keep))
        wide = F.gelu(self.mlp.c_fc(x))  # with the error function
        return self.ln_2(x + self.mlp.dropout(self.mlp.c_proj(wide)))


# %%
block = BertBlock(little)
for scale in (1, 100, 10_000):
    y = block(scale * text).detach()
    print(f"input × {scale:6,}: the stream has the size {y.square().mean().sqrt():.3f}")

# %% [markdown]
r"""
The complete model sums three tables and normalizes the sum. Then come the blocks, and then the head with its additional layer.
"""


# %%
#| export
class Bert(nn.Module):
    """BERT with its masked-token head (Devlin et al. 2018, §3), as BertForMaskedLM of transformers."""

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config, C = config, config.n_embd
        self.wte = nn.Embedding(config.vocab_size, C)
        self.wpe, self.wtt = nn.Embedding(config.block_size, C), nn.Embedding(2, C)
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
        """Logits (B, T, vocab_size), and the mean loss of targets that are not -100, or None without targets.

        sentence (B, T): 0 or 1, None: all 0.
        """
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
predict("24d.6", "parameters of BERT-base", guess=None, unit="million")

# %%
BASE = GPTConfig(block_size=512, vocab_size=30_522, n_layer=12, n_head=12, n_embd=768)
with torch.device("meta"):
    count = sum(p.numel() for p in Bert(BASE).parameters())
print(f"{count:,} parameters")
print(f"a vocabulary as small as BERT's saves GPT-2 small {(50_257 - 30_522) * 768:,}")
answer("24d.6", count / 1e6)

# %% [markdown]
r"""
BERT-base has 109.5 million, 14.9 million fewer than GPT-2 small. The blocks are equally large. The difference is the vocabulary: 30,522 tokens instead of
50,257 save 15.2 million.

## Loading published weights

To use a published BERT on a text you also need its tokenizer, WordPiece, which this course does not build. Here we load the weights only.
As in chapters 06 and 24, loading is a translation of names. Hugging Face keeps queries, keys and values of BERT in
three matrices. Ours are the rows of one, so three tensors are stacked, one below the other. In their files these are
`attention.self.query`, `attention.self.key` and `attention.self.value` of a layer, `bert.encoder.layer.0` and so on,
each with `.weight` and `.bias`.
"""


# %%
#| export
from pathlib import Path

from nanogpt.pretrained import find_checkpoint, read_headers, read_json, read_tensor

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
#| blank bert_names: OUTER or INNER for the beginning; the layer's number behind bert.encoder.layer; c_attn: three names
def bert_names(name: str) -> list[str]:
    """Hugging Face's names for a parameter of ours: one, or those of query, key and value."""
    if not name.startswith("h."):
        ours = next(prefix for prefix in OUTER if name.startswith(prefix))
        return [OUTER[ours] + name.removeprefix(ours)]
    _, layer, rest = name.split(".", 2)
    start = f"bert.encoder.layer.{layer}."
    if rest.startswith("attn.c_attn."):
        return [
            f"{start}attention.self.{part}.{rest.removeprefix('attn.c_attn.')}"
            for part in ("query", "key", "value")
        ]
    ours = next(prefix for prefix in INNER if rest.startswith(prefix))
    return [start + INNER[ours] + rest.removeprefix(ours)]


# %%
for name in ("wte.weight", "h.1.attn.c_attn.weight", "h.1.ln_2.bias"):
    print(f"{name:24}", *bert_names(name), sep="\n    ")

# %% [markdown]
r"""
`read_bert` takes the sizes from `config.json` and fills the parameters. A file may have more, such as
the layer for "does the second sentence follow the first?", BERT's other task, which did not turn out to be useful (Liu et al. 2019).
"""


# %%
#| export
SIZES = "max_position_embeddings", "vocab_size", "num_hidden_layers", "num_attention_heads", "hidden_size"


@torch.no_grad()
def read_bert(name_or_dir: str | Path) -> Bert:
    """A Bert with the weights of a BertForMaskedLM in a Hugging Face folder or repository, in eval mode."""
    path, files = find_checkpoint(name_or_dir)
    said = read_json(path)
    model = Bert(GPTConfig(*[said[key] for key in SIZES]))
    found = {}
    for name, entry in read_headers(files).items():  # the oldest files say gamma and beta
        found[name.replace(".gamma", ".weight").replace(".beta", ".bias")] = entry
    for name, p in model.named_parameters():
        parts = []
        for theirs in bert_names(name):
            if theirs not in found:
                raise ValueError(f"{name_or_dir} lacks {theirs}")
            file, stored, _, _ = found[theirs]
            parts.append(read_tensor(file, stored))
        weight = torch.cat(parts)
        if weight.shape != p.shape:
            raise ValueError(f"{name_or_dir}: {theirs} has another shape than config.json says")
        p.copy_(weight)
    return model.eval()


# %% [markdown]
r"""
*Check.* Again the judge is `transformers`, where it is installed: a `BertForMaskedLM` with random weights, written by them and read by us. The batch has two texts of two sentences
each, and the second text is shorter and filled up with padding.
"""

# %% tags=["nbval-ignore-output"]
if importlib.util.find_spec("transformers"):
    from transformers import BertConfig, BertForMaskedLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    sizes = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3}
    theirs = BertForMaskedLM(BertConfig(**sizes, num_attention_heads=4, max_position_embeddings=64)).eval()
    ids = torch.arange(80).view(2, 40)
    keep = torch.ones(2, 40, dtype=torch.bool)
    keep[1, 25:] = False
    second = (torch.arange(40) > 15).long().expand(2, 40)
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        theirs.save_pretrained(scratch)
        ours = read_bert(scratch)(ids, keep=keep, sentence=second)[0]
        expected = theirs(ids, attention_mask=keep.long(), token_type_ids=second).logits
    apart = (ours - expected)[keep].abs().max().item()
    assert apart < 1e-5, f"other logits than BertForMaskedLM's: {apart:.0e}"
    print(f"{int(keep.sum())} rows of logits, all within 0.00001 of BertForMaskedLM's")

# %% [markdown]
r"""
The model is theirs, padding and sentences included. The tests of this sitting compare the gradients as well.
"""

# %% [markdown]
r"""
## Appendix: refusing another model

A `config.json` can describe a model that has all these tensors and computes something else. GELU may be another function, positions
may be relative, `is_decoder` puts the causal mask back, and without `tie_word_embeddings` the head is a matrix of its own. `read_bert`
would load such a file without a word and give wrong logits. So `bert_from_hf` looks at these settings first. A setting that is missing
has Hugging Face's default.
"""


# %%
#| export
def refuse_other_bert(said: dict, where: str | Path) -> None:
    """ValueError naming all settings of a config.json that this Bert does not have."""
    wants = {"model_type": "bert", "hidden_act": "gelu", "position_embedding_type": "absolute"}
    wants |= {"layer_norm_eps": 1e-12, "type_vocab_size": 2, "is_decoder": False, "tie_word_embeddings": True}
    wants |= {"intermediate_size": 4 * said.get("hidden_size", 0)}
    defaults = wants | {"model_type": None, "intermediate_size": None}
    wrong = []
    for key, wanted in wants.items():
        found = said.get(key, defaults[key])
        if found != wanted:
            wrong.append(f"{key} is {found!r}, not {wanted!r}")
    for key in SIZES:
        if key not in said:
            wrong.append(f"{key} is missing")
    if wrong:
        raise ValueError(f"{where}: this is not a BERT that nanogpt can run: {'; '.join(wrong)}")


# %%
#| export
def bert_from_hf(name_or_dir: str | Path) -> Bert:
    """read_bert, if config.json describes a model that Bert is. OSError or ValueError."""
    path, _ = find_checkpoint(name_or_dir)
    refuse_other_bert(read_json(path), name_or_dir)
    return read_bert(name_or_dir)


# %%
base = {"model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "vocab_size": 30_522}
base |= {"num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 512}
refuse_other_bert(base, "BERT-base")
for changes in ({"is_decoder": True}, {"tie_word_embeddings": False, "hidden_act": "relu"}):
    try:
        refuse_other_bert(base | changes, "another one")
    except ValueError as error:
        print(error)

# %% tags=["nbval-ignore-output"]
predictions("24d")

# %%
checkpoint("24d")

# %% [markdown]
r"""
## Exercises

Set 24 has no task on this sitting. To explore:

1. Set `SHARE` to 0.05, 0.4 and 0.8 instead of 0.15. *Predict* the floors of both models first, then train. *Check*: the floors that the
   notebook prints follow `SHARE`.
2. Give `both_sides` the wrong task. Write a `next_batch` that hides nothing: x is the letters of `Twice` without the last one, and y is the same
   letters without the first one. Train a causal model and one without a mask for 100 steps. *Check*: a loss below
   7/15 · ln 20 is impossible without seeing the target. Which model gets there?
3. Write BERT's complete rule: of the chosen tokens 80% become the new id, 10% a random token, 10% stay. *Check* the shares on a large batch.
4. Run `python bench/bert.py --steps 6000`. It takes three times as long as the recorded 2,000 steps, so start it in the evening. Do the lines
   cross, and where? How much of the 32% is there then?
5. Train a small `Bert` (norm after the sum) on `Twice` with 2 and with 8 layers. `train` has no warm-up, so write chapter 07's loop yourself, with
   chapter 15's `wsd(step, steps, warmup=…)`. *Check* with and without a warm-up: which of the two models needs one?

## Further reading

- Wettig et al. 2022, [*Should You Mask 15% in Masked Language Modeling?*](https://arxiv.org/abs/2202.08005): why more may be hidden.
- Devlin et al. 2018, [*BERT: Pre-training of Deep Bidirectional Transformers*](https://arxiv.org/abs/1810.04805), §3.1 and appendix C.2: the task, and what the 80/10/10 rule is worth.
- Liu et al. 2019, [*RoBERTa*](https://arxiv.org/abs/1907.11692), §4: the same model, trained longer and without the second task.
- Xiong et al. 2020, [*On Layer Normalization in the Transformer Architecture*](https://arxiv.org/abs/2002.04745): why the norm's place decides about warm-up.
- Warner et al. 2024, [*ModernBERT*](https://arxiv.org/abs/2412.13663): BERT with rotary positions, a gated MLP, the norm in front and no biases.
"""
