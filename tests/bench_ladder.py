"""The ladder's top rung beside transformers' GPT-2 in one process, one step of each in turn.

    python tests/bench_ladder.py [--batch 4] [--seq 64] [--rounds 10] [--threads 2]

Every program does forward, backward and AdamW on GPT-2 124M with random weights and no dropout. The turns make a
slow minute hit all of them; the ratio is the median of the rounds' ratios. The last line says how far the top rung
is from the least time that the machine's measured peaks allow.
"""

import argparse
import os
from itertools import cycle
from statistics import median
from time import perf_counter

import torch

from nanogpt.bench import step_flops
from nanogpt.device import pick_device, synchronize
from nanogpt.ladder import make_step, measure_roofline, obstacles, predict, rungs_up_to, zipf_batches
from nanogpt.model import GPTConfig


def transformers_step(B, T, device, bf16):
    """One training step of GPT2LMHeadModel with torch.optim.AdamW as it comes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
    model = GPT2LMHeadModel(config).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    batches = zipf_batches(config.vocab_size, B, T)

    def step():
        x = next(batches)[0].to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = model(input_ids=x, labels=x).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in [("--batch", 4), ("--seq", 64), ("--rounds", 10)]:
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device, B, T = pick_device(), args.batch, args.seq
    roof = measure_roofline(device)
    skipped = obstacles(device, roof)
    for name, reason in skipped.items():
        print(f"without {name}: {reason}")
    ladder = {
        "ours, top rung": "bf16 weights",
        "ours, autocast + compile + flash + 50304": "nice numbers",
        "ours, first rung": "float32",
    }
    if {"bf16", "compile"} & set(skipped):
        ladder["ours, top rung"] = "fused AdamW"
    steps = {
        label: make_step(GPTConfig(), rungs_up_to(name, skipped), B, T, device)
        for label, name in ladder.items()
    }
    steps |= {
        f"transformers, {name}": transformers_step(B, T, device, name == "bf16")
        for name in ("float32", "bf16")
    }
    for step in steps.values():
        for _ in range(2):
            step()
    synchronize(device)
    times = {label: [] for label in steps}
    for _, (label, step) in zip(range(args.rounds * len(steps)), cycle(steps.items())):
        times[label].append(one(step, device))
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    print(f"GPT-2 124M, B={B}, T={T}, {device}, {args.threads} threads, load {load}")
    ours = times["ours, top rung"]
    for label, seconds in times.items():
        ratio = median(other / own for other, own in zip(seconds, ours))
        print(
            f"{label:42} {1e3 * median(seconds):8.1f} ms   fastest {1e3 * min(seconds):8.1f} ms   {ratio:.2f}×"
        )
    on = rungs_up_to(ladder["ours, top rung"], skipped)
    parts = predict(GPTConfig(), on, B, T, roof)
    peak = roof.flops["bfloat16" if "bf16" in on else "float32"]
    print(
        f"limit: {step_flops(GPTConfig(), B, T) / 1e9:.0f} GFLOP at {peak / 1e9:.0f} GFLOP/s and the bytes at "
        f"{roof.bandwidth / 1e9:.1f} GB/s: {1e3 * sum(parts.values()):.0f} ms; the top rung takes "
        f"{median(ours) / sum(parts.values()):.2f}× that"
    )


def one(step, device) -> float:
    """Seconds of one call."""
    synchronize(device)
    start = perf_counter()
    step()
    synchronize(device)
    return perf_counter() - start


if __name__ == "__main__":
    main()
