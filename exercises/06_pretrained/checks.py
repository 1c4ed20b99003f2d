"""How exercises 06 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong

# ---- 06-1


def grown(draw):
    return [(torch.randint(40, (2, 8), generator=draw), seed, n) for seed, n in ((1, 3), (2, 1), (3, 12))]


def old_logits(s, idx, seed, n):
    model = s.tiny(seed)
    return s.with_tokens(model, n)(idx)[0].detach()[..., :40]


def new_logits(s, idx, seed, n):
    model = s.tiny(seed)
    bigger = s.with_tokens(model, n)
    return bigger(idx)[0].detach()[..., 40:], bigger(idx + n)[0].detach()[..., n:40]


def one_matrix(s, idx, seed, n):
    model = s.tiny(seed)
    bigger = s.with_tokens(model, n)
    bigger.transformer.wte.weight.data.add_(1.0)  # as training would
    return list(bigger.lm_head.weight.shape), (bigger.lm_head.weight - bigger.transformer.wte.weight).detach()


def left_alone(s, idx, seed, n):
    import torch

    model = s.tiny(seed)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    bigger = s.with_tokens(model, n)
    bigger(idx, idx)[1].backward()
    for p in bigger.parameters():
        p.data -= p.grad
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    return model.config.vocab_size, after - before


# ---- 06-2


def tensors(s):
    return s.file["tensors"]


def numbers(s):
    return s.file["numbers"]


def own_head(s):
    return s.file["own head"]


def in_bytes(s):
    return s.file["bytes"]


def left_wrong(s):
    return s.file["share left wrong"]


# ---- 06-3

RIGHT = (
    """
import re
def layout(name, p):
    return p.T if re.search(r"(c_attn|c_proj|c_fc)\\.weight$", name) else p
""",
    """
def layout(name, p):
    kinds = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
    return p.permute(1, 0).contiguous() if any(name.endswith(kind) for kind in kinds) else p.clone()
""",
    """
def layout(name, p):
    first, *rest = name.split(".")
    if first != "h" or rest[1].startswith("ln") or rest[-1] == "bias":
        return p
    return p.transpose(-1, -2)
""",
)

LAYOUTS = {
    "turns what is not square": """
def layout(name, p):
    conv = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    return p.T if conv and p.shape[0] != p.shape[1] else p
""",
    "turns every matrix, the token table too": """
def layout(name, p):
    return p.T if p.dim() == 2 else p
""",
    "turns nothing": """
def layout(name, p):
    return p
""",
    "reshapes in place of transposing": """
def layout(name, p):
    conv = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    return p.reshape(p.shape[1], p.shape[0]) if conv else p
""",
    "forgets the second c_proj, the MLP's": """
def layout(name, p):
    return p.T if name.endswith(("c_attn.weight", "attn.c_proj.weight", "c_fc.weight")) else p
""",
    "knows the first block only": """
def layout(name, p):
    conv = name.startswith("h.0.") and name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    return p.T if conv else p
""",
    "turns the position table as well": """
def layout(name, p):
    return p.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight", "wpe.weight")) else p
""",
    "reverses the rows and columns in place of exchanging them": """
def layout(name, p):
    conv = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    return p.flip(0, 1) if conv else p
""",
}

# ---- 06-4


def layers(draw):
    return [
        (
            torch.randn(C, 3 * C, generator=draw),
            torch.randn(3 * C, generator=draw),
            torch.randn(5, C, generator=draw),
            i,
        )
        for C, i in ((4, 1), (8, 2), (6, 11))
    ]


def first_block(draw):
    return [(weight, bias, x, 0) for weight, bias, x, _ in layers(draw)[:1]]


def scores(s, weight, bias, x, i):
    weight, bias = s.fold(weight, bias, i)
    q, k, _ = (x @ weight + bias).split(x.size(1), dim=1)
    return q @ k.T


def values_and_arguments(s, weight, bias, x, i):
    new_weight, new_bias = s.fold(weight, bias, i)
    _, _, v = (x @ new_weight + new_bias).split(x.size(1), dim=1)
    return v, weight, bias


CHECKS = [
    Check("06-1", "the old tokens have the logits that they had", 1, old_logits, grown, hidden=False),
    Check("06-1", "a new token's logit is the mean of the old ones, and it can be read as well", 1, new_logits, grown),
    Check("06-1", "table and head are one matrix, also after a step of training", 2, one_matrix, grown),
    Check("06-1", "training the new model leaves the old one alone", 1, left_alone, grown),
    Check("06-2", "the number of tensors", 1, tensors, hidden=False),
    Check("06-2", "the numbers in a file with masks", 1, numbers),
    Check("06-2", "what an own head costs", 1, own_head),
    Check("06-2", "the bytes in bfloat16", 0.5, in_bytes),
    Check("06-2", "the share that a loader by shapes leaves wrong", 1, left_wrong, tolerance=1e-3),
    CheckOfCheck("06-3", "refuses wrong layouts, and no right one", 5, "check_layout", "layout", RIGHT, LAYOUTS, hidden=False),
    Check("06-4", "the scores of block i are divided by i + 1", 2, scores, layers, hidden=False),
    Check("06-4", "block 0 stays as it is", 0.5, scores, first_block),
    Check("06-4", "values stay, and the file's tensors too", 1, values_and_arguments, layers),
]  # fmt: skip

WRONG = [
    Wrong("06-1", "the head is a matrix of its own: equal now, and no longer after the first step of training",
          "bigger.load_state_dict(weights, strict=False)",
          "bigger.lm_head.weight = torch.nn.Parameter(weights['transformer.wte.weight'].clone()); bigger.load_state_dict(weights, strict=False)"),
    Wrong("06-1", "the new rows are drawn at random, not the mean of the old ones",
          "old.mean(0, keepdim=True).expand(n, -1)", "0.02 * torch.randn(n, old.size(1), generator=torch.Generator().manual_seed(0))"),
    Wrong("06-1", "the new rows are zero: logits of 0, whatever the others are", "old.mean(0, keepdim=True).expand(n, -1)",
          "torch.zeros(n, old.size(1))"),
    Wrong("06-1", "the new rows are copies of one old token, as likely as that one", "old.mean(0, keepdim=True).expand(n, -1)",
          "old[-1:].expand(n, -1)"),
    Wrong("06-1", "the new rows stand before the old ones: every id means another token", "torch.cat([old, new])", "torch.cat([new, old])"),
    Wrong("06-1", "the new model shares its memory with the old one, so that training it changes both",
          "bigger.load_state_dict(weights, strict=False)",
          "bigger.load_state_dict(weights, strict=False); [setattr(b, 'data', a.data) for (name, a), b in zip(model.named_parameters(), bigger.parameters()) if 'wte' not in name]"),
    Wrong("06-1", "only the token table was copied: the blocks are untrained",
          "bigger.load_state_dict(weights, strict=False)",
          "torch.manual_seed(0); bigger = GPT(bigger.config, generator=torch.Generator().manual_seed(0)); "
          "bigger.load_state_dict({'transformer.wte.weight': weights['transformer.wte.weight']}, strict=False)"),
    Wrong("06-2", "the biases were forgotten: every norm and layer has one", "12 * L + 4", "6 * L + 3"),
    Wrong("06-2", "the head was counted as a tensor of its own", "12 * L + 4", "12 * L + 5"),
    Wrong("06-2", "one mask for the whole model; the file has one a block", "params + L * T**2", "params + T**2"),
    Wrong("06-2", "masks of half the size: the zeros are stored too", "params + L * T**2", "params + L * T * (T + 1) // 2"),
    Wrong("06-2", "an own head was taken to be (C, C)", "V * C", "C * C"),
    Wrong("06-2", "bfloat16 has two bytes a number, not four", "2 * params", "4 * params"),
    Wrong("06-2", "one of four matrices is not a quarter of their numbers", "1 / 12", "1 / 4"),
    Wrong("06-2", "the share is of the matrices to be turned, not of all parameters", "1 / 12", "L * C * C / params"),
    Wrong("06-3", "accepts everything", code="def check_layout(layout): pass"),
    Wrong("06-3", "refuses everything", code="def check_layout(layout): assert False"),
    Wrong("06-3", "compares shapes only", code="""
        def check_layout(layout):
            for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
                assert layout(f"h.0.{name}.weight", torch.randn(4, 10)).shape == (10, 4)
            assert layout("wte.weight", torch.randn(4, 10)).shape == (4, 10)
        """),
    Wrong("06-3", "tries the first block only", code="""
        def check_layout(layout):
            p = torch.randn(6, 6)
            for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
                assert torch.equal(layout(f"h.0.{name}.weight", p), p.T)
            assert torch.equal(layout("wte.weight", p), p) and torch.equal(layout("wpe.weight", p), p)
        """),
    Wrong("06-3", "makes the round trip: what is turned twice is what it was", code="""
        def check_layout(layout):
            for shape in ((6, 6), (4, 10)):
                for name in ("h.0.attn.c_attn.weight", "h.1.attn.c_proj.weight", "wte.weight"):
                    p = torch.randn(shape)
                    assert torch.equal(layout(name, layout(name, p)), p)
        """),
    Wrong("06-4", "the bias of q was forgotten: x @ W is divided, q is not", "    bias[:C] /= i + 1\n", ""),
    Wrong("06-4", "q and k are both divided: the scores by (i + 1)²",
          "    weight[:, :C] /= i + 1\n    bias[:C] /= i + 1\n", "    weight[:, :2 * C] /= i + 1\n    bias[:2 * C] /= i + 1\n"),
    Wrong("06-4", "q, k and v are all divided: the values shrink too",
          "    weight[:, :C] /= i + 1\n    bias[:C] /= i + 1\n", "    weight /= i + 1\n    bias /= i + 1\n"),
    Wrong("06-4", "the rows were divided: that is the input, not q, in the file's (in, out)", "weight[:, :C] /= i + 1", "weight[:C // 3] /= i + 1"),
    Wrong("06-4", "blocks are counted from 0, and block i is divided by i + 1, not by i",
          "    weight[:, :C] /= i + 1\n    bias[:C] /= i + 1\n", "    weight[:, :C] /= max(i, 1)\n    bias[:C] /= max(i, 1)\n"),
    Wrong("06-4", "multiplied in place of divided",
          "    weight[:, :C] /= i + 1\n    bias[:C] /= i + 1\n", "    weight[:, :C] *= i + 1\n    bias[:C] *= i + 1\n"),
    Wrong("06-4", "the file's own tensors were written into", "weight, bias = weight.clone(), bias.clone()", "pass"),
]  # fmt: skip

MANUAL = {"06-5": 2}
RUBRIC = {
    "06-5": "1 point for a measurement that decides: the same comparison (of logits, not of one loss) in float64, or layer by "
    "layer against another forward pass. Rounding shrinks to about float64's epsilon, a mistake keeps its size, and the "
    "depth at which it begins says where it is. 1 point for a mistake that fits all shapes and is this small: GELU with erf, "
    "another epsilon in LayerNorm, weights rounded to bfloat16. No point for 'compare the shapes' or 'a longer text'. "
    "A transposed c_proj or swapped q and k is no answer: that costs far more than 0.003.",
}
