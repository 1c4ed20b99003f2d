"""A training step of chapter 07's size with threads that spin while they wait, and with threads that sleep.

    python bench/wait_policy.py [--competitors 2] [--steps 20] [--rounds 5]

A process reads OMP_WAIT_POLICY once, so each policy has processes of its own, in turns: unset (libgomp's own: spin for some
milliseconds, then sleep), active, passive. Each round is measured alone and beside N programs that never wait. The table
gives the median step over all rounds, and the median over rounds of each policy's ratio to `passive` in the same round.
"""

import argparse
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
POLICIES = ("unset", "active", "passive")
STEP = """
import json, sys, time
import torch  # before nanogpt, which would set the policy
from nanogpt.device import seed_everything
from nanogpt.model import GPT, GPTConfig
seed_everything(0)
model = GPT(GPTConfig(block_size=128, vocab_size=512, n_layer=4, n_head=4, n_embd=128))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randint(512, (16, 128))
times = []
for _ in range(int(sys.argv[1]) + 2):
    before = time.perf_counter()
    model(x, x)[1].backward()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - before)
print(json.dumps(times[2:]))
"""


def step(policy: str, steps: int) -> float:
    """The median step in a process of its own, in seconds."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NANOGPT_DEVICE": "cpu"}
    environment.pop("OMP_WAIT_POLICY", None)
    if policy != "unset":
        environment["OMP_WAIT_POLICY"] = policy
    command = [sys.executable, "-c", STEP, str(steps)]
    return median(
        json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)
    )


@contextmanager
def busy(count: int):
    """So many programs beside ours that never wait."""
    programs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--competitors", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"{os.cpu_count()} cores; one step, median of {args.rounds} rounds of {args.steps} steps")
    for competitors in dict.fromkeys((0, args.competitors)):
        rounds = []
        with busy(competitors):
            for i in range(args.rounds):
                order = POLICIES[i % 3 :] + POLICIES[: i % 3]  # nobody is always first
                rounds.append({policy: step(policy, args.steps) for policy in order})
        print(f"beside {competitors} busy programs:")
        for policy in POLICIES:
            ratio = median(one[policy] / one["passive"] for one in rounds)
            print(
                f"  {policy:8} {1e3 * median(one[policy] for one in rounds):8.1f} ms   {ratio:6.2f} × passive"
            )


if __name__ == "__main__":
    main()
