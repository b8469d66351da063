"""From scores of any scale to probabilities: a logistic curve (Platt 1999; Lin, Lin and Weng 2007)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Logistic:
    """Probability of the positive class: 1 / (1 + exp(-(slope * score + intercept)))."""

    slope: float
    intercept: float

    def probability(self, scores: NDArray[np.floating]) -> NDArray[np.float64]:
        """Of scores [N]; a NaN stays."""
        with np.errstate(invalid="ignore"):
            z = self.slope * np.asarray(scores, np.float64) + self.intercept
            return np.exp(-np.logaddexp(0.0, -z))


def fit_logistic(scores: NDArray[np.floating], positive: NDArray[np.bool_]) -> Logistic:
    """The curve that makes the outcomes most likely, with the targets of Platt, which keep it finite in any case.

    N+ positives get the target (N+ + 1) / (N+ + 2), N- negatives 1 / (N- + 2): so also perfectly separated scores have
    a finite slope. Without a class, or with a score that is not finite, slope and intercept are NaN.
    """
    x = np.asarray(scores, np.float64)
    positives, negatives = int(positive.sum()), int((~positive).sum())
    if not positives or not negatives or not np.isfinite(x).all():
        return Logistic(float("nan"), float("nan"))
    target = np.where(positive, (positives + 1.0) / (positives + 2.0), 1.0 / (negatives + 2.0))
    # Newton's method on centred and scaled scores, on which the two parameters hardly depend on each other.
    centre, spread = float(x.mean()), float(x.std()) or 1.0
    z = (x - centre) / spread
    a, b = 0.0, float(np.log((positives + 1.0) / (negatives + 1.0)))
    loss = _loss(a * z + b, target)
    for _ in range(100):
        p = 1.0 / (1.0 + np.exp(-(a * z + b)))
        error, curvature = p - target, np.maximum(p * (1.0 - p), 1e-12)
        gradient = np.array([np.sum(error * z), np.sum(error)])
        if np.abs(gradient).max() < 1e-10 * len(x):
            break
        hessian = np.array([[np.sum(curvature * z * z), np.sum(curvature * z)], [np.sum(curvature * z), 0.0]])
        hessian[1, 0], hessian[1, 1] = hessian[0, 1], np.sum(curvature)
        step = np.linalg.solve(hessian + 1e-12 * np.eye(2), gradient)
        size = 1.0
        # Halve a step that overshoots.
        while size > 1e-10 and (new := _loss((a - size * step[0]) * z + b - size * step[1], target)) > loss:
            size /= 2.0
        if size <= 1e-10:
            break
        a, b, loss = a - size * float(step[0]), b - size * float(step[1]), new
    return Logistic(a / spread, b - a * centre / spread)


def _loss(z: NDArray[np.float64], target: NDArray[np.float64]) -> float:
    return float(np.sum(np.logaddexp(0.0, z) - target * z))
