"""How exercises 11 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong, difference

# --- 11-1 ----------------------------------------------------------------------------------------------------


def short_and_long(draw):
    """Vectors on both sides of the limit, and of more than one dimension."""
    vectors = [
        scale * torch.randn(shape, generator=draw) for scale, shape in ((0.01, 8), (5, 8), (3, (4, 6)))
    ]
    return [(vector, limit) for vector in vectors for limit in (0.5, 2.0)]


def graphs(s, h, limit):
    """How many graphs Dynamo makes of it, and why; and the one program that it is, traced without any numbers."""
    import logging
    import sys

    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    sys.modules["exercise"] = (
        s  # where Dynamo looks up the globals of a function that it meets inside another one
    )

    torch._logging.set_logs(dynamo=logging.ERROR)
    torch._dynamo.reset()
    report = torch._dynamo.explain(lambda h: s.shortened(h, limit))(h)
    reasons = [reason.reason.splitlines()[0] for reason in report.break_reasons]
    if report.graph_count != 1 or reasons:
        return report.graph_count, reasons, []
    traced = make_fx(lambda h: s.shortened(h, limit), tracing_mode="fake")(h)

    def plain(x):
        if isinstance(x, torch.fx.Node):
            return {"node": x.name}
        if isinstance(x, list | tuple):
            return [plain(part) for part in x]
        return x if x is None or isinstance(x, bool | int | float) else str(x)

    program = []
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            program.append([node.name, "constant", [getattr(traced, node.target).detach()], {}])
        else:
            kwargs = {name: plain(value) for name, value in node.kwargs.items()}
            program.append([node.name, str(node.target), plain(node.args), kwargs])
    return 1, [], program


def one_graph(got, expected, *args):
    count, reasons, program = got
    if count != 1 or reasons:
        return f"{count} graphs: {'; '.join(map(str, reasons))}"
    h, limit = args
    for scale in (
        0.01,
        0.3,
        1.0,
        30.0,
    ):  # numbers that the student's process never had: a program alone can meet them
        h = scale * torch.randn(h.shape)
        length = h.norm()
        due = [h * (limit / length.clamp(min=limit)), length]
        if said := difference(list(interpreted(program, h)), due, 1e-4):
            return f"the graph, run on other numbers, gives something else: {said}"
    return ""


SHAPING = {
    "sum", "norm", "linalg_vector_norm", "mean", "amax", "amin", "max", "min", "view",
    "reshape", "_unsafe_view", "unsqueeze", "squeeze", "expand", "permute", "t", "alias", "clone",
    "ones_like", "zeros_like", "full_like", "scalar_tensor", "_to_copy", "lift_fresh_copy", "stack", "cat", "detach",
    "dot", "select", "full", "ones", "zeros",
}  # fmt: skip


def interpreted(program, h):
    """What a student's graph gives for h. It is data: operations of PyTorch that compute on few numbers, and no others."""
    values = {}

    def value(x):
        if isinstance(x, dict):
            return values[x["node"]]
        return [value(part) for part in x] if isinstance(x, list | tuple) else x

    for name, target, args, kwargs in program[:200]:
        packet, _, overload = target.removeprefix("aten.").partition(".")
        if target == "output":
            return value(args[0])
        if target == "constant":
            values[name] = args[0]
        elif not values:
            values[name] = h
        else:
            operation = getattr(getattr(torch.ops.aten, packet), overload)
            if packet not in SHAPING and torch.Tag.pointwise not in operation.tags:
                raise ValueError(f"{target} is not known here")
            if packet in ("full", "ones", "zeros") and args[0]:
                raise ValueError("a graph makes a number, and no larger tensor")
            kept = {
                key: value(x) for key, x in kwargs.items() if key in ("dim", "keepdim", "min", "max", "alpha")
            }
            values[name] = operation(*value(args), **kept)
            if values[name].numel() > 1000:
                raise ValueError("a graph of large tensors")
    raise ValueError("a graph without an output")


def numbers(s, h, limit):
    """The vector, its length before, and the gradient, in which 1e6 stands for what is no number."""
    import torch

    h.requires_grad_()
    out, length = s.shortened(h, limit)
    (out.flatten() * torch.arange(1.0, out.numel() + 1)).sum().backward()
    return out.detach(), float(torch.as_tensor(length).detach()), h.grad.nan_to_num(nan=1e6)


def with_zeros(draw):
    return [(torch.zeros(5), 1.0), *short_and_long(draw)]


# --- 11-2 ----------------------------------------------------------------------------------------------------


def texts(draw):
    return [
        (torch.randint(1, 50, (B, T), generator=draw), longest)
        for B, T, longest in (
            (1, 1, 64),
            (3, 2, 64),
            (2, 7, 64),
            (2, 16, 64),
            (1, 17, 64),
            (2, 33, 40),
            (2, 40, 40),
        )
    ]


def read_by(s, idx, longest):
    """The logits of a causal stand-in for a model, and the lengths with which it was called."""
    import torch

    table, called = torch.linspace(-1, 1, 50 * 4).view(50, 4), []

    def call(ids):
        called.append(list(ids.shape))
        return torch.nn.functional.embedding(ids, table).cumsum(1)  # each place knows its past

    return s.few_shapes(call, idx, longest), called


def as_asked(got, expected, *args):
    """The logits alone: how often it calls is another check's question."""
    return difference(got[0], expected[0], where="the logits")


def lengths_seen(got, expected, idx, longest):
    allowed = {2**n for n in range(20) if 2**n <= longest} | {longest}
    other = sorted({shape[1] for shape in got[1]} - allowed)
    if not got[1]:
        return "the model was never called"
    if other:
        return f"with longest={longest} the model was called with a length of {other[0]}"
    wanted = expected[1][0][1]
    longer = max(shape[1] for shape in got[1])
    return "" if longer == wanted else f"{idx.size(1)} tokens were read as {longer}, not {wanted}"


# --- 11-3 ----------------------------------------------------------------------------------------------------


def no_ones(draw):
    return [(torch.randint(2, 6, (n,), generator=draw).tolist(), dynamic)
            for n in (1, 2, 5) for dynamic in (None, True, False)]  # fmt: skip


def with_ones(draw):
    lists = [[1], [1, 1], [1, 5], [5, 1], [5, 1, 7], [5, 7, 1], [1, 5, 7, 1]]
    return [(lengths, dynamic) for lengths in lists for dynamic in (None, True)]


def many(draw):
    return [(2 * (torch.randperm(20, generator=draw)[:n] + 1).tolist(), False) for n in (3, 8, 9, 15)]


# --- 11-4 ----------------------------------------------------------------------------------------------------


def moved(s):
    return [s.eager, s.fused]


# --- 11-5 ----------------------------------------------------------------------------------------------------

RIGHT = (
    """
def saved_names(names):
    return [name.replace("_orig_mod.", "") for name in names]
""",
    """
import re

def saved_names(names):
    return [re.sub(r"(^|[.])(_orig_mod[.])+", r"\\1", name) for name in names]
""",
    """
def saved_names(names):
    return [".".join(part for part in name.split(".") if part != "_orig_mod") for name in names]
""",
)
WRONG_NAMES = {
    "it changes nothing": "list(names)",
    "it takes a wrapper off the beginning only": '[name.removeprefix("_orig_mod.") for name in names]',
    "lstrip takes letters, not a word": '[name.lstrip("_orig_mod.").replace("._orig_mod.", ".") for name in names]',
    "it cuts ten characters from every name": "[name[10:] for name in names]",
    "it replaces the first occurrence only": '[name.replace("_orig_mod.", "", 1) for name in names]',
    "it keeps what follows the last wrapper": '[name.split("_orig_mod.")[-1] for name in names]',
    "it leaves plain names out": '[name.replace("_orig_mod.", "") for name in names if "_orig_mod." in name]',
    "it takes DDP's module. off as well": '[name.replace("_orig_mod.", "").removeprefix("module.") for name in names]',
}

CHECKS = [
    Check("11-1", "numbers and gradient, at zero too", 3, numbers, with_zeros, hidden=False),
    Check("11-1", "one graph", 2, graphs, lambda draw: [(torch.randn(6, generator=draw), 1.0)], judge=one_graph, seconds=30),
    Check("11-2", "logits of the text that was given", 2, read_by, texts, judge=as_asked, hidden=False),
    Check("11-2", "no other lengths than powers of two and the longest", 2, read_by, texts, judge=lengths_seen),
    Check("11-3", "lengths from 2 on", 2, "compilations", no_ones, hidden=False),
    Check("11-3", "a length of 1 has a graph of its own", 1, "compilations", with_ones),
    Check("11-3", "without symbols, up to the limit", 1, "compilations", many),
    Check("11-4", "numbers moved, eager and fused", 2, moved, hidden=False),
    Check("11-4", "whole calls until compiling has paid", 1, "calls"),
    CheckOfCheck("11-5", "accepts right names and refuses wrong ones", 4, "check_saved_names", "saved_names", RIGHT,
                 {what: f"def saved_names(names):\n    return {value}\n" for what, value in WRONG_NAMES.items()}),
]  # fmt: skip

WRONG = [
    Wrong("11-1", "the number for the log is fetched inside the function: the graph ends at .item()",
          "limit)), length", "limit)), length.item()"),
    Wrong("11-1", "the length is a Python number: the graph ends where it is fetched, and no gradient passes through it",
          code="""
          def shortened(h, limit):
              length = h.norm().item()
              if length > limit:
                  h = h * (limit / length)
              return h, length
          """),
    Wrong("11-1", "Python chooses between lines by a tensor's value: the graph ends at the `if`",
          "return h * (limit / length.clamp(min=limit)), length",
          "if length > limit:\n        h = h * (limit / length)\n    return h, length"),
    Wrong("11-1", "torch.where also differentiates the branch that it does not take: at zero, 0 times infinity",
          "h * (limit / length.clamp(min=limit))", "torch.where(length > limit, h * (limit / length), h)"),
    Wrong("11-1", "short vectors are lengthened to the limit", "length.clamp(min=limit)", "length.clamp(min=1e-12)"),
    Wrong("11-1", "taken out of the compiler's sight, the function still breaks the graph around it",
          code="""
          @torch.compiler.disable
          def shortened(h, limit):
              length = h.norm()
              return h * (limit / length.clamp(min=limit)), length
          """),
    Wrong("11-1", "each entry is clipped by itself, which turns the vector", "h * (limit / length.clamp(min=limit))",
          "h.clamp(-limit, limit)"),
    Wrong("11-1", "the length that is reported is the one afterwards", "limit)), length", "limit)), length.clamp(max=limit)"),
    Wrong("11-2", "padding on the left moves every token to another position", "(0, length - T)", "(length - T, 0)"),
    Wrong("11-2", "logits of the added places are handed out", "[:, :T]", ""),
    Wrong("11-2", "the logits of the end are handed out, where the padding stands", "[:, :T]", "[:, -T:]"),
    Wrong("11-2", "a length that is a power of two already is doubled", "(T - 1).bit_length()", "T.bit_length()"),
    Wrong("11-2", "texts grow beyond the longest that the model reads", "min(2 ** (T - 1).bit_length(), longest)",
          "2 ** (T - 1).bit_length()"),
    Wrong("11-2", "rounded down: the end of the text is cut off", "(T - 1).bit_length()", "(T.bit_length() - 1)"),
    Wrong("11-2", "every text is read at full length: one shape, and most of the work for nothing",
          "min(2 ** (T - 1).bit_length(), longest)", "longest"),
    Wrong("11-2", "the added places hold -1, which is no token", "length - T))", "length - T), value=-1)"),
    Wrong("11-3", "by default too, each new length is thought to compile again", "if dynamic is False:\n        return min(len(different), LIMIT)",
          "if not dynamic:\n        return min(len(different), LIMIT)"),
    Wrong("11-3", "a graph is thought to be thrown away when the length changes",
          "if dynamic is False:\n        return min(len(different), LIMIT)",
          "if dynamic is False:\n        return min(LIMIT, 1 + sum(a != b for a, b in zip(lengths, lengths[1:])))"),
    Wrong("11-3", "the symbol is thought to stand for 1 as well", "(1 in new) + any(n > 1 for n in new)", "bool(new)"),
    Wrong("11-3", "the limit is forgotten", "min(len(different), LIMIT)", "len(different)"),
    Wrong("11-3", "by default the first size is thought to be a symbol already",
          "(dynamic is None) + (1 in new) + any(n > 1 for n in new)", "(1 in different) + any(n > 1 for n in different)"),
    Wrong("11-4", "only what is read is counted", 'eager = 2 * mine["unary"] + 3 * mine["binary"]',
          'eager = mine["unary"] + 2 * mine["binary"]'),
    Wrong("11-4", "every operation is thought to read one tensor", '3 * mine["binary"]', '2 * mine["binary"]'),
    Wrong("11-4", "only what is written is counted", 'eager = 2 * mine["unary"] + 3 * mine["binary"]',
          'eager = mine["unary"] + mine["binary"]'),
    Wrong("11-4", "the kernel's output is forgotten", 'mine["inputs"] + 1', 'mine["inputs"]'),
    Wrong("11-4", "the kernel is thought to read one tensor, however many come from outside", 'mine["inputs"] + 1', "2"),
    Wrong("11-4", "rounded down: at that call the debt is not yet paid", "math.ceil", "math.floor"),
    Wrong("11-4", "the compiled call is thought to cost nothing", "(eager - fused)", "eager"),
    Wrong("11-4", "numbers are taken for bytes", '* 4 / mine["bandwidth"]', '/ mine["bandwidth"]'),
    Wrong("11-5", "the check accepts everything", code="def check_saved_names(saved_names):\n    saved_names(['a'])"),
    Wrong("11-5", "the check refuses everything", code="def check_saved_names(saved_names):\n    assert False"),
    Wrong("11-5", "one name is tried", code="""
          def check_saved_names(saved_names):
              assert saved_names(["_orig_mod.wte.weight"]) == ["wte.weight"]
          """),
    Wrong("11-5", "no name without a wrapper, and none with two, is tried", code="""
          def check_saved_names(saved_names):
              found = saved_names(["_orig_mod.wte.weight", "h.0._orig_mod.ln_1.bias"])
              assert found == ["wte.weight", "h.0.ln_1.bias"]
          """),
]  # fmt: skip
MANUAL = {"11-6": 2}
RUBRIC = {
    "11-6": "1 point: each change of mode (training or not, gradients or not) and of shape fails a guard and compiles again, or, "
    "at the limit, runs eagerly; seen as single steps of seconds, or a line about the recompile limit. 1 point: at least two "
    "remedies that work: the model inside the wrapper evaluates and writes, eagerly, since it shares the parameters; a second "
    "compiled call with dynamic=True for the evaluation; few shapes by padding; set_stance('force_eager'). No point for "
    "'compile is incompatible with eval mode'.",
}
