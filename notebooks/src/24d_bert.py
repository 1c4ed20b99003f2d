# %% [markdown]
r"""
# 24d · BERT: both sides of a word

Llama came four years after GPT-2. *BERT* (Devlin et al. 2018) came four months before it, and it is made of the same blocks.
Two things differ. A GPT sees only what is to the left of a position, because its task is to predict the next token.
BERT sees the complete text, to the left and to the right. So it needs another task: some tokens are hidden,
and the model has to say which ones they were.

Such a model cannot write a text from left to right. But a vector that has seen both sides knows more about a word, and so BERT and its successors
became the standard for sorting, searching and labelling texts. In this sitting we take chapter 05's GPT, remove its mask,
give it the other task, and measure what the right side is worth. Then we build the published model, whose blocks put their norms elsewhere, and compare it
with `transformers`.
"""

# %%
#| default_exp gpt.bert
#| doc gpt.bert: BERT: attention to both sides, hidden tokens as the task, the published model and its weights.
from pathlib import Path

import numpy as np
import torch

from course.figures import bert as figures
from course.notebook import answer, checkpoint, predict, predictions
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.device import pick_device
from nanogpt.gpt.train import scale_init, train
from nanogpt.text.data import DocumentStream
from nanogpt.text.shards import open_shards, read_shard
from nanogpt.text.tokenizer import BPETokenizer

STEPS, RATE, B, T = 400, 2e-3, 8, 128  # of the three runs below
device = pick_device()
folder = Path("../data/built/stories")
manifest = ensure_corpus(folder)
tokenizer = BPETokenizer.load(folder / "tokenizer.json")

# %% [markdown]
r"""
## Attention without the mask

Chapter 04's attention has one place where it looks at the order: `is_causal=True` hides what comes later. Without these
words every position attends to every other. The class below inherits everything from `CausalSelfAttention`, its weights too, and
changes only `forward`. A batch of texts with different lengths is filled up with padding, and nobody may attend to that.
`keep` says which positions are real.
"""

# %%
#| export
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.gpt.attention import CausalSelfAttention, split_heads
from nanogpt.gpt.model import GPT, Block, GPTConfig, next_token_loss, table


# %%
#| export
#| blank SelfAttention.forward: as in chapter 04, without is_causal; keep (B, T) becomes a mask that all heads and queries share
class SelfAttention(CausalSelfAttention):
    """Attention to both sides, with the weights of chapter 04's. keep (B, T): True where a token is no padding; None: all."""

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        q, k, v = split_heads(self.c_attn(x), self.n_head)  # (B, n_head, T, d)
        p = self.dropout if self.training else 0.0
        mask = None if keep is None else keep[:, None, None, :]  # (B, 1, 1, T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return F.dropout(self.c_proj(y.transpose(1, 2).flatten(2)), p)


# %% [markdown]
r"""
Now we need a model with it. We make a GPT and give each block's attention the new class. No weight changes, and no new one
comes. `both_sides` is this line.

*Check.* The law of chapter 04 must be broken now. We change the last token and look at which outputs change.
"""


# %%
#| export
def both_sides(model: GPT) -> GPT:
    """Let a GPT's blocks attend to both sides, in place; the weights stay. Returns the model."""
    for block in model.transformer.h:
        block.attn.__class__ = SelfAttention
    return model


# %%
V = tokenizer.vocab_size
config = GPTConfig(block_size=T, vocab_size=V + 1, n_layer=2, n_head=8, n_embd=128)  # one id more: see below
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

A stream that hides the tokens of another stream is all that chapter 07's `train` needs. The model, the loss and
the step are as they were.
"""


# %%
class Hidden:
    """The batches of a stream, with tokens hidden."""

    def __init__(self, stream, mask_id: int, seed: int):
        self.stream, self.mask_id = stream, mask_id
        self.generator = torch.Generator().manual_seed(seed)

    def next_batch(self):
        return hide(self.stream.next_batch()[0], self.mask_id, self.generator)


# %%
x, y = Hidden(DocumentStream(open_shards(folder, "train"), B, T, seed=0), V, seed=0).next_batch()
print(f"{int((y != -100).sum())} of {y.numel()} tokens are hidden")

# %% [markdown]
r"""
## What is the right side worth?

Three models of the same shape are trained for the same steps on the same stories.

- **both sides** finds hidden tokens without a mask in its attention.
- **left side** is the control. It has the same task and the same batches, but keeps the causal mask. The two runs differ in
  one thing only.
- **next token** is an ordinary GPT. It learns from every token, not from 15%, so it has about seven times as many targets.

All are tested on the same hidden places of the validation text. The GPT gets the text up to the place, with nothing hidden, and predicts
the token.

*Predict.* By how many nats a token is *both sides* better than its control?
"""

# %%
predict("24d.1", "the right side is worth", guess=None, unit="nats")

# %%
tokens = np.asarray(read_shard(open_shards(folder, "val")[0])[: 64 * T + 1]).astype(np.int64)
held = torch.from_numpy(tokens[:-1]).view(64, T)  # (64, T)
held_x, held_y = hide(held, V, torch.Generator().manual_seed(1))


@torch.no_grad()
def tested(model, task: str) -> float:
    """The mean loss at the hidden places of the validation text, in nats."""
    model.eval()
    if task == "next token":  # position t predicts token t + 1
        return model(held.to(device)[:, :-1], held_y.to(device)[:, 1:])[1].item()
    return model(held_x.to(device), held_y.to(device))[1].item()


# %% tags=["nbval-ignore-output"]
trained, losses = {}, {}
for task in ("both sides", "left side", "next token"):
    model = scale_init(GPT(config, torch.Generator().manual_seed(0))).to(device)
    model = both_sides(model) if task == "both sides" else model
    stream = DocumentStream(open_shards(folder, "train"), B, T, seed=0, device=device)
    stream = stream if task == "next token" else Hidden(stream, V, seed=0)
    train(model, stream, STEPS, RATE, generator=torch.Generator().manual_seed(0))
    trained[task], losses[task] = model, tested(model, task)
counts = torch.bincount(
    torch.from_numpy(np.asarray(read_shard(open_shards(folder, "train")[0])).astype(np.int64)),
    minlength=V + 1,
)
losses["frequency"] = -(counts.clamp(min=1) / counts.sum()).log()[held_y[held_y != -100]].mean().item()
for task, loss in losses.items():
    print(f"{task:10} {loss:.2f} nats a hidden token")

# %% tags=["nbval-ignore-output"]
answer("24d.1", losses["left side"] - losses["both sides"])

# %%
assert losses["both sides"] < losses["left side"] < losses["frequency"], f"an unexpected order: {losses}"
print("both sides < left side < a guess by frequency")

# %% [markdown]
r"""
A model that guesses by frequency sets the upper end. The control is better than this. The right side takes away a
further part, since a word often follows from what comes after it. Only the mask differs between the two. But it is one seed and one learning rate, so take the difference as large or small, and not as exact.

Now compare with the ordinary GPT. It sees only the left side, too, but it has had seven times as many targets, and nothing was
hidden from it. Compare its loss with that of *left side*. The difference is the price of BERT's task: each text gives only 15% as many targets.

## Filling a gap

Numbers say how much, an example says what. We hide one word of a story and ask both models for their three best guesses. The word can
be known from the right side only.
"""


# %%
@torch.no_grad()
def guesses(model, before: str, after: str) -> str:
    """The three likeliest tokens for a gap between two texts, with their probabilities."""
    left = [tokenizer.eot, *tokenizer.encode(before)]
    ids = torch.tensor([[*left, V, *tokenizer.encode(after)]], device=device)
    probs = model.eval()(ids)[0][0, len(left)].softmax(-1)
    best = probs.topk(3).indices.tolist()
    return ", ".join(f"{tokenizer.decode([i])!r} {probs[i]:.0%}" for i in best if i < V)


# %% tags=["nbval-ignore-output"]
before, after = "One sunny day,", " went to the market. Leo had three coins. Leo gave one coin to Rosa."
for task in ("both sides", "left side"):
    print(f"{task:10} {guesses(trained[task], before, after)}")

# %% [markdown]
r"""
The model that sees both sides can look for the name in the rest of the text. The other has to guess a name that often opens a
story.

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
predict("24d.2", "parameters of BERT-base", guess=None, unit="million")

# %%
BASE = GPTConfig(block_size=512, vocab_size=30_522, n_layer=12, n_head=12, n_embd=768)
with torch.device("meta"):
    count = sum(p.numel() for p in Bert(BASE).parameters())
print(f"{count:,} parameters")
answer("24d.2", count / 1e6)

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

1. Hide 5%, 40% and 80% in place of 15%. *Predict* first which share gives the lowest loss, and which teaches most in 400 steps. *Check* all models on the
   same held-out places with 15%.
2. Train `both_sides` on the next token for 100 steps. How low does its loss get, and what does it say about a gap?
3. Write BERT's complete rule: of the chosen tokens 80% become the new id, 10% a random token, 10% stay. *Check* the shares on a large batch.
4. Train a small `Bert` (norm after the sum) with 2 and with 8 layers, at the rate of the GPT without mask. Which one needs a warm-up?
5. Give a trained GPT's weights to `both_sides` and train it on hidden tokens for 50 steps. Is it better than a new model after 50 steps?

## Further reading

- Devlin et al. 2018, *BERT: Pre-training of Deep Bidirectional Transformers*, §3.1 and appendix C.2: the task, and what the 80/10/10 rule is worth.
- Liu et al. 2019, *RoBERTa*, §4: the same model, trained longer and without the second task.
- Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*: why the norm's place decides about warm-up.
- Warner et al. 2024, *ModernBERT*: BERT with chapter 24's changes.
"""
