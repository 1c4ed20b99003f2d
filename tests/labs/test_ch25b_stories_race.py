"""Chapter 25b: the stories are evaluated whole, chapter 07's recipe is chapter 07's, and nobody gets below the floor."""

import numpy as np
import pytest
import torch

from nanogpt.data import DocumentStream
from nanogpt.labs.corpora.stories import ensure_corpus
from nanogpt.labs.speedrun.record import TRACKS, objections, put_on_board
from nanogpt.labs.speedrun.stories_race import CONTEXT, chapter_07, story_batches, text_of
from nanogpt.model import GPT, GPTConfig
from nanogpt.shards import open_shards, read_shard
from nanogpt.training import scale_init, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """300 stories."""
    place = tmp_path_factory.mktemp("race") / "stories"
    ensure_corpus(place, n=300)
    return place


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_story_fits_into_a_row(folder, split):
    tokens = read_shard(open_shards(folder, split)[0])
    starts = np.flatnonzero(tokens == tokens[0])  # <|endoftext|>
    assert np.diff([*starts, len(tokens)]).max() <= CONTEXT


def test_batches_are_training_stories_and_the_seed_decides_their_order(folder):
    deal = story_batches(folder, seed=3)
    x, y = deal(5)
    assert x.shape == (5, CONTEXT) and torch.equal(x[:, 1:], y[:, :-1]) and (x[:, 0] == x[0, 0]).all()
    more = deal(2)[0]
    theirs = DocumentStream(open_shards(folder, "train"), 7, CONTEXT, seed=3).next_batch()[0]
    assert torch.equal(torch.cat([x, more]), theirs), "rows follow each other whatever the batch"
    assert not torch.equal(x, story_batches(folder, seed=4)(5)[0])


def test_the_reference_makes_chapter_07s_steps(folder):
    """Beside the function of the package, which has grown a weight decay of 0.01 since: nothing in so few steps."""
    *_, (ours, _) = chapter_07(1024, story_batches(folder, 2), 6, seed=5)
    theirs = scale_init(GPT(GPTConfig(CONTEXT, 1024, 2, 4, 128), torch.Generator().manual_seed(5)))
    train(theirs, DocumentStream(open_shards(folder, "train"), 4, CONTEXT, seed=2), 6, 5e-4, decay=0.5)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=5e-4), "another step than chapter 07's"


# The rules

STORIES = TRACKS["stories"]
GOOD = {
    "track": "stories", "text": STORIES["text"], "context": CONTEXT, "targets": STORIES["targets"], "seeds": [0, 1, 2, 3, 4],
    "losses": [0.510, 0.511, 0.509, 0.510, 0.510], "seconds": [20.0] * 5, "reference_seconds": 100.0,
}  # fmt: skip


def test_a_record_below_the_floor_of_the_stories_is_refused(tmp_path):
    assert objections(GOOD) == []
    with pytest.raises(ValueError, match=r"cannot join.*no model can be below the floor"):
        put_on_board(GOOD | {"losses": [0.47, 0.47, 0.48, 0.47, 0.48]}, tmp_path / "board.json")


def test_both_tracks_stand_on_one_board_each_in_its_order(tmp_path):
    board = tmp_path / "board.json"
    other = GOOD | {"track": "shakespeare", "text": TRACKS["shakespeare"]["text"], "context": 64}
    other |= {"targets": 111_539, "losses": [1.86, 1.87, 1.865, 1.86, 1.87], "seconds": [1.0] * 5}
    entries = GOOD, other, GOOD | {"seconds": [30.0] * 5}
    assert [put_on_board(entry, board) for entry in entries] == [1, 1, 2]


def test_a_story_text_has_one_name_and_another_text_another(folder, tmp_path):
    ensure_corpus(tmp_path / "other", n=300, seed=1)
    assert text_of(folder) == text_of(folder) != text_of(tmp_path / "other")


def test_the_bar_is_five_per_cent_above_the_floor():
    assert STORIES["bar"] == pytest.approx(1.05 * STORIES["floor"], abs=1e-5)


@pytest.mark.slow
def test_the_track_is_that_of_the_courses_stories(tmp_path):
    manifest = ensure_corpus(tmp_path)
    assert text_of(tmp_path) == STORIES["text"]
    assert manifest["floor"] == pytest.approx(STORIES["floor"], abs=1e-5)
    assert manifest["splits"]["val"]["tokens"] - 1 == STORIES["targets"]
