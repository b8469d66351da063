"""The sampled softmax: its distribution, its gradient, its nearness to the full one, its use in the language model."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from dist_mp.config import Config, LanguageModel, TextData
from dist_mp.data.base import DataSpec
from dist_mp.model.build import build_task
from dist_mp.model.ops import softmax_losses
from dist_mp.model.sampled_softmax import log_expected_count, log_uniform_words, sampled_softmax_losses

WORDS, CELLS, ROWS = 40, 5, 6


def arguments(dtype: str = "float32") -> tuple[list[tf.Tensor], tf.Tensor]:
    rng = np.random.default_rng(0)
    values = [tf.cast(rng.normal(size=shape) * 0.7, dtype) for shape in ((ROWS, CELLS), (CELLS, WORDS), (WORDS,))]
    return values, tf.constant([3, 0, 17, 3, 39, 1])


def test_words_are_drawn_as_often_as_expected_and_by_the_seed_alone():
    drawn = log_uniform_words(200_000, WORDS, tf.constant([1, 2])).numpy()
    expected = np.exp(log_expected_count(tf.range(WORDS), 200_000, WORDS, tf.float64))
    assert expected.sum() == pytest.approx(200_000)
    counts = np.bincount(drawn, minlength=WORDS)
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))
    np.testing.assert_array_equal(drawn, log_uniform_words(200_000, WORDS, tf.constant([1, 2])))
    assert np.any(drawn != log_uniform_words(200_000, WORDS, tf.constant([1, 3])))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_losses_equal_numpy_with_samples_that_are_the_target(dtype):
    args, targets = arguments(dtype)
    drawn = log_uniform_words(12, WORDS, tf.constant([4, 5])).numpy()
    assert np.intersect1d(drawn, targets).size and len(set(drawn)) < 12, "both cases are in the example"
    losses = sampled_softmax_losses(*args, targets, tf.constant(drawn))
    h, kernel, bias = (np.asarray(tf.cast(a, tf.float64)) for a in args)
    logits = h @ kernel + bias
    counts = np.exp(log_expected_count(tf.range(WORDS), 12, WORDS, tf.float64))
    for row, target in enumerate(targets.numpy()):
        total = sum(np.exp(logits[row, k]) / counts[k] for k in [*drawn, target])
        expected = np.log(total) - logits[row, target]
        assert float(losses[row]) == pytest.approx(expected, abs={"float64": 1e-9, "float32": 1e-5}.get(dtype, 0.05))


def test_gradients_equal_finite_differences_in_float64():
    args, targets = arguments("float64")
    drawn = log_uniform_words(12, WORDS, tf.constant([4, 5]))

    def total(args):
        return tf.reduce_sum(sampled_softmax_losses(*args, targets, drawn) * tf.range(1.0, ROWS + 1, dtype=tf.float64))

    with tf.GradientTape() as tape:
        tape.watch(args)
        loss = total(args)
    for k, gradient in enumerate(tape.gradient(loss, args)):
        flat = args[k].numpy().reshape(-1)
        for position in range(flat.size):
            sides = []
            for sign in (1, -1):
                moved = flat.copy()
                moved[position] += sign * 1e-6
                sides.append(float(total([*args[:k], tf.constant(moved.reshape(args[k].shape)), *args[k + 1 :]])))
            numeric = (sides[0] - sides[1]) / 2e-6
            assert abs(numeric - np.asarray(gradient).reshape(-1)[position]) < 1e-7, (k, position)


def test_many_samples_give_the_gradient_of_the_full_softmax():
    """Importance sampling is consistent: the mean over draws of a large sample nears the full gradient."""
    args, targets = arguments()

    def gradient_of(losses):
        with tf.GradientTape() as tape:
            tape.watch(args)
            loss = tf.reduce_mean(losses(args))
        return np.concatenate([np.reshape(g, -1) for g in tape.gradient(loss, args)])

    full = gradient_of(lambda a: softmax_losses(a[0] @ a[1] + a[2], targets))
    error = {}
    for samples in (200, 20_000):
        drawn = log_uniform_words(samples, WORDS, tf.constant([7, 7]))
        sampled = gradient_of(lambda a, d=drawn: sampled_softmax_losses(*a, targets, d))
        error[samples] = np.linalg.norm(sampled - full) / np.linalg.norm(full)
    assert error[20_000] < 0.03 < error[200] < 0.5, error


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32"])
def test_language_model_samples_in_training_only(precision):
    model = LanguageModel(units=8, projection=6, softmax="sampled", softmax_samples=5, init_scale=0.5)
    config = Config(data=TextData(path="x"), model=model)
    task = build_task(config, DataSpec(4, vocabulary=WORDS), precision)
    full = build_task(
        config.model_copy(update={"model": model.model_copy(update={"softmax": "full"})}),
        DataSpec(4, vocabulary=WORDS),
        precision,
    )
    assert task.paths == full.paths
    inputs = tf.constant(np.random.default_rng(1).integers(0, WORDS, (3, 4)), tf.int32)
    targets, weight = tf.roll(inputs, -1, 1), tf.ones((3, 4))

    def losses(task, seed, training):
        outputs, state = task.forward(inputs, task.initial_state(3), training=training, seed=tf.constant(seed))
        assert [s.shape[1] for s in state] == [6, 8, 6, 8]
        return task.losses(outputs, targets, weight)

    np.testing.assert_array_equal(losses(task, [1, 2], False), losses(full, [1, 2], True))
    one, same, other = (losses(task, seed, True).numpy() for seed in ([1, 2], [1, 2], [1, 3]))
    np.testing.assert_array_equal(one, same)
    assert one.shape == (3, 4) and one.dtype == np.float32 and np.any(one != other)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(losses(task, [1, 2], True))
    for variable, gradient in zip(task.variables, tape.gradient(loss, task.variables), strict=True):
        assert gradient.dtype == variable.dtype and gradient.shape == variable.shape
        assert np.any(np.asarray(gradient, np.float32) != 0)
