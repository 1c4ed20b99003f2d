"""What a run on several ranks needs beside DDP: one that speaks and writes, hashes compared, evaluation shared.

Exported from notebooks/20a_many_processes.ipynb, grown by notebooks/20b_many_machines.ipynb,
notebooks/21d_layouts.ipynb and notebooks/24b_llama_runs.ipynb.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from nanogpt.config import Config, config_dict
from nanogpt.data import BatchStream
from nanogpt.distributed import Ranks, code_hash, gathered, process_group, refuse_differences, torchrun_ranks
from nanogpt.files import alone_in
from nanogpt.labs.llama.keys import new_shape
from nanogpt.labs.parallel.laid_out import evaluate_together, is_laid_out
from nanogpt.labs.parallel.layout import data_parallel
from nanogpt.labs.parallel.watch import watched
from nanogpt.model import params_by_part
from nanogpt.shards import document_starts


def patience() -> float:
    """Seconds that a rank of a run waits for the others: the variable NANOGPT_PATIENCE, else ten minutes."""
    said = os.environ.get("NANOGPT_PATIENCE", "600")
    if not said.isdecimal() or int(said) < 1:
        raise ValueError(f"NANOGPT_PATIENCE is {said!r}; it must be a whole number of seconds")
    return float(said)


def too_large(config: Config, device: torch.device, ranks: int) -> str:
    """Why a run cannot fit into the device's memory, however it is cut over its ranks; "" where it may.

    Counts what every run keeps: 16 bytes for each parameter outside the vocabulary, and each block's input in 16 bits.
    """
    m, B = config.model, config.train.micro_batch
    P = sum(params_by_part(new_shape(config, vocab_size=1)).values())
    needed = (16 * P + 2 * m.n_layer * B * m.block_size * m.n_embd) // ranks
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    elif hasattr(os, "sysconf"):  # not on Windows
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return ""
    names = ["n_layer", "n_embd", "block_size"]
    if m.padded_vocab_size is not None:
        names.append("padded_vocab_size")
    given = ", ".join(f"model.{name}={getattr(m, name)}" for name in names)
    said = f"{given} and train.micro_batch={B} need at least {needed // 10**9:,} GB a process for {P:,} parameters"
    return f"{said}; {device} has {there // 10**9:,} GB: lower the largest" if needed > there else ""


def check_run(config: Config, ranks: Ranks) -> None:
    """ValueError for a run that these ranks cannot do, before they meet."""
    data_parallel(config.parallel, ranks.size)  # is this the number of processes that the layout needs?
    if config.init_from is None and (reason := too_large(config, ranks.device, ranks.size)):
        raise ValueError(reason)


@contextmanager
def one_run(config: Config) -> Iterator[Ranks]:
    """The ranks of a run together: rank 0 has the run's folder for itself, and nobody else's prints are seen."""
    ranks = torchrun_ranks(config.run.device)
    check_run(config, ranks)
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")  # else PyTorch 2.9 records nothing for the watch
    with ExitStack() as stack:
        stack.enter_context(process_group(ranks, patience()))
        stack.enter_context(watched(ranks, patience() / 2))
        if ranks.rank == 0:
            stack.enter_context(alone_in(Path(config.run.dir), "trainer", "choose another run.dir"))
        else:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
        yield ranks


def first_alone(ranks: Ranks, call: Callable, *args):
    """call(*args) on rank 0, and then on the others, who find what it has made."""
    if ranks.size > 1 and ranks.rank > 0:
        dist.barrier()
    made = call(*args)
    if ranks.size > 1 and ranks.rank == 0:
        dist.barrier()
    return made


def remedy(config: Config, ranks: int) -> str:
    """The change of the configuration with which its batch can be dealt to so many ranks."""
    rows = config.train.batch_tokens // config.model.block_size
    for micro_batch in range(config.train.micro_batch, 0, -1):
        if rows % (ranks * micro_batch) == 0:
            return f"set train.micro_batch={micro_batch}, which keeps the batch"
    return f"make train.batch_tokens a multiple of {ranks} × model.block_size"


def refuse_other_runs(ranks: Ranks, config: Config, stream: BatchStream, found: str) -> None:
    """ValueError if the micro-batches cannot be dealt, or if the ranks would not do the same run.

    found: the checkpoint that this rank would go on from.
    """
    c = config
    if c.micro_batches % stream.world_size:
        each = f"train.micro_batch={c.train.micro_batch} × model.block_size={c.model.block_size}"
        batch = f"train.batch_tokens={c.train.batch_tokens} is {c.micro_batches} × {each}"
        what = remedy(c, stream.world_size)
        raise ValueError(f"{batch}: not to be dealt to {stream.world_size} ranks; {what}")
    same = config_dict(c) | {"run": config_dict(c)["run"] | {"device": None}}
    facts = {"configuration": same, "data": stream.state_dict()}
    hashes = {
        name: hashlib.sha256(json.dumps(fact).encode()).hexdigest()[:12] for name, fact in facts.items()
    }
    refuse_differences(ranks, **hashes, code=code_hash(), checkpoint=found)


def seed_step(seed: int, step: int, stream: BatchStream) -> None:
    """Let dropout differ by step and by rank, where several ranks read different rows."""
    if stream.world_size > 1:
        torch.manual_seed(hash((seed, step, stream.rank)) % 2**63)


def my_documents(tokens: np.ndarray, eot: int, ranks: Ranks) -> np.ndarray:
    """A rank's part of a shard: whole documents, and the token behind the last, which is to be predicted too."""
    starts = np.array_split(document_starts(tokens, eot), ranks.size)
    bounds = [part[0] if len(part) else len(tokens) - 1 for part in starts] + [len(tokens) - 1]
    return tokens[bounds[ranks.rank] : bounds[ranks.rank + 1] + 1]


def held_loss(ranks: Ranks, evaluate: Callable, model, held: list[np.ndarray], eot: int, **how) -> float:
    """evaluate(model, held, eot, **how), chapter 18's mean loss, by all ranks; rows or documents are dealt to them."""
    if ranks.size == 1:
        return evaluate(model, held, eot, **how)
    if is_laid_out(model):
        return evaluate_together(model, held, eot, ranks, **how)
    mine = [part for tokens in held if len(part := my_documents(tokens, eot, ranks)) > 1]
    count = sum(len(part) - 1 for part in mine)
    reports = gathered(ranks, (count, evaluate(model, mine, eot, **how) if count else 0.0))
    return sum(count * loss for count, loss in reports) / sum(count for count, _ in reports)
