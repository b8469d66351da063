"""Gradients are sums over all valid steps of all ranks by their number, and clipping comes after the mean."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from dist_mp.data.base import Batch, Dataset, DataSpec, Split
from tests.train.runs import alone, one_thread, settings, train

LENGTH = 30


class Crafted(Split):
    """One global batch of 12 rows each step: the first six rows are short, the last six long, two empty; targets of
    the halves pull in opposite directions, the first one with an outlier."""

    def __init__(self, features: int) -> None:
        rng = np.random.default_rng(5)
        self.inputs = rng.normal(size=(12, LENGTH, features)).astype(np.float32)
        self.inputs[0] *= 40.0
        self.inputs[11] *= -40.0
        lengths = np.array([3] * 5 + [0] + [30] * 5 + [0])
        self.weight = (np.arange(LENGTH) < lengths[:, None]).astype(np.float32)
        self.targets = np.where(np.arange(12)[:, None] < 6, 1.0, -1.0) * np.ones((12, LENGTH), np.float32)
        self.inputs[self.weight == 0] = 1e4  # what padding holds must not matter

    def steps(self, epoch: int, global_rows: int) -> int:
        return 3

    def batches(self, epoch: int, global_rows: int, first_row: int, rows: int, start_step: int = 0) -> Iterator[Batch]:
        part = slice(first_row, first_row + rows)
        reset = np.ones(rows, bool)
        for _ in range(start_step, 3):
            yield Batch(self.inputs[part], self.targets[part].astype(np.float32), self.weight[part], reset)


class CraftedDataset(Dataset):
    """Trains on :class:`Crafted`, evaluates on the shots of the settings."""

    def __init__(self, dataset: Dataset) -> None:
        self.spec, self.valid = dataset.spec, dataset.valid
        features = self.spec.scalars + self.spec.profiles * self.spec.profile_points
        self.train = Crafted(features)
        assert isinstance(self.spec, DataSpec)

    def describe(self) -> str:
        return "crafted"


@pytest.mark.mpi(ranks=[2, 3], timeout=120)
def test_short_rows_weigh_by_their_steps_and_outliers_clip_once(ranks: int) -> None:
    """Rank 0 holds the short rows and an outlier, the last rank the long ones and its opposite."""
    from dist_mp.comm.world import World
    from dist_mp.data.open import open_dataset

    one_thread()
    with World.open() as world:
        # Clipping hides a common factor, so it is off in the second run.
        for clip_norm, base in ((0.05, 0.05), (0.0, 1e-3)):
            changed = {
                "optimizer": {"name": "sgd", "clip_norm": clip_norm},
                "schedule": {"base": base},
                "data": {"length": LENGTH},
            }
            one = settings(train={"batch_size": 12, "epochs": 1, "max_steps": 3, "eval_every": 1}, **changed)
            reference, expected = train(alone(world), one, CraftedDataset(open_dataset(one)))
            assert expected.applied_steps == 3
            many = settings(train={"batch_size": 12 // ranks, "epochs": 1, "max_steps": 3, "eval_every": 1}, **changed)
            parts, summary = train(world, many, CraftedDataset(open_dataset(many)))
            assert summary.applied_steps == 3
            for a, b in zip(parts.masters.values(), reference.masters.values(), strict=True):
                assert np.isfinite(a).all()
                np.testing.assert_allclose(a, b, atol=1e-6)
