"""Whether several ranks do the same run: their code, data, configuration and checkpoint.

Exported from notebooks/20_ddp.ipynb, grown by notebooks/20a_many_processes.ipynb.
"""

import hashlib
import json
from pathlib import Path

import torch

import nanogpt
from nanogpt.config import Config, config_dict
from nanogpt.data import BatchStream
from nanogpt.distributed import Ranks, gathered


def refuse_differences(ranks: Ranks, **facts: str) -> None:
    """ValueError, on all ranks alike, if one of the facts, such as a hash, is not the same on all of them."""
    told = gathered(ranks, facts)
    for name, ours in told[0].items():
        for rank, theirs in enumerate(each[name] for each in told):
            if theirs != ours:
                raise ValueError(f"rank {rank} has another {name} than rank 0: {theirs}, and not {ours}")


def code_hash() -> str:
    """Of all modules of nanogpt on this rank's disk, and of PyTorch's version."""
    files = sorted(Path(nanogpt.__file__).parent.rglob("*.py"))
    text = b"".join(f.name.encode() + f.read_bytes() for f in files)
    return hashlib.sha256(torch.__version__.encode() + text).hexdigest()[:12]


def find_remedy(config: Config, ranks: int) -> str:
    """The change of the configuration with which its batch can be dealt to so many ranks."""
    rows = config.train.batch_tokens // config.model.block_size
    for micro_batch in range(config.train.micro_batch, 0, -1):
        if rows % (ranks * micro_batch) == 0:
            return f"set train.micro_batch={micro_batch}, which keeps the batch"
    return f"make train.batch_tokens a multiple of {ranks} × model.block_size"


def refuse_other_runs(ranks: Ranks, config: Config, stream: BatchStream, checkpoint: str) -> None:
    """ValueError if the micro-batches cannot be dealt, or if the ranks would not do the same run.

    checkpoint: the checkpoint that this rank would go on from.
    """
    train, readers = config.train, stream.world_size
    if config.micro_batches % readers:
        each = f"train.micro_batch={train.micro_batch} × model.block_size={config.model.block_size}"
        batch = f"train.batch_tokens={train.batch_tokens} is {config.micro_batches} × {each}"
        raise ValueError(f"{batch}: not to be dealt to {readers} ranks; {find_remedy(config, readers)}")
    same = config_dict(config) | {"run": config_dict(config)["run"] | {"device": None}}
    facts = {"configuration": same, "data": stream.state_dict()}
    hashes = {
        name: hashlib.sha256(json.dumps(fact).encode()).hexdigest()[:12] for name, fact in facts.items()
    }
    refuse_differences(ranks, **hashes, code=code_hash(), checkpoint=checkpoint)
