"""Drills on GPUs, for tests marked `gpu`: torchrun starts a process for each of two, which talk by NCCL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
two_gpus = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="needs two CUDA devices"
)


def drilled(names: list[str], data: str, out: Path) -> dict:
    """What the drills have found on two GPUs. A rank waits 60 s for the others, so a deadlock ends in a failure."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "nanogpt", "drill", *names, "--data", data, "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NANOGPT_DEVICE": "cuda"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())
