"""How exercises 21b are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def two_ranks(draw):
    return [(torch.randn(3 * 8, 5, generator=draw), 2)]


def any_ranks(draw):
    """Weights and biases; one rank; one head for each rank; the second moment, too, has c_attn's shape."""
    heads, d = number(draw, 2, 6), number(draw, 2, 5)
    return [
        (torch.randn(3 * 12 * d, 7, generator=draw), 4),
        (torch.randn(3 * heads * d, generator=draw), heads),
        (torch.randn(3 * heads * d, 2, 3, generator=draw), 1),
    ]


def with_total(s, x, w_1, b_1, w_2, b_2, n):
    """The result, and for each call of `total` what each rank has put in."""
    import torch

    calls = []

    def total(summands):
        calls.append([summand.clone() for summand in summands])
        return torch.stack(calls[-1]).sum(0)

    return [s.mlp(x, w_1, b_1, w_2, b_2, n, total), calls]


def mlps(draw, sizes) -> list[tuple]:
    found = []
    for C, hidden, n in sizes:
        shapes = ((2, 3, C), (hidden, C), (hidden,), (C, hidden), (C,))
        found.append((*(torch.randn(shape, generator=draw) for shape in shapes), n))
    return found


def on_two(draw):
    return mlps(draw, [(4, 16, 2)])


def on_any(draw):
    return mlps(draw, [(4, 16, 4), (3, 12, 6), (5, 20, 1), (8, 8, 2)])


def each_rank_its_own(s, logits, targets, rows):
    """The loss, from summaries that were each made from one rank's columns; and a merge of summaries of ours."""
    import torch

    ours, theirs, first = [], [], 0
    for columns in logits.split(rows, -1):
        theirs.append(s.summary(columns.clone(), targets.clone(), first)[:3])
        highest = columns.amax(-1)
        held = (targets >= first) & (targets < first + columns.size(-1))
        place = torch.where(held, targets - first, 0)[:, None]
        score = torch.where(held, columns.gather(-1, place).squeeze(-1), 0.0)
        ours.append(torch.stack([highest, (columns - highest[:, None]).exp().sum(-1), score]))
        first += columns.size(-1)
    return [theirs, s.merged(ours, targets)]


def tokens(draw, scale: float, rows: list[int], missing: int) -> tuple:
    V = sum(rows)
    targets = torch.randint(V, (9,), generator=draw)
    targets[:2] = torch.tensor([0, V - 1])
    targets[9 - missing :] = -100
    return scale * torch.randn(9, V, generator=draw), targets, rows


def small_logits(draw):
    return [tokens(draw, 1.0, [4, 4], 0), tokens(draw, 1.0, [5, 5, 3], 2)]


def large_logits(draw):
    """Some of 1,000, whose exponentials overflow; ranks whose maxima are far apart; one rank; ranks of one token."""
    far, targets, rows = tokens(draw, 1.0, [6, 6], 3)
    far[:, 6:] += 40
    return [
        tokens(draw, 500.0, [7, 6], 1),
        (far, targets, rows),
        tokens(draw, 3.0, [11], 4),
        tokens(draw, 3.0, [1, 2, 1, 3], 0),
    ]


def some_layers(draw):
    return [(1,), (number(draw, 2, 99),)]


def some_steps(draw):
    return [(number(draw, 1, 60), number(draw, 1, 9000), number(draw, 8, 4000)) for _ in range(3)]


def some_models(draw):
    return [(number(draw, 10**6, 10**9), number(draw, 1, 60), number(draw, 8, 4000)) for _ in range(3)]


LOOKUP = """
import torch

def embed(ids, tables):
    y, first = 0, 0
    for table in tables:
        held = (ids >= first) & (ids < first + len(table))
        y = y + table[torch.where(held, ids - first, 0)] * held[..., None]
        first += len(table)
    return y
"""


def changed(old: str, new: str) -> str:
    assert LOOKUP.count(old) == 1, old
    return LOOKUP.replace(old, new)


CHECKS = [
    Check("21b-1", "heads on two ranks", 1, "pieces", two_ranks, hidden=False),
    Check("21b-1", "any number of ranks, biases, and more dimensions", 2, "pieces", any_ranks),
    Check("21b-2", "an MLP on two ranks, with one sum", 2, with_total, on_two, hidden=False, tolerance=1e-4),
    Check("21b-2", "any number of ranks, each with summands of its own", 3, with_total, on_any, tolerance=1e-4),
    Check("21b-3", "ranks of equal and of unequal size, and targets that do not count", 2, each_rank_its_own, small_logits, hidden=False),
    Check("21b-3", "large logits, maxima that are far apart, one rank, ranks of one token", 3, each_rank_its_own, large_logits, tolerance=1e-4),
    Check("21b-4", "the sums of the stream, with both ends", 1, "stream_sums", some_layers),
    Check("21b-4", "the bytes of a step", 1, "bytes_in", some_steps),
    Check("21b-4", "where data parallelism puts in as much", 1, "even", some_models),
    Check("21b-4", "your own model", 2, "answers", hidden=False),
    CheckOfCheck(
        "21b-5",
        "the check finds rows of another rank, wherever they come from",
        4,
        "check_embedding",
        "embed",
        right=(
            LOOKUP,
            "import torch\ndef embed(ids, tables): return torch.cat(list(tables))[ids]",
            "import torch\ndef embed(ids, tables):\n    table = torch.cat(list(tables))\n"
            "    return torch.nn.functional.one_hot(ids, len(table)).to(table.dtype) @ table",
        ),
        wrong={
            "ids of other ranks add this rank's first row": changed(" * held[..., None]", ""),
            "a rank counts from the first row of the first rank": changed("ids - first, 0", "ids, 0) % len(table"),
            "the last row of each rank is taken for the next rank's": changed("ids < first", "ids + 1 < first"),
            "one row too many: the next rank's first row counts twice": changed(
                "(ids < first + len(table))", "(ids <= first + len(table))"
            ).replace("ids - first, 0", "(ids - first).clamp(max=len(table) - 1), 0"),
            "every rank has as many rows as rank 0": changed("first += len(table)", "first += len(tables[0])"),
            "ids are taken modulo the rows of a rank": (
                "def embed(ids, tables): return sum(table[ids % len(table)] for table in tables) / len(tables)"
            ),
            "a negative index finds a row from the end": changed("(ids >= first) & ", "").replace(
                "torch.where(held, ids - first, 0)", "torch.where(held, ids - first, 0).clamp(min=-len(table))"
            ),
            "the mean over the ranks, in place of the sum": changed("return y", "return y / len(tables)"),
            "the first id alone": changed("return y", "return y[..., :1, :].expand_as(y)"),
            "rank 0's rows only, and zeros for the rest": changed("for table in tables:", "for table in tables[:1]:"),
            "a vector for all ids of a row: ids are taken as one flat list": changed("return y", "return y.reshape(-1, y.size(-1))"),
        },
        hidden=False,
    ),
]  # fmt: skip

WRONG = [
    Wrong("21b-1", "cut at the middle: a rank takes q and a part of k for its q, k and v", code="""
          def pieces(w, n):
              return list(w.chunk(n))
          """),
    Wrong("21b-1", "the heads are right, and their rows are not: head by head, and not first q, then k, then v",
          "split.transpose(0, 1).flatten(1, 2)", "split.permute(1, 2, 0, *range(3, split.dim())).flatten(1, 2)"),
    Wrong("21b-1", "ranks and heads are exchanged: each rank gets every n-th row", code="""
          def pieces(w, n):
              split = w.unflatten(0, (3, -1, n)).transpose(1, 2)
              return list(split.transpose(0, 1).flatten(1, 2))
          """),
    Wrong("21b-1", "q, k and v come in another order", "split.transpose(0, 1)", "split.flip(0).transpose(0, 1)"),
    Wrong("21b-2", "the second bias is added to each summand, so it is in the sum n times", code="""
          def mlp(x, w_1, b_1, w_2, b_2, n, total):
              summands = []
              for weight, bias, second in zip(w_1.chunk(n), b_1.chunk(n), w_2.chunk(n, dim=1)):
                  summands.append(F.linear(gelu(F.linear(x, weight, bias)), second, b_2))
              return total(summands)
          """),
    Wrong("21b-2", "rows first: GELU of a sum needs a sum before it, and the result another one", code="""
          def mlp(x, w_1, b_1, w_2, b_2, n, total):
              parts = zip(x.chunk(n, dim=-1), w_1.chunk(n, dim=1))
              hidden = gelu(total([F.linear(x, weight) for x, weight in parts]) + b_1)
              return torch.cat([F.linear(hidden, second) for second in w_2.chunk(n)], -1) + b_2
          """),
    Wrong("21b-2", "GELU is applied to the sum of the ranks, whose outputs are different columns",
          "hidden = gelu(F.linear(x, weight, bias))", "hidden = F.linear(x, weight, bias)"),
    Wrong("21b-2", "one rank computes everything, and the others send zeros", code="""
          def mlp(x, w_1, b_1, w_2, b_2, n, total):
              y = F.linear(gelu(F.linear(x, w_1, b_1)), w_2)
              return total([y] + [torch.zeros_like(y)] * (n - 1)) + b_2
          """),
    Wrong("21b-2", "each rank computes everything, and the sum is divided by the number of ranks", code="""
          def mlp(x, w_1, b_1, w_2, b_2, n, total):
              y = F.linear(gelu(F.linear(x, w_1, b_1)), w_2)
              return total([y / n] * n) + b_2
          """),
    Wrong("21b-2", "the first bias is forgotten", "F.linear(x, weight, bias)", "F.linear(x, weight)"),
    Wrong("21b-2", "the second bias is forgotten", "total(summands) + b_2", "total(summands)"),
    Wrong("21b-3", "exponentials of the logits themselves: those of 1,000 overflow", "(logits - highest[:, None]).exp()", "logits.exp()"),
    Wrong("21b-3", "sums that were made with different maxima are added as they are", "(sums * (highest - top).exp()).sum(0)", "sums.sum(0)"),
    Wrong("21b-3", "the sums are brought to the common maximum the wrong way round", "(highest - top).exp()", "(top - highest).exp()"),
    Wrong("21b-3", "a rank gives some logit of its own for a target that it does not have", "torch.where(held, score, 0.0)]", "score]"),
    Wrong("21b-3", "targets that do not count are in the mean", "losses[targets != -100].mean()", "losses.mean()"),
    Wrong("21b-3", "the mean divides by all tokens", "losses[targets != -100].mean()", "losses[targets != -100].sum() / len(losses)"),
    Wrong("21b-3", "the target's column is looked for from token 0 on", "torch.where(held, targets - first, 0)",
          "torch.where(held, targets % logits.size(-1), 0)"),
    Wrong("21b-4", "forward alone is counted: backward has as many", "return 4 * layers + 2", "return 2 * layers + 1"),
    Wrong("21b-4", "the ends are forgotten: the embedding's sum in forward and the head's in backward", "return 4 * layers + 2", "return 4 * layers"),
    Wrong("21b-4", "the embedding is counted in both directions, and so is the head", "return 4 * layers + 2", "return 4 * layers + 4"),
    Wrong("21b-4", "the loss sums once for each token, and not three times", "* width + 3)", "* width + 1)"),
    Wrong("21b-4", "the loss is left out", "* width + 3)", "* width)"),
    Wrong("21b-4", "numbers are counted in place of bytes", "return 4 * tokens *", "return tokens *"),
    Wrong("21b-4", "data parallelism is counted in numbers, and the other side in bytes", "return 4 * parameters /", "return parameters /"),
    Wrong("21b-5", "the check accepts everything", code="def check_embedding(embed):\n    pass"),
    Wrong("21b-5", "the check tries one rank, whose table is complete", code="""
          def check_embedding(embed):
              table = torch.arange(6.0).view(3, 2)
              assert torch.equal(embed(torch.tensor([2, 0]), [table]), table[[2, 0]])
          """),
    Wrong("21b-5", "the check looks at the shape alone", code="""
          def check_embedding(embed):
              assert embed(torch.tensor([[0, 3]]), [torch.ones(2, 4), torch.ones(2, 4)]).shape == (1, 2, 4)
          """),
    Wrong("21b-5", "the check tries the first rank's ids alone", code="""
          def check_embedding(embed):
              tables = [torch.ones(3, 2), 2 * torch.ones(3, 2)]
              assert torch.equal(embed(torch.arange(3), tables), torch.ones(3, 2))
          """),
]  # fmt: skip

FORBIDDEN = [
    Wrong("21b-1", "a loop over the ranks", code="""
          def pieces(w, n):
              parts = w.unflatten(0, (3, n, -1))
              return [parts[:, rank].flatten(0, 1) for rank in range(n)]
          """),
]  # fmt: skip

MANUAL = {"21b-6": 2}
RUBRIC = {
    "21b-6": "½ point each. How often: four sums of the stream in each block (two forward, two backward), and one at each end; every one of them then crosses the slow network. Not hidden: "
    "the next product (the next LayerNorm) needs the sum, so nothing can be computed meanwhile. Layout: tensor parallelism of 8 (or fewer) inside each machine, data parallelism of 2 between them "
    "(FSDP between them is right too). What crosses: the gradients, once a step (or a reduce-scatter and gathers), which travel while backward computes those of earlier layers; their bytes do not grow with the tokens."
}
