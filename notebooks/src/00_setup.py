# %% [markdown]
r"""
# 00 · Setup: the map, the machine, the dice

This course builds GPT-2 and then makes it fast. A *language model* gets a text and says how likely each possible
next piece of it is. Training shows it much text and makes what really came next more likely; sampling draws a next piece,
again and again, and so the model writes.
"""

# %%
#| default_exp device
#| doc device: Which device, how large, and which random numbers: what every chapter asks first.

from course.figures import setup as figures
from course.notebook import answer, checkpoint, predict, predictions, show

show(
    figures.course_map(),
    alt="The path of the course: text becomes ids (01), ids become batches (03), a model (05) turns a batch into scores for every next token, their loss trains it (07), and a draw from them continues the text (08); corpus (02) and real text (16) feed it, part III makes it fast, parts IV and V make it long and large.",
)

# %% [markdown]
r"""
Every box is a chapter. A chapter builds its part in small steps, checks it, and puts the finished code into the package
`nanogpt/`, from which later chapters import it. The package that you got holds all of them, so the whole path can be
walked now, with a model that has not learned anything:
"""

# %%
import torch

from nanogpt.corpora.corpus import stories  # 02
from nanogpt.gpt.model import GPT, GPTConfig  # 04, 05
from nanogpt.gpt.sample import generate  # 08
from nanogpt.text.tokenizer import BPETokenizer  # 01

texts = [story.text for story in stories(500, seed=0)]
tokenizer = BPETokenizer.train(texts, vocab_size=512)
ids = torch.tensor([tokenizer.encode(texts[0])])  # (1, T)
config = GPTConfig(block_size=256, vocab_size=512, n_layer=2, n_head=2, n_embd=64)
model = GPT(config, torch.Generator().manual_seed(0))
logits, loss = model(ids[:, :-1], targets=ids[:, 1:])  # each position is asked for the token after it
print("text    ", texts[0][:60])
print("ids     ", ids[0, :12].tolist(), f"... {ids.numel()} of them")
print("logits  ", tuple(logits.shape), "one score for each of 512 tokens, at each position")
print(f"loss     {loss.item():.2f}")
print("sample  ", repr(tokenizer.decode(generate(model, ids[0, :8].tolist(), 12))))

# %% [markdown]
r"""
The sample is noise. The loss says how surprised the model was by the text. Spread evenly over 512 tokens, its bets would
cost ln 512 = 6.24 for each; chapter 07 brings it to a tenth of that, and then the model writes stories.

**How to use a notebook.** Run cells from top to bottom with Shift+Enter. Where it says *Predict*, write your guess into the
cell below it before you go on, in place of `None`: half of what is to be learned here is the difference. Change numbers
and run again; `course restore 00` in a terminal brings a chapter back as it was. The last cell checks the chapter's code
and exports it. Save before you run it.

Three questions come before every chapter: on which device, how large, and with which random numbers?

## Which device?

PyTorch runs the same code on an NVIDIA or AMD GPU, `cuda`, on an Apple GPU, `mps`, and on the processor itself, `cpu`.
The rule for choosing is short, and it has an override, because a test or a lesson must be able to say "on the CPU, please"
without editing code.
"""

# %%
#| export
#| blank pick_device: prefer first, then the variable, then the best one present; refuse one that is not there
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
A laptop and an H200 run the same notebook, but not at the same size. Each chapter keeps its sizes in a small table with a
row for each *scale*.
"""

# %%
#| export
#| blank pick_scale: the variable first, then the device; refuse a word that is not in SCALES
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

People who follow a course report that their loss curve differs on each run, although they set the seed. A usual cause:
all random numbers come from one hidden global generator, so a cell that is run twice, or a sample drawn in between, shifts
everything after it.

*Predict.* Two runs below draw the same two batches of random numbers; in the second run, somebody draws a sample in
between. The batches come first from the global generator, then from one of their own. In how many of the two cases is the
second batch the same in both runs?
"""

# %%
predict("00.1", "cases in which the second batch stays the same", guess=None)


# %%
#| export
#| blank seed_everything: seed PyTorch itself, then return a new generator with the same seed
def seed_everything(seed: int) -> torch.Generator:
    """Seed PyTorch's global generators, and return a CPU generator of its own with the same seed.

    Pass the returned one to what draws random numbers: then no other cell can disturb it. Both begin with the same
    numbers, so two things that must be independent are drawn from one of them, not one from each.
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


unchanged = {own: torch.equal(second_batch(False, own), second_batch(True, own)) for own in (False, True)}
for own, same in unchanged.items():
    print(f"{'own' if own else 'global'} generator: second batch {'unchanged' if same else 'changed'}")
answer("00.1", sum(unchanged.values()))

# %% [markdown]
r"""
One. From here on, what must be repeatable takes a `generator`, or a `seed` where it makes its own; dropout, which PyTorch draws from the
global one alone, gets its seed at every step (chapter 07).

One thing to know about the pair that `seed_everything` leaves behind:
"""

# %%
own = seed_everything(7)
print("own:   ", [round(x, 2) for x in torch.randn(3, generator=own).tolist()])
print("global:", [round(x, 2) for x in torch.randn(3).tolist()])

# %% [markdown]
r"""
The two streams are equal. Weights from one and "independent" noise from the other would be the same numbers.

## Checkpoint

The last cell of every chapter exports the cells that begin with `#| export` into `nanogpt/`, imports the result in a
fresh process and runs the chapter's tests on it. Only if all of that works are the old modules replaced.
"""

# %%
predictions("00")

# %%
checkpoint("00")

# %% [markdown]
r"""
## Exercises

1. Set `NANOGPT_DEVICE=cuda:7` and start the notebook again. *Check:* one sentence names the device and what is there.
2. Make `second_batch` draw its disturbance from the *own* generator. *Check:* now both cases change.
3. In the cell that walks the whole path, double `n_embd`, then the number of stories. *Check:* one of them changes the shape of
   the logits, the other the tokens, none brings the loss far from ln 512. Why not?

## Further reading

- PyTorch, *Reproducibility* (notes): what a seed fixes, and what it does not.
- A. Karpathy, *Let's reproduce GPT-2 (124M)*, video lecture, 2024: the same path in four hours, on a GPU.
"""
