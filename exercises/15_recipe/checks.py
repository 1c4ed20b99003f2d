"""How exercises 15 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# --- 15-1 ----------------------------------------------------------------------------------------------------


def cut_batches(draw):
    """x and y, (micro-batches, rows, T), each of unequal numbers of targets."""
    cases = []
    for n, rows, T in ((1, 2, 8), (3, 2, 8), (4, 1, 5)):
        x, y = torch.randint(16, (2, n, rows, T), generator=draw)
        for i in range(1, n):
            y[i, :, 1 + i % 3 :] = -100
        cases.append((x, y))
    return cases


def with_an_empty_one(draw):
    cases = cut_batches(draw)[1:]
    for _, y in cases:
        y[1] = -100
    return cases


def gradient_and_loss(s, x, y):
    """Of a small model, after a step before, whose gradient is still there; -1 stands for a loss that is not finite."""
    import torch
    from torch import nn

    class Pairs(nn.Module):
        """Each token guesses the next one. Returns logits and loss, as GPT does."""

        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.linspace(-2, 2, 16 * 16).view(16, 16).sin())

        def forward(self, x, y):
            logits = self.table[x]
            return logits, nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    model = Pairs()
    model(x[0], y[0])[1].backward()
    loss = s.add_up(model, list(zip(x, y))).detach()
    return model.table.grad.nan_to_num(nan=0.0), torch.nan_to_num(loss, nan=-1.0)


# --- 15-2 ----------------------------------------------------------------------------------------------------


def gradients(draw):
    """Three tensors, together longer than the limit and shorter."""
    three = [
        scale * torch.randn(shape, generator=draw) for scale, shape in ((1, (3, 4)), (5, 7), (0.1, (2, 2, 2)))
    ]
    return [(*three, c) for c in (0.5, 3.0, 1000.0)]


def quiet_gradients(draw):
    some = torch.zeros(3), torch.randn(2, 2, generator=draw), torch.zeros(2)
    return [(torch.zeros(3), torch.zeros(2, 2), torch.zeros(1), 1.0), (*some, 0.01)]


def of_three(s, a, b, c, limit):
    short, norm = s.clipped([a, b, c], limit)
    return [*short, norm]


# --- 15-3 ----------------------------------------------------------------------------------------------------


def models(draw):
    return [(which,) for which in ("tied", "no bias", "frozen")]


def another_model(draw):
    return [("other",)]


def names_by_decay(s, which):
    """Names of what is decayed and of what is not, as often as it occurs."""
    from torch import nn

    from nanogpt.model import GPT, GPTConfig

    if which == "other":
        model = nn.Sequential()
        model.token_table, model.wte, model.conv = nn.Embedding(9, 4), nn.Embedding(3, 4), nn.Conv1d(4, 6, 3)
        model.norm, model.out = nn.LayerNorm(6), nn.Linear(6, 9)
        model.register_parameter("gain", nn.Parameter(nn.Linear(1, 1).weight.new_ones(())))
        model.register_parameter("mixing", nn.Parameter(nn.Linear(3, 5).weight.detach()))
        model.conv.bias.requires_grad_(False)
    else:
        bias = which != "no bias"
        model = GPT(GPTConfig(block_size=8, vocab_size=16, n_layer=2, n_head=2, n_embd=8, bias=bias))
    if which == "frozen":
        for p in (*model.transformer.h[0].parameters(), model.transformer.wte.weight):
            p.requires_grad_(False)
    names = {id(p): name for name, p in model.named_parameters()}
    told = {"decayed": [], "not decayed": []}
    for group in s.groups(model, 0.1):
        told["decayed" if group["weight_decay"] else "not decayed"] += [names[id(p)] for p in group["params"]]
    return {kind: sorted(found) for kind, found in told.items()}


# --- 15-4 ----------------------------------------------------------------------------------------------------


def first_steps(draw):
    return [
        (torch.randn(6, generator=draw), torch.randn(n, 6, generator=draw), 0.1, 0.9, 0.95, 1e-8, 0.0)
        for n in (1, 4)
    ]


def long_runs(draw):
    return [
        (
            torch.randn(6, generator=draw),
            size * torch.randn(30, 6, generator=draw),
            lr,
            beta1,
            0.99,
            eps,
            decay,
        )
        for size, lr, beta1, eps, decay in (
            (1.0, 0.05, 0.9, 0.1, 0.0),
            (10.0, 0.1, 0.5, 1e-8, 0.4),
            (0.01, 0.02, 0.0, 1e-3, 1.0),
        )
    ]


def run(s, p, grads, lr, beta1, beta2, eps, decay):
    """All steps; the weight and both means at the end."""
    import torch

    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for t, g in enumerate(grads, 1):
        p, m, v = s.adamw(p, g, m, v, t, lr, beta1, beta2, eps, decay)
    return [torch.nan_to_num(tensor, nan=1e9, posinf=1e9, neginf=-1e9) for tensor in (p, m, v)]


# --- 15-5: implementations, as text --------------------------------------------------------------------------

HEAD = "import math\n\n"
BRANCHES = (
    HEAD
    + """
def schedule(step, steps, warmup, minimum):
    if step < warmup:
        return (step + 1) / warmup
    if step >= steps:
        return minimum
    done = (step - warmup) / (steps - warmup)
    return minimum + (1 - minimum) * 0.5 * (1 + math.cos(math.pi * done))
"""
)
CHAPTER = """
from nanogpt.optim import cosine

def schedule(step, steps, warmup, minimum):
    return cosine(step, steps, warmup=warmup, minimum=minimum)
"""
SQUARED = (
    HEAD
    + """
def schedule(step, steps, warmup, minimum):
    left = min(1.0, max(0.0, (steps - step) / (steps - warmup)))
    falling = minimum + (1 - minimum) * math.sin(math.pi / 2 * left) ** 2
    return min(falling, (step + 1) / warmup) if warmup else falling
"""
)


def changed(old: str, new: str) -> str:
    assert BRANCHES.count(old) == 1, old
    return BRANCHES.replace(old, new)


WRONG_SCHEDULES = {
    "the first step has a rate of 0": changed("(step + 1) / warmup", "step / warmup"),
    "the warm-up stops below 1": changed("(step + 1) / warmup", "(step + 1) / (warmup + 1)"),
    "no warm-up": changed("step < warmup", "step < 0"),
    "the cosine runs from step 0, and the rate leaps when the warm-up ends": changed("(step - warmup) / (steps - warmup)", "step / steps"),
    "the minimum comes one step early": changed("/ (steps - warmup)\n", "/ max(1, steps - 1 - warmup)\n"),
    "after its end the cosine rises again": changed("step >= steps", "False"),
    "after its end the rate is 0": changed("return minimum\n", "return 0.0\n"),
    "after its end the rate is 1": changed("return minimum\n", "return 1.0\n"),
    "it falls to 0 and not to the minimum": changed("minimum + (1 - minimum) * 0.5", "0.5"),
    "the minimum is added on top": changed("(1 - minimum) * 0.5", "0.5"),
    "it falls in a straight line": changed("0.5 * (1 + math.cos(math.pi * done))", "(1 - done)"),
    "a quarter of a cosine": changed("0.5 * (1 + math.cos(math.pi * done))", "math.cos(math.pi / 2 * done)"),
    "warm-up begins at the minimum": changed("return (step + 1) / warmup", "return minimum + (1 - minimum) * (step + 1) / warmup"),
    "a warm-up of 0 divides by 0": changed("if step < warmup:", "if (step + 1) / warmup < 1:"),
    "the end is one step late": changed("step >= steps", "step > steps + 1"),
}  # fmt: skip

CHECKS = [
    Check("15-1", "gradient and loss of the whole batch, however it is cut", 4, gradient_and_loss, cut_batches, hidden=False),
    Check("15-1", "a micro-batch in which nothing counts", 1, gradient_and_loss, with_an_empty_one),
    Check("15-2", "one factor for all, and the length before", 3, of_three, gradients, hidden=False),
    Check("15-2", "gradients of zeros, all or some", 1, of_three, quiet_gradients),
    Check("15-3", "GPT: with and without biases, and partly frozen", 3, names_by_decay, models, hidden=False),
    Check("15-3", "a model of other layers with other names", 1, names_by_decay, another_model),
    Check("15-3", "how many are decayed in a GPT of your own numbers", 1, "pulled"),
    Check("15-4", "the first steps", 2, run, first_steps, hidden=False),
    Check("15-4", "thirty steps with decay, other betas and a large epsilon", 3, run, long_runs, tolerance=1e-4),
    CheckOfCheck("15-5", "accepts the schedule and refuses its relatives", 4, "check_schedule", "schedule",
                 (BRANCHES, CHAPTER, SQUARED), WRONG_SCHEDULES),
]  # fmt: skip

WRONG = [
    Wrong("15-1", "a mean of means: a target in a short micro-batch counts more than one in a long one", "* count / sum(counts)", "/ len(micro_batches)"),
    Wrong("15-1", "means are added up and not divided", "* count / sum(counts)", "* 1.0"),
    Wrong("15-1", "micro-batches are weighted by all their positions, also those that do not count", "int((y != -100).sum())", "y.numel() * (0.5 + bool((y != -100).any()) / 2)"),
    Wrong("15-1", "the gradient of the step before stays in", "model.zero_grad()", "pass"),
    Wrong("15-1", "the gradient is deleted before each micro-batch: the last one alone remains", "part.backward()", "model.zero_grad()\n            part.backward()"),
    Wrong("15-1", "the mean over no target is nan, and a weight of 0 does not take it away", "if count:", "if True:"),
    Wrong("15-1", "the loss that is reported is that of the last micro-batch", "loss += part.detach()", "loss = part.detach()"),
    Wrong("15-1", "sums are added up, and nobody divides by their number", "* count / sum(counts)", "* count"),
    Wrong("15-2", "each tensor is clipped by itself, which turns the gradient", "[g * factor for g in grads]", "[g * (c / g.norm()).clamp(max=1.0) for g in grads]"),
    Wrong("15-2", "each entry is clipped by itself", "[g * factor for g in grads]", "[g.clamp(-c, c) for g in grads]"),
    Wrong("15-2", "short gradients are lengthened", ".clamp(max=1.0)", ""),
    Wrong("15-2", "the length afterwards is told, which never exceeds the limit", "for g in grads], norm", "for g in grads], norm * factor"),
    Wrong("15-2", "lengths are added, but they add up as squares", "torch.stack([g.norm() for g in grads]).norm()", "torch.stack([g.norm() for g in grads]).sum()"),
    Wrong("15-2", "the longest tensor is taken for the whole", "torch.stack([g.norm() for g in grads]).norm()", "torch.stack([g.norm() for g in grads]).max()"),
    Wrong("15-2", "the root of the sum of squares is forgotten", "torch.stack([g.norm() for g in grads]).norm()", "torch.stack([g.square().sum() for g in grads]).sum()"),
    Wrong("15-3", "embeddings are decayed like other matrices", "and id(p) not in embeddings", ""),
    Wrong("15-3", "gains of LayerNorm are decayed, and biases", "p.dim() >= 2 and ", ""),
    Wrong("15-3", "frozen parameters are in a group, and decay moves them", "if p.requires_grad]", "]"),
    Wrong("15-3", "the head is decayed because it is a linear layer, though its matrix is the embedding", "p.dim() >= 2 and id(p) not in embeddings",
          "any(p is layer.weight for layer in model.modules() if isinstance(layer, (nn.Linear, nn.Conv1d)))"),
    Wrong("15-3", "embeddings are known by GPT-2's names only", "layer for layer in model.modules() if isinstance(layer, nn.Embedding)",
          "layer for name, layer in model.named_modules() if name.endswith(('wte', 'wpe'))"),
    Wrong("15-3", "a tensor with three dimensions is taken for a bias", "p.dim() >= 2", "p.dim() == 2"),
    Wrong("15-3", "the groups are exchanged", "[p.dim() >= 2 and id(p) not in embeddings for", "[p.dim() < 2 or id(p) in embeddings for"),
    Wrong("15-3", "names decide: a gain's name ends in weight too, and a tied weight has two names", code="""
          def groups(model, weight_decay):
              named = list(model.named_parameters(remove_duplicate=False))
              decayed = [p for name, p in named if name.endswith("weight") and "wte" not in name and "wpe" not in name]
              rest = [p for name, p in named if name.endswith("bias") or "wte" in name or "wpe" in name]
              return [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
          """),
    Wrong("15-3", "the head's matrix is counted, which is the embedding", '12 * mine["n_embd"] ** 2', '12 * mine["n_embd"] ** 2 + mine["vocab_size"] * mine["n_embd"]'),
    Wrong("15-3", "biases and gains are counted: vectors are not decayed", '12 * mine["n_embd"] ** 2', '(12 * mine["n_embd"] ** 2 + 13 * mine["n_embd"])'),
    Wrong("15-3", "the matrices of attention alone, without those of the MLP", '12 * mine["n_embd"] ** 2', '4 * mine["n_embd"] ** 2'),
    Wrong("15-3", "the MLP is taken for as narrow as the stream: it is four times as wide", '12 * mine["n_embd"] ** 2', '6 * mine["n_embd"] ** 2'),
    Wrong("15-4", "decay is added to the gradient: that is Adam with L2, where √v divides the pull as well", "m = beta1 * m", "g = g + decay * p\n    decay = 0.0\n    m = beta1 * m"),
    Wrong("15-4", "the means are not corrected for their start at zero", "m / (1 - beta1**t), v / (1 - beta2**t)", "m, v"),
    Wrong("15-4", "the mean of squares is not corrected", "v / (1 - beta2**t)", "v"),
    Wrong("15-4", "the correction is one step late", "m / (1 - beta1**t), v / (1 - beta2**t)", "m / (1 - beta1 ** (t + 1)), v / (1 - beta2 ** (t + 1))"),
    Wrong("15-4", "epsilon is under the root", "(v_hat.sqrt() + eps)", "(v_hat + eps).sqrt()"),
    Wrong("15-4", "the root is forgotten", "(v_hat.sqrt() + eps)", "(v_hat + eps)"),
    Wrong("15-4", "decay is not multiplied by the rate", "1 - lr * decay", "1 - decay"),
    Wrong("15-4", "decay comes after the update, and shrinks that too", "p = p * (1 - lr * decay)\n    return p - lr * m_hat / (v_hat.sqrt() + eps), m, v",
          "return (p - lr * m_hat / (v_hat.sqrt() + eps)) * (1 - lr * decay), m, v"),
    Wrong("15-4", "the corrected means are kept, and corrected again in the next step", "+ eps), m, v", "+ eps), m_hat, v_hat"),
    Wrong("15-4", "the two betas are exchanged", "m = beta1 * m", "beta1, beta2 = beta2, beta1\n    m = beta1 * m"),
    Wrong("15-5", "the check accepts everything", code="def check_schedule(schedule):\n    schedule(0, 10, 2, 0.1)"),
    Wrong("15-5", "the check refuses everything", code="def check_schedule(schedule):\n    assert False"),
    Wrong("15-5", "the middle of one run is looked at, and no end", code="""
          def check_schedule(schedule):
              assert abs(schedule(55, 100, 10, 0.1) - 0.55) < 1e-6
          """),
    Wrong("15-5", "the check asks whether it rises and falls, and for no number", code="""
          def check_schedule(schedule):
              up, down = [schedule(i, 20, 5, 0.1) for i in range(5)], [schedule(i, 20, 5, 0.1) for i in range(5, 20)]
              assert up == sorted(up) and down == sorted(down, reverse=True)
          """),
]  # fmt: skip
# Right, and by what the task forbids: `#| forbids` in exercise.py.
FORBIDDEN = [
    Wrong("15-1", "the chapter's own accumulate_gradients is called", code="""
        def add_up(model, micro_batches):
            from nanogpt.training import accumulate_gradients
            model.zero_grad()
            return accumulate_gradients(model, micro_batches)
        """),
    Wrong("15-1", "the chapter's own train_step is called", code="""
        def add_up(model, micro_batches):
            from nanogpt.training import train_step
            return train_step(model, torch.optim.SGD(model.parameters(), lr=0.0), micro_batches)
        """),
    Wrong("15-3", "the GPT is built to count it", 'mine["n_layer"] * 12 * mine["n_embd"] ** 2',
          'sum(p.numel() for p in groups(GPT(GPTConfig(n_head=1, **mine)), 0.1)[0]["params"])'),
    Wrong("15-4", "PyTorch's own AdamW makes the step", code="""
        def adamw(p, g, m, v, t, lr, beta1, beta2, eps, decay):
            weight = nn.Parameter(p.clone())
            weight.grad = g.clone()
            optimizer = torch.optim.AdamW([weight], lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=decay)
            state = {"step": torch.tensor(t - 1.0), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
            optimizer.state[weight] = state
            optimizer.step()
            return weight.detach(), state["exp_avg"], state["exp_avg_sq"]
        """),
]  # fmt: skip

MANUAL = {"15-6": 2}
RUBRIC = {
    "15-6": "1 point: the two runs differ in two things, clipping and the seed, and two runs of one recipe with different seeds can differ by as much. Needed: both recipes from the "
    "same seeds (weights and rows), at least four seeds, the difference for each seed, and an interval for their mean that leaves out zero; best with a rate that was tuned for each side. "
    "1 point: clipping is an insurance against a rare bad batch (or: against spikes); runs without one cannot show its worth, one with a damaged batch could. A point is halved where "
    "'more seeds' is said without the pairing.",
}
