"""Boxes of an object detector: default boxes, matching, offsets, suppression (Liu et al. 2016, SSD, arXiv 1512.02325).

Boxes are corners [..., 4] as y0, x0, y1, x1, in shares of the image. Legend of shapes: A default boxes, K objects.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

STRIDES = (4, 8)
"""Pixels from one cell to the next, of each of the detector's maps."""
SCALE = 2.0
"""Side of a square default box, in strides of its map."""
RATIOS = (1.0, 2.0, 0.5)
"""Height by width of the default boxes of a cell."""
VARIANCES = np.array([0.1, 0.1, 0.2, 0.2], np.float32)
"""Offsets are divided by these, so that they are of order 1."""
LEAST_OVERLAP = 0.5
"""Intersection over union from which on a default box answers for an object."""


def default_boxes(size: int) -> Floats:
    """Corners [A, 4] of the default boxes of a square image of `size` pixels: by map, row, column, ratio."""
    boxes = []
    for stride in STRIDES:
        cells = range(size // stride)
        for row, column, ratio in product(cells, cells, RATIOS):
            y, x = (row + 0.5) * stride, (column + 0.5) * stride
            high, wide = (SCALE * stride * 0.5 * ratio**power for power in (0.5, -0.5))
            boxes.append((y - high, x - wide, y + high, x + wide))
    return (np.array(boxes) / size).astype(np.float32)


def overlaps(first: Floats, second: Floats) -> Floats:
    """Intersection over union of each of [A, 4] with each of [K, 4]: [A, K]."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    common = np.prod(np.maximum(high - low, 0.0), axis=2)
    areas = [np.prod(boxes[:, 2:] - boxes[:, :2], axis=1) for boxes in (first, second)]
    return np.asarray(common / np.maximum(areas[0][:, None] + areas[1][None] - common, 1e-12), np.float32)


def match(defaults: Floats, boxes: Floats) -> NDArray[np.int64]:
    """Which of the objects [K, 4] each default box answers for, -1 for none: [A].

    Each object has the default box that overlaps it most, and each default box the object that it overlaps most if that
    is by at least `LEAST_OVERLAP`.
    """
    if not len(boxes):
        return np.full(len(defaults), -1)
    common = overlaps(defaults, boxes)
    found = np.where(common.max(axis=1) >= LEAST_OVERLAP, common.argmax(axis=1), -1)
    for number in np.argsort(common.max(axis=0)):
        found[common[:, number].argmax()] = number
    return found


def _centred(boxes: Floats) -> tuple[NDArray, NDArray]:
    half = np.float32(0.5)
    return half * (boxes[..., :2] + boxes[..., 2:]), boxes[..., 2:] - boxes[..., :2]


def encode(defaults: Floats, boxes: Floats) -> Floats:
    """Offsets [A, 4] of the boxes [A, 4] from their default boxes: centre y, x and the logarithms of height, width."""
    centre, size = _centred(boxes)
    start, scale = _centred(defaults)
    return np.concatenate([(centre - start) / scale, np.log(size / scale)], axis=-1).astype(np.float32) / VARIANCES


def decode(defaults: Floats, offsets: Floats) -> Floats:
    """The inverse of :func:`encode`; a box is at most e^4 times as large as its default box."""
    start, scale = _centred(defaults)
    scaled = offsets * VARIANCES
    centre = start + scaled[..., :2] * scale
    half = scale * np.exp(np.minimum(scaled[..., 2:], 4.0)) / 2
    return np.concatenate([centre - half, centre + half], axis=-1).astype(np.float32)


def suppress(boxes: Floats, scores: Floats, limit: float = 0.45, keep: int = 20) -> NDArray[np.int64]:
    """Numbers of the boxes that stay, best first: none overlaps a better one by more than `limit`, `keep` at most."""
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while len(order) and len(kept) < keep:
        best = order[0]
        kept.append(int(best))
        order = order[1:][overlaps(boxes[order[1:]], boxes[best : best + 1])[:, 0] <= limit]
    return np.array(kept, np.int64)
