"""What all commands of `course` share: one line for an error, one meaning for each exit code, help with examples.

`python -m nanogpt` answers in the same way, by nanogpt/cli.py. That file is chapter 17d's, and a package that has just been
started does not have it yet: so the rules are here a second time, and a test holds the two against each other.
"""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable

from course.paths import CourseError, plainly

CODES = "Exit codes: 0 all went well, 1 a check says no, 2 something is wrong (one line says what), 130 stopped by Ctrl-C."


class Parser(argparse.ArgumentParser):
    """argparse, whose complaint is one sentence. Without a subcommand, a parser that has some prints its help."""

    def __init__(self, *args, **options):
        super().__init__(*args, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str):
        missing = re.search(r"the following arguments are required: (.+)", message)
        if missing:
            example = (self.epilog or "").removeprefix("Example: ").partition("    or ")[0]
            message = f"{missing[1]} is missing" + (f", as in `{example}`" if example else "")
        unknown = re.search(r"argument COMMAND: invalid choice: '([^']*)' \(choose from (.+)\)", message)
        if unknown:
            near = difflib.get_close_matches(unknown[1], re.findall(r"[a-z]+", unknown[2]), n=1) or ["--help"]
            raise CourseError(f"no command {unknown[1]!r}; try {self.prog} {near[0]}")
        raise CourseError(f"{message} ({self.prog} --help)")

    def commands(self):
        """Where subcommands are added to this parser."""
        self.set_defaults(call=lambda _: self.print_help())
        return self.add_subparsers(metavar="COMMAND", title="commands")


def outcome(name: str, call: Callable[[], int | None]) -> int:
    """Call it; its exit code, or 2 or 130 after one line on stderr."""
    try:
        return call() or 0
    except BrokenPipeError:  # `course progress | head`, which has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CourseError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder that cannot be written
        print(f"{name}: {plainly(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        said = stopped.args[0] if stopped.args else "nothing is half-written"
        print(f"\n{name}: stopped; {said}", file=sys.stderr)
        return 130
    except SystemExit as end:  # --help
        return end.code if isinstance(end.code, int) else 0
