"""Several ranks with a part of each layer are one process: the same losses, gradients, norms and weights.

The ranks are real processes, which talk by gloo over this machine's loopback.
"""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import GLOO, drilled_on_gpus, in_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import loss_parallel

from nanogpt.distributed import Ranks
from nanogpt.labs.drills.tensor import cutter, in_way
from nanogpt.labs.parallel.fsdp import shard
from nanogpt.labs.parallel.tensor import full_cut_state, plain, split
from nanogpt.labs.parallel.tensor_by_hand import SEQUENCE, enter, split_block, vocab_embedding, vocab_loss
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import global_norm, gradients_of, make_optimizer, scale_to
from nanogpt.training import accumulate_gradients, train_step
from nanogpt.weights import load_model, save_model

pytestmark = GLOO
SHAPE = GPTConfig(16, 97, n_layer=2, n_head=4, n_embd=32)  # 97: the last rank has fewer rows
ROWS, STEPS, CLIP = 4, 6, 0.5
BOUND = 5e-6  # float32, sums in another order: gradients by their length, losses in nats, norms; measured 4e-7 to 2e-6


@pytest.fixture(scope="module")
def seed(tmp_path_factory) -> str:
    """The folder of the weights with which all begin; their biases and gains are not 0 and 1, where much is forgiven."""
    model, g = GPT(SHAPE, torch.Generator().manual_seed(0)), torch.Generator().manual_seed(1)
    for p in model.parameters():
        p.data += 0.05 * torch.randn(p.shape, generator=g)
    save_model(model, folder := tmp_path_factory.mktemp("seed"))
    return str(folder)


def rows(step: int, part: int = 0, of: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A part of a batch in which later rows have fewer targets."""
    ids = torch.randint(97, (ROWS, 17), generator=torch.Generator().manual_seed(step))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].clone()
    for row in range(ROWS):
        y[row, 15 - 3 * row :] = -100
    return x.chunk(of)[part], y.chunk(of)[part]


def curve(ranks: Ranks, folder: str, way: str) -> dict:
    """Losses and norms of a few steps, the first gradient, and how the last weights do in a plain GPT."""
    model, replica = load_model(folder).train(), Ranks()
    if way.startswith("data × "):
        mesh = init_device_mesh("cpu", (2, ranks.size // 2), mesh_dim_names=("dp", "tp"))
        shard(split(model, mesh["tp"], sequence=way.endswith("sequence")), mesh["dp"])
        replica = replace(ranks, rank=mesh["dp"].get_local_rank(), size=2)
    else:
        in_way(model, way, ranks)
    optimizer, losses, norms = make_optimizer(model, 1e-2), [], []
    mean = ranks.mean if replica.size > 1 else None
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = [rows(step, replica.rank, replica.size)]
        losses.append(accumulate_gradients(model, batch, mean=mean).item())
        gradients = gradients_of(model.parameters())
        norm = global_norm(gradients)
        norms.append(norm.item())
        scale_to(gradients, CLIP, norm)
        optimizer.step()
        if step == 0:
            grads = plain(model, ((n, p.grad) for n, p in model.named_parameters()))
            gradient = torch.cat([g.flatten() for g in grads.values()])
    alone = GPT(SHAPE)
    alone.load_state_dict(full_cut_state(model), strict=False)
    with torch.no_grad():
        apart = (model(rows(0)[0])[0] - alone(rows(0)[0])[0]).abs().max().item()
    return {"losses": losses, "norms": norms, "gradient": gradient.numpy(), "apart": apart}


@pytest.fixture(scope="module")
def alone(seed, one_thread) -> dict:
    return curve(Ranks(), seed, "one process")


AGAIN = [(2, "split"), (4, "split"), (4, "sequence"), (4, "data × sequence")]


@pytest.mark.parametrize(
    ("size", "way"),
    [
        (2, "sequence"),
        (4, "data × tensor"),
        *(pytest.param(*each, marks=pytest.mark.weekly) for each in AGAIN),
    ],
)
def test_a_split_model_is_one_process(size, way, seed, alone):
    for found in in_ranks(curve, size, seed, way):
        gradient, other = torch.from_numpy(found["gradient"]), torch.from_numpy(alone["gradient"])
        apart = ((gradient - other).norm() / other.norm()).item()
        worst = {k: max(abs(a - b) for a, b in zip(found[k], alone[k])) for k in ("losses", "norms")}
        print(f"gradient {apart:.1e}, losses {worst['losses']:.1e}, norms {worst['norms']:.1e}")
        assert min(alone["norms"]) > CLIP, "nothing was clipped"
        assert max(apart, *worst.values()) < BOUND
        assert found["apart"] < 1e-5, "a GPT loaded from full_cut_state computes something else"


def unclipped(ranks: Ranks, folder: str, way: str) -> tuple[list, float]:
    """Losses of a few steps, and how far this rank's first gradients are from its pieces of one process's."""
    model = in_way(load_model(folder).train(), way, ranks)
    optimizer = make_optimizer(model, 1e-2)
    losses = [train_step(model, optimizer, [rows(0)]).item()]
    one = load_model(folder).train()
    one(*rows(0))[1].backward()
    for p in one.parameters():  # a gradient, cut as the weight is
        p.data = p.grad
    for block in one.transformer.h if way == "by hand" else ():
        split_block(block, cutter(ranks))
    pairs = zip(model.parameters(), one.parameters())
    apart = max((p.grad - q.data).norm().item() / one.transformer.wte.weight.norm().item() for p, q in pairs)
    return losses + [train_step(model, optimizer, [rows(s)]).item() for s in range(1, STEPS)], apart


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.weekly)])
def test_by_hand_is_one_process(size, seed):
    losses, _ = unclipped(Ranks(), seed, "one process")
    for found, apart in in_ranks(unclipped, size, seed, "by hand"):
        assert max(abs(a - b) for a, b in zip(found, losses)) < BOUND and apart < BOUND


def block_by_hand(ranks: Ranks, folder: str) -> dict:
    """Of the first block with sequence parallelism: how far output and gradients are from one process's, by length."""
    model = load_model(folder)
    block, whole = model.transformer.h[0], load_model(folder).transformer.h[0]
    x = torch.randn(3, 16, 32, generator=torch.Generator().manual_seed(2), requires_grad=True)
    y = whole(x)
    (y * torch.arange(16)[:, None]).sum().backward()
    cut = cutter(ranks)
    split_block(block, cut, ends=SEQUENCE)
    part = cut(x, 1).requires_grad_()
    out = block(part)
    (out * cut(torch.arange(16)[:, None], 0)).sum().backward()
    gain = block.ln_1.weight.grad.clone()
    dist.all_reduce(gain)  # each rank has seen its positions
    pairs = [(out, cut(y, 1)), (part.grad, cut(x.grad, 1)), (gain, whole.ln_1.weight.grad)]
    pairs.append((block.mlp.c_fc.weight.grad, cut(whole.mlp.c_fc.weight.grad, 0)))
    return max(((a - b).norm() / b.norm()).item() for a, b in pairs)


def vocabulary(ranks: Ranks, V: int) -> list[float]:
    """Loss, gradients and embedding of a vocabulary in parts, ours and PyTorch's, by their distance from one process."""
    g, C, cut = torch.Generator().manual_seed(3), 8, cutter(ranks)
    table = torch.randn(V, C, generator=g, requires_grad=True)
    ids, targets = torch.randint(V, (2, 5), generator=g), torch.randint(V, (10,), generator=g)
    ids[0, 0], targets[0], targets[3] = V - 1, V - 1, -100
    loss = F.cross_entropy((logits := F.embedding(ids, table).flatten(0, 1) @ table.T) * 50, targets)
    loss.backward()  # tied: the table's gradient from both ends; × 50: exponentials overflow without the maximum
    part, first = cut(table, 0).requires_grad_(), sum(len(p) for p in table.chunk(ranks.size)[: ranks.rank])
    x = vocab_embedding(ids, part, first).flatten(0, 1)
    theirs = vocab_loss(enter(x) @ part.T * 50, targets, first)
    theirs.backward()
    pairs = [(theirs, loss), (part.grad, cut(table.grad, 0)), (x, F.embedding(ids, table).flatten(0, 1))]
    with loss_parallel(), CommDebugMode() as comm:
        mesh = init_device_mesh("cpu", (ranks.size,))
        shape = {"shape": logits.shape, "stride": logits.stride()}
        torchs = DTensor.from_local(cut(logits * 50, 1), mesh, [Shard(1)], **shape)
        pairs.append((F.cross_entropy(torchs, targets).to_local(), loss))
    assert comm.get_total_counts() == 3, "PyTorch's loss needs other collectives than ours"
    return [((a - b).norm() / b.norm()).item() for a, b in pairs]


def of_a_rank(ranks: Ranks, folder: str) -> tuple[float, list[list[float]]]:
    return block_by_hand(ranks, folder), [vocabulary(ranks, V) for V in (50_257, 96, 101)]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.weekly)])
def test_sequence_by_hand_and_a_vocabulary_in_parts_are_one_process(size, seed):
    for apart, vocabularies in in_ranks(of_a_rank, size, seed):
        assert apart < BOUND, "sequence parallelism by hand computes another block"
        assert max(map(max, vocabularies)) < BOUND, f"loss, gradient, embedding, torch's: {vocabularies}"


@pytest.mark.gpu
def test_the_drills_of_21b_run_on_gpus(tmp_path):
    from nanogpt.labs.drills.tensor import DRILLS

    found = drilled_on_gpus(tmp_path, *(f"drills.tensor:{name}" for name in DRILLS))
    assert set(found) == {f"drills.tensor:{name}" for name in DRILLS}
