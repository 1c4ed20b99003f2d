"""The trainer: a loop, a log, looks at the model, and checkpoints from which a run goes on.

Exported from notebooks/17_trainer.ipynb, grown by notebooks/17b_checkpoints.ipynb,
notebooks/17d_assembly.ipynb, notebooks/17e_long_run.ipynb, notebooks/17f_killed_run.ipynb,
notebooks/20a_many_processes.ipynb, notebooks/20b_many_machines.ipynb and notebooks/21_sharding.ipynb.
"""

import argparse
import errno
import json
import math
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import torch
import yaml

import nanogpt
from nanogpt import optim
from nanogpt.build import build_model, build_optimizer, ensure_data, find_tokenizer, hold_out, open_stream
from nanogpt.checkpoint import (
    is_in_parts,
    latest,
    load_state,
    prune,
    random_states,
    repair,
    save,
    set_random_states,
)
from nanogpt.config import Config, config_dict, hook, hooks, key_lines, keys, load_config, load_labs
from nanogpt.data import BatchStream
from nanogpt.device import pick_device, seed_everything, synchronize
from nanogpt.distributed import (
    Ranks,
    first_alone,
    first_reason,
    gathered,
    my_documents,
    patience,
    process_group,
    replicate,
    torchrun_ranks,
)
from nanogpt.evaluate import evaluate
from nanogpt.files import alone_in, atomically
from nanogpt.metrics import span, step_line
from nanogpt.model import GPT, mfu, step_flops
from nanogpt.optim import global_norm, gradients_of, scale_to
from nanogpt.precision import LossScaler, why_not
from nanogpt.sampling import complete
from nanogpt.shards import load_manifest, write_shard
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import accumulate_gradients
from nanogpt.weights import load_model, save_model

COUNTED = "step", "updates", "bad", "record", "best", "skipped", "seconds", "notes"  # kept as they are


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
    ranks: Ranks = field(default_factory=Ranks)  # one, unless torchrun has started several

    @property
    def folder(self) -> Path:
        return Path(self.config.run.dir)

    def state_dict(self) -> dict:
        """For a checkpoint, beside the weights."""
        parts = {"optimizer": self.optimizer, "data": self.stream, "scaler": self.scaler}
        state = {name: part and part.state_dict() for name, part in parts.items()}
        state |= {name: getattr(self, name) for name in COUNTED} | {"config": config_dict(self.config)}
        return state | {"random": random_states(self.device)}

    def load_state_dict(self, state: dict) -> None:
        if state["optimizer"] is not None:  # else its moments came with the parts of the weights
            self.optimizer.load_state_dict(state["optimizer"])
        self.stream.load_state_dict(state["data"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        for name in COUNTED:
            setattr(self, name, state[name])
        self.skipped, self.seconds = Counter(state["skipped"]), Counter(state["seconds"])
        set_random_states(state["random"], self.device)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Count the block's seconds."""
        began = time.perf_counter()
        yield
        seconds = time.perf_counter() - began
        self.seconds[what] += seconds
        self.longest[what] = max(seconds, self.longest.get(what, 0))


def learning_rate(config: Config, updates: int) -> float:
    """The rate of the next update, after so many updates. The schedule gets all that config.optim has for it."""
    o, steps = config.optim, config.train.max_steps
    if o.schedule == "cosine":
        return o.lr * optim.cosine(updates, steps, warmup=o.warmup, minimum=o.minimum)
    if o.schedule == "wsd":
        return o.lr * optim.wsd(updates, steps, warmup=o.warmup, decay=o.decay, minimum=o.minimum)
    return o.lr * optim.warm_up(updates, o.warmup)


def judge(run: Training, line: dict) -> str | None:
    """Why this step must not change the weights; None if it may."""
    if not math.isfinite(line["loss"] + line["norm"]):
        return "not finite"
    refusals = [each(run, line) for each in run.judges]
    return next(filter(None, refusals), None)


def seed_step(seed: int, step: int, stream: BatchStream) -> None:
    """Let dropout differ by step and by rank, where several ranks read different rows."""
    if stream.world_size > 1:
        torch.manual_seed(hash((seed, step, stream.rank)) % 2**63)


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


def count_step(run: Training, skipped: str | None) -> None:
    """One more step, and one more update unless there is a reason why it was skipped."""
    run.step += 1
    if skipped is None:
        run.updates += 1
    else:
        run.skipped[skipped] += 1
    run.bad = run.bad + 1 if skipped == "not finite" else 0


def keep_batch(run: Training, batches: list) -> None:
    """Write the ids of a step that was left out to a file, as rows of T tokens; each rank its own."""
    ids = torch.cat([x.flatten() for x, _ in batches]).cpu().numpy()
    rank = f".rank{run.ranks.rank}" if run.ranks.rank else ""
    write_shard(run.folder / f"skipped/step_{run.step:06d}{rank}.bin", ids)


def peak_flops(device: torch.device, precision: str) -> float | None:
    """FLOP/s by the GPU's data sheet, where there is one."""
    if device.type != "cuda":
        return None
    sheet = import_module("nanogpt.labs.roofline.sheets").peak_of(torch.cuda.get_device_name(device))
    rate = sheet and {"float32": sheet.float32, "tf32": sheet.tf32}.get(precision, sheet.half)
    return rate and 1e12 * rate


def pace(run: Training, seconds: float) -> dict:
    """Of a step that took so long: milliseconds, tokens a second, and MFU where the device's peak is known."""
    tokens, T = run.config.train.batch_tokens, run.config.model.block_size
    rates = {"ms": 1000 * seconds, "tokens_per_s": tokens / seconds}
    if peak := peak_flops(run.device, run.config.train.dtype):
        rates["mfu"] = mfu(step_flops(run.model.config, tokens // T, T) / run.ranks.size, seconds, peak)
    return rates


def one_step(run: Training) -> dict:
    """Make a step: its line for metrics.jsonl."""
    began = time.perf_counter()
    with run.timed("steps"):
        line, batches = update(run)
    seconds = time.perf_counter() - began
    count_step(run, line.get("skipped"))
    if line.get("skipped") not in (None, "overflow"):
        keep_batch(run, batches)
    line = {"step": run.step} | line | pace(run, seconds)
    return {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in line.items()}


def due(every: int, step: int, last: bool = False) -> bool:
    """Whether it is time, after this step, for something that is done after every `every` steps and after the last; 0: never."""
    return every > 0 and (step % every == 0 or last)


def look(run: Training, looks: list[Callable]) -> dict:
    """The results of the looks, for the step's line. The random states are put back, so no later step changes."""
    before, line = random_states(run.device), {}
    for each in looks:
        line |= each(run)
    set_random_states(before, run.device)
    return line


def snapshot(run: Training) -> tuple[GPT, dict, Callable]:
    """What a checkpoint holds: the model, the state, and what writes the model's weights."""
    return run.model, run.state_dict(), save_model


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


def load_weights(run: Training, folder: Path) -> None:
    """Give the run's model the weights of a checkpoint; of one in parts its optimizer the moments as well."""
    if not is_in_parts(folder):
        run.model.load_state_dict(load_model(folder).state_dict())
        return
    if (tp := run.config.parallel.tp) > 1:
        raise ValueError(f"{folder} is in parts, which parallel.tp={tp} cannot read; set 1")
    lab = import_module("nanogpt.labs.parallel.fsdp")  # here: its imports take a second
    lab.load_parts(folder, run.model, run.optimizer)


def clean_up(folder: Path, step: int) -> dict | None:
    """Remove what a kill has left: half a checkpoint, and lines from the step on; the step's own line, if it was there."""
    for aside in folder.glob(".step_*.tmp"):
        shutil.rmtree(aside)
    return repair(folder / "metrics.jsonl", step)


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


def introduce(run: Training) -> None:
    """Two lines: what is about to run, on what, and where it is kept."""
    began = f"goes on after step {run.step}" if run.step else "a new run"
    train, parameters = run.config.train, sum(p.numel() for p in run.model.parameters())
    print(f"{run.folder.name}: {began}; {parameters:,} parameters in {train.dtype} on {run.device}")
    tokens = train.max_steps * train.batch_tokens
    print(f"{train.max_steps:,} steps of {train.batch_tokens:,} tokens, {tokens:,} in all")


def name_last_good(run: Training) -> str:
    """For a message: the checkpoint from which the run can go on."""
    return f"the last good checkpoint is {run.kept}" if run.kept else "there is no checkpoint yet"


def take_stop_file(run: Training) -> str | None:
    """A reason to end: a file `stop` in the run's folder, which is removed."""
    file = run.folder / "stop"
    if file.exists():
        file.unlink(missing_ok=True)
        return f"the file {file}"


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


DISK_FULL = {getattr(errno, name, None) for name in ("ENOSPC", "EFBIG", "EDQUOT")} - {None}


@contextmanager
def naming_last_good(run: Training) -> Iterator[None]:
    """Add the last good checkpoint to the message of an error that ends the run: no finite loss, or a full disk."""
    try:
        yield
    except FloatingPointError as error:
        advice = "begin again in another run.dir, with a lower optim.lr, by init_from if a checkpoint still gives a finite loss"
        raise FloatingPointError(f"step {run.step}: {error}; {name_last_good(run)}; {advice}") from None
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        raise OSError(f"no room left in {run.folder}; {name_last_good(run)}; make room and go on") from None


def open_log(run: Training):
    """metrics.jsonl, unbuffered: what is written survives the process. Ranks above 0 write nowhere."""
    run.folder.mkdir(parents=True, exist_ok=True)
    return open(os.devnull if run.ranks.rank else run.folder / "metrics.jsonl", "ab", 0)


def keep_config(run: Training) -> None:
    """Write config.yaml into the run's folder: `train FOLDER` goes on with it."""
    with atomically(run.folder / "config.yaml") as file:
        file.write(yaml.safe_dump(config_dict(run.config), sort_keys=False).encode())


def note_start(run: Training, command: str) -> None:
    """One more line in started.jsonl: with which software, and by which command, the run was begun or resumed."""
    git = ["git", "-C", str(Path(nanogpt.__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    git += ["--exclude=*"]  # the commit, no tag; with -dirty where files have been edited since
    commit = None  # where there is no git
    with suppress(OSError):
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or None
    line = {"step": run.step, "time": time.strftime("%Y-%m-%d %H:%M:%S"), "torch": torch.__version__}
    line |= {"python": platform.python_version(), "commit": commit, "command": command}
    with open(run.folder / "started.jsonl", "a", encoding="utf-8") as file:
        print(json.dumps(line), file=file)


def say(text: str, end: str = "\n") -> None:
    """Print a line; on a terminal in the place of a step's line that does not stay."""
    print(("\r\033[K" if sys.stdout.isatty() else "") + text, end=end, flush=True)


def open_writers(run: Training, metrics) -> list[Callable]:
    """What is called with each step's line: for the screen, for metrics.jsonl, and what labs have added."""
    steps, began = run.config.train.max_steps, time.monotonic()
    first = run.step + 1  # of this process: it compiles, and says nothing about the other steps

    def show(line: dict) -> None:  # on a terminal every step, each in the place of the one before
        nonlocal began
        left = steps - line["step"]
        stays = due(run.config.run.log_every, line["step"], not left) or {"val_loss", "skipped"} & line.keys()
        text = step_line(line, steps)
        if line["step"] <= first:
            began = time.monotonic()
        elif left:
            each = (time.monotonic() - began) / (line["step"] - first)
            text += f" | {span(left * each)} left"
        if stays or sys.stdout.isatty():
            say(text, end="\n" if stays else "")

    def append(line: dict) -> None:
        metrics.write(json.dumps(line).encode() + b"\n")

    return [show, append, *run.writers]


def say_rate(run: Training) -> None:
    """Say that the learning rate rises: behind the warm-up no schedule does, so the run has another one than before."""
    before, now = run.optimizer.param_groups[0]["lr"], learning_rate(run.config, run.updates)
    if run.updates > run.config.optim.warmup and now > 1.01 * before:
        say(
            f"the learning rate was {before:.2e} and is {now:.2e} from here on: the schedule has become longer"
        )


def begin(run: Training, metrics, command: str) -> list[Callable]:
    """Print and write down what is about to run; return the functions that take each step's line. Rank 0 does."""
    if run.ranks.rank:
        return []
    note_start(run, command)
    keep_config(run)
    introduce(run)
    say_rate(run)
    return open_writers(run, metrics)


def print_results(run: Training) -> None:
    """Print the run's results, and how its time was spent."""
    total = sum(run.seconds.values())
    spent = ", ".join(f"{what} {s:.1f} s ({s / total:.1%})" for what, s in run.seconds.items())
    skipped = ", ".join(f"{n} {why}" for why, n in run.skipped.items()) or "none"
    print(f"{run.step} steps, {spent}; skipped: {skipped}")
    if run.best:
        print(f"best val loss {run.best['val_loss']:.6f} at step {run.best['step']}")
    place = run.folder / "best" if run.best else run.folder
    print(f"python -m nanogpt sample --checkpoint {shlex.quote(str(place))}")


def say_end(run: Training, command: str) -> None:
    """Why it stopped and how to go on, or what it came to."""
    if run.step < run.config.train.max_steps:
        say(f"stopped by {run.stopped} after step {run.step}; to go on: {command}")
    else:
        print_results(run)


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


def validate(run: Training) -> dict:
    """The validation loss, and the floor where the data have one. Notes which step was the best."""
    loss = hook(run.config, held_loss)(run)
    if loss < run.best.get("val_loss", math.inf):
        run.best = {"step": run.step, "val_loss": loss}
    floor = {key: value for key, value in load_manifest(run.config.data.dir).items() if key == "floor"}
    return {"val_loss": loss if math.isfinite(loss) else None} | floor  # the floor is for `plot`


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


def due_looks(run: Training) -> list[Callable]:
    """The looks that are due after this step. At the last step all are due that are done at all."""
    asked = run.config.eval
    last = run.step >= run.config.train.max_steps
    looks = [(asked.every, validate), (asked.sample_every, write_sample), *run.looks]
    return [each for every, each in looks if due(every, run.step, last)]


def tidy(run: Training) -> None:
    """Remove old checkpoints, but for the newest ones and the best. Rank 0 does."""
    if run.ranks.rank == 0:
        prune(run.folder, run.config.run.keep, run.step, {run.best.get("step")})


def finish_step(run: Training, metrics) -> None:
    """Do everything that is due after a step. The checkpoint comes first: a look may run out of memory."""
    last = run.step >= run.config.train.max_steps
    looks = [] if run.stopped and not last else due_looks(run)
    often = due(run.config.run.checkpoint_every, run.step) and not run.bad
    saves = run.stopped or last or looks or often
    if saves:
        with run.timed("checkpoints"):
            save_checkpoint(run, metrics)
    if looks:
        with run.timed("evaluation"):
            run.record |= look(run, looks)
    if saves:
        tidy(run)


def fit(run: Training, command: str = "the same call") -> Training:
    """Train a run, or go on with it, to its last step or until it is asked to stop. command: how to go on, for a message."""
    resume(run)
    steps, bad_steps = run.config.train.max_steps, run.config.train.bad_steps
    if run.step > steps:
        raise ValueError(f"{run.folder} has done {run.step} steps already, and train.max_steps={steps}")
    with open_log(run) as metrics, asked_to_stop(run) as why, naming_last_good(run):
        writers = begin(run, metrics, command)
        while (run.step < steps and not run.stopped) or run.record:
            # a step, unless a killed process has left its line unfinished
            run.record = run.record or one_step(run)
            run.stopped = why()
            # save and look, where it is time
            finish_step(run, metrics)
            # the line is complete
            for write in writers:
                write(run.record)
            run.record = None
            if run.bad >= bad_steps:
                raise FloatingPointError(f"loss or gradient were not finite {run.bad} times in a row")
    say_end(run, command)
    return run


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


def refuse_ranks(config: Config, ranks: Ranks) -> None:
    """ValueError for a run that these ranks cannot do, before they meet."""
    for check in hooks(config, "check_ranks"):
        check(config, ranks)
    lab = import_module("nanogpt.labs.plan.too_large")
    if config.init_from is None and (reason := lab.why_too_large(config, ranks.device, ranks.size)):
        raise ValueError(reason)


@contextmanager
def join_run(config: Config) -> Iterator[Ranks]:
    """The ranks of a run together: rank 0 has the run's folder for itself, and nobody else's prints are seen."""
    ranks = torchrun_ranks(config.run.device)
    refuse_ranks(config, ranks)
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # else PyTorch 2.9 records nothing for the watch
    with ExitStack() as stack:
        stack.enter_context(process_group(ranks, patience()))
        if ranks.size > 1:
            lab = import_module("nanogpt.labs.parallel.watch")
            stack.enter_context(lab.watched(ranks, patience() / 2))
        if ranks.rank == 0:
            stack.enter_context(alone_in(Path(config.run.dir), "trainer", "choose another run.dir"))
        else:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
        yield ranks


def train_config(config: Config, command: str = "the same call") -> Training:
    """Start the run in config.run.dir, or go on with it, to its last step or until a rank is asked to stop."""
    with join_run(config) as ranks:
        return fit(build_run(config, ranks), command)


def exit_code(run: Training) -> int:
    """For the shell: 0 for a finished run, 128 plus a signal's number, 1 for another stop; that is 0 under torchrun."""
    if run.step >= run.config.train.max_steps:
        return 0
    if run.stopped in ("SIGINT", "SIGTERM"):
        return 128 + signal.Signals[run.stopped]
    return 0 if "TORCHELASTIC_RUN_ID" in os.environ else 1


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


def read_options(args: argparse.Namespace) -> Config:
    """The run that the options ask for; of a run's folder, the one that was begun there."""
    file, place = args.config, []
    if Path(args.config, "config.yaml").is_file():
        file, place = Path(args.config, "config.yaml"), [f"run.dir={args.config}"]
    dial = []
    if args.depth is not None:  # a width of its own may not suit the file's heads
        others = [override for override in args.overrides if not override.startswith("model.n_")]
        lab = import_module("nanogpt.labs.plan.depth")
        dial = lab.from_depth(args.depth, load_config(file, others).train.batch_tokens)
    return load_config(file, [*place, *dial, *args.overrides])


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt train`, its options parsed."""
    config = read_options(args)
    if args.dry_run:
        lab = import_module("nanogpt.labs.plan.dryrun")
        return hook(config, lab.dry_run)(config)
    depth = [] if args.depth is None else ["--depth", str(args.depth)]
    done = train_config(
        config, f"python -m nanogpt train {shlex.join([args.config, *args.overrides, *depth])}"
    )
    if exit_code(done):
        raise SystemExit(exit_code(done))
