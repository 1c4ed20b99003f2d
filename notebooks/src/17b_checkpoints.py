# %% [markdown]
r"""
# 17b · Checkpoints: whole or not there

Chapter 17's trainer writes `checkpoint.pt` and goes on from it, and we saw that an interrupted run has exactly the losses of a run without a break. That
was an easy case. In this sitting we look for the cases in which the simple checkpoint fails. There are five:

1. It forgets something that a step changes.
2. The process is killed while it writes the file.
3. The power fails just after the file was written.
4. The disk returns other bits than those that were written.
5. The file comes from a stranger, and it contains a program. (Chapter 17 refuses it by `weights_only=True`. That is a filter in front of pickle, and up to PyTorch 2.5.1 it had a hole, CVE-2025-32434.)

We show cases 1, 2, 4 and 5, and repair all five. Cases 1 and 4 are dangerous because nothing fails: the run goes on, the loss looks
right, and yet it is another run. So it is not enough that a checkpoint loads. The law of this sitting is: a run that was saved and loaded makes the same steps as
a run that was never stopped, equal to the last bit.
"""

# %%
#| default_exp checkpoint
#| doc checkpoint: A checkpoint: a directory a step, whole or not there, proved by hashes.
import contextlib
import copy
import pickle
import time
from functools import partial

import numpy as np

from course.figures import checkpoints as figures
from course.figures import kills
from course.notebook import answer, as_left_by, checkpoint, grown, predict, predictions, show
from nanogpt.data import DocumentStream
from nanogpt.metrics import read_metrics
from nanogpt.model import GPTConfig, num_params
from nanogpt.optim import make_optimizer
from nanogpt.shards import open_shards, read_shard
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.tokenizer import BPETokenizer
from nanogpt.weights import WEIGHTS, digest

simple = as_left_by("17", "trainer")  # also where later sittings have changed it
Training, fit, one_step = simple.Training, simple.fit, simple.one_step


# %%
#| export
import json
import os
import re
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
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


# %% [markdown]
r"""
All sizes are set here. We let PyTorch compute with one thread, because sums in another order would have other last bits.
"""

# %%
BEFORE, AFTER, FLIPS = 12, 4, 6  # steps before and after a resume; weights of which each bit is flipped
EVERY, KILLS = 10, 12  # steps from one look to the next; how often a process is killed that saves
assert min(BEFORE, AFTER, FLIPS, KILLS) > 0, "BEFORE, AFTER, FLIPS and KILLS must each be above 0"
RUNS = Path("../data/built/checkpoints")
shutil.rmtree(RUNS, ignore_errors=True)
torch.set_num_threads(1)  # a forked child can have no more
V = ensure_corpus(RUNS / "stories", n=1000)["vocab_size"]
shape = GPTConfig(block_size=128, vocab_size=V, n_layer=2, n_head=4, n_embd=64, dropout=0.1)
tokenizer = BPETokenizer.load(RUNS / "stories/tokenizer.json")
print(f"{num_params(shape):,} parameters; dropout {shape.dropout}")


# %% [markdown]
r"""
## Something more that a step changes

Here is chapter 17's run again, with one difference: this model has dropout. In every step, dropout sets a tenth of the activations to zero, and it chooses
them at random. `new_run` makes a run at its beginning, as in chapter 17, and `losses` makes some steps and returns their losses. We make the first twelve steps.
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


run = new_run("first")
print([round(loss, 3) for loss in losses(run, BEFORE)])


# %% [markdown]
r"""
Now we save the same four things as chapter 17, in memory this time: step, model, optimizer and stream. `state_of` copies them out of a run, and `loaded` makes a new run from the copy. Then
the first run makes four more steps, and the second run makes the same four steps from the saved state. `first_apart` compares the two lists of losses.

*Predict.* Which is the first loss after the break that differs? (0 means that none does.)
"""

# %%
predict("17b.1", "first loss that differs, with dropout", guess=None)


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
state, before = state_of(run), torch.get_rng_state()
went_on = losses(run, AFTER)
forgetful = losses(loaded(state), AFTER)
for name, found in (("went on", went_on), ("loaded", forgetful)):
    print(f"{name:8}", [round(loss, 4) for loss in found])
answer("17b.1", first_apart(went_on, forgetful))


# %% [markdown]
r"""
The very first loss differs, 5.7663 in place of 5.7654. It does not look wrong, and nobody who sees only one of the two lines would notice. What did we forget? Dropout draws its random numbers from PyTorch's
global generator, and every step changes the state of that generator. The loaded run began with the generator in the state that it has in a new process.

So the generator's state belongs in a checkpoint. On a CPU it is a tensor of 5,056 bytes, and a GPU has a second generator. The next two functions read the states and set them again. Then we
repeat the comparison.
"""


# %%
#| export
def random_states(device: torch.device) -> dict[str, torch.Tensor]:
    """The states of PyTorch's global generators, the CPU's and the device's. Only dropout draws from them."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state()
    return states


def set_random_states(states: dict[str, torch.Tensor], device: torch.device) -> None:
    """Put the generators back into these states."""
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
Now all losses agree: 0 means that none differs. What happens if a run forgets one of the other things? For each of them we load everything, and then reset this one thing to its value in a new run.
The table `forget` has a function for each case.

*Predict.* A loss is computed before the update of its step. Which is the first loss that shows that AdamW's two averages were lost?
"""

# %%
predict("17b.2", "first loss that shows that AdamW's averages were lost", guess=None)

# %%
forget = {
    "nothing": lambda run: None,
    "the place in the data": lambda run: setattr(run.stream, "position", 0),
    "dropout's generator": lambda run: torch.manual_seed(0),
    "the number of the step": lambda run: setattr(run, "step", 0),
    "AdamW's averages": lambda run: run.optimizer.state.clear(),
}
for what, of in forget.items():
    again = loaded(state)
    set_random_states({"cpu": before}, torch.device("cpu"))
    of(again)
    apart = first_apart(went_on, losses(again, AFTER))
    print(f"{what:22} forgotten: loss {apart} is the first that differs (0: none)")
answer("17b.2", apart)


# %% [markdown]
r"""
A wrong place in the data or a wrong generator changes the first loss, because it changes the batch or the activations. A wrong step number, or lost averages, change only the second loss: they
affect the *update*, and the loss of a step is computed before its update. So a test that compares one loss after loading does not find these two mistakes. None of the
mistakes raises an error. The table lists everything that a long run must save:

| what a step changes | its size | what happens if it is forgotten |
|---|---|---|
| the weights | 4 bytes a parameter | the run begins again |
| AdamW's two averages, and its count of steps | 8 bytes a parameter | the loss is too high for a while: chapter 17f measures it |
| the place in the data | a few numbers | the run reads the first part twice and the last part never |
| the generator that dropout draws from | 5 kB | dropout repeats its random numbers |
| the number of the step | one number | the learning rate is wrong |
| float16's scale (chapter 10b) | a few numbers | steps are skipped until the scale is found again |

## A kill in the middle of a file

The second case is a kill. `kill -9` may come at any moment, and also while `torch.save` writes. The command ends a process at once, and the process cannot finish anything. We let a child process
save the same state, rest for five milliseconds, and save again. We kill it after a random time, and try to load the file. (`course.figures.kills` starts and kills the children. Windows cannot fork a
process, so there the notebook skips these experiments.)

*Predict.* How many of the kills leave a file that cannot be loaded?
"""

# %%
predict("17b.3", f"files that cannot be loaded, after {KILLS} kills", guess=None)


# %%
def save_and_rest(path: Path) -> None:
    """Save the same state again and again."""
    while True:
        torch.save(state, path)
        time.sleep(0.005)


def loads_after_kill(path: Path, seconds: float) -> bool:
    """Whether the file can be loaded after the process that writes it was killed."""
    child = kills.start(partial(save_and_rest, path))
    time.sleep(seconds)
    kills.kill(child)
    try:
        torch.load(path, weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError):
        return False
    return True


# %% tags=["nbval-ignore-output"]
dice = np.random.default_rng(0)
waits = dice.uniform(0.1, 0.2, KILLS if kills.POSSIBLE else 0)  # seconds
found = [loads_after_kill(RUNS / "simple.pt", seconds) for seconds in waits]
print(f"{found.count(True)} can be loaded, {found.count(False)} cannot")
answer("17b.3", found.count(False) if kills.POSSIBLE else "Windows has no fork")


# %% [markdown]
r"""
In our tries two to eight of the twelve kills met the writing, and left a file that cannot be loaded; how many is chance, and depends on what else the machine does. A torn file is bad enough. Worse, `torch.save` had already overwritten the older checkpoint under the same name, so there is nothing to go back to: a
run of several days can be lost because of a kill in the wrong millisecond. (This child spends much of its time saving. A real run spends little time on it, so a kill meets a save less often. But
a real run is longer.)

Our own checkpoint will do two things differently. Each step that is saved gets a folder of its own, so the previous checkpoint is still there. And the folder gets its name only when it is complete.

## Plain files, without pickle

We begin with the contents of the file, and with case 5. What can a checkpoint from a stranger do? `torch.save` writes a pickle, and in a pickle an object may say how it is to be made again: by calling any function of Python. Here is one that calls `print`. It could as well delete your files.
"""


# %%
class Stranger:
    """An object whose pickle asks for a call of print."""

    def __reduce__(self):
        return print, ("a program in the file has run",)


torch.save({"model": Stranger()}, RUNS / "stranger.pt")
_ = torch.load(RUNS / "stranger.pt", weights_only=False)
try:
    torch.load(RUNS / "stranger.pt", weights_only=True)
except pickle.UnpicklingError:
    print("with weights_only=True the file is refused")

# %% [markdown]
r"""
Nobody has called a method of `Stranger`, and the program ran all the same, while the file was read. The filter `weights_only` refuses it. But it is a filter, and a list of what is allowed can have a hole. A format that cannot name a function needs no filter.

So the weights go into the folder in the format of chapter 07, so that the command `sample` can read them. Everything else is one JSON file, and the tensors in it are moved to a
safetensors file. JSON and safetensors contain data only, so nothing in a checkpoint can run when it is read. That solves case 5, the file from a stranger.

JSON cannot hold tensors, and an optimizer's state consists of dictionaries and lists with tensors in some places. `pack` walks through such a structure. It moves each tensor into one flat dictionary, and leaves a small
note with the tensor's name in its place. `unpack` reads the notes and puts the tensors back. A tensor that is on the CPU already is not copied. The run waits until the checkpoint is written, so nobody changes
the tensor in the meantime, and a second copy of AdamW's averages would take eight more bytes for each parameter.
"""


# %%
#| export
#| blank pack: a tensor goes into tensors, dicts and lists are packed part by part, the rest stays
#| blank unpack: the way back: look up each tensor, unpack dicts and lists part by part
def pack(value, name: str, tensors: dict[str, Tensor]):
    """The same nested dicts and lists for JSON: each tensor moves to `tensors`, and its name takes its place."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous()  # no copy of what is on the CPU already
        return {"tensor": name}
    if isinstance(value, dict):
        return {str(key): pack(part, f"{name}.{key}", tensors) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [pack(part, f"{name}.{i}", tensors) for i, part in enumerate(value)]
    return value


def unpack(value, tensors: dict[str, Tensor]):
    """The way back from `pack`. Tuples come back as lists; keys of digits are numbers again."""
    if isinstance(value, list):
        return [unpack(part, tensors) for part in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"tensor"}:
        return tensors[value["tensor"]]
    return {int(key) if key.isdigit() else key: unpack(part, tensors) for key, part in value.items()}


# %%
tensors = {}
packed = pack({"means": [torch.ones(2), torch.zeros(2)], "steps": 3}, "state", tensors)
print(packed, "and moved out:", *tensors)
assert unpack(packed, tensors)["means"][0].tolist() == [1, 1], "what comes back is not what went in"

# %% [markdown]
r"""
## Whole or not there

We write the files into a folder with another name, and rename it when all files are complete. The operating system does a rename completely or not at all.

A power cut (case 3) is worse than a kill. When a process has written a file, its bytes are often still in the computer's memory, and the new name can reach the disk before
the contents. Pillai et al. (2014) found this mistake in databases and in version control systems. The system call `fsync` waits until a file is really on the
disk; we say that it *flushes* the file. So `save` works in this order: write the files, flush each of them, flush the folder, rename it, flush the folder above it.

`write` is the function that writes the weights; another one may write less than all of them. The last file that `save` writes is a *manifest*, a list of the other files with the SHA-256 of each. We shall need it for case 4.
"""


# %%
#| export
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
#| export
def save(
    folder: str | Path, step: int, model: GPT, state: dict, tokenizer=None, write: Callable = save_model
) -> Path:
    """Write folder/step_000123, whole or not at all: weights, as write(model, folder) does it, state, a manifest of hashes."""
    target = Path(folder) / f"step_{step:06d}"
    aside = target.with_name(f".{target.name}.tmp")
    tensors = {}
    shutil.rmtree(aside, ignore_errors=True)
    try:
        # all files, in a folder of another name
        write(model, aside)
        save_json(aside / "state.json", pack(state, "state", tensors))
        with atomically(aside / "state.safetensors") as file:
            file.write(serialize(tensors))
        if tokenizer is not None:
            tokenizer.save(aside / "tokenizer.json")
        manifest = {"step": step, "files": {p.name: file_sha256(p) for p in sorted(aside.iterdir())}}
        save_json(aside / MANIFEST, manifest | {"sha256": manifest_sha256(manifest)})
        # on the disk, and then by its own name
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
We save the run and look into the folder. The shape and the weights are there, the rest of the state in two files, the tokenizer, and the manifest, which lists them.
"""

# %%
tried = save(RUNS / "tried", run.step, run.model, {"optimizer": run.optimizer.state_dict()}, tokenizer)
print(tried.name, sorted(file.name for file in tried.iterdir()))

# %% [markdown]
r"""
*See.* Now we test `save` at every moment at which a kill can come, and compare it with a simpler way. The simpler way, `straight`, writes each file directly into the folder with the final name. Each single
file is safe, because it is written under another name and renamed (chapter 03's `atomically`).

How do we kill a process at every moment? Only changes to the disk matter, and Python announces each of them before it happens (`sys.addaudithook`). A child process listens, and kills itself
before the first change. The next child kills itself before the second change, and so on. For each child we look at the newest checkpoint in the folder.

*Predict.* `straight` writes four files. Each is opened under another name and then renamed. These are eight changes (we do not count that its folder is made), and so nine moments, with the one after the last. After how many of these nine kills
has the newest checkpoint only some of its files?
"""

# %%
predict("17b.4", "moments, of nine, at which kill -9 leaves half of it", guess=None)


# %%
def straight(folder: Path, step: int, model: GPT, state: dict) -> None:
    """The same files, each written atomically, but directly into the folder with the final name."""
    target, tensors = folder / f"step_{step:06d}", {}
    save_model(model, target)
    save_json(target / "state.json", pack(state, "state", tensors))
    with atomically(target / "state.safetensors") as file:
        file.write(serialize(tensors))


# %%
def left_by(write) -> list[str]:
    """The newest checkpoint after a kill before the first change, before the second, and so on."""
    found, folder = [], RUNS / "kills"
    model = GPT(GPTConfig(block_size=8, vocab_size=16, n_layer=1, n_head=1, n_embd=8))
    for moment in range(1, 99):
        shutil.rmtree(folder, ignore_errors=True)
        save(folder, 1, model, {})
        work = partial(write, folder, 2, model, {"means": torch.ones(8)})
        dead = kills.before_change(moment, work, folder)
        newest = max(folder.glob("step_*"))
        new = "the new one" if len(list(newest.glob("[!.]*"))) >= 4 else "half of the new one"
        found.append("the old one" if newest.name == "step_000001" else new)
        if not dead:
            return found


# %%
ways = {"straight": left_by(straight), "aside, renamed": left_by(save)} if kills.POSSIBLE else {}
for name, found in ways.items():
    print(name, {what: found.count(what) for what in dict.fromkeys(found)})
    assert name == "straight" or "half of the new one" not in found, "a half one has a name"
answer("17b.4", ways["straight"].count("half of the new one") if ways else "Windows has no fork")
show(figures.moments(ways), alt="Kills in order: straight, most leave half a checkpoint; renamed, none does.")


# %% [markdown]
r"""
With a rename, the newest checkpoint is always complete: it is the old one or the new one. With `straight`, each file is complete, but at eight of the nine moments some files are missing, or all of them: the folder is created before the first file. If a reader allows
a part to be absent, it loads such a checkpoint, and nobody notices. (A kill cannot test the flushes, because the bytes that a process has written survive the process. The
tests look at the order of the calls instead.)

## A flipped bit

A rename does not help against a disk that returns wrong bits (case 4), or against a copy that was interrupted. How bad is a single wrong bit?

*See.* We train a model for some steps and save it. The next cell does this, and prints the sizes of the files.
"""

# %% tags=["nbval-ignore-output"]
run = new_run("one")
_ = losses(run, BEFORE)
model, stream = run.model.eval(), run.stream
path = save(RUNS / "one", BEFORE, model, {"optimizer": run.optimizer.state_dict()})
sizes, P = {file.name: file.stat().st_size for file in sorted(path.iterdir())}, num_params(shape)
print(*(f"{name:20}{size:10,} bytes" for name, size in sizes.items()), sep="\n")
print(f"{sum(sizes.values()) / P:.2f} bytes for each of {P:,} parameters; 12 are the weight and two averages")
assert 12 <= sum(sizes.values()) / P < 13, "more is saved than weights and averages, or less"

# %% [markdown]
r"""
Then we flip each bit of some of its weights, one at a time, and measure the loss again. `changes` does this for one of the 32 bits. It sees the weights as integers (`view(torch.int32)`) and flips
the bit with an exclusive or (`^=`).

*Predict.* A float32 has a sign, 8 bits of exponent and 23 bits of fraction. How many of the 32 bits change the loss by more than 0.01 nats?
"""

# %%
predict("17b.5", "of a weight's 32 bits: their flip shows in the loss", guess=None)


# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def changes(bit: int, x: Tensor, y: Tensor) -> list[float]:
    """How far the loss moves when this bit of a weight is flipped; of some weights."""
    found, g, before = [], torch.Generator().manual_seed(0), model(x, y)[1]
    mask = torch.tensor(1 << bit).to(torch.int32)
    matrices = [p.view(torch.int32).flatten() for p in model.parameters() if p.dim() == 2]
    for _ in range(FLIPS):
        bits = matrices[int(torch.randint(len(matrices), (), generator=g))]
        at = int(torch.randint(len(bits), (), generator=g))
        bits[at] ^= mask
        found.append((model(x, y)[1] - before).abs().item())
        bits[at] ^= mask
    return found


x, y = stream.next_batch()
moved = [changes(bit, x[:1], y[:1]) for bit in range(32)]
shown = [bit for bit in range(32) if not max(moved[bit]) < 0.01]  # a loss that is NaN counts
answer("17b.5", len(shown))
show(figures.bits(moved), alt="Change of the loss over the flipped bit: the exponent's highest stands out.")


# %% [markdown]
r"""
The figure has a dot for each flip, and the red line is at 0.01 nats. In this figure only dots of the exponent's highest bit are above it (it has flips of matrices, not of gains and biases). If this bit is 0, flipping it multiplies the weight by $2^{128}$. Even then the
loss does not always move: the weight may belong to a token that the batch does not contain. Six flips are few. With `FLIPS = 60`, a flip of bit 26 shows now and then, too: it can make a weight 256 times
as large. Most flips do not show at all, and yet the run continues as another run. We can find them only by comparing every byte. This is why the manifest holds the SHA-256 of each file, and one of itself. `fault` compares them with the files. `checkpoints` lists the checkpoints of a folder.

We flip one bit in the middle of the file with AdamW's averages, which no loss would show, and ask `fault`.
"""


# %%
#| export
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
    paths = [path for path in Path(folder).glob("step_*") if re.fullmatch(r"step_\d{6,}", path.name)]
    return sorted(paths, key=lambda path: int(path.name[5:]))


# %%
data = bytearray((file := path / "state.safetensors").read_bytes())
data[len(data) // 2] ^= 1
file.write_bytes(data)
print(fault(path))


# %% [markdown]
r"""
Now a run can choose a checkpoint to go on from. `latest` returns the newest one without a fault, and prints the names of the damaged ones that it passes over. If all are damaged it raises an error. It does not
start a new run silently, because the new run would overwrite files that somebody could still repair by hand. `load_state` reads the state back.

We save two more checkpoints beside the damaged one and ask for the newest. Then we damage that one as well and ask again.
"""


# %%
#| export
#| blank latest: begin with the newest and say why one is passed over; all damaged is an error
def latest(folder: str | Path, say=print) -> Path | None:
    """The newest whole checkpoint; `say` hears of each damaged one that is passed over. None if there is none at all.

    ValueError if all are damaged: to begin again would write over what could be saved by hand.
    """
    candidates = checkpoints(folder)
    for path in reversed(candidates):
        if (wrong := fault(path)) is None:
            return path
        say(f"{path} is damaged ({wrong}); the one before it is used")
    if candidates:
        raise ValueError(f"no checkpoint in {folder} is whole; move them away to begin again")
    return None


def load_state(checkpoint: Path) -> dict:
    """The state that was given to `save`. The weights beside it are read by load_model."""
    packed = json.loads((checkpoint / "state.json").read_bytes())
    return unpack(packed, load_file(checkpoint / "state.safetensors"))


# %%
for step in (13, 14):
    newest = save(RUNS / "one", step, model, {})
print("newest complete one:", latest(RUNS / "one").name)
(newest / "state.json").unlink()
print("and then:", latest(RUNS / "one", say=lambda text: print("...", text.partition(" is ")[2])).name)

# %% [markdown]
r"""
## A safe load

The weights of a checkpoint are read by `load_model` of chapter 07b, which trusts every file. Three accidents show what that means. Somebody edits `config.json` and halves `n_head`: no
weight and no shape changes, since `c_attn` is one matrix for all heads, and only `n_head` says where one head ends. A bit of the weights flips. A run that went wrong saves weights that are not numbers.

*Predict.* How many of the three does the simple `load_model` refuse?
"""

# %%
predict("17b.6", "of three damaged models: refused by the simple load_model", guess=None)


# %%
def halve_heads(folder: Path) -> None:
    fields = json.loads((folder / "config.json").read_bytes())
    save_json(folder / "config.json", fields | {"n_head": fields["n_head"] // 2})


def flip_bit(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-4] ^= 1  # the last bit of a float32's fraction
    (folder / WEIGHTS).write_bytes(data)


def save_nan(folder: Path) -> None:
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.transformer.ln_f.weight[0] = torch.nan
    save_model(broken, folder)


def try_damages(load_from: Callable) -> int:
    """Damage a saved model in each way and load it; how many are refused."""
    refused = 0
    for damage in (halve_heads, flip_bit, save_nan):
        shutil.rmtree(RUNS / "damaged", ignore_errors=True)
        save_model(model, RUNS / "damaged")
        damage(RUNS / "damaged")
        try:
            print(f"{damage.__name__:12} loaded, loss {load_from(RUNS / 'damaged')(x, y)[1]:.6f}")
        except ValueError as error:
            refused += 1
            print(f"{damage.__name__:12} {str(error).rpartition(': ')[2]}")
    return refused


# %% tags=["nbval-ignore-output"]
print(f"undamaged    loss {model(x, y)[1]:.6f}")
answer("17b.6", try_damages(as_left_by("07b", "weights").load_model))

# %% [markdown]
r"""
None. The halved heads change the loss by 0.000014, because this model is hardly trained. The flipped bit is the last one of a weight, and would not show in any model. Only NaN shows, and it is not refused either. In a trained model the halved heads cost more (exploration 6), but without the number from before the edit
you would take that for a shorter training.

So `save_model` wrote one number more into `config.json`: `sha256`, a hash of both files. `read_unchanged` reads the files, compares the hash, and looks for weights that are not finite.
"""


# %%
#| export weights
import json
from importlib import import_module
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from nanogpt.model import GPT, GPTConfig


# %%
#| export weights
#| blank read_unchanged: take sha256 out of the fields and compare it with their digest; then look for weights that are not finite
def read_unchanged(config: Path, weights: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    """The fields and tensors of two files that were saved together. ValueError if they have changed since, or are no numbers."""
    fields = json.loads(config.read_bytes())
    data = weights.read_bytes()
    if fields.pop("sha256", None) != digest(fields, data):
        raise ValueError(f"{config.name} or {weights.name} has changed since")
    tensors = load(data)
    for name, p in tensors.items():
        if not p.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity")
    return fields, tensors


# %% [markdown]
r"""
All three would be found by the hash or by the look for NaN. But a hash says that nothing has changed, not that it was right. If somebody writes `vocab_size` = 400 million with a hash that fits, the simple load asks for hundreds of gigabytes before it notices anything. PyTorch has a device for such
questions: on *meta*, a tensor has a shape and a type, and no memory. `empty_model` builds the model there and compares names, shapes and types.
"""


# %%
#| export weights
def empty_model(config: GPTConfig, weights: dict[str, torch.Tensor], kind: type = GPT) -> GPT:
    """A model without memory, on the meta device, whose names and shapes are those of weights; else ValueError."""
    layers = len({name.split(".")[2] for name in weights if name.startswith("transformer.h.")})
    if layers != config.n_layer:  # first: even without memory, a hundred thousand layers take minutes
        raise ValueError(f"config.json says n_layer={config.n_layer}, {WEIGHTS} has {layers}")
    with torch.device("meta"):
        model = kind(config)
    expected = {name: p.shape for name, p in model.named_parameters()}
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    wrong = sorted(expected.keys() ^ weights.keys())  # names that only one of the two has
    for name, p in weights.items():
        if name in expected and (p.shape != expected[name] or p.dtype not in dtypes):
            wrong.append(name)
    if wrong:
        raise ValueError(f"config.json and {WEIGHTS} disagree about {', '.join(wrong[:3])}")
    return model


# %%
save_model(model, RUNS / "whole-model")
fields, weights = read_unchanged(RUNS / "whole-model/config.json", RUNS / "whole-model" / WEIGHTS)
try:
    empty_model(GPTConfig(**fields | {"vocab_size": 400_000_000}), weights)
except ValueError as error:
    print(error)

# %% [markdown]
r"""
`load_model` grows. It reads, compares, and lets the tensors of the file take the places of the empty ones (`assign=True`), in the dtype in which they were saved. Whatever is wrong, the reader gets one sentence instead of
a traceback. `classes_of` chooses the model by the fields of the file: a second family of models, which a lab builds, is named as a text and loaded only for a file that needs it.
"""


# %%
#| export weights
FAMILIES = {"n_kv_head": ("nanogpt.labs.llama.model", "LlamaConfig", "Llama")}  # by a field that no GPT has


def classes_of(fields: dict) -> tuple[type, type]:
    """The classes of the shape and the model that a config.json describes: GPT-2's, or those of a lab, loaded now."""
    for field, (lab, *names) in FAMILIES.items():
        if field in fields:
            return tuple(getattr(import_module(lab), name) for name in names)
    return GPTConfig, GPT


UNREADABLE = AttributeError, LookupError, OverflowError, RuntimeError, TypeError, ValueError, SafetensorError


# %%
#| export weights
#| grows load_model
def load_model(folder: str | Path, device: str | torch.device = "cpu") -> GPT:
    """The model that save_model wrote, in evaluation mode and its dtype. OSError or ValueError, in one sentence, if it is not whole."""
    folder = Path(folder)
    try:
        fields, weights = read_unchanged(folder / "config.json", folder / WEIGHTS)
        shape, kind = classes_of(fields)
        model = empty_model(shape(**fields), weights, kind)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error.filename} is not there; chapter 07 writes it (save_model)") from None
    except UNREADABLE as error:
        raise ValueError(f"{folder} holds no model that save_model wrote whole: {error}") from None
    model.load_state_dict(weights, strict=False, assign=True)
    if "lm_head.weight" not in weights:
        model.lm_head.weight = model.transformer.wte.weight  # tied
    return model.to(device).eval()


# %% tags=["nbval-ignore-output"]
print("refused:", try_damages(load_model))
again = load_model(RUNS / "whole-model")
print("the same logits, bit for bit:", torch.equal(model(x)[0], again(x)[0]))

# %%
grown("load_model", "17b")

# %% [markdown]
r"""
## A tidy folder

Two things are left to do before the trainer can use all this: old checkpoints must go, and the log must agree with the checkpoint. `prune` deletes old checkpoints, since each of them takes twelve bytes a parameter. Deleting begins
with a rename, too, because a folder that is half deleted must not look like a checkpoint.
"""


# %%
#| export
def prune(folder: str | Path, keep: int, step: int, also: Collection[int] = ()) -> None:
    """Delete all checkpoints up to `step` but the last `keep` of them, and those of the steps in `also`."""
    upto = [path for path in checkpoints(folder) if int(path.name[5:]) <= step]
    for path in upto[:-keep]:
        if int(path.name[5:]) not in also:
            aside = path.rename(path.with_name(f".{path.name}.tmp"))  # a half deleted one has no name
            shutil.rmtree(aside)


# %%
prune(RUNS / "one", keep=1, step=14)
print("left after pruning:", [path.name for path in checkpoints(RUNS / "one")])


# %% [markdown]
r"""
The file `metrics.jsonl` is in the same folder. After `kill -9` its last line may be incomplete, and it may contain steps that are later than the newest checkpoint. Those steps will be made
again. So `repair` deletes the lines from a given step on. It returns the line of this step itself, if that was complete: the result of a validation may be in it. The example has three lines and an incomplete fourth one, and the run goes on with step 3.
"""


# %%
#| export
def repair(path: Path, step: int) -> dict | None:
    """Keep the lines of metrics.jsonl before `step`, with which the run goes on. The last one may be incomplete.

    Returns the line of `step` itself, if it was there and complete.
    """
    lines, good, own = path.read_bytes().splitlines(keepends=True) if path.exists() else [], [], None
    with suppress(ValueError, TypeError, KeyError):  # no JSON, or no step
        for text in lines:
            line = json.loads(text)
            if not text.endswith(b"\n"):
                break
            if line["step"] >= step:
                own = line if line["step"] == step else None
                break
            good.append(text)
    if len(good) < len(lines):
        with atomically(path) as file:
            file.writelines(good)
    return own


# %%
(RUNS / "torn.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
print("deleted:", repair(RUNS / "torn.jsonl", 3))
print((RUNS / "torn.jsonl").read_text())


# %% [markdown]
r"""
Somebody may read such a file before the trainer has repaired it, for example to draw the curve. This must not fail either. So `read_metrics` of chapter 17 grows: it leaves out a torn last line, and says so. An error in any other line cannot come from a kill, and is refused.
"""


# %%
#| export metrics
import json
import sys
from pathlib import Path


# %%
#| export metrics
#| grows read_metrics
def read_metrics(path: str | Path) -> list[dict]:
    """The steps of a run's metrics.jsonl, in order; path is that file or the folder that holds it.

    A step that was made again after a crash counts as it was made last. A torn last line is left out, and stderr says so.
    """
    path = Path(path, "metrics.jsonl") if Path(path).is_dir() else Path(path)
    lines, steps = path.read_text(encoding="utf-8", errors="replace").splitlines(), {}
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            steps[line["step"]] = line
        except (ValueError, TypeError, KeyError):
            if number < len(lines):
                raise ValueError(f"{path}, line {number}: not a step of a run: {text[:40]}") from None
            print(f"{path}: the last line is torn and left out", file=sys.stderr)
    if not steps:
        raise ValueError(f"{path} holds no step yet")
    return [steps[step] for step in sorted(steps)]


# %%
(RUNS / "torn.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"st')
with contextlib.redirect_stderr(sys.stdout):
    print(read_metrics(RUNS / "torn.jsonl"))


# %%
grown("read_metrics", "17b")

# %% [markdown]
r"""
## The simple trainer, safe

All parts are there: plain files, a folder that is whole or not there, hashes, a safe load. Now we write `save_checkpoint` and `resume` of chapter 17 again with them. The rest of the trainer stays as it is. `grown` shows below which lines are new (`+`) and which are gone (`-`).
"""


# %%
#| export trainer
#| grows save_checkpoint
#| grows resume
def save_checkpoint(run: Training) -> None:
    """Write a checkpoint, whole or not at all: what a step changes, and dropout's generator. Two are kept."""
    parts = {"optimizer": run.optimizer, "stream": run.stream}
    state = {"step": run.step} | {name: part.state_dict() for name, part in parts.items()}
    state["random"] = random_states(next(run.model.parameters()).device)
    save(run.folder, run.step, run.model, state, run.tokenizer)
    prune(run.folder, 2, run.step)


def resume(run: Training) -> Training:
    """Load the newest whole checkpoint into a run, if there is one. Lines of later steps are cut off. Returns the run."""
    newest = latest(run.folder)
    if newest:
        state = load_state(newest)
        run.step = state["step"]
        run.model.load_state_dict(load_model(newest).state_dict())
        run.optimizer.load_state_dict(state["optimizer"])
        run.stream.load_state_dict(state["stream"])
        set_random_states(state["random"], next(run.model.parameters()).device)
    repair(run.folder / "metrics.jsonl", run.step + 1)
    return run


# %%
grown("save_checkpoint", "17b")


# %% [markdown]
r"""
*Check.* Now we test the law under the hardest condition. A run with dropout is killed with `kill -9` at random moments, and each time the same call goes on with it. A moment may fall into
a step, a look, or a checkpoint. At the end its `metrics.jsonl` must equal that of a run that was never stopped.

`fit_and_die` trains in a child process until `metrics.jsonl` has a number of lines, waits a little longer, and kills the child.

*Predict.* After three kills, how many of the 60 lines differ?
"""

# %%
predict("17b.7", "losses that differ after three kills", guess=None)

# %%
simple.save_checkpoint, simple.resume = save_checkpoint, resume  # in this kernel


def fit_and_die(lines: int) -> int:
    """Train in a child process that is killed soon after it has written so many lines; how many it wrote."""
    path = RUNS / "killed/metrics.jsonl"
    return kills.at_line(lambda: fit(new_run("killed", 60)), path, lines, longer=dice.uniform(0, 0.05))


# %% tags=["nbval-ignore-output"]
whole = fit(new_run("whole", 60))
moments = [fit_and_die(lines) for lines in (14, 29, 47)] if kills.POSSIBLE else []
print(f"killed with {moments} lines written")
killed_run = fit(new_run("killed", 60))


# %%
a, c = (read_metrics(RUNS / name) for name in ("whole", "killed"))
apart = sum(x != y for x, y in zip(a, c, strict=True))
answer("17b.7", apart)
assert apart == 0, f"{apart} of {len(a)} lines differ from the run that was not killed"
assert all(map(torch.equal, whole.model.parameters(), killed_run.model.parameters())), "the weights differ"


# %% [markdown]
r"""
In our run the kills came after 14, 29 and 47 lines, and it went on from the checkpoints of steps 10, 20 and 40. No line differs, and the weights are equal to the last bit. The lines contain the validation losses and the samples, so these agree as well.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("17b")


# %%
checkpoint("17b")


# %% [markdown]
r"""
The trainer can now stop at any moment and go on. Its sizes are still constants in a notebook. Chapter 17c moves them into a file.

## Exercises

`course exercises release 17` writes these, and those of 17c to 17f, as a notebook to `released/`; `course check 17` runs their visible checks.

- **17-2** Old or new, and nothing between, 25 minutes: order four calls so that no crash tears a file.
- **17-3** What a run must remember, 30 minutes: repair a resume whose losses differ.
- **17-4** A log that ends in mid-line, 20 minutes: write the check that finds a repair which loses a step or keeps one twice.

To explore:

1. Put `save`'s `os.rename` before its flushes. Check: which test in `tests/core/test_ch17b_checkpoint.py` fails, and why does the figure of kills not change?
2. Leave the manifest out of `save`, and let `fault` look only for missing files. Which damages of that test file are still found? Check by running it.
3. A 1.5B model's checkpoint: predict its bytes, and the seconds of writing and of hashing on this machine from the rates that you measure here. Check with
   `time` around `save` and `fault` for two sizes: is it linear?
4. Store AdamW's averages as bfloat16. Check with `losses`: after how many steps do the runs part, and how far are they apart after 100?
5. Let the stream shuffle with Python's `random` instead of a key. Which of this chapter's checks fails first? Repair it with `random.getstate` in `random_states`.
6. Halve `n_head` in a copy of chapter 07's model, and load it with the simple `load_model`. Check with `evaluate`: by how many nats does the validation loss rise? (We found 0.19.) What does a story of this model look like?

## Further reading

- PyTorch's [*Distributed Checkpoint*](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html) and [torchtitan, `docs/checkpoint.md`](https://github.com/pytorch/torchtitan/blob/main/docs/checkpoint.md): checkpoints of many processes, written in the background while the run goes on. A hash of each file, and tests that kill the process, are what this sitting has besides.
- Pillai et al. 2014, [*All File Systems Are Not Created Equal*](https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai), OSDI: which orders of writes, flushes and renames survive a power cut.
- Rebello et al. 2020, [*Can Applications Recover from fsync Failures?*](https://www.usenix.org/conference/atc20/presentation/rebello), USENIX ATC.
- Bairavasundaram et al. 2008, [*An Analysis of Data Corruption in the Storage Stack*](https://www.usenix.org/conference/fast-08/analysis-data-corruption-storage-stack), FAST: how often a disk gives back other bits.
- Hochschild et al. 2021, [*Cores that don't count*](https://doi.org/10.1145/3458336.3465297), HotOS: the bits that the processor turns.
- [llm.c](https://github.com/karpathy/llm.c), `test_gpt2.cu`, its last part: a state is saved and loaded, and ten steps must give the same losses.
"""
