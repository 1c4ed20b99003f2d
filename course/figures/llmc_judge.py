"""llm.c's own test program, compiled from a clone at $LLMC_DIR, as a judge of files in its format."""

import copy
import os
import re
import shutil
import subprocess
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogpt.model import GPT

WANTED = "gpt2_124M.bin", "gpt2_124M_debug_state.bin"  # the files that test_gpt2.c looks for: model and state


def why_no_judge() -> str | None:
    """Why llm.c's program cannot be asked here, or None."""
    sources = os.environ.get("LLMC_DIR")
    if not sources or not Path(sources, "test_gpt2.c").exists():
        return "LLMC_DIR names no clone of github.com/karpathy/llm.c"
    return None if shutil.which("cc") else "there is no C compiler, cc"


def compiled(program: str, folder: Path) -> Path:
    """The program, which may include llm.c's sources, as an executable in `folder`; RuntimeError says what cc said."""
    source, binary = folder.resolve() / "judge.c", folder.resolve() / "judge"
    source.write_text(program, encoding="utf-8")
    command = ["cc", "-O2", "-w", "-I", os.environ["LLMC_DIR"], "-o", str(binary), str(source), "-lm"]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        raise RuntimeError(f"cc: {ran.stderr.strip()[-500:]}")
    return binary


def ten_losses(model: GPT, x: Tensor, y: Tensor) -> list[float]:
    """The losses of ten steps of AdamW as test_gpt2.c makes them; the model stays as it is."""
    model, losses = copy.deepcopy(model), []
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01
    )
    for _ in range(10):
        optimizer.zero_grad()
        (loss := F.cross_entropy(model(x)[0].flatten(0, 1), y.flatten())).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def judge(model: GPT, x: Tensor, y: Tensor, folder: Path) -> str:
    """What llm.c's test_gpt2.c prints about a model and a debug state, which `folder` holds under the names WANTED.

    All of the program is as it is but for the ten losses that it expects: they are this model's.
    """
    program = Path(os.environ["LLMC_DIR"], "test_gpt2.c").read_text(encoding="utf-8")
    losses = ", ".join(f"{loss:.9f}f" for loss in ten_losses(model, x, y))
    program, n = re.subn(r"(expected_losses\[10\] = \{)[^}]*", rf"\g<1>{losses}", program)
    if n != 1:
        raise ValueError("test_gpt2.c has no list expected_losses[10]; take llm.c of May 2025")
    return subprocess.run([compiled(program, folder)], cwd=folder, capture_output=True, text=True).stdout


def verdicts(said: str) -> dict[str, float]:
    """The largest difference of LOGITS and of each gradient that passed, from what `judge` returns."""
    found = dict(re.findall(r"^(d\w+)\n(?:.*\n){5}TENSOR OK, maxdiff = (\S+)", said, re.MULTILINE))
    found |= re.findall(r"^OK \((LOGITS)\), max_diff = (\S+)", said, re.MULTILINE)
    return {name: float(diff) for name, diff in found.items()}
