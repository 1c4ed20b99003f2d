# %% [markdown]
r"""
# 17c · Config: a run as a file

The runs of chapters 17 and 17b had their sizes in a notebook's cell. A real run has more than forty settings: the model's shape, the learning rate, the batch, the folder, the seed and so on. If you type them as options in a shell, they are lost with the
shell's history. If they are constants in a script, the script of yesterday's run no longer exists, because you have edited it. So we put all of them into one file, and every checkpoint keeps a copy of what was read from it.

```
tiny.yaml ───┐                                                                     ┌─> --dry-run: what would it take?
key=value ───┼─> keys and values ──> six sections ────────> together ──> Config ───┤
--depth 4 ───┘   known? once?        type? possible?        divisible?             └─> a run (17d to 17f)
```

A file can contain mistakes, though, and most programs do not notice them. So the first half of this sitting is about reading a file in such a way that no wrong key and no wrong value gets through; ten mistakes that people make will each get one line. The second half, from "One dial" on, asks what a run will take, before it starts. It is a good evening of its own.
"""

# %%
#| default_exp config
#| doc config: A run as a file: model, data, optimizer and run in one YAML, read into dataclasses and checked.
#| doc labs.plan.idle: Keys that were given and would have no effect.
#| doc labs.plan.depth: Everything about a model from the number of its layers.
#| doc labs.plan.dryrun: What a run would take: parameters, memory, epochs, time.
#| doc build: What a run is made of, from a configuration: data, tokenizer, batches, model, optimizer.
import tempfile

import yaml

from course.figures import config as figures
from course.notebook import answer, as_module, checkpoint, predict, predictions, show

# %% [markdown]
r"""
## A run is a dictionary

The simplest description of a run is a dictionary: a name and a value for each setting. A program takes from it what it needs, and has a default for each setting that is not there. `describe` is such a program. It does
nothing but print the run in one line.
"""


# %%
def describe(given: dict) -> str:
    """A run in one line. A setting that is not given has its default."""
    layers = given.get("n_layer", 12)
    lr = given.get("lr", 1e-3)
    decay = given.get("weight_decay", 0.1)
    steps = given.get("max_steps", 1000)
    return f"{layers} layers, rate {lr}, weight decay {decay}, {steps} steps"


print(describe({"n_layer": 2, "lr": 6e-4, "weight_decay": 0.3, "max_steps": 100}))
print(describe({"n_layer": 4}))

# %% [markdown]
r"""
A dictionary can be printed, compared with another one, and saved beside the weights. But it still lives in the notebook. We want a file that we can read, comment, copy and send to somebody.

## The dictionary in a file

The usual format for such files is YAML. Each line has a key, a colon and a value, and a comment begins with `#`. Here is the text of a file that somebody wrote in a hurry, for a run with the rate 6e-4, the weight decay 0.3 and 100 steps.
PyYAML, the usual library, turns it into a dictionary.

*Predict.* How many of the three values reach the program as the author meant them?
"""

# %%
TEXT = """
lr: 6e-4            # the highest learning rate
weight_decy: 0.3    # more than the usual 0.1
max_steps: 100
"""

# %%
predict("17c.1", "of three values, reach the program as they were meant", guess=None)

# %%
given = yaml.safe_load(TEXT)
print(given)
print(describe(given))
meant = {"lr": 6e-4, "weight_decay": 0.3, "max_steps": 100}
answer("17c.1", len([name for name in meant if given.get(name) == meant[name]]))

# %% [markdown]
r"""
Only one. The second line of the output looks right at a glance, but the first line shows two mistakes. The rate has quotes: `6e-4` was read as a text. And the weight decay is 0.1, because `weight_decy` is a typing error. The program never asks for a key of that
name, so it takes its default.

An optimizer would refuse a text as its rate. But nothing ever complains about the wrong weight decay. A run of three days with a decay of 0.1 in place of 0.3 looks like any other run.

These are mistakes of two kinds. The text was misread, and a key was wrong. We repair the reader first.

## Six texts that YAML misreads

PyYAML follows version 1.1 of the format, from 2005, which has some surprises. The next cell reads six texts with it.
"""

# %%
for text in ("6e-4", "0100", "2:00:00", "{lr: 1, lr: 2}", "no", "2024-01-01"):
    print(f"{text:14} is read as {yaml.safe_load(text)!r}")

# %% [markdown]
r"""
1. `6e-4` is a text, because YAML 1.1 wants a dot in a number with an exponent.
2. `0100` is 64, because a leading zero means octal.
3. `2:00:00` is 7,200, because a colon means base sixty. This is how the scheduler of a cluster writes two hours. A key that counts minutes would take it as five days.
4. A key that is there twice has its last value. The first one is dropped without a message.
5. `no` is false, and so is `off`. A folder of data named `no`, for Norway, would be a boolean.
6. `2024-01-01` is a date, and not the name of a folder.

We repair the first four in the reader. The last two can stay: a key that wants a text will refuse `False`, and a date becomes the same text again when it is checked.

PyYAML reads a value in two steps. First a *resolver* decides of which kind a text is. For each first character there is a list of patterns, and the first pattern that fits gives the kind. Then the *constructor* of
this kind makes a Python value. We can replace both in a class of our own.

*The exponent.* We add one pattern: a sign perhaps, digits, perhaps a dot and more digits, the letter e, and digits again. It goes in front of the lists of all characters with which a number can begin.
"""

# %%
#| export
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"  # PyYAML's names for two kinds
EXPONENT = FLOAT, re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
USUAL = yaml.SafeLoader.yaml_implicit_resolvers  # for each first character: kinds with their patterns


class Loader(yaml.SafeLoader):
    """YAML as people mean it: 6e-4 is a number, 0100 is a hundred, a key is there once. Plain data only, never objects."""

    yaml_implicit_resolvers = USUAL | {first: [EXPONENT, *USUAL[first]] for first in "+-0123456789"}


# %%
print(yaml.load("{lr: 6e-4, decay: 1E-1, steps: 100}", Loader))

# %% [markdown]
r"""
*Octal and base sixty.* For these we replace the constructors. A number with a leading zero is read to base ten. What has a colon stays a text, and so does any other form that is not plain digits. A key that wants a number will refuse a text. This is the right thing to do
when we cannot know what the author meant: two hours, or two minutes?

(`class Loader(Loader)` goes on with the class in a later cell, as chapter 01 did with `BPETokenizer`. In the module it is one class.)
"""


# %%
#| export
def integer(loader: yaml.SafeLoader, node: yaml.Node) -> int | str:
    """An integer to base ten, 0100 too. What else YAML 1.1 takes for an integer, as 2:00:00, stays text."""
    digits = node.value.replace("_", "")
    return int(digits) if digits.lstrip("+-").isdecimal() else node.value


def decimal(loader: yaml.SafeLoader, node: yaml.Node) -> float | str:
    """A number with a dot or an exponent. With a colon, as 2:00:00.5, it stays text."""
    return node.value if ":" in node.value else yaml.SafeLoader.construct_yaml_float(loader, node)


class Loader(Loader):
    yaml_constructors = yaml.SafeLoader.yaml_constructors | {INT: integer, FLOAT: decimal}


# %%
print(yaml.load("{steps: 0100, minutes: 2:00:00, seconds: 2:00:00.5, rate: 0.5}", Loader))

# %% [markdown]
r"""
*A key that is there twice.* The loader calls a method for each dictionary that it builds, with the pairs as they are in the text. There we can still see both, and we raise an error.

`parsed` is the function that the rest of the course calls. It reads a text with our loader, and makes one line of any error: which file, which line of it, and the problem.
"""


# %%
#| export
class Loader(Loader):
    def construct_mapping(self, node, deep=False):
        names = [str(key.value) for key, _ in node.value]
        for name in names:
            if names.count(name) > 1:
                raise yaml.MarkedYAMLError(problem=f"{name} is there twice", problem_mark=node.start_mark)
        return yaml.SafeLoader.construct_mapping(self, node, deep)


def parsed(text: str, where: str) -> Any:
    """The data in a YAML text. ValueError in one line if it is not YAML."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{where}{line}: {problem or error}") from None


# %%
for text in ("lr: 6e-4  # fine", "lr: 1e-3\nlr: 2e-3", "{lr: 1e-3"):
    try:
        print(parsed(text, "mine.yaml"))
    except ValueError as error:
        print(error)

# %% [markdown]
r"""
## Keys with a type

Now to the second kind of mistake, a wrong key. A dictionary accepts any key. We need an object that knows which keys it has, and Python's dataclass is one. Here is a small one, with three fields. We give it a right dictionary, one with the
typing error from above, and one with values of the wrong type.
"""

# %% tags=["nbval-ignore-output"]
from dataclasses import dataclass


@dataclass
class Small:
    lr: float = 1e-3
    weight_decay: float = 0.1
    max_steps: int = 1000


print(Small(**{"lr": 6e-4, "max_steps": 100}))
try:
    Small(**{"weight_decy": 0.3})
except TypeError as error:
    print(error)
print(Small(**{"lr": "6e-4", "max_steps": 3.5}))

# %% [markdown]
r"""
The dataclass finds the wrong key. But it accepts a text as a rate, and three and a half steps: Python does not check the types that we write behind the names.

The library pydantic does. It reads data into a dataclass and compares each value with the type of its field. `refusal` gives some values to a dataclass in this way and returns pydantic's message, or None if it has
nothing to say.
"""

# %%
#| export
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError


# %%
def refusal(section: type, **values) -> str | None:
    """What pydantic says of these values, None if nothing."""
    try:
        TypeAdapter(section).validate_json(json.dumps(values))
    except ValidationError as error:
        return error.errors()[0]["msg"]


print("a wrong key:      ", refusal(Small, weight_decy=0.3))
print("text for a number:", refusal(Small, lr="6e-4"))
print("half a step:      ", refusal(Small, max_steps=3.5))

# %% [markdown]
r"""
By itself, pydantic is too friendly for us. It ignores a key that it does not know, and it converts a text to a number if it can. (Half a step it does refuse.) So we make it strict: no unknown keys, no conversions, no NaN. These options are collected in `STRICT`,
and a dataclass names them in its attribute `__pydantic_config__`. (`frozen=True` is Python's own option: nobody can change a field afterwards.)

A type can also have a range. `Annotated[float, Field(gt=0)]` is a float greater than 0. We give names to the ranges that we need, and write the first real section with them: the optimizer of chapter 15. The comment behind each field says what it means. Chapter 17e prints these
comments when you ask its command for help.
"""

# %%
#| export
STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # text is no number, 3.5 no integer
NotNegative, Positive = Annotated[int, Field(ge=0)], Annotated[int, Field(gt=0)]
Amount, Rate = Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)]
Fraction, BelowOne = Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(min_length=1)]
Place = Annotated[Name, AfterValidator(os.path.expanduser)]  # ~ is the home folder, behind a = too


# %%
#| export
@dataclass(frozen=True)
class Optim:
    """AdamW, and its learning rate over the run: chapter 15."""

    __pydantic_config__ = STRICT
    lr: Rate = 6e-4  # the highest
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)  # how much of Adam's two means each step keeps
    weight_decay: Amount = 0.1  # of the matrices; each step shrinks them by lr times this
    clip: Rate | None = 1.0  # the longest gradient; null clips none
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"  # how the rate falls: cosine, wsd, constant
    warmup: NotNegative = 0  # steps
    minimum: Fraction = 0.1  # the last rate, as a fraction of lr
    decay: Fraction = 0.3  # wsd: the fraction of the steps in which the rate falls


# %%
print("a wrong key:      ", refusal(Optim, weight_decy=0.3))
print("text for a number:", refusal(Optim, lr="6e-4"))
print("out of its range: ", refusal(Optim, lr=0))
print("as it should be:  ", refusal(Optim, lr=6e-4, weight_decay=0.3))

# %% [markdown]
r"""
The second section is the model's shape. It has a rule that no single field can express: the width must be divisible by the number of heads. Python calls a dataclass's `__post_init__` when all fields have their values, so this is the place for rules about two fields of one section.
Chapter 05's `GPTConfig` has this rule already. So `__post_init__` makes one with `shape`, for a vocabulary of any size.
"""


# %%
#| export
@dataclass(frozen=True)
class Model:
    """The shape: `GPTConfig` without its vocabulary, which the data bring along."""

    __pydantic_config__ = STRICT
    n_layer: int = 12  # blocks
    n_head: int = 12  # attention heads of a block; they divide n_embd
    n_embd: int = 768  # the width: numbers for each token between the blocks
    block_size: int = 1024  # the longest context, in tokens
    dropout: float = 0.0  # the fraction of numbers that a training step sets to zero
    bias: bool | None = None  # in linear layers and norms; null: as the family has them, and GPT-2 does
    flash: bool = True  # attention in one fused kernel, or step by step: chapter 12
    padded_vocab_size: int | None = None  # rows of the token table, if more than there are tokens: chapter 13

    def __post_init__(self):
        self.shape(vocab_size=1)

    def shape(self, vocab_size: int):
        """The GPTConfig of such a model. ValueError where there can be none."""
        from nanogpt.model import GPTConfig  # here: who only wants the keys and their types needs no torch

        return GPTConfig(**vars(self) | {"bias": self.bias is not False}, vocab_size=vocab_size)


# %%
print("five heads:", refusal(Model, n_head=5))

# %% [markdown]
r"""
## Appendix: seven more sections

The data, the length of the run, the evaluation, and the run's folder have sections of the same form. The last three sections have keys for optional chapters: adapters, layouts of many processes, and a second family of models. There is nothing new in the code. Look up what a key means when you need it, and go on with "All sections together".
"""


# %%
#| export
@dataclass(frozen=True)
class Data:
    """Where the shards are, and what they are made of where they are not there yet."""

    __pydantic_config__ = STRICT
    dir: Place = "data/built/stories"  # the folder of shards
    documents: bool = True  # rows begin with documents, as in chapter 07; else one stream, as GPT-2 had
    source: Place | None = None  # where dir has no shards: "stories", or the text that is prepared into it
    tokenizer: int | Place = "gpt2"  # that text's: GPT-2's, a tokenizer.json, or how many tokens to train
    val: BelowOne = 0.1  # the fraction of that text that is kept for validation
    paragraphs: bool = True  # a document of that text ends at a blank line
    overfit: bool = False  # every step reads the first batch again: a model must learn it by heart
    mix: dict[Place, Positive] | None = None  # a weight for each folder, dir among them; null: dir alone
    answers_after: str = ""  # in dir's documents what follows this text alone counts in the loss; empty: all


# %%
#| export
@dataclass(frozen=True)
class Train:
    """How long, how large a batch, in which precision, and what is done about a bad step."""

    __pydantic_config__ = STRICT
    max_steps: Positive = 1000  # updates of the run
    batch_tokens: Positive = 524_288  # tokens of one update, over all its micro-batches and processes
    micro_batch: Positive = 16  # rows of block_size tokens that go through the model at once
    dtype: str = "float32"  # the precision: float32, tf32, bf16, bf16-masters or fp16 (chapter 10)
    compile: bool = False  # torch.compile: a slow first step, and faster ones after it (chapter 11)
    skip_spikes: Amount = 0.0  # leave an update out beyond so many standard deviations; 0: never
    bad_steps: Positive = 10  # so many steps in a row that are not finite end the run

    def __post_init__(self):
        from nanogpt.precision import PRECISIONS

        if self.dtype not in PRECISIONS:
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(PRECISIONS)}")


# %%
#| export
@dataclass(frozen=True)
class Eval:
    """What is measured on the way. Every: so many steps; 0 is never."""

    __pydantic_config__ = STRICT
    every: NotNegative = 250  # the validation loss
    tokens: Annotated[int, Field(ge=2)] = 100_000  # of the validation text that the loss is measured on
    sample_every: NotNegative = 0  # a sample of the model's text
    prompt: str = ""  # how that sample begins
    hellaswag_every: NotNegative = 0  # the score on HellaSwag (chapter 18b)


# %%
#| export
@dataclass(frozen=True)
class Run:
    """Where the run lives, and when it saves itself."""

    __pydantic_config__ = STRICT
    dir: Place = "runs/unnamed"  # the run's folder; a run that was stopped goes on from it
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # of the first weights, the data's order and dropout
    device: str | None = None  # null: the best there is
    checkpoint_every: NotNegative = 500  # steps; 0: only at the end and when it is stopped
    keep: Positive = 2  # checkpoints, besides the best
    log_every: Positive = 1  # steps between lines
    minutes: Rate | None = None  # the time limit, before which it saves and ends
    tensorboard: bool = False  # write the log for TensorBoard, too
    wandb: bool = False  # send the log to Weights & Biases, too


# %%
#| export
@dataclass(frozen=True)
class Lora:
    """Adapters beside the frozen weights of init_from: chapters 19 and 19c."""

    __pydantic_config__ = STRICT
    rank: NotNegative = 0  # of the adapters, which alone are trained; 0: none, and all weights are trained
    alpha: Rate = 8.0  # what an adapter adds is multiplied by alpha / rank
    targets: tuple[Literal["c_attn", "c_proj", "c_fc"], ...] = ("c_attn", "c_proj", "c_fc")  # which layers


@dataclass(frozen=True)
class Parallel:
    """How processes share a run: dp × tp of them. With shard, the dp are copies × parts (chapter 21d)."""

    __pydantic_config__ = STRICT
    dp: Positive | None = None  # parts of the batch; null: as many as the processes allow
    shard: bool = False  # each of dp keeps a part of weights, gradients and moments: chapter 21
    copies: Positive = 1  # with shard: groups of processes, of which each has all parts
    tp: Positive = 1  # processes among which each layer is cut: chapter 21b
    recompute: bool = False  # of each block keep its input alone, and compute the block again in backward
    save_parts: bool = False  # with shard: each rank saves its own parts of a checkpoint


@dataclass(frozen=True)
class LlamaKeys:
    """What a Llama's shape has besides the section `model` (chapter 24b)."""

    __pydantic_config__ = STRICT
    n_kv_head: Positive | None = None  # heads of keys and values; they divide n_head; null: as many as n_head
    n_hidden: Positive | None = None  # the width of the MLP; null: 8/3 of n_embd, up to a multiple of 16
    rope_theta: Rate = 10_000.0  # the slowest pair turns by about 1/rope_theta a token
    qk_norm: bool = False  # normalize queries and keys, as Qwen3 does
    tied: bool = True  # lm_head is wte, as in GPT-2; large models have two matrices


# %%
print("steps:", refusal(Train, max_steps=3.5))
print("precision:", refusal(Train, dtype="half"))

# %% [markdown]
r"""
## All sections together

A configuration has these sections, and two keys that belong to none of them. `family` is the kind of model, and `init_from` names a trained model with which the run begins (chapter 19). One rule concerns several of them, and `check_batch` has it: `train.batch_tokens` counts the batch of one update in tokens, so that it means the same on any machine. But the batch is computed in micro-batches (chapter 15) of
`train.micro_batch` rows, and each row has `model.block_size` tokens. So the first number must be a multiple of the product of the other two. A message is most useful when it contains the remedy, so this one names the nearest number that would do.
"""


# %%
#| export
@dataclass(frozen=True)
class Config:
    """A run. ValueError, naming the keys, where its parts cannot work together."""

    __pydantic_config__ = STRICT
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    run: Run = field(default_factory=Run)
    init_from: Place | None = None  # a folder of save_model, or a Hugging Face folder or name
    lora: Lora = field(default_factory=Lora)  # small matrices that are trained instead of all weights
    parallel: Parallel = field(default_factory=Parallel)  # how processes share the run
    family: Literal["gpt", "llama"] = "gpt"  # GPT-2's blocks, or those of chapter 24
    llama: LlamaKeys = field(default_factory=LlamaKeys)  # what only a Llama has: chapter 24b

    def __post_init__(self):
        check_batch(self.model, self.train)
        for check in hooks(self, "check"):
            check(self)

    @property
    def micro_batches(self) -> int:
        """In one update."""
        return self.train.batch_tokens // (self.train.micro_batch * self.model.block_size)


# %%
#| export
def check_batch(model: Model, train: Train) -> None:
    """ValueError where the batch is no whole number of micro-batches."""
    rows = train.micro_batch * model.block_size
    if train.batch_tokens % rows:
        near = max(1, round(train.batch_tokens / rows)) * rows
        what = f"train.batch_tokens={train.batch_tokens} must be a multiple of train.micro_batch={train.micro_batch}"
        raise ValueError(f"{what} × model.block_size={model.block_size}, as {near} is")


# %% [markdown]
r"""
That is the whole configuration. `Config` calls one more function, `hooks`, which is not there yet.

## Appendix: keys that bring code along

`hooks` is for keys that ask for things that most runs do not need: adapters, many processes, another logger. Their code is in *labs*, modules of later chapters. The table `LABS` says which lab a key or a section needs. The labs are named as texts, and one is imported only if its key is not at its default. So a plain run needs
none of them, and all you have to know today is this: a key may bring its own code along. The functions below are short. A lab may have a function `check`, which is called when a configuration is read. Where the trainer makes a part of a run, it asks `hook(config, build_model)`: this returns the lab's `build_model`, if the configuration asks for a lab that has one, and otherwise its last argument, the trainer's own.
"""


# %%
#| export
# What a key that is not at its default needs besides: a lab, a module of a later chapter. It may have `check(config)`,
# called when a configuration is read, and `attach(run)`, called when a run is built (trainer). And where the core asks
# `hook`, a lab's function takes the place of the core's: new_shape, build_model, build_optimizer, open_stream (build);
# place_model, snapshot, load_weights, held_loss, whole_model, check_ranks (trainer); dry_run (labs.plan).
LABS = {
    "train.skip_spikes": "nanogpt.labs.long_run.spikes",
    "run.minutes": "nanogpt.labs.long_run.minutes",
    "run.tensorboard": "nanogpt.labs.long_run.tensorboard",
    "run.wandb": "nanogpt.labs.long_run.wandb",
    "eval.hellaswag_every": "nanogpt.labs.evals.hellaswag",
    "data.answers_after": "nanogpt.labs.tuning.answers",
    "data.mix": "nanogpt.labs.corpora.mixture",
    "lora.rank": "nanogpt.labs.tuning.adapters",
    "parallel": "nanogpt.labs.parallel.laid_out",
    "family": "nanogpt.labs.llama.runs",
    "llama": "nanogpt.labs.llama.runs",
}


def is_default(config: Config, key: str) -> bool:
    """Whether a key with dots, or a section, has its default."""
    section, _, name = key.rpartition(".")
    owner = getattr(config, section) if section else config
    value = getattr(owner, name)
    return value == (type(value)() if is_dataclass(value) else getattr(type(owner), name))


def load_labs(config: Config) -> list[ModuleType]:
    """The labs that a configuration asks for by a key that is not at its default, each once, imported.

    ModuleNotFoundError for one that is not written yet.
    """
    return [importlib.import_module(lab) for lab in asked_labs(config)]


def asked_labs(config: Config) -> list[str]:
    """The names of the labs that a configuration asks for."""
    return list(dict.fromkeys(lab for key, lab in LABS.items() if not is_default(config, key)))


# %%
#| export
def is_written(lab: str) -> bool:
    """Whether a module is there, without importing it."""
    try:
        return lab in sys.modules or importlib.util.find_spec(lab) is not None
    except ModuleNotFoundError:  # nor is its folder there
        return False


def hooks(config: Config, name: str) -> list[Callable]:
    """The functions of this name that the labs have which a configuration asks for, as far as they are written."""
    labs = [importlib.import_module(lab) for lab in asked_labs(config) if is_written(lab)]
    return [vars(lab)[name] for lab in labs if name in vars(lab)]


def hook(config: Config, usual: Callable) -> Callable:
    """A lab's function of the same name, where the configuration asks for a lab that has one; else `usual`, the core's own."""
    return next(iter(hooks(config, usual.__name__)), usual)


# %% [markdown]
r"""
## All sections, tried

Now `Config` is complete. We give it a batch of 1,000 tokens, and then ask which labs two runs need, a plain one and one with a time limit.
"""

# %%
print(refusal(Config, train={"batch_tokens": 1000}))
plain, limited = Config(), Config(run=Run(minutes=30))
print("labs:", asked_labs(plain), asked_labs(limited), hook(plain, print) is print)

# %% [markdown]
r"""
A batch of 1,000 tokens is refused, and the message names 16,384, which would do. A plain run asks for no lab. A run with a time limit asks for one, `minutes`, which chapter 17e writes. And since no lab of a plain run has a function `print`, `hook` returns Python's own.

## Changing a file's keys from the command line

Often you want the run of a file with one change. Nobody wants to write a second file for that. So the command line can change single keys, and there a key is written with its section and a dot: `train.max_steps=100`.

This needs two functions. `keys` lists the keys that exist, with dots, and their types. It looks at the fields of `Config`, and calls itself for those that are sections. `put` sets a key with a dot in a nested dictionary.
"""


# %%
#| export
#| blank keys: a section is a dataclass: call keys on it with its name and a dot before
#| blank put: the part before the dot is a section, which may not be there yet
def keys(kind: type = Config, before: str = "") -> dict[str, Any]:
    """Each key that a configuration may have, with dots, and the type of its value. A section itself is no key."""
    types = {}
    for f in fields(kind):
        inner = f.default_factory  # a section's is its class
        if is_dataclass(inner):
            types |= keys(inner, f"{f.name}.")
        else:
            types[before + f.name] = f.type
    return types


def put(given: dict, key: str, value: Any) -> None:
    """Set a key with dots. Where its section is no dictionary, nothing is set, and reading will refuse the section."""
    section, _, name = key.rpartition(".")
    if not section:
        given[name] = value
    elif isinstance(given.setdefault(section, {}), dict):
        given[section] = given[section] | {name: value}


# %%
print(len(keys()), "keys; the first ones:", *list(keys())[:4])
put(given := {"train": {"max_steps": 5}}, "train.micro_batch", 2)
print(given)

# %% [markdown]
r"""
## Appendix: finding a file, changing it, and an error in one line

Three functions of plumbing; you may go on with "Ten mistakes". `read_yaml` finds a file. The course has six configurations in the folder `nanogpt/configs/`, and they can be named without path and ending, from any folder.

`given_keys` applies the changes of the command line to what the file says. The value of a change is read as YAML, so `6e-4` is a number here as well. There is one exception: if the key wants a text, the value is taken as it is, so that a prompt may contain a colon.

`complaint` makes one line of pydantic's report, which has several lines for each mistake: which key, which value it has, and what it should be. For a key that does not exist it names the nearest one that does, first among those of the same name in another section (`max_steps` → `train.max_steps`).
"""


# %%
#| export
CONFIGS = files("nanogpt") / "configs"


def read_yaml(name_or_path: str | Path) -> tuple[dict, str]:
    """What a YAML file says, or nanogpt/configs/NAME.yaml, found from any folder; and what to call it."""
    path = Path(name_or_path)
    if named := not path.suffix and len(path.parts) == 1:
        path = CONFIGS / f"{path}.yaml"
    where = f"nanogpt/configs/{path.name}" if named else str(path)
    try:
        given = parsed(path.read_text(encoding="utf-8"), where) or {}
    except UnicodeDecodeError:
        raise ValueError(f"{where}: is no text in UTF-8") from None
    except FileNotFoundError:
        ready = ", ".join(sorted(Path(file.name).stem for file in CONFIGS.iterdir()))
        raise FileNotFoundError(f"{where} is not there; ready are {ready}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{where}: holds no keys; a line of it reads `train: {{max_steps: 100}}`")
    return given, where


# %%
said, where = read_yaml("tiny")
print(where, said["optim"])


# %%
#| export
def given_keys(contents: dict, overrides: list[str]) -> dict:
    """What the file says, changed by the overrides."""
    given = {}
    for key, value in contents.items():
        if value is not None or key in keys():  # an empty section says nothing
            put(given, str(key), value)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ValueError(f"command line: {override} is no key=value, as train.max_steps=100 is")
        if keys().get(key) not in (str, Name, Place):
            value = parsed(value, f"command line: {key}")
        put(given, key, value)
    return given


# %%
print(given_keys({"train": {"max_steps": 5}}, ["optim.lr=6e-4", "eval.prompt=Once: upon"]))

# %%
#| export
import difflib
import json
from collections.abc import Collection

from pydantic import ValidationError


# %%
#| export
def complaint(error: ValidationError, given: dict, known: Collection[str]) -> tuple[str, str]:
    """Of all known keys, the first that is wrong, or "" where it is several together; and a sentence."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    if first["type"] == "value_error":
        return "", ".".join([*place, str(first["ctx"]["error"])])
    key = place[0] if place[0] in known else ".".join(place[:2])
    if inner := [name for name in known if name.startswith(f"{key}.")]:
        return key, f"{key} is a section and takes keys of its own: {', '.join(inner)}"
    if key not in known:
        last = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
        near = last or difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        return key, f"there is no key {key}; did you mean {near[0]}?"
    section, _, name = key.rpartition(".")
    value = json.dumps((given[section] if section else given)[name], default=str)
    wanted = [e["msg"] for e in error.errors() if ".".join(map(str, e["loc"])).startswith(key)]
    wanted = [re.sub("Input should be |String should have", "", message).strip() for message in wanted]
    wanted = ["two numbers from 0 to below 1"] if name == "betas" else wanted
    return key, f"{key}={value} must be {' or '.join(wanted)}"


# %% [markdown]
r"""
One more kind of mistake makes no error at all: a key that is spelled right and has no effect. Whoever writes `optim.decay=0.5` and forgets `optim.schedule=wsd` gets a run, but not the one that was meant. The table `ACTS` says of such keys what they need. A key of the command line that
would do nothing is refused. A file may have such keys, for a reason: one switch on the command line, say `eval.every=0`, turns off what belongs to it. The price is that this mistake gets through in a file. We shall see it below.
"""


# %%
#| export labs.plan.idle
from collections.abc import Iterable


def has_text(config: Config) -> bool:
    return config.data.source not in (None, "stories")


# Key: when it has an effect, and what it needs for that.
ACTS = {
    "data.val": (has_text, "a text in data.source"),
    "data.paragraphs": (has_text, "a text in data.source"),
    "data.tokenizer": (lambda c: c.data.source != "stories", "another data.source: stories have their own"),
    "optim.decay": (lambda c: c.optim.schedule == "wsd", "optim.schedule=wsd"),
    "optim.minimum": (lambda c: c.optim.schedule != "constant", "a schedule that falls"),
    "eval.tokens": (lambda c: c.eval.every > 0, "eval.every above 0"),
    "eval.prompt": (lambda c: c.eval.sample_every > 0, "eval.sample_every above 0"),
    "lora.alpha": (lambda c: c.lora.rank > 0, "lora.rank above 0"),
    "lora.targets": (lambda c: c.lora.rank > 0, "lora.rank above 0"),
    "model.padded_vocab_size": (lambda c: c.init_from is None, "a new model, not init_from's"),
}


def refuse_idle(config: Config, overrides: Iterable[str]) -> None:
    """ValueError for the first key of the command line that is not at its default, and has no effect."""
    for key in (override.partition("=")[0] for override in overrides):
        acts, needs = ACTS.get(key, (bool, ""))
        if not acts(config) and not is_default(config, key):
            raise ValueError(f"command line: {key} would have no effect; it needs {needs}")


# %%
as_module("labs.plan.idle")  # as the checkpoint will write it

# %% [markdown]
r"""
## Ten mistakes

Now everything is there. `load_config` reads a run: it finds the file, applies the changes, and lets pydantic check the result. If something is wrong, it raises an error of one line, which begins with the place: the file, or the command line.
`config_dict` goes the other way, for the copy in the checkpoint.
"""


# %%
#| export
def load_config(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """The run in a YAML file, or in nanogpt/configs/NAME.yaml, changed by `key=value` overrides.

    ValueError or OSError in one line, which names the file, the key with dots, and for a typo the nearest one.
    """
    contents, where = read_yaml(name_or_path)
    given = given_keys(contents, overrides := list(overrides))
    try:
        config = TypeAdapter(Config).validate_json(json.dumps(given, default=str))
        importlib.import_module("nanogpt.labs.plan.idle").refuse_idle(config, overrides)
        return config
    except ValidationError as error:
        key, sentence = complaint(error, given, keys())
    if any(override.startswith(f"{key}=") for override in overrides):
        where = "command line"
    elif not key and overrides:
        where = f"{where} with {' '.join(overrides)}"
    raise ValueError(f"{where}: {sentence}")


def config_dict(config: Config) -> dict:
    """As a JSON file can hold it, which `load_config` reads back, since JSON is YAML."""
    return json.loads(json.dumps(asdict(config)))


# %%
config = load_config("tiny", ["train.max_steps=100"])
print(config.train)

# %% [markdown]
r"""
*Check.* Here are ten mistakes as people make them. Each must give one line that names its key. If one of them is accepted, the cell fails.
"""

# %%
MISTAKES = """optim.lrr=1e-3 max_steps=100 train.max_steps=1e2 optim.schedule=cosin model.n_head=5
train.batch_tokens=1000 train.dtype=half model.dropout= run=runs/a
run.minutes=2:00:00"""
for mistake in MISTAKES.split():
    try:
        load_config("tiny", [mistake])
    except ValueError as error:
        print(error)
        assert "\n" not in str(error), "an error of two lines"
        assert mistake.partition("=")[0] in str(error), f"it does not name the key of {mistake}"
    else:
        raise AssertionError(f"{mistake} was accepted")

# %% [markdown]
r"""
All ten are refused, each in one line with its key, and most lines contain the remedy: the nearest key, the allowed words, a batch that would do. Look at `model.dropout=`. A shell makes this of `model.dropout=$DROPOUT` if the variable is not set. The value is null, which is not zero, and so it is refused.

And the mistake that gets through? Here is a file with a decay that its schedule does not have. On the command line it is refused. In the file it is accepted, and only the table `ACTS`, asked by hand, finds it.
"""

# %%
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "mine.yaml")
    file.write_text("optim: {schedule: cosine, decay: 0.5}")
    try:
        load_config("tiny", ["optim.schedule=cosine", "optim.decay=0.5"])
    except ValueError as error:
        print(error)
    accepted = load_config(file)
print("from the file:", accepted.optim.schedule, accepted.optim.decay)
for key, (acts, needs) in ACTS.items():
    if not acts(accepted) and not is_default(accepted, key):
        print(f"in the file, {key} has no effect; it needs {needs}")

# %% [markdown]
r"""
So a reader of files can do more than ours: it could print this line for each idle key of a file. Exploration 6 asks for it.

Six configurations are ready: `tiny` and `shakespeare` for a laptop, `gpt2-124M` with the schedule of the build-nanogpt lecture and `gpt2-124M-llmc` with llm.c's for a server, `overfit` for a first test of new code, `finetune` for chapter 19. They are written to be read:
"""

# %%
print((CONFIGS / "overfit.yaml").read_text(encoding="utf-8"))

# %% [markdown]
r"""
## One dial

If you try several sizes, you do not want to choose width, heads, learning rate and length each time. nanochat derives them all from the number of layers
(`scripts/base_train.py`), and `--depth` does so with simpler rules. The width is 64 n, with heads of 64 numbers, so that depth 12 is GPT-2 small.

*The rate.* Adam's update has the same size for every weight. A wider layer adds up more of these updates, so the rate should fall as 1/width (Yang et al. 2022). We begin with
GPT-3's rate at GPT-2 small's width.

*The length.* For a given amount of compute, a model should see about 20 tokens for each of its parameters (Hoffmann et al. 2022). So the number of steps follows from the size and from the
file's batch.

*Predict.* `--depth 24` has how many times the parameters of `--depth 12` in its layers? (12 C² in each, chapter 05.)
"""


# %%
#| export labs.plan.depth
#| blank from_depth: 64 columns and one head for each layer; the rate falls as 1 / width; 20 tokens for a parameter
import math


def from_depth(n: int, batch_tokens: int) -> list[str]:
    """Overrides for n layers, as nanochat's one dial (scripts/base_train.py), with GPT-2's heads of 64; 12 is GPT-2 small.

    The width is 64 n. The rate is GPT-3's 6e-4 for 768 (Brown et al. 2020, table 2.1) times 768 / width (Yang et al.
    2022). The steps, rounded up, make 20 tokens for each of the layers' 12 n width² parameters (Hoffmann et al. 2022).
    Five texts such as "model.n_layer=4": n_layer, n_embd, n_head, optim.lr, train.max_steps. ValueError for n below 1.
    """
    if n < 1:
        raise ValueError(f"--depth {n} is the number of layers, at least 1")
    width = 64 * n
    shape = [f"model.n_layer={n}", f"model.n_embd={width}", f"model.n_head={n}"]
    steps = math.ceil(20 * 12 * n * width**2 / batch_tokens)
    return [*shape, f"optim.lr={6e-4 * 768 / width:.6g}", f"train.max_steps={steps}"]


# %%
predict("17c.2", "parameters in the layers, depth 24 to depth 12", guess=None, unit="times")

# %%
for depth in (4, 12, 24, 48):
    million = 12 * depth * (64 * depth) ** 2 / 1e6
    print(f"{million:10,.1f} million in the layers:", *from_depth(depth, 524_288))
answer("17c.2", 24**3 / 12**3)

# %% [markdown]
r"""
The parameters grow with the cube of the depth: twice the layers, each with twice the width squared. The compute grows with its sixth power, since a model with eight times the parameters
is also shown eight times the tokens.

*Check.* GPT-3's table has the rates that its authors used for eight widths. How far is our rule from them, and how far would a rule with the root of the width be?
"""

# %%
WIDTHS = 768, 1024, 1536, 2048, 2560, 4096, 5140, 12288
THEIRS = 6e-4, 3e-4, 2.5e-4, 2e-4, 1.6e-4, 1.2e-4, 1e-4, 0.6e-4
for width, theirs in zip(WIDTHS, THEIRS, strict=True):
    ours, root = 6e-4 * 768 / width, 6e-4 * (768 / width) ** 0.5
    times = f"1/width {ours / theirs:.2f} times, root {root / theirs:.2f} times"
    print(f"width {width:5}: theirs {theirs:.2g}, {times}")
    assert 0.6 < ours / theirs < 1.6, f"the rule is off by {ours / theirs:.2f} at width {width}"

# %% [markdown]
r"""
Neither is exact. Measured from the first row, 1/width stays within a factor of about 1.6, and the root is 1.7 to 2.5 times too high. But the first row is an outlier. Measured from the second one, the root stays
within a factor of 1.5 for all wider models, and 1/width ends 2.4 times too low. The best single power of all eight rows is about -0.77. And GPT-3's batch grows along with the width. So this table does not decide between the two.
The theory speaks for 1/width. nanochat scales its AdamW rates with the root.

## Before it begins: memory

If a run does not fit into memory, it fails in its first step, on a machine for which you have waited in a queue. But the memory can be counted before (chapter 09b):
weights, gradients and AdamW's two means, and everything that the forward pass keeps for the backward pass. The last part grows with the micro-batch.

*Predict.* GPT-2 small, all in float32: four numbers a parameter are 2.0 GB. How many GB does a micro-batch of 16 rows of 1,024 tokens add?
"""


# %%
#| export labs.plan.dryrun
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from nanogpt import optim
from nanogpt.checkpoint import latest
from nanogpt.device import pick_device
from nanogpt.labs.roofline.memory import memory_by_category
from nanogpt.labs.roofline.work import predict_step
from nanogpt.metrics import span
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.precision import READS, LossScaler
from nanogpt.pretrained import config_from_hf, read_json
from nanogpt.labs.roofline.clock import Roofline, measure_roofline, timings
from nanogpt.shards import load_manifest
from nanogpt.training import train_step
from nanogpt.weights import classes_of

# %%
DEPTHS, BATCHES = (1, 2, 3, 4), (1, 2, 4, 8, 16)  # layers, rows of a micro-batch

# %%
predict("17c.3", f"activations of GPT-2 small, {BATCHES[-1]} rows of 1,024", guess=None, unit="GB")

# %%
memory = {}
for B in BATCHES:
    parts = memory_by_category(GPTConfig(), B, 1024)
    memory[B] = {what: n / 1e9 for what, n in parts.items()}
answer("17c.3", memory[BATCHES[-1]]["activations"])
show(figures.memory(memory), alt="GB by category: only the activations grow with the micro-batch.")

# %% [markdown]
r"""
13 GB, more than six times as much as weights, gradients and means together. So `train.micro_batch` decides how much memory a run takes. The training itself only depends on `train.batch_tokens`, which can stay the same. The figure counts the arrays that must
exist. An allocator needs some more, so a bar that just reaches a line will not fit.

## Before it begins: time

The time of a step can be estimated in two ways. The first needs no model at all. Chapter 09's roofline takes the rates of one measured product and one measured copy, and with these rates all products and all memory traffic of a step need
a certain time. If these rates are the highest that the machine reaches, a step cannot be faster. `least_seconds` adds up this time for the micro-batches of a step and for its one update.
"""


# %%
#| export labs.plan.dryrun
def least_seconds(shape: GPTConfig, config: Config, roof: Roofline) -> float:
    """What the device's roofline allows at least for a step: its micro-batches one after the other, and one update."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    name = READS.get(config.train.dtype, config.train.dtype)
    parts = predict_step(shape, B, T, roof, name if name in roof.flops else "float32", fused=True)
    update = parts["optimizer", "update"]
    return (sum(parts.values()) - update) * n + update


# %% tags=["nbval-ignore-output"]
roof = measure_roofline(device := pick_device())
config = load_config("tiny")
shape = config.model.shape(1024)
least = least_seconds(shape, config, roof)
print(f"tiny: at least {1000 * least:.2f} ms a step")

# %% [markdown]
r"""
The second way is to make a step. `measured_seconds` builds the model and lets it train on random tokens, with a rate of nearly zero. At most two micro-batches are computed, because all of them have the same size. The model is thrown away afterwards.
`step_seconds` gives both numbers. It leaves the second one out if the roofline allows no micro-batch in less than three seconds, since you would have to wait for it.
"""


# %%
#| export labs.plan.dryrun
def measured_seconds(shape: GPTConfig, config: Config, device: torch.device) -> float:
    """Of a step, measured with random tokens on at most two of its micro-batches."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    model, few = GPT(shape).to(device), min(n, 2)
    ids = torch.randint(shape.vocab_size, (B, T + 1), device=device)
    batches = [(ids[:, :-1], ids[:, 1:])] * few
    optimizer = optim.make_optimizer(model, 1e-9, config.train.dtype)
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    call = partial(train_step, model, optimizer, batches, config.train.dtype, scaler=scaler)
    return min(timings(call, device, 3)) * n / few


def step_seconds(shape: GPTConfig, config: Config, device: torch.device, roof: Roofline) -> tuple:
    """Seconds of a step: at least, by the device's roofline; and measured, if a micro-batch takes under 3 s, else None."""
    least = least_seconds(shape, config, roof)
    short = least < 3 * config.micro_batches
    return least, measured_seconds(shape, config, device) if short else None


# %% tags=["nbval-ignore-output"]
least, measured = step_seconds(shape, config, device, roof)
print(f"tiny: at least {1000 * least:.2f} ms a step; {1000 * measured:.2f} ms measured")

# %% [markdown]
r"""
How does the ratio of the two numbers depend on the size of the model? We measure four depths.

*Predict.* For the largest of the four: the measured time of a step, divided by what the roofline allows?
"""

# %%
predict("17c.4", "a measured step, to what the roofline allows", guess=None, unit="×")

# %% tags=["nbval-ignore-output"]
steps = []
for depth in DEPTHS:
    config = load_config("tiny", from_depth(depth, 512))
    shape = config.model.shape(1024)
    steps.append((num_params(shape), *step_seconds(shape, config, device, roof)))
answer("17c.4", steps[-1][2] / steps[-1][1] if steps[-1][2] else None)
show(figures.dry_run(steps), alt="Time of a step over parameters: measured, and the roofline's bound.")

# %% [markdown]
r"""
The number at each point says by what factor a step misses the bound. On the page you read it falls from 2.7 for one layer to 1.3 for four. On a machine that does nothing else, the distance between the lines is the time that a roofline does not know: calls that take longer than their work, small products that fill no core, page faults
(chapter 14 names the parts). The smaller the model, the larger their share.

Can a step be faster than the bound? Yes, if the bound was measured with something slower than the model's own work. There are three such cases. If other programs use the processor while the roofline is measured, the bound is too high, and the lines of the figure can cross. If all data of a model fit into the cache, its traffic
is faster than chapter 09's copy. And on a CPU without bfloat16 units, PyTorch multiplies `a @ b` in bfloat16 several times as slowly as `a @ b.T`, which is what `nn.Linear` does. The dry run says so when
it sees a step below the bound.
"""

# %% [markdown]
r"""
## Appendix: the dry run's lines

`dry_run` prints all these numbers for a configuration: parameters, memory, steps, epochs and time. This is what `python -m nanogpt train gpt2-124M --dry-run` will print (chapter 17e). It writes nothing, and it does not make data that are not there. If the shards are not there yet, it assumes the size of
their vocabulary. `shape_of` takes care of a run that begins with a trained model (`init_from`): it has that model's shape. If the file asks for another shape, `refuse_other_shape` says so. (It is the first function of the module `build`, in which chapter 17d makes the parts of a run.)
"""


# %%
#| export build
from nanogpt.model import GPTConfig


# %%
#| export build
def refuse_other_shape(config: Config, shape: GPTConfig) -> None:
    """ValueError if the model of init_from is no GPT, or has another shape than the one that the configuration asks for."""
    if not isinstance(shape, GPTConfig):
        raise ValueError(f"init_from={config.init_from} is a llama, not a gpt; set family=llama")
    for name in ("n_layer", "n_head", "n_embd", "bias"):
        given, has = getattr(config.model, name), getattr(shape, name)
        if given not in (has, getattr(Model, name)):  # at its default nobody has asked for it
            raise ValueError(f"init_from={config.init_from} has {name}={has}; leave out model.{name}={given}")
    if shape.block_size < config.model.block_size:
        needs = f"the run needs model.block_size={config.model.block_size}"
        raise ValueError(f"init_from={config.init_from} has a context of {shape.block_size}; {needs}")


# %%
#| export labs.plan.dryrun
def say_time(steps: int, least: float, measured: float | None) -> None:
    """Print the time of all steps, from the seconds of one: at least, by the roofline; and measured, unless None."""
    if measured is None and steps * least > 365 * 86400:
        print("time        years on this machine; `python -m nanogpt plan` says what it takes on others")
        return
    more = f"; {span(steps * measured)} ({1000 * measured:.4g} ms measured)" if measured else ""
    print(f"time        at least {span(steps * least)} ({1000 * least:.4g} ms a step by the roofline){more}")
    if measured and measured < least:
        print(
            "            the roofline was measured too low: on a busy machine, or with slower work than the model's"
        )


def say_memory(shape: GPTConfig, config: Config) -> None:
    """Print what a step keeps, by category, as if all numbers were float32."""
    parts = memory_by_category(shape, config.train.micro_batch, config.model.block_size)
    text = ", ".join(f"{what} {n / 1e9:.3f}" for what, n in parts.items())
    print(f"memory      {sum(parts.values()) / 1e9:.3f} GB with all in float32: {text}")


# %%
#| export labs.plan.dryrun
def folder_of(init_from: str) -> Path:
    """The folder of the model that a run begins with; of a run, its newest checkpoint."""
    return latest(init_from) or Path(init_from)


def shape_of(config: Config, vocab_size: int) -> GPTConfig:
    """The shape of the run's model, without dropout: that of init_from's folder, else the configuration's."""
    new = replace(config.model.shape(vocab_size), dropout=0.0)
    if config.init_from is None:
        return new
    file = folder_of(config.init_from) / "config.json"
    if not file.exists():  # a name on the hub
        return new
    kept = read_json(file)
    if "model_type" in kept:
        shape = config_from_hf(kept, str(file))
    else:
        kept.pop("sha256")
        kind, _ = classes_of(kept)
        shape = kind(**kept)
    refuse_other_shape(config, shape)
    return replace(shape, dropout=0.0)


# %%
#| export labs.plan.dryrun
def dry_run(config: Config) -> None:
    """Print what a run would take; nothing is written, and data that are not there are not made."""
    c, device, known = config, pick_device(config.run.device), Path(config.data.dir, "manifest.json").exists()
    own = 50257 if isinstance(c.data.tokenizer, str) else c.data.tokenizer
    guess = 1024 if c.data.source == "stories" else own
    manifest = load_manifest(c.data.dir) if known else {"vocab_size": guess}
    shape = shape_of(c, manifest["vocab_size"])
    B, T, steps, tokens = c.train.micro_batch, c.model.block_size, c.train.max_steps, c.train.batch_tokens
    assumed = "" if known or shape.vocab_size != guess else f", if the vocabulary has {guess:,}"
    print(f"parameters  {num_params(shape):,}{assumed}")
    say_memory(shape, c)
    print(f"steps       {steps:,} of {tokens:,} tokens: {c.micro_batches} × {B} rows of {T}")
    if known:
        train = manifest["splits"]["train"]
        n, what = (train["documents"] * T, "documents") if c.data.documents else (train["tokens"], "tokens")
        print(f"epochs      {steps * tokens / n:.2f} of {train[what]:,} {what}")
    say_time(steps, *step_seconds(shape, c, device, measure_roofline(device)))


# %% tags=["nbval-ignore-output"]
dry_run(load_config("tiny", ["data.dir=nowhere"]))

# %% [markdown]
r"""
## Checkpoint

For GPT-2 small the same command says whether it takes hours or weeks, before an hour is spent: chapter 14b's H100 made 416,000 tokens a second, which is 6.7 hours for the ten billion tokens of `gpt2-124M`.
"""

# %% tags=["nbval-ignore-output"]
predictions("17c")

# %%
checkpoint("17c")

# %% [markdown]
r"""
Now the package reads runs, and says what they would take. Chapter 17d makes them.

## Exercises

`course exercises release 17` writes this one, and those of the other sittings, as a notebook to `released/`; `course check 17` runs their visible checks.

- **17-1** A rate that is a text, 15 minutes: repair a reader that converts what it gets.

To explore:

1. Add a field `lr_warm: Rate` to `Optim` that must not exceed `lr`. Which of the places above does a rule about two keys of one section belong to?
   Check: `load_config("tiny", ["optim.lr_warm=1"])` names both keys in one line.
2. Take `strict=True` out of `STRICT`, and run the notebook again. Check: the cell with the ten mistakes says that `train.max_steps=1e2` was accepted. It would be 100 steps, as it was meant. Now try `train.compile='off'`, `train.compile=1` and
   `run.seed=3.0`. Which of them do you want a reader to accept?
3. Write the configuration of a run that you would start tonight on the machine before you, 8 hours long. Check: `--dry-run` says between 7 and 8 hours.
4. `--depth` lets the rate fall as 1/width, so the best rate of depth 1 should be twice that of depth 2. Find both with 300 steps of `tiny` each, in steps of a factor of 1.4 (chapter 15 has the loop; compare the mean of the last 50 losses). Check: with one seed we found 4e-3 and 2.8e-3, a ratio of 1.4 only.
   How flat is the loss around the best rate, and does another seed say the same?
5. nanoGPT has no reader of files: `configurator.py` runs a Python file with `exec`, and its options are `--key=value`. Read its fifty lines. Check: as options, a wrong key and `max_iters=1e2` are refused, but `dtype=half` and `n_head=5` are accepted. In the file everything is
   accepted, a wrong key too. And what can such a file do that a YAML file cannot? (Try `n_embd = 64 * n_layer`.)
6. Let `load_config` print a line for each key of a file that has no effect, and let `eval.every=0` on the command line not cause any. Check: the file of "Ten mistakes" gives one line, and the ready `tiny` none.
7. How many rows of 1,024 tokens fit into the 16 GB of a T4, for GPT-2 small, and for GPT-2 medium (`GPTConfig(n_layer=24, n_embd=1024, n_head=16)`)? Check with `memory_by_category`: 17 rows and 5 rows. Chapter 22 finds two tables that this count leaves out. Which ones could it mean?

## Further reading

- [YAML 1.2.2](https://yaml.org/spec/1.2.2/#1032-tag-resolution), §10.3.2, tag resolution: what is a number; and StrictYAML's documentation, [*The Norway problem*](https://hitchdev.com/strictyaml/why/implicit-typing-removed/), for what 1.1 takes for a boolean.
- pydantic, [*Strict mode*](https://docs.pydantic.dev/latest/concepts/strict_mode/) and its [conversion table](https://docs.pydantic.dev/latest/concepts/conversion_table/): what is taken for what when one is not strict.
- [nanochat](https://github.com/karpathy/nanochat), `scripts/base_train.py`: everything from one depth. Yang et al. 2022, [*Tensor Programs V*](https://arxiv.org/abs/2203.03466): why a rate must fall with the width.
- Brown et al. 2020, [*Language Models are Few-Shot Learners*](https://arxiv.org/abs/2005.14165), table 2.1: rates and batch sizes that belong to sizes.
"""
