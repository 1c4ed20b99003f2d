import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt.evaluate import evaluating
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.evals import hellaswag
from nanogpt.labs.evals.accuracy import answer_accuracy
from nanogpt.model import GPT, GPTConfig
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init

COURSE = Path(__file__).parents[2] / "nanogpt/resources/hellaswag_course.jsonl"
TOKENIZER = BPETokenizer.train(COURSE.read_text(encoding="utf-8"), 400)
SIZES = {"block_size": 128, "vocab_size": TOKENIZER.vocab_size, "n_layer": 2, "n_head": 2, "n_embd": 32}
CONFIG = GPTConfig(**SIZES, dropout=0.5)
ITEMS = hellaswag.load_items(COURSE)


def new_model(**changes) -> GPT:
    config = GPTConfig(**{**vars(CONFIG), **changes})
    return scale_init(GPT(config, torch.Generator().manual_seed(0)))


@torch.no_grad()
def plainly(model: GPT, context: list[int], endings: list[list[int]]) -> list[tuple[float, int]]:
    """Each ending's nats, and its tokens that are not first choice, in a forward pass of its own."""
    found, context = [], hellaswag.fitting(context, endings, model.config.block_size)
    with evaluating(model):
        for ending in endings:
            ids = torch.tensor([context + ending])
            logits, y = model(ids[:, :-1])[0][0, len(context) - 1 :], torch.tensor(ending)
            nats = F.cross_entropy(logits, y, reduction="sum").item()
            found.append((nats, int((logits.argmax(-1) != y).sum())))
    return found


def assert_same(model: GPT, asked: list, batch: int) -> None:
    for (context, endings), scores in zip(asked, hellaswag.score_ids(model, asked, batch=batch)):
        expected = plainly(model, context, endings)
        for (nats, wrong), (wanted, wrong_ones) in zip(scores, expected, strict=True):
            assert nats == pytest.approx(wanted, rel=1e-4, abs=1e-3) and wrong == wrong_ones
    assert model.training, "evaluation changed the model's mode"


@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.lists(st.integers(1, 12), min_size=1, max_size=5)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)
def test_scores_and_choices_are_those_of_one_ending_at_a_time(shapes, batch):
    rng = np.random.default_rng(0)
    ids = lambda n: rng.integers(0, 50, n).tolist()  # noqa: E731
    asked = [(ids(n), [ids(m) for m in endings]) for n, endings in shapes]
    assert_same(new_model(block_size=16, vocab_size=50), asked, batch)  # many contexts are cut


def test_log_likelihoods_are_in_the_requests_order_and_greedy_is_where_all_tokens_are_first_choice():
    """Of a new model also the first choice is expensive: cheap is not greedy."""
    model, asked = new_model(), [hellaswag.example_ids(item, TOKENIZER) for item in ITEMS[:4]]
    requests = [("", context, ending) for context, endings in asked for ending in endings]
    for context, _ in asked:
        with torch.no_grad(), evaluating(model):
            best = model(torch.tensor([context]))[0][0, -1].argmax().item()
        requests += [("", context, [best]), ("", context, [best, best])]
    requests = requests[::3] + requests[1::3] + requests[2::3]
    found = hellaswag.log_likelihoods(model, requests)
    for (_, context, ending), (value, greedy) in zip(requests, found, strict=True):
        [(nats, wrong)] = plainly(model, context, [ending])
        assert value == pytest.approx(-nats, rel=1e-4) and greedy == (wrong == 0)
    assert 4 <= sum(greedy for _, greedy in found) < len(found)


class Letters:
    """One token for two characters of Latin-1."""

    encode = staticmethod(lambda text: list(text.encode("latin-1"))[::2])


def test_accuracies_divide_by_nothing_characters_bytes_and_tokens(monkeypatch):
    items = [{"ctx": "a", "endings": ["xxxxx", "éé", "xxx"], "label": label} for label in (2, 0, 0, 0)]
    nats = [[7.0, 2.5, 5.0], [7.0, 7.0, 4.5], [5.5, 2.5, 8.0], [6.0, 6.0, 4.5]]
    # chosen by the sum: 1, 2, 1, 2; characters (5, 2, 3): 1, 0, 0, 0; bytes (5, 4, 3): 1, 0, 1, 0;
    # tokens with the space (3, 2, 2): 1, 2, 1, 0
    monkeypatch.setattr(hellaswag, "score", lambda *_, **__: nats)
    found = hellaswag.accuracy(None, items, Letters)
    shares = {k: v for k, v in found.items() if "stderr" not in k}
    assert shares == {"n": 4, "acc": 0.0, "acc_norm": 0.75, "acc_bytes": 0.5, "acc_tokens": 0.25}
    assert found["acc_stderr"] == 0 and found["acc_norm_stderr"] == pytest.approx((0.75 * 0.25 / 3) ** 0.5)


def test_no_choice_is_made_from_what_is_no_number():
    """Of four NaNs argmin is 0: a broken model would have the share of questions whose label is 0."""
    model = new_model(block_size=256)
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="NaN"):
        hellaswag.accuracy(model, ITEMS[:4], TOKENIZER)
    with pytest.raises(FloatingPointError, match="NaN"):
        answer_accuracy(model, list(stories(3)), TOKENIZER)


def test_of_a_context_that_is_too_long_the_end_is_kept_and_an_ending_that_is_too_long_is_refused():
    assert hellaswag.fitting([1, 2, 3, 4, 5], [[6, 7], [8]], 4) == [3, 4, 5]
    assert hellaswag.fitting([1, 2, 3], [[6, 7], [8]], 9) == [1, 2, 3]
    with pytest.raises(ValueError, match=r"17.*16"):
        hellaswag.score_ids(new_model(block_size=16), [([1], [[2] * 17])])


def test_autocast_scores_nearly_the_same():
    model = new_model()
    plain, cast = (hellaswag.score(model, ITEMS[:6], TOKENIZER, precision=p) for p in ("float32", "bf16"))
    assert np.allclose(plain, cast, rtol=0.05) and plain != cast


QUESTION = {"ctx": "A man sits on a roof. He", "endings": ["a", "b", "c", "d"], "label": 0}


@pytest.mark.parametrize("line", ["no json", "{}", json.dumps(QUESTION | {"label": 4})])
def test_a_line_that_is_no_question_is_named(tmp_path, line):
    (path := tmp_path / "some.jsonl").write_text(json.dumps(QUESTION) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"some.jsonl, line 2"):
        hellaswag.load_items(path)
    path.write_text("")
    with pytest.raises(ValueError, match="holds no question"):
        hellaswag.load_items(path)


def test_questions_are_read_as_json_lines_are(tmp_path):
    """The hub's export has the label as text; a line ends with "\\n" alone; an editor may begin the file with a mark."""
    question = QUESTION | {"ctx": "sits\u2028on\x85a roof", "label": "0"}
    text = "\n".join([json.dumps(question, ensure_ascii=False)] * 3) + "\n\n"
    (tmp_path / "items.jsonl").write_text(text, encoding="utf-8-sig", newline="")
    assert hellaswag.load_items(tmp_path / "items.jsonl") == [question | {"label": 0}] * 3
