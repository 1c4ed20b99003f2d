# %% [markdown]
r"""
# 06 · Pretrained weights

Chapter 05's model has GPT-2's names and GPT-2's parameter count. Is it GPT-2? A count cannot say. Weights
can: put the same numbers into your model and into one that you did not write, and compare what comes out. What
hurts without this is that a wrong loader raises nothing. Every shape fits, a loss is printed, and all that is
missing is the model that somebody trained.

| a checkpoint says | only code knows |
|---|---|
| `wte.weight (50257, 768)` | where is `lm_head`? |
| `h.0.attn.c_attn.weight (768, 2304)` | which third of the 2304 is q? |
| `h.0.attn.c_proj.weight (768, 768)` | is it stored (in, out) or (out, in)? |
| `n_layer` 12, `n_head` 12, `gelu_new` | which of the GELUs is that? LayerNorm before attention, or after? |
"""

# %%
#| default_exp gpt.pretrained
#| doc gpt.pretrained: GPT-2's weights from Hugging Face's files, and back.
#| doc gpt.hub: The files of a checkpoint, in a folder or on Hugging Face's hub.
import math
from copy import deepcopy
from dataclasses import replace

import numpy as np

from course.figures import pretrained as figures
from course.notebook import answer, checkpoint, predict, predictions, show

# %%
#| export
import json
import re
from pathlib import Path

import torch

from nanogpt.gpt.hub import SINGLE, find_checkpoint, read_json  # this chapter writes them too, at its end
from nanogpt.gpt.model import GPT, GPTConfig

# %% [markdown]
r"""
## Predict

Hugging Face's documentation of the format lists its `gpt2` file at 137,022,720 float32 numbers. Your model has
124,439,808. What are the other 12,582,912? And two numbers:
"""

# %%
predict("06.1", "the file's other 12,582,912 numbers are", guess=None)
predict("06.2", "‖a − b‖ / ‖b‖ of two unrelated arrays of equal norm", guess=None)
predict("06.3", "of six mistakes in a forward pass, how many pass allclose at 1e-3", guess=None)

# %% [markdown]
r"""
## A checkpoint is a table of named arrays

The real file is half a gigabyte. The next cell writes one like it, small and with random numbers, so that
this chapter runs anywhere: GPT-2's tensors, named and laid out as on the hub.
"""

# %%
from safetensors.numpy import save_file as save_arrays

BUILT = Path("../data/built/checkpoints")
SMALL = {"n_layer": 4, "n_head": 4, "n_embd": 64, "n_positions": 48, "vocab_size": 256}  # change these
config = GPTConfig(block_size=SMALL["n_positions"], **{k: v for k, v in SMALL.items() if k != "n_positions"})


# %%
def random_arrays(hf: dict) -> dict[str, np.ndarray]:
    """The tensors of a GPT-2 with random weights, as the hub's openai-community/gpt2 names and stores them."""
    rng = np.random.default_rng(5)
    V, C, T, L = (hf[size] for size in ("vocab_size", "n_embd", "n_positions", "n_layer"))
    linears = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
    arrays = {"wte.weight": rng.normal(0, 0.5, (V, C)), "wpe.weight": rng.normal(0, 0.2, (T, C))}
    for ln in ["ln_f", *(f"h.{i}.ln_{j}" for i in range(L) for j in (1, 2))]:
        arrays[f"{ln}.weight"], arrays[f"{ln}.bias"] = rng.normal(1, 0.1, C), rng.normal(0, 0.1, C)
    for i in range(L):
        for name, (a, b) in linears.items():
            arrays[f"h.{i}.{name}.weight"] = rng.normal(0, 1 / math.sqrt(a * C), (a * C, b * C))
            arrays[f"h.{i}.{name}.bias"] = rng.normal(0, 0.1, b * C)
        arrays[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, T, T)))
    return {name: array.astype(np.float32) for name, array in arrays.items()}


# %%
(BUILT / "hub").mkdir(parents=True, exist_ok=True)  # written with no code of ours in between
save_arrays(random_arrays(SMALL), BUILT / "hub" / "model.safetensors", metadata={"format": "pt"})
hf_config = {"model_type": "gpt2", "activation_function": "gelu_new", **SMALL}
(BUILT / "hub" / "config.json").write_text(json.dumps(hf_config))
print(*sorted(path.name for path in (BUILT / "hub").iterdir()))


# %% [markdown]
r"""
A safetensors file is eight bytes, a JSON header, and the numbers end to end. No library is needed to read it, and
nothing in it can run: that is why weights travel this way and not as a pickle.
"""


# %%
def read_by_hand(path: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """The header of a safetensors file, and its float32 arrays as float64."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    header.pop("__metadata__")  # notes of the program that wrote the file
    arrays = {}
    for name, entry in header.items():
        start, stop = entry["data_offsets"]
        arrays[name] = np.frombuffer(data[start:stop], "<f4").reshape(entry["shape"]).astype(np.float64)
    return header, arrays


header, W = read_by_hand(BUILT / "hub" / "model.safetensors")
print(header["h.0.attn.c_attn.weight"])

# %%
print(f"{len(W)} tensors; of the blocks the first one's:")
for name, array in sorted(W.items()):
    if name.startswith("h.0.") or not name.startswith("h."):
        print(f"  {name:24} {array.shape}")

# %% [markdown]
r"""
Three differences from `GPT(config).named_parameters()`. There is no `transformer.` before the names here (other
checkpoints have it). There is no `lm_head.weight`: it is `wte.weight`, stored once. And `attn.bias` is no bias.
"""

# %%
from nanogpt.gpt.model import SIZES, num_params

gpt2 = SIZES["gpt2"]
print("attn.bias, first rows:", *W["h.0.attn.bias"][0, 0, :3, :6].astype(int).tolist())
masks = gpt2.n_layer * gpt2.block_size**2
print(f"{num_params(gpt2):,} + {gpt2.n_layer} masks of {gpt2.block_size}² = {num_params(gpt2) + masks:,}")
answer("06.1", f"{gpt2.n_layer} causal masks")

# %% [markdown]
r"""
The causal mask was a buffer once, and was saved with every block. It holds no knowledge; a loader skips it by name.

## A loader that fits

The matrices come out as (C, 3·C) where `nn.Linear` holds (3·C, C). OpenAI's code computed $xW + b$ with $W$ of
shape (in, out), Hugging Face kept that as `Conv1D`, and `nn.Linear` computes $xW^\top + b$ with (out, in). So a loader
has to transpose. Here is one. It copies what fits and transposes what does not.
"""


# %%
def load_what_fits(arrays: dict[str, np.ndarray]) -> GPT:
    model = GPT(config, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, p in model.named_parameters():
            t = torch.from_numpy(arrays[name.removeprefix("transformer.")])
            p.copy_(t if t.shape == p.shape else t.T)
    return model


fits = load_what_fits(W)
print(f"{sum(p.numel() for p in fits.parameters()):,} parameters filled, no error")

# %% [markdown]
r"""
Is it right? Every parameter was filled, and every shape agrees. Copy it back by the same rule and you get the
file again, number for number:
"""

# %%
back = {name.removeprefix("transformer."): p.detach().numpy() for name, p in fits.named_parameters()}
back = {name: p if p.shape == W[name].shape else p.T for name, p in back.items()}
print("the round trip returns the file exactly:", all(np.array_equal(back[name], W[name]) for name in back))

# %% [markdown]
r"""
A round trip proves only that reading and writing agree with each other. What is needed is somebody else's forward
pass. Here is GPT-2 in NumPy, in float64, straight from the file's names and the file's layout: every matrix is used
as `x @ W`. It shares no line with your model.
"""


# %%
def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Hendrycks & Gimpel 2016, §2; Hugging Face calls it gelu_new."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def attend(q, k, v) -> np.ndarray:
    """Causal attention, (n_head, T, d) each."""
    T, d = q.shape[1:]
    scores = q @ k.swapaxes(1, 2) / math.sqrt(d) + np.triu(np.full((T, T), -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


# %%
def oracle(W: dict, ids: list[int], gelu=gelu_tanh, eps=1e-5) -> list[np.ndarray]:
    """The residual stream after the embedding and after each block, (T, C) each, and the logits (T, V)."""

    def linear(x, name):
        return x @ W[f"{name}.weight"] + W[f"{name}.bias"]  # the file's (in, out)

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
        return x * W[f"{name}.weight"] + W[f"{name}.bias"]

    T = len(ids)
    streams = [W["wte.weight"][ids] + W["wpe.weight"][:T]]  # (T, C)
    for h in (f"h.{i}" for i in range(SMALL["n_layer"])):
        x = streams[-1]
        qkv = np.split(linear(norm(x, f"{h}.ln_1"), f"{h}.attn.c_attn"), 3, axis=-1)
        heads = attend(*(part.reshape(T, SMALL["n_head"], -1).swapaxes(0, 1) for part in qkv))
        x = x + linear(heads.swapaxes(0, 1).reshape(T, -1), f"{h}.attn.c_proj")
        streams.append(x + linear(gelu(linear(norm(x, f"{h}.ln_2"), f"{h}.mlp.c_fc")), f"{h}.mlp.c_proj"))
    return [*streams, norm(streams[-1], "ln_f") @ W["wte.weight"].T]


# %% [markdown]
r"""
How far apart are two arrays? Divide the size of the difference by the size of the value: zero is equality. And two
arrays that have nothing to do with each other?
"""

# %%
ids = np.random.default_rng(1).integers(0, SMALL["vocab_size"], SMALL["n_positions"]).tolist()
truth = oracle(W, ids)


def apart(a, b) -> float:
    """‖a − b‖ / ‖b‖, a relative distance."""
    a, b = (np.asarray(x.detach() if torch.is_tensor(x) else x, dtype=np.float64) for x in (a, b))
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def logits_of(model: GPT) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids]))[0][0]  # (T, V)


noise = np.random.default_rng(2).normal(size=(2, 1000, 1000))
print(f"unrelated, of equal norm: {apart(*noise):.2f}, that is √2: neither cancels any of the other")
answer("06.2", round(apart(*noise), 2))
print(f"the loader that fits:     {apart(logits_of(fits), truth[-1]):.2f}")
agree = (logits_of(fits).numpy().argmax(-1) == truth[-1].argmax(-1)).mean()
print(f"same likeliest token:     {agree:.0%} of the positions; by chance {1 / SMALL['vocab_size']:.1%}")

# %% [markdown]
r"""
Mostly wrong, and yet more alike than chance: some of it must be right. One rule loaded all the tensors, so where is the
mistake? *Stop and find it.* The next cell asks each kind of matrix alone, with one random input.
"""

# %%
block = fits.transformer.h[0]
for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
    matrix, bias = W[f"h.0.{name}.weight"], W[f"h.0.{name}.bias"]
    x = np.random.default_rng(0).normal(size=(8, len(matrix))).astype(np.float32)
    ours = block.get_submodule(name)(torch.from_numpy(x))
    print(f"{name:12} {matrix.shape!s:10} off by {apart(ours, x @ matrix + bias):.1f}")

# %% [markdown]
r"""
About √2, as for unrelated numbers: `attn.c_proj` is square. It fits both ways round, so the rule never turned it. In
GPT-2 small it is 768 × 768, in all 12 blocks. Shapes could not find this, and the round trip did not; a comparison of
values did, at once. A layout is known by *name*.

## Build

The architecture first: which of Hugging Face's settings does this model have, and which must be refused? Their GPT-2 can
use other activations, other attention scales, an output head of its own. Weights trained with these would fit, and
compute something else.
"""

# %%
#| export
# Hugging Face lets a GPT-2 vary these; this GPT has one value of each. (reorder_and_upcast_attn may be anything:
# it changes the rounding in mixed precision, not the function.)
FIXED = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",  # GELU with tanh
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
SIZE_NAMES = {"block_size": "n_positions"} | {n: n for n in ("vocab_size", "n_layer", "n_head", "n_embd")}
DROPOUTS = ("embd_pdrop", "attn_pdrop", "resid_pdrop")


# %%
#| export
#| blank config_from_hf: collect the settings that are not as in FIXED, then rename the sizes
def config_from_hf(hf: dict, where: str = "config.json", dropout: float = 0.0) -> GPTConfig:
    """GPTConfig from a Hugging Face config.json; sizes that it leaves out are GPT-2 small's, as over there.

    Raises ValueError naming every setting that this GPT does not have.
    """
    found = FIXED | {"model_type": None} | hf
    wrong = [f"{key} is {found[key]!r}, not {value!r}" for key, value in FIXED.items() if found[key] != value]
    if hf.get("n_inner") not in (None, 4 * hf.get("n_embd", GPTConfig.n_embd)):
        wrong.append(f"n_inner is {hf['n_inner']!r}, not 4·n_embd")
    if wrong:
        raise ValueError(f"{where}: this is not a GPT-2 that nanogpt can run: {'; '.join(wrong)}")
    sizes = {ours: hf[theirs] for ours, theirs in SIZE_NAMES.items() if theirs in hf}
    return GPTConfig(**sizes, dropout=dropout)


# %%
print(config_from_hf(hf_config))

# %% [markdown]
r"""
Now names, shapes and number formats, all from the headers: a 6 GB file that is not GPT-2 should be refused before its
first number is read or any memory is taken. The four matrices of each block are the ones to turn, square or not.
"""

# %%
#| export
#| blank hf_layout: CONV1D matches the names of what is stored transposed
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

CONV1D = re.compile(r".*\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")
MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")  # buffers that old versions saved with the weights


def hf_layout(name: str, p: Tensor) -> Tensor:
    """A parameter as Hugging Face stores it: a view, transposed for Conv1D, which holds (in, out)."""
    return p.T if CONV1D.fullmatch(name) else p


def parameters_by_hf_name(model: GPT) -> dict[str, Tensor]:
    """The parameters under the hub's names, without `transformer.`; the tied matrix once, as wte.weight, unpadded."""
    params = {name.removeprefix("transformer."): p for name, p in model.named_parameters()}
    return params | {"wte.weight": params["wte.weight"][: model.config.vocab_size]}


# %%
print("turned in block 0:", *(n for n in W if n.startswith("h.0.") and CONV1D.fullmatch(n)))


# %%
#| export
def read_headers(paths: list[Path]) -> dict[str, tuple[Path, str, tuple[int, ...], str]]:
    """Name without `transformer.` -> (file, name in it, shape, dtype), masks left out. Reads no weights."""
    found = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                for stored in file.keys():  # noqa: SIM118
                    name = stored.removeprefix("transformer.")
                    if name in found:
                        raise ValueError(f"{path.name} holds {name} a second time; keep one")
                    if not MASK.fullmatch(name):
                        piece = file.get_slice(stored)
                        found[name] = (path, stored, tuple(piece.get_shape()), piece.get_dtype())
        except SafetensorError as error:
            raise ValueError(f"{path.name} is no whole safetensors file ({error})") from None
    return found


# %%
#| export
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def empty_model(config: GPTConfig, found: dict, where: str) -> GPT:
    """GPT(config) without memory, once no size of config is beyond what the headers hold: that could take forever."""
    limit = max([len(found), *(n for _, _, shape, _ in found.values() for n in shape)])
    for ours, theirs in SIZE_NAMES.items():
        if getattr(config, ours) > limit:
            what = f"config.json says {theirs}={getattr(config, ours)}"
            raise ValueError(f"{where}: {what}, which is more than anything in the weights ({limit})")
    with torch.device("meta"):
        return GPT(config)


# %%
#| export
def check_tensors(found: dict, expected: dict[str, Tensor], where: str) -> None:
    """ValueError naming every tensor that is missing, unexpected, of a wrong shape or not floating point."""

    def some(names: list[str]) -> str:
        return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    shapes = {name: tuple(hf_layout(name, p).shape) for name, p in expected.items()}
    allowed = shapes | {"lm_head.weight": shapes["wte.weight"]}
    both = {n: found[n][2:] for n in found if n in allowed}
    problems = {
        "missing": [n for n in shapes if n not in found],
        "unexpected": [n for n in found if n not in allowed],
        "wrong shape": [f"{n} is {both[n][0]}, not {allowed[n]}" for n in both if both[n][0] != allowed[n]],
        "not floating point": [f"{n} is {t}" for n, (_, t) in both.items() if t not in DTYPES],
    }
    if text := "; ".join(f"{what}: {some(names)}" for what, names in problems.items() if names):
        raise ValueError(f"{where} does not hold the weights that its config.json describes; {text}")


# %% [markdown]
r"""
One number no shape knows: 4 heads of 16 and 8 heads of 8 have the same matrices. For files of other programs config.json
has to be believed. Ours say in their header how many heads they were trained with.
"""


# %%
#| export
def check_heads(paths: list[Path], config: GPTConfig, where: str) -> None:
    """ValueError where a file written by to_hf notes another n_head than config: the arrays fit any."""
    for path in paths:
        with safe_open(path, framework="pt") as file:
            noted = (file.metadata() or {}).get("n_head", str(config.n_head))
        if noted != str(config.n_head):
            what = f"config.json says n_head={config.n_head}, but {path.name} was written with {noted}"
            raise ValueError(f"{where}: {what}")


# %% [markdown]
r"""
Then the numbers, one tensor at a time: a view of the file on disk, copied into its parameter and dropped.
"""


# %%
#| export
#| blank copy_weights: copy each tensor into the parameter's view; refuse NaN, infinity and an untied head
def read_tensor(path: Path, name: str) -> Tensor:
    """One tensor of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)


@torch.no_grad()
def copy_weights(model: GPT, found: dict, where: str) -> None:
    """Fill every parameter from its file. ValueError where one is no number, or an output head of its own is stored."""
    for name, p in parameters_by_hf_name(model).items():
        if not hf_layout(name, p).copy_(read_tensor(*found[name][:2])).isfinite().all():
            raise ValueError(f"{where}: {name} holds NaN or infinity; download or write it again")
    if head := found.get("lm_head.weight"):
        tied = model.lm_head.weight
        if not torch.equal(read_tensor(*head[:2]).to(tied), tied):
            raise ValueError(f"{where}: lm_head.weight is not wte.weight; this GPT has one matrix for both")


# %% [markdown]
r"""
The loader puts these together. The model is made on the `meta` device, which has shapes and no memory, so nothing is
initialised only to be overwritten. `find_checkpoint` finds the files, in a folder or on Hugging Face's hub; the last part of
this chapter shows how.
"""


# %%
#| export
def from_hf(name_or_dir: str | Path, *, revision=None, dropout=0.0, dtype: torch.dtype | None = None) -> GPT:
    """GPT with the weights of a Hugging Face GPT-2 checkpoint, in eval mode, in `dtype` or else as the file has them.

    name_or_dir: a folder, or a hub repository such as "openai-community/gpt2" (downloaded once, then from the cache).
    revision: a branch, tag or commit on the hub. dropout: yours to choose, as it is no part of the weights.
    Raises OSError where a file cannot be had, ValueError naming what in it is not this GPT-2.
    """
    config_path, paths = find_checkpoint(name_or_dir, revision)
    where = str(name_or_dir)
    config = config_from_hf(read_json(config_path), f"{where}, config.json", dropout)
    found = read_headers(paths)
    model = empty_model(config, found, where)
    check_tensors(found, parameters_by_hf_name(model), where)
    check_heads(paths, config, where)
    stored = {DTYPES[entry[3]] for entry in found.values()}
    model = model.to(dtype or (stored.pop() if len(stored) == 1 else torch.get_default_dtype()))
    model.to_empty(device=torch.get_default_device())
    model.lm_head.weight = model.transformer.wte.weight  # to_empty parts what is tied
    copy_weights(model, found, where)
    return model.eval()


# %%
model = from_hf(BUILT / "hub")
print(model.config)
print("off by less than 1e-6:", apart(logits_of(model), truth[-1]) < 1e-6)

# %% [markdown]
r"""
## Parity is a law

The model computes in float32 and the oracle in float64, so the bits differ. How small a distance is "equal"? float32
rounds every result to one part in $2^{24}$, and the spacing of its numbers at 1 is ε = 2⁻²³. A tolerance picked by eye
is an opinion. Better: *a rounding error shrinks when the numbers get longer, a mistake does not.* So run the same model
in float64, which has 29 bits more. Where does the distance go, for the loader that fits and for yours?
"""

# %%
eps32, eps64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


def streams_of(model: GPT) -> list[torch.Tensor]:
    """What `oracle` returns, from a model: the residual stream (T, C) at each depth, and the logits."""
    seen = []
    parts = [model.transformer.drop, *model.transformer.h, model.lm_head]
    hooks = [part.register_forward_hook(lambda part, args, out: seen.append(out[0])) for part in parts]
    logits_of(model)
    for hook in hooks:
        hook.remove()
    return seen


runs = {"transposes what does not fit": fits, "from_hf": model}
runs |= {f"{name}, float64": deepcopy(m).double() for name, m in runs.items()}
distances = {name: [apart(a, b) for a, b in zip(streams_of(m), truth)] for name, m in runs.items()}
for name, d in distances.items():
    print(f"{name:38} {'rounding' if d[-1] < 8 * (eps64 if 'float64' in name else eps32) else 'a mistake'}")
for name, eps in (("from_hf", eps32), ("from_hf, float64", eps64)):
    assert max(distances[name]) < 8 * eps, f"{name} is further from the oracle than rounding explains"

# %%
show(
    figures.by_depth(distances, {"ε of float32": eps32, "ε of float64": eps64}),
    alt="Distance to the NumPy oracle by depth. The loader that fits stays near 1 in both precisions; from_hf stays near "
    "the epsilon of float32, and of float64.",
)

# %% [markdown]
r"""
The mistake is as large in 64 bits as in 32, and it is there from the first block: a comparison by depth also says where
to look. Not every mistake is that loud. Here are six, made on purpose in the oracle. Which of them pass `allclose` with
both tolerances at 1e-3, which would look strict to many?
"""


# %%
def gelu_erf(x: np.ndarray) -> np.ndarray:
    return torch.nn.functional.gelu(torch.from_numpy(x)).numpy()


turned = {n: a.T for n, a in W.items() if n.endswith("attn.c_proj.weight")}
qkv = {n: np.split(a, 3, axis=-1) for n, a in W.items() if "c_attn" in n}
swapped = {n: np.concatenate((k, q, v), axis=-1) for n, (q, k, v) in qkv.items()}
shifted = {"wpe.weight": np.roll(W["wpe.weight"], 1, axis=0)}
rounded = {n: torch.from_numpy(a).bfloat16().double().numpy() for n, a in W.items()}
wrong = {
    "attn.c_proj not transposed": oracle(W | turned, ids)[-1],
    "q and k swapped": oracle(W | swapped, ids)[-1],
    "positions off by one": oracle(W | shifted, ids)[-1],
    "weights rounded to bfloat16": oracle(rounded, ids)[-1],
    "GELU with erf, not tanh": oracle(W, ids, gelu=gelu_erf)[-1],
    "LayerNorm's ε 1e-6, not 1e-5": oracle(W, ids, eps=1e-6)[-1],
}
distance = {name: apart(logits, truth[-1]) for name, logits in wrong.items()}
passes = {name: np.allclose(logits, truth[-1], rtol=1e-3, atol=1e-3) for name, logits in wrong.items()}
for name, d in distance.items():
    print(f"{name:30} {'passes' if passes[name] else 'fails'} allclose, distance {d:.0e}")
answer("06.3", sum(passes.values()))
assert min(distance.values()) > 10 * distances["from_hf"][-1], "a mistake is no longer larger than rounding"

# %%
right = "none: from_hf in float32"
show(
    figures.mistakes(distance | {right: distances["from_hf"][-1]}, eps32, right),
    alt="Bars on a log scale: wrong layouts are off by 0.4 to 1, bfloat16 weights by 5e-3, the other GELU by 2e-4, another epsilon by 2e-5, and from_hf in float32 by 4e-7.",
)

# %% [markdown]
r"""
The quietest passes, and a looser tolerance lets more through. The bottom bar is what float32 costs. The smallest
mistake is still more than ten times as large: with parity as the law there is room to see it.

## Write

The way back is shorter: the same names, the same four transposes. `transformers` has no GPT-2 without biases, but a bias
of zero computes the same, so `bias=False` models are written with zeros (and come back with biases, all zero). Rows that
only pad the vocabulary (chapter 13) are left out.
"""


# %%
#| export
def config_to_hf(config: GPTConfig) -> dict:
    """The config.json that makes `transformers` build this model."""
    eot = min(50256, config.vocab_size - 1)  # <|endoftext|>: GPT-2's, or the last of chapter 01's vocabulary
    sizes = {theirs: getattr(config, ours) for ours, theirs in SIZE_NAMES.items()}
    rest = {"architectures": ["GPT2LMHeadModel"], "bos_token_id": eot, "eos_token_id": eot}
    return FIXED | sizes | dict.fromkeys(DROPOUTS, config.dropout) | rest


# %%
assert config_from_hf(config_to_hf(config)) == config, "a config does not survive there and back"
print(json.dumps(config_to_hf(config)))


# %%
#| export
from nanogpt.text.files import atomically, save_json


def to_hf(model: GPT, folder: str | Path) -> None:
    """Write config.json and model.safetensors, which `transformers` and `from_hf` load; each file atomically.

    Weights keep their dtype. A model with bias=False gets biases of zero, which compute the same.
    """
    if not isinstance(model, GPT):
        kind = type(model).__name__
        raise ValueError(f"to_hf writes a GPT, not a {kind}; unwrap it first (model.module, model._orig_mod)")
    tensors = {}
    for name, p in parameters_by_hf_name(model).items():
        tensors[f"transformer.{name}"] = t = hf_layout(name, p.detach()).cpu().contiguous()
        if not model.config.bias and name not in ("wte.weight", "wpe.weight"):
            tensors[f"transformer.{name.removesuffix('weight')}bias"] = t.new_zeros(t.shape[-1])  # (out,)
    noted = {"format": "pt", "n_head": str(model.config.n_head)}  # which no array tells
    with atomically(Path(folder) / SINGLE) as file:
        save_file(tensors, file.name, metadata=noted)  # by name: it then needs no copy of all weights
    save_json(Path(folder) / "config.json", config_to_hf(model.config))


# %%
to_hf(model, BUILT / "ours")
again = from_hf(BUILT / "ours")
print("written and read, bit for bit:", all(map(torch.equal, model.parameters(), again.parameters())))
to_hf(GPT(replace(config, bias=False), generator=torch.Generator().manual_seed(0)), BUILT / "no_bias")
print("zeros for biases:", sum(not p.any() for p in from_hf(BUILT / "no_bias").parameters()), "tensors")

# %% [markdown]
r"""
A round trip proves little, as above. Where `transformers` is installed, let it read your folder. It also has what the
oracle lacks: gradients. A loss is one number; its gradient has one for every parameter.
"""

# %% tags=["nbval-ignore-output"]
try:
    import transformers
except ImportError:
    transformers = None
    print("transformers is not installed (pip install transformers), so the NumPy oracle has to do.")

if transformers:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    theirs = transformers.GPT2LMHeadModel.from_pretrained(BUILT / "ours").eval()
    tokens = torch.tensor([ids])
    loss = again(tokens[:, :-1], tokens[:, 1:])[1]
    their_loss = theirs(tokens, labels=tokens).loss  # shifts the labels itself
    loss.backward()
    their_loss.backward()
    print(f"transformers {transformers.__version__}: loss {their_loss.item():.6f}, ours {loss.item():.6f}")
    grads = {name: p.grad for name, p in again.named_parameters()}
    error = {n: apart(hf_layout(n, grads[n]), p.grad) / eps32 for n, p in theirs.named_parameters()}
    print(f"gradient furthest apart: {max(error, key=error.get)}, {max(error.values()):.1f} ε")

# %% [markdown]
r"""
Two programs, written by different people in different layouts, compute the same function and the same derivative, up to
a few ε. *That* is what "the same architecture" means.

## What must be refused

The other half of a loader is what it says when the file is wrong. Seven broken copies, one sentence each:
"""


# %%
def broken(change=lambda arrays: None, **config) -> None:
    """Write a checkpoint with one thing wrong, and print what the loader says."""
    folder, arrays = BUILT / "broken", random_arrays(SMALL)
    folder.mkdir(exist_ok=True)
    change(arrays)
    save_arrays(arrays, folder / SINGLE, metadata={"n_head": str(SMALL["n_head"])})
    (folder / "config.json").write_text(json.dumps(hf_config | config))
    try:
        from_hf(folder)
    except ValueError as error:
        print(f"- {error}".replace(folder.as_posix(), "broken"))


# %%
last_block = f"h.{SMALL['n_layer'] - 1}."
broken(lambda arrays: [arrays.pop(name) for name in list(arrays) if name.startswith(last_block)])
broken(lambda arrays: arrays.update({"h.0.mlp.c_fc.weight": arrays["h.0.mlp.c_fc.weight"].T.copy()}))
broken(lambda arrays: arrays.update({"lm_head.weight": 2 * arrays["wte.weight"]}))
broken(lambda arrays: arrays["ln_f.bias"].fill(np.nan))
broken(scale_attn_by_inverse_layer_idx=True)
broken(n_head=1 if SMALL["n_head"] > 1 else 2)
broken(vocab_size=400_000_000)

# %% [markdown]
r"""
## Finding the files (plumbing; skip it unless you are curious)

A name is a folder, or a repository on Hugging Face's hub. `huggingface_hub` downloads all files of one commit into a cache:
a name that was loaded once loads again without a network, and loads the same weights. `HF_HUB_OFFLINE=1` never asks
for more.
"""


# %%
#| export gpt.hub
import json
import re
from contextlib import suppress
from functools import partial
from pathlib import Path

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


# %%
#| export gpt.hub
def download(repo: str, revision: str | None = None) -> Path:
    """The folder of a hub repository's checkpoint: from the cache, or else downloaded into it. OSError if neither."""
    from huggingface_hub import errors, snapshot_download

    files = ["config.json", "model*.safetensors", INDEX]
    get = partial(snapshot_download, repo, revision=revision, allow_patterns=files)
    try:
        with suppress(errors.LocalEntryNotFoundError):
            return Path(get(local_files_only=True))  # what is there is neither asked for nor changed
        return Path(get())
    except (errors.HFValidationError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        what = f"{repo!r} is no folder, and the hub shows no such repository or revision"
        raise FileNotFoundError(f"{what}; check the name, or `hf auth login` if it is private") from error
    except Exception as error:  # no base class holds the HTTP errors of every version of huggingface_hub
        what = f"{repo!r} is no folder and not in the cache, and the hub cannot be read"
        why = type(error.__cause__ or error).__name__
        raise OSError(f"{what} ({why}); try again online, or name a folder") from error


# %% [markdown]
r"""
A large model comes in several files with an index that names them. The index was written by a stranger, and a name such
as `../../id_rsa` is a path too: only plain file names are followed.
"""


# %%
#| export gpt.hub
def read_json(path: Path) -> dict:
    """A JSON object from a file; ValueError naming the file where it holds none."""
    with suppress(ValueError):
        if isinstance(value := json.loads(path.read_text(encoding="utf-8")), dict):
            return value
    raise ValueError(f"{path.name} is not a JSON object; download or write it again")


def shard_names(index: Path) -> list[str]:
    """The files that an index names, each once; ValueError where one is not a plain file name."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError(f"{index.name} has no weight_map; download it again")
    for name in names.values():
        if not re.fullmatch(r"[\w.-]+\.safetensors", str(name)):
            raise ValueError(f"{index.name} names {name!r}, which is no plain file name; nothing was read")
    return list(dict.fromkeys(names.values()))


# %%
(BUILT / INDEX).write_text(json.dumps({"weight_map": {"wte.weight": "../../id_rsa"}}))
try:
    shard_names(BUILT / INDEX)
except ValueError as error:
    print(error)


# %%
#| export gpt.hub
def find_checkpoint(name_or_dir: str | Path, revision: str | None = None) -> tuple[Path, list[Path]]:
    """Paths of config.json and of the safetensors files, of a folder or of one commit of a hub repository."""
    name, folder = str(name_or_dir), Path(name_or_dir)
    if not folder.is_dir():
        folder = download(name, revision)
    single = (folder / SINGLE).is_file() or not (folder / INDEX).is_file()
    needed = ["config.json", *([SINGLE] if single else shard_names(folder / INDEX))]
    if missing := [file for file in needed if not (folder / file).is_file()]:
        advice = "is it a whole Hugging Face checkpoint?"
        if missing == [SINGLE]:
            convert = f"transformers.GPT2LMHeadModel.from_pretrained({name!r}).save_pretrained('converted')"
            advice = f"if it has a pytorch_model.bin: a pickle can run code when read; convert it, {convert}"
        raise FileNotFoundError(f"{name} lacks {', '.join(missing)}; {advice}")
    return folder / "config.json", [folder / file for file in needed[1:]]


# %% [markdown]
r"""
## The real one

Online, or with a filled cache, the next cell loads OpenAI's 124M and completes a sentence, always with the likeliest
token (chapter 08 has better ways). Text that reads well is the most convincing check in this chapter and the weakest. Offline
with nothing cached the cell says so, and everything above has been shown on the checkpoint that this notebook made.
"""

# %% tags=["nbval-ignore-output"]
from nanogpt.text.tokenizer import BPETokenizer


@torch.no_grad()
def complete(model: GPT, tokenizer: BPETokenizer, prompt: str, n: int) -> str:
    idx = torch.tensor([tokenizer.encode(prompt)])
    for _ in range(n):
        idx = torch.cat((idx, model(idx)[0][:, -1:].argmax(-1)), dim=1)
    return tokenizer.decode(idx[0].tolist())


real = None
try:
    real, tokenizer = from_hf("openai-community/gpt2"), BPETokenizer.gpt2()
    print(complete(real, tokenizer, "Hello, I'm a language model,", 24))
except OSError as error:
    print(f"The real GPT-2 is not here: {error}.\nThis chapter ran on the checkpoint that it made itself.")

# %% [markdown]
r"""
## Checkpoint

Exports the loader and the writer, imports them in a fresh process and runs the chapter's tests, which compare with
`transformers` at several sizes where it is installed.
"""

# %%
predictions("06")

# %%
checkpoint("06")

# %% [markdown]
r"""
## Exercises

`course exercises release 06` writes these as a notebook to `released/`; `course check 06` runs their visible checks.

- **06-1** New tokens for an old model, 25 minutes: mend three faults in a function that adds rows to the token table.
- **06-2** What a file holds, 10 minutes: tensors, numbers and bytes of a GPT-2 of your own shape.
- **06-3** A check that a loader cannot fool, 20 minutes: write the check; it is tried on wrong layouts.
- **06-4** A setting that hides in the weights, 20 minutes: load `scale_attn_by_inverse_layer_idx` without a new model.
- **06-5** Rounding or a mistake?, 5 minutes: name the measurement that decides.

To explore:

1. **A quieter bug.** In `config_from_hf`, drop `layer_norm_epsilon` from `FIXED` and load a checkpoint whose config says
   1e-3. Which cell of this notebook notices? Then do it right: set `eps` on the loaded model's LayerNorms. Check: parity
   with `oracle(W, ids, eps=1e-3)` below 8 ε.
2. **Half the file.** Write the checkpoint in bfloat16 (`to_hf(deepcopy(model).bfloat16(), ...)`; without the copy it is
   the notebook's own model that changes) and read it back with `dtype=torch.float32`. Predict the distance of the logits
   from ε of bfloat16 before you measure it. Check: the figure of mistakes above has the answer.
3. **Shards.** Split `model.safetensors` by hand into two files and write the index. Check: `from_hf` reads both, and
   refuses the folder when the index names `../model.safetensors`.

## Further reading

- Radford et al. 2019, *Language Models are Unsupervised Multitask Learners*, §2.3; the released code,
  [openai/gpt-2, `src/model.py`](https://github.com/openai/gpt-2/blob/master/src/model.py), function `conv1d`.
- Press & Wolf 2017, *Using the Output Embedding to Improve Language Models*, §3: why `lm_head` is `wte`.
- [The safetensors format](https://huggingface.co/docs/safetensors/index#format), and
  [its metadata](https://huggingface.co/docs/safetensors/metadata_parsing), with the count of `gpt2`'s numbers.
- Hendrycks & Gimpel 2016, *Gaussian Error Linear Units*, §2: the tanh form.
"""
