"""How exercises 12 are graded."""

import math

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# --- 12-1 ----------------------------------------------------------------------------------------------------


def state(scores, values):
    """m, total and o of scores (rows, n) and values (n, d)."""
    m = scores.amax(-1, keepdim=True)
    p = (scores - m).exp()
    return m, p.sum(-1, keepdim=True), p @ values


def drawn_states(draw, size=1.0):
    def one(n):
        return state(size * torch.randn(4, n, generator=draw), torch.randn(n, 3, generator=draw))

    return [(*one(n), *one(k)) for n, k in ((5, 2), (1, 9), (40, 40))]


def large_states(draw):
    return drawn_states(draw, size=500.0)


def empty_states(draw):
    nothing = torch.full((4, 1), -math.inf), torch.zeros(4, 1), torch.zeros(4, 3)
    some = state(torch.randn(4, 6, generator=draw), torch.randn(6, 3, generator=draw))
    return [(*nothing, *some), (*some, *nothing)]


def streams(draw):
    return [(100 * torch.randn(2, 64, generator=draw), torch.randn(64, 3, generator=draw)) for _ in range(2)]


def by_workers(s, scores, values):
    """Eight parts, merged two by two: the softmax-weighted mean of all."""
    states = []
    for part, those in zip(scores.chunk(8, 1), values.chunk(8)):
        m = part.amax(-1, keepdim=True)
        p = (part - m).exp()
        states.append((m, p.sum(-1, keepdim=True), p @ those))
    while len(states) > 1:
        states = [tuple(s.merge(*a, *b)) for a, b in zip(states[::2], states[1::2])]
    m, total, o = states[0]
    return o / total


# --- 12-2 ----------------------------------------------------------------------------------------------------


def near_tiles(draw):
    blocks = torch.randint(2, 9, (3,), generator=draw).tolist()
    windows = torch.randint(1, 30, (3,), generator=draw).tolist()
    return [(i, j, b, w) for b, w in zip(blocks, windows) for i in range(5) for j in range(5)]


def edges_of_tiles(draw):
    corners = [(3, 1, b, w) for b in (1, 4, 16) for w in (b, b + 1, b + 2, 2 * b, 3 * b - 1, 3 * b)]
    return [*corners, (0, 0, 1, 1), (1, 0, 1, 1), (7, 7, 4, 100), (10**6, 10**6 - 3, 64, 200)]


def texts(draw):
    windows = torch.randint(1, 5000, (4,), generator=draw).tolist()
    return [(n * b, b, w) for n, b, w in zip((7, 100, 20_000, 1_000_000), (16, 64, 128, 1), windows)] + [
        (n * 8, 8, w) for n, w in ((1, 1), (4, 1), (4, 2), (4, 9), (4, 10), (5, 40), (5, 1000))
    ]


# --- 12-3 ----------------------------------------------------------------------------------------------------


def chunks(draw):
    def one(n, T, d=4):
        return tuple(torch.randn(2, 3, rows, d, generator=draw) for rows in (n, T, T))

    return [one(n, T) for n, T in ((1, 6), (2, 6), (4, 9), (5, 6), (1, 1), (7, 7))]


# --- 12-4 ----------------------------------------------------------------------------------------------------


def kept(s):
    return [s.weights, s.rows]


def limits(s):
    return [s.longest, s.equal]


# --- 12-5: implementations, as text --------------------------------------------------------------------------

TILED = """
import math
import torch

def attention(q, k, v, block=16):
    T, d = q.shape[-2:]
    outs = []
    for i in range(0, T, block):
        q_i = q[..., i : i + block, :]
        m = torch.full_like(q_i[..., :1], -math.inf)
        total, o = torch.zeros_like(m), torch.zeros_like(q_i)
        for j in range(0, i + 1, block):
            scores = q_i @ k[..., j : j + block, :].transpose(-2, -1) / math.sqrt(d)
            if i == j:
                future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
                scores = scores.masked_fill(future, -math.inf)
            larger = torch.maximum(m, scores.amax(-1, keepdim=True))
            p, shrink = (scores - larger).exp(), (m - larger).exp()
            m, total, o = larger, shrink * total + p.sum(-1, keepdim=True), shrink * o + p @ v[..., j : j + block, :]
        outs.append(o / total)
    return torch.cat(outs, -2)
"""
PLAIN = """
import math
import torch

def attention(q, k, v):
    T, d = q.shape[-2:]
    scores = q @ k.transpose(-2, -1) / math.sqrt(d)
    return scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf).softmax(-1) @ v
"""
FUSED = """
import torch.nn.functional as F

def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
"""
DOUBLE = """
import torch.nn.functional as F

def attention(q, k, v):
    return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True).float()
"""


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


WRONG_ATTENTION = {
    "nothing is masked": changed(PLAIN, "triu(1)", "triu(T)"),
    "each position sees one ahead": changed(PLAIN, "triu(1)", "triu(2)"),
    "scores are divided by d": changed(PLAIN, "math.sqrt(d)", "d"),
    "scores are divided by the root of T": changed(PLAIN, "math.sqrt(d)", "math.sqrt(T)"),
    "all heads read the keys of the first": changed(PLAIN, "q @ k.transpose", "q @ k[:, :1].transpose"),
    "products in bfloat16": changed(PLAIN, "q @ k.transpose(-2, -1)", "(q.bfloat16() @ k.bfloat16().transpose(-2, -1)).float()"),
    "o is not rescaled by a new maximum": changed(TILED, "shrink * o", "o"),
    "total is not rescaled by a new maximum": changed(TILED, "shrink * total", "total"),
    "no maximum is subtracted": changed(changed(TILED, "(scores - larger).exp()", "scores.exp()"), "(m - larger).exp()", "1.0"),
    "the mask is on the first tile only": changed(TILED, "if i == j", "if i == j == 0"),
    "the block before the diagonal is skipped": changed(TILED, "range(0, i + 1, block)", "[*range(0, i - block, block), i]"),
    "what does not fill a tile is left out": changed(
        TILED, "return torch.cat(outs, -2)",
        "y = torch.cat(outs, -2)\n    y[..., T // block * block :, :] = 0\n    return y",
    ),
    "keys more than 128 back are skipped": changed(TILED, "range(0, i + 1, block)", "range(max(0, i - 128), i + 1, block)"),
}  # fmt: skip

CHECKS = [
    Check("12-1", "two states of ordinary scores", 2, "merge", drawn_states, hidden=False),
    Check("12-1", "scores of hundreds", 1, "merge", large_states),
    Check("12-1", "a state that has seen nothing", 1, "merge", empty_states),
    Check("12-1", "eight workers, merged two by two", 1, by_workers, streams),
    Check("12-2", "the kind of a tile", 2, "kind", near_tiles, hidden=False),
    Check("12-2", "tiles at the edge of the window, and far out", 1, "kind", edges_of_tiles),
    Check("12-2", "the number of tiles, by a formula", 2, "computed", texts, tolerance=1e-9, seconds=2),
    Check("12-3", "new queries, few or all, see the keys up to their own", 3, "attend", chunks, hidden=False),
    Check("12-4", "bytes kept", 2, kept, hidden=False, tolerance=1e-9),
    Check("12-4", "the longest text, and the length at which both are equal", 2, limits, tolerance=1e-9),
    CheckOfCheck("12-5", "accepts attention and refuses what only looks like it", 5, "check_attention", "attention",
                 (FUSED, PLAIN, TILED, changed(TILED, "block=16", "block=5"), DOUBLE), WRONG_ATTENTION, seconds=30),
]  # fmt: skip

MERGED = "m, shrink1 * total1 + shrink2 * total2, shrink1 * o1 + shrink2 * o2"
WRONG = [
    Wrong("12-1", "the totals are added although they refer to different maxima", "shrink1 * total1 + shrink2 * total2",
          "total1 + total2"),
    Wrong("12-1", "o is added although it refers to different maxima", "shrink1 * o1 + shrink2 * o2", "o1 + o2"),
    Wrong("12-1", "the means of the parts are averaged, however much weight each has", f"return {MERGED}",
          "return m, torch.ones_like(m), (o1 / total1 + o2 / total2) / 2"),
    Wrong("12-1", "the factor is inverted: sums grow where they should shrink", "(m1 - m).exp(), (m2 - m).exp()",
          "(m - m1).exp(), (m - m2).exp()"),
    Wrong("12-1", "the second state is referred to the first one's maximum, which may be the smaller", "torch.maximum(m1, m2)", "m1"),
    Wrong("12-1", "the exponentials are restored before they are added, and overflow", f"return {MERGED}",
          "return m, (m1.exp() * total1 + m2.exp() * total2) / m.exp(), (m1.exp() * o1 + m2.exp() * o2) / m.exp()"),
    Wrong("12-2", "a window of w is taken to reach w keys back, besides its own", "nearest >= window", "nearest > window"),
    Wrong("12-2", "only the tile's first query and first key are compared", "nearest, farthest = (i - j) * block - (block - 1), (i - j) * block + (block - 1)",
          "nearest = farthest = (i - j) * block"),
    Wrong("12-2", "tiles of the future are computed", "farthest < 0 or nearest >= window", "nearest >= window"),
    Wrong("12-2", "a tile in which some pairs are seen is thought to be seen whole", 'if nearest >= 0 and farthest < window else', "if nearest >= 0 else"),
    Wrong("12-2", "the tile on the diagonal is thought to need no mask", "nearest >= 0 and farthest < window", "i >= j and farthest < window"),
    Wrong("12-2", "the window is rounded down to whole blocks", "(window + block - 2) // block", "window // block"),
    Wrong("12-2", "the window is thought to end within the text", "min((window + block - 2) // block, n - 1)", "(window + block - 2) // block"),
    Wrong("12-2", "every row of tiles is counted in full, also where the text begins", "(last + 1) * n - last * (last + 1) // 2", "(last + 1) * n"),
    Wrong("12-3", "is_causal puts the triangle at the top left: the newest query sees the oldest keys", "attn_mask=seen", "is_causal=True"),
    Wrong("12-3", "without a mask new queries see each other's future", "attn_mask=seen", "attn_mask=None"),
    Wrong("12-3", "True means masked for masked_fill; for SDPA it means that the key takes part", "attn_mask=seen", "attn_mask=~seen"),
    Wrong("12-3", "the triangle is one too high: each query sees the key after its own", "tril(T - n)", "tril(T - n + 1)"),
    Wrong("12-3", "the triangle is one too low: no query sees its own key", "tril(T - n)", "tril(T - n - 1)"),
    Wrong("12-3", "a mask of numbers is added to the scores: 0 and 1 hide nothing", "attn_mask=seen", "attn_mask=seen.float()"),
    Wrong("12-4", "one matrix a layer is counted, where every head has one", "weights = 4 * L * B * H * T**2", "weights = 4 * L * B * T**2"),
    Wrong("12-4", "the masked half is left out, but it is stored", "weights = 4 * L * B * H * T**2", "weights = 2 * L * B * H * T**2"),
    Wrong("12-4", "the matrices are multiplied by the channels in place of the heads", "weights = 4 * L * B * H * T**2", "weights = 4 * L * B * C * T**2"),
    Wrong("12-4", "the output is forgotten among what is saved", "rows = 4 * L * B * T * (4 * C + H)", "rows = 4 * L * B * T * (3 * C + H)"),
    Wrong("12-4", "the log of the denominator is forgotten, one number a row and head", "rows = 4 * L * B * T * (4 * C + H)", "rows = 4 * L * B * T * 4 * C"),
    Wrong("12-4", "one number a row is counted, where every head has its own denominator", "rows = 4 * L * B * T * (4 * C + H)", "rows = 4 * L * B * T * (4 * C + 1)"),
    Wrong("12-4", "the longest text is thought to grow with memory, not with its root", 'math.isqrt(mine["memory"] // (4 * L * B * H))',
          'T * mine["memory"] // weights'),
    Wrong("12-4", "the longest text is that of one sequence, not of the batch", "(4 * L * B * H))", "(4 * L * H))"),
    Wrong("12-5", "the check accepts everything", code="def check_attention(attention):\n    attention(*torch.randn(3, 1, 1, 4, 8))"),
    Wrong("12-5", "the check refuses everything", code="def check_attention(attention):\n    assert False"),
    Wrong("12-5", "one short text is tried", code="""
          def check_attention(attention):
              q, k, v = torch.randn(3, 2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
              assert torch.allclose(attention(q, k, v), attention_weights(q, k) @ v, atol=1e-4)
          """),
    Wrong("12-5", "the future is disturbed, and nothing else is looked at", code="""
          def check_attention(attention):
              q, k, v = torch.randn(3, 2, 3, 70, 8, generator=torch.Generator().manual_seed(0))
              before = attention(q, k, v)
              k[..., 35:, :] += 1
              assert torch.allclose(attention(q, k, v)[..., :35, :], before[..., :35, :], atol=1e-5)
          """),
    Wrong("12-5", "equality to the last bit is demanded, which right implementations do not have", code="""
          def check_attention(attention):
              for T in (8, 70, 150):
                  q, k, v = torch.randn(3, 2, 3, T, 8, generator=torch.Generator().manual_seed(0))
                  assert torch.equal(attention(q, k, v), attention_weights(q, k) @ v)
          """),
]  # fmt: skip
# Right, and by what the task forbids: `#| forbids` in exercise.py.
FORBIDDEN = [
    Wrong("12-2", "rows of tiles are counted in a loop, which a formula does without", "return (last + 1) * n - last * (last + 1) // 2",
          "return sum(min(row, last) + 1 for row in range(n))"),
    Wrong("12-2", "a mask is built to look at", code="""
        def kind(i, j, block, window):
            distance = torch.arange(i * block, (i + 1) * block)[:, None] - torch.arange(j * block, (j + 1) * block)
            seen = (distance >= 0) & (distance < window)
            return "whole" if seen.all() else "masked" if seen.any() else "skip"

        def computed(T, block, window):
            n = T // block
            last = min((window + block - 2) // block, n - 1)
            return (last + 1) * n - last * (last + 1) // 2
        """),
]  # fmt: skip

MANUAL = {"12-6": 2}
RUBRIC = {
    "12-6": "1 point: step by step, T×T tensors travel to memory and back many times and the time is that of the bytes; in tiles scores stay "
    "in registers or shared memory, so a few FLOPs more are bought with far fewer bytes. 1 point: compares bytes over bandwidth with FLOPs over "
    "the rate of products (or: intensity with the ridge), and names a case that loses: short T, where T×T fits a cache; few and cheap bytes beside "
    "slow products (a CPU); a forward and backward pass whose recomputation is not paid for. No point for 'because it is fused' alone.",
}
