"""How exercises 10 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# ---- 10-1


def random_bits(draw):
    """Numbers of all sizes, subnormal ones too, as their bits."""
    anything = torch.randint(-(2**31), 2**31 - 1, (400,), generator=draw).int()
    made = [(2 * torch.randn(50, generator=draw), 7)]
    for bits in (1, 7, 10, 16, 22):
        x = anything.view(torch.float32)
        made.append((torch.where(x.isfinite(), x, 1.5), bits))
    return made


def ties(draw):
    made = []
    for bits in (3, 7, 10):
        steps = torch.arange(40) + torch.randint(1000, (), generator=draw)
        x = torch.ldexp(
            1 + (2 * (steps % 2**bits) + 1) / 2 ** (bits + 1), torch.randint(-30, 30, (40,), generator=draw)
        )
        made.append((torch.cat([x, -x]), bits))
    return made


def no_numbers(draw):
    bits = torch.tensor(
        [0x7F800000, -0x800000, 0x7FFFFFFF, 0x7F800001, 0x7FC00000, -1, 0x7F7FFFFF], dtype=torch.int32
    )
    return [(bits.view(torch.float32), n) for n in (2, 7, 15)]


def rounded_bits(s, x, bits):
    import torch

    got = s.round_mantissa(x, bits)
    return got.isnan(), torch.where(got.isnan(), 0.0, got).contiguous().view(torch.int32), x.view(torch.int32)


# ---- 10-2


def stops_at(s):
    return s.stops["stops at"]


def smallest_update(s):
    return s.stops["smallest update"]


def scale(s):
    return s.stops["scale"]


def skipped(s):
    return s.stops["skipped"]


def lost(s):
    import math

    return math.log2(s.stops["lost"] * s.stops["scale"])  # at the scale that the student found


# ---- 10-3


def finite_gradients(draw):
    return [(0.2 * torch.randn(5, 4, generator=draw), clip) for clip in (100.0, 0.1)]


def overflowing(draw):
    x = 0.1 * torch.randn(7, 4, generator=draw)
    x[1, 2], x[2, 0], x[5, 3] = 5.0, -5.0, 3.0
    return [(x, 100.0), (x, 0.05)]


def course_of_training(s, x, clip):
    """Was there an update, the scale and the weights after each step; NaN and infinity as -1: results have to be finite."""
    import torch

    model, scaler = s.Line(), s.LossScaler(2.0**16, growth_interval=3)
    optimizer, updates, scales, weights = s.Descent(model.parameters()), [], [], []
    for row in x:
        updates.append(bool(s.fp16_step(model, optimizer, row, scaler, "cpu", clip)))
        scales.append(float(scaler.scale))
        weights.append(model.weight.detach().clone())
    return updates, scales, torch.stack(weights).nan_to_num(-1.0, -1.0, -1.0)


def told_to_autocast(s, device):
    """What the student's step tells autocast of a device with an index."""
    import torch

    told, real = [], torch.autocast

    class Listening(real):
        def __init__(self, device_type, *args, **options):
            told.append(str(device_type))
            super().__init__(torch.device(device_type).type, *args, **options)

    model, torch.autocast = s.Line(), Listening
    try:
        s.fp16_step(model, s.Descent(model.parameters()), torch.ones(4), s.LossScaler(8.0), device, 1.0)
    finally:
        torch.autocast = real
    return told


def indexed(draw):
    return [("cpu:0",), ("cpu",)]


# ---- 10-4

HEAD = "def after_step(scale, good, finite, interval):\n"

RIGHT = (
    HEAD
    + "    if finite and good + 1 == interval:\n"
    + "        return scale * 2, 0\n"
    + "    return (scale, good + 1) if finite else (scale / 2, 0)",
    HEAD
    + "    good = good + 1 if finite else 0\n"
    + "    factor = 0.5 if not finite else 2.0 if good % interval == 0 else 1.0\n"
    + "    return scale * factor, good % interval",
)

SCALERS = {
    "never grows": HEAD + "    return (scale, good + 1) if finite else (scale / 2, 0)",
    "never shrinks": HEAD
    + "    if finite and good + 1 == interval:\n        return scale * 2, 0\n    return scale, good + finite",
    "goes on counting after a bad step": HEAD
    + "    if not finite:\n        return scale / 2, good\n"
    + "    return (2 * scale, 0) if good + 1 == interval else (scale, good + 1)",
    "goes on counting after doubling": HEAD
    + "    if not finite:\n        return scale / 2, 0\n"
    + "    return (2 * scale if good + 1 == interval else scale), good + 1",
    "doubles one step late": HEAD
    + "    if not finite:\n        return scale / 2, 0\n"
    + "    return (2 * scale, 0) if good == interval else (scale, good + 1)",
    "doubles one step early": HEAD
    + "    if not finite:\n        return scale / 2, 0\n"
    + "    return (2 * scale, 0) if good + 2 >= interval else (scale, good + 1)",
    "doubles after every good step": HEAD + "    return (2 * scale, 0) if finite else (scale / 2, 0)",
    "counts the doubling step as the first of the next": HEAD
    + "    if not finite:\n        return scale / 2, 0\n"
    + "    return (2 * scale, 1) if good + 1 == interval else (scale, good + 1)",
    "shrinks to a quarter": HEAD
    + "    if not finite:\n        return scale / 4, 0\n"
    + "    return (2 * scale, 0) if good + 1 == interval else (scale, good + 1)",
    "has an interval of its own": HEAD
    + "    if not finite:\n        return scale / 2, 0\n"
    + "    return (2 * scale, 0) if good + 1 == 2000 else (scale, good + 1)",
}

# ---- 10-5


def many_small(draw):
    return [
        (torch.randn(6, generator=draw), torch.randn(300, 6, generator=draw), 1e-3),
        (torch.ones(3), -torch.ones(500, 3), 1e-3),
    ]


def gradients_in_bfloat16(draw):
    return [(1 + torch.rand(5, generator=draw), torch.randn(4, 5, generator=draw).bfloat16(), 0.05)]


def weights_masters_and_start(s, start, grads, lr):
    weight, master = s.descend(start, grads, lr)
    return str(weight.dtype), weight.float() - master.bfloat16().float(), master, start


CHECKS = [
    Check("10-1", "the nearest number with so many bits, at any size", 2, rounded_bits, random_bits, hidden=False, tolerance=0),
    Check("10-1", "ties go to the even one", 2, rounded_bits, ties, tolerance=0),
    Check("10-1", "infinity and NaN stay, and the largest number rounds up to infinity", 1, rounded_bits, no_numbers, tolerance=0),
    Check("10-2", "where a sum stops", 1, stops_at, hidden=False),
    Check("10-2", "the smallest update that is one", 1, smallest_update, tolerance=1e-9),
    Check("10-2", "the largest loss scale", 1, scale),
    Check("10-2", "the steps that are thrown away", 1, skipped),
    Check("10-2", "the gradients that are lost", 1, lost),
    Check("10-3", "steps without overflow, clipped and not", 2, course_of_training, finite_gradients, hidden=False, tolerance=1e-4),
    Check("10-3", "steps that overflow change no weight and halve the scale", 3, course_of_training, overflowing, tolerance=1e-4),
    Check("10-3", "autocast is told the kind of device, without its index", 1, told_to_autocast, indexed),
    CheckOfCheck("10-4", "refuses wrong scalers, and no right one", 4, "check_scaler", "after_step", RIGHT, SCALERS, hidden=False),
    Check("10-5", "many small updates add up", 2, weights_masters_and_start, many_small, hidden=False),
    Check("10-5", "gradients in bfloat16 become float32 before they are multiplied", 1, weights_masters_and_start, gradients_in_bfloat16),
]  # fmt: skip

WRONG = [
    Wrong("10-1", "the last bits are cut off: that rounds towards zero", "(whole + (1 << (drop - 1)) - 1 + odd)", "whole"),
    Wrong("10-1", "half a step is added and nothing else: ties go away from zero, not to even",
          "(whole + (1 << (drop - 1)) - 1 + odd)", "(whole + (1 << (drop - 1)))"),
    Wrong("10-1", "ties always go towards zero", " - 1 + odd)", " - 1)"),
    Wrong("10-1", "one bit too few is kept: the leading 1 is not stored", "drop = 23 - bits", "drop = 24 - bits"),
    Wrong("10-1", "a number with a fixed point: large numbers keep too much, small ones nothing",
          "    drop = 23 - bits\n", "    return torch.round(x * 2**bits) / 2**bits\n    drop = 23 - bits\n"),
    Wrong("10-1", "NaN is taken for a number: with its bits all ones it becomes zero, with few of them infinity",
          "torch.where(x.isfinite(), rounded.view(torch.float32), x)", "rounded.view(torch.float32)"),
    Wrong("10-1", "x itself was changed", "    rounded = (whole +", "    rounded = whole.add_((1 << (drop - 1)) - 1 + odd).bitwise_and_(-(1 << drop)) if True else (whole +"),
    Wrong("10-2", "one power too low: while the term is a whole step it still adds", "2 ** (mantissa + 1)", "2**mantissa"),
    Wrong("10-2", "the tie was taken to go up: a power of two is even, and half a step leaves it", "2 ** (mantissa + 1)", "2 ** (mantissa + 2)"),
    Wrong("10-2", "the format's bits were exchanged", '{"bfloat16": 7, "float16": 10}', '{"bfloat16": 10, "float16": 7}'),
    Wrong("10-2", "half a step is a tie, and goes to the weight, which is even", 'case["weight"] * 2**-7', 'case["weight"] * 2**-8'),
    Wrong("10-2", "bfloat16's steps grow with the weight", 'case["weight"] * 2**-7', "2.0**-7"),
    Wrong("10-2", "one power too high: the largest gradient becomes infinite", "math.floor", "math.ceil"),
    Wrong("10-2", "the limit of float16 is 65520, not 2¹⁵", "65520 /", "32768 /"),
    Wrong("10-2", "2⁻²⁴ is kept; what is lost ends at half of it", "2.0**-25", "2.0**-24"),
    Wrong("10-2", "subnormal numbers are numbers too: below 2⁻¹⁴ bits are lost, not the gradient", "2.0**-25", "2.0**-14"),
    Wrong("10-2", "the scale multiplies gradients: smaller ones survive", "2.0**-25 / 2.0**exponent", "2.0**-25 * 2.0**exponent"),
    Wrong("10-3", "clipped before unscaling: the norm is that of the scaled gradient",
          "    finite = scaler.unscale(model.parameters())", "    nn.utils.clip_grad_norm_(model.parameters(), clip)\n    finite = scaler.unscale(model.parameters())"),
    Wrong("10-3", "an infinite gradient goes into the weights", "    if finite:\n", "    if True:\n"),
    Wrong("10-3", "the scaler is never told: its scale neither falls nor grows", "    scaler.update(finite)\n", ""),
    Wrong("10-3", "the scaler is told that every step was good", "scaler.update(finite)", "scaler.update(True)"),
    Wrong("10-3", "the scaler hears of bad steps only: the scale never grows again", "scaler.update(finite)", "finite or scaler.update(finite)"),
    Wrong("10-3", "the loss is not multiplied, and the gradient divided all the same", "(loss * scaler.scale).backward()", "loss.backward()"),
    Wrong("10-3", "the gradient is not divided by the scale", "finite = scaler.unscale(model.parameters())",
          "finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())"),
    Wrong("10-3", "the gradients of the step before are still there", "    optimizer.zero_grad()\n", ""),
    Wrong("10-3", "autocast is given a device with its index, and wants its kind", "torch.autocast(torch.device(device).type", "torch.autocast(device"),
    Wrong("10-4", "accepts everything", code="def check_scaler(after_step): pass"),
    Wrong("10-4", "refuses everything", code="def check_scaler(after_step): assert False"),
    Wrong("10-4", "tries single steps from a count of 0 only", code="""
        def check_scaler(after_step):
            assert after_step(8.0, 0, True, 5) == (8.0, 1)
            assert after_step(8.0, 0, False, 5) == (4.0, 0)
        """),
    Wrong("10-4", "looks at the scale and never at the count", code="""
        def check_scaler(after_step):
            assert after_step(8.0, 2, True, 3)[0] == 16.0
            assert after_step(8.0, 1, True, 3)[0] == 8.0
            assert after_step(8.0, 1, False, 3)[0] == 4.0
        """),
    Wrong("10-4", "tries good steps only", code="""
        def check_scaler(after_step):
            scale, good = 8.0, 0
            for n in range(1, 7):
                scale, good = after_step(scale, good, True, 3)
                assert (scale, good) == (8.0 * 2 ** (n // 3), n % 3)
        """),
    Wrong("10-5", "the master is made from the rounded weight in every step", "    for grad in grads:\n", "    for grad in grads:\n        master = weight.float()\n"),
    Wrong("10-5", "the master begins at the rounded weight: what rounding took away is lost", "master = start.clone()", "master = start.bfloat16().float()"),
    Wrong("10-5", "the master itself is in bfloat16",
          "        master -= lr * grad.float()\n", "        master = (master - lr * grad.float()).bfloat16().float()\n"),
    Wrong("10-5", "the update is rounded to bfloat16 before it is subtracted", "lr * grad.float()", "(lr * grad.bfloat16()).float()"),
    Wrong("10-5", "the weights come in float32: they were to be rounded", "    return weight, master", "    return weight.float(), master"),
    Wrong("10-5", "the weights are one step behind their masters",
          "        master -= lr * grad.float()\n        weight = master.bfloat16()\n", "        weight = master.bfloat16()\n        master -= lr * grad.float()\n"),
    Wrong("10-5", "`start` itself was changed", "master = start.clone()", "master = start"),
]  # fmt: skip

MANUAL = {"10-6": 2}
RUBRIC = {
    "10-6": "1 point for range: float16's smallest number is 2^-24 (normal ones end at 2^-14), gradients are smaller; bfloat16 has "
    "float32's exponents, down to 2^-126. 1 point for steps: bfloat16 has 7 bits, so that an update below 1/256 of a weight "
    "(half a step of 1/128) is none; float16 has 10, half a step is 1/2048. Half a point off if nothing is said of what scaling "
    "does not help against: coarse steps (in weights or sums), and overflow, which it makes likelier.",
}
