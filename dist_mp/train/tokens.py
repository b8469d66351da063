"""Metrics of a model that predicts the words of whole sentences."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dist_mp.comm.world import World
from dist_mp.data.base import Batch


class TokenCollector:
    """Perplexity, the share of words predicted right, and that of sentences with every word right.

    Each word is predicted from the right words before it.
    """

    wants_scores = True

    def __init__(self) -> None:
        """Begin without words."""
        self._counts = np.zeros(4)

    def add(self, batch: Batch, scores: NDArray[np.float32]) -> None:
        """Take the predicted words [B, T] of a window of whole sentences."""
        valid = batch.weight > 0
        right = valid & (scores == batch.targets)
        whole = valid.any(axis=1)
        perfect = whole & (right == valid).all(axis=1)
        self._counts += right.sum(), valid.sum(), perfect.sum(), whole.sum()

    def metrics(self, world: World, mean_loss: float) -> dict[str, float]:
        """Over the sentences of all ranks."""
        right, words, perfect, sentences = world.agree(self._counts).sum(axis=0)
        self._counts = np.zeros(4)
        return {
            "perplexity": math.exp(mean_loss) if not mean_loss >= 700 else math.inf,
            "token_accuracy": right / max(words, 1.0),
            "sentence_accuracy": perfect / max(sentences, 1.0),
        }
