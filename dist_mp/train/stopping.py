"""Signals that ask a run to stop: remembered here, acted on at the end of a step, when all ranks know of it."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Stopped(Exception):  # noqa: N818 - no error
    """A signal asked the run to stop; raised on all ranks at once."""


class StopRequest:
    """While inside ``with``, SIGTERM, SIGINT and SIGUSR1 do nothing but set :attr:`number`.

    Nothing is saved in a signal handler: it may run in the middle of anything. A second SIGINT interrupts at once.
    Schedulers may send the other two several times, which changes nothing.
    """

    number: int = 0
    """The first such signal, 0 while there was none."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if not self.number:
            self.number = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        """Take the signals over; outside the main thread there is nothing to take."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
