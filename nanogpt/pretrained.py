"""GPT-2's weights from Hugging Face's files.

Exported from notebooks/06_pretrained.ipynb, grown by notebooks/08_sampling.ipynb and
notebooks/17d_assembly.ipynb.
"""

import json
import re
from contextlib import suppress
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from nanogpt.model import GPT, GPTConfig

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


def load_pretrained(name_or_dir: str | Path) -> GPT:
    """The model of a Hugging Face folder or repository, in eval mode: a GPT-2, or a family that a lab can read."""
    kind = read_json(find_checkpoint(name_or_dir)[0]).get("model_type")
    if kind in ("llama", "qwen3"):
        return import_module("nanogpt.labs.llama.pretrained").llama_from_hf(name_or_dir)
    return from_hf(name_or_dir)


def is_ours(folder: Path) -> bool:
    """Whether save_model wrote the model in a folder, and not Hugging Face's library."""
    config = folder / "config.json"
    return config.is_file() and "model_type" not in read_json(config)
