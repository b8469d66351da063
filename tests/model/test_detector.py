"""The detector: its loss against NumPy, its gradients, learning in every precision, mean average precision."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from dist_mp.config import Config, DetectorModel, ShapesData
from dist_mp.data.base import Batch, DataSpec
from dist_mp.data.shapes import ShapeDataset, ShapeSplit
from dist_mp.errors import UserError
from dist_mp.model.build import build_task, initial_masters
from dist_mp.precision.loss_scale import LossScale
from dist_mp.precision.master import MasterWeights
from dist_mp.train.detection import DetectionCollector, average_precision, judge
from dist_mp.train.step import TrainStep, Window
from tests.model.test_classifier import PRECISIONS, Local

SEED = tf.constant([0, 0])


@pytest.fixture(scope="module")
def dataset() -> ShapeDataset:
    return ShapeDataset(ShapesData(samples=20))


def settings() -> Config:
    return Config.model_validate(
        {
            "data": {"kind": "shapes"},
            "model": DetectorModel(filters=8).model_dump(),
            "optimizer": {"name": "adam"},
            "loss_scale": {"initial": 8.0},
        }
    )


def window(batch: Batch) -> Window:
    return Window(*(tf.constant(a) for a in (batch.inputs, batch.targets, batch.weight, batch.reset)))


def expected_loss(outputs: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> float:
    """The sum that section 2.2 of the paper divides by the number of matched boxes."""
    total = 0.0
    for y, target, positive in zip(outputs, targets, weight > 0, strict=True):
        entropy = np.log(np.exp(y[:, :4]).sum(1)) - y[np.arange(len(y)), target[:, 0].astype(int)]
        distance = np.abs(y[positive, 4:] - target[positive, 1:])
        total += entropy[positive].sum() + np.where(distance < 1, distance**2 / 2, distance - 0.5).sum()
        total += np.sort(entropy[~positive])[::-1][: 3 * positive.sum()].sum()
    return total


def test_loss_equals_numpy_with_the_hardest_negatives(dataset: ShapeDataset) -> None:
    task = build_task(settings(), dataset.spec, "float32")
    batch = next(dataset.valid.batches(0, 6, 0, 6))
    assert batch.sequence is not None and (batch.sequence < 0).sum() == 2, "two idle rows"
    outputs = np.random.default_rng(0).normal(size=(6, len(dataset.valid.defaults), 8)).astype(np.float32) * 2
    losses = task.losses(tf.constant(outputs), tf.constant(batch.targets), tf.constant(batch.weight)).numpy()
    np.testing.assert_array_equal(losses > 0, batch.weight > 0)
    expected = expected_loss(outputs.astype(np.float64), batch.targets, batch.weight)
    assert losses.sum() == pytest.approx(expected, rel=1e-5)
    parts = [task.losses(outputs[k : k + 2], batch.targets[k : k + 2], batch.weight[k : k + 2]) for k in (0, 2, 4)]
    np.testing.assert_allclose(np.concatenate(parts), losses, atol=1e-5)


def test_gradients_equal_finite_differences_in_float64(dataset: ShapeDataset) -> None:
    task = build_task(settings(), dataset.spec, "float64")
    inputs = tf.constant(next(dataset.train.batches(0, 2, 0, 2)).inputs)

    def loss() -> tf.Tensor:
        y = task.forward(inputs, [], training=False, seed=SEED)[0]
        return tf.reduce_sum(y * tf.cos(tf.reshape(tf.range(tf.size(y), dtype=tf.float64), y.shape)))

    with tf.GradientTape() as tape:
        value = loss()
    for variable, gradient in zip(task.variables, tape.gradient(value, task.variables), strict=True):
        start = variable.numpy()
        position = start.size // 2
        sides = []
        for sign in (1, -1):
            moved = start.copy().reshape(-1)
            moved[position] += sign * 1e-6
            variable.assign(moved.reshape(start.shape))
            sides.append(float(loss()))
        variable.assign(start)
        assert (sides[0] - sides[1]) / 2e-6 == pytest.approx(gradient.numpy().reshape(-1)[position], abs=1e-5)


class Alone:
    """What a collector needs of a world of one rank."""

    def allgather(self, own):
        return [own]


def precision_of(task, split: ShapeSplit, batch: Batch) -> float:
    collector = DetectionCollector(split)
    collector.add(batch, task.scores(task.forward(batch.inputs, [], training=False, seed=SEED)[0]).numpy())
    return collector.metrics(Alone(), 0.0)["mean_average_precision"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_learns_its_images(dataset: ShapeDataset, precision: str) -> None:
    config = settings()
    task = build_task(config, dataset.spec, PRECISIONS[precision])
    assert {v.dtype.name for v in task.variables} == {PRECISIONS[precision]}
    assert len(set(task.paths)) == len(task.paths) == len(task.variables)
    masters = MasterWeights(task.model.trainable_variables, initial_masters(config, dataset.spec), config.optimizer)
    step = TrainStep(task, masters, LossScale(config.loss_scale, precision), Local(), num_workers=1)
    batch = next(dataset.train.batches(0, 4, 0, 4))
    total, losses = tf.constant(batch.weight.sum()), []
    for number in range(80):
        result = step.update(window(batch), [], total, tf.constant([number, 1]), tf.constant(0.004))
        losses.append(float(result.loss_sum) / float(total))
        assert bool(result.finite)
    assert losses[-1] < 0.15 * losses[0], losses[::10]
    assert precision_of(task, dataset.train, batch) > 0.6


def test_average_precision_of_examples_by_hand() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6])
    assert average_precision(scores, np.array([True, False, True, False]), 2) == pytest.approx((1 + 2 / 3) / 2)
    assert average_precision(scores, np.array([True, True, False, False]), 4) == pytest.approx(0.5)
    # The better precision at a higher recall counts for the lower one too.
    assert average_precision(scores, np.array([False, True, True, True]), 3) == pytest.approx(0.75)
    assert average_precision(np.zeros(0), np.zeros(0, bool), 2) == 0.0
    assert np.isnan(average_precision(scores, np.ones(4, bool), 0))
    truth = np.array([[0, 0, 2, 2], [5, 5, 7, 7]], np.float32)
    found = np.array([[0, 0, 2, 2.2], [0, 0, 2, 2], [5, 5, 7, 6], [5, 5, 7, 5.5]], np.float32)
    np.testing.assert_array_equal(judge(found, truth), [True, False, True, False])
    assert not judge(found, np.zeros((0, 4), np.float32)).any()


def test_perfect_scores_have_a_precision_of_one_and_nan_is_nan(dataset: ShapeDataset) -> None:
    batch = next(dataset.valid.batches(0, 4, 0, 4))
    scores = np.zeros((4, len(dataset.valid.defaults), 8), np.float32)
    np.put_along_axis(scores, batch.targets[:, :, :1].astype(int), 1.0, axis=2)
    scores[:, :, 4:] = batch.targets[:, :, 1:]
    for content, expected in ((scores, 1.0), (scores * np.nan, np.nan)):
        collector = DetectionCollector(dataset.valid)
        collector.add(batch, content)
        np.testing.assert_equal(collector.metrics(Alone(), 0.0), {"mean_average_precision": expected})


def test_data_without_boxes_are_refused() -> None:
    with pytest.raises(UserError, match="needs images with boxes"):
        build_task(settings(), DataSpec(8, channels=8, width=8, classes=3), "float32")
    with pytest.raises(UserError, match="a multiple of 8 pixels, got 12 x 12"):
        build_task(settings(), DataSpec(12, channels=12, width=12, objects=3), "float32")
