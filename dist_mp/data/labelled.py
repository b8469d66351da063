"""Labelled arrays as a data set: images, series and word numbers with one class each.

An image comes as the series of its rows from the top, [H, W * colours], so that a recurrent classifier reads it like
any other series; a convolution puts the rows back together (`DataSpec.width`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.base import Dataset, DataSpec
from dist_mp.data.buckets import BucketSplit, bucket_bounds
from dist_mp.data.reviews import hold_out
from dist_mp.errors import UserError


@dataclass(frozen=True)
class Labelled:
    """Samples and their classes."""

    samples: Any
    """uint8 images [N, H, W] or [N, H, W, colours]; float series [N, L, F]; or a list of them, [L, F] each, or of
    int32 words, [L] each. Arrays may be memory-mapped."""
    labels: NDArray[np.int32]
    """[N], from 0 on."""


class Scaled(Sequence[NDArray[np.float32]]):
    """Some samples of an array as float32 [L, F], each shifted and scaled when it is asked for."""

    def __init__(
        self, samples: Any, numbers: NDArray[np.int64], mean: NDArray[np.float32], scale: NDArray[np.float32]
    ) -> None:
        """Take the samples `numbers`; mean and scale fit their last axis."""
        self._samples, self._numbers, self._mean, self._scale = samples, numbers, mean, scale

    def __len__(self) -> int:
        """Samples."""
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> NDArray[np.float32]: ...
    @overload
    def __getitem__(self, index: slice) -> Scaled: ...
    def __getitem__(self, index: int | slice) -> NDArray[np.float32] | Scaled:
        """One sample, or a part of them."""
        if isinstance(index, slice):
            return Scaled(self._samples, self._numbers[index], self._mean, self._scale)
        sample = np.asarray(self._samples[int(self._numbers[index])])
        scaled = (sample.astype(np.float32) - self._mean) / self._scale
        return scaled.reshape(len(scaled), -1)


class LabelledDataset(Dataset):
    """Training samples, a part of them held out, and test samples."""

    train: BucketSplit
    valid: BucketSplit
    test: BucketSplit

    def __init__(
        self,
        name: str,
        training: Labelled,
        test: Labelled,
        classes: Sequence[str],
        buckets: int = 6,
        max_length: int | None = None,
        validation_fraction: float = 0.1,
        order_seed: int = 1,
        split_seed: int = 7,
        vocabulary: int = 0,
    ) -> None:
        """Hold out a fraction of each class; channels are scaled to mean 0 and deviation 1 over the kept samples."""
        for part, known in (("training", training), ("test", test)):
            if not len(known.labels):
                raise UserError(f"{name}: no {part} samples")
            if known.labels.min() < 0 or known.labels.max() >= len(classes):
                raise UserError(f"{name}: a {part} class is outside 0 to {len(classes) - 1}")
        if len(classes) < 2:
            raise UserError(f"{name}: a single class; a classifier needs two at least")
        absent = np.setdiff1d(np.arange(len(classes)), training.labels)
        if len(absent):
            raise UserError(f"{name}: no training samples of class {classes[absent[0]]!r}")
        everything = np.arange(len(training.labels))
        kept, held_out = hold_out(training.labels, everything, validation_fraction, split_seed, name)
        lengths = [self._lengths(known.samples) for known in (training, test)]
        bounds = bucket_bounds(np.minimum(np.concatenate(lengths), max_length or np.iinfo(np.int64).max), buckets)
        first = np.asarray(training.samples[0])
        mean, scale = np.zeros(1, np.float32), np.ones(1, np.float32)
        if not vocabulary:
            mean, scale = _moments(training.samples, kept)
        self._moments = np.atleast_1d(mean), np.atleast_1d(scale)

        def split(known: Labelled, numbers: NDArray[np.int64], sizes: NDArray, seed: int | None) -> BucketSplit:
            sequences: Sequence[NDArray]
            if vocabulary:
                sequences = [known.samples[i] for i in numbers.tolist()]
            else:
                sequences = Scaled(known.samples, numbers, mean, scale)
            return BucketSplit(sequences, known.labels[numbers], bounds, seed, sizes[numbers])

        self.classes = tuple(classes)
        self.train, self.valid = (
            split(training, kept, lengths[0], order_seed),
            split(training, held_out, lengths[0], None),
        )
        self.test = split(test, np.arange(len(test.labels)), lengths[1], None)
        self.spec = DataSpec(
            length=int(bounds[-1]),
            vocabulary=vocabulary,
            channels=0 if vocabulary else int(np.prod(first.shape[1:])),
            classes=len(classes),
            width=first.shape[1] if first.dtype == np.uint8 else 0,
        )
        self._name = name

    @staticmethod
    def _lengths(samples: Any) -> NDArray[np.int64]:
        if isinstance(samples, np.ndarray):
            return np.full(len(samples), samples.shape[1], np.int64)
        return np.array([len(sample) for sample in samples], np.int64)

    def state(self) -> dict[str, Any]:
        """Classes, lengths and scale."""
        mean, scale = (moment.tolist() for moment in self._moments)
        return {"classes": list(self.classes), "bounds": self.train.bounds.tolist(), "mean": mean, "scale": scale}

    def describe(self) -> str:
        """One line for the run's header."""
        counts = " / ".join(f"{len(s.labels):,}" for s in (self.train, self.valid, self.test))
        spec = self.spec
        shape = f"up to {spec.length} steps of {spec.channels} channels"
        if spec.width:
            shape = f"images of {spec.length} x {spec.width} x {spec.channels // spec.width}"
        elif spec.vocabulary:
            shape = f"up to {spec.length} words of {spec.vocabulary:,}"
        return f"{self._name}: {counts} samples (train / valid / test), {shape}, {spec.classes} classes"


def _moments(samples: Any, numbers: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean and deviation of the last axis (one number for grey images), in one pass over blocks of samples."""
    first = np.asarray(samples[int(numbers[0])])
    grey = first.dtype == np.uint8 and first.ndim == 2
    total, square, count = 0.0, 0.0, 0
    for begin in range(0, len(numbers), 256):
        block = [np.asarray(samples[i], np.float64) for i in numbers[begin : begin + 256].tolist()]
        flat = np.concatenate([b.reshape(-1, 1) if grey else b.reshape(-1, first.shape[-1]) for b in block])
        total, square, count = total + flat.sum(axis=0), square + (flat**2).sum(axis=0), count + len(flat)
    mean = total / max(count, 1)
    deviation = np.sqrt(np.maximum(square / max(count, 1) - mean**2, 0.0))
    deviation = np.where(deviation > 0, deviation, 1.0)
    return np.asarray(mean, np.float32), np.asarray(deviation, np.float32)
