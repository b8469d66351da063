"""Batches prepared ahead of the training step, on one background thread."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _Channel(Generic[Item]):
    """A bounded queue between one producer thread and one consumer; holds no reference to either."""

    def __init__(self, source: Iterator[Item], depth: int) -> None:
        self.source = source
        self.depth = depth
        self.changed = threading.Condition()
        self.ready: deque[Item] = deque()
        self.finished = False
        self.closed = False
        self.error: BaseException | None = None

    def produce(self) -> None:
        """Body of the thread: fill the queue until the source ends, fails, or the consumer closes."""
        error: BaseException | None = None
        try:
            while self._wait_for_room():
                try:
                    item = next(self.source)
                except StopIteration:
                    break
                with self.changed:
                    if self.closed:
                        break
                    self.ready.append(item)
                    self.changed.notify_all()
            close = getattr(self.source, "close", None)
            if close is not None:
                close()
        except BaseException as raised:
            error = raised
        with self.changed:
            self.error = error
            self.finished = True
            self.changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.closed or len(self.ready) < self.depth)
            return not self.closed

    def close(self) -> None:
        """Tell the producer to stop after the item it is at."""
        with self.changed:
            self.closed = True
            self.ready.clear()
            self.changed.notify_all()


class Prefetcher(Generic[Item]):
    """An iterator that takes items of `source` on a thread, at most `depth` ahead.

    An exception of the source is raised where the consumer reaches it, after the items before it. The thread is a
    daemon and ends with :meth:`close`, with the ``with`` block, or when the prefetcher is forgotten, so that a
    consumer that stops early leaves nothing behind. The source runs on the thread alone and is closed there.
    """

    def __init__(self, source: Iterator[Item], depth: int = 2) -> None:
        """Start to prepare `depth` (at least 1) items of `source`."""
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self.wait_seconds = 0.0
        """Time that the consumer has waited for items so far (seconds)."""
        self._channel = _Channel(source, depth)
        self._thread = threading.Thread(target=self._channel.produce, name="dist-mp-prefetch", daemon=True)
        self._thread.start()
        weakref.finalize(self, self._channel.close)

    def __iter__(self) -> Iterator[Item]:
        """Itself."""
        return self

    def __next__(self) -> Item:
        """The next item; raises what the source raised."""
        channel = self._channel
        started = time.perf_counter()
        with channel.changed:
            channel.changed.wait_for(lambda: channel.ready or channel.finished or channel.closed)
            self.wait_seconds += time.perf_counter() - started
            if channel.ready:
                item = channel.ready.popleft()
                channel.changed.notify_all()
                return item
            error, channel.error = channel.error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Stop the thread and wait until it has ended; items not yet taken are dropped."""
        self._channel.close()
        self._thread.join()

    def __enter__(self) -> Prefetcher[Item]:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
