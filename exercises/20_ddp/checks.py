"""How exercises 20 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def number(draw, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=draw))


def two_ranks(draw):
    return [([[number(draw, 1, 20), number(draw, 1, 20)] for _ in range(2)],)]


def any_ranks(draw):
    """Of unequal numbers of micro-batches, too, some of them empty."""
    return [
        ([[number(draw, 0, 9) for _ in range(number(draw, 1, 4))] for _ in range(size)] + [[5, 0]],)
        for size in (1, 2, 5)
    ] + [([[7]],), ([[3, 4]],)]


def small_rings(draw):
    return [(2,), (3,)]


def rings(draw):
    return [(1,), (4,), (number(draw, 5, 12),)]


def all_have_the_sum(got, expected, n) -> str:
    """Runs the plan: how many times each rank's numbers are in each part of each rank."""
    if not (isinstance(got, list | tuple) and len(got) == 2 * (n - 1)):
        return f"{n} ranks take {2 * (n - 1)} steps"
    for parts in got:
        if not (
            isinstance(parts, list | tuple)
            and len(parts) == n
            and all(type(p) is int and 0 <= p < n for p in parts)
        ):
            return f"in each step there are {n} parts to be sent, from 0 to {n - 1}"
    held = torch.eye(n).repeat_interleave(n, 0).view(n, n, n)  # (rank, part, whose)
    for step, parts in enumerate(got):
        sent = [held[rank, part].clone() for rank, part in enumerate(parts)]
        for rank, part in enumerate(parts):
            held[rank - 1, part] = sent[rank] + (held[rank - 1, part] if step < n - 1 else 0)
    return "" if (held == 1).all() else f"{n} ranks do not all have the sum, each number once"


def after_steps(s, weights, rows, lr, clip, wire):
    """The weights of all ranks after some steps. rows: (steps, micro, ranks, B, in + 1).

    Replicas are ours, and each average adds the next row of `wire` to what it averages: how often gradients were averaged,
    and when, is in the weights, where a counter could be set back.
    """
    import torch

    class Wired:
        def __init__(self, models):
            self.models, self.sync, self.noise = models, True, iter(wire)

        def forward(self, batches):
            self.armed = self.sync
            return [(model(x) - y).square().mean() for model, (x, y) in zip(self.models, batches)]

        def backward(self, losses):
            for loss in losses:
                loss.backward()
            if self.armed:
                mean = torch.stack([model.weight.grad for model in self.models]).mean(0) + next(self.noise)
                for model in self.models:
                    model.weight.grad = mean.clone()

    models = []
    for _ in range(rows.shape[2]):
        models.append(torch.nn.Linear(weights.shape[1], 1, bias=False))
        with torch.no_grad():
            models[-1].weight.copy_(weights)
    replicas = Wired(models)
    for one in rows:
        s.step(replicas, [[(rank[:, :-1], rank[:, -1:]) for rank in micro] for micro in one], lr, clip)
    return [model.weight.detach() for model in models]


def with_clip(draw, clip: float):
    return [
        (
            torch.randn(1, 3, generator=draw),
            torch.randn(2, micro, ranks, 4, 4, generator=draw),
            0.1,
            clip,
            0.3 * torch.randn(8, 3, generator=draw),
        )
        for micro, ranks in ((3, 2), (1, 3), (4, 2))
    ]


def unclipped(draw):
    return with_clip(draw, 1e9)


def clipped(draw):
    return with_clip(draw, 0.5)


def clusters(draw):
    return [
        (1e12 * number(draw, 1, 900), 1e9 * number(draw, 1, 400), 64 * number(draw, 1, 4000), n)
        for n in (1, 2, 8, number(draw, 9, 999))
    ]


CHECKS = [
    Check("20-1", "two ranks with two micro-batches each", 1, "shares", two_ranks, hidden=False),
    Check("20-1", "any ranks, unequal and empty micro-batches, and one rank alone", 2, "shares", any_ranks),
    Check("20-2", "rings of two and three", 1, "ring", small_rings, hidden=False, judge=all_have_the_sum),
    Check("20-2", "a ring of any size", 3, "ring", rings, judge=all_have_the_sum),
    Check("20-3", "ranks stay together, with one average a step", 2, after_steps, unclipped, hidden=False),
    Check("20-3", "the gradient of all rows is clipped, once", 2, after_steps, clipped),
    CheckOfCheck(
        "20-4",
        "the check finds tokens read twice or never, and ranks of unequal length",
        5,
        "check_epoch",
        "epoch",
        right=(
            "def epoch(n, rank, size, k): return [(step * size + rank) * k for step in range((n - 1) // (size * k))]",
            "def epoch(n, rank, size, k):\n    steps = (n - 1) // (size * k)\n"
            "    return list(range(rank * steps * k, (rank + 1) * steps * k, k))",
            "def epoch(n, rank, size, k):\n    steps = (n - 1) // (size * k)\n"
            "    return [(step * size + (rank + step) % size) * k for step in reversed(range(steps))]",
        ),
        wrong={
            "each rank reads on while its own piece fits: unequal numbers": "def epoch(n, rank, size, k): return list(range(rank * k, n - k, size * k))",
            "all ranks read the same": "def epoch(n, rank, size, k): return list(range(0, (n - 1) // (size * k) * size * k, size * k))",
            "ranks are one token apart, not one piece": (
                "def epoch(n, rank, size, k): return [step * size * k + rank for step in range((n - 1) // (size * k))]"
            ),
            "the last target lies behind the shard": (
                "def epoch(n, rank, size, k): return [(step * size + rank) * k for step in range(n // (size * k))]"
            ),
            "the last whole step is dropped": (
                "def epoch(n, rank, size, k): return [(step * size + rank) * k for step in range(max(0, (n - 1) // (size * k) - 1))]"
            ),
            "blocks of n / size tokens: those between them are read by nobody": (
                "def epoch(n, rank, size, k): return [rank * (n // size) + step * k for step in range((n - 1) // (size * k))]"
            ),
            "ranks count from 1, and the first piece is lost": (
                "def epoch(n, rank, size, k): return [(step * size + rank + 1) * k for step in range((n - 1) // (size * k))]"
            ),
            "rank 0 reads the rest alone": (
                "def epoch(n, rank, size, k):\n    steps = (n - 1) // (size * k)\n"
                "    return [(step * size + rank) * k for step in range(steps)]"
                " + ([steps * size * k] if rank == 0 and n - 1 - steps * size * k >= k else [])"
            ),
            "pieces overlap by the target": (
                "def epoch(n, rank, size, k): return [max(0, (step * size + rank) * k - (step > 0)) for step in range((n - 1) // (size * k))]"
            ),
            "one rank alone reads every second piece": (
                "def epoch(n, rank, size, k): return [(step * size + rank) * k for step in range(0, (n - 1) // (size * k), 1 + (size == 1))]"
            ),
        },
        hidden=False,
    ),
    Check("20-5", "as many tokens for each GPU", 1, "weak", clusters, hidden=False),
    Check("20-5", "one batch for all", 1, "strong", clusters),
    Check("20-5", "your own cluster", 2, "answers"),
]  # fmt: skip

WRONG = [
    Wrong("20-1", "a mean of means: each micro-batch weighs the same, whatever it holds", code="""
          def shares(counts):
              return [[1 / len(rank) if count else 0.0 for count in rank] for rank in counts]
          """),
    Wrong("20-1", "each rank divides by its own targets: right on one rank, a mean of means over several", code="""
          def shares(counts):
              return [[count / max(1, sum(rank)) for count in rank] for rank in counts]
          """),
    Wrong("20-1", "DDP divides by the number of ranks once more: the gradient is too short by that factor",
          "len(counts) * count / total", "count / total"),
    Wrong("20-1", "the number of micro-batches is divided by as well", "len(counts) * count / total", "len(counts) * count / total / len(rank)"),
    Wrong("20-2", "each rank sends its own part again and again, and passes nothing on", "(rank + step) % n", "rank"),
    Wrong("20-2", "this is the plan of a ring that turns right", "(rank + step) % n", "(rank - step) % n"),
    Wrong("20-2", "half of the way: parts are complete on one rank each, and nobody else has them", "2 * (n - 1)", "n - 1"),
    Wrong("20-2", "one round too many: what was complete is added to again", "2 * (n - 1)", "2 * n"),
    Wrong("20-2", "the second half begins again with each rank's own part, which is not complete there", "(rank + step) % n",
          "(rank + step % (n - 1)) % n"),
    Wrong("20-3", "the flag is set after forward has read it: the first micro-batch is averaged, and the last is not",
          "        replicas.sync = i == len(micro_batches) - 1\n        losses = replicas.forward(batches)\n",
          "        losses = replicas.forward(batches)\n        replicas.sync = i == len(micro_batches) - 1\n"),
    Wrong("20-3", "gradients are averaged after every micro-batch: right, and as many times as dear",
          "i == len(micro_batches) - 1", "True"),
    Wrong("20-3", "gradients are never averaged", "i == len(micro_batches) - 1", "False"),
    Wrong("20-3", "each rank clips a gradient of its own, after every micro-batch", code="""
          def step(replicas, micro_batches, lr, clip):
              for model in replicas.models:
                  model.zero_grad()
              for i, batches in enumerate(micro_batches):
                  replicas.sync = i == len(micro_batches) - 1
                  losses = replicas.forward(batches)
                  replicas.backward([loss / len(micro_batches) for loss in losses])
                  for model in replicas.models:
                      clip_grad_norm_(model.parameters(), clip)
              with torch.no_grad():
                  for model in replicas.models:
                      for p in model.parameters():
                          p -= lr * p.grad
          """),
    Wrong("20-3", "losses are not divided by the number of micro-batches", "loss / len(micro_batches) for", "loss for"),
    Wrong("20-3", "losses are divided by the number of ranks as well, which DDP has done", "loss / len(micro_batches) for",
          "loss / len(micro_batches) / len(replicas.models) for"),
    Wrong("20-3", "the gradient is not clipped", "clip_grad_norm_(model.parameters(), clip)", "pass"),
    Wrong("20-4", "the check accepts everything", code="def check_epoch(epoch):\n    pass"),
    Wrong("20-4", "the check knows one right deal, and refuses others", code="""
          def check_epoch(epoch):
              assert epoch(17, 0, 2, 4) == [0, 8] and epoch(17, 1, 2, 4) == [4, 12]
          """),
    Wrong("20-4", "the check tries one length, which comes out even", code="""
          def check_epoch(epoch):
              starts = sorted(epoch(33, 0, 2, 4) + epoch(33, 1, 2, 4))
              assert starts == list(range(0, 32, 4))
          """),
    Wrong("20-4", "the check asks that no token is read twice, and not that each is read", code="""
          def check_epoch(epoch):
              for n in range(1, 60):
                  parts = [epoch(n, rank, 3, 4) for rank in range(3)]
                  starts = sum(map(list, parts), [])
                  assert len({start + i for start in starts for i in range(4)}) == 4 * len(starts)
                  assert len({len(part) for part in parts}) == 1
          """),
    Wrong("20-5", "averaging is taken for half as long as it is: the ring goes round twice, and a float32 gradient has four bytes", "2 * (n - 1) / n * 4", "(n - 1) / n * 4"),
    Wrong("20-5", "every rank sends all it has to all others: a ring sends 2(n - 1)/n of it", "2 * (n - 1) / n * 4", "(n - 1) * 4"),
    Wrong("20-5", "gradients are counted as numbers, not as bytes", "/ n * 4 / link", "/ n / link"),
    Wrong("20-5", "two FLOPs a parameter and token are the forward pass alone; backward takes four more", "6 * tokens", "2 * tokens"),
    Wrong("20-5", "in strong scaling the batch is divided among n", "tokens / n, n)", "tokens, n)"),
]  # fmt: skip

MANUAL = {"20-6": 2}
RUBRIC = {
    "20-6": "½ point each. Changed: the batch, 256 rows in place of 32; a step reads eight times the text in about one step's time, so the run has read eight times the text. Same: 4 rows "
    "on each GPU (my_rows; train.batch_tokens unchanged), same rate and steps, equal to rounding; or 32 rows each with an eighth of max_steps for the same text (which is not "
    "the same run). Time: about an eighth, plus averaging, less good with 4 rows since there is less to compute for the same bytes. Choose again: the rate (and warm-up), since a larger batch has "
    "a less noisy gradient and fewer updates are made for the same text (√8 or 8 are starting points, to be measured), or the number of steps."
}
