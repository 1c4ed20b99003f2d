# %% [markdown]
r"""
# 06 · Pretrained weights

Chapter 05's model has GPT-2's names and GPT-2's number of parameters. Is it GPT-2? A count cannot prove it. So we put
the same weights into our model and into a second program that shares no code with it, and compare the logits. If they agree on a random
input, the two programs very probably compute the same function.

Saved weights are called a *checkpoint*. Many people publish theirs on a website, the *hub* of the company Hugging Face, in the format of its library
`transformers`. The core of a loader is a loop over names, a few lines long. Why does it need a chapter? Because a wrong loader may raise no
error. Every shape fits, a loss is printed, and the model writes nonsense. We will write a loader that looks right, see that it is wrong, find
the mistake, and learn a test that finds such mistakes. Here is why the file alone is not enough:

| a checkpoint file says | only the code knows |
|---|---|
| `wte.weight (50257, 768)` | where is `lm_head`? |
| `h.0.attn.c_attn.weight (768, 2304)` | which third of the 2304 is q? |
| `h.0.attn.c_proj.weight (768, 768)` | is it stored as (in, out) or as (out, in)? |
| `n_layer` 12, `n_head` 12, `gelu_new` | which of the GELUs is that? is LayerNorm before attention, or after? |
"""

# %%
#| default_exp pretrained
#| doc pretrained: GPT-2's weights from Hugging Face's files.
#| doc labs.formats.hf: A model as the files that transformers loads.
from copy import deepcopy

import numpy as np
from safetensors.torch import load_file

from course.figures import pretrained as figures
from course.figures.numpy_gpt2 import apart, oracle, six_mistakes, write_checkpoint
from course.notebook import answer, checkpoint, predict, predictions, show
from nanogpt.model import num_params

# %%
#| export
import json
import re
from importlib.resources import files
from pathlib import Path

import torch

from nanogpt.model import GPT, GPTConfig

# %% [markdown]
r"""
## What GPT-2's weights say

OpenAI published the weights of GPT-2 small in 2019. Here is how they continue three openings if one always takes the likeliest token. We did not
make up these texts, and this cell does not compute them: the library `transformers` has tests that load the same weights and demand exactly these words. The bar
shows where the opening ends:
"""

# %%
recorded = json.loads(Path("../data/measurements/gpt2-words.json").read_text(encoding="utf-8"))
for opening in recorded["openings"]:
    start, text = opening["prompt"], opening["text"]
    print(f"{start} |{text.removeprefix(start)}\n")
print(f"from {recorded['path']} of {recorded['repository']}, commit {recorded['commit'][:8]}")

# %% [markdown]
r"""
The first text even begins to repeat itself, as likeliest tokens often do. If your model is GPT-2, it must say the same 18 tokens after
*The dog*, one by one. At the end of this chapter we load the weights and see whether it does.

## A checkpoint is a table of named arrays

For us, a checkpoint on the hub is a folder with two files. `config.json` has the sizes, and `model.safetensors` has the numbers.
The file of GPT-2 small is half a gigabyte, and you may be offline. The next cell therefore writes a small checkpoint with random numbers.
It has the tensors of a GPT-2, with the names and the layout that they have on the hub. Everything in this chapter works on this file in the
same way as on the real one. In the settings, `n_positions` is Hugging Face's name for our
`block_size`, and `gelu_new` is its name for chapter 05's GELU with tanh.
"""

# %%
SMALL = {"n_positions": 48, "vocab_size": 256, "n_layer": 4, "n_head": 4, "n_embd": 64}  # change these
BUILT = Path("../data/built/checkpoints")
hub = write_checkpoint(BUILT / "hub", SMALL)
print((hub / "config.json").read_text())

# %% [markdown]
r"""
## Predict

*Predict.* Hugging Face's documentation says that the file of `gpt2` holds 137,022,720 numbers. Your model has
124,439,808. What are the other 12,582,912?

The second question is about a distance. The *norm* ‖a‖ of an array a is its length: the square root of the sum of the squares of all its numbers.
As the distance of a from b we take ‖a − b‖ / ‖b‖, the length of the difference divided by the length of b.

For the third question, we will make six mistakes on purpose, one at a time, and compare the logits with the right ones by `np.allclose`. It
accepts two arrays if each number differs from the number in the same place by at most a tolerance. Ours is 1e-3, plus 1e-3 of the number itself. How many of the
six mistakes does it accept?
"""

# %%
predict("06.1", "the file's other 12,582,912 numbers are", guess=None)
predict("06.2", "‖a − b‖ / ‖b‖ of two unrelated arrays of equal norm", guess=None)
predict("06.3", "of six mistakes in a forward pass, how many pass allclose at 1e-3", guess=None)

# %% [markdown]
r"""
## What is in the file

A safetensors file is simple. It begins with eight bytes, which say how long the header is. The header is JSON: it gives each tensor's name,
type and shape, and where its bytes begin and end. Then come the numbers, one tensor after the other. We could read it without any library.
A pickle, Python's own format for objects, can run code when it is read. A safetensors file cannot, and this is why weights are published in this format.
We read the header by hand and the numbers with `load_file`. We print the entry of one tensor, and then list the tensors of block 0 and those
outside the blocks:
"""

# %%
raw = (hub / "model.safetensors").read_bytes()
length = int.from_bytes(raw[:8], "little")
print(json.loads(raw[8 : 8 + length])["h.0.attn.c_attn.weight"])
W = {name: t.numpy() for name, t in load_file(hub / "model.safetensors").items()}
for name, array in sorted(W.items()):
    if name.startswith("h.0.") or not name.startswith("h."):
        print(f"  {name:24} {array.shape}")

# %% [markdown]
r"""
The entry says that `c_attn` begins at byte 9,984 of the numbers and ends before byte 59,136. These are 49,152 bytes: 64 · 192 numbers of 4 bytes each.

Now compare the names with those of your `GPT`. There are three differences. The names here do not begin with `transformer.` (in
other checkpoints they do). There is no `lm_head.weight`, because it is `wte.weight`, which is stored once. And the file has an `attn.bias`, which
is not a bias. Look at its first rows:
"""

# %%
print(*W["h.0.attn.bias"][0, 0, :3, :6].astype(int).tolist(), sep="\n")
print(f"{num_params(GPTConfig()):,} + 12 · 1024² = {num_params(GPTConfig()) + 12 * 1024**2:,}")
answer("06.1", "12 causal masks")

# %% [markdown]
r"""
It is the causal mask. Old versions of `transformers` kept this mask of 1024 × 1024 numbers in each of the 12 blocks, and saved it with the
weights. These are the 12,582,912 numbers. They were not learned, and a loader skips them.

## A loader that goes by shapes

One more difference is in the shapes. The file has `c_attn` as (C, 3·C). `nn.Linear` holds it as (3·C, C). OpenAI's code
computes $xW + b$ with $W$ of shape (in, out), and Hugging Face kept this layout under the name `Conv1D`. `nn.Linear` computes
$xW^\top + b$. A loader has to transpose. Here is one. If a tensor has the shape of our parameter, it copies the tensor; if not, it copies
the transposed tensor.
"""

# %%
config = GPTConfig(*SMALL.values())  # SMALL has the sizes in GPTConfig's order


def load_what_fits(arrays: dict[str, np.ndarray]) -> GPT:
    model = GPT(config, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, p in model.named_parameters():
            t = torch.tensor(arrays[name.removeprefix("transformer.")])
            p.copy_(t if t.shape == p.shape else t.T)
    return model


fits = load_what_fits(W)
print(f"{sum(p.numel() for p in fits.parameters()):,} parameters filled, no error")

# %% [markdown]
r"""
Every parameter was filled, and every shape agrees. Is the loader right? Let us bring the model's weights back into the
layout of the file, by the same rule, and compare them with the file:
"""

# %%
same = []
for name, p in fits.named_parameters():
    stored = W[name.removeprefix("transformer.")]
    back = p.detach() if p.shape == stored.shape else p.detach().T
    same.append(np.array_equal(back, stored))
print("the round trip returns the file exactly:", all(same))

# %% [markdown]
r"""
Such a round trip proves little: it shows only that reading and writing agree with each other. We need a second forward pass,
written independently. `oracle` is GPT-2 in NumPy, about forty lines in `course/figures/numpy_gpt2.py`. It works on the arrays of the file as they are and uses
every matrix as `x @ W`. It computes in float64, and it shares no line with your model. Where the `transformers` library is installed, this chapter's
tests compare with it as well.

The function `apart` computes the distance from question 06.2, ‖a − b‖ / ‖b‖. Equal arrays have distance 0. What is the distance of two arrays that
have nothing to do with each other? The next cell measures it. Then it gives the same random tokens to the loaded model and to the oracle, and measures the
distance of their logits:
"""


# %%
ids = np.random.default_rng(1).integers(0, SMALL["vocab_size"], SMALL["n_positions"]).tolist()


def logits_of(model: GPT) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]))[0][0]  # the logits (T, V) of our only row


truth = oracle(W, ids, SMALL["n_head"])  # (T, V)
a, b = np.random.default_rng(2).normal(size=(2, 1000, 1000))
print(f"two unrelated arrays: {apart(a, b):.3f}")
print(f"the loader by shapes: {apart(logits_of(fits), truth):.3f}")
answer("06.2", round(apart(a, b), 3))

# %% [markdown]
r"""
Unrelated arrays of equal length are √2 apart: ‖a − b‖² is then ‖a‖² + ‖b‖², because the products of their numbers are zero on average. The logits of
our model have a distance of about 1 from the oracle's. That is as bad as if all logits were zero. The loader is wrong, although every shape agrees and
the round trip succeeded. One rule loaded all tensors. For which tensors is the rule wrong?

*Stop here and find it.* The next cell looks for it in block 0. It sends a random input through each of the four matrices alone, once as our model
has the matrix and once as the file has it.
"""

# %%
block = fits.transformer.h[0]
for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
    matrix, bias = W[f"h.0.{name}.weight"], W[f"h.0.{name}.bias"]
    x = np.random.default_rng(0).normal(size=(8, len(matrix))).astype(np.float32)
    ours = block.get_submodule(name)(torch.from_numpy(x)).detach()
    print(f"{name:12} {matrix.shape!s:10} off by {apart(ours, x @ matrix + bias):.1f}")

# %% [markdown]
r"""
The output of `attn.c_proj` is off by 1.4, which is √2, like an unrelated array. This matrix is square. Its shape fits with and without transposing, so the rule
copied it as it was. In GPT-2 small this matrix is 768 × 768, in all 12 blocks. The shapes could not show the mistake, and the round trip could
not show it either. A comparison of values showed it at once. A loader must go by the *names* of the tensors, not by their shapes.

## The loop over names

The right loader lists the names of the four matrices of each block that have to be transposed, square or not. Two small functions do it. The first
gives the model's parameters under the names of the hub, and leaves out rows of the token table beyond the vocabulary; ours has none. The second gives a parameter in the layout of the hub. It returns a *view*, which shares its memory with the parameter. Writing into the
view fills the parameter. The cell after these functions loads the file with them:
"""

# %%
#| export
#| blank hf_layout: CONV1D matches the names of the matrices that are stored transposed
from torch import Tensor

CONV1D = re.compile(r".*\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")


def parameters_by_hf_name(model: GPT) -> dict[str, Tensor]:
    """The parameters under the hub's names, without `transformer.`; the tied matrix once, as wte.weight, unpadded."""
    params = {name.removeprefix("transformer."): p for name, p in model.named_parameters()}
    return params | {"wte.weight": params["wte.weight"][: model.config.vocab_size]}


def hf_layout(name: str, p: Tensor) -> Tensor:
    """A parameter as Hugging Face stores it: a view, transposed for Conv1D, which holds (in, out)."""
    if CONV1D.fullmatch(name):
        return p.T
    return p


# %% tags=["nbval-ignore-output"]
def load_by_name(folder: Path, config: GPTConfig) -> GPT:
    model = GPT(config)
    stored = load_file(folder / "model.safetensors")
    with torch.no_grad():
        for name, p in parameters_by_hf_name(model).items():
            hf_layout(name, p).copy_(stored[name])
    return model.eval()


untrained = GPT(config, generator=torch.Generator().manual_seed(0))
model = load_by_name(hub, config)
print(f"distance from the oracle before loading: {apart(logits_of(untrained), truth):.2f}")
print(f"distance from the oracle after loading:  {apart(logits_of(model), truth):.0e}")

# %% [markdown]
r"""
Before loading, the distance is about 1, because the logits of an untrained model are close to zero. After loading, it is below a millionth.
This short loop is all that loading needs. Is the distance that is left a mistake?

## Rounding or a mistake?

The distance is small, but it is not zero: our model computes in float32, and the oracle in float64. How small is small enough? float32 rounds
every result, and the spacing of its numbers at 1 is ε = 2⁻²³, about 1.2e-7. We could guess a tolerance, but there is a better test. *A rounding
error shrinks when we compute with more digits. A mistake does not.* We run the same two models once more in float64. It has 29 more binary
digits than float32, and its ε is 2⁻⁵², about 2.2e-16. `double()` changes a model itself, so we apply it to a copy.

*Predict.* Which of the two distances will shrink: that of the loader by shapes, that of the loader by names, or both?
"""

# %%
predict("06.4", "in float64, the distance shrinks of the loader by", guess=None)

# %% tags=["nbval-ignore-output"]
eps32, eps64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps
for name, loaded in {"loader by shapes": fits, "loader by names": model}.items():
    in_float32 = apart(logits_of(loaded), truth)
    in_float64 = apart(logits_of(deepcopy(loaded).double()), truth)
    print(f"{name}: {in_float32:.0e} in float32, {in_float64:.0e} in float64")
assert in_float32 < 16 * eps32 and in_float64 < 16 * eps64, "further from the oracle than rounding explains"
answer("06.4", "names only")

# %% [markdown]
r"""
The distance of the first loader is as large in float64 as in float32, so it is a mistake. The distance of the second was a few ε of float32 and is now
a few ε of float64: it was rounding. The `assert` uses the numbers of the loop's last round, those of the loader by names, and allows 16 ε. When two programs agree up to rounding, we say that they have *parity*.

Not every mistake is as large as a matrix that was not transposed. Here are the six mistakes of question 06.3. We make them in the oracle, one at a time:

- Three are in the layout: `attn.c_proj` is not transposed, q and k are swapped, or each position gets the vector of the one before it.
- One is in the precision: the weights are rounded to bfloat16, a type that keeps 8 binary digits of a number, where float32 keeps 24 (chapter 10).
- Two are in a formula: GELU without the tanh approximation, or 1e-6 in place of LayerNorm's small number 1e-5, which is called ε too.

How many of them does `allclose` accept?
"""

# %%
wrong = six_mistakes(W, ids, SMALL["n_head"])  # name -> logits
distance = {name: apart(logits, truth) for name, logits in wrong.items()}
passes = [name for name, logits in wrong.items() if np.allclose(logits, truth, rtol=1e-3, atol=1e-3)]
alt = "Bars on a log scale: wrong layouts are off by 0.4 to 1, bfloat16 weights by 5e-3, the other GELU by 2e-4, another epsilon by 2e-5, and our model in float32 by a few 1e-7."
show(figures.mistakes(distance, apart(logits_of(model), truth), eps32), alt=alt)
print("passes allclose at 1e-3:", ", ".join(passes))
answer("06.3", len(passes))
assert min(distance.values()) > 10 * apart(logits_of(model), truth), "a mistake is no larger than rounding"

# %% [markdown]
r"""
Each bar is the distance of the logits from the right ones, on a logarithmic scale. The dotted line is ε of float32. The smallest mistake passes
`allclose`. The wrong GELU does not pass, although its bar is below 1e-3: `allclose` looks at each logit alone, and a few logits are off by more than the
tolerance. With a tolerance of 1e-2 this mistake would pass too. The blue bar is our model without a mistake, computed in float32. Even the smallest
mistake is more than ten times as large. The 16 ε that we allowed in the float64 test accept our model and reject all six mistakes.

All weights on this page are random. On OpenAI's file the six distances will be others, and perhaps in another order, so measure them there before you trust a
tolerance.

## The settings

A checkpoint's `config.json` can ask for things that our model does not have: another activation, another scale in attention, an output head
of its own. Weights that were trained with such settings would fit into our model, but the logits would be wrong. We therefore list the settings that our
model has, and refuse a file with other ones. You need not know them all: each is an option of Hugging Face's GPT-2, and we accept only the value that
OpenAI's GPT-2 has. A setting that is missing in the file has Hugging Face's default, which is this value. Only `model_type` must be there. `n_inner` is
the width of the MLP. Other settings change no logit. They are listed as well, in `nanogpt/resources/config_keys.txt`, because a setting that stands in no list is refused:
tomorrow's libraries will have settings that nobody can know today.
"""

# %%
#| export
# Hugging Face lets a GPT-2 vary these; this GPT has one value of each.
ONE_VALUE = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",  # GELU with tanh
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
    "pruned_heads": {},
}
KEYS = (files("nanogpt") / "resources/config_keys.txt").read_text(encoding="utf-8")
NO_EFFECT = set(re.sub("(?m)^#.*", "", KEYS).split())  # settings on which no logit depends
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SIZE_NAMES = {"block_size": "n_positions"} | {n: n for n in ("vocab_size", "n_layer", "n_head", "n_embd")}


# %%
#| export
def config_from_hf(hf: dict, where: str = "config.json", dropout: float = 0.0) -> GPTConfig:
    """GPTConfig from a config.json of Hugging Face; ValueError naming every setting that this GPT does not have."""
    settings = ONE_VALUE | {"model_type": None} | hf
    wrong = [
        f"{key} is {settings[key]!r}, not {right!r}"
        for key, right in ONE_VALUE.items()
        if settings[key] != right
    ]
    if hf.get("n_inner") not in (None, 4 * hf.get("n_embd", GPTConfig.n_embd)):
        wrong.append(f"n_inner is {hf['n_inner']!r}, not 4·n_embd")
    unknown = hf.keys() - NO_EFFECT - ONE_VALUE.keys() - {"n_inner", *SIZE_NAMES.values()}
    wrong += [f"{key} is unknown (remove it if no logit depends on it)" for key in sorted(unknown)]
    if wrong:
        raise ValueError(f"{where}: this is not a GPT-2 that nanogpt can run: {'; '.join(wrong)}")
    sizes = {ours: hf[theirs] for ours, theirs in SIZE_NAMES.items() if theirs in hf}  # or GPT-2 small's
    return GPTConfig(**sizes, dropout=dropout)


# %%
print(config_from_hf({"model_type": "gpt2"} | SMALL))

# %% [markdown]
r"""
The `n_positions` of the file has become our `block_size`. The last fields have the defaults of chapter 05.

## Writing a checkpoint

To write a model, we use the same names and the same four transposes. Three details are new. `transformers` has no GPT-2 without biases, so for a
model with `bias=False` we write biases of zero, which give the same logits. Rows that only pad the vocabulary (chapter 13) are left
out. And we store the number of heads in the file's header, because no tensor shows it: 4 heads of 16 and 8 heads of 8 have matrices of the same
shapes. The names get `transformer.` in front, as in the files that `transformers` writes today. `atomically` is from chapter 03: if the program stops
halfway, no half-written file is left under the final name.
"""

# %%
#| export labs.formats.hf
from pathlib import Path

from safetensors.torch import save_file

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT, GPTConfig


def config_to_hf(config: GPTConfig) -> dict:
    """The config.json that makes `transformers` build this model."""
    eot = min(50256, config.vocab_size - 1)  # <|endoftext|>: GPT-2's, or the last of chapter 01's vocabulary
    sizes = {theirs: getattr(config, ours) for ours, theirs in SIZE_NAMES.items()}
    dropouts = dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), config.dropout)
    rest = {"architectures": ["GPT2LMHeadModel"], "bos_token_id": eot, "eos_token_id": eot}
    return ONE_VALUE | sizes | dropouts | rest


# %%
#| export labs.formats.hf
def to_hf(model: GPT, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which `transformers` and `from_hf` load; each file atomically.

    Weights keep their dtype. A model with bias=False gets biases of zero, which compute the same.
    """
    if not isinstance(model, GPT):
        raise ValueError(f"to_hf writes a GPT, not a {type(model).__name__}; unwrap it (.module, ._orig_mod)")
    tensors = {}
    for name, p in parameters_by_hf_name(model).items():
        t = hf_layout(name, p.detach()).cpu().contiguous()
        tensors[f"transformer.{name}"] = t
        if not model.config.bias and name not in ("wte.weight", "wpe.weight"):
            tensors[f"transformer.{name.removesuffix('weight')}bias"] = t.new_zeros(t.shape[-1])  # (out,)
    note = {"format": "pt", "n_head": str(model.config.n_head)}
    with atomically(Path(folder) / SINGLE) as file:
        save_file(tensors, file.name, metadata=note)  # by name: it then needs no copy of all weights
    save_json(Path(folder) / "config.json", config_to_hf(model.config))


# %%
to_hf(model, BUILT / "ours")
ours = load_file(BUILT / "ours" / SINGLE)
same = [np.array_equal(t, W[name.removeprefix("transformer.")]) for name, t in ours.items()]
print(len(ours), "tensors, all as in the file:", all(same))

# %% [markdown]
r"""
The 52 tensors are 12 in each of the 4 blocks and 4 outside them. The masks are not written.
"""

# %% [markdown]
r"""
## Loading OpenAI's weights

Everything above was shown on a small file with random weights. The same loop reads the real one. The next cell gets it from your cache or from the hub (half
a gigabyte, the first time), continues *The dog* with the likeliest token eighteen times, and compares our ids with the recorded ones. Without a network
and without the file it says so, and prints the record again.
"""

# %% tags=["nbval-ignore-output"]
from huggingface_hub import snapshot_download


def continue_greedily(model: GPT, ids: list[int], n: int) -> list[int]:
    ids = list(ids)
    for _ in range(n):
        logits = model(torch.tensor([ids]))[0]  # (1, T, V)
        ids.append(logits[0, -1].argmax().item())
    return ids


opening = recorded["openings"][0]
try:
    real = Path(snapshot_download(recorded["weights"], allow_patterns=["config.json", "model.safetensors"]))
except Exception as error:  # no base class holds the errors of every version of huggingface_hub
    print(
        f"GPT-2's weights are not here ({type(error).__name__}), so our model could not say this. Recorded:"
    )
else:
    gpt2 = load_by_name(real, config_from_hf(json.loads((real / "config.json").read_text())))
    ids_of_ours = continue_greedily(gpt2, opening["prompt_ids"], 18)
    assert ids_of_ours == opening["ids"], f"our GPT-2 says {ids_of_ours}"
    print("Our model, with OpenAI's weights, says the recorded 18 tokens:")
print(opening["text"])

# %% [markdown]
r"""
Eighteen equal ids are a good sign, but a weak check: the likeliest token is often likeliest by far, and a wrong GELU or another ε in the LayerNorms may not
change it. A comparison of the logits with those of another program shows both.
"""

# %% [markdown]
r"""
## Appendix: a loader for the files of strangers

The cells from here to the checkpoint contain no new idea about weights. You may run them without reading them. They make `from_hf`, which the rest of the
course uses: it finds the files, refuses wrong ones before it reads a number, and then does what `load_by_name` does.

### Finding the files

`load_by_name` took a folder with a single file of weights. The real loader takes a folder or the name of a repository on Hugging Face's
hub. The library `huggingface_hub` downloads the files of one commit into a cache on your disk. If the cache has all of them, we do not use the network.

A large model comes in several files, with an index that names them. A stranger wrote this index, and a name in it such as
`../../id_rsa` would be a path to one of your own files. Therefore `weight_files` accepts only plain file names.
"""


# %%
#| export
from contextlib import suppress


def read_json(path: Path) -> dict:
    """A JSON object from a file; ValueError naming the file where it holds none."""
    with suppress(ValueError):
        value = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(value, dict):
            return value
    raise ValueError(f"{path.name} is not a JSON object; download or write it again")


def weight_files(folder: Path) -> list[str]:
    """The names of a checkpoint's safetensors files, each once; ValueError where the index names no plain file."""
    if (folder / SINGLE).is_file() or not (folder / INDEX).is_file():
        return [SINGLE]
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError(f"{INDEX} has no weight_map; download it again")
    for name in names.values():
        if not re.fullmatch(r"[\w.-]+\.safetensors", str(name)):
            raise ValueError(f"{INDEX} names {name!r}, which is not a plain file name; nothing was read")
    return list(dict.fromkeys(names.values()))


# %%
save_json(BUILT / "stranger" / INDEX, {"weight_map": {"wte.weight": "../../id_rsa"}})
try:
    weight_files(BUILT / "stranger")
except ValueError as error:
    print(error)

# %% [markdown]
r"""
The index of this stranger is refused, and no file was read. The next functions get the files. `find_checkpoint` uses a folder if there is one
with the given name, and `download` if not. `download` looks into the cache first, which may lack a file, and then asks the hub. It turns the
many errors of a network into one kind with a clear message.
"""


# %%
#| export
def find_checkpoint(name_or_dir: str | Path, revision: str | None = None) -> tuple[Path, list[Path]]:
    """Paths of config.json and of the safetensors files, of a folder or of one commit of a hub repository."""
    folder = Path(name_or_dir)
    if not folder.is_dir():
        folder = download(str(name_or_dir), revision)
    paths = [folder / name for name in ("config.json", *weight_files(folder))]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        pickle = "a pytorch_model.bin is a pickle, which can run code when read: convert it with transformers' save_pretrained"
        if (folder / "adapter_config.json").exists():
            pickle = (
                "it holds an adapter of PEFT: merge it with its base there (merge_and_unload), and save that"
            )
        raise FileNotFoundError(f"{name_or_dir} lacks {', '.join(missing)}; {pickle}")
    return paths[0], paths[1:]


def download(repo: str, revision: str | None = None) -> Path:
    """The folder of a hub repository's checkpoint: the cache's if it is complete, else downloaded."""
    from huggingface_hub import snapshot_download

    wanted = {"revision": revision, "allow_patterns": ["config.json", "model*.safetensors", INDEX]}
    try:
        with suppress(FileNotFoundError):  # the cache has nothing, or not all of it
            folder = Path(snapshot_download(repo, local_files_only=True, **wanted))
            find_checkpoint(folder)
            return folder
        return Path(snapshot_download(repo, **wanted))
    except Exception as error:  # no base class holds the errors of every version of huggingface_hub
        why = " from ".join(type(e).__name__ for e in (error, error.__cause__) if e)
        what = f"{repo!r} is no folder and not in the cache, and the hub does not give it ({why})"
        remedy = "check the name, `hf auth login` if it is private, try again online, or name a folder"
        raise FileNotFoundError(f"{what}; {remedy}") from error


# %%
print([path.name for path in find_checkpoint(hub)[1]])

# %% [markdown]
r"""
### Refusing a wrong file

A file of several gigabytes that is not a GPT-2 should be refused before any of its numbers is read. The headers are enough for that, because they
have all names, shapes and types. `read_headers` collects these from all files and leaves out the masks.
"""

# %%
#| export
from safetensors import SafetensorError, safe_open

MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")  # buffers that old versions saved with the weights
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def read_headers(paths: list[Path]) -> dict[str, tuple[Path, str, tuple[int, ...], str]]:
    """Name without `transformer.` -> (file, name in it, shape, dtype), masks left out. Reads no weights."""
    entries = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                for stored in file.keys():  # noqa: SIM118
                    name = stored.removeprefix("transformer.")
                    piece = file.get_slice(stored)
                    if name in entries:
                        raise ValueError(f"{path.name} holds {name} a second time; keep one")
                    if not MASK.fullmatch(name):
                        entries[name] = path, stored, tuple(piece.get_shape()), piece.get_dtype()
        except SafetensorError as error:
            pointer = path.read_bytes()[:8] == b"version "
            why = "but a git-lfs pointer; `git lfs pull` brings the weights" if pointer else f"({error})"
            raise ValueError(f"{path.name} is no complete safetensors file {why}") from None
    return entries


# %%
found = read_headers(find_checkpoint(hub)[1])
print(len(found), "tensors without the masks, such as", found["h.0.attn.c_attn.weight"][1:])

# %% [markdown]
r"""
`make_model` makes a model as config.json describes it, on PyTorch's `meta` device, where tensors have a shape and take no memory. Then it compares the headers with
this model: each tensor must be there, with the right shape and a type that we can read.

A config.json with a very large `n_layer` would keep us busy for a long time, even on the meta device. `make_model` therefore first takes the
largest number that the headers show, among the number of tensors and all their dimensions, and refuses a config.json with a larger size. It also
compares the number of heads with the one that `to_hf` stored.
"""


# %%
#| export
def make_model(config: GPTConfig, entries: dict, where: str) -> GPT:
    """A GPT on the meta device, for the tensors whose headers were entries; ValueError naming what does not fit."""
    # sizes beyond all that the headers hold, and another number of heads than to_hf noted
    sizes = {theirs: getattr(config, ours) for ours, theirs in SIZE_NAMES.items()}
    largest = max([len(entries), *(n for _, _, shape, _ in entries.values() for n in shape)])
    beyond = f"is more than anything in the weights ({largest})"
    problems = [f"{name}={size} {beyond}" for name, size in sizes.items() if size > largest]
    for path in {entry[0] for entry in entries.values()}:
        with safe_open(path, framework="pt") as file:
            heads = (file.metadata() or {}).get("n_head", str(config.n_head))
        if heads != str(config.n_head):
            problems.append(f"n_head={config.n_head}, but {path.name} was written with {heads}")
    # tensors that are missing, unexpected, of a wrong shape or not floating point
    if not problems:
        with torch.device("meta"):
            model = GPT(config)
        right = {name: tuple(hf_layout(name, p).shape) for name, p in parameters_by_hf_name(model).items()}
        problems = [f"missing: {name}" for name in right if name not in entries]
        right["lm_head.weight"] = right["wte.weight"]  # may be in the file, and is then the same
        for name, (_, _, shape, dtype) in entries.items():
            if name not in right:
                problems.append(f"unexpected: {name}")
            elif shape != right[name]:
                problems.append(f"wrong shape: {name} is {shape}, not {right[name]}")
            elif dtype not in DTYPES:
                problems.append(f"not floating point: {name} is {dtype}")
    if problems:
        more = f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        what = "does not hold the weights that its config.json describes"
        raise ValueError(f"{where} {what}; {'; '.join(problems[:4])}{more}")
    return model


# %%
print("our own checkpoint fits:", config == make_model(config, found, "hub").config)

# %% [markdown]
r"""
### The loader

Now we write `from_hf`. It is the loop over names with the checks before it. Two more mistakes can be seen only
when the numbers are read: a number that is NaN or infinite, and an output head that differs from the token table.

The model comes from the meta device, and `to_empty` gives it memory without values. No random weights are drawn that would be overwritten at
once. But `to_empty` gives the head and the token table separate memory, so we tie the two again.
"""


# %%
#| export
#| blank copy_weights: copy each tensor into the parameter's view; refuse NaN, infinity and an untied head
def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)


@torch.no_grad()
def copy_weights(model: GPT, entries: dict, where: str) -> None:
    """Fill every parameter from its file. ValueError for NaN or infinity, and for an output head that is not wte."""
    for name, p in parameters_by_hf_name(model).items():
        view = hf_layout(name, p)
        view.copy_(read_tensor(*entries[name][:2]))
        if not view.isfinite().all():
            raise ValueError(f"{where}: {name} holds NaN or infinity; download or write it again")
    if "lm_head.weight" in entries:
        tied = model.lm_head.weight
        if not torch.equal(read_tensor(*entries["lm_head.weight"][:2]).to(tied), tied):
            raise ValueError(f"{where}: lm_head.weight is not wte.weight; this GPT has one matrix for both")


# %%
#| export
def from_hf(name_or_dir: str | Path, *, revision=None, dropout=0.0, dtype: torch.dtype | None = None) -> GPT:
    """GPT with the weights of a Hugging Face GPT-2 checkpoint, in eval mode, in `dtype` or in the file's own type.

    name_or_dir: a folder, or a hub repository such as "openai-community/gpt2" (downloaded once, then from the cache).
    revision: a branch, tag or commit on the hub. dropout: yours to choose, as it is not a part of the weights.
    Raises OSError if a file cannot be read, and ValueError naming what in it is not this GPT-2.
    """
    # what config.json and the headers say, before any weights are read
    where = str(name_or_dir)
    config_path, paths = find_checkpoint(name_or_dir, revision)
    config = config_from_hf(read_json(config_path), f"{where}, config.json", dropout)
    entries = read_headers(paths)
    model = make_model(config, entries, where)
    # memory in the weights' own type, or in float32 if they have several
    if dtype is None:
        stored = {DTYPES[entry[3]] for entry in entries.values()}
        dtype = stored.pop() if len(stored) == 1 else torch.get_default_dtype()
    model.to(dtype).to_empty(device=torch.get_default_device())
    model.lm_head.weight = model.transformer.wte.weight  # to_empty gives each its own memory
    copy_weights(model, entries, where)
    return model.eval()


# %%
def same_weights(one: GPT, other: GPT) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters()))


print("from_hf loads the same weights as load_by_name:", same_weights(from_hf(hub), model))
print("from_hf reads the same weights as to_hf wrote:", same_weights(from_hf(BUILT / "ours"), model))


# %% [markdown]
r"""
In nanoGPT, minGPT and `transformers` the call is `GPT.from_pretrained("gpt2")`. Ours is the same function under this name:
"""


# %%
#| export model
class GPT(GPT):
    @classmethod
    def from_pretrained(cls, name_or_dir, **options) -> "GPT":
        """GPT-2's weights from a Hugging Face folder or repository, such as "gpt2": `nanogpt.pretrained.from_hf`."""
        from nanogpt.pretrained import from_hf  # here: pretrained builds GPTs itself

        return from_hf(name_or_dir, **options)


# %% [markdown]
r"""
How does `from_hf` react to broken checkpoints? We write seven checkpoints with one mistake in each, and print the messages. In the first four
the arrays are wrong, and in the last three a setting in config.json.
"""


# %%
def load_broken(change=None, **settings):
    folder = write_checkpoint(BUILT / "broken", SMALL, change, **settings)
    try:
        from_hf(folder)
    except ValueError as error:
        print("-", str(error).replace(str(folder), "broken"))


load_broken(lambda arrays: arrays.pop("ln_f.bias"))
load_broken(lambda arrays: arrays.update({"h.0.mlp.c_fc.weight": arrays["h.0.mlp.c_fc.weight"].T}))
load_broken(lambda arrays: arrays.update({"lm_head.weight": 2 * arrays["wte.weight"]}))
load_broken(lambda arrays: arrays["ln_f.bias"].fill(np.nan))
load_broken(activation_function="relu")
load_broken(n_head=2 * SMALL["n_head"])
load_broken(vocab_size=400_000_000)

# %% [markdown]
r"""
Each message says what is wrong and where. Without the check of the number of heads, the sixth checkpoint would load without an error and give wrong
logits.

## Checkpoint

The checkpoint writes `nanogpt/pretrained.py`, which reads such files, and `nanogpt/labs/formats/hf.py`, which writes them, and runs the chapter's tests. Where `transformers` is installed, they compare logits, losses
and the gradients of all parameters with it, at several sizes.
"""

# %%
predictions("06")

# %%
checkpoint("06")

# %% [markdown]
r"""
## Exercises

`course exercises release 06` writes these as a notebook to `released/`; `course check 06` runs their visible checks.

- **06-1** New tokens for an old model, 25 minutes: repair three faults of a function that adds rows to the token table.
- **06-2** What a file holds, 10 minutes: tensors, numbers and bytes of a GPT-2 of your own shape.
- **06-3** A check that a loader cannot fool, 20 minutes: write the check; it is tried on wrong layouts.
- **06-4** A setting that hides in the weights, 20 minutes: load `scale_attn_by_inverse_layer_idx` without a new model.
- **06-5** Rounding or a mistake?, 5 minutes: name the measurement that decides.

To explore:

1. **A quieter bug.** Remove `layer_norm_epsilon` from `ONE_VALUE` and load a checkpoint whose config says 1e-3:
   `write_checkpoint(BUILT / "eps", SMALL, layer_norm_epsilon=1e-3)`. Which cell of this notebook notices? Then do it right: set
   `eps` on the loaded model's LayerNorms. Check: the distance from `oracle(W, ids, SMALL["n_head"], eps=1e-3)` is below 16 ε.
   Afterwards, put the setting back.
2. **Half the file.** Write the checkpoint in bfloat16 (`to_hf(deepcopy(model).bfloat16(), ...)`; without the copy, the
   notebook's own model would change) and read it back with `dtype=torch.float32`. The ε of bfloat16 is 2⁻⁷. Predict the
   distance of the logits from it before you measure the distance. Check: the figure of mistakes above has the answer.
3. **Shards.** Split `model.safetensors` by hand into two files and write the index. Check: `from_hf` reads both, and
   refuses the folder when the index names `../model.safetensors`.

## Further reading

- Radford et al. 2019, [*Language Models are Unsupervised Multitask Learners*](https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf), §2.3; the released code,
  [openai/gpt-2, `src/model.py`](https://github.com/openai/gpt-2/blob/master/src/model.py), function `conv1d`.
- Press & Wolf 2017, [*Using the Output Embedding to Improve Language Models*](https://arxiv.org/abs/1608.05859), §3: why `lm_head` is `wte`.
- [The safetensors format](https://huggingface.co/docs/safetensors/index#format), and
  [its metadata](https://huggingface.co/docs/safetensors/metadata_parsing), with the count of `gpt2`'s numbers.
- Hendrycks & Gimpel 2016, [*Gaussian Error Linear Units*](https://arxiv.org/abs/1606.08415), §2: the tanh form.
"""
