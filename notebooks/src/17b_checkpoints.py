# %% [markdown]
r"""
# 17b · Checkpoints: whole or not there

Chapter 17's trainer writes `checkpoint.pt` and goes on from it, and we saw that an interrupted run has exactly the losses of one that was not. That
was a kind case. In this sitting we look for the cases in which the simple checkpoint fails. There are five:

1. It forgets something that a step changes.
2. The process is killed while it writes the file.
3. The power fails just after the file was written.
4. The disk gives back other bits than it was given.
5. The file was made by somebody else.

Each case is shown first, and then repaired where it appears. Two of them are dangerous because nothing fails: the run goes on, the loss looks
right, and yet it is another run. So the law of this sitting is not "it loads". It is: a run that was saved and loaded is the
run that was not, to the last bit.
"""

# %%
#| default_exp run.checkpoint
#| doc run.checkpoint: A checkpoint: a directory a step, whole or not there, proved by hashes.
import copy
import json
import os
import signal
import sys
import time
import warnings

import numpy as np

from course.figures import checkpoints as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.corpora.corpus import ensure_corpus
from nanogpt.gpt.model import GPTConfig, num_params
from nanogpt.gpt.optim import make_optimizer
from nanogpt.run.metrics import read_metrics
from nanogpt.run.simple import Training, fit, one_step
from nanogpt.text.data import DocumentStream
from nanogpt.text.shards import open_shards, read_shard
from nanogpt.text.tokenizer import BPETokenizer


# %%
#| export run.checkpoint
import json
import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor

from nanogpt.gpt.model import GPT
from nanogpt.gpt.weights import save_model
from nanogpt.text.files import atomically, save_json
from nanogpt.text.shards import file_sha256, manifest_sha256

MANIFEST = "manifest.json"


# %%
BEFORE, AFTER, WEIGHTS = 12, 4, 6  # steps before and after a resume; weights of which each bit is flipped
KILLS = 12  # of a process that saves
if min(BEFORE, AFTER, WEIGHTS, KILLS) < 1:
    raise ValueError(
        f"BEFORE={BEFORE}, AFTER={AFTER}, WEIGHTS={WEIGHTS}, KILLS={KILLS}: each must be above 0"
    )
RUNS = Path("../data/built/checkpoints")
shutil.rmtree(RUNS, ignore_errors=True)
torch.set_num_threads(
    1
)  # the same bits take the same order of sums, and a forked child can have no more threads
V = ensure_corpus(RUNS / "stories", n=1000)["vocab_size"]
shape = GPTConfig(block_size=128, vocab_size=V, n_layer=2, n_head=4, n_embd=64, dropout=0.1)
tokenizer = BPETokenizer.load(RUNS / "stories/tokenizer.json")


# %% [markdown]
r"""
## Something more that a step changes

Here is chapter 17's run again, with one difference: this model has dropout. In every step, dropout sets a tenth of the activations to zero, and it draws at
random which ones.
"""


# %%
def new_run(name: str, steps: int = BEFORE + AFTER) -> Training:
    """A run at its beginning, in a folder of its own."""
    (RUNS / name).mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model = GPT(shape, torch.Generator().manual_seed(0))
    stream = DocumentStream(open_shards(RUNS / "stories", "train"), 4, 128, seed=0)
    held = np.concatenate([read_shard(path) for path in open_shards(RUNS / "stories", "val")])[:2000]
    parts = model, make_optimizer(model, 2e-3), stream, tokenizer, ([held], tokenizer.eot)
    return Training(RUNS / name, *parts, steps, 2e-3, EVERY)


def losses(run: Training, n: int) -> list[float]:
    """Of the next n steps."""
    return [one_step(run)["loss"] for _ in range(n)]


EVERY = 10  # steps from one look to the next
run = new_run("first")
print([round(loss, 3) for loss in losses(run, BEFORE)])


# %% [markdown]
r"""
Now we keep what chapter 17 keeps, in memory this time: step, model, optimizer, stream. Then the run makes some more steps, and a second run makes the same steps
from what was kept.

*Predict.* Which is the first loss after the break that differs? (0 means that none does.)
"""


# %%
def state_of(run: Training) -> dict:
    """What chapter 17's checkpoint.pt holds."""
    parts = {"model": run.model, "optimizer": run.optimizer, "stream": run.stream}
    return {"step": run.step} | {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}


def loaded(state: dict) -> Training:
    """A new run that goes on from a state."""
    run = new_run("loaded")
    run.step = state["step"]
    for name in ("model", "optimizer", "stream"):
        getattr(run, name).load_state_dict(copy.deepcopy(state[name]))
    return run


def first_apart(a: list[float], b: list[float]) -> int:
    """The number of the first loss that differs, from 1; 0 if none does."""
    return next((n for n, (x, y) in enumerate(zip(a, b), 1) if x != y), 0)


# %% tags=["nbval-ignore-output"]
predict("17b.1", "first loss that differs, with dropout", guess=None)
state, before = state_of(run), torch.get_rng_state()
went_on = losses(run, AFTER)
forgetful = losses(loaded(state), AFTER)
for name, found in (("went on", went_on), ("loaded", forgetful)):
    print(f"{name:8}", [round(loss, 4) for loss in found])
answer("17b.1", first_apart(went_on, forgetful))


# %% [markdown]
r"""
The very first loss is another one. It does not look wrong, and nobody who sees only one of the two lines would notice. What was forgotten? Dropout draws its random numbers from PyTorch's
global generator, and every step moves that generator on. The loaded run began with the generator of a new process.

So the generator's state belongs into a checkpoint. It is a tensor of 5,056 bytes on a CPU, and a GPU has a generator of its own.
"""


# %%
#| export run.checkpoint
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


# %% tags=["nbval-ignore-output"]
again = loaded(state)
set_random_states({"cpu": before}, torch.device("cpu"))
complete = losses(again, AFTER)
print([round(loss, 4) for loss in complete], first_apart(went_on, complete))
assert complete == went_on, "with the generator's state the run should be the same"


# %% [markdown]
r"""
Now all losses agree. How would each of the other things show if it were forgotten? We load everything, and then set one thing back to where a new run has it.

*Predict.* A loss is computed before the update of its step. Which is the first loss that shows that AdamW's two averages were lost?
"""

# %%
forget = {
    "nothing": lambda run: None,
    "the place in the data": lambda run: setattr(run.stream, "position", 0),
    "dropout's generator": lambda run: torch.manual_seed(0),
    "the number of the step": lambda run: setattr(run, "step", 0),
    "AdamW's averages": lambda run: run.optimizer.state.clear(),
}
predict("17b.2", "first loss that shows that AdamW's averages were lost", guess=None)
for what, of in forget.items():
    again = loaded(state)
    set_random_states({"cpu": before}, torch.device("cpu"))
    of(again)
    apart = first_apart(went_on, losses(again, AFTER))
    print(f"{what:22} forgotten: loss {apart} is the first that differs (0: none)")
answer("17b.2", apart)


# %% [markdown]
r"""
The place in the data and the generator show in the first loss, because they change the batch or the activations. The number of the step and AdamW's averages show in the second: they
change the *update*, and the loss of a step is computed before its update. A test that makes one step after loading would say that all is well. None of the
five raises an error. Here is what a run of days must remember, then:

| what a step changes | where it is | what a run does that forgets it |
|---|---|---|
| the weights | 4 bytes a parameter | begins again |
| AdamW's two averages, and its count of steps | 8 bytes a parameter | stumbles: chapter 17e measures it |
| the place in the data | a few numbers | reads the first part twice, the last part never |
| the generator that dropout draws from | 5 kB | repeats its random numbers |
| the number of the step | one number | has another learning rate |
| float16's scale (chapter 10b) | a few numbers | skips steps until it has found the scale again |

## A kill in the middle of a file

The second case is a kill. `kill -9` may come at any moment, and also while `torch.save` writes. We let a child process save the same state, rest for five milliseconds, and save again. We kill it
after a random time, and try to load what is there.

*Predict.* How many of the kills leave a file that cannot be loaded?
"""


# %%
def loads_after_kill(path: Path, seconds: float) -> bool:
    """Whether the file can be loaded after a process that saves and rests, again and again, was killed."""
    with warnings.catch_warnings(action="ignore"):  # to fork is unwise beside threads; this child dies anyway
        if not (child := os.fork()):
            try:
                while True:
                    torch.save(state, path)
                    time.sleep(0.005)
            finally:
                os._exit(1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    try:
        torch.load(path, weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError):
        return False
    return True


# %% tags=["nbval-ignore-output"]
predict("17b.3", f"of {KILLS} kills, so many leave a file that cannot be loaded", guess=None)
dice = np.random.default_rng(0)
has_fork = hasattr(os, "fork")  # Windows has none
found = [
    loads_after_kill(RUNS / "simple.pt", dice.uniform(0.1, 0.2)) for _ in range(KILLS if has_fork else 0)
]
print(f"{found.count(True)} whole, {found.count(False)} torn")
answer("17b.3", found.count(False) if has_fork else "Windows has no fork")


# %% [markdown]
r"""
A torn file is bad enough. Worse, `torch.save` had already overwritten the older checkpoint under the same name, so there is nothing to go back to: the
run of days is lost because of a kill in the wrong millisecond. (This child saves for a large part of its time. A real run saves for a small part, so it is hit less often. But
it runs longer.)

Our own checkpoint will do two things differently. It is a folder for each step, so that the one before is still there. And it gets its name only when it is whole.

## Plain files, without pickle

First the contents. The weights go into the folder as chapter 07 writes them, so that `sample` and `eval` can read it. All the rest is JSON, and its
tensors are in a safetensors file. There is no pickle, so nothing in a checkpoint can run when it is read: that settles case 5. An optimizer's state is a nest of dictionaries and lists
with tensors here and there. `pack` takes the tensors out and leaves their names, `unpack` puts them back.
"""


# %%
#| export run.checkpoint
#| blank pack: a tensor goes into tensors, dicts and lists are packed part by part, the rest stays
#| blank unpack: the way back: look up each tensor, unpack dicts and lists part by part
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


# %%
print(packed := pack({"means": [torch.ones(2), torch.zeros(2)], "steps": 3}, "state", tensors := {}))
assert unpack(packed, tensors)["means"][0].tolist() == [1, 1], "what comes back is not what went in"

# %% [markdown]
r"""
## Whole or not there

The files are written into a folder with another name, which is renamed when all of it is there. The operating system does a rename completely or not at all.

A power cut (case 3) is worse than a kill. What a process has written is often still in the computer's memory, and a new name can reach the disk before the
contents that it names. Pillai et al. (2014) found this mistake in databases and in version control systems. `fsync` waits until something is really on the
disk. Hence the order: write the files, flush each of them, flush the folder, rename it, flush the folder above.
"""


# %%
#| export run.checkpoint
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
#| export run.checkpoint
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
Here is what `save` leaves: five files, and the manifest, which lists them.
"""

# %%
tried = save(RUNS / "tried", run.step, run.model, {"optimizer": run.optimizer.state_dict()}, tokenizer)
print(tried.name, sorted(file.name for file in tried.iterdir()))

# %% [markdown]
r"""
*See.* What does a kill leave, at each moment? Two ways of writing are compared: each file straight into its place, and `save`. Python announces every change to the
disk before it is made (`sys.addaudithook`). A child process counts the announcements and kills itself before the first, the second, and so on. We look at what each child leaves.

*Predict.* Straight into its place there are four files. Each is opened under another name and renamed: nine moments, with the one after the last. How many of them leave
a checkpoint with a part missing?
"""


# %%
def straight(folder: Path, step: int, model: GPT, state: dict) -> None:
    """The same files, each atomic, without a name aside."""
    target, tensors = folder / f"step_{step:06d}", {}
    save_model(model, target)
    save_json(target / "state.json", pack(state, "state", tensors))
    with atomically(target / "state.safetensors") as file:
        file.write(serialize(tensors))


# %%
def killed(moment: int, write, folder: Path, *what) -> bool:
    """Write in a child process that is killed before its change of that number; false if it makes fewer."""
    with warnings.catch_warnings(action="ignore"):  # to fork is unwise beside threads; this child dies anyway
        if child := os.fork():
            return os.waitpid(child, 0)[1] != 0
    changes = []

    def hook(event: str, args: tuple) -> None:
        written = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
        if (written or event == "os.rename") and folder.name in str(args[0]):
            changes.append(event)
            if len(changes) == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    try:
        write(folder, *what)
    finally:
        os._exit(0)


# %%
def left_by(write) -> list[str]:
    """What stands under the newest name after a kill before the first change, the second, and so on."""
    found, folder = [], RUNS / "kills"
    model = GPT(GPTConfig(block_size=8, vocab_size=16, n_layer=1, n_head=1, n_embd=8))
    for moment in range(1, 99):
        shutil.rmtree(folder, ignore_errors=True)
        save(folder, 1, model, {})
        dead = killed(moment, write, folder, 2, model, {"means": torch.ones(8)})
        newest = max(folder.glob("step_*"))
        new = "the new one" if len(list(newest.glob("[!.]*"))) >= 4 else "half of the new one"
        found.append("the old one" if newest.name == "step_000001" else new)
        if not dead:
            return found


# %%
predict("17b.4", "moments, of nine, at which kill -9 leaves half of it", guess=None)
ways = {"straight": left_by(straight), "aside, renamed": left_by(save)} if has_fork else {}
for name, found in ways.items():
    print(name, {what: found.count(what) for what in dict.fromkeys(found)})
    assert name == "straight" or "half of the new one" not in found, "a half one has a name"
answer("17b.4", ways["straight"].count("half of the new one") if ways else "Windows has no fork")
show(figures.moments(ways), alt="Kills in order: straight, most leave half a checkpoint; renamed, none does.")


# %% [markdown]
r"""
With a rename there is always a whole checkpoint: the old one or the new one. Straight into their places, each file is whole, and still the set of them is not. Such a half
checkpoint loads wherever a part may be absent, and nobody notices. (A kill cannot test the flushes, because what a process has written survives the process. The
tests look at the order of the calls instead.)

## A flipped bit

A rename does not help against a disk that gives back other bits (case 4), or against a copy that stopped half-way. How bad is one bit?

*See.* The model is trained for some steps and saved. Then each bit of some of its weights is turned over, one at a time, and the loss is measured
again.

*Predict.* A float32 has a sign, 8 bits of exponent and 23 of fraction. How many of the 32 change the loss by more than 0.01 nats?
"""

# %% tags=["nbval-ignore-output"]
run = new_run("one")
_ = losses(run, BEFORE)
model, stream = run.model.eval(), run.stream
path = save(RUNS / "one", BEFORE, model, {"optimizer": run.optimizer.state_dict()})
sizes, P = {file.name: file.stat().st_size for file in sorted(path.iterdir())}, num_params(shape)
print(*(f"{name:20}{size:10,} bytes" for name, size in sizes.items()), sep="\n")
print(f"{sum(sizes.values()) / P:.2f} for each of {P:,} parameters: 3 × 4 are the weight and two averages")
assert 12 <= sum(sizes.values()) / P < 13, "more is saved than weights and averages, or less"


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def changes(bit: int, x: Tensor, y: Tensor) -> list[float]:
    """How far the loss moves when this bit of a weight is turned over; of some weights."""
    found, g, before = [], torch.Generator().manual_seed(0), model(x, y)[1]
    mask = torch.tensor(1 << bit).to(torch.int32)
    matrices = [p.view(torch.int32).flatten() for p in model.parameters() if p.dim() == 2]
    for _ in range(WEIGHTS):
        bits = matrices[int(torch.randint(len(matrices), (), generator=g))]
        at = int(torch.randint(len(bits), (), generator=g))
        bits[at] ^= mask
        found.append((model(x, y)[1] - before).abs().item())
        bits[at] ^= mask
    return found


x, y = stream.next_batch()
moved = [changes(bit, x[:1], y[:1]) for bit in range(32)]
shown = [bit for bit in range(32) if not max(moved[bit]) < 0.01]  # a loss that is NaN counts
predict("17b.5", "of a weight's 32 bits: their flip shows in the loss", guess=None)
answer("17b.5", len(shown))
show(figures.bits(moved), alt="Change of the loss over the flipped bit: the exponent's highest stands out.")


# %% [markdown]
r"""
In this figure the exponent's highest bit stands out. Where it is 0, turning it over multiplies the weight by $2^{128}$. Even that is not always seen: if the weight belongs to a token that the batch does not
contain, the loss does not move. The other bits hide from everybody who looks at the loss, and yet the run is another one from there on. Only a comparison of
every byte finds them. So a manifest holds the SHA-256 of each file, and one of itself. `fault` compares them.
"""


# %%
#| export run.checkpoint
#| blank fault: first the manifest's own hash, then each file's; say which one is missing
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
data = bytearray((file := path / "state.safetensors").read_bytes())
data[len(data) // 2] ^= 1  # one bit of some 35 million
file.write_bytes(data)
print(fault(path))


# %% [markdown]
r"""
`latest` takes the newest checkpoint without a fault, and says which ones it has passed over. If all are damaged it ends with a sentence, because beginning again would write over what might be saved by hand.
`prune` deletes old ones, since each takes twelve bytes a parameter. Deleting begins with a rename, too: a folder that is half deleted must not look like a checkpoint.
"""


# %%
#| export run.checkpoint
#| blank latest: begin with the newest and say why one is passed over; all damaged is an error
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
#| export run.checkpoint
def prune(folder: str | Path, keep: int, step: int, also: Collection[int] = ()) -> None:
    """Delete all checkpoints before `step` but the keep - 1 last ones and those of the steps in `also`."""
    before = [path for path in checkpoints(folder) if int(path.name[5:]) < step]
    for path in before[: max(0, len(before) - (keep - 1))]:
        if int(path.name[5:]) not in also:
            aside = path.rename(path.with_name(f".{path.name}.tmp"))  # a half deleted one has no name
            shutil.rmtree(aside)


# %%
for step in (13, 14):
    save(RUNS / "one", step, model, {})
print("newest whole one:", latest(RUNS / "one").name)
prune(RUNS / "one", keep=1, step=14)
print("left after pruning:", [path.name for path in checkpoints(RUNS / "one")])


# %% [markdown]
r"""
Beside the checkpoints is `metrics.jsonl`. After `kill -9` its last line may be torn, and it may be ahead of the newest checkpoint. `repair` cuts off what
comes after the checkpoint, since those steps are made again.
"""


# %%
#| export run.checkpoint
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


# %%
(RUNS / "torn.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
repair(RUNS / "torn.jsonl", 3)
print((RUNS / "torn.jsonl").read_text())


# %% [markdown]
r"""
## The simple trainer, safe

Now `keep_run` and `go_on` of chapter 17 can be written again with these parts. The rest of the trainer stays as it is.
"""

# %%
#| export run.simple
from nanogpt.gpt.weights import load_model


# %%
#| export run.simple
#| grows keep_run
#| grows go_on
def keep_run(run: Training) -> None:
    """Write a checkpoint, whole or not at all: what a step changes, and dropout's generator. Two are kept."""
    parts = {"optimizer": run.optimizer, "stream": run.stream}
    state = {"step": run.step} | {name: part.state_dict() for name, part in parts.items()}
    state["random"] = random_states(next(run.model.parameters()).device)
    save(run.folder, run.step, run.model, state, run.tokenizer)
    prune(run.folder, 2, run.step)


def go_on(run: Training) -> None:
    """Load the newest whole checkpoint into a run, if there is one. Lines of later steps are cut off."""
    found = latest(run.folder)
    if found:
        state = load(found)
        run.step = state["step"]
        run.model.load_state_dict(load_model(found).state_dict())
        run.optimizer.load_state_dict(state["optimizer"])
        run.stream.load_state_dict(state["stream"])
        set_random_states(state["random"], next(run.model.parameters()).device)
    repair(run.folder / "metrics.jsonl", run.step + 1)


# %%
grown("keep_run", "17b")


# %% [markdown]
r"""
*Check.* The law, under the hardest condition: a run with dropout, killed with `kill -9` at random moments, each time resumed by the same call. The moments fall where
the process happens to be: in a step, a look, or a checkpoint. At the end its file of lines must be that of a run that nobody has touched.

*Predict.* How many of its losses differ?
"""

# %%
import nanogpt.run.simple as simple

simple.keep_run, simple.go_on = keep_run, go_on  # in this kernel, until the checkpoint below writes them


def fit_and_die(name: str, lines: int, seconds: float) -> int:
    """Train in a child process until it has written so many lines, and a little longer; kill it; how many it wrote."""
    path = RUNS / name / "metrics.jsonl"
    with warnings.catch_warnings(action="ignore"):
        if not (child := os.fork()):
            with open(os.devnull, "w") as sys.stdout:
                fit(new_run(name, 60))
            os._exit(0)
    began = time.monotonic()
    while time.monotonic() < began + 60 and not (path.exists() and path.read_bytes().count(b"\n") >= lines):
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return path.read_bytes().count(b"\n")


# %% tags=["nbval-ignore-output"]
predict("17b.6", "losses that differ after three kills", guess=None)
whole = fit(new_run("whole", 60))
moments = [fit_and_die("killed", n, dice.uniform(0, 0.05)) for n in (14, 29, 47)] if has_fork else []
print(f"killed with {moments} lines written")
killed_run = fit(new_run("killed", 60))


# %%
a, c = (read_metrics(RUNS / name) for name in ("whole", "killed"))
apart = sum(x != y for x, y in zip(a, c, strict=True))
answer("17b.6", apart)
assert apart == 0, f"{apart} of {len(a)} lines differ from the run that was not killed"
assert all(map(torch.equal, whole.model.parameters(), killed_run.model.parameters())), "the weights differ"


# %% [markdown]
r"""
Not one, and the weights are equal to the last bit. The validation losses and the samples are in these lines as well.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("17b")


# %%
checkpoint("17b")


# %% [markdown]
r"""
The trainer can now stop at any moment and go on. Its sizes are still constants in a notebook: chapter 17c makes them a file.

## Exercises

`course exercises release 17` writes these, and those of 17c to 17e, as a notebook to `released/`; `course check 17` runs their visible checks.

- **17-2** Old or new, and nothing between, 25 minutes: order four calls so that no crash tears a file.
- **17-3** What a run must remember, 30 minutes: repair a resume whose losses differ.
- **17-4** A log that ends in mid-line, 20 minutes: write the check that finds a repair which loses a step or keeps one twice.

To explore:

1. Put `save`'s `os.rename` before its flushes. Check: which test in `tests/run/test_ch17b_checkpoint.py` fails, and why does the figure of kills not change?
2. Leave the manifest out of `save`, and let `fault` look only for missing files. Which damages of that test file are still found? Check by running it.
3. A 1.5B model's checkpoint: predict its bytes, and the seconds of writing and of hashing on this machine from the rates that you measure here. Check with
   `time` around `save` and `fault` for two sizes: is it linear?
4. Store AdamW's averages as bfloat16. Check with `losses`: after how many steps do the runs part, and how far are they apart after 100?
5. Let the stream shuffle with Python's `random` instead of a key. Which of this chapter's checks fails first? Repair it with `random.getstate` in `random_states`.

## Further reading

- Pillai et al. 2014, *All File Systems Are Not Created Equal*, OSDI: which orders of writes, flushes and renames survive a power cut.
- Rebello et al. 2020, *Can Applications Recover from fsync Failures?*, USENIX ATC.
- Bairavasundaram et al. 2008, *An Analysis of Data Corruption in the Storage Stack*, FAST: how often a disk gives back other bits.
- Hochschild et al. 2021, *Cores that don't count*, HotOS: the bits that the processor turns.
- llm.c, `train_gpt2.cu`: a resume that is checked to be deterministic.
"""
