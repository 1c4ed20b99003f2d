"""How exercises 05 are graded."""

import torch

from course.exercises.checks import Check, CheckOfCheck, Wrong


def integers(draw, low: int, high: int, n: int) -> list[int]:
    return torch.randint(low, high, (n,), generator=draw).tolist()


def activations(draw):
    """Of ordinary size, small ones, and ones without an axis in front."""
    shapes = (((2, 4, 6), 1.0), ((3, 5), 1e-3), ((7,), 3e-2))
    return [
        (scale * torch.randn(shape, generator=draw), *torch.randn(2, shape[-1], generator=draw))
        for shape, scale in shapes
    ]


def hard_activations(draw):
    """Positions far from zero, constant ones, and another ε."""
    far = 3000 + torch.randn(4, 32, generator=draw)
    constant = torch.randn(3, 1, generator=draw).expand(3, 8).contiguous()
    gain, bias = torch.randn(2, 32, generator=draw)
    return [
        (far, gain, bias, 1e-5),
        (constant, gain[:8], bias[:8], 1e-5),
        (0.1 * torch.randn(2, 8, generator=draw), gain[:8], bias[:8], 1e-2),
    ]


def counted(s, kind, n):
    import torch
    from torch import nn

    if kind == "tied":
        model = nn.ModuleDict(
            {
                "wte": nn.Embedding(3 * n, n),
                "ln_f": nn.LayerNorm(n),
                "lm_head": nn.Linear(n, 3 * n, bias=False),
            }
        )
        model["lm_head"].weight = model["wte"].weight
    elif kind == "buffers":
        model = nn.Sequential(nn.Linear(n, n), nn.BatchNorm1d(n))
        model.register_buffer("mask", torch.ones(n, n))
    elif kind == "shared":  # one layer in three places, and two that only look alike
        layer = nn.Linear(n, n)
        model = nn.ModuleList([layer, nn.Sequential(layer, layer), nn.LayerNorm(n), nn.LayerNorm(n)])
    else:
        model = nn.Sequential(nn.Linear(n, 2), nn.Linear(2, n, bias=False))
        model[0].requires_grad_(False)
    return int(s.count(model))


def models(draw):
    return [("tied", integers(draw, 3, 9, 1)[0]), ("buffers", integers(draw, 3, 20, 1)[0])]


def other_models(draw):
    sizes = integers(draw, 3, 20, 2)
    return [("shared", sizes[0]), ("frozen", sizes[1])]


def drawn(s, n_layer, parts):
    """Root mean square and deviation of each parameter, in percent of 0.02."""
    import torch

    torch.manual_seed(n_layer)
    model = s.decoder(n_layer, 128, parts=parts)
    s.init(model)
    percent = 100 / 0.02
    return {
        name: [percent * p.square().mean().sqrt().item(), percent * p.std().item()]
        for name, p in model.named_parameters()
    }


def three_parts(draw):
    return [(n_layer, ("attn", "cross", "mlp")) for n_layer in (1, 3)]


def other_parts(draw):
    return [(2, ("attn", "mlp")), (3, ("attn",))]


# --- models for 05-5: text, since they run apart from the student's check ---------------------------------------

HEAD = """
import math
import torch
import torch.nn.functional as F

g = torch.Generator().manual_seed(7)


def normal(*shape, std):
    return std * torch.randn(*shape, generator=g)

"""

SMALL = (
    HEAD
    + """
wte, wpe = normal(64, 48, std=0.02), normal(32, 48, std=0.02)
c_attn, c_proj = normal(48, 144, std=0.1), normal(48, 48, std=0.05)


def model(ids):
    T = ids.size(1)
    x = wte[ids] + wpe[:T]
    q, k, v = F.layer_norm(x, (48,)).matmul(c_attn).unflatten(2, (3, 48)).unbind(2)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(1, 2) / math.sqrt(48)).masked_fill(future, float("-inf"))
    x = x + scores.softmax(-1) @ v @ c_proj
    logits = F.layer_norm(x, (48,)) @ wte.T
    return logits
"""
)


def small(old: str, new: str) -> str:
    """The small model with one thing changed."""
    assert SMALL.count(old) == 1, old
    return SMALL.replace(old, new)


RIGHT = (
    SMALL,
    # two layers with MLPs and four heads, in the fused kernel
    HEAD
    + """
wte, wpe = normal(64, 32, std=0.02), normal(32, 32, std=0.02)
layers = [(normal(32, 96, std=0.1), normal(32, 32, std=0.05), normal(32, 128, std=0.1), normal(128, 32, std=0.05)) for _ in "ab"]


def model(ids):
    x = wte[ids] + wpe[: ids.size(1)]
    for c_attn, attn_proj, c_fc, mlp_proj in layers:
        q, k, v = (z.unflatten(2, (4, 8)).transpose(1, 2) for z in (F.layer_norm(x, (32,)) @ c_attn).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).flatten(2) @ attn_proj
        x = x + F.gelu(F.layer_norm(x, (32,)) @ c_fc) @ mlp_proj
    return F.layer_norm(x, (32,)) @ wte.T
""",
    # a recurrent network: no attention, no table of positions
    HEAD
    + """
wte, head = normal(64, 32, std=1.0), normal(32, 64, std=0.1)
gru = torch.nn.GRU(32, 32, batch_first=True)
for p in gru.parameters():
    p.data = normal(*p.shape, std=0.3)


@torch.no_grad()
def model(ids):
    return gru(wte[ids])[0] @ head
""",
    # it sees its own token and the two before it
    HEAD
    + """
wte, near, far, head = normal(64, 32, std=1.0), normal(32, 32, std=0.2), normal(32, 32, std=0.2), normal(32, 64, std=0.05)


def model(ids):
    x = wte[ids]
    back = F.pad(x, (0, 0, 2, 0))
    return (x + back[:, 1:-1] @ near + back[:, :-2] @ far).tanh() @ head + 3.0
""",
)

PLAIN = {
    "nothing is masked (law 4)": small("triu(1)", "triu(64)"),
    "the mask begins one diagonal too late (law 4)": small("triu(1)", "triu(2)"),
    "embeddings are drawn from N(0, 1) and tied (law 1)": small(
        "normal(64, 48, std=0.02)", "normal(64, 48, std=1.0)"
    ),
    "dropout is left on (law 2)": small("x = wte[ids] + wpe[:T]", "x = F.dropout(wte[ids] + wpe[:T], 0.1)"),
    "there are no positions (law 5)": small(" + wpe[:T]", ""),
    "normalised over the batch (law 3)": small(
        "x = wte[ids] + wpe[:T]", "x = wte[ids] + wpe[:T]\n    x = x - 0.5 * x.mean(0)"
    ),
    "only the own token counts (law 5)": small(
        "x = x + scores.softmax(-1) @ v @ c_proj", "x = x + v @ c_proj"
    ),
}

SUBTLE = {
    "positions are counted from the end (law 4)": small("wpe[:T]", "wpe[:T].flip(0)"),
    "the mask was made for 16 positions (law 4)": small(".triu(1)", ".triu(1)\n    future[16:] = False"),
    "position 5 sees position 6 (law 4)": small(".triu(1)", ".triu(1)\n    future[5:6, 6:7] = False"),
    "all positions from 16 on have one vector, so order is lost there (law 5)": small(
        "wpe[:T]", "wpe[torch.arange(T).clamp(max=16)]"
    ),
    "ids above 31 are taken for those below (law 5)": small("wte[ids]", "wte[ids % 32]"),
    "ids 62 and 63 have one vector (law 5)": small("wte[ids]", "wte[ids.clamp(max=62)]"),
    "something is kept from call to call (law 2)": small(
        "return logits", "wpe.add_(0.01)\n    return logits + wpe[0, 0] * torch.arange(64) / 64"
    ),
    "the second row hears the first (law 3)": small(
        "return logits", "logits[1:2] += 0.1 * logits[:1]\n    return logits"
    ),
    "the last position is repeated for all (law 4)": small(
        "return logits", "return logits[:, -1:].expand_as(logits)"
    ),
    "the last row of a large batch is left out (law 3)": small(
        "return logits", "logits[4:] = 0.0\n    return logits"
    ),
    "logits ten times too large: the division by √d was turned around (law 1)": small(
        "return logits", "return 20 * logits"
    ),
    "the head favours id 0 as if it were padding (law 1)": small(
        "return logits", "logits[..., 0] += 4.5\n    return logits"
    ),
}

CHECKS = [
    Check("05-1", "mean 0 and variance 1 for every position, small ones too", 2, "layer_norm", activations, hidden=False, tolerance=1e-4),
    Check("05-1", "positions far from zero, constant ones, another ε", 2, "layer_norm", hard_activations, tolerance=1e-2),
    Check("05-2", "the number of parameters", 2, "parameters", hidden=False, tolerance=1e-12),
    Check("05-2", "the FLOPs of a training step per token", 2, "flops", tolerance=1e-12),
    Check("05-3", "tied tables once, and no buffers", 1, counted, models, hidden=False, tolerance=1e-12),
    Check("05-3", "shared, equal and frozen parameters", 1, counted, other_models, tolerance=1e-12),
    Check("05-4", "three additions a block", 2, drawn, three_parts, hidden=False, tolerance=0.05),
    Check("05-4", "blocks that add once or twice", 2, drawn, other_parts, tolerance=0.05),
    CheckOfCheck("05-5", "finds a model that breaks a law everywhere", 2, "check_untrained", "model", RIGHT, PLAIN, hidden=False, seconds=20),
    CheckOfCheck("05-5", "finds a model that breaks a law at some places only", 4, "check_untrained", "model", RIGHT, SUBTLE, seconds=20),
]  # fmt: skip

WRONG = [
    Wrong("05-1", "ε stands outside the square root", "(variance + eps).sqrt()", "(variance.sqrt() + eps)"),
    Wrong("05-1", "the variance is divided by C − 1", ".square().mean(-1, keepdim=True)", ".square().sum(-1, keepdim=True) / (x.size(-1) - 1)"),
    Wrong("05-1", "ε stands outside the square root, and the deviation is divided by C − 1", code="""
        def layer_norm(x, gain, bias, eps=1e-5):
            return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + eps) * gain + bias
        """),
    Wrong("05-1", "no ε: a constant position gives nan", "(variance + eps)", "variance"),
    Wrong("05-1", "the mean is not subtracted: RMSNorm", "x - x.mean(-1, keepdim=True)", "x"),
    Wrong("05-1", "the variance as E[x²] − E[x]²: in float32 it is lost far from zero", code="""
        def layer_norm(x, gain, bias, eps=1e-5):
            mean = x.mean(-1, keepdim=True)
            variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
            return (x - mean) / (variance + eps).sqrt() * gain + bias
        """),
    Wrong("05-1", "mean and variance over positions and channels together", code="""
        def layer_norm(x, gain, bias, eps=1e-5):
            axes = tuple(range(x.dim()))[-2:]
            centred = x - x.mean(axes, keepdim=True)
            return centred / (centred.square().mean(axes, keepdim=True) + eps).sqrt() * gain + bias
        """),
    Wrong("05-1", "the bias is scaled by the gain", "centred / (variance + eps).sqrt() * gain + bias",
          "(centred / (variance + eps).sqrt() + bias) * gain"),
    Wrong("05-2", "the head is taken for tied", "2 * V * C + T * C + L", "V * C + T * C + L"),
    Wrong("05-2", "keys and values are as wide as queries", "2 * C * shared", "2 * C * C"),
    Wrong("05-2", "only the keys are shared, not the values", "2 * C * shared", "C * shared + C * C"),
    Wrong("05-2", "LayerNorms have a bias, too", "(2 * L + 1) * C", "2 * (2 * L + 1) * C"),
    Wrong("05-2", "the last LayerNorm is forgotten", "(2 * L + 1) * C", "2 * L * C"),
    Wrong("05-2", "the forward pass only", "flops = 3 * (", "flops = ("),
    Wrong("05-2", "a multiply and an add counted as one", "2 * V * C + L * (2 * matrices + 4 * T * C)", "V * C + L * (matrices + 2 * T * C)"),
    Wrong("05-2", "6 FLOPs a parameter: the tables are looked up, not multiplied, and T×T is missing", code="""
        C = 64 * mine["n_head"]
        matrices = 2 * C * C + 2 * C * 64 * mine["n_kv"] + 8 * C * C
        parameters = 2 * mine["vocab"] * C + mine["T"] * C + mine["n_layer"] * matrices + (2 * mine["n_layer"] + 1) * C
        flops = 6 * parameters
        """),
    Wrong("05-2", "attention's T×T is missing", " + 4 * T * C", ""),
    Wrong("05-2", "T×T shrinks with the shared heads: each query head still has its own scores", "4 * T * C", "4 * T * shared"),
    Wrong("05-2", "half of T×T, which is masked; the chapter counts it in full", "4 * T * C", "2 * T * C"),
    Wrong("05-3", "tied weights are counted twice: state_dict lists them under each name",
          code="def count(model): return sum(tensor.numel() for tensor in model.state_dict().values())"),
    Wrong("05-3", "module by module: what two of them share is counted twice", code="""
        def count(model):
            return sum(p.numel() for module in model.modules() for p in module.parameters(recurse=False))
        """),
    Wrong("05-3", "frozen parameters are left out", "model.parameters())", "model.parameters() if p.requires_grad)"),
    Wrong("05-3", "tensors with equal values are taken for one", code="""
        def count(model):
            return sum({(tuple(p.shape), tuple(p.flatten().tolist())): p.numel() for p in model.parameters()}.values())
        """),
    Wrong("05-3", "buffers are counted", "model.parameters())", "[*model.parameters(), *model.buffers()])"),
    Wrong("05-3", "matrices only: gains and biases are parameters too", "model.parameters())", "model.parameters() if p.dim() > 1)"),
    Wrong("05-4", "both bugs are still there: gains are drawn like matrices, and the root of 2 · n_layer", code="""
        @torch.no_grad()
        def init(model):
            for name, p in model.named_parameters():
                if name.endswith("weight"):
                    p.normal_(0.0, 0.02 / math.sqrt(2 * len(model["h"])) if "c_proj" in name else 0.02)
                else:
                    p.zero_()
        """),
    Wrong("05-4", "the root of 2 · n_layer, where a block adds three times", "math.sqrt(additions)", 'math.sqrt(2 * len(model["h"]))'),
    Wrong("05-4", "the root of n_layer: blocks are counted, not additions", "math.sqrt(additions)", 'math.sqrt(len(model["h"]))'),
    Wrong("05-4", "always three additions a block", "math.sqrt(additions)", 'math.sqrt(3 * len(model["h"]))'),
    Wrong("05-4", "divided by the number of additions, not by its root: variances add, not deviations", "math.sqrt(additions)", "additions"),
    Wrong("05-4", "gains are drawn like matrices", "if p.dim() == 2:", 'if name.endswith("weight"):'),
    Wrong("05-4", "gains are zero: no layer hears anything", "p.fill_(1.0)", "p.zero_()"),
    Wrong("05-4", "every matrix is made smaller, those that read the stream too",
          '0.02 / math.sqrt(additions) if name.endswith("c_proj.weight") else 0.02', "0.02 / math.sqrt(additions)"),
    Wrong("05-4", "no matrix is made smaller", "0.02 / math.sqrt(additions) if", "0.02 if"),
    Wrong("05-4", "biases stay as PyTorch makes them", "p.zero_()", "pass"),
    Wrong("05-5", "accepts everything", code="def check_untrained(model): assert model(torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 64)"),
    Wrong("05-5", "refuses everything: a first loss of ln V to the last digit", code="""
        def check_untrained(model):
            ids = torch.randint(64, (16, 33), generator=torch.Generator().manual_seed(0))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            assert abs(loss - math.log(64)) < 1e-6
        """),
    Wrong("05-5", "compares with the course's own model, so others are refused", code="""
        def check_untrained(model):
            gpt = GPT(GPTConfig(block_size=32, vocab_size=64, n_layer=2, n_head=4, n_embd=32), torch.Generator().manual_seed(0))
            ids = torch.arange(32)[None]
            assert torch.allclose(model(ids), gpt(ids)[0], atol=1e-3)
        """),
    Wrong("05-5", "the first loss only", code="""
        def check_untrained(model):
            ids = torch.randint(64, (16, 33), generator=torch.Generator().manual_seed(0))
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            assert abs(loss - math.log(64)) < 0.3
        """),
    Wrong("05-5", "short texts of 8 ids", code="""
        def check_untrained(model):
            ids = torch.randint(64, (4, 8), generator=torch.Generator().manual_seed(0))
            logits = model(ids)
            assert abs(F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()) - math.log(64)) < 1
            for t in range(1, 8):
                assert torch.allclose(model(ids[:, :t]), logits[:, :t], atol=1e-5)
        """),
    Wrong("05-5", "looks at the last position, and disturbs the first id", code="""
        def check_untrained(model):
            ids = torch.randint(64, (4, 32), generator=torch.Generator().manual_seed(0))
            other = ids.clone()
            other[:, 0] = (ids[:, 0] + 1) % 64
            assert not torch.equal(model(ids)[:, -1], model(other)[:, -1])
            assert torch.equal(model(ids), model(ids))
        """),
    Wrong("05-5", "one row", "torch.randint(64, (8, 33)", "torch.randint(64, (1, 33)"),
]  # fmt: skip

# Right, and by what the task forbids: `#| forbids` in exercise.py.
FORBIDDEN = [
    Wrong("05-1", "PyTorch's own is called", code="""
        def layer_norm(x, gain, bias, eps=1e-5):
            return F.layer_norm(x, x.shape[-1:], gain, bias, eps)
        """),
    Wrong("05-1", "PyTorch's own is called, by another name", code="""
        def layer_norm(x, gain, bias, eps=1e-5):
            rows = x.reshape(-1, x.size(-1))
            return F.group_norm(rows, 1, gain, bias, eps).view_as(x)
        """),
    Wrong("05-1", "PyTorch's own for batches is called, on rows that take the place of channels", code="""
        def layer_norm(x, gain, bias, eps=1e-5):
            columns = x.reshape(-1, x.size(-1)).T
            return F.batch_norm(columns, None, None, training=True, eps=eps).T.reshape(x.shape) * gain + bias
        """),
]  # fmt: skip

MANUAL = {"05-6": 2}

RUBRIC = {
    "05-6": "1 point: the targets are not shifted: the model is asked for the token that it has just read (x is given as y). 1 point: why that "
    "is cheaper from the start: the head is tied to wte, and the stream still holds a part of the token's own vector (w · w is positive, products with other rows "
    "scatter around zero), so the own token's logit is raised, by about 1 in the chapter's model; half of it for `the answer is in the input`, which explains the loss "
    "that soon is zero but not the first one. A way to make sure must be named (print x and y side by side; the loss with y from the "
    "next ids; untie the head and see ln V): half a point off without one."
}
