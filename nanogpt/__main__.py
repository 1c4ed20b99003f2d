"""`python -m nanogpt COMMAND`: cli.py runs it."""

from nanogpt.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
