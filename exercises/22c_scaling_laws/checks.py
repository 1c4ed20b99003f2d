"""How exercises 22c are graded."""

import math

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def uniform(draw, low: float, high: float) -> float:
    return low + (high - low) * torch.rand((), generator=draw).item()


def measured(draw, noise: float, n: int = 7) -> tuple:
    """D, losses and E of a law, with noise."""
    E, A, b = uniform(draw, 0.5, 2.0), uniform(draw, 10, 50), uniform(draw, 0.2, 0.5)
    D = [2.0 ** (10 + i) for i in range(n)]
    z = torch.randn(n, generator=draw).mul(noise).tolist()
    return D, [(E + A / d**b) * math.exp(e) for d, e in zip(D, z)], E


def some_fits(draw):
    """At the true E, below it, and at zero."""
    found = []
    for noise in (0.0, 0.001):
        D, losses, E = measured(draw, noise)
        found += [(D, losses, share * E) for share in (0.0, 0.5, 0.95)]
    return found


def some_predictions(draw):
    return [(*fit, 1e8) for fit in some_fits(draw)]


def some_searches(draw):
    """Candidates above the lowest loss; noise; the best one not the largest possible."""
    found = []
    for noise in (0.0, 0.005, 0.02, 0.02, 0.02):
        D, losses, E = measured(draw, noise)
        found.append((D, losses, [E * i / 16 for i in range(33)]))
    D, losses, E = measured(draw, 0.0)
    return [*found, (D, losses, [0.0, 0.9 * min(losses), 0.999 * min(losses), 2 * min(losses)])]


def profile(draw, n: int, where: float, noise: float, up: float = 1.0) -> tuple:
    """Sizes and losses of a parabola over log N, whose bottom is so far along the sizes."""
    sizes = [1e5 * 1.7**i * uniform(draw, 0.95, 1.05) for i in range(n)]
    x = [math.log(size) for size in sizes]
    bottom = x[0] + where * (x[-1] - x[0])
    z = torch.randn(n, generator=draw).mul(noise).tolist()
    a = up * uniform(draw, 0.05, 0.3)
    return sizes, [2.0 + a * (each - bottom) ** 2 + e for each, e in zip(x, z)]


def valleys(draw):
    return [profile(draw, 3, 0.4, 0.0), profile(draw, 5, 0.6, 0.0), profile(draw, 9, 0.5, 0.01)]


def no_valleys(draw):
    """A hill, bottoms outside on both sides, just inside and just outside; two that are valleys."""
    return [
        profile(draw, 5, 0.5, 0.0, up=-1.0),
        profile(draw, 5, -0.3, 0.0),
        profile(draw, 5, 1.4, 0.0),
        profile(draw, 5, 1.04, 0.0),
        profile(draw, 6, 0.96, 0.0),
        profile(draw, 6, 0.03, 0.0),
    ]


def some_bottoms(draw):
    found = []
    for missing in ((), (1,), (0, 4)):
        budgets = [1e15 * 4.0**i for i in range(6)]
        power = uniform(draw, 0.3, 0.8)
        sizes = [1e4 * C**power / 1e15**power * uniform(draw, 0.8, 1.25) for C in budgets]
        found.append((budgets, [None if i in missing else N for i, N in enumerate(sizes)]))
    return found


def best_of(s, law, budget, used):
    return list(s.best(s.Law(*law), budget, used))


def law_of(draw) -> tuple:
    return (uniform(draw, 0, 2), uniform(draw, 100, 900), uniform(draw, 0.25, 0.4), uniform(draw, 100, 3000), uniform(draw, 0.25, 0.4))  # fmt: skip


def never_used(draw):
    return [(law_of(draw), 10.0 ** uniform(draw, 18, 25), 0.0) for _ in range(3)]


def much_used(draw):
    """A little, about as much as training, and far more."""
    return [(law_of(draw), 10.0 ** uniform(draw, 20, 23), 10.0**k) for k in (9, 11, 12, 13)]


BEST = """
def best(E, A, alpha, B, beta, flops):
    G = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
    N = G * (flops / 6) ** (beta / (alpha + beta))
    return N, flops / 6 / N
"""


def changed(old: str, new: str) -> str:
    assert BEST.count(old) == 1, old
    return BEST.replace(old, new)


CHECKS = [
    Check("22c-1", "the line through log(L - E)", 1, "fit", some_fits, tolerance=1e-4),
    Check("22c-1", "a prediction far outside", 1, "predict", some_predictions, tolerance=1e-4),
    Check("22c-1", "the best of many constants", 1, "best_E", some_searches, tolerance=1e-4),
    Check("22c-1", "your own runs", 2, "answers", tolerance=1e-4),
    Check("22c-2", "the bottom of a valley", 1, "lowest", valleys, tolerance=1e-4),
    Check("22c-2", "a valley, or none", 2, "lowest", no_valleys, tolerance=1e-4),
    Check("22c-2", "how the best size grows", 1, "exponent", some_bottoms, tolerance=1e-4),
    Check("22c-3", "a model that nobody uses", 1, best_of, never_used, tolerance=2e-3),
    Check("22c-3", "models that are used a little and much", 2, best_of, much_used, tolerance=2e-3),
    Check("22c-3", "your own budget", 2, "answers", tolerance=4e-3),
    CheckOfCheck(
        "22c-4",
        "the check finds sizes that are not the best, or cost something else",
        5,
        "check_best",
        "best",
        right=(
            BEST,
            "import math\n\ndef best(E, A, alpha, B, beta, flops):\n    low, high = 0.0, math.log(flops)\n"
            "    f = lambda x: A * math.exp(-alpha * x) + B * (6 * math.exp(x) / flops) ** beta\n"
            "    for _ in range(120):\n        a, b = (2 * low + high) / 3, (low + 2 * high) / 3\n"
            "        low, high = (low, b) if f(a) < f(b) else (a, high)\n    return math.exp(low), flops / 6 / math.exp(low)",
            changed("N = G *", "N = 1.0005 * G *"),
        ),
        wrong={
            "alpha and beta are exchanged in the exponent": changed("(beta / (alpha + beta))", "(alpha / (alpha + beta))"),
            "G is upside down": changed("(1 / (alpha + beta))", "(-1 / (alpha + beta))"),
            "G is left out": changed("N = G *", "N ="),
            "alpha and beta are left out of G": changed("(alpha * A / (beta * B))", "(A / B)"),
            "A and B are left out of G": changed("(alpha * A / (beta * B))", "(alpha / beta)"),
            "the power of G is one": changed(" ** (1 / (alpha + beta))\n", "\n"),
            "the six is forgotten in D": changed("flops / 6 / N", "flops / N"),
            "the six is forgotten in both: N D = flops": BEST.replace("flops / 6", "flops"),
            "D comes before N": changed("return N, flops / 6 / N", "return flops / 6 / N, N"),
            "as many tokens as parameters": changed("N = G * (flops / 6) ** (beta / (alpha + beta))", "N = (flops / 6) ** 0.5"),
            "twenty tokens a parameter": changed("N = G * (flops / 6) ** (beta / (alpha + beta))", "N = (flops / 120) ** 0.5"),
            "half of the best size, with the same budget": changed("N = G *", "N = 0.5 * G *"),
            "five per cent too large": changed("N = G *", "N = 1.05 * G *"),
            "N and D each the best, as if the other were free": changed("flops / 6 / N", "flops / 6 / N * 1.3"),
            "the square root of the budget, whatever the exponents are": changed("(beta / (alpha + beta))", "0.5"),
        },
        hidden=False,
    ),
]  # fmt: skip

SEARCH = """
          def best(law, budget, used):
              def tokens(N):
                  return {tokens}
              low, high = 0.0, math.log({most})
              for _ in range(80):
                  a, b = low + (high - low) / 3, high - (high - low) / 3
                  if law.loss(math.exp(a), tokens(math.exp(a))) < law.loss(math.exp(b), tokens(math.exp(b))):
                      high = b
                  else:
                      low = a
              N = math.exp(low)
              return N, {left}
          (alone, read), (shared, more) = (best(LAW, mine["budget"], used) for used in (0.0, mine["used"]))
          answers = [alone, read / alone, shared, more / shared]
"""

WRONG = [
    Wrong("22c-1", "E is not subtracted before the logarithm, so the line is that of E = 0", "np.array(losses) - E)", "np.array(losses))"),
    Wrong("22c-1", "E is forgotten in the prediction: the line is that of L - E", "return E + A / tokens**b", "return A / tokens**b"),
    Wrong("22c-1", "b is the slope itself, which is negative", "float(-slope)", "float(slope)"),
    Wrong("22c-1", "the intercept is returned as A: it is log A", "float(np.exp(intercept))", "float(intercept)"),
    Wrong("22c-1", "candidates are compared by log(L - E), in which the same noise counts more for a larger E", "math.log((E + A / d**b) / loss)",
          "math.log(A / d**b / (loss - E))"),
    Wrong("22c-1", "errors of both signs are added before they are squared, and cancel each other", "sum(z * z for z in logs)", "sum(logs) ** 2"),
    Wrong("22c-2", "the parabola is laid over N, and not over log N", code="""
          def lowest(sizes, losses):
              a, b, _ = np.polyfit(np.array(sizes) / 1e5, losses, 2)
              bottom = float(-b / (2 * a)) * 1e5
              return bottom if a > 0 and min(sizes) <= bottom <= max(sizes) else None
          def exponent(budgets, bottoms):
              known = [(math.log(C), math.log(N)) for C, N in zip(budgets, bottoms) if N is not None]
              return float(np.polyfit(*zip(*known), 1)[0])
          """),
    Wrong("22c-2", "the smallest of the measured losses, and not the bottom between them", "return bottom if min(sizes)",
          "bottom = sizes[losses.index(min(losses))]\n    return bottom if min(sizes)"),
    Wrong("22c-2", "the top of a hill is taken for the bottom of a valley", "a <= 0", "False"),
    Wrong("22c-2", "a bottom outside of the sizes is returned: it is extrapolated", "bottom if min(sizes) <= bottom <= max(sizes) else None", "bottom"),
    Wrong("22c-2", "log N is returned, and not N", "return bottom if", "return float(np.log(bottom)) if"),
    Wrong("22c-2", "the parabola is laid through the logs of the losses", "np.polyfit(np.log(sizes), losses, 2)", "np.polyfit(np.log(sizes), np.log(losses), 2)"),
    Wrong("22c-2", "the exponent is taken from the first and the last budget alone", "float(np.polyfit(*zip(*known), 1)[0])",
          "(known[-1][1] - known[0][1]) / (known[-1][0] - known[0][0])"),
    Wrong("22c-2", "the budget is laid over the size: the power is the other way round", "np.polyfit(*zip(*known), 1)", "np.polyfit(*list(zip(*known))[::-1], 1)"),
    Wrong("22c-3", "use is free: the whole budget is for training", code=SEARCH.format(tokens="budget / N / 6", most="budget", left="tokens(N)")),
    Wrong("22c-3", "use costs as much as training, six for each parameter and token: backward is paid for, which nobody runs",
          code=SEARCH.format(tokens="(budget / N - 6 * used) / 6", most="budget / (6 * used) if used else budget", left="tokens(N)")),
    Wrong("22c-3", "the best size for the whole budget, and what is left goes into fewer tokens", code="""
          def best(law, budget, used):
              G = (law.alpha * law.A / (law.beta * law.B)) ** (1 / (law.alpha + law.beta))
              N = G * (budget / 6) ** (law.beta / (law.alpha + law.beta))
              return N, (budget / N - 2 * used) / 6
          (alone, read), (shared, more) = (best(LAW, mine["budget"], used) for used in (0.0, mine["used"]))
          answers = [alone, read / alone, shared, more / shared]
          """),
    Wrong("22c-3", "D has the tokens of its use as well, from which nobody learns", code=SEARCH.format(
          tokens="(budget / N - 2 * used) / 6", most="budget / (2 * used) if used else budget", left="tokens(N) + used")),
    Wrong("22c-3", "training costs 2 N D: its backward pass is forgotten", code=SEARCH.format(
          tokens="(budget / N - 2 * used) / 2", most="budget / (2 * used) if used else budget", left="tokens(N)")),
    Wrong("22c-4", "the check accepts everything", code="def check_best(best):\n    pass"),
    Wrong("22c-4", "the check looks at the budget alone", code="""
          def check_best(best):
              N, D = best(1.7, 400.0, 0.34, 410.0, 0.28, 6e18)
              assert abs(6 * N * D / 6e18 - 1) < 1e-6
          """),
    Wrong("22c-4", "the check tries one law in which N and D are alike", code="""
          def check_best(best):
              N, D = best(1.0, 9.0, 0.3, 9.0, 0.3, 6e18)
              assert abs(N / 1e9 - 1) < 1e-3 and abs(D / 1e9 - 1) < 1e-3
          """),
    Wrong("22c-4", "the check looks for neighbours that are better, and not at what they cost", code="""
          def check_best(best):
              law = Law(1.7, 400.0, 0.34, 410.0, 0.28)
              N, D = best(1.7, 400.0, 0.34, 410.0, 0.28, 6e18)
              for factor in (0.5, 2):
                  assert law.loss(N, D) < law.loss(N * factor, D / factor)
          """),
]  # fmt: skip

MANUAL = {"22c-5": 2}
RUBRIC = {
    "22c-5": "½ point each. Interval: five lengths of one trunk are not independent, so whole trunks should be drawn (also right: an optimiser that stays near its start makes intervals too narrow). Determine E: leave some runs out (the shortest), "
    "fix E at another value and see whether the fit gets worse, start from many points; if the error stays the same, the runs do not determine it. Error inside: the runs that were fitted say nothing of what only larger ones reach "
    "(shelves, another slope); a law has to predict runs that it has not seen. A token: nats a token depend on the tokenizer, so at best it is a figure for this text in this vocabulary; per byte, or per character, it could be compared; and E is that of the family of models "
    "and of these data, an upper bound at best."
}
