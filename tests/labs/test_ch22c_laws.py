"""Chapter 22c: runs of several lengths from one trunk, and the law fitted to their losses."""

import json

import numpy as np
import pytest
import torch
from conftest import ROOT

from nanogpt.data import DocumentStream
from nanogpt.evaluate import evaluate
from nanogpt.labs.corpora.stories import ensure_corpus, stories
from nanogpt.labs.evals.excess import perfect_reader
from nanogpt.labs.plan import laws
from nanogpt.labs.plan.laws import DELTA, Law, best_law, fit_law, held_out, losses_after, shape
from nanogpt.model import GPT
from nanogpt.optim import make_optimizer, wsd
from nanogpt.shards import load_manifest, open_shards
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init, train_step

RECORD = json.loads((ROOT / "data/measurements/scaling.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stories")
    ensure_corpus(folder, BPETokenizer.train((s.text for s in stories(50)), 300), n=300)
    return folder


@pytest.fixture(scope="module")
def held(folder):
    return held_out(BPETokenizer.load(folder / "tokenizer.json"), n=8)


def test_the_floor_is_what_a_perfect_reader_pays(folder, held):
    tokenizer = BPETokenizer.load(folder / "tokenizer.json")
    costs = [cost for story in stories(8, 1_000_003) for cost, _ in perfect_reader(story.text, tokenizer)]
    assert held[1] == pytest.approx(np.mean(costs), rel=1e-9) and len(held[0]) == len(costs) + 1


def test_it_is_the_plain_loop(folder, held):
    """One run of 12 steps, written out: warm-up, constant, and the fall."""
    stream = DocumentStream(open_shards(folder, "train"), laws.ROWS, laws.T, seed=3)
    model = scale_init(GPT(shape(8, stream.vocab_size), torch.Generator().manual_seed(3)))
    optimizer = make_optimizer(model, laws.RATE / 8)
    for step in range(12):
        for group in optimizer.param_groups:
            group["lr"] = laws.RATE / 8 * wsd(step, 12, warmup=laws.WARMUP, decay=laws.DECAY)
        train_step(model, optimizer, [stream.next_batch()], clip=1.0)
    assert losses_after(8, [6144], folder, held[0], seed=3)[6144] == evaluate(model, [held[0]], stream.eot)


def test_with_a_constant_rate_it_is_the_trunk(folder, held):
    both = losses_after(8, [2048, 6144], folder, held[0], decay=0.0)
    assert both[6144] == losses_after(8, [6144], folder, held[0], decay=0.0)[6144]
    assert both[6144] != losses_after(8, [6144], folder, held[0])[6144]


N, D = (each.flatten() for each in np.meshgrid([1e4, 3e4, 1e5, 4e5], [1e5, 3e5, 1e6]))
LAWS = [Law(1.69, 406.4, 0.34, 410.7, 0.28), Law(0.55, 2e3, 0.85, 9e3, 0.8)]
LAWS += [Law(1.8172, 482.01, 0.3478, 2085.43, 0.3658)]


@pytest.mark.parametrize("law", LAWS)
def test_a_law_is_found_again_from_its_losses(law):
    found = best_law(N, D, law.loss(N, D))
    assert list(vars(found).values()) == pytest.approx(list(vars(law).values()), rel=1e-3)
    known = best_law(N, D, law.loss(N, D), E=law.E)
    assert pytest.approx(law.E, rel=1e-12) == known.E and known.alpha == pytest.approx(law.alpha, rel=1e-4)


def noisy(law, seed=0):
    return law.loss(N, D) * np.exp(0.02 * np.random.default_rng(seed).standard_normal(len(N)))


def test_no_other_optimiser_gets_lower():
    """PyTorch's L-BFGS, which the paper used, from the best fit and from near it."""
    losses = noisy(LAWS[1])
    p, left = fit_law(N, D, losses)
    x, y, target = (torch.tensor(np.log(each)) for each in (N, D, losses))
    for away in (0.0, 0.01):
        q = torch.tensor(p[left.argmin()] * (1 + away), requires_grad=True)
        how = {"max_iter": 500, "line_search_fn": "strong_wolfe", "tolerance_change": 1e-14}
        optimizer = torch.optim.LBFGS([q], **how)

        def closure(q=q, optimizer=optimizer):
            optimizer.zero_grad()
            e = q[4].expand(len(x))
            said = torch.logsumexp(torch.stack([q[0] - q[1] * x, q[2] - q[3] * y, e]), 0)
            loss = torch.nn.functional.huber_loss(said, target, reduction="sum", delta=DELTA)
            loss.backward()
            return loss

        optimizer.step(closure)
        assert closure().item() > left.min() * (1 - 1e-4)


def test_a_weight_of_two_is_the_run_twice():
    losses, weights = noisy(LAWS[0]), np.ones(len(N))
    weights[[2, 7]] = 2
    twice = [np.append(each, each[[2, 7]]) for each in (N, D, losses)]
    one, other = fit_law(N, D, losses, weights=weights)[1].min(), fit_law(*twice)[1].min()
    assert one == pytest.approx(other, rel=1e-3) and one > fit_law(N, D, losses)[1].min()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("flops", [1e15, 1e21])
def test_no_other_size_is_better_for_a_budget(law, flops):
    n, d = law.best(flops)
    assert 6 * n * d == pytest.approx(flops)
    assert law.loss(n, d) < min(law.loss(1.05 * n, d / 1.05), law.loss(n / 1.05, 1.05 * d))


def test_five_numbers_take_five_runs():
    losses = LAWS[1].loss(N, D)
    with pytest.raises(ValueError, match=r"4.*5"):
        best_law(N[:4], D[:4], losses[:4])
    assert pytest.approx(0.55) == best_law(N[2:7], D[2:7], losses[2:7], E=0.55).E


@pytest.mark.slow
def test_a_recorded_run_is_made_again():
    data = ROOT / "data/built/stories"
    ensure_corpus(data)
    assert load_manifest(data)["vocab_size"] == 1024
    ids, floor = held_out(BPETokenizer.load(data / "tokenizer.json"))
    run = next(run for run in RECORD["runs"] if run["width"] == 8 and run["seed"] == 0)
    assert floor == pytest.approx(RECORD["floor"])
    assert losses_after(8, [run["tokens"]], data, ids)[run["tokens"]] == pytest.approx(run["loss"], abs=0.05)
