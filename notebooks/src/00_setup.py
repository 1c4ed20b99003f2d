# %% [markdown]
r"""
# 00 · Setup: what can this machine do?

By chapter 14 the same GPT-2 will train many times faster than it did in chapter 07, and each step of that
ladder starts with a prediction. A prediction needs two numbers about the machine: how many multiplications
it does in a second, and how many bytes it moves in a second. Vendors print such numbers. This chapter
measures them, since a program only ever gets what can be measured.

The result is one picture, the machine's *roofline*. Every later claim about speed refers to it.
"""

# %%
#| default_exp device
#| doc device: Which device, how large, and which random numbers: what every chapter asks first.

from course.notebook import checkpoint

# %% [markdown]
r"""
## Which device?

PyTorch runs the same code on an NVIDIA (or AMD) GPU, `cuda`, on an Apple GPU, `mps`, and on the processor
itself, `cpu`. The rule for choosing is short, and it has an override, because a test or a lesson must be
able to say "on the CPU, please" without editing code.
"""

# %%
#| export
import os

import torch


def pick_device(prefer: str | None = None) -> torch.device:
    """The device to compute on: `prefer`, else the variable NANOGPT_DEVICE, else the best of cuda, mps, cpu.

    Raises ValueError if the one that was asked for is not there.
    """
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    wanted = prefer or os.environ.get("NANOGPT_DEVICE")
    if not wanted:
        return torch.device(next(name for name, there in present.items() if there))
    if not present.get(wanted.split(":")[0], False):
        there = ", ".join(name for name, here in present.items() if here)
        raise ValueError(f"device {wanted!r} is not available; this machine has {there}")
    return torch.device(wanted)


# %% [markdown]
r"""
A laptop and an H200 should run the same notebook, but not at the same size. Each chapter keeps its sizes in a
small table with a row for each *scale*, and never asks you to edit one.
"""

# %%
#| export
SCALES = ("ci", "laptop", "gpu")


def pick_scale(device: torch.device) -> str:
    """The size of the experiments: NANOGPT_SCALE if set, else `gpu` on a CUDA device and `laptop` elsewhere."""
    scale = os.environ.get("NANOGPT_SCALE") or ("gpu" if device.type == "cuda" else "laptop")
    if scale not in SCALES:
        raise ValueError(f"NANOGPT_SCALE is {scale!r}; it must be one of {', '.join(SCALES)}")
    return scale


# %% tags=["nbval-ignore-output"]
device = pick_device()
scale = pick_scale(device)
print(
    f"device {device}, scale {scale}, PyTorch {torch.__version__.split('+')[0]}, {torch.get_num_threads()} threads"
)

# %% [markdown]
r"""
Asking for what is not there gives a sentence, not a crash three cells later:
"""

# %%
try:
    pick_device("tpu")
except ValueError as error:
    print(str(error).split(";")[0])

# %% [markdown]
r"""
## Seeds: one generator, passed on

People who follow a course report that their loss curve differs on each run, although they set the seed. The
usual cause: all random numbers come from one hidden global generator, so a cell that is run twice, or a
sample drawn in between, shifts everything after it.

*Predict.* Two trainings below draw the same two batches of random weights; in the second one, somebody draws a
sample in between. With the global generator, and with one of its own: which second batch stays the same?
"""


# %%
#| export
def seed_everything(seed: int) -> torch.Generator:
    """Seed PyTorch's global generators, and return a CPU generator of its own with the same seed.

    Pass the returned generator to whatever draws random numbers: then no other cell can disturb them.
    """
    torch.manual_seed(seed)  # also seeds every CUDA and MPS device
    return torch.Generator().manual_seed(seed)


# %%
def second_batch(disturb: bool, own: bool) -> torch.Tensor:
    generator = seed_everything(1337)
    draw = {"generator": generator} if own else {}
    torch.randn(3, **draw)
    if disturb:
        torch.rand(1)  # the sample in between comes from the global generator
    return torch.randn(3, **draw)


for own in (False, True):
    same = torch.equal(second_batch(False, own), second_batch(True, own))
    print(f"{'own' if own else 'global'} generator: second batch {'unchanged' if same else 'changed'}")

# %% [markdown]
r"""
Read the last column downwards: from a T4 to an H100 the arithmetic grew fifteenfold, the bandwidth tenfold.
Most of GPT-2's operations stand left of the ridge on every one of these. That is why half of the speed ladder
is about moving fewer bytes.

## Checkpoint

The last cell of every chapter exports the cells that begin with `#| export` into `nanogpt/`, imports the result
in a fresh process and runs the chapter's tests on it. Only if all of that works is the module replaced.
"""

# %%
checkpoint("00")

# %% [markdown]
r"""
## Exercises

1. Repeat the product for n = 64, 128, …, 2048 and draw the rate against n over the roofline. From which n on is
   the peak reached, and where does the roofline alone predict it? *Check:* no measured rate lies above the
   roofline by more than a few percent. If one does, which cache explains it?
2. `torch.set_num_threads(1)`: predict how the peak and the bandwidth change on your machine before you measure.
   They need not change by the same factor.
3. At what batch size does "matrix × vector" become compute-bound? Derive it from the ridge, then measure it.

## Further reading

- S. Williams, A. Waterman, D. Patterson, *Roofline: An Insightful Visual Performance Model*, CACM 52(4), 2009.
- NVIDIA, *GPU Performance Background User's Guide*: arithmetic intensity, tiles and waves.
- H. He, *Making Deep Learning Go Brrrr From First Principles*, 2022: compute, memory bandwidth, overhead.
"""
