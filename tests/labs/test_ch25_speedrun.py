"""Chapter 25: the parts are what their formulas say, an evaluation counts each target once, and the board keeps its rules."""

import hashlib
import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from nanogpt.labs.speedrun.muon import BatchedMuon, orthogonal
from nanogpt.labs.speedrun.record import T99, TRACKS, objections, put_on_board, share
from nanogpt.labs.speedrun.speedrun import (
    OURS,
    FastAttention,
    RecentTokens,
    Recipe,
    SquaredReLU,
    new_model,
    race,
    rate_at,
    validation_loss,
    windows_at_random,
)
from nanogpt.model import GPT, GPTConfig

SHAPE = GPTConfig(16, 30, n_layer=1, n_head=2, n_embd=16, bias=False)


def seeded(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ids(n=200) -> torch.Tensor:
    return torch.randint(30, (n,), generator=seeded())


# The parts, against loops


def test_the_mlp_squares_what_is_positive():
    mlp, x = SquaredReLU(SHAPE), torch.randn(16, generator=seeded())
    hidden = [sum(w * v for w, v in zip(row, x)) for row in mlp.c_fc.weight]
    squared = torch.stack([h * h if h > 0 else h * 0 for h in hidden])
    assert torch.allclose(mlp(x[None, None])[0, 0], mlp.c_proj.weight @ squared, atol=1e-5)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
def test_attention_is_that_of_plain_loops(rotary, normalized):
    """One position, one head and one pair of numbers at a time."""
    attention, T, d = FastAttention(SHAPE, rotary, normalized), 5, 8
    x = torch.randn(T, 16, generator=seeded())
    q, k, v = (x @ part.T for part in attention.c_attn.weight.detach().chunk(3))
    out = torch.zeros(T, 16)
    for head in range(2):
        at = slice(head * d, head * d + d)

        def prepared(vector, place, at=at):
            vector = vector[at]
            if normalized:
                vector = vector / math.sqrt(sum(float(z) ** 2 for z in vector) / d)
            if not rotary:
                return vector
            turned = vector.clone()
            for i in range(d // 2):
                angle = place * 1000.0 ** (-2 * i / d)
                a, b = float(vector[i]), float(vector[i + d // 2])
                turned[i] = a * math.cos(angle) - b * math.sin(angle)
                turned[i + d // 2] = b * math.cos(angle) + a * math.sin(angle)
            return turned

        for t in range(T):
            asks = prepared(q[t], t)
            scores = [float(asks @ prepared(k[s], s)) / math.sqrt(d) for s in range(t + 1)]
            weights = torch.tensor(scores).softmax(0)
            out[t, at] = sum(w * v[s, at] for s, w in enumerate(weights))
    found = attention(x[None])[0]
    assert torch.allclose(found, out @ attention.c_proj.weight.T, atol=1e-4)


def test_a_table_sees_the_last_tokens_and_nothing_else():
    recent = RecentTokens(nn.Embedding(30, 4), longest=3, rows=5000)
    x = torch.randint(30, (2, 12), generator=seeded())
    assert torch.equal(recent(x), recent.tokens(x)), "new tables add nothing"
    for table in recent.tables:
        nn.init.normal_(table.weight, generator=seeded(1))
    before = recent(x)
    for at in range(12):
        other = x.clone()
        other[:, at] = (other[:, at] + 1) % 30
        moved = (recent(other) != before).any(dim=2)[0].nonzero().flatten().tolist()
        assert moved == list(range(at, min(at + 3, 12))), "a token is seen at its place and the two after it"
    assert recent(x[:, :1]).shape == (2, 1, 4), "a text of one token"


def test_all_parts_together_are_causal_and_differ_from_gpt_2s():
    model = new_model(replace(OURS, n_embd=16, n_head=2, table_rows=100), 30, 16, seed=0)
    for table in model.transformer.wte.tables:
        nn.init.normal_(table.weight, generator=seeded())
    x = ids(16)[None]
    other = x.clone()
    other[0, 9] = (other[0, 9] + 1) % 30
    with torch.no_grad():
        a, b = model(x)[0], model(other)[0]
    assert torch.allclose(a[0, :9], b[0, :9], atol=1e-6) and not torch.allclose(a[0, 9:], b[0, 9:], atol=1e-3)


def test_the_reference_is_chapter_05s_model():
    recipe = Recipe(n_layer=1, n_head=2, n_embd=16)
    ours, theirs = new_model(recipe, 30, 16, seed=3), GPT(SHAPE, seeded(3))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


# The optimizer and the plan


def test_an_orthogonal_update_keeps_directions_and_evens_the_lengths():
    G = torch.randn(3, 8, 20, generator=seeded())
    X = orthogonal(G)
    assert (((s := torch.linalg.svdvals(X)) > 0.6) & (s < 1.3)).all(), s
    for g, x in zip(G, X):  # one by one, the same
        assert torch.allclose(orthogonal(g[None])[0], x, atol=1e-5)
        u, _, vh = torch.linalg.svd(g, full_matrices=False)
        inner = u.T @ x @ vh.T
        assert (inner - inner.diag().diag()).abs().max() < 0.01, "the singular vectors stay"


def test_muon_is_pytorchs():
    for shape in ((8, 20), (20, 8), (8, 8)):
        ours = [nn.Parameter(torch.ones(shape)) for _ in range(2)]
        theirs = [nn.Parameter(torch.ones(shape)) for _ in range(2)]
        muons = BatchedMuon(ours, 0.1), torch.optim.Muon(theirs, 0.1, adjust_lr_fn="match_rms_adamw")
        g = seeded()
        for _ in range(4):
            for a, b in zip(ours, theirs):
                a.grad = b.grad = torch.randn(shape, generator=g)
            for muon in muons:
                muon.step()
        for a, b in zip(ours, theirs):
            assert (a - b).norm() < 0.03 * (a - 1).norm(), shape


def test_the_schedules_ends():
    linear = Recipe(rate=0.5, decay=0.4, warmup=10, steps=100)
    assert rate_at(linear, 0) == pytest.approx(0.05) and rate_at(linear, 9) == 0.5 == rate_at(linear, 60)
    assert rate_at(linear, 80) == pytest.approx(0.25) and rate_at(linear, 100) == 0
    cosine = Recipe()
    assert rate_at(cosine, 0) == pytest.approx(1e-5) and rate_at(cosine, 99) == pytest.approx(1e-3)
    assert rate_at(cosine, 2000) == pytest.approx(1e-4)


def test_a_race_deals_as_many_rows_as_its_plan_says():
    dealt = []

    def deal(rows):
        dealt.append(rows)
        return windows_at_random(ids(), 16, 0)(rows)

    small = Recipe(1, 2, 16, rows=2, last_rows=3, steps=5)
    times = [seconds for _, seconds in race(small, 30, 16, deal, 0)]
    assert dealt == [2, 2, 2, 3, 3]
    assert times == sorted(times) and times[0] > 0


def test_windows_are_pieces_of_the_text_and_their_targets_the_next_ids():
    text = torch.arange(100)
    x, y = windows_at_random(text, 7, 0)(50)
    assert torch.equal(y, x + 1) and torch.equal(x, x[:, :1] + torch.arange(7)) and y.max() <= 99
    assert torch.equal(x, windows_at_random(text, 7, 0)(50)[0])
    assert not torch.equal(x, windows_at_random(text, 7, 1)(50)[0])


# The evaluation


def test_the_loss_is_the_mean_over_the_targets():
    model, text = GPT(SHAPE, seeded()).eval(), ids(77)
    nats = []
    with torch.no_grad():
        for start in range(0, 76, 16):
            x, y = text[start : start + 16], text[start + 1 : start + 17]
            logits = model(x[None, : len(y)])[0][0]
            nats += F.cross_entropy(logits, y, reduction="none").tolist()
    assert validation_loss(model, text, 16, rows=3) == (pytest.approx(sum(nats) / 76, abs=1e-5), 76)


# The rules

GOOD = {
    "track": "shakespeare", "text": TRACKS["shakespeare"]["text"], "context": 64, "targets": 111_539,
    "seeds": [0, 1, 2, 3, 4], "losses": [1.86, 1.87, 1.865, 1.86, 1.87], "seconds": [5.0] * 5, "reference_seconds": 100.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"track": "moon"}, "not known"),
        ({"text": "0" * 64}, "another text"),
        ({"context": 65}, "context of 65"),
        ({"targets": 100_000}, "100,000 targets"),
        ({"seeds": [0, 1, 2, 3], "losses": [1.8] * 3 + [1.81], "seconds": [5.0] * 4}, "seeds: 4"),
        ({"seeds": [0, 1, 2, 3, 3]}, "twice"),
        ({"losses": [1.6, 1.87, 1.87, 1.88, 1.9]}, "p < 0.01"),
    ],
)
def test_a_record_that_breaks_a_rule_is_refused(tmp_path, changes, word):
    assert objections(GOOD) == []
    with pytest.raises(ValueError, match=f"cannot join.*{word}"):
        put_on_board(GOOD | changes, tmp_path / "board.json")
    assert not list(tmp_path.iterdir())


def test_the_board_is_ordered_by_the_share_of_the_references_time(tmp_path):
    board = tmp_path / "board.json"
    slow_machine = GOOD | {"seconds": [20.0] * 5, "reference_seconds": 1000.0}
    assert [put_on_board(entry, board) for entry in (GOOD, slow_machine, GOOD)] == [1, 1, 2]
    assert [share(entry) for entry in json.loads(board.read_text())] == [0.02, 0.05, 0.05]


@pytest.mark.parametrize("n", sorted(T99))
def test_the_table_of_t_is_students(n):
    """The area beyond t of Student's density with n - 1 degrees of freedom, summed in small steps, is 1%."""
    f = n - 1
    c = math.gamma((f + 1) / 2) / (math.sqrt(f * math.pi) * math.gamma(f / 2))
    step = 1e-3
    middles = ((i + 0.5) * step for i in range(round(T99[n] / step)))
    inside = sum(c * (1 + t**2 / f) ** (-(f + 1) / 2) * step for t in middles)
    assert 0.5 - inside == pytest.approx(0.01, abs=2e-5)


def test_shakespeare_is_the_text_of_the_track(tinyshakespeare):
    raw = tinyshakespeare.read_bytes()
    assert hashlib.sha256(raw).hexdigest() == TRACKS["shakespeare"]["text"]
    n = len(raw.decode())
    assert n - int(0.9 * n) - 1 == TRACKS["shakespeare"]["targets"]
