# %% [markdown]
r"""
# 17d · Assembly: from a file to a run

Chapter 17 built its run by hand: a model, an optimizer, a stream. Chapter 17c turned the sizes into a file. This sitting connects the two. We do it in one cell first, which trains, and which ignores most of the file without a word. Then each part becomes a function that reads
the file to the end: the data, the tokenizer, the batches, the model and the optimizer. The trainer of chapter 17 grows with them: its run keeps the configuration, and its step and its loop read all numbers from there. At the end one call makes a run from a file. We close the lid in the middle, and the same call goes on with the run, to the same losses.

```
tiny.yaml ──> Config ──build_run──> Training ──fit──> metrics.jsonl
                          ↑                    │ ↑
             data, tokenizer, batches,         ↓ │ resume
                model, optimizer            checkpoints
```

One question needs an experiment. When a run goes on, its file may have been edited since it began. Does the run notice? We edit seven keys, one at a time, and look at the next losses. The result tells us which
keys may change.

Everything here is one process. After "The same call goes on" come appendices with code that the package needs, and no new idea: run their cells and read them when you need them.
"""

# %%
#| default_exp build
#| doc labs.corpora.make: The data of a run, made where there are none: stories, a text, a folder, files of other kinds.
#| doc labs.long_run.plot: Several runs in one figure: loss, norm, rate, throughput; the command `plot`.
#| doc cli: `python -m nanogpt COMMAND`: one runner, and the same exit codes for all commands.
import contextlib
import copy
import shutil
import signal
from dataclasses import MISSING, fields
from functools import partial

from course.notebook import answer, as_left_by, as_module, checkpoint, grown, predict, predictions, show
from nanogpt.build import refuse_other_shape
from nanogpt.config import load_config
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.labs.corpora.vocab import read_tokenizer
from nanogpt.metrics import read_metrics
from nanogpt.optim import wsd
from nanogpt.trainer import due

# %% [markdown]
r"""
## A run from a file, in one cell

What is the least that connects the two? `assemble` takes from a configuration the numbers that chapter 17's `Training` asks for. `as_left_by` gives us that trainer as 17b has left it. The file is the ready configuration `tiny` of chapter 17c, with a few changes: a folder of its own for the data and for the run, no source, the CPU, and dropout.
`ensure_corpus` puts a thousand stories into the folder. (The two cells below are the imports of the module `build`.)
"""


# %%
#| export
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from nanogpt.config import Config, Data
from nanogpt.data import BatchStream, DocumentStream
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer

# %%
#| export
from nanogpt.pretrained import from_hf, read_json
from nanogpt.shards import load_manifest, open_shards, read_shard
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init
from nanogpt.weights import load_model

# %%
RUNS = Path("../data/built/assembly")
shutil.rmtree(RUNS, ignore_errors=True)
torch.set_num_threads(1)  # sums in another order have other bits
ensure_corpus(RUNS / "stories", n=1000)
mine = [f"data.dir={RUNS}/stories", "data.source=null", f"run.dir={RUNS}/run", "run.device=cpu"]
mine += ["model.dropout=0.1"]
config = load_config("tiny", mine)
simple = as_left_by("17b", "trainer")


def assemble(config: Config) -> simple.Training:
    """Chapter 17's run, with the numbers of a configuration."""
    folder, corpus, T = Path(config.run.dir), config.data.dir, config.model.block_size
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = BPETokenizer.load(f"{corpus}/tokenizer.json")
    held = read_shard(open_shards(corpus, "val")[0])[: config.eval.tokens]
    model = GPT(config.model.shape(tokenizer.vocab_size), torch.Generator().manual_seed(config.run.seed))
    optimizer = make_optimizer(model, config.optim.lr, weight_decay=config.optim.weight_decay)
    rows = config.train.batch_tokens // T
    stream = DocumentStream(open_shards(corpus, "train"), rows, T, seed=config.run.seed)
    torch.manual_seed(config.run.seed)
    parts = model, optimizer, stream, tokenizer, ([held], tokenizer.eot)
    return simple.Training(folder, *parts, config.train.max_steps, config.optim.lr, config.eval.every)


# %% tags=["nbval-ignore-output"]
first = ["train.max_steps=40", "eval.every=40", "eval.tokens=2000"]
run = simple.fit(assemble(load_config("tiny", [*mine, *first, f"run.dir={RUNS}/simple"])))

# %% [markdown]
r"""
Fifteen lines, and a file has become a run. It is a real one: it has a log and checkpoints, and the same call would go on with it. But is it the run of the file? `tiny` asks for the schedule wsd with a warm-up of 20 steps. We compare the rates of three steps with those of the file:
"""

# %%
lines, o = read_metrics(run.folder), config.optim
for step in (1, 20, 40):
    by_file = o.lr * wsd(step - 1, 40, warmup=o.warmup, decay=o.decay, minimum=o.minimum)
    print(f"step {step:2}: rate {lines[step - 1]['lr']:.1e}, and {by_file:.1e} by the file")

# %% [markdown]
r"""
The first step has a rate that is twenty times as high as the file's. Chapter 17's `one_step` computes a cosine, whatever the file says. 17c has refused every key that is misspelt, and here a key that is spelled well has no effect. `assemble` drops most of the 62 keys like this: betas, clipping, the precision, the micro-batches. It would also take
any tokenizer that is in the folder, and nothing compares the file with the one that the run began with.

So each part becomes a function of its own, which reads all the keys that concern it.

## From the file to the data

The configuration names a folder of shards, `data.dir`. The simplest case is that the shards are there. Then all that a run needs to know of them is their manifest (chapter 03). `ensure_data` returns it.

A configuration may also name what the shards are made of, `data.source`: the course's stories, or a text. Then `ensure_data` first asks a lab, `labs.corpora.make`, to make them where there are none. Our runs have shards, so we leave the lab for an appendix.
"""


# %%
#| export
def ensure_data(data: Data) -> dict:
    """The manifest of data.dir. A source that is named is made into shards first, or must be what they were made of."""
    if data.source is not None:
        import_module("nanogpt.labs.corpora.make").make_data(data)
    return load_manifest(data.dir)


# %%
manifest = ensure_data(config.data)
print(f"{manifest['splits']['train']['tokens']:,} tokens of a vocabulary of {manifest['vocab_size']:,}")

# %% [markdown]
r"""
To write samples, the run needs the tokenizer that made the shards. It may be in the same folder, or the configuration may name it. Chapter 16 has shown the danger: with a wrong tokenizer all ids are valid, no error is raised, and every id
means another word. So `find_tokenizer` tries both places, and accepts a tokenizer only if its fingerprint is the one in the shards' manifest. If neither fits, it returns None.
"""


# %%
#| export
#| blank find_tokenizer: try the one beside the shards, then the configured one; its fingerprint must be the manifest's
def find_tokenizer(data: Data, manifest: dict) -> BPETokenizer | None:
    """The tokenizer that made the shards, or None if it is neither beside them nor named."""
    for name in (Path(data.dir) / "tokenizer.json", data.tokenizer):
        with suppress(OSError, ValueError, TypeError):
            found = BPETokenizer.gpt2() if name == "gpt2" else BPETokenizer.load(name)
            if found.fingerprint == manifest["fingerprint"]:
                return found


# %%
print(find_tokenizer(config.data, manifest).vocab_size, "tokens, with the right fingerprint")
print("another manifest:", find_tokenizer(config.data, manifest | {"fingerprint": "of another text"}))

# %% [markdown]
r"""
Two more short functions open the data. `open_stream` reads the training shards as batches: whole documents if `data.documents` is set, else a continuous text (chapter 03). `hold_out` takes the first tokens of the validation shards, as many as `eval.tokens` says.
We make a batch of each to see that the shapes are right.
"""


# %%
#| export
def open_stream(config: Config, device: torch.device) -> BatchStream:
    """The run's batches, of data.dir's training shards."""
    kind = DocumentStream if config.data.documents else BatchStream
    shards, B, T = open_shards(config.data.dir, "train"), config.train.micro_batch, config.model.block_size
    return kind(shards, B, T, seed=config.run.seed, device=device)


def hold_out(folder: str, tokens: int) -> list[np.ndarray]:
    """The first so many tokens of the validation shards."""
    parts = []
    for path in open_shards(folder, "val"):
        parts.append(read_shard(path)[:tokens])
        tokens -= len(parts[-1])
    return parts


# %%
x, y = open_stream(config, "cpu").next_batch()
held = hold_out(config.data.dir, 3000)
print(f"a micro-batch of {tuple(x.shape)}; {sum(map(len, held)):,} tokens to validate on")

# %% [markdown]
r"""
## The model

A new model has the configuration's shape and the data's vocabulary. It has a generator of its own, so that its first weights depend on the seed and on nothing that ran before. A run can also begin with a
model that is already trained (`init_from`, chapter 19). The function `load_given` for that case is in the appendix. `build_optimizer` reads the numbers of chapter 15's optimizer from the configuration. The output shows its two groups of parameters: with weight decay and without.
"""


# %%
#| export
def new_shape(config: Config, vocab_size: int) -> GPTConfig:
    """The shape of a new model."""
    return config.model.shape(vocab_size)


def build_model(config: Config, manifest: dict) -> GPT:
    """The model before its first step: new, or init_from's with this run's dropout, in float32, on the CPU."""
    if config.init_from is not None:
        return load_given(config, manifest)
    shape = new_shape(config, manifest["vocab_size"])
    return scale_init(GPT(shape, torch.Generator().manual_seed(config.run.seed)))


def build_optimizer(config: Config, model: GPT) -> torch.optim.Optimizer:
    """Chapter 15's optimizer, as the configuration has it."""
    o, train = config.optim, config.train
    options = {"betas": o.betas, "weight_decay": o.weight_decay, "compiled": train.compile}
    return make_optimizer(model, o.lr, train.dtype, **options)


# %%
model = build_model(config, manifest)
groups = build_optimizer(config, model).param_groups
print(f"{model.config.n_layer} layers of width {model.config.n_embd}; weight decay", end=" ")
print(*(f"{group['weight_decay']:g} for {len(group['params'])} tensors" for group in groups), sep=", ")

# %% [markdown]
r"""
Weight decay acts on matrices and not on biases and gains, as in chapter 15.

## The run in memory

Chapter 17's dataclass `Training` held the four things that a step changes, and a few settings. Now the settings are in one field, `config`. In a long run more things change than four: the number of updates, the steps that were left out and why, the best
validation loss so far, and the seconds spent. Again we keep all of them in one dataclass, so `Training` grows. The nine fields without a default are the parts of the run, made once. The others begin at zero or empty. In this sitting we use four of these: `step`, `updates`, `record` and `kept`; chapter 17e fills the rest. Why are they here already? Because a checkpoint must know
what to save, and its form should not change from sitting to sitting. We print their names in two groups.
"""


# %%
#| export trainer
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nanogpt import optim
from nanogpt.checkpoint import latest, load_state, prune, random_states, repair, save, set_random_states
from nanogpt.config import Config, config_dict, hook, keys, load_labs
from nanogpt.data import BatchStream

# %%
#| export trainer
from nanogpt.device import pick_device, seed_everything
from nanogpt.evaluate import evaluate
from nanogpt.metrics import span, step_line
from nanogpt.model import GPT
from nanogpt.precision import LossScaler, why_not
from nanogpt.sampling import complete
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import train_step
from nanogpt.weights import load_model


# %%
#| export trainer
#| grows Training
@dataclass
class Training:
    """A run in memory. `state_dict` holds all that steps change beside the weights: with both, a run goes on bit for bit."""

    config: Config
    device: torch.device
    tokenizer: BPETokenizer | None
    held: tuple  # the first eval.tokens of the validation shards, and the id between their documents
    model: GPT
    stepper: torch.nn.Module  # what a step calls: the model, or the same compiled
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
    notes: dict = field(default_factory=dict)  # by lab: what it remembers of the steps, in plain lists
    kept: Path | None = None  # the newest checkpoint
    longest: dict = field(default_factory=dict)  # seconds, of what `seconds` sums
    stopped: str | None = None  # why it ended before its last step
    judges: list[Callable] = field(default_factory=list)  # judge(run, line): why no update is made, or None
    reasons: list[Callable] = field(default_factory=list)  # reason(): why to end after this step, or None
    looks: list[tuple] = field(default_factory=list)  # (every so many steps, look(run): what joins the line)
    writers: list[Callable] = field(default_factory=list)  # write(line): beside the screen and metrics.jsonl

    @property
    def folder(self) -> Path:
        return Path(self.config.run.dir)


# %%
names = [f.name for f in fields(Training) if (f.default, f.default_factory) != (MISSING, MISSING)]
end = names.index("notes") + 1
print("in a checkpoint:", *names[:end])
print("only while the process runs:", *names[end:])

# %% [markdown]
r"""
The first group must be in a checkpoint. The second is only used while the process runs; its last four fields are lists of functions, to which labs add theirs.

`build_run` makes all the parts and puts them together. Two mistakes are refused here in one sentence: a precision that the device does not have (chapter 10's `why_not`), and samples (`eval.sample_every`) without a tokenizer. Where a lab builds a part in another way, `hook` of chapter 17c finds the lab's function. For our file it returns the
function that we have just written. A lab with a function `attach` (`load_labs` returns the labs of a configuration) gets the finished run and can add something to it.

The order matters in one place. The seed of PyTorch's global generator is set *last*. If it were set first, everything in between that draws random numbers would shift the numbers that dropout gets, for example a benchmark or a model of another size.
From this point on, only dropout draws from this generator.
"""


# %%
#| export trainer
#| blank build_run: data first; then tokenizer, held tokens, model, optimizer and stream; the seed last
def build_run(config: Config) -> Training:
    """All that a run needs, before its first step. ValueError where the device or the data cannot do it.

    held: what hold_out takes (nothing with eval.every=0), and the manifest's eot. build_model, build_optimizer and
    open_stream are asked for by `hook`; the model goes to the device, in train mode. stepper: torch.compile(model) with
    train.compile, else the model. scaler: a LossScaler for fp16, else None. A lab's `attach` is called with the run.
    """
    device = pick_device(config.run.device)
    if reason := why_not(config.train.dtype, device):
        raise ValueError(f"train.dtype: {reason}")
    labs = load_labs(config)
    # the data, and the tokenizer that made them
    manifest = ensure_data(config.data)
    tokenizer = find_tokenizer(config.data, manifest)
    if tokenizer is None and config.eval.sample_every:
        remedy = "name it in data.tokenizer (gpt2 must be in tiktoken's cache), or set eval.sample_every=0"
        raise ValueError(f"samples need the tokenizer that made {config.data.dir}; {remedy}")
    held_out = hold_out(config.data.dir, config.eval.tokens) if config.eval.every else []
    # the model on its device, and what a step calls
    model = hook(config, build_model)(config, manifest).to(device).train()
    stepper = torch.compile(model) if config.train.compile else model
    optimizer = hook(config, build_optimizer)(config, model)
    stream = hook(config, open_stream)(config, device)
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    parts = model, stepper, optimizer, stream, scaler
    run = Training(config, device, tokenizer, (held_out, manifest["eot"]), *parts)
    for lab in labs:
        if hasattr(lab, "attach"):
            lab.attach(run)
    seed_everything(config.run.seed)  # last, whatever has drawn numbers before: from now on only dropout does
    return run


# %%
run = build_run(config)
losses = [train_step(run.model, run.optimizer, [run.stream.next_batch()]).item() for _ in range(4)]
print(f"a run on {run.device}, and its first losses:", [round(loss, 3) for loss in losses])

# %% [markdown]
r"""
A configuration has become a run that trains: the loss begins near ln 1,024 = 6.93 and falls. Next we want to save the run. `state_dict` collects everything that steps change, beside the weights, and `load_state_dict` puts it back. For the model's optimizer, stream and loss scaler they call the methods of the same
name. The plain fields are listed in `COUNTED`. The configuration is saved as well, so that it can be compared when the run goes on, and so are the states of the random generators (chapter 17b).
"""


# %%
#| export trainer
COUNTED = "step", "updates", "bad", "record", "best", "skipped", "seconds", "notes"  # kept as they are


class Training(Training):
    def state_dict(self) -> dict:
        """For a checkpoint, beside the weights."""
        parts = {"optimizer": self.optimizer, "data": self.stream, "scaler": self.scaler}
        state = {name: part and part.state_dict() for name, part in parts.items()}
        state |= {name: getattr(self, name) for name in COUNTED} | {"config": config_dict(self.config)}
        return state | {"random": random_states(self.device)}

    def load_state_dict(self, state: dict) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.stream.load_state_dict(state["data"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        for name in COUNTED:
            setattr(self, name, state[name])
        self.skipped, self.seconds = Counter(state["skipped"]), Counter(state["seconds"])
        set_random_states(state["random"], self.device)


# %%
run = build_run(config)
print("a checkpoint holds the weights and:", *run.state_dict())

# %% [markdown]
r"""
## One step, from the configuration

Chapter 17's `one_step` and `save_checkpoint` read fields that are gone, so they are the next to grow. The learning rate comes first. The configuration can ask for one of chapter 15's three schedules, and `learning_rate` computes the rate of any update. We print it at three places of `tiny`, whose schedule is wsd (warm up, stay, decay).
"""


# %%
#| export trainer
#| blank learning_rate: ask the schedule of chapter 15 (of "constant", only warm_up) and multiply by the configured rate
def learning_rate(config: Config, updates: int) -> float:
    """The rate of the next update, after so many updates. The schedule gets all that config.optim has for it."""
    o, steps = config.optim, config.train.max_steps
    if o.schedule == "cosine":
        return o.lr * optim.cosine(updates, steps, warmup=o.warmup, minimum=o.minimum)
    if o.schedule == "wsd":
        return o.lr * optim.wsd(updates, steps, warmup=o.warmup, decay=o.decay, minimum=o.minimum)
    return o.lr * optim.warm_up(updates, o.warmup)


# %%
places = 0, config.train.max_steps // 2, config.train.max_steps - 1
print(*(f"update {n}: {learning_rate(config, n):.1e}" for n in places), sep="; ")

# %% [markdown]
r"""
The rate rises to 5e-04 in twenty updates, stays there, and is nearly 0 at the end.

`one_step` takes all micro-batches of an update, and passes the precision and the clipping on to `train_step`. `save_checkpoint` saves the new state. If the run goes on from the checkpoint of this step, it is there already and is not written again. `grown` shows what has changed in `one_step`.
"""


# %%
#| export trainer
#| grows one_step, save_checkpoint
def one_step(run: Training) -> dict:
    """Take a batch and update the weights: the step's line."""
    config, lr = run.config, learning_rate(run.config, run.updates)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    if config.data.overfit:
        run.stream.position = 0  # the first batch, again
    batches = [run.stream.next_batch() for _ in range(config.micro_batches)]
    loss = train_step(run.stepper, run.optimizer, batches, config.train.dtype, config.optim.clip, run.scaler)
    run.step += 1
    run.updates += 1
    return {"step": run.step, "loss": loss.item(), "lr": lr}


def save_checkpoint(run: Training) -> None:
    """Write a checkpoint of this step, whole or not at all, if there is none yet; old ones are deleted."""
    folder = run.folder / f"step_{run.step:06d}"
    if run.kept != folder:
        run.kept = save(run.folder, run.step, run.model, run.state_dict(), run.tokenizer)
        prune(run.folder, run.config.run.keep, run.step)


# %%
grown("one_step", "17d")

# %% [markdown]
r"""
## What may change on the way

The same command starts a run and goes on with it. So the second call may have another configuration than the first one: somebody has edited the file, or added a word to the command line. What happens then, if nobody compares the two? We try it. A run makes 30 steps, and we copy its weights and its state. `changed_run` builds a run
with one key changed and gives it the copy. Then it makes the next ten steps, and we compare their losses with those of the run that simply went on.
"""


# %%
def losses(run: Training, n: int) -> list[float]:
    """Of the next n steps."""
    return [one_step(run)["loss"] for _ in range(n)]


run = build_run(config)
losses(run, 30)
weights, state = copy.deepcopy(run.model.state_dict()), copy.deepcopy(run.state_dict())
went_on = losses(run, 10)


def changed_run(change: str) -> Training:
    """A run with another configuration that takes over the weights and the state. Nobody compares."""
    run = build_run(load_config("tiny", [*mine, change]))
    run.model.load_state_dict(weights)
    run.load_state_dict(copy.deepcopy(state))
    return run


# %% [markdown]
r"""
*Predict.* We change one of these keys at a time: the seed, the weight decay (from 0.01 to 0.9), the learning rate (four times as high), dropout (from 0.1 to 0.5), the number of heads (half), the number of layers (from 2 to 3), and the rows of a micro-batch (from 2 to 4). How many of the seven changes raise an error? And how many have no effect at all?
"""

# %%
predict("17d.1", "of seven changes, raise an error if nobody compares", guess=None)
predict("17d.2", "of seven changes, have no effect at all", guess=None)

# %%
CHANGES = """run.seed=7 optim.weight_decay=0.9 optim.lr=2e-3 model.dropout=0.5 model.n_head=2 model.n_layer=3
train.micro_batch=4"""
found = {}
for change in CHANGES.split():
    try:
        new = losses(changed_run(change), 10)
    except RuntimeError:
        found[change] = "an error"
        continue
    apart = [n for n, (ours, theirs) in enumerate(zip(new, went_on), 1) if ours != theirs]
    found[change] = "no effect"
    if apart:
        mean = (sum(new) - sum(went_on)) / 10
        found[change] = f"loss {apart[0]} is the first that differs, the mean of the ten by {mean:+.3f} nats"
for change, what in found.items():
    print(f"{change:24} {what}")
answer("17d.1", list(found.values()).count("an error"))
answer("17d.2", list(found.values()).count("no effect"))

# %% [markdown]
r"""
Only the third layer raises an error: the checkpoint has no weights for it. The seed and the weight decay do *nothing*. AdamW's state contains its betas and its decay, the stream's state contains the seed, and dropout's generator is put back as well. So the file says 0.9, the run goes on with 0.01, and whoever reads the file later believes it.

The other four changes have an effect, and none of them raises an error. The new rate shows from loss 2 on, because loss 1 is computed before the first update. Only the stronger dropout looks bad, with 0.38 nats more. The higher rate even looks like progress, with 0.31 nats less. Half as many heads take the same matrices (17b) and change the mean loss by 0.005: nobody would notice, and it is another model.

So the trainer must compare the configurations itself. Some keys belong to the run's identity: the model's shape, the learning rate, the seed. A loss curve whose first half has one learning rate and whose second half has another is the curve of no run that anybody can
repeat. Such a change is refused, and also one that would do nothing. Other keys say where the run is stored, how often it is validated, how a batch is divided, and when a step is left out. They may change, and the run prints that they did. This is a compromise. A machine with less memory needs a smaller `train.micro_batch`, and with dropout this gives other random numbers for the same batch, as the last line above
shows. And `train.skip_spikes` decides which updates are made. Is it really dropout that makes the difference, and not the division of the batch? The control is the same change without dropout:
"""

# %% tags=["nbval-ignore-output"]
two, four = (
    losses(build_run(load_config("tiny", [*mine, "model.dropout=0", f"train.micro_batch={rows}"])), 10)
    for rows in (2, 4)
)
largest = max(abs(a - b) for a, b in zip(two, four))
print(f"without dropout, 2 or 4 rows: the losses differ by {largest:.0e} nats at most")
assert largest < 1e-4, "the batch itself depends on how it is divided"

# %% [markdown]
r"""
A millionth: only the sums are in another order. So it is dropout.

One key is in between. The number of steps may change, because a run that goes well is often extended. But a schedule that falls towards the last step then has another rate from here on. The trainer of chapter 17e prints both
rates if the rate rises.

`refuse_changes` follows two lists. A key may change if it begins with one of the words in `FREE` and is not in `FIXED`. The two configurations are compared key by key. A checkpoint may be older than a key, and then the key had its default.
"""


# %%
#| export trainer
FREE = "run.", "eval.", "train.", "parallel.", "data.dir", "data.source"  # may change on a run's way
FIXED = "run.seed", "train.batch_tokens", "train.dtype", "eval.tokens"  # though not these


def refuse_changes(config: Config, saved: dict) -> None:
    """ValueError for a key that cannot change within a run; one printed line for those that can, and did."""
    changed, default = {}, config_dict(Config())
    for key in keys():
        section, _, name = key.rpartition(".")
        parts = (part.get(section, {}) if section else part for part in (config_dict(config), saved, default))
        ours, theirs, usual = parts
        then = theirs.get(name, usual[name])  # a checkpoint that is older than the key has its default
        if ours[name] != then:
            changed[key] = f"{key}={ours[name]} (was {then})"
    for key, text in changed.items():
        if key in FIXED or not key.startswith(FREE):
            raise ValueError(f"the run in {config.run.dir} cannot go on with {text}; choose another run.dir")
    if changed:
        print("changed since the checkpoint:", ", ".join(changed.values()))


# %%
free = [key for key in keys() if key.startswith(FREE) and key not in FIXED]
print(f"{len(free)} of {len(keys())} keys may change")

# %% [markdown]
r"""
25 of the 62 keys may change: those that say where the run lives, how long it goes on, what is measured on the way, and how the work is divided. The model and the optimizer are fixed. Of the data, only the folder and its source may change. Now our seven changes again, with one more that is harmless:
"""

# %%
saved = config_dict(config)
for change in ["eval.every=10", *CHANGES.split()]:
    try:
        refuse_changes(load_config("tiny", [*mine, change]), saved)
    except ValueError as error:
        print("refused:", str(error).replace(str(RUNS), "…").partition(";")[0])

# %% [markdown]
r"""
Two changes are only announced: how often the run is validated, and the micro-batch. The other six are refused in one sentence that names the key, the new value and the old one. The remedy is always the same: a run with another learning rate is another run, and it gets a folder of its own.
What do others do? nanoGPT takes six numbers of the model's shape from the checkpoint, whatever the new configuration says, and the learning rate from the new configuration, whatever the checkpoint says. The weight decay comes from the checkpoint again, with the optimizer's state. None of this is printed.

## Going on

`resume` puts the pieces together. It takes a new run to where its newest checkpoint is. It finds the newest complete checkpoint (`latest`, chapter 17b), compares the configurations, and puts the weights and the state back. If there is no checkpoint, the run stays at its beginning. At the end `clean_up` removes what a kill may have left in the folder: a
checkpoint that is only half written, and lines of steps that will be made again. From now on a checkpoint is written before its step's line, and the unfinished line is part of it (the field `record`). So the line of that step may be in the file already, with a validation that the checkpoint does not have. `clean_up` returns this line, and the run
goes on with it.
"""


# %%
#| export trainer
def load_weights(run: Training, folder: Path) -> None:
    """Give the run's model the weights of a checkpoint."""
    run.model.load_state_dict(load_model(folder).state_dict())


def clean_up(folder: Path, step: int) -> dict | None:
    """Remove what a kill has left: half a checkpoint, and lines from the step on; the step's own line, if it was there."""
    for aside in folder.glob(".step_*.tmp"):
        shutil.rmtree(aside)
    return repair(folder / "metrics.jsonl", step)


# %%
#| export trainer
#| grows resume
#| blank resume: the newest checkpoint, if there is one: compare the configurations, take its weights and its state
def resume(run: Training) -> Training:
    """Take the run to where its newest whole checkpoint is; without one it stays at its beginning. Returns the run.

    It prints `going on after step 20, from` and the checkpoint, which becomes run.kept. load_weights is asked for by
    `hook`. In any case clean_up comes last: the line that it returns, if there is one, takes the place of run.record.
    """
    newest = latest(run.folder)
    if newest:
        state = load_state(newest)
        refuse_changes(run.config, state["config"])
        hook(run.config, load_weights)(run, newest)
        run.load_state_dict(state)
        run.kept = newest
        print(f"going on after step {run.step}, from {newest}")
    run.record = clean_up(run.folder, run.step) or run.record
    return run


# %% [markdown]
r"""
*Check.* The law of chapter 17b must hold for a run from a file, too. We make some steps, write a checkpoint, and make four steps more. Then we build the run anew, resume from the checkpoint and make the same four steps. Dropout is on, so the generator's state matters.
"""


# %%
run = build_run(config)
losses(run, 6)
save_checkpoint(run)
went_on = losses(run, 4)
assert losses(resume(build_run(config)), 4) == went_on, "the resumed run is not the one that went on"
print([round(loss, 3) for loss in went_on])

# %% [markdown]
r"""
The four losses are equal to the last bit: the weights, the optimizer, the place in the data and dropout's generator all came back.

## The same call goes on

Now the loop. `look` and `fit` are those of chapter 17, with two changes. They read from the configuration how often to measure the loss, to write a sample, to save and to print. And `fit` saves *before* it looks: a look needs memory of its own, and it may fail where a step did not. The line of the step is written last. So a checkpoint
contains a line that is not finished, and a run that goes on from it begins by finishing this line.
"""


# %%
#| export trainer
#| grows introduce, look
def introduce(run: Training) -> None:
    """Two lines: what is about to run, on what, and where it is kept."""
    began = f"goes on after step {run.step}" if run.step else "a new run"
    train, parameters = run.config.train, sum(p.numel() for p in run.model.parameters())
    print(f"{run.folder.name}: {began}; {parameters:,} parameters in {train.dtype} on {run.device}")
    tokens = train.max_steps * train.batch_tokens
    print(f"{train.max_steps:,} steps of {train.batch_tokens:,} tokens, {tokens:,} in all")


def look(run: Training) -> dict:
    """What is due after this step, of the validation loss and a sample of the model's text: for the step's line."""
    config, line = run.config, {}
    last = run.step >= config.train.max_steps
    if due(config.eval.every, run.step, last):
        line["val_loss"] = evaluate(run.model, *run.held, precision=config.train.dtype)
    if due(config.eval.sample_every, run.step, last):
        line["sample"] = complete(run.model, run.tokenizer, config.eval.prompt, 50)
    return line


# %%
#| export trainer
#| grows fit
def fit(run: Training) -> Training:
    """Train a run, or go on with it, to its last step. Each step's line goes to metrics.jsonl."""
    introduce(resume(run))
    config, steps = run.config, run.config.train.max_steps
    often = config.run.checkpoint_every, config.eval.every, config.eval.sample_every
    first, began = run.step, time.monotonic()
    run.folder.mkdir(parents=True, exist_ok=True)
    with open(run.folder / "metrics.jsonl", "a", encoding="utf-8") as metrics:
        while run.step < steps or run.record:
            line = run.record = run.record or one_step(run)
            last = run.step >= steps
            # the checkpoint comes first: a look may run out of memory
            if last or any(due(every, run.step) for every in often):
                save_checkpoint(run)
            line |= look(run)
            if "val_loss" in line or due(config.run.log_every, run.step, last):
                left = (time.monotonic() - began) / max(1, run.step - first) * (steps - run.step)
                print(step_line(line, steps), "|", span(left), "left")
            print(json.dumps(line), file=metrics, flush=True)
            run.record = None
    return run


# %% tags=["nbval-ignore-output"]
changes = [f"run.dir={RUNS}/short", "train.max_steps=120", "eval.every=40", "eval.sample_every=120"]
short = load_config("tiny", [*mine, *changes])
run = fit(build_run(short))
print(read_metrics(run.folder)[-1]["sample"])

# %% [markdown]
r"""
This is the complete way: a file, a run, a trained model. The validation loss was 4.46 after 40 steps and is 2.66 after 120.

And the promise of this sitting? We make the same run in another folder and close the laptop's lid after step 60, as in chapter 17: the stream raises an exception. The newest checkpoint is that of step 40. Then the same call again.
"""


# %% tags=["nbval-ignore-output"]
class Lid(Exception):
    """Somebody closed the laptop."""


def closing_lid(run: Training, step: int) -> Training:
    """The run, whose stream fails after so many steps."""
    real = run.stream.next_batch

    def next_batch():
        if run.step == step:
            raise Lid
        return real()

    run.stream.next_batch = next_batch
    return run


halves = load_config("tiny", [*mine, *changes, f"run.dir={RUNS}/halves"])
with contextlib.suppress(Lid):
    fit(closing_lid(build_run(halves), 60))
print(f"the lid is closed; {len(read_metrics(halves.run.dir))} lines are written\n")
fit(build_run(halves))
same = read_metrics(halves.run.dir) == read_metrics(short.run.dir)
print("\nall lines, with validation losses and the sample, are those of the run without a break:", same)
assert same, "the run that was interrupted is another run"

# %% [markdown]
r"""
The second call is the first call, word by word: `fit(build_run(halves))`. It found the checkpoint of step 40, cut off the lines that came after it, and made these steps again. All 120 lines are equal to those of the run without a break: the losses, the rates, the validation losses and the sample.

This is the end of the sitting's idea. What follows is code that the package needs: how data are made, which checkpoint a command takes, and the command line.

## Appendix: which checkpoint?

A run's folder holds several checkpoints. It would be tiresome to type the number of a step. So the commands `sample` and `eval` should accept the folder itself, for its newest checkpoint, and `runs/x/best` for the checkpoint with the lowest validation
loss. (So far the trainer may have deleted that one. From 17e on it keeps it.) `pick_checkpoint` turns such a name into the folder of one checkpoint.

Both commands read a model with chapter 08's `load`, so only this function has to grow. The rest of it is as before. `grown` shows the new lines.
"""


# %%
#| export checkpoint
from nanogpt.metrics import read_metrics


def pick_checkpoint(place: str | Path) -> Path:
    """The checkpoint of a run's folder: runs/x is its newest complete one, runs/x/best that of its lowest validation loss.

    A path that is no run's folder is returned unchanged.
    """
    folder = Path(place)
    home = folder.parent if folder.name == "best" else folder
    newest = latest(home)
    if newest is None or folder == home:
        return newest or folder
    seen = [line for line in read_metrics(home) if line.get("val_loss") is not None]
    if not seen:
        raise ValueError(
            f"{home} has no best checkpoint, since it was never validated; name {home} for its newest"
        )
    best = min(seen, key=lambda line: line["val_loss"])
    return home / f"step_{best['step']:06d}"


# %%
#| export pretrained
def is_ours(folder: Path) -> bool:
    """Whether save_model wrote the model in a folder, and not Hugging Face's library."""
    config = folder / "config.json"
    return config.is_file() and "model_type" not in read_json(config)


# %%
#| export labs.corpora.vocab
from nanogpt.pretrained import find_checkpoint


def words_beside(place: Path) -> Path | None:
    """The tokenizer beside a model's weights: our tokenizer.json, or the folder of a Hugging Face vocabulary. None if there is none."""
    if is_ours(place):
        own = place / "tokenizer.json"
        return own if own.exists() else None
    folder = find_checkpoint(place.as_posix())[0].parent
    return folder if any((folder / name).exists() for name in ("vocab.json", "tokenizer.json")) else None


def words_for(place: Path, named: str | None, rows: int) -> BPETokenizer:
    """The tokenizer of a model whose token table has so many rows: the one that is named, or the one beside its weights, or GPT-2's.

    ValueError if there is none, or if both are there and differ: an id would mean another word.
    """
    beside = words_beside(place)
    if named is None and beside is None and rows in (50257, 50304):  # GPT-2's, plain or padded
        named = "gpt2"
    if named is None and beside is None:
        raise ValueError(f"{place} has no tokenizer.json beside it; name one with --tokenizer")
    coder = read_tokenizer(named or beside)
    if named and beside and (own := read_tokenizer(beside).fingerprint) != coder.fingerprint:
        two = f"{place} has its own tokenizer, {own[:8]}, and {named} is another, {coder.fingerprint[:8]}"
        raise ValueError(f"{two}; leave out --tokenizer")
    return coder


# %%
as_module("labs.corpora.vocab")  # as the checkpoint will write it


# %%
#| export sampling
from nanogpt.pretrained import load_pretrained


# %%
#| export sampling
#| grows load
def load(checkpoint: str, tokenizer: str | None = None) -> tuple[GPT, BPETokenizer]:
    """Model and tokenizer of a model's or a run's folder, a Hugging Face folder or a name on the hub.

    tokenizer: gpt2, a tokenizer.json or a Hugging Face folder, where none is beside the weights, and GPT-2's does not fit.
    """
    folder = pick_checkpoint(checkpoint)
    if not folder.exists() and len(folder.parts) > 2:  # a name on the hub has two parts at most
        raise FileNotFoundError(f"{folder} is not there; chapter 07 writes data/built/model (course run 07)")
    model = load_model(folder) if is_ours(folder) else load_pretrained(checkpoint)
    vocab = import_module("nanogpt.labs.corpora.vocab")
    return model, vocab.words_for(folder, tokenizer, model.config.vocab_size)


# %%
grown("load", "17d")


# %%
print(pick_checkpoint(RUNS / "short").name)

# %% [markdown]
r"""
`load` works for a run's folder now: its newest checkpoint is that of step 120.

## Appendix: where the time goes

`timed` is a small helper for chapter 17e. It adds up the seconds that a block of code takes, and remembers the longest.
"""


# %%
#| export trainer
class Training(Training):
    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the block's seconds."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self.seconds[what] += seconds
        self.longest[what] = max(seconds, self.longest.get(what, 0))


# %%
run = build_run(config)
with run.timed("nothing"):
    pass
print(run.folder.name, *run.seconds)

# %% [markdown]
r"""
## Appendix: making the data

If `data.dir` has no shards, `make_data` makes them: from the course's stories, or from a text, which chapter 16's `prepare_text` cuts into shards. If the file gives the tokenizer as a number, this is the size of a vocabulary, and `prepare_text` trains a tokenizer of this size first. If the folder has shards already, `refuse_other_data` compares them with what the configuration
names. Without this, `data.source=german.txt` in a folder of English shards would train on English, and nobody would notice. All of it is in a lab, because a run that names no source does not need it.
"""


# %%
#| export labs.corpora.make
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from nanogpt.config import Data
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.labs.corpora.text import prepare_text
from nanogpt.labs.corpora.vocab import read_tokenizer
from nanogpt.shards import file_sha256, load_manifest
from nanogpt.tokenizer import BPETokenizer

LARGE = 1 << 28  # bytes of a text that are not read as a whole
NO_TEXT = {".jsonl", ".ndjson", ".csv", ".parquet", ".gz", ".zst"}  # the ends of such files' names


def is_small(source: Path) -> bool:
    """Whether a source is one text that can be read as a whole."""
    plain = source.is_file() and source.suffix.lower() not in NO_TEXT
    return plain and source.stat().st_size < LARGE


def origin(manifest: dict) -> str | None:
    """The name of what shards were made of: "stories", a file's or a folder's; None if another program made them."""
    source = manifest["source"]
    if isinstance(source, dict):
        return "stories"
    if source.endswith(", adopted"):
        return None
    return source.rsplit(", ", 2)[0] if "chunk" in manifest else source  # prepare adds files and bytes


def refuse_other_data(data: Data, manifest: dict) -> None:
    """ValueError if shards were made of something else than the configuration names. What a manifest does not say is not compared."""
    source, made = Path(data.source), manifest | {"source": origin(manifest)}
    asked = {"source": source.resolve().name if "chunk" in manifest else source.name}
    if data.source != "stories":
        asked |= {"val": data.val, "paragraphs": data.paragraphs}
        if is_small(source) and "chunk" not in manifest:
            asked["source_sha256"] = [file_sha256(source)]
        if isinstance(data.tokenizer, int):
            asked["vocab_size"] = data.tokenizer
        elif data.tokenizer != "gpt2":
            asked["fingerprint"] = read_tokenizer(data.tokenizer).fingerprint
        else:
            asked["vocab_size"] = 50257
            with suppress(OSError):  # its file may be out of reach, and training needs it for samples alone
                asked["fingerprint"] = BPETokenizer.gpt2().fingerprint
    for key, now in asked.items():
        if made.get(key) not in (None, now):
            remedy = "choose another data.dir, or set data.source=null to train on what is there"
            raise ValueError(f"{data.dir} holds shards whose {key} is {made[key]}, not {now}; {remedy}")


def make_data(data: Data) -> None:
    """Make the shards of data.dir from data.source: the course's stories, or a text with a tokenizer of its own.

    Where there are some, they must be of this source (ValueError).
    """
    source, folder = Path(data.source), Path(data.dir)
    if (folder / "manifest.json").exists():
        refuse_other_data(data, load_manifest(folder))
    elif data.source == "stories":
        ensure_corpus(folder)
    else:
        if find_spec("nanogpt.labs.corpora.sources"):  # chapter 16a, which says what is odd about a text
            import_module("nanogpt.labs.corpora.sources").print_remarks(source)
        if is_small(source):
            prepare_text(source, folder, data.tokenizer, data.val, data.paragraphs)
        else:
            make_large(data)


# %%
as_module("labs.corpora.make")  # as the checkpoint will write it
german = RUNS / "german.txt"
german.write_text("Der Hund lief durch den Garten.\n\nEr suchte seinen Ball.\n\n" * 20, encoding="utf-8")
for place in ("stories", "german"):
    try:
        made = ensure_data(Data(dir=str(RUNS / place), source=str(german), tokenizer=260))
        tokens = made["splits"]["train"]["tokens"]
        print(f"{place}: {tokens} tokens of a vocabulary of {made['vocab_size']}")
    except ValueError as error:
        print(str(error).replace(str(RUNS), "…"))


# %% [markdown]
r"""
`make_large` prepares what `make_data` leaves to it, with the optional sittings 16a and 16b. If the tokenizer is given as a number, it is trained on the first 16 MB of the text.
"""


# %%
#| export labs.corpora.make
from nanogpt.labs.corpora.text import LEARN, to_learn_from


def make_large(data: Data) -> None:
    """Make the shards of data.dir from data.source: a file of any kind and size, or a folder of them."""
    source, folder, tokenizer = Path(data.source), Path(data.dir), data.tokenizer
    if isinstance(tokenizer, int):
        files = import_module("nanogpt.labs.corpora.sources")  # of chapter 16a
        spans = next(files.cut_files(files.find_files(source), LEARN, data.paragraphs))
        texts = (text for span in spans for _, block in files.blocks_in(span, 1 << 20) for text in block)
        BPETokenizer.train(to_learn_from(texts), tokenizer).save(tokenizer := folder / "tokenizer.json")
    lab = import_module("nanogpt.labs.corpora.prepare")  # of chapter 16b
    lab.prepare(source, folder, tokenizer, data.val, 0.0, data.paragraphs)


# %% [markdown]
r"""
## Appendix: beginning with a trained model

A run may begin with a model that is already trained: one of ours, or one of Hugging Face's. Two mistakes would train without an error and give a useless model, so they are refused. If the model
learned another vocabulary, every id means another word. And if the configuration asks for four layers and the model has two, the run would have two. (Chapter 17c's `refuse_other_shape` refuses the second mistake, in a dry run as well.)

How can a run know what the model has learned? Most folders have a tokenizer beside the weights (`words_beside`), and its fingerprint must be that of the shards. Where there is none, only the number of tokens can be compared. It may be larger than that of the shards by some rows of
padding (chapter 13).

`init_from` goes through `pick_checkpoint` as well, so it may be a checkpoint, or the folder of a run. The dry run finds its model in the same way.
"""


# %%
#| export
def refuse_other_words(config: Config, folder: Path, manifest: dict) -> None:
    """ValueError if init_from has another tokenizer than the one that made the shards: ids would mean other words."""
    vocab = import_module("nanogpt.labs.corpora.vocab")
    if (words := vocab.words_beside(folder)) is None:
        return
    if (theirs := vocab.read_tokenizer(words).fingerprint) != manifest["fingerprint"]:
        made = f"{config.data.dir} was made with tokenizer {manifest['fingerprint'][:8]}"
        learned = f"init_from={config.init_from} learned {theirs[:8]}"
        raise ValueError(f"{made}, {learned}; set data.tokenizer={words} and a new data.dir")


def refuse_other_size(config: Config, tokens: int, needed: int) -> None:
    """ValueError if init_from's model has another number of tokens than the shards, up to 127 rows of padding."""
    if not needed <= tokens < needed + 128:
        two = f"init_from={config.init_from} has {tokens:,} tokens, {config.data.dir} {needed:,}"
        raise ValueError(f"{two}; set data.tokenizer to the model's, and a new data.dir")


# %%
#| export
def load_given(config: Config, manifest: dict) -> GPT:
    """The model of init_from with this run's dropout, in float32. ValueError if the run cannot begin with it."""
    folder = pick_checkpoint(config.init_from)
    refuse_other_words(config, folder, manifest)
    trained = load_model(folder) if is_ours(folder) else from_hf(config.init_from)
    refuse_other_shape(config, trained.config)
    refuse_other_size(config, trained.config.vocab_size, manifest["vocab_size"])
    model = GPT(replace(trained.config, dropout=config.model.dropout, flash=config.model.flash))
    model.load_state_dict(trained.float().state_dict())
    return model


# %%
#| export labs.plan.dryrun
#| grows folder_of
def folder_of(init_from: str) -> Path:
    """The folder of the model that a run begins with; of a run, its newest checkpoint, or its best as runs/x/best."""
    return pick_checkpoint(init_from)


# %%
begins = replace(config, init_from=str(RUNS / "short"))
print(build_model(begins, manifest).config.n_layer, "layers, as the checkpoint has")
try:
    build_model(replace(begins, model=replace(config.model, n_layer=7)), manifest)
except ValueError as error:
    print(str(error).replace(str(RUNS), "…"))


# %% [markdown]
r"""
## Appendix: several runs in one figure

A curve alone says little. So `python -m nanogpt plot RUN RUN` draws the loss, the norm, the learning rate and the throughput of several runs, each in one panel. Each step is drawn faintly, and the means of short stretches are
bold. A mean alone would hide a single step that took ten times as long. We draw two runs of twenty steps. The right panel shows the warm-up: the rates reach 2e-3 and 2e-4 at the last step. The loss comes down to 4.48 at the higher rate and to 6.03 at the lower.
"""


# %%
#| export labs.long_run.plot
import argparse
import math
from collections.abc import Sequence
from importlib import import_module
from statistics import fmean

from nanogpt.metrics import read_metrics


def column(lines: Sequence[dict], name: str) -> tuple[list[int], list[float]]:
    """Steps and values of those lines that have a finite number there."""
    known = {x["step"]: x[name] for x in lines if x.get(name) is not None and math.isfinite(x[name])}
    return list(known), list(known.values())


# %%
#| export labs.long_run.plot
PANELS = dict(loss="loss (nats)", norm="norm of the gradient", lr="learning rate", tokens_per_s="tokens/s")


def draw_run(ax, name: str, lines: Sequence[dict], color: str, label: str) -> None:
    """One run in one panel: faint step by step, bold as the means of about 100 stretches."""
    steps, values = column(lines, name)
    ax.plot(steps, values, color=color, alpha=0.3, lw=0.7)
    n = 1 if name == "lr" else max(1, len(steps) // 100)
    stretches = [slice(at, at + n) for at in range(0, len(steps), n)]
    ax.plot([fmean(steps[s]) for s in stretches], [fmean(values[s]) for s in stretches], color, label=label)
    if name == "loss":
        ax.plot(*column(lines, "val_loss"), "o", color=color, ms=4)
        ax.plot(*column([line for line in lines if "skipped" in line], name), "x", color=color)
        for floor in column(lines, "floor")[1][-1:]:
            ax.axhline(floor, color=color, ls=":")


# %%
#| export labs.long_run.plot
def draw_runs(runs: dict[str, Sequence[dict]]):
    """A figure of several runs by name: loss, norm, learning rate and throughput against the step, as far as known.

    Dots are validation losses, crosses updates that were left out, a dotted line the floor where a run knows one.
    """
    from matplotlib.figure import Figure

    values = {name: [v for lines in runs.values() for v in column(lines, name)[1]] for name in PANELS}
    shown = [name for name in PANELS if values[name]] or ["loss"]
    fig = Figure(figsize=(10, 3.25 * math.ceil(len(shown) / 2)), layout="constrained")
    for number, name in enumerate(shown, 1):
        ax = fig.add_subplot(math.ceil(len(shown) / 2), 2, number, xlabel="step", ylabel=PANELS[name])
        for color, (label, lines) in enumerate(runs.items()):
            draw_run(ax, name, lines, f"C{color}", label)
        low, high = min(values[name], default=0), max(values[name], default=0)
        if low > 0 and (name == "norm" or (name == "loss" and high > 20 * low)):
            ax.set_yscale("log")
        ax.set_ylim(bottom=0 if name == "tokens_per_s" else None)
        ax.grid(alpha=0.3)
    fig.axes[0].legend()
    return fig


# %%
runs = {}
for lr in (2e-3, 2e-4):
    run = build_run(load_config("tiny", [*mine[:2], "run.device=cpu", f"optim.lr={lr}"]))
    runs[f"rate {lr:g}"] = [one_step(run) for _ in range(20)]
show(draw_runs(runs), alt="The loss of two runs: at the lower rate it falls more slowly.")


# %%
#| export labs.long_run.plot
def read_lines(path: str) -> list[dict]:
    """The steps of a run's folder or its metrics.jsonl; of llm.c's main.log by a lab, which is loaded for that (chapter 22b)."""
    if path.endswith(".log"):
        return import_module("nanogpt.labs.formats.llmc").read_log(path)
    return read_metrics(path)


# %%
#| export labs.long_run.plot
def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt plot`."""
    parser = argparse.ArgumentParser(description="Draw loss, norm, rate and throughput of runs together.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder, a metrics.jsonl or llm.c's log")
    parser.add_argument("--out", default="runs.png", metavar="FILE", help="a .png, .svg or .pdf (runs.png)")
    return parser


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt plot`, its options parsed."""
    fig = draw_runs({name: read_lines(name) for name in args.runs})
    fig.savefig(args.out, dpi=120)
    print(f"{', '.join(args.runs)}: drawn to {args.out}")


# %% [markdown]
r"""
## Appendix: the command line

Each command is a module with two functions: `parser()` says which options it has, and `run(args)` does the work. `python -m nanogpt NAME` finds the module in a table. A module is imported only when its command is
given, so that the list of commands needs no PyTorch. The table names all commands of the course, and the help lists them with their chapters. One that is not written yet says so when it is called; `train` comes in 17e.

All commands end in the same way, so that a script can rely on the exit code: 0 when all went well, 2 after one line that says what is wrong. A command may use 1 for an end that is no error: `plan` if the run does not fit (chapter 22), `train` if the run stopped early (17e).
"""

# %%
#| export cli
import difflib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

# %%
#| export cli
COMMANDS = {
    "prepare": ("nanogpt.labs.corpora.prepare", "text, JSONL, CSV or parquet -> shards (chapter 16b)"),
    "plot": ("nanogpt.labs.long_run.plot", "loss, norm, rate and throughput of several runs (chapter 17d)"),
    "compare": ("nanogpt.labs.long_run.compare", "where two runs part, and by how much (chapter 17f)"),
    "train": ("nanogpt.trainer", "a run from a YAML file, started or gone on with (chapter 17e)"),
    "sample": ("nanogpt.sampling", "continue a prompt with a trained model (chapter 08)"),
    "ladder": (
        "nanogpt.labs.ladder.ladder",
        "every speed-up on this machine, one on the other (chapter 14b)",
    ),
    "plan": ("nanogpt.labs.plan.plan", "memory, messages, time and cost of a run by formula (chapter 22a)"),
    "eval": ("nanogpt.labs.evals.command", "how good a checkpoint is, by several measures (chapter 18b)"),
    "drill": ("nanogpt.labs.drills.ddp", "what several processes do together, under torchrun (chapter 20)"),
    "flight": ("nanogpt.labs.drills.flight", "what each rank of a deadlock waits for (chapter 20b)"),
}
USAGE = """usage: python -m nanogpt COMMAND [options]
{commands}

  python -m nanogpt COMMAND --help    options and examples of a command
Exit codes: 0 all went well, 1 the answer is no, 2 something is wrong (one line says what), 130 or 143 stopped (Ctrl-C)."""


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
            made, chapters = f"#| doc {module}:", Path(__file__).parent.parent.glob("notebooks/*.ipynb")
            owner = [c.stem.partition("_")[0] for c in chapters if made in c.read_text(encoding="utf-8")]
            remedy = f"`course restore {owner[0]}` brings it back" if owner else "copy it here again"
            text = f"nanogpt/{module.replace('.', '/')}.py is missing; {remedy}"
    return " ".join(text.split())


# %%
print(in_one_line(FileNotFoundError(2, "No such file or directory", "my.yaml")))
print(in_one_line(ModuleNotFoundError(name="yaml")))


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
    """Call it; 0, the code of its SystemExit, or 2 or 130 after one line on stderr.

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
    except SystemExit as end:  # --help, or a code of the command's own
        return end.code or 0
    return 0


# %%
with contextlib.redirect_stderr(sys.stdout):
    print("exit code", outcome("demo", partial(int, "seven")))


# %%
#| export cli
def at_home(word: str) -> str:
    """A word of a command, with the home folder for a ~: in --out=~/x and run.dir=~/x no shell puts it in."""
    key, equals, value = word.rpartition("=")
    return word if "prompt" in key else key + equals + os.path.expanduser(value)


def run_command(name: str, argv: list[str]) -> int:
    """`python -m nanogpt name *argv`, called from Python; the exit code."""

    def refuse(message: str):
        raise ValueError(f"{message} (python -m nanogpt {name} --help)")

    def call():
        module = importlib.import_module(COMMANDS[name][0])
        if not hasattr(module, "parser"):  # chapter 17 begins the trainer, and 17e writes its command
            raise ValueError(f"not written yet: {COMMANDS[name][1]}")
        parser = module.parser()
        parser.prog, parser.error = f"python -m nanogpt {name}", refuse
        words = [word if before == "--prompt" else at_home(word) for before, word in zip(["", *argv], argv)]
        module.run(parser.parse_args(words))

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
*Check.* We run four commands that end badly, the last by Ctrl-C. Each of them prints one line on stderr, which we show here.
"""

# %%
with contextlib.redirect_stderr(sys.stdout):
    codes = [main(["pilot"]), main(["sample", "--tokens"]), main(["sample", "--checkpoint", "no/such/run"])]
    codes += [outcome("sample", partial(signal.raise_signal, signal.SIGINT))]
print("exit codes:", *codes)
assert codes == [2, 2, 2, 128 + signal.SIGINT], f"exit codes {codes}"

# %% [markdown]
r"""
The last code is 128 plus the number of the signal, which is 2 for Ctrl-C. A shell gives the same code to a program that a signal has ended. A loop in a bash script does not stop by itself at such a code: write `|| break`, or `set -e` above it.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("17d")

# %%
checkpoint("17d")

# %% [markdown]
r"""
The parts are connected, and a file has become a trained model. Chapter 17e lets such a run work alone through the night.

## Exercises

`course exercises release 17` writes this one, and those of the other sittings, as a notebook to `released/`; `course check 17` runs their visible checks.

- **17-6** What may change on the way, 10 minutes: a run goes on with half the memory.

To explore:

1. `FREE` lets `data.dir` change. What stops a run from going on with other shards? Check: move the shards, then change one.
   And put `optim.` into `FREE`: which of the keys of this section have an effect on a run that goes on? Check with `changed_run`.
2. Give `init_from` a model of another tokenizer. Check: one line, before anything is trained. Which file did it compare?

## Further reading

- Karpathy, [*nanoGPT*, `train.py`](https://github.com/karpathy/nanoGPT/blob/master/train.py), the branch `init_from == 'resume'`: what is taken from the checkpoint, and what from the command line.
- [torchtitan, `docs/checkpoint.md`](https://github.com/pytorch/torchtitan/blob/main/docs/checkpoint.md): what a checkpoint of many processes holds.
- [POSIX.1-2017, Shell Command Language](https://pubs.opengroup.org/onlinepubs/9699919799/utilities/V3_chap02.html#tag_18_08_02), §2.8.2: exit status, and what is above 128.
"""
