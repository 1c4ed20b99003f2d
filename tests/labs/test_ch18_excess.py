import math

import numpy as np
import pytest
import torch

from nanogpt.evaluate import token_losses
from nanogpt.labs.corpora.stories import Pick, stories
from nanogpt.labs.evals.excess import KINDS, Floor, Reading, next_words, perfect_reader
from nanogpt.labs.evals.floor import readings
from nanogpt.model import GPT, GPTConfig
from nanogpt.tokenizer import BPETokenizer

TOLD = list(stories(60, seed=3))
TOKENIZER = BPETokenizer.train((story.text for story in stories(300)), 500)
BYTES = BPETokenizer([bytes([b]) for b in range(256)])


@pytest.mark.parametrize("tokenizer", [TOKENIZER, BYTES], ids=["bpe", "bytes"])
def test_the_floors_of_a_storys_tokens_add_up_to_its_own_probability(tokenizer):
    for story in TOLD[:20]:
        costs = [cost for cost, _ in perfect_reader(story.text, tokenizer)]
        assert len(costs) == len(tokenizer.encode(story.text)) + 1
        assert sum(costs) == pytest.approx(-story.logprob, abs=1e-9)
        assert min(costs) > -1e-9


def test_next_words_are_a_distribution_and_an_unambiguous_story_leaves_one_reading():
    story = next(story for story in TOLD if len(readings(story.text)) == 1)
    some, heard = [Reading(((Pick("story"), ""),))], 1.0
    for word in [*story.text.replace(" ", "\0 ").split("\0"), ""]:
        after = next_words(some)
        assert sum(r.p for known in after.values() for r in known) == pytest.approx(heard)
        some = after[word]
        heard = sum(r.p for r in some)
    assert len(some) == 1 and math.log(heard) == pytest.approx(story.logprob)
    assert "".join(words for words, _ in some[0].marks) == story.text


def test_a_token_costs_what_all_stories_say_that_go_on_with_it():
    """By counting: of many stories' first words, the share of each."""
    firsts = [story.text.split(" ")[0] for story in stories(20_000, seed=5)]
    words = next_words([Reading(((Pick("story"), ""),))])
    for word, known in words.items():
        p = sum(r.p for r in known)
        assert firsts.count(word) / len(firsts) == pytest.approx(p, abs=4 * math.sqrt(p / len(firsts)))


def test_answers_have_their_kinds_and_cost_the_perfect_reader_nothing_where_computed():
    seen = set()
    for story in TOLD:
        ends = np.cumsum([len(TOKENIZER.tokens[i]) for i in TOKENIZER.encode(story.text)])
        costs = perfect_reader(story.text, TOKENIZER)
        for (start, end), kind in zip(story.answers, story.kinds):
            some = costs[np.searchsorted(ends, start + 1) : np.searchsorted(ends, end) + 1]
            assert {k for _, k in some} == {f"counts, {kind}"}
            assert kind == "copied" or sum(cost for cost, _ in some) == pytest.approx(0, abs=1e-9)
            seen.add(kind)
    assert seen == {"copied", "computed"}


def test_kinds_are_told_by_the_part_of_the_grammar():
    text = next(story.text for story in TOLD if " had " in story.text)
    told = perfect_reader(text, TOKENIZER)
    assert {kind for _, kind in told} <= set(KINDS) and told[-1] == (pytest.approx(0), "the end")
    assert max(cost for cost, kind in told if kind == "fixed words") < 1e-9


def test_the_parts_add_up_to_the_whole_excess():
    config = GPTConfig(block_size=64, vocab_size=TOKENIZER.vocab_size, n_layer=1, n_head=2, n_embd=16)
    model = GPT(config, torch.Generator().manual_seed(0))
    floor = Floor.of((story.text for story in TOLD), TOKENIZER)
    nats = token_losses(model, floor.ids, TOKENIZER.eot)
    parts = floor.excess(nats)
    whole = (nats.sum() + sum(story.logprob for story in TOLD)) / len(TOLD)
    assert set(parts) == set(KINDS) and sum(parts.values()) == pytest.approx(whole, abs=1e-9)
    assert whole > 0 and len(floor.nats) == len(floor.ids) - 1 == len(floor.kinds)
    assert floor.excess(floor.nats) == dict.fromkeys(KINDS, 0)
    assert sum(floor.by_kind(np.ones(len(floor.nats))).values()) * len(TOLD) == pytest.approx(len(floor.nats))


def test_a_text_that_the_grammar_does_not_tell_is_one_clear_error():
    story = TOLD[0].text
    with pytest.raises(ValueError, match="tells no story with ' rocket'"):
        perfect_reader(story.split(" ")[0] + " rocket", TOKENIZER)
    with pytest.raises(ValueError, match="tells no story with ''"):
        perfect_reader(story.rsplit(" ", 3)[0], TOKENIZER)  # ends too early
