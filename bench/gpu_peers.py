"""A training step of GPT-2 124M by several programs on one GPU: ours beside transformers, nanoGPT, build-nanogpt and llm.c.

    python bench/gpu_peers.py                    ours and transformers', at B=16 and B=64
    python bench/gpu_peers.py --nanogpt CLONE --build-nanogpt CLONE --llmc CLONE/train_gpt2cu --json peers.json

Each program is a process of its own; they take turns, twice. The milliseconds are the median of 20 steps, each waited for, after
5 that are not counted. CLONE is a clone of the program's repository: its own model and its own optimizer run here, on random
tokens, in 16-bit autocast with torch.compile. llm.c (built with USE_CUDNN=1, in a folder with its TinyShakespeare) counts by
its own clock, and says the average.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
WARMUP, ROUNDS = 5, 2
MS = re.compile(r"total average iteration time: ([\d.]+) ms")


def programs(half: str, clones: dict[str, Path] | None = None) -> list[str]:
    """Their labels: ours and transformers', each also with the 16 bits that the device has (bf16 or fp16), and the clones'."""
    theirs = ("float32", f"{half} autocast", f"{half}, fused AdamW", f"{half}, fused AdamW, compiled")
    return [
        "ours, first rung",
        "ours, top rung",
        *(f"transformers, {how}" for how in theirs),
        *(clones or {}),
    ]


def measured(label: str, B: int, T: int, steps: int, half: str, clones: dict[str, Path]) -> float:
    """Milliseconds of one program's step, in a process of its own. RuntimeError with the last line that it said."""
    if label == "llm.c":
        words = f"-b {B} -t {T} -x {steps + WARMUP} -e d12 -r 0 -z 0 -v 0 -s 0 -h 0".split()
        command, folder = [str(clones[label]), *words], clones[label].parent
    else:
        words = ["--only", label, "--batch", str(B), "--seq", str(T), "--steps", str(steps), "--half", half]
        command, folder = [sys.executable, __file__, *words], ROOT
        for name, clone in clones.items():
            command += [f"--{name.lower()}", str(clone)] if name != "llm.c" else []
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found = MS.search(done.stdout)
    if done.returncode or not found:
        raise RuntimeError(((done.stderr or done.stdout).strip().splitlines() or ["no message"])[-1][:200])
    return float(found[1])


def make_peer(label: str, B: int, T: int, device, half: str, clones: dict[str, Path]):
    """A function that makes one step and returns its loss."""
    import torch
    from ladder import transformers_step

    from nanogpt.labs.ladder.rungs import RUNGS, make_step, obstacles, rungs_up_to
    from nanogpt.labs.roofline.clock import measure_roofline
    from nanogpt.model import GPTConfig

    if label.startswith("ours"):
        skipped = obstacles(device, measure_roofline(device))
        name = next(iter(RUNGS)) if "first" in label else [one for one in RUNGS if one not in skipped][-1]
        return make_step(GPTConfig(), rungs_up_to(name, skipped), B, T, device)[1]
    if label.startswith("transformers"):
        torch.set_float32_matmul_precision("highest")
        return transformers_step(B, T, device, label)
    torch.set_float32_matmul_precision("high")  # as both programs do
    return step_of_clone(label, clones[label], B, T, device, half)


def step_of_clone(label: str, clone: Path, B: int, T: int, device, half: str):
    """nanoGPT's or build-nanogpt's own GPT and optimizer, compiled, under autocast: what their training loops do in a step."""
    import torch

    from nanogpt.labs.ladder.rungs import zipf_batches

    theirs = classes_of(clone / ("model.py" if label == "nanoGPT" else "train_gpt2.py"))
    config = theirs["GPTConfig"](vocab_size=50304)  # both train with this many rows
    model = theirs["GPT"](config).to(device)
    betas = {"betas": (0.9, 0.95)} if label == "nanoGPT" else {}
    optimizer = model.configure_optimizers(
        weight_decay=0.1, learning_rate=3e-4, device_type=device.type, **betas
    )
    compiled = torch.compile(model)
    batches = zipf_batches(50257, B, T)

    def step():
        x, y = (ids.to(device) for ids in next(batches))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.float16 if half == "fp16" else torch.bfloat16):
            _, loss = compiled(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def classes_of(path: Path) -> dict:
    """The names of a program's model: its text up to the first function or command of the training, which must not run here."""
    text = path.read_text(encoding="utf-8").replace("from hellaswag import", "# from hellaswag import")
    model = text.split("\nimport tiktoken")[0]
    namespace = {"__name__": "peer", "master_process": False}
    sys.modules["peer"] = type(sys)("peer")  # dataclasses look their module up
    exec(compile(model, str(path), "exec"), namespace)
    return namespace


def run_peer(label: str, B: int, T: int, steps: int, half: str, clones: dict[str, Path]) -> None:
    """One program's steps, in this process; prints the median as llm.c prints its average."""
    from nanogpt.device import pick_device

    step, seconds = make_peer(label, B, T, pick_device(), half, clones), []
    for _ in range(WARMUP + steps):
        start = time.perf_counter()
        step().item()
        seconds.append(time.perf_counter() - start)
    print(f"total average iteration time: {1e3 * median(seconds[WARMUP:]):.3f} ms")


def compare(labels: list[str], sizes: list[tuple[int, int, int]], half: str, clones: dict[str, Path]) -> dict:
    """{B: {program: [ms, ms]}}; a program that fails has its error's last line instead. Prints each as it comes."""
    results: dict = {B: {} for B, _, _ in sizes}
    for B, T, steps in sizes:
        for _ in range(ROUNDS):
            for label in labels:
                if isinstance(results[B].get(label), str):
                    continue
                try:
                    ms = measured(label, B, T, steps, half, clones)
                except (RuntimeError, OSError) as error:
                    results[B][label] = str(error)
                    print(f"B={B}  {label}: FAILED: {error}", flush=True)
                    continue
                results[B].setdefault(label, []).append(ms)
                print(f"B={B}  {label}: {ms:.2f} ms", flush=True)
    return results


def table(results: dict, T: int) -> str:
    """Milliseconds, tokens a second and the time as a multiple of ours, a line a program."""
    lines = ["B | program | ms | tokens/s | × ours", "---: | --- | ---: | ---: | ---:"]
    for B, found in results.items():
        ours = found.get("ours, top rung")
        for label, ms in found.items():
            if isinstance(ms, str):
                lines.append(f"{B} | {label} | {ms} | |")
                continue
            ratio = f"{median(ms) / median(ours):.3f}" if isinstance(ours, list) else ""
            lines.append(f"{B} | {label} | {median(ms):.2f} | {1e3 * B * T / median(ms):,.0f} | {ratio}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nanogpt", type=Path, metavar="CLONE", help="a clone of karpathy/nanoGPT")
    parser.add_argument(
        "--build-nanogpt", type=Path, metavar="CLONE", help="a clone of karpathy/build-nanogpt"
    )
    parser.add_argument("--llmc", type=Path, metavar="PROGRAM", help="llm.c's compiled train_gpt2cu")
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--half", default="bf16", choices=["bf16", "fp16"])
    parser.add_argument(
        "--only", nargs="+", metavar="LABEL", help="these programs; one alone runs in this process"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the milliseconds there, too")
    args = parser.parse_args()
    clones = {"nanoGPT": args.nanogpt, "build-nanogpt": args.build_nanogpt, "llm.c": args.llmc}
    clones = {name: path.resolve() for name, path in clones.items() if path}
    labels = args.only or programs(args.half, clones)
    if unknown := [label for label in labels if label not in programs(args.half, clones)]:
        parser.error(f"no program {unknown[0]!r} here; there are: {'; '.join(programs(args.half, clones))}")
    if args.only and len(labels) == len(args.batch) == 1:
        return run_peer(labels[0], args.batch[0], args.seq, args.steps, args.half, clones)
    results = compare(labels, [(B, args.seq, args.steps) for B in args.batch], args.half, clones)
    print("", table(results, args.seq), sep="\n")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
