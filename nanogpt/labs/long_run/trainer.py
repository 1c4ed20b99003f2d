"""The trainer: a run from a configuration that survives kill -9, bit for bit; the command `train`.

Exported from notebooks/17e_long_run.ipynb, grown by notebooks/17f_killed_run.ipynb,
notebooks/19c_fine_tuning_runs.ipynb, notebooks/20a_many_processes.ipynb, notebooks/21d_layouts.ipynb and
notebooks/24b_llama_runs.ipynb.
"""

import argparse
import math
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import torch

from nanogpt import optim
from nanogpt.checkpoint import prune, save
from nanogpt.config import Config, from_depth, key_lines, load_config
from nanogpt.distributed import first_reason
from nanogpt.labs.llama.runs import llama_dry_run, refuse_other_family
from nanogpt.labs.long_run.assemble import resume
from nanogpt.labs.long_run.log import introduce, keep_config, note_start, pace, report, say, writers
from nanogpt.labs.long_run.looks import due_looks, look
from nanogpt.labs.long_run.stopping import asked_to_stop, exit_code, naming_last_good
from nanogpt.labs.long_run.together import one_run, seed_step
from nanogpt.labs.long_run.training import Training
from nanogpt.labs.parallel.laid_out import written_by
from nanogpt.labs.plan.dryrun import dry_run
from nanogpt.roofline import synchronize
from nanogpt.shards import write_shard
from nanogpt.trainer import due
from nanogpt.training import train_step


def learning_rate(config: Config, updates: int) -> float:
    """The rate of the next update, after so many updates: steps that were skipped do not count."""
    o, steps = config.optim, config.train.max_steps
    if o.schedule == "cosine":
        return o.lr * optim.cosine(updates, steps, warmup=o.warmup, minimum=o.minimum)
    if o.schedule == "wsd":
        return o.lr * optim.wsd(updates, steps, warmup=o.warmup, decay=o.decay, minimum=o.minimum)
    return o.lr * optim.warm_up(updates, o.warmup)


def judged(run: Training, loss: float, norm: float) -> dict:
    """The norm and both z-scores, for the step's line; with "skipped" if the update must not be made."""
    if not math.isfinite(loss + norm):
        return {"norm": norm, "skipped": "not finite"}
    line = {"norm": norm, "loss_z": run.windows["loss"].z(loss), "norm_z": run.windows["norm"].z(norm)}
    limit, highest = run.config.train.skip_spikes, max(line["loss_z"] or 0, line["norm_z"] or 0)
    if limit and highest > limit:
        line["skipped"] = "spike"
    return line


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


def count(run: Training, skipped: str | None) -> None:
    """One more step, and one more update unless there is a reason why it was skipped."""
    run.step += 1
    if skipped is None:
        run.updates += 1
    else:
        run.skipped[skipped] += 1
    run.bad = run.bad + 1 if skipped == "not finite" else 0


def keep_batch(run: Training, batches: list) -> None:
    """Write the ids of a step that was left out, to be looked at: rows of T tokens, each rank its own."""
    ids = torch.cat([x.flatten() for x, _ in batches]).cpu().numpy()
    rank = f".rank{run.ranks.rank}" if run.ranks.rank else ""
    write_shard(run.folder / f"skipped/step_{run.step:06d}{rank}.bin", ids)


def one_step(run: Training) -> dict:
    """Make a step: its line for metrics.jsonl."""
    began = time.perf_counter()
    with run.timed("steps"):
        loss, said, batches = update(run)
    seconds = time.perf_counter() - began
    count(run, said.get("skipped"))
    if said.get("skipped") in ("not finite", "spike"):
        keep_batch(run, batches)
    line = {"step": run.step, "loss": loss} | said | pace(run, seconds)
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}


def keep_run(run: Training, metrics) -> None:
    """Write a checkpoint of this step, if there is none yet, and flush the lines before it. All ranks call it."""
    folder = run.folder / f"step_{run.step:06d}"
    if run.kept == folder:
        return
    model, state, write = written_by(run)
    if run.ranks.rank == 0:
        os.fsync(metrics.fileno())
        save(run.folder, run.step, model, state, run.tokenizer, write)
    run.kept = folder


def tidy(run: Training) -> None:
    """Remove old checkpoints, but for the newest ones and the best. Rank 0 does."""
    if run.ranks.rank == 0:
        prune(run.folder, run.config.run.keep, run.step, {run.best.get("step")})


def finish_step(run: Training, metrics) -> None:
    """Do everything that is due after a step. The checkpoint comes first: an evaluation may run out of memory."""
    last = run.step >= run.config.train.max_steps
    looks = [] if run.stopped else due_looks(run)
    often = due(run.config.run.checkpoint_every, run.step) and not run.bad
    if run.stopped or last or looks or often:
        with run.timed("checkpoints"):
            keep_run(run, metrics)
    if looks:
        with run.timed("evaluation"):
            run.record |= look(run, looks)
    tidy(run)


def make_steps(run: Training, metrics, why: Callable, write: list[Callable]) -> None:
    """Make steps up to the last one, or until why() gives a reason to stop. FloatingPointError if too many are not finite."""
    steps, bad = run.config.train.max_steps, run.config.train.bad_steps
    while (run.step < steps and not run.stopped) or run.record:
        run.record = run.record or one_step(run)
        run.stopped = why()
        finish_step(run, metrics)
        for each in write:
            each(run.record)
        run.record = None
        if run.bad >= bad:
            raise FloatingPointError(f"loss or gradient were not finite {run.bad} times in a row")


def say_rate(run: Training) -> None:
    """Say that the learning rate rises: behind the warm-up no schedule does, so the run has another one than before."""
    before, now = run.optimizer.param_groups[0]["lr"], learning_rate(run.config, run.updates)
    if run.updates > run.config.optim.warmup and now > 1.01 * before:
        say(
            f"the learning rate was {before:.2e} and is {now:.2e} from here on: the schedule has become longer"
        )


def begin(run: Training, metrics, command: str) -> list[Callable]:
    """Print and write down what is about to run; return the functions that take each step's line."""
    note_start(run, command)
    keep_config(run)
    introduce(run)
    say_rate(run)
    return list(writers(run.config, metrics, run.step))


def say_end(run: Training, command: str) -> None:
    """Why it stopped and how to go on, or what it came to."""
    if run.step < run.config.train.max_steps:
        say(f"stopped by {run.stopped} after step {run.step}; to go on: {command}")
    else:
        report(run)


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


HELP = """Start a run, or go on with it where its newest checkpoint is: the same command does both.

  python -m nanogpt train tiny
  python -m nanogpt train shakespeare data.source=mine.txt data.dir=data/built/mine
  python -m nanogpt train gpt2-124M train.micro_batch=8 --dry-run
  python -m nanogpt train runs/tiny                              go on with the run in this folder

Ctrl-C, SIGTERM, a file named `stop` in run.dir and run.minutes end it after the step, with a checkpoint. Its exit
code is then 130, 143, 1 and 1. 0 says that the run is finished.
"""


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    every_key = "\n".join(["keys and their defaults:", *key_lines(Config)])
    looks = {"description": HELP, "epilog": every_key}
    parser = argparse.ArgumentParser(**looks, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "config", help="a YAML file, the name of one in nanogpt/configs/, or the folder of a run"
    )
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="all keys are below")
    parser.add_argument("--dry-run", action="store_true", help="say what the run would take, and end")
    parser.add_argument(
        "--depth", type=int, metavar="N", help="layers; width, heads, lr and max_steps follow"
    )
    parser.parse_args = parser.parse_intermixed_args  # an override may stand after an option
    return parser


def config_of(args: argparse.Namespace) -> Config:
    """The run that the options ask for; of a run's folder, the one that was begun there."""
    file, place = args.config, []
    if Path(args.config, "config.yaml").is_file():
        file, place = Path(args.config, "config.yaml"), [f"run.dir={args.config}"]
    dial = []
    if args.depth is not None:  # a width of its own may not suit the file's heads
        others = [override for override in args.overrides if not override.startswith("model.n_")]
        dial = from_depth(args.depth, load_config(file, others).train.batch_tokens)
    return load_config(file, [*place, *dial, *args.overrides])


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt train`, its options parsed."""
    config = config_of(args)
    refuse_other_family(config)
    if args.dry_run:
        return llama_dry_run(config) if config.family == "llama" else dry_run(config)
    depth = [] if args.depth is None else ["--depth", str(args.depth)]
    done = fit(config, f"python -m nanogpt train {shlex.join([args.config, *args.overrides, *depth])}")
    if exit_code(done):
        raise SystemExit(exit_code(done))
