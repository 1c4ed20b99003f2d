"""A linear layer that multiplies a single row faster than some CPU libraries do.

Exported from notebooks/13_nice_numbers.ipynb.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ColumnLinear(nn.Linear):
    """nn.Linear whose product with a single row is a weighted sum of the weight's columns, on all CPU threads."""

    def forward(self, x: Tensor) -> Tensor:
        rows, C = self.weight.shape
        if x.numel() != C or x.device.type != "cpu" or torch.is_grad_enabled():
            return super().forward(x)
        bags = torch.arange(C).view(math.gcd(C, torch.get_num_threads()), -1)  # one for each thread
        weights = x.reshape(bags.shape)
        y = F.embedding_bag(bags, self.weight.T, per_sample_weights=weights, mode="sum").sum(0)  # (rows,)
        return (y if self.bias is None else y + self.bias).view(*x.shape[:-1], rows)


def by_columns(model: nn.Module) -> nn.Module:
    """Make every nn.Linear a ColumnLinear, in place, with the same numbers; returns the model.

    The parameters stay the same objects, so that a tied embedding stays tied. Embedding bags are fast on CPUs with AVX:
    where torch.backends.cpu.get_cpu_capability() does not begin with AVX, nothing is changed.
    """
    if torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        for layer in [module for module in model.modules() if type(module) is nn.Linear]:
            layer.weight.data = layer.weight.data.T.contiguous().T  # a tied embedding's rows are then strided
            layer.__class__ = ColumnLinear
    return model
