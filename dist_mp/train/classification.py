"""Accuracy and F1 of a classifier from its confusion matrix, which sums over batches and ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    """Accuracy, macro F1 and, of two classes, F1 and ROC AUC of class 1, from scores [N, classes] (logits or more).

    A NaN among the scores makes every metric NaN, so that a diverged model cannot look like a poor one.
    """
    classes = scores.shape[1]
    if np.isnan(scores).any():
        names = ("accuracy", "f1_macro", *(("f1", "auc") if classes == 2 else ()))
        return dict.fromkeys(names, float("nan"))
    matrix = confusion_matrix(labels, scores.argmax(axis=1), classes)
    per_class = f1_scores(matrix)
    metrics = {"accuracy": accuracy(matrix), "f1_macro": float(per_class.mean())}
    if classes == 2:
        wide = scores.astype(np.float64)
        metrics |= {"f1": float(per_class[1]), "auc": binary_roc(wide[:, 1] - wide[:, 0], labels == 1).auc}
    return metrics
