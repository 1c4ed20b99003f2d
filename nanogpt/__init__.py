"""GPT-2 in PyTorch, as the course's notebooks build it, in nine rooms.

text      text into tokens, tokens into batches
corpora   the stories' grammar and floor; real text; Megatron's files
gpt       attention, model, weights, training, sampling
speed     what a step could take, what it takes, what makes it faster
run       a run from a configuration: trainer, checkpoints, metrics, adapters
evals     losses, excess over the floor, HellaSwag
parallel  one model on many processes
plan      memory, time and cost of a run before it starts
drills    what the chapters make several processes do, to be measured

`from nanogpt import GPT, GPTConfig, BPETokenizer, BatchStream, train, generate` is all that a small script needs.
"""

import os
from importlib import import_module

# Before PyTorch is loaded: GNU's OpenMP threads spin while they wait, and take the cores from whoever has work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

HOMES = {
    "GPT": "gpt.model",
    "GPTConfig": "gpt.model",
    "BPETokenizer": "text.tokenizer",
    "BatchStream": "text.data",
    "train": "gpt.train",
    "generate": "gpt.sample",
}


def __getattr__(name: str):
    """One of HOMES, imported when it is asked for: `import nanogpt` stays quick, and needs no chapter (PEP 562)."""
    if name not in HOMES:
        raise AttributeError(f"module 'nanogpt' has no attribute {name!r}")
    return getattr(import_module(f"nanogpt.{HOMES[name]}"), name)
