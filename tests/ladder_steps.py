"""Chapter 14b: ladders whose steps take no time."""

import torch

from nanogpt.labs.ladder import climb, ladder
from nanogpt.labs.ladder.rungs import obstacles
from nanogpt.labs.roofline.clock import Roofline

ROOF = {"device": "cpu", "flops": {"float32": 1e11, "bfloat16": 4e11}, "bandwidth": 2e10}
MACHINE = {"device": "a CPU", "versions": {}, "date": "2026-11-23", "load": 0.0, "roofline": ROOF}
MACHINE |= {"fault_s": 1e-6, "start_s": 5e-6, "peak_flops": 4e11, "peak_source": "measured matrix product"}


def pretend(monkeypatch, answer, limits) -> list[str]:
    """Rungs that only count their steps; gives the list of the rungs that took one, as it grows.

    answer(name, B, n) changes what a rung tells; its "seconds" is a step's, n counts the steps of all rungs.
    """
    calls = []

    def begin(name, config, B, T, device, skipped):
        told = {"name": name, "first_step_s": 1.0, "loss": 9.0, "grad_norm": 0.5, "peak_mib": 300.0}
        told |= {"faults": 0} | answer(name, B, len(calls))
        told.pop("seconds", None)

        def call():
            calls.append(name)
            return answer(name, B, len(calls)).get("seconds", 2.0 + 0.001 * (len(calls) % 5))

        return call, told

    # nothing is compiled: a machine without a compiler has the same rungs
    monkeypatch.setattr("nanogpt.labs.ladder.rungs.why_not_compiled", lambda device: None)
    monkeypatch.setattr(climb, "first_steps", begin)
    monkeypatch.setattr(climb, "limits_now", lambda *args: {"copy": limits(len(calls))})
    return calls


def measured(monkeypatch, answer=lambda name, B, n: {}, limits=lambda n: 1.0):
    """The rungs, why others are skipped, what was said, and the rungs as they took steps."""
    said, device, calls = [], torch.device("cpu"), pretend(monkeypatch, answer, limits)
    skipped = obstacles(device, Roofline(**ROOF)) | {"kept memory": "not here"}
    machine, config = MACHINE | {"reached": ROOF}, ladder.MODELS["small"]
    rungs = climb.measure_rungs(machine, config, 1, 64, device, skipped, 1.0, said.append)
    return rungs, skipped, "\n".join(said), calls


def climbed(monkeypatch, answer=lambda name, B, n: {}, B=1, skip=(), limits=lambda n: 1.0):
    """The command's result, what was said, and the rungs as they took steps."""
    monkeypatch.setattr(ladder, "measure_machine", lambda device: MACHINE)
    monkeypatch.setattr(ladder, "reached_roofline", lambda *args: Roofline(**ROOF))
    monkeypatch.setattr(ladder, "obstacles", lambda *args: obstacles(*args) | {"kept memory": "not here"})
    said, calls = [], pretend(monkeypatch, answer, limits)
    return ladder.climb("small", B, 64, "cpu", skip, 1.0, said.append), "\n".join(said), calls
