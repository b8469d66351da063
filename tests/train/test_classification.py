"""Accuracy, F1 and AUC against scikit-learn."""

import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, f1_score, roc_auc_score, roc_curve
from sklearn.metrics import confusion_matrix as oracle_matrix

from dist_mp.train.classification import (
    accuracy,
    class_evaluation,
    classification_metrics,
    confusion_matrix,
    f1_scores,
    softmax,
)


@pytest.mark.parametrize(("classes", "count"), [(2, 1), (2, 57), (5, 200), (9, 12)])
def test_agrees_with_scikit_learn(classes: int, count: int) -> None:
    rng = np.random.default_rng([classes, count])
    labels = rng.integers(0, classes, count)
    scores = rng.normal(size=(count, classes)).round(1).astype(np.float32)
    scores[np.arange(count), labels] += 0.5
    metrics = classification_metrics(labels, scores)
    predicted = scores.argmax(axis=1)
    every = range(classes)
    assert metrics["accuracy"] == pytest.approx(accuracy_score(labels, predicted))
    macro = f1_score(labels, predicted, labels=list(every), average="macro", zero_division=0)
    assert metrics["f1_macro"] == pytest.approx(macro)
    if classes == 2 and count > 1:
        assert metrics["f1"] == pytest.approx(f1_score(labels, predicted))
        margin = scores[:, 1].astype(float) - scores[:, 0].astype(float)
        assert metrics["auc"] == pytest.approx(roc_auc_score(labels, margin))
    if classes > 2 and len(np.unique(labels)) == classes:
        macro = roc_auc_score(labels, softmax(scores), multi_class="ovr", average="macro")
        assert metrics["auc_macro"] == pytest.approx(macro)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_evaluation_at_the_end_agrees_with_scikit_learn(classes: int) -> None:
    rng = np.random.default_rng(classes)
    labels = rng.integers(0, classes, 300)
    scores = (2 * rng.normal(size=(300, classes))).astype(np.float32)
    scores[np.arange(300), labels] += 2.0
    found = class_evaluation(labels, scores, 0.5, 10)
    predicted, probability = scores.argmax(axis=1), softmax(scores)
    assert (found.loss, found.samples) == (0.5, 300)
    assert found.accuracy == pytest.approx(accuracy_score(labels, predicted))
    assert found.f1 == pytest.approx(f1_score(labels, predicted, average=None).tolist())
    assert found.confusion == oracle_matrix(labels, predicted).tolist()
    assert found.auc == pytest.approx([roc_auc_score(labels == c, probability[:, c]) for c in range(classes)])
    if classes == 2:
        true, chance = labels == 1, probability[:, 1]
        false_rate, true_rate, _ = roc_curve(labels, scores[:, 1] - scores[:, 0], drop_intermediate=False)
        assert found.roc is not None
        np.testing.assert_allclose(found.roc.false_positive_rate, false_rate)
        np.testing.assert_allclose(found.roc.true_positive_rate, true_rate)
    else:
        true, chance = predicted == labels, probability.max(axis=1)
        assert found.roc is None
    observed, mean = calibration_curve(true, chance, n_bins=10)
    np.testing.assert_allclose(found.calibration.observed, observed)
    np.testing.assert_allclose(found.calibration.predicted, mean)


def test_matrices_of_parts_sum_to_the_whole() -> None:
    rng = np.random.default_rng(4)
    labels, predicted = rng.integers(0, 4, 50), rng.integers(0, 4, 50)
    whole = confusion_matrix(labels, predicted, 4)
    parts = sum(confusion_matrix(labels[rank::3], predicted[rank::3], 4) for rank in range(3))
    np.testing.assert_array_equal(whole, parts)
    assert whole[2, 1] == ((labels == 2) & (predicted == 1)).sum()


def test_nothing_to_count() -> None:
    empty = confusion_matrix(np.empty(0, int), np.empty(0, int), 3)
    assert math.isnan(accuracy(empty))
    assert f1_scores(empty).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("label", "guess"), [(3, 0), (0, 3), (-1, 0)])
def test_a_class_out_of_range_is_a_bug(label: int, guess: int) -> None:
    with pytest.raises(ValueError, match="outside 0 to 2"):
        confusion_matrix(np.array([label]), np.array([guess]), 3)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_diverged_model_does_not_look_like_a_poor_one(classes: int) -> None:
    scores = np.zeros((4, classes), np.float32)
    scores[1, 0] = np.nan
    metrics = classification_metrics(np.array([0, 0, 1, 1]), scores)
    assert metrics.keys() == classification_metrics(np.array([0, 0, 1, 1]), np.nan_to_num(scores)).keys()
    assert all(math.isnan(value) for value in metrics.values())
    evaluation = class_evaluation(np.array([0, 0, 1, 1]), scores, math.nan, 10)
    assert math.isnan(evaluation.accuracy) and math.isnan(evaluation.calibration.brier)
    assert not evaluation.confusion and np.isnan(evaluation.auc).all() and np.isnan(evaluation.f1).all()
