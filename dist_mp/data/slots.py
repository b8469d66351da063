"""Which piece of which sequence each row of each global batch holds, in stateful training.

A global batch has `rows` slots. A slot works through one sequence at a time, window by window, and its recurrent
state is carried from one window to the next; at the first window of the next sequence the state is reset. This is
the scheme of FRNN's loader (Kates-Harbeck, Svyatkovskiy and Tang 2019), also in that the first sequences of an epoch
begin at random places, so that the slots do not reset together. One thing differs: every time step is visited exactly
once an epoch, so that an epoch means the same on any number of ranks.

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


@dataclass(frozen=True)
class Pieces:
    """Stretches of sequences, each run through from a state of zero; arrays [N]."""

    sequence: NDArray[np.int64]
    begin: NDArray[np.int64]
    """First time step of the piece within its sequence."""
    length: NDArray[np.int64]

    @classmethod
    def whole(cls, lengths: NDArray[np.int64]) -> Pieces:
        """Each sequence in one piece."""
        return cls(np.arange(len(lengths)), np.zeros(len(lengths), np.int64), lengths)

    def shuffled(self, window: int, rows: int, seed: tuple[int, ...], offsets: bool) -> Pieces:
        """In the order of :func:`shuffled_order`, the first `rows` of them from a random window on if `offsets`.

        What lies before that window becomes a piece of its own and has its turn later in the epoch. Where there are
        not more pieces than rows nothing is cut: no slot would reset a second time.
        """
        order = shuffled_order(self.length, rows, seed)
        if not offsets or len(order) <= rows:
            return self.take(order)
        rng = np.random.default_rng((*seed, 1))
        first = self.take(order[:rows])
        cut = window * (rng.random(rows) * -(-first.length // window)).astype(np.int64)
        tails = Pieces(first.sequence, first.begin + cut, first.length - cut)
        heads = Pieces(first.sequence, first.begin, cut).take(np.flatnonzero(cut))
        later = self.take(order[rows:]).join(heads)
        return tails.join(later.take(shuffled_order(later.length, rows, (*seed, 2))))

    def take(self, which: NDArray[np.int64]) -> Pieces:
        """Some pieces, in the order of `which`."""
        return Pieces(self.sequence[which], self.begin[which], self.length[which])

    def join(self, other: Pieces) -> Pieces:
        """These pieces, then others."""
        return Pieces(
            np.concatenate([self.sequence, other.sequence]),
            np.concatenate([self.begin, other.begin]),
            np.concatenate([self.length, other.length]),
        )

    def plan(self, window: int, rows: int) -> SlotPlan:
        """Deal the pieces in their order; sequence and position in the plan are those of the sequences."""
        plan = plan_slots(self.length, np.arange(len(self.length)), window, rows)
        busy = plan.sequence >= 0
        piece = np.where(busy, plan.sequence, 0)
        if not len(self.sequence):
            return plan
        sequence = np.where(busy, self.sequence[piece], -1).astype(np.int32)
        position = np.where(busy, self.begin[piece] + plan.position, 0).astype(np.int32)
        return SlotPlan(sequence, position, plan.valid, plan.reset)

    def remainder(self, window: int, rows: int, steps: int) -> Pieces:
        """What is left of the pieces, in their order, after the first `steps` global batches of :meth:`plan`."""
        plan = plan_slots(self.length, np.arange(len(self.length)), window, rows)
        done = np.zeros(len(self.length), np.int64)
        busy = plan.sequence[:steps] >= 0
        np.add.at(done, plan.sequence[:steps][busy], plan.valid[:steps][busy])
        rest = Pieces(self.sequence, self.begin + done, self.length - done)
        return rest.take(np.flatnonzero(rest.length))


def plan_slots(lengths: NDArray[np.int64], order: NDArray[np.int64], window: int, rows: int) -> SlotPlan:
    """Give each sequence of `order` in turn to the slot that is free first (of several the lowest).

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
