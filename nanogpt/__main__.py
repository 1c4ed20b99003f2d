"""`python -m nanogpt COMMAND`: cli.py runs it."""

import os

# GNU's OpenMP reads this once, when PyTorch is loaded: threads that wait for each other sleep instead of spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from nanogpt.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
