"""Several files and folders replaced at once, by renames, or none of them."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Swap:
    """What stands at `path` goes to `old`, and `new`, if there is one, takes its place. All are on one disk."""

    path: Path
    new: Path | None
    old: Path


def swap_all(swaps: list[Swap]) -> None:
    """Make all of them. Whatever stops it, Ctrl-C too, everything is put back where it was."""
    begun: list[Swap] = []
    try:
        for each in swaps:
            begun.append(each)
            each.old.parent.mkdir(parents=True, exist_ok=True)
            if each.path.exists():
                os.replace(each.path, each.old)
            if each.new:
                os.replace(each.new, each.path)
    except BaseException:
        for each in reversed(begun):
            put_back(each)
        raise


def put_back(each: Swap) -> None:
    """Undo as much of a swap as was done: what is where says how far it came."""
    if each.new and not each.new.exists() and each.path.exists():
        os.replace(each.path, each.new)
    if each.old.exists() and not each.path.exists():
        os.replace(each.old, each.path)
