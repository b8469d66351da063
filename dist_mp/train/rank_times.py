"""Where the time of each rank goes: means over the steps of a few seconds, by which a slow rank stands out."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from dist_mp.train.records import RanksRecord

INTERVAL_SECONDS = 5.0


class RankTimes:
    """Sums the times of all ranks over steps until a record of their means is due."""

    def __init__(self, interval_seconds: float = INTERVAL_SECONDS) -> None:
        """A record is due so many seconds after the last one (s)."""
        self._interval = interval_seconds
        self._last = time.monotonic()
        self._sums: NDArray[np.float64] | None = None
        self._steps = 0

    def add(
        self,
        compute: NDArray[np.float64],
        exchange: NDArray[np.float64],
        wait: NDArray[np.float64],
        input_: NDArray[np.float64],
    ) -> None:
        """Take the seconds of one step, each float64 [ranks]."""
        step = np.stack([compute, exchange, wait, input_])
        self._sums = step if self._sums is None else self._sums + step
        self._steps += 1

    def record(self, step: int, *, last: bool = False) -> RanksRecord | None:
        """The record after `step` steps, if one is due or these are the `last` steps for now."""
        if self._sums is None or not (last or time.monotonic() - self._last >= self._interval):
            return None
        means = [[round(float(value), 6) for value in row] for row in self._sums / self._steps]
        steps = self._steps
        self._sums, self._steps, self._last = None, 0, time.monotonic()
        return RanksRecord(step=step, steps=steps, compute=means[0], exchange=means[1], wait=means[2], input=means[3])
