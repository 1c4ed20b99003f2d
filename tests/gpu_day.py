"""All that only a GPU can show, in one command: its tests, the notebooks of part III, the ladder, peers, loss curves.

    python tests/gpu_day.py --out gpu-day                    every step that is not done yet
    python tests/gpu_day.py --out gpu-day --minutes 9        as many as fit into nine minutes; the same command goes on
    python tests/gpu_day.py --out gpu-day --only ladder 12   these steps, again

Runs from a bare checkout with torch and numpy; what else a step needs (pytest, transformers, nbclient) it says when it is
missing. Each step is a process of its own with a limit of eight minutes, and writes gpu-day/NAME.json when it is done:
that file makes the command resumable. At the end stands a table, also for steps of earlier calls.
"""

import argparse
import base64
import contextlib
import io
import json
import os
import re
import statistics
import subprocess
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
LIMIT = 480  # seconds a step
NOTEBOOKS = ("09", "10", "11", "12b", "13", "14")
CURVES = ("float32", "tf32", "bf16", "fp16")
PEERS = ("transformers, float32", "transformers, bf16 autocast", "transformers, bf16, fused AdamW")
STEPS = ("machine", "tests", "ladder", "peers", "curves", *NOTEBOOKS)


class Missing(Exception):
    """What a step needs and this machine does not have: the step is left out, and the table says why."""


# One function a step; each returns what its JSON file holds, with a line for the table under "summary".


def machine(out: Path, smoke: bool) -> dict:
    """The device, its driver, and its measured roofline beside the data sheet's peaks."""
    import torch

    from nanogpt.device import pick_device
    from nanogpt.speed.ladder import measure_machine
    from nanogpt.speed.roofline import peak_of

    device = pick_device()
    about = measure_machine(str(device))
    sheet = peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    flops, bandwidth = about["roofline"]["flops"], about["roofline"]["bandwidth"]
    rates = ", ".join(f"{name} {rate / 1e12:.1f} TFLOP/s" for name, rate in flops.items())
    summary = f"{about['device']}: {rates}, {bandwidth / 1e9:.0f} GB/s"
    return about | {"sheet": asdict(sheet) if sheet else None, "summary": summary}


def tests(out: Path, smoke: bool) -> dict:
    """pytest -m gpu: what only a CUDA device can check."""
    needs("pytest")
    which = ["tests/test_ch00_device.py"] if smoke else ["-m", "gpu", "tests"]
    done = command("-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", *which)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-300:]]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    (out / "tests.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    return {"code": done.returncode, "failed": failed, "summary": lines[-1].strip("= ")}


def ladder(out: Path, smoke: bool) -> dict:
    """The whole ladder, recorded and drawn."""
    sizes = ["--size", "small", "--batch", "1", "--seq", "32", "--seconds", "4"] if smoke else []
    plot = ["--plot", str(out / "ladder.png")] if found("matplotlib") else []
    done = command("-m", "nanogpt", "ladder", "--out", str(out / "recorded.json"), *plot, *sizes)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])
    rungs = json.loads((out / "recorded.json").read_text(encoding="utf-8"))["rungs"]
    best = min(rungs, key=lambda rung: rung["ms"])
    gain = rungs[0]["ms"] / best["ms"]
    summary = (
        f"{rungs[0]['ms']:.1f} → {best['ms']:.1f} ms ({best['name']}), {gain:.2f}×, MFU {best['mfu']:.1%}"
    )
    return {"printed": done.stdout, "summary": summary}


def peers(out: Path, smoke: bool) -> dict:
    """transformers' GPT-2 and our first and top rung, in turn, twice, each in a process of its own."""
    needs("transformers")
    B, T, steps = (1, 32, 3) if smoke else (16, 1024, 20)
    times: dict[str, list[float]] = {}
    for _ in range(2):
        for label in ("ours, first rung", "ours, top rung", *PEERS):
            done = command(__file__, "--peer", label, "--size", f"{B},{T},{steps}")
            if done.returncode:
                times.setdefault(label, [])
                print(f"{label}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
            else:
                times.setdefault(label, []).extend(json.loads(done.stdout.splitlines()[-1]))
    medians = {label: 1e3 * statistics.median(seconds) for label, seconds in times.items() if seconds}
    ours = medians["ours, top rung"]
    summary = "; ".join(f"{label} {ms:.1f} ms ({ms / ours:.2f}×)" for label, ms in medians.items())
    return {"batch": B, "seq": T, "median_ms": medians, "seconds": times, "summary": summary}


def peer(label: str, B: int, T: int, steps: int) -> None:
    """Print the seconds of `steps` training steps of one program, as JSON."""
    import torch
    from bench_ladder import transformers_step

    from nanogpt.device import pick_device
    from nanogpt.gpt.model import GPTConfig
    from nanogpt.speed.roofline import measure_roofline
    from nanogpt.speed.rungs import RUNGS, make_step, obstacles, rungs_up_to

    device = pick_device()
    if label.startswith("ours"):
        skipped = obstacles(device, measure_roofline(device))
        name = next(iter(RUNGS)) if "first" in label else list(RUNGS)[-1]
        _, step = make_step(GPTConfig(), rungs_up_to(name, skipped), B, T, device)
    else:
        torch.set_float32_matmul_precision("highest")
        step = transformers_step(B, T, device, label)
    seconds = []
    for _ in range(5 + steps):
        start = time.perf_counter()
        step().item()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds[5:]))


def curves(out: Path, smoke: bool) -> dict:
    """The same run in every precision that the device has: losses, and what fp16's scaler did."""
    from nanogpt.device import pick_device
    from nanogpt.gpt.precision import why_not

    device, steps = pick_device(), 3 if smoke else 300
    losses, reasons, scales = {}, {}, []
    for precision in CURVES:
        if reason := why_not(precision, device):
            reasons[precision] = reason
        else:
            losses[precision] = curve(precision, device, steps, scales)
    if found("matplotlib"):
        draw_curves(losses, scales, out / "curves.png")
    last = {precision: statistics.fmean(curve[-50:]) for precision, curve in losses.items()}
    summary = f"mean loss of the last steps of {steps}: " + ", ".join(f"{p} {x:.4f}" for p, x in last.items())
    return {"losses": losses, "scales": scales, "left_out": reasons, "summary": summary}


def curve(precision: str, device, steps: int, scales: list[float]) -> list[float]:
    """Losses of one run: the same model, the same data, one precision; fp16's scale at each step goes to `scales`."""
    import torch

    from nanogpt.gpt.model import GPT, GPTConfig
    from nanogpt.gpt.precision import LossScaler
    from nanogpt.gpt.train import train_step
    from nanogpt.speed.rungs import zipf_batches

    B, T, layers, width = (2, 32, 1, 64) if steps < 10 else (32, 256, 6, 384)
    config = GPTConfig(block_size=T, vocab_size=1024, n_layer=layers, n_head=width // 64, n_embd=width)
    model = GPT(config, torch.Generator().manual_seed(0)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batches = zipf_batches(config.vocab_size, B, T)
    scaler, losses = LossScaler() if precision == "fp16" else None, []
    for _ in range(steps):
        x, y = (ids.to(device) for ids in next(batches))
        losses.append(train_step(model, optimizer, [(x, y)], precision, scaler=scaler).item())
        if scaler:
            scales.append(scaler.scale)
    return losses


def draw_curves(losses: dict[str, list[float]], scales: list[float], path: Path) -> None:
    """Loss by step in each precision, its difference from float32's, and fp16's scale."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(9, 3), layout="constrained")
    left, middle, right = fig.subplots(1, 3)
    for precision, values in losses.items():
        left.plot(values, lw=1, label=precision)
        middle.plot([a - b for a, b in zip(values, losses["float32"])], lw=1)
    left.set(xlabel="step", ylabel="loss (nats)")
    middle.set(xlabel="step", ylabel="minus float32's (nats)")
    right.semilogy(scales, base=2)
    right.set(xlabel="step", ylabel="fp16's loss scale")
    left.legend()
    fig.savefig(path, dpi=100)


def notebook(out: Path, chapter: str) -> dict:
    """A chapter at gpu scale, with its outputs kept: through nbclient, or cell by cell where Jupyter is absent."""
    path = next((ROOT / "notebooks").glob(f"{chapter}_*.ipynb"))
    nb = json.loads(path.read_text(encoding="utf-8"))
    start = time.perf_counter()
    try:
        run = with_nbclient if found("nbclient") and found("ipykernel") else cell_by_cell
        nb, failed = run(nb)
    finally:
        (out / path.name).write_text(json.dumps(nb, indent=1, ensure_ascii=False), encoding="utf-8")
    seconds = time.perf_counter() - start
    summary = f"{path.name}: {seconds:.0f} s, " + (
        f"{len(failed)} cells failed" if failed else "every cell ran"
    )
    return {"seconds": seconds, "failed": failed, "by": run.__name__, "summary": summary}


def without_checkpoint(nb: dict) -> list[dict]:
    """The code cells but the last, which would export into the package."""
    return [cell for cell in nb["cells"] if cell["cell_type"] == "code"][:-1]


def with_nbclient(nb: dict) -> tuple[dict, list[str]]:
    """Executed in a kernel; errors are kept as outputs, and the next cell runs."""
    import nbformat
    from nbclient import NotebookClient

    last = [cell for cell in nb["cells"] if cell["cell_type"] == "code"][-1]
    nb["cells"].remove(last)
    node = nbformat.reads(json.dumps(nb), as_version=4)
    resources = {"metadata": {"path": str(ROOT / "notebooks")}}
    NotebookClient(
        node, timeout=LIMIT, allow_errors=True, resources=resources, store_widget_state=True
    ).execute()
    nb = json.loads(nbformat.writes(node))
    failed = [
        f"{output['ename']}: {output['evalue']}"
        for cell in nb["cells"]
        for output in cell.get("outputs", [])
        if output["output_type"] == "error" and "raises-exception" not in cell["metadata"].get("tags", [])
    ]
    return nb, failed


def cell_by_cell(nb: dict) -> tuple[dict, list[str]]:
    """Executed in this process, with stand-ins for what needs Jupyter: text and figures are kept, widgets left out."""
    shown: list[dict] = []
    sys.modules["course.notebook"] = stand_in(shown)
    os.chdir(ROOT / "notebooks")
    sys.modules["chapter"] = chapter = ModuleType("chapter")  # where torch.compile looks its names up
    space, failed = vars(chapter), []
    for number, cell in enumerate(without_checkpoint(nb), 1):
        if re.search(r"_widget\(|IPython", cell_source(cell)) and not found("ipywidgets"):
            cell["outputs"] = [text_output("(left out: this cell needs Jupyter's widgets)\n")]
            continue
        shown.clear()
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(cell_source(cell), f"cell {number}", "exec"), space)
        except Exception as error:
            printed.write(traceback.format_exc())
            if "raises-exception" not in cell["metadata"].get("tags", []):
                failed.append(f"cell {number}: {type(error).__name__}: {error}")
        cell["execution_count"] = number
        cell["outputs"] = [text_output(printed.getvalue())] * bool(printed.getvalue()) + shown[:]
    return nb, failed


def cell_source(cell: dict) -> str:
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def text_output(text: str) -> dict:
    return {"output_type": "stream", "name": "stdout", "text": text}


def stand_in(shown: list[dict]):
    """A module with the names that a chapter imports from course.notebook; figures go to `shown`."""

    def show(fig, alt, handle=None):
        buffer = io.BytesIO()
        fig.savefig(buffer, format="png", dpi=80, bbox_inches="tight")
        data = {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": alt}
        metadata = {"image/png": {"alt": alt}}
        shown.append({"output_type": "display_data", "data": data, "metadata": metadata})

    module = ModuleType("course.notebook")
    module.show = show
    for name in ("checkpoint", "predict", "answer", "predictions"):
        setattr(module, name, lambda *args, **kwargs: None)
    return module


# Running the steps


def found(package: str) -> bool:
    import importlib.util

    return bool(importlib.util.find_spec(package))


def needs(package: str) -> None:
    if not found(package):
        raise Missing(f"needs {package}: pip install {package}")


def command(*arguments: str) -> subprocess.CompletedProcess:
    """A fresh Python at the repository's root, which sees this checkout's packages."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )


def do(step: str, out: Path, smoke: bool) -> None:
    """Do one step in this process and write its JSON file."""
    start = time.time()
    try:
        result = notebook(out, step) if step in NOTEBOOKS else globals()[step](out, smoke)
    except Missing as error:
        result = {"summary": f"left out: {error}", "left_out": True}
    result |= {"step": step, "took_s": round(time.time() - start, 1)}
    aside = out / f".{step}.tmp"
    aside.write_text(json.dumps(result, indent=1), encoding="utf-8")
    aside.replace(out / f"{step}.json")


def run_step(step: str, args: argparse.Namespace, seconds: float) -> str:
    """Run one step as a process with a time limit; one line that says how it went."""
    call = [sys.executable, __file__, "--out", str(args.out), "--step", step]
    call += ["--smoke"] if args.smoke else []
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = os.environ | {"PYTHONPATH": path, "NANOGPT_SCALE": "ci" if args.smoke else "gpu"}
    try:
        done = subprocess.run(call, cwd=ROOT, env=env, timeout=seconds, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return f"{step}: stopped after {seconds:.0f} s; the same command tries it again"
    if done.returncode:
        (args.out / f"{step}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return f"{step}: failed ({last[:200]}); see {step}.log"
    return f"{step}: {json.loads((args.out / f'{step}.json').read_text(encoding='utf-8'))['summary']}"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("gpu-day"), help="folder for JSON, pictures, notebooks (gpu-day)")
    add("--minutes", type=float, default=600, help="stop after so many; the same command goes on")
    add("--only", nargs="+", choices=STEPS, metavar="STEP", help=f"of {' '.join(STEPS)}; again if done")
    add("--smoke", action="store_true", help="tiny sizes on any device: does everything run?")
    for hidden in ("--step", "--peer", "--size"):
        add(hidden, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """0 if every step is done, 1 if one failed or is left for the next call, 2 without a CUDA device, 130 on Ctrl-C."""
    args = parse(argv)
    args.out = args.out.resolve()
    if args.peer:
        peer(args.peer, *map(int, args.size.split(",")))
        return 0
    if args.step:
        do(args.step, args.out, args.smoke)
        return 0
    import torch

    if not args.smoke and not torch.cuda.is_available():
        print("gpu_day: no CUDA device here; --smoke tries every step at a tiny size", file=sys.stderr)
        return 2
    args.out.mkdir(parents=True, exist_ok=True)
    deadline, left = time.time() + 60 * args.minutes, []
    try:
        for step in args.only or STEPS:
            if not args.only and (args.out / f"{step}.json").exists():
                continue
            seconds = min(LIMIT, deadline - time.time())
            if seconds < 60:
                left.append(step)
                continue
            print(run_step(step, args, seconds), flush=True)
    except KeyboardInterrupt:
        print("\ngpu_day: stopped; finished steps are kept, the same command goes on", file=sys.stderr)
        return 130
    return summary(args.out, left)


def summary(out: Path, left: list[str]) -> int:
    """Print every step's line, and write them to summary.txt."""
    lines, missing = [], False
    for step in STEPS:
        path = out / f"{step}.json"
        if path.exists():
            result = json.loads(path.read_text(encoding="utf-8"))
            bad = result.get("failed") or result.get("code")
            missing = missing or bool(bad)
            lines.append(
                f"{step:8} {result['took_s']:6.0f} s  {'FAILED  ' if bad else ''}{result['summary']}"
            )
        else:
            missing = True
            lines.append(
                f"{step:8} {'':6}    not done" + (": no time left, call again" if step in left else "")
            )
    text = "\n".join(lines)
    (out / "summary.txt").write_text(text + "\n", encoding="utf-8")
    print(f"\n{text}")
    return int(missing)


if __name__ == "__main__":
    raise SystemExit(main())
