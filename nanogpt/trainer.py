"""A trainer of one process: a loop, a log, a look at the model, and a file from which the run goes on.

Exported from notebooks/17_trainer.ipynb, grown by notebooks/17b_checkpoints.ipynb.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from nanogpt.checkpoint import latest, load, prune, random_states, repair, save, set_random_states
from nanogpt.data import DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.metrics import span, step_line
from nanogpt.model import GPT, num_params
from nanogpt.optim import cosine
from nanogpt.sampling import complete
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import train_step
from nanogpt.weights import load_model


@dataclass
class Training:
    """A run in memory. Steps change its model, optimizer, stream and step; the other fields are its settings."""

    folder: Path  # where its files are
    model: GPT
    optimizer: torch.optim.Optimizer
    stream: DocumentStream
    tokenizer: BPETokenizer
    held: tuple  # arrays of validation tokens, and the id between their documents
    max_steps: int
    lr: float  # the highest
    every: int  # steps from one look to the next
    step: int = 0  # how many have been made


def one_step(run: Training) -> dict:
    """Take a batch and update the weights: the step's line."""
    lr = run.lr * cosine(run.step, run.max_steps)
    for group in run.optimizer.param_groups:
        group["lr"] = lr
    loss = train_step(run.model, run.optimizer, [run.stream.next_batch()], clip=1.0)
    run.step += 1
    return {"step": run.step, "loss": loss.item(), "lr": lr}


def due(every: int, step: int, last: bool = False) -> bool:
    """Whether it is time, after this step, for something that is done after every `every` steps and after the last; 0: never."""
    return every > 0 and (step % every == 0 or last)


def look(run: Training) -> dict:
    """Measure the loss on the validation text and write a story: for the step's line."""
    story = complete(run.model, run.tokenizer, "", 50)
    return {"val_loss": evaluate(run.model, *run.held), "sample": story.strip()}


def keep_run(run: Training) -> None:
    """Write a checkpoint, whole or not at all: what a step changes, and dropout's generator. Two are kept."""
    parts = {"optimizer": run.optimizer, "stream": run.stream}
    state = {"step": run.step} | {name: part.state_dict() for name, part in parts.items()}
    state["random"] = random_states(next(run.model.parameters()).device)
    save(run.folder, run.step, run.model, state, run.tokenizer)
    prune(run.folder, 2, run.step)


def go_on(run: Training) -> None:
    """Load the newest whole checkpoint into a run, if there is one. Lines of later steps are cut off."""
    found = latest(run.folder)
    if found:
        state = load(found)
        run.step = state["step"]
        run.model.load_state_dict(load_model(found).state_dict())
        run.optimizer.load_state_dict(state["optimizer"])
        run.stream.load_state_dict(state["stream"])
        set_random_states(state["random"], next(run.model.parameters()).device)
    repair(run.folder / "metrics.jsonl", run.step + 1)


def introduce(run: Training) -> None:
    """One line: what is about to run, on what, and where it is kept."""
    began = f"goes on after step {run.step}" if run.step else "a new run"
    parameters, device = num_params(run.model.config), next(run.model.parameters()).device
    tokens = run.stream.B * run.stream.T
    print(f"{run.folder.name}: {began}; {parameters:,} parameters in float32 on {device}")
    print(f"{run.max_steps:,} steps of {tokens:,} tokens, {run.max_steps * tokens:,} in all")


def fit(run: Training) -> Training:
    """Train a run, or go on with it, to its last step. Each step's line goes to metrics.jsonl."""
    go_on(run)
    introduce(run)
    first, began = run.step, time.monotonic()
    with open(run.folder / "metrics.jsonl", "a", encoding="utf-8") as metrics:
        while run.step < run.max_steps:
            line = one_step(run)
            looking = due(run.every, run.step, last=run.step == run.max_steps)
            if looking:
                line |= look(run)
                left = (time.monotonic() - began) / (run.step - first) * (run.max_steps - run.step)
                print(step_line(line, run.max_steps), "|", span(left), "left")
                print("   ", line["sample"])
            print(json.dumps(line), file=metrics, flush=True)
            if looking:
                keep_run(run)
    return run
