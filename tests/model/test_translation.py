"""Encoder-decoder with attention: exact masks, no look ahead, gradients, learning in every precision, metrics."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from dist_mp.config import Config, PairsData, TranslationModel
from dist_mp.data.base import Batch, DataSpec
from dist_mp.model.build import build_task, initial_masters
from dist_mp.model.translation import attend
from dist_mp.precision.loss_scale import LossScale
from dist_mp.precision.master import MasterWeights
from dist_mp.train.step import TrainStep, Window
from dist_mp.train.tokens import TokenCollector
from tests.model.test_classifier import PRECISIONS, Local

ROWS, STEPS = 6, 7
SPEC = DataSpec(STEPS, vocabulary=9, target_vocabulary=8)
SEED = tf.constant([0, 0])


def settings(**model) -> Config:
    return Config.model_validate(
        {
            "data": PairsData().model_dump(),
            "model": TranslationModel(**{"layers": 2, "units": 12} | model).model_dump(),
            "optimizer": {"name": "adam"},
            "loss_scale": {"initial": 256.0},
        }
    )


def example() -> Window:
    """Sources of 2 to 6 words, targets of another length, and one idle row."""
    rng = np.random.default_rng(0)
    inputs, targets = np.zeros((ROWS, STEPS, 2), np.int32), np.zeros((ROWS, STEPS), np.int32)
    weight = np.zeros((ROWS, STEPS), np.float32)
    for row in range(ROWS - 1):
        source, target = rng.integers(1, 9, 2 + row), rng.integers(1, 8, 6 - row)
        inputs[row, : len(source), 0], inputs[row, 1 : len(target), 1] = source, target[:-1]
        targets[row, : len(target)], weight[row, : len(target)] = target, 1.0
    return Window(*(tf.constant(a) for a in (inputs, targets, weight, np.ones(ROWS, bool))))


def results(task, window: Window) -> list[np.ndarray]:
    with tf.GradientTape() as tape:
        outputs, state = task.forward(window.inputs, [], training=False, seed=SEED, weight=window.weight)
        losses = task.losses(outputs, window.targets, window.weight)
        loss = tf.reduce_sum(losses * window.weight)
    assert state == [] and losses.dtype == tf.float32
    return [losses.numpy(), *(np.asarray(g, np.float32) for g in tape.gradient(loss, task.variables))]


def test_a_row_is_translated_as_if_it_were_alone_without_padding() -> None:
    window, task = example(), build_task(settings(), SPEC, "float32")
    together = results(task, window)
    assert not together[0][ROWS - 1].any() and np.all(np.isfinite(together[1]))
    sums = [np.zeros_like(g) for g in together[1:]]
    for row in range(ROWS - 1):
        inputs, weight = window.inputs[row : row + 1], window.weight[row : row + 1]
        steps = max(int(tf.math.count_nonzero(inputs[..., 0])), int(tf.math.count_nonzero(weight)))
        targets = window.targets[row : row + 1, :steps]
        alone = results(task, Window(inputs[:, :steps], targets, weight[:, :steps], window.reset))
        np.testing.assert_allclose(alone[0][0], together[0][row, :steps], atol=1e-6)
        sums = [a + b for a, b in zip(sums, alone[1:], strict=True)]
    for a, b in zip(sums, together[1:], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_padding_has_no_weight_at_all_and_the_future_is_not_seen() -> None:
    keys, valid = tf.random.stateless_normal((2, 4, 3), [1, 2]), tf.constant([[1, 1, 0, 0], [1, 1, 1, 1]]) > 0
    queries = tf.random.stateless_normal((2, 5, 3), [3, 4])
    changed = tf.where(valid[:, :, None], keys, 1e30)
    np.testing.assert_array_equal(attend(queries, keys, valid), attend(queries, changed, valid))
    scores = np.einsum("td,sd->ts", queries[1], keys[1]) / np.sqrt(3)
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(attend(queries, keys, valid)[1], weights @ keys[1].numpy(), atol=1e-6)

    window, task = example(), build_task(settings(), SPEC, "float32")
    later = window.inputs.numpy()
    later[:, 4:, 1] = 3
    outputs, other = (task.forward(x, [], training=False, seed=SEED)[0] for x in (window.inputs, tf.constant(later)))
    np.testing.assert_array_equal(outputs[:, :4], other[:, :4])
    assert np.any(outputs[:, 4:] != other[:, 4:])


def test_gradients_equal_finite_differences_in_float64() -> None:
    window, task = example(), build_task(settings(layers=1, units=4), SPEC, "float64")

    def loss() -> tf.Tensor:
        logits = task.forward(window.inputs, [], training=False, seed=SEED)[0]
        factors = tf.cos(tf.reshape(tf.range(tf.size(logits), dtype=tf.float64), logits.shape))
        return tf.reduce_sum(logits * factors * tf.cast(window.weight, tf.float64)[:, :, None])

    with tf.GradientTape() as tape:
        value = loss()
    for variable, gradient in zip(task.variables, tape.gradient(value, task.variables), strict=True):
        start = variable.numpy()
        for position in range(0, start.size, max(1, start.size // 4)):
            sides = []
            for sign in (1, -1):
                moved = start.copy().reshape(-1)
                moved[position] += sign * 1e-6
                variable.assign(moved.reshape(start.shape))
                sides.append(float(loss()))
            variable.assign(start)
            assert abs((sides[0] - sides[1]) / 2e-6 - gradient.numpy().reshape(-1)[position]) < 1e-7, variable.name


@pytest.mark.parametrize("precision", PRECISIONS)
def test_learns_its_pairs(precision: str) -> None:
    config, window = settings(dropout=0.05), example()
    task = build_task(config, SPEC, PRECISIONS[precision])
    assert len(set(task.paths)) == len(task.paths) == len(task.variables)
    masters = MasterWeights(task.model.trainable_variables, initial_masters(config, SPEC), config.optimizer)
    step = TrainStep(task, masters, LossScale(config.loss_scale, precision), Local(), num_workers=1)
    words, losses = float(tf.reduce_sum(window.weight)), []
    for number in range(60):
        result = step.update(window, [], tf.constant(words), tf.constant([number, 1]), tf.constant(0.03))
        assert bool(result.finite)
        losses.append(float(result.loss_sum) / words)
    assert abs(losses[0] - np.log(8)) < 0.3 and losses[-1] < 0.2, losses[::10]
    outputs, _ = task.forward(window.inputs, [], training=False, seed=SEED)
    scores = task.scores(outputs).numpy()
    assert scores.dtype == np.float32 and scores.shape == (ROWS, STEPS)
    np.testing.assert_array_equal(scores[window.weight > 0], window.targets.numpy()[window.weight > 0])


class Two:
    """What a collector needs of two ranks: the other has counted ten words, nine of them right, in one sentence."""

    def agree(self, own):
        return np.stack([own, [9.0, 10.0, 0.0, 1.0]])


def test_metrics_count_words_and_sentences_of_all_ranks() -> None:
    targets, scores = np.array([[1, 2, 0], [3, 1, 2], [0, 0, 0]], np.int32), np.array([[1, 2, 5], [3, 1, 1], [0, 0, 0]])
    weight = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 0]], np.float32)
    collector = TokenCollector()
    collector.add(Batch(np.zeros((3, 3, 2)), targets, weight, np.ones(3, bool)), scores.astype(np.float32))
    metrics = collector.metrics(Two(), 2.0)
    assert metrics == {
        "perplexity": pytest.approx(np.exp(2)),
        "token_accuracy": 13 / 15,
        "sentence_accuracy": pytest.approx(1 / 3),
    }
