"""Any number of samples on any number of ranks: equal steps, each sample once an epoch, exact resume (no MPI)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_mp.config import CampaignData
from dist_mp.data.base import Batch, Split
from dist_mp.data.buckets import BucketSplit, bucket_bounds
from dist_mp.data.campaign import Campaign
from dist_mp.data.labelled import Scaled
from dist_mp.data.normalise import Normaliser
from dist_mp.data.shots import ShotCache, ShotSplit
from dist_mp.data.text import TextSplit

SHOTS = CampaignData(shots=17, min_steps=5, max_steps=23, profile_points=2, length=7, warning_steps=6)
CAMPAIGN = Campaign(SHOTS)
NORMALISER = Normaliser.fit(CAMPAIGN.shot(index) for index in range(17))
KINDS = ("text", "shots", "words", "series", "images")


def make(kind: str, count: int, seed: int | None) -> Split:
    """A split of `count` samples; every value tells which sample and step it is of."""
    if kind == "text":
        return TextSplit(np.arange(100, 100 + 3 * count + 1, dtype=np.int32), 5)
    if kind == "shots":
        numbers = np.arange(count)
        lengths, disruptive = CAMPAIGN.lengths[:count], CAMPAIGN.disruptive[:count]
        return ShotSplit(ShotCache(CAMPAIGN), NORMALISER, numbers, lengths, disruptive, SHOTS, "hinge", seed)
    labels = np.arange(count, dtype=np.int32) % 3
    lengths = np.array([1 + (5 * i) % 9 for i in range(count)])
    if kind == "words":
        sequences = [np.arange(n, dtype=np.int32) + 100 * i for i, n in enumerate(lengths.tolist())]
        return BucketSplit(sequences, labels, bucket_bounds(lengths, 3), seed)
    if kind == "series":
        sequences = [np.full((n, 2), i, np.float32) for i, n in enumerate(lengths.tolist())]
        return BucketSplit(sequences, labels, bucket_bounds(lengths, 3), seed)
    images = np.repeat(np.arange(count, dtype=np.uint8), 12).reshape(count, 4, 3)
    scaled = Scaled(images, np.arange(count), np.zeros(1, np.float32), np.ones(1, np.float32))
    return BucketSplit(scaled, labels, np.array([4]), seed, np.full(count, 4))


def of_rank(split: Split, epoch: int, ranks: int, rank: int, rows: int, start: int = 0) -> list[Batch]:
    return list(split.batches(epoch, ranks * rows, rank * rows, rows, start))


def seen(kind: str, batches: list[Batch]) -> list[tuple[int, ...]]:
    """What each valid step of the batches is: a predicted word, a step of a shot, or a labelled sample."""
    found: list[tuple[int, ...]] = []
    for batch in batches:
        for row, step in zip(*np.nonzero(batch.weight), strict=True):
            if kind == "text":
                assert batch.targets[row, step] == batch.inputs[row, step] + 1
                found.append((int(batch.targets[row, step]),))
                continue
            assert batch.sequence is not None and batch.position is not None
            which = int(batch.sequence[row])
            if kind == "shots":
                found.append((which, int(batch.position[row] + step)))
                continue
            assert batch.targets[row, step] == which % 3
            value = batch.inputs[row, step] if kind == "words" else batch.inputs[row, step, 0]
            assert int(value) == (100 * which + step if kind == "words" else which)
            found.append((which,))
    return found


def complete(kind: str, count: int) -> list[tuple[int, ...]]:
    if kind == "text":
        return [(word,) for word in range(101, 101 + 3 * count)]
    if kind == "shots":
        return [(shot, step) for shot in range(count) for step in range(int(CAMPAIGN.lengths[shot]))]
    return [(sample,) for sample in range(count)]


@pytest.mark.parametrize("kind", KINDS)
@given(
    count=st.integers(1, 17),
    ranks=st.integers(1, 4),
    rows=st.integers(1, 3),
    epoch=st.integers(0, 3),
    seed=st.sampled_from([None, 5]),
)
@settings(max_examples=60, deadline=None)
def test_equal_steps_and_each_sample_once(
    kind: str, count: int, ranks: int, rows: int, epoch: int, seed: int | None
) -> None:
    # Every rank has its own split, as in a run; they agree without a word between them.
    parts = [of_rank(make(kind, count, seed), epoch, ranks, rank, rows) for rank in range(ranks)]
    assert {len(part) for part in parts} == {make(kind, count, seed).steps(epoch, ranks * rows)}
    assert len(parts[0]) >= 1
    for step in zip(*parts, strict=True):
        assert len({batch.inputs.shape for batch in step}) == 1
        assert sum(batch.weight.sum() for batch in step) > 0
        assert all(np.isfinite(batch.inputs).all() for batch in step)
    found = [item for part in parts for item in seen(kind, part)]
    assert sorted(found) == complete(kind, count)


@pytest.mark.parametrize("kind", KINDS)
@given(
    count=st.integers(1, 17),
    before=st.sampled_from([1, 2, 3, 4, 6]),
    after=st.sampled_from([1, 2, 3, 4, 6]),
    epoch=st.integers(0, 2),
    share=st.floats(0.0, 1.0),
)
@settings(max_examples=60, deadline=None)
def test_resume_on_another_number_of_ranks(
    kind: str, count: int, before: int, after: int, epoch: int, share: float
) -> None:
    """At the same global batch the steps left are those of the uninterrupted run, whoever trains them."""
    whole = of_rank(make(kind, count, 5), epoch, 1, 0, 12)
    start = round(share * len(whole))
    done = [of_rank(make(kind, count, 5), epoch, before, rank, 12 // before)[:start] for rank in range(before)]
    left = [of_rank(make(kind, count, 5), epoch, after, rank, 12 // after, start) for rank in range(after)]
    for ranks, steps, expected in ((done, start, whole[:start]), (left, len(whole) - start, whole[start:])):
        assert {len(part) for part in ranks} == {steps}
        for batches, uncut in zip(zip(*ranks, strict=True), expected, strict=True):
            for name in ("inputs", "targets", "weight", "reset", "sequence", "position"):
                if getattr(uncut, name) is not None:
                    joined = np.concatenate([getattr(batch, name) for batch in batches])
                    np.testing.assert_array_equal(joined, getattr(uncut, name))
    everything = seen(kind, [batch for part in (*done, *left) for batch in part])
    assert sorted(everything) == complete(kind, count)


@pytest.mark.parametrize("kind", KINDS)
@given(
    count=st.integers(1, 17),
    legs=st.lists(st.tuples(st.sampled_from([1, 2, 3, 5, 8]), st.integers(0, 3)), min_size=1, max_size=3),
    last=st.tuples(st.integers(1, 4), st.integers(1, 3)),
    epoch=st.integers(0, 2),
)
@settings(max_examples=100, deadline=None)
def test_resume_at_another_global_batch(
    kind: str, count: int, legs: list[tuple[int, int]], last: tuple[int, int], epoch: int
) -> None:
    """Some steps at one global batch, some at another, the rest at a third: everything is seen once."""
    split, everything = make(kind, count, 5), []
    for rows, steps in legs:
        everything += seen(kind, of_rank(split, epoch, 1, 0, rows)[:steps])
        split = split.remainder(epoch, rows, steps)
    ranks, rows = last
    parts = [of_rank(split, epoch, ranks, rank, rows) for rank in range(ranks)]
    assert {len(part) for part in parts} == {split.steps(epoch, ranks * rows)}
    everything += seen(kind, [batch for part in parts for batch in part])
    assert sorted(everything) == complete(kind, count)
    # A row begins from a state of zero, also where it goes on with a shot or a stretch of text.
    assert all(part[0].reset.all() for part in parts if part)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "text"])
def test_every_epoch_has_its_own_order(kind: str) -> None:
    orders = {tuple(seen(kind, of_rank(make(kind, 17, 5), epoch, 1, 0, 2))) for epoch in range(4)}
    assert len(orders) == 4
    again = tuple(seen(kind, of_rank(make(kind, 17, 5), 0, 1, 0, 2)))
    assert again in orders
    fixed = {tuple(seen(kind, of_rank(make(kind, 17, None), epoch, 1, 0, 2))) for epoch in range(4)}
    assert len(fixed) == 1
