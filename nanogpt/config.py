"""A run as a file: model, data, optimizer and run in one YAML, read into dataclasses and checked.

Exported from notebooks/17c_config.ipynb, grown by notebooks/17e_long_run.ipynb.
"""

import difflib
import importlib.util
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

INT, FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"  # PyYAML's names for two kinds
EXPONENT = FLOAT, re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
USUAL = yaml.SafeLoader.yaml_implicit_resolvers  # for each first character: kinds with their patterns


def integer(loader: yaml.SafeLoader, node: yaml.Node) -> int | str:
    """An integer to base ten, 0100 too. What else YAML 1.1 takes for an integer, as 2:00:00, stays text."""
    digits = node.value.replace("_", "")
    return int(digits) if digits.lstrip("+-").isdecimal() else node.value


def decimal(loader: yaml.SafeLoader, node: yaml.Node) -> float | str:
    """A number with a dot or an exponent. With a colon, as 2:00:00.5, it stays text."""
    return node.value if ":" in node.value else yaml.SafeLoader.construct_yaml_float(loader, node)


class Loader(yaml.SafeLoader):
    """YAML as people mean it: 6e-4 is a number, 0100 is a hundred, a key is there once. Plain data only, never objects."""

    yaml_implicit_resolvers = USUAL | {first: [EXPONENT, *USUAL[first]] for first in "+-0123456789"}

    yaml_constructors = yaml.SafeLoader.yaml_constructors | {INT: integer, FLOAT: decimal}

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


STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # text is no number, 3.5 no integer
NotNegative, Positive = Annotated[int, Field(ge=0)], Annotated[int, Field(gt=0)]
Amount, Rate = Annotated[float, Field(ge=0)], Annotated[float, Field(gt=0)]
Fraction, BelowOne = Annotated[float, Field(ge=0, le=1)], Annotated[float, Field(ge=0, lt=1)]
Name = Annotated[str, Field(min_length=1)]
Place = Annotated[Name, AfterValidator(os.path.expanduser)]  # ~ is the home folder, behind a = too


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


@dataclass(frozen=True)
class Eval:
    """What is measured on the way. Every: so many steps; 0 is never."""

    __pydantic_config__ = STRICT
    every: NotNegative = 250  # the validation loss
    tokens: Annotated[int, Field(ge=2)] = 100_000  # of the validation text that the loss is measured on
    sample_every: NotNegative = 0  # a sample of the model's text
    prompt: str = ""  # how that sample begins
    hellaswag_every: NotNegative = 0  # the score on HellaSwag (chapter 18b)


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


def check_batch(model: Model, train: Train) -> None:
    """ValueError where the batch is no whole number of micro-batches."""
    rows = train.micro_batch * model.block_size
    if train.batch_tokens % rows:
        near = max(1, round(train.batch_tokens / rows)) * rows
        what = f"train.batch_tokens={train.batch_tokens} must be a multiple of train.micro_batch={train.micro_batch}"
        raise ValueError(f"{what} × model.block_size={model.block_size}, as {near} is")


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


def asked_labs(config: Config) -> list[str]:
    """The names of the labs that a configuration asks for."""
    return list(dict.fromkeys(lab for key, lab in LABS.items() if not is_default(config, key)))


def load_labs(config: Config) -> list[ModuleType]:
    """The labs that a configuration asks for by a key that is not at its default, each once, imported.

    ModuleNotFoundError for one that is not written yet.
    """
    return [importlib.import_module(lab) for lab in asked_labs(config)]


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


def key_lines(kind: type, before: str = "") -> list[str]:
    """A line for each key of a configuration: its default, and what the comment behind the field says."""
    meanings = dict(re.findall(r"^    (\w+):.*?  # (.*)$", inspect.getsource(kind), re.MULTILINE))
    lines = []
    for f in fields(kind):
        if is_dataclass(f.default_factory):
            lines += key_lines(f.default_factory, f"{f.name}.")
        else:
            lines.append(f"  {before}{f.name}={json.dumps(f.default)}  {meanings.get(f.name, '')}".rstrip())
    return lines
