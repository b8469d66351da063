"""Buckets by length: every sample once, its label at its last step, and little padding."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_mp.data.buckets import BucketSplit, bucket_bounds


def split_of(lengths: list[int], buckets: int, seed: int | None = 5) -> BucketSplit:
    # A sequence counts up from 100 times its number, so that every value says where it is from.
    sequences = [100 * number + np.arange(length, dtype=np.int32) for number, length in enumerate(lengths)]
    labels = np.arange(len(lengths), dtype=np.int32) % 7
    return BucketSplit(sequences, labels, bucket_bounds(np.array(lengths), buckets), seed)


@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=17),
    buckets=st.integers(1, 5),
    ranks=st.integers(1, 4),
    rows=st.integers(1, 4),
)
@settings(max_examples=200, deadline=None)
def test_every_sample_is_scored_once_at_its_last_step(lengths: list[int], buckets: int, ranks: int, rows: int) -> None:
    split = split_of(lengths, buckets)
    scored, shapes = [], []
    for rank in range(ranks):
        batches = list(split.batches(2, ranks * rows, rank * rows, rows))
        shapes.append([batch.inputs.shape for batch in batches])
        for batch in batches:
            assert batch.reset.all()
            assert batch.sequence is not None
            assert batch.inputs.shape[1] in split.bounds
            for row, which in enumerate(batch.sequence):
                at = np.flatnonzero(batch.weight[row])
                assert len(at) == (which >= 0)
                if which >= 0:
                    assert batch.inputs[row, : at[0] + 1].tolist() == split.sequences[which].tolist()
                    assert batch.targets[row, at[0]] == which % 7
                    scored.append(int(which))
    assert all(shape == shapes[0] for shape in shapes)
    assert len(shapes[0]) == split.steps(2, ranks * rows) == -(-len(lengths) // (ranks * rows))
    assert sorted(scored) == list(range(len(lengths)))


def test_long_sequences_keep_their_end_and_empty_ones_count_nothing() -> None:
    sequences = [np.arange(10, dtype=np.int32), np.empty(0, np.int32)]
    split = BucketSplit(sequences, np.array([1, 1], np.int32), np.array([4]), None)
    batch = next(split.batches(0, 2, 0, 2))
    assert batch.inputs.tolist() == [[6, 7, 8, 9], [0, 0, 0, 0]]
    assert batch.weight.tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]


def test_features_keep_their_type() -> None:
    series = [np.ones((length, 3), np.float32) for length in (2, 5)]
    split = BucketSplit(series, np.array([0, 1], np.int32), np.array([5]), None)
    batch = next(split.batches(0, 2, 0, 2))
    assert batch.inputs.shape == (2, 5, 3)
    assert batch.inputs.dtype == np.float32
    assert batch.inputs.sum() == 21


def test_training_is_reshuffled_and_start_step_skips() -> None:
    split = split_of(list(range(1, 60)), 4)
    epochs = [split.plan(epoch, 8).sequence for epoch in range(3)]
    assert (epochs[0] != epochs[1]).any()
    assert (epochs[1] != epochs[2]).any()
    whole, rest = list(split.batches(1, 8, 2, 3)), list(split.batches(1, 8, 2, 3, start_step=3))
    assert len(rest) == len(whole) - 3
    for left, right in zip(whole[3:], rest, strict=True):
        np.testing.assert_array_equal(left.inputs, right.inputs)
    held_out = split_of(list(range(1, 60)), 4, seed=None)
    assert (held_out.plan(0, 8).sequence == held_out.plan(1, 8).sequence).all()


def test_buckets_save_padding() -> None:
    lengths = np.random.default_rng(1).integers(5, 200, 600).tolist()

    def padded(buckets: int) -> int:
        split = split_of(lengths, buckets)
        return int(split.plan(0, 16).length.sum()) * 16

    assert padded(6) < 0.75 * padded(1)
    assert padded(6) >= sum(lengths)


def test_bounds() -> None:
    assert bucket_bounds(np.array([3, 3, 3]), 4).tolist() == [3]
    assert bucket_bounds(np.array([0]), 1).tolist() == [1]
    assert bucket_bounds(np.arange(1, 101), 4).tolist() == [25, 50, 75, 100]
    with pytest.raises(ValueError, match="at least one bucket"):
        bucket_bounds(np.array([3]), 0)
