"""The configuration's section `parallel`, and what is impossible in it, each in one line.

Exported from notebooks/21d_layouts.ipynb.
"""

from nanogpt.config import Parallel


def check_layout(parallel: Parallel, model, train) -> None:
    """ValueError, naming the keys, for what no number of processes can run."""
    heads, tp = model.n_head, parallel.tp
    if heads % tp:  # the width is a multiple of the heads, so it comes out even as well
        fit = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
        raise ValueError(f"parallel.tp={tp} must divide model.n_head={heads}, as {fit} do")
    if tp > 1 and model.dropout:
        raise ValueError(
            f"model.dropout={model.dropout} with parallel.tp={tp}: masks would differ; set it to 0"
        )
    if (parallel.shard or tp > 1) and train.dtype == "bf16-masters":
        cut = "parallel.shard=true" if parallel.shard else f"parallel.tp={tp}"
        raise ValueError(f"train.dtype=bf16-masters needs complete weights, not {cut}; take bf16")
    if parallel.copies > 1 and not parallel.shard:
        raise ValueError(
            f"parallel.copies={parallel.copies} are of parts; set parallel.shard=true, or leave it out"
        )
    if parallel.save_parts and (tp > 1 or not parallel.shard):
        given = f"parallel.shard={str(parallel.shard).lower()} and parallel.tp={tp}"
        raise ValueError(f"parallel.save_parts=true needs parallel.shard=true and parallel.tp=1, not {given}")


def data_parallel(parallel: Parallel, processes: int) -> int:
    """Of so many processes, how many read different rows: processes / tp. ValueError where the numbers disagree."""
    dp, tp = parallel.dp, parallel.tp
    if dp is None and processes % tp:
        raise ValueError(f"parallel.tp={tp} needs a multiple of {tp} processes; {processes} were started")
    dp = dp or processes // tp
    if dp % parallel.copies:
        raise ValueError(f"parallel.copies={parallel.copies} must divide parallel.dp={dp}")
    if dp * tp != processes:
        started = (
            f"{processes} {'was' if processes == 1 else 'were'} started (torchrun --nproc-per-node {dp * tp})"
        )
        raise ValueError(f"parallel.dp={dp} × parallel.tp={tp} needs {dp * tp} processes; {started}")
    return dp


def check(config) -> None:
    """ValueError, naming the keys, for a configuration that no number of processes can run: for chapter 17c's LABS."""
    check_layout(config.parallel, config.model, config.train)
