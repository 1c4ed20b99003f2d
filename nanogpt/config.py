"""A run as a file: model, data, optimizer and run in one YAML, read into dataclasses and checked.

Exported from notebooks/17_trainer.ipynb.
"""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import yaml
from pydantic import (
    ConfigDict,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # true is no number, and 3.5 no integer


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
    flash: bool = True
    padded_vocab_size: int | None = None

    def __post_init__(self):
        from nanogpt.model import check_shape  # chapter 05's rules; here, since they need torch

        check_shape(SimpleNamespace(**vars(self), vocab_size=1))


@dataclass(frozen=True)
class Data:
    """Where the shards are, and what they are made of where they are not there yet."""

    __pydantic_config__ = STRICT
    dir: str = "data/built/stories"
    documents: bool = True  # rows begin with documents, as in chapter 07; else a stream, as for GPT-2
    source: str | None = None  # where dir is absent: "stories", or the text that is prepared into it
    tokenizer: int | str = (
        "gpt2"  # for that text: GPT-2's, a tokenizer.json, or of how many tokens to train one
    )
    val: NonNegativeFloat = 0.1  # the fraction of that text's documents kept for validation
    paragraphs: bool = True  # a document of that text ends at a blank line


@dataclass(frozen=True)
class Optim:
    """AdamW and its learning rate over the run: chapter 15."""

    __pydantic_config__ = STRICT
    lr: PositiveFloat = 6e-4  # the highest rate
    betas: tuple[NonNegativeFloat, NonNegativeFloat] = (0.9, 0.95)
    weight_decay: NonNegativeFloat = 0.1
    clip: PositiveFloat | None = 1.0  # the longest gradient; None clips none
    schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    warmup: NonNegativeInt = 0  # steps
    minimum: NonNegativeFloat = 0.1  # the last step's rate, as a fraction of lr
    decay: NonNegativeFloat = 0.3  # wsd: the fraction of the steps in which the rate falls

    def __post_init__(self):
        for name in ("minimum", "decay"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name}={getattr(self, name)} is a fraction, at most 1")
        if max(self.betas) >= 1:
            raise ValueError(f"betas={list(self.betas)} must be below 1")


@dataclass(frozen=True)
class Train:
    """How long, how large a batch, in which precision, and what is done about bad steps."""

    __pydantic_config__ = STRICT
    max_steps: PositiveInt = 1000
    batch_tokens: PositiveInt = 524_288  # of one update
    micro_batch: PositiveInt = 16  # rows of block_size tokens that go through the model at once
    dtype: str = "float32"  # chapter 10's word
    compile: bool = False
    skip_spikes: NonNegativeFloat = 0.0  # an update is left out beyond so many deviations; 0: never
    bad_steps: PositiveInt = 10  # so many steps in a row that are not finite end the run

    def __post_init__(self):
        from nanogpt.precision import PRECISIONS

        if self.dtype not in PRECISIONS:
            raise ValueError(f"dtype={self.dtype!r} is none of {', '.join(PRECISIONS)}")


@dataclass(frozen=True)
class Eval:
    """What is measured on the way; 0 means never."""

    __pydantic_config__ = STRICT
    every: NonNegativeInt = 250  # steps between validations
    tokens: PositiveInt = 100_000  # that a validation reads
    sample_every: NonNegativeInt = 0
    prompt: str = ""
    hellaswag_every: NonNegativeInt = 0


@dataclass(frozen=True)
class Run:
    """Where the run lives, and when it saves itself."""

    __pydantic_config__ = STRICT
    dir: str = "runs/default"
    seed: NonNegativeInt = 0
    device: str | None = None  # None: the best there is
    checkpoint_every: NonNegativeInt = 500
    keep: PositiveInt = 2  # checkpoints, besides the best one
    log_every: PositiveInt = 1
    minutes: PositiveFloat | None = None  # the time limit before which it saves and ends
    tensorboard: bool = False
    wandb: bool = False


@dataclass(frozen=True)
class Config:
    """A run. ValueError, naming the key, where its parts cannot work together."""

    __pydantic_config__ = STRICT
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    optim: Optim = field(default_factory=Optim)
    train: Train = field(default_factory=Train)
    eval: Eval = field(default_factory=Eval)
    run: Run = field(default_factory=Run)
    init_from: str | None = None  # a folder of save_model, or a Hugging Face folder or name

    def __post_init__(self):
        tokens, rows = self.train.batch_tokens, self.train.micro_batch * self.model.block_size
        if tokens % rows:
            near = max(rows, round(tokens / rows) * rows)
            raise ValueError(
                f"train.batch_tokens={tokens} is no multiple of train.micro_batch × model.block_size = {rows}; "
                f"the nearest is {near}"
            )
        if self.optim.warmup >= self.train.max_steps:
            raise ValueError(
                f"optim.warmup={self.optim.warmup} must be below train.max_steps={self.train.max_steps}"
            )

    @property
    def micro_batches(self) -> int:
        """In one update."""
        return self.train.batch_tokens // (self.train.micro_batch * self.model.block_size)


def config_dict(config: Config) -> dict:
    """As it stands in a file: dictionaries, lists, numbers and text."""
    return json.loads(json.dumps(asdict(config)))


CONFIGS = Path(__file__).parent.parent / "configs" if "__file__" in globals() else Path("../configs")


def load_config(name_or_path: str | Path, overrides: list[str] = ()) -> Config:
    """The run in a YAML file, or in configs/NAME.yaml, with `key=value` overrides; ValueError in one line."""
    path = Path(name_or_path)
    path = path if path.suffix else CONFIGS / f"{path}.yaml"
    given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for override in overrides:
        key, _, value = override.partition("=")
        *section, name = key.split(".")
        (given.setdefault(section[0], {}) if section else given)[name] = yaml.safe_load(value)
    try:
        return TypeAdapter(Config).validate_json(json.dumps(given))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
