"""Muon for stacks of matrices of one shape, beside AdamW.

Exported from notebooks/25_speedrun.ipynb.
"""

import torch
from torch import Tensor

from nanogpt.model import GPT


def orthogonal(G: Tensor) -> Tensor:
    """Matrices with the directions of G (n, rows, columns), and singular values near 1.

    Five Newton–Schulz steps with the constants of Jordan et al. (2024): a = 3.4445, b = -4.7750, c = 2.0315. A matrix
    of zeros stays zero.
    """
    if G.size(-2) > G.size(-1):  # X Xᵀ is smaller for a wide matrix
        return orthogonal(G.mT).mT
    X = G / (G.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        A = X @ X.mT
        X = 3.4445 * X + (2.0315 * A @ A - 4.7750 * A) @ X
    return X


class BatchedMuon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for matrices; those of one shape are made orthogonal together.

    A step has the length of an AdamW step, as with PyTorch's adjust_lr_fn="match_rms_adamw" (Liu et al. 2025, §2.2).
    """

    def __init__(self, matrices: list[Tensor], lr: float, weight_decay: float = 0.1, momentum: float = 0.95):
        shapes = {}
        for p in matrices:
            shapes.setdefault(tuple(p.shape), []).append(p)
        options = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__([{"params": group} for group in shapes.values()], options)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            grad = torch.stack([p.grad for p in group["params"]])  # (n, rows, columns)
            mean = group.setdefault("mean", torch.zeros_like(grad))
            mean.lerp_(grad, 1 - group["momentum"])
            update = orthogonal(grad.lerp(mean, group["momentum"]))  # Nesterov's
            length = 0.2 * max(update.shape[1:]) ** 0.5 * group["lr"]
            for p, u in zip(group["params"], update):
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(u, alpha=length)


class MuonAndAdamW:
    """Muon for the matrices inside the blocks, AdamW for the rest, used like one optimizer."""

    def __init__(self, model: GPT, lr: float, weight_decay: float):
        hidden = [p for p in model.transformer.h.parameters() if p.dim() == 2]
        inside = {id(p) for p in hidden}
        rest = [p for p in model.parameters() if id(p) not in inside and p.requires_grad]
        adamw = torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
        self.parts = BatchedMuon(hidden, lr, weight_decay), adamw
        self.param_groups = self.parts[0].param_groups + adamw.param_groups

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        for part in self.parts:
            part.step()
