"""How exercises 14 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def numbers(draw, n, low, high):
    return (low + (high - low) * torch.rand(n, generator=draw)).tolist()


# --- 14-1 ----------------------------------------------------------------------------------------------------


def steps(draw):
    return [(numbers(draw, n, 0.1, 5), numbers(draw, n, 0.5, 9)) for n in (1, 2, 5)]


def wishes(draw):
    return [(numbers(draw, 4, 1, 2) + [9.0], 4, wanted) for wanted in (1.0, 1.3, 1.5, 0.5)]


def out_of_reach(draw):
    return [
        ([3.0, 1.0], 0, 4.0),
        ([3.0, 1.0], 0, 5.0),
        ([3.0, 1.0], 1, 1.5),
        ([2.0], 0, 100.0),
        ([0.5, 0.25, 0.25], 0, 2.0),
    ]


# --- 14-2 ----------------------------------------------------------------------------------------------------


def updates(s):
    return [s.pieces_ms, s.fused_ms]


def whole_step(s):
    return [s.step_gain, s.most_gain]


# --- 14-3 ----------------------------------------------------------------------------------------------------


def apart(draw):
    """Pairs that differ, faster and slower, on a machine that gets slower; some steps are disturbed."""
    cases = []
    for factor in (0.5, 0.9, 1.06, 1.5, 3.0):
        drift = [1 + i / 15 for i in range(15)]
        before = [10 * d * noise for d, noise in zip(drift, numbers(draw, 15, 1.0, 1.01))]
        after = [10 * d * noise / factor for d, noise in zip(drift, numbers(draw, 15, 1.0, 1.01))]
        before[3] += 40  # another program woke up
        after[5] += 25
        cases.append((before, after))
    return cases


def together(draw):
    """Pairs that do not tell which is faster: noise, an interval that ends at 1, all alike."""
    cases = []
    for n in (6, 9, 12, 20):
        before = numbers(draw, n, 10.0, 11.0)
        cases.append((before, before[::-1]))  # as many ratios above 1 as below
    even = [10.0] * 9
    cases.append((even, even))
    cases.append((even, [10.0, 10.0, *[8.0] * 7]))  # the interval begins at 1
    cases.append((even, [10.0, 10.0, *[12.0] * 7]))  # and ends there
    return cases


# --- 14-4 ----------------------------------------------------------------------------------------------------


def machines(draw):
    flops, bandwidth = numbers(draw, 3, 5e10, 2e12), numbers(draw, 3, 1e10, 2e11)
    return [(L, 4, 64 * L, B, T, f, b, dtype, flash) for L, B, T, f, b, dtype, flash in
            zip((1, 2, 6), (1, 4, 8), (32, 64, 128), flops, bandwidth, ("float32", "bfloat16", "float32"), (True, False, False))]  # fmt: skip


def predicted_ms(s, n_layer, n_head, n_embd, B, T, flops, bandwidth, dtype, flash):
    from nanogpt.labs.roofline.clock import Roofline
    from nanogpt.model import GPTConfig

    config = GPTConfig(
        block_size=128, vocab_size=5000, n_layer=n_layer, n_head=n_head, n_embd=n_embd, flash=flash
    )
    return 1e3 * s.with_recomputation(
        config, B, T, Roofline("cpu", {"float32": flops, "bfloat16": 4 * flops}, bandwidth), dtype
    )


# --- 14-5: implementations, as text --------------------------------------------------------------------------


def of_kernels(value: str) -> str:
    return f"def step_ms(kernels, flops, bandwidth):\n    return {value}\n"


RIGHT = (
    of_kernels("1000 * sum(max(f / flops, b / bandwidth) for f, b in kernels)"),
    """
def step_ms(kernels, flops, bandwidth):
    seconds, ridge = 0.0, flops / bandwidth
    for f, b in kernels:
        seconds += f / flops if f > ridge * b else b / bandwidth
    return seconds * 1e3
""",
    """
import numpy as np

def step_ms(kernels, flops, bandwidth):
    f, b = np.array(kernels, dtype=float).reshape(-1, 2).T
    return float(1e3 * np.maximum(f / flops, b / bandwidth).sum())
""",
)
WRONG_TIMES = {
    "both times are added": of_kernels("1000 * sum(f / flops + b / bandwidth for f, b in kernels)"),
    "the faster of the two counts": of_kernels("1000 * sum(min(f / flops, b / bandwidth) for f, b in kernels)"),
    "bytes are ignored": of_kernels("1000 * sum(f / flops for f, b in kernels)"),
    "FLOPs are ignored": of_kernels("1000 * sum(b / bandwidth for f, b in kernels)"),
    "the whole step is taken for one kernel": of_kernels(
        "1000 * max(sum(f for f, b in kernels) / flops, sum(b for f, b in kernels) / bandwidth)"
    ),
    "only the slowest kernel counts": of_kernels("1000 * max((max(f / flops, b / bandwidth) for f, b in kernels), default=0.0)"),
    "the mean of the kernels": of_kernels("1000 * sum(max(f / flops, b / bandwidth) for f, b in kernels) / max(1, len(kernels))"),
    "seconds, not milliseconds": of_kernels("sum(max(f / flops, b / bandwidth) for f, b in kernels)"),
    "a multiply and an add are counted as one": of_kernels("1000 * sum(max(f / 2 / flops, b / bandwidth) for f, b in kernels)"),
    "the first kernel is thought to be a warm-up": of_kernels("1000 * sum(max(f / flops, b / bandwidth) for f, b in kernels[1:])"),
    "each kernel is charged a microsecond for its start": of_kernels("1000 * sum(max(f / flops, b / bandwidth) + 1e-6 for f, b in kernels)"),
    "a kernel that moves nothing is left out": of_kernels("1000 * sum(max(f / flops, b / bandwidth) for f, b in kernels if b)"),
    "a kernel that computes nothing is left out": of_kernels("1000 * sum(max(f / flops, b / bandwidth) for f, b in kernels if f)"),
    "rates are exchanged": of_kernels("1000 * sum(max(f / bandwidth, b / flops) for f, b in kernels)"),
}  # fmt: skip

CHECKS = [
    Check("14-1", "the factor of a step", 2, "speedup", steps, hidden=False),
    Check("14-1", "the factor that one part needs", 1, "factor_needed", wishes),
    Check("14-1", "None where no factor is enough", 1, "factor_needed", out_of_reach),
    Check("14-2", "the update in pieces and fused", 2, updates, hidden=False),
    Check("14-2", "what the step gains, and could gain at most", 2, whole_step),
    Check("14-3", "the median ratio of the pairs, faster or slower", 2, "gain", apart, hidden=False),
    Check("14-3", "None where the interval contains or touches 1", 1, "gain", together),
    Check("14-4", "the seconds of a step that recomputes its blocks", 4, predicted_ms, machines, hidden=False),
    CheckOfCheck("14-5", "accepts the roofline's time and refuses others", 4, "check_step_ms", "step_ms", RIGHT, WRONG_TIMES),
]  # fmt: skip

WRONG = [
    Wrong("14-1", "factors are averaged by time, but times add up and factors do not", "sum(seconds) / sum(s / f for s, f in zip(seconds, factors))",
          "sum(s * f for s, f in zip(seconds, factors)) / sum(seconds)"),
    Wrong("14-1", "the largest factor of a part is taken for that of the step", "sum(seconds) / sum(s / f for s, f in zip(seconds, factors))",
          "max(factors)"),
    Wrong("14-1", "the ratio is turned over: time after over time before", "sum(seconds) / sum(s / f for s, f in zip(seconds, factors))",
          "sum(s / f for s, f in zip(seconds, factors)) / sum(seconds)"),
    Wrong("14-1", "a negative time is left over, and becomes a negative factor", "seconds[i] / left if left > 0 else None", "seconds[i] / left if left else None"),
    Wrong("14-1", "the part is thought to need the step's factor times the step's share", "return seconds[i] / left if left > 0 else None",
          "return wanted * sum(seconds) / seconds[i] if left > 0 else None"),
    Wrong("14-1", "the other parts are thought to get faster as well", "sum(seconds) / wanted - (sum(seconds) - seconds[i])",
          "(sum(seconds) - (sum(seconds) - seconds[i])) / wanted"),
    Wrong("14-2", "only what the optimizer keeps is counted, not that it is read and written", "28 * P", "16 * P"),
    Wrong("14-2", "the gradient is thought to be written as well", "28 * P", "32 * P"),
    Wrong("14-2", "passes are counted, of one byte each", "80 * P", "20 * P"),
    Wrong("14-2", "the sheet's gigabytes are taken for gibibytes", "1e9 * PEAKS", "2**30 * PEAKS"),
    Wrong("14-2", "head and embedding are counted as two matrices, where they are one", "n_embd=n_embd))", "n_embd=n_embd)) + 50257 * n_embd"),
    Wrong("14-2", "the optimizer's own factor is taken for that of the step", 'step_gain = (mine["rest_ms"] + pieces_ms) / (mine["rest_ms"] + fused_ms)',
          "step_gain = pieces_ms / fused_ms"),
    Wrong("14-2", "the limit is sought from the fused optimizer, not from the one in pieces", 'most_gain = (mine["rest_ms"] + pieces_ms)', 'most_gain = (mine["rest_ms"] + fused_ms)'),
    Wrong("14-3", "sums are compared: one disturbed step decides", "return median(ratios) if", "return sum(before) / sum(after) if"),
    Wrong("14-3", "a difference is always told, also where the pairs cannot tell one", " if low > 1 or high < 1 else None", ""),
    Wrong("14-3", "only a faster rung is believed", "low > 1 or high < 1", "low > 1"),
    Wrong("14-3", "no ratio is left out: one disturbed step hides every difference", "LEFT_OUT[len(ratios)]", "0"),
    Wrong("14-3", "the ratio is upside down", "b / a for", "a / b for"),
    Wrong("14-3", "an interval that touches 1 is believed", "low > 1 or high < 1", "low >= 1 or high <= 1"),
    Wrong("14-4", "everything runs forward again, also what lies outside the blocks", "return sum(seconds.values()) + again",
          "return sum(seconds.values()) + sum(s for (_, phase), s in seconds.items() if phase == 'forward')"),
    Wrong("14-4", "only matrix products are computed again, but a block is more than those", '"mlp", "gelu", "residual")', '"mlp")'),
    Wrong("14-4", "the last LayerNorm stands outside the blocks and is not computed again", "norms / (norms + 1)", "1"),
    Wrong("14-4", "a third on top is a rule of thumb for FLOPs, not for this machine's seconds", "sum(seconds.values()) + again", "sum(seconds.values()) * 4 / 3"),
    Wrong("14-4", "the backward pass is thought to run twice", '(seconds[part, "forward"] for part in', '(seconds[part, "backward"] for part in'),
    Wrong("14-4", "what is computed again is told, not the whole step", "return sum(seconds.values()) + again", "return again"),
    Wrong("14-5", "the check accepts everything", code="def check_step_ms(step_ms):\n    step_ms([(1.0, 1.0)], 1.0, 1.0)"),
    Wrong("14-5", "the check refuses everything", code="def check_step_ms(step_ms):\n    assert False"),
    Wrong("14-5", "one kernel, bound by arithmetic, is tried", code="""
          def check_step_ms(step_ms):
              assert abs(step_ms([(2e9, 1e6)], 1e12, 1e11) - 2) < 1e-6
          """),
    Wrong("14-5", "signs and order are looked at, and no number", code="""
          def check_step_ms(step_ms):
              one, two = (step_ms([(1e9, 1e9)] * n, 1e12, 1e11) for n in (1, 2))
              assert 0 < one < two
          """),
    Wrong("14-5", "equality to the last bit is demanded, which sums in another order do not have", code="""
          def check_step_ms(step_ms):
              kernels = [(2e9 / 3, 4e8 / 7), (3e9 / 11, 2e9 / 13), (7e9 / 17, 1e8 / 19), (1e9 / 23, 1e9 / 29)]
              assert step_ms(kernels, 1e11 / 3, 2e10 / 7) == sum(1000 * max(f / (1e11 / 3), b / (2e10 / 7)) for f, b in kernels)
          """),
]  # fmt: skip
MANUAL = {"14-6": 2}
RUBRIC = {
    "14-6": "1 point: an MFU above 100% cannot be: the peak was measured while the machine was busy, or it is the time of another step; 0.20 for a change of 47 "
    "rows in 50,000 cannot come from the rows. The machine changed between the rungs (other programs, heat), and each was compared with a neighbour measured "
    "under other conditions. 1 point: two changes that help: up and down again or in turns, roofline before and after with the better counted, medians with "
    "quartiles and 'no measurable difference' where they overlap, impossible values flagged. 'Longer measurements' alone: half a point.",
}
