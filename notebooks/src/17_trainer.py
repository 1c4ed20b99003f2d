# %% [markdown]
r"""
# 17 · The trainer: a run that can be trusted for days

Chapter 07's loop trains for a minute, and whoever sees it fail starts again. A run of days meets what a minute does not:
a reboot, a full disk, a spike, a typo in the command that is noticed on the third day.
"""

# %%
#| default_exp config
#| doc config: A run as a file: model, data, optimizer and run in one YAML, read into dataclasses and checked.
#| doc configfile: A YAML file as plain data: numbers as people write them, no key twice, each error one line.
#| doc checkpoint: A checkpoint: a directory a step, whole or not there, proved by hashes.
#| doc log: The line of a step: on the screen, in metrics.jsonl, TensorBoard and wandb; z-scores.
#| doc assemble: What a run is made of: data, model, optimizer, and all that its steps change.
#| doc dryrun: What a run would take: parameters, memory, epochs, time.
#| doc trainer: The trainer: a run from a configuration that survives kill -9, bit for bit; the command `train`.
#| doc cli: `python -m nanogpt COMMAND`: one runner, and the same exit codes for all commands.
from course.notebook import answer, checkpoint, predict, predictions

# %% [markdown]
r"""
## The run as a file

A run is some forty numbers. As options in a shell they are lost with the shell's history; as constants in a script the script of
yesterday's run is gone. So all of them stand in one file, and the file is kept with the run.

A file can be wrong, and a program that overlooks it trains for three days with `weight_decay` at its default because the file says
`weight_decy`. So reading is strict: each section is a dataclass, and pydantic, which reads a file into dataclasses, accepts no key that is not
there and no value of another type. An impossible value is one that no run can have: a range stands with its field.
"""

# %%
#| export config
import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # text is no number, 3.5 no integer
Count, Positive = Annotated[int, Field(ge=0)], Annotated[int, Field(gt=0)]
Amount, Rate = Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)]
Fraction, BelowOne = Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(min_length=1)]


# %%
#| export config
@dataclass(frozen=True)
class Model:
    """The shape: `GPTConfig` without its vocabulary, which the data bring along."""

    __pydantic_config__ = STRICT
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    block_size: int = 1024
    dropout: float = 0.0
    bias: bool = True
    flash: bool = True  # chapter 12
    padded_vocab_size: int | None = None  # chapter 13

    def __post_init__(self):
        from nanogpt.model import check_shape  # here: it imports torch, and a command's --help needs none

        check_shape(SimpleNamespace(**vars(self), vocab_size=1))


# %%
#| export config
@dataclass(frozen=True)
class Data:
    """Where the shards are, and what they are made of where they are not there yet."""

    __pydantic_config__ = STRICT
    dir: Name = "data/built/stories"
    documents: bool = True  # rows begin with documents, as in chapter 07; else one stream, as GPT-2 had
    source: str | None = None  # where dir has no shards: "stories", or the text that is prepared into it
    tokenizer: int | str = "gpt2"  # that text's: GPT-2's, a tokenizer.json, or how many tokens to train
    val: BelowOne = 0.1  # the fraction of that text that is kept for validation
    paragraphs: bool = True  # a document of that text ends at a blank line
    overfit: bool = False  # every step reads the first batch again: a model must learn it by heart


# %%
#| export config
@dataclass(frozen=True)
class Optim:
    """AdamW, and its learning rate over the run: chapter 15."""

    __pydantic_config__ = STRICT
    lr: Rate = 6e-4  # the highest
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)
    weight_decay: Amount = 0.1
    clip: Rate | None = 1.0  # the longest gradient; null clips none
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup: Count = 0  # steps
    minimum: Fraction = 0.1  # the last rate, as a fraction of lr
    decay: Fraction = 0.3  # wsd: the fraction of the steps in which the rate falls


# %%
#| export config
@dataclass(frozen=True)
class Train:
    """How long, how large a batch, in which precision, and what is done about a bad step."""

    __pydantic_config__ = STRICT
    max_steps: Positive = 1000
    batch_tokens: Positive = 524_288  # of one update
    micro_batch: Positive = 16  # rows of block_size tokens that go through the model at once
    dtype: str = "float32"  # chapter 10's word
    compile: bool = False
    skip_spikes: Amount = 0.0  # leave an update out beyond so many standard deviations; 0: never
    bad_steps: Positive = 10  # so many steps in a row that are not finite end the run

    def __post_init__(self):
        from nanogpt.precision import PRECISIONS

        if self.dtype not in PRECISIONS:
            raise ValueError(f"dtype={self.dtype!r} must be one of {', '.join(PRECISIONS)}")


# %%
#| export config
@dataclass(frozen=True)
class Eval:
    """What is measured on the way. Every: so many steps; 0 is never."""

    __pydantic_config__ = STRICT
    every: Count = 250  # the validation loss
    tokens: Positive = 100_000  # that it is measured on
    sample_every: Count = 0
    prompt: str = ""
    hellaswag_every: Count = 0


# %%
#| export config
@dataclass(frozen=True)
class Run:
    """Where the run lives, and when it saves itself."""

    __pydantic_config__ = STRICT
    dir: Name = "runs/unnamed"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    device: str | None = None  # null: the best there is
    checkpoint_every: Count = 500  # steps; 0: only at the end and when it is stopped
    keep: Positive = 2  # checkpoints, besides the best
    log_every: Positive = 1  # steps between lines
    minutes: Rate | None = None  # the time limit, before which it saves and ends
    tensorboard: bool = False
    wandb: bool = False


# %% [markdown]
r"""
What one section cannot know is checked where they meet. A batch is counted in tokens, so that it means the same whatever fits into memory at once;
then it must be a whole number of micro-batches.
"""


# %%
#| export config
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
#| export config
def check_together(model: Model, optim: Optim, train: Train) -> None:
    """ValueError where the batch is no whole number of micro-batches, or the schedule is longer than the run."""
    steps, rows = f"train.max_steps={train.max_steps}", train.micro_batch * model.block_size
    if train.batch_tokens % rows:
        near = max(1, round(train.batch_tokens / rows)) * rows
        product = f"train.micro_batch={train.micro_batch} × model.block_size={model.block_size}"
        raise ValueError(
            f"train.batch_tokens={train.batch_tokens} must be a multiple of {product}, as {near} is"
        )
    if optim.warmup > train.max_steps:
        raise ValueError(f"optim.warmup={optim.warmup} must not exceed {steps}")
    if optim.schedule == "wsd" and optim.warmup + optim.decay * train.max_steps > train.max_steps:
        raise ValueError(f"optim.warmup={optim.warmup} and optim.decay={optim.decay} overlap in {steps}")


# %% [markdown]
r"""
**YAML** is easy to read and easy to read wrongly. *Predict*: `lr: 6e-4` in a file. What does PyYAML make of it? And of a key that stands there
twice?
"""

# %%
print(yaml.safe_load("lr: 6e-4"), yaml.safe_load("{lr: 1, lr: 2}"))

# %% [markdown]
r"""
Text, since YAML 1.1, which PyYAML reads, wants a dot in a number with an exponent; and the last one, without a word. A loader of our own mends both,
and puts what is no YAML at all into one line.
"""


# %%
#| export configfile
import re
from pathlib import Path
from typing import Any

import yaml

FLOAT = "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
USUAL = yaml.SafeLoader.yaml_implicit_resolvers


class Loader(yaml.SafeLoader):
    """YAML in which 6e-4 is a number, as in YAML 1.2, and a key stands once. Plain data only, never objects."""

    yaml_implicit_resolvers = USUAL | {first: [FLOAT, *USUAL[first]] for first in "+-0123456789"}

    def construct_mapping(self, node, deep=False):
        names = [str(key.value) for key, _ in node.value]
        for name in {name for name in names if names.count(name) > 1}:
            raise yaml.MarkedYAMLError(problem=f"{name} stands there twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)


# %%
#| export configfile
def parsed(text: str, where: str) -> Any:
    """What a YAML text says; ValueError in one line where it says nothing."""
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark, problem = (getattr(error, name, None) for name in ("problem_mark", "problem"))
        line = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{where}{line}: {problem or error}") from None


# %%
#| export configfile
HERE = Path(__file__ if "__file__" in globals() else "notebook")
CONFIGS = HERE.resolve().parent.parent / "configs"


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


# %% [markdown]
r"""
A key is written with a dot, in errors and on the command line: `train.max_steps`. pydantic says what is wrong in its own words, and for a typo only that
there is such a key; the nearest one we look for ourselves, first among those of the same name in another section.
"""


# %%
#| export config
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
#| export config
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
#| export config
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
#| export config
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
*Check.* Mistakes as people make them. Each must be one line that names its key.
"""

# %%
MISTAKES = [
    "optim.lrr=1e-3",
    "max_steps=100",
    "train.max_steps=1e2",
    "optim.schedule=cosin",
    "model.n_head=5",
]
MISTAKES += [
    "train.batch_tokens=1000",
    "optim.warmup=5000",
    "train.dtype=half",
    "model.dropout=",
    "run=runs/a",
]
for mistake in MISTAKES:
    try:
        load_config("tiny", [mistake])
    except ValueError as error:
        print(error)
        assert "\n" not in str(error), "an error of two lines"
    else:
        raise AssertionError(f"{mistake} was accepted")

# %% [markdown]
r"""
Six configurations are ready: `tiny` and `shakespeare` for a laptop, `gpt2-124M` with the schedule of the build-nanogpt lecture and
`gpt2-124M-llmc` with llm.c's for a server, `overfit` for a first test of new code, `finetune` for chapter 19. They are written to be read:
"""

# %%
print((CONFIGS / "overfit.yaml").read_text(encoding="utf-8"))

# %% [markdown]
r"""
**One dial.** Whoever tries sizes does not want to think of width, heads and rate each time. nanochat derives them from the depth: width 64 n, and a rate
that falls with the root of the width (its `base_train.py` and `gpt.py`). With heads of 64 numbers, depth 12 is GPT-2 small.

*Predict.* `--depth 24` has how many times the parameters of `--depth 12` in its layers? (12 C² in each, chapter 05.)
"""


# %%
#| export config
def from_depth(n: int) -> list[str]:
    """Overrides for n layers: nanochat's one dial (base_train.py, gpt.py), with GPT-2's heads of 64; 12 is GPT-2 small.

    The width is 64 n. The rate is GPT-3's 6e-4 for 768 (Brown et al. 2020, table 2.1) times √(768 / width).
    """
    if n < 1:
        raise ValueError(f"--depth {n} is the number of layers, at least 1")
    lr = 6e-4 * (768 / (64 * n)) ** 0.5
    return [f"model.n_layer={n}", f"model.n_embd={64 * n}", f"model.n_head={n}", f"optim.lr={lr:.6g}"]


# %%
predict("17.1", "parameters in the layers, depth 24 to depth 12", guess=None, unit="times")
for depth in (4, 12, 24, 48):
    print(f"{12 * depth * (64 * depth) ** 2 / 1e6:10,.1f} million in the layers:", *from_depth(depth))
answer("17.1", 24**3 / 12**3)

# %% [markdown]
r"""
## The trainer
"""

# %% [markdown]
r"""
What does a step change? The weights; AdamW's two means for each of them, and how many steps it has made; the place in the data;
the generator from which dropout draws; in float16 the scale. And what the trainer itself keeps: counts, and the windows of its
z-scores. A checkpoint that forgets one of these is a checkpoint all the same: the run goes on, and the loss looks right.

The last cells of this section train a small model in four ways, so their sizes stand here.
"""


# %%
import contextlib
import csv
import sys
import time
import warnings

from course.figures import trainer as figures
from course.notebook import show
from nanogpt import optim
from nanogpt.compare import verdict
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.runs import read_metrics
from nanogpt.train import train_step

# %%
STEPS, EVERY, KILLS = 60, 10, 3  # of the small run; from checkpoint to checkpoint; how often it is killed
HALF = STEPS // 2 // EVERY * EVERY
assert HALF, f"there is no checkpoint before the middle: STEPS={STEPS} must be at least twice EVERY={EVERY}"
RUNS = Path("../data/built/trainer")
predict("17.5", "bytes of a checkpoint for each parameter, float32", guess=None)
predict(
    "17.6",
    "loss of the 10 steps after a resume that forgets AdamW's means, above what it would be",
    guess=None,
    unit="nats",
)

# %% [markdown]
r"""
### Whole or not there

A checkpoint is a folder: the weights as chapter 07 writes them, so that `sample` and `eval` read it, and all the rest as JSON, its tensors in
a safetensors file. No pickle: nothing in it can run. A nest of dictionaries with tensors in it is taken apart and put together:
"""


# %%
#| export checkpoint
import json
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT
from nanogpt.shards import file_sha256, manifest_sha256
from nanogpt.weights import save_model

MANIFEST = "manifest.json"


# %%
#| export checkpoint
def pack(value, name: str, tensors: dict[str, Tensor]):
    """The same nest of dicts and lists for JSON: a tensor moves to `tensors`, and its name stands in its place."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {str(key): pack(part, f"{name}.{key}", tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [pack(part, f"{name}.{i}", tensors) for i, part in enumerate(value)]
    return value


def unpack(value, tensors: dict[str, Tensor]):
    """What `pack` was given, with lists for tuples; keys of digits are numbers again."""
    if isinstance(value, list):
        return [unpack(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tensor"}:
        return tensors[value["tensor"]]
    return {int(key) if key.isdigit() else key: unpack(part, tensors) for key, part in value.items()}


# %% [markdown]
r"""
`kill -9` may come while it is written, and then half a file stands under the right name. So it is written under another one, and renamed
when it is whole: a rename is done or not done. A power cut is worse, since what was written may still be in memory only, and a name can reach
the disk before what it names. Hence the order: write, flush each file, flush the folder, rename, flush the folder above.
"""


# %%
#| export checkpoint
def to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk itself and not only in memory."""
    if os.name == "nt":  # has no handle for a folder, and flushes on its own
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# %%
#| export checkpoint
def save(folder: str | Path, step: int, model: GPT, state: dict, tokenizer=None) -> Path:
    """Write folder/step_000123, whole or not at all: weights as save_model writes them, state, a manifest of hashes."""
    target = Path(folder) / f"step_{step:06d}"
    aside, tensors = target.with_name(f".{target.name}.tmp"), {}
    shutil.rmtree(aside, ignore_errors=True)
    try:
        save_model(model, aside)
        save_json(aside / "state.json", pack(state, "state", tensors))
        with atomically(aside / "state.safetensors") as file:
            file.write(serialize(tensors))
        if tokenizer is not None:
            tokenizer.save(aside / "tokenizer.json")
        manifest = {"step": step, "files": {p.name: file_sha256(p) for p in sorted(aside.iterdir())}}
        save_json(aside / MANIFEST, manifest | {"sha256": manifest_sha256(manifest)})
        for path in (*aside.iterdir(), aside):
            to_disk(path)
        shutil.rmtree(target, ignore_errors=True)  # only a damaged one is written again
        os.rename(aside, target)
        to_disk(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return target


# %% [markdown]
r"""
A rename does not help against a disk that gives back other bits, or a copy that stopped half-way. So a manifest holds the SHA-256 of each file, and
loading compares every byte. What is damaged is passed over, aloud.
"""


# %%
#| export checkpoint
def fault(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in a few words, after comparing every byte with its manifest; None if nothing."""
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_bytes())
        if manifest["sha256"] != manifest_sha256(manifest):
            return f"{MANIFEST} has changed"
        changed = [name for name, sha in manifest["files"].items() if file_sha256(checkpoint / name) != sha]
        return f"{changed[0]} has changed" if changed else None
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"


def checkpoints(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, in the order of their steps."""
    found = [path for path in Path(folder).glob("step_*") if re.fullmatch(r"step_\d{6,}", path.name)]
    return sorted(found, key=lambda path: int(path.name[5:]))


# %%
#| export checkpoint
def latest(folder: str | Path, say=print) -> Path | None:
    """The newest whole checkpoint; `say` hears of each damaged one that is passed over. None if there is none at all.

    ValueError if all are damaged: to begin again would write over what could be saved by hand.
    """
    found = checkpoints(folder)
    for path in reversed(found):
        if (wrong := fault(path)) is None:
            return path
        say(f"{path} is damaged ({wrong}); the one before it is used")
    if found:
        raise ValueError(f"no checkpoint in {folder} is whole; move them away to begin again")
    return None


def load(checkpoint: Path) -> dict:
    """The state that was given to `save`. The weights beside it are read by load_model."""
    packed = json.loads((checkpoint / "state.json").read_bytes())
    return unpack(packed, load_file(checkpoint / "state.safetensors"))


# %%
#| export checkpoint
def prune(folder: str | Path, keep: int, step: int, also: Collection[int] = ()) -> None:
    """Delete all checkpoints before `step` but the keep - 1 last ones and those of the steps in `also`."""
    before = [path for path in checkpoints(folder) if int(path.name[5:]) < step]
    for path in before[: max(0, len(before) - (keep - 1))]:
        if int(path.name[5:]) not in also:
            aside = path.rename(path.with_name(f".{path.name}.tmp"))  # a half deleted one has no name
            shutil.rmtree(aside)


# %% [markdown]
r"""
*Check.* A model of `tiny`'s shape after one step, saved; then one bit of it is turned over.
"""

# %% tags=["nbval-ignore-output"]
shutil.rmtree(RUNS, ignore_errors=True)
model = GPT(GPTConfig(block_size=128, vocab_size=1024, n_layer=2, n_head=8, n_embd=128))
adamw = optim.make_optimizer(model, 1e-3)
ids = torch.zeros(1, 9, dtype=torch.int64)
train_step(model, adamw, [(ids[:, :-1], ids[:, 1:])])
path = save(RUNS / "one", 1, model, {"optimizer": adamw.state_dict()})
sizes = {file.name: file.stat().st_size for file in sorted(path.iterdir())}
for name, size in sizes.items():
    print(f"{name:20}{size:10,} bytes")
P = num_params(model.config)
print(
    f"{sum(sizes.values()) / P:.2f} bytes for each of {P:,} parameters; 3 × 4 are for the weight and AdamW's two means"
)
answer("17.5", round(sum(sizes.values()) / P, 2))
assert 12 <= sum(sizes.values()) / P < 13, "more is saved than weights and means, or less"

# %%
data = bytearray((path / "state.safetensors").read_bytes())
data[len(data) // 2] ^= 1  # one bit of some 4 million
(path / "state.safetensors").write_bytes(data)
print(fault(path))

# %%
#| export log
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from nanogpt.files import atomically
from nanogpt.runs import step_line


# %% [markdown]
r"""
### One line a step

`metrics.jsonl` gets a line for each step, at once. After `kill -9` its last line may be torn, and it may be ahead of the newest checkpoint. Both
are mended when the run goes on: what comes after the checkpoint is cut off and made again.
"""


# %%
#| export log
def repair(path: Path, step: int) -> None:
    """Of the lines of metrics.jsonl keep those before `step`, with which the run goes on; kill -9 may have torn the last."""
    lines, good = path.read_bytes().splitlines(keepends=True) if path.exists() else [], []
    with suppress(ValueError):
        for line in lines:
            if not line.endswith(b"\n") or json.loads(line)["step"] >= step:
                break
            good.append(line)
    if len(good) < len(lines):
        with atomically(path) as file:
            file.writelines(good)


# %% [markdown]
r"""
The same line goes to the screen in llm.c's form (chapter 15's `step_line`); its rate is this step's, as a moving mean hides a slow-down.
The MFU stands there where the GPU's data sheet is known.
On a terminal every step is shown in one place, in a log file only each `run.log_every`-th. TensorBoard and wandb are imported only if asked for.
"""


# %%
#| export log
def writers(config: Config, metrics, step: int) -> Iterator[Callable[[dict], object]]:
    """What is called with each step's line, from `step` on: for the screen, metrics.jsonl, TensorBoard, wandb."""
    run, steps, live = config.run, config.train.max_steps, sys.stdout.isatty()

    def show(line: dict) -> None:  # on a terminal every step, each in the place of the one before
        stays = (
            line["step"] % run.log_every == 0
            or line["step"] == steps
            or "val_loss" in line
            or "skipped" in line
        )
        if stays or live:
            print(
                ("\r\033[K" if live else "") + step_line(line, steps), end="\n" if stays else "", flush=True
            )

    def append(line: dict) -> None:
        metrics.write(json.dumps(line).encode() + b"\n")  # unbuffered: what is written survives the process

    yield from (show, append)
    if run.tensorboard:
        yield tensorboard(Path(run.dir), step)
    if run.wandb:
        yield wandb(config)


# %%
#| export log
def numbers(line: dict) -> dict:
    """What can be drawn."""
    return {key: value for key, value in line.items() if isinstance(value, int | float)}


def tensorboard(folder: Path, step: int) -> Callable[[dict], object]:
    """Writes lines for TensorBoard, which forgets what it had from `step` on."""
    from torch.utils.tensorboard import SummaryWriter

    board = SummaryWriter(folder / "tensorboard", purge_step=step)

    def write(line: dict) -> None:
        for name, value in numbers(line).items():
            board.add_scalar(name, value, line["step"])
        board.flush()

    return write


# %%
#| export log
def wandb(config: Config) -> Callable[[dict], object]:
    """Sends lines to wandb, which goes on with the run of this name."""
    import wandb

    name = Path(config.run.dir).resolve().name
    wandb.init(project="nanogpt", id=name, resume="allow", dir=config.run.dir, config=config_dict(config))
    return lambda line: wandb.log(numbers(line), step=line["step"])


# %%
#| export assemble
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from nanogpt import optim
from nanogpt.corpus import ensure_corpus
from nanogpt.data import BatchStream, DocumentStream
from nanogpt.device import pick_device, seed_everything

# %%
#| export assemble
from nanogpt.hub import read_json
from nanogpt.model import GPT, GPTConfig
from nanogpt.precision import LossScaler, why_not
from nanogpt.prepare import prepare
from nanogpt.pretrained import from_hf
from nanogpt.roofline import peak_of
from nanogpt.runs import Window
from nanogpt.shards import load_manifest, open_shards, read_shard
from nanogpt.sources import blocks_in, cut_files, find_files
from nanogpt.tokenizer import BPETokenizer
from nanogpt.train import scale_init
from nanogpt.weights import load_model


# %% [markdown]
r"""
### What a run is made of

From the configuration to shards, a model, an optimizer. All that steps change is in one place, `Training`, and what of it a checkpoint holds is
a list of names. Two orders matter: the seed is set *last*, so that nothing before it (a benchmark, a sample) shifts dropout; and the model has a
generator of its own.
"""


# %%
#| export assemble
def random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """Where PyTorch's global generators are: the CPU's and the device's. Dropout draws from them, and nothing else does."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state()
    return states


def set_random_states(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Let the generators go on from there."""
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu" and "device" in states:  # not there if the run began on a CPU
        torch.get_device_module(device).set_rng_state(states["device"])


# %%
#| export assemble
def ensure_data(data: Data) -> dict:
    """The manifest of data.dir, whose shards are made from data.source where there are none."""
    folder = Path(data.dir)
    if not (folder / "manifest.json").exists():
        if data.source is None:
            raise FileNotFoundError(
                f"data.dir={data.dir} has no shards; `python -m nanogpt prepare` makes some"
            )
        if data.source == "stories":
            return ensure_corpus(folder)
        tokenizer, source = data.tokenizer, Path(data.source)
        if isinstance(tokenizer, int):  # one of so many tokens, learned from the text's first 16 MB
            spans = next(cut_files(find_files(source), 1 << 24, data.paragraphs))
            texts = (text for span in spans for _, told in blocks_in(span, 1 << 20) for text in told)
            BPETokenizer.train(texts, tokenizer).save(tokenizer := folder / "tokenizer.json")
        prepare(source, folder, tokenizer, data.val, 0.0, data.paragraphs)
    return load_manifest(folder)


# %%
#| export assemble
def tokenizer_of(data: Data, manifest: dict) -> BPETokenizer | None:
    """The tokenizer that made the shards; None where it is not to be had."""
    for name in (Path(data.dir) / "tokenizer.json", data.tokenizer):
        with suppress(OSError, ValueError, TypeError):
            found = BPETokenizer.gpt2() if name == "gpt2" else BPETokenizer.load(name)
            if found.fingerprint == manifest["fingerprint"]:
                return found


# %%
#| export assemble
def first_model(config: Config, vocab_size: int) -> GPT:
    """The model before its first step: new, or init_from's with this run's dropout, in float32, on the CPU."""
    if config.init_from is None:
        shape = GPTConfig(**vars(config.model), vocab_size=vocab_size)
        return scale_init(GPT(shape, torch.Generator().manual_seed(config.run.seed)))
    file = Path(config.init_from, "config.json")
    ours = file.exists() and "model_type" not in read_json(file)
    there = load_model(config.init_from) if ours else from_hf(config.init_from)
    if there.config.vocab_size < vocab_size or there.config.block_size < config.model.block_size:
        has = f"{there.config.vocab_size} tokens and a context of {there.config.block_size}"
        needs = f"{vocab_size} and model.block_size={config.model.block_size}"
        raise ValueError(f"init_from={config.init_from} has {has}; the run needs {needs}")
    model = GPT(replace(there.config, dropout=config.model.dropout, flash=config.model.flash))
    model.load_state_dict(there.float().state_dict())
    return model


# %%
#| export assemble
@dataclass
class Training:
    """A run in memory. What `state_dict` names is what steps change: with it and the weights, a run goes on bit for bit."""

    config: Config
    device: torch.device
    tokenizer: BPETokenizer | None
    eot: int
    held: list  # the first eval.tokens of the validation shards
    model: GPT
    stepper: torch.nn.Module  # the model, or the same compiled
    optimizer: torch.optim.Optimizer
    stream: BatchStream
    scaler: LossScaler | None
    step: int = 0  # batches taken
    updates: int = 0  # made of them: the learning rate follows these
    bad: int = 0  # steps in a row that were not finite
    record: dict | None = None  # the step's line, until it is written
    best: dict = field(default_factory=dict)  # step and val_loss
    skipped: Counter = field(default_factory=Counter)  # steps by why there was no update
    seconds: Counter = field(default_factory=Counter)  # by what they were spent on
    windows: dict = field(default_factory=lambda: {"loss": Window(), "norm": Window()})
    kept: Path | None = None  # the newest checkpoint
    longest: dict = field(default_factory=dict)  # seconds, of what `seconds` sums


# %%
#| export assemble
class Training(Training):
    @property
    def folder(self) -> Path:
        return Path(self.config.run.dir)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the block's seconds."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self.seconds[what] += seconds
        self.longest[what] = max(seconds, self.longest.get(what, 0))


# %%
#| export assemble
KEPT = "step", "updates", "bad", "record", "best", "skipped", "seconds", "windows"


class Training(Training):
    def state_dict(self) -> dict:
        """For a checkpoint, beside the weights."""
        parts = {"optimizer": self.optimizer, "data": self.stream, "scaler": self.scaler}
        state = {name: part and part.state_dict() for name, part in parts.items()}
        state |= {name: getattr(self, name) for name in KEPT} | {"config": config_dict(self.config)}
        state["windows"] = {name: list(window) for name, window in self.windows.items()}
        return state | {"random": random_states(self.device)}

    def load_state_dict(self, state: dict) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.stream.load_state_dict(state["data"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        for name in KEPT:
            setattr(self, name, state[name])
        self.windows = {name: Window(values) for name, values in state["windows"].items()}
        self.skipped, self.seconds = Counter(state["skipped"]), Counter(state["seconds"])
        set_random_states(state["random"], self.device)


# %%
#| export assemble
def held_out(folder: str, tokens: int) -> list[np.ndarray]:
    """The first so many tokens of the validation shards."""
    held = []
    for path in open_shards(folder, "val"):
        held.append(read_shard(path)[:tokens])
        tokens -= len(held[-1])
    return held


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s by the GPU's data sheet, where there is one."""
    sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    rate = sheet and {"float32": sheet.float32, "tf32": sheet.tf32}.get(precision, sheet.half)
    return rate and 1e12 * rate


# %%
#| export assemble
def assemble(config: Config) -> Training:
    """All that a run needs, before its first step."""
    c, o, device = config, config.optim, pick_device(config.run.device)
    if reason := why_not(c.train.dtype, device):
        raise ValueError(f"train.dtype: {reason}")
    manifest = ensure_data(c.data)
    tokenizer = tokenizer_of(c.data, manifest)
    if tokenizer is None and c.eval.sample_every + c.eval.hellaswag_every:
        raise ValueError(f"samples need the tokenizer that made {c.data.dir}; or set eval.sample_every=0")
    model = first_model(c, manifest["vocab_size"]).to(device).train()
    kind, shards = DocumentStream if c.data.documents else BatchStream, open_shards(c.data.dir, "train")
    optimizer = optim.make_optimizer(model, o.lr, c.train.dtype, betas=o.betas, weight_decay=o.weight_decay)
    parts = {
        "tokenizer": tokenizer,
        "eot": manifest["eot"],
        "held": held_out(c.data.dir, c.eval.tokens) if c.eval.every else [],
        "model": model,
        "stepper": torch.compile(model) if c.train.compile else model,
        "optimizer": optimizer,
        "stream": kind(shards, c.train.micro_batch, c.model.block_size, seed=c.run.seed, device=device),
        "scaler": LossScaler() if c.train.dtype == "fp16" else None,
    }
    seed_everything(c.run.seed)  # last, whatever has drawn numbers before: from now on only dropout does
    return Training(c, device, **parts)


# %% [markdown]
r"""
The same command starts and resumes, so it may come with another configuration. What belongs to the run's identity cannot change on its way;
how long it runs, where it is saved and how often it is looked at can, and is said.
"""


# %%
#| export assemble
FREE = "run.", "eval.", "train.", "data.dir", "data.source"  # may change on a run's way
FIXED = "run.seed", "train.batch_tokens", "train.dtype"  # though not these


def compare(config: Config, saved: dict) -> None:
    """ValueError for a key that cannot change within a run; one printed line for those that can, and did."""

    def value(of: dict, key: str):
        section, _, name = key.rpartition(".")
        return (of.get(section, {}) if section else of).get(name)

    pairs = {key: (value(config_dict(config), key), value(saved, key)) for key in keys()}
    changed = {key: f"{key}={now} (was {then})" for key, (now, then) in pairs.items() if now != then}
    if fixed := [text for key, text in changed.items() if key in FIXED or not key.startswith(FREE)]:
        raise ValueError(f"the run in {config.run.dir} cannot go on with {fixed[0]}; choose another run.dir")
    if changed:
        print("changed since the checkpoint:", ", ".join(changed.values()))


# %%
#| export assemble
def resume(config: Config) -> Training:
    """The run as its newest whole checkpoint has it, or at its beginning."""
    folder = Path(config.run.dir)
    for aside in folder.glob(".step_*.tmp"):  # what kill -9 left
        shutil.rmtree(aside)
    if found := latest(folder):
        state = load(found)
        compare(config, state["config"])
    run = assemble(config)
    if found:
        run.model.load_state_dict(load_model(found).state_dict())
        run.load_state_dict(state)
        run.kept = found
        print(f"going on after step {run.step}, from {found}")
    repair(folder / "metrics.jsonl", run.step)
    return run


# %%
#| export dryrun
import shlex
from functools import partial
from pathlib import Path

import torch

from nanogpt import optim
from nanogpt.bench import memory_by_category, predict_step
from nanogpt.device import pick_device
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.precision import READS, LossScaler
from nanogpt.roofline import measure_roofline, timings
from nanogpt.shards import load_manifest
from nanogpt.train import train_step


# %% [markdown]
r"""
### Before it begins

`--dry-run` needs no data and trains nothing: parameters and memory by chapters 05 and 09, the time by the machine's roofline, which is a lower bound, and by
a step or two where they take seconds.
"""


# %%
#| export dryrun
def step_seconds(shape: GPTConfig, config: Config, device: torch.device) -> tuple[float, float | None]:
    """Seconds of a step: at least so many, by the device's roofline; and measured, if a micro-batch takes under 3 s."""
    B, T, n = config.train.micro_batch, config.model.block_size, config.micro_batches
    roof, name = measure_roofline(device), READS.get(config.train.dtype, config.train.dtype)
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
#| export dryrun
def dry_run(config: Config) -> None:
    """Print what a run would take; nothing is written, and data that are not there are not made."""
    c, device, known = config, pick_device(config.run.device), Path(config.data.dir, "manifest.json").exists()
    own = 50257 if isinstance(c.data.tokenizer, str) else c.data.tokenizer
    guess = 1024 if c.data.source == "stories" else own
    manifest = load_manifest(c.data.dir) if known else {"vocab_size": guess}
    shape = GPTConfig(**vars(c.model) | {"dropout": 0.0}, vocab_size=manifest["vocab_size"])
    B, T, steps, tokens = c.train.micro_batch, c.model.block_size, c.train.max_steps, c.train.batch_tokens
    print(f"parameters  {num_params(shape):,}" + ("" if known else f", if the vocabulary has {guess:,}"))
    parts = memory_by_category(shape, B, T)
    text = ", ".join(f"{what} {n / 1e9:.3f}" for what, n in parts.items())
    print(f"memory      {sum(parts.values()) / 1e9:.3f} GB with all in float32: {text}")
    print(f"steps       {steps:,} of {tokens:,} tokens: {c.micro_batches} × {B} rows of {T}")
    if known:
        train = manifest["splits"]["train"]
        n, what = (train["documents"] * T, "documents") if c.data.documents else (train["tokens"], "tokens")
        print(f"epochs      {steps * tokens / n:.2f} of {train[what]:,} {what}")
    least, measured = step_seconds(shape, c, device)
    said = f"at least {span(steps * least)} ({1000 * least:.4g} ms a step by the roofline)"
    print(
        f"time        {said}"
        + (f"; {span(steps * measured)} ({1000 * measured:.4g} ms measured)" if measured else "")
    )


# %%
#| export dryrun
def span(seconds: float) -> str:
    """In words: 12 s, 3.4 min, 5.6 h, 7.8 days."""
    units = [("days", 86400), ("h", 3600), ("min", 60)]
    name, size = next(((name, size) for name, size in units if seconds >= 1.5 * size), ("s", 1))
    return f"{seconds / size:.1f} {name}"


# %%
#| export dryrun
def report(run: Training) -> None:
    """What the run came to, and what it spent its time on."""
    total = sum(run.seconds.values())
    spent = ", ".join(f"{what} {s:.1f} s ({s / total:.1%})" for what, s in run.seconds.items())
    skipped = ", ".join(f"{n} {why}" for why, n in run.skipped.items()) or "none"
    print(f"{run.step} steps, {spent}; skipped: {skipped}")
    if run.best:
        print(f"best val loss {run.best['val_loss']:.6f} at step {run.best['step']}")
    print(f"python -m nanogpt sample --checkpoint {shlex.quote(str(run.kept))}")


# %%
#| export trainer
import argparse
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch


# %%
#| export trainer
from nanogpt import optim
from nanogpt.bench import mfu, step_flops
from nanogpt.evals import evaluate
from nanogpt.chunks import alone_in
from nanogpt.files import atomically
from nanogpt.prepare import DISK_FULL
from nanogpt.roofline import synchronize
from nanogpt.sample import complete
from nanogpt.shards import load_manifest, write_shard
from nanogpt.train import train_step


# %% [markdown]
r"""
### A step, and whether it counts

Chapter 07's `train_step` is the step. New is what stands around it: the loss and the gradient's norm are judged before the update is made.

- *Not finite.* The update is left out, its batch is kept to be looked at, and after `train.bad_steps` of them in a row the run ends.
- *A spike.* 6 standard deviations above the last 128 steps, say: left out if `train.skip_spikes` asks for it. Its batch is kept, too.
- *float16's overflow.* No error: the scaler is looking for its scale (chapter 10).

None of these is an update, so the learning rate does not move. Megatron-LM does the same, as one of its logs shows:
"""


# %%
log = csv.DictReader(Path("../data/reference/megatron_124m.csv").read_text().splitlines())
skipped = 0
for line in [dict(line) for line in log][:3]:
    skipped += int(line["skipped"])
    updates = int(line["iteration"]) - skipped
    print(
        f"iteration {line['iteration']}: {skipped} skipped so far, {updates} updates, lr {float(line['learning_rate']):.0e}"
    )
    assert abs(float(line["learning_rate"]) - 1e-5 * updates) < 1e-9, "the rate does not follow the updates"


# %%
#| export trainer
def learning_rate(config: Config, updates: int) -> float:
    """The rate of the update that follows so many: steps that were skipped do not count."""
    o, steps = config.optim, config.train.max_steps
    if o.schedule == "cosine":
        return o.lr * optim.cosine(updates, steps, warmup=o.warmup, minimum=o.minimum)
    if o.schedule == "wsd":
        return o.lr * optim.wsd(updates, steps, warmup=o.warmup, decay=o.decay, minimum=o.minimum)
    return o.lr * optim.warm_up(updates, o.warmup)


# %%
#| export trainer
def judged(run: Training, loss: float, norm: float) -> dict:
    """What the step's line says of loss and norm; with "skipped" where the update is not to be made."""
    if not math.isfinite(loss + norm):
        return {"norm": norm, "skipped": "not finite"}
    z = {"loss_z": run.windows["loss"].z(loss), "norm_z": run.windows["norm"].z(norm)}
    limit = run.config.train.skip_spikes
    spike = limit and max(value or 0 for value in z.values()) > limit
    return {"norm": norm} | z | ({"skipped": "spike"} if spike else {})


# %%
#| export trainer
def update(run: Training) -> tuple[float, dict, list]:
    """Take a batch, and update the weights by it if it is judged fit: its loss, what was judged, its micro-batches."""
    c, lr = run.config, learning_rate(run.config, run.updates)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    if c.data.overfit:
        run.stream.position = 0  # the first batch, again
    said, batches = {"lr": lr}, [run.stream.next_batch() for _ in range(c.micro_batches)]

    def accept(loss, norm) -> bool:  # not asked where fp16's scaler has found an overflow
        said.update(judged(run, loss.item(), norm.item()))
        return "skipped" not in said

    loss = train_step(run.stepper, run.optimizer, batches, c.train.dtype, c.optim.clip, run.scaler, accept)
    if "norm" not in said:
        said |= {"norm": math.inf, "skipped": "overflow" if loss.isfinite() else "not finite"}
    synchronize(run.device)
    return loss.item(), said, batches


# %%
#| export trainer
def one_step(run: Training) -> dict:
    """A step: the line of metrics.jsonl that tells of it."""
    began, T, tokens = time.perf_counter(), run.config.model.block_size, run.config.train.batch_tokens
    with run.timed("steps"):
        loss, said, batches = update(run)
    seconds = time.perf_counter() - began
    run.step, skipped = run.step + 1, said.get("skipped")
    if skipped is None:
        run.updates += 1
    else:
        run.skipped[skipped] += 1
    run.bad = run.bad + 1 if skipped == "not finite" else 0
    if skipped in ("not finite", "spike"):  # its batch, to be looked at: rows of T tokens
        ids = torch.cat([x.flatten() for x, _ in batches]).cpu().numpy()
        write_shard(run.folder / f"skipped/step_{run.step:06d}.bin", ids)
    line = {"step": run.step, "loss": loss} | said | {"ms": 1000 * seconds, "tokens_per_s": tokens / seconds}
    if peak := peak_flops(run.device, run.config.train.dtype):
        line["mfu"] = mfu(step_flops(run.model.config, tokens // T, T), seconds, peak)
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}


# %% [markdown]
r"""
### Looking, without being noticed

Validation, HellaSwag and samples use the plain model, not the compiled one, which would be compiled again for every new length; and they give the
random state back. A checkpoint is written *before*: an evaluation that runs out of memory has cost people days.
"""


# %%
#| export trainer
def due(every: int, step: int, last: bool = False) -> bool:
    """Whether something that is done every so many steps, 0 for never, is done after this one."""
    return bool(every) and (step % every == 0 or last)


# %%
#| export trainer
def look(run: Training, last: bool) -> dict:
    """Validate, score HellaSwag and write a sample, as far as due; for the step's line. No later step notices it."""
    e, found, before = run.config.eval, {}, random_states(run.device)
    if due(e.every, run.step, last):
        found["val_loss"] = evaluate(run.model, run.held, run.eot, 32, run.config.train.dtype)
        found |= {k: v for k, v in load_manifest(run.config.data.dir).items() if k == "floor"}  # for `plot`
        if found["val_loss"] < run.best.get("val_loss", math.inf):
            run.best = {"step": run.step, "val_loss": found["val_loss"]}
    if due(e.hellaswag_every, run.step, last):
        from nanogpt import hellaswag  # chapter 18

        items = hellaswag.load_items()
        scores = hellaswag.accuracy(run.model, items, run.tokenizer, precision=run.config.train.dtype)
        found |= {"hellaswag": scores["acc"], "hellaswag_norm": scores["acc_norm"]}
    if due(e.sample_every, run.step, last):
        text = e.prompt + complete(run.model, run.tokenizer, e.prompt, 200)
        print(f"--- step {run.step}: {text}")
        with atomically(run.folder / f"samples/step_{run.step:06d}.txt") as file:
            file.write(text.encode())
    set_random_states(before, run.device)
    return found


# %%
#| export trainer
def last_good(run: Training) -> str:
    return f"the last good checkpoint is {run.kept}" if run.kept else "there is no checkpoint yet"


def keep_run(run: Training, metrics) -> None:
    """Write a checkpoint of this step, if there is none yet, and flush the lines before it."""
    if run.kept == run.folder / f"step_{run.step:06d}":
        return
    os.fsync(metrics.fileno())
    run.kept = save(run.folder, run.step, run.model, run.state_dict(), run.tokenizer)


# %% [markdown]
r"""
### Ending

A cluster sends SIGTERM, a person Ctrl-C, a scheduler has a time limit, and where no signal reaches there is a file named `stop`. Each lets the step end,
saves, and says how to go on; the exit code is 0. A second Ctrl-C ends at once.
"""


# %%
#| export trainer
@contextmanager
def asked_to_stop(run: Training) -> Iterator[Callable[[], str | None]]:
    """A function that says why the run should end after this step, if it should: a signal, a file, the time limit."""
    began, minutes, noted, file = time.monotonic(), run.config.run.minutes, [], run.folder / "stop"

    def note(number, frame):
        if noted:
            raise KeyboardInterrupt(f"{last_good(run)}, and the same command goes on from it")
        noted.append(signal.Signals(number).name)

    def reason() -> str | None:
        if file.exists():
            file.unlink()
            noted.append(f"the file {file}")
        reserve = 1.5 * sum(run.longest.values())  # a step, a checkpoint, an evaluation
        if time.monotonic() - began + reserve > 60 * (minutes or math.inf):
            noted.append(f"run.minutes={minutes:g}")
        return noted[0] if noted else None

    with ExitStack() as at_the_end:
        for number in (signal.SIGINT, signal.SIGTERM):
            at_the_end.callback(signal.signal, number, signal.signal(number, note))
        yield reason


# %% [markdown]
r"""
### The loop

A checkpoint stands between a step and what is done after it, and holds the line that is not yet written. So whichever moment a run is killed at, the step's
evaluation and its line are made once more, and nothing is missing or double.
"""


# %%
#| export trainer
@contextmanager
def naming_last_good(run: Training) -> Iterator[None]:
    """What ends a run for good says where it can go on: no number left, or no room on the disk."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(f"step {run.step}: {error}; {last_good(run)}; lower optim.lr") from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(f"no room left in {run.folder}; {last_good(run)}; make room and go on") from None


# %%
#| export trainer
def finish_step(run: Training, stop: str | None, metrics) -> None:
    """What is due after a step. A checkpoint comes first: an evaluation may end for want of memory."""
    e, last = run.config.eval, run.step >= run.config.train.max_steps
    looking = not stop and any(due(n, run.step, last) for n in (e.every, e.sample_every, e.hellaswag_every))
    if stop or last or looking or (due(run.config.run.checkpoint_every, run.step) and not run.bad):
        with run.timed("checkpoints"):
            keep_run(run, metrics)
    if looking:
        with run.timed("evaluation"):
            run.record |= look(run, last)
    prune(run.folder, run.config.run.keep, run.step, {run.best.get("step")})


# %%
#| export trainer
def fit(config: Config, command: str = "the same call") -> Training:
    """Start the run in config.run.dir, or go on with it, to its last step or until it is asked to stop."""
    with alone_in(Path(config.run.dir), "trainer", "choose another run.dir"):
        run, steps, stop = resume(config), config.train.max_steps, None
        with (
            open(run.folder / "metrics.jsonl", "ab", 0) as metrics,
            asked_to_stop(run) as why,
            naming_last_good(run),
        ):
            write = list(writers(config, metrics, run.step))
            while (run.step < steps and not stop) or run.record:
                run.record = run.record or one_step(run)
                stop = why()
                finish_step(run, stop, metrics)
                for each in write:
                    each(run.record)
                run.record = None
                if run.bad >= config.train.bad_steps:
                    raise FloatingPointError(f"loss or gradient were not finite {run.bad} times in a row")
    if run.step < steps:
        print(f"stopped by {stop} after step {run.step}; to go on: {command}")
    else:
        report(run)
    return run


# %%
#| export trainer
HELP = """Start a run, or go on with it where its newest checkpoint is: the same command does both.

  python -m nanogpt train tiny
  python -m nanogpt train shakespeare data.source=../shared/data/tinyshakespeare.txt
  python -m nanogpt train gpt2-124M train.micro_batch=8 --dry-run

Ctrl-C, SIGTERM, a file named `stop` in run.dir and run.minutes end it after the step, with a checkpoint.
"""


# %%
#| export trainer
def parser() -> argparse.ArgumentParser:
    """The command's options."""
    parser = argparse.ArgumentParser(description=HELP, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a YAML file, or the name of one in configs/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="such as train.max_steps=100")
    parser.add_argument("--dry-run", action="store_true", help="say what the run would take, and end")
    parser.add_argument("--depth", type=int, metavar="N", help="layers; width, heads and lr follow")
    parser.parse_args = parser.parse_intermixed_args  # an override may stand after an option
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt train`, its options parsed."""
    dial = from_depth(args.depth) if args.depth is not None else []
    config = load_config(args.config, [*dial, *args.overrides])
    again = [args.config, *args.overrides, *(["--depth", str(args.depth)] if dial else [])]
    dry_run(config) if args.dry_run else fit(config, f"python -m nanogpt train {shlex.join(again)}")


# %% [markdown]
r"""
### See: killed and gone on

The run that is never stopped, and one that is killed with `kill -9` in mid-step. Both with one thread, since sums in another order have other
bits, and since a forked child can have no more.
"""


# %% tags=["nbval-ignore-output"]
def tiny(name: str, *changes: str) -> Config:
    """The ready configuration, shorter, with dropout, in a folder of its own."""
    here = [
        f"data.dir={RUNS}/stories",
        f"run.dir={RUNS}/{name}",
        "run.device=cpu",
        f"train.max_steps={STEPS}",
    ]
    often = [f"run.checkpoint_every={EVERY}", "run.keep=99", f"eval.every={2 * EVERY}", "eval.tokens=2000"]
    return load_config("tiny", [*here, *often, "model.dropout=0.1", f"run.log_every={STEPS}", *changes])


threads = torch.get_num_threads()
torch.set_num_threads(1)
ensure_corpus(RUNS / "stories", n=1000)
whole = fit(tiny("whole"))


# %%
def killed(config: Config, steps: int) -> int:
    """Train in a child process until so many lines were written, then kill -9; the step of the last whole line."""
    path = Path(config.run.dir) / "metrics.jsonl"
    with warnings.catch_warnings(action="ignore"):  # to fork is unwise beside threads; this child dies anyway
        if not (child := os.fork()):
            with open(os.devnull, "w") as sys.stdout:
                fit(config)
            os._exit(0)
    began = time.monotonic()
    while time.monotonic() < began + 60 and not (path.exists() and path.read_bytes().count(b"\n") >= steps):
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return path.read_bytes().count(b"\n") if path.exists() else 0


# %% tags=["nbval-ignore-output"]
moments = [min(STEPS - 1, STEPS * (i + 1) // (KILLS + 1) + 3) for i in range(KILLS)]
deaths = [killed(tiny("killed"), step) for step in moments] if hasattr(os, "fork") else []  # Windows has none
print("killed after steps", deaths)
again = fit(tiny("killed"))
a, b = read_metrics(RUNS / "whole"), read_metrics(RUNS / "killed")
show(
    figures.killed_run([line["loss"] for line in a], [line["loss"] for line in b], deaths, EVERY),
    alt="Loss over steps: the points of the run that was killed three times lie on the line of the one that was not.",
)

# %%
print(verdict(a, b, "loss")[1])
for name in ("loss", "norm", "lr", "val_loss"):
    assert not verdict(a, b, name)[0], f"after being killed the run has another {name}"
assert all(map(torch.equal, whole.model.parameters(), again.model.parameters())), "the weights differ"

# %% [markdown]
r"""
*What if one part is forgotten?* The same run again from its middle, each time with one thing as it was at the start.
"""

# %%
shutil.copytree(whole.folder / f"step_{HALF:06d}", RUNS / f"half/step_{HALF:06d}", dirs_exist_ok=True)
forget = {
    "nothing": lambda run: None,
    "the place in the data": lambda run: setattr(run.stream, "position", 0),
    "dropout's generator": lambda run: torch.manual_seed(0),
    "AdamW's means": lambda run: run.optimizer.state.clear(),
    "the count of updates": lambda run: setattr(run, "updates", 0),
}
should, above = [line["loss"] for line in a[HALF : HALF + 10]], {}
for what, of in forget.items():
    with contextlib.redirect_stdout(None):
        half = resume(tiny("half"))
    of(half)
    above[what] = sum(one_step(half)["loss"] - loss for loss in should) / len(should)
    print(f"{what:22} forgotten: {above[what]:+.3f} nats over the next {len(should)} steps")
answer("17.6", round(above["AdamW's means"], 3))
assert above["nothing"] == 0, "what is loaded is not what was saved"
torch.set_num_threads(threads)

# %% [markdown]
r"""
Nothing here fails, and no single loss looks wrong: only the comparison with a run that was not stopped shows it. That is why the tests do it,
at twenty moments in four precisions, half of them within the writing of a checkpoint.

A trainer costs time as well. The last lines of each run above say how much went into checkpoints and evaluation. Is every tenth step too often?
If a checkpoint takes c seconds and the machine fails every M seconds on average, the least is lost when checkpoints are √(2 c M) apart (Young 1974).
"""


# %% [markdown]
r"""
## The command line, which may be skipped

A command is a module with a `parser()` and a `run(args)`; `python -m nanogpt NAME` finds it here. All commands end
alike: exit code 0 when all went well, 2 after one line that says what is wrong, 130 after Ctrl-C. A command's module is
imported only when that command is given: help needs no PyTorch.
"""


# %%
#| export cli
import difflib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

COMMANDS = {
    "prepare": ("nanogpt.prepare", "text, JSONL, CSV or parquet -> shards of tokens (chapter 16)"),
    "plot": ("nanogpt.runs", "draw loss, norm, rate and throughput of runs together (chapter 15)"),
    "compare": ("nanogpt.compare", "where two runs part, and by how much (chapter 15)"),
    "train": ("nanogpt.trainer", "a run from a YAML file, started or gone on with (chapter 17)"),
    "sample": ("nanogpt.sample", "continue a prompt with a trained model (chapter 08)"),
    "ladder": ("nanogpt.ladder", "every speed-up on this machine, one on top of the other (chapter 14)"),
    "eval": ("nanogpt.report", "how good a checkpoint is, by several measures (chapter 18)"),
}
USAGE = """usage: python -m nanogpt COMMAND [options]

{commands}

  python -m nanogpt COMMAND --help    options and examples of a command
Exit codes: 0 all went well, 2 something is wrong (one line says what), 130 stopped by Ctrl-C."""


# %%
#| export cli
def in_one_line(error: BaseException) -> str:
    """What went wrong, without line breaks. What is missing is named with what brings it."""
    text = str(error) or {MemoryError: "out of memory"}.get(type(error), type(error).__name__)
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        package, _, module = error.name.partition(".")
        text = f"needs {package}: pip install {'pyyaml' if package == 'yaml' else package}"
        if package == "nanogpt":
            chapters = Path(__file__).parent.parent.glob("notebooks/*.ipynb")
            owner = [c.name[:2] for c in chapters if f"#| doc {module}:" in c.read_text(encoding="utf-8")]
            remedy = f"`course restore {owner[0]}` brings it back" if owner else "copy it here again"
            text = f"nanogpt/{module}.py is missing; {remedy}"
    return " ".join(text.split())


# %%
#| export cli
def reader_has_gone(text: str = "") -> bool:
    """Write out `text` and all before it; true if nobody reads stdout any more, as `head` when it has enough."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # What follows goes nowhere: Python's own flush at exit must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


# %%
#| export cli
def outcome(name: str, call: Callable[[], object]) -> int:
    """Call it; 0, or 2 or 130 after one line on stderr.

    A command that leaves something behind when it is stopped raises KeyboardInterrupt with a sentence that says what.
    """
    try:
        call()
    except (ValueError, OSError, RuntimeError, MemoryError, FloatingPointError, ImportError) as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone("\n"):
            return 0
        print(f"{name}: {in_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"\n{name}: stopped; {stop if stop.args else 'no file was written'}", file=sys.stderr)
        return 130
    except SystemExit as end:  # --help
        return end.code or 0
    return 0


# %%
#| export cli
def run_command(name: str, argv: list[str]) -> int:
    """`python -m nanogpt name *argv`, called from Python; the exit code."""

    def refuse(message: str):
        raise ValueError(f"{message} (python -m nanogpt {name} --help)")

    def call():
        module = importlib.import_module(COMMANDS[name][0])
        parser = module.parser()
        parser.prog, parser.error = f"python -m nanogpt {name}", refuse
        module.run(parser.parse_args(argv))

    return outcome(name, call)


# %%
#| export cli
def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt`: pick the command, run it, give its exit code."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # not every terminal can show every character
    if name in COMMANDS:
        code = run_command(name, rest)
    elif name in ("-h", "--help"):
        lines = [f"  {name:10} {what}" for name, (_, what) in COMMANDS.items()]
        code = outcome("nanogpt", lambda: print(USAGE.format(commands="\n".join(lines))))
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1) or ["--help"]
        print(f"nanogpt: no command {name!r}; try python -m nanogpt {near[0]}", file=sys.stderr)
        code = 2
    reader_has_gone()
    return code


# %% [markdown]
r"""
## Checkpoint

Four commands belong together: `train` makes a run, `plot` and `compare` read it, `sample` and `eval` take one of its checkpoints.
"""

# %% tags=["nbval-ignore-output"]
predictions("17")

# %%
checkpoint("17")

# %% [markdown]
r"""
## Exercises

1. Set `EVERY = 1` and `KILLS = 10`: most kills then fall into the writing of a checkpoint. Check: `verdict` still says "equal to the last bit".
   What does it cost? The last line of the run says it.
2. Let `save` write into `target` at once, without the rename, and repeat. Check: `tests/test_ch17_faults.py` has a test that fails. What does a run
   say that finds such a folder?
3. How long does a checkpoint of GPT-2 small take? Predict it from 12 bytes a parameter and your disk's rate, then train two steps
   with `--depth 12` and small batches. Check: the share that the last line gives for checkpoints.
4. Let the stream shuffle with Python's `random` instead of a key. Which test fails first? Mend it with `random.getstate` in `random_states`,
   and check with the same test.
5. Train `tiny` with `train.skip_spikes=3`. Decode what lies in `skipped/`. Check: are these batches unlike others, or is it chance? Of 1,600 normal
   deviates, how many exceed 3?
6. Store the weights of a checkpoint as bfloat16. Check with `compare`: at which step do the runs part, and by how much?

## Further reading

- Young 1974, *A First Order Approximation to the Optimum Checkpoint Interval*, CACM 17(9).
- Pillai et al. 2014, *All File Systems Are Not Created Equal*, OSDI: which orders of writes, flushes and renames survive a power cut.
- Chowdhery et al. 2022, *PaLM*, §5.1: loss spikes in a large run, and batches that were skipped.
- llm.c, `outlier_detector.h` and `train_gpt2.cu`: z-scores, skipped updates, and a resume that is checked to be deterministic.
- Micikevicius et al. 2018, *Mixed Precision Training*, §3.2: why a step that overflows is no error.
"""
