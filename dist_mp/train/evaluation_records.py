"""What `evaluation.json` holds: the evaluation at the end of a run, described in docs/metrics.md.

Rates and shares are between 0 and 1. What cannot be computed, for want of a class or because a score is NaN, is null.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dist_mp.train.alarms import Calibration
from dist_mp.train.records import Record
from dist_mp.train.roc import RocCurve

FORMAT = "dist-mp evaluation 1"


class RocPoints(Record):
    """A ROC curve from (0, 0) to (1, 1); a point a threshold."""

    false_positive_rate: list[float] = Field(description="rising; of the clean shots, or of the samples of class 0")
    true_positive_rate: list[float] = Field(description="rising; of the disruptive shots, or of the samples of class 1")
    thresholds: list[float] = Field(description="falling; an alarm is a score above it; null for minus infinity")


class CalibrationBins(Record):
    """Whether predicted probabilities come true, by bins of equal width; empty bins are left out."""

    predicted: list[float] = Field(description="mean predicted probability in each bin")
    observed: list[float] = Field(description="share of positives in each bin")
    count: list[int] = Field(description="shots, steps or samples in each bin")
    expected_error: float = Field(description="mean over all of |observed - predicted| of their bin")
    brier: float = Field(description="mean squared difference of probability and outcome")


class DeadlineCounts(Record):
    """Alarms above the threshold, where an alarm must come so long before the disruption."""

    milliseconds: float = Field(description="T_min: an alarm later than this before the disruption is too late (ms)")
    auc: float = Field(description="area under the ROC curve with this T_min")
    early: int = Field(description="disruptive shots whose first alarm comes before the warning time")
    correct: int = Field(description="disruptive shots whose first alarm comes within the warning time, before T_min")
    late: int = Field(description="disruptive shots whose first alarm comes after T_min")
    missed: int = Field(description="disruptive shots without an alarm")
    false_alarms: int = Field(description="clean shots with an alarm")
    clean: int = Field(description="clean shots in all")
    detected: float = Field(description="share of the disruptive shots with an early or a correct alarm")
    false_positive_rate: float = Field(description="share of the clean shots with an alarm")


class WarningPoints(Record):
    """How many disruptive shots are known so long before their end."""

    milliseconds: list[float] = Field(description="rising from 0 (ms)")
    detected: list[float] = Field(description="share of the disruptive shots whose first alarm comes at least as early")


class ShotAlarm(Record):
    """What became of one shot."""

    shot: int = Field(description="its number")
    disruptive: bool = Field(description="whether it disrupted")
    alarm: Literal["early", "correct", "late", "missed", "false", "quiet"] = Field(
        description="early, correct, late or missed of a disruptive shot, false or quiet of a clean one, with the "
        "deadline of data.deadline_steps"
    )
    warning_milliseconds: float | None = Field(description="from the first alarm to the end of the shot, if any (ms)")
    highest: float = Field(description="highest score of the shot, ignored steps and what is too late left out")
    probability: float = Field(description="probability that the shot disrupts, by the logistic curve")


class LogisticCurve(Record):
    """Probability of a disruption from the highest score of a shot: 1 / (1 + exp(-(slope * score + intercept)))."""

    slope: float = Field(description="fitted on the held-out shots (Platt 1999)")
    intercept: float = Field(description="fitted on the held-out shots (Platt 1999)")


class ShotEvaluation(Record):
    """Shots of a tokamak."""

    kind: Literal["shots"] = "shots"
    loss: float = Field(description="mean loss over the valid time steps")
    disruptive: int = Field(description="disruptive shots")
    clean: int = Field(description="clean shots")
    step_milliseconds: float = Field(description="time step of the shots (ms)")
    auc: float = Field(description="area under the ROC curve with the deadline of data.deadline_steps")
    roc: RocPoints = Field(description="the ROC curve with the deadline of data.deadline_steps")
    deadlines: list[DeadlineCounts] = Field(description="for data.deadline_steps, then for each T_min")
    warning_curve: WarningPoints = Field(description="detections by warning time at the threshold")
    median_warning_milliseconds: float = Field(description="median warning time of the shots with an alarm (ms)")
    calibration: CalibrationBins = Field(description="of the logistic curve's probabilities, by shot")
    step_calibration: CalibrationBins | None = Field(
        description="target binary only: of the predicted probabilities, by time step"
    )
    shots: list[ShotAlarm] = Field(description="each shot, in the order of their numbers")


class ClassEvaluation(Record):
    """Samples of classes."""

    kind: Literal["classes"] = "classes"
    loss: float = Field(description="mean loss over the samples")
    samples: int = Field(description="samples")
    accuracy: float = Field(description="share of samples whose class has the highest score")
    f1: list[float] = Field(description="F1 of each class")
    auc: list[float] = Field(description="area under the ROC curve of each class against all others")
    confusion: list[list[int]] = Field(description="samples of each class (row) by predicted class (column)")
    roc: RocPoints | None = Field(description="two classes only: the ROC curve of class 1; score: logit 1 less logit 0")
    calibration: CalibrationBins = Field(
        description="of the softmax: two classes: probability of class 1; more: of the predicted class"
    )


class TextEvaluation(Record):
    """A text."""

    kind: Literal["text"] = "text"
    loss: float = Field(description="mean loss a word (nats)")
    words: int = Field(description="words that were predicted")
    perplexity: float = Field(description="exponential of the mean loss")


class MetricsEvaluation(Record):
    """Sentence pairs, generated images, or objects in images."""

    kind: Literal["metrics"] = "metrics"
    loss: float = Field(description="mean loss")
    weight: float = Field(description="words, images or matched default boxes that it is the mean of")
    metrics: dict[str, float] = Field(description="those of the epochs' records, by name")


class Evaluation(Record):
    """All of the file."""

    format: str = FORMAT
    weights: str = Field(description="BLAKE2b hash of the weights that were evaluated, as in the summary")
    threshold: float | None = Field(
        description="shots only: an alarm is a score above it; chosen on the held-out shots, for all splits"
    )
    threshold_rule: str = Field(description="shots only: how it was chosen (evaluation.threshold)")
    logistic: LogisticCurve | None = Field(description="shots only: from scores to probabilities, for all splits")
    splits: dict[str, ShotEvaluation | ClassEvaluation | TextEvaluation | MetricsEvaluation] = Field(
        description="by name: valid (held out), test where there is one"
    )


def roc_points(curve: RocCurve) -> RocPoints:
    """A curve as a record."""
    return RocPoints(
        false_positive_rate=curve.false_positive_rate.tolist(),
        true_positive_rate=curve.true_positive_rate.tolist(),
        thresholds=curve.thresholds.tolist(),
    )


def bins_of(found: Calibration) -> CalibrationBins:
    """A calibration as a record."""
    return CalibrationBins(
        predicted=found.predicted.tolist(),
        observed=found.observed.tolist(),
        count=found.count.tolist(),
        expected_error=found.expected_error,
        brier=found.brier,
    )
