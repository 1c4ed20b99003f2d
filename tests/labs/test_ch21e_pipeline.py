"""A model cut into stages is the same model; the bubble's formula is what schedules give."""

import pytest
import torch
from ranks import GLOO, drilled_on_gpus, in_ranks

from nanogpt.distributed import Ranks, gathered
from nanogpt.labs.parallel.pipeline import (
    FROM,
    TO,
    add_tied,
    bubble,
    gpipe,
    idle,
    interleaved,
    neighbour,
    one_f_one_b,
    pipeline_step,
    simulate,
    stage_of,
)
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.training import train_step
from nanogpt.weights import load_model, save_model

# float32: gradients by their length, each parameter's; losses of 4.6 nats over STEPS steps of Adam. Not zero, since
# the parts of wte's gradient add up in another order; everything else is computed as in one process.
BOUND, DRIFT = 2e-6, 2e-5
STEPS, T, V, MICRO = 4, 16, 96, 5
TIED = "transformer.wte.weight"

# Schedules


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "m"), [(1, 1), (2, 1), (2, 8), (4, 2), (4, 8), (5, 7), (8, 32)])
def test_every_stage_is_idle_for_the_formulas_share(schedule, stages, m):
    orders = [schedule(s, stages, m) for s in range(stages)]
    for backward in (1, 2, 2.5):
        spans = simulate(orders, lambda stage, what, b=backward: 1 if what == "F" else b)
        assert idle(spans) == pytest.approx([bubble(stages, m)] * stages)
        assert max(s[-1][-1] for s in spans) == pytest.approx((m + stages - 1) * (1 + backward))


@pytest.mark.parametrize(("stages", "m", "v"), [(2, 2, 2), (4, 4, 3), (4, 8, 2), (4, 16, 4), (8, 8, 2)])
def test_interleaving_divides_the_bubble(stages, m, v):
    orders = [interleaved(s, stages, m, v) for s in range(stages)]
    spans = simulate(orders, lambda stage, what: (1 if what == "F" else 2) / v)
    assert idle(spans) == pytest.approx([bubble(stages, m, v)] * stages)
    for order in orders:
        assert sorted(order) == sorted((w, i, c) for w in "FB" for i in range(m) for c in range(v))


# Messages


def ends(order: list[tuple], ranks: Ranks, at_once: bool) -> list[list[tuple]]:
    """What a stage sends and receives in pipeline_step, batch after batch: ("send" or "receive", the other rank)."""
    batches = []
    for before, op in zip([None, *order], [*order, None]):
        pair = [("send", neighbour(before, ranks, TO)), ("receive", neighbour(op, ranks, FROM))]
        pair = [end for end in pair if end[1] is not None]
        batches += [pair] if at_once else [[end] for end in pair]
    return [batch for batch in batches if batch]


def all_arrive(stages: list[list[list[tuple]]]) -> bool:
    """Whether every message arrives if a send waits for its receive, as NCCL's may (nccl#784)."""
    left = [[list(batch) for batch in stage] for stage in stages]
    moved = True
    while moved:
        moved = False
        for rank, stage in enumerate(left):
            for what, other in list(stage[0]) if stage else ():
                if what == "send" and left[other] and ("receive", rank) in left[other][0]:
                    stage[0].remove((what, other))
                    left[other][0].remove(("receive", rank))
                    moved = True
        for stage in left:
            while stage and not stage[0]:
                stage.pop(0)
    return not any(left)


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "m"), [(2, 1), (2, 8), (3, 2), (4, 8), (5, 7)])
def test_no_two_stages_wait_for_each_other_even_if_a_send_waits_for_its_receive(schedule, stages, m):
    everybody = [Ranks(s, s, stages) for s in range(stages)]
    orders = [schedule(s, stages, m) for s in range(stages)]
    assert all_arrive([ends(order, who, True) for order, who in zip(orders, everybody)])


def test_sending_first_and_receiving_afterwards_would_be_a_deadlock_in_1f1b():
    orders = [one_f_one_b(s, 2, 4) for s in range(2)]
    assert not all_arrive([ends(order, Ranks(s, s, 2), False) for s, order in enumerate(orders)])


@pytest.mark.gpu
def test_the_drills_of_the_pipeline_run_on_gpus(tmp_path):
    found = drilled_on_gpus(tmp_path, "drills.pipeline:same", "drills.pipeline:timeline")
    for way in ("1F1B", "GPipe"):
        assert max(found["drills.pipeline:same"][way]["apart"].values()) < 1e-4, way


# Stages


@pytest.fixture(scope="module", params=[5, pytest.param(2, marks=pytest.mark.weekly)])
def seed(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(f"seed{request.param}")
    shape = GPTConfig(block_size=T, vocab_size=V, n_layer=request.param, n_head=2, n_embd=32)
    save_model(GPT(shape, torch.Generator().manual_seed(0)), folder)
    return folder


def test_stages_together_have_every_parameter_and_only_wte_twice(seed):
    whole = load_model(seed)
    parts = [dict(stage_of(load_model(seed), s, 2).named_parameters()) for s in range(2)]
    assert set(parts[0]) & set(parts[1]) == {TIED}
    held = {name: p.shape for part in parts for name, p in part.items()}
    assert held == {name: p.shape for name, p in whole.named_parameters()}


def batch(seed: int) -> list:
    """Micro-batches of two rows, with fewer and fewer targets, and none in the last."""
    ids = torch.randint(V, (2 * MICRO, T + 1), generator=torch.Generator().manual_seed(seed))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].clone()
    for i in range(MICRO):
        y[2 * i : 2 * i + 2, T - 4 * i :] = -100
    return list(zip(x.split(2), y.split(2)))


def alone(folder) -> tuple[list[float], dict]:
    model, losses, first = load_model(folder).train(), [], {}
    optimizer = make_optimizer(model, 1e-2)
    for step in range(STEPS):
        losses.append(train_step(model, optimizer, batch(step)).item())
        first = first or {name: p.grad.clone() for name, p in model.named_parameters()}
    return losses, first


def piped(ranks: Ranks, folder, schedule) -> tuple:
    """Losses; each stage's first gradients; and wte at the end, None in a stage between."""
    part, losses, first = stage_of(load_model(folder).train(), ranks.rank, ranks.size), [], {}
    optimizer = make_optimizer(part, 1e-2)
    for step in range(STEPS):
        optimizer.zero_grad()
        losses.append(pipeline_step(part, batch(step), ranks, schedule)[0].item())
        add_tied(part, ranks)
        first = first or {name: p.grad.clone().numpy() for name, p in part.named_parameters()}
        optimizer.step()
    wte = dict(part.named_parameters()).get(TIED)
    return losses, gathered(ranks, first), wte if wte is None else wte.detach().numpy()


@GLOO
@pytest.mark.parametrize(
    ("size", "schedule"),
    [(2, one_f_one_b)]
    + [pytest.param(n, s, marks=pytest.mark.weekly) for n, s in [(2, gpipe), (4, one_f_one_b)]],
)
def test_a_pipeline_trains_as_one_process(seed, size, schedule):
    if load_model(seed).config.n_layer < size:
        pytest.skip("two blocks do not make four stages")
    results = in_ranks(piped, size, seed, schedule)
    assert len({tuple(losses) for losses, _, _ in results}) == 1, "the stages know different losses"
    assert (results[0][2] == results[-1][2]).all(), "the two copies of wte have drifted apart"
    (losses, stages, _), (expected, one) = results[0], alone(seed)
    for name, gradient in (pair for stage in stages for pair in stage.items()):
        apart = ((torch.from_numpy(gradient) - one[name]).norm() / one[name].norm()).item()
        assert apart < BOUND, f"the gradient of {name} is {apart:.1e} of its length apart"
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < DRIFT, "other losses"
