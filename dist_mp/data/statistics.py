"""What a normaliser needs to know of a shot; small enough to keep for every shot of a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.shot import Shot

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ShotStatistics:
    """Moments and range of each signal of a shot, over its time steps and the points of a profile; [S + P] each.

    Of a missing signal the count is 0, and so are the others.
    """

    count: Array
    mean: Array
    variance: Array
    minimum: Array
    maximum: Array

    @classmethod
    def of(cls, shot: Shot) -> ShotStatistics:
        """Of one shot, in float64."""
        columns = [shot.scalars[:, i] for i in range(shot.scalars.shape[1])]
        columns += [shot.profiles[:, i].ravel() for i in range(shot.profiles.shape[1])]
        rows = []
        for column, lost in zip(columns, shot.missing.tolist(), strict=True):
            wide = column.astype(np.float64)
            rows.append((len(wide), wide.mean(), wide.var(), wide.min(), wide.max()) if not lost else (0.0,) * 5)
        return cls.from_table(np.array(rows).T)

    @classmethod
    def from_table(cls, table: Array) -> ShotStatistics:
        """From what :meth:`table` gave."""
        return cls(*table)

    def table(self) -> Array:
        """[5, S + P]: count, mean, variance, minimum, maximum."""
        return np.stack([self.count, self.mean, self.variance, self.minimum, self.maximum])


@dataclass(frozen=True)
class PooledStatistics:
    """Of a set of shots, [S + P] each; a signal that none of them has is 0 with deviation 0."""

    mean: Array
    """Over all steps of all shots."""
    deviation: Array
    """Standard deviation over all steps of all shots."""
    typical_deviation: Array
    """Median over shots of the standard deviation within a shot, of those in which the signal moves."""
    minimum: Array
    maximum: Array

    @classmethod
    def of(cls, shots: Sequence[ShotStatistics]) -> PooledStatistics:
        """Pool shots, each taken once; the result depends on their order only by rounding."""
        count, mean, variance, minimum, maximum = (
            np.stack(rows) for rows in zip(*(s.table() for s in shots), strict=True)
        )
        total = np.maximum(count.sum(axis=0), 1.0)
        pooled = (count * mean).sum(axis=0) / total
        spread = (count * (variance + (mean - pooled) ** 2)).sum(axis=0) / total
        moving = np.where((count > 0) & (variance > 0), np.sqrt(variance), np.nan)
        known = ~np.isnan(moving).all(axis=0)
        typical = np.zeros_like(pooled)
        typical[known] = np.nanmedian(moving[:, known], axis=0)
        recorded = count > 0
        low = np.where(recorded, minimum, np.inf).min(axis=0)
        high = np.where(recorded, maximum, -np.inf).max(axis=0)
        return cls(
            pooled,
            np.sqrt(spread),
            typical,
            np.where(np.isfinite(low), low, 0.0),
            np.where(np.isfinite(high), high, 0.0),
        )
