import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import in_our_words

from nanogpt.evaluate import evaluating
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.evals import hellaswag
from nanogpt.labs.evals.accuracy import answer_accuracy
from nanogpt.labs.evals.hellaswag import accuracy, example_ids, fitting, load_items, score, score_ids
from nanogpt.model import GPT, GPTConfig
from nanogpt.tokenizer import BPETokenizer
from nanogpt.training import scale_init

COURSE = Path(__file__).parents[2] / "nanogpt/resources/hellaswag_course.jsonl"
TOKENIZER = BPETokenizer.train(COURSE.read_text(encoding="utf-8"), 400)
CONFIG = GPTConfig(
    block_size=128, vocab_size=TOKENIZER.vocab_size, n_layer=2, n_head=2, n_embd=32, dropout=0.5
)
ITEMS = load_items(COURSE)


def new_model(**changes) -> GPT:
    config = GPTConfig(**{**vars(CONFIG), **changes})
    return scale_init(GPT(config, torch.Generator().manual_seed(0)))


@torch.no_grad()
def plainly(model: GPT, context: list[int], endings: list[list[int]]) -> list[tuple[float, int]]:
    """Each ending's nats, and its tokens that are not first choice, in a forward pass of its own."""
    found, context = [], fitting(context, endings, model.config.block_size)
    with evaluating(model):
        for ending in endings:
            ids = torch.tensor([context + ending])
            logits, y = model(ids[:, :-1])[0][0, len(context) - 1 :], torch.tensor(ending)
            nats = F.cross_entropy(logits, y, reduction="sum").item()
            found.append((nats, int((logits.argmax(-1) != y).sum())))
    return found


def assert_same(model: GPT, asked: list, batch: int) -> None:
    for (context, endings), scores in zip(asked, score_ids(model, asked, batch=batch)):
        expected = plainly(model, context, endings)
        assert [nats for nats, _ in scores] == pytest.approx(
            [nats for nats, _ in expected], rel=1e-4, abs=1e-3
        )
        assert [wrong for _, wrong in scores] == [wrong for _, wrong in expected]


@pytest.mark.parametrize("batch", [1, 5, 48])
def test_scores_and_choices_are_those_of_one_ending_at_a_time(batch):
    model, asked = new_model(), [example_ids(item, TOKENIZER) for item in ITEMS]
    assert_same(model, asked, batch)
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
def test_any_lengths_and_any_number_of_endings(shapes, batch):
    rng = np.random.default_rng(0)
    ids = lambda n: rng.integers(0, 50, n).tolist()  # noqa: E731
    asked = [(ids(n), [ids(m) for m in endings]) for n, endings in shapes]
    assert_same(new_model(block_size=16, vocab_size=50), asked, batch)  # many contexts are cut


def test_an_ending_sees_the_context_and_itself_and_no_other_ending():
    model, (context, endings) = new_model(), example_ids(ITEMS[0], TOKENIZER)
    alone = score_ids(model, [(context, endings[:1])])[0][0][0]
    beside = score_ids(model, [(context, [endings[0], *endings[2:], [5] * 30])])[0][0][0]
    assert alone == pytest.approx(beside, rel=1e-5)
    other = score_ids(model, [([7, *context[1:]], endings[:1])])[0][0][0]
    assert abs(other - alone) > 1e-3


def test_of_a_context_that_is_too_long_the_end_is_kept():
    assert fitting([1, 2, 3, 4, 5], [[6, 7], [8]], 4) == [3, 4, 5]
    assert fitting([1, 2, 3], [[6, 7], [8]], 9) == [1, 2, 3]


class Letters:
    """One token a character of Latin-1."""

    encode = staticmethod(lambda text: list(text.encode("latin-1")))


def test_accuracies_divide_by_nothing_characters_bytes_and_tokens(monkeypatch):
    items = [{"ctx": "a", "endings": ["xxxx", "éé", "xx"], "label": label} for label in (1, 0, 0, 1)]
    nats = [[4.0, 2.4, 1.9], [4.0, 3.0, 3.0], [4.2, 9.0, 2.2], [4.0, 2.4, 1.9]]
    # chosen by the sum: 2, 1, 2, 2; characters (4, 2, 2): 2, 0, 0, 2; bytes (4, 4, 2): 1, 1, 0, 1;
    # tokens with the space (5, 3, 3): 2, 0, 2, 2
    monkeypatch.setattr(hellaswag, "score", lambda *_, **__: nats)
    found = accuracy(None, items, Letters)
    shares = {k: v for k, v in found.items() if "stderr" not in k}
    assert shares == {"n": 4, "acc": 0.0, "acc_norm": 0.5, "acc_bytes": 0.75, "acc_tokens": 0.25}
    assert found["acc_stderr"] == 0 and found["acc_norm_stderr"] == pytest.approx((0.25 / 3) ** 0.5)


def test_the_order_of_results_is_that_of_the_questions():
    model = new_model()
    forward = score(model, ITEMS[:10], TOKENIZER, batch=3)
    backward = score(model, ITEMS[:10][::-1], TOKENIZER, batch=4)
    assert np.allclose(np.array(forward), np.array(backward)[::-1], rtol=1e-4)


def test_autocast_scores_nearly_the_same():
    model = new_model()
    plain, cast = (score(model, ITEMS[:6], TOKENIZER, precision=p) for p in ("float32", "bf16"))
    assert np.allclose(plain, cast, rtol=0.05) and plain != cast


def test_the_courses_questions_have_hellaswags_format():
    keys = {"ind", "activity_label", "ctx_a", "ctx_b", "ctx", "split", "label", "endings", "source_id"}
    assert len(ITEMS) >= 40 and [item["ind"] for item in ITEMS] == list(range(len(ITEMS)))
    for item in ITEMS:
        assert item.keys() == keys and item["ctx"] == f"{item['ctx_a']} {item['ctx_b']}"
        assert len(set(item["endings"])) == 4 and item["ctx"] == item["ctx"].strip()
    counts = np.bincount([item["label"] for item in ITEMS])
    assert counts.max() - counts.min() <= 1 and any(not item["ctx"].isascii() for item in ITEMS)
    lengths = [[len(e) for e in item["endings"]] for item in ITEMS]
    for pick in (np.argmin, np.argmax):  # length alone must not give the answers away
        assert np.mean([pick(row) == item["label"] for row, item in zip(lengths, ITEMS)]) < 0.5


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[]",
        "{}",
        '{"ctx": "a", "endings": ["b"], "label": 1}',
        '{"ctx": "", "endings": ["b"], "label": 0}',
    ],
)
def test_a_line_that_is_no_question_is_one_clear_error(tmp_path, line):
    path = tmp_path / "some.jsonl"
    path.write_text(json.dumps(ITEMS[0]) + "\n" + line + "\n")
    with pytest.raises(ValueError, match=r"some.jsonl, line 2: a question needs"):
        load_items(path)
    path.write_text("")
    with pytest.raises(ValueError, match="holds no question"):
        load_items(path)


def test_an_ending_longer_than_the_context_is_one_clear_error():
    says = in_our_words(fitting, "17 tokens does not fit into block_size=16", "17.*16")
    with pytest.raises(ValueError, match=says):
        score_ids(new_model(block_size=16), [([1], [[2] * 17])])
    assert len(score_ids(new_model(block_size=16), [([1] * 40, [[2] * 16])])) == 1
    with pytest.raises(ValueError, match="batch=0 must be at least 1"):
        score_ids(new_model(), [([1], [[2]])], batch=0)


def test_the_downloaded_set_comes_first(tmp_path, monkeypatch):
    assert hellaswag.REAL.name == "hellaswag_val.jsonl"
    monkeypatch.setattr(hellaswag, "REAL", tmp_path / "real.jsonl")
    monkeypatch.setattr(hellaswag, "COURSE", COURSE)
    assert hellaswag.default_items() == COURSE and len(load_items()) == len(ITEMS)
    hellaswag.REAL.write_text(json.dumps(ITEMS[3]))
    assert load_items() == [ITEMS[3]]


@pytest.mark.parametrize(
    "change, encoding",
    [
        ({"ctx": "sits\u2028on a roof"}, "utf-8"),
        ({"ctx": "sits\x85on"}, "utf-8"),
        ({"label": "0"}, "utf-8"),
        ({}, "utf-8-sig"),
    ],
)
def test_questions_are_read_as_json_lines_are(tmp_path, change, encoding):
    item = {"ctx": "A man sits on a roof. He", "endings": ["a", "b", "c", "d"], "label": 0} | change
    text = "\n".join([json.dumps(item, ensure_ascii=False)] * 3) + "\n\n"
    (tmp_path / "items.jsonl").write_text(text, encoding=encoding, newline="")
    assert load_items(tmp_path / "items.jsonl") == [item | {"label": 0}] * 3


@pytest.mark.parametrize("label", [4, -1, 1.5, "x", None])
def test_a_label_is_one_of_the_endings(tmp_path, label):
    item = {"ctx": "A man", "endings": ["a", "b", "c", "d"], "label": label}
    (tmp_path / "items.jsonl").write_text(json.dumps(item))
    with pytest.raises(ValueError, match="line 1: a question needs"):
        load_items(tmp_path / "items.jsonl")


def test_no_choice_is_made_from_what_is_no_number():
    """Of four NaNs argmin is 0: a broken model would have the share of questions whose label is 0."""
    model = new_model()
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.weight[0, 0] = torch.nan
    with pytest.raises(FloatingPointError, match="NaN"):
        accuracy(model, ITEMS[:4], TOKENIZER)
    told = [story for story in stories(3)]
    with pytest.raises(FloatingPointError, match="NaN"):
        answer_accuracy(new_broken(), told, STORY_TOKENIZER)


STORY_TOKENIZER = BPETokenizer.train((story.text for story in stories(50)), 300)


def new_broken() -> GPT:
    model = GPT(GPTConfig(block_size=256, vocab_size=300, n_layer=1, n_head=2, n_embd=16))
    with torch.no_grad():
        model.transformer.ln_f.weight[0] = torch.nan
    return model
