"""Tokens per second at GPT-2's size, batch 1, greedy: ours, transformers', and no cache, side by side in one run.

    python tests/bench_sample.py [--tokens 128] [--rounds 5] [--threads N] [--device cpu]

All take turns, round by round, with the same random weights in float32 (except where a row says otherwise), the same
prompt and the same number of threads; medians over the rounds. The limit: a token needs every weight once, so it
cannot take less than bytes of weights / bandwidth, whoever computes it.
"""

import argparse
import copy
import os
import tempfile
import time
import warnings
from statistics import median

import torch

from nanogpt import cache, sample
from nanogpt.device import copy_bandwidth, synchronize, timings
from nanogpt.model import GPT, GPTConfig
from nanogpt.pretrained import to_hf

os.environ["HF_HUB_OFFLINE"] = "1"


def seconds(call, device) -> float:
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def hugging_face(model: GPT, device: torch.device):
    """transformers' model with the same weights, through disk."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.filterwarnings("ignore")
    with tempfile.TemporaryDirectory() as folder:
        to_hf(model, folder)
        return transformers.GPT2LMHeadModel.from_pretrained(folder).to(device).eval()


def ours(model: GPT, prompt: list[int], n: int, plain: bool = False, **how) -> list[int]:
    """Our ids; plain: with nn.Linear's own product of one row, instead of cache.linear's."""
    kept = cache.linear
    try:
        if plain:
            cache.linear = lambda x, layer: layer(x)
        return sample.generate(model, prompt, n, **({"temperature": 0} | how))
    finally:
        cache.linear = kept


def theirs(model, prompt: list[int], n: int) -> list[int]:
    idx = torch.tensor([prompt], device=model.device)
    options = {
        "do_sample": False,
        "min_new_tokens": n,
        "max_new_tokens": n,
        "pad_token_id": 0,
        "eos_token_id": None,
    }
    return model.generate(idx, attention_mask=torch.ones_like(idx), **options)[0, len(prompt) :].tolist()


def without_cache(model: GPT, prompt: list[int], n: int, device: torch.device) -> float:
    """Seconds for n tokens if each reads everything again: five positions measured, a straight line through them."""
    text, sums = (prompt * 100)[: len(prompt) + n], []
    for i in range(5):
        read = text[: len(prompt) + round(i * (n - 1) / 4)]
        kept = cache.KVCache.empty(model, 1, len(read))
        sums.append(seconds(lambda kept=kept, read=read: cache.prefill(model, kept, [read]), device))
    return n * sum(sums) / 5  # positions are evenly spaced, so the line's mean is theirs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device, n = torch.device(args.device), args.tokens
    model = GPT(GPTConfig(), generator=torch.Generator().manual_seed(0))
    prompt = torch.randint(0, 50257, (16,), generator=torch.Generator().manual_seed(1)).tolist()
    hf, model = hugging_face(model, device), model.to(device)
    start = time.perf_counter()
    columns = cache.by_columns(copy.deepcopy(model))
    layout = time.perf_counter() - start
    half = copy.deepcopy(columns).to(torch.bfloat16)
    print(f"torch {torch.__version__}, {args.threads} threads, {device}; same greedy ids:", end=" ")
    print(ours(columns, prompt, 16) == ours(model, prompt, 16) == theirs(hf, prompt, 16))  # and a warm-up
    print(f"by_columns, once per model and not in the times below: {layout:.2f} s")
    rows = {
        "transformers generate": lambda: theirs(hf, prompt, n),
        "ours": lambda: ours(columns, prompt, n),
        "ours, without by_columns": lambda: ours(model, prompt, n),
        "ours, nn.Linear's product": lambda: ours(model, prompt, n, plain=True),
        "ours, drawing with top-k 50": lambda: ours(columns, prompt, n, temperature=0.8, top_k=50),
        "ours, drawing with top-p 0.9": lambda: ours(columns, prompt, n, temperature=0.8, top_p=0.9),
        "ours, weights in bfloat16": lambda: ours(half, prompt, n),
    }
    times = {name: [] for name in ("no cache", *rows)}
    for _ in range(args.rounds):
        times["no cache"].append(without_cache(model, prompt, n, device))
        for name, call in rows.items():
            times[name].append(seconds(call, device))
    peer = times["transformers generate"]
    print(f"\n{n} tokens after {len(prompt)}, {args.rounds} rounds{'':15}median{'':22}fastest round")
    for name, ts in times.items():
        columns = [(how(ts), how(peer)) for how in (median, min)]
        text = (f"{1e3 * t / n:7.1f} ms/token {n / t:6.1f} tok/s {p / t:5.2f}x" for t, p in columns)
        print(f"  {name:29}{'   '.join(text)}")
    limit(model, n, times["ours"], device)


def limit(model: GPT, n: int, times: list[float], device: torch.device) -> None:
    """What the memory allows, from the weights' bytes and the measured bandwidth."""
    used = sum(p.numel() * p.element_size() for p in model.parameters()) - model.transformer.wpe.weight.nbytes
    block = torch.ones(2**26, device=device)  # 256 MiB
    bandwidth = {
        "copy": copy_bandwidth(device, 256),
        "read": block.nbytes / min(timings(lambda: block.sum(), device)),
    }
    for name, b in bandwidth.items():
        print(
            f"\n{name} {b / 1e9:.1f} GB/s: {used / 1e6:.0f} MB of weights take {1e3 * used / b:.1f} ms/token",
            end="",
        )
        print(
            f" ({b / used:.0f} tok/s at most); ours reaches {100 * used / b * n / median(times):.0f}%", end=""
        )
    print()


if __name__ == "__main__":
    main()
