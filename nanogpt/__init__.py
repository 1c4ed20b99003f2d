"""GPT-2 in PyTorch, as the course's notebooks build it.

    from nanogpt import GPT, BPETokenizer
    from nanogpt.sampling import complete

    print(complete(GPT.from_pretrained("gpt2"), BPETokenizer.gpt2(), "One sunny day,", 40))

Read it in this order: device, tokenizer, files, shards, data; model, pretrained; optim, precision, training, evaluate;
weights, metrics, checkpoint, sampling; config, distributed, build, trainer, cli. `nanogpt.labs` has what the chapters build
to study, to measure or to go further: how text becomes shards, how fast a machine is, adapters, shards of a model.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanogpt.data import BatchStream
    from nanogpt.model import GPT, GPTConfig
    from nanogpt.sampling import generate
    from nanogpt.tokenizer import BPETokenizer
    from nanogpt.training import train

__version__ = "0.1.0"

HOMES = {
    "GPT": "model",
    "GPTConfig": "model",
    "BPETokenizer": "tokenizer",
    "BatchStream": "data",
    "train": "training",
    "generate": "sampling",
}
__all__ = ["GPT", "GPTConfig", "BPETokenizer", "BatchStream", "train", "generate"]


def __getattr__(name: str):
    """One of HOMES, imported when it is asked for: `import nanogpt` stays quick, and needs no chapter (PEP 562)."""
    if name not in HOMES:
        raise AttributeError(f"module 'nanogpt' has no attribute {name!r}")
    return getattr(import_module(f"nanogpt.{HOMES[name]}"), name)


def __dir__() -> list[str]:
    """What tab completion shows."""
    return [*__all__, "__version__", "labs"]
