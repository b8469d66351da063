"""Sequences of unequal length with one label each, batched by length so that little of a batch is padding.

A classifier reads a whole sequence and is scored at its last valid step: the label stands there with weight 1, and
every other step has weight 0. The loss over a batch is then the sum over samples by their number, by the same rule as
for a loss at every step, and a sample that is all padding counts nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.base import Batch, Split


def bucket_bounds(lengths: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """At most `count` rising bucket lengths with about the same number of sequences each; the last is the longest.

    Few distinct lengths keep the number of compiled graphs small, one a bucket.
    """
    if count < 1 or not len(lengths):
        raise ValueError(f"needs at least one bucket and one sequence, got {count} and {len(lengths)}")
    ranked = np.sort(np.maximum(lengths, 1))
    return np.unique(ranked[np.linspace(0, len(ranked) - 1, count + 1).astype(int)[1:]])


@dataclass(frozen=True)
class BucketPlan:
    """The rows of all global batches of an epoch."""

    sequence: NDArray[np.int32]
    """[steps, rows], number of the sequence, -1 where the row is idle."""
    length: NDArray[np.int64]
    """[steps], T of each batch: the length of its bucket."""


def plan_buckets(
    lengths: NDArray[np.int64],
    bounds: NDArray[np.int64],
    order: NDArray[np.int64],
    rows: int,
    seed: tuple[int, ...] | None,
) -> BucketPlan:
    """Fill batches of one bucket each with the sequences of `order`, and shuffle the batches by `seed` (None: not).

    What does not fill a batch of its bucket moves on to the next longer one, so that an epoch has
    ceil(sequences / rows) steps and only the last batch of the longest bucket has idle rows.
    """
    bucket_of = np.searchsorted(bounds, np.maximum(lengths, 1))
    batches: list[NDArray[np.int64]] = []
    sizes: list[int] = []
    waiting = np.empty(0, np.int64)
    for bucket, bound in enumerate(bounds.tolist()):
        waiting = np.concatenate([waiting, order[bucket_of[order] == bucket]])
        last = bucket + 1 == len(bounds)
        full = -(-len(waiting) // rows) if last else len(waiting) // rows
        batches.extend(waiting[i * rows : (i + 1) * rows] for i in range(full))
        sizes.extend([bound] * full)
        waiting = waiting[full * rows :]
    sequence = np.full((len(batches), rows), -1, np.int32)
    for step, batch in enumerate(batches):
        sequence[step, : len(batch)] = batch
    length = np.array(sizes, np.int64)
    if seed is not None:
        shuffle = np.random.default_rng(seed).permutation(len(batches))
        sequence, length = sequence[shuffle], length[shuffle]
    return BucketPlan(sequence, length)


class BucketSplit(Split):
    """Labelled sequences in buckets of similar length.

    T differs between batches, but takes only the values of `bounds`. Longer sequences than the last bound keep their
    last steps, as Keras's `pad_sequences` does.
    """

    def __init__(
        self,
        sequences: Sequence[NDArray],
        labels: NDArray[np.int32],
        bounds: NDArray[np.int64],
        order_seed: int | None,
        lengths: NDArray[np.int64] | None = None,
    ) -> None:
        """Take sequences [L] of words (int32) or [L, F] of features (float32); `order_seed` None keeps one order.

        Where `lengths` are given, no sequence is read before it is in a batch.
        """
        if len(sequences) != len(labels):
            raise ValueError(f"{len(sequences)} sequences with {len(labels)} labels")
        self.sequences = sequences
        self.labels = labels
        self.bounds = bounds
        known = np.array([len(s) for s in sequences], np.int64) if lengths is None else lengths
        self.lengths = np.minimum(known, bounds[-1])
        self._order_seed = order_seed
        self._left = np.arange(len(sequences))
        self._last_plan: tuple[tuple[int, int], BucketPlan] | None = None

    def plan(self, epoch: int, global_rows: int) -> BucketPlan:
        """The rows of all global batches of an epoch, the same on every rank."""
        key = (epoch if self._order_seed is not None else 0, global_rows)
        if self._last_plan is not None and self._last_plan[0] == key:
            return self._last_plan[1]
        if self._order_seed is None:
            plan = plan_buckets(self.lengths, self.bounds, self._left, global_rows, None)
        else:
            order = np.random.default_rng((self._order_seed, epoch, 0)).permutation(self._left)
            plan = plan_buckets(self.lengths, self.bounds, order, global_rows, (self._order_seed, epoch, 1))
        self._last_plan = key, plan
        return plan

    def steps(self, epoch: int, global_rows: int) -> int:
        """Global batches in an epoch."""
        return -(-len(self._left) // global_rows)

    def remainder(self, epoch: int, global_rows: int, steps: int) -> BucketSplit:
        """See :class:`Split`: the sequences that were in none of these batches, with the same numbers."""
        rest = copy.copy(self)
        rest._left = np.setdiff1d(self._left, self.plan(epoch, global_rows).sequence[:steps])
        rest._last_plan = None
        return rest

    def batches(self, epoch: int, global_rows: int, first_row: int, rows: int, start_step: int = 0) -> Iterator[Batch]:
        """See :class:`Split`; every row begins a new sequence. Targets are int32 [B, T]."""
        if not 0 <= first_row <= first_row + rows <= global_rows:
            raise ValueError(f"rows {first_row} to {first_row + rows} are not within {global_rows}")
        plan = self.plan(epoch, global_rows)
        for step in range(start_step, len(plan.sequence)):
            yield self._batch(plan.sequence[step, first_row : first_row + rows], int(plan.length[step]))

    def _batch(self, sequence: NDArray[np.int32], length: int) -> Batch:
        rows = len(sequence)
        sample = self.sequences[0]
        inputs = np.zeros((rows, length, *sample.shape[1:]), sample.dtype)
        targets = np.zeros((rows, length), np.int32)
        weight = np.zeros((rows, length), np.float32)
        for row, which in enumerate(sequence.tolist()):
            steps = int(self.lengths[which]) if which >= 0 else 0
            if steps:
                inputs[row, :steps] = self.sequences[which][-steps:]
                targets[row, steps - 1] = self.labels[which]
                weight[row, steps - 1] = 1.0
        return Batch(inputs, targets, weight, np.ones(rows, np.bool_), sequence.copy(), np.zeros(rows, np.int32))
