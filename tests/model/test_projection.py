"""LSTM with a projection of h: gradients against finite differences, a reference in NumPy, options, the layer."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from dist_mp.model.lstm import LSTM
from dist_mp.model.lstm_sequence import lstm_sequence
from tests.model.test_lstm_sequence import MASK, total

STEPS, ROWS, FEATURES, CELLS, WIDTH = 5, 3, 2, 4, 3
NAMES = ("x", "kernel", "recurrent", "bias", "h0", "c0", "projection")


def arguments(dtype: str = "float32", steps: int = STEPS) -> list[tf.Tensor]:
    rng = np.random.default_rng(0)
    shapes = [
        (steps, ROWS, FEATURES),
        (FEATURES, 4 * CELLS),
        (WIDTH, 4 * CELLS),
        (4 * CELLS,),
        (ROWS, WIDTH),
        (ROWS, CELLS),
        (CELLS, WIDTH),
    ]
    values = [tf.cast(rng.normal(size=shape) * 0.6, dtype) for shape in shapes]
    values[5] = tf.cast(values[5], tf.float64 if dtype == "float64" else tf.float32)
    return values


def run(args, **options):
    *first, projection = args
    return lstm_sequence(*first, projection=projection, **options)


def gradients(args, **options):
    with tf.GradientTape() as tape:
        tape.watch(args)
        loss = total(run(args, **options))
    return tape.gradient(loss, args)


@pytest.mark.parametrize("options", [{}, {"recompute": True}, {"unroll": False}], ids=["plain", "recompute", "while"])
@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
def test_gradients_equal_finite_differences_in_float64(masked, options):
    args = arguments("float64")
    scale = tf.constant(np.random.default_rng(5).choice([0.0, 2.0], (ROWS, WIDTH)))
    options = options | {"mask": MASK if masked else None, "recurrent_scale": scale}
    step = 1e-6
    for k, (name, gradient) in enumerate(zip(NAMES, gradients(args, **options), strict=True)):
        flat = args[k].numpy().reshape(-1)
        assert gradient.shape == args[k].shape
        for position in range(0, flat.size, max(1, flat.size // 5)):
            sides = []
            for sign in (1, -1):
                moved = flat.copy()
                moved[position] += sign * step
                changed = [*args[:k], tf.constant(moved.reshape(args[k].shape)), *args[k + 1 :]]
                sides.append(float(total(run(changed, **options))))
            numeric = (sides[0] - sides[1]) / (2 * step)
            assert abs(numeric - gradient.numpy().reshape(-1)[position]) < 1e-7, (name, position)


def test_outputs_equal_a_loop_in_numpy():
    args = arguments("float64", steps=50)
    xs, w, u, b, h, c, p = (a.numpy() for a in args)
    for t in range(50):
        i, f, g, o = np.split(xs[t] @ w + h @ u + b, 4, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = (np.tanh(c) / (1 + np.exp(-o))) @ p
    h_all, h_last, c_last = run(args)
    assert h_all.shape == (50, ROWS, WIDTH) and c_last.shape == (ROWS, CELLS)
    np.testing.assert_allclose(h_last, h, atol=1e-12)
    np.testing.assert_allclose(c_last, c, atol=1e-12)
    np.testing.assert_array_equal(h_all[-1], h_last)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_both_loops_and_recomputation_give_the_same_bits(dtype):
    args = arguments(dtype)
    results = [
        tf.function(lambda o=options: [*run(args, mask=MASK, **o), *gradients(args, mask=MASK, **o)])()
        for options in ({}, {"unroll": False}, {"recompute": True})
    ]
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert [g.dtype.name for g in results[0][3:]] == [dtype] * 5 + ["float32", dtype]


def test_masked_row_keeps_its_state_and_projects_nothing():
    args = arguments()
    _, h_last, c_last = run(args, mask=MASK)
    np.testing.assert_array_equal(h_last[2], args[4][2])
    np.testing.assert_array_equal(c_last[2], args[5][2])
    only_row_two = tf.constant([[False, False, True]] * STEPS) & False
    d_projection = gradients(args, mask=only_row_two)[-1]
    np.testing.assert_array_equal(d_projection, np.zeros((CELLS, WIDTH)))


def test_layer_has_the_shapes_and_comes_back_from_its_settings():
    layer = LSTM(CELLS, projection=WIDTH, return_sequences=True, return_state=True, recurrent_dropout=0.3)
    x = tf.random.stateless_normal((ROWS, STEPS, FEATURES), [1, 2])
    y, h, c = layer(x, training=True)
    assert (y.shape, h.shape, c.shape) == ((ROWS, STEPS, WIDTH), (ROWS, WIDTH), (ROWS, CELLS))
    assert {v.name: tuple(v.shape) for v in layer.trainable_variables} == {
        "kernel": (FEATURES, 4 * CELLS),
        "recurrent_kernel": (WIDTH, 4 * CELLS),
        "bias": (4 * CELLS,),
        "projection_kernel": (CELLS, WIDTH),
    }
    again = LSTM.from_config(layer.get_config())
    again.build(x.shape)
    again.set_weights(layer.get_weights())
    for a, b in zip(layer(x), again(x), strict=True):
        np.testing.assert_array_equal(a, b)
    cell = layer.cell
    *weights, projection = (
        tf.convert_to_tensor(w) for w in (cell.kernel, cell.recurrent_kernel, cell.bias, cell.projection_kernel)
    )
    start = [tf.zeros((ROWS, WIDTH)), tf.zeros((ROWS, CELLS))]
    direct = lstm_sequence(tf.transpose(x, (1, 0, 2)), *weights, *start, projection=projection)
    np.testing.assert_array_equal(tf.transpose(direct[0], (1, 0, 2)), layer(x)[0])


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras itself, with NumPy 2
def test_model_with_the_layer_is_saved_and_read_again(tmp_path):
    entry = keras.Input((STEPS, FEATURES))
    model = keras.Model(entry, LSTM(CELLS, projection=WIDTH)(entry))
    model.save(tmp_path / "model.keras")
    x = tf.random.stateless_normal((ROWS, STEPS, FEATURES), [3, 4])
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "model.keras")(x), model(x))
