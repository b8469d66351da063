"""Alarms and warning times on whole traces, by hand, and calibration against scikit-learn."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss

from dist_mp.config import CampaignData
from dist_mp.data.campaign import Campaign
from dist_mp.data.partition import stratified_partition
from dist_mp.data.shots import ShotDataset
from dist_mp.train.alarms import (
    ShotTrace,
    TraceParts,
    auc_by_deadline,
    calibration,
    join_traces,
    threshold_at,
    warning_curve,
    warning_times,
)
from dist_mp.train.roc import WarningRules, binary_roc, count_alarms, roc


def trace(disruptive: bool, *scores: float) -> ShotTrace:
    return ShotTrace(0, disruptive, np.array(scores, np.float32))


def test_warning_times_by_hand() -> None:
    traces = [trace(True, 0, 2, 0, 3), trace(True, 5, 0, 0, 0, 1), trace(True, 0, 0), trace(False, 9, 9)]
    np.testing.assert_array_equal(warning_times(traces, 1.5), [2, 4, np.nan])
    np.testing.assert_array_equal(warning_times(traces, 2.0), [0, 4, np.nan])
    np.testing.assert_array_equal(warning_times(traces, 0.5, ignore_steps=2), [0, 0, np.nan])
    curve = warning_curve(warning_times(traces, 1.5))
    assert curve.steps.tolist() == [0, 2, 4]
    np.testing.assert_allclose(curve.detected, [2 / 3, 2 / 3, 1 / 3])
    assert math.isnan(warning_curve(np.empty(0)).detected[0])


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 5), min_size=8, max_size=14)), min_size=1, max_size=8),
    st.integers(-1, 6),
)
@settings(max_examples=200, deadline=None)
def test_warning_times_agree_with_the_counts_of_alarms(shots: list[tuple[bool, list[int]]], threshold: int) -> None:
    rules = WarningRules(warning_steps=5, deadline_steps=2, ignore_steps=1)
    traces = [trace(kind, *scores) for kind, scores in shots]
    counts = count_alarms((t.maxima(rules) for t in traces), threshold)
    times = warning_times(traces, threshold, ignore_steps=1)
    assert counts.silent == np.isnan(times).sum()
    assert counts.late == (times < 2).sum()
    assert counts.correct == ((times >= 2) & (times < 5)).sum()
    assert counts.early == (times >= 5).sum()


def test_auc_falls_with_the_deadline() -> None:
    rules = WarningRules(warning_steps=6, deadline_steps=1)
    rng = np.random.default_rng(3)
    traces = []
    for _ in range(60):
        scores = rng.normal(0.0, 1.0, 30)
        disruptive = bool(rng.random() < 0.5)
        if disruptive:
            scores[-int(rng.integers(1, 12)) :] += 4.0
        traces.append(trace(disruptive, *scores))
    areas = auc_by_deadline(traces, rules, (0, 1, 3, 8, 12))
    assert list(areas.values()) == sorted(areas.values(), reverse=True)
    assert areas[0] > 0.95 > areas[12]
    assert areas[1] == roc(t.maxima(rules) for t in traces).auc


@given(
    st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2).filter(
        lambda pairs: len({label for _, label in pairs}) == 2
    ),
    st.floats(0.0, 1.0),
)
@settings(max_examples=200, deadline=None)
def test_the_threshold_keeps_to_its_limit_and_is_the_best(pairs: list[tuple[int, bool]], limit: float) -> None:
    scores, labels = np.array([s for s, _ in pairs], float), np.array([y for _, y in pairs])
    threshold = threshold_at(binary_roc(scores, labels), limit)

    def rates(value: float) -> tuple[float, float]:
        return float((scores[~labels] > value).mean()), float((scores[labels] > value).mean())

    assert rates(threshold)[0] <= limit
    others = [rates(value)[1] for value in scores if rates(value)[0] <= limit]
    assert rates(threshold)[1] == max(others)
    assert math.isfinite(threshold)


def test_no_threshold_without_a_curve() -> None:
    assert math.isnan(threshold_at(binary_roc(np.array([1.0]), np.array([True])), 0.1))


@given(st.lists(st.tuples(st.floats(0.0, 1.0, width=32), st.booleans()), min_size=1, max_size=60), st.integers(1, 12))
@settings(max_examples=200, deadline=None)
def test_calibration_agrees_with_scikit_learn(pairs: list[tuple[float, bool]], bins: int) -> None:
    # scikit-learn puts a bin's edge into the bin below it: keep off the edges, where the two differ by convention.
    probability = np.array([p for p, _ in pairs])
    at_edge = np.abs(probability * bins - np.round(probability * bins)) < 1e-6
    probability = np.where(at_edge, (np.floor(probability * (bins - 1)) + 0.5) / bins, probability)
    positive = np.array([y for _, y in pairs])
    found = calibration(probability, positive, bins)
    assert found.brier == pytest.approx(np.mean((probability - positive) ** 2))
    assert found.count.sum() == len(pairs)
    if len(set(positive.tolist())) == 2:
        observed, predicted = calibration_curve(positive, probability, n_bins=bins)
        np.testing.assert_allclose(found.observed, observed)
        np.testing.assert_allclose(found.predicted, predicted)
        assert found.brier == pytest.approx(brier_score_loss(positive, probability))
    error = sum(n * abs(o - p) for n, o, p in zip(found.count, found.observed, found.predicted, strict=True))
    assert found.expected_error == pytest.approx(error / len(pairs))


def test_calibration_of_nothing_and_of_nonsense() -> None:
    assert math.isnan(calibration(np.empty(0), np.empty(0, bool)).brier)
    assert math.isnan(calibration(np.array([0.5, np.nan]), np.array([True, False])).expected_error)
    with pytest.raises(ValueError, match="between 0 and 1"):
        calibration(np.array([1.5]), np.array([True]))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_traces_from_the_windows_of_all_ranks(ranks: int) -> None:
    data = CampaignData(shots=12, min_steps=20, max_steps=50, profile_points=2, length=8, warning_steps=9)
    source = Campaign(data)
    split = ShotDataset(source, data, stratified_partition(source, data, "data.shots"), "hinge", 5).train
    parts = [TraceParts() for _ in range(ranks)]
    for rank, part in enumerate(parts):
        for batch in split.batches(0, 2 * ranks, 2 * rank, 2):
            steps = batch.position[:, None] + np.arange(batch.weight.shape[1])
            part.add(batch, (1000 * batch.sequence[:, None] + steps).astype(np.float32))
    pieces = [part.pieces for part in parts]
    traces = join_traces(pieces, split.numbers, split.lengths, split.disruptive)
    assert [t.number for t in traces] == split.numbers.tolist()
    for which, one in enumerate(traces):
        np.testing.assert_array_equal(one.scores, 1000 * which + np.arange(split.lengths[which]))
    pieces[0].popitem()
    with pytest.raises(ValueError, match="do not cover each step"):
        join_traces(pieces, split.numbers, split.lengths, split.disruptive)
