"""The phases of a training step on a timeline."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

from dist_mp.exchange.stats import Phase
from dist_mp.timeline import Timeline


class StepTrace:
    """Turns what it sees of a step into events of a :class:`dist_mp.timeline.Timeline`.

    Forward begins with the step and ends where the loss is known. Backward ends where the encoding of the last bucket
    begins, which needs the last gradient; other buckets may be exchanged while it runs. The update begins where the
    last bucket is decoded and ends with the step. Until :meth:`open` all of it goes nowhere.
    """

    def __init__(self) -> None:
        self._timeline: Timeline | None = None
        self._start = self._loss = self._encode = self._decoded = 0.0

    def open(self, folder: Path, rank: int) -> None:
        """Begin a file; all ranks call it at the same moment, after a barrier, so that their events line up."""
        self._timeline = Timeline(folder, rank)

    def begin(self) -> None:
        """A micro-batch begins."""
        self._start = self._loss = self._encode = self._decoded = time.perf_counter()

    def loss_known(self) -> None:
        """Forward is over; called from within the graph."""
        self._loss = time.perf_counter()

    def exchanged(self, phase: Phase, start: float, end: float) -> None:
        """A phase of the exchange is over."""
        if phase == "encode":
            self._encode = start
        elif phase == "decode":
            self._decoded = end
        if self._timeline is not None:
            self._timeline.add(phase, start, end)

    def end(self, *, updated: bool) -> None:
        """The micro-batch is over, with the exchange and an update or without."""
        now = time.perf_counter()
        if self._timeline is not None:
            self._timeline.add("forward", self._start, self._loss)
            self._timeline.add("backward", self._loss, self._encode if updated else now)
            if updated:
                self._timeline.add("update", self._decoded, now)

    def close(self) -> None:
        """Write what is left."""
        if self._timeline is not None:
            self._timeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
