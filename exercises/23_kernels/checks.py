"""How exercises 23 are graded."""

import math

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# --- 23-1 ----------------------------------------------------------------------------------------------------


def counts(s):
    return [s.programs, s.nbytes]


def lanes(s):
    return s.idle


# --- 23-2 ----------------------------------------------------------------------------------------------------


def stream(draw, widths, size=1.0, N=6):
    blocks = [size * torch.randn(N, width, generator=draw) for width in widths]
    return blocks, torch.randint(sum(widths), (N,), generator=draw)


def ordinary(draw):
    return [stream(draw, widths) for widths in ((7,), (4, 4, 4), (1, 5, 2, 9))]


def far_targets(draw):
    """Every column of every block is a target."""
    blocks, _ = stream(draw, (3, 1, 4), N=8)
    return [(blocks, torch.arange(8)), (blocks, torch.arange(8).flip(0))]


def large(draw):
    blocks, targets = stream(draw, (8, 8, 3), size=400.0)
    return [(blocks, targets), (blocks[::-1], targets)]


def missing(draw):
    blocks, targets = stream(draw, (5, 5))
    targets[1], targets[4] = -100, -100
    return [(blocks, targets), (blocks, torch.full((6,), -100))]


def forbidden(draw):
    blocks, _ = stream(draw, (5, 3, 2))
    blocks[0][:, 1], blocks[1][:] = -math.inf, -math.inf
    return [(blocks, torch.tensor([0, 2, 3, 4, 8, 9]))]


# --- 23-3 ----------------------------------------------------------------------------------------------------


def with_gradients(s, x, weight, targets, rows):
    """The loss and its gradients, of a multiple of it."""
    import torch

    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = s.chunked_mean(x, weight, targets, rows)
    return [loss.detach(), *torch.autograd.grad(3 * loss, (x, weight))]


def chunked(draw, holes=False):
    N, inputs = 9, []
    for rows in (1, 2, 4, 9, 50):
        x, weight = torch.randn(N, 3, generator=draw), torch.randn(5, 3, generator=draw)
        targets = torch.randint(5, (N,), generator=draw)
        if holes:
            targets[2:7] = -100
        inputs.append((x, weight, targets, rows))
    return inputs


def with_holes(draw):
    return chunked(draw, holes=True)


def largest(s, N, V, rows):
    """The rows of the largest product that is V wide."""
    import torch
    from torch.overrides import TorchFunctionMode

    seen = [0]

    class Watch(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            found = function(*args, **(kwargs or {}))
            if isinstance(found, torch.Tensor) and found.dim() == 2 and found.size(1) == V:
                seen[0] = max(seen[0], found.size(0))
            return found

    with Watch():
        s.chunked_mean(torch.ones(N, 3), torch.ones(V, 3), torch.zeros(N, dtype=torch.long), rows)
    return seen[0]


def many_rows(draw):
    return [(40, 17, 8), (40, 17, 1), (33, 11, 16)]


# --- 23-4: kernels, as text ----------------------------------------------------------------------------------

PLAIN = """
def run(memory, x, y, out, n):
    memory = memory.clone()
    memory[out : out + n] = memory[x : x + n] + memory[y : y + n]
    return memory
"""
BLOCKS = """
def run(memory, x, y, out, n, block=16):
    memory = memory.clone()
    for first in range(0, n, block):
        size = min(block, n - first)
        for lane in range(first, first + size):
            memory[out + lane] = memory[x + lane] + memory[y + lane]
    return memory
"""
DOUBLE = """
import torch

def run(memory, x, y, out, n):
    total = torch.add(memory[y : y + n].double(), memory[x : x + n].double())
    return torch.cat([memory[:out], total.float(), memory[out + n :]])
"""


def changed(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, old
    return text.replace(old, new)


SUM = "memory[out : out + n] = memory[x : x + n] + memory[y : y + n]"
WRONG_KERNELS = {
    "one number too many is stored": changed(PLAIN, "    memory = memory.clone()", "    memory, n = memory.clone(), n + 1"),
    "blocks of 4 are always stored in full": changed(PLAIN, "    memory = memory.clone()", "    memory, n = memory.clone(), -(-n // 4) * 4"),
    "blocks of 32 are always stored in full": changed(PLAIN, "    memory = memory.clone()", "    memory, n = memory.clone(), -(-n // 32) * 32"),
    "a block that is not full is left out": changed(BLOCKS, "range(0, n, block)", "range(0, n - n % block, block)"),
    "the last number is left out": changed(PLAIN, "    memory = memory.clone()", "    memory, n = memory.clone(), n - 1"),
    "the number in front of out is cleared": changed(PLAIN, SUM, SUM + "\n    memory[out - 1] = 0"),
    "the sum is also left in x": changed(PLAIN, SUM, SUM + "\n    memory[x : x + n] = memory[out : out + n]"),
    "the old content of out is added": changed(PLAIN, SUM, SUM.replace("] = ", "] += ")),
    "y is subtracted": changed(PLAIN, "] + memory", "] - memory"),
    "y is taken to be behind x": changed(PLAIN, "memory[y : y + n]", "memory[x + n : x + 2 * n]"),
    "only the first 128 numbers are added": changed(PLAIN, "    memory = memory.clone()", "    memory, n = memory.clone(), min(n, 128)"),
    "the loads are shifted by one": changed(PLAIN, "memory[y : y + n]", "memory[y + 1 : y + 1 + n]"),
    "the number behind out is doubled": changed(PLAIN, SUM, SUM + "\n    memory[out + n] *= 2"),
}  # fmt: skip

CHECKS = [
    Check("23-1", "programs and bytes", 2, counts, hidden=False, tolerance=1e-9),
    Check("23-1", "lanes without a number", 1, lanes, tolerance=1e-9),
    Check("23-2", "blocks of ordinary logits", 1, "stream_loss", ordinary, hidden=False),
    Check("23-2", "targets in every place", 1, "stream_loss", far_targets),
    Check("23-2", "logits of hundreds", 1, "stream_loss", large),
    Check("23-2", "targets of -100", 1, "stream_loss", missing),
    Check("23-2", "a block of forbidden tokens", 1, "stream_loss", forbidden),
    Check("23-3", "the mean and its gradients for any number of rows", 1, with_gradients, chunked, hidden=False),
    Check("23-3", "chunks without a target", 2, with_gradients, with_holes),
    Check("23-3", "no more logits at a time than asked for", 1, largest, many_rows),
    CheckOfCheck("23-4", "accepts kernels that add and refuses those that do something else", 5, "check_run", "run",
                 (PLAIN, BLOCKS, changed(BLOCKS, "block=16", "block=5"), DOUBLE), WRONG_KERNELS, seconds=30),
]  # fmt: skip

LOOP = """
          def chunked_mean(x, weight, targets, rows):
              {begin}
              for start in range(0, len(x), rows):
                  y = targets[start : start + rows]
                  loss = F.cross_entropy(x[start : start + rows] @ weight.T, y)
                  {step}
              return {end}
          """
WRONG = [
    Wrong("23-1", "the gain and the bias are counted once for each row, where a program loads them once", "2 * programs * C", "2 * N * C"),
    Wrong("23-1", "the gain and the bias are counted once in all", "2 * programs * C", "2 * C"),
    Wrong("23-1", "the mean and 1/σ are counted once a program, where each row has its own", "+ 2 * N)", "+ 2 * programs)"),
    Wrong("23-1", "the stores are left out", "4 * N * C + 2", "2 * N * C + 2"),
    Wrong("23-1", "the last tile, which is not full, gets no program", "math.ceil(N / rows)", "N // rows"),
    Wrong("23-1", "masked rows of the last tile are forgotten", "programs * rows * 2 **", "N * 2 **"),
    Wrong("23-1", "a block is taken to be as wide as the row", "2 ** math.ceil(math.log2(C))", "C"),
    Wrong("23-2", "the old sum is not scaled when the maximum grows", "total * (m - larger).exp()", "total"),
    Wrong("23-2", "the factor is inverted: it scales up where it should scale down", "(m - larger).exp() +", "(larger - m).exp() +"),
    Wrong("23-2", "the maximum of the newest block replaces the largest so far", "torch.maximum(m, z.amax(1))", "z.amax(1)"),
    Wrong("23-2", "targets are looked up in each block as if it were the first", "column = targets - first", "column = targets"),
    Wrong("23-2", "the target's logit is replaced by that of a later block's first column", "(column >= 0) & (column < z.size(1))", "column < z.size(1)"),
    Wrong("23-2", "a target of -100 gets the loss of a token", "torch.where(targets >= 0, m + total.log() - right, 0.0)", "m + total.log() - right"),
    Wrong("23-2", "no maximum is subtracted, and the exponentials overflow", code="""
          def stream_loss(blocks, targets):
              z = torch.cat(blocks, 1)
              right = z.gather(1, targets.clamp(min=0)[:, None])[:, 0]
              return torch.where(targets >= 0, z.exp().sum(1).log() - right, 0.0)
          """),
    Wrong("23-3", "the sum is divided by all rows, also by those without a target", "(targets != -100).sum()", "len(targets)"),
    Wrong("23-3", "a chunk's mean is weighed by its rows, where only those with a target count",
          code=LOOP.format(begin="total = 0.0", step="total = total + loss.nan_to_num() * len(y)", end="total / len(x)")),
    Wrong("23-3", "chunks without a target are left out, but a mean of means stays one",
          code=LOOP.format(begin="losses = []", step="losses += [loss] if (y != -100).any() else []", end="torch.stack(losses).mean()")),
    Wrong("23-3", "the last chunk is dropped if it is shorter", "range(0, len(x), rows)", "range(0, len(x) - rows + 1, rows)"),
    Wrong("23-3", "all logits are made at once", code="""
          def chunked_mean(x, weight, targets, rows):
              return F.cross_entropy(x @ weight.T, targets)
          """),
    Wrong("23-3", "the loss is cut from its gradient, and a number is returned with the gradient of the last chunk only", "total = total + F", "total = torch.as_tensor(total).detach() + F"),
    Wrong("23-4", "the check accepts everything", code="def check_run(run):\n    run(torch.randn(1000), 100, 300, 500, 10)"),
    Wrong("23-4", "the check refuses everything", code="def check_run(run):\n    assert False"),
    Wrong("23-4", "only the sum is looked at, and not what is around it", code="""
          def check_run(run):
              for n in (1, 5, 33, 200):
                  memory = torch.randn(2000, generator=torch.Generator().manual_seed(n))
                  after = run(memory.clone(), 100, 500, 900, n)
                  assert torch.allclose(after[900 : 900 + n], memory[100 : 100 + n] + memory[500 : 500 + n])
          """),
    Wrong("23-4", "one size is tried, and it fits every block", code="""
          def check_run(run):
              memory = torch.randn(2000, generator=torch.Generator().manual_seed(0))
              expected = memory.clone()
              expected[900:1028] = memory[100:228] + memory[500:628]
              assert torch.allclose(run(memory.clone(), 100, 500, 900, 128), expected)
          """),
    Wrong("23-4", "the memory is zero around the vectors, so that adding to it goes unnoticed", code="""
          def check_run(run):
              for n in (1, 5, 33, 200):
                  memory = torch.zeros(2000)
                  memory[100 : 100 + n] = memory[500 : 500 + n] = torch.arange(1.0, n + 1)
                  expected = memory.clone()
                  expected[900 : 900 + n] = memory[100 : 100 + n] + memory[500 : 500 + n]
                  assert torch.allclose(run(memory.clone(), 100, 500, 900, n), expected)
          """),
]  # fmt: skip

MANUAL = {"23-5": 2}
RUBRIC = {
    "23-5": "1 point: on a GPU programs run at the same time, two of them can load the same old value, and one addition is lost (a race); the "
    "interpreter runs one program after the other, so each loads what the last one stored; a check records which program stores to which "
    "address and finds addresses with two writers. 1 point: two repairs with their costs, such as atomic additions (slower where many meet, and the "
    "order of the sum varies from run to run), one program for some columns and all rows (fewer programs, a loop), partial sums in "
    "memory of their own with a second kernel or PyTorch's sum (more bytes). No point for 'synchronize the programs' without saying how.",
}
