"""How exercises 07 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# ---- 07-1


def batches_of_ids(draw):
    return [(torch.randint(32, (B, 13), generator=draw), seed) for B, seed in ((2, 1), (3, 2))]


def losses_of_five_steps(s, ids, seed):
    model = s.tiny(seed)
    return s.fit(model, s.Descent(model.parameters(), 0.5), ids, 5)


def weights_after_training(s, ids, seed):
    import torch

    model = s.tiny(seed).eval()
    s.fit(model, s.Descent(model.parameters(), 0.5), ids, 4)
    return [model.training, torch.cat([p.detach().flatten() for p in model.parameters()])]


# ---- 07-2


def rows(draw):
    made = []
    for seed, sizes in ((1, [8]), (2, [1, 5, 2]), (3, [4, 4])):
        x, y = torch.randint(32, (2, 8, 12), generator=draw)
        y[6:, 3:] = -100
        y[0, :5] = -100
        made.append((x, y, seed, sizes))
    return made


def rows_without_targets(draw):
    x, y = torch.randint(32, (2, 8, 12), generator=draw)
    y[2:4] = -100
    return [(x, y, 4, [2, 2, 4])]


def mean_loss(s, x, y, seed, sizes):
    model = s.tiny(seed, dropout=0.3).train()
    model.transformer.wte.weight.data *= 30
    nats = s.evaluate(model, list(zip(x.split(sizes), y.split(sizes))))
    return nats if nats == nats else -1.0  # results have to be finite; NaN comes as -1


def undisturbed(s, x, y, seed, sizes):
    import torch

    model, graphs = s.tiny(seed, dropout=0.3).train(), []
    model.transformer.h[0].attn.eval()
    model.register_forward_hook(lambda *_: graphs.append(torch.is_grad_enabled()))
    s.evaluate(model, list(zip(x.split(sizes), y.split(sizes))))
    first = [module.training for module in model.modules()]
    model.eval()
    s.evaluate(model, [(x, y)])
    return first, [module.training for module in model.modules()], any(graphs)


# ---- 07-3

HEAD = "import math\nimport torch\nimport torch.nn.functional as F\ndef loss(logits, targets):\n"

RIGHT = (
    HEAD + "    return F.cross_entropy(logits, targets, ignore_index=-100)",
    HEAD
    + "    there = targets != -100\n"
    + "    logits, targets = logits[there], targets[there]\n"
    + "    own = logits.gather(1, targets[:, None])[:, 0]\n"
    + "    return (logits.logsumexp(1) - own).mean()",
    HEAD
    + "    nats, n = torch.zeros(()), 0\n"
    + "    for row, target in zip(logits, targets.tolist()):\n"
    + "        if target != -100:\n"
    + "            nats, n = nats - row.log_softmax(0)[target], n + 1\n"
    + "    return nats / n",
)

LOSSES = {
    "is in bits": HEAD + "    return F.cross_entropy(logits, targets) / math.log(2)",
    "is a sum": HEAD + "    return F.cross_entropy(logits, targets, reduction='sum')",
    "divides by all targets, also those that do not count": HEAD
    + "    return F.cross_entropy(logits, targets, reduction='sum') / len(targets)",
    "takes the softmax twice": HEAD + "    return F.cross_entropy(logits.softmax(1), targets)",
    "overflows": HEAD
    + "    there = targets != -100\n"
    + "    p = logits[there].exp()\n"
    + "    p = p / p.sum(1, keepdim=True)\n"
    + "    return -p.gather(1, targets[there][:, None]).log().mean()",
    "takes -100 for token 0": HEAD + "    return F.cross_entropy(logits, targets.clamp(min=0))",
    "takes -100 for the last token": HEAD
    + "    return F.cross_entropy(logits, torch.where(targets < 0, logits.size(1) - 1, targets))",
    "shifts the targets once more": HEAD + "    return F.cross_entropy(logits, targets.roll(-1))",
    "is one minus the probability": HEAD
    + "    there = targets != -100\n"
    + "    return 1 - logits[there].softmax(1).gather(1, targets[there][:, None]).mean()",
    "smooths its labels": HEAD + "    return F.cross_entropy(logits, targets, label_smoothing=0.1)",
}

# ---- 07-4


def ln_v(s):
    return s.nats["ln V"]


def unigram(s):
    return s.nats["unigram"]


def bigram(s):
    return s.nats["bigram"]


def position(s):
    return s.nats["position"]


def floor(s):
    return s.nats["floor"]


CHECKS = [
    Check("07-1", "the loss of each step before its update, as floats", 2, losses_of_five_steps, batches_of_ids, hidden=False, tolerance=1e-4),
    Check("07-1", "the weights that four right steps give, in training mode", 3, weights_after_training, batches_of_ids, tolerance=1e-4),
    Check("07-2", "the mean over all targets that count, however they are cut", 2, mean_loss, rows, hidden=False, tolerance=1e-4),
    Check("07-2", "a batch without targets counts for nothing", 1, mean_loss, rows_without_targets, tolerance=1e-4),
    Check("07-2", "each module is in the mode that it had, and no graph was made", 2, undisturbed, rows),
    CheckOfCheck("07-3", "refuses wrong losses, and no right one", 5, "check_loss", "loss", RIGHT, LOSSES, hidden=False),
    Check("07-4", "ln V", 0.5, ln_v, hidden=False, tolerance=1e-3),
    Check("07-4", "the unigram's loss", 1, unigram, tolerance=1e-3),
    Check("07-4", "the bigram's loss", 1.5, bigram, tolerance=1e-3),
    Check("07-4", "the loss of one token and a place", 1, position, tolerance=1e-3),
    Check("07-4", "the loss of one who knows the rules", 1, floor, tolerance=1e-3),
]  # fmt: skip

NO_UPDATE = "no weight moves: the gradients are erased before the update, or there is no optimizer.step()"

WRONG = [
    Wrong("07-1", "the targets are not shifted: the model is asked for the token that it sees", "ids[:, :-1], ids[:, 1:]", "ids[:, :-1], ids[:, :-1]"),
    Wrong("07-1", "shifted the wrong way: the model is asked for the token before", "ids[:, :-1], ids[:, 1:]", "ids[:, 1:], ids[:, :-1]"),
    Wrong("07-1", "shifted in a circle: the last target is the first token", "ids[:, :-1], ids[:, 1:]", "ids[:, :12], ids.roll(-2, 1)[:, :12]"),
    Wrong("07-1", NO_UPDATE,
          "        loss.backward()\n", "        loss.backward()\n        optimizer.zero_grad()\n"),
    Wrong("07-1", "the gradients are never erased: each step repeats all earlier ones", "        optimizer.zero_grad()\n", ""),
    Wrong("07-1", NO_UPDATE, "        optimizer.step()\n", ""),
    Wrong("07-1", "the losses are read after the update", "losses.append(loss.item())", "losses.append(model(x, y)[1].item())"),
    Wrong("07-1", "the model stays in eval mode, in which it came: it trains without dropout", "    model.train()\n", ""),
    Wrong("07-2", "a mean of means: a batch with few targets weighs like a full one",
          "n * model(x, y)[1].item()\n            count += n", "model(x, y)[1].item()\n            count += n > 0"),
    Wrong("07-2", "weighted by rows: targets of -100 count", "n = int((y != -100).sum())", "n = len(y) * bool((y != -100).any())"),
    Wrong("07-2", "a batch without targets makes the whole NaN: 0 times NaN is NaN", "            if n:\n                total", "            total"),
    Wrong("07-2", "dropout is on while it evaluates", "with evaluating(model), torch.no_grad():",
          "torch.manual_seed(0)\n    with torch.no_grad():"),
    Wrong("07-2", "the model stays in eval mode: the run goes on without dropout",
          "with evaluating(model), torch.no_grad():", "model.eval()\n    with torch.no_grad():"),
    Wrong("07-2", "model.train() wakes every module, also those that were in eval mode",
          "return total / count", "model.train()\n    return total / count"),
    Wrong("07-2", "a graph is made in every batch, and memory with it", "with evaluating(model), torch.no_grad():", "with evaluating(model):"),
    Wrong("07-3", "accepts everything", code="def check_loss(loss): pass"),
    Wrong("07-3", "refuses everything", code="def check_loss(loss): assert False"),
    Wrong("07-3", "tries equal logits only", code="""
        def check_loss(loss):
            for V in (2, 10):
                assert abs(loss(torch.zeros(4, V), torch.tensor([0, 1, 1, 0])).item() - math.log(V)) < 1e-4
        """),
    Wrong("07-3", "tries no target of -100", code="""
        def check_loss(loss):
            logits, targets = torch.randn(6, 9) + 500, torch.randint(9, (6,))
            assert torch.allclose(loss(logits, targets), F.cross_entropy(logits, targets), atol=1e-3)
        """),
    Wrong("07-3", "compares with one number that its author has seen", code="""
        def check_loss(loss):
            assert abs(loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item() - 0.3133) < 1e-3
        """),
    Wrong("07-4", "<|endoftext|> is a token of the vocabulary too", "ln(1 + k + m)", "ln(k + m)"),
    Wrong("07-4", "the logarithm is to base 2: nats are asked for", "ln = math.log", "ln = math.log2"),
    Wrong("07-4", "two of four tokens are names: one name has the share 1 / (2k)", "2 * ln(2 * k)", "2 * ln(4 * k)"),
    Wrong("07-4", "a unigram does not know the place: its shares are of all tokens", "(ln(4) + ln(4 * m) + 2 * ln(2 * k)) / 4",
          "(ln(m) + 2 * ln(k)) / 4"),
    Wrong("07-4", "after a name a bigram cannot tell a verb from <|endoftext|>: both cost ln 2 more",
          "(ln(2) + ln(2 * m) + 2 * ln(k)) / 4", "(ln(m) + 2 * ln(k)) / 4"),
    Wrong("07-4", "a bigram sees the verb when it guesses the second name, not the first name",
          "(ln(2) + ln(2 * m) + 2 * ln(k)) / 4", "(ln(2) + ln(2 * m) + ln(k) + second) / 4"),
    Wrong("07-4", "<|endoftext|> costs nothing and is a token still: divide by four", "(ln(m) + 2 * ln(k)) / 4", "(ln(m) + 2 * ln(k)) / 3"),
    Wrong("07-4", "the k - 1 other names share 1 - p among them", "ln((1 - p) / (k - 1))", "ln(1 - p)"),
    Wrong("07-4", "the second name is not always the first: 1 - p is a surprise that is paid", "second) / 4", "0) / 4"),
]  # fmt: skip

MANUAL = {"07-5": 2}
RUBRIC = {
    "07-5": "6.93 is ln 1024. The first: no weight moves (no optimizer.step, gradients erased before it, or an optimizer that "
    "holds other parameters); confirmed by comparing a weight before and after. The second: the answer is in the input (targets "
    "not shifted, a mask that looks ahead); confirmed by changing a later token and looking at earlier logits, or by the "
    "targets themselves. The third: an untrained model that is sure of wrong answers (initialisation too large, logits scaled "
    "up); confirmed by the deviation of the logits. "
    "1 point for two right causes, 2 for three of which at least two are confirmed by a measurement.",
}
