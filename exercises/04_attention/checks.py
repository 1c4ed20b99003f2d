"""How exercises 04 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def queries_and_keys(draw):
    shapes = ((1, 4, 0), (5, 8, 0), (5, 8, 3), (6, 2, 2))
    return [(*torch.randn(2, 2, 3, T, d, generator=draw), prefix) for T, d, prefix in shapes]


def one_head_only(draw):
    return [(*torch.randn(2, T, d, generator=draw), prefix) for T, d, prefix in ((3, 7, 1), (9, 16, 4))]


def projections(draw):
    shapes = ((1, 4, 2, 3), (2, 5, 4, 2), (3, 1, 1, 6))
    return [(torch.randn(B, T, 3 * n_head * d, generator=draw), n_head) for B, T, n_head, d in shapes]


def windows(draw):
    return [(*torch.randn(2, 2, 2, 7, 4, generator=draw), window) for window in (2, 3, 5)]


def extreme_windows(draw):
    return [(*torch.randn(2, 3, 6, 4, generator=draw), window) for window in (1, 6, 50)]


def lengths(draw):
    T = torch.randint(2_000, 1_000_000, (4,), generator=draw).tolist()
    return [(T[0], 512), (T[1], 64), (T[2], 2 * T[2]), (T[3], 1), (7, 7), (1, 1)]


# --- layers for 04-5: text, since they run apart from the student's check ---------------------------------------

HEAD = "import math\nimport torch\nimport torch.nn.functional as F\n\n"

RIGHT = (
    # attention with weights of its own, in two heads
    HEAD
    + """
def layer(x):
    g = torch.Generator().manual_seed(5)
    q, k, v = (x @ (torch.randn(8, 24, generator=g) / 3)).chunk(3, dim=2)
    q, k, v = (z.unflatten(2, (2, 4)).transpose(1, 2) for z in (q, k, v))
    future = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
    y = (q @ k.transpose(-2, -1) / 2).masked_fill(future, float("-inf")).softmax(-1) @ v
    return y.transpose(1, 2).flatten(2)
""",
    # the average of the past
    HEAD
    + """
def layer(x):
    return x.cumsum(1) / torch.arange(1, x.size(1) + 1)[:, None]
""",
    # every position alone
    HEAD
    + """
def layer(x):
    return F.layer_norm(x, (8,)).tanh()
""",
    # only the past: a position does not see itself
    HEAD
    + """
def layer(x):
    return F.pad(x, (0, 0, 3, 0))[:, : x.size(1)]
""",
    # the fused kernel
    HEAD
    + """
def layer(x):
    return F.scaled_dot_product_attention(x, x, x, is_causal=True)
""",
)


def attention(mask: str, after: str = "") -> str:
    """A layer of attention with this mask (True is hidden); `after` may change its output y."""
    return (
        HEAD
        + f"""
def layer(x):
    T = x.size(1)
    future = {mask}
    y = (x @ x.transpose(-2, -1) / math.sqrt(8)).masked_fill(future, float("-inf")).softmax(-1) @ x
    {after}
    return y
"""
    )


FUTURE = "torch.ones(T, T, dtype=torch.bool).triu(1)"

PLAIN = {
    "nothing is masked": attention("torch.zeros(T, T, dtype=torch.bool)"),
    "the mask begins one diagonal too late": attention("torch.ones(T, T, dtype=torch.bool).triu(2)"),
    "the past is masked in place of the future": attention("torch.ones(T, T, dtype=torch.bool).tril(-1)"),
    "the mean over all positions is subtracted": HEAD
    + "def layer(x):\n    return x - x.mean(1, keepdim=True)\n",
    "the mask comes after the softmax": HEAD
    + """
def layer(x):
    w = (x @ x.transpose(-2, -1) / math.sqrt(8)).softmax(-1)
    return w.tril() @ x
""",
}

SUBTLE = {
    "the mask was made for 16 positions; later ones see everything": attention(
        "F.pad(torch.ones(min(T, 16), min(T, 16), dtype=torch.bool).triu(1), (0, max(T - 16, 0), 0, max(T - 16, 0)))"
    ),
    "one head of two has no mask": HEAD
    + """
def layer(x):
    a, b = x.chunk(2, dim=2)
    return torch.cat([F.scaled_dot_product_attention(a, a, a, is_causal=True), F.scaled_dot_product_attention(b, b, b)], 2)
""",
    "everybody sees the last position": attention(FUTURE, "y = y + 0.1 * x[:, -1:]"),
    "position 0 sees position 1": attention(FUTURE, "y[:, 0] = y[:, 0] + (x[:, 1] if T > 1 else 0)"),
    "position 5 sees position 6": attention(
        FUTURE, "y[:, 5:6] = y[:, 5:6] + (0.1 * x[:, 6:7] if T > 6 else 0)"
    ),
    "the mask reaches the first text of the batch only": HEAD
    + """
def layer(x):
    y = F.scaled_dot_product_attention(x[:1], x[:1], x[:1], is_causal=True)
    return torch.cat([y, F.scaled_dot_product_attention(x[1:], x[1:], x[1:])])
""",
    "heads are joined by reshape without transpose": HEAD
    + """
def layer(x):
    z = x.unflatten(2, (2, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(z, z, z, is_causal=True).reshape(x.shape)
""",
    "the largest number of the whole text is divided by": HEAD
    + "def layer(x):\n    return x / x.abs().amax((1, 2), keepdim=True)\n",
}

CHECKS = [
    Check("04-1", "weights of the past that sum to one", 2, "weights_with_prefix", queries_and_keys, hidden=False),
    Check("04-1", "the same without axes for batch and head", 1, "weights_with_prefix", one_head_only),
    Check("04-2", "every head at its own channels, every position at its own place", 3, "heads_together", projections,
          hidden=False),
    Check("04-3", "the deviation over all pairs", 2, "overall", hidden=False),
    Check("04-3", "the deviation that one query sees", 2, "within"),
    Check("04-4", "a window on the past", 2, "window_weights", windows, hidden=False),
    Check("04-4", "a window of one, of the whole text and of more", 1, "window_weights", extreme_windows),
    Check("04-4", "the number of scores, for long texts too", 2, "pairs", lengths),
    CheckOfCheck("04-5", "finds a missing or misplaced mask", 2, "check_causal", "layer", RIGHT, PLAIN, hidden=False),
    CheckOfCheck("04-5", "finds leaks that show at one position or one length only", 4, "check_causal", "layer",
                 RIGHT, SUBTLE),
]  # fmt: skip

MASKED = 'masked_fill(future, float("-inf"))'

WRONG = [
    Wrong("04-1", "both bugs are still there: the softmax before the mask, and √T", code="""
        def weights_with_prefix(q, k, prefix):
            T = q.size(-2)
            future = torch.ones(T, T, dtype=torch.bool).triu(1)
            future[:, :prefix] = False
            scores = q @ k.transpose(-2, -1) / math.sqrt(T)
            return scores.softmax(dim=-1).masked_fill(future, 0.0)
        """),
    Wrong("04-1", "the softmax comes before the mask: rows no longer sum to one",
          f"scores.{MASKED}.softmax(dim=-1)", "scores.softmax(dim=-1).masked_fill(future, 0.0)"),
    Wrong("04-1", "scores are divided by √T: the longer the text, the flatter the weights", "math.sqrt(d)", "math.sqrt(T)"),
    Wrong("04-1", "scores are divided by d, not by its root", "math.sqrt(d)", "d"),
    Wrong("04-1", "scores are not divided by √d", " / math.sqrt(d)", ""),
    Wrong("04-1", "hidden scores are set to zero, and a score of zero is no weight of zero", 'float("-inf")', "0.0"),
    Wrong("04-1", "the mask hides a position from itself", "scores." + MASKED,
          'scores.masked_fill(future | torch.eye(T, dtype=torch.bool), float("-inf"))'),
    Wrong("04-1", "the mask hides the past in place of the future", "fill(future", "fill(future.T"),
    Wrong("04-1", "the prefix is causal too", "future[:, :prefix] = False", "pass"),
    Wrong("04-1", "nothing is hidden", "." + MASKED, ""),
    Wrong("04-1", "the softmax runs over queries in place of keys", "softmax(dim=-1)", "softmax(dim=-2)"),
    Wrong("04-2", "heads are cut and joined by reshape alone: a head holds numbers of other positions", code="""
        def heads_together(qkv, n_head):
            B, T, C = qkv.size(0), qkv.size(1), qkv.size(2) // 3
            q, k, v = qkv.reshape(B, n_head, T, 3 * C // n_head).chunk(3, dim=3)
            return (attention_weights(q, k) @ v).reshape(B, T, C)
        """),
    Wrong("04-2", "heads are joined without moving their axis back: positions and channels are mixed",
          "y.transpose(1, 2).reshape", "y.reshape"),
    Wrong("04-2", "heads are cut without moving their axis in front of T",
          "reshape(B, T, n_head, 3 * d).transpose(1, 2)", "reshape(B, n_head, T, 3 * d)"),
    Wrong("04-2", "each position attends over its heads, not each head over positions", code="""
        def heads_together(qkv, n_head):
            B, T, C = qkv.size(0), qkv.size(1), qkv.size(2) // 3
            q, k, v = qkv.reshape(B, T, n_head, 3 * C // n_head).chunk(3, dim=3)
            return (attention_weights(q, k) @ v).reshape(B, T, C)
        """),
    Wrong("04-2", "head h gets every n_head-th channel, not channels side by side",
          "reshape(B, T, n_head, 3 * d).transpose(1, 2)", "reshape(B, T, 3 * d, n_head).permute(0, 3, 1, 2)"),
    Wrong("04-2", "q, k and v are read in GPT-2's order: all queries first, then all keys, then all values",
          "qkv.reshape(B, T, n_head, 3 * d).transpose(1, 2).split(d, dim=3)",
          "(z.reshape(B, T, n_head, d).transpose(1, 2) for z in qkv.split(C, dim=2))"),
    Wrong("04-2", "one head as wide as all of them", "reshape(B, T, n_head, 3 * d).transpose(1, 2).split(d, dim=3)",
          "reshape(B, T, 1, 3 * C).transpose(1, 2).split(C, dim=3)"),
    Wrong("04-3", "the mean is left out: d times the square of the variance",
          code="overall = within = math.sqrt(mine['d']) * mine['variance']"),
    Wrong("04-3", "the variance, not the deviation: the root is missing", code="""
        square = mine["variance"] + mine["mean"] ** 2
        overall, within = mine["d"] * (square**2 - mine["mean"] ** 4), mine["d"] * mine["variance"] * square
        """),
    Wrong("04-3", "the mean of the squares, from which the square of the mean was not subtracted", code="""
        overall = within = math.sqrt(mine["d"]) * (mine["variance"] + mine["mean"] ** 2)
        """),
    Wrong("04-3", "`within` counts what all scores of a row share",
          "math.sqrt(d * variance * square)", "overall"),
    Wrong("04-3", "divided by √d already: the undivided scores were asked for", code="""
        square = mine["variance"] + mine["mean"] ** 2
        overall, within = math.sqrt(square**2 - mine["mean"] ** 4), math.sqrt(mine["variance"] * square)
        """),
    Wrong("04-4", "the window is one too wide: the own position counts", "tril(-window)", "tril(-window - 1)"),
    Wrong("04-4", "the window is one too narrow", "tril(-window)", "tril(1 - window)"),
    Wrong("04-4", "the window reaches into the future as well: nothing hides it", "pair.triu(1) | ", ""),
    Wrong("04-4", "hidden weights are set to zero after the softmax", code="""
        def window_weights(q, k, window):
            pair = torch.ones(q.size(-2), q.size(-2), dtype=torch.bool)
            return attention_weights(q, k).masked_fill(pair.tril(-window), 0.0)

        def pairs(T, window):
            return min(window, T) * T - min(window, T) * (min(window, T) - 1) // 2
        """),
    Wrong("04-4", "the first rows are counted as if they saw a whole window",
          "T * window - window * (window - 1) // 2", "T * window"),
    Wrong("04-4", "no row can see more keys than the text has", "window = min(window, T)", "window = window"),
    Wrong("04-4", "the triangle of the first rows is one too large", "window * (window - 1)", "window * (window + 1)"),
    Wrong("04-5", "accepts everything", code="def check_causal(layer): assert layer(torch.ones(1, 3, 8)).shape == (1, 3, 8)"),
    Wrong("04-5", "refuses everything: it wants the output to stay as it is", code="""
        def check_causal(layer):
            assert torch.equal(layer(torch.ones(1, 3, 8)), layer(torch.zeros(1, 3, 8)))
        """),
    Wrong("04-5", "one length, and a short one", "(3, 20)", "(7,)"),
    Wrong("04-5", "a batch of one text", code="""
        def check_causal(layer):
            for T in (3, 20):
                x = torch.randn(1, T, 8, generator=torch.Generator().manual_seed(T))
                for t in range(1, T):
                    disturbed = x.clone()
                    disturbed[:, t:] += 1.5
                    assert torch.allclose(layer(disturbed)[:, :t], layer(x)[:, :t], atol=1e-5)
        """),
    Wrong("04-5", "looks at the first position's output only", "after[:, :t], before[:, :t]", "after[:, 0], before[:, 0]"),
    Wrong("04-5", "compares with attention of its own, so another causal layer is refused", code="""
        def check_causal(layer):
            x = torch.randn(2, 20, 8, generator=torch.Generator().manual_seed(0))
            assert torch.allclose(layer(x), attention_weights(x, x) @ x, atol=1e-5)
        """),
    Wrong("04-5", "disturbs the past and looks at what comes after it", "disturbed[:, t:] += torch.randn(2, T - t, 8",
          "disturbed[:, :t] += torch.randn(2, t, 8"),
    Wrong("04-5", "adds the same number to every channel of equal inputs, which LayerNorm and equal values hide", code="""
        def check_causal(layer):
            before, disturbed = layer(torch.ones(1, 30, 8)), torch.ones(1, 30, 8)
            disturbed[:, 15:] += 1
            assert torch.allclose(layer(disturbed)[:, :15], before[:, :15])
        """),
]  # fmt: skip

# Right, and by what the task forbids: `#| forbids` in exercise.py.
FORBIDDEN = [
    Wrong("04-2", "a loop over heads is right and slow: the task is to do without", code="""
        def heads_together(qkv, n_head):
            heads = [part.chunk(3, dim=-1) for part in qkv.chunk(n_head, dim=-1)]
            return torch.cat([attention_weights(q, k) @ v for q, k, v in heads], dim=-1)
        """),
    Wrong("04-4", "the rows are counted in a loop, which a formula does without",
          "return T * window - window * (window - 1) // 2", "return sum(min(t, window) for t in range(1, T + 1))"),
    Wrong("04-4", "a tensor of T numbers is built to count them",
          "return T * window - window * (window - 1) // 2", "return int(torch.arange(1, T + 1).clamp(max=window).sum())"),
]  # fmt: skip

MANUAL = {"04-6": 2}

RUBRIC = {
    "04-6": "1 point: the colleague is right about what can be expressed: W_q (or W_k) smaller by √d gives the same function, "
    "and training could find it. 1 point: what is lost lies in training: at the usual initialisation, or as q and k grow, the "
    "scores' deviation grows with √d, so softmax saturates and passes little gradient, and what worked (initialisation, learning "
    "rate) for one head width does not for another. Accept: an optimizer with steps of fixed size, as Adam's, moves scores by more. "
    "A measurement must be named (deviation of scores, largest weight, gradient through softmax, loss curves at two d); take off half "
    "a point without one."
}
