"""Axes: from values to places on the drawing, round ticks, and numbers as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

LOG_RATIO = 50.0
"""Positive values whose largest is so many times their smallest get a logarithmic axis."""


@dataclass(frozen=True)
class Axis:
    """One axis of a chart."""

    low: float
    high: float
    start: float
    """Where `low` lies on the drawing."""
    end: float
    """Where `high` lies."""
    log: bool = False
    binary: bool = False
    """Whether the ticks of a logarithmic axis are powers of two, for loss scales."""

    def place(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values on the drawing; NaN stays NaN."""
        if self.log:
            low, high = math.log10(self.low), math.log10(self.high)
            at = (np.log10(np.maximum(values, self.low)) - low) / (high - low)
        else:
            # Halves, so that the distance between two huge values does not overflow.
            at = (values / 2 - self.low / 2) / (self.high / 2 - self.low / 2)
        return self.start + np.clip(at, 0.0, 1.0) * (self.end - self.start)

    def ticks(self, count: int = 6) -> list[float]:
        """About `count` round values within the axis."""
        if self.binary:
            powers = range(math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9) + 1)
            return [2.0**power for power in powers[:: math.ceil(len(powers) / count) or 1]]
        if not self.log:
            return linear_ticks(self.low, self.high, count)
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
        decades = list(range(first, last + 1))
        if len(decades) >= 3:
            return [10.0**decade for decade in decades[:: math.ceil(len(decades) / count)]]
        steps = (1, 2, 5) if len(decades) == 2 else (1, 2, 3, 4, 5, 7)
        fine = [m * 10.0**d for d in range(first - 1, last + 2) for m in steps]
        inside = [tick for tick in fine if self.low <= tick <= self.high]
        return inside if len(inside) > 1 else [self.low, self.high]


def value_axis(arrays: Sequence[NDArray[np.float64]], start: float, end: float, *, zero: bool = False) -> Axis:
    """An axis around all finite values, logarithmic where they span more than LOG_RATIO.

    Args:
        arrays: the values.
        start: place of the lowest on the drawing.
        end: place of the highest.
        zero: whether a linear axis begins at 0.
    """
    joined = np.concatenate(arrays) if arrays else np.zeros(0)
    finite = joined[np.isfinite(joined)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if not zero and low > 0 and high / low > LOG_RATIO:
        return Axis(low / 1.15, min(high * 1.15, 1e308), start, end, log=True)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        pad = abs(low) * 0.1 or 0.5
    else:
        pad = max((high / 2 - low / 2) * 0.1, 1e-300)  # half of the smallest number is 0
    low, high = max(low - pad, -1.7e308), min(high + pad, 1.7e308)
    if finite.size and float(finite.min()) >= 0:
        low = max(low, 0.0)  # no room below zero for what is never negative
    return Axis(low, high, start, end)


def scale_axis(arrays: Sequence[NDArray[np.float64]], start: float, end: float) -> Axis:
    """A logarithmic axis for loss scales, a factor of two beyond the smallest and the largest."""
    joined = np.concatenate(arrays) if arrays else np.zeros(0)
    finite = joined[np.isfinite(joined) & (joined > 0)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (1.0, 1.0)
    return Axis(max(low / 2, 1e-300), min(high * 2, 1e300), start, end, log=True, binary=True)


def position_axis(arrays: Sequence[NDArray[np.float64]], start: float, end: float, *, zero: bool = False) -> Axis:
    """An axis from the first position, or from 0, to the last."""
    joined = np.concatenate(arrays) if arrays else np.zeros(0)
    low, high = (float(joined.min()), float(joined.max())) if joined.size else (0.0, 1.0)
    low = min(low, 0.0) if zero else low
    return Axis(low, high if high > low else low + 1.0, start, end)


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten within [low, high]."""
    span = high / 2 - low / 2
    if not span > 0:
        return [low]
    raw = 2 * (span / max(count, 1))
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1.0, 2.0, 5.0) if m * power >= raw * 0.999), 10.0 * power)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)][: 4 * count]


def short(value: float) -> str:
    """A number in few characters: 12,500 as ``12.5k``, 0.00025 as ``2.5e-4``, no number as ``n/a``."""
    if not math.isfinite(value):
        return "n/a"
    size = abs(value)
    if size == 0:
        return "0"
    if 1e4 <= size < 1e15:
        for limit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if size >= limit:
                return f"{value / limit:.4g}{letter}"
    if size < 1e-3 or size >= 1e15:
        mantissa, exponent = f"{value:.3g}".split("e") if "e" in f"{value:.3g}" else f"{value:.2e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.4g}"


def tick_label(axis: Axis, tick: float) -> str:
    """What stands beside a tick, as SVG."""
    if axis.binary:
        return f'2<tspan class="power" dy="-4">{round(math.log2(tick))}</tspan>'
    return escape(short(tick))
