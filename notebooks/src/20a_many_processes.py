# %% [markdown]
r"""
# 20a · Many processes: one run

Chapter 20 made one *step* of many processes: each of them computes the gradient of its own rows, DDP averages the gradients, and all make the same update. A *run* is more than steps. It has one folder, one log and one checkpoint, it
is validated, somebody stops it, and next week it goes on with another number of GPUs. The trainer of chapters 17e and 17f does all of this for one process.

What does it take to let it do the same for many? Less than one might fear: the loop stays as it is, and about ten of its functions grow by a line or two. But each of these lines is there because something goes wrong
without it. So we begin by letting it go wrong.
"""

# %%
#| default_exp labs.long_run.together
#| doc labs.long_run.together: What a run on several ranks needs beside DDP: one that speaks and writes, hashes compared, evaluation shared.
import shutil
from dataclasses import dataclass, field

from course.notebook import answer, checkpoint, grown, predict, predictions
from course.torchrun import torchrun
from nanogpt.config import load_config
from nanogpt.data import DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.labs.long_run.assemble import batches_of, held_out
from nanogpt.labs.long_run.compare import verdict
from nanogpt.labs.long_run.training import Training
from nanogpt.metrics import read_metrics
from nanogpt.model import GPT
from nanogpt.shards import open_shards
from nanogpt.stories import ensure_corpus

# %%
STEPS, TOKENS = 40, 1024  # of the run: its steps, and the tokens of a batch, which are two micro-batches
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
Two processes wanted to write into one folder. The lock of chapter 16b, which the trainer takes on its folder, refused the second one, and torchrun ended the first because the second had failed. Without the lock both would have appended their lines to one
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

So there are two kinds of tasks. Some must be *shared*: the rows of a batch, the documents of a validation. Others must be done by *one* process: writing, printing, making data. We go through them one by one.

## Who am I?

The run must know its processes. `Ranks` of chapter 20 says who this one is and how many there are. The dataclass `Training` gets it as one more field. Without torchrun it is the default: rank 0 of one.
"""


# %%
#| export labs.long_run.training
from nanogpt.distributed import Ranks


# %%
#| export labs.long_run.training
@dataclass
class Training(Training):
    ranks: Ranks = field(default_factory=Ranks)  # one, unless torchrun has started several


# %%
print("a run knows:", *list(Training.__dataclass_fields__)[-3:])

# %% [markdown]
r"""
## One that speaks

All ranks run the same program. Rank 0 alone holds the lock on the folder, prints, and writes the log, the checkpoints and the samples. `one_run` arranges this around a complete run: it asks torchrun's environment who this process is, opens the process group, and lets what the other
ranks print go nowhere.

A rank that waits for the others gives up after ten minutes. If making the data takes longer than that, the environment variable `NANOGPT_PATIENCE` can set another number of seconds.
"""


# %%
#| export
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from nanogpt.config import Config, config_dict
from nanogpt.data import BatchStream
from nanogpt.distributed import Ranks, code_hash, gathered, process_group, refuse_differences
from nanogpt.distributed import torchrun_ranks
from nanogpt.files import alone_in
from nanogpt.model import GPTConfig, num_params
from nanogpt.shards import document_starts


# %%
#| export
def patience() -> float:
    """Seconds that a rank of a run waits for the others: the variable NANOGPT_PATIENCE, else ten minutes."""
    said = os.environ.get("NANOGPT_PATIENCE", "600")
    if not said.isdecimal() or int(said) < 1:
        raise ValueError(f"NANOGPT_PATIENCE is {said!r}; it must be a whole number of seconds")
    return float(said)


@contextmanager
def one_run(config: Config) -> Iterator[Ranks]:
    """The ranks of a run together: rank 0 has the run's folder for itself, and nobody else's prints are seen."""
    ranks = torchrun_ranks(config.run.device)
    check_run(config, ranks)
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
`check_run` refuses what cannot work before the processes meet. So far this is a model that no memory can hold. A typo such as a billion layers would otherwise build one layer after the other, on every rank of the machine, until nothing
is left. The count is a lower bound: 16 bytes for each parameter and the input of each block.
"""


# %%
#| export
def too_large(config: Config, device: torch.device, ranks: int) -> str:
    """Why a run cannot fit into the device's memory, however it is cut over its ranks; "" where it may.

    Counted is what every run keeps: 16 bytes a parameter, the vocabulary's aside, and each block's input in 16 bits.
    """
    m, B = config.model, config.train.micro_batch
    P = num_params(m.shape(1))
    needed = (16 * P + 2 * m.n_layer * B * m.block_size * m.n_embd) // ranks
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    elif hasattr(os, "sysconf"):  # not on Windows
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return ""
    names = ["n_layer", "n_embd", "block_size"] + ["padded_vocab_size"] * (m.padded_vocab_size is not None)
    given = ", ".join(f"model.{name}={getattr(m, name)}" for name in names)
    said = f"{given} and train.micro_batch={B} need at least {needed // 10**9:,} GB a process for {P:,} parameters"
    return f"{said}; {device} has {there // 10**9:,} GB: lower the largest" if needed > there else ""


def check_run(config: Config, ranks: Ranks) -> None:
    """ValueError for a run that these ranks cannot do, before they meet."""
    if config.init_from is None and (reason := too_large(config, ranks.device, ranks.size)):
        raise ValueError(reason)


# %% tags=["nbval-ignore-output"]
print(too_large(load_config("tiny", ["model.n_layer=1000000000"]), torch.device("cpu"), 2))
with one_run(config) as ranks:
    print(ranks)

# %% [markdown]
r"""
In this kernel there is no torchrun, and so one process of one.

*Making the data.* If the shards are not there yet, both ranks would begin to make them at the same time, in the same folder. `first_alone` lets rank 0 go first. The others wait at a *barrier*, a collective that nobody passes before all have come to it. When rank 0 comes, its shards are
made, and the others find them.
"""


# %%
#| export
def first_alone(ranks: Ranks, call: Callable, *args):
    """call(*args) on rank 0, and then on the others, who find what it has made."""
    if ranks.size > 1 and ranks.rank > 0:
        dist.barrier()
    made = call(*args)
    if ranks.size > 1 and ranks.rank == 0:
        dist.barrier()
    return made


# %%
print(first_alone(Ranks(), len, "one process needs no barrier"))

# %% [markdown]
r"""
## Rows for everyone

The batch of the configuration is the batch of *all* ranks together. `train.batch_tokens` does not change with the number of ranks, and so the run does not change either. The micro-batches of an update are dealt out like cards: with two ranks, rank 0 takes the first, rank 1 the second,
rank 0 the third. The streams of chapter 03 can do this since they were written. `stream_of` only has to tell them.
"""


# %%
#| export labs.long_run.assemble
#| grows stream_of
#| blank stream_of: as before, and the stream of chapter 03 deals its micro-batches itself: tell it rank and world_size
def stream_of(config: Config, ranks: Ranks) -> BatchStream:
    """The run's batches; several ranks take the micro-batches in turn, so that all together read what one would."""
    dealt = {"rank": ranks.rank, "world_size": ranks.size}
    return batches_of(config, ranks.device, **dealt)


# %%
alone = stream_of(config, Ranks())
theirs = [stream_of(config, Ranks(rank, rank, 2)).next_batch()[0] for rank in range(2)]
for rank, x in enumerate(theirs):
    print(f"rank {rank} has one process's micro-batch {rank + 1}:", bool((alone.next_batch()[0] == x).all()))

# %% [markdown]
r"""
Four micro-batches cannot be dealt to three ranks so that each gets as many as the others. That is refused before the first step. And there is a worse mistake. Two machines may have copies of the code or of the data that differ a little. Then all ranks train, the gradients of different programs are averaged, and nothing fails.
`refuse_other_runs` compares hashes: of the configuration, the shards and the code, and the name of the checkpoint that each rank has found.

An error should say what to change. `remedy` looks for a smaller micro-batch with which the batch can be dealt.
"""


# %%
#| export
def remedy(config: Config, ranks: int) -> str:
    """The change of the configuration with which its batch can be dealt to so many ranks."""
    rows = config.train.batch_tokens // config.model.block_size
    for micro_batch in range(config.train.micro_batch, 0, -1):
        if rows % (ranks * micro_batch) == 0:
            return f"set train.micro_batch={micro_batch}, which keeps the batch"
    return f"make train.batch_tokens a multiple of {ranks} × model.block_size"


# %%
#| export
def refuse_other_runs(ranks: Ranks, config: Config, stream: BatchStream, found: str) -> None:
    """ValueError if the micro-batches cannot be dealt, or if the ranks would not do the same run.

    found: the checkpoint that this rank would go on from.
    """
    c = config
    if c.micro_batches % stream.world_size:
        each = f"train.micro_batch={c.train.micro_batch} × model.block_size={c.model.block_size}"
        batch = f"train.batch_tokens={c.train.batch_tokens} is {c.micro_batches} × {each}"
        what = remedy(c, stream.world_size)
        raise ValueError(f"{batch}: not to be dealt to {stream.world_size} ranks; {what}")
    same = config_dict(c) | {"run": config_dict(c)["run"] | {"device": None}}
    facts = {"configuration": same, "data": stream.state_dict()}
    hashes = {
        name: hashlib.sha256(json.dumps(fact).encode()).hexdigest()[:12] for name, fact in facts.items()
    }
    refuse_differences(ranks, **hashes, code=code_hash(), checkpoint=found)


# %%
try:
    refuse_other_runs(Ranks(), config, stream_of(config, Ranks(0, 0, 3)), "None")
except ValueError as error:
    print(error)

# %% [markdown]
r"""
## Dropout

With dropout each rank draws random numbers. If all ranks had the same seed, they would drop the same units, each in its own rows. If each had its own generator, a checkpoint would have to keep the state of every rank's generator, and could not go on with another
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
        seed_step(0, step, stream_of(config, Ranks(rank, rank, 2)))
        print(f"rank {rank}, step {step}: the first number is {torch.rand(()).item():.3f}")

# %% [markdown]
r"""
## The step

The functions that grow from here on call others of the trainer, which stay as they are. This cell imports them.
"""

# %%
import math

from nanogpt.checkpoint import latest, load as load_state, prune, random_states, save, set_random_states
from nanogpt.device import pick_device
from nanogpt.labs.long_run.assemble import (
    begun,
    clean,
    compare,
    ensure_data,
    first_model,
    optimizer_of,
    take_weights,
)
from nanogpt.labs.long_run.log import peak_flops
from nanogpt.labs.long_run.looks import measured_loss
from nanogpt.labs.long_run.stopping import asked_to_stop, naming_last_good
from nanogpt.labs.long_run.trainer import begin, judged, learning_rate, make_steps, say_end
from nanogpt.precision import why_not
from nanogpt.roofline import synchronize
from nanogpt.roofline import mfu, step_flops
from nanogpt.shards import write_shard
from nanogpt.training import train_step

# %% [markdown]
r"""
Now the step itself. Three lines are new: a rank takes its part of the micro-batches, dropout is seeded, and `train_step` gets the mean over the ranks, which it has known since chapter 20. It uses the mean for the number of targets and for the loss. DDP averages the gradients.

The decision whether a step counts needs no change, although it must be the same on all ranks: a rank that left out an update alone would have other weights from then on. All ranks judge the mean loss and the norm of the averaged gradient. These numbers are equal everywhere, so the
decisions are equal, too.
"""


# %%
#| export labs.long_run.trainer
#| grows update
def update(run: Training) -> tuple[float, dict, list]:
    """Take a batch, and update the weights by it if it is judged fit: its loss, what was judged, its micro-batches.

    Of several ranks each takes a part of the micro-batches, and all judge the same mean loss and norm.
    """
    c, lr = run.config, learning_rate(run.config, run.updates)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    if c.data.overfit:
        run.stream.position = 0  # the first batch, again
    mine = c.micro_batches // run.stream.world_size
    said, batches = {"lr": lr}, [run.stream.next_batch() for _ in range(mine)]
    seed_step(c.run.seed, run.step, run.stream)

    def accept(loss, norm) -> bool:  # not asked where fp16's scaler has found an overflow
        said.update(judged(run, loss.item(), norm.item()))
        return "skipped" not in said

    how = c.train.dtype, c.optim.clip, run.scaler, accept
    loss = train_step(run.stepper, run.optimizer, batches, *how, mean=run.ranks.mean)
    if "norm" not in said:
        said |= {"norm": math.inf, "skipped": "overflow" if loss.isfinite() else "not finite"}
    synchronize(run.device)
    return loss.item(), said, batches


# %%
grown("update", "20a")

# %% [markdown]
r"""
The parts are assembled as before, with three differences. Data are made by rank 0 first. What a step calls is the model in DDP. And the stream is told about the ranks.
"""


# %%
#| export labs.long_run.assemble
from nanogpt.distributed import Ranks, replicate


# %%
#| export labs.long_run.assemble
#| grows assemble
def assemble(config: Config, ranks: Ranks | None = None) -> Training:
    """All that a run needs, before its first step. ranks: those that share each batch; else there is one."""
    ranks = ranks or Ranks(device=pick_device(config.run.device))
    if reason := why_not(config.train.dtype, ranks.device):
        raise ValueError(f"train.dtype: {reason}")
    manifest = first_alone(ranks, ensure_data, config.data)
    model = first_model(config, manifest).to(ranks.device).train()
    stepper, stream = replicate(model, ranks), stream_of(config, ranks)
    run = begun(config, manifest, model, stepper, optimizer_of(config, model), stream)
    run.ranks = ranks
    return run


# %%
#| export labs.long_run.assemble
#| grows resume
def resume(config: Config, ranks: Ranks | None = None) -> Training:
    """The run as its newest whole checkpoint has it, or at its beginning; on all ranks alike."""
    folder, ranks = Path(config.run.dir), ranks or Ranks(device=pick_device(config.run.device))
    found = latest(folder)
    if found:
        state = load_state(found)
        compare(config, state["config"])
    run = assemble(config, ranks)
    refuse_other_runs(ranks, config, run.stream, str(found))
    if found:
        take_weights(run, found)
        run.load_state_dict(state)
        run.kept = found
        print(f"going on after step {run.step}, from {found}")
    if ranks.rank == 0:
        run.record = clean(folder, run.step) or run.record
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
#| export
#| blank my_documents: deal where the documents start, with np.array_split; a part ends where the next one begins
def my_documents(tokens: np.ndarray, eot: int, ranks: Ranks) -> np.ndarray:
    """A rank's part of a shard: whole documents, and the token behind the last, which is to be predicted too."""
    starts = np.array_split(document_starts(tokens, eot), ranks.size)
    bounds = [part[0] if len(part) else len(tokens) - 1 for part in starts] + [len(tokens) - 1]
    return tokens[bounds[ranks.rank] : bounds[ranks.rank + 1] + 1]


def held_loss(ranks: Ranks, evaluate: Callable, model, held: list[np.ndarray], eot: int, **how) -> float:
    """evaluate(model, held, eot, **how), chapter 18's mean loss, with the documents dealt to all ranks."""
    if ranks.size == 1:
        return evaluate(model, held, eot, **how)
    mine = [part for tokens in held if len(part := my_documents(tokens, eot, ranks)) > 1]
    count = sum(len(part) - 1 for part in mine)
    reports = gathered(ranks, (count, evaluate(model, mine, eot, **how) if count else 0.0))
    return sum(count * loss for count, loss in reports) / sum(count for count, _ in reports)


# %%
held, eot = held_out(DATA, 3000), manifest["eot"]
shape = GPTConfig(block_size=64, vocab_size=manifest["vocab_size"], n_layer=1, n_head=4, n_embd=64)
model = GPT(shape, torch.Generator().manual_seed(0))
parts = [my_documents(held[0], eot, Ranks(rank, rank, 3)) for rank in range(3)]
losses = [evaluate(model, [part], eot) for part in parts]
counts = [len(part) - 1 for part in parts]
whole = evaluate(model, held, eot)
together = sum(n * loss for n, loss in zip(counts, losses)) / sum(counts)
assert abs(together - whole) < 1e-5, "the parts' losses are not the loss of all documents"
print(*counts, f"tokens on three ranks: {together:.3f} nats a token together, and {whole:.3f} on one")

# %% [markdown]
r"""
In the trainer, `validate` calls `held_loss`, and all ranks take part in it. The other looks, samples and later HellaSwag, are made by rank 0 alone. They call the plain model and not the replica: a collective that only rank 0 calls would wait for the others for ever.
"""


# %%
#| export labs.long_run.looks
#| grows validate
#| grows look
from functools import partial


def validate(run: Training, model: GPT) -> dict:
    """The validation loss, and the floor where the data have one. Notes which step was the best. All ranks call it."""
    loss, more = measured_loss(run, model, partial(held_loss, run.ranks, evaluate))
    if loss < run.best.get("val_loss", math.inf):
        run.best = {"step": run.step, "val_loss": loss}
    return {"val_loss": loss} | more  # for `plot`


def look(run: Training, looks: list[Callable]) -> dict:
    """What the looks find, for the step's line: a validation by all ranks, the rest by rank 0. No later step notices them."""
    before, found = random_states(run.device), {}
    for each in looks:
        if run.ranks.rank == 0 or each is validate:
            found |= each(run, run.model)
    set_random_states(before, run.device)
    return found


# %%
grown("look", "20a")

# %% [markdown]
r"""
## Only rank 0 writes

What is left are the places where the trainer writes. A checkpoint and the removal of old ones belong to rank 0. A batch that was left out belongs to all, because each rank has only its own rows of it; so each writes its part under its own name. And a rank's share of the peak is what
`pace` must compare with: the step's work is divided by the number of ranks.
"""


# %%
#| export labs.long_run.trainer
#| grows keep_batch
def keep_batch(run: Training, batches: list) -> None:
    """Write the ids of a step that was left out, to be looked at: rows of T tokens, each rank its own."""
    ids = torch.cat([x.flatten() for x, _ in batches]).cpu().numpy()
    rank = f".rank{run.ranks.rank}" if run.ranks.rank else ""
    write_shard(run.folder / f"skipped/step_{run.step:06d}{rank}.bin", ids)


# %%
#| export labs.long_run.log
#| grows pace
def pace(run: Training, seconds: float) -> dict:
    """Of a step that took so long: milliseconds, tokens a second, and MFU where the device's peak is known."""
    tokens, T = run.config.train.batch_tokens, run.config.model.block_size
    said = {"ms": 1000 * seconds, "tokens_per_s": tokens / seconds}
    if peak := peak_flops(run.device, run.config.train.dtype):
        said["mfu"] = mfu(step_flops(run.model.config, tokens // T, T) / run.ranks.size, seconds, peak)
    return said


# %%
#| export labs.long_run.trainer
#| grows keep_run
#| grows tidy
from nanogpt.lora import weights_writer


def keep_run(run: Training, metrics) -> None:
    """Write a checkpoint of this step, if there is none yet, and flush the lines before it. Rank 0 writes."""
    folder = run.folder / f"step_{run.step:06d}"
    if run.kept != folder:
        if run.ranks.rank == 0:
            os.fsync(metrics.fileno())
            write = weights_writer(run.config)
            save(run.folder, run.step, run.model, run.state_dict(), run.tokenizer, write)
        run.kept = folder


def tidy(run: Training) -> None:
    """Remove old checkpoints, but for the newest ones and the best. Rank 0 does."""
    if run.ranks.rank == 0:
        prune(run.folder, run.config.run.keep, run.step, {run.best.get("step")})


# %%
grown("keep_run", "20a")

# %% [markdown]
r"""
## Stopping together

A scheduler may send its signal to one rank or to all. If rank 1 stops after step 7 and the others begin step 8, they wait for it in the next all-reduce until their patience ends. So after each step the ranks ask each other: has anybody a reason to stop? `first_reason` of chapter 20 does it with one number in most
steps. Then all stop after the same step, with one checkpoint.

This is the last function that grows. `fit` opens the run with `one_run`, lets rank 0 write the log, and asks all ranks for a reason.
"""


# %%
#| export labs.long_run.trainer
from nanogpt.distributed import first_reason


# %%
#| export labs.long_run.trainer
#| grows fit
def fit(config: Config, command: str = "the same call") -> Training:
    """Start the run in config.run.dir, or go on with it, to its last step or until a rank is asked to stop."""
    with one_run(config) as ranks:
        run, first = resume(config, ranks), ranks.rank == 0
        path = run.folder / "metrics.jsonl" if first else os.devnull
        with open(path, "ab", 0) as metrics, asked_to_stop(run) as why, naming_last_good(run):
            write = begin(run, metrics, command) if first else []
            make_steps(run, metrics, lambda: first_reason(ranks, why()), write)
        say_end(run, command)
    return run


# %%
grown("fit", "20a")

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
It is the same run. With two micro-batches even the last digit of the loss can be the same, because a sum of two numbers has only one order. With more of them, ranks add in another order than one process, and the last digits differ. How much time did the second process save?
"""

# %% tags=["nbval-ignore-output"]
ms = [float(np.median([line["ms"] for line in run[5:]])) for run in (one, two)]
print(f"{ms[0]:.0f} ms a step on one, {ms[1]:.0f} ms on two: {ms[0] / ms[1]:.2f}×")
answer("20a.1", ms[0] / ms[1])

# %% [markdown]
r"""
The two processes have half of the rows each, and yet they are less than twice as fast. They also average the gradients, and each of them makes the complete update. On this machine they share one memory as well. (If two are no faster than one, other programs are using the cores, or there is only one.)

## Another number of ranks

Nothing in a checkpoint says how many ranks there were. The stream's state is the number of rows that all ranks together have read, the optimizer's state is the same on all, and dropout is seeded in each step. So a run can go on with another number of ranks. We train half of the run on two processes, and the rest on one.

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
(The rate is constant in all these runs, because a cosine over 20 steps is another schedule than one over 40; chapter 17f has met this problem.)

That is all that many processes need in the trainer. When something goes wrong between them, a rank that dies or a group that waits for ever, chapter 20b finds out what it was. And a model that does not fit into one GPU needs more than copies: chapter 21.
"""

# %% [markdown]
r"""
## Appendix: a planned stop under torchrun

A run that its file `stop` or `run.minutes` has ended gives exit code 1, so that a script does not take it for a finished run. But torchrun takes every code except 0 for a failure and ends the other ranks. With `--max-restarts` it starts all of them again, so the run would go on at once. torchrun tells its ranks who they are by variables of the environment, `TORCHELASTIC_RUN_ID` among them. So `exit_code` grows by this case.
"""


# %%
#| export labs.long_run.stopping
import os
import signal


# %%
#| export labs.long_run.stopping
#| grows exit_code
def exit_code(training: Training) -> int:
    """For the shell: 0 for a finished run, 128 plus a signal's number, 1 for another stop; that is 0 under torchrun."""
    if training.step >= training.config.train.max_steps:
        return 0
    if training.stopped in ("SIGINT", "SIGTERM"):
        return 128 + signal.Signals[training.stopped]
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
3. Let `my_documents` cut the tokens into equal parts instead, wherever that is. Check: by how much is the validation loss on three ranks too high?
4. Let `held_loss` take the mean of the ranks' means. Check with parts of very different lengths: by how much is it wrong?
5. Seed dropout without the rank in `seed_step`. Does any assertion notice? Check: which units are dropped on the two ranks?

## Further reading

- PyTorch documentation, *torchrun (Elastic Launch)*: what a script must do for restarts.
- Karpathy, *build-nanogpt*, `train_gpt2.py`: the same additions to a training script, marked by `if ddp` and `master_process`.
- Goyal et al. 2017, *Accurate, Large Minibatch SGD*, §3: pitfalls of distributed training, among them the mean over workers.
"""
