# %% [markdown]
r"""
# 10b · Loss scaling: float16, and weights in 16 bits

Chapter 10 halved the bits of the matrix products, and nothing went wrong. Can we go further? There are two places where training
does notice missing bits, and each has a remedy that is in every large training run.

The first is the *range* of float16. GPUs like the T4 have no bfloat16, so they train in float16. There, small gradients become
zero. The remedy is to multiply the loss, which is called loss scaling. The second place is the *weights*. If they are stored in
bfloat16, most updates are too small to change them. The remedy is to keep a float32 copy, the master weights.
"""

# %%
#| default_exp precision
#| doc labs.ladder.masters: AdamW for weights in bfloat16, with masters in float32.
import csv
import math
from functools import partial

import torch

from course.figures import precision as figures
from course.notebook import answer, checkpoint, grown, predict, predictions, show
from nanogpt.data import BatchStream
from nanogpt.device import pick_device, pick_scale, seed_everything
from nanogpt.labs.drills.formats import FORMATS, Emulated, emulation, round_to
from nanogpt.model import GPT, GPTConfig
from nanogpt.precision import autocast, tf32_switch, why_not
from nanogpt.shards import open_shards
from nanogpt.labs.corpora.stories import ensure_corpus

# %% tags=["nbval-ignore-output"]
device = pick_device()
if device.type == "mps":
    print("an Apple GPU lacks float64, which this chapter needs: it runs on the CPU")
    device = torch.device("cpu")
scale = pick_scale(device)
folder = "../data/built/stories"
manifest = ensure_corpus(folder)
B, T, lr, steps = 8, 64, 2e-3, {"ci": 60, "laptop": 100, "gpu": 300}[scale]
config = GPTConfig(T, manifest["vocab_size"], n_layer=2, n_head=2, n_embd=64, flash=False)


def batches(split, B):
    return BatchStream(open_shards(folder, split), B, T, seed=1, device=device)


print(f"device {device}, scale {scale}, {steps} steps a run")

# %% [markdown]
r"""
## What float16 cannot see

We take a small GPT, a batch of the course's stories, and make one backward pass in float32. `Emulated` (chapter 10) shows us what
each matrix product writes during this pass: the gradients of weights and of activations. We collect them. Where do they lie on
float16's scale?
"""

# %% tags=["nbval-ignore-output"]
found = []


def keep(product):
    found.append(product.flatten().abs().cpu())
    return product


model = GPT(config, seed_everything(1)).to(device)
x, y = batches("train", B).next_batch()
loss = model(x, y)[1]
with Emulated(read=lambda x: x, write=keep):
    loss.backward()
gradients = torch.cat(found)
gradients = gradients[gradients > 0]
print(f"{len(gradients):,} numbers, from {gradients.min():.1e} to {gradients.max():.1e}")
linear = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear) and layer.bias is not None]
bias = max(layer.bias.grad.abs().max().item() for layer in linear)  # for later

# %% tags=["nbval-ignore-output"]
form, shifts = FORMATS["float16"], {"loss / 512": -9, "loss": 0, "loss × 2^16": 16}
show(
    figures.gradients(gradients, shifts, form.smallest, form.tiny),
    alt="Histogram of gradient sizes on float16's range: unscaled they lie mostly among subnormals, divided by 512 many round to zero, times 2^16 they fit.",
)
for label, shift in shifts.items():
    scaled = gradients * 2.0**shift
    lost = (scaled <= form.smallest / 2).float().mean()
    coarse = (scaled < form.tiny).float().mean() - lost
    small = (scaled < FORMATS["bfloat16"].tiny).sum()
    print(f"{label:12} float16: {lost:4.0%} zero, {coarse:4.0%} subnormal; bfloat16: {small} below 2^-126")
assert gradients.min() * 2.0**-29 > FORMATS["bfloat16"].tiny, "a gradient that bfloat16 would lose"

# %% [markdown]
r"""
The middle line is our batch as it is. Most of its gradients are subnormal in float16: they lose bits.

The first line is a larger batch. The loss is a mean over tokens, so each gradient has a factor 1/(B·T). A batch of half a million
tokens is computed as 512 smaller batches of about a thousand tokens, each divided by 512 (chapter 15). Then a large share of the
gradients is zero in float16.

bfloat16 has float32's exponents. None of these gradients is below its smallest normal number, 2^-126, and none would be if the loss
were divided by a million more: bf16 needs no remedy.

## Loss scaling

The last line of the table is the remedy. If we multiply the *loss* by 2^16, the chain rule multiplies every gradient by 2^16
(Micikevicius et al. 2018, §3.2). A power of two only shifts exponents, so this rounds nothing. Before the update we divide again, in
float32.

Which power of two? The largest with which no gradient overflows. We don't know it, and it changes during training. We have to try. If a
gradient comes back infinite or NaN, we skip this update and halve the scale. After 2,000 good steps in a row we double it. (The class
goes on in the next cell. If you change this one, run the next one again.)
"""

# %%
#| export
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class LossScaler:
    """Dynamic loss scaling for fp16 (Micikevicius et al. 2018, §3.2), with torch.amp.GradScaler's constants.

    A step is: (loss * scaler.scale).backward(); finite = scaler.unscale(model.parameters()); if finite, clip and
    optimizer.step(); scaler.update(finite).
    """

    scale: float = 2.0**16
    growth_interval: int = 2000
    good_steps: int = 0

    def unscale(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Divide the gradients by the scale, in place. False if any of this rank is not finite: then skip this update."""
        grads = [p.grad for p in parameters if p.grad is not None]
        if not grads:
            raise ValueError("no parameter has a gradient; call (loss * scaler.scale).backward() first")
        torch._foreach_mul_(grads, 1 / self.scale)
        return bool(torch.stack([g.isfinite().all() for g in grads]).all())


# %%
#| export
#| blank LossScaler.update: halve and start counting again, or count; after enough good steps double and start again
class LossScaler(LossScaler):
    def update(self, finite: bool) -> None:
        """Halve the scale after a bad step, double it after growth_interval good ones; FloatingPointError below 1."""
        if finite:
            self.good_steps += 1
        else:
            self.good_steps = 0
            if self.scale < 2:
                what = "gradients are not finite even without loss scaling"
                raise FloatingPointError(
                    f"{what}; look for NaN in data or weights, or lower the learning rate"
                )
            self.scale /= 2
        if self.good_steps == self.growth_interval:
            self.good_steps = 0
            self.scale = min(2 * self.scale, 2.0**127)  # float32 ends at 2^128

    def state_dict(self) -> dict[str, float]:
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, float]) -> None:
        vars(self).update(state)


# %% [markdown]
r"""
Here are two good steps, two bad ones, and four good ones, with a scaler that doubles after two good steps. (The tests of this chapter
feed random sequences to our scaler and to torch.amp.GradScaler. Both make the same decisions and end with the same weights.)
"""

# %%
scaler = LossScaler(growth_interval=2)
for finite in (True, True, False, False, True, True, True, True):
    scaler.update(finite)
    print(f"{'good' if finite else 'bad '}: the scale is 2^{math.log2(scaler.scale):.0f}")

# %% [markdown]
r"""
## The course's step grows

Chapter 10's `train_step` needs the scaler in two places. The first is the backward pass: the loss is multiplied by the scale. The second is before the
update: the gradients are divided by the scale. If their norm is not finite, the scale was too large. Then the scaler halves it, and the step ends without an
update. Without a scaler this remains an error.
"""


# %%
#| export training
#| grows train_step
from torch import Tensor


def train_step(
    model: GPT, optimizer, batches, precision="float32", *, scaler: LossScaler | None = None
) -> Tensor:
    """One update from a batch [(x, y)], each (B, T): the mean loss before it, in nats, on the device.

    precision: chapter 10's word. scaler: for fp16; it skips an update whose gradient overflowed. FloatingPointError, and
    no update, if the loss or the gradient's norm is not finite.
    """
    if precision == "fp16" and scaler is None:
        raise ValueError("fp16 needs a scaler that lives as long as the run: pass scaler=LossScaler()")
    [(x, y)] = batches
    # the gradient of the batch, and its length
    optimizer.zero_grad()
    with tf32_switch(precision == "tf32"):
        with autocast(precision, x.device):
            loss = model(x, y)[1]
        scaled = loss if scaler is None else loss * scaler.scale
        scaled.backward()
    if scaler is not None:
        scaler.unscale(model.parameters())
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    # with a scaler: no update if the scaled gradient overflowed
    if scaler is not None and loss.isfinite():
        finite = bool(norm.isfinite())
        scaler.update(finite)
        if not finite:
            return loss.detach()
    # what is not finite must not reach the weights
    if not torch.isfinite(norm + loss):  # waits for the device
        raise FloatingPointError(f"the loss is {loss:.3g} and its gradient's norm {norm:.3g}")
    optimizer.step()
    return loss.detach()


# %%
grown("train_step", "10b")

# %% [markdown]
r"""
## Why an fp16 log begins with skipped steps

Megatron-LM, a well-known program for training large models, starts at a scale of 2^32. That is too large for any model. The
first steps overflow, and each halves the scale, until it fits. No update is made before.

Where must this search end? It ends at the largest power of two that keeps the largest gradient below 65,520, from where on float16
rounds to infinity. We measured the largest gradient above, so we can predict it, give or take a step, since each attempt sees
another batch. We let the scaler double after 12 good steps, so that we also see what happens later.

On a GPU with float16, `one_step` uses the real format; elsewhere it uses the emulation. The two differ. The emulation rounds only
matrix products. In real float16 the gradient of a bias is rounded, too. This gradient is a sum over all tokens, so it can be
larger than any product. The second cell below prints the largest of both. On an H100 the products alone predicted 12 skipped steps,
and 15 were skipped. On a GPU we therefore use the larger of the two. On an H200 this rule predicted 15 skipped steps, and 15 were skipped.
"""


# %%
def in_hardware(precision):
    """Whether this device is a GPU that has the precision for real."""
    return device.type != "cpu" and not why_not(precision, device)


def one_step(model, optimizer, batch, precision, scaler=None):
    """One training step in a precision: on a GPU that has it for real, elsewhere on the emulated hardware."""
    if in_hardware(precision):
        return train_step(model, optimizer, [batch], precision, scaler=scaler).item()
    with emulation(precision):
        return train_step(model, optimizer, [batch], scaler=scaler).item()


# %% tags=["nbval-ignore-output"]
product = gradients.max().item()
print(f"largest gradient of a product {product:.3f}, of a linear layer's bias {bias:.3f}")
largest = max(product, bias) if in_hardware("fp16") else product
predicted = math.floor(math.log2(65520 / largest))
model = GPT(config, seed_everything(1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
scaler, stream = LossScaler(2.0**32, growth_interval=12), batches("train", B)
exponents, good = [], []
for _ in range(80):
    before = scaler.scale
    one_step(model, optimizer, stream.next_batch(), "fp16", scaler)
    exponents.append(math.log2(before))
    good.append(scaler.scale >= before)
print(f"predicted {32 - predicted} skipped steps, then 2^{predicted}; skipped {good.index(True)}")
assert abs(good.index(True) - (32 - predicted)) <= 1, "the search ends elsewhere"
show(
    figures.scales(exponents, good, predicted),
    alt="Loss scale against iteration: it halves on each step from 2^32 down to the predicted scale, then doubles and falls back when that overflows.",
)

# %% [markdown]
r"""
Each cross is a skipped step. After the search, the scaler doubles now and then, finds that the larger scale overflows, and goes back.
This is how it should be. A log that skips on and on is another matter: the loss diverges, or the data is broken.

*Predict.* Here is a published log of Megatron-LM on GPT-2 124M, one line for every ten iterations. It begins at 2^32. How many steps
does it skip? (Megatron waits for a second bad step before it halves for the first time. This is its `hysteresis` of 2.)
"""

# %%
predict("10b.1", "steps that the fp16 log skips", guess=None)

# %%
with open("../data/reference/megatron_124m.csv", encoding="utf-8") as file:
    log = list(csv.DictReader(file))
skipped = 0
for row in log[:5]:
    skipped += int(row["skipped"])
    done, size = int(row["iteration"]) - skipped, math.log2(float(row["loss_scale"]))
    told = f"{skipped:2} skipped, {done:2} updates, learning rate {float(row['learning_rate']):.0e}"
    print(f"iteration {row['iteration']:>3}: scale 2^{size:.0f}, {told}, loss {row['lm_loss'] or '-'}")
answer("10b.1", sum(int(row["skipped"]) for row in log))

# %% [markdown]
r"""
The learning rate confirms the count. It rises by 1e-5 with each of the first ten *updates*, and at iteration 20 it is that of the fourth update.

## The same run, six times

Now we train. The model, the batches and AdamW are the same in all runs. Two runs are meant to go wrong: float16 with "loss / 512"
and no scaling, and a run whose *weights* (and with them AdamW's moments) are bfloat16.

*Predict.* Which run ends with the highest loss?
"""

# %%
predict("10b.2", "float32, TF32, bf16, fp16, loss / 512 or bf16 weights", guess=None)


# %%
FusedAdamW = partial(torch.optim.AdamW, fused=True)


def run(precision, scaler=None, weights=torch.float32, make_optimizer=FusedAdamW, watch=None):
    """Train; returns the loss of every step, and the validation loss. watch(step, before, after): the weights."""
    model = GPT(config, seed_everything(1)).to(device, weights)
    optimizer = make_optimizer(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    stream, curve = batches("train", B), []
    for step in range(1, steps + 1):
        before = torch.cat([p.detach().flatten() for p in model.parameters()]) if watch else None
        curve.append(one_step(model, optimizer, stream.next_batch(), precision, scaler))
        if watch:
            watch(step, before, torch.cat([p.detach().flatten() for p in model.parameters()]))
    with torch.no_grad():
        return curve, model.float()(x_val, y_val)[1].item()


# %%
x_val, y_val = batches("val", 64).next_batch()
runs = {
    "float32": run("float32"),
    "TF32": run("tf32"),
    "bf16": run("bf16"),
    "fp16": run("fp16", LossScaler()),
    "loss / 512": run("fp16", LossScaler(2.0**-9)),
    "bf16 weights": run("bf16-masters", weights=torch.bfloat16),  # and no masters yet
}

# %% tags=["nbval-ignore-output"]
show(
    figures.runs({name: curve for name, (curve, _) in runs.items()}, manifest["floor"]),
    alt="Six loss curves, and below them their differences from float32: TF32, bf16 autocast and scaled fp16 stay within two hundredths; bf16 weights and fp16 at loss/512 leave the frame.",
)
val = {name: loss for name, (_, loss) in runs.items()}
for name, loss in val.items():
    print(f"{name:13} validation loss {loss:.3f}, {loss - val['float32']:+.3f} against float32")
answer("10b.2", max(val, key=val.get))

# %% [markdown]
r"""
The lower part of the figure shows how far each run lies above float32's, with a scale so fine that the two bad runs leave it. Four
curves are one curve. Chapter 10 measured why: rounding changes the gradient much less than the choice of the batch does.

The same in real formats: on an H100 we trained a GPT with 6 layers for 300 steps in each of them, on tokens drawn at random (`data/measurements/h100-day.json`). No loss of any step
differed from float32's by more than 0.00006 in TF32, 0.00005 in float16, and 0.00041 in bfloat16. The last is about eight times as much. These are
the three bits of chapter 10, since 2³ = 8: TF32 and float16 keep ten bits of a mantissa, bfloat16 keeps seven.
"""

# %%
for name in ("TF32", "bf16", "fp16"):
    assert abs(val[name] - val["float32"]) < 0.05, f"{name}: {val[name]:.3f} against {val['float32']:.3f}"
for name, least in [("bf16 weights", 0.03), ("loss / 512", 0.3)]:
    assert val[name] > val["float32"] + least, f"{name} does not suffer yet: take more steps"
print("TF32, bf16 autocast and scaled fp16 agree with float32 to 0.05 nats; the other two do not")

# %% [markdown]
r"""
## Updates that vanish

Why do weights in bfloat16 hurt, if products in bfloat16 do not? A product is rounded and used once. A weight is kept, and
accumulates thousands of small changes. A change of less than half a step is rounded away each time, as in chapter 10's 1 + 0.001.

How many updates are so small? We take the real updates of the float32 run, and apply each to the weights rounded to a format. We
count the weights that the update does not move.
"""

# %% tags=["nbval-ignore-output"]
watched, stuck = [1, 2, 5, 10, 20, 50, steps], {"float32": [], "bfloat16": [], "float16": []}


def count_stuck(step, before, after):
    if step in watched:
        update = (after - before).double().cpu()
        moved = update != 0  # an embedding that no batch has used has no update
        for name, shares in stuck.items():
            start = round_to(before, FORMATS[name])
            same = round_to(start.double() + update, FORMATS[name]) == start
            shares.append((same & moved).sum().item() / moved.sum().item())


run("float32", watch=count_stuck)
show(
    figures.stuck(watched, stuck),
    alt="Share of weights that the update of a step does not move, against the step: near zero for float32, highest for bfloat16.",
)
for name, shares in stuck.items():
    print(f"{name:9} loses {shares[0]:.1%} of the updates in step 1, {shares[-1]:.1%} in step {watched[-1]}")

# %% [markdown]
r"""
In the first step AdamW moves every weight by about the learning rate. Later the updates are smaller, because gradients of different
batches partly cancel in the mean. More of them vanish, the ones of the largest weights first. At the end of a run the learning rate
falls as well. And an update that is not lost is rounded up to a whole step, which is also wrong.

The remedy is *master weights* (Micikevicius et al. 2018, §3.1): float32 weights take the updates, and 16-bit copies do the multiplying.
Under autocast you have them already: the parameters are the masters, and each step makes the copies, by reading 4 bytes a weight and
writing 2.

## Masters of their own

We can save this copying if the model keeps bfloat16 weights and the *optimizer* keeps the masters. Then gradients are bfloat16 as
well, and half as large. The update is AdamW's formula on float32 numbers, followed by one rounding.
"""


# %%
#| export labs.ladder.masters
#| blank adamw_update: update both moments and decay the master, step it, then copy it into the weight
import torch


def adamw_update(weight, grad, master, m, v, rates, beta1: float, beta2: float, eps: float) -> None:
    """AdamW on the float32 master, rounded into the weight; in place (Loshchilov & Hutter 2019, algorithm 2).

    weight and grad are bfloat16, all else is float32, and so are all sums. ε is added to the root, as in chapter 07.
    rates: lr / (1 - beta1^t), 1 / (1 - beta2^t) and 1 - lr * weight_decay, each a tensor of one number, so that a
    compiled update is not compiled again in every step.
    """
    step_size, correction, keep = rates
    grad = grad.float()
    m.lerp_(grad, 1 - beta1)
    v.lerp_(grad * grad, 1 - beta2)
    master.mul_(keep)
    master.sub_(step_size * m / ((v * correction).sqrt() + eps))
    weight.copy_(master)


# %%
weight, master = torch.ones(1, dtype=torch.bfloat16), torch.ones(1)
m, v, grad = torch.zeros(1), torch.zeros(1), -torch.ones(1, dtype=torch.bfloat16)
for t in range(1, 1001):
    rates = 0.001 / (1 - 0.9**t), 1 / (1 - 0.95**t), 1.0
    adamw_update(weight, grad, master, m, v, [torch.tensor(rate) for rate in rates], 0.9, 0.95, 1e-8)
print(f"1 + 1000 updates of 0.001: the master is {master.item():.4f}, the weight {weight.item():.4f}")

# %% [markdown]
r"""
The optimizer around it is mostly bookkeeping. It puts all weights of a group end to end into one tensor, and makes the model's
parameters views of it. An update of the whole group is one call, which a compiler (chapter 11) turns into one pass over memory.
(The class goes on in the two cells below. You may change one of the three and run it alone: if others depend on it, the course runs them again.)
"""


# %%
#| export labs.ladder.masters
class MasterAdamW(torch.optim.Optimizer):
    """AdamW that turns its parameters to bfloat16 and keeps float32 masters and moments of them.

    A group's weights become one tensor and its parameters views of that, so that an update is one call, which
    `compiled=True` fuses. Make it when the model is on its device; every step needs all gradients.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, compiled=False):
        self.flat = []  # for each group: weight, master, m, v
        self.update = torch.compile(adamw_update) if compiled else adamw_update
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, steps=0))

    def add_param_group(self, group: dict) -> None:
        super().add_param_group(group)
        params = self.param_groups[-1]["params"]
        master = torch.cat([p.detach().float().flatten() for p in params])  # before rounding
        self.flat.append((master.bfloat16(), master, torch.zeros_like(master), torch.zeros_like(master)))
        parts = zip(*(tensor.split([p.numel() for p in params]) for tensor in self.flat[-1]))
        for p, (weight, *kept) in zip(params, parts):
            p.data = weight.view_as(p)
            self.state[p] = {name: t.view_as(p) for name, t in zip(("master", "exp_avg", "exp_avg_sq"), kept)}


# %%
#| export labs.ladder.masters
class MasterAdamW(MasterAdamW):
    @torch.no_grad()
    def step(self) -> None:
        """One update of every group."""
        for group, (weight, *kept) in zip(self.param_groups, self.flat):
            if any(p.grad is None for p in group["params"]):
                raise ValueError("MasterAdamW: a parameter has no gradient; call loss.backward() first")
            group["steps"] += 1
            grad = torch.cat([p.grad.flatten() for p in group["params"]])
            lr, (beta1, beta2), t = group["lr"], group["betas"], group["steps"]
            rates = lr / (1 - beta1**t), 1 / (1 - beta2**t), 1 - lr * group["weight_decay"]
            rates = [torch.full((), rate, device=grad.device) for rate in rates]
            self.update(weight, grad, *kept, rates, beta1, beta2, group["eps"])


# %% [markdown]
r"""
A run that is resumed must get its masters back, not the rounded weights:
"""


# %%
#| export labs.ladder.masters
class MasterAdamW(MasterAdamW):
    @torch.no_grad()
    def load_state_dict(self, state_dict: dict) -> None:
        """Masters, moments and options from `state_dict()`; the weights become the masters, rounded."""
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in self.param_groups] != [len(group["params"]) for group in saved]:
            raise ValueError("MasterAdamW: the saved state belongs to other parameter groups than these")
        for group, other, (weight, master, *_) in zip(self.param_groups, saved, self.flat):
            for p, number in zip(group["params"], other["params"]):
                for name, tensor in self.state[p].items():
                    tensor.copy_(state_dict["state"][number][name])
            group.update({name: value for name, value in other.items() if name != "params"})
            weight.copy_(master)


# %% [markdown]
r"""
Is it really the masters that help? In the run "bf16 weights" AdamW's moments were bfloat16 as well. We need a control that
changes one thing only: an optimizer with float32 moments that *forgets* its masters. Before each step it makes them anew from the
rounded weights.
"""


# %% tags=["nbval-ignore-output"]
class Forgetful(MasterAdamW):
    """Float32 moments, and masters that are made from the rounded weights before each step."""

    def step(self) -> None:
        for weight, master, *_ in self.flat:
            master.copy_(weight)
        super().step()


_, val["bf16 weights, float32 moments"] = run("bf16-masters", make_optimizer=Forgetful)
_, val["bf16 weights, float32 masters"] = run("bf16-masters", make_optimizer=MasterAdamW)
for name in ("float32", "bf16 weights", "bf16 weights, float32 moments", "bf16 weights, float32 masters"):
    print(f"{name:30} validation loss {val[name]:.3f}")
apart = val["bf16 weights, float32 masters"] - val["float32"]
assert abs(apart) < 0.05, "the masters do not keep what bfloat16 loses"

# %% [markdown]
r"""
Better moments alone do not help. The masters do: with them the model's weights, gradients and activations are all bfloat16, and the
run ends where float32 does. This is the precision `bf16-masters` of the course.

In short: use bf16 autocast where the hardware has it, and fp16 with a scaler where it has not. Never keep weights in 16 bits without
masters.

## Checkpoint
"""

# %% tags=["nbval-ignore-output"]
predictions("10b")

# %%
checkpoint("10b")

# %% [markdown]
r"""
## Exercises

They come with chapter 10's: `course exercises release 10` writes them as a notebook to `released/`; `course check 10` runs their
visible checks.

- **10-3** An fp16 step in the wrong order, 30 minutes: repair five faults.
- **10-4** A check for a loss scaler, 20 minutes: write the check; it is tried on wrong scalers.
- **10-5** Masters that forget, 10 minutes: repair bfloat16 weights with float32 masters.
- **10-6** Two formats, two failures, 5 minutes: why one needs a scaler and the other masters.

To explore:

1. Add Megatron's `hysteresis` to `LossScaler`. *Check:* begin at 2^32 and feed it bad steps only: after ten its scale
   must be 8388608.
2. Write `round_stochastically(x, form)`: up with the probability that makes the mean right. *Check:* one thousand
   updates of 0.001 on a weight of 1 end near 2 in bfloat16. Then store the weights of the "bf16 weights" run that way.
3. To stop inside a step and look, write `breakpoint()` before `optimizer.step()`: then `p loss`, `p
   max(p.grad.abs().max() for p in model.parameters())`, and `c` goes on. *Check:* find the largest gradient of a step
   that the scaler skips. After an exception, `%debug` in a new cell does the same.

## Further reading

- P. Micikevicius et al., [*Mixed Precision Training*](https://arxiv.org/abs/1710.03740), 2018, §3.1 master weights, §3.2 loss scaling.
- D. Kalamkar et al., [*A Study of BFLOAT16 for Deep Learning Training*](https://arxiv.org/abs/1905.12322), 2019, §3: bfloat16 without scaling.
- P. Zamirai et al., [*Revisiting BFloat16 Training*](https://arxiv.org/abs/2010.06192), 2020: weights in bfloat16 with stochastic rounding.
- PyTorch, [*Automatic Mixed Precision package*](https://docs.pytorch.org/docs/stable/amp.html), "Gradient Scaling".
"""
