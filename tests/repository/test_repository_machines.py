"""A chapter full of numbers gives the committed outputs on a processor that did not make them."""

import os
import subprocess
import sys

import pytest

from course.paths import NOTEBOOKS, ROOT
from course.testing.run import NBVAL

# A processor without AVX-512 and bf16 instructions, as far as PyTorch's own kernels and oneDNN can be told so.
AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


@pytest.mark.slow
def test_another_processor_prints_the_same():
    """Chapter 10 rounds to bf16, which is where processors differ; with four threads, which is more than those here."""
    env = os.environ | AVX2 | {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}
    env = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
    notebook = next(NOTEBOOKS.glob("10_*.ipynb"))
    words = ["-q", "--color=no", "-p", "no:cacheprovider", str(notebook)]
    command = [sys.executable, "-m", "pytest", *NBVAL, *words]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, encoding="utf-8", errors="replace")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
