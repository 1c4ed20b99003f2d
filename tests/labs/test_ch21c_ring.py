"""A row over several ranks is the same row: attention, its gradients, and a whole model's losses.

The ranks are real processes, which talk by gloo over this machine's loopback.
"""

import pytest
import torch
import torch.distributed as dist
from ranks import GLOO, drilled_on_gpus, in_ranks

from nanogpt.distributed import Ranks, replicate
from nanogpt.labs.parallel.ring import (
    ContextParallel,
    contiguous,
    place,
    positions,
    ring_attention,
    tiles,
    zigzag,
)
from nanogpt.model import GPT, GPTConfig, attention_weights
from nanogpt.optim import global_norm, gradients_of, make_optimizer, scale_to
from nanogpt.training import accumulate_gradients
from nanogpt.weights import load_model, save_model

SPLITS = {"contiguous": contiguous, "zigzag": zigzag}
NEAR = 4e-6  # float32: outputs and gradients of size 1, tiles added in another order; measured up to 9.5e-7
BOUND, DRIFT = 2e-6, 2e-5  # float32: gradients by their length; losses of 4.6 nats over STEPS steps of Adam
STEPS, T, V = 4, 32, 96

# Who has what


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_the_zigzag_balances_exactly_and_misses_nothing(n):
    for T in (2 * n, 10 * n):
        where = positions(T, zigzag(n))
        assert where.flatten().sort().values.tolist() == list(range(T)), "a position is missing or held twice"
        assert (where + 1).sum(1).unique().numel() == 1, "the ranks have different numbers of pairs"
    steps = [[len(tiles(zigzag(n)[r], zigzag(n)[r - s])) for r in range(n)] for s in range(n)]
    assert steps == [[3] * n] + [[2] * n] * (n - 1), "not every step is the same work for all ranks"


@pytest.mark.slow
def test_the_zigzag_is_pytorchs():
    balancer = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    for n in (2, 4):
        order = balancer._HeadTailLoadBalancer(8 * n, n, "cpu")._generate_indices().flatten()
        assert order.tolist() == positions(8 * n, zigzag(n)).flatten().tolist()


# Attention


def qkvg(T: int, heads: int = 2, d: int = 8) -> torch.Tensor:
    return torch.randn(4, 2, heads, T, d, generator=torch.Generator().manual_seed(0))


def attended(q, k, v, grad, attend) -> list[torch.Tensor]:
    """Output and the gradients of q, k, v."""
    q, k, v = (z.clone().requires_grad_() for z in (q, k, v))
    return [out := attend(q, k, v), *torch.autograd.grad(out, (q, k, v), grad)]


def around_the_ring(ranks: Ranks, T: int, name: str) -> list:
    split = SPLITS[name](ranks.size)
    mine = qkvg(T)[..., positions(T, split)[ranks.rank], :]
    out = attended(*mine, lambda q, k, v: ring_attention(q, k, v, split=split))
    return [z.detach().numpy() for z in out]


def assert_whole(parts: list, T: int, name: str) -> None:
    wanted = attended(*qkvg(T), lambda q, k, v: attention_weights(q, k) @ v)
    order = positions(T, SPLITS[name](len(parts))).flatten().argsort()
    for what, whole, *each in zip(("out", "dq", "dk", "dv"), wanted, *parts):
        found = torch.cat([torch.from_numpy(z) for z in each], -2)[..., order, :]
        apart = (found - whole).abs().max().item()
        print(f"{name} {what} {apart:.1e}")
        assert apart < NEAR, f"{what} is {apart:.1e} from attention over the whole row"


@GLOO
@pytest.mark.parametrize(  # three: of two ranks, right is left
    ("size", "name"),
    [(3, "zigzag"), *(pytest.param(n, s, marks=pytest.mark.weekly) for n in (2, 4) for s in SPLITS)],
)
def test_ring_attention_is_attention_with_gradients_at_their_owners(size, name):
    assert_whole(in_ranks(around_the_ring, size, 24, name), 24, name)


def test_one_rank_is_a_ring_of_one_and_backward_its_derivative():
    assert_whole([around_the_ring(Ranks(), 24, "zigzag")], 24, "zigzag")
    tiny = [z.requires_grad_() for z in torch.randn(3, 1, 4, 2, dtype=torch.float64)]
    assert torch.autograd.gradcheck(ring_attention, tiny)


def test_16_bits_are_computed_in_float32_and_rounded_once_in_backward_too():
    mine = qkvg(24)[..., positions(24, zigzag(1))[0], :].bfloat16()
    for half, full in zip(*(attended(*z, ring_attention) for z in (mine, mine.float()))):
        assert torch.equal(half, full.bfloat16())


def in_pairs(ranks: Ranks) -> tuple:
    """Two groups of two, each with a ring of its own."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = groups[ranks.rank // 2]
    mine = qkvg(8)[..., positions(8, zigzag(2))[place(group)[0]], :]
    mine = mine * (1 + ranks.rank // 2)  # the pairs have different rows
    out = attended(*mine, lambda q, k, v: ring_attention(q, k, v, group))
    found = [z.detach().numpy() for z in out]
    for each in groups:
        if each != dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(each)
    return found


@GLOO
@pytest.mark.slow
def test_a_group_is_a_ring_of_its_own():
    results = in_ranks(in_pairs, 4)
    assert_whole(results[:2], 8, "zigzag")
    assert abs(results[2][0] - 2 * results[0][0]).max() > 0.1, "the second pair has the first one's rows"


# A whole model


def rows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two micro-batches; in the second only the first three targets count, which all lie on rank 0."""
    ids = torch.randint(V, (4, T + 1), generator=torch.Generator().manual_seed(seed))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].clone()
    y[2:, 3:] = -100
    return x, y


def curve(ranks: Ranks, folder, name: str = "") -> dict:
    """Losses, first gradient, and last weights; name: of a split, of which the zigzag is the default; "" for one process."""
    model, losses = load_model(folder).train(), []
    split = contiguous(ranks.size) if name == "contiguous" else None
    wrapped = ContextParallel(model, split=split) if name else model
    replica, optimizer = replicate(wrapped, ranks), make_optimizer(model, 1e-2)
    for step in range(STEPS):
        x, y = (wrapped.columns(z) if name else z for z in rows(step))
        parts = list(zip(x.chunk(2), y.chunk(2)))
        optimizer.zero_grad()
        losses.append(ranks.mean(accumulate_gradients(replica, parts, mean=ranks.mean)).item())
        gradients = gradients_of(model.parameters())
        scale_to(gradients, 1.0, global_norm(gradients))
        optimizer.step()
        if step == 0:
            gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"losses": losses, "gradient": gradient.numpy(), "weights": weights.numpy()}


@pytest.fixture(scope="module")
def seed(tmp_path_factory):
    shape = GPTConfig(block_size=T, vocab_size=V, n_layer=2, n_head=2, n_embd=32)
    save_model(GPT(shape, torch.Generator().manual_seed(0)), folder := tmp_path_factory.mktemp("seed"))
    return folder


@pytest.fixture(scope="module")
def alone(seed, one_thread) -> dict:
    return curve(Ranks(), seed)


@GLOO
@pytest.mark.parametrize(
    ("size", "name"),
    [(2, "zigzag")]
    + [pytest.param(*each, marks=pytest.mark.weekly) for each in ((4, "zigzag"), (2, "contiguous"))],
)
def test_a_model_trains_as_in_one_process(seed, alone, size, name):
    first, *others = in_ranks(curve, size, seed, name)
    for other in others:
        assert (other["weights"] == first["weights"]).all(), "the ranks have different weights"
    gradient, wanted = torch.from_numpy(first["gradient"]), torch.from_numpy(alone["gradient"])
    apart = ((gradient - wanted).norm() / wanted.norm()).item()
    losses = max(abs(a - b) for a, b in zip(first["losses"], alone["losses"], strict=True))
    print(f"{size} ranks: gradient {apart:.1e}, losses {losses:.1e}")
    assert apart < BOUND, f"the gradients are {apart:.1e} of their length apart"
    assert losses < DRIFT, f"the losses are {losses:.1e} nats apart"


def test_dropout_and_rows_that_cannot_be_dealt_are_one_sentence():
    shape = GPTConfig(block_size=8, vocab_size=V, n_layer=1, n_head=2, n_embd=16)
    with pytest.raises(ValueError, match="dropout"):
        ContextParallel(GPT(GPTConfig(**{**vars(shape), "dropout": 0.1})))
    wrapped = ContextParallel(GPT(shape), split=zigzag(2))
    with pytest.raises(ValueError, match=r"6.*4"):
        wrapped.columns(torch.zeros(1, 6, dtype=torch.long))


@pytest.mark.gpu
def test_the_drills_of_the_ring_run_on_gpus(tmp_path):
    found = drilled_on_gpus(tmp_path, "drills.ring:sent", "drills.ring:same")
    assert max(found["drills.ring:same"]["zigzag"]["apart"].values()) < 1e-4
