"""How exercises 08 are graded."""

import math

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# ---- 08-1


def exact(draw):
    """Masses that float32 adds exactly, so that "reaches" means what it says."""
    one = torch.tensor([[0.125, 0.5, 0.25, 0.125], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 1.0, 0.0]])
    return [(one, p) for p in (0.01, 0.3, 0.5, 0.51, 0.75, 0.76, 0.99)]


def random_rows(draw):
    return [
        ((sharp * torch.randn(B, V, generator=draw)).softmax(-1), p)
        for B, V, sharp, p in ((1, 5, 1, 0.7), (6, 40, 2, 0.9), (4, 300, 1, 0.35), (3, 12, 8, 0.2))
    ]


def without_ties(draw):
    return [(torch.tensor([[0.0625, 0.5, 0.3125, 0.125]]), p) for p in (0.3, 0.5, 0.6, 0.8125, 0.9)]


# ---- 08-2


def rows_of_logits(draw):
    return [
        (3 * torch.randn(B, V, generator=draw) + more, temperature, min_p)
        for B, V, more, temperature, min_p in (
            (1, 6, 0.0, 1.0, 0.0),
            (4, 20, 5.0, 1.0, 0.1),
            (3, 9, -7.0, 0.5, 0.2),
            (5, 30, 0.0, 2.5, 0.5),
        )
    ]


def ties(draw):
    return [
        (torch.tensor([[2.0, -1.0, 2.0, 0.5], [1.0, 3.0, 0.0, 2.0], [500.0, 0.0, 1.0, 0.0]]), T, 1.0)
        for T in (0.7, 1.0, 3.0)
    ]


def cold(draw):
    logits = 100 * torch.randn(3, 8, generator=draw) + 300
    return [(logits, 0.0, 0.0), (logits, 1e-37, 0.0), (logits, 1e-37, 0.1), (logits, 0.0, 0.5)]


def finite(s, logits, temperature, min_p):
    return s.token_probs(logits, temperature, min_p).nan_to_num(-1.0)  # results have to be finite


# ---- 08-3

HEAD = "import torch\ndef penalize(logits, seen, penalty):\n"

RIGHT = (
    HEAD + "    lower = torch.minimum(logits / penalty, logits * penalty)\n"
    "    return torch.where(seen, lower if penalty >= 1 else torch.maximum(logits / penalty, logits * penalty), logits)",
    HEAD + "    return logits * torch.where(seen, penalty ** -logits.sign(), torch.ones_like(logits))",
    HEAD
    + "    out = logits.clone()\n"
    + "    for b in range(logits.size(0)):\n"
    + "        for i in seen[b].nonzero()[:, 0].tolist():\n"
    + "            out[b, i] = out[b, i] / penalty if out[b, i] > 0 else out[b, i] * penalty\n"
    + "    return out",
)

SAME = "torch.where(logits > 0, logits / penalty, logits * penalty)"
PENALTIES = {
    "divides negative logits too": HEAD + "    return torch.where(seen, logits / penalty, logits)",
    "penalises every token": HEAD + f"    return {SAME}",
    "penalises the tokens that were not seen": HEAD + f"    return torch.where(seen, logits, {SAME})",
    "takes what the first text has seen for all": HEAD + f"    return torch.where(seen[:1], {SAME}, logits)",
    "takes what any text has seen for all": HEAD
    + f"    return torch.where(seen.any(0, keepdim=True), {SAME}, logits)",
    "subtracts": HEAD + "    return logits - (penalty - 1) * seen",
    "leaves negative logits as they are": HEAD
    + "    return torch.where(seen & (logits > 0), logits / penalty, logits)",
    "multiplies positive logits: seen tokens become likelier": HEAD
    + "    return torch.where(seen, torch.where(logits < 0, logits / penalty, logits * penalty), logits)",
    "has a penalty of its own": HEAD
    + "    return torch.where(seen, torch.where(logits > 0, logits / 1.3, logits * 1.3), logits)",
    "forbids seen tokens": HEAD + "    return logits.masked_fill(seen, -1e9)",
}

# ---- 08-4


def texts(draw):
    return [
        (torch.randint(32, (3, 16), generator=draw), [3, 1, 5], [2, 2, 2], 1),
        (torch.randint(32, (2, 16), generator=draw), [4, 4], [1, 1], 2),
        (torch.randint(32, (3, 16), generator=draw), [6, 2, 1], [1, 3, 2], 3),
    ]


def counts(draw):
    return [([0], 4), ([3, 1], 2), ([5, 5], 1), ([7, 2, 4], 3)]


def through_the_cache(s, ids, first, second, seed):
    import torch

    from nanogpt.sampling import read

    model, rows = s.tiny(seed), ids.tolist()
    cache, steps = s.Cache(model, len(rows), 16), []
    at = [0] * len(rows)
    for counts in (first, second, [1] * len(rows)):
        steps.append(read(model, cache, [row[a : a + n] for row, a, n in zip(rows, at, counts)]))
        at = [a + n for a, n in zip(at, counts)]
    return torch.stack(steps)


def positions_alone(s, lengths, T):
    return s.places(lengths, T)[0]


# ---- 08-5


def per_token(s):
    return s.costs["bytes a token"]


def keys_shape(s):
    return list(s.costs["keys of a layer"])


def texts_that_fit(s):
    return s.costs["texts"]


def context(s):
    return s.costs["context"]


def same_count(got, expected) -> str:
    """Whole texts: an int, or a float without a fraction."""
    right = (
        isinstance(got, int | float)
        and not isinstance(got, bool)
        and math.isclose(got, expected, abs_tol=1e-6)
    )
    return "" if right else f"{got} texts, where {expected} fit"


CHECKS = [
    Check("08-1", "the fewest tokens that reach p, the one that crosses it among them", 2, "nucleus", without_ties, hidden=False),
    Check("08-1", "equally likely tokens are kept together, and an exact sum has reached p", 1, "nucleus", exact),
    Check("08-1", "each row of a batch for itself, in the order of its tokens", 2, "nucleus", random_rows),
    Check("08-2", "temperature, then min-p, then a sum of one", 2, finite, rows_of_logits, hidden=False),
    Check("08-2", "min_p = 1 keeps the largest and what equals it", 1, finite, ties),
    Check("08-2", "temperatures of zero and nearly zero are greedy", 1, finite, cold),
    CheckOfCheck("08-3", "refuses wrong penalties, and no right one", 4, "check_penalty", "penalize", RIGHT, PENALTIES, hidden=False),
    Check("08-4", "the positions of new tokens", 1, positions_alone, counts, hidden=False),
    Check("08-4", "what each new token may see", 2, "places", counts),
    Check("08-4", "texts of different lengths in pieces: the logits of the whole", 2, through_the_cache, texts, tolerance=1e-4),
    Check("08-5", "the bytes that a token adds", 1, per_token, hidden=False),
    Check("08-5", "the shape of a layer's keys", 0.5, keys_shape),
    Check("08-5", "the texts that fit beside the weights", 1, texts_that_fit, judge=same_count),
    Check("08-5", "the context that costs as much as the weights", 1, context, tolerance=1e-2),
]  # fmt: skip

COUNT = "n = (before < p).sum(-1, keepdim=True)"
WRONG = [
    Wrong("08-1", "the token that crosses p is left out, and the rest does not reach it", COUNT,
          "n = (ranked.cumsum(-1) <= p).sum(-1, keepdim=True).clamp(min=1)"),
    Wrong("08-1", "one token too many where the sum is p exactly: it has reached it", "before < p", "before <= p"),
    Wrong("08-1", "the answer is in sorted order, not in that of the tokens", "return probs >= least", "return ranked >= least"),
    Wrong("08-1", "of equally likely tokens the sort decides which is kept", "return probs >= least",
          "return torch.zeros_like(probs, dtype=torch.bool).scatter(-1, probs.argsort(dim=-1, descending=True, stable=True), before < p)"),
    Wrong("08-1", "all rows get the first one's number of tokens", COUNT, "n = (before < p).sum(-1, keepdim=True)[:1].expand(len(probs), 1)"),
    Wrong("08-1", "every token with a probability of p or more: that is a threshold, not a mass", "return probs >= least",
          "return probs >= min(p, 1)"),
    Wrong("08-1", "the least likely tokens are kept: the sort is ascending",
          "ranked = probs.sort(dim=-1, descending=True).values", "ranked = probs.sort(dim=-1).values"),
    Wrong("08-2", "the threshold is a probability of its own, not a share of the largest",
          "relative.masked_fill(relative < threshold, -math.inf)", "relative.masked_fill(relative.softmax(-1) < min_p, -math.inf)"),
    Wrong("08-2", "min-p comes before the temperature", "    relative = relative / temperature\n    threshold",
          "    cut = relative < (math.log(min_p) if min_p else -math.inf)\n    relative = (relative / temperature).masked_fill(cut, -math.inf)\n    min_p = 0.0\n    threshold"),
    Wrong("08-2", "the largest of the whole batch sets the threshold for every row", "logits.amax(-1, keepdim=True)", "logits.amax()"),
    Wrong("08-2", "the temperature multiplies: 0.5 makes the text wilder, not tamer", "relative / temperature", "relative * temperature"),
    Wrong("08-2", "the probabilities are not divided by their sum after min-p",
          "relative.masked_fill(relative < threshold, -math.inf).softmax(-1)",
          "relative.softmax(-1).masked_fill(relative < threshold, 0.0)"),
    Wrong("08-2", "temperature 0 divides by zero", "    if temperature == 0:\n        return torch.nn.functional.one_hot(logits.argmax(-1), logits.size(-1)).float()\n", ""),
    Wrong("08-2", "logits are divided before the largest is subtracted: a small temperature makes them infinite",
          "relative = relative / temperature", "relative = logits / temperature; relative = relative - relative.amax(-1, keepdim=True)"),
    Wrong("08-2", "a token needs more than the share, not at least that: min_p = 1 keeps none", "relative < threshold", "relative <= threshold"),
    Wrong("08-3", "accepts everything", code="def check_penalty(penalize): pass"),
    Wrong("08-3", "refuses everything", code="def check_penalty(penalize): assert False"),
    Wrong("08-3", "tries positive logits only", code="""
        def check_penalty(penalize):
            logits, seen = torch.tensor([[2.0, 1.0]]), torch.tensor([[True, False]])
            assert torch.allclose(penalize(logits, seen, 2.0), torch.tensor([[1.0, 1.0]]))
        """),
    Wrong("08-3", "asks only whether seen logits fall", code="""
        def check_penalty(penalize):
            logits, seen = torch.tensor([[2.0, 1.0, -1.0]]), torch.tensor([[True, False, True]])
            got = penalize(logits, seen, 2.0)
            assert (got[seen] < logits[seen]).all() and torch.equal(got[~seen], logits[~seen])
        """),
    Wrong("08-3", "tries one row and one penalty", code="""
        def check_penalty(penalize):
            logits, seen = torch.tensor([[2.0, 1.0, -1.0]]), torch.tensor([[True, False, True]])
            assert torch.allclose(penalize(logits, seen, 1.3), torch.tensor([[2 / 1.3, 1.0, -1.3]]))
        """),
    Wrong("08-4", "positions begin at 0 again: the model reads every piece as the beginning of a text",
          "torch.tensor(lengths)[:, None] + torch.arange(T)", "torch.arange(T).expand(len(lengths), T)"),
    Wrong("08-4", "positions are one too large: after n tokens, 0 to n - 1, comes n",
          "torch.tensor(lengths)[:, None] + torch.arange(T)  # (B, T)\n    return positions, torch.arange(S) <= positions[:, :, None]",
          "torch.tensor(lengths)[:, None] + torch.arange(1, T + 1)\n    return positions, torch.arange(S) <= positions[:, :, None]"),
    Wrong("08-4", "the mask begins at the top left, as is_causal does: new tokens see the beginning of the text, not the past",
          "torch.arange(S) <= positions[:, :, None]", "torch.ones(T, S).tril().bool().expand(len(lengths), T, S)"),
    Wrong("08-4", "a new token does not see itself", "<= positions", "< positions"),
    Wrong("08-4", "every text is taken to be as long as the longest", "torch.tensor(lengths)[:, None] + torch.arange(T)",
          "torch.full((len(lengths), 1), max(lengths)) + torch.arange(T)"),
    Wrong("08-4", "the mask of the longest text serves all: shorter ones see padding", "torch.arange(S) <= positions[:, :, None]",
          "torch.ones(T, S).tril(S - T).bool().expand(len(lengths), T, S)"),
    Wrong("08-4", "nothing is masked: with several new tokens the earlier see the later", "torch.arange(S) <= positions[:, :, None]",
          "torch.ones(len(lengths), T, S).bool()"),
    Wrong("08-5", "keys and values are two: only one was counted", "per_token = 2 * server", "per_token = server"),
    Wrong("08-5", "n_embd is all heads together: n_head times it counts them twice",
          'server["n_embd"] * server["number_bytes"]', 'server["n_embd"] * server["n_head"] * server["number_bytes"]'),
    Wrong("08-5", "every layer has keys and values of its own", 'per_token = 2 * server["n_layer"] *', "per_token = 2 *"),
    Wrong("08-5", "a GiB is 2³⁰ bytes, not 10⁹", "2**30", "10**9"),
    Wrong("08-5", "the weights need memory too", " - weights)", ")"),
    Wrong("08-5", "heads come before tokens in the keys, as attention needs them",
          '[server["B"], server["n_head"], server["T"],', '[server["B"], server["T"], server["n_head"],'),
    Wrong("08-5", "the last axis is the width of one head", 'server["n_embd"] // server["n_head"]]', 'server["n_embd"]]'),
    Wrong("08-5", "weights and a token's cache have the same bytes a number: they cancel", '"context": weights / per_token',
          '"context": num_params(config) / per_token'),
]  # fmt: skip

MANUAL = {"08-6": 2}
RUBRIC = {
    "08-6": "1 point for the case: the penalty acts on the logit's distance from zero, and zero is arbitrary. For example logits 1 "
    "and -1, both seen, penalty 2: 0.5 and -2, a difference of 2.5; with 10 added 11 and 9 become 5.5 and 4.5, a difference "
    "of 1. (One of two seen is as good: what counts is that the probabilities differ.) 1 point for a penalty that subtracts "
    "a constant from seen tokens' logits (or acts on log-probabilities, whose zero is fixed), with the reason: a shift "
    "of all logits passes through it, and softmax removes it.",
}
