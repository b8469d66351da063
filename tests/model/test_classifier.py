"""Classifiers: promised types, padding without effect, learning in every precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from pydantic import ValidationError

from dist_mp.config import ClassifierModel, Config, ConvolutionalModel, LabelledData
from dist_mp.data.base import DataSpec
from dist_mp.errors import UserError
from dist_mp.model import ops
from dist_mp.model.build import build_task, initial_masters
from dist_mp.model.layers import Conv2D
from dist_mp.precision.loss_scale import LossScale
from dist_mp.precision.master import MasterWeights
from dist_mp.train.step import TrainStep, Window

ROWS, STEPS, CLASSES = 12, 8, 3
PRECISIONS = {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}
MODELS = {
    "words": (ClassifierModel(units=8, embedding=6, dropout=0.1), DataSpec(STEPS, vocabulary=20, classes=CLASSES)),
    "gru": (
        ClassifierModel(cell="gru", layers=2, units=8, embedding=6),
        DataSpec(STEPS, vocabulary=20, classes=CLASSES),
    ),
    "series": (
        ClassifierModel(units=8, convolutions=2, filters=6, width=3),
        DataSpec(STEPS, channels=4, classes=CLASSES),
    ),
    "both": (
        ClassifierModel(layers=2, units=8, convolutions=2, filters=6, width=4, stride=2, bidirectional=True),
        DataSpec(STEPS, channels=4, classes=CLASSES),
    ),
    "both_words": (
        ClassifierModel(cell="gru", units=8, embedding=6, bidirectional=True),
        DataSpec(STEPS, vocabulary=20, classes=CLASSES),
    ),
    "images": (ConvolutionalModel(filters=4, dense=16), DataSpec(STEPS, channels=24, width=8, classes=CLASSES)),
}


def settings(model) -> Config:
    data = LabelledData(path="x")
    return Config.model_validate(
        {
            "data": data.model_dump(),
            "model": model.model_dump(),
            "optimizer": {"name": "adam"},
            "loss_scale": {"initial": 256.0},
        }
    )


def example(spec: DataSpec) -> Window:
    """Sequences whose class shows: a word, or a channel, that marks it; the label at the last valid step."""
    rng = np.random.default_rng(0)
    label = np.arange(ROWS) % CLASSES
    lengths = np.full(ROWS, STEPS) if spec.width else rng.integers(3, STEPS + 1, ROWS)
    if spec.vocabulary:
        inputs = rng.integers(CLASSES, 20, (ROWS, STEPS)).astype(np.int32)
        inputs[:, 1] = label
    else:
        inputs = rng.normal(size=(ROWS, STEPS, spec.channels)).astype(np.float32) * 0.3
        inputs[np.arange(ROWS), :2, label] += 2.0
    targets, weight = np.zeros((ROWS, STEPS), np.int32), np.zeros((ROWS, STEPS), np.float32)
    targets[np.arange(ROWS), lengths - 1] = label
    weight[np.arange(ROWS), lengths - 1] = 1.0
    return Window(*(tf.constant(a) for a in (inputs, targets, weight, np.ones(ROWS, bool))))


class Local:
    def __call__(self, gradients):
        means = [tf.cast(g, tf.float32) for g in gradients]
        return means, means


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", MODELS)
def test_learns_its_sequences(name, precision):
    model, spec = MODELS[name]
    config, window = settings(model), example(spec)
    task = build_task(config, spec, PRECISIONS[precision])
    assert {v.dtype.name for v in task.variables} == {PRECISIONS[precision]}
    assert len(set(task.paths)) == len(task.paths) == len(task.variables)
    masters = MasterWeights(task.model.trainable_variables, initial_masters(config, spec), config.optimizer)
    step = TrainStep(task, masters, LossScale(config.loss_scale, precision), Local(), num_workers=1)
    state, losses = task.initial_state(ROWS), []
    for number in range(40):
        result = step.update(window, state, tf.constant(float(ROWS)), tf.constant([number, 1]), tf.constant(0.03))
        losses.append(float(result.loss_sum) / ROWS)
        assert bool(result.finite)
    assert abs(losses[0] - np.log(CLASSES)) < 1.0
    assert losses[-1] < 0.2, losses[::8]
    outputs, _ = task.forward(window.inputs, state, training=False, seed=tf.constant([0, 0]), weight=window.weight)
    scores = task.scores(outputs).numpy()
    assert scores.shape == (ROWS, STEPS, CLASSES) and scores.dtype == np.float32
    labelled = window.weight.numpy() > 0
    np.testing.assert_array_equal(scores[labelled].argmax(1), window.targets.numpy()[labelled])


@pytest.mark.parametrize("name", ["words", "gru", "series", "both", "both_words"])
def test_padding_after_the_last_step_changes_nothing(name):
    model, spec = MODELS[name]
    window = example(spec)
    task = build_task(settings(model), spec, "float32")

    def loss_and_gradients(inputs):
        with tf.GradientTape() as tape:
            state, seed = task.initial_state(ROWS), tf.constant([0, 0])
            outputs, _ = task.forward(inputs, state, training=False, seed=seed, weight=window.weight)
            losses = task.losses(outputs, window.targets, window.weight)
            loss = tf.reduce_sum(losses)
        return [losses, *tape.gradient(loss, task.variables)]

    valid = np.cumsum(window.weight.numpy()[:, ::-1], 1)[:, ::-1] > 0
    inputs = window.inputs.numpy()
    changed = np.where(valid if inputs.ndim == 2 else valid[:, :, None], inputs, inputs.dtype.type(7))
    assert np.any(changed != inputs)
    for a, b in zip(loss_and_gradients(inputs), loss_and_gradients(changed), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    losses = loss_and_gradients(inputs)[0].numpy()
    assert np.all((losses > 0) == (window.weight.numpy() > 0))


@pytest.mark.parametrize("name", ["both", "both_words"])
def test_a_row_of_a_bidirectional_classifier_is_classified_as_if_it_were_alone(name):
    """A batch of unequal lengths against each row by itself, cut to its length: no step of padding is there at all."""
    model, spec = MODELS[name]
    window, seed = example(spec), tf.constant([0, 0])
    task = build_task(settings(model), spec, "float32")
    together = task.forward(window.inputs, [], training=False, seed=seed, weight=window.weight)[0]
    lengths = window.weight.numpy().argmax(1) + 1
    assert len(set(lengths)) > 3
    for row, length in enumerate(lengths):
        part = (slice(row, row + 1), slice(0, length))
        alone = task.forward(window.inputs[part], [], training=False, seed=seed, weight=window.weight[part])[0]
        np.testing.assert_allclose(alone[0, -1], together[row, length - 1], atol=1e-6)
    backwards = tf.reverse_sequence(window.inputs, lengths, 1, 0)
    other = task.forward(backwards, [], training=False, seed=seed, weight=window.weight)[0]
    assert np.abs(other - together).max() > 1e-3, "the order of the steps matters"


def test_bidirectional_gradients_equal_finite_differences_in_float64():
    model, spec = MODELS["both"]
    window, seed = example(spec), tf.constant([0, 0])
    task = build_task(settings(model), spec, "float64")

    def loss():
        logits = task.forward(window.inputs, [], training=False, seed=seed, weight=window.weight)[0][:, 0]
        return tf.reduce_sum(logits * tf.cos(tf.reshape(tf.range(36, dtype=tf.float64), (ROWS, CLASSES))))

    with tf.GradientTape() as tape:
        value = loss()
    for variable, gradient in zip(task.variables, tape.gradient(value, task.variables), strict=True):
        start = variable.numpy()
        for position in range(0, start.size, max(1, start.size // 3)):
            sides = []
            for sign in (1, -1):
                moved = start.copy().reshape(-1)
                moved[position] += sign * 1e-6
                variable.assign(moved.reshape(start.shape))
                sides.append(float(loss()))
            variable.assign(start)
            assert abs((sides[0] - sides[1]) / 2e-6 - gradient.numpy().reshape(-1)[position]) < 1e-7, variable.name


def test_stride_without_both_directions_is_refused():
    with pytest.raises(ValidationError, match="stride is 2, which needs bidirectional"):
        ClassifierModel(stride=2, convolutions=1)
    model, spec = MODELS["both"]
    window, task = example(spec), build_task(settings(model), spec, "float32")
    with pytest.raises(ValueError, match="needs the weights"):
        task.forward(window.inputs, [], training=False, seed=tf.constant([0, 0]))


@pytest.mark.parametrize(("dtype", "unit"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8), ("float32", 1e-5)])
def test_convolution_equals_keras_with_gradients(dtype, unit):
    own, reference = Conv2D(5, 3, padding="same", dtype=dtype), keras.layers.Conv2D(5, 3, padding="same")
    rng = np.random.default_rng(0)
    x = tf.cast(rng.normal(size=(2, 6, 7, 3)), dtype)
    results = []
    for layer, inputs in ((own, x), (reference, tf.cast(x, tf.float32))):
        layer.build((None, 6, 7, 3))
        for k, variable in enumerate(layer.trainable_variables):
            variable.assign(tf.cast(np.random.default_rng(k).normal(size=variable.shape), dtype))
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            y = layer(inputs)
            loss = tf.reduce_sum(y * tf.cast(np.random.default_rng(9).normal(size=y.shape), y.dtype))
        results.append([y, *tape.gradient(loss, [inputs, *(v.value for v in layer.trainable_variables)])])
    for a, b in zip(*results, strict=True):
        assert a.dtype == tf.as_dtype(dtype)
        wide = tf.cast(b, tf.float32).numpy()
        np.testing.assert_allclose(tf.cast(a, tf.float32), wide, atol=3 * unit * np.abs(wide).max())


def test_bias_gradient_of_many_positions_is_summed_in_float32():
    x, bias = tf.zeros((4, 50, 50, 2), tf.float16), tf.zeros(2, tf.float16)
    with tf.GradientTape() as tape:
        tape.watch(bias)
        y = ops.add_bias(x, bias)
    gradient = tape.gradient(y, bias, output_gradients=tf.ones_like(y) * tf.constant([1.0, 0.25], tf.float16))
    np.testing.assert_array_equal(gradient, [10000.0, 2500.0])


def test_models_that_do_not_fit_the_data_are_refused():
    words, image = MODELS["words"][1], MODELS["images"][1]
    for model, spec, message in (
        (ClassifierModel(convolutions=1), words, "model.convolutions is for series and images"),
        (ConvolutionalModel(), MODELS["series"][1], "model.kind convolutional needs images"),
        (ConvolutionalModel(blocks=4), image, "model.blocks is 4, but images of 8 x 8 can be halved 3 times"),
    ):
        with pytest.raises(UserError, match=message):
            build_task(settings(model), spec, "float32")
