"""The files of a checkpoint, in a folder or on Hugging Face's hub.

Exported from notebooks/06_pretrained.ipynb.
"""

import json
import re
from functools import partial
from pathlib import Path

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


def hub_file(repo: str, revision: str | None, filename: str, cached_only: bool = False) -> Path | None:
    """A file of a hub repository, from the cache or else downloaded into it; None if there is none. OSError if it cannot be."""
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
    if (config := find("config.json")) is None:
        raise FileNotFoundError(f"{name} has no config.json, so it is no Hugging Face checkpoint")
    if find is not in_folder:  # the cache keeps a folder for each commit: take all files from this one
        find = partial(hub_file, name, config.parent.name)
    for cached_only in (True, False):
        if path := find(SINGLE, cached_only=cached_only):
            return config, [path]
        if index := find(INDEX, cached_only=cached_only):
            shards = {shard: find(shard) for shard in shard_names(index)}
            if missing := ", ".join(shard for shard, path in shards.items() if path is None):
                raise FileNotFoundError(f"{name} lacks {missing}, which {INDEX} names; download it again")
            return config, list(shards.values())
    raise FileNotFoundError(
        f"{name} has no {SINGLE}. If it has a pytorch_model.bin: that is a pickle, which can run code when read; "
        f"convert it once, transformers.GPT2LMHeadModel.from_pretrained({name!r}).save_pretrained('converted')"
    )
