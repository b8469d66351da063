"""Brings signals of very different units to a common scale, fitted on training shots only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.shot import Shot

CLIP = 100.0


@dataclass(frozen=True)
class Normaliser:
    """x -> (x - mean) / scale, clipped to +-100. F features a step: scalars, then the points of the profiles.

    The scale is that of FRNN's 'var' normaliser: the median over training shots of a signal's standard deviation
    within a shot, which a few wild shots do not move. Three things differ from FRNN. The mean over all training steps
    is subtracted, because 16-bit activations resolve values near 0 best. The scale is at least a tenth of the
    standard deviation over all training steps, so that a signal that is quiet in most shots does not explode in the
    others. And q95 is treated like every other signal. A profile has one mean and one scale for all its points, which
    keeps its shape; a signal that is missing in a shot is left out of the fit there and becomes 0, its mean.
    """

    mean: NDArray[np.float32]
    """[F]"""
    scale: NDArray[np.float32]
    """[F], positive"""
    widths: NDArray[np.int64]
    """[S + P], features of each signal: 1 for a scalar, X for a profile; their sum is F."""

    @classmethod
    def fit(cls, shots: Iterable[Shot]) -> Normaliser:
        """Fit on the training shots, each taken once."""
        spreads, sums, squares, counts = [], [], [], []
        for shot in shots:
            present = ~shot.missing
            scalars = _moments(shot.scalars.T)
            profiles = _moments(shot.profiles.transpose(1, 0, 2).reshape(shot.profiles.shape[1], -1))
            total, square, count = (np.concatenate(pair) for pair in zip(scalars, profiles, strict=True))
            variance = square / count - (total / count) ** 2
            spreads.append(np.where(present & (variance > 0), np.sqrt(np.maximum(variance, 0.0)), np.nan))
            sums.append(np.where(present, total, 0.0))
            squares.append(np.where(present, square, 0.0))
            counts.append(np.where(present, count, 0))
        if not spreads:
            raise ValueError("a normaliser needs at least one shot")
        count = np.maximum(np.sum(counts, axis=0), 1)
        mean = np.sum(sums, axis=0) / count
        pooled = np.sqrt(np.maximum(np.sum(squares, axis=0) / count - mean**2, 0.0))
        recorded = ~np.all(np.isnan(spreads), axis=0)
        scale = np.ones_like(mean)
        scale[recorded] = np.nanmedian(np.array(spreads)[:, recorded], axis=0)
        scale = np.maximum(scale, 0.1 * pooled)
        scale[scale == 0] = 1.0
        widths = np.array([1] * shot.scalars.shape[1] + [shot.profiles.shape[2]] * shot.profiles.shape[1])
        return cls(np.repeat(mean, widths).astype(np.float32), np.repeat(scale, widths).astype(np.float32), widths)

    def apply(self, features: NDArray[np.float32], missing: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Normalised copy of features [..., F] of a shot whose signals `missing` [S + P] were not recorded."""
        out = (features - self.mean) / self.scale
        np.clip(out, -CLIP, CLIP, out=out)
        if missing.any():
            out[..., np.repeat(missing, self.widths)] = 0.0
        return out


def _moments(rows: NDArray[np.float32]) -> tuple[NDArray, NDArray, NDArray]:
    """Sum, sum of squares and count of each row, in float64."""
    wide = rows.astype(np.float64)
    return (wide.sum(axis=1), np.einsum("ij,ij->i", wide, wide), np.full(len(rows), rows.shape[1]))
