# %% [markdown]
r"""
# 20a · Many processes: one run

Chapter 20 made one *step* of many processes: each of them computes the gradient of its own rows, DDP averages the gradients, and all make the same update. A *run* is more than steps. It has one folder, one log and one checkpoint, it
is validated, somebody stops it, and next week it goes on with another number of GPUs. The trainer of chapters 17e and 17f does all of this for one process.

What does it take to let it do the same for many? Less than one might fear: the loop stays as it is, and about fifteen of its functions grow by a line or two. But each of these lines is there because something goes wrong
without it. We begin with two things that go wrong as soon as two processes start. After a few cells they train together. The rest of the chapter is about what a run does beside its steps, and each part shows what goes wrong without it: a loss that depends on the number of ranks, a rank that stops alone.
"""

# %%
#| default_exp trainer
#| doc labs.plan.too_large: Whether a run can fit into the memory at all.
import shutil

from course.notebook import answer, as_module, checkpoint, grown, predict, predictions
from course.torchrun import torchrun
from nanogpt.config import load_config
from nanogpt.data import DocumentStream
from nanogpt.labs.long_run.compare import verdict
from nanogpt.labs.parallel.agreement import code_hash, refuse_differences
from nanogpt.metrics import read_metrics
from nanogpt.labs.roofline.clock import timings
from nanogpt.model import GPT
from nanogpt.shards import open_shards
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.trainer import Training
from nanogpt.weights import load_model

# %%
STEPS, TOKENS = 40, 1024  # of the run: its steps, and the tokens of a batch, which are four micro-batches
assert STEPS > 20, f"STEPS={STEPS}: the first five are not timed, and the warm-up takes 20"
DATA, RUNS = "../data/built/stories", "../data/built/together"
shutil.rmtree(RUNS, ignore_errors=True)
manifest = ensure_corpus(DATA)


def words(name: str, **changes) -> list[str]:
    """The command line of a short run of `tiny` in a folder of its own; a change is given as train_max_steps=20."""
    keys = {"train_max_steps": STEPS, "train_batch_tokens": TOKENS, "eval_every": STEPS, "run_log_every": 20}
    keys |= {"optim_schedule": "constant", "data_dir": DATA, "run_dir": f"{RUNS}/{name}", "run_device": "cpu"}
    keys |= changes
    return ["train", "tiny", *(f"{key.replace('_', '.', 1)}={value}" for key, value in keys.items())]


print(*words("one"))

# %% [markdown]
r"""
## The trainer, started twice

`torchrun` starts a program several times and tells each process its rank (chapter 20). Our trainer does not ask for it. What happens if torchrun starts it twice, in the form that it has after chapter 20?
"""

# %% tags=["nbval-ignore-output"]
_ = torchrun("20", 2, *words("twice"), fails=True)

# %% [markdown]
r"""
Two processes wanted to write into one folder. The lock of chapter 16, which the trainer takes on its folder, refused the second one, and torchrun ended the first because the second had failed. Without the lock both would have appended their lines to one
`metrics.jsonl` and replaced each other's checkpoints.

Suppose that each had a folder of its own. There would still be something wrong, and nothing would say so. Here is the first micro-batch of each of the two processes:
"""

# %%
config = load_config("tiny", words("one")[2:])
B, T = config.train.micro_batch, config.model.block_size
streams = [DocumentStream(open_shards(DATA, "train"), B, T, seed=config.run.seed) for process in range(2)]
first, second = (stream.next_batch()[0] for stream in streams)
print("the two processes read the same rows:", bool((first == second).all()))

# %% [markdown]
r"""
Both read the same rows, because nothing tells them apart. Two GPUs would do the work of one, twice.

So there are two kinds of tasks. Some must be *shared*: the rows of a batch, the documents of a validation. Others must be done by *one* process: writing, printing, making data. We begin with the rows, since nothing else is needed to train.

## Who am I?

The run must know its processes. `Ranks` of chapter 20 says who this one is and how many there are. The dataclass `Training` gets it as one more field. Without torchrun it is the default: rank 0 of one. (The first two cells are imports.)
"""

# %%
#| export distributed
import numpy as np
import torch.distributed as dist

from nanogpt.shards import document_starts


# %%
#| export
import math
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import torch

from nanogpt.config import Config, hook, hooks
from nanogpt.data import BatchStream
from nanogpt.distributed import Ranks, first_reason, gathered, process_group
from nanogpt.distributed import replicate, torchrun_ranks
from nanogpt.files import alone_in


# %%
#| export
@dataclass
class Training(Training):
    ranks: Ranks = field(default_factory=Ranks)  # one, unless torchrun has started several


# %%
print("a run knows:", *list(Training.__dataclass_fields__)[-3:])

# %% [markdown]
r"""
## Rows for everyone

The batch of the configuration is the batch of *all* ranks together. `train.batch_tokens` does not change with the number of ranks, and so the run does not change either, as long as it has no dropout. The micro-batches of an update are dealt out like cards: with two ranks, rank 0 takes the first, rank 1 the second,
rank 0 the third. Chapter 20's streams can do this. `open_stream` only has to tell them.

A published run of PyTorch's tutorial shows what this protects from. In epoch 10 its run with four ranks prints an evaluation loss of 1.13, and its run with eight ranks 1.96 (means of the lines in `data/reference/mingpt_ddp.csv`; with four ranks, the log shows this line for two of them). With twice
the ranks and the same rows on each, an epoch has half as many updates. The log does not say whether this is the reason. (Its author writes "with 8 nodes". A node is a machine: the log has eight ranks on two of them.)
"""

# %%
#| export build
from nanogpt.distributed import Ranks


# %%
#| export build
#| grows open_stream
#| blank open_stream: chapter 17d's body, on the ranks' device; the stream deals by itself: tell it rank and world_size
def open_stream(config: Config, ranks: Ranks) -> BatchStream:
    """The run's batches; several ranks take the micro-batches in turn, so that all together read what one would."""
    kind = DocumentStream if config.data.documents else BatchStream
    shards, B, T = open_shards(config.data.dir, "train"), config.train.micro_batch, config.model.block_size
    dealt = {"rank": ranks.rank, "world_size": ranks.size}
    return kind(shards, B, T, seed=config.run.seed, device=ranks.device, **dealt)


# %%
alone = open_stream(config, Ranks())
theirs = [open_stream(config, Ranks(rank, rank, 2)).next_batch()[0] for rank in range(2)]
for rank, x in enumerate(theirs):
    print(f"rank {rank} has one process's micro-batch {rank + 1}:", bool((alone.next_batch()[0] == x).all()))

# %% [markdown]
r"""
## The step

A step of several ranks needs one thing that a step of one does not. With dropout each rank draws random numbers. If all ranks had the same seed, they would drop the same units, each in its own rows. If each had its own generator, a checkpoint would have to keep the state of every rank's generator, and could not go on with another
number of ranks. A seed that is computed from the run's seed, the step and the rank needs no keeping at all. (A run of one process still goes on with the generator that its checkpoints keep, as in chapter 17b.)
"""


# %%
#| export
#| blank seed_step: nothing for one process; else seed PyTorch with a number made of the seed, the step and the rank
def seed_step(seed: int, step: int, stream: BatchStream) -> None:
    """Let dropout differ by step and by rank, where several ranks read different rows."""
    if stream.world_size > 1:
        torch.manual_seed(hash((seed, step, stream.rank)) % 2**63)


# %%
for rank in range(2):
    for step in range(2):
        seed_step(0, step, open_stream(config, Ranks(rank, rank, 2)))
        print(f"rank {rank}, step {step}: the first number is {torch.rand(()).item():.3f}")

# %% [markdown]
r"""
The functions that grow from here on call others of the trainer, which stay as they are. The next two cells import them.
"""

# %%
from nanogpt.build import build_model, build_optimizer, ensure_data, find_tokenizer, hold_out
from nanogpt.checkpoint import latest, load_state, prune, save
from nanogpt.config import load_labs
from nanogpt.device import pick_device, seed_everything
from nanogpt.evaluate import evaluate
from nanogpt.files import atomically
from nanogpt.optim import global_norm, gradients_of, scale_to
from nanogpt.precision import LossScaler, why_not
from nanogpt.model import mfu
from nanogpt.model import step_flops
from nanogpt.device import synchronize
from nanogpt.sampling import complete
from nanogpt.shards import write_shard

# %%
from nanogpt.trainer import clean_up, fit, introduce, judge, keep_config, learning_rate, load_weights
from nanogpt.trainer import name_last_good, note_start, open_writers, peak_flops, refuse_changes, say
from nanogpt.trainer import say_rate, snapshot, take_stop_file
from nanogpt.training import accumulate_gradients

# %% [markdown]
r"""
Now the step itself. Three lines change: a rank takes its part of the micro-batches, dropout is seeded, and `accumulate_gradients` gets the function `run.ranks.mean`, which averages a tensor over the ranks. It has had a parameter for it since chapter 20, and uses it for the number of targets and for the loss. DDP averages the gradients.

The decision whether a step counts needs no change, although it must be the same on all ranks: a rank that left out an update alone would have other weights from then on. All ranks judge the mean loss and the norm of the averaged gradient. These numbers are equal everywhere, so the
decisions are equal, too.
"""


# %%
#| export
#| grows update
def update(run: Training) -> tuple[dict, list]:
    """Take a batch, and update the weights unless there is a reason not to: entries for the step's line, the micro-batches.

    Of several ranks each takes a part of the micro-batches, and all judge the same mean loss and norm.
    """
    config, parameters = run.config, list(run.model.parameters())
    lr = learning_rate(config, run.updates)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    if config.data.overfit:
        run.stream.position = 0  # the first batch, again
    batches = [run.stream.next_batch() for _ in range(config.micro_batches // run.stream.world_size)]
    seed_step(config.run.seed, run.step, run.stream)
    # the gradient of all micro-batches, and its length
    run.optimizer.zero_grad()
    loss = accumulate_gradients(run.stepper, batches, config.train.dtype, run.scaler, run.ranks.mean)
    if run.scaler is not None:
        run.scaler.unscale(parameters)
    gradients = gradients_of(parameters)
    norm = global_norm(gradients)
    line = {"loss": loss.item(), "lr": lr, "norm": norm.item()}
    # a reason against this update?
    overflows = math.isfinite(line["loss"]) and not math.isfinite(line["norm"])
    if run.scaler is not None and math.isfinite(line["loss"]):
        run.scaler.update(not overflows)
    reason = "overflow" if run.scaler is not None and overflows else judge(run, line)
    if reason:
        line["skipped"] = reason
    else:
        if config.optim.clip is not None:
            scale_to(gradients, config.optim.clip, norm)
        run.optimizer.step()
    synchronize(run.device)
    return line, batches


# %%
grown("update", "20a")

# %% [markdown]
r"""
The parts are put together as before, with three differences. Rank 0 makes the data first. What a step calls is the model in DDP. And the stream is told about the ranks. `place_model` puts the model where it is trained. It returns three things: the model, what a step calls, and the ranks that read different rows. With copies these are all ranks. (Chapter 21d has a lab that cuts a model over the ranks, and takes the place of this function.)
"""


# %%
#| export
#| grows build_run
def place_model(config: Config, manifest: dict, ranks: Ranks) -> tuple[GPT, torch.nn.Module, Ranks]:
    """The run's model on its device, what a step calls, and the ranks that read different rows."""
    model = hook(config, build_model)(config, manifest).to(ranks.device)
    stepper = replicate(model, ranks)
    return model, torch.compile(stepper) if config.train.compile else stepper, ranks


def build_run(config: Config, ranks: Ranks | None = None) -> Training:
    """All that a run needs, before its first step. ValueError where the device or the data cannot do it.

    ranks: those that share each batch; else there is one.
    """
    ranks = ranks or Ranks(device=pick_device(config.run.device))
    if reason := why_not(config.train.dtype, ranks.device):
        raise ValueError(f"train.dtype: {reason}")
    labs = load_labs(config)
    # the data, and the tokenizer that made them
    manifest = first_alone(ranks, ensure_data, config.data)
    tokenizer = find_tokenizer(config.data, manifest)
    if tokenizer is None and config.eval.sample_every:
        remedy = "name it in data.tokenizer (gpt2 must be in tiktoken's cache), or set eval.sample_every=0"
        raise ValueError(f"samples need the tokenizer that made {config.data.dir}; {remedy}")
    held_out = hold_out(config.data.dir, config.eval.tokens) if config.eval.every else []
    # the model on its device, what a step calls, and who reads different rows
    place = hook(config, place_model)
    model, stepper, readers = place(config, manifest, ranks)
    optimizer = hook(config, build_optimizer)(config, model)
    stream = hook(config, open_stream)(config, readers)
    scaler = LossScaler() if config.train.dtype == "fp16" else None
    parts = model.train(), stepper, optimizer, stream, scaler
    run = Training(config, ranks.device, tokenizer, (held_out, manifest["eot"]), *parts, ranks=ranks)
    for lab in labs:
        if hasattr(lab, "attach"):
            lab.attach(run)
    seed_everything(config.run.seed)  # last, whatever has drawn numbers before: from now on only dropout does
    return run


# %%
grown("build_run", "20a")

# %% [markdown]
r"""
## Two processes, for the first time

Rows for everyone, a step, and a start are enough to train. Let us see it before we go on. We leave out the validation (`eval.every=0`); what the trainer needs besides is taken from the cells further below, which `torchrun` reads in this file. The same twenty steps on one process and on two:
"""

# %% tags=["nbval-ignore-output"]
for processes in (1, 2):
    _ = torchrun("20a", processes, *words(f"first-{processes}", train_max_steps=20, eval_every=0))

# %% [markdown]
r"""
The losses agree to the last digit but one: the rows are shared, and the step is the same. The rest of the chapter is about everything that a run does besides its steps.

## One that speaks

Now one part after the other, and first the writing. All ranks run the same program. Rank 0 alone holds the lock on the folder, prints, and writes the log, the checkpoints and the samples. `join_run` arranges this around a complete run: it asks torchrun's environment who this process is, opens the process group, and lets what the other
ranks print go nowhere.

A rank that waits for the others gives up after ten minutes. If making the data takes longer than that, the environment variable `NANOGPT_PATIENCE` can set another number of seconds.
"""


# %%
#| export distributed
def patience() -> float:
    """Seconds that a rank of a run waits for the others: the variable NANOGPT_PATIENCE, else ten minutes."""
    seconds = os.environ.get("NANOGPT_PATIENCE", "600")
    if not seconds.isdecimal() or int(seconds) < 1:
        raise ValueError(f"NANOGPT_PATIENCE is {seconds!r}; it must be a whole number of seconds")
    return float(seconds)


# %%
#| export
@contextmanager
def join_run(config: Config) -> Iterator[Ranks]:
    """The ranks of a run together: rank 0 has the run's folder for itself, and nobody else's prints are seen."""
    ranks = torchrun_ranks(config.run.device)
    refuse_ranks(config, ranks)
    with ExitStack() as stack:
        stack.enter_context(process_group(ranks, patience()))
        if ranks.rank == 0:
            stack.enter_context(alone_in(Path(config.run.dir), "trainer", "choose another run.dir"))
        else:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
        yield ranks


# %% [markdown]
r"""
`refuse_ranks` refuses what cannot work before the processes meet. A lab of the configuration may have something to check (`check_ranks`). And the lab `too_large` looks for a model that no memory can hold. A typo such as a billion layers would otherwise build one layer after the other, on every rank of the machine, until nothing
is left. The count of `why_too_large` is a lower bound: 16 bytes for each parameter (its weight, its gradient and Adam's two averages, 4 bytes each) and the input of each block. It is divided by the number of ranks, because chapter 21 can share all of this out.
"""


# %%
#| export labs.plan.too_large
import os

import torch

from nanogpt.build import new_shape
from nanogpt.config import Config, hook
from nanogpt.model import num_params


def why_too_large(config: Config, device: torch.device, ranks: int) -> str:
    """Why a run cannot fit into the device's memory, however it is cut over its ranks; "" where it may.

    Counted is what every run keeps: 16 bytes a parameter, the vocabulary's aside, and each block's input in 16 bits.
    """
    m, B = config.model, config.train.micro_batch
    P = num_params(hook(config, new_shape)(config, 1))
    needed = (16 * P + 2 * m.n_layer * B * m.block_size * m.n_embd) // ranks
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    elif hasattr(os, "sysconf"):  # not on Windows
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return ""
    names = ["n_layer", "n_embd", "block_size"] + ["padded_vocab_size"] * (m.padded_vocab_size is not None)
    shape = ", ".join(f"model.{name}={getattr(m, name)}" for name in names)
    needs = f"{shape} and train.micro_batch={B} need at least {needed // 10**9:,} GB a process for {P:,} parameters"
    return f"{needs}; {device} has {there // 10**9:,} GB: lower the largest" if needed > there else ""


# %%
#| export
def refuse_ranks(config: Config, ranks: Ranks) -> None:
    """ValueError for a run that these ranks cannot do, before they meet."""
    for check in hooks(config, "check_ranks"):
        check(config, ranks)
    lab = import_module("nanogpt.labs.plan.too_large")
    if config.init_from is None and (reason := lab.why_too_large(config, ranks.device, ranks.size)):
        raise ValueError(reason)


# %% tags=["nbval-ignore-output"]
as_module("labs.plan.too_large")
print(why_too_large(load_config("tiny", ["model.n_layer=1000000000"]), torch.device("cpu"), 2))
with join_run(config) as ranks:
    print(ranks)

# %% [markdown]
r"""
In this kernel there is no torchrun, and so one process of one.

*Making the data.* If the shards are not there yet, both ranks would begin to make them at the same time, in the same folder. `first_alone` lets rank 0 go first. The others wait at a *barrier*, a collective that nobody passes before all have come to it. When rank 0 comes, its shards are
made, and the others find them.
"""

# %%
#| export distributed
from collections.abc import Callable


def first_alone(ranks: Ranks, call: Callable, *args):
    """call(*args) on rank 0, and then on the others, who find what it has made."""
    if ranks.size > 1 and ranks.rank > 0:
        dist.barrier()
    made = call(*args)
    if ranks.size > 1 and ranks.rank == 0:
        dist.barrier()
    return made


# %%
first_alone(Ranks(), print, "one process needs no barrier")

# %% [markdown]
r"""
## All ranks in the same run

Four micro-batches cannot be dealt to three ranks so that each gets as many as the others. That is refused before the first step. And there is a worse mistake. Two machines may have copies of the code or of the data that differ a little. Then all ranks train, the gradients of different programs are averaged, and nothing fails.
`refuse_other_runs` compares hashes: of the configuration, the shards and the code, and the name of the checkpoint that each rank has found. These checks are a lab, which the trainer imports only if there are several ranks.

An error should say what to change. `find_remedy` looks for a smaller micro-batch with which the batch can be dealt. If there is none, as for the three ranks below, it asks for another `train.batch_tokens`.
"""

# %%
#| export labs.parallel.agreement
import hashlib
import json

from nanogpt.config import Config, config_dict
from nanogpt.data import BatchStream


def find_remedy(config: Config, ranks: int) -> str:
    """The change of the configuration with which its batch can be dealt to so many ranks."""
    rows = config.train.batch_tokens // config.model.block_size
    for micro_batch in range(config.train.micro_batch, 0, -1):
        if rows % (ranks * micro_batch) == 0:
            return f"set train.micro_batch={micro_batch}, which keeps the batch"
    return f"make train.batch_tokens a multiple of {ranks} × model.block_size"


# %%
#| export labs.parallel.agreement
def refuse_other_runs(ranks: Ranks, config: Config, stream: BatchStream, checkpoint: str) -> None:
    """ValueError if the micro-batches cannot be dealt, or if the ranks would not do the same run.

    checkpoint: the checkpoint that this rank would go on from.
    """
    train, readers = config.train, stream.world_size
    if config.micro_batches % readers:
        each = f"train.micro_batch={train.micro_batch} × model.block_size={config.model.block_size}"
        batch = f"train.batch_tokens={train.batch_tokens} is {config.micro_batches} × {each}"
        raise ValueError(f"{batch}: not to be dealt to {readers} ranks; {find_remedy(config, readers)}")
    same = config_dict(config) | {"run": config_dict(config)["run"] | {"device": None}}
    facts = {"configuration": same, "data": stream.state_dict()}
    hashes = {
        name: hashlib.sha256(json.dumps(fact).encode()).hexdigest()[:12] for name, fact in facts.items()
    }
    refuse_differences(ranks, **hashes, code=code_hash(), checkpoint=checkpoint)


# %%
try:
    refuse_other_runs(Ranks(), config, open_stream(config, Ranks(0, 0, 3)), "None")
except ValueError as error:
    print(error)

# %% [markdown]
r"""
When a run goes on, all ranks read the same checkpoint. Only rank 0 cleans up what a kill has left. And before the first step the ranks compare their hashes:
"""


# %%
#| export
#| grows resume
def resume(run: Training) -> Training:
    """Take the run to where its newest whole checkpoint is; without one it stays at its beginning. Returns the run."""
    newest = latest(run.folder)
    if newest:
        state = load_state(newest)
        refuse_changes(run.config, state["config"])
    if run.ranks.size > 1:
        lab = import_module("nanogpt.labs.parallel.agreement")
        lab.refuse_other_runs(run.ranks, run.config, run.stream, str(newest))
    if newest:
        hook(run.config, load_weights)(run, newest)
        run.load_state_dict(state)
        run.kept = newest
        print(f"going on after step {run.step}, from {newest}")
    if run.ranks.rank == 0:
        run.record = clean_up(run.folder, run.step) or run.record
    return run


# %%
grown("resume", "20a")

# %% [markdown]
r"""
## Validation, shared

Rank 0 could validate alone while the others wait. On eight GPUs seven would be idle. So every rank takes a part of the held-out documents, and the parts are added up. Two things can go wrong here. If a document is cut, the model sees its second half without the first, and the loss rises. And the mean of
the ranks' means is not the mean over all tokens, because the parts are not equally long. So documents stay in one piece, and each rank reports a count with its mean.
"""


# %%
#| export distributed
#| blank my_documents: deal where the documents start, with np.array_split; a part ends where the next one begins
def my_documents(tokens: np.ndarray, eot: int, ranks: Ranks) -> np.ndarray:
    """A rank's part of a shard: whole documents, and the token behind the last, which is to be predicted too."""
    starts = np.array_split(document_starts(tokens, eot), ranks.size)
    bounds = [part[0] if len(part) else len(tokens) - 1 for part in starts] + [len(tokens) - 1]
    return tokens[bounds[ranks.rank] : bounds[ranks.rank + 1] + 1]


# %%
#| export
#| grows held_loss
def held_loss(run: Training) -> float:
    """The mean loss on the held-out tokens, in nats per token. Several ranks take a part of the documents each."""
    (shards, eot), precision = run.held, run.config.train.dtype
    if run.ranks.size == 1:
        return evaluate(run.model, shards, eot, precision=precision)
    # this rank's documents, as far as something is predicted in them
    parts = [my_documents(tokens, eot, run.ranks) for tokens in shards]
    mine = [part for part in parts if len(part) > 1]
    count = sum(len(tokens) - 1 for tokens in mine)
    mean = evaluate(run.model, mine, eot, precision=precision) if count else 0.0
    # the mean of all tokens
    reports = gathered(run.ranks, (count, mean))
    return sum(n * loss for n, loss in reports) / sum(n for n, _ in reports)


# %% tags=["nbval-ignore-output"]
from itertools import pairwise

held, eot = hold_out(DATA, 3000), manifest["eot"]
model, tokens = load_model("../data/built/model"), held[0]  # chapter 07's model
whole = evaluate(model, held, eot)


def two_means(parts: list) -> tuple[float, float]:
    """The loss of all tokens of some parts, and the mean of the parts' own losses."""
    losses, counts = [evaluate(model, [part], eot) for part in parts], [len(part) - 1 for part in parts]
    return sum(n * loss for n, loss in zip(counts, losses)) / sum(counts), sum(losses) / len(parts)


print(f"one rank: {whole:.4f} nats a token")
for n in (3, 8):
    dealt = [my_documents(tokens, eot, Ranks(rank, rank, n)) for rank in range(n)]
    bounds = [(len(tokens) - 1) * rank // n for rank in range(n + 1)]
    anywhere = [tokens[start : end + 1] for start, end in pairwise(bounds)]
    together, means = two_means(dealt)
    assert abs(together - whole) < 1e-5, "the parts' losses are not the loss of all documents"
    print(f"{n} ranks: {together:.4f}; mean of means {means:.4f}; documents cut {two_means(anywhere)[0]:.4f}")

# %% [markdown]
r"""
With whole documents and counts the loss does not depend on the number of ranks. The mean of means is a little wrong, because the parts are nearly equally long here. Cut documents are badly wrong: eight ranks would report 0.24 nats more than one for the same model, and a run that goes on with more GPUs would seem to get worse.

In the trainer, `validate` calls `held_loss`, and all ranks take part in it. A sample is written by rank 0 alone. It calls the plain model and not the replica: a collective that only rank 0 calls would wait for the others until its patience ends. So all ranks call `whole_model` first, and rank 0 alone gets a model. With copies this is the run's own model. (A lab that cuts the model gathers it here.)
"""


# %%
#| export
#| grows whole_model, write_sample
def whole_model(run: Training) -> GPT | None:
    """On rank 0 the model as one process has it, None elsewhere. All ranks call it."""
    return run.model if run.ranks.rank == 0 else None


def write_sample(run: Training) -> dict:
    """Print a sample and write it to a file. It adds nothing to the step's line. All ranks call it."""
    prompt, model = run.config.eval.prompt, hook(run.config, whole_model)(run)
    if model is not None:
        text = prompt + complete(model, run.tokenizer, prompt, 200)
        say(f"--- step {run.step}: {text}")
        with atomically(run.folder / f"samples/step_{run.step:06d}.txt") as file:
            file.write(text.encode())
    return {}


# %%
grown("write_sample", "20a")

# %% [markdown]
r"""
## Only rank 0 writes

What is left are the places where the trainer writes. A checkpoint and the removal of old ones belong to rank 0. All ranks ask `snapshot` what goes into a checkpoint, since a lab may have to gather the model for it; then rank 0 writes.
"""


# %%
#| export
#| grows save_checkpoint
#| grows tidy
def save_checkpoint(run: Training, metrics) -> None:
    """Write a checkpoint of this step, if there is none yet, and flush the lines before it. Rank 0 writes."""
    folder = run.folder / f"step_{run.step:06d}"
    if run.kept == folder:
        return
    model, state, write = hook(run.config, snapshot)(run)
    if run.ranks.rank == 0:
        os.fsync(metrics.fileno())
        save(run.folder, run.step, model, state, run.tokenizer, write)
    gathered(run.ranks, None)  # all wait: when a rank has ended, torchrun gives the others 30 s
    run.kept = folder


def tidy(run: Training) -> None:
    """Remove old checkpoints, but for the newest ones and the best. Rank 0 does."""
    if run.ranks.rank == 0:
        prune(run.folder, run.config.run.keep, run.step, {run.best.get("step")})


# %%
grown("save_checkpoint", "20a")

# %% [markdown]
r"""
The log belongs to rank 0 as well. The others write into `os.devnull`, which keeps nothing, and have no writers for a line. A batch that was left out belongs to all, because each rank has only its own rows of it; so each writes its part under its own name. And `pace` compares a
rank with the peak of its own device, so it divides the step's work by the number of ranks.
"""


# %%
#| export
#| grows open_log
#| grows begin
#| grows keep_batch
#| grows pace
def open_log(run: Training):
    """metrics.jsonl, unbuffered: what is written survives the process. Ranks above 0 write nowhere."""
    run.folder.mkdir(parents=True, exist_ok=True)
    return open(os.devnull if run.ranks.rank else run.folder / "metrics.jsonl", "ab", 0)


def begin(run: Training, metrics, command: str) -> list[Callable]:
    """Print and write down what is about to run; return the functions that take each step's line. Rank 0 does."""
    if run.ranks.rank:
        return []
    note_start(run, command)
    keep_config(run)
    introduce(run)
    say_rate(run)
    return open_writers(run, metrics)


def keep_batch(run: Training, batches: list) -> None:
    """Write the ids of a step that was left out to a file, as rows of T tokens; each rank its own."""
    ids = torch.cat([x.flatten() for x, _ in batches]).cpu().numpy()
    rank = f".rank{run.ranks.rank}" if run.ranks.rank else ""
    write_shard(run.folder / f"skipped/step_{run.step:06d}{rank}.bin", ids)


def pace(run: Training, seconds: float) -> dict:
    """Of a step that took so long: milliseconds, tokens a second, and MFU where the device's peak is known."""
    tokens, T = run.config.train.batch_tokens, run.config.model.block_size
    rates = {"ms": 1000 * seconds, "tokens_per_s": tokens / seconds}
    if peak := peak_flops(run.device, run.config.train.dtype):
        rates["mfu"] = mfu(step_flops(run.model.config, tokens // T, T) / run.ranks.size, seconds, peak)
    return rates


# %% [markdown]
r"""
## Stopping together

A scheduler may send its signal to one rank or to all. If rank 1 stops after step 7 and the others begin step 8, they wait for it in the next all-reduce until their patience ends. So after each step the ranks ask each other: has anybody a reason to stop? `first_reason` of chapter 20 does it with one number in most
steps. Then all stop after the same step, with one checkpoint. The function that `asked_to_stop` makes is the right place: the loop calls it after each step.
"""


# %%
#| export
#| grows asked_to_stop
@contextmanager
def asked_to_stop(run: Training) -> Iterator[Callable[[], str | None]]:
    """A function that says why the run should end after this step, if it should: a signal, the file `stop`, a lab's reason.

    All ranks call it after each step, and get the first rank's reason that has one.
    """
    signals = []

    def note(number, frame):
        if signals:
            raise KeyboardInterrupt(f"{name_last_good(run)}, and the same command goes on from it")
        signals.append(signal.Signals(number).name)

    def reason() -> str | None:
        limits = [take_stop_file(run), *(each() for each in run.reasons)]
        return first_reason(run.ranks, next(filter(None, [*signals, *limits]), None))

    with ExitStack() as at_the_end:
        for number in (signal.SIGINT, signal.SIGTERM):
            at_the_end.callback(signal.signal, number, signal.signal(number, note))
        yield reason


# %%
grown("asked_to_stop", "20a")

# %% [markdown]
r"""
The loop in `fit` stays as it is. Its caller `train_config` grows: it joins the run's ranks, which takes the lock as well. (One more function grows in the appendix: `exit_code`.)
"""


# %%
#| export
#| grows train_config
def train_config(config: Config, command: str = "the same call") -> Training:
    """Start the run in config.run.dir, or go on with it, to its last step or until a rank is asked to stop."""
    with join_run(config) as ranks:
        return fit(build_run(config, ranks), command)


# %%
grown("train_config", "20a")

# %% [markdown]
r"""
## The same run

The command does not change:

```
python -m nanogpt train gpt2-124M                                    one process
torchrun --standalone --nproc-per-node 8 -m nanogpt train gpt2-124M   eight GPUs of one machine
```

*Predict.* The same run on one process and on two, each with one thread: how much faster is the second?
"""

# %%
predict("20a.1", "two processes are faster than one by a factor", guess=None, unit="×")


# %% tags=["nbval-ignore-output"]
_ = torchrun("20a", 1, *words("one"))
_ = torchrun("20a", 2, *words("two"))

# %%
one, two = (read_metrics(f"{RUNS}/{name}") for name in ("one", "two"))
apart = {name: verdict(one, two, name)[0] for name in ("loss", "norm", "val_loss")}
assert max(apart.values()) < 1e-3, f"two processes are another run than one: {apart}"
print(f"{len(two)} lines, each there once; losses, norms and the validation loss agree to 0.001")
print(f"validation loss {one[-1]['val_loss']:.3f} on one, {two[-1]['val_loss']:.3f} on two")

# %% [markdown]
r"""
It is the same run. Only the last digits of a loss can differ. One process adds the parts of its four micro-batches one after the other. Of two processes each adds two, and then the two sums are added. Sums in another order are rounded in another way. How much time did the second process save?
"""

# %% tags=["nbval-ignore-output"]
ms = [float(np.median([line["ms"] for line in run[5:]])) for run in (one, two)]
print(f"{ms[0]:.0f} ms a step on one, {ms[1]:.0f} ms on two: {ms[0] / ms[1]:.2f}×")
answer("20a.1", ms[0] / ms[1])

# %% [markdown]
r"""
The two processes have half of the rows each, and yet they are less than twice as fast. Each of them makes the complete update, which is not shared. Is this the reason? We time the parts of a step in this kernel, with one thread.
"""

# %% tags=["nbval-ignore-output"]
torch.set_num_threads(1)  # as each rank has
run = build_run(config)
batches = [run.stream.next_batch() for _ in range(config.micro_batches)]
half = batches[: len(batches) // 2]
parts = {
    "all micro-batches": lambda: accumulate_gradients(run.stepper, batches),
    "half of them": lambda: accumulate_gradients(run.stepper, half),
    "the update": run.optimizer.step,
}
for name, call in parts.items():
    print(f"{name:17} {1e3 * np.median(timings(call, run.device, 10)):5.1f} ms")

# %% [markdown]
r"""
It is not. The computing is halved as it should be, and the update takes a few per cent of it at most. Add the last two lines: a step of two processes takes longer than both together. With one process, the first line and the last explain nearly the whole step. So most of the difference must come from the second process: the gradients are averaged, the faster process waits for the slower one, and both read the same memory. We have not timed these three separately. (If two are no faster than one, other programs are using the cores, or there is only one.)

## Another number of ranks

Nothing in a checkpoint says how many ranks there were. The stream's state is the number of rows that all ranks together have read, the optimizer's state is the same on all, and several ranks seed dropout anew in each step. So a run can go on with
another number of ranks. With dropout it goes on as well, but not with the same losses: the seed contains the rank, so after any change of their number other units are
dropped. This run has no dropout. We train half of the run on two processes, and the rest on one.

*Predict.* How far is its loss from that of the run on one process, at most?
"""

# %%
predict("20a.2", "begun on two, ended on one: losses apart by", guess=None, unit="nats")

# %% tags=["nbval-ignore-output"]
_ = torchrun("20a", 2, *words("changed", train_max_steps=STEPS // 2))
_ = torchrun("20a", 1, *words("changed"))

# %%
changed = read_metrics(f"{RUNS}/changed")
apart = verdict(one, changed, "loss")[0]
assert apart < 1e-3 and len(changed) == STEPS, f"the curve has a seam: {apart:.1e} nats"
print(
    f"{STEPS // 2} steps on two processes and {STEPS - STEPS // 2} on one: a curve without a seam, to 0.001"
)

# %% tags=["nbval-ignore-output"]
print(f"at most {apart:.1e} nats apart")
answer("20a.2", apart)

# %% [markdown]
r"""
(In the second log, the first line is the last one of the part on two processes, shown again. The rate is constant in all these runs. `tiny`'s own schedule falls at the end, so 20 steps of it are not the first half of 40; chapter 17f has met this problem.)

That is all that many processes need in the trainer. When something goes wrong between them, a rank that dies or a group that waits for ever, chapter 20b finds out what it was. And a model that does not fit into one GPU needs more than copies: chapter 21.
"""

# %% [markdown]
r"""
## Appendix: a planned stop under torchrun

A run that its file `stop` or `run.minutes` has ended gives exit code 1, so that a script does not take it for a finished run. But torchrun takes every code except 0 for a failure and ends the other ranks. With `--max-restarts` it starts all of them again, so the run would go on at once. torchrun tells its ranks who they are by variables of the environment, `TORCHELASTIC_RUN_ID` among them. So `exit_code` grows by this case.
"""


# %%
#| export
#| grows exit_code
def exit_code(run: Training) -> int:
    """For the shell: 0 for a finished run, 128 plus a signal's number, 1 for another stop; that is 0 under torchrun."""
    if run.step >= run.config.train.max_steps:
        return 0
    if run.stopped in ("SIGINT", "SIGTERM"):
        return 128 + signal.Signals[run.stopped]
    return 0 if "TORCHELASTIC_RUN_ID" in os.environ else 1


# %%
from types import SimpleNamespace
from unittest.mock import patch

half = SimpleNamespace(step=7, stopped="the file stop", config=load_config("tiny"))
print("alone:", exit_code(half))
with patch.dict(os.environ, TORCHELASTIC_RUN_ID="none"):
    print("under torchrun:", exit_code(half))

# %% [markdown]
r"""
## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("20a")

# %%
checkpoint("20a")

# %% [markdown]
r"""
## Exercises

To explore:

1. Train `tiny` on two processes, stop it (`touch` the file `stop` in `run.dir`), and go on with one. Check with `python -m nanogpt compare` against a run that was never stopped: within which bound?
2. Give a rank other data, by a `data.dir` that depends on `LOCAL_RANK`. Check that the run is refused, and what it says.
3. With how many ranks do cut documents cost half a nat? Check with `two_means`. Then take twice as many held-out tokens: why does the price fall?
4. Let `held_loss` take the mean of the ranks' means. Check with parts of very different lengths: by how much is it wrong?
5. Seed dropout without the rank in `seed_step`. Does any assertion notice? Check: which units are dropped on the two ranks?

## Further reading

- PyTorch documentation, [*torchrun (Elastic Launch)*](https://docs.pytorch.org/docs/stable/elastic/run.html): what a script must do for restarts.
- Karpathy, [*build-nanogpt*](https://github.com/karpathy/build-nanogpt), `train_gpt2.py`: the same additions to a training script, marked by `if ddp` and `master_process`.
- Goyal et al. 2017, [*Accurate, Large Minibatch SGD*](https://arxiv.org/abs/1706.02677), §3: pitfalls of distributed training, among them the mean over workers.
"""
