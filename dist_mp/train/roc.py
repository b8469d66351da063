"""Evaluation arithmetic of a disruption predictor: alarms with warning times, the ROC curve and its area.

The rules are those of FRNN (Kates-Harbeck, Svyatkovskiy and Tang 2019; `performance.py` of plasma-python). Of a
disruptive shot the highest score counts in three stretches: *early*, before the last `warning_steps`; *correct*,
from there to `deadline_steps` before the end; *late*, in the last `deadline_steps`. An alarm is a score above a
threshold. A shot whose first alarm is late, or that has none, is missed; early alarms count as detections. Of a clean
shot any alarm is a false positive.

A shot's scores may come in windows and from several ranks: :class:`ShotMaxima` of its parts merge by maximum.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class WarningRules:
    """When an alarm counts, in time steps before the end of a shot."""

    warning_steps: int
    """An alarm before the last so many steps is early."""
    deadline_steps: int
    """An alarm in the last so many steps is too late."""
    ignore_steps: int = 0
    """Scores in the first so many steps of a shot are ignored."""


@dataclass(frozen=True)
class ShotMaxima:
    """The highest score of a shot in each stretch; minus infinity where no step was seen."""

    disruptive: bool
    early: float = -np.inf
    """Clean shots: all steps count here."""
    correct: float = -np.inf
    late: float = -np.inf

    def merge(self, other: ShotMaxima) -> ShotMaxima:
        """Maxima of both parts of the same shot; a NaN in either stays."""
        if self.disruptive != other.disruptive:
            raise ValueError("the two parts are not of the same shot: one is disruptive, one is clean")
        return ShotMaxima(
            self.disruptive,
            float(np.maximum(self.early, other.early)),
            float(np.maximum(self.correct, other.correct)),
            float(np.maximum(self.late, other.late)),
        )

    @property
    def detection(self) -> float:
        """The score that decides whether the shot is detected in time: an early or a correct alarm."""
        return float(np.maximum(self.early, self.correct))


def shot_maxima(scores: NDArray, position: int, length: int, disruptive: bool, rules: WarningRules) -> ShotMaxima:
    """Maxima of the steps [position, position + len(scores)) of a shot of `length` steps.

    `scores` is one-dimensional and holds valid steps only (no padding).
    """
    if position + len(scores) > length:
        raise ValueError(f"scores reach to step {position + len(scores)} of a shot of {length} steps")
    step = position + np.arange(len(scores))
    counted = step >= rules.ignore_steps
    if not disruptive:
        return ShotMaxima(False, early=_highest(scores[counted]))
    remaining = length - 1 - step
    late = remaining < rules.deadline_steps
    early = (remaining >= rules.warning_steps) & ~late
    correct = ~early & ~late
    return ShotMaxima(True, *(_highest(scores[counted & stretch]) for stretch in (early, correct, late)))


def _highest(scores: NDArray) -> float:
    return float(scores.max()) if len(scores) else -np.inf


@dataclass(frozen=True)
class RocCurve:
    """Points of a ROC curve from (0, 0) to (1, 1); all arrays are float64 [K]."""

    false_positive_rate: NDArray[np.float64]
    true_positive_rate: NDArray[np.float64]
    thresholds: NDArray[np.float64]
    """Falling: an alarm is a score above it. The last is minus infinity."""
    auc: float
    """Area under the curve by trapezoids, so that a tied pair counts half; NaN where a class is empty."""


def binary_roc(scores: NDArray, positive: NDArray[np.bool_]) -> RocCurve:
    """ROC of scores against labels, exact also with ties; agrees with scikit-learn's `roc_auc_score`.

    A NaN among the scores, or a class without members, leaves no curve: the area is then NaN and the arrays are
    empty, so that a diverged model cannot look like a poor one.
    """
    scores = np.asarray(scores, np.float64)
    positive = np.asarray(positive, np.bool_)
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if np.isnan(scores).any() or not positives or not negatives:
        empty = np.empty(0)
        return RocCurve(empty, empty, empty, float("nan"))
    order = np.argsort(-scores, kind="stable")
    falling = scores[order]
    # One point a distinct score: alarms are all scores above the threshold, so ties enter together.
    last_of_tie = np.append(np.flatnonzero(falling[1:] != falling[:-1]), len(falling) - 1)
    true = np.concatenate([[0], np.cumsum(positive[order])[last_of_tie]]) / positives
    false = np.concatenate([[0], np.cumsum(~positive[order])[last_of_tie]]) / negatives
    thresholds = np.append(falling[last_of_tie], -np.inf)
    return RocCurve(false, true, thresholds, float(np.sum(np.diff(false) * (true[1:] + true[:-1])) / 2))


def roc(shots: Iterable[ShotMaxima]) -> RocCurve:
    """ROC over shots, the threshold swept over all observed maxima; the true positive rate is 1 - missed."""
    known = list(shots)
    return binary_roc(np.array([s.detection for s in known]), np.array([s.disruptive for s in known], np.bool_))


@dataclass(frozen=True)
class AlarmCounts:
    """What alarms above one threshold make of a set of shots (numbers of shots)."""

    early: int
    correct: int
    late: int
    silent: int
    """Disruptive shots without any alarm."""
    false_alarms: int
    clean: int

    @property
    def disruptive(self) -> int:
        """Disruptive shots in all."""
        return self.early + self.correct + self.late + self.silent

    @property
    def missed_rate(self) -> float:
        """Late or silent, of the disruptive shots (NaN without any)."""
        return (self.late + self.silent) / self.disruptive if self.disruptive else float("nan")

    @property
    def false_positive_rate(self) -> float:
        """False alarms, of the clean shots (NaN without any)."""
        return self.false_alarms / self.clean if self.clean else float("nan")


def count_alarms(shots: Iterable[ShotMaxima], threshold: float) -> AlarmCounts:
    """Sort shots by their first alarm above `threshold`: early, else correct, else late, else silent."""
    early = correct = late = silent = false_alarms = clean = 0
    for shot in shots:
        if not shot.disruptive:
            clean += 1
            false_alarms += shot.early > threshold
        elif shot.early > threshold:
            early += 1
        elif shot.correct > threshold:
            correct += 1
        elif shot.late > threshold:
            late += 1
        else:
            silent += 1
    return AlarmCounts(early, correct, late, silent, false_alarms, clean)


def best_threshold(curve: RocCurve) -> float:
    """The threshold with the largest true minus false positive rate (Youden 1950), the highest of several."""
    if not len(curve.thresholds):
        return float("nan")
    return float(curve.thresholds[np.argmax(curve.true_positive_rate - curve.false_positive_rate)])
