# %% [markdown]
r"""
# 19 · Fine-tuning: what is learned, and what is forgotten

Hardly anybody trains a model from random weights. Most people take weights that somebody else paid for, and train them on a little text of their own. A
falling loss shows that the model adapts. It does not show the costs: the model forgets some of its old abilities, the training needs memory, and
every task needs a copy of all weights. This chapter measures all three. Our texts come from grammars, so we can give both learning and
forgetting in nats above a known floor.
"""

# %%
#| default_exp labs.tuning.lora
#| doc labs.tuning.lora: Low-rank adaptation: small matrices beside frozen ones, merged or saved alone.
import copy
import hashlib
from collections import Counter

import numpy as np

from course.figures import fine_tuning as figures
from course.figures.other_town import retold
from course.notebook import answer, as_module, checkpoint, grown, predict, predictions, show
from nanogpt.data import DocumentStream
from nanogpt.device import pick_device, pick_scale
from nanogpt.evaluate import evaluate, evaluating
from nanogpt.labs.evals.accuracy import answer_accuracy
from nanogpt.labs.evals.excess import perfect_reader
from nanogpt.labs.evals.floor import floor_per_token, readings
from nanogpt.labs.roofline.memory import memory_by_category, saved_bytes
from nanogpt.model import SIZES, num_params
from nanogpt.optim import make_optimizer
from nanogpt.labs.roofline.clock import best_precision
from nanogpt.shards import open_shards
from nanogpt.labs.corpora.stories import ensure_corpus, entries, entropy, rules, stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import train, train_step
from nanogpt.weights import load_model

# %%
#| export
import json
import math
import os
from collections.abc import Collection
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save as serialize
from torch import Tensor, nn

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT
from nanogpt.pretrained import parameters_by_hf_name
from nanogpt.weights import UNREADABLE, digest, read_unchanged

# %% [markdown]
r"""
All sizes are set here. The model is chapter 07's, and so is the tokenizer. There is a learning rate for all weights (`FULL`), one for the last block
(`LAST`) and one for adapters (`LORA`, with the scale `ALPHA`).
"""

# %%
SEED, RANKS, ALPHA, REPLAY, HELD = 0, (4, 16), 8.0, 0.1, 150
device = pick_device()
B, STEPS, FULL, LAST, LORA = {
    "ci": (4, 60, 1e-3, 3e-3, 3e-3),
    "laptop": (4, 150, 1e-3, 3e-3, 3e-3),
    "gpu": (16, 200, 1e-4, 3e-4, 1e-3),
}[pick_scale(device)]
precision = "float32" if device.type == "cpu" else best_precision(device)
BUILT, MODEL = Path("../data/built"), Path("../data/built/model")
base = load_model(MODEL, device)  # chapter 07 wrote it
old_folder, T = BUILT / "stories", base.config.block_size
ensure_corpus(old_folder)
tokenizer = BPETokenizer.load(old_folder / "tokenizer.json")
eot = tokenizer.eot
assert base.config.vocab_size == tokenizer.vocab_size, f"{MODEL} has another vocabulary: run chapter 07"
print(f"{STEPS} steps of {B} rows, rates {FULL:g}, {LAST:g} and {LORA:g}")

# %% [markdown]
r"""
## Another town

What should we fine-tune on? We want a text that differs from the old one in a known way, and whose floor we know. Chapter 07's model has read stories of one town. Now we invent
another town, which differs from the first in two things. In the other town names are given the other way round: there, Otto is a girl's name and Anna a boy's. So Otto counts *her* seven shells. And where the two children of the first town put their things together, the girl of the second town finds as many as she has already. Two words are new, *as* and *again*. They are spelled
from smaller tokens.

`CHANGE` holds the lines of the grammar that are different.
"""

# %%
CHANGE = {
    "girl": " | ".join(rules()["boy"]),
    "boy": " | ".join(rules()["girl"]),
    "together": "Then {A} found as many again. Now she had {?n+n} {T}.",
}

# %% [markdown]
r"""
Within a block `with retold(CHANGE):` the grammar tells stories of the new town. After the block it is the old one again.

`hold_out` tells stories that no model has read, and returns their tokens and their exact floor. We do this once in each town.
"""


# %%
def hold_out(n: int = HELD, seed: int = 1) -> tuple[list, np.ndarray, float]:
    """Stories that no model has read, their tokens from first to last <|endoftext|>, and the floor of just these."""
    told = list(stories(n, seed=seed))
    ids = [i for story in told for i in (eot, *tokenizer.encode(story.text))]
    return told, np.array([*ids, eot]), floor_per_token(told, tokenizer)


here, before = hold_out(), entropy()
with retold(CHANGE):
    there, after = hold_out(), entropy()
    ways = {len(readings(story.text)) for story in there[0][:30]}
assert ways == {1}, "a story can be told in two ways, so that the floor is lower than it says"
held = {"old": here, "new": there}
print(next(story.text for story in there[0] if "as many" in story.text))
print(f"nats a story: {before:.3f} in the old town, {after:.3f} in the new one")
both = sum(bool(readings(story.text)) for story in there[0][:30])
print(f"new stories that the old town could tell, too: {both} of 30")

# %% [markdown]
r"""
Neither change adds or removes a choice of the grammar, so the floor is nearly the same, and we know it. How well does chapter 07's model predict
the new stories?
"""


# %%
def excess(model: GPT) -> dict[str, float]:
    """Loss above the floor, in nats a token, on held-out stories of both towns."""
    losses = {town: evaluate(model, [ids], eot, precision=precision) for town, (_, ids, _) in held.items()}
    return {town: loss - held[town][2] for town, loss in losses.items()}


# %%
predict("19.1", "new stories before any training, above the floor", guess=None, unit="nats a token")

# %% tags=["nbval-ignore-output"]
start = excess(base)
for town, nats in start.items():
    print(f"{town} stories: {nats:.3f} above the floor, which is {held[town][2]:.3f}")
answer("19.1", start["new"])

# %% [markdown]
r"""
## All weights

A model that was 0.03 nats above its floor is 1.44 above it in the next town. Chapter 18's table of pairs, which never looks further back than one token, is 1.8 nats a token above the floor in its own town.

Fine-tuning is ordinary training with another beginning: the same loop, another text, and few steps. There are also few new stories. We watch
two losses, one on new stories and one on old stories.
"""

# %%
name = hashlib.sha256(json.dumps(CHANGE, sort_keys=True).encode()).hexdigest()[:8]
new_folder = BUILT / f"stories-{name}"  # another change, another folder
with retold(CHANGE):
    manifest = ensure_corpus(new_folder, tokenizer, n=4000, seed=2)
print(f"{manifest['splits']['train']['documents']:,} new stories, of which {STEPS * B} rows are read")


# %% [markdown]
r"""
`batches` is chapter 03's stream over a folder of stories: each row begins with a story. `fine_tune` is chapter 07's `train`, with the model and the stream that it is given. We look at the beginning of one row.
"""


# %%
def batches(folder: Path, seed: int = SEED) -> DocumentStream:
    return DocumentStream(open_shards(folder, "train"), B, T, seed=seed, device=device)


def fine_tune(model: GPT, stream, lr: float, steps: int = STEPS, on_step=None) -> GPT:
    """The model after some steps on the stream's batches, ready to be evaluated."""
    train(model, stream, steps, lr, precision=precision, on_step=on_step)
    return model.eval()


print(tokenizer.decode(batches(new_folder).next_batch()[0][0, 1:40].tolist()), "…")

# %% [markdown]
r"""
*Predict.* The new stories contradict nothing about things, counts and phrases. After these steps, how far above their floor are
the *old* stories, which began so close to it?
"""

# %%
predict("19.2", "old stories afterwards, above the floor", guess=None, unit="nats a token")

# %% tags=["nbval-ignore-output"]
history, tuned = {0: start}, load_model(MODEL, device)


def watch(step: int, loss: Tensor) -> None:
    if (step + 1) % max(1, STEPS // 5) == 0:
        history[step + 1] = excess(tuned)


fine_tune(tuned, batches(new_folder), FULL, on_step=watch)
runs = {"all weights": excess(tuned)}
show(
    figures.adapting(history),
    alt="Above the floor against steps: new stories fall from one and a half nats to a tenth, old ones rise from nearly none to well over half a nat.",
)
answer("19.2", runs["all weights"]["old"])

# %% [markdown]
r"""
The model forgets while it learns, from the first steps on. Part of this cannot be avoided, because the towns contradict each other. A perfect reader of the new town expects a boy's name where the old story names a girl, expects *his* behind *Anna*,
and knows that it is the girls who love and count, and the boys who like and polish (see `proud` and `count` in the grammar). So an old story surprises him at these places. But in both towns somebody who is called Anna is called Anna again. So is anything lost where nothing has changed?
"""


# %%
TIED = {"her", "his", "she", "he", "loved", "liked", "counted", "polished", "showed", "offered"}


def nats_by_kind(model: GPT, told: list) -> dict[str, float]:
    """What the model pays for a story, in nats, by kind of token."""
    paid, names = Counter(), {name for pool in ("girl", "boy") for name, *_ in entries(pool)}
    for story in told:
        ids, seen = torch.tensor([eot, *tokenizer.encode(story.text)])[: T + 1], set()
        with evaluating(model), torch.no_grad():
            logits = model(ids[None, :-1].to(device))[0][0].float().cpu()
        for i, nats in zip(ids[1:].tolist(), F.cross_entropy(logits, ids[1:], reduction="none").tolist()):
            word = tokenizer.decode([i]).strip(' .,"')
            kind = "a pronoun or verb" if word.lower() in TIED else "all else"
            if word in names:
                kind = "a name, again" if word in seen else "a name, first time"
            seen.add(word)
            paid[kind] += nats / len(told)
    return paid


# %% tags=["nbval-ignore-output"]
paid = {which: nats_by_kind(model, here[0][:60]) for which, model in (("before", base), ("after", tuned))}
show(
    figures.by_kind(paid),
    alt="Nats an old story by kind of token, before and after: pronouns and verbs cost most of the difference.",
)
lost = {kind: paid["after"][kind] - nats for kind, nats in paid["before"].items()}
print(
    f"{sum(lost.values()):.0f} nats an old story are lost:",
    ", ".join(f"{kind} {nats:.0f}" for kind, nats in lost.items()),
)
untold = nats_by_kind(base, there[0][:60])["a name, again"]
print(
    f"names said again: {paid['before']['a name, again']:.0f} nats an old story before, {untold:.0f} nats a new one"
)
# %% [markdown]
r"""
Two thirds of the loss are the pronouns and verbs, and nearly a tenth the first names: there the towns contradict each other. Most of the rest is paid for names that are in the text already. And look at the last line: before any training, the model paid 5 nats for the repeated names of an old story, and 46 for those of a new one. Had it never learned to repeat a name?

*Predict.* Where a name is said again in a new story, on what does chapter 07's model put its probability: on the right child, on the other child of the story, or on somebody from outside?
"""


# %% tags=["nbval-ignore-output"]
def who_comes(model: GPT, told: list) -> list[str]:
    """Where a name is said again, the mean probability of that name, of the other child's, and of all other names."""
    tokens = {name: tokenizer.encode(" " + name)[0] for pool in ("girl", "boy") for name, *_ in entries(pool)}
    right, other, outside, places = 0.0, 0.0, 0.0, 0
    for story in told:
        children = {story.facts[key][0] for key in "AB"}
        ids = [eot, *tokenizer.encode(story.text)][: T + 1]
        with evaluating(model), torch.no_grad():
            p = model(torch.tensor([ids[:-1]], device=device))[0][0].float().softmax(-1).cpu()
        for i, following in enumerate(ids[1:]):
            name = tokenizer.decode([following]).strip()
            if name in children and name in tokenizer.decode(ids[1 : i + 1]):
                both = [p[i, tokens[child]].item() for child in children]
                right += p[i, following].item()
                other += sum(both) - p[i, following].item()
                outside += p[i, list(tokens.values())].sum().item() - sum(both)
                places += 1
    return [f"{share / places:.0%}" for share in (right, other, outside)]


def knows_the_grammar(told: list) -> str:
    """The mean probability of the right child at the same places, for chapter 18's perfect reader."""
    chances = []
    for story in told:
        children = {story.facts[key][0] for key in "AB"}
        for i, (nats, kind) in zip(tokenizer.encode(story.text), perfect_reader(story.text, tokenizer)):
            if kind == "names, again" and tokenizer.decode([i]).strip() in children:
                chances.append(math.exp(-nats))
    return f"{np.mean(chances):.0%}"


print("the right child, the other one, a name from outside")
print("before, old stories:", *who_comes(base, here[0][:60]))
print("before, new stories:", *who_comes(base, there[0][:60]))
print("after, old stories: ", *who_comes(tuned, here[0][:60]))
print("the right child in old stories, for a reader who knows the grammar:", knows_the_grammar(here[0][:60]))

# %% [markdown]
r"""
It does repeat names: in both towns nine tenths of its probability are on the two children of the story. But in a new story it names the wrong one. (In an old story its 70% are nearly all that can be had: many sentences may begin with either child, so even a reader who knows the grammar gives the right one only 72%.) So the rule that it has learned is not "say a name again", it is "say the *girl's* name again, at the places of girls". The old rule names the wrong child in the new town, and after the training the new rule names the wrong child in the old town. The two towns contradict each other here as well.

And the answers? In both towns a copied number follows *her* or *his*, and both towns add and subtract in the same way, so nothing of this had to be forgotten. We ask 300 old stories, before and after. There are two controls. One trains the model for as many steps, at the same rate, on *old* stories. The other repeats both trainings at a tenth of the rate.
"""

# %% tags=["nbval-ignore-output"]
asked = list(stories(300, seed=1))
ways = {"before": base, "after new stories": tuned}
ways["after old stories"] = fine_tune(load_model(MODEL, device), batches(old_folder), FULL)
for town, folder in {"new": new_folder, "old": old_folder}.items():
    slow = fine_tune(load_model(MODEL, device), batches(folder), FULL / 10)
    ways[f"after {town} stories, a tenth of the rate"] = slow
for which, model in ways.items():
    right = answer_accuracy(model, asked, tokenizer)
    print(
        f"right answers in old stories {which}:",
        ", ".join(f"{kind} {share:.0%}" for kind, share in right.items()),
    )

# %% [markdown]
r"""
Copying is untouched: all copied numbers are right after every training. Computing has suffered, from 50% to 36%. But look at the controls. Old stories alone, which contradict nothing, cost most of it (40%; one standard error is three points). And at a tenth of the rate neither text costs any of it: 57% are right after the new stories and 55% after the old ones. So the high rate has cost the arithmetic, and not the new town. A comparison of before and after alone would have blamed the town.

## Part of the weights

*Frozen layers.* A parameter without a gradient does not change, and the optimizer keeps no moments for it. The usual choice is to train only the last block, here together with the layer norm behind it (`ln_f`).
"""


# %%
#| export
#| blank freeze: first check the words, then set requires_grad and drop the gradients of what is frozen
def freeze(model: nn.Module, *trainable: str) -> nn.Module:
    """Only parameters whose names contain one of these words get gradients from now on; returns the model.

    freeze(model, "") thaws everything. What is frozen loses its .grad, or an optimizer would go on using it.
    ValueError, with the word in quotes, where a word is in no name; the model is untouched then.
    """
    named = dict(model.named_parameters())
    for word in trainable:
        if not any(word in name for name in named):
            raise ValueError(f"no parameter's name contains {word!r}; one is {[*named][-1]}")
    for name, p in named.items():
        p.requires_grad_(any(word in name for word in trainable))
        p.grad = p.grad if p.requires_grad else None  # or an optimizer would go on using it
    return model


# %% tags=["nbval-ignore-output"]
model = freeze(load_model(MODEL, device), f".h.{base.config.n_layer - 1}.", ".ln_f")
runs["last block"] = excess(fine_tune(model, batches(new_folder), LAST))
print(", ".join(f"{town} stories {nats:.2f} above the floor" for town, nats in runs["last block"].items()))

# %% [markdown]
r"""
The last block alone learns the new stories nearly as well as all weights did, and forgets more of the old ones (1.04 against 0.69), although almost two thirds of the weights did not change. Freezing protects weights, and not what they are used for.

*Low rank.* LoRA (Hu et al. 2021, §4.1) leaves W as it is and learns a matrix that is added to it. This matrix is a product of two thin ones: ΔW = α/r · BA, where A has r rows and B has r
columns. B begins at zero, so training starts exactly at the pretrained model. A must not begin at zero as well, or neither of them would ever get a
gradient.
"""


# %%
#| export
#| blank LoRALinear.forward: the layer's own result, plus alpha / rank times the narrow path (of x in A's type)
class LoRALinear(nn.Linear):
    """x -> W x + b + alpha / rank · B (A x), of which A and B are trained (Hu et al. 2021, §4.1).

    Takes over the W and b of a linear layer. A (rank, in) is N(0, 1 / in), so that A x is as large as the entries of x;
    B (out, rank) is zero, so that nothing changes at first. ValueError where the layer can have no such rank.
    A and B may have another type than W and x (chapter 10's bf16-masters): the narrow path gets x in the type of A.
    """

    def __init__(self, linear: nn.Linear, rank: int, alpha: float, generator: torch.Generator | None = None):
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        limit = min(self.in_features, self.out_features)
        if type(rank) is not int or not 1 <= rank <= limit or not 0 < alpha < math.inf:
            raise ValueError(f"rank={rank!r} must be an integer from 1 to {limit}, alpha={alpha} positive")
        self.weight, self.bias = linear.weight, linear.bias
        self.rank, self.alpha = rank, alpha
        A = torch.randn(rank, self.in_features, generator=generator) / math.sqrt(self.in_features)
        self.lora_A = nn.Parameter(A.to(self.weight))
        self.lora_B = nn.Parameter(self.weight.new_zeros(self.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:  # (..., in) -> (..., out)
        narrow = F.linear(x.to(self.lora_A.dtype), self.lora_A)  # (..., rank)
        return super().forward(x) + self.alpha / self.rank * F.linear(narrow, self.lora_B)


# %%
layer = LoRALinear(nn.Linear(6, 4), rank=2, alpha=4.0, generator=torch.Generator().manual_seed(0))
x = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
print("the same outputs at first:", torch.equal(layer(x), F.linear(x, layer.weight, layer.bias)))
layer(x).square().sum().backward()
print("gradient of A:", layer.lora_A.grad.abs().sum().item(), "and of B:", tuple(layer.lora_B.grad.shape))

# %% [markdown]
r"""
The first gradient of A is zero, because it comes through B, which is zero. After one step it is not.

*Where do the adapters go?* The paper adapts the matrices of attention only. By default we adapt all four products of a block. (`TARGETS` has three names, because attention and the MLP both call their last layer `c_proj`.) `c_attn` holds
queries, keys and values together, so these three share one A. We leave out the embeddings and the tied head. They are a table, and a task may need to change each of its rows
independently of the others, which a low rank cannot do.
"""


# %%
#| export
TARGETS = ("c_attn", "c_proj", "c_fc")  # all products of a block


def linear_layers(model: GPT) -> dict[str, nn.Linear]:
    """The linear layers of the blocks, by name."""
    return {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and ".h." in name}


def lora_parameters(model: GPT) -> dict[str, nn.Parameter]:
    """The adapters' matrices by name; empty where there are none."""
    return {name: p for name, p in model.named_parameters() if ".lora_" in name}


# %%
#| export
def add_lora(model: GPT, rank: int, alpha=8.0, targets: Collection[str] = TARGETS, generator=None) -> GPT:
    """Freeze the model and put a LoRALinear in place of each linear layer with one of these names; returns the model.

    Its outputs stay what they were. generator: for A, on the CPU. ValueError, the model untouched, where it has
    adapters already, or no layer has such a name or rank.
    """
    if lora_parameters(model):
        raise ValueError("the model has adapters already; merge(model) them, or load the base again")
    targets = [targets] if isinstance(targets, str) else targets
    # a model of another family may say which of its layers a word means
    means = getattr(model, "lora_names", {})
    wanted = {name for word in targets for name in means.get(word, [word])}
    # all layers are made before the first is put in, so that an error changes nothing
    layers = {name: layer for name, layer in linear_layers(model).items() if name.split(".")[-1] in wanted}
    unknown = wanted - {name.split(".")[-1] for name in layers}
    if unknown or not wanted:
        what = ", ".join(sorted(unknown)) or "nothing"
        raise ValueError(f"{what} is no linear layer of a block; choose among {', '.join(TARGETS)}")
    adapted = {name: LoRALinear(layer, rank, alpha, generator) for name, layer in layers.items()}
    for name, layer in adapted.items():
        model.set_submodule(name, layer.train(model.training))
    return freeze(model, ".lora_")


# %% [markdown]
r"""
*Predict.* GPT-2 small has 124 million parameters. Which part of this number do adapters of rank 4 have?
"""

# %%
predict("19.3", "of GPT-2's parameters, adapters of rank 4 are", guess=None, unit="%")


# %%
def with_adapters(rank: int, alpha: float = ALPHA) -> GPT:
    """Chapter 07's model with new adapters, always the same ones."""
    return add_lora(load_model(MODEL, device), rank, alpha, generator=torch.Generator().manual_seed(SEED))


def trained(model: GPT) -> int:
    """How many numbers training would move."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


for size in reversed(SIZES):
    with torch.device("meta"):
        share = trained(add_lora(GPT(SIZES[size]), 4)) / num_params(SIZES[size])
    print(f"{size:11} rank 4 trains {share:.2%} of {num_params(SIZES[size]):,}")
answer("19.3", 100 * share)
print(f"this model  rank 4 trains {trained(with_adapters(4)) / num_params(base.config):.2%}")

# %% [markdown]
r"""
A layer with `in` inputs and `out` outputs has in × out numbers, and its adapter has r (in + out). So the share falls as the model becomes wider, and a
narrow model has little to save.

*Why α/r?* The scale makes one learning rate fit all ranks. In its first step Adam moves every entry of B by the learning rate, and r such entries are added up in
each output. The next cell shows how far one step moves the logits, with the scale and without it.
"""

# %% tags=["nbval-ignore-output"]
x, y = batches(new_folder).next_batch()


def first_move(rank: int, alpha: float) -> float:
    """Root mean square of what one update of the adapters changes in the logits."""
    model = with_adapters(rank, alpha)
    unmoved = model(x)[0].detach()
    train_step(model, make_optimizer(model, 1e-3), [(x, y)])
    return (model(x)[0] - unmoved).square().mean().sqrt().item()


for rank in (1, 4, 16, 64):
    print(f"rank {rank:2}: α = {ALPHA:g} {first_move(rank, ALPHA):.3f}, α = r {first_move(rank, rank):.3f}")

# %% [markdown]
r"""
With the scale, the first step moves the logits by 0.04 to 0.08 at every rank from 1 to 64. Without it, the move grows more than thirtyfold, and each rank would need a rate of its own.

## Check

Four laws must hold. At the start the outputs are those of the base. At the end the frozen weights are unchanged to the bit. No update has a higher rank than we asked for. And the merged model gives the
same logits as the unmerged one, up to rounding.
"""


# %%
#| export
#| blank weight_update: the product of the two narrow matrices, scaled as in forward
#| blank merge: add the update to W, delete the adapter, make its __class__ nn.Linear again; then thaw everything
def weight_update(layer: LoRALinear) -> Tensor:
    """What an adapter adds to W, (out, in), in float32."""
    return layer.alpha / layer.rank * layer.lora_B.float() @ layer.lora_A.float()


@torch.no_grad()
def merge(model: GPT) -> GPT:
    """Add each adapter to its W and remove it; returns the model, plain again and all of it trainable."""
    for layer in linear_layers(model).values():
        if isinstance(layer, LoRALinear):
            layer.weight += weight_update(layer).to(layer.weight.dtype)
            del layer.lora_A, layer.lora_B
            layer.__class__ = nn.Linear
    return freeze(model, "")


# %% tags=["nbval-ignore-output"]
for rank in RANKS:
    adapted = fine_tune(with_adapters(rank), batches(new_folder), LORA)
    found = runs[f"LoRA, rank {rank}"] = excess(adapted)
    print(f"rank {rank:2}: {found['new']:.3f} above the new floor")

# %%
fresh = with_adapters(RANKS[-1])
with torch.no_grad():
    assert torch.equal(fresh(x)[0], base(x)[0]), "an adapter that was not trained changes the outputs"
    logits = adapted(x)[0]
frozen = {name: p for name, p in adapted.named_parameters() if not p.requires_grad}
assert all(torch.equal(p, frozen[name]) for name, p in base.named_parameters()), "a frozen weight has moved"
adapters = {n: layer for n, layer in linear_layers(adapted).items() if isinstance(layer, LoRALinear)}
for name, layer in adapters.items():
    sizes = torch.linalg.svdvals(weight_update(layer).double())
    assert (sizes[RANKS[-1] :] < 1e-6 * sizes[0]).all(), f"the update of {name} has a rank above {RANKS[-1]}"
print("equal at the start, base unmoved, rank as asked")

# %%
merged = merge(copy.deepcopy(adapted))
with torch.no_grad():
    distance = ((merged(x)[0] - logits).abs().max() / logits.abs().max()).item()
assert distance < 1e-4, f"merged and unmerged logits differ by {distance:.0e} of the largest"
print("merged: no adapter left, the same logits to 1e-4 of the largest, nothing more to compute")

# %% [markdown]
r"""
A merged model is a GPT like any other. `save_model`, the sampler and the evaluation need not know that there was an adapter.

But we do not have to merge. The adapter can be saved alone, beside a base that many tasks share. Then a task is a small file. This needs some care, because an adapter beside the wrong base loads without
an error and writes nonsense. The first appendix builds `save_adapter` and `load_adapter`, which compare a hash of the base, and lets `sample` and `eval` read such a folder.

## What it costs

In float32 a parameter needs 4 bytes for its weight. If it is trained, it needs 4 more for its gradient and 8 for two moments. Adapters save most of these. But they save little of the activations that
autograd keeps: to train the adapter of the first layer, the gradient must come back through all layers.

*Predict.* In GPT-2 small with 4 rows of 1,024 tokens, how much memory does rank 4 need, in per cent of full fine-tuning?
"""

# %%
predict("19.4", "GPT-2, 4 × 1,024 tokens: memory of rank 4, of full fine-tuning's", guess=None, unit="%")


# %%
def memory(config, B: int, T: int, rank: int = 0) -> dict[str, int]:
    """Bytes of a float32 step by category, of all weights (chapter 09b) or of adapters in all blocks."""
    full = memory_by_category(config, B, T)
    if not rank:
        return full
    N, C, L = B * T, config.n_embd, config.n_layer
    trained, tensors = L * rank * 16 * C, 8 * L  # r (in + out): (1 + 3) + (1 + 1) + (1 + 4) + (4 + 1) times C
    unsaved = 4 * (2 * N * C + 2 * N) + 8 * (N + T)  # what wte, wpe, the first ln_1 and the head need no more
    return {
        "parameters": full["parameters"] + 4 * trained,
        "gradients": 4 * trained,
        "optimizer": 8 * trained + 4 * tensors,
        "activations": full["activations"] - unsaved + 4 * L * 4 * N * rank,
    }


# %%
rows = {"all weights": memory(SIZES["gpt2"], 4, 1024), "rank 4": memory(SIZES["gpt2"], 4, 1024, rank=4)}
for way, parts in rows.items():
    print(f"{way:12}", ", ".join(f"{part} {n / 2**30:.2f}" for part, n in parts.items()), "GiB")
whole, low = (sum(parts.values()) for parts in rows.values())
answer("19.4", 100 * low / whole)

# %% [markdown]
r"""
At this size and batch the activations are the larger part. Adapters keep nearly all of them and add their own narrow ones. They save the gradients and moments
of the frozen weights. (An appendix counts the same four parts in this chapter's own model, and the formula is exact to the byte.) In the paper the saving is much larger, because the model is: the
memory of the GPUs that train 175 billion parameters fell from 1.2 TB to 350 GB (Hu et al. 2021, §4.2). The frozen weights alone, in 16 bits, are 350 GB. The file of a task shrank from 350 GB to 35 MB. Training only
the last block saves activations as well, because nothing below it needs a gradient.

## The trade-off

The result of each way depends on its learning rate, so a comparison at one rate each says nothing. The lines of the figure are runs at several
rates with two seeds, recorded by `python bench/finetune.py`. The crosses are the runs of this chapter. Points further left are better adapted, and points further down have forgotten
less.

*Predict.* LoRA changes fewer numbers. If both have adapted equally well, has LoRA forgotten less than full fine-tuning?
"""

# %%
predict("19.5", "as well adapted, rank 16 has forgotten less than all weights", guess=None)

# %% tags=["nbval-ignore-output"]
recorded = json.loads(Path("../data/measurements/finetune.json").read_text())
# Another experiment is not drawn beside these, nor one in another town or of another model.
keys = "steps", "rows", "alpha", "held_out_stories", "town"
alike = [recorded[key] for key in keys] == [STEPS, B, ALPHA, HELD, new_folder.name]
alike &= abs(start["new"] / recorded["base"]["new"] - 1) < 0.1
alone = [run for run in recorded["runs"] if not run["replay"]]
show(
    figures.trade_off(alone, runs if alike else {}, recorded["base"]),
    alt="Old against new excess loss, a line for each way: all weights lie below and left of the adapters.",
)
for way, found in runs.items():
    print(f"{way:14} new +{found['new']:.3f}, old +{found['old']:.3f}")

# %% [markdown]
r"""
Follow one line from right to left. The rate rises, the new stories are learned better, and more of the old ones is forgotten. At some rate the line turns back: it was too high.

To read numbers off the figure, we compare at the same loss on new stories. A number in the table is what a way has forgotten where its line is 0.20, 0.15 or 0.10 above the new floor. A dash means that the line does not pass through this value.
"""

# %%
figures.forgotten_table(recorded | {"runs": alone}, (0.20, 0.15, 0.10))
full, low = (figures.forgotten_at(0.2, recorded, way) for way in ("all weights", "LoRA, rank 16"))
answer("19.5", "yes" if low < full else "no")

# %% [markdown]
r"""
Compared at the same loss on new stories, training all weights forgets least in these runs, and adapters of lower rank forget more. The missing embeddings are not
the reason: training all weights except the embeddings forgets less than any adapter, and so does training the embeddings alone. So here LoRA forgets less only at a shared rate, where it
also learns less. Where both have learned equally much, it forgets more.

Biderman et al. 2024 (§4.3) compared the same two axes on code and mathematics, with models ten
thousand times as large. They report that both ways "seem to occupy the same Pareto curve", with LoRA at the end that
learns less and forgets less, and that in some cases, especially code, LoRA forgot less at the same performance. A result of this kind holds for
a model, a text and a number of steps. Ours is for 150 steps on a text that reverses the old one. At every size adapters save the memory of the
optimizer's states, and they need only a small file for each task.

## Replay

One remedy needs no new idea: the model continues to read some of the old text. `Replay` is a stream in which each row comes from the old text with a given probability. To try it, we ask for half of the rows and
count those that are the old stream's own.
"""


# %%
class Replay:
    """Batches of which a share of the rows, drawn one by one, comes from another stream."""

    def __init__(self, new: DocumentStream, old: DocumentStream, share: float):
        self.new, self.old, self.share = new, old, share
        self.generator = torch.Generator().manual_seed(new.seed)

    def next_batch(self) -> tuple[Tensor, Tensor]:
        (x, y), (old_x, old_y) = self.new.next_batch(), self.old.next_batch()
        old = (torch.rand(len(x), 1, generator=self.generator) < self.share).to(x.device)
        return torch.where(old, old_x, x), torch.where(old, old_y, y)


# %%
rows_of_both, _ = Replay(batches(new_folder), batches(old_folder), 0.5).next_batch()
old_rows = (rows_of_both == batches(old_folder).next_batch()[0]).all(1)
print(old_rows.sum().item(), "of", len(old_rows), "rows are old ones")

# %% [markdown]
r"""
We fine-tune all weights once more, and let a tenth of the rows be old ones. How well could the best possible reader do? It
knows both grammars and this share. The first name in a story tells it which town it is in. So an old story costs it ln 10 more
than the floor, a new story costs ln(10/9) more, and there is no other cost. The star in the figure marks this reader.
"""

# %% tags=["nbval-ignore-output"]
assert 0 < REPLAY < 1, f"REPLAY={REPLAY} is a share of rows, above 0 and below 1"
mixed = Replay(batches(new_folder), batches(old_folder), REPLAY)
runs = {"replay": excess(fine_tune(load_model(MODEL, device), mixed, FULL))}
shares = {"new": 1 - REPLAY, "old": REPLAY}
star = {town: -math.log(p) * HELD / (len(held[town][1]) - 1) for town, p in shares.items()}
with_replay = [run for run in recorded["runs"] if run["way"] in ("all weights", "LoRA, rank 16")]
as_recorded = REPLAY in [run["replay"] for run in with_replay]
show(
    figures.trade_off(with_replay, runs if alike and as_recorded else {}, recorded["base"], star),
    alt="Old against new excess loss: the dashed lines with replay lie far below the lines of the same way without.",
)
for way, found in (runs | {"knows both": star}).items():
    print(f"{way:14} new +{found['new']:.3f}, old +{found['old']:.3f}")

# %%
figures.forgotten_table(recorded | {"runs": with_replay}, (0.20, 0.15, 0.10))

# %% [markdown]
r"""
Replay helps more than any choice of weights. At the same loss on new stories, a model that reads a tenth of old rows has forgotten about half as much: with all weights 0.24 where the line without replay is above 0.4 (in the figure, above the cross), with rank 16 0.23 in place of 0.45 (in the table, at 0.15). It costs
the new stories little. The star is far away, so a tenth of 600 rows has not yet taught the model to distinguish the towns as that reader does. The last line of the table is the control that we have used above, old stories alone at the same rate. Restarting at a high learning rate costs 0.03 nats a token and most of the computed answers that were lost. It does not cause the rest of the forgetting.
"""

# %% [markdown]
r"""
## Appendix: an adapter, saved alone

An adapter works only together with the weights that it was trained beside. With others it would load and write nonsense. So its file
contains a hash of its base. It also contains the *place* of the base, as PEFT's `adapter_config.json` does, so that whoever gets the folder need not
ask. If the base is a folder, we write the way to it from the adapter's own folder, and both can be moved together.
"""


# %%
#| export
ADAPTER = "adapter.safetensors"


FREE = {"block_size", "dropout", "flash", "padded_vocab_size"}  # what a shape may have otherwise


def base_digest(model: GPT) -> str:
    """SHA-256 of what the adapters stand on: the model's shape and all other weights, without padding."""
    named = parameters_by_hf_name(model).items()
    base = {name: p.detach().float().cpu().contiguous() for name, p in named if ".lora_" not in name}
    shape = {key: value for key, value in vars(model.config).items() if key not in FREE}
    return digest(shape, serialize(base))


# %%
#| export
def save_adapter(model: GPT, folder: str | Path, base_model: str | Path | None = None) -> None:
    """Write the adapters alone, adapter.safetensors and adapter.json, with a hash of both and one of their base.

    base_model: the folder of the base, or its name on the hub; with it, `load` needs the adapter's folder alone.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile puts another module around it
    layers = {name: m for name, m in linear_layers(model).items() if isinstance(m, LoRALinear)}
    if not layers:
        raise ValueError("the model has no adapter to save; add_lora(model, rank) makes them")
    one = next(iter(layers.values()))
    targets = sorted({name.split(".")[-1] for name in layers})
    fields = {"rank": one.rank, "alpha": one.alpha, "targets": targets, "base": base_digest(model)}
    # a folder by the way to it from here, so that both can be moved together
    if base_model is not None:
        place = os.path.relpath(base_model, folder) if Path(base_model).is_dir() else base_model
        fields["base_model"] = Path(place).as_posix()
    data = serialize({name: p.detach().cpu().contiguous() for name, p in lora_parameters(model).items()})
    with atomically(Path(folder) / ADAPTER) as file:
        file.write(data)
    save_json(Path(folder) / "adapter.json", fields | {"sha256": digest(fields, data)})


# %%
#| export
def load_adapter(model: GPT, folder: str | Path) -> GPT:
    """Put the adapters that save_adapter wrote beside the weights that they were trained with; returns the model.

    A model that has such adapters gets their numbers. OSError or ValueError if a bit has changed or the base is another.
    """
    folder = Path(folder)
    try:
        fields, tensors = read_unchanged(folder / "adapter.json", folder / ADAPTER)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename} is not there; save_adapter writes it") from None
    except UNREADABLE as error:
        raise ValueError(f"{folder} holds no adapter that save_adapter wrote whole: {error}") from None
    fields.pop("base_model", None)
    if fields.pop("base") != base_digest(model):
        raise ValueError(f"the adapter in {folder} was trained beside other weights than this model's")
    if not lora_parameters(model):
        add_lora(model, **fields)
    model.load_state_dict(tensors, strict=False)
    return model


# %% tags=["nbval-ignore-output"]
folder = BUILT / "adapter"
save_adapter(adapted, folder, base_model=MODEL)
again = load_adapter(load_model(MODEL, device), folder)
with torch.no_grad():
    assert torch.equal(again(x)[0], logits), "an adapter that was saved and loaded gives other logits"
sizes = [path.stat().st_size / 2**20 for path in (folder / ADAPTER, MODEL / "model.safetensors")]
print("adapter {:.2f} MiB, model {:.2f} MiB".format(*sizes))
try:
    load_adapter(tuned, folder)
except ValueError as error:
    print(error)

# %% [markdown]
r"""
## Appendix: an adapter's folder is a checkpoint

So far only this notebook can use our adapter. `python -m nanogpt sample` and `eval` load their model with chapter 08's `load`. It has to
learn one thing more. If the folder has an `adapter.json`, load the base that it names, put the adapter beside it, and merge. The base may be a folder or a name on the
hub, so `load` calls itself for it. This also brings the base's tokenizer. The adapters are a lab, which `load` imports by its name when it finds such a folder. (The checkpoint below writes it; until then `as_module` lets `load` find the functions of this notebook.) Below, the loaded model continues "One sunny day".
"""

# %%
from nanogpt.sampling import complete

# %%
#| export sampling
from importlib import import_module

from nanogpt.checkpoint import pick_checkpoint
from nanogpt.pretrained import is_ours, load_pretrained
from nanogpt.tokenizer import BPETokenizer


# %%
#| export
def base_of(folder: Path) -> str:
    """The folder or the hub name of an adapter's base. ValueError or OSError if it is not given, or not there."""
    base = json.loads((folder / "adapter.json").read_bytes()).get("base_model")
    if base is None:
        raise ValueError(f"{folder}/adapter.json names no base_model; save_adapter(model, folder, base) does")
    beside = folder / base
    if base.startswith(".") and not beside.is_dir():  # no name on the hub begins so
        raise FileNotFoundError(f"{beside} is not there, and the adapter in {folder} needs it as its base")
    return str(beside) if beside.is_dir() else base


# %%
#| export sampling
#| grows load
def load(checkpoint: str, tokenizer: str | None = None) -> tuple[GPT, BPETokenizer]:
    """Model and tokenizer of a model's, a run's or an adapter's folder, a Hugging Face folder or a name on the hub.

    tokenizer: gpt2, a tokenizer.json or a Hugging Face folder, where none is beside the weights, and GPT-2's does not fit.
    """
    folder = pick_checkpoint(checkpoint)
    if not folder.exists() and len(folder.parts) > 2:  # a name on the hub has two parts at most
        raise FileNotFoundError(f"{folder} is not there; chapter 07 writes data/built/model (course run 07)")
    if (folder / "adapter.json").is_file():
        lora, beside = import_module("nanogpt.labs.tuning.lora"), folder / "tokenizer.json"
        model, tokenizer = load(lora.base_of(folder), tokenizer or (beside if beside.exists() else None))
        return lora.merge(lora.load_adapter(model, folder)), tokenizer
    model = load_model(folder) if is_ours(folder) else load_pretrained(checkpoint)
    vocab = import_module("nanogpt.labs.corpora.vocab")
    return model, vocab.words_for(folder, tokenizer, model.config.vocab_size)


# %% tags=["nbval-ignore-output"]
print(json.loads((folder / "adapter.json").read_text())["base_model"], "is the base, seen from the adapter")
as_module("labs.tuning.lora")
loaded, coder = load(str(folder))
with torch.no_grad():
    same = torch.equal(loaded.to(device)(x)[0], merged(x)[0])
assert same, "an adapter that was loaded with its base is not the merged model"
print("the same logits as the merged model, to the bit")
print(complete(loaded, coder, "One sunny day", 40, temperature=0.0))
grown("load", "19")

# %% [markdown]
r"""
On the command line the same is `python -m nanogpt sample --checkpoint data/built/adapter`, and `eval` takes the folder as well. If the base was trained further in the meantime, its hash is
another one, and `load` refuses. In chapter 19c the trainer learns adapters, too.
"""

# %% [markdown]
r"""
## Appendix: the memory of this model, counted

The formula in the section on costs can be checked on the small model. `measured` makes one step and counts the bytes that exist then: parameters, gradients, the optimizer's tensors, and what
autograd has saved.
"""


# %%
def measured(model: GPT) -> dict[str, int]:
    """The same four parts, counted after one step of this model."""
    optimizer = make_optimizer(model, 1e-3)
    activations = saved_bytes(lambda: model(x, y), exclude=model.parameters())
    train_step(model, optimizer, [(x, y)])
    moments = [t for state in optimizer.state.values() for t in state.values()]
    parts = {"parameters": list(model.parameters()), "optimizer": moments}
    parts["gradients"] = [p.grad for p in model.parameters() if p.grad is not None]
    held = {name: sum(t.nbytes for t in tensors) for name, tensors in parts.items()}
    return held | {"activations": activations}


# %%
counted = {"all weights": measured(load_model(MODEL, device).train())}
for rank in RANKS:
    counted[f"LoRA, rank {rank}"] = measured(with_adapters(rank).train())
for way, rank in zip(counted, (0, *RANKS)):
    formula = memory(base.config, B, T, rank)
    wrong = [part for part in formula if formula[part] != counted[way][part]]
    assert device.type != "cpu" or not wrong, (
        f"{way}: {wrong} are not as the formula for adapters in all products says"
    )
    print(f"{way:14} {sum(counted[way].values()):,} bytes")
last = freeze(load_model(MODEL, device), f".h.{base.config.n_layer - 1}.", ".ln_f")
counted["last block"] = measured(last.train())
show(
    figures.memory(counted, *rows.values()),
    alt="Memory by category: adapters leave out gradients and moments; activations, the largest part, stay.",
)

# %% [markdown]
r"""
On a CPU the formula is exact. On the left, the last block alone needs less than any adapter: autograd saves nothing below it.
"""

# %% [markdown]
r"""
## Appendix: a published run

How does fine-tuning look with GPT-2 itself? We read two logs of llm.c, one from an RTX 4070 SUPER and one from an H800. Both start with GPT-2's weights. The first reads TinyShakespeare once, in 74 steps of 4,096 tokens at a constant rate of 3e-4.
"""


# %%
held_out, in_training = figures.logs(Path("../data/reference"))
for run, curve in held_out.items():
    print(f"{run}: held-out loss {', '.join(f'{nats:.2f}' for nats in curve.values())}")

# %% [markdown]
r"""
The final losses of the two logs must not be compared: the H800's 3.52 is a mean over 20 held-out batches, the 4070's 3.48 over 8.
But both show that GPT-2 adapts within some dozen steps, even to a text as strange to it as Shakespeare's.

Our own command for this is `python -m nanogpt train finetune`, from the same weights with the same sizes and rate. It needs 500 MB of weights
and, if you do not want to wait for hours, a GPU. If you have run it, its curve is drawn as well. Compare its shape, not its height: llm.c holds out the
text's first 32,768 tokens, and our command a tenth of the speeches from all over the text.
"""

# %% tags=["nbval-ignore-output"]
log = Path("../runs/finetune/metrics.jsonl")
if log.exists():
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    held_out["ours"] = {m["step"]: m["val_loss"] for m in lines if m.get("val_loss")}
    in_training["ours"] = {m["step"] - 1: m["loss"] for m in lines if m.get("loss")}
else:
    print("No run of ours is here: `python -m nanogpt train finetune` writes runs/finetune.")
show(
    figures.published(held_out, in_training),
    alt="Loss against steps: from 4.5 to below 3.7 within 20 steps, then slowly to 3.5.",
)

# %% [markdown]
r"""
If GPT-2's weights are on this machine, one number of the published runs can be checked without training. For the text's first 4 rows of 64 tokens after the
held-out ones, three CPUs of different makes printed 5.356. (The loss is so high because a row begins anywhere, and 64 tokens are
little context.)
"""

# %% tags=["nbval-ignore-output"]
from nanogpt.pretrained import from_hf

try:
    gpt2, text = from_hf("openai-community/gpt2"), Path("../data/downloads/tinyshakespeare.txt").read_text()
    text = "<|endoftext|>" + text.replace("\n\n", "\n\n<|endoftext|>")
    ids = BPETokenizer.gpt2().to_tiktoken().encode(text, allowed_special="all")[32768:]
    x, y = (torch.tensor(ids[i : i + 256]).view(4, 64) for i in (0, 1))
    print(f"{len(ids):,} tokens to train on; the first batch costs {gpt2(x, y)[1]:.3f}")
except OSError as error:
    print(f"GPT-2 or its text is not here, so this is left out: {error}")

# %% [markdown]
r"""
## Appendix: what adapters change in a dry run

Chapter 17c's `--dry-run` counts a run that trains all weights. For adapters two of its numbers must be corrected, the memory and the time. The functions of this appendix do it. Chapter 19c's runs of adapters use them, and so do the planner's chapters 22 and 22a. Skip them on a first reading.

`adapter_numbers` counts by making the model on the device `meta`, which needs no memory. A rank that a layer cannot have is refused here as well. `of_adapters` corrects the memory and `frozen` the seconds of a step; both leave a run without adapters as it was. A layer's backward pass consists of two products of equal size: one gives the gradient
of the input, the other the gradient of the weight. The second is left out. In the first block `qkv` needs neither, since nothing before it is trained.
"""


# %%
#| export labs.plan.dryrun
from nanogpt.config import Config
from nanogpt.model import GPTConfig, num_params


def adapter_numbers(shape: GPTConfig, config: Config) -> int:
    """How many numbers the adapters of a run have; 0 if it has none. ValueError for adapters that cannot be."""
    lora = config.lora
    if not lora.rank:
        return 0
    with torch.device("meta"):
        model = add_lora(GPT(shape), lora.rank, lora.alpha, lora.targets)
    return sum(p.numel() for p in lora_parameters(model).values())


# %%
#| export labs.plan.dryrun
def of_adapters(held: dict[str, float], shape: GPTConfig, config: Config) -> dict[str, float]:
    """Bytes by category, of all weights, corrected for a run that trains adapters alone: they have the gradients and averages."""
    numbers, P = adapter_numbers(shape, config), num_params(shape)
    if not numbers:
        return held
    states = [name for name in ("gradients", "optimizer", "moments", "masters") if name in held]
    few = {name: held[name] * numbers / P for name in states}
    return held | few | {"parameters": held["parameters"] * (P + numbers) / P}


def frozen(parts: dict[tuple, float], shape: GPTConfig, config: Config) -> dict[tuple, float]:
    """Seconds by part and phase, corrected for frozen matrices: they need no gradient, and no update."""
    numbers, L = adapter_numbers(shape, config), shape.n_layer
    if not numbers:
        return parts
    shares = {("qkv", "backward"): (L - 1) / (2 * L), ("embedding", "backward"): 0.0}
    shares |= {(part, "backward"): 0.5 for part in ("proj", "mlp", "head")}
    shares["optimizer", "update"] = numbers / num_params(shape)
    return {key: seconds * shares.get(key, 1.0) for key, seconds in parts.items()}


# %%
from nanogpt.config import load_config

adapting = load_config("tiny", ["lora.rank=4", "init_from=a"])
print(
    f"{adapter_numbers(base.config, adapting):,} numbers are trained instead of {num_params(base.config):,}"
)

# %% [markdown]
r"""
## Checkpoint

Exports `labs/tuning/lora.py`, three functions of `labs/plan/dryrun.py` and the grown `load`, imports them in a fresh process and runs the chapter's tests.
"""

# %% tags=["nbval-ignore-output"]
predictions("19")

# %%
checkpoint("19")

# %% [markdown]
r"""
## Exercises

`course exercises release 19` writes these, and the one of sitting 19c, as a notebook to `released/`; `course check 19` runs their visible checks.

- **19-1** Three bugs in an adapter, 15 minutes: fix one that changes the model before its first step.
- **19-2** The best adapter of rank r, 25 minutes: how much of a full update it can express.
- **19-4** A check for adapters, 20 minutes: write the check that finds wrong scales and axes.
- **19-5** What an adapter saves, 20 minutes: derive its parameters and the bytes of training.
- **19-6** The same loss on new text, 10 minutes: choose between two runs.

To explore:

1. Let `CHANGE` be the two pools alone: pronouns stay, and stories say "Ben … her bag". Which kind of token is forgotten now? Check with
   `nats_by_kind`: pronouns should not cost old stories more than before.
2. Adapt `targets=["c_attn"]` with a rank that gives as many parameters as rank 4 everywhere. Check both counts, then compare
   the two on the figure, at three rates and two seeds.
3. Mix weights: λ · tuned + (1 − λ) · base, for λ in steps of a tenth, as a line on the figure. Check: λ = 0 and 1 are the two models
   themselves. Is the line below that of the rates?
4. Set `ALPHA = 64.0` without touching `LORA`. Does rank 4 adapt better, and what do the old stories pay for it? Find the rate at which α = 8
   moves the model as far in its first step. Check with `first_move`, then compare the two runs.
5. Keep two adapters for one base, one for each of two towns of your own. Check: load each folder with `sample`; each tells stories of its own town,
   and the base's file has not changed.

## Further reading

- Hu et al. 2021, [*LoRA: Low-Rank Adaptation of Large Language Models*](https://arxiv.org/abs/2106.09685), §4 and §7: the method, and where to apply it.
- Kalajdzievski 2023, [*A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA*](https://arxiv.org/abs/2312.03732): α/√r instead of α/r, for high ranks.
- Biderman et al. 2024, [*LoRA Learns Less and Forgets Less*](https://arxiv.org/abs/2405.09673): the same two axes, on models of seven billion parameters.
- Thinking Machines 2025, [*LoRA Without Regret*](https://thinkingmachines.ai/blog/lora/): when adapters learn as well as all weights, at matched rates.
- McCloskey and Cohen 1989, [*Catastrophic Interference in Connectionist Networks*](https://doi.org/10.1016/S0079-7421%2808%2960536-8): the discovery of forgetting.
- Robins 1995, [*Catastrophic Forgetting, Rehearsal and Pseudorehearsal*](https://doi.org/10.1080/09540099550039318): replay.
- Wortsman et al. 2022, [*Robust Fine-Tuning of Zero-Shot Models*](https://arxiv.org/abs/2109.01903): exercise 3.
"""
