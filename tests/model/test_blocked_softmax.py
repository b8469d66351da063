"""Softmax over blocks of the vocabulary equals the one over the whole of it, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from dist_mp.model.blocked_softmax import blocked_softmax_losses
from dist_mp.model.ops import dense, softmax_losses

ROWS, CELLS, WORDS = 9, 5, 23


def arguments(dtype: str) -> list[tf.Tensor]:
    rng = np.random.default_rng(0)
    return [tf.cast(rng.normal(size=s) * 2, dtype) for s in ((ROWS, CELLS), (CELLS, WORDS), (WORDS,))]


TARGETS = tf.constant([0, 22, 7, 8, 7, 15, 16, 1, 21])


def losses_and_gradients(losses_of, args):
    @tf.function
    def run():
        with tf.GradientTape() as tape:
            tape.watch(args)
            losses = losses_of(*args)
            total = tf.reduce_sum(losses * tf.cast(tf.range(ROWS) - 3, losses.dtype))
        return losses, *tape.gradient(total, args)

    return run()


@pytest.mark.parametrize("block", [1, 8, 22, 23, 100])
@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8), ("float32", 1e-6)])
def test_equals_the_whole_vocabulary(dtype, unit, block):
    args = arguments(dtype)
    whole = losses_and_gradients(lambda h, w, b: softmax_losses(dense(h, w, b), TARGETS), args)
    blocked = losses_and_gradients(lambda h, w, b: blocked_softmax_losses(h, w, b, TARGETS, block), args)
    assert blocked[0].dtype == tf.float32
    for a, b, argument in zip(blocked, whole, [blocked[0], *args], strict=True):
        assert a.dtype == argument.dtype
        wide = [tf.cast(v, tf.float32).numpy() for v in (a, b)]
        np.testing.assert_allclose(*wide, atol=4 * unit * np.abs(wide[1]).max())


def test_gradients_equal_finite_differences_in_float64():
    args = arguments("float64")
    weights = tf.range(ROWS, dtype=tf.float64) - 3

    def loss(*args):
        return float(tf.reduce_sum(blocked_softmax_losses(*args, TARGETS, 8) * weights))

    _, *gradients = losses_and_gradients(lambda *a: blocked_softmax_losses(*a, TARGETS, 8), args)
    for k, gradient in enumerate(gradients):
        flat = args[k].numpy().reshape(-1)
        for position in range(0, flat.size, 5):
            sides = []
            for sign in (1, -1):
                moved = flat.copy()
                moved[position] += sign * 1e-6
                sides.append(loss(*args[:k], tf.constant(moved.reshape(args[k].shape)), *args[k + 1 :]))
            assert abs((sides[0] - sides[1]) / 2e-6 - gradient.numpy().reshape(-1)[position]) < 1e-6


def test_logits_at_the_end_of_float16_stay_finite():
    h = tf.constant([[240.0], [-240.0]], tf.float16)
    kernel = tf.constant([[270.0, -270.0, 0.0]], tf.float16)
    losses = blocked_softmax_losses(h, kernel, tf.zeros(3, tf.float16), [0, 0], 2)
    np.testing.assert_allclose(losses, [0.0, 129600.0], rtol=1e-3)
