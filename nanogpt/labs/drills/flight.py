"""Ranks that hang or wait for different things: each one's collectives from PyTorch's flight recorder.

Exported from notebooks/20b_many_machines.ipynb.
"""

import argparse
import os
import time
from pathlib import Path

import torch

import nanogpt
from nanogpt.distributed import Ranks, process_group, replicate, torchrun_ranks
from nanogpt.files import save_json
from nanogpt.labs.drills.ddp import fresh, weights_apart
from nanogpt.labs.parallel.watch import recorded, watched
from nanogpt.training import accumulate_gradients


def hangs(ranks: Ranks, step: int, model) -> None:
    """The last rank never comes back."""
    if ranks.rank == ranks.size - 1:
        time.sleep(3600)


def train_checked(ranks: Ranks, data: str, check, steps: int = 6, every: int = 3) -> None:
    """Chapter 20's model in DDP for some steps, with a check after every third."""
    model, optimizer, stream = fresh(ranks, data)
    replica = replicate(model, ranks)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        accumulate_gradients(replica, [stream.next_batch()], mean=ranks.mean)
        optimizer.step()
        if step % every == 0:
            check(ranks, step, model)


def check_alone(ranks: Ranks, step: int, model) -> None:
    """Wrong on purpose: weights_apart gathers, and the others do not come."""
    if ranks.rank == 0:
        print(f"after step {step}: weights {weights_apart(model, ranks):g} apart", flush=True)


def check_together(ranks: Ranks, step: int, model) -> None:
    """All ranks ask, one prints."""
    apart = weights_apart(model, ranks)
    if ranks.rank == 0:
        print(f"after step {step}: weights {apart:g} apart", flush=True)


CHECKS = {"hangs": hangs, "alone": check_alone, "together": check_together}


def flight_record() -> list[dict]:
    """The collectives of this process in order, the last one the one it waits in: number, kind, sizes, calls in nanogpt."""
    here, record = str(Path(nanogpt.__file__).parent), []
    for entry in recorded():
        ours = [f for f in reversed(entry["frames"]) if f["filename"].startswith(here)]
        calls = [f"{f['name']} ({Path(f['filename']).name}:{f['line']})" for f in ours]
        kind = entry["profiling_name"].partition(":")[2]  # gloo:all_reduce, nccl:all_reduce
        told = {"number": entry["collective_seq_id"], "kind": kind, "sizes": entry["input_sizes"]}
        record.append(told | {"calls": calls})
    return record


def where_they_part(records: list[list[dict]]) -> list[dict | None] | None:
    """The first collective that is not of one kind and size on all ranks: each rank's, None where it made none.

    None if all ranks have made the same. records: for each rank what flight_record returns.
    """
    made = [{each["number"]: each for each in record} for record in records]
    first = max(
        (min(of_rank) for of_rank in made if of_rank), default=0
    )  # a recorder forgets what is long ago
    for number in sorted(number for number in set().union(*made) if number >= first):
        theirs = [of_rank.get(number) for of_rank in made]
        if len({each and (each["kind"], str(each["sizes"])) for each in theirs}) > 1:
            return theirs
    return None


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt flight`."""
    parser = argparse.ArgumentParser(description="Ranks that hang, and each one's list of its collectives.")
    named = "hangs: one rank does; alone: a deadlock; together: neither"
    parser.add_argument("checks", nargs="+", choices=CHECKS, metavar="CHECK", help=named)
    parser.add_argument("--data", default="data/built/stories", help="a folder of shards")
    parser.add_argument("--out", required=True, help="a folder for CHECK-rank0.json and so on")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a rank waits for the others")
    return parser


def run(args: argparse.Namespace) -> None:
    """Train with each check, and write down in the end, good or bad, which collectives there were so far."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    ranks = torchrun_ranks()
    torch.set_num_threads(1)
    fresh(ranks, args.data)  # now, because with its first optimizer PyTorch loads for seconds
    with process_group(ranks, args.seconds), watched(ranks, args.seconds / 2):
        for check in args.checks:
            try:
                train_checked(ranks, args.data, CHECKS[check])
            finally:
                save_json(Path(args.out) / f"{check}-rank{ranks.rank}.json", flight_record())
