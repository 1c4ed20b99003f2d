"""A checkpoint: a directory a step, whole or not there, proved by hashes.

Exported from notebooks/17b_checkpoints.ipynb, grown by notebooks/17d_assembly.ipynb and
notebooks/21_sharding.ipynb.
"""

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
from nanogpt.metrics import read_metrics
from nanogpt.model import GPT
from nanogpt.shards import file_sha256, manifest_sha256
from nanogpt.weights import save_model

MANIFEST = "manifest.json"


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


def to_disk(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk itself and not only in memory."""
    if os.name == "nt":  # has no handle for a folder, and flushes on its own
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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


def prune(folder: str | Path, keep: int, step: int, also: Collection[int] = ()) -> None:
    """Delete all checkpoints up to `step` but the last `keep` of them, and those of the steps in `also`."""
    upto = [path for path in checkpoints(folder) if int(path.name[5:]) <= step]
    for path in upto[:-keep]:
        if int(path.name[5:]) not in also:
            aside = path.rename(path.with_name(f".{path.name}.tmp"))  # a half deleted one has no name
            shutil.rmtree(aside)


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


def is_in_parts(checkpoint: Path) -> bool:
    """Whether ranks wrote a checkpoint each its own parts; else it has a model.safetensors."""
    return (checkpoint / ".metadata").exists()


def pick_checkpoint(place: str | Path) -> Path:
    """The checkpoint of a run's folder: runs/x is its newest complete one, runs/x/best that of its lowest validation loss.

    A path that is no run's folder is returned unchanged. ValueError for a checkpoint in parts.
    """
    folder = Path(place)
    home = folder.parent if folder.name == "best" else folder
    newest = latest(home)
    picked = newest or folder
    if newest and folder != home:
        seen = [line for line in read_metrics(home) if line.get("val_loss") is not None]
        if not seen:
            raise ValueError(
                f"{home} has no best checkpoint, since it was never validated; name {home} for its newest"
            )
        best = min(seen, key=lambda line: line["val_loss"])
        picked = home / f"step_{best['step']:06d}"
    if is_in_parts(picked):
        how = f"join('{picked}', 'model') of nanogpt.labs.parallel.laid_out (chapter 21d)"
        raise ValueError(f"{picked} is in parts; make a model of it with {how}")
    return picked
