"""How near generated images are to real ones: the sliced Wasserstein distance, over the images of all ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dist_mp.comm.world import World
from dist_mp.data.base import Batch

DIRECTIONS = 256
SEED = 7


def sliced_wasserstein(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Mean distance of two samples [N, D] and [M, D] along random directions (Rabin et al. 2011); NaN if one is empty.

    Along a direction it is the mean distance of the samples' quantiles, at as many as the smaller sample has.
    """
    count = min(len(first), len(second))
    if not count:
        return float("nan")
    directions = np.random.default_rng(SEED).normal(size=(first.shape[1], DIRECTIONS))
    directions /= np.linalg.norm(directions, axis=0)
    at = (np.arange(count) + 0.5) / count
    quantiles = [np.quantile(sample @ directions, at, axis=0) for sample in (first, second)]
    return float(np.abs(quantiles[0] - quantiles[1]).mean())


class ImageCollector:
    """Distance of generated images from held-out ones, beside that of one half of the held-out ones from the other."""

    wants_scores = True

    def __init__(self) -> None:
        """Begin without images."""
        self._real: list[NDArray] = []
        self._fake: list[NDArray] = []

    def add(self, batch: Batch, scores: NDArray[np.float32]) -> None:
        """Take real images and the generated ones [B, H, W * colours] of a window."""
        held = (batch.weight > 0).any(axis=1)
        self._real.append(batch.inputs[held].reshape(int(held.sum()), -1))
        self._fake.append(scores[held].reshape(int(held.sum()), -1))

    def metrics(self, world: World, mean_loss: float) -> dict[str, float]:
        """Over the images of all ranks, in units of the data's deviation."""
        parts = world.allgather((np.concatenate(self._real), np.concatenate(self._fake)))
        self._real, self._fake = [], []
        real, fake = (np.concatenate(column).astype(np.float64) for column in zip(*parts, strict=True))
        return {
            "sliced_wasserstein": sliced_wasserstein(real, fake),
            "sliced_wasserstein_of_halves": sliced_wasserstein(real[::2], real[1::2]),
        }
