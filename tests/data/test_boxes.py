"""Boxes of a detector and the generated images they belong to."""

from __future__ import annotations

import numpy as np
import pytest

from dist_mp.config import ShapesData
from dist_mp.data.boxes import decode, default_boxes, encode, match, overlaps, suppress
from dist_mp.data.shapes import KINDS, SIZE, ShapeDataset, draw, shapes_dataset


def boxes(*corners: tuple[float, float, float, float]) -> np.ndarray:
    return np.array(corners, np.float32)


def test_overlaps_equal_areas_counted_by_hand() -> None:
    first = boxes((0, 0, 2, 2), (0, 0, 1, 4))
    second = boxes((1, 1, 3, 3), (0, 0, 2, 2), (5, 5, 6, 6))
    np.testing.assert_allclose(overlaps(first, second), [[1 / 7, 1, 0], [0, 2 / 6, 0]], atol=1e-6)


def test_offsets_come_back_as_the_box_they_were() -> None:
    defaults = default_boxes(SIZE)
    assert defaults.shape == ((8 * 8 + 4 * 4) * 3, 4)
    np.testing.assert_allclose(defaults[0], np.array([-2, -2, 6, 6]) / SIZE, atol=1e-6)
    wanted = np.tile(boxes((0.2, 0.3, 0.5, 0.9)), (len(defaults), 1))
    np.testing.assert_allclose(decode(defaults, encode(defaults, wanted)), wanted, atol=1e-5)


def test_every_object_has_a_default_box_and_near_ones_share() -> None:
    defaults = default_boxes(SIZE)
    objects = boxes((0.1, 0.1, 0.35, 0.35), (0.5, 0.5, 0.96, 0.98), (0.0, 0.9, 0.04, 1.0))
    found = match(defaults, objects)
    assert set(found) == {-1, 0, 1, 2}
    common = overlaps(defaults, objects)
    assert common[:, 2].max() < 0.5 and found[common[:, 2].argmax()] == 2, "an object that no box fits has its best one"
    for box in np.flatnonzero(found >= 0):
        assert common[box, found[box]] >= 0.5 or box == common[:, found[box]].argmax()
    assert np.all(common[found < 0] < 0.5) and np.sum(found == 0) > 1
    assert np.all(match(defaults, np.zeros((0, 4), np.float32)) == -1)


def test_suppression_keeps_the_best_of_each_heap() -> None:
    heap = boxes((0, 0, 4, 4), (0, 0, 4, 5), (10, 10, 12, 12), (0, 0, 5, 4))
    np.testing.assert_array_equal(suppress(heap, np.array([0.5, 0.9, 0.3, 0.8], np.float32)), [1, 2])
    assert len(suppress(heap, np.ones(4, np.float32), keep=1)) == 1


def test_objects_lie_in_their_boxes_and_images_repeat() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        image, corners, kinds = draw(rng, 3)
        assert 1 <= len(corners) == len(kinds) <= 3 and corners.min() >= 0 and corners.max() <= 1
        outside = np.ones((SIZE, SIZE), bool)
        for box in corners * SIZE:
            y, x = (slice(int(np.floor(box[k])), int(np.ceil(box[k + 2]))) for k in (0, 1))
            assert np.abs(image[y, x]).mean() > 0.3
            outside[y, x] = False
        assert np.abs(image[outside]).max() < 0.15 * 5
    datasets = [ShapeDataset(ShapesData(samples=20)) for _ in range(2)]
    for split, again in zip(*((d.train, d.valid) for d in datasets), strict=True):
        batch, other = (next(s.batches(0, 4, 0, 4)) for s in (split, again))
        np.testing.assert_array_equal(batch.inputs, other.inputs)
        np.testing.assert_array_equal(batch.targets, other.targets)
    assert len(datasets[0].train.boxes) == 16 and len(datasets[0].valid.boxes) == 4


def test_targets_decode_to_the_objects_of_the_image() -> None:
    split = ShapeDataset(ShapesData(samples=20)).train
    batch = next(split.batches(0, 8, 2, 5))
    assert batch.sequence is not None and batch.targets.shape == (5, len(split.defaults), 5)
    for row, image in enumerate(batch.sequence):
        positive = batch.weight[row] > 0
        decoded = decode(split.defaults, batch.targets[row, :, 1:])[positive]
        common = overlaps(decoded, split.boxes[image])
        assert set(common.argmax(axis=1)) == set(range(len(split.boxes[image])))
        np.testing.assert_allclose(common.max(axis=1), 1.0, atol=1e-4)
        kinds = split.kinds[image][common.argmax(axis=1)]
        np.testing.assert_array_equal(batch.targets[row, positive, 0], kinds + 1)


def test_images_of_one_object_have_its_kind_as_their_class() -> None:
    dataset = shapes_dataset(60)
    assert dataset.spec.width == SIZE and dataset.spec.classes == len(KINDS)
    assert set(dataset.train.labels) == {0, 1, 2}
    batch = next(dataset.train.batches(0, 16, 0, 16))
    assert batch.inputs.shape == (16, SIZE, SIZE) and batch.inputs.std() == pytest.approx(1.0, abs=0.3)
