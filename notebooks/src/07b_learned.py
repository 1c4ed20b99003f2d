# %% [markdown]
r"""
# 07b · What has it learned?

Chapter 07 trained a model and saved it. Its loss ended a few per cent above the floor, and one number cannot say what
is behind these per cent. Does the model lack words, names, or arithmetic? And where it is right, how does it find the
answer?

First we load the model again. This takes five lines, and it is worth a closer look: a file on disk can be changed so
that the model still loads, without any error, and is quietly worse.
"""

# %%
#| default_exp weights
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import torch.nn.functional as F

from course.figures import training as figures
from course.notebook import answer, checkpoint, predict, predictions, show
from course.stand_in import small_model
from nanogpt.device import pick_device
from nanogpt.evaluate import evaluate, evaluating
from nanogpt.files import save_json
from nanogpt.labs.evals.accuracy import answer_accuracy
from nanogpt.labs.evals.floor import floor_per_token
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.tokenizer import BPETokenizer
from nanogpt.weights import WEIGHTS, digest, save_model

# %%
#| export
import json
from importlib import import_module
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from nanogpt.model import GPT, GPTConfig

# %% [markdown]
r"""
## Back from the disk

If you have not run chapter 07, the next cell trains a smaller model for a few seconds. It knows less, but every cell
works with it.
"""

# %% tags=["nbval-ignore-output"]
BUILT = Path("../data/built")
manifest, device = ensure_corpus(BUILT / "stories"), pick_device()
tokenizer = BPETokenizer.load(BUILT / "stories" / "tokenizer.json")
MODEL = BUILT / "model"
if not (MODEL / "config.json").exists():
    MODEL = BUILT / "model-small"
    save_model(small_model(tokenizer, manifest, device), MODEL)
print(MODEL, *sorted(path.name for path in MODEL.iterdir()))

# %% [markdown]
r"""
`config.json` says how the model is built, and `model.safetensors` has a tensor for every parameter. So loading is
short: build a model from the configuration, and copy the tensors into it. `strict=False` is there because of chapter
05's tied matrix: the file has it once, as `wte`, and the model also knows it as `lm_head`.
"""


# %%
def quick_load(folder: Path) -> GPT:
    fields = json.loads((folder / "config.json").read_text())
    fields.pop("sha256")
    model = GPT(GPTConfig(**fields))
    model.load_state_dict(load((folder / WEIGHTS).read_bytes()), strict=False)
    return model.to(device).eval()


# %% tags=["nbval-ignore-output"]
model = quick_load(MODEL)
config, eot = model.config, tokenizer.eot
asked = list(stories(300, seed=1))  # the corpus has seed 0: no model has read these
held = np.array([i for story in asked[:40] for i in (eot, *tokenizer.encode(story.text))] + [eot])
loss, floor = evaluate(model, [held], eot), floor_per_token(asked[:40], tokenizer)
print(f"loss on 40 new stories {loss:.3f}, floor {floor:.3f}")

# %% [markdown]
r"""
The model is back. Now a small accident. Somebody edits `config.json` and halves `n_head`. No weight changes, and no
shape does either: `c_attn` is one matrix for all heads, and only `n_head` says where one head ends and the next begins.

*Predict.* What happens when we load this folder: an error, the same loss, or another one? Write the loss down.
"""

# %%
predict("07b.1", "loss after n_head was halved", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
edited = BUILT / "model-edited"
shutil.copytree(MODEL, edited, dirs_exist_ok=True)
fields = json.loads((edited / "config.json").read_text())
save_json(edited / "config.json", fields | {"n_head": config.n_head // 2})
damaged = quick_load(edited)
wrong = evaluate(damaged, [held], eot)
print(f"loss on the same stories {wrong:.3f}, before the edit {loss:.3f}")
for kind, share in answer_accuracy(damaged, asked[:60], tokenizer).items():
    print(f"{kind:8} answers: {share:4.0%} right")
answer("07b.1", wrong)

# %% [markdown]
r"""
There is no error, and the model is not broken either. It still tells stories, and its loss is still a reasonable one:
without the number from before the edit, you might take it for the loss of a model that was trained too briefly. It only
gets more answers wrong than it should (at the end of this chapter you see how many were right before). This is the kind
of fault that is never found.

That is why `save_model` wrote one number more: `sha256`, a hash of both files together. If one bit of either file
changes, the hash of what is there does not equal the stored one any more. `read_unchanged` reads both files and compares the
hashes. It also looks for weights that are not numbers, since a run that went wrong can save those.
"""


# %%
#| export
#| blank read_unchanged: take sha256 out of the fields and compare it with their digest; then look for weights that are not finite
def read_unchanged(config: Path, weights: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """The fields and tensors of two files that were saved together. ValueError if they have changed since, or are no numbers."""
    fields = json.loads(config.read_bytes())
    data = weights.read_bytes()
    if fields.pop("sha256", None) != digest(fields, data):
        raise ValueError(f"{config.name} or {weights.name} has changed since")
    tensors = load(data)
    for name, p in tensors.items():
        if not p.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity")
    return fields, tensors


# %%
fields, weights = read_unchanged(MODEL / "config.json", MODEL / WEIGHTS)
print(f"{MODEL.name} is unchanged: {len(weights)} tensors")
try:
    read_unchanged(edited / "config.json", edited / WEIGHTS)
except ValueError as error:
    print(error)

# %% [markdown]
r"""
A second accident: `vocab_size` is changed to 400 million. `quick_load` would ask for 200 GB of memory before it noticed
that anything is wrong. PyTorch has a device for such questions: on *meta*, a tensor has a shape and a type, and no
memory. We build the model there and compare names, shapes and types.
"""


# %%
#| export
#| blank empty_model: build kind(config) under torch.device("meta"), then compare its names and shapes with those of weights
def empty_model(config: GPTConfig, weights: dict[str, torch.Tensor], kind: type = GPT) -> GPT:
    """A model without memory, on the meta device, whose names and shapes are those of weights; else ValueError."""
    layers = len({name.split(".")[2] for name in weights if name.startswith("transformer.h.")})
    if layers != config.n_layer:  # first: even without memory, a hundred thousand layers take minutes
        raise ValueError(f"config.json says n_layer={config.n_layer}, {WEIGHTS} has {layers}")
    with torch.device("meta"):
        model = kind(config)
    expected = {name: p.shape for name, p in model.named_parameters()}
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    wrong = sorted(expected.keys() ^ weights.keys())  # names that only one of the two has
    for name, p in weights.items():
        if name in expected and (p.shape != expected[name] or p.dtype not in dtypes):
            wrong.append(name)
    if wrong:
        raise ValueError(f"config.json and {WEIGHTS} disagree about {', '.join(wrong[:3])}")
    return model


# %%
huge = GPTConfig(**fields | {"vocab_size": 400_000_000})
try:
    empty_model(huge, weights)
except ValueError as error:
    print(error)

# %% [markdown]
r"""
`load_model` puts the two together. The tensors from the file take the places of the empty ones (`assign=True`).
Whatever is wrong, the reader gets one sentence instead of a traceback. (`classes_of` chooses the model by the fields of the file. Chapter 24 builds a second family; its module is named as a text, and is loaded only for a file that needs it.)
"""


# %%
#| export
FAMILIES = {"n_kv_head": ("nanogpt.labs.llama.model", "LlamaConfig", "Llama")}  # by a field that no GPT has


def classes_of(fields: dict) -> tuple[type, type]:
    """The classes of the shape and the model that a config.json describes: GPT-2's, or those of a lab, loaded now."""
    for field, (lab, *names) in FAMILIES.items():
        if field in fields:
            return tuple(getattr(import_module(lab), name) for name in names)
    return GPTConfig, GPT


UNREADABLE = AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError, SafetensorError


def load_model(folder: str | Path, device: str | torch.device = "cpu") -> GPT:
    """The model that save_model wrote, in evaluation mode and the dtype it was saved in.

    OSError or ValueError, in one sentence, if it cannot be, or if a bit of either file has changed.
    """
    folder = Path(folder)
    try:
        fields, weights = read_unchanged(folder / "config.json", folder / WEIGHTS)
        shape, kind = classes_of(fields)
        model = empty_model(shape(**fields), weights, kind)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename} is not there; chapter 07 writes it (save_model)") from None
    except UNREADABLE as error:
        raise ValueError(f"{folder} holds no model that save_model wrote whole: {error}") from None
    model.load_state_dict(weights, strict=False, assign=True)
    if "lm_head.weight" not in weights:
        model.lm_head.weight = model.transformer.wte.weight  # tied
    return model.to(device).eval()


# %%
again = load_model(MODEL, device)
x = torch.from_numpy(held[None, :100]).to(device)
with torch.no_grad():
    print("the same logits as before, bit for bit:", torch.equal(model(x)[0], again(x)[0]))
try:
    load_model(edited)
except ValueError as error:
    print(error)

# %% [markdown]
r"""
## Which tokens cost the rest?

Now to the model itself. Some nats a story are left above the floor. Which tokens cost them? `token_costs` gives what
the model pays for each token of a story. Let us look at two stories first. Dark tokens are expensive; answers have a
frame.
"""


# %%
@torch.no_grad()
def token_costs(story) -> list[tuple[str, float, str]]:
    """Each token of a story, the nats that the model pays for it, and which kind of answer it is part of, or ""."""
    ids = torch.tensor([eot, *tokenizer.encode(story.text)])
    with evaluating(model):
        logits = model(ids[None, :-1].to(device))[0][0].float().cpu()
    nats, costs, end = F.cross_entropy(logits, ids[1:], reduction="none").tolist(), [], 0
    for piece, cost in zip([tokenizer.decode([i]) for i in ids[1:].tolist()], nats):
        start, end, kind = end, end + len(piece), ""
        for (a, b), name in zip(story.answers, story.kinds):
            if a < end and start < b:
                kind = name
        costs.append((piece, cost, kind))
    return costs


# %% tags=["nbval-ignore-output"]
show(
    figures.costs([[(piece, cost, kind != "") for piece, cost, kind in token_costs(s)] for s in asked[2:4]]),
    alt="Two stories, each token shaded by the nats the model pays: names and things are dark once, then white.",
)

# %% [markdown]
r"""
A name or a thing is dark when it comes for the first time: there was a choice, and the grammar pays for it as well. The
second time it is often nearly white, because it follows from the story. An answer always follows from the story, so the
grammar pays nothing for it, and the model's whole cost counts as loss above the floor. For the other tokens, it is the
cost minus what the grammar pays.
"""

# %% tags=["nbval-ignore-output"]
paid, count, chosen = Counter(), Counter(), asked[:100]
for story in chosen:
    paid[""] += story.logprob / len(chosen)  # minus the floor
    for _, cost, kind in token_costs(story):
        paid[kind] += cost / len(chosen)
        count[kind] += 1 / len(chosen)
for kind in ("computed", "copied", ""):
    print(f"{kind or 'other':8} {paid[kind]:5.2f} nats a story above the floor, on {count[kind]:4.1f} tokens")
show(
    figures.lost(paid, count),
    alt="Nats above the floor: computed answers cost much on few tokens, copied ones hardly any.",
)

# %% [markdown]
r"""
Compare the cost of *one* token in each row. The model has learned to copy and it has learned most of the language. It
calculates much better than the table of pairs, but far from reliably: one computed answer costs many times what another
token costs.

**How does it copy?** Before it names a number, some head should look back at the place where that number was said. For
each head, we add up its attention on earlier tokens that equal the answer:
"""


# %% tags=["nbval-ignore-output"]
looks, n = torch.zeros(config.n_layer, config.n_head), 0
for story in asked[:40]:
    ids = [eot, *tokenizer.encode(story.text)]
    weights = figures.heads(model, ids)  # (n_layer, n_head, T, T)
    for at, (_, _, kind) in enumerate(token_costs(story)):  # at this place the model says ids[at + 1]
        if kind == "copied":
            same = torch.tensor(ids) == ids[at + 1]
            looks += weights[:, :, at, same].sum(-1)  # later places have weight 0
            n, example = n + 1, (ids, at, weights)
for layer, row in enumerate(looks / n):
    print(f"layer {layer}:", *(f"{share:4.0%}" for share in row))

# %% tags=["nbval-ignore-output"]
layer, head = divmod(looks.argmax().item(), config.n_head)
ids, at, weights = example
row = weights[layer, head, at, : at + 1].tolist()
pieces = [(tokenizer.decode([i]), weight, False) for i, weight in zip(ids[1 : at + 1], row[1:])]
print(f"layer {layer}, head {head}, before it says{tokenizer.decode([ids[at + 1]])!r}:")
show(figures.costs([pieces], label="attention", top=1.0), alt="A story; one head looks at few of its tokens.")

# %% [markdown]
r"""
Compare the heads. Most of them look elsewhere. The best one gives most of its attention to earlier tokens that equal
the answer. This fits copying, but it does not prove it. Perhaps the head looks there and the model does not need it.
Chapter 04 showed how to find out: switch the head off. A head's output reaches the rest of the model through its own
columns of `c_proj`, so we set these to zero, ask the questions, and put the columns back.

*Predict.* With all heads, nearly all copied answers are right. How many are right without the head that looks at them
most? And without any one other head?
"""

# %%
predict("07b.2", "copied answers that are right without that head", guess=None, unit="%")


# %%
@torch.no_grad()
def without(layer: int, head: int) -> dict[str, float]:
    """The shares of right answers while one head says nothing."""
    matrix, d = model.transformer.h[layer].attn.c_proj.weight, config.n_embd // config.n_head
    columns = matrix[:, head * d : (head + 1) * d]  # a view: these inputs come from this head
    kept = columns.clone()
    columns.zero_()
    shares = answer_accuracy(model, asked[:60], tokenizer)
    columns.copy_(kept)
    return shares


# %% tags=["nbval-ignore-output"]
best = divmod(looks.argmax().item(), config.n_head)
everything = answer_accuracy(model, asked[:60], tokenizer)
print("all heads".ljust(18), *(f"{kind} {share:4.0%}  " for kind, share in everything.items()))
for head in [(i, j) for i in range(config.n_layer) for j in range(config.n_head)]:
    shares = without(*head)
    name = f"without {head[0]}.{head[1]}" + (" (best)" if head == best else "")
    print(name.ljust(18), *(f"{kind} {share:4.0%}  " for kind, share in shares.items()))
answer("07b.2", 100 * without(*best)["copied"])

# %% [markdown]
r"""
Read the rows against the first one. A head whose absence costs many copied answers is needed for copying. If the head
that looks at the answer is such a head, the picture above was an explanation. If it is not, another head does the same
work, or the work is shared, and the picture was only a picture. Look also at the computed answers: a number that must
be computed has to be found first, so heads that find numbers should matter for both kinds.

Nobody told the model that there are numbers, owners or questions. It has found them because they make the next token
cheaper.
"""

# %% tags=["nbval-ignore-output"]
predictions("07b")

# %%
checkpoint("07b")

# %% [markdown]
r"""
## Exercises

To explore:

1. Which words, besides the answers, cost more than they should? Names that were said before follow from the story. Sum
   `token_costs` over them, for 100 stories.
2. Leave `scale_init` out in chapter 07, train again and load that model here. Which tokens pay for it?
3. Switch two heads off at once: the two whose absence costs most. Do the losses of copied answers add up?
4. Write `loss_by_position`: the mean held-out loss of tokens 0 to 15 of a story, 16 to 31, and so on. Why does it fall?
   Check: weighted by their numbers, the parts add up to `evaluate`.

## Further reading

- Olsson et al. 2022, *In-context Learning and Induction Heads*: two-layer mechanisms of copying.
- Michel, Levy and Neubig 2019, *Are Sixteen Heads Really Better than One?*: heads switched off one at a time.
- [safetensors](https://huggingface.co/docs/safetensors): why weights should not be pickled.
"""
