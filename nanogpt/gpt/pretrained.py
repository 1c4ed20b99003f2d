"""GPT-2's weights from Hugging Face's files, and back.

Exported from notebooks/06_pretrained.ipynb.
"""

import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nanogpt.gpt.hub import SINGLE, find_checkpoint, read_json  # this chapter writes them too, at its end
from nanogpt.gpt.model import GPT, GPTConfig
from nanogpt.text.files import atomically, save_json

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


CONV1D = re.compile(r".*\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")
MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")  # buffers that old versions saved with the weights


def hf_layout(name: str, p: Tensor) -> Tensor:
    """A parameter as Hugging Face stores it: a view, transposed for Conv1D, which holds (in, out)."""
    return p.T if CONV1D.fullmatch(name) else p


def parameters_by_hf_name(model: GPT) -> dict[str, Tensor]:
    """The parameters under the hub's names, without `transformer.`; the tied matrix once, as wte.weight, unpadded."""
    params = {name.removeprefix("transformer."): p for name, p in model.named_parameters()}
    return params | {"wte.weight": params["wte.weight"][: model.config.vocab_size]}


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


def check_heads(paths: list[Path], config: GPTConfig, where: str) -> None:
    """ValueError where a file written by to_hf notes another n_head than config: the arrays fit any."""
    for path in paths:
        with safe_open(path, framework="pt") as file:
            noted = (file.metadata() or {}).get("n_head", str(config.n_head))
        if noted != str(config.n_head):
            what = f"config.json says n_head={config.n_head}, but {path.name} was written with {noted}"
            raise ValueError(f"{where}: {what}")


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


def config_to_hf(config: GPTConfig) -> dict:
    """The config.json that makes `transformers` build this model."""
    eot = min(50256, config.vocab_size - 1)  # <|endoftext|>: GPT-2's, or the last of chapter 01's vocabulary
    sizes = {theirs: getattr(config, ours) for ours, theirs in SIZE_NAMES.items()}
    rest = {"architectures": ["GPT2LMHeadModel"], "bos_token_id": eot, "eos_token_id": eot}
    return FIXED | sizes | dict.fromkeys(DROPOUTS, config.dropout) | rest


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
