# %% [markdown]
r"""
# 17 · The trainer: a run that can be trusted for days

Chapter 07's loop trains for a minute, and whoever sees it fail starts again. A run of days meets what a minute does not:
a reboot, a full disk, a spike, a typo in the command that is noticed on the third day.
"""

# %%
#| default_exp config
#| doc config: A run as a file: model, data, optimizer and run in one YAML, read into dataclasses and checked.
#| doc cli: `python -m nanogpt COMMAND`: one runner, and the same exit codes for all commands.
from course.notebook import checkpoint

# %% [markdown]
r"""
## The run as a file
"""


# %%
#| export config
import difflib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import yaml
from pydantic import ConfigDict, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic import TypeAdapter, ValidationError

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)  # true is no number, and 3.5 no integer


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


# %%
#| export config
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


# %%
#| export config
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


# %%
#| export config
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


# %%
#| export config
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


# %% [markdown]
r"""
## The trainer
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
    "prepare": ("nanogpt.prepare", "text, JSONL or parquet -> shards of tokens (chapter 16)"),
    "sample": ("nanogpt.sample", "continue a prompt with a trained model (chapter 08)"),
    "ladder": ("nanogpt.ladder", "every speed-up on this machine, one on top of the other (chapter 14)"),
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
"""

# %%
checkpoint("17")
