# %% [markdown]
r"""
# 05 · GPT-2: every number accounted for

Chapter 04 built attention, which moves information between positions. This chapter adds the other parts and gets
GPT-2: the complete model that was published in 2019, in about two hundred lines.

We build it from the top down. First comes the plan of the complete model, in fourteen lines. Then we write each part that the
plan uses. Then we run the model, look at the text that it writes, and find that its initial weights are wrong. At the end
we count every parameter and every floating-point operation, because chapters 09 to 14 need these counts.

Why count? A model with a wrong part often still trains. It only trains a little worse, and that is hard to see in a loss curve. But if
you know what the first loss must be, how many parameters there must be, and which inputs may change which outputs, then
you can find many bugs before the first step of training.
"""

# %%
#| default_exp model
import json
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course.figures import gpt as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.model import CausalSelfAttention, head_size
from nanogpt.labs.corpora.stories import stories
from nanogpt.tokenizer import BPETokenizer

show(figures.architecture(), alt="GPT-2 as a stream to which attention and MLP add in each block.")

# %% [markdown]
r"""
The blue line is called the *residual stream*: one vector of C numbers for each position. It begins as the sum of two
vectors, one for the token (`wte`) and one for the position (`wpe`). The model has `n_layer` blocks. Each block adds to the stream twice:
first attention adds what it has fetched from other positions, then a small network, the MLP, adds what it computes from the
position's own vector. At the end, `lm_head` turns each vector into V numbers, one score (a *logit*) for each of the V tokens of the
vocabulary. The small boxes `ln_1`, `ln_2` and `ln_f` are LayerNorms, which the section "The block" explains.

*Predict.* GPT-2 small has 12 blocks, C = 768, V = 50,257 tokens and at most T = 1024 positions. Before training, its weights are random
numbers. What is its loss on the first batch, in nats a token, as in chapter 02? Replace `None` by your guess, or run on.
"""

# %%
predict("05.1", "first loss of the untrained GPT-2 small, 50,257 tokens", guess=None, unit="nats")

# %% [markdown]
r"""
## The plan

Here is GPT-2. Read `forward` beside the figure: each line is one part of the picture. The only name that does not exist yet
is `Block`. Python looks it up when a model is made, so we may write the plan first.

The names are GPT-2's own: *w*eights of the *t*oken *e*mbedding and of the *p*osition *e*mbedding, *h* for the hidden
layers, *f* for the final LayerNorm, *lm_head* for the output of the language model. In the code, C is called `n_embd`, V is `vocab_size`,
and `block_size` is the largest T. Chapter 06 loads OpenAI's weights by these names.
"""


# %%
class PlainGPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)  # a vector for each token
        self.wpe = nn.Embedding(config.block_size, config.n_embd)  # a vector for each position
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight  # one matrix for both ends

    def forward(self, idx):  # (B, T)
        x = self.wte(idx) + self.wpe(torch.arange(idx.size(1)))  # (B, T, C)
        for block in self.h:
            x = block(x)  # (B, T, C)
        return self.lm_head(self.ln_f(x))  # (B, T, V)


# %% [markdown]
r"""
Two lines need an explanation. Chapter 04 showed that a layer of attention does not know the order of its inputs, so each position
needs a vector of its own: that is `wpe`, a learned table. And the matrix that turns the stream into logits is the token table
itself, used a second time (*tied embeddings*, Press and Wolf 2017). The score of a token is the dot product of the stream's vector
with that token's vector. So a token gets a high score if its vector points in a direction similar to that of the stream's vector.

## The MLP

The MLP works on each position alone. One matrix turns its vector of C numbers into 4·C numbers, a curved function is
applied to each of them, and a second matrix turns the result into C numbers again. Without the curved function, the two matrices could be multiplied
into a single one.

The function is GELU, x·Φ(x), where Φ(x) is the probability that a standard normal random number is below x. GPT-2 was trained with an
approximation of it that uses tanh (Hendrycks and Gimpel 2016, §2). `config.bias` and dropout are the same as in chapter 04.
"""

# %%
#| export
#| blank MLP.forward: c_fc, then GELU in its tanh form, then c_proj, then dropout
import math
from functools import singledispatch

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """c_fc widens to 4 C, tanh-GELU, c_proj narrows; every position alone. (B, T, C) -> (B, T, C)."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.c_fc(x), approximate="tanh")  # (B, T, 4·C)
        return self.dropout(self.c_proj(x))  # (B, T, C)


# %%
show(figures.gelu(), alt="GELU beside ReLU; tanh-GELU minus exact GELU, a few ten-thousandths.")

# %% [markdown]
r"""
The left side shows GELU and the older ReLU, which sets every negative number to zero. GELU is a smooth version of it. The right side
shows the error of the approximation, which is below a thousandth. You may train a model with either form. But weights that were trained with
one form give slightly other logits with the other, and chapter 06 measures how much.

## The block

A block adds the outputs of attention and of the MLP to the stream. Each of the two reads the stream through a *LayerNorm*, which brings
every position's vector to mean 0 and standard deviation 1. Here is one vector of
four numbers, with mean 5 and variance 5. We normalise it first by hand and then with PyTorch:
"""

# %%
v = torch.tensor([2.0, 4.0, 6.0, 8.0])
by_hand = (v - v.mean()) / (v.var(unbiased=False) + 1e-5).sqrt()
print(by_hand, nn.LayerNorm(4)(v).detach(), sep="\n")

# %% [markdown]
r"""
The small number 1e-5 prevents a division by zero when all numbers of a vector are equal. After that, LayerNorm multiplies each of the C
channels by a learned *gain* and adds a learned bias; they begin at 1 and 0.

Where does the LayerNorm go? The Transformer of 2017 normalised the stream itself, after each addition (*post-norm*). GPT-2
normalises only the *copy* that a part reads (*pre-norm*; Radford et al. 2019, §2.3). So the stream itself runs from the embedding
to `ln_f` through additions alone. We measure below what that is good for.
"""


# %%
#| export
#| blank Block.forward: attention, then the MLP; each reads the normalized x and adds its result to x
class Block(nn.Module):
    """Attention, then MLP, each reading a normalised copy of the stream and adding to it. (B, T, C) -> (B, T, C)."""

    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


# %%
sizes = {"block_size": 64, "vocab_size": 512, "n_layer": 2, "n_head": 4, "n_embd": 128}  # change these
tiny = SimpleNamespace(**sizes, dropout=0.0, bias=True, flash=True)
block = Block(tiny)
for name, parameter in block.named_parameters():
    print(f"{name:20} {tuple(parameter.shape)}")

# %% [markdown]
r"""
`nn.Linear` stores its weight as (outputs, inputs). `c_attn` makes q, k and v for all heads, so it has 3 · 128 = 384 outputs. `c_fc` has
4 · 128 = 512. The block was the last missing part: now the model can run.

## The first text

We need text. We take 400 of chapter 02's stories and train chapter 01's tokenizer on them, with 512 tokens. Then we cut 32 rows of 65 tokens:
the first 64 of a row are the model's input, and the last 64 are the tokens that it has to predict. The loss is chapter 02's:
the mean of −ln p, where p is the probability that the model gave to the token that really came next. To let the model write, we ask for
the probabilities of the next token, draw one token, append it, and ask again.
"""

# %%
texts = [story.text for story in stories(400)]
tokenizer = BPETokenizer.train(texts, tiny.vocab_size)
ids = tokenizer.encode(" ".join(texts))[: 32 * (tiny.block_size + 1)]
rows = torch.tensor(ids).view(32, -1)
x, y = rows[:, :-1], rows[:, 1:]  # (B, T): each token, and the one that comes next
print(tuple(x.shape), tokenizer.decode(x[0, :12].tolist()), "…")

# %% [markdown]
r"""
*Predict.* When PyTorch makes a layer, it fills it with random numbers, by rules of its own. What is the first loss of our small model
(V = 512, C = 128) with these numbers?
"""

# %%
predict("05.2", "first loss with PyTorch's own initial weights, V = 512, C = 128", guess=None, unit="nats")


# %%
@torch.no_grad()
def loss_and_text(logits_of, prompt="Ida had", n=30):
    """The mean loss on our 32 rows, and n tokens that the model draws one after the other."""
    loss = F.cross_entropy(logits_of(x).flatten(0, 1), y.flatten())
    ids, g = tokenizer.encode(prompt), torch.Generator().manual_seed(0)
    for _ in range(n):
        p = logits_of(torch.tensor([ids[-tiny.block_size :]]))[0, -1].softmax(-1)  # (V,)
        ids.append(p.multinomial(1, generator=g).item())
    return loss.item(), tokenizer.decode(ids)


torch.manual_seed(0)
model = PlainGPT(tiny)
loss, text = loss_and_text(model)
print(text)
print(f"loss {loss:.0f} nats a token; ln V = {math.log(tiny.vocab_size):.2f}")
answer("05.2", round(loss))

# %% [markdown]
r"""
The model repeats one token again and again. Its loss is far above that of a model that knows nothing: a model that gives each of the V tokens
the same probability has the loss ln V. So this model is worse than ignorant. It is *certain*, and wrong.

Why? `nn.Embedding` draws its numbers from N(0, 1), so the vector of a token has a length of about √C, and so has the vector of a position.
The stream begins as the sum of the two, which has a length of about √(2C), and the untrained blocks add little to it. `ln_f` brings it back to
length √C. Then the tied head multiplies it with all token vectors, and one of them is a part of the sum: the vector of the token that was just
read. This product is about C/√2, which is 91 for C = 128. The other products are scattered around zero. So the model is nearly sure that
the last token comes again. Where another token comes, the loss is the difference between the two logits, which is about 91 nats on average. Before we
can train this model, we need better initial weights.

## Initial weights

OpenAI's code draws the matrices from N(0, 0.02²) and sets the biases to zero. It draws `wpe` from N(0, 0.01²); we take 0.02 there too, as
Hugging Face does. The gains of the LayerNorms are 1. The paper adds one exception, which the released code does not have: it scales the weights
of residual layers by 1/√N, where N is their number (Radford et al. 2019, §2.3). These are the two matrices called `c_proj` in each block. They *write*
to the stream, and a model with n_layer blocks writes 2·n_layer times. If these additions are independent and of equal size, their sum
has √(2·n_layer) times the standard deviation of one of them. We follow the paper: every `c_proj` starts smaller by this factor.

`init_weight` does this for one weight, and `init_weights` for all. `generator` is the source of the random numbers; `None` means PyTorch's own.
`vocab_size` matters only when chapter 13 gives the token table more rows than there are tokens. The extra rows are not drawn but zero, so that all other
weights are the same with them and without.
"""


# %%
#| export
#| blank init_weight: draw what has two dimensions, c_proj with a smaller spread; biases are 0, gains are 1
def init_weight(name: str, p: Tensor, n_layer: int, generator=None, vocab_size: int | None = None) -> None:
    """GPT-2's initialisation of one weight, in place: see init_weights."""
    if p.dim() == 2:
        std = 0.02 / math.sqrt(2 * n_layer) if name.endswith("c_proj.weight") else 0.02
        real = p[:vocab_size] if name.endswith("wte.weight") else p
        nn.init.normal_(real, std=std, generator=generator)
        p[len(real) :] = 0
    else:
        nn.init.constant_(p, 0.0 if name.endswith("bias") else 1.0)


# %%
#| export
@torch.no_grad()
def init_weights(model: nn.Module, n_layer: int, generator=None, vocab_size: int | None = None) -> None:
    """GPT-2's initialisation, in place: matrices N(0, 0.02²), those that write to the stream less by √(2·n_layer).

    Draws from `generator`, or from PyTorch's global one where it is None. Rows of wte from vocab_size on are zero.
    """
    for name, p in model.named_parameters():  # a tied matrix comes once
        init_weight(name, p, n_layer, generator, vocab_size)


# %%
init_weights(model, tiny.n_layer, torch.Generator().manual_seed(0))
loss, text = loss_and_text(model)
print(text)
print(f"loss {loss:.2f} nats a token; ln V = {math.log(tiny.vocab_size):.2f}")

# %% [markdown]
r"""
Now the model gives all tokens nearly the same probability. It writes a random mix of tokens, and its loss is close to ln V. (The character � is a
token that holds only some of the bytes of a letter.) Chapter 07 begins training from here.

What is the smaller `c_proj` good for? We send an embedding through untrained blocks, with GPT-2's factor and without it. We divide the length of
the embedding by the length of the stream after the last block, to see how large a part of the stream the embedding still is.
"""


# %%
@torch.no_grad()
def share_of_embedding(n_layer, n_embd=256, factor=True):
    """Length of the embedding, divided by the length of the stream after the last block of an untrained model."""
    g = torch.Generator().manual_seed(0)
    shape = SimpleNamespace(**vars(tiny) | {"n_embd": n_embd})
    blocks = nn.Sequential(*[Block(shape) for _ in range(n_layer)])
    init_weights(blocks, n_layer, g)
    if not factor:  # give the two c_proj of each block the 0.02 of all other matrices
        for block in blocks:
            block.attn.c_proj.weight *= math.sqrt(2 * n_layer)
            block.mlp.c_proj.weight *= math.sqrt(2 * n_layer)
    embedding = 0.02 * math.sqrt(2) * torch.randn(1, 128, n_embd, generator=g)  # as wte + wpe
    return (embedding.norm() / blocks(embedding).norm()).item()


print("layers                     ", *[f"{n_layer:6}" for n_layer in (2, 4, 8, 16, 32)])
for label, factor in {"c_proj 0.02 / √(2·n_layer)": True, "all matrices 0.02": False}.items():
    print(f"{label:27}", *[f"{share_of_embedding(n, factor=factor):6.2f}" for n in (2, 4, 8, 16, 32)])
for n_embd in (256, 768, 1600):
    print(f"width {n_embd:4}, 4 layers, with the factor: {share_of_embedding(4, n_embd):.2f}")

# %% [markdown]
r"""
With the factor, the embedding's share is the same at every depth: at this width of 256, the stream's vectors are about three times as long as the
embedding's. Without the factor, the share falls with the depth. In a model of 32 layers the vectors of the stream are then about 25 times as long, and the head, which compares the stream
with the token vectors, begins with mostly noise.

The last three lines show what the factor does *not* do. The share still falls with the width, because the standard deviation 0.02 is
the same for all widths, and a wider layer adds up more products. So GPT-2's rule corrects for the depth of a model, but not for its width.

## What is each part for?

We said that attention fetches from other positions, that the MLP computes, and that the additions keep what was in the stream. Let us measure
these claims. Small models (C = 64, T = 64) with different blocks were trained on chapter 02's stories for 400 steps, each with two learning
rates and two seeds. That takes too long for a chapter, so the cell below draws the recorded losses. (`python bench/blocks.py`
repeats the measurement.) For a fair comparison, three of the models have as many weights in their blocks as two blocks of GPT-2: six layers
of attention alone, three MLPs alone, and two blocks whose parts *replace* the stream instead of adding to it. The last three rows
compare post-norm with GPT-2's blocks, which are pre-norm.

*Predict* before you run the cell: which model is worse, the one without attention or the one without MLPs?
"""

# %%
recorded = json.loads(Path("../data/measurements/blocks.json").read_text(encoding="utf-8"))
alt = "Losses by kind of block: attention and MLP 1.0 with two blocks, attention alone 1.5 with two layers and 1.2 to 1.6 with six, MLP alone 2.1, parts that replace the stream 4.9; post-norm 1.1 with two blocks and 1.0 with eight; pre-norm with eight 1.1."
show(figures.blocks(recorded), alt=alt)

# %% [markdown]
r"""
Each mark is one run. The dotted lines are the two simplest models of chapter 02's stories: the unigram model counts how frequent each token is, and
the bigram model counts which token follows which. In each row, look at the learning rate with the lower loss.

- **MLP alone** stays a little above the bigram line. Without attention, a position knows only its own token and its own place. No
  size of the MLP can change that.
- **Attention alone** gets below the bigram line, because it can use the earlier tokens. But two blocks with both parts are 0.5 nats better than
  two layers of attention. Six layers of attention have as many weights as the two blocks, and both of their runs are worse by 0.2 nats or more. In
  this experiment, more attention does not replace the missing MLP.
- **Parts that replace** the stream reach the unigram line and get no further. The next section asks why.
- **Post-norm** is about as good as pre-norm here. With two blocks it is a little worse. With eight it reaches the lowest loss of all, 0.96
  against 1.09. So our small models do not show why GPT-2 moved the LayerNorm. Others give a reason for deeper
  models: there, post-norm needs a learning rate that increases slowly at the beginning (Xiong et al. 2020, §3). We use pre-norm because GPT-2 does.

## What the additions are for

Replacing the stream means `x = mlp(ln_2(attn(ln_1(x))))`: all shapes and all weights are the same, only the two additions are gone. Why does
such a model learn nothing but frequencies? Perhaps the positions become alike, so that later layers cannot tell them apart. The same
program measured this in untrained models of six blocks: it took the cosine between the vectors of two positions, averaged over all pairs
of positions, after each block.
"""

# %%
show(figures.likeness(recorded["cosines"]), alt="Cosine: near 0 with additions, 0.73 to 0.99 without.")

# %% [markdown]
r"""
A cosine of 1 means that the vectors of all positions point in the same direction. With the additions, the positions stay different at every depth.
Without them, they become alike: 0.73 after one block, 0.99 after six. This agrees with our guess, and with the theory of Dong et al. (2021):
untrained attention averages over the past almost evenly, and an average of averages forgets which token was where. The additions carry
every position's own token past the averages.
"""

# %% [markdown]
r"""
## Appendix: refusing what cannot work

The next two cells contain no idea about language models. They are here, and not at the end, because the model uses them. Run
them, and go on at "A class for the sizes".

Both functions look at the input. Two mistakes happen often: a
text is longer than `block_size`, or it was encoded by another tokenizer and has ids that are not in the token table.
PyTorch would stop with an index error that explains neither. So we look at the ids before the model uses them, but only
on the CPU: on a GPU, looking at a value makes the program wait for the device. (`is_compiling` is for chapter 11.)
"""


# %%
#| export
def check_ids(idx: Tensor, vocab_size: int) -> None:
    """ValueError where idx is empty or holds an id outside 0..vocab_size-1."""
    if idx.numel() == 0:
        raise ValueError("idx holds no token; begin with at least one, such as <|endoftext|>")
    for extreme in (int(idx.min()), int(idx.max())):
        if not 0 <= extreme < vocab_size:
            fitting = f"use the tokenizer for which vocab_size={vocab_size} was chosen"
            raise ValueError(f"token id {extreme} is outside 0..{vocab_size - 1}; {fitting}")


def check_input(idx: Tensor, config) -> None:
    """ValueError where idx (B, T) is longer than block_size or, looked at on the CPU only, holds a wrong id."""
    limit = config.block_size
    if idx.size(1) > limit:
        raise ValueError(f"{idx.size(1)} tokens exceed block_size={limit}; keep the last: idx[:, -{limit}:]")
    if idx.device.type == "cpu" and not torch.compiler.is_compiling():
        check_ids(idx, config.vocab_size)


# %%
try:
    check_ids(torch.tensor([[5, tiny.vocab_size]]), tiny.vocab_size)
except ValueError as error:
    print(error)

# %% [markdown]
r"""
## A class for the sizes

The plan took its sizes from any object that has them. A class is better: it has names and defaults, and it refuses a shape
that cannot work, with one sentence that says why. The defaults are GPT-2 small's. Two fields are used only in later chapters: `flash` in
chapter 12 and `padded_vocab_size` in chapter 13.
"""

# %%
#| export
from dataclasses import dataclass


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT. ValueError where no model can have it. Defaults: GPT-2 small."""

    block_size: int = 1024  # the longest context, in tokens
    vocab_size: int = 50257  # 256 bytes, 50,000 merges, <|endoftext|>
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True  # in linear layers and LayerNorms; GPT-2 has them
    flash: bool = True  # attention in one fused kernel, or step by step: chapter 12
    padded_vocab_size: int | None = None  # rows of the token table, if more than vocab_size: chapter 13

    def __post_init__(self):
        least = dict.fromkeys(("block_size", "vocab_size", "n_layer", "n_head", "n_embd"), 1)
        if self.padded_vocab_size is not None:
            least["padded_vocab_size"] = self.vocab_size
        for name, limit in least.items():
            value = getattr(self, name)
            if type(value) is not int or value < limit:
                raise ValueError(f"{name}={value!r} must be an integer of at least {limit}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} must be at least 0 and below 1")
        head_size(self)  # n_head must divide n_embd

    @property
    def vocab_rows(self) -> int:
        """Rows that the token table has."""
        return self.padded_vocab_size or self.vocab_size


# %%
print(GPTConfig())
try:
    GPTConfig(n_head=5)
except ValueError as error:
    print(error)

# %% [markdown]
r"""
`SIZES` holds the four models that OpenAI released.
"""


# %%
#| export
SIZES = {  # Radford et al. 2019, table 2; heads from the released hparams.json
    "gpt2": GPTConfig(),
    "gpt2-medium": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "gpt2-large": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "gpt2-xl": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
}

# %% [markdown]
r"""
The paper's table 2 gives layers and widths, and calls the sizes 117M, 345M, 762M and 1542M. Those counts were wrong, as OpenAI
noted later beside the released code. We count the parameters ourselves at the end of this chapter.

## A random generator for the weights

`PlainGPT` has a fault that its loss does not show. When PyTorch makes a layer, it fills it with random numbers from its *global*
generator. `init_weights` then overwrites them. So each weight is drawn twice. The second problem is worse: making a model changes the state of
the global generator. The random numbers that the program draws next, for example for dropout or for the order of the data, then depend on how
many layers the model has:
"""

# %%
for n_layer in (2, 3):
    torch.manual_seed(0)
    PlainGPT(SimpleNamespace(**vars(tiny) | {"n_layer": n_layer}))
    print(f"{n_layer} layers made; the next random number of the program is {torch.rand(1).item():.4f}")

# %% [markdown]
r"""
The remedy is `torch.random.fork_rng`: what is drawn within its block leaves the global generator as it was. So the class makes its modules in such a block, and then `init_weights` draws the weights that count from a generator of our own. The modules get GPT-2's full
names (`transformer.wte`, …), as in the released weights.
"""

# %% [markdown]
r"""
## GPT

This is the model of the complete course. To the plan we add the check of the input, `init_weights`, GPT-2's
dropout after the embedding, and the loss, if targets are given. The loss is computed in float32 even when the model uses a shorter type.
`head` is a method of its own, because later chapters compile it separately.
"""


# %%
#| export
def next_token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in nats, in float32 at least, over all rows of the token table."""
    logits = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets.flatten())


# %%
#| export
#| blank GPT.forward: check_input, the plan's forward (positions on idx's device), drop after the sum, head at the end
class GPT(nn.Module):
    """GPT-2 (Radford et al. 2019, §2.3). Build it on the CPU and move it: a seed then gives the same weights anywhere."""

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None):
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # PyTorch's own initialisation, replaced below, draws numbers
            modules = {
                "wte": nn.Embedding(config.vocab_rows, config.n_embd),
                "wpe": nn.Embedding(config.block_size, config.n_embd),
                "drop": nn.Dropout(config.dropout),
                "h": nn.ModuleList(Block(config) for _ in range(config.n_layer)),
                "ln_f": nn.LayerNorm(config.n_embd, bias=config.bias),
            }
            self.transformer = nn.ModuleDict(modules)
            self.lm_head = nn.Linear(config.n_embd, config.vocab_rows, bias=False)
        self.lm_head.weight = self.transformer.wte.weight  # tied: one matrix reads tokens and predicts them
        init_weights(self, config.n_layer, generator, config.vocab_size)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Logits (B, T, vocab_size), and if targets (B, T) are given their mean loss in nats; -100 does not count."""
        check_input(idx, self.config)
        parts = self.transformer
        # a vector for each token, and one for its position
        positions = torch.arange(idx.size(1), device=idx.device)
        x = parts.drop(parts.wte(idx) + parts.wpe(positions))  # (B, T, C)
        # the blocks add to it
        for block in parts.h:
            x = block(x)
        # a score for each token that may come next
        return self.head(x, targets)

    def head(self, x: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """ln_f, lm_head and the loss: from the last block's x (B, T, C)."""
        logits = self.lm_head(self.transformer.ln_f(x))  # (B, T, vocab_rows)
        loss = None if targets is None else next_token_loss(logits, targets)
        return logits[..., : self.config.vocab_size], loss


# %%
state = torch.get_rng_state()
small = GPT(GPTConfig(**sizes), generator=torch.Generator().manual_seed(0))
print("the global generator has not moved:", torch.equal(torch.get_rng_state(), state))
print("the same logits as the plan's:", torch.allclose(small(x)[0], model(x), atol=1e-5))
try:
    small(torch.tensor([[5, tiny.vocab_size]]))
except ValueError as error:
    print(error)

# %% [markdown]
r"""
With the same seed, this class draws the same weights as we gave to the plan, and it gives the same logits: it is the same model. And it
refuses a wrong id with a sentence.

## Check: the first loss of GPT-2 small

We come to question 05.1. Here is GPT-2 small at its full size, untrained. Its loss is a little more than ln V, because random weights
give random logits. We can compute how much more. After `ln_f`, a position's vector has length √C. Its product with a random row of `wte`
is a normal random number z with mean 0 and variance σ² = 0.02²·C. The loss is the logarithm of the sum of all e^z, minus the logit of the right
token. The mean of e^z is e^{σ²/2}, so the sum is about V·e^{σ²/2}, and its logarithm is ln V + σ²/2. The logit of the right token is 0 on average.
"""

# %%
big = GPT(GPTConfig(), generator=torch.Generator().manual_seed(1337))
C, V = big.config.n_embd, big.config.vocab_size
idx = torch.randint(V, (4, 129), generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    loss = big(idx[:, :-1], idx[:, 1:])[1].item()
predicted = math.log(V) + 0.02**2 * C / 2
print(f"ln V = {math.log(V):.2f}   ln V + σ²/2 = {predicted:.2f}   loss {loss:.2f}")
answer("05.1", round(loss, 2))
assert abs(loss - predicted) < 0.05, "the first loss is not ln V + σ²/2: is a part wired wrong?"

# %% [markdown]
r"""
Write this check into every training script. A first loss that is off shows a bug before the first step is taken.

## Check: laws

Three more laws hold for every correct GPT, trained or not. Each one catches a mistake that is hard to see in a loss curve. The loss is the mean of
−ln p of the next token. A later token does not change an earlier logit. And the rows of a batch do not see each other.
"""

# %%
logits, loss = small(x, y)
by_hand = -logits.log_softmax(-1).gather(2, y[..., None]).mean()
assert torch.allclose(loss, by_hand), "the loss is not the mean of −ln p(next token)"

changed, t = x.clone(), x.size(1) // 2
changed[:, t:] = (changed[:, t:] + 1) % tiny.vocab_size
moved = (small(changed)[0] - logits).abs().amax((0, 2)) > 1e-5  # which positions have other logits
assert not moved[:t].any(), "the future changed the past: is the mask in place?"

assert torch.allclose(small(x[:1])[0], logits[:1], atol=1e-5), "rows of a batch see each other"
print(f"tokens from {t} on were changed; first position with other logits: {int(moved.nonzero()[0])}")

# %% [markdown]
r"""
## Counting parameters

*Predict.* The token table `wte` has one vector for each token. What share of all parameters of GPT-2 small is in this table?
"""

# %%
predict("05.3", "the token table's share of GPT-2 small's parameters", guess=None, unit="%")

# %% [markdown]
r"""
A linear layer from m to n channels has m·n weights and n biases. With C = n_embd, attention has one layer from C to 3·C (`c_attn`)
and one from C to C: four squares of C × C. The MLP goes from C to 4·C and back: eight squares. So a block is twelve squares of C × C,
plus a few biases and gains. The token table has V·C numbers. (The decorator `singledispatch` lets a program that has another kind of configuration bring a formula of its own.) Here is GPT-2 small in such squares, each of them 768 × 768 numbers. On the left,
each column is one block. On the right are the two tables: the token table is 50,257 / 768 = 65.4 squares, and the position table 1024 / 768 = 1.3.
"""

# %%
alt = "GPT-2 small as squares of 768 by 768 numbers: 12 columns of 4 attention and 8 MLP squares, and beside them 65 squares of the token table and one of the position table."
show(figures.squares(GPTConfig()), alt=alt)


# %%
#| export
@singledispatch
def params_by_part(config: GPTConfig) -> dict[str, int]:
    """Number of parameters by part, from the shape alone."""
    C, L, bias = config.n_embd, config.n_layer, int(config.bias)
    return {
        "wte": config.vocab_rows * C,
        "wpe": config.block_size * C,
        "attention": L * (4 * C * C + bias * 4 * C),
        "mlp": L * (8 * C * C + bias * 5 * C),
        "layer norm": (2 * L + 1) * (1 + bias) * C,
    }


def num_params(config: GPTConfig) -> int:
    """Number of parameters of GPT(config): 124,439,808 for GPT-2 small."""
    return sum(params_by_part(config).values())


# %%
for name, config in SIZES.items():
    with torch.device("meta"):  # shapes without memory, so that even the largest is quickly made
        counted = sum(p.numel() for p in GPT(config).parameters())
    assert num_params(config) == counted, f"{name}: formula and model differ"
    share = params_by_part(config)["wte"] / counted
    print(
        f"{name:12} {config.n_layer} layers, width {config.n_embd:4}: {counted:13,}, of which wte {share:.0%}"
    )
answer("05.3", round(100 * params_by_part(GPTConfig())["wte"] / num_params(GPTConfig())))

# %% [markdown]
r"""
The formula and the models agree. In the small model the token table is larger than all attention layers together. Without tying, it would
count twice. In the largest model it is only a twentieth of all parameters, and nearly all the others are in attention and MLP.

## Counting FLOPs

Multiplying one row of m numbers by an m × n matrix takes m·n multiplications and as many additions: 2·m·n floating-point operations
(FLOPs). So each weight of a linear layer costs 2 FLOPs per token. Attention also has products without weights: it multiplies a position's query
with T keys, and then it adds up T values. Each of these two takes 2·T·C operations in every layer. The backward pass needs
two products for each product of the forward pass: one for the gradient of each factor. So a training step costs three times the forward pass.

*Predict.* How many million FLOPs (MFLOPs) does it take to train GPT-2 small on one token, in a context of T = 1024 tokens?
"""

# %%
predict("05.4", "GPT-2 small, T = 1024: MFLOPs to train on one token", guess=None)


# %%
#| export
#| blank flops_by_part: a product with an m × n matrix costs 2mn FLOPs for each token
@singledispatch
def flops_by_part(config: GPTConfig, T: int | None = None) -> dict[str, int]:
    """Forward FLOPs per token by part, in a context of T tokens (default: block_size).

    The parts: "attention, linear", "attention, T×T", "mlp", "lm_head" (with vocab_rows rows), each over all blocks.
    Counts matrix products, 2 FLOPs for each multiply and add, and attention's T×T in full, although half of it
    is masked. Does not count biases, LayerNorm, GELU, softmax, sums and look-ups.
    """
    C, L, T = config.n_embd, config.n_layer, T or config.block_size
    return {
        "attention, linear": L * 2 * 4 * C * C,
        "attention, T×T": L * 2 * 2 * T * C,
        "mlp": L * 2 * 8 * C * C,
        "lm_head": 2 * C * config.vocab_rows,
    }


def flops_per_token(config: GPTConfig, T: int | None = None) -> int:
    """FLOPs per token of one training step, forward and backward: 3 × the sum of flops_by_part."""
    return 3 * sum(flops_by_part(config, T).values())


# %% [markdown]
r"""
PyTorch can count as well. `FlopCounterMode` watches every operation and knows a formula for each one that is a matrix product. On
the meta device it counts a model of full size without computing anything. `flash=False` writes attention as separate matrix products. The two
counts must agree to the last FLOP:
"""

# %%
with torch.device("meta"):
    meta, ids = GPT(GPTConfig(flash=False)), torch.zeros(1, 1024, dtype=torch.long)
with FlopCounterMode(display=False) as counter:
    meta(ids, ids)[1].backward()
counted, formula = counter.get_total_flops(), 1024 * flops_per_token(GPTConfig())
print(f"FLOPs of a step on 1,024 tokens: PyTorch counts {counted:,}, the formula {formula:,}")
assert counted == formula, "the formula and PyTorch differ"
answer("05.4", round(flops_per_token(SIZES["gpt2"]) / 1e6))

# %% [markdown]
r"""
A well-known rule of thumb says 6·N FLOPs per token: each of N parameters takes part in one multiplication and one addition, times three.
Kaplan et al. (2020, §2.1) leave the embeddings out of N. How good is the rule?
"""

# %%
print("MFLOPs per token        exact     6·N  lm_head     T×T  share of T×T")
for name, config in SIZES.items():
    parts, params, exact = flops_by_part(config), params_by_part(config), flops_per_token(config)
    rule = 6 * (num_params(config) - params["wte"] - params["wpe"])
    row = [exact, rule, 3 * parts["lm_head"], 3 * parts["attention, T×T"]]
    print(f"{name:20}", *[f"{flops / 1e6:8.0f}" for flops in row], f"{row[3] / exact:10.0%}")

# %% [markdown]
r"""
In the small model the rule misses two fifths of the FLOPs. Most of these are in `lm_head`: its matrix is the token table, which N leaves out, but
multiplying by it costs 2 FLOPs for each weight, as for any other matrix. The rest is attention's T×T. The rule is better for larger models, as
long as the context stays short. The T×T part is proportional to T: with twice the context it is twice as large, and in very long contexts it
is most of the work. Chapters 09 and 12 measure how much *time* it takes.

## Checkpoint

The checkpoint writes the exported cells to `nanogpt/model.py`. Chapter 06 fills the model with OpenAI's weights, and chapter 07 trains it.
"""

# %%
predictions("05")

# %%
checkpoint("05")

# %% [markdown]
r"""
## Exercises

`course exercises release 05` writes these as a notebook to `released/`; `course check 05` runs their visible checks.

- **05-1** Nearly LayerNorm, 15 minutes: repair one that differs from GPT-2's in two places.
- **05-2** Count a model that nobody has built, 30 minutes: parameters and FLOPs with shared keys and values.
- **05-3** Counted twice, 5 minutes: repair a count that finds 39 million parameters too many.
- **05-4** A block that adds three times, 25 minutes: repair an initialisation, for any number of additions.
- **05-5** A check for an untrained model, 45 minutes: write the check of five laws, the first loss among them.
- **05-6** A first loss that is too good, 10 minutes: find the mistake that lowers it by one nat.

To explore:

- Design a model of 24 layers with GPT-2 small's parameter count to within 1%, its width a multiple of 64. Do its FLOPs
  per token rise or fall, and which part does it?
- Untie `lm_head`. `num_params` should grow by exactly `vocab_size * n_embd`, `flops_per_token` by nothing.
- Take out all MLPs of GPT-2 small and add attention layers until the parameter count is the same again. How
  do the FLOPs per token compare at T = 1024, and at T = 16384?
- OpenAI's code draws `wpe` with 0.01, not 0.02. Does the first loss change, and should it, by the argument
  above?
- Multiply `wte` of the initialised `model` by 2, 5 and 10. At which factor does it begin to repeat tokens, and what is its loss there?
- Add a kind of block of your own to `bench/blocks.py`, such as an MLP that widens twice, and let it run.

## Further reading

- A. Radford et al., [*Language Models are Unsupervised Multitask Learners*](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf), 2019, §2.3: the changes from GPT to GPT-2,
  in one paragraph. The code, [github.com/openai/gpt-2](https://github.com/openai/gpt-2), `src/model.py`, has the rest.
- D. Hendrycks, K. Gimpel, [*Gaussian Error Linear Units*](https://arxiv.org/abs/1606.08415), 2016, §2.
- O. Press, L. Wolf, [*Using the Output Embedding to Improve Language Models*](https://arxiv.org/abs/1608.05859), 2017: tied embeddings.
- Y. Dong, J.-B. Cordonnier, A. Loukas, [*Attention Is Not All You Need: Pure Attention Loses Rank Doubly Exponentially
  with Depth*](https://arxiv.org/abs/2103.03404), 2021.
- R. Xiong et al., [*On Layer Normalization in the Transformer Architecture*](https://arxiv.org/abs/2002.04745), 2020, §3: pre-norm and post-norm.
- J. Kaplan et al., [*Scaling Laws for Neural Language Models*](https://arxiv.org/abs/2001.08361), 2020, §2.1: where 6·N comes from.
"""
