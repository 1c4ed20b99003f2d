"""Chapter 22c's larger set of runs: `python bench/scaling.py` writes data/measurements/scaling.json.

Each width, once a seed, by `laws.losses_after`: held-out losses after 65 thousand to a million tokens, each of a run with a
falling rate; and of width 16 those in the middle of a run, at a constant rate. What is recorded already is not run again, unless --anew. Some ten minutes on an idle core; `--tokens 65536`
tries it out and writes nothing.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from nanogpt.files import save_json  # noqa: E402
from nanogpt.labs.corpora.stories import ensure_corpus  # noqa: E402
from nanogpt.labs.plan import laws  # noqa: E402
from nanogpt.tokenizer import BPETokenizer  # noqa: E402

WIDTHS = (8, 16, 24, 32, 48, 64, 96)
TOKENS = tuple(2**k for k in range(16, 21))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1))
    parser.add_argument("--anew", action="store_true", help="also those runs that are recorded already")
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder, path = ROOT / "data/built/stories", ROOT / "data/measurements/scaling.json"
    ensure_corpus(folder)
    held, floor = laws.held_out(BPETokenizer.load(folder / "tokenizer.json"))
    sizes = {
        name: getattr(laws, name) for name in ("ROWS", "T", "LAYERS", "HEADS", "RATE", "WARMUP", "DECAY")
    }
    record = {"what": "held-out loss, nats per token, by width, tokens and seed", "floor": floor} | sizes
    record |= {
        "command": "python bench/scaling.py",
        "date": time.strftime("%Y-%m-%d"),
        "device": "cpu",
    }
    record |= {"torch": torch.__version__, "constant": [], "runs": []}
    if path.exists() and not args.anew:
        found = json.loads(path.read_text())
        if {name: found[name] for name in (*sizes, "floor")} == sizes | {"floor": floor}:
            record |= {name: found.get(name, []) for name in ("runs", "constant")}
    for seed in args.seeds:
        for width in args.widths:
            if any((run["width"], run["seed"]) == (width, seed) for run in record["runs"]):
                continue
            began = time.perf_counter()
            losses = laws.losses_after(width, args.tokens, folder, held, seed)
            print(f"seed {seed} width {width}: {time.perf_counter() - began:.1f} s", losses, flush=True)
            record["runs"] += [
                {"width": width, "tokens": n, "seed": seed, "loss": loss} for n, loss in losses.items()
            ]
            if tuple(args.tokens) == TOKENS:  # each curve as soon as it is there
                save_json(path, record)
    if not record["constant"]:
        losses = laws.losses_after(16, args.tokens, folder, held, decay=0.0)
        record["constant"] = [{"width": 16, "tokens": n, "seed": 0, "loss": x} for n, x in losses.items()]
        print("constant rate, width 16:", losses)
    if tuple(args.tokens) == TOKENS:
        save_json(path, record)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
