"""`python -m nanogpt COMMAND`: each command lives in the module of the chapter that explains it."""

import importlib
import sys

COMMANDS = {
    "prepare": ("nanogpt.prepare", "text, JSONL or parquet -> shards of tokens (chapter 02)"),
    "sample": ("nanogpt.sample", "continue a prompt with a trained model (chapter 08)"),
    "ladder": (
        "nanogpt.ladder",
        "measure every speed-up on this machine, one on top of the other (chapter 14)",
    ),
}


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        return importlib.import_module(COMMANDS[name][0]).main(sys.argv[2:])
    usage = ["usage: python -m nanogpt COMMAND [--help]", ""]
    usage += [f"  {command:10} {what}" for command, (_, what) in COMMANDS.items()]
    if name in ("-h", "--help"):
        print("\n".join(usage))
        return 0
    print(f"nanogpt: no command {name!r}\n" + "\n".join(usage), file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
