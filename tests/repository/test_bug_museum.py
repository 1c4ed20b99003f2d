"""Bugs that were shipped, each shown to bite, and then shown to be absent here.

A room is a test: it runs the wrong version first and measures the harm, then runs ours through the same check, so that a
check which cannot fail would be noticed. What a docstring cites was read there (November 2026).
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from nanogpt.config import Config, Model, Optim, Run, Train
from nanogpt.data import BatchStream
from nanogpt.labs.evals import measures
from nanogpt.model import GPT, GPTConfig
from nanogpt.precision import LossScaler, autocast
from nanogpt.shards import write_shard
from nanogpt.tokenizer import BPETokenizer
from nanogpt.trainer import Training, one_step
from nanogpt.training import train_step

SHAPE = GPTConfig(block_size=16, vocab_size=64, n_layer=1, n_head=2, n_embd=32)


def new_model(seed=0) -> GPT:
    return GPT(SHAPE, generator=torch.Generator().manual_seed(seed))


def batches(n=4, rows=2, seed=0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    ids = torch.randint(64, (n, rows, 17), generator=torch.Generator().manual_seed(seed))
    return [(part[:, :-1], part[:, 1:].clone()) for part in ids]


def gradient(model) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """The distance of two gradients, as a fraction of the second one's length."""
    return ((a - b).norm() / b.norm()).item()


def test_mean_of_means():
    """`loss / steps` weighs a micro-batch with few counted tokens like a full one.

    Where: transformers' Trainer until 4.46 (pull request 34191, October 2024), and others to this day (mlx-lm, pull
    request 1413, June 2026). Symptom: none in the curve; losses of runs that differ in accumulation alone do not agree.
    """
    parts = batches()
    parts[-1][1][:, 2:] = -100  # of the last one's targets fourteen in sixteen are padding
    at_once, wrong, ours = (new_model() for _ in range(3))
    at_once(*(torch.cat(side) for side in zip(*parts)))[1].backward()
    for x, y in parts:
        (wrong(x, y)[1] / len(parts)).backward()
    assert apart(gradient(wrong), gradient(at_once)) > 0.2
    train_step(ours, torch.optim.SGD(ours.parameters(), lr=0.0), parts)
    assert apart(gradient(ours), gradient(at_once)) < 1e-5


def seen_in_second_epoch(stream, per_epoch: int, resumed_at: int) -> set[int]:
    """Inputs of the epoch after the one that was resumed at a batch of it; a token's id is its place in the text."""
    for _ in range(per_epoch - resumed_at):
        next(stream)
    return {token for _ in range(per_epoch) for token in next(stream)}


def test_a_resume_that_skips_in_every_epoch(tmp_path):
    """A loader told to skip the first n batches skips them whenever it begins again.

    Where: accelerate, issue 1451 (May 2023: "permanent skipping of batches"); open-instruct, pull request 681 (May 2025).
    Symptom: epochs become shorter, the training loss falls faster, the validation loss does not.
    """
    data, skip = np.arange(200).reshape(20, 10), 15

    def forever():
        while True:
            yield from data[skip:]

    seen = seen_in_second_epoch(forever(), per_epoch=20, resumed_at=skip)
    assert len(seen) == 50, "of 200 tokens"

    write_shard(tmp_path / "train_000000.bin", np.arange(200))
    streams = [BatchStream([tmp_path / "train_000000.bin"], B=1, T=10) for _ in range(2)]
    for _ in range(15):
        streams[0].next_batch()
    streams[1].load_state_dict(streams[0].state_dict())
    resumed = (streams[1].next_batch()[0][0].tolist() for _ in range(100))
    assert len(seen_in_second_epoch(resumed, per_epoch=20, resumed_at=15)) == 200


UNICODE = "naïve café, Ελληνικά, русский, 中文字符, 日本語, ⅔ of €5, 🦊🦉🐢 "


def test_bytes_by_decoding():
    """A token that is half a character decodes to U+FFFD, three bytes; the text seems longer, and bits per byte fewer.

    Where: nanochat until pull request 693 (April 2026); autoresearch, issue 384 (March 2026). Symptom: a tokenizer that
    splits more characters scores better.
    """
    tokenizer = BPETokenizer.train("only plain English", 270)
    ids = tokenizer.encode(UNICODE)
    assert tokenizer.decode(ids) == UNICODE, "the text as a whole is decoded well: the bug is in the parts"
    decoded = sum(len(tokenizer.decode([i]).encode()) for i in ids)
    assert decoded > 1.5 * len(UNICODE.encode())
    assert measures.token_bytes(tokenizer)[ids].sum() == len(UNICODE.encode())


def enabled_without_a_gpu(device: str) -> bool:
    """Whether CUDA autocast is on within the context, where torch finds no GPU: it warns and stays off for "cuda"."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast(device, dtype=torch.bfloat16):
            return torch.is_autocast_enabled("cuda")


def test_autocast_of_a_device_with_an_index(monkeypatch):
    """torch.autocast takes a kind of device, "cuda"; a device's own name, under torchrun, is "cuda:0".

    Where: build-nanogpt, issue 44 (June 2024); speechbrain 1.0.3, issue 2881 (April 2025). Symptom: a RuntimeError, on
    several GPUs only. torch 2.13 takes the name, and passes over the checks that it makes for "cuda".
    """
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: True)
    assert not enabled_without_a_gpu("cuda")
    try:
        assert enabled_without_a_gpu("cuda:0")
    except RuntimeError as error:
        assert "unsupported autocast device_type 'cuda:0'" in str(error)

    kinds, plain = [], torch.autocast

    def noted(kind, **options):
        kinds.append(kind)
        return plain(kind, **options)

    monkeypatch.setattr(torch, "autocast", noted)
    with autocast("bf16", torch.device("cpu", 0)):
        assert F.linear(torch.ones(1, 2), torch.ones(1, 2)).dtype is torch.bfloat16
    assert kinds == ["cpu"]


def test_a_seed_set_after_the_model_was_made():
    """The seed is set where training begins; the weights had been drawn before.

    Where: transformers' Trainer sets its seed when it gets a model that is made already; its documentation claimed
    otherwise until pull request 9903 (January 2021). Symptom: two runs with one seed differ from the first step on.
    """
    wrong, ours = [], []
    for _ in range(2):
        wrong.append(GPT(SHAPE))
        ours.append(new_model(seed=0))
        torch.manual_seed(0)
        torch.rand(3)  # training draws some numbers
    assert not torch.equal(*(model.lm_head.weight for model in wrong))
    assert torch.equal(*(model.lm_head.weight for model in ours))


@pytest.fixture
def one_process(tmp_path):
    """A process group of one: what is sent can be watched, and needs nobody to receive it."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def sent(flag_first: bool) -> torch.Tensor:
    """The sum of what DDP sends to the other ranks in the second of two steps of four micro-batches."""
    model = new_model()
    ddp, total = torch.nn.parallel.DistributedDataParallel(model), []

    def watch(_, bucket):
        total.append(bucket.buffer().sum().double())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    ddp.register_comm_hook(None, watch)
    for _ in range(2):
        total.clear()
        model.zero_grad()
        for number, (x, y) in enumerate(parts := batches()):
            if flag_first:
                ddp.require_backward_grad_sync = number == len(parts) - 1
            loss = ddp(x, y)[1] / len(parts)
            ddp.require_backward_grad_sync = number == len(parts) - 1
            loss.backward()
    return sum(total), gradient(model).double().sum()


def test_the_sync_flag_set_after_the_forward_pass(one_process):
    """DDP reads `require_backward_grad_sync` in the forward pass, not in backward: there the flag is one step late.

    So the gradient of the first micro-batch is averaged over the ranks, and that of all others never. Where:
    build-nanogpt until pull request 30 (June 2024), there after 1,000 steps a loss of 4.88 instead of 4.15; the same
    with `no_sync()` around backward alone in ClassyVision (706) and modded-nanogpt (31). Symptom: ranks drift apart, and
    the loss depends on the number of micro-batches.
    """
    over_the_wire, whole = sent(flag_first=False)
    assert abs(over_the_wire - whole) > 0.1 * abs(whole)
    over_the_wire, whole = sent(flag_first=True)
    assert abs(over_the_wire - whole) < 1e-4 * abs(whole)


WARMUP, SCALE = 10, 2.0**24  # too large a scale: the first updates overflow, and fp16 skips them


def test_a_scheduler_that_counts_skipped_updates(tmp_path):
    """While fp16 looks for its scale no update is made, but the schedule goes on: the warm-up is over before it began.

    Where: Lightning, issue 18828 (October 2023, version 2.0); transformers, pull request 11144 (April 2021). Symptom: a
    warning in torch's optimizer, a first update at nearly the full rate, and runs that diverge early, in fp16 alone.
    """
    model, batch, scaler = new_model(), batches(1), LossScaler(SCALE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1e-3 * min(1, (step + 1) / WARMUP))
    weights = model.lm_head.weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the one that torch prints
        while torch.equal(model.lm_head.weight, weights):
            rate = optimizer.param_groups[0]["lr"]
            train_step(model, optimizer, batch, "fp16", scaler=scaler)
            scheduler.step()
    assert rate >= 4 * 1e-3 / WARMUP, "of the first update"

    write_shard(tmp_path / "train_000000.bin", torch.randint(64, (5000,)).numpy())
    shape = {name: getattr(SHAPE, name) for name in ("n_layer", "n_head", "n_embd", "block_size")}
    config = Config(
        model=Model(**shape),
        optim=Optim(lr=1e-3, schedule="constant", warmup=WARMUP),
        train=Train(max_steps=40, batch_tokens=32, micro_batch=2, dtype="fp16"),
        run=replace(Run(), dir=str(tmp_path)),
    )
    model, stream = new_model(), BatchStream([tmp_path / "train_000000.bin"], B=2, T=16)
    optimizer = torch.optim.AdamW(model.parameters())
    parts = {"model": model, "stepper": model, "optimizer": optimizer, "stream": stream}
    run = Training(config, torch.device("cpu"), None, ([], 0), **parts, scaler=LossScaler(SCALE))
    lines = [one_step(run) for _ in range(30)]
    made = [line["lr"] for line in lines if "skipped" not in line]
    assert len(made) <= 26 and {line["skipped"] for line in lines if "skipped" in line} == {"overflow"}
    assert made[:WARMUP] == pytest.approx([1e-3 * (n + 1) / WARMUP for n in range(WARMUP)])
