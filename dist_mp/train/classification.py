"""Accuracy and F1 of a classifier from its confusion matrix, which sums over batches and ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dist_mp.train.alarms import calibration
from dist_mp.train.evaluation_records import ClassEvaluation, bins_of, roc_points
from dist_mp.train.roc import binary_roc


def confusion_matrix(labels: NDArray[np.integer], predicted: NDArray[np.integer], classes: int) -> NDArray[np.int64]:
    """[classes, classes]: samples of each true class (row) by predicted class (column)."""
    flat = labels.astype(np.int64) * classes + predicted
    if len(flat) and (min(labels.min(), predicted.min()) < 0 or max(labels.max(), predicted.max()) >= classes):
        raise ValueError(f"a class is outside 0 to {classes - 1}")
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def accuracy(matrix: NDArray[np.int64]) -> float:
    """Share of samples on the diagonal; NaN without samples."""
    total = int(matrix.sum())
    return float(np.trace(matrix)) / total if total else float("nan")


def f1_scores(matrix: NDArray[np.int64]) -> NDArray[np.float64]:
    """Of each class 2 * true positives / (its samples + its predictions); 0 where both are 0."""
    both = matrix.sum(axis=0) + matrix.sum(axis=1)
    return 2.0 * np.diag(matrix) / np.maximum(both, 1)


def classification_metrics(labels: NDArray[np.integer], scores: NDArray[np.floating]) -> dict[str, float]:
    """Accuracy, macro F1 and ROC AUC, from scores [N, classes] (logits); of two classes those of class 1.

    Of more classes `auc_macro` is the mean of each class's against all others, over the classes that have samples.

    A NaN among the scores makes every metric NaN, so that a diverged model cannot look like a poor one.
    """
    classes = scores.shape[1]
    if np.isnan(scores).any():
        names = ("accuracy", "f1_macro", *(("f1", "auc") if classes == 2 else ("auc_macro",)))
        return dict.fromkeys(names, float("nan"))
    matrix = confusion_matrix(labels, scores.argmax(axis=1), classes)
    per_class = f1_scores(matrix)
    metrics = {"accuracy": accuracy(matrix), "f1_macro": float(per_class.mean())}
    if classes == 2:
        wide = scores.astype(np.float64)
        metrics |= {"f1": float(per_class[1]), "auc": binary_roc(wide[:, 1] - wide[:, 0], labels == 1).auc}
    else:
        areas = np.array(class_aucs(labels, scores))
        known = areas[~np.isnan(areas)]
        metrics["auc_macro"] = float(known.mean()) if len(known) else float("nan")
    return metrics


def softmax(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Probabilities [N, classes] of logits, in float64."""
    wide = scores.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def class_aucs(labels: NDArray[np.integer], scores: NDArray[np.floating]) -> list[float]:
    """Area under the ROC curve of each class's probability against all others; NaN without samples, or only such."""
    probability = softmax(scores)
    return [binary_roc(probability[:, c], labels == c).auc for c in range(scores.shape[1])]


def class_evaluation(
    labels: NDArray[np.integer], scores: NDArray[np.floating], loss: float, bins: int
) -> ClassEvaluation:
    """Evaluate the samples of a split from labels [N] and logits [N, classes]; a NaN leaves nothing but the loss."""
    classes, broken = scores.shape[1], bool(np.isnan(scores).any())
    matrix = confusion_matrix(labels, scores.argmax(axis=1), classes)
    probability = softmax(scores)
    curve, empty = None, [float("nan")] * classes
    outcome, predicted = scores.argmax(axis=1) == labels, probability.max(axis=1, initial=0.0)
    if classes == 2:
        margin = scores[:, 1].astype(np.float64) - scores[:, 0].astype(np.float64)
        curve = roc_points(binary_roc(margin, labels == 1))
        outcome, predicted = labels == 1, probability[:, 1]
    return ClassEvaluation(
        loss=loss,
        samples=len(labels),
        accuracy=float("nan") if broken else accuracy(matrix),
        f1=empty if broken else f1_scores(matrix).tolist(),
        auc=empty if broken else class_aucs(labels, scores),
        confusion=[] if broken else matrix.tolist(),
        roc=curve,
        calibration=bins_of(calibration(predicted, outcome, bins)),
    )
