"""A timeline of a run for Perfetto and chrome://tracing: one JSON file a rank, complete at every moment.

Format: Google, 'Trace Event Format', the JSON object form with complete events (``"ph": "X"``).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

Event = Literal["forward", "backward", "encode", "wait", "move", "reduce", "decode", "update"]
LANES: dict[str, tuple[int, tuple[Event, ...]]] = {
    "compute": (1, ("forward", "backward", "update")),
    "exchange": (2, ("encode", "wait", "move", "reduce", "decode")),
}
"""The rows of a rank: number and events. The exchange may overlap with the computation, hence a row of its own."""

_END = b"\n]}\n"
_EVENTS_A_WRITE = 32
"""About 3 KiB, less than a page."""


class Timeline:
    """Writes the events of one rank into ``FOLDER/rank-NNNN.json``.

    The file is valid JSON whenever no write is under way: events are appended by one write that begins where the
    closing brackets stood and ends with new ones. So a run that a signal ends, SIGKILL included, leaves a trace up to
    its last flush. Events may come from several threads.
    """

    def __init__(self, folder: Path, rank: int, *, zero: float | None = None, flush_seconds: float = 1.0) -> None:
        """Make the file.

        Args:
            folder: made where it is missing.
            rank: names the file and the process in the display.
            zero: the moment, by :func:`time.perf_counter`, at which the time axis begins (default: now). Give all
                ranks the moment after one barrier, and their events line up.
            flush_seconds: events are written at most so late (s).
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"rank-{rank:04d}.json"
        self._rank = rank
        self._zero = time.perf_counter() if zero is None else zero
        self._flush_seconds = flush_seconds
        self._lane = {event: number for number, events in LANES.values() for event in events}
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._flushed = time.perf_counter()
        self._file: int | None = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        head = [self._name("process_name", 0, f"rank {rank}")]
        head += [self._name("thread_name", number, lane) for lane, (number, _) in LANES.items()]
        start = ('{"displayTimeUnit": "ms", "traceEvents": [\n' + ",\n".join(head)).encode()
        os.write(self._file, start + _END)
        self._end = len(start)

    def _name(self, kind: str, lane: int, name: str) -> str:
        return json.dumps({"name": kind, "ph": "M", "pid": self._rank, "tid": lane, "args": {"name": name}})

    def add(self, event: Event, start: float, end: float) -> None:
        """Add an event; `start` and `end` are seconds of :func:`time.perf_counter`."""
        line = (
            f'{{"name": "{event}", "ph": "X", "pid": {self._rank}, "tid": {self._lane[event]}, '
            f'"ts": {1e6 * (start - self._zero):.3f}, "dur": {1e6 * (end - start):.3f}}}'
        )
        with self._lock:
            self._lines.append(line)
            if end - self._flushed >= self._flush_seconds or len(self._lines) == _EVENTS_A_WRITE:
                self._write()

    @contextmanager
    def span(self, event: Event) -> Iterator[None]:
        """Add the ``with`` block as an event."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(event, start, time.perf_counter())

    def flush(self) -> None:
        """Write the events that wait."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        self._flushed = time.perf_counter()
        if self._file is None or not self._lines:
            return
        # One write over the old brackets. The kernel may end it early at a fatal signal, but only between two pages,
        # which is why writes are short.
        events = "".join(",\n" + line for line in self._lines).encode()
        self._lines = []
        os.pwrite(self._file, events + _END, self._end)
        self._end += len(events)

    def close(self) -> None:
        """Write the rest and close the file; a second call does nothing, and later events are dropped."""
        with self._lock:
            self._write()
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


EVENTS: tuple[Event, ...] = get_args(Event)
