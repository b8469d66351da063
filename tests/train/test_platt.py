"""The logistic curve against scikit-learn, and where there is nothing to fit."""

import math

import numpy as np
import pytest
from sklearn.calibration import _SigmoidCalibration
from sklearn.linear_model import LogisticRegression

from dist_mp.train.platt import fit_logistic


@pytest.mark.parametrize(
    ("count", "scale", "shift"), [(12, 1.0, 0.0), (200, 1.0, 0.3), (200, 1e4, -7e4), (3000, 1e-3, 2.0)]
)
def test_agrees_with_scikit_learn(count: int, scale: float, shift: float) -> None:
    rng = np.random.default_rng(count)
    positive = rng.random(count) < 0.3
    scores = scale * (rng.normal(size=count) + 1.5 * positive) + shift
    found = fit_logistic(scores, positive)
    oracle = _SigmoidCalibration().fit(scores, positive)
    np.testing.assert_allclose(found.probability(scores), oracle.predict(scores), atol=2e-4)
    # The same likelihood by another way: each sample twice, weighted by its target and by what is left of it.
    target = np.where(positive, (positive.sum() + 1) / (positive.sum() + 2), 1 / ((~positive).sum() + 2))
    standard = (scores - scores.mean()) / scores.std()
    regression = LogisticRegression(C=1e12, tol=1e-12, max_iter=10_000).fit(
        np.tile(standard, 2)[:, None], np.repeat([True, False], count), np.concatenate([target, 1 - target])
    )
    expected = regression.predict_proba(standard[:, None])[:, 1]
    np.testing.assert_allclose(found.probability(scores), expected, atol=1e-5)


def test_separated_scores_have_a_finite_curve() -> None:
    positive = np.arange(20) >= 12
    found = fit_logistic(np.arange(20.0), positive)
    assert math.isfinite(found.slope) and found.slope > 0
    probability = found.probability(np.arange(20.0))
    assert (np.diff(probability) > 0).all() and probability[0] < 0.15 and probability[-1] > 0.85


@pytest.mark.parametrize(
    ("scores", "positive"),
    [([1.0, 2.0], [True, True]), ([], []), ([1.0, math.nan], [True, False]), ([1.0, -math.inf], [True, False])],
)
def test_nothing_to_fit(scores: list[float], positive: list[bool]) -> None:
    found = fit_logistic(np.array(scores, float), np.array(positive, bool))
    assert math.isnan(found.slope) and math.isnan(found.intercept)


def test_equal_scores_give_the_share() -> None:
    found = fit_logistic(np.zeros(9), np.arange(9) < 3)
    assert found.probability(np.zeros(1))[0] == pytest.approx((3 * 4 / 5 + 6 / 8) / 9)
