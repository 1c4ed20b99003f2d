"""A run that trains adapters: they are made beside the weights of init_from, and kept alone.

Exported from notebooks/19c_fine_tuning_runs.ipynb.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from nanogpt import build, trainer
from nanogpt.config import Config, Lora, hook
from nanogpt.labs.tuning.lora import add_lora, load_adapter, lora_parameters, save_adapter
from nanogpt.model import GPT


def check(config: Config) -> None:
    """ValueError for adapters that have no trained weights beside them."""
    if config.init_from is None:
        rank = config.lora.rank
        raise ValueError(f"lora.rank={rank} adapts trained weights; set init_from to their folder")


def build_model(config: Config, manifest: dict) -> GPT:
    """The model of init_from, frozen, with adapters of config.lora, which alone are trained."""
    lora, plain = config.lora, replace(config, lora=Lora())
    model = hook(plain, build.build_model)(plain, manifest)
    generator = torch.Generator().manual_seed(config.run.seed)
    return add_lora(model, lora.rank, lora.alpha, lora.targets, generator)


def snapshot(run) -> tuple[GPT, dict, Callable]:
    """What a checkpoint of this run holds: its model, its state, and what writes of the model the adapters alone."""
    return run.model, run.state_dict(), partial(save_adapter, base_model=run.config.init_from)


def load_weights(run, folder: Path) -> None:
    """Give the run's adapters the numbers of a checkpoint. ValueError if the base is another one."""
    load_adapter(run.model, folder)


def attach(run) -> None:
    """Say how many numbers are trained."""
    numbers = sum(p.numel() for p in lora_parameters(run.model).values())
    trainer.say(f"{numbers:,} numbers in adapters are trained beside {run.config.init_from}")
