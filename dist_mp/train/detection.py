"""Mean average precision of a detector, over the images of all ranks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dist_mp.comm.world import World
from dist_mp.data.base import Batch
from dist_mp.data.boxes import Floats, decode, overlaps, suppress
from dist_mp.data.shapes import KINDS, ShapeSplit

LEAST_SCORE = 0.02
"""Probability below which a box is not looked at."""
RIGHT = 0.5
"""Intersection over union from which on a box has found an object."""


def average_precision(scores: NDArray[np.floating], right: NDArray[np.bool_], objects: int) -> float:
    """Area under precision over recall, each precision the best at its recall or beyond (Pascal VOC 2010).

    NaN where there are no objects.
    """
    if not objects:
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(right[order])
    precision = found / np.arange(1, len(order) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    return float((best * right[order]).sum() / objects)


def judge(boxes: Floats, truth: Floats) -> NDArray[np.bool_]:
    """Which of the boxes [N, 4], best first, has found one of the objects [K, 4]; each object is found once."""
    right, free = np.zeros(len(boxes), np.bool_), np.ones(len(truth), np.bool_)
    common = overlaps(boxes, truth)
    for number in range(len(boxes)):
        candidates = np.where(free, common[number], 0.0)
        if len(truth) and candidates.max() >= RIGHT:
            right[number] = True
            free[candidates.argmax()] = False
    return right


class DetectionCollector:
    """Average precision at an overlap of one half, the mean over the kinds of objects."""

    wants_scores = True

    def __init__(self, split: ShapeSplit) -> None:
        """Judge by the boxes of `split`."""
        self._split = split
        self._begin()

    def _begin(self) -> None:
        self._found: list[tuple[NDArray, NDArray, NDArray]] = []
        self._objects = np.zeros(len(KINDS))
        self._finite = True

    def add(self, batch: Batch, scores: NDArray[np.float32]) -> None:
        """Take probabilities and offsets [B, A, C + 5] of a window."""
        if batch.sequence is None:
            raise ValueError("windows of images carry their numbers")
        for row in np.flatnonzero(batch.sequence >= 0):
            image = int(batch.sequence[row])
            self._finite = self._finite and bool(np.isfinite(scores[row]).all())
            boxes = decode(self._split.defaults, scores[row, :, len(KINDS) + 1 :])
            for kind in range(len(KINDS)):
                truth = self._split.boxes[image][self._split.kinds[image] == kind]
                self._objects[kind] += len(truth)
                likely = np.flatnonzero(scores[row, :, kind + 1] >= LEAST_SCORE)
                probability = scores[row, likely, kind + 1]
                kept = suppress(boxes[likely], probability)
                right = judge(boxes[likely][kept], truth)
                self._found.append((np.full(len(kept), kind), probability[kept], right))

    def metrics(self, world: World, mean_loss: float) -> dict[str, float]:
        """Over the images of all ranks; NaN where a score is not finite."""
        own = [np.concatenate([np.zeros(0), *column]) for column in zip(*self._found, strict=True)] or [np.zeros(0)] * 3
        parts = world.allgather((own, self._objects, self._finite))
        self._begin()
        kinds, scores, right = (np.concatenate(column) for column in zip(*(p[0] for p in parts), strict=True))
        objects = np.sum([p[1] for p in parts], axis=0)
        precisions = [
            average_precision(scores[kinds == kind], right[kinds == kind] > 0, int(objects[kind]))
            for kind in range(len(KINDS))
        ]
        finite = all(p[2] for p in parts)
        return {"mean_average_precision": float(np.nanmean(precisions)) if finite else float("nan")}
