"""What the course has produced so far, read from the files below data/built/."""

import json

from course.paths import BUILT, RUNS, notebook_path, relative


def summary(chosen: list[str], seconds: dict[str, float]) -> list[str]:
    """The lines that end `course run`."""
    lines = [
        "",
        f"{len(chosen)} chapter{'s' * (len(chosen) != 1)} in {sum(seconds.values()):.0f} s. What you have now:",
        "",
    ]
    for what in (tokenizer_line, shards_line, model_lines):
        lines += what()
    lines += [
        "",
        f"The executed notebooks are in {relative(RUNS)}/, e.g. {relative(RUNS / notebook_path(chosen[0]).name)}.",
    ]
    lines += ["`make lab` opens the course at chapter 00."]
    return lines


def read(name: str) -> dict | None:
    path = BUILT / name
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def tokenizer_line() -> list[str]:
    if read("tokenizer.json") is None:
        return []
    from nanogpt.tokenizer import BPETokenizer

    size = BPETokenizer.load(BUILT / "tokenizer.json").vocab_size
    return [f"  tokenizer   {size:,} tokens                     data/built/tokenizer.json"]


def shards_line() -> list[str]:
    manifest = read("stories/manifest.json")
    if manifest is None:
        return []
    tokens = sum(split["tokens"] for split in manifest["splits"].values())
    return [
        f"  shards      {tokens / 1e6:.1f} M tokens                      data/built/stories/",
        f"  the floor   {manifest['floor']:.3f} nats a token: no model of this corpus can do better",
    ]


def model_lines() -> list[str]:
    return []
