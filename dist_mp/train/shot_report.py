"""What alarms on a split of shots are worth: what `evaluation.json` says of it, from the scores of all steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dist_mp.config import EvaluationConfig
from dist_mp.train.alarms import ShotTrace, auc_by_deadline, calibration, warning_curve, warning_times
from dist_mp.train.alarms import threshold_at as threshold_within
from dist_mp.train.evaluation_records import (
    DeadlineCounts,
    ShotAlarm,
    ShotEvaluation,
    WarningPoints,
    bins_of,
    roc_points,
)
from dist_mp.train.platt import Logistic, fit_logistic
from dist_mp.train.roc import WarningRules, best_threshold, count_alarms, roc


@dataclass(frozen=True)
class Chosen:
    """What is chosen on the held-out shots, and then used on any others."""

    threshold: float
    logistic: Logistic


def choose(traces: Sequence[ShotTrace], rules: WarningRules, settings: EvaluationConfig) -> Chosen:
    """Threshold and logistic curve from held-out shots."""
    maxima = [trace.maxima(rules) for trace in traces]
    curve = roc(maxima)
    if settings.threshold == "youden":
        threshold = best_threshold(curve)
    else:
        threshold = threshold_within(curve, settings.false_alarm_share)
    # A shot that is over before its first step counts has no score.
    scored = [shot for shot in maxima if shot.detection != -np.inf]
    disruptive = np.array([shot.disruptive for shot in scored], np.bool_)
    return Chosen(threshold, fit_logistic(np.array([shot.detection for shot in scored]), disruptive))


def shot_evaluation(
    traces: Sequence[ShotTrace],
    rules: WarningRules,
    settings: EvaluationConfig,
    step_milliseconds: float,
    chosen: Chosen,
    loss: float,
    probabilities: bool,
) -> ShotEvaluation:
    """Evaluate the shots of a split; `probabilities` says that scores are probabilities themselves.

    A T_min is rounded up to whole time steps, so that an alarm at the last possible step comes at least as early.
    """
    ordered = sorted(traces, key=lambda trace: trace.number)
    maxima = [trace.maxima(rules) for trace in ordered]
    curve = roc(maxima)
    times = warning_times(ordered, chosen.threshold, rules.ignore_steps)
    warning = warning_curve(times)
    given = {rules.deadline_steps * step_milliseconds: rules.deadline_steps}
    # A shade less, so that 0.3 / 0.1 is 3 steps and not 4.
    given |= {ms: math.ceil(ms / step_milliseconds - 1e-9) for ms in settings.deadlines_ms if ms not in given}
    outcome = np.array([trace.disruptive for trace in ordered], np.bool_)
    probability = chosen.logistic.probability(np.array([shot.detection for shot in maxima], np.float64))
    steps = None
    if probabilities:
        steps = calibration(*_steps(ordered, rules), settings.calibration_bins)
    known = times[~np.isnan(times)]
    return ShotEvaluation(
        loss=loss,
        disruptive=int(outcome.sum()),
        clean=int((~outcome).sum()),
        step_milliseconds=step_milliseconds,
        auc=curve.auc,
        roc=roc_points(curve),
        deadlines=[_deadline(ordered, rules, ms, count, chosen.threshold) for ms, count in given.items()],
        warning_curve=WarningPoints(
            milliseconds=(warning.steps * step_milliseconds).tolist(), detected=warning.detected.tolist()
        ),
        median_warning_milliseconds=float(np.median(known)) * step_milliseconds if len(known) else math.nan,
        calibration=bins_of(calibration(probability, outcome, settings.calibration_bins)),
        step_calibration=None if steps is None else bins_of(steps),
        shots=[alarm_of(trace, rules, step_milliseconds, chosen.threshold, chosen.logistic) for trace in ordered],
    )


def _deadline(
    traces: Sequence[ShotTrace], rules: WarningRules, milliseconds: float, steps: int, threshold: float
) -> DeadlineCounts:
    changed = replace(rules, deadline_steps=steps, warning_steps=max(rules.warning_steps, steps))
    counts = count_alarms((trace.maxima(changed) for trace in traces), threshold)
    return DeadlineCounts(
        milliseconds=milliseconds,
        auc=auc_by_deadline(traces, rules, [steps])[steps],
        early=counts.early,
        correct=counts.correct,
        late=counts.late,
        missed=counts.silent,
        false_alarms=counts.false_alarms,
        clean=counts.clean,
        detected=1.0 - counts.missed_rate,
        false_positive_rate=counts.false_positive_rate,
    )


def alarm_of(
    trace: ShotTrace, rules: WarningRules, step_milliseconds: float, threshold: float, logistic: Logistic
) -> ShotAlarm:
    """What becomes of a shot at a threshold."""
    maxima = trace.maxima(rules)
    counts = count_alarms([maxima], threshold)
    names = {
        "early": counts.early,
        "correct": counts.correct,
        "late": counts.late,
        "missed": counts.silent,
        "false": counts.false_alarms,
        "quiet": counts.clean - counts.false_alarms,
    }
    warning = trace.warning(threshold, rules.ignore_steps)
    return ShotAlarm(
        shot=trace.number,
        disruptive=trace.disruptive,
        alarm=next(name for name, count in names.items() if count),  # type: ignore[arg-type]
        warning_milliseconds=None if math.isnan(warning) else warning * step_milliseconds,
        highest=maxima.detection,
        probability=float(logistic.probability(np.array([maxima.detection]))[0]),
    )


def _steps(traces: Sequence[ShotTrace], rules: WarningRules) -> tuple[np.ndarray, np.ndarray]:
    """Scores of all steps that count, and whether a disruption is within the warning time there."""
    labels = []
    for trace in traces:
        remaining = np.arange(len(trace.scores) - 1, -1, -1)
        labels.append((remaining < rules.warning_steps) & trace.disruptive)
    kept = [slice(rules.ignore_steps, None)] * len(labels)
    scores = [trace.scores[part] for trace, part in zip(traces, kept, strict=True)]
    return np.concatenate(scores), np.concatenate([label[part] for label, part in zip(labels, kept, strict=True)])
