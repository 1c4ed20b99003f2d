# %% [markdown]
r"""
# 24b ◇ · Llama runs: the trainer takes a second family

Chapter 24 trained its Llama with chapter 07's `train`, in a notebook. A real run needs more. It is described by a file
that is checked before the run starts. It writes checkpoints, continues after a crash, and leaves a folder for `sample`
and `eval`. All of this has existed since chapter 17, but it was written for one model. How much of it must be written again
for a second one?

The step needs no change, because both models have the same `forward`. And the trainer will not change by a single line, because it
asks. Chapter 17c's table `LABS` names a module for the key `family`. Where an answer depends on the kind of model, the trainer
looks for it in this module first, by its name. So a new family is a module with answers:

| the trainer asks | our answer |
|---|---|
| which shape do the keys mean? | `new_shape`, the next section |
| how many parameters and FLOPs has it? | `llama_params` and `llama_flops`, found by the type of the shape |
| can there be such a run? | `check`, after the first runs |
| what is the model before its first step? | `build_model`, in the appendix |
| what would the run take? | `dry_run`, in the appendix |

The first two answers are enough to understand the following line. It starts a run, and then we try whether everything that you know about runs holds for it:
a killed run must continue bit for bit, adapters must fit, and a wrong key must be refused.

```
python -m nanogpt train tiny family=llama llama.n_kv_head=2 run.dir=runs/llama
```
"""

# %%
#| default_exp labs.llama.runs
#| doc labs.llama.runs: A run of a Llama: its keys, the shape and the model that it begins with, and what it would take.
import importlib.util
import json
import shutil
from pathlib import Path

import torch

from course.notebook import answer, as_module, checkpoint, predict, predictions
from course.torchrun import so_far
from nanogpt.config import Config, Model
from nanogpt.labs.llama.model import Llama, LlamaConfig
from nanogpt.labs.corpora.stories import ensure_corpus

DATA, RUNS = "../data/built/stories", Path("../data/built/llama-runs")
STEPS, RANK = 120, 4  # of the run below; of its adapters
_ = ensure_corpus(DATA)

# %% [markdown]
r"""
## The keys of a run

A run is a YAML file with a section `model` (chapter 17c). The sizes that both families have stay there: layers, heads,
width and context. Keys that only a Llama has are in a section of their own, so that the file shows which key belongs to
which family. One word at the top, `family`, says which model is meant:

```yaml
family: llama
model: {n_layer: 2, n_head: 4, n_embd: 128, block_size: 128}
llama: {n_kv_head: 2}
```

Every key has a default that suits a small model. `null` means that the value follows from the others.
"""

# %%
#| export
import math
from dataclasses import fields

from nanogpt.config import LlamaKeys
from nanogpt.labs.llama.model import Llama, LlamaConfig


# %%
print(LlamaKeys(n_kv_head=2))

# %% [markdown]
r"""
`new_shape` makes a shape from both sections. The vocabulary comes from the data, as for a GPT. Two keys
may be null. `n_kv_head` is then the number of heads, so nothing is shared. `n_hidden` is then 8/3 of the width, which gives the MLP as many parameters as GPT-2's (chapter 24). It is rounded up to a multiple of 16, so that
each row starts at a multiple of 16 bytes, because a GPU loads 16 bytes at a time (chapter 13). In 16 bits these are 8 numbers.
"""


# %%
#| export
#| blank new_shape: the sizes of model, the keys of llama with the two defaults filled in, heads of n_embd / n_head numbers
def new_shape(config, vocab_size: int) -> LlamaConfig:
    """The shape of a new Llama, as the sections `model` and `llama` ask for it."""
    m, own = config.model, config.llama
    size = {name: getattr(m, name) for name in ("block_size", "n_layer", "n_head", "n_embd")}
    size["n_kv_head"] = own.n_kv_head or m.n_head
    size["n_hidden"] = own.n_hidden or 16 * math.ceil(8 * m.n_embd / 3 / 16)
    rest = {"rope_theta": own.rope_theta, "qk_norm": own.qk_norm, "tied": own.tied}
    return LlamaConfig(**size, **rest, head_size=m.n_embd // m.n_head, vocab_size=vocab_size)


# %%
sizes = Model(n_layer=2, n_head=4, n_embd=128, block_size=128)
config = Config(model=sizes, family="llama", llama=LlamaKeys(n_kv_head=2))
print(new_shape(config, vocab_size=1024))

# %% [markdown]
r"""
## Counting without a model

The trainer's first line says how many parameters a run has, the dry run says it before anything exists, and the share
of the GPU's speed that a run reaches (MFU) needs the FLOPs of a token. Chapter 05 computes these numbers from the shape
alone, with formulas for GPT-2. Now we need them for a Llama, and we begin with the parameters. The attention has four
matrices. The matrices of the queries and of the projection have n_head · head_size rows or columns. Those of keys and
values have n_kv_head · head_size. The MLP has three matrices instead of two. There are no biases. With `qk_norm` each
layer has two more norms, one for the queries and one for the keys, with head_size numbers each.

*Predict.* Llama 3 8B has the shape of `LlamaConfig()`. It has 32 layers of width 4,096. Each has 32 heads of queries and 8
of keys and values, of 128 numbers each, and an MLP of width 14,336. The embedding and the head are two matrices with 128,256 rows.
How many of its parameters, in percent, are in the MLPs?
"""

# %%
predict("24b.1", "share of the parameters of Llama 3 8B in its MLPs", guess=None, unit="%")


# %%
#| export labs.llama.model
#| blank llama_params: per layer 2·n_head + 2·n_kv_head heads of C × head_size, and three matrices C × n_hidden
from nanogpt.model import flops_by_part, params_by_part


@params_by_part.register(LlamaConfig)
def llama_params(c) -> dict[str, int]:
    """Number of parameters by part, from the shape alone: wte, attention, mlp, norms and lm_head, 0 if it is tied.

    norms: those of C numbers. The norms of queries and keys belong to attention.
    """
    C, L, d = c.n_embd, c.n_layer, c.head_size
    heads = 2 * c.n_head + 2 * c.n_kv_head  # of queries and the projection, and of keys and values
    gains = 2 * d if c.qk_norm else 0  # of the norms of queries and keys
    return {
        "wte": c.vocab_size * C,
        "attention": L * (heads * d * C + gains),
        "mlp": L * 3 * C * c.n_hidden,
        "norms": (2 * L + 1) * C,
        "lm_head": 0 if c.tied else c.vocab_size * C,
    }


# %%
parts = llama_params(LlamaConfig())
for name, count in parts.items():
    print(f"{name:10} {count:13,}")
print(f"{'all':10} {sum(parts.values()):13,}")
answer("24b.1", 100 * parts["mlp"] / sum(parts.values()))

# %% [markdown]
r"""
The sum is 8.03 billion, the "8B" of its name, and 70% of it are in the MLPs. *Check.* The formula must give the number of
parameters that a model really has, for each kind of shape:
"""

# %%
from dataclasses import replace

common = {"block_size": 128, "vocab_size": 1024, "n_layer": 2, "n_head": 8, "n_embd": 128}
own = {"n_kv_head": 2, "n_hidden": 352, "head_size": 32, "rope_theta": 10_000.0, "tied": True}
small = LlamaConfig(**common, **own)
for shape in (small, replace(small, tied=False), replace(small, qk_norm=True, n_kv_head=1)):
    real = sum(p.numel() for p in Llama(shape).parameters())
    assert sum(llama_params(shape).values()) == real, f"the formula misses something of {shape}"
    print(f"{real:,} by formula and by counting")

# %% [markdown]
r"""
The formula and this model have the same author. So we also ask `transformers`, where it is installed: its Llama of the same
shape, on the meta device, which needs no memory.
"""

# %% tags=["nbval-ignore-output"]
if importlib.util.find_spec("transformers"):
    from transformers import LlamaConfig as TheirConfig
    from transformers import LlamaForCausalLM

    with torch.device("meta"):
        theirs = LlamaForCausalLM(
            TheirConfig(vocab_size=128_256, intermediate_size=14_336, num_key_value_heads=8)
        )
    print(f"{sum(p.numel() for p in theirs.parameters()):,} parameters, by transformers")

# %% [markdown]
r"""
It is the same number, to the last parameter.

All other functions that count (`num_params`, `flops_per_token`, the trainer's MFU) call `params_by_part` and
`flops_by_part` of chapter 05. Python's `singledispatch` has made them functions that choose by the type of their first argument, and `register`
adds ours for a `LlamaConfig`. So chapter 05's code need not know that there are Llamas:
"""

# %%
from nanogpt.model import GPT, GPTConfig, num_params

print(f"{num_params(LlamaConfig()):,} parameters of Llama 3 8B, {num_params(GPTConfig()):,} of GPT-2 small")

# %% [markdown]
r"""
## A run

The command works already, because `so_far` runs it on the complete package of this notebook. Cells that you have run are
taken as you ran them, and all others, the appendix among them, as they are in the notebook.

The configuration is `tiny` of chapter 17c. Two keys of the model differ, `family` and `llama.n_kv_head`. The run is also
shorter. It has 120 steps instead of 2,000, with a checkpoint after every 30 and a validation on 5,000 tokens after every
60. To save time, it computes the 4 rows of a batch at once.
"""

# %%
KEYS = {"family": "llama", "llama.n_kv_head": 2, "data.dir": DATA, "run.device": "cpu"}
KEYS |= {"train.max_steps": STEPS, "train.micro_batch": 4, "eval.every": STEPS // 2, "eval.tokens": 5000}
KEYS |= {"run.log_every": STEPS // 4, "run.checkpoint_every": STEPS // 4}


def words(name: str, **changes) -> list[str]:
    """The command line of the run in a folder of this name."""
    keys = KEYS | {"run.dir": (RUNS / name).as_posix()} | changes
    return ["train", "tiny", *(f"{key}={value}" for key, value in keys.items())]


# %% tags=["nbval-ignore-output"]
shutil.rmtree(RUNS / "one", ignore_errors=True)
_ = so_far("24b", *words("one"))

# %% [markdown]
r"""
The lines are those of any run: loss, norm, rate, a validation, and at the end how to sample. The Llama has 500,352
parameters, and after 120 steps its loss on held-out stories is 2.43. Is it as good as a GPT? One run cannot tell. Chapter 24's
record compares both over three seeds.

Two processes can share such a run, as in chapter 20a: `torchrun --standalone --nproc-per-node 2 -m nanogpt train …` with the same words. DDP wraps the
model and averages gradients, whatever the layers are. A test of this sitting does it and compares with one process.
"""

# %% [markdown]
r"""
## How does the folder know its family?

A model's folder has a `config.json` with the fields of its shape. Both families can be distinguished by their fields:
only a Llama has `n_kv_head`. So the file needs no new entry, and folders that were written before chapter 24 stay
readable. `classes_of` of chapter 17b chooses the classes of the shape and of the model by the fields. Its table `FAMILIES`
names ours for a field `n_kv_head`. A third family, for example one with experts in place of the MLP, would be one more entry.
"""

# %%
from nanogpt.weights import classes_of

for fields_there in (common, common | own):
    shape, kind = classes_of(fields_there)
    model = kind(shape(**fields_there), torch.Generator().manual_seed(0))
    count = sum(p.numel() for p in model.parameters())
    print(f"{len(fields_there)} fields: a {type(model).__name__}, {count:,} parameters")

# %% [markdown]
r"""
So `save_model` of chapter 07 and `load_model` of chapter 17b work as they are. The head of a GPT is always
tied to the token table; that of a Llama only if `tied` is true, and then the file has no head.
"""

# %%
from nanogpt.weights import WEIGHTS, load_model, save_model


# %%
for model in (GPT(GPTConfig(**common)), Llama(small), Llama(replace(small, tied=False))):
    save_model(model.eval(), RUNS / "written")
    again, ids = load_model(RUNS / "written"), torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(model(ids)[0], again(ids)[0]), (
            f"another model was read than written: {model.config}"
        )
    print(type(again).__name__, "written and read: the same logits")

# %% [markdown]
r"""
## Stopped and resumed

The law of chapter 17b must hold for the new family: a run that was stopped continues bit for bit. What does a process
leave behind that is killed just before the end? Its log goes almost to step 120, but its newest checkpoint is that of step 90.
We can make such a folder from our finished run. We keep a copy of the folder to compare with, delete the last
checkpoint, and start the same command again. (The test of this sitting ends a real process with `kill -9`.)
"""

# %% tags=["nbval-ignore-output"]
shutil.rmtree(RUNS / "finished", ignore_errors=True)
shutil.copytree(RUNS / "one", RUNS / "finished")
shutil.rmtree(RUNS / "one" / f"step_{STEPS:06d}")
_ = so_far("24b", *words("one"))

# %% [markdown]
r"""
The command finds the checkpoint of step 90 and goes on from there. First it prints the line of step 90 again, to say
where it is. The lines of the old log that came after step 90 are removed and written anew. Are they the same?
"""

# %%
from nanogpt.metrics import read_metrics

losses = {name: [line["loss"] for line in read_metrics(RUNS / name)] for name in ("finished", "one")}
weights = {name: (RUNS / name / f"step_{STEPS:06d}" / WEIGHTS).read_bytes() for name in losses}
assert losses["one"] == losses["finished"], "the losses of the resumed run differ"
assert weights["one"] == weights["finished"], "the weights of the resumed run differ"
print(f"{len(losses['one'])} losses and all weights of the resumed run are the same, to the bit")

# %% [markdown]
r"""
## Adapters, beside weights from elsewhere

Chapter 19c fine-tunes with the keys `init_from` and `lora.rank`. The weights may come from a run of ours or from a folder in
Hugging Face's format. We do both at once. First `llama_to_hf` writes our trained model as `transformers` would. Then a
run starts from that folder and trains adapters only. `load_pretrained` of chapter 08 looks into the `config.json` and
takes chapter 06's reader for a GPT-2 and chapter 24's for a Llama or Qwen3.
"""

# %%
from nanogpt.labs.llama.pretrained import llama_to_hf
from nanogpt.labs.tuning.lora import LoRALinear, add_lora, linear_layers, lora_parameters
from nanogpt.pretrained import load_pretrained

trained = load_model(RUNS / "one" / f"step_{STEPS:06d}")
llama_to_hf(trained, RUNS / "elsewhere")
print("model_type:", json.loads((RUNS / "elsewhere/config.json").read_text())["model_type"])
print("read by load_pretrained:", type(load_pretrained(RUNS / "elsewhere")).__name__)

# %% [markdown]
r"""
In a GPT, `lora.targets` names three kinds of layers: `c_attn`, `c_proj` and `c_fc`. A Llama has `c_q`, `c_k` and `c_v`
instead of `c_attn`, and its MLP also has a gate. So a Llama says with `lora_names` (chapter 24) that `c_attn` means all three, and that
`c_fc` includes `c_gate`. Then one configuration fits both families, and the default still means all layers.
"""

# %% [markdown]
r"""
*Predict.* The model has 2 layers of width 128. Its keys and values are 64 numbers wide, and its MLP is 352 wide. Each of the seven
matrices of a layer has an adapter of rank 4. Beside a matrix of a rows and b columns, an adapter of rank r has r·(a + b)
numbers (chapter 19). How many numbers are trained?
"""

# %%
predict("24b.2", "numbers in the adapters", guess=None)

# %%
adapted = add_lora(load_model(RUNS / "one" / f"step_{STEPS:06d}"), RANK)
trained_numbers = sum(p.numel() for p in lora_parameters(adapted).values())
for name, layer in linear_layers(adapted).items():
    if name.startswith("transformer.h.0."):
        print(f"{name:24} {tuple(layer.weight.shape)}, with an adapter: {isinstance(layer, LoRALinear)}")
print(f"{trained_numbers:,} numbers in adapters")
answer("24b.2", trained_numbers)

# %% tags=["nbval-ignore-output"]
shutil.rmtree(RUNS / "adapted", ignore_errors=True)
tuning = {"init_from": (RUNS / "elsewhere").as_posix(), "lora.rank": RANK, "train.max_steps": 30}
_ = so_far("24b", *words("adapted", **tuning))

# %% [markdown]
r"""
The validation loss has fallen from 2.430 to 2.418, so the adapters have learned something. But is it much? The control trains
all weights for the same 30 steps. And each side gets a second rate, ten times as large:
"""

# %% tags=["nbval-ignore-output"]
for name, rank, rate in (("all", 0, 5e-4), ("adapted-fast", RANK, 5e-3), ("all-fast", 0, 5e-3)):
    shutil.rmtree(RUNS / name, ignore_errors=True)
    _ = so_far("24b", *words(name, **(tuning | {"lora.rank": rank, "optim.lr": rate})))

# %% [markdown]
r"""
| 30 more steps, from 2.430 | rate 0.0005 | rate 0.005 |
|---|---|---|
| 18,688 numbers in adapters | 2.418 | 2.365 |
| all 500,352 weights | 2.190 | 1.689 |

At both rates all weights learn far more. This model has
seen 120 steps and has nearly everything to learn. Adapters are for a model that can do nearly everything already (chapter 19).

The adapters' first line has the number that we counted. Their checkpoint has the adapters and the name of their base, but not the 500,352 weights. `python -m nanogpt sample` and
`eval` put the two together, as they do for a GPT. The last cells of the appendix show how. Chapter 19's digest refuses adapters whose base has changed,
also where only `rope_theta` in the base's `config.json` is another one.
"""

# %% [markdown]
r"""
## What no Llama can be

With two families there are new ways to be wrong. A GPT has no `llama.n_kv_head`. A Llama has no dropout, no padded table
(`model.padded_vocab_size`), and no attention that is computed step by step (`model.flash=false`). If the trainer ignored
such a key, you would believe in a model that you do not have. So `check` refuses it and says in one line what is
wrong. It also refuses the layouts of chapter 21d: `parallel.shard` and `parallel.tp` cut a GPT's layers by name, and they
do not know the layers of a Llama. Copies (`parallel.dp`) work, because DDP asks nothing about the layers.
"""


# %%
#| export
def check(config) -> None:
    """ValueError, naming the key, for what the other family has, and for a layout or a shape that no Llama can have."""
    model, own, layout = config.model, config.llama, config.parallel
    if config.family == "gpt":
        for f in fields(LlamaKeys):
            if getattr(own, f.name) != f.default:
                raise ValueError(f"llama.{f.name}={getattr(own, f.name)} needs family=llama, not gpt")
        return
    for name, none in {"dropout": 0.0, "flash": True, "padded_vocab_size": None}.items():
        value = getattr(model, name)
        if value != none:
            raise ValueError(f"model.{name}={value} is GPT-2's, and a Llama has no such thing; leave it out")
    if model.bias:
        raise ValueError("model.bias=true is GPT-2's, and a Llama has no biases; leave it out")
    if layout.shard or layout.tp > 1:
        raise ValueError(
            "parallel.shard and parallel.tp know a GPT's layers only; a Llama runs as copies, parallel.dp"
        )
    new_shape(config, vocab_size=1)  # can there be such a shape?


# %% [markdown]
r"""
Chapter 17c's table `LABS` names this module for the key `family` and the section `llama`. So `check` is called for every
configuration that uses one of them, and where the trainer needs a shape, it asks our `new_shape` instead of its own.
(`as_module` lets it find the notebook's functions under the module's name, although the checkpoint has not written the
module yet.)
"""

# %%
from nanogpt.config import load_config

as_module("labs.llama.runs")
print(load_config("tiny", ["family=llama", "llama.n_kv_head=2"]).llama)

# %% [markdown]
r"""
Here are eight changes of `tiny`, as you would write them on the command line.
"""

# %%
EIGHT = [
    "family=llama",
    "llama.n_kv_head=2",
    "family=llama llama.n_kv_head=3",
    "family=llama model.dropout=0.1",
    "family=llama parallel.dp=2 parallel.shard=true",
    "family=llama parallel.dp=2",
    "family=llama model.n_head=128",
    "family=llama model.bias=true",
]

# %% [markdown]
r"""
*Predict.* How many of them can be run? In the last but one the width of 128 is cut into 128 heads, so a head has one number. Think of
what RoPE does with the numbers of a head.
"""

# %%
predict("24b.3", "changes of tiny that can be run", guess=None)

# %%
can = 0
for changes in EIGHT:
    try:
        load_config("tiny", changes.split())
        can += 1
        print(f"{changes}: can be run")
    except ValueError as error:
        print(error)
answer("24b.3", can)

# %% [markdown]
r"""
Two of the eight can be run: the plain Llama and the one with copies. Each of the other lines says what is wrong. With 128 heads,
rotation needs pairs of numbers, and a single number has no partner. The checks made no model and read no data. A
command that will run for days should fail in its first second if it fails at all.
"""

# %% [markdown]
r"""
## Appendix: the family in the trainer

The trainer asks this module for two more functions. `build_model` makes the model, and `dry_run` prints what a run would take. A model that is given by `init_from` must be a Llama, and have every size that the configuration sets.
"""


# %%
#| export
def refuse_other_llama(config, shape, vocab_size: int) -> None:
    """ValueError if init_from's model is no Llama, not what the configuration asks for, or too small for the data."""
    if not isinstance(shape, LlamaConfig):
        raise ValueError(f"init_from={config.init_from} is a gpt, not a llama; set family=gpt")
    asked = [("model", name) for name in ("n_layer", "n_head", "n_embd")]
    asked += [("llama", name) for name in vars(config.llama)]
    for section, name in asked:
        part, has = getattr(config, section), getattr(shape, name)
        wants, default = getattr(part, name), getattr(type(part), name)
        if wants not in (has, default):  # at its default nobody has asked for it
            given = f"{section}.{name}={wants}"
            raise ValueError(f"init_from={config.init_from} has {name}={has}; leave out {given}")
    if shape.vocab_size < vocab_size or shape.block_size < config.model.block_size:
        has = f"{shape.vocab_size} tokens and a context of {shape.block_size}"
        needs = f"{vocab_size} and model.block_size={config.model.block_size}"
        raise ValueError(f"init_from={config.init_from} has {has}; the run needs {needs}")


# %% [markdown]
r"""
A run that passes these checks begins with the given weights, or else with a new model, scaled as chapter 07's.
"""

# %%
#| export
import torch

from nanogpt import build
from nanogpt.checkpoint import pick_checkpoint
from nanogpt.pretrained import is_ours, load_pretrained, read_json
from nanogpt.training import scale_init
from nanogpt.weights import load_model


def load_given(config, manifest: dict) -> Llama:
    """The model of init_from, in float32. ValueError if the run cannot begin with it."""
    folder = pick_checkpoint(config.init_from)
    build.refuse_other_words(config, folder, manifest)
    model = load_model(folder) if is_ours(folder) else load_pretrained(config.init_from)
    refuse_other_llama(config, model.config, manifest["vocab_size"])
    return model.float()


def build_model(config, manifest: dict) -> Llama:
    """The model before its first step: new, or init_from's, in float32, on the CPU."""
    if config.init_from is not None:
        return load_given(config, manifest)
    shape = new_shape(config, manifest["vocab_size"])
    return scale_init(Llama(shape, torch.Generator().manual_seed(config.run.seed)))


# %%
as_module("labs.llama.runs")

# %% [markdown]
r"""
The trainer calls `build_model` through `hook`, which is how it asks: `hook(config, build.build_model)` is our function if the configuration says `family=llama`, and else the
core's own. With adapters, chapter 19c's module asks for the model without them in the same way, and gets ours:
"""

# %%
from nanogpt import build
from nanogpt.config import hook
from nanogpt.shards import load_manifest


def build_for(*changes: str):
    """The first model of a run, as the trainer builds it."""
    config = load_config("tiny", changes)
    return hook(config, build.build_model)(config, load_manifest(DATA))


elsewhere = f"init_from={(RUNS / 'elsewhere').as_posix()}"
new = build_for("family=llama", "llama.n_kv_head=2")
adapting = build_for("family=llama", elsewhere, f"lora.rank={RANK}")
for model in (new, adapting):
    print(f"{sum(p.numel() for p in model.parameters() if p.requires_grad):,} numbers to train")

# %% [markdown]
r"""
The run that we trained has a Llama with 2 heads of keys and values. Neither a GPT nor a Llama with 4 can begin with it.
"""

# %%
for changes in ([], ["family=llama", "llama.n_kv_head=4"]):
    try:
        build_for(f"init_from={(RUNS / 'one').as_posix()}", *changes)
    except ValueError as error:
        print(error)

# %% [markdown]
r"""
Before anything is made, `why_too_large` of chapter 20a asks whether the run can fit at all. It counts the parameters of the shape, of either family.
"""

# %% tags=["nbval-ignore-output"]
from nanogpt.labs.plan.too_large import why_too_large

print(
    why_too_large(load_config("tiny", ["family=llama", "model.n_layer=1000000000"]), torch.device("cpu"), 1)
)

# %% [markdown]
r"""
The dry run needs the FLOPs of a token, too. A matrix of n numbers takes 2n FLOPs for each token, one multiplication and one addition for each number. Attention
additionally compares each token with all T positions. Sharing keys and values does not change that: each head of queries still makes its
own T × T table.
"""


# %%
#| export labs.llama.model
@flops_by_part.register(LlamaConfig)
def llama_flops(c, T: int | None = None) -> dict[str, int]:
    """Forward FLOPs per token by part, in a context of T tokens, counted as chapter 05's flops_by_part does."""
    C, L, d, T = c.n_embd, c.n_layer, c.head_size, T or c.block_size
    return {
        "attention, linear": L * 2 * (2 * c.n_head + 2 * c.n_kv_head) * d * C,
        "attention, T×T": L * 2 * 2 * T * c.n_head * d,
        "mlp": L * 2 * 3 * C * c.n_hidden,
        "lm_head": 2 * C * c.vocab_size,
    }


# %%
for name, count in llama_flops(small).items():
    print(f"{name:18} {count:9,} FLOPs a token")

# %% [markdown]
r"""
The dry run of a Llama counts the parameters by the formula. To count the adapters it makes the model without memory, on the
meta device. It measures a step if a micro-batch should take less than 3 seconds.
"""

# %%
#| export
from functools import partial
from pathlib import Path

from nanogpt import optim
from nanogpt.device import pick_device
from nanogpt.labs.llama.pretrained import KINDS, config_from_llama
from nanogpt.labs.plan.dryrun import say_time
from nanogpt.labs.tuning.lora import add_lora, lora_parameters
from nanogpt.precision import READS, LossScaler
from nanogpt.pretrained import config_from_hf
from nanogpt.labs.roofline.clock import Roofline, measure_roofline, timings
from nanogpt.shards import load_manifest
from nanogpt.training import train_step
from nanogpt.weights import classes_of


# %%
#| export
def find_shape(config, vocab_size: int) -> LlamaConfig:
    """The shape of the run's Llama: that of init_from's folder, else the configuration's."""
    if config.init_from is None:
        return new_shape(config, vocab_size)
    file = pick_checkpoint(config.init_from) / "config.json"
    if not file.exists():  # a name on the hub
        return new_shape(config, vocab_size)
    kept = read_json(file)
    if "model_type" in kept:
        read = config_from_llama if kept["model_type"] in KINDS else config_from_hf
        shape = read(kept)
    else:
        kept.pop("sha256")
        kind, _ = classes_of(kept)
        shape = kind(**kept)
    refuse_other_llama(config, shape, vocab_size)
    return shape


def with_adapters(config, model: Llama) -> Llama:
    """The model with the run's adapters, if it has some."""
    lora = config.lora
    return add_lora(model, lora.rank, lora.alpha, lora.targets) if lora.rank else model


# %%
#| export
def step_seconds(shape: LlamaConfig, config, device: torch.device, roof: Roofline) -> tuple:
    """Seconds of a step: its matrix products at the roofline's rate; and measured, if a micro-batch takes under 3 s, else None."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    name = READS.get(config.train.dtype, config.train.dtype)
    rate = roof.flops.get(name, roof.flops["float32"])
    forward = sum(llama_flops(shape, T).values()) * config.train.batch_tokens
    least = 3 * forward / rate  # backward takes twice as many FLOPs as forward
    if least > 3 * n:
        return least, None
    model, few = with_adapters(config, Llama(shape)).to(device), min(n, 2)
    ids = torch.randint(shape.vocab_size, (B, T + 1), device=device)
    batches = [(ids[:, :-1], ids[:, 1:])] * few
    optimizer = optim.make_optimizer(model, 1e-9, config.train.dtype)
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    call = partial(train_step, model, optimizer, batches, config.train.dtype, scaler=scaler)
    return least, min(timings(call, device, 3)) * n / few


# %%
#| export
def dry_run(config) -> None:
    """Print what a run of a Llama would take; nothing is written, and data that are not there are not made."""
    c, device, T = config, pick_device(config.run.device), config.model.block_size
    known = Path(c.data.dir, "manifest.json").exists()
    guess = c.data.tokenizer if isinstance(c.data.tokenizer, int) else 50257
    guess = 1024 if c.data.source == "stories" else guess
    shape = find_shape(c, load_manifest(c.data.dir)["vocab_size"] if known else guess)
    with torch.device("meta"):
        trained = sum(p.numel() for p in lora_parameters(with_adapters(c, Llama(shape))).values())
    beside = f", and {trained:,} in adapters, which alone are trained" if trained else ""
    assumed = "" if known else f", if the vocabulary has {guess:,}"
    P = sum(llama_params(shape).values())
    print(f"parameters  {P:,}{assumed}{beside}")
    kept = 4 * P + (16 * trained or 12 * P)  # all weights; of what is trained also gradients and moments
    what = "of weights, gradients and moments; activations are not counted"
    print(f"memory      at least {kept / 1e9:.3f} GB {what}")
    steps, rows = c.train.max_steps, f"{c.micro_batches} × {c.train.micro_batch} rows of {T}"
    print(f"steps       {steps:,} of {c.train.batch_tokens:,} tokens: {rows}")
    say_time(steps, *step_seconds(shape, c, device, measure_roofline(device)))


# %% tags=["nbval-ignore-output"]
dry_run(load_config("tiny", words("one")[2:]))

# %% [markdown]
r"""
The dry run gives two times of a step: a limit by the roofline, and what a step took. On this page the measured one is more than four times the limit. In earlier runs of this page it was two to four times. The roofline counts the matrix products alone,
at the rate of large ones. Here the matrices are small, and norms, rotations, softmax and the update come on top. If other programs run while it is measured, the limit can come out above
the measured time, which cannot be. Then the dry run says so.

For the memory, this dry run knows less than that of a GPT. Without adapters it counts 16 bytes for each parameter (weight,
gradient and Adam's two moments, 4 bytes each), and says that activations are not counted. Chapter 22's list of what
the forward pass keeps for the backward pass was checked for GPT-2 only, and we do not guess.
"""

# %% [markdown]
r"""
Finally `load`, with which `sample` and `eval` read a model. Nothing in it has to change. Here it reads the adapters from the folder of their run
and the weights from the folder of their base, and merges them. Then the model tells a story.
"""

# %% tags=["nbval-ignore-output"]
from nanogpt.sampling import complete, load

model, tokenizer = load((RUNS / "adapted").as_posix())
begin, generator = "One sunny day,", torch.Generator().manual_seed(0)
print(begin + complete(model, tokenizer, begin, 60, generator=generator))

# %% [markdown]
r"""
## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("24b")

# %%
checkpoint("24b")

# %% [markdown]
r"""
## Exercises

To explore:

1. Train `tiny` with both families to the end (2,000 steps) with three seeds each, and draw them together with `python -m nanogpt plot`.
   *Predict* first which one is lower. Is the difference larger than that between seeds?
2. `llama.n_kv_head` is 4, 2 and 1 in three runs. How much does the loss rise, and how much smaller is the cache? *Check*:
   `llama_params` says how many parameters each has, and a fair comparison gives them back to `llama.n_hidden`.
3. Start a run with `train.dtype=bf16` and one with float32. *Check* with `python -m nanogpt compare` how far the losses are apart.
4. Export your run with `llama_to_hf` and read it with `transformers`. Do its logits equal yours?

## Further reading

- Touvron et al. 2023, [*LLaMA*](https://arxiv.org/abs/2302.13971), §2: the first of the family, trained at four sizes by one program.
- Hu et al. 2021, [*LoRA*](https://arxiv.org/abs/2106.09685), §7.1: which matrices to adapt.
- Hugging Face, [`transformers/models/llama/modeling_llama.py`](https://github.com/huggingface/transformers/blob/main/src/transformers/models/llama/modeling_llama.py): the same blocks in another program.
"""
