"""What a trained predictor's scores are worth to an operator: alarms with their warning times, thresholds, calibration.

Works on whole traces, the scores of all steps of each shot, where :mod:`dist_mp.train.roc` needs only maxima. Times are
in steps before the end of a shot: an alarm at its last step comes 0 steps before the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dist_mp.data.base import Batch
from dist_mp.train.roc import RocCurve, ShotMaxima, WarningRules, roc, shot_maxima


@dataclass(frozen=True)
class ShotTrace:
    """The scores of one shot."""

    number: int
    disruptive: bool
    scores: NDArray[np.float32]
    """[T]"""

    def maxima(self, rules: WarningRules) -> ShotMaxima:
        """Its highest scores in each stretch."""
        return shot_maxima(self.scores, 0, len(self.scores), self.disruptive, rules)

    def warning(self, threshold: float, ignore_steps: int = 0) -> float:
        """Steps before the end at which the first alarm comes, a score above the threshold; NaN where none does."""
        above = np.flatnonzero(self.scores[ignore_steps:] > threshold)
        return float(len(self.scores) - 1 - ignore_steps - above[0]) if len(above) else float("nan")


class TraceParts:
    """Pieces of traces as a rank sees them, to be put together from all ranks."""

    def __init__(self) -> None:
        """Begin without pieces."""
        self.pieces: dict[tuple[int, int], NDArray[np.float32]] = {}
        """Scores by number of the sequence in its split and first step."""

    def add(self, batch: Batch, scores: NDArray[np.float32]) -> None:
        """Take the valid scores [B, T] of the windows of a batch."""
        if batch.sequence is None or batch.position is None:
            raise ValueError("windows of shots carry their sequence and position")
        for row in np.flatnonzero(batch.sequence >= 0):
            place = int(batch.sequence[row]), int(batch.position[row])
            self.pieces[place] = scores[row, batch.weight[row] > 0].astype(np.float32)


def join_traces(
    parts: Iterable[Mapping[tuple[int, int], NDArray[np.float32]]],
    numbers: NDArray[np.int64],
    lengths: NDArray[np.int64],
    disruptive: NDArray[np.bool_],
) -> list[ShotTrace]:
    """Traces of all shots of a split from the pieces of all ranks; every step must be there exactly once."""
    scores = [np.full(length, np.nan, np.float32) for length in lengths.tolist()]
    seen = [np.zeros(length, np.int64) for length in lengths.tolist()]
    for pieces in parts:
        for (sequence, position), piece in pieces.items():
            scores[sequence][position : position + len(piece)] = piece
            seen[sequence][position : position + len(piece)] += 1
    if any((counts != 1).any() for counts in seen):
        raise ValueError("the pieces do not cover each step of each shot once")
    return [
        ShotTrace(int(number), bool(kind), trace)
        for number, kind, trace in zip(numbers.tolist(), disruptive.tolist(), scores, strict=True)
    ]


def auc_by_deadline(traces: Sequence[ShotTrace], rules: WarningRules, deadlines: Iterable[int]) -> dict[int, float]:
    """The area under the ROC curve where an alarm must come so many steps before the end (30 to 1000 ms in FRNN)."""
    areas = {}
    for deadline in deadlines:
        # The warning time reaches at least to the deadline: FRNN's early alarms count as detections anyway.
        changed = replace(rules, deadline_steps=deadline, warning_steps=max(rules.warning_steps, deadline))
        areas[deadline] = roc(trace.maxima(changed) for trace in traces).auc
    return areas


def warning_times(traces: Iterable[ShotTrace], threshold: float, ignore_steps: int = 0) -> NDArray[np.float64]:
    """Steps from the first alarm to the end of each disruptive shot; NaN where there is no alarm."""
    return np.array([trace.warning(threshold, ignore_steps) for trace in traces if trace.disruptive], np.float64)


@dataclass(frozen=True)
class WarningCurve:
    """How many disruptive shots are known so long before their end; both arrays [K], times rising from 0."""

    steps: NDArray[np.float64]
    detected: NDArray[np.float64]
    """Share of the disruptive shots whose first alarm comes at least `steps` before the end."""


def warning_curve(times: NDArray[np.float64]) -> WarningCurve:
    """The curve of what :func:`warning_times` gave; a point a distinct time."""
    steps = np.unique(np.concatenate([[0.0], times[~np.isnan(times)]]))
    counts = np.array([(times >= step).sum() for step in steps.tolist()], np.float64)
    return WarningCurve(steps, counts / len(times) if len(times) else np.full(len(steps), np.nan))


def threshold_at(curve: RocCurve, false_positive_rate: float) -> float:
    """The lowest threshold whose false positive rate stays within a limit: the most detections that it allows.

    Chosen on validation shots, it is then used on others. NaN where there is no curve; it is never minus infinity,
    which would raise an alarm at every step.
    """
    if not len(curve.thresholds):
        return float("nan")
    within = np.flatnonzero((curve.false_positive_rate <= false_positive_rate) & np.isfinite(curve.thresholds))
    # The first threshold is the highest score: no alarm, and within every limit.
    return float(curve.thresholds[within[-1]]) if len(within) else float(curve.thresholds[0])


@dataclass(frozen=True)
class Calibration:
    """Whether predicted probabilities come true, by bins of probability; arrays [K], empty bins left out."""

    predicted: NDArray[np.float64]
    """Mean of the predictions in a bin."""
    observed: NDArray[np.float64]
    """Share of positives among them."""
    count: NDArray[np.int64]
    expected_error: float
    """Mean over samples of |observed - predicted| of their bin (Naeini, Cooper and Hauskrecht 2015)."""
    brier: float
    """Mean squared difference of prediction and outcome (Brier 1950)."""


def calibration(probability: NDArray[np.floating], positive: NDArray[np.bool_], bins: int = 10) -> Calibration:
    """Compare probabilities [N] with outcomes [N], in `bins` of equal width on [0, 1]."""
    wide = np.asarray(probability, np.float64)
    if not len(wide) or np.isnan(wide).any():
        empty = np.empty(0)
        return Calibration(empty, empty, np.empty(0, np.int64), float("nan"), float("nan"))
    if wide.min() < 0.0 or wide.max() > 1.0:
        raise ValueError("probabilities lie between 0 and 1")
    which = np.minimum((wide * bins).astype(np.int64), bins - 1)
    count = np.bincount(which, minlength=bins)
    kept = count > 0
    outcome = np.asarray(positive, np.float64)
    predicted = np.bincount(which, wide, bins)[kept] / count[kept]
    observed = np.bincount(which, outcome, bins)[kept] / count[kept]
    error = float(np.sum(np.abs(observed - predicted) * count[kept]) / len(wide))
    return Calibration(predicted, observed, count[kept], error, float(np.mean((wide - outcome) ** 2)))
