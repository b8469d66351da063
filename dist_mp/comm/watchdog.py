"""Notices that ranks wait for one that does not come, names it, and ends the job."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from mpi4py import MPI

_QUESTION, _ANSWER = 1, 2
_NAMED_RANKS = 8
"""Missing ranks that the message lists one by one."""


class Place(NamedTuple):
    """Where a rank stands."""

    calls: int
    """Collective operations begun so far."""
    inside: bool
    """Whether the last of them still runs."""
    operation: str
    step: int | None
    since: float
    """Seconds since it was begun, or since it ended."""

    def __str__(self) -> str:
        doing = "in" if self.inside else "last seen after"
        return f"{doing} {self.operation or 'nothing'}{_at_step(self.step)}, for {self.since:.0f} s"


class Watchdog:
    """Ends the job when this rank waits longer than a limit in a collective operation.

    Every collective operation runs inside ``with watchdog("its name")``, which costs well under a microsecond. A
    thread looks at the time at most once a second. It answers other ranks that ask where this rank stands, by
    messages on a communicator of its own. If this rank is past the limit, it asks all others. Those that have not
    begun the operation, or do not answer at all, are the missing ranks; they are named and the job is aborted.

    Until :meth:`start` is called there is no thread, and nothing but the book-keeping happens.
    """

    step: int | None = None
    """The training step that this rank is in, for the message; set by the training loop."""

    def __init__(self, rank: int, abort: Callable[[int], None]) -> None:
        """Watch over this rank; `abort` ends all ranks with a status."""
        self._rank, self._abort = rank, abort
        self._operation, self._calls, self._inside = "", 0, False
        self._since = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._comm: Any = None
        self._sent: list[MPI.Request] = []
        self._answers: dict[int, Place] = {}
        self.limit = 0.0
        """Longest wait (s); 0 for no limit."""
        self.asks = False
        """Whether the MPI library lets a thread ask other ranks while this one waits."""

    def __call__(self, operation: str) -> Watchdog:
        """Name the operation that the following ``with`` block is."""
        self._operation = operation
        return self

    def __enter__(self) -> None:
        self._since = time.monotonic()
        self._calls += 1
        self._inside = True

    def __exit__(self, *_: object) -> None:
        self._inside = False
        self._since = time.monotonic()

    def start(self, comm: MPI.Intracomm, limit: float, *, asks: bool) -> None:
        """Begin to watch.

        Args:
            comm: all ranks; for the watchdog alone, which frees it in :meth:`free`.
            limit: longest wait (s).
            asks: whether MPI may be called from two threads at once (MPI_THREAD_MULTIPLE). Without, the message does
                not name the missing ranks.
        """
        self._comm, self.limit, self.asks = comm, limit, asks
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Not collective; a second call does nothing."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def free(self) -> None:
        """Free the communicator, after :meth:`stop`. Collective."""
        if self._comm is not None:
            self._comm.Free()
            self._comm = None

    def place(self) -> Place:
        """Where this rank stands."""
        return Place(self._calls, self._inside, self._operation, self.step, time.monotonic() - self._since)

    def _run(self) -> None:
        period = min(1.0, self.limit / 10)
        while not self._stop.wait(period):
            if self.asks:
                self._serve()
            place = self.place()
            if place.inside and place.since > self.limit:
                self._end_the_job(place, grace=2 * period + 1.0)

    def _serve(self) -> None:
        """Answer the questions of other ranks and take in their answers."""
        comm = self._comm
        while comm.iprobe(tag=_QUESTION):
            asker = comm.recv(tag=_QUESTION)
            self._sent.append(comm.isend((self._rank, self.place()), dest=asker, tag=_ANSWER))
        while comm.iprobe(tag=_ANSWER):
            rank, place = comm.recv(tag=_ANSWER)
            self._answers[rank] = place
        self._sent = [request for request in self._sent if not request.Test()]

    def _end_the_job(self, place: Place, grace: float) -> None:
        """Ask who is missing, say so, and abort; or return, if the wait has ended in the meantime."""
        if not self.asks:
            self._speak(
                f"{self._begin(place)}; which rank is missing cannot be asked: MPI_THREAD_MULTIPLE is not there"
            )
            return
        others = [rank for rank in range(self._comm.Get_size()) if rank != self._rank]
        self._answers = {}
        self._sent += [self._comm.isend(self._rank, dest=rank, tag=_QUESTION) for rank in others]
        if not self._until(lambda: len(self._answers) == len(others), place, grace):
            return
        ahead = [r for r, p in self._answers.items() if r < self._rank and p.inside and p.since > self.limit]
        # Several ranks wait for the same one: the lowest speaks, and the next ones only if it does not.
        if ahead and not self._until(lambda: False, place, grace * (1 + len(ahead))):
            return
        self._speak(f"{self._begin(place)} for {missing_ranks(place, others, self._answers)}")

    def _until(self, done: Callable[[], bool], place: Place, seconds: float) -> bool:
        """Serve until `done` or for so many seconds; returns whether this rank still waits where it did."""
        end = time.monotonic() + seconds
        while not done() and time.monotonic() < end:
            if self._stop.wait(0.02) or not self._waits(place):
                return False
            self._serve()
        return self._waits(place)

    def _waits(self, place: Place) -> bool:
        return self._inside and self._calls == place.calls

    def _begin(self, place: Place) -> str:
        return f"error: rank {self._rank} has waited {place.since:.0f} s in {place.operation}{_at_step(place.step)}"

    def _speak(self, line: str) -> None:
        sys.stderr.write(f"{line}; the job is ended (exchange.timeout_seconds = {self.limit:g})\n")
        self._abort(1)


def missing_ranks(place: Place, others: list[int], answers: dict[int, Place]) -> str:
    """The ranks that did not come to where `place` is, in words, with what is known of each."""
    words = []
    for rank in others:
        if rank not in answers:
            words.append(f"rank {rank} (does not answer)")
        elif answers[rank].calls < place.calls:
            words.append(f"rank {rank} ({answers[rank]})")
    if not words:
        return "no rank: all have come, so the network or the MPI library does not move"
    more = f" and {len(words) - _NAMED_RANKS} more" if len(words) > _NAMED_RANKS else ""
    return ", ".join(words[:_NAMED_RANKS]) + more


def _at_step(step: int | None) -> str:
    return "" if step is None else f" of step {step}"
