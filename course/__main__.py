"""`python -m course COMMAND`: cli.py runs it."""

from course.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
