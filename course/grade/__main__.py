"""The program that `course grade run` becomes: it imports what is graded with, forks the template off, and grades.

One import serves both, and the template is forked before anything of the command is read.
"""

import json
import os
import sys

OPTIONS = json.loads(sys.argv[1])
sys.path[:0] = OPTIONS["path"]


def grade(options: dict) -> int:
    from course.grade.sandbox import template

    socket, pid = template.forked(options)
    return command(socket, pid, options["job"])


def command(socket, pid: int, job: int) -> int:
    """The command, in the process that the template was forked from."""
    with open(job) as file:
        told = json.load(file)
    os.environ.clear()
    os.environ.update(told["environment"])
    from course.cli import main
    from course.grade.sandbox.warm import Template

    return main(told["argv"], template=Template(socket, pid))


if __name__ == "__main__":
    try:
        raise SystemExit(grade(OPTIONS))
    except KeyboardInterrupt:  # while it imports
        raise SystemExit(130) from None
