"""GPT-2 in PyTorch, as built by the course's notebooks: one module a chapter."""

import os

os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # before PyTorch: threads that wait sleep, as course/__init__.py says
