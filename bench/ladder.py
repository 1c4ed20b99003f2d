"""The ladder's first and top rung beside transformers' GPT-2, one step of each in turn.

    python bench/ladder.py [--batch 4] [--seq 64] [--rounds 12]
    python bench/ladder.py --curve 200       losses of the first and the top rung, step by step

Every program does forward, backward and AdamW on GPT-2 124M with random weights and no dropout, each in a process of its
own. They take turns, so that a slow minute hits all of them; a ratio is the median of the rounds' ratios, with its interval
(chapter 09). The last line
says how far the top rung is from the least time that the machine's measured peaks allow.
"""

import argparse
import os
import subprocess
import sys
from statistics import fmean, median
from time import perf_counter

import torch

from nanogpt.device import pick_device
from nanogpt.labs.ladder.climb import in_turns
from nanogpt.labs.ladder.forecast import predict
from nanogpt.labs.ladder.rungs import keep_memory, make_step, obstacles, rungs_up_to, zipf_batches
from nanogpt.labs.roofline.clock import gain_of, measure_roofline
from nanogpt.model import GPTConfig, step_flops

PROGRAMS = {  # label: does it keep its memory?
    "ours, top rung": True,
    "ours, first rung": False,
    "transformers, float32": False,
    "transformers, bf16 autocast": False,
    "transformers, bf16, fused AdamW, kept memory": True,
}


def transformers_step(B, T, device, label):
    """One training step of GPT2LMHeadModel with torch.optim.AdamW."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
    model = GPT2LMHeadModel(config).to(device).train()
    model.loss_type = "ForCausalLM"  # transformers warns where nobody says so
    fused = True if "fused" in label else None  # None: PyTorch's default for the device
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, (0.9, 0.95), weight_decay=0.1, fused=fused)
    call = torch.compile(model) if "compiled" in label else model
    batches = zipf_batches(config.vocab_size, B, T)
    half = torch.float16 if "fp16" in label else torch.bfloat16
    scaler = torch.amp.GradScaler(
        device.type, enabled="fp16" in label
    )  # does nothing where it is not enabled

    def step():
        x = next(batches)[0].to(device)
        with torch.autocast(device.type, half, enabled="float32" not in label):
            loss = call(input_ids=x, labels=x).loss
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def work(label: str, B: int, T: int, skipped: list[str]) -> None:
    """Take a step for every line on stdin; print its seconds and its loss."""
    device = pick_device()
    if PROGRAMS[label] and "kept memory" not in skipped:
        keep_memory()
    if label.startswith("ours"):
        on = rungs_up_to("float32") if "first" in label else rungs_up_to("bf16 weights", skipped)
        _, step = make_step(GPTConfig(), on, B, T, device)
    else:
        step = transformers_step(B, T, device, label)
    for _ in sys.stdin:
        start = perf_counter()
        loss = step().item()
        print(perf_counter() - start, loss, flush=True)


class Program:
    """A process that takes one step at a time."""

    def __init__(self, label: str, args: argparse.Namespace, skipped: list[str]):
        common = [sys.executable, __file__, "--batch", str(args.batch), "--seq", str(args.seq)]
        self.process = subprocess.Popen(
            [*common, "--work", label, "--skip", *skipped],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def step(self) -> tuple[float, float]:
        """(seconds, loss) of one step."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, loss = self.process.stdout.readline().split()
        return float(seconds), float(loss)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def compare(args: argparse.Namespace, device: torch.device, roof, skipped: list[str]) -> None:
    """Steps in turn, a table of medians and ratios, and the limit."""
    B, T = args.batch, args.seq
    programs = {label: Program(label, args, skipped) for label in PROGRAMS}
    for program in programs.values():
        for _ in range(4):
            program.step()
    calls = [lambda program=program: program.step()[0] for program in programs.values()]
    times = dict(zip(programs, in_turns(calls, args.rounds)))
    for program in programs.values():
        program.close()
    ours = times["ours, top rung"]
    for label, seconds in times.items():
        gain = gain_of([other / own for other, own in zip(seconds, ours)])
        print(f"{label:45} {1e3 * median(seconds):7.0f} ms   min {1e3 * min(seconds):7.0f} ms   {gain}")
    on = rungs_up_to("bf16 weights", skipped)
    limit = sum(predict(GPTConfig(), on, B, T, roof).values())
    peak = roof.flops["bfloat16" if "bf16" in on else "float32"]
    print(
        f"limit: {step_flops(GPTConfig(), B, T) / 1e9:.0f} GFLOP at {peak / 1e9:.0f} GFLOP/s and the bytes at "
        f"{roof.bandwidth / 1e9:.0f} GB/s: {1e3 * limit:.0f} ms; the top rung takes {median(ours) / limit:.2f}× that"
    )


def curve(args: argparse.Namespace, skipped: list[str]) -> None:
    """Losses of both ends of the ladder on the same data."""
    first, top = (Program(f"ours, {end} rung", args, skipped) for end in ("first", "top"))
    losses = [(first.step()[1], top.step()[1]) for _ in range(args.curve)]
    apart = [b - a for a, b in losses]
    for n in sorted({1, *range(args.curve // 10, args.curve, args.curve // 10), args.curve}):
        a, b = losses[n - 1]
        print(f"step {n:4}   first rung {a:.4f}   top rung {b:.4f}   {b - a:+.4f}")
    print(
        f"largest difference {max(map(abs, apart)):.4f}, mean of the last quarter {fmean(apart[-len(apart) // 4 :]):+.4f}"
    )
    first.close(), top.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in [("--batch", 4), ("--seq", 64), ("--rounds", 12), ("--curve", 0)]:
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--work", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--skip", nargs="*", default=[], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        return work(args.work, args.batch, args.seq, args.skip)
    device = pick_device()
    roof = measure_roofline(device)
    skipped = obstacles(device, roof)
    for name, reason in skipped.items():
        print(f"without {name}: {reason}")
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    print(f"GPT-2 124M, B={args.batch}, T={args.seq}, {device}, load {load}")
    if args.curve:
        curve(args, list(skipped))
    else:
        compare(args, device, roof, list(skipped))


if __name__ == "__main__":
    main()
