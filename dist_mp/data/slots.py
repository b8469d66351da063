"""Which piece of which sequence each row of each global batch holds, in stateful training.

A global batch has `rows` slots. A slot works through one sequence at a time, window by window, and its recurrent
state is carried from one window to the next; at the first window of the next sequence the state is reset. This is
the scheme of FRNN's loader (Kates-Harbeck, Svyatkovskiy and Tang 2019), with one difference: every time step is
visited exactly once an epoch, so that an epoch means the same on any number of ranks.

The plan follows from the lengths alone. It is cheap, the same on every rank, and no rank reads data to make it.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SlotPlan:
    """The rows of all global batches of an epoch: arrays [steps, rows]."""

    sequence: NDArray[np.int32]
    """Number of the sequence, -1 where the slot is idle."""
    position: NDArray[np.int32]
    """First time step of the window within its sequence (0 where idle)."""
    valid: NDArray[np.int32]
    """Valid time steps of the window; the rest is padding at its end (0 where idle)."""
    reset: NDArray[np.bool_]
    """True at the first window of a sequence, and where the slot is idle."""

    @property
    def steps(self) -> int:
        """Global batches in the epoch."""
        return len(self.sequence)


def shuffled_order(lengths: NDArray[np.int64], rows: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """Sequence numbers in random order, but for the tail: the last 2 * `rows` go longest first.

    Slots run out one by one at the end of an epoch. A long sequence that begins last would leave all other slots
    idle beside it; short ones at the end fill the gaps (the rule of longest processing time first, Graham 1969).
    At most half of the sequences are sorted, so that small data sets are still shuffled.
    """
    order = np.random.default_rng(seed).permutation(len(lengths))
    tail = min(2 * rows, len(order) // 2)
    if tail:
        last = order[-tail:]
        order[-tail:] = last[np.argsort(-lengths[last], kind="stable")]
    return order


def plan_slots(lengths: NDArray[np.int64], order: NDArray[np.int64], window: int, rows: int) -> SlotPlan:
    """Give each sequence of `order` in turn to the slot that is free first (of several the lowest).

    The first sequences of all slots begin at the same step. FRNN starts them at random offsets, so that the slots do
    not reset together; here the lengths differ anyway, and each slot is out of step with its neighbours from its
    second sequence on, without a sequence that begins in its middle and lacks its past.

    A window that reaches beyond the end of its sequence is padded there: it never runs into the next sequence, whose
    state starts from zero.
    """
    windows = -(-lengths // window)
    free = [(0, slot) for slot in range(rows)]
    starts = np.zeros(len(order), np.int64)
    slots = np.zeros(len(order), np.int64)
    for i, number in enumerate(order):
        begin, slot = heapq.heappop(free)
        starts[i], slots[i] = begin, slot
        heapq.heappush(free, (begin + int(windows[number]), slot))
    steps = max((end for end, _ in free), default=0)

    sequence = np.full((steps, rows), -1, np.int32)
    position = np.zeros((steps, rows), np.int32)
    valid = np.zeros((steps, rows), np.int32)
    reset = np.ones((steps, rows), np.bool_)
    counts = windows[order]
    owner = np.repeat(np.arange(len(order)), counts)
    nth = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = (starts[owner] + nth, slots[owner])
    sequence[at] = order[owner]
    position[at] = nth * window
    valid[at] = np.minimum(window, lengths[order[owner]] - nth * window)
    reset[at] = nth == 0
    return SlotPlan(sequence, position, valid, reset)
