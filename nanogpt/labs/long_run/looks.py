"""What is measured and written on the way, which no later step notices.

Exported from notebooks/17e_long_run.ipynb, grown by notebooks/18b_hellaswag.ipynb,
notebooks/19c_fine_tuning_runs.ipynb, notebooks/20a_many_processes.ipynb and notebooks/21d_layouts.ipynb.
"""

import math
from collections.abc import Callable
from functools import partial

from nanogpt.checkpoint import random_states, set_random_states
from nanogpt.evaluate import evaluate
from nanogpt.files import atomically
from nanogpt.labs.evals.hellaswag import accuracy, load_items
from nanogpt.labs.long_run.assemble import held_out, marker_of
from nanogpt.labs.long_run.log import say
from nanogpt.labs.long_run.together import held_loss
from nanogpt.labs.long_run.training import Training
from nanogpt.labs.parallel.laid_out import gathered_model
from nanogpt.labs.tuning.answers import answer_loss
from nanogpt.model import GPT
from nanogpt.sampling import complete
from nanogpt.shards import load_manifest
from nanogpt.trainer import due


def measured_loss(run: Training, model: GPT, evaluate: Callable) -> tuple[float, dict]:
    """The validation loss, by `evaluate` or of answers alone; and for the step's line the floor, and the loss of each
    other folder of a mixture. Answers alone have no floor.
    """
    data, (held, eot), dtype = run.config.data, run.held, run.config.train.dtype
    found = {key: value for key, value in load_manifest(data.dir).items() if key == "floor"}
    for folder in [folder for folder in data.mix or () if folder != data.dir]:
        loss = evaluate(model, held_out(folder, run.config.eval.tokens), eot, precision=dtype)
        found[f"val_loss of {folder}"] = loss
        say(f"val loss {loss:.4f} of {folder}")
    if not data.answers_after:
        return evaluate(model, held, eot, precision=dtype), found
    found.pop("floor", None)
    return answer_loss(model, held, eot, dtype, marker=marker_of(data, run.tokenizer)), found


def validate(run: Training, model: GPT) -> dict:
    """The validation loss, and the floor where the data have one. Notes which step was the best. All ranks call it."""
    loss, more = measured_loss(run, model, partial(held_loss, run.ranks, evaluate))
    if loss < run.best.get("val_loss", math.inf):
        run.best = {"step": run.step, "val_loss": loss}
    return {"val_loss": loss} | more  # for `plot`


def write_sample(run: Training, model: GPT) -> dict:
    """Print a sample and write it to a file. It adds nothing to the step's line."""
    prompt = run.config.eval.prompt
    text = prompt + complete(model, run.tokenizer, prompt, 200)
    say(f"--- step {run.step}: {text}")
    with atomically(run.folder / f"samples/step_{run.step:06d}.txt") as file:
        file.write(text.encode())
    return {}


def score_hellaswag(training: Training, model: GPT) -> dict:
    """The accuracies on HellaSwag."""
    precision = training.config.train.dtype
    scores = accuracy(model, load_items(), training.tokenizer, precision=precision)
    return {"hellaswag": scores["acc"], "hellaswag_norm": scores["acc_norm"]}


LOOKS = {  # a key of `eval`, and what is done so often
    "every": validate,
    "sample_every": write_sample,
    "hellaswag_every": score_hellaswag,
}


def due_looks(run: Training) -> list[Callable]:
    """The looks that are due after this step. At the last step all are due that are done at all."""
    last = run.step >= run.config.train.max_steps
    return [each for key, each in LOOKS.items() if due(getattr(run.config.eval, key), run.step, last)]


def look(run: Training, looks: list[Callable]) -> dict:
    """What the looks find, for the step's line: a validation by all ranks, the rest by rank 0. No later step notices them."""
    before, found = random_states(run.device), {}
    for each in looks:
        model = run.model if each is validate else gathered_model(run.model)
        if each is validate or run.ranks.rank == 0:
            found |= each(run, model.to(run.device))
    set_random_states(before, run.device)
    return found
