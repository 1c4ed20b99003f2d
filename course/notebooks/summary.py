"""What the course has produced so far, read from the files below data/built/."""

import json
import sys
import textwrap
from pathlib import Path

from course.package.remedies import remedy_for
from course.paths import BUILT, ROOT, RUNS, module_path, notebook_path, relative

PROMPT, TEMPERATURE = "One sunny day,", 0.5  # as on README's first screen


def summary(chosen: list[str], seconds: dict[str, float]) -> list[str]:
    """The lines that end `course run`."""
    done = f"{len(chosen)} chapter{'s' * (len(chosen) != 1)} in {sum(seconds.values()):.0f} s."
    there = (BUILT / "model/train.json").exists()
    sample = there and module_path("cli").is_file()  # the command, which chapter 17d makes
    return [
        "",
        done,
        *(model_lines() if there else []),
        "",
        f"The executed notebooks are in {relative(RUNS)}/, e.g. {relative(RUNS / notebook_path(chosen[0]).name)}.",
        "`make lab` opens the course at chapter 00.",
        *(["", "Another story by your model:", f"  {sample_command()}"] if sample else []),
    ]


def model_lines() -> list[str]:
    """The model's loss, and what the command of README's first screen writes."""
    try:
        import torch

        from nanogpt.sampling import complete, load

        run = json.loads((BUILT / "model/train.json").read_text(encoding="utf-8"))
        above = f", {run['val_loss'] / run['floor'] - 1:.0%} above the floor" if "floor" in run else ""
        model, tokenizer = load(str(BUILT / "model"))
        seed = torch.Generator().manual_seed(0)
        text = PROMPT + complete(model, tokenizer, PROMPT, 200, temperature=TEMPERATURE, generator=seed)
    except Exception as error:  # a changed or damaged model is no reason to end with a traceback
        return ["", remedy_for(error) or f"The model in {relative(BUILT)}/model/ cannot write ({error})."]
    said = f"Your model in {relative(BUILT)}/model/ has a loss of {run['val_loss']:.3f}{above}. It writes:"
    return ["", said, "", *textwrap.wrap(text, 96, initial_indent="  ", subsequent_indent="  ")]


def sample_command() -> str:
    """The command that lets the model write."""
    here = Path(sys.executable)
    python = relative(here) if here.is_relative_to(ROOT) else "python"
    return f'{python} -m nanogpt sample --checkpoint data/built/model --prompt "{PROMPT}" --temperature {TEMPERATURE} --seed 1'
