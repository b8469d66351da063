"""ROC and warning times, against scikit-learn and against cases worked out by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from dist_mp.train.roc import (
    AlarmCounts,
    ShotMaxima,
    WarningRules,
    best_threshold,
    binary_roc,
    count_alarms,
    roc,
    shot_maxima,
)

RULES = WarningRules(warning_steps=6, deadline_steps=2, ignore_steps=1)

SCORES = st.lists(st.tuples(st.integers(-3, 3).map(float) | st.floats(-2, 2, width=16), st.booleans()), min_size=2)


@given(SCORES.filter(lambda pairs: len({label for _, label in pairs}) == 2))
@settings(max_examples=300, deadline=None)
def test_binary_roc_agrees_with_scikit_learn(pairs: list[tuple[float, bool]]) -> None:
    scores, labels = np.array([s for s, _ in pairs]), np.array([y for _, y in pairs])
    curve = binary_roc(scores, labels)
    assert curve.auc == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
    np.testing.assert_allclose(curve.false_positive_rate, false, atol=1e-15)
    np.testing.assert_allclose(curve.true_positive_rate, true, atol=1e-15)
    for point, threshold in enumerate(curve.thresholds):
        alarm = scores > threshold
        assert curve.true_positive_rate[point] == pytest.approx(alarm[labels].mean())
        assert curve.false_positive_rate[point] == pytest.approx(alarm[~labels].mean())


@pytest.mark.parametrize(
    ("scores", "labels"),
    [([1.0, math.nan], [True, False]), ([1.0, 2.0], [True, True]), ([1.0], [False]), ([], [])],
    ids=["nan", "no negative", "no positive", "nothing"],
)
def test_no_curve_where_there_is_none(scores: list[float], labels: list[bool]) -> None:
    curve = binary_roc(np.array(scores), np.array(labels, bool))
    assert math.isnan(curve.auc)
    assert len(curve.thresholds) == 0
    assert math.isnan(best_threshold(curve))


def test_maxima_of_a_disruptive_shot() -> None:
    #                  ignored  early----------  correct-----------  late----
    scores = np.array([9.0, 1.0, 3.0, 2.0, 0.0, 5.0, 4.0, 1.0, 7.0, 8.0])
    # 10 steps, the last 6 are the warning time: steps 4 to 7 are in time, 8 and 9 are late.
    assert shot_maxima(scores, 0, 10, True, RULES) == ShotMaxima(True, early=3.0, correct=5.0, late=8.0)


def test_a_score_before_the_ignored_steps_counts_nowhere() -> None:
    assert shot_maxima(np.array([9.0]), 0, 10, True, RULES) == ShotMaxima(True)
    assert shot_maxima(np.array([9.0, 2.0]), 0, 10, False, RULES) == ShotMaxima(False, early=2.0)
    assert shot_maxima(np.array([]), 3, 10, True, RULES) == ShotMaxima(True)


def test_a_deadline_beyond_the_warning_time_leaves_no_correct_alarm() -> None:
    rules = WarningRules(warning_steps=2, deadline_steps=4)
    maxima = shot_maxima(np.arange(6.0), 0, 6, True, rules)
    assert maxima == ShotMaxima(True, early=1.0, late=5.0)


@given(
    scores=st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    disruptive=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_parts_of_a_shot_merge_to_the_whole(scores: list[float], cuts: list[int], disruptive: bool) -> None:
    whole = shot_maxima(np.array(scores), 0, len(scores), disruptive, RULES)
    edges = sorted({0, len(scores), *(cut for cut in cuts if cut < len(scores))})
    parts = [
        shot_maxima(np.array(scores[a:b]), a, len(scores), disruptive, RULES) for a, b in itertools.pairwise(edges)
    ]
    merged = parts[-1]
    for part in parts[:-1]:
        merged = merged.merge(part)
    assert merged == whole


def test_bugs_are_not_silent() -> None:
    with pytest.raises(ValueError, match="reach to step 12 of a shot of 11 steps"):
        shot_maxima(np.zeros(4), 8, 11, True, RULES)
    with pytest.raises(ValueError, match="not of the same shot"):
        ShotMaxima(True).merge(ShotMaxima(False))


def test_nan_survives_merging_and_leaves_no_area() -> None:
    bad = ShotMaxima(True, early=1.0).merge(ShotMaxima(True, early=math.nan))
    assert math.isnan(bad.detection)
    assert math.isnan(roc([bad, ShotMaxima(False, early=0.0)]).auc)


SHOTS = [
    ShotMaxima(True, early=5.0, correct=1.0, late=0.0),
    ShotMaxima(True, early=1.0, correct=4.0, late=9.0),
    ShotMaxima(True, early=0.0, correct=2.0, late=8.0),
    ShotMaxima(True, early=0.0, correct=0.0, late=0.5),
    ShotMaxima(False, early=3.0),
    ShotMaxima(False, early=1.0),
]


@pytest.mark.parametrize(
    ("threshold", "counts"),
    [
        (10.0, AlarmCounts(0, 0, 0, 4, 0, 2)),
        (3.5, AlarmCounts(1, 1, 1, 1, 0, 2)),
        (3.0, AlarmCounts(1, 1, 1, 1, 0, 2)),
        (1.5, AlarmCounts(1, 2, 0, 1, 1, 2)),
        (0.2, AlarmCounts(2, 1, 1, 0, 2, 2)),
        (-1.0, AlarmCounts(4, 0, 0, 0, 2, 2)),
    ],
)
def test_alarms_at_a_threshold(threshold: float, counts: AlarmCounts) -> None:
    assert count_alarms(SHOTS, threshold) == counts


def test_the_curve_over_shots_counts_early_alarms_and_not_late_ones() -> None:
    curve = roc(SHOTS)
    # Detection scores 5, 4, 2, 0 against 3 and 1: 5 of the 8 pairs are in order, none is tied.
    assert curve.auc == pytest.approx(5 / 8)
    for point, threshold in enumerate(curve.thresholds):
        counts = count_alarms(SHOTS, threshold)
        assert curve.true_positive_rate[point] == pytest.approx(1 - counts.missed_rate)
        assert curve.false_positive_rate[point] == pytest.approx(counts.false_positive_rate)
    assert best_threshold(curve) == 3.0


def test_a_shot_that_was_never_scored_ranks_last() -> None:
    curve = roc([ShotMaxima(True), ShotMaxima(True, correct=1.0), ShotMaxima(False, early=0.0)])
    assert curve.auc == pytest.approx(0.5)
    assert (curve.false_positive_rate[-1], curve.true_positive_rate[-1]) == (1.0, 1.0)


def test_rates_of_empty_classes_are_not_a_number() -> None:
    counts = count_alarms([], 0.0)
    assert math.isnan(counts.missed_rate)
    assert math.isnan(counts.false_positive_rate)
