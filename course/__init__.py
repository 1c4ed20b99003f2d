"""The machinery around the notebooks: build, checkpoint, run, doctor. Students never edit it."""

import os

# GNU's OpenMP (libgomp) reads this once, when PyTorch is loaded. Unset, threads that wait for each other spin: beside
# other programs a training step then takes up to twenty times as long. Kernels and all other processes inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
