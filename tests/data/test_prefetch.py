"""Prefetching: the same items in the same order, errors where they happen, and no thread left behind."""

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from dist_mp.data.prefetch import Prefetcher

LIMIT = 30.0


def prefetch_threads() -> int:
    return sum(thread.name == "dist-mp-prefetch" for thread in threading.enumerate())


def wait_for_no_thread() -> None:
    deadline = time.monotonic() + LIMIT
    while prefetch_threads() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert prefetch_threads() == 0


class Source:
    """Counts what was taken, and whether it was closed, and by which thread."""

    def __init__(self, count: int, fail_at: int | None = None) -> None:
        self.taken = 0
        self.closed = False
        self.threads: set[str] = set()
        self._count, self._fail_at = count, fail_at

    def items(self) -> Iterator[int]:
        try:
            for number in range(self._count):
                self.threads.add(threading.current_thread().name)
                if number == self._fail_at:
                    raise OSError(f"item {number} is broken")
                self.taken += 1
                yield number
        finally:
            self.closed = True
            self.threads.add(threading.current_thread().name)


@pytest.mark.parametrize("depth", [1, 2, 7, 100])
def test_items_arrive_in_order_from_one_thread(depth: int) -> None:
    source = Source(50)
    with Prefetcher(source.items(), depth) as items:
        assert list(items) == list(range(50))
        assert next(items, "end") == "end"
    assert source.threads == {"dist-mp-prefetch"}
    assert prefetch_threads() == 0


def test_an_empty_source_ends_at_once() -> None:
    with Prefetcher(iter(())) as items:
        assert list(items) == []


def test_no_more_than_depth_items_are_taken_ahead() -> None:
    source = Source(100)
    with Prefetcher(source.items(), 3) as items:
        assert next(items) == 0
        deadline = time.monotonic() + LIMIT
        while source.taken < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05)
        # One was given out, three wait; a fourth is not begun.
        assert source.taken == 4


def test_an_error_comes_after_the_items_before_it() -> None:
    source = Source(10, fail_at=4)
    with Prefetcher(source.items(), 2) as items:
        assert [next(items) for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(OSError, match="item 4 is broken"):
            next(items)
        assert next(items, "end") == "end"
    assert prefetch_threads() == 0


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_consumer_that_stops_early_leaves_nothing(taken: int) -> None:
    source = Source(1000)
    with Prefetcher(source.items(), 2) as items:
        for _ in range(taken):
            next(items)
    assert prefetch_threads() == 0
    assert source.taken < 20
    if source.taken:
        assert source.closed


def test_an_error_of_the_consumer_closes_too() -> None:
    def consume() -> None:
        with Prefetcher(Source(1000).items(), 2) as items:
            next(items)
            raise RuntimeError("the step failed")

    with pytest.raises(RuntimeError, match="the step failed"):
        consume()
    assert prefetch_threads() == 0


def test_closing_twice_is_the_same_as_once() -> None:
    items = Prefetcher(iter(range(5)))
    items.close()
    items.close()
    assert next(items, "end") == "end"


def test_a_forgotten_prefetcher_stops_its_thread() -> None:
    items = Prefetcher(Source(1000).items(), 2)
    assert next(items) == 0
    del items
    gc.collect()
    wait_for_no_thread()


def test_waiting_time_is_measured() -> None:
    gate = threading.Event()

    def slow() -> Iterator[int]:
        gate.wait(LIMIT)
        yield 1

    with Prefetcher(slow()) as items:
        threading.Timer(0.2, gate.set).start()
        assert items.wait_seconds == 0.0
        assert next(items) == 1
        assert 0.1 < items.wait_seconds < LIMIT


def test_depth_must_be_positive() -> None:
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        Prefetcher(iter(()), 0)
