"""Samples from anything that can be gone through in order, such as a `tf.data` pipeline of the user's own.

    def samples(epoch):                      # the same in every epoch on every rank, but for an order of its own
        return pipeline.shuffle(1000, seed=epoch).as_numpy_iterator()

    train = StreamSplit(samples, count=60_000, length=28)

Each rank goes through all samples and keeps its own: the order is the pipeline's, and no rank talks to another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.base import Batch, Dataset, DataSpec, Split
from dist_mp.errors import UserError

Sample = tuple[Any, Any]


class StreamSplit(Split):
    """Labelled samples in the order of a stream; sample i is row i mod G of global batch i // G."""

    def __init__(self, samples: Callable[[int], Iterable[Sample]], count: int, length: int) -> None:
        """Take a function from the epoch to its samples, `count` pairs of inputs and class.

        Inputs are words [L] or features [L, F] (any numbers; they become int32 and float32), with L from 1 to `length`.
        """
        if count < 1 or length < 1:
            raise UserError(f"a stream needs at least one sample of at least one step, got {count} and {length}")
        self._samples, self.count, self._length = samples, count, length
        self._done = 0

    def steps(self, epoch: int, global_rows: int) -> int:
        """Global batches in an epoch."""
        return -(-(self.count - self._done) // global_rows)

    def remainder(self, epoch: int, global_rows: int, steps: int) -> StreamSplit:
        """See :class:`Split`: the samples behind those of these batches."""
        rest = copy.copy(self)
        rest._done = min(self._done + steps * global_rows, self.count)
        return rest

    def batches(self, epoch: int, global_rows: int, first_row: int, rows: int, start_step: int = 0) -> Iterator[Batch]:
        """See :class:`Split`; every row begins a new sequence. Targets are int32 [B, T], at the last step of each.

        Raises :class:`UserError` where the stream has another number of samples, or one of another shape.
        """
        if not 0 <= first_row <= first_row + rows <= global_rows:
            raise ValueError(f"rows {first_row} to {first_row + rows} are not within {global_rows}")
        stream = iter(self._samples(epoch))
        first = next(stream, None)
        if first is None:
            raise UserError(f"epoch {epoch}: the stream is empty; {self.count} samples were announced")
        shape, dtype = self._shape(np.asarray(first[0]), 0)
        rest = islice(_chain(first, stream), self._done + start_step * global_rows, None)
        for step in range(start_step, self.steps(epoch, global_rows)):
            batch = self._empty(rows, shape, dtype)
            begin = self._done + step * global_rows
            expected = min(global_rows, self.count - begin)
            found = 0
            for row, (inputs, label) in enumerate(islice(rest, expected)):
                found += 1
                if first_row <= row < first_row + rows:
                    self._put(batch, row - first_row, begin + row, np.asarray(inputs), label, shape)
            if found < expected:
                raise UserError(
                    f"epoch {epoch}: the stream ended after {begin + found} samples; {self.count} were announced"
                )
            yield batch
        if next(rest, None) is not None:
            raise UserError(f"epoch {epoch}: the stream goes on after the {self.count} samples that were announced")

    def _shape(self, inputs: NDArray, number: int) -> tuple[tuple[int, ...], np.dtype]:
        """Shape behind the time steps and type; refuses what is neither words nor features."""
        words = inputs.ndim == 1 and inputs.dtype.kind in "iu"
        if not words and not (inputs.ndim == 2 and inputs.dtype.kind in "iuf"):
            raise UserError(
                f"sample {number}: {inputs.dtype} {inputs.shape}; words are whole numbers [L], features numbers [L, F]"
            )
        return inputs.shape[1:], np.dtype(np.int32 if words else np.float32)

    def _empty(self, rows: int, shape: tuple[int, ...], dtype: np.dtype) -> Batch:
        return Batch(
            inputs=np.zeros((rows, self._length, *shape), dtype),
            targets=np.zeros((rows, self._length), np.int32),
            weight=np.zeros((rows, self._length), np.float32),
            reset=np.ones(rows, np.bool_),
            sequence=np.full(rows, -1, np.int32),
            position=np.zeros(rows, np.int32),
        )

    def _put(self, batch: Batch, row: int, number: int, inputs: NDArray, label: Any, shape: tuple[int, ...]) -> None:
        steps = len(inputs) if inputs.ndim else 0
        if not 1 <= steps <= self._length or self._shape(inputs, number) != (shape, batch.inputs.dtype):
            raise UserError(
                f"sample {number}: {inputs.dtype} {inputs.shape}; expected are 1 to {self._length} steps of {shape} "
                f"{batch.inputs.dtype}, like the first sample"
            )
        if not np.isfinite(inputs).all():
            raise UserError(f"sample {number}: holds a number that is not finite")
        assert batch.sequence is not None
        batch.inputs[row, :steps] = inputs
        batch.targets[row, steps - 1] = int(label)
        batch.weight[row, steps - 1] = 1.0
        batch.sequence[row] = number


def _chain(first: Sample, rest: Iterator[Sample]) -> Iterator[Sample]:
    yield first
    yield from rest


class StreamDataset(Dataset):
    """Streams for training and held-out samples."""

    def __init__(self, spec: DataSpec, train: StreamSplit, valid: StreamSplit, test: StreamSplit | None = None) -> None:
        """Put the splits together; `spec` names classes, and channels or the size of the vocabulary."""
        self.spec, self.train, self.valid, self.test = spec, train, valid, test
        self._counts = train.count, valid.count

    def describe(self) -> str:
        """One line for the run's header."""
        return f"streams of {self._counts[0]:,} training and {self._counts[1]:,} held-out samples"
