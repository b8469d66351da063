"""Brings signals of very different units to a common scale, fitted on training shots only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.shot import Shot
from dist_mp.data.statistics import PooledStatistics, ShotStatistics

CLIP = 100.0
KINDS = ("mean_var", "var", "min_max", "averaged")


@dataclass(frozen=True)
class Normaliser:
    """x -> (x - mean) / scale, clipped to +-100. F features a step: scalars, then the points of the profiles.

    The kinds are those of FRNN (`normalize.py` of plasma-python):

    var: the scale is the median over training shots of a signal's standard deviation within a shot, which a few wild
    shots do not move; nothing is subtracted. mean_var: the same scale, and the mean over all training steps is
    subtracted, because 16-bit activations resolve values near 0 best. min_max: the range of the training shots becomes
    [0, 1]. averaged: mean_var, then a causal average over the last few steps, with weights that fall exponentially.

    Two things differ from FRNN. The scale is at least a tenth of the standard deviation over all training steps, so
    that a signal that is quiet in most shots does not explode in the others. And q95 is treated like every other
    signal. A profile has one mean and one scale for all its points, which keeps its shape; a signal that is missing in
    a shot is left out of the fit there and becomes 0, its mean (0 of the scaled range in min_max).
    """

    mean: NDArray[np.float32]
    """[F]"""
    scale: NDArray[np.float32]
    """[F], positive"""
    widths: NDArray[np.int64]
    """[S + P], features of each signal: 1 for a scalar, X for a profile; their sum is F."""
    average_steps: int = 1
    """Steps that each value is averaged over, itself and those before it."""

    @classmethod
    def fit(cls, shots: Iterable[Shot], kind: str = "mean_var", average_steps: int = 10) -> Normaliser:
        """Fit on the training shots, each taken once."""
        statistics, widths = [], None
        for shot in shots:
            statistics.append(ShotStatistics.of(shot))
            widths = feature_widths(shot.scalars.shape[1], shot.profiles.shape[1], shot.profiles.shape[2])
        if widths is None:
            raise ValueError("a normaliser needs at least one shot")
        return cls.from_statistics(statistics, widths, kind, average_steps)

    @classmethod
    def from_statistics(
        cls, shots: Sequence[ShotStatistics], widths: NDArray[np.int64], kind: str, average_steps: int = 10
    ) -> Normaliser:
        """Fit on what is known of the training shots."""
        if kind not in KINDS:
            raise ValueError(f"no normaliser {kind!r}")
        pooled = PooledStatistics.of(shots)
        scale = np.maximum(pooled.typical_deviation, 0.1 * pooled.deviation)
        mean = np.zeros_like(scale) if kind == "var" else pooled.mean
        if kind == "min_max":
            mean, scale = pooled.minimum, pooled.maximum - pooled.minimum
        # Subnormal scales are lost in float32, and a range may be twice the largest of its numbers.
        limits = np.finfo(np.float32)
        scale = np.clip(np.where(scale > 0, scale, 1.0), limits.tiny, limits.max)
        return cls(
            np.repeat(mean, widths).astype(np.float32),
            np.repeat(scale, widths).astype(np.float32),
            widths,
            average_steps if kind == "averaged" else 1,
        )

    def apply(self, features: NDArray[np.float32], missing: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Normalised copy of features [T, F] of a whole shot whose signals `missing` [S + P] were not recorded."""
        return self.window(features, missing, 0, len(features))

    def window(
        self, features: NDArray[np.float32], missing: NDArray[np.bool_], begin: int, count: int
    ) -> NDArray[np.float32]:
        """Steps [begin, begin + count) of :meth:`apply`, at the cost of a window."""
        first = max(begin - self.average_steps + 1, 0)
        with np.errstate(over="ignore"):
            out = (features[first : begin + count] - self.mean) / self.scale
        np.clip(out, -CLIP, CLIP, out=out)
        if missing.any():
            out[..., np.repeat(missing, self.widths)] = 0.0
        return out if self.average_steps == 1 else self._average(out)[begin - first :]

    def _average(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Mean over the last steps, weights exp(-5 k / steps) for k steps ago, as far as there are any."""
        steps = np.arange(min(self.average_steps, len(values)))
        weights = np.exp(-5.0 * steps / self.average_steps).astype(np.float32)
        total = np.zeros_like(values)
        norm = np.zeros((len(values), 1), np.float32)
        for ago, weight in zip(steps.tolist(), weights, strict=True):
            total[ago:] += weight * values[: len(values) - ago]
            norm[ago:] += weight
        return total / norm


def feature_widths(scalars: int, profiles: int, points: int) -> NDArray[np.int64]:
    """[S + P], features of each signal."""
    return np.array([1] * scalars + [points] * profiles, np.int64)
