"""The folders of the package, and the one line that stands in the `__init__.py` of each."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from course.files import write_atomically

ROOMS = {
    "labs": "What chapters build to study, to measure or to go further; a folder a topic. The core imports none at its head, and loads one by its name where it is asked for.",
    "labs.corpora": "What writes shards: the stories and their floor, real text of any size, cleaning, mixtures.",
    "labs.drills": "What the chapters let several processes do, to be measured.",
    "labs.evals": "What a trained model knows: the floor and the excess over it, stories' questions, HellaSwag.",
    "labs.formats": "Files of others: transformers, llm.c, Megatron-LM, SentencePiece.",
    "labs.kernels": "Attention and losses by hand, and as Triton kernels.",
    "labs.ladder": "Every speed-up, predicted and measured, one on the other.",
    "labs.llama": "Llama and Qwen3: GPT-2 with six changes.",
    "labs.long_run": "What looks after a run at night.",
    "labs.parallel": "One model on many devices: buckets, ZeRO, FSDP2, tensor, context and pipeline parallelism; ranks that differ or are lost.",
    "labs.plan": "What a run will need and reach before it is started: memory, time, money, loss.",
    "labs.roofline": "A clock, what a device can do at most, and what a training step must compute, move and keep.",
    "labs.speedrun": "The same loss in less time.",
    "labs.tuning": "Adapters (LoRA), and learning from answers and rewards.",
}


def room_files(modules: Iterable[str]) -> dict[str, str]:
    """Path within the package → text, of the `__init__.py` of every folder that these modules stand in."""
    folders = {folder for module in modules for folder in PurePosixPath(*module.split(".")).parents}
    names = sorted(folder.as_posix() for folder in folders - {PurePosixPath()})
    return {
        f"{name}/__init__.py": f'"""{ROOMS.get(name.replace("/", "."), f"The folder {name}.")}"""\n'
        for name in names
    }


def make_rooms(modules: Iterable[str], package: Path) -> None:
    """Make what is missing of the folders that these modules stand in; what is there stays as it is."""
    for name, text in room_files(modules).items():
        if not (package / name).exists():
            write_atomically(package / name, text.encode())
