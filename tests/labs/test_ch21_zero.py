"""ZeRO by hand and FSDP2 on real processes: one process's losses, the formula's bytes, and no others."""

import pytest
import torch
from ranks import GLOO, drilled_on_gpus, in_ranks
from small_run import text_shards
from torch import nn

from nanogpt.distributed import Ranks
from nanogpt.labs.drills import sharding as drill
from nanogpt.labs.drills.sharding import WAYS, measured
from nanogpt.labs.parallel.zero import (
    BYTES,
    InParts,
    PartsOptimizer,
    gathered_rows,
    keep_parts_early,
    mean_part,
    my_part,
    state_bytes,
)

pytestmark = GLOO
SHAPE = {"n_layer": 2, "n_head": 2, "n_embd": 34, "block_size": 24}  # 34 rows do not divide by 4
BOUND = 3e-6  # nats: sums in another order, and Adam's division of them; measured 5e-7
BF16_BOUND = 0.02  # measured 0.0007


def test_the_formula_is_the_papers():
    """Figure 1 of Rajbhandari et al. 2020: 7.5 billion parameters on 64 ranks, in GB."""
    found = [sum(state_bytes(7.5e9, 64, stage)) / 1e9 for stage in range(4)]
    assert [round(gb, 1) for gb in found] == [120.0, 31.4, 16.6, 1.9]
    assert {name: sum(each) for name, each in BYTES.items()} == {"float32": 16, "bf16": 16, "Megatron": 18}


# By hand


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 13), nn.GELU(), nn.Linear(13, 5))  # 13 and 5 rows do not divide


def trained(model, optimizer, me: Ranks, cuts: int) -> None:
    """Three steps of 8 rows, each in `cuts` micro-batches."""
    g = torch.Generator().manual_seed(1)
    for rows in torch.randn(3, 8, 13, generator=g):
        optimizer.zero_grad()
        for some in rows.chunk(me.size)[me.rank].chunk(cuts):
            (nn.functional.mse_loss(model(some[:, :8]), some[:, 8:]) / cuts).backward()
        optimizer.step()


def by_hand(ranks: Ranks) -> dict:
    """How far each stage is from one process after three steps, in one and in two micro-batches."""
    one = network()
    trained(one, torch.optim.AdamW(one.parameters(), lr=0.05), Ranks(), 1)
    part_of, found = lambda w: my_part(w, ranks.rank, ranks.size), {}
    for stage in (1, 2, 3):
        for cuts in (1, 2):
            model = network()
            weights = list(model.parameters())
            if stage == 3:
                model = InParts(model, part_of)
                parts, kept = list(model.parts), sum(w.numel() for w in weights)
            else:
                parts = [part_of(w) for w in weights]
            optimizer = torch.optim.AdamW(parts, lr=0.05)
            shared = optimizer if stage == 3 else PartsOptimizer(weights, parts, optimizer)
            if stage == 2:
                keep_parts_early(shared)
            trained(model, shared, ranks, cuts)
            ends = [gathered_rows(part.detach(), len(w)) for part, w in zip(parts, one.parameters())]
            apart = max((end - w).abs().max().item() for end, w in zip(ends, one.parameters()))
            found[f"stage {stage} in {cuts}"] = apart
    found["complete weights kept by stage 3"] = float(kept)
    x = torch.arange(10.0).view(5, 2)  # Adam does not see a gradient's scale, so the mean is asked apart
    mean = my_part(x * (ranks.size - 1) / 2, ranks.rank, ranks.size)  # of 0, x, 2x, ...
    found["the mean of 5 rows"] = (mean_part(x * ranks.rank) - mean).abs().max().item()
    return found


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.weekly)])
def test_each_stage_by_hand_trains_the_weights_of_one_process(size):
    for found in in_ranks(by_hand, size):
        assert not (wrong := {name: off for name, off in found.items() if off > 1e-5}), wrong


# FSDP2


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    return text_shards(tmp_path_factory.mktemp("shards"))


def small(ranks: Ranks, data: str, ways: list[str]) -> dict:
    drill.SHAPE = SHAPE
    found = {way: measured(way, ranks, data) for way in ways}
    return found | {"shapes": [p.shape for p in drill.start(Ranks(), data)[0].parameters()]}


@pytest.fixture(scope="module")
def alone(data, one_thread) -> dict:
    shape = drill.SHAPE
    found = small(Ranks(), data, [WAYS[0]])[WAYS[0]]
    drill.SHAPE = shape
    return found


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.weekly)])
def test_each_way_has_the_losses_of_one_process_and_the_bytes_of_the_formula(size, data, alone):
    """Bytes to the last one, with rows that do not divide: what a rank holds when backward ends, and what a step moves.

    Between forward and backward FSDP2's policy keeps no 16-bit copy of a block's weights; autocast keeps them all.
    """
    ways = WAYS[1:]
    ranks = in_ranks(small, size, data, ways)
    shapes = ranks[0]["shapes"]
    matrices = sum(s.numel() for s in shapes[2:-2] if len(s) == 2)  # of the blocks
    for rank, by_way in enumerate(ranks):
        for way in ways:
            found, rule = by_way[way], held_by_rule(way, shapes, rank, size)
            apart = max(abs(a - b) for a, b in zip(found["losses"], alone["losses"], strict=True))
            bound = BF16_BOUND if way in ("autocast", "bf16") else BOUND
            assert apart < bound, f"{way}, {size} ranks: {apart:.1e} nats off"
            assert {kind: found[kind] for kind in rule} == rule, f"{way}, rank {rank} of {size}"
            assert sum(found["moved"].values()) == traffic(way, shapes, size), f"{way}, {size} ranks"
            assert found["peak"] > sum(rule.values()), f"{way}: a peak below what it holds"
            assert found["copies"] == (2 * matrices if way == "autocast" else 0), f"{way}: copies in 16 bits"
            apart = abs(found["norm"] / by_way["DDP"]["norm"] - 1)
            assert apart < (0.05 if way in ("autocast", "bf16") else 1e-4), f"{way}: another norm than DDP's"
    read = [by_way["FSDP2"]["read"] / by_way["FSDP2"]["norm"] for by_way in ranks]
    assert max(read) < 0.95, "a rank reads the true norm: what the chapter says of .item() is not so"
    assert abs(sum(each**2 for each in read) - 1) < 1e-3, "the squares of what the ranks read do not add up"


def held_by_rule(way: str, shapes: list, rank: int, size: int) -> dict:
    """Bytes on a rank; FSDP2's last ranks may have fewer rows."""
    full = sum(4 * s.numel() for s in shapes)
    rows = [-(-s[0] // size) for s in shapes]
    own = sum(4 * max(0, min(n, s[0] - rank * n)) * s[1:].numel() for n, s in zip(rows, shapes))
    each = full if way == "DDP" else own
    return {"weights": each, "gradients": each, "moments": 2 * each}


def traffic(way: str, shapes: list, size: int) -> int:
    """Bytes a step: DDP 2 Ψ; FSDP2 3 Ψ, but the root (wte, wpe and ln_f: the first two and the last two) is gathered once."""
    if way == "DDP":
        return 2 * sum(4 * s.numel() for s in shapes)
    pads = [4 * size * -(-s[0] // size) * s[1:].numel() for s in shapes]
    root, blocks = sum(pads[:2] + pads[-2:]), sum(pads[2:-2])
    if way == "bf16":  # gathered in half the bytes
        return 2 * blocks + root // 2 + root
    return 3 * blocks + 2 * root


@pytest.mark.gpu
def test_the_drills_find_the_same_by_nccl(tmp_path):
    found = drilled_on_gpus(tmp_path, "drills.sharding:stages", "drills.sharding:parts")
    stages = found["drills.sharding:stages"]
    for way in WAYS[1:]:
        pairs = zip(stages[way]["losses"], stages[WAYS[0]]["losses"], strict=True)
        apart = max(abs(a - b) for a, b in pairs)
        assert apart < (BF16_BOUND if way in ("autocast", "bf16") else 1e-4), f"{way}: {apart:.1e} nats off"
        assert (stages[way]["copies"] > 0) == (way == "autocast"), f"{way}: copies in 16 bits"
