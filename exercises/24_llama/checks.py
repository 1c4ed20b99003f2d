"""How exercises 24 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# --- 24-1 ----------------------------------------------------------------------------------------------------


def counts(s):
    return [s.params, s.nbytes]


def fitting(s):
    return s.texts


# --- 24-2 ----------------------------------------------------------------------------------------------------


def rows(draw):
    """Weights of several shapes, with their heads."""
    return [
        (torch.randn(heads * d, C, generator=draw), heads)
        for heads, d, C in ((1, 8, 3), (4, 6, 5), (3, 16, 8))
    ]


def scores(s, weight, keys, n_head, x):
    """The scores after chapter 24's rotation, of rows that were put in order."""
    import torch

    def rotated(w):
        d = w.size(0) // n_head
        y = (x @ w.T).unflatten(1, (n_head, d)).transpose(0, 1)
        angles = torch.arange(len(x))[:, None] * 100.0 ** (-torch.arange(0, d, 2).float() / d)
        a, b = y.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    return rotated(s.reorder(weight, n_head)) @ rotated(s.reorder(keys, n_head)).transpose(1, 2)


def attended(draw):
    found = []
    for heads, d in ((2, 8), (1, 4)):
        weight, keys = torch.randn(2, heads * d, 6, generator=draw)
        found.append((weight, keys, heads, torch.randn(7, 6, generator=draw)))
    return found


def untouched(s, weight, n_head):
    """Whether the given weight stays as it is."""
    before = weight.clone()
    s.reorder(weight, n_head)
    return bool((weight == before).all())


# --- 24-3 ----------------------------------------------------------------------------------------------------


def normed(s, x, weight, eps):
    """The result in float32, and whether its type is x's."""
    y = s.rms_norm(x, weight, eps)
    return [y.float(), y.dtype == x.dtype]


def ordinary(draw):
    x, weight = torch.randn(2, 3, 8, generator=draw), torch.rand(8, generator=draw) + 0.5
    return [(x, weight, 1e-5), (x[0], weight, 0.5), (x[0, 0], weight, 1e-6)]


def in_half(draw):
    x, weight = torch.randn(4, 16, generator=draw), torch.rand(16, generator=draw) + 0.5
    return [((500 * x).half(), weight, 1e-5), ((1e-4 * x).half(), weight, 1e-10)]


def of_zeros(draw):
    weight = torch.rand(8, generator=draw) + 0.5
    return [
        (torch.zeros(2, 8, dtype=dtype), weight, 1e-5)
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    ]


def in_bfloat16(draw):
    x, weight = torch.randn(6, 256, generator=draw), torch.rand(256, generator=draw) + 0.5
    return [(x.bfloat16(), weight, 1e-5)]


# --- 24-4 ----------------------------------------------------------------------------------------------------


def heads(draw, sizes=((1, 4, 2, 5, 4), (2, 6, 3, 7, 8))):
    inputs = []
    for B, H, K, T, d in sizes:
        q = torch.randn(B, H, T, d, generator=draw)
        inputs.append((q, *torch.randn(2, B, K, T, d, generator=draw)))
    return inputs


def one_for_all(draw):
    return heads(draw, ((2, 4, 1, 6, 4), (1, 3, 3, 5, 4), (1, 8, 2, 1, 4)))


def copied(s, H, K, T, d):
    """Whether a result holds keys or values, and nothing else, as often as there are heads of queries."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    q = torch.arange(H * T * d).view(1, H, T, d).cos()
    k, v = torch.arange(1.0, 2 * K * T * d + 1).sin().view(2, 1, K, T, d).clone()  # no 0: zeros are no copy
    seen = []

    class Watch(TorchDispatchMode):  # sees what `@` does inside, too
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor) and found.untyped_storage().nbytes() >= 4 * H * T * d:
                seen.append(found)
            return found

    with Watch():
        s.grouped_attention(q, k, v)
    return any(
        bool(torch.isin(x, given).all()) for x in seen for given in (k, v) if x.data_ptr() != given.data_ptr()
    )


def shapes(draw):
    return [(8, 2, 6, 16), (12, 3, 5, 32)]


# --- 24-5: rotations, as text --------------------------------------------------------------------------------

HALVES = """
import torch

def rotate(x, positions, theta=10_000.0):
    d = x.size(1)
    speeds = theta ** (-torch.arange(0, d, 2).float() / d)
    angles = positions[:, None] * speeds
    cos, sin = angles.cos(), angles.sin()
    a, b = x[:, : d // 2], x[:, d // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], 1)
"""
NEIGHBOURS = """
import torch

def rotate(x, positions, theta=500.0):
    d = x.size(1)
    angles = positions[:, None] * theta ** (-torch.arange(0, d, 2).float() / d)
    a, b = x[:, 0::2], x[:, 1::2]
    turned = torch.stack([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], 2)
    return turned.flatten(1)
"""
BACKWARDS = """
import torch

def rotate(x, positions):
    d = x.size(1)
    speeds = 100.0 ** (-torch.arange(0, d, 2).double() / d)
    turns = torch.polar(torch.ones_like(positions[:, None] * speeds), -positions[:, None] * speeds)
    pairs = torch.complex(x[:, : d // 2].double(), x[:, d // 2 :].double()) * turns
    return torch.cat([pairs.real, pairs.imag], 1).float()
"""


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


ANGLES = "angles = positions[:, None] * speeds"
WRONG_ROTATIONS = {
    "nothing is rotated": "def rotate(x, positions):\n    return x",
    "all positions are rotated alike": changed(HALVES, ANGLES, "angles = (0 * positions[:, None] + 3) * speeds"),
    "a sign is wrong": changed(HALVES, "b * cos + a * sin", "b * cos - a * sin"),
    "the second half is forgotten": changed(HALVES, "b * cos + a * sin", "b"),
    "the angle grows with the square of the position": changed(HALVES, ANGLES, "angles = positions[:, None] ** 2 * speeds"),
    "positions beyond 1,024 stay where they are": changed(HALVES, ANGLES, "angles = positions.clamp(max=1024)[:, None] * speeds"),
    "positions begin again at 256": changed(HALVES, ANGLES, "angles = (positions % 256)[:, None] * speeds"),
    "the position is added": "def rotate(x, positions):\n    return x + 0.001 * positions[:, None]",
    "x is scaled by the position": "def rotate(x, positions):\n    return x * (1 + 0.001 * positions[:, None])",
    "rows are numbered, and the given positions ignored": changed(HALVES, ANGLES, "angles = torch.arange(len(x))[:, None] * speeds"),
    "the last pair gets the first one's sine": changed(HALVES, "sin = angles.cos(), angles.sin()", "sin = angles.cos(), angles[:, :1].sin().expand(-1, d // 2)"),
    "the result is a little shorter": changed(HALVES, "a * cos - b * sin", "0.95 * a * cos - b * sin"),
    "the angle is a square root": changed(HALVES, ANGLES, "angles = positions[:, None].sqrt() * speeds"),
}  # fmt: skip

CHECKS = [
    Check("24-1", "parameters and bytes", 2, counts, hidden=False, tolerance=1e-9),
    Check("24-1", "texts that fit", 1, fitting, tolerance=1e-9),
    Check("24-2", "the rows of every head", 2, "reorder", rows, hidden=False),
    Check("24-2", "the scores of Meta's order", 1, scores, attended),
    Check("24-2", "no weight that was given is changed", 1, untouched, rows),
    Check("24-3", "ordinary numbers in float32, with a large eps", 1, normed, ordinary, hidden=False),
    Check("24-3", "large and tiny numbers in float16", 1, normed, in_half, tolerance=1e-3),
    Check("24-3", "positions of zeros", 1, normed, of_zeros),
    Check("24-3", "one rounding in bfloat16", 1, normed, in_bfloat16, tolerance=1e-6),
    Check("24-4", "groups in their order", 2, "grouped_attention", heads, hidden=False),
    Check("24-4", "one head of keys, or as many as queries, or a single token", 1, "grouped_attention", one_for_all),
    Check("24-4", "no copies of keys and values", 1, copied, shapes),
    CheckOfCheck("24-5", "accepts rotations and refuses what breaks a law", 5, "check_rotation", "rotate",
                 (HALVES, NEIGHBOURS, changed(HALVES, "theta=10_000.0", "theta=50.0"), BACKWARDS), WRONG_ROTATIONS, seconds=30),
]  # fmt: skip

WRONG = [
    Wrong("24-1", "the projection is taken to be C × C, where it reads H · d numbers", "(2 * H + 2 * K) * d * C", "((H + 2 * K) * d * C + C * C)"),
    Wrong("24-1", "keys and values are counted with as many heads as queries", "(2 * H + 2 * K) * d * C", "4 * H * d * C"),
    Wrong("24-1", "the MLP is GPT-2's, with two matrices", "3 * C * hidden", "2 * C * hidden"),
    Wrong("24-1", "the norms are forgotten", " + 2 * C)", ")"),
    Wrong("24-1", "the cache holds keys and no values", "nbytes = 2 * L", "nbytes = L"),
    Wrong("24-1", "the cache has a head for each head of queries", "L * K * d * T", "L * H * d * T"),
    Wrong("24-1", "bfloat16 is taken to have four bytes", "T * 2", "T * 4"),
    Wrong("24-1", "the parameters are taken to need no memory", "(gb * 10**9 - 2 * params)", "(gb * 10**9)"),
    Wrong("24-2", "the order is the inverse one: from halves to neighbours", code="""
          def reorder(weight, n_head):
              return weight.unflatten(0, (n_head, 2, -1)).transpose(1, 2).flatten(0, 2)
          """),
    Wrong("24-2", "all rows are taken for one head", "(n_head, -1, 2)", "(1, -1, 2)"),
    Wrong("24-2", "heads and pairs change places", "transpose(1, 2).flatten(0, 2)", "transpose(0, 2).flatten(0, 2)"),
    Wrong("24-2", "the rows of each pair are swapped as well", "pairs.transpose(1, 2)", "pairs.flip(2).transpose(1, 2)"),
    Wrong("24-2", "the given weight is written over", code="""
          def reorder(weight, n_head):
              weight.copy_(weight.unflatten(0, (n_head, -1, 2)).transpose(1, 2).flatten(0, 2).clone())
              return weight
          """),
    Wrong("24-3", "the square is taken in x's type, and overflows or vanishes in float16", "long = x.float()", "long = x"),
    Wrong("24-3", "eps is added to the root, not to the mean square", "torch.rsqrt(long.square().mean(-1, keepdim=True) + eps)",
          "(1 / (long.square().mean(-1, keepdim=True).sqrt() + eps))"),
    Wrong("24-3", "there is no eps, so zeros become nan", "keepdim=True) + eps", "keepdim=True)"),
    Wrong("24-3", "the result stays in float32", "(short * weight).to(x.dtype)", "short * weight"),
    Wrong("24-3", "the mean is subtracted, as in LayerNorm", "long = x.float()", "long = x.float() - x.float().mean(-1, keepdim=True)"),
    Wrong("24-3", "the result is rounded before the gain, and again after it", "(short * weight).to(x.dtype)", "short.to(x.dtype) * weight.to(x.dtype)"),
    Wrong("24-3", "the mean is taken over all positions together", ".mean(-1, keepdim=True)", ".mean()"),
    Wrong("24-4", "queries are dealt to the heads of keys in turn, and not in groups", code="""
          def grouped_attention(q, k, v):
              H, T = q.size(1), q.size(2)
              K = k.size(1)
              out = torch.empty_like(q)
              for h in range(H):
                  scores = q[:, h] @ k[:, h % K].transpose(-2, -1) / math.sqrt(q.size(-1))
                  scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
                  out[:, h] = scores.softmax(-1) @ v[:, h % K]
              return out
          """),
    Wrong("24-4", "the mask is forgotten", "scores.masked_fill(future, -math.inf)", "scores"),
    Wrong("24-4", "the mask hides a query's own place", "triu(1)", "triu(0)"),
    Wrong("24-4", "the scores are divided by d, not by its root", "math.sqrt(d)", "d"),
    Wrong("24-4", "keys and values are copied for each head of queries, by hand or within `@`, which broadcasts them", code="""
          def grouped_attention(q, k, v):
              B, H, T, d = q.shape
              q = q.unflatten(1, (k.size(1), -1))  # (B, K, H/K, T, d)
              scores = q @ k.unsqueeze(2).transpose(-2, -1) / math.sqrt(d)
              scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
              return (scores.softmax(-1) @ v.unsqueeze(2)).flatten(1, 2)
          """),
    Wrong("24-4", "the group's rows are taken in another order: positions first, then heads", "q.reshape(B, K, H // K * T, d)",
          "q.unflatten(1, (K, -1)).transpose(2, 3).reshape(B, K, H // K * T, d)"),
    Wrong("24-5", "the check accepts everything", code="def check_rotation(rotate):\n    rotate(torch.randn(3, 4), torch.arange(3))"),
    Wrong("24-5", "the check refuses everything", code="def check_rotation(rotate):\n    assert False"),
    Wrong("24-5", "only lengths are looked at", code="""
          def check_rotation(rotate):
              for d in (2, 8, 64):
                  x = torch.randn(50, d, generator=torch.Generator().manual_seed(d))
                  y = rotate(x, torch.arange(50))
                  assert torch.allclose(x.norm(dim=1), y.norm(dim=1), rtol=1e-3)
          """),
    Wrong("24-5", "other pairs than chapter 24's are refused, because its numbers are expected", code="""
          def check_rotation(rotate):
              x = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
              angles = torch.arange(20)[:, None] * 10_000.0 ** (-torch.arange(0, 8, 2).float() / 8)
              a, b = x.chunk(2, 1)
              expected = torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], 1)
              assert torch.allclose(rotate(x, torch.arange(20)), expected, atol=1e-4)
          """),
    Wrong("24-5", "only small positions are tried", code="""
          def check_rotation(rotate):
              q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
              def score(m, n):
                  a, b = rotate(q[None], torch.tensor([m])), rotate(k[None], torch.tensor([n]))
                  assert torch.allclose(a.norm(), q.norm(), rtol=1e-3)
                  return (a * b).sum()
              assert abs(score(5, 3) - score(25, 23)) < 1e-3
              assert abs(score(5, 3) - score(5, 2)) > 1e-3
          """),
]  # fmt: skip

FORBIDDEN = [
    Wrong("24-4", "PyTorch's own attention shares the heads, which the task is to do by hand", code="""
          def grouped_attention(q, k, v):
              return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
          """),
]  # fmt: skip

MANUAL = {"24-6": 2}
RUBRIC = {
    "24-6": "1 point: in GPT-2 a token's place was added to the stream before the keys were made, so a key cannot move, and after a full "
    "window there is no row of the table for the next position; rotated keys keep their distances to any new query. 1 point: it is not the same as "
    "reading the last window alone, since from the second layer on keys and values were computed from a stream that had attended to the dropped tokens "
    "(in the first layer they depend on their own token only); a measurement, such as the loss of the tokens behind the window with both ways, or the "
    "largest difference of logits by layer count. No point for 'only distances count' alone.",
}
