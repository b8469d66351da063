"""The recurrence alone: gradients against finite differences, both loops, masks, carried state, 16-bit numerics."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from dist_mp.model.lstm_sequence import lstm_sequence

NAMES = ("x", "kernel", "recurrent", "bias", "h0", "c0")


def arguments(steps: int, rows: int, features: int = 3, cells: int = 4, dtype: str = "float32", seed: int = 0) -> list:
    """x, kernel, recurrent, bias, h0 and c0, uneven in every number."""
    rng = np.random.default_rng(seed)
    shapes = [(steps, rows, features), (features, 4 * cells), (cells, 4 * cells), (4 * cells,), (rows, cells)]
    values = [tf.cast(rng.normal(size=shape) * 0.6, dtype) for shape in shapes]
    return [*values, tf.constant(rng.normal(size=(rows, cells)), tf.float64 if dtype == "float64" else tf.float32)]


def ramp(v: tf.Tensor) -> tf.Tensor:
    """Weights of the numbers in a test loss, different for each."""
    return tf.cast(tf.reshape(tf.sin(tf.range(tf.size(v), dtype=tf.float64) + 1.0), tf.shape(v)), v.dtype)


def total(results: tuple, scale: float = 1.0) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.cast(r * ramp(r), tf.float64)) for r in results]) * scale


def gradients(args: list, scale: float = 1.0, **options) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        tape.watch(args)
        loss = total(lstm_sequence(*args, **options), scale)
    return tape.gradient(loss, args)


MASK = tf.constant(np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]], bool))


@pytest.mark.parametrize("unroll", [True, False], ids=["unrolled", "while"])
@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
def test_gradients_equal_finite_differences_in_float64(masked, unroll):
    args = arguments(5, 3, dtype="float64")
    scale = tf.constant(np.random.default_rng(5).choice([0.0, 2.0], (3, 4)))
    options = {"mask": MASK if masked else None, "recurrent_scale": scale, "unroll": unroll}
    step = 1e-6
    for k, (name, gradient) in enumerate(zip(NAMES, gradients(args, **options), strict=True)):
        flat = args[k].numpy().reshape(-1)
        for position in range(0, flat.size, max(1, flat.size // 7)):
            sides = []
            for sign in (1, -1):
                moved = flat.copy()
                moved[position] += sign * step
                changed = [*args[:k], tf.constant(moved.reshape(args[k].shape)), *args[k + 1 :]]
                sides.append(float(total(lstm_sequence(*changed, **options))))
            numeric = (sides[0] - sides[1]) / (2 * step)
            assert abs(numeric - gradient.numpy().reshape(-1)[position]) < 1e-7, (name, position)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("steps", "rows"), [(1, 1), (1, 3), (5, 1), (5, 3)])
def test_unrolled_and_while_loop_agree_bit_for_bit(steps, rows, dtype):
    args = arguments(steps, rows, dtype=dtype)
    mask = tf.random.stateless_uniform((steps, rows), [1, 2]) > 0.3
    for options in ({}, {"mask": mask}):
        unrolled, loop = (
            tf.function(lambda *a, u=u, o=options: lstm_sequence(*a, unroll=u, **o)) for u in (True, False)
        )
        for a, b in zip(unrolled(*args), loop(*args), strict=True):
            np.testing.assert_array_equal(a, b)
        for a, b in zip(gradients(args, unroll=True, **options), gradients(args, unroll=False, **options), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("unroll", [True, False], ids=["unrolled", "while"])
def test_recomputed_gates_give_the_same_bits(unroll, dtype):
    args = arguments(5, 3, dtype=dtype)
    scale = tf.cast(np.random.default_rng(5).choice([0.0, 2.0], (3, 4)), dtype)
    for options in ({}, {"mask": MASK, "recurrent_scale": scale}):
        run = tf.function(lambda r, o=options: gradients(args, unroll=unroll, recompute=r, **o))
        for a, b in zip(run(True), run(False), strict=True):
            np.testing.assert_array_equal(a, b)


def test_thousand_steps_of_unknown_length_equal_a_loop_in_numpy():
    x, kernel, recurrent, bias, h, c = arguments(1000, 2)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 3))])
    def run(x):
        return lstm_sequence(x, kernel, recurrent, bias, h, c)

    states = [v.numpy().astype(np.float64) for v in (x, kernel, recurrent, bias, h, c)]
    xs, w, u, b, hn, cn = states
    for t in range(1000):
        i, f, g, o = np.split(xs[t] @ w + hn @ u + b, 4, axis=1)
        cn = cn / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        hn = np.tanh(cn) / (1 + np.exp(-o))
    h_all, h_last, c_last = run(x)
    assert h_all.shape == (1000, 2, 4)
    np.testing.assert_allclose(h_last, hn, atol=1e-5)
    np.testing.assert_allclose(c_last, cn, atol=1e-5)
    np.testing.assert_array_equal(h_all[-1], h_last)


def test_masked_row_keeps_its_state_and_gives_no_gradient():
    args = arguments(5, 3)
    h_all, h_last, c_last = lstm_sequence(*args, mask=MASK)
    np.testing.assert_array_equal(h_last[2], args[4][2])
    np.testing.assert_array_equal(c_last[2], args[5][2])
    np.testing.assert_array_equal(h_all[1, 0], lstm_sequence(*args)[0][1, 0])
    dx = gradients(args, mask=MASK)[0]
    np.testing.assert_array_equal(dx[:, 2], np.zeros((5, 3)))
    np.testing.assert_array_equal(dx.numpy()[~MASK.numpy()], 0.0)
    # Padding may hold anything, even what is not finite, if no valid step follows it.
    padded = tf.where(tf.constant([[[False], [False], [True]]] * 5), np.float32(np.inf), args[0])
    np.testing.assert_array_equal(lstm_sequence(padded, *args[1:], mask=MASK)[0][:, 2], [args[4][2]] * 5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_two_windows_with_carried_state_equal_one_long_window(dtype):
    x, *weights, h, c = arguments(8, 3, dtype=dtype)
    whole, h_last, c_last = lstm_sequence(x, *weights, h, c)
    first, h, c = lstm_sequence(x[:5], *weights, h, c)
    second, h, c = lstm_sequence(x[5:], *weights, h, c)
    for a, b in ((whole, tf.concat([first, second], 0)), (h_last, h), (c_last, c)):
        # One product over 24 rows and two over 15 and 9 may differ in the last bit of float32.
        np.testing.assert_allclose(
            tf.cast(a, tf.float32), tf.cast(b, tf.float32), atol=1e-6 if dtype == "float32" else 0
        )


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_16_bit_results_and_gradients_stay_within_rounding_of_float32(dtype, unit):
    """Each step rounds two products and h; errors of `unit` relative to numbers of order 1 add up over few steps."""
    low = arguments(10, 4, 16, 32, dtype=dtype)
    low[1], low[2] = low[1] * 0.3, low[2] * 0.3
    same = [tf.cast(a, tf.float32) for a in low]
    for a, b in zip(lstm_sequence(*low), lstm_sequence(*same), strict=True):
        assert np.abs(tf.cast(a, tf.float32) - b).max() < 8 * unit
    for name, a, b in zip(NAMES, gradients(low), gradients(same), strict=True):
        assert a.dtype == (tf.float32 if name == "c0" else tf.as_dtype(dtype)), name
        assert np.abs(tf.cast(a, tf.float32) - b).max() < 8 * unit * np.abs(b).max(), name


def test_float16_bias_gradient_over_many_rows_is_summed_in_float32():
    """A sum of 16,000 equal terms in float16 would stop growing at 2048 times the term."""
    x, kernel, recurrent, bias, h0, c0 = arguments(4, 4000, dtype="float16")
    alike = [tf.zeros_like(x), kernel, recurrent * 0, bias, h0 * 0, c0 * 0]
    scale = 1.0 / 16000

    def bias_gradient(args):
        with tf.GradientTape() as tape:
            tape.watch(args[3])
            loss = tf.reduce_sum(tf.cast(lstm_sequence(*args)[0], tf.float32)) * scale * 1024
        return tf.cast(tape.gradient(loss, args[3]), tf.float32).numpy()

    exact = bias_gradient([tf.cast(a, tf.float32) for a in alike])
    np.testing.assert_allclose(bias_gradient(alike), exact, rtol=5e-3, atol=0.05)
    assert np.abs(exact).max() > 10
