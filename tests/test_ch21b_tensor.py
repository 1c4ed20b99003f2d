"""Several ranks with a part of each layer are one process: the same losses, gradients, norms and weights.

The ranks are real processes, which talk by gloo over this machine's loopback.
"""

import pytest
import torch
import torch.distributed as dist
from ranks import in_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from nanogpt.distributed import Ranks
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import make_optimizer
from nanogpt.tensor import full_state, plain, split
from nanogpt.train import train_step
from nanogpt.weights import load_model, save_model

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="PyTorch without gloo"
)
SHAPE = GPTConfig(
    block_size=16, vocab_size=97, n_layer=2, n_head=4, n_embd=32
)  # 97: no two ranks have as many rows
ROWS, STEPS, CLIP = 4, 6, 0.5
BOUND = 3e-6  # float32, sums in another order: gradients by their length, losses in nats, norms; measured 4e-7, 1e-6


@pytest.fixture(scope="module")
def seed(tmp_path_factory) -> str:
    """The folder of the weights with which all begin."""
    folder = tmp_path_factory.mktemp("seed")
    save_model(GPT(SHAPE, torch.Generator().manual_seed(0)), folder)
    return str(folder)


def rows(step: int, part: int = 0, of: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A part of a batch in which later rows have fewer targets."""
    ids = torch.randint(97, (ROWS, 17), generator=torch.Generator().manual_seed(step))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].clone()
    for row in range(ROWS):
        y[row, 15 - 3 * row :] = -100
    return x.chunk(of)[part], y.chunk(of)[part]


def curve(ranks: Ranks, folder: str, way: str) -> dict:
    """Losses and norms of a few steps of train_step, the first gradient, and the logits of the last weights."""
    model, mean, dealt = load_model(folder).train(), None, (0, 1)
    if way == "2-D":
        mesh = init_device_mesh("cpu", (2, ranks.size // 2), mesh_dim_names=("dp", "tp"))
        split(model, mesh["tp"])
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        mean, dealt = ranks.mean, (mesh["dp"].get_local_rank(), 2)
    elif way != "alone":
        split(model, init_device_mesh("cpu", (ranks.size,)), sequence=way == "sequence")
    optimizer, losses, norms = make_optimizer(model, 1e-2), [], []
    for step in range(STEPS):
        accept = lambda loss, norm: norms.append(float(getattr(norm, "full_tensor", lambda: norm)())) or True  # noqa: E731
        losses.append(
            train_step(model, optimizer, [rows(step, *dealt)], clip=CLIP, mean=mean, accept=accept).item()
        )
        if step == 0:
            grads = plain(model, ((n, p.grad) for n, p in model.named_parameters()))
            gradient = torch.cat([g.flatten() for g in grads.values()])
    plainly = GPT(SHAPE)
    plainly.load_state_dict(full_state(model), strict=False)
    with torch.no_grad():
        apart = (model(rows(0)[0])[0] - plainly(rows(0)[0])[0]).abs().max().item()
    return {"losses": losses, "norms": norms, "gradient": gradient.numpy(), "apart": apart}


@pytest.mark.parametrize(("size", "way"), [(2, "split"), (4, "split"), (2, "sequence"), (4, "2-D")])
def test_split_is_one_process(size, way, seed):
    one = curve(Ranks(), seed, "alone")
    for found in in_ranks(curve, size, seed, way):
        gradient, other = torch.from_numpy(found["gradient"]), torch.from_numpy(one["gradient"])
        apart = ((gradient - other).norm() / other.norm()).item()
        worst = {k: max(abs(a - b) for a, b in zip(found[k], one[k])) for k in ("losses", "norms")}
        print(f"gradient {apart:.1e}, losses {worst['losses']:.1e}, norms {worst['norms']:.1e}")
        assert min(one["norms"]) > CLIP, "nothing was clipped"
        assert max(apart, *worst.values()) < BOUND
        assert found["apart"] < 1e-5, "a GPT of one process, loaded from full_state, computes something else"
