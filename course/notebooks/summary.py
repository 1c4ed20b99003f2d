"""What the course has produced so far, read from the files below data/built/."""

import contextlib
import json
import sys
import textwrap
from pathlib import Path

from course.package.remedies import remedy_for
from course.paths import BUILT, ROOT, RUNS, module_path, notebook_path, relative

PROMPT, TEMPERATURE = "One sunny day,", 0.5  # as on README's first screen


def summary(chosen: list[str], seconds: dict[str, float]) -> list[str]:
    """The lines that end `course run`."""
    have = []
    for what in (tokenizer_line, shards_line, model_lines):
        with contextlib.suppress(Exception):  # a damaged file has no line; `course run` is done all the same
            have += what()
    done = f"{len(chosen)} chapter{'s' * (len(chosen) != 1)} in {sum(seconds.values()):.0f} s."
    return [
        "",
        *([f"{done} What you have now:", "", *have] if have else [done]),
        "",
        f"The executed notebooks are in {relative(RUNS)}/, e.g. {relative(RUNS / notebook_path(chosen[0]).name)}.",
        "`make lab` opens the course at chapter 00.",
        *(["", "Another story by your model:", f"  {sample()}"] if can_write() else []),
    ]


def read(name: str) -> dict | None:
    path = BUILT / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def tokenizer_line() -> list[str]:
    if read("tokenizer.json") is None:
        return []
    from nanogpt.tokenizer import BPETokenizer

    size = BPETokenizer.load(BUILT / "tokenizer.json").vocab_size
    return [f"  {'tokenizer':11} {f'{size:,} tokens':32} data/built/tokenizer.json"]


def shards_line() -> list[str]:
    manifest = read("stories/manifest.json")
    if manifest is None:
        return []
    tokens = sum(split["tokens"] for split in manifest["splits"].values())
    return [
        f"  {'shards':11} {f'{tokens / 1e6:.1f} M tokens':32} data/built/stories/",
        f"  {'the floor':11} {manifest['floor']:.3f} nats a token: no model of this corpus can do better",
    ]


def model_lines() -> list[str]:
    run = read("model/train.json")
    if run is None:
        return []
    ahead = f", {run['val_loss'] / run['floor'] - 1:.0%} above the floor" if "floor" in run else ""
    loss = f"loss {run['val_loss']:.3f}{ahead}"
    lines = [f"  {'model':11} {loss:32} data/built/model/"]
    if "accuracy" in run:
        lines += [
            f"              {run['accuracy']:.0%} of its who-has-how-many answers are right; bigrams: {run['bigram_accuracy']:.0%}"
        ]
    return [*lines, *story()]


def can_write() -> bool:
    """Whether there is a model, and the command, which chapter 17d makes."""
    return read("model/train.json") is not None and module_path("cli").is_file()


def sample() -> str:
    """The command that lets the model write."""
    here = Path(sys.executable)
    python = relative(here) if here.is_relative_to(ROOT) else "python"
    return f'{python} -m nanogpt sample --checkpoint data/built/model --prompt "{PROMPT}" --temperature {TEMPERATURE} --seed 1'


def story() -> list[str]:
    """What the command of README's first screen writes."""
    try:
        import torch

        from nanogpt.sampling import complete, load

        model, tokenizer = load(str(BUILT / "model"))
        seed = torch.Generator().manual_seed(0)
        text = PROMPT + complete(model, tokenizer, PROMPT, 200, temperature=TEMPERATURE, generator=seed)
    except Exception as error:  # a changed or damaged model is no reason to end with a traceback
        return ["", remedy_for(error) or f"The model in {relative(BUILT)}/model/ cannot write ({error})."]
    return [
        "",
        "What it writes:",
        "",
        *textwrap.wrap(text, width=96, initial_indent="  ", subsequent_indent="  "),
    ]
