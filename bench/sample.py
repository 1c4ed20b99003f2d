"""Milliseconds a token at GPT-2's size, batch 1, greedy: ours, transformers', and no cache, side by side in one run.

    python bench/sample.py [--tokens 64] [--rounds 3] [--threads N] [--device cpu]

All take turns, round by round, with the same random weights in float32 (except where a row says otherwise), the same
prompt and the same number of threads. Each token is timed alone: the median is what a user sees, the fastest tenth what
the machine can do when nothing else runs. The limit: a token needs every weight once, so it cannot take less than bytes
of weights / the rate of reading, measured as a sum (a copy writes as well, and its rate bounds no read).
"""

import argparse
import copy
import os
import tempfile
import time
import warnings
from itertools import pairwise
from statistics import median, quantiles

import torch
from torch import nn

from nanogpt import sampling
from nanogpt.device import synchronize
from nanogpt.labs.formats.hf import to_hf
from nanogpt.labs.kernels.columns import by_columns
from nanogpt.labs.roofline.clock import copy_bandwidth, measure
from nanogpt.model import GPT, GPTConfig

os.environ["HF_HUB_OFFLINE"] = "1"


def hugging_face(model: GPT, device: torch.device):
    """transformers' model with the same weights, through disk."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        to_hf(model, folder)
        return transformers.GPT2LMHeadModel.from_pretrained(folder).to(device).eval()


def stored_by_columns(model: GPT) -> GPT:
    """Weights column by column, the layers nn.Linear as before: as transformers' Conv1D has them."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            layer.weight.data = layer.weight.data.T.contiguous().T
    return model


class Clock:
    """Notes when each token comes; transformers' generate calls it a streamer."""

    def __init__(self, device):
        self.device, self.times, self.ids = device, [], []

    def put(self, value) -> None:
        synchronize(self.device)
        self.times.append(time.perf_counter())
        self.ids.append(int(value.reshape(-1)[-1]))

    def end(self) -> None:
        pass

    def seconds(self) -> list[float]:
        """Of each token but the first, before which the prompt is read."""
        return [b - a for a, b in pairwise(self.times)][1:]


def ours(model: GPT, prompt: list[int], n: int, clock: Clock, **how) -> None:
    clock.put(torch.tensor(prompt))
    for ids in sampling.stream_batch(model, [prompt], n, **({"temperature": 0} | how)):
        clock.put(torch.tensor(ids))


def theirs(model, prompt: list[int], n: int, clock: Clock) -> None:
    idx = torch.tensor([prompt], device=model.device)
    lengths = {"min_new_tokens": n, "max_new_tokens": n, "pad_token_id": 0, "eos_token_id": None}
    model.generate(idx, attention_mask=torch.ones_like(idx), do_sample=False, streamer=clock, **lengths)


@torch.no_grad()
def without_cache(model: GPT, prompt: list[int], n: int, clock: Clock) -> None:
    """Five positions, evenly spaced, each read from the beginning."""
    text = torch.tensor([(prompt * 100)[: len(prompt) + n]], device=clock.device)
    clock.times += [0.0, 0.0]
    for i in range(5):
        start = time.perf_counter()
        model(text[:, : len(prompt) + round(i * (n - 1) / 4)])
        synchronize(clock.device)
        clock.times.append(clock.times[-1] + time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device, n = torch.device(args.device), args.tokens
    model = GPT(GPTConfig(), generator=torch.Generator().manual_seed(0))
    prompt = torch.randint(0, 50257, (16,), generator=torch.Generator().manual_seed(1)).tolist()
    hf, model = hugging_face(model, device), model.to(device)
    shared = by_columns(copy.deepcopy(model))
    half = copy.deepcopy(shared).to(torch.bfloat16)
    rows = {
        "transformers generate": (theirs, hf, {}),
        "ours, as `sample` runs it": (ours, shared, {}),
        "ours, nn.Linear": (ours, model, {}),
        "ours, nn.Linear, by columns": (ours, stored_by_columns(copy.deepcopy(model)), {}),
        "ours, drawing with top-k 50": (ours, shared, {"temperature": 0.8, "top_k": 50}),
        "ours, drawing with top-p 0.9": (ours, shared, {"temperature": 0.8, "top_p": 0.9}),
        "ours, weights in bfloat16": (ours, half, {}),
        "no cache": (without_cache, model, {}),
    }
    times, written = {name: [] for name in rows}, {}
    for _ in range(args.rounds):
        for name, (call, net, how) in rows.items():
            clock = Clock(device)
            call(net, prompt, n, clock, **how)
            times[name] += clock.seconds()
            written[name] = clock.ids[1:]
    same = len({tuple(written[name]) for name in list(rows)[:4]}) == 1
    print(f"torch {torch.__version__}, {args.threads} threads, {device}; same greedy ids: {same}\n")
    peer = times["transformers generate"]
    print(f"{n} tokens after {len(prompt)}, {args.rounds} rounds    median{'':18}fastest tenth")
    for name, ts in times.items():
        pairs = [(how(ts), how(peer)) for how in (median, fastest_tenth)]
        text = (f"{1e3 * t:7.2f} ms/token {p / t:6.2f}×" for t, p in pairs)
        print(f"  {name:29}{'   '.join(text)}")
    limit(model, fastest_tenth(times["ours, as `sample` runs it"]), fastest_tenth(peer), device)


def fastest_tenth(times: list[float]) -> float:
    return quantiles(times, n=10)[0]


def limit(model: GPT, ours: float, theirs: float, device: torch.device) -> None:
    """What the memory allows, from the weights' bytes and the measured rate of reading."""
    used = sum(p.numel() * p.element_size() for p in model.parameters()) - model.transformer.wpe.weight.nbytes
    block = torch.ones(2**22, device=device)  # 16 MiB
    blocks = [block.clone() for _ in range(16)]  # in turns, so that none is in the cache
    read = block.nbytes * 16 / fastest_tenth(measure(lambda: [b.sum() for b in blocks], device, 40).times)
    print(f"\nread {read / 1e9:.1f} GB/s (a copy moves {copy_bandwidth(device, 256) / 1e9:.1f} GB/s)")
    print(
        f"{used / 1e6:.0f} MB of weights take {1e3 * used / read:.2f} ms/token: {read / used:.0f} tok/s at most;"
    )
    print(
        f"ours reaches {100 * used / read / ours:.0f}% of it, transformers {100 * used / read / theirs:.0f}%"
    )


if __name__ == "__main__":
    main()
