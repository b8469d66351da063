"""What is said of a split of shots: by hand, and against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, roc_auc_score, roc_curve

from dist_mp.config import EvaluationConfig
from dist_mp.train.alarms import ShotTrace
from dist_mp.train.platt import Logistic
from dist_mp.train.roc import WarningRules
from dist_mp.train.shot_report import Chosen, choose, shot_evaluation

RULES = WarningRules(warning_steps=6, deadline_steps=2, ignore_steps=1)


def trace(number: int, disruptive: bool, *scores: float) -> ShotTrace:
    return ShotTrace(number, disruptive, np.array(scores, np.float32))


def campaign(count: int, seed: int, probabilities: bool = False) -> list[ShotTrace]:
    rng = np.random.default_rng(seed)
    traces = []
    for number in rng.permutation(count).tolist():
        disruptive = bool(rng.random() < 0.4)
        scores = rng.normal(0.0, 1.0, int(rng.integers(12, 40)))
        if disruptive:
            scores[-int(rng.integers(1, 12)) :] += 1.5
        scores = scores.round(1)
        traces.append(trace(number, disruptive, *(1 / (1 + np.exp(-scores)) if probabilities else scores)))
    return traces


def test_each_alarm_by_hand() -> None:
    """Steps of 10 ms; steps 0 are ignored; an alarm above 0.5 must come 2 steps before the end, or 6 (55 ms)."""
    shots = [
        trace(7, True, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0),  # 8 steps before its end: early
        trace(3, True, 9, 0, 0, 0, 0, 0, 0, 1, 0, 0),  # 2 steps: correct, but too late for 55 ms
        trace(5, True, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0),  # 1 step: late
        trace(1, True, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),  # missed
        trace(4, True, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0),  # 5 steps: correct
        trace(2, False, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0),  # quiet: its only alarm is ignored
        trace(6, False, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1),  # a false alarm, however late
    ]
    settings = EvaluationConfig(deadlines_ms=[20.0, 55.0, 90.0])
    chosen = Chosen(0.5, Logistic(1.0, 0.0))
    found = shot_evaluation(shots, RULES, settings, 10.0, chosen, 0.25, probabilities=False)
    assert [(s.shot, s.alarm, s.warning_milliseconds) for s in found.shots] == [
        (1, "missed", None),
        (2, "quiet", None),
        (3, "correct", 20.0),
        (4, "correct", 50.0),
        (5, "late", 10.0),
        (6, "false", 0.0),
        (7, "early", 80.0),
    ]
    assert (found.disruptive, found.clean, found.loss, found.step_milliseconds) == (5, 2, 0.25, 10.0)
    assert found.median_warning_milliseconds == 35.0
    assert found.warning_curve.milliseconds == [0.0, 10.0, 20.0, 50.0, 80.0]
    assert found.warning_curve.detected == pytest.approx([0.8, 0.8, 0.6, 0.4, 0.2])
    # 20 ms is the deadline of the rules and comes once; 55 ms is rounded up to 6 steps, 90 ms to 9.
    rows = [(d.milliseconds, d.early, d.correct, d.late, d.missed, d.false_alarms, d.clean) for d in found.deadlines]
    assert rows == [(20.0, 1, 2, 1, 1, 1, 2), (55.0, 1, 0, 3, 1, 1, 2), (90.0, 0, 0, 4, 1, 1, 2)]
    assert [d.detected for d in found.deadlines] == pytest.approx([0.6, 0.2, 0.0])
    assert found.deadlines[0].false_positive_rate == 0.5
    assert found.shots[2].highest == 1.0 and found.shots[2].probability == pytest.approx(1 / (1 + math.exp(-1)))
    assert found.step_calibration is None


@pytest.mark.parametrize("seed", range(4))
def test_curve_and_calibration_agree_with_scikit_learn(seed: int) -> None:
    shots = campaign(150, seed)
    settings = EvaluationConfig(deadlines_ms=[30.0, 70.0])
    chosen = choose(shots, RULES, settings)
    found = shot_evaluation(shots, RULES, settings, 10.0, chosen, 0.0, probabilities=False)
    ordered = sorted(shots, key=lambda shot: shot.number)
    label = np.array([shot.disruptive for shot in ordered])
    highest = np.array([s.scores[1:-2].max() if s.disruptive else s.scores[1:].max() for s in ordered], np.float64)
    assert [s.highest for s in found.shots] == highest.tolist()
    assert found.auc == pytest.approx(roc_auc_score(label, highest)) == found.deadlines[0].auc
    false, true, _ = roc_curve(label, highest, drop_intermediate=False)
    np.testing.assert_allclose(found.roc.false_positive_rate, false)
    np.testing.assert_allclose(found.roc.true_positive_rate, true)
    for counts in found.deadlines:
        steps = round(counts.milliseconds / 10)
        late = np.array([s.scores[1:-steps].max() if s.disruptive else s.scores[1:].max() for s in ordered])
        assert counts.auc == pytest.approx(roc_auc_score(label, late))
        assert counts.detected == pytest.approx((late[label] > chosen.threshold).mean())
    probability = np.array([s.probability for s in found.shots])
    observed, predicted = calibration_curve(label, probability, n_bins=10)
    np.testing.assert_allclose(found.calibration.observed, observed)
    np.testing.assert_allclose(found.calibration.predicted, predicted)
    assert found.calibration.brier == pytest.approx(brier_score_loss(label, probability))
    assert abs(probability.mean() - label.mean()) < 0.02


def test_steps_of_probabilities_are_calibrated_too() -> None:
    shots = campaign(40, 1, probabilities=True)
    settings = EvaluationConfig()
    found = shot_evaluation(shots, RULES, settings, 1.0, choose(shots, RULES, settings), 0.0, probabilities=True)
    ordered = sorted(shots, key=lambda shot: shot.number)
    labels, scores = [], []
    for shot in ordered:
        near = np.zeros(len(shot.scores), bool)
        near[-6:] = shot.disruptive
        labels.append(near[1:])
        scores.append(shot.scores[1:])
    assert found.step_calibration is not None
    assert sum(found.step_calibration.count) == sum(map(len, scores))
    wide = np.concatenate(scores).astype(np.float64)
    assert found.step_calibration.brier == pytest.approx(brier_score_loss(np.concatenate(labels), wide))


def test_a_threshold_of_few_false_alarms() -> None:
    shots = campaign(300, 5)
    for share in (0.0, 0.05, 0.2):
        settings = EvaluationConfig(threshold="false_alarms", false_alarm_share=share)
        chosen = choose(shots, RULES, settings)
        found = shot_evaluation(shots, RULES, settings, 10.0, chosen, 0.0, probabilities=False)
        assert found.deadlines[0].false_positive_rate <= share
        clean = found.clean
        # One shot more would be too many, but for ties.
        assert found.deadlines[0].false_positive_rate > share - 6 / clean
    youden = choose(shots, RULES, EvaluationConfig())
    best = shot_evaluation(shots, RULES, EvaluationConfig(), 10.0, youden, 0.0, probabilities=False).deadlines[0]
    false, true, _ = roc_curve(*_labels_and_highest(shots))
    assert best.detected - best.false_positive_rate == pytest.approx((true - false).max())


def _labels_and_highest(shots: list[ShotTrace]) -> tuple[list[bool], list[float]]:
    return [s.disruptive for s in shots], [float(s.maxima(RULES).detection) for s in shots]


def test_a_diverged_model_and_a_class_without_shots() -> None:
    settings = EvaluationConfig()
    broken = [trace(0, True, *[0.0] * 9, math.nan), trace(1, False, *[0.0] * 10)]
    broken[0].scores[4] = math.nan
    for shots in (broken, [trace(0, False, *[1.0] * 10)], [trace(0, True, *[1.0] * 10)]):
        chosen = choose(shots, RULES, settings)
        found = shot_evaluation(shots, RULES, settings, 10.0, chosen, math.nan, probabilities=False)
        assert math.isnan(found.auc) and math.isnan(chosen.threshold)
        assert all(shot.alarm in ("missed", "quiet") for shot in found.shots)
        assert found.model_dump_json()


def test_a_shot_without_a_score_spoils_nothing() -> None:
    shots = campaign(60, 2)
    short = [*shots, trace(60, True, 9.0, 9.0), trace(61, False, 5.0)]
    settings = EvaluationConfig()
    assert choose(short, RULES, settings).logistic == choose(shots, RULES, settings).logistic
    found = shot_evaluation(short, RULES, settings, 10.0, choose(short, RULES, settings), 0.0, probabilities=False)
    assert [(s.alarm, s.probability) for s in found.shots[60:]] == [("late", 0.0), ("quiet", 0.0)]
    assert math.isfinite(found.auc) and math.isfinite(found.calibration.brier)
