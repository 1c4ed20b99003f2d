"""Chapter 03's streams dealt to ranks: what one would read, all together read, and nothing twice."""

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from small_shards import (
    every_document_begins_one_row_an_epoch,
    every_token_is_an_input_once_an_epoch,
    rows_of,
    write_documents,
)

from nanogpt.data import BatchStream, DocumentStream

LENGTHS = st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=1, max_size=4)


def dealt(kind, paths, B, T, size, seed=0) -> list:
    """The streams of `size` ranks."""
    return [kind(paths, B, T, rank, size, seed) for rank in range(size)]


@given(LENGTHS, st.integers(1, 3), st.integers(1, 7), st.integers(1, 4), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_every_token_is_an_input_once_an_epoch(tmp_path_factory, shards, B, T, size, seed):
    assume(sum(map(sum, shards)) > size * B * T)
    paths = write_documents(tmp_path_factory.mktemp("stream"), shards)
    every_token_is_an_input_once_an_epoch(dealt(BatchStream, paths, B, T, size, seed), paths)


@given(LENGTHS, st.integers(1, 3), st.integers(1, 30), st.integers(1, 4), st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_every_document_begins_one_row_an_epoch(tmp_path_factory, shards, B, T, size, seed):
    assume(min(map(sum, shards)) > T)  # what is shorter is refused: chapter 03's law
    paths = write_documents(tmp_path_factory.mktemp("documents"), shards)
    every_document_begins_one_row_an_epoch(dealt(DocumentStream, paths, B, T, size, seed), paths)


@pytest.mark.parametrize("kind", [BatchStream, DocumentStream])
def test_the_batch_of_all_ranks_does_not_depend_on_their_number(tmp_path, kind):
    paths = write_documents(tmp_path, [[7, 30, 2, 5, 6], [11] * 9])
    expected = rows_of([kind(paths, 12, 6, seed=2)], 8)
    for size in (2, 3, 4):
        assert (rows_of(dealt(kind, paths, 12 // size, 6, size, seed=2), 8) == expected).all()
    three, two = dealt(kind, paths, 4, 6, 3, seed=2), dealt(kind, paths, 6, 6, 2, seed=99)
    rows_of(three, 3)
    for before, after in zip(three[1:], two):  # the state of any rank is that of all
        after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert (rows_of(two, 5) == expected[36:]).all()


def test_a_step_of_all_ranks_must_fit_and_a_rank_is_one_of_them(tmp_path):
    paths = write_documents(tmp_path, [[5, 8], [4]])
    BatchStream(paths, 2, 4, world_size=2).next_batch()
    with pytest.raises(ValueError, match="17 tokens"):
        BatchStream(paths, 3, 3, world_size=2).next_batch()
    for rank in (2, -1):
        with pytest.raises(ValueError, match=f"{rank}, 2"):
            BatchStream(paths, 1, 1, rank, 2)
