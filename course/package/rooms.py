"""The rooms of the package: its sub-folders, and the one line that stands in the `__init__.py` of each."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from course.files import write_atomically

ROOMS = {
    "text": "From text to batches of token ids: the tokenizer, shards on disk, the stream of batches.",
    "corpora": "Where text comes from: the generated stories and their floor, real text, Megatron's files.",
    "gpt": "GPT-2: the model, its training loop and its sampling.",
    "speed": "How fast the model runs, how fast it could, and what makes it faster.",
    "run": "A training run from configuration to metrics: the trainer, its checkpoints, its log.",
    "evals": "What a trained model knows: losses, stories' questions, HellaSwag.",
    "parallel": "One model on many devices: data, sharded, tensor, context and pipeline parallelism.",
    "plan": "What a run will need and reach before it is started: memory, time, money, loss.",
    "drills": "What the chapters let several processes do, to be measured.",
}


def room_files(modules: Iterable[str]) -> dict[str, str]:
    """Path within the package → text, of the `__init__.py` of every folder that these modules stand in."""
    folders = {folder for module in modules for folder in PurePosixPath(*module.split(".")).parents}
    names = sorted(folder.as_posix() for folder in folders - {PurePosixPath()})
    return {f"{name}/__init__.py": f'"""{ROOMS.get(name, f"The folder {name}.")}"""\n' for name in names}


def package_files() -> dict[str, str]:
    """The same of all rooms; `__init__.py` and `__main__.py` of the package itself come from no notebook and stay."""
    return room_files(f"{room}.module" for room in ROOMS)


def make_rooms(modules: Iterable[str], package: Path) -> None:
    """Make what is missing of the folders that these modules stand in; what is there stays as it is."""
    for name, text in room_files(modules).items():
        if not (package / name).exists():
            write_atomically(package / name, text.encode())
