"""Chapter 21d: a run in any layout. The law: how a run is laid out over processes changes neither losses nor norms."""

import os
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import GLOO, drilled_on_gpus, in_ranks
from small_run import lines, small, weights

from nanogpt import checkpoint, trainer
from nanogpt.config import Lora, Parallel, load_config
from nanogpt.distributed import Ranks
from nanogpt.evaluate import evaluate
from nanogpt.labs.formats.hf import to_hf
from nanogpt.labs.long_run.compare import verdict
from nanogpt.labs.parallel.laid_out import (
    LaidOutAdamW,
    build_in_parts,
    compile_blocks,
    draw_weights,
    evaluate_together,
    fill,
    gather_model,
    join,
    read_weights,
)
from nanogpt.metrics import read_metrics
from nanogpt.model import GPT, GPTConfig
from nanogpt.optim import global_norm, gradients_of, make_optimizer, scale_to
from nanogpt.pretrained import from_hf
from nanogpt.training import accumulate_gradients, train_step
from nanogpt.weights import load_model, save_model

pytestmark = [GLOO, pytest.mark.usefixtures("one_thread")]
# Nats, over 8 steps at a rate of 1e-2: sums in another order, which Adam carries on; measured 2e-6.
BOUND = 2e-5
GRIDS = {  # processes, and how they are laid out
    "one": (1, Parallel()),
    "parts 2": (2, Parallel(dp=2, shard=True)),
    "parts 4": (4, Parallel(shard=True)),
    "cuts 2": (2, Parallel(tp=2)),
    "parts × cuts": (4, Parallel(dp=2, shard=True, tp=2)),
    "copies × cuts": (4, Parallel(dp=2, tp=2)),
    "copies × parts": (4, Parallel(shard=True, copies=2, recompute=True)),
}


def short(folder: Path, run: Path, **changes):
    """8 steps of 4 micro-batches of 4 rows, without dropout, evaluated every 4."""
    said = {"train_max_steps": 8, "train_batch_tokens": 256, "model_n_layer": 2, "model_dropout": 0.0}
    said |= {"eval_every": 4, "eval_sample_every": 0, "run_dir": str(run)}
    return small(folder, **said | changes)


def fit_all(ranks, jobs: list) -> list[int]:
    """Several runs in one start of the processes; jobs: configuration, and the step in which the file `stop` is made, or None."""
    one_step, ends = trainer.one_step, []
    for config, stop in jobs:

        def stopping(run, stop=stop):
            if run.step + 1 == stop and ranks.rank == 0:
                (run.folder / "stop").touch()
            return one_step(run)

        trainer.one_step = stopping
        ends.append(trainer.train_config(config).step)
    return ends


def started(processes: int, *jobs: tuple) -> None:
    """All jobs in one start, each trained to its end."""
    ends = [stop or config.train.max_steps for config, stop in jobs]
    assert in_ranks(fit_all, processes, jobs, seconds=None) == [ends] * processes


@pytest.fixture(scope="module")
def one(folder, tmp_path_factory) -> Path:
    """The run of one process."""
    run = tmp_path_factory.mktemp("one") / "run"
    started(1, (short(folder, run, eval_sample_every=8), None))
    return run


def worst(a, b, name: str = "loss") -> float:
    apart, said = verdict(read_metrics(a), read_metrics(b), name)
    print(said)
    return apart


def furthest(a: GPT, b: GPT) -> float:
    theirs = b.state_dict()
    return max((x - theirs[name]).abs().max().item() for name, x in a.state_dict().items())


# The runs of the slow tests, in six starts of processes: a start costs as much as a run, and the next run in the same
# processes finds what PyTorch has worked out for the first (DTensor's rules). (name, layout, where to stop); who is
# stopped goes on in a later start.
STARTS = [
    (1, [("one → parts × cuts", "one", 3), ("fp16 one", "one", None)]),
    (
        4,
        [
            ("whole parts × cuts", "parts × cuts", None),
            ("stopped parts × cuts", "parts × cuts", 3),
            ("parts × cuts → one", "parts × cuts", 3),
            ("one → parts × cuts", "parts × cuts", None),
            ("copies × cuts", "copies × cuts", None),
            ("parts 4 → cuts 2", "parts 4", 3),
            ("copies × parts", "copies × parts", None),
        ],
    ),
    (
        2,
        [
            ("whole parts 2", "parts 2", None),
            ("stopped parts 2", "parts 2", 3),
            ("parts 2", "parts 2", None),
            ("fp16 parts 2", "parts 2", None),
            ("cuts 2", "cuts 2", None),
            ("parts 4 → cuts 2", "cuts 2", None),
        ],
    ),
    (4, [("stopped parts × cuts", "parts × cuts", None)]),
    (2, [("stopped parts 2", "parts 2", None)]),
    (1, [("parts × cuts → one", "one", None)]),
]


def changes_of(name: str) -> dict:
    """What a run of STARTS has that is not `short`'s."""
    if name.startswith("fp16"):
        return {"train_dtype": "fp16"}
    if name.endswith("parts 2") and name.startswith(("whole", "stopped")):
        return {"model_dropout": 0.2}
    return {"eval_sample_every": 8} if name in GRIDS else {}


@pytest.fixture(scope="module")
def runs(folder, tmp_path_factory) -> Path:
    """The folder with all runs of STARTS."""
    home = tmp_path_factory.mktemp("runs")
    for processes, jobs in STARTS:
        assert all(GRIDS[grid][0] == processes for _, grid, _ in jobs)
        configs = [short(folder, home / name, **changes_of(name)) for name, _, _ in jobs]
        layouts = [GRIDS[grid][1] for _, grid, _ in jobs]
        laid = [replace(config, parallel=layout) for config, layout in zip(configs, layouts)]
        started(processes, *[(config, stop) for config, (_, _, stop) in zip(laid, jobs)])
    return home


# The same run


def is_the_same_run(run: Path, one: Path, grid: str, export: Path) -> None:
    for name in ("loss", "norm", "val_loss"):
        assert worst(one, run, name) < BOUND, f"{name}: {grid} is another run than one process"
    assert (run / "samples/step_000008.txt").exists(), "no sample was written"
    ours, theirs = (load_model(checkpoint.latest(each)) for each in (run, one))
    assert furthest(ours, theirs) < 1e-3, "the saved weights are others than one process's"
    to_hf(ours, export)
    assert furthest(from_hf(export), ours) == 0, "the export for transformers is another model"


def test_the_grid_is_the_same_run(folder, tmp_path, one):
    processes, layout = GRIDS["parts × cuts"]
    started(processes, (replace(short(folder, tmp_path / "run", eval_sample_every=8), parallel=layout), None))
    is_the_same_run(tmp_path / "run", one, "parts × cuts", tmp_path / "hf")


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["parts 2", "cuts 2", "copies × cuts", "copies × parts"])
def test_every_layout_is_the_same_run(grid, runs, tmp_path, one):
    is_the_same_run(runs / grid, one, grid, tmp_path / "hf")


@pytest.mark.slow
def test_16_bits_on_shards_are_the_same_run_too(runs):
    apart = worst(runs / "fp16 one", runs / "fp16 parts 2")
    assert apart < 0.02, "16 bits round at 0.4%, not more"


# Made in parts, compiled, in 16 bits, validated


SHAPE = GPTConfig(block_size=12, vocab_size=97, n_layer=2, n_head=4, n_embd=40)
HELD = [np.array([0, *range(1, n), 0], dtype=np.uint16) for n in (60, 33)]  # one document each; 0 ends it
AUTOCAST_BOUND = 0.02


def batch(step: int, readers: Ranks) -> list:
    """A reader's rows of 8."""
    ids = torch.randint(97, (8, 13), generator=torch.Generator().manual_seed(step))
    return [tuple(x.chunk(readers.size)[readers.rank].contiguous() for x in (ids[:, :-1], ids[:, 1:]))]


def steps_in(ranks: Ranks, layout: Parallel, folder: Path, backend="", dtype="float32") -> dict:
    """Four steps of a model that was made in parts; validation; what is gathered in the end is kept by rank 0."""
    config = SimpleNamespace(parallel=layout, train=SimpleNamespace(dtype=dtype))
    weights = draw_weights(SHAPE, torch.Generator().manual_seed(0))
    model, readers = build_in_parts(SHAPE, weights, config, ranks)
    if backend:
        torch.compile = partial(torch.compile, backend=backend)
    stepper = compile_blocks(model) if backend else model
    optimizer = LaidOutAdamW(model, 1e-2, betas=(0.9, 0.98), weight_decay=0.01)
    losses, val = [], []
    for step in range(4):
        optimizer.zero_grad()
        loss = accumulate_gradients(stepper, batch(step, readers), dtype, mean=ranks.mean)
        gradients = gradients_of(model.parameters())
        scale_to(gradients, 0.5, global_norm(gradients))
        optimizer.step()
        losses.append(loss.item())
        val.append(evaluate_together(model, HELD, 0, ranks, 2, dtype))
    gathered = gather_model(model)
    assert (gathered is None) == (ranks.rank > 0), "not rank 0 alone has the complete model"
    if gathered:
        save_model(gathered, folder)
    dist.barrier()
    fill(model, read_weights(folder))  # in place of themselves
    again = evaluate_together(model, HELD, 0, ranks, 7, dtype)
    return {"losses": losses, "val": val, "again": again}


def several_layouts(ranks: Ranks, cases: list, folder: Path) -> dict:
    found = {}
    for number, (name, layout, options) in enumerate(cases):
        found[name] = steps_in(ranks, layout, folder / f"{number}", **options)
    return found


def alone_in(dtype: str) -> dict:
    """What one process finds."""
    model = GPT(SHAPE, torch.Generator().manual_seed(0))
    optimizer, losses, val = make_optimizer(model, 1e-2), [], []
    for step in range(4):
        losses.append(train_step(model, optimizer, batch(step, Ranks()), dtype, clip=0.5).item())
        val.append(evaluate(model, HELD, 0, 2, dtype))
    return {"losses": losses, "val": val}


def faqs_layouts() -> list[str]:
    """What the FAQ says that one may add to `torchrun … -m nanogpt train`."""
    faq = (Path(__file__).parents[2] / "site/faq.md").read_text(encoding="utf-8")
    return re.findall(r"^torchrun .* train \S+ +# (parallel[^:]*):", faq, re.MULTILINE)


COMPILED = {"backend": "inductor"}
CASES = {
    2: [
        ("parts, compiled", Parallel(shard=True), {"backend": "aot_eager"}),  # kernels: the slow case
        ("parts, bf16", Parallel(shard=True), {"dtype": "bf16"}),
        ("cuts", Parallel(tp=2), {}),
    ],
    4: [
        ("grid, bf16", Parallel(shard=True, tp=2), {"dtype": "bf16"}),
        ("copies × parts, recomputed", Parallel(shard=True, copies=2, recompute=True), {}),
    ]
    + [(words, load_config("gpt2-124M", words.split()).parallel, COMPILED) for words in faqs_layouts()],
}


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.weekly)])
def test_made_in_parts_compiled_and_validated_as_one_process(size, tmp_path):
    """What the configuration lets through also compiles: gpt2-124M does, with the words of the FAQ."""
    assert faqs_layouts(), "the FAQ names no layout, or this file does not find it"
    if any(options == COMPILED for _, _, options in CASES[size]) and not shutil.which("g++"):
        pytest.skip("torch.compile needs a C++ compiler on a CPU")
    cases, ones = CASES[size], {dtype: alone_in(dtype) for dtype in ("float32", "bf16")}
    for found in in_ranks(several_layouts, size, cases, tmp_path, seconds=300.0):
        for name, _, options in cases:
            dtype, has = options.get("dtype", "float32"), found[name]
            bound = AUTOCAST_BOUND if dtype == "bf16" else 2e-4 if options else BOUND
            for kind in ("losses", "val"):
                apart = max(abs(a - b) for a, b in zip(has[kind], ones[dtype][kind], strict=True))
                assert apart < bound, f"{name}, {kind}: {apart:.1e} from one process"
            assert abs(has["again"] - has["val"][-1]) < 1e-5, (
                f"{name}: filled from a file it is another model"
            )


@pytest.mark.gpu
def test_the_drills_find_the_same_by_nccl(tmp_path):
    found = drilled_on_gpus(tmp_path, "drills.layouts:ways", "drills.layouts:making")
    ways = found["drills.layouts:ways"]
    for name, way in ways.items():
        for (loss, norm), (one, its) in zip(way["told"], ways["one process"]["told"], strict=True):
            assert abs(loss - one) < 1e-3 and abs(norm - its) < 1e-3, f"{name}: another loss or norm"
    assert found["drills.layouts:making"]["peaks"]["part by part"] < found["drills.layouts:making"]["weights"]


# Gone on with


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"), [("parts × cuts", "one"), ("parts 4", "cuts 2"), ("one", "parts × cuts")]
)
def test_a_checkpoint_goes_on_in_another_layout(first, then, runs, one):
    assert worst(one, runs / f"{first} → {then}") < BOUND, "the curve has a seam"


@pytest.mark.slow
@pytest.mark.parametrize("grid", ["parts 2", "parts × cuts"])
def test_the_same_layout_goes_on_bit_for_bit(grid, runs):
    whole, stopped = runs / f"whole {grid}", runs / f"stopped {grid}"
    assert lines(whole) == lines(stopped), "the losses differ"
    assert weights(whole) == weights(stopped), "the weights differ"
    states = [checkpoint.load_state(checkpoint.latest(run))["optimizer"] for run in (whole, stopped)]
    for i, moments in states[0]["state"].items():
        for what, x in moments.items():
            assert torch.equal(x, states[1]["state"][i][what]), f"{what} of parameter {i} differs"


def test_the_count_of_updates_goes_on_where_its_weight_is():
    """On a GPU a fused update reads it there; here meta stands for the GPU."""
    weight, optimizer = torch.empty(2, device="meta"), LaidOutAdamW.__new__(LaidOutAdamW)
    optimizer.model, optimizer.named = SimpleNamespace(get_parameter=lambda name: weight), [["weight"]]
    optimizer.state = {weight: {}}
    optimizer.load_state_dict({"state": {0: {"step": torch.tensor(3.0)}}})
    assert optimizer.state[weight]["step"].device == weight.device


# Saved in parts


IN_PARTS = Parallel(shard=True, save_parts=True)


def fit_or_die(ranks: Ranks, config, step: int) -> int:
    """Train; rank 1 dies while it writes its parts of this step's checkpoint, after rank 0 has written its own."""
    from nanogpt.labs.parallel import fsdp

    save_parts = fsdp.save_parts

    def dying(folder, model, optimizer):
        if folder.name.startswith(f".step_{step:06d}") and ranks.rank == 1:
            folder.mkdir(exist_ok=True)
            (folder / "half").write_bytes(b"half of it")
            os._exit(1)
        save_parts(folder, model, optimizer)

    fsdp.save_parts = dying
    return trainer.train_config(config).step


def in_parts(folder: Path, run: Path, **changes):
    return replace(short(folder, run, **changes), parallel=IN_PARTS)


KILLED = {"model_dropout": 0.2, "run_checkpoint_every": 4, "run_keep": 9}


@pytest.fixture(scope="module")
def parts(folder, tmp_path_factory) -> Path:
    """Three runs of two ranks that save in parts, in one start: whole, one that stops after step 3, and a short one."""
    home = tmp_path_factory.mktemp("parts")
    whole, stopped = in_parts(folder, home / "whole", **KILLED), in_parts(folder, home / "stopped")
    started(2, (whole, None), (stopped, 3), (in_parts(folder, home / "short", train_max_steps=4), None))
    return home


def test_in_parts_a_run_goes_on_bit_for_bit_and_a_kill_leaves_the_checkpoint_before(folder, parts, tmp_path):
    killed, config = tmp_path / "killed", in_parts(folder, tmp_path / "killed", **KILLED)
    in_ranks(fit_or_die, 2, config, 8, seconds=None, never=(0,))
    assert checkpoint.latest(killed).name == "step_000004", "the checkpoint before the kill is not the newest"
    started(2, (config, None))
    assert lines(killed) == lines(parts / "whole"), "the losses differ"
    assert not list(killed.glob(".*.tmp")), "what the kill left is still there"
    files = {path.name: path.read_bytes() for path in sorted((killed / "step_000008").glob("*.distcp"))}
    assert len(files) == 2, "not every rank has written a file"
    models = []
    for run in (killed, parts / "whole"):
        join(run / "step_000008", tmp_path / "joined" / run.name)
        models.append(load_model(tmp_path / "joined" / run.name))
        assert (tmp_path / "joined" / run.name / "tokenizer.json").exists(), "`sample` needs its words"
    assert furthest(*models) == 0, "the weights differ"


@pytest.mark.parametrize("size", [1, pytest.param(4, marks=pytest.mark.weekly)])
def test_parts_go_on_with_another_number_of_ranks(size, folder, parts, tmp_path, one):
    shutil.copytree(parts / "stopped", tmp_path / "run")
    started(size, (in_parts(folder, tmp_path / "run"), None))
    assert worst(one, tmp_path / "run") < BOUND, "the curve has a seam"


def test_parts_are_no_model(folder, parts, tmp_path):
    begins = replace(short(folder, tmp_path / "new"), init_from=str(parts / "short"))
    for call, given in ((checkpoint.pick_checkpoint, parts / "short"), (trainer.build_run, begins)):
        with pytest.raises(ValueError, match="step_000004 is in parts; make a model of it with join"):
            call(given)


# Impossible ones


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("parallel.tp=3", "parallel.tp=3 must divide model.n_head=4"),
        ("parallel.tp=2 model.dropout=0.1", "model.dropout=0.1 with parallel.tp=2"),
        ("parallel.tp=2 train.dtype=bf16-masters", "parallel.tp=2"),
        ("parallel.copies=2", "parallel.copies=2"),
        ("parallel.save_parts=true", "parallel.save_parts=true"),
    ],
)
def test_what_no_number_of_processes_can_run_is_one_line(words, says):
    with pytest.raises(ValueError) as error:
        load_config("tiny", words.split())
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
def test_the_trainer_refuses_before_anything_is_written(folder, tmp_path):
    config = short(folder, tmp_path / "run")
    adapted = replace(config, lora=Lora(rank=2), init_from="a/model")
    jobs = [
        (replace(config, parallel=Parallel(dp=4)), "parallel.dp=4"),
        (replace(adapted, parallel=Parallel(shard=True)), "parallel.shard"),
    ]
    assert in_ranks(refused, 2, jobs, seconds=None) == [len(jobs)] * 2
    assert not list((tmp_path / "run").glob("step_*")), "a checkpoint of a run that was refused"


def refused(ranks: Ranks, jobs: list) -> int:
    """How many: all, and as it must be said."""
    for config, says in jobs:
        with pytest.raises(ValueError, match=says):
            trainer.train_config(config)
    return len(jobs)


# One process


def test_one_process_recomputes_bit_for_bit(folder, tmp_path):
    runs = {}
    for recompute in (False, True):
        config = short(folder, tmp_path / str(recompute), model_dropout=0.2, train_max_steps=4)
        runs[recompute] = trainer.train_config(replace(config, parallel=Parallel(recompute=recompute))).folder
    assert lines(runs[True]) == lines(runs[False]), "the losses differ"
    assert weights(runs[True]) == weights(runs[False]), "the weights differ"
