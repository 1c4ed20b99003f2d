"""The training step and the loop around it.

Exported from notebooks/07_training.ipynb, grown by notebooks/10_precision.ipynb,
notebooks/10b_loss_scaling.ipynb, notebooks/15_recipe.ipynb and notebooks/20_ddp.ipynb.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from nanogpt.model import GPT
from nanogpt.optim import global_norm, gradients_of, make_optimizer, scale_to, wsd
from nanogpt.precision import LossScaler, autocast, tf32_switch


def target_shares(batches: Sequence[tuple[Tensor, Tensor]], mean=None) -> Tensor:
    """Of all targets that count, those that are not -100, the share in each batch. mean: of accumulate_gradients."""
    if not batches:
        raise ValueError("a step needs at least one micro-batch (x, y)")
    counts = torch.stack([(y != -100).sum() for _, y in batches])
    return counts / (mean(counts.sum()) if mean else counts.sum())


def accumulate_gradients(
    model: GPT, batches, precision="float32", scaler: LossScaler | None = None, mean=None
) -> Tensor:
    """Add the gradient of the mean loss to each .grad; batches [(x, y), …], each (B, T): the loss, in nats, on the device.

    The mean is over all targets but -100, however they are cut into batches. precision: chapter 10's word. scaler: its
    scale multiplies the gradient, which fp16 needs. mean(tensor): over the processes that share the batch, whose
    replicas average gradients (chapter 20).
    """
    if precision == "fp16" and scaler is None:
        raise ValueError("fp16 needs a scaler that lives as long as the run: pass scaler=LossScaler()")
    shares = target_shares(batches, mean)
    loss = torch.zeros((), device=shares.device)
    last = len(batches) - 1
    with tf32_switch(precision == "tf32"):
        for i, ((x, y), share) in enumerate(zip(batches, shares)):
            waits = i < last and hasattr(model, "no_sync")  # a replica's gradients are averaged once a step
            with autocast(precision, x.device), model.no_sync() if waits else nullcontext():
                part = share * model(x, y)[1]
            scaled = part if scaler is None else part * scaler.scale
            scaled.backward()
            loss += torch.where(share > 0, part.detach(), 0.0)  # without a target, its mean is 0/0
    return mean(loss) if mean else loss


def train_step(
    model: GPT, optimizer, batches, precision="float32", clip=None, scaler: LossScaler | None = None
) -> Tensor:
    """One update from batches [(x, y), …], each (B, T): the mean loss before it, in nats, on the device.

    precision: chapter 10's word. clip: the largest norm of the gradient. scaler: for fp16; it skips an update whose
    gradient overflowed. FloatingPointError, and no update, if the loss or the gradient's norm is not finite.
    """
    # the gradient of the batch, and its length
    optimizer.zero_grad()
    loss = accumulate_gradients(model, batches, precision, scaler)
    gradients = gradients_of(model.parameters())
    if scaler is not None:
        scaler.unscale(model.parameters())
    norm = global_norm(gradients)
    # with a scaler: no update if the scaled gradient overflowed
    if scaler is not None and loss.isfinite():
        finite = bool(norm.isfinite())
        scaler.update(finite)
        if not finite:
            return loss
    # what is not finite must not reach the weights
    if not torch.isfinite(norm + loss):  # waits for the device
        raise FloatingPointError(f"the loss is {loss:.3g} and its gradient's norm {norm:.3g}")
    if clip is not None:
        scale_to(gradients, clip, norm)
    optimizer.step()
    return loss


def train(
    model: GPT, stream, steps, lr, *, precision="float32", clip=None, decay=0.3, generator=None, on_step=None
) -> list[float]:
    """Train in place on `steps` batches, stream.next_batch() -> (x, y); the loss of each, in nats per token.

    precision, clip: see train_step. generator seeds dropout, nothing else is random. on_step(step, loss): after each.
    """
    from tqdm import tqdm  # here, so that a step alone needs torch and nothing else

    device, losses = next(model.train().parameters()).device, []
    optimizer = make_optimizer(model, lr, precision)
    scaler = LossScaler() if precision == "fp16" else None
    seed = int(torch.randint(2**31, (), generator=generator or torch.Generator()))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        for step in tqdm(range(steps), unit="step", disable=None):
            torch.manual_seed(seed + step)  # dropout depends on the step, not on what ran before
            for group in optimizer.param_groups:
                group["lr"] = lr * wsd(step, steps, decay=decay)
            try:
                losses.append(train_step(model, optimizer, [stream.next_batch()], precision, clip, scaler))
            except FloatingPointError as error:
                raise FloatingPointError(f"step {step}: {error}; lower lr={lr:g}, or set clip") from None
            if on_step:
                on_step(step, losses[-1])
    return [loss.item() for loss in losses]


@torch.no_grad()
def scale_weight(name: str, p: Tensor, C: int) -> None:
    """In place, in models narrower than 768: wpe to waves (Vaswani et al. 2017, §3.5), then matrices × √(768 / C) (Glorot and Bengio 2010)."""
    if C < 768 and name == "transformer.wpe.weight":  # waves twice as large as N(0, 0.02²)
        angles = torch.arange(len(p))[:, None] * 10_000.0 ** (-torch.arange(0, C, 2) / C)  # (T, C / 2)
        p.copy_(math.sqrt(8) * 0.02 * torch.cat([angles.sin(), angles.cos()], 1)[:, :C])
    if C < 768 and p.dim() == 2:
        p *= math.sqrt(768 / C)


def scale_init(model: GPT) -> GPT:
    """`scale_weight` for all weights of a new model, which is returned."""
    for name, p in model.named_parameters():
        scale_weight(name, p, model.config.n_embd)
    return model
