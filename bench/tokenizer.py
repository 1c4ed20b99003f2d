"""How fast chapter 01's tokenizer is beside its peers, on TinyShakespeare. `python bench/tokenizer.py`

Every ratio compares two programs that ran side by side in this process. `--record` measures compression against
vocabulary size instead, and writes data/measurements/tokenizer.json, which the chapter plots.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
sys.path.insert(0, str(ROOT))
if "TIKTOKEN_CACHE_DIR" not in os.environ and (SHARED / "tiktoken_cache").is_dir():
    os.environ["TIKTOKEN_CACHE_DIR"] = str(SHARED / "tiktoken_cache")

from nanogpt.files import save_json  # noqa: E402
from nanogpt.tokenizer import GPT2_PATTERN, BPETokenizer, count_chunks, learn_merges, replace  # noqa: E402  # noqa: E402

MERGES = 1024 - 257


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--record", action="store_true", help="write data/measurements/tokenizer.json")
    parser.add_argument(
        "--full-recount", action="store_true", help="recount for all merges instead of the first 32"
    )
    args = parser.parse_args()
    text = find_text()
    if text is None:
        print("TinyShakespeare is not here; `course data tinyshakespeare` downloads it", file=sys.stderr)
        return 2
    if args.record:
        record(text)
        return 0
    print(f"TinyShakespeare, {len(text.encode()) / 1e6:.2f} MB; medians; {time.strftime('%Y-%m-%d')}\n")
    bench_training(text, MERGES if args.full_recount else 32)
    print()
    return bench_encoding(text)


def find_text() -> str | None:
    for path in (ROOT / "data/downloads/tinyshakespeare.txt", SHARED / "data/tinyshakespeare.txt"):
        if path.exists():
            return path.read_bytes().decode()
    return None


def seconds(call, repeats: int = 1) -> float:
    """Median wall time of `call`."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def row(name: str, value: str, ratio: str = "", target: str = "") -> None:
    print(f"{name:48} {value:>12} {ratio:>16}  {target}")


def bench_training(text: str, sample: int) -> None:
    """1,024 tokens: ours, a recount, and Hugging Face's trainer in Rust."""
    row("training 1,024 tokens", "seconds", "against ours", "target")
    ours = seconds(lambda: BPETokenizer.train(text, 1024), 5)
    row("ours, pure Python", f"{ours:.2f}", "", f"<= 2.5 s: {verdict(ours <= 2.5)}")

    chunks = count_chunks([text])
    merges = []
    recount = seconds(lambda: merges.extend(recount_merges(chunks, sample)))
    same = merges == learn_merges(chunks, sample)
    # Chunks get shorter as merges are made, so the first merges are the slowest: this is an upper estimate.
    whole = recount * MERGES / sample
    label = "recount" if sample == MERGES else f"recount, first {sample} merges x {MERGES / sample:.1f}"
    row(f"{label} (identical: {same})", f"{whole:.1f}", f"{whole / ours:.1f} x")

    try:
        hf = seconds(lambda: hugging_face(text), 5)
    except ImportError:
        row("Hugging Face tokenizers", "not installed")
    else:
        row("Hugging Face tokenizers, Rust, all cores", f"{hf:.2f}", f"{hf / ours:.2f} x")


def recount_merges(chunks: dict[bytes, int], n: int) -> list[tuple[int, int]]:
    """The definition of BPE: count all pairs anew for each merge."""
    words, times, merges = [list(chunk) for chunk in chunks], list(chunks.values()), []
    for new in range(256, 256 + n):
        counts = Counter()
        for ids, k in zip(words, times):
            for pair in pairwise(ids):
                counts[pair] += k
        merges.append(min(counts, key=lambda p: (-counts[p], p)))
        words = [replace(ids, merges[-1], new) for ids in words]
    return merges


def hugging_face(text: str):
    """The same task: GPT-2's split, byte-level alphabet, 1,023 tokens and one special token."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        text.splitlines(keepends=True),
        trainers.BpeTrainer(
            vocab_size=1024,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return tokenizer


def bench_encoding(text: str) -> int:
    """MB/s of `encode`, cold and warm, beside tiktoken, one thread each."""
    row("encoding", "MB/s", "of tiktoken", "target")
    met = True
    coders = {"1,024 of our own": BPETokenizer.train(text, 1024)}
    try:
        coders["GPT-2's 50,257"] = BPETokenizer.gpt2()
    except OSError as error:
        print(error, file=sys.stderr)
    for name, ours in coders.items():
        met &= bench_coder(name, ours, text)
    print(
        "\nPure Python's limit is one regular expression, one dictionary look-up and one list extension per chunk."
    )
    return 0 if met else 1


def bench_coder(name: str, ours: BPETokenizer, text: str) -> bool:
    """One vocabulary, first pass and warm, alternating with tiktoken, so that a busy machine slows both alike."""
    size, rust = len(text.encode()) / 1e6, ours.to_tiktoken()
    cold = size / seconds(lambda: BPETokenizer(ours.vocab, GPT2_PATTERN).encode(text))
    same = ours.encode(text) == rust.encode_ordinary(text)
    pairs = [
        (seconds(lambda: ours.encode(text)), seconds(lambda: rust.encode_ordinary(text))) for _ in range(9)
    ]
    warm, peer = (size / statistics.median(column) for column in zip(*pairs))
    row(f"{name}, first pass and set-up", f"{cold:.1f}", f"{cold / peer:.2f} x")
    row(
        f"{name}, warm (ids identical: {same})",
        f"{warm:.1f}",
        f"{warm / peer:.2f} x",
        f">= 3 MB/s: {verdict(warm >= 3)}",
    )
    row(f"{name}, tiktoken", f"{peer:.1f}", "1.00 x")
    return same and warm >= 3


def verdict(met: bool) -> str:
    return "met" if met else "MISSED"


def record(text: str) -> None:
    """Compression against vocabulary size: trained on the first nine tenths, measured on the last."""
    cut = len(text) * 9 // 10
    train, test = text[:cut], text[cut:]
    vocab = [bytes([i]) for i in range(256)]
    for left, right in learn_merges(count_chunks([train]), 32_768 - 256):
        vocab.append(vocab[left] + vocab[right])
    sizes = [
        size
        for size in (256, 320, 384, 512, 768, 1024, 2048, 4096, 8192, 16_384, 32_768)
        if size <= len(vocab)
    ]
    measured = {
        "what": "TinyShakespeare: BPE learned on the first 9/10 of its characters, bytes per token on the last 1/10",
        "command": "python bench/tokenizer.py --record",
        "date": time.strftime("%Y-%m-%d"),
        "vocab": sizes,
        "bytes_per_token": [bytes_per_token(BPETokenizer(vocab[:size]), test) for size in sizes],
        "gpt2_bytes_per_token": bytes_per_token(BPETokenizer.gpt2(), test),
    }
    path = ROOT / "data/measurements/tokenizer.json"
    save_json(path, measured)
    print(json.dumps(measured, indent=1))


def bytes_per_token(tokenizer: BPETokenizer, text: str) -> float:
    return round(len(text.encode()) / len(tokenizer.encode(text)), 4)


if __name__ == "__main__":
    sys.exit(main())
