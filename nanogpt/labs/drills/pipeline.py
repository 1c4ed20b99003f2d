"""What chapter 21e makes the stages of a pipeline do, and when.

Exported from notebooks/21e_pipeline.ipynb.
"""

from functools import partial

from nanogpt.distributed import Ranks, gathered
from nanogpt.labs.drills.ddp import fresh, masked
from nanogpt.labs.drills.ring import compared
from nanogpt.labs.parallel.pipeline import add_tied, gpipe, one_f_one_b, pipeline_step, stage_of

WAYS = {"1F1B": one_f_one_b, "GPipe": gpipe, "tied not added": one_f_one_b}


def trained_in_stages(way: str, ranks: Ranks, data: str, steps: int) -> tuple[list[float], dict]:
    """Losses of some steps and the first gradients of all stages, by name."""
    model, optimizer, stream = fresh(Ranks(device=ranks.device), data)
    part, losses, first = stage_of(model, ranks.rank, ranks.size), [], {}
    for _ in range(steps):
        optimizer.zero_grad()
        losses.append(pipeline_step(part, masked(stream), ranks, WAYS[way])[0].item())
        if way != "tied not added":
            add_tied(part, ranks)
        first = first or {name: p.grad.to("cpu", copy=True) for name, p in part.named_parameters()}
        optimizer.step()
    return losses, {name: grad for stage in gathered(ranks, first) for name, grad in stage.items()}


def timeline(ranks: Ranks, data: str, steps: int = 8, **shape) -> dict:
    """When which operation ran in each stage, in the fastest of some steps of 8 micro-batches: seconds on this machine's clock.

    shape: rows of a batch and sizes of the model, as `fresh` takes them.
    """
    model, _, stream = fresh(Ranks(device=ranks.device), data, **shape)
    part, runs = stage_of(model, ranks.rank, ranks.size), []
    for _ in range(steps):
        x, y = stream.next_batch()
        micro_batches = list(zip(x.chunk(8), y.chunk(8)))
        runs.append(gathered(ranks, pipeline_step(part, micro_batches, ranks, one_f_one_b)[1]))

    def length(spans):
        return max(stage[-1][-1] for stage in spans) - min(stage[0][-2] for stage in spans)

    return {"spans": min(runs, key=length)}


LONG = partial(timeline, steps=4, rows=64, block_size=128, n_embd=256)
SAME = partial(compared, ways=WAYS, trained=trained_in_stages)
DRILLS = {"same": SAME, "timeline": timeline, "long": LONG}
