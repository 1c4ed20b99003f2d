"""How exercises 13 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# --- 13-1 and 13-4 -------------------------------------------------------------------------------------------


def quantised(s):
    return [s.tiles, s.waves, s.wasted]


def alignment(s):
    return [s.aligned, s.nice]


# --- 13-2 ----------------------------------------------------------------------------------------------------


def products(draw):
    rows = torch.randint(1, 5000, (5,), generator=draw).tolist()
    columns = torch.randint(1, 3000, (5,), generator=draw).tolist()
    return [(r, c, tile, sms) for r, c, tile, sms in zip(rows, columns, ((128, 128), (64, 64), (128, 128), (256, 256), (16, 16)),
                                                         (132, 108, 46, 10, 7))]  # fmt: skip


def other_tiles(draw):
    rows = torch.randint(100_000, 10_000_000, (3,), generator=draw).tolist()
    return [
        (rows[0], 50257, (128, 256), 132),
        (rows[1], 768, (256, 64), 108),
        (rows[2], 1, (64, 128), 3),
        (1, 1, (1, 1), 1),
        (1, 9000, (128, 64), 5),
    ]


# --- 13-3 ----------------------------------------------------------------------------------------------------


def padded_logits(draw):
    def one(N, vocab_size, rows):
        logits = torch.randn(N, rows, generator=draw)
        return logits, torch.randint(vocab_size, (N,), generator=draw), vocab_size

    return [one(6, 50, 64), one(1, 7, 8), one(9, 5, 40)]


def with_ignored(draw):
    cases = [*padded_logits(draw), (torch.randn(4, 6, generator=draw), torch.tensor([5, 0, 3, 1]), 6)]
    for _, targets, _ in cases:
        targets[::3] = -100
    return [case for case in cases if (case[1] != -100).any()]


def loss_and_gradient(s, logits, targets, vocab_size):
    """The loss, its gradient, and the logits afterwards."""
    leaf = logits.clone().requires_grad_()
    given = leaf * 1.0
    loss = s.real_loss(given, targets, vocab_size)
    loss.backward()
    return loss.detach(), leaf.grad, given.detach()


def tables(draw):
    """Ordinary ones, one without added rows, and some in which P is tiny or nearly 1."""
    ordinary = [(torch.randn(6, rows, generator=draw), real) for rows, real in ((64, 50), (8, 7), (9, 9))]
    logits = torch.randn(5, 12, generator=draw)
    shifted = [(logits + shift * (torch.arange(12) >= 10), 10) for shift in (-60.0, -20.0, 40.0, 300.0)]
    return ordinary + shifted


def log_of_cost(s, logits, vocab_size):
    """Its logarithm, which shows relative differences of small numbers; finite, since nothing else may come back."""
    import torch

    log = s.padding_cost(logits, vocab_size).double().log()
    return float(torch.nan_to_num(log, nan=3e4, posinf=2e4, neginf=-1e4))


# --- 13-5: implementations, as text --------------------------------------------------------------------------


def table(*lines: str) -> str:
    return (
        "\n    ".join(["import torch\n\ndef pad_table(weight, multiple):", "V, C = weight.shape", *lines])
        + "\n"
    )


RIGHT = (
    table("rows = -(-V // multiple) * multiple", "return torch.cat([weight, weight.new_zeros(rows - V, C)])"),
    table(
        "padded = torch.zeros(V + (multiple - V % multiple) % multiple, C)",
        "padded[:V] = weight",
        "return padded",
    ),
    table("return torch.nn.functional.pad(weight, (0, 0, 0, -V % multiple))"),
)
WRONG_TABLES = {
    "a table that fits gets a whole multiple more": table("return torch.cat([weight, weight.new_zeros(multiple - V % multiple, C)])"),
    "rounded down: rows are cut": table("return weight[: V // multiple * multiple]"),
    "rounded to the nearest multiple": table(
        "rows = round(V / multiple) * multiple", "return torch.cat([weight, weight.new_zeros(max(0, rows - V), C)])[:rows]"),
    "always to a multiple of 128": table("return torch.nn.functional.pad(weight, (0, 0, 0, -V % 128))"),
    "to the next power of two": table("return torch.nn.functional.pad(weight, (0, 0, 0, (1 << (V - 1).bit_length()) - V))"),
    "added rows repeat the last one": table("return torch.cat([weight, weight[-1:].expand(-V % multiple, C)])"),
    "added rows are drawn at random": table("return torch.cat([weight, 0.02 * torch.randn(-V % multiple, C)])"),
    "added rows come first": table("return torch.nn.functional.pad(weight, (0, 0, -V % multiple, 0))"),
    "columns are padded as well": table("return torch.nn.functional.pad(weight, (0, -C % multiple, 0, -V % multiple))"),
    "a table smaller than the multiple is left alone": table(
        "return torch.nn.functional.pad(weight, (0, 0, 0, -V % multiple if V > multiple else 0))"),
    "it comes back in bfloat16": table("return torch.nn.functional.pad(weight, (0, 0, 0, -V % multiple)).bfloat16()"),
    "the numbers have been through bfloat16": table("return torch.nn.functional.pad(weight.bfloat16().float(), (0, 0, 0, -V % multiple))"),
}  # fmt: skip

CHECKS = [
    Check("13-1", "tiles, waves, and what they waste", 2, quantised, hidden=False, tolerance=1e-9),
    Check("13-1", "alignment in bytes", 2, alignment, tolerance=1e-9),
    Check("13-2", "rows for nothing, square tiles", 2, "free_rows", products, hidden=False, tolerance=1e-9, seconds=2),
    Check("13-2", "rows for nothing, any tiles and millions of rows", 2, "free_rows", other_tiles, tolerance=1e-9, seconds=2),
    Check("13-3", "a loss of real ids, whose gradient leaves added rows alone", 2, loss_and_gradient, with_ignored, hidden=False),
    Check("13-3", "what the added rows cost, also where P is tiny or nearly 1", 3, log_of_cost, tables, tolerance=1e-4),
    Check("13-4", "the time of one row", 1, "ms", hidden=False),
    Check("13-4", "rows from which arithmetic decides", 2, "rows"),
    CheckOfCheck("13-5", "accepts right padding and refuses wrong", 4, "check_pad_table", "pad_table", RIGHT, WRONG_TABLES),
]  # fmt: skip

WRONG = [
    Wrong("13-1", "the columns are rounded down: the last, partly filled tiles are left out", "-(-vocab // tile)", "(vocab // tile)"),
    Wrong("13-1", "the area is divided by that of a tile, but tiles are cut in rows and in columns", "-(-tokens // tile) * -(-vocab // tile)",
          "-(-tokens * vocab // tile**2)"),
    Wrong("13-1", "the last wave is left out, since it is not full", "-(-tiles // sms)", "tiles // sms"),
    Wrong("13-1", "multiprocessors that idle in the last wave are not counted as waste", "waves * sms * tile**2", "tiles * tile**2"),
    Wrong("13-1", "waste is put in relation to the logits, not to all that is computed", "wasted = 1 - tokens * vocab / (waves * sms * tile**2)",
          "wasted = waves * sms * tile**2 / (tokens * vocab) - 1"),
    Wrong("13-1", "alignment is counted in numbers, not in bytes", "2 * (vocab & -vocab)", "vocab & -vocab"),
    Wrong("13-1", "a number is thought to have four bytes", "2 * (vocab & -vocab)", "4 * (vocab & -vocab)"),
    Wrong("13-1", "sixteen bytes are taken for sixteen numbers", "-(-vocab // 8) * 8", "-(-vocab // 16) * 16"),
    Wrong("13-1", "the columns are rounded to whole tiles, where sixteen bytes were asked for", "-(-vocab // 8) * 8", "-(-vocab // tile) * tile"),
    Wrong("13-2", "only the last tile is filled, not the last wave", "waves * sms // across * tile[0]", "down * tile[0]"),
    Wrong("13-2", "tiles are counted by area", "down, across = -(-rows // tile[0]), -(-columns // tile[1])",
          "down, across = rows / tile[0], columns / tile[1]"),
    Wrong("13-2", "columns are rounded down to whole tiles", "-(-columns // tile[1])", "max(1, columns // tile[1])"),
    Wrong("13-2", "the waves are rounded down", "-(-down * across // sms)", "max(1, down * across // sms)"),
    Wrong("13-2", "height and width of a tile are exchanged", "-(-rows // tile[0]), -(-columns // tile[1])", "-(-rows // tile[1]), -(-columns // tile[0])"),
    Wrong("13-2", "a wave is thought to end with a row of tiles", "waves * sms // across * tile[0]", "waves * (sms // across) * tile[0]"),
    Wrong("13-3", "a logit of zero is not absent: its exponential is 1", "F.cross_entropy(logits[:, :vocab_size], targets)",
          "F.cross_entropy(logits * (torch.arange(logits.size(1)) < vocab_size), targets)"),
    Wrong("13-3", "the caller's logits are overwritten", "F.cross_entropy(logits[:, :vocab_size], targets)",
          "F.cross_entropy(logits.index_fill_(1, torch.arange(vocab_size, logits.size(1)), float('-inf')), targets)"),
    Wrong("13-3", "added rows take part in the loss", "F.cross_entropy(logits[:, :vocab_size], targets)", "F.cross_entropy(logits, targets)"),
    Wrong("13-3", "one added row is taken for a token", "F.cross_entropy(logits[:, :vocab_size], targets)",
          "F.cross_entropy(logits[:, : vocab_size + 1], targets)"),
    Wrong("13-3", "targets that do not count are counted in the mean", "F.cross_entropy(logits[:, :vocab_size], targets)",
          "F.cross_entropy(logits[:, :vocab_size], targets, reduction='sum') / len(targets)"),
    Wrong("13-3", "1 - P is formed, and rounds to 0 or to 1", "return F.softplus(added - real).mean()",
          "return -(1 - (added - torch.logaddexp(added, real)).exp()).log().mean()"),
    Wrong("13-3", "two logarithms are subtracted that agree in all their digits", "F.softplus(added - real).mean()",
          "(torch.logaddexp(added, real) - real).mean()"),
    Wrong("13-3", "the mean is taken of P, not of the logarithm", "F.softplus(added - real).mean()", "F.softplus((added - real).mean())"),
    Wrong("13-3", "the probability of the added rows is taken for that of the real ones", "F.softplus(added - real)", "F.softplus(real - added)"),
    Wrong("13-4", "activations and logits are thought to travel for nothing", "width * (C + V) / mine[\"bandwidth\"]", "0.0"),
    Wrong("13-4", "a multiply and an add are counted as one operation", "2 * C * V", "C * V"),
    Wrong("13-4", "numbers are taken for bytes", 'mine["n_embd"], mine["vocab"], mine["width"]', 'mine["n_embd"], mine["vocab"], 1'),
    Wrong("13-4", "memory and arithmetic are added, where the slower one decides", "max(read + each, product)", "(read + each + product)"),
    Wrong("13-4", "rounded down: there memory still takes longer", "int(-(-read // (product - each)))", "int(read // (product - each))"),
    Wrong("13-5", "the check accepts everything", code="def check_pad_table(pad_table):\n    pad_table(torch.ones(3, 2), 4)"),
    Wrong("13-5", "the check refuses everything", code="def check_pad_table(pad_table):\n    assert False"),
    Wrong("13-5", "GPT-2's own numbers are tried, and no others", code="""
          def check_pad_table(pad_table):
              assert pad_table(torch.randn(50257, 2), 128).shape == (50304, 2)
          """),
    Wrong("13-5", "shapes are compared, and no number", code="""
          def check_pad_table(pad_table):
              for V, multiple in ((1, 8), (8, 8), (9, 8), (130, 128), (50, 64)):
                  assert pad_table(torch.randn(V, 3), multiple).shape == (-(-V // multiple) * multiple, 3)
          """),
]  # fmt: skip
MANUAL = {"13-6": 2}
RUBRIC = {
    "13-6": "1 point: tiles do not fit: 50,257 fills all but a thousandth of its tiles, 50,304 needs as many; they cannot explain 20%. Alignment "
    "does: rows of an odd number of 2-byte numbers start at no multiple of 16 bytes, so vector loads are impossible; the compiler pads such products "
    "itself (1% left), and the laptop's library does not care. 1 point: a deciding measurement: the head's product at 50,256 or 50,264 (multiples "
    "of 8, no multiple of a tile) beside 50,257, 50,258 and 50,304. Fast at 50,264: alignment; slow until 50,304: tiles.",
}
