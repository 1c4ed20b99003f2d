"""`python -m nanogpt` whose ranks wait for each other for seconds, IMPATIENCE of them, and not for ten minutes."""

import os

from nanogpt import cli, together

group = together.process_group
together.process_group = lambda ranks: group(ranks, seconds=float(os.environ["IMPATIENCE"]))

if __name__ == "__main__":
    raise SystemExit(cli.main())
