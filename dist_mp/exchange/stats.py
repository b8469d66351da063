"""Where the time of an exchange goes, and how many bytes it moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from time import perf_counter
from typing import Literal

Phase = Literal["encode", "wait", "move", "reduce", "decode"]
Span = Callable[[Phase, float, float], None]
"""Takes a phase with its start and end, in seconds of time.perf_counter."""


@dataclass
class ExchangeStats:
    """Running totals of one rank since the start, or the difference of two of them."""

    encode: float = 0.0
    """Gradients to wire (s)."""
    wait: float = 0.0
    """For the slowest rank, before anything moves (s)."""
    move: float = 0.0
    """Bytes in MPI, and the barriers between phases (s)."""
    reduce: float = 0.0
    """FP32 sums of the ranks' pieces (s)."""
    decode: float = 0.0
    """Wire to FP32 means (s)."""
    network_bytes: int = 0
    """Bytes that this rank handed to MPI for other ranks."""
    shared_bytes: int = 0
    """Bytes of this rank's shared memory that the other ranks of its node read."""
    calls: int = 0
    """Buckets averaged."""

    @property
    def exchange_seconds(self) -> float:
        """Everything but the waiting."""
        return self.encode + self.move + self.reduce + self.decode

    @property
    def wait_seconds(self) -> float:
        """The waiting for the slowest rank."""
        return self.wait

    @property
    def sent_bytes(self) -> int:
        """Bytes for other ranks, by MPI or by shared memory."""
        return self.network_bytes + self.shared_bytes

    def snapshot(self) -> ExchangeStats:
        """A copy of the totals as they stand."""
        return replace(self)

    def since(self, before: ExchangeStats) -> ExchangeStats:
        """What was added after the snapshot `before`."""
        return ExchangeStats(*(getattr(self, f.name) - getattr(before, f.name) for f in fields(self)))

    def reset(self) -> None:
        """Set all totals to 0."""
        for field in fields(self):
            setattr(self, field.name, field.default)


class Stopwatch:
    """Adds the time between laps to the totals, and hands each lap on to a timeline if there is one."""

    def __init__(self, stats: ExchangeStats, span: Span | None = None) -> None:
        """Count into `stats`; `span` gets every lap."""
        self.stats = stats
        self._span = span
        self._last = 0.0

    def start(self) -> None:
        """Begin the first lap."""
        self._last = perf_counter()

    def lap(self, phase: Phase) -> None:
        """End a lap, count it to `phase` and begin the next."""
        now = perf_counter()
        setattr(self.stats, phase, getattr(self.stats, phase) + now - self._last)
        if self._span is not None:
            self._span(phase, self._last, now)
        self._last = now
