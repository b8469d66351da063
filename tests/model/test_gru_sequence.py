"""The GRU's recurrence alone: gradients against finite differences, both loops, recomputed gates, the exact state."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from dist_mp.model.gru_sequence import gru_sequence

NAMES = ("x", "kernel", "recurrent", "bias", "h0")
MASK = tf.constant(np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]], bool))


def arguments(steps: int, rows: int, dtype: str = "float32", features: int = 3, cells: int = 4) -> list:
    """x, kernel, recurrent, bias and h0, uneven in every number."""
    rng = np.random.default_rng(0)
    shapes = [(steps, rows, features), (features, 3 * cells), (cells, 3 * cells), (2, 3 * cells)]
    values = [tf.cast(rng.normal(size=shape) * 0.6, dtype) for shape in shapes]
    return [*values, tf.constant(rng.normal(size=(rows, cells)), tf.float64 if dtype == "float64" else tf.float32)]


def total(results: tuple) -> tf.Tensor:
    """A loss that weighs every number differently."""
    return tf.add_n(
        [
            tf.reduce_sum(tf.cast(tf.reshape(r, [-1]), tf.float64) * np.sin(np.arange(r.shape.num_elements()) + 1.0))
            for r in results
        ]
    )


def gradients(args: list, **options) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(args)
        loss = total(gru_sequence(*args, **options))
    return tape.gradient(loss, args)


def choices(dtype: str) -> list[dict]:
    scale = tf.cast(np.random.default_rng(5).choice([0.0, 2.0], (3, 4)), dtype)
    return [{}, {"mask": MASK, "recurrent_scale": scale}]


@pytest.mark.parametrize("unroll", [True, False], ids=["unrolled", "while"])
@pytest.mark.parametrize("which", [0, 1], ids=["plain", "masked_and_scaled"])
def test_gradients_equal_finite_differences_in_float64(which, unroll):
    args = arguments(5, 3, "float64")
    options = choices("float64")[which] | {"unroll": unroll}
    step = 1e-6
    for k, (name, gradient) in enumerate(zip(NAMES, gradients(args, **options), strict=True)):
        flat = args[k].numpy().reshape(-1)
        for position in range(0, flat.size, max(1, flat.size // 7)):
            sides = []
            for sign in (1, -1):
                moved = flat.copy()
                moved[position] += sign * step
                changed = [*args[:k], tf.constant(moved.reshape(args[k].shape)), *args[k + 1 :]]
                sides.append(float(total(gru_sequence(*changed, **options))))
            numeric = (sides[0] - sides[1]) / (2 * step)
            assert abs(numeric - gradient.numpy().reshape(-1)[position]) < 1e-7, (name, position)


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8), ("float32", 1e-6)])
def test_recomputed_gates_give_the_same_bits_and_both_loops_agree(dtype, unit):
    args = arguments(5, 3, dtype)
    for options in choices(dtype):
        results = {}
        for unroll in (True, False):
            run = tf.function(lambda r, u=unroll, o=options: gradients(args, unroll=u, recompute=r, **o))
            results[unroll], again = run(False), run(True)
            for a, b in zip(results[unroll], again, strict=True):
                np.testing.assert_array_equal(a, b)
        for name, a, b, argument in zip(NAMES, results[True], results[False], args, strict=True):
            assert a.dtype == argument.dtype, name
            # TensorFlow adds the three parts of dh in another order in a graph without a loop.
            wide = [tf.cast(v, tf.float32).numpy() for v in (a, b)]
            np.testing.assert_allclose(*wide, atol=4 * unit * np.abs(wide[0]).max(), err_msg=name)


def test_a_state_with_small_updates_keeps_what_16_bits_would_lose():
    """z near 1 moves h by less than half a unit of bfloat16 each step: a state rounded each step would stand still."""
    steps = 400
    bias = np.zeros((2, 3), np.float32)
    bias[0] = (7.0, 0.0, 4.0)
    zeros = [np.zeros(s, np.float32) for s in ((steps, 1, 1), (1, 3), (1, 3))]
    args = [tf.cast(a, tf.bfloat16) for a in (*zeros, bias)]
    _, last = gru_sequence(*args, tf.constant([[0.5]]))
    z = 1.0 / (1.0 + np.exp(-7.0))
    expected = np.tanh(4.0) + (0.5 - np.tanh(4.0)) * z**steps
    np.testing.assert_allclose(last, [[expected]], rtol=1e-4)
    assert expected > 0.6
