"""`python -m nanogpt COMMAND`: one runner, and the same exit codes for all commands.

Exported from notebooks/17d_assembly.ipynb.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

COMMANDS = {
    "prepare": ("nanogpt.labs.corpora.prepare", "text, JSONL, CSV or parquet -> shards (chapter 16b)"),
    "plot": ("nanogpt.labs.long_run.plot", "loss, norm, rate and throughput of several runs (chapter 17d)"),
    "compare": ("nanogpt.labs.long_run.compare", "where two runs part, and by how much (chapter 17f)"),
    "train": ("nanogpt.trainer", "a run from a YAML file, started or gone on with (chapter 17e)"),
    "sample": ("nanogpt.sampling", "continue a prompt with a trained model (chapter 08)"),
    "ladder": (
        "nanogpt.labs.ladder.ladder",
        "every speed-up on this machine, one on the other (chapter 14b)",
    ),
    "plan": ("nanogpt.labs.plan.plan", "memory, messages, time and cost of a run by formula (chapter 22a)"),
    "eval": ("nanogpt.labs.evals.command", "how good a checkpoint is, by several measures (chapter 18b)"),
    "drill": ("nanogpt.labs.drills.ddp", "what several processes do together, under torchrun (chapter 20)"),
    "flight": ("nanogpt.labs.drills.flight", "what each rank of a deadlock waits for (chapter 20b)"),
}
USAGE = """usage: python -m nanogpt COMMAND [options]
{commands}

  python -m nanogpt COMMAND --help    options and examples of a command
Exit codes: 0 all went well, 1 the answer is no, 2 something is wrong (one line says what), 130 or 143 stopped (Ctrl-C)."""


def in_one_line(error: BaseException) -> str:
    """What went wrong, without line breaks. What is missing is named with what brings it."""
    text = str(error) or {MemoryError: "out of memory"}.get(type(error), type(error).__name__)
    if isinstance(error, OSError) and error.strerror and error.filename:
        text = f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        package, _, module = error.name.partition(".")
        text = f"needs {package}: pip install {'pyyaml' if package == 'yaml' else package}"
        if package == "nanogpt":
            made, chapters = f"#| doc {module}:", Path(__file__).parent.parent.glob("notebooks/*.ipynb")
            owner = [c.stem.partition("_")[0] for c in chapters if made in c.read_text(encoding="utf-8")]
            remedy = f"`course restore {owner[0]}` brings it back" if owner else "copy it here again"
            text = f"nanogpt/{module.replace('.', '/')}.py is missing; {remedy}"
    return " ".join(text.split())


def reader_has_gone(text: str = "") -> bool:
    """Write out `text` and all before it; true if nobody reads stdout any more, as `head` when it has enough."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        # What follows goes nowhere: Python's own flush at exit must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def outcome(name: str, call: Callable[[], object]) -> int:
    """Call it; 0, the code of its SystemExit, or 2 or 130 after one line on stderr.

    A command that leaves something behind when it is stopped raises KeyboardInterrupt with a sentence that says what.
    """
    try:
        call()
    except (ValueError, OSError, RuntimeError, MemoryError, FloatingPointError, ImportError) as error:
        if isinstance(error, BrokenPipeError) and reader_has_gone("\n"):
            return 0
        print(f"{name}: {in_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"\n{name}: stopped; {stop if stop.args else 'no file was written'}", file=sys.stderr)
        return 130
    except SystemExit as end:  # --help, or a code of the command's own
        return end.code or 0
    return 0


def at_home(word: str) -> str:
    """A word of a command, with the home folder for a ~: in --out=~/x and run.dir=~/x no shell puts it in."""
    key, equals, value = word.rpartition("=")
    return word if "prompt" in key else key + equals + os.path.expanduser(value)


def run_command(name: str, argv: list[str]) -> int:
    """`python -m nanogpt name *argv`, called from Python; the exit code."""

    def refuse(message: str):
        raise ValueError(f"{message} (python -m nanogpt {name} --help)")

    def call():
        module = importlib.import_module(COMMANDS[name][0])
        if not hasattr(module, "parser"):  # chapter 17 begins the trainer, and 17e writes its command
            raise ValueError(f"not written yet: {COMMANDS[name][1]}")
        parser = module.parser()
        parser.prog, parser.error = f"python -m nanogpt {name}", refuse
        words = [word if before == "--prompt" else at_home(word) for before, word in zip(["", *argv], argv)]
        module.run(parser.parse_args(words))

    return outcome(name, call)


def main(argv: list[str] | None = None) -> int:
    """`python -m nanogpt`: pick the command, run it, give its exit code."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # not every terminal can show every character
    if name in COMMANDS:
        code = run_command(name, rest)
    elif name in ("-h", "--help"):
        lines = [f"  {name:10} {what}" for name, (_, what) in COMMANDS.items()]
        code = outcome("nanogpt", lambda: print(USAGE.format(commands="\n".join(lines))))
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1) or ["--help"]
        print(f"nanogpt: no command {name!r}; try python -m nanogpt {near[0]}", file=sys.stderr)
        code = 2
    reader_has_gone()
    return code
