"""GPT-2's weights from Hugging Face's files, and back.

Exported from notebooks/06_pretrained.ipynb.
"""

import json
import re
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from nanogpt.files import atomically, save_json
from nanogpt.model import GPT, GPTConfig

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
    sizes = {ours: hf[theirs] for ours, theirs in SIZE_NAMES.items() if theirs in hf}
    wrong += [f"{SIZE_NAMES[k]} is {v!r}, not an integer" for k, v in sizes.items() if type(v) is not int]
    if hf.get("n_inner") not in (None, 4 * hf.get("n_embd", GPTConfig.n_embd)):
        wrong.append(f"n_inner is {hf['n_inner']!r}, not 4·n_embd")
    if wrong:
        raise ValueError(f"{where}: this is not a GPT-2 that nanogpt can run: {'; '.join(wrong)}")
    return GPTConfig(**sizes, dropout=dropout)


def hub_file(repo: str, revision: str | None, filename: str, cached_only: bool = False) -> Path | None:
    """A file of a hub repository, from Hugging Face's cache or else downloaded into it; None if there is none.

    Raises OSError in one sentence where the repository is unknown or the hub cannot be reached.
    """
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        return Path(hf_hub_download(repo, filename, revision=revision, local_files_only=True))
    except errors.HFValidationError:
        raise FileNotFoundError(f"{repo!r} is neither a folder nor a hub name, owner/model") from None
    except errors.LocalEntryNotFoundError:
        if cached_only:
            return None
    try:
        # One quick question first: where there is no network, hf_hub_download alone retries for 20 s.
        get_hf_file_metadata(hf_hub_url(repo, filename, revision=revision), timeout=5)
        return Path(hf_hub_download(repo, filename, revision=revision))
    except errors.RemoteEntryNotFoundError:
        return None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        what = f"{repo!r} is no folder, and the hub shows no such repository or revision"
        raise FileNotFoundError(f"{what}; check the name, or `hf auth login` if it is private") from error
    except Exception as error:  # no base class holds the HTTP errors of every version of huggingface_hub
        what = f"{repo!r} is no folder, its {filename} is not in the cache, and the hub cannot be read"
        raise OSError(f"{what} ({type(error).__name__}); try again online, or name a folder") from error


SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def read_json(path: Path) -> dict:
    """A JSON object from a file; ValueError naming the file where it holds none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object; download or write it again")
    return value


def shard_names(index: Path) -> list[str]:
    """The files that an index names, each once; ValueError where one is not a plain file name."""
    names = read_json(index).get("weight_map")
    names = list(dict.fromkeys(names.values())) if isinstance(names, dict) else []
    bad = [n for n in names if not (isinstance(n, str) and re.fullmatch(r"[\w.-]+\.safetensors", n))]
    if bad or not names:
        what = (
            f"names {bad[0]!r}, which is not a plain .safetensors file name" if bad else "has no weight_map"
        )
        raise ValueError(f"{index.name} {what}; nothing was read")
    return names


def find_checkpoint(name_or_dir: str | Path, revision: str | None = None) -> tuple[Path, list[Path]]:
    """Paths of config.json and of the safetensors files, of a folder or of one commit of a hub repository."""
    name, folder = str(name_or_dir), Path(name_or_dir)

    def in_folder(filename: str, cached_only: bool = False) -> Path | None:
        return folder / filename if (folder / filename).is_file() else None

    find = in_folder if folder.is_dir() else partial(hub_file, name, revision)
    config = find("config.json")
    if config is None:
        raise FileNotFoundError(f"{name} has no config.json, so it is no Hugging Face checkpoint")
    if find is not in_folder:  # the cache keeps a folder for each commit: take all files from this one
        find = partial(hub_file, name, config.parent.name)
    for cached_only in (True, False):
        if path := find(SINGLE, cached_only=cached_only):
            return config, [path]
        if index := find(INDEX, cached_only=cached_only):
            paths = {shard: find(shard) for shard in shard_names(index)}
            if missing := ", ".join(shard for shard, path in paths.items() if path is None):
                raise FileNotFoundError(f"{name} lacks {missing}, which {INDEX} names; download it again")
            return config, list(paths.values())
    raise FileNotFoundError(
        f"{name} has no {SINGLE}. If it has a pytorch_model.bin: that is a pickle, which can run code when read; "
        f"convert it once, transformers.GPT2LMHeadModel.from_pretrained({name!r}).save_pretrained('converted')"
    )


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
        "wrong shape": [
            f"{n} is {shape}, not {allowed[n]}" for n, (shape, _) in both.items() if shape != allowed[n]
        ],
        "not floating point": [
            f"{n} is {t}" for n, (_, t) in both.items() if t not in ("F64", "F32", "F16", "BF16")
        ],
    }
    if text := "; ".join(f"{what}: {some(names)}" for what, names in problems.items() if names):
        raise ValueError(f"{where} does not hold the weights that its config.json describes; {text}")


def check_tied(found: dict, model: GPT, where: str) -> None:
    """ValueError where a file stores an lm_head.weight that is not wte.weight."""
    if "lm_head.weight" in found:
        path, stored, _, _ = found["lm_head.weight"]
        with safe_open(path, framework="pt") as file:
            same = torch.equal(file.get_tensor(stored).to(model.lm_head.weight), model.lm_head.weight)
        if not same:
            raise ValueError(
                f"{where}: lm_head.weight is not wte.weight, and this GPT has one matrix for both"
            )


def from_hf(name_or_dir: str | Path, *, revision: str | None = None, dropout: float = 0.0) -> GPT:
    """GPT with the weights of a Hugging Face GPT-2 checkpoint, in eval mode and in torch's default dtype.

    name_or_dir: a folder, or a hub repository such as "openai-community/gpt2" (downloaded once, then from the cache).
    revision: a branch, tag or commit on the hub. dropout: yours to choose, as it is no part of the weights.
    Raises OSError where a file cannot be had, ValueError naming what in it is not this GPT-2.
    """
    where = str(name_or_dir)
    config_path, paths = find_checkpoint(name_or_dir, revision)
    with torch.device("meta"):
        model = GPT(config_from_hf(read_json(config_path), f"{where}, config.json", dropout))
    found = read_headers(paths)
    check_tensors(found, parameters_by_hf_name(model), where)
    model.to_empty(device=torch.get_default_device())
    model.lm_head.weight = model.transformer.wte.weight  # to_empty parts what is tied
    params = parameters_by_hf_name(model)
    for path in paths:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for name, (home, stored, _, _) in found.items():
                if home == path and name in params:
                    hf_layout(name, params[name]).copy_(file.get_tensor(stored))
    check_tied(found, model, where)
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
    tensors = {
        f"transformer.{n}": hf_layout(n, p.detach()).cpu() for n, p in parameters_by_hf_name(model).items()
    }
    if not model.config.bias:
        for name, t in list(tensors.items()):
            if not name.endswith(("wte.weight", "wpe.weight")):
                tensors[name.removesuffix("weight") + "bias"] = t.new_zeros(t.shape[-1])  # (out,)
    tensors = {name: t.contiguous() for name, t in tensors.items()}
    with atomically(Path(folder) / SINGLE) as file:
        # By name, so that there is never a copy of all weights in memory.
        save_file(tensors, file.name, metadata={"format": "pt"})
    save_json(Path(folder) / "config.json", config_to_hf(model.config))
