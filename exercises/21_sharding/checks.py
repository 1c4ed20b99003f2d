"""How exercises 21 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def cut_and_joined(s, x, n):
    """The parts, and what they are together; joined from what a right cut gives, too."""
    import torch

    zeros = x.new_zeros(-len(x) % n, *x.shape[1:])
    ours = list(torch.cat([x, zeros]).chunk(n))
    return [s.cut(x, n), s.join(ours, len(x))]


def rows_that_divide_or_not(draw):
    return [(torch.randn(rows, 3, generator=draw), n) for rows, n in ((8, 4), (5, 4), (7, 2))]


def odd_shapes(draw):
    """A bias, fewer rows than ranks, three dimensions, one rank."""
    shapes = (((7,), 3), ((2, 3), 5), ((number(draw, 4, 40), 2, 3), number(draw, 2, 9)), ((6, 2), 1))
    return [(torch.randn(shape, generator=draw), n) for shape, n in shapes]


def models(draw):
    """Some that fit to the last byte, and some that fit on no number of ranks."""
    found = [(10, 100, 0, 1), (10, 60, 20, 1), (10, 40, 20, 2), (10, 26, 10, 3), (10**11, 10**11 + 7, 0, 3)]
    for stage in (1, 2, 3):
        P = number(draw, 10**6, 10**9)
        found += [(P, 5 * P, 0, stage), (P, number(draw, 3, 9) * P, P // 2, stage)]
    return found


def after_steps(s, start, gradients):
    """All ranks' weights after some steps, and the shapes of what their states keep. gradients: (steps, ranks, rows, C)."""
    weights = [start.clone() for _ in range(gradients.shape[1])]
    states = [{} for _ in weights]
    for one in gradients:
        s.zero_step(weights, list(one.clone().unbind()), states)
    shapes = [sorted(tuple(x.shape) for x in state.values() if hasattr(x, "shape")) for state in states]
    return [weights, shapes]


def runs(draw, sizes) -> list[tuple]:
    """Ranks, rows and steps; each gradient has its own scale, so that a mean of what is divided is another one."""
    found = []
    for ranks, rows, steps in sizes:
        scale = 1 + 9 * torch.rand(steps, ranks, 1, 1, generator=draw)
        gradients = scale * torch.randn(steps, ranks, rows, 3, generator=draw)
        found.append((torch.randn(rows, 3, generator=draw), gradients))
    return found


def two_ranks(draw):
    return runs(draw, [(2, 6, 3)])


def any_ranks(draw):
    return runs(draw, [(1, 4, 3), (4, 8, 4), (5, 5, 2)])


def steps_to_count(draw):
    return [
        (number(draw, 10**6, 10**9), n, stage, micro)
        for stage in range(4)
        for n, micro in ((2, 1), (number(draw, 3, 99), number(draw, 2, 9)))
    ]


SQUARES = "sum(float((x ** 2).sum()) for rank in parts for x in rank)"
OF_COPIES = "sum(float((x ** 2).sum()) for x in copies)"

CHECKS = [
    Check("21-1", "rows that divide, and rows that do not", 1, cut_and_joined, rows_that_divide_or_not, hidden=False),
    Check("21-1", "a bias, fewer rows than ranks, more dimensions, and one rank", 2, cut_and_joined, odd_shapes),
    Check("21-2", "any model, to the last byte", 2, "ranks_needed", models),
    Check("21-2", "your own model and card", 2, "answers", hidden=False),
    Check("21-3", "two ranks take the steps of one process", 2, after_steps, two_ranks, hidden=False),
    Check("21-3", "any number of ranks, with gradients of unequal size, and a moment of its part only", 3, after_steps, any_ranks),
    CheckOfCheck(
        "21-4",
        "the check finds norms of a rank's parts alone, and copies that count more than once",
        4,
        "check_norm",
        "norm",
        right=(
            f"def norm(parts, copies): return ({SQUARES} + {OF_COPIES}) ** 0.5",
            "import torch\ndef norm(parts, copies):\n    every = [x.flatten().double() for rank in [*parts, copies] for x in rank]\n"
            "    return float(torch.cat(every).norm())",
            "import math\ndef norm(parts, copies):\n    return math.hypot(*(float(x.norm()) for rank in [*parts, copies] for x in rank))",
        ),
        wrong={
            "rank 0 takes the norm of what it holds": f"def norm(parts, copies): return (sum(float((x ** 2).sum()) for x in parts[0]) + {OF_COPIES}) ** 0.5",
            "copies count once for each rank": f"def norm(parts, copies): return ({SQUARES} + len(parts) * {OF_COPIES}) ** 0.5",
            "copies do not count": f"def norm(parts, copies): return {SQUARES} ** 0.5",
            "norms are added, not squares": (
                "def norm(parts, copies): return sum(float(x.norm()) for rank in [*parts, copies] for x in rank)"
            ),
            "each rank's norm, averaged": (
                "def norm(parts, copies):\n    norms = [(sum(float((x ** 2).sum()) for x in [*rank, *copies])) ** 0.5 for rank in parts]\n"
                "    return sum(norms) / len(norms)"
            ),
            "squares are averaged over the ranks": f"def norm(parts, copies): return ({SQUARES} / len(parts) + {OF_COPIES}) ** 0.5",
            "the root is forgotten": f"def norm(parts, copies): return {SQUARES} + {OF_COPIES}",
            "the largest of the ranks' norms": (
                "def norm(parts, copies): return max((sum(float((x ** 2).sum()) for x in [*rank, *copies])) ** 0.5 for rank in parts)"
            ),
            "only the first part of each rank counts": (
                f"def norm(parts, copies): return (sum(float((rank[0] ** 2).sum()) for rank in parts if rank) + {OF_COPIES}) ** 0.5"
            ),
            "rank 0's norm, times the root of the number of ranks": (
                "def norm(parts, copies):\n    mine = sum(float((x ** 2).sum()) for x in parts[0])\n"
                f"    return (len(parts) * mine + {OF_COPIES}) ** 0.5"
            ),
        },
        hidden=False,
    ),
    Check("21-5", "every stage, with any number of ranks and micro-batches", 2, "sent", steps_to_count),
    Check("21-5", "your own run", 2, "sums", hidden=False),
]  # fmt: skip

WRONG = [
    Wrong("21-1", "rows that do not divide are dropped: whole rows of a weight are never trained", code="""
          def cut(x, n):
              return list(x[: len(x) // n * n].chunk(n))
          def join(parts, rows):
              return torch.cat(parts)[:rows]
          """),
    Wrong("21-1", "nothing is filled up: the last rank has fewer rows, or there is no part for it", "torch.cat([x, zeros])", "x"),
    Wrong("21-1", "the zeros are in front, so every row has moved to another place", "torch.cat([x, zeros])", "torch.cat([zeros, x])"),
    Wrong("21-1", "the zeros come back as rows of the weight", "torch.cat(parts)[:rows]", "torch.cat(parts)"),
    Wrong("21-1", "one row of zeros, whatever is missing", "-len(x) % n", "int(len(x) % n > 0)"),
    Wrong("21-1", "rows are dealt like cards, one to each rank in turn: they are joined in another order", ".chunk(n))", "[rank::n] for rank in range(n))"),
    Wrong("21-2", "rounded down: on the fewest ranks it does not fit", "-(-divided * parameters // room)", "divided * parameters // room"),
    Wrong("21-2", "the float32 masters are forgotten: the optimizer keeps 12 bytes of a parameter, not 8", code="""
          def ranks_needed(parameters, card, activations, stage):
              divided = {1: 8, 2: 10, 3: 12}[stage]
              room = card - activations - (12 - divided) * parameters
              return None if room <= 0 else -(-divided * parameters // room)
          answers = [ranks_needed(**mine, stage=stage) for stage in (1, 2, 3)]
          """),
    Wrong("21-2", "stage 1 is taken for stage 2: gradients are divided only from stage 2 on", "{1: 12, 2: 14, 3: 16}", "{1: 14, 2: 14, 3: 16}"),
    Wrong("21-2", "activations are divided among the ranks, as if they shared the rows of one", code="""
          def ranks_needed(parameters, card, activations, stage):
              divided = {1: 12, 2: 14, 3: 16}[stage]
              room = card - (16 - divided) * parameters
              return None if room <= 0 else -(-(divided * parameters + activations) // room)
          answers = [ranks_needed(**mine, stage=stage) for stage in (1, 2, 3)]
          """),
    Wrong("21-2", "activations are left out", "card - activations", "card"),
    Wrong("21-3", "gradients are added and not averaged: the step is too long by the number of ranks", "sum(gradients) / n", "sum(gradients)"),
    Wrong("21-3", "each rank updates with its own gradient: nothing is reduced", code="""
          def zero_step(weights, gradients, states):
              n = len(weights)
              parts = [weight.chunk(n)[rank] for rank, weight in enumerate(weights)]
              for rank in range(n):
                  momentum(parts[rank], gradients[rank].chunk(n)[rank], states[rank])
              updated = torch.cat(parts)
              for weight in weights:
                  weight.copy_(updated)
          """),
    Wrong("21-3", "the parts are not gathered: each rank has new rows for its own part only", "        weight.copy_(updated)", "        pass"),
    Wrong("21-3", "every rank keeps the moment of all rows: right weights, and no memory is saved", code="""
          def zero_step(weights, gradients, states):
              mean = sum(gradients) / len(weights)
              for weight, state in zip(weights, states):
                  momentum(weight, mean, state)
          """),
    Wrong("21-3", "rank 0's weights are everybody's, before the others' parts have been gathered", "weight.copy_(updated)", "weight.copy_(weights[0])"),
    Wrong("21-4", "the check accepts everything", code="def check_norm(norm):\n    pass"),
    Wrong("21-4", "the check tries one rank, where nearly every norm is right", code="""
          def check_norm(norm):
              assert abs(norm([[torch.tensor([3.0, 4.0])]], []) - 5) < 1e-4
          """),
    Wrong("21-4", "the check asks for equal bits, and refuses a norm that adds in another order", code="""
          def check_norm(norm):
              g = torch.Generator().manual_seed(0)
              parts = [[torch.randn(50, generator=g)] for _ in range(7)]
              assert norm(parts, []) == torch.cat([x for rank in parts for x in rank]).norm().item()
          """),
    Wrong("21-4", "the check has no copies", code="""
          def check_norm(norm):
              assert abs(norm([[torch.tensor([3.0])], [torch.tensor([4.0])]], []) - 5) < 1e-4
          """),
    Wrong("21-5", "stage 2 reduces once a step: it has no place for complete gradients between micro-batches", "2: micro, 3: micro", "2: 1, 3: micro"),
    Wrong("21-5", "stage 3 gathers once: backward needs the weights again, and forward has freed them", "3: 2 * micro", "3: micro"),
    Wrong("21-5", "stage 3 is counted for one micro-batch", code="""
          def sent(parameters, n, stage, micro):
              passes = {0: 2, 1: 2, 2: 1 + micro, 3: 3}[stage]
              return passes * (n - 1) / n * 4 * parameters
          sums = [sent(**mine, stage=stage) for stage in range(4)]
          """),
    Wrong("21-5", "each rank sends everything to each other rank, which a ring does not", "(n - 1) / n", "(n - 1)"),
    Wrong("21-5", "numbers are counted, not bytes: a float32 has four", "4 * parameters", "parameters"),
    Wrong("21-5", "DDP averages after every micro-batch", "reduces = {0: 1,", "reduces = {0: 2 * micro - 1,"),
]  # fmt: skip

MANUAL = {"21-6": 2}
RUBRIC = {
    "21-6": "½ point for each of two things on every rank with its remedy (of the following; two are enough), ½ for why they are not divided, ½ for the 64 cards. "
    "Activations: they depend on the rows of a rank; fewer rows with more micro-batches, or recompute_blocks. Autocast's bf16 copies of the matrices: 2 bytes of each parameter, "
    "about 6 GB here, kept from forward to backward; FSDP2's own policy (`shard(precision='bf16')`) gathers in bf16 and frees. Also right: the logits and the loss's tables (fewer rows); the gathered root. "
    "64 more cards: 0.75 GB become 0.375 GB, so they free 0.375 GB a card and leave the rest as it is."
}
