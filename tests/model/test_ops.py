"""Sums in float32, whatever the dtype; losses against NumPy; dropout as a pure function."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from dist_mp.model import ops
from dist_mp.model.layers import Conv1D, Dense, Embedding

SIXTEEN = ["float16", "bfloat16"]


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [*SIXTEEN, "float32"])
def test_embedding_gradient_of_a_word_repeated_5000_times(dtype):
    words = np.concatenate([np.full(5000, 3), [1, 0, 1]]).astype(np.int32).reshape(1, -1)
    table = tf.cast(random(6, 4), dtype)
    upstream = tf.cast(np.abs(random(1, 5003, 4, seed=1)) + 0.5, dtype)
    with tf.GradientTape() as tape:
        tape.watch(table)
        vectors = ops.embed(table, words)
        loss = tf.reduce_sum(tf.cast(vectors, tf.float32) * tf.cast(upstream, tf.float32))
    np.testing.assert_array_equal(vectors, tf.gather(table, words))
    gradient = tape.gradient(loss, table)
    exact = np.zeros((6, 4))
    np.add.at(exact, words.reshape(-1), tf.cast(upstream, tf.float64).numpy()[0])
    assert gradient.dtype == table.dtype and gradient.shape == (6, 4)
    assert exact[3].min() > 5000
    # One rounding to the dtype, after a sum in float32.
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 1e-5}[dtype]
    np.testing.assert_allclose(tf.cast(gradient, tf.float64), exact, rtol=1.05 * unit)
    np.testing.assert_array_equal(tf.cast(gradient[2], tf.float32), np.zeros(4))


@pytest.mark.parametrize("dtype", SIXTEEN)
@pytest.mark.parametrize("columns", [1, 5, 64])
def test_column_sums_do_not_stop_growing(columns, dtype):
    x = tf.cast(np.linspace(1.0, 2.0, columns), dtype)[None] + tf.zeros((9000, columns), dtype)
    exact = tf.cast(x[0], tf.float64) * 9000
    np.testing.assert_allclose(tf.cast(ops.column_sums(x), tf.float64), exact, rtol=2.0**-8)


def test_dense_and_convolution_layers_equal_keras_with_gradients():
    x = tf.constant(random(3, 9, 4))
    for own, reference in (
        (Dense(5, activation="relu"), keras.layers.Dense(5, activation="relu")),
        (Conv1D(6, 3), keras.layers.Conv1D(6, 3)),
        (Conv1D(2, 1), keras.layers.Conv1D(2, 1)),
    ):
        results = []
        for layer in (own, reference):
            layer.build(x.shape)
            for k, variable in enumerate(layer.trainable_variables):
                variable.assign(random(*variable.shape, seed=k))
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
                loss = tf.reduce_sum(y * random(*y.shape, seed=9))
            results.append([y, *tape.gradient(loss, [x, *(v.value for v in layer.trainable_variables)])])
        for a, b in zip(*results, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def test_embedding_layer_equals_keras():
    own, reference = Embedding(7, 3), keras.layers.Embedding(7, 3)
    for layer in (own, reference):
        layer.build((None, None))
    reference.set_weights(own.get_weights())
    np.testing.assert_array_equal(own(np.array([[1, 6], [0, 1]])), reference(np.array([[1, 6], [0, 1]])))


@pytest.mark.parametrize("points", [8, 9])
def test_max_pool_equals_keras_and_drops_an_odd_point(points):
    x = tf.constant(random(3, points, 2))
    np.testing.assert_array_equal(ops.max_pool(x), keras.layers.MaxPooling1D(2)(x))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_softmax_losses_and_gradient_equal_numpy(dtype):
    logits = tf.cast(random(7, 13) * 5, dtype)
    targets = np.array([0, 12, 3, 3, 5, 1, 0], np.int32)
    weights = np.array([1, 2, 0, 0.5, 3, 1, 1], np.float32)

    @tf.function
    def run(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses = ops.softmax_losses(logits, targets)
            total = tf.reduce_sum(losses * weights)
        return losses, tape.gradient(total, logits)

    losses, gradient = run(logits)
    z = tf.cast(logits, tf.float64).numpy()
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    one_hot = np.eye(13)[targets]
    assert losses.dtype == tf.float32 and gradient.dtype == logits.dtype
    np.testing.assert_allclose(losses, -np.log((p * one_hot).sum(1)), rtol=1e-5, atol=1e-6)
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 1e-6}[dtype]
    np.testing.assert_allclose(
        tf.cast(gradient, tf.float64), (p - one_hot) * weights[:, None], rtol=2 * unit, atol=3e-7
    )
    np.testing.assert_array_equal(tf.cast(gradient[2], tf.float32), np.zeros(13))


def test_softmax_losses_of_float16_logits_at_the_end_of_the_range_are_finite():
    logits = tf.constant([[65504.0, -65504.0, 0.0]], tf.float16)
    np.testing.assert_allclose(ops.softmax_losses(logits, [0]), [0.0])
    np.testing.assert_allclose(ops.softmax_losses(logits, [1]), [131008.0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dropout_is_a_pure_function_of_seed_and_salt(dtype):
    x = tf.cast(np.abs(random(50, 400)) + 0.5, dtype)
    run = tf.function(lambda seed, salt: ops.stateless_dropout(x, 0.25, seed, salt))
    first = run(tf.constant([5, 6]), 0)
    assert first.dtype == x.dtype
    np.testing.assert_array_equal(first, ops.stateless_dropout(x, 0.25, tf.constant([5, 6]), 0))
    for other in (run(tf.constant([5, 6]), 1), run(tf.constant([6, 5]), 0), run(tf.constant([5, 7]), 0)):
        agree = np.mean((np.asarray(other, np.float32) == 0) == (np.asarray(first, np.float32) == 0))
        assert 0.55 < agree < 0.70  # independent: 0.75^2 + 0.25^2 = 0.625
    kept = np.asarray(first, np.float32) != 0
    assert 0.73 < kept.mean() < 0.77
    scaled = x * tf.cast(1 / 0.75, dtype)
    np.testing.assert_array_equal(np.asarray(first)[kept], np.asarray(scaled)[kept])
    assert ops.stateless_dropout(x, 0.0, tf.constant([5, 6]), 0) is x
