"""How exercises 25 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# --- 25-2 ----------------------------------------------------------------------------------------------------


def apart(draw):
    return [(20, 5, 10, 0.0), (7, 2, 3, 0.0), (1, 1, 1, 0.0)]


def down_to_a_rest(draw):
    return [(20, 3, 10, 0.1), (9, 0, 9, 0.25), (5, 0, 1, 0.5)]


def without_one(draw):
    return [(6, 0, 3, 0.0), (6, 3, 0, 0.0), (6, 0, 0, 0.3)]


def overlapping(draw):
    return [(10, 8, 8, 0.0), (10, 10, 10, 0.2), (4, 9, 4, 0.0)]


# --- 25-3 ----------------------------------------------------------------------------------------------------


def heads(draw):
    """Queries and keys of several lengths, in batches of more than one."""
    sizes = [(1, 1, 4, 4), (2, 3, 5, 8), (2, 2, 6, 4)]
    return [(torch.randn(*size, generator=draw), 3 * torch.randn(*size, generator=draw)) for size in sizes]


def long_and_short(draw):
    """Each vector has a length of its own, from 0.1 to 100."""
    q, k = (torch.randn(2, 2, 5, 8, generator=draw) for _ in range(2))
    lengths = 10 ** (3 * torch.rand(2, 2, 2, 5, 1, generator=draw) - 1)
    return [(lengths[0] * q, lengths[1] * k)]


def zeros(draw):
    q, k = (torch.randn(1, 2, 4, 4, generator=draw) for _ in range(2))
    q[0, 1, 2] = 0
    k[0, 0, 1] = 0
    return [(q, k)]


def what_is_left(s, q, k):
    """The given tensors after the call."""
    q, k = q.clone(), k.clone()
    s.scores(q, k)
    return [q, k]


# --- 25-4 ----------------------------------------------------------------------------------------------------


def vectors(draw):
    sizes = [(1, 1, 3, 4), (2, 3, 5, 8), (1, 2, 9, 16)]
    return [(torch.randn(*size, generator=draw), base) for size, base in zip(sizes, (10.0, 1000.0, 10_000.0))]


def products(s, q, k, base):
    """Scores of the same query and key at every two positions; they depend on the distance alone."""
    T = 12
    turned = [s.turned(x.expand(1, 1, T, -1).clone(), base)[0, 0] for x in (q, k)]
    table = turned[0] @ turned[1].T
    return [table.diagonal(-n) for n in range(T)]


def one_query_and_key(draw):
    return [(*torch.randn(2, 8, generator=draw), 100.0), (*torch.randn(2, 16, generator=draw), 1000.0)]


# --- 25-5 ----------------------------------------------------------------------------------------------------


def layers(draw):
    """x, up, down and dy, for one row and for five."""
    inputs = []
    for N in (1, 5):
        sizes = ((N, 4), (7, 4), (4, 7), (N, 4))
        inputs.append(tuple(torch.randn(*size, generator=draw) for size in sizes))
    return inputs


def first_gradient(s, *args):
    return s.backward(*args)[0]


def second_gradient(s, *args):
    return s.backward(*args)[1]


def third_gradient(s, *args):
    return s.backward(*args)[2]


# --- 25-6: plans, as text ------------------------------------------------------------------------------------

PLAIN = """
def plan(n, context):
    return [(at, at, min(at + context, n - 1)) for at in range(0, n - 1, context)]
"""
OVERLAP = """
def plan(n, context):
    found, new = [], 0
    while new < n - 1:
        stop = min(max(new, context // 2) + (context + 1) // 2, n - 1)
        found.append((max(0, stop - context), new, stop))
        new = stop
    return found
"""
EACH = """
def plan(n, context):
    return [(max(0, stop - context), stop - 1, stop) for stop in range(n - 1, 0, -1)]
"""
SHORT_FIRST = """
def plan(n, context):
    found, stop = [], n - 1
    while stop > 0:
        found.append([max(0, stop - context)] * 2 + [stop])
        stop -= context
    return tuple(tuple(window) for window in found)
"""


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


def sometimes(condition: str, cheat: str) -> str:
    """The right plan, but for some n and contexts."""
    return changed(PLAIN, "    return", f"    if {condition}:\n        return {cheat}\n    return")


TWICE = "[(at, at, min(at + 2 * context, n - 1)) for at in range(0, n - 1, 2 * context)]"
WRONG_PLANS = {
    "windows are one id longer than the context": changed(PLAIN, "context, n - 1)) for at in range(0, n - 1, context)", "context + 1, n - 1)) for at in range(0, n - 1, context + 1)"),
    "targets have twice the context": changed(EACH, "stop - context", "stop - 2 * context"),
    "what is left at the end is dropped": changed(PLAIN, "range(0, n - 1, context)", "range(0, n - 1 - (n - 1) % context, context)"),
    "what is left at the end is read by a longer last window": sometimes("n - 1 > context and (n - 1) % context", "plan(n - (n - 1) % context, context)[:-1] + [(n - 1 - (n - 1) % context - context, n - 1 - (n - 1) % context - context, n - 1)]"),
    "the first target of each window is left out": sometimes("context > 1 and n > 2", "[(at, at + 1, min(at + context, n - 1)) for at in range(0, n - 2, context)]"),
    "targets that overlap count twice": sometimes("context > 1", "[(at, at, min(at + context, n - 1)) for at in range(0, n - 1, context - 1)]"),
    "the window at the end goes on behind the text": changed(PLAIN, "min(at + context, n - 1)", "at + context"),
    "a window without targets comes last if the text fits exactly": sometimes("(n - 1) % context == 0", "[(at, at, min(at + context, n - 1)) for at in range(0, n, context)]"),
    "the first window is left out": changed(PLAIN, "range(0,", "range(context,"),
    "windows begin in front of the text": changed(EACH, "max(0, stop - context)", "stop - context"),
    "a long text gets twice the context": sometimes("n > 250", TWICE),
    "a text shorter than one window gets no window": sometimes("n <= context", "[]"),
    "the last target is left out": changed(PLAIN, "min(at + context, n - 1)", "min(at + context, n - 2)"),
    "hard windows are replaced by the first one": sometimes("n > 4 * context", "[PLAN for PLAN in [(at, at, at + context) for at in range(0, n - 1 - context, context)][:1] * (-(-(n - 1) // context))]"),
    "a target is read before it is predicted": changed(EACH, "stop - 1, stop", "stop, stop"),
}  # fmt: skip

CHECKS = [
    Check("25-1", "the number of runs", 1, "needed", hidden=False),
    Check("25-1", "the margin of five runs", 1, "least", tolerance=1e-4),
    Check("25-1", "a lucky one among many", 1, "lucky", tolerance=1e-4),
    Check("25-2", "up, flat and down", 1, "factors", apart, hidden=False),
    Check("25-2", "down to more than zero", 1, "factors", down_to_a_rest),
    Check("25-2", "no warm-up, no cooldown", 1, "factors", without_one),
    Check("25-2", "a cooldown that begins within the warm-up", 1, "factors", overlapping),
    Check("25-3", "scores of ordinary heads", 1, "scores", heads, hidden=False, tolerance=1e-4),
    Check("25-3", "vectors of very different lengths", 1, "scores", long_and_short, tolerance=1e-3),
    Check("25-3", "vectors of zeros", 1, "scores", zeros, tolerance=1e-4),
    Check("25-3", "what is given stays as it is", 1, what_is_left, heads, tolerance=0),
    Check("25-4", "vectors of several widths", 2, "turned", vectors, hidden=False, tolerance=1e-4),
    Check("25-4", "scores depend on the distance", 1, products, one_query_and_key, tolerance=1e-4),
    Check("25-5", "the gradient of down", 1, third_gradient, layers, hidden=False),
    Check("25-5", "the gradient of up", 1, second_gradient, layers),
    Check("25-5", "the gradient of x", 1, first_gradient, layers),
    CheckOfCheck("25-6", "accepts plans that keep the rule and refuses those that break it", 5, "check_plan", "plan",
                 (PLAIN, OVERLAP, EACH, SHORT_FIRST), WRONG_PLANS, seconds=30),
]  # fmt: skip

WRONG = [
    Wrong("25-1", "the spread is divided by n, not by its root", "spread / math.sqrt(n)", "spread / n"),
    Wrong("25-1", "the largest number of runs that is enough is taken, not the smallest", "min(n for", "max(n for"),
    Wrong("25-1", "the spread is divided by √(n − 1), but stdev has divided by n − 1 already", "math.sqrt(5)", "math.sqrt(4)"),
    Wrong("25-1", "the chances are added up, as if two recipes could not be lucky together", "1 - 0.99**recipes", "0.01 * recipes"),
    Wrong("25-1", "this is the probability that no recipe is accepted", "1 - 0.99**recipes", "0.99**recipes"),
    Wrong("25-1", "this is the probability that all recipes are accepted", "1 - 0.99**recipes", "0.01**recipes"),
    Wrong("25-2", "the warm-up begins with a rate of zero", "(step + 1) / warmup", "step / warmup"),
    Wrong("25-2", "the last step has a rate of zero, so it learns nothing", "(steps - step) / cooldown", "(steps - step - 1) / cooldown"),
    Wrong("25-2", "the cooldown ends at zero whatever `last` is", "last + (1 - last) *", "1.0 *"),
    Wrong("25-2", "the factor is cut off at `last`, where it should fall towards it in equal parts",
          "last + (1 - last) * min(1.0, left)", "max(last, min(1.0, left))"),
    Wrong("25-2", "where warm-up and cooldown overlap, the factors are multiplied", "min(1.0, up, down)", "min(1.0, up) * down"),
    Wrong("25-2", "the warm-up hides a cooldown that begins before its end", "min(1.0, up, down)", "up if step < warmup else down"),
    Wrong("25-3", "the mean is taken over the positions, so each vector contains the later ones", code="""
          def scores(q, k):
              T, d = q.shape[-2:]
              q = q / (q.square().mean(dim=-2, keepdim=True) + 1e-6).sqrt()
              k = k / (k.square().mean(dim=-2, keepdim=True) + 1e-6).sqrt()
              future = torch.ones(T, T, dtype=torch.bool).triu(1)
              return (q @ k.mT / math.sqrt(d)).masked_fill(future, -math.inf)
          """),
    Wrong("25-3", "the vectors get the length 1, where their length should be √d", code="""
          def scores(q, k):
              T, d = q.shape[-2:]
              q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
              future = torch.ones(T, T, dtype=torch.bool).triu(1)
              return (q @ k.mT / math.sqrt(d)).masked_fill(future, -math.inf)
          """),
    Wrong("25-3", "the mean is over all heads together, so a long head makes the others short", code="""
          def scores(q, k):
              T, d = q.shape[-2:]
              q = q / (q.square().mean(dim=(1, 3), keepdim=True) + 1e-6).sqrt()
              k = k / (k.square().mean(dim=(1, 3), keepdim=True) + 1e-6).sqrt()
              future = torch.ones(T, T, dtype=torch.bool).triu(1)
              return (q @ k.mT / math.sqrt(d)).masked_fill(future, -math.inf)
          """),
    Wrong("25-3", "the mean is subtracted as well, as LayerNorm does", code="""
          def scores(q, k):
              T, d = q.shape[-2:]
              q, k = F.layer_norm(q, (d,)), F.layer_norm(k, (d,))
              future = torch.ones(T, T, dtype=torch.bool).triu(1)
              return (q @ k.mT / math.sqrt(d)).masked_fill(future, -math.inf)
          """),
    Wrong("25-3", "keys are not normalized, so scores grow with their length",
          "k = k / (k.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()", "k = k * 1.0"),
    Wrong("25-3", "nothing is added below the root, and a vector of zeros becomes nan",
          "q = q / (q.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()", "q = q / q.square().mean(dim=-1, keepdim=True).sqrt()"),
    Wrong("25-3", "q is divided in place, and the caller's tensor changes",
          "q = q / (q.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()", "q /= (q.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()"),
    Wrong("25-4", "all pairs turn, as in the original rotary positions", code="""
          def turned(x, base):
              T, d = x.shape[-2:]
              speeds = base ** -(torch.arange(d // 2) / (d // 4))
              angles = torch.arange(T)[:, None] * speeds
              a, b = x.chunk(2, dim=-1)
              return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1)
          """),
    Wrong("25-4", "the pairs with the low frequencies turn, and the others do not", "torch.cat([speeds, torch.zeros(d // 4)])", "torch.cat([torch.zeros(d // 4), speeds])"),
    Wrong("25-4", "the frequencies are spread over d/2 pairs, of which only half turn", "(torch.arange(d // 4) / (d // 4))", "(torch.arange(d // 4) / (d // 2))"),
    Wrong("25-4", "neighbours are taken as pairs, where i and i + d/2 are one", code="""
          def turned(x, base):
              T, d = x.shape[-2:]
              speeds = torch.cat([base ** -(torch.arange(d // 4) / (d // 4)), torch.zeros(d // 4)])
              angles = torch.arange(T)[:, None] * speeds
              a, b = x[..., 0::2], x[..., 1::2]
              return torch.stack([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], dim=-1).flatten(-2)
          """),
    Wrong("25-4", "the pairs turn the other way round", "angles = torch.arange(T)", "angles = -torch.arange(T)"),
    Wrong("25-4", "the signs of both sines are the same, so lengths change", "b * angles.cos() + a", "b * angles.cos() - a"),
    Wrong("25-4", "positions are counted from 1", "angles = torch.arange(T)", "angles = torch.arange(1, T + 1)"),
    Wrong("25-5", "the factor 2 of the square's derivative is missing", "dy @ down * 2 * r", "dy @ down * r"),
    Wrong("25-5", "the derivative is 2h also where h is negative", "dy @ down * 2 * r", "dy @ down * 2 * (x @ up.T)"),
    Wrong("25-5", "this is the derivative of relu, not of its square", "dy @ down * 2 * r", "dy @ down * (r > 0)"),
    Wrong("25-5", "the gradient of down is made with relu(h), where relu(h)² went into the product", "r.square()", "r"),
    Wrong("25-5", "the gradients of up and down are returned in the other order", "dh @ up, dh.T @ x, ddown", "dh @ up, ddown, dh.T @ x"),
    Wrong("25-6", "the check accepts everything", code="def check_plan(plan):\n    plan(100, 10)"),
    Wrong("25-6", "the check refuses everything", code="def check_plan(plan):\n    assert False"),
    Wrong("25-6", "only the number of targets is looked at", code="""
          def check_plan(plan):
              for n in range(2, 300, 7):
                  for context in (1, 16, 64):
                      assert sum(stop - new for start, new, stop in plan(n, context)) == n - 1
          """),
    Wrong("25-6", "the targets are looked at, and not how much the model reads for them", code="""
          def check_plan(plan):
              for n in range(2, 300):
                  for context in (1, 16):
                      targets = [t for start, new, stop in plan(n, context) for t in range(new + 1, stop + 1)]
                      assert sorted(targets) == list(range(1, n))
          """),
    Wrong("25-6", "windows that overlap are refused, although the rule allows them", code="""
          def check_plan(plan):
              for n in range(2, 300):
                  windows = sorted(plan(n, 16))
                  assert [start for start, _, _ in windows] == list(range(0, n - 1, 16))
          """),
    Wrong("25-6", "one text is tried, and it fits its windows exactly", code="""
          def check_plan(plan):
              targets = []
              for start, new, stop in plan(65, 16):
                  assert 0 <= start <= new < stop <= 64 and stop - start <= 16
                  targets += range(new + 1, stop + 1)
              assert sorted(targets) == list(range(1, 65))
          """),
]  # fmt: skip

MANUAL = {}
RUBRIC = {}
