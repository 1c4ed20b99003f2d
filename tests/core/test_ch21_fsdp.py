"""A model in shards is the same model: losses, norms, files; on real processes, which talk by gloo."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from ranks import GLOO, in_ranks
from safetensors.torch import load_file
from small_run import small, write_text

from nanogpt import checkpoint
from nanogpt.config import Parallel
from nanogpt.distributed import Ranks
from nanogpt.labs.formats.hf import to_hf
from nanogpt.labs.parallel.fsdp import full_state, load_parts, recompute_blocks, save_parts, shard, unsharded
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import global_norm, gradients_of, make_optimizer, scale_to
from nanogpt.precision import LossScaler
from nanogpt.pretrained import from_hf
from nanogpt.trainer import build_run, load_weights, one_step, resume
from nanogpt.training import accumulate_gradients
from nanogpt.weights import load_model, save_model

pytestmark = GLOO
V, T, ROWS, STEPS, CLIP = 97, 16, 8, 5, 0.5  # 97 rows do not divide
SHAPE = GPTConfig(block_size=T, vocab_size=V, n_layer=2, n_head=2, n_embd=34)  # nor does 34 by 4
# In nats over STEPS steps, and of the gradient's length: sums in another order. Measured 2e-7 to 5e-7.
BOUND = 3e-6
BF16_BOUND = 0.03  # each rank rounds the gradient of its own rows to bf16 before the mean: measured 0.002


@pytest.fixture(scope="module")
def seed(tmp_path_factory):
    """A checkpoint that all load."""
    folder = tmp_path_factory.mktemp("seed")
    save_model(GPT(SHAPE, torch.Generator().manual_seed(0)), folder)
    return folder


def rows(step: int, ranks: Ranks) -> list:
    """A rank's part of a global batch of ROWS rows, of which later ones have fewer targets, as micro-batches of a row."""
    ids = torch.randint(V, (ROWS, T + 1), generator=torch.Generator().manual_seed(step))
    x, y = ids[:, :-1].contiguous(), ids[:, 1:].clone()
    for row in range(ROWS):
        y[row, T - 2 * row :] = -100
    x, y = (part.chunk(ranks.size)[ranks.rank] for part in (x, y))
    return list(zip(x.split(1), y.split(1)))


def make_step(ranks: Ranks, model, optimizer, batches, precision="float32", scaler=None) -> tuple:
    """A clipped update as the trainer makes it, unless fp16 has overflowed: the loss, and the norm before clipping."""
    optimizer.zero_grad()
    loss = accumulate_gradients(model, batches, precision, scaler, ranks.mean)
    if scaler is not None:
        scaler.unscale(model.parameters())
    norm = clip_(model.parameters(), CLIP)
    if scaler is not None:
        scaler.update(bool(norm.isfinite()))
    if norm.isfinite():
        optimizer.step()
    return loss.item(), norm.item()


def curve(ranks: Ranks, seed, how: str = "plain", steps=range(STEPS), start=None) -> dict:
    """Losses, norms before clipping, model and optimizer in the end. how: plain, float32, recompute, bf16 or masters."""
    model = load_model(seed).train()
    precision = "bf16" if how == "bf16" else "float32"
    if how not in ("plain", "masters"):
        model = shard(model, precision=precision)
    if how == "recompute":
        recompute_blocks(model)
    optimizer = make_optimizer(model, 1e-2, "bf16-masters" if how == "masters" else "float32")
    if start:
        load_parts(start, model, optimizer)
    pairs = [make_step(ranks, model, optimizer, rows(step, ranks), precision) for step in steps]
    losses, norms = map(list, zip(*pairs, strict=True))
    return {"losses": losses, "norms": norms, "model": model, "optimizer": optimizer}


def told(ranks: Ranks, *args, **options) -> dict:
    found = curve(ranks, *args, **options)
    return {name: found[name] for name in ("losses", "norms")}


def apart(a: dict, b: dict) -> float:
    """The largest difference of a loss or a norm."""
    return max(abs(x - y) for name in ("losses", "norms") for x, y in zip(a[name], b[name], strict=True))


@pytest.fixture(scope="module")
def alone(seed) -> dict:
    return {how: told(Ranks(), seed, how) for how in ("plain", "masters")}


# The law: the same losses, and the same norms


def several(ranks: Ranks, seed, hows) -> dict:
    return {how: told(ranks, seed, how) for how in hows}


@pytest.mark.parametrize(
    "size, hows",
    [
        (2, ["float32"]),
        pytest.param(2, ["recompute", "bf16"], marks=pytest.mark.slow),
        pytest.param(4, ["float32", "recompute", "bf16"], marks=pytest.mark.weekly),
    ],
)
def test_fsdp_is_one_process(size, hows, seed, alone):
    """Uneven rows of weights, targets and ranks; micro-batches, clipping. The norm is each rank's, not its part's.

    bf16 against chapter 10's masters: the same arithmetic, but that each rank rounds the gradient of its own rows.
    """
    for found in in_ranks(several, size, seed, hows):
        for how in hows:
            off = apart(found[how], alone["masters" if how == "bf16" else "plain"])
            least, most = (BOUND, BF16_BOUND) if how == "bf16" else (-1, BOUND)
            assert least < off < most, f"{how} on {size} ranks is {off:.1e} off"


def test_a_recomputed_block_runs_again_in_backward_and_has_the_same_gradient(seed):
    calls, models = [], [load_model(seed).train() for _ in range(2)]
    recompute_blocks(models[1])
    for model in models:
        model.transformer.h[0].mlp.register_forward_pre_hook(lambda module, args: calls.append(module))
        model(*rows(0, Ranks())[0])[1].backward()
    plain, recomputed = (model.transformer.h[0].mlp for model in models)
    assert calls == [plain, recomputed, recomputed]
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(*(model.parameters() for model in models)))


def overflow(ranks: Ranks, seed) -> tuple:
    """One rank's part of the gradient overflows: what LossScaler says here, and whether the step is skipped."""
    model = shard(load_model(seed).train(), precision="fp16")
    optimizer, scaler = make_optimizer(model, 1e-2), LossScaler(scale=4.0)
    before = [p.to_local().clone() for p in model.parameters()]
    if ranks.rank == 1:
        weight = model.transformer.h[0].mlp.c_fc.weight
        weight.register_post_accumulate_grad_hook(lambda p: p.grad.to_local().fill_(math.inf))
    make_step(ranks, model, optimizer, rows(0, ranks)[:1], "fp16", scaler)
    after = [p.to_local() for p in model.parameters()]
    return scaler.scale, all(map(torch.equal, before, after))


@pytest.mark.slow
def test_an_overflow_in_one_ranks_part_makes_all_skip(seed):
    assert in_ranks(overflow, 2, seed) == [(2.0, True)] * 2


def test_ties_names_and_words(seed):
    for word in ("bf16-masters", "bf17"):
        with pytest.raises(ValueError, match=word):
            shard(load_model(seed), precision=word)
    model = recompute_blocks(shard(load_model(seed)))  # no group: complete
    assert list(full_state(model)) == [name for name, _ in load_model(seed).named_parameters()]
    again = unsharded(model)
    assert again.lm_head.weight is again.transformer.wte.weight


# Norms


def clip_(parameters, max_norm: float) -> torch.Tensor:
    """As the trainer clips; the norm before."""
    gradients = gradients_of(parameters)
    norm = global_norm(gradients)
    scale_to(gradients, max_norm, norm)
    return norm


def test_clipping_is_pytorchs_on_complete_parameters():
    model, other = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
    other.load_state_dict(model.state_dict())
    for each in (model, other):
        each(torch.ones(2, 5)).square().sum().backward()
    theirs = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.1)
    assert torch.equal(clip_(model.parameters(), 0.1), theirs)
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), other.parameters()))


def mixed(ranks: Ranks, seed) -> dict:
    """Of a 2 × 2 mesh, data × tensor, some parameters sharded over one dimension, some over both, some copied."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model, plain = load_model(seed).train(), load_model(seed).train()
    plan = {"mlp.c_fc": ColwiseParallel(), "mlp.c_proj": RowwiseParallel()}
    for block in model.transformer.h:
        parallelize_module(block, mesh["tensor"], plan)
    model = shard(model, mesh["data"])
    x, y = rows(0, Ranks())[0]
    for each in (model, plain):
        each(x, y)[1].backward()
    spread = {(p.grad.device_mesh.ndim, *map(str, p.grad.placements)) for p in model.parameters()}
    true = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()]).item()
    norm = clip_(model.parameters(), CLIP)
    after = global_norm(gradients_of(model.parameters()))
    one = model.transformer.h[0].mlp.c_fc.weight.grad
    return {
        "kinds": len(spread), "plain": type(norm) is torch.Tensor, "norm": norm.item(), "true": true,
        "after": after.item(), "part": one.norm().to_local().item(), "of": one.full_tensor().norm().item(),
    }  # fmt: skip


@pytest.mark.slow
def test_clip_takes_the_norm_over_all_meshes(seed):
    """PyTorch refuses to add up norms of two meshes; and the norm of one gradient is, on each rank, that of a part."""
    found = in_ranks(mixed, 4, seed)
    for each in found:
        assert each["kinds"] >= 3 and each["plain"]
        assert abs(each["norm"] - each["true"]) < BOUND and abs(each["after"] - CLIP) < BOUND
        assert 0.2 < each["part"] / each["of"] < 0.8, "a part of a quarter has about half of the norm"
    assert len({each["norm"] for each in found}) == 1, "the ranks clip by different norms"


def summands(ranks: Ranks) -> tuple:
    """In sequence parallelism a LayerNorm's gradient is, on each rank, one summand."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module

    norm, x = torch.nn.LayerNorm(8), torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(0))
    target = x.flip(1)  # else the gradient is nearly nothing
    parallelize_module(norm, init_device_mesh("cpu", (ranks.size,)), {"": SequenceParallel()})
    part = slice(ranks.rank * 4 // ranks.size, (ranks.rank + 1) * 4 // ranks.size)
    (norm(x[:, part]).to_local() * target[:, part]).sum().backward()
    plain = torch.nn.LayerNorm(8)
    (plain(x) * target).sum().backward()
    true = torch.nn.utils.get_total_norm([p.grad for p in plain.parameters()]).item()
    found = clip_(norm.parameters(), 1.0).item()
    return found, true, all(p.grad.placements == p.placements for p in norm.parameters())


@pytest.mark.slow
def test_a_gradient_in_summands_is_summed_before_its_norm_is_taken():
    for norm, true, settled in in_ranks(summands, 2):
        assert abs(norm - true) < BOUND * true and settled


# Files


def save_all(ranks: Ranks, seed, folder) -> None:
    run = curve(ranks, seed, "float32", range(2))
    save_parts(folder / "parts", run["model"], run["optimizer"])
    plain = unsharded(run["model"])
    assert (plain is None) == (ranks.rank > 0), "not rank 0 alone has the complete model"
    if plain:
        save_model(plain, folder / "ours")
        to_hf(plain, folder / "theirs")


@pytest.fixture(scope="module")
def saved(seed, tmp_path_factory):
    """What four ranks wrote after two steps."""
    folder = tmp_path_factory.mktemp("saved")
    in_ranks(save_all, 4, seed, folder)
    return folder


@pytest.mark.slow
def test_four_ranks_write_what_one_and_two_go_on_with(seed, saved, alone):
    """Weights and moments: without the moments the next norms and losses would be far off."""
    rest = {name: alone["plain"][name][2:] for name in ("losses", "norms")}
    one = told(Ranks(), seed, "plain", range(2, STEPS), saved / "parts")
    assert apart(one, rest) < BOUND, f"one process goes on {apart(one, rest):.1e} off"
    for found in in_ranks(told, 2, seed, "float32", range(2, STEPS), saved / "parts"):
        assert apart(found, rest) < BOUND, f"two ranks go on {apart(found, rest):.1e} off"


@pytest.mark.slow
def test_a_sharded_model_is_exported_as_a_plain_one(seed, saved, tmp_path):
    """Both ways are one model's, bit for bit; and the model is the one that one process trains, to rounding."""
    ours, theirs = load_model(saved / "ours"), from_hf(saved / "theirs")
    to_hf(ours, tmp_path)
    a, b = (load_file(folder / "model.safetensors") for folder in (tmp_path, saved / "theirs"))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    plain = curve(Ranks(), seed, steps=range(2))["model"]
    x, _ = rows(9, Ranks())[0]
    for each in (ours, theirs):
        off = (each(x)[0] - plain(x)[0]).abs().max().item()
        assert off < 1e-4, f"logits are {off:.1e} off"


# Memory


def held(ranks: Ranks, seed) -> tuple[dict, dict]:
    """After a step: bytes of this rank's weights, gradients and moments; and by FSDP2's rule, from the shapes alone."""
    run = curve(ranks, seed, "float32", range(1))
    parameters, state = list(run["model"].parameters()), run["optimizer"].state
    found = {
        "weights": sum(p.to_local().nbytes for p in parameters),
        "gradients": sum(p.grad.to_local().nbytes for p in parameters),
        "moments": sum(state[p][m].to_local().nbytes for p in parameters for m in ("exp_avg", "exp_avg_sq")),
    }
    rule = 0
    for p in load_model(seed).parameters():
        each = math.ceil(len(p) / ranks.size)  # rows, of which the last ranks may lack some
        rule += 4 * p[0].numel() * max(0, min(each, len(p) - ranks.rank * each))
    return found, {"weights": rule, "gradients": rule, "moments": 2 * rule}


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_memory_is_the_formulas_to_the_byte(size, seed):
    """Rows are dealt rounded up: 97 by 4 are 25, 25, 25 and 22. All parts together are one model."""
    found = in_ranks(held, size, seed)
    for rank, (has, rule) in enumerate(found):
        assert has == rule, f"rank {rank} holds {has}, the rule says {rule}"
    whole = sum(p.nbytes for p in load_model(seed).parameters())
    assert sum(has["weights"] for has, _ in found) == whole
    assert found[0][0]["weights"] > whole / size, "nothing is uneven here, so that the rule is not tried"


@pytest.mark.usefixtures("one_thread")
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_run_goes_on_bit_for_bit_from_a_checkpoint_in_parts(tmp_path):
    write_text(tmp_path / "text.txt")
    config = small(tmp_path)
    run = build_run(config)
    for _ in range(3):
        one_step(run)
    state = replace(run, optimizer=None).state_dict()  # the moments are in the parts
    written = checkpoint.save(
        run.folder, run.step, run.model, state, write=lambda model, to: save_parts(to, model, run.optimizer)
    )
    losses = [one_step(run)["loss"] for _ in range(3)]
    again = resume(build_run(config))
    assert [one_step(again)["loss"] for _ in range(3)] == losses, "the run is another one from here on"
    with pytest.raises(ValueError, match="is in parts; make a model of it"):
        checkpoint.pick_checkpoint(run.folder)
    cut = SimpleNamespace(config=SimpleNamespace(parallel=Parallel(tp=2)))
    with pytest.raises(ValueError, match="tp=2 cannot read; set 1"):
        load_weights(cut, written)
