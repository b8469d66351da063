"""Curves of any length in a bounded number of points, without hiding a peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

COLUMNS = 240
"""Points of a curve at most."""
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """A curve as points; where a point stands for several values it has their smallest, mean and largest."""

    run: int
    """Number of the run it belongs to; decides colour and dashes."""
    label: str
    x: Array
    """Position of each point: that of the first value it stands for. Float64 [points], ascending."""
    low: Array
    mean: Array
    high: Array
    missing: Array
    """How many of the point's values are no finite numbers; where all are, low, mean and high are NaN."""
    values: int
    """Values that the curve was made of."""
    last: float
    """The last finite value; NaN where there is none."""

    @property
    def thinned(self) -> bool:
        """Whether points stand for several values."""
        return self.values > len(self.x)


def thin(
    run: int, label: str, x: Sequence[float] | Array, y: Sequence[float] | Array, columns: int = COLUMNS
) -> Series:
    """Cut values into at most `columns` stretches of equal width in x, and keep smallest, mean and largest of each.

    Args:
        run: number of the run.
        label: its name.
        x: positions; values without a finite one are left out.
        y: values, as many.
        columns: points at most.
    """
    xs, ys = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    good = np.isfinite(xs)
    xs, ys = xs[good], ys[good]
    order = np.argsort(xs, kind="stable")
    xs, ys = xs[order], ys[order]
    finite = np.isfinite(ys)
    last = float(ys[finite][-1]) if finite.any() else np.nan
    if len(xs) <= columns:
        y_or_nan = np.where(finite, ys, np.nan)
        return Series(run, label, xs, y_or_nan, y_or_nan, y_or_nan, (~finite).astype(np.float64), len(xs), last)
    width = (xs[-1] - xs[0]) / columns
    at = np.minimum(((xs - xs[0]) / width).astype(np.int64), columns - 1) if width > 0 else np.zeros(len(xs), np.int64)
    _, first = np.unique(at, return_index=True)
    count = np.add.reduceat(finite.astype(np.float64), first)
    missing = np.add.reduceat((~finite).astype(np.float64), first)
    low = np.minimum.reduceat(np.where(finite, ys, np.inf), first)
    high = np.maximum.reduceat(np.where(finite, ys, -np.inf), first)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.add.reduceat(np.where(finite, ys, 0.0), first)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    # The sum of huge values may overflow, and rounding may put a mean beyond its values.
    low, high = (np.where(count > 0, edge, np.nan) for edge in (low, high))
    mean = np.clip(np.where(np.isfinite(mean), mean, low / 2 + high / 2), low, high)
    return Series(run, label, xs[first], low, mean, high, missing, len(xs), last)
