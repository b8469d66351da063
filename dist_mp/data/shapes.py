"""Generated images of discs, squares and triangles: several with boxes for a detector, one with a class for others.

Objects are brighter or darker than the ground, of different sizes and proportions, overlap little, and noise lies over
all of it. The same seed gives the same images.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dist_mp.config import ShapesData
from dist_mp.data.base import Batch, Dataset, DataSpec
from dist_mp.data.boxes import Floats, default_boxes, encode, match, overlaps
from dist_mp.data.buckets import BucketSplit
from dist_mp.data.labelled import Labelled, LabelledDataset

SIZE = 32
"""Pixels of a side."""
KINDS = ("disc", "square", "triangle")
SIDES = (7.0, 16.0)
"""Smallest and largest side of an object's box (pixels)."""
MOST_OBJECTS = 3
NOISE = 0.15
"""Deviation of the noise on images with boxes."""
FAINT_NOISE = 0.03
"""The same on images of one object: a generator of images can imitate no noise."""
SEED = 7
TEST_SHARE = 5


def _paint(image: Floats, kind: int, box: Floats, contrast: float) -> None:
    """Draw an object into its box, given in pixels."""
    y, x = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32) + 0.5
    v, u = (y - box[0]) / (box[2] - box[0]), (x - box[1]) / (box[3] - box[1])
    inside = (v >= 0) & (v <= 1) & (u >= 0) & (u <= 1)
    if kind == 0:
        inside &= (2 * v - 1) ** 2 + (2 * u - 1) ** 2 <= 1
    elif kind == 2:
        inside &= np.abs(2 * u - 1) <= v
    image[inside] += contrast


def draw(rng: np.random.Generator, objects: int, noise: float = NOISE) -> tuple[Floats, Floats, NDArray[np.int32]]:
    """An image [SIZE, SIZE] around 0 with so many objects (fewer where there is no room), their boxes and kinds."""
    image, boxes = np.zeros((SIZE, SIZE), np.float32), np.zeros((0, 4), np.float32)
    kinds: list[int] = []
    for _ in range(4 * objects):
        if len(boxes) == objects:
            break
        side, ratio = rng.uniform(*SIDES), rng.uniform(0.75, 1.33)
        size = np.minimum(np.array([side * ratio**0.5, side * ratio**-0.5]), SIZE)
        corner = rng.uniform(0, SIZE - size)
        box = np.array([[*corner, *(corner + size)]], np.float32)
        if len(boxes) and overlaps(boxes, box / np.float32(SIZE)).max() > 0.1:
            continue
        kind = int(rng.integers(len(KINDS)))
        _paint(image, kind, box[0], float(rng.choice([-1.0, 1.0]) * rng.uniform(0.6, 1.2)))
        boxes, kinds = np.concatenate([boxes, box / np.float32(SIZE)]), [*kinds, kind]
    image += rng.normal(scale=noise, size=image.shape)
    return image, boxes, np.array(kinds, np.int32)


class ShapeSplit(BucketSplit):
    """Images with boxes; a step of a window's targets is a default box, which has weight 1 where it answers for one.

    Targets are float32 [B, A, 5]: the kind of object counted from 1, 0 for none, and the offsets of its box.
    """

    def __init__(
        self,
        images: Sequence[Floats],
        boxes: Sequence[Floats],
        kinds: Sequence[NDArray[np.int32]],
        order_seed: int | None,
    ) -> None:
        """Take images [SIZE, SIZE] with boxes [K, 4] and kinds [K]; `order_seed` None keeps one order."""
        super().__init__(images, np.zeros(len(images), np.int32), np.array([SIZE]), order_seed)
        self.boxes, self.kinds = boxes, kinds
        self.defaults = default_boxes(SIZE)

    def _batch(self, sequence: NDArray[np.int32], length: int) -> Batch:
        rows, count = len(sequence), len(self.defaults)
        inputs = np.zeros((rows, SIZE, SIZE), np.float32)
        targets, weight = np.zeros((rows, count, 5), np.float32), np.zeros((rows, count), np.float32)
        for row, which in enumerate(sequence.tolist()):
            if which >= 0:
                inputs[row] = self.sequences[which]
                found = match(self.defaults, self.boxes[which])
                positive = np.flatnonzero(found >= 0)
                numbers = found[positive]
                targets[row, positive, 0] = self.kinds[which][numbers] + 1
                targets[row, positive, 1:] = encode(self.defaults[positive], self.boxes[which][numbers])
                weight[row, positive] = 1.0
        return Batch(inputs, targets, weight, np.ones(rows, np.bool_), sequence.copy(), np.zeros(rows, np.int32))


class ShapeDataset(Dataset):
    """Generated images of one to three objects each."""

    train: ShapeSplit
    valid: ShapeSplit

    def __init__(self, settings: ShapesData, order_seed: int = 1) -> None:
        """Draw so many images; the last of them are held out."""
        rng = np.random.default_rng((SEED, 0))
        drawn = [draw(rng, int(rng.integers(1, MOST_OBJECTS + 1))) for _ in range(settings.samples)]
        held = min(max(1, round(settings.samples * settings.validation_fraction)), settings.samples - 1)

        def split(part: Sequence[tuple], seed: int | None) -> ShapeSplit:
            images, boxes, kinds = (list(column) for column in zip(*part, strict=True))
            return ShapeSplit(images, boxes, kinds, seed)

        self.train, self.valid = split(drawn[:-held], order_seed), split(drawn[-held:], None)
        self.spec = DataSpec(length=SIZE, channels=SIZE, width=SIZE, objects=len(KINDS))

    def describe(self) -> str:
        """One line for the run's header."""
        counts = " / ".join(f"{len(s.boxes):,}" for s in (self.train, self.valid))
        objects = sum(len(boxes) for split in (self.train, self.valid) for boxes in split.boxes)
        return f"generated shapes: {counts} images (train / valid) of {SIZE} x {SIZE}, {objects:,} objects"


def shapes_dataset(samples: int, validation_fraction: float = 0.1, order_seed: int = 1) -> LabelledDataset:
    """Images of one object each with its kind as the class; a fifth as many to test on."""

    def part(count: int, number: int) -> Labelled:
        rng = np.random.default_rng((SEED, number))
        drawn = [draw(rng, 1, FAINT_NOISE) for _ in range(count)]
        grey = np.stack([np.clip(127.5 + 80 * image, 0, 255).astype(np.uint8) for image, _, _ in drawn])
        return Labelled(grey, np.array([kinds[0] for _, _, kinds in drawn], np.int32))

    return LabelledDataset(
        "generated shapes",
        part(max(samples, 30), 1),
        part(max(samples // TEST_SHARE, 10), 2),
        KINDS,
        validation_fraction=validation_fraction,
        order_seed=order_seed,
    )
