"""The files of a checkpoint, in a folder or on Hugging Face's hub.

Exported from notebooks/06_pretrained.ipynb.
"""

import json
import re
from contextlib import suppress
from functools import partial
from pathlib import Path

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


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
