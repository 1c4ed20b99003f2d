# %% [markdown]
r"""
# Exercises 17 · The trainer

Chapters 17 to 17f: what a run must remember, what can be wrong in its file, and what it meets while nobody looks. No task
needs another one's solution. `course check 17` runs the visible checks. Grading runs more of them, with inputs of your own.
"""

# %%
#| solution student
STUDENT = "your student id"

# %%
import copy
import json
import math

import torch
from torch import nn

from course.figures.crash import Disk
from course.variants import variant
from nanogpt.shards import permutation

# %% [markdown]
r"""
## 17-1 · A rate that is a text

*Repair · difficulty 2/5 · importance 4/5 · 15 minutes*

To YAML 1.1 `3e-4` is a text, since a number there has a dot, and `no` is false. A script that asks `float(value)` or `bool(value)` takes what it gets: `bool("false")`
is true, `int(3.7)` is 3, and a run of three days begins with a value that nobody wrote. Mend `strict(value, kind)`, with `kind` one of
`int`, `float`, `bool`, `str`. It returns the value if it is of that kind, and raises a `ValueError` otherwise, whose message holds
`repr(value)`. Nothing is converted, with one exception: a whole number may stand where a `float` is due, and is returned as a float. No
setting is infinite or not a number.

    strict(1, float) == 1.0        strict("3e-4", float)   # ValueError: '3e-4' is not a float

<details><summary>Hint 1</summary>

Collect what a YAML file may hold (a number with and without a dot, true, a text, nothing) and try each with each kind: 16 or more cases.
</details>

<details><summary>Hint 2</summary>

What is `isinstance(True, int)`? And `isinstance(3, float)`?
</details>
"""


# %%
#| solution 17-1
def strict(value, kind: type):
    """The value if it is of that kind (an int may be a float); ValueError, with repr(value), otherwise."""
    ### BEGIN SOLUTION
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise ValueError(f"{value!r} is not a finite {kind.__name__}")
    return value
    ### INSTEAD
    # return kind(value)
    ### END SOLUTION


# %%
#| check 17-1
def outcome(value, kind):
    try:
        return strict(value, kind)
    except ValueError as error:
        return f"ValueError: {error}"


assert outcome(3e-4, float) == 3e-4 and outcome("tiny", str) == "tiny", (
    "what is of its kind is returned as it is"
)
assert str(outcome("3e-4", float)).startswith("ValueError"), (
    "a text is no number, though float() would make one of it"
)
assert str(outcome("false", bool)).startswith("ValueError"), (
    "bool('false') is True: a text is no answer to a yes-or-no question"
)
assert "'3e-4'" in outcome("3e-4", float), (
    "the message holds repr(value), so that whoever reads it sees the quotes"
)
assert str(outcome(3.7, int)).startswith("ValueError"), "3.7 layers became 3 without a word"
assert type(outcome(1, float)) is float, "1 may stand for 1.0, and is returned as a float"

# %% [markdown]
r"""
## 17-2 · Old or new, and nothing between

*Build · difficulty 3/5 · importance 5/5 · 25 minutes*

A file that is written in place is neither old nor new for a moment, and kill -9 and power failures come at such moments. `Disk` is a model of
what a disk promises: contents are certain once they are flushed, changes of names once names are flushed. Before that, a crash may
leave anything of a file's contents, and any first part of the changes of names. `disk.after_crash(name)` lists all that may be read.

Write `save(disk, name, text)` with the four calls `disk.write(name, text)`, `disk.flush(name)`, `disk.rename(old, new)`,
`disk.flush_names()`. Whenever the power fails, the file `name` must hold its old contents or the new ones, whole. Once `save` has returned,
it must be the new ones, whatever happens. No other file is left.

    disk = Disk(log="old")
    disk.write("log", "new")
    disk.after_crash("log") == ["(torn)", "new", "old"]

<details><summary>Hint 1</summary>

Two files: the new contents need a name of their own until they are certain.
</details>

<details><summary>Hint 2</summary>

Print `disk.after_crash(name)` after every call. The first line that holds `(torn)` tells which call came too early.
</details>

<details><summary>Hint 3</summary>

If it still says `old` after the last call: what of your calls is not yet certain?
</details>
"""


# %%
#| solution 17-2
def save(disk: Disk, name: str, text: str) -> None:
    """Give the file `name` new contents, so that a crash at any moment leaves the old ones or the new, whole."""
    ### BEGIN SOLUTION
    aside = f"{name}.tmp"
    disk.write(aside, text)
    disk.flush(aside)
    disk.rename(aside, name)
    disk.flush_names()
    ### INSTEAD
    # disk.write(name, text)
    # disk.flush(name)
    ### END SOLUTION


# %%
#| check 17-2
class Watched(Disk):
    """Looks, after each call, at what a crash would leave of a file."""

    def __getattribute__(self, call):
        method = super().__getattribute__(call)
        if call not in ("write", "flush", "rename", "flush_names"):
            return method

        def watched(*args):
            method(*args)
            left = self.after_crash("log")
            assert set(left) <= {"old", "new"}, (
                f"after {call}{args} a crash may leave {left}: the name may stand on contents that are not certain"
            )

        return watched


save(disk := Watched(log="old"), "log", "new")
assert "old" not in disk.after_crash("log"), (
    "save has returned, and a crash may still bring the old file back: which call is missing?"
)
assert disk.names() == ["log"], f"left in the folder: {disk.names()}"

# %% [markdown]
r"""
## 17-3 · What a run must remember

*Repair · difficulty 4/5 · importance 5/5 · 30 minutes*

`Run` is a run in small: dropout, momentum, a rate that falls with each update, batches in an order that depends on their position, and
batches that are skipped. Its author keeps weights, means and updates, and finds that a resumed run "looks the same". It is
not: its losses differ from the next one on. Mend `remember(run)` and `go_on(run, state)` so that they are equal to the last bit.

A run goes on like this: `state = remember(run)`, later, in a new process, `go_on(Run(seed=...), state)`. The run that was
remembered goes on too, and so may a second one from the same state.

<details><summary>Hint 1</summary>

Go through `Run.step` line by line. What does each line read that an earlier step has changed?
</details>

<details><summary>Hint 2</summary>

One of these things is in no attribute of `run`: dropout draws from torch's own generator.
</details>

<details><summary>Hint 3</summary>

Is `run.model.state_dict()` a copy? Look at `remember(run)["model"]` before and after another step. And in `go_on`: who else
holds the list that you give to the run?
</details>
"""


# %%
ROWS = torch.randn(24, 5, generator=torch.Generator().manual_seed(0))  # four inputs and a target each


class Run:
    """A run in small."""

    def __init__(self, seed: int):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.means = [torch.zeros_like(p) for p in self.model.parameters()]  # of the gradients
        self.updates = 0  # that were made; the rate depends on them
        self.position = 0  # rows that were read

    def step(self) -> float:
        """Takes the next batch of four rows, and updates unless its loss is too high; the loss."""
        epoch, at = divmod(self.position, len(ROWS))
        rows = ROWS[permutation(len(ROWS), epoch)[at : at + 4]]
        self.position += 4
        loss = (self.model(rows[:, :4]) - rows[:, 4:]).square().mean()
        if loss < 2:
            self.model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p, mean in zip(self.model.parameters(), self.means):
                    mean.mul_(0.9).add_(p.grad, alpha=0.1)
                    p -= 0.3 / (1 + self.updates) * mean
            self.updates += 1
        return loss.item()


# %%
#| solution 17-3
def remember(run: Run) -> dict:
    """All that the steps of a run have changed."""
    ### BEGIN SOLUTION
    state = {"model": run.model.state_dict(), "means": run.means}
    state |= {"updates": run.updates, "position": run.position, "random": torch.get_rng_state()}
    return copy.deepcopy(state)
    ### INSTEAD
    # return {"model": run.model.state_dict(), "means": run.means, "updates": run.updates}
    ### END SOLUTION


def go_on(run: Run, state: dict) -> None:
    """Let a new run go on where the remembered one was."""
    ### BEGIN SOLUTION
    state = copy.deepcopy(state)
    run.model.load_state_dict(state["model"])
    run.means = state["means"]
    run.updates, run.position = state["updates"], state["position"]
    torch.set_rng_state(state["random"])
    ### INSTEAD
    # run.model.load_state_dict(state["model"])
    # run.means = state["means"]
    # run.updates = state["updates"]
    ### END SOLUTION


# %%
#| check 17-3
run = Run(seed=1)
for _ in range(5):
    run.step()
state = remember(run)
weights = state["model"]["0.weight"].clone()
due = [run.step() for _ in range(4)]
assert torch.equal(weights, state["model"]["0.weight"]), (
    "the state's weights have changed with the run: they are no copy"
)
go_on(resumed := Run(seed=2), state)
assert resumed.position == 20, (
    f"five batches of four rows were read, and the resumed run stands at row {resumed.position}"
)
assert torch.equal(resumed.model[0].weight, weights), "the resumed run has other weights"
got = [resumed.step() for _ in range(4)]
assert got[0] == due[0], (
    f"the first loss is {got[0]}, not {due[0]}: same weights, same rows, so what else does a step read?"
)
assert got == due, f"later losses are {got}, not {due}: the first is right, so the update differs"

# %% [markdown]
r"""
## 17-4 · A log that ends in mid-line

*Check · difficulty 3/5 · importance 3/5 · 20 minutes*

A run appends a line a step to `metrics.jsonl`, such as `{"step": 7, "loss": 3.2}`. After kill -9 its last line may be torn, and lines may
be there of steps that a resumed run makes again. `repair(text, step)` returns the log with which the run goes on: the lines up to
the first one that is **not whole** (no newline at its end, or not a JSON object), or whose step is **not before** `step`. So what
comes next can be appended, and each step stands there once.

Write `check_repair(repair)`: it raises an `AssertionError` for a repair that breaks this rule, and accepts every one that keeps it. Steps in
a log rise. Your score is which of our wrong ones it refuses.

<details><summary>Hint 1</summary>

Where can a line be torn? After its first character, in a number, before its newline. One of these leaves valid JSON.
</details>

<details><summary>Hint 2</summary>

Which logs need no repair? An empty one, one of whole lines that ends with step - 1. And one with nothing to keep?
</details>
"""


# %%
#| solution 17-4
def check_repair(repair) -> None:
    """Raises AssertionError unless repair(text, step) keeps the lines that a run goes on with, and no others."""
    ### BEGIN SOLUTION
    lines = [json.dumps({"step": step, "loss": 10 / step}) + "\n" for step in range(1, 13)]
    for step in (1, 2, 8, 13, 20):
        for there in (0, 3, 12):
            due = "".join(lines[: min(there, step - 1)])
            assert repair("".join(lines[:there]), step) == due, (
                f"{there} whole lines, going on with step {step}"
            )
    for torn in (1, 9, len(lines[5]) // 2, len(lines[5]) - 1):  # the last: only its newline is missing
        assert repair("".join(lines[:5]) + lines[5][:torn], 20) == "".join(lines[:5]), (
            "a torn line at the end"
        )
    assert repair(lines[0] + '{"step": 2\n' + lines[2], 20) == lines[0], "a torn line in the middle"
    assert repair(lines[0] + "12\n", 20) == lines[0], "a line that is no object"
    ### END SOLUTION


# %%
#| check 17-4
def refused(repair) -> bool:
    try:
        check_repair(repair)
    except AssertionError:
        return True
    return False


def right(text, step):
    kept = ""
    for line in text.splitlines(keepends=True):
        try:
            if not line.endswith("\n") or json.loads(line)["step"] >= step:
                break
        except (ValueError, TypeError):
            break
        kept += line
    return kept


assert not refused(right), "this one is right, and your check refuses it"
assert refused(lambda text, step: text), "a repair that repairs nothing is accepted"
assert refused(lambda text, step: "".join(text.splitlines(keepends=True)[:-1])), (
    "a repair that drops the last line, torn or not, is accepted: a step is lost in each resume"
)

# %% [markdown]
r"""
## 17-5 · A limit that nothing reaches

*Derive · difficulty 3/5 · importance 3/5 · 20 minutes*

`train.skip_spikes` leaves an update out when its loss lies more than so many standard deviations above the mean of the last n losses. As
`Window.z` takes the loss in first, it is one of these n, and moves their mean and their deviation. So z has a highest value, however
large the loss. A limit above it is the same as none.

Write `largest_z(n)`, that highest value (the deviation is √ of the mean square, with n, not n − 1), and `false_alarms(steps, limit)`: of
so many independent normal losses, how many are left out on average although nothing is wrong with them, where mean and deviation are
known exactly. `answers` holds both for the values in `mine`, which are yours alone: the highest z of a window of `mine["window"]`, and the
false alarms in `mine["steps"]` at `mine["limit"]`.

<details><summary>Hint 1</summary>

Let n − 1 losses be equal, and one be larger by 1. What are mean and deviation? Does it matter that it is 1?
</details>

<details><summary>Hint 2</summary>

The highest is where the others do not spread at all. Try n = 2, 3 and 10 with numbers before you trust a formula.
</details>

<details><summary>Hint 3</summary>

`math.erfc(x)` is 2/√π · ∫ₓ^∞ e^(−t²) dt, both tails of a normal variable with deviation 1/√2. Here only one side counts.
</details>
"""

# %%
mine = variant(
    "17-5", STUDENT, window=[32, 64, 100, 256], steps=[20_000, 50_000, 100_000], limit=[2.5, 3.0, 3.5, 4.0]
)


# %%
#| solution 17-5
def largest_z(n: int) -> float:
    """The largest z that one of n values can have, with the mean and the deviation of all n."""
    ### BEGIN SOLUTION
    return math.sqrt(n - 1)
    ### END SOLUTION


def false_alarms(steps: int, limit: float) -> float:
    """How many of so many normal values lie more than `limit` deviations above their mean, on average."""
    ### BEGIN SOLUTION
    return steps * math.erfc(limit / math.sqrt(2)) / 2
    ### END SOLUTION


answers = [
    ### BEGIN SOLUTION
    largest_z(mine["window"]),
    false_alarms(mine["steps"], mine["limit"]),
    ### INSTEAD
    # 0.0,  # the highest z of your window
    # 0.0,  # false alarms in your steps
    ### END SOLUTION
]

# %%
#| check 17-5
values = torch.tensor([0.0, 0.0, 0.0, 0.0, 7.0], dtype=torch.float64)
z = ((values[-1] - values.mean()) / values.std(correction=0)).item()
assert z <= largest_z(5) + 1e-9, (
    f"0, 0, 0, 0, 7: the last one's z is {z:.3f}, and {largest_z(5):.3f} should be the highest"
)
assert largest_z(5) < z + 1e-9, f"no value of five gets beyond {z:.3f}, and you say {largest_z(5):.3f}"
assert abs(false_alarms(1000, 0) - 500) < 1e-6, (
    "half of all values lie above the mean: one side counts, and only one"
)
assert len(answers) == 2, "two answers: the highest z, and the false alarms"

# %% [markdown]
r"""
#| manual 17-6
## 17-6 · What may change on the way

*Explain · difficulty 3/5 · importance 4/5 · 10 minutes*

A run is resumed on a machine with half the memory. `resume` lets `train.micro_batch` be halved, but refuses another
`train.batch_tokens` or `train.dtype`. In four sentences: why is the first allowed, is the run still the same to the last bit, what would
go wrong with the second, and how would you go on if you really wanted a larger batch?
"""
