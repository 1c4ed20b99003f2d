"""How exercises 19 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def at_first(s, into, out, rank, alpha, x):
    """Whether a new adapter changes anything, what is trained, and what a gradient reaches."""
    import torch

    linear = torch.nn.Linear(into, out)
    adapter = s.Adapter(linear, rank, alpha)
    changed = bool((adapter(x) != linear(x)).any())
    adapter(x).square().sum().backward()
    return {
        "changes what the layer gives": changed,
        "trained": sorted(name for name, p in adapter.named_parameters() if p.requires_grad),
        "B's gradient": bool(adapter.B.grad.any()),
        "A is random": adapter.A.detach().unique().numel() > 1,
    }


def later(s, W, A, B, alpha, x):
    """The layer with given matrices."""
    import torch

    linear = torch.nn.Linear(W.size(1), W.size(0), bias=False)
    adapter = s.Adapter(linear, A.size(0), alpha)
    with torch.no_grad():
        linear.weight.copy_(W)
        adapter.A.copy_(A)
        adapter.B.copy_(B)
        return adapter(x)


def new_layers(draw):
    return [
        (into, out, rank, 8.0, torch.randn(3, into, generator=draw))
        for into, out, rank in ((6, 4, 2), (4, 9, 1))
    ]


def matrices(draw, rank: int, shape: tuple) -> tuple:
    out, into = number(draw, 3, 8), shape[-1]
    return (
        torch.randn(out, into, generator=draw),
        torch.randn(rank, into, generator=draw),
        torch.randn(out, rank, generator=draw),
        float(number(draw, 5, 20)),
        torch.randn(shape, generator=draw),
    )


def moved_layers(draw):
    return [matrices(draw, rank, shape) for rank, shape in ((1, (5,)), (3, (2, 5)), (4, (2, 3, 7)))]


def product(s, delta, rank, alpha):
    A, B = s.best_adapter(delta, rank, alpha)
    return [list(A.shape), list(B.shape), alpha / rank * B @ A]


def square_updates(draw):
    return [(torch.randn(4, 4, generator=draw), 2, 2.0)]


def updates(draw):
    """Of any shape and rank, with any scale."""
    return [
        (torch.randn(out, into, generator=draw), rank, float(number(draw, 5, 20)))
        for out, into, rank in ((6, 4, 1), (3, 8, 2), (7, 5, 5))
    ] + [(torch.randn(6, 2, generator=draw) @ torch.randn(2, 5, generator=draw), 2, 8.0)]


def pairs(draw, count: int, eot: int, begins: bool) -> list:
    def some(low):
        return torch.randint(1, 90, (number(draw, low, 7),), generator=draw).tolist()

    return [([eot] * begins + some(1), some(1)) for _ in range(count)]


def one_pair(draw):
    return [(pairs(draw, 1, 99, False), 99) for _ in range(2)]


def many_pairs(draw):
    return [(pairs(draw, 5, 99, False), 99), (pairs(draw, 4, 0, False), 0)]


def texts_that_begin_with_eot(draw):
    return [(pairs(draw, 4, 99, True), 99), ([([5], [6, 7]), ([5, 6, 7], [8])], 99)]


def shapes(draw):
    return [(number(draw, 1, 40), 64 * number(draw, 1, 20), number(draw, 1, 64)) for _ in range(3)]


def numbers(draw):
    return [(number(draw, 0, 10**6), number(draw, 0, 10**6)) for _ in range(3)]


def adapter(body: str) -> str:
    return (
        f"import math\nimport torch\ndef adapted(x, W, A, B, alpha):\n    r = A.shape[0]\n    return {body}"
    )


CHECKS = [
    Check("19-1", "nothing changes at first, and only A and B are trained", 2, at_first, new_layers, hidden=False),
    Check("19-1", "given matrices add α/rank · BA", 2, later, moved_layers),
    Check("19-2", "a square update", 1, product, square_updates, hidden=False, tolerance=1e-4),
    Check("19-2", "updates of any shape, rank and scale", 3, product, updates, tolerance=1e-4),
    Check("19-3", "one pair alone", 1, "batch_of", one_pair, hidden=False),
    Check("19-3", "pairs of unequal length: the eot counts, the padding does not", 2, "batch_of", many_pairs),
    Check("19-3", "prompts that begin with eot", 1, "batch_of", texts_that_begin_with_eot),
    CheckOfCheck(
        "19-4",
        "the check finds wrong scales, wrong axes and lost shapes",
        4,
        "check_adapted",
        "adapted",
        right=(
            adapter("x @ W.T + alpha / r * (x @ A.T @ B.T)"),
            adapter("x @ (W + alpha / r * B @ A).T"),
            adapter("torch.einsum('...i,oi->...o', x, W) + torch.einsum('...i,ri,or->...o', x, A, B) * (alpha / r)"),
        ),
        wrong={
            "the rank is not in the scale": adapter("x @ W.T + alpha * (x @ A.T @ B.T)"),
            "the scale is alpha times the rank": adapter("x @ W.T + alpha * r * (x @ A.T @ B.T)"),
            "the scale is alpha over the root of the rank": adapter("x @ W.T + alpha / math.sqrt(r) * (x @ A.T @ B.T)"),
            "the scale is 1, as if alpha were the rank": adapter("x @ W.T + x @ A.T @ B.T"),
            "the scale is alpha over the width": adapter("x @ W.T + alpha / A.shape[1] * (x @ A.T @ B.T)"),
            "alpha is fixed at 8": adapter("x @ W.T + 8.0 / r * (x @ A.T @ B.T)"),
            "the base is left out": adapter("alpha / r * (x @ A.T @ B.T)"),
            "W is used as (in, out) where it is square": adapter(
                "x @ (W if W.shape[0] == W.shape[1] else W.T) + alpha / r * (x @ A.T @ B.T)"
            ),
            "a batch of texts comes back flat": adapter("(x @ W.T + alpha / r * (x @ A.T @ B.T)).flatten(0, -2)"),
            "only the first text of a batch gets the adapter": adapter(
                "x @ W.T + alpha / r * (x @ A.T @ B.T) * ((torch.arange(x.shape[0]) == 0)[:, None, None] if x.dim() == 3 else 1)"
            ),
        },
        hidden=False,
    ),
    Check("19-5", "adapters of any shape", 1, "adapter_parameters", shapes, hidden=False),
    Check("19-5", "bytes of trained and frozen numbers", 1, "training_bytes", numbers),
    Check("19-5", "your own shape", 2, "answers"),
]  # fmt: skip

WRONG = [
    Wrong("19-1", "B is random, and the model another one before the first step",
          "torch.zeros(linear.out_features, rank)", "torch.randn(linear.out_features, rank)"),
    Wrong("19-1", "A is zero as well: no gradient ever reaches either",
          "torch.randn(rank, linear.in_features) / math.sqrt(linear.in_features)", "torch.zeros(rank, linear.in_features)"),
    Wrong("19-1", "the base is not frozen, and moves with the adapter", "linear.requires_grad_(False)", "linear"),
    Wrong("19-1", "only the base's W is frozen, its bias moves", "self.linear, self.scale = linear.requires_grad_(False), alpha / rank",
          "self.linear, self.scale = linear, alpha / rank\n        linear.weight.requires_grad_(False)"),
    Wrong("19-1", "alpha is not divided by the rank", "(False), alpha / rank", "(False), alpha"),
    Wrong("19-1", "alpha is divided by the root of the rank: another method, with another alpha",
          "(False), alpha / rank", "(False), alpha / math.sqrt(rank)"),
    Wrong("19-1", "A is no parameter: B alone is trained",
          "self.A = nn.Parameter(torch.randn(rank, linear.in_features) / math.sqrt(linear.in_features))",
          "self.A = torch.randn(rank, linear.in_features) / math.sqrt(linear.in_features)"),
    Wrong("19-2", "α/rank is not taken out, and is applied twice", " * (rank / alpha)", ""),
    Wrong("19-2", "α/rank is multiplied in once more", "(rank / alpha)", "(alpha / rank)"),
    Wrong("19-2", "singular values stand in both factors, so squared", "return Vh[:rank], U", "return S[:rank, None] * Vh[:rank], U"),
    Wrong("19-2", "singular values are left out", " * S[:rank]", ""),
    Wrong("19-2", "the smallest directions are kept in place of the largest", "return Vh[:rank], U[:, :rank] * S[:rank]",
          "return Vh[-rank:], U[:, -rank:] * S[-rank:]"),
    Wrong("19-2", "Vh is taken for V: its rows are the directions", "Vh[:rank],", "Vh[:, :rank].T,"),
    Wrong("19-3", "all eot are hidden with the padding: the model never learns to stop",
          "        y[i, len(prompt) + len(answer) :] = -100", "        y[i, len(prompt) - 1 :][y[i, len(prompt) - 1 :] == eot] = -100"),
    Wrong("19-3", "the answer's first token is hidden with the prompt: y is one ahead of x", ": len(prompt) - 1]", ": len(prompt)]"),
    Wrong("19-3", "the prompt counts", "y[i, : len(prompt) - 1] = -100", "pass"),
    Wrong("19-3", "the prompt's last token counts, though nobody asks the model to write it",
          "y[i, : len(prompt) - 1] = -100", "y[i, : max(0, len(prompt) - 2)] = -100"),
    Wrong("19-3", "the padding counts, and a short answer is mostly eot", "        y[i, len(prompt) + len(answer) :] = -100\n", ""),
    Wrong("19-3", "y is x: each token is to predict itself", "ids[:, 1:].clone()", "ids[:, :-1].clone()"),
    Wrong("19-4", "the check accepts everything", code="def check_adapted(adapted):\n    pass"),
    Wrong("19-4", "the check refuses everything", code="def check_adapted(adapted):\n    raise AssertionError('wrong')"),
    Wrong("19-4", "the check takes one size for all, and alpha equal to the rank", code="""
          def check_adapted(adapted):
              x, W, A, B = torch.randn(4, 4, 4)
              assert torch.allclose(adapted(x, W, A, B, 4.0), x @ (W + B @ A).T, atol=1e-4)
          """),
    Wrong("19-4", "the check looks at B = 0 only, where no mistake of the adapter is seen", code="""
          def check_adapted(adapted):
              x, W = torch.randn(2, 5), torch.randn(7, 5)
              assert torch.allclose(adapted(x, W, torch.randn(3, 5), torch.zeros(7, 3), 8.0), x @ W.T, atol=1e-4)
          """),
    Wrong("19-4", "equality to the last bit refuses the one that merges first", code="""
          def check_adapted(adapted):
              for shape in ((5,), (2, 5), (2, 3, 5)):
                  x, W, A, B = torch.randn(shape), torch.randn(7, 5), torch.randn(2, 5), torch.randn(7, 2)
                  assert torch.equal(adapted(x, W, A, B, 8.0), x @ W.T + 4.0 * (x @ A.T @ B.T))
          """),
    Wrong("19-5", "2C are missing: c_attn makes queries, keys and values, C to 3C, and attention has a c_proj too", "(C, 3 * C)", "(C, C)"),
    Wrong("19-5", "the MLP has a c_proj too, 4C to C", ", (4 * C, C)]", "]"),
    Wrong("19-5", "as many as the matrix itself: an adapter has in + out numbers for each rank", "rank * (into + out)", "rank * into * out"),
    Wrong("19-5", "A alone is counted", "rank * (into + out)", "rank * into"),
    Wrong("19-5", "a frozen weight is counted as no bytes, though it has to be there", "16 * trained + 4 * frozen", "16 * trained"),
    Wrong("19-5", "a frozen weight is given a gradient", "4 * frozen", "8 * frozen"),
    Wrong("19-5", "AdamW has two means, not one", "16 * trained", "12 * trained"),
]  # fmt: skip

MANUAL = {"19-6": 2}
RUBRIC = {
    "19-6": "½ point each. Measure: the loss (or the answers) of both on held-out plain conversation, beside the base's on the same text, and not only on letters; with an error. "
    "Expect: the high rate on all weights has moved the model further, so it has probably forgotten more; a low rank limits the change, and the chapter's figure shows the two "
    "axes together. With the caveat that this is measured, not certain: a full run at a lower rate may lie as well. "
    "A way: mix old text into the batches (replay), a lower rate or fewer steps, averaging the tuned weights with the base's. No point for "
    "`smaller rank` as the way, which is another number of parameters, nor for naming forgetting without saying on which text it is seen."
}
