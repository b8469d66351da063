"""Time series classification in the `.ts` format of the UCR and UEA archives, also with unequal lengths.

A file has a header of lines ``@key value`` up to ``@data``, then a series a line: channels apart by colons, values by
commas, the class last (``1.0,2.5:0.3,0.4:label``). A missing value is ``?``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.base import Dataset, DataSpec
from dist_mp.data.buckets import BucketSplit, bucket_bounds
from dist_mp.data.reviews import hold_out
from dist_mp.errors import UserError


@dataclass(frozen=True)
class SeriesFile:
    """The contents of a `.ts` file."""

    classes: tuple[str, ...]
    series: list[NDArray[np.float32]]
    """[L, C] each; C is the same in all."""
    labels: NDArray[np.int32]
    """Indices into `classes`."""
    missing: int
    """Values that were missing and filled with the last one before them (0 at the beginning)."""


def read_ts(path: Path, known: tuple[str, ...] | None = None) -> SeriesFile:
    """Read a file; refuses, naming the line, what is not series of numbers with a known class.

    With the classes `known` of a model, labels are indices into them, and a file without classes is read too: its
    classes are then empty, its labels 0.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is not UTF-8; a .ts file is text") from error
    lines = text.splitlines()
    header, first = _read_header(path, lines)
    if header.get("timestamps", "false") == "true":
        raise UserError(f"{path}: @timeStamps true is not supported; evenly sampled series without stamps are")
    label_words = header.get("classlabel", "false").split()
    labelled = len(label_words) >= 2 and label_words[0] == "true"
    if not labelled and known is None:
        raise UserError(f"{path}: the header needs '@classLabel true' with the names of at least one class")
    classes = tuple(label_words[1:]) if labelled else ()
    strange = sorted(set(classes) - set(known or classes))
    if strange:
        raise UserError(f"{path}: class {strange[0][:40]!r} is not among {' '.join(known or ())[:80]}, which are known")
    classes = known if labelled and known is not None else classes
    series: list[NDArray[np.float32]] = []
    labels: list[int] = []
    missing = 0
    for number, line in enumerate(lines[first:], first + 1):
        if not line.strip() or line.startswith("#"):
            continue
        values, label, gaps = _read_series(f"{path}, line {number}", line, classes)
        if series and values.shape[1] != series[0].shape[1]:
            raise UserError(f"{path}, line {number}: {values.shape[1]} channels, but {series[0].shape[1]} before it")
        series.append(values)
        labels.append(label)
        missing += gaps
    if not series:
        raise UserError(f"{path}: no series after @data")
    return SeriesFile(classes, series, np.array(labels, np.int32), missing)


def _read_header(path: Path, lines: list[str]) -> tuple[dict[str, str], int]:
    """Header fields in lower case, but for the class names, and the index of the first line after @data."""
    header: dict[str, str] = {}
    for index, line in enumerate(lines):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        if not stripped.startswith("@"):
            break
        key, _, value = stripped[1:].partition(" ")
        if key.lower() == "data":
            return header, index + 1
        header[key.lower()] = value.strip() if key.lower() == "classlabel" else value.strip().lower()
    raise UserError(f"{path}: no @data line; not a .ts file")


def _read_series(where: str, line: str, classes: tuple[str, ...]) -> tuple[NDArray[np.float32], int, int]:
    """Values [L, C], class and number of missing values of one line."""
    *channels, name = (line.strip() if classes else f"{line.strip()}:").split(":")
    if classes and name not in classes:
        raise UserError(f"{where}: class {name[:40]!r} is not among @classLabel {' '.join(classes)[:80]}")
    if not channels:
        raise UserError(f"{where}: no values before the class")
    columns = []
    for channel, text in enumerate(channels, 1):
        words = ["nan" if word.strip() == "?" else word for word in text.split(",")]
        try:
            columns.append(np.array(words, np.float64))
        except ValueError as error:
            raise UserError(f"{where}, channel {channel}: {error}") from error
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise UserError(f"{where}: channels of different lengths {sorted(lengths)}")
    values = np.stack(columns, axis=1)
    if np.isinf(values).any():
        raise UserError(f"{where}: an infinite value")
    if (np.abs(values) > np.finfo(np.float32).max).any():
        raise UserError(f"{where}: a value beyond the range of 32-bit numbers")
    gaps = np.isnan(values)
    if gaps.any():
        # Causal: the last value seen before the gap.
        last = np.maximum.accumulate(np.where(gaps, -1, np.arange(len(values))[:, None]), axis=0)
        values = np.where(last >= 0, np.take_along_axis(values, np.maximum(last, 0), axis=0), 0.0)
    return values.astype(np.float32), classes.index(name) if classes else 0, int(gaps.sum())


class SeriesDataset(Dataset):
    """Labelled series, each channel brought to mean 0 and deviation 1 over the training series, in buckets."""

    train: BucketSplit
    valid: BucketSplit
    test: BucketSplit

    def __init__(
        self, path: Path, buckets: int = 4, validation_fraction: float = 0.2, order_seed: int = 1, split_seed: int = 7
    ) -> None:
        """Read NAME_TRAIN.ts, given by its path, and NAME_TEST.ts beside it."""
        if not path.name.endswith("_TRAIN.ts"):
            raise UserError(f"{path}: name the training file, which ends in _TRAIN.ts")
        test_path = path.with_name(path.name.removesuffix("_TRAIN.ts") + "_TEST.ts")
        training, test = read_ts(path), read_ts(test_path)
        channels = training.series[0].shape[1]
        if test.classes != training.classes:
            raise UserError(f"{test_path}: its classes differ from those of {path.name}")
        if test.series[0].shape[1] != channels:
            raise UserError(f"{test_path}: {test.series[0].shape[1]} channels, but {channels} in {path.name}")
        if len(training.classes) < 2:
            raise UserError(f"{path}: a single class, {training.classes[0]!r}; a classifier needs two at least")
        absent = np.setdiff1d(np.arange(len(training.classes)), training.labels)
        if len(absent):
            raise UserError(f"{path}: no series of class {training.classes[absent[0]]!r}, which its header names")
        kept, held_out = hold_out(
            training.labels, np.arange(len(training.labels)), validation_fraction, split_seed, str(path)
        )
        steps = np.concatenate([training.series[i] for i in kept.tolist()]).astype(np.float64)
        mean, deviation = steps.mean(axis=0), steps.std(axis=0)
        deviation[deviation == 0] = 1.0
        self._moments = mean, deviation

        def scaled(series: list[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
            return [((s - mean) / deviation).astype(np.float32) for s in series]

        lengths = np.array([len(s) for s in training.series + test.series], np.int64)
        bounds = bucket_bounds(lengths, buckets)
        known = scaled(training.series)
        self.classes = training.classes
        self.train = BucketSplit([known[i] for i in kept.tolist()], training.labels[kept], bounds, order_seed)
        self.valid = BucketSplit([known[i] for i in held_out.tolist()], training.labels[held_out], bounds, None)
        self.test = BucketSplit(scaled(test.series), test.labels, bounds, None)
        self.spec = DataSpec(length=int(bounds[-1]), channels=channels, classes=len(training.classes))
        self._path, self._missing = path, training.missing + test.missing

    def state(self) -> dict[str, Any]:
        """Classes, lengths and scale."""
        mean, deviation = (moment.tolist() for moment in self._moments)
        bounds = self.train.bounds.tolist()
        return {"classes": list(self.classes), "bounds": bounds, "mean": mean, "scale": deviation}

    def describe(self) -> str:
        """One line for the run's header."""
        counts = " / ".join(str(len(s.labels)) for s in (self.train, self.valid, self.test))
        filled = f", {self._missing} missing values filled" if self._missing else ""
        return (
            f"{self._path.name}: {counts} series (train / valid / test), {self.spec.channels} channels, "
            f"{self.spec.classes} classes, up to {self.spec.length} steps{filled}"
        )
