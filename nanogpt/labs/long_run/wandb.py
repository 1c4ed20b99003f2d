"""The lines of a run for Weights & Biases: the key run.wandb.

Exported from notebooks/17f_killed_run.ipynb.
"""

import secrets

from nanogpt.config import config_dict
from nanogpt.labs.long_run.tensorboard import numbers


def open_page(run):
    """The run's page on wandb; another one of this process is finished first."""
    import wandb

    file = run.folder / "wandb-id"  # not the folder's name: two runs may have the same
    if not file.exists():
        file.write_text(secrets.token_hex(4))
    options = {"id": file.read_text(), "name": run.folder.resolve().name, "resume": "allow"}
    options |= {"dir": run.config.run.dir, "config": config_dict(run.config)}
    return wandb.init(project="nanogpt", reinit="finish_previous", **options)


def attach(run) -> None:
    """Send each line to wandb, too, which goes on with the page that was begun in this folder."""
    page = None

    def write(line: dict) -> None:
        nonlocal page
        if page is None:
            page = open_page(run)
        page.log(numbers(line), step=line["step"])

    run.writers.append(write)
