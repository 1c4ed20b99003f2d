"""A model, its rows and checks for several processes; and the command `drill`, under torchrun.

Exported from notebooks/20_ddp.ipynb.
"""

import argparse
import importlib
import time

import torch

from nanogpt.data import DocumentStream
from nanogpt.distributed import Ranks, gathered, process_group, torchrun_ranks
from nanogpt.files import save_json
from nanogpt.labs.parallel.buckets import my_rows
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.shards import describe_shards, open_shards
from nanogpt.training import scale_init

SHAPE = {"n_layer": 2, "n_head": 8, "n_embd": 128, "block_size": 64}
ROWS, SEED, LR = 8, 0, 2e-3


def hello(ranks: Ranks, data: str | None = None) -> None:
    """Each rank says who it is."""
    print(f"rank {ranks.rank} of {ranks.size}, local rank {ranks.local_rank}, on {ranks.device}", flush=True)


def fresh(ranks: Ranks, data: str, rows: int = ROWS, **shape):
    """A model, its optimizer and a stream of this rank's part of `rows` rows: on all ranks the same weights.

    shape: what differs from SHAPE.
    """
    shards = open_shards(data, "train")
    shape = GPTConfig(**SHAPE | shape, vocab_size=describe_shards(shards)[0])
    model = scale_init(GPT(shape, torch.Generator().manual_seed(SEED))).to(ranks.device)
    stream = DocumentStream(shards, T=shape.block_size, device=ranks.device, **my_rows(rows, ranks))
    return model, make_optimizer(model, LR), stream


def masked(stream, row: int = ROWS // 2) -> list:
    """A batch as micro-batches of one row; of the global rows from `row` on, only the first tenth of the targets counts."""
    x, y = stream.next_batch()
    y[max(0, row - stream.rank * stream.B) :, stream.T // 10 :] = -100
    return list(zip(x.split(1), y.split(1)))


def weights_apart(model, ranks: Ranks) -> float:
    """The largest difference of a weight between two ranks."""
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    return max((weights - other).abs().max().item() for other in gathered(ranks, weights))


def hang(ranks: Ranks, data: str | None = None) -> None:
    """The last rank does not come to the collective, as if its disk or its GPU hung."""
    if ranks.rank == ranks.size - 1:
        time.sleep(3600)
    ranks.mean(torch.ones(1, device=ranks.device))


DRILLS = {"hello": hello, "hang": hang}


def parser() -> argparse.ArgumentParser:
    """The options of `python -m nanogpt drill`."""
    parser = argparse.ArgumentParser(
        description="Drills, under torchrun: torchrun ... -m nanogpt drill hello"
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"{', '.join(DRILLS)}; or MODULE:NAME")
    parser.add_argument("--data", default="data/built/stories", help="a folder of shards")
    parser.add_argument("--out", help="a JSON file for what rank 0 has found")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a rank waits for the others")
    return parser


def find_drill(name: str):
    """Chapter 20's drill of this name, or MODULE:NAME, of the table DRILLS in nanogpt.labs.MODULE. ValueError if there is none."""
    module, _, drill = name.rpartition(":")
    table = importlib.import_module(f"nanogpt.labs.{module}").DRILLS if module else DRILLS
    if drill in table:
        return table[drill]
    raise ValueError(f"there is no drill {name}; {module or 'chapter 20'} has {', '.join(table)}")


def run(args: argparse.Namespace) -> None:
    """`python -m nanogpt drill`, its options parsed."""
    drills, ranks = {name: find_drill(name) for name in args.names}, torchrun_ranks()
    if ranks.size == 1:
        raise ValueError("a drill takes several processes: torchrun --nproc-per-node 2 -m nanogpt drill ...")
    torch.set_num_threads(1)
    with process_group(ranks, args.seconds):
        found = {name: drill(ranks, args.data) for name, drill in drills.items()}
    if ranks.rank == 0 and args.out:
        save_json(args.out, found)
