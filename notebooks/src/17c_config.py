# %% [markdown]
r"""
# 17c · Config: a run as a file

The runs of chapters 17 and 17b had their sizes in a notebook's cell. A run is some forty numbers. As options in a shell they are lost with the shell's history; as constants in a script, the script of
yesterday's run is gone. So all of them go into one file, and what was read from it is kept with every checkpoint.

```
tiny.yaml ───┐                                                                     ┌─> --dry-run: what would it take?
key=value ───┼─> keys and values ──> six sections ────────> together ──> Config ───┤
--depth 4 ───┘   known? once?        type? possible?        whole batches?         └─> a run (17d, 17e)
```

A file can be wrong, though, and a program that reads it kindly does not say so.

*Predict.* Below, a script reads three values as many scripts do. How many arrive as the file's author meant them?
"""

# %%
#| default_exp run.config
#| doc run.config: A run as a file: model, data, optimizer and run in one YAML, read into dataclasses and checked.
#| doc run.configfile: A YAML file as plain data: numbers as people write them, no key twice, each error one line.
#| doc run.dryrun: What a run would take: parameters, memory, epochs, time.
import yaml

from course.figures import config as figures
from course.notebook import answer, checkpoint, predict, predictions, show

# %%
DEPTHS, BATCHES = (1, 2, 3, 4), (1, 2, 4, 8, 16)  # a dry run's: layers, rows of a micro-batch

# %%
predict("17c.1", "of three values, so many arrive", guess=None)

# %%
said = yaml.safe_load("{lr: 6e-4, weight_decy: 0.3, max_steps: 100}")
read = [said.get("lr", 1e-3), said.get("weight_decay", 0.1), said.get("max_steps", 1000)]
print(read)
answer("17c.1", sum(a == b for a, b in zip(read, (6e-4, 0.3, 100))))

# %% [markdown]
r"""
One. `weight_decy` is a key that nobody asks for, so the default is used, and nobody hears of it. And `6e-4` is text: YAML 1.1, which PyYAML reads,
wants a dot in a number with an exponent. Nothing fails: a run of three days with the wrong decay looks like any other.

## Strict sections

So reading is strict. Each section of the file is a dataclass, and pydantic, which reads data into dataclasses, accepts no key
that is not there and no value of another type: no text for a number, no 3.5 for an integer, no NaN. An impossible value is one that
no run can have: its range stands with its field.
"""

# %%
#| export run.config
import difflib
import json
import math
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # text is no number, 3.5 no integer
Count, Positive = Annotated[int, Field(ge=0)], Annotated[int, Field(gt=0)]
Amount, Rate = Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)]
Fraction, BelowOne = Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(min_length=1)]


# %%
#| export run.config
@dataclass(frozen=True)
class Model:
    """The shape: `GPTConfig` without its vocabulary, which the data bring along."""

    __pydantic_config__ = STRICT
    n_layer: int = 12  # blocks
    n_head: int = 12  # attention heads of a block; they divide n_embd
    n_embd: int = 768  # the width: numbers for each token between the blocks
    block_size: int = 1024  # the longest context, in tokens
    dropout: float = 0.0  # the fraction of numbers that a training step sets to zero
    bias: bool = True  # in linear layers and LayerNorms; GPT-2 has them
    flash: bool = True  # attention in one fused kernel, or step by step: chapter 12
    padded_vocab_size: int | None = None  # rows of the token table, if more than there are tokens: chapter 13

    def __post_init__(self):
        from nanogpt.gpt.model import check_shape  # here: it imports torch, and a command's --help needs none

        check_shape(SimpleNamespace(**vars(self), vocab_size=1))


# %%
#| export run.config
@dataclass(frozen=True)
class Data:
    """Where the shards are, and what they are made of where they are not there yet."""

    __pydantic_config__ = STRICT
    dir: Name = "data/built/stories"  # the folder of shards
    documents: bool = True  # rows begin with documents, as in chapter 07; else one stream, as GPT-2 had
    source: str | None = None  # where dir has no shards: "stories", or the text that is prepared into it
    tokenizer: int | str = "gpt2"  # that text's: GPT-2's, a tokenizer.json, or how many tokens to train
    val: BelowOne = 0.1  # the fraction of that text that is kept for validation
    paragraphs: bool = True  # a document of that text ends at a blank line
    overfit: bool = False  # every step reads the first batch again: a model must learn it by heart


# %% [markdown]
r"""
Let us see what a section refuses. `refusal` hands some values to a section as a file would, and gives pydantic's words if they are wrong.
"""


# %%
def refusal(section: type, **values) -> str | None:
    """What pydantic says of these values, None if nothing."""
    try:
        TypeAdapter(section).validate_json(json.dumps(values))
    except ValidationError as error:
        return error.errors()[0]["msg"]


print("a key that is not there:", refusal(Data, vall=0.2))
print("text for a number:      ", refusal(Data, val="0.2"))
print("out of its range:       ", refusal(Data, val=1.0))
print("as it should be:        ", refusal(Data, val=0.2))

# %% [markdown]
r"""
Four more sections follow in the same way: the optimizer of chapter 15, the length and the precision of the run, what is measured on the way, and where the run lives.
"""


# %%
#| export run.config
@dataclass(frozen=True)
class Optim:
    """AdamW, and its learning rate over the run: chapter 15."""

    __pydantic_config__ = STRICT
    lr: Rate = 6e-4  # the highest
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)  # how much of Adam's two means each step keeps
    weight_decay: Amount = 0.1  # of the matrices; each step shrinks them by lr times this
    clip: Rate | None = 1.0  # the longest gradient; null clips none
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"  # how the rate falls: cosine, wsd, constant
    warmup: Count = 0  # steps
    minimum: Fraction = 0.1  # the last rate, as a fraction of lr
    decay: Fraction = 0.3  # wsd: the fraction of the steps in which the rate falls


# %%
#| export run.config
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
        from nanogpt.gpt.precision import PRECISIONS

        if self.dtype not in PRECISIONS:
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(PRECISIONS)}")


# %%
print("steps:", refusal(Train, max_steps=3.5))
print("precision:", refusal(Train, dtype="half"))


# %%
#| export run.config
@dataclass(frozen=True)
class Eval:
    """What is measured on the way. Every: so many steps; 0 is never."""

    __pydantic_config__ = STRICT
    every: Count = 250  # the validation loss
    tokens: Positive = 100_000  # of the validation text that the loss is measured on
    sample_every: Count = 0  # a sample of the model's text
    prompt: str = ""  # how that sample begins
    hellaswag_every: Count = 0  # the score on HellaSwag (chapter 18b)


# %%
#| export run.config
@dataclass(frozen=True)
class Run:
    """Where the run lives, and when it saves itself."""

    __pydantic_config__ = STRICT
    dir: Name = "runs/unnamed"  # the run's folder; a run that was stopped goes on from it
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # of the first weights, the data's order and dropout
    device: str | None = None  # null: the best there is
    checkpoint_every: Count = 500  # steps; 0: only at the end and when it is stopped
    keep: Positive = 2  # checkpoints, besides the best
    log_every: Positive = 1  # steps between lines
    minutes: Rate | None = None  # the time limit, before which it saves and ends
    tensorboard: bool = False  # write the log for TensorBoard, too
    wandb: bool = False  # send the log to Weights & Biases, too


# %% [markdown]
r"""
What one section cannot know is checked where they meet. A batch is counted in tokens, so that it means the same whatever fits into memory at once
(chapter 15: micro-batches); then it must be a whole number of micro-batches. The message says which number nearby would do.
"""


# %%
#| export run.config
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
    init_from: str | None = None  # a folder of save_model, or a Hugging Face folder or name

    def __post_init__(self):
        check_together(self.model, self.optim, self.train)

    @property
    def micro_batches(self) -> int:
        """In one update."""
        return self.train.batch_tokens // (self.train.micro_batch * self.model.block_size)


# %%
#| export run.config
def check_together(model: Model, optim: Optim, train: Train) -> None:
    """ValueError where the batch is no whole number of micro-batches, or the schedule is longer than the run."""
    steps, rows = f"train.max_steps={train.max_steps}", train.micro_batch * model.block_size
    if train.batch_tokens % rows:
        near = max(1, round(train.batch_tokens / rows)) * rows
        said = f"train.batch_tokens={train.batch_tokens} must be a multiple of train.micro_batch={train.micro_batch}"
        raise ValueError(f"{said} × model.block_size={model.block_size}, as {near} is")
    if optim.warmup > train.max_steps:
        raise ValueError(f"optim.warmup={optim.warmup} must not exceed {steps}")
    if optim.schedule == "wsd" and optim.warmup + optim.decay * train.max_steps > train.max_steps:
        raise ValueError(f"optim.warmup={optim.warmup} and optim.decay={optim.decay} overlap in {steps}")


# %%
print(refusal(Config, train={"batch_tokens": 1000}))

# %% [markdown]
r"""
## What a file says

YAML is easy to read, and easy to read wrongly. PyYAML reads `6e-4` as text, because there is no dot. It reads `0100` as 64, because a leading zero
means octal. It reads `2:00:00`, two hours as a scheduler writes them, as the number 7,200, because a colon means base sixty. And of a key that stands
there twice it takes the last, without a word. Our loader reads the first two as people mean them. `2:00:00` stays text, which a key that wants a
number refuses, and a key that stands there twice is an error. What is no YAML at all becomes one line with the place of the fault.
"""


# %%
#| export run.configfile
import re
from pathlib import Path
from typing import Any

import yaml

import nanogpt

FLOAT = "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
USUAL = yaml.SafeLoader.yaml_implicit_resolvers


def decimal(loader: yaml.SafeLoader, node: yaml.Node) -> int | str:
    """A whole number to base ten, 0100 too. What YAML 1.1 takes for other numbers, as 2:00:00, is text, and so refused."""
    digits = node.value.replace("_", "")
    return int(digits) if digits.lstrip("+-").isdecimal() else node.value


# %%
#| export run.configfile
class Loader(yaml.SafeLoader):
    """YAML in which 6e-4 is a number, as in YAML 1.2, and a key stands once. Plain data only, never objects."""

    yaml_implicit_resolvers = USUAL | {first: [FLOAT, *USUAL[first]] for first in "+-0123456789"}
    yaml_constructors = yaml.SafeLoader.yaml_constructors | {"tag:yaml.org,2002:int": decimal}

    def construct_mapping(self, node, deep=False):
        names = [str(key.value) for key, _ in node.value]
        for name in {name for name in names if names.count(name) > 1}:
            raise yaml.MarkedYAMLError(problem=f"{name} stands there twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


# %%
#| export run.configfile
def parsed(text: str, where: str) -> Any:
    """What a YAML text says; ValueError in one line where it says nothing."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{where}{line}: {problem or error}") from None


# %%
print(parsed("{lr: 6e-4, steps: 0100, minutes: 2:00:00}", "here"))
try:
    parsed("lr: 1e-3\nlr: 2e-3", "here")
except ValueError as error:
    print(error)

# %% [markdown]
r"""
The six configurations of the course are in `configs/`. They can be named without path and ending, from any folder.
"""


# %%
#| export run.configfile
CONFIGS = Path(nanogpt.__file__).resolve().parents[1] / "configs"


def read_config(name_or_path: str | Path) -> tuple[dict, str]:
    """What a YAML file says, or configs/NAME.yaml, found from any folder; and what to call it."""
    path = Path(name_or_path)
    if named := not path.suffix and len(path.parts) == 1:
        path = CONFIGS / f"{path}.yaml"
    where = f"configs/{path.name}" if named else str(path)
    try:
        given = parsed(path.read_text(encoding="utf-8"), where) or {}
    except UnicodeDecodeError:
        raise ValueError(f"{where}: is no text in UTF-8") from None
    except FileNotFoundError:
        ready = ", ".join(sorted(path.stem for path in CONFIGS.glob("*.yaml")))
        raise FileNotFoundError(f"{where} is not there; ready are {ready}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{where}: holds no keys; a line of it reads `train: {{max_steps: 100}}`")
    return given, where


# %%
said, where = read_config("tiny")
print(where, said["optim"])

# %% [markdown]
r"""
A key is written with a dot, in errors and on the command line: `train.max_steps`. A command line changes single keys of the file, so that a
variation of a run needs no second file.

pydantic lists all that is wrong, in its own words, over many lines. Whoever has made a typo wants one line: where it is, what stands there, what could. For a key
that does not exist it is the nearest one that does, first among those of the same name in another section (`max_steps` → `train.max_steps`).
"""


# %%
#| export run.config
#| blank keys: a section is a dataclass: call keys on it with its name and a dot before
#| blank put: the part before the dot is a section, which may not be there yet
def keys(kind: type = Config, before: str = "") -> dict[str, Any]:
    """Each key that a configuration may have, with dots, and the type of its value."""
    found = {}
    for f in fields(kind):
        inner = f.default_factory  # a section's is its class
        found |= keys(inner, f"{f.name}.") if is_dataclass(inner) else {before + f.name: f.type}
    return found


def put(given: dict, key: str, value: Any) -> None:
    """Set a key with dots; a section that is empty or none stays what it is."""
    section, _, name = str(key).rpartition(".")
    if not section:
        given[name] = value
    elif isinstance(given.setdefault(section, {}), dict):
        given[section] = given[section] | {name: value}


# %%
put(given := {"train": {"max_steps": 5}}, "train.micro_batch", 2)
print(len(keys()), "keys; the first ones:", *list(keys())[:4])
print(given)

# %% [markdown]
r"""
Now the three functions that read a run: what to say when a key is wrong, the file's keys changed by the command line's, and both together.
"""


# %%
#| export run.config
def complaint(error: ValidationError, given: dict) -> tuple[str, str]:
    """The first key that is wrong, or "" where it is several together, and a sentence."""
    first, known = error.errors()[0], keys()
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


# %%
#| export run.config
def given_keys(said: dict, overrides: list[str]) -> dict:
    """What the file says, changed by the overrides."""
    given = {}
    for key, value in said.items():
        if value is not None or key in keys():  # an empty section says nothing
            put(given, key, value)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ValueError(f"command line: {override} is no key=value, as train.max_steps=100 is")
        text = keys().get(key) in (str, Name)
        put(given, key, value if text else parsed(value, f"command line: {key}"))
    return given


# %%
#| export run.config
def load_config(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """The run in a YAML file, or in configs/NAME.yaml, changed by `key=value` overrides.

    ValueError or OSError in one line, which names the file, the key with dots, and for a typo the nearest one.
    """
    said, where = read_config(name_or_path)
    given = given_keys(said, overrides := list(overrides))
    try:
        return TypeAdapter(Config).validate_json(json.dumps(given, default=str))
    except ValidationError as error:
        key, sentence = complaint(error, given)
    if any(override.startswith(f"{key}=") for override in overrides):
        where = "command line"
    elif not key and overrides:
        where = f"{where} with {' '.join(overrides)}"
    raise ValueError(f"{where}: {sentence}")


def config_dict(config: Config) -> dict:
    """As a JSON file can hold it, which `load_config` reads back, since JSON is YAML."""
    return json.loads(json.dumps(asdict(config)))


# %% [markdown]
r"""
*Check.* Eleven mistakes as people make them. Each must be one line that names its key; a mistake that is accepted fails the cell.
"""

# %%
MISTAKES = """optim.lrr=1e-3 max_steps=100 train.max_steps=1e2 optim.schedule=cosin model.n_head=5
train.batch_tokens=1000 optim.warmup=5000 train.dtype=half model.dropout= run=runs/a
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
One is worth a thought: `model.dropout=` is what a shell makes of `model.dropout=$DROPOUT` when the variable is not set. It is null, not zero.

Six configurations are ready: `tiny` and `shakespeare` for a laptop, `gpt2-124M` with the schedule of the build-nanogpt lecture and
`gpt2-124M-llmc` with llm.c's for a server, `overfit` for a first test of new code, `finetune` for chapter 19. They are written to be read:
"""

# %%
print((CONFIGS / "overfit.yaml").read_text(encoding="utf-8"))

# %% [markdown]
r"""
## One dial

If you try several sizes, you do not want to choose width, heads, learning rate and length each time. nanochat derives them all from the number of layers
(`scripts/base_train.py`), and `--depth` does the same. The width is 64 n, with heads of 64 numbers, so that depth 12 is GPT-2 small.

*The rate.* Adam's update has the same size for every weight. A wider layer adds up more of these updates, so the rate should fall as 1/width (Yang et al. 2022). We begin with
GPT-3's rate at GPT-2 small's width, and compare with the other rows of GPT-3's table below.

*The length.* For a given amount of compute, a model should see about 20 tokens for each of its parameters (Hoffmann et al. 2022). So the number of steps follows from the size and from the
file's batch.

*Predict.* `--depth 24` has how many times the parameters of `--depth 12` in its layers? (12 C² in each, chapter 05.)
"""


# %%
#| export run.config
#| blank from_depth: 64 columns and one head for each layer; the rate falls as 1 / width; 20 tokens for a parameter
def from_depth(n: int, batch_tokens: int) -> list[str]:
    """Overrides for n layers, as nanochat's one dial (scripts/base_train.py), with GPT-2's heads of 64; 12 is GPT-2 small.

    The width is 64 n. The rate is GPT-3's 6e-4 for 768 (Brown et al. 2020, table 2.1) times 768 / width (Yang et al.
    2022). The steps make 20 tokens for each parameter of the layers (Hoffmann et al. 2022).
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
    print(
        f"{12 * depth * (64 * depth) ** 2 / 1e6:10,.1f} million in the layers:", *from_depth(depth, 524_288)
    )
answer("17c.2", 24**3 / 12**3)

# %% [markdown]
r"""
The parameters grow with the cube of the depth: twice the layers, each with twice the width squared. The compute grows with its sixth power, since a model with eight times the parameters
is also shown eight times the tokens.

*Check.* GPT-3's table has the rates that its authors used for eight widths. How far is our rule from them, and how far would a rule with the root of the width be?
"""

# %%
GPT3 = {
    768: 6e-4,
    1024: 3e-4,
    1536: 2.5e-4,
    2048: 2e-4,
    2560: 1.6e-4,
    4096: 1.2e-4,
    5140: 1e-4,
    12288: 0.6e-4,
}
for width, theirs in GPT3.items():
    ours, root = 6e-4 * 768 / width, 6e-4 * (768 / width) ** 0.5
    print(
        f"width {width:5}: theirs {theirs:.2g}, 1/width {ours / theirs:.2f} times, root {root / theirs:.2f} times"
    )
    assert 0.6 < ours / theirs < 1.6, f"the rule is off by {ours / theirs:.2f} at width {width}"

# %% [markdown]
r"""
Neither is exact, but 1/width stays within a factor of 1.6 over sixteen times the width, and the root leaves it at once.

Twice the layers of twice the width squared: the dial is the cube root of the size. Compute grows faster still, since a larger model is also shown more tokens.

## Before it begins: memory

A run that ends for want of memory does so in its first step, on the machine that was waited for. What it will take can be counted before (chapter 09):
weights, gradients, AdamW's two means; and what the forward pass keeps for the backward pass, which grows with the micro-batch.

*Predict.* GPT-2 small, all in float32: four numbers a parameter are 2.0 GB. How many GB does a micro-batch of 16 rows of 1,024 tokens add?
"""


# %%
#| export run.dryrun
from functools import partial
from pathlib import Path

import torch

from nanogpt.device import pick_device
from nanogpt.gpt import optim
from nanogpt.gpt.model import GPT, GPTConfig, num_params
from nanogpt.gpt.precision import READS, LossScaler
from nanogpt.gpt.train import train_step
from nanogpt.run.metrics import span
from nanogpt.speed.roofline import Roofline, measure_roofline, timings
from nanogpt.speed.work import memory_by_category, predict_step
from nanogpt.text.shards import load_manifest

# %%
predict("17c.3", f"activations of GPT-2 small, {BATCHES[-1]} rows of 1,024", guess=None, unit="GB")

# %%
memory = {B: {what: n / 1e9 for what, n in memory_by_category(GPTConfig(), B, 1024).items()} for B in BATCHES}
answer("17c.3", memory[BATCHES[-1]]["activations"])
show(figures.memory(memory), alt="GB by category: only the activations grow with the micro-batch.")

# %% [markdown]
r"""
So `train.micro_batch` is the knob for memory, and `train.batch_tokens`, which training feels, stays. The counts are those of the arrays that must
be there; an allocator needs some more, so a bar that just reaches a line will not fit.

## Before it begins: time

`--dry-run` says what a run would take. It needs no data and trains nothing. Its time is of two kinds. Chapter 09's roofline, which
takes one measured product and one measured copy, allows no step to be faster than its products and its traffic. And where a micro-batch takes
under three seconds, a step is made, with random tokens.

*Predict.* A step as it is measured, divided by what the roofline allows?
"""


# %%
#| export run.dryrun
def step_seconds(shape: GPTConfig, config: Config, device: torch.device, roof: Roofline) -> tuple:
    """Seconds of a step: at least so many, by the device's roofline; and measured, if a micro-batch takes under 3 s."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    name = READS.get(config.train.dtype, config.train.dtype)
    parts = predict_step(shape, B, T, roof, name if name in roof.flops else "float32", fused=True)
    update = parts["optimizer", "update"]
    least = (sum(parts.values()) - update) * n + update
    if least > 3 * n:
        return least, None
    model, ids = GPT(shape).to(device), torch.randint(shape.vocab_size, (B, T + 1), device=device)
    optimizer, batch = optim.make_optimizer(model, 1e-9, config.train.dtype), (ids[:, :-1], ids[:, 1:])
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    call = partial(train_step, model, optimizer, [batch] * min(n, 2), config.train.dtype, scaler=scaler)
    return least, min(timings(call, device, 3)) * n / min(n, 2)


# %%
#| export run.dryrun
def say_time(steps: int, least: float, measured: float | None) -> None:
    """Print what so many steps take: at least, in seconds a step, by the roofline; and as measured, if it was."""
    if measured is None and steps * least > 365 * 86400:
        print("time        years on this machine; `python -m nanogpt plan` says what it takes on others")
        return
    more = f"; {span(steps * measured)} ({1000 * measured:.4g} ms measured)" if measured else ""
    print(f"time        at least {span(steps * least)} ({1000 * least:.4g} ms a step by the roofline){more}")
    if measured and measured < least:
        print("            the model's products run faster here than the one that the roofline measured")


# %%
#| export run.dryrun
def say_memory(shape: GPTConfig, config: Config) -> None:
    """Print what a step keeps, by category, as if all numbers were float32."""
    parts = memory_by_category(shape, config.train.micro_batch, config.model.block_size)
    text = ", ".join(f"{what} {n / 1e9:.3f}" for what, n in parts.items())
    print(f"memory      {sum(parts.values()) / 1e9:.3f} GB with all in float32: {text}")


# %%
#| export run.dryrun
def dry_run(config: Config) -> None:
    """Print what a run would take; nothing is written, and data that are not there are not made."""
    c, device, known = config, pick_device(config.run.device), Path(config.data.dir, "manifest.json").exists()
    own = 50257 if isinstance(c.data.tokenizer, str) else c.data.tokenizer
    guess = 1024 if c.data.source == "stories" else own
    manifest = load_manifest(c.data.dir) if known else {"vocab_size": guess}
    shape = GPTConfig(**vars(c.model) | {"dropout": 0.0}, vocab_size=manifest["vocab_size"])
    B, T, steps, tokens = c.train.micro_batch, c.model.block_size, c.train.max_steps, c.train.batch_tokens
    print(f"parameters  {num_params(shape):,}" + ("" if known else f", if the vocabulary has {guess:,}"))
    say_memory(shape, c)
    print(f"steps       {steps:,} of {tokens:,} tokens: {c.micro_batches} × {B} rows of {T}")
    if known:
        train = manifest["splits"]["train"]
        n, what = (train["documents"] * T, "documents") if c.data.documents else (train["tokens"], "tokens")
        print(f"epochs      {steps * tokens / n:.2f} of {train[what]:,} {what}")
    say_time(steps, *step_seconds(shape, c, device, measure_roofline(device)))


# %% tags=["nbval-ignore-output"]
dry_run(load_config("tiny", ["data.dir=nowhere"]))

# %%
predict("17c.4", "a measured step, to what the roofline allows", guess=None, unit="×")

# %% tags=["nbval-ignore-output"]
steps, roof = [], measure_roofline(device := pick_device())
for depth in DEPTHS:
    config = load_config("tiny", from_depth(depth, 512))
    shape = GPTConfig(**vars(config.model), vocab_size=1024)
    steps.append((num_params(shape), *step_seconds(shape, config, device, roof)))
answer("17c.4", steps[-1][2] / steps[-1][1] if steps[-1][2] else None)
show(figures.dry_run(steps), alt="Time of a step over parameters: measured, and the roofline's bound.")

# %% [markdown]
r"""
The distance between the lines is what a roofline does not know: calls that take longer than their work, small products that fill no core, page faults
(chapter 14 names the parts of it). The smaller the model, the larger their share.

Can a step be faster than the bound? Yes, if the bound was measured with something slower than what the model does. There are two such cases. If all that a model touches fits into the cache, its traffic
is faster than chapter 09's copy. And on a CPU without bfloat16 units, PyTorch multiplies `a @ b` in bfloat16 several times as slowly as `a @ b.T`, which is what `nn.Linear` does. The dry run says so when
it sees a step below the bound.

For GPT-2 small on one GPU the same command says days, before a day is spent: `python -m nanogpt train gpt2-124M --dry-run`.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("17c")

# %%
checkpoint("17c")

# %% [markdown]
r"""
Now the package reads runs, and says what they would take. Chapter 17e makes them; 17d, which may be skipped, connects the parts.

## Exercises

`course exercises release 17` writes this one, and those of the other sittings, as a notebook to `released/`; `course check 17` runs their visible checks.

- **17-1** A rate that is a text, 15 minutes: mend a reader that converts what it gets.

To explore:

1. Add a field `optim.lr_warm: Rate` that must not exceed `optim.lr`. Which of the places above does a rule about two keys of one section belong to?
   Check: `load_config("tiny", ["optim.lr_warm=1"])` names both keys in one line.
2. Take `strict=True` out of `STRICT`, and run the eleven mistakes again. Check: which one is accepted now, and what does the run make of it?
3. Write the configuration of a run that you would start tonight on the machine before you, 8 hours long. Check: `--dry-run` says between 7 and 8 hours.
4. `--depth` sets the rate by the width. Find the best rate of depths 2 and 4 with 300 steps of `tiny` each (chapter 15 has the loop). Check: is their ratio
   nearer to √2 or to 1?
5. nanoGPT reads its options by `exec` of a Python file over its globals (`configurator.py`). Check with three of the eleven mistakes: which does it find, and what
   can it do that a YAML file cannot?
6. Which micro-batch does a T4 take of `gpt2-124M`, of GPT-2 medium (`--depth 24`, `model.n_embd=1024`, `model.n_head=16`)? Check with `figures.memory`, and on a T4
   by `torch.cuda.max_memory_allocated`.

## Further reading

- YAML 1.2.2, §10.3.2, tag resolution: what is a number; and StrictYAML's documentation, *The Norway problem*, for what 1.1 takes for a boolean.
- pydantic, *Strict mode* and its conversion table: what is taken for what when one is not strict.
- nanochat, `scripts/base_train.py`: everything from one depth. Yang et al. 2022, *Tensor Programs V*: why a rate must fall with the width.
- Brown et al. 2020, *Language Models are Few-Shot Learners*, table 2.1: rates and batch sizes that belong to sizes.
"""
