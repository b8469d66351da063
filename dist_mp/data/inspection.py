"""What is in a data set, in lines for a reader: shapes, lengths, balance of the classes, and what was refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dist_mp.config import TextData
from dist_mp.data.arrays import array_dataset
from dist_mp.data.buckets import BucketSplit
from dist_mp.data.detect import KINDS, detect
from dist_mp.data.images import cifar_dataset, idx_dataset
from dist_mp.data.labelled import LabelledDataset
from dist_mp.data.machine import read_machine
from dist_mp.data.processed import ProcessedShots, Refusals, reason_text
from dist_mp.data.recordings import open_recordings
from dist_mp.data.reviews import CLASSES, ReviewDataset
from dist_mp.data.statistics import PooledStatistics
from dist_mp.data.text import TextDataset
from dist_mp.data.ts import SeriesDataset
from dist_mp.data.vocabulary import UNKNOWN
from dist_mp.errors import UserError

SHOWN = 20
"""Refused shots that are named one by one; of more only the number is told, unless all are asked for."""


_LABELLED: dict[str, Callable[[Path], LabelledDataset]] = {
    "idx": idx_dataset,
    "cifar": cifar_dataset,
    "arrays": array_dataset,
}


def inspect_path(path: Path, everything: bool = False) -> Iterator[str]:
    """Lines about the data at `path`, whatever it is."""
    kind, path = detect(path)
    yield f"{path}: {KINDS[kind]}"
    match kind:
        case "shots":
            yield from _shots(ProcessedShots(path), everything)
        case "raw":
            yield from _raw(path)
        case "frnn":
            yield f"{len(list(path.glob('*.npz')))} files; prepare them first: dist-mp data prepare {path} OUT"
        case "text" | "corpus":
            yield from _text(path)
        case "reviews":
            reviews = ReviewDataset(path)
            yield reviews.describe()
            yield from _labelled((reviews.train, reviews.valid, reviews.test), CLASSES)
        case "series":
            series = SeriesDataset(path)
            yield series.describe()
            yield from _labelled((series.train, series.valid, series.test), series.classes)
        case _:
            dataset = _LABELLED[kind](path)
            yield dataset.describe()
            yield from _labelled((dataset.train, dataset.valid, dataset.test), dataset.classes)


def _lengths(name: str, lengths: NDArray[np.int64], unit: str = "steps") -> str:
    low, middle, high = np.percentile(lengths, [0, 50, 100]).astype(int)
    return f"{name}: {len(lengths):,}, {low:,} to {high:,} {unit} (median {middle:,}), {int(lengths.sum()):,} in all"


def _shots(source: ProcessedShots, everything: bool) -> Iterator[str]:
    yield f"{source.step_milliseconds:g} ms a step, profiles of {source.profile_points} points"
    for name, kind in (("disruptive shots", True), ("clean shots", False)):
        lengths = source.lengths[source.disruptive == kind]
        yield _lengths(name, lengths) if len(lengths) else f"{name}: none"
    pooled = PooledStatistics.of([source.statistics(index) for index in range(len(source.lengths))])
    for which, signal in enumerate(source.scalar_signals + source.profile_signals):
        unit = f" {signal.unit}" if signal.unit else ""
        lost = int(source.missing[:, which].sum())
        yield (
            f"{signal.name}: mean {pooled.mean[which]:.4g}, deviation {pooled.deviation[which]:.4g}, "
            f"{pooled.minimum[which]:.4g} to {pooled.maximum[which]:.4g}{unit}"
            + (f", missing in {lost} shots" if lost else "")
        )
    yield from refusal_lines(source.refused, everything)


def refusal_lines(refused: Refusals, everything: bool = False) -> Iterator[str]:
    """How many shots were refused for which signal, and why, shot by shot."""
    if not refused:
        yield "no shot was refused"
        return
    counts = Counter(name or "the shot itself" for reasons in refused.values() for name in reasons)
    listed = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    yield f"{len(refused)} shots were refused, by signal: {listed}"
    for number, reasons in list(refused.items())[: None if everything else SHOWN]:
        yield f"  shot {number}: {reason_text(reasons)}"
    if len(refused) > SHOWN and not everything:
        yield f"  and {len(refused) - SHOWN} more (--all names them)"


def _raw(path: Path) -> Iterator[str]:
    machine = read_machine(path)
    shots = open_recordings(path, machine).shots
    disruptive = sum(time >= 0 for time in shots.values())
    yield f"{machine.name}: {len(shots)} shots listed, {disruptive} of them disruptive"
    for kind, signals in (("scalars", machine.scalars), ("profiles", machine.profiles)):
        yield f"{kind}: {', '.join(signal.name for signal in signals) or 'none'}"
    yield f"prepare them first: dist-mp data prepare {path} OUT"


def _text(path: Path) -> Iterator[str]:
    dataset = TextDataset(TextData(path=str(path)))
    yield dataset.describe()
    unknown = dataset.vocabulary.encode([UNKNOWN])[0]
    for name, split in (("train", dataset.train), ("valid", dataset.valid), ("test", dataset.test)):
        share = float((split.tokens == unknown).mean())
        used = len(np.unique(split.tokens))
        yield f"{name}: {len(split.tokens):,} words, {used:,} different ones, {share:.2%} unknown"


def _labelled(splits: Sequence[BucketSplit], classes: Sequence[str]) -> Iterator[str]:
    for name, split in zip(("train", "valid", "test"), splits, strict=True):
        yield _lengths(name, split.lengths)
        counts = np.bincount(split.labels, minlength=len(classes))
        yield "  " + ", ".join(f"{label} {count:,}" for label, count in zip(classes, counts.tolist(), strict=True))


def plot_shot(path: Path, number: int, image: Path) -> None:
    """Draw the signals of a prepared shot over time; needs matplotlib (extra `plot`)."""
    if detect(path)[0] != "shots":
        raise UserError(f"{path}: only prepared shots are drawn (dist-mp data prepare)")
    source = ProcessedShots(path)
    found = np.flatnonzero(source.numbers == number)
    if not len(found):
        reasons = source.refused.get(number)
        why = f"was refused: {reason_text(reasons)}" if reasons else f"is not among {len(source.numbers)} shots"
        raise UserError(f"{path}: shot {number} {why}")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserError("a plot needs the package matplotlib; pip install 'dist-mp[plot]'") from error
    shot = source.shot(int(found[0]))
    time = np.arange(shot.steps) * source.step_milliseconds / 1000.0
    signals = source.scalar_signals + source.profile_signals
    figure = Figure(figsize=(8.0, 1.1 * len(signals) + 1.0), layout="constrained")
    axes = figure.subplots(len(signals), 1, sharex=True, squeeze=False)[:, 0]
    for which, (signal, axis) in enumerate(zip(signals, axes, strict=True)):
        label = f"{signal.name}\n{signal.unit}" if signal.unit else signal.name
        axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize="small")
        if shot.missing[which]:
            axis.text(0.5, 0.5, "missing", transform=axis.transAxes, ha="center", va="center")
        elif which < len(source.scalar_signals):
            axis.plot(time, shot.scalars[:, which], linewidth=0.8)
        else:
            values = shot.profiles[:, which - len(source.scalar_signals)].T
            axis.imshow(values, aspect="auto", origin="lower", extent=(time[0], time[-1], 0.0, 1.0))
    axes[-1].set_xlabel("time in the shot (s)")
    outcome = "ends with a disruption" if shot.disruptive else "clean"
    figure.suptitle(f"shot {number}, {outcome}")
    try:
        FigureCanvasAgg(figure).print_figure(str(image))
    except (OSError, ValueError) as error:
        raise UserError(f"{image}: cannot be drawn: {getattr(error, 'strerror', None) or error}") from error
