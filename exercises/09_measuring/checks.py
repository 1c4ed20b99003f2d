"""How exercises 09 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# ---- 09-1


def pick(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def steady(draw):
    return [([pick(draw, 1, 50) / 1000] * 40, 0.0, 20, 3), ([0.004] * 40, 0.0, 5, 0)]


def disturbed(draw):
    made = []
    for repeats, warmup in ((20, 3), (9, 5)):
        first = [3.0 / (n + 1) for n in range(warmup)]
        counted = (1e-3 * (1 + torch.rand(repeats, generator=draw))).tolist()
        counted[1], counted[repeats // 2] = 0.5, 2.0
        made.append((first + counted + [9.0] * 20, 0.0, repeats, warmup))
    return made


def full_queue(draw):
    return [([0.003] * 30, 7.0, 1, 0), ([0.001, 0.002, 0.004, 0.006, 0.009], 2.0, 2, 3)]


def measured(s, kernels, busy, repeats, warmup):
    device, queue = s.Device(busy), iter(kernels)
    seconds = s.measure(lambda: device.launch(next(queue)), device, repeats, warmup)
    return 1e3 * seconds, device.launched


# ---- 09-2


def layer_flops(s):
    return s.roof["flops"]


def layer_bytes(s):
    return s.roof["bytes"]


def limit_and_seconds(s):
    return s.roof["limit"], 1e6 * s.roof["seconds"]


def utilization(s):
    return s.roof["mfu"]


# ---- 09-3


def gpt2_layers(draw):
    shapes = [(768, 2304), (768, 768), (3072, 768), (1600, 6400)]
    return [(i, o, pick(draw, 40, 180), 2) for i, o in shapes] + [(4096, 16384, 295, 2)]


def other_widths(draw):
    return [(768, 3072, 20, 4), (768, 50257, 75, 4), (1024, 1024, 31, 1)]


def never(draw):
    return [(64, 64, 200, 2), (768, 768, 400, 2), (100, 100, 50, 2), (100, 100, 49, 2)]


# ---- 09-4

HEAD = "def count(n_layer, n_embd, vocab_size, T):\n"

RIGHT = (
    HEAD
    + "    qkv, proj, mlp = 3 * n_embd**2, n_embd**2, 2 * 4 * n_embd**2\n"
    + "    return 2 * T * (n_layer * (qkv + proj + mlp + 2 * T * n_embd) + vocab_size * n_embd)",
    HEAD
    + "    total = 2 * T * n_embd * vocab_size\n"
    + "    for _ in range(n_layer):\n"
    + "        total += 2 * T * n_embd * (3 * n_embd + n_embd + 4 * n_embd + 4 * n_embd)\n"
    + "        total += 2 * T * T * n_embd + 2 * T * T * n_embd\n"
    + "    return float(total)",
)

FORWARD = "2 * T * (n_layer * (12 * n_embd**2 + 2 * T * n_embd) + n_embd * vocab_size)"
COUNTS = {
    "has the backward pass in it": HEAD + f"    return 3 * {FORWARD}",
    "counts multiply and add as one": HEAD + f"    return {FORWARD} // 2",
    "leaves out attention's T × T": HEAD
    + "    return 2 * T * (n_layer * 12 * n_embd**2 + n_embd * vocab_size)",
    "counts half of T × T, as a causal kernel might": HEAD
    + "    return 2 * T * (n_layer * (12 * n_embd**2 + T * n_embd) + n_embd * vocab_size)",
    "counts qkᵀ and forgets the product with v": HEAD
    + "    return 2 * T * (n_layer * 12 * n_embd**2 + n_embd * vocab_size) + 2 * n_layer * T * T * n_embd",
    "leaves out the head": HEAD + "    return 2 * T * n_layer * (12 * n_embd**2 + 2 * T * n_embd)",
    "counts the token table as a product too": HEAD + f"    return {FORWARD} + 2 * T * n_embd * vocab_size",
    "has a head in every layer": HEAD
    + "    return 2 * T * n_layer * (12 * n_embd**2 + 2 * T * n_embd + n_embd * vocab_size)",
    "has an MLP that only widens": HEAD
    + "    return 2 * T * (n_layer * (8 * n_embd**2 + 2 * T * n_embd) + n_embd * vocab_size)",
    "is for one token": HEAD + f"    return ({FORWARD}) // T",
    "is two FLOPs for each parameter, biases and positions too": HEAD
    + "    params = vocab_size * n_embd + T * n_embd + n_layer * (12 * n_embd**2 + 13 * n_embd) + 2 * n_embd\n"
    + "    return 2 * T * params",
}

CHECKS = [
    Check("09-1", "a call from an empty queue to an empty queue, and as many calls as were asked for", 2, measured, steady, hidden=False),
    Check("09-1", "calls to warm up do not count, and a few disturbed ones do not matter", 2, measured, disturbed),
    Check("09-1", "work that was in the queue before is not measured", 1, measured, full_queue),
    Check("09-2", "the layer's FLOPs", 1, layer_flops, hidden=False),
    Check("09-2", "the layer's bytes", 1, layer_bytes),
    Check("09-2", "its limit, and the time that this allows", 2, limit_and_seconds, tolerance=1e-3),
    Check("09-2", "the run's MFU", 1, utilization, tolerance=1e-3),
    Check("09-3", "the smallest N for GPT-2's layers in 16 bits", 2, "tokens_to_ridge", gpt2_layers, hidden=False, tolerance=0),
    Check("09-3", "other widths of a number", 1, "tokens_to_ridge", other_widths, tolerance=0),
    Check("09-3", "shapes that reach no ridge", 1, "tokens_to_ridge", never, tolerance=0),
    CheckOfCheck("09-4", "refuses wrong counts, and no right one", 5, "check_count", "count", RIGHT, COUNTS, hidden=False, seconds=20),
]  # fmt: skip

WAIT = "        device.synchronize()\n        start = device.clock()\n"
WRONG = [
    Wrong("09-1", "nobody waits for the device: that is the time to ask for a kernel", "        call()\n        device.synchronize()\n", "        call()\n"),
    Wrong("09-1", "nobody waits before the clock is started: work of others is measured too", WAIT, "        start = device.clock()\n"),
    Wrong("09-1", "the calls that warm up count", "    for _ in range(warmup):\n        call()\n    times = []\n    for _ in range(repeats):",
          "    times = []\n    for _ in range(warmup + repeats):"),
    Wrong("09-1", "there is no warm-up", "    for _ in range(warmup):\n        call()\n", ""),
    Wrong("09-1", "a mean, which one disturbed call moves", "median(times)", "sum(times) / len(times)"),
    Wrong("09-1", "the fastest call, not the median", "median(times)", "min(times)"),
    Wrong("09-1", "one wait for all calls, divided by their number: that is a mean, and launches overlap with work",
          "    return median(times)",
          "    device.synchronize()\n    start = device.clock()\n    for _ in range(repeats):\n        call()\n    device.synchronize()\n    return (device.clock() - start) / repeats"),
    Wrong("09-2", "a multiplication and an addition are two FLOPs", "flops = 2 * N * C * 4 * C", "flops = N * C * 4 * C"),
    Wrong("09-2", "c_fc makes 4·C outputs, each a sum of C terms", "flops = 2 * N * C * 4 * C", "flops = 2 * N * C * C"),
    Wrong("09-2", "only the matrix was counted: tokens and results move too", "(N * C + 4 * C * C + N * 4 * C)", "(4 * C * C)"),
    Wrong("09-2", "the result has to be written as well", "(N * C + 4 * C * C + N * 4 * C)", "(N * C + 4 * C * C)"),
    Wrong("09-2", "16 bits are two bytes", "moved = 2 *", "moved = 4 *"),
    Wrong("09-2", "the two times are not added: memory and arithmetic work at the same time", "max(moved / bandwidth, flops / peak)",
          "moved / bandwidth + flops / peak"),
    Wrong("09-2", "the limit is what takes longer, not what takes less",
          '"memory" if moved / bandwidth > flops / peak else "arithmetic"', '"arithmetic" if moved / bandwidth > flops / peak else "memory"'),
    Wrong("09-2", "training is forward and backward: three times the forward pass", "rate * flops_per_token(shape, 1024) / peak",
          "rate * flops_per_token(shape, 1024) / 3 / peak"),
    Wrong("09-2", "six FLOPs for each parameter leave attention's T × T out", "flops_per_token(shape, 1024)",
          "6 * (12 * shape.n_layer * shape.n_embd**2 + 50257 * shape.n_embd)"),
    Wrong("09-3", "only the matrix was taken to move: that is the answer for very wide layers", "return -(-ridge * width * inputs * outputs // gain)",
          "return -(-ridge * width // 2)"),
    Wrong("09-3", "rounded down: one token too few", "-(-ridge * width * inputs * outputs // gain)", "ridge * width * inputs * outputs // gain"),
    Wrong("09-3", "the results were not counted among the bytes", "(inputs + outputs)", "inputs"),
    Wrong("09-3", "a multiplication and an addition are two FLOPs, not one", "gain = 2 * inputs", "gain = inputs"),
    Wrong("09-3", "a number was taken to have two bytes, whatever width says",
          "    gain = 2 * inputs", "    width = 2\n    gain = 2 * inputs"),
    Wrong("09-3", "where no N is enough the formula gives a negative one", "    if gain <= 0:\n        return 0\n", "    gain = gain or -1\n"),
    Wrong("09-4", "accepts everything", code="def check_count(count): pass"),
    Wrong("09-4", "refuses everything", code="def check_count(count): assert False"),
    Wrong("09-4", "tries GPT-2's shape only, with a tolerance that hides small parts", code="""
        def check_count(count):
            assert math.isclose(count(12, 768, 50257, 1024), 291648307200, rel_tol=0.1)
        """),
    Wrong("09-4", "compares how the count grows with the layers, and not what it is", code="""
        def check_count(count):
            a, b, c = (count(L, 64, 100, 32) for L in (1, 2, 3))
            assert abs((c - b) - (b - a)) < 1 and b > a
        """),
    Wrong("09-4", "compares with twice the parameters, which is no count of products", code="""
        def check_count(count):
            for L, C, V, T in ((2, 64, 100, 32), (1, 32, 50, 16)):
                assert math.isclose(count(L, C, V, T), 2 * T * (12 * L * C * C + V * C), rel_tol=0.1)
        """),
]  # fmt: skip

# Right, and by what the task forbids: `#| forbids` in exercise.py.
FORBIDDEN = [
    Wrong("09-3", "one N after the other is tried, which a formula does without", code="""
          def tokens_to_ridge(inputs, outputs, ridge, width):
              moved = lambda N: width * (N * inputs + inputs * outputs + N * outputs)
              return next((N for N in range(1, 100_000) if 2 * N * inputs * outputs >= ridge * moved(N)), 0)
          """),
]  # fmt: skip

MANUAL = {"09-5": 2}
RUBRIC = {
    "09-5": "Half a point for each of three things with a way to find out (2 points for three good ones). Good ones: the clock was read "
    "without a synchronize, so the fastest 'step' is the time to launch it (synchronize, or compare with tokens a minute); the "
    "best step is no rate (take a median); a T4 has no bf16 in its tensor cores, so either it is emulated or it is not bf16 (the "
    "table of chapters 09 and 10); the FLOPs may include recomputation, count T × T double, or 6·N with the wrong N (count with "
    "FlopCounterMode); the peak may be another one, of float32 or of another GPU (65 TFLOP/s in float16 by the data sheet); "
    "nvidia-smi's utilization says only that some kernel ran. No point for 'the GPU was warm'.",
}
