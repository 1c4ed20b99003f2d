"""Laws of cleaning: what is a duplicate, a bad page or a known text, and what a mixture promises."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanogpt.data import BatchStream, DocumentStream
from nanogpt.labs.corpora import clean
from nanogpt.labs.corpora.mixture import MixedStream, cycle_of
from nanogpt.labs.corpora.stories import stories
from nanogpt.labs.corpora.text import prepare_text
from nanogpt.shards import open_shards
from nanogpt.tokenizer import BPETokenizer

STORIES = [story.text for story in stories(60)]


def test_shingles_and_their_similarity():
    assert clean.shingles("a b c", 2) == {"a b", "b c"} and clean.shingles("a", 2) == set()
    assert clean.similarity({1, 2, 3}, {2, 3, 4}) == 0.5
    assert clean.similarity(set(), set()) == 0, "two texts without a shingle are not alike"


def test_the_share_of_equal_minima_estimates_the_similarity():
    words = [str(n) for n in range(300)]
    for shared in (0, 100, 200, 300):
        a, b = set(words[:300]), set(words[:shared]) | {f"x{n}" for n in range(300 - shared)}
        equal = (clean.signature(a, 1000) == clean.signature(b, 1000)).mean()
        s = clean.similarity(a, b)
        assert abs(equal - s) <= 4 * np.sqrt(s * (1 - s) / 1000), shared


def test_candidates_agree_in_a_band_and_are_all_that_do():
    rng = np.random.default_rng(0)
    signatures = rng.integers(0, 3, (40, 12), dtype=np.uint64)
    bands = signatures.reshape(40, 4, 3)
    expected = {(i, j) for i in range(40) for j in range(i + 1, 40) if (bands[i] == bands[j]).all(1).any()}
    assert expected and clean.candidates(signatures, 4) == expected


def test_of_each_group_of_duplicates_the_first_is_kept():
    near = STORIES[0].replace(".", " indeed.", 1)
    texts = [*STORIES[:20], STORIES[3], near, STORIES[3], "short", "short", "other"]
    kept = clean.without_duplicates(texts, threshold=0.6, bands=28, rows=4)
    assert kept == [*range(20), 23, 25], "two short texts that are equal are one; another short one is not"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("the dog and a cat " * 9, "number of words"),
        ("of the extraordinarily-incomprehensible " * 30, "length of words"),
        ("the # and # cat " * 20, "symbols"),
        ("the and 12 34 567 891 " * 15, "words without letters"),
        ("- the dog and the cat\n" * 20, "bullets"),
        ("Der Hund und die Katze schlafen. " * 20, "common words"),
    ],
)
def test_each_rule_finds_its_page(text, rule):
    assert rule in clean.faults(text)
    assert clean.faults("The dog and the cat slept, and they had a dream with birds. " * 6) == []


def test_overlap_is_the_share_of_known_runs():
    text = STORIES[0]
    assert clean.overlap(text, clean.shingles(f"before {text} behind", 13)) == 1
    assert clean.overlap(text, clean.shingles(STORIES[1], 13)) == 0
    assert clean.overlap("too short", {"too short"}) == 0
    half = " ".join(text.split()[: len(text.split()) // 2])
    assert 0.2 < clean.overlap(text, clean.shingles(half, 13)) < 0.6


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_a_cycle_has_each_source_as_often_as_its_weight_and_spread_evenly(weights):
    cycle, total = cycle_of(weights), sum(weights)
    assert [cycle.count(i) for i in range(len(weights))] == weights
    for n in range(total):
        for i, weight in enumerate(weights):
            assert abs(cycle[:n].count(i) - weight * n / total) < len(weights), "a source comes in a lump"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A shard each of many stories, of few, and of some."""
    tokenizer, made = BPETokenizer.train(STORIES, 300), []
    for texts in (STORIES[:40], STORIES[40:45], STORIES[45:]):
        folder = tmp_path_factory.mktemp("source")
        tokenizer.save(folder / "tokenizer.json")
        (folder / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
        prepare_text(folder / "text.txt", folder, folder / "tokenizer.json", val=0)
        made += open_shards(folder, "train")
    return made


KINDS = [BatchStream, DocumentStream]


def mixed(kind, folders, B, rank=0, world_size=1, T=16, weights=(6, 3, 1)):
    return MixedStream([kind([path], 1, T, seed=3) for path in folders], list(weights), B, rank, world_size)


@pytest.mark.parametrize("kind", KINDS)
def test_the_rows_of_a_source_are_those_of_its_own_stream_in_order(folders, kind):
    stream, alone = mixed(kind, folders, 7), [kind([path], 1, 16, seed=3) for path in folders]
    row, counts = 0, [0, 0, 0]
    for _ in range(60):  # source b begins its second epoch on the way
        for x, y in zip(*stream.next_batch()):
            source, number = stream.place(row)
            assert number == counts[source]
            own_x, own_y = alone[source].next_batch()
            assert torch.equal(x, own_x[0]) and torch.equal(y, own_y[0])
            row, counts[source] = row + 1, counts[source] + 1
    assert counts == [252, 126, 42] and stream.position == row == 420
    assert stream.epochs()[1] == pytest.approx(126 * stream.steps[1] / stream.streams[1].epoch_length)
    assert stream.epochs()[1] > 1


@pytest.mark.parametrize("kind", KINDS)
def test_it_resumes_at_the_same_row_with_another_batch_and_number_of_ranks(folders, kind):
    straight, begun = mixed(kind, folders, 12), mixed(kind, folders, 4, rank=1, world_size=3)
    for _ in range(3):
        straight.next_batch()
        begun.next_batch()
    state = json.loads(json.dumps(begun.state_dict()))
    parts = [mixed(kind, folders, 6, rank, 2) for rank in (0, 1)]
    for part in parts:
        part.load_state_dict(state)
    for _ in range(5):
        x = torch.cat([part.next_batch()[0] for part in parts])
        assert torch.equal(x, straight.next_batch()[0])


def test_a_state_of_another_mixture_is_refused(folders):
    stream = mixed(BatchStream, folders, 2)
    stream.next_batch()
    for what, other in {
        "'T'": mixed(BatchStream, folders, 2, T=8),
        "'weights'": mixed(BatchStream, folders, 2, weights=(5, 4, 1)),
        "'shards'": mixed(BatchStream, folders[::-1], 2),
        "'counts'": mixed(DocumentStream, folders, 2),
    }.items():
        with pytest.raises(ValueError, match=what):
            other.load_state_dict(stream.state_dict())
        assert other.position == 0


@pytest.mark.parametrize(
    ("weights", "rank", "T", "says"),
    [
        ([1, 2], 0, 16, "3 streams"),
        ([0.5, 0.3, 0.2], 0, 16, "3 streams"),
        ([1, 0, 2], 0, 16, "3 streams"),
        ([1] * 3, 2, 16, "rank"),
        ([1] * 3, 0, 8, "T"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(folders, weights, rank, T, says):
    streams = [BatchStream([path], 1, T if i == 1 else 16) for i, path in enumerate(folders)]
    with pytest.raises(ValueError, match=says):
        MixedStream(streams, weights, 2, rank=rank, world_size=2)
