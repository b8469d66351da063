"""The LSTM and GRU layers take the place of Keras's: same weights, same options, same outputs and gradients."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from dist_mp.errors import UserError
from dist_mp.model.gru import GRU
from dist_mp.model.lstm import LSTM
from dist_mp.model.recurrent import recurrent_path

ROWS, STEPS, FEATURES, CELLS = 4, 7, 5, 6


KINDS = {"lstm": (LSTM, keras.layers.LSTM), "gru": (GRU, keras.layers.GRU)}
each_kind = pytest.mark.parametrize("kind", KINDS)


def pair(kind: str, seed: int = 0, recompute: bool = False, **options) -> tuple[keras.Layer, keras.Layer]:
    """Our layer and Keras's with equal, uneven weights (biases included)."""
    own_class, keras_class = KINDS[kind]
    reference = keras_class(CELLS, use_cudnn=False, **options)
    own = own_class(CELLS, recompute=recompute, **options)
    shape = (ROWS, STEPS, FEATURES)
    reference.build(shape)
    own.build(shape)
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=w.shape).astype(np.float32) * 0.5 for w in reference.trainable_variables]
    for layer in (own, reference):
        for variable, value in zip(layer.trainable_variables, weights, strict=True):
            variable.assign(value)
    return own, reference


def inputs(seed: int = 1) -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=(ROWS, STEPS, FEATURES)), tf.float32)


def uneven_mask() -> tf.Tensor:
    """A row without padding, one padded at the end, one with holes and a masked start, one with no valid step."""
    mask = np.ones((ROWS, STEPS), bool)
    mask[1, 4:] = False
    mask[2, [0, 1, 3]] = False
    mask[3] = False
    return tf.constant(mask)


def outputs_and_gradients(layer, x, state=None, mask=None) -> list[tf.Tensor]:
    """All outputs, then the gradients of a weighted sum of them to the inputs, the state and the weights."""
    state = [] if state is None else state
    with tf.GradientTape() as tape:
        tape.watch([x, *state])
        outputs = keras.tree.flatten(layer(x, mask=mask, initial_state=state or None))
        total = sum(
            tf.reduce_sum(o * tf.reshape(tf.cos(tf.range(tf.size(o), dtype=tf.float32)), o.shape)) for o in outputs
        )
    return [*outputs, *tape.gradient(total, [x, *state, *(v.value for v in layer.trainable_variables)])]


def flat_outputs_and_gradients(layer, x, state=None, mask=None) -> list[np.ndarray]:
    return [v.numpy() for v in outputs_and_gradients(layer, x, state, mask)]


OPTIONS = [
    {},
    {"return_sequences": True},
    {"return_state": True},
    {"return_sequences": True, "return_state": True, "go_backwards": True},
    {"return_sequences": True, "unroll": True},
    {"return_sequences": True, "return_state": True, "recompute": True},
]


@pytest.mark.parametrize("masked", [False, True], ids=["full", "masked"])
@pytest.mark.parametrize("with_state", [False, True], ids=["zero_state", "initial_state"])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "+".join(o) or "plain")
@each_kind
def test_equals_keras_with_all_gradients(kind, options, with_state, masked):
    own, reference = pair(kind, **options)
    rng = np.random.default_rng(2)
    states = 2 if kind == "lstm" else 1
    state = [tf.constant(rng.normal(size=(ROWS, CELLS)), tf.float32) for _ in range(states)] if with_state else None
    mask = uneven_mask() if masked else None
    for a, b in zip(
        flat_outputs_and_gradients(own, inputs(), state, mask),
        flat_outputs_and_gradients(reference, inputs(), state, mask),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


@each_kind
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_thousand_steps_of_one_row_equal_keras_with_all_gradients(kind, recompute):
    own, reference = pair(kind, recompute=recompute, return_sequences=True)
    rng = np.random.default_rng(4)
    x = tf.constant(rng.normal(size=(1, 1000, FEATURES)), tf.float32)
    mask = tf.constant(rng.random((1, 1000)) < 0.8)
    run = tf.function(lambda layer: outputs_and_gradients(layer, x, mask=mask))
    for a, b in zip(run(own), run(reference), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1.0, np.abs(b).max()))


@each_kind
def test_zero_output_for_mask_equals_keras(kind):
    own, reference = pair(kind, return_sequences=True, zero_output_for_mask=True)
    np.testing.assert_allclose(own(inputs(), mask=uneven_mask()), reference(inputs(), mask=uneven_mask()), atol=1e-6)


@each_kind
def test_stateful_equals_keras_and_resets(kind):
    own, reference = pair(kind, stateful=True, return_sequences=True)
    first = [layer(inputs(1)) for layer in (own, reference)]
    second = [layer(inputs(2)) for layer in (own, reference)]
    np.testing.assert_allclose(*second, atol=1e-6)
    own.reset_state()
    np.testing.assert_array_equal(own(inputs(1)), first[0])
    with pytest.raises(UserError, match="4 rows, got a batch of 3"):
        own(inputs()[:3])


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_stateful_cell_state_stays_float32_under_a_16_bit_policy(precision):
    layer = LSTM(CELLS, stateful=True, return_state=True, dtype=precision)
    layer.build((ROWS, STEPS, FEATURES))
    _, h, c = layer(inputs())
    assert (h.dtype, c.dtype, layer.states[1].dtype) == (tf.as_dtype(precision), tf.float32, "float32")
    np.testing.assert_array_equal(layer.states[1].numpy(), c)
    assert {v.dtype for v in layer.trainable_variables} == {precision}


def test_state_of_a_gru_stays_float32_under_a_16_bit_policy():
    layer = GRU(CELLS, stateful=True, return_state=True, dtype="bfloat16")
    layer.build((ROWS, STEPS, FEATURES))
    y, h = layer(inputs())
    assert (y.dtype, h.dtype, layer.states[0].dtype) == (tf.bfloat16, tf.float32, "float32")
    np.testing.assert_array_equal(y, tf.cast(h, tf.bfloat16))


@each_kind
def test_bidirectional_equals_keras(kind):
    own, reference = (keras.layers.Bidirectional(layer) for layer in pair(kind, return_sequences=True))
    for layer in (own, reference):
        layer.build((ROWS, STEPS, FEATURES))
    reference.set_weights(own.get_weights())
    np.testing.assert_allclose(own(inputs(), mask=uneven_mask()), reference(inputs(), mask=uneven_mask()), atol=1e-6)


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras itself, with NumPy 2
@each_kind
def test_functional_model_with_unknown_rows_and_steps_saves_and_loads(tmp_path, kind):
    entry = keras.Input((None, FEATURES))
    layer = KINDS[kind][0](CELLS, return_sequences=True, recompute=True, name="own")
    model = keras.Model(entry, layer(keras.layers.Masking()(entry)))
    path = tmp_path / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)
    assert again.get_layer("own").recompute
    np.testing.assert_array_equal(model(inputs()), again(inputs()))
    np.testing.assert_array_equal(model.predict(inputs(), verbose=0).shape, (ROWS, STEPS, CELLS))


@each_kind
def test_dropout_is_a_pure_function_of_the_seed(kind):
    layer = pair(kind, dropout=0.4, recurrent_dropout=0.3, return_sequences=True)[0]
    first, again, other = (
        layer(inputs(), training=True, dropout_seed=tf.constant(s)) for s in ([1, 2], [1, 2], [1, 3])
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
    np.testing.assert_array_equal(layer(inputs()), layer(inputs(), training=False))


def test_recurrent_dropout_scales_the_state_before_the_recurrent_product():
    own, _ = pair("lstm", recurrent_dropout=0.5, return_sequences=True)
    _, reference = pair("lstm", return_sequences=True)
    seed = tf.constant([3, 4])
    _, scale = own._dropped(tf.ones((STEPS, ROWS, FEATURES)), ROWS, True, seed)
    assert set(np.unique(scale)) == {0.0, 2.0}
    # Keras's own cell, step by step, with the masked h.
    h, c = tf.zeros((ROWS, CELLS)), tf.zeros((ROWS, CELLS))
    expected = []
    for t in range(STEPS):
        _, (h, c) = reference.cell(inputs()[:, t], [h * scale, c])
        expected.append(h)
    actual = own(inputs(), training=True, dropout_seed=seed)
    np.testing.assert_allclose(actual, tf.stack(expected, axis=1), atol=1e-6)


@pytest.mark.parametrize("options", [{"activation": "relu"}, {"recurrent_activation": "tanh"}, {"use_bias": False}])
@each_kind
def test_other_settings_are_refused(kind, options):
    with pytest.raises(UserError, match=f"needs activation tanh.* use keras.layers.{kind.upper()} for others"):
        KINDS[kind][0](CELLS, **options)


def test_the_older_form_of_a_gru_is_refused():
    with pytest.raises(UserError, match="needs reset_after true"):
        GRU(CELLS, reset_after=False)


@each_kind
def test_the_way_through_keras_equals_our_own(kind):
    """What runs cuDNN on a GPU runs Keras's step-by-step layer here."""
    layer, _ = pair(kind, return_sequences=True, return_state=True)
    own = flat_outputs_and_gradients(layer, inputs())
    assert (layer.computed_by, layer.computed_why) == ("own", "no GPU to use")
    layer.computed_by = "cudnn"
    for a, b in zip(flat_outputs_and_gradients(layer, inputs()), own, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_cudnn_is_chosen_on_a_gpu_where_its_conditions_hold():
    assert recurrent_path(True, "float16", 0.0, False, False)[0] == "cudnn"
    assert recurrent_path(False, "float16", 0.0, False, False)[0] == "own"
    for refused in (("bfloat16", 0.0, False, False), ("float32", 0.1, False, False), ("float32", 0.0, True, False)):
        path, reason = recurrent_path(True, *refused)
        assert path == "own" and reason.startswith("cuDNN")
