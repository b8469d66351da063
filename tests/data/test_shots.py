"""Shots as training windows: the split, the targets, the scale, and the same global batches on any number of ranks."""

import math
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dist_mp.config import CampaignData, Config, DisruptionModel, ShotsData
from dist_mp.data.base import Batch, Split
from dist_mp.data.campaign import Campaign
from dist_mp.data.normalise import CLIP, Normaliser
from dist_mp.data.open import open_dataset
from dist_mp.data.partition import stratified_partition, stratified_split
from dist_mp.data.shot import Shot
from dist_mp.data.shots import ShotCache, ShotDataset, shot_targets
from dist_mp.errors import UserError

SMALL = CampaignData(
    shots=22, min_steps=20, max_steps=60, profile_points=8, length=16, warning_steps=12, ignore_steps=2
)


def campaign(settings: CampaignData, seed: int) -> ShotDataset:
    source = Campaign(settings)
    return ShotDataset(source, settings, stratified_partition(source, settings, "data.shots"), "hinge", seed)


@pytest.fixture(scope="module")
def dataset() -> ShotDataset:
    return campaign(SMALL, 5)


def fields(batch: Batch) -> list[np.ndarray]:
    assert batch.sequence is not None
    assert batch.position is not None
    return [batch.inputs, batch.targets, batch.weight, batch.reset, batch.sequence, batch.position]


def global_batches(split: Split, epoch: int, ranks: int, rows: int, start: int = 0) -> list[list[np.ndarray]]:
    """Global batches as the ranks see them, put together from each rank's own rows."""
    parts = [list(split.batches(epoch, ranks * rows, rank * rows, rows, start)) for rank in range(ranks)]
    assert len({len(part) for part in parts}) == 1
    return [
        [np.concatenate(pieces) for pieces in zip(*map(fields, batches), strict=True)]
        for batches in zip(*parts, strict=True)
    ]


def equal(left: list[list[np.ndarray]], right: list[list[np.ndarray]]) -> bool:
    return len(left) == len(right) and all(
        np.array_equal(a, b) for x, y in zip(left, right, strict=True) for a, b in zip(x, y, strict=True)
    )


def test_global_batches_do_not_depend_on_the_number_of_ranks(dataset: ShotDataset) -> None:
    one = global_batches(dataset.train, 0, 1, 12)
    for ranks in (2, 3, 4):
        assert equal(one, global_batches(dataset.train, 0, ranks, 12 // ranks))
    assert len(one) == dataset.train.steps(0, 12)


@given(shots=st.integers(1, 17), ranks=st.integers(1, 4), rows=st.integers(1, 3), epoch=st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_the_ranks_together_see_every_step_once(
    dataset: ShotDataset, shots: int, ranks: int, rows: int, epoch: int
) -> None:
    numbers = dataset.train.numbers[: min(shots, len(dataset.train.numbers))]
    split = dataset.split(numbers, order_seed=9)
    seen = [np.zeros(length, int) for length in split.lengths]
    steps = set()
    for rank in range(ranks):
        count = 0
        for batch in split.batches(epoch, ranks * rows, rank * rows, rows):
            count += 1
            assert batch.inputs.shape == (rows, 16, 14 + 2 * 8)
            assert batch.inputs.dtype == batch.targets.dtype == batch.weight.dtype == np.float32
            for row, which in enumerate(batch.sequence):
                valid = batch.weight[row] > 0
                assert set(np.unique(batch.weight[row])) <= {0.0, 1.0}
                assert not batch.inputs[row][~valid].any()
                if which < 0:
                    assert batch.reset[row] and not valid.any()
                else:
                    seen[which][batch.position[row] + np.flatnonzero(valid)] += 1
        steps.add(count)
    assert len(steps) == 1
    assert all((visits == 1).all() for visits in seen)


def test_start_step_is_the_rest_of_the_epoch(dataset: ShotDataset) -> None:
    whole = global_batches(dataset.train, 1, 2, 2)
    assert len(whole) > 6
    for start in (0, 1, 5, len(whole) - 1, len(whole)):
        assert equal(whole[start:], global_batches(dataset.train, 1, 4, 1, start))


def test_training_is_reshuffled_each_epoch_and_validation_is_not(dataset: ShotDataset) -> None:
    first, second = (dataset.train.plan(epoch, 4).sequence for epoch in (0, 1))
    assert first.shape != second.shape or (first != second).any()
    assert equal(global_batches(dataset.valid, 0, 2, 2), global_batches(dataset.valid, 1, 2, 2))


def test_rows_hold_the_steps_that_they_name(dataset: ShotDataset) -> None:
    split = dataset.valid
    for batch in split.batches(0, 3, 0, 3):
        for row in np.flatnonzero(batch.sequence >= 0):
            which, begin, count = batch.sequence[row], batch.position[row], int(batch.weight[row].sum())
            shot = Campaign(SMALL).shot(int(split.numbers[which]))
            assert shot.disruptive == split.disruptive[which]
            expected = dataset.normaliser.apply(shot.features(), shot.missing)[begin : begin + count]
            np.testing.assert_array_equal(batch.inputs[row, :count], expected)
            labels = shot_targets("hinge", shot.steps, shot.disruptive, 12)[begin : begin + count]
            np.testing.assert_array_equal(batch.targets[row, :count], labels)


def test_the_last_steps_of_training_shots_are_cut() -> None:
    """As FRNN does (`cut_shot_ends`): in training only, and only where more than a window is left."""
    cut = campaign(SMALL.model_copy(update={"cut_steps": 10}), 5)
    seen = [np.zeros(length, int) for length in cut.train.lengths]
    for batch in cut.train.batches(2, 3, 0, 3):
        for row in np.flatnonzero(batch.sequence >= 0):
            which, valid = batch.sequence[row], batch.weight[row] > 0
            seen[which][batch.position[row] + np.flatnonzero(valid)] += 1
            # The targets still count from the end of the whole shot.
            length, disruptive = int(cut.train.lengths[which]), bool(cut.train.disruptive[which])
            labels = shot_targets("hinge", length, disruptive, 12)[batch.position[row] :][: valid.sum()]
            np.testing.assert_array_equal(batch.targets[row, : len(labels)], labels)
    shortened = 0
    for visits in seen:
        kept = len(visits) - 10 if len(visits) - 10 > SMALL.length else len(visits)
        shortened += kept < len(visits)
        np.testing.assert_array_equal(visits, np.arange(len(visits)) < kept)
    assert 0 < shortened < len(seen)
    held_out = sum(int(batch.weight.sum()) for batch in cut.valid.batches(0, 3, 0, 3))
    assert held_out == cut.valid.lengths.sum()
    assert ShotsData().cut_steps == ShotsData().deadline_steps == 30


def test_rows_out_of_range_are_a_bug(dataset: ShotDataset) -> None:
    with pytest.raises(ValueError, match="rows 3 to 5"):
        next(dataset.train.batches(0, 4, 3, 2))


def test_targets() -> None:
    assert shot_targets("hinge", 5, True, 2).tolist() == [-1, -1, -1, 1, 1]
    assert shot_targets("maxhinge", 3, True, 9).tolist() == [1, 1, 1]
    assert shot_targets("binary", 4, True, 3).tolist() == [0, 1, 1, 1]
    for target, clean in (("hinge", -1.0), ("maxhinge", -1.0), ("binary", 0.0), ("ttd", -2.0)):
        np.testing.assert_allclose(shot_targets(target, 3, False, 100), clean)
    expected = [-2.0, -math.log10(2.1), -math.log10(1.1), 1.0]
    np.testing.assert_allclose(shot_targets("ttd", 104, True, 100)[[0, -3, -2, -1]], expected, rtol=1e-6)
    assert (np.diff(shot_targets("ttd", 300, True, 100)) >= 0).all()


def test_split_keeps_the_share_of_disruptions() -> None:
    disruptive = np.arange(200) % 5 < 2

    def split(seed: int) -> tuple[np.ndarray, np.ndarray]:
        return stratified_split(np.arange(20, 200), disruptive, 0.25, (seed,), "data.shots", "validation")

    training, held_out = split(3)
    assert sorted(np.concatenate([training, held_out])) == list(range(20, 200))
    assert disruptive[held_out].sum() == 18
    assert len(held_out) == 45
    assert (split(3)[1] == held_out).all()
    assert (split(4)[1] != held_out).any()


def test_a_campaign_without_enough_shots_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.shots: 1 disruptive shots .* use more shots"):
        open_dataset(Config(data=CampaignData(shots=3), model=DisruptionModel()))


def test_normaliser_is_fitted_on_training_shots_only(dataset: ShotDataset) -> None:
    source = Campaign(SMALL)
    again = Normaliser.fit(source.shot(int(number)) for number in dataset.train.numbers)
    np.testing.assert_array_equal(again.mean, dataset.normaliser.mean)
    np.testing.assert_array_equal(again.scale, dataset.normaliser.scale)
    everything = Normaliser.fit(source.shot(number) for number in range(SMALL.shots))
    assert (everything.mean != dataset.normaliser.mean).any()


def test_normaliser_arithmetic() -> None:
    rng = np.random.default_rng(2)

    def shot(number: int, level: float, spread: float, missing: bool) -> Shot:
        scalars = rng.normal(level, spread, (500, 2)).astype(np.float32)
        profiles = rng.normal(3 * level, spread, (500, 1, 4)).astype(np.float32)
        lost = np.array([False, missing, False])
        scalars[:, lost[:2]] = 0.0
        return Shot(number, False, scalars, profiles, lost)

    shots = [shot(0, 10.0, 1.0, False), shot(1, 10.0, 2.0, True), shot(2, 10.0, 8.0, False)]
    fitted = Normaliser.fit(shots)
    assert fitted.mean.shape == (6,)
    # The median of the spreads 1, 2 and 8; the second scalar is missing in the middle shot, so of 1 and 8.
    np.testing.assert_allclose(fitted.scale, [2.0, 4.5, 2.0, 2.0, 2.0, 2.0], rtol=0.1)
    np.testing.assert_allclose(fitted.mean, [10.0, 10.0, 30.0, 30.0, 30.0, 30.0], atol=0.6)
    assert len(set(fitted.scale[2:])) == 1
    out = fitted.apply(shots[1].features(), shots[1].missing)
    assert not out[:, 1].any()
    assert out[:, 0].any()
    wild = fitted.apply(np.full((1, 6), 1e9, np.float32), np.zeros(3, bool))
    assert (wild == CLIP).all()


def test_normalised_features_are_of_order_one() -> None:
    dataset = campaign(CampaignData(shots=40), 1)
    batch = next(dataset.train.batches(0, 30, 0, 30))
    assert np.isfinite(batch.inputs).all()
    assert 0.3 < batch.inputs.std() < 3.0
    assert np.abs(batch.inputs).max() <= CLIP


def test_cache_keeps_to_its_limit_and_gives_the_same_shots() -> None:
    class Counting(Campaign):
        reads = 0

        def shot(self, index: int) -> Shot:
            self.reads += 1
            return super().shot(index)

    source = Counting(SMALL)
    one_shot = source.shot(0).features().nbytes
    large, small = ShotCache(source), ShotCache(source, limit_bytes=one_shot)
    source.reads = 0
    for index in (0, 1, 0, 1):
        np.testing.assert_array_equal(large.get(index)[0], Campaign(SMALL).shot(index).features())
    assert source.reads == 2
    for index in (0, 1, 0, 1):
        np.testing.assert_array_equal(small.get(index)[0], Campaign(SMALL).shot(index).features())
    assert source.reads == 6
    assert small.held_bytes <= max(source.shot(i).features().nbytes for i in (0, 1))


def test_cache_serves_several_threads() -> None:
    cache = ShotCache(Campaign(SMALL), limit_bytes=1 << 14)
    expected = [Campaign(SMALL).shot(i).features() for i in range(8)]
    wrong: list[int] = []

    def read(offset: int) -> None:
        for step in range(40):
            index = (step * 3 + offset) % 8
            if not np.array_equal(cache.get(index)[0], expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=read, args=(offset,)) for offset in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_open_dataset_takes_the_target_of_the_model() -> None:
    config = Config(data=SMALL, model=DisruptionModel(target="binary"))
    dataset = open_dataset(config)
    targets = np.concatenate([b.targets[b.weight > 0] for b in dataset.train.batches(0, 4, 0, 4)])
    assert set(np.unique(targets)) == {0.0, 1.0}
    assert dataset.spec.scalars == 14
    assert dataset.spec.profiles == 2
    assert dataset.spec.profile_points == 8
    assert dataset.spec.length == 16
    assert "17 training (7 disruptive" in dataset.describe()
